/* The calls of a world over MPI. Inside a host its ranks share memory (peers.c). What crosses hosts
 * in a gather or a broadcast crosses once for each host: one rank there receives it, into memory
 * that the ranks of the host share. In a reduction every rank exchanges slices directly with the
 * ranks of the other hosts, in the type that is sent, and sums them itself, so the bits are those of
 * every other transport.
 *
 * MPI does not report that a rank died, and its blocking calls then never return. So all waits here
 * test, and look at the world's failure, which the monitor reports. */
#include "collectives/mpi_world.h"

#include "base/checked.h"
#include "base/clock.h"
#include "collectives/remote.h"

#include <string.h>

/* Most bytes of one message: MPI counts in int. */
#define MESSAGE_BYTES ((size_t)1 << 28)
/* Receive buffer of a reduction, for all ranks of other hosts together. */
#define STAGE_BYTES       ((size_t)8 << 20)
#define STAGE_PORTION_MIN ((size_t)64 << 10)
/* Messages of a rank that has disconnected may still be in transit for this time. */
#define LEFT_GRACE_NS INT64_C(2000000000)

/* -------------------------------------------------------------- waiting -- */

static sherd_status mpi_error(sherd_world *world, int code)
{
    char text[MPI_MAX_ERROR_STRING + 1] = "";
    int  len                            = 0;

    (void)sherdi_mpi_api.Error_string(code, text, &len);
    return sherdi_world_fail(world, SHERD_E_PEER_LOST, "rank %d: MPI says: %s", world->rank, text);
}

/* Adds the ranks whose messages have not been transferred to a list such as "1, 3". */
static void pending_list(const mpi_requests *requests, char *text, size_t len_bytes)
{
    int last = -1;

    for (int i = 0; i < requests->count; i++) {
        int is_done = 0;

        (void)sherdi_mpi_api.Request_get_status(requests->list[i], &is_done, MPI_STATUS_IGNORE);
        if (!is_done && requests->ranks[i] != last) {
            last = requests->ranks[i];
            sherdi_ranks_add(text, len_bytes, last);
        }
    }
}

/* Cancels requests that will not end, so that nobody writes to their buffers later. */
static void requests_drop(mpi_requests *requests)
{
    for (int i = 0; i < requests->count; i++) {
        if (requests->list[i] != sherdi_mpi_api.request_null) {
            (void)sherdi_mpi_api.Cancel(&requests->list[i]);
            (void)sherdi_mpi_api.Request_free(&requests->list[i]);
        }
    }
    requests->count = 0;
}

/* Drops all requests after a failure. */
static sherd_status failed(mpi_world *mpi, sherd_status status)
{
    requests_drop(&mpi->receives);
    requests_drop(&mpi->sends);
    return status;
}

static sherd_status requests_look(mpi_world *mpi, const mpi_requests *requests, int64_t deadline_ns)
{
    sherd_world *world     = &mpi->procs.world;
    int64_t      now_ns    = sherdi_now_ns();
    int64_t      left_ns   = atomic_load(&mpi->procs.first_left_ns);
    char         text[256] = "";

    SHERDI_TRY(sherdi_peers_check(&mpi->procs.peers));
    if (left_ns != 0 && now_ns - left_ns > LEFT_GRACE_NS) {
        return sherdi_world_fail_left(world, atomic_load(&mpi->procs.first_left));
    }
    if (now_ns >= deadline_ns) {
        pending_list(requests, text, sizeof(text));
        return sherdi_world_fail_late(world, "rank %s", text);
    }
    return SHERD_OK;
}

static sherd_status requests_wait(mpi_world *mpi, mpi_requests *requests)
{
    int64_t deadline_ns = sherdi_now_ns() + mpi->procs.world.timeout_ns;

    for (int turn = 0; requests->count > 0; turn++) {
        int is_done = 0;
        int code =
            sherdi_mpi_api.Testall(requests->count, requests->list, &is_done, MPI_STATUSES_IGNORE);

        if (code != MPI_SUCCESS) {
            return mpi_error(&mpi->procs.world, code);
        }
        if (is_done) {
            requests->count = 0;
            return SHERD_OK;
        }
        SHERDI_TRY(requests_look(mpi, requests, deadline_ns));
        sherdi_nap(turn); /* MPI makes progress only inside its calls */
    }
    return SHERD_OK;
}

static sherd_status both_wait(mpi_world *mpi)
{
    SHERDI_TRY(requests_wait(mpi, &mpi->receives));
    return requests_wait(mpi, &mpi->sends);
}

