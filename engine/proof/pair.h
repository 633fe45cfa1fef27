/* The operations of a call, as two ranks have them: paired, and checked for hazards. Operations of
 * a queued update wait in a separate list, and come as early or as late as awaits allow. */
#ifndef SHERDI_ENGINE_PROOF_PAIR_H
#define SHERDI_ENGINE_PROOF_PAIR_H

#include "engine/proof/dry.h"
#include "engine/proof/hazard.h"

#define SHERDI_PAIR_RANKS 2

typedef struct sherdi_pair_side {
    const sherdi_plan *plan;
    sherdi_mem        *mem;
    sherdi_dry        *dry;
    sherd_engine      *engine;
    sherdi_op         *ops; /* operations of the call */
    size_t             num_ops, cap_ops;
    sherdi_op         *queued; /* operations of a queued update */
    size_t             num_queued, cap_queued;
    size_t             at_queued;  /* as many of these were proved */
    size_t             end_queued; /* as many of them are of an update that has begun */
    /* the update begins after this number of the call's operations; SIZE_MAX: it does not begin */
    size_t forked_at;
} sherdi_pair_side;

/* An operation that an acquire emits for its use, until the release. */
typedef struct sherdi_pair_use {
    sherdi_op  ops[SHERDI_PAIR_RANKS];
    int        unit; /* that was acquired */
    sherd_pass pass;
    size_t     acquire;
} sherdi_pair_use;

typedef struct sherdi_pair {
    sherdi_mem      *mem;
    sherdi_pair_side sides[SHERDI_PAIR_RANKS];
    sherdi_hazard   *hazard;
    sherdi_pair_use *uses;
    size_t           num_uses, cap_uses;
    size_t           acquires; /* so far */
    int              unit;     /* of the acquire under way */
    sherd_pass       pass;
    int is_late;       /* operations of the updater come as late as awaits allow, and not at once */
    int dropped_await; /* for tests: awaits of this post (sherdi_post) are taken out; -1: none */
    uint64_t updates_queued;
} sherdi_pair;

/** Forgets the operations of the call before. */
void sherdi_pair_begin(sherdi_pair *pair);
/** The sherdi_op_fn of a side's dry engine: collects an operation as the machine would carry it
 *  out. E_INVAL: it goes beyond its buffer. */
sherd_status sherdi_pair_collect(void *ctx, const sherdi_op *op);
/** Checks all operations of a call. is_mirrored: only one rank made it. E_STATE: a hazard, or the
 *  ranks do different things. */
sherd_status sherdi_pair_prove(sherdi_pair *pair, int is_mirrored);
/** Fails: the ranks do different things from operations `one` and `other` on. */
sherd_status sherdi_pair_part(const sherdi_pair *pair, size_t one, size_t other);
/** Ends the trainer's use where it releases the unit. */
sherd_status sherdi_pair_uses_end(sherdi_pair *pair, int unit, sherd_pass pass);
/** Frees all but the dry engines. */
void sherdi_pair_close(sherdi_pair *pair);

#endif
