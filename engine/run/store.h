/* The store: an engine's storage in files (offload.h). It has the tiers of state, parameters and
 * gradients, and the drive's lane. store_open.c opens them, and store.c moves their data
 * and changes generations of the state; which extents are read and written, and when, the program
 * decides (program.h). */
#ifndef SHERDI_ENGINE_RUN_STORE_H
#define SHERDI_ENGINE_RUN_STORE_H

#include "collectives/ending.h"
#include "engine/run/drive.h"
#include "engine/run/engine_impl.h"
#include "engine/run/lanes_impl.h"
#include "engine/run/state_note.h"
#include "engine/program/offload.h"

/* The substitute for state on a drive in a dry engine. */
typedef struct sherdi_dry_state {
    uint64_t            live;
    int                 has_previous;
    sherdi_state_record record, previous;
} sherdi_dry_state;

struct sherdi_store {
    sherdi_ioq         *queue;
    sherdi_tier        *tiers[SHERDI_RINGS]; /* NULL: no data of this kind rests on storage */
    sherdi_drive        drive;
    sherdi_state       *state; /* whose extents tiers has; NULL: without generations */
    sherdi_io_traffic   taken[SHERDI_IO_ACCOUNTS]; /* the queue's traffic that reports have */
    sherdi_state_record record;                    /* to commit; or the result of a rollback */
    unsigned char      *note; /* [SHERDI_STATE_NOTE_BYTES]: record and blobs of a generation */
    size_t              note_bytes;
    /* of the trainer's thread: the step that the drive had before an update that is under way */
    int64_t        stored_step;
    sherdi_outcome note_failure;     /* they have no room there */
    int            is_worth_keeping; /* the state's file holds a generation */
    int            is_changed;       /* this engine has committed a generation */
    /* The generation of which every rank knows that all ranks have it; some may have the next one
     * already */
    uint64_t         agreed;
    sherdi_dry_state dry;
    sherdi_ending    ending; /* of the run: its files are removed when all ranks agree */
};
typedef struct sherdi_store sherdi_store;

/** Makes a store that is not open. E_NOMEM. */
sherd_status sherdi_store_create(sherd_engine *engine);
void         sherdi_store_destroy(sherd_engine *engine);

/** Returns the state; NULL: the engine has none on a drive. */
static inline sherdi_state *sherdi_store_state(const sherd_engine *engine)
{
    return engine->storage.store == NULL ? NULL : engine->storage.store->state;
}

/** Returns the number of the live generation; 0: there is none yet. */
uint64_t sherdi_store_live(const sherd_engine *engine);
/** Gives the record of the live generation, and returns whether there is a generation to roll back
 *  to. */
void sherdi_store_record(const sherd_engine *engine, sherdi_state_record *out);
int  sherdi_store_has_previous(const sherd_engine *engine);
extern const sherdi_storage_ops sherdi_storage_drive;
/** Opens the state files of another rank of a run, whose process has ended, by that rank's plan. Waits
 *  a while if the kernel still holds them. E_STATE: they are in use, hold no generation, or are of
 *  another layout. E_IO, E_NOMEM. */
sherd_status sherdi_store_open_other(sherd_engine *engine, sherdi_ioq *queue,
                                     const sherdi_plan *plan, uint64_t run, sherdi_state **out);

/* Where a note has blobs (sherdi_blobs_read): those of the run, and those of its rank; 0 bytes: there
 * are none. */
typedef struct sherdi_note_blobs {
    const unsigned char *run, *own;
    size_t               run_bytes, own_bytes;
} sherdi_note_blobs;

/** Finds the blobs of a note of `len_bytes`. E_IO: it is damaged. */
sherd_status sherdi_note_find_blobs(const unsigned char *note, size_t len_bytes,
                                    sherdi_note_blobs *out);
/** sherdi_storage_ops.note and .stored_step. */
void    sherdi_store_note(sherd_engine *engine, int64_t step, const sherdi_scaler *scaler,
                          int is_written);
int64_t sherdi_store_step(sherd_engine *engine);
/** sherdi_storage_ops.commit and .agreed. */
sherd_status sherdi_store_commit(sherd_engine *engine, uint64_t fingerprint);
void         sherdi_store_agreed(sherd_engine *engine);

/** Returns the time that a thread has waited for a ring since the last call. */
sherdi_storage_waits sherdi_store_waits_take(sherd_engine *engine, sherdi_user user,
                                             sherdi_ring ring);
/** Replaces the blobs by those of the live generation of the state. Collective. Errors: E_IO
 *  (damaged), E_NOMEM. */
sherd_status sherdi_store_blobs(sherd_engine *engine);

/** Functions of the table (offload.h), and of the lanes' table for transfers. */
void                              sherdi_store_stop(sherd_engine *engine);
void                              sherdi_store_close(sherd_engine *engine);
extern const sherdi_transfers_ops sherdi_store_transfers;

/** Moves the state in files forward (SHERDI_OP_COMMIT) or back (SHERDI_OP_ABANDON,
 *  SHERDI_OP_ROLLBACK). */
static inline sherd_status sherdi_run_generation(sherd_engine *engine, sherdi_op_kind kind)
{
    return SHERDI_IF_OFFLOAD(generation(sherdi_run_program(engine), kind));
}

#endif
