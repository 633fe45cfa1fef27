/* Models in the format of Hugging Face's transformers: names and shapes of the tensors, and
 * config.json. */
#ifndef SHERD_MODELS_HF_H
#define SHERD_MODELS_HF_H

#include "models/maps.h"

struct json_t;

/** Lists the tensors that the family's ...ForCausalLM loads (MiniMind: Qwen3's). A tied head is
 *  listed once, as the embedding. Returns -1 when there is no memory. */
int hf_maps_open(const arch *model, maps *out);

/** Returns the prefix that the names lack in transformers' base models: "transformer." for GPT-2,
 *  else "model.". */
const char *hf_prefix(const arch *model);
/** Returns the i-th pattern of tensors that files of the kind may have in addition to the
 *  parameters: masks, frequencies of rotations, and the head of a tied model. NULL past the
 *  last. */
const char *hf_extra(const arch *model, size_t i);

/** Returns the "model_type" under which transformers loads a model of the kind. */
const char *hf_type(const arch *model);

/* The contents of a config.json. */
typedef struct hf_config {
    arch sizes; /* is_transposed 0 */
    /* Names the key that asks for a feature that the trainer does not compute; sizes and shapes are
     * valid nevertheless. "": it computes all. A window of attention is in sizes and not here: it
     * matters only for longer sequences. */
    char not_computed[256];
} hf_config;

/* Results other than 0: the file is wrong; it describes a model whose parameters are not known
 * here. */
#define HF_CONFIG_BAD     (-1)
#define HF_CONFIG_UNKNOWN (-2)

/** Returns "an object", ..., "missing": the type of a value of a JSON file, for messages. */
const char *hf_json_kind(const struct json_t *value);

/** Reads a config.json that is parsed already. Returns 0, or a result as above with a sentence in
 *  `why`. */
int hf_config_read(const struct json_t *root, hf_config *out, char *why, size_t why_bytes);
/** The same of a text, which may come from anywhere. */
int hf_config_parse(const char *text, size_t len_bytes, hf_config *out, char *why,
                    size_t why_bytes);
/** Returns NULL when a config.json describes this model. Otherwise returns a sentence: another
 *  size, activation, eps or rotation, or a part that this model does not have. */
const char *hf_config_check(const arch *model, const char *text, size_t len_bytes, char *why,
                            size_t why_bytes);
/** Writes the config.json of a model of the kind with weights of `dtype`. Returns its length, even
 *  if `bytes` is less (as snprintf does). */
size_t hf_config_write(const arch *model, sherd_dtype dtype, char *out, size_t bytes);

#endif
