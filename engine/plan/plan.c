/* Makes, checks and destroys a plan as a whole, and says what would fit if it does not. See plan.h for the reading order. */
#include "engine/plan/plan.h"

#include "base/assert.h"
#include "base/checked.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

static int is_exact_from(sherd_dtype to, sherd_dtype from)
{
    return to == from || to == SHERD_F32;
}

/* The deterministic mode: gradients are sent in the type in which they are made, and are added as integers. */
static sherd_status fixed_choose(sherdi_plan *plan)
{
    const sherdi_settings *settings = &plan->settings;
    uint64_t               global   = (uint64_t)plan->world_size * (uint64_t)settings->accumulation;

    if (settings->comm_dtype != settings->compute_dtype) {
        return sherdi_fail(
            SHERD_E_NOTSUP,
            "\"deterministic\": true sends gradients in the type they are made in, %s; "
            "remove communication_data_type or set it to that",
            sherd_dtype_name(settings->compute_dtype));
    }
    plan->has_transient = 1;
    plan->fixed_shift   = SHERDI_FIXED_BITS;
    while (((uint64_t)1 << (SHERDI_FIXED_BITS - plan->fixed_shift)) < global) {
        plan->fixed_shift--;
    }
    return SHERD_OK;
}

/* Whether the sum of a window's gradients stays on the device and goes down once. */
int sherdi_plan_accumulates_on_device(const sherdi_plan *plan)
{
    const sherdi_settings *settings = &plan->settings;

    return sherdi_settings_add_up(settings) &&
           (settings->accumulate == SHERDI_ACCUMULATE_DEVICE ||
            (settings->accumulate == SHERDI_ACCUMULATE_AUTO && plan->machine.has_device));
}

/* The types that gradients have on their way (docs/numerics.md). Gradients of parameters that are fp32 beside the compute type
 * stay fp32, unless the configuration names a communication type. */
static sherdi_types types_of(const sherdi_plan *plan, sherd_dtype compute)
{
    const sherdi_settings *settings = &plan->settings;
    int                    is_wide  = compute != settings->compute_dtype;
    sherd_dtype            sum      = is_wide ? compute : settings->accum_dtype;
    sherdi_types           types    = {.compute = compute, .comm = compute, .wire = compute};
    sherd_dtype            made_in  = compute;

    if (plan->is_deterministic) {
        types.grad = SHERD_F32; /* converted from the integers for an update */
        return types;
    }
    types.comm = is_wide && !settings->has_comm_dtype ? compute : settings->comm_dtype;
    if (settings->stage >= 2) {
        types.grad = sherdi_settings_add_up(settings) ? sum : types.comm;
    } else {
        types.grad = plan->has_accumulator ? sum : compute;
        made_in    = types.grad;
    }
    /* an all-reduce returns what it sends */
    types.wire = settings->stage > 0 && is_exact_from(types.comm, made_in) ? made_in : types.comm;
    return types;
}

static sherd_status types_choose(sherdi_plan *plan)
{
    const sherdi_settings *settings = &plan->settings;

    plan->types = types_of(plan, settings->compute_dtype);
    plan->wide  = types_of(plan, SHERD_F32);
    if (!is_exact_from(plan->types.grad, plan->types.comm)) {
        return sherdi_fail(SHERD_E_NOTSUP,
                           "gradients are sent as %s, which data_types.grad_accum_dtype %s cannot "
                           "hold exactly; set it to fp32 or to the communication type",
                           sherd_dtype_name(plan->types.comm), sherd_dtype_name(plan->types.grad));
    }
    return SHERD_OK;
}

/* Decides how gradients are made and reduced. */
static sherd_status ways_choose(sherdi_plan *plan)
{
    const sherdi_settings *settings = &plan->settings;

    plan->is_sliced        = settings->stage >= 1;
    plan->is_deterministic = settings->deterministic;
    plan->has_slices       = settings->stage >= 2 || plan->is_deterministic;
    /* where a drive can fail in the update, new values are published when all ranks have theirs */
    plan->publishes_early = plan->machine.is_on_lane &&
                            settings->offload_state.space != SHERDI_SPACE_STORAGE &&
                            settings->offload_param.space != SHERDI_SPACE_STORAGE;
    if (plan->is_deterministic) {
        return fixed_choose(plan);
    }
    plan->has_accumulator =
        sherdi_settings_add_up(settings) ||
        (settings->stage < 2 && settings->comm_dtype != settings->compute_dtype);
    plan->has_transient = settings->stage >= 2 || plan->has_accumulator;
    return SHERD_OK;
}

