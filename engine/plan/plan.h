/* The plan: one pure function of (model, settings, world, machine) that decides
 * everything before a byte is allocated. Plain data; seal carries it out, `sherd plan`
 * prints it. Reading order: plan.c (who calls what), plan_layout.c (segments, blocks,
 * buffers), plan_schedule.c (gathers, lifetimes, wire), plan_pack.c (offsets in the pools), plan_check.c (its
 * invariants), plan_print.c.
 *
 * Offsets. A unit has a segment for each way in which its parameters are treated. Where a segment's whole or slice lies in an
 * arena is a byte offset from the arena's start, a multiple of SHERD_ALIGN_BYTES. */
#ifndef SHERDI_ENGINE_PLAN_PLAN_H
#define SHERDI_ENGINE_PLAN_PLAN_H

#include "engine/config/config.h"
#include "engine/model.h"
#include "engine/optimizers/optimizer.h"
#include "kernels/backend.h"
#include "kernels/encoding.h"
#include "offload/tier.h"

#define SHERDI_SPACES 3 /* of sherdi_space */

/* Most blocks whose gradient and new values are on their way over the link at once. */
#define SHERDI_MOST_BOUNCES 3

/* Most first values that a trainer is asked for at once: enough for several threads of its. */
#define SHERDI_FILL_ELEMS ((size_t)256 << 10)

/* A checkpoint's data has a checksum for each so many bytes, and passes through slots of as many or more, of so many
 * at most, and at most so many of them. */
#define SHERDI_CHECKPOINT_EXTENT_BYTES ((size_t)64 << 10)
#define SHERDI_CHECKPOINT_SLOT_BYTES   ((size_t)1 << 20)
#define SHERDI_CHECKPOINT_SLOTS        16

/* What a generation of state on a drive has room for beside the state: the record, and the trainer's blobs. */
#define SHERDI_STATE_NOTE_BYTES ((size_t)SHERDI_STATE_NOTE_FRONT + SHERD_BLOB_MAX_BYTES + 64)

/* Most blocks of a rank, more than a model can have segments. */
#define SHERDI_MOST_BLOCKS ((size_t)1 << 19)

typedef enum sherdi_segment_kind {
    SHERDI_SEGMENT_TRAINABLE = 0, /* sliced at stage 3 */
    SHERDI_SEGMENT_FROZEN,        /* sliced at stage 3; no gradient, no state */
    SHERDI_SEGMENT_PERSISTENT,    /* small trainable ones, whole on every rank at stage 3 */
    SHERDI_SEGMENT_KINDS,
} sherdi_segment_kind;

#define SHERDI_NO_OFFSET SIZE_MAX

/* Element types of what a segment holds. */
typedef struct sherdi_types {
    sherd_dtype compute; /* of the parameters, and in which gradients are made */
    sherd_dtype comm;    /* what a reduction rounds to */
    sherd_dtype wire;    /* what it sends */
    sherd_dtype grad;    /* what is kept of gradients; deterministic: what their integers become */
} sherdi_types;

typedef struct sherdi_segment {
    int                     unit;
    sherdi_segment_kind     kind;
    sherdi_types            types;
    int                     is_wide;   /* fp32, which is not the engine's compute type */
    const sherdi_optimizer *optimizer; /* of all its parameters; NULL: frozen */
    sherdi_encoding         encodings[SHERDI_MOST_PARTS]; /* by part of its state */
    int ties_part; /* whose signs are the ties of a master that is beside its parameter; 0: none */
    size_t       elems;        /* of parameters, no padding */
    size_t       slice_elems;  /* a multiple of 64 */
    size_t       padded_elems; /* world_size * slice_elems */
    int          is_bound;     /* parameters live in the trainer's memory */
    int          is_resident;  /* the whole is in the params arena on every rank */
    int          has_master;   /* fp32 master in the state, apart from the parameter */
    sherdi_space param_space;  /* where the parameters rest; DEVICE when resident */
    size_t
        param_offset; /* arena of its space: whole when resident, else slice; none: bound, NVMe */
    size_t first_piece, num_pieces; /* on NVMe: how the slice is cut */
    size_t gather_offset;           /* inside a gathered unit; none when resident or bound */
    size_t grad_offset; /* grads arena: whole at stages 0 and 1, else slice; none if frozen. Where
                           is_staged, the blocks say where their parts rest */
    int    has_gradient;
    int    is_staged; /* reduced to a staging buffer first: some of its blocks' gradients rest
                           elsewhere than on the device */
    size_t transient_offset; /* inside a unit's transient gradient; none if there is none */
    size_t first_block, num_blocks;
} sherdi_segment;

