/* Reductions of a world over MPI. Every rank adds up its own slice. The ranks of other hosts send
 * their data for it, in the type of the wire, and it is added in the order of ranks, so the bits are
 * those of every other transport. Integers have no order: the ranks of a host add theirs up first,
 * where the 8 bytes of a sum are fewer than what the ranks would send. With SHERDI_COLL_HOST_SUM
 * gradients are added up host by host too, in fp32, whether a host sends the sum or its ranks' data.
 * Which hosts send sums follows from their numbers of ranks, so both ends of a message know it. */
#include "collectives/mpi_world.h"

#include "base/checked.h"
#include "collectives/sums.h"

/* Receive buffer of a reduction, for all ranks of other hosts together. */
#define STAGE_BYTES       ((size_t)8 << 20)
#define STAGE_PORTION_MIN ((size_t)64 << 10)

/* Elements of the sums of all hosts that are added up at a time. */
#define SUMS_ELEMS ((size_t)4096)

static int adds_by_host(const sherdi_reduction_args *args)
{
    return (args->flags & SHERDI_COLL_HOST_SUM) != 0 && args->fixed == NULL && args->add == NULL;
}

/* Returns the bytes of an element of a host's sum. */
static size_t sum_bytes(const sherdi_reduction_args *args)
{
    return adds_by_host(args) ? sizeof(float) : sizeof(int64_t);
}

/* Whether a host of so many ranks sends sums. */
static int sends_sums(const sherdi_reduction_args *args, int ranks)
{
    return (args->fixed != NULL || adds_by_host(args)) &&
           sum_bytes(args) < (size_t)ranks * sherdi_reduction_send_bytes(args);
}

/* Returns the arguments by which the data of a host are added up. */
static sherdi_reduction_args host_args(const sherdi_reduction_args *args)
{
    sherdi_reduction_args host = *args;

    host.accumulate = 0;
    if (adds_by_host(args)) {
        host.comm_dtype = host.recv_dtype = SHERD_F32;
        host.scale                        = 1;
    }
    return host;
}

/* Where a rank of another host is received: remote rank number i. */
static unsigned char *stage_at(const mpi_world *mpi, int i)
{
    return mpi->staging + (size_t)i * mpi->portion_bytes;
}

/* Starts to receive elements of this rank's slice from the ranks of other hosts. What a host sends
 * as a sum comes from the rank that also receives this rank's slice in gathers. */
static sherd_status receives_start(mpi_world *mpi, const reduction_work *work, size_t count)
{
    for (int i = 0; i < mpi->num_remote; i++) {
        const mpi_host *host = &mpi->hosts[mpi->host_of[i]];

        if (!sends_sums(work->args, host->num_ranks)) {
            SHERDI_TRY(sherdi_mpi_receive(mpi, mpi->remote[i], stage_at(mpi, i),
                                          count * work->elem_bytes));
        } else if (mpi->remote[i] == host->leader) {
            SHERDI_TRY(sherdi_mpi_receive(mpi, host->partner, stage_at(mpi, i),
                                          count * sum_bytes(work->args)));
        }
    }
    return SHERD_OK;
}

/* Starts to send this rank's data for the slices of all ranks of other hosts. */
static sherd_status parts_send(mpi_world *mpi, const reduction_work *work, size_t first,
                               size_t count)
{
    const unsigned char *send = work->args->send;

    for (int i = 0; i < mpi->num_remote; i++) {
        SHERDI_TRY(sherdi_mpi_send(mpi, mpi->remote[i],
                                   send + (size_t)mpi->remote[i] * work->slice_bytes +
                                       first * work->elem_bytes,
                                   count * work->elem_bytes));
    }
    return SHERD_OK;
}

/* Notes the data of a rank as number i of the parts, with the rank's weight. */
static void part_note(mpi_world *mpi, const sherdi_reduction_args *args, int i, const void *data,
                      int rank)
{
    mpi->parts[i] = data;
    if (args->weights != NULL) {
        mpi->weights[i] = args->weights[rank];
    }
}

/* Returns the weights of the parts; NULL: all are 1. */
static const double *weights_of(const mpi_world *mpi, const sherdi_reduction_args *args)
{
    return args->weights == NULL ? NULL : mpi->weights;
}

