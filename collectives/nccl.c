/* Ranks with a GPU each: device memory goes over NCCL, control data over the sockets of star.c (or, over a
 * communicator of the trainer's, in small frames over that). The one file that includes nccl.h; the library
 * is opened at run time, so that one binary runs anywhere.
 *
 * Everything on device memory is queued on the world's lane and returns. NCCL's own sums have an order of their
 * own, so a reduction is an all-to-all into planned room (sherdi_world_reserve) and the sum of reduce on the
 * lane: the bits of every other transport.
 *
 * NCCL tells nobody in time that a rank died, and its kernels then never end. A thread per world watches: the
 * world's failure (which the monitor reports), NCCL's asynchronous errors, and calls that make no progress
 * for the time limit. It then aborts the communicator, which ends the kernels, and with them whoever waits
 * for the lane. The communicator is not blocking: calls into NCCL return, and are asked for until they
 * are through. */
#include "collectives/nccl.h"

#include "base/checked.h"
#include "base/clock.h"
#include "base/log.h"
#include "collectives/star.h"
#include "collectives/transport.h"

#include <nccl.h>

#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Oldest library whose communicators can be asked rather than waited for. */
#define OLDEST_VERSION 21800
/* The watch looks so often. */
#define WATCH_MS 50
/* An error of NCCL's may have a dead rank behind it; the monitor says so within this. */
#define NEWS_NS INT64_C(2000000000)
/* What a rank that has left did before may still be on its way. */
#define LEFT_GRACE_NS INT64_C(2000000000)
/* The end of a communicator that nothing is wrong with. */
#define FINALIZE_NS        INT64_C(5000000000)
#define LOOKS_BEFORE_SLEEP 200
#define SLEEP_NS           50000
/* Control data over a trainer's communicator: what a rank gives in one frame. */
#define FRAME_BYTES 2048

/* ------------------------------------------------------------- the library -- */

typedef struct nccl_api {
    int version;
    ncclResult_t (*GetVersion)(int *version);
    ncclResult_t (*GetUniqueId)(ncclUniqueId *id);
    ncclResult_t (*CommInitRankConfig)(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank,
                                       ncclConfig_t *config);
    ncclResult_t (*CommGetAsyncError)(ncclComm_t comm, ncclResult_t *error);
    ncclResult_t (*CommFinalize)(ncclComm_t comm);
    ncclResult_t (*CommDestroy)(ncclComm_t comm);
    ncclResult_t (*CommAbort)(ncclComm_t comm);
    ncclResult_t (*CommCount)(const ncclComm_t comm, int *count);
    ncclResult_t (*CommUserRank)(const ncclComm_t comm, int *rank);
    ncclResult_t (*CommCuDevice)(const ncclComm_t comm, int *device);
    const char *(*GetErrorString)(ncclResult_t result);
    const char *(*GetLastError)(ncclComm_t comm);
    ncclResult_t (*GroupStart)(void);
    ncclResult_t (*GroupEnd)(void);
    ncclResult_t (*Send)(const void *send, size_t count, ncclDataType_t type, int peer,
                         ncclComm_t comm, cudaStream_t stream);
    ncclResult_t (*Recv)(void *recv, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                         cudaStream_t stream);
    ncclResult_t (*AllGather)(const void *send, void *recv, size_t count, ncclDataType_t type,
                              ncclComm_t comm, cudaStream_t stream);
    ncclResult_t (*AllReduce)(const void *send, void *recv, size_t count, ncclDataType_t type,
                              ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);
    ncclResult_t (*ReduceScatter)(const void *send, void *recv, size_t count, ncclDataType_t type,
                                  ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);
    /* NULL in a library without them. */
    ncclResult_t (*CommRegister)(const ncclComm_t comm, void *memory, size_t len, void **handle);
    ncclResult_t (*CommDeregister)(const ncclComm_t comm, void *handle);
} nccl_api;

typedef struct nccl_symbol {
    const char *name;
    size_t      offset; /* of the pointer in nccl_api */
    int         is_optional;
} nccl_symbol;

#define SYMBOL(name)                                                                               \
    {                                                                                              \
        "nccl" #name, offsetof(nccl_api, name), 0                                                  \
    }
#define SYMBOL_OPTIONAL(name)                                                                      \
    {                                                                                              \
        "nccl" #name, offsetof(nccl_api, name), 1                                                  \
    }

