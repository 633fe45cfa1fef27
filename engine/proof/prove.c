/* See prove.h. Below are first the calls of a trainer, then the windows; pair.c checks the
 * operations. */
#include "engine/proof/prove.h"

#include "base/checked.h"
#include "engine/proof/check.h"
#include "engine/proof/dry.h"
#include "engine/proof/pair.h"
#include "engine/proof/emit.h"
#include "engine/run/agree.h"
#include "engine/run/engine_impl.h"
#include "engine/run/restore.h"
#include "engine/run/store.h"
#include "engine/run/update.h"
#include "engine/run/values.h"
#include "engine/program/program_rings.h"
#include "engine/plan/activations.h"
#include "engine/proof/names.h"
#include "engine/program/values.h"

#include <stdio.h>
#include <string.h>

#define RANKS SHERDI_PAIR_RANKS

typedef struct check {
    const sherdi_model *model;
    const sherdi_plan  *plan; /* of the first rank */
    sherdi_pair         pair;
    unsigned char      *is_taken;  /* by step of the sequence: acquired and not yet released */
    size_t              turn;      /* number of the next acquire off the plan */
    size_t              looked_at; /* counts up: the next parameter whose values are looked at */
    float               nowhere;   /* where values would go, and come from */
    sherdi_prove_counts counts;
} check;

/* ------------------------------------------------------------------- calls -- */

/* The arguments of a call. */
typedef struct call_args {
    int           unit;
    sherd_pass    pass;
    sherdi_walk   walk;
    sherdi_values values;
} call_args;

typedef enum call_kind {
    CALL_FILL,
    CALL_START,
    CALL_ACQUIRE,
    CALL_RELEASE,
    CALL_ACTIVATION,
    CALL_STEP,
    CALL_QUEUE,
    CALL_WAIT,
    CALL_PREPARE,
    CALL_APPLY,
    CALL_APPLY_QUEUED,
    CALL_SKIP,
    CALL_DISCARD,
    CALL_CLOSE,
    CALL_UNDO,
    CALL_EVAL_BEGIN,
    CALL_EVAL_END,
    CALL_SAVE,
    CALL_LOAD,
    CALL_FINGERPRINT,
    CALL_GET,
    CALL_GRADIENT,
    CALL_PUT,
} call_kind;

/* -------------------------------------------------- calls of a trainer -- */

static sherd_status frozen_put(sherd_engine *engine)
{
    for (size_t p = 0; p < engine->model.num_params; p++) {
        sherdi_values values = {.param = p, .parts = SHERDI_VALUES_COMPUTE};
        size_t        end;

        if (engine->model.params[p].is_frozen) {
            sherdi_plan_held(engine->plan, p, engine->model.params[p].elems, &values.first, &end);
            values.count = end - values.first;
            SHERDI_TRY(sherdi_values_put(engine, &values, NULL, NULL));
        }
    }
    return SHERD_OK;
}

static sherd_status frozen_load(void *ctx)
{
    SHERDI_TRY(sherdi_values_begin(ctx));
    SHERDI_TRY(frozen_put(ctx));
    SHERDI_TRY(sherdi_values_end(ctx));
    return sherdi_agree_word(ctx, SHERDI_EXCHANGE_FROZEN, SHERD_OK, 0, NULL);
}

static sherd_status loaded_check(void *ctx)
{
    uint64_t words[SHERDI_WORDS_OF_LOADED] = {0};

    return sherdi_agree_on(ctx, SHERDI_EXCHANGE_LOADED, SHERD_OK, words, NULL, NULL);
}

static sherd_status rest_take(void *ctx)
{
    (void)ctx;
    return SHERD_OK;
}

/* Of what rests in memory, the fingerprint is read where it is not known. */
static sherd_status step_skip(sherd_engine *engine)
{
    sherd_step_params params;

    sherd_step_params_init(&params);
    params.overflow              = 1;
    engine->fingerprints.has_own = engine->fingerprints.has_own && engine->plan->has_generations;
    return sherd_step_apply(engine, &params);
}

static sherd_status apply_queue(sherd_engine *engine)
{
    sherd_step_params params;

    sherd_step_params_init(&params);
    params.is_queued = 1;
    return sherd_step_apply(engine, &params);
}

