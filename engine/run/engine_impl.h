/* The engine's object, seen inside this folder only. engine.c owns it; loop.c and step.c are what
 * the trainer calls, run.c carries out what both ask of the program. */
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
    SHERDI_PHASE_OPEN = 0, /* declarations */
    SHERDI_PHASE_SEALED,   /* memory is there; filling */
    SHERDI_PHASE_RUNNING,  /* the first acquire has come */
    SHERDI_PHASE_PREPARED, /* between step_prepare and apply or discard */
} sherdi_phase;

/* The trainer's own time with a unit. */
typedef struct sherdi_compute_marks {
    sherdi_mark pass[3]; /* the outermost acquire, until it is released */
} sherdi_compute_marks;

/* One side's small data of kernels, at the offsets of the plan. */
typedef struct sherdi_scalars {
    unsigned char       *memory;
    sherdi_scalars_head *head;
    sherdi_norm_acc     *norms; /* of all optimizers */
    const sherdi_span   *spans;
} sherdi_scalars;

/* One optimizer's in it. */
typedef struct sherdi_optimizer_scalars {
    sherdi_norm_acc *norms;  /* as ratios and groups, of SHERDI_GRAIN_TENSOR only */
    void            *coeffs; /* by group */
    float           *ratios;
    int32_t         *groups;
} sherdi_optimizer_scalars;

/* Orders of work beside the compute lane (engine->backend). On the CPU all are one. */
typedef struct sherdi_lanes {
    sherdi_backend *update;    /* norm and update of what rests on the device */
    sherdi_backend *up, *down; /* host to device, device to host */
} sherdi_lanes;

/* First values: what came, by parameter. */
typedef struct sherdi_fill {
    int      *is_filled;
    uint64_t *shares;     /* of the fingerprint: what is frozen, and state that has generations */
    uint64_t *samples;    /* hash of a few values of a parameter that ranks hold in slices */
    int       is_loaded;  /* a checkpoint gave the values ... */
    int       is_changed; /* ... but those that were filled since */
} sherdi_fill;

/* What ranks tell each other, one message per rank. */
typedef struct sherdi_exchange {
    sherdi_agree_message   *agree;
    sherdi_norm_message    *norm;
    sherdi_publish_message *publish;
    sherdi_unit_uses       *uses; /* world_size x units: only looked at when ranks disagree */
    uint64_t               *used; /* world_size x sherdi_plan_used_words */
} sherdi_exchange;

/* The buffers of the plan. */
typedef struct sherdi_memory {
    unsigned char *buffers[SHERDI_BUFFERS];
    unsigned char  nothing[64]; /* where buffers of no bytes are: an offset of 0 is one */
    int            is_shared[SHERDI_BUFFERS];  /* allocated by the world */
    int            is_devices[SHERDI_BUFFERS]; /* ... by the device */
} sherdi_memory;

/* The micro-batches since the last boundary. */
typedef struct sherdi_window {
    int          micro_seen;
    int          micro_backward; /* of these, with a backward pass */
    int          has_backward;   /* a unit was acquired for BACKWARD since the last step */
    int          is_closing;     /* the window ends with the next step */
    int64_t      first_micro;    /* the engine's count of them at the last boundary */
    sherd_status lost;           /* what a gradient was lost to: the window will be dropped */
    char         lost_text[SHERDI_ERROR_BYTES];
    char         untold_text[SHERDI_ERROR_BYTES]; /* see others_tell in loop.c; "": nothing */
    int          is_left; /* its step failed here alone: other ranks wait in theirs for a discard */
    double       sumsq;   /* of the prepared gradient, before unscaling */
    sherdi_fixed_sink fixed_sink;
} sherdi_window;

/* Fingerprints that are known. */
typedef struct sherdi_fingerprints {
    uint64_t frozen;  /* of all ranks */
    uint64_t own;     /* of this rank's master weights ... */
    int      has_own; /* ... once somebody had to know */
} sherdi_fingerprints;

/* Why only destroy is accepted. */
typedef struct sherdi_failure {
    sherd_status status;   /* SHERD_OK: it is not so */
    int          is_final; /* no undo helps */
    char         text[SHERDI_ERROR_BYTES];
} sherdi_failure;

/* The data file of frozen parameters of the last checkpoint: the next one has it too. */
typedef struct sherdi_kept_frozen {
    char     path[4096];
    uint64_t bytes; /* 0: none */
    uint64_t header_checksum;
    uint64_t fingerprint; /* of the parameters in it, of all ranks */
} sherdi_kept_frozen;

