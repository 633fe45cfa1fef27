/* Tests of the plan without an engine: what must hold for any model, settings and world. The checks
 * here walk through the plan by themselves, in addition to those of engine/proof/check.c. */
#include "engine/proof/check.h"
#include "engine/declarations.h"
#include "engine/proof/emit.h"
#include "tests/engine/planner.h"
#include "tests/lib/check.h"

#include "base/checked.h"
#include "engine/program/program.h"
#include "engine/proof/moves.h"

#include <stdio.h>
#include <stdlib.h>

/* ------------------------------------------------------------- checks ---- */

#define IS(condition)                                                                              \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            test_fail(__FILE__, __LINE__, "%s: not true: %s", what, #condition);                   \
        }                                                                                          \
    } while (0)

/* Parameters of the odd model that are declared as fp32: at least one in each unit, frozen ones
 * too. */
#define SOME_WIDE 0x2a56u

/* Checks a segment's own sizes, and that its offsets lie inside their arenas. */
static void expect_segments(const sherdi_plan *plan, const planner *b, const char *what)
{
    for (size_t s = 0; s < plan->layout.num_segments; s++) {
        const sherdi_segment *segment = &plan->layout.segments[s];
        size_t                elem    = sherdi_compute_bytes(segment);
        size_t                own     = 0;

        for (size_t p = 0; p < b->model.num_params; p++) {
            own += plan->layout.params[p].segment == (int)s ? b->model.params[p].elems : 0;
        }
        IS(own == segment->elems);
        IS(segment->slice_elems % SHERD_CHUNK_ELEMS == 0);
        IS(segment->padded_elems == segment->slice_elems * (size_t)plan->world_size);
        IS(segment->padded_elems >= segment->elems);
        if (!segment->is_bound) {
            IS(segment->param_offset % SHERD_ALIGN_BYTES == 0);
            IS(segment->param_offset +
                   elem * (segment->is_resident ? segment->padded_elems : segment->slice_elems) <=
               plan->packing.buffers[SHERDI_BUFFER_PARAMS].bytes);
        }
        IS(segment->is_resident == (segment->gather_offset == SHERDI_NO_OFFSET));
        if (!segment->is_resident) {
            IS(segment->gather_offset % SHERD_ALIGN_BYTES == 0);
            IS(segment->gather_offset + elem * segment->padded_elems <=
               plan->layout.units[segment->unit].gather_bytes);
        }
        IS((segment->kind == SHERDI_SEGMENT_FROZEN) == (segment->grad_offset == SHERDI_NO_OFFSET));
        IS(segment->kind != SHERDI_SEGMENT_FROZEN || segment->num_blocks == 0);
        if (segment->kind != SHERDI_SEGMENT_FROZEN) {
            IS(segment->grad_offset % SHERD_ALIGN_BYTES == 0);
            IS(segment->grad_offset +
                   sherdi_grad_bytes(plan, segment) *
                       (plan->layout.has_slices ? segment->slice_elems : segment->padded_elems) <=
               plan->packing.buffers[SHERDI_BUFFER_GRADS].bytes);
        }
    }
}

