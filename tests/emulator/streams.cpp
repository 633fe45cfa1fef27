/* Streams of the emulated devices, each a thread with a queue: kernels, events, what a capture
 * keeps. See runtime.h. */
#include "runtime.h"

#include "fibers.h"

#include <algorithm>
#include <thread>
#include <time.h>
#include <unistd.h>

/* In capture: this thread's stream; with the lock held, that of a thread that captures in global
 * mode. */
static thread_local cudaStream_t capturing;
static cudaStream_t              capturing_for_all;
/* What this thread is held to while others capture. */
static thread_local cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;
/* cudaStreamPerThread, by device. */
static thread_local std::map<int, cudaStream_t> own_streams;

static int64_t now_ns(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static uint64_t random_next(uint64_t *state)
{
    uint64_t x = *state += 0x9e3779b97f4a7c15u;

    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

cudaError_t capture_check(void)
{
    cudaStream_t spoiled = capturing != nullptr                          ? capturing
                           : capture_mode == cudaStreamCaptureModeGlobal ? capturing_for_all
                                                                         : nullptr;

    if (spoiled == nullptr) {
        return cudaSuccess;
    }
    spoiled->is_spoiled = true;
    return cudaErrorStreamCaptureUnsupported;
}

/* For a call on a stream in capture, by any thread, that the capture cannot keep. With the lock
 * held. */
static cudaError_t captured_refuse(cudaStream_t stream, cudaError_t error)
{
    stream->is_spoiled = true;
    return error_keep(error);
}

/* For a wait or a query. No thread may wait for a stream in capture. With the lock held. */
static cudaError_t stream_wait_check(cudaStream_t stream)
{
    return stream->captured != nullptr ? captured_refuse(stream, cudaErrorStreamCaptureUnsupported)
                                       : capture_check();
}

/* ----------------------------------------------------------- streams -- */

static void delay(CUstream_st *stream)
{
    uint64_t random = random_next(&stream->random);

    if (random % 4 < (stream->is_slow ? 3 : 1)) {
        struct timespec pause = {0, (long)(random >> 8) % (stream->is_slow ? 400000 : 60000)};

        (void)nanosleep(&pause, nullptr);
    }
}

static void stream_main(CUstream_st *stream)
{
    emulator                    &e = the();
    std::unique_lock<std::mutex> held(e.lock);

    current_device = stream->device;
    for (;;) {
        operation next;

        stream->has_work.wait(held, [&] { return !stream->queue.empty() || stream->is_closing; });
        if (stream->queue.empty()) {
            break;
        }
        next = std::move(stream->queue.front());
        stream->queue.pop_front();
        for (const mark_ref &other : next.after) {
            other->over.wait(held, [&] { return other->is_done; });
        }
        if (next.run && e.devices[stream->device].fault == cudaSuccess) {
            if (next.is_kernel && countdown(&e.fail_kernel)) {
                e.devices[stream->device].fault = cudaErrorIllegalAddress;
            } else {
                guard_set(e, true);
                held.unlock();
                if (e.is_seeded) {
                    delay(stream);
                }
                next.run();
                next.run = nullptr; /* what it holds goes outside of the lock */
                held.lock();
            }
        }
        next.done->is_done = true;
        next.done->ns      = now_ns();
        e.running--;
        stream->busy--;
        next.done->over.notify_all();
    }
    e.devices[stream->device].streams.erase(stream);
    e.streams_alive--;
    held.unlock();
    delete stream;
}

/* With the lock held. */
static cudaStream_t stream_make(emulator &e, int device, bool is_blocking)
{
    CUstream_st *stream = new CUstream_st();

    if (e.streams_made == 0) {
        segv_catch();
    }
    stream->device      = device;
    stream->is_blocking = is_blocking;
    stream->random      = e.seed * 0x2545f4914f6cdd1du + ++e.streams_made;
    stream->is_slow     = (random_next(&stream->random) & 1) != 0;
    stream->order       = e.is_seeded ? (unsigned)random_next(&stream->random) : 0;
    e.devices[device].streams.insert(stream);
    e.streams_alive++;
    std::thread(stream_main, stream).detach();
    return stream;
}

cudaStream_t stream_of(emulator &e, cudaStream_t handle)
{
    device_state &device = e.devices[current_device];

    if (handle == nullptr || handle == cudaStreamLegacy) {
        if (device.main_stream == nullptr) {
            device.main_stream = stream_make(e, current_device, false);
        }
        return device.main_stream;
    }
    if (handle == cudaStreamPerThread) {
        if (own_streams.count(current_device) == 0) {
            own_streams[current_device] = stream_make(e, current_device, true);
        }
        return own_streams[current_device];
    }
    for (int i = 0; i < e.num_devices; i++) {
        if (e.devices[i].streams.count(handle) != 0 && !handle->is_closing) {
            return handle;
        }
    }
    return nullptr;
}

/* Runs on the calling thread what could begin at once, and is no kernel that shall fail. With the
 * lock held. */
static bool operation_run_now(emulator &e, cudaStream_t stream, operation &what)
{
    if (what.may_block || stream->busy > 0 || e.fail_kernel > 0 ||
        e.devices[stream->device].fault != cudaSuccess) {
        return false;
    }
    for (const mark_ref &other : what.after) {
        if (!other->is_done) {
            return false;
        }
    }
    if (what.run) {
        guard_set(e, true);
        what.run();
        what.run = nullptr;
    }
    what.done->is_done = true;
    what.done->ns      = now_ns();
    what.done->over.notify_all();
    return true;
}

/* Gives a stream an operation. With the lock held. */
static mark_ref stream_give(emulator &e, cudaStream_t stream, operation &&what)
{
    device_state &device = e.devices[stream->device];
    mark_ref      done   = std::make_shared<mark>();

    if (stream == device.main_stream) { /* after all that blocking streams have */
        for (cudaStream_t other : device.streams) {
            if (other->is_blocking && other->last && !other->last->is_done) {
                what.after.push_back(other->last);
            }
        }
    } else if (stream->is_blocking && device.main_stream != nullptr && device.main_stream->last) {
        what.after.push_back(device.main_stream->last);
    }
    what.done    = done;
    stream->last = done;
    if (e.is_eager && operation_run_now(e, stream, what)) {
        return done;
    }
    stream->queue.push_back(std::move(what));
    stream->busy++;
    e.running++;
    stream->has_work.notify_one();
    return done;
}

void mark_wait(emulator &e, std::unique_lock<std::mutex> &held, mark_ref done)
{
    e.waits++;
    if (done && !e.is_forked) {
        done->over.wait(held, [&] { return done->is_done; });
    }
    guard_close_when_idle(e);
}

void device_drain(emulator &e, std::unique_lock<std::mutex> &held, int device)
{
    std::vector<mark_ref> lasts;

    for (cudaStream_t stream : e.devices[device].streams) {
        lasts.push_back(stream->last);
    }
    for (const mark_ref &last : lasts) {
        mark_wait(e, held, last);
    }
}

/* The time that CUDA takes for a process's first context. */
static void context_wait(void)
{
    static const bool has_waited =
        (usleep((useconds_t)environment_number("SHERD_EMULATOR_SLOW", 0) * 1000), true);

    (void)has_waited;
}

static cudaError_t stream_create(cudaStream_t *stream, unsigned flags)
{
    context_wait();

    emulator                   &e = the();
    std::lock_guard<std::mutex> held(e.lock);
    cudaError_t                 error = device_check();

    if (error == cudaSuccess) {
        *stream = stream_make(e, current_device, (flags & cudaStreamNonBlocking) == 0);
    }
    return error_keep(error);
}

extern "C" cudaError_t cudaStreamCreate(cudaStream_t *stream)
{
    return stream_create(stream, cudaStreamDefault);
}

extern "C" cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    return stream_create(stream, flags);
}

extern "C" cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags,
                                                    int priority)
{
    cudaError_t error = stream_create(stream, flags);

    if (error == cudaSuccess) {
        (*stream)->priority = priority;
    }
    return error;
}

