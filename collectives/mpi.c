/* Ranks that MPI started. They meet through MPI. Inside a host they share memory exactly as in shm
 * (procs.c, peers.c), and MPI is not used again; mpi_calls.c has what crosses hosts. MPI itself is
 * opened at run time (mpi_library.h). */
#include "collectives/meeting_point.h"

#include "base/checked.h"
#include "base/clock.h"
#include "base/thread.h"
#include "collectives/mpi_world.h"
#include "collectives/split.h"
#include "collectives/transport.h"
#include "collectives/remote.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MPI_TAG 1
/* The smallest upper bound for tags that MPI guarantees. */
#define MPI_TAG_MOST 32767
/* After a failure, MPI_Finalize may take so long; then the process ends without it. */
#define END_PATIENCE_S 5

/* -------------------------------------------------- MPI of the process -- */

static pthread_mutex_t mpi_lock = PTHREAD_MUTEX_INITIALIZER; /* guards the variables below */
static int             mpi_worlds;                           /* number of live worlds */
static int             mpi_has_failed;                       /* a world of this process failed */
static int             mpi_has_dead; /* a process has ended: finalising would wait for it */
static pid_t           mpi_process;  /* the process that initialised MPI here */

static void *end_watch(void *unused)
{
    const struct timespec patience = {.tv_sec = END_PATIENCE_S};

    (void)unused;
    (void)nanosleep(&patience, NULL);
    _exit(EXIT_FAILURE);
}

/* Called at exit, if sherd initialised MPI. If a world is still open, the process is ending without
 * being asked to: its sockets close, which notifies the others, and MPI_Finalize would wait for
 * them. After a failure in which all processes survive they come here too, but perhaps not all of
 * them. */
static void mpi_end(void)
{
    int       is_finalized = 0;
    pthread_t watch;

    if (mpi_process != getpid()) { /* the end of a forked child does not end MPI */
        return;
    }
    (void)sherdi_mpi_api.Finalized(&is_finalized);
    if (is_finalized || mpi_worlds > 0 || mpi_has_dead) {
        return;
    }
    if (mpi_has_failed && sherdi_thread_start(&watch, 0, end_watch, NULL) == 0) {
        (void)pthread_detach(watch);
    }
    (void)sherdi_mpi_api.Finalize();
}

static sherd_status mpi_need(void)
{
    char why[300];

    if (!sherdi_mpi_load(why, sizeof(why))) {
        return sherdi_fail(SHERD_E_NOTSUP,
                           "no world over MPI: %s; without MPI, SHERD_RANK, SHERD_WORLD_SIZE and "
                           "SHERD_RENDEZVOUS start ranks of one host",
                           why);
    }
    return SHERD_OK;
}

static sherd_status mpi_begin(void)
{
    int          is_initialized = 0;
    int          is_finalized   = 0;
    int          provided       = 0;
    sherd_status status         = SHERD_OK;

    SHERDI_TRY(mpi_need());
    (void)pthread_mutex_lock(&mpi_lock);
    (void)sherdi_mpi_api.Finalized(&is_finalized);
    (void)sherdi_mpi_api.Initialized(&is_initialized);
    if (is_finalized) {
        status =
            sherdi_fail(SHERD_E_STATE, "MPI is finalised already, and cannot be started again");
    } else if (!is_initialized) {
        if (sherdi_mpi_api.Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &provided) != MPI_SUCCESS) {
            status = sherdi_fail(SHERD_E_IO, "MPI_Init_thread failed");
        } else {
            mpi_process = getpid();
            (void)atexit(mpi_end);
        }
    }
    (void)pthread_mutex_unlock(&mpi_lock);
    return status;
}

static void channel_retain(mpi_channel *channel)
{
    if (channel != NULL) {
        (void)pthread_mutex_lock(&mpi_lock);
        channel->owners++;
        (void)pthread_mutex_unlock(&mpi_lock);
    }
}

/* Drops an owner; the last one frees the channel. Accepts NULL. */
static void channel_drop(mpi_channel *channel, int has_failed)
{
    int is_finalized = 0;
    int is_last;

    if (channel == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&mpi_lock);
    channel->is_lost |= has_failed;
    is_last = --channel->owners == 0;
    (void)pthread_mutex_unlock(&mpi_lock);
    if (!is_last) {
        return;
    }
    (void)sherdi_mpi_api.Finalized(&is_finalized);
    if (!channel->is_lost && !is_finalized) {
        (void)sherdi_mpi_api.Comm_free(&channel->comm);
    }
    free(channel);
}

