/* The engine's object, which only engine/ sees. The functions for a part of it are in the header of
 * this part. */
#ifndef SHERDI_ENGINE_RUN_ENGINE_IMPL_H
#define SHERDI_ENGINE_RUN_ENGINE_IMPL_H

#include "base/api.h"
#include "collectives/world.h"
#include "engine/config/config.h"
#include "engine/model.h"
#include "engine/program/program.h"
#include "engine/run/parts_list.h"
#include "engine/run/run.h"
#include "kernels/backend.h"

#include <sys/types.h>

typedef enum sherdi_phase {
    SHERDI_PHASE_OPEN = 0, /* the trainer declares units and parameters */
    SHERDI_PHASE_SEALED,   /* memory is allocated; the trainer fills parameters */
    SHERDI_PHASE_RUNNING,  /* from sherdi_fill_finish on: at the first acquire at the latest */
    SHERDI_PHASE_PREPARED, /* between step_prepare and apply or discard */
} sherdi_phase;

/* The small data of one side's kernels (the device's or the host's), at the offsets of the plan. */
typedef struct sherdi_scalars {
    unsigned char       *memory;
    sherdi_scalars_head *head;
    sherdi_norm_acc     *norms; /* of all optimizers */
    const sherdi_span   *spans;
} sherdi_scalars;

/* The lanes other than the compute lane (engine->backend). On the CPU all are the same lane. */
typedef struct sherdi_lanes {
    const struct sherdi_lanes_ops *ops; /* NULL: there are none */
    sherdi_op_fn run; /* receives the operations of the program; NULL: they are executed at once */
    struct sherdi_lanes_impl *own;       /* of the module */
    sherdi_backend           *update;    /* norm and update of what rests on the device */
    sherdi_backend           *up, *down; /* host to device, device to host */
} sherdi_lanes;

/** Receives or gives the values of elements [first, first + count) of the parameter. They lie in
 *  the fill buffer, and `values` is valid until this function returns. `part` is numbered as in
 *  sherdi_values.parts. A return other than SHERD_OK ends the call, which returns the same
 *  status. */
typedef sherd_status (*sherdi_values_fn)(void *ctx, int part, size_t first, size_t count,
                                         float *values);

/* Who gives or receives the values of the event under way. */
typedef struct sherdi_values_call {
    sherdi_values_fn fn;
    void            *ctx;
    float            scale; /* factor for values that `fn` receives; 0: unscaled */
} sherdi_values_call;

/* First values: progress by parameter. */
typedef struct sherdi_fill {
    int      *is_filled;
    uint64_t *shares;     /* of the fingerprint: frozen parameters, and state with generations */
    uint64_t *samples;    /* hash of a few values, of a parameter that ranks hold in slices */
    int       is_loaded;  /* a checkpoint gave the values ... */
    int       is_changed; /* ... and since then some were filled */
} sherdi_fill;

/* Memory for the exchanges about units. */
typedef struct sherdi_exchange {
    sherdi_unit_uses *own_uses; /* [units] */
    sherd_status      status;   /* of the last one by sherdi_agree_on: whether the ranks have met */
    sherdi_unit_uses *uses;     /* [world_size x units]; exchanged only when ranks disagree */
    uint64_t         *used;     /* [world_size x plan->layout.used_words]; of uses.c */
    double           *factors;  /* [plan->world_size], of weighing.c; NULL: all are 1 */
} sherdi_exchange;

/* The buffers of the plan. */
typedef struct sherdi_memory {
    unsigned char *buffers[SHERDI_BUFFERS];
    unsigned char  nothing[64]; /* address of buffers without bytes; offset 0 is valid in them */
} sherdi_memory;

/* The call that ends a micro-batch. */
typedef enum sherdi_step_call {
    SHERDI_STEP_WHOLE = 0,
    SHERDI_STEP_QUEUED,
    SHERDI_STEP_PREPARED,
} sherdi_step_call;

