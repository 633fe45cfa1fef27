/* Causal attention by cuDNN's graph interface. The library is opened by name when a model is made
 * that wants it. Without the library, or if it has no kernels for a shape, the trainer's own
 * kernels compute (attention.cu). device.cu calls this. */
#ifndef LLM_CUDA_SDPA_H
#define LLM_CUDA_SDPA_H

#include "trainer/compute.h"
#include "sherd.h"

#include <cuda_runtime.h>

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sdpa sdpa;

typedef struct sdpa_shape {
    sherd_dtype dtype;
    size_t      batch, length, heads, kv_heads, width, q_stride, kv_stride; /* as in heads_args */
} sdpa_shape;

typedef struct sdpa_info {
    size_t version;          /* of cuDNN, 91900: 9.19.0 */
    int    is_deterministic; /* backward gives the same bits again */
    size_t workspace_bytes;
} sdpa_info;

/** Makes it for the current device. Returns NULL with a sentence in `why` if there is no library or
 *  it has no kernels for the shape. */
sdpa *sdpa_create(const sdpa_shape *shape, char *why, size_t why_bytes);
void  sdpa_destroy(sdpa *s); /* accepts NULL; its work has ended */
/** Asks whether cuDNN has kernels of this shape for a described device (its properties as cuDNN
 *  writes them in JSON). It needs the library, but no device. Returns 0, or -1 with a sentence in
 *  `why`. */
int       sdpa_check(const sdpa_shape *shape, const char *device_json, sdpa_info *out, char *why,
                     size_t why_bytes);
sdpa_info sdpa_describe(const sdpa *s);
/** Returns why a version of cuDNN must not be used for a shape although it has kernels for it: a
 *  fault that its release notes name, or one against which cudnn-frontend guards its users. NULL:
 *  it may be used. */
const char *sdpa_fault_of(size_t version, const sdpa_shape *shape);
int         sdpa_is_of(const sdpa *s, const sdpa_shape *shape);

/** Queue attention and its backward, for the shape with which `s` was created. Forward writes
 *  log_sums [batch, heads, length], which backward reads; `deltas` of the same size is scratch.
 *  Return 0, or -1 with a sentence in `why`. */
int sdpa_forward(sdpa *s, const heads_args *args, void *out, float *log_sums, cudaStream_t stream,
                 char *why, size_t why_bytes);

typedef struct sdpa_back_args {
    const void  *out, *dout;
    const float *log_sums;
    float       *deltas;
    void        *dq, *dk, *dv;
} sdpa_back_args;

int sdpa_backward(sdpa *s, const heads_args *args, const sdpa_back_args *back, cudaStream_t stream,
                  char *why, size_t why_bytes);

#ifdef __cplusplus
}
#endif

#endif
