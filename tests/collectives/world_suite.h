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

/* Memory of the world's backend, and what the host has to do with it: on the CPU malloc and memcpy.
 * Blocking, not collective. */
int   suite_is_on_device(const sherd_world *world);
void *suite_alloc(sherd_world *world, size_t len_bytes);
void  suite_free(sherd_world *world, void *memory);
void  suite_put(sherd_world *world, void *dst, const void *src, size_t len_bytes);
void  suite_get(sherd_world *world, void *dst, const void *src, size_t len_bytes);
void  suite_fill(sherd_world *world, void *dst, int byte, size_t len_bytes);

/* Of the worlds of 7 and 8 ranks a sample takes one on the CPU, and none on a device that is
 * emulated. */
#ifdef TEST_EMULATED
#define SUITE_IS_SAMPLED(size, large) ((size) < 7)
#else
#define SUITE_IS_SAMPLED(size, large) ((size) < 7 || (size) == (large))
#endif

/** The sizes that every transport is tried with. */
extern const int    WORLD_SIZES[];
extern const size_t WORLD_SIZES_COUNT;

#endif
