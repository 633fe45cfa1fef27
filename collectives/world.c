/* The layer above the transports: the life of a world, its calls and their order. */
#include "collectives/world_impl.h"

#include "base/checked.h"
#include "base/log.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ------------------------------------------------------ life of a world -- */

sherd_status sherdi_world_rank_check(int rank, int world_size)
{
    return world_size >= 1 && rank >= 0 && rank < world_size
               ? SHERD_OK
               : sherdi_fail(SHERD_E_INVAL, "rank %d of %d is not a rank of a world", rank,
                             world_size);
}

void sherdi_world_init(sherd_world *world, const sherdi_world_ops *ops, int rank, int world_size,
                       const sherd_world_params *params)
{
    memset(world, 0, sizeof(*world));
    world->ops        = ops;
    world->rank       = rank;
    world->world_size = world_size;
    world->local_rank = rank;
    world->local_size = world_size;
    world->process    = getpid();
    world->timeout_ns = params->timeout_ns > 0 ? params->timeout_ns : WORLD_TIMEOUT_NS;
    atomic_init(&world->owners, 1);
    atomic_init(&world->failure_state, WORLD_IS_WHOLE);
    sherdi_mem_init(&world->mem);
    (void)pthread_mutex_init(&world->queue.lock, NULL);
    (void)pthread_cond_init(&world->queue.has_work, NULL);
    (void)pthread_cond_init(&world->queue.has_progress, NULL);
    sherdi_world_endings_init(&world->endings);
}

static int cores_allowed(void)
{
    cpu_set_t set;

    if (sched_getaffinity(0, sizeof(set), &set) == 0 && CPU_COUNT(&set) > 0) {
        return CPU_COUNT(&set);
    }
    return (int)sysconf(_SC_NPROCESSORS_ONLN);
}

static sherd_status threads_wanted(const sherd_world_params *params, int sharers, int *out)
{
    const char *text = getenv("SHERD_THREADS");
    char       *end;
    long        value;

    if (params->cpu_threads > 0) {
        *out = params->cpu_threads;
        return SHERD_OK;
    }
    if (text != NULL && text[0] != '\0') {
        value = strtol(text, &end, 10);
        if (*end != '\0' || value < 1 || value > 4096) {
            return sherdi_fail(SHERD_E_INVAL,
                               "SHERD_THREADS is \"%s\", not a number from 1 to 4096", text);
        }
        *out = (int)value;
        return SHERD_OK;
    }
    *out = cores_allowed() / sharers;
    if (*out < 1) {
        *out = 1;
    }
    return SHERD_OK;
}

sherd_status sherdi_world_equip(sherd_world *world, const sherd_world_params *params, int share,
                                int shares)
{
    sherdi_cpu_params cpu = {.share   = share,
                             .shares  = shares,
                             .rank    = world->rank,
                             .is_idle = (world->ops->caps & SHERDI_WORLD_SIMULATES) != 0};
    char              threads[128];

    SHERDI_TRY(threads_wanted(params, shares, &cpu.threads));
    SHERDI_TRY(sherdi_backend_cpu_create_with(&cpu, &world->mem, &world->host));
    world->backend = world->host;
    if (world->world_size > 1 && !(world->ops->caps & SHERDI_WORLD_SIMULATES)) {
        world->sum_scratch =
            sherdi_alloc_array(&world->mem, SHERDI_MEM_CONTROL,
                               2 * (size_t)world->world_size * SHERDI_SUM_PIECE, sizeof(double));
        if (world->sum_scratch == NULL) {
            return SHERD_E_NOMEM;
        }
    }
    if (!(world->ops->caps & SHERDI_WORLD_SIMULATES)) {
        SHERDI_TRY(sherdi_world_device_open(world, params));
    }
    sherdi_backend_cpu_describe(world->host, threads, sizeof(threads));
    sherdi_log(SHERD_LOG_DEBUG, world->rank, "world %s, rank %d of %d, local %d of %d, %s",
               world->ops->name, world->rank, world->world_size, world->local_rank,
               world->local_size, threads);
    return SHERD_OK;
}

