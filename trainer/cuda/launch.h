/* Starts kernels: by `kernel<<<grid, block, bytes, stream>>>(...)` under nvcc, and by a call of the
 * emulator (tests/emulator) when the tests compile these sources. Put a kernel with commas in its
 * template arguments into parentheses. */
#ifndef LLM_CUDA_LAUNCH_H
#define LLM_CUDA_LAUNCH_H

#include "elements.cuh"
#include "sherd.h"

#include <cuda_runtime.h>

#ifdef SHERD_EMULATOR

#define LLM_LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                 \
    (void)emulator_launch(kernel, grid, block, shared_bytes, stream, __VA_ARGS__)
/* Declares `name` as the shared memory whose size the launch gives. */
#define LLM_SHARED(name) unsigned char *name = (unsigned char *)emulator_shared()

#else

#define LLM_LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                 \
    do {                                                                                           \
        auto *kernel_ = kernel;                                                                    \
        kernel_<<<grid, block, shared_bytes, stream>>>(__VA_ARGS__);                               \
    } while (0)
#define LLM_SHARED(name) extern __shared__ __align__(128) unsigned char name[]

#endif

/* Shared memory that the system takes from a multiprocessor for each block (CUDA C++ Programming
 * Guide, compute capabilities 8.x to 12.x). */
#define RESERVED_BYTES ((size_t)1 << 10)

/* An argument for generic lambdas: the type of elements, and how many of them a thread takes at
 * once. */
template <typename T, int N = 1> struct vector_type {
    typedef T        type;
    static const int elems = N;
};

/* Calls what(vector_type<T>()) for the type that `dtype` names. */
template <typename What> static void by_type(sherd_dtype dtype, const What &what)
{
    switch (dtype) {
    case SHERD_F32:
        what(vector_type<float>());
        return;
    case SHERD_BF16:
        what(vector_type<bf16_t>());
        return;
    case SHERD_F16:
        what(vector_type<f16_t>());
        return;
    }
}

/* Calls what(vector_type<T, N>()). N elements are sixteen bytes if rows of `columns` elements
 * consist of whole such vectors, else N is 1. */
template <typename What> static void by_vector(sherd_dtype dtype, size_t columns, const What &what)
{
    by_type(dtype, [&](auto one) {
        typedef typename decltype(one)::type T;

        if (columns % wide_of<T>::elems == 0) {
            what(vector_type<T, wide_of<T>::elems>());
        } else {
            what(one);
        }
    });
}

static inline unsigned blocks_of(size_t count, size_t each)
{
    return (unsigned)((count + each - 1) / each);
}

#endif
