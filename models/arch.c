/* Names and shapes of the architectures. See arch.h. */
#include "models/arch.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Shapes are written with these letters, which dim_elems() resolves. */
typedef enum dim {
    DIM_NONE = 0,
    DIM_HIDDEN,
    DIM_HIDDEN3,
    DIM_HEAD,
    DIM_Q,
    DIM_KV,
    DIM_INNER,
    DIM_VOCAB,
    DIM_LENGTH,
} dim;

typedef struct param_row {
    const char *name; /* of a layer: after "model.layers.N." or "transformer.h.N." */
    dim         rows, columns;
    unsigned    feature; /* models without this feature lack the parameter */
} param_row;

static const param_row gpt2_rows[ARCH_ROLES] = {
    [ARCH_TOKENS]         = {"transformer.wte.weight", DIM_VOCAB, DIM_HIDDEN, 0},
    [ARCH_POSITIONS]      = {"transformer.wpe.weight", DIM_LENGTH, DIM_HIDDEN, 0},
    [ARCH_NORM1]          = {"ln_1.weight", DIM_HIDDEN, DIM_NONE, 0},
    [ARCH_NORM1_BIAS]     = {"ln_1.bias", DIM_HIDDEN, DIM_NONE, 0},
    [ARCH_QKV]            = {"attn.c_attn.weight", DIM_HIDDEN3, DIM_HIDDEN, 0},
    [ARCH_QKV_BIAS]       = {"attn.c_attn.bias", DIM_HIDDEN3, DIM_NONE, 0},
    [ARCH_O]              = {"attn.c_proj.weight", DIM_HIDDEN, DIM_HIDDEN, 0},
    [ARCH_O_BIAS]         = {"attn.c_proj.bias", DIM_HIDDEN, DIM_NONE, 0},
    [ARCH_NORM2]          = {"ln_2.weight", DIM_HIDDEN, DIM_NONE, 0},
    [ARCH_NORM2_BIAS]     = {"ln_2.bias", DIM_HIDDEN, DIM_NONE, 0},
    [ARCH_UP]             = {"mlp.c_fc.weight", DIM_INNER, DIM_HIDDEN, 0},
    [ARCH_UP_BIAS]        = {"mlp.c_fc.bias", DIM_INNER, DIM_NONE, 0},
    [ARCH_DOWN]           = {"mlp.c_proj.weight", DIM_HIDDEN, DIM_INNER, 0},
    [ARCH_DOWN_BIAS]      = {"mlp.c_proj.bias", DIM_HIDDEN, DIM_NONE, 0},
    [ARCH_NORM_LAST]      = {"transformer.ln_f.weight", DIM_HIDDEN, DIM_NONE, 0},
    [ARCH_NORM_LAST_BIAS] = {"transformer.ln_f.bias", DIM_HIDDEN, DIM_NONE, 0},
    [ARCH_HEAD]           = {"lm_head.weight", DIM_VOCAB, DIM_HIDDEN, 0},
};

static const param_row llama_rows[ARCH_ROLES] = {
    [ARCH_TOKENS]    = {"model.embed_tokens.weight", DIM_VOCAB, DIM_HIDDEN, 0},
    [ARCH_Q]         = {"self_attn.q_proj.weight", DIM_Q, DIM_HIDDEN, 0},
    [ARCH_Q_BIAS]    = {"self_attn.q_proj.bias", DIM_Q, DIM_NONE, ARCH_HAS_QKV_BIAS},
    [ARCH_K]         = {"self_attn.k_proj.weight", DIM_KV, DIM_HIDDEN, 0},
    [ARCH_K_BIAS]    = {"self_attn.k_proj.bias", DIM_KV, DIM_NONE, ARCH_HAS_QKV_BIAS},
    [ARCH_V]         = {"self_attn.v_proj.weight", DIM_KV, DIM_HIDDEN, 0},
    [ARCH_V_BIAS]    = {"self_attn.v_proj.bias", DIM_KV, DIM_NONE, ARCH_HAS_QKV_BIAS},
    [ARCH_O]         = {"self_attn.o_proj.weight", DIM_HIDDEN, DIM_Q, 0},
    [ARCH_O_BIAS]    = {"self_attn.o_proj.bias", DIM_HIDDEN, DIM_NONE, ARCH_HAS_O_BIAS},
    [ARCH_Q_NORM]    = {"self_attn.q_norm.weight", DIM_HEAD, DIM_NONE, ARCH_HAS_QK_NORM},
    [ARCH_K_NORM]    = {"self_attn.k_norm.weight", DIM_HEAD, DIM_NONE, ARCH_HAS_QK_NORM},
    [ARCH_GATE]      = {"mlp.gate_proj.weight", DIM_INNER, DIM_HIDDEN, 0},
    [ARCH_GATE_BIAS] = {"mlp.gate_proj.bias", DIM_INNER, DIM_NONE, ARCH_HAS_MLP_BIAS},
    [ARCH_UP]        = {"mlp.up_proj.weight", DIM_INNER, DIM_HIDDEN, 0},
    [ARCH_UP_BIAS]   = {"mlp.up_proj.bias", DIM_INNER, DIM_NONE, ARCH_HAS_MLP_BIAS},
    [ARCH_DOWN]      = {"mlp.down_proj.weight", DIM_HIDDEN, DIM_INNER, 0},
    [ARCH_DOWN_BIAS] = {"mlp.down_proj.bias", DIM_HIDDEN, DIM_NONE, ARCH_HAS_MLP_BIAS},
    [ARCH_NORM1]     = {"input_layernorm.weight", DIM_HIDDEN, DIM_NONE, 0},
    [ARCH_NORM2]     = {"post_attention_layernorm.weight", DIM_HIDDEN, DIM_NONE, 0},
    [ARCH_NORM_LAST] = {"model.norm.weight", DIM_HIDDEN, DIM_NONE, 0},
    [ARCH_HEAD]      = {"lm_head.weight", DIM_VOCAB, DIM_HIDDEN, 0},
};

