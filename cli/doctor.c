/* sherd doctor: reads the arguments, lets every rank look at its host, and prints what rank 0 has
 * collected. */
#include "cli/doctor.h"

#include <getopt.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char HELP[] =
    "usage: sherd doctor [OPTIONS]\n\n"
    "Looks at this host for what makes training fail or slow, and says for each finding what to\n"
    "do. Started as the ranks of a job (sherd launch, mpirun, srun, torchrun), it looks at every\n"
    "host, and compares them; rank 0 prints.\n\n"
    "  --folder DIR   also look at a folder for checkpoints: can it be written to, is there\n"
    "                 space, is it the same on all hosts\n"
    "  --nvme DIR     also look at a folder for offloaded data: is there space, does it take\n"
    "                 direct writes (O_DIRECT)\n"
    "  --space GIB    the free space that these folders should have, in GiB (default 1)\n"
    "  --ranks N      ranks that are to run on this host (default: as the launcher says, else 1)\n"
    "  --strict       advice counts as a fault in the exit status\n"
    "  --json         print one JSON object\n\n"
    "Exit status: 0 if there is no fault, 1 if there is one, 2 for bad arguments.\n\n"
    "  sherd doctor --ranks 8 --nvme /mnt/nvme --space 200\n"
    "  mpirun -n 16 --host a:8,b:8 sherd doctor --folder /shared/checkpoints\n";

static const char *const VERDICTS[DOCTOR_VERDICTS] = {"skipped", "ok", "advice", "FAULT"};

/* ---- looking ---- */

static sherd_status text_take(void *ctx, const char *text, size_t len_bytes)
{
    return fwrite(text, 1, len_bytes, ctx) == len_bytes ? SHERD_OK : SHERD_E_NOMEM;
}

/* Returns what `sherd env` reports, as an object; NULL: it failed, and why was printed. */
static json_t *env_take(void)
{
    char        *text = NULL;
    size_t       len  = 0;
    FILE        *file = open_memstream(&text, &len);
    json_t      *env  = NULL;
    sherd_status status;

    if (file == NULL) {
        (void)fprintf(stderr, "sherd: no memory\n");
        return NULL;
    }
    status = sherd_env_write(SHERD_PLAN_JSON, text_take, file);
    (void)fclose(file);
    if (status == SHERD_OK) {
        env = json_loads(text, 0, NULL);
    } else {
        (void)cli_fail();
    }
    free(text);
    return env;
}

/* Returns the number of ranks on this host that a launcher has set; 1: none has. */
static int launched_ranks(void)
{
    static const char *const NAMES[] = {"LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE",
                                        "MPI_LOCALNRANKS", "SLURM_NTASKS_PER_NODE",
                                        "SHERD_WORLD_SIZE"};

    for (size_t i = 0; i < sizeof(NAMES) / sizeof(NAMES[0]); i++) {
        int ranks;

        if (getenv(NAMES[i]) != NULL && cli_number_read(getenv(NAMES[i]), 1, 1 << 20, &ranks)) {
            return ranks;
        }
    }
    return 1;
}

/* ---- printing ---- */

static void finding_print(const doctor_finding *finding)
{
    (void)printf("  %-8s%-17s", VERDICTS[finding->verdict], finding->check);
    cli_plain_print(finding->found);
    (void)printf("\n");
    if (finding->fix[0] != '\0') {
        (void)printf("  %-8s%-17s-> ", "", "");
        cli_plain_print(finding->fix);
        (void)printf("\n");
    }
}

/* A text that may have bytes of a file name that are no UTF-8: "?" stands for each of them. */
static json_t *text_object(const char *text)
{
    json_t *whole = json_string(text);
    char   *plain;

    if (whole != NULL) {
        return whole;
    }
    plain = strdup(text);
    for (char *at = plain; at != NULL && *at != '\0'; at++) {
        *at = (char)((unsigned char)*at < 0x80 ? *at : '?');
    }
    whole = json_string(plain == NULL ? "" : plain);
    free(plain);
    return whole;
}

static json_t *findings_object(const doctor_host *host)
{
    json_t *checks = json_array();

    for (int i = 0; i < host->num_findings; i++) {
        const doctor_finding *finding = &host->findings[i];
        json_t               *object =
            json_pack("{s: s, s: s, s: o}", "check", finding->check, "verdict",
                      finding->verdict == DOCTOR_FAULT ? "fault" : VERDICTS[finding->verdict],
                      "found", text_object(finding->found));

        if (finding->fix[0] != '\0') {
            (void)json_object_set_new(object, "fix", text_object(finding->fix));
        }
        (void)json_array_append_new(checks, object);
    }
    return checks;
}

static void counts_add(const doctor_host *host, int counts[DOCTOR_VERDICTS])
{
    for (int i = 0; i < host->num_findings; i++) {
        counts[host->findings[i].verdict]++;
    }
}

/* Whether an earlier rank is on the host of rank `rank`, which is then not printed again. */
static int is_printed(const doctor_host *all, int rank)
{
    for (int r = 0; r < rank; r++) {
        if (doctor_same_host(&all[r], &all[rank])) {
            return 1;
        }
    }
    return 0;
}