typedef struct sherdi_plan_param {
    int    segment;      /* index into segments */
    size_t offset_elems; /* from the start of the segment's whole */
} sherdi_plan_param;

typedef struct sherdi_plan_unit {
    size_t first_segment, num_segments; /* of the plan's unit_segments */
    size_t gather_bytes;                /* of its gathered segments, 0: nothing to gather */
    size_t gather_elems;                /* ... with what lies between them */
    size_t transient_bytes;             /* of its transient gradient, 0: none */
    /* Its offsets in the pools; SHERDI_NO_OFFSET: no bytes. With free packing gathers of the plan lie elsewhere. */
    size_t gather_pool_offset, transient_pool_offset;
    int    backward_uses; /* acquires for BACKWARD that reach its gradient, per micro-batch */
    int    is_open_ended; /* that many are listed, and any number may come (SHERD_USES_ANY): its
                             gradient is open until the micro-batch ends */
    int    retains_grads; /* a complete one keeps its place until the micro-batch ends */
    size_t
        eval_kept; /* its number among the units that evaluation keeps, from 1 on; 0: it is none of them */
} sherdi_plan_unit;

/* A part of a slice on NVMe that is read and written as one: extent `i` of the parameters' tier is
 * piece i. Those of a trainable segment are its blocks. */
typedef struct sherdi_piece {
    int    segment;
    size_t offset_elems; /* from the start of the slice */
    size_t elems;
    int is_never_written; /* padding of what is frozen: its tier makes zeros, and reads nothing */
} sherdi_piece;

/* A part of what a rank updates: the parts of its state lie one behind the other, each `elems` long and beginning
 * `stride_elems` after the one before (sherdi_plan_part_offset). */
typedef struct sherdi_block {
    int          segment;
    size_t       offset_elems; /* from the start of what this rank owns of the segment */
    size_t       elems;
    size_t       stride_elems;
    size_t       first_span, num_spans;
    sherdi_space space;        /* of its state, and where it is updated (NVMe: on the host) */
    size_t       extent;       /* of its space's tier */
    size_t       state_offset; /* bytes, inside that extent */
    /* On storage, where the bf16 parameter is a half of the master: its values are kept with the state, so many bytes from
     * the start of the extent's slot (sherdi_block_keeps_values). Behind all state of the extent: its tail. */
    size_t       value_offset;
    sherdi_space grad_space;  /* where its slice of the gradient rests, has_slices only */
    size_t       grad_offset; /* bytes, arena of that space; NVMe: extent of the gradients' tier */
} sherdi_block;

/* From when to when a unit is in the gather or transient pool. Positions count the acquires of a
 * micro-batch, forward then backward; EVAL has a count of its own. */
typedef struct sherdi_live_range {
    int    unit;
    size_t first, last; /* positions, inclusive */
    size_t offset, bytes;
    size_t first_fetch; /* of its pieces, among those of its sequence */
} sherdi_live_range;

typedef struct sherdi_step_of_pass {
    int        unit;
    sherd_pass pass;
    size_t last; /* it is released after the acquire of this position: its own, or a later one */
    size_t first_start, num_starts; /* live ranges whose gather starts here: index range */
} sherdi_step_of_pass;