void sherdi_world_fini(sherd_world *world)
{
    sherdi_world_device_close(world);
    sherdi_free(world->sum_scratch);
    sherdi_backend_destroy(world->host);
    sherdi_world_endings_fini(&world->endings);
    (void)pthread_cond_destroy(&world->queue.has_progress);
    (void)pthread_cond_destroy(&world->queue.has_work);
    (void)pthread_mutex_destroy(&world->queue.lock);
}

sherd_world *sherdi_world_retain(sherd_world *world)
{
    (void)atomic_fetch_add(&world->owners, 1);
    return world;
}

void *sherdi_pages_map(size_t len_bytes, int flags)
{
    void *pages =
        mmap(NULL, len_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);

    if (pages == MAP_FAILED) {
        (void)sherdi_fail(SHERD_E_NOMEM, "no memory for %zu bytes: %m", len_bytes);
        return NULL;
    }
    return pages;
}

void sherd_world_destroy(sherd_world *world)
{
    if (world == NULL || world->process != getpid() || atomic_fetch_sub(&world->owners, 1) > 1) {
        return;
    }
    sherdi_world_queue_stop(world);
    world->ops->close(world);
}

void sherd_world_abort(sherd_world *world, const char *why)
{
    if (world == NULL) {
        return;
    }
    (void)sherdi_world_fail(world, SHERD_E_PEER_LOST, "rank %d gave up: %s", world->rank,
                            why == NULL || why[0] == '\0' ? "no reason given" : why);
}

/* ---------------------------------------------------------------- what it is -- */

int sherd_world_rank(const sherd_world *world)
{
    return world == NULL ? -1 : world->rank;
}

int sherd_world_size(const sherd_world *world)
{
    return world == NULL ? 0 : world->world_size;
}

int sherd_world_local_rank(const sherd_world *world)
{
    return world == NULL ? -1 : world->local_rank;
}

const char *sherd_world_transport(const sherd_world *world)
{
    return world == NULL ? "" : world->ops->name;
}

uint32_t sherdi_world_caps(const sherd_world *world)
{
    uint32_t caps = world->ops->caps;

    if (!sherdi_world_has_device(world)) {
        return caps & ~(SHERDI_WORLD_ON_LANE | SHERDI_WORLD_VENDOR_SUMS);
    }
    return sherdi_world_is_on_lane(world) ? caps | SHERDI_WORLD_ON_LANE
                                          : caps & ~SHERDI_WORLD_SHARES_MEMORY;
}

const sherdi_backend *sherdi_world_backend(const sherd_world *world)
{
    return world->backend;
}

const sherdi_backend *sherdi_world_host(const sherd_world *world)
{
    return world->host;
}

void sherdi_world_observe(sherd_world *world, sherdi_world_observe_fn fn, void *ctx)
{
    sherdi_world_queue_drain(world);
    world->observe     = fn;
    world->observe_ctx = ctx;
}

int sherdi_world_local_size(const sherd_world *world)
{
    return world->local_size;
}

size_t sherdi_world_overhead_bytes(const sherd_world *world)
{
    return world->overhead_bytes;
}

/* ------------------------------------------------- what transports share -- */

sherd_status sherdi_world_alloc(sherd_world *world, size_t len_bytes, void **out)
{
    size_t whole_bytes;

    SHERDI_TRY(sherdi_world_status(world));
    /* Half of the addresses leave room for what transports put between the ranks' parts. */
    if (!sherdi_mul_fits(len_bytes, (size_t)world->world_size, &whole_bytes) ||
        whole_bytes > SIZE_MAX / 4) {
        return sherdi_fail(SHERD_E_NOMEM,
                           "%d times %zu bytes of world memory: more than an address holds",
                           world->world_size, len_bytes);
    }
    sherdi_world_queue_drain(world);
    if (sherdi_world_has_device(world)) {
        return sherdi_world_device_alloc(world, sherdi_max_size(len_bytes, 1), out);
    }
    return world->ops->alloc(world, sherdi_max_size(len_bytes, 1), out);
}

/* How it went on each rank, and what each asked for. */
typedef struct alloc_record {
    uint64_t len_bytes;
    int32_t  status;
    int32_t  unused;
} alloc_record;

