/* Going back to a generation of the state on a drive, and walks for saves and loads. */
#ifndef SHERDI_ENGINE_RUN_RESTORE_H
#define SHERDI_ENGINE_RUN_RESTORE_H

#include "engine/run/run.h"
#include "engine/run/offload_ops.h"

/** Commits the first values: sherdi_storage_ops.begin. */
sherd_status sherdi_restore_begin(sherd_engine *engine);
/** Continues from the state that was found on the drive, at the newest generation that all ranks
 *  have. Collective. */
sherd_status sherdi_restore_resume(sherd_engine *engine);
/** Goes back to generation `wanted`, which is the live one or, on ranks that are ahead, the one
 *  before it. Writes that are not committed are dropped; counters and parameters are restored. A
 *  failure poisons the engine if some rank may be at `wanted` already; the next undo then takes all
 *  ranks there. Collective. */
sherd_status sherdi_restore_generation(sherd_engine *engine, uint64_t wanted);

/** Goes back to the newest generation that all ranks have: sherdi_storage_ops.restore. */
sherd_status sherdi_restore_agreed(sherd_engine *engine);

/** Hands every block of this rank's state to `fn`. Changes nothing. Local. E_IO, or what `fn`
 *  returns. */
sherd_status sherdi_restore_save(sherd_engine *engine, sherdi_block_fn fn, void *ctx);

/* The parts of a load that are the checkpoint's. Each is collective, but for `block` and `take`. */
typedef struct sherdi_load_parts {
    sherd_status (*frozen)(void *ctx); /* puts the values of frozen parameters */
    sherdi_block_fn block;             /* puts those of a block */
    sherd_status (*check)(void *ctx);  /* compares the loaded values with the saved ones */
    sherd_status (*take)(void *ctx);   /* takes counters and blobs */
    void *ctx;
} sherdi_load_parts;

/** Loads all values (SHERDI_WALK_LOAD) or some of them (_LOAD_SOME). Begins a window. A failure
 *  leaves the engine changed. Collective. */
sherd_status sherdi_restore_load(sherd_engine *engine, sherdi_walk walk,
                                 const sherdi_load_parts *parts);

#endif
