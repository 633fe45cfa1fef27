/* The engine's object, which only engine/ sees. engine.c creates and destroys it; the trainer's calls are in engine.c, loop.c,
 * step.c and the other files named below; run.c carries out the operations that they ask of the program. Below the object, each
 * file's functions are listed under its name. */
#ifndef SHERDI_ENGINE_RUN_ENGINE_IMPL_H
#define SHERDI_ENGINE_RUN_ENGINE_IMPL_H

#include "base/api.h"
#include "collectives/world.h"
#include "engine/config/config.h"
#include "engine/monitor/monitor.h"
#include "engine/run/blobs.h"
#include "engine/run/marks.h"
#include "engine/model.h"
#include "engine/plan/plan.h"
#include "engine/run/run.h"
#include "engine/run/store.h"
#include "engine/run/values.h"
#include "kernels/backend.h"

#include <sys/types.h>

typedef enum sherdi_phase {
    SHERDI_PHASE_OPEN = 0, /* the trainer declares units and parameters */
    SHERDI_PHASE_SEALED,   /* memory is allocated; the trainer fills parameters */
    SHERDI_PHASE_RUNNING,  /* from sherdi_engine_start on: at the first acquire at the latest */
    SHERDI_PHASE_PREPARED, /* between step_prepare and apply or discard */
} sherdi_phase;

/* The time that the trainer itself spends with a unit. */
typedef struct sherdi_compute_marks {
    sherdi_mark pass[3]; /* by pass: from the outermost acquire to its release */
} sherdi_compute_marks;

/* The small data of one side's kernels (the device's or the host's), at the offsets of the plan. */
typedef struct sherdi_scalars {
    unsigned char       *memory;
    sherdi_scalars_head *head;
    sherdi_norm_acc     *norms; /* of all optimizers */
    const sherdi_span   *spans;
} sherdi_scalars;

/* The data of one optimizer in it. */
typedef struct sherdi_optimizer_scalars {
    sherdi_norm_acc *norms;  /* like ratios and groups, only with SHERDI_GRAIN_TENSOR */
    void            *coeffs; /* by group */
    float           *ratios;
    int32_t         *groups;
} sherdi_optimizer_scalars;

/* The lanes beside the compute lane (engine->backend). On the CPU all are the same lane. */
typedef struct sherdi_lanes {
    sherdi_backend *update;    /* norm and update of what rests on the device */
    sherdi_backend *up, *down; /* host to device, device to host */
} sherdi_lanes;

/* First values: what has come, by parameter. */
typedef struct sherdi_fill {
    int      *is_filled;
    uint64_t *shares;     /* of the fingerprint: frozen parameters, and state with generations */
    uint64_t *samples;    /* hash of a few values, of a parameter that ranks hold in slices */
    int       is_loaded;  /* a checkpoint gave the values ... */
    int       is_changed; /* ... and since then some were filled */
} sherdi_fill;

/* Messages that the ranks exchange, one per rank. */
typedef struct sherdi_exchange {
    sherdi_agree_message   *agree;
    sherdi_norm_message    *norm;
    sherdi_publish_message *publish;
    sherdi_unit_uses       *uses; /* [world_size x units]; exchanged only when ranks disagree */
    uint64_t               *used; /* [world_size x sherdi_plan_used_words] */
} sherdi_exchange;

/* The buffers of the plan. */
typedef struct sherdi_memory {
    unsigned char *buffers[SHERDI_BUFFERS];
    unsigned char  nothing[64]; /* address of buffers without bytes; offset 0 is valid in them */
    int            is_shared[SHERDI_BUFFERS];  /* allocated by the world */
    int            is_devices[SHERDI_BUFFERS]; /* allocated by the device */
} sherdi_memory;

/* The micro-batches since the last boundary. */
typedef struct sherdi_window {
    int            micro_seen;
    int            micro_backward; /* how many of these had a backward pass */
    int            has_begun; /* a unit was acquired for FORWARD or BACKWARD in this micro-batch */
    int            has_backward; /* a unit was acquired for BACKWARD in this micro-batch */
    int            is_closing;   /* 1: the next step ends the window */
    int64_t        first_micro;  /* micro_step at the last boundary */
    sherdi_outcome lost;         /* the failure that lost a gradient: the window will be dropped */
    char           untold_text[SHERDI_ERROR_BYTES]; /* "": none; see others_tell in loop.c */
    int    is_left; /* step failed on this rank alone: others wait in theirs for its discard */
    double sumsq;   /* of the prepared gradient, before sherdi_optimizer_unscale */
    sherdi_fixed_sink fixed_sink;
} sherdi_window;

