/* Worlds that call nobody, so tickets.c answers their collectives: `self` has one rank, and `sim`
 * stands for one rank of a described machine, for the plans of large worlds. This file creates them
 * and allocates their memory, whose pages come on first touch. */
#include "collectives/procs.h"
#include "sherd_tools.h"

#include "base/checked.h"
#include "collectives/split.h"
#include "collectives/transport.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef struct alone_block {
    void  *memory; /* NULL: free entry */
    size_t len_bytes;
} alone_block;

typedef struct alone_world {
    sherd_world      world;
    sherdi_simulated machine; /* of a simulated world */
    alone_block     *blocks;  /* memory that was allocated */
    size_t           capacity;
} alone_world;

static void alone_close(sherd_world *world)
{
    alone_world *alone = (alone_world *)world;

    for (size_t i = 0; i < alone->capacity; i++) {
        if (alone->blocks[i].memory != NULL) {
            (void)munmap(alone->blocks[i].memory, alone->blocks[i].len_bytes);
        }
    }
    sherdi_free(alone->blocks);
    sherdi_world_fini(world);
    free(alone);
}

static sherd_status alone_alloc(sherd_world *world, size_t len_bytes, void **out)
{
    alone_world *alone = (alone_world *)world;
    size_t       slot  = 0;
    void        *memory;

    while (slot < alone->capacity && alone->blocks[slot].memory != NULL) {
        slot++;
    }
    SHERDI_TRY(sherdi_grow(&world->mem, SHERDI_MEM_CONTROL, (void **)&alone->blocks,
                           &alone->capacity, slot + 1, sizeof(*alone->blocks)));
    len_bytes = sherdi_round_up(len_bytes, SHERD_ALIGN_BYTES);
    memory =
        sherdi_pages_map(len_bytes, world->ops->caps & SHERDI_WORLD_SIMULATES ? MAP_NORESERVE : 0);
    if (memory == NULL) {
        return SHERD_E_NOMEM;
    }
    if ((world->ops->caps & SHERDI_WORLD_SIMULATES) == 0 &&
        sherdi_host_touch(world->host, memory, len_bytes) != SHERD_OK) {
        (void)munmap(memory, len_bytes);
        return SHERD_E_NOMEM;
    }
    alone->blocks[slot] = (alone_block){.memory = memory, .len_bytes = len_bytes};
    *out                = memory;
    return SHERD_OK;
}

static void alone_free(sherd_world *world, void *memory)
{
    alone_world *alone = (alone_world *)world;

    for (size_t i = 0; i < alone->capacity; i++) {
        if (alone->blocks[i].memory == memory) {
            (void)munmap(memory, alone->blocks[i].len_bytes);
            alone->blocks[i].memory = NULL;
            return;
        }
    }
}

static sherd_status self_split(sherdi_split *split, sherd_world **out);

static const sherdi_world_ops SELF_OPS = {
    .struct_size = sizeof(SELF_OPS),
    .name        = "self",
    .caps        = SHERDI_WORLD_SHARES_MEMORY | SHERDI_WORLD_ON_LANE,
    .close       = alone_close,
    .alloc       = alone_alloc,
    .free        = alone_free,
    .split       = self_split,
};

static const sherdi_world_ops SIM_OPS = {
    .struct_size = sizeof(SIM_OPS),
    .name        = "sim",
    .caps        = SHERDI_WORLD_SIMULATES,
    .close       = alone_close,
    .alloc       = alone_alloc,
    .free        = alone_free,
};

static sherd_status alone_create(const sherdi_world_ops *ops, int rank, int world_size,
                                 const sherd_world_params *params, const sherdi_simulated *machine,
                                 sherd_world **out)
{
    alone_world *alone = calloc(1, sizeof(*alone));
    sherd_status status;

    if (alone == NULL) {
        return sherdi_fail(SHERD_E_NOMEM, "no memory for the world");
    }
    alone->machine = *machine;
    sherdi_world_init(&alone->world, ops, rank, world_size, params);
    status = sherdi_world_equip(&alone->world, params, 0, 1);
    if (status != SHERD_OK) {
        alone_close(&alone->world);
        return status;
    }
    *out = &alone->world;
    return SHERD_OK;
}

/* ------------------------------------------------------------- by itself -- */

static sherd_status self_create(const procs_params *params, sherd_world **out)
{
    return alone_create(&SELF_OPS, 0, 1, params->world, &(sherdi_simulated){0}, out);
}

static sherd_status self_split(sherdi_split *split, sherd_world **out)
{
    if (split->world_size == 0) {
        return SHERD_OK;
    }
    SHERDI_TRY(alone_create(&SELF_OPS, 0, 1, &split->params, &(sherdi_simulated){0}, out));
    sherdi_split_adopt(split, *out);
    return SHERD_OK;
}

sherd_status sherd_world_self(sherd_world **out)
{
    sherd_world_params params;

    SHERDI_TRY(sherdi_api_check_out(out, "sherd_world_self"));
    sherd_world_params_init(&params);
    return self_create(&(procs_params){.world = &params}, out);
}

const sherdi_transport sherdi_transport_self = {
    .name = "self", .holds = SHERDI_TRANSPORT_ALONE, .is_built = 1, .create = self_create};

/* ------------------------------------------------------------- simulated -- */

const sherdi_simulated *sherdi_world_simulated(const sherd_world *world)
{
    return world->ops == &SIM_OPS ? &((const alone_world *)world)->machine : NULL;
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
    SHERDI_TRY(sherdi_api_check_out(out, "sherd_world_simulate"));
    return sherd_world_simulate_with(rank, world_size, NULL, out);
}

sherd_status sherd_world_simulate_with(int rank, int world_size,
                                       const sherd_simulate_params *params, sherd_world **out)
{
    sherdi_simulated   machine;
    sherd_world_params world_params;

    SHERDI_TRY(sherdi_api_check_out(out, "sherd_world_simulate_with"));
    sherd_world_params_init(&world_params);
    SHERDI_TRY(sherdi_world_rank_check(rank, world_size));
    SHERDI_TRY(params_read(params, world_size, &machine));
    return alone_create(&SIM_OPS, rank, world_size, &world_params, &machine, out);
}

sherd_status sherdi_world_dry(int rank, int world_size, sherd_world **out)
{
    alone_world       *alone = calloc(1, sizeof(*alone));
    sherd_world_params params;

    if (alone == NULL) {
        return sherdi_fail(SHERD_E_NOMEM, "no memory for the world");
    }
    sherd_world_params_init(&params);
    sherdi_world_init(&alone->world, &SIM_OPS, rank, world_size, &params);
    alone->world.sum_scratch =
        sherdi_alloc(&alone->world.mem, SHERDI_MEM_CONTROL, SHERDI_TOLD_BYTES);
    if (alone->world.sum_scratch == NULL) {
        alone_close(&alone->world);
        return SHERD_E_NOMEM;
    }
    *out = &alone->world;
    return SHERD_OK;
}

/* Holds no ranks: sherd_world_simulate creates its worlds. */
const sherdi_transport sherdi_transport_sim = {.name = "sim", .is_built = 1};
