/* The state of a move, which the files of this folder share. move.c has the call and the order of
 * its parts. */
#ifndef SHERDI_ENGINE_ELASTIC_MOVE_H
#define SHERDI_ENGINE_ELASTIC_MOVE_H

#include "engine/elastic/peak.h"
#include "engine/elastic/seat.h"
#include "engine/elastic/wire.h"
#include "engine/run/blobs.h"

#define SHERDI_MOVE_CALL "sherd_engine_move"

/* Of the module, in an engine. */
struct sherdi_elastic {
    sherd_move_report report; /* of the last move */
    int               is_moving;
};

/* What the ranks of the new world tell each other. */
typedef struct sherdi_move_hello {
    uint64_t              status;
    int32_t               old_rank, old_size; /* -1: a newcomer */
    int32_t               num_stay;           /* ranks of the old world that go on */
    int32_t               reserved;
    sherdi_batch_settings batch;
    int64_t               micro_step, step, skipped_steps, samples;
    sherdi_scaler         scaler;
    uint64_t              frozen;    /* fingerprint of frozen parameters */
    uint64_t              old_bytes; /* memory of the old layout; 0: none */
    char                  run_text[SHERDI_RUN_TEXT_BYTES];
} sherdi_move_hello;

_Static_assert(sizeof(sherdi_move_hello) <= SHERDI_TOLD_BYTES, "it is told");

typedef struct sherdi_move {
    sherd_engine *engine;
    sherd_world  *old_world, *new_world; /* NULL: this rank is a newcomer, or leaves */
    sherd_world  *all;                   /* the one of them that has the ranks of both */
    int           old_size, new_size;
    size_t        old_bytes; /* of the ranks that stay */
    int          *goes;      /* by old rank: its new rank; -1: it leaves */
    int          *stayed;    /* by new rank: its old rank; -1: a newcomer */
    int          *old_at;    /* by old rank: the rank of `all` that gives what it held */
    int          *new_at;    /* by new rank: the same */

    sherdi_move_hello     hello;     /* of the first rank that stays */
    sherdi_batch_settings batch;     /* of the new layout */
    sherdi_seat           old;       /* of this rank, from the opening of the new one on */
    int                   is_seated; /* the engine has its new seat, opened */
    sherdi_plan          *lent;      /* of the layout in which this rank is not */
    sherdi_holding       *from;      /* by old rank: what this rank gives of it */
    sherdi_move_plans     plans;
    sherdi_move_wire      wire;
    sherdi_blobs          blobs;    /* of this rank in the new world */
    int                   is_begun; /* memory of the old layout was given back */
    sherd_move_report     report;
} sherdi_move;

/** Returns the batch on `ranks` ranks: the micro-batches of all ranks together stay. */
static inline sherdi_batch_settings sherdi_move_batch(const sherdi_batch_settings *batch, int ranks)
{
    sherdi_batch_settings out    = *batch;
    int                   global = batch->train_batch_size / batch->micro_batch_size;

    out.accumulation = (global + ranks - 1) / ranks;
    return out;
}

/** Brings the ranks together, each with its status so far: sets goes, stayed, sizes, hello, batch
 *  and all. Collective in both worlds. */
sherd_status sherdi_move_meet(sherdi_move *m, sherd_status here);
/** Collects the blobs that this rank has in the new world, in m->blobs. Collective over m->all; the
 *  wire must be open, and empty. E_NOMEM. */
sherd_status sherdi_move_blobs(sherdi_move *m);

#endif