/* Fingerprints as far as they are known. */
typedef struct sherdi_fingerprints {
    uint64_t frozen;  /* of frozen parameters, over all ranks */
    uint64_t own;     /* of this rank's master weights ... */
    int      has_own; /* ... valid if set: it is computed when it is needed */
} sherdi_fingerprints;

/* Why the engine is lost (poisoned). */
typedef struct sherdi_failure {
    sherdi_outcome why;      /* SHERD_OK: it is not lost */
    int            is_final; /* undo does not help; it can only be destroyed */
} sherdi_failure;

/* The data file of frozen parameters that the last checkpoint wrote; the next checkpoint takes it over. */
typedef struct sherdi_kept_frozen {
    char     path[4096];
    uint64_t bytes; /* 0: there is none */
    uint64_t header_checksum;
    uint64_t fingerprint; /* of the parameters in it, over all ranks */
} sherdi_kept_frozen;

/* What the trainer said of its run, and how it differs from the run that was resumed. */
typedef struct sherdi_identity {
    char run_text[SHERDI_RUN_TEXT_BYTES]; /* written with every commit */
    char resume_differs[4 * SHERDI_RUN_TEXT_BYTES];
} sherdi_identity;

/* What people watch (watch.c); used on rank 0. */
typedef struct sherdi_watch {
    sherdi_monitors monitors;
    double          forward_s, backward_s; /* the trainer's time between the last two boundaries */
    int64_t         printed_ns, printed_micro; /* at the last line of steps_per_print */
} sherdi_watch;

struct sherd_engine {
    sherdi_mem            mem;
    sherd_world          *world;
    sherdi_backend       *backend; /* the compute lane: the trainer's memory and kernels */
    const sherdi_backend *host;    /* the CPU; also where it is the only device */
    sherdi_lanes          lanes;   /* from seal on */
    int                   rank, world_size;
    pid_t                 process; /* the creator; a forked child cannot use the engine */
    sherdi_settings       settings;
    sherdi_model          model;
    int             first_group; /* first group for which a list of the schedule has a number */
    sherdi_phase    phase;
    sherdi_failure  failure;
    sherdi_identity identity;
    sherdi_blobs    blobs;

    /* from seal on */
    sherdi_plan          *plan;
    sherdi_memory         memory;
    sherdi_compute_marks *compute_marks; /* by unit */
    uint64_t             *param_hashes;  /* by parameter, while its unit is held; debug.c */
    sherdi_fill           fill;
    sherdi_values_call    values_call;     /* of the event under way */
    sherdi_scalars        device, on_host; /* equal if the device's memory is the host's */
    unsigned char        *scalars_own;     /* if the plan has no buffer for them */
    sherdi_scalars_head   results;         /* of kernels, as last collected */
    sherdi_exchange       exchange;
    sherdi_fingerprints   fingerprints;
    uint64_t              wire_at_seal; /* bytes that the world had sent by then */
    sherdi_store          store;
    sherdi_run            run;
    sherdi_marks          marks;
    sherdi_mark           step_mark;      /* of the boundary in progress */
    sherdi_world_observer observer;       /* of the calls of this engine */
    uint64_t              boundary_marks; /* marks.begun at the end of the last boundary */
    sherdi_watch          watch;

    int               is_evaluating; /* 1: between sherd_eval_begin and sherd_eval_end */
    sherdi_window     window;
    sherdi_scaler     scaler;
    int64_t           micro_step, step, skipped_steps;
    sherd_step_report report;   /* of the last micro-batch */
    sherd_step_report boundary; /* of the last boundary */

    struct sherdi_save *save; /* in progress (checkpoint/save.c); NULL: none */
    sherd_status (*at_boundary)(sherd_engine *engine); /* advances the save; collective; or NULL */
    sherdi_outcome          save_failure;              /* until the trainer asks for it */
    sherd_checkpoint_report checkpoint;                /* of the last save or load */
    sherdi_kept_frozen      kept_frozen;
};

/* ---- engine.c */
/** Returns "forward", "backward" or "eval". */
const char *sherdi_engine_pass_name(sherd_pass pass);
/** Makes this rank's plan for a machine, from what is declared. */
sherd_status sherdi_engine_plan_make(sherd_engine *engine, const sherdi_machine *machine,
                                     sherdi_plan **out);
