/* Blocks whose data does not rest on the device: state, gradient and parameters come to the space
 * of the kernel, the kernel is executed, and the changes are copied back. Data on a drive passes
 * through slots. A read waits only for its slot, so the number of extents in flight is the number
 * of slots.
 *
 *     state in         updated on parameters in new values
 *     device           device device written by the kernel
 *     device           device host, drive staging, then down
 *     host, drive      host           device           bounce, then up
 *     host, drive      host           host             written by the kernel
 *     host, drive      host           drive            written by the kernel into a slot
 *
 * If the bf16 parameter is a half of the master and the state is on a drive, a slot also has room
 * for the parameter's values, and they are written with the state: so a commit has all that a
 * resume needs. An update does not read these values. It takes them from where the parameter rests,
 * down the link or in host memory. Other walks use the values on the drive. */
#include "engine/program/program_rings.h"
#include "engine/program/program_walk.h"

#include "base/checked.h"
#include "engine/modules.h"
#include "engine/program/offload.h"

static int writes_state(sherdi_walk walk)
{
    return walk == SHERDI_WALK_UPDATE || sherdi_walk_loads(walk);
}

static size_t block_number(const sherdi_plan *plan, const sherdi_block *block)
{
    return (size_t)(block - plan->layout.blocks);
}

sherd_status sherdi_program_copy(const sherdi_program *program, sherdi_lane_id lane,
                                 const sherdi_segment *segment, sherdi_range dst, sherdi_range src)
{
    return sherdi_program_move(
        program, sherdi_op_of_segment(program->plan, SHERDI_OP_COPY, lane, segment), dst, src);
}

/* ------------------------------------------------------------------ state -- */

static sherdi_range state_at(const sherdi_plan *plan, const sherdi_block *block, size_t bytes)
{
    sherdi_range at;

    if (block->space == SHERDI_SPACE_HOST) {
        return sherdi_range_of(SHERDI_BUFFER_HOST_STATE, block->state_offset, bytes);
    }
    at = sherdi_ring_slot(plan, SHERDI_RING_STATE, block->extent, bytes);
    at.offset += block->state_offset;
    return at;
}

/* Whether no later block shares the extent. */
static int is_last_of_extent(const sherdi_plan *plan, const sherdi_block *block)
{
    for (size_t b = block_number(plan, block) + 1; b < plan->layout.num_blocks; b++) {
        if (plan->layout.blocks[b].space == block->space) {
            return plan->layout.blocks[b].extent != block->extent;
        }
    }
    return 1;
}

/* Empties the slot of an extent that will be written completely, including elements that no
 * parameter covers. */
static sherd_status slot_empty(const sherdi_program *program, const sherdi_block *block)
{
    const sherdi_plan *plan = program->plan;

    if (block->state_offset != 0) { /* not the first block of the extent */
        return SHERD_OK;
    }
    sherdi_progress_release(program->progress, SHERDI_RING_STATE, block->extent);
    return sherdi_program_make(
        program, sherdi_op_of_block(plan, SHERDI_OP_ZERO, block),
        sherdi_ring_whole(plan, SHERDI_RING_STATE, block->extent, block->extent));
}

static sherd_status state_take(const sherdi_program *program, sherdi_walk walk,
                               const sherdi_block *block)
{
    if (block->space != SHERDI_SPACE_STORAGE) {
        return SHERD_OK;
    }
    if (walk == SHERDI_WALK_LOAD) {
        return slot_empty(program, block);
    }
    return sherdi_extent_read(program, walk, SHERDI_RING_STATE, block->extent,
                              sherdi_block_segment(program->plan, block)->unit);
}

