/* Walks over the blocks. For each block, state and gradient are copied to the space of the kernel,
 * the kernel is executed, and the changes are copied back. Data on a drive is transferred through
 * slots. A read waits only for its slot, so the number of extents in flight is the number of slots.
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
#include "engine/program/program_walk.h"

#include "base/checked.h"
#include "collectives/world.h"

#include <stddef.h>

/* ------------------------------------------------------------- what walks do -- */

/* Whether a unit is not updated: no rank reached it in the window, and the settings skip it. The
 * ranks have agreed on `runs`. */
static int is_skipped(const sherdi_program *program, sherdi_walk walk, int unit)
{
    return sherdi_walk_has_gradient(walk) && program->plan->settings.batch.skips_unused &&
           sherdi_program_unit(program, unit)->uses.runs == 0;
}

/* Whether a walk works on a segment: SHERDI_WALK_MEASURE only on those whose tensors are
 * measured. */
static int visits(sherdi_walk walk, const sherdi_segment *segment)
{
    return walk != SHERDI_WALK_MEASURE || sherdi_segment_is_measured(segment);
}

/* Whether a walk needs an extent: SHERDI_WALK_MEASURE does not need an extent without a segment of
 * two sweeps. */
static int visits_extent(const sherdi_plan *plan, sherdi_walk walk, sherdi_ring ring, size_t extent)
{
    const unsigned char *measured =
        ring == SHERDI_RING_STATE ? plan->offload.measured_state : plan->offload.measured_grads;

    return walk != SHERDI_WALK_MEASURE || measured == NULL || measured[extent];
}

/* ------------------------------------------------------------------ rings -- */

/* Reads an extent; also its tail, except in walks with a gradient, which have those values from
 * elsewhere. */
static sherd_status extent_read(const sherdi_program *program, sherdi_walk walk, sherdi_ring ring,
                                size_t extent, int unit)
{
    return sherdi_walk_has_gradient(walk)
               ? sherdi_program_read(program, ring, extent, extent, unit)
               : sherdi_program_read_whole(program, ring, extent, extent, unit);
}

/* Reads `extent`, or the next extent of the same slot that the walk needs. */
static sherd_status slot_read(const sherdi_program *program, sherdi_walk walk, sherdi_ring ring,
                              size_t extent, int unit)
{
    size_t extents = sherdi_ring_extents(program->plan, ring);

    if (!program->plan->settings.offload.pipeline_read) {
        return SHERD_OK;
    }
    while (extent < extents && !visits_extent(program->plan, walk, ring, extent)) {
        extent += sherdi_ring_slots(program->plan, ring);
    }
    return extent < extents ? extent_read(program, walk, ring, extent, unit) : SHERD_OK;
}

/* Ends an extent's turn in its slot, and reads the extent that takes the slot next. */
static sherd_status slot_go_on(const sherdi_program *program, sherdi_walk walk, sherdi_ring ring,
                               size_t extent, int unit)
{
    sherdi_progress_release(program->progress, ring, extent);
    return slot_read(program, walk, ring, extent + sherdi_ring_slots(program->plan, ring), unit);
}

sherd_status sherdi_program_slots_begin(const sherdi_program *program, sherdi_walk walk,
                                        sherdi_ring ring)
{
    size_t slots = sherdi_min_size(sherdi_ring_slots(program->plan, ring),
                                   sherdi_ring_extents(program->plan, ring));

    for (size_t e = 0; e < slots; e++) {
        SHERDI_TRY(slot_read(program, walk, ring, e, -1));
    }
    return SHERD_OK;
}

sherd_status sherdi_program_read_ahead(const sherdi_program *program)
{
    uint32_t     before = sherdi_program_flag(program, SHERDI_OP_AHEAD);
    sherd_status status = sherdi_program_slots_begin(
        program, sherdi_plan_is_measured(program->plan) ? SHERDI_WALK_MEASURE : SHERDI_WALK_UPDATE,
        SHERDI_RING_STATE);

    program->progress->flags = before;
    return status;
}

