/* A device that is threads of this process: enough of CUDA's runtime for g++ to compile the kernels
 * of kernels/cuda (and of trainer/cuda) as they stand and for tests to run them where there is no
 * GPU. For tests alone; nothing of it is installed.
 *
 * To compile a .cu file with it: put -Itests/emulator in front, name the file to the C++ compiler
 * as C++ (tests/emulator/meson.build wraps it: emulate.cpp.in) with -ffp-contract=off, link
 * `emulator_lib`. The source includes <cuda_runtime.h> (C: <cuda_runtime_api.h>) as always;
 * <cuda_bf16.h> and <cuda_fp16.h> are there in part. SHERD_EMULATOR is defined. Three things
 * differ:
 *   - `kernel<<<grid, block, shared, stream>>>(args)` is written, under #ifdef SHERD_EMULATOR,
 *     emulator_launch(kernel, grid, block, shared, stream, args...), which returns a cudaError_t;
 *   - `extern __shared__` is written float *x = (float *)emulator_shared() (`__shared__ float
 *     x[64]` works);
 *   - there is no inline PTX, no cooperative groups, no texture. For cp.async there is
 *     emulator_copy_start: what it copies is NaN until it is waited for. For mbarrier there is
 *     emulator_mbarrier_init.
 *
 * Streams are threads with queues. Calls return at once; what does not wait for an event that it
 * needs reads wrong numbers, above all with SHERD_EMULATOR_SEED=n, which delays operations at
 * random and runs threads of a block in another order. Events have CUDA's meaning (a wait is for
 * the record that was last when it was called). Device and pinned memory have unreadable pages on
 * both sides, fresh memory below 4 MiB is garbage, freed memory faults. While no stream works,
 * device memory cannot be read or written: a host that does ends by SIGSEGV with a message
 * (SHERD_EMULATOR_GUARD=0: it may).
 *
 * The blocks of a kernel run one after another, the threads of a block as fibers that change at
 * barriers and shuffles; a barrier that not all can reach ends the process with the kernel's state.
 * Work on a stream of another device than the current one is refused, as CUDA does. So is every
 * call in a child that a process forked when it had made one (cudaErrorInitializationError):
 * programs are started by exec.
 *
 * A stream can be captured (in all modes but the relaxed one) and replayed as a graph: kernels,
 * copies that do not wait, sets and the library's products, one after another. What CUDA forbids
 * the capturing thread meanwhile, waits, queries and allocations, is refused and spoils the
 * capture; so are any thread's waits and queries of the stream, emulator_call, which CUDA would
 * allow, and any thread's events on the stream: CUDA would keep a record in the graph, and refuses
 * a wait for an event from outside as is done here.
 *
 * Environment, read once:
 *   SHERD_EMULATOR_DEVICES=n      how many devices there are, default 8; 0: none, as without a
 *                                 driver
 *   SHERD_EMULATOR_FIRST=n        of this host's devices, the one that is number 0 here, as in its
 *                                 UUID
 *   SHERD_EMULATOR_SEED=n         see above
 *   SHERD_EMULATOR_GUARD=0        see above
 *   SHERD_EMULATOR_EAGER=1        what can begin at once runs on the calling thread: for tests that
 *                                 are many and want numbers, not order
 *   SHERD_EMULATOR_MEMORY=bytes of each device, default 16 GiB; more gives
 *   cudaErrorMemoryAllocation
 *   SHERD_EMULATOR_SLOW=ms        the first stream of the process takes so long, as a context does;
 *                                 read when it is made
 *   SHERD_EMULATOR_COUNTS=file at exit, what the functions below have counted: kernels, bytes of
 *   copies, waits SHERD_EMULATOR_FAIL_ALLOC=n, SHERD_EMULATOR_FAIL_LAUNCH=n,
 *   SHERD_EMULATOR_FAIL_KERNEL=n
 *                                 as the functions below, counted from the start of the process
 */
#ifndef TESTS_EMULATOR_EMULATOR_H
#define TESTS_EMULATOR_EMULATOR_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/** The n-th allocation of device or pinned memory from now on (1: the next) fails once; 0: none. */
void emulator_fail_alloc(long n);
/** The n-th launch of a kernel from now on is refused once, by cudaErrorLaunchOutOfResources. */
void emulator_fail_launch(long n);
/** The n-th kernel from now on faults when it runs: cudaErrorIllegalAddress from all later calls
 *  to its device, as CUDA does, and nothing more runs there. */
void emulator_fail_kernel(long n);
/** Ends that state of a device, which CUDA cannot. Its streams are idle. */
void emulator_heal(int device);

/** Shared memory that a block may have from now on, on all devices, once a kernel is allowed to
 *  (cudaFuncAttributeMaxDynamicSharedMemorySize); what was allowed so far is forgotten. 0: 227 KiB.
 *  A multiprocessor has 1 KiB more, which a block takes from it in addition to its own; that blocks
 *  share one shows in nothing but the device's attribute. */
void emulator_limit_shared(size_t block_bytes);
/** The most shared memory that a launch has asked for since this was asked last. */
size_t emulator_most_shared(void);

/** Where copies go, pinned memory being the host's; what a kernel reads or writes itself is not
 *  among them. */
typedef enum emulator_way {
    EMULATOR_UP,   /* from the host to a device */
    EMULATOR_DOWN, /* ... and back */
    EMULATOR_ON_DEVICES,
    EMULATOR_ON_HOST,
    EMULATOR_WAYS,
} emulator_way;

/** Bytes of the copies that were queued so far. */
unsigned long long emulator_copied(emulator_way way);

/** Bytes of host memory that are registered, so that copies do not wait for the host. */
size_t emulator_registered(void);

/** How often a call made the host wait for a device so far, copies of memory that is not pinned
 *  among them. */
unsigned long emulator_waits(void);
/** Copies so far between devices of which neither may access the other's memory: the driver takes
 *  them through the host. */
unsigned long emulator_staged(void);
/** Kernels launched so far, bytes of device memory held on all devices, streams alive. */
unsigned long emulator_launches(void);
/** Graphs launched so far; the kernels in them are not among the above. */
unsigned long emulator_graph_launches(void);
size_t        emulator_held_bytes(void);
int           emulator_streams(void);

/** As a library's kernel: fn with a copy of `len` bytes of arguments, in the stream's order, and
 *  again by each launch of a graph that it was captured for. It may not block. */
cudaError_t emulator_call_kernel(cudaStream_t stream, void (*fn)(const void *args),
                                 const void *args, size_t len);

/** Runs fn(ctx) in the stream's order on its thread, where device memory can be read and written.
 *  It may block, for other streams as well: each has its own thread. A stand-in for NCCL is made of
 *  this. */
cudaError_t emulator_call(cudaStream_t stream, void (*fn)(void *ctx), void *ctx);

#ifdef __cplusplus
}
#endif

#endif
