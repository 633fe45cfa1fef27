/* The parameter of a block, with its state: its place for a kernel, and the copy of new values to
 * the space where it rests (program_walk.h). */
#include "engine/program/program_walk.h"

/* The element of a parameter's arena memory at which this rank's slice begins. */
static size_t own_first(const sherdi_plan *plan, const sherdi_segment *segment)
{
    size_t first;

    (void)sherdi_plan_owned(plan, segment, &first);
    return segment->is_resident ? first : 0;
}

/* Where a block's parameters rest in memory, in the compute type; bound ones are in the staging
 * buffer, on their way to the trainer. */
sherdi_range sherdi_program_param_at(const sherdi_plan *plan, const sherdi_segment *segment,
                                     const sherdi_block *block)
{
    size_t elem  = sherdi_compute_bytes(segment);
    size_t at    = (own_first(plan, segment) + block->offset_elems) * elem;
    size_t bytes = block->elems * elem;

    if (segment->is_bound) {
        return sherdi_staging_at(plan->packing.publish_offset + at, bytes);
    }
    return sherdi_range_of(segment->param_space == SHERDI_SPACE_HOST ? SHERDI_BUFFER_HOST_PARAMS
                                                                     : SHERDI_BUFFER_PARAMS,
                           segment->param_offset + at, bytes);
}

static size_t block_piece(const sherdi_plan *plan, const sherdi_segment *segment,
                          const sherdi_block *block)
{
    return segment->first_piece + sherdi_block_number(plan, block) - segment->first_block;
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
        way.made = sherdi_bounce_at(plan, block, plan->packing.bounce_param_offset, bytes);
    }
    return way;
}

/* Zeroes the padding between parameters, which the kernel does not write. */
static sherd_status gaps_zero(const sherdi_program *program, const sherdi_block *block,
                              sherdi_range target)
{
    sherdi_op op = sherdi_op_of_block(program->plan, SHERDI_OP_ZERO, block);

    op.to    = program->plan->layout.segments[block->segment].types.compute;
    op.flags = SHERDI_OP_GAPS;
    sherdi_op_use(&op, SHERDI_USE_DST, SHERDI_WRITES, target);
    return sherdi_program_emit(program, &op);
}

static sherd_status param_make(const sherdi_program *program, const sherdi_segment *segment,
                               const sherdi_block *block, sherdi_range *out)
{
    param_way way = param_way_of(program->plan, segment, block);

    *out = segment->has_master ? way.made : sherdi_program_param_at(program->plan, segment, block);
    /* the kernel also reads a parameter that is the master, or a half of it */
    out->access =
        segment->has_master && !sherdi_segment_is_beside(segment) ? SHERDI_WRITES : SHERDI_ADDS;
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
    sherdi_range at = sherdi_ring_slot(
        plan, SHERDI_RING_STATE, block->extent,
        block->elems * sherdi_compute_bytes(&plan->layout.segments[block->segment]));

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
    if (!is_updated_at_rest(walk, segment) || !sherdi_walk_writes_state(walk)) {
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
sherd_status sherdi_program_param_open(const sherdi_program *program, sherdi_walk walk,
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
sherd_status sherdi_program_param_look(const sherdi_program *program, sherdi_walk walk,
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

sherd_status sherdi_program_param_close(const sherdi_program *program, sherdi_walk walk,
                                        const sherdi_segment *segment, const sherdi_block *block)
{
    if (!sherdi_walk_publishes(walk)) {
        return SHERD_OK;
    }
    return sherdi_block_keeps_values(block) ? values_close(program, walk, segment, block)
                                            : param_rest(program, segment, block);
}
