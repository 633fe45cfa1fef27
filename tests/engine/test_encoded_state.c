/* State that is stored in encodings (sherd.master_encoding, sherd.moment_encoding). The lossless
 * encoding gives the bits of fp32 at every stage, place and number of ranks. With each of the
 * others all layouts give the same bits. Checkpoints go from any encoding to any other. What is not
 * possible is refused with the reason. */
#include "engine/run/engine_impl.h"
#include "engine/report.h"
#include "sherd_build.h"
#include "tests/engine/rig.h"
#include "tests/engine/toy.h"
#include "tests/lib/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BOTH_ON_HOST                                                                               \
    ", \"sub_group_size\": 4096, \"offload_optimizer\": {\"device\": \"cpu\", \"buffer_size\": "   \
    "4096}, \"offload_param\": {\"device\": \"cpu\"}"
#define STATE_ON_HOST                                                                              \
    ", \"sub_group_size\": 4096, \"offload_optimizer\": {\"device\": \"cpu\", \"ratio\": 0.5}"

/* The emulated device runs less: there only what is particular to a device is of interest. */
#ifdef TEST_EMULATED
enum { IS_SHORT = 1, MOST_RANKS = 2 };
#else
enum { IS_SHORT = 0, MOST_RANKS = 7 };
#endif

/* -------------------------------------------------------------- the same bits -- */

static void toy_check_same(int world_size, toy_options options, const char *encoded)
{
    toy_result want;
    toy_result got;

    toy_train_threads(world_size, &options, &want);
    options.top_extra = encoded;
    toy_train_threads(world_size, &options, &got);
    if (want.fingerprint != got.fingerprint) {
        test_fail(__FILE__, __LINE__, "stage %d on %d ranks, lamb %d, kind %d, %s: other bits",
                  options.stage, world_size, options.lamb, (int)options.kind, encoded);
    }
    CHECK(memcmp(want.grad_norm, got.grad_norm, sizeof(want.grad_norm)) == 0);
}

static void beside_has_the_bits_of_fp32(void)
{
    static const int WORLDS[] = {1, 2, 3, 7};

    for (size_t w = 0; w < sizeof(WORLDS) / sizeof(WORLDS[0]) && WORLDS[w] <= MOST_RANKS; w++) {
        for (int stage = 0; stage <= 3; stage++) {
            toy_options options = {
                .stage = stage, .accumulation = 2, .dtype = SHERD_BF16, .clip = 0.5};

            options.lamb         = WORLDS[w] == 3 ? stage % 3 : 0;
            options.short_window = WORLDS[w] == 2;
            options.wide         = WORLDS[w] == 2 ? TOY_SOME_WIDE : 0;
            options.has_eval     = WORLDS[w] == 7;
            toy_check_same(WORLDS[w], options,
                           ", \"sherd\": {\"master_encoding\": \"bf16_beside\"}");
        }
    }
}

static void beside_in_host_memory_has_the_bits_of_fp32(void)
{
    for (int world_size = 1; world_size <= 3; world_size++) {
        toy_options options = {.stage        = 3,
                               .accumulation = 1,
                               .dtype        = SHERD_BF16,
                               .lamb         = world_size == 2,
                               .zero_extra   = BOTH_ON_HOST};

        toy_check_same(world_size, options, ", \"sherd\": {\"master_encoding\": \"bf16_beside\"}");
    }
}

/* Optimizers without a part that is never negative have their ties in a plane. */
static void beside_has_the_bits_of_fp32_by_every_optimizer(void)
{
    for (int kind = 0; kind < PLAIN_KINDS; kind++) {
        for (int stage = IS_SHORT ? kind % 4 : 0; stage <= 3; stage += IS_SHORT ? 4 : 1) {
            toy_options options = {
                .stage = stage, .accumulation = 1, .dtype = SHERD_BF16, .kind = (plain_kind)kind};

            for (int world_size = IS_SHORT ? 2 : 1; world_size <= (IS_SHORT ? 2 : 3);
                 world_size++) {
                toy_check_same(world_size, options,
                               ", \"sherd\": {\"master_encoding\": \"bf16_beside\"}");
            }
        }
    }
}

/* --------------------------------------------------------------- on storage -- */

/* Further keys of zero_optimization; %s is the folder. */
typedef struct stored_layout {
    const char *keys;
    int         least_stage;
} stored_layout;

#define ON_STORAGE(more)                                                                           \
    ", \"sub_group_size\": 2048, \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": "    \
    "\"%s\", \"durable\": false" more "}"
#define PARAMS_ON_STORAGE(most)                                                                    \
    ", \"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"%s\", \"max_in_cpu\": " most "}"