extern "C" cudaError_t cudaStreamGetPriority(cudaStream_t handle, int *priority)
{
    emulator                   &e = the();
    std::lock_guard<std::mutex> held(e.lock);
    cudaStream_t                stream = stream_of(e, handle);

    if (stream == nullptr) {
        return error_keep(cudaErrorInvalidResourceHandle);
    }
    *priority = stream->priority;
    return cudaSuccess;
}

extern "C" cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    emulator                   &e = the();
    std::lock_guard<std::mutex> held(e.lock);

    if (stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread ||
        stream_of(e, stream) == nullptr) {
        return error_keep(cudaErrorInvalidResourceHandle);
    }
    stream->is_closing = true; /* its thread ends after what it was given */
    stream->has_work.notify_one();
    return error_keep(e.devices[stream->device].fault);
}

extern "C" cudaError_t cudaStreamSynchronize(cudaStream_t handle)
{
    emulator                    &e = the();
    std::unique_lock<std::mutex> held(e.lock);
    cudaStream_t                 stream = stream_of(e, handle);
    int                          device;

    if (stream == nullptr) {
        return error_keep(cudaErrorInvalidResourceHandle);
    }
    if (stream_wait_check(stream) != cudaSuccess) {
        return error_keep(cudaErrorStreamCaptureUnsupported);
    }
    device = stream->device;
    mark_wait(e, held, stream->last);
    return error_keep(e.devices[device].fault);
}

