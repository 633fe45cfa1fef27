/* Loops of ranges.h, element by element. scalar.c consists of them, and the vector files use them
 * for the tails of ranges. The arithmetic itself is in formulas.h. */
#ifndef SHERDI_KERNELS_CPU_ELEMENTS_H
#define SHERDI_KERNELS_CPU_ELEMENTS_H

#include "kernels/cpu/ranges.h"

static inline float sherdi_load_elem(const void *array, sherd_dtype dtype, size_t index)
{
    switch (dtype) {
    case SHERD_BF16:
        return sherdi_cast_bf16_f32(((const uint16_t *)array)[index]);
    case SHERD_F16:
        return sherdi_cast_f16_f32(((const uint16_t *)array)[index]);
    default:
        return ((const float *)array)[index];
    }
}

static inline void sherdi_store_elem(void *array, sherd_dtype dtype, size_t index, float x)
{
    switch (dtype) {
    case SHERD_BF16:
        ((uint16_t *)array)[index] = sherdi_cast_f32_bf16(x);
        break;
    case SHERD_F16:
        ((uint16_t *)array)[index] = sherdi_cast_f32_f16(x);
        break;
    default:
        ((float *)array)[index] = x;
        break;
    }
}

/* Rounds to the nearest value of `dtype`. */
static inline float sherdi_round_elem(float x, sherd_dtype dtype)
{
    switch (dtype) {
    case SHERD_BF16:
        return sherdi_cast_bf16_f32(sherdi_cast_f32_bf16(x));
    case SHERD_F16:
        return sherdi_cast_f16_f32(sherdi_cast_f32_f16(x));
    default:
        return x;
    }
}

/* Returns element i of a source, times the source's weight. */
static inline float sherdi_source_elem(const sherdi_reduce_args *args, int k, size_t i)
{
    float x = sherdi_load_elem(args->srcs[k], args->src_dtype, i);

    return args->weights == NULL ? x : x * (float)args->weights[k];
}

static inline void sherdi_reduce_elems(const sherdi_reduce_args *args, size_t first, size_t end)
{
    for (size_t i = first; i < end; i++) {
        float sum = sherdi_source_elem(args, 0, i);

        for (int k = 1; k < args->num_srcs; k++) {
            sum = sum + sherdi_source_elem(args, k, i);
        }
        sum = sherdi_round_elem(sherdi_canonical_f32(sum * args->scale), args->comm_dtype);
        if (args->accumulate) {
            sum = sherdi_canonical_f32(sherdi_load_elem(args->dst, args->dst_dtype, i) + sum);
        }
        sherdi_store_elem(args->dst, args->dst_dtype, i, sum);
        for (int k = 0; k < args->num_more_dsts; k++) {
            sherdi_store_elem(args->more_dsts[k], args->dst_dtype, i, sum);
        }
    }
}

static inline void sherdi_cast_elems(void *dst, sherd_dtype dst_dtype, const void *src,
                                     sherd_dtype src_dtype, size_t first, size_t end)
{
    for (size_t i = first; i < end; i++) {
        sherdi_store_elem(dst, dst_dtype, i, sherdi_load_elem(src, src_dtype, i));
    }
}

static inline void sherdi_accumulate_elems(void *acc, sherd_dtype acc_dtype, const void *x,
                                           sherd_dtype x_dtype, size_t first, size_t end)
{
    for (size_t i = first; i < end; i++) {
        float sum = sherdi_load_elem(acc, acc_dtype, i) + sherdi_load_elem(x, x_dtype, i);

        sherdi_store_elem(acc, acc_dtype, i, sherdi_canonical_f32(sum));
    }
}

static inline uint64_t sherdi_fingerprint_elems(const float *master, uint64_t first_index,
                                                size_t first, size_t end)
{
    uint64_t fingerprint = 0;

    for (size_t i = first; i < end; i++) {
        fingerprint += sherdi_mix_element(first_index + i, master[i]);
    }
    return fingerprint;
}

#endif
