/* A stand-in for NCCL, for tests alone: the functions that collectives/nccl.c uses, on the emulated
 * device of emulator.h, between processes or threads of one host. A shared library for
 * SHERD_NCCL_LIBRARY; it finds the emulator in the program that loads it. Nothing of NVIDIA's is in
 * it, and it says nothing about NCCL's speed, transports or memory; what it keeps are the rules
 * that a caller can break:
 *
 *   - a call is queued on its stream and moves bytes when the stream comes to it, and not before;
 *   - a rank whose peers do not make the same call waits until they do, or until ncclCommAbort;
 *   - calls of a group move together, so a ring of sends and receives does not lock up in a group
 *     and does outside of one;
 *   - peers must agree about kind and size; if not, the communicator gets an asynchronous error;
 *   - a communicator with blocking = 0 returns ncclInProgress and is through some looks later;
 *   - sums come in an order of their own, the last rank first, as one cannot rely on NCCL's.
 *
 * SHERD_FAKE_NCCL, words separated by commas: version=N; hang=R, rank R never comes to the making
 * of the communicator; fail=R:N, the N-th device call (from 1) of rank R ends in an asynchronous
 * error; stall=R:N, that call never moves anything; refuse, memory cannot be registered; slow=MS,
 * making a communicator takes so long; look=MS, asking for its asynchronous error takes so long. To
 * end a communicator while somebody asks ends the program. */
#include "kernels/formulas.h"
#include "tests/emulator/emulator.h"

#include <nccl.h>

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#define CHANNEL_BYTES ((size_t)64 << 10)
#define LOOKS         2 /* of ncclCommGetAsyncError until a call is through */

#define BUFFER_BYTES ((size_t)1 << 16)

enum { OP_SEND_RECV = 1, OP_ALL_GATHER, OP_ALL_TO_ALL, OP_ALL_REDUCE, OP_REDUCE_SCATTER };

/* Bytes on their way from one rank to another. */
typedef struct channel {
    _Atomic uint64_t wrote, read;
    unsigned char    ring[CHANNEL_BYTES];
} channel;

typedef struct shared_part {
    atomic_int arrived;
    char       pad[60];
    channel    channels[]; /* [size * size]: from r to s at r * size + s */
} shared_part;

struct ncclComm {
    shared_part  *shared;
    size_t        shared_bytes;
    char          path[64];
    int           rank, size, device;
    int           is_blocking;
    atomic_int    owners; /* the caller, and every job that is queued */
    atomic_int    askers; /* threads in ncclCommGetAsyncError */
    atomic_int    state;  /* ncclResult_t, but for the looks */
    atomic_int    looks;
    atomic_int    is_aborted;
    char          text[256];
    pthread_t     maker;
    int           has_maker;
    int           calls;
    int           registered, windows;
    ncclWindow_t *window_out; /* where the handle of the window goes that is being registered */
    ncclWindow_t  window;
    void         *buffers[OP_REDUCE_SCATTER +
                  1]; /* as NCCL's for its peers: made at the first call of a kind */
};

static _Thread_local char last_error[256];

/* ------------------------------------------------------------------- words -- */

/* "name=value" in SHERD_FAKE_NCCL; NULL when it is not there. */
static const char *word_find(const char *name)
{
    const char *at  = getenv("SHERD_FAKE_NCCL");
    size_t      len = strlen(name);

    while (at != NULL && *at != '\0') {
        if (strncmp(at, name, len) == 0) {
            return at + len;
        }
        at += strcspn(at, ",");
        at += *at == ',';
    }
    return NULL;
}

/* Whether this is the call that "name=rank:call" means. */
static int word_is_here(const char *name, const ncclComm_t comm)
{
    const char *at = word_find(name);
    int         rank;
    int         call;

    return at != NULL && sscanf(at, "%d:%d", &rank, &call) == 2 && rank == comm->rank &&
           call == comm->calls;
}

static ncclResult_t fail(ncclResult_t result, const char *text)
{
    (void)snprintf(last_error, sizeof(last_error), "%s", text);
    return result;
}