/* ------------------------------------------------------------------ state -- */

sherdi_range sherdi_state_at(const sherdi_plan *plan, const sherdi_block *block)
{
    static const int BUFFERS[] = {SHERDI_BUFFER_STATE, SHERDI_BUFFER_HOST_STATE};
    size_t           bytes     = sherdi_plan_state_bytes(plan, block);
    sherdi_range     at;

    if (block->space == SHERDI_SPACE_STORAGE) {
        at = sherdi_ring_slot(plan, SHERDI_RING_STATE, block->extent, bytes);
        at.offset += block->state_offset;
        return at;
    }
    return sherdi_range_of(BUFFERS[block->space], block->state_offset, bytes);
}

/* Whether no later block shares the extent. */
static int is_last_of_extent(const sherdi_plan *plan, const sherdi_block *block)
{
    for (size_t b = sherdi_block_number(plan, block) + 1; b < plan->layout.num_blocks; b++) {
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
    sherdi_op          op   = sherdi_op_of_block(plan, SHERDI_OP_ZERO, block);

    if (block->state_offset != 0) { /* not the first block of the extent */
        return SHERD_OK;
    }
    sherdi_progress_release(program->progress, SHERDI_RING_STATE, block->extent);
    sherdi_op_use(&op, SHERDI_USE_DST, SHERDI_WRITES,
                  sherdi_ring_whole(plan, SHERDI_RING_STATE, block->extent, block->extent));
    return sherdi_program_emit(program, &op);
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
    return extent_read(program, walk, SHERDI_RING_STATE, block->extent,
                       program->plan->layout.segments[block->segment].unit);
}

/* Whether the walk changes any block of the extent; `block` is the last of them. */
static int extent_is_changed(const sherdi_program *program, sherdi_walk walk,
                             const sherdi_block *block)
{
    const sherdi_plan *plan = program->plan;

    for (size_t b = sherdi_block_number(plan, block) + 1; b-- > 0;) {
        const sherdi_block *other = &plan->layout.blocks[b];

        if (other->space == block->space && other->extent != block->extent) {
            break;
        }
        if (other->space == block->space &&
            !is_skipped(program, walk, plan->layout.segments[other->segment].unit)) {
            return sherdi_walk_writes_state(walk);
        }
    }
    return 0;
}

static sherd_status state_give(const sherdi_program *program, sherdi_walk walk,
                               const sherdi_block *block)
{
    int unit = program->plan->layout.segments[block->segment].unit;

    if (block->space != SHERDI_SPACE_STORAGE || !is_last_of_extent(program->plan, block)) {
        return SHERD_OK;
    }
    if (extent_is_changed(program, walk, block)) {
        SHERDI_TRY(
            sherdi_program_write(program, SHERDI_RING_STATE, block->extent, block->extent, unit));
    }
    return walk == SHERDI_WALK_LOAD
               ? SHERD_OK
               : slot_go_on(program, walk, SHERDI_RING_STATE, block->extent, unit);
}

/* --------------------------------------------------------------- gradient -- */

sherd_status sherdi_program_gradient_give(const sherdi_program *program, sherdi_walk walk,
                                          const sherdi_block *block)
{
    if (block->grad_space != SHERDI_SPACE_STORAGE) {
        return SHERD_OK;
    }
    return slot_go_on(program, walk, SHERDI_RING_GRADS, block->grad_offset,
                      program->plan->layout.segments[block->segment].unit);
}

sherd_status sherdi_program_widen(const sherdi_program *program, const sherdi_segment *segment,
                                  sherdi_range src, sherdi_range dst)
{
    sherdi_op op =
        sherdi_op_of_segment(program->plan, SHERDI_OP_WIDEN, SHERDI_LANE_UPDATE, segment);

    op.elems  = src.bytes / sizeof(int64_t);
    dst.bytes = op.elems * sizeof(float);
    return sherdi_program_move(program, op, dst, src);
}

/* Stage 0, deterministic: every rank updates everything, and so needs the slices of the others. */
static sherd_status slices_collect(const sherdi_program *program, const sherdi_segment *segment)
{
    const sherdi_plan *plan  = program->plan;
    size_t             slice = segment->slice_elems * sizeof(float);
    sherdi_op          op;

    SHERDI_TRY(sherdi_program_widen(program, segment,
                                    sherdi_range_of(SHERDI_BUFFER_GRADS, segment->grad_offset,
                                                    segment->slice_elems * sizeof(int64_t)),
                                    sherdi_staging_at((size_t)plan->rank * slice, slice)));
    op      = sherdi_op_of_segment(plan, SHERDI_OP_GATHER, SHERDI_LANE_WIRE, segment);
    op.from = op.to = SHERD_F32;
    sherdi_op_gather_in_place(&op, plan,
                              sherdi_staging_at(0, segment->padded_elems * sizeof(float)));
    op.flags = SHERDI_OP_MEETS;
    return sherdi_program_emit(program, &op);
}

/* Gives the gradient of a block on the device, in the type of the update. */
static sherd_status gradient_on_device(const sherdi_program *program, const sherdi_segment *segment,
                                       const sherdi_block *block, sherdi_range *out)
{
    const sherdi_plan *plan  = program->plan;
    size_t             bytes = block->elems * sherd_dtype_bytes(segment->types.grad);

    if (!plan->layout.is_deterministic) {
        *out = sherdi_program_gradient(plan, block);
        return SHERD_OK;
    }
    if (!plan->layout.is_sliced) {
        *out = sherdi_staging_at(block->offset_elems * sizeof(float), bytes);
        return SHERD_OK;
    }
    *out = sherdi_staging_at(0, bytes);
    return sherdi_program_widen(program, segment, sherdi_program_gradient(plan, block), *out);
}

static sherd_status gradient_send(const sherdi_program *program, const sherdi_block *block)
{
    const sherdi_plan    *plan    = program->plan;
    const sherdi_segment *segment = &plan->layout.segments[block->segment];
    sherdi_range          src;

    SHERDI_TRY(gradient_on_device(program, segment, block, &src));
    return sherdi_program_copy(program, SHERDI_LANE_DOWN, segment,
                               sherdi_bounce_at(plan, block, 0, src.bytes), src);
}

/* Sends the gradients of this block and of the next ones down, as many as there are bounce buffers.
 * Of integers only one at a time: the staging buffer has room for one widened block. */
static sherd_status gradients_send(const sherdi_program *program, const sherdi_block *block)
{
    const sherdi_plan *plan = program->plan;
    size_t            *next = &program->progress->bounced;
    size_t             b    = sherdi_block_number(plan, block);
    size_t ahead = plan->layout.is_deterministic ? 0 : (size_t)plan->packing.num_bounces - 1;

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
        return sherdi_program_gradient_read(program, block);
    }
    if (sherdi_is_on_device(block->space)) {
        return gradient_on_device(program, segment, block, out);
    }
    *out = sherdi_bounce_at(plan, block, 0, block->elems * sherd_dtype_bytes(segment->types.grad));
    return gradients_send(program, block);
}

