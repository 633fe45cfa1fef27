/* Where units lie in the pools, and how far ahead they are gathered: plans of layered models,
 * without an engine. */
#include "engine/plan/plan.h"
#include "engine/declarations.h"
#include "engine/proof/check.h"
#include "engine/proof/emit.h"
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
    sherd_unit_params  unit_params;
    int                unit;
    int                param;

    sherd_unit_params_init(&unit_params);
    unit_params.name = name;
    CHECK_OK(sherdi_model_add_unit(&b->model, &unit_params, &unit));
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
    CHECK_OK(sherdi_dry_plan(&b->model, &b->settings, 0, world_size, &UNKNOWN, &b->mem, &b->plan));
    CHECK_OK(sherdi_plan_check(b->plan, &b->model));
}

static void layered_open(bench *b, const layered *l)
{
    rig_options options = {.stage = 3, .dtype = SHERD_BF16, .zero = l->zero};

    bench_open(b);
    (void)bench_unit(b, "table", l->table_elems);
    for (size_t i = 0; i < l->layers; i++) {
        char name[32];

        (void)snprintf(name, sizeof(name), "layer%zu", i);
        (void)bench_unit(b, name, l->layer_elems);
    }
    (void)bench_unit(b, "head", l->is_tied ? 1024 : l->table_elems);
    if (l->is_tied) {
        CHECK_OK(sherdi_model_add_read(&b->model, (int)b->model.num_units - 1, 0));
    }
    bench_settings(b, &options, l->world_size);
    bench_plan(b, l->world_size);
}

static size_t gather_bytes(const bench *b)
{
    return b->plan->packing.buffers[SHERDI_BUFFER_GATHER].bytes;
}

/* Large units: the one in use and the next. Small ones: until 8 MiB are ahead. The key bounds
 * both. */
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
        for (size_t p = 0; p < b.plan->schedule.train.num_steps; p++) {
            size_t there = 0;

            for (size_t s = 0; s < b.plan->schedule.train.live_ranges.count; s++) {
                const sherdi_live_range *live_range = &b.plan->schedule.train.live_ranges.items[s];

                there +=
                    live_range->first <= p && p <= live_range->last && live_range->bytes > 4096;
            }
            most = there > most ? there : most;
        }
        CHECK_INT(WANT[i].most_layers, most);
        CHECK(gather_bytes(&b) >= most * WANT[i].layer_elems * 2);
        bench_close(&b);
    }
}

static size_t gather_load(const bench *b)
{
    const sherdi_sequence *sequences[] = {&b->plan->schedule.train, &b->plan->schedule.eval};
    size_t                 most        = 0;

    for (int k = 0; k < 2; k++) {
        for (size_t p = 0; p < sequences[k]->num_steps; p++) {
            size_t load = 0;

            for (size_t s = 0; s < sequences[k]->live_ranges.count; s++) {
                const sherdi_live_range *live_range = &sequences[k]->live_ranges.items[s];

                load += live_range->first <= p && p <= live_range->last ? live_range->bytes : 0;
            }
            most = load > most ? load : most;
        }
    }
    return most;
}

/* The plan again with free packing. */
static size_t free_gather_bytes(bench *b, int world_size)
{
    sherdi_plan_destroy(b->plan);
    b->settings.sharding.free_packing = 1;
    bench_plan(b, world_size);
    return gather_bytes(b);
}

/* Layers are alternately where the ones before them were. One case costs: a table that is as large
 * as a layer, read at both ends, closes a ring of layers, which needs an offset more when its
 * length does not fit. */
static void one_address_costs_layered_models_nothing(void)
{
    static const double TABLES[] = {0.1, 0.3, 0.6, 0.9, 1, 1.3, 1.7, 2, 2.5, 3.1, 4.7, 6};
    static const size_t LAYERS[] = {65536, 262144, 524288, 1048576, 1572864, 3000000, 5000000};
    static const int    WORLDS[] = {1, 2, 3, 8};
    size_t              compared = 0;

    for (size_t i = 0; i < 2 * 14 * 12 * 7 * 4; i++) {
        double  table = TABLES[i / 28 % 12];
        layered l     = {.layers      = 1 + i / 2 % 14,
                         .layer_elems = LAYERS[i / 336 % 7],
                         .is_tied     = (int)(i % 2),
                         .world_size  = WORLDS[i / 2352],
                         .zero        = ""};
        size_t  one, extra;
        bench   b;

        l.table_elems = (size_t)(table * (double)l.layer_elems);
        layered_open(&b, &l);
        one   = gather_bytes(&b);
        extra = table == 1 && l.is_tied ? b.plan->layout.units[1].gather_bytes : 0;
        CHECK(one >= gather_load(&b));
        if (one > free_gather_bytes(&b, l.world_size) + extra) {
            test_fail(__FILE__, __LINE__, "%zu layers of %zu, table of %zu, tied %d: %zu bytes",
                      l.layers, l.layer_elems, l.table_elems, l.is_tied, one);
        }
        compared += one > 0;
        bench_close(&b);
    }
    CHECK(compared > 5000);
}

