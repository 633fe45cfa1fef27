/* See program_check.h. Below are first the events on two ranks, then the trainer's calls as events (as in fill.c, values.c,
 * loop.c, step.c, update.c, restore.c), then the windows. */
#include "engine/plan/program_check.h"

#include "base/checked.h"
#include "engine/plan/program_calls.h"

#include <string.h>

#define RANKS 2

typedef struct side {
    const sherdi_plan *plan;
    sherdi_mem        *mem;
    sherdi_progress    progress;
    sherdi_op         *ops; /* operations of the event */
    size_t             num_ops, cap_ops;
} side;

/* An operation that an acquire emits for its use, until the release. */
typedef struct use {
    sherdi_op  ops[RANKS];
    int        unit; /* that was acquired */
    sherd_pass pass;
    size_t     acquire;
} use;

typedef struct check {
    const sherdi_model *model;
    const sherdi_plan  *plan; /* of the first rank */
    sherdi_mem         *mem;
    sherdi_calls        calls;
    side                sides[RANKS];
    sherdi_hazard      *hazard;
    use                *uses;
    size_t              num_uses, cap_uses;
    size_t              acquires;
    unsigned char      *is_taken;  /* by step of the sequence: acquired and not yet released */
    size_t              turn;      /* number of the next acquire off the plan */
    size_t              looked_at; /* counts up: the next parameter whose values are looked at */
    int                 is_last;   /* 1: in the last micro-batch of the window */
} check;

/* ------------------------------------------------------------------ events -- */

/* Whether each rank carries out the event by itself, for the parts that it holds of a parameter. */
static int is_alone(const sherdi_event *e)
{
    return e->kind == SHERDI_EVENT_FILL || e->kind == SHERDI_EVENT_FINGERPRINT ||
           e->kind == SHERDI_EVENT_PUT || e->kind == SHERDI_EVENT_GET ||
           e->kind == SHERDI_EVENT_NORM || e->plain == sherdi_program_fill_end;
}

/* Checks that no range exceeds its buffer. Scalars of kernels have no buffer in the plan if there is no device. */
static sherd_status bounds_check(const sherdi_plan *plan, const sherdi_op *op)
{
    for (int role = 0; role < SHERDI_USES; role++) {
        const sherdi_range *use = &op->uses[role];

        if (use->where >= 0 && use->where < SHERDI_BUFFERS && use->where != SHERDI_BUFFER_SCALARS &&
            (use->offset > plan->buffers[use->where].bytes ||
             use->bytes > plan->buffers[use->where].bytes - use->offset)) {
            return sherdi_fail(SHERD_E_STATE,
                               "rank %d: the operation %s of segment %d %s %zu bytes at offset %zu "
                               "of %s, which has only %zu",
                               plan->rank, sherdi_op_kind_name(op->kind), op->segment,
                               sherdi_access_name((sherdi_access)use->access), use->bytes,
                               use->offset, sherdi_where_name(plan, use->where),
                               plan->buffers[use->where].bytes);
        }
    }
    return SHERD_OK;
}

/* Collects an operation as the machine would carry it out: on a device every gather meets; and where collectives are ordered on
 * the device's lane, control data does not wait for that lane. */
static sherd_status op_collect(void *ctx, const sherdi_op *op)
{
    side      *side = ctx;
    sherdi_op *copy;

    SHERDI_TRY(bounds_check(side->plan, op));
    SHERDI_TRY(sherdi_grow(side->mem, SHERDI_MEM_CONTROL, (void **)&side->ops, &side->cap_ops,
                           side->num_ops + 1, sizeof(*side->ops)));
    copy  = &side->ops[side->num_ops++];
    *copy = *op;
    if (side->plan->machine.has_device && (op->flags & SHERDI_OP_STABLE) != 0) {
        copy->flags |= SHERDI_OP_MEETS;
    }
    if (side->plan->machine.is_on_lane && (op->flags & SHERDI_OP_WAITS) != 0) {
        copy->lane = SHERDI_LANE_HOST;
    }
    return SHERD_OK;
}

