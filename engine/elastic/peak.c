/* See peak.h. The numbers and the memory are of one loop over the ranges that a segment has, so
 * that what is counted is what is given back. */
#include "engine/elastic/peak.h"

#include "engine/elastic/ledger.h"

#include "base/checked.h"
#include "base/pages.h"
#include "engine/elastic/stored.h"
#include "engine/program/program.h"

int sherdi_move_is_passing(sherdi_buffer_id id)
{
    switch (id) {
    case SHERDI_BUFFER_PARAMS:
    case SHERDI_BUFFER_STATE:
    case SHERDI_BUFFER_SCALARS:
    case SHERDI_BUFFER_HOST_PARAMS:
    case SHERDI_BUFFER_HOST_STATE:
    case SHERDI_BUFFER_HOST_SCALARS:
    case SHERDI_BUFFER_REDUNDANCY:
    case SHERDI_BUFFER_SECOND:
        return 0;
    default:
        return 1;
    }
}

/* Gives range `index` of the memory that rests of a segment: first the parameters, then the state
 * of each block. Returns 0 beyond the last. */
static int rest_of(const sherdi_plan *plan, int segment, size_t index, sherdi_range *out)
{
    const sherdi_segment *of = &plan->layout.segments[segment];
    const sherdi_block   *block;

    if (index == 0) {
        size_t elems = of->is_resident ? of->padded_elems : of->slice_elems;

        *out = sherdi_range_of(
            of->param_space == SHERDI_SPACE_HOST ? SHERDI_BUFFER_HOST_PARAMS : SHERDI_BUFFER_PARAMS,
            of->param_offset,
            of->param_offset == SHERDI_NO_OFFSET
                ? 0
                : sherdi_round_up(elems * sherdi_compute_bytes(of), SHERD_ALIGN_BYTES));
        return 1;
    }
    if (index > of->num_blocks) {
        return 0;
    }
    block      = &plan->layout.blocks[of->first_block + index - 1];
    *out       = sherdi_state_at(plan, block);
    out->bytes = sherdi_round_up(sherdi_plan_state_bytes(plan, block), SHERD_ALIGN_BYTES);
    return 1;
}

/* Returns whether memory of a buffer is given back before it is freed: no memory of a device, and
 * none of which a device knows the pages. */
static int is_given_back(const sherdi_plan *plan, int id)
{
    const sherdi_plan_buffer *buffer = &plan->packing.buffers[id];

    return !plan->machine.has_device || (buffer->is_host && !buffer->is_pinned);
}

size_t sherdi_move_given_back(const sherdi_plan *plan)
{
    size_t bytes = 0;

    for (int b = 0; plan != NULL && b < SHERDI_BUFFERS; b++) {
        bytes += is_given_back(plan, b) ? plan->packing.buffers[b].bytes : 0;
    }
    return bytes;
}

static size_t segment_bytes(const sherdi_plan *plan, int segment)
{
    size_t       bytes = 0;
    sherdi_range range;

    for (size_t i = 0; plan != NULL && rest_of(plan, segment, i, &range); i++) {
        bytes += range.bytes > 0 && is_given_back(plan, range.where) ? range.bytes : 0;
    }
    return bytes;
}

/* Whether a buffer is given back before values go. Locked memory is not, where the engine may come
 * back to it: transfers would not see its new pages. */
static int is_dropped(const sherdi_plan *plan, int buffer)
{
    return sherdi_move_is_passing((sherdi_buffer_id)buffer) && is_given_back(plan, buffer) &&
           !(plan->packing.buffers[buffer].is_pinned && sherdi_move_is_stored(&plan->settings));
}

static size_t passing_bytes(const sherdi_plan *plan)
{
    size_t bytes = 0;

    for (int b = 0; plan != NULL && b < SHERDI_BUFFERS; b++) {
        bytes += is_dropped(plan, b) ? plan->packing.buffers[b].bytes : 0;
    }
    return bytes;
}