/* Reads the parts of a range that this rank has. */
static sherd_status values_get(sherd_engine *engine, const sherdi_values *values)
{
    SHERDI_TRY(sherdi_values_begin(engine));
    SHERDI_TRY(sherdi_values_get_here(engine, values, NULL, NULL));
    SHERDI_TRY(sherdi_values_end(engine));
    return sherdi_agree_status(engine, SHERD_OK);
}

static sherd_status gradient_get(sherd_engine *engine, const sherdi_values *values)
{
    SHERDI_TRY(sherdi_agree_status(engine, SHERD_OK));
    SHERDI_TRY(sherdi_values_begin(engine));
    SHERDI_TRY(sherdi_values_get_gradient(engine, values, NULL, NULL));
    SHERDI_TRY(sherdi_values_end(engine));
    SHERDI_TRY(sherdi_run_settle(engine, SHERDI_RING_GRADS));
    SHERDI_TRY(sherdi_program_param_norm(&engine->run.program, values->param));
    SHERDI_TRY(sherdi_run_settle(engine, SHERDI_RING_GRADS));
    return sherdi_agree_status(engine, SHERD_OK);
}

/* Writes the first of the parts. */
static sherd_status values_put(sherd_engine *engine, const sherdi_values *values)
{
    int part = 0;

    while ((values->parts >> part & 1) == 0) {
        part++;
    }
    return sherdi_values_write(engine, values->param, part, values->first, values->count, NULL);
}

static sherd_status activation_use(sherd_engine *engine, const call_args *what)
{
    void *memory;

    return what->pass == SHERD_BACKWARD ? sherd_activation_get(engine, what->unit, &memory)
                                        : sherd_activation_put(engine, what->unit, &memory);
}

static sherd_status call_run(sherd_engine *engine, call_kind kind, const call_args *what)
{
    const sherdi_load_parts parts = {frozen_load, NULL, loaded_check, rest_take, engine};
    sherd_param             param = (sherd_param)what->values.param;
    uint64_t                unused;

    switch (kind) {
    case CALL_FILL:
        return sherdi_dry_fill(engine, what->values.param);
    case CALL_START: /* the first call that needs values does it */
        return sherdi_fill_finish(engine);
    case CALL_ACQUIRE:
        return sherd_unit_acquire(engine, what->unit, what->pass);
    case CALL_RELEASE:
        return sherd_unit_release(engine, what->unit, what->pass);
    case CALL_ACTIVATION:
        return activation_use(engine, what);
    case CALL_STEP:
        return sherd_step(engine, NULL);
    case CALL_QUEUE:
        return sherd_step_queue(engine);
    case CALL_WAIT:
        return sherd_step_wait(engine, NULL);
    case CALL_PREPARE:
        return sherd_step_prepare(engine, NULL);
    case CALL_APPLY:
        return sherd_step_apply(engine, NULL);
    case CALL_APPLY_QUEUED:
        return apply_queue(engine);
    case CALL_SKIP:
        return step_skip(engine);
    case CALL_DISCARD:
        return sherd_step_discard(engine);
    case CALL_CLOSE:
        return sherd_step_close_window(engine);
    case CALL_UNDO:
        return sherd_step_undo(engine);
    case CALL_EVAL_BEGIN:
        return sherd_eval_begin(engine, NULL);
    case CALL_EVAL_END:
        return sherd_eval_end(engine);
    case CALL_SAVE:
        return sherdi_restore_save(engine, NULL, NULL);
    case CALL_LOAD:
        return sherdi_restore_load(engine, what->walk, &parts);
    case CALL_FINGERPRINT:
        return sherd_param_fingerprint(engine, param, &unused);
    case CALL_GET:
        return values_get(engine, &what->values);
    case CALL_GRADIENT:
        return gradient_get(engine, &what->values);
    case CALL_PUT:
        return values_put(engine, &what->values);
    }
    return SHERD_OK;
}

/* Makes a call on both ranks, or on rank `only`, counted from 1. Returns the status of the call,
 * before it is proved. */
static sherd_status call_make(check *check, int only, call_kind kind, const call_args *what)
{
    sherd_status statuses[RANKS] = {SHERD_OK, SHERD_OK};

    sherdi_pair_begin(&check->pair);
    for (int r = 0; r < RANKS; r++) {
        if (only == 0 || only == r + 1) {
            statuses[r] = call_run(check->pair.sides[r].engine, kind, what);
        }
    }
    if (only == 0 && statuses[0] != statuses[1]) {
        return sherdi_pair_part(&check->pair, check->pair.sides[0].num_ops,
                                check->pair.sides[1].num_ops);
    }
    return statuses[only == 2 ? 1 : 0];
}

