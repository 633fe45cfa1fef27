/* The transports that transport_list.h names. */
#include "collectives/transport.h"

#include <string.h>

#define SHERDI_TRANSPORT(table) &(table),
static const sherdi_transport *const TABLE[] = {
#include "collectives/transport_list.h"
};
#undef SHERDI_TRANSPORT

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

int sherdi_transport_wants_device(const char *name)
{
    const sherdi_transport *transport = sherdi_transport_find(name);

    return transport != NULL && (transport->holds & SHERDI_TRANSPORT_DEVICES) != 0;
}
