/* sherd: a ZeRO engine in C. This header declares every call of a trainer; sherd_tools.h declares
 * the calls of tools.
 *
 * The life of a program: create a world, a configuration and an engine; declare groups, units,
 * parameters and passes; bind parameters where wanted; seal; fill the parameters. Then, for each
 * micro-batch, acquire and release the units in forward and backward, and call sherd_step().
 * docs/guide.md has a complete example, docs/architecture.md a map of the source, and
 * docs/glossary.md explains the terms (unit, segment, window, boundary, ...).
 *
 * Errors      A call that can fail returns sherd_status; sherd_last_error() then says what failed,
 *             where, and what to do. If an object or a pointer to a result is NULL, the call
 *             returns E_INVAL, unless its comment says otherwise.
 * Structs     A struct that crosses the API starts with struct_size. Call its _init() (which does
 *             nothing for NULL), or set struct_size to sizeof(the struct). A size that ends inside
 *             a field is E_INVAL. A `const sherd_..._params *` may be NULL, which means the
 *             defaults, unless the comment of the call says otherwise. A flag is 0 or 1.
 * Types       Sizes are size_t, ranks are int.
 * Collective  Every rank of the world makes the same call in the same order. A local call concerns
 *             its own rank only.
 * Threads     Only one thread at a time may call an engine or any other engine of the same world.
 *             All ranks call the engines of a world in the same order. The thread may change from
 *             call to call (docs/bindings.md).
 * Callbacks   A function of the program that sherd calls (fill, progress, write) must not call the
 *             same engine or world; the call returns E_STATE.
 */
#ifndef SHERD_H
#define SHERD_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define SHERD_API      __attribute__((visibility("default")))
#define SHERD_MUST_USE __attribute__((warn_unused_result))
#else
#define SHERD_API
#define SHERD_MUST_USE
#endif

#define SHERD_VERSION_MAJOR 0
#define SHERD_VERSION_MINOR 1
#define SHERD_VERSION_PATCH 0

/* Alignment: every buffer that the engine hands out starts at a multiple of this many bytes. */
#define SHERD_ALIGN_BYTES 4096
/* Inside a unit, each parameter starts at a multiple of this many elements (a chunk). */
#define SHERD_CHUNK_ELEMS 64
/* The most dimensions that a parameter can have. */
#define SHERD_MAX_NDIM 8

/* ------------------------------------------------------------ status ---- */

/* What the caller can do about a failure, by group of statuses:
 *   retry the call    E_AGAIN (inside the library; no call of this header returns it)
 *   fix the call      E_INVAL, E_STATE, E_NOTSUP
 *   drop this step    E_NOMEM, E_IO, E_NUMERIC   (the old state is still whole)
 *   rebuild the world E_PEER_LOST, E_DEVICE      (destroy it with its engines, and make both anew)
 */
#define SHERD_STATUS_LIST(X)                                                                       \
    X(SHERD_OK, 0, "success")                                                                      \
    X(SHERD_E_AGAIN, 1, "busy, try again")                                                         \
    X(SHERD_E_INVAL, 2, "invalid argument or input")                                               \
    X(SHERD_E_STATE, 3, "call not allowed in this state")                                          \
    X(SHERD_E_NOTSUP, 4, "not supported by this build or configuration")                           \
    X(SHERD_E_NOMEM, 5, "out of memory")                                                           \
    X(SHERD_E_IO, 6, "input or output failed")                                                     \
    X(SHERD_E_NUMERIC, 7, "a number is out of the range that is allowed")                          \
    X(SHERD_E_PEER_LOST, 8, "a rank of the world is lost")                                         \
    X(SHERD_E_DEVICE, 9, "work on the device failed")

typedef enum sherd_status {
#define SHERD_STATUS_ENUM(name, code, text) name = code,
    SHERD_STATUS_LIST(SHERD_STATUS_ENUM)
#undef SHERD_STATUS_ENUM
} sherd_status;

/** Returns the name of a status, for example "SHERD_E_INVAL"; never NULL. */
SHERD_API const char *sherd_status_name(sherd_status status);
/** Returns a short description of a status; never NULL. */
SHERD_API const char *sherd_status_text(sherd_status status);
/** Returns the message of the last failure on this thread: what failed, where, and what to do. It
 *  is "" if nothing has failed yet. Valid until the next failure on this thread. */
SHERD_API const char *sherd_last_error(void);
/** Returns "0.1.0" and, when built in a git checkout, the commit. Static storage. */
SHERD_API const char *sherd_version(void);

/* --------------------------------------------------------------- log ---- */

typedef enum sherd_log_level {
    SHERD_LOG_ERROR = 0, /* the program cannot continue */
    SHERD_LOG_WARN  = 1, /* something is odd; the program continues */
    SHERD_LOG_INFO  = 2, /* once per job */
    SHERD_LOG_DEBUG = 3, /* once per object */
    SHERD_LOG_TRACE = 4, /* once per step */
} sherd_log_level;

/** Receives one finished line without its newline. Any thread may call it; calls never overlap. */
typedef void (*sherd_log_fn)(void *ctx, sherd_log_level level, const char *line);

/** Sends log lines up to level `most` to `fn`; NULL sends them nowhere. Before this call they go to
 *  standard error if the environment variable SHERD_LOG=error|warn|info|debug|trace asks for it,
 *  and nowhere otherwise. Any other value of SHERD_LOG counts as warn, and a log line says so. The
 *  log is process-wide. It is the only thing that engines share. */
SHERD_API void sherd_log_set(sherd_log_fn fn, void *ctx, sherd_log_level most);

/* -------------------------------------------------------------- dtypes --- */

typedef enum sherd_dtype {
    SHERD_F32  = 0,
    SHERD_BF16 = 1,
    SHERD_F16  = 2,
} sherd_dtype;

/** Returns the bytes of one element: 4, 2, 2; 0 for an unknown type. */
SHERD_API size_t      sherd_dtype_bytes(sherd_dtype dtype);
SHERD_API const char *sherd_dtype_name(sherd_dtype dtype); /* "fp32", "bf16", "fp16" */

/* --------------------------------------------------------------- world --- */

typedef struct sherd_world sherd_world;

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

/** Creates a world of one rank. */
SHERD_API SHERD_MUST_USE sherd_status sherd_world_self(sherd_world **out);

/** Creates the worlds of `world_size` ranks in this process: worlds_out[r] is for the thread that
 *  plays rank r. Each world is destroyed separately. Not collective. */
SHERD_API SHERD_MUST_USE sherd_status sherd_world_threads(int world_size, sherd_world **worlds_out);

/** Does the same with `params`, which apply to all ranks. Its transport must be NULL or "threads";
 *  local_rank has no meaning here. On a GPU, rank r uses device r modulo the number of devices. If
 *  `device` is set, all ranks use it. */
SHERD_API SHERD_MUST_USE sherd_status sherd_world_threads_with(int                       world_size,
                                                               const sherd_world_params *params,
                                                               sherd_world **worlds_out);

/** Creates the world that the launcher set up: torchrun, mpirun, mpiexec, srun, or explicit
 *  SHERD_RANK, SHERD_WORLD_SIZE and SHERD_RENDEZVOUS. If no launcher is found, the world consists
 *  of this rank alone. docs/launching.md lists the variables and says what SHERD_JOB_SECRET is for.
 *  Collective over the job; blocks until all ranks have met. Errors: E_INVAL (variables contradict
 *  each other, ranks have different secrets, no socket can exist at the meeting point), E_NOTSUP
 *  (several hosts, and no transport that can move data between them), E_PEER_LOST (a rank did not
 *  arrive; the message of every rank names it). */
SHERD_API SHERD_MUST_USE sherd_status sherd_world_from_env(const sherd_world_params *params,
                                                           sherd_world             **out);

/** Returns the launcher whose variables sherd_world_from_env would use: "SHERD_*", "torchrun",
 *  "mpirun", "mpiexec" (MPICH's) or "srun"; NULL: none, this process is alone. Static storage. */
SHERD_API const char *sherd_launcher(void);

/** Creates a world at an explicit meeting point. `rendezvous` is "tcp://host:port" (rank 0 listens
 *  there) or "unix:///path/of/socket" (one host). Collective, blocking. */
SHERD_API SHERD_MUST_USE sherd_status sherd_world_create(int rank, int world_size,
                                                         const char               *rendezvous,
                                                         const sherd_world_params *params,
                                                         sherd_world             **out);

/** Creates a simulated world, seen from rank `rank` of `world_size`. It moves no data but counts
 *  all traffic; plans for large worlds are made on it. */
SHERD_API SHERD_MUST_USE sherd_status sherd_world_simulate(int rank, int world_size,
                                                           sherd_world **out);

/** Creates a world from an MPI communicator; call it through sherd_mpi.h, which wraps it. `comm`
 *  points at an MPI_Comm of `comm_bytes` bytes. E_NOTSUP in a build without MPI, and where the
 *  program's MPI is not Open MPI 3 to 5. */
SHERD_API SHERD_MUST_USE sherd_status sherd_world_from_mpi_handle(const void *comm,
                                                                  size_t      comm_bytes,
                                                                  const sherd_world_params *params,
                                                                  sherd_world             **out);

/* For a NULL world these return -1, 0, -1 and "". */
SHERD_API int         sherd_world_rank(const sherd_world *world);
SHERD_API int         sherd_world_size(const sherd_world *world);
SHERD_API int         sherd_world_local_rank(const sherd_world *world);
SHERD_API const char *sherd_world_transport(const sherd_world *world); /* "shm", ... */

/** Replaces values[0 .. count) by their sums over the ranks. The values are added in double, in the
 *  order of ranks, so all ranks get the same bits. `count` must be equal on all ranks. Collective,
 *  blocking. */
SHERD_API SHERD_MUST_USE sherd_status sherd_world_sum_f64(sherd_world *world, double *values,
                                                          size_t count);
/** Copies data[0 .. len_bytes) of rank `root` to all ranks. Collective, blocking. */
SHERD_API SHERD_MUST_USE sherd_status sherd_world_broadcast(sherd_world *world, void *data,
                                                            size_t len_bytes, int root);
/** Returns when all ranks have called it. Collective, blocking. */
SHERD_API SHERD_MUST_USE sherd_status sherd_world_barrier(sherd_world *world);
/** Ends the world for all ranks. The current and later calls of every rank on it return
 *  E_PEER_LOST, and the message contains this rank and `why`. Any thread may call it. Never blocks.
 *  Accepts NULL. */
