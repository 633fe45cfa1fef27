/* CUDA devices: which exist, their memory, their clock. Read cuda_impl.h before, then lane.c. */
#include "kernels/cuda/cuda_impl.h"
#include "kernels/cuda/launch.h"
#include "kernels/devices.h"

#include "base/checked.h"
#include "base/clock.h"
#include "base/hash.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

/* CUDA gives the time between two events as a float of milliseconds, which is exact to a
 * microsecond while the base is younger than this. */
#define BASE_AGE_NS   ((int64_t)4000000000)
#define BASE_TRIES    4
#define BASE_EXACT_NS 200000

/* --------------------------------------------------------------- errors -- */

/* Returns an error and removes it from the thread. CUDA keeps a thread's last error for the next
 * caller that asks, and this error is known already. */
static cudaError_t error_take(cudaError_t error)
{
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
    }
    return error;
}

void sherdi_cuda_note(cuda_device *device, cudaError_t error)
{
    int none = cudaSuccess;

    if (error_take(error) != cudaSuccess) {
        (void)atomic_compare_exchange_strong(&device->error, &none, (int)error);
    }
}

void sherdi_cuda_enter(cuda_device *device)
{
    int current = -1;

    if (error_take(cudaGetDevice(&current)) != cudaSuccess || current != device->index) {
        sherdi_cuda_note(device, cudaSetDevice(device->index));
    }
}

sherd_status sherdi_cuda_result(cuda_device *device, cudaError_t error, const char *what,
                                const char *name)
{
    sherdi_cuda_note(device, error);
    error = (cudaError_t)atomic_load(&device->error);
    if (error == cudaSuccess) {
        return SHERD_OK;
    }
    return sherdi_fail(SHERD_E_DEVICE, "cuda device %d (%s), %s%s%s: %s: %s", device->index,
                       device->name, what, name == NULL ? "" : " ", name == NULL ? "" : name,
                       cudaGetErrorName(error), cudaGetErrorString(error));
}

/* --------------------------------------------------------------- memory -- */

/* Allocates. For some lengths CUDA does not even try and returns cudaErrorInvalidValue; this too
 * counts as missing memory. */
static cudaError_t memory_get(size_t len_bytes, void **start)
{
    cudaError_t error = error_take(cudaMalloc(start, len_bytes));

    return error == cudaErrorInvalidValue ? cudaErrorMemoryAllocation : error;
}

static cudaError_t memory_put(void *start)
{
    return error_take(cudaFree(start));
}

/* Allocates at a multiple of SHERD_ALIGN_BYTES. Large allocations are there at once; others may
 * need a second try with room to align. */
static cudaError_t memory_get_aligned(cuda_memory *memory)
{
    size_t      len_bytes = memory->len_bytes > 0 ? memory->len_bytes : 1;
    cudaError_t error;

    if (len_bytes > SIZE_MAX / 2) {
        return cudaErrorMemoryAllocation;
    }
    error = memory_get(len_bytes, &memory->start);
    if (error == cudaSuccess && (uintptr_t)memory->start % SHERD_ALIGN_BYTES != 0) {
        (void)memory_put(memory->start);
        error = memory_get(len_bytes + SHERD_ALIGN_BYTES, &memory->start);
    }
    if (error == cudaSuccess) {
        uintptr_t up = (uintptr_t)memory->start + SHERD_ALIGN_BYTES - 1;

        memory->memory = (unsigned char *)memory->start +
                         (up / SHERD_ALIGN_BYTES * SHERD_ALIGN_BYTES - (uintptr_t)memory->start);
    }
    return error;
}

/* Clears memory on the device's own stream, so that it does not wait for the work of lanes. */
static cudaError_t memory_clear(cuda_device *device, const cuda_memory *memory)
{
    cudaError_t error;

    if (memory->len_bytes == 0) {
        return cudaSuccess;
    }
    error = error_take(cudaMemsetAsync(memory->memory, 0, memory->len_bytes, device->stream));
    return error != cudaSuccess ? error : error_take(cudaStreamSynchronize(device->stream));
}

