/* Exports a checkpoint's weights to files that other programs read. weights_write.c writes them, as
 * it does for an engine. */
#include "engine/checkpoint/tools.h"
#include "engine/checkpoint/export.h"
#include "engine/checkpoint/weights.h"

#include "base/api.h"

static sherdi_weights_param model_get(const void *ctx, size_t param)
{
    const sherd_checkpoint      *c = ctx;
    const sherdi_manifest_param *p = &sherdi_reader_manifest(c->reader)->params[param];

    return sherdi_weights_param_of(p->name, p->ndim, p->shape, p->elems);
}

static int model_find(const void *ctx, const char *name, size_t *param_out)
{
    const sherd_checkpoint *c = ctx;

    return sherdi_weights_found(sherdi_reader_find_param(c->reader, name), param_out);
}

static sherd_status values_read(void *ctx, const char *param, const char *value, size_t first_elem,
                                size_t count_elems, float *out)
{
    return sherd_checkpoint_read(ctx, param, value == NULL ? SHERD_MASTER : value, first_elem,
                                 count_elems, out);
}

static sherd_status export_run(sherd_checkpoint *c, const char *path,
                               const sherd_export_params *params, const sherdi_weights_maps *maps)
{
    const sherdi_weights_source  source  = {.ctx = c, .is_writer = 1, .read = values_read};
    const sherdi_weights_writing writing = {.mem            = &c->mem,
                                            .source         = &source,
                                            .tensors        = maps->tensors,
                                            .num_tensors    = maps->num_tensors,
                                            .dtype          = params->dtype,
                                            .max_file_bytes = params->max_file_bytes,
                                            .progress       = params->progress,
                                            .progress_ctx   = params->progress_ctx};

    for (size_t i = 0; i < maps->num_tensors; i++) {
        if (maps->tensors[i].param == NULL) {
            return sherdi_fail(SHERD_E_INVAL,
                               "sherd_checkpoint_export: tensor %s is of no parameter",
                               maps->tensors[i].name);
        }
    }
    return sherdi_weights_write(path, &writing);
}

sherd_status sherd_checkpoint_export(sherd_checkpoint *checkpoint, const char *path,
                                     const sherd_export_params *params)
{
    sherd_export_params  given;
    sherdi_weights_maps  maps = {0};
    sherdi_weights_model model;
    sherd_status         status;

    SHERDI_TRY(sherdi_api_need(checkpoint != NULL, "sherd_checkpoint_export", "the checkpoint"));
    SHERDI_TRY(sherdi_api_need(path != NULL, "sherd_checkpoint_export", "path"));
    SHERDI_TRY(sherdi_export_params_read(params, &given));
    model = (sherdi_weights_model){.ctx        = checkpoint,
                                   .num_params = checkpoint->info.num_params,
                                   .get        = model_get,
                                   .find       = model_find};
    SHERDI_TRY(sherdi_weights_maps_open(&checkpoint->mem, &model, given.tensors, given.num_tensors,
                                        &maps));
    status = export_run(checkpoint, path, &given, &maps);
    sherdi_weights_maps_close(&maps);
    return status;
}
