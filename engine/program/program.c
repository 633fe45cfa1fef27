/* Shared by the parts of the program: operations, ranges, the slots of rings, and the progress. See
 * program.h. */
#include "engine/program/program.h"

#include "base/checked.h"
#include "collectives/world.h"

sherdi_op sherdi_op_of(sherdi_op_kind kind, sherdi_lane_id lane)
{
    sherdi_op op = {.kind = kind, .lane = lane, .unit = -1, .segment = -1, .param = -1};

    for (int role = 0; role < SHERDI_USES; role++) {
        op.uses[role].where = SHERDI_AT_NOWHERE;
    }
    return op;
}

sherdi_op sherdi_op_of_segment(const sherdi_plan *plan, sherdi_op_kind kind, sherdi_lane_id lane,
                               const sherdi_segment *segment)
{
    sherdi_op op = sherdi_op_of(kind, lane);

    op.unit    = segment->unit;
    op.segment = (int)(segment - plan->layout.segments);
    op.elems   = segment->slice_elems;
    return op;
}

sherdi_op sherdi_op_of_block(const sherdi_plan *plan, sherdi_op_kind kind,
                             const sherdi_block *block)
{
    sherdi_op op = sherdi_op_of_segment(plan, kind, sherdi_lane_at(block->space),
                                        &plan->layout.segments[block->segment]);

    op.block = block;
    op.elems = block->elems;
    op.space = block->space;
    return op;
}

void sherdi_op_use(sherdi_op *op, int role, sherdi_access access, sherdi_range range)
{
    range.access   = (uint8_t)access;
    op->uses[role] = range;
}

void sherdi_op_gather_in_place(sherdi_op *op, const sherdi_plan *plan, sherdi_range whole)
{
    size_t       slice  = whole.bytes / (size_t)plan->world_size;
    sherdi_range before = whole;
    sherdi_range own    = whole;
    sherdi_range behind = whole;

    before.bytes     = (size_t)plan->rank * slice;
    own.offset       = whole.offset + before.bytes;
    own.bytes        = slice;
    behind.offset    = own.offset + slice;
    behind.bytes     = whole.offset + whole.bytes - behind.offset;
    own.is_all_ranks = 1;
    sherdi_op_use(op, SHERDI_USE_DST, SHERDI_WRITES, before);
    sherdi_op_use(op, SHERDI_USE_SRC, SHERDI_READS, own);
    sherdi_op_use(op, SHERDI_USE_BEHIND, SHERDI_WRITES, behind);
    op->moves[SHERDI_MOVES_WIRE] = sherdi_wire_all_gather(plan->world_size, slice);
}

sherd_status sherdi_program_emit(const sherdi_program *program, const sherdi_op *op)
{
    sherdi_op    flagged;
    sherd_status status;

    if (program->progress->flags != 0) {
        flagged = *op;
        flagged.flags |= program->progress->flags;
        op = &flagged;
    }
    status = program->fn(program->ctx, op);
    program->progress->met += status == SHERD_OK && (op->flags & SHERDI_OP_MEETS) != 0;
    return status;
}

uint32_t sherdi_program_flag(const sherdi_program *program, uint32_t flags)
{
    uint32_t before = program->progress->flags;

    program->progress->flags |= flags;
    return before;
}

sherd_status sherdi_program_move(const sherdi_program *program, sherdi_op op, sherdi_range dst,
                                 sherdi_range src)
{
    if (op.kind == SHERDI_OP_COPY) {
        dst.bytes                   = src.bytes;
        op.moves[SHERDI_MOVES_DOWN] = op.lane == SHERDI_LANE_DOWN ? src.bytes : 0;
        op.moves[SHERDI_MOVES_UP]   = op.lane == SHERDI_LANE_UP ? src.bytes : 0;
    }
    sherdi_op_use(&op, SHERDI_USE_DST, SHERDI_WRITES, dst);
    sherdi_op_use(&op, SHERDI_USE_SRC, SHERDI_READS, src);
    return sherdi_program_emit(program, &op);
}

