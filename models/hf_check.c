/* Checks whether a config.json describes a model: reads it and compares. Sizes that the tensors'
 * shapes show are compared too, because a message about a size says more than one about a tensor.
 * See hf.h. */
#include "models/hf.h"

#include <math.h>
#include <stdio.h>

typedef struct compared {
    const char *key;
    double      there, here;
} compared;

/* Returns the first pair of numbers that differ; NULL: none do. Some programs write few digits,
 * others many. */
static const compared *difference(const compared *numbers, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (!(fabs(numbers[i].there - numbers[i].here) <= 1e-9 * fabs(numbers[i].here))) {
            return &numbers[i];
        }
    }
    return NULL;
}

#define PAIR(key_, field)                                                                          \
    {                                                                                              \
        .key = (key_), .there = (double)file->field, .here = (double)model->field                  \
    }

static const char *sizes_compare(const arch *model, const arch *file, char *why, size_t why_bytes)
{
    int            is_gpt2   = model->kind == ARCH_GPT2;
    const compared numbers[] = {
        PAIR("vocab_size", vocab),
        PAIR(is_gpt2 ? "n_embd" : "hidden_size", hidden),
        PAIR(is_gpt2 ? "n_layer" : "num_hidden_layers", layers),
        PAIR(is_gpt2 ? "n_head" : "num_attention_heads", heads),
        PAIR("num_key_value_heads", kv_heads),
        {"head_dim", (double)arch_head(file), (double)arch_head(model)},
        PAIR(is_gpt2 ? "n_inner" : "intermediate_size", inner),
        {"n_positions", is_gpt2 ? (double)file->max_length : 0.0,
         is_gpt2 ? (double)model->max_length : 0.0},
        PAIR(is_gpt2 ? "layer_norm_epsilon" : "rms_norm_eps", norm_eps),
        PAIR("rope_theta", rope.theta),
        PAIR("factor of rope_scaling", rope.factor),
        PAIR("low_freq_factor", rope.low_factor),
        PAIR("high_freq_factor", rope.high_factor),
        PAIR("original_max_position_embeddings", rope.original_length),
        PAIR("sliding_window", window),
        PAIR("max_window_layers", full_layers),
    };
    const compared *found = difference(numbers, sizeof(numbers) / sizeof(numbers[0]));

    if (found == NULL) {
        return NULL;
    }
    (void)snprintf(why, why_bytes, "%s is %.10g there and %.10g in this model", found->key,
                   found->there, found->here);
    return why;
}

static int features_are_same(const arch *a, const arch *b)
{
    for (unsigned feature = ARCH_HAS_QKV_BIAS; feature <= ARCH_HAS_QK_NORM; feature <<= 1) {
        if (arch_has(a, feature) != arch_has(b, feature)) {
            return 0;
        }
    }
    return 1;
}

/* Two kinds are one model if only their names differ: a MiniMind is a Qwen3. */
static const char *arch_compare(const arch *model, const arch *file, char *why, size_t why_bytes)
{
    if ((model->kind == ARCH_GPT2) != (file->kind == ARCH_GPT2) ||
        (model->kind != file->kind && !features_are_same(model, file))) {
        (void)snprintf(why, why_bytes, "model_type is \"%s\" there and \"%s\" in this model",
                       arch_kind_name(file->kind), hf_type(model));
        return why;
    }
    if (!features_are_same(model, file)) {
        (void)snprintf(why, why_bytes, "attention_bias or mlp_bias is another than in this model");
        return why;
    }
    if (model->is_untied != file->is_untied) {
        (void)snprintf(why, why_bytes, "tie_word_embeddings is %s there and %s in this model",
                       file->is_untied ? "false" : "true", model->is_untied ? "false" : "true");
        return why;
    }
    if (model->rope.kind != file->rope.kind) {
        (void)snprintf(why, why_bytes, "rope_type is another than in this model");
        return why;
    }
    return sizes_compare(model, file, why, why_bytes);
}

const char *hf_config_check(const arch *model, const char *text, size_t len_bytes, char *why,
                            size_t why_bytes)
{
    hf_config file;

    if (hf_config_parse(text, len_bytes, &file, why, why_bytes) != 0) {
        return why;
    }
    if (file.not_computed[0] != '\0') {
        (void)snprintf(why, why_bytes, "%s", file.not_computed);
        return why;
    }
    return arch_compare(model, &file.sizes, why, why_bytes);
}