SHERD_API void sherd_world_abort(sherd_world *world, const char *why);
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
SHERD_API SHERD_MUST_USE sherd_status sherd_world_split(sherd_world *world, int color, int key,
                                                        sherd_world **out);
/** Drops the caller's reference; engines hold their own references. Accepts NULL. In a child
 *  process that the program has forked it does nothing, because the world belongs to the parent.
 *  The other ranks notice the end of the parent, whether its children live or not. */
SHERD_API void sherd_world_destroy(sherd_world *world);

/* -------------------------------------------------------------- config --- */

typedef struct sherd_config sherd_config;

/* The settings of a plain training run as a struct, in place of JSON. A setting without a field
 * here has the value that it has when a file does not set it. */
typedef struct sherd_settings {
    size_t struct_size;
    /* Sequences. 0, the default: computed from the other two and the number of ranks;
     * micro_batch_size or train_batch_size must be set. */
    int train_batch_size; /* per step, over all ranks */
    int micro_batch_size; /* per rank and micro-batch */
    int accumulation;     /* micro-batches per step; 1 if only one of the sizes is set */
    int stage;            /* 0, the default, to 3 */
    /* type of parameters and gradients: SHERD_F32, the default, _BF16 or _F16 */
    int dtype;
    int comm_dtype;       /* type in which gradients are sent; -1, the default: as dtype */
    int accum_dtype;      /* type in which micro-batches are accumulated; default SHERD_F32 */
    int is_deterministic; /* 1: the same bits for every layout (docs/numerics.md); default 0 */
    /* 1: gathers and reductions overlap with the trainer's work; -1, the default: only at stage
     * 3 */
    int    overlap_comm;
    int    steps_per_print;   /* 0, the default: no line in the log */
    double gradient_clipping; /* largest norm of the gradient; 0: off; default 1 */
    /* A value of optimizer.type that this build supports, in any case: "AdamW", "Adam", ...; NULL,
     * the default, means "AdamW"; "none" is for inference. Read only during the call that makes a
     * configuration. */
    const char *optimizer;
    /* NaN, the default: the optimizer's default, else 1e-3, 0.9, 0.999, 1e-8 */
    double lr, beta1, beta2, eps;
    double weight_decay;    /* default 0 */
    int    bias_correction; /* of moments that start at 0; default 1 */
    /* 1, the default: an update with Inf or NaN is skipped; with _F16 it is always skipped */
    int check_overflow;
    /* Only with _F16. loss_scale: a constant loss scale; 0, the default: a dynamic one, which
     * starts at initial_loss_scale (65536), halves after `hysteresis` overflows (2), and doubles
     * after loss_scale_window steps without an overflow (1000). An overflow at min_loss_scale (1)
     * is an error. */
    double  loss_scale, initial_loss_scale, min_loss_scale;
    int64_t loss_scale_window;
    int     hysteresis;
    int     reserved; /* keeps the layout; zero */
    /* In elements. docs/configuration.md describes the keys of the same names. */
    size_t sub_group_size;        /* largest block of state; default 1e9 */
    size_t prefetch_bucket_size;  /* most elements that are prefetched; default 5e7 */
    size_t persistence_threshold; /* parameters of at most this size stay whole; default 1e5 */
    /* the same for the sum of all of them; default SIZE_MAX: no limit */
    size_t model_persistence_threshold;
    size_t max_live_parameters; /* most elements that are gathered at a time; default 1e9 */
    size_t max_reuse_distance;  /* default 0: a unit is released between its uses */
} sherd_settings;
SHERD_API void sherd_settings_init(sherd_settings *settings);
/** Makes a configuration from settings, in place of a file. It has no keys: sherd_config_set and
 *  sherd_config_dump return E_STATE, and sherd_config_has returns 0.
 *
 *  Units      Batch sizes are in sequences, sizes of the plan in elements.
 *  Ownership  `settings` is copied; sherd_config_destroy frees *out.
 *  Errors     E_INVAL (a value out of its range; sherd_engine_create, which knows the ranks, checks
 *             that the batch sizes agree), E_NOTSUP (an optimizer that this build does not
 *             support), E_NOMEM.
 */
SHERD_API SHERD_MUST_USE sherd_status sherd_config_from_settings(const sherd_settings *settings,
                                                                 sherd_config        **out);

/** Reads a DeepSpeed-style JSON file; comments and trailing commas are allowed.
 *  docs/configuration.md lists the keys. Warnings go to the log, and sherd_config_warning() returns
 *  them. Errors: E_IO, E_INVAL with file:line:column. */
SHERD_API SHERD_MUST_USE sherd_status sherd_config_load(const char *path, sherd_config **out);
SHERD_API SHERD_MUST_USE sherd_status sherd_config_parse(const char *json, size_t len_bytes,
                                                         sherd_config **out);
/** Sets one key, for example "optimizer.params.lr" to "1e-3"; the value is JSON. It replaces a
 *  value that is "auto" in the file. If the file has another explicit value, the call fails
 *  (E_INVAL, naming both values). A key that starts with '!' overrides the file. */
SHERD_API SHERD_MUST_USE sherd_status sherd_config_set(sherd_config *config, const char *dotted_key,
                                                       const char *json_value);
/** Returns 1 when the key has a value from the file, from the program or by default. Returns 0 when
 *  it is "auto" or has no value, so that the program should set one, and for an unknown key. */
SHERD_API int sherd_config_has(const sherd_config *config, const char *dotted_key);
/** Receives text in pieces. A return other than SHERD_OK stops the writer. */
typedef sherd_status (*sherd_write_fn)(void *ctx, const char *text, size_t len_bytes);
/** Writes the resolved configuration as JSON: each key with its value and origin. */
SHERD_API SHERD_MUST_USE sherd_status sherd_config_dump(const sherd_config *config,
                                                        sherd_write_fn write, void *ctx);
SHERD_API size_t                      sherd_config_warning_count(const sherd_config *config);
SHERD_API const char *sherd_config_warning(const sherd_config *config, size_t index);
SHERD_API void        sherd_config_destroy(sherd_config *config);

/* -------------------------------------------------------------- engine --- */

typedef struct sherd_engine sherd_engine;
typedef int32_t             sherd_group; /* handles count from 0 in the order of creation */
typedef int32_t             sherd_unit;
typedef int32_t             sherd_param;

#define SHERD_GROUP_DEFAULT 0 /* always exists; takes every value from the configuration */

typedef enum sherd_pass {
    SHERD_FORWARD  = 0,
    SHERD_BACKWARD = 1,
    SHERD_EVAL     = 2,
} sherd_pass;

/* Parameters of a group. NaN in a field means: the value of the configuration. */
typedef struct sherd_group_params {
    size_t      struct_size;
    const char *name; /* for logs; copied */
    double      lr;
    double      weight_decay;
    double      beta1, beta2, eps;
    /* LAMB: 1 sets the trust ratio of this group's parameters with at most one dimension (biases,
     * scales of norms) to 1; below 0, the default: the value of the configuration (exclude_1d) */
    int exclude_1d;
    /* The optimizer of this group's parameters: a name of optimizer.type, in any case ("none" is
     * for a whole engine only); copied. NULL, the default: the optimizer of the configuration. An
     * optimizer reads only the fields for which it has keys: the rate, the decay, and those of the
     * betas and eps that it uses (a momentum is beta1). */
    const char *optimizer;
} sherd_group_params;
SHERD_API void sherd_group_params_init(sherd_group_params *params);

/* A value of sherd_unit_params.backward_uses: the number of uses in backward is not known in
 * advance. */
#define SHERD_USES_ANY (-1)

typedef struct sherd_unit_params {
    size_t      struct_size;
    const char *name; /* unique in the engine, required; copied */
    /* 0, the default: backward uses the unit once for each time that BACKWARD lists it or a unit
     * that reads it. The gradient is complete after the last use. SHERD_USES_ANY: backward may use
     * it never, once or several times in a micro-batch, in any order, nested, and differently on
     * each rank. The gradient is then zero at the first acquire for BACKWARD, has memory that the
     * plan shares with no other unit, and is complete at sherd_step or _prepare. The same then
     * holds for the units whose parameters this unit reads, directly or through other units. */
    int backward_uses;
    /* 1: this rank's gradients of this micro-batch, before the reduction, stay readable at their
     * address until sherd_step or _prepare is called. sherd_param_grad returns them, and the plan
     * assigns their memory to no other unit in the meantime. Default 0. */
    int retain_grads;
} sherd_unit_params;
SHERD_API void sherd_unit_params_init(sherd_unit_params *params);

typedef struct sherd_param_params {
    size_t      struct_size;
    const char *name;                  /* unique in the engine, required; copied */
    int         ndim;                  /* 0 .. SHERD_MAX_NDIM; 0: one element */
    size_t      shape[SHERD_MAX_NDIM]; /* a 0 among them: no elements */
    sherd_group group;                 /* default SHERD_GROUP_DEFAULT */
    int         frozen;                /* 1: no gradient, no state */
    /* Slices of ranks begin only at multiples of this many elements; 0 or 1: anywhere */
    size_t atom_elems;
    /* Default -1: the engine's compute type. SHERD_F32: parameter and gradient are fp32 even in a
     * bf16 or fp16 engine, and are sent as fp32 (docs/numerics.md). Seal refuses any other type
     * that differs from the engine's (E_NOTSUP). */
    int dtype;
} sherd_param_params;
SHERD_API void sherd_param_params_init(sherd_param_params *params);

/** Creates an engine. Holds a reference to `world`, and copies the values that it needs from
 *  `config`. Collective: the ranks compare their configurations. */
SHERD_API SHERD_MUST_USE sherd_status sherd_engine_create(sherd_world        *world,
                                                          const sherd_config *config,
                                                          sherd_engine      **out);

/* Declarations. Every rank makes the same declarations, before seal. Units and parameters have
 * names, so `params` is required for them. Each call is local; seal compares the models of all
 * ranks and names the first difference. A model has at most 2^17 units, 2^17 acquires in a pass,
 * and 2^20 parameters; a larger number is E_INVAL. */
SHERD_API SHERD_MUST_USE sherd_status sherd_group_add(sherd_engine             *engine,
                                                      const sherd_group_params *params,
                                                      sherd_group              *out);
