/* sherd: a ZeRO engine in C. What a trainer calls; sherd_tools.h has what tools call beside it.
 *
 * The life of a program: world -> config -> engine -> groups, units,
 * parameters, passes -> (bind) -> seal -> fill; then per micro-batch
 * acquire .. release in forward and backward, and sherd_step(). docs/guide.md has
 * a complete example, docs/architecture.md the map of the source.
 *
 * Conventions. What can fail returns sherd_status; sherd_last_error() says what
 * failed, where, and what to do. Structs that cross the API start with
 * struct_size: set it to sizeof(the struct) or call the matching _init(); a
 * `const sherd_..._params *` may be NULL for defaults unless said otherwise. A
 * size that cuts a field is refused (E_INVAL), as is an object or a place for a
 * result that is NULL, where a status is returned.
 * Sizes are size_t, ranks int. "Collective" means: every rank of the world
 * makes the same call in the same order. One thread drives an engine; the
 * engines of one world are driven by one thread, in one order. */
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

/* Every buffer that the engine hands out starts at a multiple of this. */
#define SHERD_ALIGN_BYTES 4096
/* Parameters start at multiples of this many elements inside a unit. */
#define SHERD_CHUNK_ELEMS 64
/* Most dimensions that a parameter can have. */
#define SHERD_MAX_NDIM 8

/* ------------------------------------------------------------ status ---- */

/* What is left to do for the caller, by group:
 *   retry             E_AGAIN
 *   fix the call      E_INVAL, E_STATE, E_NOTSUP
 *   drop this step    E_NOMEM, E_IO, E_NUMERIC   (old state still whole)
 *   rebuild the group E_PEER_LOST, E_DEVICE      (destroy the world) */
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

/** Name of a status, for example "SHERD_E_INVAL"; never NULL. */
SHERD_API const char *sherd_status_name(sherd_status status);
/** Short meaning of a status; never NULL. */
SHERD_API const char *sherd_status_text(sherd_status status);
/** The sentence of the last failure on this thread: what, where, what to do.
 *  "" if nothing failed yet. Valid until the next failure on this thread. */
SHERD_API const char *sherd_last_error(void);
/** "0.1.0" and, in a git checkout, the commit. Static storage. */
SHERD_API const char *sherd_version(void);

/* --------------------------------------------------------------- log ---- */

typedef enum sherd_log_level {
    SHERD_LOG_ERROR = 0, /* cannot go on */
    SHERD_LOG_WARN  = 1, /* odd, going on */
    SHERD_LOG_INFO  = 2, /* once per job */
    SHERD_LOG_DEBUG = 3, /* once per object */
    SHERD_LOG_TRACE = 4, /* once per step */
} sherd_log_level;

/** Receives one finished line without the newline; may be called from any
 *  thread, one call at a time. */
typedef void (*sherd_log_fn)(void *ctx, sherd_log_level level, const char *line);

/** Sends log lines to `fn` (NULL: nowhere, the default, unless the environment
 *  variable SHERD_LOG=error|warn|info|debug|trace asks for standard error; another
 *  word there is taken for warn, and told).
 *  Process-wide: the log is the one thing that engines share. */
SHERD_API void sherd_log_set(sherd_log_fn fn, void *ctx, sherd_log_level most);

/* -------------------------------------------------------------- dtypes --- */

typedef enum sherd_dtype {
    SHERD_F32  = 0,
    SHERD_BF16 = 1,
    SHERD_F16  = 2,
} sherd_dtype;

/** Bytes of one element: 4, 2, 2; 0 for an unknown type. */
SHERD_API size_t      sherd_dtype_bytes(sherd_dtype dtype);
SHERD_API const char *sherd_dtype_name(sherd_dtype dtype); /* "fp32", "bf16", "fp16" */

/* --------------------------------------------------------------- world --- */

typedef struct sherd_world sherd_world;

typedef struct sherd_world_params {
    size_t      struct_size;
    const char *transport;   /* NULL: best there is; "shm", "mpi", "nccl", "threads", "self" */
    int         device;      /* GPU of this rank; -1: by local rank. Unused on the CPU. */
    int         local_rank;  /* rank inside this host; -1: found out */
    int64_t     timeout_ns;  /* longest wait for the other ranks in one call: 0: 30 min.
                                    Lost ranks are noticed in seconds whatever this says. Until all
                                    have met: SHERD_TIMEOUT in seconds, else two minutes, or this
                                    where it is shorter. */
    int         cpu_threads; /* compute threads of this rank's CPU kernels; 0: SHERD_THREADS,
                                    else cores of the host / ranks of the host, at least 1 */
    const char *backend; /* where the engine's device memory and kernels are: "cpu" or "cuda"; NULL:
                                    SHERD_BACKEND, else "cuda" when `device` is given or the transport is
                                    "nccl", else "cpu" */
} sherd_world_params;

SHERD_API void sherd_world_params_init(sherd_world_params *params);

/** One rank, alone. */
SHERD_API SHERD_MUST_USE sherd_status sherd_world_self(sherd_world **out);

/** `world_size` ranks in this process: worlds_out[r] is for the thread that
 *  plays rank r. Each is destroyed on its own. Not collective. */
SHERD_API SHERD_MUST_USE sherd_status sherd_world_threads(int world_size, sherd_world **worlds_out);

/** The same with what `params` says for all ranks (its transport must be NULL or "threads"; local_rank has
 *  no meaning here). On a GPU rank r has device r modulo their count, or all have the one that is given. */
SHERD_API SHERD_MUST_USE sherd_status sherd_world_threads_with(int                       world_size,
                                                               const sherd_world_params *params,
                                                               sherd_world **worlds_out);

/** The world that the launcher set up: torchrun, mpirun, mpiexec, srun, or an explicit
 *  SHERD_RANK/SHERD_WORLD_SIZE/SHERD_RENDEZVOUS; one rank alone when no launcher is seen. Collective over the job.
 *  Blocks until all ranks have met; docs/launching.md has the variables, and what SHERD_JOB_SECRET is for. Errors:
 *  E_INVAL (variables contradict each other, ranks have different secrets, no socket can be where they should meet),
 *  E_NOTSUP (several hosts and no transport that can move between them), E_PEER_LOST (a rank never came; every rank
 *  says which). */
SHERD_API SHERD_MUST_USE sherd_status sherd_world_from_env(const sherd_world_params *params,
                                                           sherd_world             **out);

/** Whose variables sherd_world_from_env would believe: "SHERD_*", "torchrun", "mpirun", "mpiexec" (of MPICH), "srun";
 *  NULL: nobody's, this process is alone. Static storage. */
SHERD_API const char *sherd_launcher(void);

/** An explicit meeting. `rendezvous` is "tcp://host:port" (rank 0 listens there)
 *  or "unix:///path/of/socket" (one host). Collective. Blocks. */
SHERD_API SHERD_MUST_USE sherd_status sherd_world_create(int rank, int world_size,
                                                         const char               *rendezvous,
                                                         const sherd_world_params *params,
                                                         sherd_world             **out);

/** Rank `rank` of `world_size` in a world that moves nothing and counts all:
 *  what plans for large worlds are made on. */
SHERD_API SHERD_MUST_USE sherd_status sherd_world_simulate(int rank, int world_size,
                                                           sherd_world **out);

/** From an MPI communicator; use sherd_mpi.h, which wraps this call. `comm` points
 *  at an MPI_Comm of `comm_bytes` bytes. E_NOTSUP in a build without MPI, and where the program's MPI is not
 *  Open MPI 3 to 5. */
SHERD_API SHERD_MUST_USE sherd_status sherd_world_from_mpi_handle(const void *comm,
                                                                  size_t      comm_bytes,
                                                                  const sherd_world_params *params,
                                                                  sherd_world             **out);

