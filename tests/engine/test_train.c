/* The engine against the same training written plainly, bit for bit: stages, ranks,
 * accumulation, types, tiers of settings that must not matter. */
#include "tests/engine/toy.h"
#include "tests/lib/check.h"

#include "engine/optimizers/optimizer.h"
#include "kernels/formulas.h"
#include "sherd_build.h"

#include <stdio.h>
#include <string.h>

static void expect_reference(int world_size, const toy_options *options)
{
    toy_result want = {0};
    toy_result got  = {0};

    toy_reference(world_size, options, &want);
    toy_train_threads(world_size, options, &got);
    if (want.fingerprint != got.fingerprint ||
        memcmp(want.grad_norm, got.grad_norm, sizeof(want.grad_norm)) != 0) {
        test_fail(
            __FILE__, __LINE__,
            "%.10s, stage %d, %d ranks, accumulation %d, %s: fingerprint %016llx, norms %.17g "
            "%.17g; the plain training has %016llx, %.17g %.17g",
            plain_type(options->kind), options->stage, world_size, options->accumulation,
            sherd_dtype_name(options->dtype), (unsigned long long)got.fingerprint, got.grad_norm[0],
            got.grad_norm[1], (unsigned long long)want.fingerprint, want.grad_norm[0],
            want.grad_norm[1]);
    }
}

/* On these ranks, one micro-batch per step and three: what is `plain` at every stage, of the rest
 * pairs. */
static void expect_reference_on_stages(toy_options options, int is_plain)
{
    static const int RANKS[] = {1, 2, 3, 4, 7, 8};
    static int       case_number;

    case_number++;
    for (size_t r = 0; r < sizeof(RANKS) / sizeof(RANKS[0]); r++) {
        for (options.stage = 0; options.stage <= 3 && toy_takes_ranks(RANKS[r]); options.stage++) {
            for (options.accumulation = 1; options.accumulation <= 3; options.accumulation += 2) {
                if ((options.is_bound && options.stage == 3) ||
                    !(is_plain || toy_takes_stage(options.stage, 0,
                                                  (int)r + case_number + options.accumulation))) {
                    continue;
                }
                expect_reference(RANKS[r], &options);
            }
        }
    }
}

static void expect_reference_everywhere(toy_options options)
{
    expect_reference_on_stages(options, 0);
}

static void train_fp32_equals_unsharded(void)
{
    expect_reference_on_stages((toy_options){.dtype = SHERD_F32, .clip = 1}, 1);
}

static void train_bf16_equals_unsharded(void)
{
    expect_reference_on_stages((toy_options){.dtype = SHERD_BF16, .clip = 1}, 1);
}

static void train_fp16_equals_unsharded(void)
{
    expect_reference_everywhere((toy_options){.dtype = SHERD_F16, .clip = 1});
}

static void train_without_clipping_equals_unsharded(void)
{
    expect_reference_everywhere((toy_options){.dtype = SHERD_BF16, .clip = 0});
}

static void train_small_blocks_equals_unsharded(void)
{
    expect_reference_everywhere(
        (toy_options){.dtype = SHERD_BF16, .clip = 1, .zero_extra = ", \"sub_group_size\": 64"});
}

static void train_without_prefetch_equals_unsharded(void)
{
    expect_reference_everywhere((toy_options){
        .dtype      = SHERD_F32,
        .clip       = 1,
        .zero_extra = ", \"stage3_prefetch_bucket_size\": 0, \"overlap_comm\": false"});
}

static void train_overlapped_equals_unsharded(void)
{
    expect_reference_everywhere(
        (toy_options){.dtype = SHERD_BF16, .clip = 1, .zero_extra = ", \"overlap_comm\": true"});
}

static void train_no_persistent_equals_unsharded(void)
{
    /* the key is in the toy's file already: a later program's word wins */
    expect_reference_everywhere((toy_options){
        .dtype = SHERD_BF16, .clip = 1, .zero_extra = ", \"stage3_max_reuse_distance\": 1e9"});
}

static void train_bound_equals_unsharded(void)
{
    expect_reference_everywhere((toy_options){.dtype = SHERD_BF16, .clip = 1, .is_bound = 1});
    expect_reference_everywhere((toy_options){.dtype = SHERD_F32, .clip = 1, .is_bound = 1});
}

static void train_off_plan_equals_unsharded(void)
{
    expect_reference_everywhere((toy_options){.dtype = SHERD_BF16, .clip = 1, .is_off_plan = 1});
}

static void train_with_eval_equals_unsharded(void)
{
    expect_reference_everywhere((toy_options){.dtype = SHERD_BF16, .clip = 1, .has_eval = 1});
}

static void train_with_recomputation_equals_unsharded(void)
{
    expect_reference_everywhere((toy_options){.dtype = SHERD_BF16, .clip = 1, .has_recompute = 1});
}

static void train_short_last_window_equals_unsharded(void)
{
    expect_reference_everywhere((toy_options){.dtype = SHERD_BF16, .clip = 1, .short_window = 1});
}

static void train_unused_unit_equals_unsharded(void)
{
    expect_reference_everywhere((toy_options){.dtype = SHERD_BF16, .clip = 1, .skips_unit = 1});
}

