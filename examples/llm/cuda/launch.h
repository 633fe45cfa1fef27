/* How a kernel is started: `kernel<<<grid, block, bytes, stream>>>(...)` under nvcc, and a call of the
 * emulator that the tests compile these sources with (tests/emulator) elsewhere. A kernel with commas
 * in its template arguments comes in parentheses. */
#ifndef LLM_CUDA_LAUNCH_H
#define LLM_CUDA_LAUNCH_H

#include <cuda_runtime.h>

#ifdef SHERD_EMULATOR

#define LLM_LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                 \
    (void)emulator_launch(kernel, grid, block, shared_bytes, stream, __VA_ARGS__)
/* Shared memory whose size the launch says, as `name`. */
#define LLM_SHARED(name) unsigned char *name = (unsigned char *)emulator_shared()

#else

#define LLM_LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                 \
    do {                                                                                           \
        auto *kernel_ = kernel;                                                                    \
        kernel_<<<grid, block, shared_bytes, stream>>>(__VA_ARGS__);                               \
    } while (0)
#define LLM_SHARED(name) extern __shared__ __align__(128) unsigned char name[]

#endif

#endif
