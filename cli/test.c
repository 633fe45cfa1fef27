/* sherd test: shows on the user's machine that layouts do not change results. Alone, it runs the
 * ranks as threads. Under mpirun, srun or torchrun it uses their world. */
#include "cli/cli.h"
#include "cli/proof.h"
#include "cli/scratch.h"
#include "models/clock.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define GLOBAL_BATCH 24

/* The most space that the rows on a drive need, with some for the file system. */
#define SCRATCH_BYTES ((uint64_t)16 << 20)

/* The column of the fingerprints. */
#define WIDTH 74

/* AdamW is tested in every way. For the other optimizers only their own features are tested:
 * element-wise ones move the same data as AdamW. */
static const proof_optimizer OPTIMIZERS[] = {
    {.name = "AdamW", .params = ""},
    {.name = "Lamb", .params = "", .has_calls = 1},
    {.name = "Lion", .params = ""},
    {.name = "SGD", .params = ", \"momentum\": 0.9"},
    {.name = "Adagrad", .params = ""},
    {.name = "Muon", .params = "", .of_vectors = "AdamW", .has_calls = 1},
};

#define NUM_OPTIMIZERS (sizeof(OPTIMIZERS) / sizeof(OPTIMIZERS[0]))

static const char HELP[] =
    "usage: sherd test [OPTIONS]\n\n"
    "Trains a small model for a few steps in many layouts and compares the fingerprints of the\n"
    "weights. Every stage, number of ranks, accumulation, element type, instruction set, setting\n"
    "and tier (device, cpu, nvme) must give the same bits. Prints a table and one verdict. The\n"
    "exit status is 0 if all layouts agree. Under mpirun, srun or torchrun the ranks of the job\n"
    "are tested together.\n\n"
    "  --backend NAME       cpu or cuda (default: SHERD_BACKEND, else cpu). With cuda each row\n"
    "                       runs on GPUs and on the CPU, and both must give the same bits\n"
    "  --optimizer NAME     adamw, lamb, lion, sgd, adagrad, muon or all (default: all)\n"
    "  --rows WORD          test only the rows whose names contain WORD (default: all rows)\n"
    "  -n, --ranks N        largest number of ranks, which run as threads (default 8)\n"
    "  --nvme-path DIR      folder in which the rows on NVMe make a folder of their own, which\n"
    "                       is removed at the end (default: the current folder, else $TMPDIR or "
    "/tmp)\n"
    "  --time-limit S       longest wait for a rank in a row, in seconds (default 60); a rank\n"
    "                       that does not come is named\n"
    "  --verbose            print a row for each layout, not for each group of layouts\n";

typedef struct test_run {
    sherd_world_params params; /* of every world: its time limit and backend */
    sherd_world_params cpu;    /* the same for the CPU */
    int            has_device; /* 1: the backend is a device, and each row also runs on the CPU */
    const char    *only;       /* only rows whose names contain this; NULL: all */
    const char    *optimizer;  /* the only optimizer; NULL: all */
    sherd_world   *world;      /* the world of the job; NULL: ranks are threads */
    int            rank;
    int            is_verbose;
    int            most_ranks;
    int            limit_s;   /* longest wait for a rank in a row */
    const char    *nvme_path; /* NULL: not set */
    scratch_folder folder;
    char           no_state_files[256]; /* why this build has no state files; "": it has */
    int            rows, failed, skipped;
} test_run;

/* A row of the table: layouts that must all have the fingerprints of `want`. */
typedef struct test_group {
    char                name[96];
    const proof_result *want;
    proof_result        got;    /* of the last layout */
    proof_result        on_cpu; /* of the same layout, if the backend is a device */
    double              start_s;
    int                 is_ok;
    char                why[600];
} test_group;

/* `on_cpu` is printed next to the result of a device. It may be NULL. */
static void row_print(test_run *run, const char *what, int is_ok, const proof_result *on_cpu,
                      const proof_result *got, double seconds, const char *why)
{
    run->rows++;
    run->failed += !is_ok;
    if (run->rank != 0) {
        return;
    }
    (void)printf("%-*s ", WIDTH, what);
    if (run->has_device && on_cpu != NULL) {
        (void)printf("%016llx ", (unsigned long long)on_cpu->fingerprint);
    } else if (run->has_device) {
        (void)printf("%-16s ", "");
    }
    (void)printf("%016llx %7.3f s  %s%s\n", (unsigned long long)got->fingerprint, seconds,
                 is_ok ? "ok" : "DIFFERS ", is_ok ? "" : why);
    (void)fflush(stdout);
}