SHERD_API SHERD_MUST_USE sherd_status sherd_unit_add(sherd_engine            *engine,
                                                     const sherd_unit_params *params,
                                                     sherd_unit              *out);
SHERD_API SHERD_MUST_USE sherd_status sherd_param_add(sherd_engine *engine, sherd_unit unit,
                                                      const sherd_param_params *params,
                                                      sherd_param              *out);
/** Declares that `unit` reads `param`, which belongs to another unit: while `unit` is acquired,
 *  `param` is readable too, and in backward the trainer may add to the gradient of `param`. */
SHERD_API SHERD_MUST_USE sherd_status sherd_unit_reads(sherd_engine *engine, sherd_unit unit,
                                                       sherd_param param);
/** Declares `unit` as the next one in the order of `pass`; a unit may be repeated. A pass for which
 *  this function is never called has a default order: FORWARD the order of declaration, BACKWARD
 *  the reverse of FORWARD, EVAL the order of FORWARD. A unit that is in no pass can be acquired at
 *  any time: its memory overlaps with no other unit's. */
SHERD_API SHERD_MUST_USE sherd_status sherd_pass_add(sherd_engine *engine, sherd_pass pass,
                                                     sherd_unit unit);
/** Does the same for a unit that is held past the next acquire: it is released after
 *  `held_acquires` further acquires of the pass. After the last acquire of FORWARD the acquires of
 *  BACKWARD count. A number larger than the remaining acquires means: to the end. The plan assigns
 *  disjoint memory to units that are held at the same time. A default order holds no unit, with one
 *  exception: the default order of EVAL holds the units that the list of FORWARD holds. */
SHERD_API SHERD_MUST_USE sherd_status sherd_pass_add_held(sherd_engine *engine, sherd_pass pass,
                                                          sherd_unit unit, size_t held_acquires);
typedef struct sherd_activation_params {
    size_t struct_size;
    size_t len_bytes; /* length for one micro-batch on one rank; at least 1 */
    /* Where the bytes wait between forward and backward: "none" (on the device), "cpu" (host
     * memory), "nvme" (files in sherd.activations.nvme_path); NULL, the default: the value of
     * sherd.activations.device. Copied */
    const char *device;
} sherd_activation_params;
SHERD_API void sherd_activation_params_init(sherd_activation_params *params);
/** Declares the activation of a unit: the bytes that its forward stores for its backward. The plan
 *  reserves memory for the activation; sherd_activation_put and _get move it. Called before seal,
 *  at most once for a unit, with the same arguments on all ranks. The passes must list the unit
 *  once for FORWARD and once for BACKWARD. Errors: E_STATE; E_INVAL (no such unit, a second
 *  declaration, no bytes, an unknown device, nvme without a folder); E_NOTSUP (a unit with
 *  SHERD_USES_ANY, or an engine without an optimizer; at seal, a unit that a pass lists more than
 *  once). */
SHERD_API SHERD_MUST_USE sherd_status sherd_activation_add(sherd_engine *engine, sherd_unit unit,
                                                           const sherd_activation_params *params);
/** Binds memory of the trainer to a parameter, at stages 0 to 2 and before seal. `data` and `grad`
 *  have the parameter's shape and type, row-major, unpadded; `grad` is NULL for a frozen parameter.
 *  Both remain the property of the caller and must outlive the engine. Bind all trained parameters
 *  of a unit or none, and likewise all of its frozen parameters or none; otherwise seal returns
 *  E_INVAL.
 *
 *  The engine writes new values to `data`. It reads `grad` when the gradient is complete (at
 *  release(BACKWARD); for a unit with SHERD_USES_ANY at the step) and zeroes it at the next
 *  acquire(BACKWARD). A bound parameter that is never filled starts from the values that `data` has
 *  at the first acquire; they must be the same on all ranks. From then on `data` is read-only, like
 *  the memory of sherd_param_data: the master weights are stored elsewhere, and the next update
 *  overwrites anything that the trainer wrote. Errors: E_NOTSUP at stage 3; E_INVAL also for memory
 *  on which the engine's device cannot compute. */
SHERD_API SHERD_MUST_USE sherd_status sherd_param_bind(sherd_engine *engine, sherd_param param,
                                                       void *data, void *grad);

/** Describes this training run with a text of the trainer's choice, for example the seed and the
 *  data, which the engine does not know. Every commit of state on NVMe stores the text, together
 *  with the accumulation and the micro-batch size. If an engine resumes state that was stored with
 *  other values, it logs a warning, sets sherd_engine_info.resume_differs, and continues. The
 *  trainer may refuse to continue. At most 255 bytes; copied. Local, before seal. Errors: E_INVAL
 *  (longer), E_STATE. */
SHERD_API SHERD_MUST_USE sherd_status sherd_engine_describe_run(sherd_engine *engine,
                                                                const char   *text);

/** Makes the plan, compares it with the plans of the other ranks, and allocates all memory. After
 *  seal the training loop allocates nothing, with one exception: with several ranks, the call that
 *  ends the filling allocates a little memory while the ranks compare their values. Collective,
 *  blocking. Errors: E_INVAL (the ranks' models differ, or a setting cannot be satisfied), E_NOMEM
 *  (the plan does not fit; the message says how much memory is missing and names the nearest
 *  setting that fits; the call may be repeated), E_STATE (already sealed). */
SHERD_API SHERD_MUST_USE sherd_status sherd_engine_seal(sherd_engine *engine);

/** Writes the initial values of a parameter's elements [first_elem, first_elem + count_elems),
 *  row-major, to out[0 .. count_elems). The engine may ask for any range, in any order, and for
 *  some ranges twice. Every call on every rank must return the same values. The ranks compare
 *  values at the first acquire: all values of a parameter that each rank stores whole, and of a
 *  sliced parameter a few values at positions that are the same on all ranks. The comparison
 *  detects a different seed or file. It does not always detect a difference that is confined to the
 *  slice of one rank. */
typedef sherd_status (*sherd_fill_fn)(void *ctx, size_t first_elem, size_t count_elems, float *out);
/** Fills `param` by calling `fill` on this thread for the elements that this rank stores, in
 *  ascending ranges of at most 256 Ki elements. If the parameter is sliced, it also calls `fill`
 *  for the values that the ranks compare. Local. Called after seal and before the first acquire.
 *
 *  Parameters may be filled in any order. On NVMe, filling in the order of declaration or its
 *  reverse writes each value once and reads none, if the ring has four buffers or more. For a
 *  trainable parameter whose state was resumed (sherd_engine_query: is_resumed) the values remain,
 *  and `fill` is not called. Errors: the status that `fill` returns, E_STATE, E_INVAL, E_IO. */
SHERD_API SHERD_MUST_USE sherd_status sherd_param_fill(sherd_engine *engine, sherd_param param,
                                                       sherd_fill_fn fill, void *ctx);

/** Fills `param` when only one rank has the values. The call runs `fill` on rank `root` only, in
 *  ascending ranges of 64 Ki elements, and sends the values to all ranks. `fill` and `ctx` of the
 *  other ranks are ignored. Collective, blocking. Errors: those of sherd_param_fill, on all ranks;
 *  E_INVAL (the ranks' arguments differ), E_NOMEM. */
SHERD_API SHERD_MUST_USE sherd_status sherd_param_fill_from(sherd_engine *engine, sherd_param param,
                                                            int root, sherd_fill_fn fill,
                                                            void *ctx);

/** Acquires a unit: makes its parameters readable and, for BACKWARD, its gradients writable. The
 *  gradients are zero at the first acquire of a micro-batch.
 *
 *  Order      Every rank acquires and releases the same units in the same order, also for EVAL. The
 *             declared order is prefetched. A different order is legal and slower.
 *
 *             It is an error if only some ranks acquire a unit. The error is found in one of two
 *             ways. (1) At the next boundary, sherd_step returns E_STATE, names the unit and the
 *             ranks, and drops the window. (2) Earlier, in a *synchronizing* operation, in which
 *             ranks wait for each other. The ranks then get E_INVAL with both calls, or run into
 *             the time limit, and the world is lost. The synchronizing operations are:
 *             - the reductions of BACKWARD at stages 2 and 3, and at all stages with
 *               "deterministic";
 *             - the gathers at stage 3 on GPUs, between hosts, and with offload_param;
 *             - after a queued step, the gathers at stages 1 and 2 too, on GPUs and between hosts;
 *             - every acquire at stage 3 with SHERD_DEBUG=1.
 *
 *             Units with SHERD_USES_ANY are checked only for EVAL. If gathers do not synchronize
 *             the ranks, a rank may acquire such a unit any number of times, or never. If at least
 *             one rank used it in a micro-batch, each other rank contributes a gradient of zero.
 *
 *  Places     A unit has one place in memory. Other units use the place while the plan does not
 *             need it for this unit. The call fails with E_NOMEM if the place overlaps the place of
 *             a held unit, or if the place of its gradient overlaps the place of an open gradient.
 *             A gradient is open from its first use to its last use if backward uses the unit more
 *             than once or if other units read its parameters, even while no unit is held. With
 *             SHERD_USES_ANY it is open until the step.
 *
 *             Acquires of different units may nest if the passes declare it (sherd_pass_add_held)
 *             or if the places do not overlap. A unit may be acquired again while it is acquired,
 *             and must be released as often. For BACKWARD only a unit with SHERD_USES_ANY may be
 *             acquired twice at a time.
 *
 *  Errors     A call that fails changes nothing.
 *             E_STATE      the state of the engine does not allow the call
 *             E_INVAL      another rank makes another call, in a synchronizing operation (above)
 *             E_NOMEM      the place is taken; the message names the unit
 *             E_PEER_LOST  a rank is lost, or the update of another rank makes no progress within
 *                          the time limit of the world
 *             E_IO         (1) The drive of this rank failed. Acquire again, or call
 *                          sherd_step_discard. With nccl, and with mpi over several hosts, the
 *                          world is lost for the other ranks. (2) A queued update failed on this
 *                          rank or another. Every later acquire returns the same error, and the
 *                          message says so. Call sherd_step_undo where it is possible, or
 *                          sherd_checkpoint_load; or call sherd_engine_destroy and resume in a new
 *                          engine.
 */
SHERD_API SHERD_MUST_USE sherd_status sherd_unit_acquire(sherd_engine *engine, sherd_unit unit,
                                                         sherd_pass pass);
