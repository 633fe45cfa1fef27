/* One micro-batch through a model, unit by unit: forward leaves what backward will need in
 * memory that is planned once. It knows nothing of engines: the caller hands in each unit's
 * parameters while they are there (passes.c does, from an engine). */
#ifndef LLM_MODEL_H
#define LLM_MODEL_H

#include "models/arch.h"
#include "compute.h"

#include <stddef.h>
#include <stdint.h>

typedef struct model_params {
    arch        sizes;
    size_t      batch;       /* sequences of a micro-batch */
    size_t      length;      /* tokens of a sequence, at most sizes.max_length */
    sherd_dtype dtype;       /* of the parameters */
    int is_recomputed;       /* layers keep their input alone; backward runs their forward again */
    int keeps_logits;        /* model_logits_get will be called */
    const char     *backend; /* see compute_params */
    pool           *threads; /* stays the caller's */
    void           *stream;
    compute_choices choices; /* of a GPU */
} model_params;

typedef struct model model;

/* The parameters of a unit by what they do; those that it does not have stay zero. */
typedef struct model_unit {
    tensor by_role[ARCH_ROLES];
} model_unit;

/** NULL with a sentence in `why`: no memory, or no such backend. */
model *model_create(const model_params *params, char *why, size_t why_bytes);
void   model_destroy(model *m); /* accepts NULL */
/** Bytes that create allocates for these parameters: activations, scratch. */
size_t model_bytes(const model *m);

/** The micro-batch: inputs and targets [batch, length], borrowed until its backward was called. */
void model_batch_set(model *m, const int32_t *inputs, const int32_t *targets);

/** Forward through unit 0, 1, ... in order. `grad_scale`: what the gradient of the mean loss is
 *  multiplied by; 0: no backward will come. */
void model_forward(model *m, size_t unit, const model_unit *params, float grad_scale);
/** Backward through the units in reverse order; adds to the gradients. */
void model_backward(model *m, size_t unit, const model_unit *params);

/** The sum of the mean losses of the micro-batches since the last call, each rounded to fp32, so that
 *  sums are exact in double. Waits for them. E_DEVICE: some work failed; model_why says what. */
SHERD_MUST_USE sherd_status model_losses_take(model *m, double *sum_out);
const char                 *model_why(const model *m);
/** The GPU's name; "" on the CPU. */
const char *model_device(const model *m);
/** What a choice has come to, after a first micro-batch; "": nothing to say. */
const char *model_note(const model *m);
/** Logits [vocab] of one row after a forward with grad_scale 0; of a model with keeps_logits. */
void model_logits_get(model *m, size_t row, float *out);

#endif
