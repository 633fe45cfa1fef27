/* The program: what every call of the trainer does, as operations, which are plain data. The
 * functions here emit operations one by one, in order, to a callback. An engine executes them
 * (run.c); with a dry engine they are counted, printed, simulated and proved (engine/proof). So
 * nothing is decided twice, and there is no list of all operations, which would be too large for a
 * large model.
 *
 * An operation names the lane that orders it, and the bytes that it reads and writes. Its
 * dependencies follow from these alone (order.h) and are not stored.
 *
 *   program.c          operations, ranges, and the progress
 *   program_units.c    acquire and release: gathers, the trainer's use
 *   program_grads.c    gradients of a window
 *   program_norm.c     the squares of a window's gradient
 *   program_walk.c     walks over the blocks: update, publish, fingerprint
 *   program_scalars.c  inputs and results of kernels
 *   program_fill.c     first values
 *
 * Modules emit what no plain step has, where modules.h calls them, and for data that does not rest
 * on the device by the table of offload.h. */
#ifndef SHERDI_ENGINE_PROGRAM_PROGRAM_H
#define SHERDI_ENGINE_PROGRAM_PROGRAM_H

#include "engine/program/exchange.h"

typedef enum sherdi_op_kind {
    SHERDI_OP_USE = 0, /* the trainer's own: reads parameters, in backward adds to gradients */
    SHERDI_OP_ZERO,    /* with SHERDI_OP_GAPS: the elements of a block that no parameter covers */
    SHERDI_OP_COPY,    /* between pools, or between the trainer's memory and the engine's */
    SHERDI_OP_CAST,    /* to another type */
    SHERDI_OP_ACCUMULATE,
    SHERDI_OP_ENCODE, /* fp32 values into a part of a block's state, as it is stored */
    SHERDI_OP_DECODE, /* ... and out of it */
    SHERDI_OP_WIDEN,  /* the integers of the deterministic mode to fp32 */
    SHERDI_OP_GATHER,
    SHERDI_OP_REDUCE, /* to the slice */
    SHERDI_OP_ALL_REDUCE,
    SHERDI_OP_ACROSS,   /* slices of a gradient are added up over the replicas, in place */
    SHERDI_OP_EXCHANGE, /* control data */
    SHERDI_OP_SUM,      /* of integers over the ranks: norms of tensors */
    SHERDI_OP_FILL,     /* a caller gives values of a parameter */
    SHERDI_OP_TAKE,     /* a caller gets them, and may change the copy */
    SHERDI_OP_READ,     /* a file's extent into a slot */
    SHERDI_OP_WRITE,    /* a slot to a file's extent */
    SHERDI_OP_COMMIT,   /* of all extents of the state: earlier writes become valid, */
    SHERDI_OP_ABANDON,  /* ... is forgotten, */
    SHERDI_OP_ROLLBACK, /* ... or the generation before becomes valid again */
    SHERDI_OP_NORM,
    SHERDI_OP_UPDATE, /* one sweep of the optimizer over a block */
    SHERDI_OP_MATRIX, /* the update of a matrix from its directions, in place */
    SHERDI_OP_FINGERPRINT,
    SHERDI_OP_SAVE,    /* a block's values go to a checkpoint */
    SHERDI_OP_LOAD,    /* a block's values come from a checkpoint */
    SHERDI_OP_CLEAR,   /* results of kernels are set to zero */
    SHERDI_OP_COLLECT, /* the device's results, which have come down, are added to the host's */
    SHERDI_OP_POISON,  /* debug: fills what nobody may read any more with NaN */
    SHERDI_OP_COEFFS,  /* the host writes the inputs of kernels for a step ... */
    SHERDI_OP_RATIOS,  /* ... and, of the norms of tensors, the ratios */
    SHERDI_OP_HASH,    /* the host hashes a parameter that is whole on this rank */
    SHERDI_OP_POST,    /* the updater says how far it is; `part`: sherdi_post */
    SHERDI_OP_PUT,     /* the trainer's own: writes an activation ... */
    SHERDI_OP_GET,     /* ... and reads it */
    SHERDI_OP_AWAIT, /* the calling thread waits until it has said so; with STABLE, on every rank */
    SHERDI_OP_KINDS,
} sherdi_op_kind;

/* A lane: an order of work. Operations of one lane run in the order in which they are enqueued,
 * except those of the drive. */
