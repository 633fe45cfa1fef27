/* Second copies (zero_hpz_partition_size): the ranks of a host have a copy of the parameters of the
 * compute type among them, in addition to the slices of all ranks. A unit is gathered from all ranks
 * once after each change of the parameters; then each rank stores its part of the host's copy, and
 * later gathers take the parts of the host's ranks, on the lane of this group. Values are the same
 * bits either way (DeepSpeed's ZeRO++, "hierarchical partitioning"). */
#include "engine/program/program.h"

#include "base/checked.h"
#include "engine/modules.h"

/* Returns whether a segment has a second copy; none is made of what every rank has whole. */
static int is_copied(const sherdi_plan *plan, const sherdi_segment *segment)
{
    return plan->copy_ranks > 1 && segment->gather_offset != SHERDI_NO_OFFSET &&
           segment->slice_elems > 0;
}

/* Returns the bytes of a rank's part of the copy. */
static size_t part_bytes(const sherdi_plan *plan, const sherdi_segment *segment)
{
    return segment->padded_elems / (size_t)plan->copy_ranks * sherdi_compute_bytes(segment);
}

static sherdi_range part_at(const sherdi_plan *plan, const sherdi_segment *segment)
{
    return sherdi_range_of(SHERDI_BUFFER_COPIES, segment->copy_offset, part_bytes(plan, segment));
}

static sherd_status copies_lay_out(sherdi_plan *plan, const sherdi_model *model)
{
    sherdi_plan_buffer *buffer = &plan->packing.buffers[SHERDI_BUFFER_COPIES];

    (void)model;
    if (plan->settings.sharding.stage < 3 || plan->settings.copy_ranks >= plan->world_size ||
        plan->world_size % plan->settings.copy_ranks != 0) {
        return SHERD_OK; /* nothing is gathered, or by the ranks of one host alone; sherd.elastic */
    }
    plan->copy_ranks = plan->settings.copy_ranks;
    sherdi_plan_buffer_name(plan, SHERDI_BUFFER_COPIES, "second copies", SHERDI_MEM_PARAMS, 0);
    buffer->is_shared = 1;
    buffer->is_group  = 1;
    for (size_t s = 0; s < plan->layout.num_segments; s++) {
        sherdi_segment *segment = &plan->layout.segments[s];

        if (is_copied(plan, segment)) {
            segment->copy_offset = buffer->bytes;
            buffer->bytes += sherdi_round_up(part_bytes(plan, segment), SHERD_ALIGN_BYTES);
        }
        if (is_copied(plan, segment) && segment->param_space == SHERDI_SPACE_STORAGE) {
            return sherdi_fail(SHERD_E_NOTSUP,
                               "zero_optimization.zero_hpz_partition_size with parameters on NVMe: "
                               "a second copy in memory would take the room that they leave; "
                               "remove one of the two keys");
        }
    }
    return SHERD_OK;
}

/* Takes a segment from the copy of this host, if there is one. */
static sherd_status copy_gather(const sherdi_program *program, const sherdi_segment *segment,
                                const sherdi_range *whole, int *is_taken)
{
    const sherdi_plan *plan = program->plan;
    sherdi_range       own;
    sherdi_op op = sherdi_op_of_segment(plan, SHERDI_OP_GATHER, SHERDI_LANE_GROUP, segment);

    if (!is_copied(plan, segment) || !sherdi_program_unit(program, segment->unit)->is_copied) {
        return SHERD_OK;
    }
    *is_taken = 1;
    own       = part_at(plan, segment);
    op.from = op.to  = segment->types.compute;
    op.elems         = segment->padded_elems / (size_t)plan->copy_ranks;
    op.flags         = SHERDI_OP_MEETS;
    own.is_all_ranks = 1;
    return sherdi_program_move(program, op, *whole, own);
}

/* Stores this rank's part of a unit that was gathered from all ranks, before it is used: by then it
 * is there, and nothing waits for the copy. */
static sherd_status copy_store(const sherdi_program *program, int unit, int is_backward)
{
    const sherdi_plan *plan  = program->plan;
    sherdi_unit_state *state = sherdi_program_unit(program, unit);

    (void)is_backward;
    if (plan->copy_ranks < 2 || state->is_copied || !state->is_gathered) {
        return SHERD_OK;
    }
    for (size_t s = 0; s < plan->layout.units[unit].num_segments; s++) {
        const sherdi_segment *segment = sherdi_unit_segment(plan, unit, s);
        sherdi_op    op = sherdi_op_of_segment(plan, SHERDI_OP_COPY, SHERDI_LANE_COMPUTE, segment);
        sherdi_range part;

        if (is_copied(plan, segment)) {
            part = part_at(plan, segment);
            SHERDI_TRY(sherdi_program_move(
                program, op, part,
                sherdi_range_of(SHERDI_BUFFER_GATHER,
                                state->gathered_at + segment->gather_offset +
                                    (size_t)(plan->rank % plan->copy_ranks) * part.bytes,
                                part.bytes)));
        }
    }
    state->is_copied = 1;
    return SHERD_OK;
}

const sherdi_module sherdi_module_copies = {
    .lay_out = copies_lay_out, .gather_take = copy_gather, .unit_used = copy_store};
