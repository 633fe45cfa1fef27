/* Hugging Face's config.json: parameters with the names and shapes that transformers gives the models of these
 * families. Whatever would change their number and is not known here is refused. */
#include "planning/model_impl.h"

#include <string.h>

/* Sizes past this overflow the products of two of them. */
#define MOST_SIZE ((size_t)1 << 28)
#define HINT      "give the model's .safetensors file or --params"

/* Parts that some models of a family have. */
#define HAS_QKV_BIAS ((unsigned)1 << 0)
#define HAS_O_BIAS   ((unsigned)1 << 1)
#define HAS_MLP_BIAS ((unsigned)1 << 2)
#define HAS_QK_NORM  ((unsigned)1 << 3)

typedef enum dim {
    DIM_NONE = 0,
    DIM_HIDDEN,
    DIM_HIDDEN3,
    DIM_HEAD,
    DIM_Q,
    DIM_KV,
    DIM_INNER,
    DIM_VOCAB,
    DIM_POSITIONS,
    DIMS
} dim;

typedef struct param_row {
    const char *name; /* in a layer: after its prefix */
    dim         rows, columns;
    unsigned    has; /* left out of a model without this part */
} param_row;

static const param_row gpt2_embedding[] = {
    {"transformer.wte.weight", DIM_VOCAB, DIM_HIDDEN, 0},
    {"transformer.wpe.weight", DIM_POSITIONS, DIM_HIDDEN, 0},
};
/* Its matrices are transposed: [in, out]. */
static const param_row gpt2_layer[] = {
    {"ln_1.weight", DIM_HIDDEN, DIM_NONE, 0},
    {"ln_1.bias", DIM_HIDDEN, DIM_NONE, 0},
    {"attn.c_attn.weight", DIM_HIDDEN, DIM_HIDDEN3, 0},
    {"attn.c_attn.bias", DIM_HIDDEN3, DIM_NONE, 0},
    {"attn.c_proj.weight", DIM_HIDDEN, DIM_HIDDEN, 0},
    {"attn.c_proj.bias", DIM_HIDDEN, DIM_NONE, 0},
    {"ln_2.weight", DIM_HIDDEN, DIM_NONE, 0},
    {"ln_2.bias", DIM_HIDDEN, DIM_NONE, 0},
    {"mlp.c_fc.weight", DIM_HIDDEN, DIM_INNER, 0},
    {"mlp.c_fc.bias", DIM_INNER, DIM_NONE, 0},
    {"mlp.c_proj.weight", DIM_INNER, DIM_HIDDEN, 0},
    {"mlp.c_proj.bias", DIM_HIDDEN, DIM_NONE, 0},
};
static const param_row gpt2_head[] = {
    {"transformer.ln_f.weight", DIM_HIDDEN, DIM_NONE, 0},
    {"transformer.ln_f.bias", DIM_HIDDEN, DIM_NONE, 0},
};

static const param_row llama_embedding[] = {
    {"model.embed_tokens.weight", DIM_VOCAB, DIM_HIDDEN, 0},
};
static const param_row llama_layer[] = {
    {"self_attn.q_proj.weight", DIM_Q, DIM_HIDDEN, 0},
    {"self_attn.q_proj.bias", DIM_Q, DIM_NONE, HAS_QKV_BIAS},
    {"self_attn.k_proj.weight", DIM_KV, DIM_HIDDEN, 0},
    {"self_attn.k_proj.bias", DIM_KV, DIM_NONE, HAS_QKV_BIAS},
    {"self_attn.v_proj.weight", DIM_KV, DIM_HIDDEN, 0},
    {"self_attn.v_proj.bias", DIM_KV, DIM_NONE, HAS_QKV_BIAS},
    {"self_attn.o_proj.weight", DIM_HIDDEN, DIM_Q, 0},
    {"self_attn.o_proj.bias", DIM_HIDDEN, DIM_NONE, HAS_O_BIAS},
    {"self_attn.q_norm.weight", DIM_HEAD, DIM_NONE, HAS_QK_NORM},
    {"self_attn.k_norm.weight", DIM_HEAD, DIM_NONE, HAS_QK_NORM},
    {"mlp.gate_proj.weight", DIM_INNER, DIM_HIDDEN, 0},
    {"mlp.gate_proj.bias", DIM_INNER, DIM_NONE, HAS_MLP_BIAS},
    {"mlp.up_proj.weight", DIM_INNER, DIM_HIDDEN, 0},
    {"mlp.up_proj.bias", DIM_INNER, DIM_NONE, HAS_MLP_BIAS},
    {"mlp.down_proj.weight", DIM_HIDDEN, DIM_INNER, 0},
    {"mlp.down_proj.bias", DIM_HIDDEN, DIM_NONE, HAS_MLP_BIAS},
    {"input_layernorm.weight", DIM_HIDDEN, DIM_NONE, 0},
    {"post_attention_layernorm.weight", DIM_HIDDEN, DIM_NONE, 0},
};
static const param_row llama_head[] = {
    {"model.norm.weight", DIM_HIDDEN, DIM_NONE, 0},
};

