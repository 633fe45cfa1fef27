/* The plan. One pure function of (model, settings, world, machine) decides everything before a byte
 * is allocated. Its result is plain data: seal carries it out, and `sherd plan` prints it.
 *
 * Reading order: plan.c (who calls what), plan_layout.c (segments, blocks, buffers),
 * plan_schedule.c (gathers, lifetimes, wire), plan_pack.c (offsets in the pools),
 * plan_activations.c. engine/proof/check.h has the invariants. docs/glossary.md explains the terms.
 *
 * Offsets. A unit has one segment for each way in which its parameters are treated. A segment's
 * whole, or its slice, lies in an arena at a byte offset from the arena's start, a multiple of
 * SHERD_ALIGN_BYTES. */
#ifndef SHERDI_ENGINE_PLAN_PLAN_H
#define SHERDI_ENGINE_PLAN_PLAN_H

#include "engine/config/config.h"
#include "engine/model.h"
#include "engine/optimizers/optimizer.h"
#include "kernels/backend.h"
#include "kernels/encoding.h"
#include "offload/space.h"

/* Most first values that one call asks the trainer for: enough to occupy several of its threads. */
#define SHERDI_FILL_ELEMS ((size_t)256 << 10)

typedef enum sherdi_segment_kind {
    SHERDI_SEGMENT_TRAINABLE = 0, /* sliced at stage 3 */
    SHERDI_SEGMENT_FROZEN,        /* sliced at stage 3; no gradient, no state */
    SHERDI_SEGMENT_PERSISTENT,    /* small trainable parameters, whole on every rank at stage 3 */
    SHERDI_SEGMENT_KINDS,
} sherdi_segment_kind;

#define SHERDI_NO_OFFSET SIZE_MAX

/* Element types of the data of a segment. */
typedef struct sherdi_types {
    sherd_dtype compute; /* type of the parameters, in which gradients are made */
    sherd_dtype comm;    /* type to which a reduction rounds */
    sherd_dtype wire;    /* type that a reduction sends */
    /* type in which gradients are stored; deterministic: the type to which their integers are
     * converted */
    sherd_dtype grad;
} sherdi_types;

typedef struct sherdi_segment {
    int                     unit;
    sherdi_segment_kind     kind;
    sherdi_types            types;
    int                     is_wide;   /* its type is fp32, and the engine's compute type is not */
    const sherdi_optimizer *optimizer; /* updates all its parameters; NULL: frozen */
    sherdi_encoding         encodings[SHERDI_MOST_PARTS]; /* by part of its state */
    int          ties_part;    /* the part whose signs are the ties of a BESIDE master; 0: none */
    size_t       elems;        /* of parameters, without padding */
    size_t       slice_elems;  /* a multiple of 64 */
    size_t       padded_elems; /* world_size * slice_elems */
    size_t       slice_first;  /* where this rank's slice begins in the whole */
    size_t       own_first, own_elems; /* the same of what this rank updates: slice, or whole */
    int          is_bound;             /* parameters are in the trainer's memory */
    int          is_resident;          /* the whole is in the params arena on every rank */
    int          has_master;           /* the state has an fp32 master, apart from the parameter */
    sherdi_space param_space;          /* where the parameters rest; DEVICE when resident */
    size_t       param_offset;         /* in its space's arena: of the whole when resident, else of
                                  the slice; none: bound, or on NVMe */
    size_t       first_piece, num_pieces; /* on NVMe: the pieces of the slice */
    size_t       copy_offset;   /* of this rank's part of the second copy, where there is one */
    size_t       gather_offset; /* inside the gathered unit; none when resident or bound */
    /* in the grads arena: of the whole at stages 0 and 1, else of the slice; none if frozen. Where
     * is_staged, the blocks say where their parts rest */
    size_t grad_offset;
    int    has_gradient;
    int    is_staged; /* reduced to a staging buffer first: gradients of some of its blocks rest
                         elsewhere than on the device */
    size_t transient_offset; /* inside the unit's transient gradient; none if there is none */
    size_t first_block, num_blocks;
} sherdi_segment;