enum { UNIT_EMBEDDING, UNIT_LAYER, UNIT_LAST, UNIT_KINDS };

typedef struct family {
    const char      *name;
    const char      *layer_prefix;
    const param_row *rows;
    unsigned         features; /* that all its models have */
    int              is_untied;
    double           norm_eps, theta;               /* where a model says nothing else */
    arch_role        order[UNIT_KINDS][ARCH_ROLES]; /* order of declaration; ends with ARCH_NONE */
} family;

/* clang-format off */
#define LLAMA_ORDER { \
        {ARCH_TOKENS}, \
        {ARCH_Q, ARCH_Q_BIAS, ARCH_K, ARCH_K_BIAS, ARCH_V, ARCH_V_BIAS, ARCH_O, ARCH_O_BIAS, \
         ARCH_Q_NORM, ARCH_K_NORM, ARCH_GATE, ARCH_GATE_BIAS, ARCH_UP, ARCH_UP_BIAS, ARCH_DOWN, \
         ARCH_DOWN_BIAS, ARCH_NORM1, ARCH_NORM2}, \
        {ARCH_NORM_LAST, ARCH_HEAD}, \
    }

static const family families[ARCH_KINDS] = {
    [ARCH_GPT2] = {"gpt2", "transformer.h.", gpt2_rows, 0, 0, 1e-5, 0.0, {
        {ARCH_TOKENS, ARCH_POSITIONS},
        {ARCH_NORM1, ARCH_NORM1_BIAS, ARCH_QKV, ARCH_QKV_BIAS, ARCH_O, ARCH_O_BIAS, ARCH_NORM2,
         ARCH_NORM2_BIAS, ARCH_UP, ARCH_UP_BIAS, ARCH_DOWN, ARCH_DOWN_BIAS},
        {ARCH_NORM_LAST, ARCH_NORM_LAST_BIAS, ARCH_HEAD},
    }},
    [ARCH_MINIMIND] = {"minimind", "model.layers.", llama_rows, ARCH_HAS_QK_NORM, 0, 1e-6, 1e6, {
        {ARCH_TOKENS},
        {ARCH_Q, ARCH_K, ARCH_V, ARCH_O, ARCH_Q_NORM, ARCH_K_NORM, ARCH_NORM1, ARCH_NORM2,
         ARCH_GATE, ARCH_DOWN, ARCH_UP},
        {ARCH_NORM_LAST, ARCH_HEAD},
    }},
    [ARCH_LLAMA] = {"llama", "model.layers.", llama_rows, 0, 1, 1e-6, 1e4, LLAMA_ORDER},
    [ARCH_MISTRAL] = {"mistral", "model.layers.", llama_rows, 0, 1, 1e-6, 1e4, LLAMA_ORDER},
    [ARCH_QWEN2] = {"qwen2", "model.layers.", llama_rows, ARCH_HAS_QKV_BIAS, 1, 1e-6, 1e4, LLAMA_ORDER},
    [ARCH_QWEN3] = {"qwen3", "model.layers.", llama_rows, ARCH_HAS_QK_NORM, 1, 1e-6, 1e4, LLAMA_ORDER},
};
/* clang-format on */

