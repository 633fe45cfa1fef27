/* sherd-llm: trains GPT-2 or MiniMind on text. This file is the program around trainer.c: it reads
 * the command line, opens the data, makes the world and handles signals. The ranks are the
 * launcher's processes or, without a launcher, threads of this process. */
#include "models/blas.h"
#include "data.h"
#include "models/onednn.h"
#include "options.h"
#include "ranks.h"
#include "settings.h"
#include "trainer.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static volatile sig_atomic_t is_stopping;
static volatile sig_atomic_t asked_by;
static volatile time_t       asked_at; /* seconds of the monotonic clock */

/* The first signal asks the ranks to stop after their step. A later signal of the same kind, or
 * Ctrl-C, ends the program at once. A second signal within about a second is ignored, because
 * timeout(1) signals both the process and its group and means it once. A later signal of another
 * kind is ignored too: if a scheduler warns by one signal and then sends another, the first one
 * counts, which may ask for a save. */
static void stop_ask(int number)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    if (!is_stopping) {
        is_stopping = 1;
        asked_by    = number;
        asked_at    = now.tv_sec;
    } else if ((number == asked_by || number == SIGINT) && now.tv_sec - asked_at > 1) {
        (void)signal(number, SIG_DFL);
        (void)raise(number);
    }
}

static void signals_catch(void)
{
    struct sigaction action = {.sa_handler = stop_ask, .sa_flags = SA_RESTART};

    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGTERM, &action, NULL);
    (void)sigaction(SIGUSR1, &action, NULL);
}

/* With --elastic, SIGTTIN asks for one rank more and SIGTTOU for one less, as other servers take
 * them. */
static volatile sig_atomic_t wanted_ranks;
static int                   least_ranks, most_ranks;

static void resize_ask(int number)
{
    int wanted = wanted_ranks + (number == SIGTTIN ? 1 : -1);

    wanted_ranks = wanted < least_ranks ? least_ranks : wanted > most_ranks ? most_ranks : wanted;
}

static void resizes_catch(const options *o, int ranks)
{
    struct sigaction action = {.sa_handler = resize_ask, .sa_flags = SA_RESTART};

    wanted_ranks = ranks;
    least_ranks  = o->least_ranks;
    most_ranks   = o->most_ranks;
    (void)sigaction(SIGTTIN, &action, NULL);
    (void)sigaction(SIGTTOU, &action, NULL);
}

static int complain(const char *what)
{
    (void)fprintf(stderr, "sherd-llm: %s\n", what);
    return 1;
}

/* Makes ranks on different CPUs multiply with the same kernels, because other kernels round
 * otherwise. Collective. */
static sherd_status products_agree(sherd_world *world)
{
    double       counts[BLAS_CORES + ONEDNN_LEVELS] = {0};
    sherd_status status;

    counts[blas_core_number()]                = 1.0;
    counts[BLAS_CORES + onednn_open()->level] = 1.0;
    status = sherd_world_sum_f64(world, counts, BLAS_CORES + ONEDNN_LEVELS);
    if (status == SHERD_OK) {
        blas_settle(counts);
        onednn_settle(counts + BLAS_CORES);
    }
    return status;
}

static int launched_run(sherd_world *world, const options *o, trainer_job *job)
{
    if (o->ranks > 0 && o->ranks != sherd_world_size(world)) {
        char text[128];

        (void)snprintf(text, sizeof(text), "the launcher started %d ranks; --ranks says %d",
                       sherd_world_size(world), o->ranks);
        return sherd_world_rank(world) == 0 ? complain(text) : 1;
    }
    if (products_agree(world) != SHERD_OK) {
        return complain(sherd_last_error());
    }
    trainer_run(world, job);
    return 0;
}

/* A process that comes while the others train multiplies with the kernels of this host, as they
 * do. */
static int newcomer_run(const sherd_world_params *params, trainer_job *job)
{
    sherd_world *alone;
    sherd_status status = sherd_world_self(&alone);

    if (status == SHERD_OK) {
        status = products_agree(alone);
        sherd_world_destroy(alone);
    }
    if (status != SHERD_OK) {
        return complain(sherd_last_error());
    }
    trainer_join(job, params);
    return 0;
}

