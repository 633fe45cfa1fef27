/* State, gradients and parameters that rest elsewhere than on the device: the same bits as the
 * training written plainly, for every offload, stage, number of ranks and way of driving the
 * engine; bytes counted as planned; the undo. Real files on a real file system. */
#include "engine/run/engine_impl.h"
#include "engine/report.h"
#include "sherd_build.h"
#include "tests/engine/rig.h"
#include "tests/engine/toy.h"
#include "tests/lib/check.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Keys of zero_optimization; %s is the folder. */
typedef struct layout {
    const char *name;
    const char *keys;
    int         least_stage;
} layout;

/* Few commits reach the medium here: it takes longer than all the rest. */
#define DURABLE_STATE(device, more)                                                                \
    ", \"offload_optimizer\": {\"device\": \"" device "\", \"nvme_path\": \"%s\"" more "}"
#define STATE(device, more) DURABLE_STATE(device, ", \"durable\": false" more)
#define PARAMS(device, more)                                                                       \
    ", \"offload_param\": {\"device\": \"" device "\", \"nvme_path\": \"%s\"" more "}"
#define SMALL_BLOCKS ", \"sub_group_size\": 2048"

static const layout LAYOUTS[] = {
    {"optimizer cpu", STATE("cpu", ""), 1},
    {"optimizer nvme", DURABLE_STATE("nvme", ""), 1},
    {"optimizer nvme, small blocks", SMALL_BLOCKS STATE("nvme", ""), 1},
    {"optimizer nvme, tiny blocks", ", \"sub_group_size\": 64" STATE("nvme", ""), 1},
    {"optimizer cpu, ratio 0.3", SMALL_BLOCKS STATE("cpu", ", \"ratio\": 0.3"), 1},
    {"optimizer nvme, ratio 0.3", SMALL_BLOCKS STATE("nvme", ", \"ratio\": 0.3"), 1},
    {"optimizer nvme, serial",
     SMALL_BLOCKS STATE("nvme", ", \"pipeline_read\": false, \"pipeline_write\": false"), 1},
    {"optimizer nvme, one buffer", SMALL_BLOCKS STATE("nvme", ", \"buffer_count\": 1"), 1},
    {"optimizer nvme, verified", SMALL_BLOCKS STATE("nvme", ", \"verify_reads\": true"), 1},
    {"gradients nvme", SMALL_BLOCKS STATE("nvme", ", \"gradients\": \"nvme\", \"buffer_count\": 2"),
     1},
    {"gradients nvme, one buffer",
     SMALL_BLOCKS STATE("nvme", ", \"gradients\": \"nvme\", \"buffer_count\": 1"), 1},
    {"optimizer cpu, sums on the device", SMALL_BLOCKS STATE("cpu", ", \"accumulate\": \"device\""),
     2},
    {"optimizer cpu, sums on the host", SMALL_BLOCKS STATE("cpu", ", \"accumulate\": \"cpu\""), 2},
    {"gradients nvme, sums on the host",
     SMALL_BLOCKS STATE("nvme", ", \"gradients\": \"nvme\", \"accumulate\": \"cpu\""), 2},
    {"parameters cpu", PARAMS("cpu", ""), 3},
    {"parameters nvme, all in cpu", PARAMS("nvme", ""), 3},
    {"parameters nvme", SMALL_BLOCKS PARAMS("nvme", ", \"max_in_cpu\": 0"), 3},
    {"parameters nvme, some in cpu", SMALL_BLOCKS PARAMS("nvme", ", \"max_in_cpu\": 3000"), 3},
    {"parameters nvme, one buffer",
     SMALL_BLOCKS PARAMS("nvme", ", \"max_in_cpu\": 0, \"buffer_count\": 1"), 3},
    {"both cpu", STATE("cpu", "") PARAMS("cpu", ""), 3},
    {"optimizer cpu, parameters nvme",
     SMALL_BLOCKS STATE("cpu", "") PARAMS("nvme", ", \"max_in_cpu\": 0"), 3},
    {"optimizer nvme, parameters cpu", SMALL_BLOCKS STATE("nvme", "") PARAMS("cpu", ""), 3},
    {"both nvme",
     SMALL_BLOCKS STATE("nvme", ", \"gradients\": \"nvme\"") PARAMS("nvme", ", \"max_in_cpu\": 0"),
     3},
    {"both nvme, ratio 0.3",
     SMALL_BLOCKS STATE("nvme", ", \"ratio\": 0.3") PARAMS("nvme", ", \"max_in_cpu\": 0"), 3},
};

