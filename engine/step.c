/* The step: prepare (what the ranks saw, reduce, norm) and apply (update, publish).
 *
 * A boundary meets three times: agree (the same units ran everywhere), norm, publish (the
 * fingerprint; also the promise that every rank has written its slices, after which peers
 * read them without meeting again). */
#include "engine/engine_impl.h"

#include "base/checked.h"
#include "base/hash.h"

#include <math.h>
#include <string.h>

/* Torch's and DeepSpeed's guard in the clip coefficient. */
#define CLIP_EPSILON 1e-6

static int window_is_over(const sherd_engine *engine)
{
    return engine->is_closing || engine->micro_seen >= engine->settings.accumulation;
}

/* A report that is wanted must be one that can be filled: known before anything happens. */
static sherd_status report_check(const sherd_step_report *out)
{
    if (out == NULL) {
        return SHERD_OK;
    }
    return sherdi_engine_check_struct(out, out->struct_size, sizeof(*out), "sherd_step_report");
}

static void report_fill(const sherd_step_report *report, sherd_step_report *out)
{
    size_t struct_size;

    if (out == NULL) {
        return;
    }
    struct_size = out->struct_size;
    memcpy(out, report, struct_size);
    out->struct_size = struct_size;
}

static sherd_status nothing_is_held(const sherd_engine *engine)
{
    for (size_t u = 0; u < engine->plan->num_units; u++) {
        if (engine->units[u].held > 0) {
            return sherdi_fail(SHERD_E_STATE,
                               "unit %s is still acquired; release every unit before the step",
                               engine->model.units[u].name);
        }
    }
    return SHERD_OK;
}

/* fp32 gradients of a block's elements [first, first + elems) of the slice, from the integers. */
static const float *fixed_gradient(sherd_engine *engine, const sherdi_segment *segment,
                                   size_t first, size_t elems)
{
    float         *staging = (float *)(void *)engine->buffers[SHERDI_BUFFER_STAGING];
    const int64_t *sums    = (const int64_t *)(const void *)(engine->buffers[SHERDI_BUFFER_GRADS] +
                                                          segment->grad_offset);

    engine->backend->kernels->fixed_to_f32(engine->backend, staging, sums + first, elems);
    return staging;
}

static void segment_sumsq(sherd_engine *engine, const sherdi_segment *segment, sherdi_norm_acc *acc)
{
    const sherdi_plan       *plan    = engine->plan;
    const sherdi_kernel_ops *kernels = engine->backend->kernels;
    size_t                   elem    = sherd_dtype_bytes(plan->grad_dtype);
    size_t staged = plan->buffers[SHERDI_BUFFER_STAGING].bytes / sizeof(float) / SHERD_CHUNK_ELEMS *
                    SHERD_CHUNK_ELEMS;
    size_t first;
    size_t owned;

    if (plan->is_fixed) {
        for (first = 0; first < segment->slice_elems; first += staged) {
            size_t elems = sherdi_min_size(staged, segment->slice_elems - first);

            kernels->sumsq(engine->backend, fixed_gradient(engine, segment, first, elems),
                           SHERD_F32, elems, acc);
        }
        return;
    }
    owned = sherdi_plan_owned(plan, segment, &first);
    first = plan->has_slices ? 0 : first;
    kernels->sumsq(engine->backend,
                   engine->buffers[SHERDI_BUFFER_GRADS] + segment->grad_offset + first * elem,
                   plan->grad_dtype, owned, acc);
}

/* Sum of squares of the whole model's gradient, the same bits on every rank and layout; and what
 * the integers could not hold. */