_Static_assert(sizeof(alloc_record) <= SHERDI_SUM_PIECE * sizeof(double),
               "records of all ranks fit the scratch of sums");

sherd_status sherdi_world_alloc_agree(sherd_world *world, sherd_status here, size_t len_bytes,
                                      const char *what)
{
    alloc_record           mine = {.len_bytes = len_bytes, .status = (int32_t)here};
    alloc_record          *all  = (alloc_record *)(void *)world->sum_scratch;
    sherdi_all_gather_args args = {
        .send = &mine, .recv = all, .slice_bytes = sizeof(mine), .flags = SHERDI_COLL_HOST};

    if (world->world_size == 1) {
        return here;
    }
    SHERDI_TRY(world->ops->all_gather(world, &args));
    for (int r = 0; r < world->world_size; r++) {
        if (all[r].len_bytes != mine.len_bytes) {
            return sherdi_world_fail(world, SHERD_E_INVAL,
                                     "ranks disagree: rank %d allocates %llu bytes, rank %d %llu",
                                     world->rank, (unsigned long long)mine.len_bytes, r,
                                     (unsigned long long)all[r].len_bytes);
        }
    }
    for (int r = 0; r < world->world_size; r++) {
        if (all[r].status != SHERD_OK) {
            return sherdi_fail((sherd_status)all[r].status, "rank %d: %s%llu bytes of %s", r,
                               all[r].status == SHERD_E_NOMEM ? "no memory for "
                                                              : "its device gives no ",
                               (unsigned long long)mine.len_bytes, what);
        }
    }
    return SHERD_OK;
}

void sherdi_world_free(sherd_world *world, void *memory)
{
    if (memory == NULL) {
        return;
    }
    sherdi_world_queue_drain(world);
    if (sherdi_world_has_device(world)) {
        sherdi_world_device_free(world, memory);
    } else {
        world->ops->free(world, memory);
    }
}

void sherdi_world_reduce_local(const sherdi_backend *lane, const sherdi_reduction_args *args,
                               const void *const *srcs, int num_srcs, void *dst, size_t count_elems,
                               void *const *more_dsts, int num_more_dsts)
{
    if (args->fixed != NULL) {
        lane->kernels->reduce_fixed(lane, &(sherdi_fixed_args){
                                              .srcs        = srcs,
                                              .num_srcs    = num_srcs,
                                              .src_dtype   = args->send_dtype,
                                              .acc         = dst,
                                              .count_elems = count_elems,
                                              .multiplier  = args->fixed->multiplier,
                                              .limit       = args->fixed->limit,
                                              .accumulate  = args->accumulate,
                                              .counts      = args->fixed->counts,
                                          });
        return;
    }
    lane->kernels->reduce(lane, &(sherdi_reduce_args){
                                    .srcs          = srcs,
                                    .num_srcs      = num_srcs,
                                    .src_dtype     = args->send_dtype,
                                    .comm_dtype    = args->comm_dtype,
                                    .dst           = dst,
                                    .dst_dtype     = args->recv_dtype,
                                    .count_elems   = count_elems,
                                    .scale         = args->scale,
                                    .accumulate    = args->accumulate,
                                    .more_dsts     = more_dsts,
                                    .num_more_dsts = num_more_dsts,
                                });
}

sherd_status sherdi_world_all_reduce_in_two(sherd_world *world, const sherdi_reduction_args *args)
{
    size_t                 slice_bytes = args->slice_elems * sherd_dtype_bytes(args->send_dtype);
    sherdi_reduction_args  scatter     = *args;
    sherdi_all_gather_args gather      = {
             .recv = args->recv, .slice_bytes = slice_bytes, .what = args->what};

    scatter.recv = (unsigned char *)args->recv + (size_t)world->rank * slice_bytes;
    gather.send  = scatter.recv;
    SHERDI_TRY(world->ops->reduce_scatter(world, &scatter));
    return world->ops->all_gather(world, &gather);
}

/* -------------------------------------------------------------- checking -- */