/* -------------------------------------------------------------- publishing -- */

/* Copies new values from the staging buffer to the trainer's own memory. */
static sherd_status bound_copy(const sherdi_program *program, const sherdi_segment *segment,
                               size_t param)
{
    const sherdi_plan *plan = program->plan;
    size_t       offset = plan->layout.params[param].offset_elems * sherdi_compute_bytes(segment);
    sherdi_range dst    = sherdi_program_trainer(program, SHERDI_AT_TRAINER_DATA, param);
    sherdi_op    op     = sherdi_op_of_segment(plan, SHERDI_OP_COPY, SHERDI_LANE_COMPUTE, segment);

    op.param = (int)param;
    return sherdi_program_move(program, op, dst,
                               sherdi_staging_at(plan->packing.publish_offset + offset, dst.bytes));
}

/* Publishes new values of bound parameters: gathers them in the staging buffer, then copies them to
 * the trainer. */
static sherd_status bound_publish(const sherdi_program *program, const sherdi_segment *segment)
{
    const sherdi_plan       *plan = program->plan;
    const sherdi_model_unit *unit = &program->model->units[segment->unit];
    sherdi_op op = sherdi_op_of_segment(plan, SHERDI_OP_GATHER, SHERDI_LANE_WIRE, segment);

    if (plan->layout.is_sliced) {
        op.from = op.to = segment->types.compute;
        op.flags        = SHERDI_OP_MEETS;
        sherdi_op_gather_in_place(
            &op, plan,
            sherdi_staging_at(plan->packing.publish_offset,
                              segment->padded_elems * sherdi_compute_bytes(segment)));
        SHERDI_TRY(sherdi_program_emit(program, &op));
    }
    for (size_t i = 0; i < unit->num_params; i++) {
        if (plan->layout.params[unit->params[i]].segment == op.segment) {
            SHERDI_TRY(bound_copy(program, segment, (size_t)unit->params[i]));
        }
    }
    return SHERD_OK;
}

