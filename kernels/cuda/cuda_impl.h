/* The objects of the CUDA backend: a device, and lanes that share it. device.c makes devices and their memory,
 * lane.c has lanes, events and the tables. */
#ifndef SHERDI_KERNELS_CUDA_CUDA_IMPL_H
#define SHERDI_KERNELS_CUDA_CUDA_IMPL_H

#include "kernels/backend.h"

#include <cuda_runtime_api.h>
#include <pthread.h>

/* Memory that a device gave out. */
typedef struct cuda_memory {
    struct cuda_memory *next;
    void               *memory; /* aligned, what the caller has */
    void               *start;  /* what CUDA gave */
    size_t              len_bytes;
    sherdi_mem         *mem;
    sherdi_mem_purpose  purpose;
    sherdi_memory_kind  kind;
} cuda_memory;

typedef struct cuda_device {
    int         index;
    int         processors;
    char        name[64];
    atomic_int  lanes; /* the last one to end ends the device */
    atomic_int  error; /* the first cudaError_t that no call returned; stays */
    sherdi_mem *mem;   /* of the handles */
    cudaStream_t
        stream; /* for clearing fresh memory and for reading the clock; nothing waits on it */
    pthread_mutex_t lock; /* of what follows */
    cuda_memory    *memory;
    cudaEvent_t     base; /* passed when the host's clock was base_ns */
    int64_t         base_ns;
} cuda_device;

typedef struct cuda_lane {
    sherdi_backend base;
    cuda_device   *device;
    cudaStream_t   stream;
    int            is_own; /* the stream ends with the lane */
    cudaEvent_t    follow; /* what others wait for; recorded by them */
    const char    *name;
} cuda_lane;

struct sherdi_event {
    cuda_device *device;
    cudaEvent_t  event;
};

/** Makes the device the calling thread's and leaves it so. Keeps an error. */
void sherdi_cuda_enter(cuda_device *device);
/** Keeps an error for the next wait; the first one stays. */
void sherdi_cuda_note(cuda_device *device, cudaError_t error);
/** What a wait returns: `error` is what CUDA says now. `what` and `name` say who waited for what. */
sherd_status sherdi_cuda_result(cuda_device *device, cudaError_t error, const char *what,
                                const char *name);

/** Fills a lane; the stream as sherdi_device_ops.lane_create says. One that is urgent goes before what computes: it is the
 *  world's, whose work other ranks wait for. */
sherd_status sherdi_cuda_lane_make(cuda_device *device, const char *name, void *stream,
                                   int is_urgent, sherdi_mem *mem, sherdi_backend **out);
/** No lane is left. */
void sherdi_cuda_device_free(cuda_device *device);

sherd_status sherdi_cuda_alloc(sherdi_backend *lane, sherdi_mem *mem, sherdi_mem_purpose purpose,
                               sherdi_memory_kind kind, size_t len_bytes, void **out);
void         sherdi_cuda_free(sherdi_backend *lane, void *memory);
int64_t      sherdi_cuda_event_ns(const sherdi_event *event);

#endif
