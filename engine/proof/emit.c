#include "engine/proof/emit.h"

#include "base/checked.h"
#include "base/hash.h"
#include "engine/proof/dry.h"
#include "engine/proof/moves.h"
#include "engine/program/order.h"
#include "engine/run/engine_impl.h"
#include "engine/run/fill.h"
#include "offload/state.h"
#include "engine/plan/activations.h"
#include "engine/plan/offload.h"

#include <string.h>

typedef struct plain_run {
    sherd_engine     *engine;
    sherdi_emit_fn    fn;
    void             *ctx;
    sherdi_phase_name phase;          /* of the call under way */
    int               is_last_window; /* of those that are emitted */
    int is_last; /* the call ends it: its reads ahead are for a window that is not emitted */
} plain_run;

/* A step ends a micro-batch, and then, where the ranks compare their uses, the boundary begins. */
static sherdi_phase_name phase_of(plain_run *run, const sherdi_op *op)
{
    if (op->kind == SHERDI_OP_EXCHANGE && op->part == SHERDI_EXCHANGE_USES) {
        run->phase = SHERDI_IN_BOUNDARY;
    }
    if (op->flags & SHERDI_OP_AHEAD) {
        return op->ring == SHERDI_RING_STATE ? SHERDI_IN_BOUNDARY : SHERDI_IN_FORWARD;
    }
    return op->flags & SHERDI_OP_LATE ? SHERDI_IN_BACKWARD : run->phase;
}

static sherd_status op_emit(void *ctx, const sherdi_op *op)
{
    plain_run        *run   = ctx;
    sherdi_phase_name phase = phase_of(run, op);

    if (run->is_last && op->flags & SHERDI_OP_AHEAD && phase == SHERDI_IN_FORWARD) {
        return SHERD_OK;
    }
    return run->fn(run->ctx, phase, op);
}

const char *sherdi_phase_name_text(sherdi_phase_name phase)
{
    static const char *const NAMES[] = {"forward", "backward", "boundary", "eval", "fill"};

    return NAMES[phase];
}

/* Releases the units that are held until this acquire, the latest one first. */
static sherd_status held_release(const plain_run *run, const sherdi_sequence *sequence,
                                 size_t position)
{
    for (size_t back = 0; back <= position && back <= sequence->most_held; back++) {
        const sherdi_step_of_pass *step = &sequence->steps[position - back];

        if (step->last == position) {
            SHERDI_TRY(sherd_unit_release(run->engine, step->unit, step->pass));
        }
    }
    return SHERD_OK;
}

/* A unit that is held for backward, and listed for it once more, is refused by the engine, and has
 * its place in the plan. */
static sherd_status step_acquire(const plain_run *run, const sherdi_step_of_pass *step)
{
    sherd_engine *engine = run->engine;

    if (step->pass == SHERD_BACKWARD && !engine->plan->layout.units[step->unit].is_open_ended &&
        sherdi_unit_of(engine, step->unit)->acquired[SHERD_BACKWARD] > 0) {
        return sherdi_program_acquire(&engine->run.program, step->unit, step->pass);
    }
    return sherd_unit_acquire(engine, step->unit, step->pass);
}

/* A trainer puts and gets the activations that it has declared. */
static sherd_status step_activation(const plain_run *run, const sherdi_step_of_pass *step)
{
    sherd_engine *engine = run->engine;
    void         *memory;

    if (engine->plan->layout.units[step->unit].activation == SHERDI_NO_ACTIVATION ||
        sherdi_unit_of(engine, step->unit)->acquired[step->pass] > 1) {
        return SHERD_OK;
    }
    return step->pass == SHERD_BACKWARD ? sherd_activation_get(engine, step->unit, &memory)
                                        : sherd_activation_put(engine, step->unit, &memory);
}