static void comm_fail(ncclComm_t comm, ncclResult_t result, const char *text)
{
    int fine = ncclSuccess;

    if (atomic_load(&comm->state) == ncclSuccess) {
        (void)snprintf(comm->text, sizeof(comm->text), "%s", text);
    }
    (void)atomic_compare_exchange_strong(&comm->state, &fine, (int)result);
}

static void nap(void)
{
    const struct timespec time = {.tv_nsec = 50000};

    (void)nanosleep(&time, NULL);
}

/* --------------------------------------------------------------- transfers -- */

/* What goes before the bytes of a transfer. */
typedef struct transfer_head {
    uint64_t kind;
    uint64_t len_bytes;
} transfer_head;

typedef struct transfer {
    int            is_send;
    int            peer;
    unsigned char *data;
    transfer_head  head; /* to send, or to be met */
    size_t         done; /* of head and data together */
} transfer;

typedef struct job {
    ncclComm_t     comm;
    cudaStream_t   stream;
    int            kind;
    int            is_stalled;
    size_t         count;
    ncclDataType_t type;
    const void    *send;
    void          *recv;
    unsigned char *room; /* every rank's part, for sums */
    size_t         num_transfers;
    size_t         capacity;
    transfer      *transfers;
    struct job    *next;
} job;

static size_t type_bytes(ncclDataType_t type)
{
    switch (type) {
    case ncclInt8:
    case ncclUint8:
        return 1;
    case ncclFloat16:
    case ncclBfloat16:
        return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
        return 4;
    default:
        return 8;
    }
}

static void transfer_add(job *work, int is_send, int peer, const void *data, size_t len_bytes)
{
    if (work->num_transfers == work->capacity) {
        work->capacity  = work->capacity * 2 + 8;
        work->transfers = realloc(work->transfers, work->capacity * sizeof(transfer));
    }
    work->transfers[work->num_transfers++] =
        (transfer){.is_send = is_send,
                   .peer    = peer,
                   .data    = (unsigned char *)(uintptr_t)data,
                   .head    = {.kind = (uint64_t)work->kind, .len_bytes = len_bytes}};
}

static channel *channel_of(ncclComm_t comm, int from, int to)
{
    return &comm->shared->channels[(size_t)from * (size_t)comm->size + (size_t)to];
}

/* As many bytes as there are or fit now. */
static size_t channel_move(channel *line, int is_send, unsigned char *data, size_t len)
{
    uint64_t wrote = atomic_load(&line->wrote);
    uint64_t read  = atomic_load(&line->read);
    size_t   most  = is_send ? CHANNEL_BYTES - (size_t)(wrote - read) : (size_t)(wrote - read);
    size_t   moved = 0;

    len = len < most ? len : most;
    while (moved < len) {
        size_t at      = (size_t)((is_send ? wrote : read) + moved) % CHANNEL_BYTES;
        size_t portion = CHANNEL_BYTES - at < len - moved ? CHANNEL_BYTES - at : len - moved;

        if (is_send) {
            memcpy(line->ring + at, data + moved, portion);
        } else {
            memcpy(data + moved, line->ring + at, portion);
        }
        moved += portion;
    }
    if (moved > 0) {
        (void)atomic_fetch_add(is_send ? &line->wrote : &line->read, moved);
    }
    return moved;
}

