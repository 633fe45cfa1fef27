/* Scalars: the small data of kernels. Kernels read coefficients, spans and ratios, and add to norms, counts and fingerprints.
 * There is one set if the device's memory is the host's; otherwise each side has one. All sums are integers, so the result is the
 * sum of both sides. */
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
        .spans  = plan->spans,
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

/* Where the device's results arrive in host memory. */
static unsigned char *down_area(const sherd_engine *engine)
{
    return engine->memory.buffers[SHERDI_BUFFER_HOST_SCALARS] + engine->plan->scalars.shared_bytes;
}

static void groups_write(sherd_engine *engine, const sherdi_plan_optimizer *of)
{
    const sherdi_optimizer *optimizer = of->optimizer;
    int32_t                *groups    = sherdi_scalars_of_optimizer(&engine->on_host, of).groups;

    if (optimizer->grain != SHERDI_GRAIN_TENSOR) {
        return;
    }
    for (size_t p = 0; p < engine->plan->num_params; p++) {
        const sherdi_model_param *param = &engine->model.params[p];
        const sherdi_model_group *group = &engine->model.groups[param->group];

        groups[p] = sherdi_group_optimizer(&engine->settings, group) == optimizer &&
                            optimizer->has_ratio(&engine->settings, group, param)
                        ? param->group
                        : -1;
    }
}

sherd_status sherdi_scalars_open(sherd_engine *engine)
{
    const sherdi_plan *plan   = engine->plan;
    unsigned char     *memory = engine->memory.buffers[SHERDI_BUFFER_SCALARS];

    if (plan->buffers[SHERDI_BUFFER_SCALARS].bytes == 0) {
        engine->scalars_own =
            sherdi_alloc(&engine->mem, SHERDI_MEM_CONTROL, plan->scalars.shared_bytes);
        if (engine->scalars_own == NULL) {
            return SHERD_E_NOMEM;
        }
        memory = engine->scalars_own;
    }
    engine->device  = scalars_at(plan, memory);
    engine->on_host = engine->device;
    if (sherdi_has_device(engine)) {
        engine->on_host      = scalars_at(plan, engine->memory.buffers[SHERDI_BUFFER_HOST_SCALARS]);
        engine->device.spans = (const sherdi_span *)(const void *)(memory + plan->scalars.spans);
        sherdi_space_put(engine, SHERDI_SPACE_DEVICE, memory + plan->scalars.spans, plan->spans,
                         plan->num_spans * sizeof(*plan->spans));
        SHERDI_TRY(sherdi_lane_wait(engine->backend));
    }
    for (size_t i = 0; i < plan->num_optimizers; i++) {
        groups_write(engine, &plan->optimizers[i]);
    }
    return SHERD_OK;
}

void sherdi_scalars_close(sherd_engine *engine)
{
    sherdi_free(engine->scalars_own);
    engine->scalars_own = NULL;
    engine->device      = (sherdi_scalars){0};
    engine->on_host     = (sherdi_scalars){0};
}

void sherdi_scalars_tell(sherd_engine *engine)
{
    const sherdi_plan_scalars *at = &engine->plan->scalars;

    if (sherdi_has_device(engine)) {
        engine->lanes.update->kernels->copy(engine->lanes.update, engine->device.memory + at->told,
                                            engine->on_host.memory + at->told,
                                            at->shared_bytes - at->told);
    }
}

/* Adds the device's results to those of the host's kernels. */
static void down_add(sherd_engine *engine, sherdi_scalars_head *out)
{
    const sherdi_plan_scalars *at   = &engine->plan->scalars;
    const sherdi_scalars       down = scalars_at(engine->plan, down_area(engine));

    sherdi_norm_merge(&out->norm, &down.head->norm);
    out->counts.nonfinite += down.head->counts.nonfinite;
    out->counts.out_of_range += down.head->counts.out_of_range;
    out->fingerprint += down.head->fingerprint;
    for (size_t i = 0; i < (at->results_bytes - at->norms) / sizeof(*down.norms); i++) {
        sherdi_norm_merge(&engine->on_host.norms[i], &down.norms[i]);
    }
}

sherd_status sherdi_scalars_read(sherd_engine *engine, sherdi_scalars_head *out)
{
    if (sherdi_has_device(engine)) {
        engine->lanes.update->kernels->copy(engine->lanes.update, down_area(engine),
                                            engine->device.head,
                                            engine->plan->scalars.results_bytes);
        SHERDI_TRY(sherdi_lane_wait(engine->lanes.update));
    }
    *out = *engine->on_host.head;
    if (sherdi_has_device(engine)) {
        down_add(engine, out);
    }
    sherdi_norm_normalise(&out->norm);
    return SHERD_OK;
}

void sherdi_scalars_send(sherd_engine *engine)
{
    size_t offset = offsetof(sherdi_scalars_head, fingerprint);

    engine->fingerprints.own     = engine->on_host.head->fingerprint;
    engine->fingerprints.has_own = 0;
    engine->fingerprints.is_sent = 1;
    engine->lanes.update->kernels->copy(engine->lanes.update, down_area(engine) + offset,
                                        (const unsigned char *)engine->device.head + offset,
                                        sizeof(uint64_t));
    engine->backend->device->event_record(engine->run.sent, engine->lanes.update);
}

sherd_status sherdi_scalars_sent(sherd_engine *engine, uint64_t *out)
{
    const sherdi_scalars down = scalars_at(engine->plan, down_area(engine));

    engine->fingerprints.is_sent = 0;
    SHERDI_TRY(engine->backend->device->event_wait(engine->run.sent));
    *out = engine->fingerprints.own + down.head->fingerprint;
    return SHERD_OK;
}
