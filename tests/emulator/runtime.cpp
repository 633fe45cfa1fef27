/* The runtime API of the emulated devices: what there are, their errors, what tests ask for. See
 * runtime.h. */
#include "runtime.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* ----------------------------------------------------------- state -- */

__thread int                current_device;
static __thread cudaError_t last_error;

long environment_number(const char *name, long otherwise)
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

static emulator *made;

/* As with CUDA, what the parent has initialised its child cannot use: no stream's thread is there,
 * and the lock may be held by one for good. */
static void fork_child(void)
{
    made            = new emulator();
    made->is_forked = true;
    for (device_state &device : made->devices) {
        device.fault = cudaErrorInitializationError;
    }
}

/* At exit. */
static void counts_write(void)
{
    const char *path = getenv("SHERD_EMULATOR_COUNTS");
    FILE       *file = path == nullptr || path[0] == '\0' ? nullptr : fopen(path, "w");

    if (file != nullptr) {
        (void)fprintf(
            file, "{\"launches\": %lu, \"down_bytes\": %llu, \"up_bytes\": %llu, \"waits\": %lu}\n",
            emulator_launches(), emulator_copied(EMULATOR_DOWN), emulator_copied(EMULATOR_UP),
            emulator_waits());
        (void)fclose(file);
    }
}

emulator &the(void)
{
    static bool is_made = (made = new emulator(), atexit(counts_write),
                           pthread_atfork(nullptr, nullptr, fork_child) == 0);

    (void)is_made;
    return *made;
}

cudaError_t error_keep(cudaError_t error)
{
    if (error != cudaSuccess) {
        last_error = error;
    }
    return error;
}

bool countdown(long *count)
{
    return *count > 0 && --*count == 0;
}

cudaError_t device_check(void)
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
    {cudaErrorIllegalState, "cudaErrorIllegalState",
     "the operation cannot be performed in the present state"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {cudaErrorStreamCaptureIsolation, "cudaErrorStreamCaptureIsolation",
     "dependency created on uncaptured work in another stream"},
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

void segv_catch(void)
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

void guard_set(emulator &e, bool is_open)
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

void guard_close_when_idle(emulator &e)
{
    if (e.running == 0) {
        guard_set(e, false);
    }
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
    case cudaDevAttrPageableMemoryAccess: /* plain memory of the host is not the device's */
        *value = 0;
        return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = (int)the().block_bytes;
        return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
        *value = (int)(the().block_bytes + RESERVED_BYTES);
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

extern "C" size_t emulator_most_shared(void)
{
    std::lock_guard<std::mutex> held(the().lock);
    size_t                      most = the().most_shared;

    the().most_shared = 0;
    return most;
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
