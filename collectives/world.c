/* The layer above the transports: creation and end of a world, and what every transport takes from
 * here. calls.c has the collective calls, failure.c has failures. The core's
 * transports are alone.c and threads.c. */
#include "collectives/world_impl.h"

#include "base/absent.h"
#include "base/checked.h"
#include "base/log.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ------------------------------------------------------ life of a world -- */

sherd_status sherdi_world_check_process(const sherd_world *world)
{
    return world->process == getpid()
               ? SHERD_OK
               : sherdi_fail(SHERD_E_STATE,
                             "this process was forked from the one that made the world, and cannot "
                             "use it; make a world of its own (sherd_world_self), or, for CUDA or "
                             "MPI, start a new process (exec, spawn)");
}

void sherdi_world_init(sherd_world *world, const sherdi_world_ops *ops, int rank, int world_size,
                       const sherd_world_params *params)
{
    memset(world, 0, sizeof(*world));
    world->ops             = ops;
    world->rank            = rank;
    world->world_size      = world_size;
    world->local_rank      = rank;
    world->local_size      = world_size;
    world->process         = getpid();
    world->timeout_ns      = params->timeout_ns > 0 ? params->timeout_ns : WORLD_TIMEOUT_NS;
    world->host_timeout_ns = params->host_timeout_ns;
    atomic_init(&world->owners, 1);
    atomic_init(&world->failure_state, WORLD_IS_WHOLE);
    sherdi_mem_init(&world->mem);
}

static const world_device_ops *const DEVICES                = SHERDI_WORLD_DEVICES;
static sherd_status (*const BACKEND_KIND)(const sherd_world_params *params,
                                          const char **out) = SHERDI_WORLD_BACKEND_KIND;

/* Gives "cpu", or the kind of device that a rank computes on. */
static sherd_status kind_find(const sherd_world_params *params, const char **out)
{
    const char *wanted = getenv("SHERD_BACKEND");

    if (BACKEND_KIND != NULL) {
        return BACKEND_KIND(params, out);
    }
    *out = wanted == NULL || wanted[0] == '\0' ? "cpu" : wanted;
    return SHERD_OK;
}

const sherd_world_params sherdi_world_standard = {
    .struct_size = sizeof(sherdi_world_standard), .device = -1, .local_rank = -1};

sherd_status sherdi_world_equip(sherd_world *world, const sherd_world_params *params, int share,
                                int shares)
{
    int               is_simulated = (world->ops->caps & SHERDI_WORLD_SIMULATES) != 0;
    sherdi_cpu_params cpu          = {.threads = params->cpu_threads,
                                      .share   = world->shares > 0 ? world->share : share,
                                      .shares  = world->shares > 0 ? world->shares : shares,
                                      .rank    = world->rank,
                                      .is_idle = is_simulated};
    const char       *kind;
    char              threads[256];

    SHERDI_TRY(kind_find(params, &kind));
    cpu.has_device = !is_simulated && strcmp(kind, "cpu") != 0;
    SHERDI_TRY(sherdi_backend_cpu_create_with(&cpu, &world->mem, &world->host));
    world->share       = cpu.share;
    world->shares      = cpu.shares;
    world->cpu_threads = world->host->threads;
    world->backend     = world->host;
    world->sum_scratch =
        sherdi_alloc_array(&world->mem, SHERDI_MEM_CONTROL,
                           is_simulated ? 1 : (size_t)world->world_size, SHERDI_TOLD_BYTES);
    if (world->sum_scratch == NULL) {
        return SHERD_E_NOMEM;
    }
    if (cpu.has_device) {
        SHERDI_TRY(DEVICES == NULL ? sherdi_absent("devices", kind)
                                   : DEVICES->open(world, params, kind));
    }
    sherdi_backend_cpu_describe(world->host, threads, sizeof(threads));
    sherdi_log(SHERD_LOG_DEBUG, world->rank, "world %s, rank %d of %d, local %d of %d, %s",
               world->ops->name, world->rank, world->world_size, world->local_rank,
               world->local_size, threads);
    return SHERD_OK;
}