/* Goes on with one transfer; how far it came. */
static size_t transfer_move(job *work, transfer *one)
{
    ncclComm_t comm = work->comm;
    channel   *line = one->is_send ? channel_of(comm, comm->rank, one->peer)
                                   : channel_of(comm, one->peer, comm->rank);
    size_t     moved;

    if (one->done < sizeof(one->head)) {
        transfer_head  head;
        unsigned char *part = one->is_send ? (unsigned char *)&one->head : (unsigned char *)&head;

        if (!one->is_send && atomic_load(&line->wrote) - atomic_load(&line->read) < sizeof(head)) {
            return 0;
        }
        if (one->is_send &&
            CHANNEL_BYTES - (atomic_load(&line->wrote) - atomic_load(&line->read)) < sizeof(head)) {
            return 0;
        }
        one->done += channel_move(line, one->is_send, part, sizeof(head));
        if (!one->is_send && memcmp(&head, &one->head, sizeof(head)) != 0) {
            comm_fail(comm, ncclInvalidUsage, "ranks make different calls");
            work->is_stalled = 1;
        }
        return sizeof(head);
    }
    moved = channel_move(line, one->is_send, one->data + (one->done - sizeof(one->head)),
                         one->head.len_bytes - (one->done - sizeof(one->head)));
    one->done += moved;
    return moved;
}

static int transfer_is_done(const transfer *one)
{
    return one->done == sizeof(one->head) + one->head.len_bytes;
}

/* Transfers with one peer in one direction are in order; all others are concurrent. */
static int transfer_is_first(const job *work, size_t index)
{
    for (size_t i = 0; i < index; i++) {
        if (!transfer_is_done(&work->transfers[i]) &&
            work->transfers[i].peer == work->transfers[index].peer &&
            work->transfers[i].is_send == work->transfers[index].is_send) {
            return 0;
        }
    }
    return 1;
}

/* -------------------------------------------------------------------- sums -- */

static float float_get(const void *data, size_t i, ncclDataType_t type)
{
    const uint16_t *halves = data;

    return type == ncclFloat32    ? ((const float *)data)[i]
           : type == ncclBfloat16 ? sherdi_cast_bf16_f32(halves[i])
                                  : sherdi_cast_f16_f32(halves[i]);
}

static void float_put(void *data, size_t i, ncclDataType_t type, float value)
{
    if (type == ncclFloat32) {
        ((float *)data)[i] = value;
    } else {
        ((uint16_t *)data)[i] =
            type == ncclBfloat16 ? sherdi_cast_f32_bf16(value) : sherdi_cast_f32_f16(value);
    }
}

/* sum[i] += part[i], rounded as a ring would. */
static void part_add(void *sum, const void *part, size_t count, ncclDataType_t type)
{
    for (size_t i = 0; i < count; i++) {
        if (type == ncclUint64) {
            ((uint64_t *)sum)[i] += ((const uint64_t *)part)[i];
        } else {
            float_put(sum, i, type, float_get(sum, i, type) + float_get(part, i, type));
        }
    }
}

/* recv = part[last] + ... + part[0]. */
static void parts_sum(const job *work)
{
    size_t len  = work->count * type_bytes(work->type);
    int    last = work->comm->size - 1;

    memcpy(work->recv, work->room + (size_t)last * len, len);
    for (int r = last - 1; r >= 0; r--) {
        part_add(work->recv, work->room + (size_t)r * len, work->count, work->type);
    }
}

/* -------------------------------------------------------------------- jobs -- */

static void comm_drop(ncclComm_t comm)
{
    if (atomic_fetch_sub(&comm->owners, 1) != 1) {
        return;
    }
    if (comm->shared != NULL) {
        (void)munmap(comm->shared, comm->shared_bytes);
    }
    free(comm);
}

static void job_drop(job *work)
{
    comm_drop(work->comm);
    free(work->room);
    free(work->transfers);
    free(work);
}

/* On the stream's thread. */
static void job_run(void *raw)
{
    job       *work = raw;
    ncclComm_t comm = work->comm;
    int        left = 1;

    if (work->send != NULL && work->room != NULL) { /* of a sum: what is sent is read now */
        size_t part = work->count * type_bytes(work->type);

        memcpy(work->room + (size_t)comm->rank * part, work->send, part);
    } else if (work->send != NULL && work->send != work->recv) {
        memmove(work->recv, work->send, work->count * type_bytes(work->type));
    }
    while (left && !atomic_load(&comm->is_aborted)) {
        size_t moved = 0;

        left = work->is_stalled;
        for (size_t i = 0; i < work->num_transfers && !work->is_stalled; i++) {
            if (!transfer_is_done(&work->transfers[i])) {
                left = 1;
                moved += transfer_is_first(work, i) ? transfer_move(work, &work->transfers[i]) : 0;
            }
        }
        if (left && moved == 0) {
            nap();
        }
    }
    if (work->room != NULL && !left) {
        parts_sum(work);
    }
    job_drop(work);
}

