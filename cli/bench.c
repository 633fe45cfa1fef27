/* sherd bench: measures how fast this machine does the parts of an engine's step, as the rates from
 * which `sherd plan` predicts times. bench_rates.c measures, bench_ranks.c starts the ranks. */
#include "cli/bench.h"
#include "cli/cli.h"

#include <errno.h>
#include <getopt.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Numbers of elements. GRAIN: the smallest number of which every unit and rank has a part. DEFAULT:
 * more than any cache holds. */
#define ELEMS_GRAIN   512
#define ELEMS_DEFAULT ((size_t)32 << 20)
#define ELEMS_MOST    ((size_t)1 << 36)

static const char HELP[] =
    "usage: sherd bench [OPTIONS]\n\n"
    "Measures rates with real steps of the engine. From these rates sherd plan --rates FILE\n"
    "predicts the time of a step. A rate counts bytes per second of one rank while all ranks of\n"
    "the host do the same; for the drives of a host it counts those of all ranks together.\n"
    "Alone the command starts processes as ranks. Under mpirun, srun or torchrun it measures\n"
    "the ranks of the job; on several hosts, inside hosts and between them. The ranks have the "
    "cores and threads that they have in training.\n"
    "(./run bench in the sources compares parts of sherd with limits and peers.)\n\n"
    "  --ranks N         number of processes to start (default: 2; with --backend cuda one for\n"
    "                    each GPU)\n"
    "  --backend NAME    cpu or cuda (default: SHERD_BACKEND, else cpu)\n"
    "  --size N          elements of each rank's slice, with the suffixes K, M, G (default 32M,\n"
    "                    which takes 0.7 GiB of memory per rank)\n"
    "  --rounds N        rounds that count, after a first one that does not (default 5)\n"
    "  --nvme-path DIR   folder on the drives (default: drives are not measured). The files take\n"
    "                    24 bytes per element and rank, and are removed at the end\n"
    "  --flops VALUE     arithmetic operations of your trainer per second and rank, for example\n"
    "                    4e14 or 400T; written to FILE as given, since they are not measured\n"
    "  --out FILE        write the rates to FILE as a JSON object\n"
    "  --force           overwrite FILE if it exists\n"
    "  --json            print the JSON object to standard output instead of the table\n"
    "  --check           afterwards run steps of a model without arithmetic in several layouts,\n"
    "                    and print their times and those that a plan predicts from the rates\n";

static const char *const MEANINGS[PLANNING_RATES] = {
    [PLANNING_RATE_FLOPS]      = "arithmetic of the trainer, as given",
    [PLANNING_RATE_WIRE]       = "sent by a rank in gathers and reductions inside its host",
    [PLANNING_RATE_BETWEEN]    = "sent by a rank to other hosts",
    [PLANNING_RATE_DOWN]       = "copied from the device to the host",
    [PLANNING_RATE_UP]         = "copied from the host to the device",
    [PLANNING_RATE_NVME_READ]  = "read from the drives, all ranks of the host together",
    [PLANNING_RATE_NVME_WRITE] = "written to the drives meanwhile, and committed",
    [PLANNING_RATE_DEVICE]     = "read and written by the update in device memory",
    [PLANNING_RATE_HOST]       = "read and written by the update in host memory",
    [PLANNING_RATE_PRODUCTS]   = "arithmetic of an update by whole matrices",
};

typedef struct bench_command {
    bench_request request;
    const char   *out_path;
    double        flops; /* 0: not set */
    int           ranks; /* 0: not set */
    int           is_json, is_forced, has_check;
    int           argc;
    char        **argv;
} bench_command;

static int bad(const char *option, const char *wanted, const char *given)
{
    return cli_bad("bench", "%s wants %s, not '%s'", option, wanted, given);
}

/* ------------------------------------------------------------- the object -- */

static json_t *command_text(const bench_command *command)
{
    json_t *text = json_string(command->argv[0]); /* "sherd bench" */

    for (int i = 1; i < command->argc; i++) {
        json_t *longer = json_sprintf("%s %s", json_string_value(text), command->argv[i]);

        json_decref(text);
        text = longer;
    }
    return text;
}

static json_t *object_make(const bench_command *command, const bench_result *result)
{
    json_t   *root   = json_object();
    json_t   *ranges = json_object();
    time_t    now    = time(NULL);
    struct tm utc;
    char      date[32];
    char      machine[512];

    (void)gmtime_r(&now, &utc);
    (void)strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%SZ", &utc);
    bench_machine_write(machine, sizeof(machine));
    for (int i = 0; i < PLANNING_RATES; i++) {
        const bench_rate *rate = &result->rates[i];
        const char       *name = planning_rate_name((planning_rate)i);

        if (rate->median > 0) {
            (void)json_object_set_new(root, name, json_real(rate->median));
        }
        if (rate->median > 0 && i != PLANNING_RATE_FLOPS) {
            (void)json_object_set_new(ranges, name, json_pack("[ff]", rate->min, rate->max));
        }
    }
    (void)json_object_set_new(root, "ranges", ranges);
    (void)json_object_set_new(root, "ranks", json_integer(result->ranks));
    (void)json_object_set_new(root, "ranks_per_host", json_integer(result->ranks_per_host));
    (void)json_object_set_new(root, "backend", json_string(command->request.backend));
    (void)json_object_set_new(root, "transport", json_string(result->transport));
    (void)json_object_set_new(root, "elems_per_rank",
                              json_integer((json_int_t)command->request.elems));
    (void)json_object_set_new(root, "rounds", json_integer(command->request.rounds));
    (void)json_object_set_new(root, "machine", json_string(machine));
    (void)json_object_set_new(root, "command", command_text(command));
    (void)json_object_set_new(root, "date", json_string(date));
    (void)json_object_set_new(root, "sherd", json_string(sherd_version()));
    return root;
}

