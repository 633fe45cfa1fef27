/* Schedule: decides when units are gathered and released. Gathers start ahead of their use, as far
 * as the wire needs it and prefetch_bucket_size and max_live_parameters allow it. plan_pack.c then
 * gives the units offsets from their lifetimes, so the size of the pool is the peak, and does not
 * depend on timing. emit.c counts the collectives with their bytes. */
#include "engine/plan/plan.h"

#include "base/checked.h"

/* ------------------------------------------------------------ sequences -- */

static sherd_status sequence_make(sherdi_plan *plan, const sherdi_model *model,
                                  sherdi_sequence *sequence, const sherd_pass *passes,
                                  size_t num_passes)
{
    size_t total = 0;

    for (size_t p = 0; p < num_passes; p++) {
        total += sherdi_model_order_len(model, passes[p]);
    }
    sequence->steps =
        sherdi_alloc_array(plan->mem, SHERDI_MEM_CONTROL, total, sizeof(*sequence->steps));
    if (sequence->steps == NULL) {
        return SHERD_E_NOMEM;
    }
    for (size_t p = 0; p < num_passes; p++) {
        size_t len = sherdi_model_order_len(model, passes[p]);

        for (size_t i = 0; i < len; i++) {
            sherdi_model_use use  = sherdi_model_order(model, passes[p], i);
            size_t           at   = sequence->num_steps++;
            size_t           held = sherdi_min_size((size_t)use.held, total - 1 - at);

            sequence->steps[at] =
                (sherdi_step_of_pass){.unit = use.unit, .pass = passes[p], .last = at + held};
            sequence->most_held = sherdi_max_size(sequence->most_held, held);
        }
    }
    return SHERD_OK;
}

static int step_needs(const sherdi_model *model, const sherdi_step_of_pass *step, int unit)
{
    int needed;

    for (size_t n = 0; (needed = sherdi_model_reached(model, step->unit, n)) >= 0; n++) {
        if (needed == unit) {
            return 1;
        }
    }
    return 0;
}

static size_t gathered_elems(const sherdi_plan *plan, int unit)
{
    return plan->layout.units[unit].gather_elems;
}

/* ------------------------------------------------- gathers, live ranges -- */

/* The units of the next acquire are gathered ahead, whatever their size; more only while less than
 * AHEAD_BYTES are ahead. An acquire starts the next gather before it waits for its own. So with one
 * unit ahead the wire has its next transfer when one is over. A second unit ahead hides the start
 * of a call (launch, meeting of the ranks) where transfers are short: 100 us at 50 GB/s between
 * hosts are 5 MB, 20 us at 400 GB/s inside one are 8 MB. Larger units cover the start by
 * themselves; more of them ahead take memory and save no time. */
#define AHEAD_BYTES ((size_t)8 << 20)

/* A unit's state during the walk. */
typedef struct walk_unit {
    size_t open;     /* index of its current live range plus 1; 0: not gathered */
    size_t held;     /* acquires that reach it, not yet released */
    int    is_ahead; /* gathered before its use, and not used yet */
} walk_unit;

/* A walk over a sequence, as the engine will make it. */
typedef struct walk {
    const sherdi_model *model;
    sherdi_plan        *plan;
    sherdi_sequence    *sequence;
    walk_unit          *units;
    size_t              live_elems;  /* gathered now */
    size_t              ahead_elems; /* of these, not used yet */
    size_t              ahead_bytes; /* the same in bytes */
} walk;

sherd_status sherdi_live_range_add(const sherdi_plan *plan, sherdi_live_ranges *live_ranges,
                                   sherdi_live_range live_range)
{
    SHERDI_TRY(
        SHERDI_GROW(plan->mem, live_ranges->items, live_ranges->count, live_ranges->capacity));
    live_ranges->items[live_ranges->count++] = live_range;
    return SHERD_OK;
}

static sherd_status live_range_open(walk *w, int unit, size_t position)
{
    sherdi_sequence *sequence = w->sequence;

    SHERDI_TRY(sherdi_live_range_add(
        w->plan, &sequence->live_ranges,
        (sherdi_live_range){.unit  = unit,
                            .first = position,
                            .last  = position,
                            .bytes = w->plan->layout.units[unit].gather_bytes}));
    w->units[unit].open = sequence->live_ranges.count;
    w->live_elems += gathered_elems(w->plan, unit);
    sequence->steps[position].num_starts++;
    return SHERD_OK;
}

/* Returns the elements of the acquires between `position` and the next use of `unit`; SIZE_MAX:
 * there is no next use. */
static size_t reuse_distance(const walk *w, int unit, size_t position)
{
    size_t distance = 0;

    for (size_t p = position + 1; p < w->sequence->num_steps; p++) {
        if (step_needs(w->model, &w->sequence->steps[p], unit)) {
            return distance;
        }
        distance += gathered_elems(w->plan, w->sequence->steps[p].unit);
    }
    return SIZE_MAX;
}

static sherd_status prefetch(walk *w, size_t position)
{
    const sherdi_settings *settings = &w->plan->settings;
    int                    unit;

    for (size_t p = position + 1; p < w->sequence->num_steps; p++) {
        if (p > position + 1 && w->ahead_bytes >= AHEAD_BYTES) {
            return SHERD_OK;
        }
        for (size_t n = 0;
             (unit = sherdi_model_reached(w->model, w->sequence->steps[p].unit, n)) >= 0; n++) {
            size_t elems = gathered_elems(w->plan, unit);

            if (elems == 0 || w->units[unit].open != 0) {
                continue;
            }
            if (elems > settings->sharding.prefetch_bucket_size - w->ahead_elems ||
                w->live_elems + elems > settings->sharding.max_live_parameters) {
                return SHERD_OK;
            }
            SHERDI_TRY(live_range_open(w, unit, position));
            w->units[unit].is_ahead = 1;
            w->ahead_elems += elems;
            w->ahead_bytes += w->plan->layout.units[unit].gather_bytes;
        }
    }
    return SHERD_OK;
}

