#include "collectives/transport_names.h"

#include <stdio.h>

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