/* Checks that no two segments share a byte of an arena, by adding up what they take. */
static void expect_arenas_are_filled_once(const sherdi_plan *plan, const char *what)
{
    size_t params = 0;
    size_t grads  = 0;
    size_t state  = 0;

    for (size_t s = 0; s < plan->layout.num_segments; s++) {
        const sherdi_segment *segment = &plan->layout.segments[s];
        size_t                elem    = sherdi_compute_bytes(segment);

        IS(segment->is_bound || segment->param_offset == params);
        params += segment->is_bound
                      ? 0
                      : sherdi_round_up(elem * (segment->is_resident ? segment->padded_elems
                                                                     : segment->slice_elems),
                                        SHERD_ALIGN_BYTES);
        if (segment->grad_offset != SHERDI_NO_OFFSET) {
            IS(segment->grad_offset == grads);
            grads += sherdi_round_up(
                sherdi_grad_bytes(plan, segment) *
                    (plan->layout.has_slices ? segment->slice_elems : segment->padded_elems),
                SHERD_ALIGN_BYTES);
        }
    }
    for (size_t k = 0; k < plan->layout.num_blocks; k++) {
        const sherdi_block *block = &plan->layout.blocks[k];

        IS(block->state_offset == state);
        IS(block->elems > 0 && block->elems % SHERD_CHUNK_ELEMS == 0);
        IS(block->elems <=
           sherdi_max_size(plan->settings.sharding.sub_group_size, SHERD_CHUNK_ELEMS));
        state += sherdi_round_up((plan->layout.segments[block->segment].has_master ? 3 : 2) *
                                     block->elems * sizeof(float),
                                 SHERD_ALIGN_BYTES);
    }
    IS(params == plan->packing.buffers[SHERDI_BUFFER_PARAMS].bytes);
    IS(grads == plan->packing.buffers[SHERDI_BUFFER_GRADS].bytes);
    IS(state == plan->packing.buffers[SHERDI_BUFFER_STATE].bytes);
}

static int step_uses(const planner *b, const sherdi_step_of_pass *step, int unit)
{
    const sherdi_model_unit *info = &b->model.units[step->unit];

    for (size_t i = 0; i < info->num_reads; i++) {
        if (info->reads[i] == unit) {
            return 1;
        }
    }
    return step->unit == unit;
}

/* Whether an acquire that needs the unit is still held at `position`; with is_end, whether one is
 * released exactly there. */
static int is_held(const planner *b, const sherdi_sequence *sequence, int unit, size_t position,
                   int is_end)
{
    for (size_t q = 0; q <= position; q++) {
        size_t last = sequence->steps[q].last;

        if (step_uses(b, &sequence->steps[q], unit) &&
            (is_end ? last == position : last >= position)) {
            return 1;
        }
    }
    return 0;
}

static int live_ranges_meet(const sherdi_live_range *a, const sherdi_live_range *b)
{
    return a->first <= b->last && b->first <= a->last && a->offset < b->offset + b->bytes &&
           b->offset < a->offset + a->bytes;
}

static void expect_live_ranges_apart(const sherdi_live_ranges *all, size_t pool_bytes,
                                     const char *what)
{
    const sherdi_live_range *live_ranges = all->items;

    for (size_t i = 0; i < all->count; i++) {
        IS(live_ranges[i].offset % SHERD_ALIGN_BYTES == 0);
        IS(live_ranges[i].offset + live_ranges[i].bytes <= pool_bytes);
        IS(live_ranges[i].bytes > 0 && live_ranges[i].first <= live_ranges[i].last);
        for (size_t j = 0; j < i; j++) {
            IS(!live_ranges_meet(&live_ranges[i], &live_ranges[j]));
        }
    }
}

/* Checks that every step finds what it needs gathered, once, and that gathers ahead stay within
 * their limits. */
static void expect_gathers(const sherdi_plan *plan, const planner *b,
                           const sherdi_sequence *sequence, const char *what)
{
    for (size_t p = 0; p < sequence->num_steps; p++) {
        size_t ahead             = 0;
        size_t live              = 0;
        int    has_started_ahead = 0;

        for (size_t u = 0; u < plan->layout.num_units; u++) {
            size_t there = 0;

            for (size_t i = 0; i < sequence->live_ranges.count; i++) {
                const sherdi_live_range *live_range = &sequence->live_ranges.items[i];
                int                      is_used    = 0;

                if (live_range->unit != (int)u || live_range->first > p || live_range->last < p) {
                    continue;
                }
                there++;
                live += plan->layout.units[u].gather_elems;
                for (size_t q = live_range->first; q <= p; q++) {
                    is_used |= step_uses(b, &sequence->steps[q], (int)u);
                }
                ahead += is_used ? 0 : plan->layout.units[u].gather_elems;
                has_started_ahead |= live_range->first == p && !is_used;
            }
            IS(there <= 1);
            IS(!is_held(b, sequence, (int)u, p, 0) || plan->layout.units[u].gather_bytes == 0 ||
               there == 1);
        }
        IS(ahead <= plan->settings.sharding.prefetch_bucket_size);
        IS(!has_started_ahead || live <= plan->settings.sharding.max_live_parameters);
    }
    for (size_t i = 0; i < sequence->live_ranges.count; i++) {
        /* each gather is for some use, and lives to the end of a use */
        const sherdi_live_range *live_range = &sequence->live_ranges.items[i];

        IS(is_held(b, sequence, live_range->unit, live_range->last, 1));
        IS(live_range->bytes == plan->layout.units[live_range->unit].gather_bytes);
    }
}