static const nccl_symbol SYMBOLS[] = {
    SYMBOL(GetVersion),
    SYMBOL(GetUniqueId),
    SYMBOL(CommInitRankConfig),
    SYMBOL(CommGetAsyncError),
    SYMBOL(CommFinalize),
    SYMBOL(CommDestroy),
    SYMBOL(CommAbort),
    SYMBOL(CommCount),
    SYMBOL(CommUserRank),
    SYMBOL(CommCuDevice),
    SYMBOL(GetErrorString),
    SYMBOL(GetLastError),
    SYMBOL(GroupStart),
    SYMBOL(GroupEnd),
    SYMBOL(Send),
    SYMBOL(Recv),
    SYMBOL(AllGather),
    SYMBOL(AllReduce),
    SYMBOL(ReduceScatter),
    SYMBOL_OPTIONAL(CommRegister),
    SYMBOL_OPTIONAL(CommDeregister),
};

static pthread_mutex_t api_lock = PTHREAD_MUTEX_INITIALIZER; /* guards the loading */
static nccl_api        api; /* of the process, as the library is; constant once version is set */

static int symbols_find(void *library, nccl_api *found, char *why, size_t why_bytes)
{
    for (size_t i = 0; i < sizeof(SYMBOLS) / sizeof(SYMBOLS[0]); i++) {
        void *symbol = dlsym(library, SYMBOLS[i].name);

        if (symbol == NULL && !SYMBOLS[i].is_optional) {
            (void)snprintf(why, why_bytes, "the NCCL library has no %s", SYMBOLS[i].name);
            return 0;
        }
        memcpy((char *)found + SYMBOLS[i].offset, &symbol, sizeof(symbol));
    }
    return 1;
}

static int library_open(nccl_api *found, char *why, size_t why_bytes)
{
    const char *path = getenv("SHERD_NCCL_LIBRARY");
    void       *library;

    path    = path == NULL || path[0] == '\0' ? "libnccl.so.2" : path;
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        (void)snprintf(why, why_bytes, "%s", dlerror());
        return 0;
    }
    if (!symbols_find(library, found, why, why_bytes)) {
        return 0;
    }
    if (found->GetVersion(&found->version) != ncclSuccess || found->version < OLDEST_VERSION ||
        found->version / 10000 != NCCL_MAJOR) {
        (void)snprintf(why, why_bytes, "%s is NCCL %d.%d.%d; 2.%d or a later 2 is needed", path,
                       found->version / 10000, found->version / 100 % 100, found->version % 100,
                       OLDEST_VERSION / 100 % 100);
        return 0;
    }
    return 1;
}

int sherdi_nccl_version(char *why, size_t why_bytes)
{
    nccl_api found = {.version = 0};

    (void)pthread_mutex_lock(&api_lock);
    if (api.version == 0 && library_open(&found, why, why_bytes)) {
        api = found;
    }
    found.version = api.version;
    (void)pthread_mutex_unlock(&api_lock);
    return found.version;
}

/* ---------------------------------------------------------------- the world -- */

typedef struct nccl_registration {
    void *memory; /* NULL: free entry */
    void *handle;
} nccl_registration;

struct sherdi_nccl {
    sherdi_procs      *procs;
    pthread_mutex_t    lock; /* guards comm and every call with it; has_news */
    pthread_cond_t     has_news;
    ncclComm_t         comm;       /* NULL: not yet, or aborted */
    int                is_foreign; /* the trainer's: it goes on without us */
    int                is_stopping;
    int                is_watched;
    pthread_t          watch;
    sherdi_star        star;
    unsigned char     *frames_send; /* foreign: [frame] on the device */
    unsigned char     *frames_recv; /* [world_size * frame] on the device */
    unsigned char     *frames_host; /* [(world_size + 1) * frame] pinned */
    nccl_registration *registrations;
    size_t             registration_capacity;
    /* of ticket t at [(t - 1) % WORLD_EVENTS]: for the sentence about one that hangs */
    struct {
        world_call_kind kind;
        char            what[48];
    } calls[WORLD_EVENTS];
};

static struct sherdi_nccl *nccl_of(sherd_world *world)
{
    return ((sherdi_procs *)world)->nccl;
}