static const stored_layout STORED_LAYOUTS[] = {
    {ON_STORAGE(""), 0},
    {ON_STORAGE(", \"ratio\": 0.5"), 1},
    {ON_STORAGE(", \"buffer_count\": 1, \"gradients\": \"nvme\""), 1},
    {ON_STORAGE("") ", \"offload_param\": {\"device\": \"cpu\"}", 3},
    {ON_STORAGE("") PARAMS_ON_STORAGE("0"), 3},
    {ON_STORAGE("") PARAMS_ON_STORAGE("900"), 3},
};
#define NUM_STORED_LAYOUTS (sizeof(STORED_LAYOUTS) / sizeof(STORED_LAYOUTS[0]))

static const char *stored_keys(size_t layout, char out[1024])
{
    (void)snprintf(out, 1024, STORED_LAYOUTS[layout].keys, test_scratch(), test_scratch());
    return out;
}

static void needs_storage(void)
{
#ifndef SHERDI_HAVE_XXHASH
    test_skip("no libxxhash in this build");
#endif
}

static void beside_on_storage_has_the_bits_of_fp32(void)
{
    static const int WORLDS[] = {1, 2, 3, 7};

    needs_storage();
    for (size_t i = 0; i < 4 * NUM_STORED_LAYOUTS; i += IS_SHORT ? 5 : 1) {
        int         world_size = WORLDS[i % 4] < MOST_RANKS ? WORLDS[i % 4] : MOST_RANKS;
        char        keys[1024];
        toy_options options = {.accumulation = 2,
                               .dtype        = SHERD_BF16,
                               .clip         = 0.5,
                               .lamb         = world_size == 3 ? 1 : 0,
                               .has_eval     = world_size == 7,
                               .short_window = world_size == 2,
                               .wide         = world_size == 2 ? TOY_SOME_WIDE : 0,
                               .zero_extra   = stored_keys(i / 4, keys)};

        for (options.stage = STORED_LAYOUTS[i / 4].least_stage; options.stage <= 3;
             options.stage++) {
            toy_check_same(world_size, options,
                           ", \"sherd\": {\"master_encoding\": \"bf16_beside\"}");
        }
    }
}

/* Bytes of each element in a step, on storage and over the link. The bytes up are not checked if
 * `up` is 0: the passes then move some too. */
typedef struct budget {
    const char *top;
    size_t      layout;
    int         stage;
    uint64_t    read, written, down, up;
} budget;

#define BUDGET_ELEMS ((size_t)3 << 13) /* of a parameter: whole pages in every encoding */

static void budget_body(sherd_world *world, void *ctx)
{
    const budget     *want = ctx;
    char              keys[1024];
    rig_options       options = {.stage = want->stage, .dtype = SHERD_BF16, .top = want->top};
    sherd_step_report report;
    uint64_t          elems = 3 * BUDGET_ELEMS / 2; /* elements of one rank */
    rig               r;

    options.zero = stored_keys(want->layout, keys);
    rig_open(&r, world, &options);
    for (int u = 0; u < 3; u++) {
        static const char *const NAMES[] = {"a", "b", "c"};

        (void)rig_unit(&r, NAMES[u]);
        (void)rig_param(&r, u, NAMES[u], BUDGET_ELEMS);
    }
    rig_seal(&r);
    (void)rig_train(&r, 2);
    report = rig_train(&r, 1);
    CHECK_INT(want->read * elems, report.nvme_read_bytes);
    CHECK_INT(want->written * elems + sherdi_plan_moves_of(r.engine->plan)->index_bytes,
              report.nvme_written_bytes);
    CHECK_INT(want->down * elems + rig_scalars_down(&r), report.link_down_bytes);
    if (want->up > 0) {
        CHECK_INT(want->up * elems + rig_scalars_up(&r), report.link_up_bytes);
    }
    rig_close(&r);
}

static void an_update_reads_ten_bytes_and_writes_twelve(void)
{
    static const budget BUDGETS[] = {
        {"", 0, 1, 12, 12, 2, 2},
        {", \"sherd\": {\"master_encoding\": \"bf16_beside\"}", 0, 1, 10, 12, 4, 2},
        {", \"sherd\": {\"master_encoding\": \"bf16_beside\"}", 0, 3, 10, 12, 4, 2},
        {", \"sherd\": {\"master_encoding\": \"bf16_beside\"}", 3, 3, 10, 12, 2, 0},
        {", \"sherd\": {\"master_encoding\": \"bf16\", \"moment_encoding\": \"bf16\"}", 0, 2, 6, 6,
         2, 2},
    };

    needs_storage();
    for (size_t i = 0; i < sizeof(BUDGETS) / sizeof(BUDGETS[0]); i++) {
        budget own = BUDGETS[i];

        test_world(2, budget_body, &own);
    }
}

/* ------------------------------------------------------ every layout alike -- */

typedef struct layout {
    int         world_size, accumulation, stage;
    const char *zero;
} layout;