#define NUM_LAYOUTS (sizeof(LAYOUTS) / sizeof(LAYOUTS[0]))

/* The keys with the folder in them, in `out`. */
static const char *layout_keys(const layout *what, char out[1024])
{
    CHECK(what->keys != NULL);
    (void)snprintf(out, 1024, what->keys, test_scratch(), test_scratch());
    return out;
}

/* A split master needs its parameter where the state is, or the state on storage
 * (SHERD_TEST_STATE). */
static int layout_has_halves(const layout *what)
{
    const char *given = getenv("SHERD_TEST_STATE");

    return given == NULL || strstr(given, "bf16_beside") == NULL ||
           (strstr(what->keys, "offload_optimizer\": {\"device\": \"nvme\"") != NULL &&
            strcmp(what->name, "both nvme, ratio 0.3") != 0) ||
           strcmp(what->name, "both cpu") == 0;
}

/* Without checksums in the build the whole state cannot rest on a drive. */
static int layout_is_possible(const layout *what)
{
#ifdef SHERDI_HAVE_XXHASH
    return layout_has_halves(what);
#else
    return layout_has_halves(what) &&
               strstr(what->keys, "offload_optimizer\": {\"device\": \"nvme\"") == NULL ||
           strstr(what->keys, "ratio") != NULL;
#endif
}

static void expect_reference(int world_size, const toy_options *options, const char *name)
{
    toy_result want = {0};
    toy_result got  = {0};

    toy_reference(world_size, options, &want);
    toy_train_threads(world_size, options, &got);
    if (want.fingerprint != got.fingerprint ||
        memcmp(want.grad_norm, got.grad_norm, sizeof(want.grad_norm)) != 0) {
        test_fail(__FILE__, __LINE__,
                  "%s: stage %d, %d ranks, accumulation %d, %s: fingerprint %016llx, norm %.17g; "
                  "the plain training has %016llx, %.17g",
                  name, options->stage, world_size, options->accumulation,
                  sherd_dtype_name(options->dtype), (unsigned long long)got.fingerprint,
                  got.grad_norm[0], (unsigned long long)want.fingerprint, want.grad_norm[0]);
    }
    CHECK_INT(got.memory.total_planned, got.memory.total_held);
}

static void expect_reference_everywhere(toy_options options, const int *ranks, size_t num_ranks)
{
    static int
         case_number; /* so that another case has another stage of the same layout and ranks */
    char keys[1024];

    case_number++;
    for (size_t i = 0; i < NUM_LAYOUTS; i++) {
        if (!layout_is_possible(&LAYOUTS[i])) {
            continue;
        }
        options.zero_extra = layout_keys(&LAYOUTS[i], keys);
        for (size_t r = 0; r < num_ranks; r++) {
            for (options.stage = LAYOUTS[i].least_stage;
                 options.stage <= 3 && toy_takes_ranks(ranks[r]); options.stage++) {
                if ((options.is_bound && options.stage == 3) ||
                    !toy_takes_stage(options.stage, LAYOUTS[i].least_stage,
                                     (int)(i + r) + case_number)) {
                    continue;
                }
                expect_reference(ranks[r], &options, LAYOUTS[i].name);
            }
        }
    }
}

static const int ALL_RANKS[] = {1, 2, 3, 4, 7, 8};
static const int FEW_RANKS[] = {1, 3};

