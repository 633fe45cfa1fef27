/* Models in the format of Hugging Face's transformers: names and shapes of the tensors, and config.json. */
#ifndef SHERD_MODELS_HF_H
#define SHERD_MODELS_HF_H

#include "models/maps.h"

/** Lists the tensors that GPT2LMHeadModel, Qwen3ForCausalLM (MiniMind) or LlamaForCausalLM load. A tied head is listed once,
 *  as the embedding. Returns -1 when there is no memory. */
int hf_maps_open(const arch *model, maps *out);

/** Returns the prefix that the names lack in transformers' base models: "transformer." for GPT-2, else "model.". */
const char *hf_prefix(const arch *model);
/** Returns the i-th pattern of tensors that such files may have beside the parameters: masks, frequencies of rotations, and
 *  the head of a tied model. NULL past the last. */
const char *hf_extra(const arch *model, size_t i);

/* What shapes do not show, but a config.json says. */
typedef struct hf_constants {
    double norm_eps;
    double rope_theta; /* unused by GPT-2 */
} hf_constants;
/** Returns the constants with which the trainer computes (examples/llm). */
hf_constants hf_constants_of(const arch *model);

/** Writes the config.json of such a model with weights of `dtype`. Returns its length, even if `bytes` is less (as snprintf
 *  does). */
size_t hf_config_write(const arch *model, const hf_constants *constants, sherd_dtype dtype,
                       char *out, size_t bytes);
/** Returns NULL when a config.json describes this model. Otherwise returns a sentence: another size, activation, eps or
 *  rotation, or a part that this model does not have. The text may come from anywhere. */
const char *hf_config_check(const arch *model, const hf_constants *constants, const char *text,
                            size_t len_bytes, char *why, size_t why_bytes);

#endif
