/* The step: prepare (the ranks compare what they used, reduce gradients, measure the norm) and
 * apply (update, publish). loop.c has the calls before it, update.c the update of apply.
 *
 * At a boundary the ranks meet three times: to agree that the same units ran everywhere; for the
 * norm; and to publish the fingerprint. The last meeting also promises that every rank has written
 * its slices: peers then read them without meeting again. */
#include "engine/run/step.h"

#include "base/checked.h"
#include "base/clock.h"
#include "base/log.h"
#include "engine/run/agree.h"
#include "engine/run/failure.h"
#include "engine/run/fill.h"
#include "engine/run/loop.h"
#include "engine/modules.h"
#include "engine/run/needs.h"
#include "engine/run/optimizer.h"
#include "engine/run/update.h"

#include <math.h>
#include <string.h>

/* Guards the division in the clip coefficient, as in PyTorch and DeepSpeed. */
#define CLIP_EPSILON 1e-6

sherd_status sherdi_step_report_check(const sherd_step_report *out)
{
    return out == NULL ? SHERD_OK : sherdi_api_check(out, SHERDI_API(sherd_step_report));
}

/* Measures this rank's part of the gradient. */
static sherd_status own_measure(sherd_engine *engine, sherdi_norm_message *own)
{
    sherd_status status  = sherdi_program_norm(&engine->run.program);
    sherd_status settled = SHERDI_RINGS(sherdi_run_settle(engine, SHERDI_RING_GRADS), SHERD_OK);

    SHERDI_TRY(status);
    SHERDI_TRY(settled);
    own->norm   = engine->kernel_data.results.norm;
    own->counts = engine->kernel_data.results.counts;
    return SHERD_OK;
}

/* Sums the squares of the whole model's gradient, to the same bits on every rank and layout, and
 * counts the elements that the integers could not hold. `status` is the outcome on this rank so
 * far; what fails on one rank fails on all. */
static sherd_status norm_measure(sherd_engine *engine, sherd_status status,
                                 sherdi_norm_message *own)
{
    const sherdi_plan *plan = engine->plan;

    SHERDI_TELL(times, begin, engine, SHERDI_TIMED_NORM);
    memset(own, 0, sizeof(*own));
    if (status == SHERD_OK) {
        status = own_measure(engine, own);
    }
    SHERDI_TELL(times, end, engine, SHERDI_TIMED_NORM);
    SHERDI_TRY(sherdi_agree_on(engine, SHERDI_EXCHANGE_NORM, status, own, NULL,
                               "while it read its gradient, and nothing was updated"));
    if ((!plan->layout.is_sliced && !plan->layout.is_deterministic) ||
        (engine->run.messages.stride_bytes == 0 && sherdi_norm_value(&own->norm) == 0)) {
        return SHERD_OK; /* this rank has all of it, or no rank has any */
    }
    for (int r = 0; r < engine->world_size; r++) {
        const sherdi_norm_message *other = sherdi_agree_message(engine, r);

        if (r != engine->rank) {
            if (r / plan->world_size == plan->replica) { /* it has a slice of this one's copy */
                sherdi_norm_merge(&own->norm, &other->norm);
            }
            own->counts.nonfinite += other->counts.nonfinite;
            own->counts.out_of_range += other->counts.out_of_range;
        }
    }
    return SHERD_OK;
}

/* Ranks may be in different micro-batches of the window, so they go back to its first; not from a
 * prepared step, to which all ranks have come. */
sherd_status sherdi_step_drop_window(sherd_engine *engine, sherd_status status)
{
    const sherdi_outcome why = sherdi_outcome_of(status);

    if (engine->phase == SHERDI_PHASE_RUNNING) {
        engine->counters.micro_step = engine->window.first_micro;
    }
    SHERDI_RINGS(sherdi_run_leave(engine, SHERDI_RING_STATE), (void)0);
    SHERDI_RINGS(sherdi_run_leave(engine, SHERDI_RING_GRADS), (void)0);
    sherdi_loop_window_begin(engine);
    if (!engine->window.is_left) {
        sherdi_loop_fetch_ahead(engine);
    }
    return sherdi_outcome_end(&why);
}

