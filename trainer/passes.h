/* The passes of a micro-batch on an engine: each unit is acquired, its parameters go to the model,
 * and it is released. Here the life cycle of sherd.h meets the computation of model.h. trainer.c
 * and sample.c call it. */
#ifndef LLM_PASSES_H
#define LLM_PASSES_H

#include "model.h"
#include "sherd.h"

typedef struct passes passes;

/** `engine` is sealed, and its model was declared with arch_declare(&params->sizes). dtype, backend
 *  and stream of `params` are the engine's. Returns NULL with a sentence in `why`. The engine stays
 *  the caller's and must outlive the passes. */
passes *passes_create(sherd_engine *engine, const model_params *params, char *why,
                      size_t why_bytes);
void    passes_destroy(passes *passes); /* accepts NULL */
/** Returns the bytes of activations and scratch. */
size_t passes_bytes(const passes *passes);
/** Returns the name of the GPU that computes; "" on the CPU. */
const char *passes_device(const passes *passes);
/** See model_note. */
const char *passes_note(const passes *passes);

/** Sets the next micro-batch's inputs and targets ahead, after the passes_train of this one; on a
 *  GPU they are sorted and sent. They stay the caller's and must last until that micro-batch's
 *  passes_train returns. */
void passes_batch_set(passes *passes, const int32_t *inputs, const int32_t *targets);
/** Makes forward and backward of one micro-batch. `inputs` NULL: with what passes_batch_set gave.
 *  The gradient is multiplied by sherd_loss_scale(). Collective. On a GPU the work is queued. The
 *  caller may overwrite inputs and targets when the call returns. */
SHERD_MUST_USE sherd_status passes_train(passes *passes, const int32_t *inputs,
                                         const int32_t *targets);
/** The halves of passes_train, one after the other, for programs that time them; the tokens are
 *  those of passes_batch_set. */
SHERD_MUST_USE sherd_status passes_forward(passes *passes);
SHERD_MUST_USE sherd_status passes_backward(passes *passes);
/** Returns how long the last forward waited in the acquire of its first unit, in seconds. Nothing
 *  hides the unfinished part of a queued update on this unit. */
double passes_first_wait_s(const passes *passes);
/** Makes only a forward, as an EVAL pass. Collective. */
SHERD_MUST_USE sherd_status passes_eval(passes *passes, const int32_t *inputs,
                                        const int32_t *targets);
/** As model_losses_close, and as model_losses_take, which waits for these micro-batches. */
void                        passes_losses_close(passes *passes);
SHERD_MUST_USE sherd_status passes_losses_take(passes *passes, double *sum_out);
/** Returns the sentence of a failure of passes_losses_take. */
const char *passes_why(const passes *passes);
/** As model_logits_get, of the last passes_eval. */
void passes_logits_get(passes *passes, size_t row, float *out);

/** For tests: is called in backward with a unit's gradients before the engine gets them. The
 *  gradients of the unit's own parameters are complete then. */
typedef void (*passes_observe_fn)(void *ctx, size_t unit, const model_unit *params);
void passes_observe(passes *passes, passes_observe_fn observe, void *ctx);

#endif