void         sherdi_engine_poison(sherd_engine *engine, sherd_status status);
/** Call it with the outcome of a call that moved or computed data. On E_DEVICE the device is lost with its memory: the engine is
 *  poisoned, and with more than one rank the world is aborted, because the others would wait for this rank. Returns `status`. */
sherd_status sherdi_engine_outcome(sherd_engine *engine, sherd_status status);
/** Starts the engine, at the first acquire or an earlier call that needs it started: checks that everything is filled, and that
 *  the ranks agree on what is whole. Collective. */
sherd_status sherdi_engine_start(sherd_engine *engine);

/* ---- fill.c */
/** Allocates the tables of what is to be filled; call it after the plan was made. E_NOMEM. */
sherd_status sherdi_fill_open(sherd_engine *engine);
void         sherdi_fill_close(sherd_engine *engine);
/** Waits until everything that was filled is on the drive. E_IO: another call tries again. */
sherd_status sherdi_fill_settle(sherd_engine *engine);
/** Checks that every parameter is filled (fills bound ones from their own memory), and that parameters that are whole on every
 *  rank are equal there. Collective. */
sherd_status sherdi_fill_finish(sherd_engine *engine);
/** Returns whether the start of this engine commits its state: it was not resumed, and is not just what a checkpoint had. */
int sherdi_fill_commits(const sherd_engine *engine);
/** Sums the element mixes of what this rank owns and trains, from the master weights. Reads the whole state. E_IO. */
sherd_status sherdi_fill_own_fingerprint(sherd_engine *engine, uint64_t *out);
/** Does the same for a range of one parameter, frozen or not. */
sherd_status sherdi_fill_range_fingerprint(sherd_engine *engine, const sherdi_values *values,
                                           uint64_t *out);

/* ---- machine.c */
/** Measures what this host has; gives the same on all ranks. Collective. */
sherd_status sherdi_machine_detect(sherd_world *world, sherdi_machine *out);
/** Returns the bytes left under a control group's limit, from the files of either version; the group's page cache that can be
 *  reclaimed counts as left. SIZE_MAX: no limit. */
size_t sherdi_machine_group_left(const char *folder);

/* ---- agree.c: what must be the same on all ranks, and who differs */
/** Makes all ranks fail if one does. Each rank comes with its own outcome, and leaves with a failure if any rank had one: its
 *  own, or one that names the other rank. Allocates nothing. Collective. */
sherd_status sherdi_agree_status(sherd_world *world, sherd_status own);
/** Does the same where the ranks first meet in a call of the trainer, which it names where they do not. */
sherd_status sherdi_agree_status_of(sherd_world *world, sherd_status own, const char *call);
/** Compares a word of each rank; `what` is as in sherdi_world_exchange. *odd_out is the first rank whose word is not rank 0's; 0: all
 *  agree. Collective. */
sherd_status sherdi_agree_word(sherd_engine *engine, uint64_t word, const char *what, int *odd_out);
sherd_status sherdi_agree_settings(sherd_world *world, const sherdi_settings *settings,
                                   sherdi_mem *mem);
sherd_status sherdi_agree_model(sherd_engine *engine);
/** An argument that must be equal on all ranks. */
typedef struct sherdi_argument {
    const char *name;
    uint64_t    value;
} sherdi_argument;
/** Checks that all ranks make the same call with the same arguments. Each rank comes with the outcome of its own checks, and
 *  leaves with a failure if any rank had one. E_INVAL names the rank and the first argument that differs. Call it after seal.
 *  Allocates nothing. Collective. */
sherd_status sherdi_agree_call(sherd_engine *engine, const char *call,
                               const sherdi_argument *arguments, size_t count, sherd_status own);
/** At the end of a micro-batch: begins, on every rank, the gradients of open-ended units that another rank has, and tells every
 *  rank whether any had a backward pass. Does nothing if there are no such units. Collective. */
sherd_status sherdi_agree_used(sherd_engine *engine);
/** Compares which units the ranks used in the window; call it before the window's gradients are reduced. E_STATE names the unit
 *  and the ranks that differ, or says that a micro-batch had no backward pass. Collective. */
sherd_status sherdi_agree_uses(sherd_engine *engine);

