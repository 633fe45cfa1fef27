/* Parameters that are fp32 in an engine that computes in bf16 or fp16. The bits are those of the
 * training written plainly, for every stage, number of ranks, tier and way of driving the engine.
 * If all parameters are fp32, they are those of the fp32 engine. */
#include "engine/run/engine_impl.h"
#include "sherd_build.h"
#include "sherd_tools.h"
#include "tests/engine/plain.h"
#include "tests/engine/rig.h"
#include "tests/engine/saved.h"
#include "tests/engine/toy.h"
#include "tests/lib/check.h"

#include <stdio.h>
#include <string.h>

/* Further keys of zero_optimization; %s is the folder. */
typedef struct tier {
    const char *name;
    const char *keys;
    int         least_stage;
    int         needs_checksums;
} tier;

#define STATE(device, more)                                                                        \
    ", \"offload_optimizer\": {\"device\": \"" device                                              \
    "\", \"nvme_path\": \"%s\", \"durable\": false" more "}"
#define PARAMS(device, more)                                                                       \
    ", \"offload_param\": {\"device\": \"" device "\", \"nvme_path\": \"%s\"" more "}"
#define SMALL_BLOCKS ", \"sub_group_size\": 192"

static const tier TIERS[] = {
    {"device", "", 0, 0},
    {"device, small blocks", SMALL_BLOCKS, 0, 0},
    {"optimizer cpu", STATE("cpu", ""), 1, 0},
    {"optimizer cpu, ratio 0.3", SMALL_BLOCKS STATE("cpu", ", \"ratio\": 0.3"), 1, 0},
    {"optimizer cpu, sums on the device", STATE("cpu", ", \"accumulate\": \"device\""), 2, 0},
    {"parameters cpu", PARAMS("cpu", ""), 3, 0},
    {"optimizer nvme", SMALL_BLOCKS STATE("nvme", ""), 1, 1},
    {"gradients nvme", SMALL_BLOCKS STATE("nvme", ", \"gradients\": \"nvme\""), 2, 1},
    {"parameters nvme", SMALL_BLOCKS PARAMS("nvme", ", \"max_in_cpu\": 500"), 3, 0},
    {"both nvme", SMALL_BLOCKS STATE("nvme", "") PARAMS("nvme", ", \"max_in_cpu\": 0"), 3, 1},
};

#define NUM_TIERS    (sizeof(TIERS) / sizeof(TIERS[0]))
#define MEMORY_TIERS 6 /* the first tiers, which use no files */

static int tier_is_possible(const tier *where)
{
#ifdef SHERDI_HAVE_XXHASH
    (void)where;
    return 1;
#else
    return !where->needs_checksums;
#endif
}

static void expect_same(const toy_result *want, const toy_result *got, int world_size,
                        const toy_options *options, const char *where)
{
    char text[128];

    if (want->fingerprint == got->fingerprint &&
        memcmp(want->grad_norm, got->grad_norm, sizeof(want->grad_norm)) == 0) {
        return;
    }
    toy_difference(want, got, text, sizeof(text));
    test_fail(__FILE__, __LINE__,
              "%s, stage %d, %d ranks, accumulation %d, %s: %s is not what it has to be", where,
              options->stage, world_size, options->accumulation, sherd_dtype_name(options->dtype),
              text);
}

static void expect_reference(int world_size, toy_options options, const char *where)
{
    toy_result want = {0};
    toy_result got  = {0};

    options.tells_params = 1;
    toy_reference(world_size, &options, &want);
    toy_train_threads(world_size, &options, &got);
    expect_same(&want, &got, world_size, &options, where);
    CHECK_INT(got.memory.total_planned, got.memory.total_held);
}

/* Trains with the first `num_tiers` tiers, at every stage that they have, on 1 to 3 ranks. */
static void expect_reference_on(size_t num_tiers, toy_options options)
{
    char keys[1024];

    for (size_t i = 0; i < num_tiers; i++) {
        if (!tier_is_possible(&TIERS[i])) {
            continue;
        }
        (void)snprintf(keys, sizeof(keys), TIERS[i].keys, test_scratch(), test_scratch());
        options.zero_extra = keys;
        for (int ranks = 1; ranks <= 3; ranks++) {
            for (options.stage = TIERS[i].least_stage; options.stage <= 3 && toy_takes_ranks(ranks);
                 options.stage++) {
                if (toy_takes_stage(options.stage, TIERS[i].least_stage, (int)i + ranks) &&
                    !(options.is_bound && options.stage == 3)) {
                    expect_reference(ranks, options, TIERS[i].name);
                }
            }
        }
    }
}

static void expect_reference_everywhere(toy_options options)
{
    expect_reference_on(NUM_TIERS, options);
}