static sherd_status ranks_part(const check *check)
{
    return sherdi_fail(
        SHERD_E_STATE,
        "ranks %d and %d do different operations in the same event (%zu and %zu of them)",
        check->sides[0].plan->rank, check->sides[1].plan->rank, check->sides[0].num_ops,
        check->sides[1].num_ops);
}

/* An event that one rank carries out alone is the same operations without bytes on the other. */
static sherd_status side_mirror(side *to, const side *from)
{
    to->num_ops = 0;
    for (size_t i = 0; i < from->num_ops; i++) {
        sherdi_op op = from->ops[i];

        for (int role = 0; role < SHERDI_USES; role++) {
            op.uses[role].where = SHERDI_AT_NOWHERE;
        }
        SHERDI_TRY(op_collect(to, &op));
    }
    return SHERD_OK;
}

static sherd_status event_collect_alone(check *check, int only, const sherdi_event *e)
{
    side          *side    = &check->sides[only - 1];
    sherdi_program program = {side->plan, check->model, &side->progress, op_collect, side};

    side->num_ops = 0;
    SHERDI_TRY(sherdi_event_run(&program, e));
    return side_mirror(&check->sides[RANKS - only], side);
}

/* Collects the operations of an event on both ranks. `only`: 0, or the rank that has the event alone, counted from 1. */
static sherd_status event_collect(check *check, int only, const sherdi_event *e)
{
    const size_t *counts[RANKS] = {&check->sides[0].num_ops, &check->sides[1].num_ops};
    sherd_status  statuses[RANKS];

    if (only > 0) {
        return event_collect_alone(check, only, e);
    }
    for (int r = 0; r < RANKS; r++) {
        side          *side    = &check->sides[r];
        sherdi_program program = {side->plan, check->model, &side->progress, op_collect, side};

        side->num_ops = 0;
        statuses[r]   = sherdi_event_run(&program, e);
    }
    if (statuses[0] != statuses[1] || (!is_alone(e) && *counts[0] != *counts[1])) {
        return ranks_part(check);
    }
    return statuses[0];
}

static sherd_status use_add(check *check, const sherdi_event *e, const sherdi_op *one,
                            const sherdi_op *other)
{
    SHERDI_TRY(sherdi_grow(check->mem, SHERDI_MEM_CONTROL, (void **)&check->uses, &check->cap_uses,
                           check->num_uses + 1, sizeof(*check->uses)));
    check->uses[check->num_uses++] =
        (use){.ops = {*one, *other}, .unit = e->what, .pass = e->pass, .acquire = check->acquires};
    return SHERD_OK;
}

/* Checks the operations of an event for hazards. A rank that has fewer parts of a parameter does nothing for the rest. */
static sherd_status event_prove(check *check, const sherdi_event *e)
{
    const side     *sides   = check->sides;
    const sherdi_op nothing = sherdi_op_of(SHERDI_OP_FILL, SHERDI_LANE_HOST);

    for (size_t i = 0; i < sherdi_max_size(sides[0].num_ops, sides[1].num_ops); i++) {
        const sherdi_op *one   = i < sides[0].num_ops ? &sides[0].ops[i] : &nothing;
        const sherdi_op *other = i < sides[1].num_ops ? &sides[1].ops[i] : &nothing;

        if (!is_alone(e) && (one->kind != other->kind || one->lane != other->lane)) {
            return ranks_part(check);
        }
        SHERDI_TRY(sherdi_hazard_op(check->hazard, one, other));
        if (one->kind == SHERDI_OP_USE) {
            SHERDI_TRY(use_add(check, e, one, other));
        }
    }
    return SHERD_OK;
}

static sherd_status event_do_on(check *check, int only, sherdi_event e)
{
    SHERDI_TRY(event_collect(check, only, &e));
    return event_prove(check, &e);
}

static sherd_status event_do(check *check, sherdi_event e)
{
    return event_do_on(check, 0, e);
}