static sherd_status call_with(check *check, call_kind kind, const call_args *what)
{
    SHERDI_TRY(call_make(check, 0, kind, what));
    return sherdi_pair_prove(&check->pair, 0);
}

static sherd_status call(check *check, call_kind kind)
{
    return call_with(check, kind, &(call_args){0});
}

/* ------------------------------------------------------------------ values -- */

/* Every parameter is filled twice, in the order of the model and in reverse, so that extents come
 * back. */
static sherd_status start(check *check)
{
    size_t params = check->plan->layout.num_params;

    for (size_t i = 0; i < 2 * params; i++) {
        call_args what = {.values.param = i < params ? i : 2 * params - 1 - i};

        SHERDI_TRY(call_with(check, CALL_FILL, &what));
    }
    return call(check, CALL_START);
}

/* Returns a half, or all, of the parameter whose turn it is. */
static call_args values_next(check *check)
{
    size_t    turn  = check->looked_at++;
    size_t    param = turn % check->plan->layout.num_params;
    size_t    elems = check->model->params[param].elems;
    call_args what  = {.values = {.param = param}};

    what.values.first = turn % 3 == 1 ? elems / 2 : 0;
    what.values.count = turn % 3 == 2 ? elems / 2 : elems - what.values.first;
    what.values.parts =
        SHERDI_VALUES_COMPUTE |
        ((1u << sherdi_segment_parts(sherdi_param_segment(check->plan, param))) - 1);
    return what;
}

static sherd_status values_read(check *check)
{
    for (int i = 0; i < 2; i++) {
        call_args what = values_next(check);

        SHERDI_TRY(call_with(check, CALL_GET, &what));
    }
    return SHERD_OK;
}

/* Reads a gradient while a step is prepared. */
static sherd_status gradient_read(check *check)
{
    call_args what = values_next(check);

    what.values.parts = SHERDI_VALUES_GRADIENT;
    return check->model->params[what.values.param].is_frozen
               ? SHERD_OK
               : call_with(check, CALL_GRADIENT, &what);
}

/* Writes a part of two parameters, and reads them back. */
static sherd_status values_write(check *check)
{
    for (int i = 0; i < 2; i++) {
        call_args what  = values_next(check);
        unsigned  parts = what.values.parts & ~SHERDI_VALUES_COMPUTE;

        what.values.parts = parts == 0 ? SHERDI_VALUES_COMPUTE
                            : i == 0   ? SHERDI_VALUES_MASTER
                                       : parts & ~(parts >> 1); /* the last part */
        SHERDI_TRY(call_with(check, CALL_PUT, &what));
        what.values.parts = parts | SHERDI_VALUES_COMPUTE;
        SHERDI_TRY(call_with(check, CALL_GET, &what));
    }
    return SHERD_OK;
}

/* -------------------------------------------------------- acquire and release -- */

static const sherdi_unit_state *state_of(const check *check, int unit)
{
    return sherdi_unit_of(check->pair.sides[0].engine, unit);
}

/* Puts or gets the unit's activation, if there is one. It is refused where none was put, or where
 * another one has its place. */
static sherd_status activation_try(check *check, int unit, sherd_pass pass)
{
    const call_args what = {.unit = unit, .pass = pass};
    sherd_status    status;

    if (check->plan->layout.units[unit].activation == SHERDI_NO_ACTIVATION) {
        return SHERD_OK;
    }
    status = call_make(check, 0, CALL_ACTIVATION, &what);
    if (status == SHERD_E_STATE && check->pair.sides[0].num_ops == 0) {
        check->counts.activations[0]++;
        return SHERD_OK;
    }
    SHERDI_TRY(status);
    check->counts.activations[1]++;
    return sherdi_pair_prove(&check->pair, 0);
}

