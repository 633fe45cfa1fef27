/* Acquire and release. Each executes an event of the program (program_units.c). This file checks
 * arguments, calls the modules around the event, and adds what happens when a gradient is lost. */
#include "engine/run/loop.h"

#include "base/checked.h"
#include "engine/modules.h"
#include "engine/run/engine_impl.h"
#include "engine/run/failure.h"
#include "engine/run/fill.h"
#include "engine/run/needs.h"

static sherd_status backward_check(const sherd_engine *engine, int unit)
{
    int reached;

    if (sherdi_unit_of(engine, unit)->acquired[SHERD_BACKWARD] > 0 &&
        !engine->plan->layout.units[unit].is_open_ended) {
        return sherdi_fail(SHERD_E_STATE,
                           "unit %s is acquired for backward already; release it before it is "
                           "acquired again",
                           engine->model.units[unit].name);
    }
    for (size_t n = 0; (reached = sherdi_model_reached(&engine->model, unit, n)) >= 0; n++) {
        if (sherdi_unit_of(engine, reached)->is_complete) {
            return sherdi_fail(SHERD_E_STATE,
                               "unit %s is used once more in backward, and the plan knows of %d "
                               "backward use(s); list every use with sherd_pass_add or "
                               "sherd_unit_reads, or declare the unit with SHERD_USES_ANY",
                               engine->model.units[reached].name,
                               engine->plan->layout.units[reached].backward_uses);
        }
    }
    return SHERD_OK;
}

static sherd_status failure_tell(sherd_engine *engine, sherd_status status)
{
    const sherdi_outcome failed = sherdi_outcome_of(status);

    /* if the update failed, the failure is reported now */
    (void)SHERDI_ASK(updater, check, engine);
    sherdi_modules_failed_alone(engine, status, failed.text);
    if (status == SHERD_E_NOMEM && engine->window.lost.status != SHERD_OK) {
        return sherdi_outcome_end(
            &engine->window.lost); /* it is stored until the window is dropped */
    }
    /* the next acquire reads again */
    SHERDI_RINGS(sherdi_run_leave(engine, SHERDI_RING_PARAMS), (void)0);
    return sherdi_outcome_end(&failed);
}

const char *sherdi_pass_name(sherd_pass pass)
{
    static const char *const NAMES[] = {"forward", "backward", "eval"};

    return NAMES[pass];
}

static sherd_status unit_acquire(sherd_engine *engine, int unit, sherd_pass pass)
{
    sherd_status status;

    if (pass == SHERD_BACKWARD) {
        SHERDI_TRY(backward_check(engine, unit));
    }
    SHERDI_TRY(sherdi_modules_unit_acquiring(engine, unit, pass));
    status = SHERDI_ASK(updater, check, engine); /* parameters may be of two steps */
    if (status == SHERD_OK) {
        status = sherdi_program_acquire(&engine->run.program, unit, pass);
    }
    if (status != SHERD_OK) {
        return failure_tell(engine, status);
    }
    engine->window.has_begun |= pass != SHERD_EVAL;
    engine->window.has_backward |= pass == SHERD_BACKWARD;
    return sherdi_modules_unit_acquired(engine, unit, pass);
}

sherd_status sherdi_loop_lose(sherd_engine *engine, sherd_status status)
{
    sherdi_outcome_add(&engine->window.lost, status);
    sherdi_modules_failed_alone(engine, status, engine->window.lost.text);
    return sherdi_outcome_end(&engine->window.lost);
}

/* Sets in the program whether the window ends with the current micro-batch, whose gradients are
 * then measured when they are made. */
static void last_note(sherd_engine *engine)
{
    engine->run.program.progress->is_last =
        sherdi_loop_ends_after(engine, engine->window.micro_seen + 1);
}

static sherd_status unit_release(sherd_engine *engine, int unit, sherd_pass pass)
{
    const sherdi_outcome seen =
        sherdi_outcome_of(sherdi_modules_unit_releasing(engine, unit, pass));
    sherd_status status;

    if (sherdi_unit_of(engine, unit)->acquired[pass] == 1) {
        sherdi_modules_unit_let_go(engine, unit, pass);
    }
    last_note(engine);
    status = sherdi_program_release(&engine->run.program, unit, pass);
    if (status != SHERD_OK) {
        return sherdi_loop_lose(engine, status);
    }
    return sherdi_outcome_end(&seen);
}

