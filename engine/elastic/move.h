/* The state of a move, which the files of this folder share. move.c has the call and the order of
 * its parts. */
#ifndef SHERDI_ENGINE_ELASTIC_MOVE_H
#define SHERDI_ENGINE_ELASTIC_MOVE_H

#include "engine/elastic/ledger.h"
#include "engine/elastic/peak.h"
#include "engine/elastic/remains.h"
#include "engine/elastic/seat.h"
#include "engine/elastic/stored.h"
#include "engine/elastic/wire.h"
#include "engine/run/blobs.h"

#define SHERDI_MOVE_CALL "sherd_engine_move"

/* Where a step began that may be under way. */
typedef struct sherdi_step_begun {
    int             is_open;
    sherdi_counters counters; /* as the window ended */
    int64_t         first_micro;
    sherdi_scaler   scaler;
    uint64_t        version; /* of the ledger */
} sherdi_step_begun;

typedef struct sherdi_ghost sherdi_ghost;

/* Runs that are remembered, until their files are removed. */
#define SHERDI_MOVE_ORPHANS 8

/* Of the module, in an engine. */
struct sherdi_elastic {
    sherd_move_report     report; /* of the last move */
    int                   is_moving;
    sherdi_step_begun     step;
    sherdi_noted          noted;
    struct sherdi_copies *copies;                       /* of another rank; NULL: none */
    uint64_t              orphans[SHERDI_MOVE_ORPHANS]; /* runs of which files may be left */
};

/* Where a state stands: the updates that it has, and the counters that belong to it. */
typedef struct sherdi_standing {
    uint64_t      version; /* of the ledger */
    int64_t       step, skipped, micro;
    sherdi_scaler scaler;
} sherdi_standing;

/* What the ranks of the new world tell each other. */
typedef struct sherdi_move_hello {
    uint64_t              status;
    int32_t               old_rank, old_size; /* -1: a newcomer */
    int32_t               num_stay;           /* ranks of the old world that go on */
    int32_t               is_lost;            /* its old world has failed */
    sherdi_batch_settings batch;
    sherdi_standing       at;
    int64_t               samples;
    uint64_t              frozen;    /* fingerprint of frozen parameters */
    uint64_t              old_bytes; /* of the old layout, given back as values go; 0: none */
    char                  run_text[SHERDI_RUN_TEXT_BYTES];
} sherdi_move_hello;

_Static_assert(sizeof(sherdi_move_hello) <= SHERDI_TOLD_BYTES, "it is told");

typedef struct sherdi_move {
    sherd_engine *engine;
    int64_t       start_ns;
    sherd_world  *old_world, *new_world; /* NULL: this rank is a newcomer, or leaves */
    sherd_world  *all;                   /* the one of them that has the ranks of both */
    int           old_size, new_size;
    size_t        old_bytes; /* that the ranks that stay give back, all of them together */
    int           is_lost;   /* the old world has failed: only those that stay are there */
    int          *goes;      /* by old rank: its new rank; -1: it leaves */
    int          *gives;     /* where ranks are lost, by old rank: -1: its values are not taken */
    int          *stayed;    /* by new rank: its old rank; -1: a newcomer */
    int          *old_at;    /* by old rank: the rank of `all` that gives what it held */
    int          *new_at;    /* by new rank: the same */

    sherdi_move_hello     hello;       /* of the first rank that stays */
    sherdi_batch_settings batch;       /* of the new layout */
    sherdi_seat           old;         /* of this rank, from the opening of the new one on */
    int                   is_seated;   /* the engine has its new seat, opened */
    sherdi_ledger         own_ledger;  /* of the old layout, where no other rank sees it */
    sherdi_plan          *lent;        /* of the layout in which this rank is not */
    sherdi_holding       *from;        /* by old rank: what this rank gives of it */
    sherdi_ghost        **ghosts;      /* by old rank, of those for which this rank acts; lost.h */
    sherdi_ghost        **own_ghosts;  /* of them those that were made for this move */
    struct sherdi_given  *given;       /* by old rank; NULL unless is_aimed: generation.h */
    int                   is_aimed;    /* the state is a generation that the old ranks have */
    int                   is_old_kept; /* files of the old layout stay */
    struct sherdi_copies *copies;      /* of the old world, while the new ones are made .. */
    int                   has_copies;  /* .. from then on */
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

/** Brings the ranks together: sets goes, stayed, sizes, hello, batch and all. Collective in both
 *  worlds. */
sherd_status sherdi_move_meet(sherdi_move *m);
/** Ends everything that is under way in the old world. Collective there. */
sherd_status sherdi_move_rest(sherdi_move *m);
/** Collects the blobs that this rank has in the new world, in m->blobs. Collective over m->all; the
 *  wire must be open, and empty. E_NOMEM. */
sherd_status sherdi_move_blobs(sherdi_move *m);

/* ---- files.c, where sherdi_move_is_stored */

/** Ends the transfers of an engine, and forgets what they have read. Local. */
void sherdi_move_files_rest(sherd_engine *engine);
/** Makes rooms for what rests on a drive of the layouts, when the holdings are known; frees them,
 *  which must be before a store is closed. E_NOMEM. */
sherd_status sherdi_move_files_open(sherdi_move *m);
void         sherdi_move_files_close(sherdi_move *m);
/** Moves a segment, and begins to write it. Collective: a failure is one of all ranks. Nothing of the
 *  old layout changes. E_IO, E_PEER_LOST. */
sherd_status sherdi_move_files_segment(sherdi_move *m, int segment);
/** Commits the new layout, and says which files remain. Collective: a failure is one of all ranks,
 *  and leaves the old files alone. E_IO, E_INVAL (the blobs are too long for a note), E_PEER_LOST. */
sherd_status sherdi_move_files_commit(sherdi_move *m);
/** Adds what the drive has moved to the report. */
void sherdi_move_files_count(sherdi_move *m);
/** Lets the engine, which has moved, use its files. */
void sherdi_move_files_settle(sherd_engine *engine);
/** Removes the files that lost ranks have left of runs which moves have begun, or have ended. */
void sherdi_move_files_sweep(sherd_engine *engine);

#endif