/* Of a NULL world these are -1, 0, -1 and "". */
SHERD_API int         sherd_world_rank(const sherd_world *world);
SHERD_API int         sherd_world_size(const sherd_world *world);
SHERD_API int         sherd_world_local_rank(const sherd_world *world);
SHERD_API const char *sherd_world_transport(const sherd_world *world); /* "shm", ... */

/** values[i] becomes the sum over the ranks, added in the order of ranks in
 *  double: the same bits on all. Collective, blocking. `count` equal on all. */
SHERD_API SHERD_MUST_USE sherd_status sherd_world_sum_f64(sherd_world *world, double *values,
                                                          size_t count);
/** Rank `root`'s bytes reach all. Collective, blocking. */
SHERD_API SHERD_MUST_USE sherd_status sherd_world_broadcast(sherd_world *world, void *data,
                                                            size_t len_bytes, int root);
/** Returns when all ranks have come. Collective, blocking. */
SHERD_API SHERD_MUST_USE sherd_status sherd_world_barrier(sherd_world *world);
/** Gives up for all: every rank's current and later calls on this world return
 *  E_PEER_LOST with this rank and `why`. Never blocks; any thread. Accepts NULL. */
SHERD_API void sherd_world_abort(sherd_world *world, const char *why);
/* Of sherd_world_split: this rank wants no world. */
#define SHERD_SPLIT_NONE (-1)
/**
 * A world of the ranks that gave the same `color`, over the same transport. Beside tensor or pipeline parallelism of a
 * trainer's own it is the data-parallel group, and the world of the engine.
 *
 * Units      color: any number from 0; SHERD_SPLIT_NONE or any below 0: no world. key: the order of the ranks; where keys
 *            are equal it is that of their ranks in `world`.
 * Ownership  *out is the caller's to destroy, and NULL beside SHERD_OK for who wants none. It has the time limit, device
 *            and threads of `world` and holds nothing of it: either may be destroyed first.
 * Collective all ranks of `world`, those that want none too, behind its engines' calls. Blocks until all have theirs.
 * Threads    one at a time for a world of this rank and those that were split from it.
 * Errors     on all ranks alike: E_NOMEM, E_IO, E_DEVICE of any rank (nobody has a world, `world` is whole); E_PEER_LOST;
 *            E_NOTSUP: a simulated world, which knows no other rank's color; simulate that of the group. Later a
 *            failure of `world`, such as a dead rank, is one of *out until either is destroyed; not the other way round.
 */
SHERD_API SHERD_MUST_USE sherd_status sherd_world_split(sherd_world *world, int color, int key,
                                                        sherd_world **out);
/** Drops the caller's reference; engines hold their own. Accepts NULL. In a child that the program has forked it
 *  does nothing: the world is the parent's, whose end the others notice whether its children live or not. */
SHERD_API void sherd_world_destroy(sherd_world *world);

/* -------------------------------------------------------------- config --- */

typedef struct sherd_config sherd_config;

/** Reads a DeepSpeed-style JSON file (comments and trailing commas allowed). docs/
 *  configuration.md lists the keys. Warnings go to the log, and
 *  sherd_config_warning() has them. Errors: E_IO, E_INVAL with file:line:column. */
SHERD_API SHERD_MUST_USE sherd_status sherd_config_load(const char *path, sherd_config **out);
SHERD_API SHERD_MUST_USE sherd_status sherd_config_parse(const char *json, size_t len_bytes,
                                                         sherd_config **out);
/** Sets one key, for example "optimizer.params.lr" to "1e-3"; the value is JSON.
 *  Fills "auto". Where the file gives another explicit value the call fails
 *  (E_INVAL, naming both); a key starting with '!' overrides the file. */
SHERD_API SHERD_MUST_USE sherd_status sherd_config_set(sherd_config *config, const char *dotted_key,
                                                       const char *json_value);
/** 1 when the key has a value, from the file, the program or by default; 0 when it is "auto" or nobody
 *  gave one, so that the program should; 0 for an unknown key too. */
SHERD_API int sherd_config_has(const sherd_config *config, const char *dotted_key);
/** Receives text in pieces; return other than SHERD_OK stops the writer. */
typedef sherd_status (*sherd_write_fn)(void *ctx, const char *text, size_t len_bytes);
/** The resolved configuration as JSON, each key with value and origin. */
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

#define SHERD_GROUP_DEFAULT 0 /* always there; takes everything from the configuration */

typedef enum sherd_pass {
    SHERD_FORWARD  = 0,
    SHERD_BACKWARD = 1,
    SHERD_EVAL     = 2,
} sherd_pass;

/* NaN in a field means "as in the configuration". */
typedef struct sherd_group_params {
    size_t      struct_size;
    const char *name; /* for logs; copied */
    double      lr;
    double      weight_decay;
    double      beta1, beta2, eps;
    int         exclude_1d; /* LAMB: the trust ratio of parameters of this group with at most one
                                   dimension (biases, scales of norms) is 1; below 0, the default: as in the
                                   configuration (exclude_1d) */
    /* What updates the parameters of this group, by a name of optimizer.type, in any case ("none" is for a whole
     * engine); copied. NULL, the default: as in the configuration. What an optimizer reads is what its own keys say:
     * the rate, the decay, and of the betas and eps what it has (momentum is beta1) */
    const char *optimizer;
} sherd_group_params;
SHERD_API void sherd_group_params_init(sherd_group_params *params);

/* sherd_unit_params.backward_uses: nobody knows beforehand how often backward uses the unit. */
#define SHERD_USES_ANY (-1)

typedef struct sherd_unit_params {
    size_t      struct_size;
    const char *name; /* unique in the engine, required; copied */
    int backward_uses; /* 0, the default: as BACKWARD lists it and the units that read it; the gradient is
                          complete behind the last of these uses. SHERD_USES_ANY: none, one or several in a
                          micro-batch, nested too, in any order, and on each rank other ones. The gradient is
                          zero at the first acquire for BACKWARD, keeps its place, which the plan gives to no
                          other, and is complete at sherd_step or _prepare. Units that it reads are then of
                          that kind too */
    int retain_grads; /* 1: its gradients, this rank's of this micro-batch before the reduction, stay readable where
                          they are until sherd_step or _prepare is called: sherd_param_grad gives them. The plan
                          gives their place to nobody else so long. Default 0 */
} sherd_unit_params;
SHERD_API void sherd_unit_params_init(sherd_unit_params *params);

typedef struct sherd_param_params {
    size_t      struct_size;
    const char *name; /* unique in the engine, required; copied */
    int         ndim; /* 0 .. SHERD_MAX_NDIM; 0 is one element */
    size_t      shape[SHERD_MAX_NDIM];
    sherd_group group;      /* default SHERD_GROUP_DEFAULT */
    int         frozen;     /* no gradient, no state */
    size_t      atom_elems; /* never cut inside so many elements; 0 or 1: anywhere */
    /* Default -1: the engine's compute type. SHERD_F32: parameter and gradient are fp32 in a bf16 or fp16 engine too,
     * and travel so (docs/numerics.md). Another type than the engine's: E_NOTSUP by seal. */
    int dtype;
} sherd_param_params;
SHERD_API void sherd_param_params_init(sherd_param_params *params);

/** Collective (ranks compare their configurations). Holds a reference to `world`
 *  and copies what it needs of `config`. */
SHERD_API SHERD_MUST_USE sherd_status sherd_engine_create(sherd_world        *world,
                                                          const sherd_config *config,
                                                          sherd_engine      **out);

/* Declarations; the same on every rank, before seal. Not collective themselves:
 * seal compares the models of all ranks and names the first difference. A model has
 * at most 2^17 units, as many acquires in a pass, and 2^20 parameters: E_INVAL. */