static void mpi_count_world(int change, int has_failed, int has_dead)
{
    (void)pthread_mutex_lock(&mpi_lock);
    mpi_worlds += change;
    mpi_has_failed |= has_failed;
    mpi_has_dead |= has_dead;
    (void)pthread_mutex_unlock(&mpi_lock);
}

/* ---------------------------------------------- functions of the table -- */

static sherd_status mpi_alloc(sherd_world *world, size_t len_bytes, void **out)
{
    mpi_world   *mpi    = (mpi_world *)world;
    void        *memory = NULL;
    sherd_status here   = sherdi_peers_alloc(world, len_bytes, &memory);

    if (!sherdi_mpi_has_one_host(mpi)) {
        sherd_status status = sherdi_world_alloc_agree(world, here, len_bytes, "world memory");

        if (status != SHERD_OK && here == SHERD_OK) {
            sherdi_peers_free(world, memory);
        }
        SHERDI_TRY(status);
    }
    SHERDI_TRY(here);
    *out = memory;
    return SHERD_OK;
}

static void mpi_close(sherd_world *world)
{
    mpi_world *mpi        = (mpi_world *)world;
    int        has_failed = sherdi_world_has_failed(world);

    sherdi_free(mpi->channel_ranks);
    sherdi_free(mpi->remote);
    sherdi_free(mpi->host_of);
    sherdi_free(mpi->hosts);
    sherdi_mpi_messages_close(mpi);
    sherdi_mpi_sums_close(mpi);
    channel_drop(mpi->channel, has_failed);
    sherdi_procs_close(&mpi->procs);
    mpi_count_world(-1, has_failed, atomic_load(&mpi->procs.has_dead));
    free(mpi);
}

static sherd_status mpi_split(sherdi_split *split, sherd_world **out);

static const sherdi_world_ops MPI_OPS = {
    .struct_size    = sizeof(MPI_OPS),
    .name           = "mpi",
    .caps           = SHERDI_WORLD_TAKES_BACK | SHERDI_WORLD_SHARES_MEMORY,
    .close          = mpi_close,
    .alloc          = mpi_alloc,
    .free           = sherdi_peers_free,
    .barrier        = sherdi_mpi_barrier,
    .all_gather     = sherdi_mpi_all_gather,
    .reduce_scatter = sherdi_mpi_reduce_scatter,
    .all_reduce     = sherdi_mpi_all_reduce,
    .broadcast      = sherdi_mpi_broadcast,
    .abort          = sherdi_procs_abort,
    .tell_ending    = sherdi_procs_tell_ending,
    .split          = mpi_split,
};

/* ------------------------------------------------------------- meeting -- */

/* The communicator, before there is a world. */
typedef struct mpi_meeting {
    MPI_Comm comm;
    int64_t  deadline_ns;
} mpi_meeting;

/* Waits for one request, up to the deadline. */
static sherd_status meeting_wait(MPI_Request *request, int64_t deadline_ns)
{
    int is_done = 0;

    while (!is_done) {
        if (sherdi_mpi_api.Test(request, &is_done, MPI_STATUS_IGNORE) != MPI_SUCCESS) {
            return sherdi_fail(SHERD_E_PEER_LOST, "MPI failed while the ranks were meeting");
        }
        if (!is_done && sherdi_now_ns() > deadline_ns) {
            return sherdi_fail(SHERD_E_PEER_LOST,
                               "not all ranks of the MPI communicator came within the time limit "
                               "(SHERD_TIMEOUT)");
        }
        (void)sched_yield();
    }
    return SHERD_OK;
}

static sherd_status meeting_exchange(void *ctx, const void *mine, void *all, size_t len_bytes)
{
    const mpi_meeting *meeting = ctx;
    MPI_Request        request;

    (void)sherdi_mpi_api.Iallgather(mine, (int)len_bytes, sherdi_mpi_api.byte, all, (int)len_bytes,
                                    sherdi_mpi_api.byte, meeting->comm, &request);
    return meeting_wait(&request, meeting->deadline_ns);
}

/* For a world that was split from another: finds its ranks' numbers in the communicator, which is
 * the other world's. */