sherd_status sherdi_cuda_alloc(sherdi_backend *lane, sherdi_mem *mem, sherdi_mem_purpose purpose,
                               size_t len_bytes, void **out)
{
    cuda_device *device = ((cuda_lane *)lane)->device;
    cuda_memory *memory = sherdi_alloc(mem, SHERDI_MEM_CONTROL, sizeof(*memory));
    cudaError_t  error;

    if (memory == NULL) {
        return SHERD_E_NOMEM;
    }
    memory->len_bytes = len_bytes;
    memory->mem       = mem;
    memory->purpose   = purpose;
    sherdi_cuda_enter(device);
    error = memory_get_aligned(memory);
    if (error == cudaErrorMemoryAllocation) {
        size_t left  = 0;
        size_t total = 0;

        (void)error_take(cudaMemGetInfo(&left, &total));
        sherdi_free(memory);
        return sherdi_fail(SHERD_E_NOMEM,
                           "no device memory for %zu bytes of %s; device %d has %zu of %zu free",
                           len_bytes, sherdi_mem_purpose_name(purpose), device->index, left, total);
    }
    if (error == cudaSuccess) {
        error = memory_clear(device, memory);
        if (error != cudaSuccess) {
            (void)memory_put(memory->start);
        }
    }
    if (error != cudaSuccess) {
        sherdi_free(memory);
        return sherdi_cuda_result(device, error, "allocating", sherdi_mem_purpose_name(purpose));
    }
    sherdi_mem_note(mem, purpose, (int64_t)len_bytes);
    *out = memory->memory;
    (void)pthread_mutex_lock(&device->lock);
    memory->next   = device->memory;
    device->memory = memory;
    (void)pthread_mutex_unlock(&device->lock);
    return SHERD_OK;
}

void sherdi_cuda_free(sherdi_backend *lane, void *memory)
{
    cuda_device  *device = ((cuda_lane *)lane)->device;
    cuda_memory **at     = &device->memory;
    cuda_memory  *found;

    if (memory == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&device->lock);
    while (*at != NULL && (*at)->memory != memory) {
        at = &(*at)->next;
    }
    found = *at;
    if (found != NULL) {
        *at = found->next;
    }
    (void)pthread_mutex_unlock(&device->lock);
    if (found == NULL) {
        sherdi_cuda_note(device, cudaErrorInvalidValue);
        return;
    }
    sherdi_cuda_enter(device);
    sherdi_cuda_note(device, memory_put(found->start));
    sherdi_mem_note(found->mem, found->purpose, -(int64_t)found->len_bytes);
    sherdi_free(found);
}

sherd_status sherdi_cuda_pin(sherdi_backend *lane, void *memory, size_t len_bytes)
{
    cuda_device *device = ((cuda_lane *)lane)->device;
    cudaError_t  error;

    sherdi_cuda_enter(device);
    /* A child of fork would get a copy of every locked page at once; it has no use for them. */
    (void)madvise(memory, sherdi_round_up(len_bytes, SHERD_ALIGN_BYTES), MADV_DONTFORK);
    error = error_take(cudaHostRegister(memory, len_bytes, cudaHostRegisterPortable));
    if (error == cudaErrorMemoryAllocation) {
        return sherdi_fail(SHERD_E_NOMEM, "%zu bytes of host memory cannot be pinned for device %d",
                           len_bytes, device->index);
    }
    return sherdi_cuda_result(device, error, "pinning host memory", NULL);
}

void sherdi_cuda_unpin(sherdi_backend *lane, void *memory)
{
    cuda_device *device = ((cuda_lane *)lane)->device;

    sherdi_cuda_enter(device);
    sherdi_cuda_note(device, error_take(cudaHostUnregister(memory)));
}

/* ---------------------------------------------------------------- clock -- */

/* Records `base` and the host's clock at the same time. The stream is idle, so the event is passed
 * when the host has waited for it. If the thread was preempted in between, it tries again, and
 * after some tries it uses its last value. Call with the lock held. */
static cudaError_t base_take(cuda_device *device)
{
    cudaError_t error    = cudaSuccess;
    int64_t     began_ns = 0;

    for (int tries = 0; tries < BASE_TRIES && error == cudaSuccess; tries++) {
        began_ns = sherdi_now_ns();
        error    = error_take(cudaEventRecord(device->base, device->stream));
        if (error == cudaSuccess) {
            error = error_take(cudaEventSynchronize(device->base));
        }
        device->base_ns = sherdi_now_ns();
        if (device->base_ns - began_ns <= BASE_EXACT_NS) {
            break;
        }
    }
    return error;
}

int64_t sherdi_cuda_event_ns(const sherdi_event *event)
{
    cuda_device *device = event->device;
    cudaError_t  error  = cudaSuccess;
    float        ms     = 0;
    int64_t      ns;

    sherdi_cuda_enter(device);
    (void)pthread_mutex_lock(&device->lock);
    if (sherdi_now_ns() - device->base_ns > BASE_AGE_NS) {
        error = base_take(device);
    }
    if (error == cudaSuccess) {
        error = error_take(cudaEventElapsedTime(&ms, device->base, event->event));
    }
    ns = device->base_ns;
    (void)pthread_mutex_unlock(&device->lock);
    return error == cudaSuccess ? ns + (int64_t)((double)ms * 1e6) : 0;
}

/* -------------------------------------------------------------- devices -- */

void sherdi_cuda_device_free(cuda_device *device)
{
    sherdi_cuda_enter(device);
    while (device->memory != NULL) {
        cuda_memory *memory = device->memory;

        device->memory = memory->next;
        (void)memory_put(memory->start);
        sherdi_mem_note(memory->mem, memory->purpose, -(int64_t)memory->len_bytes);
        sherdi_free(memory);
    }
    if (device->base != NULL) {
        (void)error_take(cudaEventDestroy(device->base));
    }
    if (device->stream != NULL) {
        (void)error_take(cudaStreamDestroy(device->stream));
    }
    (void)pthread_mutex_destroy(&device->lock);
    sherdi_free(device);
}