int sherdi_segment_is_published(const sherdi_plan *plan, const sherdi_segment *segment)
{
    return plan->layout.is_sliced && segment->kind != SHERDI_SEGMENT_FROZEN &&
           segment->is_resident && !segment->is_bound;
}

/* Publishes a segment that is whole on every rank: gathers the ranks' slices in place. */
static sherd_status resident_publish(const sherdi_program *program, const sherdi_segment *segment,
                                     int is_early)
{
    const sherdi_plan *plan = program->plan;
    sherdi_op          op = sherdi_op_of_segment(plan, SHERDI_OP_GATHER, SHERDI_LANE_WIRE, segment);

    if (is_early != plan->schedule.publishes_early || !sherdi_segment_is_published(plan, segment)) {
        return SHERD_OK;
    }
    op.from = op.to = segment->types.compute;
    /* without is_early, the exchange of the fingerprint has promised that all slices are written */
    op.flags = is_early ? SHERDI_OP_MEETS : SHERDI_OP_STABLE;
    sherdi_op_gather_in_place(
        &op, plan,
        sherdi_range_of(SHERDI_BUFFER_PARAMS, segment->param_offset,
                        segment->padded_elems * sherdi_compute_bytes(segment)));
    return sherdi_program_emit(program, &op);
}

sherd_status sherdi_program_unit_publish(const sherdi_program *program, int unit)
{
    uint32_t     before = sherdi_program_flag(program, SHERDI_OP_ALONE);
    sherd_status status = SHERD_OK;

    for (size_t s = 0; s < program->plan->layout.units[unit].num_segments && status == SHERD_OK;
         s++) {
        status = resident_publish(program, sherdi_unit_segment(program->plan, unit, s),
                                  program->plan->schedule.publishes_early);
    }
    program->progress->flags = before;
    return status;
}

sherd_status sherdi_program_publish(const sherdi_program *program)
{
    const sherdi_plan *plan = program->plan;

    for (size_t s = 0; s < plan->layout.num_segments; s++) {
        if (!program->progress->is_updated ||
            !is_skipped(program, SHERDI_WALK_UPDATE, plan->layout.segments[s].unit)) {
            SHERDI_TRY(resident_publish(program, &plan->layout.segments[s], 0));
        }
    }
    return SHERD_OK;
}

/* Publishes a bound segment at once, because the next segment needs the staging buffer; and all
 * segments that are published early, except in a queued update: in this case the acquire does so,
 * which synchronizes at the same place on every rank. */
static sherd_status segment_close(const sherdi_program *program, const sherdi_segment *segment)
{
    if (segment->is_bound && segment->kind != SHERDI_SEGMENT_FROZEN) {
        SHERDI_TRY(bound_publish(program, segment));
    }
    return program->progress->flags & SHERDI_OP_BESIDE ? SHERD_OK
                                                       : resident_publish(program, segment, 1);
}

/* ------------------------------------------------------------------- walks -- */