typedef struct sherdi_plan_param {
    int    segment;      /* index into segments */
    size_t offset_elems; /* from the start of the segment's whole */
} sherdi_plan_param;

typedef struct sherdi_plan_unit {
    size_t first_segment, num_segments; /* in the plan's unit_segments */
    size_t gather_bytes;                /* of its gathered segments; 0: nothing to gather */
    size_t gather_elems;    /* the same in elements, with the gaps between the segments */
    size_t transient_bytes; /* of its transient gradient; 0: none */
    /* Its offsets in the pools; SHERDI_NO_OFFSET: no bytes. With free packing, the gathers that the
     * plan schedules lie at offsets of their own (sherdi_live_range). */
    size_t gather_pool_offset, transient_pool_offset;
    int    backward_uses; /* acquires for BACKWARD that reach its gradient, per micro-batch */
    int    is_open_ended; /* SHERD_USES_ANY: backward_uses are listed, but any number may come; the
                             gradient is open until the micro-batch ends */
    int    retains_grads; /* a complete gradient keeps its place until the micro-batch ends */
    size_t activation; /* what its forward leaves for its backward; SHERDI_NO_ACTIVATION: nothing */
} sherdi_plan_unit;

/* A part of the elements that a rank updates. The parts of its state lie one after the other: each
 * is `elems` long and begins `stride_elems` after the one before (sherdi_plan_part_offset). */
typedef struct sherdi_block {
    int          segment;
    size_t       offset_elems; /* from the start of this rank's part of the segment */
    size_t       elems;
    size_t       stride_elems;
    size_t       first_span, num_spans;
    sherdi_space space;        /* where its state rests and it is updated (NVMe: on the host) */
    size_t       state_offset; /* bytes in that space's arena; on storage, inside its extent ... */
    size_t       extent;       /* ... of this number */
    /* On storage, where the bf16 parameter is a half of the master: the parameter's values are
     * stored with the state, this many bytes from the start of the extent's slot
     * (sherdi_block_keeps_values). Values after all state of the extent are its tail. */
    size_t       value_offset;
    sherdi_space grad_space;  /* where its slice of the gradient rests; has_slices only */
    size_t       grad_offset; /* bytes in that space's arena; NVMe: extent of the gradients' tier */
} sherdi_block;

/* From when to when a unit is in the gather or the transient pool. Positions count the acquires of
 * a micro-batch, forward then backward; EVAL has a count of its own. */
typedef struct sherdi_live_range {
    int    unit;
    size_t first, last; /* positions, inclusive */
    size_t offset, bytes;
    size_t first_fetch; /* number of its first piece among the fetches of its sequence */
} sherdi_live_range;

typedef struct sherdi_live_ranges {
    sherdi_live_range *items;
    size_t             count, capacity;
} sherdi_live_ranges;

typedef struct sherdi_step_of_pass {
    int        unit;
    sherd_pass pass;
    size_t     last; /* position after whose acquire it is released: its own, or a later one */
    size_t first_start, num_starts; /* index range of the live ranges whose gathers start here */
} sherdi_step_of_pass;

typedef struct sherdi_sequence {
    sherdi_step_of_pass *steps;
    size_t               num_steps, most_held; /* most_held: largest last - position */
    sherdi_live_ranges   live_ranges;          /* gathers, in the order in which they start */
} sherdi_sequence;