typedef struct sherdi_sequence {
    sherdi_step_of_pass *steps;
    size_t               num_steps, most_held; /* largest last - position */
    sherdi_live_range   *live_ranges;          /* gathers, in the order in which they start */
    size_t               num_live_ranges, cap_live_ranges;
} sherdi_sequence;

typedef struct sherdi_plan_buffer {
    const char        *name;
    sherdi_mem_purpose purpose;
    size_t             bytes;
    int                is_shared; /* peers read it: allocated by the world */
    int                is_host;   /* host memory, else the device's */
    int                is_pinned;
} sherdi_plan_buffer;

typedef enum sherdi_buffer_id {
    SHERDI_BUFFER_PARAMS = 0,
    SHERDI_BUFFER_GRADS,
    SHERDI_BUFFER_STATE,
    SHERDI_BUFFER_GATHER,
    SHERDI_BUFFER_TRANSIENT,
    SHERDI_BUFFER_STAGING,
    SHERDI_BUFFER_GRAD_STAGING, /* slices of gradients on their way to host memory */
    SHERDI_BUFFER_DIRECTIONS, /* of a segment of matrices, whole, and what is needed to work with one of them */
    SHERDI_BUFFER_SCALARS,     /* small data of kernels: see sherdi_plan_scalars */
    SHERDI_BUFFER_HOST_PARAMS, /* from here on in host memory */
    SHERDI_BUFFER_HOST_GRADS,
    SHERDI_BUFFER_HOST_STATE,
    SHERDI_BUFFER_BOUNCE, /* of the block that is updated: its gradient from, its new values to the device */
    SHERDI_BUFFER_STATE_RING, /* what is on its way from and to NVMe */
    SHERDI_BUFFER_PARAM_RING,
    SHERDI_BUFFER_GRAD_RING,
    SHERDI_BUFFER_HOST_SCALARS,
    SHERDI_BUFFER_SNAPSHOT, /* a copy of what this rank saves, of an asynchronous save */
    SHERDI_BUFFER_FILL,     /* first values that the trainer gives, on their way */
    SHERDI_BUFFERS,
} sherdi_buffer_id;

/* Bytes of this rank that pass between media when the trainer follows the plan. */
typedef struct sherdi_plan_moves {
    uint64_t down_micro_bytes, up_micro_bytes; /* device to host, host to device; per micro-batch */
    uint64_t down_step_bytes, up_step_bytes;   /* ... and per boundary */
    uint64_t nvme_read_micro_bytes, nvme_written_micro_bytes;
    uint64_t nvme_read_step_bytes, nvme_written_step_bytes;
    uint64_t nvme_index_bytes; /* of these, a commit's record */
    uint64_t update_device_bytes,
        update_host_bytes; /* memory that norm and update read and write */
    uint64_t update_flops; /* of products of matrices, per boundary */
} sherdi_plan_moves;

/* What the plan knows of the machine. 0: unknown. */
typedef struct sherdi_machine {
    size_t memory_bytes; /* that the ranks of this host may still take together */
    int    ranks_per_host;
    size_t transport_bytes; /* held by the world itself, per rank: shown as its own line */
    size_t
           taken_bytes; /* of the device by the transport for itself, measured: another line, and no longer free */
    int    has_device;   /* device memory is not the host's */
    size_t device_bytes; /* of it, that this rank may still take; only with has_device */
    int    has_receive;  /* the transport moves a reduction's parts into a buffer of its own */
    int    is_on_lane;   /* collectives are ordered on the device: new values are published while
                               later blocks are updated */
} sherdi_machine;

/* Offsets of the small data that kernels read and give, in bytes from the start of its buffer. Where the device
 * has memory of its own there are two: the kernels of each space have theirs; else they are one.
 * The first two are results, the next what kernels are told; sherdi_plan_optimizer says where in them each optimizer's are. */
typedef struct sherdi_plan_scalars {
    size_t head; /* sherdi_scalars_head */
    size_t norms;
    size_t results_bytes;
    size_t told; /* coefficients, ratios, groups */
    size_t shared_bytes;
    size_t spans; /* of all blocks; the device's buffer only */
    size_t bytes;
} sherdi_plan_scalars;

