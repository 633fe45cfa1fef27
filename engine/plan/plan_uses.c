/* Units that backward may use any number of times, and units whose gradients are retained: what the
 * trainer declared about gradients. */
#include "engine/modules.h"

/* Marks a unit as open-ended; `marked` lists the units that are. */
static void open_ended_mark(sherdi_plan *plan, int *marked, size_t *count, int unit)
{
    if (!plan->layout.units[unit].is_open_ended) {
        plan->layout.units[unit].is_open_ended = 1;
        marked[(*count)++]                     = unit;
    }
}

/* Copies the model's declarations about gradients. The units that an open-ended unit reads,
 * directly or through others, are open-ended too: a use of a unit is a use of all units that it
 * reads. */
static sherd_status gradients_mark(sherdi_plan *plan, const sherdi_model *model)
{
    int *marked =
        sherdi_alloc_array(plan->mem, SHERDI_MEM_CONTROL, plan->layout.num_units, sizeof(*marked));
    size_t count = 0;
    int    needed;

    if (marked == NULL) {
        return SHERD_E_NOMEM;
    }
    for (size_t u = 0; u < plan->layout.num_units; u++) {
        plan->layout.units[u].retains_grads = model->units[u].retains_grads;
        if (model->units[u].has_any_uses) {
            open_ended_mark(plan, marked, &count, (int)u);
        }
    }
    for (size_t i = 0; i < count; i++) {
        for (size_t n = 1; (needed = sherdi_model_reached(model, marked[i], n)) >= 0; n++) {
            open_ended_mark(plan, marked, &count, needed);
        }
    }
    plan->layout.used_words = count == 0 ? 0 : count / 64 + 1;
    sherdi_free(marked);
    return SHERD_OK;
}

/* A gradient that is retained stays in the transient pool until the micro-batch ends. That of an
 * open-ended unit is there all the time, and is reduced after it. */
static sherd_status transients_stay(sherdi_plan *plan, const sherdi_model *model)
{
    sherdi_live_ranges *transients = &plan->schedule.transients;

    (void)model;
    for (size_t i = 0; i < transients->count; i++) {
        const sherdi_plan_unit *unit = &plan->layout.units[transients->items[i].unit];

        transients->items[i].first = unit->is_open_ended ? 0 : transients->items[i].first;
        if (unit->is_open_ended || unit->retains_grads) {
            transients->items[i].last = plan->schedule.train.num_steps;
        }
    }
    return SHERD_OK;
}

const sherdi_module sherdi_module_plan_uses = {.segments_made = gradients_mark,
                                               .lay_out       = transients_stay};
