/* Computes one micro-batch, unit by unit. Forward keeps what backward needs in memory that is
 * allocated once, at create. The model knows nothing of engines: the caller hands in the parameters
 * of each unit while they are gathered. passes.c does this with an engine. compute.h has the
 * operations of which a unit is made. */
#ifndef LLM_MODEL_H
#define LLM_MODEL_H

#include "models/arch.h"
#include "models/places.h"
#include "compute.h"

#include <stddef.h>
#include <stdint.h>

typedef struct model_params {
    arch            sizes;
    size_t          batch;  /* sequences of a micro-batch */
    size_t          length; /* tokens of a sequence, at most sizes.max_length */
    sherd_dtype     dtype;  /* of the parameters */
    layer_places    places;
    int             keeps_logits; /* model_logits_get will be called */
    const char     *backend;      /* see compute_params */
    pool           *threads;      /* stays the caller's */
    void           *stream;
    compute_choices choices; /* for a GPU; the CPU ignores them */
} model_params;

typedef struct model model;

/* The parameters of a unit, by role. A role that the unit does not have stays zero. */
typedef struct model_unit {
    tensor by_role[ARCH_ROLES];
    /* Of a layer that is moved: activations_layer_bytes of the device, which backward finds as
     * forward left them */
    void *activation;
} model_unit;

/** Makes a model with all its memory. Returns NULL with a sentence in `why` if there is no memory
 *  or no such backend. */
model *model_create(const model_params *params, char *why, size_t why_bytes);
void   model_destroy(model *m); /* accepts NULL */
/** Returns the bytes that model_create has allocated: activations and scratch. */
size_t model_bytes(const model *m);

/** Sets the micro-batch: inputs and targets [batch, length], which are borrowed until backward has
 *  been called for its units. */
void model_batch_set(model *m, const int32_t *inputs, const int32_t *targets);

/** Runs forward through one unit; the caller goes through units 0, 1, ... in order. `grad_scale`
 *  multiplies the gradient of the mean loss; 0 means that no backward follows. */
void model_forward(model *m, size_t unit, const model_unit *params, float grad_scale);
/** Runs backward through one unit and adds to its gradients; the caller goes through the units in
 *  reverse order. */
void model_backward(model *m, size_t unit, const model_unit *params);

/** Says that the micro-batches so far, and no later ones, are those of the next model_losses_take.
 *  Queued. */
void model_losses_close(model *m);
/** Returns the sum of the mean losses of all micro-batches up to model_losses_close; without a call
 *  of it, of all since the last take. Each mean is rounded to fp32, so that sums in double are
 *  exact. Waits for these micro-batches. Returns E_DEVICE if some work failed; model_why says
 *  what. */
SHERD_MUST_USE sherd_status model_losses_take(model *m, double *sum_out);
const char                 *model_why(const model *m);
/** Returns the GPU's name; "" on the CPU. */
const char *model_device(const model *m);
/** Returns, after the first micro-batch, a remark on how one of compute_choices was carried out;
 *  "": none. */
const char *model_note(const model *m);
/** Gives the logits [vocab] of one row after a forward with grad_scale 0. Only for a model with
 *  keeps_logits. */
void model_logits_get(model *m, size_t row, float *out);

#endif