static sherd_status norm_measure(sherd_engine *engine, sherdi_norm_message *own)
{
    const sherdi_plan *plan = engine->plan;

    memset(own, 0, sizeof(*own));
    for (size_t s = 0; s < plan->num_segments; s++) {
        if (plan->segments[s].grad_offset != SHERDI_NO_OFFSET) {
            segment_sumsq(engine, &plan->segments[s], &own->norm);
        }
    }
    sherdi_norm_normalise(&own->norm);
    own->counts = engine->fixed_counts;
    SHERDI_TRY(sherdi_world_exchange(engine->world, own, engine->norm_all, sizeof(*own)));
    for (int r = 0; (plan->is_sliced || plan->is_fixed) && r < engine->world_size; r++) {
        if (r != engine->rank) {
            sherdi_norm_merge(&own->norm, &engine->norm_all[r].norm);
            own->counts.nonfinite += engine->norm_all[r].counts.nonfinite;
            own->counts.out_of_range += engine->norm_all[r].counts.out_of_range;
        }
    }
    return SHERD_OK;
}

/* A finite gradient that the integers cannot hold: the window is dropped, the state is whole. */
static sherd_status range_check(sherd_engine *engine, const sherdi_fixed_counts *counts)
{
    if (counts->nonfinite > 0 || counts->out_of_range == 0) {
        return SHERD_OK;
    }
    sherdi_reduce_reset_window(engine);
    return sherdi_fail(
        SHERD_E_NUMERIC,
        "%llu gradient elements of this window are %g or more: the deterministic mode "
        "cannot add them, and no loss scale cures it; the window was dropped, nothing "
        "was updated; scale the loss down, or look for what diverges",
        (unsigned long long)counts->out_of_range, SHERDI_FIXED_RANGE);
}

static sherd_status boundary_prepare(sherd_engine *engine)
{
    sherd_step_report  *report = &engine->report;
    sherd_status        status = sherdi_agree_runs(engine);
    sherdi_norm_message seen;

    if (status != SHERD_OK) {
        sherdi_reduce_reset_window(engine); /* what it held is of no use to anybody */
        return status;
    }
    SHERDI_TRY(sherdi_reduce_end_window(engine));
    SHERDI_TRY(norm_measure(engine, &seen));
    SHERDI_TRY(sherdi_gather_forget(engine));
    SHERDI_TRY(range_check(engine, &seen.counts));

    engine->sumsq            = seen.counts.nonfinite > 0 ? NAN : sherdi_norm_value(&seen.norm);
    report->is_boundary      = 1;
    report->has_overflow     = !isfinite(engine->sumsq);
    report->grad_norm        = sqrt(engine->sumsq) * sherdi_optimizer_unscale(engine);
    report->grad_sumsq       = report->grad_norm * report->grad_norm;
    report->clip_coefficient = 1;
    engine->boundary         = *report;
    engine->phase            = SHERDI_PHASE_PREPARED;
    return SHERD_OK;
}

static sherd_status step_prepare(sherd_engine *engine)
{
    sherd_step_report *report = &engine->report;

    SHERDI_TRY(nothing_is_held(engine));
    SHERDI_TRY(sherdi_reduce_end_micro_batch(engine));
    engine->micro_seen++;
    engine->micro_backward += engine->has_backward;
    engine->has_backward = 0;
    engine->micro_step++;
    engine->train.next = 0;

    *report = (sherd_step_report){
        .struct_size   = sizeof(*report),
        .micro_step    = engine->micro_step,
        .step          = engine->step,
        .skipped_steps = engine->skipped_steps,
        .loss_scale    = engine->scaler.scale,
        .lr = sherdi_optimizer_group_lr(engine, NULL, SHERD_GROUP_DEFAULT, engine->step + 1),
    };
    return window_is_over(engine) ? boundary_prepare(engine) : SHERD_OK;
}

/* ------------------------------------------------------------------ apply -- */

/* Where the update writes the compute type of a block; NULL when the master is the parameter. */
static void *block_param(sherd_engine *engine, const sherdi_segment *segment,
                         const sherdi_block *block)
{
    size_t elem = sherd_dtype_bytes(engine->settings.compute_dtype);
    size_t first;

    (void)sherdi_plan_owned(engine->plan, segment, &first);
    if (segment->is_bound) {
        return engine->buffers[SHERDI_BUFFER_STAGING] + engine->plan->publish_offset +
               (first + block->offset_elems) * elem;
    }
    if (!segment->has_master) {
        return NULL;
    }
    first = segment->is_resident ? first : 0;
    return engine->buffers[SHERDI_BUFFER_PARAMS] + segment->param_offset +
           (first + block->offset_elems) * elem;
}

