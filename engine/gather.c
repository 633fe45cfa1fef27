/* Acquire and release: which units are needed, what is gathered ahead. Follows the plan's
 * sequence while the trainer does. Every unit goes to its planned place, on the plan and off
 * it: what was prefetched there is evicted, what is held there makes the acquire fail. */
#include "engine/engine_impl.h"

#include <stdio.h>

/* The n-th unit that an acquire reaches: itself, then those it reads; -1: no more. */
static int reached_unit(const sherd_engine *engine, int unit, size_t n)
{
    const sherdi_model_unit *info = &engine->model.units[unit];

    if (n == 0) {
        return unit;
    }
    return n <= info->num_reads ? info->reads[n - 1] : -1;
}

static sherdi_cursor *cursor_of(sherd_engine *engine, sherd_pass pass)
{
    return pass == SHERD_EVAL ? &engine->eval : &engine->train;
}

/* Moves the cursor past the step that this acquire is; returns it, or NULL when the acquire is not
 * the one that the plan expects next. Past the end of a sequence it starts again. */
static const sherdi_step_of_pass *cursor_take(sherdi_cursor *cursor, int unit, sherd_pass pass)
{
    const sherdi_sequence *sequence = cursor->sequence;
    size_t                 expected = cursor->next % sequence->num_steps;

    for (size_t i = 0; i < sequence->num_steps; i++) {
        size_t                     at   = (expected + i) % sequence->num_steps;
        const sherdi_step_of_pass *step = &sequence->steps[at];

        if (step->unit == unit && step->pass == pass) {
            cursor->next = at + 1;
            return i == 0 ? step : NULL;
        }
    }
    return NULL; /* the plan has no such acquire at all */
}

static sherd_status segment_gather(sherd_engine *engine, const sherdi_segment *segment,
                                   sherd_pass pass)
{
    sherdi_region *region = sherdi_pool_region(&engine->gather_pool, segment->unit);
    unsigned char *whole  = engine->gather_pool.base + region->offset + segment->gather_offset;
    size_t slice_bytes = segment->slice_elems * sherd_dtype_bytes(engine->settings.compute_dtype);
    sherdi_all_gather_args args = {
        .recv        = whole,
        .slice_bytes = slice_bytes,
        .what        = engine->model.units[segment->unit].name,
    };
    sherdi_mark  wait;
    sherdi_mark  gather;
    sherd_status status;

    sherdi_collective_follow(engine, engine->backend); /* who used the place is done */
    if (segment->param_place == SHERDI_PLACE_DEVICE) {
        args.send  = engine->buffers[SHERDI_BUFFER_PARAMS] + segment->param_offset;
        args.flags = engine->settings.is_debug ? 0 : SHERDI_COLL_STABLE;
    } else { /* was not there when the ranks last met */
        args.send = whole + (size_t)engine->rank * slice_bytes;
        sherdi_lane_follow(engine->lanes.up, engine->backend);
        SHERDI_TRY(
            sherdi_fetch_slice(engine, segment, pass, whole + (size_t)engine->rank * slice_bytes));
        sherdi_collective_follow(engine, engine->lanes.up);
    }
    wait   = sherdi_mark_begin(&engine->marks, SHERDI_MARK_WAIT_GATHER, NULL, args.what, 0);
    gather = sherdi_collective_mark(engine, SHERDI_MARK_GATHER, args.what, slice_bytes);
    status = sherdi_world_all_gather(engine->world, &args, &region->ticket);
    sherdi_collective_mark_end(engine, &gather);
    sherdi_mark_end(&engine->marks, NULL, &wait);
    return status;
}

/* Nobody shall take it for gathered, and nothing is on its way to where others may lie next. */
static void unit_forget(sherd_engine *engine, int unit)
{
    sherdi_region *region = sherdi_pool_region(&engine->gather_pool, unit);

    (void)sherdi_world_wait(engine->world, region->ticket);
    region->is_used   = 0;
    region->is_pinned = 0;
}