/* With data on a drive: both layouts, and rooms for a segment of each. */
static size_t stored_peak(const sherdi_plan *old_plan, const sherdi_plan *new_plan)
{
    size_t peak = 0;

    if (old_plan != NULL) {
        peak += sherdi_move_given_back(old_plan) - passing_bytes(old_plan) +
                sherdi_stored_room_bytes(old_plan);
    }
    return new_plan == NULL
               ? peak
               : peak + sherdi_move_given_back(new_plan) + sherdi_stored_room_bytes(new_plan);
}

/* The peak of what is given back. */
static size_t changing_peak(const sherdi_plan *old_plan, const sherdi_plan *new_plan)
{
    size_t num_segments = (old_plan != NULL ? old_plan : new_plan)->layout.num_segments;
    size_t old_total    = sherdi_move_given_back(old_plan);
    size_t new_total    = sherdi_move_given_back(new_plan);
    size_t old_left     = old_total - passing_bytes(old_plan);
    size_t new_taken    = 0;
    size_t peak         = sherdi_max_size(old_total, new_total);

    if (sherdi_move_is_stored(&(old_plan != NULL ? old_plan : new_plan)->settings)) {
        return sherdi_max_size(peak, stored_peak(old_plan, new_plan));
    }
    if (!sherdi_keeps_nothing(&(old_plan != NULL ? old_plan : new_plan)->settings) ||
        (old_plan != NULL && old_plan->num_replicas > 1)) {
        return sherdi_max_size(peak, old_left + new_total); /* it is kept until the end */
    }
    for (size_t s = 0; s < num_segments; s++) {
        new_taken += segment_bytes(new_plan, (int)s);
        peak = sherdi_max_size(peak, old_left + new_taken);
        old_left -= segment_bytes(old_plan, (int)s);
    }
    return sherdi_max_size(peak, old_left + new_total);
}

/* Adds what a layout holds from the beginning to the end. */
static void held_add(const sherdi_plan *plan, sherdi_move_peak *peak)
{
    size_t host;

    if (plan == NULL || !plan->machine.has_device) {
        return;
    }
    host = plan->packing.host_bytes - sherdi_move_given_back(plan);
    peak->host += host;
    peak->host_held = host;
    peak->device += plan->packing.total_bytes - plan->packing.host_bytes;
}

sherdi_move_peak sherdi_move_peak_of(const sherdi_plan *old_plan, const sherdi_plan *new_plan)
{
    sherdi_move_peak peak = {.host = changing_peak(old_plan, new_plan)};

    held_add(new_plan, &peak);
    peak.host_held = 0;
    held_add(old_plan, &peak);
    return peak;
}

void sherdi_move_drop_passing(const sherdi_plan *plan, unsigned char *const *buffers)
{
    for (int b = 0; b < SHERDI_BUFFERS; b++) {
        if (is_dropped(plan, b) && plan->packing.buffers[b].bytes > 0) {
            sherdi_pages_give_back(buffers[b], plan->packing.buffers[b].bytes);
        }
    }
}

void sherdi_move_drop_segment(const sherdi_plan *plan, unsigned char *const *buffers, int segment)
{
    sherdi_range range;

    for (size_t i = 0; rest_of(plan, segment, i, &range); i++) {
        if (range.bytes > 0 && is_given_back(plan, range.where)) {
            sherdi_pages_give_back(buffers[range.where] + range.offset, range.bytes);
        }
    }
}

void sherdi_move_take_segment(const sherdi_plan *plan, unsigned char *const *buffers, int segment)
{
    sherdi_range range;

    for (size_t i = 0; rest_of(plan, segment, i, &range); i++) {
        if (range.bytes > 0 && range.offset % SHERD_ALIGN_BYTES == 0 &&
            is_given_back(plan, range.where)) {
            (void)sherdi_pages_take(buffers[range.where] + range.offset,
                                    range.bytes / SHERD_ALIGN_BYTES * SHERD_ALIGN_BYTES);
        }
    }
}
