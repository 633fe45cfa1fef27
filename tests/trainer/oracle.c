/* sherd-oracle FILE: holds the architectures, run through the engine, against losses, gradients
 * and AdamW steps that other code computed in float64. Every case of the file, at every
 * stage, on one rank and on two. `./run oracle FILE` calls it; cases.h reads the file. */
#include "tests/trainer/cases.h"

#include "trainer/declare.h"
#include "trainer/passes.h"
#include "trainer/pool.h"
#include "trainer/ranks.h"

#include <getopt.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What fp32 may differ by. */
#define LOSS_TOLERANCE 1e-4
#define GRAD_TOLERANCE 1e-3
#define STEP_TOLERANCE 1e-3

/* Worst relative errors so far. */
typedef struct errors {
    double loss, grads, steps;
} errors;

/* One case in one layout. */
typedef struct trial {
    const model_case *c;
    int               stage;
    pthread_mutex_t   lock; /* over what follows; ranks add theirs */
    errors            worst;
    int               has_failed;
    char              why[600];
} trial;

/* What the observer of one rank sees. */
typedef struct watch {
    const model_case *c;
    double            worst;
    int               is_on;
} watch;

static void grads_watch(void *ctx, size_t unit, const model_unit *params)
{
    watch *w = ctx;

    for (size_t k = arch_unit_first_param(&w->c->sizes, unit);
         w->is_on && k < arch_unit_first_param(&w->c->sizes, unit + 1); k++) {
        arch_param info;

        arch_param_get(&w->c->sizes, k, &info);
        w->worst = case_worse(w->worst,
                              case_grad_error(&w->c->params[k], params->by_role[info.role].grad));
    }
}

typedef struct fill_source {
    const model_case *c;
    size_t            k;
} fill_source;

static sherd_status weights_fill(void *ctx, size_t first_elem, size_t count_elems, float *out)
{
    const fill_source *source = ctx;

    case_weights(source->c, source->k, first_elem, count_elems, out);
    return SHERD_OK;
}

static sherd_status engine_open(const trial *t, sherd_world *world, sherd_engine **out)
{
    char          json[1024];
    sherd_config *config;
    sherd_status  status;

    (void)snprintf(json, sizeof(json),
                   "{\"train_micro_batch_size_per_gpu\": %zu, \"gradient_clipping\": 1.0,"
                   " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": %.17g,"
                   " \"betas\": [0.9, 0.95], \"eps\": 1e-8, \"weight_decay\": 0.1}},"
                   " \"zero_optimization\": {\"stage\": %d,"
                   " \"stage3_param_persistence_threshold\": %zu}}",
                   t->c->batch, t->c->lr, t->stage, t->c->sizes.hidden);
    status = sherd_config_parse(json, strlen(json), &config);
    if (status != SHERD_OK) {
        return status;
    }
    status = sherd_engine_create(world, config, out);
    sherd_config_destroy(config);
    return status;
}

static sherd_status engine_prepare(const trial *t, sherd_engine *engine)
{
    sherd_status status = arch_declare(&t->c->sizes, engine);

    if (status == SHERD_OK) {
        status = sherd_engine_seal(engine);
    }
    for (size_t k = 0; status == SHERD_OK && k < t->c->num_params; k++) {
        fill_source source = {.c = t->c, .k = k};

        status = sherd_param_fill(engine, (sherd_param)k, weights_fill, &source);
    }
    return status;
}

/* All steps; the first one's gradients are looked at. */
static sherd_status steps_run(const trial *t, sherd_engine *engine, passes *passes, errors *out)
{
    size_t       tokens = t->c->batch * t->c->length;
    int32_t     *inputs = calloc(2 * tokens, sizeof(*inputs));
    watch        w      = {.c = t->c, .is_on = 1};
    sherd_status status = inputs == NULL ? SHERD_E_NOMEM : SHERD_OK;
    size_t       num    = t->c->num_losses > 0 ? t->c->num_losses : 1;

    if (status == SHERD_OK) {
        case_tokens(t->c, inputs, inputs + tokens);
    }
    passes_observe(passes, grads_watch, &w);
    for (size_t i = 0; status == SHERD_OK && i < num; i++) {
        sherd_step_report report;
        double            loss;

        sherd_step_report_init(&report);
        status = passes_train(passes, inputs, inputs + tokens);
        if (status == SHERD_OK) {
            status = passes_losses_take(passes, &loss);
        }
        if (status == SHERD_OK) {
            status = sherd_step(engine, &report);
        }
        if (status != SHERD_OK) {
            break;
        }
        if (i == 0) {
            out->loss  = case_relative(loss, t->c->loss, 0.0);
            out->grads = case_worse(w.worst, case_relative(report.grad_norm, t->c->grad_norm, 0.0));
            w.is_on    = 0;
        }
        if (i < t->c->num_losses) {
            out->steps = case_worse(out->steps, case_relative(loss, t->c->losses[i], 0.0));
        }
    }
    free(inputs);
    return status;
}

static sherd_status trial_run(trial *t, sherd_world *world, errors *out)
{
    char          why[256];
    pool         *threads = pool_create(1);
    sherd_engine *engine  = NULL;
    passes       *passes  = NULL;
    sherd_status  status  = engine_open(t, world, &engine);

    if (status == SHERD_OK) {
        status = engine_prepare(t, engine);
    }
    if (status == SHERD_OK && threads != NULL) {
        passes = passes_create(engine,
                               &(model_params){.sizes   = t->c->sizes,
                                               .batch   = t->c->batch,
                                               .length  = t->c->length,
                                               .dtype   = SHERD_F32,
                                               .threads = threads},
                               why, sizeof(why));
    }
    if (status == SHERD_OK) {
        status = passes == NULL ? SHERD_E_NOMEM : steps_run(t, engine, passes, out);
    }
    passes_destroy(passes);
    sherd_engine_destroy(engine);
    pool_destroy(threads);
    return status;
}