static sherd_status request_add(mpi_world *mpi, mpi_requests *requests, int rank, int code)
{
    if (code != MPI_SUCCESS) {
        return mpi_error(&mpi->procs.world, code);
    }
    requests->ranks[requests->count++] = rank;
    return SHERD_OK;
}

static sherd_status send_start(mpi_world *mpi, int rank, const void *data, size_t len_bytes)
{
    return request_add(mpi, &mpi->sends, rank,
                       sherdi_mpi_api.Isend(data, (int)len_bytes, sherdi_mpi_api.byte,
                                            sherdi_mpi_channel_rank(mpi, rank), mpi->tag,
                                            mpi->channel->comm,
                                            &mpi->sends.list[mpi->sends.count]));
}

static sherd_status recv_start(mpi_world *mpi, int rank, void *data, size_t len_bytes)
{
    return request_add(mpi, &mpi->receives, rank,
                       sherdi_mpi_api.Irecv(data, (int)len_bytes, sherdi_mpi_api.byte,
                                            sherdi_mpi_channel_rank(mpi, rank), mpi->tag,
                                            mpi->channel->comm,
                                            &mpi->receives.list[mpi->receives.count]));
}

/* ------------------------------------------------------------ reductions -- */

/* Exchanges elements of slices with all ranks of other hosts. */
static sherd_status portions_start(mpi_world *mpi, const sherdi_reduction_args *args,
                                   size_t first_elem, size_t count_elems)
{
    size_t               elem_bytes = sherdi_reduction_send_bytes(args);
    const unsigned char *send       = (const unsigned char *)args->send + first_elem * elem_bytes;

    for (int i = 0; i < mpi->num_remote; i++) {
        SHERDI_TRY(recv_start(mpi, mpi->remote[i],
                              mpi->staging + (size_t)i * mpi->wire.portion_bytes,
                              count_elems * elem_bytes));
    }
    for (int i = 0; i < mpi->num_remote; i++) {
        SHERDI_TRY(send_start(mpi, mpi->remote[i],
                              send + (size_t)mpi->remote[i] * args->slice_elems * elem_bytes,
                              count_elems * elem_bytes));
    }
    return SHERD_OK;
}

static sherd_status wire_start(void *ctx, const sherdi_reduction_args *args, size_t first_elem,
                               size_t count_elems)
{
    mpi_world   *mpi    = ctx;
    sherd_status status = portions_start(mpi, args, first_elem, count_elems);

    return status == SHERD_OK ? SHERD_OK : failed(mpi, status);
}

static sherd_status wire_finish(void *ctx, size_t first_byte, const void **srcs)
{
    mpi_world   *mpi    = ctx;
    sherd_status status = both_wait(mpi);

    for (int i = 0; i < mpi->num_remote; i++) {
        srcs[mpi->remote[i]] = mpi->staging + (size_t)i * mpi->wire.portion_bytes + first_byte;
    }
    return status == SHERD_OK ? SHERD_OK : failed(mpi, status);
}

/* --------------------------------------------------------------- gathers -- */

/* Slices of other hosts come in rounds: in each, every rank of this host receives one, the ranks
 * together as many as they are. A step is a part of some rounds that fits into the rank's half of
 * the bounce buffer, from which the others copy it after they have met. */
typedef struct gather_step {
    size_t at, len_bytes; /* of each slice */
    int    round, num_rounds;
} gather_step;

static int rounds_of(const mpi_world *mpi)
{
    return (mpi->num_remote + mpi->procs.peers.count - 1) / mpi->procs.peers.count;
}

/* Returns the step that begins at this place. */
static gather_step step_at(const mpi_world *mpi, const sherdi_all_gather_args *args, size_t at,
                           int round)
{
    size_t len_bytes = sherdi_min_size(PEERS_HALF_BYTES, args->slice_bytes - at);
    size_t left      = (size_t)(rounds_of(mpi) - round);

    return (gather_step){
        .at        = at,
        .len_bytes = len_bytes,
        .round     = round,
        .num_rounds =
            (int)(len_bytes == 0 ? left : sherdi_min_size(left, PEERS_HALF_BYTES / len_bytes))};
}

/* Moves on to the next step. Returns 0 after the last one. */
static int step_next(const mpi_world *mpi, const sherdi_all_gather_args *args, gather_step *step)
{
    int    round = step->round + step->num_rounds;
    size_t at    = step->at;

    if (round == rounds_of(mpi)) {
        round = 0;
        at += step->len_bytes;
    }
    if (round == 0 && at >= args->slice_bytes) {
        return 0;
    }
    *step = step_at(mpi, args, at, round);
    return 1;
}

