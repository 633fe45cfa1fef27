/* The tables of storage and of an updater (offload.h). All functions are local and do not block,
 * unless a comment says otherwise. */
#ifndef SHERDI_ENGINE_RUN_OFFLOAD_OPS_H
#define SHERDI_ENGINE_RUN_OFFLOAD_OPS_H

#include "engine/run/offload.h"

/* Handles a block for a checkpoint: takes its values with sherdi_run_block_get (SHERDI_OP_SAVE), or
 * gives them with sherdi_run_block_put (SHERDI_OP_LOAD). */
typedef sherd_status (*sherdi_block_fn)(void *ctx, const sherdi_op *op);
typedef struct sherdi_block_call {
    sherdi_block_fn fn; /* of the walk under way */
    void           *ctx;
} sherdi_block_call;

typedef struct sherdi_storage_ops {
    /* Continues from the state that was found when the files were opened (is_resumed).
     * Collective. */
    sherd_status (*resume)(sherd_engine *engine);
    /* Waits for the transfers under way; blocks. */
    void (*stop)(sherd_engine *engine);
    /* Closes the files, before the engine's memory is freed. Collective, with a time limit. */
    void (*close)(sherd_engine *engine);

    /* ---- transfers */

    /* Blocks until all transfers of a ring are over; reads that have not started are dropped.
     * Returns the first failure, and forgets it. */
    sherd_status (*settle)(sherd_engine *engine, sherdi_ring ring);
    /* Does so with the rings that are filled. Extents that could not be written stay in the rings'
     * slots, to be written again. */
    sherd_status (*settle_filled)(sherd_engine *engine);
    /* Blocks in the same way for reads whose results nobody needs: failures do not matter. */
    void (*drop)(sherd_engine *engine, sherdi_ring ring);
    /* Adds to a report for how long the trainer's thread has waited and what its calls have moved
     * since the last call, including reads ahead for an update that was not queued. */
    void (*report)(sherd_engine *engine, sherd_step_report *report);
    /* Returns all that was moved, but for an update under way. Blocks until the rest is over. */
    sherdi_file_traffic (*traffic)(sherd_engine *engine);

    /* ---- generations of state in files */

    /* Records the note of the next commit, with the state after update `step`: counters, scaler and
     * blobs. is_written: values or counters were written between two updates, and undo cannot
     * restore the state before them. `commit` returns a failure of this. */
    void (*note)(sherd_engine *engine, int64_t step, const sherdi_scaler *scaler, int is_written);
    /* Commits the writes since the last commit, with the recorded note. Blocks. */
    sherd_status (*commit)(sherd_engine *engine, uint64_t fingerprint);
    /* Commits writes between two updates, with the engine's counters and fingerprint; undo cannot
     * restore the state before them. Blocks. */
    sherd_status (*commit_written)(sherd_engine *engine);
    /* Records that all ranks now know that every rank has the newest generation. */
    void (*agreed)(sherd_engine *engine);
    /* Goes back to the newest generation that all ranks have. Collective. */
    sherd_status (*restore)(sherd_engine *engine);
    /* Returns the step of the newest generation; while an update is under way, that of the one
     * before; below 0: there are no generations. */
    int64_t (*stored_step)(sherd_engine *engine);
    /* Sets whether reads of state are compared with their checksums from now on. */
    void (*verify)(sherd_engine *engine, int is_on);
    /* Returns the bytes that each commit writes in addition because of the blobs that are set. */
    size_t (*blob_bytes)(const sherd_engine *engine);
} sherdi_storage_ops;

typedef struct sherdi_updater_ops {
    /* Waits for the update, and ends the thread. If the update has failed, the engine is lost, so
     * that its files stay; a failure that no call has returned is logged. */
    void (*close)(sherd_engine *engine);
    /* Says that the update makes progress, if the calling thread is the updater. */
    void (*beat)(sherd_engine *engine);
    /* Returns the program of the calling thread: the updater's, or the trainer's. */
    const sherdi_program *(*program)(const sherd_engine *engine);
    /* A walk is over, except for its writes of the state. If it is a queued update's, parameters and
     * gradients are the trainer's again. Adds failures to `all`. */
    void (*walk_made)(sherd_engine *engine, sherdi_outcome *all);
    /* Queues the update of this boundary. E_DEVICE, E_PEER_LOST. */
    sherd_status (*queue)(sherd_engine *engine);
    /* Blocks until the queued update is over, if there is one, and takes its outcome: all rings are
     * the trainer's again, and parameters are published. Returns a failure of the update, again
     * until `forget`. */
    sherd_status (*join)(sherd_engine *engine);
    /* Returns a failure of the last update that this rank knows of, its own or another's, until
     * `forget`. */
    sherd_status (*check)(sherd_engine *engine);
    /* Adds to the report of a boundary what its update, which was joined, has moved, and how long
     * it took; once. */
    void (*report)(sherd_engine *engine, sherd_step_report *report);
    /* Forgets the failure of an update: the state was loaded, or taken back. */
    void (*forget)(sherd_engine *engine);
    /* Blocks until the updater has begun to read ahead, if it was asked to. */
    void (*settle_ahead)(sherd_engine *engine);
} sherdi_updater_ops;

#endif