static sherd_status uses_check(sherd_engine *engine)
{
    const sherdi_window *window = &engine->window;

    engine->window.counted = (double)window->micro_seen * engine->world_size;
    SHERDI_TRY(sherdi_modules_window_ending(engine));
    return window->micro_backward == window->micro_seen
               ? SHERD_OK
               : sherdi_fail(SHERD_E_STATE,
                             "%d of the %d micro-batches of this window had no backward pass; the "
                             "window was dropped, nothing was updated; run the backward pass of "
                             "each micro-batch before its sherd_step",
                             window->micro_seen - window->micro_backward, window->micro_seen);
}

static sherd_status boundary_prepare(sherd_engine *engine)
{
    sherd_step_report  *report = &engine->report;
    sherd_status        status;
    sherdi_norm_message seen;

    status = uses_check(engine);
    if (status != SHERD_OK) {
        return sherdi_step_drop_window(engine, status); /* the window's gradients are of no use */
    }
    status = sherdi_program_window_end(&engine->run.program);
    if (status != SHERD_E_PEER_LOST) {
        status = norm_measure(engine, status, &seen);
    }
    if (status == SHERD_OK) {
        status = sherdi_modules_gradient_check(&seen.counts);
    }
    if (status !=
        SHERD_OK) { /* the boundary before is still the last one, and its report is not complete */
        engine->fingerprints.is_sent = 0; /* the norm has come to its place */
        return sherdi_step_drop_window(engine, status);
    }
    SHERDI_TRY(sherdi_program_forget(&engine->run.program));
    sherdi_modules_reported(engine); /* the boundary before: nobody has asked for its fingerprint */
    engine->fingerprints.is_unreported = 0;

    engine->window.sumsq     = seen.counts.nonfinite > 0 ? NAN : sherdi_norm_value(&seen.norm);
    report->is_boundary      = 1;
    report->has_overflow     = !isfinite(engine->window.sumsq);
    report->grad_norm        = sqrt(engine->window.sumsq) * sherdi_optimizer_unscale(engine);
    report->grad_sumsq       = report->grad_norm * report->grad_norm;
    report->clip_coefficient = 1;
    report->stored_step      = SHERDI_IF(storage, stored_step, (engine), -1);
    engine->boundary         = *report;
    engine->phase            = SHERDI_PHASE_PREPARED;
    return SHERD_OK;
}

/* Whether this call ends the window after its last micro-batch, without a micro-batch of its
 * own. */
static int is_end_alone(const sherd_engine *engine)
{
    return engine->window.is_closing && engine->window.micro_seen > 0 &&
           !engine->window.has_begun && !engine->window.has_backward; /* as the ranks agreed */
}

/* Ends a step that fails on this rank before the ranks meet in it. `meets`: the others do meet in
 * theirs, and hear why. */
static sherd_status window_leave(sherd_engine *engine, sherd_status status, int meets)
{
    const sherdi_outcome why = sherdi_outcome_of(status);

    sherdi_modules_left(engine, &why, meets);
    return sherdi_step_drop_window(engine, sherdi_outcome_end(&why));
}

/* The rate in a report: of the first group with a trainable parameter. */
static double reported_lr(const sherd_engine *engine, const sherd_step_params *params)
{
    int first = engine->model.first_trained;

    return sherdi_optimizer_group_lr(engine, params, first < 0 ? SHERD_GROUP_DEFAULT : first,
                                     engine->counters.step + 1);
}

static sherd_status step_prepare(sherd_engine *engine)
{
    sherd_step_report *report  = &engine->report;
    int                is_last = sherdi_loop_ends_after(engine, engine->window.micro_seen + 1);
    sherd_status       status;

    if (engine->window.lost.status != SHERD_OK) { /* by a failure while a unit was released */
        return window_leave(engine, sherdi_outcome_end(&engine->window.lost),
                            is_last || engine->plan->layout.used_words > 0);
    }
    status = sherdi_loop_micro_batch_end(engine);
    if (status != SHERD_OK) {
        return window_leave(engine, status, is_last);
    }
    if (!is_end_alone(engine)) {
        engine->window.micro_seen++;
        engine->window.micro_backward += engine->window.has_backward;
        engine->window.has_begun = engine->window.has_backward = 0;
        engine->counters.micro_step++;
    }

    *report = (sherd_step_report){
        .struct_size   = sizeof(*report),
        .micro_step    = engine->counters.micro_step,
        .step          = engine->counters.step,
        .skipped_steps = engine->counters.skipped_steps,
        .loss_scale    = engine->scaler.scale,
        .lr            = reported_lr(engine, NULL),
    };
    if (sherdi_loop_ends_after(engine, engine->window.micro_seen)) {
        SHERDI_TELL(times, begin, engine, SHERDI_TIMED_STEP);
        return boundary_prepare(engine);
    }
    sherdi_loop_fetch_ahead(engine);
    return SHERD_OK;
}