/* Which run it is, in the trainer's words. */
typedef struct sherdi_identity {
    char run_text[SHERDI_RUN_TEXT_BYTES]; /* in every commit */
    char resume_differs[4 * SHERDI_RUN_TEXT_BYTES];
} sherdi_identity;

/* What people watch (watch.c); of rank 0. */
typedef struct sherdi_watch {
    sherdi_monitors monitors;
    double          lr; /* of the first group with trainable parameters, in the last update */
    double          forward_s, backward_s; /* the trainer's, since the boundary before the last */
    int64_t         printed_ns, printed_micro; /* when the last line of steps_per_print came */
} sherdi_watch;

struct sherd_engine {
    sherdi_mem            mem;
    sherd_world          *world;
    sherdi_backend       *backend; /* the compute lane: what the trainer reads and writes */
    const sherdi_backend *host;    /* the CPU; the same where there is no other device */
    sherdi_lanes          lanes;   /* from seal on */
    int                   rank, world_size;
    pid_t                 process; /* whose it is: a forked child has a copy that means nothing */
    sherdi_settings       settings;
    sherdi_model          model;
    int                   first_group; /* of those that a list of the schedule has a number for */
    sherdi_phase          phase;
    sherdi_failure        failure;
    sherdi_identity       identity;
    sherdi_blobs          blobs;

    /* from seal on */
    sherdi_plan          *plan;
    sherdi_memory         memory;
    sherdi_compute_marks *compute_marks; /* by unit */
    uint64_t             *param_hashes;  /* by parameter, while its unit is held; of debug.c */
    sherdi_fill           fill;
    sherdi_values_call    values_call;     /* of the event under way */
    sherdi_scalars        device, on_host; /* the same where the device's memory is the host's */
    unsigned char        *scalars_own;     /* where the plan gives them no buffer */
    sherdi_scalars_head   results;         /* of kernels, when they were last collected */
    sherdi_exchange       exchange;
    sherdi_fingerprints   fingerprints;
    uint64_t              wire_at_seal; /* bytes that the world had sent before */
    sherdi_store          store;
    sherdi_run            run;
    sherdi_marks          marks;
    sherdi_mark           step_mark;      /* of the boundary under way */
    uint64_t              boundary_marks; /* begun when the last boundary was over */
    sherdi_watch          watch;

    int               is_evaluating; /* between sherd_eval_begin and _end */
    sherdi_window     window;
    sherdi_scaler     scaler;
    int64_t           micro_step, step, skipped_steps;
    sherd_step_report report;   /* of the last micro-batch */
    sherd_step_report boundary; /* of the last boundary */

    struct sherdi_save *save; /* under way; NULL: none (checkpoint/save.c) */
    sherd_status (*at_boundary)(sherd_engine *engine); /* looks after it; collective; may be NULL */
    sherdi_failure          save_failure;              /* until somebody asks */
    sherd_checkpoint_report checkpoint;                /* of the last save or load */
    sherdi_kept_frozen      kept_frozen;
};

/* ---- engine.c */
/** "forward", "backward", "eval". */
const char *sherdi_engine_pass_name(sherd_pass pass);
/** E_STATE in a child that the program has forked. Part of the next. */
sherd_status sherdi_engine_check_process(const sherd_engine *engine);
sherd_status sherdi_engine_check_alive(const sherd_engine *engine);
/** The plan of this rank on that machine, of what is declared. */
sherd_status sherdi_engine_plan_make(sherd_engine *engine, const sherdi_machine *machine,
                                     sherdi_plan **out);
/** E_STATE unless the engine is sealed, no window is open, nothing prepared and no unit acquired; `call` is for the sentence. */
sherd_status sherdi_engine_check_boundary(const sherd_engine *engine, const char *call);
void         sherdi_engine_poison(sherd_engine *engine, sherd_status status);
/** Of a call that moved or computed: a device that failed is lost with its memory, for this engine and, since the
 *  others would wait for this rank, for the world. Returns `status`. */
sherd_status sherdi_engine_outcome(sherd_engine *engine, sherd_status status);
/** At the first acquire: everything filled, ranks agree on what is whole. Collective. */
sherd_status sherdi_engine_start(sherd_engine *engine);

/* ---- fill.c */
/** Tables of what is to be filled; after the plan. E_NOMEM. */
sherd_status sherdi_fill_open(sherd_engine *engine);
void         sherdi_fill_close(sherd_engine *engine);
/** What was filled is on the drive. E_IO: another call tries again. */
sherd_status sherdi_fill_settle(sherd_engine *engine);
/** Every parameter is filled (bound ones from their memory), and what is whole on every rank is the
 *  same there. Collective. */