typedef struct preset {
    const char *name;
    arch        sizes;
} preset;

#define GPT2(h, l, n)               ARCH_SIZES(ARCH_GPT2, h, l, n, n, 4 * (h), 50257, 1024)
#define MINIMIND(h, l, n, kv, i, v) ARCH_SIZES(ARCH_MINIMIND, h, l, n, kv, i, v, 32768)

#define LLAMA(kind_, h, l, n, kv, i, v, length, ...)                                               \
    {                                                                                              \
        .kind = (kind_), .hidden = (h), .layers = (l), .heads = (n), .kv_heads = (kv),             \
        .inner = (i), .vocab = (v), .max_length = (length), __VA_ARGS__                            \
    }

/* GPT-2 as published. MiniMind: 30m, 45m, 64m and 112m follow the recipe of the third generation
 * (inner = 64 * ceil(pi * hidden / 64)); 26m and 104m have the sizes of the second. "bytes" is the
 * trainer's default: small enough for two cores, with one token per byte. The others as their
 * config.json says: Llama-3-8B and Llama-3.2-1B; Mistral-7B v0.3, and v0.1, whose attention has a
 * window; Qwen2.5-7B and 0.5B; Qwen3-8B and 0.6B. */
static const preset presets[] = {
    {"tiny", ARCH_SIZES(ARCH_GPT2, 64, 2, 4, 4, 256, 256, 256)},
    {"bytes", ARCH_SIZES(ARCH_GPT2, 192, 4, 6, 6, 768, 256, 1024)},
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
    {"tiny", LLAMA(ARCH_LLAMA, 64, 2, 4, 2, 192, 256, 8192, .is_untied = 1, .norm_eps = 1e-5,
                   .rope = {.theta = 5e5})},
    {"bytes", LLAMA(ARCH_LLAMA, 192, 4, 6, 3, 512, 256, 8192, .is_untied = 1, .norm_eps = 1e-5,
                    .rope = {.theta = 5e5})},
    {"1b", LLAMA(ARCH_LLAMA, 2048, 16, 32, 8, 8192, 128256, 131072, .norm_eps = 1e-5,
                 .rope = {5e5, ARCH_ROPE_LLAMA3, 32.0, 1.0, 4.0, 8192})},
    {"8b", LLAMA(ARCH_LLAMA, 4096, 32, 32, 8, 14336, 128256, 8192, .is_untied = 1, .norm_eps = 1e-5,
                 .rope = {.theta = 5e5})},
    {"tiny", LLAMA(ARCH_MISTRAL, 64, 2, 4, 2, 192, 256, 32768, .is_untied = 1, .norm_eps = 1e-5,
                   .rope = {.theta = 1e6})},
    {"bytes", LLAMA(ARCH_MISTRAL, 192, 4, 6, 3, 512, 256, 32768, .is_untied = 1, .norm_eps = 1e-5,
                    .rope = {.theta = 1e6})},
    {"7b", LLAMA(ARCH_MISTRAL, 4096, 32, 32, 8, 14336, 32768, 32768, .is_untied = 1,
                 .norm_eps = 1e-5, .rope = {.theta = 1e6})},
    {"7b-v0.1", LLAMA(ARCH_MISTRAL, 4096, 32, 32, 8, 14336, 32000, 32768, .is_untied = 1,
                      .norm_eps = 1e-5, .rope = {.theta = 1e4}, .window = 4096)},
    {"tiny",
     LLAMA(ARCH_QWEN2, 64, 2, 4, 2, 192, 256, 32768, .norm_eps = 1e-6, .rope = {.theta = 1e6})},
    {"bytes",
     LLAMA(ARCH_QWEN2, 192, 4, 6, 3, 512, 256, 32768, .norm_eps = 1e-6, .rope = {.theta = 1e6})},
    {"0.5b", LLAMA(ARCH_QWEN2, 896, 24, 14, 2, 4864, 151936, 32768, .norm_eps = 1e-6,
                   .rope = {.theta = 1e6})},
    {"7b", LLAMA(ARCH_QWEN2, 3584, 28, 28, 4, 18944, 152064, 131072, .is_untied = 1,
                 .norm_eps = 1e-6, .rope = {.theta = 1e6})},
    {"tiny", LLAMA(ARCH_QWEN3, 64, 2, 4, 2, 192, 256, 40960, .head_elems = 32, .norm_eps = 1e-6,
                   .rope = {.theta = 1e6})},
    {"bytes",
     LLAMA(ARCH_QWEN3, 192, 4, 6, 3, 512, 256, 40960, .norm_eps = 1e-6, .rope = {.theta = 1e6})},
    {"0.6b", LLAMA(ARCH_QWEN3, 1024, 28, 16, 8, 3072, 151936, 40960, .head_elems = 128,
                   .norm_eps = 1e-6, .rope = {.theta = 1e6})},
    {"8b", LLAMA(ARCH_QWEN3, 4096, 36, 32, 8, 12288, 151936, 40960, .is_untied = 1,
                 .norm_eps = 1e-6, .rope = {.theta = 1e6})},
};