static cudaError_t device_open(cuda_device *device)
{
    cudaError_t error = cudaSetDevice(device->index);

    if (error == cudaSuccess) {
        error = cudaDeviceGetAttribute(&device->processors, cudaDevAttrMultiProcessorCount,
                                       device->index);
    }
    if (error == cudaSuccess) {
        error = cudaStreamCreateWithFlags(&device->stream, cudaStreamNonBlocking);
    }
    if (error == cudaSuccess) {
        error = cudaEventCreate(&device->base);
    }
    if (error == cudaSuccess) {
        error = base_take(device);
    }
    return error_take(error);
}

static sherd_status device_check(const cuda_device *device)
{
    cudaError_t error = error_take(sherdi_cuda_probe());
    int         major = 0;
    int         minor = 0;

    if (error == cudaSuccess) {
        return SHERD_OK;
    }
    (void)cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device->index);
    (void)cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device->index);
    return sherdi_fail(
        SHERD_E_NOTSUP,
        "cuda device %d (%s, compute capability %d.%d) cannot run the kernels of this build "
        "(%s: %s); build for this device: meson setup -Dgpu_arch=native",
        device->index, device->name, major, minor, cudaGetErrorName(error),
        cudaGetErrorString(error));
}

static void device_name(int index, char *text, size_t text_bytes)
{
    struct cudaDeviceProp prop;

    if (error_take(cudaGetDeviceProperties(&prop, index)) != cudaSuccess) {
        (void)snprintf(text, text_bytes, "unknown");
        return;
    }
    (void)snprintf(text, text_bytes, "%.63s", prop.name);
}

static sherd_status cuda_create(int index, sherdi_mem *mem, sherdi_backend **out)
{
    cuda_device *device = sherdi_alloc(mem, SHERDI_MEM_CONTROL, sizeof(*device));
    cudaError_t  error;
    sherd_status status;

    if (device == NULL) {
        return SHERD_E_NOMEM;
    }
    device->index = index;
    device->mem   = mem;
    atomic_init(&device->lanes, 0);
    atomic_init(&device->error, cudaSuccess);
    (void)pthread_mutex_init(&device->lock, NULL);
    device_name(index, device->name, sizeof(device->name));
    error = device_open(device);
    if (error == cudaErrorMemoryAllocation) {
        status = sherdi_fail(SHERD_E_NOMEM, "cuda device %d (%s) has no memory left for a stream",
                             index, device->name);
    } else {
        status = sherdi_cuda_result(device, error, "opening it", NULL);
    }
    if (status == SHERD_OK) {
        status = device_check(device);
    }
    if (status == SHERD_OK) {
        status = sherdi_cuda_lane_make(device, "main", NULL, 1, mem, out);
    }
    if (status != SHERD_OK) {
        sherdi_cuda_device_free(device);
    }
    return status;
}

static int cuda_count(char *why, size_t why_bytes)
{
    int         count = 0;
    cudaError_t error = error_take(cudaGetDeviceCount(&count));

    if (error != cudaSuccess || count == 0) {
        int driver = 0;

        (void)error_take(cudaDriverGetVersion(&driver));
        (void)snprintf(why, why_bytes, "%s (%s: %s)",
                       driver == 0 ? "there is no CUDA driver on this machine"
                                   : "the CUDA driver gives no device",
                       cudaGetErrorName(error), cudaGetErrorString(error));
        return 0;
    }
    return count;
}

static void cuda_describe(int index, char *text, size_t text_bytes)
{
    struct cudaDeviceProp prop;

    if (error_take(cudaGetDeviceProperties(&prop, index)) != cudaSuccess) {
        (void)snprintf(text, text_bytes, "unknown");
        return;
    }
    (void)snprintf(text, text_bytes, "%.200s, %zu MiB, compute capability %d.%d", prop.name,
                   prop.totalGlobalMem >> 20, prop.major, prop.minor);
}

/* A hash of the UUID: numbers and their order do not identify a device, since CUDA_VISIBLE_DEVICES
 * may name the same device by another number or by its UUID. */
static uint64_t cuda_identity(int index)
{
    struct cudaDeviceProp prop;

    if (error_take(cudaGetDeviceProperties(&prop, index)) != cudaSuccess) {
        return (uint64_t)index + 1;
    }
    return sherdi_hash_bytes(0, prop.uuid.bytes, sizeof(prop.uuid.bytes));
}

const sherdi_device_kind sherdi_device_kind_cuda = {
    .name     = "cuda",
    .count    = cuda_count,
    .create   = cuda_create,
    .describe = cuda_describe,
    .identity = cuda_identity,
};
