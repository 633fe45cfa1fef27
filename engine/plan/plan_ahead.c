/* Gathers ahead of their use: as far as the wire needs it, and prefetch_bucket_size and
 * max_live_parameters allow it. Without lanes a gather ahead would hide nothing. */
#include "engine/plan/plan_schedule.h"

#include "engine/modules.h"

/* The units of the next acquire are gathered ahead, whatever their size; more only while less than
 * AHEAD_BYTES are ahead. An acquire starts the next gather before it waits for its own. So with one
 * unit ahead the wire has its next transfer when one is over. A second unit ahead hides the start
 * of a call (launch, meeting of the ranks) where transfers are short: 100 us at 50 GB/s between
 * hosts are 5 MB, 20 us at 400 GB/s inside one are 8 MB. Larger units cover the start by
 * themselves; more of them ahead take memory and save no time. */
#define AHEAD_BYTES ((size_t)8 << 20)

static sherd_status gather_ahead(sherdi_schedule_walk *w, size_t position)
{
    const sherdi_settings *settings = &w->plan->settings;
    int                    unit;

    for (size_t p = position + 1; p < w->sequence->num_steps; p++) {
        if (p > position + 1 && w->ahead_bytes >= AHEAD_BYTES) {
            return SHERD_OK;
        }
        for (size_t n = 0;
             (unit = sherdi_model_reached(w->model, w->sequence->steps[p].unit, n)) >= 0; n++) {
            size_t elems = w->plan->layout.units[unit].gather_elems;

            if (elems == 0 || w->units[unit].open != 0) {
                continue;
            }
            if (elems > settings->sharding.prefetch_bucket_size - w->ahead_elems ||
                w->live_elems + elems > settings->sharding.max_live_parameters) {
                return SHERD_OK;
            }
            SHERDI_TRY(sherdi_schedule_gather(w, unit, position));
            w->units[unit].is_ahead = 1;
            w->ahead_elems += elems;
            w->ahead_bytes += w->plan->layout.units[unit].gather_bytes;
        }
    }
    return SHERD_OK;
}

const sherdi_module sherdi_module_ahead = {.gather_ahead = gather_ahead};