/* Checks that all gathers of a unit lie at its offset; with free packing each may have its own. */
static void expect_one_offset(const sherdi_plan *plan, const sherdi_sequence *sequence,
                              const char *what)
{
    for (size_t i = 0; i < sequence->live_ranges.count && !plan->settings.sharding.free_packing;
         i++) {
        for (size_t j = 0; j < i; j++) {
            IS(sequence->live_ranges.items[i].unit != sequence->live_ranges.items[j].unit ||
               sequence->live_ranges.items[i].offset == sequence->live_ranges.items[j].offset);
        }
        IS(sequence->live_ranges.items[i].offset ==
           plan->layout.units[sequence->live_ranges.items[i].unit].gather_pool_offset);
    }
}

/* Checks that a unit's transient gradient exists from its first planned use to the release of the
 * last. */
static void expect_transients(const sherdi_plan *plan, const planner *b, const char *what)
{
    for (size_t p = 0; p < plan->schedule.train.num_steps; p++) {
        for (size_t u = 0;
             u < plan->layout.num_units && plan->schedule.train.steps[p].pass == SHERD_BACKWARD;
             u++) {
            size_t there = 0;

            for (size_t i = 0; i < plan->schedule.transients.count; i++) {
                there += plan->schedule.transients.items[i].unit == (int)u &&
                         plan->schedule.transients.items[i].first <= p &&
                         plan->schedule.transients.items[i].last >= p;
            }
            IS(!step_uses(b, &plan->schedule.train.steps[p], (int)u) ||
               there == (plan->layout.units[u].transient_bytes > 0));
            for (size_t i = 0; i < plan->schedule.transients.count; i++) {
                IS(plan->schedule.transients.items[i].unit != (int)u ||
                   !step_uses(b, &plan->schedule.train.steps[p], (int)u) ||
                   plan->schedule.transients.items[i].last >= plan->schedule.train.steps[p].last);
            }
        }
    }
}

static uint64_t segment_wire(const sherdi_plan *plan, int segment, sherd_dtype dtype)
{
    return (uint64_t)(plan->world_size - 1) * plan->layout.segments[segment].slice_elems *
           sherd_dtype_bytes(dtype);
}

/* The collectives of a plain run, added up. */
typedef struct told_ops {
    const sherdi_plan *plan;
    const char        *what;
    uint64_t           micro, boundary, control;
    size_t             reduced[64], published[64]; /* by segment, modulo 64 */
} told_ops;

static void gather_expect(told_ops *told, sherdi_phase_name phase, const sherdi_op *op)
{
    const sherdi_plan *plan = told->plan;
    const char        *what = told->what;
    uint64_t           bytes =
        segment_wire(plan, op->segment, plan->layout.segments[op->segment].types.compute);

    if (phase != SHERDI_IN_BOUNDARY) {
        IS(sherdi_op_wire(plan, op) == bytes);
        IS(plan->settings.sharding.stage == 3);
    } else if (plan->settings.sharding.stage > 0) {
        IS(sherdi_op_wire(plan, op) == bytes);
        told->published[op->segment % 64]++;
    } else {
        IS(sherdi_op_wire(plan, op) == segment_wire(plan, op->segment, SHERD_F32));
        IS(plan->layout.is_deterministic);
    }
}