static sherd_status unit_gather(sherd_engine *engine, int unit, sherd_pass pass, size_t place)
{
    const sherdi_plan_unit *info = &engine->plan->units[unit];
    sherd_status            status;

    SHERDI_TRY(sherdi_pool_place(&engine->gather_pool, engine->world, engine->lanes.up, unit, place,
                                 info->gather_bytes));
    for (int kind = 0; kind < SHERDI_SEGMENT_KINDS; kind++) {
        const sherdi_segment *segment;

        if (info->segments[kind] < 0) {
            continue;
        }
        segment = &engine->plan->segments[info->segments[kind]];
        if (segment->gather_offset == SHERDI_NO_OFFSET) {
            continue;
        }
        status = segment_gather(engine, segment, pass);
        if (status != SHERD_OK) {
            char text[SHERDI_ERROR_BYTES];

            (void)snprintf(text, sizeof(text), "%s", sherd_last_error());
            unit_forget(engine, unit);
            return sherdi_fail_relay(status, text);
        }
    }
    return SHERD_OK;
}

/* The stay of `unit` that the step before cursor->next falls into; NULL: none. */
static const sherdi_stay *stay_of(const sherdi_cursor *cursor, int unit)
{
    for (size_t i = 0; i < cursor->sequence->num_stays && cursor->next > 0; i++) {
        const sherdi_stay *stay = &cursor->sequence->stays[i];

        if (stay->unit == unit && stay->first < cursor->next && cursor->next <= stay->last + 1) {
            return stay;
        }
    }
    return NULL;
}

/* Where `unit` lies for an acquire; `step` is NULL off the plan. All stays of a unit are at its place, but with free
 * packing. */
static size_t unit_place(const sherd_engine *engine, const sherdi_cursor *cursor,
                         const sherdi_step_of_pass *step, int unit)
{
    const sherdi_stay *stay =
        engine->settings.free_packing && step != NULL ? stay_of(cursor, unit) : NULL;

    return stay == NULL ? engine->plan->units[unit].gather_place : stay->offset;
}

/* What is held stays where it is; what nobody holds has to lie where it belongs. */
static int unit_is_there(const sherd_engine *engine, int unit, size_t place)
{
    const sherdi_region *region = &engine->gather_pool.regions[unit];

    return region->is_used && (engine->units[unit].held > 0 || region->offset == place);
}

static int place_holder(const sherd_engine *engine, int unit, size_t place)
{
    return sherdi_pool_holder(&engine->gather_pool, unit, place,
                              engine->plan->units[unit].gather_bytes);
}

/* All places that an acquire needs are free of what is held: after this nothing is refused for room. */
static sherd_status places_check(const sherd_engine *engine, const sherdi_cursor *cursor,
                                 const sherdi_step_of_pass *step, int unit, sherd_pass pass)
{
    int reached;

    for (size_t n = 0; (reached = reached_unit(engine, unit, n)) >= 0; n++) {
        size_t place = unit_place(engine, cursor, step, reached);
        int    holder;

        if (pass == SHERD_BACKWARD) {
            SHERDI_TRY(sherdi_reduce_check_place(engine, reached));
        }
        if (engine->plan->units[reached].gather_bytes == 0 ||
            unit_is_there(engine, reached, place)) {
            continue;
        }
        holder = place_holder(engine, reached, place);
        if (holder >= 0) {
            return sherdi_fail(SHERD_E_NOMEM,
                               "unit %s: the plan gathers it to where unit %s is, which is held; "
                               "release %s before this acquire, or declare that both are held "
                               "together with sherd_pass_add_held",
                               engine->model.units[reached].name, engine->model.units[holder].name,
                               engine->model.units[holder].name);
        }
    }
    return SHERD_OK;
}

static sherd_status unit_hold(sherd_engine *engine, int unit, sherd_pass pass, size_t place)
{
    sherdi_region *region = sherdi_pool_region(&engine->gather_pool, unit);

    if (engine->plan->units[unit].gather_bytes > 0) {
        if (!unit_is_there(engine, unit, place)) {
            SHERDI_TRY(unit_gather(engine, unit, pass, place));
        }
        region->is_pinned = 1;
    }
    engine->units[unit].held++;
    return SHERD_OK;
}