/* The reduced gradient of a block, in grad_dtype. */
static const void *block_gradient(sherd_engine *engine, const sherdi_segment *segment,
                                  const sherdi_block *block)
{
    const sherdi_plan *plan = engine->plan;
    size_t             elem = sherd_dtype_bytes(plan->grad_dtype);
    size_t             first;

    if (plan->is_fixed && plan->is_sliced) {
        return fixed_gradient(engine, segment, block->offset_elems, block->elems);
    }
    if (plan->is_fixed) { /* collected whole before the segment's first block */
        return engine->buffers[SHERDI_BUFFER_STAGING] + block->offset_elems * elem;
    }
    (void)sherdi_plan_owned(plan, segment, &first);
    first = plan->has_slices ? 0 : first;
    return engine->buffers[SHERDI_BUFFER_GRADS] + segment->grad_offset +
           (first + block->offset_elems) * elem;
}

/* Stage 0, deterministic: every rank updates everything and needs the others' slices. */
static sherd_status fixed_collect(sherd_engine *engine, const sherdi_segment *segment)
{
    float         *whole = (float *)(void *)engine->buffers[SHERDI_BUFFER_STAGING];
    float         *own   = whole + (size_t)engine->rank * segment->slice_elems;
    const int64_t *sums  = (const int64_t *)(const void *)(engine->buffers[SHERDI_BUFFER_GRADS] +
                                                          segment->grad_offset);
    sherdi_all_gather_args args = {
        .send = own, .recv = whole, .slice_bytes = segment->slice_elems * sizeof(float)};

    engine->backend->kernels->fixed_to_f32(engine->backend, own, sums, segment->slice_elems);
    return sherdi_world_all_gather(engine->world, &args, NULL);
}

static void block_update(sherd_engine *engine, const sherdi_segment *segment,
                         const sherdi_block *block, uint64_t *fingerprint)
{
    const sherdi_plan *plan    = engine->plan;
    float             *moments = sherdi_block_moments(engine, block);
    sherdi_adam_args   args;

    args = (sherdi_adam_args){
        .spans       = &plan->spans[block->first_span],
        .num_spans   = block->num_spans,
        .coeffs      = engine->coeffs,
        .grad        = block_gradient(engine, segment, block),
        .grad_dtype  = plan->grad_dtype,
        .master      = sherdi_block_master(engine, block),
        .m           = moments,
        .v           = moments + block->stride_elems,
        .param       = block_param(engine, segment, block),
        .param_dtype = engine->settings.compute_dtype,
        .fingerprint = fingerprint,
    };
    engine->backend->kernels->adam(engine->backend, &args);
}

/* New values of bound parameters: gathered in the staging buffer, then copied to the trainer. */
static sherd_status bound_publish(sherd_engine *engine, size_t s)
{
    const sherdi_segment    *segment = &engine->plan->segments[s];
    const sherdi_model_unit *unit    = &engine->model.units[segment->unit];
    size_t                   elem    = sherd_dtype_bytes(engine->settings.compute_dtype);
    unsigned char *staging = engine->buffers[SHERDI_BUFFER_STAGING] + engine->plan->publish_offset;
    sherdi_all_gather_args args = {
        .send        = staging + (size_t)engine->rank * segment->slice_elems * elem,
        .recv        = staging,
        .slice_bytes = segment->slice_elems * elem,
    };

    if (engine->plan->is_sliced) {
        SHERDI_TRY(sherdi_world_all_gather(engine->world, &args, NULL));
    }
    for (size_t i = 0; i < unit->num_params; i++) {
        const sherdi_plan_param  *place = &engine->plan->params[unit->params[i]];
        const sherdi_model_param *param = &engine->model.params[unit->params[i]];

        if (place->segment == (int)s) {
            engine->backend->kernels->copy(engine->backend, param->bound_data,
                                           staging + place->offset_elems * elem,
                                           param->elems * elem);
        }
    }
    return SHERD_OK;
}

