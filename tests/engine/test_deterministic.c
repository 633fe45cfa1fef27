/* The deterministic mode: one fingerprint for every layout of the same global batch. */
#include "tests/engine/toy.h"
#include "tests/lib/check.h"

#include <stdio.h>
#include <string.h>

#define GLOBAL_BATCH 24

/* What may differ between two runs of the same training. */
typedef struct layout {
    const char *name;
    const char *zero_extra;
    int         is_bound, is_off_plan, has_eval, has_recompute;
} layout;

static const layout LAYOUTS[] = {
    {.name = "plain"},
    {.name = "blocks of 64", .zero_extra = ", \"sub_group_size\": 64"},
    {.name = "no prefetch", .zero_extra = ", \"stage3_prefetch_bucket_size\": 0"},
    {.name = "overlapped", .zero_extra = ", \"overlap_comm\": true"},
    {.name = "kept gathered", .zero_extra = ", \"stage3_max_reuse_distance\": 1e9"},
    {.name = "bound", .is_bound = 1},
    {.name = "off the plan", .is_off_plan = 1, .has_eval = 1},
    {.name = "recomputed", .has_recompute = 1},
};

static toy_options options_of(const layout *how, sherd_dtype dtype, int stage, int world_size)
{
    return (toy_options){
        .stage         = stage,
        .accumulation  = GLOBAL_BATCH / world_size,
        .dtype         = dtype,
        .clip          = 1,
        .zero_extra    = how->zero_extra,
        .top_extra     = ", \"deterministic\": true",
        .is_bound      = how->is_bound,
        .is_off_plan   = how->is_off_plan,
        .has_eval      = how->has_eval,
        .has_recompute = how->has_recompute,
    };
}

static void expect_one_result(sherd_dtype dtype, const layout *how, const int *ranks,
                              size_t num_ranks)
{
    toy_result first = {0};

    for (size_t r = 0; r < num_ranks; r++) {
        for (int stage = 0; stage <= (how->is_bound ? 2 : 3); stage++) {
            toy_options options = options_of(how, dtype, stage, ranks[r]);
            toy_result  got     = {0};

            toy_train_threads(ranks[r], &options, &got);
            CHECK_INT(got.memory.total_planned, got.memory.total_held);
            if (r == 0 && stage == 0) {
                toy_reference(ranks[r], &options, &first);
            }
            if (got.fingerprint != first.fingerprint ||
                memcmp(got.grad_norm, first.grad_norm, sizeof(first.grad_norm)) != 0) {
                test_fail(__FILE__, __LINE__,
                          "%s, stage %d, %d ranks, %s: fingerprint %016llx, norms %.17g %.17g; the "
                          "plain training has %016llx, %.17g %.17g",
                          how->name, stage, ranks[r], sherd_dtype_name(dtype),
                          (unsigned long long)got.fingerprint, got.grad_norm[0], got.grad_norm[1],
                          (unsigned long long)first.fingerprint, first.grad_norm[0],
                          first.grad_norm[1]);
            }
        }
    }
}

static void deterministic_layouts_agree_in_fp32(void)
{
    static const int RANKS[] = {1, 2, 3, 4, 6, 8};

    expect_one_result(SHERD_F32, &LAYOUTS[0], RANKS, 6);
}

static void deterministic_layouts_agree_in_bf16(void)
{
    static const int RANKS[] = {1, 2, 3, 4, 6, 8};

    expect_one_result(SHERD_BF16, &LAYOUTS[0], RANKS, 6);
}

static void deterministic_layouts_agree_in_fp16(void)
{
    static const int RANKS[] = {1, 2, 3, 4, 6, 8};

    expect_one_result(SHERD_F16, &LAYOUTS[0], RANKS, 6);
}

static void deterministic_settings_agree(void)
{
    static const int RANKS[] = {1, 3};

    for (size_t i = 1; i < sizeof(LAYOUTS) / sizeof(LAYOUTS[0]); i++) {
        expect_one_result(SHERD_BF16, &LAYOUTS[i], RANKS, 2);
    }
}

/* The promise of the mode can fail: without it these layouts differ. */
static void default_mode_differs_between_world_sizes(void)
{
    toy_options options = options_of(&LAYOUTS[0], SHERD_BF16, 2, 2);
    toy_result  two     = {0};
    toy_result  three   = {0};

    options.top_extra = NULL;
    toy_train_threads(2, &options, &two);
    options           = options_of(&LAYOUTS[0], SHERD_BF16, 2, 3);
    options.top_extra = NULL;
    toy_train_threads(3, &options, &three);
    CHECK(two.fingerprint != three.fingerprint);
}

static const test_case CASES[] = {
    CASE(deterministic_layouts_agree_in_fp32),      CASE(deterministic_layouts_agree_in_bf16),
    CASE(deterministic_layouts_agree_in_fp16),      CASE(deterministic_settings_agree),
    CASE(default_mode_differs_between_world_sizes),
};

RUN_MAIN(CASES)