static void layout_run(test_run *run, int ranks, const proof_layout *layout, proof_result *out)
{
    if (run->world != NULL) {
        proof_run(run->world, layout, out);
    } else {
        proof_run_threads(ranks, &run->params, layout, out);
    }
}

/* Runs the reference: one rank on the CPU at stage 0; everything else as in `layout`. */
static void reference_run(const test_run *run, const proof_layout *layout, int world_size,
                          proof_result *out)
{
    proof_layout alone = *layout;

    alone.stage        = 0;
    alone.accumulation = layout->accumulation * world_size;
    alone.zero_extra   = NULL;
    proof_run_threads(1, &run->cpu, &alone, out);
}

/* ---------------------------------------------------------------- groups -- */

/* Begins a row. Returns 0 if the user did not ask for it. */
static int group_begin(const test_run *run, test_group *group, const proof_result *want)
{
    group->want    = want;
    group->start_s = clock_now_s();
    group->is_ok   = 1;
    group->why[0]  = '\0';
    return run->only == NULL || strstr(group->name, run->only) != NULL;
}

static void group_end(test_run *run, test_group *group)
{
    if (!run->is_verbose) {
        row_print(run, group->name, group->is_ok, &group->on_cpu, &group->got,
                  clock_now_s() - group->start_s, group->why);
    }
}

/* Returns whether a result is as expected; if not, group->why says where it differs. */
static int result_check(test_group *group, const proof_result *got, const proof_layout *layout,
                        const char *where, const char *note)
{
    int step;

    if (proof_is_equal(group->want, got, &step)) {
        return 1;
    }
    if (got->status != SHERD_OK) {
        (void)snprintf(group->why, sizeof(group->why), "stage %d%s%s: %.500s", layout->stage, where,
                       note, got->error);
    } else {
        (void)snprintf(group->why, sizeof(group->why), "at stage %d from step %d on%s%s",
                       layout->stage, step, where, note);
    }
    return 0;
}

/* Runs one layout. `note` is printed after the group's name if the layout has a row of its own. */
static void group_layout(test_run *run, test_group *group, int ranks, const proof_layout *layout,
                         const char *note)
{
    double start_s = clock_now_s();
    int    is_equal;
    char   row[192];

    layout_run(run, ranks, layout, &group->got);
    is_equal = result_check(group, &group->got, layout, "", note);
    if (run->has_device && run->rank == 0) { /* rank 0 runs all ranks on the CPU as threads */
        proof_run_threads(ranks, &run->cpu, layout, &group->on_cpu);
        is_equal &= result_check(group, &group->on_cpu, layout, " on the CPU", note);
    }
    group->is_ok &= is_equal;
    if (run->is_verbose) {
        (void)snprintf(row, sizeof(row), "%s, stage %d%.24s", group->name, layout->stage, note);
        row_print(run, row, is_equal, &group->on_cpu, &group->got, clock_now_s() - start_s,
                  group->why);
    }
}

static void group_stages(test_run *run, test_group *group, int ranks, proof_layout layout,
                         int least_stage, const char *note)
{
    for (layout.stage = least_stage; layout.stage <= 3; layout.stage++) {
        group_layout(run, group, ranks, &layout, note);
        if (group->got.status != SHERD_OK && run->world != NULL) {
            break; /* the world of the job is lost, so all further layouts would fail too */
        }
    }
}

/* ---------------------------------------------------------------- offload -- */

/* Where state, gradients and parameters are stored. The blocks are small, so that there are several
 * to move. */
typedef struct offload_row {
    const char *name;
    const char
        *keys; /* of zero_optimization; %1$s: the folder; %2$s: whether commits are durable */
    int  least_stage;
    int  needs_folder;
    int  needs_state_files;
} offload_row;

#define STATE(more)                                                                                \
    ", \"sub_group_size\": 1024, \"offload_optimizer\": {\"device\": \"nvme\","                    \
    " \"nvme_path\": \"%1$s\", \"durable\": %2$s" more "}"
