/* The state of the emulated devices, between runtime.cpp (devices, errors, the guard), streams.cpp
 * (streams, kernels, events, captures) and memory.cpp. One lock guards all of it; an operation runs
 * outside of it, on its stream's thread. */
#ifndef TESTS_EMULATOR_RUNTIME_H
#define TESTS_EMULATOR_RUNTIME_H

#include "capture.h"

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string.h>
#include <vector>

#define PAGE_BYTES  ((size_t)4096)
#define MAX_DEVICES 64
/* Shared memory of a block: as it is, and at most when a kernel is allowed to. */
#define BLOCK_BYTES      ((size_t)48 << 10)
#define MOST_BLOCK_BYTES ((size_t)227 << 10)
/* What a multiprocessor has more than a block may: what it keeps for each block that runs there. */
#define RESERVED_BYTES ((size_t)1 << 10)

/* A place in a stream's work. */
struct mark {
    bool                    is_done = false;
    int64_t                 ns      = 0;
    std::condition_variable over; /* is_done: wakes those alone who wait for this place */
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
    mark_ref                last;                 /* of the last operation given; may be empty */
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
    size_t                          most_shared = 0; /* that a launch has asked for */
    std::map<std::pair<int, const void *>, size_t>
                       allowed; /* ... that a device's kernel may have, where it was set */
    long               fail_alloc, fail_launch, fail_kernel;
    unsigned long      launches              = 0;
    unsigned long      graphs                = 0; /* launched */
    unsigned long      waits                 = 0; /* of the host */
    unsigned long long copied[EMULATOR_WAYS] = {};
    std::set<std::pair<int, int>> reaches;    /* a device and another whose memory it accesses */
    unsigned long                 staged = 0; /* copies between devices of which neither does */

    emulator();
};

extern __thread int current_device; /* of the calling thread */

long environment_number(const char *name, long otherwise);

/** Never destroyed: streams may outlive main. */
emulator &the(void);

/** Keeps what is no success for cudaGetLastError. */
cudaError_t error_keep(cudaError_t error);

/** Counts down to the call that shall fail. */
bool countdown(long *count);

/** The state of the current device, for a call that needs it. With the lock held, as what
 *  follows. */
cudaError_t device_check(void);

/** For a call that no thread in capture may make, as it waits, asks or allocates: the capture is
 *  spoiled. One in global mode is spoiled by other threads too, but for those that have said that
 *  they do not mind. */
cudaError_t capture_check(void);

/** Says why, where a host that touches device memory ends. */
void segv_catch(void);
/** Device memory can be touched from now on, or not. */
void guard_set(emulator &e, bool is_open);
/** After the host has waited. */
void guard_close_when_idle(emulator &e);

/** What a handle means on this thread; nullptr: none such. */
cudaStream_t stream_of(emulator &e, cudaStream_t handle);
/** Waits for this place, whatever its stream is given meanwhile. */
void mark_wait(emulator &e, std::unique_lock<std::mutex> &held, mark_ref done);
void device_drain(emulator &e, std::unique_lock<std::mutex> &held, int device);

/** Without the lock: gives a stream an operation, of the current device's unless `any_device`. */
cudaError_t stream_run(cudaStream_t stream, bool is_kernel, bool any_device,
                       std::function<void()> &&run, bool waits, bool may_block = false);

#endif