/* Starts the messages of a step: a part of this rank's slice goes to each other host with the first
 * rounds of that part. The sends of the part before have ended by then. */
static sherd_status step_start(mpi_world *mpi, const sherdi_all_gather_args *args,
                               const gather_step *step)
{
    sherdi_peers  *peers = &mpi->procs.peers;
    unsigned char *half  = sherdi_peers_half_to_fill(peers);

    for (int i = 0; i < step->num_rounds; i++) {
        int number = (step->round + i) * peers->count + peers->me;

        if (number < mpi->num_remote) {
            SHERDI_TRY(recv_start(mpi, mpi->remote[number], half + (size_t)i * step->len_bytes,
                                  step->len_bytes));
        }
    }
    if (step->round > 0) {
        return SHERD_OK;
    }
    SHERDI_TRY(requests_wait(mpi, &mpi->sends));
    for (int i = 0; i < mpi->num_leaders; i++) {
        SHERDI_TRY(send_start(mpi, mpi->gatherers[i], (const unsigned char *)args->send + step->at,
                              step->len_bytes));
    }
    return SHERD_OK;
}

/* Copies what the ranks of this host have received in a step. */
static void step_copy(mpi_world *mpi, const sherdi_all_gather_args *args, const gather_step *step)
{
    sherdi_peers *peers = &mpi->procs.peers;

    for (int turn = 0; turn < peers->count; turn++) {
        int                  index = (peers->me + turn) % peers->count;
        const unsigned char *half  = sherdi_peers_half_of(peers, index);

        for (int i = 0; i < step->num_rounds; i++) {
            int number = (step->round + i) * peers->count + index;

            if (number < mpi->num_remote && step->len_bytes > 0) {
                memcpy((unsigned char *)args->recv +
                           (size_t)mpi->remote[number] * args->slice_bytes + step->at,
                       half + (size_t)i * step->len_bytes, step->len_bytes);
            }
        }
    }
}

/* The next step is under way while one is copied. */
static sherd_status slices_gather(mpi_world *mpi, const sherdi_all_gather_args *args)
{
    gather_step step = step_at(mpi, args, 0, 0);
    gather_step next = step;

    SHERDI_TRY(step_start(mpi, args, &step));
    for (int has_next = 1; has_next; step = next) {
        SHERDI_TRY(requests_wait(mpi, &mpi->receives));
        SHERDI_TRY(sherdi_peers_meet(&mpi->procs.peers));
        has_next = step_next(mpi, args, &next);
        if (has_next) {
            SHERDI_TRY(step_start(mpi, args, &next));
        }
        step_copy(mpi, args, &step);
    }
    return requests_wait(mpi, &mpi->sends);
}

sherd_status sherdi_mpi_all_gather(sherd_world *world, const sherdi_all_gather_args *args)
{
    mpi_world   *mpi = (mpi_world *)world;
    sherd_status status;

    SHERDI_TRY(sherdi_peers_all_gather(world, args));
    if (sherdi_mpi_has_one_host(mpi)) {
        return SHERD_OK;
    }
    status = slices_gather(mpi, args);
    return status == SHERD_OK ? SHERD_OK : failed(mpi, status);
}

/* ---------------------------------------------------- broadcast, barrier -- */

/* Sends from the root to the first rank of each other host. */
static sherd_status portion_send(mpi_world *mpi, unsigned char *portion, size_t portion_bytes,
                                 int root)
{
    sherdi_peers *peers = &mpi->procs.peers;

    for (int i = 0; i < mpi->num_leaders && mpi->procs.world.rank == root; i++) {
        SHERDI_TRY(send_start(mpi, mpi->leaders[i], portion, portion_bytes));
    }
    if (sherdi_peers_index(peers, root) < 0 && peers->me == 0) {
        SHERDI_TRY(recv_start(mpi, root, portion, portion_bytes));
    }
    return both_wait(mpi);
}

