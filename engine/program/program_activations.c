/* Activations: forward puts them, backward gets them. An activation leaves its place when the
 * trainer has written it, if another one takes the place before backward comes to it; it is moved
 * back when the one after it has ended, which is before its backward begins. So the moves follow
 * from the present place of the bytes (sherdi_activation_state), on the plan and off it. */
#include "engine/program/activations.h"

#include "engine/modules.h"

static sherdi_activation_state *state_of(const sherdi_program *program, const sherdi_activation *a)
{
    return &program->progress->activations[a - program->plan->activations->items];
}

/* Returns the activation that a number stands for; NULL: none. */
static const sherdi_activation *activation_at(const sherdi_plan *plan, size_t number)
{
    return number == SHERDI_NO_ACTIVATION ? NULL : &plan->activations->items[number];
}

static const sherdi_activation *activation_of(const sherdi_program *program, int unit)
{
    return activation_at(program->plan, program->plan->layout.units[unit].activation);
}

static sherdi_range place_of(const sherdi_activation *a)
{
    return sherdi_range_of(SHERDI_BUFFER_ACTIVATIONS, a->offset, a->bytes);
}

static sherdi_range host_place_of(const sherdi_activation *a)
{
    return sherdi_range_of(SHERDI_BUFFER_HOST_ACTIVATIONS, a->host_offset, a->bytes);
}

/* -------------------------------------------------------------------- moves -- */

static sherd_status copy_give(const sherdi_program *program, const sherdi_activation *a,
                              sherdi_lane_id lane, sherdi_range dst, sherdi_range src)
{
    sherdi_op op = sherdi_op_of(SHERDI_OP_COPY, lane);

    op.unit = a->unit;
    return sherdi_program_move(program, op, dst, src);
}

/* Gives a transfer between the extent and the memory that a drive can reach. */
static sherd_status transfer_give(const sherdi_program *program, const sherdi_activation *a,
                                  sherdi_op_kind kind)
{
    int          is_read = kind == SHERDI_OP_READ;
    sherdi_op    op      = sherdi_op_of(kind, SHERDI_LANE_DRIVE);
    sherdi_range memory  = a->host_offset == SHERDI_NO_OFFSET ? place_of(a) : host_place_of(a);
    sherdi_range file    = sherdi_range_of(
           SHERDI_AT_ACTIVATION_FILE,
           program->plan->rings[SHERDI_RING_ACTIVATIONS].extents[a->extent].offset_bytes, a->bytes);

    op.unit   = a->unit;
    op.extent = a->extent;
    op.ring   = SHERDI_RING_ACTIVATIONS;
    return sherdi_program_move(program, op, is_read ? memory : file, is_read ? file : memory);
}

/* ------------------------------------------------------------------- places -- */

static int is_open(const sherdi_activation_state *state)
{
    return state->is_written || state->is_read;
}

/* Whether the bytes would be lost if their place, on the device or in host memory, got others. */
static int is_needed(const sherdi_activation_state *state, int is_on_host)
{
    return is_open(state) || (state->is_put && !state->is_stored &&
                              !(is_on_host ? state->is_here : state->is_on_host));
}

static int has_place_of(const sherdi_program *program, const sherdi_activation *a,
                        const sherdi_activation *b, int is_on_host)
{
    const sherdi_activation_state *state = state_of(program, b);

    return b != a && (is_on_host ? state->is_on_host && b->host_offset == a->host_offset
                                 : state->is_here && b->offset == a->offset);
}

/* Returns the activation that cannot leave the place of `a`; NULL: the place can be had. */
static const sherdi_activation *in_the_way(const sherdi_program    *program,
                                           const sherdi_activation *a, int is_on_host)
{
    for (size_t i = 0; i < program->plan->activations->count; i++) {
        const sherdi_activation *b = &program->plan->activations->items[i];

        if (has_place_of(program, a, b, is_on_host) &&
            is_needed(state_of(program, b), is_on_host)) {
            return b;
        }
    }
    return NULL;
}

static sherd_status place_check(const sherdi_program *program, const sherdi_activation *a,
                                int is_on_host)
{
    const sherdi_activation *other = in_the_way(program, a, is_on_host);

    if (other == NULL) {
        return SHERD_OK;
    }
    return sherdi_fail(SHERD_E_STATE,
                       "the activation of unit %s has no place: the plan gives it that of unit %s, "
                       "which is still needed; run the units in the order of the passes",
                       sherdi_program_name(program, a->unit),
                       sherdi_program_name(program, other->unit));
}

