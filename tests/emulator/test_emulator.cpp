/* The emulator itself: fibers, streams, events, memory, faults. */
#include "cuda_runtime.h"
#include "emulator.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#define _Noreturn __attribute__((noreturn))
extern "C" {
#include "tests/lib/check.h"
}

#define CHECK_CUDA(want, call)                                                                     \
    do {                                                                                           \
        cudaError_t check_error_ = (call);                                                         \
        if (check_error_ != (want)) {                                                              \
            test_fail(__FILE__, __LINE__, "%s gave %s", #call, cudaGetErrorName(check_error_));    \
        }                                                                                          \
    } while (0)

template <typename T> static T *device_array(size_t count)
{
    T *made = nullptr;

    CHECK_CUDA(cudaSuccess, cudaMalloc(&made, count * sizeof(T)));
    return made;
}

/* ----------------------------------------------------------- threads -- */

#define SUM_THREADS 256

/* Block sums by shuffles, shared memory and one atomic. */
static void __global__ sum_kernel(const int *x, int count, unsigned long long *sum)
{
    __shared__ int warps[SUM_THREADS / 32];
    int            own = 0;

    for (int i = (int)(blockIdx.x * blockDim.x + threadIdx.x); i < count;
         i += (int)(gridDim.x * blockDim.x)) {
        own += x[i];
    }
    for (int by = 16; by > 0; by /= 2) {
        own += __shfl_down_sync(0xffffffffu, own, (unsigned)by);
    }
    if (threadIdx.x % 32 == 0) {
        warps[threadIdx.x / 32] = own;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        int total = 0;

        for (int w = 0; w < SUM_THREADS / 32; w++) {
            total += warps[w];
        }
        atomicAdd(sum, (unsigned long long)total);
    }
}

static void kernel_with_barriers_and_shuffles_sums(void)
{
    const int           count = 100003;
    int                *x     = device_array<int>((size_t)count);
    unsigned long long *sum   = device_array<unsigned long long>(1);
    int                *host  = (int *)malloc((size_t)count * sizeof(int));
    unsigned long long  got   = 0;

    for (int i = 0; i < count; i++) {
        host[i] = i % 1000;
        got -= (unsigned long long)host[i];
    }
    CHECK_CUDA(cudaSuccess, cudaMemcpy(x, host, (size_t)count * sizeof(int), cudaMemcpyDefault));
    CHECK_CUDA(cudaSuccess, cudaMemset(sum, 0, sizeof(*sum)));
    CHECK_CUDA(cudaSuccess, emulator_launch(sum_kernel, 7, SUM_THREADS, 0, nullptr, x, count, sum));
    unsigned long long total;
    CHECK_CUDA(cudaSuccess, cudaMemcpy(&total, sum, sizeof(total), cudaMemcpyDefault));
    CHECK_INT(0, got + total);
    free(host);
    cudaFree(x);
    cudaFree(sum);
}

/* Lanes that have ended are not waited for; sub-warps meet by their own masks. */
static void __global__ partial_kernel(int *out)
{
    unsigned lane = threadIdx.x % 32;
    unsigned mask = lane < 8 ? 0xffu : 0xffff00u;

    if (lane >= 24) {
        return;
    }
    out[threadIdx.x] = (int)__ballot_sync(mask, lane % 2 == 0) +
                       __shfl_xor_sync(0xffffffu, (int)lane, 1) * 1000000000 * 0;
    __syncthreads();
    out[threadIdx.x] += __syncthreads_count(lane == 3) << 24;
}

static void ended_lanes_and_masks_are_kept_apart(void)
{
    int *out = device_array<int>(64);
    int  got[64];

    CHECK_CUDA(cudaSuccess, cudaMemset(out, 0, 64 * sizeof(int)));
    CHECK_CUDA(cudaSuccess, emulator_launch(partial_kernel, 1, 64, 0, nullptr, out));
    CHECK_CUDA(cudaSuccess, cudaMemcpy(got, out, sizeof(got), cudaMemcpyDefault));
    for (int i = 0; i < 64; i++) {
        int lane = i % 32;

        CHECK_INT(lane >= 24 ? 0 : (lane < 8 ? 0x55 : 0x555500) + (2 << 24), got[i]);
    }
    cudaFree(out);
}

/* Every thread copies its four numbers, and four of zeros, in two groups; what it sees of them
 * before a wait, after a wait for the first and after the last goes to `out`, twelve numbers a
 * thread. */
static void __global__ copies_kernel(const float *x, float *out)
{
    float *own = (float *)emulator_shared() + threadIdx.x * 8;
    float *to  = out + threadIdx.x * 12;

    emulator_copy_start(own, x + threadIdx.x * 4, 16, true);
    emulator_copies_commit();
    emulator_copy_start(own + 4, x, 16, false);
    emulator_copies_commit();
    memcpy(to, own, 16);
    emulator_copies_wait(1);
    memcpy(to + 4, own, 16);
    to[7] = own[4];
    emulator_copies_wait(0);
    memcpy(to + 8, own + 4, 16);
}

static void copies_into_shared_memory_arrive_when_waited_for(void)
{
    enum { THREADS = 64 };
    float  host[THREADS * 4];
    float  got[THREADS * 12];
    float *x   = device_array<float>(THREADS * 4);
    float *out = device_array<float>(THREADS * 12);

    for (int i = 0; i < THREADS * 4; i++) {
        host[i] = (float)i;
    }
    CHECK_CUDA(cudaSuccess, cudaMemcpy(x, host, sizeof(host), cudaMemcpyDefault));
    CHECK_CUDA(cudaSuccess,
               emulator_launch(copies_kernel, 1, THREADS, THREADS * 32, nullptr, x, out));
    CHECK_CUDA(cudaSuccess, cudaMemcpy(got, out, sizeof(got), cudaMemcpyDefault));
    for (int t = 0; t < THREADS; t++) {
        const float *own = got + t * 12;

        CHECK(isnan(own[0]) && isnan(own[3]) && isnan(own[7]));
        for (int i = 0; i < 3; i++) {
            CHECK(own[4 + i] == host[t * 4 + i]);
        }
        CHECK(own[8] == 0 && own[11] == 0);
    }
    cudaFree(x);
    cudaFree(out);
}

/* Half of the threads put numbers into two slots, round after round; the others add them up.
 * Neither may come too early: `full` and `empty` say which slots are which. */
static void __global__ ring_kernel(int rounds, int *out)
{
    uint64_t *full = (uint64_t *)emulator_shared(), *empty = full + 2;
    int      *slots = (int *)(empty + 2), half = (int)blockDim.x / 2, me = (int)threadIdx.x % half,
        sum = 0;

    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; i++) {
            emulator_mbarrier_init(&full[i], (unsigned)half);
            emulator_mbarrier_init(&empty[i], (unsigned)half);
        }
    }
    __syncthreads();
    for (int i = 0; i < rounds; i++) {
        int slot = i % 2, phase = i / 2;

        if ((int)threadIdx.x < half) {
            emulator_mbarrier_wait(&empty[slot], phase - 1);
            slots[slot * half + me] = i * 100 + me;
            emulator_mbarrier_arrive(&full[slot]);
        } else {
            emulator_mbarrier_wait(&full[slot], phase);
            sum += slots[slot * half + (me + 1) % half];
            emulator_mbarrier_arrive(&empty[slot]);
        }
    }
    out[threadIdx.x] = sum;
}