static sherd_status unit_acquire_on(check *check, int only, int unit, sherd_pass pass,
                                    int *is_taken_out)
{
    const call_args what = {.unit = unit, .pass = pass};
    sherd_status    status;

    *is_taken_out = 0;
    status        = call_make(check, only, CALL_ACQUIRE, &what);
    if ((status == SHERD_E_STATE || status == SHERD_E_NOMEM) &&
        check->pair.sides[only == 2 ? 1 : 0].num_ops == 0) {
        return SHERD_OK; /* a gradient is complete or begun, or held memory is in the way */
    }
    SHERDI_TRY(status);
    *is_taken_out = 1;
    check->pair.acquires++;
    check->pair.unit = unit;
    check->pair.pass = pass;
    SHERDI_TRY(sherdi_pair_prove(&check->pair, only > 0));
    return only > 0 ? SHERD_OK : activation_try(check, unit, pass);
}

static sherd_status unit_acquire(check *check, int unit, sherd_pass pass, int *is_taken_out)
{
    return unit_acquire_on(check, 0, unit, pass, is_taken_out);
}

static sherd_status unit_release_on(check *check, int only, int unit, sherd_pass pass)
{
    const call_args what = {.unit = unit, .pass = pass};

    SHERDI_TRY(sherdi_pair_uses_end(&check->pair, unit, pass));
    SHERDI_TRY(call_make(check, only, CALL_RELEASE, &what));
    return sherdi_pair_prove(&check->pair, only > 0);
}

static sherd_status unit_release(check *check, int unit, sherd_pass pass)
{
    return unit_release_on(check, 0, unit, pass);
}

static int is_inference(const sherdi_plan *plan)
{
    return plan->settings.update.optimizer->is_inference;
}

/* Acquires and releases a unit that the plan does not expect here, in any pass that the engine
 * has. */
static sherd_status off_plan(check *check, int is_eval)
{
    size_t     turn = check->turn++;
    int        unit = (int)(turn * 5 / 3 % check->plan->layout.num_units);
    sherd_pass pass = is_eval                     ? SHERD_EVAL
                      : is_inference(check->plan) ? (turn % 3 == 0 ? SHERD_FORWARD : SHERD_EVAL)
                                                  : (sherd_pass)(turn % 3);
    int        is_taken;

    SHERDI_TRY(unit_acquire(check, unit, pass, &is_taken));
    check->counts.off_plan[is_taken]++;
    return is_taken ? unit_release(check, unit, pass) : SHERD_OK;
}

/* One rank alone uses the next open-ended unit twice, one use inside the other. Not if units are
 * gathered, or if it has an activation, which the use ends: then the ranks would differ in their
 * activations. */
static sherd_status use_alone(check *check)
{
    size_t units = check->plan->layout.num_units;
    int    only  = 1 + (int)(check->turn % RANKS);
    int    unit  = (int)(check->turn++ % units);
    int    taken[2];

    for (size_t u = 0; u < units && !check->plan->layout.units[unit].is_open_ended; u++) {
        unit = (int)((size_t)(unit + 1) % units);
    }
    if (!check->plan->layout.units[unit].is_open_ended ||
        check->plan->layout.units[unit].activation != SHERDI_NO_ACTIVATION ||
        check->plan->packing.buffers[SHERDI_BUFFER_GATHER].bytes > 0) {
        return SHERD_OK;
    }
    for (int i = 0; i < 2; i++) {
        SHERDI_TRY(unit_acquire_on(check, only, unit, SHERD_BACKWARD, &taken[i]));
    }
    for (int i = 0; i < 2; i++) {
        SHERDI_TRY(taken[i] ? unit_release_on(check, only, unit, SHERD_BACKWARD) : SHERD_OK);
    }
    return SHERD_OK;
}

/* The trainer reads a gradient that it retains. */
static sherd_status retained_look(check *check, const sherdi_segment *segment)
{
    sherdi_op ops[RANKS];

    for (int r = 0; r < RANKS; r++) {
        const sherdi_plan *plan = check->pair.sides[r].plan;

        ops[r] = sherdi_op_of_segment(check->plan, SHERDI_OP_USE, SHERDI_LANE_COMPUTE, segment);
        sherdi_op_use(&ops[r], SHERDI_USE_SRC, SHERDI_READS,
                      sherdi_program_micro_gradient(
                          plan, &plan->layout.segments[segment - check->plan->layout.segments]));
    }
    SHERDI_TRY(sherdi_hazard_op(check->pair.hazard, &ops[0], &ops[1]));
    return sherdi_hazard_end(check->pair.hazard, &ops[0], &ops[1]);
}

