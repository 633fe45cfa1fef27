/* One rank's training: engine, loop, validation, summary, sample. The order of everything is in
 * train(), at the end of the file. See trainer.h. */
#include "trainer_impl.h"

#include "models/blas.h"
#include "models/clock.h"
#include "models/onednn.h"
#include "declare.h"
#include "memory.h"
#include "init.h"
#include "sample.h"
#include "try.h"
#include "weights.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VALIDATION_BATCHES 16 /* over all ranks */
#define SAMPLE_TEMPERATURE 0.8
#define PROMPT_TOKENS      32
#define TRIAL_STEPS        3
#define MEMORY_SECONDS     10.0

/* The sentence of a failure of this program; the engine's failures are in sherd_last_error(). */
static _Thread_local char own_error[1024];

sherd_status trainer_fail(sherd_status status, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(own_error, sizeof(own_error), fmt, args);
    va_end(args);
    return status;
}

static sherd_status data_fail(const trainer *t)
{
    return trainer_fail(SHERD_E_IO, "%s: %s", t->o.data_path,
                        errno != 0 ? strerror(errno)
                                   : "was cut off or changed while training reads it");
}

/* --------------------------------------------------------------- set-up -- */

/* Describes seed and data in `run`: a run that resumes should have the same, and the engine
 * compares it. */
sherd_status trainer_run_describe(trainer *t)
{
    const options *o    = &t->o;
    const corpus  *c    = t->job->c;
    uint64_t       hash = 0xcbf29ce484222325; /* FNV-1a of tokens from all parts of the data */
    int32_t        token;

    for (size_t i = 0; i < 4096 && c->count > 0; i++) {
        if (corpus_read(c, (size_t)((double)c->count / 4096 * (double)i), 1, &token) != 0) {
            return data_fail(t);
        }
        hash = (hash ^ (uint64_t)token) * 0x100000001b3;
    }
    (void)snprintf(t->run, sizeof(t->run),
                   "seed %llu, data of %zu tokens (%016llx), sequences of %zu",
                   (unsigned long long)o->seed, c->count, (unsigned long long)hash, o->length);
    return sherd_engine_describe_run(t->engine, t->run);
}

/* Gives the parameters their first values. If state was resumed, --init and the weights of --model
 * are ignored, because the state has the weights. */
static sherd_status first_weights(trainer *t)
{
    char         why[512];
    sherd_status status;

    if (t->o.init_path == NULL || t->info.is_resumed) {
        return init_fill(&t->o.sizes, t->engine, t->o.seed, t->threads);
    }
    status = weights_import(&t->o.sizes, t->engine, t->o.init_path, why, sizeof(why));
    return status == SHERD_OK || why[0] == '\0' ? status
                                                : trainer_fail(status, "first weights: %s", why);
}

sherd_status trainer_declare(const trainer *t, sherd_engine *engine)
{
    TRY(arch_declare(&t->o.sizes, engine));
    return activations_declare(&t->o.sizes, &t->o.places, t->o.length, engine);
}

static sherd_status engine_open(trainer *t)
{
    const sherd_config *config = t->job->config;

    if (t->rank == 0) {
        for (size_t i = 0; i < sherd_config_warning_count(config); i++) {
            (void)fprintf(stderr, "sherd-llm: %s\n", sherd_config_warning(config, i));
        }
    }
    TRY(sherd_engine_create(t->world, config, &t->engine));
    TRY(trainer_declare(t, t->engine));
    TRY(trainer_run_describe(t));
    t->seal_s = -clock_now_s();
    TRY(sherd_engine_seal(t->engine));
    t->seal_s += clock_now_s();
    return SHERD_OK;
}

/* Makes the model and the memory for its micro-batches, in the shapes with which the engine was
 * sealed. */
sherd_status trainer_model_open(trainer *t)
{
    const options *o = &t->o;
    char           why[256];
    model_params   params = {.sizes = o->sizes, .length = o->length, .places = o->places};

    t->info.struct_size = sizeof(t->info);
    TRY(sherd_engine_query(t->engine, &t->info));
    t->threads = pool_create(t->info.cpu_threads);
    if (t->threads == NULL) {
        return trainer_fail(SHERD_E_NOMEM, "%d threads cannot be started", t->info.cpu_threads);
    }
    params.batch = (size_t)t->info.micro_batch_size;
    params.dtype = t->info.compute_dtype;
    t->data = (order){.c = t->job->c, .seed = o->seed, .length = o->length, .batch = params.batch};
    if (strcmp(t->info.backend, "cpu") == 0 &&
        blas_reserve(t->info.cpu_threads, why, sizeof(why)) != 0) {
        return trainer_fail(SHERD_E_NOMEM, "%s", why);
    }
    params.threads = t->threads;
    params.backend = t->info.backend;
    params.stream  = sherd_engine_stream(t->engine);
    params.choices = o->choices;
    t->passes      = passes_create(t->engine, &params, why, sizeof(why));
    if (t->passes == NULL) {
        return trainer_fail(SHERD_E_NOMEM, "%s", why);
    }
    t->tokens = calloc(2 * params.batch * o->length, sizeof(*t->tokens));
    if (t->tokens == NULL) {
        return trainer_fail(SHERD_E_NOMEM, "out of memory");
    }
    return SHERD_OK;
}

/* Plans the same model at stage 0, without sealing it: this shows what one rank would hold without
 * ZeRO. */