/* Adds up the data of this host's ranks for the slices that they have in this round. */
static sherd_status round_sum(mpi_world *mpi, const reduction_work *work, const int *slices,
                              size_t first, size_t count, unsigned char *sum)
{
    sherdi_peers         *peers   = &mpi->procs.peers;
    size_t                portion = sherdi_peers_sum_portion(peers, work, count);
    sherdi_reduction_args args    = host_args(work->args);

    args.weights = weights_of(mpi, work->args);
    for (size_t at = 0; at < count; at += portion) {
        size_t here = sherdi_min_size(portion, count - at);

        SHERDI_TRY(sherdi_peers_sources_find(peers, work, slices, (first + at) * work->elem_bytes,
                                             here * work->elem_bytes));
        for (int i = 0; i < peers->count; i++) {
            part_note(mpi, work->args, i, peers->srcs[peers->ranks[i]], peers->ranks[i]);
        }
        if (slices[peers->me] >= 0) {
            sherdi_world_reduce_local(peers->lane, &args, mpi->parts, peers->count,
                                      sum + at * sum_bytes(work->args), here, NULL, 0);
        }
    }
    return SHERD_OK;
}

/* The same for all slices of other hosts, which this host's ranks take in turn, as in a gather; and
 * starts to send the sums. */
static sherd_status sums_send(mpi_world *mpi, const reduction_work *work, size_t first,
                              size_t count)
{
    sherdi_peers *peers = &mpi->procs.peers;
    int           round = 0;

    for (int begin = 0; begin < mpi->num_remote; begin += peers->count, round++) {
        unsigned char *sum = mpi->sums + (size_t)round * mpi->portion_bytes;

        for (int i = 0; i < peers->count; i++) {
            mpi->slices[i] = begin + i < mpi->num_remote ? mpi->remote[begin + i] : -1;
        }
        SHERDI_TRY(round_sum(mpi, work, mpi->slices, first, count, sum));
        if (mpi->slices[peers->me] >= 0) {
            SHERDI_TRY(
                sherdi_mpi_send(mpi, mpi->slices[peers->me], sum, count * sum_bytes(work->args)));
        }
    }
    return SHERD_OK;
}

/* Lists the data of all ranks for elements of this rank's slice, in the order of ranks: of hosts that
 * send no sum. Returns how many there are. */
static int parts_list(mpi_world *mpi, const reduction_work *work, size_t first_byte)
{
    sherdi_peers *peers = &mpi->procs.peers;
    int           count = 0;
    int           i     = 0;

    for (int r = 0; r < mpi->procs.world.world_size; r++) {
        if (i == mpi->num_remote || mpi->remote[i] != r) {
            part_note(mpi, work->args, count++, peers->srcs[r], r);
            continue;
        }
        if (!sends_sums(work->args, mpi->hosts[mpi->host_of[i]].num_ranks)) {
            part_note(mpi, work->args, count++, stage_at(mpi, i) + first_byte, r);
        }
        i++;
    }
    return count;
}

/* Adds the sums of hosts that send them to elements of the result. */
static void sums_add(mpi_world *mpi, const sherdi_reduction_args *args, int64_t *result, size_t at,
                     size_t count)
{
    for (int i = 0; i < mpi->num_remote; i++) {
        const mpi_host *host = &mpi->hosts[mpi->host_of[i]];

        if (sends_sums(args, host->num_ranks) && mpi->remote[i] == host->leader) {
            const void *both[] = {result, (int64_t *)(void *)stage_at(mpi, i) + at};

            sherdi_integers_add(both, 2, result, count);
        }
    }
}

/* Gives the sum of a host for elements of this rank's slice, from element `at` of the messages on:
 * this host's if `number` is -1. It is where it was received, or is made at *to. */