static void buffers_name(sherdi_plan *plan)
{
    static const sherdi_plan_buffer NAMES[SHERDI_BUFFERS] = {
        [SHERDI_BUFFER_PARAMS]       = {"parameters", SHERDI_MEM_PARAMS, 0, 1, 0, 0},
        [SHERDI_BUFFER_GRADS]        = {"gradients", SHERDI_MEM_GRADS, 0, 0, 0, 0},
        [SHERDI_BUFFER_STATE]        = {"optimizer state", SHERDI_MEM_STATE, 0, 0, 0, 0},
        [SHERDI_BUFFER_GATHER]       = {"gathered units", SHERDI_MEM_GATHER, 0, 0, 0, 0},
        [SHERDI_BUFFER_TRANSIENT]    = {"transient gradients", SHERDI_MEM_TRANSIENT, 0, 0, 0, 0},
        [SHERDI_BUFFER_STAGING]      = {"staging", SHERDI_MEM_STAGING, 0, 1, 0, 0},
        [SHERDI_BUFFER_GRAD_STAGING] = {"staging of gradients", SHERDI_MEM_STAGING, 0, 0, 0, 0},
        [SHERDI_BUFFER_DIRECTIONS]   = {"directions of matrices", SHERDI_MEM_STAGING, 0, 1, 0, 0},
        [SHERDI_BUFFER_SCALARS]      = {"scalars of kernels", SHERDI_MEM_STAGING, 0, 0, 0, 0},
        [SHERDI_BUFFER_ACTIVATIONS]  = {"activations", SHERDI_MEM_ACTIVATIONS, 0, 0, 0, 0},
        [SHERDI_BUFFER_HOST_PARAMS]  = {"offloaded parameters", SHERDI_MEM_HOST_PARAMS, 0, 0, 1, 0},
        [SHERDI_BUFFER_HOST_GRADS]   = {"offloaded gradients", SHERDI_MEM_HOST_GRADS, 0, 0, 1, 0},
        [SHERDI_BUFFER_HOST_STATE]   = {"offloaded optimizer state", SHERDI_MEM_HOST_STATE, 0, 0, 1,
                                        0},
        [SHERDI_BUFFER_BOUNCE]       = {"bounce buffers", SHERDI_MEM_HOST_STAGING, 0, 0, 1, 0},
        [SHERDI_BUFFER_STATE_RING]   = {"ring of state", SHERDI_MEM_HOST_STAGING, 0, 0, 1, 0},
        [SHERDI_BUFFER_PARAM_RING]   = {"ring of parameters", SHERDI_MEM_HOST_STAGING, 0, 0, 1, 0},
        [SHERDI_BUFFER_GRAD_RING]    = {"ring of gradients", SHERDI_MEM_HOST_STAGING, 0, 0, 1, 0},
        [SHERDI_BUFFER_HOST_SCALARS] = {"scalars of kernels", SHERDI_MEM_HOST_STAGING, 0, 0, 1, 1},
        [SHERDI_BUFFER_HOST_ACTIVATIONS] = {"offloaded activations", SHERDI_MEM_HOST_ACTIVATIONS, 0,
                                            0, 1, 0},
        [SHERDI_BUFFER_SNAPSHOT] = {"snapshot of a checkpoint", SHERDI_MEM_HOST_STAGING, 0, 0, 1,
                                    0},
        [SHERDI_BUFFER_FILL]     = {"first values", SHERDI_MEM_STAGING, 0, 0, 0, 0},
    };
    const sherdi_settings *settings = &plan->settings;

    memcpy(plan->buffers, NAMES, sizeof(NAMES));
    plan->buffers[SHERDI_BUFFER_GRADS].is_shared     = !plan->has_slices;
    plan->buffers[SHERDI_BUFFER_TRANSIENT].is_shared = plan->has_slices;
    /* offloaded slices come up into the gathered unit itself, where peers read them */
    plan->buffers[SHERDI_BUFFER_GATHER].is_shared =
        settings->stage == 3 && settings->offload_param.space != SHERDI_SPACE_DEVICE;
    plan->buffers[SHERDI_BUFFER_STATE_RING].is_pinned = settings->offload_state.pin_memory;
    plan->buffers[SHERDI_BUFFER_GRAD_RING].is_pinned  = settings->offload_state.pin_memory;
    plan->buffers[SHERDI_BUFFER_PARAM_RING].is_pinned = settings->offload_param.pin_memory;
    if (plan->machine.has_device) { /* host buffers that copies from and to the device use */
        plan->buffers[SHERDI_BUFFER_HOST_GRADS].is_pinned  = settings->offload_state.pin_memory;
        plan->buffers[SHERDI_BUFFER_BOUNCE].is_pinned      = 1;
        plan->buffers[SHERDI_BUFFER_HOST_PARAMS].is_pinned = settings->offload_param.pin_memory;
        plan->buffers[SHERDI_BUFFER_HOST_ACTIVATIONS].is_pinned = settings->activations.pin_memory;
        plan->buffers[SHERDI_BUFFER_FILL].is_host   = 1; /* where the trainer gives them */
        plan->buffers[SHERDI_BUFFER_FILL].is_pinned = 1;
        plan->buffers[SHERDI_BUFFER_FILL].purpose   = SHERDI_MEM_HOST_STAGING;
    }
}

