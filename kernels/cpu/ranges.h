/* What an instruction set has to give: loops over one contiguous range, on one thread.
 * scalar.c, avx2.c and avx512.c define the functions below as static, in order, and then
 * include table.h, which adds spans and threads and makes the table of them. */
#ifndef SHERDI_KERNELS_CPU_RANGES_H
#define SHERDI_KERNELS_CPU_RANGES_H

#include "kernels/backend.h"

/* A call that touches at least this many bytes writes its write-only outputs around the
 * caches: what it wrote would not be in them at its end anyway. */
#define SHERDI_STREAM_BYTES ((size_t)8 << 20)

/* Consecutive elements of one parameter, as an optimizer's update sees them. */
typedef struct sherdi_update_range {
    const void *grad;
    sherd_dtype grad_dtype;
    union { /* as in sherdi_update_args */
        float *parts[SHERDI_UPDATE_MOST_PARTS];
        struct {
            float *master, *m, *v;
        };
    };
    void       *param; /* may be NULL */
    sherd_dtype param_dtype;
    uint64_t    first_index;
    size_t      count_elems;
    int         is_streaming; /* of param */
    size_t      ahead_bytes;  /* sherdi_ahead_bytes, as the other loops' */
    /* NULL: every part is fp32. Else SHERDI_UPDATE_MOST_PARTS of them, in place of `parts` */
    const sherdi_encoded *encoded;
    size_t                offset_elems; /* of the range, from where `encoded` starts */
    uint64_t              step;         /* of the optimizer */
} sherdi_update_range;

/* range_adam, ...   of each update of kernels/updates/: returns the fingerprint of the range, whose indices do not cross a
 *                   multiple of 2^32; `coeffs` are the span's. Where TABLE_TAKES_ENCODED is 1 a range of whole chunks may be
 *                   encoded; else table.h makes it fp32 before
 * range_sumsq       adds the chunks of the range to *acc, not normalised
 * range_reduce      elements [first, first + count) of the call; first a multiple of 64
 * range_cast        dtypes differ
 * range_accumulate
 * range_copy, range_zero
 * range_decode, range_encode  as sherdi_part_decode and sherdi_part_encode
 * range_stream_end  after the last range_adam, ... and range_cast of a task: what they wrote around the caches is written
 * range_lamb_norms  adds to *norms, reads alone; the range starts at a multiple of 64 from its span's start
 * range_product     a rectangle of dst, from (first_row, first_col) on, of at most PRODUCT_ROWS rows; where the result is
 *                   symmetric, what is below the diagonal may be left out. first_row and first_col are multiples of
 *                   PRODUCT_ROWS and PRODUCT_COLS, which the instruction set chooses
 * range_fingerprint indices do not cross a multiple of 2^32 */

static inline void *sherdi_elem_at(const void *array, sherd_dtype dtype, size_t index)
{
    return (unsigned char *)array + index * (dtype == SHERD_F32 ? 4 : 2);
}

#endif