#define PARAMS                                                                                     \
    ", \"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"%1$s\", \"max_in_cpu\": 0,"      \
    " \"buffer_size\": 1024}"

static const offload_row OFFLOADS[] = {
    {"optimizer on cpu", ", \"sub_group_size\": 1024, \"offload_optimizer\": {\"device\": \"cpu\"}",
     .least_stage = 1},
    {"optimizer on nvme", STATE(""), .least_stage = 1, .needs_folder = 1, .needs_state_files = 1},
    {"optimizer on nvme, ratio 0.3", STATE(", \"ratio\": 0.3"), .least_stage = 1,
     .needs_folder = 1},
    {"parameters on cpu", ", \"offload_param\": {\"device\": \"cpu\"}", .least_stage = 3},
    {"parameters on nvme (max_in_cpu 0)", PARAMS, .least_stage = 3, .needs_folder = 1},
    {"both on nvme, gradients too", STATE(", \"gradients\": \"nvme\"") PARAMS, .least_stage = 3,
     .needs_folder = 1, .needs_state_files = 1},
};

#define NUM_OFFLOADS (sizeof(OFFLOADS) / sizeof(OFFLOADS[0]))

/* Returns the reason why a row cannot be run on this machine, or NULL. */
static const char *offload_lacks(const test_run *run, const offload_row *offload)
{
    if (offload->needs_folder && run->folder.path[0] == '\0') {
        return run->folder.why;
    }
    return offload->needs_state_files && run->no_state_files[0] != '\0' ? run->no_state_files
                                                                        : NULL;
}

static void skipped_print(test_run *run, const char *what, const char *why)
{
    run->skipped++;
    if (run->rank == 0) {
        (void)printf("%-*s skipped: %s\n", WIDTH, what, why);
    }
}

/* Escapes a path for a JSON text. */
static void path_escape(const char *path, char out[2 * SCRATCH_PATH_BYTES])
{
    size_t len = 0;

    for (; *path != '\0'; path++) {
        if (*path == '"' || *path == '\\') {
            out[len++] = '\\';
        }
        out[len++] = *path;
    }
    out[len] = '\0';
}

typedef struct row_ranks {
    const int *ranks; /* [count] */
    int        count;
    int        global_batch; /* micro-batches of all ranks together; 0: as the layout says */
} row_ranks;

/* Runs a row for each way to offload, with all numbers of ranks of `over`. `durable` names the one
 * row whose commits reach the medium. */
static void offload_rows(test_run *run, const char *title, proof_layout layout,
                         const proof_result *want, const row_ranks *over, const char *durable)
{
    char folder[2 * SCRATCH_PATH_BYTES];

    path_escape(run->folder.path, folder);
    for (size_t i = 0; i < NUM_OFFLOADS; i++) {
        const offload_row *offload    = &OFFLOADS[i];
        const char        *lacks      = offload_lacks(run, offload);
        int                is_durable = durable != NULL && strcmp(offload->name, durable) == 0;
        char               keys[2 * SCRATCH_PATH_BYTES * 2 + 512];
        test_group         group;

        (void)snprintf(group.name, sizeof(group.name), "%s: %s%s", title, offload->name,
                       is_durable ? ", durable" : "");
        if (!group_begin(run, &group, want)) {
            continue;
        }
        if (lacks != NULL) {
            skipped_print(run, group.name, lacks);
            continue;
        }
        (void)snprintf(keys, sizeof(keys), offload->keys, folder, is_durable ? "true" : "false");
        layout.zero_extra = keys;
        for (int r = 0; r < over->count; r++) {
            char note[32] = "";

            if (over->global_batch > 0) {
                layout.accumulation = over->global_batch / over->ranks[r];
                (void)snprintf(note, sizeof(note), ", %d rank%s", over->ranks[r],
                               over->ranks[r] > 1 ? "s" : "");
            }
            group_stages(run, &group, over->ranks[r], layout, offload->least_stage, note);
        }
        group_end(run, &group);
    }
}

/* ------------------------------------------------------------------- rows -- */

/* Writes a name such as "deterministic bf16" or "Lamb, default fp32". */
static const char *layout_name(const proof_layout *layout, char out[48])
{
    int is_first = layout->optimizer == &OPTIMIZERS[0];

    (void)snprintf(out, 48, "%s%s%s %s", is_first ? "" : layout->optimizer->name,
                   is_first ? "" : ", ", layout->is_deterministic ? "deterministic" : "default",
                   sherd_dtype_name(layout->dtype));
    return out;
}