static _Thread_local int  group_depth;
static _Thread_local job *group_first;

static ncclResult_t job_queue(job *work)
{
    ncclComm_t comm = work->comm;
    int        before;
    int        failed;

    comm->calls++;
    work->is_stalled = word_is_here("stall=", comm);
    if (word_is_here("fail=", comm)) {
        work->is_stalled = 1;
        comm_fail(comm, ncclRemoteError, "injected: the network is gone");
    }
    if (!comm->is_blocking) {
        atomic_store(&comm->looks, LOOKS);
    }
    (void)atomic_fetch_add(&comm->owners, 1);
    (void)cudaGetDevice(&before);
    (void)cudaSetDevice(comm->device);
    if (comm->buffers[work->kind] == NULL) {
        (void)cudaMalloc(&comm->buffers[work->kind], BUFFER_BYTES);
    }
    failed = emulator_call(work->stream, job_run, work) != cudaSuccess;
    (void)cudaSetDevice(before);
    if (failed) {
        job_drop(work);
        return fail(ncclUnhandledCudaError, "a stream of another device");
    }
    return comm->is_blocking ? ncclSuccess : ncclInProgress;
}

/* The job of this group on that stream; sends and receives share one. */
static job *job_find(ncclComm_t comm, cudaStream_t stream, int kind)
{
    job **at = &group_first;

    while (*at != NULL) {
        if (kind == OP_SEND_RECV && (*at)->kind == kind && (*at)->comm == comm &&
            (*at)->stream == stream) {
            return *at;
        }
        at = &(*at)->next;
    }
    *at           = calloc(1, sizeof(job));
    (*at)->comm   = comm;
    (*at)->stream = stream;
    (*at)->kind   = kind;
    return *at;
}

ncclResult_t ncclGroupStart(void); /* nccl.h declares them without a prototype */
ncclResult_t ncclGroupEnd(void);

ncclResult_t ncclGroupStart(void)
{
    group_depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
    ncclResult_t result = ncclSuccess;

    if (group_depth == 0) {
        return fail(ncclInvalidUsage, "the end of a group that was not begun");
    }
    if (--group_depth > 0) {
        return ncclSuccess;
    }
    while (group_first != NULL) {
        job         *work = group_first;
        ncclResult_t one;

        group_first = work->next;
        one         = job_queue(work);
        result      = result == ncclSuccess || result == ncclInProgress ? one : result;
    }
    return result;
}

static ncclResult_t check(ncclComm_t comm, const void *data)
{
    if (comm == NULL || data == NULL) {
        return fail(ncclInvalidArgument, "an argument is NULL");
    }
    if (atomic_load(&comm->looks) > 0) {
        return fail(ncclInvalidUsage, "the call before is still in progress");
    }
    return ncclSuccess;
}

static ncclResult_t one_queue(int is_send, const void *data, size_t count, ncclDataType_t type,
                              int peer, ncclComm_t comm, cudaStream_t stream)
{
    ncclResult_t result = check(comm, data);

    if (result == ncclSuccess) {
        (void)ncclGroupStart();
        transfer_add(job_find(comm, stream, OP_SEND_RECV), is_send, peer, data,
                     count * type_bytes(type));
        result = ncclGroupEnd();
    }
    return result;
}

ncclResult_t ncclSend(const void *data, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream)
{
    return one_queue(1, data, count, type, peer, comm, stream);
}

ncclResult_t ncclRecv(void *data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    return one_queue(0, data, count, type, peer, comm, stream);
}