static sherd_status stage0_measure(trainer *t)
{
    sherd_world  *world  = NULL;
    sherd_engine *engine = NULL;
    sherd_status  status = sherd_world_simulate(0, t->world_size, &world);
    char          stage[16];

    (void)snprintf(stage, sizeof(stage), "%d", t->info.stage);
    if (status == SHERD_OK) {
        status = sherd_config_set(t->job->config, "!zero_optimization.stage", "0");
    }
    if (status == SHERD_OK) { /* nothing is sharded at stage 0 */
        status = sherd_config_set(t->job->config, "!sherd.shard_size", "0");
    }
    if (status == SHERD_OK) {
        status = sherd_engine_create(world, t->job->config, &engine);
    }
    if (status == SHERD_OK) {
        status = trainer_declare(t, engine);
    }
    if (status == SHERD_OK) {
        t->stage0_bytes = memory_of(engine).total_planned;
        /* for ranks that come later; a run whose ranks do has no shard_size */
        status = sherd_config_set(t->job->config, "!zero_optimization.stage", stage);
    }
    sherd_engine_destroy(engine);
    sherd_world_destroy(world);
    return status;
}

static size_t rank_bytes(const trainer *t)
{
    return memory_of(t->engine).total_held + passes_bytes(t->passes);
}

static void products_say(const trainer *t)
{
    char what[256], half[320], warning[512];

    report_say(t->r, "products by %s", blas_describe(what));
    if (t->info.compute_dtype == SHERD_BF16) {
        report_say(t->r, "products of bf16: %s", onednn_describe(half));
    }
    if (blas_warning(warning) != NULL) {
        (void)fprintf(stderr, "sherd-llm: %s\n", warning);
    }
}

static void heading_say(const trainer *t)
{
    const options *o = &t->o;
    const corpus  *c = t->job->c;
    char           data[32];

    report_say(t->r, "%s of %zu parameters: hidden %zu, %zu layers, %zu heads, vocabulary %zu",
               arch_kind_name(o->sizes.kind), t->info.param_elems, o->sizes.hidden, o->sizes.layers,
               o->sizes.heads, o->sizes.vocab);
    report_say(t->r, "data: %s in %zu file%s, %zu tokens, the last %zu for validation",
               report_bytes(c->count * c->token_bytes, data), c->files, c->files == 1 ? "" : "s",
               c->count, c->count - c->train);
    report_say(
        t->r,
        "ZeRO stage %d, %s, %d rank%s (%s) of %d thread%s; a step is %d sequences of %zu tokens",
        t->info.stage, sherd_dtype_name(t->info.compute_dtype), t->world_size,
        t->world_size == 1 ? "" : "s", sherd_world_transport(t->world), t->info.cpu_threads,
        t->info.cpu_threads == 1 ? "" : "s", t->info.train_batch_size, o->length);
    if (passes_device(t->passes)[0] != '\0') {
        report_say(t->r, "on %s, %s of activations and scratch", passes_device(t->passes),
                   report_bytes(passes_bytes(t->passes), data));
    } else {
        products_say(t);
    }
    if (t->trial_step_s > 0.0) {
        report_say(t->r, "%ld of %ld steps fit into %g minutes at %.2f s a step", o->steps,
                   t->job->o->steps, o->minutes, t->trial_step_s);
    }
}

static size_t micro_tokens(const trainer *t)
{
    return t->data.batch * t->data.length;
}

/* Returns the tokens per second of all ranks if their GPUs always ran at their peak; 0: not
 * known. */
static double peak_rate(const trainer *t)
{
    const options *o    = &t->o;
    double         peak = isnan(o->peak_tflops)
                              ? speed_peak_flops(passes_device(t->passes), t->info.compute_dtype)
                              : 1e12 * o->peak_tflops;

    return passes_device(t->passes)[0] == '\0'
               ? 0.0
               : peak * (double)t->world_size / speed_flops_per_token(&o->sizes, o->length);
}

static sherd_status report_start(trainer *t)
{
    const options *o      = &t->o;
    report_params  params = {.log_path     = o->log_path,
                             .peak_rate    = peak_rate(t),
                             .steps        = o->steps,
                             .print_every  = t->info.steps_per_print,
                             .memory_bytes = rank_bytes(t),
                             .is_quiet     = o->is_quiet,
                             .is_appended  = o->is_resumed || o->resume_from != NULL};

    if (t->rank != 0) {
        return SHERD_OK;
    }
    TRY(o->export_path != NULL ? weights_export_check(o->export_path) : SHERD_OK);
    t->r = report_open(&params);
    if (t->r == NULL) {
        return trainer_fail(SHERD_E_IO, "the report cannot be written");
    }
    heading_say(t);
    return stage0_measure(t);
}

sherd_status trainer_report_take(trainer *t)
{
    const options *o      = &t->o;
    report_params  params = {.log_path     = o->log_path,
                             .peak_rate    = peak_rate(t),
                             .steps        = o->steps,
                             .print_every  = t->info.steps_per_print,
                             .memory_bytes = rank_bytes(t),
                             .is_quiet     = o->is_quiet,
                             .is_appended  = 1,
                             .is_taken     = 1};

    t->r = report_open(&params);
    if (t->r == NULL) {
        return trainer_fail(SHERD_E_IO, "the report cannot be written");
    }
    t->saved.r = t->r;
    return stage0_measure(t);
}

static sherd_status saves_checked(const trainer *t, sherd_status status)
{
    return status == SHERD_OK || t->saved.why[0] == '\0' ? status
                                                         : trainer_fail(status, "%s", t->saved.why);
}

static void memory_lines_say(const trainer *t, const char *when)
{
    int          is_threads = strcmp(sherd_world_transport(t->world), "threads") == 0;
    memory_place place      = {.activation_bytes = passes_bytes(t->passes),
                               .is_gpu           = strcmp(t->info.backend, "cpu") != 0,
                               .ranks            = is_threads ? t->world_size : 1};

    memory_say(t->r, when, t->engine, &place);
}