/* An optimizer that segments have, and where in the scalars its own are. */
typedef struct sherdi_plan_optimizer {
    const sherdi_optimizer *optimizer;
    size_t                  coeffs; /* by group, of those that name it */
    size_t norms, ratios; /* by parameter, of those that it updates; SHERDI_GRAIN_TENSOR only, */
    size_t groups;        /* ... as the group of each parameter, -1: no ratio */
} sherdi_plan_optimizer;

typedef struct sherdi_plan {
    sherdi_mem     *mem;
    sherdi_settings settings;
    sherdi_machine  machine;
    int             rank, world_size;

    sherdi_types types;   /* of parameters with the engine's compute type, */
    sherdi_types wide;    /* ... of those that are fp32 beside it */
    int has_accumulator;  /* gradients are added to what is kept of them, or kept in another type */
    int is_sliced;        /* this rank updates a slice (stage >= 1), else everything */
    int has_slices;       /* gradients are reduced in backward, to slices: stages 2, 3, and fixed */
    int has_transient;    /* gradients are made in the transient pool */
    int is_deterministic; /* deterministic: kept as 64-bit integers, a slice at every stage */
    int fixed_shift;      /* 50 - ceil(log2 G): the integers count 2^-shift */
    size_t publish_offset; /* staging: new values of bound parameters, behind the gradients; of a
                              block that is updated on the device, when they rest elsewhere */
    size_t
        reduced_bytes; /* the largest reduction whole, where the world receives into room of its own */
    size_t receive_bytes;      /* and that room: the other ranks' slices; beside the buffers here */
    size_t grad_staging_bytes; /* of one slot; there are num_grad_stagings */
    int    num_grad_stagings;
    size_t bounce_param_offset;     /* bounce buffer: new values, behind the gradient */
    size_t bounce_direction_offset; /* ... directions of a block, behind these */
    size_t bounce_bytes;            /* of one buffer; there are num_bounces */
    int    num_bounces;
    size_t workspace_offset; /* directions: where the workspace begins */
    int    publishes_early;  /* while later blocks are updated */
    /* beside the buffers, while a checkpoint is saved or loaded: slots of data on their way from and to its files */
    size_t checkpoint_slot_bytes, checkpoint_slots;
    size_t fill_elems, fill_cast_offset; /* fill: values, then the same in the parameter's type */
    sherdi_plan_scalars scalars;
    size_t              ring_bytes, param_ring_bytes, grad_ring_bytes; /* of one buffer */

    sherdi_plan_param *params;
    sherdi_plan_unit  *units;
    sherdi_segment    *segments;
    size_t             num_segments, cap_segments;
    int *unit_segments; /* numbers of segments, unit by unit, in the order in which they are used */
    sherdi_plan_optimizer *optimizers; /* those of the segments; of none: the configuration's */
    size_t                 num_optimizers, cap_optimizers;
    /* By extent of the state and of the gradients on NVMe, whether the first of two sweeps needs it; NULL: all alike. */
    unsigned char *measured_state, *measured_grads;
    sherdi_block  *blocks;
    size_t         num_blocks, cap_blocks;
    sherdi_span   *spans;
    size_t         num_spans, cap_spans;
    /* Offload: extents of the state by space, of the parameters and of the gradients on NVMe. */
    sherdi_extent *extents[SHERDI_SPACES];
    size_t         num_extents[SHERDI_SPACES], cap_extents[SHERDI_SPACES];
    /* Those on storage may have tails, which a step writes and does not read: bf16 values that are at hand elsewhere. Each is
     * an extent of its own of the tier, behind all others (sherdi_plan_tail), or none has one. */
    size_t         num_tails;
    sherdi_piece  *pieces;
    sherdi_extent *piece_extents;
    size_t         num_pieces, cap_pieces, cap_piece_extents;
    sherdi_extent *grad_extents;
    size_t         num_grad_extents, cap_grad_extents;
    uint32_t *fetches; /* pieces in the order of the gathers: train_fetches, then eval_fetches */
    size_t    num_train_fetches, num_eval_fetches;
    sherdi_plan_moves  moves;
    uint64_t           nvme_bytes[3]; /* of the files: state (both sets), parameters, gradients */
    uint64_t           index_bytes;   /* of the file beside those of the state */
    sherdi_sequence    train, eval;
    sherdi_live_range *transients;
    size_t             num_transients, cap_transients;
    sherdi_plan_buffer buffers[SHERDI_BUFFERS];

    size_t num_params, num_units;
    size_t num_open_ended;                        /* units of that kind */
    size_t widest_bytes;                          /* of an element of any parameter */
    size_t padding_elems;                         /* of all segments together, whole */
    size_t total_bytes, host_bytes, pinned_bytes; /* host and pinned are parts of the total */
    size_t
        num_collectives; /* of a plain run of the program; what and how much, which ranks have alike */
    uint64_t collectives_hash;
    uint64_t wire_micro_bytes;    /* sent by this rank per micro-batch */
    uint64_t wire_boundary_bytes; /* and per boundary, control data included */
} sherdi_plan;