static void barriers_in_shared_memory_order_a_ring(void)
{
    enum { HALF = 40, ROUNDS = 7 };
    int *out = device_array<int>(2 * HALF);
    int  got[2 * HALF];

    CHECK_CUDA(cudaSuccess, emulator_launch(ring_kernel, 2, 2 * HALF, 32 + 2 * HALF * 4, nullptr,
                                            (int)ROUNDS, out));
    CHECK_CUDA(cudaSuccess, cudaMemcpy(got, out, sizeof(got), cudaMemcpyDefault));
    for (int i = 0; i < HALF; i++) {
        CHECK_INT(0, got[i]);
        CHECK_INT(ROUNDS * (ROUNDS - 1) / 2 * 100 + ROUNDS * ((i + 1) % HALF), got[HALF + i]);
    }
    cudaFree(out);
}

/* What a kernel does wrong, by number: each of them is undefined on a device. */
static void __global__ wrong_kernel(int what, const float *x)
{
    unsigned char *shared = (unsigned char *)emulator_shared();

    if (what == 0) { /* nobody waits */
        emulator_copy_start(shared, x, 16, true);
        emulator_copies_commit();
    } else if (what == 1) {
        emulator_copy_start(shared + 8, x, 16, true);
    } else if (what == 2) {
        emulator_copy_start(shared, x + 1, 16, true);
    } else if (what == 3) {
        emulator_shared_at(shared + 128, 16); /* of the 100 bytes asked for */
    } else if (what == 4) {
        *(volatile unsigned char *)(shared + 128) = 1;
    } else if (what <= 7) {
        uint64_t *barrier = (uint64_t *)shared;

        if (what > 5) {
            emulator_mbarrier_init(barrier, 1);
        }
        emulator_mbarrier_wait(barrier, what == 7 ? 0
                                        : what == 6
                                            ? 1
                                            : -1); /* not made; too far ahead; nobody arrives */
    }
}