static sherd_status pass_run(plain_run *run, const sherdi_sequence *sequence)
{
    static const sherdi_phase_name PHASES[] = {SHERDI_IN_FORWARD, SHERDI_IN_BACKWARD,
                                               SHERDI_IN_EVAL};

    for (size_t p = 0; p < sequence->num_steps; p++) {
        const sherdi_step_of_pass *step = &sequence->steps[p];

        run->phase = PHASES[step->pass];
        SHERDI_TRY(step_acquire(run, step));
        SHERDI_TRY(step_activation(run, step));
        SHERDI_TRY(held_release(run, sequence, p));
    }
    return SHERD_OK;
}

/* First values, in the order of the model. */
static sherd_status fill_run(plain_run *run)
{
    run->phase = SHERDI_IN_FILL;
    for (size_t p = 0; p < run->engine->plan->layout.num_params; p++) {
        SHERDI_TRY(sherdi_dry_fill(run->engine, p));
    }
    return sherdi_fill_finish(run->engine);
}

/* A window of `count` micro-batches that `end` ends. */
static sherd_status window_run(plain_run *run, int count, sherd_status (*end)(sherd_engine *engine))
{
    sherd_engine *engine = run->engine;

    for (int m = 0; m < count; m++) {
        run->phase   = SHERDI_IN_FORWARD;
        run->is_last = 0;
        if (m + 1 == count &&
            (engine->settings.batch.opens_windows || count < engine->settings.batch.accumulation)) {
            SHERDI_TRY(sherd_step_close_window(engine));
        }
        SHERDI_TRY(pass_run(run, &engine->plan->schedule.train));
        run->phase   = SHERDI_IN_BACKWARD;
        run->is_last = m + 1 == count && run->is_last_window;
        SHERDI_TRY(m + 1 == count ? end(engine) : sherd_step(engine, NULL));
    }
    return SHERD_OK;
}

static sherd_status step_wait(sherd_engine *engine)
{
    return sherd_step(engine, NULL);
}

static sherd_status windows_run(plain_run *run, sherdi_emit_parts parts)
{
    int is_queued = parts == SHERDI_EMIT_QUEUED;
    int windows   = is_queued ? SHERDI_EMIT_WINDOWS : 1;
    int micros = parts >= SHERDI_EMIT_ALL && run->engine->settings.batch.accumulation > 1 ? 2 : 1;

    for (int w = 0; w < windows; w++) {
        run->is_last_window = w + 1 == windows;
        SHERDI_TRY(window_run(run, micros, is_queued ? sherd_step_queue : step_wait));
    }
    return SHERD_OK;
}

/* Emits the first micro-batch, the second if all parts are wanted (all later ones are like it), the
 * boundary and a pass of EVAL. An inference engine has no windows: it emits one pass, and no
 * boundary. */
static sherd_status plain_run_all(plain_run *run, sherdi_emit_parts parts)
{
    if (run->engine->settings.update.optimizer->is_inference) {
        SHERDI_TRY(pass_run(run, &run->engine->plan->schedule.train));
    } else {
        SHERDI_TRY(windows_run(run, parts));
    }
    if (parts == SHERDI_EMIT_QUEUED) {
        return SHERD_OK;
    }
    run->phase   = SHERDI_IN_EVAL;
    run->is_last = 0;
    SHERDI_TRY(sherdi_run_settle(run->engine, SHERDI_RING_PARAMS)); /* those of the next window */
    return pass_run(run, &run->engine->plan->schedule.eval);
}

sherd_status sherdi_dry_emit(const sherdi_plan *plan, const sherdi_model *model,
                             sherdi_emit_parts parts, sherdi_emit_fn fn, void *ctx)
{
    plain_run    run = {.fn = fn, .ctx = ctx};
    sherdi_dry  *dry;
    sherd_status status;

    SHERDI_TRY(sherdi_dry_create(plan, model, op_emit, &run, &dry));
    run.engine = sherdi_dry_engine(dry);
    status     = parts == SHERDI_EMIT_FIRST ? fill_run(&run) : sherdi_dry_start(dry);
    if (status == SHERD_OK) {
        status = plain_run_all(&run, parts);
    }
    sherdi_dry_destroy(dry);
    return status;
}