void sherdi_world_fini(sherd_world *world)
{
    if (world->company != NULL) {
        world->company->drop(world);
    }
    if (world->device != NULL) {
        world->device->ops->close(world);
    }
    if (world->order != NULL) {
        world->order->ops->close(world);
    }
    sherdi_free(world->sum_scratch);
    sherdi_backend_destroy(world->host);
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
    (void)madvise(pages, len_bytes, MADV_HUGEPAGE); /* a hint, as in base/mem.c */
    return pages;
}

void sherd_world_destroy(sherd_world *world)
{
    if (world == NULL || world->process != getpid() || atomic_fetch_sub(&world->owners, 1) > 1) {
        return;
    }
    if (world->order != NULL) {
        world->order->ops->stop(world);
    }
    if (world->company != NULL) {
        world->company->leave(world);
    }
    world->ops->close(world);
}

void sherd_world_abort(sherd_world *world, const char *why)
{
    if (world == NULL || world->process != getpid()) {
        return;
    }
    (void)sherdi_world_fail(world, SHERD_E_PEER_LOST, "rank %d gave up: %s",
                            sherdi_world_number(world, world->rank),
                            why == NULL || why[0] == '\0' ? "no reason given" : why);
}

/* ------------------------------------------------------------ properties -- */

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
        return caps & ~SHERDI_WORLD_ON_LANE;
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

int sherdi_world_local_size(const sherd_world *world)
{
    return world->local_size;
}

const sherdi_world_held *sherdi_world_held_of(const sherd_world *world)
{
    return &world->held;
}

/* ------------------------------------------------- what transports share -- */

sherd_status sherdi_world_alloc(sherd_world *world, size_t len_bytes, void **out)
{
    size_t whole_bytes;

    SHERDI_TRY(sherdi_world_check_process(world));
    SHERDI_TRY(sherdi_world_status(world));
    /* Half of the addresses are enough: transports put gaps between the ranks' shares. */
    if (!sherdi_mul_fits(len_bytes, (size_t)world->world_size, &whole_bytes) ||
        whole_bytes > SIZE_MAX / 4) {
        return sherdi_fail(SHERD_E_NOMEM,
                           "%d times %zu bytes of world memory: more than an address holds",
                           world->world_size, len_bytes);
    }
    sherdi_world_drain(world);
    if (sherdi_world_has_device(world)) {
        return world->device->ops->alloc(world, sherdi_max_size(len_bytes, 1), out);
    }
    return world->ops->alloc(world, sherdi_max_size(len_bytes, 1), out);
}

void sherdi_world_free(sherd_world *world, void *memory)
{
    if (memory == NULL) {
        return;
    }
    sherdi_world_drain(world);
    if (sherdi_world_has_device(world)) {
        world->device->ops->free(world, memory);
    } else {
        world->ops->free(world, memory);
    }
}

void sherdi_world_reduce_local(const sherdi_backend *lane, const sherdi_reduction_args *args,
                               const void *const *srcs, int num_srcs, void *dst, size_t count_elems,
                               void *const *more_dsts, int num_more_dsts)
{
    const sherdi_reduce_args slice = {
        .srcs          = srcs,
        .num_srcs      = num_srcs,
        .src_dtype     = args->send_dtype,
        .comm_dtype    = args->comm_dtype,
        .dst           = dst,
        .dst_dtype     = args->recv_dtype,
        .count_elems   = count_elems,
        .scale         = args->scale,
        .accumulate    = args->accumulate,
        .weights       = args->weights,
        .more_dsts     = more_dsts,
        .num_more_dsts = num_more_dsts,
    };

    if (args->add != NULL) {
        args->add(srcs, num_srcs, dst, count_elems);
    } else if (args->fixed != NULL) {
        lane->kernels->reduce_fixed(lane, &slice, args->fixed);
    } else {
        lane->kernels->reduce(lane, &slice);
    }
}

sherd_status sherdi_world_all_reduce_in_two(sherd_world *world, const sherdi_reduction_args *args)
{
    size_t                 slice_bytes = args->slice_elems * sherdi_reduction_send_bytes(args);
    sherdi_reduction_args  scatter     = *args;
    sherdi_all_gather_args gather      = {
             .recv = args->recv, .slice_bytes = slice_bytes, .what = args->what};

    scatter.recv = (unsigned char *)args->recv + (size_t)world->rank * slice_bytes;
    gather.send  = scatter.recv;
    SHERDI_TRY(world->ops->reduce_scatter(world, &scatter));
    return world->ops->all_gather(world, &gather);
}
