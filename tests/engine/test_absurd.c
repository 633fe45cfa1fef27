/* Models of absurd size are refused by arithmetic, before tables grow for them: what, where and
 * what to do, within little memory. */
#include "engine/limits.h"
#include "engine/run/engine_impl.h"
#include "tests/engine/rig.h"
#include "tests/lib/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FEW_BYTES ((size_t)2 << 20)

static size_t control_peak(const rig *r)
{
    return atomic_load(&r->engine->mem.peak_bytes[SHERDI_MEM_CONTROL]);
}

static sherd_status text_drop(void *ctx, const char *text, size_t len_bytes)
{
    (void)ctx;
    (void)text;
    (void)len_bytes;
    return SHERD_OK;
}

typedef struct absurd_job {
    rig_options options;
    size_t      elems; /* of each of four units */
    int         is_frozen;
    const char *key; /* that the message names */
} absurd_job;

/* The number after "to " is one with which there are few enough. */
static void check_advice(const absurd_job *job, int world_size)
{
    const char *at     = strstr(sherd_last_error(), job->key);
    size_t      advice = 0;
    size_t      owned  = 4 * (job->elems / (size_t)(job->options.stage > 0 ? world_size : 1));

    CHECK(at != NULL);
    advice = strtoull(at + strlen(job->key) + strlen(" to "), NULL, 10);
    CHECK(advice > 0);
    CHECK(owned / advice + 4 <= SHERDI_MOST_BLOCKS);
}

static void absurd_seal(sherd_world *world, void *raw)
{
    const absurd_job *job = raw;
    rig               r;

    rig_open(&r, world, &job->options);
    for (int u = 0; u < 4; u++) {
        sherd_param_params params;
        char               name[16];

        sherd_param_params_init(&params);
        params.frozen = job->is_frozen;
        (void)snprintf(name, sizeof(name), "unit%d", u);
        (void)rig_unit(&r, name);
        (void)snprintf(name, sizeof(name), "w%d", u);
        (void)rig_param_as(&r, u, name, job->elems, &params);
    }
    CHECK_STATUS(SHERD_E_NOMEM, sherd_engine_plan(r.engine, SHERD_PLAN_JSON, text_drop, NULL));
    check_advice(job, sherd_world_size(world));
    CHECK_STATUS(SHERD_E_NOMEM, sherd_engine_seal(r.engine));
    CHECK_ERROR_SAYS("blocks of");
    CHECK(control_peak(&r) < FEW_BYTES);
    rig_close(&r);
}

#define NVME(what) ", \"offload_" what "\": {\"device\": \"nvme\", \"nvme_path\": \"/nonexistent\""

static void too_many_blocks_are_refused_before_they_are_counted_out(void)
{
    static const absurd_job JOBS[] = {
        {{.stage = 0}, (size_t)1 << 48, 0, "zero_optimization.sub_group_size"},
        {{.stage = 3, .zero = ", \"sub_group_size\": 64"},
         1000000000,
         0,
         "zero_optimization.sub_group_size"},
        {{.stage = 2, .zero = NVME("optimizer") "}"},
         250000000000000,
         0,
         "zero_optimization.offload_optimizer.buffer_size"},
        {{.stage = 3, .zero = NVME("param") ", \"max_in_cpu\": 0, \"buffer_size\": 100000}"},
         250000000000000,
         1,
         "zero_optimization.offload_param.buffer_size"},
    };

    for (size_t i = 0; i < sizeof(JOBS) / sizeof(JOBS[0]); i++) {
        absurd_job job = JOBS[i];

        job.options.accumulation = 1;
        job.options.dtype        = SHERD_BF16;
        test_world(1, absurd_seal, &job);
        test_world(2, absurd_seal, &job);
    }
}

static void too_many_units_are_refused_when_they_are_declared(void)
{
    rig_options       options = {.stage = 3, .accumulation = 1};
    sherd_unit_params params;
    sherd_unit        unit;
    sherd_world      *world;
    rig               r;
    char              name[32];

    CHECK_OK(sherd_world_self(&world));
    rig_open(&r, world, &options);
    sherd_unit_params_init(&params);
    params.name = name;
    for (size_t u = 0; u < SHERDI_MOST_UNITS; u++) {
        (void)snprintf(name, sizeof(name), "u%zu", u);
        CHECK_OK(sherd_unit_add(r.engine, &params, &unit));
        CHECK_OK(sherd_pass_add(r.engine, SHERD_EVAL, 0));
    }
    (void)snprintf(name, sizeof(name), "one more");
    CHECK_STATUS(SHERD_E_INVAL, sherd_unit_add(r.engine, &params, &unit));
    CHECK_ERROR_SAYS("at most 131072 units");
    CHECK_STATUS(SHERD_E_INVAL, sherd_pass_add(r.engine, SHERD_EVAL, 0));
    CHECK_ERROR_SAYS("at most 131072 acquires in a pass");
    rig_close(&r);
    sherd_world_destroy(world);
}

static const test_case CASES[] = {
    CASE(too_many_blocks_are_refused_before_they_are_counted_out),
    CASE(too_many_units_are_refused_when_they_are_declared),
};

RUN_MAIN(CASES)
