/* The scalars of kernels: the small inputs of kernels (coefficients, ratios) and their sums (norms,
 * counts, fingerprints). Without a device there is one set. With one, each side has its own, and the
 * module devices emits what copies them (sherdi_apart_ops). */
#include "engine/program/program_walk.h"

sherdi_range sherdi_program_scalars_at(const sherdi_plan *plan, sherdi_space space, size_t offset,
                                       size_t bytes)
{
    return sherdi_range_of(plan->machine.has_device && !sherdi_is_on_device(space)
                               ? SHERDI_BUFFER_HOST_SCALARS
                               : SHERDI_BUFFER_SCALARS,
                           offset, bytes);
}

/* Calls a function of the module, if the device has memory of its own. */
#define IF_APART(call)                                                                             \
    (program->progress->apart == NULL ? SHERD_OK : program->progress->apart->call)

sherd_status sherdi_program_scalars_send(const sherdi_program *program, sherdi_op op)
{
    size_t inputs = program->plan->scalars.inputs;
    size_t bytes  = program->plan->scalars.shared_bytes - inputs;

    SHERDI_TRY(sherdi_program_make(
        program, op, sherdi_program_scalars_at(program->plan, SHERDI_SPACE_HOST, inputs, bytes)));
    return IF_APART(copy_up(program, inputs, bytes));
}

sherd_status sherdi_program_clear(const sherdi_program *program, sherdi_lane_id lane, size_t offset,
                                  size_t bytes)
{
    SHERDI_TRY(sherdi_program_make(program, sherdi_op_of(SHERDI_OP_CLEAR, lane),
                                   sherdi_range_of(SHERDI_BUFFER_SCALARS, offset, bytes)));
    return IF_APART(clear(program, offset, bytes));
}

static sherd_status results_add(const sherdi_program *program, size_t offset, size_t bytes)
{
    const sherdi_apart_ops *apart = program->progress->apart;
    sherdi_op               op    = sherdi_op_of(SHERDI_OP_COLLECT, SHERDI_LANE_HOST);

    sherdi_op_use(&op, SHERDI_USE_SCALARS, SHERDI_ADDS,
                  sherdi_program_scalars_at(program->plan, SHERDI_SPACE_HOST, offset, bytes));
    if (apart != NULL) {
        sherdi_op_use(&op, SHERDI_USE_SRC, SHERDI_READS,
                      apart->arrived_at(program->plan, offset, bytes));
    }
    return sherdi_program_emit(program, &op);
}

sherd_status sherdi_program_collect(const sherdi_program *program)
{
    size_t bytes = program->plan->scalars.results_bytes;

    SHERDI_TRY(IF_APART(copy_down(program, 0, bytes)));
    return results_add(program, 0, bytes);
}

sherd_status sherdi_program_fingerprint_send(const sherdi_program *program)
{
    return IF_APART(
        copy_down(program, offsetof(sherdi_scalars_head, fingerprint), sizeof(uint64_t)));
}

sherd_status sherdi_program_fingerprint_sent(const sherdi_program *program)
{
    return results_add(program, offsetof(sherdi_scalars_head, fingerprint), sizeof(uint64_t));
}
