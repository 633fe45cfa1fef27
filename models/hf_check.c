/* Checks whether a config.json describes a model. Sizes that the tensors' shapes show are compared too, because a message
 * about a size says more than one about a tensor. See hf.h. */
#include "models/hf.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct check {
    const json_t *root;
    char         *why;
    size_t        why_bytes;
    int           is_wrong;
} check;

/* Checks that a number is `wanted`. A key that is missing or null has the value `otherwise`; NaN: the key must be there. */
static void number_check(check *c, const json_t *object, const char *key, double wanted,
                         double otherwise)
{
    const json_t *value = json_object_get(object, key);
    double        got   = json_is_number(value)                  ? json_number_value(value)
                          : value == NULL || json_is_null(value) ? otherwise
                                                                 : (double)NAN;

    /* some programs write few digits, others many */
    if (!c->is_wrong && !(fabs(got - wanted) <= 1e-9 * fabs(wanted))) {
        c->is_wrong = 1;
        (void)snprintf(c->why, c->why_bytes, "%s is %g there and %g in this model", key, got,
                       wanted);
    }
}

static void size_check(check *c, const char *key, size_t wanted)
{
    number_check(c, c->root, key, (double)wanted, (double)NAN);
}

/* Checks a text, which has one of two spellings of the same thing. */
static void text_check(check *c, const char *key, const char *wanted, const char *also)
{
    const char *got = json_string_value(json_object_get(c->root, key));

    if (!c->is_wrong && got != NULL && strcmp(got, wanted) != 0 &&
        (also == NULL || strcmp(got, also) != 0)) {
        c->is_wrong = 1;
        (void)snprintf(c->why, c->why_bytes, "%s is \"%.40s\" there and \"%s\" in this model", key,
                       got, wanted);
    }
}

static void flag_check(check *c, const char *key, int wanted, int otherwise)
{
    const json_t *value = json_object_get(c->root, key);
    int           got   = json_is_boolean(value) ? json_is_true(value) : otherwise;

    if (!c->is_wrong && (got != 0) != (wanted != 0)) {
        c->is_wrong = 1;
        (void)snprintf(c->why, c->why_bytes, "%s is %s there and %s in this model", key,
                       got ? "true" : "false", wanted ? "true" : "false");
    }
}

static void gpt2_check(check *c, const arch *model, const hf_constants *constants)
{
    text_check(c, "model_type", "gpt2", NULL);
    size_check(c, "n_embd", model->hidden);
    size_check(c, "n_layer", model->layers);
    size_check(c, "n_head", model->heads);
    number_check(c, c->root, "n_inner", (double)model->inner, 4.0 * (double)model->hidden);
    size_check(c, "n_positions", model->max_length);
    number_check(c, c->root, "layer_norm_epsilon", constants->norm_eps, 1e-5);
    text_check(c, "activation_function", "gelu_new", "gelu_pytorch_tanh");
    flag_check(c, "scale_attn_weights", 1, 1);
    flag_check(c, "scale_attn_by_inverse_layer_idx", 0, 0);
    flag_check(c, "add_cross_attention", 0, 0);
}

/* transformers 5 keeps the rotation in an object, earlier versions in the root. */
static void rotation_check(check *c, const hf_constants *constants)
{
    const json_t *object  = json_object_get(c->root, "rope_parameters");
    const json_t *scaling = json_object_get(c->root, "rope_scaling");
    const char   *type =
        json_string_value(json_object_get(json_is_object(object) ? object : scaling, "rope_type"));

    number_check(c, json_is_object(object) ? object : c->root, "rope_theta", constants->rope_theta,
                 1e4);
    if (!c->is_wrong && type != NULL && strcmp(type, "default") != 0) {
        c->is_wrong = 1;
        (void)snprintf(c->why, c->why_bytes,
                       "rope_type is \"%.40s\" there, which this model does not compute", type);
    }
}

static void llama_check(check *c, const arch *model, const hf_constants *constants)
{
    size_t head   = model->head_elems != 0 ? model->head_elems : model->hidden / model->heads;
    int    has_qk = model->kind == ARCH_MINIMIND || (model->features & ARCH_HAS_QK_NORM) != 0;

    if (has_qk) {
        text_check(c, "model_type", "qwen3", "minimind");
    } else {
        text_check(c, "model_type", "llama",
                   (model->features & ARCH_HAS_QKV_BIAS) ? "qwen2" : "mistral");
    }
    size_check(c, "hidden_size", model->hidden);
    size_check(c, "num_hidden_layers", model->layers);
    size_check(c, "num_attention_heads", model->heads);
    number_check(c, c->root, "num_key_value_heads", (double)model->kv_heads, (double)model->heads);
    number_check(c, c->root, "head_dim", (double)head,
                 (double)model->hidden / (double)model->heads);
    size_check(c, "intermediate_size", model->inner);
    number_check(c, c->root, "rms_norm_eps", constants->norm_eps, 1e-6);
    text_check(c, "hidden_act", "silu", "swish");
    rotation_check(c, constants);
    flag_check(c, "use_sliding_window", 0, 0);
    flag_check(c, "use_moe", 0, 0);
}

const char *hf_config_check(const arch *model, const hf_constants *constants, const char *text,
                            size_t len_bytes, char *why, size_t why_bytes)
{
    json_error_t error;
    json_t      *root = json_loadb(text, len_bytes, JSON_REJECT_DUPLICATES, &error);
    check        c    = {.root = root, .why = why, .why_bytes = why_bytes};

    if (!json_is_object(root)) {
        (void)snprintf(why, why_bytes, "is not a JSON object: %s",
                       root == NULL ? error.text : "its JSON is of another kind");
        json_decref(root);
        return why;
    }
    size_check(&c, "vocab_size", model->vocab);
    flag_check(&c, "tie_word_embeddings", !model->is_untied, model->kind == ARCH_GPT2);
    if (model->kind == ARCH_GPT2) {
        gpt2_check(&c, model, constants);
    } else {
        llama_check(&c, model, constants);
    }
    json_decref(root);
    return c.is_wrong ? why : NULL;
}
