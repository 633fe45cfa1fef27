/* The measurements of `sherd bench`, through the engine's own reports. It creates engines, one
 * after the other, and makes real steps without a trainer's arithmetic.
 *
 *   in device memory  device: the update's kernels; wire: gathers and reductions of stage 3
 *   in host memory    host: the update's kernels; down, up: copies over the link
 *   state on NVMe     nvme_read, nvme_write: a pass that only reads, and the boundary of a step
 *   whole matrices    products: the update by Muon
 *   between hosts     between: gathers and reductions of stage 3
 *
 * Where there are several hosts, each engine is one of the ranks of a host, and all hosts measure at
 * once; between hosts it is one of the ranks with the same number on each host. State on NVMe is that
 * of an engine of all ranks, since hosts may have the folder in common.
 *
 * All ranks measure at the same time, and the time of the slowest one counts, since in a step the
 * others wait for it. */
#include "cli/bench.h"

#include "cli/scratch.h"
#include "models/clock.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define UNITS 8

/* Bytes of an element in the compute type, bf16. */
#define ELEM_BYTES 2

#define GRADIENT_ELEMS ((size_t)1 << 20)

/* The most elements of the matrices that an update multiplies: enough for the best speed of the
 * backend's kernels, few enough to be quick. */
#define MATRIX_SIDE_CPU    ((size_t)768)
#define MATRIX_SIDE_DEVICE ((size_t)4096)

/* Passes that only read parameters, in addition to those of a step: enough to separate copies up
 * from copies down. */
#define EVAL_PASSES 4

typedef struct samples {
    double values[BENCH_MOST_ROUNDS];
    int    count;
} samples;

typedef struct bench {
    sherd_world         *world;
    sherd_world         *inside;  /* this rank's host; `world` if there is one */
    sherd_world         *between; /* a rank of each host; NULL if there is one */
    const bench_request *request;
    int                  rank, ranks, hosts;
    uint16_t            *gradient; /* [GRADIENT_ELEMS] in bf16, on the host; repeated */
    samples              rates[PLANNING_RATES];
    char                *why;
    size_t               why_bytes;
} bench;

typedef struct bench_engine {
    sherd_engine        *engine;
    size_t               unit_elems;
    sherd_unit           units[UNITS];
    sherd_param          params[UNITS];
    sherd_step_report    report;  /* of the last step */
    sherd_traffic_report traffic; /* up to the last step */
} bench_engine;

/* ------------------------------------------------------------- numbers ---- */

static void samples_add(bench *b, planning_rate rate, double bytes, double seconds)
{
    samples *all = &b->rates[rate];

    if (bytes > 0 && seconds > 0) {
        all->values[all->count++] = bytes / seconds;
    }
}

static bench_rate rate_of(samples *all)
{
    bench_rate rate = {0};

    if (all->count > 0) {
        rate.median = bench_median(all->values, all->count);
        rate.min    = all->values[0];
        rate.max    = all->values[all->count - 1];
    }
    return rate;
}

/* ------------------------------------------------------------- engines ---- */

static int is_on_cpu(const bench *b)
{
    return strcmp(b->request->backend, "cpu") == 0;
}

/* Declares a vector, or a matrix for an update of whole matrices. */
static void shape_make(const bench *b, const sherd_world *world, int has_matrices,
                       sherd_param_params *param)
{
    size_t most = is_on_cpu(b) ? MATRIX_SIDE_CPU : MATRIX_SIDE_DEVICE;
    size_t side = 1;

    while (side < most && 4 * side * side <= b->request->elems / UNITS) {
        side *= 2;
    }
    side        = side < most ? side : most;
    param->ndim = has_matrices ? 2 : 1;
    param->shape[0] =
        has_matrices ? side : b->request->elems / UNITS * (size_t)sherd_world_size(world);
    param->shape[1] = side;
}