SHERD_API SHERD_MUST_USE sherd_status sherd_group_add(sherd_engine             *engine,
                                                      const sherd_group_params *params,
                                                      sherd_group              *out);
SHERD_API SHERD_MUST_USE sherd_status sherd_unit_add(sherd_engine            *engine,
                                                     const sherd_unit_params *params,
                                                     sherd_unit              *out);
SHERD_API SHERD_MUST_USE sherd_status sherd_param_add(sherd_engine *engine, sherd_unit unit,
                                                      const sherd_param_params *params,
                                                      sherd_param              *out);
/** While `unit` is acquired, `param` (of another unit) is readable too, and in
 *  backward its gradient can be added to. */
SHERD_API SHERD_MUST_USE sherd_status sherd_unit_reads(sherd_engine *engine, sherd_unit unit,
                                                       sherd_param param);
/** `unit` comes next in the order of `pass`; may repeat. Without any call for a pass: the order of declaration, and for
 *  BACKWARD the reverse of FORWARD. A unit that no pass has can be acquired at any time: its bytes are planned beside
 *  all others. */
SHERD_API SHERD_MUST_USE sherd_status sherd_pass_add(sherd_engine *engine, sherd_pass pass,
                                                     sherd_unit unit);
/** The same of a unit that is held longer than from its acquire to its release before the next one: it is
 *  released after `held_acquires` further acquires of the pass (after the last of FORWARD those of BACKWARD count;
 *  more than there are: to the end). The plan gives what is held together places of their own. A default order
 *  holds nothing; that of EVAL, which is FORWARD's, what FORWARD's list holds. */
SHERD_API SHERD_MUST_USE sherd_status sherd_pass_add_held(sherd_engine *engine, sherd_pass pass,
                                                          sherd_unit unit, size_t held_acquires);
/** Trainer's own memory for a parameter at stages 0-2, before seal: `data` and `grad` [shape], the parameter's type,
 *  row-major, unpadded; the engine writes new values to `data`, reads `grad` when it is complete (at release(BACKWARD);
 *  of a unit with SHERD_USES_ANY at the step) and zeroes it at the next acquire(BACKWARD). Both stay the caller's and
 *  must outlive the engine. A bound parameter that is never filled starts from what `data` holds at the first acquire;
 *  from then on `data` is read only as sherd_param_data is: the master weights are elsewhere, and the next update
 *  overwrites what was written. `grad` is NULL for a frozen parameter. E_NOTSUP at stage 3. */
SHERD_API SHERD_MUST_USE sherd_status sherd_param_bind(sherd_engine *engine, sherd_param param,
                                                       void *data, void *grad);

/** What makes this run this run, in the trainer's words: seed, data, whatever the engine does not know. Every commit
 *  of state on NVMe keeps the text, with the accumulation and the micro-batch size, and an engine that resumes state
 *  with another one says so: in the log (a warning) and in sherd_engine_info.resume_differs. It goes on all the same;
 *  the trainer may refuse. At most 255 bytes; copied. Local, before seal. E_INVAL (longer), E_STATE. */
SHERD_API SHERD_MUST_USE sherd_status sherd_engine_describe_run(sherd_engine *engine,
                                                                const char   *text);

/** Plans, compares the ranks' plans, allocates all memory. Collective, blocking. After it the training loop allocates
 *  nothing. Errors: E_INVAL (ranks' models differ, a value cannot be met), E_NOMEM (does not fit: what is missing and
 *  the nearest setting that fits), E_STATE (sealed before). */
SHERD_API SHERD_MUST_USE sherd_status sherd_engine_seal(sherd_engine *engine);

/** Writes the initial values out[0 .. count_elems) of the elements that start at row-major index `first_elem`. It is
 *  called for any range of the parameter, in any order, some of it twice, and must give the same values on every rank
 *  each time. The ranks compare at the first acquire: all of a parameter that they keep whole; of one that they hold in
 *  slices a few values at places that are the same on all ranks (another seed or another file shows; a difference
 *  inside one rank's slice alone need not). */
typedef sherd_status (*sherd_fill_fn)(void *ctx, size_t first_elem, size_t count_elems, float *out);
/** Fills `param` by calling `fill`, on this thread, for what this rank holds, in ascending ranges of 256 Ki elements or
 *  what is left, and where ranks hold slices for the values that they compare. Local. After seal, before the first
 *  acquire. Any order of parameters is right; on NVMe what is filled in the order of declaration or its reverse is
 *  written once and not read, where the ring has four buffers or more. A trainable parameter whose state was resumed
 *  (sherd_engine_query: is_resumed) keeps its values, and `fill` is not called. Errors: what `fill` returns, E_STATE,
 *  E_INVAL, E_IO. */
SHERD_API SHERD_MUST_USE sherd_status sherd_param_fill(sherd_engine *engine, sherd_param param,
                                                       sherd_fill_fn fill, void *ctx);

/** The same where one rank has the values: `fill` is called on rank `root` alone, in ascending ranges of 64 Ki elements,
 *  and what it gives reaches all. The other ranks' `fill` and `ctx` are not looked at. Collective, blocking. Errors: as
 *  above, on all ranks; E_INVAL (the ranks' arguments differ), E_NOMEM. */
SHERD_API SHERD_MUST_USE sherd_status sherd_param_fill_from(sherd_engine *engine, sherd_param param,
                                                            int root, sherd_fill_fn fill,
                                                            void *ctx);

/** Makes the unit's parameters readable; for BACKWARD also its gradients writable, which are zero at the first acquire
 *  of a micro-batch. Every rank acquires and releases the same units in the same order, to evaluate too: where gathers
 *  meet, an acquire that only some ranks make is an error there or at the time limit, and everywhere the next boundary
 *  compares and names unit and ranks (E_STATE; the window is dropped). Units with SHERD_USES_ANY are compared for EVAL
 *  alone: a rank may acquire them as often as it likes, or never, where gathers do not meet (below stage 3, and there
 *  on the CPU with parameters in memory). A rank that did not use one in a micro-batch counts as zero where another
 *  did. Ideally the order is the declared one, which is prefetched; another order is legal and slower. A unit has one
 *  place, which others have while the plan does not need it: an acquire whose place a held unit covers is refused, and
 *  so is one whose gradient's place an open gradient covers (that of a unit which backward uses more than once, or
 *  whose parameters others read, is open from its first use to its last even while nothing is held; with SHERD_USES_ANY
 *  to the step). Acquires of different units may nest where the passes say so (sherd_pass_add_held) or their places lie
 *  apart. What fails is as if it had not been called. Errors: E_STATE, E_PEER_LOST, E_IO (the drive of this rank: call
 *  it again, or sherd_step_discard; with nccl, and with mpi over several hosts, the other ranks are lost to it), E_NOMEM
 *  (its place is taken, and by which unit). */
SHERD_API SHERD_MUST_USE sherd_status sherd_unit_acquire(sherd_engine *engine, sherd_unit unit,
                                                         sherd_pass pass);
/** What was acquired is released even by a call that fails. Where its gradient could
 *  not be reduced, the next sherd_step fails with the same error and drops the window;
 *  of several ranks the others then wait, and nothing but sherd_step_discard is taken.
 *  Errors: E_STATE (not acquired), E_IO, E_PEER_LOST. */
SHERD_API SHERD_MUST_USE sherd_status sherd_unit_release(sherd_engine *engine, sherd_unit unit,
                                                         sherd_pass pass);
/** The parameter's type (sherd_param_params.dtype), row-major, valid while the unit (or one that reads it) is acquired;
 *  NULL, with sherd_last_error(), when it is not. Read only: the optimizer alone changes parameters. Whether a write
 *  would last depends on stage and ranks; with SHERD_DEBUG=1 the release fails (E_STATE) and names unit and parameter.
 *  (Not const, for the programs that hold it in a pointer to their element type.) */
