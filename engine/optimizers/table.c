/* The optimizers that list.h names. */
#include "engine/optimizers/optimizer.h"

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

#define SHERDI_OPTIMIZER(type, table) type,
const char *sherdi_optimizer_name(const sherdi_optimizer *optimizer)
{
    static const char *const NAMES[] = {
#include "engine/optimizers/list.h"
    };

    return NAMES[sherdi_optimizer_index(optimizer)];
}
#undef SHERDI_OPTIMIZER
