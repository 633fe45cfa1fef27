/* Acquire and release: which units must be gathered, which are gathered ahead, and which must be
 * evicted. The program follows the plan's sequence as long as the trainer does. On and off the
 * plan, a unit goes to its planned offset: an acquire evicts units that were only gathered ahead
 * into this memory, and fails if a held unit uses it. */
#include "engine/program/offload.h"

#include "engine/modules.h"

/* ---------------------------------------------------------------- sequence -- */

static sherdi_cursor *cursor_of(const sherdi_program *program, sherd_pass pass)
{
    return pass == SHERD_EVAL ? &program->progress->eval : &program->progress->train;
}

/* Moves the cursor past the step that this acquire is. Returns the step; NULL: the acquire is not
 * the one that the plan expects next. After the end, the sequence begins again. */
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
    return NULL; /* the sequence does not have this acquire */
}

/* Returns the live range of `unit` that contains the step before cursor->next; NULL: there is
 * none. */
static const sherdi_live_range *live_range_of(const sherdi_cursor *cursor, int unit)
{
    for (size_t i = 0; i < cursor->sequence->live_ranges.count && cursor->next > 0; i++) {
        const sherdi_live_range *live_range = &cursor->sequence->live_ranges.items[i];

        if (live_range->unit == unit && live_range->first < cursor->next &&
            cursor->next <= live_range->last + 1) {
            return live_range;
        }
    }
    return NULL;
}

/* Whether the plan keeps `unit` gathered after the step before cursor->next. */
static int is_kept(const sherdi_cursor *cursor, int unit)
{
    const sherdi_live_range *live_range = live_range_of(cursor, unit);

    return live_range != NULL && cursor->next <= live_range->last;
}

/* ----------------------------------------------------------------- offsets -- */

/* Returns where `unit` lies for an acquire; `step` is NULL off the plan. With free packing, each
 * live range of a unit has an offset of its own. */
static size_t offset_of(const sherdi_program *program, const sherdi_cursor *cursor,
                        const sherdi_step_of_pass *step, int unit)
{
    const sherdi_live_range *live_range = step == NULL ? NULL : live_range_of(cursor, unit);

    return live_range == NULL ? program->plan->layout.units[unit].gather_pool_offset
                              : live_range->offset;
}

/* Whether the unit is gathered where it should be. A held unit stays where it is; one that nobody
 * holds must lie at `offset`. */
static int is_there(const sherdi_program *program, int unit, size_t offset)
{
    const sherdi_unit_state *state = sherdi_program_unit(program, unit);

    return state->is_gathered && (state->held > 0 || state->gathered_at == offset);
}

/* Returns another unit whose gathered bytes overlap those that `unit` would take at `offset`;
 * `is_held`: held units only. -1: there is none. */
static int in_the_way(const sherdi_program *program, int unit, size_t offset, int is_held)
{
    const sherdi_plan *plan = program->plan;

    for (size_t u = 0; u < plan->layout.num_units; u++) {
        const sherdi_unit_state *state = sherdi_program_unit(program, (int)u);

        if ((int)u != unit && state->is_gathered && (state->held > 0 || !is_held) &&
            state->gathered_at < offset + plan->layout.units[unit].gather_bytes &&
            offset < state->gathered_at + plan->layout.units[u].gather_bytes) {
            return (int)u;
        }
    }
    return -1;
}

sherd_status sherdi_program_fail_held(const sherdi_program *program, int unit, int holder,
                                      const char *what)
{
    const char *other = sherdi_program_name(program, holder);

    return sherdi_fail(SHERD_E_NOMEM,
                       "unit %s has no room %s: the plan gives it the memory of unit %s, which is "
                       "still acquired; release %s before this acquire, or declare with "
                       "sherd_pass_add_held that both are held together",
                       sherdi_program_name(program, unit), what, other, other);
}

/* Checks that no held unit, and no open gradient, is in memory that the acquire needs. After this
 * nothing fails for lack of room. */
static sherd_status room_check(const sherdi_program *program, const sherdi_cursor *cursor,
                               const sherdi_step_of_pass *step, int unit, sherd_pass pass)
{
    int reached;

    for (size_t n = 0; (reached = sherdi_model_reached(program->model, unit, n)) >= 0; n++) {
        size_t offset = offset_of(program, cursor, step, reached);
        int    holder;

        if (pass == SHERD_BACKWARD) {
            SHERDI_TRY(sherdi_program_gradient_check(program, reached));
        }
        if (program->plan->layout.units[reached].gather_bytes == 0 ||
            is_there(program, reached, offset)) {
            continue;
        }
        holder = in_the_way(program, reached, offset, 1);
        if (holder >= 0) {
            return sherdi_program_fail_held(program, reached, holder, "to be gathered");
        }
    }
    return SHERD_OK;
}

/* ----------------------------------------------------------------- gathers -- */

