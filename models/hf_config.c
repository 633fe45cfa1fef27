/* Reads Hugging Face's config.json: the model's sizes and constants, as transformers understands
 * them. A key that would change the number of parameters, and that this file does not know, is an
 * error; a key that only changes the computation is reported separately. See hf.h; hf.c writes
 * these files. */
#include "models/hf.h"

#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* With larger sizes the product of two of them overflows. */
#define MOST_SIZE ((size_t)1 << 28)

#define ATTENTION_BIAS (ARCH_HAS_QKV_BIAS | ARCH_HAS_O_BIAS)

/* The defaults of a family's configuration class for keys that the file lacks; arch_begin has the
 * rest. */
typedef struct family {
    size_t kv_heads; /* 0: as many as heads */
    size_t head;     /* 0: hidden / heads */
    /* features that "attention_bias" adds; 0: the family has no such key */
    unsigned attention_bias;
    unsigned mlp_bias;
} family;

static const family families[ARCH_KINDS] = {
    [ARCH_MINIMIND] = {4, 0, 0, 0},
    [ARCH_LLAMA]    = {0, 0, ATTENTION_BIAS, ARCH_HAS_MLP_BIAS},
    [ARCH_MISTRAL]  = {8, 0, 0, 0},
    [ARCH_QWEN2]    = {32, 0, 0, 0},
    [ARCH_QWEN3]    = {32, 128, ATTENTION_BIAS, 0},
};

typedef struct reader {
    const json_t *root;
    hf_config    *out;
    char         *why;
    size_t        why_bytes;
} reader;

/* ---- keys ---- */

