/* The world of one rank: the plainest transport. world.c never sends a collective here,
 * so all there is are memory and the refusal to go on after an abort. */
#include "collectives/procs.h"

#include "base/checked.h"
#include "collectives/transport.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef struct self_block {
    void  *memory;
    size_t len_bytes;
} self_block;

typedef struct self_world {
    sherd_world world;
    self_block *blocks; /* memory that was given out; NULL where free */
    size_t      capacity;
} self_world;

static void self_close(sherd_world *world)
{
    self_world *self = (self_world *)world;

    for (size_t i = 0; i < self->capacity; i++) {
        if (self->blocks[i].memory != NULL) {
            (void)munmap(self->blocks[i].memory, self->blocks[i].len_bytes);
        }
    }
    sherdi_free(self->blocks);
    sherdi_world_fini(world);
    free(self);
}

static sherd_status self_alloc(sherd_world *world, size_t len_bytes, void **out)
{
    self_world *self = (self_world *)world;
    size_t      slot = 0;
    void       *memory;

    while (slot < self->capacity && self->blocks[slot].memory != NULL) {
        slot++;
    }
    SHERDI_TRY(sherdi_grow(&world->mem, SHERDI_MEM_CONTROL, (void **)&self->blocks, &self->capacity,
                           slot + 1, sizeof(*self->blocks)));
    len_bytes = sherdi_round_up(len_bytes, SHERD_ALIGN_BYTES);
    memory    = sherdi_pages_map(len_bytes, 0);
    if (memory == NULL) {
        return SHERD_E_NOMEM;
    }
    self->blocks[slot] = (self_block){.memory = memory, .len_bytes = len_bytes};
    *out               = memory;
    return SHERD_OK;
}

static void self_free(sherd_world *world, void *memory)
{
    self_world *self = (self_world *)world;

    for (size_t i = 0; i < self->capacity; i++) {
        if (self->blocks[i].memory == memory) {
            (void)munmap(memory, self->blocks[i].len_bytes);
            self->blocks[i].memory = NULL;
            return;
        }
    }
}

/* Never called: world.c answers these itself when there is one rank. */
static sherd_status self_refuse(void)
{
    return sherdi_fail(SHERD_E_STATE, "a world of one rank has nobody to call");
}

static sherd_status self_barrier(sherd_world *world)
{
    (void)world;
    return self_refuse();
}

static sherd_status self_all_gather(sherd_world *world, const sherdi_all_gather_args *args)
{
    (void)world;
    (void)args;
    return self_refuse();
}

static sherd_status self_reduction(sherd_world *world, const sherdi_reduction_args *args)
{
    (void)world;
    (void)args;
    return self_refuse();
}

static sherd_status self_all_to_all(sherd_world *world, const sherdi_all_to_all_args *args)
{
    (void)world;
    (void)args;
    return self_refuse();
}

static sherd_status self_broadcast(sherd_world *world, void *data, size_t len_bytes, int root)
{
    (void)world;
    (void)data;
    (void)len_bytes;
    (void)root;
    return self_refuse();
}

static void self_abort(sherd_world *world, const char *why)
{
    (void)world; /* there is nobody to tell */
    (void)why;
}

static const sherdi_world_ops SELF_OPS = {
    .struct_size    = sizeof(SELF_OPS),
    .name           = "self",
    .caps           = SHERDI_WORLD_SHARES_MEMORY | SHERDI_WORLD_ON_LANE,
    .close          = self_close,
    .alloc          = self_alloc,
    .free           = self_free,
    .barrier        = self_barrier,
    .all_gather     = self_all_gather,
    .reduce_scatter = self_reduction,
    .all_reduce     = self_reduction,
    .all_to_all     = self_all_to_all,
    .broadcast      = self_broadcast,
    .abort          = self_abort,
};

sherd_status sherdi_world_self_create(const sherd_world_params *params, sherd_world **out)
{
    self_world  *self;
    sherd_status status;

    self = calloc(1, sizeof(*self));
    if (self == NULL) {
        return sherdi_fail(SHERD_E_NOMEM, "no room for the world");
    }
    sherdi_world_init(&self->world, &SELF_OPS, 0, 1, params);
    status = sherdi_world_equip(&self->world, params, 0, 1);
    if (status != SHERD_OK) {
        self_close(&self->world);
        return status;
    }
    *out = &self->world;
    return SHERD_OK;
}

sherd_status sherd_world_self(sherd_world **out)
{
    sherd_world_params params;

    SHERDI_TRY(sherdi_api_check_out(out, "sherd_world_self"));
    sherd_world_params_init(&params);
    return sherdi_world_self_create(&params, out);
}

static sherd_status self_create_at(const procs_params *params, sherd_world **out)
{
    return sherdi_world_self_create(params->world, out);
}

const sherdi_transport sherdi_transport_self = {
    .name = "self", .holds = SHERDI_TRANSPORT_ALONE, .is_built = 1, .create = self_create_at};