sherd_status sherdi_fill_finish(sherd_engine *engine);
/** Sum of the element mixes of what this rank owns and trains, from the master weights; reads the whole
 *  state. E_IO. */
sherd_status sherdi_fill_own_fingerprint(sherd_engine *engine, uint64_t *out);
/** ... of a range of one parameter, frozen or not. */
sherd_status sherdi_fill_range_fingerprint(sherd_engine *engine, const sherdi_values *values,
                                           uint64_t *out);

/* ---- machine.c */
/** What this host has, the same on all ranks. Collective. */
sherd_status sherdi_machine_detect(sherd_world *world, sherdi_machine *out);
/** What is left under a control group's limit, either version's files; its cache of files, which gives way,
 *  counts as left. SIZE_MAX: no limit. */
size_t sherdi_machine_group_left(const char *folder);

/* ---- agree.c: what must be the same on all ranks, and who differs */
/** What one rank cannot do, none does: each comes with how it went there and leaves with a failure
 *  when any had one (its own, or one that names the other rank). Allocates nothing. Collective. */
sherd_status sherdi_agree_status(sherd_world *world, sherd_status own);
sherd_status sherdi_agree_settings(sherd_world *world, const sherdi_settings *settings,
                                   sherdi_mem *mem);
sherd_status sherdi_agree_model(sherd_engine *engine);
/** Something that all ranks are called with. */
typedef struct sherdi_argument {
    const char *name;
    uint64_t    value;
} sherdi_argument;
/** All ranks make the same call. Each comes with how its checks went, and leaves with a failure where any had one: E_INVAL
 *  names the first argument that differs and the rank. After seal. Allocates nothing. Collective. */
sherd_status sherdi_agree_call(sherd_engine *engine, const char *call,
                               const sherdi_argument *arguments, size_t count, sherd_status own);
/** At the end of a micro-batch: every rank begins the gradients of open-ended units that another has, and knows whether any
 *  had a backward pass. Nothing where there are no such units. Collective. */
sherd_status sherdi_agree_used(sherd_engine *engine);
/** Before the gradients of a window are reduced to what is updated. */
sherd_status sherdi_agree_uses(sherd_engine *engine);

/* ---- loop.c */
/** As if it had not been called when it fails. */
sherd_status sherdi_loop_acquire(sherd_engine *engine, int unit, sherd_pass pass);
/** Releases whatever fails; then the window is lost. */
sherd_status sherdi_loop_release(sherd_engine *engine, int unit, sherd_pass pass);
/** Releases all that is acquired, without what a release does with gradients: the window is dropped next. */
void sherdi_loop_let_go(sherd_engine *engine);
/** E_STATE, naming the first unit that is acquired; `before` says of what: "the step". */
sherd_status sherdi_loop_nothing_held(const sherd_engine *engine, const char *before);
/** End of a micro-batch: completes gradients that are open, in the order of the plan. */
sherd_status sherdi_loop_micro_batch_end(sherd_engine *engine);
/** The window is lost to a failure; returns the first one. */
sherd_status sherdi_loop_lose(sherd_engine *engine, sherd_status status);
/** This rank ends its step by a failure of its own, before it has met the others. */
void sherdi_loop_leave(sherd_engine *engine, sherd_status status);
/** E_STATE where other ranks wait for this one to discard its window: what it would call would meet what they wait in. */
sherd_status sherdi_loop_left_check(const sherd_engine *engine);
/** The engine is destroyed: if a failure of its drive has left others waiting, they are told of it. */
void sherdi_loop_give_up(sherd_engine *engine);
/** The last window is over, or dropped. */
void sherdi_loop_window_begin(sherd_engine *engine);
/** Reads parameters ahead for the next training pass. */
void sherdi_loop_fetch_ahead(sherd_engine *engine);
/** Where a segment's whole lies now, NULL when it is not there. */
unsigned char *sherdi_loop_segment(sherd_engine *engine, const sherdi_segment *segment);
/** A parameter's memory, the trainer's own where it is bound; its unit is held. */
unsigned char *sherdi_loop_param(sherd_engine *engine, size_t param);
/** Of all its bytes, in portions that come to the host; it is held, or whole on every rank. E_DEVICE. */
sherd_status sherdi_loop_param_hash(sherd_engine *engine, size_t param, uint64_t *out);
/** Where gradients of a segment are made, NULL when it has none. */
unsigned char *sherdi_loop_micro_gradient(sherd_engine *engine, const sherdi_segment *segment);
static inline sherdi_unit_state *sherdi_unit_of(const sherd_engine *engine, int unit)
{
    return &engine->run.progress.units[unit];
}

