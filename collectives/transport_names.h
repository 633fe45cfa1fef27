/* Questions about all transports of a build. */
#ifndef SHERDI_COLLECTIVES_TRANSPORT_NAMES_H
#define SHERDI_COLLECTIVES_TRANSPORT_NAMES_H

#include "collectives/transport.h"

/** Returns the first transport that holds all of that; NULL: this build has none. */
const sherdi_transport *sherdi_transport_holding(uint32_t what);
/** Returns the library of the transport of that name (see the slot). */
const char *sherdi_transport_library(const char *name);
/** Writes the names of the transports that this build has: "self, threads, ...". */
void sherdi_transport_names(char *text, size_t len_bytes);

#endif
