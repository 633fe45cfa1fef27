/* The scalars of kernels: the small inputs of kernels (coefficients, ratios) and their sums (norms,
 * counts, fingerprints). Without a device there is one set. With one, each side has its own: inputs
 * are copied up from the host's, and the device's results are copied down after the host's, to
 * which they are added. */
#include "engine/program/program_walk.h"

sherdi_range sherdi_program_scalars_at(const sherdi_plan *plan, sherdi_space space, size_t offset,
                                       size_t bytes)
{
    return sherdi_range_of(plan->machine.has_device && !sherdi_is_on_device(space)
                               ? SHERDI_BUFFER_HOST_SCALARS
                               : SHERDI_BUFFER_SCALARS,
                           offset, bytes);
}

/* ----------------------------------------------------------------- inputs -- */

static sherdi_range inputs_at(const sherdi_plan *plan, sherdi_space space)
{
    return sherdi_program_scalars_at(plan, space, plan->scalars.inputs,
                                     plan->scalars.shared_bytes - plan->scalars.inputs);
}

/* Copies scalars between host and device, in the order of the kernels that use them. */
static sherd_status scalars_copy(const sherdi_program *program, sherdi_range dst, sherdi_range src)
{
    return program->plan->machine.has_device
               ? sherdi_program_move(program, sherdi_op_of(SHERDI_OP_COPY, SHERDI_LANE_UPDATE), dst,
                                     src)
               : SHERD_OK;
}

sherd_status sherdi_program_scalars_send(const sherdi_program *program, sherdi_op op)
{
    const sherdi_plan *plan = program->plan;

    SHERDI_TRY(sherdi_program_make(program, op, inputs_at(plan, SHERDI_SPACE_HOST)));
    return scalars_copy(program, inputs_at(plan, SHERDI_SPACE_DEVICE),
                        inputs_at(plan, SHERDI_SPACE_HOST));
}

/* ---------------------------------------------------------------- results -- */

sherd_status sherdi_program_clear(const sherdi_program *program, sherdi_lane_id lane, size_t offset,
                                  size_t bytes)
{
    SHERDI_TRY(sherdi_program_make(program, sherdi_op_of(SHERDI_OP_CLEAR, lane),
                                   sherdi_range_of(SHERDI_BUFFER_SCALARS, offset, bytes)));
    return program->plan->machine.has_device
               ? sherdi_program_make(program, sherdi_op_of(SHERDI_OP_CLEAR, SHERDI_LANE_HOST),
                                     sherdi_range_of(SHERDI_BUFFER_HOST_SCALARS, offset, bytes))
               : SHERD_OK;
}

/* The place of the device's results on the host: after the host's own. */
static sherdi_range arrived_at(const sherdi_plan *plan, size_t offset, size_t bytes)
{
    return sherdi_range_of(SHERDI_BUFFER_HOST_SCALARS, plan->scalars.shared_bytes + offset, bytes);
}

static sherd_status results_send(const sherdi_program *program, size_t offset, size_t bytes)
{
    const sherdi_plan *plan = program->plan;

    return scalars_copy(program, arrived_at(plan, offset, bytes),
                        sherdi_program_scalars_at(plan, SHERDI_SPACE_DEVICE, offset, bytes));
}

static sherd_status results_add(const sherdi_program *program, size_t offset, size_t bytes)
{
    const sherdi_plan *plan = program->plan;
    sherdi_op          op   = sherdi_op_of(SHERDI_OP_COLLECT, SHERDI_LANE_HOST);

    sherdi_op_use(&op, SHERDI_USE_SCALARS, SHERDI_ADDS,
                  sherdi_program_scalars_at(plan, SHERDI_SPACE_HOST, offset, bytes));
    if (plan->machine.has_device) {
        sherdi_op_use(&op, SHERDI_USE_SRC, SHERDI_READS, arrived_at(plan, offset, bytes));
    }
    return sherdi_program_emit(program, &op);
}

sherd_status sherdi_program_collect(const sherdi_program *program)
{
    size_t bytes = program->plan->scalars.results_bytes;

    SHERDI_TRY(results_send(program, 0, bytes));
    return results_add(program, 0, bytes);
}

sherd_status sherdi_program_fingerprint_send(const sherdi_program *program)
{
    return results_send(program, offsetof(sherdi_scalars_head, fingerprint), sizeof(uint64_t));
}

sherd_status sherdi_program_fingerprint_sent(const sherdi_program *program)
{
    return results_add(program, offsetof(sherdi_scalars_head, fingerprint), sizeof(uint64_t));
}