static const char *result_text(struct sherdi_nccl *nccl, ncclResult_t result)
{
    const char *last = api.GetLastError(nccl->comm);

    return last != NULL && last[0] != '\0' ? last : api.GetErrorString(result);
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
    sherd_world          *world  = &nccl->procs->world;
    const struct timespec nap    = {.tv_nsec = SLEEP_NS};
    sherd_status          status = SHERD_OK;

    (void)pthread_mutex_unlock(&nccl->lock);
    if (turn < LOOKS_BEFORE_SLEEP) {
        (void)sched_yield();
    } else {
        (void)nanosleep(&nap, NULL);
    }
    status = sherdi_world_status(world);
    if (status == SHERD_OK && sherdi_now_ns() >= deadline_ns) {
        status = sherdi_world_fail(world, SHERD_E_PEER_LOST,
                                   "rank %d waited %.1f s (the time limit) for %s: not all ranks "
                                   "have come to it",
                                   world->rank, (double)world->timeout_ns * 1e-9, what);
    }
    (void)pthread_mutex_lock(&nccl->lock);
    return status;
}

/* Under the lock: `result` of a call, once NCCL has made up its mind. */
static sherd_status settle(struct sherdi_nccl *nccl, ncclResult_t result, const char *what)
{
    int64_t deadline_ns = sherdi_now_ns() + nccl->procs->world.timeout_ns;
    char    text[SHERDI_ERROR_BYTES / 2];

    for (int turn = 0; result == ncclInProgress; turn++) {
        SHERDI_TRY(turn_wait(nccl, turn, deadline_ns, what));
        if (nccl->comm == NULL) {
            return sherdi_world_status(&nccl->procs->world);
        }
        if (api.CommGetAsyncError(nccl->comm, &result) != ncclSuccess) {
            result = ncclInternalError;
        }
    }
    if (result == ncclSuccess) {
        return SHERD_OK;
    }
    (void)snprintf(text, sizeof(text), "%s: %s", what, result_text(nccl, result));
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
    (void)api.CommAbort(comm);
}

