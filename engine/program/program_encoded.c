/* Values of parts of the state that are not stored as fp32. */
#include "engine/program/program_values.h"

#include "engine/modules.h"

/* Moves a part that is not stored as fp32. Putting a split master sets the parameter too. */
static sherd_status part_move(const sherdi_value_range *f, const sherdi_block *block,
                              sherdi_range state, sherdi_range half)
{
    sherdi_op     op     = sherdi_value_op(f, f->is_put ? SHERDI_OP_ENCODE : SHERDI_OP_DECODE,
                                           sherdi_values_lane(f, block->space));
    sherdi_access access = f->is_put ? SHERDI_ADDS : SHERDI_READS;

    op.block = block;
    op.elems = f->end - f->begin;
    op.index = sherdi_values_in_block(f, block);
    sherdi_op_use(&op, SHERDI_USE_STATE, access, state);
    if (f->part == 0 && sherdi_segment_is_beside(f->segment)) {
        sherdi_op_use(&op, SHERDI_USE_PARAM, access, half);
    }
    sherdi_op_use(&op, f->is_put ? SHERDI_USE_SRC : SHERDI_USE_DST,
                  f->is_put ? SHERDI_READS : SHERDI_WRITES, sherdi_values_at(f));
    return sherdi_program_emit(f->program, &op);
}

static sherd_status encoded_move(const sherdi_value_range *f, const sherdi_block *block,
                                 const sherdi_range *state, const sherdi_range *half)
{
    sherdi_value_range rests = *f;

    SHERDI_TRY(part_move(f, block, *state, *half));
    if (!f->is_put || f->part != 0 || !sherdi_values_are_counted(f)) {
        return SHERD_OK;
    }
    rests.is_put = 0; /* an encoding may have rounded the values, and what rests is what counts */
    return part_move(&rests, block, *state, *half);
}

const sherdi_module sherdi_module_encoded_values = {.encoded_move = encoded_move};