/* Results of kernels. */
typedef struct sherdi_scalars_head {
    sherdi_norm_acc     norm;
    sherdi_fixed_counts counts;
    uint64_t            fingerprint;
} sherdi_scalars_head;

/* What sherdi_agree_status exchanges: ranks by status, and the sum of those that failed. */
#define SHERDI_AGREE_STATUS_WORDS (SHERD_E_DEVICE + 2)

/* Control messages of a boundary, per rank; the step fills them (step.c). */
typedef struct sherdi_agree_message {
    uint64_t uses_hash; /* which units were acquired and had a backward, and how often */
    uint64_t micro_seen;
    uint64_t micro_backward; /* of these, with a backward pass */
} sherdi_agree_message;

/* Which open-ended units have a gradient in a micro-batch, a bit each in the order of the units; behind them whether there
 * was a backward pass at all. In words of 64; 0: there are no such units. */
static inline size_t sherdi_plan_used_words(size_t num_open_ended)
{
    return num_open_ended == 0 ? 0 : num_open_ended / 64 + 1;
}

typedef struct sherdi_norm_message {
    sherdi_norm_acc     norm;
    sherdi_fixed_counts counts;
    uint64_t            status;
} sherdi_norm_message;

typedef struct sherdi_publish_message {
    uint64_t fingerprint;
    uint64_t status;
    uint64_t decision; /* hash of what this rank did: skip, or update with which coefficients */
} sherdi_publish_message;

/** Makes the plan of one rank. Pure: the same arguments give the same plan. E_INVAL (binding at
 *  stage 3, atoms that cannot be kept), E_NOTSUP (types that cannot be combined), E_NOMEM. */
sherd_status sherdi_plan_create(const sherdi_model *model, const sherdi_settings *settings,
                                int rank, int world_size, const sherdi_machine *machine,
                                sherdi_mem *mem, sherdi_plan **out);
void         sherdi_plan_destroy(sherdi_plan *plan);

/** E_NOMEM when the ranks of this host cannot hold it; the sentence says what is missing and the
 *  nearest setting that would fit. */
sherd_status sherdi_plan_check_fit(const sherdi_plan *plan, const sherdi_model *model);

/** A long walk for tests and debug builds: every element owned once, nothing overlaps. E_STATE, naming the rule that is
 *  broken and where. */
sherd_status sherdi_plan_check(const sherdi_plan *plan, const sherdi_model *model);

/** Checks the plans of all ranks, made one after the other as `plan` was, each and together: see
 *  sherd_engine_check_plans. */
sherd_status sherdi_plan_check_ranks(const sherdi_plan *plan, const sherdi_model *model);
/** Proves the program of this rank beside the next one's (program_check.h), in memory of its own account. */
sherd_status sherdi_plan_prove(const sherdi_plan *plan, const sherdi_model *model);