static sherd_status engine_declare(const bench *b, const sherd_world *world, int has_matrices,
                                   bench_engine *e)
{
    for (int u = 0; u < UNITS; u++) {
        sherd_unit_params  unit;
        sherd_param_params param;
        char               name[32];

        (void)snprintf(name, sizeof(name), "unit.%d", u);
        sherd_unit_params_init(&unit);
        unit.name = name;
        BENCH_TRY(sherd_unit_add(e->engine, &unit, &e->units[u]));
        sherd_param_params_init(&param);
        param.name = name;
        shape_make(b, world, has_matrices, &param);
        e->unit_elems = param.shape[0] * (has_matrices ? param.shape[1] : 1);
        BENCH_TRY(sherd_param_add(e->engine, e->units[u], &param, &e->params[u]));
    }
    return SHERD_OK;
}

static sherd_status engine_fill(const bench_engine *e)
{
    for (int u = 0; u < UNITS; u++) {
        BENCH_TRY(sherd_param_fill(e->engine, e->params[u], bench_fill, NULL));
    }
    return SHERD_OK;
}

static sherd_status engine_open(const bench *b, sherd_world *world, const bench_settings *settings,
                                bench_engine *out)
{
    sherd_config *config;
    sherd_status  status;

    *out = (bench_engine){0};
    BENCH_TRY(bench_config_make(b->request, settings, &config));
    status = sherd_engine_create(world, config, &out->engine);
    sherd_config_destroy(config);
    BENCH_TRY(status);
    sherd_traffic_report_init(&out->traffic);
    status = engine_declare(b, world, settings->has_matrices, out);
    if (status == SHERD_OK) {
        status = sherd_engine_seal(out->engine);
    }
    if (status == SHERD_OK) {
        status = engine_fill(out);
    }
    if (status != SHERD_OK) {
        sherd_engine_destroy(out->engine);
    }
    return status;
}

/* ---------------------------------------------------------- the passes ---- */

static sherd_status gradient_write(const bench *b, const bench_engine *e, int u)
{
    unsigned char *gradient = sherd_param_grad(e->engine, e->params[u]);

    for (size_t at = 0; at < e->unit_elems; at += GRADIENT_ELEMS) {
        size_t left = e->unit_elems - at;

        BENCH_TRY(sherd_copy(e->engine, gradient + at * ELEM_BYTES, b->gradient,
                             (left < GRADIENT_ELEMS ? left : GRADIENT_ELEMS) * ELEM_BYTES));
    }
    return SHERD_OK;
}

static sherd_status pass_run(const bench *b, const bench_engine *e, sherd_pass pass)
{
    for (int i = 0; i < UNITS; i++) {
        int u = pass == SHERD_BACKWARD ? UNITS - 1 - i : i;

        BENCH_TRY(sherd_unit_acquire(e->engine, e->units[u], pass));
        if (pass == SHERD_BACKWARD) {
            BENCH_TRY(gradient_write(b, e, u));
            /* So that no rank waits for another in the reduction. */
            BENCH_TRY(sherd_world_barrier(b->world));
        }
        BENCH_TRY(sherd_unit_release(e->engine, e->units[u], pass));
    }
    return SHERD_OK;
}

static sherd_status step_run(bench_engine *e)
{
    sherd_step_report_init(&e->report);
    BENCH_TRY(sherd_step(e->engine, NULL));
    BENCH_TRY(sherd_step_wait(e->engine, &e->report));
    return sherd_engine_traffic(e->engine, &e->traffic);
}

/* ------------------------------------------- device memory and the wire ---- */

typedef sherd_status (*round_fn)(bench *b, bench_engine *e, int is_counted);

/* The first `dropped` rounds do not count. */
static sherd_status rounds_run(bench *b, bench_engine *e, round_fn run, int dropped)
{
    for (int round = 0; round < b->request->rounds + dropped; round++) {
        BENCH_TRY(run(b, e, round >= dropped));
        bench_progress(b->world, ".");
    }
    bench_progress(b->world, "\n");
    return SHERD_OK;
}

/* The bytes of a plan are those of the norm and the update. On a GPU the time of the norm is that
 * of the host, which waits for the backward pass in it. In this case the time of the update is used
 * for both. */
static double update_bytes(const bench *b, uint64_t planned)
{
    return (double)planned - (is_on_cpu(b) ? 0 : (double)b->request->elems * ELEM_BYTES);
}

static double update_seconds(const bench *b, const sherd_step_report *report)
{
    return report->update_s + (is_on_cpu(b) ? report->norm_s : 0);
}