typedef struct sherdi_plan_buffer {
    const char        *name;
    sherdi_mem_purpose purpose;
    size_t             bytes;
    int                is_group;  /* peers of the engine's second world */
    int                is_shared; /* 1: peers read it, in memory of the world; 2: in host memory */
    int                is_host;   /* in host memory, else in the device's */
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
    SHERDI_BUFFER_DIRECTIONS,   /* a whole segment of matrices, and the workspace for one of them */
    SHERDI_BUFFER_SCALARS,      /* small data of kernels: see sherdi_plan_scalars */
    SHERDI_BUFFER_ACTIVATIONS,
    SHERDI_BUFFER_COPIES,      /* parts of the second copies of parameters */
    SHERDI_BUFFER_HOST_PARAMS, /* this one and all that follow are in host memory */
    SHERDI_BUFFER_HOST_GRADS,
    SHERDI_BUFFER_HOST_STATE,
    SHERDI_BUFFER_BOUNCE, /* for an updated block: its gradient comes down, its new values go up */
    SHERDI_BUFFER_STATE_RING, /* on their way from and to NVMe: state, parameters, gradients */
    SHERDI_BUFFER_PARAM_RING,
    SHERDI_BUFFER_GRAD_RING,
    SHERDI_BUFFER_HOST_SCALARS,
    /* where activations wait, or pass on their way from and to NVMe */
    SHERDI_BUFFER_HOST_ACTIVATIONS,
    SHERDI_BUFFER_SNAPSHOT,   /* asynchronous save: a copy of the data that this rank saves */
    SHERDI_BUFFER_FILL,       /* first values on their way from the trainer */
    SHERDI_BUFFER_REDUNDANCY, /* what others need when this rank is lost: engine/elastic/ledger.h, */
    SHERDI_BUFFER_SECOND,     /* and what this rank has of another one: copies.h */
    SHERDI_BUFFERS,
} sherdi_buffer_id;

/* The properties of the machine that the plan uses. A size of 0: unknown. */
typedef struct sherdi_machine {
    size_t memory_bytes;   /* host memory that the ranks of this host may still take together */
    int    memory_bound;   /* what limits them: sherdi_memory_bound, of the module limits */
    int    ranks_per_host; /* the most */
    int    num_hosts;      /* 0: one */
    int    local_rank, local_size; /* of this rank, on its host */
    size_t transport_bytes; /* held by the world itself, per rank: a line of its own in the plan */
    /* taken of the device by the transport, measured: another line; not free any more */
    size_t taken_bytes;
    int    has_device;   /* device memory is not the host's */
    size_t device_bytes; /* device memory that this rank may still take; only with has_device */
    int    device_ranks; /* ranks that share its device, the most; 0: not known */
    int    has_receive;  /* the transport moves a reduction's parts into a buffer of its own */
    int    receives_own; /* this buffer has room for this rank's own part, too */
    int    is_on_lane;   /* collectives are ordered on the device: new values are published while
                            later blocks are updated */
} sherdi_machine;

/* Offsets of the small data that kernels read and write, in bytes from the start of its buffer. If
 * the device has separate memory, the plan has two of these buffers, one for the kernels of each
 * space; otherwise it has one. The results come first, then the inputs of the kernels.
 * sherdi_plan_optimizer has the offsets of each optimizer's data. */
typedef struct sherdi_plan_scalars {
    size_t results_bytes; /* sherdi_scalars_head, then norms of tensors */
    size_t inputs;        /* coefficients, ratios, groups */
    size_t shared_bytes;
    size_t spans; /* of all blocks; in the device's buffer only */
    size_t bytes;
} sherdi_plan_scalars;

/* An optimizer that segments use, and where its data is in the scalars. */
typedef struct sherdi_plan_optimizer {
    const sherdi_optimizer *optimizer;
    size_t                  coeffs; /* by group, of the groups that name it */
    /* SHERDI_GRAIN_TENSOR only: norms and ratios of the parameters that it updates; groups: the
     * group of each of them, -1: no ratio */
    size_t norms, ratios;
    size_t groups;
} sherdi_plan_optimizer;

