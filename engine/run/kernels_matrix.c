/* The kernel of optimizers that update whole matrices. */
#include "engine/optimizers/muon.h"
#include "engine/run/kernels.h"

void sherdi_kernel_matrix(sherd_engine *engine, const sherdi_backend *lane, const sherdi_op *op)
{
    const size_t *shape = engine->model.params[op->param].shape;

    if (op->uses[SHERDI_USE_DST].where == SHERDI_AT_NOWHERE) {
        return; /* another rank makes this matrix */
    }
    engine->plan->layout.segments[op->segment].optimizer->matrices->make(
        lane, &engine->settings,
        &(sherdi_matrix_args){
            .matrix    = sherdi_run_address(engine, op, SHERDI_USE_DST),
            .rows      = shape[0],
            .cols      = shape[1],
            .workspace = sherdi_run_address(engine, op, SHERDI_USE_WORKSPACE),
        });
}
