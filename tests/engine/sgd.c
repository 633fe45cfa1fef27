/* Shows all that the engine has to know of another optimizer: its table. The line of the list of
 * optimizers is in more_optimizers/. */
#include "tests/engine/sgd.h"

#include "engine/optimizers/optimizer.h"
#include "kernels/formulas.h"
#include "tests/engine/elements.h"

enum { MASTER = 0, BUFFER, PARTS };

static void sgd_run(const sherdi_backend *lane, const sherdi_update_args *args, float *direction)
{
    const sgd_coeffs *groups = args->coeffs;
    float            *master = args->parts[MASTER];
    float            *buffer = args->parts[BUFFER];

    (void)direction, (void)lane; /* the lane is the CPU's, so the memory can be addressed here */
    for (size_t s = 0; s < args->num_spans; s++) {
        const sherdi_span *span = &args->spans[s];

        for (size_t k = 0; k < span->count_elems; k++) {
            size_t i = span->offset_elems + k;

            sgd_element(&groups[span->group], load(args->grad, i, args->grad_dtype), &master[i],
                        &buffer[i]);
            if (args->param != NULL) {
                store(args->param, i, args->param_dtype, master[i]);
            }
            *args->fingerprint += sherdi_mix_element(span->first_index + k, master[i]);
        }
    }
}

static void sgd_coeffs_make(const sherdi_settings *settings, const sherdi_group_step *step,
                            void *out)
{
    (void)settings;
    *(sgd_coeffs *)out = (sgd_coeffs){.grad_scale = (float)step->grad_scale,
                                      .momentum   = (float)step->beta1,
                                      .decay      = (float)step->decay,
                                      .neg_lr     = (float)-step->lr};
}

const sherdi_optimizer test_optimizer_sgd = {
    .parts       = {{.name = "master"}, {.name = "buffer"}},
    .num_parts   = PARTS,
    .sweeps      = {{.reads          = 1u << MASTER | 1u << BUFFER,
                     .writes         = 1u << MASTER | 1u << BUFFER,
                     .reads_gradient = 1,
                     .writes_param   = 1,
                     .run            = sgd_run}},
    .num_sweeps  = 1,
    .state_tag   = 3,
    .coeff_bytes = sizeof(sgd_coeffs),
    .coeffs      = sgd_coeffs_make,
};
