/* The settings that ranks compare. */
#ifndef SHERDI_ENGINE_CONFIG_COMPARE_H
#define SHERDI_ENGINE_CONFIG_COMPARE_H

#include "engine/config/config.h"

/* A setting as 64 bits, with the name of the key that a user would change. */
typedef struct sherdi_named_bits {
    const char *key;
    uint64_t    bits;
} sherdi_named_bits;

#define SHERDI_SETTINGS_MOST 160

/** Lists the settings that must be the same on all ranks. Settings from which others follow come
 *  first. Folders, pinning and the requests to a drive are not in the list, since the hosts' drives
 *  may differ. Fills at most SHERDI_SETTINGS_MOST entries and returns their number. */
size_t sherdi_settings_list(const sherdi_settings *settings, sherdi_named_bits *out);
#define SHERDI_SETTINGS_LISTER(name)                                                               \
    size_t name(const sherdi_settings *settings, sherdi_named_bits *out);
#include "engine/config/settings_list.h"
#undef SHERDI_SETTINGS_LISTER

#endif