static sherd_status channel_ranks_find(mpi_world *mpi, const sherdi_split *split)
{
    const mpi_world *parent = (const mpi_world *)split->parent;

    mpi->channel_ranks = sherdi_alloc_array(&mpi->procs.world.mem, SHERDI_MEM_CONTROL,
                                            (size_t)split->world_size, sizeof(int));
    if (mpi->channel_ranks == NULL) {
        return SHERD_E_NOMEM;
    }
    for (int r = 0; r < split->world_size; r++) {
        mpi->channel_ranks[r] = sherdi_mpi_channel_rank(parent, split->ranks[r]);
    }
    return SHERD_OK;
}

/* Adds a rank of another host to the lists. */
static void remote_add(mpi_world *mpi, const rendezvous_card *cards, int rank)
{
    int host = 0;

    while (host < mpi->num_hosts && cards[mpi->hosts[host].leader].host != cards[rank].host) {
        host++;
    }
    if (host == mpi->num_hosts) {
        mpi->hosts[mpi->num_hosts++] = (mpi_host){.leader = rank};
    }
    mpi->hosts[host].num_ranks++;
    mpi->host_of[mpi->num_remote]  = host;
    mpi->remote[mpi->num_remote++] = rank;
}

/* Finds the rank of a host that handles this rank's slice: the ranks of a host take the slices of
 * other hosts in turn, in the order of ranks. */
static void partner_find(const mpi_world *mpi, const rendezvous_card *cards, mpi_host *host)
{
    int turn = 0;

    for (int r = 0; r < mpi->procs.world.rank; r++) {
        turn += cards[r].host != cards[host->leader].host;
    }
    turn %= host->num_ranks;
    host->partner = host->leader;
    for (int r = host->leader; turn > 0; r++) {
        if (r > host->leader && cards[r].host == cards[host->leader].host) {
            host->partner = r;
            turn--;
        }
    }
}

/* Finds the ranks of other hosts, and makes room for their messages. Not collective. */
static sherd_status remote_find(mpi_world *mpi, const sherdi_split *split)
{
    sherd_world           *world = &mpi->procs.world;
    const rendezvous_card *cards = mpi->procs.meeting.cards;
    size_t                 size  = (size_t)world->world_size;

    if (split != NULL) {
        SHERDI_TRY(channel_ranks_find(mpi, split));
    }
    mpi->remote  = sherdi_alloc_array(&world->mem, SHERDI_MEM_CONTROL, size, sizeof(*mpi->remote));
    mpi->host_of = sherdi_alloc_array(&world->mem, SHERDI_MEM_CONTROL, size, sizeof(*mpi->host_of));
    mpi->hosts   = sherdi_alloc_array(&world->mem, SHERDI_MEM_CONTROL, size, sizeof(*mpi->hosts));
    if (mpi->remote == NULL || mpi->host_of == NULL || mpi->hosts == NULL) {
        return SHERD_E_NOMEM;
    }
    for (int r = 0; r < world->world_size; r++) {
        if (cards[r].host != cards[world->rank].host) {
            remote_add(mpi, cards, r);
        }
    }
    for (int h = 0; h < mpi->num_hosts; h++) {
        partner_find(mpi, cards, &mpi->hosts[h]);
    }
    SHERDI_TRY(sherdi_mpi_messages_open(mpi));
    return sherdi_mpi_sums_open(mpi);
}

static sherd_status mpi_open(mpi_world *mpi, const procs_params *params)
{
    sherd_world *world    = &mpi->procs.world;
    int          provided = 0;

    SHERDI_TRY(sherdi_procs_open(&mpi->procs, &MPI_OPS, params));
    if (world->ops != &MPI_OPS) { /* the world is NCCL's, and needs MPI no more */
        SHERDI_TRY(sherdi_procs_opened(&mpi->procs));
        channel_drop(mpi->channel, 0);
        mpi->channel = NULL;
        mpi_count_world(-1, 0, 0);
        return SHERD_OK;
    }
    if (mpi->procs.num_hosts > 1) {
        sherd_status status = remote_find(mpi, params->split);

        (void)sherdi_mpi_api.Query_thread(&provided);
        world->is_single_threaded = provided < MPI_THREAD_SERIALIZED;
        if (status != SHERD_OK) {
            return sherdi_world_fail(world, status, "rank %d: %s", world->rank, sherd_last_error());
        }
    }
    SHERDI_TRY(sherdi_procs_opened(&mpi->procs));
    if (mpi->procs.num_hosts == 1) {
        channel_drop(mpi->channel, 0); /* one host needs MPI no more */
        mpi->channel = NULL;
    }
    return SHERD_OK;
}

