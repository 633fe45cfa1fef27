/* The runtime API of the emulated devices: memory, streams, events, errors. One lock guards all of it; an operation
 * runs outside of it, on its stream's thread. */
#include "capture.h"

#include "fibers.h"

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <pthread.h>
#include <set>
#include <signal.h>
#include <sys/mman.h>
#include <thread>
#include <time.h>
#include <unistd.h>
#include <vector>

#define PAGE_BYTES  ((size_t)4096)
#define ALIGN_BYTES ((size_t)256) /* what cudaMalloc promises */
#define MAX_DEVICES 64
#define GARBAGE     0xd5
/* Shared memory of a block: as it is, and at most when a kernel is allowed to. */
#define BLOCK_BYTES      ((size_t)48 << 10)
#define MOST_BLOCK_BYTES ((size_t)227 << 10)
/* Rooms of the library, of which a test uses a small part: they cost only what is used. */
#define LARGE_BYTES ((size_t)4 << 20)

/* ----------------------------------------------------------- state -- */

/* A place in a stream's work. */
struct mark {
    bool    is_done = false;
    int64_t ns      = 0;
};
typedef std::shared_ptr<mark> mark_ref;

struct operation {
    std::vector<mark_ref> after; /* of other streams */
    std::function<void()> run;   /* may be empty */
    mark_ref              done;
    bool                  is_kernel = false;
    bool                  may_block = false; /* calls a function of somebody's */
};

struct CUstream_st {
    int                     device;
    bool                    is_blocking; /* orders itself with the default stream */
    bool                    is_closing = false;
    uint64_t                random;
    bool                    is_slow;
    unsigned                order;
    int                     priority = 0;
    unsigned                busy     = 0; /* operations queued or under way */
    std::deque<operation>   queue;
    mark_ref                last; /* of the last operation given; may be empty */
    capture                *captured   = nullptr; /* while in capture */
    bool                    is_spoiled = false;
    std::condition_variable has_work;
};

struct CUevent_st {
    int      device;
    bool     has_time;
    mark_ref recorded; /* empty: never */
};

struct allocation {
    unsigned char *memory;
    size_t         len;
    unsigned char *map;
    size_t         map_bytes;
    bool           is_device;
    bool           is_registered; /* the caller's memory, pinned */
    int            device;
};

struct device_state {
    cudaError_t            fault       = cudaSuccess;
    size_t                 held_bytes  = 0;
    cudaStream_t           main_stream = nullptr;
    std::set<cudaStream_t> streams; /* all alive, main_stream too */
};

struct emulator {
    std::mutex                      lock;
    std::condition_variable         progress; /* a mark is done, a stream is idle */
    device_state                    devices[MAX_DEVICES];
    int                             num_devices;
    bool                            has_guard;
    bool                            is_open; /* device memory can be touched */
    size_t                          memory_bytes;
    uint64_t                        seed;
    bool                            is_seeded;
    bool                            is_eager;
    bool                            is_forked     = false; /* of a process that had used it */
    uint64_t                        streams_made  = 0;
    int                             streams_alive = 0;
    int                             running       = 0; /* operations queued or under way */
    std::map<uintptr_t, allocation> allocations;
    size_t                          block_bytes = MOST_BLOCK_BYTES; /* of shared memory */
    std::map<std::pair<int, const void *>, size_t> allowed; /* ... that a device's kernel may have, where it was set */
    long                            fail_alloc, fail_launch, fail_kernel;
    unsigned long                   launches = 0;
    unsigned long                   graphs   = 0; /* launched */
    unsigned long                   waits    = 0; /* of the host */
    unsigned long long              copied[EMULATOR_WAYS] = {};
    std::set<std::pair<int, int>>   reaches;      /* a device and another whose memory it accesses */
    unsigned long                   staged = 0;   /* copies between devices of which neither does */

    emulator();
};

static long environment_number(const char *name, long otherwise)
{
    const char *text = getenv(name);

    return text == nullptr || text[0] == '\0' ? otherwise : strtol(text, nullptr, 0);
}