static int fail(reader *r, int result, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static int fail(reader *r, int result, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(r->why, r->why_bytes, fmt, args);
    va_end(args);
    return result;
}

/* Notes a feature that is not computed; the first note persists. */
static void note(reader *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void note(reader *r, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    if (r->out->not_computed[0] == '\0') {
        (void)vsnprintf(r->out->not_computed, sizeof(r->out->not_computed), fmt, args);
    }
    va_end(args);
}

const char *hf_json_kind(const json_t *value)
{
    static const char *const KINDS[] = {
        [JSON_OBJECT] = "an object", [JSON_ARRAY] = "a list",
        [JSON_STRING] = "a text",    [JSON_INTEGER] = "a whole number",
        [JSON_REAL] = "a fraction",  [JSON_TRUE] = "true",
        [JSON_FALSE] = "false",      [JSON_NULL] = "null",
    };

    return value == NULL ? "missing" : KINDS[json_typeof(value)];
}

static int is_absent(const json_t *value)
{
    return value == NULL || json_is_null(value);
}

/* Reads a size. Absent and null mean `fallback`; with fallback 0 the size must be present. */
static int size_get(reader *r, const char *key, size_t fallback, size_t *out)
{
    const json_t *value  = json_object_get(r->root, key);
    json_int_t    number = json_integer_value(value);

    if (fallback != 0 && is_absent(value)) {
        *out = fallback;
        return 0;
    }
    if (!json_is_integer(value)) {
        return fail(r, HF_CONFIG_BAD, "%s is %s; it has to be a whole number from 1 to %zu", key,
                    hf_json_kind(value), MOST_SIZE);
    }
    if (number < 1 || (size_t)number > MOST_SIZE) {
        return fail(r, HF_CONFIG_BAD, "%s is %lld; it has to be a whole number from 1 to %zu", key,
                    (long long)number, MOST_SIZE);
    }
    *out = (size_t)number;
    return 0;
}

static int flag_get(reader *r, const char *key, int fallback, int *out)
{
    const json_t *value = json_object_get(r->root, key);

    if (!is_absent(value) && !json_is_boolean(value)) {
        return fail(r, HF_CONFIG_BAD, "%s is %s; it has to be true or false", key,
                    hf_json_kind(value));
    }
    *out = json_is_boolean(value) ? json_is_true(value) : fallback;
    return 0;
}

/* Reads a flag that adds a feature. */
static int feature_get(reader *r, const char *key, unsigned feature)
{
    int is_set = 0, result = feature == 0 ? 0 : flag_get(r, key, 0, &is_set);

    r->out->sizes.features |= is_set ? feature : 0;
    return result;
}

/* Reads a constant above 0. One that cannot be computed with is noted, and `fallback` stands in for
 * it; a fallback of 0 has to be replaced. */
static double constant_get(reader *r, const json_t *object, const char *key, double fallback)
{
    const json_t *value  = json_object_get(object, key);
    double        number = json_is_number(value) ? json_number_value(value) : 0.0;

    if (is_absent(value) && fallback > 0.0) {
        return fallback;
    }
    if (!(number > 0.0) || !isfinite(number)) {
        note(r, "%s is %s; the trainer needs a number above 0", key,
             json_is_number(value) ? "0, or below" : hf_json_kind(value));
        return fallback > 0.0 ? fallback : 1.0;
    }
    return number;
}

/* Notes a text that is neither of two spellings of the computed feature. */
static void text_need(reader *r, const char *key, const char *wanted, const char *also)
{
    const json_t *value = json_object_get(r->root, key);
    const char   *got   = json_is_string(value) ? json_string_value(value) : hf_json_kind(value);

    if (!is_absent(value) && strcmp(got, wanted) != 0 && strcmp(got, also) != 0) {
        note(r, "%s is \"%.40s\"; the trainer computes \"%s\"", key, got, wanted);
    }
}

static void flag_need(reader *r, const char *key, int wanted)
{
    const json_t *value = json_object_get(r->root, key);

    if (!is_absent(value) && json_is_true(value) != wanted) {
        note(r, "%s is not %s, which the trainer does not compute", key, wanted ? "true" : "false");
    }
}

/* ---- GPT-2 ---- */

static int gpt2_get(reader *r)
{
    arch *sizes  = &r->out->sizes;
    int   result = size_get(r, "n_embd", 0, &sizes->hidden);

    result = result != 0 ? result : size_get(r, "n_layer", 0, &sizes->layers);
    result = result != 0 ? result : size_get(r, "n_head", 0, &sizes->heads);
    result = result != 0 ? result : size_get(r, "n_inner", 4 * sizes->hidden, &sizes->inner);
    result = result != 0 ? result : size_get(r, "n_positions", 1024, &sizes->max_length);
    if (result != 0) {
        return result;
    }
    if (sizes->hidden % sizes->heads != 0) {
        return fail(r, HF_CONFIG_BAD, "n_embd %zu is not a multiple of n_head %zu", sizes->hidden,
                    sizes->heads);
    }
    sizes->kv_heads = sizes->heads;
    sizes->norm_eps = constant_get(r, r->root, "layer_norm_epsilon", sizes->norm_eps);
    text_need(r, "activation_function", "gelu_new", "gelu_pytorch_tanh");
    flag_need(r, "scale_attn_weights", 1);
    flag_need(r, "scale_attn_by_inverse_layer_idx", 0);
    return 0;
}

/* ---- in the style of Llama ---- */

/* Returns MiniMind's inner size where the file has none. The second generation has 8 / 3 of the
 * hidden size, and no norms of heads: it is a Llama. Its file is recognised by the way it counts
 * experts. The third generation has pi. */
static size_t minimind_inner(const reader *r)
{
    arch *sizes = &r->out->sizes;
    arch  usual = {.kind = ARCH_MINIMIND, .hidden = sizes->hidden};

    if (json_object_get(r->root, "n_routed_experts") != NULL) {
        sizes->kind = ARCH_LLAMA;
        return (sizes->hidden * 8 / 3 + 63) / 64 * 64;
    }
    arch_complete(&usual);
    return usual.inner;
}

static int heads_get(reader *r, const family *f)
{
    arch  *sizes  = &r->out->sizes;
    size_t head   = f->head;
    int    result = size_get(r, "num_attention_heads", 0, &sizes->heads);
    int    is_plain =
        f->kv_heads == 0 || json_is_null(json_object_get(r->root, "num_key_value_heads"));

    if (result == 0) {
        result = size_get(r, "num_key_value_heads", is_plain ? sizes->heads : f->kv_heads,
                          &sizes->kv_heads);
    }
    if (result != 0) {
        return result;
    }
    if (sizes->heads % sizes->kv_heads != 0) {
        return fail(r, HF_CONFIG_BAD,
                    "num_attention_heads %zu is not a multiple of num_key_value_heads %zu",
                    sizes->heads, sizes->kv_heads);
    }
    if (head == 0 && sizes->hidden % sizes->heads == 0) {
        head = sizes->hidden / sizes->heads;
    }
    if (head == 0 && !json_is_integer(json_object_get(r->root, "head_dim"))) {
        return fail(r, HF_CONFIG_BAD,
                    "hidden_size %zu is not a multiple of num_attention_heads %zu; give head_dim",
                    sizes->hidden, sizes->heads);
    }
    result = size_get(r, "head_dim", head, &head);
    if (result == 0 && head * sizes->heads != sizes->hidden) {
        sizes->head_elems = head;
    }
    return result;
}

/* transformers 5 keeps the rotation in one object, earlier versions its base in the root. */
/* Returns the block that says how positions are rotated, as transformers 5 takes it: rope_scaling,
 * of older files, before rope_parameters; an empty one is none. */
static const json_t *rope_block(reader *r)
{
    const json_t *older = json_object_get(r->root, "rope_scaling");
    const json_t *newer = json_object_get(r->root, "rope_parameters");

    if ((older != NULL && !json_is_null(older) && !json_is_object(older)) ||
        (newer != NULL && !json_is_null(newer) && !json_is_object(newer))) {
        note(r, "rope_scaling or rope_parameters is no block of keys");
    }
    return json_object_size(older) > 0 ? older : newer;
}

/* Returns the word for the way of rotation; NULL: the plain one. */
static const char *rope_type(reader *r, const json_t *block)
{
    const json_t *type = json_object_get(block, "rope_type");

    type = type != NULL ? type : json_object_get(block, "type");
    if (type != NULL && !json_is_string(type)) {
        note(r, "rope_type is no text");
    }
    return json_string_value(type);
}

/* Returns the length for which a model of kind llama3 was trained first. A number outside the block
 * takes precedence over the one in it. */
static size_t rope_original_length(reader *r, const json_t *block)
{
    double length = (double)r->out->sizes.max_length;

    length = constant_get(r, block, "original_max_position_embeddings", length);
    length = constant_get(r, r->root, "original_max_position_embeddings", length);
    if (length != floor(length)) {
        note(r, "original_max_position_embeddings is no whole number");
    }
    return (size_t)fmin(length, 0x1p28);
}

static void rope_get(reader *r)
{
    arch_rope    *rope  = &r->out->sizes.rope;
    const json_t *block = rope_block(r);
    const char   *word  = rope_type(r, block);

    rope->theta = constant_get(r, r->root, "rope_theta", rope->theta);
    rope->theta = constant_get(r, block, "rope_theta", rope->theta);
    if (constant_get(r, r->root, "partial_rotary_factor", 1.0) != 1.0 ||
        constant_get(r, block, "partial_rotary_factor", 1.0) != 1.0) {
        note(r, "partial_rotary_factor is not 1; the trainer rotates whole heads");
    }
    if (word == NULL || strcmp(word, "default") == 0) {
        return;
    }
    if (strcmp(word, "linear") == 0) {
        rope->kind   = ARCH_ROPE_LINEAR;
        rope->factor = constant_get(r, block, "factor", 0.0);
    } else if (strcmp(word, "llama3") == 0) {
        rope->kind            = ARCH_ROPE_LLAMA3;
        rope->factor          = constant_get(r, block, "factor", 0.0);
        rope->low_factor      = constant_get(r, block, "low_freq_factor", 0.0);
        rope->high_factor     = constant_get(r, block, "high_freq_factor", 0.0);
        rope->original_length = rope_original_length(r, block);
    } else {
        note(
            r,
            "rope_type is \"%.40s\"; the trainer computes default, linear and llama3: train such a "
            "model before its rotation is changed for longer texts, without rope_scaling",
            word);
    }
}

/* Sets the first layer with a window by a list of the kinds of layers. */
static void layer_types_get(reader *r, const json_t *list)
{
    arch  *sizes = &r->out->sizes;
    size_t first = 0;

    while (first < json_array_size(list) &&
           strcmp(hf_json_kind(json_array_get(list, first)), "a text") == 0 &&
           strcmp(json_string_value(json_array_get(list, first)), "sliding_attention") != 0) {
        first++;
    }
    for (size_t i = first; i < json_array_size(list); i++) {
        const char *word = json_string_value(json_array_get(list, i));

        if (word == NULL || strcmp(word, "sliding_attention") != 0) {
            note(r, "layer_types has layers with a window before layers without one");
        }
    }
    sizes->full_layers = first;
}

/* Reads the window of attention: all layers of Mistral have it, the later ones of Qwen where
 * use_sliding_window says so. */
static int window_get(reader *r)
{
    arch         *sizes     = &r->out->sizes;
    const json_t *types     = json_object_get(r->root, "layer_types");
    int           is_wanted = sizes->kind == ARCH_MISTRAL, result = 0;

    if (sizes->kind == ARCH_QWEN2 || sizes->kind == ARCH_QWEN3) {
        result = flag_get(r, "use_sliding_window", 0, &is_wanted);
    }
    if (result != 0 || !is_wanted || json_is_null(json_object_get(r->root, "sliding_window"))) {
        return result;
    }
    result = size_get(r, "sliding_window", 4096, &sizes->window);
    if (result == 0 && sizes->kind != ARCH_MISTRAL) {
        if (json_is_array(types)) {
            layer_types_get(r, types);
        } else {
            const json_t *layers = json_object_get(r->root, "max_window_layers");

            sizes->full_layers = json_is_integer(layers) && json_integer_value(layers) >= 0
                                     ? (size_t)json_integer_value(layers)
                                     : 28;
        }
    }
    if (sizes->full_layers >= sizes->layers) {
        sizes->window = sizes->full_layers = 0;
    }
    return result;
}

static int llama_get(reader *r)
{
    arch         *sizes  = &r->out->sizes;
    const family *f      = &families[sizes->kind];
    int           result = size_get(r, "hidden_size", 0, &sizes->hidden);
    size_t        inner;

    if (result != 0) {
        return result;
    }
    inner  = sizes->kind == ARCH_MINIMIND ? minimind_inner(r) : 0;
    result = size_get(r, "num_hidden_layers", 0, &sizes->layers);
    result = result != 0 ? result : heads_get(r, f);
    result = result != 0 ? result : size_get(r, "intermediate_size", inner, &sizes->inner);
    result =
        result != 0 ? result : size_get(r, "max_position_embeddings", 32768, &sizes->max_length);
    result = result != 0 ? result : feature_get(r, "attention_bias", f->attention_bias);
    result = result != 0 ? result : feature_get(r, "mlp_bias", f->mlp_bias);
    result = result != 0 ? result : window_get(r);
    if (result != 0) {
        return result;
    }
    sizes->norm_eps = constant_get(r, r->root, "rms_norm_eps", sizes->norm_eps);
    text_need(r, "hidden_act", "silu", "swish");
    rope_get(r);
    return 0;
}

/* ---- the file ---- */

/* Refuses keys that make a model different from its family. MiniMind's file counts experts that the
 * model does not have, unless use_moe is set. */
static int features_check(reader *r)
{
    static const char *const EXPERTS[] = {"num_experts", "num_local_experts", "n_routed_experts"};

    if (json_is_true(json_object_get(r->root, "use_moe"))) {
        return fail(r, HF_CONFIG_UNKNOWN,
                    "use_moe is true: a mixture of experts is not known here");
    }
    for (size_t i = 0; i < 3 && r->out->sizes.kind != ARCH_MINIMIND; i++) {
        json_int_t count = json_integer_value(json_object_get(r->root, EXPERTS[i]));

        if (count > 1) {
            return fail(r, HF_CONFIG_UNKNOWN, "%s is %lld: a mixture of experts is not known here",
                        EXPERTS[i], (long long)count);
        }
    }
    if (json_is_true(json_object_get(r->root, "add_cross_attention"))) {
        return fail(r, HF_CONFIG_UNKNOWN,
                    "add_cross_attention is true: cross-attention is not known here");
    }
    return 0;
}

int hf_config_read(const json_t *root, hf_config *out, char *why, size_t why_bytes)
{
    const json_t *type    = json_object_get(root, "model_type");
    reader        r       = {.root = root, .out = out, .why = why, .why_bytes = why_bytes};
    int           is_tied = 0, result;
    arch_kind     kind;

    if (!json_is_string(type) || arch_kind_find(json_string_value(type), &kind) != 0) {
        return fail(&r, HF_CONFIG_UNKNOWN,
                    "model_type is %.60s; it has to be one of " ARCH_KIND_NAMES,
                    json_is_string(type) ? json_string_value(type) : hf_json_kind(type));
    }
    *out = (hf_config){0};
    arch_begin(kind, &out->sizes);
    result = features_check(&r);
    if (result == 0) {
        result = flag_get(&r, "tie_word_embeddings", !out->sizes.is_untied, &is_tied);
    }
    out->sizes.is_untied = !is_tied;
    if (result == 0) {
        result = kind == ARCH_GPT2 ? gpt2_get(&r) : llama_get(&r);
    }
    return result == 0 ? size_get(&r, "vocab_size", 0, &out->sizes.vocab) : result;
}

int hf_config_parse(const char *text, size_t len_bytes, hf_config *out, char *why, size_t why_bytes)
{
    json_error_t error;
    json_t      *root   = json_loadb(text, len_bytes, JSON_REJECT_DUPLICATES, &error);
    int          result = HF_CONFIG_BAD;

    if (json_is_object(root)) {
        result = hf_config_read(root, out, why, why_bytes);
    } else {
        (void)snprintf(why, why_bytes, "is not a JSON object: %s",
                       root == NULL ? error.text : "its JSON is of another kind");
    }
    json_decref(root);
    return result;
}
