/* See wire.h. A portion of a range that changes its rank goes to the slot of its sender. When a
 * slot is full, the ranks meet, and each takes its portions from the rooms of the others; meanwhile
 * the next portions go to the other slot. Which meeting a portion belongs to follows from the list
 * alone. */
#include "engine/elastic/wire.h"

#include "base/checked.h"
#include "engine/run/agree.h"
#include "kernels/lanes.h"

#include <string.h>

#define LEAST_SLOT_BYTES ((size_t)64 << 10)
#define MOST_SLOT_BYTES  ((size_t)4 << 20)

/* A device copies from locked memory of this rank alone: another rank's room is locked for its own
 * device, and may go at any time. */
static sherd_status stage_open(sherdi_move_wire *wire, sherdi_mem *mem, sherdi_backend *lane)
{
    void *stage;

    SHERDI_TRY(sherdi_host_alloc(sherdi_world_host(wire->world), mem, SHERDI_MEM_TRANSPORT,
                                 wire->slot_bytes, &stage));
    wire->stage = stage;
    if (sherdi_lanes_of(lane)->pin != NULL) {
        SHERDI_TRY(sherdi_lanes_of(lane)->pin(lane, wire->stage, wire->slot_bytes));
    }
    wire->lane = lane;
    return sherdi_pass_pin(&wire->pass, lane);
}

sherd_status sherdi_move_wire_open(sherdi_move_wire *wire, sherdi_mem *mem, sherd_status here)
{
    sherdi_backend *lane = wire->lane;
    size_t          part;

    wire->lane   = NULL;
    wire->filled = sherdi_alloc_array(mem, SHERDI_MEM_CONTROL,
                                      (size_t)sherd_world_size(wire->world), sizeof(size_t));
    wire->all =
        sherdi_alloc_array(mem, SHERDI_MEM_CONTROL, SHERDI_MOVE_PORTIONS, sizeof(*wire->all));
    wire->portions =
        sherdi_alloc_array(mem, SHERDI_MEM_CONTROL, SHERDI_MOVE_PORTIONS, sizeof(*wire->portions));
    if (here == SHERD_OK && (wire->filled == NULL || wire->all == NULL || wire->portions == NULL)) {
        here = SHERD_E_NOMEM;
    }
    SHERDI_TRY(sherdi_agree_world(wire->world, here));
    part = wire->plans->model->total_elems / 64 * sizeof(float);
    wire->slot_bytes =
        sherdi_round_up(sherdi_min_size(sherdi_max_size(part, LEAST_SLOT_BYTES), MOST_SLOT_BYTES),
                        SHERD_ALIGN_BYTES);
    SHERDI_TRY(sherdi_pass_open(&wire->pass, wire->world, 2 * wire->slot_bytes));
    return sherdi_agree_world(wire->world, lane == NULL ? SHERD_OK : stage_open(wire, mem, lane));
}

void sherdi_move_wire_close(sherdi_move_wire *wire)
{
    if (wire->lane != NULL) { /* a failure may have left copies under way */
        (void)sherdi_lane_wait(wire->lane);
        if (sherdi_lanes_of(wire->lane)->unpin != NULL) {
            sherdi_lanes_of(wire->lane)->unpin(wire->lane, wire->stage);
        }
    }
    sherdi_pass_close(&wire->pass);
    sherdi_free(wire->stage);
    sherdi_free(wire->filled);
    sherdi_free(wire->all);
    sherdi_free(wire->portions);
    wire->lane     = NULL;
    wire->stage    = NULL;
    wire->filled   = NULL;
    wire->all      = NULL;
    wire->portions = NULL;
}

/* ------------------------------------------------------------------- meetings -- */

/* Takes a portion out of its sender's room; for a device by way of the stage, which is free again
 * when the lane has been waited for. */
static sherd_status portion_take(sherdi_move_wire *wire, const sherdi_move_portion *portion)
{
    const unsigned char *data = sherdi_pass_room(&wire->pass, portion->from) +
                                (size_t)wire->slot * wire->slot_bytes + portion->offset_bytes;
    size_t bytes =
        sherdi_holding_bytes(wire->to.plan, portion->param, portion->part, portion->count);

    if (wire->lane != NULL && sherdi_holding_is_apart(&wire->to, portion->param, portion->part,
                                                      portion->first, portion->count)) {
        if (wire->staged_bytes + bytes > wire->slot_bytes) {
            SHERDI_TRY(sherdi_pass_settle(&wire->pass, wire->lane));
            wire->staged_bytes = 0;
        }
        data = memcpy(wire->stage + wire->staged_bytes, data, bytes);
        wire->staged_bytes += sherdi_round_up(bytes, 64);
    }
    sherdi_holding_take(&wire->to, portion->param, portion->part, portion->first, portion->count,
                        data);
    return SHERD_OK;
}