/* Says how long the memory of this rank took, and its values, by each of its threads. */
static void start_say(const trainer *t, double values_s)
{
    size_t held    = memory_of(t->engine).total_held;
    double threads = t->info.cpu_threads;
    char   text[32];

    report_say(t->r,
               "start: %s sealed in %.2f s (%.2f GB/s a thread), values in %.2f s (%.1f million "
               "elements a second and thread)",
               report_bytes(held, text), t->seal_s, (double)held / 1e9 / t->seal_s / threads,
               values_s, (double)t->info.param_elems / 1e6 / values_s / threads);
    memory_lines_say(t, "start");
}

void trainer_saves_init(trainer *t)
{
    size_t len = strlen(t->run);

    (void)snprintf(t->run + len, sizeof(t->run) - len, ", steps of %d sequences",
                   t->info.train_batch_size);
    t->saved =
        (saves){.o = &t->o, .world = t->world, .engine = t->engine, .r = t->r, .run = t->run};
}

/* Sets the values of the parameters, from a checkpoint, from state on NVMe, or new ones, and finds
 * how far the run is. */
static sherd_status values_start(trainer *t)
{
    saves_position position  = {.step      = (long)(t->info.micro_step / t->info.accumulation),
                                .sequences = (uint64_t)t->info.samples};
    int            is_loaded = 0;
    double         start     = clock_now_s();

    trainer_saves_init(t);
    TRY(saves_checked(t, saves_open(&t->saved)));
    TRY(saves_checked(t, saves_resume(&t->saved, &position, &is_loaded)));
    t->is_resumed = is_loaded || t->info.is_resumed;
    t->step = t->first_step = position.step;
    t->sequences = t->first_sequences = position.sequences;
    t->place.told                     = position.step;
    t->place.anchor                   = position;
    if (t->r != NULL) {
        report_start_at(t->r, t->sequences * t->o.length);
    }
    TRY(is_loaded ? SHERD_OK : first_weights(t));
    if (t->r != NULL) {
        start_say(t, clock_now_s() - start);
    }
    return SHERD_OK;
}

/* Frees everything but the world. */
static void trainer_close(trainer *t)
{
    passes_destroy(t->passes);
    sherd_engine_destroy(t->engine);
    pool_destroy(t->threads);
    free(t->tokens);
    t->passes    = NULL;
    t->engine    = NULL;
    t->threads   = NULL;
    t->tokens    = NULL;
    t->has_batch = 0;
}

/* ----------------------------------------------------------------- loop -- */

/* The micro-batches of a step, on all ranks together. */
static long step_micros(const trainer *t)
{
    return t->info.train_batch_size / t->info.micro_batch_size;
}

static sherd_status losses_take(trainer *t, double *sum_out)
{
    sherd_status status = passes_losses_take(t->passes, sum_out);

    return status == SHERD_OK ? status : trainer_fail(status, "%s", passes_why(t->passes));
}

/* Computes the mean loss over the same micro-batches whatever the number of ranks. A rank without a
 * remaining micro-batch takes part in the pass, which is collective, and does not count its
 * loss. */
static sherd_status validate(trainer *t, double *loss_out)
{
    double sum = 0.0;

    for (int i = 0; i < VALIDATION_BATCHES; i += t->world_size) {
        int    number = i + t->rank;
        double loss;

        if (order_validate(&t->data, (uint64_t)(number < VALIDATION_BATCHES ? number : 0),
                           VALIDATION_BATCHES, t->tokens, t->tokens + micro_tokens(t)) != 0) {
            return data_fail(t);
        }
        TRY(passes_eval(t->passes, t->tokens, t->tokens + micro_tokens(t)));
        TRY(losses_take(t, &loss));
        sum += number < VALIDATION_BATCHES ? loss : 0.0;
    }
    *loss_out = 0.0;
    if (sherd_world_sum_f64(t->world, &sum, 1) != SHERD_OK) {
        return SHERD_E_PEER_LOST;
    }
    *loss_out = sum / VALIDATION_BATCHES;
    return SHERD_OK;
}

/* Asks for the held memory after each step if no later step is queued, else once in MEMORY_SECONDS:
 * a GPU may answer late, even after the queued work. */
static void memory_take(trainer *t, int is_last)
{
    double              now = clock_now_s();
    sherd_memory_report memory;

    if (!is_last && t->memory_asked_s > 0.0 && now - t->memory_asked_s < MEMORY_SECONDS) {
        return;
    }
    t->memory_asked_s         = now;
    memory                    = memory_of(t->engine);
    t->figures.memory_planned = memory.total_planned;
    t->figures.memory_held    = memory.total_held;
}

static void traffic_counted(const sherd_traffic_report *r, uint64_t out[REPORT_MEDIA])
{
    out[REPORT_WIRE]    = r->wire_counted;
    out[REPORT_DOWN]    = r->down_counted;
    out[REPORT_UP]      = r->up_counted;
    out[REPORT_READ]    = r->read_counted;
    out[REPORT_WRITTEN] = r->written_counted;
    out[REPORT_BETWEEN] = r->between_counted;
}

static void traffic_planned(const sherd_traffic_report *r, uint64_t out[REPORT_MEDIA])
{
    uint64_t n = (uint64_t)r->accumulation;

    out[REPORT_WIRE]    = n * r->wire_micro_planned + r->wire_step_planned;
    out[REPORT_DOWN]    = n * r->down_micro_planned + r->down_step_planned;
    out[REPORT_UP]      = n * r->up_micro_planned + r->up_step_planned;
    out[REPORT_READ]    = n * r->read_micro_planned + r->read_step_planned;
    out[REPORT_WRITTEN] = n * r->written_micro_planned + r->written_step_planned;
    out[REPORT_BETWEEN] = n * r->between_micro_planned + r->between_step_planned;
}