static sherd_status segment_gather(const sherdi_program *program, const sherdi_segment *segment,
                                   size_t offset, const sherdi_live_range *live_range)
{
    const sherdi_plan *plan  = program->plan;
    size_t             elem  = sherdi_compute_bytes(segment);
    size_t             slice = segment->slice_elems * elem;
    sherdi_range whole    = sherdi_range_of(SHERDI_BUFFER_GATHER, offset + segment->gather_offset,
                                            segment->padded_elems * elem);
    sherdi_range own      = whole;
    int          is_taken = 0;
    sherdi_op    op;

    if (slice == 0) { /* its parameters have no elements; a call without bytes would still meet */
        return SHERD_OK;
    }
    SHERDI_TRY(sherdi_modules_gather_take(program, segment, &whole, &is_taken));
    if (is_taken) {
        return SHERD_OK;
    }
    if (segment->param_space != SHERDI_SPACE_DEVICE) { /* not there when the ranks last met */
        own.offset += (size_t)plan->rank * slice;
        own.bytes = slice;
        SHERDI_TRY(sherdi_program_offload()->slice_fetch(program, segment, live_range, own));
        return sherdi_program_gather(program, segment, segment->types.compute, SHERDI_OP_MEETS,
                                     whole);
    }
    op      = sherdi_op_of_segment(plan, SHERDI_OP_GATHER, SHERDI_LANE_WIRE, segment);
    op.from = op.to  = segment->types.compute;
    own              = sherdi_range_of(SHERDI_BUFFER_PARAMS, segment->param_offset, slice);
    own.is_all_ranks = 1;
    op.flags         = SHERDI_OP_STABLE;
    return sherdi_program_move(program, op, whole, own);
}

static sherd_status unit_gather(const sherdi_program *program, int unit, size_t offset,
                                const sherdi_live_range *live_range)
{
    sherdi_unit_state *state = sherdi_program_unit(program, unit);
    int                evicted;

    while ((evicted = in_the_way(program, unit, offset, 0)) >= 0) {
        sherdi_program_unit(program, evicted)->is_gathered = 0;
    }
    state->is_gathered = 0; /* until all of it is on its way */
    for (size_t s = 0; s < program->plan->layout.units[unit].num_segments; s++) {
        const sherdi_segment *segment = sherdi_unit_segment(program->plan, unit, s);

        if (segment->gather_offset != SHERDI_NO_OFFSET) {
            SHERDI_TRY(segment_gather(program, segment, offset, live_range));
        }
    }
    state->is_gathered = 1;
    state->gathered_at = offset;
    return SHERD_OK;
}

/* Starts the other gathers that the plan starts here, except where a held unit is in the way. A
 * unit that is gathered ahead is not held: an acquire off the plan may take its memory. */
static sherd_status prefetch(const sherdi_program *program, const sherdi_cursor *cursor,
                             const sherdi_step_of_pass *step)
{
    for (size_t i = 0; i < step->num_starts; i++) {
        const sherdi_live_range *live_range =
            &cursor->sequence->live_ranges.items[step->first_start + i];

        if (!is_there(program, live_range->unit, live_range->offset) &&
            in_the_way(program, live_range->unit, live_range->offset, 1) < 0 &&
            !SHERDI_IF_OFFLOAD(holds_up(program, live_range->unit))) {
            SHERDI_TRY(SHERDI_IF_OFFLOAD(await(program, SHERDI_POST_UNIT, live_range->unit)));
            SHERDI_TRY(unit_gather(program, live_range->unit, live_range->offset, live_range));
        }
    }
    return SHERD_OK;
}

/* ----------------------------------------------------------------- acquire -- */

static sherd_status unit_hold(const sherdi_program *program, const sherdi_cursor *cursor,
                              const sherdi_step_of_pass *step, int unit)
{
    const sherdi_live_range *live_range = live_range_of(cursor, unit);
    size_t                   offset     = offset_of(program, cursor, step, unit);

    SHERDI_TRY(SHERDI_IF_OFFLOAD(await(program, SHERDI_POST_UNIT, unit)));
    if (program->plan->layout.units[unit].gather_bytes > 0 && !is_there(program, unit, offset)) {
        int is_planned =
            step != NULL && live_range != NULL && live_range->first + 1 == cursor->next;

        SHERDI_TRY(unit_gather(program, unit, offset, is_planned ? live_range : NULL));
    }
    sherdi_program_unit(program, unit)->held++;
    return SHERD_OK;
}

sherd_status sherdi_program_unit_leave(const sherdi_program *program, int unit)
{
    sherdi_unit_state *state = sherdi_program_unit(program, unit);

    if (!state->is_gathered) {
        return SHERD_OK;
    }
    state->is_gathered = 0;
    return sherdi_modules_range_left(
        program, unit,
        &(sherdi_range){.where  = SHERDI_BUFFER_GATHER,
                        .offset = state->gathered_at,
                        .bytes  = program->plan->layout.units[unit].gather_bytes});
}