static void deterministic_job_rows(test_run *run, proof_layout layout)
{
    int          world_size = sherd_world_size(run->world);
    row_ranks    over       = {.ranks = &world_size, .count = 1};
    proof_result want;
    test_group   group;
    char         name[48];
    char         title[64];

    layout.accumulation = 2;
    reference_run(run, &layout, world_size, &want);
    (void)snprintf(title, sizeof(title), "%s, %d ranks", layout_name(&layout, name), world_size);
    (void)snprintf(group.name, sizeof(group.name), "%s (%s): stages 0-3", title,
                   sherd_world_transport(run->world));
    if (group_begin(run, &group, &want)) {
        group_stages(run, &group, world_size, layout, 0, "");
        group_end(run, &group);
    }
    offload_rows(run, title, layout, &want, &over, NULL);
}

static void deterministic_rows(test_run *run, const proof_optimizer *optimizer, sherd_dtype dtype)
{
    static const int ALL[]  = {1, 2, 3, 4, 6, 8, 0};
    static const int FEW[]  = {1, 2, 8, 0};
    int              is_all = optimizer == &OPTIMIZERS[0] || optimizer->has_calls;
    const int       *ranks  = is_all ? ALL : FEW;
    int              most = run->most_ranks < 3 ? run->most_ranks : 3; /* ranks of an offload row */
    proof_layout     layout = {.optimizer = optimizer, .dtype = dtype, .is_deterministic = 1};
    row_ranks        over   = {
                 .ranks = is_all ? ALL : &most, .count = is_all ? most : 1, .global_batch = GLOBAL_BATCH};
    proof_result want;
    test_group   group;
    char         name[48];
    char         title[64];

    if (run->world != NULL) {
        deterministic_job_rows(run, layout);
        return;
    }
    layout.accumulation = GLOBAL_BATCH;
    reference_run(run, &layout, 1, &want);
    (void)layout_name(&layout, name);
    for (const int *r = ranks; *r != 0 && *r <= run->most_ranks; r++) {
        layout.accumulation = GLOBAL_BATCH / *r;
        (void)snprintf(group.name, sizeof(group.name),
                       "%s, %d rank%s x %d micro-batches: stages 0-3", name, *r, *r > 1 ? "s" : "",
                       layout.accumulation);
        if (group_begin(run, &group, &want)) {
            group_stages(run, &group, *r, layout, 0, "");
            group_end(run, &group);
        }
    }
    (void)snprintf(title, sizeof(title), "%s, %s%d rank%s", name, over.count > 1 ? "1-" : "", most,
                   most > 1 ? "s" : "");
    offload_rows(run, title, layout, &want, &over, NULL);
}

/* The default mode: all stages agree if a step has one micro-batch; settings and offload never
 * change the result. */
static void default_rows(test_run *run, const proof_optimizer *optimizer, sherd_dtype dtype,
                         const char *durable)
{
    static const char *const SETTINGS[] = {
        NULL, ", \"sub_group_size\": 4096", ", \"stage3_prefetch_bucket_size\": 0",
        ", \"overlap_comm\": true", ", \"stage3_max_reuse_distance\": 1e9"};
    proof_layout layout = {.optimizer = optimizer, .dtype = dtype, .accumulation = 1};
    proof_result want;
    test_group   group;
    char         name[48];
    char         title[64];
    int          ranks = run->world != NULL    ? sherd_world_size(run->world)
                         : run->most_ranks < 3 ? run->most_ranks
                                               : 3;
    row_ranks    over  = {.ranks = &ranks, .count = 1};

    if (run->has_device) {
        proof_run_threads(ranks, &run->cpu, &layout, &want);
    } else {
        layout_run(run, ranks, &layout, &want);
    }
    (void)snprintf(title, sizeof(title), "%s, %d rank%s", layout_name(&layout, name), ranks,
                   ranks > 1 ? "s" : "");
    (void)snprintf(group.name, sizeof(group.name), "%s: stages 0-3, 5 settings", title);
    if (group_begin(run, &group, &want)) {
        for (size_t i = 0; i < sizeof(SETTINGS) / sizeof(SETTINGS[0]); i++) {
            layout.zero_extra = SETTINGS[i];
            group_stages(run, &group, ranks, layout, 0, SETTINGS[i] == NULL ? "" : SETTINGS[i]);
        }
        group_end(run, &group);
    }
    offload_rows(run, title, layout, &want, &over, durable);
}

