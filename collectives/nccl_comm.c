/* The communicator of a world over NCCL: how it is created, how calls on it are made, who watches
 * them, and how it ends.
 *
 * NCCL does not report in time that a rank has died, and its kernels then never end. So a thread
 * per world watches for three things: a failure of the world (which the monitor reports), NCCL's
 * asynchronous errors, and calls that make no progress for the time limit. It then aborts the
 * communicator, which ends the kernels, and so ends every wait for the lane. The communicator is
 * non-blocking: calls into NCCL return at once, and this file asks NCCL until they are done. */
#include "collectives/nccl_impl.h"
#include "collectives/remote.h"
#include "collectives/tickets.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Interval of the watch. */
#define WATCH_MS 50
/* A dead rank may be the cause of an NCCL error; the monitor reports it within this time. */
#define NEWS_NS INT64_C(2000000000)
/* The last work of a rank that has disconnected may still be in transit for this time. */
#define LEFT_GRACE_NS INT64_C(2000000000)
/* Most time for the end of a communicator that is in order. */
#define FINALIZE_NS INT64_C(5000000000)
/* How long a failure waits for a thread that uses the communicator. */
#define USERS_S 1

const char *sherdi_nccl_result_text(struct sherdi_nccl *nccl, ncclResult_t result)
{
    const char *last = sherdi_nccl_api.GetLastError(nccl->comm);

    return last != NULL && last[0] != '\0' ? last : sherdi_nccl_api.GetErrorString(result);
}

/* Reports an error of NCCL, after waiting for news that a dead rank is the cause. Do not call it
 * under the lock. */
static sherd_status nccl_fail(struct sherdi_nccl *nccl, const char *text)
{
    sherd_world *world    = &nccl->procs->world;
    int64_t      until_ns = sherdi_now_ns() + NEWS_NS;

    while (nccl->procs->monitor != NULL && !sherdi_world_has_failed(world) &&
           sherdi_now_ns() < until_ns) {
        (void)poll(NULL, 0, 5);
    }
    SHERDI_TRY(sherdi_world_status(world));
    return sherdi_world_fail(world, SHERD_E_DEVICE, "rank %d: NCCL says: %s", world->rank, text);
}

static void comm_lock(struct sherdi_nccl *nccl)
{
    (void)pthread_mutex_lock(&nccl->users->lock);
}

void sherdi_nccl_leave(struct sherdi_nccl *nccl)
{
    (void)pthread_mutex_unlock(&nccl->users->lock);
}

/* The communicator of a failed world may end at any time. Call it under the lock. */
static int is_usable(struct sherdi_nccl *nccl)
{
    return nccl->comm != NULL && !sherdi_world_has_failed(&nccl->procs->world);
}

int sherdi_nccl_enter(struct sherdi_nccl *nccl)
{
    comm_lock(nccl);
    if (!is_usable(nccl)) {
        sherdi_nccl_leave(nccl);
        return 0;
    }
    return 1;
}

/* Waits one turn for NCCL, with the lock released. Fails with the world, or after the deadline. */
static sherd_status turn_wait(struct sherdi_nccl *nccl, int turn, int64_t deadline_ns,
                              const char *what)
{
    sherd_world *world = &nccl->procs->world;
    sherd_status status;

    sherdi_nccl_leave(nccl);
    sherdi_nap(turn);
    status = sherdi_world_status(world);
    if (status == SHERD_OK && sherdi_now_ns() >= deadline_ns) {
        status = sherdi_world_fail_late(world, "%s: not all ranks have come to it", what);
    }
    comm_lock(nccl);
    return status;
}

sherd_status sherdi_nccl_settle(struct sherdi_nccl *nccl, ncclResult_t result, const char *what)
{
    int64_t      deadline_ns = sherdi_now_ns() + nccl->procs->world.timeout_ns;
    sherd_status status;
    char         text[SHERDI_ERROR_BYTES / 2];

    for (int turn = 0; result == ncclInProgress; turn++) {
        SHERDI_TRY(turn_wait(nccl, turn, deadline_ns, what));
        if (is_usable(nccl) &&
            sherdi_nccl_api.CommGetAsyncError(nccl->comm, &result) != ncclSuccess) {
            result = ncclInternalError;
        }
    }
    if (result == ncclSuccess) {
        return SHERD_OK;
    }
    (void)snprintf(text, sizeof(text), "%s: %s", what, sherdi_nccl_result_text(nccl, result));
    sherdi_nccl_leave(nccl);
    status = nccl_fail(nccl, text);
    comm_lock(nccl);
    return status;
}

/* ----------------------------------------------------------------- the watch -- */

