/* Cases of models.json. See cases.h. */
#include "tests/trainer/cases.h"

#include "models/hf.h"

#include <jansson.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_TOKEN 1000000000000000u

static uint64_t splitmix64(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static double number_of(const json_t *object, const char *key)
{
    return json_number_value(json_object_get(object, key));
}

static size_t size_of(const json_t *object, const char *key)
{
    json_int_t value = json_integer_value(json_object_get(object, key));

    return value < 0 ? 0 : (size_t)value;
}

static size_t numbers_of(const json_t *array, double *out, size_t most)
{
    size_t count = json_array_size(array) < most ? json_array_size(array) : most;

    for (size_t i = 0; i < count; i++) {
        out[i] = json_number_value(json_array_get(array, i));
    }
    return count;
}

/* A model that a config.json describes, which the trainer computes. */
static int config_read(const json_t *config, arch *out)
{
    hf_config read;
    char      why[256];

    if (hf_config_read(config, &read, why, sizeof(why)) != 0 || read.not_computed[0] != '\0') {
        return -1;
    }
    *out = read.sizes;
    return 0;
}

/* A model by single sizes. */
static int model_read(const json_t *about, model_case *c)
{
    const char *kind = json_string_value(json_object_get(about, "model"));

    if (kind == NULL || arch_kind_find(kind, &c->sizes.kind) != 0) {
        return -1;
    }
    c->sizes.hidden     = size_of(about, "hidden");
    c->sizes.layers     = size_of(about, "layers");
    c->sizes.heads      = size_of(about, "heads");
    c->sizes.kv_heads   = size_of(about, "kv_heads");
    c->sizes.inner      = size_of(about, "inner");
    c->sizes.vocab      = size_of(about, "vocab");
    c->sizes.max_length = size_of(about, "max_length");
    arch_complete(&c->sizes);
    return 0;
}

/* Sizes of the model; -1 when they are not there. */
static int sizes_read(const json_t *about, model_case *c)
{
    const json_t *config = json_object_get(about, "config");
    char          text[256];

    if ((config != NULL ? config_read(config, &c->sizes) : model_read(about, c)) != 0) {
        return -1;
    }
    c->batch  = size_of(about, "batch");
    c->length = size_of(about, "length");
    c->scale  = number_of(about, "scale");
    c->lr     = number_of(about, "lr");
    if (c->batch == 0 || c->length == 0 || c->length > c->sizes.max_length) {
        return -1;
    }
    return arch_check(&c->sizes, text, sizeof(text)) == NULL ? 0 : -1;
}

/* The k-th parameter must be the one that arch.c has there. */
static int param_read(const model_case *c, size_t k, const json_t *json, case_param *out)
{
    const char *name = json_string_value(json_object_get(json, "name"));
    arch_param  info;

    arch_param_get(&c->sizes, k, &info);
    if (name == NULL || strcmp(name, info.name) != 0) {
        return -1;
    }
    (void)snprintf(out->name, sizeof(out->name), "%s", name);
    out->k         = k;
    out->elems     = arch_param_elems(&info);
    out->grad_l2   = number_of(json, "grad_l2");
    out->num_first = numbers_of(json_object_get(json, "grad_first"), out->grad_first, CASE_FIRST);
    out->num_last  = numbers_of(json_object_get(json, "grad_last"), out->grad_last, CASE_LAST);
    out->grad_dot  = number_of(json, "grad_dot");
    out->has_dot   = json_object_get(json, "grad_dot") != NULL;
    return out->num_first <= out->elems && out->num_last <= out->elems ? 0 : -1;
}

static int case_read(const char *name, const json_t *json, model_case *c, char *text,
                     size_t text_bytes)
{
    const json_t *params = json_object_get(json, "parameters");
    const json_t *losses = json_object_get(json, "adamw_losses");

    (void)snprintf(c->name, sizeof(c->name), "%s", name);
    if (sizes_read(json_object_get(json, "case"), c) != 0) {
        (void)snprintf(text, text_bytes, "case %s: its sizes are missing or do not fit", name);
        return -1;
    }
    c->loss       = number_of(json, "loss");
    c->grad_norm  = number_of(json, "grad_norm");
    c->num_params = json_array_size(params);
    c->num_losses = json_array_size(losses);
    c->params     = calloc(c->num_params + 1, sizeof(*c->params));
    c->losses     = calloc(c->num_losses + 1, sizeof(*c->losses));
    if (c->params == NULL || c->losses == NULL) {
        (void)snprintf(text, text_bytes, "out of memory");
        return -1;
    }
    (void)numbers_of(losses, c->losses, c->num_losses);
    if (c->num_params != arch_param_count(&c->sizes)) {
        (void)snprintf(text, text_bytes, "case %s has %zu parameters, the model has %zu", name,
                       c->num_params, arch_param_count(&c->sizes));
        return -1;
    }
    for (size_t k = 0; k < c->num_params; k++) {
        if (param_read(c, k, json_array_get(params, k), &c->params[k]) != 0) {
            (void)snprintf(text, text_bytes, "case %s: parameter %zu is not the model's", name, k);
            return -1;
        }
    }
    return 0;
}

int cases_load(const char *path, model_case **out, size_t *count_out, char *text, size_t text_bytes)
{
    json_error_t error;
    json_t      *root = json_load_file(path, 0, &error), *value;
    const char  *name;
    model_case  *cases;
    size_t       count  = 0;
    int          result = 0;

    if (root == NULL) {
        (void)snprintf(text, text_bytes, "%s:%d:%d: %s", path, error.line, error.column,
                       error.text);
        return -1;
    }
    cases = calloc(json_object_size(root) + 1, sizeof(*cases));
    json_object_foreach(root, name, value)
    {
        if (cases == NULL || name[0] == '_') {
            continue;
        }
        result = case_read(name, value, &cases[count++], text, text_bytes);
        if (result != 0) {
            break;
        }
    }
    json_decref(root);
    if (cases == NULL || result != 0 || count == 0) {
        if (result == 0) {
            (void)snprintf(text, text_bytes, "%s holds no case", path);
        }
        cases_free(cases, count);
        return -1;
    }
    *out       = cases;
    *count_out = count;
    return 0;
}

void cases_free(model_case *cases, size_t count)
{
    for (size_t i = 0; cases != NULL && i < count; i++) {
        free(cases[i].params);
        free(cases[i].losses);
    }
    free(cases);
}

/* Uniform from -1 to 1. */
static double uniform_of(uint64_t number)
{
    return 2.0 * ((double)(splitmix64(number) >> 11) * 0x1p-53) - 1.0;
}

void case_dot_weights(size_t k, size_t first, size_t count, double *out)
{
    for (size_t i = 0; i < count; i++) {
        out[i] = uniform_of(((uint64_t)1 << 62) + ((uint64_t)k << 32) + first + i);
    }
}

void case_weights(const model_case *c, size_t k, size_t first, size_t count, float *out)
{
    arch_param info;

    arch_param_get(&c->sizes, k, &info);
    for (size_t i = 0; i < count; i++) {
        double r = uniform_of(((uint64_t)k << 32) + first + i);

        out[i] = (float)(info.is_norm ? 1.0 + 0.1 * r : c->scale * r);
    }
}

void case_tokens(const model_case *c, int32_t *inputs, int32_t *targets)
{
    size_t length = c->length;

    for (size_t b = 0; b < c->batch; b++) {
        for (size_t t = 0; t < length; t++) {
            uint64_t j = FIRST_TOKEN + b * (length + 1) + t;

            inputs[b * length + t]  = (int32_t)(splitmix64(j) % c->sizes.vocab);
            targets[b * length + t] = (int32_t)(splitmix64(j + 1) % c->sizes.vocab);
        }
    }
}

double case_worse(double a, double b)
{
    return !(b <= a) ? b : a;
}

double case_relative(double got, double want, double least)
{
    double scale = fabs(want) > least ? fabs(want) : least;

    return scale > 0.0 ? fabs(got - want) / scale : fabs(got - want);
}

/* Entries near zero are measured by the parameter's typical entry. */
double case_grad_error(const case_param *want, const float *grad)
{
    double sum = 0.0, dot = 0.0, error, typical = want->grad_l2 / sqrt((double)want->elems);

    for (size_t i = 0; i < want->elems; i++) {
        double weight;

        case_dot_weights(want->k, i, 1, &weight);
        sum += (double)grad[i] * (double)grad[i];
        dot += (double)grad[i] * weight;
    }
    error = case_relative(sqrt(sum), want->grad_l2, 0.0);
    if (want->has_dot) {
        error = case_worse(error, case_relative(dot, want->grad_dot, want->grad_l2));
    }
    for (size_t i = 0; i < want->num_first; i++) {
        error = case_worse(error, case_relative((double)grad[i], want->grad_first[i], typical));
    }
    for (size_t i = 0; i < want->num_last; i++) {
        double got = (double)grad[want->elems - want->num_last + i];

        error = case_worse(error, case_relative(got, want->grad_last[i], typical));
    }
    return error;
}