int sherdi_plan_is_measured(const sherdi_plan *plan)
{
    for (size_t i = 0; i < plan->num_optimizers; i++) {
        if (plan->optimizers[i].optimizer->grain == SHERDI_GRAIN_TENSOR) {
            return 1;
        }
    }
    return 0;
}

const sherdi_plan_optimizer *sherdi_plan_optimizer_of(const sherdi_plan      *plan,
                                                      const sherdi_optimizer *optimizer)
{
    size_t i = 0;

    while (plan->optimizers[i].optimizer != optimizer) {
        i++;
        assert(i < plan->num_optimizers);
    }
    return &plan->optimizers[i];
}

static int has_ratios(const sherdi_plan_optimizer *of)
{
    return of->optimizer->grain == SHERDI_GRAIN_TENSOR;
}

/* Lays out the norms of all optimizers, then what the optimizers are told: coefficients, ratios, and last the groups, whose
 * elements are smallest. */
static void optimizers_lay_out(sherdi_plan *plan, const sherdi_model *model)
{
    sherdi_plan_scalars *scalars = &plan->scalars;
    size_t               at      = scalars->norms;

    for (size_t i = 0; i < plan->num_optimizers; i++) {
        sherdi_plan_optimizer *of = &plan->optimizers[i];

        of->norms = at;
        at += has_ratios(of)
                  ? model->num_params * of->optimizer->num_norms * sizeof(sherdi_norm_acc)
                  : 0;
    }
    scalars->results_bytes = at;
    scalars->told          = at;
    for (size_t i = 0; i < plan->num_optimizers; i++) {
        plan->optimizers[i].coeffs = at;
        at += sherdi_round_up(model->num_groups * plan->optimizers[i].optimizer->coeff_bytes,
                              i + 1 == plan->num_optimizers ? 1 : sizeof(double));
    }
    for (size_t i = 0; i < plan->num_optimizers; i++) {
        plan->optimizers[i].ratios = at;
        at += has_ratios(&plan->optimizers[i]) ? model->num_params * sizeof(float) : 0;
    }
    for (size_t i = 0; i < plan->num_optimizers; i++) {
        plan->optimizers[i].groups = at;
        at += has_ratios(&plan->optimizers[i]) ? model->num_params * sizeof(int32_t) : 0;
    }
    scalars->shared_bytes = sherdi_round_up(at, 64);
}

static void scalars_lay_out(sherdi_plan *plan, const sherdi_model *model)
{
    sherdi_plan_scalars *scalars = &plan->scalars;

    scalars->head  = 0;
    scalars->norms = sizeof(sherdi_scalars_head);
    optimizers_lay_out(plan, model);
    scalars->spans = scalars->shared_bytes;
    scalars->bytes = scalars->shared_bytes;
    if (plan->machine.has_device) {
        scalars->bytes += plan->num_spans * sizeof(sherdi_span);
        /* the host's own scalars, and the results that come down from the device */
        plan->buffers[SHERDI_BUFFER_HOST_SCALARS].bytes =
            sherdi_round_up(scalars->shared_bytes + scalars->results_bytes, SHERD_ALIGN_BYTES);
    }
    if (plan->machine.has_device || scalars->results_bytes > scalars->norms) {
        plan->buffers[SHERDI_BUFFER_SCALARS].bytes =
            sherdi_round_up(scalars->bytes, SHERD_ALIGN_BYTES);
    }
}

