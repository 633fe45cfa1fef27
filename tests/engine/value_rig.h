/* A model and tiers for tests of values: parameters of every kind, in memory, on a drive, through many slots and one. */
#ifndef TESTS_ENGINE_VALUE_RIG_H
#define TESTS_ENGINE_VALUE_RIG_H

#include "tests/engine/rig.h"

#define VALUE_RIG_ELEMS  9000 /* of the largest parameter */
#define VALUE_RIG_FROZEN 3    /* number in its unit; there are 5 in each of two */

/** Two units, each with what is sliced, one that is smaller than any slice, what every rank keeps whole, what is frozen.
 *  Not sealed. */
void value_rig_declare(rig *r, sherd_world *world, const rig_options *options);
/** ... and sealed. */
void value_rig_open(rig *r, sherd_world *world, const rig_options *options);

typedef struct value_rig_tier {
    const char *optimizer, *params; /* NULL: nothing is offloaded */
    int         buffers;
    const char *more; /* keys of offload_optimizer */
} value_rig_tier;

#define VALUE_RIG_TIERS_ALL 6
extern const value_rig_tier VALUE_RIG_TIERS[VALUE_RIG_TIERS_ALL];
/** How many of them this build has: those in memory come first. */
size_t value_rig_tiers(void);
/** Whether it is a device that computes, which may be emulated: a sample of the tiers is enough. */
int value_rig_is_slow(void);
/** Keys of zero_optimization for one. */
const char *value_rig_keys(const value_rig_tier *t, char keys[1024]);

#endif