/* Each layout has six micro-batches in a step. */
static const layout LAYOUTS[] = {
    {1, 6, 0, NULL},           {1, 6, 2, STATE_ON_HOST},
    {2, 3, 1, NULL},           {2, 3, 3, NULL},
    {3, 2, 2, STATE_ON_HOST},  {6, 1, 3, STATE_ON_HOST},
    {6, 1, 0, NULL},
#ifdef SHERDI_HAVE_XXHASH
    {2, 3, 2, ON_STORAGE("")}, {3, 2, 3, ON_STORAGE("") PARAMS_ON_STORAGE("0")},
#endif
};
#define NUM_LAYOUTS (sizeof(LAYOUTS) / sizeof(LAYOUTS[0]))

static uint64_t layouts_agree_by(const char *encodings, int lamb, sherd_dtype dtype,
                                 plain_kind kind)
{
    char     top[256];
    char     zero[1024];
    uint64_t first = 0;

    (void)snprintf(top, sizeof(top), ", \"deterministic\": true, \"sherd\": {%s}", encodings);
    for (size_t i = 0; i < (IS_SHORT ? 4 : NUM_LAYOUTS); i += IS_SHORT ? 3 : 1) {
        toy_options options = {.stage        = LAYOUTS[i].stage,
                               .accumulation = LAYOUTS[i].accumulation,
                               .dtype        = dtype,
                               .lamb         = lamb,
                               .kind         = kind,
                               .zero_extra   = LAYOUTS[i].zero == NULL ? NULL : zero,
                               .top_extra    = top};
        toy_result  result;

        if (LAYOUTS[i].zero != NULL) {
            (void)snprintf(zero, sizeof(zero), LAYOUTS[i].zero, test_scratch(), test_scratch());
        }
        toy_train_threads(LAYOUTS[i].world_size, &options, &result);
        first = i == 0 ? result.fingerprint : first;
        if (result.fingerprint != first) {
            test_fail(__FILE__, __LINE__, "%s, lamb %d, kind %d: layout %zu has other bits",
                      encodings, lamb, (int)kind, i);
        }
    }
    return first;
}

static uint64_t layouts_agree(const char *encodings, int lamb, sherd_dtype dtype)
{
    return layouts_agree_by(encodings, lamb, dtype, PLAIN_ADAMW);
}

#define MASTER(encoding)  "\"master_encoding\": \"" encoding "\""
#define MOMENTS(encoding) "\"moment_encoding\": \"" encoding "\""

static void rounded_state_has_the_same_bits_in_every_layout(void)
{
    uint64_t plain   = layouts_agree(MASTER("fp32"), 0, SHERD_BF16);
    uint64_t moments = layouts_agree(MOMENTS("bf16"), 0, SHERD_BF16);
    uint64_t codes   = layouts_agree(MOMENTS("fp8"), 0, SHERD_BF16);
    uint64_t masters = layouts_agree(MASTER("bf16") ", " MOMENTS("fp8"), 1, SHERD_BF16);

    CHECK(plain != moments && plain != codes && codes != moments && masters != plain);
    (void)layouts_agree(MOMENTS("fp8"), 0, SHERD_F32);
    (void)layouts_agree(MOMENTS("bf16"), 2, SHERD_F16);
    (void)layouts_agree_by(MASTER("bf16") ", " MOMENTS("fp8"), 0, SHERD_BF16, PLAIN_LION);
    (void)layouts_agree_by(MASTER("bf16") ", " MOMENTS("bf16"), 0, SHERD_BF16, PLAIN_MOMENTUM);
    (void)layouts_agree_by(MOMENTS("fp8"), 0, SHERD_BF16, PLAIN_ADAGRAD);
}

/* A split master loses nothing, whichever encoding the moments have. */
static void beside_with_rounded_moments_has_the_bits_of_fp32_with_them(void)
{
    static const char *const MORE[] = {MOMENTS("bf16"), MOMENTS("fp8")};

    for (size_t i = 0; i < 2; i++) {
        char        fp32[128];
        char        beside[160];
        toy_options options = {
            .stage = 2, .accumulation = 1, .dtype = SHERD_BF16, .top_extra = fp32};

        (void)snprintf(fp32, sizeof(fp32), ", \"sherd\": {%s}", MORE[i]);
        (void)snprintf(beside, sizeof(beside), ", \"sherd\": {%s, %s}", MORE[i],
                       MASTER("bf16_beside"));
        toy_check_same(2, options, beside);
    }
}

/* -------------------------------------------------------------- checkpoints -- */

#define STEPS_EACH 2

static const char *const STORED[] = {
    "",
    ", \"sherd\": {" MASTER("bf16_beside") "}",
    ", \"sherd\": {" MASTER("bf16_beside") ", " MOMENTS("fp8") "}",
    ", \"sherd\": {" MOMENTS("fp8") "}",
    ", \"sherd\": {" MASTER("bf16") ", " MOMENTS("bf16") "}",
};
#define NUM_STORED (sizeof(STORED) / sizeof(STORED[0]))