sherd_status sherdi_plan_write(const sherdi_plan *plan, const sherdi_model *model,
                               sherd_plan_format format, sherd_write_fn write, void *ctx);

/** Bytes of an element of a segment's parameters. */
static inline size_t sherdi_compute_bytes(const sherdi_segment *segment)
{
    return sherd_dtype_bytes(segment->types.compute);
}

/** ... of what the gradient arena keeps of it. */
static inline size_t sherdi_grad_bytes(const sherdi_plan *plan, const sherdi_segment *segment)
{
    return plan->is_deterministic ? sizeof(int64_t) : sherd_dtype_bytes(segment->types.grad);
}

/** The segment in which a parameter lies. */
static inline const sherdi_segment *sherdi_param_segment(const sherdi_plan *plan, size_t param)
{
    return &plan->segments[plan->params[param].segment];
}

/** Host memory that is taken while a checkpoint is saved or loaded, beside the buffers. */
static inline size_t sherdi_plan_checkpoint_bytes(const sherdi_plan *plan)
{
    return (plan->checkpoint_slots + 2) * plan->checkpoint_slot_bytes;
}

/** Parts of a segment's state; 0: it is frozen. */
static inline int sherdi_segment_parts(const sherdi_segment *segment)
{
    return segment->optimizer == NULL ? 0 : segment->optimizer->num_parts;
}

/** Whether the norms of a segment's tensors are taken before it is updated. */
static inline int sherdi_segment_is_measured(const sherdi_segment *segment)
{
    return segment->optimizer != NULL && segment->optimizer->grain == SHERDI_GRAIN_TENSOR;
}

/** Whether a segment is updated by whole matrices. */
static inline int sherdi_segment_has_matrices(const sherdi_segment *segment)
{
    return segment->optimizer != NULL && segment->optimizer->grain == SHERDI_GRAIN_MATRIX;
}

/** Bytes of so many elements of a part of a segment's state: sherdi_encoding_bytes. */
static inline size_t sherdi_segment_part_bytes(const sherdi_segment *segment, int part,
                                               size_t elems)
{
    return sherdi_encoding_bytes(segment->encodings[part], elems);
}

/** Whether the bf16 parameter is a half of the master. */
static inline int sherdi_segment_is_beside(const sherdi_segment *segment)
{
    return segment->encodings[0] == SHERDI_ENCODING_BESIDE ||
           segment->encodings[0] == SHERDI_ENCODING_BESIDE_PLANE;
}

/** Whether a part is stored otherwise than as plain fp32; whether any is. */
static inline int sherdi_segment_part_is_encoded(const sherdi_segment *segment, int part)
{
    return segment->encodings[part] != SHERDI_ENCODING_F32 ||
           (part > 0 && part == segment->ties_part);
}

static inline int sherdi_segment_is_encoded(const sherdi_segment *segment)
{
    for (int i = 0; i < sherdi_segment_parts(segment); i++) {
        if (segment->encodings[i] != SHERDI_ENCODING_F32) {
            return 1;
        }
    }
    return 0;
}

/** Whether the bf16 values of a block's parameter are kept with its state on storage. */
static inline int sherdi_block_keeps_values(const sherdi_block *block)
{
    return block->value_offset != SHERDI_NO_OFFSET;
}

/** What a checkpoint has of an element: its values in fp32, by part; of a frozen one, the value in its own type. */
static inline size_t sherdi_saved_bytes(const sherdi_segment *segment)
{
    return segment->optimizer == NULL ? sherdi_compute_bytes(segment)
                                      : (size_t)sherdi_segment_parts(segment) * sizeof(float);
}

/** Whether the norms of any tensors are taken before an update. */
int sherdi_plan_is_measured(const sherdi_plan *plan);
/** What the plan has of an optimizer that a segment names. */
const sherdi_plan_optimizer *sherdi_plan_optimizer_of(const sherdi_plan      *plan,
                                                      const sherdi_optimizer *optimizer);

