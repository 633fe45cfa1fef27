/* Models without a file (a built-in architecture, a mere count), and functions for any model. See
 * model.h; read model_maker.c next. */
#include "planning/model_impl.h"

#include <assert.h>
#include <stdint.h>
#include <string.h>

/* ---- a built-in architecture ---- */

planning_model *planning_model_from_arch(const arch *sizes, const char *preset, char *why,
                                         size_t why_bytes)
{
    const char    *kind = arch_kind_name(sizes->kind);
    planning_maker maker;
    int            result = planning_maker_init(&maker, NULL, why, why_bytes);

    if (result == 0) {
        result = planning_maker_add_arch(&maker, sizes);
    }
    if (result == 0) {
        result = preset != NULL ? planning_maker_set_label(&maker, "%s %s", kind, preset)
                                : planning_maker_set_label(&maker, "%s hidden %zu, %zu layer%s",
                                                           kind, sizes->hidden, sizes->layers,
                                                           sizes->layers == 1 ? "" : "s");
    }
    return planning_maker_finish(&maker, result);
}

/* ---- a count ---- */

#define MOST_LAYERS 128
/* A row of parameters has a multiple of this number of elements, so that almost no padding is
 * needed. */
#define ROW_ELEMS ((size_t)SHERD_CHUNK_ELEMS)

/* A decoder of n layers is about 128 n wide (Llama 7B: 32 layers of 4096, GPT-3: 96 of 12288), and
 * a layer has 12 hidden^2 elements. */
static size_t count_layers(size_t elems)
{
    size_t layers = 1;

    while (layers < MOST_LAYERS && 12 * 128 * 128 * layers * layers * layers < elems) {
        layers++;
    }
    return layers;
}

static size_t count_hidden(size_t layer_elems)
{
    size_t hidden = ROW_ELEMS;

    while (12 * hidden * hidden < layer_elems) {
        hidden += ROW_ELEMS;
    }
    return hidden;
}

static int layer_add_matrix(planning_maker *maker, size_t layer, const char *name, size_t rows,
                            size_t hidden)
{
    char         text[96];
    const size_t shape[] = {rows, hidden};

    (void)snprintf(text, sizeof(text), "layers.%zu.%s.weight", layer, name);
    return rows == 0 ? 0 : planning_maker_add_param(maker, text, 2, shape, 0);
}

/* Adds the matrices of a decoder's layer in their proportions: 3, 1, 4 and 4 of 12 rows. */
static int layer_add(planning_maker *maker, size_t layer, size_t rows, size_t hidden)
{
    size_t qkv = rows / 4, out = rows / 12, up = rows / 3;
    char   name[32];

    (void)snprintf(name, sizeof(name), "layer.%zu", layer);
    return planning_maker_add_unit(maker, name) == 0 &&
                   layer_add_matrix(maker, layer, "attn.qkv", qkv, hidden) == 0 &&
                   layer_add_matrix(maker, layer, "attn.out", out, hidden) == 0 &&
                   layer_add_matrix(maker, layer, "mlp.up", up, hidden) == 0 &&
                   layer_add_matrix(maker, layer, "mlp.down", rows - qkv - out - up, hidden) == 0
               ? 0
               : -1;
}

static int count_add(planning_maker *maker, size_t elems)
{
    size_t layers = count_layers(elems), hidden = count_hidden(elems / layers);
    size_t rows = elems / hidden, rest = elems % hidden;
    int    result = 0;

    for (size_t i = 0; result == 0 && i < layers; i++) {
        result = layer_add(maker, i, rows / layers + (i < rows % layers), hidden);
    }
    if (result == 0 && rest > 0) { /* less than a row: goes to the last layer */
        char text[96];

        (void)snprintf(text, sizeof(text), "layers.%zu.norm.weight", layers - 1);
        result = planning_maker_add_param(maker, text, 1, &rest, 0);
    }
    return result;
}

static int count_label(planning_maker *maker, size_t elems)
{
    static const char SUFFIXES[] = {'T', 'B', 'M', 'K'};
    double            unit       = 1e12;

    for (size_t i = 0; i < sizeof(SUFFIXES); i++, unit /= 1000) {
        if ((double)elems >= unit) {
            return planning_maker_set_label(maker, "%.4g%c parameters", (double)elems / unit,
                                            SUFFIXES[i]);
        }
    }
    return planning_maker_set_label(maker, "%zu parameter%s", elems, elems == 1 ? "" : "s");
}

planning_model *planning_model_from_count(size_t elems, char *why, size_t why_bytes)
{
    planning_maker maker;
    int            result = planning_maker_init(&maker, NULL, why, why_bytes);

    if (result == 0 && (elems == 0 || elems > PLANNING_MOST_ELEMS)) {
        result = planning_maker_fail(&maker, "a model has between 1 and %zu parameters, not %zu",
                                     PLANNING_MOST_ELEMS, elems);
    }
    if (result == 0) {
        result = count_add(&maker, elems);
    }
    if (result == 0) {
        result = count_label(&maker, elems);
    }
    return planning_maker_finish(&maker, result);
}