/* An error that NCCL met by itself; 1 with its text. Under the lock. */
static int async_error(struct sherdi_nccl *nccl, char *text, size_t text_bytes)
{
    ncclResult_t result = ncclSuccess;

    if (nccl->comm == NULL || api.CommGetAsyncError(nccl->comm, &result) != ncclSuccess ||
        result == ncclSuccess || result == ncclInProgress) {
        return 0;
    }
    (void)snprintf(text, text_bytes, "%s", result_text(nccl, result));
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
        (void)sherdi_world_fail(world, SHERD_E_PEER_LOST,
                                "rank %d left the world (sherd_world_destroy) while rank %d still "
                                "waited for it",
                                atomic_load(&nccl->procs->first_left), world->rank);
    }
    if (now_ns - since_ns <= world->timeout_ns) {
        return;
    }
    (void)sherdi_world_fail(
        world, SHERD_E_PEER_LOST,
        "rank %d waited %.1f s (the time limit) for the device to do %s%s%s (call %llu): not all "
        "ranks have come to it",
        world->rank, (double)world->timeout_ns * 1e-9,
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
    sigset_t all;
    sigset_t before;
    int      error;

    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(&nccl->watch, NULL, watch_main, nccl);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
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

/* --------------------------------------------------------- calls on the lane -- */

static cudaStream_t stream_of(const sherd_world *world)
{
    return (cudaStream_t)world->backend->device->lane_stream(world->backend);
}

/* Takes the lock, and leaves it taken on success. The call is the next ticket. */
static sherd_status call_begin(sherd_world *world, world_call_kind kind, const char *what)
{
    struct sherdi_nccl *nccl = nccl_of(world);
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

static sherd_status call_end(sherd_world *world, ncclResult_t result, world_call_kind kind)
{
    struct sherdi_nccl *nccl   = nccl_of(world);
    sherd_status        status = settle(nccl, result, sherdi_world_call_name(kind));

    (void)pthread_mutex_unlock(&nccl->lock);
    return status;
}

static sherd_status device_all_gather(sherd_world *world, const sherdi_all_gather_args *args)
{
    ncclResult_t result;

    if (args->slice_bytes == 0) {
        return SHERD_OK;
    }
    SHERDI_TRY(call_begin(world, CALL_ALL_GATHER, args->what));
    result = api.AllGather(args->send, args->recv, args->slice_bytes, ncclUint8,
                           nccl_of(world)->comm, stream_of(world));
    return call_end(world, result, CALL_ALL_GATHER);
}

static int is_going(ncclResult_t result)
{
    return result == ncclSuccess || result == ncclInProgress;
}

/* Slices of `send` to the others, theirs to `recv`; the own one stays. Under the lock. */
static ncclResult_t slices_swap(sherd_world *world, const unsigned char *send, unsigned char *recv,
                                size_t slice_bytes, int is_packed)
{
    ncclComm_t   comm   = nccl_of(world)->comm;
    cudaStream_t stream = stream_of(world);
    ncclResult_t result = api.GroupStart();
    ncclResult_t ended;

    for (int r = 0; r < world->world_size && is_going(result); r++) {
        /* Packed, the own slice has no place. */
        size_t slot = (size_t)(is_packed && r > world->rank ? r - 1 : r);

        if (r == world->rank) {
            continue;
        }
        result = api.Send(send + (size_t)r * slice_bytes, slice_bytes, ncclUint8, r, comm, stream);
        if (is_going(result)) {
            result = api.Recv(recv + slot * slice_bytes, slice_bytes, ncclUint8, r, comm, stream);
        }
    }
    ended = api.GroupEnd();
    return is_going(result) ? ended : result;
}

static sherd_status device_all_to_all(sherd_world *world, const sherdi_all_to_all_args *args)
{
    const sherdi_backend *lane = world->backend;
    size_t                mine = (size_t)world->rank * args->slice_bytes;
    ncclResult_t          result;

    if (args->slice_bytes == 0) {
        return SHERD_OK;
    }
    SHERDI_TRY(call_begin(world, CALL_ALL_TO_ALL, NULL));
    result = slices_swap(world, args->send, args->recv, args->slice_bytes, 0);
    SHERDI_TRY(call_end(world, result, CALL_ALL_TO_ALL));
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
    SHERDI_TRY(call_begin(world, kind, args->what));
    result = slices_swap(world, send, world->device.receive, slice_bytes, 1);
    SHERDI_TRY(call_end(world, result, kind));
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
    SHERDI_TRY(call_begin(world, kind, args->what));
    result = is_whole ? api.AllReduce(args->send, sums, count, type, ncclSum, nccl_of(world)->comm,
                                      stream_of(world))
                      : api.ReduceScatter(args->send, sums, count, type, ncclSum,
                                          nccl_of(world)->comm, stream_of(world));
    SHERDI_TRY(call_end(world, result, kind));
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

/* Never called: world.c allocates memory of the device itself. */
static sherd_status nccl_alloc(sherd_world *world, size_t len_bytes, void **out)
{
    (void)world;
    (void)len_bytes;
    (void)out;
    return sherdi_fail(SHERD_E_STATE, "a world over NCCL has no host memory");
}

static void nccl_free(sherd_world *world, void *memory)
{
    (void)world;
    (void)memory;
}

static int registers(const struct sherdi_nccl *nccl)
{
    const char *wanted = getenv("SHERD_NCCL_REGISTER");

    return !nccl->is_foreign && api.CommRegister != NULL && api.CommDeregister != NULL &&
           (wanted == NULL || strcmp(wanted, "0") != 0);
}

/* NCCL moves registered memory without copies of its own; where it will not have it, it copies. */
static void nccl_memory_enter(sherd_world *world, void *memory, size_t len_bytes)
{
    struct sherdi_nccl *nccl  = nccl_of(world);
    size_t              entry = 0;
    ncclResult_t        result;

    if (!registers(nccl)) {
        return;
    }
    while (entry < nccl->registration_capacity && nccl->registrations[entry].memory != NULL) {
        entry++;
    }
    if (sherdi_grow(&world->mem, SHERDI_MEM_CONTROL, (void **)&nccl->registrations,
                    &nccl->registration_capacity, entry + 1,
                    sizeof(*nccl->registrations)) != SHERD_OK) {
        return;
    }
    (void)pthread_mutex_lock(&nccl->lock);
    if (nccl->comm != NULL) {
        result =
            api.CommRegister(nccl->comm, memory, len_bytes, &nccl->registrations[entry].handle);
        if (result == ncclSuccess || result == ncclInProgress) {
            if (settle(nccl, result, "the registration of memory") == SHERD_OK) {
                nccl->registrations[entry].memory = memory;
            }
        } else {
            sherdi_log(SHERD_LOG_DEBUG, world->rank, "NCCL does not register %zu bytes: %s",
                       len_bytes, result_text(nccl, result));
        }
    }
    (void)pthread_mutex_unlock(&nccl->lock);
}

static void nccl_memory_leave(sherd_world *world, void *memory)
{
    struct sherdi_nccl *nccl = nccl_of(world);

    for (size_t i = 0; nccl != NULL && i < nccl->registration_capacity; i++) {
        if (nccl->registrations[i].memory != memory) {
            continue;
        }
        (void)pthread_mutex_lock(&nccl->lock);
        if (nccl->comm != NULL) {
            (void)settle(nccl, api.CommDeregister(nccl->comm, nccl->registrations[i].handle),
                         "the release of memory");
        }
        (void)pthread_mutex_unlock(&nccl->lock);
        nccl->registrations[i].memory = NULL;
    }
}

/* ------------------------------------------------------- control over sockets -- */

static sherd_status nccl_barrier(sherd_world *world)
{
    return sherdi_star_barrier(&nccl_of(world)->star);
}

static sherd_status nccl_all_gather(sherd_world *world, const sherdi_all_gather_args *args)
{
    return args->flags & SHERDI_COLL_HOST ? sherdi_star_all_gather(&nccl_of(world)->star, args)
                                          : device_all_gather(world, args);
}

static sherd_status nccl_all_to_all(sherd_world *world, const sherdi_all_to_all_args *args)
{
    return args->flags & SHERDI_COLL_HOST ? sherdi_star_all_to_all(&nccl_of(world)->star, args)
                                          : device_all_to_all(world, args);
}

static sherd_status nccl_broadcast(sherd_world *world, void *data, size_t len_bytes, int root)
{
    return sherdi_star_broadcast(&nccl_of(world)->star, data, len_bytes, root);
}

static sherd_status nccl_sum_u64(sherd_world *world, uint64_t *values, size_t count)
{
    return sherdi_star_sum_u64(&nccl_of(world)->star, values, count);
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
    .alloc          = nccl_alloc,
    .free           = nccl_free,
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
    .memory_leave   = nccl_memory_leave,
};

/* ------------------------------------------- control over the communicator -- */

/* A frame: what a rank calls, and what it gives. All frames have one size, so that NCCL sees the same call
 * whatever the ranks do, and a disagreement is read from the frames. */
typedef struct frame_head {
    uint32_t kind;
    int32_t  root;
    uint64_t len_bytes;
} frame_head;

#define FRAME_WHOLE (sizeof(frame_head) + FRAME_BYTES)

/* Queued calls have a ticket each; those of frames wait by an event of the next one. */
static sherd_status frames_wait(sherd_world *world)
{
    sherdi_ticket ticket = atomic_load(&world->queue.done) + 1;

    sherdi_world_lane_record(world, ticket);
    return sherdi_world_lane_wait(world, ticket);
}

/* Everybody's `len_bytes` (a frame's at most) to frames_host, rank r's at FRAME_WHOLE * r. */
static sherd_status frames_swap(sherd_world *world, const frame_head *head, const void *mine,
                                size_t len_bytes)
{
    struct sherdi_nccl   *nccl = nccl_of(world);
    const sherdi_backend *lane = world->backend;
    size_t                size = (size_t)world->world_size;
    unsigned char        *own  = nccl->frames_host + size * FRAME_WHOLE;
    ncclResult_t          result;

    SHERDI_TRY(sherdi_world_status(world));
    memcpy(own, head, sizeof(*head));
    if (len_bytes > 0) {
        memcpy(own + sizeof(*head), mine, len_bytes);
    }
    lane->kernels->copy(lane, nccl->frames_send, own, FRAME_WHOLE);
    SHERDI_TRY(call_begin(world, (world_call_kind)head->kind, "control data"));
    result = api.AllGather(nccl->frames_send, nccl->frames_recv, FRAME_WHOLE, ncclUint8, nccl->comm,
                           stream_of(world));
    SHERDI_TRY(call_end(world, result, (world_call_kind)head->kind));
    lane->kernels->copy(lane, nccl->frames_host, nccl->frames_recv, size * FRAME_WHOLE);
    SHERDI_TRY(frames_wait(world));
    for (int r = 0; r < world->world_size; r++) {
        frame_head other;

        memcpy(&other, nccl->frames_host + (size_t)r * FRAME_WHOLE, sizeof(other));
        if (memcmp(&other, head, sizeof(other)) != 0) {
            return sherdi_world_fail(
                world, SHERD_E_INVAL,
                "ranks disagree: rank %d calls %s of %llu bytes, rank %d %s of %llu bytes; all "
                "ranks "
                "make the same calls in the same order",
                world->rank, sherdi_world_call_name((world_call_kind)head->kind),
                (unsigned long long)head->len_bytes, r,
                other.kind <= CALL_ALLOC ? sherdi_world_call_name((world_call_kind)other.kind)
                                         : "no call",
                (unsigned long long)other.len_bytes);
        }
    }
    return SHERD_OK;
}

static const unsigned char *frame_of(sherd_world *world, int rank)
{
    return nccl_of(world)->frames_host + (size_t)rank * FRAME_WHOLE + sizeof(frame_head);
}

static sherd_status handle_barrier(sherd_world *world)
{
    const frame_head head = {.kind = CALL_BARRIER};

    return frames_swap(world, &head, NULL, 0);
}

static sherd_status handle_all_gather(sherd_world *world, const sherdi_all_gather_args *args)
{
    const frame_head head = {.kind = CALL_ALL_GATHER, .len_bytes = args->slice_bytes};
    unsigned char   *recv = args->recv;
    size_t           at   = 0;

    if (!(args->flags & SHERDI_COLL_HOST)) {
        return device_all_gather(world, args);
    }
    do {
        size_t piece = sherdi_min_size(FRAME_BYTES, args->slice_bytes - at);

        SHERDI_TRY(frames_swap(world, &head, (const unsigned char *)args->send + at, piece));
        for (int r = 0; r < world->world_size && piece > 0; r++) {
            memcpy(recv + (size_t)r * args->slice_bytes + at, frame_of(world, r), piece);
        }
        at += piece;
    } while (at < args->slice_bytes);
    return SHERD_OK;
}

/* All see all and take theirs: small, and rare. */
static sherd_status handle_all_to_all(sherd_world *world, const sherdi_all_to_all_args *args)
{
    const frame_head head  = {.kind = CALL_ALL_TO_ALL, .len_bytes = args->slice_bytes};
    size_t           slice = args->slice_bytes;

    if (!(args->flags & SHERDI_COLL_HOST)) {
        return device_all_to_all(world, args);
    }
    for (size_t d = 0; d < (size_t)world->world_size; d++) {
        const unsigned char *send = (const unsigned char *)args->send + d * slice;

        for (size_t at = 0; at < slice; at += FRAME_BYTES) {
            size_t piece = sherdi_min_size(FRAME_BYTES, slice - at);

            SHERDI_TRY(frames_swap(world, &head, send + at, piece));
            for (size_t r = 0; r < (size_t)world->world_size && d == (size_t)world->rank; r++) {
                memcpy((unsigned char *)args->recv + r * slice + at, frame_of(world, (int)r),
                       piece);
            }
        }
    }
    return slice > 0 ? SHERD_OK : handle_barrier(world);
}

static sherd_status handle_broadcast(sherd_world *world, void *data, size_t len_bytes, int root)
{
    const frame_head head = {.kind = CALL_BROADCAST, .root = root, .len_bytes = len_bytes};
    size_t           at   = 0;

    do {
        size_t         piece = sherdi_min_size(FRAME_BYTES, len_bytes - at);
        unsigned char *here  = (unsigned char *)data + at;

        SHERDI_TRY(frames_swap(world, &head, here, world->rank == root ? piece : 0));
        if (piece > 0 && world->rank != root) {
            memcpy(here, frame_of(world, root), piece);
        }
        at += piece;
    } while (at < len_bytes);
    return SHERD_OK;
}

/* There is nobody to tell but by the device, and that is the trainer's. */
static void handle_abort(sherd_world *world, const char *why)
{
    (void)world;
    (void)why;
}

static const sherdi_world_ops HANDLE_OPS = {
    .struct_size    = sizeof(HANDLE_OPS),
    .name           = "nccl",
    .caps           = SHERDI_WORLD_ON_LANE | SHERDI_WORLD_VENDOR_SUMS,
    .close          = nccl_close,
    .alloc          = nccl_alloc,
    .free           = nccl_free,
    .barrier        = handle_barrier,
    .all_gather     = handle_all_gather,
    .reduce_scatter = nccl_reduce_scatter,
    .all_reduce     = nccl_all_reduce,
    .all_to_all     = handle_all_to_all,
    .broadcast      = handle_broadcast,
    .abort          = handle_abort,
    .reserve_bytes  = nccl_reserve_bytes,
    .memory_enter   = nccl_memory_enter,
    .memory_leave   = nccl_memory_leave,
};

/* ------------------------------------------------------------ life of a world -- */

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
        ncclResult_t result = api.GetUniqueId(&message.id);

        if (result != ncclSuccess) {
            message.status = (int32_t)SHERD_E_DEVICE;
            (void)snprintf(message.text, sizeof(message.text), "%s", result_text(nccl, result));
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
    result = api.CommInitRankConfig(&nccl->comm, world->world_size, *id, world->rank, &config);
    status = settle(nccl, result, what);
    (void)pthread_mutex_unlock(&nccl->lock);
    if (before >= 0) {
        (void)cudaSetDevice(before);
    }
    return status;
}

sherd_status sherdi_nccl_open(sherdi_procs *procs)
{
    sherd_world *world = &procs->world;
    ncclUniqueId id;

    if (world->world_size == 1) {
        sherdi_rendezvous_close_desk(&procs->meeting);
        return SHERD_OK;
    }
    SHERDI_TRY(nccl_create(procs));
    SHERDI_TRY(sherdi_star_open(&procs->nccl->star, procs));
    SHERDI_TRY(id_share(procs->nccl, &id));
    SHERDI_TRY(comm_init(procs->nccl, &id));
    return watch_start(procs->nccl);
}

/* Waits a little for what is under way; whatever does not end then is ended. */
static void comm_end(struct sherdi_nccl *nccl)
{
    ncclResult_t result      = ncclInProgress;
    int64_t      deadline_ns = sherdi_now_ns() + FINALIZE_NS;

    if (nccl->comm == NULL || nccl->is_foreign) {
        return;
    }
    if (!sherdi_world_has_failed(&nccl->procs->world)) {
        result = api.CommFinalize(nccl->comm);
        while (result == ncclInProgress && sherdi_now_ns() < deadline_ns &&
               !sherdi_world_has_failed(&nccl->procs->world)) {
            (void)poll(NULL, 0, 1);
            if (api.CommGetAsyncError(nccl->comm, &result) != ncclSuccess) {
                result = ncclInternalError;
            }
        }
    }
    if (result == ncclSuccess) {
        (void)api.CommDestroy(nccl->comm);
    } else {
        (void)api.CommAbort(nccl->comm);
    }
    nccl->comm = NULL;
}

static void device_free(sherd_world *world, void *memory)
{
    if (memory != NULL) {
        world->backend->device->free(world->backend, memory);
    }
}

void sherdi_nccl_close(sherdi_procs *procs)
{
    struct sherdi_nccl *nccl  = procs->nccl;
    sherd_world        *world = &procs->world;

    /* The watch ends this, too, if a rank will not come. */
    (void)sherdi_world_lane_wait(world, atomic_load(&world->queue.done));
    watch_stop(nccl);
    if (!sherdi_world_has_failed(world) && nccl->comm != NULL) {
        for (size_t i = 0; i < nccl->registration_capacity; i++) {
            if (nccl->registrations[i].memory != NULL) {
                nccl_memory_leave(world, nccl->registrations[i].memory);
            }
        }
    }
    comm_end(nccl);
    sherdi_star_close(&nccl->star);
    device_free(world, nccl->frames_send);
    device_free(world, nccl->frames_recv);
    device_free(world, nccl->frames_host);
    sherdi_free(nccl->registrations);
    (void)pthread_cond_destroy(&nccl->has_news);
    (void)pthread_mutex_destroy(&nccl->lock);
    free(nccl);
    procs->nccl = NULL;
}

/* --------------------------------------------- the trainer's own communicator -- */

static sherd_status frames_create(struct sherdi_nccl *nccl)
{
    sherd_world    *world = &nccl->procs->world;
    sherdi_backend *lane  = world->backend;
    size_t          all   = (size_t)world->world_size * FRAME_WHOLE;
    void           *memory;

    SHERDI_TRY(lane->device->alloc(lane, &world->mem, SHERDI_MEM_TRANSPORT, SHERDI_MEMORY_DEVICE,
                                   FRAME_WHOLE, &memory));
    nccl->frames_send = memory;
    SHERDI_TRY(lane->device->alloc(lane, &world->mem, SHERDI_MEM_TRANSPORT, SHERDI_MEMORY_DEVICE,
                                   all, &memory));
    nccl->frames_recv = memory;
    SHERDI_TRY(lane->device->alloc(lane, &world->mem, SHERDI_MEM_TRANSPORT, SHERDI_MEMORY_PINNED,
                                   all + FRAME_WHOLE, &memory));
    nccl->frames_host = memory;
    world->overhead_bytes += 2 * (all + FRAME_WHOLE);
    return SHERD_OK;
}

static sherd_status handle_open(sherdi_procs *procs, ncclComm_t comm, sherd_world_params *params)
{
    sherd_world *world = &procs->world;

    SHERDI_TRY(sherdi_world_equip(world, params, 0, 1));
    if (!sherdi_world_has_device(world)) {
        return sherdi_fail(SHERD_E_INVAL,
                           "a world from a NCCL communicator needs backend cuda, not cpu");
    }
    if (world->world_size == 1) {
        return SHERD_OK;
    }
    SHERDI_TRY(nccl_create(procs));
    procs->nccl->comm       = comm;
    procs->nccl->is_foreign = 1;
    SHERDI_TRY(frames_create(procs->nccl));
    SHERDI_TRY(watch_start(procs->nccl));
    return handle_barrier(world);
}

sherd_status sherd_world_from_nccl_handle(void *comm, const sherd_world_params *params,
                                          sherd_world **out)
{
    sherd_world_params here;
    sherdi_procs      *procs;
    sherd_status       status;
    char               text[SHERDI_ERROR_BYTES];
    int                rank   = -1;
    int                size   = 0;
    int                device = -1;

    SHERDI_TRY(sherdi_api_check_out(out, "sherd_world_from_nccl"));
    SHERDI_TRY(sherdi_world_params_read(params, &here));
    if (sherdi_nccl_version(text, sizeof(text)) == 0) {
        return sherdi_fail(SHERD_E_NOTSUP, "a world from a NCCL communicator: %s", text);
    }
    if (comm == NULL || api.CommUserRank(comm, &rank) != ncclSuccess ||
        api.CommCount(comm, &size) != ncclSuccess ||
        api.CommCuDevice(comm, &device) != ncclSuccess) {
        return sherdi_fail(SHERD_E_INVAL, "what was given is no NCCL communicator");
    }
    if (here.transport != NULL && strcmp(here.transport, HANDLE_OPS.name) != 0) {
        return sherdi_fail(SHERD_E_INVAL, "a world over NCCL cannot use transport %s",
                           here.transport);
    }
    if (here.device >= 0 && here.device != device) {
        return sherdi_fail(
            SHERD_E_INVAL,
            "the NCCL communicator is on device %d, and sherd_world_params.device is "
            "%d",
            device, here.device);
    }
    here.device  = device;
    here.backend = here.backend == NULL ? "cuda" : here.backend;
    procs        = calloc(1, sizeof(*procs));
    if (procs == NULL) {
        return sherdi_fail(SHERD_E_NOMEM, "no room for the world");
    }
    sherdi_world_init(&procs->world, &HANDLE_OPS, rank, size, &here);
    procs->channel_desk = -1;
    procs->pending      = -1;
    status              = handle_open(procs, comm, &here);
    if (status != SHERD_OK) {
        (void)snprintf(text, sizeof(text), "%s", sherd_last_error());
        nccl_close(&procs->world);
        return sherdi_fail_relay(status, text);
    }
    *out = &procs->world;
    return SHERD_OK;
}

const sherdi_transport sherdi_transport_nccl = {
    .name  = "nccl",
    .holds = SHERDI_TRANSPORT_PROCESSES | SHERDI_TRANSPORT_HOSTS | SHERDI_TRANSPORT_MPI |
             SHERDI_TRANSPORT_DEVICES,
    .is_built = 1,
    .create   = sherdi_world_shm_create, /* the ranks meet as those do, then the table is another */
};
