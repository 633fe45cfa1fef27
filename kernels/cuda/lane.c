/* Lanes and events of a CUDA device, and the tables. Every entry makes its device current, queues
 * its work, and notes an error of CUDA for the next wait. Kernels are in update.cu, encoded.cu,
 * lamb.cu, norm.cu, move.cu and product.cu. */
#include "kernels/cuda/cuda_impl.h"
#include "kernels/cuda/launch.h"
#include "kernels/devices.h"
#include "kernels/lanes.h"

/* NVTX consists of headers only. Without a profiler its calls only test a pointer. */
#if defined(__has_include)
#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define HAVE_NVTX 1
#endif
#endif

#include <stdatomic.h>
#include <stdio.h>

static const sherdi_kernel_ops KERNELS;
static const sherdi_device_ops DEVICE;

/* Returns the lane of a call, and makes its device current. */
static const cuda_lane *lane_enter(const sherdi_backend *backend)
{
    const cuda_lane *lane = (const cuda_lane *)backend;

    sherdi_cuda_enter(lane->device);
    return lane;
}

sherdi_cuda_target sherdi_cuda_target_of(const sherdi_backend *backend)
{
    const cuda_lane *lane = lane_enter(backend);

    return (sherdi_cuda_target){
        .backend = backend, .stream = lane->stream, .processors = lane->device->processors};
}

void sherdi_cuda_launched(const sherdi_backend *backend, cudaError_t error)
{
    sherdi_cuda_note(((const cuda_lane *)backend)->device, error);
}

/* ---------------------------------------------------------------- lanes -- */

static void lane_free(cuda_lane *lane)
{
    cuda_device *device = lane->device;

    if (lane->follow != NULL) {
        sherdi_cuda_note(device, cudaEventDestroy(lane->follow));
    }
    if (lane->is_own && lane->stream != NULL) {
        sherdi_cuda_note(device, cudaStreamDestroy(lane->stream));
    }
    sherdi_free(lane);
}

static cudaError_t stream_create(cudaStream_t *out, int is_urgent)
{
    int         least = 0, greatest = 0;
    cudaError_t error = cudaDeviceGetStreamPriorityRange(&least, &greatest);

    return error == cudaSuccess
               ? cudaStreamCreateWithPriority(out, cudaStreamNonBlocking, is_urgent ? greatest : 0)
               : error;
}

sherd_status sherdi_cuda_lane_make(cuda_device *device, const char *name, void *stream,
                                   int is_urgent, sherdi_mem *mem, sherdi_backend **out)
{
    cuda_lane   *lane = sherdi_alloc(mem, SHERDI_MEM_CONTROL, sizeof(*lane));
    cudaError_t  error;
    sherd_status status;

    if (lane == NULL) {
        return SHERD_E_NOMEM;
    }
    lane->base = (sherdi_backend){
        .name = "cuda", .kernels = &KERNELS, .device = &DEVICE, .threads = 1, .mem = mem};
    lane->device = device;
    lane->name   = name;
    lane->is_own = stream == NULL;
    lane->stream = stream;
    sherdi_cuda_enter(device);
    error = cudaEventCreateWithFlags(&lane->follow, cudaEventDisableTiming);
    if (error == cudaSuccess && stream == NULL) {
        error = stream_create(&lane->stream, is_urgent);
    }
    status = sherdi_cuda_result(device, error, "making lane", name);
    if (status != SHERD_OK) {
        lane_free(lane);
        return status;
    }
    (void)atomic_fetch_add(&device->lanes, 1);
    *out = &lane->base;
    return SHERD_OK;
}

static sherd_status cuda_lane_create(sherdi_backend *lane, const char *name, void *stream,
                                     sherdi_backend **out)
{
    return sherdi_cuda_lane_make(((cuda_lane *)lane)->device, name, stream, 0, lane->mem, out);
}

static void cuda_lane_destroy(sherdi_backend *backend)
{
    cuda_lane   *lane = (cuda_lane *)backend;
    cuda_device *device;

    if (lane == NULL) {
        return;
    }
    device = lane->device;
    sherdi_cuda_enter(device);
    sherdi_cuda_note(device, cudaStreamSynchronize(lane->stream));
    lane_free(lane);
    if (atomic_fetch_sub(&device->lanes, 1) == 1) {
        sherdi_cuda_device_free(device);
    }
}

/* Two threads may record the event of one lane before either of them waits for it. Both then wait
 * for the later record. */
static void cuda_lane_follow(const sherdi_backend *backend, const sherdi_backend *other)
{
    const cuda_lane *after = lane_enter(other);
    const cuda_lane *lane;

    sherdi_cuda_note(after->device, cudaEventRecord(after->follow, after->stream));
    lane = lane_enter(backend);
    sherdi_cuda_note(lane->device, cudaStreamWaitEvent(lane->stream, after->follow, 0));
}

static sherd_status cuda_lane_wait(const sherdi_backend *backend)
{
    const cuda_lane *lane = lane_enter(backend);

    return sherdi_cuda_result(lane->device, cudaStreamSynchronize(lane->stream), "lane",
                              lane->name);
}