/* Runs the passes of a micro-batch without any computation. */
static sherd_status bare_passes_run(const bench_engine *e)
{
    for (int i = 0; i < 2 * UNITS; i++) {
        sherd_pass pass = i < UNITS ? SHERD_FORWARD : SHERD_BACKWARD;
        int        u    = i < UNITS ? i : 2 * UNITS - 1 - i;

        BENCH_TRY(sherd_unit_acquire(e->engine, e->units[u], pass));
        BENCH_TRY(sherd_unit_release(e->engine, e->units[u], pass));
    }
    return SHERD_OK;
}

/* Makes the passes of a micro-batch, and gives their seconds on the wire. */
static sherd_status wire_run(const bench *b, const bench_engine *e, double *out)
{
    double start_s;

    BENCH_TRY(sherd_world_barrier(b->world));
    start_s = clock_now_s();
    if (is_on_cpu(b)) {
        BENCH_TRY(bare_passes_run(e));
    } else {
        BENCH_TRY(pass_run(b, e, SHERD_FORWARD));
        BENCH_TRY(pass_run(b, e, SHERD_BACKWARD));
    }
    *out = clock_now_s() - start_s;
    return SHERD_OK;
}

/* The bytes of the wire are those that a rank sent; on one host, the others read them in place. On
 * the CPU the cores move them, and zeroing gradients, meetings and waits are part of that, so the
 * time of passes without computation counts. On a GPU the times of the report are those of the
 * transfers alone, which have a lane of their own. */
static sherd_status device_round(bench *b, bench_engine *e, int is_counted)
{
    uint64_t before = e->traffic.wire_counted;
    double   update_s;
    double   wire_s;

    BENCH_TRY(wire_run(b, e, &wire_s));
    BENCH_TRY(step_run(e));
    BENCH_TRY(bench_slowest(b->world, update_seconds(b, &e->report), &update_s));
    if (!is_on_cpu(b)) {
        wire_s = e->report.gather_s + e->report.reduce_s;
    }
    BENCH_TRY(bench_slowest(b->world, wire_s, &wire_s));
    if (is_counted) {
        samples_add(b, PLANNING_RATE_DEVICE, update_bytes(b, e->traffic.update_device_planned),
                    update_s);
        samples_add(b, PLANNING_RATE_WIRE,
                    sherd_world_size(b->inside) > 1 ? (double)(e->traffic.wire_counted - before)
                                                    : 0,
                    wire_s);
    }
    return SHERD_OK;
}

/* A thread works so long, and waits as long. */
#define BUSY_S 0.01

/* Threads that work as a trainer's arithmetic does while transfers go on: half of the time, since
 * a step in which this rate counts is a step that waits for transfers. */
typedef struct busy {
    atomic_int is_over;
    int        count;
    pthread_t  threads[BENCH_MOST_RANKS];
} busy;

static int is_over(busy *all)
{
    return atomic_load_explicit(&all->is_over, memory_order_relaxed);
}

static void *busy_main(void *arg)
{
    busy           *all   = arg;
    volatile double value = 1;

    while (!is_over(all)) {
        double until_s = clock_now_s() + BUSY_S;

        while (!is_over(all) && clock_now_s() < until_s) {
            for (int i = 0; i < 10000; i++) {
                value = value * 0.999 + 0.001;
            }
        }
        (void)poll(NULL, 0, (int)(BUSY_S * 1000));
    }
    return NULL;
}

static void busy_end(busy *all)
{
    atomic_store(&all->is_over, 1);
    while (all->count > 0) {
        (void)pthread_join(all->threads[--all->count], NULL);
    }
}

/* Starts as many as the trainer of this rank has. */
static sherd_status busy_begin(const bench *b, const bench_engine *e, busy *out)
{
    sherd_engine_info info;

    *out = (busy){0};
    sherd_engine_info_init(&info);
    BENCH_TRY(sherd_engine_query(e->engine, &info));
    while (out->count < info.cpu_threads && out->count < BENCH_MOST_RANKS) {
        if (pthread_create(&out->threads[out->count], NULL, busy_main, out) != 0) {
            busy_end(out);
            (void)snprintf(b->why, b->why_bytes, "no thread for work during the transfers");
            return SHERD_E_NOMEM;
        }
        out->count++;
    }
    return SHERD_OK;
}