/* ---- eval.c */
/** E_STATE between sherd_eval_begin and _end; of a call that changes parameters. */
sherd_status sherdi_eval_check_over(const sherd_engine *engine, const char *call);
/** As after sherd_eval_end, but for what is gathered. */
void sherdi_eval_drop(sherd_engine *engine);

/* ---- debug.c: nothing unless SHERD_DEBUG is set */
/** The parameters of a unit are what they are, and readable. E_DEVICE. */
sherd_status sherdi_debug_params_note(sherd_engine *engine, int unit);
/** E_STATE with the first one that is not what it was; E_DEVICE. */
sherd_status sherdi_debug_params_check(sherd_engine *engine, int unit);

/* ---- groups.c */
/** sherd.groups joins what the program has declared. E_INVAL (they contradict each other, or a group is nobody's), E_NOMEM. */
sherd_status sherdi_groups_settle(sherd_engine *engine);
/** The optimizer that a group names, which fits the engine's own. E_NOTSUP (there is none of that name), E_INVAL. */
sherd_status sherdi_group_optimizer_find(const sherd_engine *engine, const char *group,
                                         const char *name, const sherdi_optimizer **out);

/* ---- optimizer.c */
/** A list of the schedule has a number for each parameter group: the default one counts where a trainable parameter is in
 *  it. E_INVAL. */
sherd_status sherdi_optimizer_check_lists(const sherd_engine *engine);
/** What turns the prepared gradient into the mean over the window, loss scale taken out. */
double sherdi_optimizer_unscale(const sherd_engine *engine);

/** Writes this update's coefficients of all groups for the kernels of both sides, and takes their hash. */
uint64_t sherdi_optimizer_coeffs(sherd_engine *engine, const sherd_step_params *params,
                                 double grad_scale, int64_t step);
double   sherdi_optimizer_group_lr(const sherd_engine *engine, const sherd_step_params *params,
                                   int group, int64_t step);

/* ---- watch.c: what steps_per_print, the breakdowns, the monitors and comms_logger show */
/** Opens the monitors' files on rank 0. E_IO, E_INVAL, E_NOMEM. */
sherd_status sherdi_watch_open(sherd_engine *engine);
/** Says what is held, where that is asked for. */
void sherdi_watch_sealed(sherd_engine *engine);
/** The report of a boundary is complete. Fails nothing. */
void sherdi_watch_boundary(sherd_engine *engine);
/** Also where it was not opened. */
void sherdi_watch_close(sherd_engine *engine);

/* ---- update.c */
/** The first of two sweeps: norms, and the ratios of all parameters. Writes no state: what fails on one rank fails
 *  on all, and the old state is whole. Nothing for an optimizer of one sweep. Collective. */
sherd_status sherdi_update_measure(sherd_engine *engine);
/** Updates every block and publishes; `decision` is the hash of the coefficients. E_IO of any rank is every
 *  rank's. Collective. */
sherd_status sherdi_update_range(sherd_engine *engine, uint64_t decision);
/** Goes over the state and adds up its fingerprint. E_IO. */
sherd_status sherdi_update_fingerprint(sherd_engine *engine, sherdi_scalars_head *out);
/** Hands every block of this rank's state to `fn`. Changes nothing. Local. E_IO, or what `fn` returns. */
sherd_status sherdi_update_save(sherd_engine *engine, sherdi_block_fn fn, void *ctx);
/** `fn` gives every block its values; new parameters follow from the master weights. On a drive it is a generation that is
 *  not committed. `walk`: SHERDI_WALK_LOAD or _LOAD_SOME. The fingerprint of the masters is not known behind it: who
 *  gives them can count. Collective. */
sherd_status sherdi_update_load(sherd_engine *engine, sherdi_walk walk, sherdi_block_fn fn,
                                void *ctx);
/** New parameters from the master weights that the state has; this rank's fingerprint of them. Collective. */
sherd_status sherdi_update_republish(sherd_engine *engine, uint64_t *own_out);
/** The ranks tell each other how it went and what they did; *out is the sum of the fingerprints. "rank 1 failed
 *  <when>" is what the others say of a failure.
 *  Collective. */
sherd_status sherdi_update_agree(sherd_engine *engine, sherd_status status, uint64_t own,
                                 uint64_t decision, const char *when, uint64_t *out);
