/* See hf.h. hf_config.c reads a config.json, this file writes one. */
#include "models/hf.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int is_gpt2(const arch *model)
{
    return model->kind == ARCH_GPT2;
}

/* A matrix of transformers' Conv1D, as in GPT-2's layers: [in, out]. */
static int is_conv1d(const arch *model, const arch_param *param)
{
    return is_gpt2(model) && !model->is_transposed && param->ndim == 2 && param->unit >= 1 &&
           param->unit <= model->layers;
}

int hf_maps_open(const arch *model, maps *out)
{
    if (maps_open(out, arch_param_count(model)) != 0) {
        return -1;
    }
    for (size_t k = 0; k < arch_param_count(model); k++) {
        sherd_tensor_map *map;
        arch_param        param;

        arch_param_get(model, k, &param);
        map = maps_add(out, &param);
        if (is_conv1d(model, &param)) {
            map->is_transposed = 1;
            map->shape[0]      = param.shape[1];
            map->shape[1]      = param.shape[0];
        }
    }
    return 0;
}

const char *hf_prefix(const arch *model)
{
    return is_gpt2(model) ? "transformer." : "model.";
}

const char *hf_extra(const arch *model, size_t i)
{
    static const char *const EXTRA[] = {"*h.*.attn.bias", "*h.*.attn.masked_bias",
                                        "*rotary_emb.inv_freq", "lm_head.weight"};
    size_t                   count   = sizeof(EXTRA) / sizeof(EXTRA[0]) - (model->is_untied != 0);

    return i < count ? EXTRA[i] : NULL;
}

/* The families in transformers. MiniMind-3 has no class there, but computes as Qwen3 does. */
static const struct {
    const char *type, *class_name;
} TYPES[ARCH_KINDS] = {
    [ARCH_GPT2]     = {"gpt2", "GPT2LMHeadModel"},
    [ARCH_MINIMIND] = {"qwen3", "Qwen3ForCausalLM"},
    [ARCH_LLAMA]    = {"llama", "LlamaForCausalLM"},
    [ARCH_MISTRAL]  = {"mistral", "MistralForCausalLM"},
    [ARCH_QWEN2]    = {"qwen2", "Qwen2ForCausalLM"},
    [ARCH_QWEN3]    = {"qwen3", "Qwen3ForCausalLM"},
};

const char *hf_type(const arch *model)
{
    return TYPES[model->kind].type;
}

/* ---- config.json ---- */

typedef struct text {
    char  *out;
    size_t bytes, used;
} text;

