/* The library's transports, and a line more. */
#include_next "collectives/transport_list.h"
SHERDI_TRANSPORT(test_transport_relay)