sherd_status sherdi_program_copy(const sherdi_program *program, sherdi_lane_id lane,
                                 const sherdi_segment *segment, sherdi_range dst, sherdi_range src)
{
    return sherdi_program_move(
        program, sherdi_op_of_segment(program->plan, SHERDI_OP_COPY, lane, segment), dst, src);
}

sherdi_range sherdi_program_trainer(const sherdi_program *program, int where, size_t param)
{
    size_t elem = sherdi_compute_bytes(sherdi_param_segment(program->plan, param));

    return sherdi_range_of(where, sherdi_trainer_offset(program->plan, program->model, param),
                           program->model->params[param].elems * elem);
}

sherd_status sherdi_program_exchange(const sherdi_program *program, sherdi_exchange_kind kind)
{
    size_t    len_bytes = sherdi_exchange_bytes(program->plan, kind);
    sherdi_op op        = sherdi_op_of(SHERDI_OP_EXCHANGE, SHERDI_LANE_WIRE);

    op.flags                    = SHERDI_OP_MEETS | SHERDI_OP_WAITS;
    op.part                     = (int)kind;
    op.elems                    = len_bytes;
    op.moves[SHERDI_MOVES_WIRE] = sherdi_wire_all_gather(program->plan->world_size, len_bytes);
    return sherdi_program_emit(program, &op);
}

sherd_status sherdi_program_generation(const sherdi_program *program, sherdi_op_kind kind)
{
    const sherdi_plan    *plan  = program->plan;
    sherdi_ring_progress *state = &program->progress->rings[SHERDI_RING_STATE];
    size_t                bytes = 0;
    sherdi_op             op    = sherdi_op_of(kind, SHERDI_LANE_HOST);

    if (plan->settings.offload.state.space != SHERDI_SPACE_STORAGE) {
        return SHERD_OK;
    }
    for (size_t e = 0; e < sherdi_plan_stored(plan); e++) {
        const sherdi_extent *extent = &plan->offload.state_extents[e];

        bytes = sherdi_max_size(bytes, extent->offset_bytes + extent->len_bytes);
    }
    for (size_t e = 0; e < state->num_extents; e++) {
        state->extents[e].is_spare = 0;
    }
    sherdi_op_use(&op, SHERDI_USE_DST, SHERDI_WRITES,
                  sherdi_range_of(SHERDI_AT_STATE_LIVE, 0, bytes));
    sherdi_op_use(&op, SHERDI_USE_SRC, SHERDI_READS,
                  sherdi_range_of(SHERDI_AT_STATE_SPARE, 0, bytes));
    return sherdi_program_emit(program, &op);
}

const char *sherdi_op_kind_name(sherdi_op_kind kind)
{
    static const char *const NAMES[SHERDI_OP_KINDS] = {
        "use",     "zero",     "copy",   "cast",    "accumulate", "encode",
        "decode",  "widen",    "gather", "reduce",  "all-reduce", "exchange",
        "sum",     "fill",     "take",   "read",    "write",      "commit",
        "abandon", "rollback", "norm",   "update",  "matrix",     "fingerprint",
        "save",    "load",     "clear",  "collect", "poison",     "coefficients",
        "ratios",  "hash",     "post",   "put",     "get",        "await",
    };

    return NAMES[kind];
}

const char *sherdi_lane_name(sherdi_lane_id lane)
{
    static const char *const NAMES[SHERDI_LANES] = {"compute", "update", "up",  "down",
                                                    "wire",    "drive",  "host"};

    return NAMES[lane];
}

const char *sherdi_access_name(sherdi_access access)
{
    static const char *const NAMES[] = {"", "reads", "writes", "adds"};

    return NAMES[access];
}

const char *sherdi_where_name(const sherdi_plan *plan, int where)
{
    static const char *const NAMES[] = {"trainer's parameters", "trainer's gradients",
                                        "file of state",        "file of state, written",
                                        "file of parameters",   "file of gradients",
                                        "file of activations"};

    return where < SHERDI_BUFFERS ? plan->packing.buffers[where].name
                                  : NAMES[where - SHERDI_BUFFERS];
}

