/* The scalars of a device whose memory is not the host's: inputs are copied up from the host's, and
 * the device's results are copied down after the host's, to which they are added. And values of
 * parameters of another type, which pass through the fill buffer. */
#include "engine/program/program_values.h"
#include "engine/program/program_walk.h"

#include "engine/modules.h"

/* Copies scalars between host and device, in the order of the kernels that use them. */
static sherd_status scalars_copy(const sherdi_program *program, sherdi_range dst, sherdi_range src)
{
    return sherdi_program_move(program, sherdi_op_of(SHERDI_OP_COPY, SHERDI_LANE_UPDATE), dst, src);
}

static sherd_status inputs_copy_up(const sherdi_program *program, size_t offset, size_t bytes)
{
    const sherdi_plan *plan = program->plan;

    return scalars_copy(program,
                        sherdi_program_scalars_at(plan, SHERDI_SPACE_DEVICE, offset, bytes),
                        sherdi_program_scalars_at(plan, SHERDI_SPACE_HOST, offset, bytes));
}

static sherd_status host_clear(const sherdi_program *program, size_t offset, size_t bytes)
{
    return sherdi_program_make(program, sherdi_op_of(SHERDI_OP_CLEAR, SHERDI_LANE_HOST),
                               sherdi_range_of(SHERDI_BUFFER_HOST_SCALARS, offset, bytes));
}

static sherdi_range results_arrived_at(const sherdi_plan *plan, size_t offset, size_t bytes)
{
    return sherdi_range_of(SHERDI_BUFFER_HOST_SCALARS, plan->scalars.shared_bytes + offset, bytes);
}

static sherd_status results_copy_down(const sherdi_program *program, size_t offset, size_t bytes)
{
    return scalars_copy(
        program, results_arrived_at(program->plan, offset, bytes),
        sherdi_program_scalars_at(program->plan, SHERDI_SPACE_DEVICE, offset, bytes));
}

/* The host casts between two parts of the fill buffer. */
static sherd_status apart_values_cast(const sherdi_value_range *f, sherd_dtype dtype,
                                      sherdi_range at)
{
    sherdi_range near =
        sherdi_range_of(SHERDI_BUFFER_FILL, f->program->plan->packing.fill_cast_offset,
                        (f->end - f->begin) * sherd_dtype_bytes(dtype));

    if (!f->is_put) {
        SHERDI_TRY(sherdi_values_copy(f, SHERDI_SPACE_DEVICE, at, near));
    }
    SHERDI_TRY(sherdi_values_cast(f, SHERDI_SPACE_HOST, dtype, near));
    return f->is_put ? sherdi_values_copy(f, SHERDI_SPACE_DEVICE, at, near) : SHERD_OK;
}

static const sherdi_apart_ops APART = {inputs_copy_up, host_clear, results_copy_down,
                                       results_arrived_at, apart_values_cast};

static sherd_status apart_open(struct sherdi_progress *progress, const sherdi_plan *plan,
                               const sherdi_model *model, sherdi_mem *mem)
{
    (void)model, (void)mem;
    progress->apart = plan->machine.has_device ? &APART : NULL;
    return SHERD_OK;
}

const sherdi_module sherdi_module_apart = {.progress_open = apart_open};
