/* Schedule: decides when units are gathered and released. Where operations overlap, gathers start
 * ahead of their use (plan_ahead.c). plan_pack.c then gives the units offsets from their lifetimes,
 * so the size of the pool is the peak, and does not depend on timing. emit.c counts the collectives
 * with their bytes. */
#include "engine/plan/plan_schedule.h"

#include "base/checked.h"
#include "engine/modules.h"

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

sherd_status sherdi_live_range_add(const sherdi_plan *plan, sherdi_live_ranges *live_ranges,
                                   sherdi_live_range live_range)
{
    SHERDI_TRY(
        SHERDI_GROW(plan->mem, live_ranges->items, live_ranges->count, live_ranges->capacity));
    live_ranges->items[live_ranges->count++] = live_range;
    return SHERD_OK;
}

sherd_status sherdi_schedule_gather(sherdi_schedule_walk *w, int unit, size_t position)
{
    sherdi_sequence *sequence = w->sequence;

    SHERDI_TRY(sherdi_live_range_add(
        w->plan, &sequence->live_ranges,
        (sherdi_live_range){.unit  = unit,
                            .first = position,
                            .last  = position,
                            .bytes = w->plan->layout.units[unit].gather_bytes}));
    w->units[unit].open = sequence->live_ranges.count;
    w->live_elems += w->plan->layout.units[unit].gather_elems;
    sequence->steps[position].num_starts++;
    return SHERD_OK;
}

/* Returns the elements of the acquires between `position` and the next use of `unit`; SIZE_MAX:
 * there is no next use. */
static size_t reuse_distance(const sherdi_schedule_walk *w, int unit, size_t position)
{
    size_t distance = 0;

    for (size_t p = position + 1; p < w->sequence->num_steps; p++) {
        if (step_needs(w->model, &w->sequence->steps[p], unit)) {
            return distance;
        }
        distance += w->plan->layout.units[w->sequence->steps[p].unit].gather_elems;
    }
    return SIZE_MAX;
}

/* Releases the units that the acquire of `step` reached. */
static void walk_release(sherdi_schedule_walk *w, const sherdi_step_of_pass *step)
{
    int unit;

    for (size_t n = 0; (unit = sherdi_model_reached(w->model, step->unit, n)) >= 0; n++) {
        sherdi_schedule_unit *state = &w->units[unit];
        size_t                distance;

        if (state->open == 0 || --state->held > 0) {
            continue;
        }
        w->sequence->live_ranges.items[state->open - 1].last = step->last;
        distance                                             = reuse_distance(w, unit, step->last);
        if (distance == SIZE_MAX || distance > w->plan->settings.sharding.max_reuse_distance) {
            state->open = 0;
            w->live_elems -= w->plan->layout.units[unit].gather_elems;
        }
    }
}

static sherd_status walk_step(sherdi_schedule_walk *w, size_t position)
{
    sherdi_step_of_pass *step = &w->sequence->steps[position];
    int                  unit;

    step->first_start = w->sequence->live_ranges.count;
    for (size_t n = 0; (unit = sherdi_model_reached(w->model, step->unit, n)) >= 0; n++) {
        if (w->plan->layout.units[unit].gather_elems == 0) {
            continue;
        }
        if (w->units[unit].open == 0) {
            SHERDI_TRY(sherdi_schedule_gather(w, unit, position));
        } else if (w->units[unit].is_ahead) {
            w->ahead_elems -= w->plan->layout.units[unit].gather_elems;
            w->ahead_bytes -= w->plan->layout.units[unit].gather_bytes;
        }
        w->units[unit].is_ahead = 0;
        w->units[unit].held++;
    }
    SHERDI_TRY(sherdi_modules_gather_ahead(w, position));
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
    sherdi_schedule_walk w      = {.model = model, .plan = plan, .sequence = sequence};
    sherd_status         status = SHERD_OK;

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
 * the release after the last one; one position longer if its reduction overlaps with the next unit.
 * The module uses lengthens that. */
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
