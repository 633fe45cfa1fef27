/* See ranges.h. A parameter is whole on every rank, or in slices; a slice of the new layout is cut
 * at the borders of the old one. */
#include "engine/elastic/ranges.h"

#include "base/checked.h"
#include "engine/program/program_walk.h"

#include <string.h>

static int is_whole(const sherdi_plan *plan, const sherdi_segment *segment, sherdi_move_what what,
                    int is_stale)
{
    if (is_stale && sherdi_segment_is_published(plan, segment)) {
        return 0;
    }
    return what == SHERDI_MOVE_PARAM ? segment->is_resident || segment->is_bound
                                     : !plan->layout.is_sliced;
}

static size_t chunks_of(size_t elems)
{
    return sherdi_round_up(elems, SHERD_CHUNK_ELEMS);
}

void sherdi_move_held(const sherdi_plan *plan, const sherdi_model *model, size_t param,
                      sherdi_move_what what, int is_stale, int rank, size_t *begin, size_t *end)
{
    const sherdi_segment *segment = sherdi_param_segment(plan, param);
    size_t                start   = plan->layout.params[param].offset_elems;
    size_t                elems   = chunks_of(model->params[param].elems);
    size_t                first   = (size_t)(rank % plan->world_size) * segment->slice_elems;
    size_t                last    = first + segment->slice_elems;

    *begin = 0;
    *end   = what == SHERDI_MOVE_STATE && segment->optimizer == NULL ? 0 : elems;
    if (!is_whole(plan, segment, what, is_stale)) {
        *end   = sherdi_min_size(sherdi_max_size(last, start) - start, *end);
        *begin = sherdi_min_size(sherdi_max_size(first, start) - start, *end);
    }
}

/* ------------------------------------------------------------------ the check -- */

static int segments_agree(const sherdi_segment *a, const sherdi_segment *b)
{
    return a->unit == b->unit && a->kind == b->kind && a->is_wide == b->is_wide &&
           a->optimizer == b->optimizer && a->types.compute == b->types.compute &&
           a->has_master == b->has_master && a->is_bound == b->is_bound &&
           a->ties_part == b->ties_part &&
           memcmp(a->encodings, b->encodings, sizeof(a->encodings)) == 0;
}

sherd_status sherdi_move_check(const sherdi_move_plans *plans)
{
    const sherdi_plan_layout *from = &plans->old_plan->layout;
    const sherdi_plan_layout *to   = &plans->new_plan->layout;

    for (size_t s = 0; s < from->num_segments && s < to->num_segments; s++) {
        if (!segments_agree(&from->segments[s], &to->segments[s])) {
            return sherdi_fail(SHERD_E_NOTSUP,
                               "sherd_engine_move: unit %s is stored otherwise on %d ranks than on "
                               "%d; save a checkpoint, and load it in the new world",
                               plans->model->units[from->segments[s].unit].name,
                               sherdi_plan_all_ranks(plans->new_plan),
                               sherdi_plan_all_ranks(plans->old_plan));
        }
    }
    if (from->num_segments != to->num_segments) {
        return sherdi_fail(SHERD_E_NOTSUP,
                           "sherd_engine_move: the plans on %d and on %d ranks have %zu and %zu "
                           "segments; save a checkpoint, and load it in the new world",
                           plans->old_plan->world_size, plans->new_plan->world_size,
                           from->num_segments, to->num_segments);
    }
    return SHERD_OK;
}

/* -------------------------------------------------------------------- the list -- */

typedef struct lister {
    const sherdi_move_plans *plans;
    sherdi_move_fn           fn;
    void                    *ctx;
} lister;

static sherd_status range_emit(const lister *l, sherdi_move_range range, size_t begin, size_t end)
{
    range.first = begin;
    range.count = end > begin ? end - begin : 0;
    return range.count == 0 ? SHERD_OK : l->fn(l->ctx, &range);
}

