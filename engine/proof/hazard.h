/* Finds hazards of a program (program.h): two operations that touch the same bytes, of which at
 * least one writes, and which nothing orders. Two ranks stand for all ranks, since all run the same
 * program.
 *
 * Only these give order:
 *   - a lane, to its own operations, except the drive's lane;
 *   - what an operation follows (order.h). An operation that follows one of COMPUTE follows all
 *     operations that were enqueued on COMPUTE so far;
 *   - the calling thread: operations that it has waited for are before everything that it enqueues
 *     later. It waits for what an operation of its own follows, for a transfer that an operation of
 *     any other lane follows, for a transfer when there is no room for another, and for an
 *     operation with SHERDI_OP_WAITS;
 *   - the updater, which gives operations with SHERDI_OP_QUEUED: it begins at the fork after all
 *     that the calling thread knows, and waits like the calling thread. A thread that awaits one of
 *     its posts is after everything that the updater knew at the post;
 *   - between ranks, a synchronizing call: operations that the call followed on either rank are
 *     before operations after the call on both. When the call is over on one rank, the other has
 *     read this rank's bytes; the call may not be over there.
 *
 * The check knows no engine and no plan. It is used at seal and in tests, never in the loop. */
#ifndef SHERDI_ENGINE_PROOF_HAZARD_H
#define SHERDI_ENGINE_PROOF_HAZARD_H

#include "engine/program/order.h"

/* A kind of order that tests take out, on both ranks. */
typedef enum sherdi_hazard_drop {
    SHERDI_HAZARD_DROP_NOTHING = 0,
    SHERDI_HAZARD_DROP_LANE,   /* operations of lane `by` follow none of lane `followed` */
    SHERDI_HAZARD_DROP_MEETS,  /* calls of `kind` do not meet: all, or those from `number` up to
                                 `last_number`; a gather then reads as a stable one does */
    SHERDI_HAZARD_DROP_NUMBER, /* the follow of that number is omitted; a rank counts from 1 on */
    SHERDI_HAZARD_DROP_AWAIT,  /* awaits of the post `number` (sherdi_post) wait for nothing */
} sherdi_hazard_drop;

typedef struct sherdi_hazard_params {
    int    has_device; /* 0: only the wire and the drive overlap with the calling thread */
    size_t drive_room; /* transfers that may be in progress at once; at least 1 */
    size_t num_units;  /* of which the updater posts */
    int    uses_last;  /* 1: a use lasts until sherdi_hazard_end; 0: it is over where it begins */
    const char *(*unit_name)(const void *ctx, int unit);   /* NULL: messages have the number */
    const char *(*where_name)(const void *ctx, int where); /* NULL: the same */
    const void        *ctx;
    sherdi_hazard_drop drop;
    sherdi_lane_id     by, followed;
    sherdi_op_kind     kind;
    uint64_t           number, last_number;
} sherdi_hazard_params;

typedef struct sherdi_hazard sherdi_hazard;

/** Opens a check that has seen no operation. E_NOMEM. */
sherd_status sherdi_hazard_open(const sherdi_hazard_params *params, sherdi_mem *mem,
                                sherdi_hazard **out);
/** Closes a check; accepts NULL. */
void sherdi_hazard_close(sherdi_hazard *hazard);

/**
 *  Adds the next operation of the program, as rank `one` and rank `other` have it; the two differ
 *  only in the offsets of the ranks' own slices. Of an await by one rank alone the other has
 *  another kind, whatever it is.
 *
 *  Errors  E_STATE  it is not ordered after an earlier operation; the message names both, the place
 *                   and the number of bytes. The check cannot be used any more.
 *          E_NOMEM
 */
sherd_status sherdi_hazard_op(sherdi_hazard *hazard, const sherdi_op *one, const sherdi_op *other);

/** Begins a queued update, which overlaps with the calling thread's operations. */
void sherdi_hazard_fork(sherdi_hazard *hazard);

/**
 *  With `uses_last`: ends a use (sherdi_op_is_trainers), the latest one of this unit, segment and
 *  parameter that has not ended. Nobody sees when in between the trainer works. So no operation of
 *  another lane or rank may conflict with the use in the meantime, whatever it follows; and later
 *  operations have to follow the end. Errors as above; E_STATE also if the use does not exist.
 */
sherd_status sherdi_hazard_end(sherdi_hazard *hazard, const sherdi_op *one, const sherdi_op *other);

/** Returns how many follows rank `one` has had so far. */
uint64_t sherdi_hazard_follows(const sherdi_hazard *hazard);

#endif