/* Releases the units that the acquire of `step` reached. */
static void walk_release(walk *w, const sherdi_step_of_pass *step)
{
    int unit;

    for (size_t n = 0; (unit = sherdi_model_reached(w->model, step->unit, n)) >= 0; n++) {
        walk_unit *state = &w->units[unit];
        size_t     distance;

        if (state->open == 0 || --state->held > 0) {
            continue;
        }
        w->sequence->live_ranges.items[state->open - 1].last = step->last;
        distance                                             = reuse_distance(w, unit, step->last);
        if (distance == SIZE_MAX || distance > w->plan->settings.sharding.max_reuse_distance) {
            state->open = 0;
            w->live_elems -= gathered_elems(w->plan, unit);
        }
    }
}

static sherd_status walk_step(walk *w, size_t position)
{
    sherdi_step_of_pass *step = &w->sequence->steps[position];
    int                  unit;

    step->first_start = w->sequence->live_ranges.count;
    for (size_t n = 0; (unit = sherdi_model_reached(w->model, step->unit, n)) >= 0; n++) {
        if (gathered_elems(w->plan, unit) == 0) {
            continue;
        }
        if (w->units[unit].open == 0) {
            SHERDI_TRY(live_range_open(w, unit, position));
        } else if (w->units[unit].is_ahead) {
            w->ahead_elems -= gathered_elems(w->plan, unit);
            w->ahead_bytes -= w->plan->layout.units[unit].gather_bytes;
        }
        w->units[unit].is_ahead = 0;
        w->units[unit].held++;
    }
    SHERDI_TRY(prefetch(w, position));
    for (size_t p = position - sherdi_min_size(position, w->sequence->most_held); p <= position;
         p++) {
        if (w->sequence->steps[p].last == position) {
            walk_release(w, &w->sequence->steps[p]);
        }
    }
    return SHERD_OK;
}

static sherd_status gathers_schedule(sherdi_plan *plan, const sherdi_model *model,
                                     sherdi_sequence *sequence)
{
    walk         w      = {.model = model, .plan = plan, .sequence = sequence};
    sherd_status status = SHERD_OK;

    w.units = sherdi_alloc_array(plan->mem, SHERDI_MEM_CONTROL, model->num_units, sizeof(*w.units));
    if (w.units == NULL) {
        return SHERD_E_NOMEM;
    }
    for (size_t p = 0; p < sequence->num_steps && status == SHERD_OK; p++) {
        status = walk_step(&w, p);
    }
    sherdi_free(w.units);
    return status;
}

/* Schedules the transient gradients. A gradient lives from the first backward use of its unit to
 * the release after the last one; one position longer if its reduction overlaps with the next unit;
 * to the end of the micro-batch if it is retained. The gradient of an open-ended unit lives through
 * the whole micro-batch, and is reduced after it (the module uses says which units are). */
static sherd_status transients_schedule(sherdi_plan *plan, const sherdi_model *model)
{
    for (size_t u = 0; u < plan->layout.num_units; u++) {
        sherdi_live_range live_range = {.unit  = (int)u,
                                        .bytes = plan->layout.units[u].transient_bytes};

        for (size_t p = 0; p < plan->schedule.train.num_steps; p++) {
            const sherdi_step_of_pass *step = &plan->schedule.train.steps[p];

            if (step->pass != SHERD_BACKWARD || !step_needs(model, step, (int)u)) {
                continue;
            }
            if (plan->layout.units[u].backward_uses++ == 0) {
                live_range.first = p;
            }
            live_range.last = sherdi_max_size(
                live_range.last, step->last + (plan->settings.sharding.overlap_comm ? 1 : 0));
        }
        if (plan->layout.units[u].is_open_ended) {
            live_range.first = 0;
            live_range.last  = plan->schedule.train.num_steps;
        }
        if (plan->layout.units[u].retains_grads) {
            live_range.last = plan->schedule.train.num_steps;
        }
        if (live_range.bytes > 0 &&
            (plan->layout.units[u].backward_uses > 0 || plan->layout.units[u].is_open_ended)) {
            SHERDI_TRY(sherdi_live_range_add(plan, &plan->schedule.transients, live_range));
        }
    }
    return SHERD_OK;
}

sherd_status sherdi_plan_schedule_make(sherdi_plan *plan, const sherdi_model *model)
{
    static const sherd_pass TRAIN[] = {SHERD_FORWARD, SHERD_BACKWARD};
    static const sherd_pass EVAL[]  = {SHERD_EVAL};

    SHERDI_TRY(sequence_make(plan, model, &plan->schedule.train, TRAIN,
                             plan->settings.update.optimizer->is_inference ? 1 : 2));
    SHERDI_TRY(sequence_make(plan, model, &plan->schedule.eval, EVAL, 1));
    SHERDI_TRY(gathers_schedule(plan, model, &plan->schedule.train));
    SHERDI_TRY(gathers_schedule(plan, model, &plan->schedule.eval));
    return transients_schedule(plan, model);
}
