/* Parameters that are bound to the trainer's own memory: the trainer's kernels use them there, their
 * gradients are taken from there, and new values are copied to it. */
#include "engine/program/program_values.h"
#include "engine/program/program_walk.h"

#include "base/checked.h"
#include "engine/modules.h"

/* Returns the range of a parameter in the trainer's own memory: `where` is SHERDI_AT_TRAINER_DATA or
 * SHERDI_AT_TRAINER_GRAD. */
static sherdi_range trainer_range(const sherdi_program *program, int where, size_t param)
{
    size_t elem = sherdi_compute_bytes(sherdi_param_segment(program->plan, param));

    return sherdi_range_of(where, sherdi_trainer_offset(program->plan, program->model, param),
                           program->model->params[param].elems * elem);
}

static sherd_status unit_binding_check(const sherdi_plan *plan, const sherdi_model *model,
                                       const sherdi_model_unit *unit, const sherdi_segment *segment,
                                       int index)
{
    for (size_t i = 0; i < unit->num_params; i++) {
        const sherdi_model_param *param = &model->params[unit->params[i]];

        if (plan->layout.params[unit->params[i]].segment != index) {
            continue;
        }
        if (param->bound_data != NULL && plan->settings.sharding.stage == 3) {
            return sherdi_fail(
                SHERD_E_NOTSUP,
                "parameter %s is bound to the trainer's memory, which stage 3 cannot "
                "keep whole; use stage 0, 1 or 2, or do not bind",
                param->name);
        }
        if ((param->bound_data != NULL) != segment->is_bound) {
            return sherdi_fail(
                SHERD_E_INVAL,
                "unit %s: some of its %s%s parameters are bound and %s is not; bind all "
                "of a unit or none",
                unit->name, segment->kind == SHERDI_SEGMENT_FROZEN ? "frozen" : "trainable",
                segment->is_wide ? " fp32" : "", param->name);
        }
    }
    return SHERD_OK;
}

static sherd_status binding_check(sherdi_plan *plan, const sherdi_model *model)
{
    for (size_t s = 0; s < plan->layout.num_segments; s++) {
        const sherdi_segment *segment = &plan->layout.segments[s];

        SHERDI_TRY(unit_binding_check(plan, model, &model->units[segment->unit], segment, (int)s));
    }
    return SHERD_OK;
}

/* Gives the staging buffer room for new values, on their way to the trainer's memory. */
static sherd_status publish_size(sherdi_plan *plan, const sherdi_model *model)
{
    size_t *bytes = &plan->packing.publish_bytes;

    (void)model;
    for (size_t s = 0; s < plan->layout.num_segments; s++) {
        const sherdi_segment *segment = &plan->layout.segments[s];

        if (segment->is_bound && segment->has_gradient) {
            *bytes = sherdi_max_size(*bytes, segment->padded_elems * sherdi_compute_bytes(segment));
        }
    }
    return SHERD_OK;
}

static sherd_status bound_use(const sherdi_program *program, const sherdi_segment *segment,
                              size_t param, int is_backward)
{
    sherdi_op op = sherdi_op_of_segment(program->plan, SHERDI_OP_USE, SHERDI_LANE_COMPUTE, segment);

    op.param = (int)param;
    sherdi_op_use(&op, SHERDI_USE_SRC, SHERDI_READS,
                  trainer_range(program, SHERDI_AT_TRAINER_DATA, param));
    if (is_backward && segment->has_gradient) {
        sherdi_op_use(&op, SHERDI_USE_DST, SHERDI_ADDS,
                      trainer_range(program, SHERDI_AT_TRAINER_GRAD, param));
    }
    return sherdi_program_emit(program, &op);
}

static sherd_status unit_use(const sherdi_program *program, int unit, int is_backward)
{
    const sherdi_model_unit *info = &program->model->units[unit];

    for (size_t i = 0; i < info->num_params; i++) {
        const sherdi_segment *segment =
            sherdi_param_segment(program->plan, (size_t)info->params[i]);

        if (segment->is_bound) {
            SHERDI_TRY(bound_use(program, segment, (size_t)info->params[i], is_backward));
        }
    }
    return SHERD_OK;
}

/* ---------------------------------------------------------------- gradients -- */

static sherd_status bound_zero(const sherdi_program *program, size_t param)
{
    sherdi_op op = sherdi_op_of_segment(program->plan, SHERDI_OP_ZERO, SHERDI_LANE_COMPUTE,
                                        sherdi_param_segment(program->plan, param));

    op.param = (int)param;
    return sherdi_program_make(program, op, trainer_range(program, SHERDI_AT_TRAINER_GRAD, param));
}

