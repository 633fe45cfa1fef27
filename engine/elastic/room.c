/* See room.h. */
#include "engine/elastic/room.h"

#include "base/checked.h"
#include "engine/modules.h"
#include "engine/program/program_walk.h"
#include "engine/run/agree.h"

static int has_room(const sherdi_plan *plan)
{
    return plan->world_size > 1 && sherdi_keeps_apart(plan);
}

/* Bytes of a block's gradient slice in the room. */
static size_t block_bytes(const sherdi_plan *plan, const sherdi_block *block)
{
    return sherdi_round_up(
        block->elems * sherdi_grad_bytes(plan, sherdi_block_segment(plan, block)), 64);
}

/* Whether a gradient slice goes through the room. With "host" other ranks have the host's memory. */
static int is_roomed(const sherdi_plan *plan, sherdi_range gradient)
{
    return gradient.bytes > 0 && (plan->settings.redundancy == SHERDI_REDUNDANCY_PEER ||
                                  gradient.where == SHERDI_BUFFER_GRADS);
}

size_t sherdi_room_bytes(const sherdi_plan *plan)
{
    size_t bytes = 0;

    for (size_t b = 0; b < plan->layout.num_blocks && has_room(plan); b++) {
        bytes += block_bytes(plan, &plan->layout.blocks[b]);
    }
    return sherdi_round_up(bytes, SHERD_ALIGN_BYTES);
}

sherd_status sherdi_room_emit(const sherdi_program *program)
{
    const sherdi_plan *plan = program->plan;
    size_t             at   = sherdi_ledger_bytes(plan);

    for (size_t b = 0; b < plan->layout.num_blocks && has_room(plan); b++) {
        const sherdi_block   *block    = &plan->layout.blocks[b];
        const sherdi_segment *segment  = sherdi_block_segment(plan, block);
        sherdi_range          gradient = sherdi_program_gradient(plan, block);

        if (!sherdi_program_is_skipped(program, SHERDI_WALK_UPDATE, segment->unit) &&
            is_roomed(plan, gradient)) {
            SHERDI_TRY(sherdi_program_move(
                program,
                sherdi_op_of_segment(plan, SHERDI_OP_COPY,
                                     gradient.where == SHERDI_BUFFER_HOST_GRADS
                                         ? SHERDI_LANE_HOST
                                         : SHERDI_LANE_COMPUTE,
                                     segment),
                sherdi_range_of(SHERDI_BUFFER_REDUNDANCY, at, gradient.bytes), gradient));
        }
        at += block_bytes(plan, block);
    }
    return SHERD_OK;
}

sherd_status sherdi_room_fill(sherd_engine *engine)
{
    if (!has_room(engine->plan)) {
        return SHERD_OK;
    }
    SHERDI_TELL(lanes, drain, engine);
    return sherdi_agree_status(engine, sherdi_lane_wait(engine->backend));
}

uint64_t sherdi_room_take(const sherd_engine *engine, int rank, const sherdi_holding *to)
{
    const sherdi_plan    *plan  = engine->plan;
    const sherdi_backend *host  = engine->host;
    const unsigned char  *room  = sherdi_ledger_memory_of(engine, rank);
    size_t                at    = sherdi_ledger_bytes(plan);
    uint64_t              moved = 0;

    for (size_t b = 0; b < plan->layout.num_blocks && has_room(plan); b++) {
        const sherdi_block *block = &plan->layout.blocks[b];
        sherdi_range        slice = sherdi_program_gradient(to->plan, &to->plan->layout.blocks[b]);

        if (!engine->elastic->noted.skipped[sherdi_block_segment(plan, block)->unit] &&
            is_roomed(plan, sherdi_program_gradient(plan, block))) {
            host->kernels->copy(host, to->buffers[slice.where] + slice.offset, room + at,
                                slice.bytes);
            moved += slice.bytes;
        }
        at += block_bytes(plan, block);
    }
    return moved;
}