static sherd_status op_expect(void *ctx, sherdi_phase_name phase, const sherdi_op *op)
{
    told_ops          *told  = ctx;
    const sherdi_plan *plan  = told->plan;
    const char        *what  = told->what;
    uint64_t           bytes = sherdi_op_wire(plan, op);

    if (op->lane != SHERDI_LANE_WIRE) {
        IS(bytes == 0);
        return SHERD_OK;
    }
    told->boundary += phase == SHERDI_IN_BOUNDARY ? bytes : 0;
    told->micro += phase == SHERDI_IN_FORWARD || phase == SHERDI_IN_BACKWARD ? bytes : 0;
    switch (op->kind) {
    case SHERDI_OP_GATHER:
        gather_expect(told, phase, op);
        break;
    case SHERDI_OP_REDUCE:
        IS(bytes == segment_wire(plan, op->segment, plan->layout.segments[op->segment].types.wire));
        IS((phase == SHERDI_IN_BOUNDARY) == !plan->layout.has_slices);
        told->reduced[op->segment % 64]++;
        break;
    case SHERDI_OP_ALL_REDUCE:
        IS(bytes ==
           2 * segment_wire(plan, op->segment, plan->layout.segments[op->segment].types.wire));
        IS(plan->settings.sharding.stage == 0 && !plan->layout.is_deterministic);
        told->reduced[op->segment % 64]++;
        break;
    default:
        IS(op->kind == SHERDI_OP_EXCHANGE || op->kind == SHERDI_OP_SUM);
        IS(phase == SHERDI_IN_BOUNDARY);
        told->control += bytes;
    }
    return SHERD_OK;
}

/* Checks the bytes of every collective, and how often each is made. */
static void expect_ops(const sherdi_plan *plan, const sherdi_model *model, const char *what)
{
    told_ops told = {.plan = plan, .what = what};

    IS(sherdi_dry_emit(plan, model, SHERDI_EMIT_ONE, op_expect, &told) == SHERD_OK);
    IS(told.micro == sherdi_plan_moves_of(plan)->micro[SHERDI_MOVES_WIRE]);
    IS(told.boundary == sherdi_plan_moves_of(plan)->step[SHERDI_MOVES_WIRE]);
    IS(told.control ==
       (uint64_t)(plan->world_size - 1) * (sherdi_exchange_bytes(plan, SHERDI_EXCHANGE_USES) +
                                           sherdi_exchange_bytes(plan, SHERDI_EXCHANGE_NORM) +
                                           sherdi_exchange_bytes(plan, SHERDI_EXCHANGE_OUTCOME)));
    for (size_t s = 0;
         s < plan->layout.num_segments && plan->layout.num_segments <= 64 && plan->world_size > 1;
         s++) {
        int is_trained = plan->layout.segments[s].kind != SHERDI_SEGMENT_FROZEN;

        IS(told.reduced[s] ==
           (size_t)(is_trained &&
                    plan->layout.units[plan->layout.segments[s].unit].backward_uses > 0));
        IS(told.published[s] == (size_t)(is_trained && plan->settings.sharding.stage > 0 &&
                                         plan->layout.segments[s].is_resident));
    }
}

