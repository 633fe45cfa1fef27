/* A micro-batch on an engine: acquires each unit, hands its parameters to the model, releases
 * it. Where the life cycle of sherd.h meets the computation of model.h. */
#ifndef LLM_DRIVE_H
#define LLM_DRIVE_H

#include "model.h"
#include "sherd.h"

typedef struct drive drive;

/** `engine` is sealed and its model was declared with arch_declare(&params->sizes); dtype is the
 *  engine's. NULL: out of memory. The engine stays the caller's and must outlive the drive. */
drive *drive_create(sherd_engine *engine, const model_params *params);
void   drive_destroy(drive *d); /* accepts NULL */
/** Bytes of activations and scratch. */
size_t drive_bytes(const drive *d);

/** Forward and backward of one micro-batch; the loss is rounded to fp32, so that sums over
 *  micro-batches are exact in double. The gradient carries sherd_loss_scale(). Collective. */
SHERD_MUST_USE sherd_status drive_train(drive *d, const int32_t *inputs, const int32_t *targets,
                                        double *loss_out);
/** Forward alone, as an EVAL pass. Collective. */
SHERD_MUST_USE sherd_status drive_eval(drive *d, const int32_t *inputs, const int32_t *targets,
                                       double *loss_out);
/** [batch * length, vocab] of the last drive_eval. */
const float *drive_logits(const drive *d);

/** Sees the unit's gradients in backward, complete for its own parameters, before they are given to
 *  the engine. For tests. */
typedef void (*drive_observe_fn)(void *ctx, size_t unit, const model_unit *params);
void drive_observe(drive *d, drive_observe_fn observe, void *ctx);

#endif
