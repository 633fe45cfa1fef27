/* See hf.h. hf_config.c checks a config.json, this file writes one. */
#include "models/hf.h"

#include <stdarg.h>
#include <stdio.h>
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

hf_constants hf_constants_of(const arch *model)
{
    return (hf_constants){.norm_eps = is_gpt2(model) ? 1e-5 : 1e-6, .rope_theta = 1e6};
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

static void gpt2_print(text *t, const arch *model, const hf_constants *constants)
{
    text_print(t, "  \"architectures\": [\"GPT2LMHeadModel\"],\n  \"model_type\": \"gpt2\",\n");
    text_print(t, "  \"n_embd\": %zu,\n  \"n_layer\": %zu,\n  \"n_head\": %zu,\n", model->hidden,
               model->layers, model->heads);
    text_print(t, "  \"n_inner\": %zu,\n  \"n_positions\": %zu,\n  \"n_ctx\": %zu,\n", model->inner,
               model->max_length, model->max_length);
    text_print(t, "  \"activation_function\": \"gelu_new\",\n  \"layer_norm_epsilon\": %g,\n",
               constants->norm_eps);
    text_print(t, "  \"attn_pdrop\": 0.0,\n  \"embd_pdrop\": 0.0,\n  \"resid_pdrop\": 0.0,\n");
    text_print(t, "  \"scale_attn_weights\": true,\n  \"bos_token_id\": null,\n");
    text_print(t, "  \"eos_token_id\": null,\n");
}

static const char *llama_type(const arch *model, const char **class_out)
{
    if (model->kind == ARCH_MINIMIND || (model->features & ARCH_HAS_QK_NORM) != 0) {
        *class_out = "Qwen3ForCausalLM";
        return "qwen3";
    }
    if ((model->features & ARCH_HAS_QKV_BIAS) != 0 && (model->features & ARCH_HAS_O_BIAS) == 0) {
        *class_out = "Qwen2ForCausalLM";
        return "qwen2";
    }
    *class_out = "LlamaForCausalLM";
    return "llama";
}

static size_t head_elems(const arch *model)
{
    return model->head_elems != 0 ? model->head_elems : model->hidden / model->heads;
}

static void llama_print(text *t, const arch *model, const hf_constants *constants)
{
    const char *name;
    const char *type = llama_type(model, &name);

    text_print(t, "  \"architectures\": [\"%s\"],\n  \"model_type\": \"%s\",\n", name, type);
    text_print(t, "  \"hidden_size\": %zu,\n  \"num_hidden_layers\": %zu,\n", model->hidden,
               model->layers);
    text_print(t, "  \"num_attention_heads\": %zu,\n  \"num_key_value_heads\": %zu,\n",
               model->heads, model->kv_heads);
    text_print(t, "  \"head_dim\": %zu,\n  \"intermediate_size\": %zu,\n", head_elems(model),
               model->inner);
    text_print(t, "  \"max_position_embeddings\": %zu,\n  \"hidden_act\": \"silu\",\n",
               model->max_length);
    text_print(t, "  \"rms_norm_eps\": %g,\n  \"attention_dropout\": 0.0,\n", constants->norm_eps);
    text_print(t, "  \"attention_bias\": %s,\n  \"mlp_bias\": %s,\n",
               flag((model->features & ARCH_HAS_QKV_BIAS) != 0),
               flag((model->features & ARCH_HAS_MLP_BIAS) != 0));
    /* transformers 5 reads the first, earlier versions the second */
    text_print(t, "  \"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": %.1f},\n",
               constants->rope_theta);
    text_print(t, "  \"rope_theta\": %.1f,\n  \"rope_scaling\": null,\n", constants->rope_theta);
    text_print(t, "  \"use_sliding_window\": false,\n  \"bos_token_id\": null,\n");
    text_print(t, "  \"eos_token_id\": null,\n");
}

size_t hf_config_write(const arch *model, const hf_constants *constants, sherd_dtype dtype,
                       char *out, size_t bytes)
{
    static const char *const DTYPES[] = {
        [SHERD_F32] = "float32", [SHERD_BF16] = "bfloat16", [SHERD_F16] = "float16"};
    text t = {.out = out, .bytes = bytes};

    text_print(&t, "{\n");
    if (is_gpt2(model)) {
        gpt2_print(&t, model, constants);
    } else {
        llama_print(&t, model, constants);
    }
    text_print(&t, "  \"vocab_size\": %zu,\n  \"initializer_range\": 0.02,\n", model->vocab);
    text_print(&t, "  \"tie_word_embeddings\": %s,\n  \"torch_dtype\": \"%s\",\n",
               flag(!model->is_untied), DTYPES[dtype]);
    text_print(&t, "  \"use_cache\": true\n}\n");
    return t.used;
}
