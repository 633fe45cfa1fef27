/* Memory of the emulated devices and pinned memory of the host, and copies between them. See
 * runtime.h. */
#include "runtime.h"

#include <sys/mman.h>

#define ALIGN_BYTES ((size_t)256) /* what cudaMalloc promises */
#define GARBAGE     0xd5
/* Rooms of the library, of which a test uses a small part: they cost only what is used. */
#define LARGE_BYTES ((size_t)4 << 20)

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
    /* Large ones on large pages where the kernel has them: the guard closes and opens all of it at
     * every wait. */
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
    if (e.allocations.count((uintptr_t)memory) != 0 || len == 0) {
        return error_keep(cudaErrorInvalidValue);
    }
    if (countdown(&e.fail_alloc)) {
        return error_keep(cudaErrorMemoryAllocation);
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

extern "C" size_t emulator_registered(void)
{
    emulator                   &e = the();
    std::lock_guard<std::mutex> held(e.lock);
    size_t                      sum = 0;

    for (const auto &entry : e.allocations) {
        sum += entry.second.is_registered ? entry.second.len : 0;
    }
    return sum;
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
    const allocation           *to             = memory_find(e, dst);
    const allocation           *from           = memory_find(e, src);
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
    size_t lead = (PAGE_BYTES - (uintptr_t)memory % PAGE_BYTES) % PAGE_BYTES;
    size_t pages =
        is_own && byte == 0 && len >= LARGE_BYTES ? (len - lead) / PAGE_BYTES * PAGE_BYTES : 0;

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
        stream, false, true, [=] { memory_set((unsigned char *)memory, byte, len, is_own); },
        false);
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