/* Sets this rank's terms of the sums: its traffic between the two reports. */
static void traffic_sum(const queued_step *q, step_sums *sums)
{
    uint64_t first[REPORT_MEDIA], last[REPORT_MEDIA], planned[REPORT_MEDIA];

    traffic_counted(&q->before, first);
    traffic_counted(&q->after, last);
    traffic_planned(&q->after, planned);
    for (int i = 0; i < REPORT_MEDIA; i++) {
        sums->counted[i] = (double)(last[i] - first[i]);
        sums->planned[i] = (double)planned[i];
        /* of what goes to other hosts, transports other than MPI know the plan alone */
        if (last[i] - first[i] != planned[i] && (i != REPORT_BETWEEN || last[i] > 0)) {
            sums->off_plan = 1.0;
        }
    }
}

/* Adds to a report of traffic. */
static void traffic_add(sherd_traffic_report *r, const uint64_t bytes[REPORT_MEDIA], int sign)
{
    uint64_t *to[REPORT_MEDIA] = {
        [REPORT_WIRE] = &r->wire_counted,       [REPORT_DOWN] = &r->down_counted,
        [REPORT_UP] = &r->up_counted,           [REPORT_READ] = &r->read_counted,
        [REPORT_WRITTEN] = &r->written_counted, [REPORT_BETWEEN] = &r->between_counted};

    for (int i = 0; i < REPORT_MEDIA; i++) {
        *to[i] += sign > 0 ? bytes[i] : 0 - bytes[i];
    }
}

/* Waits for the update of the queued step. The traffic of a queued update counts when a call has
 * waited for it: here, and so for its own step. */
static sherd_status step_wait(trainer *t, queued_step *q)
{
    sherd_traffic_report reports[2];
    uint64_t             bytes[2][REPORT_MEDIA];

    for (int i = 0; i < 2; i++) {
        sherd_traffic_report_init(&reports[i]);
        TRY(sherd_engine_traffic(t->engine, &reports[i]));
        traffic_counted(&reports[i], bytes[i]);
        if (i == 0) {
            TRY(sherd_step_wait(t->engine, &q->report));
        }
    }
    for (int i = 0; i < REPORT_MEDIA; i++) {
        bytes[1][i] -= bytes[0][i];
        t->reported[i] += bytes[1][i];
    }
    traffic_add(&q->after, bytes[1], 1);
    return SHERD_OK;
}

/* Completes the report of a step in whose update a rank was lost. The survivors know the norm. */
static sherd_status report_complete(trainer *t, queued_step *q)
{
    q->is_recovered = 0;
    if (t->place.told < q->step) {
        q->report.step        = t->info.step;
        q->report.was_updated = t->info.step > t->place.updates;
    }
    return sherd_engine_fingerprint(t->engine, &q->report.fingerprint);
}

static void figures_take(trainer *t, const queued_step *q)
{
    t->figures.ranks_off_plan = (int)q->sums.off_plan;
    t->figures.engine         = q->report;
    for (int i = 0; i < REPORT_MEDIA; i++) {
        t->figures.counted[i] = (uint64_t)q->sums.counted[i];
        t->figures.planned[i] = (uint64_t)q->sums.planned[i];
    }
}

/* Counts what this rank has sent so far; to other hosts where the plan has several. */
static sherd_status sent_count(const trainer *t, const queued_step *q, uint64_t out[2])
{
    sherd_traffic_report report;

    out[1] = 0;
    if (q->after.between_micro_planned + q->after.between_step_planned > 0) {
        sherd_traffic_report_init(&report);
        TRY(sherd_engine_traffic(t->engine, &report));
        out[1] = report.between_counted;
    }
    sherd_world_traffic(t->world, &out[0], NULL);
    return SHERD_OK;
}

static int is_validated(const trainer *t, long step)
{
    return t->is_stopping || step == t->o.steps ||
           (t->o.eval_every > 0 && step % t->o.eval_every == 0);
}

/* Waits for the losses of the queued step, sums over the ranks and reports the step. `is_last`: no
 * step is queued after it, so the model can be validated. Does nothing if no step is pending. */
