/* Initial weights. They are a pure function of seed, parameter and element, so every layout of a
 * run starts from the same weights. */
#ifndef LLM_INIT_H
#define LLM_INIT_H

#include "models/arch.h"
#include "pool.h"
#include "sherd.h"

#include <stdint.h>

/* One parameter's values. */
typedef struct init_source {
    arch_param param;
    uint64_t   key;
    double     sigma;
} init_source;

init_source init_source_of(const arch *sizes, size_t k, uint64_t seed);
/** Makes elements [first_elem, first_elem + count_elems): 1 for norms, 0 for biases, else normally
 *  distributed with sigma 0.02. For matrices that write into the residual stream sigma is divided
 *  by sqrt(2 * layers) (Radford et al. 2019). */
void init_values(const init_source *source, size_t first_elem, size_t count_elems, float *out);

/** Fills every parameter of a sealed engine, on the pool's threads. */
SHERD_MUST_USE sherd_status init_fill(const arch *sizes, sherd_engine *engine, uint64_t seed,
                                      pool *threads);

#endif
