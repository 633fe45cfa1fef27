/* Kernels that make a gradient, and add its squares to the norm (SHERDI_OP_MEASURES), and one that
 * zeroes the gaps of a block (SHERDI_OP_GAPS). */
#include "engine/run/kernels.h"

#include "base/checked.h"
#include "engine/run/scalars.h"

/* As many elements as are still in a cache of the cores when their squares are summed. */
#define MEASURED_ELEMS ((size_t)128 * 1024)

/* Returns the operation on `count` elements from `first` on, of which each has `from` bytes in the
 * source, and its result is not measured. */
static sherdi_op part_of(const sherdi_op *op, size_t first, size_t count, size_t from)
{
    size_t        to   = sherd_dtype_bytes(op->to);
    sherdi_op     part = *op;
    sherdi_range *dst  = &part.uses[SHERDI_USE_DST];
    sherdi_range *src  = &part.uses[SHERDI_USE_SRC];

    part.flags &= ~SHERDI_OP_MEASURES;
    part.elems = count;
    dst->offset += first * to;
    dst->bytes = count * to;
    src->offset += first * from;
    src->bytes = count * from;
    return part;
}

void sherdi_kernel_measured(sherd_engine *engine, const sherdi_backend *lane, const sherdi_op *op)
{
    sherdi_norm_acc *norm  = &sherdi_space_scalars(engine, op->space)->head->norm;
    size_t           elems = op->uses[SHERDI_USE_DST].bytes / sherd_dtype_bytes(op->to);
    size_t           from  = op->uses[SHERDI_USE_SRC].bytes / sherdi_max_size(elems, 1);

    for (size_t at = 0, count; at < elems; at += count) {
        sherdi_op part;

        count = sherdi_min_size(MEASURED_ELEMS, elems - at);
        part  = part_of(op, at, count, from);
        sherdi_run_kernel(engine, lane, &part);
        lane->kernels->sumsq(lane, sherdi_run_address(engine, &part, SHERDI_USE_DST), op->to, count,
                             norm);
    }
}

/* Zeroes the elements of a block that no parameter covers. */
void sherdi_kernel_gaps(sherd_engine *engine, const sherdi_backend *lane, const sherdi_op *op)
{
    unsigned char *target = sherdi_run_address(engine, op, SHERDI_USE_DST);
    size_t         elem   = sherd_dtype_bytes(op->to);
    size_t         at     = 0;

    for (size_t i = 0; i <= op->block->num_spans; i++) {
        const sherdi_span *span = i < op->block->num_spans
                                      ? &engine->plan->layout.spans[op->block->first_span + i]
                                      : NULL;
        size_t             end  = span == NULL ? op->block->elems : span->offset_elems;

        lane->kernels->zero(lane, target + at * elem, (end - at) * elem);
        at = span == NULL ? end : span->offset_elems + span->count_elems;
    }
}
