/* Scalars: the small data of kernels. Kernels read coefficients, spans and ratios, and add to
 * norms, counts and fingerprints. The engine has one set if the device's memory is the host's;
 * otherwise each side has one (scalars_device.c). */
#include "engine/run/scalars.h"

#include "engine/run/engine_impl.h"

sherdi_scalars sherdi_scalars_at(const sherdi_plan *plan, unsigned char *memory)
{
    return (sherdi_scalars){
        .memory = memory,
        .head   = (sherdi_scalars_head *)(void *)memory,
        .norms  = (sherdi_norm_acc *)(void *)(memory + sizeof(sherdi_scalars_head)),
        .spans  = plan->layout.spans,
    };
}

sherd_status sherdi_scalars_open(sherd_engine *engine)
{
    const sherdi_plan *plan   = engine->plan;
    unsigned char     *memory = engine->memory.buffers[SHERDI_BUFFER_SCALARS];

    if (plan->packing.buffers[SHERDI_BUFFER_SCALARS].bytes == 0) {
        engine->kernel_data.own =
            sherdi_alloc(&engine->mem, SHERDI_MEM_CONTROL, plan->scalars.shared_bytes);
        if (engine->kernel_data.own == NULL) {
            return SHERD_E_NOMEM;
        }
        memory = engine->kernel_data.own;
    }
    engine->kernel_data.device  = sherdi_scalars_at(plan, memory);
    engine->kernel_data.on_host = engine->kernel_data.device;
    return SHERDI_IF(kernel_data, open, (engine), SHERD_OK);
}

void sherdi_scalars_close(sherd_engine *engine)
{
    sherdi_free(engine->kernel_data.own);
    engine->kernel_data.own     = NULL;
    engine->kernel_data.device  = (sherdi_scalars){0};
    engine->kernel_data.on_host = (sherdi_scalars){0};
}

void sherdi_kernel_collect(sherd_engine *engine, const sherdi_backend *lane, const sherdi_op *op)
{
    const sherdi_scalars_head *host = engine->kernel_data.on_host.head;
    sherdi_scalars_head       *out  = &engine->kernel_data.results;

    (void)lane;
    if (op->uses[SHERDI_USE_SCALARS].bytes < engine->plan->scalars.results_bytes) {
        out->fingerprint = host->fingerprint + SHERDI_IF(kernel_data, fingerprint, (engine), 0);
        return;
    }
    *out = *host;
    SHERDI_IF(kernel_data, add, (engine, out), (void)0);
    sherdi_norm_normalise(&out->norm);
    for (size_t i = 0; i < sherdi_scalars_norms(engine->plan); i++) {
        sherdi_norm_normalise(&engine->kernel_data.on_host.norms[i]);
    }
}
