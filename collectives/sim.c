/* One rank of a world that moves nothing: what plans for large worlds are made on. All
 * counting is done in world.c; memory is promised and given on first touch. */
#include "collectives/world_impl.h"

#include "base/checked.h"

#include <stdlib.h>
#include <sys/mman.h>

typedef struct sim_block {
    void  *memory; /* NULL: free entry */
    size_t len_bytes;
} sim_block;

typedef struct sim_world {
    sherd_world world;
    sim_block  *blocks;
    size_t      capacity;
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

sherd_status sherd_world_simulate(int rank, int world_size, sherd_world **out)
{
    sim_world         *sim;
    sherd_world_params params;
    sherd_status       status;

    sherd_world_params_init(&params);
    if (world_size < 1 || rank < 0 || rank >= world_size) {
        return sherdi_fail(SHERD_E_INVAL, "rank %d of %d is not a rank of a world", rank,
                           world_size);
    }
    sim = calloc(1, sizeof(*sim));
    if (sim == NULL) {
        return sherdi_fail(SHERD_E_NOMEM, "no room for the simulated world");
    }
    sherdi_world_init(&sim->world, &SIM_OPS, rank, world_size, &params);
    status = sherdi_world_equip(&sim->world, &params, 0, 1);
    if (status != SHERD_OK) {
        sim_close(&sim->world);
        return status;
    }
    *out = &sim->world;
    return SHERD_OK;
}