static const param_row untied_head[] = {
    {"lm_head.weight", DIM_VOCAB, DIM_HIDDEN, 0},
};

#define ROWS(rows) rows, sizeof(rows) / sizeof((rows)[0])

/* A family, and what its configuration class assumes where the file says nothing. */
typedef struct family {
    const char *type;
    int         is_gpt2, is_tied;
    size_t      kv_heads; /* 0: as many as heads */
    size_t      head_dim; /* 0: hidden / heads */
    unsigned    has;
    unsigned    attention_bias; /* what "attention_bias" adds; 0: the family has no such key */
    unsigned    mlp_bias;
} family;

static const family families[] = {
    {.type = "gpt2", .is_gpt2 = 1, .is_tied = 1},
    {.type = "llama", .attention_bias = HAS_QKV_BIAS | HAS_O_BIAS, .mlp_bias = HAS_MLP_BIAS},
    {.type = "mistral", .kv_heads = 8},
    {.type = "qwen2", .kv_heads = 32, .has = HAS_QKV_BIAS},
    {.type           = "qwen3",
     .kv_heads       = 32,
     .head_dim       = 128,
     .has            = HAS_QK_NORM,
     .attention_bias = HAS_QKV_BIAS | HAS_O_BIAS},
    {.type = "minimind", .is_tied = 1, .kv_heads = 4, .has = HAS_QK_NORM},
};

typedef struct config {
    const family *family;
    size_t        layers, heads, kv_heads;
    size_t        dims[DIMS];
    unsigned      has;
    int           is_tied;
} config;

/* ---- keys ---- */

/* A size; absent and null mean `fallback`, which is 0 for a size that has to be there. */
static int size_get(planning_maker *maker, const json_t *root, const char *key, size_t fallback,
                    size_t *out)
{
    const json_t *value = json_object_get(root, key);

    if (fallback != 0 && (value == NULL || json_is_null(value))) {
        *out = fallback;
        return 0;
    }
    return planning_json_size(maker, value, key, 1, MOST_SIZE, out);
}

static int flag_get(planning_maker *maker, const json_t *root, const char *key, int fallback,
                    int *out)
{
    const json_t *value = json_object_get(root, key);

    if (value != NULL && !json_is_null(value) && !json_is_boolean(value)) {
        return planning_maker_fail(maker, "%s is %s; it has to be true or false", key,
                                   planning_json_kind(value));
    }
    *out = json_is_boolean(value) ? json_is_true(value) : fallback;
    return 0;
}

/* A flag that adds a part. */
static int part_get(planning_maker *maker, const json_t *root, const char *key, unsigned part,
                    config *c)
{
    int is_set = 0;

    if (part != 0 && flag_get(maker, root, key, 0, &is_set) != 0) {
        return -1;
    }
    c->has |= is_set ? part : 0;
    return 0;
}

static int is_experts(const json_t *root, const char *key)
{
    return json_integer_value(json_object_get(root, key)) > 1;
}

/* Names what makes a model another than its family's. MiniMind's file counts experts that it does not have,
 * unless use_moe is set. */
static int parts_check(planning_maker *maker, const json_t *root, const family *f)
{
    static const char *const EXPERTS[] = {"num_experts", "num_local_experts", "n_routed_experts"};

    if (json_is_true(json_object_get(root, "use_moe"))) {
        return planning_maker_fail(
            maker, "use_moe is true: a mixture of experts is not known here; " HINT);
    }
    for (size_t i = 0; i < 3 && strcmp(f->type, "minimind") != 0; i++) {
        if (is_experts(root, EXPERTS[i])) {
            return planning_maker_fail(
                maker, "%s is %lld: a mixture of experts is not known here; " HINT, EXPERTS[i],
                (long long)json_integer_value(json_object_get(root, EXPERTS[i])));
        }
    }
    if (json_is_true(json_object_get(root, "add_cross_attention"))) {
        return planning_maker_fail(
            maker, "add_cross_attention is true: cross-attention is not known here; " HINT);
    }
    return 0;
}