static sherd_status step_print(trainer *t, int is_last)
{
    queued_step *q    = &t->queued;
    report_step  line = {.validation_loss = (double)NAN};
    uint64_t     sent[2][2]; /* to other ranks, and to other hosts */
    double       now;

    if (!q->is_untold) {
        return SHERD_OK;
    }
    q->is_untold = 0;
    memory_take(t, is_last);
    TRY(step_wait(t, q));
    TRY(q->is_recovered ? report_complete(t, q) : SHERD_OK);
    traffic_sum(q, &q->sums);
    TRY(losses_take(t, &q->sums.losses)); /* 0 if losses_tell has taken them */
    TRY(sent_count(t, q, sent[0]));
    TRY(sherd_world_sum_f64(t->world, (double *)&q->sums, sizeof(q->sums) / sizeof(double)));
    TRY(sent_count(t, q, sent[1]));
    t->reported[REPORT_WIRE] += sent[1][0] - sent[0][0];
    t->reported[REPORT_BETWEEN] += sent[1][1] - sent[0][1];
    t->is_stopping |= q->sums.stopping > 0.0;
    t->place.wanted = q->sums.ranks > 0 ? (int)q->sums.ranks : t->place.wanted;
    q->sums.losses += trainer_has_turns(t) ? t->place.losses : 0.0;
    t->last_loss   = q->sums.losses / (double)step_micros(t);
    t->first_loss  = q->step == t->first_step + 1 ? t->last_loss : t->first_loss;
    t->fingerprint = q->report.fingerprint;
    figures_take(t, q);
    now          = clock_now_s();
    line.figures = t->figures;
    line.step    = q->step;
    line.loss    = t->last_loss;
    line.tokens  = q->sequences * t->o.length;
    line.seconds = now - t->since_s;
    t->since_s   = now;
    t->seconds += line.seconds;
    speed_add(&t->times, line.seconds);
    if (is_last && is_validated(t, q->step)) {
        TRY(validate(t, &line.validation_loss));
        t->last_validation = line.validation_loss;
        TRY(sherd_monitor_write(t->engine, "Train/Samples/validation_loss", line.validation_loss));
    }
    TRY(sherd_monitor_write(t->engine, "Train/Samples/train_loss", t->last_loss));
    if (t->r != NULL && report_write(t->r, &line) != 0) {
        return trainer_fail(SHERD_E_IO, "the log cannot be written");
    }
    return SHERD_OK;
}

/* Returns whether `step` is reported before the next one begins: if no update overlaps with the
 * passes, or if it validates or saves then. */
static int is_reported_at_once(const trainer *t, long step)
{
    int is_beside = passes_device(t->passes)[0] != '\0' || t->is_host_updating;

    return !is_beside || t->job->is_elastic || is_validated(t, step) ||
           saves_is_due(&t->saved, step);
}

/* Sets the tokens of the micro-batch that comes next in this rank's order. */
static sherd_status batch_set(trainer *t)
{
    uint64_t first = t->sequences + (uint64_t)t->rank * t->data.batch;

    if (order_train(&t->data, first, t->tokens, t->tokens + micro_tokens(t)) != 0) {
        return data_fail(t);
    }
    passes_batch_set(t->passes, t->tokens, t->tokens + micro_tokens(t));
    t->has_batch = 1;
    return SHERD_OK;
}

/* Finds which micro-batches of the step are this rank's. */
static sherd_status share_take(const trainer *t, sherd_share *out)
{
    sherd_share_init(out);
    if (!t->job->is_elastic) { /* all ranks have data, also in a build without the call */
        out->count = out->calls = t->info.accumulation;
        return SHERD_OK;
    }
    return sherd_step_share(t->engine, out);
}

/* Makes forward and backward of the next micro-batch, or takes part in it without data. */
static sherd_status micro_batch_run(trainer *t, int has_data)
{
    if (!has_data) {
        return sherd_micro_batch_skip(t->engine);
    }
    if (!t->has_batch) {
        TRY(batch_set(t));
    }
    t->has_batch = 0;
    return passes_train(t->passes, NULL, NULL);
}

/* Sums the losses of the window before its update. */
static sherd_status losses_tell(trainer *t)
{
    uint64_t sent[2];
    double   sum;

    passes_losses_close(t->passes);
    TRY(losses_take(t, &sum));
    sherd_world_traffic(t->world, &sent[0], NULL);
    TRY(sherd_world_sum_f64(t->world, &sum, 1));
    sherd_world_traffic(t->world, &sent[1], NULL);
    t->reported[REPORT_WIRE] += sent[1] - sent[0];
    t->place.losses = sum;
    return SHERD_OK;
}

/* Makes the micro-batches of one optimizer step, without waiting for its update. The step before it
 * is reported after the first micro-batch, and before the call that changes the engine's report.
 * The tokens of the micro-batch that follows are set while a GPU still computes this one. Some ranks
 * may be without data in the last micro-batch. */
static sherd_status window_run(trainer *t)
{
    uint64_t    end = t->sequences + (uint64_t)t->info.train_batch_size;
    sherd_share share;

    TRY(share_take(t, &share));
    for (int k = 0; k < share.calls; k++) {
        int is_last = k == share.calls - 1;

        TRY(micro_batch_run(t, k < share.count));
        TRY(step_print(t, 0));
        t->sequences += (uint64_t)t->world_size * t->data.batch;
        t->sequences = t->sequences < end ? t->sequences : end;
        /* not earlier: the first acquire of a run commits, too */
        if (is_last) {
            TRY(saves_mark(&t->saved, &(saves_position){t->step + 1, t->sequences}));
        }
        if (is_last ? !is_reported_at_once(t, t->step + 1) : k + 1 < share.count) {
            TRY(batch_set(t));
        }
        if (is_last && trainer_has_turns(t)) {
            TRY(losses_tell(t));
        }
        TRY(sherd_step_queue(t->engine));
    }
    passes_losses_close(t->passes);
    return SHERD_OK;
}

/* Queues one step, and counts only the traffic of the engine in it. */
static sherd_status step_queue(trainer *t)
{
    queued_step q = {
        .is_untold = 1, .step = t->step + 1, .sums.stopping = *t->job->is_stopping ? 1.0 : 0.0};

    if (t->rank == 0 && t->job->wanted != NULL) {
        q.sums.ranks = *t->job->wanted;
    }
    t->since_s = t->queued.is_untold ? t->since_s : clock_now_s();
    sherd_step_report_init(&q.report);
    sherd_traffic_report_init(&q.before);
    sherd_traffic_report_init(&q.after);
    TRY(sherd_engine_traffic(t->engine, &q.before));
    t->is_host_updating = q.before.update_host_planned > 0;
    memset(t->reported, 0, sizeof(t->reported));
    if (trainer_has_turns(t)) { /* the step before is reported; for trainer_recover */
        q.is_untold = 0;
        t->queued   = q;
        q.is_untold = 1;
    }
    TRY(window_run(t));
    TRY(sherd_engine_traffic(t->engine, &q.after));
    traffic_add(&q.after, t->reported, -1);
    t->step++;
    q.sequences = t->sequences;
    t->queued   = q;
    return SHERD_OK;
}

