/* Gathers, broadcasts and barriers of a world over MPI. Inside a host its ranks share memory
 * (peers.c). What crosses hosts crosses once for each host: one rank there receives it, into memory
 * that the ranks of the host share. mpi_sums.c has the reductions. */
#include "collectives/mpi_world.h"

#include "base/checked.h"
#include "collectives/bounce.h"

#include <string.h>

/* Most bytes of one message: MPI counts in int. */
#define MESSAGE_BYTES ((size_t)1 << 28)

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
            SHERDI_TRY(sherdi_mpi_receive(mpi, mpi->remote[number],
                                          half + (size_t)i * step->len_bytes, step->len_bytes));
        }
    }
    if (step->round > 0) {
        return SHERD_OK;
    }
    SHERDI_TRY(sherdi_mpi_wait(mpi, &mpi->sends));
    for (int i = 0; i < mpi->num_hosts; i++) {
        SHERDI_TRY(sherdi_mpi_send(mpi, mpi->hosts[i].partner,
                                   (const unsigned char *)args->send + step->at, step->len_bytes));
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
        SHERDI_TRY(sherdi_mpi_wait(mpi, &mpi->receives));
        SHERDI_TRY(sherdi_peers_meet(&mpi->procs.peers));
        has_next = step_next(mpi, args, &next);
        if (has_next) {
            SHERDI_TRY(step_start(mpi, args, &next));
        }
        step_copy(mpi, args, &step);
    }
    return sherdi_mpi_wait(mpi, &mpi->sends);
}

sherd_status sherdi_mpi_all_gather(sherd_world *world, const sherdi_all_gather_args *args)
{
    mpi_world             *mpi  = (mpi_world *)world;
    sherdi_all_gather_args here = *args;
    sherd_status           status;

    if (sherdi_mpi_has_one_host(mpi)) {
        return sherdi_peers_all_gather(world, args);
    }
    /* The ranks of a host see no board of the others' updates here (board.h), so none may read
     * another's slice before they have met. */
    here.flags &= ~SHERDI_COLL_STABLE;
    SHERDI_TRY(sherdi_peers_all_gather(world, &here));
    status = slices_gather(mpi, args);
    return status == SHERD_OK ? SHERD_OK : sherdi_mpi_failed(mpi, status);
}

/* ---------------------------------------------------- broadcast, barrier -- */

/* Sends from the root to the first rank of each other host. */
static sherd_status portion_send(mpi_world *mpi, unsigned char *portion, size_t portion_bytes,
                                 int root)
{
    sherdi_peers *peers = &mpi->procs.peers;

    for (int i = 0; i < mpi->num_hosts && mpi->procs.world.rank == root; i++) {
        SHERDI_TRY(sherdi_mpi_send(mpi, mpi->hosts[i].leader, portion, portion_bytes));
    }
    if (sherdi_peers_index(peers, root) < 0 && peers->me == 0) {
        SHERDI_TRY(sherdi_mpi_receive(mpi, root, portion, portion_bytes));
    }
    return sherdi_mpi_wait_all(mpi);
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
            return sherdi_mpi_failed(mpi, status);
        }
    }
    return sherdi_peers_broadcast(world, data, len_bytes, index < 0 ? peers->ranks[0] : root);
}

/* The first ranks of the hosts meet. */
static sherd_status leaders_meet(mpi_world *mpi)
{
    char byte[2] = {0, 0};

    for (int i = 0; i < mpi->num_hosts && mpi->procs.peers.me == 0; i++) {
        SHERDI_TRY(sherdi_mpi_receive(mpi, mpi->hosts[i].leader, &byte[0], 0));
        SHERDI_TRY(sherdi_mpi_send(mpi, mpi->hosts[i].leader, &byte[1], 0));
    }
    return sherdi_mpi_wait_all(mpi);
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
    return status == SHERD_OK ? sherdi_peers_barrier(world) : sherdi_mpi_failed(mpi, status);
}
