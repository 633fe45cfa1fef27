/* Names and shapes of the two architectures. See arch.h. */
#include "arch.h"

#include <stdio.h>
#include <string.h>

/* Shapes are written in these letters and resolved by dim_elems(). */
typedef enum dim {
    DIM_NONE = 0,
    DIM_HIDDEN,
    DIM_HIDDEN3,
    DIM_HEAD,
    DIM_KV,
    DIM_INNER,
    DIM_VOCAB,
    DIM_LENGTH,
} dim;

typedef struct param_row {
    arch_role   role;
    const char *name; /* of a layer: after "model.layers.N." or "transformer.h.N." */
    dim         rows, columns;
} param_row;

/* One architecture: the parameters of its three kinds of units, in the order of declaration. */
typedef struct family {
    const char      *name;
    const char      *layer_prefix;
    const param_row *embedding, *layer, *last;
    size_t           num_embedding, num_layer, num_last;
} family;

static const param_row gpt2_embedding[] = {
    {ARCH_TOKENS, "transformer.wte.weight", DIM_VOCAB, DIM_HIDDEN},
    {ARCH_POSITIONS, "transformer.wpe.weight", DIM_LENGTH, DIM_HIDDEN},
};
static const param_row gpt2_layer[] = {
    {ARCH_NORM1, "ln_1.weight", DIM_HIDDEN, DIM_NONE},
    {ARCH_NORM1_BIAS, "ln_1.bias", DIM_HIDDEN, DIM_NONE},
    {ARCH_QKV, "attn.c_attn.weight", DIM_HIDDEN3, DIM_HIDDEN},
    {ARCH_QKV_BIAS, "attn.c_attn.bias", DIM_HIDDEN3, DIM_NONE},
    {ARCH_O, "attn.c_proj.weight", DIM_HIDDEN, DIM_HIDDEN},
    {ARCH_O_BIAS, "attn.c_proj.bias", DIM_HIDDEN, DIM_NONE},
    {ARCH_NORM2, "ln_2.weight", DIM_HIDDEN, DIM_NONE},
    {ARCH_NORM2_BIAS, "ln_2.bias", DIM_HIDDEN, DIM_NONE},
    {ARCH_UP, "mlp.c_fc.weight", DIM_INNER, DIM_HIDDEN},
    {ARCH_UP_BIAS, "mlp.c_fc.bias", DIM_INNER, DIM_NONE},
    {ARCH_DOWN, "mlp.c_proj.weight", DIM_HIDDEN, DIM_INNER},
    {ARCH_DOWN_BIAS, "mlp.c_proj.bias", DIM_HIDDEN, DIM_NONE},
};
static const param_row gpt2_last[] = {
    {ARCH_NORM_LAST, "transformer.ln_f.weight", DIM_HIDDEN, DIM_NONE},
    {ARCH_NORM_LAST_BIAS, "transformer.ln_f.bias", DIM_HIDDEN, DIM_NONE},
};

static const param_row minimind_embedding[] = {
    {ARCH_TOKENS, "model.embed_tokens.weight", DIM_VOCAB, DIM_HIDDEN},
};
static const param_row minimind_layer[] = {
    {ARCH_Q, "self_attn.q_proj.weight", DIM_HIDDEN, DIM_HIDDEN},
    {ARCH_K, "self_attn.k_proj.weight", DIM_KV, DIM_HIDDEN},
    {ARCH_V, "self_attn.v_proj.weight", DIM_KV, DIM_HIDDEN},
    {ARCH_O, "self_attn.o_proj.weight", DIM_HIDDEN, DIM_HIDDEN},
    {ARCH_Q_NORM, "self_attn.q_norm.weight", DIM_HEAD, DIM_NONE},
    {ARCH_K_NORM, "self_attn.k_norm.weight", DIM_HEAD, DIM_NONE},
    {ARCH_NORM1, "input_layernorm.weight", DIM_HIDDEN, DIM_NONE},
    {ARCH_NORM2, "post_attention_layernorm.weight", DIM_HIDDEN, DIM_NONE},
    {ARCH_GATE, "mlp.gate_proj.weight", DIM_INNER, DIM_HIDDEN},
    {ARCH_DOWN, "mlp.down_proj.weight", DIM_HIDDEN, DIM_INNER},
    {ARCH_UP, "mlp.up_proj.weight", DIM_INNER, DIM_HIDDEN},
};
static const param_row minimind_last[] = {
    {ARCH_NORM_LAST, "model.norm.weight", DIM_HIDDEN, DIM_NONE},
};

