/* Graphs of the emulated devices: what one stream was given during a capture, replayed in that
 * order. See emulator.h. */
#include "capture.h"

struct CUgraph_st {
    capture work;
};

struct CUgraphExec_st {
    capture work;
};

extern "C" cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode)
{
    return mode == cudaStreamCaptureModeRelaxed ? cudaErrorNotSupported
                                                : emulator_capture_begin(stream, mode == cudaStreamCaptureModeGlobal);
}

extern "C" cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    capture     work;
    cudaError_t error = emulator_capture_end(stream, &work);

    *graph = error == cudaSuccess ? new CUgraph_st{std::move(work)} : nullptr;
    return error;
}

extern "C" cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus *status)
{
    return emulator_capture_state(stream, status);
}

extern "C" cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags)
{
    if (graph == nullptr || flags != 0) {
        return cudaErrorInvalidValue;
    }
    *exec = new CUgraphExec_st{graph->work};
    return cudaSuccess;
}

extern "C" cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    return exec == nullptr ? cudaErrorInvalidValue : emulator_capture_run(stream, exec->work);
}

extern "C" cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    delete graph;
    return cudaSuccess;
}

extern "C" cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    delete exec;
    return cudaSuccess;
}