/* ---- loop.c */
/** Acquires a unit; a call that fails changes nothing. */
sherd_status sherdi_loop_acquire(sherd_engine *engine, int unit, sherd_pass pass);
/** Releases a unit, even if something fails; then the window is lost. */
sherd_status sherdi_loop_release(sherd_engine *engine, int unit, sherd_pass pass);
/** Releases all acquired units without completing their gradients; the caller drops the window next. */
void sherdi_loop_let_go(sherd_engine *engine);
/** Ends a micro-batch: completes the gradients that are open, in the order of the plan. */
sherd_status sherdi_loop_micro_batch_end(sherd_engine *engine);
/** Records that a failure has lost the window. Returns the window's first failure. */
sherd_status sherdi_loop_lose(sherd_engine *engine, sherd_status status);
/** Records that this rank alone ends its step with a failure, before it has met the other ranks. */
void sherdi_loop_leave(sherd_engine *engine, sherd_status status);
/** Returns E_STATE while other ranks wait for this one to discard its window: a collective call of this rank would meet the one
 *  in which they wait. */
sherd_status sherdi_loop_left_check(const sherd_engine *engine);
/** The engine is being destroyed: aborts the world if a failure of this rank's drive has left other ranks waiting. */
void sherdi_loop_give_up(sherd_engine *engine);
/** Begins a window, after the last one is over or dropped. */
void sherdi_loop_window_begin(sherd_engine *engine);
/** Reads parameters ahead for the next training pass. */
void sherdi_loop_fetch_ahead(sherd_engine *engine);
/** Returns where a segment's whole lies now; NULL: it is not gathered. */
unsigned char *sherdi_loop_segment(sherd_engine *engine, const sherdi_segment *segment);
/** Returns a parameter's memory (the trainer's own, if it is bound). Its unit must be held. */
unsigned char *sherdi_loop_param(sherd_engine *engine, size_t param);
/** Hashes all bytes of a parameter, which must be held or whole on every rank; they come to the host in portions. E_DEVICE. */
sherd_status sherdi_loop_param_hash(sherd_engine *engine, size_t param, uint64_t *out);
/** Returns where gradients of a segment are made; NULL: it has none. */
unsigned char *sherdi_loop_micro_gradient(sherd_engine *engine, const sherdi_segment *segment);
static inline sherdi_unit_state *sherdi_unit_of(const sherd_engine *engine, int unit)
{
    return &engine->run.progress.units[unit];
}

/* ---- eval.c */
/** Does what sherd_eval_end does, except for what is gathered. */
void sherdi_eval_drop(sherd_engine *engine);

/* ---- debug.c: these do nothing unless SHERD_DEBUG is set */
/** Notes a hash of each of a unit's parameters. E_DEVICE. */
sherd_status sherdi_debug_params_note(sherd_engine *engine, int unit);
/** Compares the parameters with those hashes. E_STATE names the first one that has changed; E_DEVICE. */
sherd_status sherdi_debug_params_check(sherd_engine *engine, int unit);

/* ---- groups.c */
/** Joins sherd.groups with the groups that the program has declared. E_INVAL (they contradict each other, or no parameter is in a
 *  group), E_NOMEM. */
sherd_status sherdi_groups_settle(sherd_engine *engine);
/** Finds the optimizer that a group names. E_NOTSUP: there is none of that name. E_INVAL: it does not go with the engine's
 *  own. */
sherd_status sherdi_group_optimizer_find(const sherd_engine *engine, const char *group,
                                         const char *name, const sherdi_optimizer **out);

/* ---- optimizer.c */
/** Checks that each list of the schedule has one number for each parameter group; the default group counts if a trainable
 *  parameter is in it. E_INVAL. */
sherd_status sherdi_optimizer_check_lists(const sherd_engine *engine);
/** Returns the factor that turns the prepared gradient into the mean over the window, without the loss scale. */
double sherdi_optimizer_unscale(const sherd_engine *engine);

/** Writes the coefficients of this update, of all groups, for the kernels of both sides. Returns their hash. */
uint64_t sherdi_optimizer_coeffs(sherd_engine *engine, const sherd_step_params *params,
                                 double grad_scale, int64_t step);
double   sherdi_optimizer_group_lr(const sherd_engine *engine, const sherd_step_params *params,
                                   int group, int64_t step);