static void offload_bf16_equals_unsharded(void)
{
    expect_reference_everywhere((toy_options){.dtype = SHERD_BF16, .clip = 1, .accumulation = 1},
                                ALL_RANKS, 6);
}

static void offload_bf16_accumulated_equals_unsharded(void)
{
    expect_reference_everywhere((toy_options){.dtype = SHERD_BF16, .clip = 1, .accumulation = 3},
                                FEW_RANKS, 2);
}

static void offload_fp32_equals_unsharded(void)
{
    expect_reference_everywhere((toy_options){.dtype = SHERD_F32, .clip = 1, .accumulation = 1},
                                FEW_RANKS, 2);
}

static void offload_fp16_accumulated_equals_unsharded(void)
{
    expect_reference_everywhere((toy_options){.dtype = SHERD_F16, .clip = 1, .accumulation = 2},
                                FEW_RANKS, 2);
}

static void offload_bound_equals_unsharded(void)
{
    expect_reference_everywhere(
        (toy_options){.dtype = SHERD_BF16, .clip = 1, .accumulation = 2, .is_bound = 1}, FEW_RANKS,
        2);
}

static void offload_driven_otherwise_equals_unsharded(void)
{
    expect_reference_everywhere((toy_options){.dtype         = SHERD_BF16,
                                              .clip          = 1,
                                              .accumulation  = 2,
                                              .is_off_plan   = 1,
                                              .has_eval      = 1,
                                              .has_recompute = 1,
                                              .short_window  = 1},
                                FEW_RANKS, 2);
}

static void offload_without_a_unit_equals_unsharded(void)
{
    expect_reference_everywhere(
        (toy_options){.dtype = SHERD_BF16, .clip = 1, .accumulation = 2, .skips_unit = 1},
        FEW_RANKS, 2);
}

static void offload_deterministic_equals_without(void)
{
    toy_options options = {.dtype        = SHERD_BF16,
                           .clip         = 1,
                           .accumulation = 2,
                           .top_extra    = ", \"deterministic\": true"};
    toy_result  want;
    toy_result  got;
    char        keys[1024];

    toy_train_threads(3, &options, &want);
    for (size_t i = 0; i < NUM_LAYOUTS; i++) {
        if (!layout_is_possible(&LAYOUTS[i])) {
            continue;
        }
        options.zero_extra = layout_keys(&LAYOUTS[i], keys);
        for (options.stage = LAYOUTS[i].least_stage; options.stage <= 3; options.stage++) {
            if (!toy_takes_stage(options.stage, LAYOUTS[i].least_stage, (int)i)) {
                continue;
            }
            toy_train_threads(3, &options, &got);
            if (want.fingerprint != got.fingerprint) {
                test_fail(__FILE__, __LINE__, "%s, stage %d: another fingerprint", LAYOUTS[i].name,
                          options.stage);
            }
        }
    }
}

/* ------------------------------------------------------------------ bytes -- */

#define WIDE ((size_t)3 << 13)

/* Four units of many whole pages, so that padding is small. */
static void wide_open(rig *r, sherd_world *world, const rig_options *options)
{
    static const char *const NAMES[] = {"a", "b", "c", "d"};

    rig_open(r, world, options);
    for (int u = 0; u < 4; u++) {
        (void)rig_unit(r, NAMES[u]);
    }
    for (int u = 0; u < 4; u++) {
        char name[16];

        (void)snprintf(name, sizeof(name), "%s.w", NAMES[u]);
        (void)rig_param(r, u, name, WIDE);
    }
    rig_seal(r);
}

