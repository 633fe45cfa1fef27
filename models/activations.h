/* Bytes of a model's activations and scratch, without allocating them: what model_create allocates
 * for these sizes, on either backend. The code that lays the memory out (room.h) also counts it.
 * `sherd plan` calls this. */
#ifndef SHERD_MODELS_ACTIVATIONS_H
#define SHERD_MODELS_ACTIVATIONS_H

#include "models/arch.h"
#include "models/places.h"
#include "sherd.h"

typedef struct activations_params {
    size_t       batch, length; /* of a micro-batch */
    layer_places places;
    sherd_dtype  dtype;   /* of the parameters */
    const char  *backend; /* "cpu": activations are fp32; "cuda": in dtype */
    int          threads; /* for the CPU's operations; 0: 1 */
} activations_params;

/* Returned in place of a number that does not fit; more than any machine has. */
#define ACTIVATIONS_TOO_MANY ((size_t)1 << 62)

/** Returns exactly what a training model of these sizes allocates (model_bytes of model.h), with
 *  libraries' own workspace where its size is fixed. ACTIVATIONS_TOO_MANY from 2^61 bytes on. */
size_t activations_bytes(const arch *sizes, const activations_params *params);
/** Returns the bytes of the engine for a layer that is moved to this place
 *  (sherd_activation_params.len_bytes); the number above does not include them. `places` are
 *  ignored. */
size_t activations_layer_bytes(const arch *sizes, const activations_params *params,
                               layer_place place);

#endif
