/* Measures rates on this machine for sherd plan: those of the engine as `sherd bench` does, in
 * processes of its own, and the trainer's arithmetic by plan_arithmetic.c. Rates that cannot be
 * measured stay assumed, and each rate is printed with its origin. plan.c calls it before the first
 * row is made. */
#include "cli/plan_rates.h"

#include "cli/bench.h"
#include "cli/cli.h"
#include "cli/plan.h"
#include "models/clock.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Elements of all ranks together, so that it takes a few seconds and some hundred MiB. A GPU needs
 * more to be busy. */
#define ELEMS_CPU    ((size_t)16 << 20)
#define ELEMS_DEVICE ((size_t)32 << 20)
#define ELEMS_LEAST  ((size_t)2 << 20)
#define ROUNDS       3

/* Then the measurement is ended, and its results so far count. */
#define MOST_SECONDS 30
#define PAUSE_NS     5000000

/* The results of the measuring processes, in memory that they share with this one. 0: not
 * measured. */
typedef struct measured_rates {
    double rates[PLANNING_RATES];
    char   why[PLAN_WHY_CHARS];       /* the engine's rates are not complete; "": they are */
    char   why_drive[PLAN_WHY_CHARS]; /* ... those of the drive */
    char   why_flops[PLAN_WHY_CHARS];
} measured_rates;

typedef struct measuring {
    plan_options *options;
    const char *backend; /* whose engines measure: "cpu" where the planned one has no device here */
    bench_request   bench;
    int             ranks, world_size;
    int             has_backend, has_drive, has_matrices;
    unsigned        parts; /* of bench_part: those of rates that nobody gave, without the drive */
    plan_arithmetic arithmetic;
    measured_rates *found;
} measuring;

/* ---------------------------------------------------------------- measuring -- */

/* Whether a rate is neither set nor measured. */
static int is_open(const measuring *m, planning_rate rate)
{
    return m->options->request.rates.origins[rate] == PLANNING_ASSUMED;
}

static void part_take(measuring *m, const bench_result *result)
{
    for (int i = 0; i < PLANNING_RATES; i++) {
        if (result->rates[i].median > 0) {
            m->found->rates[i] = result->rates[i].median;
        }
    }
}

static void reason_take(sherd_status status, const char *why, char out[PLAN_WHY_CHARS])
{
    (void)snprintf(out, PLAN_WHY_CHARS, "%.300s",
                   status == SHERD_OK ? ""
                   : why[0] != '\0'   ? why
                                      : sherd_last_error());
}

/* The drive comes last, because it may fail by itself. */
static int rank_main(sherd_world *world, void *ctx)
{
    measuring    *m        = ctx;
    bench_request request  = m->bench;
    int           is_first = sherd_world_rank(world) == 0;
    bench_result  result;
    char          why[512];
    sherd_status  status;

    request.parts = m->parts;
    why[0]        = '\0';
    status =
        m->parts == 0 ? SHERD_OK : bench_rates_measure(world, &request, &result, why, sizeof(why));
    if (is_first && m->parts != 0) {
        part_take(m, &result);
        reason_take(status, why, m->found->why);
    }
    if (status == SHERD_OK && m->has_drive) {
        request.parts = BENCH_ON_NVME;
        status        = bench_rates_measure(world, &request, &result, why, sizeof(why));
        if (is_first) {
            part_take(m, &result);
            reason_take(status, why, m->found->why_drive);
        }
    }
    if (status != SHERD_OK) {
        bench_progress(world, "\n");
        sherd_world_abort(world, why); /* ends the ranks that still measure */
    }
    return status != SHERD_OK;
}

static const char *temporary_folder(void)
{
    const char *folder = getenv("TMPDIR");

    return folder == NULL || folder[0] == '\0' ? "/tmp" : folder;
}

static void flops_measure(measuring *m)
{
    scratch_folder folder;
    char          *why = m->found->why_flops;

    if (!m->has_backend || !is_open(m, PLANNING_RATE_FLOPS)) {
        return;
    }
    (void)fputs("steps of the trainer: flops\n", stderr);
    if (scratch_guard_begin() != 0) {
        (void)snprintf(why, PLAN_WHY_CHARS, "no thread for the signals");
        return;
    }
    if (scratch_make(NULL, temporary_folder(), 0, &folder) != 0) {
        (void)snprintf(why, PLAN_WHY_CHARS, "%.300s", folder.why);
    } else {
        (void)plan_arithmetic_run(&m->arithmetic, folder.path,
                                  &m->found->rates[PLANNING_RATE_FLOPS], why, PLAN_WHY_CHARS);
        scratch_remove(NULL);
    }
    scratch_guard_end();
}

_Noreturn static void child_main(measuring *m, pid_t parent)
{
    sherd_world_params params;

    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) {
        _exit(1);
    }
    sherd_world_params_init(&params);
    params.backend = m->backend;
    if (m->parts != 0 || m->has_drive) {
        (void)bench_ranks_run(m->ranks, &params, rank_main, m);
    }
    flops_measure(m);
    _exit(0);
}