/* Who owns what: the parameters of the model in segments, their slices in blocks. */
typedef struct sherdi_plan_layout {
    sherdi_types types; /* for parameters with the engine's compute type */
    sherdi_types wide;  /* for wide parameters */
    /* gradients are added to stored ones, or stored in another type */
    int has_accumulator;
    int is_sliced;  /* this rank updates a slice (stage >= 1), else everything */
    int has_slices; /* gradients are reduced in backward, to slices: stages 2, 3, deterministic */
    int has_transient;    /* gradients are made in the transient pool */
    int is_deterministic; /* gradients are stored as 64-bit integers, a slice at every stage */
    int fixed_shift;      /* 50 - ceil(log2(ranks * accumulation)): the integers count 2^-shift */

    sherdi_plan_param *params;
    sherdi_plan_unit  *units;
    size_t             num_params, num_units;
    sherdi_segment    *segments;
    size_t             num_segments, cap_segments;
    /* Words of 64 bits that say which open-ended units have a gradient in a micro-batch: a bit for
     * each in the order of the units, then one for whether the micro-batch had a backward pass. 0:
     * no unit is open-ended */
    size_t used_words;
    size_t sum_words;   /* of each unit in the message of an outcome: the module fingerprints */
    int *unit_segments; /* numbers of segments, unit by unit, in the order in which they are used */
    /* of the segments; where there is none, the configuration's */
    sherdi_plan_optimizer *optimizers;
    size_t                 num_optimizers, cap_optimizers;
    sherdi_block          *blocks;
    size_t                 num_blocks, cap_blocks;
    size_t                 block_elems; /* the most that a block has */
    const char            *block_key;   /* the key that decides it */
    sherdi_span           *spans;
    size_t                 num_spans, cap_spans;
    size_t                 widest_bytes;   /* of an element of the widest parameter type */
    int                    offloads_state; /* any state rests elsewhere than on the device */
    int                    keeps_atoms;    /* no border of a slice cuts an atom of a parameter */
    size_t                 padding_elems;  /* of all segments together, whole */
} sherdi_plan_layout;

/* The order of the passes, and the times during which units are in the pools. */
typedef struct sherdi_plan_schedule {
    sherdi_sequence    train, eval;
    sherdi_live_ranges transients;
    sherdi_live_ranges lasting; /* units that evaluation keeps gathered, in the order of EVAL */
    int publishes_early;        /* new values are published while later blocks are updated */
} sherdi_plan_schedule;

/* Buffers, and the offsets in them that belong to no unit, segment or block. */
typedef struct sherdi_plan_packing {
    sherdi_plan_buffer buffers[SHERDI_BUFFERS];
    size_t total_bytes, host_bytes, pinned_bytes; /* host and pinned are parts of the total */
    /* In the staging buffer: new values of bound parameters, or of a block that is updated on the
     * device when its parameters rest elsewhere. They follow what an update still reads there: a
     * gradient of the deterministic mode. */
    size_t publish_offset, publish_bytes;
    /* whole of the largest reduction, where the world receives into room of its own */
    size_t reduced_bytes;
    size_t receive_bytes;    /* that room: the other ranks' slices; not in the buffers here */
    size_t group_bytes;      /* with replicas: the largest sum over them, received into such room */
    size_t workspace_offset; /* in the directions: where the workspace begins */
    /* in addition to the buffers, while a checkpoint is saved or loaded: slots for the transfers of
     * its files */
    size_t checkpoint_slot_bytes, checkpoint_slots;
    /* fill buffer: values, then the same in the parameter's type */
    size_t fill_elems, fill_cast_offset;
} sherdi_plan_packing;

/* The kinds of extents on storage. Each has a ring: slots of memory through which its extents pass.
 * The slots of activations are their places. */
typedef enum sherdi_ring {
    SHERDI_RING_STATE = 0,
    SHERDI_RING_PARAMS,
    SHERDI_RING_GRADS,
    SHERDI_RING_ACTIVATIONS,
    SHERDI_RINGS,
} sherdi_ring;

