/* The calls of sherd.h that take or return types of CUDA, with these types. Needs
 * cuda_runtime_api.h. For sherd_world_from_nccl, which also needs nccl.h, define SHERD_WITH_NCCL
 * before including this header. */
#ifndef SHERD_CUDA_H
#define SHERD_CUDA_H

#include "sherd.h"

#include <cuda_runtime_api.h>
#ifdef SHERD_WITH_NCCL
#include <nccl.h>
#endif

/** Returns the compute stream; see sherd_engine_stream. */
static inline cudaStream_t sherd_cuda_stream(const sherd_engine *engine)
{
    return (cudaStream_t)sherd_engine_stream(engine);
}

/** Makes `stream` the compute stream; see sherd_engine_set_stream. In a program that is compiled
 *  with `nvcc --default-stream per-thread`, handle 0 means the default stream of the calling thread
 *  here too. */
static inline SHERD_MUST_USE sherd_status sherd_cuda_set_stream(sherd_engine *engine,
                                                                cudaStream_t  stream)
{
#if defined(CUDA_API_PER_THREAD_DEFAULT_STREAM) || defined(__CUDA_API_PER_THREAD_DEFAULT_STREAM)
    if (stream == 0) {
        stream = cudaStreamPerThread;
    }
#endif
    return sherd_engine_set_stream(engine, (void *)stream);
}

/** Makes all work that is enqueued on `stream` after this call wait for all work that was enqueued
 *  on `other` before it. For a library that works on its own stream: its stream follows
 *  sherd_cuda_stream after acquire, and sherd_cuda_stream follows its stream before release. The
 *  call itself does not wait. If one of the two streams is being captured, both must belong to the
 *  same capture. */
static inline SHERD_MUST_USE cudaError_t sherd_cuda_follow(cudaStream_t stream, cudaStream_t other)
{
    cudaEvent_t passed;
    cudaError_t error = cudaEventCreateWithFlags(&passed, cudaEventDisableTiming);

    if (error != cudaSuccess) {
        return error;
    }
    error = cudaEventRecord(passed, other);
    if (error == cudaSuccess) {
        error = cudaStreamWaitEvent(stream, passed, 0);
    }
    (void)cudaEventDestroy(passed); /* CUDA frees the event after it has completed */
    return error;
}

#ifdef SHERD_WITH_NCCL
/** Creates a world over an NCCL communicator; see sherd_world_from_nccl_handle. */
static inline SHERD_MUST_USE sherd_status sherd_world_from_nccl(ncclComm_t                comm,
                                                                const sherd_world_params *params,
                                                                sherd_world             **out)
{
    return sherd_world_from_nccl_handle((void *)comm, params, out);
}
#endif

#endif