static void expect_valid(const sherdi_plan *plan, const planner *b, const char *what)
{
    size_t total = 0;

    CHECK_OK(sherdi_plan_check(plan, &b->model));
    for (int i = 0; i < SHERDI_BUFFERS; i++) {
        IS(plan->packing.buffers[i].bytes % SHERD_ALIGN_BYTES == 0);
        total += plan->packing.buffers[i].bytes;
    }
    IS(total == plan->packing.total_bytes);
    expect_segments(plan, b, what);
    expect_arenas_are_filled_once(plan, what);
    expect_live_ranges_apart(&plan->schedule.train.live_ranges,
                             plan->packing.buffers[SHERDI_BUFFER_GATHER].bytes, what);
    expect_live_ranges_apart(&plan->schedule.eval.live_ranges,
                             plan->packing.buffers[SHERDI_BUFFER_GATHER].bytes, what);
    expect_live_ranges_apart(&plan->schedule.transients,
                             plan->packing.buffers[SHERDI_BUFFER_TRANSIENT].bytes, what);
    expect_gathers(plan, b, &plan->schedule.train, what);
    expect_gathers(plan, b, &plan->schedule.eval, what);
    expect_one_offset(plan, &plan->schedule.train, what);
    expect_one_offset(plan, &plan->schedule.eval, what);
    expect_transients(plan, b, what);
    expect_ops(plan, &b->model, what);
}

/* Counts in owners[] the elements that the blocks of a rank's plan update. */
static void count_owned(const sherdi_plan *plan, unsigned char *owners)
{
    for (size_t k = 0; k < plan->layout.num_blocks; k++) {
        const sherdi_block *block = &plan->layout.blocks[k];

        for (size_t i = 0; i < block->num_spans; i++) {
            const sherdi_span *span = &plan->layout.spans[block->first_span + i];

            for (size_t e = 0; e < span->count_elems; e++) {
                owners[span->first_index + e]++;
            }
        }
    }
}

/* Checks that every trainable element has one owner among all ranks (at stage 0 every rank owns
 * it), in a span of its group and at its offset. */
static void expect_owned_once(planner *b, int world_size, const char *what)
{
    unsigned char *owners = calloc(b->model.total_elems + 1, 1);
    int            all    = 0;

    for (int rank = 0; rank < world_size; rank++) {
        sherdi_plan *plan = planner_plan(b, rank, world_size);

        count_owned(plan, owners);
        for (size_t k = 0; k < plan->layout.num_blocks; k++) {
            for (size_t i = 0; i < plan->layout.blocks[k].num_spans; i++) {
                const sherdi_span *span =
                    &plan->layout.spans[plan->layout.blocks[k].first_span + i];
                const sherdi_segment *home = &plan->layout.segments[plan->layout.blocks[k].segment];
                size_t                at =
                    home->own_first + plan->layout.blocks[k].offset_elems + span->offset_elems;
                IS(plan->layout.params[span->param].segment == plan->layout.blocks[k].segment);
                IS(at - plan->layout.params[span->param].offset_elems ==
                   span->first_index - b->model.params[span->param].first_index);
                IS(span->group == b->model.params[span->param].group);
            }
        }
        sherdi_plan_destroy(plan);
        all = b->settings.sharding.stage == 0 ? world_size : 1;
    }
    for (size_t p = 0; p < b->model.num_params; p++) {
        const sherdi_model_param *param = &b->model.params[p];

        for (size_t e = 0; e < param->elems; e++) {
            IS(owners[param->first_index + e] == (param->is_frozen ? 0 : all));
        }
    }
    free(owners);
}

/* -------------------------------------------------------------- cases ---- */

#define OFFLOAD(state, params)                                                                     \
    ", \"sub_group_size\": 2048, \"offload_optimizer\": {" state "}, \"offload_param\": {" params  \
    "}"
#define ON_NVME "\"device\": \"nvme\", \"nvme_path\": \"/nowhere\""

static const char *const OFFLOADS[] = {
    OFFLOAD("\"device\": \"cpu\"", "\"device\": \"cpu\""),
    OFFLOAD("\"device\": \"cpu\", \"ratio\": 0.3", "\"device\": \"none\""),
    OFFLOAD(ON_NVME, ON_NVME ", \"max_in_cpu\": 0"),
    OFFLOAD(ON_NVME ", \"gradients\": \"nvme\"", ON_NVME ", \"max_in_cpu\": 500"),
    OFFLOAD(ON_NVME ", \"gradients\": \"nvme\", \"ratio\": 0.5", "\"device\": \"cpu\""),
    OFFLOAD("\"device\": \"none\"", ON_NVME ", \"max_in_cpu\": 0"),
};