/* Whether the walk changes any block of the extent; `block` is the last of them. */
static int extent_is_changed(const sherdi_program *program, sherdi_walk walk,
                             const sherdi_block *block)
{
    const sherdi_plan *plan = program->plan;

    for (size_t b = block_number(plan, block) + 1; b-- > 0;) {
        const sherdi_block *other = &plan->layout.blocks[b];

        if (other->space == block->space && other->extent != block->extent) {
            break;
        }
        if (other->space == block->space &&
            !sherdi_program_is_skipped(program, walk, sherdi_block_segment(plan, other)->unit)) {
            return writes_state(walk);
        }
    }
    return 0;
}

static sherd_status state_give(const sherdi_program *program, sherdi_walk walk,
                               const sherdi_block *block)
{
    int unit = sherdi_block_segment(program->plan, block)->unit;

    if (block->space != SHERDI_SPACE_STORAGE || !is_last_of_extent(program->plan, block)) {
        return SHERD_OK;
    }
    if (extent_is_changed(program, walk, block)) {
        SHERDI_TRY(
            sherdi_program_write(program, SHERDI_RING_STATE, block->extent, block->extent, unit));
    }
    return walk == SHERDI_WALK_LOAD
               ? SHERD_OK
               : sherdi_slot_go_on(program, walk, SHERDI_RING_STATE, block->extent, unit);
}

/* --------------------------------------------------------------- gradient -- */

static sherdi_range bounce_at(const sherdi_plan *plan, const sherdi_block *block, size_t offset,
                              size_t bytes)
{
    size_t slot = block_number(plan, block) % (size_t)plan->offload->num_bounces;

    return sherdi_range_of(SHERDI_BUFFER_BOUNCE, slot * plan->offload->bounce_bytes + offset,
                           bytes);
}

static sherdi_range gradient_at(const sherdi_plan *plan, const sherdi_block *block, size_t bytes)
{
    return block->grad_space == SHERDI_SPACE_HOST
               ? sherdi_range_of(SHERDI_BUFFER_HOST_GRADS, block->grad_offset, bytes)
               : sherdi_ring_slot(plan, SHERDI_RING_GRADS, block->grad_offset, bytes);
}

static sherd_status gradient_give(const sherdi_program *program, sherdi_walk walk,
                                  const sherdi_block *block)
{
    if (block->grad_space != SHERDI_SPACE_STORAGE) {
        return SHERD_OK;
    }
    return sherdi_slot_go_on(program, walk, SHERDI_RING_GRADS, block->grad_offset,
                             sherdi_block_segment(program->plan, block)->unit);
}

static sherd_status segment_norm(const sherdi_program *program, const sherdi_segment *segment)
{
    const sherdi_plan *plan = program->plan;

    for (size_t b = 0; b < segment->num_blocks; b++) {
        const sherdi_block *block = &plan->layout.blocks[segment->first_block + b];
        sherdi_op           op =
            sherdi_program_norm_op(plan, segment, block->grad_space,
                                   sherdi_program_gradient(plan, block), segment->types.grad);

        SHERDI_TRY(sherdi_rings_gradient_read(program, block));
        SHERDI_TRY(sherdi_program_emit(program, &op));
        SHERDI_TRY(gradient_give(program, SHERDI_WALK_UPDATE, block));
    }
    return SHERD_OK;
}

static sherd_status gradient_send(const sherdi_program *program, const sherdi_block *block)
{
    const sherdi_plan    *plan    = program->plan;
    const sherdi_segment *segment = sherdi_block_segment(plan, block);
    sherdi_range          src     = sherdi_program_gradient(plan, block);

    SHERDI_TRY(sherdi_modules_gradient_take(program, SHERDI_WALK_DIRECT, segment, block, &src));
    return sherdi_program_copy(program, SHERDI_LANE_DOWN, segment,
                               bounce_at(plan, block, 0, src.bytes), src);
}

/* Sends the gradients of this block and of the next ones down, as many as there are bounce buffers.
 * Of integers only one at a time: the staging buffer has room for one widened block. */
