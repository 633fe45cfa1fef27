/* The tiers that tier_list.h names. */
#include "offload/tiers.h"

#include <assert.h>
#include <string.h>

const sherdi_tier_kind sherdi_tier_host = {.space = SHERDI_SPACE_HOST};

#define SHERDI_TIER(name, table) "|" name
const char sherdi_tier_choices[] =
#include "offload/tier_list.h"
    ;
#undef SHERDI_TIER

#define SHERDI_TIER(name, table) {name, &(table)},
static const struct {
    const char             *name;
    const sherdi_tier_kind *kind;
} TABLE[] = {
#include "offload/tier_list.h"
};
#undef SHERDI_TIER

#define COUNT (sizeof(TABLE) / sizeof(TABLE[0]))

const sherdi_tier_kind *sherdi_tier_at(size_t index)
{
    assert(index < COUNT);
    return TABLE[index].kind;
}

size_t sherdi_tier_index(const sherdi_tier_kind *kind)
{
    size_t index = 0;

    while (TABLE[index].kind != kind) {
        index++;
        assert(index < COUNT);
    }
    return index;
}

const sherdi_tier_kind *sherdi_tier_find(const char *name)
{
    for (size_t i = 0; i < COUNT; i++) {
        if (strcmp(TABLE[i].name, name) == 0) {
            return TABLE[i].kind;
        }
    }
    return NULL;
}

const char *sherdi_tier_name(const sherdi_tier_kind *kind)
{
    return TABLE[sherdi_tier_index(kind)].name;
}

const sherdi_tier_kind *sherdi_tier_of(sherdi_space space)
{
    size_t index = 0;

    while (TABLE[index].kind->space != space) {
        index++;
        assert(index < COUNT);
    }
    return TABLE[index].kind;
}