/* Ends a communicator, and its work in progress on the device. A communicator of the trainer's own
 * only the trainer can end. Call it under the lock. */
static void comm_abort(struct sherdi_nccl *nccl)
{
    ncclComm_t comm = nccl->comm;

    if (comm == NULL) {
        return;
    }
    if (nccl->is_foreign) {
        if (!nccl->is_abort_asked) {
            nccl->is_abort_asked = 1;
            sherdi_log(
                SHERD_LOG_WARN, nccl->procs->world.rank,
                "the world has failed, and its communicator is the program's: call ncclCommAbort "
                "before the engine and the world are destroyed, which wait for the device");
        }
        return;
    }
    nccl->comm = NULL; /* ends the registrations too */
    (void)sherdi_nccl_api.CommAbort(comm);
}

/* Returns 1, with the text, for an error that NCCL met by itself. Call it under the lock. */
static int async_error(struct sherdi_nccl *nccl, char *text, size_t text_bytes)
{
    ncclResult_t result = ncclSuccess;

    if (!is_usable(nccl) || sherdi_nccl_api.CommGetAsyncError(nccl->comm, &result) != ncclSuccess ||
        result == ncclSuccess || result == ncclInProgress) {
        return 0;
    }
    (void)snprintf(text, text_bytes, "%s", sherdi_nccl_result_text(nccl, result));
    return 1;
}

/* Returns the first ticket after `passed` that the lane has not passed yet; `queued` + 1: there is
 * none. */
static sherdi_ticket oldest_pending(sherd_world *world, sherdi_ticket passed, sherdi_ticket queued)
{
    if (queued > WORLD_EVENTS && passed < queued - WORLD_EVENTS) {
        passed = queued - WORLD_EVENTS; /* older tickets have no events any more */
    }
    while (passed < queued && sherdi_tickets_of(world)->lane->is_done(world, passed + 1)) {
        passed++;
    }
    return passed + 1;
}

/* The lane has been waiting at this call since `since_ns`. Fails the world if a rank has
 * disconnected, or if the other ranks have not arrived within the time limit, because the lane will
 * then make no progress. */
static void stuck_look(struct sherdi_nccl *nccl, sherdi_ticket ticket, int64_t since_ns)
{
    sherd_world *world   = &nccl->procs->world;
    const char  *what    = nccl->calls[(ticket - 1) % WORLD_EVENTS].what;
    int64_t      left_ns = atomic_load(&nccl->procs->first_left_ns);
    int64_t      now_ns  = sherdi_now_ns();

    if (ticket > atomic_load(&sherdi_tickets_of(world)->done)) {
        return;
    }
    if (left_ns != 0 && now_ns - (left_ns > since_ns ? left_ns : since_ns) > LEFT_GRACE_NS) {
        (void)sherdi_world_fail_left(world, atomic_load(&nccl->procs->first_left));
    }
    if (now_ns - since_ns <= world->timeout_ns) {
        return;
    }
    (void)sherdi_world_fail_late(
        world, "the device to do %s%s%s (call %llu): not all ranks have come to it",
        sherdi_world_call_name(nccl->calls[(ticket - 1) % WORLD_EVENTS].kind),
        what[0] == '\0' ? "" : " of ", what, (unsigned long long)ticket);
}

static void *watch_main(void *raw)
{
    struct sherdi_nccl *nccl     = raw;
    sherd_world        *world    = &nccl->procs->world;
    sherdi_ticket       pending  = 1;
    int64_t             since_ns = sherdi_now_ns();
    char                text[SHERDI_ERROR_BYTES / 2];

    sherdi_tickets_of(world)->lane->thread_begin(world);
    comm_lock(nccl);
    while (!nccl->is_stopping) {
        sherdi_ticket queued =
            atomic_load_explicit(&sherdi_tickets_of(world)->done, memory_order_acquire);
        sherdi_ticket   oldest = oldest_pending(world, pending - 1, queued);
        int             has_error;
        struct timespec until;

        if (oldest != pending || oldest > queued) {
            pending  = oldest;
            since_ns = sherdi_now_ns();
        }
        has_error = async_error(nccl, text, sizeof(text));
        sherdi_nccl_leave(nccl);
        if (has_error) {
            (void)nccl_fail(nccl, text);
        } else {
            stuck_look(nccl, pending, since_ns);
        }
        comm_lock(nccl);
        if (sherdi_world_has_failed(world)) {
            comm_abort(nccl);
        }
        (void)clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += WATCH_MS * 1000000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        (void)pthread_cond_timedwait(&nccl->has_news, &nccl->users->lock, &until);
    }
    sherdi_nccl_leave(nccl);
    return NULL;
}

