/* What must be the same on all ranks, and who differs. */
#ifndef SHERDI_ENGINE_RUN_AGREE_H
#define SHERDI_ENGINE_RUN_AGREE_H

#include "collectives/world.h"
#include "engine/config/config.h"

/** Makes all ranks fail if one does. Each rank comes with its own outcome, and leaves with a failure if any rank had one: its
 *  own, or one that names the other rank. Allocates nothing. Collective. */
sherd_status sherdi_agree_status(sherd_world *world, sherd_status own);
/** Does the same where the ranks first meet in a call of the trainer, which it names where they do not. */
sherd_status sherdi_agree_status_of(sherd_world *world, sherd_status own, const char *call);
/** Compares a word of each rank; `what` is as in sherdi_world_exchange. *odd_out is the first rank whose word is not rank 0's; 0: all
 *  agree. Collective. */
sherd_status sherdi_agree_word(sherd_engine *engine, uint64_t word, const char *what, int *odd_out);
sherd_status sherdi_agree_settings(sherd_world *world, const sherdi_settings *settings,
                                   sherdi_mem *mem);
sherd_status sherdi_agree_model(sherd_engine *engine);
/** An argument that must be equal on all ranks. */
typedef struct sherdi_argument {
    const char *name;
    uint64_t    value;
} sherdi_argument;
/** Checks that all ranks make the same call with the same arguments. Each rank comes with the outcome of its own checks, and
 *  leaves with a failure if any rank had one. E_INVAL names the rank and the first argument that differs. Call it after seal.
 *  Allocates nothing. Collective. */
sherd_status sherdi_agree_call(sherd_engine *engine, const char *call,
                               const sherdi_argument *arguments, size_t count, sherd_status own);
/** At the end of a micro-batch: begins, on every rank, the gradients of open-ended units that another rank has, and tells every
 *  rank whether any had a backward pass. Does nothing if there are no such units. Collective. */
sherd_status sherdi_agree_used(sherd_engine *engine);
/** Compares which units the ranks used in the window; call it before the window's gradients are reduced. E_STATE names the unit
 *  and the ranks that differ, or says that a micro-batch had no backward pass. Collective. */
sherd_status sherdi_agree_uses(sherd_engine *engine);

#endif