/* Returns whether a resumed run makes no step. */
static int has_nothing_to_do(const trainer *t)
{
    return t->is_resumed && t->first_step >= t->o.steps;
}

/* Saves a checkpoint after this step if it is time for one. */
static sherd_status step_save(trainer *t, int stop)
{
    saves_position position = {.step = t->step, .sequences = t->sequences};

    return saves_checked(t, saves_step(&t->saved, &position, stop || t->step == t->o.steps));
}

static void stop_say(const trainer *t)
{
    if (saves_has(&t->saved, t->step)) {
        report_say(t->r, "stopped after step %ld; --resume goes on from %s/%s", t->step,
                   t->o.save_dir, t->saved.tag);
    } else {
        report_say(t->r, "stopped after step %ld%s", t->step,
                   t->info.state_run != 0 ? "; its state stays, --resume goes on from it" : "");
    }
}

/* Returns whether the last checkpoint is missing: for a user who asked for checkpoints it matters
 * most. */
static int is_unsaved(const trainer *t)
{
    return t->o.save_dir != NULL && t->step > t->first_step && !saves_has(&t->saved, t->step);
}

/* Returns whether state on NVMe must remain: a run that makes no step preserves the state that it
 * found, but not state that it has just made from a checkpoint. The state may be deleted if the run
 * is over or if a checkpoint has its last step. */
static int must_keep_state(const trainer *t, int stop)
{
    return (has_nothing_to_do(t) && t->info.is_resumed) || is_unsaved(t) ||
           (stop && !saves_has(&t->saved, t->step));
}

/* Reports the step that is queued, and saves. */
static sherd_status loop_tell(trainer *t, int *stop)
{
    TRY(step_print(t, 1));
    *stop = t->is_stopping;
    TRY(step_save(t, *stop));
    t->place.told    = t->step;
    t->place.updates = t->queued.report.step;
    return SHERD_OK;
}

/* Makes a step, and changes the ranks before it (processes) or after it (threads). */
static sherd_status loop_step(trainer *t, int *stop)
{
    if (trainer_has_turns(t)) {
        TRY(trainer_turn(t));
        if (t->place.has_left) {
            return SHERD_OK;
        }
    }
    TRY(step_queue(t));
    if (is_reported_at_once(t, t->step)) {
        TRY(loop_tell(t, stop));
    }
    if (t->place.wanted > 0 && t->place.wanted != t->world_size && !*stop && t->step < t->o.steps) {
        TRY(trainer_resize(t));
    }
    return SHERD_OK;
}

static sherd_status loop_run(trainer *t)
{
    int stop = 0;

    /* A run without steps is validated only here. */
    if (t->o.is_first_validated || t->step >= t->o.steps) {
        TRY(validate(t, &t->first_validation));
        t->last_validation = t->first_validation;
    }
    if (trainer_has_turns(t) && !t->place.is_new) {
        TRY(sherd_engine_query(t->engine, &t->info)); /* after a checkpoint was loaded */
        t->place.updates = t->info.step;
    }
    while (t->step < t->o.steps && !stop) {
        sherd_status status = loop_step(t, &stop);

        while (status == SHERD_E_PEER_LOST && trainer_has_turns(t)) {
            status = trainer_recover(t);
            if (status == SHERD_OK && t->queued.is_untold) {
                status = loop_tell(t, &stop);
            }
        }
        TRY(status);
        if (t->place.has_left) {
            return SHERD_OK;
        }
    }
    if (t->step == t->first_step) {
        TRY(sherd_engine_fingerprint(t->engine, &t->fingerprint));
    }
    if (stop && t->r != NULL) {
        stop_say(t);
    }
    if (has_nothing_to_do(t) && t->r != NULL) {
        report_say(t->r, "nothing to do: %ld steps are done and --steps is %ld%s", t->step,
                   t->o.steps, t->info.is_resumed ? "; the state stays" : "");
    }
    return must_keep_state(t, stop) ? sherd_engine_keep_state(t->engine, 1) : SHERD_OK;
}

/* -------------------------------------------------------------- summary -- */

static void memory_parts_say(const trainer *t)
{
    sherd_memory_report m = memory_of(t->engine);
    char total[32], stage0[32], params[32], grads[32], state[32], units[32], activations[32];
    char nvme[32], read_bytes[32], written[32], outside[32];

    report_say(t->r,
               "memory per rank: %s at stage %d, %s at stage 0 (%.2f times as much)\n"
               "  parameters %s, gradients %s, optimizer state %s, units and staging %s",
               report_bytes(m.total_held, total), t->info.stage,
               report_bytes(t->stage0_bytes, stage0),
               m.total_held > 0 ? (double)t->stage0_bytes / (double)m.total_held : 0.0,
               report_bytes(m.params_held + m.host_params_held, params),
               report_bytes(m.grads_held + m.host_grads_held, grads),
               report_bytes(m.state_held + m.host_state_held, state),
               report_bytes(m.gather_held + m.transient_held + m.staging_held + m.host_staging_held,
                            units));
    if (m.nvme_planned > 0) {
        report_say(t->r, "  on NVMe %s; the last step read %s and wrote %s there",
                   report_bytes(m.nvme_planned, nvme),
                   report_bytes(t->figures.engine.nvme_read_bytes, read_bytes),
                   report_bytes(t->figures.engine.nvme_written_bytes, written));
    }
    report_say(t->r, "  in addition %s of activations, the same at every stage",
               report_bytes(passes_bytes(t->passes), activations));
    if (m.device_outside_held > 0) {
        report_say(t->r,
                   "  on the GPU others than the engine hold %s: activations, contexts, libraries, "
                   "other ranks",
                   report_bytes(m.device_outside_held, outside));
    }
}

