/* Bytes of a model's activations and scratch, counted by the code that lays them out: what model_create
 * allocates for these sizes, on either backend, without allocating. `sherd plan` asks here. */
#ifndef SHERD_MODELS_ACTIVATIONS_H
#define SHERD_MODELS_ACTIVATIONS_H

#include "models/arch.h"
#include "sherd.h"

typedef struct activations_params {
    size_t      batch, length; /* of a micro-batch */
    int         is_recomputed;
    sherd_dtype dtype;   /* of the parameters */
    const char *backend; /* "cpu": activations in fp32; "cuda": in dtype */
    int         threads; /* of the CPU's operations; 0: 1 */
} activations_params;

/* What no machine has, in place of a number that does not fit. */
#define ACTIVATIONS_TOO_MANY ((size_t)1 << 62)

/** To the byte what a training model of these sizes allocates (model_bytes of model.h), libraries' own workspace
 *  included where its size is fixed. ACTIVATIONS_TOO_MANY from 2^61 bytes on. */
size_t activations_bytes(const arch *sizes, const activations_params *params);

#endif
