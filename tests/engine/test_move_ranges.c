/* The proof of the list of a move: for drawn pairs of layouts every element that a rank holds comes
 * once, from a rank that holds it. Who holds what is read from the plan of each rank, and not from
 * the functions that make the list. Lists with a mistake are found to be wrong. */
#include "engine/elastic/ranges.h"
#include "tests/engine/planner.h"
#include "tests/lib/check.h"

#include "base/checked.h"
#include "engine/program/program_walk.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_RANKS  8
#define MOST_RANGES 4096

/* A layout, with the plan of each rank. */
typedef struct side {
    int          size;
    const int   *lost; /* by old rank, below 0: it is lost; NULL: none is */
    sherdi_plan *plans[MOST_RANKS];
} side;

typedef struct list {
    sherdi_move_range ranges[MOST_RANGES];
    size_t            count;
} list;

/* Returns whether a rank holds a chunk of a parameter, or of its state. */
static int is_held(const side *layout, int rank, size_t param, sherdi_move_what what, size_t first)
{
    const sherdi_plan    *plan    = layout->plans[rank];
    const sherdi_segment *segment = sherdi_param_segment(plan, param);
    size_t                at      = plan->layout.params[param].offset_elems + first;

    if (what == SHERDI_MOVE_STATE) {
        return segment->kind != SHERDI_SEGMENT_FROZEN && at >= segment->own_first &&
               at < segment->own_first + segment->own_elems;
    }
    if (layout->lost != NULL && sherdi_segment_is_published(plan, segment)) { /* it may be old */
        return at >= segment->slice_first && at < segment->slice_first + segment->slice_elems;
    }
    return segment->is_resident ||
           (at >= segment->slice_first && at < segment->slice_first + segment->slice_elems);
}

static int has_range(const side *layout, const sherdi_move_range *range, int rank)
{
    for (size_t at = range->first; at < range->first + range->count; at += SHERD_CHUNK_ELEMS) {
        if (!is_held(layout, rank, range->param, range->what, at)) {
            return 0;
        }
    }
    return 1;
}

/* Counts how often a chunk comes to a rank. */
static int times_of(const list *all, size_t param, sherdi_move_what what, int to, size_t at)
{
    int times = 0;

    for (size_t i = 0; i < all->count; i++) {
        const sherdi_move_range *range = &all->ranges[i];

        times += range->param == param && range->what == what && range->to == to &&
                 at >= range->first && at < range->first + range->count;
    }
    return times;
}

/* Returns whether all ranks have the same, whatever updates they have made. */
static int is_constant(const side *from, const sherdi_move_range *range)
{
    const sherdi_plan    *plan    = from->plans[0];
    const sherdi_segment *segment = sherdi_param_segment(plan, range->param);

    return range->what == SHERDI_MOVE_STATE
               ? !plan->layout.is_sliced
               : segment->is_resident && !sherdi_segment_is_published(plan, segment);
}

/* Returns whether the giver of a range may give it: the one of the receiver's replica, if it is there
 * at the right update; else another one that is; else the one whose part another rank acts. */
static int is_giver(const side *from, const sherdi_move_range *range, int own)
{
    int shards = from->plans[0]->world_size;
    int giver  = range->from;
    int near   = own < 0 ? giver : own / shards * shards + giver % shards;
    int others = 0;

    if (from->lost == NULL || is_constant(from, range)) {
        return giver == near;
    }
    for (int r = giver % shards; r < from->size; r += shards) {
        others += from->lost[r] >= 0;
    }
    return from->lost[giver] >= 0 ? near == giver || from->lost[near] < 0 : others == 0;
}

