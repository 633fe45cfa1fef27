/* See alone.h, and the transport of one rank. */
#include "collectives/alone.h"

#include "base/checked.h"
#include "collectives/split.h"
#include "collectives/transport.h"

#include <stdlib.h>
#include <sys/mman.h>

typedef struct alone_block {
    void  *memory; /* NULL: free entry */
    size_t len_bytes;
} alone_block;

void sherdi_alone_close(sherd_world *world)
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

sherd_status sherdi_alone_alloc(sherd_world *world, size_t len_bytes, void **out)
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

void sherdi_alone_free(sherd_world *world, void *memory)
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

sherd_status sherdi_alone_open(alone_world *alone, const sherdi_world_ops *ops, int rank,
                               int world_size, const sherd_world_params *params, sherd_world **out)
{
    sherd_status status;

    if (alone == NULL) {
        return sherdi_fail(SHERD_E_NOMEM, "no memory for the world");
    }
    sherdi_world_init(&alone->world, ops, rank, world_size, params);
    status = sherdi_world_equip(&alone->world, params, 0, 1);
    if (status != SHERD_OK) {
        return sherdi_world_drop(&alone->world, status);
    }
    *out = &alone->world;
    return SHERD_OK;
}

/* ------------------------------------------------------------- by itself -- */

static sherd_status self_split(sherdi_split *split, sherd_world **out);

static const sherdi_world_ops SELF_OPS = {
    .struct_size = sizeof(SELF_OPS),
    .name        = "self",
    .caps        = SHERDI_WORLD_SHARES_MEMORY | SHERDI_WORLD_ON_LANE,
    .close       = sherdi_alone_close,
    .alloc       = sherdi_alone_alloc,
    .free        = sherdi_alone_free,
    .split       = self_split,
};

static sherd_status self_create(const sherd_world_params *params, sherd_world **out)
{
    return sherdi_alone_open(calloc(1, sizeof(alone_world)), &SELF_OPS, 0, 1, params, out);
}

static sherd_status self_split(sherdi_split *split, sherd_world **out)
{
    if (split->world_size == 0) {
        return SHERD_OK;
    }
    SHERDI_TRY(self_create(&split->params, out));
    sherdi_split_adopt(split, *out);
    return SHERD_OK;
}

sherd_status sherd_world_self(sherd_world **out)
{
    sherd_world_params params;

    SHERDI_TRY(sherdi_api_check_out(out, "sherd_world_self"));
    sherd_world_params_init(&params);
    return self_create(&params, out);
}

const sherdi_transport sherdi_transport_self = {
    .name = "self", .holds = SHERDI_TRANSPORT_ALONE, .is_built = 1, .create_alone = self_create};