/* ---- watch.c: what steps_per_print, the breakdowns, the monitors and comms_logger show */
/** Opens the monitors' files on rank 0. E_IO, E_INVAL, E_NOMEM. */
sherd_status sherdi_watch_open(sherd_engine *engine);
/** Logs the memory that is held, if the configuration asks for it. */
void sherdi_watch_sealed(sherd_engine *engine);
/** Call it when the report of a boundary is complete. Failures are not reported. */
void sherdi_watch_boundary(sherd_engine *engine);
/** Closes the monitors' files; accepts a watch that was never opened. */
void sherdi_watch_close(sherd_engine *engine);

/* ---- update.c */
/** Runs the first of two sweeps: the norms, and the ratios of all parameters. It writes no state, so if it fails on one rank, all
 *  ranks fail and the old state is whole. Does nothing if no optimizer measures first. Collective. */
sherd_status sherdi_update_measure(sherd_engine *engine);
/** Updates every block and publishes. E_IO on any rank is returned on every rank. Collective. */
sherd_status sherdi_update_range(sherd_engine *engine);
/** Sums the fingerprint of this rank's state, by a walk over it. E_IO. */
sherd_status sherdi_update_fingerprint(sherd_engine *engine, sherdi_scalars_head *out);
/** Hands every block of this rank's state to `fn`. Changes nothing. Local. E_IO, or what `fn` returns. */
sherd_status sherdi_update_save(sherd_engine *engine, sherdi_block_fn fn, void *ctx);
/** Takes the values of every block from `fn`, and makes new parameters from the master weights. On a drive this is a generation
 *  that is not committed yet. `walk`: SHERDI_WALK_LOAD or _LOAD_SOME. Afterwards the fingerprint of the masters is unknown;
 *  whoever gives the masters can compute it. Collective. */
sherd_status sherdi_update_load(sherd_engine *engine, sherdi_walk walk, sherdi_block_fn fn,
                                void *ctx);
/** Makes new parameters from the master weights in the state; gives this rank's fingerprint of them. Collective. */
sherd_status sherdi_update_republish(sherd_engine *engine, uint64_t *own_out);
/** Exchanges how it went on each rank. *out is the sum of the fingerprints. Where another rank failed, the
 *  message is "rank 1 failed <when>". Collective. */
sherd_status sherdi_update_agree(sherd_engine *engine, sherd_status status, uint64_t own,
                                 const char *when, uint64_t *out);
/* ---- run.c */
/** Makes events for the lanes and room for transfers; call it after the plan was made. E_NOMEM, E_DEVICE. */
sherd_status sherdi_run_open(sherd_engine *engine);
/** Waits for transfers, then frees all that. */
void sherdi_run_close(sherd_engine *engine);
/** Gathers the `mine` of every rank in `all`; `what` is as in sherdi_world_exchange. Meets; blocks. */
sherd_status sherdi_run_exchange(sherd_engine *engine, const void *mine, void *all,
                                 size_t len_bytes, const char *what);
/** Commits what was written of the state, as the state after update `step`. */
sherd_status sherdi_run_commit(sherd_engine *engine, int64_t step, uint64_t fingerprint,
                               const sherdi_scaler *scaler);
/** The same between two updates, with the engine's counters and fingerprint; undo cannot go back behind it. */
sherd_status sherdi_run_commit_written(sherd_engine *engine);
/** Moves the state on a drive forward (SHERDI_OP_COMMIT) or back (SHERDI_OP_ABANDON, SHERDI_OP_ROLLBACK); the record is in
 *  engine->run. */
sherd_status sherdi_run_generation(sherd_engine *engine, sherdi_op_kind kind);
/** Waits until all collectives are over. Returns the first failure. */
sherd_status sherdi_run_drain(sherd_engine *engine);
/** Copies `count` elements of a part of the operation's block to `out`; what is in a device's memory comes through its copies.
 *  Call it from a sherdi_block_fn. E_DEVICE. */
sherd_status sherdi_run_block_get(sherd_engine *engine, const sherdi_op *op, int part,
                                  size_t offset_elems, size_t count, float *out);
/** Copies `values` into the part; they may change after it returns. */
void sherdi_run_block_put(sherd_engine *engine, const sherdi_op *op, int part, size_t offset_elems,
                          size_t count, const float *values);
/** Waits until all transfers of a ring are over or dropped; then nothing is in its slots. Returns the first failure. */
sherd_status sherdi_run_settle(sherd_engine *engine, sherdi_ring ring);
/** Drops all that is gathered or under way, and what was written and not committed. Local. E_IO, E_DEVICE. */
sherd_status sherdi_run_drop(sherd_engine *engine);

