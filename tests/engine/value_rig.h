/* A model and tiers for tests of values: parameters of every kind, in memory and on a drive,
 * through several slots and through one. */
#ifndef TESTS_ENGINE_VALUE_RIG_H
#define TESTS_ENGINE_VALUE_RIG_H

#include "tests/engine/rig.h"

#define VALUE_RIG_ELEMS  9000 /* elements of the largest parameter */
#define VALUE_RIG_FROZEN 3    /* index of the frozen one of a unit's 5 parameters */

/** Declares two units, each with parameters that are sliced, one smaller than any slice, one that
 * every rank keeps whole and a frozen one. Does not seal. */
void value_rig_declare(rig *r, sherd_world *world, const rig_options *options);
/** Declares the same and seals. */
void value_rig_open(rig *r, sherd_world *world, const rig_options *options);

typedef struct value_rig_tier {
    const char *optimizer, *params; /* NULL: nothing is offloaded */
    int         buffers;
    const char *more; /* further keys of offload_optimizer */
} value_rig_tier;

#define VALUE_RIG_TIERS_ALL 6
extern const value_rig_tier VALUE_RIG_TIERS[VALUE_RIG_TIERS_ALL];
/** Returns how many of the tiers this build has: those in memory, which come first, or all. */
size_t value_rig_tiers(void);
/** Whether a device computes. It may be emulated, so a sample of the tiers is enough. */
int value_rig_is_slow(void);
/** Writes the keys of zero_optimization for one tier. */
const char *value_rig_keys(const value_rig_tier *t, char keys[1024]);

#endif