static void check_counted(sherd_world *world, void *ctx)
{
    const rig_options       *options = ctx;
    rig                      r;
    sherd_step_report        report = {0};
    const sherdi_plan_moves *moves;
    uint64_t                 micro = (uint64_t)options->accumulation;

    wide_open(&r, world, options);
    (void)rig_train(&r, options->accumulation * 2); /* reading ahead is in its stride */
    report = rig_train(&r, options->accumulation);
    moves  = sherdi_plan_moves_of(r.engine->plan);
    CHECK_INT(moves->micro[SHERDI_MOVES_DOWN] * micro + moves->step[SHERDI_MOVES_DOWN],
              report.link_down_bytes);
    CHECK_INT(moves->micro[SHERDI_MOVES_UP] * micro + moves->step[SHERDI_MOVES_UP],
              report.link_up_bytes);
    CHECK_INT(moves->micro[SHERDI_MOVES_READ] * micro + moves->step[SHERDI_MOVES_READ],
              report.nvme_read_bytes);
    CHECK_INT(moves->micro[SHERDI_MOVES_WRITTEN] * micro + moves->step[SHERDI_MOVES_WRITTEN],
              report.nvme_written_bytes);
    rig_close(&r);
}

static void bytes_are_counted_as_planned(void)
{
    char keys[1024];

    for (size_t i = 0; i < NUM_LAYOUTS; i++) {
        for (int stage = LAYOUTS[i].least_stage; stage <= 3 && layout_is_possible(&LAYOUTS[i]);
             stage++) {
            for (int accumulation = 1; accumulation <= 3; accumulation += 2) {
                int ranks = 1 + ((int)i / 2 + accumulation / 2) % 2; /* long: both */

                if (!toy_takes_stage(stage, LAYOUTS[i].least_stage, (int)i + accumulation / 2)) {
                    continue;
                }
                rig_options options = {.stage        = stage,
                                       .accumulation = accumulation,
                                       .dtype        = SHERD_BF16,
                                       .zero         = layout_keys(&LAYOUTS[i], keys)};

                if (toy_takes_ranks(1) && (ranks == 1 || test_is_long())) {
                    test_world(1, check_counted, &options);
                }
                if (!toy_takes_ranks(1) || ranks == 2 || test_is_long()) {
                    test_world(2, check_counted, &options);
                }
            }
        }
    }
}

/* A window with gradients on the drive that is closed before its last backward, or after it. */
typedef struct closing {
    rig_options       options;
    int               is_late;
    sherd_step_report report;
    size_t            spilled; /* gradients on the drive: none where a device adds them up */
} closing;

static void close_windows(sherd_world *world, void *ctx)
{
    closing          *what = ctx;
    sherd_step_report report;
    rig               r;

    wide_open(&r, world, &what->options);
    for (int micro = 0; micro < 6; micro++) { /* three windows: reading ahead is in its stride */
        if (micro % 2 == 1 && !what->is_late) {
            CHECK_OK(sherd_step_close_window(r.engine));
        }
        rig_micro_batch(&r);
        if (micro % 2 == 1 && what->is_late) {
            CHECK_OK(sherd_step_close_window(r.engine));
        }
        report = rig_step(&r);
    }
    if (sherd_world_rank(world) == 0) {
        what->report  = report;
        what->spilled = r.engine->plan->rings[SHERDI_RING_GRADS].num_extents;
    }
    rig_close(&r);
}

/* Squares are summed where a slice is made, so nobody reads it for the norm. Where it was too late
 * for that, it is read once: of four gradients, the two that are not in a slot anyway. */
static void the_norm_reads_what_nobody_measured(void)
{
    char keys[1024];

    for (int ranks = 1; ranks <= 2; ranks++) {
        closing at[2] = {{.is_late = 0}, {.is_late = 1}};

        for (int is_late = 0; is_late < 2; is_late++) {
            (void)snprintf(keys, sizeof(keys),
                           STATE("nvme", ", \"gradients\": \"nvme\", \"buffer_count\": 2"),
                           test_scratch());
            at[is_late].options = (rig_options){.stage        = 2,
                                                .accumulation = 2,
                                                .dtype        = SHERD_F32,
                                                .clip         = 0.5,
                                                .zero         = keys,
                                                .top = ", \"sherd\": {\"open_windows\": true}"};
            test_world(ranks, close_windows, &at[is_late]);
        }
        CHECK(at[0].report.is_boundary && at[0].report.grad_norm > 0);
        CHECK(at[0].report.grad_norm == at[1].report.grad_norm);
        CHECK_INT(at[0].report.nvme_read_bytes +
                      at[0].spilled / 2 * WIDE * sizeof(float) / (size_t)ranks,
                  at[1].report.nvme_read_bytes);
    }
}