static sherd_status plan_make(sherdi_plan *plan, const sherdi_model *model)
{
    SHERDI_TRY(ways_choose(plan));
    SHERDI_TRY(types_choose(plan));
    buffers_name(plan);
    plan->num_params = model->num_params;
    plan->num_units  = model->num_units;
    plan->params =
        sherdi_alloc_array(plan->mem, SHERDI_MEM_CONTROL, model->num_params, sizeof(*plan->params));
    plan->units =
        sherdi_alloc_array(plan->mem, SHERDI_MEM_CONTROL, model->num_units, sizeof(*plan->units));
    if (plan->params == NULL || plan->units == NULL) {
        return SHERD_E_NOMEM;
    }
    SHERDI_TRY(sherdi_plan_lay_out(plan, model));
    scalars_lay_out(plan, model);
    for (size_t s = 0; s < plan->num_segments && plan->machine.has_receive; s++) {
        if (plan->segments[s].has_gradient) {
            size_t whole =
                plan->segments[s].padded_elems * sherd_dtype_bytes(plan->segments[s].types.wire);

            plan->reduced_bytes = sherdi_max_size(plan->reduced_bytes, whole);
        }
    }
    plan->receive_bytes =
        plan->reduced_bytes -
        (plan->machine.receives_own ? 0 : plan->reduced_bytes / (size_t)plan->world_size);
    SHERDI_TRY(sherdi_plan_schedule(plan, model));
    SHERDI_TRY(sherdi_plan_activations_lay_out(plan, model));
    for (size_t s = 0; s < plan->num_segments; s++) {
        plan->padding_elems += plan->segments[s].padded_elems - plan->segments[s].elems;
    }
    for (int b = 0; b < SHERDI_BUFFERS; b++) {
        const sherdi_plan_buffer *buffer = &plan->buffers[b];

        plan->total_bytes += buffer->bytes;
        plan->host_bytes += buffer->is_host ? buffer->bytes : 0;
        plan->pinned_bytes += buffer->is_pinned ? buffer->bytes : 0;
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
    plan->mem        = mem;
    plan->settings   = *settings;
    plan->machine    = *machine;
    plan->rank       = rank;
    plan->world_size = world_size;
    status           = plan_make(plan, model);
    if (status != SHERD_OK) {
        sherdi_plan_destroy(plan);
        return status;
    }
    SHERDI_SLOW_ASSERT(sherdi_plan_check(plan, model) == SHERD_OK);
    *out = plan;
    return SHERD_OK;
}

void sherdi_plan_destroy(sherdi_plan *plan)
{
    if (plan == NULL) {
        return;
    }
    sherdi_free(plan->params);
    sherdi_free(plan->units);
    sherdi_free(plan->segments);
    sherdi_free(plan->unit_segments);
    sherdi_free(plan->optimizers);
    sherdi_free(plan->measured_state);
    sherdi_free(plan->measured_grads);
    sherdi_free(plan->blocks);
    sherdi_free(plan->spans);
    for (int space = 0; space < SHERDI_SPACES; space++) {
        sherdi_free(plan->extents[space]);
    }
    sherdi_free(plan->pieces);
    sherdi_free(plan->piece_extents);
    sherdi_free(plan->grad_extents);
    sherdi_free(plan->fetches);
    sherdi_free(plan->activations);
    sherdi_free(plan->activation_extents);
    sherdi_free(plan->train.steps);
    sherdi_free(plan->train.live_ranges);
    sherdi_free(plan->eval.steps);
    sherdi_free(plan->eval.live_ranges);
    sherdi_free(plan->transients);
    sherdi_free(plan);
}

const char *sherdi_segment_kind_name(sherdi_segment_kind kind)
{
    static const char *const NAMES[] = {"trainable", "frozen", "persistent"};

    return NAMES[kind];
}

const char *sherdi_segment_name(const sherdi_segment *segment)
{
    static const char *const WIDE[] = {"trainable fp32", "frozen fp32", "persistent fp32"};

    return segment->is_wide ? WIDE[segment->kind] : sherdi_segment_kind_name(segment->kind);
}

/* ------------------------------------------------------------ does it fit -- */

/* The host memory that one rank takes. */
static size_t host_need(const sherdi_plan *plan)
{
    return plan->machine.transport_bytes +
           (plan->machine.has_device ? plan->host_bytes : plan->total_bytes);
}

/* The device memory that one rank takes. */
static size_t device_need(const sherdi_plan *plan)
{
    return plan->total_bytes - plan->host_bytes + plan->receive_bytes;
}

static int device_fits(const sherdi_plan *plan)
{
    return !plan->machine.has_device || plan->machine.device_bytes == 0 ||
           device_need(plan) <= plan->machine.device_bytes;
}

static int plan_fits(const sherdi_plan *plan)
{
    size_t each = host_need(plan);
    size_t all;

    if (!device_fits(plan)) {
        return 0;
    }
    return plan->machine.memory_bytes == 0 ||
           (sherdi_mul_fits(each, (size_t)plan->machine.ranks_per_host, &all) &&
            all <= plan->machine.memory_bytes);
}

/* Another setting that may fit. */
typedef struct other_plan {
    int          stage;
    int          has_prefetch;
    int          is_beside; /* bf16_beside: a master is the half that its parameter lacks */
    sherdi_space state, params;
    int          world_size;
} other_plan;

#define NEED_CHARS 96

static void space_set(sherdi_offload_settings *offload, sherdi_space space)
{
    if (offload->space < space) {
        offload->space = space;
        offload->tier  = sherdi_tier_of(space);
    }
}

/* Writes "12.5 MiB a rank", or the same for device and host if they have separate memory. */
static void need_text(const sherdi_plan *plan, char text[NEED_CHARS])
{
    if (plan->machine.has_device) {
        (void)snprintf(text, NEED_CHARS, "%.1f MiB of the device and %.1f MiB of the host a rank",
                       (double)device_need(plan) / 0x1p20, (double)host_need(plan) / 0x1p20);
    } else {
        (void)snprintf(text, NEED_CHARS, "%.1f MiB a rank", (double)host_need(plan) / 0x1p20);
    }
}

/* Returns 1 if the plan fits with another setting; writes what it needs. */
static int other_fits(const sherdi_plan *plan, const sherdi_model *model, const other_plan *how,
                      char need[NEED_CHARS])
{
    sherdi_settings settings = plan->settings;
    sherdi_plan    *other;
    int             fits;

    settings.stage = how->stage;
    if (!how->has_prefetch) {
        settings.prefetch_bucket_size = 0;
        settings.max_reuse_distance   = 0;
    }
    if (how->is_beside) {
        settings.master_encoding = SHERDI_MASTER_BESIDE;
    }
    space_set(&settings.offload_state, how->state);
    space_set(&settings.offload_param, how->params);
    if (how->params == SHERDI_SPACE_STORAGE) {
        settings.params_in_cpu = 0;
    }
    if (sherdi_plan_create(model, &settings, 0, how->world_size, &plan->machine, plan->mem,
                           &other) != SHERD_OK) {
        return 0;
    }
    fits = plan_fits(other);
    need_text(other, need);
    sherdi_plan_destroy(other);
    return fits;
}

/* Whether the plan fits with the state in the space that `how` names; sets how->stage to the lowest stage at which it does. */
static int state_space_fits(const sherdi_plan *plan, const sherdi_model *model, other_plan *how,
                            char need[NEED_CHARS])
{
    how->stage = plan->settings.stage > 1 ? plan->settings.stage : 1;
    for (; how->stage <= 3; how->stage++) {
        if (other_fits(plan, model, how, need)) {
            return 1;
        }
    }
    how->stage = 3;
    return 0;
}

/* Tries offload of the state, then of the parameters too. */
static int offload_fits(const sherdi_plan *plan, const sherdi_model *model, sherdi_space space,
                        char *text, size_t len_bytes)
{
    const char *name  = sherdi_tier_name(sherdi_tier_of(space));
    const char *extra = space == SHERDI_SPACE_HOST ? "" : " (max_in_cpu 0)";
    other_plan  how   = {.has_prefetch = 1, .world_size = plan->world_size, .state = space};
    char        need[NEED_CHARS];

    if (state_space_fits(plan, model, &how, need)) {
        (void)snprintf(text, len_bytes,
                       "zero_optimization.stage %d with offload_optimizer on %s would fit (%s)",
                       how.stage, name, need);
        return 1;
    }
    how.params = space;
    if (other_fits(plan, model, &how, need)) {
        (void)snprintf(text, len_bytes,
                       "zero_optimization.stage 3 with offload_optimizer and offload_param%s on "
                       "%s would fit (%s)",
                       extra, name, need);
        return 1;
    }
    return 0;
}

/* Tries bf16_beside, which takes two bytes less for each bf16 parameter and loses no bit: at the lowest stage at which it
 * suffices, then with nothing gathered ahead. */
static int beside_fits(const sherdi_plan *plan, const sherdi_model *model, char *text,
                       size_t len_bytes)
{
    other_plan how = {.is_beside = 1, .world_size = plan->world_size};
    char       need[NEED_CHARS];

    if (plan->settings.master_encoding != SHERDI_MASTER_F32) {
        return 0;
    }
    for (how.has_prefetch = 1; how.has_prefetch >= 0; how.has_prefetch--) {
        for (how.stage = how.has_prefetch ? plan->settings.stage : 3; how.stage <= 3; how.stage++) {
            if (other_fits(plan, model, &how, need)) {
                (void)snprintf(text, len_bytes,
                               "zero_optimization.stage %d%s and sherd.master_encoding "
                               "\"bf16_beside\", which loses no bit, would fit (%s)",
                               how.stage,
                               how.has_prefetch ? "" : " with stage3_prefetch_bucket_size 0", need);
                return 1;
            }
        }
    }
    return 0;
}

/* Finds the nearest setting that fits. It tries, in this order: a higher stage; stage 3 with nothing gathered ahead; masters
 * beside their parameters; offload to the host, if its memory is not the device's; offload to the drive; more hosts of the same
 * kind. */
static void nearest_fit(const sherdi_plan *plan, const sherdi_model *model, char *text,
                        size_t len_bytes)
{
    other_plan how   = {.has_prefetch = 1, .world_size = plan->world_size};
    int        ranks = plan->machine.ranks_per_host;
    char       need[NEED_CHARS];

    for (how.stage = plan->settings.stage + 1; how.stage <= 3; how.stage++) {
        if (other_fits(plan, model, &how, need)) {
            (void)snprintf(text, len_bytes, "zero_optimization.stage %d would fit (%s)", how.stage,
                           need);
            return;
        }
    }
    how.stage        = 3;
    how.has_prefetch = 0;
    if (other_fits(plan, model, &how, need)) {
        (void)snprintf(text, len_bytes,
                       "zero_optimization.stage 3 with stage3_prefetch_bucket_size 0 and "
                       "stage3_max_reuse_distance 0 would fit (%s)",
                       need);
        return;
    }
    if (beside_fits(plan, model, text, len_bytes)) {
        return;
    }
    if (plan->machine.has_device && offload_fits(plan, model, SHERDI_SPACE_HOST, text, len_bytes)) {
        return;
    }
    if (offload_fits(plan, model, SHERDI_SPACE_STORAGE, text, len_bytes)) {
        return;
    }
    how = (other_plan){.stage = 3, .has_prefetch = 1};
    for (int hosts = 2; hosts <= 1024; hosts *= 2) {
        how.world_size = ranks * hosts;
        if (other_fits(plan, model, &how, need)) {
            (void)snprintf(text, len_bytes, "stage 3 on %d ranks over %d such hosts would fit (%s)",
                           ranks * hosts, hosts, need);
            return;
        }
    }
    (void)snprintf(text, len_bytes, "no stage fits on up to 1024 such hosts");
}

sherd_status sherdi_plan_check_fit(const sherdi_plan *plan, const sherdi_model *model)
{
    static const char *const BOUNDS[] = {
        [SHERDI_BOUND_HOST]     = "are free",
        [SHERDI_BOUND_GROUP]    = "are free in the control group of this process",
        [SHERDI_BOUND_PROCESS]  = "are free under the limit of this process (RLIMIT_DATA)",
        [SHERDI_BOUND_VARIABLE] = "SHERD_MEMORY_LIMIT allows"};
    char   nearest[320];
    double each = (double)host_need(plan);
    double all  = each * plan->machine.ranks_per_host;

    if (plan_fits(plan)) {
        return SHERD_OK;
    }
    nearest_fit(plan, model, nearest, sizeof(nearest));
    if (!device_fits(plan)) {
        double device = (double)device_need(plan);

        return sherdi_fail(SHERD_E_NOMEM,
                           "the plan needs %.1f MiB of device memory on each rank, %.1f MiB more "
                           "than the %.1f MiB that a rank may take; %s",
                           device / 0x1p20, (device - (double)plan->machine.device_bytes) / 0x1p20,
                           (double)plan->machine.device_bytes / 0x1p20, nearest);
    }
    return sherdi_fail(
        SHERD_E_NOMEM,
        "the plan needs %.1f MiB on each of %d ranks of this host, %.1f MiB more than "
        "the %.1f MiB that %s; %s",
        each / 0x1p20, plan->machine.ranks_per_host,
        (all - (double)plan->machine.memory_bytes) / 0x1p20,
        (double)plan->machine.memory_bytes / 0x1p20, BOUNDS[plan->machine.memory_bound], nearest);
}
