/* Causal attention by cuDNN's graph interface, where its library is. It is opened by name when a model is made that wants it; without
 * it, or where it has no kernels for a shape, the trainer's own (attention.cu) compute. */
#ifndef LLM_CUDA_SDPA_H
#define LLM_CUDA_SDPA_H

#include "examples/llm/compute.h"
#include "sherd.h"

#include <cuda_runtime.h>

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sdpa sdpa;

typedef struct sdpa_shape {
    sherd_dtype dtype;
    size_t batch, length, heads, kv_heads, width, q_stride, kv_stride; /* as heads_args has them */
} sdpa_shape;

typedef struct sdpa_info {
    size_t version;          /* of cuDNN, 91900: 9.19.0 */
    int    is_deterministic; /* backward gives the same bits again */
    size_t workspace_bytes;
} sdpa_info;

/** For the current device. NULL with a sentence in `why`: no library, or it has no kernels for this. */
sdpa *sdpa_create(const sdpa_shape *shape, char *why, size_t why_bytes);
void  sdpa_destroy(sdpa *s); /* accepts NULL; its work has ended */
/** Whether cuDNN has kernels of such a shape for a device that is described (its properties as cuDNN writes them in JSON): needs the
 *  library, and no device. 0, or -1 with a sentence in `why`. */
int       sdpa_check(const sdpa_shape *shape, const char *device_json, sdpa_info *out, char *why,
                     size_t why_bytes);
sdpa_info sdpa_describe(const sdpa *s);
/** Why a version of cuDNN is not asked for a shape that it has kernels for: a fault that its release notes tell of, or that
 *  cudnn-frontend keeps its users from. NULL: it is asked. */
const char *sdpa_fault_of(size_t version, const sdpa_shape *shape);
int       sdpa_is_of(const sdpa *s, const sdpa_shape *shape);

/** Queue attention, and its backward, of a shape equal to the created one. log_sums [batch, heads, length] pass between the two;
 *  `deltas` of as many is scratch. 0, or -1 with a sentence in `why`. */
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