static int is_apart(const bench *b, int one, int other)
{
    const sherdi_plan_unit *u = &b->plan->layout.units[one];
    const sherdi_plan_unit *v = &b->plan->layout.units[other];

    return (u->gather_pool_offset >= v->gather_pool_offset + v->gather_bytes ||
            v->gather_pool_offset >= u->gather_pool_offset + u->gather_bytes) &&
           (u->transient_pool_offset >= v->transient_pool_offset + v->transient_bytes ||
            v->transient_pool_offset >= u->transient_pool_offset + u->transient_bytes);
}

/* Two that no pass has, one that only evaluation has. */
static void units_outside_the_passes_have_offsets_of_their_own(void)
{
    rig_options options = {
        .stage = 3, .dtype = SHERD_BF16, .zero = ", \"stage3_prefetch_bucket_size\": 0"};
    bench b;
    int   units[6];

    bench_open(&b);
    for (int u = 0; u < 6; u++) {
        static const char *const NAMES[] = {"a", "b", "c", "stray", "other", "score"};

        units[u] = bench_unit(&b, NAMES[u], 5000 + 1000 * (size_t)u);
    }
    for (int u = 0; u < 3; u++) {
        CHECK_OK(sherdi_model_add_pass(&b.model, SHERD_FORWARD, units[u], 0));
        CHECK_OK(sherdi_model_add_pass(&b.model, SHERD_EVAL, units[u], u == 2 ? 1 : 0));
    }
    CHECK_OK(sherdi_model_add_pass(&b.model, SHERD_EVAL, units[5], 0));
    bench_settings(&b, &options, 2);
    bench_plan(&b, 2);
    for (int u = 0; u < 6; u++) {
        CHECK(u == 3 || is_apart(&b, 3, u));
        CHECK(u == 4 || is_apart(&b, 4, u));
    }
    CHECK(b.plan->layout.units[5].gather_pool_offset !=
          b.plan->layout.units[2].gather_pool_offset); /* held meanwhile */
    CHECK(b.plan->layout.units[0].gather_pool_offset == b.plan->layout.units[1].gather_pool_offset);
    CHECK(free_gather_bytes(&b, 2) < 2 * 2 * 15000); /* nothing but "c" and "score" together */
    bench_close(&b);
}

/* Acquired off the plan too: a unit and all that it reads have room together, whatever the
 * packing. */
static void units_lie_apart_from_what_they_read(void)
{
    for (int is_free = 0; is_free <= 1; is_free++) {
        rig_options options = {.stage = 3, .zero = ", \"stage3_prefetch_bucket_size\": 0"};
        bench       b;

        if (is_free) {
            options.top = ", \"sherd\": {\"free_packing\": true}";
        }
        bench_open(&b);
        for (int u = 0; u < 5; u++) {
            static const char *const NAMES[] = {"a", "b", "c", "d", "reader"};

            (void)bench_unit(&b, NAMES[u], 1000 + 500 * (size_t)u);
        }
        CHECK_OK(sherdi_model_add_read(&b.model, 4, 0));
        CHECK_OK(sherdi_model_add_read(&b.model, 4, 2));
        CHECK_OK(sherdi_model_add_pass(&b.model, SHERD_FORWARD, 0, 0));
        CHECK_OK(sherdi_model_add_pass(&b.model, SHERD_FORWARD, 2, 0));
        bench_settings(&b, &options, 3);
        CHECK_INT(is_free, b.settings.sharding.free_packing);
        bench_plan(&b, 3);
        CHECK(is_apart(&b, 4, 0));
        CHECK(is_apart(&b, 4, 2));
        CHECK(is_apart(&b, 0, 2));
        bench_close(&b);
    }
}

static char warned[1024];

static void warning_keep(void *ctx, sherd_log_level level, const char *line)
{
    size_t len = strlen(warned);

    (void)ctx;
    (void)level;
    (void)snprintf(warned + len, sizeof(warned) - len, "%s\n", line);
}

static void three_seal(sherd_world *world, void *zero)
{
    rig_options options = {.stage = 3, .zero = zero};
    rig         r;

    rig_open(&r, world, &options);
    rig_three(&r, 3000);
    CHECK_OK(sherd_engine_seal(r.engine));
    rig_close(&r);
}

/* Units of 3,000 elements and more. 0 is said on purpose. */
static void bucket_below_every_unit_is_told(void)
{
    static char *const ZEROS[]   = {", \"stage3_prefetch_bucket_size\": 2000",
                                    ", \"stage3_prefetch_bucket_size\": 4000",
                                    ", \"stage3_prefetch_bucket_size\": 0", ""};
    const int          IS_TOLD[] = {1, 0, 0, 0};

    for (int i = 0; i < 4; i++) {
        warned[0] = '\0';
        sherd_log_set(warning_keep, NULL, SHERD_LOG_WARN);
        test_world(2, three_seal, ZEROS[i]);
        sherd_log_set(NULL, NULL, SHERD_LOG_WARN);
        CHECK_INT(IS_TOLD[i], strstr(warned, "stage3_prefetch_bucket_size is 2000, less than the "
                                             "smallest unit (a, 3") != NULL);
        CHECK(IS_TOLD[i] || warned[0] == '\0');
    }
}

static const test_case CASES[] = {
    CASE(plan_gathers_ahead_what_the_wire_needs),
    CASE(one_address_costs_layered_models_nothing),
    CASE(units_outside_the_passes_have_offsets_of_their_own),
    CASE(units_lie_apart_from_what_they_read),
    CASE(bucket_below_every_unit_is_told),
};

RUN_MAIN(CASES)