/* Instruction sets. SHERD_ISA is read when a world is created. */
static void isa_rows(test_run *run)
{
    static const char *const ISAS[] = {"scalar", "avx2", "avx512"};
    proof_layout             layout = {
                    .optimizer = OPTIMIZERS, .dtype = SHERD_BF16, .accumulation = 12, .is_deterministic = 1};
    const char  *before = getenv("SHERD_ISA");
    char        *kept   = before == NULL ? NULL : strdup(before);
    proof_result want;

    reference_run(run, &layout, 2, &want);
    for (size_t i = 0; i < sizeof(ISAS) / sizeof(ISAS[0]); i++) {
        test_group   group;
        sherd_world *probe;

        (void)setenv("SHERD_ISA", ISAS[i], 1);
        if (sherd_world_self(&probe) != SHERD_OK) {
            continue; /* this machine does not have these instructions */
        }
        sherd_world_destroy(probe);
        (void)snprintf(group.name, sizeof(group.name), "instruction set %s, 2 ranks: stages 0-3",
                       ISAS[i]);
        if (group_begin(run, &group, &want)) {
            group_stages(run, &group, 2, layout, 0, "");
            group_end(run, &group);
        }
    }
    if (kept != NULL) {
        (void)setenv("SHERD_ISA", kept, 1);
        free(kept);
    } else {
        (void)unsetenv("SHERD_ISA");
    }
}

/* The test must be able to fail, so this row has layouts whose results must differ. */
static void control_row(test_run *run)
{
    proof_layout one = {
        .optimizer = OPTIMIZERS, .dtype = SHERD_BF16, .accumulation = 2, .stage = 2};
    proof_layout two = {
        .optimizer = OPTIMIZERS, .dtype = SHERD_BF16, .accumulation = 3, .stage = 2};
    const char  *what = "control: the default mode on 3 and on 2 ranks must differ";
    proof_result a;
    proof_result b;
    double       start = clock_now_s();

    if (run->only != NULL && strstr(what, run->only) == NULL) {
        return;
    }
    proof_run_threads(3, &run->params, &one, &a);
    proof_run_threads(2, &run->params, &two, &b);
    row_print(run, what,
              a.status == SHERD_OK && b.status == SHERD_OK && a.fingerprint != b.fingerprint, NULL,
              &b, clock_now_s() - start, "(it does not: the comparison is blind)");
}

static void optimizer_rows(test_run *run, const proof_optimizer *optimizer)
{
    int is_first = optimizer == &OPTIMIZERS[0];

    if (run->optimizer != NULL && strcasecmp(run->optimizer, optimizer->name) != 0) {
        return;
    }
    if (is_first) {
        deterministic_rows(run, optimizer, SHERD_F32);
    }
    deterministic_rows(run, optimizer, SHERD_BF16);
    default_rows(run, optimizer, SHERD_F32, NULL);
    if (is_first) {
        default_rows(run, optimizer, SHERD_BF16, "optimizer on nvme");
    }
}

static void rows_all(test_run *run)
{
    for (size_t i = 0; i < NUM_OPTIMIZERS; i++) {
        optimizer_rows(run, &OPTIMIZERS[i]);
    }
    if (run->world != NULL) {
        return;
    }
    if (!run->has_device) {
        isa_rows(run);
    }
    if (run->most_ranks >= 3) {
        control_row(run);
    }
}

static int test_all(test_run *run)
{
    if (run->rank == 0 && run->has_device) {
        (void)printf("%-*s %-16s %-16s\n", WIDTH, "layouts", "cpu", run->params.backend);
    } else if (run->rank == 0) {
        (void)printf("%-*s %-16s\n", WIDTH, "layouts", "fingerprint");
    }
    rows_all(run);
    if (run->rows + run->skipped == 0) {
        (void)fprintf(stderr, "sherd: no row has '%s' in its name\n", run->only);
        return 2;
    }
    if (run->rank == 0) {
        (void)printf("\n%s: %d of %d rows agree", run->failed == 0 ? "PASS" : "FAIL",
                     run->rows - run->failed, run->rows);
        if (run->skipped > 0) {
            (void)printf(", %d skipped", run->skipped);
        }
        (void)printf("\n");
    }
    return run->failed == 0 ? 0 : 1;
}

