/* See offload_rank.h. The process reads questions from a pipe and answers on another; a failure
 * ends it with a sentence. */
#include "bench/offload_rank.h"

#include "bench/link.h"
#include "engine/run/store.h"
#include "engine/report.h"

#include "models/blas.h"
#include "models/clock.h"
#include "trainer/declare.h"
#include "trainer/init.h"
#include "trainer/passes.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct rank {
    const offload_setup *setup;
    sherd_world         *world;
    sherd_engine        *engine;
    pool                *threads;
    passes              *passes; /* of the shape that was asked for last */
    int32_t             *tokens; /* inputs, targets [batch, length] */
    size_t               rows;   /* batch * length */
    bench_link           link;
    uint64_t             down_bytes, up_bytes; /* that the last waited step moved over the link */
    layer_places         places;
} rank;

typedef struct question {
    offload_ask what;
    size_t      count, length;
} question;

static _Noreturn void die(const char *what, const char *why)
{
    (void)fprintf(stderr, "bench-offload: %s: %s\n", what, why);
    exit(1);
}

static void must(sherd_status status, const char *what)
{
    if (status != SHERD_OK) {
        die(what, sherd_last_error());
    }
}

static int is_gpu(const rank *r)
{
    return strcmp(r->setup->backend, "cuda") == 0;
}

/* ---------------------------------------------------------------- set-up -- */

static sherd_config *config_make(const offload_setup *o)
{
    sherd_config *config;
    char          json[2048];
    int           len =
        snprintf(json, sizeof(json),
                 "{\"train_micro_batch_size_per_gpu\": %zu, \"gradient_clipping\": 1.0,"
                 " \"bf16\": {\"enabled\": %s},"
                 " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-4}},"
                 " \"zero_optimization\": {\"stage\": %d,"
                 " \"offload_optimizer\": {\"device\": \"%s\", \"nvme_path\": \"%s\"}},"
                 " \"aio\": {\"queue_depth\": %d},"
                 " \"sherd\": {\"activations\": {\"nvme_path\": \"%s\", \"buffer_count\": %d}}}",
                 o->batch > 0 ? o->batch : 1, strcmp(o->precision, "bf16") == 0 ? "true" : "false",
                 o->stage, o->place, o->drive.folder, o->drive.depth > 0 ? o->drive.depth : 8,
                 o->drive.folder, o->activation_buffers > 0 ? o->activation_buffers : 2);

    must(sherd_config_parse(json, (size_t)len, &config), "configuration");
    if (strcmp(o->place, "nvme") == 0) {
        must(bench_drive_set(&o->drive, config), "configuration");
    }
    return config;
}

static layer_places places_of(const offload_setup *o)
{
    layer_places places = {0};
    char         why[320];

    if (o->activations != NULL &&
        layer_places_parse(o->activations, &places, why, sizeof(why)) != 0) {
        die("activations", why);
    }
    return places;
}

static void engine_open(rank *r)
{
    const offload_setup *o      = r->setup;
    sherd_config        *config = config_make(o);
    sherd_world_params   params;

    sherd_world_params_init(&params);
    params.backend     = o->backend;
    params.cpu_threads = o->threads;
    must(sherd_world_create(0, 1, NULL, &params, &r->world), o->backend);
    must(sherd_engine_create(r->world, config, &r->engine), "engine");
    sherd_config_destroy(config);
    must(arch_declare(&o->sizes, r->engine), "model");
    r->places = places_of(o);
    must(activations_declare(&o->sizes, &r->places, o->length, r->engine), "activations");
    must(sherd_engine_seal(r->engine), "seal");
    r->threads = pool_create(o->threads);
    if (r->threads == NULL) {
        die("threads", strerror(ENOMEM));
    }
    must(init_fill(&o->sizes, r->engine, 1, r->threads), "first weights");
    if (is_gpu(r)) {
        must(bench_link_open(&r->link, 0), "link");
    }
}

static void rank_open(rank *r)
{
    char threads[16], why[256];

    if (is_gpu(r) && sherd_device_count("cuda") == 0) {
        (void)printf("bench-offload: skipped: %s\n", sherd_last_error());
        (void)fflush(stdout);
        _exit(OFFLOAD_EXIT_SKIP);
    }
    (void)snprintf(threads, sizeof(threads), "%d", r->setup->threads);
    (void)setenv("SHERD_THREADS", threads, 1);
    (void)blas_open();
    if (!is_gpu(r) && blas_reserve(r->setup->threads, why, sizeof(why)) != 0) {
        die("threads", why);
    }
    engine_open(r);
}