static int launched_open(const options *o, const sherd_world_params *params, trainer_job *job)
{
    sherd_world *world;
    int          result;

    if (job->is_elastic && sherd_launched_late()) {
        return newcomer_run(params, job);
    }
    if (sherd_world_from_env(params, &world) != SHERD_OK) {
        return complain(sherd_last_error());
    }
    result = launched_run(world, o, job);
    if (!job->is_elastic || result != 0) { /* else trainer_run has */
        sherd_world_destroy(world);
    }
    return result;
}

/* Returns the number of ranks when no launcher has started the program. Ranks may share the CPUs,
 * but not one GPU. */
static int ranks_of(const options *o)
{
    const char *backend = o->backend != NULL ? o->backend : getenv("SHERD_BACKEND");

    if (o->ranks > 0) {
        return o->ranks;
    }
    return backend != NULL && strcmp(backend, "cuda") == 0 ? 1 : OPTIONS_DEFAULT_RANKS;
}

static int job_run(const options *o, trainer_job *job)
{
    sherd_world_params params;
    int                result = 0;

    sherd_world_params_init(&params);
    params.cpu_threads = o->threads;
    params.backend     = o->backend;
    job->is_elastic    = o->most_ranks > 0;
    if (sherd_launcher() != NULL) {
        result = launched_open(o, &params, job);
    } else {
        job->ranks  = ranks_create(job);
        job->params = &params;
        if (job->is_elastic) {
            resizes_catch(o, ranks_of(o));
            job->wanted = &wanted_ranks;
        }
        if (ranks_run(job->ranks, ranks_of(o), &params, trainer_run) != SHERD_OK) {
            return complain(sherd_last_error());
        }
    }
    return job->status == SHERD_OK ? result : complain(job->why);
}

/* Prints warnings of the engine. Failures are printed once, by job_run. */
static void warning_print(void *ctx, sherd_log_level level, const char *line)
{
    (void)ctx;
    if (level == SHERD_LOG_WARN) {
        (void)fprintf(stderr, "sherd-llm: %s\n", line);
    }
}

/* The log is installed after the configuration is read: rank 0 prints the warnings about it, once
 * for all ranks. With SHERD_LOG the log is the library's own. */
static int configured_run(const options *o, trainer_job *job)
{
    sherd_config *config;
    int           result;

    if (settings_make(o, &config) != SHERD_OK) {
        return complain(sherd_last_error());
    }
    job->config = config;
    if (getenv("SHERD_LOG") == NULL) {
        sherd_log_set(warning_print, NULL, SHERD_LOG_WARN);
    }
    result = job_run(o, job);
    sherd_config_destroy(config);
    return result;
}

int main(int argc, char **argv)
{
    options     o;
    corpus      c;
    trainer_job job = {.o           = &o,
                       .c           = &c,
                       .is_stopping = &is_stopping,
                       .on_loop     = signals_catch,
                       .lock        = PTHREAD_MUTEX_INITIALIZER};
    order       data;
    char        text[1024];
    int         result = options_parse(argc, argv, &o);

    if (result != 0) {
        return result == 1 ? 0 : result;
    }
    if (corpus_open(o.data_path, &c, text, sizeof(text)) != 0) {
        return complain(text);
    }
    data = (order){.c = &c, .seed = o.seed, .length = o.length, .batch = 1};
    if (order_check(&data, text, sizeof(text)) != NULL) {
        result = complain(text);
    } else if (c.vocab > o.sizes.vocab) {
        (void)snprintf(text, sizeof(text),
                       "the data has tokens up to %zu, the model knows %zu; give --vocab %zu",
                       c.vocab - 1, o.sizes.vocab,
                       !c.is_text && c.vocab <= 50257 ? (size_t)50257 : c.vocab);
        result = complain(text);
    } else {
        if (o.threads > 0) { /* ranks that are threads read it from the environment */
            (void)snprintf(text, sizeof(text), "%d", o.threads);
            (void)setenv("SHERD_THREADS", text, 1);
        }
        (void)blas_open();
        result = configured_run(&o, &job);
    }
    corpus_close(&c);
    return result;
}