/* Prints the rate that a longer run would have. It leaves out the first steps, in which a GPU's
 * libraries choose kernels and load. */
static void median_say(const trainer *t, double step_tokens)
{
    double median    = speed_median(&t->times);
    double peak      = peak_rate(t);
    char   share[32] = "";

    if (peak > 0.0) {
        (void)snprintf(share, sizeof(share), ", MFU %.1f %%", 100.0 * step_tokens / median / peak);
    }
    report_say(t->r, "median step %.4g s, %.0f tokens/s%s", median, step_tokens / median, share);
}

static void summary_say(const trainer *t)
{
    char     duration[32];
    uint64_t tokens = (t->sequences - t->first_sequences) * t->o.length;
    long     steps  = t->step - t->first_step;

    if (steps > 0) {
        report_say(t->r, "\n%ld steps, %llu tokens in %s: %.2f steps/s, %.0f tokens/s", steps,
                   (unsigned long long)tokens, report_duration(t->seconds, duration),
                   (double)steps / t->seconds, (double)tokens / t->seconds);
        median_say(t, (double)tokens / (double)steps);
        report_say(t->r, "started in %.1f s", t->until_first_s);
        report_say(t->r, "loss %.4f -> %.4f", t->first_loss, t->last_loss);
    }
    if (isnan(t->first_validation)) {
        report_say(t->r, "validation loss %.4f", t->last_validation);
    } else {
        report_say(t->r, "validation loss %.4f -> %.4f", t->first_validation, t->last_validation);
    }
    memory_parts_say(t);
    memory_lines_say(t, "end");
    saves_say(&t->saved);
    if (passes_note(t->passes)[0] != '\0') {
        report_say(t->r, "%s", passes_note(t->passes));
    }
    report_say(t->r, "fingerprint of the weights 0x%016llx", (unsigned long long)t->fingerprint);
}

/* Makes the tokens of the prompt: the user's bytes, or the start of the validation part. */
static sherd_status prompt_make(const trainer *t, int32_t *out, size_t most, size_t *count_out)
{
    const char *text = t->o.prompt;

    *count_out = most;
    if (text == NULL || text[0] == '\0' || !t->job->c->is_text) {
        return corpus_read(t->job->c, t->job->c->train, most, out) == 0 ? SHERD_OK : data_fail(t);
    }
    for (*count_out = 0; text[*count_out] != '\0' && *count_out < most; ++*count_out) {
        out[*count_out] = (unsigned char)text[*count_out];
    }
    return SHERD_OK;
}

static sherd_status sample_run(trainer *t, passes *passes, int32_t *room)
{
    const options *o      = &t->o;
    const corpus  *c      = t->job->c;
    sample_params  params = {.prompt      = room,
                             .tokens      = (size_t)o->sample,
                             .vocab       = o->sizes.vocab,
                             .most        = c->vocab,
                             .length      = o->length,
                             .temperature = SAMPLE_TEMPERATURE,
                             .seed        = o->seed};

    TRY(prompt_make(t, room, PROMPT_TOKENS, &params.prompt_tokens));
    TRY(sample_make(passes, &params, room + PROMPT_TOKENS));
    if (t->r != NULL && !o->is_quiet) {
        report_say(t->r, "\nsample, after \"|\":");
        sample_print(c, room, params.prompt_tokens);
        printf("%s", c->is_text ? "|" : " | ");
        sample_print(c, room + PROMPT_TOKENS, params.tokens);
        printf("\n");
    }
    return SHERD_OK;
}

/* Samples with a second model on the same engine, with a batch of 1: one token at a time needs only
 * one sequence. */
static sherd_status sample_say(trainer *t)
{
    model_params params   = {.sizes  = t->o.sizes,
                             .batch  = 1,
                             .length = t->o.length,
                             .dtype  = t->info.compute_dtype,
                             /* memory for one layer */
                             .places       = layer_places_all(LAYER_RECOMPUTED),
                             .keeps_logits = 1,
                             .backend      = t->info.backend,
                             .threads      = t->threads,
                             .choices      = t->o.choices,
                             .stream       = sherd_engine_stream(t->engine)};
    char         why[256] = "out of memory";
    int32_t     *room     = calloc(PROMPT_TOKENS + (size_t)t->o.sample, sizeof(*room));
    passes      *passes = room == NULL ? NULL : passes_create(t->engine, &params, why, sizeof(why));
    sherd_status status =
        passes != NULL ? sample_run(t, passes, room) : trainer_fail(SHERD_E_NOMEM, "%s", why);

    passes_destroy(passes);
    free(room);
    return status;
}

/* ------------------------------------------------------------ one rank -- */

static sherd_status weights_leave(trainer *t)
{
    static const sherd_dtype DTYPES[] = {
        [PRECISION_FP32] = SHERD_F32, [PRECISION_BF16] = SHERD_BF16, [PRECISION_FP16] = SHERD_F16};
    options_precision    as     = t->o.export_precision;
    const weights_target target = {.path       = t->o.export_path,
                                   .dtype      = as == 0 ? SHERD_F32 : DTYPES[as],
                                   .file_bytes = t->o.export_file_bytes};
    char                 why[512];
    sherd_status         status =
        weights_export(&t->o.sizes, t->engine, t->rank, &target, why, sizeof(why));

    if (status != SHERD_OK) {
        return why[0] == '\0' ? status : trainer_fail(status, "--export: %s", why);
    }
    if (t->r != NULL) {
        report_say(t->r, "weights written to %s", t->o.export_path);
    }
    return SHERD_OK;
}