static const void *host_sum(mpi_world *mpi, const reduction_work *work, int number, size_t at,
                            size_t count, float *to)
{
    sherdi_peers         *peers = &mpi->procs.peers;
    sherdi_reduction_args args  = host_args(work->args);
    int                   parts = 0;

    for (int i = 0; i < peers->count && number < 0; i++) {
        part_note(mpi, work->args, parts++, peers->srcs[peers->ranks[i]], peers->ranks[i]);
    }
    for (int i = 0; i < mpi->num_remote && number >= 0; i++) {
        if (mpi->host_of[i] != number) {
            continue;
        }
        if (sends_sums(work->args, mpi->hosts[number].num_ranks)) {
            return stage_at(mpi, i) + at * sizeof(float); /* the leader's place */
        }
        part_note(mpi, work->args, parts++, stage_at(mpi, i) + at * work->elem_bytes,
                  mpi->remote[i]);
    }
    args.weights = weights_of(mpi, work->args);
    sherdi_world_reduce_local(peers->lane, &args, mpi->parts, parts, to, count, NULL, 0);
    return to;
}

/* Adds up elements of this rank's slice host by host, in the order of their first ranks. */
static sherd_status hosts_sum(mpi_world *mpi, const reduction_work *work, size_t first,
                              size_t count)
{
    sherdi_peers         *peers      = &mpi->procs.peers;
    sherdi_reduction_args args       = *work->args;
    size_t                recv_bytes = sherdi_reduction_recv_bytes(&args);
    size_t portion = sherdi_min_size(sherdi_peers_sum_portion(peers, work, count), SUMS_ELEMS);

    args.send_dtype = SHERD_F32;
    args.weights    = NULL; /* the sums have them */
    for (size_t at = 0; at < count; at += portion) {
        size_t here = sherdi_min_size(portion, count - at);
        int    sums = 0;

        SHERDI_TRY(sherdi_peers_sources_find(
            peers, work, peers->ranks, (first + at) * work->elem_bytes, here * work->elem_bytes));
        SHERDI_TRY(sherdi_mpi_wait_all(mpi));
        for (int h = 0; h <= mpi->num_hosts; h++) {
            int is_own = h == mpi->own_host;

            mpi->host_sums[sums] = host_sum(mpi, work, is_own ? -1 : h - (h > mpi->own_host), at,
                                            here, mpi->partials + (size_t)sums * SUMS_ELEMS);
            sums++;
        }
        sherdi_world_reduce_local(peers->lane, &args, mpi->host_sums, sums,
                                  (unsigned char *)args.recv + (first + at) * recv_bytes, here,
                                  NULL, 0);
    }
    return SHERD_OK;
}

/* Adds up elements of this rank's slice, whose messages are under way. */
static sherd_status slice_sum(mpi_world *mpi, const reduction_work *work, size_t first,
                              size_t count)
{
    const sherdi_reduction_args *args       = work->args;
    sherdi_peers                *peers      = &mpi->procs.peers;
    sherdi_reduction_args        parts      = *args;
    size_t                       recv_bytes = sherdi_reduction_recv_bytes(args);
    size_t                       portion    = sherdi_peers_sum_portion(peers, work, count);

    parts.weights = weights_of(mpi, args);
    for (size_t at = 0; at < count; at += portion) {
        size_t         here = sherdi_min_size(portion, count - at);
        unsigned char *recv = (unsigned char *)args->recv + (first + at) * recv_bytes;

        SHERDI_TRY(sherdi_peers_sources_find(
            peers, work, peers->ranks, (first + at) * work->elem_bytes, here * work->elem_bytes));
        SHERDI_TRY(sherdi_mpi_wait_all(mpi));
        sherdi_world_reduce_local(peers->lane, &parts, mpi->parts,
                                  parts_list(mpi, work, at * work->elem_bytes), recv, here, NULL,
                                  0);
        if (args->fixed != NULL) {
            sums_add(mpi, args, (int64_t *)(void *)recv, at, here);
        }
    }
    return SHERD_OK;
}

/* Transfers between hosts are cut in the same way on all hosts; a host may cut its own work
 * further. */
