/* The objects of the CUDA backend: a device, and the lanes that share it. device.c creates devices
 * and their memory; lane.c has lanes, events and the tables; launch.h leads to the kernels. */
#ifndef SHERDI_KERNELS_CUDA_CUDA_IMPL_H
#define SHERDI_KERNELS_CUDA_CUDA_IMPL_H

#include "kernels/lanes.h"

#include <cuda_runtime_api.h>
#include <pthread.h>

/* An allocation of a device, in a list. */
typedef struct cuda_memory {
    struct cuda_memory *next;
    void               *memory; /* aligned: the caller's pointer */
    void               *start;  /* CUDA's pointer */
    size_t              len_bytes;
    sherdi_mem         *mem;
    sherdi_mem_purpose  purpose;
} cuda_memory;

typedef struct cuda_device {
    int         index;
    int         processors;
    char        name[64];
    atomic_int  lanes; /* the last lane to be destroyed frees the device */
    atomic_int  error; /* the first cudaError_t that was noted; stays */
    sherdi_mem *mem;   /* account of the handles */
    cudaStream_t
        stream; /* for clearing new memory and for reading the clock; no other work is on it */
    pthread_mutex_t lock; /* guards the members below */
    cuda_memory    *memory;
    cudaEvent_t     base; /* was passed when the host's clock was base_ns */
    int64_t         base_ns;
} cuda_device;

typedef struct cuda_lane {
    sherdi_backend base;
    cuda_device   *device;
    cudaStream_t   stream;
    int            is_own; /* the stream is destroyed with the lane */
    cudaEvent_t    follow; /* for lanes that follow this one: they record it, then wait for it */
    const char    *name;
} cuda_lane;

struct sherdi_event {
    cuda_device *device;
    cudaEvent_t  event;
};

/** Makes the device the current one of the calling thread, and leaves it so. Notes an error. */
void sherdi_cuda_enter(cuda_device *device);
/** Notes an error for the next wait. The first error stays; cudaSuccess is not noted. */
void sherdi_cuda_note(cuda_device *device, cudaError_t error);
/** Notes `error`, then returns OK or, if any error was noted for the device, E_DEVICE. `what` and
 *  `name` (may be NULL) name the operation in the message. */
sherd_status sherdi_cuda_result(cuda_device *device, cudaError_t error, const char *what,
                                const char *name);

/** Creates a lane; `stream` is as in sherdi_device_ops.lane_create. An urgent lane gets the highest
 *  priority, before lanes that compute: it is the world's lane, and other ranks wait for its
 *  work. */
sherd_status sherdi_cuda_lane_make(cuda_device *device, const char *name, void *stream,
                                   int is_urgent, sherdi_mem *mem, sherdi_backend **out);
/** Frees a device that has no lanes, and all its memory. */
void sherdi_cuda_device_free(cuda_device *device);

sherd_status sherdi_cuda_alloc(sherdi_backend *lane, sherdi_mem *mem, sherdi_mem_purpose purpose,
                               size_t len_bytes, void **out);
void         sherdi_cuda_free(sherdi_backend *lane, void *memory);
sherd_status sherdi_cuda_pin(sherdi_backend *lane, void *memory, size_t len_bytes);
void         sherdi_cuda_unpin(sherdi_backend *lane, void *memory);
int64_t      sherdi_cuda_event_ns(const sherdi_event *event);

#endif
