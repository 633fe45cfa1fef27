/* Regions of a planned buffer. See pool.h. */
#include "engine/pool.h"

#include <assert.h>

sherd_status sherdi_pool_init(sherdi_pool *pool, sherdi_mem *mem, size_t num_units)
{
    pool->regions = sherdi_alloc_array(mem, SHERDI_MEM_CONTROL, num_units, sizeof(*pool->regions));
    if (pool->regions == NULL) {
        return SHERD_E_NOMEM;
    }
    pool->num_regions = num_units;
    return SHERD_OK;
}

void sherdi_pool_fini(sherdi_pool *pool)
{
    sherdi_free(pool->regions);
    pool->regions     = NULL;
    pool->num_regions = 0;
}

static int region_overlaps(const sherdi_region *region, size_t offset, size_t bytes)
{
    return region->is_used && region->offset < offset + bytes &&
           offset < region->offset + region->bytes;
}

int sherdi_pool_holder(const sherdi_pool *pool, int unit, size_t offset, size_t bytes)
{
    for (size_t u = 0; u < pool->num_regions; u++) {
        const sherdi_region *region = &pool->regions[u];

        if ((int)u != unit && region->is_pinned && region_overlaps(region, offset, bytes)) {
            return (int)u;
        }
    }
    return -1;
}

sherd_status sherdi_pool_place(sherdi_pool *pool, sherd_world *world, const sherdi_backend *writer,
                               int unit, size_t offset, size_t bytes)
{
    assert(sherdi_pool_holder(pool, unit, offset, bytes) < 0 && "the caller has looked");
    /* Its own former region may lie elsewhere and be in flight: nobody would wait for that later. */
    SHERDI_TRY(sherdi_world_follow(world, writer, pool->regions[unit].ticket));
    for (size_t u = 0; u < pool->num_regions; u++) {
        sherdi_region *region = &pool->regions[u];

        if (region_overlaps(region, offset, bytes)) {
            SHERDI_TRY(sherdi_world_follow(world, writer, region->ticket));
            region->is_used = 0;
        }
    }
    pool->regions[unit] =
        (sherdi_region){.offset = offset, .bytes = bytes, .is_used = 1, .is_pinned = 1};
    return SHERD_OK;
}

void sherdi_pool_poison(sherdi_pool *pool, const sherdi_backend *lane, int unit, int is_on)
{
    const sherdi_region *region = &pool->regions[unit];

    if (is_on && region->is_used) {
        lane->device->fill(lane, pool->base + region->offset, 0xff, region->bytes);
    }
}