static int ranges_overlap(const void *a, size_t a_bytes, const void *b, size_t b_bytes)
{
    uintptr_t at_a = (uintptr_t)a;
    uintptr_t at_b = (uintptr_t)b;

    return at_a < at_b + b_bytes && at_b < at_a + a_bytes;
}

/* world_size slices fit an address, and the buffers are there. */
static sherd_status slices_check(const sherd_world *world, world_call_kind kind, const void *send,
                                 const void *recv, size_t slice_bytes)
{
    size_t whole_bytes;

    if (!sherdi_mul_fits(slice_bytes, (size_t)world->world_size, &whole_bytes)) {
        return sherdi_fail(SHERD_E_INVAL,
                           "%s: %d slices of %zu bytes are more than an address holds",
                           sherdi_world_call_name(kind), world->world_size, slice_bytes);
    }
    if (slice_bytes > 0 && (send == NULL || recv == NULL)) {
        return sherdi_fail(SHERD_E_INVAL, "%s of %zu bytes: a buffer is NULL",
                           sherdi_world_call_name(kind), slice_bytes);
    }
    return SHERD_OK;
}

static sherd_status overlap_error(world_call_kind kind)
{
    return sherdi_fail(SHERD_E_INVAL, "%s: the buffers overlap in part",
                       sherdi_world_call_name(kind));
}

static int dtype_widens_to(sherd_dtype from, sherd_dtype to)
{
    return from == to || to == SHERD_F32;
}

static sherd_status reduction_check_types(const sherd_world *world, world_call_kind kind,
                                          const sherdi_reduction_args *args)
{
    size_t send_bytes = sherd_dtype_bytes(args->send_dtype);
    size_t recv_bytes = sherdi_reduction_recv_bytes(args);
    size_t slice_bytes;

    if (send_bytes == 0 || recv_bytes == 0 || sherd_dtype_bytes(args->comm_dtype) == 0) {
        return sherdi_fail(SHERD_E_INVAL, "%s: types %d, %d, %d: one of them is not a type",
                           sherdi_world_call_name(kind), (int)args->send_dtype,
                           (int)args->comm_dtype, (int)args->recv_dtype);
    }
    if (args->fixed == NULL &&
        (!dtype_widens_to(args->send_dtype, args->comm_dtype) ||
         (!args->accumulate && !dtype_widens_to(args->comm_dtype, args->recv_dtype)))) {
        return sherdi_fail(SHERD_E_INVAL, "%s: %s sent, rounded to %s, received as %s: not exact",
                           sherdi_world_call_name(kind), sherd_dtype_name(args->send_dtype),
                           sherd_dtype_name(args->comm_dtype), sherd_dtype_name(args->recv_dtype));
    }
    if ((uintptr_t)args->send % send_bytes != 0 || (uintptr_t)args->recv % recv_bytes != 0) {
        return sherdi_fail(SHERD_E_INVAL, "%s: a buffer is not aligned to its elements",
                           sherdi_world_call_name(kind));
    }
    if (!sherdi_mul_fits(args->slice_elems, sherdi_max_size(send_bytes, recv_bytes),
                         &slice_bytes)) {
        return sherdi_fail(SHERD_E_INVAL, "%s: %zu elements are more than an address holds",
                           sherdi_world_call_name(kind), args->slice_elems);
    }
    if ((args->flags & SHERDI_COLL_VENDOR_SUM) && world->world_size > 1 &&
        !(sherdi_world_caps(world) & SHERDI_WORLD_VENDOR_SUMS)) {
        return sherdi_fail(SHERD_E_NOTSUP, "%s: transport %s has no sum of a vendor's",
                           sherdi_world_call_name(kind), world->ops->name);
    }
    if ((args->flags & SHERDI_COLL_VENDOR_SUM) && args->fixed != NULL) {
        return sherdi_fail(SHERD_E_INVAL, "%s: a vendor's sum is not deterministic",
                           sherdi_world_call_name(kind));
    }
    return slices_check(world, kind, args->send, args->recv, slice_bytes);
}