/** Releases a unit. The unit is released even if the call fails. If its gradient cannot be reduced,
 *  the next sherd_step fails with the same error and drops the window. With several ranks, the
 *  other ranks then wait in their step, and this rank accepts only sherd_step_discard. Errors:
 *  E_STATE (not acquired), E_IO, E_PEER_LOST. */
SHERD_API SHERD_MUST_USE sherd_status sherd_unit_release(sherd_engine *engine, sherd_unit unit,
                                                         sherd_pass pass);
/** Returns the parameter's elements in its type (sherd_param_params.dtype), row-major. The pointer
 *  is valid while the parameter's unit, or a unit that reads it, is acquired; at any other time the
 *  call returns NULL, with sherd_last_error(). Do not write to this memory: only the optimizer
 *  changes parameters. Whether a write persists depends on the stage and the ranks. With
 *  SHERD_DEBUG=1 the release after a write fails (E_STATE) and names the unit and the parameter.
 *  (The pointer is not const, so that programs can store it as a pointer to their element type.) */
SHERD_API void *sherd_param_data(sherd_engine *engine, sherd_param param);
/** Returns the gradient, to which the trainer adds. It has the parameter's type and shape, and is
 *  valid while the unit is acquired for BACKWARD. With retain_grads it is read-only from the last
 *  release on, and stays valid until sherd_step or _prepare is called. */
SHERD_API void *sherd_param_grad(sherd_engine *engine, sherd_param param);
/** Return the addresses that sherd_param_data and sherd_param_grad return whenever the unit is
 *  acquired. The addresses are constant from seal to destroy, so a table, a view or a captured
 *  graph may hold them. For bound parameters they are addresses of the trainer's memory. While the
 *  unit is not acquired, the memory may contain bytes of another unit, or NaN with SHERD_DEBUG=1
 *  (except a gradient with retain_grads). Local. NULL with sherd_last_error(): before seal
 *  (E_STATE), the gradient of a frozen parameter (E_STATE), a gathered parameter with
 *  sherd.free_packing, which has no fixed address (E_NOTSUP). */
SHERD_API void *sherd_param_address(sherd_engine *engine, sherd_param param);
SHERD_API void *sherd_param_grad_address(sherd_engine *engine, sherd_param param);

/* Declared in dlpack.h. Only programs that read its fields need that header. */
typedef struct DLManagedTensorVersioned DLManagedTensorVersioned;

/** Wraps the memory at sherd_param_address in a DLPack tensor (version 1.0), which PyTorch, CuPy
 *  and others read in place; in Python through a capsule named "dltensor_versioned". The tensor is
 *  row-major with strides, on the engine's device, and flagged read-only, because only the
 *  optimizer changes parameters. The call copies nothing and waits for nothing: the consumer works
 *  on sherd_engine_stream, or the two streams follow each other (sherd_cuda_follow). The elements
 *  of the tensor are the parameter while its unit is acquired. At other times they are undefined.
 *
 *  The tensor does not keep the engine alive. After sherd_engine_destroy (for a bound parameter:
 *  after the trainer's memory is freed) no program may touch its elements. The consumer of the
 *  tensor calls its deleter once, on any thread, also after sherd_engine_destroy. Called after
 *  seal. Local. Errors: E_STATE, E_NOTSUP (as sherd_param_address), E_NOMEM. */
SHERD_API SHERD_MUST_USE sherd_status sherd_param_dlpack(sherd_engine *engine, sherd_param param,
                                                         DLManagedTensorVersioned **out);
/** Does the same for sherd_param_grad_address; the consumer adds to the tensor. Its elements are
 *  the gradient while the unit is acquired for BACKWARD, or while the gradient is retained. E_STATE
 *  also for a frozen parameter. */
SHERD_API SHERD_MUST_USE sherd_status sherd_param_grad_dlpack(sherd_engine              *engine,
                                                              sherd_param                param,
                                                              DLManagedTensorVersioned **out);
/** Returns the memory [sherd_activation_params.len_bytes] into which the unit's forward writes its
 *  activation. It is on the engine's device and aligned to 4096 bytes. The trainer's lane waits
 *  until the memory is free. The memory belongs to the trainer until the unit is released for
 *  FORWARD; from then on the engine may move its bytes to another space. An activation is discarded
 *  when the micro-batch ends or the window is dropped. For EVAL the memory is scratch memory, which
 *  is discarded at the release. Called while the unit is acquired for FORWARD or EVAL. Local: some
 *  ranks may put an activation while others do not. Does not block, except with
 *  device nvme.
 *  Errors  E_STATE (not acquired; no activation is declared for the unit; already put; the place
 *          contains an activation that cannot be moved, because the units do not run in the order
 *          of the passes: the message names it), E_IO.
 */
SHERD_API SHERD_MUST_USE sherd_status sherd_activation_put(sherd_engine *engine, sherd_unit unit,
                                                           void **out);
/** Returns the activation on the device, at the address that sherd_activation_put returned. The
 *  trainer's lane waits for the bytes. They are read-only, and invalid after the unit is released
 *  for BACKWARD. Called while the unit is acquired for BACKWARD. Local. Blocks only for a drive.
 *  Errors  E_STATE (not acquired; nothing was put in this micro-batch), E_IO (the bytes are lost:
 *          the window has to be dropped with sherd_step_discard). */
SHERD_API SHERD_MUST_USE sherd_status sherd_activation_get(sherd_engine *engine, sherd_unit unit,
                                                           void **out);
/** Returns the factor by which the trainer multiplies the loss (or its gradient) before backward.
 *  It is constant between boundaries, and 1 unless fp16 is on. */
SHERD_API float sherd_loss_scale(const sherd_engine *engine);
/** Returns the learning rate that the configuration sets for a group in update number `step`, which
 *  counts from 1: the rate of the schedule, or the group's own rate without a schedule. Rates that
 *  a trainer passed to sherd_step_apply are ignored. NaN for an engine, group or step that does not
 *  exist, and for an engine without updates (optimizer.type none). Local. */
SHERD_API double sherd_group_lr(const sherd_engine *engine, sherd_group group, int64_t step);

typedef struct sherd_step_report {
    size_t   struct_size;
    int      is_boundary;   /* 1: this call ended a window, so the optimizer may update */
    int      was_updated;   /* 1: parameters changed in this call */
    int      has_overflow;  /* 1: a gradient was Inf or NaN; by default the update is skipped */
    int      reserved;      /* keeps the layout; zero */
    int64_t  micro_step;    /* micro-batches seen by this engine */
    int64_t  step;          /* updates done (skipped ones not counted) */
    int64_t  skipped_steps; /* boundaries skipped for overflow; discarded ones are not counted */
    double   grad_norm;     /* L2 norm of the mean gradient before clipping; at a boundary only */
    double   grad_sumsq;    /* its square, to be summed over the parts of a model */
    double   clip_coefficient; /* factor of the gradients; 1: not clipped */
    double   lr; /* rate of the first group with a trainable parameter, used in this update */
    double   loss_scale;  /* scale that was used in this window */
    uint64_t fingerprint; /* of all master weights after an update or a skip; 0 from prepare,
                             and after sherd_step_queue until sherd_step_wait */
    /* Times and bytes of this rank since the last boundary; set at a boundary. A wait is the time
     * for which the trainer's thread was blocked; it is 0 if other work hid all of it. update_s,
     * copy_s and the bytes include the whole update of this boundary and the reads ahead for it;
     * for a queued update they are complete after sherd_step_wait. Parameters that are read ahead
     * count when they arrive, which may be in the next report. */
    double   wait_read_s;  /* for state (and spilled gradients) from NVMe */
    double   wait_write_s; /* for buffers to be written, and for the commit */
    double   wait_param_s; /* for parameters from NVMe, in acquire */
    double   update_s;     /* the optimizer's kernels */
    double   norm_s;       /* the norm of the gradient */
    uint64_t nvme_read_bytes, nvme_written_bytes;
    uint64_t link_down_bytes, link_up_bytes; /* device to host, host to device */
    /* Exposed: the trainer's work was blocked during this time. Hidden: the engine's work
     * overlapped with it. On a GPU, times of the GPU's work are measured only with
     * wall_clock_breakdown or SHERD_TRACE, and are 0 otherwise. */
    double wait_gather_s; /* exposed: for parameters of other ranks */
    double wait_reduce_s; /* exposed: for reductions of gradients */
    double step_s;        /* exposed: the boundary, from the last backward to the next forward */
    double gather_s, reduce_s, copy_s; /* duration of the transfers, exposed or hidden */
    double compute_s;                  /* the trainer's work, between acquire and release */
    double exposed_s;                  /* total of the engine: the waits and the boundary */
    double hidden_s;                   /* part of gathers and reductions that was not waited for */
    /* Times of the update of this boundary if it overlapped with the trainer's calls
     * (sherd_step_queue); set after sherd_step_wait, else 0. If the next boundary waits for this
     * update, the step_s of that boundary includes the wait. */
    double beside_s;                      /* from its beginning to the end of its commit */
    double beside_read_s, beside_write_s; /* parts of beside_s: the update waited for the drive */
    double wait_update_s;                 /* exposed: the trainer's thread waited for it */
    /* With all state on NVMe: the step whose state is complete on the drive; between
     * sherd_step_queue and sherd_step_wait, the step before. -1 if some state is not on NVMe, for
     * example with a ratio below 1. 0 if this call is not a boundary. */
    int64_t stored_step;
    double  wait_activation_s; /* exposed: for moves of activations, in both directions */
} sherd_step_report;
SHERD_API void sherd_step_report_init(sherd_step_report *report);

typedef struct sherd_step_params {
    size_t struct_size;
    /* norm to clip by, from the trainer; NaN: the engine's own norm */
    double grad_norm;
    double clip_coefficient; /* coefficient to clip with; NaN: computed from the norm */
    /* 1: treat the step as an overflow, even if this world saw none */
    int           overflow;
    int           group_count; /* length of each of the lists below */
    const double *group_lr;    /* rate per group, in order of creation; NULL: the schedule's;
                                       a NaN entry: the schedule's for that group */
    /* The same, for schedules that change more than rates. NULL, or a NaN entry: the group's own
     * value. */
    const double *group_beta1;        /* the first beta, or the momentum: below 1 */
    const double *group_weight_decay; /* the weight decay */
    int           is_queued;          /* 1: return when the update is queued */
    int           reserved;           /* keeps the layout; zero */
} sherd_step_params;
SHERD_API void sherd_step_params_init(sherd_step_params *params);

