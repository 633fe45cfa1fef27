/* Four elements of 1, 2 or 4 bytes, as bits in registers. A range may begin or end among the four,
 * so a thread may own only some of them: `mine` says which, bit i for element i. The width is known
 * at run time and the same for all threads. encoded.cuh uses this. */
#ifndef SHERDI_KERNELS_CUDA_PACKED_CUH
#define SHERDI_KERNELS_CUDA_PACKED_CUH

#include "kernels/cuda/elements.cuh"

/* Returns which of the four elements from `at` lie in [low, high), as bits. */
static inline __device__ unsigned mine_of(size_t at, size_t low, size_t high)
{
    unsigned skip = low <= at ? 0 : low - at < VECTOR_ELEMS ? (unsigned)(low - at) : VECTOR_ELEMS;
    unsigned end = high <= at ? 0 : high - at < VECTOR_ELEMS ? (unsigned)(high - at) : VECTOR_ELEMS;

    return ((1u << end) - 1) & ~((1u << skip) - 1);
}

static inline __device__ packed4 packed_zero(void)
{
    return make_uint4(0, 0, 0, 0);
}

/* Returns element i of four elements of `width` bytes each. */
static inline __device__ uint32_t packed_get(packed4 x, unsigned width, unsigned i)
{
    if (width == 4) {
        return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w;
    }
    if (width == 2) {
        return (i < 2 ? x.x : x.y) >> i % 2 * 16 & 0xffffu;
    }
    return x.x >> i * 8 & 0xffu;
}

/* Sets element i, whose bits must be zero before. */
static inline __device__ packed4 packed_set(packed4 x, unsigned width, unsigned i, uint32_t bits)
{
    uint32_t at   = bits << (width == 4 ? 0 : width == 2 ? i % 2 * 16 : i * 8);
    unsigned word = i * width / 4;

    return make_uint4(x.x | (word == 0 ? at : 0), x.y | (word == 1 ? at : 0),
                      x.z | (word == 2 ? at : 0), x.w | (word == 3 ? at : 0));
}

static inline __device__ packed4 packed_of(const float *x)
{
    return make_uint4(sherdi_bits_f32(x[0]), sherdi_bits_f32(x[1]), sherdi_bits_f32(x[2]),
                      sherdi_bits_f32(x[3]));
}

static inline __device__ uint32_t bits_load(const unsigned char *at, unsigned width)
{
    return width == 4 ? *(const uint32_t *)at : width == 2 ? *(const uint16_t *)at : *at;
}

static inline __device__ void bits_store(unsigned char *at, unsigned width, uint32_t bits)
{
    if (width == 4) {
        *(uint32_t *)at = bits;
    } else if (width == 2) {
        *(uint16_t *)at = (uint16_t)bits;
    } else {
        *at = (unsigned char)bits;
    }
}

/* Loads all four elements if `is_whole`, else those in `mine`; the others are zero. */
static inline __device__ packed4 packed_load_mine(const unsigned char *from, unsigned width,
                                                  unsigned mine, bool is_whole)
{
    packed4 x = packed_zero();

    if (!is_whole) {
#pragma unroll
        for (unsigned i = 0; i < VECTOR_ELEMS; i++) {
            if (mine >> i & 1) {
                x = packed_set(x, width, i, bits_load(from + i * width, width));
            }
        }
    } else if (width == 4 && (uintptr_t)from % 16 == 0) {
        x = *(const uint4 *)from;
    } else if (width == 1) {
        x.x = *(const uint32_t *)from;
    } else {
        uint2 two = *(const uint2 *)from;

        x.x = two.x;
        x.y = two.y;
        if (width == 4) {
            two = *(const uint2 *)(from + 8);
            x.z = two.x;
            x.w = two.y;
        }
    }
    return x;
}

static inline __device__ void packed_store_mine(unsigned char *to, unsigned width, packed4 x,
                                                unsigned mine, bool is_whole)
{
    if (!is_whole) {
#pragma unroll
        for (unsigned i = 0; i < VECTOR_ELEMS; i++) {
            if (mine >> i & 1) {
                bits_store(to + i * width, width, packed_get(x, width, i));
            }
        }
    } else if (width == 4 && (uintptr_t)to % 16 == 0) {
        *(uint4 *)to = x;
    } else if (width == 1) {
        *(uint32_t *)to = x.x;
    } else {
        *(uint2 *)to = make_uint2(x.x, x.y);
        if (width == 4) {
            *(uint2 *)(to + 8) = make_uint2(x.z, x.w);
        }
    }
}

/* Returns the signs of four elements, as bits. */
static inline __device__ unsigned signs_get(packed4 x, unsigned width)
{
    unsigned signs = 0;

#pragma unroll
    for (unsigned i = 0; i < VECTOR_ELEMS; i++) {
        signs |= (packed_get(x, width, i) >> (width * 8 - 1)) << i;
    }
    return signs;
}

/* Replaces the signs of four elements by `signs`. */
static inline __device__ packed4 signs_set(packed4 x, unsigned width, unsigned signs)
{
    if (width == 4) {
        x.x = (x.x & 0x7fffffffu) | ((signs & 1) << 31);
        x.y = (x.y & 0x7fffffffu) | ((signs & 2) << 30);
        x.z = (x.z & 0x7fffffffu) | ((signs & 4) << 29);
        x.w = (x.w & 0x7fffffffu) | ((signs & 8) << 28);
    } else {
        x.x = (x.x & 0x7fff7fffu) | ((signs & 1) << 15) | ((signs & 2) << 30);
        x.y = (x.y & 0x7fff7fffu) | ((signs & 4) << 13) | ((signs & 8) << 28);
    }
    return x;
}

#endif
