/* Names by hash: which index a name stands for. The names themselves stay where they are. */
#ifndef SHERDI_BASE_NAMES_H
#define SHERDI_BASE_NAMES_H

#include "base/mem.h"

typedef struct sherdi_name {
    const char *name; /* NULL: the place is free */
    size_t      index;
} sherdi_name;

/* Starts zeroed. The table is at most half full. */
typedef struct sherdi_names {
    sherdi_name *places;
    size_t       count, capacity; /* a power of two, or 0 */
} sherdi_names;

/** Returns the index of a name; -1: the name does not exist. */
long long sherdi_names_find(const sherdi_names *names, const char *name);
/** Makes room for one more name. E_NOMEM. */
sherd_status sherdi_names_grow(sherdi_names *names, sherdi_mem *mem);
/** Adds a name that is not there, for which room was made; it is not copied. */
void sherdi_names_add(sherdi_names *names, const char *name, size_t index);
void sherdi_names_fini(sherdi_names *names);

#endif