/* All ranks' parts of `len` bytes come to `to`; what goes to rank r begins at `stride` * r. */
static void swap_add(job *work, const void *send, size_t stride, unsigned char *to, size_t len)
{
    ncclComm_t comm = work->comm;

    for (int r = 0; r < comm->size; r++) {
        if (r != comm->rank) {
            transfer_add(work, 1, r, (const unsigned char *)send + (size_t)r * stride, len);
            transfer_add(work, 0, r, to + (size_t)r * len, len);
        }
    }
}

/* A call of all ranks. Of a sum the parts come to room, from which they are added up; else to recv,
 * with the own one copied there. */
static ncclResult_t swap_queue(int kind, const void *send, void *recv, size_t count,
                               ncclDataType_t type, ncclComm_t comm, cudaStream_t stream)
{
    ncclResult_t result = check(comm, send);
    int          is_sum = kind == OP_ALL_REDUCE || kind == OP_REDUCE_SCATTER;
    int          is_cut = kind == OP_ALL_TO_ALL || kind == OP_REDUCE_SCATTER;
    size_t       len    = count * type_bytes(type),
           own          = result == ncclSuccess ? (size_t)comm->rank * len : 0;
    job *work;

    if (result != ncclSuccess) {
        return result;
    }
    (void)ncclGroupStart();
    work        = job_find(comm, stream, kind);
    work->count = count;
    work->type  = type;
    work->room  = is_sum ? malloc(len * (size_t)comm->size + 1) : NULL;
    work->send  = (const unsigned char *)send + (is_cut ? own : 0);
    work->recv  = (unsigned char *)recv + (is_sum ? 0 : own);
    swap_add(work, send, is_cut ? len : 0, is_sum ? work->room : recv, len);
    return ncclGroupEnd();
}

static ncclResult_t sum_queue(int kind, const void *send, void *recv, size_t count,
                              ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                              cudaStream_t stream)
{
    return op == ncclSum ? swap_queue(kind, send, recv, count, type, comm, stream)
                         : fail(ncclInvalidArgument, "this stand-in can only add");
}

ncclResult_t ncclAllGather(const void *send, void *recv, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream)
{
    return swap_queue(OP_ALL_GATHER, send, recv, count, type, comm, stream);
}

ncclResult_t ncclAlltoAll(const void *send, void *recv, size_t count, ncclDataType_t type,
                          ncclComm_t comm, cudaStream_t stream)
{
    return swap_queue(OP_ALL_TO_ALL, send, recv, count, type, comm, stream);
}

ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    return sum_queue(OP_ALL_REDUCE, send, recv, count, type, op, comm, stream);
}

ncclResult_t ncclReduceScatter(const void *send, void *recv, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    return sum_queue(OP_REDUCE_SCATTER, send, recv, count, type, op, comm, stream);
}

/* ------------------------------------------------------------ communicators -- */

ncclResult_t ncclGetVersion(int *version)
{
    const char *wanted = word_find("version=");

    *version = wanted != NULL ? (int)strtol(wanted, NULL, 10) : NCCL_VERSION_CODE;
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    uint64_t number = 0;

    (void)!getrandom(&number, sizeof(number), 0);
    memset(id, 0, sizeof(*id));
    (void)snprintf(id->internal, sizeof(id->internal), "/dev/shm/sherd-fake-nccl-%016llx",
                   (unsigned long long)number);
    return ncclSuccess;
}

