/* See simulated.h. The calls of these worlds move nothing; where control data is exchanged, every
 * rank's is this rank's. The engine asks for the machine that the rank stands for. */
#include "collectives/simulated.h"

#include "base/checked.h"
#include "collectives/alone.h"
#include "collectives/split.h"
#include "collectives/transport.h"
#include "sherd_tools.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef struct simulated_world {
    sherd_world      world;
    sherdi_simulated machine;
} simulated_world;

/* The memory of a described machine may be more than there is here: its pages come on first touch,
 * and the first one has the length. */
static sherd_status sim_alloc(sherd_world *world, size_t len_bytes, void **out)
{
    size_t *pages;

    (void)world;
    len_bytes = sherdi_round_up(len_bytes, SHERD_ALIGN_BYTES) + SHERD_ALIGN_BYTES;
    pages     = sherdi_pages_map(len_bytes, MAP_NORESERVE);
    if (pages == NULL) {
        return SHERD_E_NOMEM;
    }
    *pages = len_bytes;
    *out   = (unsigned char *)pages + SHERD_ALIGN_BYTES;
    return SHERD_OK;
}

static void sim_free(sherd_world *world, void *memory)
{
    size_t *pages = (size_t *)(void *)((unsigned char *)memory - SHERD_ALIGN_BYTES);

    (void)world;
    (void)munmap(pages, *pages);
}

static sherd_status sim_barrier(sherd_world *world)
{
    (void)world;
    return SHERD_OK;
}

static sherd_status sim_all_gather(sherd_world *world, const sherdi_all_gather_args *args)
{
    size_t bytes = args->flags & SHERDI_COLL_HOST ? args->slice_bytes : 0;

    for (int r = 0; r < world->world_size && bytes > 0; r++) {
        memmove((unsigned char *)args->recv + (size_t)r * bytes, args->send, bytes);
    }
    return SHERD_OK;
}

static sherd_status sim_reduction(sherd_world *world, const sherdi_reduction_args *args)
{
    (void)world, (void)args;
    return SHERD_OK;
}

static sherd_status sim_broadcast(sherd_world *world, void *data, size_t len_bytes, int root)
{
    (void)world, (void)data, (void)len_bytes, (void)root;
    return SHERD_OK;
}

static sherd_status sim_sum_u64(sherd_world *world, uint64_t *values, size_t count)
{
    (void)world, (void)values, (void)count;
    return SHERD_OK;
}

static sherd_status sim_split(sherdi_split *split, sherd_world **out);

static const sherdi_world_ops SIM_OPS = {
    .struct_size    = sizeof(SIM_OPS),
    .name           = "sim",
    .caps           = SHERDI_WORLD_SIMULATES,
    .close          = sherdi_alone_close,
    .alloc          = sim_alloc,
    .free           = sim_free,
    .barrier        = sim_barrier,
    .all_gather     = sim_all_gather,
    .reduce_scatter = sim_reduction,
    .all_reduce     = sim_reduction,
    .broadcast      = sim_broadcast,
    .sum_u64        = sim_sum_u64,
    .split          = sim_split,
};

const sherdi_simulated *sherdi_world_simulated(const sherd_world *world)
{
    return world->ops == &SIM_OPS ? &((const simulated_world *)world)->machine : NULL;
}

void sherd_simulate_params_init(sherd_simulate_params *params)
{
    sherdi_api_init(params, &(sherd_simulate_params){.struct_size = sizeof(*params)});
}

static sherd_status params_read(const sherd_simulate_params *given, int world_size,
                                sherdi_simulated *out)
{
    sherd_simulate_params params;
    int                   is_cuda;

    sherd_simulate_params_init(&params);
    if (given != NULL) {
        SHERDI_TRY(sherdi_api_check(given, SHERDI_API(sherd_simulate_params)));
        memcpy(&params, given, given->struct_size);
    }
    is_cuda = params.backend != NULL && strcmp(params.backend, "cuda") == 0;
    if (params.backend != NULL && !is_cuda && strcmp(params.backend, "cpu") != 0) {
        return sherdi_fail(SHERD_E_INVAL, "backend '%s' cannot be planned for; cpu or cuda",
                           params.backend);
    }
    if (params.ranks_per_host < 0) {
        return sherdi_fail(SHERD_E_INVAL, "%d ranks to a host; 0 is all of them",
                           params.ranks_per_host);
    }
    if (params.ranks_per_host == 0 || params.ranks_per_host > world_size) {
        params.ranks_per_host = world_size;
    }
    *out = (sherdi_simulated){.has_device     = is_cuda,
                              .has_receive    = is_cuda && world_size > 1,
                              .is_on_lane     = is_cuda,
                              .ranks_per_host = params.ranks_per_host,
                              .device_bytes   = is_cuda ? params.device_bytes : 0,
                              .host_bytes     = params.host_bytes};
    return SHERD_OK;
}

sherd_status sherd_world_simulate(int rank, int world_size, sherd_world **out)
{
    SHERDI_TRY(sherdi_api_check_out(out, "sherd_world_simulate"));
    return sherd_world_simulate_with(rank, world_size, NULL, out);
}

sherd_status sherd_world_simulate_with(int rank, int world_size,
                                       const sherd_simulate_params *params, sherd_world **out)
{
    simulated_world   *simulated;
    sherdi_simulated   machine;
    sherd_world_params world_params;

    SHERDI_TRY(sherdi_api_check_out(out, "sherd_world_simulate_with"));
    sherd_world_params_init(&world_params);
    SHERDI_TRY(sherdi_world_rank_check(rank, world_size));
    SHERDI_TRY(params_read(params, world_size, &machine));
    simulated = calloc(1, sizeof(*simulated));
    SHERDI_TRY(sherdi_alone_open((sherd_world *)simulated, &SIM_OPS, rank, world_size,
                                 &world_params, out));
    simulated->machine = machine;
    return SHERD_OK;
}

/* The group's world on the same machine: of the ranks of a host, every `stride`th is in it. */
static sherd_status sim_split(sherdi_split *split, sherd_world **out)
{
    const sherdi_simulated     *machine = sherdi_world_simulated(split->parent);
    int                         local   = machine->ranks_per_host / split->stride;
    const sherd_simulate_params params  = {.struct_size    = sizeof(params),
                                           .backend        = machine->has_device ? "cuda" : "cpu",
                                           .ranks_per_host = local > 0 ? local : 1,
                                           .device_bytes   = machine->device_bytes,
                                           .host_bytes     = machine->host_bytes};

    return sherd_world_simulate_with(split->rank, split->world_size, &params, out);
}

sherd_status sherdi_world_dry(int rank, int world_size, sherd_world **out)
{
    simulated_world   *simulated = calloc(1, sizeof(*simulated));
    sherd_world       *world     = (sherd_world *)simulated;
    sherd_world_params params;

    if (simulated == NULL) {
        return sherdi_fail(SHERD_E_NOMEM, "no memory for the world");
    }
    sherd_world_params_init(&params);
    sherdi_world_init(world, &SIM_OPS, rank, world_size, &params);
    world->sum_scratch = sherdi_alloc(&world->mem, SHERDI_MEM_CONTROL, SHERDI_TOLD_BYTES);
    if (world->sum_scratch == NULL) {
        sherdi_alone_close(world);
        return SHERD_E_NOMEM;
    }
    *out = world;
    return SHERD_OK;
}

/* Holds no ranks: sherd_world_simulate creates its worlds. */
const sherdi_transport sherdi_transport_sim = {.name = "sim", .is_built = 1};
