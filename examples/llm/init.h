/* Initial weights: a pure function of seed, parameter and element, so that every layout of a run
 * starts from the same ones. */
#ifndef LLM_INIT_H
#define LLM_INIT_H

#include "arch.h"
#include "sherd.h"

#include <stdint.h>

/** Fills every parameter of a sealed engine: 1 for norms, 0 for biases, else normal with sigma 0.02,
 *  smaller by sqrt(2 * layers) for matrices that write into the residual stream (Radford et
 *  al. 2019). */
SHERD_MUST_USE sherd_status init_fill(const arch *sizes, sherd_engine *engine, uint64_t seed);

#endif
