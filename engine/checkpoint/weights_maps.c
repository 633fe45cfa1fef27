/* Checks maps between tensors of files and parameters. See weights.h. */
#include "engine/checkpoint/weights.h"

#include "base/api.h"
#include "base/checked.h"

#include <string.h>

void sherd_tensor_map_init(sherd_tensor_map *map)
{
    sherdi_api_init(map, &(sherd_tensor_map){.struct_size = sizeof(*map)});
}

size_t sherdi_weights_map_elems(const sherd_tensor_map *map)
{
    size_t elems = 1;

    for (int i = 0; i < map->ndim; i++) {
        elems *= map->shape[i];
    }
    return elems;
}

sherdi_tensor_dtype sherdi_weights_data_dtype(const sherd_tensor_map *map)
{
    return sherdi_tensor_dtype_of(map->data_dtype);
}

size_t sherdi_weights_data_bytes(const sherd_tensor_map *map)
{
    return sherdi_weights_map_elems(map) *
           sherdi_tensor_dtype_bytes(sherdi_weights_data_dtype(map));
}

static sherd_status shape_check(const sherd_tensor_map *map)
{
    size_t elems = 1;

    if (map->ndim < 0 || map->ndim > SHERD_MAX_NDIM) {
        return sherdi_fail(SHERD_E_INVAL, "tensor %s: it has %d dimensions; 0 to %d can be",
                           map->name, map->ndim, SHERD_MAX_NDIM);
    }
    SHERDI_TRY(sherdi_api_check_flag(map->is_transposed, "sherd_tensor_map.is_transposed"));
    if (map->is_transposed && map->ndim != 2) {
        return sherdi_fail(SHERD_E_INVAL,
                           "tensor %s has %d dimensions; only one with 2 can be transposed",
                           map->name, map->ndim);
    }
    for (int i = 0; i < map->ndim; i++) {
        if (!sherdi_mul_fits(elems, map->shape[i], &elems)) {
            return sherdi_fail(SHERD_E_INVAL, "tensor %s: its shape has too many elements",
                               map->name);
        }
    }
    return SHERD_OK;
}

/* Checks a map whose elements are in the caller's memory (data_dtype). A map with neither
 * data_dtype nor a parameter is zeros of a raw file. */
static sherd_status data_check(const sherd_tensor_map *map)
{
    if (map->data_dtype == NULL) {
        return SHERD_OK;
    }
    if (sherdi_tensor_dtype_of(map->data_dtype) == SHERDI_TENSOR_DTYPES) {
        return sherdi_fail(SHERD_E_INVAL,
                           "tensor %s: data_dtype is %s, which is no type of safetensors (\"F32\", "
                           "\"BF16\", \"I64\", \"BOOL\" and so on)",
                           map->name, map->data_dtype);
    }
    if (map->data == NULL && sherdi_weights_map_elems(map) > 0) {
        return sherdi_fail(SHERD_E_INVAL, "tensor %s: data is NULL, but it has %zu elements",
                           map->name, sherdi_weights_map_elems(map));
    }
    if (map->param != NULL || map->first_elem != 0 || map->is_transposed) {
        return sherdi_fail(SHERD_E_INVAL,
                           "tensor %s: data_dtype cannot be used with param, first_elem or "
                           "is_transposed; give either a parameter or data of your own",
                           map->name);
    }
    return SHERD_OK;
}

static sherd_status map_check(const sherdi_weights_model *model, const sherd_tensor_map *map)
{
    sherdi_weights_param param;
    size_t               number, end;

    if (map->name == NULL) {
        return sherdi_fail(SHERD_E_INVAL, "a sherd_tensor_map has no name");
    }
    SHERDI_TRY(shape_check(map));
    SHERDI_TRY(data_check(map));
    if (map->param == NULL) {
        return SHERD_OK;
    }
    if (!model->find(model->ctx, map->param, &number)) {
        return sherdi_fail(SHERD_E_INVAL, "tensor %s: the model has no parameter %s", map->name,
                           map->param);
    }
    param = model->get(model->ctx, number);
    if (!sherdi_add_fits(map->first_elem, sherdi_weights_map_elems(map), &end) ||
        end > param.elems) {
        return sherdi_fail(SHERD_E_INVAL,
                           "tensor %s: %zu elements from %zu on are not in parameter %s, which has "
                           "%zu",
                           map->name, sherdi_weights_map_elems(map), map->first_elem, map->param,
                           param.elems);
    }
    return SHERD_OK;
}

static void map_of_param(const sherdi_weights_param *param, sherd_tensor_map *out)
{
    sherd_tensor_map_init(out);
    out->name  = param->name;
    out->param = param->name;
    out->ndim  = param->ndim;
    for (int i = 0; i < param->ndim; i++) {
        out->shape[i] = param->shape[i];
    }
}

static sherd_status maps_copy(const sherdi_weights_model *model, const sherd_tensor_map *given,
                              sherdi_weights_maps *out)
{
    for (size_t i = 0; i < out->num_tensors; i++) {
        sherd_tensor_map *map  = &out->tensors[i];
        const char       *from = (const char *)given + i * given->struct_size;

        sherd_tensor_map_init(map);
        SHERDI_TRY(sherdi_api_read(from, SHERDI_API_WITH(sherd_tensor_map, shape), map));
        if (map->struct_size != given->struct_size) {
            return sherdi_fail(SHERD_E_INVAL,
                               "sherd_tensor_map %zu of an array has the struct_size %zu, and the "
                               "first one %zu",
                               i, map->struct_size, given->struct_size);
        }
        map->struct_size = sizeof(*map);
        SHERDI_TRY(map_check(model, map));
    }
    return SHERD_OK;
}

sherd_status sherdi_weights_maps_open(sherdi_mem *mem, const sherdi_weights_model *model,
                                      const sherd_tensor_map *given, size_t num_given,
                                      sherdi_weights_maps *out)
{
    sherd_status status = SHERD_OK;

    out->num_tensors = given != NULL ? num_given : model->num_params;
    out->tensors = sherdi_alloc_array(mem, SHERDI_MEM_CONTROL, out->num_tensors, sizeof(*given));
    if (out->tensors == NULL) {
        return SHERD_E_NOMEM;
    }
    if (given == NULL) {
        for (size_t i = 0; i < out->num_tensors; i++) {
            const sherdi_weights_param param = model->get(model->ctx, i);

            map_of_param(&param, &out->tensors[i]);
        }
    } else if (num_given > 0) {
        status = sherdi_api_check(given, SHERDI_API_WITH(sherd_tensor_map, shape));
        status = status == SHERD_OK ? maps_copy(model, given, out) : status;
    }
    if (status != SHERD_OK) {
        sherdi_weights_maps_close(out);
    }
    return status;
}

void sherdi_weights_maps_close(sherdi_weights_maps *maps)
{
    sherdi_free(maps->tensors);
    *maps = (sherdi_weights_maps){0};
}