static sherd_status reduce_scatter_check(const sherd_world           *world,
                                         const sherdi_reduction_args *args)
{
    size_t               send_bytes;
    const unsigned char *own;

    SHERDI_TRY(reduction_check_types(world, CALL_REDUCE_SCATTER, args));
    send_bytes = args->slice_elems * sherd_dtype_bytes(args->send_dtype);
    own        = (const unsigned char *)args->send + (size_t)world->rank * send_bytes;
    if (args->recv == own && args->send_dtype == args->recv_dtype && args->fixed == NULL) {
        return SHERD_OK;
    }
    if (ranges_overlap(args->send, send_bytes * (size_t)world->world_size, args->recv,
                       args->slice_elems * sherdi_reduction_recv_bytes(args))) {
        return overlap_error(CALL_REDUCE_SCATTER);
    }
    return SHERD_OK;
}

static sherd_status all_reduce_check(const sherd_world *world, const sherdi_reduction_args *args)
{
    size_t whole_bytes;

    SHERDI_TRY(reduction_check_types(world, CALL_ALL_REDUCE, args));
    if (args->accumulate || args->fixed != NULL || args->recv_dtype != args->send_dtype ||
        args->comm_dtype != args->send_dtype) {
        return sherdi_fail(SHERD_E_INVAL, "all-reduce: one type throughout, and no accumulation");
    }
    whole_bytes =
        args->slice_elems * sherd_dtype_bytes(args->send_dtype) * (size_t)world->world_size;
    if (args->recv != args->send &&
        ranges_overlap(args->send, whole_bytes, args->recv, whole_bytes)) {
        return overlap_error(CALL_ALL_REDUCE);
    }
    return SHERD_OK;
}

static sherd_status all_gather_check(const sherd_world *world, const sherdi_all_gather_args *args)
{
    const unsigned char *own;

    SHERDI_TRY(slices_check(world, CALL_ALL_GATHER, args->send, args->recv, args->slice_bytes));
    own = (const unsigned char *)args->recv + (size_t)world->rank * args->slice_bytes;
    if (args->send != own && ranges_overlap(args->send, args->slice_bytes, args->recv,
                                            args->slice_bytes * (size_t)world->world_size)) {
        return overlap_error(CALL_ALL_GATHER);
    }
    return SHERD_OK;
}

static sherd_status world_check(const sherd_world *world, const char *call)
{
    return world == NULL ? sherdi_fail(SHERD_E_INVAL, "%s: the world is NULL", call) : SHERD_OK;
}

/* ---------------------------------------------------- making and counting -- */

static void traffic_add(sherd_world *world, uint64_t sent_bytes, uint64_t received_bytes)
{
    (void)atomic_fetch_add_explicit(&world->sent_bytes, sent_bytes, memory_order_relaxed);
    (void)atomic_fetch_add_explicit(&world->received_bytes, received_bytes, memory_order_relaxed);
}

/* To and from every other rank one slice. */
static void traffic_add_slices(sherd_world *world, size_t slice_bytes)
{
    uint64_t bytes = sherdi_wire_all_gather(world->world_size, slice_bytes);

    traffic_add(world, bytes, bytes);
}

static sherd_status reduction_make(sherd_world *world, world_call_kind kind,
                                   const sherdi_reduction_args *args, sherdi_ticket *ticket_out)
{
    const world_call call = {
        .kind           = kind,
        .flags          = args->flags,
        .slice_bytes    = args->slice_elems * sherd_dtype_bytes(args->send_dtype),
        .what           = args->what,
        .args.reduction = *args,
    };

    SHERDI_TRY(sherdi_world_queue_call(world, &call, ticket_out));
    traffic_add_slices(world, (kind == CALL_ALL_REDUCE ? 2 : 1) * call.slice_bytes);
    return SHERD_OK;
}

sherd_status sherdi_world_all_gather(sherd_world *world, const sherdi_all_gather_args *args,
                                     sherdi_ticket *ticket_out)
{
    const world_call call = {.kind            = CALL_ALL_GATHER,
                             .flags           = args->flags,
                             .slice_bytes     = args->slice_bytes,
                             .what            = args->what,
                             .args.all_gather = *args};

    SHERDI_TRY(all_gather_check(world, args));
    SHERDI_TRY(sherdi_world_queue_call(world, &call, ticket_out));
    traffic_add_slices(world, args->slice_bytes);
    return SHERD_OK;
}