/* Slices of whole parameters go to all: without meeting, since the exchange of the fingerprint
 * has promised that they are written. The next acquire of the unit waits. */
static sherd_status resident_publish(sherd_engine *engine)
{
    size_t elem = sherd_dtype_bytes(engine->settings.compute_dtype);

    for (size_t s = 0; s < engine->plan->num_segments && engine->plan->is_sliced; s++) {
        const sherdi_segment  *segment = &engine->plan->segments[s];
        sherdi_all_gather_args args;
        unsigned char         *whole;

        if (segment->kind == SHERDI_SEGMENT_FROZEN || !segment->is_resident || segment->is_bound) {
            continue;
        }
        whole = engine->buffers[SHERDI_BUFFER_PARAMS] + segment->param_offset;
        args  = (sherdi_all_gather_args){
             .send        = whole + (size_t)engine->rank * segment->slice_elems * elem,
             .recv        = whole,
             .slice_bytes = segment->slice_elems * elem,
             .flags       = SHERDI_COLL_STABLE,
        };
        SHERDI_TRY(sherdi_world_all_gather(engine->world, &args, &engine->publish_tickets[s]));
    }
    return SHERD_OK;
}

/* Also: all ranks did the same. They would differ when sherd_step_params did. */
static sherd_status fingerprint_exchange(sherd_engine *engine, uint64_t own, uint64_t decision,
                                         uint64_t *out)
{
    sherdi_publish_message mine = {.fingerprint = own, .decision = decision};

    SHERDI_TRY(sherdi_world_exchange(engine->world, &mine, engine->publish_all, sizeof(mine)));
    for (int r = 1; r < engine->world_size; r++) {
        if (engine->publish_all[r].decision != engine->publish_all[0].decision) {
            return sherdi_fail(SHERD_E_INVAL,
                               "rank %d was given other sherd_step_params than rank 0 (norm, "
                               "coefficient, overflow or rates); all ranks must apply the same",
                               r);
        }
    }
    *out = engine->frozen_fingerprint;
    if (!engine->plan->is_sliced) {
        *out += own;
        return SHERD_OK;
    }
    for (int r = 0; r < engine->world_size; r++) {
        *out += engine->publish_all[r].fingerprint;
    }
    return SHERD_OK;
}

static sherd_status update_and_publish(sherd_engine *engine)
{
    const sherdi_plan *plan = engine->plan;
    uint64_t           own  = 0;

    for (size_t s = 0; s < plan->num_segments; s++) {
        const sherdi_segment *segment = &plan->segments[s];

        if (plan->is_fixed && !plan->is_sliced && segment->grad_offset != SHERDI_NO_OFFSET) {
            SHERDI_TRY(fixed_collect(engine, segment));
        }
        for (size_t b = 0; b < segment->num_blocks; b++) {
            block_update(engine, segment, &plan->blocks[segment->first_block + b], &own);
        }
        if (segment->is_bound && segment->kind != SHERDI_SEGMENT_FROZEN) {
            SHERDI_TRY(bound_publish(engine, s));
        }
    }
    SHERDI_TRY(fingerprint_exchange(
        engine, own,
        sherdi_hash_bytes(1, engine->coeffs, engine->model.num_groups * sizeof(*engine->coeffs)),
        &engine->report.fingerprint));
    return resident_publish(engine);
}