static sherd_status slot_pass(sherdi_move_wire *wire)
{
    SHERDI_TRY(sherdi_pass_settle(&wire->pass, wire->lane)); /* what it gives is in its room */
    wire->staged_bytes = 0;
    SHERDI_TRY(sherdi_pass_meet(&wire->pass, wire->sent_bytes, wire->got_bytes));
    for (size_t i = 0; i < wire->num_taken; i++) {
        SHERDI_TRY(portion_take(wire, &wire->portions[i]));
    }
    wire->own_sent_bytes += wire->sent_bytes;
    wire->own_got_bytes += wire->got_bytes;
    wire->sent_bytes = wire->got_bytes = 0;
    wire->num_taken = wire->num_all = 0;
    wire->slot                      = !wire->slot;
    memset(wire->filled, 0, (size_t)sherd_world_size(wire->world) * sizeof(*wire->filled));
    return SHERD_OK;
}

/* Finds the same portion in the slot, for another rank: replicas need the same values. */
static const sherdi_move_portion *portion_find(const sherdi_move_wire    *wire,
                                               const sherdi_move_portion *what)
{
    for (size_t i = wire->num_all; i-- > 0;) {
        const sherdi_move_portion *its = &wire->all[i];

        if (its->param != what->param || its->part != what->part) {
            return NULL; /* those of a part are one after the other */
        }
        if (its->first == what->first && its->count == what->count && its->from == what->from) {
            return its;
        }
    }
    return NULL;
}

/* Puts a portion, which fits a slot, into that of its sender; *portion says where. */
static sherd_status portion_put(sherdi_move_wire *wire, const sherdi_move_range *range,
                                size_t bytes, sherdi_move_portion *portion)
{
    const sherdi_move_portion *there = portion_find(wire, portion);

    if (there != NULL) {
        *portion = *there;
        return SHERD_OK;
    }
    if (wire->filled[portion->from] + bytes > wire->slot_bytes ||
        wire->num_all == SHERDI_MOVE_PORTIONS) {
        SHERDI_TRY(slot_pass(wire));
    }
    portion->offset_bytes = wire->filled[portion->from];
    wire->filled[portion->from] += sherdi_round_up(bytes, 64);
    wire->all[wire->num_all++] = *portion;
    wire->moved_bytes += bytes;
    if (portion->from == sherd_world_rank(wire->world)) {
        sherdi_holding_give(
            &wire->from[range->from], portion->param, portion->part, portion->first, portion->count,
            wire->pass.own + (size_t)wire->slot * wire->slot_bytes + portion->offset_bytes);
        wire->sent_bytes += bytes;
    }
    return SHERD_OK;
}

static sherd_status portion_pass(sherdi_move_wire *wire, const sherdi_move_range *range,
                                 sherdi_move_portion portion)
{
    const sherdi_plan *plan = wire->plans->new_plan;
    int                me   = sherd_world_rank(wire->world);
    int                to   = wire->new_at[range->to];
    size_t bytes = sherdi_holding_bytes(plan, portion.param, portion.part, portion.count);

    portion.from = wire->old_at[range->from];
    if (portion.from == to) {
        if (to == me) {
            sherdi_holding_keep(&wire->from[range->from], &wire->to, portion.param, portion.part,
                                portion.first, portion.count);
            wire->kept_bytes += bytes;
        }
        return SHERD_OK;
    }
    SHERDI_TRY(portion_put(wire, range, bytes, &portion));
    if (to == me) {
        wire->portions[wire->num_taken++] = portion;
        wire->got_bytes += bytes;
    }
    return SHERD_OK;
}

static sherd_status part_pass(sherdi_move_wire *wire, const sherdi_move_range *range, int part)
{
    const sherdi_plan *plan  = wire->plans->new_plan;
    size_t             chunk = sherdi_holding_bytes(plan, range->param, part, SHERD_CHUNK_ELEMS);
    size_t             most  = wire->slot_bytes / chunk * SHERD_CHUNK_ELEMS;
    size_t             end   = range->first + range->count;

    for (size_t at = range->first; at < end; at += most) {
        SHERDI_TRY(portion_pass(wire, range,
                                (sherdi_move_portion){.param = range->param,
                                                      .part  = part,
                                                      .first = at,
                                                      .count = sherdi_min_size(most, end - at)}));
    }
    return SHERD_OK;
}

sherd_status sherdi_move_wire_range(void *ctx, const sherdi_move_range *range)
{
    sherdi_move_wire     *wire    = ctx;
    const sherdi_segment *segment = sherdi_param_segment(wire->plans->new_plan, range->param);

    if (range->what == SHERDI_MOVE_PARAM && wire->is_from_state && segment->optimizer != NULL) {
        return SHERD_OK;
    }
    if (range->what == SHERDI_MOVE_PARAM) {
        return part_pass(wire, range, SHERDI_HOLDING_PARAM);
    }
    for (int part = segment->has_master ? 0 : 1; part < sherdi_segment_parts(segment); part++) {
        SHERDI_TRY(part_pass(wire, range, part));
    }
    return wire->is_from_state && sherdi_segment_is_beside(segment)
               ? part_pass(wire, range, SHERDI_HOLDING_VALUES)
               : SHERD_OK;
}

sherd_status sherdi_move_wire_segment(sherdi_move_wire *wire, int segment)
{
    return sherdi_move_list(wire->plans, segment, sherdi_move_wire_range, wire);
}

sherd_status sherdi_move_wire_finish(sherdi_move_wire *wire)
{
    if (wire->num_all > 0) {
        SHERDI_TRY(slot_pass(wire));
    }
    return sherdi_pass_settle(&wire->pass, wire->lane);
}
