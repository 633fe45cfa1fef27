/* See stored.h. Extents lie in a room one after the other, each with its tail. Segments follow the
 * order of their blocks, so an extent that two segments share is the last of one and the first of
 * the next: it stays in memory between them, and is written when the last of them is complete. */
#include "engine/elastic/stored.h"

#include "base/checked.h"
#include "engine/elastic/ranges.h"
#include "engine/plan/offload.h"
#include "offload/tier.h"

#include <assert.h>
#include <string.h>

/* Rings whose extents outlive a window. */
static const sherdi_ring RINGS[] = {SHERDI_RING_STATE, SHERDI_RING_PARAMS};
#define NUM_RINGS (sizeof(RINGS) / sizeof(RINGS[0]))

/* The extents of a ring that are in memory: [first, end). */
typedef struct stored_ring {
    sherdi_ring    ring;
    sherdi_tier   *tier;
    unsigned char *room;
    sherdi_io     *ios; /* two for each extent in memory: its own, and its tail's */
    size_t         first, end;
    size_t         written; /* the extents before it are written, or on their way */
    int            loading; /* the segment whose extents are read; -1: none */
} stored_ring;

struct sherdi_stored {
    const sherdi_plan *plan;
    stored_ring        rings[NUM_RINGS];
    uint64_t           bytes;
};

/* -------------------------------------------------------------------- the extents -- */

/* Gives the extents [*first, *end) of a segment; returns 0 where it has none. */
static int segment_extents(const sherdi_plan *plan, sherdi_ring ring, size_t segment, size_t *first,
                           size_t *end)
{
    const sherdi_segment *of     = &plan->layout.segments[segment];
    const sherdi_block   *blocks = &plan->layout.blocks[of->first_block];
    size_t                begin  = 0;
    size_t                last   = of->num_blocks;

    if (ring == SHERDI_RING_PARAMS) {
        *first = of->first_piece;
        *end   = of->first_piece + of->num_pieces;
        return of->num_pieces > 0;
    }
    while (begin < last && blocks[begin].space != SHERDI_SPACE_STORAGE) {
        begin++;
    }
    while (begin < last && blocks[last - 1].space != SHERDI_SPACE_STORAGE) {
        last--;
    }
    if (begin == last) {
        return 0;
    }
    *first = blocks[begin].extent;
    *end   = blocks[last - 1].extent + 1;
    return 1;
}

/* Returns the first segment from `segment` on that has extents; num_segments: none has. */
static size_t segment_next(const sherdi_plan *plan, sherdi_ring ring, size_t segment)
{
    size_t first;
    size_t end;

    while (segment < plan->layout.num_segments &&
           !segment_extents(plan, ring, segment, &first, &end)) {
        segment++;
    }
    return segment;
}

static size_t tail_of(const sherdi_plan *plan, sherdi_ring ring, size_t extent)
{
    return ring == SHERDI_RING_STATE && extent < plan->offload->num_tails
               ? plan->offload->num_tails + extent
               : SIZE_MAX;
}

/* Returns the bytes of the extents before `extent`, with their tails. */
static size_t bytes_before(const sherdi_plan *plan, sherdi_ring ring, size_t extent)
{
    const sherdi_extent *all   = plan->rings[ring].extents;
    size_t               count = plan->rings[ring].num_extents;
    size_t               tails = ring == SHERDI_RING_STATE ? plan->offload->num_tails : 0;
    size_t bytes = extent == 0 ? 0 : all[extent - 1].offset_bytes + all[extent - 1].len_bytes;

    if (extent > 0 && tails > 0) {
        const sherdi_extent *tail = &all[tails + extent - 1];

        bytes += tail->offset_bytes + tail->len_bytes - all[count].offset_bytes;
    }
    return bytes;
}

/* Gives the most bytes and extents that one segment has. */
static size_t room_size(const sherdi_plan *plan, sherdi_ring ring, size_t *extents_out)
{
    size_t most = 0;
    size_t first;
    size_t end;

    *extents_out = 0;
    for (size_t s = 0; s < plan->layout.num_segments; s++) {
        if (segment_extents(plan, ring, s, &first, &end)) {
            most         = sherdi_max_size(most,
                                           bytes_before(plan, ring, end) - bytes_before(plan, ring, first));
            *extents_out = sherdi_max_size(*extents_out, end - first);
        }
    }
    return most;
}

size_t sherdi_stored_room_bytes(const sherdi_plan *plan)
{
    size_t bytes = 0;
    size_t extents;

    for (size_t i = 0; i < NUM_RINGS && plan->offload != NULL; i++) {
        bytes += room_size(plan, RINGS[i], &extents);
    }
    return bytes;
}

/* ----------------------------------------------------------------------- the rooms -- */