static void wrong_use_of_shared_memory_ends_the_process(void)
{
    for (int what = 0; what <= 8; what++) { /* 8: nothing */
        int   status = 0;
        pid_t child  = fork(); /* before this process has used a device */

        if (child == 0) {
            float *x = device_array<float>(8);

            (void)dup2(open("/dev/null", O_WRONLY), STDERR_FILENO);
            (void)emulator_launch(wrong_kernel, 1, 1, 100, nullptr, what, x);
            (void)cudaDeviceSynchronize();
            _exit(0);
        }
        CHECK_INT(child, waitpid(child, &status, 0));
        CHECK_INT(what < 8, status != 0);
    }
}

/* ----------------------------------------------------------- streams -- */

static void __global__ add_kernel(int *x, int by)
{
    atomicAdd(x, by);
}

static void __global__ double_kernel(int *x)
{
    *x *= 2;
}

static void wait_is_for_the_last_record(void)
{
    int         *x = device_array<int>(1);
    cudaStream_t first;
    cudaStream_t second;
    cudaEvent_t  event;
    int          got;

    CHECK_CUDA(cudaSuccess, cudaMemset(x, 0, sizeof(int)));
    CHECK_CUDA(cudaSuccess, cudaDeviceSynchronize());
    CHECK_CUDA(cudaSuccess, cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking));
    CHECK_CUDA(cudaSuccess, cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
    CHECK_CUDA(cudaSuccess, cudaEventCreate(&event));
    CHECK_CUDA(cudaSuccess, cudaStreamWaitEvent(second, event, 0)); /* never recorded: nothing */
    for (int i = 0; i < 100; i++) {
        CHECK_CUDA(cudaSuccess, emulator_launch(add_kernel, 1, 1, 0, first, x, 1));
        CHECK_CUDA(cudaSuccess, cudaEventRecord(event, first));
        CHECK_CUDA(cudaSuccess, cudaStreamWaitEvent(second, event, 0));
        CHECK_CUDA(cudaSuccess, emulator_launch(add_kernel, 1, 1, 0, second, x, 1));
        CHECK_CUDA(cudaSuccess, cudaEventRecord(event, second));
        CHECK_CUDA(cudaSuccess, cudaStreamWaitEvent(first, event, 0));
        if (i % 10 == 9) {
            CHECK_CUDA(cudaSuccess, emulator_launch(double_kernel, 1, 1, 0, first, x));
        }
    }
    CHECK_CUDA(cudaSuccess, cudaStreamDestroy(second)); /* its work is done all the same */
    CHECK_CUDA(cudaSuccess, cudaStreamSynchronize(first));
    CHECK_CUDA(cudaSuccess, cudaMemcpy(&got, x, sizeof(got), cudaMemcpyDefault));
    CHECK_INT(20 * (2048 - 2), got);
    CHECK_CUDA(cudaSuccess, cudaStreamDestroy(first));
    CHECK_CUDA(cudaSuccess, cudaEventDestroy(event));
    cudaFree(x);
}

static void stream_of_another_device_is_refused(void)
{
    cudaStream_t stream;

    CHECK_CUDA(cudaSuccess, cudaSetDevice(1));
    CHECK_CUDA(cudaSuccess, cudaStreamCreate(&stream));
    CHECK_CUDA(cudaSuccess, cudaSetDevice(0));
    CHECK_CUDA(cudaErrorInvalidResourceHandle,
               emulator_launch(add_kernel, 1, 1, 0, stream, nullptr, 1));
    CHECK_CUDA(cudaErrorInvalidResourceHandle, cudaGetLastError());
    CHECK_CUDA(cudaSuccess, cudaGetLastError());
    CHECK_CUDA(cudaSuccess, cudaStreamDestroy(stream));
}

/* In a child that has no test runner: the number of the call that was not refused. */
static int calls_refused(int *x)
{
    void *memory = nullptr;
    int   count  = 7;

    if (cudaGetDeviceCount(&count) != cudaErrorInitializationError || count != 0) {
        return 1;
    }
    if (cudaSetDevice(0) != cudaErrorInitializationError) {
        return 2;
    }
    if (cudaMalloc(&memory, 10) != cudaErrorInitializationError) {
        return 3;
    }
    if (emulator_launch(add_kernel, 1, 1, 0, nullptr, x, 1) != cudaErrorInitializationError) {
        return 4;
    }
    return cudaDeviceSynchronize() != cudaErrorInitializationError ? 5 : 0;
}

