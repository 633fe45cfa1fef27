/* The deterministic mode: one fingerprint for every layout of the same global batch. */
#include "tests/engine/elements.h"
#include "tests/engine/rig.h"
#include "tests/engine/toy.h"
#include "tests/lib/check.h"

#include "kernels/formulas.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GLOBAL_BATCH 24

/* What may differ between two runs of the same training. */
typedef struct layout {
    const char *name;
    const char *zero_extra;
    int         is_bound, is_off_plan, has_eval, has_recompute;
    double      loss_scale;
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
        .loss_scale    = how->loss_scale,
    };
}

/* Both again, step by step and parameter by parameter, to say where they part. */
static void difference_find(int ranks, toy_options options, int reference_ranks,
                            toy_options reference, char *text, size_t len_bytes)
{
    toy_result want = {0};
    toy_result got  = {0};

    options.tells_params   = 1;
    reference.tells_params = 1;
    toy_reference(reference_ranks, &reference, &want);
    toy_train_threads(ranks, &options, &got);
    toy_difference(&want, &got, text, len_bytes);
}

static void expect_equal(const layout *how, int ranks, toy_options options, int reference_ranks,
                         toy_options reference, const toy_result *want)
{
    toy_result got = {0};
    char       where[160];

    toy_train_threads(ranks, &options, &got);
    CHECK_INT(got.memory.total_planned, got.memory.total_held);
    if (got.fingerprint != want->fingerprint ||
        memcmp(got.grad_norm, want->grad_norm, sizeof(want->grad_norm)) != 0) {
        difference_find(ranks, options, reference_ranks, reference, where, sizeof(where));
        test_fail(
            __FILE__, __LINE__,
            "%s, stage %d, %d ranks, %s: fingerprint %016llx, the plain training has %016llx; "
            "the first difference is in %s",
            how->name, options.stage, ranks, sherd_dtype_name(options.dtype),
            (unsigned long long)got.fingerprint, (unsigned long long)want->fingerprint, where);
    }
}