/** Ends a micro-batch: call it once for each micro-batch, after its backward. At the boundary it
 *  reduces the remaining gradients, computes the norm, clips, updates and publishes. `out` may be
 *  NULL. Collective.
 *
 *  Errors: E_STATE if the call is not allowed (a unit is acquired, a step is prepared, an
 *  evaluation has not ended); nothing changes. In the following cases the window is dropped,
 *  nothing is updated, and micro_step has the value that it had before the window: a micro-batch
 *  had no backward, or the ranks used different units (E_STATE); a gradient could not be reduced or
 *  read (E_IO, E_NOMEM; the other ranks get E_STATE, with the rank and its message, and all ranks
 *  must call sherd_step_discard); the deterministic mode cannot add a gradient (E_NUMERIC).
 *  E_NUMERIC is also returned for an overflow at fp16.min_loss_scale; the step is skipped like any
 *  other overflow. After a failure in the update itself, call sherd_step_undo where it is possible,
 *  or sherd_checkpoint_load, or destroy the engine. */
SHERD_API SHERD_MUST_USE sherd_status sherd_step(sherd_engine *engine, sherd_step_report *out);
/** Does the same as sherd_step, but returns when the ranks have agreed on the norm. The update is
 *  queued. A device makes its part during the next micro-batch. A thread of the engine updates the
 *  blocks that are updated on the host, with their transfers and their commit. sherd_step_wait
 *  returns the report. An acquire, also for EVAL, waits for the update of its unit on all ranks.
 *  Below stage 3 on a device it also waits for all blocks that the device updates. The following
 *  calls wait for the whole update: sherd_step_wait, the next boundary, the calls that read, write,
 *  save, load, export or undo values or state, the fingerprints, sherd_engine_set_step and
 *  sherd_engine_destroy. sherd_step_discard and sherd_eval_begin do not wait. docs/offload.md lists
 *  the updates that cannot be queued. For these updates, and on a CPU without offload, the call
 *  waits as sherd_step does.
 *
 *  All ranks end a window by the same call: sherd_step, _queue or _prepare. Otherwise the window is
 *  dropped, and E_STATE names two ranks that differ. Collective. Errors: those of sherd_step. A
 *  failure in the update is returned by an acquire that waits for the unit (E_IO; also on the other
 *  ranks of the host), by the next call in which the ranks wait for each other, or by a call that
 *  waits for the update. After the failure the engine refuses calls until sherd_step_undo or
 *  sherd_checkpoint_load. sherd_engine_destroy then preserves the files of the state, and logs a
 *  failure that no call has returned. */
SHERD_API SHERD_MUST_USE sherd_status sherd_step_queue(sherd_engine *engine);
/** Begins a step in two parts. If the call is not a boundary, it only counts (report: is_boundary
 *  0), and no second part follows. At a boundary the trainer chooses the second part:
 *  sherd_step_apply or sherd_step_discard must follow. */
SHERD_API SHERD_MUST_USE sherd_status sherd_step_prepare(sherd_engine      *engine,
                                                         sherd_step_report *out);
/** Makes the update of a prepared step. Before anything is written, the ranks compare their
 *  choices. If `params` differ (E_INVAL), or another rank discards (E_STATE), the step stays
 *  prepared: call apply again, or discard. After a later failure (E_IO) the engine is poisoned.
 *  With `is_queued` the call returns when the update is queued; the comment of sherd_step_queue
 *  describes the calls that follow. */
SHERD_API SHERD_MUST_USE sherd_status sherd_step_apply(sherd_engine            *engine,
                                                       const sherd_step_params *params);
/** Drops the window. Its gradients are lost. Every unit that this rank still has acquired, for any
 *  pass, counts as released, and its memory must not be used any more. Nothing else changes.
 *  Training continues from the first micro-batch of the window as if the window had not begun.
 *  micro_step has the value that it had before the window; after a prepared boundary it does not
 *  change, because all ranks have seen the window.
 *
 *  Call it instead of sherd_step_apply, or at any other time after seal. It is the right call after
 *  an exception in forward, backward or an evaluation, and after an acquire or release that failed.
 *
 *  Collective, blocking: it returns when all ranks have called it, independently of where each of
 *  them stopped. A rank that does not know of the discard continues to its next synchronizing call
 *  (a gather or a reduction in which ranks wait for each other, a step, or a call of the world).
 *  The call fails with E_STATE and says that the window was dropped, and the rank must call
 *  sherd_step_discard too. With nccl, and with mpi over several hosts, a collective that some ranks
 *  have begun cannot be cancelled. All ranks must then have acquired and released the same units;
 *  otherwise the world is lost, with a message that names a rank or at the time limit. If one world
 *  has several engines, synchronizing calls of the other engines fail too.
 *
 *  Errors: E_STATE (before seal; after the failure of an update was reported on all ranks: call
 *  sherd_step_undo), E_PEER_LOST. After a queued step, the call does not affect the update in
 *  flight. */
SHERD_API SHERD_MUST_USE sherd_status sherd_step_discard(sherd_engine *engine);
/** Writes the L2 norm of each parameter's gradient to out[0 .. count), by parameter number; `count`
 *  is the number of parameters. Like grad_norm of the report, it is the norm of the mean over the
 *  window, unscaled, before clipping, from an exact sum: the same bits in every layout of the
 *  parameter. 0 for a frozen parameter. NaN for a gradient with an Inf or a NaN; with
 *  "deterministic", one of them makes all norms NaN. Call it between sherd_step_prepare at a
 *  boundary and sherd_step_apply or _discard. Allocates nothing; reads the gradient once.
 *  Collective, blocking. Errors: E_INVAL (count), E_STATE (nothing is prepared), E_IO. After an
 *  error `out` is undefined. */
SHERD_API SHERD_MUST_USE sherd_status sherd_grad_norms(sherd_engine *engine, double *out,
                                                       size_t count);
/** Returns the complete report of the last boundary. The report of sherd_step lacks only the times
 *  of work that a device has not finished yet ("wall_clock_breakdown", SHERD_TRACE). These times
 *  count for the next report, unless this call, which waits for the work, is made before the next
 *  micro-batch. Available on every rank. Between sherd_step_queue and the next boundary, the call
 *  also waits for the update and adds its fingerprint to the report; the first call is then
 *  collective. In all other cases the call is local. At stages 1 and 2, work that is enqueued on
 *  the compute stream after this call (on the CPU: code after it) finds the new values at
 *  sherd_param_address, without an acquire. Errors: E_STATE (before seal), E_INVAL, E_PEER_LOST,
 *  E_DEVICE. */
SHERD_API SHERD_MUST_USE sherd_status sherd_step_wait(sherd_engine *engine, sherd_step_report *out);
/** Makes the next sherd_step or _prepare a boundary even if the window is short. The mean is taken
 *  over the micro-batches that the window contains. With sherd.open_windows a window ends only in
 *  this way. The next step may end a micro-batch; or, if the data have ended, it may follow the
 *  previous step without another backward. All ranks must make this call at the same time of the
 *  window. */
SHERD_API SHERD_MUST_USE sherd_status sherd_step_close_window(sherd_engine *engine);
/** Restores the state before the last update, including parameters and counters. After an update
 *  that failed, it restores the state before the failed update, and the engine is usable again. The
 *  call restores a commit; filling and updates make commits. Steps that were skipped for an
 *  overflow since the commit are undone too, in the counters and the loss scale. The call works
 *  once, because it uses up the spare generation; the next update makes a new one. Collective.
 *  Errors: E_NOTSUP (no spare generation exists; one exists if all state is on NVMe), E_STATE (no
 *  update yet; already undone; a checkpoint since the update took the space of the spare
 *  generation, as the first checkpoint after sherd_param_write may), E_IO (a drive failed). If some
 *  ranks may have restored the state when E_IO is returned, the engine accepts only another undo,
 *  which restores it on all ranks, or destroy. A run that resumes then continues from one of the
 *  two states. */
SHERD_API SHERD_MUST_USE sherd_status sherd_step_undo(sherd_engine *engine);

/** Writes a number of the trainer's own, such as the loss, to the files of the configuration's
 *  csv_monitor and tensorboard. It is written under `tag` ("Train/Samples/train_loss"; 1 to 127
 *  printable ASCII characters). Its x value is the number of samples that all ranks have seen so
 *  far, like that of the numbers of the last boundary. Does nothing on ranks other than 0, before
 *  seal, and if no monitor is on. A failure to write is reported in the log. Local; writes a file.
 *  Errors: E_INVAL, E_STATE. */
SHERD_API SHERD_MUST_USE sherd_status sherd_monitor_write(sherd_engine *engine, const char *tag,
                                                          double value);

/* -------------------------------------------------- evaluation --- */

typedef struct sherd_eval_params {
    size_t struct_size;
    /* Number of units that stay gathered when they are released, at most sherd.eval_keep_units;
     * SIZE_MAX, the default: sherd.eval_keep_units */
    size_t keep_units;
} sherd_eval_params;
SHERD_API void sherd_eval_params_init(sherd_eval_params *params);

/** Begins an evaluation in many passes over parameters that do not change, such as the generation
 *  of text. Until sherd_eval_end, the following calls return E_STATE: a step, sherd_param_write,
 *  sherd_import_safetensors, sherd_import_raw, sherd_engine_set_step, sherd_step_undo and
 *  sherd_checkpoint_load.
 *
 *  At stage 3, the first `keep_units` units that the order of EVAL gathers stay gathered when they
 *  are released, so that their next acquire moves no data. sherd.eval_keep_units makes the plan
 *  reserve places for them that no other unit of EVAL uses. An acquire for another pass may take
 *  one of these places; the unit is then gathered again. Below stage 3, `keep_units` has no
 *  effect. Passes of EVAL are legal without this call too; they gather each unit each time.
 *
 *  Collective, blocking, with the same keep_units on every rank. No unit may be acquired and no
 *  step prepared; a window may be open. sherd_step_discard also ends the evaluation.
 *
 *  Errors     E_STATE, E_INVAL (keep_units is larger than the number of reserved places; the ranks'
 *             arguments differ). If no unit was acquired before, also the errors of the first
 *             acquire.
 */
SHERD_API SHERD_MUST_USE sherd_status sherd_eval_begin(sherd_engine            *engine,
                                                       const sherd_eval_params *params);
