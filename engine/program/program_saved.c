/* The walks with which values go to a checkpoint, or come from one, and the end of a walk that has
 * failed on this rank alone. */
#include "engine/program/program_rings.h"
#include "engine/program/program_walk.h"

/* Makes the parameters from the master weights. */
static sherd_status master_publish(const sherdi_program *program, const sherdi_segment *segment,
                                   const sherdi_block *block, sherdi_range param)
{
    sherdi_range master = sherdi_state_at(program->plan, block);
    sherdi_op    op     = sherdi_op_of_block(program->plan, SHERDI_OP_CAST, block);

    if (!segment->has_master || sherdi_segment_is_beside(segment)) {
        return SHERD_OK; /* the parameter has its values already */
    }
    master.bytes = sherdi_segment_part_bytes(segment, 0, block->elems);
    /* padding of the master is zero */
    op.from = segment->encodings[0] == SHERDI_ENCODING_BF16 ? SHERD_BF16 : SHERD_F32;
    op.to   = segment->types.compute;
    return sherdi_program_move(program, op, param, master);
}

/* Gives a block's values to a checkpoint, or takes them from one. Memory of a device is reached
 * through the trainer's lane. */
static sherd_status values_emit(const sherdi_program *program, sherdi_walk walk,
                                const sherdi_segment *segment, const sherdi_block *block,
                                sherdi_range param)
{
    const sherdi_plan *plan   = program->plan;
    int                is_put = sherdi_walk_loads(walk);
    sherdi_access      access = is_put ? SHERDI_ADDS : SHERDI_READS; /* padding stays */
    sherdi_op op = sherdi_op_of_block(plan, is_put ? SHERDI_OP_LOAD : SHERDI_OP_SAVE, block);

    op.lane = sherdi_is_on_device(block->space) && plan->machine.has_device ? SHERDI_LANE_COMPUTE
                                                                            : SHERDI_LANE_HOST;
    sherdi_op_use(&op, SHERDI_USE_STATE, access, sherdi_state_at(plan, block));
    if (!segment->has_master || sherdi_segment_is_beside(segment)) {
        sherdi_op_use(&op, SHERDI_USE_PARAM, access, param);
    }
    return sherdi_program_emit(program, &op);
}

sherd_status sherdi_values_walk(const sherdi_program *program, sherdi_walk walk,
                                const sherdi_segment *segment, const sherdi_block *block,
                                sherdi_range param)
{
    if (walk != SHERDI_WALK_REPUBLISH) {
        SHERDI_TRY(values_emit(program, walk, segment, block, param));
    }
    if (walk == SHERDI_WALK_SAVE) {
        return SHERD_OK;
    }
    SHERDI_TRY(sherdi_program_master_count(program, segment, block, param));
    return master_publish(program, segment, block, param);
}

/* The operations of an abandoned walk, without those that the other ranks do not wait for. */
typedef struct rest_of_walk {
    const sherdi_program *program;
    size_t                met; /* synchronizing operations that were enqueued before the failure */
} rest_of_walk;

static sherd_status rest_emit(void *ctx, const sherdi_op *op)
{
    rest_of_walk *rest = ctx;

    if (!(op->flags & SHERDI_OP_MEETS)) {
        return SHERD_OK;
    }
    if (rest->met > 0) {
        rest->met--;
        return SHERD_OK;
    }
    return sherdi_program_emit(rest->program, op);
}

sherd_status sherdi_walk_leave(const sherdi_program *program, sherdi_walk walk)
{
    rest_of_walk   rest    = {.program = program, .met = program->progress->met};
    sherdi_program leaving = *program;

    leaving.fn  = rest_emit;
    leaving.ctx = &rest;
    return sherdi_program_walk(&leaving, walk);
}
