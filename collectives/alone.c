/* See alone.h. */
#include "collectives/alone.h"

#include <stdlib.h>

void sherdi_alone_close(sherd_world *world)
{
    sherdi_world_fini(world);
    free(world);
}

sherd_status sherdi_alone_open(sherd_world *alone, const sherdi_world_ops *ops, int rank,
                               int world_size, const sherd_world_params *params, sherd_world **out)
{
    sherd_status status;

    if (alone == NULL) {
        return sherdi_fail(SHERD_E_NOMEM, "no memory for the world");
    }
    sherdi_world_init(alone, ops, rank, world_size, params);
    status = sherdi_world_equip(alone, params, 0, 1);
    if (status != SHERD_OK) {
        return sherdi_world_drop(alone, status);
    }
    *out = alone;
    return SHERD_OK;
}

static sherd_status self_alloc(sherd_world *world, size_t len_bytes, void **out)
{
    return sherdi_host_alloc(world->host, &world->mem, SHERDI_MEM_TRANSPORT, len_bytes, out);
}

static void self_free(sherd_world *world, void *memory)
{
    (void)world;
    sherdi_free(memory);
}

const sherdi_world_ops sherdi_self_ops = {
    .struct_size = sizeof(sherdi_self_ops),
    .name        = "self",
    .caps        = SHERDI_WORLD_SHARES_MEMORY | SHERDI_WORLD_ON_LANE,
    .close       = sherdi_alone_close,
    .alloc       = self_alloc,
    .free        = self_free,
};

sherd_status sherdi_self_create(const sherd_world_params *params, sherd_world **out)
{
    return sherdi_alone_open(calloc(1, sizeof(sherd_world)), &sherdi_self_ops, 0, 1, params, out);
}

sherd_status sherd_world_self(sherd_world **out)
{
    SHERDI_TRY(sherdi_api_check_out(out, "sherd_world_self"));
    return sherdi_self_create(&sherdi_world_standard, out);
}