static sherd_status retained_look_all(check *check)
{
    for (size_t s = 0; s < check->plan->layout.num_segments; s++) {
        const sherdi_segment *segment = &check->plan->layout.segments[s];

        if (segment->has_gradient && check->plan->layout.units[segment->unit].retains_grads &&
            state_of(check, segment->unit)->is_complete) {
            SHERDI_TRY(retained_look(check, segment));
        }
    }
    return SHERD_OK;
}

/* Ends a micro-batch by `end`: each rank hears which units the other has used. */
static sherd_status micro_batch_end(check *check, call_kind end)
{
    SHERDI_TRY(retained_look_all(check));
    sherdi_dry_join(check->pair.sides[0].dry, check->pair.sides[1].dry);
    sherdi_dry_join(check->pair.sides[1].dry, check->pair.sides[0].dry);
    return call(check, end);
}

/* --------------------------------------------------------------- sequences -- */

/* How a pass over a sequence goes. */
typedef struct way {
    size_t end;     /* number of steps that are made */
    int    skipped; /* unit without a backward; -1: none */
    size_t leaves;  /* steps from one acquire off the plan to the next; 0: there are none */
    int    is_eval;
} way;

static sherd_status steps_release(check *check, const sherdi_sequence *sequence, size_t from,
                                  size_t position)
{
    for (size_t s = from; s <= position; s++) {
        const sherdi_step_of_pass *step = &sequence->steps[s];

        if (check->is_taken[s] && (step->last <= position)) {
            check->is_taken[s] = 0;
            SHERDI_TRY(unit_release(check, step->unit, step->pass));
        }
    }
    return SHERD_OK;
}

static sherd_status sequence_run(check *check, const sherdi_sequence *sequence, const way *way)
{
    size_t most = sequence->most_held;

    memset(check->is_taken, 0, sequence->num_steps);
    for (size_t s = 0; s < way->end; s++) {
        const sherdi_step_of_pass *step     = &sequence->steps[s];
        int                        is_taken = 0;

        if (step->pass != SHERD_BACKWARD || step->unit != way->skipped) {
            SHERDI_TRY(unit_acquire(check, step->unit, step->pass, &is_taken));
            check->counts.planned[is_taken]++;
        }
        check->is_taken[s] = (unsigned char)is_taken;
        if (way->leaves > 0 && s % way->leaves == 0) {
            SHERDI_TRY(off_plan(check, way->is_eval));
        }
        SHERDI_TRY(steps_release(check, sequence, s > most ? s - most : 0, s));
    }
    for (size_t s = 0; s < way->end; s++) { /* what would be held longer than the pass */
        if (check->is_taken[s]) {
            SHERDI_TRY(unit_release(check, sequence->steps[s].unit, sequence->steps[s].pass));
        }
    }
    return SHERD_OK;
}

static sherd_status eval_run(check *check)
{
    const sherdi_sequence *eval = &check->plan->schedule.eval;
    way                    all  = {.end = eval->num_steps, .skipped = -1};

    return sequence_run(check, eval, &all);
}

/* Evaluates between sherd_eval_begin and sherd_eval_end: in the second pass the units that the plan
 * keeps are still gathered, except those that an acquire off the plan has evicted. */
static sherd_status evals_run(check *check)
{
    const sherdi_sequence *eval = &check->plan->schedule.eval;
    way                    w    = {.end = eval->num_steps, .skipped = -1, .is_eval = 1};

    SHERDI_TRY(call(check, CALL_EVAL_BEGIN));
    SHERDI_TRY(sequence_run(check, eval, &w));
    w.leaves = 2;
    SHERDI_TRY(sequence_run(check, eval, &w));
    return call(check, CALL_EVAL_END);
}

/* ----------------------------------------------------------------- windows -- */

typedef enum window_kind {
    WINDOW_UPDATED = 0,
    WINDOW_SHORT,              /* one micro-batch, with a unit that has no backward; updated */
    WINDOW_SKIPPED,            /* because of an overflow */
    WINDOW_DROPPED,            /* instead of the update */
    WINDOW_STOPPED,            /* dropped in the middle of backward */
    WINDOW_QUEUED,             /* nobody waits for the update */
    WINDOW_UNDONE,             /* after its update */
    WINDOW_STOPPED_AND_UNDONE, /* in mid-backward, which undoes the update before */
    WINDOW_KINDS,
} window_kind;