SHERD_API void *sherd_param_data(sherd_engine *engine, sherd_param param);
/** Gradient to add to, same type and shape; valid while acquired for BACKWARD. With retain_grads it is read only from the last
 *  release on, and valid until sherd_step or _prepare is called. */
SHERD_API void *sherd_param_grad(sherd_engine *engine, sherd_param param);
/** What sherd_param_data and sherd_param_grad give whenever the unit is acquired, from seal to destroy: to be held in
 *  a table, a view or a captured graph. Bound parameters: the trainer's memory. Outside acquire (but for a gradient with
 *  retain_grads) there may be another unit's bytes, and with SHERD_DEBUG=1 NaN. Local. NULL with sherd_last_error(): before seal (E_STATE), a frozen
 *  parameter has no gradient (E_STATE), gathered parameters have no address with sherd.free_packing (E_NOTSUP). */
SHERD_API void *sherd_param_address(sherd_engine *engine, sherd_param param);
SHERD_API void *sherd_param_grad_address(sherd_engine *engine, sherd_param param);

/* What it is dlpack.h says, which only who looks inside needs. */
typedef struct DLManagedTensorVersioned DLManagedTensorVersioned;

/** The memory at sherd_param_address as a DLPack tensor (version 1.0), for PyTorch, CuPy and others to read in place: from
 *  Python by a capsule named "dltensor_versioned". Row-major with strides; on the engine's device. Nothing is copied
 *  and nothing waited for: the consumer works on sherd_engine_stream, or each follows the other (sherd_cuda_follow).
 *  What the tensor shows is the parameter while its unit is acquired; else, as at the address, whatever stands there. It
 *  has no hold on the engine: behind sherd_engine_destroy (of a bound parameter: when the trainer's memory ends) nobody may
 *  touch the elements, but its deleter, which whoever consumes it calls once and on any thread, works even then.
 *  Flagged read-only: the optimizer alone changes parameters. After seal. Local. E_STATE, E_NOTSUP (as
 *  sherd_param_address), E_NOMEM. */
SHERD_API SHERD_MUST_USE sherd_status sherd_param_dlpack(sherd_engine *engine, sherd_param param,
                                                         DLManagedTensorVersioned **out);
/** The same of sherd_param_grad_address, to be added to: it means something while the unit is acquired for BACKWARD, or is
 *  retained. E_STATE for a frozen parameter too. */
SHERD_API SHERD_MUST_USE sherd_status sherd_param_grad_dlpack(sherd_engine              *engine,
                                                              sherd_param                param,
                                                              DLManagedTensorVersioned **out);
/** What to multiply the loss (or its gradient) by before backward; constant
 *  between boundaries, 1 unless fp16 is on. */
SHERD_API float sherd_loss_scale(const sherd_engine *engine);

typedef struct sherd_step_report {
    size_t   struct_size;
    int      is_boundary;      /* the window was complete: the optimizer's turn */
    int      was_updated;      /* parameters changed in this call */
    int      has_overflow;     /* a gradient was Inf or NaN; the update was skipped */
    int      reserved;         /* keeps the layout; zero */
    int64_t  micro_step;       /* micro-batches seen by this engine */
    int64_t  step;             /* updates done (skipped ones not counted) */
    int64_t  skipped_steps;    /* boundaries skipped for overflow; discarded ones are not counted */
    double   grad_norm;        /* L2 norm of the mean gradient before clipping; boundary only */
    double   grad_sumsq;       /* its square: what this world holds, for other parallelisms */
    double   clip_coefficient; /* what gradients were multiplied by; 1: not clipped */
    double   lr;               /* of the default group, used in this update */
    double   loss_scale;       /* in force during this window */
    uint64_t fingerprint;      /* of all master weights after an update or a skip; 0 from prepare */
    /* Of this rank since the boundary before; filled at a boundary. Waits are what the trainer's thread
     * stood still for: 0 where all was hidden behind something else. */
    double   wait_read_s;  /* state (and spilled gradients) to come from NVMe */
    double   wait_write_s; /* buffers to be written, and the commit */
    double   wait_param_s; /* parameters to come from NVMe, in acquire */
    double   update_s;     /* the optimizer's kernels */
    double   norm_s;       /* the norm of the gradient */
    uint64_t nvme_read_bytes, nvme_written_bytes;
    uint64_t link_down_bytes, link_up_bytes; /* device to host, host to device */
    /* Exposed: what the trainer's work stood still for; hidden: what ran beside it. On a GPU times of its
     * work are taken only with wall_clock_breakdown or SHERD_TRACE, and else 0. */
    double wait_gather_s; /* exposed: for parameters of other ranks */
    double wait_reduce_s; /* exposed: for reductions of gradients */
    double step_s;        /* exposed: the boundary, from the last backward to the next forward */
    double gather_s, reduce_s, copy_s; /* what transfers took, exposed or hidden */
    double compute_s;                  /* the trainer's, between acquire and release */
    double exposed_s;                  /* of the engine altogether: waits, and the boundary */
    double hidden_s;                   /* of gathers and reductions, what was not waited for */
} sherd_step_report;
SHERD_API void sherd_step_report_init(sherd_step_report *report);

typedef struct sherd_step_params {
    size_t        struct_size;
    double        grad_norm;        /* norm to clip by, from outside; NaN: the engine's own */
    double        clip_coefficient; /* use this coefficient; NaN: from the norm */
    int           overflow;         /* 1: treat as overflow whatever this world saw */
    int           group_count;      /* length of group_lr */
    const double *group_lr;         /* rate per group, in order of creation; NULL: the schedule's;
                                       a NaN entry: the schedule's for that group */
} sherd_step_params;
SHERD_API void sherd_step_params_init(sherd_step_params *params);

/** Once per micro-batch, after its backward. At the boundary: reduces what is left,
 *  norm, clip, update, publish. Collective. `out` may be NULL. */
SHERD_API SHERD_MUST_USE sherd_status sherd_step(sherd_engine *engine, sherd_step_report *out);
/** The same in two parts, with a choice between them. Off the boundary prepare only
 *  counts (report: is_boundary 0) and nothing else follows. At the boundary one of
 *  apply and discard must follow. */
SHERD_API SHERD_MUST_USE sherd_status sherd_step_prepare(sherd_engine      *engine,
                                                         sherd_step_report *out);
SHERD_API SHERD_MUST_USE sherd_status sherd_step_apply(sherd_engine            *engine,
                                                       const sherd_step_params *params);
/** Drops the window: its gradients, and what this rank still has acquired, of any pass, counts as released. Nothing
 *  else changes, and training goes on from the window's first micro-batch as if that had not begun: micro_step, too, is
 *  what it was (behind a prepared boundary it stays, since all ranks have seen the window). Instead of apply,
 *  and anywhere else after seal: the one call after an exception in forward, backward or an evaluation, and after an
 *  acquire or release that failed. Memory of units is not to be used any more.
 *
 *  Collective, blocking: it returns when all ranks have come, from wherever each of them stopped. A rank that was not
 *  told goes on until it meets the others: that call (a gather or reduction that meets, a step, a call of the world)
 *  fails there with E_STATE and says that the window was dropped, and this rank calls sherd_step_discard too. With
 *  nccl, and with mpi over several hosts, a collective that some ranks have begun cannot be taken back: all ranks must
 *  have acquired and released the same units, else the world is lost, by name or at
 *  the time limit. Several engines of one world: calls of the others that ranks wait in fail too.
 *
 *  Errors     E_STATE (before seal; after an update that failed: of that sherd_step_undo is the way out), E_PEER_LOST. */
