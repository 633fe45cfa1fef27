/* See names.h. Open addressing: a name is at the place of its hash, or at the first free one after
 * it. */
#include "base/names.h"

#include "base/hash.h"

#include <string.h>

#define LEAST_PLACES 16

/* Returns the place of a name, or the free one where it would be. */
static sherdi_name *place_of(const sherdi_names *names, const char *name)
{
    size_t at = (size_t)sherdi_hash_bytes(0, name, strlen(name)) & (names->capacity - 1);

    while (names->places[at].name != NULL && strcmp(names->places[at].name, name) != 0) {
        at = (at + 1) & (names->capacity - 1);
    }
    return &names->places[at];
}

long long sherdi_names_find(const sherdi_names *names, const char *name)
{
    const sherdi_name *place = names->capacity == 0 ? NULL : place_of(names, name);

    return place == NULL || place->name == NULL ? -1 : (long long)place->index;
}

sherd_status sherdi_names_grow(sherdi_names *names, sherdi_mem *mem)
{
    sherdi_names more = {.capacity = names->capacity == 0 ? LEAST_PLACES : 2 * names->capacity};

    if (2 * (names->count + 1) <= names->capacity) {
        return SHERD_OK;
    }
    more.places = sherdi_alloc_array(mem, SHERDI_MEM_CONTROL, more.capacity, sizeof(*more.places));
    if (more.places == NULL) {
        return SHERD_E_NOMEM;
    }
    for (size_t i = 0; i < names->capacity; i++) {
        if (names->places[i].name != NULL) {
            sherdi_names_add(&more, names->places[i].name, names->places[i].index);
        }
    }
    sherdi_names_fini(names);
    *names = more;
    return SHERD_OK;
}

void sherdi_names_add(sherdi_names *names, const char *name, size_t index)
{
    *place_of(names, name) = (sherdi_name){name, index};
    names->count++;
}

void sherdi_names_fini(sherdi_names *names)
{
    sherdi_free(names->places);
    *names = (sherdi_names){0};
}
