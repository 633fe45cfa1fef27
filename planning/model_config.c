/* Reads Hugging Face's config.json: parameters with the names and shapes that transformers gives the models of these families.
 * A key that would change their number, and that this file does not know, is an error. */
#include "planning/model_impl.h"

#include <string.h>

/* With larger sizes the product of two of them overflows. */
#define MOST_SIZE ((size_t)1 << 28)
#define HINT      "give the model's .safetensors file or --params"

/* A family, and what its configuration class assumes for keys that the file lacks. */
typedef struct family {
    const char *type;
    arch_kind   kind;
    int         is_tied;
    size_t      kv_heads; /* 0: as many as heads */
    size_t      head_dim; /* 0: hidden / heads */
    unsigned    features;
    /* features that "attention_bias" adds; 0: the family has no such key */
    unsigned attention_bias;
    unsigned mlp_bias;
} family;

#define ATTENTION_BIAS (ARCH_HAS_QKV_BIAS | ARCH_HAS_O_BIAS)

static const family families[] = {
    {"gpt2", ARCH_GPT2, 1, 0, 0, 0, 0, 0},
    {"llama", ARCH_LLAMA, 0, 0, 0, 0, ATTENTION_BIAS, ARCH_HAS_MLP_BIAS},
    {"mistral", ARCH_LLAMA, 0, 8, 0, 0, 0, 0},
    {"qwen2", ARCH_LLAMA, 0, 32, 0, ARCH_HAS_QKV_BIAS, 0, 0},
    {"qwen3", ARCH_LLAMA, 0, 32, 128, ARCH_HAS_QK_NORM, ATTENTION_BIAS, 0},
    {"minimind", ARCH_LLAMA, 1, 4, 0, ARCH_HAS_QK_NORM, 0, 0},
};

/* ---- keys ---- */

/* Reads a size. Absent and null mean `fallback`; with fallback 0 the size must be present. */
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

/* Reads a flag that adds a feature. */
static int feature_get(planning_maker *maker, const json_t *root, const char *key, unsigned feature,
                       arch *sizes)
{
    int is_set = 0;

    if (feature != 0 && flag_get(maker, root, key, 0, &is_set) != 0) {
        return -1;
    }
    sizes->features |= is_set ? feature : 0;
    return 0;
}

static int is_experts(const json_t *root, const char *key)
{
    return json_integer_value(json_object_get(root, key)) > 1;
}

/* Refuses keys that make a model different from its family. MiniMind's file counts experts that the model does not have,
 * unless use_moe is set. */
static int features_check(planning_maker *maker, const json_t *root, const family *f)
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

static int gpt2_get(planning_maker *maker, const json_t *root, arch *sizes)
{
    if (size_get(maker, root, "n_embd", 0, &sizes->hidden) != 0 ||
        size_get(maker, root, "n_layer", 0, &sizes->layers) != 0 ||
        size_get(maker, root, "n_head", 0, &sizes->heads) != 0 ||
        size_get(maker, root, "n_inner", 4 * sizes->hidden, &sizes->inner) != 0 ||
        size_get(maker, root, "vocab_size", 0, &sizes->vocab) != 0 ||
        size_get(maker, root, "n_positions", 1024, &sizes->max_length) != 0) {
        return -1;
    }
    if (sizes->hidden % sizes->heads != 0) {
        return planning_maker_fail(maker, "n_embd %zu is not a multiple of n_head %zu",
                                   sizes->hidden, sizes->heads);
    }
    sizes->kv_heads      = sizes->heads;
    sizes->is_transposed = 1;
    return 0;
}

/* Returns MiniMind's inner size where the file has none. The second generation has 8 / 3 of the hidden size, and no norms of
 * heads; its file is recognised by the way it counts experts. The third generation has pi. */
static size_t minimind_inner(const json_t *root, arch *sizes)
{
    arch usual = {.kind = ARCH_MINIMIND, .hidden = sizes->hidden};

    if (json_object_get(root, "n_routed_experts") != NULL) {
        sizes->features &= ~ARCH_HAS_QK_NORM;
        return (sizes->hidden * 8 / 3 + 63) / 64 * 64;
    }
    arch_complete(&usual);
    return usual.inner;
}