/* ---- restore.c */
/** Continues from the state that was found on the drive, at the newest generation that all ranks have. Collective. */
sherd_status sherdi_restore_resume(sherd_engine *engine);
/** Goes back to generation `wanted`, which is the live one or, on ranks that are ahead, the one before it. What is not committed
 *  is dropped; counters and parameters become what they were. A failure poisons the engine if some rank may be at `wanted`
 *  already; the next undo then takes all ranks there. Collective. */
sherd_status sherdi_restore_generation(sherd_engine *engine, uint64_t wanted);

/* ---- scalars.c */
sherdi_optimizer_scalars sherdi_scalars_of_optimizer(const sherdi_scalars        *scalars,
                                                     const sherdi_plan_optimizer *of);
sherd_status             sherdi_scalars_open(sherd_engine *engine);
void                     sherdi_scalars_close(sherd_engine *engine);
/** Copies what kernels are told to the device, on the update lane. */
void sherdi_scalars_tell(sherd_engine *engine);
/** Gives the results of both sides together, with the norm normalised; adds the device's norms of tensors to the host's. Waits
 *  for the update lane, which must already follow the lanes that add to them. */
sherd_status sherdi_scalars_read(sherd_engine *engine, sherdi_scalars_head *out);

/* ---- address.c */
/** What sherd_param_address and sherd_param_grad_address do, with a status. */
sherd_status sherdi_param_locate(sherd_engine *engine, sherd_param param, void **out);
sherd_status sherdi_param_locate_grad(sherd_engine *engine, sherd_param param, void **out);

/* ---- lanes.c */
sherd_status sherdi_lanes_open(sherd_engine *engine);
void         sherdi_lanes_close(sherd_engine *engine);
/** Makes the trainer's next kernels run after the update. */
void sherdi_lanes_join(sherd_engine *engine);
/** Waits for all lanes; ignores their failures. */
void sherdi_lanes_drain(sherd_engine *engine);
/** Returns whether device memory is separate from the host's. */
static inline int sherdi_has_device(const sherd_engine *engine)
{
    return engine->backend->device->is_async;
}
/** Begins the mark of a collective on its lane. A transport that runs on the host reports its time itself. */
static inline sherdi_mark sherdi_collective_mark(sherd_engine *engine, sherdi_mark_kind kind,
                                                 const char *what, size_t slice_bytes)
{
    const sherdi_backend *lane = sherdi_world_backend(engine->world);

    if (!lane->device->is_async ||
        !(engine->world_size == 1 || sherdi_world_caps(engine->world) & SHERDI_WORLD_ON_LANE)) {
        return (sherdi_mark){.slot = -1};
    }
    return sherdi_mark_begin(&engine->marks, kind, lane, what,
                             sherdi_wire_all_gather(engine->world_size, slice_bytes));
}
static inline void sherdi_collective_mark_end(sherd_engine *engine, const sherdi_mark *mark)
{
    sherdi_mark_end(&engine->marks, sherdi_world_backend(engine->world), mark);
}
/** Copies bytes of the host to memory of a space; `src` may change after it returns. */
void sherdi_space_put(sherd_engine *engine, sherdi_space space, void *dst, const void *src,
                      size_t len_bytes);
/** Copies bytes of a space to the host. Blocks. */
sherd_status sherdi_space_get(sherd_engine *engine, sherdi_space space, void *dst, const void *src,
                              size_t len_bytes);

/* Return the lane that works on memory of a space, and the scalars that its kernels read and add to. */
static inline const sherdi_backend *sherdi_space_lane(const sherd_engine *engine,
                                                      sherdi_space        space)
{
    return space == SHERDI_SPACE_DEVICE ? engine->lanes.update : engine->host;
}

static inline const sherdi_scalars *sherdi_space_scalars(const sherd_engine *engine,
                                                         sherdi_space        space)
{
    return space == SHERDI_SPACE_DEVICE ? &engine->device : &engine->on_host;
}

/* ---- copies between device and host: counted, on the lanes of the link */
void sherdi_link_down(sherd_engine *engine, void *dst, const void *src, size_t len_bytes);
void sherdi_link_up(sherd_engine *engine, void *dst, const void *src, size_t len_bytes);

#endif