/* What the gradients are multiplied by to clip them: Pascanu et al. 2013, with torch's guard. */
static double clip_coefficient(const sherd_engine *engine, const sherd_step_params *params)
{
    double norm = engine->report.grad_norm;
    double coefficient;

    if (params != NULL && !isnan(params->clip_coefficient)) {
        return params->clip_coefficient;
    }
    if (params != NULL && !isnan(params->grad_norm)) {
        norm = params->grad_norm;
    }
    if (engine->settings.gradient_clipping == 0) {
        return 1;
    }
    coefficient = engine->settings.gradient_clipping / (norm + CLIP_EPSILON);
    return coefficient < 1 ? coefficient : 1;
}

static sherd_status apply_skip(sherd_engine *engine)
{
    sherd_step_report *report = &engine->report;
    sherd_status       status;

    engine->skipped_steps++;
    report->has_overflow  = 1;
    report->skipped_steps = engine->skipped_steps;
    sherdi_reduce_reset_window(engine);
    engine->phase = SHERDI_PHASE_RUNNING;
    status =
        fingerprint_exchange(engine, sherdi_fill_own_fingerprint(engine), 0, &report->fingerprint);
    if (status != SHERD_OK) {
        sherdi_engine_poison(engine, status); /* another rank may have updated */
        return status;
    }
    engine->boundary = *report;
    return sherdi_scaler_update(&engine->scaler, 1);
}

static sherd_status step_apply(sherd_engine *engine, const sherd_step_params *params)
{
    sherd_step_report *report    = &engine->report;
    int                overflows = (params != NULL && params->overflow) ||
                    (report->has_overflow && engine->settings.check_overflow);
    double       unscale = sherdi_optimizer_unscale(engine);
    sherd_status status;

    if (overflows) {
        return apply_skip(engine);
    }
    report->clip_coefficient = clip_coefficient(engine, params);
    report->lr = sherdi_optimizer_group_lr(engine, params, SHERD_GROUP_DEFAULT, engine->step + 1);
    sherdi_optimizer_coeffs(engine, params, report->clip_coefficient * unscale, engine->step + 1,
                            engine->coeffs);
    status = update_and_publish(engine);
    if (status != SHERD_OK) {
        sherdi_engine_poison(engine, status);
        return status;
    }
    engine->step++;
    report->step        = engine->step;
    report->was_updated = 1;
    engine->boundary    = *report;
    sherdi_reduce_reset_window(engine);
    engine->phase = SHERDI_PHASE_RUNNING;
    return sherdi_scaler_update(&engine->scaler, 0);
}

/* ----------------------------------------------------------- public calls -- */

static sherd_status phase_check(const sherd_engine *engine, sherdi_phase wanted)
{
    SHERDI_TRY(sherdi_engine_check_alive(engine));
    if (engine->phase == wanted) {
        return SHERD_OK;
    }
    switch (engine->phase) {
    case SHERDI_PHASE_OPEN:
        return sherdi_fail(SHERD_E_STATE, "the engine is not sealed; call sherd_engine_seal first");
    case SHERDI_PHASE_SEALED:
        return sherdi_fail(SHERD_E_STATE,
                           "no unit was acquired yet; a step follows a backward pass");
    case SHERDI_PHASE_RUNNING:
        return sherdi_fail(SHERD_E_STATE,
                           "nothing is prepared; sherd_step_prepare comes first, and "
                           "only its boundary is applied or discarded");
    case SHERDI_PHASE_PREPARED:
        break;
    }
    return sherdi_fail(SHERD_E_STATE, "a step is prepared; call sherd_step_apply or "
                                      "sherd_step_discard first");
}

static sherd_status prepare_guarded(sherd_engine *engine)
{
    sherd_status status;

    sherdi_mem_forbid_begin();
    status = step_prepare(engine);
    sherdi_mem_forbid_end();
    return status;
}

static sherd_status apply_guarded(sherd_engine *engine, const sherd_step_params *params)
{
    sherd_status status;

    sherdi_mem_forbid_begin();
    status = step_apply(engine, params);
    sherdi_mem_forbid_end();
    return status;
}