static sherd_status event_take(void *ctx, const sherdi_event *e)
{
    return event_do(ctx, *e);
}

static sherd_status happen(check *check, sherdi_plain_fn plain)
{
    return sherdi_calls_plain(&check->calls, plain);
}

/* What the ranks tell each other does not matter here. */
static sherd_status exchange(check *check)
{
    return sherdi_calls_exchange(&check->calls, SHERDI_EXCHANGE_STATUS);
}

static sherd_status generation_change(check *check, sherdi_op_kind how)
{
    return sherdi_calls_generation(&check->calls, how);
}

static sherd_status ring_settle(check *check, sherdi_ring ring)
{
    return sherdi_calls_settle(&check->calls, ring);
}

static sherd_status rings_settle(check *check)
{
    for (int ring = 0; ring < SHERDI_RINGS; ring++) {
        SHERDI_TRY(ring_settle(check, (sherdi_ring)ring));
    }
    return SHERD_OK;
}

/* ------------------------------------------------------------ first values -- */

/* As in fill.c. Parameters are filled once in the order of the model and once in reverse, so that extents come back. */
static sherd_status start(check *check)
{
    size_t params = check->plan->num_params;

    for (size_t p = 0; p < params; p++) {
        SHERDI_TRY(event_do(check, (sherdi_event){.kind = SHERDI_EVENT_FILL, .what = (int)p}));
    }
    for (size_t p = params; p-- > 0;) {
        SHERDI_TRY(event_do(check, (sherdi_event){.kind = SHERDI_EVENT_FILL, .what = (int)p}));
    }
    SHERDI_TRY(sherdi_calls_filled(&check->calls));
    SHERDI_TRY(exchange(check));
    return happen(check, sherdi_program_fetch_ahead);
}

/* ------------------------------------------------------------------ values -- */

/* Returns a half, or all, of the parameter whose turn it is. */
static sherdi_values values_next(check *check)
{
    size_t        turn   = check->looked_at++;
    sherdi_values values = {.param = turn % check->plan->num_params};
    size_t        elems  = check->model->params[values.param].elems;

    values.first = turn % 3 == 1 ? elems / 2 : 0;
    values.count = turn % 3 == 2 ? elems / 2 : elems - values.first;
    values.parts =
        SHERDI_VALUES_COMPUTE |
        ((1u << sherdi_segment_parts(sherdi_param_segment(check->plan, values.param))) - 1);
    return values;
}

/* Empties the slots of state and parameters. */
static sherd_status values_settle(check *check)
{
    SHERDI_TRY(ring_settle(check, SHERDI_RING_STATE));
    return ring_settle(check, SHERDI_RING_PARAMS);
}

/* As in fill.c: the fingerprint of one parameter. */
static sherd_status fingerprint(check *check)
{
    if (check->plan->num_params == 0) {
        return SHERD_OK;
    }
    SHERDI_TRY(values_settle(check));
    SHERDI_TRY(event_do(
        check, (sherdi_event){.kind = SHERDI_EVENT_FINGERPRINT, .values = values_next(check)}));
    return values_settle(check);
}

/* As in values.c: reads values of two parameters. */
static sherd_status values_read(check *check)
{
    if (check->plan->num_params == 0) {
        return SHERD_OK;
    }
    SHERDI_TRY(exchange(check));
    SHERDI_TRY(values_settle(check));
    for (int i = 0; i < 2; i++) {
        SHERDI_TRY(event_do(
            check, (sherdi_event){.kind = SHERDI_EVENT_GET, .values = values_next(check)}));
    }
    SHERDI_TRY(values_settle(check));
    return exchange(check);
}