/* Takes over one ownership of `channel`, also if it fails. */
static sherd_status world_open(mpi_channel *channel, int tag, const procs_params *params,
                               sherd_world **out)
{
    mpi_world   *mpi = calloc(1, sizeof(*mpi));
    sherd_status status;

    if (mpi == NULL) {
        int listener = params->listener;

        sherdi_net_close(&listener);
        channel_drop(channel, params->split == NULL);
        return sherdi_fail(SHERD_E_NOMEM, "no memory for the world");
    }
    mpi->channel = channel;
    mpi->tag     = tag;
    mpi_count_world(1, 0, 0);
    status = mpi_open(mpi, params);
    if (status != SHERD_OK) {
        sherdi_world_set_failed(&mpi->procs.world, status, sherd_last_error());
        return sherdi_world_drop(&mpi->procs.world, status);
    }
    *out = &mpi->procs.world;
    return SHERD_OK;
}

static sherd_status comm_duplicate(MPI_Comm comm, int64_t deadline_ns, MPI_Comm *out)
{
    MPI_Request request;

    if (sherdi_mpi_api.Comm_idup(comm, out, &request) != MPI_SUCCESS) {
        return sherdi_fail(SHERD_E_IO, "MPI cannot duplicate the communicator");
    }
    SHERDI_TRY(meeting_wait(&request, deadline_ns));
    (void)sherdi_mpi_api.Comm_set_errhandler(*out, sherdi_mpi_api.errors_return);
    return SHERD_OK;
}

/* Creates a channel with a duplicate of `comm`, and one owner. */
static sherd_status channel_create(MPI_Comm comm, int64_t deadline_ns, mpi_channel **out)
{
    mpi_channel *channel = calloc(1, sizeof(*channel));
    sherd_status status;

    if (channel == NULL) {
        return sherdi_fail(SHERD_E_NOMEM, "no memory for the communicator");
    }
    channel->owners   = 1;
    channel->last_tag = MPI_TAG;
    status            = comm_duplicate(comm, deadline_ns, &channel->comm);
    if (status != SHERD_OK) {
        free(channel);
        return status;
    }
    *out = channel;
    return SHERD_OK;
}

/* Takes over the channel. */
static sherd_status meet_over(mpi_channel *channel, procs_params *procs, int64_t deadline_ns,
                              sherd_world **out)
{
    mpi_meeting             meeting = {.comm = channel->comm, .deadline_ns = deadline_ns};
    const sherdi_transport *named   = sherdi_transport_find(procs->world->transport);
    meeting_point           point;
    sherd_status            status;

    status = sherdi_meeting_point_agree(procs, meeting_exchange, &meeting, "MPI", &point);
    if (status != SHERD_OK) {
        channel_drop(channel, 1);
        return status;
    }
    if (named != NULL && named != &sherdi_transport_mpi) { /* this transport needs MPI no more */
        procs->is_one_host_only = (named->holds & SHERDI_TRANSPORT_HOSTS) == 0;
        channel_drop(channel, 0);
        return named->create(procs, out);
    }
    return world_open(channel, MPI_TAG, procs, out);
}

static sherd_status create_over(MPI_Comm comm, const sherd_world_params *params, sherd_world **out)
{
    procs_params procs   = {.world = params, .listener = -1};
    mpi_channel *channel = NULL;
    int64_t      deadline_ns;

    SHERDI_TRY(sherdi_meeting_limit(params, &procs.limit_ns));
    deadline_ns = sherdi_now_ns() + procs.limit_ns;
    (void)sherdi_mpi_api.Comm_rank(comm, &procs.rank);
    (void)sherdi_mpi_api.Comm_size(comm, &procs.world_size);
    SHERDI_TRY(channel_create(comm, deadline_ns, &channel));
    procs.mover_use = sherdi_procs_mover_use(params);
    return meet_over(channel, &procs, deadline_ns, out);
}

/* Chooses a tag that is new for all ranks of `parent`. Each rank knows the highest tag of the
 * worlds that it is in. */
static sherd_status tag_agree(mpi_world *parent, int *out)
{
    sherd_world *world = &parent->procs.world;
    const int   *tags  = (const int *)(const void *)world->sum_scratch;

    SHERDI_TRY(sherdi_world_exchange(world, &parent->channel->last_tag, world->sum_scratch,
                                     sizeof(*tags), "sherd_world_split"));
    *out = tags[0];
    for (int r = 1; r < world->world_size; r++) {
        *out = tags[r] > *out ? tags[r] : *out;
    }
    *out += 1;
    if (*out > MPI_TAG_MOST) {
        return sherdi_fail(SHERD_E_NOTSUP,
                           "this world over MPI was split %d times and has no tags for more; keep "
                           "and reuse the worlds that you split",
                           MPI_TAG_MOST - MPI_TAG);
    }
    parent->channel->last_tag = *out;
    return SHERD_OK;
}