/** Ends the evaluation and drops the units that stayed gathered. Collective, blocking; no unit may
 *  be acquired. E_STATE. */
SHERD_API SHERD_MUST_USE sherd_status sherd_eval_end(sherd_engine *engine);

/* -------------------------------------------------- fingerprints --- */

/** Computes the fingerprint from the state: the sum modulo 2^64, over all elements, of a mix of
 *  (global element index, bits of the fp32 master weight); see docs/numerics.md. Collective. */
SHERD_API SHERD_MUST_USE sherd_status sherd_engine_fingerprint(sherd_engine *engine, uint64_t *out);
/** Computes the contribution of one parameter to the fingerprint, which shows where two training
 *  runs differ. Collective; takes as long as reading the parameter once. */
SHERD_API SHERD_MUST_USE sherd_status sherd_param_fingerprint(sherd_engine *engine,
                                                              sherd_param param, uint64_t *out);

/* -------------------------------------------------------------- values --- */

/* The values of a parameter that a sealed engine has, by name; see docs/values.md. The other parts
 * of the optimizer's state are values too: "exp_avg" and "exp_avg_sq" for AdamW, Adam and LAMB. */
typedef const char *sherd_value;
#define SHERD_MASTER "master" /* the weights that the optimizer updates, fp32 */
/* the weights that passes read, in the compute type; the only value of a frozen parameter */
#define SHERD_COMPUTE "compute"
#define SHERD_GRAD    "grad" /* of a prepared step: the mean gradient, unscaled, before clipping */

/** Reads elements [first_elem, first_elem + count_elems) of a parameter, row-major, into out[0 ..
 *  count_elems), as exact fp32, wherever they are stored. Collective, blocking: every rank passes
 *  the same arguments, except that `out` may be NULL on a rank that does not need the values.
 *  Values that only one rank stores are sent in portions of 256 KiB.
 *
 *  No unit may be acquired, and all parameters must be filled. Otherwise the call may be made at
 *  any time after seal, also in a window. Like the first acquire, it ends the filling. SHERD_GRAD
 *  can be read between sherd_step_prepare at a boundary and sherd_step_apply or _discard. Errors:
 *  E_INVAL (no such value or range; the ranks' arguments differ), E_STATE (a unit is acquired; a
 *  frozen parameter has only SHERD_COMPUTE; nothing is prepared), E_NOMEM, E_IO. After an error
 *  `out` is undefined. */
SHERD_API SHERD_MUST_USE sherd_status sherd_param_read(sherd_engine *engine, sherd_param param,
                                                       sherd_value value, size_t first_elem,
                                                       size_t count_elems, float *out);
/** Writes the values `in` to a range of a parameter, in all copies at once. SHERD_MASTER writes the
 *  master weights and, rounded, the weights that passes read, on all ranks and in bound memory.
 *  SHERD_COMPUTE writes the rounded values to both, so that both are equal. The name of a part of
 *  the state writes only this part. Any fp32 value is accepted, including NaN. Later updates use
 *  the new state, and the fingerprint changes with it.
 *
 *  Collective, blocking, with the same arguments and values on every rank (compared). Called at a
 *  boundary: no unit is acquired, and the next window has not begun. State on NVMe is committed as
 *  a new generation, so sherd_step_undo is impossible until the next update. Errors: those of
 *  sherd_param_read. After E_IO, if all state is on NVMe, no rank has written anything; otherwise,
 *  and for a frozen parameter, the engine is lost. */
SHERD_API SHERD_MUST_USE sherd_status sherd_param_write(sherd_engine *engine, sherd_param param,
                                                        sherd_value value, size_t first_elem,
                                                        size_t count_elems, const float *in);
/** Returns the range of a parameter whose values and state this rank owns. At stages 1 to 3 no
 *  other rank owns a part of it, and it may be empty (count 0); at stage 0 it is the whole
 *  parameter on every rank. For programs that write files of their own. Local. Called after
 *  seal. */
SHERD_API SHERD_MUST_USE sherd_status sherd_param_local(sherd_engine *engine, sherd_param param,
                                                        size_t *first_elem_out,
                                                        size_t *count_elems_out);
/** Does the same as sherd_param_read, for a range inside the owned range, on this rank only. Local,
 *  blocking. Called after the first acquire. Errors: those of sherd_param_read; E_INVAL if this
 *  rank does not own the range. */
SHERD_API SHERD_MUST_USE sherd_status sherd_param_read_local(sherd_engine *engine,
                                                             sherd_param param, sherd_value value,
                                                             size_t first_elem, size_t count_elems,
                                                             float *out);
/** Sets the counters of a training run that continues in this engine: updates done, which schedules
 *  and bias corrections use, and micro-batches seen. Collective. Called after seal, either before
 *  the first acquire or at a boundary. At a boundary the call makes a commit, as sherd_param_write
 *  does. Errors: E_INVAL (below 0; the ranks' arguments differ), E_STATE, E_IO. */
SHERD_API SHERD_MUST_USE sherd_status sherd_engine_set_step(sherd_engine *engine, int64_t step,
                                                            int64_t micro_step);
/* --------------------------------------------------------------- blobs --- */

/* Blobs: bytes of the trainer that are saved with the state, such as its position in the data or
 * the state of its random numbers. */
#define SHERD_BLOB_KEY_BYTES 127 /* most bytes of a key; printable ASCII */
/* Most bytes of all small blobs of a rank, including keys and 24 bytes for each. On ranks other
 * than 0, the blobs of the run, which are rank 0's, do not count. */
#define SHERD_BLOB_MAX_BYTES (1024 * 1024)

typedef struct sherd_blob_params {
    size_t struct_size;
    int    is_per_rank; /* 0: one blob for the run, rank 0's; 1: each rank has its own */
    int    rank;        /* for sherd_blob_get with is_per_rank; below 0, the default: this rank */
    /* for sherd_blob_set; 1: of any size, and saved only by checkpoints, not by commits of state on
     * NVMe */
    int is_large;
} sherd_blob_params;
SHERD_API void sherd_blob_params_init(sherd_blob_params *params);

/** Stores a copy of data[0 .. len_bytes) under the key, and replaces an earlier copy; data NULL
 *  (and len_bytes 0) removes the blob. A checkpoint saves the blob, and so does a commit of state
 *  on NVMe. The first acquire of a training run makes a commit of the filled values, and each
 *  boundary makes one. So set a blob that describes the state after a step just before its
 *  sherd_step. sherd_step_undo and a resume restore the committed blobs and do not change large
 *  ones. If a blob is not per rank, each rank has the copy that it set itself, but only rank 0's is
 *  saved, and all ranks find rank 0's after a load. Local; at any time after create. Errors:
 *  E_INVAL (key, too many bytes of small blobs), E_NOMEM; the earlier blob then remains. */
SHERD_API SHERD_MUST_USE sherd_status sherd_blob_set(sherd_engine *engine, const char *key,
                                                     const void *data, size_t len_bytes,
                                                     const sherd_blob_params *params);
/** Copies the blob to `data`, which has room for *len_bytes_inout bytes, and sets *len_bytes_inout
 *  to the blob's length. It sets the length also if `data` is NULL, and if the room is too small
 *  (E_INVAL). After a load of a checkpoint that another number of ranks saved, rank r has the blobs
 *  of the saved ranks r, r + world_size and so on. Local. E_INVAL: no blob has that key. */
SHERD_API SHERD_MUST_USE sherd_status sherd_blob_get(sherd_engine *engine, const char *key,
                                                     void *data, size_t *len_bytes_inout,
                                                     const sherd_blob_params *params);

/* --------------------------------------------------------- checkpoints --- */

/* A checkpoint is a folder DIR/TAG with one data file of each rank (safetensors) and a manifest; it
 * is complete or does not exist. DIR/latest names the newest one. Engines may save different tags
 * into one folder at the same time. docs/checkpoints.md is the page for users,
 * docs/checkpoint-format.md the page for programs that read the files. */

/** Receives the progress of this rank, in bytes, on the calling thread. */
typedef void (*sherd_progress_fn)(void *ctx, uint64_t done_bytes, uint64_t all_bytes);

typedef struct sherd_save_params {
    size_t struct_size;
    /* 1: the call returns when the state is copied in memory, and a thread of this rank writes it;
     * 0: the call returns when all of the state is on the medium; below 0, the default: the value
     * of checkpoint.async */
    int is_async;
    /* Number of complete checkpoints that remain in the folder, including this one; 0: all; below
     * 0, the default: the value of checkpoint.keep_last */
    int               keep_last;
    sherd_progress_fn progress; /* may be NULL */
    void             *progress_ctx;
    /* 1: the call may be made inside a window, too. The checkpoint then contains the state after
     * the last update, and its micro_step is that of the last update. The gradients of the window
     * are not saved, and remain in the engine */
    int may_be_in_window;
} sherd_save_params;
SHERD_API void sherd_save_params_init(sherd_save_params *params);

/** Saves parameters, optimizer state, counters, loss scaler and blobs to DIR/TAG (NULL: "step-" and
 *  the number of updates, six digits). Creates missing folders, and replaces a checkpoint of the
 *  same name atomically. Every rank writes its own part; nothing is gathered. Collective: all ranks
 *  pass the same names, and the checkpoint is complete for all or for none. is_async says how long
 *  the call blocks. It first waits for an earlier asynchronous save. Call it between steps: no unit
 *  is acquired, and, without may_be_in_window, the window has had no backward pass and no
 *  sherd_step. A failure does not affect earlier checkpoints, and training may continue. Errors:
 *  E_STATE (a window is open; another engine is saving this tag), E_INVAL (tag, ranks that differ),
 *  E_IO (too little space, with the number of missing bytes; a folder that a rank does not see; a
 *  file or folder of this name that is no checkpoint; a failure of the drive), E_NOTSUP
 *  (asynchronous without checkpoint.async, a build without libxxhash), E_NOMEM. */
SHERD_API SHERD_MUST_USE sherd_status sherd_checkpoint_save(sherd_engine *engine, const char *dir,
                                                            const char              *tag,
                                                            const sherd_save_params *params);

