/* The operations of optimizers that have ratios: the sum of the norms of tensors over the ranks, and
 * the ratios. */
#include "engine/run/kernels.h"

#include "collectives/sums.h"
#include "engine/modules.h"
#include "engine/optimizers/lamb.h"
#include "engine/program/ratios.h"
#include "engine/run/agree.h"
#include "engine/run/scalars.h"
#include "engine/run/update.h"

sherd_status sherdi_call_sum(sherd_engine *engine, const sherdi_op *op, uint64_t *number_out)
{
    *number_out = 0; /* no ticket: the sum is done when the call returns */
    return sherdi_world_sum_u64(engine->shards,
                                (uint64_t *)(void *)engine->kernel_data.on_host.norms, op->elems);
}

void sherdi_kernel_ratios(sherd_engine *engine, const sherdi_backend *lane, const sherdi_op *op)
{
    (void)lane, (void)op;
    for (size_t i = 0; i < engine->plan->layout.num_optimizers; i++) {
        const sherdi_plan_optimizer *of = &engine->plan->layout.optimizers[i];
        unsigned char               *at = engine->kernel_data.on_host.memory;

        if (of->optimizer->grain == SHERDI_GRAIN_TENSOR) {
            of->optimizer->ratios->make(engine->host,
                                        &(sherdi_ratio_args){
                                            .norms      = (void *)(at + of->norms),
                                            .groups     = (void *)(at + of->groups),
                                            .coeffs     = at + of->coeffs,
                                            .ratios     = (void *)(at + of->ratios),
                                            .num_params = engine->plan->layout.num_params,
                                        });
        }
    }
}

/* Writes the groups of the tensors that have a ratio. */
static void groups_write(sherd_engine *engine, const sherdi_plan_optimizer *of)
{
    const sherdi_optimizer *optimizer = of->optimizer;
    int32_t                *groups    = (void *)(engine->kernel_data.on_host.memory + of->groups);

    if (optimizer->grain != SHERDI_GRAIN_TENSOR) {
        return;
    }
    for (size_t p = 0; p < engine->plan->layout.num_params; p++) {
        const sherdi_model_param *param = &engine->model.params[p];
        const sherdi_model_group *group = &engine->model.groups[param->group];

        groups[p] = sherdi_group_optimizer(&engine->settings, group) == optimizer &&
                            optimizer->ratios->has_ratio(&engine->settings, group, param)
                        ? param->group
                        : -1;
    }
}

static void groups_sealed(sherd_engine *engine)
{
    for (size_t i = 0; i < engine->plan->layout.num_optimizers; i++) {
        groups_write(engine, &engine->plan->layout.optimizers[i]);
    }
}

/* The first of two sweeps: the norms, and the ratios of all parameters. If it fails on one rank, all
 * ranks fail and the old state is whole. */
static sherd_status ratios_measure(sherd_engine *engine)
{
    if (!sherdi_plan_is_measured(engine->plan)) {
        return SHERD_OK;
    }
    SHERDI_TRY(sherdi_agree_status(engine, sherdi_update_walk_over(engine, SHERDI_WALK_MEASURE)));
    return sherdi_program_ratios_make(&engine->run.program);
}

const sherdi_module sherdi_module_ratios = {.sealed = groups_sealed, .measuring = ratios_measure};