sherd_status sherdi_world_reduce_scatter(sherd_world *world, const sherdi_reduction_args *args,
                                         sherdi_ticket *ticket_out)
{
    SHERDI_TRY(reduce_scatter_check(world, args));
    return reduction_make(world, CALL_REDUCE_SCATTER, args, ticket_out);
}

sherd_status sherdi_world_all_reduce(sherd_world *world, const sherdi_reduction_args *args,
                                     sherdi_ticket *ticket_out)
{
    SHERDI_TRY(all_reduce_check(world, args));
    return reduction_make(world, CALL_ALL_REDUCE, args, ticket_out);
}

sherd_status sherdi_world_all_to_all(sherd_world *world, const sherdi_all_to_all_args *args,
                                     sherdi_ticket *ticket_out)
{
    const world_call call = {.kind            = CALL_ALL_TO_ALL,
                             .flags           = args->flags,
                             .slice_bytes     = args->slice_bytes,
                             .args.all_to_all = *args};
    size_t           whole_bytes;

    SHERDI_TRY(slices_check(world, CALL_ALL_TO_ALL, args->send, args->recv, args->slice_bytes));
    whole_bytes = args->slice_bytes * (size_t)world->world_size;
    if (ranges_overlap(args->send, whole_bytes, args->recv, whole_bytes)) {
        return overlap_error(CALL_ALL_TO_ALL);
    }
    SHERDI_TRY(sherdi_world_queue_call(world, &call, ticket_out));
    traffic_add_slices(world, args->slice_bytes);
    return SHERD_OK;
}

sherd_status sherd_world_broadcast(sherd_world *world, void *data, size_t len_bytes, int root)
{
    const world_call call = {
        .kind           = CALL_BROADCAST,
        .flags          = SHERDI_COLL_HOST,
        .args.broadcast = {.data = data, .len_bytes = len_bytes, .root = root}};

    SHERDI_TRY(world_check(world, "sherd_world_broadcast"));
    if (root < 0 || root >= world->world_size) {
        return sherdi_fail(SHERD_E_INVAL, "broadcast from rank %d: ranks are 0 to %d", root,
                           world->world_size - 1);
    }
    if (data == NULL && len_bytes > 0) {
        return sherdi_fail(SHERD_E_INVAL, "broadcast of %zu bytes: data is NULL", len_bytes);
    }
    SHERDI_TRY(sherdi_world_queue_call(world, &call, NULL));
    if (world->rank == root) {
        traffic_add(world, sherdi_wire_all_gather(world->world_size, len_bytes), 0);
    } else {
        traffic_add(world, 0, len_bytes);
    }
    return SHERD_OK;
}

sherd_status sherd_world_barrier(sherd_world *world)
{
    const world_call call = {.kind = CALL_BARRIER, .flags = SHERDI_COLL_HOST};

    SHERDI_TRY(world_check(world, "sherd_world_barrier"));
    return sherdi_world_queue_call(world, &call, NULL);
}

/* ------------------------------------------------------------ control data -- */

sherd_status sherdi_world_exchange(sherd_world *world, const void *mine, void *all,
                                   size_t len_bytes)
{
    sherdi_all_gather_args args = {
        .send = mine, .recv = all, .slice_bytes = len_bytes, .flags = SHERDI_COLL_HOST};

    if (world->ops->caps & SHERDI_WORLD_SIMULATES) {
        SHERDI_TRY(all_gather_check(world, &args));
        for (int r = 0; r < world->world_size && len_bytes > 0; r++) {
            memmove((unsigned char *)all + (size_t)r * len_bytes, mine, len_bytes);
        }
        traffic_add_slices(world, len_bytes);
        return SHERD_OK;
    }
    return sherdi_world_all_gather(world, &args, NULL);
}