static unsigned char *extent_at(const sherdi_stored *stored, const stored_ring *ring, size_t extent)
{
    return ring->room + bytes_before(stored->plan, ring->ring, extent) -
           bytes_before(stored->plan, ring->ring, ring->first);
}

/* Waits for the transfers of a room. */
static sherd_status ring_settle(stored_ring *ring)
{
    sherdi_outcome all = {.status = SHERD_OK};

    for (size_t i = 0; ring->tier != NULL && i < 2 * (ring->end - ring->first); i++) {
        sherdi_outcome_add(&all, ring->tier->ops->wait(ring->tier, &ring->ios[i]));
        ring->ios[i] = (sherdi_io){0};
    }
    return sherdi_outcome_end(&all);
}

/* Puts extents [first, end) into a room in which nothing is under way. Returns the first one that
 * was not there. */
static size_t ring_enter(sherdi_stored *stored, stored_ring *ring, size_t first, size_t end)
{
    size_t fresh = first;

    assert(first + 1 >= ring->end);
    if (first < ring->end) {
        fresh++;
        memmove(ring->room, extent_at(stored, ring, first),
                bytes_before(stored->plan, ring->ring, fresh) -
                    bytes_before(stored->plan, ring->ring, first));
    }
    ring->first = first;
    ring->end   = end;
    return fresh;
}

/* Starts the transfer of an extent and of its tail. */
static void extent_start(sherdi_stored *stored, stored_ring *ring, size_t extent, int is_write)
{
    const sherdi_extent   *all    = stored->plan->rings[ring->ring].extents;
    const sherdi_tier_ops *ops    = ring->tier->ops;
    size_t                 tail   = tail_of(stored->plan, ring->ring, extent);
    unsigned char         *memory = extent_at(stored, ring, extent);
    sherdi_io             *ios    = &ring->ios[2 * (extent - ring->first)];

    (is_write ? ops->write_start : ops->read_start)(ring->tier, extent, memory, &ios[0]);
    stored->bytes += all[extent].len_bytes;
    if (tail != SIZE_MAX && all[tail].len_bytes > 0) {
        (is_write ? ops->write_start : ops->read_start)(ring->tier, tail,
                                                        memory + all[extent].len_bytes, &ios[1]);
        stored->bytes += all[tail].len_bytes;
    }
}

/* Whether an extent has values at all: the padding of a frozen segment has none. */
static int has_values(const sherdi_stored *stored, const stored_ring *ring, size_t extent)
{
    return ring->ring != SHERDI_RING_PARAMS ||
           !stored->plan->offload->pieces[extent].is_never_written;
}

sherd_status sherdi_stored_open(const sherdi_plan *plan, struct sherdi_tier *const *tiers,
                                sherdi_mem *mem, sherdi_stored **out)
{
    sherdi_stored *stored;
    sherd_status   status = SHERD_OK;

    *out = NULL;
    if (plan->offload == NULL || sherdi_stored_room_bytes(plan) == 0) {
        return SHERD_OK;
    }
    stored = sherdi_alloc(mem, SHERDI_MEM_CONTROL, sizeof(*stored));
    if (stored == NULL) {
        return SHERD_E_NOMEM;
    }
    stored->plan = plan;
    for (size_t i = 0; i < NUM_RINGS && status == SHERD_OK; i++) {
        stored_ring *ring = &stored->rings[i];
        size_t       extents;
        size_t       bytes = room_size(plan, RINGS[i], &extents);

        *ring = (stored_ring){.ring = RINGS[i], .loading = -1};
        if (bytes == 0 || tiers[RINGS[i]] == NULL) {
            continue;
        }
        ring->room = sherdi_alloc_pages(mem, SHERDI_MEM_HOST_STAGING, bytes);
        ring->ios  = sherdi_alloc_array(mem, SHERDI_MEM_CONTROL, 2 * extents, sizeof(*ring->ios));
        ring->tier = tiers[RINGS[i]];
        if (ring->room == NULL || ring->ios == NULL) {
            status = SHERD_E_NOMEM;
        }
    }
    if (status != SHERD_OK) {
        sherdi_stored_close(stored);
        return status;
    }
    *out = stored;
    return SHERD_OK;
}

void sherdi_stored_close(sherdi_stored *stored)
{
    for (size_t i = 0; stored != NULL && i < NUM_RINGS; i++) {
        if (stored->rings[i].ios != NULL) {
            (void)ring_settle(&stored->rings[i]);
        }
        sherdi_free(stored->rings[i].ios);
        sherdi_free(stored->rings[i].room);
    }
    sherdi_free(stored);
}

/* --------------------------------------------------------------------- transfers -- */