SHERD_API SHERD_MUST_USE sherd_status sherd_step_discard(sherd_engine *engine);
/** The L2 norm of each parameter's gradient to out[0 .. count), by number: of the mean over the window, unscaled, before
 *  clipping, as grad_norm of the report, and like it an exact sum, the same bits however the parameter lies. 0 of a frozen
 *  parameter; NaN where there is an Inf or a NaN (with "deterministic" of all parameters then). `count` is the number of
 *  parameters. Between prepare at a boundary and apply or discard. Allocates nothing. Collective, blocking: reads the gradient
 *  once. Errors: E_INVAL (count), E_STATE (nothing is prepared), E_IO; `out` means nothing then. */
SHERD_API SHERD_MUST_USE sherd_status sherd_grad_norms(sherd_engine *engine, double *out,
                                                       size_t count);
/** The report of the last boundary, complete. A step ends with all numbers but one kind: of the times of a device
 *  ("wall_clock_breakdown", SHERD_TRACE) what it has not passed counts for the next report, unless this call comes before
 *  the next micro-batch: it waits for them. On every rank. Errors: E_STATE (before seal), E_INVAL, E_PEER_LOST,
 *  E_DEVICE. */
SHERD_API SHERD_MUST_USE sherd_status sherd_step_wait(sherd_engine *engine, sherd_step_report *out);
/** The next sherd_step or _prepare is a boundary even if the window is short; the
 *  mean is taken over the micro-batches that it saw. Same on all ranks. */
SHERD_API SHERD_MUST_USE sherd_status sherd_step_close_window(sherd_engine *engine);
/** Back to the state before the last update, parameters and counters too; after an update that failed,
 *  to the state before it, and the engine lives again. What it goes back to is a commit, which filling and updates
 *  make: steps that were skipped for an overflow since that commit are taken back too, in the counters and the loss
 *  scale. Once: the next update's spare generation is needed.
 *  Collective. E_NOTSUP where no spare generation of the state exists (one does where all of it
 *  rests on NVMe), E_STATE (no update yet, undone already), E_IO: also when the record of a commit that failed cannot
 *  be taken back; undo may be tried again, or the engine destroyed and its run resumed at one of the two steps. */
SHERD_API SHERD_MUST_USE sherd_status sherd_step_undo(sherd_engine *engine);

/** A number of the trainer's own, such as the loss, for what the configuration's csv_monitor and tensorboard write: under the
 *  tag ("Train/Samples/train_loss"; 1 to 127 printable ASCII characters), at the samples of all ranks seen so far, which is where
 *  the numbers of the last boundary are. On ranks other than 0, before seal, and where no monitor is on, it does nothing. What
 *  cannot be written is told in the log. Local; writes a file. E_INVAL, E_STATE. */
SHERD_API SHERD_MUST_USE sherd_status sherd_monitor_write(sherd_engine *engine, const char *tag,
                                                          double value);

/* -------------------------------------------------- evaluation --- */

typedef struct sherd_eval_params {
    size_t struct_size;
    size_t keep_units; /* most units that stay gathered when they are released, at most
                                sherd.eval_keep_units; SIZE_MAX, the default: as many as that says */
} sherd_eval_params;
SHERD_API void sherd_eval_params_init(sherd_eval_params *params);

/**
 * Begins an evaluation in many passes, such as the generation of text, in which parameters do not change: until
 * sherd_eval_end a step, sherd_param_write, sherd_engine_set_step, sherd_step_undo and sherd_checkpoint_load are refused
 * (E_STATE). The first `keep_units` units that the order of EVAL gathers (stage 3) stay gathered when they are released,
 * so that their next acquire moves nothing; sherd.eval_keep_units has the plan give them places that no other unit of EVAL
 * has. An acquire for another pass may take their place, and they are gathered anew afterwards. Below stage 3 there is
 * nothing to keep.
 *
 * Without it, passes of EVAL are as legal, and gather what they acquire each time.
 *
 * Collective, blocking, with the same keep_units on every rank; no unit is acquired and no step prepared. In a window too.
 * Errors     E_STATE, E_INVAL (keep_units is more than the plan has places for; the ranks' arguments differ), and as the
 *            first acquire where it is that. sherd_step_discard ends it too.
 */
SHERD_API SHERD_MUST_USE sherd_status sherd_eval_begin(sherd_engine            *engine,
                                                       const sherd_eval_params *params);
/** Its end: what was kept is let go. Collective, blocking; no unit is acquired. E_STATE. */
SHERD_API SHERD_MUST_USE sherd_status sherd_eval_end(sherd_engine *engine);

/* -------------------------------------------------- fingerprints --- */

/** Recomputed from the state: sum modulo 2^64 over all elements of a mix of (global
 *  element index, bits of the fp32 master weight); see docs/numerics.md. Collective. */
SHERD_API SHERD_MUST_USE sherd_status sherd_engine_fingerprint(sherd_engine *engine, uint64_t *out);
/** The share of one parameter in it: where two runs differ. Collective; as slow as reading the parameter
 *  once. */
SHERD_API SHERD_MUST_USE sherd_status sherd_param_fingerprint(sherd_engine *engine,
                                                              sherd_param param, uint64_t *out);

/* -------------------------------------------------------------- values --- */

/* What a sealed engine has of a parameter, by name; docs/values.md. Beside these: the other parts of the optimizer's
 * state, "exp_avg" and "exp_avg_sq" of AdamW, Adam and LAMB. */
typedef const char *sherd_value;
#define SHERD_MASTER "master" /* what the optimizer updates, fp32 */
#define SHERD_COMPUTE                                                                              \
    "compute" /* what passes read, in the compute type; all that a frozen parameter has */
#define SHERD_GRAD "grad" /* of a prepared step: the mean gradient, unscaled, before clipping */

/** Values [first_elem, first_elem + count_elems) of a parameter, row-major, to out[0 .. count_elems), as fp32 and exact,
 *  wherever they rest. Collective, with the same arguments on every rank but for `out`, which may be NULL where nobody
 *  wants them; blocking. No unit is acquired; else anywhere between two calls, in a window too, and after seal when all
 *  parameters are filled (then it is where first values end, as the first acquire is). SHERD_GRAD: between
 *  sherd_step_prepare at a boundary and sherd_step_apply or _discard. What one rank alone has passes through
 *  pieces of 256 KiB. Errors: E_INVAL (no such value or range; the ranks' arguments differ), E_STATE (a unit is
 *  acquired; a frozen parameter has SHERD_COMPUTE alone; nothing is prepared), E_NOMEM, E_IO; `out` means nothing
 *  then. */
SHERD_API SHERD_MUST_USE sherd_status sherd_param_read(sherd_engine *engine, sherd_param param,
                                                       sherd_value value, size_t first_elem,
                                                       size_t count_elems, float *out);
/** The opposite: the range takes the values `in`, everywhere at once: SHERD_MASTER the master weights and, rounded, what
 *  passes read, on all ranks and in bound memory; SHERD_COMPUTE the same of the rounded values, so that both are
 *  equal; a part of the state that part alone. What updates then do is what they would do had the state always been so; the
 *  fingerprint follows. Any fp32 is taken, NaN too. Collective, with the same arguments and the same values on every
 *  rank (compared); blocking. At a boundary: no unit is acquired and nothing of the next window has begun. State on NVMe
 *  is committed, as a generation of its own: there is no sherd_step_undo until the next update. Errors: as above. E_IO
 *  where all state rests on NVMe: nothing was written, everywhere; elsewhere, and of a frozen parameter, the engine
 *  is lost. */
SHERD_API SHERD_MUST_USE sherd_status sherd_param_write(sherd_engine *engine, sherd_param param,
                                                        sherd_value value, size_t first_elem,
                                                        size_t count_elems, const float *in);
/** The range of a parameter that this rank owns, of its values and its state: at stages 1 to 3 a part, which no
 *  other rank has, or nothing (count 0); at stage 0 all of it on every rank. For programs that write files of their own.
 *  Local. After seal. */