typedef struct run {
    const char *from, *to; /* top level keys before and after the load */
    const char *folder;    /* where the first half saves and the second loads; NULL: neither */
    const char *zero;      /* further keys of zero_optimization */
    int         stage;
    int         is_second; /* the half after the load */
    uint64_t    fingerprint;
    uint64_t    state; /* hash of the moments, after the load or the first steps */
} run;

static uint64_t state_hash(rig *r)
{
    static const sherd_value VALUES[] = {"exp_avg", "exp_avg_sq"};
    uint64_t                 hash     = 0;

    for (int p = 0; p < r->num_params; p++) {
        float *x = calloc(r->params[p].elems, sizeof(*x));

        for (size_t v = 0; v < 2; v++) {
            CHECK_OK(sherd_param_read(r->engine, r->params[p].handle, VALUES[v], 0,
                                      r->params[p].elems, x));
            for (size_t i = 0; i < r->params[p].elems; i++) {
                uint32_t bits;

                memcpy(&bits, &x[i], sizeof(bits));
                hash = hash * 1099511628211u + bits;
            }
        }
        free(x);
    }
    return hash;
}

static void run_body(sherd_world *world, void *ctx)
{
    run        *own = ctx;
    char        top[256];
    rig_options options = {.stage = own->stage, .dtype = SHERD_BF16, .top = top, .zero = own->zero};
    rig         r;
    uint64_t    fingerprint;
    uint64_t    state;

    (void)snprintf(top, sizeof(top), ", \"deterministic\": true%s",
                   own->is_second ? own->to : own->from);
    options.accumulation = 6 / sherd_world_size(world);
    rig_open(&r, world, &options);
    rig_three(&r, 700);
    rig_seal(&r);
    if (own->is_second) {
        CHECK_OK(sherd_checkpoint_load(r.engine, own->folder, NULL, NULL));
        r.micro = STEPS_EACH * options.accumulation;
    } else {
        (void)rig_train(&r, STEPS_EACH * options.accumulation);
    }
    if (own->folder != NULL && !own->is_second) {
        CHECK_OK(sherd_checkpoint_save(r.engine, own->folder, "t", NULL));
    }
    state = state_hash(&r);
    if (own->folder == NULL || own->is_second) {
        (void)rig_train(&r, STEPS_EACH * options.accumulation);
    }
    fingerprint = rig_fingerprint(&r);
    rig_close(&r);
    if (sherd_world_rank(world) == 0) {
        own->fingerprint = fingerprint;
        own->state       = state;
    }
}

/* A run that loads with the same encodings, on another world and at another stage, goes on as if
 * nothing had been saved and loaded. */
static void a_run_goes_on_from_its_checkpoint(void)
{
    for (size_t i = 1; i < NUM_STORED; i++) {
        char folder[512];
        run  whole = {.from = STORED[i], .stage = 2};
        run  first = {.from = STORED[i], .folder = folder, .stage = 1};
        run  second;

        (void)snprintf(folder, sizeof(folder), "%s/same%zu", test_scratch(), i);
        second           = first;
        second.to        = STORED[i];
        second.is_second = 1;
        second.stage     = 3;
        test_world(2, run_body, &whole);
        test_world(3, run_body, &first);
        test_world(2, run_body, &second);
        CHECK_INT(whole.state, first.state);
        CHECK_INT(whole.state, second.state);
        CHECK_INT(whole.fingerprint, second.fingerprint);
    }
}

/* State on storage is saved and loaded as any other state. */
static void stored_state_goes_on_from_its_checkpoint(void)
{
    needs_storage();
    for (size_t i = 1; i < NUM_STORED; i++) {
        char folder[512];
        char keys[1024];
        run  whole  = {.from = STORED[i], .stage = 2};
        run  first  = {.from = STORED[i], .folder = folder, .stage = 1};
        run  second = {
             .from = STORED[i], .to = STORED[i], .folder = folder, .stage = 3, .is_second = 1};

        (void)snprintf(folder, sizeof(folder), "%s/stored%zu", test_scratch(), i);
        first.zero = stored_keys(0, keys);
        test_world(2, run_body, &whole);
        test_world(3, run_body, &first);
        CHECK_INT(whole.state, first.state);
        second.zero = stored_keys(i % 2 == 0 ? 0 : 4, keys);
        test_world(2, run_body, &second);
        CHECK_INT(whole.state, second.state);
        CHECK_INT(whole.fingerprint, second.fingerprint);
        second.zero = NULL;
        test_world(1, run_body, &second);
        CHECK_INT(whole.fingerprint, second.fingerprint);
    }
}

/* Loads checkpoints of any encoding with any other. What is read back does not depend on how many
 * ranks load it, and between lossless encodings nothing is lost. */