/* All bytes go to other hosts. On the CPU what goes there takes the time of cores that compute:
 * transfers inside a host are as fast as the memory, and overlap with little. */
static sherd_status between_round(bench *b, bench_engine *e, int is_counted)
{
    uint64_t     before = e->traffic.wire_counted;
    double       wire_s;
    busy         work = {0};
    sherd_status status;

    if (is_on_cpu(b)) {
        BENCH_TRY(busy_begin(b, e, &work));
    }
    status = wire_run(b, e, &wire_s);
    busy_end(&work);
    BENCH_TRY(status);
    BENCH_TRY(step_run(e));
    if (!is_on_cpu(b)) {
        wire_s = e->report.gather_s + e->report.reduce_s;
    }
    BENCH_TRY(bench_slowest(b->world, wire_s, &wire_s));
    if (is_counted) {
        samples_add(b, PLANNING_RATE_BETWEEN, (double)(e->traffic.wire_counted - before), wire_s);
    }
    return SHERD_OK;
}

/* --------------------------------------------- host memory and the link ---- */

/* Computes the two rates of the link from two steps that differ only in the bytes copied up,
 * because the report has one time for both directions. On the CPU both directions are copies in the
 * same memory and have one rate. They also get one rate if the difference is smaller than the
 * noise. */
static void link_add(bench *b, const sherd_step_report *plain, double plain_s,
                     const sherd_step_report *more, double more_s)
{
    double down   = (double)plain->link_down_bytes;
    double up     = (double)plain->link_up_bytes;
    double extra  = (double)more->link_up_bytes - up;
    double up_s   = (more_s - plain_s) / extra; /* seconds per byte */
    double down_s = (plain_s - up_s * up) / down;

    if (is_on_cpu(b) || !(up_s > 0) || !(down_s > 0)) {
        up_s   = (plain_s + more_s) / (2 * (down + up) + extra);
        down_s = up_s;
    }
    samples_add(b, PLANNING_RATE_UP, 1, up_s);
    samples_add(b, PLANNING_RATE_DOWN, 1, down_s);
}

static sherd_status host_round(bench *b, bench_engine *e, int is_counted)
{
    sherd_step_report plain;
    double            update_s;
    double            plain_s;
    double            more_s;

    BENCH_TRY(pass_run(b, e, SHERD_BACKWARD));
    BENCH_TRY(step_run(e));
    plain = e->report;
    for (int i = 0; i < EVAL_PASSES; i++) {
        BENCH_TRY(pass_run(b, e, SHERD_EVAL));
    }
    BENCH_TRY(pass_run(b, e, SHERD_BACKWARD));
    BENCH_TRY(step_run(e));
    BENCH_TRY(bench_slowest(b->world, update_seconds(b, &plain), &update_s));
    BENCH_TRY(bench_slowest(b->world, plain.copy_s, &plain_s));
    BENCH_TRY(bench_slowest(b->world, e->report.copy_s, &more_s));
    if (is_counted) {
        samples_add(b, PLANNING_RATE_HOST, update_bytes(b, e->traffic.update_host_planned),
                    update_s);
        link_add(b, &plain, plain_s, &e->report, more_s);
    }
    return SHERD_OK;
}

/* --------------------------------------------------------------- drives ---- */

/* The norm does not count for the step, because in training the reads have begun before it, in
 * backward.
 *
 * A plan counts read / nvme_read + written / nvme_write seconds for the drives of a host, and the
 * update overlaps with both. So the reads are timed alone, in a pass that changes nothing. The
 * writes get the rest of the boundary of a real step, the commit included. With both rates the plan
 * then gives the time of that step. If a drive reads and writes at once so well that a step takes
 * hardly longer than its reads alone, both rates are that of the step. */