/* The plans are made from settings alone, so the folders need not exist. Every element has one
 * owner, wherever it rests. */
static void plan_of_offload_is_valid_everywhere(void)
{
    static const int RANKS[] = {1, 2, 3, 4, 7, 8};

    for (size_t i = 0; i < sizeof(OFFLOADS) / sizeof(OFFLOADS[0]); i++) {
        for (size_t r = 0; r < sizeof(RANKS) / sizeof(RANKS[0]); r++) {
            for (int stage = 1; stage <= 3; stage++) {
                rig_options  options = {.stage        = stage,
                                        .accumulation = 1 + (stage & 1),
                                        .dtype        = stage == 2 ? SHERD_F32 : SHERD_BF16,
                                        .zero         = OFFLOADS[i]};
                size_t       total   = 0;
                planner      b;
                sherdi_plan *plan;

                planner_open(&b);
                b.wide = stage == 3 ? SOME_WIDE : 0;
                planner_declare_odd(&b, 20000);
                planner_settings(&b, &options, RANKS[r]);
                for (int rank = 0; rank < RANKS[r]; rank++) {
                    const char *what = OFFLOADS[i];

                    plan  = planner_plan(&b, rank, RANKS[r]);
                    total = 0;
                    CHECK_OK(sherdi_plan_check(plan, &b.model));
                    for (int k = 0; k < SHERDI_BUFFERS; k++) {
                        IS(plan->packing.buffers[k].bytes % SHERD_ALIGN_BYTES == 0);
                        total += plan->packing.buffers[k].bytes;
                    }
                    IS(total == plan->packing.total_bytes);
                    IS(plan->packing.host_bytes <= plan->packing.total_bytes);
                    IS(plan->packing.pinned_bytes <= plan->packing.host_bytes);
                    sherdi_plan_destroy(plan);
                }
                expect_owned_once(&b, RANKS[r], OFFLOADS[i]);
                planner_close(&b);
            }
        }
    }
}

static const char *const SETTINGS[] = {
    "",
    ", \"stage3_param_persistence_threshold\": 64",
    ", \"stage3_param_persistence_threshold\": 130, \"stage3_model_persistence_threshold\": 150",
    ", \"stage3_param_persistence_threshold\": 1e9, \"sub_group_size\": 64",
    ", \"sub_group_size\": 1",
    ", \"sub_group_size\": 200, \"stage3_prefetch_bucket_size\": 0",
    ", \"stage3_prefetch_bucket_size\": 5000, \"stage3_max_live_parameters\": 12000",
    ", \"stage3_prefetch_bucket_size\": 9000, \"stage3_max_reuse_distance\": 7000",
    ", \"stage3_max_live_parameters\": 1, \"stage3_max_reuse_distance\": 1e9",
    ", \"stage3_max_reuse_distance\": 1e9, \"overlap_comm\": true",
};

static const int WORLDS[] = {1, 2, 3, 4, 7, 8, 64, 1024};

static void plan_of_odd_sizes_is_valid_everywhere(void)
{
    static const char *const TOP[] = {"", ", \"deterministic\": true",
                                      ", \"communication_data_type\": \"fp32\""};
    char                     what[256];

    for (size_t w = 0; w < sizeof(WORLDS) / sizeof(WORLDS[0]); w++) {
        for (int stage = 0; stage <= 3; stage++) {
            for (size_t i = 0; i < sizeof(SETTINGS) / sizeof(SETTINGS[0]); i++) {
                rig_options options = {.stage        = stage,
                                       .accumulation = 1 + (int)(i % 2),
                                       .dtype        = i % 3 == 0 ? SHERD_F32 : SHERD_BF16,
                                       .zero         = SETTINGS[i],
                                       .top          = TOP[i % 3 == 0 ? i % 2 : i % 3]};
                int         ranks[] = {0, WORLDS[w] / 2, WORLDS[w] - 1};
                planner     b;

                planner_open(&b);
                b.wide = i % 2 == 1 ? SOME_WIDE : 0;
                planner_declare_odd(&b, 640);
                planner_settings(&b, &options, WORLDS[w]);
                (void)snprintf(what, sizeof(what), "stage %d, %d ranks, %s", stage, WORLDS[w],
                               SETTINGS[i]);
                for (int r = 0; r < 3; r++) {
                    sherdi_plan *plan = planner_plan(&b, ranks[r], WORLDS[w]);

                    expect_valid(plan, &b, what);
                    sherdi_plan_destroy(plan);
                }
                if (WORLDS[w] <= 64) {
                    expect_owned_once(&b, WORLDS[w], what);
                }
                planner_close(&b);
            }
        }
    }
}