static void a_checkpoint_of_any_encoding_is_loaded_as_any_other(void)
{
    for (size_t i = 0; i < NUM_STORED; i++) {
        for (size_t k = IS_SHORT ? i % 2 : 0; k < NUM_STORED; k += IS_SHORT ? 2 : 1) {
            char folder[512];
            run  first = {.from = STORED[i], .folder = folder, .stage = 1};
            run  alone = {.to = STORED[k], .folder = folder, .stage = 0, .is_second = 1};
            run  three = {.to = STORED[k], .folder = folder, .stage = 3, .is_second = 1};

            (void)snprintf(folder, sizeof(folder), "%s/any%zu-%zu", test_scratch(), i, k);
            test_world(2, run_body, &first);
            test_world(1, run_body, &alone);
            test_world(3, run_body, &three);
            CHECK_INT(alone.state, three.state);
            CHECK_INT(alone.fingerprint, three.fingerprint);
            if (k <= 1) {
                CHECK_INT(first.state, alone.state);
            }
        }
    }
}

static char warned[4096];

static void warning_keep(void *ctx, sherd_log_level level, const char *line)
{
    size_t len = strlen(warned);

    (void)ctx;
    if (level <= SHERD_LOG_WARN) {
        (void)snprintf(warned + len, sizeof(warned) - len, "%s\n", line);
    }
}

/* Returns what the log says when a checkpoint of the encoding STORED[from] is loaded as
 * STORED[to]. */
static const char *loaded_with(size_t from, size_t to)
{
    char folder[512];
    run  first  = {.from = STORED[from], .folder = folder, .stage = 1};
    run  second = {.to = STORED[to], .folder = folder, .stage = 2, .is_second = 1};

    (void)snprintf(folder, sizeof(folder), "%s/loss%zu-%zu", test_scratch(), from, to);
    test_world(2, run_body, &first);
    warned[0] = '\0';
    sherd_log_set(warning_keep, NULL, SHERD_LOG_WARN);
    test_world(2, run_body, &second);
    sherd_log_set(NULL, NULL, SHERD_LOG_WARN);
    return warned;
}

static void a_load_that_loses_bits_warns(void)
{
    test_check_contains(__FILE__, __LINE__, loaded_with(0, 3),
                        "the state is rounded while it is loaded (exp_avg from fp32 to fp8, "
                        "exp_avg_sq from fp32 to fp8)");
    test_check_contains(
        __FILE__, __LINE__, loaded_with(1, 4),
        "rounded while it is loaded (master from bf16_beside to bf16, exp_avg from fp32 to bf16");
    test_check_contains(__FILE__, __LINE__, loaded_with(4, 2), "exp_avg from bf16 to fp8");
    CHECK(strstr(warned, "master from") == NULL);
}

static void a_load_that_loses_nothing_does_not(void)
{
    static const size_t PAIRS[][2] = {{0, 1}, {1, 0}, {2, 2}, {3, 0}, {4, 4}, {4, 1}};

    for (size_t i = 0; i < sizeof(PAIRS) / sizeof(PAIRS[0]); i++) {
        CHECK(strstr(loaded_with(PAIRS[i][0], PAIRS[i][1]), "rounded") == NULL);
    }
}

/* ---------------------------------------------------------- what rests counts -- */

#define RESUMED ON_STORAGE(", \"resume\": true")

/* Moments at which the state was made by something else than an update. */
enum { AFTER_FILL, AFTER_WRITE, AFTER_LOAD, MOMENTS_OF_STATE };

typedef struct resting {
    const char *top, *zero, *folder; /* the folder has a checkpoint of fp32 */
    int         stage;
    int         leaves_at;   /* the moment at which the run ends and leaves its state; -1: none */
    uint64_t    fingerprint; /* of what it left */
} resting;

/* The report of a step that is skipped has the fingerprint of what rests. */
static void expect_skipped_step_tells_what_rests(rig *r)
{
    sherd_step_report report;

    rig_acquire(r, 0, SHERD_BACKWARD);
    rig_poke(r, 0, 5, INFINITY);
    rig_release(r, 0, SHERD_BACKWARD);
    report = rig_step(r);
    CHECK_INT(0, report.was_updated);
    CHECK_INT(rig_fingerprint(r), report.fingerprint);
}

/* An update on a drive goes back to what rested before it. */
static void expect_update_is_undone(rig *r, const resting *own)
{
    uint64_t before = rig_fingerprint(r);

    (void)rig_train(r, 1);
    if (own->zero != NULL) {
        CHECK_OK(sherd_step_undo(r->engine));
        CHECK_INT(before, rig_fingerprint(r));
    }
}

static void values_write(rig *r)
{
    float x[333];

    for (size_t i = 0; i < 333; i++) {
        x[i] = 0.0123456f * (float)i - 1.7f;
    }
    x[17] = NAN;
    CHECK_OK(sherd_param_write(r->engine, r->params[1].handle, SHERD_MASTER, 431, 333, x));
    x[17] = 1.1f;
    CHECK_OK(sherd_param_write(r->engine, r->params[1].handle, SHERD_MASTER, 431, 333, x));
}