static void mixed_bf16_equals_unsharded(void)
{
    expect_reference_everywhere(
        (toy_options){.dtype = SHERD_BF16, .clip = 1, .accumulation = 1, .wide = TOY_SOME_WIDE});
}

static void mixed_bf16_accumulated_equals_unsharded(void)
{
    expect_reference_everywhere(
        (toy_options){.dtype = SHERD_BF16, .clip = 1, .accumulation = 3, .wide = TOY_SOME_WIDE});
}

static void mixed_fp16_equals_unsharded(void)
{
    expect_reference_everywhere(
        (toy_options){.dtype = SHERD_F16, .clip = 1, .accumulation = 2, .wide = TOY_SOME_WIDE});
}

static void mixed_bound_equals_unsharded(void)
{
    expect_reference_everywhere((toy_options){
        .dtype = SHERD_BF16, .clip = 1, .accumulation = 1, .wide = TOY_SOME_WIDE, .is_bound = 1});
}

static void mixed_lamb_equals_unsharded(void)
{
    expect_reference_everywhere((toy_options){
        .dtype = SHERD_BF16, .clip = 1, .accumulation = 1, .wide = TOY_SOME_WIDE, .lamb = 1});
}

static void mixed_deterministic_equals_unsharded(void)
{
    expect_reference_everywhere((toy_options){.dtype        = SHERD_BF16,
                                              .clip         = 1,
                                              .accumulation = 2,
                                              .wide         = TOY_SOME_WIDE,
                                              .top_extra    = ", \"deterministic\": true"});
}

/* A communication type that is named holds for all parameters. */
static void mixed_with_communication_type_equals_unsharded(void)
{
    static const char *const TYPES[] = {"fp32", "bf16"};

    for (int i = 0; i < 4; i++) {
        expect_reference_on(MEMORY_TIERS, (toy_options){.dtype        = SHERD_BF16,
                                                        .clip         = 1,
                                                        .accumulation = 1 + i / 2,
                                                        .wide         = TOY_SOME_WIDE,
                                                        .comm         = TYPES[i % 2]});
    }
}

static void mixed_driven_otherwise_equals_unsharded(void)
{
    static const char *const KEYS[] = {
        "", ", \"overlap_comm\": true", ", \"stage3_max_reuse_distance\": 1e9",
        ", \"stage3_prefetch_bucket_size\": 0, \"overlap_comm\": false"};
    toy_options options = {.dtype         = SHERD_BF16,
                           .clip          = 1,
                           .accumulation  = 2,
                           .wide          = TOY_SOME_WIDE,
                           .is_off_plan   = 1,
                           .has_eval      = 1,
                           .has_recompute = 1,
                           .short_window  = 1,
                           .skips_unit    = 1};

    for (size_t k = 0; k < sizeof(KEYS) / sizeof(KEYS[0]); k++) {
        options.zero_extra = KEYS[k];
        for (options.stage = 0; options.stage <= 3 && toy_takes_ranks(3); options.stage++) {
            expect_reference(3, options, KEYS[k]);
        }
    }
}

/* Each parameter alone is fp32, whatever the others of its unit are. */
static void any_parameter_alone_equals_unsharded(void)
{
    for (unsigned p = 0; p < TOY_PARAMS; p++) {
        toy_options options = {.dtype = SHERD_BF16, .clip = 1, .accumulation = 1, .wide = 1u << p};

        for (options.stage = 0; options.stage <= 3 && toy_takes_ranks(2); options.stage++) {
            expect_reference(2, options, "device");
        }
    }
}

/* An engine whose parameters are all fp32 is the fp32 engine in its numbers, its memory and the
 * bytes that it sends. */
static void expect_fp32_engine(int world_size, toy_options options)
{
    toy_result want = {0};
    toy_result got  = {0};

    options.tells_params = 1;
    toy_train_threads(world_size, &options, &want);
    options.dtype = SHERD_BF16;
    options.wide  = TOY_ALL_WIDE;
    toy_train_threads(world_size, &options, &got);
    expect_same(&want, &got, world_size, &options, "all fp32");
    CHECK_INT(want.memory.total_planned, got.memory.total_planned);
    CHECK_INT(want.sent_bytes, got.sent_bytes);
}

static void all_wide_is_the_fp32_engine(void)
{
    char keys[1024];

    for (size_t i = 0; i < NUM_TIERS; i++) {
        toy_options options = {.dtype = SHERD_F32, .clip = 1, .accumulation = 1 + (int)i % 2};
        int         ranks   = 2 + (int)i % 2;

        (void)snprintf(keys, sizeof(keys), TIERS[i].keys, test_scratch(), test_scratch());
        options.zero_extra = keys;
        for (options.stage = TIERS[i].least_stage; options.stage <= 3; options.stage++) {
            if (tier_is_possible(&TIERS[i]) && toy_takes_ranks(ranks) &&
                toy_takes_stage(options.stage, TIERS[i].least_stage, (int)i)) {
                expect_fp32_engine(ranks, options);
            }
        }
    }
}