/* ---- the text of a count ---- */

static int char_is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Reads digits as a number and moves *text past them. Returns 0 where the number does not fit. */
static int digits_take(const char **text, size_t count, size_t *value)
{
    for (; count > 0; count--, (*text)++) {
        if (__builtin_mul_overflow(*value, (size_t)10, value) ||
            __builtin_add_overflow(*value, (size_t)(**text - '0'), value)) {
            return 0;
        }
    }
    return 1;
}

static size_t digits_count(const char *text)
{
    size_t count = 0;

    while (char_is_digit(text[count])) {
        count++;
    }
    return count;
}

/* Returns the power of ten that the rest of the text stands for: "", "e9", "B". -1: it is something
 * else. */
static int power_parse(const char *text)
{
    static const struct {
        char letter;
        int  power;
    } SUFFIXES[] = {{'K', 3}, {'M', 6}, {'B', 9}, {'G', 9}, {'T', 12}};

    if (text[0] == '\0') {
        return 0;
    }
    if (text[0] == 'e' || text[0] == 'E') {
        size_t power = 0;

        text += text[1] == '+' ? 2 : 1;
        return digits_count(text) >= 1 && digits_count(text) <= 2 &&
                       digits_take(&text, digits_count(text), &power) && text[0] == '\0'
                   ? (int)power
                   : -1;
    }
    for (size_t i = 0; i < sizeof(SUFFIXES) / sizeof(SUFFIXES[0]); i++) {
        if ((text[0] & ~0x20) == SUFFIXES[i].letter && text[1] == '\0') {
            return SUFFIXES[i].power;
        }
    }
    return -1;
}

/* Uses integers only, so that a count that is written exactly is exact. */
size_t planning_count_parse(const char *text)
{
    size_t value = 0, decimals = 0;
    int    power;

    if (!char_is_digit(text[0]) || !digits_take(&text, digits_count(text), &value)) {
        return 0;
    }
    if (text[0] == '.') {
        const char *fraction = ++text;
        size_t      written  = digits_count(text);

        for (decimals = written; decimals > 0 && fraction[decimals - 1] == '0'; decimals--) {
        }
        if (written == 0 || !digits_take(&fraction, decimals, &value)) {
            return 0;
        }
        text += written;
    }
    power = power_parse(text);
    if (power < 0 || (size_t)power < decimals) {
        return 0; /* junk, or a fraction of a parameter */
    }
    for (size_t i = decimals; i < (size_t)power; i++) {
        if (__builtin_mul_overflow(value, (size_t)10, &value)) {
            return 0;
        }
    }
    return value;
}

/* ---- declaring, arithmetic ---- */

static sherd_status param_declare(const planning_model *model, sherd_engine *engine,
                                  sherd_unit unit, size_t k)
{
    const planning_param *param = &model->params[k];
    sherd_param_params    params;
    sherd_param           handle;
    sherd_status          status;

    sherd_param_params_init(&params);
    params.name   = param->name;
    params.ndim   = param->ndim;
    params.frozen = param->is_frozen;
    memcpy(params.shape, param->shape, sizeof(params.shape));
    status = sherd_param_add(engine, unit, &params, &handle);
    assert(status != SHERD_OK || (size_t)handle == k);
    return status;
}

static sherd_status unit_declare(const planning_model *model, sherd_engine *engine, size_t u)
{
    const planning_unit *unit = &model->units[u];
    sherd_unit_params    params;
    sherd_unit           handle;
    sherd_status         status;

    sherd_unit_params_init(&params);
    params.name = unit->name;
    status      = sherd_unit_add(engine, &params, &handle);
    for (size_t k = 0; status == SHERD_OK && k < unit->num_params; k++) {
        status = param_declare(model, engine, handle, unit->first_param + k);
    }
    return status;
}

sherd_status planning_model_declare(const planning_model *model, sherd_engine *engine)
{
    sherd_status status = SHERD_OK;

    for (size_t u = 0; status == SHERD_OK && u < model->num_units; u++) {
        status = unit_declare(model, engine, u);
    }
    for (size_t i = 0; status == SHERD_OK && i < model->num_reads; i++) {
        status = sherd_unit_reads(engine, (sherd_unit)model->reads[i].unit,
                                  (sherd_param)model->reads[i].param);
    }
    return status;
}

/* A table of the embedding is looked up and not multiplied, unless a head reads it. */
static int param_is_product(const planning_model *model, size_t k)
{
    int is_read = 0;

    for (size_t i = 0; i < model->num_reads && !is_read; i++) {
        is_read = model->reads[i].param == k;
    }
    return model->params[k].ndim == 2 && (k >= model->units[0].num_params || is_read);
}

double planning_model_flops_per_token(const planning_model *model, size_t length)
{
    double weights = 0.0;

    if (!model->has_arch) {
        return 6.0 * (double)model->elems;
    }
    for (size_t k = 0; k < model->num_params; k++) {
        weights += param_is_product(model, k) ? (double)model->params[k].elems : 0.0;
    }
    return 6.0 * weights + arch_attention_flops_per_token(&model->sizes, length);
}
