/* Worlds with parameters, of several processes, split from others, or simulated, and broadcasts:
 * most are calls of modules (modules.txt). sherd.h includes this header, and has the conventions. */
#ifndef SHERD_H
#include "sherd.h"
#elif !defined(SHERD_WORLDS_H)
#define SHERD_WORLDS_H

typedef struct sherd_world_params {
    size_t      struct_size;
    const char *transport;  /* "shm", "mpi", "nccl", "threads", "self"; NULL: best available */
    int         device;     /* GPU of this rank; -1: chosen by local_rank. Unused on the CPU. */
    int         local_rank; /* rank inside this host; -1: detected */
    /* Longest wait for the other ranks in one call; 0: 30 minutes. The death of a process is
     * noticed within seconds, and the silence of a host within host_timeout_ns, independently of
     * this field. Until all ranks have met, another limit applies: SHERD_TIMEOUT in seconds, else
     * two minutes; timeout_ns replaces it where timeout_ns is shorter. */
    int64_t timeout_ns;
    /* Compute threads of this rank's CPU kernels, at most 4096; 0: SHERD_THREADS, else cores of the
     * host / ranks of the host, at least 1. On a GPU the cores that are reserved for the trainer
     * and the wire are subtracted (docs/threads.md). */
    int cpu_threads;
    /* Where the engine's device memory and kernels are: "cpu" or "cuda". NULL: SHERD_BACKEND, else
     * "cuda" when `device` is set or the transport is "nccl", else "cpu" */
    const char *backend;
    /* Longest silence of another host before its ranks are considered lost, from 2 s to 7 days; 0:
     * 30 s. SHERD_HOST_TIMEOUT, in seconds, replaces it. Between two hosts the lower limit of their
     * ranks counts. */
    int64_t host_timeout_ns;
} sherd_world_params;

SHERD_API void sherd_world_params_init(sherd_world_params *params);

/** Does what sherd_world_threads does, with `params`, which apply to all ranks. Their transport must
 *  be NULL or "threads"; local_rank has no meaning here. On a GPU, rank r uses device r modulo the
 *  number of devices. If `device` is set, all ranks use it. */
SHERD_CALL sherd_world_threads_with(int world_size, const sherd_world_params *params,
                                    sherd_world **worlds_out);

/** Creates the world that the launcher set up: torchrun, mpirun, mpiexec, srun, or explicit
 *  SHERD_RANK, SHERD_WORLD_SIZE and SHERD_RENDEZVOUS. If no launcher is found, the world consists
 *  of this rank alone. docs/launching.md lists the variables and says what SHERD_JOB_SECRET is for.
 *  Collective over the job; blocks until all ranks have met. Errors: E_INVAL (variables contradict
 *  each other, ranks have different secrets, no socket can exist at the meeting point), E_NOTSUP
 *  (several hosts, and no transport that can move data between them), E_PEER_LOST (a rank did not
 *  arrive; the message of every rank names it). */
SHERD_CALL sherd_world_from_env(const sherd_world_params *params, sherd_world **out);

/** Returns the launcher whose variables sherd_world_from_env would use: "SHERD_*", "torchrun",
 *  "mpirun", "mpiexec" (MPICH's) or "srun"; NULL: none, this process is alone. Static storage. */
SHERD_API const char *sherd_launcher(void);

/** Creates a world at an explicit meeting point. `rendezvous` is "tcp://host:port" (rank 0 listens
 *  there) or "unix:///path/of/socket" (one host). Collective, blocking. */
SHERD_CALL sherd_world_create(int rank, int world_size, const char *rendezvous,
                              const sherd_world_params *params, sherd_world **out);

/** Creates a simulated world, seen from rank `rank` of `world_size`. It moves no data but counts
 *  all traffic; plans for large worlds are made on it. */
SHERD_CALL sherd_world_simulate(int rank, int world_size, sherd_world **out);

/** Creates a world from an MPI communicator; call it through sherd_mpi.h, which wraps it. `comm`
 *  points at an MPI_Comm of `comm_bytes` bytes. E_NOTSUP in a build without MPI, and where the
 *  program's MPI is not Open MPI 3 to 5. */
SHERD_CALL sherd_world_from_mpi_handle(const void *comm, size_t comm_bytes,
                                       const sherd_world_params *params, sherd_world **out);

/* A color for sherd_world_split: this rank gets no world. */
#define SHERD_SPLIT_NONE (-1)
/** Creates a world of the ranks that pass the same `color`, over the same transport. A trainer with
 *  tensor or pipeline parallelism of its own makes its data-parallel group this way, and creates
 *  the engine in the new world.
 *
 *  Arguments   color: a number from 0 on; SHERD_SPLIT_NONE, or any number below 0, means no world.
 *              key: orders the ranks. Ranks with equal keys have the same order as in `world`.
 *  Ownership   The caller destroys *out. A rank without a new world gets NULL and SHERD_OK. *out
 *              takes the time limit, device and threads of `world`. It holds no reference to
 *              `world`: either may be destroyed first.
 *  Collective  All ranks of `world` call it, including those that get no world, after the calls of
 *              the engines of `world`. It blocks until every rank has its world.
 *  Threads     Calls on a world of this rank and on the worlds that were split from it must not
 *              overlap.
 *  Errors      The same on all ranks. E_NOMEM, E_IO or E_DEVICE of any rank: no rank gets a world,
 *              and `world` stays usable. E_PEER_LOST. E_NOTSUP: a simulated world does not know the
 *              colors of the other ranks; simulate the world of the group instead. Until either
 *              world is destroyed, a later failure of `world`, such as a dead rank, is also a
 *              failure of *out. A failure of *out is not a failure of `world`.
 */
SHERD_CALL sherd_world_split(sherd_world *world, int color, int key, sherd_world **out);

/** Creates a world over an NCCL communicator of the trainer, which remains the trainer's property
 *  and must outlive the world; call it through sherd_cuda.h, which wraps it. `comm` is an
 *  ncclComm_t. `params` may name a device; its transport must be NULL or "nccl". Collective over
 *  the communicator, over which the ranks exchange the address of their sockets, within
 *  SHERD_TIMEOUT. After a failure of the world, work of NCCL on the device may never end, and only
 *  the communicator's owner may end it: call ncclCommAbort(comm) before destroying the engine or
 *  the world, which wait for the device. E_NOTSUP in a build without NCCL. */
SHERD_CALL sherd_world_from_nccl_handle(void *comm, const sherd_world_params *params,
                                        sherd_world **out);

/** Returns the bytes that this rank has sent and received since the world was created; 0 for a NULL
 *  world. Either pointer may be NULL. */
SHERD_API void sherd_world_traffic(const sherd_world *world, uint64_t *sent_bytes_out,
                                   uint64_t *received_bytes_out);

/** Copies data[0 .. len_bytes) of rank `root` to all ranks. Collective, blocking. */
SHERD_CALL sherd_world_broadcast(sherd_world *world, void *data, size_t len_bytes, int root);

#endif