#define FAMILY(label, prefix, first, middle, end)                                                  \
    {                                                                                              \
        .name          = (label),                                                                  \
        .layer_prefix  = (prefix),                                                                 \
        .embedding     = (first),                                                                  \
        .layer         = (middle),                                                                 \
        .last          = (end),                                                                    \
        .num_embedding = sizeof(first) / sizeof((first)[0]),                                       \
        .num_layer     = sizeof(middle) / sizeof((middle)[0]),                                     \
        .num_last      = sizeof(end) / sizeof((end)[0]),                                           \
    }

static const family families[] = {
    [ARCH_GPT2] = FAMILY("gpt2", "transformer.h.", gpt2_embedding, gpt2_layer, gpt2_last),
    [ARCH_MINIMIND] =
        FAMILY("minimind", "model.layers.", minimind_embedding, minimind_layer, minimind_last),
};

typedef struct preset {
    const char *name;
    arch        sizes;
} preset;

#define GPT2(h, l, n)               {ARCH_GPT2, h, l, n, n, 4 * (h), 50257, 1024}
#define MINIMIND(h, l, n, kv, i, v) {ARCH_MINIMIND, h, l, n, kv, i, v, 32768}

/* GPT-2 as published. MiniMind: 30m, 45m, 64m and 112m are the recipe of the third generation
 * (inner = 64 * ceil(pi * hidden / 64)), 26m and 104m have the sizes of the second; "bytes" is
 * the trainer's own default, small enough for two cores, a token a byte. */
static const preset presets[] = {
    {"tiny", {ARCH_GPT2, 64, 2, 4, 4, 256, 256, 256}},
    {"bytes", {ARCH_GPT2, 192, 4, 6, 6, 768, 256, 1024}},
    {"124m", GPT2(768, 12, 12)},
    {"355m", GPT2(1024, 24, 16)},
    {"774m", GPT2(1280, 36, 20)},
    {"1558m", GPT2(1600, 48, 25)},
    {"tiny", MINIMIND(64, 2, 4, 2, 192, 256)},
    {"bytes", MINIMIND(192, 4, 6, 3, 512, 256)},
    {"26m", MINIMIND(512, 8, 8, 2, 1408, 6400)},
    {"30m", MINIMIND(512, 8, 8, 4, 1664, 6400)},
    {"45m", MINIMIND(640, 8, 8, 4, 2048, 6400)},
    {"64m", MINIMIND(768, 8, 8, 4, 2432, 6400)},
    {"104m", MINIMIND(768, 16, 8, 2, 2048, 6400)},
    {"112m", MINIMIND(1024, 8, 8, 4, 3264, 6400)},
    {"1270m", MINIMIND(2048, 24, 16, 8, 6464, 6400)},
};

#define NUM_PRESETS (sizeof(presets) / sizeof(presets[0]))

/* Sizes past this overflow the products of two of them. */
#define MAX_SIZE ((size_t)1 << 28)

int arch_preset(arch_kind kind, const char *name, arch *out)
{
    for (size_t i = 0; i < NUM_PRESETS; i++) {
        if (presets[i].sizes.kind == kind && strcmp(presets[i].name, name) == 0) {
            *out = presets[i].sizes;
            return 0;
        }
    }
    return -1;
}

const char *arch_preset_name(arch_kind kind, size_t i)
{
    for (size_t k = 0; k < NUM_PRESETS; k++) {
        if (presets[k].sizes.kind == kind && i-- == 0) {
            return presets[k].name;
        }
    }
    return NULL;
}

int arch_kind_find(const char *name, arch_kind *out)
{
    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++) {
        if (strcmp(families[i].name, name) == 0) {
            *out = (arch_kind)i;
            return 0;
        }
    }
    return -1;
}

