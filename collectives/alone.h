/* Worlds that call nobody, so tickets.c answers their collectives. This file's functions make them
 * and their memory, whose pages come on first touch: `self` has one rank, and simulated worlds
 * stand for one rank of a described machine (simulated.h). */
#ifndef SHERDI_COLLECTIVES_ALONE_H
#define SHERDI_COLLECTIVES_ALONE_H

#include "collectives/world_impl.h"

/* The beginning of the object of a world of one rank. */
typedef struct alone_world {
    sherd_world         world;
    struct alone_block *blocks; /* memory that was allocated */
    size_t              capacity;
} alone_world;

/** Opens a world in `alone`, which the caller has zeroed and sherdi_alone_close frees, also after a
 *  failure. */
sherd_status sherdi_alone_open(alone_world *alone, const sherdi_world_ops *ops, int rank,
                               int world_size, const sherd_world_params *params, sherd_world **out);

/* Slots of the same names. */
void         sherdi_alone_close(sherd_world *world);
sherd_status sherdi_alone_alloc(sherd_world *world, size_t len_bytes, void **out);
void         sherdi_alone_free(sherd_world *world, void *memory);

#endif