emulator::emulator()
{
    num_devices  = (int)environment_number("SHERD_EMULATOR_DEVICES", 8);
    num_devices  = num_devices > MAX_DEVICES ? MAX_DEVICES : num_devices;
    has_guard    = environment_number("SHERD_EMULATOR_GUARD", 1) != 0;
    is_open      = !has_guard;
    memory_bytes = (size_t)environment_number("SHERD_EMULATOR_MEMORY", 16L << 30);
    is_seeded    = environment_number("SHERD_EMULATOR_SEED", -1) >= 0;
    seed         = (uint64_t)environment_number("SHERD_EMULATOR_SEED", 0);
    is_eager     = environment_number("SHERD_EMULATOR_EAGER", 0) != 0;
    fail_alloc   = environment_number("SHERD_EMULATOR_FAIL_ALLOC", 0);
    fail_launch  = environment_number("SHERD_EMULATOR_FAIL_LAUNCH", 0);
    fail_kernel  = environment_number("SHERD_EMULATOR_FAIL_KERNEL", 0);
}

/* Never destroyed: streams may outlive main. */
static emulator *made;

/* As with CUDA, what the parent has initialised its child cannot use: no stream's thread is there, and the lock may
 * be held by one for good. */
static void fork_child(void)
{
    made            = new emulator();
    made->is_forked = true;
    for (device_state &device : made->devices) {
        device.fault = cudaErrorInitializationError;
    }
}

static emulator &the(void)
{
    static bool is_made = (made = new emulator(), pthread_atfork(nullptr, nullptr, fork_child) == 0);

    (void)is_made;
    return *made;
}

static thread_local int                          current_device;
static thread_local cudaError_t                  last_error;
static thread_local cudaStream_t                 capturing; /* the stream that this thread captures */
static cudaStream_t                              capturing_for_all; /* in global mode, by any thread; with the lock held */
static thread_local cudaStreamCaptureMode        capture_mode = cudaStreamCaptureModeGlobal; /* what this thread is held to */
static thread_local std::map<int, cudaStream_t>  own_streams; /* cudaStreamPerThread */

static cudaError_t error_keep(cudaError_t error)
{
    if (error != cudaSuccess) {
        last_error = error;
    }
    return error;
}

static bool countdown(long *count)
{
    return *count > 0 && --*count == 0;
}

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

/* For a call that no thread in capture may make, as it waits, asks or allocates: the capture is spoiled. One in global mode is
 * spoiled by other threads too, but for those that have said that they do not mind. */
static cudaError_t capture_check(void)
{
    cudaStream_t spoiled = capturing != nullptr                            ? capturing
                           : capture_mode == cudaStreamCaptureModeGlobal ? capturing_for_all
                                                                         : nullptr;

    if (spoiled == nullptr) {
        return cudaSuccess;
    }
    spoiled->is_spoiled = true;
    return cudaErrorStreamCaptureUnsupported;
}

/* The state of the current device, for a call that needs it. */
static cudaError_t device_check(void)
{
    emulator &e = the();

    if (e.num_devices == 0 && !e.is_forked) {
        return cudaErrorInsufficientDriver;
    }
    return e.devices[current_device].fault;
}

/* ----------------------------------------------------------- errors -- */

static const struct {
    cudaError_t error;
    const char *name;
    const char *text;
} ERRORS[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInitializationError, "cudaErrorInitializationError", "initialization error"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration",
     "invalid configuration argument"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorInvalidDeviceFunction, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorNoKernelImageForDevice, "cudaErrorNoKernelImageForDevice",
     "no kernel image is available for execution on the device"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress",
     "an illegal memory access was encountered"},
    {cudaErrorLaunchOutOfResources, "cudaErrorLaunchOutOfResources",
     "too many resources requested for launch"},
    {cudaErrorPeerAccessAlreadyEnabled, "cudaErrorPeerAccessAlreadyEnabled",
     "peer access is already enabled"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorIllegalState, "cudaErrorIllegalState", "the operation cannot be performed in the present state"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
};

extern "C" const char *cudaGetErrorName(cudaError_t error)
{
    for (const auto &known : ERRORS) {
        if (known.error == error) {
            return known.name;
        }
    }
    return "cudaErrorUnknown";
}

extern "C" const char *cudaGetErrorString(cudaError_t error)
{
    for (const auto &known : ERRORS) {
        if (known.error == error) {
            return known.text;
        }
    }
    return "unknown error";
}

extern "C" cudaError_t cudaGetLastError(void)
{
    cudaError_t error = last_error;

    last_error = cudaSuccess;
    return error;
}

extern "C" cudaError_t cudaPeekAtLastError(void)
{
    return last_error;
}