/* Meets the others; the last one to come takes the name away. */
static void *comm_meet(void *raw)
{
    ncclComm_t  comm = raw;
    const char *hang = word_find("hang=");
    const char *slow = word_find("slow=");
    int         fd;
    void       *memory;

    if (slow != NULL) {
        (void)usleep((useconds_t)strtoul(slow, NULL, 10) * 1000);
    }
    while (hang != NULL && strtol(hang, NULL, 10) == comm->rank &&
           !atomic_load(&comm->is_aborted)) {
        nap();
    }
    comm->shared_bytes =
        sizeof(shared_part) + (size_t)comm->size * (size_t)comm->size * sizeof(channel);
    fd     = open(comm->path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    memory = MAP_FAILED;
    if (fd >= 0 && ftruncate(fd, (off_t)comm->shared_bytes) == 0) {
        memory = mmap(NULL, comm->shared_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    }
    if (fd >= 0) {
        (void)close(fd);
    }
    if (memory == MAP_FAILED) {
        (void)snprintf(comm->text, sizeof(comm->text), "no shared memory");
        atomic_store(&comm->state, ncclSystemError);
        return NULL;
    }
    comm->shared = memory;
    if (atomic_fetch_add(&comm->shared->arrived, 1) + 1 == comm->size) {
        (void)unlink(comm->path);
    }
    while (atomic_load(&comm->shared->arrived) < comm->size && !atomic_load(&comm->is_aborted)) {
        nap();
    }
    atomic_store(&comm->state, ncclSuccess);
    return NULL;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t *config)
{
    ncclComm_t comm = calloc(1, sizeof(*comm));
    int        device;

    if (cudaGetDevice(&device) != cudaSuccess) {
        free(comm);
        return fail(ncclUnhandledCudaError, "there is no device");
    }
    comm->rank        = rank;
    comm->size        = size;
    comm->device      = device;
    comm->is_blocking = config == NULL || config->blocking != 0;
    memcpy(comm->path, id.internal, sizeof(comm->path) - 1);
    atomic_init(&comm->owners, 1);
    atomic_init(&comm->state, ncclInProgress);
    *out = comm;
    if (comm->is_blocking) {
        (void)comm_meet(comm);
        return (ncclResult_t)atomic_load(&comm->state);
    }
    comm->has_maker = pthread_create(&comm->maker, NULL, comm_meet, comm) == 0;
    return comm->has_maker ? ncclInProgress : fail(ncclSystemError, "no thread");
}

ncclResult_t ncclCommInitRank(ncclComm_t *out, int size, ncclUniqueId id, int rank)
{
    return ncclCommInitRankConfig(out, size, id, rank, NULL);
}

static void maker_join(ncclComm_t comm)
{
    if (comm->has_maker) {
        (void)pthread_join(comm->maker, NULL);
        comm->has_maker = 0;
    }
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *out)
{
    ncclResult_t state = (ncclResult_t)atomic_load(&comm->state);
    const char  *look  = word_find("look=");

    if (look != NULL) {
        (void)atomic_fetch_add(&comm->askers, 1);
        (void)usleep((useconds_t)strtoul(look, NULL, 10) * 1000);
        (void)atomic_fetch_sub(&comm->askers, 1);
    }
    if (state != ncclInProgress) {
        maker_join(comm);
    }
    if (state == ncclSuccess && atomic_load(&comm->looks) > 0) {
        (void)atomic_fetch_sub(&comm->looks, 1);
        state = ncclInProgress;
    } else if (state == ncclSuccess && comm->window_out != NULL) {
        *comm->window_out = comm->window;
        comm->window_out  = NULL;
    }
    *out = state;
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    maker_join(comm);
    atomic_store(&comm->looks, comm->is_blocking ? 0 : LOOKS);
    return comm->is_blocking ? ncclSuccess : ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    maker_join(comm);
    if (comm->registered != 0 || comm->windows != 0) {
        (void)fprintf(stderr, "fake NCCL: %d registrations are left\n",
                      comm->registered + comm->windows);
        abort();
    }
    for (int kind = 0; kind <= OP_REDUCE_SCATTER; kind++) {
        (void)cudaFree(comm->buffers[kind]);
    }
    comm_drop(comm);
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    if (atomic_load(&comm->askers) > 0) {
        (void)fprintf(stderr, "fake NCCL: a communicator ends while it is asked for its error\n");
        abort();
    }
    atomic_store(&comm->is_aborted, 1);
    maker_join(comm);
    comm_drop(comm);
    return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int *count)
{
    *count = comm->size;
    return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank)
{
    *rank = comm->rank;
    return ncclSuccess;
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device)
{
    *device = comm->device;
    return ncclSuccess;
}

ncclResult_t ncclCommRegister(const ncclComm_t comm, void *memory, size_t len, void **handle)
{
    if (word_find("refuse") != NULL || len == 0) {
        return fail(ncclInvalidUsage, "memory of this kind cannot be registered");
    }
    comm->registered++;
    *handle = memory;
    return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle)
{
    (void)handle;
    comm->registered--;
    return ncclSuccess;
}

/* ------------------------------------------------------------------ windows -- */

/* What ncclMemAlloc gave: windows stand over that alone. NVIDIA's begins at multiples of 2 MiB. */
#define MOST_MEMORY  256
#define MEMORY_ALIGN 4096

typedef struct memory {
    void *given, *start;
} memory;

static pthread_mutex_t memory_lock = PTHREAD_MUTEX_INITIALIZER;
static memory          memories[MOST_MEMORY];

/* The entry of what was given, of NULL a free one; NULL: there is none. */
static memory *memory_find(const void *given)
{
    for (int i = 0; i < MOST_MEMORY; i++) {
        if (memories[i].given == given) {
            return &memories[i];
        }
    }
    return NULL;
}

static int memory_is_given(const void *given)
{
    int is_given;

    (void)pthread_mutex_lock(&memory_lock);
    is_given = given != NULL && memory_find(given) != NULL;
    (void)pthread_mutex_unlock(&memory_lock);
    return is_given;
}

ncclResult_t ncclMemAlloc(void **out, size_t len)
{
    memory *entry;
    void   *start;

    if (word_find("refuse") != NULL || cudaMalloc(&start, len + MEMORY_ALIGN) != cudaSuccess) {
        return fail(ncclUnhandledCudaError, "there is no such memory");
    }
    *out = (void *)(((uintptr_t)start + MEMORY_ALIGN - 1) / MEMORY_ALIGN * MEMORY_ALIGN);
    (void)pthread_mutex_lock(&memory_lock);
    entry = memory_find(NULL);
    if (entry != NULL) {
        *entry = (memory){.given = *out, .start = start};
    }
    (void)pthread_mutex_unlock(&memory_lock);
    return entry != NULL ? ncclSuccess : fail(ncclInternalError, "too much memory for a stand-in");
}

ncclResult_t ncclMemFree(void *given)
{
    memory found = {0};

    (void)pthread_mutex_lock(&memory_lock);
    if (given != NULL && memory_find(given) != NULL) {
        found               = *memory_find(given);
        *memory_find(given) = (memory){0};
    }
    (void)pthread_mutex_unlock(&memory_lock);
    if (found.start == NULL) {
        (void)fprintf(stderr, "fake NCCL: memory is freed that is not its own\n");
        abort();
    }
    (void)cudaFree(found.start);
    return ncclSuccess;
}

ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *memory, size_t len, ncclWindow_t *out,
                                    int flags)
{
    if (len == 0 || flags != NCCL_WIN_COLL_SYMMETRIC || !memory_is_given(memory)) {
        return fail(ncclInvalidUsage, "a window stands over memory of ncclMemAlloc");
    }
    if (check(comm, memory) != ncclSuccess) {
        return ncclInvalidUsage;
    }
    comm->windows++;
    *out = (ncclWindow_t)memory;
    if (!comm->is_blocking) { /* as NVIDIA's: it returns success and is through later */
        *out             = NULL;
        comm->window     = (ncclWindow_t)memory;
        comm->window_out = out;
        atomic_store(&comm->looks, LOOKS);
    }
    return ncclSuccess;
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window)
{
    comm->windows--;
    return memory_is_given(window) ? ncclSuccess
                                   : fail(ncclInvalidUsage, "the memory was freed before");
}

const char *ncclGetErrorString(ncclResult_t result)
{
    return result == ncclRemoteError ? "remote process exited or there was a network error"
                                     : "an error of the stand-in";
}

const char *ncclGetLastError(ncclComm_t comm)
{
    return comm != NULL && comm->text[0] != '\0' ? comm->text : last_error;
}