/* The other gathers that the plan starts here, but for those whose place is held. They are not pinned: an acquire off the
 * plan may take their place. */
static sherd_status prefetch(sherd_engine *engine, const sherdi_cursor *cursor,
                             const sherdi_step_of_pass *step)
{
    for (size_t i = 0; i < step->num_starts; i++) {
        const sherdi_stay *stay = &cursor->sequence->stays[step->first_start + i];

        if (!unit_is_there(engine, stay->unit, stay->offset) &&
            place_holder(engine, stay->unit, stay->offset) < 0) {
            SHERDI_TRY(unit_gather(engine, stay->unit, step->pass, stay->offset));
            sherdi_pool_region(&engine->gather_pool, stay->unit)->is_pinned = 0;
        }
    }
    return SHERD_OK;
}

/* What is computed from now on comes after a unit's parameters are complete: gathered, or published after the
 * last update. */
static sherd_status unit_follow(sherd_engine *engine, int unit)
{
    SHERDI_TRY(sherdi_world_follow(engine->world, engine->backend,
                                   sherdi_pool_region(&engine->gather_pool, unit)->ticket));
    for (int kind = 0; kind < SHERDI_SEGMENT_KINDS; kind++) {
        int segment = engine->plan->units[unit].segments[kind];

        if (segment >= 0 && engine->publish_tickets[segment] != 0) {
            SHERDI_TRY(sherdi_world_follow(engine->world, engine->backend,
                                           engine->publish_tickets[segment]));
            engine->publish_tickets[segment] = 0;
        }
    }
    return SHERD_OK;
}

static sherd_status unit_wait(sherd_engine *engine, int unit)
{
    sherdi_mark  wait = sherdi_mark_begin(&engine->marks, SHERDI_MARK_WAIT_GATHER, engine->backend,
                                          engine->model.units[unit].name, 0);
    sherd_status status = unit_follow(engine, unit);

    sherdi_mark_end(&engine->marks, engine->backend, &wait);
    return status;
}

static sherd_status units_wait(sherd_engine *engine, int unit)
{
    int reached;

    for (size_t n = 0; (reached = reached_unit(engine, unit, n)) >= 0; n++) {
        SHERDI_TRY(unit_wait(engine, reached));
        if (engine->units[reached].held == 1) {
            SHERDI_TRY(sherdi_debug_params_note(engine, reached));
        }
    }
    return SHERD_OK;
}

static void unit_unhold(sherd_engine *engine, int unit, int is_kept)
{
    sherdi_region     *region = sherdi_pool_region(&engine->gather_pool, unit);
    sherdi_unit_state *state  = &engine->units[unit];

    if (--state->held == 0) {
        region->is_pinned = 0;
        if (region->is_used && !is_kept) {
            sherdi_pool_poison(&engine->gather_pool, engine->backend, unit,
                               engine->settings.is_debug);
            region->is_used = 0;
        }
    }
}

/* Whether the plan keeps `unit` gathered past the step before cursor->next. */
static int is_kept(const sherdi_cursor *cursor, int unit)
{
    const sherdi_stay *stay = stay_of(cursor, unit);

    return stay != NULL && cursor->next <= stay->last;
}

/* Holds all that an acquire of `unit` reaches, or nothing. */
static sherd_status units_hold(sherd_engine *engine, const sherdi_cursor *cursor,
                               const sherdi_step_of_pass *step, int unit, sherd_pass pass)
{
    int reached;

    for (size_t n = 0; (reached = reached_unit(engine, unit, n)) >= 0; n++) {
        sherd_status status =
            unit_hold(engine, reached, pass, unit_place(engine, cursor, step, reached));

        if (status != SHERD_OK) {
            while (n-- > 0) {
                unit_unhold(engine, reached_unit(engine, unit, n), 1);
            }
            return status;
        }
    }
    return SHERD_OK;
}

static void units_unhold(sherd_engine *engine, int unit)
{
    int reached;

    for (size_t n = 0; (reached = reached_unit(engine, unit, n)) >= 0; n++) {
        unit_unhold(engine, reached, 1);
    }
}