typedef enum sherdi_lane_id {
    SHERDI_LANE_COMPUTE = 0, /* the trainer's */
    SHERDI_LANE_UPDATE,
    SHERDI_LANE_UP,   /* host to device */
    SHERDI_LANE_DOWN, /* device to host */
    SHERDI_LANE_WIRE,
    SHERDI_LANE_GROUP, /* the wire of another group of ranks: between replicas */
    SHERDI_LANE_DRIVE,
    SHERDI_LANE_HOST, /* the calling thread, and the host's kernels */
    SHERDI_LANES,
} sherdi_lane_id;

/* Where bytes are, in addition to the buffers of the plan (sherdi_buffer_id). */
enum {
    SHERDI_AT_NOWHERE      = -1,
    SHERDI_AT_TRAINER_DATA = SHERDI_BUFFERS, /* bound memory; offset: sherdi_trainer_offset */
    SHERDI_AT_TRAINER_GRAD,
    SHERDI_AT_STATE_LIVE,  /* file of state: the live generation */
    SHERDI_AT_STATE_SPARE, /* file of state: the generation that is being written */
    SHERDI_AT_PARAM_FILE,
    SHERDI_AT_GRAD_FILE,
    SHERDI_AT_ACTIVATION_FILE,
    SHERDI_BUFFERS_AND_FILES,
};

typedef enum sherdi_access {
    SHERDI_READS  = 1,
    SHERDI_WRITES = 2,
    SHERDI_ADDS   = 3, /* reads and writes */
} sherdi_access;

typedef struct sherdi_range {
    int16_t where;        /* SHERDI_AT_NOWHERE: not used */
    uint8_t access;       /* sherdi_access */
    uint8_t is_all_ranks; /* 1: also the other ranks' bytes at the same offset */
    size_t  offset, bytes;
} sherdi_range;

/* The role of a range in its operation. */
enum {
    SHERDI_USE_DST = 0,
    SHERDI_USE_SRC,                      /* also the gradient, for norm and update */
    SHERDI_USE_THIRD,                    /* by the kind of operation: */
    SHERDI_USE_STATE = SHERDI_USE_THIRD, /* of a block */
    SHERDI_USE_BEHIND =
        SHERDI_USE_THIRD, /* a collective in place: the bytes after this rank's slice */
    SHERDI_USE_WORKSPACE = SHERDI_USE_THIRD, /* of a matrix */
    /* of an update: the compute type that it writes; the master where the two are one */
    SHERDI_USE_PARAM,
    SHERDI_USE_SCALARS, /* what kernels add to */
    SHERDI_USES,
};

#define SHERDI_OP_MEETS  1u   /* no rank goes on before all ranks are there */
#define SHERDI_OP_STABLE 2u   /* a gather that does not meet */
#define SHERDI_OP_GAPS   4u   /* ZERO: of a block, the elements that no parameter covers */
#define SHERDI_OP_ADDS   8u   /* a reduction is added to the present values */
#define SHERDI_OP_WAITS  16u  /* the calling thread goes on when the operation is over */
#define SHERDI_OP_ALONE  32u  /* on this rank's data: other ranks may have more or fewer of them */
#define SHERDI_OP_AHEAD  64u  /* for later: parameters of the next micro-batch, or state */
#define SHERDI_OP_LATE   128u /* for before: of a gradient that waited in a staging buffer ... */
#define SHERDI_OP_FIRST  256u /* ... in the first micro-batch of the window */
#define SHERDI_OP_QUEUED 512u /* submitted by the updater, concurrently with the trainer's calls */
#define SHERDI_OP_MEASURES                                                                         \
    1024u /* adds the squares of its result, which is in op.to, to the norm */

/* The progress of a queued update. */
typedef enum sherdi_post {
    SHERDI_POST_UNIT = 0, /* the parameters of op.unit are new where they rest */
    SHERDI_POST_WALK,     /* of all units; no kernel of the update is under way */
    SHERDI_POST_END,      /* the state is written, and the generation is committed */
} sherdi_post;

typedef struct sherdi_op {
    sherdi_op_kind      kind;
    sherdi_lane_id      lane;
    int                 unit, segment, param; /* subject; -1: none */
    const sherdi_block *block;                /* NULL: none */
    uint32_t            flags;
    sherd_dtype         from, to;
    size_t              elems; /* for a collective, of a slice */
    /* Number of the first element. For operations on values of the caller and on their conversions:
     * in the model. For ENCODE and DECODE: in the block. */
    uint64_t     index;
    int          part;   /* the part of these values: of the optimizer's state, or SHERDI_VALUE_...;
                        * for EXCHANGE its kind */
    size_t       extent; /* of a file */
    sherdi_ring  ring;   /* the ring whose slot the extent is read into, or written from */
    int          sweep;  /* of the optimizer */
    sherdi_space space;  /* whose kernels and scalars are used */
    sherdi_range uses[SHERDI_USES];
} sherdi_op;

