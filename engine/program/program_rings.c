/* The rings: slots of host memory through which extents pass on their way from and to storage. */
#include "engine/program/program_rings.h"
#include "engine/program/program_walk.h"

#include "base/checked.h"
#include "engine/modules.h"

/* What a ring connects. Those of activations have no slots here: program_activations.c knows their
 * places. */
static const struct {
    sherdi_buffer_id buffer;
    int              file;
} RINGS[SHERDI_RINGS] = {
    [SHERDI_RING_STATE]       = {SHERDI_BUFFER_STATE_RING, SHERDI_AT_STATE_LIVE},
    [SHERDI_RING_PARAMS]      = {SHERDI_BUFFER_PARAM_RING, SHERDI_AT_PARAM_FILE},
    [SHERDI_RING_GRADS]       = {SHERDI_BUFFER_GRAD_RING, SHERDI_AT_GRAD_FILE},
    [SHERDI_RING_ACTIVATIONS] = {SHERDI_BUFFER_HOST_ACTIVATIONS, SHERDI_AT_ACTIVATION_FILE},
};

/* Returns the file to which a ring writes. */
static int written_file(const sherdi_plan *plan, sherdi_ring which)
{
    return which == SHERDI_RING_STATE && plan->has_generations ? SHERDI_AT_STATE_SPARE
                                                               : RINGS[which].file;
}

size_t sherdi_ring_slots(const sherdi_plan *plan, sherdi_ring which)
{
    size_t bytes = plan->rings[which].slot_bytes;

    return bytes == 0 ? 0 : plan->packing.buffers[RINGS[which].buffer].bytes / bytes;
}

static size_t ring_extents(const sherdi_plan *plan, sherdi_ring which)
{
    return which == SHERDI_RING_ACTIVATIONS ? 0 : plan->rings[which].num_extents;
}

size_t sherdi_program_transfers(const sherdi_plan *plan)
{
    size_t count = 1;

    for (int ring = 0; ring < SHERDI_RINGS; ring++) {
        count += plan->rings[ring].transfers;
    }
    return count;
}

sherdi_range sherdi_ring_slot(const sherdi_plan *plan, sherdi_ring which, size_t number,
                              size_t bytes)
{
    size_t slot = number % sherdi_ring_slots(plan, which);

    return sherdi_range_of(RINGS[which].buffer, slot * plan->rings[which].slot_bytes, bytes);
}

size_t sherdi_ring_tail(const sherdi_plan *plan, sherdi_ring which, size_t extent)
{
    const sherdi_extent *all  = plan->rings[SHERDI_RING_STATE].extents;
    size_t               tail = plan->offload->num_tails + extent;

    return which == SHERDI_RING_STATE && extent < plan->offload->num_tails &&
                   all[tail].len_bytes > 0
               ? tail
               : SHERDI_NO_EXTENT;
}