/* Reads a gradient while a step is prepared. */
static sherd_status gradient_read(check *check)
{
    sherdi_values values;

    if (check->plan->num_params == 0) {
        return SHERD_OK;
    }
    values       = values_next(check);
    values.parts = SHERDI_VALUES_GRADIENT;
    if (check->model->params[values.param].is_frozen) {
        return SHERD_OK;
    }
    SHERDI_TRY(exchange(check));
    SHERDI_TRY(event_do(check, (sherdi_event){.kind = SHERDI_EVENT_GET, .values = values}));
    SHERDI_TRY(ring_settle(check, SHERDI_RING_GRADS));
    SHERDI_TRY(event_do(check, (sherdi_event){.kind = SHERDI_EVENT_NORM, .values = values}));
    SHERDI_TRY(ring_settle(check, SHERDI_RING_GRADS));
    return exchange(check);
}

/* Writes values of two parameters, with one commit, and reads them back. */
static sherd_status values_write(check *check)
{
    if (check->plan->num_params == 0) {
        return SHERD_OK;
    }
    SHERDI_TRY(exchange(check));
    SHERDI_TRY(happen(check, sherdi_program_forget));
    SHERDI_TRY(values_settle(check));
    for (int i = 0; i < 2; i++) {
        sherdi_event put = {.kind = SHERDI_EVENT_PUT, .values = values_next(check)};
        sherdi_event get = {.kind = SHERDI_EVENT_GET, .values = put.values};

        if (put.values.parts != SHERDI_VALUES_COMPUTE) {
            put.values.parts &= ~SHERDI_VALUES_COMPUTE;
        }
        SHERDI_TRY(event_do(
            check, (sherdi_event){.kind = SHERDI_EVENT_FINGERPRINT, .values = put.values}));
        SHERDI_TRY(event_do(check, put));
        SHERDI_TRY(event_do(check, get));
    }
    SHERDI_TRY(sherdi_calls_filled(&check->calls));
    SHERDI_TRY(exchange(check));
    return happen(check, sherdi_program_fetch_ahead);
}

/* -------------------------------------------------------- acquire and release -- */

static const sherdi_unit_state *state_of(const check *check, int unit)
{
    return &check->sides[0].progress.units[unit];
}

/* Whether the engine refuses the acquire before the program sees it (loop.c). */
static int is_refused(const check *check, int unit, sherd_pass pass)
{
    int reached;
    int is_refused = pass == SHERD_BACKWARD && !check->plan->units[unit].is_open_ended &&
                     state_of(check, unit)->acquired[SHERD_BACKWARD] > 0;

    for (size_t n = 0; (reached = sherdi_program_reached(check->model, unit, n)) >= 0; n++) {
        is_refused |= pass == SHERD_BACKWARD && state_of(check, reached)->is_complete;
    }
    return is_refused;
}

static sherd_status unit_acquire_on(check *check, int only, int unit, sherd_pass pass,
                                    int *is_taken_out)
{
    sherdi_event e      = {.kind = SHERDI_EVENT_ACQUIRE, .what = unit, .pass = pass};
    const side  *acting = &check->sides[only > 0 ? only - 1 : 0];
    size_t       before = acting->cap_ops;
    sherd_status status;

    *is_taken_out = 0;
    if (is_refused(check, unit, pass)) {
        return SHERD_OK;
    }
    status = event_collect(check, only, &e);
    if (status == SHERD_E_NOMEM && acting->num_ops == 0 &&
        before == acting->cap_ops) { /* held memory is in the way */
        return ring_settle(check, SHERDI_RING_PARAMS);
    }
    SHERDI_TRY(status);
    *is_taken_out = 1;
    check->acquires++;
    SHERDI_TRY(event_prove(check, &e));
    if (pass == SHERD_BACKWARD && check->is_last && check->plan->settings.pipeline_read) {
        return happen(check, sherdi_program_read_ahead);
    }
    return SHERD_OK;
}

static sherd_status unit_acquire(check *check, int unit, sherd_pass pass, int *is_taken_out)
{
    return unit_acquire_on(check, 0, unit, pass, is_taken_out);
}