static void state_make(rig *r, const resting *own, int moment)
{
    if (moment == AFTER_WRITE) {
        values_write(r);
    } else if (moment == AFTER_LOAD) {
        CHECK_OK(sherd_checkpoint_load(r->engine, own->folder, "t", NULL));
    }
}

static void resting_open(rig *r, sherd_world *world, const resting *own)
{
    rig_options options = {
        .stage = own->stage, .dtype = SHERD_BF16, .top = own->top, .zero = own->zero};

    rig_open(r, world, &options);
    rig_three(r, 700);
    rig_seal(r);
}

static void rest_body(sherd_world *world, void *ctx)
{
    resting *own = ctx;
    rig      r;

    resting_open(&r, world, own);
    for (int moment = AFTER_FILL; moment < MOMENTS_OF_STATE; moment++) {
        state_make(&r, own, moment);
        if (moment == own->leaves_at) {
            uint64_t fingerprint = rig_fingerprint(&r);

            if (sherd_world_rank(world) == 0) {
                own->fingerprint = fingerprint;
            }
            CHECK_OK(sherd_engine_keep_state(r.engine, 1));
            break;
        }
        CHECK_OK(sherd_checkpoint_save(r.engine, own->folder, "own", NULL));
        expect_skipped_step_tells_what_rests(&r);
        expect_update_is_undone(&r, own);
    }
    rig_close(&r);
}

static void resume_body(sherd_world *world, void *ctx)
{
    const resting    *own = ctx;
    sherd_engine_info info;
    rig               r;

    resting_open(&r, world, own);
    sherd_engine_info_init(&info);
    CHECK_OK(sherd_engine_query(r.engine, &info));
    CHECK_INT(1, info.is_resumed);
    CHECK_INT(own->fingerprint, rig_fingerprint(&r));
    expect_update_is_undone(&r, own);
    rig_close(&r);
}

static const char *fp32_checkpoint(const char *name, char folder[512])
{
    run saved = {.from = STORED[0], .folder = folder, .stage = 1};

    (void)snprintf(folder, 512, "%s/%s", test_scratch(), name);
    test_world(2, run_body, &saved);
    return folder;
}

static void state_that_no_update_made_is_counted_as_it_rests(void)
{
    char        folder[512];
    char        keys[1024];
    const char *checkpoint = fp32_checkpoint("rest", folder);

    (void)keys;
    for (size_t i = 0; i < NUM_STORED; i++) {
        for (int stage = IS_SHORT ? 3 : 0; stage <= 3; stage++) {
            resting own = {.top = STORED[i], .folder = checkpoint, .stage = stage, .leaves_at = -1};
            int     world_size = 1 + (int)(i + (size_t)stage) % (MOST_RANKS < 3 ? MOST_RANKS : 3);

            test_world(world_size, rest_body, &own);
#ifdef SHERDI_HAVE_XXHASH
            if (stage > 0) {
                own.zero = stored_keys(stage == 3 ? 4 : 0, keys);
                test_world(world_size, rest_body, &own);
            }
#endif
        }
    }
}

static void state_that_no_update_made_is_resumed(void)
{
    char        folder[512];
    char        keys[1024];
    const char *checkpoint;

    needs_storage();
    checkpoint = fp32_checkpoint("resumed", folder);
    (void)snprintf(keys, sizeof(keys), RESUMED, test_scratch());
    for (size_t i = 0; i < NUM_STORED; i++) {
        for (int moment = AFTER_FILL; moment < MOMENTS_OF_STATE; moment++) {
            resting own        = {.top       = STORED[i],
                                  .zero      = keys,
                                  .folder    = checkpoint,
                                  .stage     = 1 + moment,
                                  .leaves_at = moment};
            int     world_size = 1 + (int)(i + (size_t)moment) % MOST_RANKS % 3;

            test_world(world_size, rest_body, &own);
            test_world(world_size, resume_body, &own);
        }
    }
}

/* -------------------------------------------------------- a negative square -- */

#define NEGATIVE_AT 1037

static void negative_save(sherd_world *world, void *ctx)
{
    rig_options options = {.stage = 1, .dtype = SHERD_BF16};
    float       value   = -0.5f;
    rig         r;

    rig_open(&r, world, &options);
    rig_three(&r, 700);
    rig_seal(&r);
    (void)rig_train(&r, 1);
    CHECK_OK(sherd_param_write(r.engine, r.params[1].handle, "exp_avg_sq", NEGATIVE_AT, 1, &value));
    CHECK_OK(sherd_checkpoint_save(r.engine, ctx, "t", NULL));
    rig_close(&r);
}

typedef struct negative {
    const char *folder, *top;
    int         is_refused;
} negative;

