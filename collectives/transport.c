/* The transports that transport_list.h names, the core's among them, and what they have sent. */
#include "collectives/transport.h"

#include "collectives/alone.h"

#include <stdio.h>
#include <string.h>

const sherdi_transport sherdi_transport_self = {.name         = "self",
                                                .holds        = SHERDI_TRANSPORT_ALONE,
                                                .is_built     = 1,
                                                .create_alone = sherdi_self_create};

const sherdi_transport sherdi_transport_threads = {.name = "threads", .is_built = 1};

#define SHERDI_TRANSPORT(table) &(table),
static const sherdi_transport *const TABLE[] = {
#include "collectives/transport_list.h"
};
#undef SHERDI_TRANSPORT

sherd_status sherdi_world_rank_check(int rank, int world_size)
{
    return world_size >= 1 && rank >= 0 && rank < world_size
               ? SHERD_OK
               : sherdi_fail(SHERD_E_INVAL,
                             "rank %d of %d is not possible: ranks count from 0 and stay below the "
                             "size of the world",
                             rank, world_size);
}

const sherdi_transport *sherdi_transport_at(size_t index)
{
    return index < sizeof(TABLE) / sizeof(TABLE[0]) ? TABLE[index] : NULL;
}

const sherdi_transport *sherdi_transport_find(const char *name)
{
    const sherdi_transport *transport = NULL;

    for (size_t i = 0; name != NULL && (transport = sherdi_transport_at(i)) != NULL; i++) {
        if (strcmp(transport->name, name) == 0) {
            return transport;
        }
    }
    return NULL;
}

const sherdi_transport *sherdi_transport_holding(uint32_t what)
{
    const sherdi_transport *transport;

    for (size_t i = 0; (transport = sherdi_transport_at(i)) != NULL; i++) {
        if ((transport->holds & what) == what) {
            return transport;
        }
    }
    return NULL;
}

const char *sherdi_transport_library(const char *name)
{
    const sherdi_transport *transport = sherdi_transport_find(name);

    return transport != NULL && transport->library != NULL ? transport->library()
                                                           : "no: it is not in this build";
}

void sherdi_transport_names(char *text, size_t len_bytes)
{
    const sherdi_transport *transport;
    size_t                  at = 0;

    text[0] = '\0';
    for (size_t i = 0; (transport = sherdi_transport_at(i)) != NULL && at < len_bytes; i++) {
        if (transport->is_built) {
            at += (size_t)snprintf(text + at, len_bytes - at, "%s%s", at == 0 ? "" : ", ",
                                   transport->name);
        }
    }
}

/* ------------------------------------------------------------- traffic -- */

size_t sherdi_world_sent_bytes(const sherd_world *world)
{
    return atomic_load_explicit(&world->sent_bytes, memory_order_relaxed);
}

size_t sherdi_world_between_bytes(const sherd_world *world)
{
    return atomic_load_explicit(&world->between_bytes, memory_order_relaxed);
}

void sherd_world_traffic(const sherd_world *world, uint64_t *sent_bytes_out,
                         uint64_t *received_bytes_out)
{
    if (sent_bytes_out != NULL) {
        *sent_bytes_out = world == NULL ? 0 : sherdi_world_sent_bytes(world);
    }
    if (received_bytes_out != NULL) {
        *received_bytes_out =
            world == NULL ? 0 : atomic_load_explicit(&world->received_bytes, memory_order_relaxed);
    }
}