extern "C" cudaError_t cudaStreamQuery(cudaStream_t handle)
{
    emulator                   &e = the();
    std::lock_guard<std::mutex> held(e.lock);
    cudaStream_t                stream = stream_of(e, handle);

    if (stream == nullptr) {
        return error_keep(cudaErrorInvalidResourceHandle);
    }
    if (stream_wait_check(stream) != cudaSuccess) {
        return error_keep(cudaErrorStreamCaptureUnsupported);
    }
    if (e.devices[stream->device].fault != cudaSuccess) {
        return error_keep(e.devices[stream->device].fault);
    }
    if (stream->last && !stream->last->is_done) {
        return error_keep(cudaErrorNotReady);
    }
    guard_close_when_idle(e);
    return cudaSuccess;
}

extern "C" cudaError_t cudaStreamGetDevice(cudaStream_t handle, int *device)
{
    emulator                   &e = the();
    std::lock_guard<std::mutex> held(e.lock);
    cudaStream_t                stream = stream_of(e, handle);

    if (stream == nullptr) {
        return error_keep(cudaErrorInvalidResourceHandle);
    }
    *device = stream->device;
    return cudaSuccess;
}

extern "C" cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned flags)
{
    emulator                   &e = the();
    std::lock_guard<std::mutex> held(e.lock);
    cudaStream_t                stream = stream_of(e, handle);

    (void)flags;
    if (stream == nullptr || event == nullptr) {
        return error_keep(cudaErrorInvalidResourceHandle);
    }
    if (stream->captured != nullptr) { /* no event is of a capture: they are all from outside */
        return captured_refuse(stream, cudaErrorStreamCaptureIsolation);
    }
    if (event->recorded && !event->recorded->is_done) {
        operation wait;

        wait.after.push_back(event->recorded);
        (void)stream_give(e, stream, std::move(wait));
    }
    return error_keep(e.devices[stream->device].fault);
}

cudaError_t stream_run(cudaStream_t handle, bool is_kernel, bool any_device,
                       std::function<void()> &&run, bool waits, bool may_block)
{
    emulator                    &e = the();
    std::unique_lock<std::mutex> held(e.lock);
    cudaError_t                  error = device_check();
    operation                    what;
    cudaStream_t                 stream;
    mark_ref                     done;

    if (error != cudaSuccess) {
        return error_keep(error);
    }
    stream = stream_of(e, handle);
    if (stream == nullptr || (!any_device && stream->device != current_device)) {
        return error_keep(cudaErrorInvalidResourceHandle);
    }
    if ((waits || may_block) && capture_check() != cudaSuccess) {
        return error_keep(cudaErrorStreamCaptureUnsupported);
    }
    if (is_kernel && countdown(&e.fail_launch)) {
        return error_keep(cudaErrorLaunchOutOfResources);
    }
    if (stream->captured != nullptr) {
        stream->captured->push_back({is_kernel, std::move(run)});
        return error_keep(cudaSuccess);
    }
    e.launches += is_kernel ? 1 : 0;
    what.is_kernel = is_kernel;
    what.may_block = may_block;
    what.run       = std::move(run);
    done           = stream_give(e, stream, std::move(what));
    if (waits) {
        mark_wait(e, held, done);
    }
    return error_keep(e.devices[stream->device].fault);
}

extern "C" cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void *ctx)
{
    return stream_run(
        stream, false, true, [=] { fn(ctx); }, false, true);
}

extern "C" cudaError_t emulator_call(cudaStream_t stream, void (*fn)(void *ctx), void *ctx)
{
    return stream_run(
        stream, false, true, [=] { fn(ctx); }, false, true);
}

extern "C" cudaError_t emulator_call_kernel(cudaStream_t stream, void (*fn)(const void *args),
                                            const void *args, size_t len)
{
    std::shared_ptr<unsigned char[]> kept(new unsigned char[len]);

    memcpy(kept.get(), args, len);
    return stream_run(
        stream, false, true, [=] { fn(kept.get()); }, false);
}

/* ----------------------------------------------------------- capture -- */

extern "C" cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode *mode)
{
    std::swap(*mode, capture_mode);
    return cudaSuccess;
}