/* Report of the last save or load of this rank. */
typedef struct sherd_checkpoint_report {
    size_t   struct_size;
    int      is_running; /* 1: an asynchronous save has not ended */
    int      reserved;   /* keeps the layout; zero */
    int64_t  step;       /* number of updates that the checkpoint contains */
    double   blocked_s;  /* time for which the trainer was blocked */
    double   all_s;      /* time until the checkpoint was complete */
    uint64_t bytes;      /* of this rank's data, read or written */
    uint64_t kept_bytes; /* already in an earlier checkpoint: linked, not written again */
    /* of the parameters of all ranks that were saved or loaded; 0 until it is complete */
    uint64_t fingerprint;
} sherd_checkpoint_report;
SHERD_API void sherd_checkpoint_report_init(sherd_checkpoint_report *report);
/** Waits until an asynchronous save is complete, and returns its failure if it had one. A boundary
 *  that finds the save complete or failed ends it too, and continues. The failure is then returned
 *  by this call, or by the next save or load, which does nothing else. `out` may be NULL.
 *  Collective while a save is in progress. E_IO. */
SHERD_API SHERD_MUST_USE sherd_status sherd_checkpoint_wait(sherd_engine            *engine,
                                                            sherd_checkpoint_report *out);
/** Returns the same report without waiting; is_running says whether a save is in progress. A save
 *  ends at a boundary, on all ranks at the same boundary. sherd_checkpoint_wait returns its
 *  failure. Local. */
SHERD_API SHERD_MUST_USE sherd_status sherd_checkpoint_query(const sherd_engine      *engine,
                                                             sherd_checkpoint_report *out);

typedef struct sherd_load_params {
    size_t struct_size;
    /* 1: parameters only; other state begins at zero, and counters do not change */
    int weights_only;
    int reserved; /* keeps the layout; zero */
    /* Patterns of names, as in a shell (fnmatch). may_miss: parameters of this model that the
     * checkpoint may lack; their values do not change, or they are filled afterwards. may_be_extra:
     * parameters of the checkpoint that this model may lack. A parameter whose shape differs counts
     * as both missing and extra. */
    const char *const *may_miss;
    size_t             num_may_miss;
    const char *const *may_be_extra;
    size_t             num_may_be_extra;
    sherd_progress_fn  progress; /* may be NULL */
    void              *progress_ctx;
} sherd_load_params;
SHERD_API void sherd_load_params_init(sherd_load_params *params);

/** Loads the checkpoint DIR/TAG (NULL: the one that DIR/latest names) and continues from it. The
 *  training run that saved it may have had any world size, stage, tier, device and precision. Every
 *  rank reads the elements that it stores and compares them with the checksums. At the end the
 *  fingerprints must equal those of the manifest. Called after seal instead of filling, or later
 *  between steps; also for an engine whose update failed in the middle. Collective, blocking.
 *  Errors: E_STATE (a window is open), E_IO (no checkpoint of this name), E_INVAL (another model,
 *  or a damaged file: the message names the tensor and the rank), E_PEER_LOST. A failure before the
 *  first value is written does not change the engine. After a later failure it accepts only load,
 *  undo if a spare generation exists, or destroy. */
SHERD_API SHERD_MUST_USE sherd_status sherd_checkpoint_load(sherd_engine *engine, const char *dir,
                                                            const char              *tag,
                                                            const sherd_load_params *params);

/* -------------------------------------------------------------- device --- */

/** Returns the compute stream, a cudaStream_t as void *: the engine makes parameters readable on it
 *  and takes gradients from it. The trainer enqueues its kernels on this stream. It may use another
 *  stream instead if that stream waits for this one after acquire and this one waits for it before
 *  release. NULL on the CPU, where all work has ended when a call returns. Local. Valid until
 *  destroy. */
SHERD_API void *sherd_engine_stream(const sherd_engine *engine);
/** Makes a stream of the trainer's own the compute stream; it must outlive the engine. Handle 0 is
 *  the legacy default stream (cudaStreamLegacy), on which PyTorch works by default;
 *  sherd_engine_stream then returns cudaStreamLegacy. With cudaStreamPerThread, which is a
 *  different stream in every thread, only one thread may call the engine. Before seal. Local.
 *  Errors: E_STATE after seal, E_NOTSUP on the CPU. Typed: sherd_cuda.h. */
SHERD_API SHERD_MUST_USE sherd_status sherd_engine_set_stream(sherd_engine *engine, void *stream);
/** Copies between host memory and memory that the engine returned (sherd_param_data,
 *  sherd_param_grad), after all work of the compute stream. Blocks until the bytes are copied. For
 *  programs that work on the host with any backend. Local. E_DEVICE. */
SHERD_API SHERD_MUST_USE sherd_status sherd_copy(sherd_engine *engine, void *dst, const void *src,
                                                 size_t len_bytes);

/** Returns how many devices of a backend ("cuda") this process can use; 0, with the reason in
 *  sherd_last_error(), also for NULL. */
SHERD_API int sherd_device_count(const char *backend);

/** Creates a world over an NCCL communicator of the trainer, which remains the trainer's property
 *  and must outlive the world; call it through sherd_cuda.h, which wraps it. `comm` is an
 *  ncclComm_t. `params` may name a device; its transport must be NULL or "nccl". Collective over
 *  the communicator, over which the ranks exchange the address of their sockets, within
 *  SHERD_TIMEOUT. After a failure of the world, work of NCCL on the device may never end, and only
 *  the communicator's owner may end it: call ncclCommAbort(comm) before destroying the engine or
 *  the world, which wait for the device. E_NOTSUP in a build without NCCL. */
SHERD_API SHERD_MUST_USE sherd_status sherd_world_from_nccl_handle(void                     *comm,
                                                                   const sherd_world_params *params,
                                                                   sherd_world             **out);

/* -------------------------------------------------- weights in and out ---- */

/* A tensor in a file of weights, and the location of its elements: a parameter of the engine, or
 * memory of the caller. (Memory of the caller is for a buffer of a module that is in the file but
 * not in the engine, such as the statistics of a BatchNorm.) Calls take an array of them, all with
 * the struct_size of the first. */
typedef struct sherd_tensor_map {
    size_t      struct_size;
    const char *name;  /* in the file, required */
    const char *param; /* the parameter's name; NULL: data, or zeros, which only raw files have */
    const char *value; /* a part of the optimizer's state by its name; NULL: the weights */
    size_t      first_elem;            /* element of the parameter at which the tensor begins */
    int         ndim;                  /* 0 .. SHERD_MAX_NDIM; 0: one element */
    size_t      shape[SHERD_MAX_NDIM]; /* in the file; row-major, as in the parameter */
    int is_transposed; /* 2 dimensions: [i][j] of the file is [j][i] of a matrix in the parameter */
    /* For a tensor that belongs to no parameter, in safetensors only. data_dtype: its type as
     * safetensors names it ("F32", "I64", "BOOL" ...); NULL: no data. data: elements in host
     * memory, row-major, valid for the call. An export writes the elements of rank 0, an import
     * writes those of every rank. */
    const char *data_dtype;
    void       *data;
} sherd_tensor_map;
SHERD_API void sherd_tensor_map_init(sherd_tensor_map *map);

typedef struct sherd_export_params {
    size_t struct_size;
    /* In the order of the file; NULL: every parameter by its own name and shape */
    const sherd_tensor_map *tensors;
    size_t                  num_tensors;
    sherd_dtype             dtype;    /* of the file; default SHERD_F32 */
    size_t            max_file_bytes; /* most data in one file of a folder; 0: 5,000,000,000 */
    sherd_progress_fn progress;       /* may be NULL */
    void             *progress_ctx;
} sherd_export_params;
SHERD_API void sherd_export_params_init(sherd_export_params *params);

/** Writes the weights as safetensors: master weights, rounded once to `dtype`; frozen parameters
 *  from their compute type. A path that ends in ".safetensors" is one file. Any other path is a
 *  folder with model.safetensors; the folder is created if it is missing. If the data exceed
 *  max_file_bytes, the folder gets model-00001-of-00003.safetensors and so on, and
 *  model.safetensors.index.json, as transformers writes them. A tensor is never split: a tensor
 *  that is larger gets a file of its own.
 *
 *  New files are written next to the old ones, synced and renamed. A reader of the folder finds the
 *  files of an earlier export until the new ones are complete, or finds none. Rank 0 writes; during
 *  the call it holds 8 MiB, plus one whole tensor if a tensor is transposed.
 *
 *  Only regular files are replaced. If a link, a device, a pipe, a socket or a folder has the name
 *  of a file, the call fails before anything is written.
 *
 *  Collective, blocking, between steps.
 *
 *  Errors     E_INVAL (a map that does not fit the model), E_IO with the path, E_NUMERIC (a finite
 *             value is too large for `dtype`), E_STATE, E_NOMEM. The files of an earlier export
 *             then remain unchanged.
 */
SHERD_API SHERD_MUST_USE sherd_status sherd_export_safetensors(sherd_engine              *engine,
                                                               const char                *path,
                                                               const sherd_export_params *params);
/** Writes the weights to one file of another format: `header` (may be NULL if header_bytes is 0),
 *  then the tensors in sequence without gaps. The names in the map are used only in messages. */
SHERD_API SHERD_MUST_USE sherd_status sherd_export_raw(sherd_engine *engine, const char *path,
                                                       const void *header, size_t header_bytes,
                                                       const sherd_export_params *params);

typedef struct sherd_import_params {
    size_t                  struct_size;
    const sherd_tensor_map *tensors; /* NULL: every parameter by its own name and shape */
    size_t                  num_tensors;
    /* Patterns of names, as in a shell (fnmatch). may_miss: tensors of the map that the file may
     * lack. may_be_extra: tensors of the file that the map does not name. Any other missing or
     * extra tensor is an error. */
    const char *const *may_miss;
    size_t             num_may_miss;
    const char *const *may_be_extra;
    size_t             num_may_be_extra;
    const char *optional_prefix; /* of the map's names; the file's may all lack it; may be NULL */
    sherd_progress_fn progress;  /* may be NULL */
    void             *progress_ctx;
} sherd_import_params;
SHERD_API void sherd_import_params_init(sherd_import_params *params);

/** Reads weights from safetensors of fp64, fp32, bf16 or fp16. `path` is a file, an index (*.json),
 *  or a folder with model.safetensors, its index, or a single file of this kind. The file must be
 *  the same on every rank.
 *
 *  Before the first acquire the call fills parameters, and each rank reads only the elements that
 *  it stores. Elements of a parameter that are in no tensor of the map start as 0. If the file
 *  lacks all tensors of a parameter, the parameter has to be filled by sherd_param_fill. Between
 *  steps the call writes values like sherd_param_write; values that the file lacks do not change,
 *  and each rank holds 4 MiB during the call.
 *
 *  Collective, blocking.
 *
 *  Errors     E_INVAL (tensors missing, extra, of another shape or type, by name; a damaged file),
 *             E_IO, E_STATE, E_NOMEM. Values that were written before a failure stay written.
 */
