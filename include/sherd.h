/* sherd: a ZeRO engine in C. This header declares what every build has, and includes headers with
 * the calls of modules: a trainer includes this one alone. sherd_tools.h declares the calls of
 * tools.
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
/* A call that can fail. */
#define SHERD_CALL SHERD_API SHERD_MUST_USE sherd_status

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

/** Creates a world of one rank. */
SHERD_CALL sherd_world_self(sherd_world **out);

/** Creates the worlds of `world_size` ranks in this process: worlds_out[r] is for the thread that
 *  plays rank r. Each world is destroyed separately. Not collective. */
SHERD_CALL sherd_world_threads(int world_size, sherd_world **worlds_out);

/* For a NULL world these return -1, 0, -1 and "". */
SHERD_API int         sherd_world_rank(const sherd_world *world);
SHERD_API int         sherd_world_size(const sherd_world *world);
SHERD_API int         sherd_world_local_rank(const sherd_world *world);
SHERD_API const char *sherd_world_transport(const sherd_world *world); /* "shm", ... */

/** Replaces values[0 .. count) by their sums over the ranks. The values are added in double, in the
 *  order of ranks, so all ranks get the same bits. `count` must be equal on all ranks. Collective,
 *  blocking. */
SHERD_CALL sherd_world_sum_f64(sherd_world *world, double *values, size_t count);
/** Returns when all ranks have called it. Collective, blocking. */
SHERD_CALL sherd_world_barrier(sherd_world *world);
/** Ends the world for all ranks. The current and later calls of every rank on it return
 *  E_PEER_LOST, and the message contains this rank and `why`. Any thread may call it. Never blocks.
 *  Accepts NULL. */
SHERD_API void sherd_world_abort(sherd_world *world, const char *why);
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
    int     shard_size; /* ranks of one host that share a copy, at stages 1 to 3; 0: all ranks */
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
SHERD_CALL sherd_config_from_settings(const sherd_settings *settings, sherd_config **out);

SHERD_API void sherd_config_destroy(sherd_config *config);

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
 *  `config`. Collective: the ranks compare their configurations (with the module "differences"). */
SHERD_CALL sherd_engine_create(sherd_world *world, const sherd_config *config, sherd_engine **out);

/* Declarations. Every rank makes the same declarations, before seal. Units and parameters have
 * names, so `params` is required for them. Each call is local; seal compares the models of all
 * ranks in the same way and names the first difference. A model has at most 2^17 units, 2^17
 * acquires in a pass, and 2^20 parameters; a larger number is E_INVAL. */
SHERD_CALL sherd_unit_add(sherd_engine *engine, const sherd_unit_params *params, sherd_unit *out);
SHERD_CALL sherd_param_add(sherd_engine *engine, sherd_unit unit, const sherd_param_params *params,
                           sherd_param *out);
/** Declares that `unit` reads `param`, which belongs to another unit: while `unit` is acquired,
 *  `param` is readable too, and in backward the trainer may add to the gradient of `param`. */
SHERD_CALL sherd_unit_reads(sherd_engine *engine, sherd_unit unit, sherd_param param);

/** Makes the plan, compares it with the plans of the other ranks, and allocates all memory. After
 *  seal the training loop allocates nothing, with one exception: with several ranks, the call that
 *  ends the filling allocates a little memory while the ranks compare their values. Collective,
 *  blocking. Errors: E_INVAL (the ranks' models differ, or a setting cannot be satisfied), E_NOMEM
 *  (the plan does not fit; the message says how much memory is missing and names the nearest
 *  setting that fits; the call may be repeated), E_STATE (already sealed). */
SHERD_CALL sherd_engine_seal(sherd_engine *engine);

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
SHERD_CALL sherd_param_fill(sherd_engine *engine, sherd_param param, sherd_fill_fn fill, void *ctx);

/** Acquires a unit: makes its parameters readable and, for BACKWARD, its gradients writable. The
 *  gradients are zero at the first acquire of a micro-batch.
 *
 *  Order      Every rank acquires and releases the same units in the same order, also for EVAL. The
 *             declared order is prefetched. A different order is legal and slower. It is an error
 *             if only some ranks acquire a unit: an operation that synchronizes the ranks fails, or
 *             sherd_step drops the window (with the module "differences"; docs/calls.md).
 *
 *  Places     Acquires of different units may nest if the passes declare it (sherd_pass_add_held)
 *             or if their places in memory do not overlap (docs/calls.md). A unit may be acquired
 *             again while it is acquired, and must be released as often. For BACKWARD only a unit
 *             with SHERD_USES_ANY may be acquired twice at a time.
 *
 *  Errors     A call that fails changes nothing.
 *             E_STATE      the state of the engine does not allow the call
 *             E_INVAL      another rank makes another call, in an operation that synchronizes
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
SHERD_CALL sherd_unit_acquire(sherd_engine *engine, sherd_unit unit, sherd_pass pass);
/** Releases a unit. The unit is released even if the call fails. If its gradient cannot be reduced,
 *  the next sherd_step fails with the same error and drops the window. With several ranks, the
 *  other ranks then wait in their step, and this rank accepts only sherd_step_discard. Errors:
 *  E_STATE (not acquired), E_IO, E_PEER_LOST. */