/* Copies the gradient in the trainer's own memory into the segment. */
static sherd_status bound_take(const sherdi_program *program, size_t param)
{
    const sherdi_plan    *plan    = program->plan;
    const sherdi_segment *segment = &plan->layout.segments[plan->layout.params[param].segment];
    sherdi_op    op  = sherdi_op_of_segment(plan, SHERDI_OP_COPY, SHERDI_LANE_COMPUTE, segment);
    sherdi_range src = trainer_range(program, SHERDI_AT_TRAINER_GRAD, param);
    sherdi_range dst = sherdi_program_micro_gradient(plan, segment);

    dst.offset += plan->layout.params[param].offset_elems * sherdi_compute_bytes(segment);
    op.param = (int)param;
    return sherdi_program_move(program, op, dst, src);
}

/* Runs `run` for each parameter of a unit whose gradient is in the trainer's memory. */
static sherd_status gradients_run(const sherdi_program *program, int unit,
                                  sherd_status (*run)(const sherdi_program *program, size_t param))
{
    const sherdi_model_unit *info = &program->model->units[unit];

    for (size_t i = 0; i < info->num_params; i++) {
        if (program->model->params[info->params[i]].bound_grad != NULL) {
            SHERDI_TRY(run(program, (size_t)info->params[i]));
        }
    }
    return SHERD_OK;
}

static sherd_status gradients_begin(const sherdi_program *program, int unit)
{
    return gradients_run(program, unit, bound_zero);
}

static sherd_status gradients_take(const sherdi_program *program, int unit)
{
    return gradients_run(program, unit, bound_take);
}

/* ------------------------------------------------------------------- values -- */

/* Copies new values from the staging buffer to the trainer's own memory. */
static sherd_status bound_copy(const sherdi_program *program, const sherdi_segment *segment,
                               size_t param)
{
    const sherdi_plan *plan = program->plan;
    size_t       offset = plan->layout.params[param].offset_elems * sherdi_compute_bytes(segment);
    sherdi_range dst    = trainer_range(program, SHERDI_AT_TRAINER_DATA, param);
    sherdi_op    op     = sherdi_op_of_segment(plan, SHERDI_OP_COPY, SHERDI_LANE_COMPUTE, segment);

    op.param = (int)param;
    return sherdi_program_move(program, op, dst,
                               sherdi_staging_at(plan->packing.publish_offset + offset, dst.bytes));
}

/* Publishes new values of bound parameters at once, because the next segment needs the staging
 * buffer: gathers them there, then copies them to the trainer. */
static sherd_status bound_publish(const sherdi_program *program, const sherdi_segment *segment)
{
    const sherdi_plan       *plan = program->plan;
    const sherdi_model_unit *unit = &program->model->units[segment->unit];

    if (!segment->is_bound || segment->kind == SHERDI_SEGMENT_FROZEN) {
        return SHERD_OK;
    }
    if (plan->layout.is_sliced) {
        SHERDI_TRY(sherdi_program_gather(
            program, segment, segment->types.compute, SHERDI_OP_MEETS,
            sherdi_staging_at(plan->packing.publish_offset,
                              segment->padded_elems * sherdi_compute_bytes(segment))));
    }
    for (size_t i = 0; i < unit->num_params; i++) {
        if (sherdi_param_segment(plan, (size_t)unit->params[i]) == segment) {
            SHERDI_TRY(bound_copy(program, segment, (size_t)unit->params[i]));
        }
    }
    return SHERD_OK;
}

static sherd_status bound_move(const sherdi_value_range *f)
{
    const sherdi_plan *plan  = f->program->plan;
    sherd_dtype        dtype = f->segment->types.compute;
    size_t             at    = sherdi_trainer_offset(plan, f->program->model, f->param) +
                (f->begin - plan->layout.params[f->param].offset_elems) * sherd_dtype_bytes(dtype);

    return sherdi_values_cast(f, SHERDI_SPACE_DEVICE, dtype,
                              sherdi_range_of(SHERDI_AT_TRAINER_DATA, at, 0));
}

const sherdi_module sherdi_module_memory = {
    .segments_made       = binding_check,
    .blocks_made         = publish_size,
    .unit_used           = unit_use,
    .gradient_begun      = gradients_begin,
    .gradient_completing = gradients_take,
    .segment_updated     = bound_publish,
    .bound_move          = bound_move,
};