static sherd_status slices_reduce(mpi_world *mpi, const reduction_work *work)
{
    const sherdi_reduction_args *args = work->args;
    size_t portion = mpi->portion_bytes / (args->fixed != NULL || adds_by_host(args)
                                               ? sherdi_max_size(sum_bytes(args), work->elem_bytes)
                                               : work->elem_bytes);

    for (size_t first = 0; first < args->slice_elems; first += portion) {
        size_t count = sherdi_min_size(portion, args->slice_elems - first);

        SHERDI_TRY(receives_start(mpi, work, count));
        SHERDI_TRY(sends_sums(args, mpi->procs.peers.count) ? sums_send(mpi, work, first, count)
                                                            : parts_send(mpi, work, first, count));
        SHERDI_TRY(adds_by_host(args) ? hosts_sum(mpi, work, first, count)
                                      : slice_sum(mpi, work, first, count));
    }
    return sherdi_peers_reduction_end(&mpi->procs.peers, work);
}

sherd_status sherdi_mpi_reduce_scatter(sherd_world *world, const sherdi_reduction_args *args)
{
    mpi_world     *mpi = (mpi_world *)world;
    reduction_work work;
    sherd_status   status;

    if (sherdi_mpi_has_one_host(mpi)) {
        return sherdi_peers_reduce_scatter(world, args);
    }
    SHERDI_TRY(sherdi_peers_reduction_begin(world, args, &work));
    status = slices_reduce(mpi, &work);
    return status == SHERD_OK ? SHERD_OK : sherdi_mpi_failed(mpi, status);
}

sherd_status sherdi_mpi_all_reduce(sherd_world *world, const sherdi_reduction_args *args)
{
    return sherdi_mpi_has_one_host((mpi_world *)world)
               ? sherdi_peers_all_reduce(world, args)
               : sherdi_world_all_reduce_in_two(world, args);
}

/* --------------------------------------------------------------- opening -- */

sherd_status sherdi_mpi_sums_open(mpi_world *mpi)
{
    sherd_world *world  = &mpi->procs.world;
    size_t       count  = (size_t)mpi->num_remote;
    size_t       locals = (size_t)mpi->procs.peers.count;
    size_t       rounds = locals > 1 ? sherdi_div_up(count, locals) : 0;
    size_t       hosts  = (size_t)mpi->num_hosts + 1;

    mpi->portion_bytes = sherdi_max_size(STAGE_PORTION_MIN, STAGE_BYTES / count / 4096 * 4096);
    mpi->staging = sherdi_alloc_array(&world->mem, SHERDI_MEM_TRANSPORT, count, mpi->portion_bytes);
    mpi->sums  = sherdi_alloc_array(&world->mem, SHERDI_MEM_TRANSPORT, rounds, mpi->portion_bytes);
    mpi->parts = sherdi_alloc_array(&world->mem, SHERDI_MEM_CONTROL, (size_t)world->world_size,
                                    sizeof(*mpi->parts));
    mpi->weights = sherdi_alloc_array(&world->mem, SHERDI_MEM_CONTROL, (size_t)world->world_size,
                                      sizeof(*mpi->weights));
    mpi->slices = sherdi_alloc_array(&world->mem, SHERDI_MEM_CONTROL, locals, sizeof(*mpi->slices));
    mpi->host_sums =
        sherdi_alloc_array(&world->mem, SHERDI_MEM_CONTROL, hosts, sizeof(*mpi->host_sums));
    mpi->partials = sherdi_alloc_array(&world->mem, SHERDI_MEM_TRANSPORT, hosts * SUMS_ELEMS,
                                       sizeof(*mpi->partials));
    while (mpi->own_host < mpi->num_hosts &&
           mpi->hosts[mpi->own_host].leader < mpi->procs.peers.ranks[0]) {
        mpi->own_host++;
    }
    if (mpi->host_sums == NULL || mpi->partials == NULL || mpi->staging == NULL ||
        mpi->sums == NULL || mpi->parts == NULL || mpi->weights == NULL || mpi->slices == NULL) {
        return SHERD_E_NOMEM;
    }
    world->held.overhead_bytes +=
        (count + rounds) * mpi->portion_bytes + hosts * SUMS_ELEMS * sizeof(float);
    return SHERD_OK;
}

void sherdi_mpi_sums_close(mpi_world *mpi)
{
    sherdi_free(mpi->staging);
    sherdi_free(mpi->sums);
    sherdi_free(mpi->host_sums);
    sherdi_free(mpi->partials);
    sherdi_free(mpi->parts);
    sherdi_free(mpi->weights);
    sherdi_free(mpi->slices);
}
