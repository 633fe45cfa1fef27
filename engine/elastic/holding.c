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

static unsigned char *param_of(const sherdi_holding *held, const sherdi_segment *segment,
                               size_t param, size_t first, size_t *count)
{
    size_t elem = sherdi_compute_bytes(segment);
    size_t at   = held->plan->layout.params[param].offset_elems + first;

    if (segment->is_bound) {
        return (unsigned char *)held->model->params[param].bound_data + first * elem;
    }
    at -= segment->is_resident ? 0 : segment->slice_first;
    if (segment->param_space == SHERDI_SPACE_STORAGE) {
        return piece_of(held, segment, at, count);
    }
    return held->buffers[segment->param_space == SHERDI_SPACE_HOST ? SHERDI_BUFFER_HOST_PARAMS
                                                                   : SHERDI_BUFFER_PARAMS] +
           segment->param_offset + at * elem;
}

unsigned char *sherdi_holding_of(const sherdi_holding *held, size_t param, int part, size_t first,
                                 size_t *count)
{
    const sherdi_plan    *plan    = held->plan;
    const sherdi_segment *segment = sherdi_param_segment(plan, param);
    size_t                at      = plan->layout.params[param].offset_elems + first;
    const sherdi_block   *block   = &plan->layout.blocks[segment->first_block];
    sherdi_range          state;

    if (part == SHERDI_HOLDING_PARAM) {
        return param_of(held, segment, param, first, count);
    }
    at -= segment->own_first;
    block += at / block->elems; /* the last may be shorter */
    at -= block->offset_elems;
    *count = sherdi_min_size(*count, block->elems - at);
    if (part == SHERDI_HOLDING_VALUES) {
        return block->space == SHERDI_SPACE_STORAGE && sherdi_block_keeps_values(block)
                   ? sherdi_stored_extent(held->stored, block->extent) + block->value_offset +
                         at * sherdi_compute_bytes(segment)
                   : NULL;
    }
    if (block->space == SHERDI_SPACE_STORAGE) {
        return sherdi_stored_extent(held->stored, block->extent) + block->state_offset +
               sherdi_plan_part_offset(plan, block, part, at);
    }
    state = sherdi_state_at(plan, block);
    return held->buffers[state.where] + state.offset +
           sherdi_plan_part_offset(plan, block, part, at);
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

void sherdi_holding_keep(const sherdi_holding *from, const sherdi_holding *to, size_t param,
                         int part, size_t first, size_t count)
{
    while (count > 0) {
        size_t               some   = count;
        const unsigned char *source = sherdi_holding_of(from, param, part, first, &some);
        unsigned char       *target = sherdi_holding_of(to, param, part, first, &some);

        if (source != target) { /* the trainer's own memory stays where it is */
            memcpy(target, source, bytes_there(to, param, part, first, some));
        }
        first += some;
        count -= some;
    }
}

void sherdi_holding_give(const sherdi_holding *from, size_t param, int part, size_t first,
                         size_t count, unsigned char *memory)
{
    while (count > 0) {
        size_t               some   = count;
        const unsigned char *source = sherdi_holding_of(from, param, part, first, &some);

        memcpy(memory, source, bytes_there(from, param, part, first, some));
        memory += sherdi_holding_bytes(from->plan, param, part, some);
        first += some;
        count -= some;
    }
}

void sherdi_holding_take(const sherdi_holding *to, size_t param, int part, size_t first,
                         size_t count, const unsigned char *memory)
{
    while (count > 0) {
        size_t         some   = count;
        unsigned char *target = sherdi_holding_of(to, param, part, first, &some);

        memcpy(target, memory, bytes_there(to, param, part, first, some));
        memory += sherdi_holding_bytes(to->plan, param, part, some);
        first += some;
        count -= some;
    }
}
