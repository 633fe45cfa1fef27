/* The yardstick: every kernel element by element on formulas.h, never tuned. The other
 * instruction sets must give its bits; read it first. */
#include "kernels/cpu/elements.h"
#include "kernels/cpu/variants.h"

static uint64_t range_adam(const sherdi_update_range *range, const sherdi_adam_coeffs *coeffs)
{
    return sherdi_adam_elems(range, coeffs, 0);
}

static void range_sumsq(const void *x, sherd_dtype dtype, size_t count_elems, sherdi_norm_acc *acc)
{
    float chunk[SHERD_CHUNK_ELEMS];

    for (size_t first = 0; first < count_elems; first += SHERD_CHUNK_ELEMS) {
        for (size_t i = 0; i < SHERD_CHUNK_ELEMS; i++) {
            chunk[i] = sherdi_load_elem(x, dtype, first + i);
        }
        sherdi_norm_add(acc, sherdi_norm_chunk(chunk));
    }
}

static void range_reduce(const sherdi_reduce_args *args, size_t first, size_t count_elems,
                         int is_streaming)
{
    (void)is_streaming;
    sherdi_reduce_elems(args, first, first + count_elems);
}

static void range_cast(void *dst, sherd_dtype dst_dtype, const void *src, sherd_dtype src_dtype,
                       size_t count_elems, int is_streaming)
{
    (void)is_streaming;
    sherdi_cast_elems(dst, dst_dtype, src, src_dtype, 0, count_elems);
}

static void range_accumulate(void *acc, sherd_dtype acc_dtype, const void *x, sherd_dtype x_dtype,
                             size_t count_elems)
{
    sherdi_accumulate_elems(acc, acc_dtype, x, x_dtype, 0, count_elems);
}

static void range_copy(void *dst, const void *src, size_t len_bytes, int is_streaming)
{
    (void)is_streaming;
    memcpy(dst, src, len_bytes);
}

static void range_zero(void *dst, size_t len_bytes, int is_streaming)
{
    (void)is_streaming;
    memset(dst, 0, len_bytes);
}

static uint64_t range_fingerprint(const float *master, uint64_t first_index, size_t count_elems)
{
    return sherdi_fingerprint_elems(master, first_index, 0, count_elems);
}

static void range_lamb_norms(const sherdi_update_range *range, const sherdi_lamb_coeffs *coeffs,
                             sherdi_lamb_norms *norms)
{
    sherdi_lamb_norms_elems(range, coeffs, 0, norms);
}

static uint64_t range_lamb(const sherdi_update_range *range, const sherdi_lamb_coeffs *coeffs,
                           float step)
{
    return sherdi_lamb_elems(range, coeffs, step, 0);
}

#define TABLE_NAME sherdi_kernels_scalar
#define TABLE_ISA  "scalar"
#include "kernels/cpu/table.h"
