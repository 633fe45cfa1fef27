/* The API's calls that export weights of an engine to files. weights_write.c writes the files. */
#include "engine/checkpoint/export.h"

#include "engine/run/agree.h"
#include "engine/run/blocks.h"
#include "engine/run/failure.h"
#include "engine/run/needs.h"

void sherd_export_params_init(sherd_export_params *params)
{
    sherdi_api_init(params,
                    &(sherd_export_params){.struct_size = sizeof(*params), .dtype = SHERD_F32});
}

/* ---- an engine as a model of maps, and as a source ---- */

static sherdi_weights_param model_get(const void *ctx, size_t param)
{
    const sherdi_model_param *p = &((const sherdi_model *)ctx)->params[param];

    return sherdi_weights_param_of(p->name, p->ndim, p->shape, p->elems);
}

static int model_find(const void *ctx, const char *name, size_t *param_out)
{
    const sherdi_model *model = ctx;

    return sherdi_weights_found(sherdi_names_find(&model->param_names, name), param_out);
}

sherdi_weights_model sherdi_weights_model_of(const sherd_engine *engine)
{
    return (sherdi_weights_model){.ctx        = &engine->model,
                                  .num_params = engine->model.num_params,
                                  .get        = model_get,
                                  .find       = model_find};
}

sherd_value sherdi_weights_value_of(const sherd_engine *engine, int param, const char *value)
{
    return value != NULL                           ? value
           : engine->model.params[param].is_frozen ? SHERD_COMPUTE
                                                   : SHERD_MASTER;
}

static sherd_status engine_read(void *ctx, const char *name, const char *value, size_t first_elem,
                                size_t count_elems, float *out)
{
    sherd_engine *engine = ctx;
    int           param  = (int)sherdi_names_find(&engine->model.param_names, name);

    return sherd_param_read(engine, param, sherdi_weights_value_of(engine, param, value),
                            first_elem, count_elems, out);
}

/* Calls sherdi_agree_status with the world of the engine `ctx`. Collective. */
static sherd_status ranks_agree(void *ctx, sherd_status own)
{
    sherd_engine *engine = ctx;

    return sherdi_agree_status(engine, own);
}

/* ---- the calls ---- */

sherd_status sherdi_export_params_read(const sherd_export_params *params, sherd_export_params *out)
{
    sherd_export_params_init(out);
    SHERDI_TRY(sherdi_api_read(params, SHERDI_API(sherd_export_params), out));
    return sherd_dtype_bytes(out->dtype) != 0
               ? SHERD_OK
               : sherdi_fail(SHERD_E_INVAL, "sherd_export_params.dtype is %d, which is not a type",
                             (int)out->dtype);
}

static sherd_status kind_check(const sherd_tensor_map *map, int is_raw)
{
    if (is_raw && map->data_dtype != NULL) {
        return sherdi_fail(
            SHERD_E_INVAL,
            "tensor %s: data_dtype is for files of safetensors; in a file of another "
            "format all tensors have the type of sherd_export_params.dtype, so "
            "leave data_dtype NULL",
            map->name);
    }
    return is_raw || map->param != NULL || map->data_dtype != NULL
               ? SHERD_OK
               : sherdi_fail(
                     SHERD_E_INVAL,
                     "a tensor of a safetensors file needs param or data_dtype; only files of "
                     "other formats can do without both");
}

/* Makes the checks that a rank can make by itself, before the ranks agree. If it returns OK, the
 * maps are open. */
static sherd_status export_begin(sherd_engine *engine, const char *call, const char *path,
                                 int is_raw, const sherd_export_params *given,
                                 sherd_export_params *params, sherdi_weights_maps *maps)
{
    const sherdi_weights_model model  = sherdi_weights_model_of(engine);
    sherd_status               status = SHERD_OK;

    SHERDI_TRY(sherdi_engine_need(engine, call, SHERDI_NEED_RELEASED));
    SHERDI_TRY(sherdi_api_need(path != NULL, call, "path"));
    SHERDI_TRY(sherdi_export_params_read(given, params));
    SHERDI_TRY(
        sherdi_weights_maps_open(&engine->mem, &model, params->tensors, params->num_tensors, maps));
    for (size_t i = 0; i < maps->num_tensors && status == SHERD_OK; i++) {
        status = kind_check(&maps->tensors[i], is_raw);
    }
    if (status != SHERD_OK) {
        sherdi_weights_maps_close(maps);
    }
    return status;
}

/* An export with a progress callback. */
typedef struct export_progress {
    sherd_engine              *engine;
    const char                *call;
    const sherd_export_params *params;
} export_progress;

static void progress_report(void *ctx, uint64_t done_bytes, uint64_t all_bytes)
{
    const export_progress *x = ctx;

    sherdi_engine_progress(x->engine, x->call, x->params->progress, x->params->progress_ctx,
                           done_bytes, all_bytes);
}

static sherd_status export_run(sherd_engine *engine, const char *call, const char *path,
                               const void *header, size_t header_bytes,
                               const sherd_export_params *given)
{
    const sherdi_weights_source source = {
        .ctx = engine, .is_writer = engine->rank == 0, .read = engine_read, .agree = ranks_agree};
    export_progress        shown = {.engine = engine, .call = call};
    sherdi_weights_maps    maps  = {0};
    sherd_export_params    params;
    sherdi_weights_writing writing;
    sherd_status           status = sherdi_agree_status(
                  engine, export_begin(engine, call, path, header != NULL, given, &params, &maps));

    if (status == SHERD_OK) {
        shown.params = &params;
        writing      = (sherdi_weights_writing){.mem              = &engine->mem,
                                                .source           = &source,
                                                .tensors          = maps.tensors,
                                                .num_tensors      = maps.num_tensors,
                                                .dtype            = params.dtype,
                                                .max_file_bytes   = params.max_file_bytes,
                                                .raw_header       = header,
                                                .raw_header_bytes = header_bytes,
                                                .progress         = progress_report,
                                                .progress_ctx     = &shown};
        status       = sherdi_weights_write(path, &writing);
    }
    sherdi_weights_maps_close(&maps);
    return status;
}

sherd_status sherd_export_safetensors(sherd_engine *engine, const char *path,
                                      const sherd_export_params *params)
{
    static const char CALL[] = "sherd_export_safetensors";

    SHERDI_TRY(sherdi_engine_need(engine, CALL, SHERDI_NEED_SEALED));
    return export_run(engine, CALL, path, NULL, 0, params);
}

sherd_status sherd_export_raw(sherd_engine *engine, const char *path, const void *header,
                              size_t header_bytes, const sherd_export_params *params)
{
    static const char CALL[] = "sherd_export_raw";

    SHERDI_TRY(sherdi_engine_need(engine, CALL, SHERDI_NEED_SEALED));
    SHERDI_TRY(sherdi_api_need(header != NULL || header_bytes == 0, CALL, "header"));
    return export_run(engine, CALL, path, header == NULL ? "" : header, header_bytes, params);
}
