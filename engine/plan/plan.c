/* Makes and destroys a plan as a whole. See plan.h for the reading order. */
#include "engine/plan/plan.h"
#include "engine/modules.h"

#include "base/checked.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

static int is_exact_from(sherd_dtype to, sherd_dtype from)
{
    return to == from || to == SHERD_F32;
}

/* The types that gradients have on their way (docs/numerics.md). Gradients of wide parameters (fp32
 * in an engine with another compute type) stay fp32, unless the configuration names a communication
 * type. */
static sherdi_types types_of(const sherdi_plan *plan, sherd_dtype compute)
{
    const sherdi_settings *settings = &plan->settings;
    int                    is_wide  = compute != settings->numerics.compute_dtype;
    sherd_dtype            sum      = is_wide ? compute : settings->numerics.accum_dtype;
    sherdi_types           types    = {.compute = compute, .comm = compute, .wire = compute};
    sherd_dtype            made_in  = compute;

    if (plan->layout.is_deterministic) {
        types.grad = SHERD_F32; /* converted from the integers for an update */
        return types;
    }
    types.comm =
        is_wide && !settings->numerics.has_comm_dtype ? compute : settings->numerics.comm_dtype;
    if (settings->sharding.stage >= 2) {
        types.grad = sherdi_settings_add_up(settings) ? sum : types.comm;
    } else {
        types.grad = plan->layout.has_accumulator ? sum : compute;
        made_in    = types.grad;
    }
    /* an all-reduce returns as many bytes as it sends */
    types.wire =
        settings->sharding.stage > 0 && is_exact_from(types.comm, made_in) ? made_in : types.comm;
    return types;
}

static sherd_status types_choose(sherdi_plan *plan)
{
    const sherdi_settings *settings = &plan->settings;

    plan->layout.types = types_of(plan, settings->numerics.compute_dtype);
    plan->layout.wide  = types_of(plan, SHERD_F32);
    if (!is_exact_from(plan->layout.types.grad, plan->layout.types.comm)) {
        return sherdi_fail(SHERD_E_NOTSUP,
                           "gradients are sent as %s, which data_types.grad_accum_dtype %s cannot "
                           "hold exactly; set it to fp32 or to the communication type",
                           sherd_dtype_name(plan->layout.types.comm),
                           sherd_dtype_name(plan->layout.types.grad));
    }
    return SHERD_OK;
}

/* Decides how gradients are made and reduced. */
static void ways_choose(sherdi_plan *plan)
{
    const sherdi_settings *settings = &plan->settings;

    plan->layout.is_sliced         = settings->sharding.stage >= 1;
    plan->layout.is_deterministic  = settings->numerics.deterministic;
    plan->layout.has_slices        = settings->sharding.stage >= 2 || plan->layout.is_deterministic;
    plan->schedule.publishes_early = plan->machine.is_on_lane;
    plan->layout.has_accumulator =
        !plan->layout.is_deterministic &&
        (sherdi_settings_add_up(settings) ||
         (settings->sharding.stage < 2 &&
          settings->numerics.comm_dtype != settings->numerics.compute_dtype));
    plan->layout.has_transient = plan->layout.has_slices || plan->layout.has_accumulator;
}

static void buffers_name(sherdi_plan *plan)
{
    static const sherdi_plan_buffer BUFFERS[SHERDI_BUFFERS] = {
        [SHERDI_BUFFER_PARAMS]    = {.name      = "parameters",
                                     .purpose   = SHERDI_MEM_PARAMS,
                                     .is_shared = 1},
        [SHERDI_BUFFER_GRADS]     = {.name = "gradients", .purpose = SHERDI_MEM_GRADS},
        [SHERDI_BUFFER_STATE]     = {.name = "optimizer state", .purpose = SHERDI_MEM_STATE},
        [SHERDI_BUFFER_GATHER]    = {.name = "gathered units", .purpose = SHERDI_MEM_GATHER},
        [SHERDI_BUFFER_TRANSIENT] = {.name    = "transient gradients",
                                     .purpose = SHERDI_MEM_TRANSIENT},
        [SHERDI_BUFFER_STAGING]   = {.name      = "staging",
                                     .purpose   = SHERDI_MEM_STAGING,
                                     .is_shared = 1},
        [SHERDI_BUFFER_SCALARS]   = {.name = "scalars of kernels", .purpose = SHERDI_MEM_STAGING},
        [SHERDI_BUFFER_HOST_SCALARS] = {.name      = "scalars of kernels",
                                        .purpose   = SHERDI_MEM_HOST_STAGING,
                                        .is_host   = 1,
                                        .is_pinned = 1},
        [SHERDI_BUFFER_FILL]         = {.name = "first values", .purpose = SHERDI_MEM_STAGING},
    };
    sherdi_plan_buffer *buffers = plan->packing.buffers;

    memcpy(buffers, BUFFERS, sizeof(BUFFERS));
    buffers[SHERDI_BUFFER_GRADS].is_shared     = !plan->layout.has_slices;
    buffers[SHERDI_BUFFER_TRANSIENT].is_shared = plan->layout.has_slices;
    if (plan->machine.has_device) { /* where the trainer gives them */
        buffers[SHERDI_BUFFER_FILL]      = buffers[SHERDI_BUFFER_HOST_SCALARS];
        buffers[SHERDI_BUFFER_FILL].name = BUFFERS[SHERDI_BUFFER_FILL].name;
    }
}

