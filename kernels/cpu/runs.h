/* What an instruction set has to give: loops over one contiguous run, on one thread.
 * scalar.c, avx2.c and avx512.c define the functions below as static, in order, and then
 * include table.h, which adds spans and threads and makes the table of them. */
#ifndef SHERDI_KERNELS_CPU_RUNS_H
#define SHERDI_KERNELS_CPU_RUNS_H

#include "kernels/backend.h"

/* A call that touches at least this many bytes writes its write-only outputs around the
 * caches: what it wrote would not be in them at its end anyway. */
#define SHERDI_STREAM_BYTES ((size_t)8 << 20)

/* A run of elements whose indices do not cross a multiple of 2^32. */
typedef struct sherdi_adam_run {
    const sherdi_adam_coeffs *coeffs;
    const void               *grad;
    sherd_dtype               grad_dtype;
    float                    *master;
    float                    *m;
    float                    *v;
    void                     *param; /* may be NULL */
    sherd_dtype               param_dtype;
    uint64_t                  first_index;
    size_t                    count_elems;
    int                       is_streaming; /* of param */
} sherdi_adam_run;

/* A run of LAMB: a parameter's consecutive elements, the first at a multiple of 64 from its span's start. */
typedef struct sherdi_lamb_run {
    const sherdi_lamb_coeffs *coeffs;
    float                     step; /* neg_step_size * ratio; not looked at by run_lamb_norms */
    const void               *grad;
    sherd_dtype               grad_dtype;
    float                    *master;
    float                    *m;
    float                    *v;
    void                     *param; /* may be NULL */
    sherd_dtype               param_dtype;
    uint64_t                  first_index;
    size_t                    count_elems;
    int                       is_streaming;
} sherdi_lamb_run;

/* run_adam        returns the fingerprint of the run
 * run_sumsq       adds the chunks of the run to *acc, not normalised
 * run_reduce      elements [first, first + count) of the call; first a multiple of 64
 * run_cast        dtypes differ
 * run_accumulate
 * run_copy, run_zero
 * run_lamb_norms  adds to *norms, reads alone
 * run_lamb        returns the fingerprint of the run
 * run_fingerprint indices do not cross a multiple of 2^32 */

static inline void *sherdi_elem_at(const void *array, sherd_dtype dtype, size_t index)
{
    return (unsigned char *)array + index * (dtype == SHERD_F32 ? 4 : 2);
}

#endif
