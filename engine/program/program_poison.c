/* Debug: poisons memory that nobody may read any more, so that a late read of it shows in the next
 * result. */
#include "engine/modules.h"
#include "engine/program/program.h"

static sherd_status range_poison(const sherdi_program *program, int unit, const sherdi_range *range)
{
    sherdi_op op = sherdi_op_of(SHERDI_OP_POISON, SHERDI_LANE_COMPUTE);

    if (!program->plan->settings.is_debug || range->bytes == 0) {
        return SHERD_OK;
    }
    op.unit = unit;
    return sherdi_program_make(program, op, *range);
}

const sherdi_module sherdi_module_poison = {.range_left = range_poison};