/* Returns the old rank that gives what a rank of a replica held, to a rank of the new layout. */
static int giver_of(const lister *l, int rank, int to)
{
    const sherdi_plan *from   = l->plans->old_plan;
    int                stayed = l->plans->stayed[to];
    int                first  = stayed < 0 ? to : stayed / from->world_size;

    for (int i = 0; i < from->num_replicas; i++) {
        int replica = (first + i) % from->num_replicas;
        int giver   = replica * from->world_size + rank;

        if (l->plans->lost == NULL || l->plans->lost[giver] >= 0) {
            return giver;
        }
    }
    return first % from->num_replicas * from->world_size + rank;
}

/* Lists [begin, end), which the rank that receives it has not held before. */
static sherd_status foreign_list(const lister *l, sherdi_move_range range, size_t begin, size_t end)
{
    const sherdi_plan    *from    = l->plans->old_plan;
    const sherdi_segment *segment = sherdi_param_segment(from, range.param);
    size_t                start   = from->layout.params[range.param].offset_elems;
    size_t                held_begin;
    size_t                held_end;

    if (begin >= end) {
        return SHERD_OK;
    }
    if (is_whole(from, segment, range.what,
                 l->plans->lost != NULL)) { /* each newcomer has another giver */
        range.from = range.to % sherdi_plan_all_ranks(from);
        return range_emit(l, range, begin, end);
    }
    for (int rank = (int)((start + begin) / segment->slice_elems);
         rank < from->world_size && begin < end; rank++) {
        sherdi_move_held(from, l->plans->model, range.param, range.what, l->plans->lost != NULL,
                         rank, &held_begin, &held_end);
        range.from = giver_of(l, rank, range.to);
        SHERDI_TRY(range_emit(l, range, begin, sherdi_min_size(end, held_end)));
        begin = sherdi_max_size(begin, held_end);
    }
    return SHERD_OK;
}

/* Whether a rank's own values can be taken: its slices only if it has made the same updates. */
static int is_valid(const lister *l, sherdi_move_range range)
{
    const sherdi_plan *from = l->plans->old_plan;

    return l->plans->lost == NULL || l->plans->lost[range.from] >= 0 ||
           is_whole(from, sherdi_param_segment(from, range.param), range.what, 1);
}

/* Lists what a rank of the new layout holds of a parameter. */
static sherd_status rank_list(const lister *l, sherdi_move_range range)
{
    size_t begin;
    size_t end;
    size_t old_begin = 0;
    size_t old_end   = 0;

    sherdi_move_held(l->plans->new_plan, l->plans->model, range.param, range.what,
                     l->plans->lost != NULL, range.to, &begin, &end);
    range.from = l->plans->stayed[range.to];
    if (range.from >= 0 && is_valid(l, range)) {
        sherdi_move_held(l->plans->old_plan, l->plans->model, range.param, range.what,
                         l->plans->lost != NULL, range.from, &old_begin, &old_end);
    }
    old_begin = sherdi_max_size(old_begin, begin);
    old_end   = sherdi_min_size(old_end, end);
    if (old_begin >= old_end) {
        return foreign_list(l, range, begin, end);
    }
    SHERDI_TRY(foreign_list(l, range, begin, old_begin));
    SHERDI_TRY(range_emit(l, range, old_begin, old_end));
    return foreign_list(l, range, old_end, end);
}

sherd_status sherdi_move_list(const sherdi_move_plans *plans, int segment, sherdi_move_fn fn,
                              void *ctx)
{
    const sherdi_plan       *plan = plans->new_plan;
    const sherdi_model_unit *unit = &plans->model->units[plan->layout.segments[segment].unit];
    const lister             l    = {.plans = plans, .fn = fn, .ctx = ctx};

    for (size_t i = 0; i < unit->num_params; i++) {
        if (plan->layout.params[unit->params[i]].segment != segment) {
            continue;
        }
        for (int what = 0; what < SHERDI_MOVE_WHATS; what++) {
            for (int to = 0; to < sherdi_plan_all_ranks(plan); to++) {
                SHERDI_TRY(rank_list(&l, (sherdi_move_range){.param = (size_t)unit->params[i],
                                                             .what  = (sherdi_move_what)what,
                                                             .to    = to}));
            }
        }
    }
    return SHERD_OK;
}
