/* Ranks with a GPU each: device memory goes over NCCL, control data over the sockets of star.c. */
#include "collectives/nccl_impl.h"

#include "base/clock.h"
#include "base/log.h"
#include "collectives/transport.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The watch looks so often. */
#define WATCH_MS 50
/* An error of NCCL's may have a dead rank behind it; the monitor says so within this. */
#define NEWS_NS INT64_C(2000000000)
/* What a rank that has left did before may still be on its way. */
#define LEFT_GRACE_NS INT64_C(2000000000)
/* The end of a communicator that nothing is wrong with. */
#define FINALIZE_NS INT64_C(5000000000)

const char *sherdi_nccl_result_text(struct sherdi_nccl *nccl, ncclResult_t result)
{
    const char *last = sherdi_nccl_api.GetLastError(nccl->comm);

    return last != NULL && last[0] != '\0' ? last : sherdi_nccl_api.GetErrorString(result);
}

/* An error of NCCL's, told when it is known whether a dead rank is behind it. Not under the lock. */
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

/* Takes a turn at waiting for NCCL without the lock; fails with the world, or past the deadline. */
static sherd_status turn_wait(struct sherdi_nccl *nccl, int turn, int64_t deadline_ns,
                              const char *what)
{
    sherd_world *world = &nccl->procs->world;
    sherd_status status;

    (void)pthread_mutex_unlock(&nccl->lock);
    sherdi_nap(turn);
    status = sherdi_world_status(world);
    if (status == SHERD_OK && sherdi_now_ns() >= deadline_ns) {
        status = sherdi_world_fail_late(world, "%s: not all ranks have come to it", what);
    }
    (void)pthread_mutex_lock(&nccl->lock);
    return status;
}

sherd_status sherdi_nccl_settle(struct sherdi_nccl *nccl, ncclResult_t result, const char *what)
{
    int64_t deadline_ns = sherdi_now_ns() + nccl->procs->world.timeout_ns;
    char    text[SHERDI_ERROR_BYTES / 2];

    for (int turn = 0; result == ncclInProgress; turn++) {
        SHERDI_TRY(turn_wait(nccl, turn, deadline_ns, what));
        if (nccl->comm == NULL) {
            return sherdi_world_status(&nccl->procs->world);
        }
        if (sherdi_nccl_api.CommGetAsyncError(nccl->comm, &result) != ncclSuccess) {
            result = ncclInternalError;
        }
    }
    if (result == ncclSuccess) {
        return SHERD_OK;
    }
    (void)snprintf(text, sizeof(text), "%s: %s", what, sherdi_nccl_result_text(nccl, result));
    (void)pthread_mutex_unlock(&nccl->lock);
    (void)nccl_fail(nccl, text);
    (void)pthread_mutex_lock(&nccl->lock);
    return sherdi_world_status(&nccl->procs->world);
}

/* ----------------------------------------------------------------- the watch -- */

/* Under the lock. What still runs on the device ends by it. */
static void comm_abort(struct sherdi_nccl *nccl)
{
    ncclComm_t comm = nccl->comm;

    if (comm == NULL || nccl->is_foreign) {
        return;
    }
    nccl->comm = NULL; /* and with it go the registrations */
    (void)sherdi_nccl_api.CommAbort(comm);
}

/* An error that NCCL met by itself; 1 with its text. Under the lock. */
static int async_error(struct sherdi_nccl *nccl, char *text, size_t text_bytes)
{
    ncclResult_t result = ncclSuccess;

    if (nccl->comm == NULL ||
        sherdi_nccl_api.CommGetAsyncError(nccl->comm, &result) != ncclSuccess ||
        result == ncclSuccess || result == ncclInProgress) {
        return 0;
    }
    (void)snprintf(text, text_bytes, "%s", sherdi_nccl_result_text(nccl, result));
    return 1;
}

