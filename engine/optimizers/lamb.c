/* The table of LAMB (You et al. 2020), in DeepSpeed's form or the paper's: the step of a tensor is
 * in proportion to its norm. The first sweep makes the direction only to take its norm, and writes
 * nothing; the second sweep makes it again. kernels/updates/lamb.h has the formulas. */
#include "engine/optimizers/lamb.h"

#include "kernels/updates/updates.h"

enum { LAMB_PARTS = 3, ALL_PARTS = (1 << LAMB_PARTS) - 1 };

static void lamb_coeffs(const sherdi_settings *settings, const sherdi_group_step *group, void *out)
{
    const sherdi_lamb_settings *lamb = &settings->lamb;
    double step = lamb->is_papers ? group->lr : group->lr * sqrt(group->bias2) / group->bias1;

    *(sherdi_lamb_coeffs *)out = (sherdi_lamb_coeffs){
        .grad_scale      = (float)group->grad_scale,
        .beta1           = (float)group->beta1,
        .one_minus_beta1 = (float)(1 - group->beta1),
        .beta2           = (float)group->beta2,
        .one_minus_beta2 = (float)(1 - group->beta2),
        .inv_bias1       = lamb->is_papers ? (float)(1 / group->bias1) : 1,
        .inv_bias2       = lamb->is_papers ? (float)(1 / group->bias2) : 1,
        .eps_inside      = lamb->eps_inside_sqrt ? (float)group->eps : 0,
        .eps             = lamb->eps_inside_sqrt ? 0 : (float)group->eps,
        .decay           = (float)group->decay,
        .neg_step_size   = (float)-step,
        .min_ratio       = (float)lamb->min_coeff,
        .max_ratio       = (float)lamb->max_coeff,
    };
}

static void measure_run(const sherdi_backend *lane, const sherdi_update_args *args,
                        float *direction)
{
    (void)direction;
    lane->kernels->lamb_norms(lane, args);
}

static void update_run(const sherdi_backend *lane, const sherdi_update_args *args, float *direction)
{
    (void)direction;
    lane->kernels->update(lane, SHERDI_UPDATE_lamb, args);
}

static int lamb_has_ratio(const sherdi_settings *settings, const sherdi_model_group *group,
                          const sherdi_model_param *param)
{
    int is_excluded = group->exclude_1d < 0 ? settings->lamb.exclude_1d : group->exclude_1d;

    return !is_excluded || param->ndim > 1;
}

static void lamb_ratios(const sherdi_backend *host, const sherdi_ratio_args *args)
{
    host->kernels->lamb_ratios(host,
                               &(sherdi_lamb_ratio_args){
                                   .norms  = (const sherdi_lamb_norms *)(const void *)args->norms,
                                   .groups = args->groups,
                                   .coeffs = args->coeffs,
                                   .ratios = args->ratios,
                                   .num_params = args->num_params,
                               });
}

const sherdi_optimizer sherdi_optimizer_lamb = {
    .parts       = {{.name = "master"},
                    {.name = "exp_avg"},
                    {.name = "exp_avg_sq", .is_never_negative = 1}},
    .num_parts   = LAMB_PARTS,
    .sweeps      = {{.reads = ALL_PARTS, .reads_gradient = 1, .run = measure_run},
                    {.reads          = ALL_PARTS,
                     .writes         = ALL_PARTS,
                     .reads_gradient = 1,
                     .writes_param   = 1,
                     .run            = update_run}},
    .num_sweeps  = 2,
    .grain       = SHERDI_GRAIN_TENSOR,
    .state_tag   = 2, /* no other optimizer can use its moments */
    .coeff_bytes = sizeof(sherdi_lamb_coeffs),
    .coeffs      = lamb_coeffs,
    .keys        = "max_coeff|min_coeff|eps_inside_sqrt|lamb_form|exclude_1d",
    .num_norms   = sizeof(sherdi_lamb_norms) / sizeof(sherdi_norm_acc),
    .ratios      = &(const sherdi_ratio_ops){lamb_has_ratio, lamb_ratios},
};