/** Bytes from the start of a block's state to element `offset_elems` of one of its parts; from the start of the
 *  parameter, for the master (part 0) where the parameter is it: that is no part of the state. */
size_t sherdi_plan_part_offset(const sherdi_plan *plan, const sherdi_block *block, int part,
                               size_t offset_elems);

/** What this rank updates of a segment: [*first, *first + count) of its whole. */
size_t sherdi_plan_owned(const sherdi_plan *plan, const sherdi_segment *segment, size_t *first);

/** What this rank holds of a parameter in any form: its elements [*begin, *end). */
void sherdi_plan_held(const sherdi_plan *plan, size_t param, size_t elems, size_t *begin,
                      size_t *end);

/* Parts of plan_create, in this order. */
sherd_status sherdi_plan_lay_out(sherdi_plan *plan, const sherdi_model *model);
sherd_status sherdi_plan_schedule(sherdi_plan *plan, const sherdi_model *model);
sherd_status sherdi_plan_pack(sherdi_plan *plan, const sherdi_model *model);
sherd_status sherdi_plan_fetches(sherdi_plan *plan);
/** What a step moves: the sum over its program. E_NOMEM. */
sherd_status sherdi_plan_count(sherdi_plan *plan, const sherdi_model *model);

/** How the parts of a new segment's state are stored. */
void sherdi_plan_encode(const sherdi_plan *plan, sherdi_segment *segment);
/** When blocks know where they rest. E_NOTSUP: an encoding cannot be had there. */
sherd_status sherdi_plan_check_encodings(const sherdi_plan *plan, const sherdi_model *model);

/* plan_offload.c, for the layout. */
/** Of a block's parts together. */
size_t sherdi_plan_state_bytes(const sherdi_plan *plan, const sherdi_block *block);
/** Where a segment's parameters rest; takes from the host's budget. */
sherdi_space sherdi_plan_param_space(const sherdi_plan *plan, const sherdi_segment *segment,
                                     size_t *host_elems);
/** Extents of the state's tier on storage, tails with them. */
static inline size_t sherdi_plan_stored(const sherdi_plan *plan)
{
    return plan->num_extents[SHERDI_SPACE_STORAGE] + plan->num_tails;
}
/** The tail of an extent on storage; its number in the tier is that of the extent and num_extents more. NULL: it has none. */
const sherdi_extent *sherdi_plan_tail(const sherdi_plan *plan, size_t extent);
/** Most elements of a block. */
size_t sherdi_plan_block_elems(const sherdi_plan *plan);
/** Where each block's state and gradient rest, the pieces of parameters, and the buffers on the way. */
sherd_status sherdi_plan_offload_lay_out(sherdi_plan *plan, const sherdi_model *model);

/** Seconds of a step and what a drive is rated for: given, or assumed. */
typedef struct sherdi_plan_wear {
    double written_bytes; /* by this rank per step, onto NVMe */
    double step_seconds;
    int    is_assumed; /* step_seconds: what ASSUMED_RATE allows */
    double rated_bytes;
    double bytes_a_day, days; /* of one drive, which the ranks of the host share */
} sherdi_plan_wear;
sherdi_plan_wear sherdi_plan_drive_wear(const sherdi_plan *plan);

/** A part of sherdi_plan_check: extents, gradients and pieces tile what they should. */
int sherdi_plan_offload_is_valid(const sherdi_plan *plan);

/** Whether a window's sum stays on the device and goes down once. */
int sherdi_plan_accumulates_on_device(const sherdi_plan *plan);
/** Whether any state rests elsewhere than on the device; whether all of it has a spare generation. */
int sherdi_plan_offloads_state(const sherdi_plan *plan);
int sherdi_plan_has_generations(const sherdi_plan *plan);

/** "trainable", ... */
const char *sherdi_segment_kind_name(sherdi_segment_kind kind);
/** ... and "trainable fp32", ... of those that are wide. */
const char *sherdi_segment_name(const sherdi_segment *segment);

#endif
