/* Runs one kernel: blocks one after another, threads of a block as fibers. */
#ifndef TESTS_EMULATOR_FIBERS_H
#define TESTS_EMULATOR_FIBERS_H

#include "cuda_runtime.h"

/** On the calling thread. `order` odd: the last thread and block come first. */
void emulator_grid_run(emulator_work *work, dim3 grid, dim3 block, size_t shared_bytes,
                       unsigned order);

#endif