SHERD_CALL sherd_unit_release(sherd_engine *engine, sherd_unit unit, sherd_pass pass);
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

/** Returns the factor by which the trainer multiplies the loss (or its gradient) before backward.
 *  It is constant between boundaries, and 1 unless fp16 is on. */
SHERD_API float sherd_loss_scale(const sherd_engine *engine);

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
     * for which the trainer's thread was blocked. docs/step-report.md says when they are complete,
     * and has an example. */
    double   wait_read_s;  /* for state (and spilled gradients) from NVMe */
    double   wait_write_s; /* for buffers to be written, and for the commit */
    double   wait_param_s; /* for parameters from NVMe, in acquire */
    double   update_s;     /* the optimizer's kernels */
    double   norm_s;       /* the norm of the gradient */
    uint64_t nvme_read_bytes, nvme_written_bytes;
    uint64_t link_down_bytes, link_up_bytes; /* device to host, host to device */
    /* Exposed: the trainer's work was blocked during this time. Hidden: the engine's work
     * overlapped with it. */
    double wait_gather_s; /* exposed: for parameters of other ranks */
    double wait_reduce_s; /* exposed: for reductions of gradients */
    double step_s;        /* exposed: the boundary, from the last backward to the next forward */
    double gather_s, reduce_s, copy_s; /* duration of the transfers, exposed or hidden */
    double compute_s;                  /* the trainer's work, between acquire and release */
    double exposed_s;                  /* total of the engine: the waits and the boundary */
    double hidden_s;                   /* part of gathers and reductions that was not waited for */
    /* Times of an update that was queued (sherd_step_queue); else 0. */
    double beside_s;                      /* from its beginning to the end of its commit */
    double beside_read_s, beside_write_s; /* parts of beside_s: the update waited for the drive */
    double wait_update_s;                 /* exposed: the trainer's thread waited for it */
    /* With all state on NVMe: the step whose state is complete on the drive; else -1. 0 if this
     * call is not a boundary. */
    int64_t stored_step;
    double  wait_activation_s; /* exposed: for moves of activations, in both directions */
} sherd_step_report;
SHERD_API void sherd_step_report_init(sherd_step_report *report);

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
SHERD_CALL sherd_step(sherd_engine *engine, sherd_step_report *out);

/* -------------------------------------------------- fingerprints --- */

/** Computes the fingerprint from the state: the sum modulo 2^64, over all elements, of a mix of
 *  (global element index, bits of the fp32 master weight); see docs/numerics.md. Collective. */
SHERD_CALL sherd_engine_fingerprint(sherd_engine *engine, uint64_t *out);

/* ------------------------------------------- looking inside an engine ---- */

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
SHERD_CALL sherd_engine_query(const sherd_engine *engine, sherd_engine_info *out);

/** Waits for work in flight and frees all memory. Accepts NULL. Not collective: any of the ranks
 *  may call it, in any order. In a child process that the program has forked it does nothing. An
 *  asynchronous save that no boundary and no sherd_checkpoint_wait has ended is dropped, with a
 *  warning in the log, because all ranks are needed to complete it.
 *
 *  State files on NVMe are removed at a clean end, for which a rank waits for all others, for 10
 *  seconds at most (docs/offload.md). A rank that has a lot of work at its end should do it before
 *  this call, and then call sherd_world_barrier. */
SHERD_API void sherd_engine_destroy(sherd_engine *engine);

/* Calls of modules (modules.txt). In a build without its module a call returns E_NOTSUP. These
 * headers are for this place alone: each includes this header if a program includes it first. */
#include "sherd_checkpoints.h"
#include "sherd_config.h"
#include "sherd_declarations.h"
#include "sherd_memory.h"
#include "sherd_reports.h"
#include "sherd_steps.h"
#include "sherd_values.h"
#include "sherd_worlds.h"
#include "sherd_elastic.h" /* its calls take parameters of worlds */

#ifdef __cplusplus
}
#endif
#endif