/* ------------------------------------------------------------------ rings -- */

typedef struct ring {
    sherdi_buffer_id     buffer;
    size_t               slot_bytes;
    const sherdi_extent *extents;
    size_t               num_extents;
    int                  reads_from, writes_to;
} ring;

static ring ring_of(const sherdi_plan *plan, sherdi_ring which)
{
    switch (which) {
    case SHERDI_RING_PARAMS:
        return (ring){SHERDI_BUFFER_PARAM_RING,    plan->packing.param_ring_bytes,
                      plan->offload.piece_extents, plan->offload.num_pieces,
                      SHERDI_AT_PARAM_FILE,        SHERDI_AT_PARAM_FILE};
    case SHERDI_RING_ACTIVATIONS: /* program_activations.c, which needs no slots */
        return (ring){.extents     = plan->offload.activation_extents,
                      .num_extents = 0,
                      .reads_from  = SHERDI_AT_ACTIVATION_FILE,
                      .writes_to   = SHERDI_AT_ACTIVATION_FILE};
    case SHERDI_RING_GRADS:
        return (ring){SHERDI_BUFFER_GRAD_RING,    plan->packing.grad_ring_bytes,
                      plan->offload.grad_extents, plan->offload.num_grad_extents,
                      SHERDI_AT_GRAD_FILE,        SHERDI_AT_GRAD_FILE};
    default:
        return (ring){SHERDI_BUFFER_STATE_RING,
                      plan->packing.ring_bytes,
                      plan->offload.state_extents,
                      plan->offload.num_state_extents,
                      SHERDI_AT_STATE_LIVE,
                      sherdi_plan_has_generations(plan) ? SHERDI_AT_STATE_SPARE
                                                        : SHERDI_AT_STATE_LIVE};
    }
}

size_t sherdi_ring_slots(const sherdi_plan *plan, sherdi_ring which)
{
    ring r = ring_of(plan, which);

    return r.slot_bytes == 0 ? 0 : plan->packing.buffers[r.buffer].bytes / r.slot_bytes;
}

size_t sherdi_ring_extents(const sherdi_plan *plan, sherdi_ring which)
{
    return ring_of(plan, which).num_extents;
}

size_t sherdi_program_transfers(const sherdi_plan *plan)
{
    size_t count = 1 + plan->offload.activation_transfers;

    for (int ring = 0; ring < SHERDI_RINGS; ring++) {
        count += 2 * sherdi_ring_slots(plan, (sherdi_ring)ring);
    }
    return plan->offload.num_tails == 0 ? count
                                        : count + 2 * sherdi_ring_slots(plan, SHERDI_RING_STATE);
}

sherdi_range sherdi_ring_slot(const sherdi_plan *plan, sherdi_ring which, size_t number,
                              size_t bytes)
{
    ring   r    = ring_of(plan, which);
    size_t slot = number % sherdi_ring_slots(plan, which);

    return sherdi_range_of(r.buffer, slot * r.slot_bytes, bytes);
}

size_t sherdi_ring_tail(const sherdi_plan *plan, sherdi_ring which, size_t extent)
{
    const sherdi_extent *all  = plan->offload.state_extents;
    size_t               tail = plan->offload.num_tails + extent;

    return which == SHERDI_RING_STATE && extent < plan->offload.num_tails && all[tail].len_bytes > 0
               ? tail
               : SHERDI_NO_EXTENT;
}

sherdi_range sherdi_ring_whole(const sherdi_plan *plan, sherdi_ring which, size_t number,
                               size_t extent)
{
    const sherdi_extent *all  = ring_of(plan, which).extents;
    size_t               tail = sherdi_ring_tail(plan, which, extent);

    return sherdi_ring_slot(plan, which, number,
                            all[extent].len_bytes +
                                (tail == SHERDI_NO_EXTENT ? 0 : all[tail].len_bytes));
}

