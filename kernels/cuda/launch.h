/* Between device.c, in C, and the kernels, in .cu: one launcher per slot of sherdi_kernel_ops that runs a kernel.
 * A launcher is asynchronous, looks at nothing that the slot's contract promises, needs the device to be the
 * calling thread's, and returns what the launch said.
 *
 * Pointers to device memory are never followed here: how many elements the spans have is found on the device. So
 * grids have the size of the machine (at most) and blocks take tiles in turn. */
#ifndef SHERDI_KERNELS_CUDA_LAUNCH_H
#define SHERDI_KERNELS_CUDA_LAUNCH_H

#include <cuda_runtime.h>
#include <math.h>
#include <string.h>

#include "kernels/backend.h"

/* Sources and further destinations of one reduction that need not be equally spaced. */
#define SHERDI_CUDA_POINTERS 64

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sherdi_cuda_place {
    cudaStream_t stream;
    int          processors; /* of the device */
} sherdi_cuda_place;

/** Whether this device can run the kernels of this build. */
cudaError_t sherdi_cuda_probe(void);

cudaError_t sherdi_cuda_adam(sherdi_cuda_place place, const sherdi_adam_args *args);
cudaError_t sherdi_cuda_lamb_norms(sherdi_cuda_place place, const sherdi_lamb_args *args);
cudaError_t sherdi_cuda_lamb_ratios(sherdi_cuda_place place, const sherdi_lamb_ratio_args *args);
cudaError_t sherdi_cuda_lamb(sherdi_cuda_place place, const sherdi_lamb_args *args);
cudaError_t sherdi_cuda_sumsq(sherdi_cuda_place place, const void *x, sherd_dtype dtype,
                              size_t count_elems, sherdi_norm_acc *acc);
cudaError_t sherdi_cuda_fingerprint(sherdi_cuda_place place, const sherdi_span *spans,
                                    size_t num_spans, const float *master, uint64_t *sum);
/** cudaErrorInvalidValue: more than SHERDI_CUDA_POINTERS sources that are not equally spaced, or as many
 *  further destinations. So does reduce_fixed. */
cudaError_t sherdi_cuda_reduce(sherdi_cuda_place place, const sherdi_reduce_args *args);
/** Types differ. */
cudaError_t sherdi_cuda_cast(sherdi_cuda_place place, void *dst, sherd_dtype dst_dtype,
                             const void *src, sherd_dtype src_dtype, size_t count_elems);
cudaError_t sherdi_cuda_accumulate(sherdi_cuda_place place, void *acc, sherd_dtype acc_dtype,
                                   const void *x, sherd_dtype x_dtype, size_t count_elems);
cudaError_t sherdi_cuda_reduce_fixed(sherdi_cuda_place place, const sherdi_fixed_args *args);
cudaError_t sherdi_cuda_fixed_to_f32(sherdi_cuda_place place, float *dst, const int64_t *acc,
                                     size_t count_elems);

#ifdef __cplusplus
}
#endif

#endif
