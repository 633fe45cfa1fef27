#include "engine/proof/moves.h"

#include "collectives/sums.h"
#include "engine/plan/offload.h"
#include "engine/program/order.h"

uint64_t sherdi_op_wire(const sherdi_plan *plan, const sherdi_op *op)
{
    int      ranks  = op->lane == SHERDI_LANE_GROUP ? plan->copy_ranks : plan->world_size;
    uint64_t slices = sherdi_wire_all_gather(ranks, op->elems);

    switch (op->kind) {
    case SHERDI_OP_GATHER:
    case SHERDI_OP_REDUCE:
        return slices * sherd_dtype_bytes(op->from);
    case SHERDI_OP_ALL_REDUCE:
        return 2 * slices * sherd_dtype_bytes(op->from);
    case SHERDI_OP_ACROSS:
        return 2 * sherdi_wire_all_gather(plan->num_replicas, op->uses[SHERDI_USE_DST].bytes /
                                                                  (size_t)plan->num_replicas);
    case SHERDI_OP_EXCHANGE:
        return sherdi_wire_all_gather(sherdi_plan_all_ranks(plan),
                                      op->elems); /* its elements are bytes */
    case SHERDI_OP_SUM:
        return sherdi_wire_sum_u64(plan->world_size, op->elems);
    case SHERDI_OP_COPY: /* to where the rank behind this one takes it */
        return op->uses[SHERDI_USE_DST].where == SHERDI_BUFFER_REDUNDANCY
                   ? op->uses[SHERDI_USE_DST].bytes
                   : 0;
    default:
        return 0;
    }
}

/* ------------------------------------------------------------ between hosts -- */

/* The ranks that meet in an operation, and where this one is among them. */
typedef struct meeting {
    uint64_t ranks, hosts;      /* hosts: one if all ranks are on this one */
    uint64_t local, local_rank; /* on this rank's host */
} meeting;

static meeting meeting_of(const sherdi_plan *plan, const sherdi_op *op)
{
    const sherdi_machine *machine = &plan->machine;
    uint64_t              shard   = 1;
    meeting               all     = {.ranks      = (uint64_t)sherdi_plan_all_ranks(plan),
                                     .hosts      = (uint64_t)machine->num_hosts,
                                     .local      = (uint64_t)machine->local_size,
                                     .local_rank = (uint64_t)machine->local_rank};

    if (op->kind == SHERDI_OP_GATHER && op->lane == SHERDI_LANE_GROUP) {
        all.hosts = 1;
    } else if (op->lane == SHERDI_LANE_GROUP) {
        shard = (uint64_t)plan->world_size;
    } else if (op->kind != SHERDI_OP_EXCHANGE && plan->num_replicas > 1) {
        all.hosts = 1;
    }
    return (meeting){all.ranks / shard, all.hosts, all.local / shard, all.local_rank / shard};
}

/* A slice goes to each other host once. */
static uint64_t gather_between(const meeting *all, uint64_t slice_bytes)
{
    return (all->hosts - 1) * slice_bytes;
}

/* A rank sends its data for the slices of all ranks of other hosts. Where a host's sum has fewer
 * bytes (sum_bytes of an element; 0: it is not made), its ranks send sums, in turn (mpi_sums.c). */
static uint64_t reduce_between(const meeting *all, uint64_t elems, uint64_t elem_bytes,
                               uint64_t sum_bytes)
{
    uint64_t remote = all->ranks - all->local;

    if (sum_bytes > 0 && sum_bytes < all->local * elem_bytes) {
        uint64_t turns = remote / all->local + (all->local_rank < remote % all->local ? 1 : 0);

        return turns * elems * sum_bytes;
    }
    return remote * elems * elem_bytes;
}

/* Returns the bytes of an element of a host's sum of gradients; 0: none is made. */
static uint64_t host_sum_bytes(const sherdi_plan *plan)
{
    return plan->layout.is_deterministic       ? sizeof(int64_t)
           : plan->settings.numerics.host_sums ? sizeof(float)
                                               : 0;
}

static uint64_t sum_between(const meeting *all, size_t count)
{
    uint64_t bytes = 0;

    while (count > 0) {
        size_t slice   = sherdi_sum_slice((int)all->ranks, count);
        size_t portion = slice * all->ranks;

        bytes += reduce_between(all, slice, sizeof(uint64_t), 0) +
                 gather_between(all, slice * sizeof(uint64_t));
        count -= portion < count ? portion : count;
    }
    return bytes;
}

static uint64_t op_between(const sherdi_plan *plan, const sherdi_op *op)
{
    meeting  all   = meeting_of(plan, op);
    uint64_t bytes = op->elems * sherd_dtype_bytes(op->from);

    if (all.hosts <= 1) {
        return 0;
    }
    switch (op->kind) {
    case SHERDI_OP_GATHER:
        return gather_between(&all, bytes);
    case SHERDI_OP_REDUCE:
        return reduce_between(&all, op->elems, sherd_dtype_bytes(op->from), host_sum_bytes(plan));
    case SHERDI_OP_ALL_REDUCE:
        return reduce_between(&all, op->elems, sherd_dtype_bytes(op->from), host_sum_bytes(plan)) +
               gather_between(&all, bytes);
    case SHERDI_OP_ACROSS:
        bytes = op->uses[SHERDI_USE_DST].bytes / all.ranks;
        return reduce_between(&all, bytes, 1, 0) + gather_between(&all, bytes);
    case SHERDI_OP_EXCHANGE:
        return gather_between(&all, op->elems);
    case SHERDI_OP_SUM:
        return sum_between(&all, op->elems);
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
    sums[SHERDI_MOVES_BETWEEN] += op_between(plan, op);
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
