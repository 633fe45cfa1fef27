/* See checkpoint.h. */
#include "engine/plan/checkpoint.h"

#include "base/checked.h"

sherd_status sherdi_plan_checkpoint_lay_out(sherdi_plan *plan, const sherdi_model *model)
{
    size_t bytes = 1;
    size_t slots;

    (void)model;
    sherdi_plan_buffer_name(plan, SHERDI_BUFFER_SNAPSHOT, "snapshot of a checkpoint",
                            SHERDI_MEM_HOST_STAGING, 1);
    for (size_t s = 0; s < plan->layout.num_segments; s++) {
        bytes +=
            plan->layout.segments[s].slice_elems * sherdi_saved_bytes(&plan->layout.segments[s]);
    }
    plan->packing.checkpoint_slot_bytes = sherdi_min_size(
        SHERDI_CHECKPOINT_SLOT_BYTES, sherdi_round_up(bytes, SHERDI_CHECKPOINT_EXTENT_BYTES));
    slots = sherdi_div_up(bytes, plan->packing.checkpoint_slot_bytes);
    if (plan->settings.checkpoint.is_async && !plan->has_generations) {
        plan->packing.buffers[SHERDI_BUFFER_SNAPSHOT].bytes =
            sherdi_round_up(bytes, plan->packing.checkpoint_slot_bytes);
    }
    plan->packing.checkpoint_slots =
        sherdi_min_size(SHERDI_CHECKPOINT_SLOTS, sherdi_max_size(slots, 2));
    return SHERD_OK;
}
