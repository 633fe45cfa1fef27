/* One rank of a world that moves nothing: what plans for large worlds are made on. All
 * counting is done in world.c; memory is promised and given on first touch. */
#include "collectives/transport.h"
#include "collectives/world_impl.h"

#include "base/checked.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef struct sim_block {
    void  *memory; /* NULL: free entry */
    size_t len_bytes;
} sim_block;

typedef struct sim_world {
    sherd_world      world;
    sherdi_simulated machine;
    sim_block       *blocks;
    size_t           capacity;
} sim_world;

static void sim_close(sherd_world *world)
{
    sim_world *sim = (sim_world *)world;

    for (size_t i = 0; i < sim->capacity; i++) {
        if (sim->blocks[i].memory != NULL) {
            (void)munmap(sim->blocks[i].memory, sim->blocks[i].len_bytes);
        }
    }
    sherdi_free(sim->blocks);
    sherdi_world_fini(world);
    free(sim);
}

static sherd_status sim_alloc(sherd_world *world, size_t len_bytes, void **out)
{
    sim_world *sim  = (sim_world *)world;
    size_t     slot = 0;
    void      *memory;

    while (slot < sim->capacity && sim->blocks[slot].memory != NULL) {
        slot++;
    }
    SHERDI_TRY(sherdi_grow(&world->mem, SHERDI_MEM_CONTROL, (void **)&sim->blocks, &sim->capacity,
                           slot + 1, sizeof(*sim->blocks)));
    len_bytes = sherdi_round_up(len_bytes, SHERD_ALIGN_BYTES);
    memory    = sherdi_pages_map(len_bytes, MAP_NORESERVE);
    if (memory == NULL) {
        return SHERD_E_NOMEM;
    }
    sim->blocks[slot] = (sim_block){.memory = memory, .len_bytes = len_bytes};
    *out              = memory;
    return SHERD_OK;
}

static void sim_free(sherd_world *world, void *memory)
{
    sim_world *sim = (sim_world *)world;

    for (size_t i = 0; i < sim->capacity; i++) {
        if (sim->blocks[i].memory == memory) {
            (void)munmap(memory, sim->blocks[i].len_bytes);
            sim->blocks[i].memory = NULL;
            return;
        }
    }
}

/* By contract of SHERDI_WORLD_SIMULATES nothing moves. */
static sherd_status sim_barrier(sherd_world *world)
{
    (void)world;
    return SHERD_OK;
}

static sherd_status sim_all_gather(sherd_world *world, const sherdi_all_gather_args *args)
{
    (void)world;
    (void)args;
    return SHERD_OK;
}

static sherd_status sim_reduction(sherd_world *world, const sherdi_reduction_args *args)
{
    (void)world;
    (void)args;
    return SHERD_OK;
}

static sherd_status sim_all_to_all(sherd_world *world, const sherdi_all_to_all_args *args)
{
    (void)world;
    (void)args;
    return SHERD_OK;
}

static sherd_status sim_broadcast(sherd_world *world, void *data, size_t len_bytes, int root)
{
    (void)world;
    (void)data;
    (void)len_bytes;
    (void)root;
    return SHERD_OK;
}

static void sim_abort(sherd_world *world, const char *why)
{
    (void)world; /* there is nobody to tell */
    (void)why;
}

static const sherdi_world_ops SIM_OPS = {
    .struct_size    = sizeof(SIM_OPS),
    .name           = "sim",
    .caps           = SHERDI_WORLD_SIMULATES,
    .close          = sim_close,
    .alloc          = sim_alloc,
    .free           = sim_free,
    .barrier        = sim_barrier,
    .all_gather     = sim_all_gather,
    .reduce_scatter = sim_reduction,
    .all_reduce     = sim_reduction,
    .all_to_all     = sim_all_to_all,
    .broadcast      = sim_broadcast,
    .abort          = sim_abort,
};

const sherdi_simulated *sherdi_world_simulated(const sherd_world *world)
{
    return world->ops == &SIM_OPS ? &((const sim_world *)world)->machine : NULL;
}

void sherd_simulate_params_init(sherd_simulate_params *params)
{
    *params = (sherd_simulate_params){.struct_size = sizeof(*params)};
}

static sherd_status params_read(const sherd_simulate_params *given, int world_size,
                                sherdi_simulated *out)
{
    sherd_simulate_params params;
    int                   is_cuda;

    sherd_simulate_params_init(&params);
    if (given != NULL) {
        SHERDI_TRY(sherdi_api_check(given, SHERDI_API_SIMULATE_PARAMS));
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
    return sherd_world_simulate_with(rank, world_size, NULL, out);
}

sherd_status sherd_world_simulate_with(int rank, int world_size,
                                       const sherd_simulate_params *params, sherd_world **out)
{
    sim_world         *sim;
    sherdi_simulated   machine;
    sherd_world_params world_params;
    sherd_status       status;

    SHERDI_TRY(sherdi_api_check_out(out, "sherd_world_simulate_with"));
    sherd_world_params_init(&world_params);
    if (world_size < 1 || rank < 0 || rank >= world_size) {
        return sherdi_fail(SHERD_E_INVAL, "rank %d of %d is not a rank of a world", rank,
                           world_size);
    }
    SHERDI_TRY(params_read(params, world_size, &machine));
    sim = calloc(1, sizeof(*sim));
    if (sim == NULL) {
        return sherdi_fail(SHERD_E_NOMEM, "no room for the simulated world");
    }
    sim->machine = machine;
    sherdi_world_init(&sim->world, &SIM_OPS, rank, world_size, &world_params);
    status = sherdi_world_equip(&sim->world, &world_params, 0, 1);
    if (status != SHERD_OK) {
        sim_close(&sim->world);
        return status;
    }
    *out = &sim->world;
    return SHERD_OK;
}

/* Holds nobody: sherd_world_simulate makes one. */
const sherdi_transport sherdi_transport_sim = {.name = "sim", .is_built = 1};