const char *arch_kind_name(arch_kind kind)
{
    return families[kind].name;
}

void arch_complete(arch *model)
{
    if (model->kv_heads == 0) {
        model->kv_heads = model->heads;
    }
    if (model->inner == 0 && model->kind == ARCH_GPT2) {
        model->inner = 4 * model->hidden;
    }
    if (model->inner == 0) {
        /* 64 * ceil(pi * hidden / 64), in integers: 355 / 113 is pi to six digits */
        model->inner = (model->hidden * 355 + 113 * 64 - 1) / (113 * 64) * 64;
    }
    if (model->max_length == 0) {
        model->max_length = model->kind == ARCH_GPT2 ? 1024 : 32768;
    }
}

const char *arch_check(const arch *model, char *text, size_t text_bytes)
{
    const struct {
        const char *name;
        size_t      size;
    } sizes[] = {
        {"hidden", model->hidden},     {"layers", model->layers}, {"heads", model->heads},
        {"kv-heads", model->kv_heads}, {"inner", model->inner},   {"vocab", model->vocab},
        {"length", model->max_length},
    };

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        if (sizes[i].size == 0 || sizes[i].size > MAX_SIZE) {
            (void)snprintf(text, text_bytes, "%s is %s%zu; it has to be between 1 and %zu",
                           sizes[i].name, sizes[i].size == 0 ? "not given, or " : "", sizes[i].size,
                           MAX_SIZE);
            return text;
        }
    }
    if (model->hidden % model->heads != 0) {
        (void)snprintf(text, text_bytes, "hidden %zu is not a multiple of heads %zu", model->hidden,
                       model->heads);
        return text;
    }
    if (model->heads % model->kv_heads != 0) {
        (void)snprintf(text, text_bytes, "heads %zu is not a multiple of kv-heads %zu",
                       model->heads, model->kv_heads);
        return text;
    }
    if (model->kind == ARCH_GPT2 && model->kv_heads != model->heads) {
        (void)snprintf(text, text_bytes, "gpt2 has as many kv-heads as heads (%zu), not %zu",
                       model->heads, model->kv_heads);
        return text;
    }
    if (model->kind == ARCH_MINIMIND && model->hidden / model->heads % 2 != 0) {
        (void)snprintf(text, text_bytes,
                       "a head of %zu elements (hidden %zu / heads %zu) cannot be rotated: "
                       "it has to be even",
                       model->hidden / model->heads, model->hidden, model->heads);
        return text;
    }
    return NULL;
}

size_t arch_unit_count(const arch *model)
{
    return model->layers + 2;
}

void arch_unit_name(const arch *model, size_t unit, char out[ARCH_NAME_BYTES])
{
    if (unit == 0) {
        (void)snprintf(out, ARCH_NAME_BYTES, "embedding");
    } else if (unit <= model->layers) {
        (void)snprintf(out, ARCH_NAME_BYTES, "layer.%zu", unit - 1);
    } else {
        (void)snprintf(out, ARCH_NAME_BYTES, "head");
    }
}

size_t arch_param_count(const arch *model)
{
    const family *f = &families[model->kind];

    return f->num_embedding + model->layers * f->num_layer + f->num_last;
}

size_t arch_unit_first_param(const arch *model, size_t unit)
{
    const family *f = &families[model->kind];

    if (unit == 0) {
        return 0;
    }
    if (unit <= model->layers + 1) {
        return f->num_embedding + (unit - 1) * f->num_layer;
    }
    return arch_param_count(model);
}

static size_t dim_elems(const arch *model, dim d)
{
    switch (d) {
    case DIM_NONE:
        return 1;
    case DIM_HIDDEN:
        return model->hidden;
    case DIM_HIDDEN3:
        return 3 * model->hidden;
    case DIM_HEAD:
        return model->hidden / model->heads;
    case DIM_KV:
        return model->hidden / model->heads * model->kv_heads;
    case DIM_INNER:
        return model->inner;
    case DIM_VOCAB:
        return model->vocab;
    case DIM_LENGTH:
        return model->max_length;
    }
    return 0;
}