/* Weights of micro-batches: weighing.c. */
typedef struct sherdi_weighing {
    uint64_t own;             /* of this micro-batch, if it was given ... */
    int      is_given;        /* ... by the trainer */
    int      is_told;         /* it is fixed */
    int      is_without_data; /* this rank has skipped this micro-batch */
    double   factor;          /* of its gradients */
    uint64_t sum;             /* of the window on this rank */
    uint64_t total;           /* and on all ranks, at its end */
} sherdi_weighing;

/* The micro-batches since the last boundary. */
typedef struct sherdi_window {
    int micro_seen;
    int micro_backward;    /* how many of these had a backward pass */
    int has_begun;         /* a unit was acquired for FORWARD or BACKWARD in this micro-batch */
    int has_backward;      /* a unit was acquired for BACKWARD in this micro-batch */
    int is_closing;        /* 1: the next step ends the window */
    sherdi_step_call call; /* that is under way, or the last one */
    int64_t          first_micro; /* micro_step at the last boundary */
    sherdi_outcome   lost;        /* the failure that lost a gradient: the window will be dropped */
    char             unsent_text[SHERDI_ERROR_BYTES]; /* "": none; see others_tell in alone.c */
    size_t met;     /* the acquire for which the ranks have met and that is not done; debug.c */
    int    is_left; /* step failed on this rank alone: others wait in theirs for its discard */
    double sumsq;   /* of the prepared gradient, before sherdi_optimizer_unscale */
    double counted; /* micro-batches of all ranks over which the mean is */
    sherdi_weighing   weighing;
    sherdi_fixed_sink fixed_sink;
} sherdi_window;

/* Fingerprints as far as they are known. */
typedef struct sherdi_fingerprints {
    uint64_t frozen;  /* of frozen parameters, over all ranks */
    uint64_t own;     /* of this rank's master weights ... */
    int      has_own; /* ... valid if set: it is computed when it is needed */
    int      is_sent; /* by the last walk: it is on its way (sherdi_program_fingerprint_sent) */
    int      is_unreported; /* the report of the last boundary lacks it; the same on all ranks */
} sherdi_fingerprints;

/* Updates that are queued, a module. */
typedef struct sherdi_queue {
    const struct sherdi_queue_ops *ops; /* NULL: no update is queued */
} sherdi_queue;

/* How long things take, a module: times of the window and of the last boundary. In a build without
 * it all times of a report are 0. */
typedef struct sherdi_times {
    const struct sherdi_times_ops *ops;    /* NULL: nothing is timed */
    uint64_t             boundary_wire;    /* last operation of the wire that it had enqueued */
    struct sherdi_marks *own;              /* of the module */
    const sherdi_world_observer *observer; /* of the engine's collectives; NULL: nobody listens */
} sherdi_times;

/* Why the engine is lost (poisoned). */
typedef struct sherdi_failure {
    sherdi_outcome why;      /* SHERD_OK: it is not lost */
    int            is_final; /* undo does not help; it can only be destroyed */
} sherdi_failure;

/* The trainer's description of its run, and the differences from the run that was resumed. */
typedef struct sherdi_identity {
    char run_text[SHERDI_RUN_TEXT_BYTES]; /* written with every commit */
    char resume_differs[4 * SHERDI_RUN_TEXT_BYTES];
} sherdi_identity;

/* Scalars: the inputs and results of kernels other than data. */
typedef struct sherdi_kernel_data {
    sherdi_scalars device, on_host;           /* equal if the device's memory is the host's */
    const struct sherdi_scalars_ops *ops;     /* NULL: they are equal */
    unsigned char                   *own;     /* if the plan has no buffer for them */
    sherdi_scalars_head              results; /* of kernels, as last collected */
} sherdi_kernel_data;

/* Progress of the training. */
typedef struct sherdi_counters {
    int64_t micro_step, step, skipped_steps;
    /* Samples of earlier runs minus the samples that their micro-batches would have with this run's
     * batch and ranks */
    int64_t samples_before;
} sherdi_counters;

/* The call that executes a function of the program, and the earlier note of the world; NULL: no
 * call does. */