/* ------------------------------------------------------------------ apply -- */

/* Completes the report: the bytes and waits of this boundary and the window before it. The counts
 * begin anew. */
static void boundary_close(sherd_engine *engine)
{
    sherdi_run        *run    = &engine->run;
    const sherdi_link *own    = &run->links[SHERDI_USER_TRAINER];
    sherd_step_report *report = &engine->report;

    SHERDI_TELL(storage, report, engine, report);
    SHERDI_TELL(lanes, join, engine);
    SHERDI_TELL(times, end, engine, SHERDI_TIMED_STEP);
    engine->times.boundary_wire = engine->run.submitted[SHERDI_LANE_WIRE];
    SHERDI_TELL(times, boundary, engine);
    report->link_down_bytes = own->down_bytes - run->reported_link.down_bytes;
    report->link_up_bytes   = own->up_bytes - run->reported_link.up_bytes;
    report->stored_step     = SHERDI_IF(storage, stored_step, (engine), -1);
    run->reported_link      = *own;
    engine->boundary        = *report;
    sherdi_modules_boundary(engine);
}

/* The factor that clips the gradients: Pascanu et al. 2013, with PyTorch's guard. */
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
    if (engine->settings.update.gradient_clipping == 0) {
        return 1;
    }
    coefficient = engine->settings.update.gradient_clipping / (norm + CLIP_EPSILON);
    return coefficient < 1 ? coefficient : 1;
}

sherd_status sherdi_step_fingerprint(sherd_engine *engine)
{
    SHERDI_RINGS(sherdi_run_drop_ahead(engine, SHERDI_RING_STATE), (void)0);
    return sherdi_update_fingerprint(engine);
}

static sherd_status apply_skip(sherd_engine *engine)
{
    sherd_step_report *report = &engine->report;
    sherd_status       status;

    engine->counters.skipped_steps++;
    report->has_overflow  = 1;
    report->skipped_steps = engine->counters.skipped_steps;
    sherdi_loop_window_begin(engine);
    engine->phase = SHERDI_PHASE_RUNNING;
    status        = sherdi_step_fingerprint(engine);
    status        = sherdi_update_agree(engine, status, engine->fingerprints.own,
                                        "while it read its state", &report->fingerprint);
    if (status != SHERD_OK) {
        sherdi_engine_poison(engine, status); /* another rank may have updated */
        return status;
    }
    boundary_close(engine);
    sherdi_loop_fetch_ahead(engine);
    return sherdi_modules_scaler_update(&engine->scaler, 1);
}

static sherd_status step_apply(sherd_engine *engine, const sherd_step_params *params,
                               sherd_status (*compare)(sherd_engine *engine, uint64_t choice),
                               sherdi_update_fn update)
{
    sherd_step_report *report    = &engine->report;
    int                overflows = (params != NULL && params->overflow) ||
                    (report->has_overflow && engine->settings.numerics.check_overflow);
    double       unscale = sherdi_optimizer_unscale(engine);
    uint64_t     choice  = 0;
    sherd_status status;

    report->lr = reported_lr(engine, params);
    if (!overflows) {
        report->clip_coefficient = clip_coefficient(engine, params);
        engine->run.coeffs       = (sherdi_coeffs_call){.params     = params,
                                                        .grad_scale = report->clip_coefficient * unscale,
                                                        .step       = engine->counters.step + 1};
        SHERDI_TRY(sherdi_program_scalars_send(&engine->run.program,
                                               sherdi_op_of(SHERDI_OP_COEFFS, SHERDI_LANE_HOST)));
        choice = engine->run.coeffs.hash +
                 (update != sherdi_update_range); /* all ranks wait, or none does */
    }
    if (compare != NULL && engine->world_size > 1) {
        SHERDI_TRY(compare(engine, choice));
    }
    if (overflows) {
        return apply_skip(engine);
    }
    status = sherdi_modules_measuring(engine);
    if (status != SHERD_OK) { /* nothing was written: the state is whole */
        engine->phase = SHERDI_PHASE_RUNNING;
        return sherdi_step_drop_window(engine, status);
    }
    status = update(engine);
    if (status != SHERD_OK) {
        sherdi_engine_poison(engine, status);
        return status;
    }
    engine->counters.step++;
    report->step        = engine->counters.step;
    report->was_updated = 1;
    boundary_close(engine);
    sherdi_loop_fetch_ahead(engine);
    sherdi_loop_window_begin(engine);
    engine->phase = SHERDI_PHASE_RUNNING;
    return sherdi_modules_scaler_update(&engine->scaler, 0);
}