SHERD_API SHERD_MUST_USE sherd_status sherd_import_safetensors(sherd_engine              *engine,
                                                               const char                *path,
                                                               const sherd_import_params *params);
/** Reads weights from a file with a header of `header_bytes` bytes. After the header, the tensors
 *  of the map (required) follow each other in `dtype` up to the end of the file. */
SHERD_API SHERD_MUST_USE sherd_status sherd_import_raw(sherd_engine *engine, const char *path,
                                                       size_t header_bytes, sherd_dtype dtype,
                                                       const sherd_import_params *params);

/* ------------------------------------------- looking inside an engine ---- */

typedef enum sherd_plan_format {
    SHERD_PLAN_TABLE = 0,
    SHERD_PLAN_JSON  = 1,
} sherd_plan_format;
/** Writes the plan of this rank. Before seal the plan is made from the declarations so far, and
 *  nothing else is allocated, so the call works on a simulated world of any size. */
SHERD_API SHERD_MUST_USE sherd_status sherd_engine_plan(sherd_engine     *engine,
                                                        sherd_plan_format format,
                                                        sherd_write_fn write, void *ctx);

/* Bytes of this rank, by purpose. `planned`: the bytes in the plan; `held`: the bytes that are
 * allocated now. */
typedef struct sherd_memory_report {
    size_t struct_size;
    size_t params_planned, params_held;       /* slices, or whole below stage 3; frozen included */
    size_t grads_planned, grads_held;         /* resident gradients and accumulators */
    size_t state_planned, state_held;         /* master weights and optimizer state */
    size_t gather_planned, gather_held;       /* gathered units */
    size_t transient_planned, transient_held; /* gradients of units in backward */
    size_t staging_planned, staging_held;     /* wire, bound memory, gradients in transfer */
    size_t total_planned, total_held;         /* device and host */
    /* offloaded, in host memory; parts of the total */
    size_t host_params_planned, host_params_held;
    size_t host_grads_planned, host_grads_held;
    size_t host_state_planned, host_state_held;
    size_t host_staging_planned, host_staging_held; /* bounce buffers, rings of NVMe */
    size_t pinned_planned, pinned_held;             /* a part of the host's */
    size_t nvme_planned;                            /* files, with both sets of state */
    /* parts of nvme_planned; the state counts twice if it has a spare generation */
    size_t nvme_params_planned, nvme_grads_planned, nvme_state_planned;
    int    has_spare_state; /* 1: nvme_state_planned has two generations */
    int    reserved;        /* keeps the layout; zero */
    /* not in the total: memory of the world, for all its engines */
    size_t receive_planned, receive_held; /* room for reductions, device */
    size_t transport_held;                /* allocated by the transport, host */
    size_t padding_elems;                 /* of all segments of all ranks together */
    size_t nvme_index_planned;            /* index of the state; not in nvme_planned */
    size_t checkpoint_planned;            /* host, not in the total: only during a save or load */
    size_t transport_device_held; /* like transport_held, on device; measured at its first calls */
    /* Memory of this rank's GPU that is not this engine's, measured by this call: contexts of CUDA,
     * libraries, the trainer, other engines and processes; 0 on the CPU */
    size_t device_outside_held;
    /* Control data, host, not in the total: handles, tables and names of this engine, and its
     * largest parts */
    size_t control_held;
    size_t control_model;   /* the declarations and the configuration */
    size_t control_plan;    /* blocks, extents, schedules */
    size_t control_run;     /* progress, transfers in flight, timers, and the engine's object */
    size_t control_store;   /* requests in flight, and the index of the state on NVMe */
    size_t control_updater; /* added by queued steps: the updater's progress and board */
    size_t activations_planned, activations_held; /* places of activations on the device */
    /* activations in host memory: stored there, or in transfer from and to NVMe */
    size_t host_activations_planned, host_activations_held;
    size_t nvme_activations_planned; /* a part of nvme_planned */
} sherd_memory_report;
SHERD_API void sherd_memory_report_init(sherd_memory_report *report);
/** Fills the report. Before seal the planned bytes are filled too, and the held bytes are 0. Local.
 *  The call asks the GPU for its free memory, which takes microseconds on most machines and
 *  milliseconds on some. The planned bytes do not change after seal. */
SHERD_API SHERD_MUST_USE sherd_status sherd_engine_memory(sherd_engine        *engine,
                                                          sherd_memory_report *out);

/* Bytes that this rank moves between media. A queued update (sherd_step_queue) counts when a call
 * has waited for it. The planned bytes are those of a trainer that follows the plan: `micro` per
 * micro-batch and, in addition, `step` per boundary, so a step moves accumulation * micro + step. A
 * window of another length is counted but not planned. The engine counts from seal on; the counts
 * are zero before. Two things are counted but not planned, both in the first acquire after a fill,
 * load or resume: the bytes by which the ranks compare the values (some hundred bytes for each
 * rank), and the commit of state on NVMe. */
typedef struct sherd_traffic_report {
    size_t struct_size;
    int    accumulation; /* micro-batches of a step */
    int    reserved;     /* keeps the layout; zero */
    /* bytes sent to other ranks; the same number is received */
    uint64_t wire_micro_planned, wire_step_planned;
    uint64_t down_micro_planned, down_step_planned; /* link, device to host */
    uint64_t up_micro_planned, up_step_planned;     /* link, host to device */
    uint64_t read_micro_planned, read_step_planned; /* NVMe */
    uint64_t written_micro_planned, written_step_planned;
    uint64_t wire_counted, down_counted, up_counted, read_counted, written_counted;
    /* memory that a boundary's kernels (norm, update) read and write, by where they run; planned
     * only */
    uint64_t update_device_planned, update_host_planned;
    /* Days until the ranks of the host have written the number of bytes that the drive is rated
     * for, at `wear_step_s` per step; 0: nothing is written. wear_step_s: aio.step_seconds, else
     * the time of only the drive's traffic at 2 GB/s */
    double   wear_days;
    double   wear_step_s;
    uint64_t update_flops_planned; /* of this rank's matrix products at a boundary (Muon) */
} sherd_traffic_report;
SHERD_API void sherd_traffic_report_init(sherd_traffic_report *report);
/** Reports this rank's traffic; before seal only the planned numbers. The wire counts all engines
 *  of the world. Local. The call waits for the transfers of the drive that are in flight, including
 *  reads ahead, so between steps the counts do not depend on the drive's speed. */
SHERD_API SHERD_MUST_USE sherd_status sherd_engine_traffic(sherd_engine         *engine,
                                                           sherd_traffic_report *out);

/* Numbers of a sealed engine that trainers need. */
typedef struct sherd_engine_info {
    size_t      struct_size;
    int         stage;
    sherd_dtype compute_dtype;
    int         micro_batch_size; /* sequences per rank and micro-batch, from the configuration */
    int         accumulation;     /* micro-batches per step and rank */
    int         train_batch_size; /* sequences per step over all ranks */
    int         steps_per_print;  /* 0: not set in the configuration */
    int         is_deterministic;
    int         cpu_threads; /* threads of this rank's kernels */
    size_t      param_elems; /* all parameters, frozen ones included, no padding */
    size_t      trainable_elems;
    int         is_resumed; /* 1: state files of an earlier training run were found and used */
    int64_t     step;       /* updates done */
    /* Micro-batches seen, by any number of ranks and of any size. Together with `samples`, the
     * position of a resumed trainer in its data */
    int64_t micro_step;
    /* number of the training run in the names of its state files; 0: none */
    uint64_t    state_run;
    const char *backend;      /* "cpu" or "cuda"; static storage */
    int         overlap_comm; /* 1: gathers and reductions overlap with the trainer's work */
    int         reserved;     /* keeps the layout; zero */
    /* Differences between this training run and the one that wrote the resumed state, in one
     * sentence: accumulation, micro-batch size, sherd_engine_describe_run. "": no difference, or
     * not resumed. Valid until destroy */
    const char *resume_differs;
    /* Samples that all ranks have seen, including those in earlier runs with other batches and
     * worlds */
    int64_t samples;
} sherd_engine_info;
SHERD_API void sherd_engine_info_init(sherd_engine_info *info);
/** Returns the numbers of the engine. Before seal, the counts of elements include the declarations
 *  so far. */
SHERD_API SHERD_MUST_USE sherd_status sherd_engine_query(const sherd_engine *engine,
                                                         sherd_engine_info  *out);
/** Returns the bytes that this rank has sent and received since the world was created; 0 for a NULL
 *  world. Either pointer may be NULL. */
SHERD_API void sherd_world_traffic(const sherd_world *world, uint64_t *sent_bytes_out,
                                   uint64_t *received_bytes_out);

/** Decides whether the state files on NVMe remain after a clean end (like "keep" of
 *  offload_optimizer). For a program that was asked to stop and is to continue later. No effect if
 *  no state is on NVMe. Local; if one rank preserves its state, all ranks do. E_STATE before
 *  seal. */
SHERD_API SHERD_MUST_USE sherd_status sherd_engine_keep_state(sherd_engine *engine, int is_kept);

/** Waits for work in flight and frees all memory. Accepts NULL. Not collective: any of the ranks
 *  may call it, in any order. In a child process that the program has forked it does nothing. An
 *  asynchronous save that no boundary and no sherd_checkpoint_wait has ended is dropped, with a
 *  warning in the log, because all ranks are needed to complete it.
 *
 *  State files on NVMe are removed at a clean end, which needs all ranks. A rank that wrote updates
 *  to its file waits for the other ranks, for 10 seconds or the world's time limit, whichever is
 *  shorter. It does not wait if a rank is lost or preserves its state, or after sherd_world_abort.
 *  If not all ranks arrive, every rank that can preserves its file, and the training run can be
 *  resumed. The files of a run that was resumed and made no update are never removed. A rank that
 *  has a lot of work at its end should do it before this call, and then call
 *  sherd_world_barrier. */
SHERD_API void sherd_engine_destroy(sherd_engine *engine);

#ifdef __cplusplus
}
#endif
#endif