static size_t cuda_free_bytes(const sherdi_backend *backend, size_t *total_out)
{
    const cuda_lane *lane = lane_enter(backend);
    size_t           left = 0, total = 0;

    sherdi_cuda_note(lane->device, cudaMemGetInfo(&left, &total));
    if (total_out != NULL) {
        *total_out = total;
    }
    return left;
}

static void cuda_lane_dlpack(const sherdi_backend *lane, int32_t *type_out, int32_t *id_out)
{
    enum { DLPACK_CUDA = 2 };

    *type_out = DLPACK_CUDA;
    *id_out   = ((const cuda_lane *)lane)->device->index;
}

static uint64_t cuda_lane_identity(const sherdi_backend *lane)
{
    return sherdi_backend_device_identity("cuda", ((const cuda_lane *)lane)->device->index);
}

/* Access between two devices is enabled for the whole process. It may have been enabled before, by
 * another caller. */
static int cuda_device_reach(const sherdi_backend *backend, const sherdi_backend *other)
{
    const cuda_lane *lane  = lane_enter(backend);
    int              peer  = ((const cuda_lane *)other)->device->index;
    int              is_on = peer == lane->device->index;
    cudaError_t      error = cudaSuccess;

    if (!is_on) {
        error = cudaDeviceCanAccessPeer(&is_on, lane->device->index, peer);
    }
    if (error == cudaSuccess && is_on && peer != lane->device->index) {
        error = cudaDeviceEnablePeerAccess(peer, 0);
    }
    if (error != cudaSuccess) {
        (void)cudaGetLastError(); /* copies work without it */
    }
    return is_on && (error == cudaSuccess || error == cudaErrorPeerAccessAlreadyEnabled);
}

/* While a stream is captured in global mode, every thread that is not in relaxed mode is forbidden
 * to wait, query or allocate. */
static void cuda_thread_begin(const sherdi_backend *backend)
{
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;

    sherdi_cuda_note(lane_enter(backend)->device, cudaThreadExchangeStreamCaptureMode(&mode));
}

#ifdef HAVE_NVTX
static uint64_t cuda_range_begin(const char *name)
{
    return nvtxRangeStartA(name);
}

static void cuda_range_end(uint64_t range)
{
    nvtxRangeEnd(range);
}
#endif

static void *cuda_lane_stream(const sherdi_backend *backend)
{
    return ((const cuda_lane *)backend)->stream;
}

static void *cuda_lane_given(const sherdi_backend *backend)
{
    const cuda_lane *lane = (const cuda_lane *)backend;

    return lane->is_own ? NULL : lane->stream;
}

/* --------------------------------------------------------------- events -- */

static sherd_status cuda_event_create(sherdi_backend *backend, int is_timed, sherdi_event **out)
{
    const cuda_lane *lane  = lane_enter(backend);
    sherdi_event    *event = sherdi_alloc(backend->mem, SHERDI_MEM_CONTROL, sizeof(*event));
    unsigned         flags = is_timed ? cudaEventDefault : cudaEventDisableTiming;
    sherd_status     status;

    if (event == NULL) {
        return SHERD_E_NOMEM;
    }
    event->device = lane->device;
    status = sherdi_cuda_result(event->device, cudaEventCreateWithFlags(&event->event, flags),
                                "making an event of lane", lane->name);
    if (status != SHERD_OK) {
        sherdi_free(event);
        return status;
    }
    *out = event;
    return SHERD_OK;
}

static void cuda_event_destroy(sherdi_event *event)
{
    if (event != NULL) {
        sherdi_cuda_enter(event->device);
        sherdi_cuda_note(event->device, cudaEventDestroy(event->event));
        sherdi_free(event);
    }
}

static void cuda_event_record(sherdi_event *event, const sherdi_backend *backend)
{
    const cuda_lane *lane = lane_enter(backend);

    sherdi_cuda_note(lane->device, cudaEventRecord(event->event, lane->stream));
}

static void cuda_lane_follow_event(const sherdi_backend *backend, const sherdi_event *event)
{
    const cuda_lane *lane = lane_enter(backend);

    sherdi_cuda_note(lane->device, cudaStreamWaitEvent(lane->stream, event->event, 0));
}

/* On a failed device every event counts as done; the next wait returns the error. */
static int cuda_event_is_done(const sherdi_event *event)
{
    cudaError_t error;

    sherdi_cuda_enter(event->device);
    error = cudaEventQuery(event->event);
    if (error == cudaErrorNotReady) {
        (void)cudaGetLastError(); /* "not ready" would stay the thread's last error */
        return 0;
    }
    sherdi_cuda_note(event->device, error);
    return 1;
}

static sherd_status cuda_event_wait(const sherdi_event *event)
{
    sherdi_cuda_enter(event->device);
    return sherdi_cuda_result(event->device, cudaEventSynchronize(event->event), "an event", NULL);
}

/* -------------------------------------------------------------- kernels -- */

/* Returns whether CUDA does not know the memory, such as the caller's malloc. */
static int memory_is_plain(const void *memory)
{
    struct cudaPointerAttributes attributes;

    if (cudaPointerGetAttributes(&attributes, memory) != cudaSuccess) {
        (void)cudaGetLastError();
        return 1;
    }
    return attributes.type == cudaMemoryTypeUnregistered;
}

