/* Models as Hugging Face's transformers has them: names and shapes of the tensors, and config.json. */
#ifndef SHERD_MODELS_HF_H
#define SHERD_MODELS_HF_H

#include "models/maps.h"

/** The tensors that GPT2LMHeadModel, Qwen3ForCausalLM (MiniMind) or LlamaForCausalLM load; a head that is tied is
 *  there once, as the embedding. -1: no memory. */
int hf_maps_open(const arch *model, maps *out);

/** What transformers' base models leave out of their names: of GPT-2 "transformer.", else "model.". */
const char *hf_prefix(const arch *model);
/** Tensors beside the parameters that such files may have, as patterns: masks, frequencies of rotations, and of a tied
 *  model the head once more. NULL past the last. */
const char *hf_extra(const arch *model, size_t i);

/* What shapes do not show. */
typedef struct hf_constants {
    double norm_eps;
    double rope_theta; /* unused by GPT-2 */
} hf_constants;
/** As the trainer computes (examples/llm). */
hf_constants hf_constants_of(const arch *model);

/** config.json of such a model, weights of `dtype`: its length, however many bytes there is room for (as snprintf). */
size_t hf_config_write(const arch *model, const hf_constants *constants, sherd_dtype dtype,
                       char *out, size_t bytes);
/** NULL when a config.json describes this model; else a sentence: another size, activation, eps, rotation, what it has
 *  that the model has not. Text of any origin. */
const char *hf_config_check(const arch *model, const hf_constants *constants, const char *text,
                            size_t len_bytes, char *why, size_t why_bytes);

#endif
