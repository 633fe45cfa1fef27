/* The operations of worlds on the memory of devices: the table of a module, or NULL in a build
 * without it. */
#include "sherd_build.h"

#ifdef SHERDI_MODULE_DEVICES
extern const struct world_device_ops sherdi_world_devices;
#define SHERDI_WORLD_DEVICES (&sherdi_world_devices)
#else
#define SHERDI_WORLD_DEVICES NULL
#endif
