/* Kernels that encode and decode parts of blocks. */
#include "engine/run/kernels.h"

void sherdi_kernel_encode(sherd_engine *engine, const sherdi_backend *lane, const sherdi_op *op)
{
    sherdi_encoded part = sherdi_run_encoded_part(engine, op, op->part);

    lane->kernels->encode(lane, &part, (size_t)op->index,
                          sherdi_run_address(engine, op, SHERDI_USE_SRC), op->elems);
}

void sherdi_kernel_decode(sherd_engine *engine, const sherdi_backend *lane, const sherdi_op *op)
{
    sherdi_encoded part = sherdi_run_encoded_part(engine, op, op->part);

    lane->kernels->decode(lane, sherdi_run_address(engine, op, SHERDI_USE_DST), &part,
                          (size_t)op->index, op->elems);
}