/* Waits for the process that measures; in the end it is asked to end, which removes its files. */
static void child_wait(pid_t pid)
{
    static const struct timespec PAUSE    = {.tv_nsec = PAUSE_NS};
    double                       end      = clock_now_s() + MOST_SECONDS;
    int                          is_asked = 0, status;
    pid_t                        done;

    while ((done = waitpid(pid, &status, WNOHANG)) == 0 || (done < 0 && errno == EINTR)) {
        if (!is_asked && clock_now_s() > end) {
            (void)kill(pid, SIGTERM);
            is_asked = 1;
        }
        (void)nanosleep(&PAUSE, NULL);
    }
}

/* ------------------------------------------------------------------- asking -- */

/* As many as the plan has on a host, where this one has the cores or devices for them. */
static int ranks_here(const measuring *m)
{
    int  most  = planning_ranks_per_host(&m->options->request, m->world_size);
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int  here  = strcmp(m->backend, "cpu") == 0 ? (int)cores : bench_devices_count(m->backend);

    here = here < BENCH_MOST_RANKS ? here : BENCH_MOST_RANKS;
    here = here < most ? here : most;
    return here > 0 ? here : 1;
}

/* Gets the inputs of the measurement from the planned engine. */
static sherd_status engine_ask(measuring *m)
{
    const planning_request *request = &m->options->request;
    planning_layout         layout  = m->options->layouts[0];
    const planning_model   *model   = request->model;
    sherd_engine_info       info;
    sherd_traffic_report    traffic;
    sherd_engine           *engine;
    sherd_status            status;

    layout.world_size = m->world_size;
    sherd_engine_info_init(&info);
    sherd_traffic_report_init(&traffic);
    status = planning_engine_open(request, &layout, &engine);
    if (status != SHERD_OK) {
        return status;
    }
    status = sherd_engine_query(engine, &info);
    if (status == SHERD_OK) {
        status = sherd_engine_traffic(engine, &traffic);
    }
    sherd_engine_destroy(engine);
    m->has_matrices = traffic.update_flops_planned > 0;
    m->arithmetic   = plan_arithmetic_of(model->has_arch ? &model->sizes : NULL, request->backend,
                                       (size_t)info.micro_batch_size, request->length);
    m->arithmetic.dtype = info.compute_dtype;
    m->arithmetic.ranks = strcmp(m->backend, "cpu") == 0 ? m->ranks : 1;
    return status;
}

static int is_on_drive(planning_offload offload)
{
    return offload == PLANNING_OFFLOAD_OPTIMIZER_NVME || offload == PLANNING_OFFLOAD_PARAMS_NVME ||
           offload == PLANNING_OFFLOAD_AS_CONFIGURED;
}

static void measuring_init(plan_options *options, measuring *m)
{
    const char *backend = options->request.backend;
    int         is_cpu  = strcmp(backend, "cpu") == 0;
    size_t      elems   = is_cpu ? ELEMS_CPU : ELEMS_DEVICE;

    *m = (measuring){.options = options, .world_size = options->worlds[0]};
    for (int i = 0; i < options->num_layouts; i++) {
        m->has_drive |= is_on_drive(options->layouts[i].offload);
    }
    m->has_drive = m->has_drive &&
                   (is_open(m, PLANNING_RATE_NVME_READ) || is_open(m, PLANNING_RATE_NVME_WRITE));
    m->has_backend = is_cpu || bench_devices_count(backend) > 0;
    m->backend     = m->has_backend ? backend : "cpu";
    m->ranks       = ranks_here(m);
    elems /= (size_t)m->ranks;
    m->bench = (bench_request){.nvme_path = options->nvme_path == NULL ? "." : options->nvme_path,
                               .elems     = elems > ELEMS_LEAST ? elems : ELEMS_LEAST,
                               .rounds    = ROUNDS,
                               .backend   = m->backend};
}

/* ------------------------------------------------------------------ printing -- */

/* Says why a rate was not measured; "": it was. */
static const char *why_not(const measuring *m, planning_rate rate, char out[PLAN_WHY_CHARS])
{
    const measured_rates *found    = m->found;
    int                   per_host = planning_ranks_per_host(&m->options->request, m->world_size);
    int                   is_host = rate == PLANNING_RATE_HOST || rate == PLANNING_RATE_NVME_READ ||
                  rate == PLANNING_RATE_NVME_WRITE;
    int is_drive = rate == PLANNING_RATE_NVME_READ || rate == PLANNING_RATE_NVME_WRITE;

    if (rate == PLANNING_RATE_WIRE && per_host == 1) {
        return m->world_size == 1 ? "one rank sends nothing"
                                  : "one rank sends nothing inside its host";
    }
    if (rate == PLANNING_RATE_BETWEEN) {
        return per_host < m->world_size ? "the plan has several hosts, and here is one"
                                        : "the plan has one host";
    }
    if (!m->has_backend && !is_host) {
        (void)snprintf(out, PLAN_WHY_CHARS, "no %s device here", m->options->request.backend);
        return out;
    }
    if (rate == PLANNING_RATE_WIRE && m->ranks == 1) {
        return "this machine has room for one rank, which sends nothing";
    }
    if (rate == PLANNING_RATE_PRODUCTS && !m->has_matrices) {
        return "no update by whole matrices is planned";
    }
    if (is_drive && !m->has_drive) {
        return "no layout has a drive";
    }
    if (found->rates[rate] > 0) {
        return "";
    }
    if (rate == PLANNING_RATE_FLOPS) {
        return found->why_flops[0] != '\0' ? found->why_flops : "its measurement did not end";
    }
    if (is_drive && found->why[0] == '\0' && found->why_drive[0] != '\0') {
        return found->why_drive;
    }
    return found->why[0] != '\0' ? found->why : "its measurement did not end";
}