void arch_param_get(const arch *model, size_t k, arch_param *out)
{
    const family    *f    = &families[model->kind];
    const param_row *row  = NULL;
    size_t           unit = 0;

    if (k < f->num_embedding) {
        row = &f->embedding[k];
    } else if (k - f->num_embedding < model->layers * f->num_layer) {
        row  = &f->layer[(k - f->num_embedding) % f->num_layer];
        unit = 1 + (k - f->num_embedding) / f->num_layer;
    } else {
        row  = &f->last[k - f->num_embedding - model->layers * f->num_layer];
        unit = model->layers + 1;
    }

    *out = (arch_param){.role = row->role, .unit = unit};
    if (unit >= 1 && unit <= model->layers) {
        (void)snprintf(out->name, sizeof(out->name), "%s%zu.%s", f->layer_prefix, unit - 1,
                       row->name);
    } else {
        (void)snprintf(out->name, sizeof(out->name), "%s", row->name);
    }
    out->ndim        = row->columns == DIM_NONE ? 1 : 2;
    out->shape[0]    = dim_elems(model, row->rows);
    out->shape[1]    = dim_elems(model, row->columns);
    out->is_bias     = strstr(row->name, ".bias") != NULL;
    out->is_norm     = row->columns == DIM_NONE && !out->is_bias;
    out->is_residual = row->role == ARCH_O || row->role == ARCH_DOWN;
}

size_t arch_param_elems(const arch_param *param)
{
    return param->shape[0] * param->shape[1];
}

size_t arch_unit_elems(const arch *model, size_t unit)
{
    size_t end = arch_unit_first_param(model, unit + 1), elems = 0;

    for (size_t k = arch_unit_first_param(model, unit); k < end; k++) {
        arch_param param;

        arch_param_get(model, k, &param);
        elems += arch_param_elems(&param);
    }
    return elems;
}

size_t arch_elems(const arch *model)
{
    return arch_unit_elems(model, 0) + model->layers * arch_unit_elems(model, 1) +
           arch_unit_elems(model, model->layers + 1);
}

double arch_attention_flops_per_token(const arch *model, size_t length)
{
    return 12.0 * (double)model->layers * (double)model->hidden * (double)length;
}

double arch_flops_per_token(const arch *model, size_t length)
{
    double weights = 0.0;

    for (size_t k = 0; k < arch_param_count(model); k++) {
        arch_param param;

        arch_param_get(model, k, &param);
        if (param.ndim == 2 && param.role != ARCH_POSITIONS) {
            weights += (double)arch_param_elems(&param);
        }
    }
    return 6.0 * weights + arch_attention_flops_per_token(model, length);
}

static sherd_status param_declare(const arch *model, sherd_engine *engine, sherd_unit unit,
                                  size_t k)
{
    sherd_param_params params;
    sherd_param        handle;
    arch_param         info;

    arch_param_get(model, k, &info);
    sherd_param_params_init(&params);
    params.name     = info.name;
    params.ndim     = info.ndim;
    params.shape[0] = info.shape[0];
    params.shape[1] = info.shape[1];
    return sherd_param_add(engine, unit, &params, &handle);
}

static sherd_status unit_declare(const arch *model, sherd_engine *engine, size_t unit)
{
    char              name[ARCH_NAME_BYTES];
    sherd_unit_params params;
    sherd_unit        handle;
    sherd_status      status;

    arch_unit_name(model, unit, name);
    sherd_unit_params_init(&params);
    params.name = name;
    status      = sherd_unit_add(engine, &params, &handle);
    for (size_t k = arch_unit_first_param(model, unit);
         status == SHERD_OK && k < arch_unit_first_param(model, unit + 1); k++) {
        status = param_declare(model, engine, handle, k);
    }
    if (status == SHERD_OK && unit == model->layers + 1) {
        status = sherd_unit_reads(engine, handle, 0);
    }
    return status;
}

sherd_status arch_declare(const arch *model, sherd_engine *engine)
{
    for (size_t unit = 0; unit < arch_unit_count(model); unit++) {
        sherd_status status = unit_declare(model, engine, unit);

        if (status != SHERD_OK) {
            return status;
        }
    }
    return SHERD_OK;
}