static void report_print(const doctor_host *all, int size, const doctor_host *job,
                         const int counts[DOCTOR_VERDICTS])
{
    for (int r = 0; r < size; r++) {
        if (is_printed(all, r)) {
            continue;
        }
        (void)printf("host %s, %d rank%s\n", all[r].name, all[r].ranks,
                     all[r].ranks == 1 ? "" : "s");
        for (int i = 0; i < all[r].num_findings; i++) {
            finding_print(&all[r].findings[i]);
        }
    }
    if (job->num_findings > 0) {
        (void)printf("the job, %d rank%s\n", job->ranks, job->ranks == 1 ? "" : "s");
    }
    for (int i = 0; i < job->num_findings; i++) {
        finding_print(&job->findings[i]);
    }
    (void)printf("%d fault%s, %d piece%s of advice, %d checks without a finding, %d skipped\n",
                 counts[DOCTOR_FAULT], counts[DOCTOR_FAULT] == 1 ? "" : "s", counts[DOCTOR_ADVICE],
                 counts[DOCTOR_ADVICE] == 1 ? "" : "s", counts[DOCTOR_OK], counts[DOCTOR_SKIPPED]);
}

static void json_print(const doctor_host *all, int size, const doctor_host *job,
                       const int counts[DOCTOR_VERDICTS])
{
    json_t *hosts = json_array();
    json_t *root;
    char   *text;

    for (int r = 0; r < size; r++) {
        if (!is_printed(all, r)) {
            (void)json_array_append_new(hosts, json_pack("{s: s, s: i, s: o}", "host", all[r].name,
                                                         "ranks", all[r].ranks, "checks",
                                                         findings_object(&all[r])));
        }
    }
    root = json_pack("{s: s, s: o, s: o, s: i, s: i}", "sherd", sherd_version(), "hosts", hosts,
                     "job", findings_object(job), "faults", counts[DOCTOR_FAULT], "advice",
                     counts[DOCTOR_ADVICE]);
    text = json_dumps(root, JSON_INDENT(1));
    (void)printf("%s\n", text == NULL ? "{}" : text);
    free(text);
    json_decref(root);
}

/* Prints on rank 0. Returns the exit status. */
static int report(const doctor_request *request, const doctor_host *all, int size,
                  const doctor_host *job)
{
    int counts[DOCTOR_VERDICTS] = {0};

    for (int r = 0; r < size; r++) {
        if (!is_printed(all, r)) {
            counts_add(&all[r], counts);
        }
    }
    counts_add(job, counts);
    (request->is_json ? json_print : report_print)(all, size, job, counts);
    return counts[DOCTOR_FAULT] > 0 || (request->is_strict && counts[DOCTOR_ADVICE] > 0);
}

/* ---- the job ---- */

/* Collects what the ranks have found, and compares. Returns the exit status; only rank 0 has
 * one other than 0 for a fault. */
static int ranks_report(sherd_world *world, const doctor_request *request, const doctor_host *mine)
{
    int          size   = sherd_world_size(world);
    int          rank   = sherd_world_rank(world);
    doctor_host *all    = calloc((size_t)size, sizeof(*all));
    doctor_host  job    = {.ranks = size};
    int          status = 0;

    if (all == NULL) {
        (void)fprintf(stderr, "sherd: no memory for %d ranks\n", size);
        sherd_world_abort(world, "no memory");
        return 1;
    }
    all[rank] = *mine;
    for (int r = 0; r < size && status == 0; r++) {
        status =
            sherd_world_broadcast(world, &all[r], sizeof(all[r]), r) == SHERD_OK ? 0 : cli_fail();
    }
    if (status == 0 && size > 1) {
        status = doctor_hosts_compare(world, request, all, &job);
    }
    if (status == 0 && rank == 0) {
        status = report(request, all, size, &job);
    }
    free(all);
    return status;
}

static int doctor_run(const doctor_request *request)
{
    doctor_host  mine = {.ranks = request->ranks > 0 ? request->ranks : launched_ranks()};
    json_t      *env  = env_take();
    sherd_world *world;
    int          status;

    if (env == NULL) {
        return 1;
    }
    doctor_host_look(request, env, &mine);
    json_decref(env);
    if (sherd_world_from_env(NULL, &world) != SHERD_OK) { /* what this rank knows is printed */
        doctor_host job = {.ranks = 1};

        doctor_add(&job, "meeting", DOCTOR_FAULT, "see docs/launching.md", "%.300s",
                   sherd_last_error());
        (void)report(request, &mine, 1, &job);
        return 1;
    }
    status = ranks_report(world, request, &mine);
    sherd_world_destroy(world);
    return status;
}

static int gib_take(const cli_option *option, const char *text, void *field)
{
    char  *end;
    double gib = strtod(text, &end);

    (void)option;
    if (end == text || *end != '\0' || !(gib >= 0) || gib > 1e9) {
        return 0;
    }
    *(uint64_t *)field = (uint64_t)(gib * 0x1p30);
    return 1;
}

int cli_doctor(int argc, char **argv)
{
    static const cli_option LIST[] = {
        CLI_TEXT("folder", 0, doctor_request, folder),
        CLI_TEXT("nvme", 0, doctor_request, nvme),
        CLI_READ("space", 0, doctor_request, space_bytes, gib_take, "wants GiB, such as 200"),
        CLI_NUMBER("ranks", 'n', doctor_request, ranks, 1, 1024, "wants 1 to 1024"),
        CLI_FLAG("strict", 0, doctor_request, is_strict),
        CLI_FLAG("json", 'j', doctor_request, is_json),
        {0}};
    static const cli_options OPTIONS = {"doctor", HELP, LIST, 0};
    doctor_request           request = {.space_bytes = (uint64_t)1 << 30};
    int                      status  = cli_options_read(&OPTIONS, argc, argv, &request);

    if (status >= 0) {
        return status;
    }
    if (optind != argc) {
        return cli_bad("doctor", "'%s' is not an option", argv[optind]);
    }
    return doctor_run(&request);
}