/* ---- run.c */
/** Events for lanes and room for transfers; after the plan. E_NOMEM, E_DEVICE. */
sherd_status sherdi_run_open(sherd_engine *engine);
/** Waits for transfers. */
void sherdi_run_close(sherd_engine *engine);
/** Every rank's `mine` comes to `all`. Meets, blocks. */
sherd_status sherdi_run_exchange(sherd_engine *engine, const void *mine, void *all,
                                 size_t len_bytes);
/** What was written of the state counts as that of `step`. */
sherd_status sherdi_run_commit(sherd_engine *engine, int64_t step, uint64_t fingerprint,
                               const sherdi_scaler *scaler);
/** ... between two updates, with the counters and fingerprint that the engine has: no undo takes it back. */
sherd_status sherdi_run_commit_written(sherd_engine *engine);
/** The state on a drive goes on (SHERDI_OP_COMMIT) or back (SHERDI_OP_ABANDON, SHERDI_OP_ROLLBACK), with the record in
 *  engine->run. */
sherd_status sherdi_run_generation(sherd_engine *engine, sherdi_op_kind kind);
/** Until all collectives are over; the first failure. */
sherd_status sherdi_run_drain(sherd_engine *engine);
/** `count` elements of a part of the block that an operation has; of memory of a device they come through its copies. For a
 *  sherdi_block_fn. E_DEVICE. */
sherd_status sherdi_run_block_get(sherd_engine *engine, const sherdi_op *op, int part,
                                  size_t offset_elems, size_t count, float *out);
/** `values` may change when it returns. */
void sherdi_run_block_put(sherd_engine *engine, const sherdi_op *op, int part, size_t offset_elems,
                          size_t count, const float *values);
/** All transfers of a ring are over or dropped, and nothing is in its slots; the first failure of them. */
sherd_status sherdi_run_settle(sherd_engine *engine, sherdi_ring ring);

/* ---- restore.c */
/** Goes on from the state that was found: the generation that all ranks have. Collective. */
sherd_status sherdi_restore_resume(sherd_engine *engine);
/** Back to a generation, which is the live one or on some ranks the one before it: what is not committed is dropped,
 *  counters and parameters are as they were. A failure behind the first step back poisons the engine. Collective. */
sherd_status sherdi_restore_generation(sherd_engine *engine, uint64_t wanted);

/* ---- scalars.c */
sherdi_optimizer_scalars sherdi_scalars_of_optimizer(const sherdi_scalars        *scalars,
                                                     const sherdi_plan_optimizer *of);
sherd_status             sherdi_scalars_open(sherd_engine *engine);
void                     sherdi_scalars_close(sherd_engine *engine);
/** What kernels are told goes to the device, behind the update lane. */
void sherdi_scalars_tell(sherd_engine *engine);
/** Waits for the update lane, which has followed what adds to them; the results of both sides together, the norm
 *  normalised. Norms of tensors of the device are added to the host's. */
sherd_status sherdi_scalars_read(sherd_engine *engine, sherdi_scalars_head *out);

/* ---- address.c */
/** sherd_param_address and sherd_param_grad_address, with their status. */
sherd_status sherdi_param_locate(sherd_engine *engine, sherd_param param, void **out);
sherd_status sherdi_param_locate_grad(sherd_engine *engine, sherd_param param, void **out);

/* ---- lanes.c */
sherd_status sherdi_lanes_open(sherd_engine *engine);
void         sherdi_lanes_close(sherd_engine *engine);
/** The trainer's next kernels come after the update. */
void sherdi_lanes_join(sherd_engine *engine);
/** Waits for all of them; what has failed does not matter any more. */
void sherdi_lanes_drain(sherd_engine *engine);
/** Whether device memory is apart from the host's. */
static inline int sherdi_has_device(const sherd_engine *engine)
{
    return engine->backend->device->is_async;
}
/** Marks of a collective on its lane; where the transport runs on the host, it tells its time itself. */
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
/** Bytes of the host to memory of a space; returns when `src` may change. */
void sherdi_space_put(sherd_engine *engine, sherdi_space space, void *dst, const void *src,
                      size_t len_bytes);
/** Bytes of a space to the host; blocks. */
sherd_status sherdi_space_get(sherd_engine *engine, sherdi_space space, void *dst, const void *src,
                              size_t len_bytes);

/* What works on memory of a space, and what its kernels read and add to. */
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

/* ---- between the pools of device and host: counted, on the lanes of the link */
void sherdi_link_down(sherd_engine *engine, void *dst, const void *src, size_t len_bytes);
void sherdi_link_up(sherd_engine *engine, void *dst, const void *src, size_t len_bytes);

#endif