/** Receives every operation, borrowed for the call. A return other than SHERD_OK ends the event. */
typedef sherd_status (*sherdi_op_fn)(void *ctx, const sherdi_op *op);

/* The uses of a unit by a rank in this window; the ranks compare them at the boundary. */
typedef struct sherdi_unit_uses {
    uint64_t runs;        /* micro-batches with a gradient */
    uint64_t acquired[3]; /* by pass */
} sherdi_unit_uses;

typedef struct sherdi_unit_state {
    int    acquired[3];   /* by pass: acquires of the unit itself, not yet released */
    int    held;          /* acquires that reach it, not yet released */
    int    held_backward; /* the part of `held` that is for BACKWARD */
    int    is_gathered;   /* gathered, or on its way, at offset gathered_at in the pool */
    size_t gathered_at;
    int    is_copied;      /* this host's second copy has its parameters as they are */
    int    has_gradient;   /* its gradient was zeroed in this micro-batch and is not complete */
    int    is_complete;    /* its last planned use of this micro-batch is over */
    int    is_measured;    /* the squares of its staged slices are summed where these are made */
    int    is_across;      /* its slices are added up over the replicas, in this window */
    int    is_updating;    /* by the updater; nobody has waited for it yet */
    int    is_unpublished; /* ... and the other ranks' slices have not been gathered */
    int    lasts;          /* a release leaves it gathered, until evaluation ends */
    int    uses_left; /* planned BACKWARD uses to come in this micro-batch; below 0: unplanned */
    sherdi_unit_uses uses;
} sherdi_unit_state;

typedef struct sherdi_cursor {
    const sherdi_sequence *sequence;
    size_t                 next; /* step that the plan expects next */
} sherdi_cursor;

/* Values of a parameter in addition to the parts of the optimizer's state; the numbers of the parts
 * come first, and the module values has one more (values.h). */
enum {
    /* what passes read; a frozen parameter's only value */
    SHERDI_VALUE_COMPUTE = SHERDI_MOST_PARTS,
};

/* The state on which the next operations depend, in addition to the plan: the present places of
 * data. */
typedef struct sherdi_progress {
    sherdi_unit_state *units;
    sherdi_cursor      train, eval;
    size_t             bounced; /* blocks whose gradient went down in this walk */
    size_t             met;     /* synchronizing operations of this walk that were enqueued */
    uint32_t           flags;   /* of all operations that are enqueued now */
    /* 1: the parameters that are published next come from an update; 0: from the state as it is. */
    int is_updated;
    int is_last;    /* the micro-batch under way ends the window */
    int is_queued;  /* a queued update was begun; no call has waited for its end, */
    int is_walking; /* ... nor for the end of its walk */
    const struct sherdi_apart_ops  *apart;  /* of the module devices; NULL: no memory of its own */
    struct sherdi_ring_progress    *rings;  /* of the module offload; [SHERDI_RINGS] */
    struct sherdi_staged_grads     *staged; /* ... too */
    struct sherdi_activation_state *activations; /* of the module activations; as in the plan */
} sherdi_progress;

typedef struct sherdi_program {
    const sherdi_plan  *plan;
    const sherdi_model *model;
    sherdi_progress    *progress;
    sherdi_op_fn        fn;
    void               *ctx;
    /* Whether an await of the unit would return at once, on all ranks; NULL: it never would. */
    int (*is_posted)(void *ctx, int unit);
} sherdi_program;

/** Makes a progress at the beginning. E_NOMEM. */
sherd_status sherdi_progress_open(sherdi_progress *progress, const sherdi_plan *plan,
                                  const sherdi_model *model, sherdi_mem *mem);
void         sherdi_progress_close(sherdi_progress *progress);
/* ---- events: values ---- */

/** Fills this rank's part of a parameter, from the trainer, or from the parameter's own memory; in
 *  any order, and repeatedly. After a failure, the same call once more makes it good; after one of
 *  a drive, settle the rings before. */
sherd_status sherdi_program_fill(const sherdi_program *program, size_t param, int is_given);

/* ---- events: acquire and release ---- */

/** Gathers missing units and those that the plan gathers ahead, begins gradients, and emits the
 *  trainer's use of them. A call that fails changes nothing. E_NOMEM: a held unit, or an open
 *  gradient, uses the memory. */
