#include "engine/proof/moves.h"

#include "collectives/sums.h"
#include "engine/plan/offload.h"

uint64_t sherdi_op_wire(const sherdi_plan *plan, const sherdi_op *op)
{
    uint64_t slices = sherdi_wire_all_gather(plan->world_size, op->elems);

    switch (op->kind) {
    case SHERDI_OP_GATHER:
    case SHERDI_OP_REDUCE:
        return slices * sherd_dtype_bytes(op->from);
    case SHERDI_OP_ALL_REDUCE:
        return 2 * slices * sherd_dtype_bytes(op->from);
    case SHERDI_OP_EXCHANGE:
        return slices; /* its elements are bytes */
    case SHERDI_OP_SUM:
        return sherdi_wire_sum_u64(plan->world_size, op->elems);
    default:
        return 0;
    }
}

/* Returns the bytes of those parts of a block whose bits are in `which`. A master that is the
 * parameter itself counts in the same way. */
static uint64_t parts_bytes(const sherdi_segment *segment, size_t elems, unsigned which)
{
    uint64_t bytes = 0;

    for (int i = 0; i < sherdi_segment_parts(segment); i++) {
        bytes += (which >> i & 1) * sherdi_segment_part_bytes(segment, i, elems);
    }
    return bytes;
}

/* Returns the bytes that a sweep moves through memory. */
static uint64_t sweep_bytes(const sherdi_plan *plan, const sherdi_op *op)
{
    const sherdi_segment *segment = &plan->layout.segments[op->segment];
    const sherdi_sweep   *sweep   = &segment->optimizer->sweeps[op->sweep];
    uint64_t              grad    = sweep->reads_gradient ? sherdi_grad_bytes(plan, segment) : 0;
    uint64_t              direction =
        (uint64_t)(sweep->reads_direction + sweep->writes_direction) * sizeof(float);
    uint64_t param = sweep->writes_param && segment->has_master ? sherdi_compute_bytes(segment) : 0;

    param += sherdi_segment_is_beside(segment) ? sherdi_compute_bytes(segment) : 0; /* it is read */
    return parts_bytes(segment, op->elems, sweep->reads) +
           parts_bytes(segment, op->elems, sweep->writes) + op->elems * (grad + direction + param);
}

/* Returns the bytes that a norm reads; of integers, which are widened in portions, their own. */
static uint64_t norm_bytes(const sherdi_plan *plan, const sherdi_op *op)
{
    return plan->layout.is_deterministic ? op->elems * sizeof(int64_t)
                                         : op->uses[SHERDI_USE_SRC].bytes;
}

static uint64_t matrix_flops(const sherdi_plan *plan, const sherdi_model *model,
                             const sherdi_op *op)
{
    const size_t           *shape = model->params[op->param].shape;
    const sherdi_optimizer *by    = plan->layout.segments[op->segment].optimizer;

    return op->uses[SHERDI_USE_DST].where == SHERDI_AT_NOWHERE /* another rank makes it */
               ? 0
               : (uint64_t)by->matrix_flops(&plan->settings, shape[0], shape[1]);
}

/* Returns the bytes of a read; 0: parameters that are never written are not on the drive. */
static uint64_t read_bytes(const sherdi_plan *plan, const sherdi_op *op)
{
    return op->ring == SHERDI_RING_PARAMS && plan->offload->pieces[op->extent].is_never_written
               ? 0
               : op->uses[SHERDI_USE_DST].bytes;
}

void sherdi_op_moves_add(const sherdi_plan *plan, const sherdi_model *model, const sherdi_op *op,
                         uint64_t sums[SHERDI_MEDIA])
{
    sherdi_medium  near = sherdi_is_on_device(op->space) ? SHERDI_MOVES_DEVICE : SHERDI_MOVES_HOST;
    sherdi_lane_id way  = sherdi_copy_way(op);

    sums[SHERDI_MOVES_WIRE] += sherdi_op_wire(plan, op);
    switch (op->kind) {
    case SHERDI_OP_COPY:
        sums[SHERDI_MOVES_DOWN] += way == SHERDI_LANE_DOWN ? op->uses[SHERDI_USE_SRC].bytes : 0;
        sums[SHERDI_MOVES_UP] += way == SHERDI_LANE_UP ? op->uses[SHERDI_USE_SRC].bytes : 0;
        break;
    case SHERDI_OP_READ:
        sums[SHERDI_MOVES_READ] += read_bytes(plan, op);
        break;
    case SHERDI_OP_WRITE:
        sums[SHERDI_MOVES_WRITTEN] += op->uses[SHERDI_USE_SRC].bytes;
        break;
    case SHERDI_OP_NORM:
        sums[near] += norm_bytes(plan, op);
        break;
    case SHERDI_OP_UPDATE:
        sums[near] += sweep_bytes(plan, op);
        break;
    case SHERDI_OP_MATRIX:
        sums[SHERDI_MOVES_FLOPS] += matrix_flops(plan, model, op);
        break;
    default:
        break;
    }
}