sherd_status sherdi_mpi_broadcast(sherd_world *world, void *data, size_t len_bytes, int root)
{
    mpi_world    *mpi   = (mpi_world *)world;
    sherdi_peers *peers = &mpi->procs.peers;
    int           index = sherdi_peers_index(peers, root);

    for (size_t first = 0; first < len_bytes && !sherdi_mpi_has_one_host(mpi);
         first += MESSAGE_BYTES) {
        sherd_status status = portion_send(mpi, (unsigned char *)data + first,
                                           sherdi_min_size(MESSAGE_BYTES, len_bytes - first), root);

        if (status != SHERD_OK) {
            return failed(mpi, status);
        }
    }
    return sherdi_peers_broadcast(world, data, len_bytes, index < 0 ? peers->ranks[0] : root);
}

/* The first ranks of the hosts meet. */
static sherd_status leaders_meet(mpi_world *mpi)
{
    char byte[2] = {0, 0};

    for (int i = 0; i < mpi->num_leaders && mpi->procs.peers.me == 0; i++) {
        SHERDI_TRY(recv_start(mpi, mpi->leaders[i], &byte[0], 0));
        SHERDI_TRY(send_start(mpi, mpi->leaders[i], &byte[1], 0));
    }
    return both_wait(mpi);
}

sherd_status sherdi_mpi_barrier(sherd_world *world)
{
    mpi_world   *mpi = (mpi_world *)world;
    sherd_status status;

    SHERDI_TRY(sherdi_peers_barrier(world));
    if (sherdi_mpi_has_one_host(mpi)) {
        return SHERD_OK;
    }
    status = leaders_meet(mpi);
    return status == SHERD_OK ? sherdi_peers_barrier(world) : failed(mpi, status);
}

/* --------------------------------------------------------------- opening -- */

/* Returns the rank on the host of `leader` that receives this rank's slice: the slices of other
 * hosts, in the order of ranks, go to the ranks of a host in turn. */
static int gatherer_of(const mpi_world *mpi, const rendezvous_card *cards, int leader)
{
    const sherd_world *world = &mpi->procs.world;
    int                local = 0;
    int                turn  = 0;

    for (int r = 0; r < world->world_size; r++) {
        local += cards[r].host == cards[leader].host;
        turn += r < world->rank && cards[r].host != cards[leader].host;
    }
    turn %= local;
    for (int r = leader;; r++) {
        if (cards[r].host == cards[leader].host && turn-- == 0) {
            return r;
        }
    }
}

static sherd_status requests_open(mpi_world *mpi, mpi_requests *requests)
{
    sherdi_mem *mem  = &mpi->procs.world.mem;
    size_t      most = (size_t)mpi->procs.world.world_size;

    requests->list  = sherdi_alloc_array(mem, SHERDI_MEM_CONTROL, most, sizeof(*requests->list));
    requests->ranks = sherdi_alloc_array(mem, SHERDI_MEM_CONTROL, most, sizeof(*requests->ranks));
    return requests->list == NULL || requests->ranks == NULL ? SHERD_E_NOMEM : SHERD_OK;
}

sherd_status sherdi_mpi_calls_open(mpi_world *mpi, const rendezvous_card *cards)
{
    sherd_world *world = &mpi->procs.world;
    size_t       count = (size_t)mpi->num_remote;

    SHERDI_TRY(requests_open(mpi, &mpi->receives));
    SHERDI_TRY(requests_open(mpi, &mpi->sends));
    mpi->gatherers = sherdi_alloc_array(&world->mem, SHERDI_MEM_CONTROL, (size_t)mpi->num_leaders,
                                        sizeof(*mpi->gatherers));
    mpi->wire      = (peers_wire){
             .ctx           = mpi,
             .portion_bytes = sherdi_max_size(STAGE_PORTION_MIN, STAGE_BYTES / count / 4096 * 4096),
             .start         = wire_start,
             .finish        = wire_finish};
    mpi->staging =
        sherdi_alloc_array(&world->mem, SHERDI_MEM_TRANSPORT, count, mpi->wire.portion_bytes);
    if (mpi->gatherers == NULL || mpi->staging == NULL) {
        return SHERD_E_NOMEM;
    }
    for (int i = 0; i < mpi->num_leaders; i++) {
        mpi->gatherers[i] = gatherer_of(mpi, cards, mpi->leaders[i]);
    }
    mpi->procs.peers.wire = &mpi->wire;
    world->overhead_bytes += count * mpi->wire.portion_bytes;
    return SHERD_OK;
}

void sherdi_mpi_calls_close(mpi_world *mpi)
{
    sherdi_free(mpi->receives.list);
    sherdi_free(mpi->receives.ranks);
    sherdi_free(mpi->sends.list);
    sherdi_free(mpi->sends.ranks);
    sherdi_free(mpi->gatherers);
    sherdi_free(mpi->staging);
}