/* The first ticket after `passed` that the lane has not passed yet; `queued` + 1: none. */
static sherdi_ticket oldest_pending(sherd_world *world, sherdi_ticket passed, sherdi_ticket queued)
{
    if (queued > WORLD_EVENTS && passed < queued - WORLD_EVENTS) {
        passed = queued - WORLD_EVENTS; /* older ones have lost their events */
    }
    while (passed < queued && sherdi_world_lane_is_done(world, passed + 1)) {
        passed++;
    }
    return passed + 1;
}

/* The lane has stood before this call since then. It will not go on when a rank has left, or when the others have
 * had the time limit to come. */
static void stuck_look(struct sherdi_nccl *nccl, sherdi_ticket ticket, int64_t since_ns)
{
    sherd_world *world   = &nccl->procs->world;
    const char  *what    = nccl->calls[(ticket - 1) % WORLD_EVENTS].what;
    int64_t      left_ns = atomic_load(&nccl->procs->first_left_ns);
    int64_t      now_ns  = sherdi_now_ns();

    if (ticket > atomic_load(&world->queue.done)) {
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

    (void)pthread_mutex_lock(&nccl->lock);
    while (!nccl->is_stopping) {
        sherdi_ticket   queued = atomic_load_explicit(&world->queue.done, memory_order_acquire);
        sherdi_ticket   oldest = oldest_pending(world, pending - 1, queued);
        int             has_error;
        struct timespec until;

        if (oldest != pending || oldest > queued) {
            pending  = oldest;
            since_ns = sherdi_now_ns();
        }
        has_error = !sherdi_world_has_failed(world) && async_error(nccl, text, sizeof(text));
        (void)pthread_mutex_unlock(&nccl->lock);
        if (has_error) {
            (void)nccl_fail(nccl, text);
        } else {
            stuck_look(nccl, pending, since_ns);
        }
        (void)pthread_mutex_lock(&nccl->lock);
        if (sherdi_world_has_failed(world)) {
            comm_abort(nccl);
        }
        (void)clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += WATCH_MS * 1000000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        (void)pthread_cond_timedwait(&nccl->has_news, &nccl->lock, &until);
    }
    (void)pthread_mutex_unlock(&nccl->lock);
    return NULL;
}

static sherd_status watch_start(struct sherdi_nccl *nccl)
{
    int error = sherdi_thread_start(&nccl->watch, watch_main, nccl);

    if (error != 0) {
        return sherdi_fail(SHERD_E_NOMEM, "no thread to watch NCCL: %s", strerror(error));
    }
    nccl->is_watched = 1;
    return SHERD_OK;
}

static void watch_stop(struct sherdi_nccl *nccl)
{
    if (!nccl->is_watched) {
        return;
    }
    (void)pthread_mutex_lock(&nccl->lock);
    nccl->is_stopping = 1;
    (void)pthread_cond_signal(&nccl->has_news);
    (void)pthread_mutex_unlock(&nccl->lock);
    (void)pthread_join(nccl->watch, NULL);
    nccl->is_watched = 0;
}

/* --------------------------------------------------------------- its calls -- */

sherd_status sherdi_nccl_call_begin(sherd_world *world, world_call_kind kind, const char *what)
{
    struct sherdi_nccl *nccl = sherdi_nccl_of(world);
    size_t slot = atomic_load_explicit(&world->queue.done, memory_order_relaxed) % WORLD_EVENTS;

    (void)pthread_mutex_lock(&nccl->lock);
    if (nccl->comm == NULL) {
        (void)pthread_mutex_unlock(&nccl->lock);
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

    (void)pthread_mutex_unlock(&nccl->lock);
    return status;
}

/* ---------------------------------------------------------- beginning and end -- */

static sherd_status nccl_create(sherdi_procs *procs)
{
    struct sherdi_nccl *nccl = calloc(1, sizeof(*nccl));
    pthread_condattr_t  clock;

    if (nccl == NULL) {
        return sherdi_fail(SHERD_E_NOMEM, "no room for the world over NCCL");
    }
    nccl->procs = procs;
    (void)pthread_mutex_init(&nccl->lock, NULL);
    (void)pthread_condattr_init(&clock);
    (void)pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&nccl->has_news, &clock);
    (void)pthread_condattr_destroy(&clock);
    procs->nccl                   = nccl;
    procs->world.device.is_direct = 1;
    return SHERD_OK;
}

/* How rank 0 fared with the id, and the id. */
typedef struct id_message {
    int32_t      status;
    ncclUniqueId id;
    char         text[256];
} id_message;

static sherd_status id_share(struct sherdi_nccl *nccl, ncclUniqueId *out)
{
    sherd_world *world = &nccl->procs->world;
    id_message   message;

    memset(&message, 0, sizeof(message));
    if (world->rank == 0) {
        ncclResult_t result = sherdi_nccl_api.GetUniqueId(&message.id);

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
    *out = message.id;
    return SHERD_OK;
}

/* NCCL takes the device that is the thread's. */
static sherd_status comm_init(struct sherdi_nccl *nccl, const ncclUniqueId *id)
{
    sherd_world *world  = &nccl->procs->world;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    int          before = -1;
    ncclResult_t result;
    sherd_status status;
    char         what[96];

    config.blocking = 0;
    (void)snprintf(what, sizeof(what), "the NCCL communicator of %d ranks", world->world_size);
    (void)cudaGetDevice(&before);
    if (cudaSetDevice(world->device.index) != cudaSuccess) {
        return sherdi_fail(SHERD_E_DEVICE, "rank %d cannot use device %d", world->rank,
                           world->device.index);
    }
    (void)pthread_mutex_lock(&nccl->lock);
    result = sherdi_nccl_api.CommInitRankConfig(&nccl->comm, world->world_size, *id, world->rank,
                                                &config);
    status = sherdi_nccl_settle(nccl, result, what);
    (void)pthread_mutex_unlock(&nccl->lock);
    if (before >= 0) {
        (void)cudaSetDevice(before);
    }
    return status;
}

/* Ends what the trainer has not made. Waits a little for what is under way; whatever does not end then is
 * ended. */
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
    ncclUniqueId id;

    if (procs->world.world_size == 1) {
        sherdi_rendezvous_close_desk(&procs->meeting);
        return SHERD_OK;
    }
    SHERDI_TRY(nccl_create(procs));
    SHERDI_TRY(sherdi_star_open(&procs->nccl->star, procs));
    if (comm != NULL) {
        procs->nccl->comm       = comm;
        procs->nccl->is_foreign = 1;
    } else {
        SHERDI_TRY(id_share(procs->nccl, &id));
        SHERDI_TRY(comm_init(procs->nccl, &id));
    }
    return watch_start(procs->nccl);
}

void sherdi_nccl_close(sherdi_procs *procs)
{
    struct sherdi_nccl *nccl   = procs->nccl;
    sherd_world        *world  = &procs->world;
    world_device       *device = &world->device;

    /* The watch ends this, too, if a rank will not come. */
    (void)sherdi_world_lane_wait(world, atomic_load(&world->queue.done));
    watch_stop(nccl);
    for (size_t i = 0; i < device->block_capacity && !sherdi_world_has_failed(world); i++) {
        sherdi_nccl_deregister(world, device->blocks[i].handle);
        device->blocks[i].handle = NULL;
    }
    comm_end(nccl);
    sherdi_star_close(&nccl->star);
    (void)pthread_cond_destroy(&nccl->has_news);
    (void)pthread_mutex_destroy(&nccl->lock);
    free(nccl);
    procs->nccl = NULL;
}

/* --------------------------------------------------------- calls on the lane -- */

static cudaStream_t stream_of(const sherd_world *world)
{
    return (cudaStream_t)world->backend->device->lane_stream(world->backend);
}

static sherd_status device_all_gather(sherd_world *world, const sherdi_all_gather_args *args)
{
    ncclResult_t result;

    if (args->slice_bytes == 0) {
        return SHERD_OK;
    }
    SHERDI_TRY(sherdi_nccl_call_begin(world, CALL_ALL_GATHER, args->what));
    result = sherdi_nccl_api.AllGather(args->send, args->recv, args->slice_bytes, ncclUint8,
                                       sherdi_nccl_of(world)->comm, stream_of(world));
    return sherdi_nccl_call_end(world, result, CALL_ALL_GATHER);
}

static int is_going(ncclResult_t result)
{
    return result == ncclSuccess || result == ncclInProgress;
}

/* Slices of `send` to the others, theirs to `recv`; the own one stays. Under the lock. */
static ncclResult_t slices_swap(sherd_world *world, const unsigned char *send, unsigned char *recv,
                                size_t slice_bytes, int is_packed)
{
    ncclComm_t   comm   = sherdi_nccl_of(world)->comm;
    cudaStream_t stream = stream_of(world);
    ncclResult_t result = sherdi_nccl_api.GroupStart();
    ncclResult_t ended;

    for (int r = 0; r < world->world_size && is_going(result); r++) {
        /* Packed, the own slice has no place. */
        size_t slot = (size_t)(is_packed && r > world->rank ? r - 1 : r);

        if (r == world->rank) {
            continue;
        }
        result = sherdi_nccl_api.Send(send + (size_t)r * slice_bytes, slice_bytes, ncclUint8, r,
                                      comm, stream);
        if (is_going(result)) {
            result = sherdi_nccl_api.Recv(recv + slot * slice_bytes, slice_bytes, ncclUint8, r,
                                          comm, stream);
        }
    }
    ended = sherdi_nccl_api.GroupEnd();
    return is_going(result) ? ended : result;
}

static sherd_status nccl_all_to_all(sherd_world *world, const sherdi_all_to_all_args *args)
{
    const sherdi_backend *lane = world->backend;
    size_t                mine = (size_t)world->rank * args->slice_bytes;
    ncclResult_t          result;

    if (args->flags & SHERDI_COLL_HOST) {
        return sherdi_fail(SHERD_E_NOTSUP, "an all-to-all of host memory over NCCL");
    }
    if (args->slice_bytes == 0) {
        return SHERD_OK;
    }
    SHERDI_TRY(sherdi_nccl_call_begin(world, CALL_ALL_TO_ALL, NULL));
    result = slices_swap(world, args->send, args->recv, args->slice_bytes, 0);
    SHERDI_TRY(sherdi_nccl_call_end(world, result, CALL_ALL_TO_ALL));
    lane->kernels->copy(lane, (unsigned char *)args->recv + mine,
                        (const unsigned char *)args->send + mine, args->slice_bytes);
    return SHERD_OK;
}

static size_t nccl_reserve_bytes(const sherd_world *world, size_t whole_bytes)
{
    return whole_bytes - whole_bytes / (size_t)world->world_size;
}

static sherd_status reserve_check(const sherd_world *world, world_call_kind kind,
                                  size_t whole_bytes, const char *what)
{
    size_t needed = nccl_reserve_bytes(world, whole_bytes);

    if (needed > world->device.receive_bytes) {
        return sherdi_fail(SHERD_E_NOMEM,
                           "%s of %zu bytes%s%s over NCCL needs %zu bytes to receive in, and %zu "
                           "are reserved (sherdi_world_reserve)",
                           sherdi_world_call_name(kind), whole_bytes, what == NULL ? "" : " of ",
                           what == NULL ? "" : what, needed, world->device.receive_bytes);
    }
    return SHERD_OK;
}

/* The sum of this rank's slice into `recv`, in the order of ranks. */
static sherd_status sum_own_slice(sherd_world *world, world_call_kind kind,
                                  const sherdi_reduction_args *args, void *recv)
{
    size_t               slice_bytes = args->slice_elems * sherd_dtype_bytes(args->send_dtype);
    const unsigned char *send        = args->send;
    const unsigned char *receive     = world->device.receive;
    const void         **srcs        = (const void **)(void *)world->sum_scratch;
    ncclResult_t         result;

    SHERDI_TRY(reserve_check(world, kind, slice_bytes * (size_t)world->world_size, args->what));
    SHERDI_TRY(sherdi_nccl_call_begin(world, kind, args->what));
    result = slices_swap(world, send, world->device.receive, slice_bytes, 1);
    SHERDI_TRY(sherdi_nccl_call_end(world, result, kind));
    for (int r = 0; r < world->world_size; r++) {
        srcs[r] = r == world->rank ? send + (size_t)r * slice_bytes
                                   : receive + (size_t)(r > world->rank ? r - 1 : r) * slice_bytes;
    }
    sherdi_world_reduce_local(world->backend, args, srcs, world->world_size, recv,
                              args->slice_elems, NULL, 0);
    return SHERD_OK;
}

static ncclDataType_t type_of(sherd_dtype dtype)
{
    return dtype == SHERD_F32 ? ncclFloat32 : dtype == SHERD_BF16 ? ncclBfloat16 : ncclFloat16;
}

/* NCCL's own sum, where the caller has asked for it; the scale comes after, by a kernel. */
static sherd_status vendor_sum(sherd_world *world, world_call_kind kind,
                               const sherdi_reduction_args *args)
{
    int    is_whole = kind == CALL_ALL_REDUCE;
    int    is_plain = args->recv_dtype == args->send_dtype && !args->accumulate;
    size_t count    = is_whole ? args->slice_elems * (size_t)world->world_size : args->slice_elems;
    ncclDataType_t type = type_of(args->send_dtype);
    void          *sums = args->recv;
    const void    *srcs[1];
    ncclResult_t   result;

    if (!is_plain) {
        size_t whole = count * sherd_dtype_bytes(args->send_dtype) * (size_t)world->world_size;

        SHERDI_TRY(reserve_check(world, kind, whole, args->what));
        sums = world->device.receive;
    }
    SHERDI_TRY(sherdi_nccl_call_begin(world, kind, args->what));
    result = is_whole
                 ? sherdi_nccl_api.AllReduce(args->send, sums, count, type, ncclSum,
                                             sherdi_nccl_of(world)->comm, stream_of(world))
                 : sherdi_nccl_api.ReduceScatter(args->send, sums, count, type, ncclSum,
                                                 sherdi_nccl_of(world)->comm, stream_of(world));
    SHERDI_TRY(sherdi_nccl_call_end(world, result, kind));
    srcs[0] = sums;
    sherdi_world_reduce_local(world->backend, args, srcs, 1, args->recv, count, NULL, 0);
    return SHERD_OK;
}

static sherd_status nccl_reduce_scatter(sherd_world *world, const sherdi_reduction_args *args)
{
    if (args->slice_elems == 0) {
        return SHERD_OK;
    }
    if (args->flags & SHERDI_COLL_VENDOR_SUM) {
        return vendor_sum(world, CALL_REDUCE_SCATTER, args);
    }
    return sum_own_slice(world, CALL_REDUCE_SCATTER, args, args->recv);
}

static sherd_status nccl_all_reduce(sherd_world *world, const sherdi_reduction_args *args)
{
    size_t                 slice_bytes = args->slice_elems * sherd_dtype_bytes(args->send_dtype);
    unsigned char         *own    = (unsigned char *)args->recv + (size_t)world->rank * slice_bytes;
    sherdi_all_gather_args gather = {
        .send = own, .recv = args->recv, .slice_bytes = slice_bytes, .what = args->what};

    if (args->slice_elems == 0) {
        return SHERD_OK;
    }
    if (args->flags & SHERDI_COLL_VENDOR_SUM) {
        return vendor_sum(world, CALL_ALL_REDUCE, args);
    }
    SHERDI_TRY(sum_own_slice(world, CALL_ALL_REDUCE, args, own));
    return device_all_gather(world, &gather);
}

/* ------------------------------------------------------------------- memory -- */

static int registers(const struct sherdi_nccl *nccl)
{
    const char *wanted = getenv("SHERD_NCCL_REGISTER");

    return !nccl->is_foreign && sherdi_nccl_api.CommRegister != NULL &&
           sherdi_nccl_api.CommDeregister != NULL && (wanted == NULL || strcmp(wanted, "0") != 0);
}

/* NCCL moves registered memory without copies of its own; where it will not have it, it copies. */
static void *nccl_memory_enter(sherd_world *world, void *memory, size_t len_bytes)
{
    struct sherdi_nccl *nccl   = sherdi_nccl_of(world);
    void               *handle = NULL;
    ncclResult_t        result;

    if (!registers(nccl)) {
        return NULL;
    }
    (void)pthread_mutex_lock(&nccl->lock);
    if (nccl->comm != NULL) {
        result = sherdi_nccl_api.CommRegister(nccl->comm, memory, len_bytes, &handle);
        if (!is_going(result)) {
            sherdi_log(SHERD_LOG_DEBUG, world->rank, "NCCL does not register %zu bytes: %s",
                       len_bytes, sherdi_nccl_result_text(nccl, result));
            handle = NULL;
        } else if (sherdi_nccl_settle(nccl, result, "the registration of memory") != SHERD_OK) {
            handle = NULL;
        }
    }
    (void)pthread_mutex_unlock(&nccl->lock);
    return handle;
}

void sherdi_nccl_deregister(sherd_world *world, void *handle)
{
    struct sherdi_nccl *nccl = sherdi_nccl_of(world);

    if (nccl == NULL || handle == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&nccl->lock);
    if (nccl->comm != NULL) {
        (void)sherdi_nccl_settle(nccl, sherdi_nccl_api.CommDeregister(nccl->comm, handle),
                                 "the release of memory");
    }
    (void)pthread_mutex_unlock(&nccl->lock);
}

/* ------------------------------------------------------- control over sockets -- */

static sherd_status nccl_barrier(sherd_world *world)
{
    return sherdi_star_barrier(&sherdi_nccl_of(world)->star);
}

static sherd_status nccl_all_gather(sherd_world *world, const sherdi_all_gather_args *args)
{
    return args->flags & SHERDI_COLL_HOST
               ? sherdi_star_all_gather(&sherdi_nccl_of(world)->star, args)
               : device_all_gather(world, args);
}

static sherd_status nccl_broadcast(sherd_world *world, void *data, size_t len_bytes, int root)
{
    return sherdi_star_broadcast(&sherdi_nccl_of(world)->star, data, len_bytes, root);
}

static sherd_status nccl_sum_u64(sherd_world *world, uint64_t *values, size_t count)
{
    return sherdi_star_sum_u64(&sherdi_nccl_of(world)->star, values, count);
}

static void nccl_close(sherd_world *world)
{
    sherdi_procs *procs = (sherdi_procs *)world;

    sherdi_procs_close(procs);
    free(procs);
}

const sherdi_world_ops sherdi_nccl_ops = {
    .struct_size    = sizeof(sherdi_nccl_ops),
    .name           = "nccl",
    .caps           = SHERDI_WORLD_ON_LANE | SHERDI_WORLD_VENDOR_SUMS,
    .close          = nccl_close,
    .barrier        = nccl_barrier,
    .all_gather     = nccl_all_gather,
    .reduce_scatter = nccl_reduce_scatter,
    .all_reduce     = nccl_all_reduce,
    .all_to_all     = nccl_all_to_all,
    .broadcast      = nccl_broadcast,
    .abort          = sherdi_procs_abort,
    .tell_ending    = sherdi_procs_tell_ending,
    .sum_u64        = nccl_sum_u64,
    .reserve_bytes  = nccl_reserve_bytes,
    .memory_enter   = nccl_memory_enter,
    .memory_leave   = sherdi_nccl_deregister,
};

const sherdi_transport sherdi_transport_nccl = {
    .name  = "nccl",
    .holds = SHERDI_TRANSPORT_PROCESSES | SHERDI_TRANSPORT_HOSTS | SHERDI_TRANSPORT_MPI |
             SHERDI_TRANSPORT_DEVICES,
    .is_built = 1,
    .create   = sherdi_world_shm_create, /* the ranks meet as those do, then the table is another */
};