sherd_status sherdi_program_acquire(const sherdi_program *program, int unit, sherd_pass pass);
/** Releases all that the acquire reached, whatever fails meanwhile; reduces gradients that are
 *  complete. */
sherd_status sherdi_program_release(const sherdi_program *program, int unit, sherd_pass pass);
/** Drops a gathered unit. */
sherd_status sherdi_program_unit_leave(const sherdi_program *program, int unit);
/** Forgets all that is gathered, and begins the passes anew. */
sherd_status sherdi_program_forget(const sherdi_program *program);

/* ---- events: micro-batch and window ---- */

/** Completes the gradients that are still open, in the order of the plan. By now all ranks have
 *  gradients of the same open-ended units: a rank without one that another rank has began it
 *  (sherdi_program_gradient_begin). */
sherd_status sherdi_program_micro_batch_end(const sherdi_program *program);
/** Makes late reductions, zeroes gradients that no micro-batch has, and copies all gradients to the
 *  space where they rest. */
sherd_status sherdi_program_window_end(const sherdi_program *program);
/** Begins a window that knows nothing of the last one, however that one ended. */
sherd_status sherdi_program_window_begin(const sherdi_program *program);

/* ---- events: parts of the calls at a boundary ---- */

/** Exchanges control data between the ranks; the operation's `part` is the kind. */
sherd_status sherdi_program_exchange(const sherdi_program *program, sherdi_exchange_kind kind);
/** Writes the inputs of kernels, by an operation, and sends them to the device. */
sherd_status sherdi_program_scalars_send(const sherdi_program *program, sherdi_op op);

/* The work of a walk on each block. */
typedef enum sherdi_walk {
    SHERDI_WALK_MEASURE = 0, /* the first sweep of an optimizer that measures before it writes */
    SHERDI_WALK_UPDATE,
    SHERDI_WALK_DIRECT,    /* before an update of matrices: makes directions of the gradient */
    SHERDI_WALK_REPUBLISH, /* makes new parameters from the master weights */
    SHERDI_WALK_FINGERPRINT,
    SHERDI_WALK_SAVE,      /* gives the state to a checkpoint */
    SHERDI_WALK_LOAD,      /* takes it from one, and makes new parameters from its master weights */
    SHERDI_WALK_LOAD_SOME, /* the same for some of the state: the rest stays */
} sherdi_walk;

/** Sums the squares of this rank's part of the gradient, and copies the results of all kernels to
 *  the host. */
sherd_status sherdi_program_norm(const sherdi_program *program);
sherd_status sherdi_program_walk(const sherdi_program *program, sherdi_walk walk);
/** Brings the results of kernels to the host, which waits for them. */
sherd_status sherdi_program_collect(const sherdi_program *program);
/** Sends the fingerprint of a walk to the host, which does not wait; and waits for it, before the
 *  next walk. */
sherd_status sherdi_program_fingerprint_send(const sherdi_program *program);
sherd_status sherdi_program_fingerprint_sent(const sherdi_program *program);
/** Sends the updated values of each rank to all ranks, if they have not been sent yet. */
sherd_status sherdi_program_publish(const sherdi_program *program);
/** Returns whether that gathers the segment, which is whole on every rank. */
int sherdi_segment_is_published(const sherdi_plan *plan, const sherdi_segment *segment);

/* ---- for the parts of the program ---- */

static inline sherdi_range sherdi_range_of(int where, size_t offset, size_t bytes)
{
    return (sherdi_range){.where = (int16_t)where, .offset = offset, .bytes = bytes};
}
/** Returns where a parameter's own memory begins in all memory of the trainer, in which every
 *  element has the room of the widest. */
static inline size_t sherdi_trainer_offset(const sherdi_plan *plan, const sherdi_model *model,
                                           size_t param)
{
    return (size_t)model->params[param].first_index * plan->layout.widest_bytes;
}
static inline sherdi_unit_state *sherdi_program_unit(const sherdi_program *program, int unit)
{
    return &program->progress->units[unit];
}
static inline const char *sherdi_program_name(const sherdi_program *program, int unit)
{
    return program->model->units[unit].name;
}
/** Returns segment `index` of a unit's num_segments, in the order in which they are used. */
static inline const sherdi_segment *sherdi_unit_segment(const sherdi_plan *plan, int unit,
                                                        size_t index)
{
    return &plan->layout.segments
                [plan->layout.unit_segments[plan->layout.units[unit].first_segment + index]];
}
static inline int sherdi_is_on_device(sherdi_space space)
{
    return space == SHERDI_SPACE_DEVICE;
}
/** Returns the lane of the kernels that work with memory of a space. */
static inline sherdi_lane_id sherdi_lane_at(sherdi_space space)
{
    return sherdi_is_on_device(space) ? SHERDI_LANE_UPDATE : SHERDI_LANE_HOST;
}