static sherd_status file_ignore(void *ctx, const sherd_state_file *file)
{
    (void)ctx;
    (void)file;
    return SHERD_OK;
}

/* Runs the test with a folder for the rows on NVMe. If the user named a folder, it must be
 * usable. */
static int test_with_folder(test_run *run)
{
    int failed;

    if (scratch_make(run->world, run->nvme_path, SCRATCH_BYTES, &run->folder) != 0 &&
        run->nvme_path != NULL) {
        if (run->rank == 0) {
            (void)fprintf(stderr, "sherd: --nvme-path: %s\n", run->folder.why);
        }
        return 1;
    }
    if (run->folder.path[0] != '\0' &&
        sherd_state_files_find(run->folder.path, file_ignore, NULL) == SHERD_E_NOTSUP) {
        (void)snprintf(run->no_state_files, sizeof(run->no_state_files), "%.250s",
                       sherd_last_error());
    }
    failed = test_all(run);
    scratch_remove(run->world);
    return failed;
}

static int test_in_world(test_run *run)
{
    int failed;

    if (sherd_world_from_env(&run->params, &run->world) != SHERD_OK) {
        return cli_fail();
    }
    run->rank = sherd_world_rank(run->world);
    if (sherd_world_size(run->world) == 1) {
        sherd_world_destroy(run->world);
        run->world = NULL;
    }
    failed = test_with_folder(run);
    sherd_world_destroy(run->world);
    return failed;
}

/* Chooses the backend of the worlds. Returns 0, or the exit status if there is no device. */
static int backend_choose(test_run *run, const char *backend)
{
    if (backend == NULL) {
        backend = getenv("SHERD_BACKEND");
    }
    if (backend == NULL || backend[0] == '\0') {
        backend = "cpu";
    }
    run->has_device     = strcmp(backend, "cpu") != 0;
    run->params.backend = backend;
    run->cpu            = run->params;
    run->cpu.backend    = "cpu";
    return run->has_device && sherd_device_count(backend) == 0 ? cli_fail() : 0;
}

static int optimizer_take(const cli_option *option, const char *text, void *field)
{
    const char **only = field;

    (void)option;
    *only = strcmp(text, "all") == 0 ? NULL : text;
    for (size_t i = 0; i < NUM_OPTIMIZERS; i++) {
        if (strcasecmp(text, OPTIMIZERS[i].name) == 0) {
            return 1;
        }
    }
    return *only == NULL;
}

static const cli_option LIST[] = {
    CLI_NUMBER("ranks", 'n', test_run, most_ranks, 1, 64, "wants 1 to 64"),
    CLI_TEXT("backend", 0, test_run, params.backend),
    CLI_READ("optimizer", 0, test_run, optimizer, optimizer_take,
             "wants adamw, lamb, lion, sgd, adagrad, muon or all"),
    CLI_TEXT("rows", 0, test_run, only),
    CLI_TEXT("nvme-path", 0, test_run, nvme_path),
    CLI_NUMBER("time-limit", 't', test_run, limit_s, 1, 86400, "wants 1 to 86400 seconds"),
    CLI_FLAG("verbose", 'v', test_run, is_verbose),
    {0}};
static const cli_options OPTIONS = {"test", HELP, LIST, 0};

int cli_test(int argc, char **argv)
{
    test_run run = {.most_ranks = 8, .limit_s = 60};
    int      status;

    sherd_world_params_init(&run.params);
    status = cli_options_read(&OPTIONS, argc, argv, &run);
    if (status >= 0) {
        return status;
    }
    run.params.timeout_ns = (int64_t)run.limit_s * 1000000000;
    if (backend_choose(&run, run.params.backend) != 0) {
        return 1;
    }
    if (scratch_guard_begin() != 0) { /* before a world starts threads */
        (void)fprintf(stderr, "sherd: no thread for the signals: %s\n", strerror(errno));
        return 1;
    }
    status = test_in_world(&run);
    scratch_guard_end();
    return status;
}