/* ----------------------------------------------------------- guard -- */

static struct sigaction old_segv;

static void segv_say(int number, siginfo_t *info, void *context)
{
    static const char text[] =
        "emulator: SIGSEGV; if that was device memory, the host touched it (or a kernel went out "
        "of "
        "bounds, or used freed memory); SHERD_EMULATOR_GUARD=0 lets the host\n";

    (void)number;
    (void)info;
    (void)context;
    if (write(2, text, sizeof(text) - 1) < 0) {
        _exit(139);
    }
    (void)sigaction(SIGSEGV, &old_segv, nullptr); /* the access comes again */
}

static void segv_catch(void)
{
    struct sigaction action;
    struct sigaction now;

    (void)sigaction(SIGSEGV, nullptr, &now);
    if (now.sa_handler != SIG_DFL) {
        return; /* a sanitizer says it better */
    }
    memset(&action, 0, sizeof(action));
    action.sa_sigaction = segv_say;
    action.sa_flags     = SA_SIGINFO;
    (void)sigaction(SIGSEGV, &action, &old_segv);
}

/* With the lock held. */
static void guard_set(emulator &e, bool is_open)
{
    if (!e.has_guard || e.is_open == is_open) {
        return;
    }
    for (auto &entry : e.allocations) {
        allocation &a = entry.second;

        if (a.is_device) {
            (void)mprotect(a.map + PAGE_BYTES, a.map_bytes - 2 * PAGE_BYTES,
                           is_open ? PROT_READ | PROT_WRITE : PROT_NONE);
        }
    }
    e.is_open = is_open;
}

/* After the host has waited: with the lock held. */
static void guard_close_when_idle(emulator &e)
{
    if (e.running == 0) {
        guard_set(e, false);
    }
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
            e.progress.wait(held, [&] { return other->is_done; });
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
        e.progress.notify_all();
    }
    e.devices[stream->device].streams.erase(stream);
    e.streams_alive--;
    e.progress.notify_all();
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

/* What a handle means on this thread; nullptr: none such. With the lock held. */
static cudaStream_t stream_of(emulator &e, cudaStream_t handle)
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

/* Runs on the calling thread what could begin at once, and is no kernel that shall fail. With the lock held. */
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
    e.progress.notify_all();
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

static void mark_wait(emulator &e, std::unique_lock<std::mutex> &held, const mark_ref &done)
{
    e.waits++;
    if (done && !e.is_forked) {
        e.progress.wait(held, [&] { return done->is_done; });
    }
    guard_close_when_idle(e);
}

static void device_drain(emulator &e, std::unique_lock<std::mutex> &held, int device)
{
    std::vector<mark_ref> lasts;

    for (cudaStream_t stream : e.devices[device].streams) {
        lasts.push_back(stream->last);
    }
    for (const mark_ref &last : lasts) {
        mark_wait(e, held, last);
    }
}