static sherd_status nvme_round(bench *b, bench_engine *e, int is_counted)
{
    uint64_t before = e->traffic.read_counted;
    uint64_t fingerprint;
    double   per_host = (double)b->ranks / b->hosts;
    double   read_s   = clock_now_s();
    double   read_bytes;
    double   step_read;
    double   step_s;
    double   write_s;

    BENCH_TRY(sherd_engine_fingerprint(e->engine, &fingerprint));
    BENCH_TRY(bench_slowest(b->world, clock_now_s() - read_s, &read_s));
    BENCH_TRY(sherd_engine_traffic(e->engine, &e->traffic));
    read_bytes = (double)(e->traffic.read_counted - before) * per_host;

    BENCH_TRY(pass_run(b, e, SHERD_BACKWARD));
    BENCH_TRY(sherd_step_close_window(e->engine));
    BENCH_TRY(sherd_world_barrier(b->world));
    BENCH_TRY(step_run(e));
    BENCH_TRY(
        bench_slowest(b->world, e->report.step_s - (is_on_cpu(b) ? e->report.norm_s : 0), &step_s));
    if (!is_counted || read_bytes <= 0) {
        return SHERD_OK;
    }
    step_read = (double)e->report.nvme_read_bytes * per_host - read_bytes;
    write_s   = step_s - read_s * step_read / read_bytes;
    if (write_s < step_s / 4) {
        write_s = step_s / 2;
        read_s  = step_s / 2 * read_bytes / step_read;
    }
    samples_add(b, PLANNING_RATE_NVME_READ, read_bytes, read_s);
    samples_add(b, PLANNING_RATE_NVME_WRITE, (double)e->report.nvme_written_bytes * per_host,
                write_s);
    return SHERD_OK;
}

/* ------------------------------------------------------------- matrices ---- */

/* The bytes that the update moves besides the products count as part of the products. */
static sherd_status matrices_round(bench *b, bench_engine *e, int is_counted)
{
    double update_s;

    BENCH_TRY(pass_run(b, e, SHERD_BACKWARD));
    BENCH_TRY(step_run(e));
    BENCH_TRY(bench_slowest(b->world, e->report.update_s, &update_s));
    if (is_counted) {
        samples_add(b, PLANNING_RATE_PRODUCTS, (double)e->traffic.update_flops_planned, update_s);
    }
    return SHERD_OK;
}

/* ------------------------------------------------------------- the parts ---- */

static sherd_status part_run(bench *b, sherd_world *world, const bench_settings *settings,
                             round_fn run, int dropped)
{
    bench_engine e;
    sherd_status status;

    BENCH_TRY(engine_open(b, world, settings, &e));
    status = rounds_run(b, &e, run, dropped);
    sherd_engine_destroy(e.engine);
    return status;
}

/* Uses windows of two micro-batches that are closed after one, so that no state is read before the
 * step begins. The first two rounds write each generation once. */
static sherd_status nvme_run(bench *b)
{
    bench_settings settings = {.stage = 3, .micro_batches = 2, .state_device = "nvme"};
    scratch_folder folder;
    sherd_status   status;

    if (bench_folder_make(b->world, b->request, b->ranks / b->hosts, &folder) != 0) {
        (void)snprintf(b->why, b->why_bytes, "--nvme-path: %s", folder.why);
        return SHERD_E_IO;
    }
    settings.nvme_path = folder.path;
    status             = part_run(b, b->world, &settings, nvme_round, 2);
    scratch_remove(b->world);
    return status;
}

static int has_part(const bench *b, bench_part part)
{
    return b->request->parts == 0 || (b->request->parts & (unsigned)part) != 0;
}

static sherd_status parts_run(bench *b)
{
    static const bench_settings ON_DEVICE = {.stage = 3, .micro_batches = 1};
    static const bench_settings WITH_HOST = {
        .stage = 3, .micro_batches = 1, .state_device = "cpu", .param_device = "cpu"};
    static const bench_settings OF_MATRICES = {.stage = 3, .micro_batches = 1, .has_matrices = 1};

    if (has_part(b, BENCH_ON_DEVICE)) {
        bench_progress(b->world, "state on the device: device, wire ");
        BENCH_TRY(part_run(b, b->inside, &ON_DEVICE, device_round, 1));
    }
    if (has_part(b, BENCH_WITH_HOST)) {
        bench_progress(b->world, "state with the host: host, down, up ");
        BENCH_TRY(part_run(b, b->inside, &WITH_HOST, host_round, 1));
    }
    if (has_part(b, BENCH_ON_NVME) && b->request->nvme_path != NULL) {
        bench_progress(b->world, "state on NVMe: nvme_read, nvme_write ");
        BENCH_TRY(nvme_run(b));
    }
    if (has_part(b, BENCH_MATRICES)) {
        bench_progress(b->world, "whole matrices: products ");
        BENCH_TRY(part_run(b, b->inside, &OF_MATRICES, matrices_round, 1));
    }
    if (has_part(b, BENCH_BETWEEN) && b->between != NULL) {
        bench_progress(b->world, "other hosts: between ");
        BENCH_TRY(part_run(b, b->between, &ON_DEVICE, between_round, 1));
    }
    return SHERD_OK;
}