const sherdi_plan_optimizer *sherdi_plan_optimizer_of(const sherdi_plan      *plan,
                                                      const sherdi_optimizer *optimizer)
{
    size_t i = 0;

    while (plan->layout.optimizers[i].optimizer != optimizer) {
        i++;
        assert(i < plan->layout.num_optimizers);
    }
    return &plan->layout.optimizers[i];
}

/* Lays out the coefficients of all optimizers behind the results of kernels. */
static void coeffs_lay_out(sherdi_plan *plan, const sherdi_model *model)
{
    size_t at = plan->scalars.results_bytes;

    plan->scalars.inputs = at;
    for (size_t i = 0; i < plan->layout.num_optimizers; i++) {
        plan->layout.optimizers[i].coeffs = at;
        at += sherdi_round_up(model->num_groups * plan->layout.optimizers[i].optimizer->coeff_bytes,
                              i + 1 == plan->layout.num_optimizers ? 1 : sizeof(double));
    }
    plan->scalars.shared_bytes = at;
}

static void scalars_size(sherdi_plan *plan)
{
    sherdi_plan_scalars *scalars = &plan->scalars;

    scalars->shared_bytes = sherdi_round_up(scalars->shared_bytes, 64);
    scalars->spans        = scalars->shared_bytes;
    scalars->bytes        = scalars->shared_bytes;
    if (plan->machine.has_device) {
        scalars->bytes += plan->layout.num_spans * sizeof(sherdi_span);
        /* the host's own scalars, and the results that come down from the device */
        plan->packing.buffers[SHERDI_BUFFER_HOST_SCALARS].bytes =
            sherdi_round_up(scalars->shared_bytes + scalars->results_bytes, SHERD_ALIGN_BYTES);
    }
    if (plan->machine.has_device || sherdi_plan_is_measured(plan)) {
        plan->packing.buffers[SHERDI_BUFFER_SCALARS].bytes =
            sherdi_round_up(scalars->bytes, SHERD_ALIGN_BYTES);
    }
}

static sherd_status plan_make(sherdi_plan *plan, const sherdi_model *model)
{
    ways_choose(plan);
    SHERDI_TRY(types_choose(plan));
    buffers_name(plan);
    plan->layout.num_params = model->num_params;
    plan->layout.num_units  = model->num_units;
    plan->layout.params     = sherdi_alloc_array(plan->mem, SHERDI_MEM_CONTROL, model->num_params,
                                                 sizeof(*plan->layout.params));
    plan->layout.units      = sherdi_alloc_array(plan->mem, SHERDI_MEM_CONTROL, model->num_units,
                                                 sizeof(*plan->layout.units));
    if (plan->layout.params == NULL || plan->layout.units == NULL) {
        return SHERD_E_NOMEM;
    }
    plan->scalars.results_bytes = sizeof(sherdi_scalars_head);
    SHERDI_TRY(sherdi_plan_lay_out(plan, model));
    coeffs_lay_out(plan, model);
    SHERDI_TRY(sherdi_plan_schedule_make(plan, model));
    SHERDI_TRY(sherdi_modules_lay_out(plan, model));
    scalars_size(plan);
    SHERDI_TRY(sherdi_plan_pack(plan, model));
    for (int b = 0; b < SHERDI_BUFFERS; b++) {
        const sherdi_plan_buffer *buffer = &plan->packing.buffers[b];

        plan->packing.total_bytes += buffer->bytes;
        plan->packing.host_bytes += buffer->is_host ? buffer->bytes : 0;
        plan->packing.pinned_bytes += buffer->is_pinned ? buffer->bytes : 0;
    }
    return SHERD_OK;
}

sherd_status sherdi_plan_create(const sherdi_model *model, const sherdi_settings *settings,
                                int rank, int world_size, const sherdi_machine *machine,
                                sherdi_mem *mem, sherdi_plan **out)
{
    sherdi_plan *plan = sherdi_alloc(mem, SHERDI_MEM_CONTROL, sizeof(*plan));
    sherd_status status;

    if (plan == NULL) {
        return SHERD_E_NOMEM;
    }
    plan->mem          = mem;
    plan->settings     = *settings;
    plan->machine      = *machine;
    plan->world_size   = sherdi_shard_ranks(settings, world_size);
    plan->rank         = rank % plan->world_size;
    plan->replica      = rank / plan->world_size;
    plan->num_replicas = world_size / plan->world_size;
    status             = plan_make(plan, model);
    if (status != SHERD_OK) {
        sherdi_plan_destroy(plan);
        return status;
    }
    *out = plan;
    return SHERD_OK;
}

void sherdi_plan_destroy(sherdi_plan *plan)
{
    if (plan == NULL) {
        return;
    }
    sherdi_free(plan->layout.params);
    sherdi_free(plan->layout.units);
    sherdi_free(plan->layout.segments);
    sherdi_free(plan->layout.unit_segments);
    sherdi_free(plan->layout.optimizers);
    sherdi_free(plan->layout.blocks);
    sherdi_free(plan->layout.spans);
    for (int ring = 0; ring < SHERDI_RINGS; ring++) {
        sherdi_free(plan->rings[ring].extents);
    }
    sherdi_modules_plan_destroyed(plan);
    sherdi_free(plan->schedule.train.steps);
    sherdi_free(plan->schedule.train.live_ranges.items);
    sherdi_free(plan->schedule.eval.steps);
    sherdi_free(plan->schedule.eval.live_ranges.items);
    sherdi_free(plan->schedule.transients.items);
    sherdi_free(plan->schedule.lasting.items);
    sherdi_free(plan->moves);
    sherdi_free(plan);
}