static sherd_status unit_call_check(const sherd_engine *engine, const char *call, sherd_unit unit,
                                    sherd_pass pass)
{
    SHERDI_TRY(sherdi_engine_need(engine, call, SHERDI_NEED_SEALED | SHERDI_NEED_UNPREPARED));
    SHERDI_TRY(sherdi_model_check_unit(&engine->model, call, unit));
    if ((int)pass < SHERD_FORWARD || (int)pass > SHERD_EVAL) {
        return sherdi_fail(
            SHERD_E_INVAL,
            "pass %d does not exist; it is SHERD_FORWARD, SHERD_BACKWARD or SHERD_EVAL", (int)pass);
    }
    if (pass == SHERD_BACKWARD && engine->settings.update.optimizer->is_inference) {
        return sherdi_fail(SHERD_E_STATE,
                           "unit %s: optimizer.type is none, so the engine is for inference and "
                           "has no gradients; acquire it for SHERD_FORWARD or SHERD_EVAL",
                           engine->model.units[unit].name);
    }
    return SHERD_OK;
}

sherd_status sherd_unit_acquire(sherd_engine *engine, sherd_unit unit, sherd_pass pass)
{
    sherd_status status;

    SHERDI_TRY(unit_call_check(engine, "sherd_unit_acquire", unit, pass));
    SHERDI_TRY(sherdi_modules_left_check(engine));
    SHERDI_TRY(sherdi_fill_finish(engine));
    sherdi_mem_forbid_begin();
    status = unit_acquire(engine, unit, pass);
    sherdi_mem_forbid_end();
    return sherdi_engine_outcome(engine, status);
}

sherd_status sherd_unit_release(sherd_engine *engine, sherd_unit unit, sherd_pass pass)
{
    sherd_status status;

    SHERDI_TRY(unit_call_check(engine, "sherd_unit_release", unit, pass));
    if (sherdi_unit_of(engine, unit)->acquired[pass] == 0) {
        return sherdi_fail(SHERD_E_STATE,
                           "unit %s is not acquired for %s; every release follows an "
                           "acquire of the same unit and pass",
                           engine->model.units[unit].name, sherdi_pass_name(pass));
    }
    sherdi_mem_forbid_begin();
    status = unit_release(engine, unit, pass);
    sherdi_mem_forbid_end();
    return sherdi_engine_outcome(engine, status);
}

sherd_status sherdi_loop_micro_batch_end(sherd_engine *engine)
{
    sherd_status status = sherdi_modules_micro_batch_ending(engine);

    SHERDI_RINGS(sherdi_run_end_activations(engine), (void)0);
    if (status != SHERD_OK) {
        return sherdi_loop_lose(engine, status);
    }
    last_note(engine);
    status = sherdi_program_micro_batch_end(&engine->run.program);
    return status == SHERD_OK ? SHERD_OK : sherdi_loop_lose(engine, status);
}

void sherdi_loop_window_begin(sherd_engine *engine)
{
    SHERDI_RINGS(sherdi_run_end_activations(engine), (void)0);
    /* its outcome concerns the window that is over */
    (void)sherdi_program_window_begin(&engine->run.program);
    engine->window.lost.status    = SHERD_OK;
    engine->window.micro_seen     = 0;
    engine->window.micro_backward = 0;
    engine->window.has_begun      = 0;
    engine->window.has_backward   = 0;
    engine->window.is_closing     = 0;
    engine->window.met            = 0;
    engine->window.weighing       = (sherdi_weighing){0};
    engine->window.first_micro    = engine->counters.micro_step;
}

int sherdi_loop_ends_after(const sherd_engine *engine, int micro_batches)
{
    return engine->window.is_closing || (!engine->settings.batch.opens_windows &&
                                         micro_batches >= engine->settings.batch.accumulation);
}

void sherdi_loop_fetch_ahead(sherd_engine *engine)
{
    /* a failed read is returned when its result is needed */
    (void)SHERDI_IF_OFFLOAD(fetch_ahead(&engine->run.program));
}

/* Returns where a segment's whole lies now; NULL: it is not gathered. */
static unsigned char *segment_whole(sherd_engine *engine, const sherdi_segment *segment)
{
    const sherdi_unit_state *state = sherdi_unit_of(engine, segment->unit);

    if (segment->is_resident) {
        return engine->memory.buffers[SHERDI_BUFFER_PARAMS] + segment->param_offset;
    }
    return state->is_gathered ? engine->memory.buffers[SHERDI_BUFFER_GATHER] + state->gathered_at +
                                    segment->gather_offset
                              : NULL;
}

unsigned char *sherdi_loop_param(sherd_engine *engine, size_t param)
{
    const sherdi_plan_param *layout  = &engine->plan->layout.params[param];
    const sherdi_segment    *segment = sherdi_param_segment(engine->plan, param);

    if (segment->is_bound) {
        return engine->model.params[param].bound_data;
    }
    return segment_whole(engine, segment) + layout->offset_elems * sherdi_compute_bytes(segment);
}