/* Finds this rank's host, by the numbers that all ranks have on theirs. Ranks of a host have to follow
 * one another; `host` is -1 where they do not. */
static sherd_status hosts_find(bench *b, int *host)
{
    double      *locals = calloc((size_t)b->ranks, sizeof(*locals));
    sherd_status status;

    *host = -1;
    if (locals == NULL) {
        (void)snprintf(b->why, b->why_bytes, "no memory for the numbers of the ranks");
        return SHERD_E_NOMEM;
    }
    locals[b->rank] = sherd_world_local_rank(b->world);
    status          = sherd_world_sum_f64(b->world, locals, (size_t)b->ranks);
    for (int r = 0, next = 0; r < b->ranks && next >= 0 && status == SHERD_OK; r++) {
        b->hosts += locals[r] == 0;
        next  = locals[r] == 0 ? 1 : locals[r] == next ? next + 1 : -1;
        *host = next < 0 ? -1 : r == b->rank ? b->hosts - 1 : *host;
    }
    free(locals);
    return status;
}

/* Makes the worlds inside hosts and between them. */
static sherd_status worlds_make(bench *b)
{
    int host;

    BENCH_TRY(hosts_find(b, &host));
    b->inside = b->world;
    if (host < 0) {
        (void)snprintf(b->why, b->why_bytes,
                       "the ranks of a host do not follow one another: start them host by host "
                       "(mpirun --map-by slot, srun --distribution=block)");
        return SHERD_E_INVAL;
    }
    if (b->hosts == 1) {
        return SHERD_OK;
    }
    BENCH_TRY(sherd_world_split(b->world, host, b->rank, &b->inside));
    return sherd_world_split(b->world, sherd_world_local_rank(b->world), b->rank, &b->between);
}

static void worlds_close(bench *b)
{
    sherd_world_destroy(b->between);
    if (b->inside != b->world) {
        sherd_world_destroy(b->inside);
    }
}

static sherd_status memory_take(bench *b)
{
    b->gradient = malloc(GRADIENT_ELEMS * sizeof(*b->gradient));
    if (b->gradient == NULL) {
        (void)snprintf(b->why, b->why_bytes, "no memory for a gradient");
        return SHERD_E_NOMEM;
    }
    for (size_t i = 0; i < GRADIENT_ELEMS; i++) {
        b->gradient[i] = (uint16_t)(0x3c00 + i % 128); /* 0.0078 to 0.0156 */
    }
    return SHERD_OK;
}

sherd_status bench_rates_measure(sherd_world *world, const bench_request *request,
                                 bench_result *out, char *why, size_t why_bytes)
{
    bench       *b = calloc(1, sizeof(*b));
    sherd_status status;

    why[0] = '\0';
    if (b == NULL) {
        (void)snprintf(why, why_bytes, "no memory to begin with");
        return SHERD_E_NOMEM;
    }
    *b = (bench){.world     = world,
                 .request   = request,
                 .rank      = sherd_world_rank(world),
                 .ranks     = sherd_world_size(world),
                 .why       = why,
                 .why_bytes = why_bytes};

    status = memory_take(b);
    if (status == SHERD_OK) {
        status = worlds_make(b);
    }
    if (status == SHERD_OK) {
        status = parts_run(b);
    }
    *out = (bench_result){.ranks = b->ranks, .ranks_per_host = b->ranks / (b->hosts + !b->hosts)};
    (void)snprintf(out->transport, sizeof(out->transport), "%s", sherd_world_transport(world));
    for (int i = 0; i < PLANNING_RATES; i++) {
        out->rates[i] = rate_of(&b->rates[i]);
    }
    worlds_close(b);
    free(b->gradient);
    free(b);
    return status;
}