/* The changes of an acquire so far, to be undone if it fails. */
typedef struct taken {
    size_t held, begun;
    int    is_gathered; /* all gathers have been enqueued */
} taken;

/* Takes back what an acquire did. If its gathers were enqueued, a later failure can mean that the
 * bytes do not arrive: then they do not count as gathered. */
static void units_give_back(const sherdi_program *program, int unit, const taken *t)
{
    for (size_t n = 0; n < t->held; n++) {
        int                reached = sherdi_model_reached(program->model, unit, n);
        sherdi_unit_state *state   = sherdi_program_unit(program, reached);

        if (n < t->begun && --state->held_backward == 0 &&
            state->uses_left == program->plan->layout.units[reached].backward_uses) {
            state->has_gradient = 0; /* this acquire was the first to reach the unit */
        }
        if (--state->held == 0 && t->is_gathered) {
            state->is_gathered = 0;
        }
    }
}

static sherd_status units_take(const sherdi_program *program, sherdi_cursor *cursor, int unit,
                               sherd_pass pass, taken *t)
{
    const sherdi_step_of_pass *step = cursor_take(cursor, unit, pass);
    int                        reached;

    SHERDI_TRY(room_check(program, cursor, step, unit, pass));
    SHERDI_TRY(SHERDI_IF_OFFLOAD(acquire_begin(program)));
    for (; (reached = sherdi_model_reached(program->model, unit, t->held)) >= 0; t->held++) {
        SHERDI_TRY(unit_hold(program, cursor, step, reached));
    }
    if (step != NULL) {
        SHERDI_TRY(prefetch(program, cursor, step));
    }
    for (; pass == SHERD_BACKWARD && t->begun < t->held; t->begun++) {
        reached = sherdi_model_reached(program->model, unit, t->begun);
        SHERDI_TRY(sherdi_program_gradient_begin(program, reached));
        sherdi_program_unit(program, reached)->held_backward++;
    }
    t->is_gathered = 1;
    for (size_t n = 0; n < t->held; n++) {
        SHERDI_TRY(sherdi_modules_unit_used(program, sherdi_model_reached(program->model, unit, n),
                                            pass == SHERD_BACKWARD));
    }
    return SHERD_OK;
}

sherd_status sherdi_program_acquire(const sherdi_program *program, int unit, sherd_pass pass)
{
    sherdi_cursor *cursor = cursor_of(program, pass);
    size_t         next   = cursor->next;
    taken          t      = {0};
    sherd_status   status = units_take(program, cursor, unit, pass, &t);

    if (status != SHERD_OK) { /* the call leaves nothing changed */
        units_give_back(program, unit, &t);
        cursor->next = next;
        return status;
    }
    sherdi_program_unit(program, unit)->acquired[pass]++;
    sherdi_program_unit(program, unit)->uses.acquired[pass]++;
    return SHERD_OK;
}

/* ----------------------------------------------------------------- release -- */

/* Ends one use of a unit's gradient. */
static sherd_status gradient_leave(const sherdi_program *program, int unit)
{
    sherdi_unit_state *state = sherdi_program_unit(program, unit);

    state->held_backward--;
    state->uses_left--;
    if (state->uses_left <= 0 && state->held_backward == 0 && state->has_gradient &&
        !program->plan->layout.units[unit].is_open_ended) {
        return sherdi_program_gradient_complete(program, unit);
    }
    return SHERD_OK;
}

sherd_status sherdi_program_release(const sherdi_program *program, int unit, sherd_pass pass)
{
    const sherdi_cursor *cursor = cursor_of(program, pass);
    sherdi_outcome       all    = {.status = SHERD_OK};
    int                  reached;

    if (--sherdi_program_unit(program, unit)->acquired[pass] == 0) {
        sherdi_outcome_add(&all, sherdi_modules_unit_released(program, unit, pass));
    }
    for (size_t n = 0; (reached = sherdi_model_reached(program->model, unit, n)) >= 0; n++) {
        sherd_status status = SHERD_OK;

        if (--sherdi_program_unit(program, reached)->held == 0 && !is_kept(cursor, reached) &&
            !sherdi_program_unit(program, reached)->lasts) {
            status = sherdi_program_unit_leave(program, reached);
        }
        if (pass == SHERD_BACKWARD && status == SHERD_OK) {
            status = gradient_leave(program, reached);
        }
        sherdi_outcome_add(&all, status);
    }
    return sherdi_outcome_end(&all);
}

sherd_status sherdi_program_forget(const sherdi_program *program)
{
    for (size_t u = 0; u < program->plan->layout.num_units; u++) {
        SHERDI_TRY(sherdi_program_unit_leave(program, (int)u));
        sherdi_program_unit(program, (int)u)->is_copied = 0;
    }
    program->progress->train.next = 0;
    program->progress->eval.next  = 0;
    return SHERD_OK;
}