static sherd_status watch_start(struct sherdi_nccl *nccl)
{
    int error = sherdi_thread_start(&nccl->watch, 0, watch_main, nccl);

    if (error != 0) {
        return sherdi_fail(SHERD_E_NOMEM, "cannot start the thread that watches NCCL: %s",
                           strerror(error));
    }
    nccl->is_watched = 1;
    return SHERD_OK;
}

static void watch_stop(struct sherdi_nccl *nccl)
{
    if (!nccl->is_watched) {
        return;
    }
    comm_lock(nccl);
    nccl->is_stopping = 1;
    (void)pthread_cond_signal(&nccl->has_news);
    sherdi_nccl_leave(nccl);
    (void)pthread_join(nccl->watch, NULL);
    nccl->is_watched = 0;
}

/* --------------------------------------------------------------- its calls -- */

sherd_status sherdi_nccl_call_begin(sherd_world *world, world_call_kind kind, const char *what)
{
    struct sherdi_nccl *nccl = sherdi_nccl_of(world);
    size_t              slot =
        atomic_load_explicit(&sherdi_tickets_of(world)->done, memory_order_relaxed) % WORLD_EVENTS;

    if (!sherdi_nccl_enter(nccl)) {
        SHERDI_TRY(sherdi_world_status(world));
        return sherdi_fail(SHERD_E_STATE, "the NCCL communicator has ended");
    }
    nccl->calls[slot].kind = kind;
    (void)snprintf(nccl->calls[slot].what, sizeof(nccl->calls[slot].what), "%s",
                   what == NULL ? "" : what);
    return SHERD_OK;
}

sherd_status sherdi_nccl_call_end(sherd_world *world, ncclResult_t result, world_call_kind kind)
{
    struct sherdi_nccl *nccl   = sherdi_nccl_of(world);
    sherd_status        status = sherdi_nccl_settle(nccl, result, sherdi_world_call_name(kind));

    sherdi_nccl_leave(nccl);
    return status;
}

/* ---------------------------------------------------------- beginning and end -- */

/* A thread that then has the lock sees that the world is failing, and does not use the
 * communicator. */
static void users_failed(sherd_world *world, world_listener *self)
{
    sherdi_nccl_users *users = (sherdi_nccl_users *)self;
    struct timespec    until;

    (void)world;
    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += USERS_S;
    if (pthread_mutex_timedlock(&users->lock, &until) == 0) {
        (void)pthread_mutex_unlock(&users->lock);
    }
}

static void users_drop(world_listener *self)
{
    (void)pthread_mutex_destroy(&((sherdi_nccl_users *)self)->lock);
    free(self);
}

static sherd_status nccl_create(sherdi_procs *procs)
{
    static const world_listener_ops USERS = {.failed = users_failed, .drop = users_drop};
    struct sherdi_nccl             *nccl  = calloc(1, sizeof(*nccl));
    sherdi_nccl_users              *users = calloc(1, sizeof(*users));
    pthread_condattr_t              clock;

    if (nccl == NULL || users == NULL) {
        free(nccl);
        free(users);
        return sherdi_fail(SHERD_E_NOMEM, "no memory for the world over NCCL");
    }
    nccl->procs       = procs;
    nccl->users       = users;
    users->common.ops = &USERS;
    (void)pthread_mutex_init(&users->lock, NULL);
    sherdi_world_listen(&procs->world, &users->common);
    (void)pthread_condattr_init(&clock);
    (void)pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&nccl->has_news, &clock);
    (void)pthread_condattr_destroy(&clock);
    procs->moving                  = nccl;
    procs->world.device->is_direct = 1;
    return SHERD_OK;
}

/* The message of rank 0: its status with the id, its options, and the id. */
typedef struct id_message {
    int32_t             status;
    sherdi_nccl_options options;
    ncclUniqueId        id;
    char                text[256];
} id_message;

static sherd_status id_share(struct sherdi_nccl *nccl, ncclUniqueId *out)
{
    sherd_world *world = &nccl->procs->world;
    id_message   message;

    memset(&message, 0, sizeof(message));
    if (world->rank == 0) {
        ncclResult_t result;

        message.options = nccl->options;
        result          = sherdi_nccl_api.GetUniqueId(&message.id);

        if (result != ncclSuccess) {
            message.status = (int32_t)SHERD_E_DEVICE;
            (void)snprintf(message.text, sizeof(message.text), "%s",
                           sherdi_nccl_result_text(nccl, result));
        }
    }
    SHERDI_TRY(sherdi_star_broadcast(&nccl->star, &message, sizeof(message), 0));
    if (message.status != SHERD_OK) {
        return sherdi_fail((sherd_status)message.status, "NCCL cannot begin: %s", message.text);
    }
    if (memcmp(&message.options, &nccl->options, sizeof(message.options)) != 0) {
        return sherdi_fail(
            SHERD_E_INVAL,
            "rank %d has other SHERD_NCCL_OPTIONS than rank 0: give all ranks the same",
            world->rank);
    }
    *out = message.id;
    return SHERD_OK;
}

