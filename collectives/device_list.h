/* The operations of worlds on the memory of devices: one table, or none. world_impl.h declares it
 * from this list, and world.c takes the first. A build has the lines of its modules
 * (modules.txt). */
#include "sherd_build.h"

#ifdef SHERDI_MODULE_DEVICES
SHERDI_WORLD_DEVICES(sherdi_world_devices)
#endif
