/* What streams keep for graphs while they are in capture: between streams.cpp and graphs.cpp. See
 * emulator.h. */
#ifndef TESTS_EMULATOR_CAPTURE_H
#define TESTS_EMULATOR_CAPTURE_H

#include "emulator.h"

#include <functional>
#include <vector>

struct captured {
    bool                  is_kernel;
    std::function<void()> run; /* any number of times */
};
typedef std::vector<captured> capture;

/* The stream's calls of this thread are recorded from here on instead of executed. */
cudaError_t emulator_capture_begin(cudaStream_t stream, bool is_for_all);
/* The recorded calls; cudaErrorStreamCaptureInvalidated when something came between that no capture
 * may contain. */
cudaError_t emulator_capture_end(cudaStream_t stream, capture *out);
cudaError_t emulator_capture_state(cudaStream_t stream, cudaStreamCaptureStatus *out);
/* Gives the stream all of it, in order. */
cudaError_t emulator_capture_run(cudaStream_t stream, const capture &work);

#endif