static int is_stopped(window_kind kind)
{
    return kind == WINDOW_STOPPED || kind == WINDOW_STOPPED_AND_UNDONE;
}

static size_t backward_half(const sherdi_sequence *train)
{
    size_t first = 0;

    while (first < train->num_steps && train->steps[first].pass != SHERD_BACKWARD) {
        first++;
    }
    return first + (train->num_steps - first + 1) / 2;
}

/* The steps between acquires off the plan, in the n-th window of all: none at all, after each step,
 * or a few. */
static size_t leaves_of(size_t nth)
{
    static const size_t STEPS[] = {0, 1, 0, 7};

    return STEPS[nth % 4];
}

/* Open-ended units: the passes once more before the step, and a use by one rank alone. */
static sherd_status any_uses_run(check *check, size_t nth)
{
    way again = {.end = check->plan->schedule.train.num_steps, .skipped = -1};

    if (check->plan->layout.used_words == 0) {
        return SHERD_OK;
    }
    if (nth % 2 == 1) {
        SHERDI_TRY(sequence_run(check, &check->plan->schedule.train, &again));
    }
    return use_alone(check);
}

/* Closes the window before its last micro-batch, where it would not end there by itself. */
static sherd_status last_begin(check *check, int count)
{
    const sherdi_settings *settings = &check->plan->settings;

    return settings->batch.opens_windows || count < settings->batch.accumulation
               ? call(check, CALL_CLOSE)
               : SHERD_OK;
}

/* A micro-batch needs a backward of some unit. */
static sherd_status backward_ensure(check *check)
{
    int is_taken = 0;

    for (size_t u = 0; u < check->plan->layout.num_units && !is_taken &&
                       !check->pair.sides[0].engine->window.has_backward;
         u++) {
        SHERDI_TRY(unit_acquire(check, (int)u, SHERD_BACKWARD, &is_taken));
        SHERDI_TRY(is_taken ? unit_release(check, (int)u, SHERD_BACKWARD) : SHERD_OK);
    }
    return SHERD_OK;
}

/* Makes the micro-batches of a window, except the end of the last. Every third window has a pass of
 * EVAL in each, every third a save between them. */
static sherd_status micro_batches_run(check *check, window_kind kind, size_t nth)
{
    const sherdi_sequence *train    = &check->plan->schedule.train;
    const sherdi_settings *settings = &check->plan->settings;
    int                    is_many  = kind != WINDOW_SHORT && sherdi_settings_add_up(settings) &&
                  !(settings->numerics.deterministic && settings->batch.accumulation == 1);
    int count = is_many ? 2 : 1;

    for (int m = 0; m < count; m++) {
        int is_last = m + 1 == count;
        way w       = {.end = train->num_steps, .skipped = -1, .leaves = leaves_of(nth)};

        w.skipped = kind == WINDOW_SHORT ? (int)(nth % check->plan->layout.num_units) : -1;
        if (is_last && is_stopped(kind)) {
            w.end = backward_half(train);
        } else if (is_last) {
            SHERDI_TRY(last_begin(check, count));
        }
        SHERDI_TRY(sequence_run(check, train, &w));
        SHERDI_TRY(backward_ensure(check));
        SHERDI_TRY(any_uses_run(check, nth));
        if (nth % 3 == 1) {
            SHERDI_TRY(eval_run(check));
        }
        if (!is_last) {
            SHERDI_TRY(micro_batch_end(check, CALL_STEP));
            SHERDI_TRY(nth % 3 == 0 ? call(check, CALL_SAVE) : SHERD_OK);
        }
    }
    return SHERD_OK;
}

/* Whether there is a state before the last update, and no values were written since. */
static int can_undo(const check *check)
{
    const sherd_engine *engine = check->pair.sides[0].engine;

    return engine->storage.store->dry.has_previous &&
           !engine->storage.store->dry.record.note.is_written && engine->counters.step > 0;
}