#define JSON_FORM (JSON_INDENT(2) | JSON_REAL_PRECISION(6))

static int object_save(const bench_command *command, const json_t *root)
{
    char *text = json_dumps(root, JSON_FORM);
    int   failed;

    if (text == NULL) {
        (void)fprintf(stderr, "sherd: no memory for the rates as JSON\n");
        return -1;
    }
    failed = cli_file_save(command->out_path, text, command->is_forced);
    free(text);
    return failed != 0 ? -1 : 0;
}

/* ------------------------------------------------------------- the table -- */

/* "23.4 GB/s" */
static const char *rate_text(double value, int is_flops, char out[32])
{
    static const char PREFIXES[] = " KMGTPE";
    int               power      = 0;

    while (value >= 1000 && PREFIXES[power + 1] != '\0') {
        value /= 1000;
        power++;
    }
    (void)snprintf(out, 32, "%.3g %.*s%s", value, power > 0, &PREFIXES[power],
                   is_flops ? "FLOP/s" : "B/s");
    return out;
}

static void table_print(const bench_result *result)
{
    char text[3][32];
    char range[80];

    (void)printf("%d rank%s, %d to a host, by %s\n\n", result->ranks, result->ranks > 1 ? "s" : "",
                 result->ranks_per_host, result->transport);
    (void)printf("%-11s %12s  %-24s  %s\n", "rate", "median", "min .. max", "what");
    for (int i = 0; i < PLANNING_RATES; i++) {
        const bench_rate *rate     = &result->rates[i];
        int               is_flops = i == PLANNING_RATE_FLOPS || i == PLANNING_RATE_PRODUCTS;

        if (rate->median <= 0) {
            continue;
        }
        (void)snprintf(range, sizeof(range), "%s .. %s", rate_text(rate->min, is_flops, text[1]),
                       rate_text(rate->max, is_flops, text[2]));
        (void)printf("%-11s %12s  %-24s  %s\n", planning_rate_name((planning_rate)i),
                     rate_text(rate->median, is_flops, text[0]),
                     i == PLANNING_RATE_FLOPS ? "" : range, MEANINGS[i]);
    }
}

/* ------------------------------------------------------------- the ranks -- */

static int result_write(const bench_command *command, bench_result *result)
{
    json_t *root;
    int     failed = 0;

    result->rates[PLANNING_RATE_FLOPS] =
        (bench_rate){command->flops, command->flops, command->flops};
    root = object_make(command, result);
    if (command->out_path != NULL) {
        failed = object_save(command, root);
    }
    if (command->is_json) {
        failed |= json_dumpf(root, stdout, JSON_FORM);
        (void)printf("\n");
    } else {
        table_print(result);
    }
    json_decref(root);
    return failed != 0;
}

static int rank_main(sherd_world *world, void *ctx)
{
    const bench_command *command = ctx;
    bench_result         result;
    char                 why[512];
    sherd_status status = bench_rates_measure(world, &command->request, &result, why, sizeof(why));
    int          rank   = sherd_world_rank(world);

    if (status == SHERD_OK && rank == 0 && result_write(command, &result) != 0) {
        sherd_world_abort(world, "rank 0 could not write what was measured");
        return 1;
    }
    if (status == SHERD_OK && command->has_check) {
        status = bench_check_run(world, &command->request, &result, why, sizeof(why));
    }
    if (status == SHERD_OK) {
        return 0;
    }
    if (why[0] == '\0') {
        (void)snprintf(why, sizeof(why), "%s", sherd_last_error());
    }
    sherd_world_abort(world, why); /* ends the ranks that still measure */
    if (rank == 0) {
        (void)fprintf(stderr, "\nsherd: %s\n", why);
        if (status == SHERD_E_NOMEM) {
            (void)fprintf(stderr, "sherd: --size N measures with fewer elements than %zu a rank\n",
                          command->request.elems);
        }
    }
    return 1;
}

/* ----------------------------------------------------------- the options -- */

/* Reads a size such as "32M", in powers of 1024, and rounds it up so that every part has
 * elements. */