static sherd_status gradients_send(const sherdi_program *program, const sherdi_block *block)
{
    const sherdi_plan *plan = program->plan;
    size_t            *next = &program->progress->bounced;
    size_t             b    = block_number(plan, block);
    size_t ahead = plan->layout.is_deterministic ? 0 : (size_t)plan->offload->num_bounces - 1;

    *next = sherdi_max_size(*next, b);
    for (; *next < plan->layout.num_blocks && *next <= b + ahead; (*next)++) {
        const sherdi_block *other = &plan->layout.blocks[*next];

        if (!sherdi_is_on_device(other->space) && sherdi_is_on_device(other->grad_space)) {
            SHERDI_TRY(gradient_send(program, other));
        }
    }
    return SHERD_OK;
}

/* Gives the reduced gradient of a block, in the space in which the block is updated. */
static sherd_status gradient_take(const sherdi_program *program, const sherdi_segment *segment,
                                  const sherdi_block *block, sherdi_range *out)
{
    const sherdi_plan *plan = program->plan;

    if (!sherdi_is_on_device(block->grad_space)) {
        *out = sherdi_program_gradient(plan, block);
        return sherdi_rings_gradient_read(program, block);
    }
    if (sherdi_is_on_device(block->space)) {
        *out = sherdi_program_gradient(program->plan, block);
        return sherdi_modules_gradient_take(program, SHERDI_WALK_DIRECT, segment, block, out);
    }
    *out = bounce_at(plan, block, 0, block->elems * sherd_dtype_bytes(segment->types.grad));
    return gradients_send(program, block);
}

/* ------------------------------------------------- directions of matrices -- */

/* Where the kernels of a block that is updated on the host have its directions. */
static sherdi_range direction_at(const sherdi_plan *plan, const sherdi_block *block)
{
    return sherdi_is_on_device(block->space)
               ? sherdi_direction_at(plan, block)
               : bounce_at(plan, block, plan->offload->bounce_direction_offset,
                           block->elems * sizeof(float));
}

/* Brings them to the segment's directions on the device, or back. */
static sherd_status direction_move(const sherdi_program *program, const sherdi_block *block,
                                   sherdi_lane_id lane)
{
    sherdi_range here   = direction_at(program->plan, block);
    sherdi_range device = sherdi_direction_at(program->plan, block);
    int          is_up  = lane == SHERDI_LANE_UP;

    return sherdi_is_on_device(block->space)
               ? SHERD_OK
               : sherdi_program_copy(program, lane, sherdi_block_segment(program->plan, block),
                                     is_up ? device : here, is_up ? here : device);
}

/* -------------------------------------------------------------- parameters -- */

static size_t block_piece(const sherdi_plan *plan, const sherdi_segment *segment,
                          const sherdi_block *block)
{
    return segment->first_piece + block_number(plan, block) - segment->first_block;
}

/* The way of new values from the kernel that makes them to where they rest. */
typedef struct param_way {
    sherdi_range
        made; /* where the kernel writes: where they rest, or a buffer from which they are copied */
    sherdi_range   rests;   /* in memory, or in the slot of the piece */
    int            is_copy; /* from `made` to `rests`, on `lane` */
    sherdi_lane_id lane;
} param_way;

static param_way param_way_of(const sherdi_plan *plan, const sherdi_segment *segment,
                              const sherdi_block *block)
{
    int is_stored = segment->param_space == SHERDI_SPACE_STORAGE;
    int is_down   = sherdi_is_on_device(block->space) && !sherdi_is_on_device(segment->param_space);
    int is_up     = !sherdi_is_on_device(block->space) && sherdi_is_on_device(segment->param_space);
    size_t    bytes = block->elems * sherdi_compute_bytes(segment);
    param_way way   = {.is_copy = is_down || is_up,
                       .lane    = is_down ? SHERDI_LANE_DOWN : SHERDI_LANE_UP};

    way.rests = is_stored ? sherdi_ring_slot(plan, SHERDI_RING_PARAMS,
                                             block_piece(plan, segment, block), bytes)
                          : sherdi_program_param_at(plan, segment, block);
    way.made  = way.rests;
    if (is_down) {
        way.made = sherdi_staging_at(plan->packing.publish_offset, bytes);
    } else if (is_up) {
        way.made = bounce_at(plan, block, plan->offload->bounce_param_offset, bytes);
    }
    return way;
}

