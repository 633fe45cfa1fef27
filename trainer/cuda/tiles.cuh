/* Operations of the kernels of attention on accumulators: tiles in registers, whose layout is
 * described in tensor.cuh. In shared memory the rows that leave have D + 8 elements. */
#ifndef LLM_CUDA_TILES_CUH
#define LLM_CUDA_TILES_CUH

#include "tensor.cuh"

#define LOG2_E 1.44269504f

/* Copies the warp's ROWS rows from shared memory to a matrix. */
template <typename T, int D, int ROWS>
__device__ __forceinline__ void rows_store(const T *from, T *to, size_t stride, int first,
                                           int length, int width)
{
    for (int i = (int)threadIdx.x % 32; i < ROWS * (D / 8); i += 32) {
        int r = i / (D / 8), c = i % (D / 8) * 8;

        if (first + r < length && c < width) {
            *(uint4 *)(to + (size_t)(first + r) * stride + c) = *(const uint4 *)(from + r * (D + 8) + c);
        }
    }
}

/* Writes the accumulators, times `factor` (one for rows g, one for rows g + 8), to the warp's rows
 * of shared memory. */
template <typename T, int D>
__device__ __forceinline__ void tile_put(T *rows, const float (&acc)[D / 8][4], float factor,
                                         float factor8)
{
    int g = (int)threadIdx.x % 32 / 4, t = (int)threadIdx.x % 4;

    for (int n = 0; n < D / 8; n++) {
        *(uint32_t *)(rows + g * (D + 8) + n * 8 + 2 * t) =
            pair_of<T>::join(acc[n][0] * factor, acc[n][1] * factor);
        *(uint32_t *)(rows + (g + 8) * (D + 8) + n * 8 + 2 * t) =
            pair_of<T>::join(acc[n][2] * factor8, acc[n][3] * factor8);
    }
}

/* Makes the a of the next product from two neighbouring c tiles. */
template <typename T>
__device__ __forceinline__ void left_make(uint32_t (&a)[4], const float (&c0)[4], const float (&c1)[4])
{
    a[0] = pair_of<T>::join(c0[0], c0[1]);
    a[1] = pair_of<T>::join(c0[2], c0[3]);
    a[2] = pair_of<T>::join(c1[0], c1[1]);
    a[3] = pair_of<T>::join(c1[2], c1[3]);
}

template <int M, int N> __device__ __forceinline__ void zero(float (&x)[M][N][4])
{
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int n = 0; n < N; n++) {
            x[m][n][0] = x[m][n][1] = x[m][n][2] = x[m][n][3] = 0.0f;
        }
    }
}

/* Reductions over the four lanes that share a row. */
__device__ __forceinline__ float quad_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(WARP_ALL, x, 1));
    return fmaxf(x, __shfl_xor_sync(WARP_ALL, x, 2));
}

__device__ __forceinline__ float quad_sum(float x)
{
    x += __shfl_xor_sync(WARP_ALL, x, 1);
    return x + __shfl_xor_sync(WARP_ALL, x, 2);
}

#endif