/* Emits a transfer of an extent, which may be a tail, from or to the slot of that number; of
 * SHERDI_NO_EXTENT none. */
static sherd_status extent_move(const sherdi_program *program, sherdi_op_kind kind,
                                sherdi_ring which, size_t number, size_t extent, int unit)
{
    const sherdi_plan *plan    = program->plan;
    const ring         r       = ring_of(plan, which);
    int                is_tail = extent >= r.num_extents;
    size_t             head    = is_tail ? extent - r.num_extents : extent;
    int                is_read = kind == SHERDI_OP_READ;
    sherdi_op          op      = sherdi_op_of(kind, SHERDI_LANE_DRIVE);
    sherdi_range       slot, file;

    if (extent == SHERDI_NO_EXTENT) {
        return SHERD_OK;
    }
    slot = sherdi_ring_slot(plan, which, number, r.extents[extent].len_bytes);
    slot.offset += is_tail ? r.extents[head].len_bytes : 0;
    file = sherdi_range_of(is_read && !program->progress->rings[which].extents[head].is_spare
                               ? r.reads_from
                               : r.writes_to,
                           r.extents[extent].offset_bytes, slot.bytes);
    op.extent = extent;
    op.ring   = which;
    op.unit   = unit;
    sherdi_op_use(&op, SHERDI_USE_DST, SHERDI_WRITES, is_read ? slot : file);
    sherdi_op_use(&op, SHERDI_USE_SRC, SHERDI_READS, is_read ? file : slot);
    if (!is_read) {
        op.moves[SHERDI_MOVES_WRITTEN] = slot.bytes;
    } else if (which != SHERDI_RING_PARAMS || !plan->offload.pieces[extent].is_never_written) {
        op.moves[SHERDI_MOVES_READ] = slot.bytes;
    }
    return sherdi_program_emit(program, &op);
}

sherd_status sherdi_program_read(const sherdi_program *program, sherdi_ring which, size_t number,
                                 size_t extent, int unit)
{
    sherdi_slot *slot    = sherdi_progress_slot(program->progress, which, number);
    int          is_tail = extent >= program->progress->rings[which].num_extents;
    size_t      *held    = is_tail ? &slot->tail : &slot->head;

    if (*held == extent) {
        return SHERD_OK;
    }
    if (!is_tail) {
        sherdi_progress_release(program->progress, which, number);
    }
    *held = extent;
    return extent_move(program, SHERDI_OP_READ, which, number, extent, unit);
}

sherd_status sherdi_program_read_whole(const sherdi_program *program, sherdi_ring which,
                                       size_t number, size_t extent, int unit)
{
    size_t tail = sherdi_ring_tail(program->plan, which, extent);

    SHERDI_TRY(sherdi_program_read(program, which, number, extent, unit));
    return sherdi_program_read(program, which, number, tail, unit);
}

sherd_status sherdi_program_write(const sherdi_program *program, sherdi_ring which, size_t number,
                                  size_t extent, int unit)
{
    size_t tail = sherdi_ring_tail(program->plan, which, extent);

    sherdi_progress_release(program->progress, which, number);
    SHERDI_TRY(extent_move(program, SHERDI_OP_WRITE, which, number, extent, unit));
    return extent_move(program, SHERDI_OP_WRITE, which, number, tail, unit);
}

/* ---------------------------------------------------------------- updates -- */

sherd_status sherdi_program_await(const sherdi_program *program, sherdi_post post, int unit)
{
    return program->updates == NULL ? SHERD_OK : program->updates->await(program, post, unit);
}

int sherdi_program_may_gather(const sherdi_program *program, int unit)
{
    return program->updates == NULL || program->updates->may_gather(program, unit);
}

sherd_status sherdi_program_post(const sherdi_program *updater, sherdi_post post, int unit)
{
    sherdi_op op = sherdi_op_of(SHERDI_OP_POST, SHERDI_LANE_HOST);

    if ((updater->progress->flags & SHERDI_OP_BESIDE) == 0) {
        return SHERD_OK;
    }
    op.unit = unit;
    op.part = (int)post;
    return sherdi_program_emit(updater, &op);
}

