/* See procs.h. Opening a world: the ranks meet, choose the mover or not, share memory inside each
 * host, and create their backends. Ranks that have met learn of each other's failures from the
 * monitor. */
#include "collectives/procs.h"

#include "base/checked.h"
#include "base/clock.h"
#include "base/log.h"
#include "collectives/desk.h"
#include "collectives/split.h"
#include "collectives/transport.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static net_wait procs_wait(sherdi_procs *procs)
{
    return (net_wait){.deadline_ns = sherdi_now_ns() + procs->world.timeout_ns,
                      .world       = &procs->world};
}

/* --------------------------------------------------------------- memory -- */

static sherd_status segment_create(size_t len_bytes, int *out)
{
    int fd = memfd_create("sherd", MFD_CLOEXEC);

    if (fd < 0) {
        return sherdi_fail(SHERD_E_NOMEM, "cannot create shared memory: %m");
    }
    if (ftruncate(fd, (off_t)len_bytes) != 0) {
        sherd_status status =
            sherdi_fail(SHERD_E_NOMEM, "cannot get %zu bytes of shared memory: %m", len_bytes);
        sherdi_net_close(&fd);
        return status;
    }
    *out = fd;
    return SHERD_OK;
}

static sherd_status segment_map(int fd, size_t len_bytes, unsigned char **out)
{
    struct stat info;
    void       *pages;

    if (fstat(fd, &info) != 0 || (size_t)info.st_size != len_bytes) {
        return sherdi_fail(SHERD_E_IO, "a segment of shared memory has %zu bytes instead of %zu",
                           (size_t)info.st_size, len_bytes);
    }
    pages = mmap(NULL, len_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (pages == MAP_FAILED) {
        return sherdi_fail(SHERD_E_NOMEM, "cannot map %zu bytes of shared memory: %m", len_bytes);
    }
    *out = pages;
    return SHERD_OK;
}

/* Passes the pending descriptor from index 0 to all other ranks of the host. */
static sherd_status pending_pass(sherdi_procs *procs)
{
    net_wait wait = procs_wait(procs);

    if (procs->world.local_rank != 0) {
        return sherdi_net_recv_fd(procs->channels[0], &procs->pending, &wait);
    }
    for (int i = 1; i < procs->num_channels; i++) {
        SHERDI_TRY(sherdi_net_send_fd(procs->channels[i], procs->pending, &wait));
    }
    return SHERD_OK;
}

static sherd_status pending_take(sherdi_procs *procs, size_t len_bytes, unsigned char **base_out)
{
    sherd_status status = pending_pass(procs);

    if (status == SHERD_OK) {
        status = segment_map(procs->pending, len_bytes, base_out);
    }
    sherdi_net_close(&procs->pending);
    return status;
}

static sherd_status procs_make(sherdi_peers *peers, size_t len_bytes)
{
    return segment_create(len_bytes, &((sherdi_procs *)peers->world)->pending);
}

static void procs_unmake(sherdi_peers *peers)
{
    sherdi_net_close(&((sherdi_procs *)peers->world)->pending);
}

static sherd_status procs_take(sherdi_peers *peers, size_t len_bytes, unsigned char **base_out,
                               void **handle_out)
{
    *handle_out = NULL;
    return pending_take((sherdi_procs *)peers->world, len_bytes, base_out);
}

static void procs_drop(sherdi_peers *peers, unsigned char *base, size_t len_bytes, void *handle)
{
    (void)peers;
    (void)handle;
    (void)munmap(base, len_bytes);
}

void sherdi_procs_host_abort(sherdi_peers *peers, sherd_status status, const char *text)
{
    peers_control *control = peers->control;
    int            whole   = WORLD_IS_WHOLE;

    if (control == NULL) {
        return;
    }
    if (atomic_compare_exchange_strong(&control->failure_state, &whole, WORLD_IS_FAILING)) {
        control->failure_status = (int)status;
        (void)snprintf(control->failure_text, sizeof(control->failure_text), "%s", text);
        atomic_store_explicit(&control->failure_state, WORLD_HAS_FAILED, memory_order_release);
    }
    sherdi_peers_wake(peers);
}

/* Tells the ranks of other hosts. */
static void tell(sherd_world *world, sherd_status status, const char *why)
{
    sherdi_procs *procs = (sherdi_procs *)world;

    if (procs->monitor != NULL) {
        sherdi_monitor_tell(procs->monitor, status, why);
    }
}

static void procs_look(sherdi_peers *peers)
{
    peers_control *control = peers->control;

    if (!sherdi_world_has_failed(peers->world) &&
        atomic_load_explicit(&control->failure_state, memory_order_acquire) == WORLD_HAS_FAILED) {
        const sherd_status status = (sherd_status)control->failure_status;

        sherdi_world_set_failed(peers->world, status, control->failure_text);
        tell(peers->world, status, control->failure_text); /* the program may end at once */
    }
}

static const peers_hooks PROCS_HOOKS = {
    .make   = procs_make,
    .unmake = procs_unmake,
    .take   = procs_take,
    .drop   = procs_drop,
    .look   = procs_look,
};

/* -------------------------------------------------------------- channels -- */

/* Index 0 of the host has a channel to each other rank of the host; the others have one to index
 * 0. */
static sherd_status channels_open(sherdi_procs *procs)
{
    const net_wait wait    = procs_wait(procs);
    uint64_t       session = procs->meeting.session;
    int            me      = procs->world.local_rank;

    procs->num_channels = me == 0 ? procs->world.local_size : 1;
    procs->channels     = sherdi_net_table(&procs->world.mem, procs->num_channels);
    if (procs->channels == NULL) {
        return SHERD_E_NOMEM;
    }
    SHERDI_TRY(me == 0 ? sherdi_desk_gather(procs->channel_desk, session, procs->channels,
                                            procs->num_channels, &wait,
                                            "of this host did not connect to share memory")
                       : sherdi_desk_come(procs->meeting.cards[procs->host_ranks[0]].channel,
                                          session, me, &wait, procs->channels));
    sherdi_net_close(&procs->channel_desk);
    return SHERD_OK;
}

/* ------------------------------------------------------------ who is where -- */

/* Finds the ranks of this host, in ascending order, and counts the hosts. */
static sherd_status hosts_find(sherdi_procs *procs)
{
    const rendezvous_card *cards = procs->meeting.cards;
    const rendezvous_card *mine  = &cards[procs->world.rank];
    int                    size  = procs->world.world_size;
    int                    count = 0;

    procs->host_ranks =
        sherdi_alloc_array(&procs->world.mem, SHERDI_MEM_CONTROL, (size_t)size, sizeof(int));
    if (procs->host_ranks == NULL) {
        return SHERD_E_NOMEM;
    }
    for (int r = 0; r < size; r++) {
        procs->num_hosts += sherdi_rendezvous_is_first(&procs->meeting, r);
        if (cards[r].host == mine->host) {
            if (r == procs->world.rank) {
                procs->world.local_rank = count;
            }
            procs->host_ranks[count++] = r;
        }
    }
    procs->world.local_size = count;
    if (mine->local_rank >= 0 && mine->local_rank >= count) {
        return sherdi_fail(SHERD_E_INVAL,
                           "rank %d has the local rank %d, but %d ranks are on host %s",
                           procs->world.rank, mine->local_rank, count, mine->host_name);
    }
    return SHERD_OK;
}

/* Ranks on two hosts cannot share memory: the error names two ranks on different hosts. */
static sherd_status one_host_check(const sherdi_procs *procs)
{
    const rendezvous_card *cards = procs->meeting.cards;

    for (int r = 1; r < procs->world.world_size; r++) {
        if (cards[r].host != cards[0].host) {
            return sherdi_fail(
                SHERD_E_NOTSUP,
                "rank 0 is on host %s, rank %d on %s: transport shm stays inside one "
                "host; between hosts use transport mpi (mpirun), or nccl on GPUs",
                cards[0].host_name, r, cards[r].host_name);
        }
    }
    return SHERD_OK;
}

/* Counts the ranks below `end` that may run on the same cores as this one. */
static int sharers_before(const sherdi_procs *procs, int end)
{
    const rendezvous_card *cards = procs->meeting.cards;
    const rendezvous_card *mine  = &cards[procs->world.rank];
    int                    count = 0;

    for (int r = 0; r < end; r++) {
        count += cards[r].host == mine->host && cards[r].cores == mine->cores;
    }
    return count;
}

/* ------------------------------------------------------------------ news -- */

static void procs_failed(sherd_world *world, sherd_status status, const char *text, int has_died)
{
    sherdi_procs *procs = (sherdi_procs *)world;

    if (has_died) {
        atomic_store(&procs->has_dead, 1);
    }
    /* before the world's failure: a rank that sees that may leave at once */
    if (atomic_load(&procs->opened)) {
        sherdi_procs_host_abort(&procs->peers, status, text);
    }
    sherdi_world_set_failed(world, status, text);
}

static void procs_left(sherd_world *world, int rank)
{
    sherdi_procs *procs = (sherdi_procs *)world;

    if (atomic_load(&procs->first_left_ns) == 0) {
        atomic_store(&procs->first_left, rank);
        atomic_store(&procs->first_left_ns, sherdi_now_ns());
    }
    if (!atomic_load(&procs->opened) && !atomic_load(&procs->is_closing)) {
        char text[96];

        (void)snprintf(text, sizeof(text),
                       "rank %d ended before the world was complete; its own output says why",
                       rank);
        sherdi_world_set_failed(world, SHERD_E_PEER_LOST, text);
    }
}

void sherdi_procs_abort(sherd_world *world, const char *why)
{
    sherdi_procs *procs = (sherdi_procs *)world;

    if (atomic_load(&procs->opened)) {
        sherdi_procs_host_abort(&procs->peers, world->failure_status, why);
    }
    tell(world, world->failure_status, why);
}

void sherdi_procs_tell_ending(sherd_world *world, uint64_t key, int is_agreed)
{
    sherdi_procs *procs = (sherdi_procs *)world;

    if (procs->monitor != NULL) {
        sherdi_monitor_tell_ending(procs->monitor, key, is_agreed);
    }
}

/* The roster wants a thread that lives as long as the world. */
static void procs_woke(sherd_world *world)
{
    sherdi_procs  *procs  = (sherdi_procs *)world;
    sherdi_roster *roster = atomic_load(&procs->roster);

    if (roster != NULL && !atomic_load(&procs->is_entered)) {
        sherdi_roster_enter(roster, world->local_rank);
        atomic_store(&procs->is_entered, 1);
    }
}

static void procs_ending(sherd_world *world)
{
    sherdi_procs *procs = (sherdi_procs *)world;

    if (atomic_load(&procs->is_entered)) {
        sherdi_roster_leave(atomic_load(&procs->roster), world->local_rank);
    }
}

/* ------------------------------------------------------- opening, closing -- */

/* Returns the mover of this build; NULL: it has none. */
static const procs_mover *mover_find(void)
{
    const sherdi_transport *transport = sherdi_transport_holding(SHERDI_TRANSPORT_DEVICES);

    return transport == NULL ? NULL : transport->mover;
}

static sherd_status meet_all(sherdi_procs *procs, const procs_params *params)
{
    const procs_mover   *mover = mover_find();
    rendezvous_card      card;
    const char          *backend;
    const monitor_params watch = {.world   = &procs->world,
                                  .meeting = &procs->meeting,
                                  .failed  = procs_failed,
                                  .left    = procs_left,
                                  .woke    = procs_woke,
                                  .ending  = procs_ending};

    sherdi_rendezvous_card_fill(&card, params->rank, params->world_size, params->world,
                                params->mover_use == PROCS_MOVER_ALWAYS ? mover->ops->name
                                : params->mover_use == PROCS_MOVER_IF_POSSIBLE
                                    ? "auto"
                                    : procs->world.ops->name);
    SHERDI_TRY(sherdi_world_backend_kind(params->world, &backend));
    (void)snprintf(card.backend, sizeof(card.backend), "%s", backend);
    if (mover != NULL) {
        mover->card_fill(&card, backend);
    }
    if (params->world_size > 1) {
        sherd_status status = sherdi_net_listen(card.channel, &procs->channel_desk, NULL);

        if (status != SHERD_OK) {
            int listener = params->listener;

            sherdi_net_close(&listener);
            return status;
        }
    }
    SHERDI_TRY(sherdi_rendezvous_meet(&procs->meeting, &procs->world.mem,
                                      &(rendezvous_params){.card     = &card,
                                                           .address  = params->address,
                                                           .listener = params->listener,
                                                           .key      = params->key,
                                                           .limit_ns = params->limit_ns,
                                                           .world    = &procs->world}));
    if (params->world_size > 1) {
        SHERDI_TRY(sherdi_monitor_start(&watch, &procs->monitor));
    }
    return SHERD_OK;
}

static size_t shared_bytes(const sherdi_procs *procs)
{
    return sherdi_peers_shared_bytes(procs->world.local_size) +
           sherdi_roster_bytes(procs->world.local_size);
}

/* Puts this rank into the roster; the monitor's thread does so at once. */
static void roster_open(sherdi_procs *procs, sherdi_roster *roster)
{
    if (procs->monitor == NULL) {
        return;
    }
    atomic_store(&procs->roster, roster);
    sherdi_monitor_wake(procs->monitor);
    while (!atomic_load(&procs->is_entered)) {
        (void)sched_yield();
    }
}

static sherd_status host_share(sherdi_procs *procs)
{
    size_t         len_bytes = shared_bytes(procs);
    unsigned char *shared    = NULL;
    sherdi_roster *roster;

    SHERDI_TRY(channels_open(procs));
    if (procs->world.local_rank == 0) {
        SHERDI_TRY(segment_create(len_bytes, &procs->pending));
    }
    SHERDI_TRY(pending_take(procs, len_bytes, &shared));
    procs->shared = shared;
    roster        = (void *)(shared + sherdi_peers_shared_bytes(procs->world.local_size));
    if (procs->world.local_rank == 0) {
        sherdi_roster_init(roster); /* the others look at it after the world is open */
    }
    roster_open(procs, roster);
    SHERDI_TRY(sherdi_peers_init(&procs->peers, &procs->world, &PROCS_HOOKS,
                                 procs->world.local_size, procs->world.local_rank,
                                 procs->host_ranks, shared));
    procs->world.held.overhead_bytes = len_bytes / (size_t)procs->world.local_size;
    atomic_store(&procs->opened, 1);
    return SHERD_OK;
}

procs_mover_use sherdi_procs_mover_use(const sherd_world_params *params)
{
    const char *backend;

    if (params->transport != NULL) {
        return sherdi_world_wants_device(params->transport) ? PROCS_MOVER_ALWAYS
                                                            : PROCS_MOVER_NEVER;
    }
    return mover_find() != NULL && sherdi_world_backend_kind(params, &backend) == SHERD_OK &&
                   strcmp(backend, "cpu") != 0
               ? PROCS_MOVER_IF_POSSIBLE
               : PROCS_MOVER_NEVER;
}

/* Sets *out to the mover; NULL: the ranks do not use it. */
static sherd_status mover_choose(const sherdi_procs *procs, const procs_params *params,
                                 const procs_mover **out)
{
    const procs_mover *mover = mover_find();
    char               why[256];

    *out = NULL;
    if (params->mover_use == PROCS_MOVER_NEVER) {
        return SHERD_OK;
    }
    if (params->comm != NULL || mover->is_possible(&procs->meeting, why, sizeof(why))) {
        *out = mover;
        return SHERD_OK;
    }
    if (params->mover_use == PROCS_MOVER_ALWAYS) {
        return sherdi_fail(SHERD_E_NOTSUP, "transport %s: %s", mover->ops->name, why);
    }
    if (params->rank == 0) {
        sherdi_log(SHERD_LOG_INFO, params->rank, "using transport %s, not %s: %s",
                   procs->world.ops->name, mover->ops->name, why);
    }
    return SHERD_OK;
}

sherd_status sherdi_procs_open(sherdi_procs *procs, const sherdi_world_ops *ops,
                               const procs_params *params)
{
    const procs_mover *mover;
    sherd_status       status;

    sherdi_world_init(&procs->world, ops, params->rank, params->world_size, params->world);
    procs->channel_desk  = -1;
    procs->pending       = -1;
    procs->call_limit_ns = procs->world.timeout_ns;
    if (params->limit_ns > procs->call_limit_ns) {
        procs->world.timeout_ns = params->limit_ns;
    }
    if (params->split != NULL) {
        sherdi_split_adopt(params->split, &procs->world);
    }
    if (params->begun != NULL) {
        params->begun(params->begun_ctx, &procs->world);
    }
    SHERDI_TRY(meet_all(procs, params));
    SHERDI_TRY(mover_choose(procs, params, &mover)); /* all ranks give the same answer, */
    if (params->is_one_host_only && mover == NULL) {
        SHERDI_TRY(one_host_check(procs)); /* so no rank has to be notified */
    }
    status = hosts_find(procs);
    if (mover != NULL) {
        procs->world.ops = mover->ops;
        procs->mover     = mover;
        atomic_store(&procs->opened, 1);
    } else {
        sherdi_rendezvous_close_desk(&procs->meeting);
        if (status == SHERD_OK) {
            status = host_share(procs);
        }
    }
    if (status == SHERD_OK) {
        int world_size = procs->world.world_size;

        status = sherdi_world_equip(&procs->world, params->world,
                                    sharers_before(procs, procs->world.rank),
                                    sharers_before(procs, world_size));
    }
    if (status == SHERD_OK && mover != NULL) {
        status = mover->open(procs, params->comm);
    }
    if (status != SHERD_OK) {
        /* The other ranks are waiting for this one somewhere in the same function. */
        return sherdi_world_fail(&procs->world, status, "rank %d: %s", params->rank,
                                 sherd_last_error());
    }
    return SHERD_OK;
}

sherd_status sherdi_procs_opened(sherdi_procs *procs)
{
    sherd_world *world = &procs->world;

    SHERDI_TRY(world->world_size > 1 ? world->ops->barrier(world) : SHERD_OK);
    world->timeout_ns = procs->call_limit_ns;
    return SHERD_OK;
}

void sherdi_procs_close(sherdi_procs *procs)
{
    atomic_store(&procs->is_closing, 1);
    if (procs->mover != NULL) {
        procs->mover->close(procs);
    }
    if (procs->shared != NULL) {
        size_t len_bytes = shared_bytes(procs);

        /* Leave before the monitor says goodbye: then a rank that waits here finds this rank's last
         * meeting in the control block. The monitor may still use the control block, so it is
         * unmapped last. */
        atomic_store(&procs->opened, 0);
        sherdi_peers_leave(&procs->peers);
        sherdi_monitor_stop(procs->monitor);
        sherdi_peers_fini(&procs->peers);
        (void)munmap(procs->shared, len_bytes);
    } else {
        sherdi_monitor_stop(procs->monitor);
        sherdi_peers_fini(&procs->peers);
    }
    sherdi_net_table_free(procs->channels, procs->num_channels);
    sherdi_net_close(&procs->channel_desk);
    sherdi_net_close(&procs->pending);
    sherdi_free(procs->host_ranks);
    sherdi_rendezvous_fini(&procs->meeting);
    sherdi_world_fini(&procs->world);
}