/* ----------------------------------------------------------- public calls -- */

sherd_status sherdi_step_late_start(sherd_engine *engine)
{
    return engine->plan->layout.used_words > 0 ? sherdi_fill_finish(engine) : SHERD_OK;
}

sherd_status sherdi_step_check(sherd_engine *engine, const char *call)
{
    SHERDI_TRY(sherdi_engine_need(engine, call,
                                  SHERDI_NEED_SEALED | SHERDI_NEED_STEPS | SHERDI_NEED_NO_EVAL));
    SHERDI_TRY(sherdi_step_late_start(engine));
    SHERDI_TRY(sherdi_engine_need(engine, call, SHERDI_NEED_STARTED | SHERDI_NEED_UNPREPARED));
    SHERDI_TRY(sherdi_modules_left_check(engine));
    return sherdi_engine_need(engine, call, SHERDI_NEED_RELEASED);
}

sherd_status sherdi_step_prepare(sherd_engine *engine, sherdi_step_call call)
{
    sherd_status status;

    engine->window.call = call;
    sherdi_mem_forbid_begin();
    status = step_prepare(engine);
    if (engine->phase != SHERDI_PHASE_PREPARED) {
        SHERDI_TELL(times, end, engine, SHERDI_TIMED_STEP);
    }
    sherdi_mem_forbid_end();
    return sherdi_engine_outcome(engine, status);
}

sherd_status sherdi_step_apply(sherd_engine *engine, const sherd_step_params *params,
                               sherd_status (*compare)(sherd_engine *engine, uint64_t choice),
                               sherdi_update_fn update)
{
    sherd_status status;

    sherdi_mem_forbid_begin();
    status = step_apply(engine, params, compare, update);
    SHERDI_TELL(times, end, engine, SHERDI_TIMED_STEP);
    sherdi_mem_forbid_end();
    if (status == SHERD_OK) {
        status = sherdi_modules_stepped(engine);
    }
    return sherdi_engine_outcome(engine, status);
}

sherd_status sherdi_step_queued(sherd_engine *engine)
{
    return SHERDI_IF(queue, update, (engine), sherdi_update_range(engine));
}

sherd_status sherd_step_queue(sherd_engine *engine)
{
    SHERDI_TRY(sherdi_step_check(engine, "sherd_step_queue"));
    SHERDI_TRY(sherdi_step_prepare(engine, SHERDI_STEP_QUEUED));
    return engine->phase == SHERDI_PHASE_PREPARED
               ? sherdi_step_apply(engine, NULL, NULL, sherdi_step_queued)
               : SHERD_OK;
}

sherd_status sherd_step_wait(sherd_engine *engine, sherd_step_report *out)
{
    SHERDI_TRY(sherdi_engine_need(engine, "sherd_step_wait", SHERDI_NEED_SEALED));
    SHERDI_TRY(sherdi_step_report_check(out));
    SHERDI_TRY(sherdi_world_status(engine->world));
    SHERDI_TRY(sherdi_engine_outcome(engine, SHERDI_ASK(queue, wait, engine)));
    if (out != NULL) {
        sherdi_api_write(&engine->boundary, out);
    }
    return SHERD_OK;
}

sherd_status sherd_step(sherd_engine *engine, sherd_step_report *out)
{
    SHERDI_TRY(sherdi_step_check(engine, "sherd_step"));
    SHERDI_TRY(sherdi_step_report_check(out));
    SHERDI_TRY(sherdi_step_prepare(engine, SHERDI_STEP_WHOLE));
    if (engine->phase == SHERDI_PHASE_PREPARED) {
        SHERDI_TRY(sherdi_step_apply(engine, NULL, NULL, sherdi_update_range));
    }
    if (out != NULL) {
        sherdi_api_write(&engine->report, out);
    }
    return SHERD_OK;
}

float sherd_loss_scale(const sherd_engine *engine)
{
    return engine == NULL ? 1 : (float)engine->scaler.scale;
}