/* The calls between two windows. */
static sherd_status between(check *check, window_kind kind, size_t nth)
{
    call_args what = values_next(check);

    SHERDI_TRY(nth % 2 == 1 ? call_with(check, CALL_FINGERPRINT, &what) : values_read(check));
    if (nth % 3 == 1) {
        SHERDI_TRY(call(check, CALL_SAVE));
    }
    if (kind == WINDOW_UNDONE && can_undo(check)) {
        SHERDI_TRY(call(check, CALL_UNDO));
    }
    if (nth % 5 == 2) {
        what.walk = nth % 2 == 0 ? SHERDI_WALK_LOAD : SHERDI_WALK_LOAD_SOME;
        SHERDI_TRY(call_with(check, CALL_LOAD, &what));
    }
    SHERDI_TRY(nth % 4 == 3 ? evals_run(check) : SHERD_OK);
    return nth % 3 == 2 ? values_write(check) : SHERD_OK;
}

/* Every other window is queued in two calls, and every other is waited for. */
static sherd_status queued_end(check *check, size_t nth)
{
    check->pair.is_late = nth % 3 != 0;
    if (nth / 2 % 2 == 0) {
        SHERDI_TRY(micro_batch_end(check, CALL_QUEUE));
    } else {
        SHERDI_TRY(micro_batch_end(check, CALL_PREPARE));
        SHERDI_TRY(nth % 2 == 1 ? gradient_read(check) : SHERD_OK);
        SHERDI_TRY(call(check, CALL_APPLY_QUEUED));
        check->counts.applied_queued++;
    }
    return nth % 2 == 0 ? call(check, CALL_WAIT) : SHERD_OK;
}

static sherd_status window_run(check *check, window_kind kind, size_t nth)
{
    SHERDI_TRY(micro_batches_run(check, kind, nth));
    switch (kind) {
    case WINDOW_STOPPED:
        return call(check, CALL_DISCARD);
    case WINDOW_STOPPED_AND_UNDONE:
        return call(check, can_undo(check) ? CALL_UNDO : CALL_DISCARD);
    case WINDOW_QUEUED:
        return queued_end(check, nth);
    case WINDOW_UPDATED:
        if (nth % 2 == 0) {
            SHERDI_TRY(micro_batch_end(check, CALL_STEP));
            return between(check, kind, nth);
        }
        break;
    default:
        break;
    }
    SHERDI_TRY(micro_batch_end(check, CALL_PREPARE));
    SHERDI_TRY(nth % 2 == 1 ? gradient_read(check) : SHERD_OK);
    if (kind == WINDOW_SKIPPED) {
        return call(check, CALL_SKIP);
    }
    if (kind == WINDOW_DROPPED) {
        return call(check, CALL_DISCARD);
    }
    SHERDI_TRY(call(check, CALL_APPLY));
    return between(check, kind, nth);
}

/* Whether the layout can have windows of the kind. */
static int is_possible(const check *check, window_kind kind)
{
    switch (kind) {
    case WINDOW_QUEUED:
        return sherdi_program_can_be_queued(check->plan) ||
               (check->plan->machine.has_device && !check->plan->has_files);
    case WINDOW_UNDONE:
    case WINDOW_STOPPED_AND_UNDONE:
        return check->plan->has_generations;
    default:
        return 1;
    }
}

/* Passes of an engine for inference, which has no windows. */
static sherd_status passes_run(check *check)
{
    for (size_t nth = 0; nth < 4 * WINDOW_KINDS; nth++) {
        way w = {
            .end = check->plan->schedule.train.num_steps, .skipped = -1, .leaves = leaves_of(nth)};

        SHERDI_TRY(sequence_run(check, &check->plan->schedule.train, &w));
        if (nth % 2 == 1) {
            SHERDI_TRY(eval_run(check));
        }
        SHERDI_TRY(between(check, WINDOW_UPDATED, nth));
    }
    return SHERD_OK;
}

/* Makes windows so that every kind comes after every kind: 0, 0 1, 0 2, ... 1, 1 2, ... and 0
 * again. */
static sherd_status windows_run(check *check)
{
    window_kind kinds[WINDOW_KINDS];
    int         count = 0;
    size_t      nth   = 0;

    for (int kind = 0; kind < WINDOW_KINDS; kind++) {
        if (is_possible(check, (window_kind)kind)) {
            kinds[count++] = (window_kind)kind;
        }
    }
    for (int i = 0; i < count; i++) {
        SHERDI_TRY(window_run(check, kinds[i], nth++));
        for (int j = i + 1; j < count; j++) {
            SHERDI_TRY(window_run(check, kinds[i], nth++));
            SHERDI_TRY(window_run(check, kinds[j], nth++));
        }
    }
    return window_run(check, WINDOW_UPDATED, nth);
}