static const family *family_get(planning_maker *maker, const json_t *root)
{
    const json_t *type = json_object_get(root, "model_type");

    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]) && json_is_string(type); i++) {
        if (strcmp(json_string_value(type), families[i].type) == 0) {
            return &families[i];
        }
    }
    (void)planning_maker_fail(
        maker,
        "model_type is %.60s; it has to be one of gpt2, llama, mistral, qwen2, "
        "qwen3 and minimind; " HINT,
        json_is_string(type) ? json_string_value(type) : planning_json_kind(type));
    return NULL;
}

static int gpt2_get(planning_maker *maker, const json_t *root, config *c)
{
    size_t *hidden = &c->dims[DIM_HIDDEN];

    if (size_get(maker, root, "n_embd", 0, hidden) != 0 ||
        size_get(maker, root, "n_layer", 0, &c->layers) != 0 ||
        size_get(maker, root, "n_head", 0, &c->heads) != 0 ||
        size_get(maker, root, "n_inner", 4 * *hidden, &c->dims[DIM_INNER]) != 0 ||
        size_get(maker, root, "vocab_size", 0, &c->dims[DIM_VOCAB]) != 0 ||
        size_get(maker, root, "n_positions", 1024, &c->dims[DIM_POSITIONS]) != 0) {
        return -1;
    }
    if (*hidden % c->heads != 0) {
        return planning_maker_fail(maker, "n_embd %zu is not a multiple of n_head %zu", *hidden,
                                   c->heads);
    }
    c->kv_heads = c->heads;
    return 0;
}

/* MiniMind's inner size where the file has none. The second generation, told by the way it counts experts, has
 * 8 / 3 of the hidden size and no norms of heads; the third pi. */
static size_t minimind_inner(const json_t *root, config *c)
{
    arch sizes = {.kind = ARCH_MINIMIND, .hidden = c->dims[DIM_HIDDEN]};

    if (json_object_get(root, "n_routed_experts") != NULL) {
        c->has &= ~HAS_QK_NORM;
        return (c->dims[DIM_HIDDEN] * 8 / 3 + 63) / 64 * 64;
    }
    arch_complete(&sizes);
    return sizes.inner;
}

static int heads_get(planning_maker *maker, const json_t *root, config *c)
{
    const family *f      = c->family;
    size_t        hidden = c->dims[DIM_HIDDEN], head_dim = f->head_dim;

    if (size_get(maker, root, "num_attention_heads", 0, &c->heads) != 0 ||
        size_get(maker, root, "num_key_value_heads",
                 f->kv_heads == 0 || json_is_null(json_object_get(root, "num_key_value_heads"))
                     ? c->heads
                     : f->kv_heads,
                 &c->kv_heads) != 0) {
        return -1;
    }
    if (c->heads % c->kv_heads != 0) {
        return planning_maker_fail(
            maker, "num_attention_heads %zu is not a multiple of num_key_value_heads %zu", c->heads,
            c->kv_heads);
    }
    if (head_dim == 0 && hidden % c->heads == 0) {
        head_dim = hidden / c->heads;
    }
    if (head_dim == 0 && !json_is_integer(json_object_get(root, "head_dim"))) {
        return planning_maker_fail(maker,
                                   "hidden_size %zu is not a multiple of num_attention_heads %zu; "
                                   "give head_dim",
                                   hidden, c->heads);
    }
    if (size_get(maker, root, "head_dim", head_dim, &c->dims[DIM_HEAD]) != 0) {
        return -1;
    }
    c->dims[DIM_Q]  = c->heads * c->dims[DIM_HEAD];
    c->dims[DIM_KV] = c->kv_heads * c->dims[DIM_HEAD];
    return 0;
}

static int llama_get(planning_maker *maker, const json_t *root, config *c)
{
    const family *f = c->family;
    size_t        inner;

    if (size_get(maker, root, "hidden_size", 0, &c->dims[DIM_HIDDEN]) != 0) {
        return -1;
    }
    inner = strcmp(f->type, "minimind") == 0 ? minimind_inner(root, c) : 0;
    return size_get(maker, root, "num_hidden_layers", 0, &c->layers) == 0 &&
                   heads_get(maker, root, c) == 0 &&
                   size_get(maker, root, "intermediate_size", inner, &c->dims[DIM_INNER]) == 0 &&
                   size_get(maker, root, "vocab_size", 0, &c->dims[DIM_VOCAB]) == 0 &&
                   size_get(maker, root, "max_position_embeddings", 32768,
                            &c->dims[DIM_POSITIONS]) == 0 &&
                   part_get(maker, root, "attention_bias", f->attention_bias, c) == 0 &&
                   part_get(maker, root, "mlp_bias", f->mlp_bias, c) == 0
               ? 0
               : -1;
}

