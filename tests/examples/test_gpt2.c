/* The arithmetic of examples/gpt2: losses, gradients and AdamW steps are those that other code
 * computed in float64 (models.json), at every stage. The program is compiled into this test, which
 * calls its functions. */
int gpt2_main(int argc, char **argv);
#define main gpt2_main
#include "examples/gpt2/gpt2.c"
#undef main

#include "tests/trainer/cases.h"
#include "tests/lib/check.h"

#define LOSS_TOLERANCE 1e-4
#define GRAD_TOLERANCE 1e-3
#define STEP_TOLERANCE 1e-3

enum { MOST_ELEMS = 1 << 14 };

/* A parameter of the program, and the case's. The matrices of layers are transposed: [inputs,
 * outputs] here, [outputs, inputs] there. */
typedef struct pair {
    const model_case *c;
    size_t            k;
    const param      *p;
    int               is_turned;
} pair;

static size_t pair_elems(const pair *both)
{
    return both->p->data.rows * both->p->data.columns;
}

/* The case's number of element i. */
static size_t pair_elem(const pair *both, size_t i)
{
    size_t rows = both->p->data.rows, columns = both->p->data.columns;

    return both->is_turned ? i % columns * rows + i / columns : i;
}

static sherd_status pair_fill(void *ctx, size_t first, size_t count, float *out)
{
    const pair *both = ctx;

    for (size_t i = 0; i < count; i++) {
        case_weights(both->c, both->k, pair_elem(both, first + i), 1, &out[i]);
    }
    return SHERD_OK;
}

/* Of the table of positions the case has rows that no token is at: their gradient is 0. */
static double pair_error(const pair *both, sherd_engine *engine)
{
    static float read[MOST_ELEMS], grad[MOST_ELEMS];

    CHECK(pair_elems(both) <= MOST_ELEMS && both->c->params[both->k].elems <= MOST_ELEMS);
    memset(grad, 0, sizeof(grad));
    CHECK_OK(sherd_param_read(engine, both->p->handle, SHERD_GRAD, 0, pair_elems(both), read));
    for (size_t i = 0; i < pair_elems(both); i++) {
        grad[pair_elem(both, i)] = read[i];
    }
    return case_grad_error(&both->c->params[both->k], grad);
}

static pair pair_of(const model_case *c, const model *m, size_t k)
{
    size_t layer = k < 2 ? 0 : 1 + (k - 2) / LAYER_PARAMS,
           place = k < 2 ? k : (k - 2) % LAYER_PARAMS;
    pair both    = {.c = c, .k = k, .p = &m->units[layer].params[place]};

    both.is_turned = layer > 0 && both.p->data.rows > 1;
    CHECK_INT((int)k, both.p->handle);
    return both;
}

static sherd_engine *engine_open(const model_case *c, sherd_world *world, int stage)
{
    char          json[512];
    sherd_config *read;
    sherd_engine *engine;

    (void)snprintf(json, sizeof(json),
                   "{\"train_micro_batch_size_per_gpu\": %zu, \"gradient_clipping\": 1.0,"
                   " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": %.17g,"
                   " \"betas\": [0.9, 0.95], \"eps\": 1e-8, \"weight_decay\": 0.1}},"
                   " \"zero_optimization\": {\"stage\": %d}}",
                   c->batch, c->lr, stage);
    CHECK_OK(sherd_config_parse(json, strlen(json), &read));
    CHECK_OK(sherd_engine_create(world, read, &engine));
    sherd_config_destroy(read);
    return engine;
}

static void rows_set(const model_case *c, model *m, unsigned char *tokens)
{
    int32_t inputs[256], targets[256];

    CHECK(c->batch * c->length <= 256 && c->sizes.vocab <= 256);
    case_tokens(c, inputs, targets);
    for (size_t b = 0; b < c->batch; b++) {
        m->rows[b] = tokens + b * (c->length + 1);
        for (size_t t = 0; t < c->length; t++) {
            tokens[b * (c->length + 1) + t]     = (unsigned char)inputs[b * c->length + t];
            tokens[b * (c->length + 1) + t + 1] = (unsigned char)targets[b * c->length + t];
        }
    }
}

/* A step; returns the loss before it. The gradients of the first one are held against the
 * case's. */
static double step_make(const model_case *c, model *m, int is_first)
{
    sherd_step_report report;
    double            loss = 0.0;

    sherd_step_report_init(&report);
    CHECK_OK(pass_run(m, SHERD_FORWARD));
    CHECK_OK(pass_run(m, SHERD_BACKWARD));
    CHECK_OK(sherd_step_prepare(m->engine, &report));
    for (size_t k = 0; is_first && k < c->num_params; k++) {
        pair   both  = pair_of(c, m, k);
        double error = pair_error(&both, m->engine);

        if (!(error <= GRAD_TOLERANCE)) {
            printf("%s: the gradient of %s is %g off\n", c->name, c->params[k].name, error);
        }
        CHECK(error <= GRAD_TOLERANCE);
    }
    CHECK_OK(sherd_step_apply(m->engine, NULL));
    for (size_t b = 0; b < m->batch; b++) {
        loss += m->losses[b] / (double)m->batch;
    }
    return loss;
}

/* The program never frees a model, so each is stored where it is reachable. */
static void case_run(const model_case *c, model *m, int stage)
{
    static unsigned char tokens[512];
    sherd_world         *world;

    CHECK_OK(sherd_world_self(&world));
    *m = (model){.engine = engine_open(c, world, stage),
                 .batch  = c->batch,
                 .length = c->length,
                 .layers = c->sizes.layers,
                 .width  = c->sizes.hidden,
                 .heads  = c->sizes.heads,
                 .vocab  = c->sizes.vocab};
    CHECK_OK(model_make(m));
    CHECK_OK(sherd_engine_seal(m->engine));
    for (size_t k = 0; k < c->num_params; k++) {
        pair both = pair_of(c, m, k);

        CHECK_OK(sherd_param_fill(m->engine, both.p->handle, pair_fill, &both));
    }
    rows_set(c, m, tokens);
    CHECK(c->num_losses >= 10);
    for (size_t i = 0; i < c->num_losses; i++) {
        double error = case_relative(step_make(c, m, i == 0), c->losses[i], 0.0);

        CHECK(error <= (i == 0 ? LOSS_TOLERANCE : STEP_TOLERANCE));
    }
    sherd_engine_destroy(m->engine);
    sherd_world_destroy(world);
}

static void steps_are_those_of_other_code(void)
{
    static model models[4 * 4];
    model_case  *all;
    size_t       count, used = 0;
    char         why[512];

    CHECK_INT(0, cases_load(TEST_MODELS_JSON, &all, &count, why, sizeof(why)));
    for (size_t i = 0; i < count; i++) {
        for (int stage = 0; stage < 4 && all[i].sizes.kind == ARCH_GPT2; stage++) {
            CHECK(used < sizeof(models) / sizeof(*models));
            case_run(&all[i], &models[used++], stage);
        }
    }
    CHECK(used >= 4);
    cases_free(all, count);
}

static const test_case cases[] = {
    CASE(steps_are_those_of_other_code),
};

RUN_MAIN(cases)
