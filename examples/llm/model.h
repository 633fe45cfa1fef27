/* One micro-batch through a model, unit by unit: forward leaves what backward will need in
 * memory that is planned once. It knows nothing of engines: the caller hands in each unit's
 * parameters while they are there (drive.c does, from an engine). */
#ifndef LLM_MODEL_H
#define LLM_MODEL_H

#include "arch.h"
#include "ops.h"

#include <stddef.h>
#include <stdint.h>

typedef struct model_params {
    arch        sizes;
    size_t      batch;   /* sequences of a micro-batch */
    size_t      length;  /* tokens of a sequence, at most sizes.max_length */
    sherd_dtype dtype;   /* of the parameters */
    int   is_recomputed; /* layers keep their input alone; backward runs their forward again */
    pool *threads;       /* stays the caller's */
} model_params;

typedef struct model model;

/* The parameters of a unit by what they do; those that it does not have stay zero. */
typedef struct model_unit {
    tensor by_role[ARCH_ROLES];
} model_unit;

/** NULL: out of memory. */
model *model_create(const model_params *params);
void   model_destroy(model *m); /* accepts NULL */
/** Bytes that create allocates for these parameters: activations, scratch. */
size_t model_bytes(const model *m);

/** The micro-batch: inputs and targets [batch, length], borrowed until its backward is done. */
void model_batch_set(model *m, const int32_t *inputs, const int32_t *targets);

/** Forward through unit 0, 1, ... in order. The last one computes the loss. `grad_scale`: what the
 *  gradient of the mean loss is multiplied by; 0: no backward will come. */
void model_forward(model *m, size_t unit, const model_unit *params, float grad_scale);
/** Backward through the units in reverse order; adds to the gradients. */
void model_backward(model *m, size_t unit, const model_unit *params);

/** Mean loss of the micro-batch, after the last unit's forward. */
double model_loss(const model *m);
/** Logits [batch * length, vocab] after a forward with grad_scale 0. */
const float *model_logits(const model *m);

#endif
