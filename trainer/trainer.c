/* One rank's training: it opens the engine, and the order of everything is in train(), at the end of
 * the file. loop.c has the steps, and ending.c what comes after them. See trainer.h. */
#include "trainer_impl.h"

#include "models/blas.h"
#include "models/clock.h"
#include "models/onednn.h"
#include "declare.h"
#include "memory.h"
#include "init.h"
#include "try.h"
#include "weights.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRIAL_STEPS 3

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

sherd_status trainer_data_fail(const trainer *t)
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
            return trainer_data_fail(t);
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

size_t trainer_micro_tokens(const trainer *t)
{
    return t->data.batch * t->data.length;
}

/* Returns the tokens per second of all ranks if their GPUs always ran at their peak; 0: not
 * known. */
double trainer_peak_rate(const trainer *t)
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
                             .peak_rate    = trainer_peak_rate(t),
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
                             .peak_rate    = trainer_peak_rate(t),
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

sherd_status trainer_saves_checked(const trainer *t, sherd_status status)
{
    return status == SHERD_OK || t->saved.why[0] == '\0' ? status
                                                         : trainer_fail(status, "%s", t->saved.why);
}

void trainer_memory_say(const trainer *t, const char *when)
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
    trainer_memory_say(t, "start");
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
    TRY(trainer_saves_checked(t, saves_open(&t->saved)));
    TRY(trainer_saves_checked(t, saves_resume(&t->saved, &position, &is_loaded)));
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

/* ------------------------------------------------------------ one rank -- */

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
        status = trainer_window_run(t);
        if (status == SHERD_OK) {
            status = trainer_losses_take(t, &losses);
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
    TRY(trainer_loop_run(t));
    if (t->place.has_left) {
        return SHERD_OK;
    }
    if (t->r != NULL) {
        trainer_summary_say(t);
    }
    if (t->o.export_path != NULL) {
        TRY(trainer_weights_leave(t));
    }
    TRY(t->o.sample > 0 ? trainer_sample_say(t) : SHERD_OK);
    return trainer_is_unsaved(t)
               ? trainer_fail(SHERD_E_IO, "the run ended and %s/%s could not be saved",
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