/* The names of all expected files have this; it is the same on all ranks. */
static uint64_t drive_bytes(void)
{
    DIR           *dir   = opendir(test_scratch());
    uint64_t       bytes = 0;
    struct dirent *entry;
    struct stat    info;

    CHECK(dir != NULL);
    while ((entry = readdir(dir)) != NULL) {
        if (entry->d_name[0] != '.' && fstatat(dirfd(dir), entry->d_name, &info, 0) == 0) {
            bytes += (uint64_t)info.st_size;
        }
    }
    (void)closedir(dir);
    return bytes;
}

static void check_drive(const rig *r, sherd_world *world)
{
    sherd_memory_report memory;

    sherd_memory_report_init(&memory);
    CHECK_OK(sherd_engine_memory(r->engine, &memory));
    CHECK_OK(sherd_world_barrier(world));
    CHECK_INT((memory.nvme_state_planned + memory.nvme_index_planned) *
                  (size_t)sherd_world_size(world),
              drive_bytes());
    CHECK_OK(sherd_world_barrier(world));
}

static void check_budget(sherd_world *world, void *ctx)
{
    rig               r;
    sherd_step_report report;
    uint64_t          elems = 4 * WIDE / 2;
    uint64_t          index;

    wide_open(&r, world, ctx);
    (void)rig_train(&r, 2);
    report = rig_train(&r, 1);
    index  = sherdi_plan_moves_of(r.engine->plan)->index_bytes;
    CHECK_INT(elems * 2 + rig_scalars_down(&r), report.link_down_bytes);
    CHECK_INT(elems * 2 + rig_scalars_up(&r), report.link_up_bytes);
    CHECK_INT(elems * 12, report.nvme_read_bytes);
    CHECK_INT(elems * 12 + index, report.nvme_written_bytes);
    CHECK(index < elems);
    check_drive(&r, world);
    rig_close(&r);
}

/* bf16, one micro-batch: 12 read and 12 written per parameter on NVMe, 2 down and 2 up on the
 * link. */
static void the_budget_per_parameter_holds(void)
{
    if (!layout_is_possible(&LAYOUTS[1])) {
        test_skip("no libxxhash in this build");
    }
    for (int stage = 1; stage <= 2; stage++) {
        char        keys[1024];
        rig_options options = {.stage        = stage,
                               .accumulation = 1,
                               .dtype        = SHERD_BF16,
                               .zero         = layout_keys(&LAYOUTS[1], keys)};

        test_world(2, check_budget, &options);
    }
}

static void a_clean_end_leaves_no_file(void)
{
    CHECK_INT(0, test_files(test_scratch(), ""));
}

static const test_case CASES[] = {
    CASE(offload_bf16_equals_unsharded),
    CASE(offload_bf16_accumulated_equals_unsharded),
    CASE(offload_fp32_equals_unsharded),
    CASE(offload_fp16_accumulated_equals_unsharded),
    CASE(offload_bound_equals_unsharded),
    CASE(offload_driven_otherwise_equals_unsharded),
    CASE(offload_without_a_unit_equals_unsharded),
    CASE(offload_deterministic_equals_without),
    CASE(bytes_are_counted_as_planned),
    CASE(the_norm_reads_what_nobody_measured),
    CASE(the_budget_per_parameter_holds),
    CASE(a_clean_end_leaves_no_file),
};

RUN_MAIN(CASES)