/* The values that rank r adds up are slice r of a piece; behind the last value are zeros. */
static sherd_status sum_integers(sherd_world *world, uint64_t *values, size_t count, size_t slice)
{
    size_t    words = slice * (size_t)world->world_size;
    uint64_t *piece = (uint64_t *)(void *)world->sum_scratch;
    uint64_t *parts = piece + words;
    uint64_t *own   = piece + (size_t)world->rank * slice;

    memcpy(piece, values, count * sizeof(*values));
    memset(piece + count, 0, (words - count) * sizeof(*values));
    SHERDI_TRY(sherdi_world_all_to_all(world,
                                       &(sherdi_all_to_all_args){
                                           .send        = piece,
                                           .recv        = parts,
                                           .slice_bytes = slice * sizeof(*values),
                                           .flags       = SHERDI_COLL_HOST,
                                       },
                                       NULL));
    memset(own, 0, slice * sizeof(*own));
    for (int r = 0; r < world->world_size; r++) {
        for (size_t i = 0; i < slice; i++) {
            own[i] += parts[(size_t)r * slice + i];
        }
    }
    SHERDI_TRY(sherdi_world_exchange(world, own, piece, slice * sizeof(*own)));
    memcpy(values, piece, count * sizeof(*values));
    return SHERD_OK;
}

sherd_status sherdi_world_sum_u64(sherd_world *world, uint64_t *values, size_t count)
{
    int is_simulated = (world->ops->caps & SHERDI_WORLD_SIMULATES) != 0;

    SHERDI_TRY(sherdi_world_status(world));
    if (is_simulated || (world->ops->sum_u64 != NULL && world->world_size > 1)) {
        uint64_t bytes = sherdi_wire_sum_u64(world->world_size, count);

        sherdi_world_queue_drain(world);
        SHERDI_TRY(is_simulated ? SHERD_OK : world->ops->sum_u64(world, values, count));
        traffic_add(world, bytes, bytes);
        return SHERD_OK;
    }
    for (size_t at = 0; at < count && world->world_size > 1;) {
        size_t slice = sherdi_sum_slice(world->world_size, count - at);
        size_t piece = sherdi_min_size(slice * (size_t)world->world_size, count - at);

        SHERDI_TRY(sum_integers(world, values + at, piece, slice));
        at += piece;
    }
    return SHERD_OK;
}

/* One piece: values[i] = ((v of rank 0 + v of rank 1) + ...). The simulated ranks all have mine. */
static sherd_status sum_piece(sherd_world *world, double *values, size_t count)
{
    int           is_simulated = (world->ops->caps & SHERDI_WORLD_SIMULATES) != 0;
    const double *all          = world->sum_scratch;

    if (!is_simulated) {
        SHERDI_TRY(
            sherdi_world_exchange(world, values, world->sum_scratch, count * sizeof(*values)));
    } else {
        traffic_add_slices(world, count * sizeof(*values));
    }
    for (size_t i = 0; i < count; i++) {
        double mine = values[i];
        double sum  = is_simulated ? mine : all[i];

        for (int r = 1; r < world->world_size; r++) {
            sum += is_simulated ? mine : all[(size_t)r * count + i];
        }
        values[i] = sum;
    }
    return SHERD_OK;
}

sherd_status sherd_world_sum_f64(sherd_world *world, double *values, size_t count)
{
    SHERDI_TRY(world_check(world, "sherd_world_sum_f64"));
    if (values == NULL && count > 0) {
        return sherdi_fail(SHERD_E_INVAL, "sherd_world_sum_f64: values is NULL");
    }
    SHERDI_TRY(sherdi_world_status(world));
    sherdi_world_queue_drain(world);
    for (size_t at = 0; at < count && world->world_size > 1; at += SHERDI_SUM_PIECE) {
        SHERDI_TRY(sum_piece(world, values + at, sherdi_min_size(SHERDI_SUM_PIECE, count - at)));
    }
    return SHERD_OK;
}

void sherd_world_traffic(const sherd_world *world, uint64_t *sent_bytes_out,
                         uint64_t *received_bytes_out)
{
    if (sent_bytes_out != NULL) {
        *sent_bytes_out =
            world == NULL ? 0 : atomic_load_explicit(&world->sent_bytes, memory_order_relaxed);
    }
    if (received_bytes_out != NULL) {
        *received_bytes_out =
            world == NULL ? 0 : atomic_load_explicit(&world->received_bytes, memory_order_relaxed);
    }
}