typedef struct sherdi_plan_ring {
    const struct sherdi_tier_kind *tier; /* of the extents; NULL: there are none */
    struct sherdi_extent          *extents;
    size_t                         num_extents, cap_extents;
    size_t                         slot_bytes;
    size_t                         transfers; /* most that are under way at once */
} sherdi_plan_ring;

struct sherdi_plan_offload;
struct sherdi_plan_activations;
struct sherdi_plan_moves;

typedef struct sherdi_plan {
    sherdi_mem     *mem;
    sherdi_settings settings;
    sherdi_machine  machine;
    /* the rank among those that share one copy of what is sharded, and their number; the copy that
     * they have, and the number of copies. All ranks: world_size * num_replicas */
    int                  rank, world_size;
    int                  replica, num_replicas;
    int                  copy_ranks; /* ranks of a host that share a second copy; 0: none do */
    sherdi_plan_layout   layout;
    sherdi_plan_schedule schedule;
    sherdi_plan_packing  packing;
    sherdi_plan_ring     rings[SHERDI_RINGS];
    int                  has_files;       /* state or parameters rest in files */
    int                  has_generations; /* all state is on storage, and has a spare generation */
    uint64_t nvme_bytes[SHERDI_RINGS];    /* of the files, by ring; of the state both sets */
    uint64_t index_bytes;                 /* of the index file, in addition to those of the state */
    struct sherdi_plan_offload     *offload;     /* of its module (plan/offload.h), and ... */
    struct sherdi_plan_activations *activations; /* ... of its own (plan/activations.h) */
    struct sherdi_plan_moves       *moves;       /* of the module reports; NULL: not counted */
    sherdi_plan_scalars             scalars;
} sherdi_plan;

/* Results of kernels, at the start of the scalars. */
typedef struct sherdi_scalars_head {
    sherdi_norm_acc     norm;
    sherdi_fixed_counts counts;
    uint64_t            fingerprint;
} sherdi_scalars_head;

/** Names a buffer of a module, in host memory or in the device's. */
static inline void sherdi_plan_buffer_name(sherdi_plan *plan, sherdi_buffer_id id, const char *name,
                                           sherdi_mem_purpose purpose, int is_host)
{
    plan->packing.buffers[id].name    = name;
    plan->packing.buffers[id].purpose = purpose;
    plan->packing.buffers[id].is_host = is_host;
}

/** Makes the plan of one rank. Pure: the same arguments give the same plan. Errors: E_INVAL
 *  (binding at stage 3, atoms that would be divided), E_NOTSUP (types that cannot be combined),
 *  E_NOMEM. */
sherd_status sherdi_plan_create(const sherdi_model *model, const sherdi_settings *settings,
                                int rank, int world_size, const sherdi_machine *machine,
                                sherdi_mem *mem, sherdi_plan **out);
void         sherdi_plan_destroy(sherdi_plan *plan);

/** Returns how many ranks share one copy of what is sharded: sherd.shard_size, or all where it does
 *  not divide them (sherd.elastic; else seal refuses it). */
static inline int sherdi_shard_ranks(const sherdi_settings *settings, int all_ranks)
{
    return settings->sharding.shard_size > 0 && all_ranks % settings->sharding.shard_size == 0
               ? settings->sharding.shard_size
               : all_ranks;
}
/** Returns the number of all ranks; and the number among them of `rank` of this plan's replica. */
static inline int sherdi_plan_all_ranks(const sherdi_plan *plan)
{
    return plan->world_size * plan->num_replicas;
}
static inline int sherdi_plan_rank_of_all(const sherdi_plan *plan, int rank)
{
    return plan->replica * plan->world_size + rank;
}
/** Returns the bytes of an element of a segment's parameters. */
static inline size_t sherdi_compute_bytes(const sherdi_segment *segment)
{
    return sherd_dtype_bytes(segment->types.compute);
}