static int elems_take(const cli_option *option, const char *text, void *field)
{
    size_t            *out        = field;
    static const char  SUFFIXES[] = "KMG";
    char              *end;
    unsigned long long value;
    const char        *suffix;

    (void)option;
    errno = 0;
    value = strtoull(text, &end, 10);
    if (errno != 0 || end == text || text[0] == '-' || value == 0 || value > ELEMS_MOST) {
        return 0;
    }
    suffix = *end == '\0' ? NULL : strchr(SUFFIXES, *end);
    if (*end != '\0' && (suffix == NULL || end[1] != '\0')) {
        return 0;
    }
    if (suffix != NULL) {
        int shift = 10 * (int)(suffix - SUFFIXES + 1);

        if (value > (unsigned long long)ELEMS_MOST >> shift) {
            return 0;
        }
        value <<= shift;
    }
    *out = (size_t)((value + ELEMS_GRAIN - 1) / ELEMS_GRAIN * ELEMS_GRAIN);
    return *out <= ELEMS_MOST;
}

static int flops_take(const cli_option *option, const char *text, void *field)
{
    planning_rates rates;
    char           given[80];
    char           why[256];

    (void)option;
    if (strlen(text) > 64 || strchr(text, ',') != NULL) {
        return 0;
    }
    (void)snprintf(given, sizeof(given), "flops=%.64s", text);
    planning_rates_assume("cpu", &rates);
    if (planning_rates_set(given, &rates, why, sizeof(why)) != 0) {
        return 0;
    }
    *(double *)field = rates.values[PLANNING_RATE_FLOPS];
    return 1;
}

static const cli_option LIST[] = {
    CLI_NUMBER("ranks", 'n', bench_command, ranks, 1, BENCH_MOST_RANKS, "wants 1 to 64"),
    CLI_TEXT("backend", 0, bench_command, request.backend),
    CLI_READ("size", 0, bench_command, request.elems, elems_take,
             "wants a number of elements such as 32M"),
    CLI_NUMBER("rounds", 0, bench_command, request.rounds, 1, BENCH_MOST_ROUNDS, "wants 1 to 100"),
    CLI_TEXT("nvme-path", 0, bench_command, request.nvme_path),
    CLI_READ("flops", 0, bench_command, flops, flops_take, "wants a number such as 4e14"),
    CLI_TEXT("out", 0, bench_command, out_path),
    CLI_FLAG("force", 0, bench_command, is_forced),
    CLI_FLAG("json", 0, bench_command, is_json),
    CLI_FLAG("check", 0, bench_command, has_check),
    {0}};
static const cli_options OPTIONS = {"bench", HELP, LIST, 0};

static int folder_check(const char *option, const char *path)
{
    if (access(path, W_OK | X_OK) == 0) {
        return 0;
    }
    (void)fprintf(stderr, "sherd: %s: %s: %s\n", option, path, strerror(errno));
    return 1;
}

/* Checks the folder in which a file will be created. */
static int file_check(const char *option, const char *path)
{
    char        folder[4096];
    const char *slash = strrchr(path, '/');
    size_t      len   = slash == NULL ? 0 : (size_t)(slash - path);

    if (len >= sizeof(folder)) {
        return bad(option, "a shorter name", path);
    }
    (void)snprintf(folder, sizeof(folder), "%.*s", (int)len, path);
    return folder_check(option, slash == NULL ? "." : len == 0 ? "/" : folder);
}

/* Checks before the measurement what would otherwise fail after it. */
static int command_check(bench_command *command)
{
    if (command->request.backend == NULL || command->request.backend[0] == '\0') {
        command->request.backend = getenv("SHERD_BACKEND");
    }
    if (command->request.backend == NULL || command->request.backend[0] == '\0') {
        command->request.backend = "cpu";
    }
    if (command->ranks > 0 && sherd_launcher() != NULL) {
        (void)fprintf(stderr,
                      "sherd: the launcher says how many ranks there are: leave --ranks out\n");
        return 2;
    }
    if (command->is_json && command->has_check) {
        (void)fprintf(stderr, "sherd: --check prints a table: either --json or --check\n");
        return 2;
    }
    if (command->out_path != NULL && cli_file_check(command->out_path, command->is_forced) != 0) {
        return 1;
    }
    if (command->request.nvme_path != NULL &&
        folder_check("--nvme-path", command->request.nvme_path) != 0) {
        return 1;
    }
    return command->out_path == NULL ? 0 : file_check("--out", command->out_path);
}

int cli_bench(int argc, char **argv)
{
    bench_command command = {
        .request = {.elems = ELEMS_DEFAULT, .rounds = 5}, .argc = argc, .argv = argv};
    sherd_world_params params;
    int                status = cli_options_read(&OPTIONS, argc, argv, &command);

    if (status >= 0) {
        return status;
    }
    if (optind < argc) {
        (void)fprintf(stderr, "sherd: bench takes options alone, not '%s'\n", argv[optind]);
        return 2;
    }
    status = command_check(&command);
    if (status != 0) {
        return status;
    }
    sherd_world_params_init(&params);
    params.backend = command.request.backend;
    if (command.ranks == 0) {
        command.ranks = bench_ranks_default(command.request.backend);
    }
    return bench_ranks_run(command.ranks, &params, rank_main, &command);
}
