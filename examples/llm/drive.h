/* A micro-batch on an engine: acquires each unit, hands its parameters to the model, releases
 * it. Where the life cycle of sherd.h meets the computation of model.h. */
#ifndef LLM_DRIVE_H
#define LLM_DRIVE_H

#include "model.h"
#include "sherd.h"

typedef struct drive drive;

/** `engine` is sealed and its model was declared with arch_declare(&params->sizes); dtype is the
 *  engine's, and so are backend and stream. NULL with a sentence in `why`. The engine stays the caller's and
 *  must outlive the drive. */
drive *drive_create(sherd_engine *engine, const model_params *params, char *why, size_t why_bytes);
void   drive_destroy(drive *d); /* accepts NULL */
/** Bytes of activations and scratch. */
size_t drive_bytes(const drive *d);
/** The name of the GPU that computes; "" on the CPU. */
const char *drive_device(const drive *d);

/** Forward and backward of one micro-batch. The gradient carries sherd_loss_scale(). Collective. On a
 *  GPU the work is queued; inputs and targets may be overwritten when the call returns. */
SHERD_MUST_USE sherd_status drive_train(drive *d, const int32_t *inputs, const int32_t *targets);
/** Forward alone, as an EVAL pass. Collective. */
SHERD_MUST_USE sherd_status drive_eval(drive *d, const int32_t *inputs, const int32_t *targets);
/** As model_losses_take: waits for the micro-batches so far. */
SHERD_MUST_USE sherd_status drive_losses_take(drive *d, double *sum_out);
/** The sentence of a failure of drive_losses_take. */
const char *drive_why(const drive *d);
/** As model_logits_get, of the last drive_eval. */
void drive_logits_get(drive *d, size_t row, float *out);

/** Sees the unit's gradients in backward, complete for its own parameters, before they are given to
 *  the engine. For tests. */
typedef void (*drive_observe_fn)(void *ctx, size_t unit, const model_unit *params);
void drive_observe(drive *d, drive_observe_fn observe, void *ctx);

#endif
