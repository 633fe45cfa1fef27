/* The optimizers that list.h names. */
#include "engine/optimizers/optimizer.h"

#include "engine/config/config_impl.h"

#include <assert.h>

#define SHERDI_OPTIMIZER(type, table) "|" type
const char sherdi_optimizer_types[] =
#include "engine/optimizers/list.h"
    ;
#undef SHERDI_OPTIMIZER

#define SHERDI_OPTIMIZER(type, table) &(table),
static const sherdi_optimizer *const TABLE[] = {
#include "engine/optimizers/list.h"
};
#undef SHERDI_OPTIMIZER

size_t sherdi_optimizer_count(void)
{
    return sizeof(TABLE) / sizeof(TABLE[0]);
}

const sherdi_optimizer *sherdi_optimizer_at(size_t index)
{
    assert(index < sherdi_optimizer_count());
    return TABLE[index];
}

size_t sherdi_optimizer_index(const sherdi_optimizer *optimizer)
{
    size_t index = 0;

    while (TABLE[index] != optimizer) {
        index++;
        assert(index < sherdi_optimizer_count());
    }
    return index;
}

sherd_status sherdi_optimizer_find(const sherdi_settings *settings, const char *who,
                                   const char *name, const sherdi_optimizer **out)
{
    size_t index;

    if (!sherdi_config_choice(sherdi_optimizer_types + 1, name, 1, &index)) {
        return sherdi_fail(SHERD_E_NOTSUP, "%s: optimizer %s is not known; known: %s", who, name,
                           sherdi_optimizer_types + 1);
    }
    *out = sherdi_optimizer_in(settings, TABLE[index]);
    return SHERD_OK;
}

#define SHERDI_OPTIMIZER(type, table) type,
const char *sherdi_optimizer_name(const sherdi_optimizer *optimizer)
{
    static const char *const NAMES[] = {
#include "engine/optimizers/list.h"
    };

    return NAMES[sherdi_optimizer_index(optimizer)];
}
#undef SHERDI_OPTIMIZER