/* Ends the trainer's use where it releases the unit. */
static sherd_status unit_release_on(check *check, int only, int unit, sherd_pass pass)
{
    size_t kept  = 0;
    size_t which = 0;

    for (size_t i = 0; i < check->num_uses; i++) {
        if (check->uses[i].unit == unit && check->uses[i].pass == pass) {
            which = sherdi_max_size(which, check->uses[i].acquire);
        }
    }
    for (size_t i = 0; i < check->num_uses; i++) {
        const use *u = &check->uses[i];

        if (u->unit == unit && u->pass == pass && u->acquire == which) {
            SHERDI_TRY(sherdi_hazard_end(check->hazard, &u->ops[0], &u->ops[1]));
        } else {
            check->uses[kept++] = *u;
        }
    }
    check->num_uses = kept;
    return event_do_on(check, only,
                       (sherdi_event){.kind = SHERDI_EVENT_RELEASE, .what = unit, .pass = pass});
}

static sherd_status unit_release(check *check, int unit, sherd_pass pass)
{
    return unit_release_on(check, 0, unit, pass);
}

/* Acquires and releases a unit, in any pass, that the plan does not expect here. */
static sherd_status off_plan(check *check)
{
    size_t     turn = check->turn++;
    int        unit = (int)(turn * 5 / 3 % check->plan->num_units);
    sherd_pass pass = (sherd_pass)(turn % 3);
    int        is_taken;

    SHERDI_TRY(unit_acquire(check, unit, pass, &is_taken));
    return is_taken ? unit_release(check, unit, pass) : SHERD_OK;
}

/* ------------------------------------------------- uses of any number (loop.c) -- */

/* One rank alone uses the next open-ended unit twice, one use inside the other. Not if units are gathered: then the ranks would
 * differ in what is gathered. */
