/* What listens to a world: its failure, and the words of other ranks (world_listener). */
#ifndef SHERDI_COLLECTIVES_LISTENERS_H
#define SHERDI_COLLECTIVES_LISTENERS_H

#include "collectives/world_impl.h"

/* The endings of a world (ending.c), and the family of the worlds that were split from it
 * (family.c). Any thread may call `failed` and `told`. */
typedef struct world_listener {
    const struct world_listener_ops *ops;
    struct world_listener           *next;
} world_listener;

typedef struct world_listener_ops {
    /* The world has failed; the program cannot see it yet. */
    void (*failed)(sherd_world *world, world_listener *self);
    /* Optional. Another rank has said something about `key` (tell_ending). */
    void (*told)(sherd_world *world, world_listener *self, uint64_t key, int is_agreed);
    /* Of a family: removes a child from it, before the child is closed. */
    void (*leave)(sherd_world *child);
    /* The world is gone. */
    void (*drop)(world_listener *self);
} world_listener_ops;

/* What the core calls: for the listeners of a world, and for the family that it is in. */
extern const world_company_ops sherdi_world_company;

/** A transport passes on here what another rank said about an ending or a split. Any thread may
 *  call it. */
void sherdi_world_told(sherd_world *world, uint64_t key, int is_agreed);
/** Adds a listener, which the world drops at its end. */
void sherdi_world_listen(sherd_world *world, world_listener *listener);
/** Returns the listener with this table; NULL: there is none. */
world_listener *sherdi_world_listener(const sherd_world *world, const world_listener_ops *ops);

#endif