/* Zeroes the padding between parameters, which the kernel does not write. */
static sherd_status gaps_zero(const sherdi_program *program, const sherdi_block *block,
                              sherdi_range target)
{
    sherdi_op op = sherdi_op_of_block(program->plan, SHERDI_OP_ZERO, block);

    op.to    = sherdi_block_segment(program->plan, block)->types.compute;
    op.flags = SHERDI_OP_GAPS;
    return sherdi_program_make(program, op, target);
}

static sherd_status param_make(const sherdi_program *program, const sherdi_segment *segment,
                               const sherdi_block *block, sherdi_range *out)
{
    param_way way = param_way_of(program->plan, segment, block);

    *out = segment->has_master ? way.made : sherdi_program_param_at(program->plan, segment, block);
    out->access = (uint8_t)sherdi_program_param_access(segment);
    if (!segment->has_master || (!way.is_copy && segment->param_space != SHERDI_SPACE_STORAGE)) {
        return SHERD_OK;
    }
    return gaps_zero(program, block, *out);
}

static sherd_status param_rest(const sherdi_program *program, const sherdi_segment *segment,
                               const sherdi_block *block)
{
    size_t    piece = block_piece(program->plan, segment, block);
    param_way way   = param_way_of(program->plan, segment, block);

    if (!segment->has_master) {
        return SHERD_OK;
    }
    if (way.is_copy) {
        SHERDI_TRY(sherdi_program_copy(program, way.lane, segment, way.rests, way.made));
    }
    return segment->param_space == SHERDI_SPACE_STORAGE
               ? sherdi_program_write(program, SHERDI_RING_PARAMS, piece, piece, segment->unit)
               : SHERD_OK;
}

/* ----------------------------------------- values that are stored with the state -- */

sherdi_range sherdi_state_values_at(const sherdi_plan *plan, const sherdi_block *block)
{
    sherdi_range at =
        sherdi_ring_slot(plan, SHERDI_RING_STATE, block->extent,
                         block->elems * sherdi_compute_bytes(sherdi_block_segment(plan, block)));

    at.offset += block->value_offset;
    return at;
}

/* Whether the kernel updates the parameter where it rests, in host memory. */
static int is_updated_at_rest(sherdi_walk walk, const sherdi_segment *segment)
{
    return sherdi_walk_has_gradient(walk) && segment->param_space == SHERDI_SPACE_HOST;
}

/* Returns the parameter's half of a block's split masters. Values that were not read with the state
 * come from where the parameter rests. */
static sherd_status values_open(const sherdi_program *program, sherdi_walk walk,
                                const sherdi_segment *segment, const sherdi_block *block,
                                sherdi_range *out)
{
    const sherdi_plan *plan = program->plan;

    *out        = is_updated_at_rest(walk, segment) ? sherdi_program_param_at(plan, segment, block)
                                                    : sherdi_state_values_at(plan, block);
    out->access = SHERDI_ADDS;
    if (!sherdi_walk_has_gradient(walk) || !sherdi_is_on_device(segment->param_space)) {
        return SHERD_OK;
    }
    return sherdi_program_copy(program, SHERDI_LANE_DOWN, segment, *out,
                               sherdi_program_param_at(plan, segment, block));
}

/* Copies the values into the slot with which the extent is written. */
static sherd_status values_keep(const sherdi_program *program, sherdi_walk walk,
                                const sherdi_segment *segment, const sherdi_block *block)
{
    if (!is_updated_at_rest(walk, segment) || !writes_state(walk)) {
        return SHERD_OK;
    }
    return sherdi_program_copy(program, SHERDI_LANE_HOST, segment,
                               sherdi_state_values_at(program->plan, block),
                               sherdi_program_param_at(program->plan, segment, block));
}

