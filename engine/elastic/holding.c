/* See holding.h. */
#include "engine/elastic/holding.h"

#include "base/checked.h"
#include "engine/elastic/stored.h"
#include "engine/plan/offload.h"
#include "engine/program/offload.h"

#include <string.h>

size_t sherdi_holding_bytes(const sherdi_plan *plan, size_t param, int part, size_t elems)
{
    const sherdi_segment *segment = sherdi_param_segment(plan, param);

    return part < 0 ? elems * sherdi_compute_bytes(segment)
                    : sherdi_segment_part_bytes(segment, part, elems);
}

/* Returns the memory of element `at` of a slice on a drive, and shortens *count to its piece. */
static unsigned char *piece_of(const sherdi_holding *held, const sherdi_segment *segment, size_t at,
                               size_t *count)
{
    const sherdi_piece *pieces = held->plan->offload->pieces;
    size_t              piece  = segment->first_piece + at / pieces[segment->first_piece].elems;

    at -= pieces[piece].offset_elems;
    *count = sherdi_min_size(*count, pieces[piece].elems - at);
    return sherdi_stored_piece(held->stored, piece) + at * sherdi_compute_bytes(segment);
}

/* Where elements are. */
typedef struct place {
    unsigned char *memory;
    int            is_host; /* the host itself may copy it */
} place;

static place buffer_place(const sherdi_holding *held, int where, size_t offset)
{
    return (place){.memory  = held->buffers[where] + offset,
                   .is_host = held->lane == NULL || held->plan->packing.buffers[where].is_host};
}

static place param_at(const sherdi_holding *held, const sherdi_segment *segment, size_t param,
                      size_t first, size_t *count)
{
    size_t elem = sherdi_compute_bytes(segment);
    size_t at   = held->plan->layout.params[param].offset_elems + first;

    if (segment->is_bound) {
        return (place){.memory =
                           (unsigned char *)held->model->params[param].bound_data + first * elem,
                       .is_host = held->lane == NULL};
    }
    at -= segment->is_resident ? 0 : segment->slice_first;
    if (segment->param_space == SHERDI_SPACE_STORAGE) {
        return (place){.memory = piece_of(held, segment, at, count), .is_host = 1};
    }
    return buffer_place(held,
                        segment->param_space == SHERDI_SPACE_HOST ? SHERDI_BUFFER_HOST_PARAMS
                                                                  : SHERDI_BUFFER_PARAMS,
                        segment->param_offset + at * elem);
}

/* Gives the place of elements [first, first + *count), which this rank holds; *count becomes how
 * many of them follow each other there. */
static place place_of(const sherdi_holding *held, size_t param, int part, size_t first,
                      size_t *count)
{
    const sherdi_plan    *plan    = held->plan;
    const sherdi_segment *segment = sherdi_param_segment(plan, param);
    size_t                at      = plan->layout.params[param].offset_elems + first;
    const sherdi_block   *block   = &plan->layout.blocks[segment->first_block];
    sherdi_range          state;

    if (part == SHERDI_HOLDING_PARAM) {
        return param_at(held, segment, param, first, count);
    }
    at -= segment->own_first;
    block += at / block->elems; /* the last may be shorter */
    at -= block->offset_elems;
    *count = sherdi_min_size(*count, block->elems - at);
    if (part == SHERDI_HOLDING_VALUES) {
        return (place){.memory =
                           block->space == SHERDI_SPACE_STORAGE && sherdi_block_keeps_values(block)
                               ? sherdi_stored_extent(held->stored, block->extent) +
                                     block->value_offset + at * sherdi_compute_bytes(segment)
                               : NULL,
                       .is_host = 1};
    }
    if (block->space == SHERDI_SPACE_STORAGE) {
        return (place){.memory = sherdi_stored_extent(held->stored, block->extent) +
                                 block->state_offset +
                                 sherdi_plan_part_offset(plan, block, part, at),
                       .is_host = 1};
    }
    state = sherdi_state_at(plan, block);
    return buffer_place(held, state.where,
                        state.offset + sherdi_plan_part_offset(plan, block, part, at));
}

unsigned char *sherdi_holding_of(const sherdi_holding *held, size_t param, int part, size_t first,
                                 size_t *count)
{
    return place_of(held, param, part, first, count).memory;
}

int sherdi_holding_is_apart(const sherdi_holding *held, size_t param, int part, size_t first,
                            size_t count)
{
    while (count > 0) {
        size_t some = count;

        if (!place_of(held, param, part, first, &some).is_host) {
            return 1;
        }
        first += some;
        count -= some;
    }
    return 0;
}

/* A parameter's own memory ends with it: no padding follows. */
static size_t bytes_there(const sherdi_holding *held, size_t param, int part, size_t first,
                          size_t count)
{
    size_t elems = held->model->params[param].elems;

    if (part == SHERDI_HOLDING_PARAM && sherdi_param_segment(held->plan, param)->is_bound) {
        count = sherdi_min_size(count, elems > first ? elems - first : 0);
    }
    return sherdi_holding_bytes(held->plan, param, part, count);
}

/* The trainer's own memory stays where it is. */
static void bytes_copy(const sherdi_backend *lane, place target, place source, size_t len_bytes)
{
    if (target.memory == source.memory) {
        return;
    }
    if (target.is_host && source.is_host) {
        memcpy(target.memory, source.memory, len_bytes);
    } else {
        lane->kernels->copy(lane, target.memory, source.memory, len_bytes);
    }
}

void sherdi_holding_keep(const sherdi_holding *from, const sherdi_holding *to, size_t param,
                         int part, size_t first, size_t count)
{
    while (count > 0) {
        size_t some   = count;
        place  source = place_of(from, param, part, first, &some);
        place  target = place_of(to, param, part, first, &some);

        bytes_copy(to->lane, target, source, bytes_there(to, param, part, first, some));
        first += some;
        count -= some;
    }
}

void sherdi_holding_give(const sherdi_holding *from, size_t param, int part, size_t first,
                         size_t count, unsigned char *memory)
{
    while (count > 0) {
        size_t some   = count;
        place  source = place_of(from, param, part, first, &some);

        bytes_copy(from->lane, (place){.memory = memory, .is_host = 1}, source,
                   bytes_there(from, param, part, first, some));
        memory += sherdi_holding_bytes(from->plan, param, part, some);
        first += some;
        count -= some;
    }
}

void sherdi_holding_take(const sherdi_holding *to, size_t param, int part, size_t first,
                         size_t count, const unsigned char *memory)
{
    while (count > 0) {
        size_t some   = count;
        place  target = place_of(to, param, part, first, &some);
        place  source = {.memory = (unsigned char *)(uintptr_t)memory, .is_host = 1};

        bytes_copy(to->lane, target, source, bytes_there(to, param, part, first, some));
        memory += sherdi_holding_bytes(to->plan, param, part, some);
        first += some;
        count -= some;
    }
}