/* -------------------------------------------------------------- checkpoints -- */

/* parameters of the saved model: the frozen one of the first unit, small and large ones */
#define SAVED_WIDE 0x9au
#define MOST_ELEMS 9001

/* A run that saves, and runs that load. */
typedef struct saved_job {
    rig_options options;
    char        dir[256];
    /* by parameter: the saved values, masters or those of frozen parameters */
    float (*values)[MOST_ELEMS];
} saved_job;

static sherd_value value_of(const rig *r, int p)
{
    return r->params[p].is_frozen ? SHERD_COMPUTE : SHERD_MASTER;
}

static void types_save(sherd_world *world, void *raw)
{
    saved_job *j = raw;
    rig        r;

    saved_open(&r, world, &j->options);
    saved_fill(&r);
    saved_train(&r, 2);
    CHECK_OK(sherd_checkpoint_save(r.engine, j->dir, "two", NULL));
    for (int p = 0; p < SAVED_PARAMS; p++) {
        CHECK_OK(sherd_param_read(r.engine, r.params[p].handle, value_of(&r, p), 0,
                                  r.params[p].elems,
                                  sherd_world_rank(world) == 0 ? j->values[p] : NULL));
    }
    rig_close(&r);
}

/* Checks that masters are loaded as they were, and that frozen values are rounded to the type that
 * they have here. */
static void types_load(sherd_world *world, void *raw)
{
    static _Thread_local float got[MOST_ELEMS];
    const saved_job           *j = raw;
    rig                        r;

    saved_open(&r, world, &j->options);
    CHECK_OK(sherd_checkpoint_load(r.engine, j->dir, "two", NULL));
    for (int p = 0; p < SAVED_PARAMS; p++) {
        const rig_param_info *info = &r.params[p];

        CHECK_OK(sherd_param_read(r.engine, info->handle, value_of(&r, p), 0, info->elems, got));
        for (size_t i = 0; i < info->elems; i++) {
            float want =
                info->is_frozen ? plain_round(j->values[p][i], info->dtype) : j->values[p][i];

            CHECK_BYTES_EQUAL(&want, &got[i], sizeof(want));
        }
    }
    saved_train(&r, 1);
    rig_close(&r);
}

/* Checks that "compute" of a saved parameter has the values of the type in which it was saved. */
static void saved_is_read(const saved_job *j, int p, const char *name)
{
    sherd_checkpoint *checkpoint;
    static float      got[MOST_ELEMS];

    CHECK_OK(sherd_checkpoint_open(j->dir, "two", &checkpoint));
    CHECK_OK(sherd_checkpoint_read(checkpoint, name, "compute", 0, 5000, got));
    CHECK_BYTES_EQUAL(j->values[p], got, 5000 * sizeof(*got));
    sherd_checkpoint_close(checkpoint);
}

static void checkpoints_go_across_types(void)
{
    static float             values[SAVED_PARAMS][MOST_ELEMS];
    static const rig_options TO[] = {{.dtype = SHERD_BF16, .wide = SAVED_WIDE},
                                     {.dtype = SHERD_BF16},
                                     {.dtype = SHERD_BF16, .wide = 0x165},
                                     {.dtype = SHERD_F16, .wide = 0x100},
                                     {.dtype = SHERD_F32},
                                     {.dtype = SHERD_F16, .wide = 0x3ff}};
    saved_job j = {.options = {.stage = 3, .dtype = SHERD_BF16, .wide = SAVED_WIDE, .clip = 1},
                   .values  = values};

    saved_need_checksums();
    (void)saved_dir("types", j.dir);
    test_world(2, types_save, &j);
    CHECK_INT(2, saved_verify(j.dir, "two"));
    saved_is_read(&j, 3, "unit0.3");
    saved_is_read(&j, 8, "unit1.3");
    for (size_t i = 0; i < sizeof(TO) / sizeof(TO[0]); i++) {
        j.options       = TO[i];
        j.options.stage = (int)(i + 2) % 4;
        test_world(1 + (int)i % 3, types_load, &j);
    }
}

/* -------------------------------------------------------------- reports -- */

typedef struct told {
    char   text[1 << 16];
    size_t len;
} told;

static sherd_status text_add(void *ctx, const char *text, size_t len_bytes)
{
    told *t = ctx;

    CHECK(t->len + len_bytes < sizeof(t->text));
    memcpy(t->text + t->len, text, len_bytes);
    t->len += len_bytes;
    t->text[t->len] = '\0';
    return SHERD_OK;
}