static cudaError_t stream_create(cudaStream_t *stream, unsigned flags)
{
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
    if (capture_check() != cudaSuccess) {
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
    if (capture_check() != cudaSuccess) {
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
    if (stream->captured != nullptr) {
        return error_keep(capture_check());
    }
    if (event->recorded && !event->recorded->is_done) {
        operation wait;

        wait.after.push_back(event->recorded);
        (void)stream_give(e, stream, std::move(wait));
    }
    return error_keep(e.devices[stream->device].fault);
}

/* An operation on a stream of the current device. `done_out` may be nullptr. */
static cudaError_t stream_run(cudaStream_t handle, bool is_kernel, bool any_device,
                              std::function<void()> &&run, bool waits, bool may_block = false)
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

extern "C" cudaError_t emulator_call_kernel(cudaStream_t stream, void (*fn)(const void *args), const void *args, size_t len)
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
        return error_keep(stream == nullptr ? cudaErrorInvalidResourceHandle : cudaErrorStreamCaptureUnsupported);
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

extern "C" cudaError_t cudaDeviceSynchronize(void)
{
    emulator                    &e = the();
    std::unique_lock<std::mutex> held(e.lock);
    cudaError_t                  error = device_check();

    error = error == cudaSuccess ? capture_check() : error;
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
        return error_keep(capture_check());
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

/* ----------------------------------------------------------- memory -- */

static cudaError_t memory_make(void **out, size_t len, bool is_device)
{
    emulator                   &e = the();
    std::lock_guard<std::mutex> held(e.lock);
    cudaError_t                 error = device_check();
    size_t                      room  = (len + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
    allocation                  a     = {};

    error = error == cudaSuccess ? capture_check() : error;
    if (error != cudaSuccess) {
        return error_keep(error);
    }
    if (len == 0) {
        *out = nullptr;
        return cudaSuccess;
    }
    if (countdown(&e.fail_alloc) || len > e.memory_bytes ||
        (is_device && e.devices[current_device].held_bytes + len > e.memory_bytes)) {
        return error_keep(cudaErrorMemoryAllocation);
    }
    if (!is_device) {
        room = (len + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    }
    a.len       = len;
    a.is_device = is_device;
    a.device    = current_device;
    a.map_bytes = (room + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES + 2 * PAGE_BYTES;
    a.map       = (unsigned char *)mmap(nullptr, a.map_bytes, PROT_READ | PROT_WRITE,
                                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (a.map == MAP_FAILED) {
        return error_keep(cudaErrorMemoryAllocation);
    }
    /* Large ones on large pages where the kernel has them: the guard closes and opens all of it at every wait. */
    (void)madvise(a.map, a.map_bytes, MADV_HUGEPAGE);
    (void)mprotect(a.map, PAGE_BYTES, PROT_NONE);
    (void)mprotect(a.map + a.map_bytes - PAGE_BYTES, PAGE_BYTES, PROT_NONE);
    a.memory = a.map + a.map_bytes - PAGE_BYTES - room; /* ends at the page that faults */
    if (len < LARGE_BYTES) {
        memset(a.map + PAGE_BYTES, GARBAGE, a.map_bytes - 2 * PAGE_BYTES);
    }
    if (is_device) {
        e.devices[current_device].held_bytes += len;
        if (!e.is_open) {
            (void)mprotect(a.map + PAGE_BYTES, a.map_bytes - 2 * PAGE_BYTES, PROT_NONE);
        }
    }
    e.allocations[(uintptr_t)a.memory] = a;
    *out                               = a.memory;
    return cudaSuccess;
}

static cudaError_t memory_end(void *memory, bool is_device)
{
    emulator                    &e = the();
    std::unique_lock<std::mutex> held(e.lock);
    auto                         found = e.allocations.find((uintptr_t)memory);

    if (memory == nullptr) {
        return cudaSuccess;
    }
    if (capture_check() != cudaSuccess) {
        return error_keep(cudaErrorStreamCaptureUnsupported);
    }
    if (found == e.allocations.end() || found->second.is_device != is_device ||
        found->second.is_registered) {
        return error_keep(cudaErrorInvalidValue);
    }
    allocation a = found->second;

    device_drain(e, held, a.device); /* as CUDA does */
    e.allocations.erase((uintptr_t)memory);
    if (is_device) {
        e.devices[a.device].held_bytes -= a.len;
    }
    (void)munmap(a.map, a.map_bytes);
    return error_keep(e.devices[a.device].fault);
}

extern "C" cudaError_t cudaMalloc(void **memory, size_t len)
{
    return memory_make(memory, len, true);
}

extern "C" cudaError_t cudaFree(void *memory)
{
    return memory_end(memory, true);
}

extern "C" cudaError_t cudaHostAlloc(void **memory, size_t len, unsigned flags)
{
    (void)flags;
    return memory_make(memory, len, false);
}

extern "C" cudaError_t cudaMallocHost(void **memory, size_t len)
{
    return memory_make(memory, len, false);
}

extern "C" cudaError_t cudaFreeHost(void *memory)
{
    return memory_end(memory, false);
}

extern "C" cudaError_t cudaHostRegister(void *memory, size_t len, unsigned flags)
{
    emulator                   &e = the();
    std::lock_guard<std::mutex> held(e.lock);
    allocation                  a = {};

    (void)flags;
    if (e.allocations.count((uintptr_t)memory) != 0) {
        return error_keep(cudaErrorInvalidValue);
    }
    a.memory                         = (unsigned char *)memory;
    a.len                            = len;
    a.is_registered                  = true;
    a.device                         = current_device;
    e.allocations[(uintptr_t)memory] = a;
    return cudaSuccess;
}

extern "C" cudaError_t cudaHostUnregister(void *memory)
{
    emulator                   &e = the();
    std::lock_guard<std::mutex> held(e.lock);
    auto                        found = e.allocations.find((uintptr_t)memory);

    if (found == e.allocations.end() || !found->second.is_registered) {
        return error_keep(cudaErrorInvalidValue);
    }
    e.allocations.erase(found);
    return cudaSuccess;
}

/* The allocation that holds an address; nullptr: plain host memory. With the lock held. */
static const allocation *memory_find(emulator &e, const void *address)
{
    auto after = e.allocations.upper_bound((uintptr_t)address);

    if (after == e.allocations.begin()) {
        return nullptr;
    }
    const allocation &a = (--after)->second;

    return (uintptr_t)address < (uintptr_t)a.memory + a.len ? &a : nullptr;
}

extern "C" cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *attributes,
                                                const void            *memory)
{
    emulator                   &e = the();
    std::lock_guard<std::mutex> held(e.lock);
    const allocation           *a = memory_find(e, memory);

    attributes->type          = a == nullptr   ? cudaMemoryTypeUnregistered
                                : a->is_device ? cudaMemoryTypeDevice
                                               : cudaMemoryTypeHost;
    attributes->device        = a == nullptr ? -1 : a->device;
    attributes->devicePointer = a == nullptr ? nullptr : const_cast<void *>(memory);
    attributes->hostPointer = a != nullptr && !a->is_device ? const_cast<void *>(memory) : nullptr;
    return cudaSuccess;
}

/* Bytes of a copy that is queued. */
static void copy_count(const void *dst, const void *src, size_t bytes)
{
    emulator                   &e = the();
    std::lock_guard<std::mutex> held(e.lock);
    const allocation           *to   = memory_find(e, dst);
    const allocation           *from = memory_find(e, src);
    bool                        is_to_device   = to != nullptr && to->is_device;
    bool                        is_from_device = from != nullptr && from->is_device;

    e.copied[is_to_device ? (is_from_device ? EMULATOR_ON_DEVICES : EMULATOR_UP)
                          : (is_from_device ? EMULATOR_DOWN : EMULATOR_ON_HOST)] += bytes;
}

/* Whether a copy may go on after the call has returned: neither end is memory that the host may
 * page out. E_INVALID when an end is beyond its allocation. */
static cudaError_t copy_check(const void *dst, const void *src, size_t len, bool *is_async)
{
    emulator                   &e = the();
    std::lock_guard<std::mutex> held(e.lock);
    const void                 *ends[2] = {dst, src};
    const allocation           *found[2];

    *is_async = true;
    for (int i = 0; i < 2; i++) {
        const allocation *a = found[i] = memory_find(e, ends[i]);

        if (a == nullptr) {
            *is_async = false;
        } else if ((uintptr_t)ends[i] + len > (uintptr_t)a->memory + a->len) {
            return cudaErrorInvalidValue;
        }
    }
    if (*is_async && found[0]->is_device && found[1]->is_device) {
        int to = found[0]->device, from = found[1]->device;

        e.staged += to != from && e.reaches.count({to, from}) + e.reaches.count({from, to}) == 0;
    }
    return cudaSuccess;
}

extern "C" cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t len, cudaMemcpyKind kind,
                                       cudaStream_t stream)
{
    bool        is_async;
    cudaError_t error;

    (void)kind;
    if (len == 0) {
        return cudaSuccess;
    }
    error = copy_check(dst, src, len, &is_async);
    if (error != cudaSuccess) {
        return error_keep(error);
    }
    copy_count(dst, src, len);
    return stream_run(
        stream, false, true, [=] { memmove(dst, src, len); }, !is_async);
}

extern "C" cudaError_t cudaMemcpyPeerAsync(void *dst, int dst_device, const void *src,
                                           int src_device, size_t len, cudaStream_t stream)
{
    (void)dst_device;
    (void)src_device;
    return cudaMemcpyAsync(dst, src, len, cudaMemcpyDefault, stream);
}

extern "C" cudaError_t cudaMemcpy2DAsync(void *dst, size_t dst_pitch, const void *src,
                                         size_t src_pitch, size_t width, size_t height,
                                         cudaMemcpyKind kind, cudaStream_t stream)
{
    bool        is_async;
    cudaError_t error;

    (void)kind;
    if (width == 0 || height == 0) {
        return cudaSuccess;
    }
    error = copy_check(dst, src, 1, &is_async);
    if (error != cudaSuccess) {
        return error_keep(error);
    }
    copy_count(dst, src, width * height);
    return stream_run(
        stream, false, true,
        [=] {
            for (size_t row = 0; row < height; row++) {
                memmove((unsigned char *)dst + row * dst_pitch,
                        (const unsigned char *)src + row * src_pitch, width);
            }
        },
        !is_async);
}

extern "C" cudaError_t cudaMemcpy(void *dst, const void *src, size_t len, cudaMemcpyKind kind)
{
    bool        is_async;
    cudaError_t error;

    (void)kind;
    if (len == 0) {
        return cudaSuccess;
    }
    error = copy_check(dst, src, len, &is_async);
    if (error != cudaSuccess) {
        return error_keep(error);
    }
    copy_count(dst, src, len);
    return stream_run(
        nullptr, false, true, [=] { memmove(dst, src, len); }, true);
}

/* Made here: not the program's, which may be shared. */
static bool memory_is_own(const void *memory)
{
    emulator                   &e = the();
    std::lock_guard<std::mutex> held(e.lock);
    const allocation           *a = memory_find(e, memory);

    return a != nullptr && !a->is_registered;
}

/* Pages that are given back are zero when they are next used. */
static void memory_set(unsigned char *memory, int byte, size_t len, bool is_own)
{
    size_t lead  = (PAGE_BYTES - (uintptr_t)memory % PAGE_BYTES) % PAGE_BYTES;
    size_t pages = is_own && byte == 0 && len >= LARGE_BYTES ? (len - lead) / PAGE_BYTES * PAGE_BYTES : 0;

    if (pages == 0 || madvise(memory + lead, pages, MADV_DONTNEED) != 0) {
        memset(memory, byte, len);
        return;
    }
    memset(memory, byte, lead);
    memset(memory + lead + pages, byte, len - lead - pages);
}

extern "C" cudaError_t cudaMemsetAsync(void *memory, int byte, size_t len, cudaStream_t stream)
{
    bool        is_async;
    bool        is_own;
    cudaError_t error;

    if (len == 0) {
        return cudaSuccess;
    }
    error  = copy_check(memory, memory, len, &is_async);
    is_own = memory_is_own(memory);
    if (error == cudaSuccess && !is_async) {
        error = cudaErrorInvalidValue;
    }
    if (error != cudaSuccess) {
        return error_keep(error);
    }
    return stream_run(
        stream, false, true, [=] { memory_set((unsigned char *)memory, byte, len, is_own); }, false);
}

extern "C" cudaError_t cudaMemset(void *memory, int byte, size_t len)
{
    return cudaMemsetAsync(memory, byte, len, nullptr);
}

extern "C" cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    emulator                   &e = the();
    std::lock_guard<std::mutex> held(e.lock);
    cudaError_t                 error = device_check();

    *total_bytes = e.memory_bytes;
    *free_bytes  = e.memory_bytes - e.devices[current_device].held_bytes;
    return error_keep(error);
}

/* ----------------------------------------------------------- devices -- */

extern "C" cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

extern "C" cudaError_t cudaDriverGetVersion(int *version)
{
    *version = the().num_devices == 0 ? 0 : CUDART_VERSION;
    return cudaSuccess;
}

extern "C" cudaError_t cudaGetDeviceCount(int *count)
{
    *count = the().is_forked ? 0 : the().num_devices;
    return error_keep(the().is_forked ? cudaErrorInitializationError
                      : *count == 0   ? cudaErrorInsufficientDriver
                                      : cudaSuccess);
}

static cudaError_t index_check(int device)
{
    if (the().is_forked) {
        return cudaErrorInitializationError;
    }
    if (the().num_devices == 0) {
        return cudaErrorInsufficientDriver;
    }
    return device < 0 || device >= the().num_devices ? cudaErrorInvalidDevice : cudaSuccess;
}

extern "C" cudaError_t cudaSetDevice(int device)
{
    cudaError_t error = index_check(device);

    if (error == cudaSuccess) {
        current_device = device;
    }
    return error_keep(error);
}

extern "C" cudaError_t cudaGetDevice(int *device)
{
    *device = current_device;
    return error_keep(index_check(current_device));
}

extern "C" cudaError_t cudaGetDeviceProperties(cudaDeviceProp *prop, int device)
{
    cudaError_t error = index_check(device);

    if (error == cudaSuccess) {
        memset(prop, 0, sizeof(*prop));
        (void)snprintf(prop->name, sizeof(prop->name), "emulated device");
        (void)snprintf(prop->uuid.bytes, sizeof(prop->uuid.bytes), "emulated %d",
                       (int)environment_number("SHERD_EMULATOR_FIRST", 0) + device);
        prop->totalGlobalMem              = the().memory_bytes;
        prop->sharedMemPerBlock           = BLOCK_BYTES;
        prop->sharedMemPerBlockOptin      = the().block_bytes;
        prop->warpSize                    = 32;
        prop->maxThreadsPerBlock          = 1024;
        prop->major                       = 9;
        prop->multiProcessorCount         = 3;
        prop->maxThreadsPerMultiProcessor = 2048;
        prop->l2CacheSize                 = 1 << 20;
    }
    return error_keep(error);
}

extern "C" cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attr, int device)
{
    cudaError_t error = index_check(device);

    if (error != cudaSuccess) {
        return error_keep(error);
    }
    switch (attr) {
    case cudaDevAttrMaxThreadsPerBlock:
        *value = 1024;
        return cudaSuccess;
    case cudaDevAttrMultiProcessorCount: /* few, so that blocks take several turns */
        *value = 3;
        return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
        *value = 9;
        return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
        *value = 0;
        return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
        *value = (int)the().block_bytes;
        return cudaSuccess;
    }
    return error_keep(cudaErrorInvalidValue);
}

extern "C" cudaError_t cudaDeviceGetPCIBusId(char *text, int len, int device)
{
    (void)snprintf(text, (size_t)len, "0000:%02x:00.0", device);
    return error_keep(index_check(device));
}

extern "C" cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least    = 0;
    *greatest = -5;
    return cudaSuccess;
}

extern "C" cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    *can = device != peer;
    return error_keep(index_check(device) != cudaSuccess ? index_check(device) : index_check(peer));
}

extern "C" cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
    emulator                   &e = the();
    std::lock_guard<std::mutex> held(e.lock);
    cudaError_t                 error = index_check(peer);

    (void)flags;
    if (error == cudaSuccess && peer == current_device) {
        error = cudaErrorInvalidDevice;
    }
    if (error == cudaSuccess && !e.reaches.insert({current_device, peer}).second) {
        error = cudaErrorPeerAccessAlreadyEnabled;
    }
    return error_keep(error);
}

