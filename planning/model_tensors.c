/* Turns tensors into units. Files keep tensors in alphabetical order, so the names say which layer
 * a tensor belongs to: see unit_kind_find(). */
#include "planning/model_impl.h"

#include <stdlib.h>
#include <string.h>

/* Where a tensor belongs, in the order of forward. */
typedef enum unit_kind {
    UNIT_EMBEDDING = 0,
    UNIT_LAYER,
    UNIT_HEAD,
} unit_kind;

struct planning_tensor {
    char     *name;
    unit_kind at;
    size_t    layer;
    /* of the name: the bytes up to the layer's number, and with the number */
    size_t prefix_bytes, unit_bytes;
    int    ndim;
    size_t shape[SHERD_MAX_NDIM];
};

void planning_tensors_fini(planning_tensors *list)
{
    for (size_t i = 0; i < list->count; i++) {
        free(list->tensors[i].name);
    }
    free(list->tensors);
}

/* ---- names ---- */

static int word_is(const char *word, size_t len_bytes, const char *const *words)
{
    for (size_t i = 0; words[i] != NULL; i++) {
        if (strlen(words[i]) == len_bytes && memcmp(word, words[i], len_bytes) == 0) {
            return 1;
        }
    }
    return 0;
}

/* A tensor named "...layers.N..." (or h, blocks, layer, block) belongs to layer N. Of the rest,
 * embeddings come before the layers, and all other tensors after them. */
static void unit_kind_find(planning_tensor *t)
{
    static const char *const WORDS[] = {"layers", "h", "blocks", "layer", "block", NULL};
    const char              *word    = t->name;
    const char              *dot;

    while ((dot = strchr(word, '.')) != NULL) {
        const char *number = dot + 1;
        size_t      digits = strspn(number, "0123456789");

        if (word_is(word, (size_t)(dot - word), WORDS) && digits >= 1 && digits <= 9 &&
            number[digits] == '.') {
            t->at           = UNIT_LAYER;
            t->layer        = strtoul(number, NULL, 10);
            t->prefix_bytes = (size_t)(number - t->name);
            t->unit_bytes   = t->prefix_bytes + digits;
            return;
        }
        word = number;
    }
    t->at = strstr(t->name, "emb") != NULL || strstr(t->name, "wte") != NULL ||
                    strstr(t->name, "wpe") != NULL
                ? UNIT_EMBEDDING
                : UNIT_HEAD;
}

static int prefix_compare(const planning_tensor *a, const planning_tensor *b)
{
    size_t common = a->prefix_bytes < b->prefix_bytes ? a->prefix_bytes : b->prefix_bytes;
    int    order  = common == 0 ? 0 : memcmp(a->name, b->name, common);

    return order != 0 ? order
                      : (a->prefix_bytes > b->prefix_bytes) - (a->prefix_bytes < b->prefix_bytes);
}

/* Returns 0 for tensors of the same unit. */
static int unit_compare(const planning_tensor *a, const planning_tensor *b)
{
    int order = (a->at > b->at) - (a->at < b->at);

    if (order == 0) {
        order = prefix_compare(a, b);
    }
    return order != 0 ? order : (a->layer > b->layer) - (a->layer < b->layer);
}

static int tensor_compare(const void *a, const void *b)
{
    const planning_tensor *left = a, *right = b;
    int                    order = unit_compare(left, right);

    return order != 0 ? order : strcmp(left->name, right->name);
}

int planning_tensors_append(planning_maker *maker, planning_tensors *list, const char *name,
                            int ndim, const size_t *shape)
{
    planning_tensor t = {.ndim = ndim};

    if (list->count == PLANNING_MOST_PARAMS) {
        return planning_maker_fail(maker, "the model has more than %zu tensors",
                                   PLANNING_MOST_PARAMS);
    }
    if (planning_array_grow(maker, (void **)&list->tensors, list->count, &list->capacity,
                            sizeof(t)) != 0) {
        return -1;
    }
    t.name = strdup(name);
    if (t.name == NULL) {
        return planning_maker_no_memory(maker);
    }
    if (ndim <= SHERD_MAX_NDIM) { /* other tensors are refused as parameters */
        memcpy(t.shape, shape, (size_t)ndim * sizeof(*shape));
    }
    unit_kind_find(&t);
    list->tensors[list->count++] = t;
    return 0;
}

/* ---- tensors become units ---- */

static int unit_add(planning_maker *maker, const planning_tensor *t)
{
    char *name;
    int   result;

    if (t->at != UNIT_LAYER) {
        return planning_maker_add_unit(maker, t->at == UNIT_EMBEDDING ? "embedding" : "head");
    }
    name = strndup(t->name, t->unit_bytes);
    if (name == NULL) {
        return planning_maker_no_memory(maker);
    }
    result = planning_maker_add_unit(maker, name);
    free(name);
    return result;
}

/* A head without a matrix of its own computes with the table of the tokens: the largest of the
 * embedding. */
static int head_add_read(planning_maker *maker)
{
    const planning_model *model = maker->model;
    const planning_unit  *first = &model->units[0], *last = &model->units[model->num_units - 1];
    const planning_param *tied = NULL;

    for (size_t k = last->first_param; k < model->num_params; k++) {
        if (model->params[k].ndim >= 2) {
            return 0;
        }
    }
    for (size_t k = 0; k < first->num_params; k++) {
        const planning_param *param = &model->params[k];

        if (param->ndim == 2 && (tied == NULL || param->elems > tied->elems)) {
            tied = param;
        }
    }
    return tied == NULL ? 0
                        : planning_maker_add_read(maker, model->num_units - 1,
                                                  (size_t)(tied - model->params));
}

int planning_tensors_add(planning_maker *maker, planning_tensors *list)
{
    planning_tensor *tensors = list->tensors;

    /* In a plain model only counters and masks are integers. */
    if (list->integer_elems > list->float_elems / 8) {
        return planning_maker_fail(
            maker,
            "holds %zu integer elements and %zu of floating point: a quantized model; give "
            "the file of the original",
            list->integer_elems, list->float_elems);
    }
    if (list->count == 0) {
        return planning_maker_fail(maker, "holds no tensors of floating point");
    }
    qsort(tensors, list->count, sizeof(*tensors), tensor_compare);
    for (size_t i = 0; i < list->count; i++) {
        if ((i == 0 || unit_compare(&tensors[i - 1], &tensors[i]) != 0) &&
            unit_add(maker, &tensors[i]) != 0) {
            return -1;
        }
        if (planning_maker_add_param(maker, tensors[i].name, tensors[i].ndim, tensors[i].shape,
                                     0) != 0) {
            return -1;
        }
    }
    return tensors[0].at == UNIT_EMBEDDING && tensors[list->count - 1].at == UNIT_HEAD
               ? head_add_read(maker)
               : 0;
}