/* The plan names the type only for segments that do not have the engine's type. */
static void plan_says_which_segments_stay_fp32(void)
{
    static told                    t;
    static const sherd_plan_format FORMATS[] = {SHERD_PLAN_TABLE, SHERD_PLAN_JSON};
    static const char *const       SAID[]    = {"trainable fp32", "\"dtype\": \"fp32\""};
    sherd_world                   *world;

    CHECK_OK(sherd_world_simulate(1, 3, &world));
    for (int i = 0; i < 4; i++) {
        rig_options options = {.stage = 3, .dtype = SHERD_BF16, .wide = i < 2 ? 0x2 : 0};
        rig         r;

        rig_open(&r, world, &options);
        rig_three(&r, 600);
        CHECK_OK(sherd_engine_seal(r.engine));
        t.len = 0;
        CHECK_OK(sherd_engine_plan(r.engine, FORMATS[i % 2], text_add, &t));
        CHECK_INT(i < 2, strstr(t.text, SAID[i % 2]) != NULL);
        rig_close(&r);
    }
    sherd_world_destroy(world);
}

/* ------------------------------------------------------------------- limits -- */

static sherd_status param_add(rig *r, int dtype)
{
    sherd_param_params params;
    sherd_param        param;

    sherd_param_params_init(&params);
    CHECK_INT(-1, params.dtype);
    params.name     = "w";
    params.ndim     = 1;
    params.shape[0] = 100;
    params.dtype    = dtype;
    return sherd_param_add(r->engine, r->units[0], &params, &param);
}

static void types_refused(sherd_world *world, void *ctx)
{
    static const int ENGINES[] = {SHERD_F32, SHERD_BF16, SHERD_F16};

    (void)ctx;
    for (int e = 0; e < 3; e++) {
        for (int dtype = -1; dtype <= SHERD_F16; dtype++) {
            rig_options options = {.stage = 3, .dtype = (sherd_dtype)ENGINES[e]};
            int         is_fine = dtype <= SHERD_F32 || dtype == ENGINES[e];
            rig         r;

            rig_open(&r, world, &options);
            (void)rig_unit(&r, "u");
            CHECK_OK(param_add(&r, dtype));
            CHECK_INT(is_fine ? SHERD_OK : SHERD_E_NOTSUP, sherd_engine_seal(r.engine));
            if (!is_fine) {
                CHECK_ERROR_SAYS("parameter w");
                CHECK_ERROR_SAYS(sherd_dtype_name((sherd_dtype)dtype));
            }
            rig_close(&r);
        }
    }
}

static void other_types_are_refused_by_name(void)
{
    test_world(2, types_refused, NULL);
}

static void type_is_none(sherd_world *world, void *ctx)
{
    rig_options options = {.stage = 1, .dtype = SHERD_BF16};
    rig         r;

    (void)ctx;
    rig_open(&r, world, &options);
    (void)rig_unit(&r, "u");
    CHECK_INT(SHERD_E_INVAL, param_add(&r, 17));
    CHECK_ERROR_SAYS("parameter w");
    CHECK_INT(SHERD_E_INVAL, param_add(&r, -2));
    rig_close(&r);
}

static void what_is_no_type_is_refused(void)
{
    test_world(1, type_is_none, NULL);
}

/* Ranks that declare different types get an error that names the parameter. */
static void types_differ(sherd_world *world, void *ctx)
{
    rig_options options = {.stage = 3, .dtype = SHERD_BF16};
    rig         r;

    (void)ctx;
    rig_open(&r, world, &options);
    (void)rig_unit(&r, "u");
    CHECK_OK(param_add(&r, sherd_world_rank(world) == 1 ? SHERD_F32 : -1));
    CHECK_INT(SHERD_E_INVAL, sherd_engine_seal(r.engine));
    CHECK_ERROR_SAYS("parameter w");
    CHECK_ERROR_SAYS("fp32");
    rig_close(&r);
}

static void ranks_that_differ_are_told(void)
{
    test_world(2, types_differ, NULL);
}

static const test_case CASES[] = {
    CASE(mixed_bf16_equals_unsharded),
    CASE(mixed_bf16_accumulated_equals_unsharded),
    CASE(mixed_fp16_equals_unsharded),
    CASE(mixed_bound_equals_unsharded),
    CASE(mixed_lamb_equals_unsharded),
    CASE(mixed_deterministic_equals_unsharded),
    CASE(mixed_with_communication_type_equals_unsharded),
    CASE(mixed_driven_otherwise_equals_unsharded),
    CASE(any_parameter_alone_equals_unsharded),
    CASE(all_wide_is_the_fp32_engine),
    CASE(checkpoints_go_across_types),
    CASE(plan_says_which_segments_stay_fp32),
    CASE(other_types_are_refused_by_name),
    CASE(what_is_no_type_is_refused),
    CASE(ranks_that_differ_are_told),
};

RUN_MAIN(CASES)