SHERD_API SHERD_MUST_USE sherd_status sherd_param_local(sherd_engine *engine, sherd_param param,
                                                        size_t *first_elem_out,
                                                        size_t *count_elems_out);
/** sherd_param_read of a range inside the owned one, by this rank alone. Local, blocking. After the first acquire.
 *  Errors: as of sherd_param_read; E_INVAL where the range is not this rank's. */
SHERD_API SHERD_MUST_USE sherd_status sherd_param_read_local(sherd_engine *engine,
                                                             sherd_param param, sherd_value value,
                                                             size_t first_elem, size_t count_elems,
                                                             float *out);
/** Counters of a run that goes on here: updates done, by which schedules and bias corrections go, and micro-batches
 *  seen. Collective. After seal: before the first acquire, or at a boundary as sherd_param_write, and committed as that
 *  is. E_INVAL (below 0; the ranks' arguments differ), E_STATE, E_IO. */
SHERD_API SHERD_MUST_USE sherd_status sherd_engine_set_step(sherd_engine *engine, int64_t step,
                                                            int64_t micro_step);
/* --------------------------------------------------------------- blobs --- */

/* The trainer's own bytes that go with the state: its place in the data, its random numbers. */
#define SHERD_BLOB_KEY_BYTES 127 /* of a key, at most; printable ASCII */
#define SHERD_BLOB_MAX_BYTES                                                                       \
    (1024 * 1024) /* of all blobs of a rank, keys and 24 bytes for each included */

typedef struct sherd_blob_params {
    size_t struct_size;
    int    is_per_rank; /* 0: one for the run, of which rank 0's counts; 1: each rank has its own */
    int    rank; /* of sherd_blob_get, with is_per_rank: whose; below 0, the default: this rank's */
} sherd_blob_params;
SHERD_API void sherd_blob_params_init(sherd_blob_params *params);

/** Keeps a copy of data[0 .. len_bytes) under the key, in place of the one before; data NULL (and len_bytes 0) removes
 *  it. It is saved as it is when a checkpoint or a commit of state on NVMe is made. Of a blob that is not per rank any rank
 *  keeps what it set itself; what is saved, and found by all after a load, is rank 0's. Local, any time from create on.
 *  Errors: E_INVAL (key, too many bytes), E_NOMEM; the one before stays then. */
SHERD_API SHERD_MUST_USE sherd_status sherd_blob_set(sherd_engine *engine, const char *key,
                                                     const void *data, size_t len_bytes,
                                                     const sherd_blob_params *params);
/** Copies the blob to `data`, which has room for *len_bytes_inout; that becomes its length, with `data` NULL and where
 *  the room is too small (E_INVAL) too. After a load of what another number of ranks saved, rank r has the blobs of the
 *  saved ranks r, r + world_size and so on. Local. E_INVAL: there is none of that key. */
SHERD_API SHERD_MUST_USE sherd_status sherd_blob_get(sherd_engine *engine, const char *key,
                                                     void *data, size_t *len_bytes_inout,
                                                     const sherd_blob_params *params);

/* --------------------------------------------------------- checkpoints --- */

/* DIR/TAG is a folder with one data file of each rank (safetensors) and a manifest; it is complete or not there.
 * DIR/latest names the newest. docs/checkpoints.md is the user's page, docs/checkpoint-format.md that of other
 * readers. One run at a time saves into a folder. */

/** Told of bytes of this rank as they are moved, on the calling thread. */
typedef void (*sherd_progress_fn)(void *ctx, uint64_t done_bytes, uint64_t all_bytes);

typedef struct sherd_save_params {
    size_t struct_size;
    int is_async; /* 1: the call returns when the state is copied in memory, and a thread of this rank's
                          writes; 0: when all is on the medium; below 0, the default: as checkpoint.async says */
    int keep_last; /* complete checkpoints that stay in the folder, this one among them; 0: all; below 0,
                          the default: as checkpoint.keep_last says */
    sherd_progress_fn progress; /* may be NULL */
    void             *progress_ctx;
} sherd_save_params;
SHERD_API void sherd_save_params_init(sherd_save_params *params);

/** Saves parameters, optimizer state, counters, loss scaler and blobs to DIR/TAG (NULL: "step-" and the number of
 *  updates, six digits). Missing folders are made; a checkpoint of that name is replaced in one moment. Every rank
 *  writes its own part; nothing is gathered. Between steps with no micro-batch begun, no unit acquired; an asynchronous
 *  save that still runs is waited for first. Collective: all ranks give the same names, and all have a complete
 *  checkpoint or none. Blocks as is_async says. What fails leaves earlier checkpoints as they are, and training may go
 *  on. Errors: E_STATE (a window is open), E_INVAL (tag, ranks that differ), E_IO (too little space, with what is missing; a
 *  folder that a rank does not see; the drive), E_NOTSUP (asynchronous without checkpoint.async, a build without
 *  libxxhash), E_NOMEM. */
SHERD_API SHERD_MUST_USE sherd_status sherd_checkpoint_save(sherd_engine *engine, const char *dir,
                                                            const char              *tag,
                                                            const sherd_save_params *params);

/* Of the last save or load of this rank. */
typedef struct sherd_checkpoint_report {
    size_t   struct_size;
    int      is_running;  /* an asynchronous save has not ended */
    int      reserved;    /* keeps the layout; zero */
    int64_t  step;        /* updates that it has */
    double   blocked_s;   /* the trainer stood still for it */
    double   all_s;       /* until it was complete */
    uint64_t bytes;       /* of this rank's data, read or written */
    uint64_t kept_bytes;  /* that an earlier checkpoint has already: kept by a link, not written */
    uint64_t fingerprint; /* of the parameters that were saved or loaded */
} sherd_checkpoint_report;
SHERD_API void sherd_checkpoint_report_init(sherd_checkpoint_report *report);
/** Waits until an asynchronous save is complete, and returns its failure if it had one. A boundary that finds it complete, or
 *  failed, ends it too, and goes on; the failure then waits for this call, or for the next save or load, which returns it and
 *  does nothing else. `out` may be NULL. Collective while one runs. E_IO. */
SHERD_API SHERD_MUST_USE sherd_status sherd_checkpoint_wait(sherd_engine            *engine,
                                                            sherd_checkpoint_report *out);
/** The same without waiting: is_running tells whether there is something to wait for. It ends at a boundary, on all ranks
 *  at the same one; its failure sherd_checkpoint_wait tells. Local. */
SHERD_API SHERD_MUST_USE sherd_status sherd_checkpoint_query(const sherd_engine      *engine,
                                                             sherd_checkpoint_report *out);

typedef struct sherd_load_params {
    size_t struct_size;
    int weights_only; /* parameters alone: the other parts of the state begin at zero, the counters stay */
    int reserved; /* keeps the layout; zero */
    /* Patterns of names, as of a shell (fnmatch): parameters of this model that the checkpoint need not have, which keep
     * their values or are filled afterwards; and parameters of the checkpoint that this model need not have. A shape
     * that differs counts as both. */
    const char *const *may_miss;
    size_t             num_may_miss;
    const char *const *may_be_extra;
    size_t             num_may_be_extra;
    sherd_progress_fn  progress; /* may be NULL */
    void              *progress_ctx;
} sherd_load_params;
SHERD_API void sherd_load_params_init(sherd_load_params *params);

/** Goes on from DIR/TAG (NULL: what DIR/latest names), whoever saved it: any world size, stage, tier, device and
 *  precision. Every rank reads what it holds, and holds it against the checksums; at the end the fingerprints must be
 *  those of the manifest. After seal, instead of filling, or later between steps, also of an engine that was lost
 *  in the middle of an update. Collective, blocks. Errors: E_STATE (a window is open), E_IO (nothing there), E_INVAL
 *  (another model, or damaged: which tensor of which rank), E_PEER_LOST. A failure before the first value is
 *  written leaves the engine as it was; behind it the engine accepts load, undo where a spare generation exists, or
 *  destroy. */