/* Draws models from a seed: sizes, reads, orders with repeats, frozen parameters. */
static void plan_of_random_models_is_valid(void)
{
    static const char *const GATHERINGS[3] = {", \"sherd\": {\"free_packing\": true}",
                                              ", \"sherd\": {\"eval_keep_units\": 2}", NULL};
    uint64_t                 state         = 2026;
    char                     what[64];

    for (int round = 0; round < 300; round++) {
        int         world_size = (int)(1 + test_random(&state) % 9);
        int         num_units  = (int)(1 + test_random(&state) % 7);
        rig_options options    = {
               .stage        = (int)(test_random(&state) % 4),
               .accumulation = (int)(1 + test_random(&state) % 2),
               .dtype        = SHERD_BF16,
               .zero = SETTINGS[test_random(&state) % (sizeof(SETTINGS) / sizeof(SETTINGS[0]))],
               .top  = GATHERINGS[round % 3]};
        planner b;

        (void)snprintf(what, sizeof(what), "random model %d", round);
        planner_open(&b);
        for (int u = 0; u < num_units; u++) {
            char name[16];

            (void)snprintf(name, sizeof(name), "u%d", u);
            (void)planner_unit(&b, name);
            for (uint64_t p = test_random(&state) % 4 + (u == 0); p > 0; p--) {
                (void)planner_param(&b, u, test_random(&state) % 3000, 1,
                                    test_random(&state) % 4 == 0);
            }
        }
        for (uint64_t i = test_random(&state) % 4; i > 0; i--) {
            CHECK_OK(sherdi_model_add_read(&b.model,
                                           (int)(test_random(&state) % (uint64_t)num_units),
                                           (int)(test_random(&state) % b.model.num_params)));
        }
        for (int pass = 0; pass < 3; pass++) {
            for (uint64_t i = test_random(&state) % 2 * (test_random(&state) % 12); i > 0; i--) {
                CHECK_OK(sherdi_model_add_pass(
                    &b.model, (sherd_pass)pass, (int)(test_random(&state) % (uint64_t)num_units),
                    test_random(&state) % 3 == 0 ? test_random(&state) % 15 : 0));
            }
        }
        planner_settings(&b, &options, world_size);
        for (int rank = 0; rank < world_size; rank++) {
            sherdi_plan *plan = planner_plan(&b, rank, world_size);

            expect_valid(plan, &b, what);
            sherdi_plan_destroy(plan);
        }
        expect_owned_once(&b, world_size, what);
        planner_close(&b);
    }
}

static void plan_persistent_parameters_are_the_small_ones_first_come(void)
{
    rig_options         options = {.stage = 3,
                                   .zero  = ", \"stage3_param_persistence_threshold\": 100,"
                                                    "\"stage3_model_persistence_threshold\": 150"};
    planner             b;
    sherdi_plan        *plan;
    static const size_t ELEMS[] = {100, 101, 60, 50, 0};
    static const int    WANT[]  = {SHERDI_SEGMENT_PERSISTENT, SHERDI_SEGMENT_TRAINABLE,
                                   SHERDI_SEGMENT_TRAINABLE, SHERDI_SEGMENT_PERSISTENT,
                                   SHERDI_SEGMENT_PERSISTENT};

    planner_open(&b);
    (void)planner_unit(&b, "unit");
    for (size_t p = 0; p < 5; p++) {
        (void)planner_param(&b, 0, ELEMS[p], 1, 0);
    }
    planner_settings(&b, &options, 2);
    plan = planner_plan(&b, 0, 2);
    for (size_t p = 0; p < 5; p++) {
        CHECK_INT(WANT[p], plan->layout.segments[plan->layout.params[p].segment].kind);
    }
    sherdi_plan_destroy(plan);
    planner_close(&b);
}

