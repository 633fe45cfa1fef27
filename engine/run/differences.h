/* Comparisons of calls: all ranks make the same call with the same arguments. Call them after seal. */
#ifndef SHERDI_ENGINE_RUN_DIFFERENCES_H
#define SHERDI_ENGINE_RUN_DIFFERENCES_H

#include "engine/run/agree.h"

/** Compare the settings, and the models, of all ranks: E_INVAL says what differs. Before seal. */
sherd_status sherdi_agree_settings(sherd_world *world, const sherdi_settings *settings);
sherd_status sherdi_agree_model(sherd_engine *engine);

/** Allocate and free the memory for the comparison of units. E_NOMEM. */
sherd_status sherdi_uses_memory_open(sherd_engine *engine);
void         sherdi_uses_memory_close(sherd_engine *engine);

/** An argument that must be equal on all ranks. */
typedef struct sherdi_argument {
    const char *name;
    uint64_t    value;
} sherdi_argument;

/** Compares a word in a call of the trainer; a rank in another call gets the name of this call.
 *  *odd_out is the first rank whose word is not rank 0's; 0: all agree. */
sherd_status sherdi_agree_same(sherd_engine *engine, const char *call, sherd_status own,
                               uint64_t word, int *odd_out);
/** Checks that all ranks make the same call with the same arguments. Each rank comes with the
 *  outcome of its own checks, and leaves with a failure if any rank had one. E_INVAL names the rank
 *  and the first argument that differs. Call it after seal. */
sherd_status sherdi_agree_call(sherd_engine *engine, const char *call,
                               const sherdi_argument *arguments, size_t count, sherd_status own);
/** Hashes all bytes of a parameter, which must be held or whole on every rank; they come to the
 *  host in portions. E_DEVICE. */
sherd_status sherdi_param_hash(sherd_engine *engine, size_t param, uint64_t *out);

#endif
