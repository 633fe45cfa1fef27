/* What an instruction set has to define: loops over one contiguous range, on one thread. scalar.c,
 * avx2.c and avx512.c define the functions below as static. They then include table.inc.c, which
 * adds spans and threads and makes the table of kernels. */
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
    size_t      ahead_bytes;  /* prefetching distance; 0: no prefetching */
    /* Of encoded state: an array of SHERDI_UPDATE_MOST_PARTS, in place of `parts` */
    const sherdi_encoded *encoded;
    size_t                offset_elems; /* from the start of `encoded` to the range */
    uint64_t              step;         /* of the optimizer */
} sherdi_update_range;

/* range_adam, ...   one for each update of kernels/updates/: updates the range and returns its
 *                   fingerprint. The range's global indices do not cross a multiple of 2^32;
 *                   `coeffs` are those of the span
 * range_sumsq       adds the chunks of the range to *acc and does not normalise it
 * range_reduce      reduces elements [first, first + count) of the call; first is a multiple of 64
 * range_cast        is called with two different dtypes
 * range_accumulate, range_copy, range_zero
 * range_stream_end  is called after the last range_adam, ... or range_cast of a task, and orders
 *                   what they wrote past the caches before all later stores
 * range_fingerprint is called with indices that do not cross a multiple of 2^32
 * range_ahead_bytes returns the prefetching distance of plain loops
 * range_ahead_begin, range_ahead_end  begin and end an update, plain or of encoded state. It uses
 *                   the distance `ahead_bytes` of a range_trial, the instruction set's own struct
 * The files of table_list.h and vector_list.h have those of modules. */

static inline void *sherdi_elem_at(const void *array, sherd_dtype dtype, size_t index)
{
    return (unsigned char *)array + index * (dtype == SHERD_F32 ? 4 : 2);
}

#endif