cudaError_t emulator_capture_begin(cudaStream_t handle, bool is_for_all)
{
    emulator                   &e = the();
    std::lock_guard<std::mutex> held(e.lock);
    cudaStream_t                stream = stream_of(e, handle);

    if (stream == nullptr || stream == e.devices[stream->device].main_stream) {
        return error_keep(stream == nullptr ? cudaErrorInvalidResourceHandle
                                            : cudaErrorStreamCaptureUnsupported);
    }
    if (capturing != nullptr || stream->captured != nullptr) {
        return error_keep(cudaErrorIllegalState);
    }
    stream->captured   = new capture();
    stream->is_spoiled = false;
    capturing          = stream;
    capturing_for_all  = is_for_all ? stream : capturing_for_all;
    return cudaSuccess;
}

cudaError_t emulator_capture_end(cudaStream_t handle, capture *out)
{
    emulator                   &e = the();
    std::lock_guard<std::mutex> held(e.lock);
    cudaStream_t                stream = stream_of(e, handle);

    if (stream == nullptr || stream != capturing) {
        return error_keep(cudaErrorIllegalState);
    }
    *out = std::move(*stream->captured);
    delete stream->captured;
    stream->captured  = nullptr;
    capturing         = nullptr;
    capturing_for_all = capturing_for_all == stream ? nullptr : capturing_for_all;
    return error_keep(stream->is_spoiled ? cudaErrorStreamCaptureInvalidated : cudaSuccess);
}

cudaError_t emulator_capture_state(cudaStream_t handle, cudaStreamCaptureStatus *out)
{
    emulator                   &e = the();
    std::lock_guard<std::mutex> held(e.lock);
    cudaStream_t                stream = stream_of(e, handle);

    if (stream == nullptr) {
        return error_keep(cudaErrorInvalidResourceHandle);
    }
    *out = stream->captured == nullptr ? cudaStreamCaptureStatusNone
           : stream->is_spoiled        ? cudaStreamCaptureStatusInvalidated
                                       : cudaStreamCaptureStatusActive;
    return cudaSuccess;
}

cudaError_t emulator_capture_run(cudaStream_t handle, const capture &work)
{
    emulator                   &e = the();
    std::lock_guard<std::mutex> held(e.lock);
    cudaError_t                 error  = device_check();
    cudaStream_t                stream = stream_of(e, handle);

    if (error != cudaSuccess || stream == nullptr || stream->captured != nullptr) {
        return error_keep(error != cudaSuccess ? error : cudaErrorInvalidResourceHandle);
    }
    if (countdown(&e.fail_launch)) {
        return error_keep(cudaErrorLaunchOutOfResources);
    }
    e.graphs++;
    for (const captured &one : work) {
        operation what;

        what.is_kernel = one.is_kernel;
        what.run       = one.run;
        (void)stream_give(e, stream, std::move(what));
    }
    return error_keep(e.devices[stream->device].fault);
}

extern "C" unsigned long emulator_graph_launches(void)
{
    emulator                   &e = the();
    std::lock_guard<std::mutex> held(e.lock);

    return e.graphs;
}

/* A wait for the whole device spoils every capture on it, whoever captures. */
extern "C" cudaError_t cudaDeviceSynchronize(void)
{
    emulator                    &e = the();
    std::unique_lock<std::mutex> held(e.lock);
    cudaError_t                  error = device_check();

    error = error == cudaSuccess ? capture_check() : error;
    for (cudaStream_t stream : e.devices[current_device].streams) {
        if (error == cudaSuccess && stream->captured != nullptr) {
            error = captured_refuse(stream, cudaErrorStreamCaptureUnsupported);
        }
    }
    if (error == cudaSuccess) {
        device_drain(e, held, current_device);
        error = e.devices[current_device].fault;
    }
    return error_keep(error);
}

/* ----------------------------------------------------------- kernels -- */

cudaError_t emulator_enqueue(emulator_work *work, const void *kernel, dim3 grid, dim3 block,
                             size_t shared_bytes, cudaStream_t handle)
{
    std::shared_ptr<emulator_work> kept(work);
    size_t                         threads = (size_t)block.x * block.y * block.z;
    unsigned                       order   = 0;

    if (threads == 0 || threads > 1024 || block.z > 64 || grid.x == 0 || grid.y == 0 ||
        grid.z == 0 || grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535) {
        return error_keep(cudaErrorInvalidConfiguration);
    }
    {
        emulator                   &e = the();
        std::lock_guard<std::mutex> held(e.lock);
        auto                        allowed = e.allowed.find({current_device, kernel});

        if (shared_bytes > (allowed == e.allowed.end() ? BLOCK_BYTES : allowed->second)) {
            return error_keep(cudaErrorInvalidValue);
        }
        e.most_shared = std::max(e.most_shared, shared_bytes);
        if (e.num_devices > 0 && device_check() == cudaSuccess) {
            cudaStream_t stream = stream_of(e, handle);

            order = stream == nullptr ? 0 : stream->order;
        }
    }
    return stream_run(
        handle, true, false,
        [=] { emulator_grid_run(kept.get(), grid, block, shared_bytes, order); }, false);
}

