/* The units that evaluation keeps gathered between its passes (sherd.eval_keep_units): the first
 * ones that EVAL gathers. No other unit gets their place during EVAL (plan_pack.c). */
#include "engine/modules.h"

static int is_kept(const sherdi_plan *plan, int unit)
{
    for (size_t i = 0; i < plan->schedule.lasting.count; i++) {
        if (plan->schedule.lasting.items[i].unit == unit) {
            return 1;
        }
    }
    return 0;
}

static sherd_status unit_keep(sherdi_plan *plan, int unit)
{
    size_t bytes = plan->layout.units[unit].gather_bytes;

    if (bytes == 0 || is_kept(plan, unit)) {
        return SHERD_OK;
    }
    return sherdi_live_range_add(plan, &plan->schedule.lasting,
                                 (sherdi_live_range){.unit  = unit,
                                                     .last  = plan->schedule.eval.num_steps - 1,
                                                     .bytes = bytes});
}

static sherd_status units_keep(sherdi_plan *plan, const sherdi_model *model)
{
    for (size_t p = 0; p < plan->schedule.eval.num_steps; p++) {
        int unit;

        for (size_t n = 0;
             (unit = sherdi_model_reached(model, plan->schedule.eval.steps[p].unit, n)) >= 0; n++) {
            if (plan->schedule.lasting.count < plan->settings.sharding.eval_keep_units) {
                SHERDI_TRY(unit_keep(plan, unit));
            }
        }
    }
    return SHERD_OK;
}

const sherdi_module sherdi_module_eval = {.lay_out = units_keep};