#define NUM_PRESETS (sizeof(presets) / sizeof(presets[0]))

/* With larger sizes the product of two of them overflows. */
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

void arch_begin(arch_kind kind, arch *out)
{
    const family *f = &families[kind];

    *out = (arch){.kind      = kind,
                  .is_untied = f->is_untied,
                  .norm_eps  = f->norm_eps,
                  .rope      = {.theta = f->theta}};
}

void arch_complete(arch *model)
{
    const family *f = &families[model->kind];

    if (model->norm_eps == 0.0) {
        model->norm_eps = f->norm_eps;
    }
    if (model->rope.theta == 0.0) {
        model->rope.theta = f->theta;
    }
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

int arch_has(const arch *model, unsigned features)
{
    return (features & ~(families[model->kind].features | model->features)) == 0;
}

size_t arch_head(const arch *model)
{
    return model->head_elems != 0 ? model->head_elems : model->hidden / model->heads;
}

size_t arch_q(const arch *model)
{
    return arch_head(model) * model->heads;
}

size_t arch_kv(const arch *model)
{
    return arch_head(model) * model->kv_heads;
}

static const char *gpt2_check(const arch *model, char *text, size_t text_bytes)
{
    if (model->kv_heads != model->heads) {
        (void)snprintf(text, text_bytes, "gpt2 has as many kv-heads as heads (%zu), not %zu",
                       model->heads, model->kv_heads);
        return text;
    }
    if (arch_q(model) != model->hidden) {
        (void)snprintf(text, text_bytes, "gpt2 has heads of hidden / heads elements, not of %zu",
                       arch_head(model));
        return text;
    }
    return NULL;
}

/* Whether the rotation's numbers can be computed with. */
static int rope_is_valid(const arch_rope *rope)
{
    return isfinite(rope->theta) && rope->theta > 0.0 &&
           (rope->kind == ARCH_ROPE_PLAIN || (isfinite(rope->factor) && rope->factor > 0.0)) &&
           (rope->kind != ARCH_ROPE_LLAMA3 ||
            (rope->low_factor > 0.0 && rope->high_factor > rope->low_factor &&
             isfinite(rope->high_factor) && rope->original_length > 0));
}

static const char *llama_check(const arch *model, char *text, size_t text_bytes)
{
    if (arch_head(model) % 2 != 0) {
        (void)snprintf(text, text_bytes,
                       "a head of %zu elements (hidden %zu, heads %zu) cannot be rotated: "
                       "it has to be even",
                       arch_head(model), model->hidden, model->heads);
        return text;
    }
    if (!rope_is_valid(&model->rope)) {
        (void)snprintf(
            text, text_bytes,
            "rotation by base %g and factors %g, %g, %g cannot be computed: they have to "
            "be above 0, and the third larger than the second",
            model->rope.theta, model->rope.factor, model->rope.low_factor, model->rope.high_factor);
        return text;
    }
    return NULL;
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
    if (!(model->norm_eps > 0.0) || !isfinite(model->norm_eps)) {
        (void)snprintf(text, text_bytes, "the eps of norms is %g; it has to be above 0",
                       model->norm_eps);
        return text;
    }
    if (model->head_elems == 0 && model->hidden % model->heads != 0) {
        (void)snprintf(text, text_bytes, "hidden %zu is not a multiple of heads %zu", model->hidden,
                       model->heads);
        return text;
    }
    if (model->heads % model->kv_heads != 0) {
        (void)snprintf(text, text_bytes, "heads %zu is not a multiple of kv-heads %zu",
                       model->heads, model->kv_heads);
        return text;
    }
    if (arch_head(model) > MAX_SIZE / model->heads) {
        (void)snprintf(text, text_bytes, "%zu heads of %zu elements are more than %zu",
                       model->heads, arch_head(model), MAX_SIZE);
        return text;
    }
    return model->kind == ARCH_GPT2 ? gpt2_check(model, text, text_bytes)
                                    : llama_check(model, text, text_bytes);
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

/* Returns the kind of a unit. */
static int unit_kind(const arch *model, size_t unit)
{
    return unit == 0 ? UNIT_EMBEDDING : unit <= model->layers ? UNIT_LAYER : UNIT_LAST;
}

static int has_role(const arch *model, arch_role role)
{
    return role == ARCH_HEAD ? model->is_untied
                             : arch_has(model, families[model->kind].rows[role].feature);
}

/* Returns the role of the i-th parameter in a kind of unit; ARCH_NONE past the last. */
static arch_role role_at(const arch *model, int kind, size_t i)
{
    const arch_role *role = families[model->kind].order[kind];

    for (; *role != ARCH_NONE; role++) {
        if (has_role(model, *role) && i-- == 0) {
            break;
        }
    }
    return *role;
}

static size_t kind_params(const arch *model, int kind)
{
    size_t count = 0;

    for (const arch_role *role = families[model->kind].order[kind]; *role != ARCH_NONE; role++) {
        count += has_role(model, *role) ? 1 : 0;
    }
    return count;
}

size_t arch_unit_first_param(const arch *model, size_t unit)
{
    size_t embedding = kind_params(model, UNIT_EMBEDDING);
    size_t layer     = kind_params(model, UNIT_LAYER);

    if (unit == 0) {
        return 0;
    }
    return unit <= model->layers + 1
               ? embedding + (unit - 1) * layer
               : embedding + model->layers * layer + kind_params(model, UNIT_LAST);
}

size_t arch_param_count(const arch *model)
{
    return arch_unit_first_param(model, arch_unit_count(model));
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
        return arch_head(model);
    case DIM_Q:
        return arch_q(model);
    case DIM_KV:
        return arch_kv(model);
    case DIM_INNER:
        return model->inner;
    case DIM_VOCAB:
        return model->vocab;
    case DIM_LENGTH:
        return model->max_length;
    }
    return 0;
}

/* Returns the unit of parameter k. */
static size_t unit_of(const arch *model, size_t k)
{
    size_t embedding = kind_params(model, UNIT_EMBEDDING);
    size_t layer     = (k - embedding) / kind_params(model, UNIT_LAYER);

    return k < embedding ? 0 : 1 + (layer < model->layers ? layer : model->layers);
}

void arch_param_get(const arch *model, size_t k, arch_param *out)
{
    const family    *f    = &families[model->kind];
    size_t           unit = unit_of(model, k);
    int              kind = unit_kind(model, unit);
    arch_role        role = role_at(model, kind, k - arch_unit_first_param(model, unit));
    const param_row *row  = &f->rows[role];
    int is_transposed     = model->is_transposed && kind == UNIT_LAYER && row->columns != DIM_NONE;

    *out = (arch_param){.role = role, .unit = unit};
    if (kind == UNIT_LAYER) {
        (void)snprintf(out->name, sizeof(out->name), "%s%zu.%s", f->layer_prefix, unit - 1,
                       row->name);
    } else {
        (void)snprintf(out->name, sizeof(out->name), "%s", row->name);
    }
    out->ndim        = row->columns == DIM_NONE ? 1 : 2;
    out->shape[0]    = dim_elems(model, is_transposed ? row->columns : row->rows);
    out->shape[1]    = dim_elems(model, is_transposed ? row->rows : row->columns);
    out->is_bias     = strstr(row->name, ".bias") != NULL;
    out->is_norm     = row->columns == DIM_NONE && !out->is_bias;
    out->is_residual = role == ARCH_O || role == ARCH_DOWN;
}

size_t arch_param_elems(const arch_param *param)
{
    return param->shape[0] * param->shape[1];
}

size_t arch_elems(const arch *model)
{
    size_t elems = 0;

    for (size_t k = 0; k < arch_param_count(model); k++) {
        arch_param param;

        arch_param_get(model, k, &param);
        elems += arch_param_elems(&param);
    }
    return elems;
}

int arch_is_product(const arch *model, const arch_param *param)
{
    return param->ndim == 2 && param->role != ARCH_POSITIONS &&
           (param->role != ARCH_TOKENS || !model->is_untied);
}

double arch_attention_flops_per_token(const arch *model, size_t length)
{
    return 12.0 * (double)model->layers * (double)arch_q(model) * (double)length;
}

double arch_flops_per_token(const arch *model, size_t length)
{
    double weights = 0.0;

    for (size_t k = 0; k < arch_param_count(model); k++) {
        arch_param param;

        arch_param_get(model, k, &param);
        if (arch_is_product(model, &param)) {
            weights += (double)arch_param_elems(&param);
        }
    }
    return 6.0 * weights + arch_attention_flops_per_token(model, length);
}
