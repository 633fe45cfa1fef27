/* The functions that an instruction set has to define: loops over one contiguous range, on one
 * thread. scalar.c, avx2.c and avx512.c define the functions below as static. They then include
 * table.h, which adds spans and threads and makes the table of kernels. */
#ifndef SHERDI_KERNELS_CPU_RANGES_H
#define SHERDI_KERNELS_CPU_RANGES_H

#include "kernels/backend.h"

/* A call that touches at least this many bytes writes its write-only outputs past the caches, since
 * these could not hold them to the end of the call anyway. */
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
    int         is_streaming; /* param is written past the caches */
    size_t      ahead_bytes;  /* prefetching distance: kernels/cpu/ahead.h */
    /* NULL: every part is fp32. Else an array of SHERDI_UPDATE_MOST_PARTS, in place of `parts` */
    const sherdi_encoded *encoded;
    size_t                offset_elems; /* from the start of `encoded` to the range */
    uint64_t              step;         /* of the optimizer */
} sherdi_update_range;

/* range_adam, ...   one for each update of kernels/updates/: updates the range and returns its
 *                   fingerprint. The range's global indices do not cross a multiple of 2^32;
 *                   `coeffs` are those of the span. If TABLE_TAKES_ENCODED is 1, a range of whole
 *                   chunks may be encoded; otherwise table.h decodes it to fp32 before
 * range_sumsq       adds the chunks of the range to *acc and does not normalise it
 * range_reduce      reduces elements [first, first + count) of the call; first is a multiple of 64
 * range_cast        is called with two different dtypes
 * range_accumulate
 * range_copy, range_zero
 * range_decode, range_encode   do the same as sherdi_part_decode and sherdi_part_encode
 * range_stream_end  is called after the last range_adam, ... or range_cast of a task, and orders
 *                   what they wrote past the caches before all later stores
 * range_lamb_norms  only reads the range, and adds to *norms; the range starts at a multiple of 64
 *                   from its span's start
 * range_product     computes a rectangle of dst, from (first_row, first_col) on, of at most
 *                   PRODUCT_ROWS rows. If the result is symmetric, elements below the diagonal may
 *                   be omitted. first_row and first_col are multiples of PRODUCT_ROWS and
 *                   PRODUCT_COLS, which the instruction set chooses
 * range_fingerprint is called with indices that do not cross a multiple of 2^32 */

static inline void *sherdi_elem_at(const void *array, sherd_dtype dtype, size_t index)
{
    return (unsigned char *)array + index * (dtype == SHERD_F32 ? 4 : 2);
}

#endif