static void gradient_unbegin(sherd_engine *engine, int unit)
{
    sherdi_unit_state *state = &engine->units[unit];

    if (--state->held_backward == 0 &&
        state->uses_left == engine->plan->units[unit].backward_uses) {
        sherdi_reduce_cancel(engine, unit); /* this acquire was the first that reached it */
    }
}

/* Gradients of all that the acquire reaches become writable, or none. */
static sherd_status gradients_begin(sherd_engine *engine, int unit)
{
    int reached;

    for (size_t n = 0; (reached = reached_unit(engine, unit, n)) >= 0; n++) {
        sherd_status status = sherdi_reduce_begin(engine, reached);

        if (status != SHERD_OK) {
            while (n-- > 0) {
                gradient_unbegin(engine, reached_unit(engine, unit, n));
            }
            return status;
        }
        engine->units[reached].held_backward++;
    }
    return SHERD_OK;
}

static sherd_status backward_check(const sherd_engine *engine, int unit)
{
    int reached;

    if (engine->units[unit].acquired[SHERD_BACKWARD] > 0) {
        return sherdi_fail(SHERD_E_STATE,
                           "unit %s is acquired for backward already; release it before it is "
                           "acquired again",
                           engine->model.units[unit].name);
    }
    for (size_t n = 0; (reached = reached_unit(engine, unit, n)) >= 0; n++) {
        SHERDI_TRY(sherdi_reduce_check_open(engine, reached));
    }
    return SHERD_OK;
}

static void gradients_unbegin(sherd_engine *engine, int unit)
{
    int reached;

    for (size_t n = 0; (reached = reached_unit(engine, unit, n)) >= 0; n++) {
        gradient_unbegin(engine, reached);
    }
}

/* All that an acquire takes, or nothing. */
static sherd_status units_take(sherd_engine *engine, sherdi_cursor *cursor, int unit,
                               sherd_pass pass)
{
    const sherdi_step_of_pass *step   = cursor_take(cursor, unit, pass);
    sherd_status               status = SHERD_OK;

    SHERDI_TRY(places_check(engine, cursor, step, unit, pass));
    SHERDI_TRY(units_hold(engine, cursor, step, unit, pass));
    if (step != NULL) {
        status = prefetch(engine, cursor, step);
    }
    if (status == SHERD_OK && pass == SHERD_BACKWARD) {
        status = gradients_begin(engine, unit);
    }
    if (status != SHERD_OK) {
        units_unhold(engine, unit);
    }
    return status;
}

/* Of units whose parameters did not come: what nobody else holds is gathered anew. */
static void units_untake(sherd_engine *engine, int unit, sherd_pass pass)
{
    int reached;

    if (pass == SHERD_BACKWARD) {
        gradients_unbegin(engine, unit);
    }
    units_unhold(engine, unit);
    for (size_t n = 0; (reached = reached_unit(engine, unit, n)) >= 0; n++) {
        if (engine->units[reached].held == 0) {
            unit_forget(engine, reached);
        }
    }
}

static sherd_status units_take_and_wait(sherd_engine *engine, sherdi_cursor *cursor, int unit,
                                        sherd_pass pass)
{
    char         text[SHERDI_ERROR_BYTES];
    sherd_status status;

    SHERDI_TRY(units_take(engine, cursor, unit, pass));
    status = units_wait(engine, unit);
    if (status == SHERD_OK) {
        return SHERD_OK;
    }
    (void)snprintf(text, sizeof(text), "%s", sherd_last_error());
    units_untake(engine, unit, pass);
    return sherdi_fail_relay(status, text);
}

/* As if it had not been called, when it fails. */
sherd_status sherdi_gather_acquire(sherd_engine *engine, int unit, sherd_pass pass)
{
    sherdi_cursor *cursor = cursor_of(engine, pass);
    size_t         next   = cursor->next;
    sherd_status   status;

    if (pass == SHERD_BACKWARD) {
        SHERDI_TRY(backward_check(engine, unit));
    }
    status = units_take_and_wait(engine, cursor, unit, pass);
    if (status != SHERD_OK) {
        cursor->next = next;
        return status;
    }
    engine->units[unit].acquired[pass]++;
    engine->units[unit].uses.acquired[pass]++;
    engine->has_backward |= pass == SHERD_BACKWARD;
    if (engine->units[unit].acquired[pass] == 1) {
        engine->units[unit].compute[pass] =
            sherdi_mark_begin(&engine->marks, SHERDI_MARK_COMPUTE, engine->backend,
                              engine->model.units[unit].name, 0);
    }
    return SHERD_OK;
}