static void expect_one_result(sherd_dtype dtype, const layout *how, const int *ranks,
                              size_t num_ranks)
{
    toy_options reference = options_of(how, dtype, 0, ranks[0]);
    toy_result  want      = {0};

    toy_reference(ranks[0], &reference, &want);
    for (size_t r = 0; r < num_ranks; r++) {
        for (int stage = 0; stage <= (how->is_bound ? 2 : 3) && toy_takes_ranks(ranks[r]);
             stage++) {
            expect_equal(how, ranks[r], options_of(how, dtype, stage, ranks[r]), ranks[0],
                         reference, &want);
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

/* 42 micro-batches, which 1, 2, 3 and 7 ranks share; the state rests elsewhere from layout to
 * layout. */
static void deterministic_layouts_agree_for_each_optimizer(void)
{
    static const int         RANKS[]   = {1, 2, 3, 7};
    static const char *const DEVICES[] = {"none", "cpu", "none", "cpu"};
    char                     keys[128];

    for (int kind = PLAIN_LION; kind < PLAIN_KINDS; kind++) {
        layout      how       = {.name = plain_type((plain_kind)kind), .zero_extra = keys};
        toy_options reference = options_of(&LAYOUTS[0], SHERD_BF16, 0, 1);
        toy_result  want      = {0};

        reference.kind         = (plain_kind)kind;
        reference.accumulation = 42;
        toy_reference(1, &reference, &want);
        for (int i = 0; i < 16; i++) {
            toy_options options = options_of(&how, SHERD_BF16, i % 4, RANKS[i / 4]);

            (void)snprintf(keys, sizeof(keys), ", \"offload_optimizer\": {\"device\": \"%s\"}",
                           DEVICES[(i + i / 4) % 4]);
            options.kind         = (plain_kind)kind;
            options.accumulation = 42 / RANKS[i / 4];
            options.zero_extra   = options.stage == 0 ? NULL : keys;
            if (toy_takes_ranks(RANKS[i / 4])) {
                expect_equal(&how, RANKS[i / 4], options, 1, reference, &want);
            }
        }
    }
}

static void deterministic_layouts_agree_at_a_loss_scale_of_1000(void)
{
    static const layout HOW     = {.name = "loss scale 1000", .loss_scale = 1000};
    static const int    RANKS[] = {1, 2, 3};

    expect_one_result(SHERD_F16, &HOW, RANKS, 3);
}

#define SUM_ELEMS 5000

/* Sums of squares of a + b - (a + b) in integers, by docs/numerics.md and with the division last:
 * rounded alike, what is left of each is -1, 0 or 1. */
typedef struct leftovers {
    double by_page, by_other;
} leftovers;

static double leftover(int a, int b, double (*integer)(double g))
{
    double sum = integer(a) + integer(b) - integer(a + b);

    return sum * sum;
}

static double integer_by_page(double g)
{
    return (double)llrint(g * (ldexp(1, 48) / 1000));
}

static double integer_by_other(double g)
{
    return (double)llrint(g * ldexp(1, 48) / 1000);
}

static int leftover_part(size_t index, int micro)
{
    uint64_t state = index;
    int      a     = (int)(test_random(&state) % 1000);
    int      b     = (int)(test_random(&state) % 1000);

    return micro == 0 ? a : micro == 1 ? b : -(a + b);
}

/* 2^48 / 1000 is rounded, and a gradient times that is not the gradient times 2^48 over 1000: in
 * fp32 hardly ever to be seen, so that gradients are taken that cancel. */
static void deterministic_integers_are_those_of_the_page(void)
{
    static const char JSON[] =
        "{\"train_micro_batch_size_per_gpu\": 1, \"gradient_accumulation_steps\": 3,"
        "\"deterministic\": true, \"optimizer\": {\"type\": \"Adam\"},"
        "\"fp16\": {\"enabled\": true, \"loss_scale\": 1000}}";
    uint16_t          gradient[SUM_ELEMS];
    leftovers         want = {0};
    sherd_step_report report;
    sherd_world      *world;
    rig               r = {.dtype = SHERD_F16};

    CHECK_OK(sherd_world_self(&world));
    r.world = world;
    CHECK_OK(rig_create(world, JSON, &r.engine));
    (void)rig_unit(&r, "unit");
    (void)rig_param(&r, 0, "w", SUM_ELEMS);
    rig_seal(&r);
    for (size_t i = 0; i < SUM_ELEMS; i++) {
        int a = leftover_part(i, 0);
        int b = leftover_part(i, 1);

        want.by_page += leftover(a, b, integer_by_page);
        want.by_other += leftover(a, b, integer_by_other);
    }
    CHECK(want.by_page != want.by_other);
    for (int micro = 0; micro < 3; micro++) {
        rig_acquire(&r, 0, SHERD_BACKWARD);
        for (size_t i = 0; i < SUM_ELEMS; i++) {
            store(gradient, i, SHERD_F16, (float)leftover_part(i, micro));
        }
        CHECK_OK(sherd_copy(r.engine, sherd_param_grad(r.engine, r.params[0].handle), gradient,
                            sizeof(gradient)));
        rig_release(&r, 0, SHERD_BACKWARD);
        report = rig_step(&r);
    }
    CHECK_INT(1, report.was_updated);
    CHECK(report.grad_norm == sqrt(want.by_page) * (ldexp(1, -48) / 3));
    rig_close(&r);
    sherd_world_destroy(world);
}

static void deterministic_settings_agree(void)
{
    static const int RANKS[] = {1, 3};

    for (size_t i = 1; i < sizeof(LAYOUTS) / sizeof(LAYOUTS[0]); i++) {
        expect_one_result(SHERD_BF16, &LAYOUTS[i], RANKS, 2);
    }
}

/* The environment is read when a world is made. */
static void deterministic_instruction_sets_agree(void)
{
    static const char *const ISAS[]  = {"scalar", "avx2", "avx512"};
    static const int         RANKS[] = {1, 2, 3};

    if (!toy_takes_ranks(1)) {
        test_need_long(); /* it is the host's that differ */
    }
    for (size_t i = 0; i < sizeof(ISAS) / sizeof(ISAS[0]); i++) {
        sherd_world *probe;

        CHECK(setenv("SHERD_ISA", ISAS[i], 1) == 0);
        if (sherd_world_self(&probe) == SHERD_OK) {
            sherd_world_destroy(probe);
            expect_one_result(SHERD_BF16, &LAYOUTS[0], RANKS, 3);
            expect_one_result(SHERD_F32, &LAYOUTS[0], RANKS, 3);
        }
    }
    CHECK(unsetenv("SHERD_ISA") == 0);
}

static sherd_status fill_one_bit_off(void *ctx, size_t first_elem, size_t count_elems, float *out)
{
    sherd_status status = toy_fill(ctx, first_elem, count_elems, out);
    uint32_t     bits;

    if (first_elem <= 7 && first_elem + count_elems > 7) {
        memcpy(&bits, &out[7 - first_elem], sizeof(bits));
        bits ^= 1;
        memcpy(&out[7 - first_elem], &bits, sizeof(bits));
    }
    return status;
}

static void one_bit_off(sherd_world *world, void *raw)
{
    uint64_t *fingerprints =
        raw; /* whole, one bit off, its parameter, another parameter, each twice */
    toy_options   options = {.stage = 3, .accumulation = 1, .dtype = SHERD_F32};
    const char   *json    = toy_json(&options);
    sherd_config *config;
    sherd_unit    units[TOY_UNITS];
    sherd_param   params[TOY_PARAMS];

    for (int off = 0; off <= 1; off++) {
        sherd_engine *engine;
        uint64_t      whole, changed, other;

        CHECK_OK(sherd_config_parse(json, strlen(json), &config));
        CHECK_OK(sherd_engine_create(world, config, &engine));
        sherd_config_destroy(config);
        toy_declare(engine, units, params);
        CHECK_OK(sherd_engine_seal(engine));
        for (size_t p = 0; p < TOY_PARAMS; p++) {
            CHECK_OK(sherd_param_fill(engine, params[p],
                                      off && p == 4 ? fill_one_bit_off : toy_fill,
                                      (void *)(uintptr_t)p));
        }
        CHECK_OK(sherd_engine_fingerprint(engine, &whole));
        CHECK_OK(sherd_param_fingerprint(engine, params[4], &changed));
        CHECK_OK(sherd_param_fingerprint(engine, params[0], &other));
        if (sherd_world_rank(world) == 0) {
            fingerprints[off * 3]     = whole;
            fingerprints[off * 3 + 1] = changed;
            fingerprints[off * 3 + 2] = other;
        }
        sherd_engine_destroy(engine);
    }
}

static void one_bit_of_one_weight_is_seen_and_found(void)
{
    uint64_t fingerprints[6] = {0};

    test_world(3, one_bit_off, fingerprints);
    CHECK(fingerprints[0] != fingerprints[3]);
    CHECK(fingerprints[1] != fingerprints[4]);
    CHECK_INT(fingerprints[2], fingerprints[5]);
    CHECK_INT(fingerprints[0] - fingerprints[1], fingerprints[3] - fingerprints[4]);
}

/* One step in which rank 1 leaves `value` in one gradient element; then one without. */
typedef struct odd_step {
    float       value;
    sherd_dtype dtype;
} odd_step;

static sherd_status step_with(sherd_engine *engine, const sherd_unit *units, sherd_param param,
                              sherd_dtype dtype, float value, sherd_step_report *report)
{
    size_t         elem = sherd_dtype_bytes(dtype);
    uint16_t       half = sherdi_cast_f32_f16(value);
    unsigned char *grad;

    CHECK_OK(sherd_unit_acquire(engine, units[2], SHERD_BACKWARD));
    grad = sherd_param_grad(engine, param);
    CHECK(grad != NULL);
    CHECK_OK(
        sherd_copy(engine, grad + 3 * elem, dtype == SHERD_F32 ? (void *)&value : &half, elem));
    CHECK_OK(sherd_unit_release(engine, units[2], SHERD_BACKWARD));
    sherd_step_report_init(report);
    return sherd_step(engine, report);
}

static void odd_value(sherd_world *world, void *raw)
{
    const odd_step   *odd     = raw;
    toy_options       options = {.stage        = 2,
                                 .accumulation = 1,
                                 .dtype        = odd->dtype,
                                 .clip         = 1,
                                 .top_extra    = ", \"deterministic\": true"};
    const char       *json    = toy_json(&options);
    float             mine    = sherd_world_rank(world) == 1 ? odd->value : 1;
    sherd_config     *config;
    sherd_engine     *engine;
    sherd_unit        units[TOY_UNITS];
    sherd_param       params[TOY_PARAMS];
    sherd_step_report report;
    uint64_t          before, after;
    float             scale;

    CHECK_OK(sherd_config_parse(json, strlen(json), &config));
    CHECK_OK(sherd_engine_create(world, config, &engine));
    sherd_config_destroy(config);
    toy_declare(engine, units, params);
    CHECK_OK(sherd_engine_seal(engine));
    for (size_t p = 0; p < TOY_PARAMS; p++) {
        CHECK_OK(sherd_param_fill(engine, params[p], toy_fill, (void *)(uintptr_t)p));
    }
    CHECK_OK(sherd_engine_fingerprint(engine, &before));
    scale = sherd_loss_scale(engine);
    if (isfinite(odd->value)) { /* no loss scale cures it: an error of its own */
        CHECK_STATUS(SHERD_E_NUMERIC,
                     step_with(engine, units, params[4], odd->dtype, mine, &report));
        CHECK_ERROR_SAYS("8192");
        CHECK(sherd_loss_scale(engine) == scale);
    } else { /* an overflow: skipped on all ranks */
        CHECK_OK(step_with(engine, units, params[4], odd->dtype, mine, &report));
        CHECK_INT(1, report.has_overflow);
        CHECK_INT(0, report.was_updated);
        CHECK_INT(1, report.skipped_steps);
    }
    CHECK_OK(sherd_engine_fingerprint(engine, &after));
    CHECK_INT(before, after);
    CHECK_OK(step_with(engine, units, params[4], odd->dtype, 1, &report)); /* and on it goes */
    CHECK_INT(1, report.was_updated);
    CHECK(report.fingerprint != before);
    sherd_engine_destroy(engine);
}

static void deterministic_large_gradient_is_an_error_of_its_own(void)
{
    odd_step odd = {.value = 8192, .dtype = SHERD_F32};

    test_world(3, odd_value, &odd);
    odd.value = -1e30f;
    test_world(3, odd_value, &odd);
}

static void deterministic_overflow_of_one_rank_skips_on_all(void)
{
    odd_step odd = {.value = INFINITY, .dtype = SHERD_F16};

    test_world(3, odd_value, &odd);
    odd = (odd_step){.value = NAN, .dtype = SHERD_F32};
    test_world(3, odd_value, &odd);
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
    CASE(deterministic_layouts_agree_in_fp32),
    CASE(deterministic_layouts_agree_in_bf16),
    CASE(deterministic_layouts_agree_in_fp16),
    CASE(deterministic_layouts_agree_for_each_optimizer),
    CASE(deterministic_layouts_agree_at_a_loss_scale_of_1000),
    CASE(deterministic_integers_are_those_of_the_page),
    CASE(deterministic_settings_agree),
    CASE(deterministic_instruction_sets_agree),
    CASE(one_bit_of_one_weight_is_seen_and_found),
    CASE(deterministic_large_gradient_is_an_error_of_its_own),
    CASE(deterministic_overflow_of_one_rank_skips_on_all),
    CASE(default_mode_differs_between_world_sizes),
};

RUN_MAIN(CASES)