/* --------------------------------------------------------------- progress -- */

static sherd_status ring_open(sherdi_progress *progress, const sherdi_plan *plan, sherdi_ring which,
                              sherdi_mem *mem)
{
    sherdi_ring_progress *ring = &progress->rings[which];

    ring->num_slots   = sherdi_ring_slots(plan, which);
    ring->num_extents = sherdi_ring_extents(plan, which);
    ring->slots =
        sherdi_alloc_array(mem, SHERDI_MEM_CONTROL, ring->num_slots, sizeof(*ring->slots));
    ring->extents =
        sherdi_alloc_array(mem, SHERDI_MEM_CONTROL, ring->num_extents, sizeof(*ring->extents));
    if (ring->slots == NULL || ring->extents == NULL) {
        return SHERD_E_NOMEM;
    }
    sherdi_progress_forget(progress, which);
    return SHERD_OK;
}

sherd_status sherdi_progress_open(sherdi_progress *progress, const sherdi_plan *plan,
                                  const sherdi_model *model, sherdi_mem *mem)
{
    progress->units = sherdi_alloc_array(mem, SHERDI_MEM_CONTROL, plan->layout.num_units,
                                         sizeof(*progress->units));
    if (progress->units == NULL) {
        return SHERD_E_NOMEM;
    }
    for (size_t u = 0; u < plan->layout.num_units; u++) {
        progress->units[u].uses_left = plan->layout.units[u].backward_uses;
    }
    for (int i = 0; i < SHERDI_MOST_STAGED; i++) {
        progress->staged[i].segment = -1;
    }
    progress->activations = sherdi_alloc_array(
        mem, SHERDI_MEM_CONTROL, plan->offload.num_activations, sizeof(*progress->activations));
    if (progress->activations == NULL) {
        return SHERD_E_NOMEM;
    }
    progress->train.sequence = &plan->schedule.train;
    progress->eval.sequence  = &plan->schedule.eval;
    progress->rings =
        sherdi_alloc_array(mem, SHERDI_MEM_CONTROL, SHERDI_RINGS, sizeof(*progress->rings));
    if (progress->rings == NULL) {
        return SHERD_E_NOMEM;
    }
    for (int r = 0; r < SHERDI_RINGS; r++) {
        SHERDI_TRY(ring_open(progress, plan, (sherdi_ring)r, mem));
    }
    sherdi_program_fill_count(progress, plan, model);
    return SHERD_OK;
}

void sherdi_progress_close(sherdi_progress *progress)
{
    sherdi_free(progress->units);
    sherdi_free(progress->activations);
    for (int r = 0; r < SHERDI_RINGS && progress->rings != NULL; r++) {
        sherdi_free(progress->rings[r].slots);
        sherdi_free(progress->rings[r].extents);
    }
    sherdi_free(progress->rings);
    *progress = (sherdi_progress){0};
}

void sherdi_progress_forget(sherdi_progress *progress, sherdi_ring which)
{
    for (size_t i = 0; i < progress->rings[which].num_slots; i++) {
        progress->rings[which].slots[i] =
            (sherdi_slot){.head = SHERDI_NO_EXTENT, .tail = SHERDI_NO_EXTENT};
    }
}

void sherdi_progress_release(sherdi_progress *progress, sherdi_ring which, size_t number)
{
    sherdi_slot *slot = sherdi_progress_slot(progress, which, number);

    slot->head = slot->tail = SHERDI_NO_EXTENT;
}

void sherdi_progress_keep(sherdi_progress *progress, sherdi_ring which)
{
    for (size_t i = 0; i < progress->rings[which].num_slots; i++) {
        sherdi_slot *slot = &progress->rings[which].slots[i];

        slot->is_changed = slot->head != SHERDI_NO_EXTENT;
    }
}