/* Takes a place that can be had. */
static void place_take(const sherdi_program *program, const sherdi_activation *a, int is_on_host)
{
    for (size_t i = 0; i < program->plan->activations->count; i++) {
        const sherdi_activation *b = &program->plan->activations->items[i];

        if (has_place_of(program, a, b, is_on_host)) {
            *(is_on_host ? &state_of(program, b)->is_on_host : &state_of(program, b)->is_here) = 0;
        }
    }
    *(is_on_host ? &state_of(program, a)->is_on_host : &state_of(program, a)->is_here) = 1;
}

/* Checks that an activation can come to its place on the device, by its place in host memory if it
 * has one. */
static sherd_status way_check(const sherdi_program *program, const sherdi_activation *a)
{
    const sherdi_activation_state *state = state_of(program, a);

    if (!state->is_here) {
        SHERDI_TRY(place_check(program, a, 0));
    }
    return a->host_offset != SHERDI_NO_OFFSET && !state->is_on_host ? place_check(program, a, 1)
                                                                    : SHERD_OK;
}

static int can_come(const sherdi_program *program, const sherdi_activation *a)
{
    const sherdi_activation_state *state = state_of(program, a);

    return state->is_put && !is_open(state) && !state->is_here &&
           in_the_way(program, a, 0) == NULL &&
           (a->host_offset == SHERDI_NO_OFFSET || state->is_on_host ||
            in_the_way(program, a, 1) == NULL);
}

/* Reads an activation back to host memory, unless it is there. */
static sherd_status host_fetch(const sherdi_program *program, const sherdi_activation *a)
{
    if (state_of(program, a)->is_on_host) {
        return SHERD_OK;
    }
    place_take(program, a, 1);
    return transfer_give(program, a, SHERDI_OP_READ);
}

/* Starts the read of the activation that takes the place of `a` in host memory: that of `a` is not
 * needed there any more. */
static sherd_status host_fetch_ahead(const sherdi_program *program, const sherdi_activation *a)
{
    const sherdi_activation *next = activation_at(program->plan, a->next_on_host);

    return next != NULL && state_of(program, next)->is_put && !state_of(program, next)->is_here &&
                   in_the_way(program, next, 1) == NULL
               ? host_fetch(program, next)
               : SHERD_OK;
}

/* Brings an activation back to its place on the device, which can be had. */
static sherd_status fetch(const sherdi_program *program, const sherdi_activation *a)
{
    if (a->host_offset == SHERDI_NO_OFFSET) {
        place_take(program, a, 0);
        return transfer_give(program, a, SHERDI_OP_READ);
    }
    SHERDI_TRY(host_fetch(program, a));
    SHERDI_TRY(copy_give(program, a, SHERDI_LANE_UP, place_of(a), host_place_of(a)));
    place_take(program, a, 0);
    return host_fetch_ahead(program, a);
}

/* ----------------------------------------------------------------- the events -- */

static sherd_status own_use(const sherdi_program *program, const sherdi_activation *a,
                            sherdi_op_kind kind)
{
    int       is_put = kind == SHERDI_OP_PUT;
    sherdi_op op     = sherdi_op_of(kind, SHERDI_LANE_COMPUTE);

    op.unit = a->unit;
    sherdi_op_use(&op, is_put ? SHERDI_USE_DST : SHERDI_USE_SRC,
                  is_put ? SHERDI_WRITES : SHERDI_READS, place_of(a));
    SHERDI_TRY(sherdi_program_emit(program, &op));
    *(is_put ? &state_of(program, a)->is_written : &state_of(program, a)->is_read) = 1;
    return SHERD_OK;
}

static sherd_status already_fail(const sherdi_program *program, int unit, const char *what)
{
    return sherdi_fail(SHERD_E_STATE, "unit %s: its activation was %s already",
                       sherdi_program_name(program, unit), what);
}

sherd_status sherdi_program_activation_scratch(const sherdi_program *program, int unit)
{
    const sherdi_activation *a = activation_of(program, unit);

    if (state_of(program, a)->is_put) {
        return already_fail(program, unit, "put");
    }
    SHERDI_TRY(place_check(program, a, 0));
    *state_of(program, a) = (sherdi_activation_state){.is_put = 1, .is_scratch = 1};
    place_take(program, a, 0);
    return own_use(program, a, SHERDI_OP_PUT);
}