static void shape_set(rank *r, size_t batch, size_t length)
{
    const offload_setup *o      = r->setup;
    sherd_engine_info    info   = {.struct_size = sizeof(info)};
    model_params         params = {.sizes   = o->sizes,
                                   .batch   = batch,
                                   .length  = length,
                                   .places  = r->places,
                                   .backend = o->backend,
                                   .threads = r->threads,
                                   .stream  = sherd_engine_stream(r->engine)};
    char                 why[256];

    must(sherd_engine_query(r->engine, &info), "engine");
    params.dtype = info.compute_dtype;
    passes_destroy(r->passes);
    free(r->tokens);
    r->rows   = batch * length;
    r->passes = passes_create(r->engine, &params, why, sizeof(why));
    r->tokens = calloc(2 * r->rows, sizeof(*r->tokens));
    if (r->passes == NULL || r->tokens == NULL) {
        die("model", r->passes == NULL ? why : strerror(ENOMEM));
    }
    for (size_t i = 0; i < 2 * r->rows; i++) {
        r->tokens[i] = (int32_t)((i * 2654435761u >> 7) % o->sizes.vocab);
    }
    passes_batch_set(r->passes, r->tokens, r->tokens + r->rows);
}

static void rank_close(rank *r)
{
    passes_destroy(r->passes);
    bench_link_close(&r->link);
    sherd_engine_destroy(r->engine);
    sherd_world_destroy(r->world);
    pool_destroy(r->threads);
    free(r->tokens);
}

/* ----------------------------------------------------------------- steps -- */

static void losses_take(rank *r)
{
    double loss;

    if (passes_losses_take(r->passes, &loss) != SHERD_OK) {
        die("loss", passes_why(r->passes));
    }
    if (!(loss > 0.0)) {
        die("loss", "it is no positive number");
    }
}

static void turn_add(offload_turn *turn, const sherd_step_report *report)
{
    turn->update_s += report->update_s;
    turn->norm_s += report->norm_s;
    turn->beside_s += report->beside_s;
    turn->wait_s += report->wait_update_s;
    turn->read_s += report->wait_read_s + report->beside_read_s;
    turn->write_s += report->wait_write_s + report->beside_write_s;
}

/* The bytes that the queue of the state's files has moved so far, for all of its users. */
static uint64_t drive_moved(const rank *r)
{
    sherdi_io_traffic moved;

    if (r->engine->storage.store == NULL) {
        return 0;
    }
    moved = sherdi_ioq_traffic(r->engine->storage.store->queue);
    return moved.read_bytes + moved.written_bytes;
}

/* The report of the update that overlaps with the passes; as in the trainer it is requested after
 * the passes. */
static void update_wait(rank *r, offload_turn *turn)
{
    sherd_step_report report;

    sherd_step_report_init(&report);
    must(sherd_step_wait(r->engine, &report), "update");
    losses_take(r);
    turn_add(turn, &report);
}

/* One more step than is timed: the first overlaps with no update, and the last update is waited for
 * after the timing. */
static void steps_queued(rank *r, size_t count, offload_turn *turn)
{
    double first_s = 0.0;

    for (size_t i = 0; i <= count; i++) {
        double   start = clock_now_s(), middle, end;
        uint64_t moved;

        must(passes_forward(r->passes), "forward");
        middle = clock_now_s();
        moved  = drive_moved(r);
        must(passes_backward(r->passes), "backward");
        end = clock_now_s();
        if (i > 0) {
            turn->hidden_bytes += drive_moved(r) - moved;
            turn->forward_s += middle - start;
            turn->backward_s += end - middle;
            turn->first_wait_s += passes_first_wait_s(r->passes);
            update_wait(r, turn);
        }
        passes_batch_set(r->passes, r->tokens, r->tokens + r->rows);
        must(sherd_step_queue(r->engine), "step");
        passes_losses_close(r->passes);
        first_s = i == 0 ? clock_now_s() : first_s;
    }
    turn->step_s = clock_now_s() - first_s;
    update_wait(r, &(offload_turn){.step_s = 0.0});
}

/* Nothing overlaps except the work that backward hides, so these times are the parts. */
static void steps_waited(rank *r, size_t count, offload_turn *turn)
{
    double first_s = clock_now_s();

    for (size_t i = 0; i < count; i++) {
        double            start = clock_now_s(), middle;
        uint64_t          moved;
        sherd_step_report report;

        must(passes_forward(r->passes), "forward");
        must(sherdi_lane_wait(r->engine->backend), "forward");
        middle = clock_now_s();
        moved  = drive_moved(r);
        must(passes_backward(r->passes), "backward");
        must(sherdi_lane_wait(r->engine->backend), "backward");
        turn->hidden_bytes += drive_moved(r) - moved;
        turn->forward_s += middle - start;
        turn->backward_s += clock_now_s() - middle;
        turn->first_wait_s += passes_first_wait_s(r->passes);
        sherd_step_report_init(&report);
        must(sherd_step(r->engine, &report), "step");
        losses_take(r);
        passes_batch_set(r->passes, r->tokens, r->tokens + r->rows);
        turn_add(turn, &report);
        r->down_bytes = report.link_down_bytes;
        r->up_bytes   = report.link_up_bytes;
    }
    turn->step_s = clock_now_s() - first_s;
}