static sherd_status rank_open(trainer *t)
{
    TRY(engine_open(t));
    return trainer_model_open(t);
}

/* Returns how many steps, with their validations and the sample, fit into the minutes. Forward
 * counts as a third of a micro-batch, and a tenth of the time is reserved. */
static long steps_fitting(const trainer *t, double elapsed_s)
{
    const options *o        = &t->o;
    double         micro_s  = t->trial_step_s / t->info.accumulation;
    double         left_s   = 0.9 * 60.0 * o->minutes - elapsed_s;
    double         validate = ceil((double)VALIDATION_BATCHES / t->world_size) * micro_s / 3.0;
    double         sample_s = (double)o->sample * micro_s / 3.0 / t->info.micro_batch_size;
    double         each     = t->trial_step_s;
    double         steps;

    if (o->eval_every > 0) {
        each += validate / (double)o->eval_every;
    }
    steps = (left_s - validate - sample_s) / each;
    return steps < 1.0 ? 1 : steps < (double)o->steps ? (long)steps : o->steps;
}

/* Times a few steps on a separate engine, to find how many fit: the schedule has to know the number
 * of steps before seal. */
static sherd_status trial_run(trainer *t)
{
    double       sums[2] = {0.0}, start = 0.0, losses;
    sherd_status status = rank_open(t);

    if (status == SHERD_OK) {
        status = first_weights(t);
    }
    for (int i = 0; status == SHERD_OK && i <= TRIAL_STEPS; i++) {
        start  = i == 1 ? clock_now_s() : start; /* the first step warms up */
        status = window_run(t);
        if (status == SHERD_OK) {
            status = losses_take(t, &losses);
        }
    }
    sums[0] = (clock_now_s() - start) / TRIAL_STEPS;
    sums[1] = clock_now_s() - t->start_s;
    if (status == SHERD_OK) {
        status = sherd_world_sum_f64(t->world, sums, 2); /* so that all ranks get the same number */
    }
    if (status == SHERD_OK) {
        t->trial_step_s = sums[0] / t->world_size;
        t->o.steps      = steps_fitting(t, sums[1] / t->world_size);
    }
    trainer_close(t);
    return status;
}

static sherd_status train(trainer *t)
{
    if (!isnan(t->o.minutes)) {
        TRY(trial_run(t));
    }
    TRY(rank_open(t));
    TRY(report_start(t));
    TRY(values_start(t));
    t->until_first_s = clock_now_s() - t->start_s;
    t->job->on_loop(); /* until here a signal ends the program: there is no step to finish */
    return trainer_go_on(t);
}

sherd_status trainer_go_on(trainer *t)
{
    TRY(loop_run(t));
    if (t->place.has_left) {
        return SHERD_OK;
    }
    if (t->r != NULL) {
        summary_say(t);
    }
    if (t->o.export_path != NULL) {
        TRY(weights_leave(t));
    }
    TRY(t->o.sample > 0 ? sample_say(t) : SHERD_OK);
    return is_unsaved(t) ? trainer_fail(SHERD_E_IO, "the run ended and %s/%s could not be saved",
                                        t->o.save_dir, t->saved.tag)
                         : SHERD_OK;
}

/* Keeps the cause of a failure for the job. If several ranks fail, it prefers a failure that is not
 * only "a peer is lost" and not only a report that another rank failed. */
static void failure_keep(trainer_job *job, int rank, sherd_status status)
{
    const char *why = own_error[0] != '\0' ? own_error : sherd_last_error();

    (void)pthread_mutex_lock(&job->lock);
    if (job->status == SHERD_OK ||
        (job->status == SHERD_E_PEER_LOST && status != SHERD_E_PEER_LOST) ||
        (saves_is_hearsay(job->why) && !saves_is_hearsay(why) && status == job->status)) {
        job->status = status;
        (void)snprintf(job->why, sizeof(job->why), "rank %d: %.1000s", rank,
                       why[0] != '\0' ? why : sherd_status_text(status));
    }
    (void)pthread_mutex_unlock(&job->lock);
}

void trainer_end(trainer *t, sherd_status status)
{
    if (report_close(t->r) != 0 && status == SHERD_OK) {
        status = trainer_fail(SHERD_E_IO, "the log cannot be written");
    }
    if (status != SHERD_OK) {
        failure_keep(t->job, t->rank, status);
        sherd_world_abort(t->world, own_error[0] != '\0' ? own_error : sherd_last_error());
    }
    trainer_close(t);
}

void trainer_run(sherd_world *world, void *ctx)
{
    trainer_job *job = ctx;
    trainer      t   = {.job               = job,
                        .world             = world,
                        .place.first_world = job->is_elastic && job->ranks == NULL ? NULL : world,
                        .o                 = *job->o,
                        .start_s           = clock_now_s(),
                        .first_validation  = (double)NAN,
                        .last_validation   = (double)NAN,
                        .rank              = sherd_world_rank(world),
                        .world_size        = sherd_world_size(world)};
    sherd_status status;

    own_error[0] = '\0';
    status       = train(&t);
    trainer_end(&t, status);
    if (t.world != t.place.first_world) {
        sherd_world_destroy(t.world);
    }
}