/* ----------------------------------------------------------- for tests -- */

extern "C" void emulator_fail_alloc(long n)
{
    std::lock_guard<std::mutex> held(the().lock);

    the().fail_alloc = n;
}

extern "C" void emulator_fail_launch(long n)
{
    std::lock_guard<std::mutex> held(the().lock);

    the().fail_launch = n;
}

extern "C" void emulator_fail_kernel(long n)
{
    std::lock_guard<std::mutex> held(the().lock);

    the().fail_kernel = n;
}

extern "C" void emulator_heal(int device)
{
    std::lock_guard<std::mutex> held(the().lock);

    the().devices[device].fault = cudaSuccess;
    last_error                  = cudaSuccess;
}

extern "C" void emulator_limit_shared(size_t block_bytes)
{
    std::lock_guard<std::mutex> held(the().lock);

    the().block_bytes = block_bytes == 0 ? MOST_BLOCK_BYTES : block_bytes;
    the().allowed.clear();
}

extern "C" unsigned long emulator_launches(void)
{
    std::lock_guard<std::mutex> held(the().lock);

    return the().launches;
}

extern "C" unsigned long emulator_staged(void)
{
    std::lock_guard<std::mutex> held(the().lock);

    return the().staged;
}

extern "C" unsigned long long emulator_copied(emulator_way way)
{
    std::lock_guard<std::mutex> held(the().lock);

    return the().copied[way];
}

extern "C" unsigned long emulator_waits(void)
{
    std::lock_guard<std::mutex> held(the().lock);

    return the().waits;
}

extern "C" size_t emulator_held_bytes(void)
{
    std::lock_guard<std::mutex> held(the().lock);
    size_t                      sum = 0;

    for (int i = 0; i < the().num_devices; i++) {
        sum += the().devices[i].held_bytes;
    }
    return sum;
}

extern "C" int emulator_streams(void)
{
    std::lock_guard<std::mutex> held(the().lock);

    return the().streams_alive;
}