/* One use of a unit's gradient is over. */
static sherd_status gradient_leave(sherd_engine *engine, int unit)
{
    sherdi_unit_state *state = &engine->units[unit];

    state->held_backward--;
    state->uses_left--;
    if (state->uses_left <= 0 && state->held_backward == 0 && state->has_gradient) {
        return sherdi_reduce_complete(engine, unit);
    }
    return SHERD_OK;
}

static sherd_status params_leave(sherd_engine *engine, const sherdi_cursor *cursor, int unit)
{
    sherd_status status =
        engine->units[unit].held == 1 ? sherdi_debug_params_check(engine, unit) : SHERD_OK;

    unit_unhold(engine, unit, is_kept(cursor, unit));
    return status;
}

/* The first failure of several, with its sentence. */
typedef struct first_failure {
    sherd_status status;
    char         text[SHERDI_ERROR_BYTES];
} first_failure;

static void failure_add(first_failure *first, sherd_status status)
{
    if (status != SHERD_OK && first->status == SHERD_OK) {
        first->status = status;
        (void)snprintf(first->text, sizeof(first->text), "%s", sherd_last_error());
    }
}

/* Releases all that the acquire reached, whatever fails meanwhile: the window can be dropped then. */
sherd_status sherdi_gather_release(sherd_engine *engine, int unit, sherd_pass pass)
{
    sherdi_cursor *cursor = cursor_of(engine, pass);
    first_failure  first  = {.status = SHERD_OK};
    int            reached;

    engine->units[unit].acquired[pass]--;
    if (engine->units[unit].acquired[pass] == 0) {
        sherdi_mark_end(&engine->marks, engine->backend, &engine->units[unit].compute[pass]);
    }
    for (size_t n = 0; (reached = reached_unit(engine, unit, n)) >= 0; n++) {
        failure_add(&first, params_leave(engine, cursor, reached));
        if (pass == SHERD_BACKWARD) {
            failure_add(&first, gradient_leave(engine, reached));
        }
    }
    return first.status == SHERD_OK ? SHERD_OK : sherdi_fail_relay(first.status, first.text);
}

sherd_status sherdi_gather_forget(sherd_engine *engine)
{
    for (size_t u = 0; u < engine->plan->num_units; u++) {
        sherdi_region *region = sherdi_pool_region(&engine->gather_pool, (int)u);

        SHERDI_TRY(sherdi_world_follow(engine->world, engine->backend, region->ticket));
        sherdi_pool_poison(&engine->gather_pool, engine->backend, (int)u,
                           engine->settings.is_debug);
        *region = (sherdi_region){0};
    }
    engine->train.next = 0;
    engine->eval.next  = 0;
    return SHERD_OK;
}

unsigned char *sherdi_gather_param(sherd_engine *engine, size_t param)
{
    const sherdi_plan_param *place   = &engine->plan->params[param];
    const sherdi_segment    *segment = &engine->plan->segments[place->segment];

    if (segment->is_bound) {
        return engine->model.params[param].bound_data;
    }
    return sherdi_gather_segment(engine, segment) +
           place->offset_elems * sherd_dtype_bytes(engine->settings.compute_dtype);
}

unsigned char *sherdi_gather_segment(sherd_engine *engine, const sherdi_segment *segment)
{
    const sherdi_region *region = sherdi_pool_region(&engine->gather_pool, segment->unit);

    if (segment->is_resident) {
        return engine->buffers[SHERDI_BUFFER_PARAMS] + segment->param_offset;
    }
    return region->is_used ? engine->gather_pool.base + region->offset + segment->gather_offset
                           : NULL;
}