extern "C" cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, const void *kernel)
{
    (void)kernel;
    memset(attributes, 0, sizeof(*attributes));
    attributes->maxThreadsPerBlock = 1024;
    attributes->numRegs            = 64;
    return cudaSuccess;
}

extern "C" cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute attr, int value)
{
    emulator                   &e = the();
    std::lock_guard<std::mutex> held(e.lock);

    if (attr == cudaFuncAttributeMaxDynamicSharedMemorySize) {
        if (value < 0 || (size_t)value > e.block_bytes) {
            return error_keep(cudaErrorInvalidValue);
        }
        e.allowed[{current_device, kernel}] = (size_t)value;
    }
    return cudaSuccess;
}

extern "C" cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int        *blocks,
                                                                     const void *kernel,
                                                                     int         block_threads,
                                                                     size_t      shared_bytes)
{
    (void)kernel;
    (void)shared_bytes;
    *blocks = 1024 / (block_threads < 1 ? 1 : block_threads);
    return cudaSuccess;
}

/* ----------------------------------------------------------- events -- */

extern "C" cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    emulator                   &e = the();
    std::lock_guard<std::mutex> held(e.lock);
    cudaError_t                 error = device_check();

    if (error == cudaSuccess) {
        *event             = new CUevent_st();
        (*event)->device   = current_device;
        (*event)->has_time = (flags & cudaEventDisableTiming) == 0;
    }
    return error_keep(error);
}

extern "C" cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    return cudaEventCreateWithFlags(event, cudaEventDefault);
}

extern "C" cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    if (event == nullptr) {
        return error_keep(cudaErrorInvalidResourceHandle);
    }
    delete event;
    return cudaSuccess;
}

extern "C" cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle)
{
    emulator                   &e = the();
    std::lock_guard<std::mutex> held(e.lock);
    cudaStream_t                stream = stream_of(e, handle);

    if (event == nullptr || stream == nullptr || event->device != stream->device) {
        return error_keep(cudaErrorInvalidResourceHandle);
    }
    if (stream->captured != nullptr) {
        return captured_refuse(stream, cudaErrorStreamCaptureUnsupported);
    }
    event->recorded = stream_give(e, stream, operation());
    return error_keep(e.devices[event->device].fault);
}

extern "C" cudaError_t cudaEventQuery(cudaEvent_t event)
{
    emulator                   &e = the();
    std::lock_guard<std::mutex> held(e.lock);

    if (event == nullptr) {
        return error_keep(cudaErrorInvalidResourceHandle);
    }
    if (capture_check() != cudaSuccess) {
        return error_keep(cudaErrorStreamCaptureUnsupported);
    }
    if (e.devices[event->device].fault != cudaSuccess) {
        return error_keep(e.devices[event->device].fault);
    }
    if (event->recorded && !event->recorded->is_done) {
        return error_keep(cudaErrorNotReady);
    }
    guard_close_when_idle(e);
    return cudaSuccess;
}

extern "C" cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    emulator                    &e = the();
    std::unique_lock<std::mutex> held(e.lock);
    mark_ref                     recorded;
    int                          device;

    if (event == nullptr) {
        return error_keep(cudaErrorInvalidResourceHandle);
    }
    if (capture_check() != cudaSuccess) {
        return error_keep(cudaErrorStreamCaptureUnsupported);
    }
    recorded = event->recorded; /* another thread may record or destroy it meanwhile */
    device   = event->device;
    mark_wait(e, held, recorded);
    return error_keep(e.devices[device].fault);
}

extern "C" cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end)
{
    emulator                   &e = the();
    std::lock_guard<std::mutex> held(e.lock);

    if (start == nullptr || end == nullptr || !start->has_time || !end->has_time ||
        !start->recorded || !end->recorded) {
        return error_keep(cudaErrorInvalidResourceHandle);
    }
    if (!start->recorded->is_done || !end->recorded->is_done) {
        return error_keep(cudaErrorNotReady);
    }
    *ms = (float)((double)(end->recorded->ns - start->recorded->ns) * 1e-6);
    return cudaSuccess;
}