static void text_print(text *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void text_print(text *t, const char *fmt, ...)
{
    va_list args;
    int     printed;

    va_start(args, fmt);
    printed = vsnprintf(t->used < t->bytes ? t->out + t->used : NULL,
                        t->used < t->bytes ? t->bytes - t->used : 0, fmt, args);
    va_end(args);
    t->used += printed > 0 ? (size_t)printed : 0;
}

static const char *flag(int is_so)
{
    return is_so ? "true" : "false";
}

/* Prints a number with few digits if that keeps its value, else with all. */
static void number_print(text *t, const char *key, double value)
{
    char shown[400];

    if (value < 1.0 || value >= 1e15) {
        (void)snprintf(shown, sizeof(shown), "%g", value);
    } else {
        (void)snprintf(shown, sizeof(shown), "%.1f", value);
    }
    text_print(t, "%s", key);
    if (strtod(shown, NULL) == value) {
        text_print(t, "%s", shown);
    } else {
        text_print(t, "%.17g", value);
    }
}

static void gpt2_print(text *t, const arch *model)
{
    text_print(t, "  \"n_embd\": %zu,\n  \"n_layer\": %zu,\n  \"n_head\": %zu,\n", model->hidden,
               model->layers, model->heads);
    text_print(t, "  \"n_inner\": %zu,\n  \"n_positions\": %zu,\n  \"n_ctx\": %zu,\n", model->inner,
               model->max_length, model->max_length);
    text_print(t, "  \"activation_function\": \"gelu_new\",\n  ");
    number_print(t, "\"layer_norm_epsilon\": ", model->norm_eps);
    text_print(t, ",\n");
    text_print(t, "  \"attn_pdrop\": 0.0,\n  \"embd_pdrop\": 0.0,\n  \"resid_pdrop\": 0.0,\n");
    text_print(t, "  \"scale_attn_weights\": true,\n  \"bos_token_id\": null,\n");
    text_print(t, "  \"eos_token_id\": null,\n");
}

static void rope_print(text *t, const arch_rope *rope)
{
    static const char *const WORDS[] = {[ARCH_ROPE_PLAIN]  = "default",
                                        [ARCH_ROPE_LINEAR] = "linear",
                                        [ARCH_ROPE_LLAMA3] = "llama3"};

    text_print(t, "{\"rope_type\": \"%s\"", WORDS[rope->kind]);
    if (rope->kind != ARCH_ROPE_PLAIN) {
        number_print(t, ", \"factor\": ", rope->factor);
    }
    if (rope->kind == ARCH_ROPE_LLAMA3) {
        number_print(t, ", \"low_freq_factor\": ", rope->low_factor);
        number_print(t, ", \"high_freq_factor\": ", rope->high_factor);
        text_print(t, ", \"original_max_position_embeddings\": %zu", rope->original_length);
    }
}

static void window_print(text *t, const arch *model)
{
    text_print(t, "  \"use_sliding_window\": %s,\n",
               flag(model->window > 0 && model->kind != ARCH_MISTRAL));
    if (model->window == 0) {
        text_print(t, "  \"sliding_window\": null,\n");
        return;
    }
    text_print(t, "  \"sliding_window\": %zu,\n", model->window);
    if (model->kind != ARCH_MISTRAL) {
        text_print(t, "  \"max_window_layers\": %zu,\n", model->full_layers);
    }
}

static void llama_print(text *t, const arch *model)
{
    text_print(t, "  \"hidden_size\": %zu,\n  \"num_hidden_layers\": %zu,\n", model->hidden,
               model->layers);
    text_print(t, "  \"num_attention_heads\": %zu,\n  \"num_key_value_heads\": %zu,\n",
               model->heads, model->kv_heads);
    text_print(t, "  \"head_dim\": %zu,\n  \"intermediate_size\": %zu,\n", arch_head(model),
               model->inner);
    text_print(t, "  \"max_position_embeddings\": %zu,\n  \"hidden_act\": \"silu\",\n",
               model->max_length);
    number_print(t, "  \"rms_norm_eps\": ", model->norm_eps);
    text_print(t, ",\n  \"attention_dropout\": 0.0,\n");
    text_print(t, "  \"attention_bias\": %s,\n  \"mlp_bias\": %s,\n",
               flag(arch_has(model, ARCH_HAS_O_BIAS)), flag(arch_has(model, ARCH_HAS_MLP_BIAS)));
    /* transformers 5 reads the first, earlier versions the second */
    text_print(t, "  \"rope_parameters\": ");
    rope_print(t, &model->rope);
    number_print(t, ", \"rope_theta\": ", model->rope.theta);
    number_print(t, "},\n  \"rope_theta\": ", model->rope.theta);
    text_print(t, ",\n  \"rope_scaling\": ");
    if (model->rope.kind == ARCH_ROPE_PLAIN) {
        text_print(t, "null,\n");
    } else {
        rope_print(t, &model->rope);
        text_print(t, "},\n");
    }
    window_print(t, model);
    text_print(t, "  \"bos_token_id\": null,\n  \"eos_token_id\": null,\n");
}

size_t hf_config_write(const arch *model, sherd_dtype dtype, char *out, size_t bytes)
{
    static const char *const DTYPES[] = {
        [SHERD_F32] = "float32", [SHERD_BF16] = "bfloat16", [SHERD_F16] = "float16"};
    text t = {.out = out, .bytes = bytes};

    text_print(&t, "{\n  \"architectures\": [\"%s\"],\n  \"model_type\": \"%s\",\n",
               TYPES[model->kind].class_name, TYPES[model->kind].type);
    if (is_gpt2(model)) {
        gpt2_print(&t, model);
    } else {
        llama_print(&t, model);
    }
    text_print(&t, "  \"vocab_size\": %zu,\n  \"initializer_range\": 0.02,\n", model->vocab);
    text_print(&t, "  \"tie_word_embeddings\": %s,\n  \"torch_dtype\": \"%s\",\n",
               flag(!model->is_untied), DTYPES[dtype]);
    text_print(&t, "  \"use_cache\": true\n}\n");
    return t.used;
}