/* Returns the bytes of those parts of a block whose bits are in `which`. A master that is the
 * parameter itself counts in the same way. */
static uint64_t parts_bytes(const sherdi_segment *segment, size_t elems, unsigned which)
{
    uint64_t bytes = 0;

    for (int i = 0; i < sherdi_segment_parts(segment); i++) {
        bytes += (which >> i & 1) * sherdi_segment_part_bytes(segment, i, elems);
    }
    return bytes;
}

/* Counts the bytes that a sweep moves through memory. */
static void sweep_count(const sherdi_plan *plan, const sherdi_segment *segment, sherdi_op *op)
{
    const sherdi_sweep *sweep = &segment->optimizer->sweeps[op->sweep];
    uint64_t            grad  = sweep->reads_gradient ? sherdi_grad_bytes(plan, segment) : 0;
    uint64_t            direction =
        (uint64_t)(sweep->reads_direction + sweep->writes_direction) * sizeof(float);
    uint64_t param = sweep->writes_param && segment->has_master ? sherdi_compute_bytes(segment) : 0;

    param += sherdi_segment_is_beside(segment) ? sherdi_compute_bytes(segment) : 0; /* it is read */

    op->moves[sherdi_is_on_device(op->space) ? SHERDI_MOVES_DEVICE : SHERDI_MOVES_HOST] =
        parts_bytes(segment, op->elems, sweep->reads) +
        parts_bytes(segment, op->elems, sweep->writes) + op->elems * (grad + direction + param);
}

/* Emits the last sweep, which writes the parameter, or the first, which takes norms. `gradient`:
 * the gradient of the block. */
static sherd_status update_emit(const sherdi_program *program, sherdi_walk walk,
                                const sherdi_segment *segment, const sherdi_block *block,
                                sherdi_range gradient, sherdi_range param)
{
    const sherdi_plan *plan       = program->plan;
    sherdi_op          op         = sherdi_op_of_block(plan, SHERDI_OP_UPDATE, block);
    int                is_written = walk == SHERDI_WALK_UPDATE;

    op.sweep = is_written ? segment->optimizer->num_sweeps - 1 : 0;
    sherdi_op_use(&op, SHERDI_USE_STATE, is_written ? SHERDI_ADDS : SHERDI_READS,
                  sherdi_state_at(plan, block));
    sherdi_op_use(&op, SHERDI_USE_SRC, SHERDI_READS, gradient);
    if (is_written || !segment->has_master || sherdi_segment_is_beside(segment)) {
        sherdi_op_use(&op, SHERDI_USE_PARAM,
                      is_written ? (sherdi_access)param.access : SHERDI_READS, param);
    }
    sherdi_op_use(
        &op, SHERDI_USE_SCALARS, SHERDI_ADDS,
        is_written ? sherdi_fingerprint_at(plan, block->space)
                   : sherdi_program_scalars_at(plan, block->space, plan->scalars.norms,
                                               plan->scalars.results_bytes - plan->scalars.norms));
    sweep_count(plan, segment, &op);
    return sherdi_program_emit(program, &op);
}

static sherd_status master_count(const sherdi_program *program, const sherdi_segment *segment,
                                 const sherdi_block *block, sherdi_range param)
{
    const sherdi_plan *plan   = program->plan;
    sherdi_op          op     = sherdi_op_of_block(plan, SHERDI_OP_FINGERPRINT, block);
    sherdi_range       master = segment->has_master ? sherdi_state_at(plan, block) : param;

    master.bytes = sherdi_segment_part_bytes(segment, 0, block->elems);
    if (sherdi_segment_part_is_encoded(segment, 0)) {
        sherdi_op_use(&op, SHERDI_USE_STATE, SHERDI_READS, sherdi_state_at(plan, block));
    } else {
        sherdi_op_use(&op, SHERDI_USE_SRC, SHERDI_READS, master);
    }
    if (sherdi_segment_is_beside(segment)) {
        sherdi_op_use(&op, SHERDI_USE_PARAM, SHERDI_READS, param);
    }
    sherdi_op_use(&op, SHERDI_USE_SCALARS, SHERDI_ADDS, sherdi_fingerprint_at(plan, block->space));
    return sherdi_program_emit(program, &op);
}

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

