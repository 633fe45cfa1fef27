/* Models with little in them: units without parameters, parameters without elements, one element,
 * everything frozen, at every stage, with every offload and number of ranks. What there is to find
 * shows in a sanitizer's build: no pointer of an empty table is moved, no length of nothing is
 * passed on. */
#include "sherd_build.h"
#include "tests/engine/rig.h"
#include "tests/lib/check.h"

#include <stdio.h>
#include <string.h>

typedef enum model_kind {
    MODEL_NO_UNITS = 0,
    MODEL_EMPTY_UNITS, /* nothing in them at all */
    MODEL_NO_ELEMENTS, /* parameters of no elements */
    MODEL_ONE_ELEMENT,
    MODEL_ONE_FROZEN,
    MODEL_ALL_FROZEN,
    /* an empty unit, a frozen one, a trained one with an empty parameter */
    MODEL_EMPTY_BESIDE_FULL,
    MODELS,
} model_kind;

static void param_declare(rig *r, int unit, const char *name, size_t elems, int is_frozen)
{
    sherd_param_params params;

    sherd_param_params_init(&params);
    params.frozen = is_frozen;
    (void)rig_param_as(r, unit, name, elems, &params);
}

static void model_declare(rig *r, model_kind kind)
{
    if (kind != MODEL_NO_UNITS) {
        (void)rig_unit(r, "first");
        (void)rig_unit(r, "second");
    }
    switch (kind) {
    case MODEL_NO_UNITS:
    case MODEL_EMPTY_UNITS:
    case MODELS:
        break;
    case MODEL_NO_ELEMENTS:
        param_declare(r, 0, "none", 0, 0);
        param_declare(r, 1, "fixed", 0, 1);
        break;
    case MODEL_ONE_ELEMENT:
    case MODEL_ONE_FROZEN:
        param_declare(r, 1, "one", 1, kind == MODEL_ONE_FROZEN);
        break;
    case MODEL_ALL_FROZEN:
        param_declare(r, 0, "a", 700, 1);
        param_declare(r, 1, "b", 3000, 1);
        break;
    case MODEL_EMPTY_BESIDE_FULL:
        (void)rig_unit(r, "third");
        param_declare(r, 1, "fixed", 90, 1);
        param_declare(r, 2, "none", 0, 0);
        param_declare(r, 2, "some", 900, 0);
        break;
    }
}

typedef struct empty_job {
    rig_options options;
    model_kind  kind;
} empty_job;

static sherd_status text_drop(void *ctx, const char *text, size_t len_bytes)
{
    *(size_t *)ctx += text == NULL ? 0 : len_bytes;
    return SHERD_OK;
}

static void reports_ask(rig *r)
{
    sherd_memory_report  memory  = {.struct_size = sizeof(memory)};
    sherd_traffic_report traffic = {.struct_size = sizeof(traffic)};
    size_t               len     = 0;
    uint64_t             value;

    CHECK_OK(sherd_engine_plan(r->engine, SHERD_PLAN_TABLE, text_drop, &len));
    CHECK_OK(sherd_engine_plan(r->engine, SHERD_PLAN_JSON, text_drop, &len));
    CHECK(len > 0);
    CHECK_OK(sherd_engine_memory(r->engine, &memory));
    CHECK_INT(memory.total_planned, memory.total_held);
    CHECK_OK(sherd_engine_traffic(r->engine, &traffic));
    for (int p = 0; p < r->num_params; p++) {
        CHECK_OK(sherd_param_fingerprint(r->engine, r->params[p].handle, &value));
    }
}

static void empty_train(sherd_world *world, void *raw)
{
    const empty_job *job = raw;
    rig              r;

    rig_open(&r, world, &job->options);
    model_declare(&r, job->kind);
    if (r.num_params == 0) {
        CHECK_STATUS(SHERD_E_STATE, sherd_engine_seal(r.engine));
        CHECK_ERROR_SAYS("no parameter is declared");
        rig_close(&r);
        return;
    }
    rig_seal(&r);
    (void)rig_train(&r, 2 * (job->options.accumulation));
    reports_ask(&r);
    rig_close(&r);
}

