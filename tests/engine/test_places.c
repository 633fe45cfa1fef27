/* Where units lie in the pools, and how far ahead they are gathered: plans of layered models, without an engine. */
#include "engine/plan.h"
#include "tests/engine/rig.h"
#include "tests/lib/check.h"

#include <stdio.h>
#include <string.h>

/* A table, layers, a head that reads the table or has a matrix of its own. */
typedef struct layered {
    size_t      layers, layer_elems, table_elems;
    int         is_tied;
    int         world_size;
    const char *zero; /* more keys of zero_optimization */
} layered;

typedef struct bench {
    sherdi_mem      mem;
    sherdi_model    model;
    sherdi_settings settings;
    sherdi_plan    *plan;
} bench;

static const sherdi_machine UNKNOWN = {.ranks_per_host = 1};

static void bench_settings(bench *b, const rig_options *options, int world_size)
{
    const char   *json = rig_json(options);
    sherd_config *config;

    CHECK_OK(sherd_config_parse(json, strlen(json), &config));
    CHECK_OK(sherdi_config_resolve(config, world_size, &b->settings));
    sherd_config_destroy(config);
}

static void bench_open(bench *b)
{
    memset(b, 0, sizeof(*b));
    sherdi_mem_init(&b->mem);
    CHECK_OK(sherdi_model_init(&b->model, &b->mem));
}

static void bench_close(bench *b)
{
    sherdi_plan_destroy(b->plan);
    sherdi_model_fini(&b->model);
    CHECK_INT(0, sherdi_mem_held_all(&b->mem));
}

/* A unit with one parameter of its own, or with none where `elems` is 0. */
static int bench_unit(bench *b, const char *name, size_t elems)
{
    sherd_param_params params;
    int                unit;
    int                param;

    CHECK_OK(sherdi_model_add_unit(&b->model, name, &unit));
    sherd_param_params_init(&params);
    params.name     = name;
    params.ndim     = 1;
    params.shape[0] = elems;
    if (elems > 0) {
        CHECK_OK(sherdi_model_add_param(&b->model, unit, &params, &param));
    }
    return unit;
}

static void bench_plan(bench *b, int world_size)
{
    CHECK_OK(
        sherdi_plan_create(&b->model, &b->settings, 0, world_size, &UNKNOWN, &b->mem, &b->plan));
    CHECK_OK(sherdi_plan_check(b->plan, &b->model));
}

static void layered_open(bench *b, const layered *l)
{
    rig_options options = {.stage = 3, .dtype = SHERD_BF16, .zero = l->zero};

    bench_open(b);
    (void)bench_unit(b, "table", l->table_elems);
    for (size_t i = 0; i < l->layers; i++) {
        char name[16];

        (void)snprintf(name, sizeof(name), "layer%zu", i);
        (void)bench_unit(b, name, l->layer_elems);
    }
    (void)bench_unit(b, "head", l->is_tied ? 0 : l->table_elems);
    if (l->is_tied) {
        CHECK_OK(sherdi_model_add_read(&b->model, (int)b->model.num_units - 1, 0));
    }
    bench_settings(b, &options, l->world_size);
    bench_plan(b, l->world_size);
}

static size_t gather_bytes(const bench *b)
{
    return b->plan->buffers[SHERDI_BUFFER_GATHER].bytes;
}

/* Large units: the one in use and the next. Small ones: until 8 MiB are ahead. The key bounds both. */
static void plan_gathers_ahead_what_the_wire_needs(void)
{
    static const struct {
        size_t      layer_elems;
        const char *zero;
        size_t      most_layers;
    } WANT[] = {
        {(size_t)5 << 20, "", 2},
        {(size_t)4 << 20, "", 2},
        {(size_t)1 << 20, "", 5},
        {((size_t)3 << 20) / 2, "", 4},
        {(size_t)1 << 20, ", \"stage3_prefetch_bucket_size\": 2097152", 3},
        {(size_t)1 << 20, ", \"stage3_prefetch_bucket_size\": 1048575", 1},
        {(size_t)1 << 20, ", \"stage3_max_live_parameters\": 2097152", 2},
        {(size_t)60 << 20, "", 1}, /* more than the key's default */
    };

    for (size_t i = 0; i < sizeof(WANT) / sizeof(WANT[0]); i++) {
        layered l    = {.layers      = 12,
                        .layer_elems = WANT[i].layer_elems,
                        .table_elems = 64,
                        .world_size  = 4,
                        .zero        = WANT[i].zero};
        size_t  most = 0;
        bench   b;

        layered_open(&b, &l);
        for (size_t p = 0; p < b.plan->train.num_steps; p++) {
            size_t there = 0;

            for (size_t s = 0; s < b.plan->train.num_stays; s++) {
                const sherdi_stay *stay = &b.plan->train.stays[s];

                there += stay->first <= p && p <= stay->last && stay->bytes > 4096;
            }
            most = there > most ? there : most;
        }
        CHECK_INT(WANT[i].most_layers, most);
        CHECK(gather_bytes(&b) >= most * WANT[i].layer_elems * 2);
        bench_close(&b);
    }
}

static const test_case CASES[] = {
    CASE(plan_gathers_ahead_what_the_wire_needs),
};

RUN_MAIN(CASES)