sherdi_range sherdi_ring_whole(const sherdi_plan *plan, sherdi_ring which, size_t number,
                               size_t extent)
{
    const sherdi_extent *all  = plan->rings[which].extents;
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
    const sherdi_plan      *plan    = program->plan;
    const sherdi_plan_ring *r       = &plan->rings[which];
    int                     is_tail = extent >= r->num_extents;
    size_t                  head    = is_tail ? extent - r->num_extents : extent;
    int                     is_read = kind == SHERDI_OP_READ;
    sherdi_op               op      = sherdi_op_of(kind, SHERDI_LANE_DRIVE);
    sherdi_range            slot, file;

    if (extent == SHERDI_NO_EXTENT) {
        return SHERD_OK;
    }
    slot = sherdi_ring_slot(plan, which, number, r->extents[extent].len_bytes);
    slot.offset += is_tail ? r->extents[head].len_bytes : 0;
    file = sherdi_range_of(is_read && !program->progress->rings[which].extents[head].is_spare
                               ? RINGS[which].file
                               : written_file(plan, which),
                           r->extents[extent].offset_bytes, slot.bytes);
    op.extent = extent;
    op.ring   = which;
    op.unit   = unit;
    return sherdi_program_move(program, op, is_read ? slot : file, is_read ? file : slot);
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

void sherdi_progress_release(sherdi_progress *progress, sherdi_ring which, size_t number)
{
    sherdi_slot *slot = sherdi_progress_slot(progress, which, number);

    slot->head = slot->tail = SHERDI_NO_EXTENT;
}

sherd_status sherdi_rings_generation(const sherdi_program *program, sherdi_op_kind kind)
{
    const sherdi_plan    *plan  = program->plan;
    sherdi_ring_progress *state = &program->progress->rings[SHERDI_RING_STATE];
    size_t                bytes = 0;

    if (plan->settings.offload.state.space != SHERDI_SPACE_STORAGE) {
        return SHERD_OK;
    }
    for (size_t e = 0; e < sherdi_plan_stored(plan); e++) {
        const sherdi_extent *extent = &plan->rings[SHERDI_RING_STATE].extents[e];

        bytes = sherdi_max_size(bytes, extent->offset_bytes + extent->len_bytes);
    }
    for (size_t e = 0; e < state->num_extents; e++) {
        state->extents[e].is_spare = 0;
    }
    return sherdi_program_move(program, sherdi_op_of(kind, SHERDI_LANE_HOST),
                               sherdi_range_of(SHERDI_AT_STATE_LIVE, 0, bytes),
                               sherdi_range_of(SHERDI_AT_STATE_SPARE, 0, bytes));
}

/* ------------------------------------------------------------------ walks -- */

int sherdi_walk_visits(const sherdi_plan *plan, sherdi_walk walk, sherdi_ring ring, size_t extent)
{
    const unsigned char *measured =
        ring == SHERDI_RING_STATE ? plan->offload->measured_state : plan->offload->measured_grads;

    return walk != SHERDI_WALK_MEASURE || measured == NULL || measured[extent];
}

sherd_status sherdi_extent_read(const sherdi_program *program, sherdi_walk walk, sherdi_ring ring,
                                size_t extent, int unit)
{
    return sherdi_walk_has_gradient(walk)
               ? sherdi_program_read(program, ring, extent, extent, unit)
               : sherdi_program_read_whole(program, ring, extent, extent, unit);
}

/* Reads `extent`, or the next extent of the same slot that the walk needs. */
static sherd_status slot_read(const sherdi_program *program, sherdi_walk walk, sherdi_ring ring,
                              size_t extent, int unit)
{
    size_t extents = ring_extents(program->plan, ring);

    if (!program->plan->settings.offload.pipeline_read) {
        return SHERD_OK;
    }
    while (extent < extents && !sherdi_walk_visits(program->plan, walk, ring, extent)) {
        extent += sherdi_ring_slots(program->plan, ring);
    }
    return extent < extents ? sherdi_extent_read(program, walk, ring, extent, unit) : SHERD_OK;
}

sherd_status sherdi_slot_go_on(const sherdi_program *program, sherdi_walk walk, sherdi_ring ring,
                               size_t extent, int unit)
{
    sherdi_progress_release(program->progress, ring, extent);
    return slot_read(program, walk, ring, extent + sherdi_ring_slots(program->plan, ring), unit);
}

sherd_status sherdi_slots_begin(const sherdi_program *program, sherdi_walk walk, sherdi_ring ring)
{
    size_t slots =
        sherdi_min_size(sherdi_ring_slots(program->plan, ring), ring_extents(program->plan, ring));

    for (size_t e = 0; e < slots; e++) {
        SHERDI_TRY(slot_read(program, walk, ring, e, -1));
    }
    return SHERD_OK;
}

sherd_status sherdi_rings_read_ahead(const sherdi_program *program)
{
    uint32_t     before = sherdi_program_flag(program, SHERDI_OP_AHEAD);
    sherd_status status = sherdi_slots_begin(
        program, sherdi_plan_is_measured(program->plan) ? SHERDI_WALK_MEASURE : SHERDI_WALK_UPDATE,
        SHERDI_RING_STATE);

    program->progress->flags = before;
    return status;
}

/* ----------------------------------------------------- parameters of gathers -- */

/* The reads of a gather: its numbers among the pass's fetches, if the gather is planned; else
 * numbers of its own. */
typedef struct fetch {
    size_t          first;
    const uint32_t *order; /* NULL: nothing is read ahead */
    size_t          count;
} fetch;

static fetch fetch_of(const sherdi_plan *plan, const sherdi_live_range *live_range)
{
    const sherdi_live_ranges *eval = &plan->schedule.eval.live_ranges;

    if (live_range == NULL) {
        return (fetch){0};
    }
    if (live_range >= eval->items && live_range < eval->items + eval->count) {
        return (fetch){live_range->first_fetch,
                       plan->offload->fetches + plan->offload->num_train_fetches,
                       plan->offload->num_eval_fetches};
    }
    return (fetch){live_range->first_fetch, plan->offload->fetches,
                   plan->offload->num_train_fetches};
}

/* Reads a piece from the drive through a slot. Then starts the read of the piece that uses the slot
 * next, whose fetch comes later by the number of slots. */
static sherd_status piece_fetch(const sherdi_program *program, const sherdi_segment *segment,
                                size_t piece, size_t number, const fetch *from, sherdi_range own)
{
    const sherdi_plan *plan = program->plan;
    size_t             elem = sherdi_compute_bytes(segment);
    size_t             next = number + sherdi_ring_slots(plan, SHERDI_RING_PARAMS);
    sherdi_range       slot = sherdi_ring_slot(plan, SHERDI_RING_PARAMS, number,
                                               plan->offload->pieces[piece].elems * elem);
    int                ahead;

    own.offset += plan->offload->pieces[piece].offset_elems * elem;
    SHERDI_TRY(sherdi_program_read(program, SHERDI_RING_PARAMS, number, piece, segment->unit));
    SHERDI_TRY(sherdi_program_copy(program, SHERDI_LANE_UP, segment, own, slot));
    sherdi_progress_release(program->progress, SHERDI_RING_PARAMS, number);
    if (!plan->settings.offload.pipeline_read || next >= from->count) {
        return SHERD_OK;
    }
    ahead = plan->layout.segments[plan->offload->pieces[from->order[next]].segment].unit;
    if (sherdi_program_unit(program, ahead)->lasts &&
        sherdi_program_unit(program, ahead)->is_gathered) {
        return SHERD_OK; /* it needs no gather */
    }
    return sherdi_program_read(program, SHERDI_RING_PARAMS, next, from->order[next], ahead);
}

/* Returns the number of pieces that a gather of the unit reads before those of a segment. */
static size_t pieces_before(const sherdi_plan *plan, const sherdi_segment *segment)
{
    size_t count = 0;

    for (size_t s = 0; sherdi_unit_segment(plan, segment->unit, s) != segment; s++) {
        count += sherdi_unit_segment(plan, segment->unit, s)->num_pieces;
    }
    return count;
}

sherd_status sherdi_slice_fetch(const sherdi_program *program, const sherdi_segment *segment,
                                const sherdi_live_range *live_range, sherdi_range own)
{
    fetch  from   = fetch_of(program->plan, live_range);
    size_t number = from.first + pieces_before(program->plan, segment);

    if (segment->param_space == SHERDI_SPACE_HOST) {
        return sherdi_program_copy(
            program, SHERDI_LANE_UP, segment, own,
            sherdi_range_of(SHERDI_BUFFER_HOST_PARAMS, segment->param_offset, own.bytes));
    }
    for (size_t p = 0; p < segment->num_pieces; p++) {
        SHERDI_TRY(piece_fetch(program, segment, segment->first_piece + p, number + p, &from, own));
    }
    return SHERD_OK;
}

static sherd_status fetches_begin(const sherdi_program *program)
{
    const sherdi_plan *plan  = program->plan;
    size_t             slots = sherdi_min_size(sherdi_ring_slots(plan, SHERDI_RING_PARAMS),
                                               plan->offload->num_train_fetches);

    for (size_t i = 0; i < slots && plan->settings.offload.pipeline_read; i++) {
        SHERDI_TRY(sherdi_program_read(
            program, SHERDI_RING_PARAMS, i, plan->offload->fetches[i],
            plan->layout.segments[plan->offload->pieces[plan->offload->fetches[i]].segment].unit));
    }
    return SHERD_OK;
}

sherd_status sherdi_rings_fetch_ahead(const sherdi_program *program)
{
    uint32_t     before = sherdi_program_flag(program, SHERDI_OP_AHEAD);
    sherd_status status = program->progress->is_walking ? SHERD_OK : fetches_begin(program);

    program->progress->flags = before;
    return status;
}

/* Waits for the end of a queued update, and then begins the operations that had to wait for it. */
sherd_status sherdi_rings_acquire_begin(const sherdi_program *program)
{
    if (program->plan->offload->num_pieces == 0 || !program->progress->is_walking) {
        return SHERD_OK;
    }
    SHERDI_TRY(sherdi_queued_await(program, SHERDI_POST_WALK, -1));
    return sherdi_rings_fetch_ahead(program);
}

/* --------------------------------------------------------------- progress -- */

void sherdi_rings_forget(sherdi_progress *progress, sherdi_ring which)
{
    for (size_t i = 0; i < progress->rings[which].num_slots; i++) {
        progress->rings[which].slots[i] =
            (sherdi_slot){.head = SHERDI_NO_EXTENT, .tail = SHERDI_NO_EXTENT};
    }
}

void sherdi_rings_write_again(sherdi_progress *progress, sherdi_ring which)
{
    for (size_t i = 0; i < progress->rings[which].num_slots; i++) {
        sherdi_slot *slot = &progress->rings[which].slots[i];

        slot->is_changed = slot->head != SHERDI_NO_EXTENT;
    }
}

void sherdi_rings_complete(sherdi_progress *progress, sherdi_ring ring)
{
    for (size_t e = 0; e < progress->rings[ring].num_extents; e++) {
        progress->rings[ring].extents[e].left     = 0;
        progress->rings[ring].extents[e].is_begun = 1;
    }
}

static sherd_status ring_open(sherdi_progress *progress, const sherdi_plan *plan, sherdi_ring which,
                              sherdi_mem *mem)
{
    sherdi_ring_progress *ring = &progress->rings[which];

    ring->num_slots   = sherdi_ring_slots(plan, which);
    ring->num_extents = ring_extents(plan, which);
    ring->slots =
        sherdi_alloc_array(mem, SHERDI_MEM_CONTROL, ring->num_slots, sizeof(*ring->slots));
    ring->extents =
        sherdi_alloc_array(mem, SHERDI_MEM_CONTROL, ring->num_extents, sizeof(*ring->extents));
    if (ring->slots == NULL || ring->extents == NULL) {
        return SHERD_E_NOMEM;
    }
    sherdi_rings_forget(progress, which);
    return SHERD_OK;
}

static sherd_status rings_open(sherdi_progress *progress, const sherdi_plan *plan,
                               const sherdi_model *model, sherdi_mem *mem)
{
    progress->rings =
        sherdi_alloc_array(mem, SHERDI_MEM_CONTROL, SHERDI_RINGS, sizeof(*progress->rings));
    progress->staged = sherdi_alloc(mem, SHERDI_MEM_CONTROL, sizeof(*progress->staged));
    if (progress->rings == NULL || progress->staged == NULL) {
        return SHERD_E_NOMEM;
    }
    sherdi_staged_forget(progress);
    for (int r = 0; r < SHERDI_RINGS; r++) {
        SHERDI_TRY(ring_open(progress, plan, (sherdi_ring)r, mem));
    }
    sherdi_slots_count(progress, plan, model);
    return SHERD_OK;
}

static void rings_close(sherdi_progress *progress)
{
    for (int r = 0; r < SHERDI_RINGS && progress->rings != NULL; r++) {
        sherdi_free(progress->rings[r].slots);
        sherdi_free(progress->rings[r].extents);
    }
    sherdi_free(progress->rings);
    sherdi_free(progress->staged);
}

const sherdi_module sherdi_module_rings = {.progress_open  = rings_open,
                                           .progress_close = rings_close};