static void negative_load(sherd_world *world, void *ctx)
{
    const negative *own     = ctx;
    rig_options     options = {.stage = 3, .dtype = SHERD_BF16, .top = own->top};
    rig             r;

    rig_open(&r, world, &options);
    rig_three(&r, 700);
    rig_seal(&r);
    if (own->is_refused) {
        CHECK_STATUS(SHERD_E_INVAL, sherd_checkpoint_load(r.engine, own->folder, NULL, NULL));
        if (sherd_world_rank(world) == 1) { /* the rank that owns the element */
            CHECK_ERROR_SAYS("exp_avg_sq of parameter b.w is -0.5 at element 1037");
        }
    } else {
        CHECK_OK(sherd_checkpoint_load(r.engine, own->folder, NULL, NULL));
    }
    rig_close(&r);
}

/* In fp32 and bf16 the sign is stored too, so nothing is lost and nothing is refused. */
static void a_negative_square_is_refused_where_its_sign_is_not_stored(void)
{
    char folder[512];

    (void)snprintf(folder, sizeof(folder), "%s/negative", test_scratch());
    test_world(2, negative_save, folder);
    for (size_t i = 0; i < NUM_STORED; i++) {
        negative load = {.folder = folder, .top = STORED[i], .is_refused = i >= 1 && i <= 3};

        test_world(2, negative_load, &load);
    }
}

/* ------------------------------------------------------------------ values -- */

typedef struct value_run {
    int         stored; /* index into STORED */
    const char *zero;
} value_run;

static void values_body(sherd_world *world, void *ctx)
{
    const value_run *own     = ctx;
    rig_options      options = {
             .stage = 2, .dtype = SHERD_BF16, .top = STORED[own->stored], .zero = own->zero};
    float x[300];
    float back[300];
    rig   r;

    rig_open(&r, world, &options);
    rig_three(&r, 700);
    rig_seal(&r);
    (void)rig_train(&r, 1);
    for (int i = 0; i < 300; i++) {
        /* every encoding can store powers of two; `back` has ties of the master */
        uint32_t bits = 0x3f808000u + 0x10000u * (uint32_t)(i % 3);

        x[i] = 0.25f;
        memcpy(&back[i], &bits, sizeof(bits));
    }
    CHECK_OK(sherd_param_write(r.engine, r.params[0].handle, SHERD_MASTER, 37, 300, back));
    CHECK_OK(sherd_param_write(r.engine, r.params[0].handle, "exp_avg_sq", 37, 300, x));
    CHECK_OK(sherd_param_read(r.engine, r.params[0].handle, SHERD_MASTER, 37, 300, x));
    CHECK_BYTES_EQUAL(back, x, sizeof(x));
    CHECK_OK(sherd_param_read(r.engine, r.params[0].handle, "exp_avg_sq", 37, 300, x));
    for (int i = 0; i < 300; i++) {
        CHECK(x[i] == 0.25f);
    }
    x[7] = -1.0f;
    CHECK_STATUS(SHERD_E_INVAL,
                 sherd_param_write(r.engine, r.params[0].handle, "exp_avg_sq", 0, 300, x));
    if (sherd_world_rank(world) == 0) { /* the rank that owns the range */
        CHECK_ERROR_SAYS("never negative");
    }
    rig_close(&r);
}

static void values_pass_through_the_encoding(void)
{
    char keys[1024];

    for (int stored = 1; stored <= 2; stored++) {
        value_run run = {.stored = stored};

        test_world(2, values_body, &run);
#ifdef SHERDI_HAVE_XXHASH
        run.zero = stored_keys(0, keys);
        test_world(2, values_body, &run);
#endif
    }
    (void)keys;
}

/* Ties that are overwritten leave nothing in the part that had their signs. */
static void written_over_body(sherd_world *world, void *ctx)
{
    /* a tie, and a value that is none */
    static const uint32_t STARTS[]     = {0x3f808000u, 0x3f801234u};
    uint64_t             *fingerprints = ctx;

    for (int i = 0; i < 2; i++) {
        rig_options options = {.stage = 2, .dtype = SHERD_BF16, .top = STORED[i]};
        float       x[300];
        rig         r;

        rig_open(&r, world, &options);
        rig_three(&r, 700);
        rig_seal(&r);
        (void)rig_train(&r, 1);
        for (int turn = 0; turn < 2; turn++) {
            for (uint32_t k = 0; k < 300; k++) {
                uint32_t bits = STARTS[turn] + 0x10000u * (k % 3);

                memcpy(&x[k], &bits, sizeof(bits));
            }
            CHECK_OK(sherd_param_write(r.engine, r.params[0].handle, SHERD_MASTER, 37, 300, x));
        }
        (void)rig_train(&r, 1);
        fingerprints[i] = rig_fingerprint(&r);
        rig_close(&r);
    }
}

static void masters_written_over_leave_no_tie(void)
{
    uint64_t     fingerprints[2];
    sherd_world *world;

    CHECK_OK(sherd_world_self(&world));
    written_over_body(world, fingerprints);
    sherd_world_destroy(world);
    CHECK_INT(fingerprints[0], fingerprints[1]);
}