/* NCCL uses the thread's current device. */
static sherd_status comm_init(struct sherdi_nccl *nccl, const ncclUniqueId *id)
{
    sherd_world *world  = &nccl->procs->world;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    int          before = -1;
    ncclResult_t result;
    sherd_status status;
    char         what[96];

    config.blocking = 0;
    sherdi_nccl_options_apply(&nccl->options, &config);
    (void)snprintf(what, sizeof(what), "the NCCL communicator of %d ranks", world->world_size);
    (void)cudaGetDevice(&before);
    if (cudaSetDevice(world->device->index) != cudaSuccess) {
        return sherdi_fail(SHERD_E_DEVICE, "rank %d cannot use device %d", world->rank,
                           world->device->index);
    }
    comm_lock(nccl);
    result = sherdi_nccl_api.CommInitRankConfig(&nccl->comm, world->world_size, *id, world->rank,
                                                &config);
    status = sherdi_nccl_settle(nccl, result, what);
    sherdi_nccl_leave(nccl);
    if (before >= 0) {
        (void)cudaSetDevice(before);
    }
    return status;
}

/* Ends a communicator that is not the trainer's. Waits a little for the work in progress, and
 * aborts the unfinished work. */
static void comm_end(struct sherdi_nccl *nccl)
{
    ncclResult_t result      = ncclInProgress;
    int64_t      deadline_ns = sherdi_now_ns() + FINALIZE_NS;

    if (nccl->comm == NULL || nccl->is_foreign) {
        return;
    }
    if (!sherdi_world_has_failed(&nccl->procs->world)) {
        result = sherdi_nccl_api.CommFinalize(nccl->comm);
        while (result == ncclInProgress && sherdi_now_ns() < deadline_ns &&
               !sherdi_world_has_failed(&nccl->procs->world)) {
            (void)poll(NULL, 0, 1);
            if (sherdi_nccl_api.CommGetAsyncError(nccl->comm, &result) != ncclSuccess) {
                result = ncclInternalError;
            }
        }
    }
    if (result == ncclSuccess) {
        (void)sherdi_nccl_api.CommDestroy(nccl->comm);
    } else {
        (void)sherdi_nccl_api.CommAbort(nccl->comm);
    }
    nccl->comm = NULL;
}

sherd_status sherdi_nccl_open(sherdi_procs *procs, void *comm)
{
    struct sherdi_nccl *nccl;
    ncclUniqueId        id;

    if (procs->world.world_size == 1) {
        sherdi_rendezvous_close_desk(&procs->meeting);
        return SHERD_OK;
    }
    SHERDI_TRY(nccl_create(procs));
    nccl = procs->moving;
    SHERDI_TRY(sherdi_star_open(&nccl->star, procs));
    if (comm != NULL) { /* made by the program, with its options */
        nccl->comm       = comm;
        nccl->is_foreign = 1;
    } else {
        SHERDI_TRY(sherdi_nccl_options_read(&nccl->options));
        SHERDI_TRY(id_share(nccl, &id));
        SHERDI_TRY(comm_init(nccl, &id));
        sherdi_nccl_options_log(&nccl->options, procs->world.rank);
    }
    return watch_start(nccl);
}

void sherdi_nccl_close(sherdi_procs *procs)
{
    struct sherdi_nccl *nccl   = procs->moving;
    sherd_world        *world  = &procs->world;
    sherdi_device      *device = sherdi_device_of(world);

    if (nccl == NULL) {
        return;
    }
    /* If a rank does not come, the watch ends this wait. */
    (void)sherdi_tickets_of(world)->lane->wait(world, atomic_load(&sherdi_tickets_of(world)->done));
    watch_stop(nccl);
    for (size_t i = 0; i < device->block_capacity && !sherdi_world_has_failed(world); i++) {
        sherdi_nccl_deregister(world, device->blocks[i].handle);
        device->blocks[i].handle = NULL;
    }
    comm_end(nccl);
    sherdi_star_close(&nccl->star);
    (void)pthread_cond_destroy(&nccl->has_news);
    free(nccl);
    procs->moving = NULL;
}
