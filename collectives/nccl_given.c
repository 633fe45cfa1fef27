/* A world over a communicator of the trainer's own, which then moves device memory for both. For
 * control data, and to notice each other's end, the ranks still need connections. So they meet as
 * processes do, and rank 0 sends the address over the communicator. */
#include "collectives/nccl_impl.h"

#include "base/clock.h"
#include "collectives/meeting_point.h"
#include "collectives/remote.h"
#include "collectives/transport.h"

#include <stdlib.h>
#include <string.h>

/* The communicator, before there is a world. */
typedef struct given_comm {
    ncclComm_t     comm;
    int            size, device;
    int64_t        deadline_ns;
    cudaStream_t   stream;
    unsigned char *memory; /* on the device */
} given_comm;

static sherd_status given_fail(const char *why)
{
    return sherdi_fail(SHERD_E_DEVICE, "the NCCL communicator that was given: %s", why);
}

static sherd_status given_wait(const given_comm *given)
{
    ncclResult_t result = ncclInProgress;
    cudaError_t  error  = cudaErrorNotReady;

    for (int turn = 0; result == ncclInProgress || error == cudaErrorNotReady; turn++) {
        if (sherdi_nccl_api.CommGetAsyncError(given->comm, &result) != ncclSuccess) {
            result = ncclInternalError;
        }
        if (result != ncclSuccess && result != ncclInProgress) {
            return given_fail(sherdi_nccl_api.GetErrorString(result));
        }
        error = cudaStreamQuery(given->stream);
        if (error != cudaSuccess && error != cudaErrorNotReady) {
            return given_fail(cudaGetErrorString(error));
        }
        (void)cudaGetLastError(); /* cudaErrorNotReady would be the trainer's last error */
        if (sherdi_now_ns() > given->deadline_ns) {
            return sherdi_fail(SHERD_E_PEER_LOST, "not all ranks of the NCCL communicator came "
                                                  "within the time limit (SHERD_TIMEOUT)");
        }
        sherdi_nap(turn);
    }
    return SHERD_OK;
}

static sherd_status given_move(given_comm *given, const void *mine, void *all, size_t len_bytes)
{
    size_t       all_bytes = (size_t)given->size * len_bytes;
    ncclResult_t result;

    if (cudaStreamCreateWithFlags(&given->stream, cudaStreamNonBlocking) != cudaSuccess ||
        cudaMalloc((void **)&given->memory, all_bytes + len_bytes) != cudaSuccess ||
        cudaMemcpyAsync(given->memory + all_bytes, mine, len_bytes, cudaMemcpyHostToDevice,
                        given->stream) != cudaSuccess) {
        return given_fail(cudaGetErrorString(cudaGetLastError()));
    }
    result = sherdi_nccl_api.AllGather(given->memory + all_bytes, given->memory, len_bytes,
                                       ncclUint8, given->comm, given->stream);
    if (result != ncclSuccess && result != ncclInProgress) {
        return given_fail(sherdi_nccl_api.GetErrorString(result));
    }
    SHERDI_TRY(given_wait(given));
    return cudaMemcpy(all, given->memory, all_bytes, cudaMemcpyDeviceToHost) == cudaSuccess
               ? SHERD_OK
               : given_fail(cudaGetErrorString(cudaGetLastError()));
}

/* Runs on the communicator's device, independently of the thread's device. */
static sherd_status given_exchange(void *ctx, const void *mine, void *all, size_t len_bytes)
{
    given_comm  *given  = ctx;
    int          before = given->device;
    sherd_status status;

    (void)cudaGetDevice(&before);
    (void)cudaSetDevice(given->device);
    status = given_move(given, mine, all, len_bytes);
    if (status != SHERD_E_PEER_LOST) { /* freeing would wait for the missing ranks */
        (void)cudaFree(given->memory);
        (void)cudaStreamDestroy(given->stream);
    }
    given->memory = NULL;
    given->stream = NULL;
    (void)cudaSetDevice(before);
    return status;
}

static sherd_status params_check(const sherd_world_params *params, int device)
{
    const char *kind;

    if (params->transport != NULL && strcmp(params->transport, sherdi_nccl_ops.name) != 0) {
        return sherdi_fail(SHERD_E_INVAL, "a world over NCCL cannot use transport %s",
                           params->transport);
    }
    if (params->device >= 0 && params->device != device) {
        return sherdi_fail(SHERD_E_INVAL,
                           "the NCCL communicator is on device %d, and sherd_world_params.device "
                           "is %d",
                           device, params->device);
    }
    SHERDI_TRY(sherdi_world_backend_kind(params, &kind));
    return params->backend == NULL || strcmp(kind, "cpu") != 0
               ? SHERD_OK
               : sherdi_fail(SHERD_E_INVAL,
                             "a world from a NCCL communicator needs backend cuda, not cpu");
}

sherd_status sherd_world_from_nccl_handle(void *comm, const sherd_world_params *params,
                                          sherd_world **out)
{
    char               why[256];
    sherd_world_params here;
    procs_params       procs = {
              .world     = &here,
              .rank      = -1,
              .listener  = -1,
              .mover_use = PROCS_MOVER_ALWAYS,
              .comm      = comm,
    };
    given_comm    given = {.comm = comm, .device = -1};
    meeting_point point;

    SHERDI_TRY(sherdi_api_check_out(out, "sherd_world_from_nccl"));
    SHERDI_TRY(sherdi_world_params_read(params, &here));
    if (sherdi_nccl_version(why, sizeof(why)) == 0) {
        return sherdi_fail(SHERD_E_NOTSUP, "a world from a NCCL communicator: %s", why);
    }
    if (comm == NULL || sherdi_nccl_api.CommUserRank(comm, &procs.rank) != ncclSuccess ||
        sherdi_nccl_api.CommCount(comm, &procs.world_size) != ncclSuccess ||
        sherdi_nccl_api.CommCuDevice(comm, &given.device) != ncclSuccess) {
        return sherdi_fail(SHERD_E_INVAL, "the handle that was given is not a NCCL communicator");
    }
    SHERDI_TRY(params_check(&here, given.device));
    here.device    = given.device;
    here.backend   = "cuda";
    here.transport = sherdi_nccl_ops.name;
    SHERDI_TRY(sherdi_meeting_limit(&here, &procs.limit_ns));
    given.size        = procs.world_size;
    given.deadline_ns = sherdi_now_ns() + procs.limit_ns;
    if (procs.world_size > 1) {
        SHERDI_TRY(sherdi_meeting_point_agree(&procs, given_exchange, &given, "NCCL", &point));
    }
    return sherdi_world_shm_create(&procs, out);
}