/* ------------------------------------------------------------ open and close -- */

static const char *unit_name(const void *ctx, int unit)
{
    return ((const check *)ctx)->model->units[unit].name;
}

static const char *where_name(const void *ctx, int where)
{
    return sherdi_where_name(((const check *)ctx)->plan, where);
}

static sherd_status hazard_open(check *check, const sherdi_prove_params *params)
{
    sherdi_hazard_params of = {.has_device = check->plan->machine.has_device,
                               .num_units  = check->plan->layout.num_units,
                               .uses_last  = 1,
                               .drive_room = sherdi_program_transfers(check->plan),
                               .unit_name  = unit_name,
                               .where_name = where_name,
                               .ctx        = check};

    if (params != NULL) {
        of.drop        = params->drop;
        of.by          = params->by;
        of.followed    = params->followed;
        of.kind        = params->kind;
        of.number      = params->number;
        of.last_number = params->last_number;
        if (params->drop == SHERDI_HAZARD_DROP_AWAIT) {
            check->pair.dropped_await = (int)params->number;
        }
    }
    return sherdi_hazard_open(&of, check->pair.mem, &check->pair.hazard);
}

static sherd_status check_open(check *check, const sherdi_prove_params *params)
{
    size_t steps = sherdi_max_size(check->plan->schedule.train.num_steps,
                                   check->plan->schedule.eval.num_steps);

    for (int r = 0; r < RANKS; r++) {
        sherdi_pair_side *side = &check->pair.sides[r];

        SHERDI_TRY(
            sherdi_dry_create(side->plan, check->model, sherdi_pair_collect, side, &side->dry));
        side->engine = sherdi_dry_engine(side->dry);
    }
    check->is_taken = sherdi_alloc_array(check->pair.mem, SHERDI_MEM_CONTROL, steps, 1);
    return check->is_taken == NULL ? SHERD_E_NOMEM : hazard_open(check, params);
}

static void check_close(check *check)
{
    for (int r = 0; r < RANKS; r++) {
        sherdi_dry_destroy(check->pair.sides[r].dry);
    }
    sherdi_pair_close(&check->pair);
    sherdi_free(check->is_taken);
}

sherd_status sherdi_prove(const sherdi_plan *one, const sherdi_plan *other,
                          const sherdi_model *model, const sherdi_prove_params *params)
{
    check check = {
        .model = model,
        .plan  = one,
        .pair  = {.mem   = one->mem,
                  .sides = {{.plan = one, .mem = one->mem}, {.plan = other, .mem = one->mem}},
                  .dropped_await = -1}};
    sherd_status status = check_open(&check, params);

    if (status == SHERD_OK) {
        status = start(&check);
    }
    if (status == SHERD_OK) {
        status = is_inference(one) ? passes_run(&check) : windows_run(&check);
    }
    if (params != NULL && params->counts != NULL && check.pair.hazard != NULL) {
        check.counts.follows        = sherdi_hazard_follows(check.pair.hazard);
        check.counts.updates_queued = check.pair.updates_queued;
        *params->counts             = check.counts;
    }
    check_close(&check);
    return status;
}

static sherd_status pair_of_plans_prove(const sherdi_plan *one, const sherdi_plan *other,
                                        const sherdi_model *model)
{
    return sherdi_prove(one, other, model, NULL);
}

sherd_status sherdi_prove_ranks(const sherdi_plan *plan, const sherdi_model *model)
{
    static const sherdi_plan_makers BY = {sherdi_dry_plan, pair_of_plans_prove};

    return sherdi_plan_check_ranks(plan, model, &BY);
}

sherd_status sherdi_prove_next(const sherdi_plan *plan, const sherdi_model *model)
{
    int          rank = (plan->rank + 1) % plan->world_size;
    sherdi_mem   mem;
    sherdi_plan *peer;
    sherd_status status;

    sherdi_mem_init(&mem);
    SHERDI_TRY(sherdi_plan_create(model, &plan->settings, sherdi_plan_rank_of_all(plan, rank),
                                  sherdi_plan_all_ranks(plan), &plan->machine, &mem, &peer));
    status = sherdi_prove(peer, plan, model, NULL);
    sherdi_plan_destroy(peer);
    return status;
}