sherd_status sherdi_program_activation_put(const sherdi_program *program, int unit)
{
    const sherdi_activation *a = activation_of(program, unit);

    if (is_open(state_of(program, a))) {
        return already_fail(program, unit, "put, or got,");
    }
    SHERDI_TRY(place_check(program, a, 0));
    if (a->host_offset != SHERDI_NO_OFFSET) {
        SHERDI_TRY(place_check(program, a, 1));
    }
    *state_of(program, a) = (sherdi_activation_state){.is_put = 1};
    place_take(program, a, 0);
    if (a->host_offset != SHERDI_NO_OFFSET) {
        place_take(program, a, 1);
    }
    return own_use(program, a, SHERDI_OP_PUT);
}

sherd_status sherdi_program_activation_get(const sherdi_program *program, int unit)
{
    const sherdi_activation *a = activation_of(program, unit);

    if (state_of(program, a)->is_read) {
        return already_fail(program, unit, "got");
    }
    if (!state_of(program, a)->is_put || state_of(program, a)->is_scratch) {
        return sherdi_fail(SHERD_E_STATE,
                           "unit %s: no activation was put in this micro-batch, or it has ended; "
                           "sherd_activation_put puts one in forward",
                           sherdi_program_name(program, unit));
    }
    if (!state_of(program, a)->is_here) {
        SHERDI_TRY(way_check(program, a));
        SHERDI_TRY(fetch(program, a));
    }
    return own_use(program, a, SHERDI_OP_GET);
}

/* After forward: an activation that others will push out of its place leaves it. */
static sherd_status leave(const sherdi_program *program, const sherdi_activation *a)
{
    if (a->host_offset != SHERDI_NO_OFFSET) {
        SHERDI_TRY(copy_give(program, a, SHERDI_LANE_DOWN, host_place_of(a), place_of(a)));
    }
    if (a->extent != SHERDI_NO_OFFSET) {
        SHERDI_TRY(transfer_give(program, a, SHERDI_OP_WRITE));
        state_of(program, a)->is_stored = 1;
    }
    return SHERD_OK;
}

/* After backward: the one before it comes back. */
static sherd_status end(const sherdi_program *program, const sherdi_activation *a)
{
    const sherdi_activation *next  = activation_at(program->plan, a->next);
    sherdi_range             place = place_of(a);

    *state_of(program, a) = (sherdi_activation_state){0};
    SHERDI_TRY(sherdi_modules_range_left(program, a->unit, &place));
    return next != NULL && can_come(program, next) ? fetch(program, next) : SHERD_OK;
}

sherd_status sherdi_program_activation_release(const sherdi_program *program, int unit,
                                               sherd_pass pass)
{
    const sherdi_activation *a = activation_of(program, unit);
    sherdi_activation_state *state;

    if (a == NULL || !state_of(program, a)->is_put) {
        return SHERD_OK;
    }
    state = state_of(program, a);
    if (pass == SHERD_EVAL || state->is_scratch) {
        *state = pass == SHERD_EVAL && state->is_scratch ? (sherdi_activation_state){0} : *state;
        return SHERD_OK;
    }
    if (pass == SHERD_BACKWARD && state->is_written) { /* held for forward, which ends it */
        state->is_read = 0;
        state->is_over = 1;
        return SHERD_OK;
    }
    if (pass == SHERD_BACKWARD || state->is_over) {
        return end(program, a);
    }
    if (!state->is_written) {
        return SHERD_OK;
    }
    state->is_written = 0;
    return leave(program, a);
}

void sherdi_program_activations_forget(const sherdi_program *program)
{
    for (size_t i = 0; i < program->plan->activations->count; i++) {
        program->progress->activations[i] = (sherdi_activation_state){0};
    }
}

sherd_status sherdi_activations_open(sherdi_progress *progress, const sherdi_plan *plan,
                                     const sherdi_model *model, sherdi_mem *mem)
{
    (void)model;
    progress->activations = sherdi_alloc_array(mem, SHERDI_MEM_CONTROL, plan->activations->count,
                                               sizeof(*progress->activations));
    return progress->activations == NULL ? SHERD_E_NOMEM : SHERD_OK;
}

void sherdi_activations_close(sherdi_progress *progress)
{
    sherdi_free(progress->activations);
}