#define STATE(device, more)                                                                        \
    ", \"sub_group_size\": 2048, \"offload_optimizer\": {\"device\": \"" device                    \
    "\", \"nvme_path\": \"%s\", \"durable\": false" more "}"

/* Where the state rests: keys of zero_optimization, %s is the folder. */
static const char *const PLACES[] = {"", STATE("cpu", ""), STATE("cpu", ", \"ratio\": 0.3"),
#ifdef SHERDI_HAVE_XXHASH
                                     STATE("nvme", "")
#endif
};

/* The trainings of this file, of others and of the campaigns take the optimizers from the kinds of
 * plain.c. */
static void train_has_a_plain_update_of_every_optimizer(void)
{
    for (size_t i = 0; sherdi_optimizer_at(i) != NULL; i++) {
        const sherdi_optimizer *optimizer = sherdi_optimizer_at(i);
        char                    type[64];
        int                     has_kind = optimizer->is_inference;

        (void)snprintf(type, sizeof(type), "\"%s\",", sherdi_optimizer_name(optimizer));
        for (int kind = 0; kind <= PLAIN_KINDS; kind++) {
            has_kind |= strncmp(plain_type((plain_kind)kind), type, strlen(type)) == 0;
        }
        if (!has_kind) {
            test_fail(__FILE__, __LINE__, "tests/engine/plain.c has no update of %s",
                      sherdi_optimizer_name(optimizer));
        }
    }
}

/* Optimizers that have no matrix of their own, one after the other. */
static void train_elementwise_equals_unsharded(void)
{
    static const int RANKS[] = {1, 2, 3, 7};
    char             keys[512];

    for (int kind = PLAIN_LION; kind < PLAIN_KINDS; kind++) {
        for (size_t place = 0; place < sizeof(PLACES) / sizeof(PLACES[0]); place++) {
            (void)snprintf(keys, sizeof(keys), PLACES[place], test_scratch());
            for (int i = 0; i < 16; i++) {
                toy_options options = {.kind         = (plain_kind)kind,
                                       .stage        = i % 4,
                                       .accumulation = 1 + i / 2 % 2,
                                       .dtype        = i % 3 == 0 ? SHERD_F32 : SHERD_BF16,
                                       .clip         = 1,
                                       .zero_extra   = keys};

                if (toy_takes_ranks(RANKS[i / 4]) && (options.stage > 0 || place == 0)) {
                    expect_reference(RANKS[i / 4], &options);
                }
            }
        }
    }
}

static void train_one_micro_batch_agrees_over_stages(void)
{
    for (int world_size = 1; world_size <= 4; world_size++) {
        uint64_t first = 0;

        for (int stage = 0; stage <= 3; stage++) {
            toy_options options = {
                .stage = stage, .accumulation = 1, .dtype = SHERD_BF16, .clip = 1};
            toy_result result = {0};

            toy_train_threads(world_size, &options, &result);
            first = stage == 0 ? result.fingerprint : first;
            CHECK_INT(first, result.fingerprint);
        }
    }
}

static void memory_held_equals_planned(void)
{
    static const int RANKS[] = {1, 2, 3, 4, 7, 8};

    for (size_t r = 0; r < sizeof(RANKS) / sizeof(RANKS[0]); r++) {
        for (int stage = 0; stage <= 3 && toy_takes_ranks(RANKS[r]); stage++) {
            for (int accumulation = 1; accumulation <= 2; accumulation++) {
                toy_options options = {
                    .stage = stage, .accumulation = accumulation, .dtype = SHERD_BF16, .clip = 1};
                toy_result result = {0};

                toy_train_threads(RANKS[r], &options, &result);
                CHECK_INT(result.memory.params_planned, result.memory.params_held);
                CHECK_INT(result.memory.grads_planned, result.memory.grads_held);
                CHECK_INT(result.memory.state_planned, result.memory.state_held);
                CHECK_INT(result.memory.gather_planned, result.memory.gather_held);
                CHECK_INT(result.memory.transient_planned, result.memory.transient_held);
                CHECK_INT(result.memory.staging_planned, result.memory.staging_held);
                CHECK_INT(result.memory.total_planned, result.memory.total_held);
                CHECK(result.memory.total_held > 0);
            }
        }
    }
}

static const test_case CASES[] = {
    CASE(train_fp32_equals_unsharded),
    CASE(train_bf16_equals_unsharded),
    CASE(train_fp16_equals_unsharded),
    CASE(train_without_clipping_equals_unsharded),
    CASE(train_small_blocks_equals_unsharded),
    CASE(train_without_prefetch_equals_unsharded),
    CASE(train_overlapped_equals_unsharded),
    CASE(train_no_persistent_equals_unsharded),
    CASE(train_bound_equals_unsharded),
    CASE(train_off_plan_equals_unsharded),
    CASE(train_with_eval_equals_unsharded),
    CASE(train_with_recomputation_equals_unsharded),
    CASE(train_short_last_window_equals_unsharded),
    CASE(train_unused_unit_equals_unsharded),
    CASE(train_has_a_plain_update_of_every_optimizer),
    CASE(train_elementwise_equals_unsharded),
    CASE(train_one_micro_batch_agrees_over_stages),
    CASE(memory_held_equals_planned),
};

RUN_MAIN(CASES)