static int heads_get(planning_maker *maker, const json_t *root, const family *f, arch *sizes)
{
    size_t hidden = sizes->hidden, head_dim = f->head_dim;

    if (size_get(maker, root, "num_attention_heads", 0, &sizes->heads) != 0 ||
        size_get(maker, root, "num_key_value_heads",
                 f->kv_heads == 0 || json_is_null(json_object_get(root, "num_key_value_heads"))
                     ? sizes->heads
                     : f->kv_heads,
                 &sizes->kv_heads) != 0) {
        return -1;
    }
    if (sizes->heads % sizes->kv_heads != 0) {
        return planning_maker_fail(
            maker, "num_attention_heads %zu is not a multiple of num_key_value_heads %zu",
            sizes->heads, sizes->kv_heads);
    }
    if (head_dim == 0 && hidden % sizes->heads == 0) {
        head_dim = hidden / sizes->heads;
    }
    if (head_dim == 0 && !json_is_integer(json_object_get(root, "head_dim"))) {
        return planning_maker_fail(maker,
                                   "hidden_size %zu is not a multiple of num_attention_heads %zu; "
                                   "give head_dim",
                                   hidden, sizes->heads);
    }
    return size_get(maker, root, "head_dim", head_dim, &sizes->head_elems);
}

static int llama_get(planning_maker *maker, const json_t *root, const family *f, arch *sizes)
{
    size_t inner;

    if (size_get(maker, root, "hidden_size", 0, &sizes->hidden) != 0) {
        return -1;
    }
    inner = strcmp(f->type, "minimind") == 0 ? minimind_inner(root, sizes) : 0;
    return size_get(maker, root, "num_hidden_layers", 0, &sizes->layers) == 0 &&
                   heads_get(maker, root, f, sizes) == 0 &&
                   size_get(maker, root, "intermediate_size", inner, &sizes->inner) == 0 &&
                   size_get(maker, root, "vocab_size", 0, &sizes->vocab) == 0 &&
                   size_get(maker, root, "max_position_embeddings", 32768, &sizes->max_length) ==
                       0 &&
                   feature_get(maker, root, "attention_bias", f->attention_bias, sizes) == 0 &&
                   feature_get(maker, root, "mlp_bias", f->mlp_bias, sizes) == 0
               ? 0
               : -1;
}

/* Sets the trainer's architecture that computes like this model, if there is one with these sizes. */
static void arch_set(planning_model *model, const arch *sizes)
{
    char   text[256];
    size_t heads_elems = sizes->heads * sizes->head_elems;

    model->sizes = (arch){
        .kind       = sizes->kind == ARCH_GPT2 ? ARCH_GPT2 : ARCH_MINIMIND,
        .hidden     = sizes->hidden,
        .layers     = sizes->layers,
        .heads      = sizes->heads,
        .kv_heads   = sizes->kv_heads,
        .inner      = sizes->inner,
        .vocab      = sizes->vocab,
        .max_length = sizes->max_length,
    };
    model->has_wide_heads = sizes->kind != ARCH_GPT2 && heads_elems != sizes->hidden;
    model->has_arch       = arch_check(&model->sizes, text, sizeof(text)) == NULL;
}

int planning_read_config(planning_maker *maker, const json_t *root, const char *name)
{
    const family *f       = family_get(maker, root);
    arch          sizes   = {0};
    int           is_tied = 0;

    if (f == NULL || features_check(maker, root, f) != 0) {
        return -1;
    }
    sizes.kind     = f->kind;
    sizes.features = f->features;
    if (flag_get(maker, root, "tie_word_embeddings", f->is_tied, &is_tied) != 0 ||
        (f->kind == ARCH_GPT2 ? gpt2_get(maker, root, &sizes)
                              : llama_get(maker, root, f, &sizes)) != 0) {
        return -1;
    }
    sizes.is_untied = !is_tied;
    if (planning_maker_add_units(maker, &sizes) != 0) {
        return -1;
    }
    arch_set(maker->model, &sizes);
    return planning_maker_set_label(maker, "%s (%s)", name, f->type);
}