/* Says how it was measured. */
static const char *how(const measuring *m, planning_rate rate, char out[PLAN_WHY_CHARS])
{
    const arch *sizes = &m->arithmetic.sizes;

    out[0] = '\0';
    if (rate == PLANNING_RATE_FLOPS) {
        (void)snprintf(out, PLAN_WHY_CHARS,
                       ", the trainer with one layer of %zu, %zu x %zu tokens, %s", sizes->hidden,
                       m->arithmetic.batch, m->arithmetic.length,
                       sherd_dtype_name(m->arithmetic.dtype));
    } else if (rate == PLANNING_RATE_NVME_READ || rate == PLANNING_RATE_NVME_WRITE) {
        (void)snprintf(out, PLAN_WHY_CHARS, ", in %.200s",
                       strcmp(m->bench.nvme_path, ".") == 0 ? "the current folder"
                                                            : m->bench.nvme_path);
    }
    return out;
}

static void rates_take(const measuring *m)
{
    planning_rates *rates    = &m->options->request.rates;
    int             per_host = planning_ranks_per_host(&m->options->request, m->world_size);
    char            machine[512];
    char            text[PLAN_WHY_CHARS];

    bench_machine_write(machine, sizeof(machine));
    (void)fprintf(stderr, "Rates a second. Measured: this machine (%s), %d rank%s", machine,
                  m->ranks, m->ranks > 1 ? "s" : "");
    if (m->ranks != per_host) {
        (void)fprintf(stderr, " where a planned host has %d", per_host);
    }
    (void)fprintf(stderr, ". Assumed: %s.\n",
                  planning_assumed_machine(m->options->request.backend));
    for (int i = 0; i < PLANNING_RATES; i++) {
        const char *why = why_not(m, (planning_rate)i, text);

        if (rates->origins[i] == PLANNING_ASSUMED && why[0] == '\0') {
            rates->values[i]  = m->found->rates[i];
            rates->origins[i] = PLANNING_MEASURED;
            why               = how(m, (planning_rate)i, text);
        }
        (void)fprintf(stderr, "  %-10s %9.3g  %s%s%s\n", planning_rate_name((planning_rate)i),
                      rates->values[i], planning_origin_name(rates->origins[i]),
                      rates->origins[i] == PLANNING_ASSUMED ? ": " : "",
                      rates->origins[i] == PLANNING_GIVEN ? "" : why);
    }
    if (!m->has_backend) {
        (void)fprintf(stderr, "If another machine is planned for, --rates FILE has its rates, and "
                              "--rates assumed takes none of this one.\n");
    }
}

static void parts_choose(measuring *m)
{
    int is_link =
        m->has_backend && (is_open(m, PLANNING_RATE_DOWN) || is_open(m, PLANNING_RATE_UP));

    if (m->has_backend &&
        (is_open(m, PLANNING_RATE_DEVICE) || (is_open(m, PLANNING_RATE_WIRE) && m->ranks > 1))) {
        m->parts |= BENCH_ON_DEVICE;
    }
    if (is_open(m, PLANNING_RATE_HOST) || is_link) {
        m->parts |= BENCH_WITH_HOST;
    }
    if (m->has_backend && m->has_matrices && is_open(m, PLANNING_RATE_PRODUCTS)) {
        m->parts |= BENCH_MATRICES;
    }
}

static int measuring_run(measuring *m)
{
    pid_t parent = getpid();
    pid_t pid;

    parts_choose(m);
    (void)fflush(NULL);
    pid = fork();
    if (pid == 0) {
        child_main(m, parent);
    }
    if (pid < 0) {
        return -1;
    }
    child_wait(pid);
    return 0;
}

void plan_rates_measure(plan_options *options)
{
    measuring m;

    if (sherd_launcher() != NULL) {
        (void)fprintf(stderr, "rates are assumed: under a launcher nothing is measured\n");
        return;
    }
    measuring_init(options, &m);
    m.found =
        mmap(NULL, sizeof(*m.found), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (m.found == MAP_FAILED || engine_ask(&m) != SHERD_OK || measuring_run(&m) != 0) {
        (void)fprintf(stderr, "rates are assumed: the measurement cannot be started\n");
    } else {
        rates_take(&m);
    }
    if (m.found != MAP_FAILED) {
        (void)munmap(m.found, sizeof(*m.found));
    }
}