/* Brings new values to where they rest. */
static sherd_status values_close(const sherdi_program *program, sherdi_walk walk,
                                 const sherdi_segment *segment, const sherdi_block *block)
{
    const sherdi_plan *plan   = program->plan;
    sherdi_range       values = sherdi_state_values_at(plan, block);
    size_t             piece;

    if (is_updated_at_rest(walk, segment)) {
        return values_keep(program, walk, segment, block);
    }
    if (segment->param_space != SHERDI_SPACE_STORAGE) {
        return sherdi_program_copy(
            program, sherdi_is_on_device(segment->param_space) ? SHERDI_LANE_UP : SHERDI_LANE_HOST,
            segment, sherdi_program_param_at(plan, segment, block), values);
    }
    piece = block_piece(plan, segment, block);
    SHERDI_TRY(sherdi_program_copy(program, SHERDI_LANE_HOST, segment,
                                   sherdi_ring_slot(plan, SHERDI_RING_PARAMS, piece, values.bytes),
                                   values));
    return sherdi_program_write(program, SHERDI_RING_PARAMS, piece, piece, segment->unit);
}

/* ------------------------------------------------- the kernel's and at rest -- */

/* Returns the parameter with which the kernel works; _param_close copies the kernel's changes to
 * the space where it rests. */
static sherd_status param_open(const sherdi_program *program, sherdi_walk walk,
                               const sherdi_segment *segment, const sherdi_block *block,
                               sherdi_range *out)
{
    if (sherdi_block_keeps_values(block)) {
        return values_open(program, walk, segment, block, out);
    }
    *out = sherdi_program_param_at(program->plan, segment, block);
    return sherdi_walk_publishes(walk) ? param_make(program, segment, block, out) : SHERD_OK;
}

/* For a block that stays as it is; the extent may still be written, with these values. */
static sherd_status param_look(const sherdi_program *program, sherdi_walk walk,
                               const sherdi_segment *segment, const sherdi_block *block,
                               sherdi_range *out)
{
    if (!sherdi_block_keeps_values(block)) {
        *out = sherdi_program_param_at(program->plan, segment, block);
        return SHERD_OK;
    }
    SHERDI_TRY(values_open(program, walk, segment, block, out));
    return values_keep(program, walk, segment, block);
}

static sherd_status param_close(const sherdi_program *program, sherdi_walk walk,
                                const sherdi_segment *segment, const sherdi_block *block)
{
    if (!sherdi_walk_publishes(walk)) {
        return SHERD_OK;
    }
    return sherdi_block_keeps_values(block) ? values_close(program, walk, segment, block)
                                            : param_rest(program, segment, block);
}

/* ------------------------------------------------------------------- walks -- */

/* Leaves a block as it is; an update counts its fingerprint. Reads ahead for the block are used up
 * as usual. */
static sherd_status block_pass(const sherdi_program *program, sherdi_walk walk,
                               const sherdi_segment *segment, const sherdi_block *block)
{
    sherdi_range param;

    SHERDI_TRY(state_take(program, walk, block));
    if (walk == SHERDI_WALK_UPDATE) {
        SHERDI_TRY(param_look(program, walk, segment, block, &param));
        SHERDI_TRY(sherdi_program_master_count(program, segment, block, param));
    }
    SHERDI_TRY(gradient_give(program, walk, block));
    return state_give(program, walk, block);
}

/* The first sweep over a block of matrices: changes the moments, and makes the directions. */
static sherd_status block_direct(const sherdi_program *program, const sherdi_segment *segment,
                                 const sherdi_block *block)
{
    sherdi_range gradient;

    SHERDI_TRY(state_take(program, SHERDI_WALK_DIRECT, block));
    SHERDI_TRY(gradient_take(program, segment, block, &gradient));
    SHERDI_TRY(sherdi_program_block_work(program, SHERDI_WALK_DIRECT, segment, block, gradient,
                                         direction_at(program->plan, block)));
    SHERDI_TRY(direction_move(program, block, SHERDI_LANE_UP));
    return gradient_give(program, SHERDI_WALK_DIRECT, block);
}

