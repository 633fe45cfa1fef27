/* The entries of sherdi_kernel_ops that run a kernel: defined in the .cu files, called through the
 * table in lane.c, which is in C. Each is asynchronous. It relies on its contract without checks,
 * makes the device the current one of the calling thread, and notes an error of the launch for the
 * next wait.
 *
 * The host never follows pointers to device memory: the number of elements in the spans is found on
 * the device. So grids are at most as large as the machine, and thread blocks take tiles in
 * turn. */
#ifndef SHERDI_KERNELS_CUDA_LAUNCH_H
#define SHERDI_KERNELS_CUDA_LAUNCH_H

#include <cuda_runtime.h>
#include <math.h>
#include <string.h>

#include "kernels/backend.h"

/* The most further destinations of one reduction, and the most sources that need not be equally
 * spaced. */
#define SHERDI_CUDA_POINTERS 64

#ifdef __cplusplus
extern "C" {
#endif

/* Where a kernel is launched. */
typedef struct sherdi_cuda_target {
    const sherdi_backend *backend;
    cudaStream_t          stream;
    int                   processors; /* of the device */
} sherdi_cuda_target;

/** Makes the lane's device the current one of the calling thread, and returns where to launch. */
sherdi_cuda_target sherdi_cuda_target_of(const sherdi_backend *backend);
/** Notes the result of a launch. */
void sherdi_cuda_launched(const sherdi_backend *backend, cudaError_t error);

/** Returns cudaSuccess if the current device can run the kernels of this build. */
cudaError_t sherdi_cuda_probe(void);

void sherdi_cuda_update(const sherdi_backend *backend, sherdi_update_id update,
                        const sherdi_update_args *args);
/** Does the same where a part is not F32. */
void sherdi_cuda_update_encoded(const sherdi_backend *backend, sherdi_update_id update,
                                const sherdi_update_args *args);
void sherdi_cuda_lamb_norms(const sherdi_backend *backend, const sherdi_update_args *args);
void sherdi_cuda_lamb_ratios(const sherdi_backend *backend, const sherdi_lamb_ratio_args *args);
void sherdi_cuda_sumsq(const sherdi_backend *backend, const void *x, sherd_dtype dtype,
                       size_t count_elems, sherdi_norm_acc *acc);
void sherdi_cuda_fingerprint(const sherdi_backend *backend, const sherdi_span *spans,
                             size_t num_spans, const float *master, uint64_t *sum);
void sherdi_cuda_fingerprint_encoded(const sherdi_backend *backend, const sherdi_span *spans,
                                     size_t num_spans, const sherdi_encoded *master, uint64_t *sum);
void sherdi_cuda_decode(const sherdi_backend *backend, float *dst, const sherdi_encoded *part,
                        size_t first, size_t count_elems);
void sherdi_cuda_encode(const sherdi_backend *backend, const sherdi_encoded *part, size_t first,
                        const float *src, size_t count_elems);
/** Notes cudaErrorInvalidValue if there are more than SHERDI_CUDA_POINTERS sources and these are
 *  not equally spaced, more than SHERDI_DEVICE_WEIGHTS sources with weights, or more than
 *  SHERDI_CUDA_POINTERS further destinations. The limits on sources hold for reduce_fixed too. */
void sherdi_cuda_reduce(const sherdi_backend *backend, const sherdi_reduce_args *args);
/** The types must differ. */
void sherdi_cuda_cast(const sherdi_backend *backend, void *dst, sherd_dtype dst_dtype,
                      const void *src, sherd_dtype src_dtype, size_t count_elems);
void sherdi_cuda_accumulate(const sherdi_backend *backend, void *acc, sherd_dtype acc_dtype,
                            const void *x, sherd_dtype x_dtype, size_t count_elems);
void sherdi_cuda_reduce_fixed(const sherdi_backend *backend, const sherdi_reduce_args *args,
                              const sherdi_fixed_sink *sink);
void sherdi_cuda_fixed_to_f32(const sherdi_backend *backend, float *dst, const int64_t *acc,
                              size_t count_elems);
void sherdi_cuda_product(const sherdi_backend *backend, const sherdi_product_args *args);
void sherdi_cuda_normalize(const sherdi_backend *backend, float *dst, const float *src,
                           size_t count_elems, const sherdi_norm_acc *sumsq, float eps);

#ifdef __cplusplus
}
#endif

#endif
