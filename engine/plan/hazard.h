/* Hazards of a program (program.h): an operation that touches bytes which another one still uses, where one of the two
 * writes, and no path of lanes and follows orders them. Two ranks stand for all, since all run the same program.
 *
 * What gives order, and nothing else does:
 *   - a lane, for its own operations, but for the drive's;
 *   - what an operation follows (order.h). One that follows COMPUTE follows all that was given to it so far;
 *   - the calling thread: what it has waited for is before everything that it gives later. It waits for what an
 *     operation of its own follows, for a transfer that any other lane follows, for one when there is no room, and
 *     for an operation with SHERDI_OP_WAITS;
 *   - between ranks, calls that meet: what either has followed before is before what comes behind the call. That
 *     a call is over on one rank says of the other that it has read this rank's bytes, not that it is over there.
 *
 * The check knows no engine and no plan. It is used at the start and in tests, never in the loop. */
#ifndef SHERDI_ENGINE_PLAN_HAZARD_H
#define SHERDI_ENGINE_PLAN_HAZARD_H

#include "engine/plan/order.h"

/* Tests take one kind of order out, on both ranks. */
typedef enum sherdi_hazard_drop {
    SHERDI_HAZARD_DROP_NOTHING = 0,
    SHERDI_HAZARD_DROP_LANE, /* operations of lane `by` follow none of lane `followed` */
    SHERDI_HAZARD_DROP_MEETS, /* calls of `kind` do not meet, all or with a number that one: a gather reads as a
                                 stable one does */
    SHERDI_HAZARD_DROP_NUMBER, /* the follow of that number, counted on each rank from 1 on */
} sherdi_hazard_drop;

typedef struct sherdi_hazard_params {
    int    has_device; /* without, only the wire and the drive work beside the calling thread */
    size_t drive_room; /* transfers that may be under way at once; at least 1 */
    int uses_last; /* sherdi_hazard_end tells where a use is over; without, it is where it begins */
    const char *(*unit_name)(const void *ctx, int unit);   /* NULL: errors say the number */
    const char *(*where_name)(const void *ctx, int where); /* ... */
    const void        *ctx;
    sherdi_hazard_drop drop;
    sherdi_lane_id     by, followed;
    sherdi_op_kind     kind;
    uint64_t           number;
} sherdi_hazard_params;

typedef struct sherdi_hazard sherdi_hazard;

/** A check that has seen nothing. E_NOMEM. */
sherd_status sherdi_hazard_open(const sherdi_hazard_params *params, sherdi_mem *mem,
                                sherdi_hazard **out);
/** Accepts NULL. */
void sherdi_hazard_close(sherdi_hazard *hazard);

/**
 * The next operation of the program, as the one rank has it and as the other: the same but for the offsets of own slices.
 *
 * Errors  E_STATE  it, or an earlier one, is not ordered: who, where, how many bytes. The check is of no use then.
 *         E_NOMEM
 */
sherd_status sherdi_hazard_op(sherdi_hazard *hazard, const sherdi_op *one, const sherdi_op *other);

/**
 * With `uses_last`: a use (SHERDI_OP_USE) goes on until here, the last one of the same unit, segment and parameter that
 * has not ended. When in between the trainer works nobody sees, so whatever another lane or rank is given meanwhile
 * may not be in conflict with it, whatever it follows; what comes from now on has to be behind the end.
 *
 * Errors  as above; E_STATE also when there is no such use.
 */
sherd_status sherdi_hazard_end(sherdi_hazard *hazard, const sherdi_op *one, const sherdi_op *other);

/** Follows of the one rank so far. */
uint64_t sherdi_hazard_follows(const sherdi_hazard *hazard);

#endif