/* Returns the input of a block's update: its gradient, or its part of the orthogonal matrices. */
static sherd_status gradient_open(const sherdi_program *program, const sherdi_segment *segment,
                                  const sherdi_block *block, sherdi_range *out)
{
    if (!sherdi_segment_has_matrices(segment)) {
        return gradient_take(program, segment, block, out);
    }
    *out = direction_at(program->plan, block);
    return direction_move(program, block, SHERDI_LANE_DOWN);
}

static sherd_status block_walk(const sherdi_program *program, sherdi_walk walk,
                               const sherdi_segment *segment, const sherdi_block *block)
{
    sherdi_range gradient = {.where = SHERDI_AT_NOWHERE};
    sherdi_range param;

    if (sherdi_program_is_skipped(program, walk, segment->unit)) {
        return block_pass(program, walk, segment, block);
    }
    if (walk == SHERDI_WALK_DIRECT) {
        return block_direct(program, segment, block);
    }
    SHERDI_TRY(state_take(program, walk, block));
    if (sherdi_walk_has_gradient(walk)) {
        SHERDI_TRY(gradient_open(program, segment, block, &gradient));
    }
    SHERDI_TRY(param_open(program, walk, segment, block, &param));
    SHERDI_TRY(sherdi_program_block_work(program, walk, segment, block, gradient, param));
    SHERDI_TRY(param_close(program, walk, segment, block));
    if (sherdi_walk_has_gradient(walk) && !sherdi_segment_has_matrices(segment)) {
        SHERDI_TRY(gradient_give(program, walk, block));
    }
    return state_give(program, walk, block);
}

/* Passes by a segment. One of its blocks may be the last of an extent that the walk needs, whose
 * turn then ends. */
static sherd_status segment_pass_by(const sherdi_program *program, sherdi_walk walk,
                                    const sherdi_segment *segment)
{
    const sherdi_plan *plan = program->plan;

    for (size_t b = 0; b < segment->num_blocks; b++) {
        const sherdi_block *block = &plan->layout.blocks[segment->first_block + b];

        if (block->space == SHERDI_SPACE_STORAGE &&
            sherdi_walk_visits(plan, walk, SHERDI_RING_STATE, block->extent)) {
            SHERDI_TRY(state_give(program, walk, block));
        }
    }
    return SHERD_OK;
}

const sherdi_program_offload_ops sherdi_program_rings = {
    .forget          = sherdi_rings_forget,
    .state_at        = state_at,
    .gradient_at     = gradient_at,
    .acquire_begin   = sherdi_rings_acquire_begin,
    .slice_fetch     = sherdi_slice_fetch,
    .fetch_ahead     = sherdi_rings_fetch_ahead,
    .slice_reduce    = sherdi_staged_reduce,
    .slice_zero      = sherdi_staged_zero,
    .window_begin    = sherdi_staged_forget,
    .window_end      = sherdi_staged_drain_all,
    .segment_norm    = segment_norm,
    .gradient_read   = sherdi_rings_gradient_read,
    .slots_begin     = sherdi_slots_begin,
    .block_walk      = block_walk,
    .segment_pass_by = segment_pass_by,
    .values_walk     = sherdi_values_walk,
    .walk_leave      = sherdi_walk_leave,
    .generation      = sherdi_rings_generation,
    .block_move      = sherdi_slots_block_move,
    .param_move      = sherdi_slots_param_move,
    .fill_end        = sherdi_slots_fill_end,
    .await           = sherdi_queued_await,
    .post            = sherdi_queued_post,
    .holds_up        = sherdi_queued_holds_up,
};
