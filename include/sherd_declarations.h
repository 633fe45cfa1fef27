/* Groups of parameters, and the order of the passes: calls of the module "declarations". sherd.h includes this header, and has the conventions. */
#ifndef SHERD_H
#include "sherd.h"
#elif !defined(SHERD_DECLARATIONS_H)
#define SHERD_DECLARATIONS_H

/* Parameters of a group. NaN in a field means: the value of the configuration. */
typedef struct sherd_group_params {
    size_t      struct_size;
    const char *name; /* for logs; copied */
    double      lr;
    double      weight_decay;
    double      beta1, beta2, eps;
    /* LAMB: 1 sets the trust ratio of this group's parameters with at most one dimension (biases,
     * scales of norms) to 1; below 0, the default: the value of the configuration (exclude_1d) */
    int exclude_1d;
    /* The optimizer of this group's parameters: a name of optimizer.type, in any case ("none" is
     * for a whole engine only); copied. NULL, the default: the optimizer of the configuration. An
     * optimizer reads only the fields for which it has keys: the rate, the decay, and those of the
     * betas and eps that it uses (a momentum is beta1). */
    const char *optimizer;
} sherd_group_params;
SHERD_API void sherd_group_params_init(sherd_group_params *params);
/** Declares a group, before seal. Local, the same on every rank. */
SHERD_CALL sherd_group_add(sherd_engine *engine, const sherd_group_params *params,
                           sherd_group *out);

/** Declares `unit` as the next one in the order of `pass`; a unit may be repeated. A pass for which
 *  this function is never called has a default order: FORWARD the order of declaration, BACKWARD
 *  the reverse of FORWARD, EVAL the order of FORWARD. A unit that is in no pass can be acquired at
 *  any time: its memory overlaps with no other unit's. */
SHERD_CALL sherd_pass_add(sherd_engine *engine, sherd_pass pass, sherd_unit unit);
/** Does the same for a unit that is held past the next acquire: it is released after
 *  `held_acquires` further acquires of the pass. After the last acquire of FORWARD the acquires of
 *  BACKWARD count. A number larger than the remaining acquires means: to the end. The plan assigns
 *  disjoint memory to units that are held at the same time. A default order holds no unit, with one
 *  exception: the default order of EVAL holds the units that the list of FORWARD holds. */
SHERD_CALL sherd_pass_add_held(sherd_engine *engine, sherd_pass pass, sherd_unit unit,
                               size_t held_acquires);

#endif
