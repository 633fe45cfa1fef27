/* Stays in one planned buffer: at most one region per unit, where the plan says. What is in the way there and
 * not held is evicted, which depends only on the order of calls: all ranks do alike. */
#ifndef SHERDI_ENGINE_POOL_H
#define SHERDI_ENGINE_POOL_H

#include "base/mem.h"
#include "collectives/world.h"

typedef struct sherdi_region {
    size_t        offset, bytes;
    int           is_used;   /* holds the unit's data, or will when the ticket is done */
    int           is_pinned; /* must not be evicted */
    sherdi_ticket ticket;    /* the transfer into or out of it; 0: none */
} sherdi_region;

typedef struct sherdi_pool {
    unsigned char *base;
    size_t         len_bytes;
    sherdi_region *regions; /* by unit */
    size_t         num_regions;
} sherdi_pool;

sherd_status sherdi_pool_init(sherdi_pool *pool, sherdi_mem *mem, size_t num_units);
void         sherdi_pool_fini(sherdi_pool *pool);

/** The unit other than `unit` whose pinned region is in the way of [offset, offset + bytes); -1: none. */
int sherdi_pool_holder(const sherdi_pool *pool, int unit, size_t offset, size_t bytes);

/** Gives `unit` the region [offset, offset + bytes), which has no holder. Evicts what is not pinned there, waiting
 *  for its transfer. The region is used and pinned afterwards. */
sherd_status sherdi_pool_place(sherdi_pool *pool, sherd_world *world, const sherdi_backend *writer,
                               int unit, size_t offset, size_t bytes);

/** Debug mode: overwrites a used region with NaN of every type, so that whoever reads it late sees it in
 *  the next number. Does nothing when `is_on` is 0. */
void sherdi_pool_poison(sherdi_pool *pool, const sherdi_backend *lane, int unit, int is_on);

static inline sherdi_region *sherdi_pool_region(sherdi_pool *pool, int unit)
{
    return &pool->regions[unit];
}

#endif