/* ---------------------------------------------------------------- counting -- */

typedef struct counts {
    const sherdi_plan  *plan; /* its moves get them */
    const sherdi_model *model;
    uint64_t            later[SHERDI_MEDIA]; /* of the second micro-batch */
    int                 is_second;
    int                 was_backward;
} counts;

static void collective_count(const sherdi_plan *plan, sherdi_phase_name phase, const sherdi_op *op)
{
    uint64_t what[] = {(uint64_t)phase, (uint64_t)op->kind, (uint64_t)op->segment, op->elems,
                       sherdi_op_wire(plan, op)};

    if (sherdi_lane_is_wire(op->lane)) {
        plan->moves->num_collectives++;
        plan->moves->collectives_hash =
            sherdi_hash_bytes(plan->moves->collectives_hash, what, sizeof(what));
    }
}

/* Returns where what an operation moves is added. */
static uint64_t *sums_of(counts *c, sherdi_phase_name phase, const sherdi_op *op)
{
    sherdi_plan_moves *moves = c->plan->moves;

    /* once in a window, also where that is in its last backward */
    if (op->kind == SHERDI_OP_NORM || op->kind == SHERDI_OP_ACROSS) {
        return moves->step;
    }
    if (op->flags & SHERDI_OP_LATE) {
        return op->flags & SHERDI_OP_FIRST ? moves->micro : c->later;
    }
    c->is_second |= phase == SHERDI_IN_FORWARD && c->was_backward;
    c->was_backward = phase == SHERDI_IN_BACKWARD;
    if (phase != SHERDI_IN_FORWARD && phase != SHERDI_IN_BACKWARD) {
        return moves->step;
    }
    return c->is_second ? c->later : moves->micro;
}

static sherd_status op_count(void *ctx, sherdi_phase_name phase, const sherdi_op *op)
{
    counts *c = ctx;

    collective_count(c->plan, phase, op);
    if (phase != SHERDI_IN_EVAL) {
        sherdi_op_moves_add(c->plan, c->model, op, sums_of(c, phase, op));
    }
    return SHERD_OK;
}

/* Reports every micro-batch as moving the bytes of the first one; further bytes of later ones are
 * added to the step. */
sherd_status sherdi_dry_count(sherdi_plan *plan, const sherdi_model *model)
{
    counts             c     = {.plan = plan, .model = model};
    uint64_t           times = (uint64_t)plan->settings.batch.accumulation - 1;
    sherdi_plan_moves *moves = sherdi_alloc(plan->mem, SHERDI_MEM_CONTROL, sizeof(*moves));

    if (moves == NULL) {
        return SHERD_E_NOMEM;
    }
    plan->moves = moves;
    SHERDI_TRY(sherdi_dry_emit(plan, model, SHERDI_EMIT_ALL, op_count, &c));
    for (int medium = 0; medium < SHERDI_MEDIA && c.is_second; medium++) {
        moves->step[medium] += (c.later[medium] - moves->micro[medium]) * times;
    }
    if (plan->has_generations) {
        moves->index_bytes =
            sherdi_state_commit_bytes(sherdi_plan_stored(plan), SHERDI_STATE_NOTE_FRONT);
        moves->step[SHERDI_MOVES_WRITTEN] += moves->index_bytes;
    }
    return SHERD_OK;
}

sherd_status sherdi_dry_plan(const sherdi_model *model, const sherdi_settings *settings, int rank,
                             int world_size, const sherdi_machine *machine, sherdi_mem *mem,
                             sherdi_plan **out)
{
    sherdi_plan *plan;
    sherd_status status;

    SHERDI_TRY(sherdi_plan_create(model, settings, rank, world_size, machine, mem, &plan));
    status = sherdi_dry_count(plan, model);
    if (status != SHERD_OK) {
        sherdi_plan_destroy(plan);
        return status;
    }
    *out = plan;
    return SHERD_OK;
}