/* ---------------------------------------------------------------- refusals -- */

static void refuse(const rig_options *options, const char *why)
{
    sherd_world *world;
    rig          r = {.dtype = options->dtype};
    sherd_status status;

    CHECK_OK(sherd_world_self(&world));
    status = rig_create(world, rig_json(options), &r.engine);
    if (status == SHERD_OK) {
        rig_three(&r, 700);
        status = sherd_engine_seal(r.engine);
        CHECK_STATUS(SHERD_E_NOTSUP, status);
    } else {
        CHECK(status == SHERD_E_INVAL || status == SHERD_E_NOTSUP);
    }
    CHECK_ERROR_SAYS(why);
    sherd_engine_destroy(r.engine);
    sherd_world_destroy(world);
}

static void what_cannot_be_had_is_refused_with_the_reason(void)
{
    rig_options options = {.stage = 2, .dtype = SHERD_F16, .top = STORED[1]};

    refuse(&options, "fp16 has other exponents");
    options.dtype = SHERD_F32;
    refuse(&options, "an fp32 parameter is its own master");
    options.dtype = SHERD_BF16;
    options.zero  = ", \"offload_optimizer\": {\"device\": \"cpu\"}";
    refuse(&options, "where its state does");
}

/* ------------------------------------------------------------------ memory -- */

#define MEMORY_ELEMS (3 * 70000 + 3 * 641) /* elements that rig_three declares */

static size_t state_bytes_of(const char *optimizer, const char *top)
{
    rig_options options = {.stage = 1, .dtype = SHERD_BF16, .top = top, .optimizer = optimizer};
    sherd_memory_report report;
    sherd_world        *world;
    rig                 r;

    CHECK_OK(sherd_world_self(&world));
    rig_open(&r, world, &options);
    rig_three(&r, 70000);
    rig_seal(&r);
    (void)rig_train(&r, 1);
    sherd_memory_report_init(&report);
    CHECK_OK(sherd_engine_memory(r.engine, &report));
    CHECK_INT(report.state_planned, report.state_held);
    rig_close(&r);
    sherd_world_destroy(world);
    return report.state_planned;
}

static size_t state_bytes(const char *top)
{
    return state_bytes_of("AdamW", top);
}

/* Checks the bytes, up to the padding of three blocks. */
static void check_bytes(size_t elems_times, size_t bytes)
{
    CHECK(bytes >= elems_times && bytes < elems_times + 3 * (SHERD_ALIGN_BYTES + 64 * 12));
}

static void state_takes_the_bytes_of_its_encodings(void)
{
    check_bytes(MEMORY_ELEMS * 12, state_bytes(STORED[0]));
    check_bytes(MEMORY_ELEMS * 10, state_bytes(STORED[1]));
    /* a plane of ties, and a scale for each chunk of either moment */
    check_bytes(MEMORY_ELEMS / 64 * (136 + 2 * 68), state_bytes(STORED[2]));
    check_bytes(MEMORY_ELEMS * 6, state_bytes(STORED[4]));
    /* the sign of a sum of squares is free for the tie; that of a momentum is not */
    check_bytes(MEMORY_ELEMS * 6, state_bytes_of("Adagrad", STORED[1]));
    check_bytes(MEMORY_ELEMS / 64 * (136 + 256), state_bytes_of("Lion", STORED[1]));
    check_bytes(MEMORY_ELEMS / 64 * (136 + 68), state_bytes_of("Lion", STORED[2]));
    check_bytes(MEMORY_ELEMS / 64 * (136 + 68), state_bytes_of("Adagrad", STORED[2]));
}

static const test_case CASES[] = {
    CASE(beside_has_the_bits_of_fp32),
    CASE(beside_in_host_memory_has_the_bits_of_fp32),
    CASE(beside_has_the_bits_of_fp32_by_every_optimizer),
    CASE(beside_on_storage_has_the_bits_of_fp32),
    CASE(an_update_reads_ten_bytes_and_writes_twelve),
    CASE(rounded_state_has_the_same_bits_in_every_layout),
    CASE(beside_with_rounded_moments_has_the_bits_of_fp32_with_them),
    CASE(a_run_goes_on_from_its_checkpoint),
    CASE(stored_state_goes_on_from_its_checkpoint),
    CASE(a_checkpoint_of_any_encoding_is_loaded_as_any_other),
    CASE(a_load_that_loses_bits_warns),
    CASE(a_load_that_loses_nothing_does_not),
    CASE(state_that_no_update_made_is_counted_as_it_rests),
    CASE(state_that_no_update_made_is_resumed),
    CASE(a_negative_square_is_refused_where_its_sign_is_not_stored),
    CASE(values_pass_through_the_encoding),
    CASE(masters_written_over_leave_no_tie),
    CASE(what_cannot_be_had_is_refused_with_the_reason),
    CASE(state_takes_the_bytes_of_its_encodings),
};

RUN_MAIN(CASES)