#define STATE_ON(device)                                                                           \
    ", \"offload_optimizer\": {\"device\": \"" device                                              \
    "\", \"nvme_path\": \"%s\", \"durable\": false}"
#define PARAMS_ON(device)                                                                          \
    ", \"offload_param\": {\"device\": \"" device "\", \"nvme_path\": \"%s\", \"max_in_cpu\": 0}"

typedef struct offload_row {
    const char *keys;
    int         least_stage;
} offload_row;

static const offload_row OFFLOADS[] = {
    {"", 0},
    {STATE_ON("cpu"), 1},
#ifdef SHERDI_HAVE_XXHASH
    {STATE_ON("nvme"), 1},
    {STATE_ON("nvme") PARAMS_ON("nvme"), 3},
#endif
    {PARAMS_ON("cpu"), 3},
    {PARAMS_ON("nvme"), 3},
};

static const char *const TOPS[] = {"", ", \"deterministic\": true"};

static void train_everywhere(empty_job *job, int world_size)
{
    for (size_t offload = 0; offload < sizeof(OFFLOADS) / sizeof(OFFLOADS[0]); offload++) {
        char keys[1024];

        (void)snprintf(keys, sizeof(keys), OFFLOADS[offload].keys, test_scratch(), test_scratch());
        job->options.zero = keys;
        for (int stage = OFFLOADS[offload].least_stage; stage <= 3; stage++) {
            job->options.stage = stage;
            for (size_t t = 0; t < 4; t++) {
                /* Both types and both ways of adding up, but of every four pairs two. */
                int is_other = (t == 1 || t == 2) != ((int)offload + stage + world_size) % 2;

                if (is_other && !test_is_long()) {
                    continue;
                }
                job->options.top          = TOPS[t / 2];
                job->options.dtype        = t % 2 == 0 ? SHERD_BF16 : SHERD_F32;
                job->options.accumulation = 1 + (int)(t % 2);
                test_world(world_size, empty_train, job);
            }
        }
    }
    job->options.zero = NULL;
}

static void models_with_little_in_them_train(void)
{
    for (int kind = 0; kind < MODELS; kind++) {
        for (int world_size = 1; world_size <= 3; world_size++) {
            empty_job job = {.kind = (model_kind)kind};

            train_everywhere(&job, world_size);
        }
    }
}

/* What a rank holds of a frozen parameter may be padding alone, which is on no drive. */
static void reads_count(sherd_world *world, void *raw)
{
    const empty_job     *job = raw;
    sherd_traffic_report before;
    sherd_traffic_report after;
    sherd_memory_report  memory;
    rig                  r;
    uint64_t             counted;
    uint64_t             planned;

    rig_open(&r, world, &job->options);
    model_declare(&r, job->kind);
    rig_seal(&r);
    (void)rig_train(&r, 1);
    sherd_traffic_report_init(&before);
    CHECK_OK(sherd_engine_traffic(r.engine, &before));
    (void)rig_train(&r, 8);
    sherd_traffic_report_init(&after);
    CHECK_OK(sherd_engine_traffic(r.engine, &after));
    sherd_memory_report_init(&memory);
    CHECK_OK(sherd_engine_memory(r.engine, &memory));
    counted = after.read_counted - before.read_counted;
    planned = 8 * (after.read_micro_planned + after.read_step_planned);
    CHECK(planned > 0); /* what is read ahead may be under way */
    CHECK(counted <= planned + memory.host_staging_held);
    CHECK(planned <= counted + memory.host_staging_held);
    rig_close(&r);
}

static void padding_is_not_read(void)
{
    empty_job job = {.kind = MODEL_EMPTY_BESIDE_FULL};
    char      keys[1024];

    (void)snprintf(keys, sizeof(keys), PARAMS_ON("nvme"), test_scratch());
    job.options = (rig_options){.stage = 3, .zero = keys, .dtype = SHERD_BF16, .accumulation = 1};
    test_world(3, reads_count, &job);
}

static const test_case CASES[] = {CASE(models_with_little_in_them_train),
                                  CASE(padding_is_not_read)};

RUN_MAIN(CASES)