static int config_get(planning_maker *maker, const json_t *root, config *c)
{
    const family *f = family_get(maker, root);

    if (f == NULL || parts_check(maker, root, f) != 0) {
        return -1;
    }
    *c                = (config){.family = f, .has = f->has};
    c->dims[DIM_NONE] = 1;
    if (flag_get(maker, root, "tie_word_embeddings", f->is_tied, &c->is_tied) != 0 ||
        (f->is_gpt2 ? gpt2_get(maker, root, c) : llama_get(maker, root, c)) != 0) {
        return -1;
    }
    c->dims[DIM_HIDDEN3] = 3 * c->dims[DIM_HIDDEN];
    return 0;
}

/* ---- parameters ---- */

static int rows_add(planning_maker *maker, const config *c, const char *prefix,
                    const param_row *rows, size_t num_rows)
{
    int result = 0;

    for (size_t i = 0; i < num_rows && result == 0; i++) {
        const size_t shape[] = {c->dims[rows[i].rows], c->dims[rows[i].columns]};
        char         name[128];

        (void)snprintf(name, sizeof(name), "%s%s", prefix, rows[i].name);
        if ((rows[i].has & ~c->has) == 0) {
            result = planning_maker_add_param(maker, name, rows[i].columns == DIM_NONE ? 1 : 2,
                                              shape, 0);
        }
    }
    return result;
}

static int layer_add(planning_maker *maker, const config *c, size_t layer)
{
    char name[64], prefix[64];

    (void)snprintf(name, sizeof(name), "layer.%zu", layer);
    (void)snprintf(prefix, sizeof(prefix), "%s.%zu.",
                   c->family->is_gpt2 ? "transformer.h" : "model.layers", layer);
    if (planning_maker_add_unit(maker, name) != 0) {
        return -1;
    }
    return c->family->is_gpt2 ? rows_add(maker, c, prefix, ROWS(gpt2_layer))
                              : rows_add(maker, c, prefix, ROWS(llama_layer));
}

static int embedding_add(planning_maker *maker, const config *c)
{
    if (planning_maker_add_unit(maker, "embedding") != 0) {
        return -1;
    }
    return c->family->is_gpt2 ? rows_add(maker, c, "", ROWS(gpt2_embedding))
                              : rows_add(maker, c, "", ROWS(llama_embedding));
}

static int head_add(planning_maker *maker, const config *c)
{
    if (planning_maker_add_unit(maker, "head") != 0 ||
        (c->family->is_gpt2 ? rows_add(maker, c, "", ROWS(gpt2_head))
                            : rows_add(maker, c, "", ROWS(llama_head))) != 0) {
        return -1;
    }
    return c->is_tied ? planning_maker_add_read(maker, c->layers + 1, 0)
                      : rows_add(maker, c, "", ROWS(untied_head));
}

/* The trainer's architecture that computes like this one, where there is one with these sizes. */
static void arch_set(planning_model *model, const config *c)
{
    char text[256];

    model->sizes = (arch){
        .kind       = c->family->is_gpt2 ? ARCH_GPT2 : ARCH_MINIMIND,
        .hidden     = c->dims[DIM_HIDDEN],
        .layers     = c->layers,
        .heads      = c->heads,
        .kv_heads   = c->kv_heads,
        .inner      = c->dims[DIM_INNER],
        .vocab      = c->dims[DIM_VOCAB],
        .max_length = c->dims[DIM_POSITIONS],
    };
    model->has_wide_heads = !c->family->is_gpt2 && c->dims[DIM_Q] != c->dims[DIM_HIDDEN];
    model->has_arch       = arch_check(&model->sizes, text, sizeof(text)) == NULL;
}

int planning_read_config(planning_maker *maker, const json_t *root, const char *name)
{
    config c;

    if (config_get(maker, root, &c) != 0 || planning_maker_check_units(maker, c.layers + 2) != 0 ||
        embedding_add(maker, &c) != 0) {
        return -1;
    }
    for (size_t i = 0; i < c.layers; i++) {
        if (layer_add(maker, &c, i) != 0) {
            return -1;
        }
    }
    if (head_add(maker, &c) != 0) {
        return -1;
    }
    arch_set(maker->model, &c);
    return planning_maker_set_label(maker, "%s (%s)", name, c.family->type);
}