/* Some devices share the page tables of the host, and work on plain memory too. */
static int cuda_memory_reach(const sherdi_backend *backend, const void *memory)
{
    const cuda_lane *lane    = lane_enter(backend);
    int              is_open = 0;

    if (!memory_is_plain(memory)) {
        return 1;
    }
    if (cudaDeviceGetAttribute(&is_open, cudaDevAttrPageableMemoryAccess, lane->device->index) !=
        cudaSuccess) {
        (void)cudaGetLastError();
    }
    return is_open;
}

/* Where the device can read plain host memory itself, CUDA may copy it later. The call waits for
 * copies of this memory, so the caller need not know. */
static void cuda_copy(const sherdi_backend *backend, void *dst, const void *src, size_t len_bytes)
{
    const cuda_lane *lane = lane_enter(backend);

    if (dst == src || len_bytes == 0) {
        return;
    }
    sherdi_cuda_note(lane->device,
                     cudaMemcpyAsync(dst, src, len_bytes, cudaMemcpyDefault, lane->stream));
    if (memory_is_plain(dst) || memory_is_plain(src)) {
        sherdi_cuda_note(lane->device, cudaStreamSynchronize(lane->stream));
    }
}

static void cuda_cast(const sherdi_backend *backend, void *dst, sherd_dtype dst_dtype,
                      const void *src, sherd_dtype src_dtype, size_t count_elems)
{
    if (dst_dtype == src_dtype) {
        cuda_copy(backend, dst, src, count_elems * sherd_dtype_bytes(dst_dtype));
    } else {
        sherdi_cuda_cast(backend, dst, dst_dtype, src, src_dtype, count_elems);
    }
}

/* cudaMemsetAsync keeps the stream's order for pinned memory too. */
static void cuda_fill(const sherdi_backend *backend, void *dst, int byte, size_t len_bytes)
{
    const cuda_lane *lane = lane_enter(backend);

    if (len_bytes > 0) {
        sherdi_cuda_note(lane->device, cudaMemsetAsync(dst, byte, len_bytes, lane->stream));
    }
}

static void cuda_zero(const sherdi_backend *backend, void *dst, size_t len_bytes)
{
    cuda_fill(backend, dst, 0, len_bytes);
}

static const sherdi_kernel_ops KERNELS = {
    .struct_size         = sizeof(sherdi_kernel_ops),
    .isa                 = "cuda",
    .update              = sherdi_cuda_update,
    .sumsq               = sherdi_cuda_sumsq,
    .reduce              = sherdi_cuda_reduce,
    .cast                = cuda_cast,
    .accumulate          = sherdi_cuda_accumulate,
    .copy                = cuda_copy,
    .zero                = cuda_zero,
    .fingerprint         = sherdi_cuda_fingerprint,
    .reduce_fixed        = sherdi_cuda_reduce_fixed,
    .fixed_to_f32        = sherdi_cuda_fixed_to_f32,
    .lamb_norms          = sherdi_cuda_lamb_norms,
    .lamb_ratios         = sherdi_cuda_lamb_ratios,
    .decode              = sherdi_cuda_decode,
    .encode              = sherdi_cuda_encode,
    .update_encoded      = sherdi_cuda_update_encoded,
    .fingerprint_encoded = sherdi_cuda_fingerprint_encoded,
    .product             = sherdi_cuda_product,
    .normalize           = sherdi_cuda_normalize,
};

static const sherdi_lane_ops LANES = {
    .default_stream    = cudaStreamLegacy,
    .lane_follow       = cuda_lane_follow,
    .event_create      = cuda_event_create,
    .event_destroy     = cuda_event_destroy,
    .event_record      = cuda_event_record,
    .lane_follow_event = cuda_lane_follow_event,
    .event_is_done     = cuda_event_is_done,
    .event_wait        = cuda_event_wait,
    .event_ns          = sherdi_cuda_event_ns,
    .lane_stream       = cuda_lane_stream,
    .lane_given        = cuda_lane_given,
    .lane_identity     = cuda_lane_identity,
    .pin               = sherdi_cuda_pin,
    .unpin             = sherdi_cuda_unpin,
    .device_reach      = cuda_device_reach,
    .thread_begin      = cuda_thread_begin,
#ifdef HAVE_NVTX
    .range_begin = cuda_range_begin,
    .range_end   = cuda_range_end,
#endif
};

static const sherdi_device_ops DEVICE = {
    .struct_size  = sizeof(sherdi_device_ops),
    .name         = "cuda",
    .is_async     = 1,
    .lanes        = &LANES,
    .alloc        = sherdi_cuda_alloc,
    .free         = sherdi_cuda_free,
    .memory_reach = cuda_memory_reach,
    .lane_create  = cuda_lane_create,
    .lane_destroy = cuda_lane_destroy,
    .lane_wait    = cuda_lane_wait,
    .fill         = cuda_fill,
    .lane_dlpack  = cuda_lane_dlpack,
    .free_bytes   = cuda_free_bytes,
};