typedef struct sherdi_callback {
    const char *of, *of_world;
} sherdi_callback;

struct sherd_engine {
    sherdi_mem            mem;
    sherd_world          *world;   /* of all ranks: they agree, and exchange messages */
    sherd_world          *shards;  /* of those that share one copy; without replicas `world` */
    sherd_world          *group;   /* besides: of ranks with the same slices in other replicas */
    sherdi_backend       *backend; /* the compute lane: the trainer's memory and kernels */
    const sherdi_backend *host;    /* the CPU; also where it is the only device */
    sherdi_lanes          lanes;   /* from seal on */
    int                   rank, world_size;
    pid_t                 process; /* the creator; a forked child cannot use the engine */
    sherdi_settings       settings;
    sherdi_model          model;
    sherdi_phase          phase;
    sherdi_failure        failure;
    sherdi_identity       identity;
    struct sherdi_blobs  *blobs; /* of the module (blobs.h) */

    /* from seal on */
    sherdi_plan  *plan;
    sherdi_memory memory;
    SHERDI_OWN_MEMBERS
    uint64_t            *param_hashes; /* by parameter, while its unit is held; debug.c */
    sherdi_fill          fill;
    sherdi_values_call   values_call; /* of the event under way */
    sherdi_kernel_data   kernel_data;
    sherdi_exchange      exchange;
    sherdi_fingerprints  fingerprints;
    sherdi_storage       storage;
    sherdi_run           run;
    sherdi_updater       updater;
    sherdi_queue         queue;
    sherdi_times         times;
    struct sherdi_watch *watch; /* what people watch (watch.c); NULL: nothing */

    int               is_evaluating; /* 1: between sherd_eval_begin and sherd_eval_end */
    sherdi_window     window;
    sherdi_scaler     scaler;
    sherdi_counters   counters;
    sherd_step_report report;   /* of the last micro-batch */
    sherd_step_report boundary; /* of the last boundary */

    sherdi_callback callback;

    struct sherdi_checkpoints *checkpoints; /* of the module (checkpoint/save.h) */
};

/** Returns the samples of a number of micro-batches of all ranks; some ranks may lack data. */
static inline int64_t sherdi_samples_of(const sherd_engine *engine, int64_t micro_batches)
{
    const sherdi_batch_settings *batch = &engine->settings.batch;
    int64_t                      steps = micro_batches / batch->accumulation;
    int64_t                      rest  = sherdi_samples(micro_batches - steps * batch->accumulation,
                                                        batch->micro_batch_size, engine->world_size);

    return sherdi_samples(steps, batch->train_batch_size, 1) +
           (rest < batch->train_batch_size ? rest : batch->train_batch_size);
}
/** Returns the samples that all ranks had seen after a micro-batch, including those of earlier
 *  runs. */
static inline int64_t sherdi_samples_at(const sherd_engine *engine, int64_t micro_step)
{
    return (int64_t)((uint64_t)engine->counters.samples_before +
                     (uint64_t)sherdi_samples_of(engine, micro_step));
}
static inline int64_t sherdi_samples_seen(const sherd_engine *engine)
{
    return sherdi_samples_at(engine, engine->counters.micro_step);
}
/** Sets the counters of seen samples and micro-batches. */
static inline void sherdi_samples_set(sherd_engine *engine, int64_t micro_step, int64_t samples)
{
    engine->counters.micro_step = micro_step;
    engine->counters.samples_before =
        (int64_t)((uint64_t)samples - (uint64_t)sherdi_samples_of(engine, micro_step));
}

/** Returns the world in which operations of a lane of the wire meet. */
static inline sherd_world *sherdi_world_of(const sherd_engine *engine, sherdi_lane_id lane)
{
    return lane == SHERDI_LANE_GROUP ? engine->group : engine->shards;
}

static inline sherdi_unit_state *sherdi_unit_of(const sherd_engine *engine, int unit)
{
    return &engine->run.progress.units[unit];
}

#endif