/* Returns whether the list is right; else says in `text` what is wrong. */
static int list_is_right(const planner *b, const side *from, const side *to, const int *stayed,
                         const list *all, char *text, size_t len_bytes)
{
    for (size_t i = 0; i < all->count; i++) {
        const sherdi_move_range *range = &all->ranges[i];
        int                      own   = stayed[range->to];

        if (range->first % SHERD_CHUNK_ELEMS != 0 || range->count % SHERD_CHUNK_ELEMS != 0 ||
            range->count == 0 ||
            range->first + range->count >
                sherdi_round_up(b->model.params[range->param].elems, SHERD_CHUNK_ELEMS) ||
            !has_range(from, range, range->from) || !has_range(to, range, range->to) ||
            !is_giver(from, range, own) ||
            (own >= 0 && own != range->from && has_range(from, range, own) &&
             (from->lost == NULL || from->lost[own] >= 0 || is_constant(from, range)))) {
            (void)snprintf(text, len_bytes, "range %zu of parameter %zu, from %d to %d", i,
                           range->param, range->from, range->to);
            return 0;
        }
    }
    for (size_t p = 0; p < b->model.num_params; p++) {
        for (int what = 0; what < SHERDI_MOVE_WHATS; what++) {
            for (int r = 0; r < to->size; r++) {
                for (size_t at = 0; at < b->model.params[p].elems; at += SHERD_CHUNK_ELEMS) {
                    int want  = is_held(to, r, p, (sherdi_move_what)what, at);
                    int times = times_of(all, p, (sherdi_move_what)what, r, at);

                    if (times != want) {
                        (void)snprintf(text, len_bytes,
                                       "element %zu of parameter %zu comes %d times to rank %d, "
                                       "not %d",
                                       at, p, times, r, want);
                        return 0;
                    }
                }
            }
        }
    }
    return 1;
}

static sherd_status range_add(void *ctx, const sherdi_move_range *range)
{
    list *all = ctx;

    CHECK(all->count < MOST_RANGES);
    all->ranges[all->count++] = *range;
    return SHERD_OK;
}

static void side_open(planner *b, const rig_options *options, int size, side *out)
{
    rig_options at = *options;

    at.accumulation = 840 / size;
    planner_settings(b, &at, size);
    out->size = size;
    out->lost = NULL;
    for (int r = 0; r < size; r++) {
        out->plans[r] = planner_plan(b, r, size);
    }
}

static void side_close(side *layout)
{
    for (int r = 0; r < layout->size; r++) {
        sherdi_plan_destroy(layout->plans[r]);
    }
}

/* Draws which old rank each new one was. */
static void stayed_draw(uint64_t *state, int old_size, int new_size, int *stayed)
{
    int old = 0;

    for (int r = 0; r < new_size; r++) {
        int spare = old_size - old - (new_size - r);

        if (spare > 0) {
            old += (int)(test_random(state) % (uint64_t)(spare + 1));
        }
        stayed[r] = old < old_size ? old++ : -1;
    }
    if (new_size >= old_size && test_random(state) % 2 == 0) { /* newcomers come first */
        for (int r = 0; r < new_size; r++) {
            stayed[r] = r < new_size - old_size ? -1 : r - (new_size - old_size);
        }
    }
}

/* Makes one mistake; returns 0 where this one would be none. */
static int mistake_make(uint64_t *state, const side *from, list *all)
{
    size_t             i     = test_random(state) % all->count;
    sherdi_move_range *range = &all->ranges[i];

    switch (test_random(state) % 6) {
    case 0: /* one is missing */
        *range = all->ranges[--all->count];
        return 1;
    case 1: /* its end is missing */
        range->count -= SHERD_CHUNK_ELEMS;
        return 1;
    case 2: /* the next element comes twice, or is of nobody */
        range->count += SHERD_CHUNK_ELEMS;
        return 1;
    case 3: /* it is a chunk too late */
        range->first += SHERD_CHUNK_ELEMS;
        return 1;
    case 4: /* it comes twice */
        return range_add(all, range) == SHERD_OK;
    default: /* it comes from a rank that has it not, or does not give it */
        range->from = (range->from + 1) % from->size;
        return !has_range(from, range, range->from) ||
               (from->lost != NULL && !is_giver(from, range, -1));
    }
}