/* Checks that on no rank a slice border lies inside an atom. */
static void expect_atoms_whole(const planner *b, const sherdi_plan *plan)
{
    for (size_t p = 0; p < b->model.num_params; p++) {
        const sherdi_model_param *param = &b->model.params[p];
        size_t                    start = plan->layout.params[p].offset_elems;
        size_t slice = plan->layout.segments[plan->layout.params[p].segment].slice_elems;

        for (size_t e = 1; e < param->elems; e++) {
            if ((start + e) % slice == 0) {
                CHECK_INT(0, e % param->atom_elems);
            }
        }
    }
}

static void plan_keeps_atoms_whole_or_refuses(void)
{
    static const size_t ATOMS[]    = {2, 3, 48, 100, 128, 1000, 4096};
    int                 has_kept   = 0;
    int                 has_failed = 0;

    for (size_t a = 0; a < sizeof(ATOMS) / sizeof(ATOMS[0]); a++) {
        for (size_t w = 0; w < sizeof(WORLDS) / sizeof(WORLDS[0]); w++) {
            rig_options  options = {.stage = 3};
            sherdi_plan *plan;
            sherd_status status;
            planner      b;

            planner_open(&b);
            (void)planner_unit(&b, "plain");
            (void)planner_unit(&b, "atoms");
            (void)planner_param(&b, 0, 777, 1, 0);
            (void)planner_param(&b, 1, 30, 1, 0);
            (void)planner_param(&b, 1, 20 * ATOMS[a], ATOMS[a], 0);
            (void)planner_param(&b, 1, 3 * ATOMS[a] + 1, ATOMS[a], 0);
            planner_settings(&b, &options, WORLDS[w]);
            status = sherdi_dry_plan(&b.model, &b.settings, 0, WORLDS[w], &PLANNER_UNKNOWN, &b.mem,
                                     &plan);
            if (status == SHERD_OK) {
                const sherdi_segment *segment =
                    &plan->layout.segments[plan->layout.params[1].segment];
                size_t least = 64 + (20 * ATOMS[a] + 63) / 64 * 64 + (3 * ATOMS[a] + 64) / 64 * 64;

                expect_valid(plan, &b, "atoms");
                expect_atoms_whole(&b, plan);
                /* at most a quarter of the segment is padding, in addition to that of the world */
                CHECK(segment->padded_elems <=
                      sherdi_round_up(least, 64 * (size_t)WORLDS[w]) * 4 / 3 +
                          64 * (size_t)WORLDS[w]);
                has_kept |= WORLDS[w] > 1;
                sherdi_plan_destroy(plan);
            } else {
                CHECK_STATUS(SHERD_E_INVAL, status);
                CHECK_ERROR_SAYS("unit atoms");
                CHECK_ERROR_SAYS("quarter");
                CHECK(WORLDS[w] > 1);
                has_failed = 1;
            }
            planner_close(&b);
        }
    }
    CHECK(has_kept && has_failed);
}

static const test_case CASES[] = {
    CASE(plan_of_odd_sizes_is_valid_everywhere),
    CASE(plan_of_offload_is_valid_everywhere),
    CASE(plan_of_random_models_is_valid),
    CASE(plan_persistent_parameters_are_the_small_ones_first_come),
    CASE(plan_keeps_atoms_whole_or_refuses),
};

RUN_MAIN(CASES)