static void child_of_a_process_that_used_it_is_refused(void)
{
    int  *x = device_array<int>(1);
    int   raw;
    pid_t child;

    CHECK_CUDA(cudaSuccess, emulator_launch(add_kernel, 1, 1, 0, nullptr, x, 1));
    child = fork();
    if (child == 0) {
        _exit(calls_refused(x));
    }
    CHECK(child > 0 && waitpid(child, &raw, 0) == child);
    CHECK_INT(0, raw);
    CHECK_CUDA(cudaSuccess, cudaDeviceSynchronize());
    CHECK_CUDA(cudaSuccess, cudaFree(x));
}

static void captured_stream_is_replayed(void)
{
    unsigned long           launches = emulator_launches(), graphs = emulator_graph_launches();
    cudaStreamCaptureStatus status;
    cudaStream_t            stream;
    cudaGraph_t             graph;
    cudaGraphExec_t         exec;
    int                    *x = device_array<int>(1), *y = device_array<int>(1), got = 0;

    CHECK_CUDA(cudaSuccess, cudaMemset(x, 0, sizeof(*x)));
    CHECK_CUDA(cudaSuccess, cudaDeviceSynchronize());
    CHECK_CUDA(cudaSuccess, cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK_CUDA(cudaSuccess, cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    CHECK_CUDA(cudaErrorIllegalState,
               cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    CHECK_CUDA(cudaSuccess, emulator_launch(add_kernel, 1, 1, 0, stream, x, 2));
    CHECK_CUDA(cudaSuccess, cudaMemcpyAsync(y, x, sizeof(*x), cudaMemcpyDeviceToDevice, stream));
    CHECK_CUDA(cudaSuccess, emulator_launch(add_kernel, 1, 1, 0, stream, x, 3));
    CHECK_CUDA(cudaSuccess, cudaStreamIsCapturing(stream, &status));
    CHECK_INT(cudaStreamCaptureStatusActive, status);
    CHECK_CUDA(cudaSuccess, cudaStreamEndCapture(stream, &graph));
    CHECK_CUDA(cudaSuccess, cudaGraphInstantiateWithFlags(&exec, graph, 0));
    CHECK_CUDA(cudaSuccess, cudaGraphDestroy(graph));
    CHECK_INT(launches, emulator_launches()); /* nothing ran */
    for (int i = 0; i < 2; i++) {
        CHECK_CUDA(cudaSuccess, cudaGraphLaunch(exec, stream));
    }
    CHECK_CUDA(cudaSuccess, cudaStreamSynchronize(stream));
    CHECK_CUDA(cudaSuccess, cudaMemcpy(&got, x, sizeof(got), cudaMemcpyDeviceToHost));
    CHECK_INT(10, got);
    CHECK_CUDA(cudaSuccess, cudaMemcpy(&got, y, sizeof(got), cudaMemcpyDeviceToHost));
    CHECK_INT(7, got);
    CHECK_INT(graphs + 2, emulator_graph_launches());
    CHECK_CUDA(cudaSuccess, cudaGraphExecDestroy(exec));
    CHECK_CUDA(cudaSuccess, cudaStreamDestroy(stream));
    CHECK_CUDA(cudaSuccess, cudaFree(x));
    CHECK_CUDA(cudaSuccess, cudaFree(y));
}

/* Each spoils the capture, after which the stream works again. */
static void what_no_capture_may_contain_is_refused(void)
{
    cudaStream_t stream;
    cudaEvent_t  event;
    cudaGraph_t  graph;
    void        *memory = nullptr;
    int         *x = device_array<int>(1), value = 0;

    CHECK_CUDA(cudaSuccess, cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK_CUDA(cudaSuccess, cudaEventCreate(&event));
    CHECK_CUDA(cudaErrorStreamCaptureUnsupported,
               cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < 8; i++) {
        cudaError_t error = cudaSuccess;

        CHECK_CUDA(cudaSuccess, cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
        error = i == 0   ? cudaStreamSynchronize(stream)
                : i == 1 ? cudaStreamQuery(stream)
                : i == 2 ? cudaEventSynchronize(event)
                : i == 3 ? cudaDeviceSynchronize()
                : i == 4 ? cudaMalloc(&memory, 16)
                : i == 5 ? cudaFree(x)
                : i == 6
                    ? cudaMemcpy(x, &value, sizeof(value), cudaMemcpyHostToDevice)
                    : cudaMemcpyAsync(x, &value, sizeof(value), cudaMemcpyHostToDevice, stream);
        CHECK_CUDA(cudaErrorStreamCaptureUnsupported, error);
        CHECK_CUDA(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(stream, &graph));
        CHECK(graph == nullptr);
        CHECK_CUDA(cudaSuccess, cudaStreamSynchronize(stream));
    }
    (void)cudaGetLastError();
    CHECK_CUDA(cudaSuccess, cudaEventDestroy(event));
    CHECK_CUDA(cudaSuccess, cudaStreamDestroy(stream));
    CHECK_CUDA(cudaSuccess, cudaFree(x));
}

/* In thread-local mode too: it is the stream that is in capture, not the thread alone. */
static void another_thread_spoils_a_capture(void)
{
    cudaStream_t stream;
    cudaEvent_t  event;
    cudaGraph_t  graph;
    int         *x = device_array<int>(1);

    CHECK_CUDA(cudaSuccess, cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK_CUDA(cudaSuccess, cudaEventCreate(&event));
    CHECK_CUDA(cudaSuccess, cudaEventRecord(event, stream));
    for (int i = 0; i < 5; i++) {
        cudaStreamCaptureStatus status;
        cudaError_t             error = cudaSuccess;

        CHECK_CUDA(cudaSuccess, cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
        CHECK_CUDA(cudaSuccess, emulator_launch(add_kernel, 1, 1, 0, stream, x, 1));
        std::thread([&] {
            error = i == 0   ? cudaEventRecord(event, stream)
                    : i == 1 ? cudaStreamWaitEvent(stream, event, 0)
                    : i == 2 ? cudaStreamSynchronize(stream)
                    : i == 3 ? cudaStreamQuery(stream)
                             : cudaDeviceSynchronize();
        }).join();
        CHECK_CUDA(i == 1 ? cudaErrorStreamCaptureIsolation : cudaErrorStreamCaptureUnsupported,
                   error);
        CHECK_CUDA(cudaSuccess, cudaStreamIsCapturing(stream, &status));
        CHECK_INT(cudaStreamCaptureStatusInvalidated, status);
        CHECK_CUDA(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(stream, &graph));
        CHECK(graph == nullptr);
        CHECK_CUDA(cudaSuccess, cudaStreamSynchronize(stream));
    }
    (void)cudaGetLastError();
    CHECK_CUDA(cudaSuccess, cudaEventDestroy(event));
    CHECK_CUDA(cudaSuccess, cudaStreamDestroy(stream));
    CHECK_CUDA(cudaSuccess, cudaFree(x));
}

static void faults_come_as_asked(void)
{
    void *memory = nullptr;
    int  *x      = device_array<int>(1);

    emulator_fail_alloc(2);
    CHECK_CUDA(cudaSuccess, cudaMalloc(&memory, 10));
    CHECK_CUDA(cudaSuccess, cudaFree(memory));
    CHECK_CUDA(cudaErrorMemoryAllocation, cudaMalloc(&memory, 10));
    emulator_fail_launch(1);
    CHECK_CUDA(cudaErrorLaunchOutOfResources, emulator_launch(add_kernel, 1, 1, 0, nullptr, x, 1));
    CHECK_CUDA(cudaSuccess, emulator_launch(add_kernel, 1, 1, 0, nullptr, x, 1));
    CHECK_CUDA(cudaErrorInvalidConfiguration, emulator_launch(add_kernel, 0, 1, 0, nullptr, x, 1));
    emulator_fail_kernel(1);
    (void)emulator_launch(add_kernel, 1, 1, 0, nullptr, x, 1);
    CHECK_CUDA(cudaErrorIllegalAddress, cudaDeviceSynchronize());
    CHECK_CUDA(cudaErrorIllegalAddress, cudaMalloc(&memory, 10));
    emulator_heal(0);
    CHECK_CUDA(cudaSuccess, cudaFree(x));
}

static const test_case CASES[] = {
    CASE(wrong_use_of_shared_memory_ends_the_process), /* first: it forks */
    CASE(kernel_with_barriers_and_shuffles_sums),
    CASE(ended_lanes_and_masks_are_kept_apart),
    CASE(copies_into_shared_memory_arrive_when_waited_for),
    CASE(barriers_in_shared_memory_order_a_ring),
    CASE(wait_is_for_the_last_record),
    CASE(stream_of_another_device_is_refused),
    CASE(child_of_a_process_that_used_it_is_refused),
    CASE(captured_stream_is_replayed),
    CASE(what_no_capture_may_contain_is_refused),
    CASE(another_thread_spoils_a_capture),
    CASE(faults_come_as_asked),
};

RUN_MAIN(CASES)