sherd_status sherd_step(sherd_engine *engine, sherd_step_report *out)
{
    SHERDI_TRY(phase_check(engine, SHERDI_PHASE_RUNNING));
    SHERDI_TRY(report_check(out));
    SHERDI_TRY(prepare_guarded(engine));
    if (engine->phase == SHERDI_PHASE_PREPARED) {
        SHERDI_TRY(apply_guarded(engine, NULL));
    }
    report_fill(&engine->report, out);
    return SHERD_OK;
}

sherd_status sherd_step_prepare(sherd_engine *engine, sherd_step_report *out)
{
    SHERDI_TRY(phase_check(engine, SHERDI_PHASE_RUNNING));
    SHERDI_TRY(report_check(out));
    SHERDI_TRY(prepare_guarded(engine));
    report_fill(&engine->report, out);
    return SHERD_OK;
}

/* A number from outside: NaN (not given) or from 0 on. */
static sherd_status given_check(const char *what, double value)
{
    if (isnan(value) || (value >= 0 && isfinite(value))) {
        return SHERD_OK;
    }
    return sherdi_fail(SHERD_E_INVAL,
                       "sherd_step_params.%s is %g: it must be finite and not below 0", what,
                       value);
}

static sherd_status step_params_check(const sherd_engine *engine, const sherd_step_params *params)
{
    SHERDI_TRY(given_check("grad_norm", params->grad_norm));
    SHERDI_TRY(given_check("clip_coefficient", params->clip_coefficient));
    if (params->group_lr == NULL) {
        return SHERD_OK;
    }
    if (params->group_count < 0 || (size_t)params->group_count > engine->model.num_groups) {
        return sherdi_fail(SHERD_E_INVAL,
                           "sherd_step_params.group_count is %d, and there are %zu groups",
                           params->group_count, engine->model.num_groups);
    }
    for (int g = 0; g < params->group_count; g++) {
        SHERDI_TRY(given_check("group_lr", params->group_lr[g]));
    }
    return SHERD_OK;
}

sherd_status sherd_step_apply(sherd_engine *engine, const sherd_step_params *params)
{
    sherd_step_params given;

    SHERDI_TRY(phase_check(engine, SHERDI_PHASE_PREPARED));
    if (params == NULL) {
        return apply_guarded(engine, NULL);
    }
    SHERDI_TRY(sherdi_engine_check_struct(params, params->struct_size, sizeof(*params),
                                          "sherd_step_params"));
    sherd_step_params_init(&given);
    memcpy(&given, params, params->struct_size);
    SHERDI_TRY(step_params_check(engine, &given));
    return apply_guarded(engine, &given);
}

sherd_status sherd_step_discard(sherd_engine *engine)
{
    SHERDI_TRY(phase_check(engine, SHERDI_PHASE_PREPARED));
    sherdi_reduce_reset_window(engine);
    engine->phase = SHERDI_PHASE_RUNNING;
    return SHERD_OK;
}

sherd_status sherd_step_wait(sherd_engine *engine, sherd_step_report *out)
{
    SHERDI_TRY(sherdi_engine_check_alive(engine));
    if (engine->phase == SHERDI_PHASE_OPEN) {
        return sherdi_fail(SHERD_E_STATE, "the engine is not sealed; call sherd_engine_seal first");
    }
    SHERDI_TRY(report_check(out));
    SHERDI_TRY(sherdi_world_status(engine->world));
    report_fill(&engine->boundary, out);
    return SHERD_OK;
}

sherd_status sherd_step_close_window(sherd_engine *engine)
{
    SHERDI_TRY(phase_check(engine, SHERDI_PHASE_RUNNING));
    engine->is_closing = 1;
    return SHERD_OK;
}

sherd_status sherd_step_undo(sherd_engine *engine)
{
    SHERDI_TRY(sherdi_engine_check_alive(engine));
    return sherdi_fail(SHERD_E_NOTSUP,
                       "no spare generation of the state exists: it rests in memory, "
                       "where updates are made in place");
}

float sherd_loss_scale(const sherd_engine *engine)
{
    return engine == NULL ? 1 : (float)engine->scaler.scale;
}