static void means_take(offload_turn *turn, size_t count)
{
    double *sums[] = {&turn->step_s, &turn->forward_s, &turn->backward_s, &turn->first_wait_s,
                      &turn->wait_s, &turn->update_s,  &turn->norm_s,     &turn->beside_s,
                      &turn->read_s, &turn->write_s};

    for (size_t i = 0; i < sizeof(sums) / sizeof(sums[0]); i++) {
        *sums[i] /= (double)count;
    }
    turn->hidden_bytes /= count;
}

static void drive_run(rank *r, offload_turn *turn)
{
    const sherdi_plan_moves *moves   = sherdi_plan_moves_of(r->engine->plan);
    double                   state_s = 0.0, activations_s = 0.0;

    if (strcmp(r->setup->place, "nvme") == 0) {
        must(bench_drive_run(r->engine, &state_s), "transfers");
    }
    if (r->engine->plan->rings[SHERDI_RING_ACTIVATIONS].num_extents > 0) {
        must(bench_activations_run(r->engine, &activations_s), "activations");
    }
    turn->alone_s = state_s + activations_s;
    turn->drive_bytes += moves->micro[SHERDI_MOVES_READ] + moves->micro[SHERDI_MOVES_WRITTEN];
}

static offload_turn turn_run(rank *r, const question *q)
{
    const sherdi_plan *plan = r->engine->plan;
    offload_turn       turn = {.drive_bytes = sherdi_plan_moves_of(plan)->step[SHERDI_MOVES_READ] +
                                              sherdi_plan_moves_of(plan)->step[SHERDI_MOVES_WRITTEN],
                               .param_elems = arch_elems(&r->setup->sizes)};

    switch (q->what) {
    case OFFLOAD_SHAPE:
        shape_set(r, q->count, q->length);
        steps_waited(r, 1, &turn);
        steps_queued(r, 1, &turn);
        break;
    case OFFLOAD_QUEUED:
        steps_queued(r, q->count, &turn);
        means_take(&turn, q->count);
        break;
    case OFFLOAD_WAITED:
        steps_waited(r, q->count, &turn);
        means_take(&turn, q->count);
        break;
    case OFFLOAD_DRIVE:
        drive_run(r, &turn);
        break;
    case OFFLOAD_LINK:
        must(bench_link_run(&r->link, r->down_bytes, r->up_bytes, &turn.alone_s), "link");
        break;
    }
    return turn;
}

static _Noreturn void serve(const offload_setup *setup, int from, int to)
{
    rank     r = {.setup = setup};
    question q;

    /* Ctrl-C ends the process that asks; this one finds that out, and removes its files */
    (void)signal(SIGINT, SIG_IGN);
    (void)signal(SIGTERM, SIG_IGN);
    rank_open(&r);
    while (read(from, &q, sizeof(q)) == (ssize_t)sizeof(q)) {
        offload_turn turn = turn_run(&r, &q);

        if (write(to, &turn, sizeof(turn)) != (ssize_t)sizeof(turn)) {
            break;
        }
    }
    rank_close(&r);
    exit(0);
}

/* --------------------------------------------------------- the other side -- */

void offload_rank_start(const offload_setup *setup, offload_rank *out)
{
    int to[2], from[2];

    (void)signal(SIGPIPE, SIG_IGN); /* its end is found when its answer is read */
    (void)fflush(NULL);
    if (pipe2(to, O_CLOEXEC) != 0 || pipe2(from, O_CLOEXEC) != 0) {
        die("pipe", strerror(errno));
    }
    out->process = fork();
    if (out->process < 0) {
        die("fork", strerror(errno));
    }
    if (out->process == 0) {
        (void)close(to[1]);
        (void)close(from[0]);
        serve(setup, to[0], from[1]);
    }
    (void)close(to[0]);
    (void)close(from[1]);
    out->to   = to[1];
    out->from = from[0];
}

void offload_rank_ask(const offload_rank *rank, offload_ask what, size_t count, size_t length)
{
    question q = {.what = what, .count = count, .length = length};

    (void)!write(rank->to, &q, sizeof(q));
}

offload_turn offload_rank_answer(const offload_rank *rank)
{
    offload_turn turn;
    int          status = 0;

    if (read(rank->from, &turn, sizeof(turn)) != (ssize_t)sizeof(turn)) {
        (void)waitpid(rank->process, &status, 0);
        exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
    }
    return turn;
}

void offload_rank_stop(offload_rank *rank)
{
    (void)close(rank->to);
    (void)close(rank->from);
    (void)waitpid(rank->process, NULL, 0);
}