SHERD_API SHERD_MUST_USE sherd_status sherd_checkpoint_load(sherd_engine *engine, const char *dir,
                                                            const char              *tag,
                                                            const sherd_load_params *params);

/* -------------------------------------------------------------- device --- */

/** The stream on which the engine makes parameters readable and takes gradients: the trainer's kernels go
 *  there (or on one that waits for it, and that it waits for before release). A cudaStream_t as void *; NULL
 *  on the CPU, where everything has ended when a call returns. Local. Valid until destroy. */
SHERD_API void *sherd_engine_stream(const sherd_engine *engine);
/** Makes a stream of the trainer's own the compute stream; it outlives the engine. Handle 0 is the legacy default stream
 *  (cudaStreamLegacy), on which PyTorch works unless told otherwise, and sherd_engine_stream gives it as that. With
 *  cudaStreamPerThread, the stream of whichever thread makes a call, one thread alone drives the engine. Before seal. Local.
 *  E_STATE after seal, E_NOTSUP on the CPU. Typed: sherd_cuda.h. */
SHERD_API SHERD_MUST_USE sherd_status sherd_engine_set_stream(sherd_engine *engine, void *stream);
/** Copies between host memory and what the engine handed out (sherd_param_data, sherd_param_grad), behind
 *  all work of the compute stream; blocks until the bytes are there. For programs that work on the host
 *  whatever the backend. Local. E_DEVICE. */
SHERD_API SHERD_MUST_USE sherd_status sherd_copy(sherd_engine *engine, void *dst, const void *src,
                                                 size_t len_bytes);

/** How many devices of a backend ("cuda") this process can use; 0 with the reason in sherd_last_error(),
 *  for NULL too. */
SHERD_API int sherd_device_count(const char *backend);

/** A world over a communicator of the trainer's own, which stays its own and outlives the world; use
 *  sherd_cuda.h, which wraps this call. `comm` is an ncclComm_t. `params` may name a device; its transport must
 *  be NULL or "nccl". Collective over the communicator, by which the ranks tell each other where their sockets
 *  meet: SHERD_TIMEOUT is the time for it. After a failure of the world what NCCL has on the device may never end, and only
 *  the communicator's owner may end it: call ncclCommAbort(comm) before the engine or the world is destroyed, which wait for
 *  the device. E_NOTSUP in a build without NCCL. */
SHERD_API SHERD_MUST_USE sherd_status sherd_world_from_nccl_handle(void                     *comm,
                                                                   const sherd_world_params *params,
                                                                   sherd_world             **out);

/* -------------------------------------------------- weights in and out ---- */

/* A tensor of a file of weights, and where its elements are: in a parameter of the engine, or in memory of the caller (a
 * buffer of a module, say the statistics of a BatchNorm, which the file has and the engine does not). What crosses the API
 * is an array of them, all with the struct_size of the first. */
typedef struct sherd_tensor_map {
    size_t      struct_size;
    const char *name;  /* in the file, required */
    const char *param; /* the parameter's name; NULL: data, or zeros, which only raw files have */
    const char *value; /* a part of the optimizer's state by its name; NULL: the weights */
    size_t      first_elem;            /* of the parameter: where the tensor begins */
    int         ndim;                  /* 0 .. SHERD_MAX_NDIM; 0 is one element */
    size_t      shape[SHERD_MAX_NDIM]; /* in the file; row-major, as in the parameter */
    int is_transposed; /* 2 dimensions: [i][j] of the file is [j][i] of a matrix in the parameter */
    /* Of a tensor that is no parameter's, in safetensors alone: elements in host memory, row-major, valid for the call. An
     * export writes rank 0's, an import fills every rank's. */
    const char *
        data_dtype; /* as safetensors name it: "F32", "I64", "BOOL" ...; NULL: there are no such elements */
    void *data;
} sherd_tensor_map;
SHERD_API void sherd_tensor_map_init(sherd_tensor_map *map);

typedef struct sherd_export_params {
    size_t struct_size;
    const sherd_tensor_map
          *tensors; /* in the order of the file; NULL: every parameter by its own name and shape */
    size_t num_tensors;
    sherd_dtype       dtype;          /* of the file; default SHERD_F32 */
    size_t            max_file_bytes; /* data of a file of a folder; 0: 5,000,000,000 */
    sherd_progress_fn progress;       /* may be NULL */
    void             *progress_ctx;
} sherd_export_params;
SHERD_API void sherd_export_params_init(sherd_export_params *params);

/**
 * Writes the weights as safetensors: master weights, rounded once to `dtype`; frozen parameters from their compute type.
 * A path that ends in ".safetensors" is one file. Any other is a folder, made if it is not there, with
 * model.safetensors or, where the data are more than max_file_bytes, model-00001-of-00003.safetensors and so on with
 * model.safetensors.index.json, as transformers has them. A tensor is never cut: one that is larger has a file alone.
 *
 * Files are written beside, synced and renamed; those of an earlier export in the folder are found until the new ones
 * are whole, or none are. Rank 0 writes, and holds 8 MiB meanwhile, or 8 MiB and a transposed tensor.
 *
 * Collective, blocking, between steps.
 * Errors     E_INVAL (a map that does not fit the model), E_IO with the path, E_NUMERIC (a finite value is too large for
 *            `dtype`), E_STATE, E_NOMEM. What an earlier export left stays as it was.
 */
SHERD_API SHERD_MUST_USE sherd_status sherd_export_safetensors(sherd_engine              *engine,
                                                               const char                *path,
                                                               const sherd_export_params *params);
/** The same as one file of another format: `header`, and behind it the tensors one after the other without holes. The
 *  names of its tensors are for messages. */
SHERD_API SHERD_MUST_USE sherd_status sherd_export_raw(sherd_engine *engine, const char *path,
                                                       const void *header, size_t header_bytes,
                                                       const sherd_export_params *params);

typedef struct sherd_import_params {
    size_t                  struct_size;
    const sherd_tensor_map *tensors; /* NULL: every parameter by its own name and shape */
    size_t                  num_tensors;
    /* Patterns of names as of a shell (fnmatch): tensors of the map that the file may lack, and tensors of the file that
     * the map does not name. Anything else that is missing or extra is an error. */
    const char *const *may_miss;
    size_t             num_may_miss;
    const char *const *may_be_extra;
    size_t             num_may_be_extra;
    const char *
        optional_prefix; /* of names in the map, which the names in the file may all lack; may be NULL */
    sherd_progress_fn progress; /* may be NULL */
    void             *progress_ctx;
} sherd_import_params;
SHERD_API void sherd_import_params_init(sherd_import_params *params);

/**
 * Reads weights from safetensors of fp64, fp32, bf16 or fp16: `path` is a file, an index (*.json), or a folder with
 * model.safetensors, its index, or one file of that kind.
 *
 * Before the first acquire parameters are filled, each rank reading what it holds; elements of a parameter that no tensor
 * of the map has start as 0. One of which the file lacks all tensors is left to sherd_param_fill. Between steps values
 * are written as by sherd_param_write, and what the file lacks stays.
 *
 * The file has to be the same on every rank. Collective, blocking. Between steps each rank holds 4 MiB meanwhile.
 * Errors     E_INVAL (tensors missing, extra, of another shape or type, by name; a damaged file), E_IO, E_STATE, E_NOMEM. A
 *            failure while values are written leaves those before it written.
 */
SHERD_API SHERD_MUST_USE sherd_status sherd_import_safetensors(sherd_engine              *engine,
                                                               const char                *path,
                                                               const sherd_import_params *params);