static void pair_prove(planner *b, uint64_t *state, side *from, side *to, list *all)
{
    int               stayed[MOST_RANKS];
    int               goes[MOST_RANKS];
    sherdi_move_plans plans = {
        .old_plan = from->plans[0], .new_plan = to->plans[0], .model = &b->model, .stayed = stayed};
    char text[160];

    stayed_draw(state, from->size, to->size, stayed);
    if (to->size < from->size && test_random(state) % 2 == 0) { /* the others are lost */
        memset(goes, 0xff, sizeof(goes));
        for (int r = 0; r < to->size; r++) {
            goes[stayed[r]] = r;
        }
        for (int r = 0; r < to->size && test_random(state) % 4 == 0; r += 2) {
            goes[stayed[r]] = -1; /* it is there, and has made other updates */
        }
        plans.lost = from->lost = to->lost = goes;
    }
    CHECK_OK(sherdi_move_check(&plans));
    all->count = 0;
    for (size_t s = 0; s < plans.new_plan->layout.num_segments; s++) {
        CHECK_OK(sherdi_move_list(&plans, (int)s, range_add, all));
    }
    if (!list_is_right(b, from, to, stayed, all, text, sizeof(text))) {
        test_fail(__FILE__, __LINE__, "from %d to %d ranks: %s", from->size, to->size, text);
    }
    for (int k = 0; k < 3; k++) {
        list *wrong = malloc(sizeof(*wrong));

        CHECK(wrong != NULL);
        *wrong = *all;
        if (mistake_make(state, from, wrong)) {
            CHECK(!list_is_right(b, from, to, stayed, wrong, text, sizeof(text)));
        }
        free(wrong);
    }
}

static void list_is_proven_for_drawn_pairs(void)
{
    static const char *const ZERO[] = {NULL, ", \"stage3_param_persistence_threshold\": 200",
                                       ", \"sub_group_size\": 128",
                                       ", \"offload_optimizer\": {\"device\": \"cpu\"}"};
    list                    *all    = malloc(sizeof(*all));
    uint64_t                 state  = 49;

    CHECK(all != NULL);
    for (int n = 0; n < (test_is_long() ? 2000 : 150); n++) {
        int         zero    = (int)(test_random(&state) % 4);
        rig_options options = {.stage = (int)(test_random(&state) % 4),
                               .dtype = (sherd_dtype)(test_random(&state) % 3)};
        char        top[64];
        planner     b;
        side        from;
        side        to;

        options.zero = options.stage == 0 ? NULL : ZERO[zero];
        (void)snprintf(top, sizeof(top), ", \"sherd\": {\"shard_size\": %d, \"elastic\": [1, 8]}",
                       1 + (int)(test_random(&state) % 4));
        options.top = options.stage > 0 && test_random(&state) % 2 == 0 ? top : NULL;
        planner_open(&b);
        planner_declare_odd(&b, SHERD_CHUNK_ELEMS * (1 + test_random(&state) % 12));
        (void)planner_unit(&b, "atoms");
        (void)planner_param(&b, 6, 30000, test_random(&state) % 2 == 0 ? 1 : 100, 0);
        (void)planner_param(&b, 6, 700, 1, 0);
        side_open(&b, &options, 1 + (int)(test_random(&state) % MOST_RANKS), &from);
        side_open(&b, &options, 1 + (int)(test_random(&state) % MOST_RANKS), &to);
        pair_prove(&b, &state, &from, &to, all);
        side_close(&from);
        side_close(&to);
        planner_close(&b);
    }
    free(all);
}

static void layouts_that_differ_in_more_than_borders_are_refused(void)
{
    rig_options       options = {.stage = 2, .top = ", \"deterministic\": true"};
    int               stayed[MOST_RANKS];
    planner           b;
    side              from;
    side              to;
    sherdi_move_plans plans = {.model = &b.model, .stayed = stayed};

    planner_open(&b);
    planner_declare_odd(&b, 640);
    side_open(&b, &options, 4, &from);
    plans.old_plan = from.plans[0];
    options.zero   = ", \"offload_optimizer\": {\"device\": \"cpu\"}";
    side_open(&b, &options, 3, &to);
    plans.new_plan = to.plans[0];
    CHECK_STATUS(SHERD_E_NOTSUP, sherdi_move_check(&plans)); /* fp32 has a master here alone */
    CHECK_ERROR_SAYS("is stored otherwise on 3 ranks than on 4");
    side_close(&to);
    side_close(&from);
    planner_close(&b);
}

static const test_case CASES[] = {
    CASE(list_is_proven_for_drawn_pairs),
    CASE(layouts_that_differ_in_more_than_borders_are_refused),
};

RUN_MAIN(CASES)