/** Returns the bytes of an element of a segment in the gradient arena. */
static inline size_t sherdi_grad_bytes(const sherdi_plan *plan, const sherdi_segment *segment)
{
    return plan->layout.is_deterministic ? sizeof(int64_t) : sherd_dtype_bytes(segment->types.grad);
}

/** Returns the segment in which a parameter lies. */
static inline const sherdi_segment *sherdi_param_segment(const sherdi_plan *plan, size_t param)
{
    return &plan->layout.segments[plan->layout.params[param].segment];
}

/** Returns the segment of a block. */
static inline const sherdi_segment *sherdi_block_segment(const sherdi_plan  *plan,
                                                         const sherdi_block *block)
{
    return &plan->layout.segments[block->segment];
}

/** Returns the number of parts of a segment's state; 0: it is frozen. */
static inline int sherdi_segment_parts(const sherdi_segment *segment)
{
    return segment->optimizer == NULL ? 0 : segment->optimizer->num_parts;
}

/** Returns whether the norms of a segment's tensors are taken before it is updated. */
static inline int sherdi_segment_is_measured(const sherdi_segment *segment)
{
    return segment->optimizer != NULL && segment->optimizer->grain == SHERDI_GRAIN_TENSOR;
}

/** Returns whether a segment is updated by whole matrices. */
static inline int sherdi_segment_has_matrices(const sherdi_segment *segment)
{
    return segment->optimizer != NULL && segment->optimizer->grain == SHERDI_GRAIN_MATRIX;
}

/** Returns the bytes of `elems` elements of a part of a segment's state: sherdi_encoding_bytes. */
static inline size_t sherdi_segment_part_bytes(const sherdi_segment *segment, int part,
                                               size_t elems)
{
    return sherdi_encoding_bytes(segment->encodings[part], elems);
}

/** Returns whether the bf16 parameter is a half of the master. */
static inline int sherdi_segment_is_beside(const sherdi_segment *segment)
{
    return sherdi_encoding_is_beside(segment->encodings[0]);
}

/** Returns whether a part is stored otherwise than as plain fp32. */
static inline int sherdi_segment_part_is_encoded(const sherdi_segment *segment, int part)
{
    return segment->encodings[part] != SHERDI_ENCODING_F32 ||
           (part > 0 && part == segment->ties_part);
}

/** Returns whether the norms of any tensors are taken before an update. */
static inline int sherdi_plan_is_measured(const sherdi_plan *plan)
{
    return plan->scalars.results_bytes > sizeof(sherdi_scalars_head);
}
/** Returns the plan's entry of an optimizer that a segment names. */
const sherdi_plan_optimizer *sherdi_plan_optimizer_of(const sherdi_plan      *plan,
                                                      const sherdi_optimizer *optimizer);

/** Returns the bytes from the start of a block's state to element `offset_elems` of one of its
 *  parts. Where the parameter is the master, the master (part 0) is no part of the state: its bytes
 *  count from the start of the parameter. */
size_t sherdi_plan_part_offset(const sherdi_plan *plan, const sherdi_block *block, int part,
                               size_t offset_elems);

/** Gives the range that this rank holds of a parameter, in any form: its elements [*begin,
 *  *end). */
void sherdi_plan_held(const sherdi_plan *plan, size_t param, size_t elems, size_t *begin,
                      size_t *end);

/** Adds a live range to a list. E_NOMEM. */
sherd_status sherdi_live_range_add(const sherdi_plan *plan, sherdi_live_ranges *live_ranges,
                                   sherdi_live_range live_range);

/* The parts of sherdi_plan_create, in this order. */
sherd_status sherdi_plan_lay_out(sherdi_plan *plan, const sherdi_model *model);
sherd_status sherdi_plan_schedule_make(sherdi_plan *plan, const sherdi_model *model);
sherd_status sherdi_plan_pack(sherdi_plan *plan, const sherdi_model *model);

/** Returns the bytes of a block's state: all its parts together. */
size_t sherdi_plan_state_bytes(const sherdi_plan *plan, const sherdi_block *block);

#endif