/** The same of a file that has `header_bytes` bytes of its own and behind them the tensors of the map (required) one after
 *  the other in `dtype`, to its end. */
SHERD_API SHERD_MUST_USE sherd_status sherd_import_raw(sherd_engine *engine, const char *path,
                                                       size_t header_bytes, sherd_dtype dtype,
                                                       const sherd_import_params *params);

/* ------------------------------------------- looking inside an engine ---- */

typedef enum sherd_plan_format {
    SHERD_PLAN_TABLE = 0,
    SHERD_PLAN_JSON  = 1,
} sherd_plan_format;
/** Writes the plan of this rank. Before seal it is made from what is declared so
 *  far, allocating nothing else: so it works on a simulated world of any size. */
SHERD_API SHERD_MUST_USE sherd_status sherd_engine_plan(sherd_engine     *engine,
                                                        sherd_plan_format format,
                                                        sherd_write_fn write, void *ctx);

/* Bytes of this rank, by purpose. `planned` is the plan's, `held` what is allocated now. */
typedef struct sherd_memory_report {
    size_t struct_size;
    size_t params_planned, params_held;       /* slices, or whole below stage 3; frozen included */
    size_t grads_planned, grads_held;         /* resident gradients and accumulators */
    size_t state_planned, state_held;         /* master weights and optimizer state */
    size_t gather_planned, gather_held;       /* gathered units */
    size_t transient_planned, transient_held; /* gradients of units in backward */
    size_t staging_planned, staging_held;     /* wire, bind and gradients on their way */
    size_t total_planned, total_held;         /* device and host */
    /* of offload, in host memory; parts of the total */
    size_t host_params_planned, host_params_held;
    size_t host_grads_planned, host_grads_held;
    size_t host_state_planned, host_state_held;
    size_t host_staging_planned, host_staging_held; /* bounce buffers, rings of NVMe */
    size_t pinned_planned, pinned_held;             /* a part of the host's */
    size_t nvme_planned;                            /* of the files, both sets of state */
    /* parts of nvme_planned: state twice where a spare generation is kept */
    size_t nvme_params_planned, nvme_grads_planned, nvme_state_planned;
    int    has_spare_state; /* nvme_state_planned holds two generations */
    int    reserved;        /* keeps the layout; zero */
    /* beside the total: memory of the world's own, for all its engines */
    size_t receive_planned, receive_held; /* room for reductions, device */
    size_t transport_held;                /* what the transport has taken itself, host */
    size_t padding_elems;                 /* of all segments of all ranks together */
    size_t nvme_index_planned;            /* beside nvme_planned: the index of the state */
    size_t checkpoint_planned;    /* host, beside the total: only while one is saved or loaded */
    size_t transport_device_held; /* ... of the device, measured at its first calls */
} sherd_memory_report;
SHERD_API void                        sherd_memory_report_init(sherd_memory_report *report);
SHERD_API SHERD_MUST_USE sherd_status sherd_engine_memory(sherd_engine        *engine,
                                                          sherd_memory_report *out);

/* Bytes of this rank between media. Planned: when the trainer follows the plan; `micro` per micro-batch, `step`
 * per boundary beside that, so that a step is accumulation * micro + step. Counted: since seal, by the
 * engine itself; zero before. */
typedef struct sherd_traffic_report {
    size_t   struct_size;
    int      accumulation;                          /* micro-batches of a step */
    int      reserved;                              /* keeps the layout; zero */
    uint64_t wire_micro_planned, wire_step_planned; /* sent to other ranks; as many are received */
    uint64_t down_micro_planned, down_step_planned; /* link, device to host */
    uint64_t up_micro_planned, up_step_planned;     /* link, host to device */
    uint64_t read_micro_planned, read_step_planned; /* NVMe */
    uint64_t written_micro_planned, written_step_planned;
    uint64_t wire_counted, down_counted, up_counted, read_counted, written_counted;
    /* memory that the kernels of a boundary read and write (norm, update), by where they run; planned only */
    uint64_t update_device_planned, update_host_planned;
    double   wear_days; /* until a drive is written as often as it is rated for, by all ranks of the
                           host; 0: nothing is written. At `wear_step_s` a step */
    double wear_step_s; /* aio.step_seconds, else what the drive's traffic alone takes at 2 GB/s */
    uint64_t
        update_flops_planned; /* of a boundary's products of matrices, which this rank makes (Muon) */
} sherd_traffic_report;
SHERD_API void sherd_traffic_report_init(sherd_traffic_report *report);
/** Before seal the plan's numbers alone. The wire counts all engines of the world. Waits for the drive's transfers
 *  that are under way, reads ahead among them, so that between steps the counts do not depend on its speed. Local. */
SHERD_API SHERD_MUST_USE sherd_status sherd_engine_traffic(sherd_engine         *engine,
                                                           sherd_traffic_report *out);

/* Numbers of a sealed engine that trainers ask for. */
typedef struct sherd_engine_info {
    size_t      struct_size;
    int         stage;
    sherd_dtype compute_dtype;
    int         micro_batch_size; /* sequences per rank and micro-batch, from the configuration */
    int         accumulation;     /* micro-batches per step and rank */
    int         train_batch_size; /* sequences per step over all ranks */
    int         steps_per_print;  /* 0: the configuration does not say */
    int         is_deterministic;
    int         cpu_threads; /* of this rank's kernels */
    size_t      param_elems; /* all parameters, frozen ones included, no padding */
    size_t      trainable_elems;
    int         is_resumed;   /* state files of an earlier run were found and taken */
    int64_t     step;         /* updates done */
    int64_t     micro_step;   /* micro-batches seen: where a resumed trainer goes on in its data */
    uint64_t    state_run;    /* number of the run in the names of its state files; 0: none */
    const char *backend;      /* "cpu" or "cuda"; static storage */
    int         overlap_comm; /* gathers and reductions run beside the trainer's work */
    int         reserved;     /* keeps the layout; zero */
    const char
        *resume_differs; /* what the resumed state was written with and this run has not, in one
                                   sentence: accumulation, micro-batch size, sherd_engine_describe_run. "":
                                   nothing, or not resumed. Valid until destroy */
} sherd_engine_info;
SHERD_API void sherd_engine_info_init(sherd_engine_info *info);
/** Before seal too, apart from the counts of elements declared so far. */
SHERD_API SHERD_MUST_USE sherd_status sherd_engine_query(const sherd_engine *engine,
                                                         sherd_engine_info  *out);
/** Bytes that this rank sent and received since the world was made; 0 of a NULL world. Either place may be
 *  NULL. */
SHERD_API void sherd_world_traffic(const sherd_world *world, uint64_t *sent_bytes_out,
                                   uint64_t *received_bytes_out);

/** From now on a clean end leaves the state files on NVMe (as "keep" of offload_optimizer does), or not: for
 *  a program that was asked to stop and wants to go on later. Without effect where no state rests there.
 *  Local; where one rank says so, all leave theirs. E_STATE before seal. */
SHERD_API SHERD_MUST_USE sherd_status sherd_engine_keep_state(sherd_engine *engine, int is_kept);

/** Waits for work in flight, frees all memory; in a child that the program has forked it does nothing. Accepts NULL. Not collective, in any order, on any of the ranks.
 *  State files on NVMe are removed at a clean end, which is one of all ranks: a rank that added updates to them waits
 *  for the others to come here too, for 10 seconds or the world's time limit where that is shorter, and not at all
 *  when a rank is lost or keeps its own. Where not all came, every rank that can leaves its file, and the run can be
 *  gone on from. So can one that was resumed and did no update: nothing of it is removed. A rank that has much
 *  work of its own at the end does it before, with a sherd_world_barrier behind it. */
SHERD_API void sherd_engine_destroy(sherd_engine *engine);

#ifdef __cplusplus
}
#endif
#endif
