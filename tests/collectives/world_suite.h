/* The conformance suite of a world: every transport runs every case, each rank in its own
 * thread or process. Cases compare with a plain loop over what each rank is known to have. */
#ifndef TESTS_COLLECTIVES_WORLD_SUITE_H
#define TESTS_COLLECTIVES_WORLD_SUITE_H

#include "collectives/world.h"

typedef struct world_case {
    const char *name;
    void (*run)(sherd_world *world, void *ctx); /* shape of test_world's body */
} world_case;

extern const world_case WORLD_SUITE[];
extern const size_t     WORLD_SUITE_COUNT;

/** The sizes that every transport is tried with. */
extern const int    WORLD_SIZES[];
extern const size_t WORLD_SIZES_COUNT;

#endif