static void ring_ahead(sherdi_stored *stored, stored_ring *ring, size_t segment)
{
    size_t next = segment_next(stored->plan, ring->ring, segment);
    size_t first;
    size_t end;

    if (ring->tier == NULL || next == stored->plan->layout.num_segments ||
        ring->loading == (int)next ||
        !segment_extents(stored->plan, ring->ring, next, &first, &end)) {
        return;
    }
    ring->loading = (int)next;
    for (size_t e = ring_enter(stored, ring, first, end); e < end; e++) {
        extent_start(stored, ring, e, 0);
    }
}

void sherdi_stored_ahead(sherdi_stored *stored, int segment)
{
    for (size_t i = 0; stored != NULL && i < NUM_RINGS; i++) {
        ring_ahead(stored, &stored->rings[i], (size_t)segment);
    }
}

sherd_status sherdi_stored_read(sherdi_stored *stored, int segment)
{
    sherdi_outcome all = {.status = SHERD_OK};

    sherdi_stored_ahead(stored, segment);
    for (size_t i = 0; stored != NULL && i < NUM_RINGS; i++) {
        if (stored->rings[i].loading == segment) {
            sherdi_outcome_add(&all, ring_settle(&stored->rings[i]));
        }
    }
    return sherdi_outcome_end(&all);
}

sherd_status sherdi_stored_begin(sherdi_stored *stored, int segment)
{
    sherdi_outcome all = {.status = SHERD_OK};
    size_t         first;
    size_t         end;

    for (size_t i = 0; stored != NULL && i < NUM_RINGS; i++) {
        stored_ring   *ring = &stored->rings[i];
        unsigned char *fresh;

        if (!segment_extents(stored->plan, ring->ring, (size_t)segment, &first, &end)) {
            continue;
        }
        sherdi_outcome_add(&all, ring_settle(ring));
        fresh = extent_at(stored, ring, ring_enter(stored, ring, first, end));
        memset(fresh, 0, (size_t)(extent_at(stored, ring, end) - fresh));
    }
    return sherdi_outcome_end(&all);
}

/* Copies the values of a parameter to where they are stored with its state. */
static void values_copy(const sherdi_holding *to, size_t param)
{
    size_t begin;
    size_t end;

    sherdi_move_held(to->plan, to->model, param, SHERDI_MOVE_STATE, 0, to->plan->rank, &begin,
                     &end);
    end = sherdi_min_size(end, to->model->params[param].elems); /* no padding */
    while (begin < end) {
        size_t         some   = end - begin;
        unsigned char *target = sherdi_holding_of(to, param, SHERDI_HOLDING_VALUES, begin, &some);

        if (target != NULL) {
            sherdi_holding_give(to, param, SHERDI_HOLDING_PARAM, begin, some, target);
        }
        begin += some;
    }
}

void sherdi_stored_put_values(const sherdi_holding *to, int segment)
{
    const sherdi_segment    *of   = &to->plan->layout.segments[segment];
    const sherdi_model_unit *unit = &to->model->units[of->unit];

    for (size_t i = 0; sherdi_segment_is_beside(of) && i < unit->num_params; i++) {
        if (to->plan->layout.params[unit->params[i]].segment == segment) {
            values_copy(to, (size_t)unit->params[i]);
        }
    }
}

void sherdi_stored_write(sherdi_stored *stored, int segment)
{
    for (size_t i = 0; stored != NULL && i < NUM_RINGS; i++) {
        stored_ring *ring = &stored->rings[i];
        size_t       next = segment_next(stored->plan, ring->ring, (size_t)segment + 1);
        size_t       end  = ring->end;
        size_t       first;
        size_t       unused;

        if (next < stored->plan->layout.num_segments &&
            segment_extents(stored->plan, ring->ring, next, &first, &unused)) {
            end = sherdi_min_size(end, first);
        }
        for (; ring->written < end; ring->written++) {
            if (has_values(stored, ring, ring->written)) {
                extent_start(stored, ring, ring->written, 1);
            }
        }
    }
}

sherd_status sherdi_stored_finish(sherdi_stored *stored)
{
    sherdi_outcome all = {.status = SHERD_OK};

    for (size_t i = 0; stored != NULL && i < NUM_RINGS; i++) {
        sherdi_outcome_add(&all, ring_settle(&stored->rings[i]));
    }
    return sherdi_outcome_end(&all);
}

unsigned char *sherdi_stored_extent(const sherdi_stored *stored, size_t extent)
{
    assert(extent >= stored->rings[0].first && extent < stored->rings[0].end);
    return extent_at(stored, &stored->rings[0], extent);
}

unsigned char *sherdi_stored_piece(const sherdi_stored *stored, size_t piece)
{
    assert(piece >= stored->rings[1].first && piece < stored->rings[1].end);
    return extent_at(stored, &stored->rings[1], piece);
}

uint64_t sherdi_stored_bytes(const sherdi_stored *stored)
{
    return stored == NULL ? 0 : stored->bytes;
}
