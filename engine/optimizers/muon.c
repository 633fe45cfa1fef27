/* The table of Muon (Jordan et al. 2024), with the defaults of torch.optim.Muon, but the rate of
 * DeepSpeed. The direction that the momentum gives is made orthogonal by a Newton-Schulz iteration,
 * in fp32, and the matrix moves by the result. Muon is for matrices only: groups give embeddings,
 * heads and vectors another optimizer. kernels/updates/muon.h and kernels/orthogonal.h have the
 * formulas. */
#include "engine/optimizers/muon.h"

#include "kernels/orthogonal.h"
#include "kernels/updates/updates.h"

#include "base/checked.h"

enum { MASTER = 1, MOMENTUM = 2 };

static void muon_coeffs(const sherdi_settings *settings, const sherdi_group_step *group, void *out)
{
    (void)settings;
    *(sherdi_muon_coeffs *)out = sherdi_muon_coeffs_of(group);
}

/* The kernel works on the direction in place of the master: in fp32, without a bf16 parameter. */
static void direction_run(const sherdi_backend *lane, const sherdi_update_args *args,
                          float *direction)
{
    sherdi_update_args update = *args;

    update.parts[0]     = direction;
    update.encodings[0] = SHERDI_ENCODING_F32;
    update.param        = NULL;
    update.fingerprint  = NULL;
    lane->kernels->update(lane, SHERDI_UPDATE_muon_direction, &update);
}

static void update_run(const sherdi_backend *lane, const sherdi_update_args *args, float *direction)
{
    sherdi_update_args update = *args;

    (void)direction;
    update.grad_dtype = SHERD_F32;
    lane->kernels->update(lane, SHERDI_UPDATE_muon, &update);
}

/* ----------------------------------------------------------------- matrices -- */

/* Returns the factor of the learning rate (optimizer.params.adjust_lr_fn). */
static float rate_factor(const sherdi_settings *settings, size_t rows, size_t cols)
{
    double longest = (double)sherdi_max_size(rows, cols);

    return settings->muon.matches_rms
               ? (float)(0.2 * sqrt(longest))
               : (float)sqrt(longest / (double)cols); /* sqrt(max(1, rows / cols)) */
}

static void muon_matrix(const sherdi_backend *lane, const sherdi_settings *settings,
                        const sherdi_matrix_args *args)
{
    sherdi_orthogonal(lane, &(sherdi_orthogonal_args){
                                .dst       = args->matrix,
                                .src       = args->matrix,
                                .rows      = args->rows,
                                .cols      = args->cols,
                                .steps     = settings->muon.steps,
                                .scale     = rate_factor(settings, args->rows, args->cols),
                                .workspace = args->workspace,
                            });
}

static double muon_flops(const sherdi_settings *settings, size_t rows, size_t cols)
{
    return sherdi_orthogonal_flops(rows, cols, settings->muon.steps);
}

const sherdi_optimizer sherdi_optimizer_muon = {
    .parts            = {{.name = "master"}, {.name = "momentum_buffer"}},
    .num_parts        = 2,
    .sweeps           = {{.reads            = MOMENTUM,
                          .writes           = MOMENTUM,
                          .reads_gradient   = 1,
                          .writes_direction = 1,
                          .run              = direction_run},
                         {.reads           = MASTER,
                          .writes          = MASTER,
                          .reads_direction = 1,
                          .writes_param    = 1,
                          .run             = update_run}},
    .num_sweeps       = 2,
    .grain            = SHERDI_GRAIN_MATRIX,
    .state_tag        = 8,
    .coeff_bytes      = sizeof(sherdi_muon_coeffs),
    .coeffs           = muon_coeffs,
    .defaults         = {.lr = 0.02, .betas = {0.95}, .is_nesterov = 1},
    .keys             = "momentum|nesterov|ns_steps|adjust_lr_fn",
    .unread           = "betas|eps|bias_correction",
    .without_momentum = &sherdi_optimizer_muon,
    .with_momentum    = &sherdi_optimizer_muon,
    .matrices         = &(const sherdi_matrix_ops){muon_matrix, sherdi_orthogonal_workspace_bytes},
    .matrix_flops     = muon_flops,
};