static void trial_rank(sherd_world *world, void *ctx)
{
    trial       *t      = ctx;
    errors       own    = {0};
    sherd_status status = trial_run(t, world, &own);

    (void)pthread_mutex_lock(&t->lock);
    if (status != SHERD_OK && (!t->has_failed || status != SHERD_E_PEER_LOST)) {
        t->has_failed = 1;
        (void)snprintf(t->why, sizeof(t->why), "%s: %s", sherd_status_name(status),
                       sherd_last_error());
    }
    t->worst.loss  = case_worse(t->worst.loss, own.loss);
    t->worst.grads = case_worse(t->worst.grads, own.grads);
    t->worst.steps = case_worse(t->worst.steps, own.steps);
    (void)pthread_mutex_unlock(&t->lock);
    if (status != SHERD_OK) {
        sherd_world_abort(world, "the oracle's rank failed");
    }
}

static int errors_pass(const errors *e, const errors *most)
{
    return e->loss <= most->loss && e->grads <= most->grads && e->steps <= most->steps;
}

/* One case at the chosen stages and ranks; one line. Returns whether it passed. */
static int case_check(const model_case *c, int only_stage, int only_ranks, const errors *most)
{
    errors worst  = {0};
    int    passed = 1, layouts = 0;

    for (int stage = 0; stage <= 3; stage++) {
        for (int ranks = 1; ranks <= (only_ranks > 2 ? only_ranks : 2); ranks++) {
            trial t = {.c = c, .stage = stage, .lock = PTHREAD_MUTEX_INITIALIZER};

            if ((only_stage >= 0 && stage != only_stage) ||
                (only_ranks > 0 && ranks != only_ranks)) {
                continue;
            }
            if (ranks_run(ranks_create(&t), ranks, NULL, trial_rank) != SHERD_OK) {
                t.has_failed = 1;
                (void)snprintf(t.why, sizeof(t.why), "%s", sherd_last_error());
            }
            layouts++;
            worst.loss  = case_worse(worst.loss, t.worst.loss);
            worst.grads = case_worse(worst.grads, t.worst.grads);
            worst.steps = case_worse(worst.steps, t.worst.steps);
            if (t.has_failed) {
                passed = 0;
                printf("%s: stage %d on %d ranks failed: %s\n", c->name, stage, ranks, t.why);
            } else if (!errors_pass(&t.worst, most)) {
                printf("%s: stage %d on %d ranks: loss %.2e gradients %.2e steps %.2e\n", c->name,
                       stage, ranks, t.worst.loss, t.worst.grads, t.worst.steps);
            }
        }
    }
    passed = passed && errors_pass(&worst, most);
    printf("%-24s %s  worst relative error of loss %.2e, gradients %.2e, %zu steps %.2e "
           "(%d layouts)\n",
           c->name, passed ? "ok  " : "FAIL", worst.loss, worst.grads, c->num_losses, worst.steps,
           layouts);
    return passed;
}

static void usage(FILE *out)
{
    (void)fprintf(
        out,
        "usage: sherd-oracle FILE [--stage S] [--ranks N] [--within E]\n\n"
        "Runs every case of FILE through the engine in fp32 and compares loss, gradients and\n"
        "AdamW steps with those that FILE holds. Passes within %g, %g and %g;\n"
        "--within E gives loss and gradients another tolerance.\n\n"
        "  --stage S   only this ZeRO stage (default: all four)\n"
        "  --ranks N   only this number of ranks, as threads (default: 1 and 2)\n",
        LOSS_TOLERANCE, GRAD_TOLERANCE, STEP_TOLERANCE);
}

/* A number from 0 to `most`, else -2. */
static int number_read(const char *text, int most)
{
    char *end;
    long  value = strtol(text, &end, 10);

    return *text == '\0' || *end != '\0' || value < 0 || value > most ? -2 : (int)value;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"stage", required_argument, NULL, 's'},
        {"ranks", required_argument, NULL, 'r'},
        {"within", required_argument, NULL, 'w'},
        {"help", no_argument, NULL, 'h'},
        {0},
    };
    errors      most  = {LOSS_TOLERANCE, GRAD_TOLERANCE, STEP_TOLERANCE};
    int         stage = -1, ranks = 0, option, passed = 1;
    model_case *cases;
    size_t      count;
    char        text[512];

    while ((option = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        if (option == 'h') {
            usage(stdout);
            return 0;
        }
        if (option == 's') {
            stage = number_read(optarg, 3);
        } else if (option == 'r') {
            ranks = number_read(optarg, 64);
        } else if (option == 'w') {
            most.loss = most.grads = strtod(optarg, NULL);
        }
        if (option == '?' || stage == -2 || ranks == -2 || (option == 'r' && ranks == 0)) {
            usage(stderr);
            return 2;
        }
    }
    if (optind + 1 != argc) {
        usage(stderr);
        return 2;
    }
    if (cases_load(argv[optind], &cases, &count, text, sizeof(text)) != 0) {
        (void)fprintf(stderr, "sherd-oracle: %s\n", text);
        return 2;
    }
    for (size_t i = 0; i < count; i++) {
        passed = case_check(&cases[i], stage, ranks, &most) && passed;
    }
    cases_free(cases, count);
    return passed ? 0 : 1;
}