static sherd_status use_alone(check *check)
{
    size_t units = check->plan->num_units;
    int    only  = 1 + (int)(check->turn % RANKS);
    int    unit  = (int)(check->turn++ % units);
    int    taken[2];

    for (size_t u = 0; u < units && !check->plan->units[unit].is_open_ended; u++) {
        unit = (int)((size_t)(unit + 1) % units);
    }
    if (!check->plan->units[unit].is_open_ended ||
        check->plan->buffers[SHERDI_BUFFER_GATHER].bytes > 0) {
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

/* As in agree.c: a rank begins the gradients that only the other rank has. */
static sherd_status used_agree(check *check)
{
    if (check->plan->num_open_ended == 0) {
        return SHERD_OK;
    }
    SHERDI_TRY(exchange(check));
    for (size_t u = 0; u < check->plan->num_units; u++) {
        int has[RANKS] = {check->sides[0].progress.units[u].has_gradient,
                          check->sides[1].progress.units[u].has_gradient};

        if (has[0] != has[1]) {
            SHERDI_TRY(event_do_on(check, has[0] ? 2 : 1,
                                   (sherdi_event){.kind = SHERDI_EVENT_BEGIN, .what = (int)u}));
        }
    }
    return SHERD_OK;
}

/* The trainer reads a gradient that it retains. */
static sherd_status retained_look(check *check, const sherdi_segment *segment)
{
    sherdi_op ops[RANKS];

    for (int r = 0; r < RANKS; r++) {
        const sherdi_plan *plan = check->sides[r].plan;

        ops[r] = sherdi_op_of_segment(check->plan, SHERDI_OP_USE, SHERDI_LANE_COMPUTE, segment);
        sherdi_op_use(
            &ops[r], SHERDI_USE_SRC, SHERDI_READS,
            sherdi_program_micro_gradient(plan, &plan->segments[segment - check->plan->segments]));
    }
    SHERDI_TRY(sherdi_hazard_op(check->hazard, &ops[0], &ops[1]));
    return sherdi_hazard_end(check->hazard, &ops[0], &ops[1]);
}

static sherd_status retained_look_all(check *check)
{
    for (size_t s = 0; s < check->plan->num_segments; s++) {
        const sherdi_segment *segment = &check->plan->segments[s];

        if (segment->has_gradient && check->plan->units[segment->unit].retains_grads &&
            state_of(check, segment->unit)->is_complete) {
            SHERDI_TRY(retained_look(check, segment));
        }
    }
    return SHERD_OK;
}

static sherd_status micro_batch_end(check *check)
{
    SHERDI_TRY(retained_look_all(check));
    SHERDI_TRY(used_agree(check));
    return happen(check, sherdi_program_micro_batch_end);
}

/* --------------------------------------------------------------- sequences -- */

/* How a pass over a sequence goes. */
typedef struct way {
    size_t end;     /* number of steps that are run */
    int    skipped; /* unit without a backward; -1: none */
    size_t leaves;  /* steps from one acquire off the plan to the next; 0: there are none */
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
        }
        check->is_taken[s] = (unsigned char)is_taken;
        if (way->leaves > 0 && s % way->leaves == 0) {
            SHERDI_TRY(off_plan(check));
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
    const sherdi_sequence *eval = &check->plan->eval;
    way                    all  = {.end = eval->num_steps, .skipped = -1};

    return sequence_run(check, eval, &all);
}

/* Evaluates between sherd_eval_begin and sherd_eval_end: in the second pass the units that the plan keeps are still gathered,
 * except those that an acquire off the plan has evicted. */
static sherd_status evals_run(check *check)
{
    const sherdi_sequence *eval = &check->plan->eval;
    way                    w    = {.end = eval->num_steps, .skipped = -1};

    for (int r = 0; r < RANKS; r++) {
        check->sides[r].progress.eval_keep = SIZE_MAX;
    }
    SHERDI_TRY(sequence_run(check, eval, &w));
    w.leaves = 2;
    SHERDI_TRY(sequence_run(check, eval, &w));
    for (int r = 0; r < RANKS; r++) {
        check->sides[r].progress.eval_keep = 0;
    }
    return happen(check, sherdi_program_eval_leave);
}

/* -------------------------------------------------------- the trainer's calls -- */

static sherd_status window_drop(check *check)
{
    SHERDI_TRY(ring_settle(check, SHERDI_RING_PARAMS));
    SHERDI_TRY(happen(check, sherdi_program_forget));
    SHERDI_TRY(ring_settle(check, SHERDI_RING_STATE));
    SHERDI_TRY(ring_settle(check, SHERDI_RING_GRADS));
    SHERDI_TRY(happen(check, sherdi_program_window_begin));
    return happen(check, sherdi_program_fetch_ahead);
}

/* The engine walks for the fingerprint only if it is not known yet. */
static sherd_status apply_skip(check *check)
{
    SHERDI_TRY(happen(check, sherdi_program_window_begin));
    SHERDI_TRY(ring_settle(check, SHERDI_RING_STATE));
    SHERDI_TRY(sherdi_calls_walk(&check->calls, SHERDI_WALK_FINGERPRINT));
    SHERDI_TRY(exchange(check));
    return happen(check, sherdi_program_fetch_ahead);
}

static sherd_status apply(check *check)
{
    SHERDI_TRY(sherdi_calls_apply(&check->calls));
    SHERDI_TRY(happen(check, sherdi_program_fetch_ahead));
    return happen(check, sherdi_program_window_begin);
}

/* As in restore.c. */
static sherd_status undo(check *check)
{
    SHERDI_TRY(rings_settle(check));
    SHERDI_TRY(happen(check, sherdi_program_window_begin));
    SHERDI_TRY(happen(check, sherdi_program_forget));
    SHERDI_TRY(generation_change(check, SHERDI_OP_ABANDON));
    SHERDI_TRY(generation_change(check, SHERDI_OP_ROLLBACK));
    SHERDI_TRY(exchange(check));
    SHERDI_TRY(sherdi_calls_walk(&check->calls, SHERDI_WALK_REPUBLISH));
    SHERDI_TRY(exchange(check));
    SHERDI_TRY(happen(check, sherdi_program_publish));
    SHERDI_TRY(exchange(check));
    return happen(check, sherdi_program_fetch_ahead);
}

/* As in update.c. */
static sherd_status save(check *check)
{
    SHERDI_TRY(ring_settle(check, SHERDI_RING_STATE));
    return sherdi_calls_walk(&check->calls, SHERDI_WALK_SAVE);
}

/* As in load.c; values_write proves the loading of frozen parameters. */
static sherd_status load(check *check, sherdi_walk walk)
{
    SHERDI_TRY(rings_settle(check));
    SHERDI_TRY(happen(check, sherdi_program_forget));
    SHERDI_TRY(generation_change(check, SHERDI_OP_ABANDON));
    SHERDI_TRY(exchange(check));
    SHERDI_TRY(sherdi_calls_walk(&check->calls, walk));
    SHERDI_TRY(exchange(check));
    SHERDI_TRY(happen(check, sherdi_program_publish));
    SHERDI_TRY(exchange(check)); /* of the fingerprints */
    SHERDI_TRY(generation_change(check, SHERDI_OP_COMMIT));
    SHERDI_TRY(exchange(check));
    return happen(check, sherdi_program_fetch_ahead);
}

/* ----------------------------------------------------------------- windows -- */

typedef enum window_kind {
    WINDOW_UPDATED = 0,
    WINDOW_SHORT,              /* one micro-batch, with a unit that has no backward; updated */
    WINDOW_SKIPPED,            /* because of an overflow */
    WINDOW_DROPPED,            /* instead of the update */
    WINDOW_STOPPED,            /* dropped in the middle of backward */
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

/* The steps between acquires off the plan, in the n-th window of all: none at all, after each step, or a few. */
static size_t leaves_of(size_t nth)
{
    static const size_t STEPS[] = {0, 1, 0, 7};

    return STEPS[nth % 4];
}

/* Open-ended units: the passes once more before the step, and a use by one rank alone. */
static sherd_status any_uses_run(check *check, size_t nth)
{
    way again = {.end = check->plan->train.num_steps, .skipped = -1};

    if (check->plan->num_open_ended == 0) {
        return SHERD_OK;
    }
    if (nth % 2 == 1) {
        SHERDI_TRY(sequence_run(check, &check->plan->train, &again));
    }
    return use_alone(check);
}

/* Runs the micro-batches of a window. Every third window has a pass of EVAL in each. */
static sherd_status micro_batches_run(check *check, window_kind kind, size_t nth)
{
    const sherdi_sequence *train = &check->plan->train;
    int is_many = kind != WINDOW_SHORT && sherdi_settings_add_up(&check->plan->settings);
    int count   = is_many ? 2 : 1;

    for (int m = 0; m < count; m++) {
        way w = {.end = train->num_steps, .skipped = -1, .leaves = leaves_of(nth)};

        check->is_last = m + 1 == count && !is_stopped(kind);
        w.skipped      = kind == WINDOW_SHORT ? (int)(nth % check->plan->num_units) : -1;
        if (is_stopped(kind) && m + 1 == count) {
            w.end = backward_half(train);
        }
        SHERDI_TRY(sequence_run(check, train, &w));
        SHERDI_TRY(any_uses_run(check, nth));
        if (nth % 3 == 1) {
            SHERDI_TRY(eval_run(check));
        }
        if (m + 1 < count) {
            SHERDI_TRY(micro_batch_end(check));
            SHERDI_TRY(happen(check, sherdi_program_fetch_ahead));
            SHERDI_TRY(nth % 3 == 0 ? save(check) : SHERD_OK);
        }
    }
    return SHERD_OK;
}

static sherd_status window_run(check *check, window_kind kind, size_t nth)
{
    SHERDI_TRY(micro_batches_run(check, kind, nth));
    if (kind == WINDOW_STOPPED) {
        return window_drop(check);
    }
    if (kind == WINDOW_STOPPED_AND_UNDONE) {
        return undo(check);
    }
    SHERDI_TRY(micro_batch_end(check));
    SHERDI_TRY(sherdi_calls_prepare(&check->calls));
    SHERDI_TRY(nth % 2 == 1 ? gradient_read(check) : SHERD_OK);
    if (kind == WINDOW_SKIPPED) {
        return apply_skip(check);
    }
    if (kind == WINDOW_DROPPED) {
        return window_drop(check);
    }
    SHERDI_TRY(apply(check));
    SHERDI_TRY(nth % 2 == 1 ? fingerprint(check) : values_read(check));
    if (nth % 3 == 1) {
        SHERDI_TRY(save(check));
    }
    if (nth % 5 == 2) {
        SHERDI_TRY(load(check, nth % 2 == 0 ? SHERDI_WALK_LOAD : SHERDI_WALK_LOAD_SOME));
    }
    if (kind == WINDOW_UNDONE) {
        SHERDI_TRY(undo(check));
    }
    SHERDI_TRY(nth % 4 == 3 ? evals_run(check) : SHERD_OK);
    return nth % 3 == 2 ? values_write(check) : SHERD_OK;
}

/* Runs windows so that every kind comes after every kind: 0, 0 1, 0 2, ... 1, 1 2, ... and 0 again. */
static sherd_status windows_run(check *check)
{
    int    kinds = sherdi_plan_has_generations(check->plan) ? WINDOW_KINDS : WINDOW_UNDONE;
    size_t nth   = 0;

    SHERDI_TRY(start(check));
    for (int i = 0; i < kinds; i++) {
        SHERDI_TRY(window_run(check, (window_kind)i, nth++));
        for (int j = i + 1; j < kinds; j++) {
            SHERDI_TRY(window_run(check, (window_kind)i, nth++));
            SHERDI_TRY(window_run(check, (window_kind)j, nth++));
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

static sherd_status hazard_open(check *check, const sherdi_program_check_params *params)
{
    sherdi_hazard_params of = {.has_device = check->plan->machine.has_device,
                               .uses_last  = 1,
                               .drive_room = sherdi_program_transfers(check->plan),
                               .unit_name  = unit_name,
                               .where_name = where_name,
                               .ctx        = check};

    if (params != NULL) {
        of.drop     = params->drop;
        of.by       = params->by;
        of.followed = params->followed;
        of.kind     = params->kind;
        of.number   = params->number;
    }
    return sherdi_hazard_open(&of, check->mem, &check->hazard);
}

static sherd_status check_open(check *check, const sherdi_program_check_params *params)
{
    size_t steps = sherdi_max_size(check->plan->train.num_steps, check->plan->eval.num_steps);

    for (int r = 0; r < RANKS; r++) {
        SHERDI_TRY(sherdi_progress_open(&check->sides[r].progress, check->sides[r].plan,
                                        check->model, check->mem));
    }
    check->is_taken = sherdi_alloc_array(check->mem, SHERDI_MEM_CONTROL, steps, 1);
    return check->is_taken == NULL ? SHERD_E_NOMEM : hazard_open(check, params);
}

static void check_close(check *check)
{
    for (int r = 0; r < RANKS; r++) {
        sherdi_progress_close(&check->sides[r].progress);
        sherdi_free(check->sides[r].ops);
    }
    sherdi_hazard_close(check->hazard);
    sherdi_free(check->is_taken);
    sherdi_free(check->uses);
}

sherd_status sherdi_program_check(const sherdi_plan *one, const sherdi_plan *other,
                                  const sherdi_model                *model,
                                  const sherdi_program_check_params *params)
{
    check        check  = {.model = model,
                           .plan  = one,
                           .mem   = one->mem,
                           .calls = {one, event_take, &check},
                           .sides = {{.plan = one, .mem = one->mem}, {.plan = other, .mem = one->mem}}};
    sherd_status status = check_open(&check, params);

    if (status == SHERD_OK) {
        status = windows_run(&check);
    }
    if (params != NULL && params->follows_out != NULL && check.hazard != NULL) {
        *params->follows_out = sherdi_hazard_follows(check.hazard);
    }
    check_close(&check);
    return status;
}