/* Does the work of the walk on a block. */
static sherd_status block_work(const sherdi_program *program, sherdi_walk walk,
                               const sherdi_segment *segment, const sherdi_block *block,
                               sherdi_range gradient, sherdi_range param)
{
    if (sherdi_walk_has_gradient(walk)) {
        return update_emit(program, walk, segment, block, gradient, param);
    }
    if (walk == SHERDI_WALK_SAVE || sherdi_walk_loads(walk)) {
        SHERDI_TRY(values_emit(program, walk, segment, block, param));
    }
    if (walk != SHERDI_WALK_SAVE) {
        SHERDI_TRY(master_count(program, segment, block, param));
    }
    return sherdi_walk_publishes(walk) ? master_publish(program, segment, block, param) : SHERD_OK;
}

/* Leaves a block as it is; an update counts its fingerprint. Reads ahead for the block are used up
 * as usual. */
static sherd_status block_pass(const sherdi_program *program, sherdi_walk walk,
                               const sherdi_segment *segment, const sherdi_block *block)
{
    sherdi_range param;

    SHERDI_TRY(state_take(program, walk, block));
    if (walk == SHERDI_WALK_UPDATE) {
        SHERDI_TRY(sherdi_program_param_look(program, walk, segment, block, &param));
        SHERDI_TRY(master_count(program, segment, block, param));
    }
    SHERDI_TRY(sherdi_program_gradient_give(program, walk, block));
    return state_give(program, walk, block);
}

/* The first sweep over a block of matrices: changes the moments, and makes the directions. */
static sherd_status block_direct(const sherdi_program *program, const sherdi_segment *segment,
                                 const sherdi_block *block)
{
    const sherdi_plan *plan = program->plan;
    sherdi_op          op   = sherdi_op_of_block(plan, SHERDI_OP_UPDATE, block);
    sherdi_range       gradient;

    SHERDI_TRY(state_take(program, SHERDI_WALK_UPDATE, block));
    SHERDI_TRY(gradient_take(program, segment, block, &gradient));
    sherdi_op_use(&op, SHERDI_USE_DST, SHERDI_WRITES, sherdi_direction_at(plan, block));
    sherdi_op_use(&op, SHERDI_USE_STATE, SHERDI_ADDS, sherdi_state_at(plan, block));
    sherdi_op_use(&op, SHERDI_USE_SRC, SHERDI_READS, gradient);
    sweep_count(plan, segment, &op);
    SHERDI_TRY(sherdi_program_emit(program, &op));
    SHERDI_TRY(sherdi_program_direction_give(program, block));
    return sherdi_program_gradient_give(program, SHERDI_WALK_UPDATE, block);
}

/* The first sweep over all blocks of a segment, then the matrices along which the second sweep
 * steps. */
static sherd_status segment_direct(const sherdi_program *program, const sherdi_segment *segment)
{
    for (size_t b = 0; b < segment->num_blocks; b++) {
        SHERDI_TRY(block_direct(program, segment,
                                &program->plan->layout.blocks[segment->first_block + b]));
    }
    SHERDI_TRY(sherdi_program_directions_gather(program, segment));
    return sherdi_program_matrices_make(program, segment);
}

/* Returns the input of a block's update: its gradient, or its part of the orthogonal matrices. */
static sherd_status gradient_open(const sherdi_program *program, const sherdi_segment *segment,
                                  const sherdi_block *block, sherdi_range *out)
{
    if (!sherdi_segment_has_matrices(segment)) {
        return gradient_take(program, segment, block, out);
    }
    *out = sherdi_direction_at(program->plan, block);
    return sherdi_program_direction_take(program, block);
}

