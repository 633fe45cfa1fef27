/* sherd test: proves on the user's machine that layouts do not change results. Alone it plays
 * the ranks as threads; under mpirun, srun or torchrun it uses that world. */
#include "cli/cli.h"
#include "cli/proof.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define GLOBAL_BATCH 24

static const char HELP[] =
    "usage: sherd test [OPTIONS]\n\n"
    "Trains a small model for a few steps in many layouts and compares the fingerprints of the\n"
    "weights: every stage, number of ranks, accumulation, type, instruction set and setting must\n"
    "give the same bits. Prints a table and one verdict; exit status 0 when all agree.\n"
    "Under mpirun, srun or torchrun the ranks of the job are tested together.\n\n"
    "  -n, --ranks N        most ranks to play as threads (default 8)\n"
    "  --time-limit S       longest wait for a rank in a row, in seconds (default 60); a rank\n"
    "                       that does not come is named\n"
    "  --verbose            a row for each layout, not for each group\n";

typedef struct test_run {
    sherd_world_params params; /* of every world: the time limit */
    sherd_world       *world;  /* of the job; NULL: ranks are threads */
    int                rank;
    int                is_verbose;
    int                most_ranks;
    int                rows, failed;
} test_run;

static double now_s(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void row_print(test_run *run, const char *what, int is_ok, const proof_result *got,
                      double seconds, const char *why)
{
    run->rows++;
    run->failed += !is_ok;
    if (run->rank == 0) {
        (void)printf("%-58s %016llx %7.3f s  %s%s\n", what, (unsigned long long)got->fingerprint,
                     seconds, is_ok ? "ok" : "DIFFERS ", is_ok ? "" : why);
        (void)fflush(stdout);
    }
}

static void layout_run(test_run *run, int ranks, const proof_layout *layout, proof_result *out)
{
    if (run->world != NULL) {
        proof_run(run->world, layout, out);
    } else {
        proof_run_threads(ranks, &run->params, layout, out);
    }
}

/* The yardstick: one rank, stage 0, scalar or not, everything else as in `layout`. */
static void reference_run(const proof_layout *layout, int world_size, proof_result *out)
{
    proof_layout alone = *layout;

    alone.stage        = 0;
    alone.accumulation = layout->accumulation * world_size;
    alone.zero_extra   = NULL;
    proof_run_threads(1, NULL, &alone, out);
}

/* One group: the four stages (and what else `extras` says) of one layout against `want`. */
static void group_run(test_run *run, const char *name, int ranks, proof_layout layout,
                      const proof_result *want, const char *const *extras, int num_extras)
{
    proof_result got      = {0};
    double       start    = now_s();
    char         why[600] = "";
    int          is_ok    = 1;

    for (int e = 0; e < num_extras; e++) {
        for (layout.stage = 0; layout.stage <= 3; layout.stage++) {
            int    step;
            double row_start = now_s();
            int    is_equal;
            char   row[192];

            layout.zero_extra = extras[e];
            layout_run(run, ranks, &layout, &got);
            is_equal = proof_is_equal(want, &got, &step);
            if (!is_equal && got.status != SHERD_OK) {
                (void)snprintf(why, sizeof(why), "stage %d: %.500s", layout.stage, got.error);
            } else if (!is_equal) {
                (void)snprintf(why, sizeof(why), "at stage %d from step %d on%s", layout.stage,
                               step, extras[e] == NULL ? "" : extras[e]);
            }
            is_ok &= is_equal;
            if (run->is_verbose) {
                (void)snprintf(row, sizeof(row), "%s, stage %d%.24s", name, layout.stage,
                               extras[e] == NULL ? "" : extras[e]);
                row_print(run, row, is_equal, &got, now_s() - row_start, why);
            }
            if (got.status != SHERD_OK && run->world != NULL) {
                break; /* the job's world is lost; more rows would say the same */
            }
        }
    }
    if (!run->is_verbose) {
        row_print(run, name, is_ok, &got, now_s() - start, why);
    }
}

static const char *const NO_EXTRA[] = {NULL};

static void deterministic_rows(test_run *run, sherd_dtype dtype)
{
    static const int RANKS[] = {1, 2, 3, 4, 6, 8};
    proof_layout     layout  = {.dtype = dtype, .is_deterministic = 1};
    proof_result     want;
    char             name[96];

    if (run->world != NULL) {
        int world_size = sherd_world_size(run->world);

        layout.accumulation = 2;
        reference_run(&layout, world_size, &want);
        (void)snprintf(name, sizeof(name), "deterministic %s: %d ranks (%s), stages 0-3",
                       sherd_dtype_name(dtype), world_size, sherd_world_transport(run->world));
        group_run(run, name, world_size, layout, &want, NO_EXTRA, 1);
        return;
    }
    layout.accumulation = GLOBAL_BATCH;
    reference_run(&layout, 1, &want);
    for (size_t r = 0; r < sizeof(RANKS) / sizeof(RANKS[0]) && RANKS[r] <= run->most_ranks; r++) {
        layout.accumulation = GLOBAL_BATCH / RANKS[r];
        (void)snprintf(
            name, sizeof(name), "deterministic %s: %d rank%s x %d micro-batches, stages 0-3",
            sherd_dtype_name(dtype), RANKS[r], RANKS[r] > 1 ? "s" : "", layout.accumulation);
        group_run(run, name, RANKS[r], layout, &want, NO_EXTRA, 1);
    }
}

/* The default mode: stages agree with one micro-batch a step, settings never matter. */
static void default_rows(test_run *run, sherd_dtype dtype)
{
    static const char *const EXTRAS[] = {
        NULL, ", \"sub_group_size\": 4096", ", \"stage3_prefetch_bucket_size\": 0",
        ", \"overlap_comm\": true", ", \"stage3_max_reuse_distance\": 1e9"};
    proof_layout layout = {.dtype = dtype, .accumulation = 1};
    proof_result want;
    char         name[96];
    int          ranks = run->world != NULL    ? sherd_world_size(run->world)
                         : run->most_ranks < 3 ? run->most_ranks
                                               : 3;

    layout_run(run, ranks, &layout, &want);
    (void)snprintf(name, sizeof(name), "default %s: %d rank%s, stages 0-3, 5 settings",
                   sherd_dtype_name(dtype), ranks, ranks > 1 ? "s" : "");
    group_run(run, name, ranks, layout, &want, EXTRAS, 5);
}

/* Instruction sets: the environment is read when a world is made. */
static void isa_rows(test_run *run)
{
    static const char *const ISAS[] = {"scalar", "avx2", "avx512"};
    proof_layout layout = {.dtype = SHERD_BF16, .accumulation = 12, .is_deterministic = 1};
    const char  *before = getenv("SHERD_ISA");
    char        *kept   = before == NULL ? NULL : strdup(before);
    proof_result want;

    reference_run(&layout, 2, &want);
    for (size_t i = 0; i < sizeof(ISAS) / sizeof(ISAS[0]); i++) {
        char         name[96];
        sherd_world *probe;

        (void)setenv("SHERD_ISA", ISAS[i], 1);
        if (sherd_world_self(&probe) != SHERD_OK) {
            continue; /* not a machine for these instructions */
        }
        sherd_world_destroy(probe);
        (void)snprintf(name, sizeof(name), "instruction set %s: 2 ranks, stages 0-3", ISAS[i]);
        group_run(run, name, 2, layout, &want, NO_EXTRA, 1);
    }
    if (kept != NULL) {
        (void)setenv("SHERD_ISA", kept, 1);
        free(kept);
    } else {
        (void)unsetenv("SHERD_ISA");
    }
}

/* The proof has to be able to fail: the same layouts without the deterministic mode. */
static void control_row(test_run *run)
{
    proof_layout one = {.dtype = SHERD_BF16, .accumulation = 2, .stage = 2};
    proof_layout two = {.dtype = SHERD_BF16, .accumulation = 3, .stage = 2};
    proof_result a;
    proof_result b;
    double       start = now_s();

    proof_run_threads(3, &run->params, &one, &a);
    proof_run_threads(2, &run->params, &two, &b);
    row_print(run, "control: the default mode on 3 and on 2 ranks must differ",
              a.status == SHERD_OK && b.status == SHERD_OK && a.fingerprint != b.fingerprint, &b,
              now_s() - start, "(it does not: the comparison is blind)");
}

static int test_all(test_run *run)
{
    if (run->rank == 0) {
        (void)printf("%-58s %-16s\n", "layouts", "fingerprint");
    }
    deterministic_rows(run, SHERD_F32);
    deterministic_rows(run, SHERD_BF16);
    default_rows(run, SHERD_F32);
    default_rows(run, SHERD_BF16);
    if (run->world == NULL) {
        isa_rows(run);
        if (run->most_ranks >= 3) {
            control_row(run);
        }
    }
    if (run->rank == 0) {
        (void)printf("\n%s: %d of %d rows agree\n", run->failed == 0 ? "PASS" : "FAIL",
                     run->rows - run->failed, run->rows);
    }
    return run->failed == 0 ? 0 : 1;
}

static int read_number(const char *text, int least, int most, int *out)
{
    char *end;
    long  value = strtol(text, &end, 10);

    *out = (int)value;
    return end != text && *end == '\0' && value >= least && value <= most;
}

int cli_test(int argc, char **argv)
{
    static const struct option OPTIONS[] = {{"ranks", required_argument, NULL, 'n'},
                                            {"time-limit", required_argument, NULL, 't'},
                                            {"verbose", no_argument, NULL, 'v'},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, 0}};
    test_run                   run       = {.most_ranks = 8};
    int                        limit_s   = 60;
    int                        option;
    int                        failed;

    while ((option = getopt_long(argc, argv, "n:t:vh", OPTIONS, NULL)) != -1) {
        switch (option) {
        case 'n':
            if (!read_number(optarg, 1, 64, &run.most_ranks)) {
                (void)fprintf(stderr, "sherd: --ranks wants 1 to 64, not '%s'\n", optarg);
                return 2;
            }
            break;
        case 't':
            if (!read_number(optarg, 1, 86400, &limit_s)) {
                (void)fprintf(stderr, "sherd: --time-limit wants seconds, not '%s'\n", optarg);
                return 2;
            }
            break;
        case 'v':
            run.is_verbose = 1;
            break;
        case 'h':
            (void)fputs(HELP, stdout);
            return 0;
        default:
            (void)fputs(HELP, stderr);
            return 2;
        }
    }
    sherd_world_params_init(&run.params);
    run.params.timeout_ns = (int64_t)limit_s * 1000000000;
    if (sherd_world_from_env(&run.params, &run.world) != SHERD_OK) {
        return cli_fail();
    }
    run.rank = sherd_world_rank(run.world);
    if (sherd_world_size(run.world) == 1) {
        sherd_world_destroy(run.world);
        run.world = NULL;
    }
    failed = test_all(&run);
    sherd_world_destroy(run.world);
    return failed;
}