/** Returns an operation without subject and ranges. */
sherdi_op sherdi_op_of(sherdi_op_kind kind, sherdi_lane_id lane);
/** Returns one whose subject is a segment. */
sherdi_op sherdi_op_of_segment(const sherdi_plan *plan, sherdi_op_kind kind, sherdi_lane_id lane,
                               const sherdi_segment *segment);
/** Returns one whose subject is a block, for the kernels of the space in which its state is
 *  updated. */
sherdi_op sherdi_op_of_block(const sherdi_plan *plan, sherdi_op_kind kind,
                             const sherdi_block *block);
void      sherdi_op_use(sherdi_op *op, int role, sherdi_access access, sherdi_range range);
/** Emits an operation. */
sherd_status sherdi_program_emit(const sherdi_program *program, const sherdi_op *op);
/** Adds these flags to all operations from now on. Returns what progress->flags has to be set to
 *  again. */
uint32_t sherdi_program_flag(const sherdi_program *program, uint32_t flags);
/** Emits an operation that makes `dst`. */
sherd_status sherdi_program_make(const sherdi_program *program, sherdi_op op, sherdi_range dst);
/** Emits an operation that makes `dst` of `src`. A copy is as long as its source. */
sherd_status sherdi_program_move(const sherdi_program *program, sherdi_op op, sherdi_range dst,
                                 sherdi_range src);
/** Emits a gather in place: this rank's slice of `whole` goes to all ranks and theirs come, so all
 *  of `whole` but this rank's slice is written. */
sherd_status sherdi_program_gather(const sherdi_program *program, const sherdi_segment *segment,
                                   sherd_dtype dtype, uint32_t flags, sherdi_range whole);

/** Returns where gradients of a segment are made. */
sherdi_range sherdi_program_micro_gradient(const sherdi_plan *plan, const sherdi_segment *segment);
/** Reduces the gradient of a segment to this rank's slice, in backward; `adds`: to the sum of the
 *  window so far. */
sherd_status sherdi_program_scatter(const sherdi_program *program, const sherdi_segment *segment,
                                    sherdi_range dst, sherd_dtype dst_dtype, int adds);
/** Adds the addend to the sum, by `op`; the first one becomes the sum. */
sherd_status sherdi_program_add(const sherdi_program *program, sherdi_op op, int is_first,
                                sherdi_range sum, sherd_dtype sum_dtype, sherdi_range addend,
                                sherd_dtype addend_dtype);
/** Returns where a block's gradient rests, or passes between drive and memory. */
sherdi_range sherdi_program_gradient(const sherdi_plan *plan, const sherdi_block *block);
/** Returns whether a unit has a gradient where it is made: an open one, or a complete one that is
 *  retained. */
int sherdi_program_has_gradient(const sherdi_program *program, int unit);
/** Returns E_NOMEM: a held unit has the memory that the plan gives to another one. */
sherd_status sherdi_program_fail_held(const sherdi_program *program, int unit, int holder,
                                      const char *what);
/** Returns E_NOMEM when another gradient lies where the unit's is made. */
sherd_status sherdi_program_gradient_check(const sherdi_program *program, int unit);
sherd_status sherdi_program_gradient_begin(const sherdi_program *program, int unit);
sherd_status sherdi_program_gradient_complete(const sherdi_program *program, int unit);

/** Returns a block's state: where it rests, or in the slot that a walk takes. */
sherdi_range sherdi_state_at(const sherdi_plan *plan, const sherdi_block *block);
/** Returns the block's parameters in the compute type: where they rest in memory, or pass on their
 *  way to the trainer's. */
sherdi_range sherdi_program_param_at(const sherdi_plan *plan, const sherdi_segment *segment,
                                     const sherdi_block *block);
/** Sets `bytes` bytes of the results of kernels to zero, on a lane. */
sherd_status sherdi_program_clear(const sherdi_program *program, sherdi_lane_id lane, size_t offset,
                                  size_t bytes);

/** Returns whether an operation is the trainer's own work, which lasts to the release. */
static inline int sherdi_op_is_trainers(sherdi_op_kind kind)
{
    return kind == SHERDI_OP_USE || kind == SHERDI_OP_PUT || kind == SHERDI_OP_GET;
}

#endif