static sherd_status block_walk(const sherdi_program *program, sherdi_walk walk,
                               const sherdi_segment *segment, const sherdi_block *block)
{
    sherdi_range gradient = {.where = SHERDI_AT_NOWHERE};
    sherdi_range param;

    SHERDI_TRY(state_take(program, walk, block));
    if (sherdi_walk_has_gradient(walk)) {
        SHERDI_TRY(gradient_open(program, segment, block, &gradient));
    }
    SHERDI_TRY(sherdi_program_param_open(program, walk, segment, block, &param));
    SHERDI_TRY(block_work(program, walk, segment, block, gradient, param));
    SHERDI_TRY(sherdi_program_param_close(program, walk, segment, block));
    if (sherdi_walk_has_gradient(walk) && !sherdi_segment_has_matrices(segment)) {
        SHERDI_TRY(sherdi_program_gradient_give(program, walk, block));
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
            visits_extent(plan, walk, SHERDI_RING_STATE, block->extent)) {
            SHERDI_TRY(state_give(program, walk, block));
        }
    }
    return SHERD_OK;
}

static sherd_status segment_walk(const sherdi_program *program, sherdi_walk walk,
                                 const sherdi_segment *segment)
{
    const sherdi_plan *plan = program->plan;

    if (!visits(walk, segment)) {
        return segment_pass_by(program, walk, segment);
    }
    if (is_skipped(program, walk, segment->unit)) {
        for (size_t b = 0; b < segment->num_blocks; b++) {
            SHERDI_TRY(
                block_pass(program, walk, segment, &plan->layout.blocks[segment->first_block + b]));
        }
        return SHERD_OK;
    }
    if (sherdi_walk_has_gradient(walk) && segment->has_gradient && plan->layout.is_deterministic &&
        !plan->layout.is_sliced) {
        SHERDI_TRY(slices_collect(program, segment));
    }
    if (walk == SHERDI_WALK_UPDATE && sherdi_segment_has_matrices(segment)) {
        SHERDI_TRY(segment_direct(program, segment));
    }
    for (size_t b = 0; b < segment->num_blocks; b++) {
        SHERDI_TRY(
            block_walk(program, walk, segment, &plan->layout.blocks[segment->first_block + b]));
    }
    return sherdi_walk_publishes(walk) ? segment_close(program, segment) : SHERD_OK;
}

sherd_status sherdi_program_walk(const sherdi_program *program, sherdi_walk walk)
{
    const sherdi_plan *plan = program->plan;
    size_t             from = offsetof(sherdi_scalars_head, fingerprint);

    program->progress->bounced    = 0;
    program->progress->met        = 0;
    program->progress->is_updated = walk == SHERDI_WALK_UPDATE;
    SHERDI_TRY(sherdi_program_clear(program, SHERDI_LANE_UPDATE, from,
                                    plan->scalars.results_bytes - from));
    if (walk != SHERDI_WALK_LOAD) {
        SHERDI_TRY(sherdi_program_slots_begin(program, walk, SHERDI_RING_STATE));
    }
    if (sherdi_walk_has_gradient(walk)) {
        SHERDI_TRY(sherdi_program_slots_begin(program, walk, SHERDI_RING_GRADS));
    }
    for (size_t s = 0; s < plan->layout.num_segments; s++) {
        SHERDI_TRY(segment_walk(program, walk, &plan->layout.segments[s]));
        if (s + 1 == plan->layout.num_segments ||
            plan->layout.segments[s + 1].unit != plan->layout.segments[s].unit) {
            SHERDI_TRY(
                sherdi_program_post(program, SHERDI_POST_UNIT, plan->layout.segments[s].unit));
        }
    }
    program->progress->met = 0; /* the next walk may fail before it begins */
    return SHERD_OK;
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

sherd_status sherdi_program_walk_leave(const sherdi_program *program, sherdi_walk walk)
{
    rest_of_walk   rest    = {.program = program, .met = program->progress->met};
    sherdi_program leaving = *program;

    leaving.fn  = rest_emit;
    leaving.ctx = &rest;
    return sherdi_program_walk(&leaving, walk);
}