/* The ranks of a group meet again. Messages between hosts go over the parent's communicator, with
 * the group's own tag. */
static sherd_status mpi_split(sherdi_split *split, sherd_world **out)
{
    mpi_world    *parent = (mpi_world *)split->parent;
    procs_params  procs;
    meeting_point point;
    int           tag    = MPI_TAG;
    sherd_status  status = sherdi_mpi_has_one_host(parent) ? SHERD_OK : tag_agree(parent, &tag);

    SHERDI_TRY(sherdi_meeting_point_split(split, status, &procs, &point));
    if (split->world_size == 0) {
        return SHERD_OK;
    }
    channel_retain(parent->channel);
    return world_open(parent->channel, tag, &procs, out);
}

/* Creates a world over MPI_COMM_WORLD; initialises MPI if the program has not. Rank and world_size
 * come from the launcher and are compared with MPI's; of the other members only `world` is used. */
static sherd_status mpi_create(const procs_params *params, sherd_world **out)
{
    int mpi_rank = -1;
    int mpi_size = -1;

    SHERDI_TRY(mpi_begin());
    (void)sherdi_mpi_api.Comm_rank(sherdi_mpi_api.comm_world, &mpi_rank);
    (void)sherdi_mpi_api.Comm_size(sherdi_mpi_api.comm_world, &mpi_size);
    if (params->rank != mpi_rank || params->world_size != mpi_size) {
        return sherdi_fail(SHERD_E_INVAL,
                           "the launcher says rank %d of %d, MPI says rank %d of %d: start the "
                           "program with the mpirun of the MPI library that sherd found (%s)",
                           params->rank, params->world_size, mpi_rank, mpi_size, sherdi_mpi_text());
    }
    return create_over(sherdi_mpi_api.comm_world, params->world, out);
}

sherd_status sherd_world_from_mpi_handle(const void *comm, size_t comm_bytes,
                                         const sherd_world_params *params, sherd_world **out)
{
    int                     is_initialized = 0;
    int                     is_finalized   = 0;
    MPI_Comm                given;
    sherd_world_params      here;
    const sherdi_transport *named;

    SHERDI_TRY(sherdi_api_check_out(out, "sherd_world_from_mpi"));
    SHERDI_TRY(sherdi_world_params_read(params, &here));
    SHERDI_TRY(sherdi_api_need(comm != NULL, "sherd_world_from_mpi", "comm"));
    if (comm_bytes != sizeof(given)) {
        return sherdi_fail(SHERD_E_NOTSUP,
                           "the MPI_Comm has %zu bytes, but %zu in the MPI that sherd was built "
                           "with; use that MPI",
                           comm_bytes, sizeof(given));
    }
    SHERDI_TRY(mpi_need());
    (void)sherdi_mpi_api.Initialized(&is_initialized);
    (void)sherdi_mpi_api.Finalized(&is_finalized);
    if (!is_initialized || is_finalized) {
        return sherdi_fail(SHERD_E_STATE, "MPI is not initialised, or finalised already (%s)",
                           sherdi_mpi_text());
    }
    memcpy(&given, comm, sizeof(given));
    if (given == sherdi_mpi_api.comm_null) {
        return sherdi_fail(SHERD_E_INVAL, "the communicator is MPI_COMM_NULL");
    }
    named = sherdi_transport_find(here.transport);
    if (here.transport != NULL && (named == NULL || (named->holds & SHERDI_TRANSPORT_MPI) == 0)) {
        return sherdi_fail(SHERD_E_INVAL, "a world over MPI cannot use transport %s",
                           here.transport);
    }
    return create_over(given, &here, out);
}

const sherdi_transport sherdi_transport_mpi = {
    .name  = "mpi",
    .holds = SHERDI_TRANSPORT_PROCESSES | SHERDI_TRANSPORT_HOSTS | SHERDI_TRANSPORT_MPI |
             SHERDI_TRANSPORT_MEETS,
    .is_built = 1,
    .create   = mpi_create,
    .library  = sherdi_mpi_text,
};
