/* See api.h. An earlier version of a struct ended after one of the present fields. Its size was the
 * end of that field, rounded up to the alignment of struct_size. Every multiple of that alignment
 * is an end of a field, except those inside an array. */
#include "base/api.h"
#include "sherd_tools.h"

#include <string.h>

typedef struct api_shape {
    const char *name;
    size_t      bytes;
    size_t      array_at; /* the one array, if any: no struct has two */
    size_t      array_bytes;
} api_shape;

#define SHAPE(type)                                                                                \
    {                                                                                              \
        .name = #type, .bytes = sizeof(type)                                                       \
    }

static const api_shape SHAPES[SHERDI_API_STRUCTS] = {
    [SHERDI_API_WORLD_PARAMS]      = SHAPE(sherd_world_params),
    [SHERDI_API_SIMULATE_PARAMS]   = SHAPE(sherd_simulate_params),
    [SHERDI_API_SETTINGS]          = SHAPE(sherd_settings),
    [SHERDI_API_GROUP_PARAMS]      = SHAPE(sherd_group_params),
    [SHERDI_API_UNIT_PARAMS]       = SHAPE(sherd_unit_params),
    [SHERDI_API_PARAM_PARAMS]      = {.name        = "sherd_param_params",
                                      .bytes       = sizeof(sherd_param_params),
                                      .array_at    = offsetof(sherd_param_params, shape),
                                      .array_bytes = sizeof(((sherd_param_params *)0)->shape)},
    [SHERDI_API_STEP_PARAMS]       = SHAPE(sherd_step_params),
    [SHERDI_API_STEP_REPORT]       = SHAPE(sherd_step_report),
    [SHERDI_API_MEMORY_REPORT]     = SHAPE(sherd_memory_report),
    [SHERDI_API_TRAFFIC_REPORT]    = SHAPE(sherd_traffic_report),
    [SHERDI_API_ENGINE_INFO]       = SHAPE(sherd_engine_info),
    [SHERDI_API_RATES]             = SHAPE(sherd_rates),
    [SHERDI_API_PREDICTION]        = SHAPE(sherd_prediction),
    [SHERDI_API_SAVE_PARAMS]       = SHAPE(sherd_save_params),
    [SHERDI_API_LOAD_PARAMS]       = SHAPE(sherd_load_params),
    [SHERDI_API_CHECKPOINT_REPORT] = SHAPE(sherd_checkpoint_report),
    [SHERDI_API_TENSOR_MAP]        = {.name        = "sherd_tensor_map",
                                      .bytes       = sizeof(sherd_tensor_map),
                                      .array_at    = offsetof(sherd_tensor_map, shape),
                                      .array_bytes = sizeof(((sherd_tensor_map *)0)->shape)},
    [SHERDI_API_CHECKPOINT_PARAM]  = {.name        = "sherd_checkpoint_param",
                                      .bytes       = sizeof(sherd_checkpoint_param),
                                      .array_at    = offsetof(sherd_checkpoint_param, shape),
                                      .array_bytes = sizeof(((sherd_checkpoint_param *)0)->shape)},
    [SHERDI_API_VERIFY_PARAMS]     = SHAPE(sherd_verify_params),
    [SHERDI_API_EXPORT_PARAMS]     = SHAPE(sherd_export_params),
    [SHERDI_API_IMPORT_PARAMS]     = SHAPE(sherd_import_params),
    [SHERDI_API_BLOB_PARAMS]       = SHAPE(sherd_blob_params),
    [SHERDI_API_EVAL_PARAMS]       = SHAPE(sherd_eval_params),
    [SHERDI_API_ACTIVATION_PARAMS] = SHAPE(sherd_activation_params),
};

static int size_is_known(const api_shape *shape, size_t size)
{
    return size >= sizeof(size) && size <= shape->bytes && size % _Alignof(size_t) == 0 &&
           (size <= shape->array_at || size >= shape->array_at + shape->array_bytes);
}

sherd_status sherdi_api_check(const void *given, sherdi_api_struct which)
{
    const api_shape *shape = &SHAPES[which];
    const size_t    *size  = given;

    if (given == NULL) {
        return sherdi_fail(SHERD_E_INVAL, "%s is NULL", shape->name);
    }
    if (!size_is_known(shape, *size)) {
        return sherdi_fail(
            SHERD_E_INVAL,
            "%s.struct_size is %zu, but this library knows the struct with %zu bytes (or shorter, "
            "of an older version, ending with a field); initialise it with %s_init()",
            shape->name, *size, shape->bytes, shape->name);
    }
    return SHERD_OK;
}

sherd_status sherdi_api_read(const void *given, sherdi_api_struct which, void *whole)
{
    if (given == NULL) {
        return SHERD_OK;
    }
    SHERDI_TRY(sherdi_api_check(given, which));
    memcpy(whole, given, *(const size_t *)given);
    return SHERD_OK;
}

void sherdi_api_write(const void *whole, void *out)
{
    size_t size = *(const size_t *)out;

    memcpy(out, whole, size);
    memcpy(out, &size, sizeof(size));
}

void sherdi_api_init(void *out, const void *defaults)
{
    if (out != NULL) {
        memcpy(out, defaults, *(const size_t *)defaults);
    }
}

sherd_status sherdi_api_need(int is_given, const char *call, const char *what)
{
    return is_given ? SHERD_OK : sherdi_fail(SHERD_E_INVAL, "%s: %s is NULL", call, what);
}

sherd_status sherdi_api_check_out(const void *out, const char *call)
{
    return sherdi_api_need(out != NULL, call, "out");
}

sherd_status sherdi_api_check_flag(int value, const char *what)
{
    return value == 0 || value == 1
               ? SHERD_OK
               : sherdi_fail(SHERD_E_INVAL, "%s is %d; it can be 0 or 1", what, value);
}

sherd_status sherdi_api_check_format(sherd_plan_format format, const char *call)
{
    return format == SHERD_PLAN_TABLE || format == SHERD_PLAN_JSON
               ? SHERD_OK
               : sherdi_fail(
                     SHERD_E_INVAL,
                     "%s: format %d does not exist; give SHERD_PLAN_TABLE or SHERD_PLAN_JSON", call,
                     (int)format);
}
