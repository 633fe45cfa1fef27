/* Scalars: the small data of kernels. Kernels read coefficients, spans and ratios, and add to
 * norms, counts and fingerprints. The engine has one set if the device's memory is the host's;
 * otherwise each side has one. All sums are integers, so the result is the sum of both sides. */
#include "engine/run/scalars.h"

#include "engine/run/engine_impl.h"
#include "engine/run/lanes.h"

static sherdi_scalars scalars_at(const sherdi_plan *plan, unsigned char *memory)
{
    const sherdi_plan_scalars *at = &plan->scalars;

    return (sherdi_scalars){
        .memory = memory,
        .head   = (sherdi_scalars_head *)(void *)(memory + at->head),
        .norms  = (sherdi_norm_acc *)(void *)(memory + at->norms),
        .spans  = plan->layout.spans,
    };
}

sherdi_optimizer_scalars sherdi_scalars_of_optimizer(const sherdi_scalars        *scalars,
                                                     const sherdi_plan_optimizer *of)
{
    return (sherdi_optimizer_scalars){
        .norms  = (sherdi_norm_acc *)(void *)(scalars->memory + of->norms),
        .coeffs = scalars->memory + of->coeffs,
        .ratios = (float *)(void *)(scalars->memory + of->ratios),
        .groups = (int32_t *)(void *)(scalars->memory + of->groups),
    };
}

static size_t num_norms(const sherdi_plan *plan)
{
    return (plan->scalars.results_bytes - plan->scalars.norms) / sizeof(sherdi_norm_acc);
}

/* Where the device's results arrive in host memory. */
static unsigned char *down_area(const sherd_engine *engine)
{
    return engine->memory.buffers[SHERDI_BUFFER_HOST_SCALARS] + engine->plan->scalars.shared_bytes;
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
    engine->kernel_data.device  = scalars_at(plan, memory);
    engine->kernel_data.on_host = engine->kernel_data.device;
    if (sherdi_has_device(engine)) {
        engine->kernel_data.on_host =
            scalars_at(plan, engine->memory.buffers[SHERDI_BUFFER_HOST_SCALARS]);
        engine->kernel_data.device.spans =
            (const sherdi_span *)(const void *)(memory + plan->scalars.spans);
        sherdi_space_put(engine, SHERDI_SPACE_DEVICE, memory + plan->scalars.spans,
                         plan->layout.spans, plan->layout.num_spans * sizeof(*plan->layout.spans));
        SHERDI_TRY(sherdi_lane_wait(engine->backend));
    }
    return SHERD_OK;
}

void sherdi_scalars_close(sherd_engine *engine)
{
    sherdi_free(engine->kernel_data.own);
    engine->kernel_data.own     = NULL;
    engine->kernel_data.device  = (sherdi_scalars){0};
    engine->kernel_data.on_host = (sherdi_scalars){0};
}

/* ----------------------------------------------------------------- results -- */

/* Adds the device's results, which have come down, to those of the host's kernels. */
static void arrived_add(sherd_engine *engine, sherdi_scalars_head *out)
{
    const sherdi_scalars down = scalars_at(engine->plan, down_area(engine));

    sherdi_norm_merge(&out->norm, &down.head->norm);
    out->counts.nonfinite += down.head->counts.nonfinite;
    out->counts.out_of_range += down.head->counts.out_of_range;
    out->fingerprint += down.head->fingerprint;
    for (size_t i = 0; i < num_norms(engine->plan); i++) {
        sherdi_norm_merge(&engine->kernel_data.on_host.norms[i], &down.norms[i]);
    }
}

void sherdi_scalars_collect(sherd_engine *engine, sherdi_scalars_head *out)
{
    *out = *engine->kernel_data.on_host.head;
    if (sherdi_has_device(engine)) {
        arrived_add(engine, out);
    }
    sherdi_norm_normalise(&out->norm);
    for (size_t i = 0; i < num_norms(engine->plan); i++) {
        sherdi_norm_normalise(&engine->kernel_data.on_host.norms[i]);
    }
}

uint64_t sherdi_scalars_fingerprint(const sherd_engine *engine)
{
    uint64_t own = engine->kernel_data.on_host.head->fingerprint;

    return sherdi_has_device(engine)
               ? own + scalars_at(engine->plan, down_area(engine)).head->fingerprint
               : own;
}
