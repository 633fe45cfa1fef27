/* All values of an engine, taken out part by part and put into another one, before its first
 * acquire or after it has trained something else: it trains on as the first does, whatever the two
 * layouts. */
#include "engine/program/values.h"
#include "engine/run/engine_impl.h"
#include "engine/run/values.h"
#include "tests/engine/value_rig.h"
#include "tests/engine/toy.h"
#include "tests/lib/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEPS 2

/* Of the whole model; each rank adds what it owns. */
typedef struct store {
    float values[RIG_PARAMS][SHERDI_VALUE_PARTS][VALUE_RIG_ELEMS];
    int   is_counted;
    int   seen[RIG_PARAMS][SHERDI_VALUE_PARTS][VALUE_RIG_ELEMS];
} store;

typedef struct job {
    rig_options options;
    int         is_running;
    store      *store;
    uint64_t    fingerprint; /* out */
} job;

static sherdi_values all_of(const rig *r, int p)
{
    unsigned parts = (1u << r->engine->settings.update.optimizer->num_parts) - 1;

    return (sherdi_values){.param = (size_t)p,
                           .count = r->params[p].elems,
                           .parts = r->params[p].is_frozen ? SHERDI_VALUES_COMPUTE : parts};
}

typedef struct one {
    store *store;
    int    param;
} one;

static sherd_status value_keep(void *raw, int part, size_t first, size_t count, float *values)
{
    const one *o = raw;

    for (size_t i = 0; i < count; i++) {
        o->store->values[o->param][part][first + i] = values[i];
        o->store->seen[o->param][part][first + i] += o->store->is_counted;
    }
    return SHERD_OK;
}

static sherd_status value_give(void *raw, int part, size_t first, size_t count, float *values)
{
    const one *o = raw;

    memcpy(values, &o->store->values[o->param][part][first], count * sizeof(*values));
    return SHERD_OK;
}

/* In two ranges each, so that a range begins anywhere. */
static void values_put(rig *r, store *store)
{
    uint64_t *share = sherdi_values_share(r->engine);

    CHECK_OK(sherdi_values_begin(r->engine));
    for (int p = 0; p < r->num_params; p++) {
        sherdi_values values = all_of(r, p);

        *share       = 0;
        values.count = values.count / 3;
        CHECK_OK(sherdi_values_put(r->engine, &values, value_give, &(one){store, p}));
        values.first = values.count;
        values.count = r->params[p].elems - values.first;
        CHECK_OK(sherdi_values_put(r->engine, &values, value_give, &(one){store, p}));
        r->engine->fill.is_filled[p] = 1;
        r->engine->fill.shares[p]    = *share;
    }
    CHECK_OK(sherdi_values_end(r->engine));
}

/* Every element of every part is owned once, or at stage 0 by all. */
static void values_check(const rig *r, const store *store)
{
    int world = r->engine->plan->layout.is_sliced ? 1 : r->engine->world_size;

    for (int p = 0; p < r->num_params && r->engine->rank == 0; p++) {
        unsigned parts = all_of(r, p).parts;

        for (int part = 0; part < SHERDI_VALUE_PARTS; part++) {
            for (size_t i = 0; i < r->params[p].elems; i++) {
                CHECK_INT(parts >> part & 1 ? world : 0, store->seen[p][part][i]);
            }
        }
    }
}

static void model_fill(rig *r, uintptr_t seed)
{
    for (int p = 0; p < r->num_params; p++) {
        CHECK_OK(sherd_param_fill(r->engine, r->params[p].handle, rig_fill,
                                  (void *)(seed + (uintptr_t)p)));
    }
}

static void first_run(sherd_world *world, void *raw)
{
    job *j = raw;
    rig  r;

    value_rig_open(&r, world, &j->options);
    model_fill(&r, 0);
    (void)rig_train(&r, STEPS);
    for (int rank = 0; rank < r.engine->world_size; rank++) { /* one counts after the other */
        CHECK_OK(sherd_world_barrier(world));
        if (rank == r.engine->rank) {
            CHECK_OK(sherdi_values_begin(r.engine));
            for (int p = 0; p < r.num_params; p++) {
                sherdi_values values = all_of(&r, p);

                CHECK_OK(sherdi_values_get(r.engine, &values, value_keep, &(one){j->store, p}));
            }
            CHECK_OK(sherdi_values_end(r.engine));
        }
    }
    CHECK_OK(sherd_world_barrier(world));
    values_check(&r, j->store);
    (void)rig_train(&r, STEPS);
    j->fingerprint = rig_fingerprint(&r);
    rig_close(&r);
}

/* Of what is frozen, as it lies there. */
static uint64_t frozen_fingerprint(rig *r)
{
    uint64_t sum = 0;

    for (int p = 0; p < r->num_params; p++) {
        uint64_t share;

        CHECK_OK(sherd_param_fingerprint(r->engine, r->params[p].handle, &share));
        sum += r->params[p].is_frozen ? share : 0;
    }
    return sum;
}

/* What was trained before is written over. */
static void running_put(rig *r, store *store)
{
    sherd_engine *engine = r->engine;

    model_fill(r, 500);
    (void)rig_train(r, 1);
    CHECK_OK(sherd_world_barrier(r->world));
    CHECK_OK(sherdi_program_forget(&r->engine->run.program));
    values_put(r, store);
    r->engine->counters.step = STEPS;
    SHERDI_TELL(storage, note, engine, STEPS, &engine->scaler, 0);
    CHECK_OK(SHERDI_ASK(storage, commit, engine, 0));
    CHECK_OK(sherd_world_barrier(r->world));
    r->engine->fingerprints.frozen = frozen_fingerprint(r);
}

static void other_run(sherd_world *world, void *raw)
{
    job *j = raw;
    rig  r;

    value_rig_open(&r, world, &j->options);
    if (j->is_running) {
        running_put(&r, j->store);
    } else {
        values_put(&r, j->store);
        r.engine->counters.step = STEPS;
    }
    r.micro = STEPS;
    (void)rig_train(&r, STEPS);
    j->fingerprint = rig_fingerprint(&r);
    rig_close(&r);
}

static void others_run(job *first, int world_size, int stage, const value_rig_tier *t)
{
    char keys[1024];

    if (t->params != NULL && stage < 3) {
        return;
    }
    for (int is_running = 0; is_running < 2; is_running++) {
        job other = {.options = first->options, .is_running = is_running, .store = first->store};

        other.options.stage = stage;
        other.options.zero  = value_rig_keys(t, keys);
        test_world(world_size, other_run, &other);
        CHECK_INT(first->fingerprint, other.fingerprint);
    }
}

static void layouts_run(sherd_dtype dtype, const char *optimizer, int world_size)
{
    char   keys[1024];
    store *all   = calloc(1, sizeof(*all));
    size_t tiers = value_rig_tiers();

    CHECK(all != NULL);
    if (!toy_takes_ranks(world_size)) {
        free(all);
        return;
    }
    for (int from = 0; from <= 3; from++) {
        job first = {.options = {.stage     = from,
                                 .dtype     = dtype,
                                 .optimizer = optimizer,
                                 .top       = ", \"deterministic\": true"},
                     .store   = all};

        memset(all, 0, sizeof(*all));
        all->is_counted = 1;
        first.options.zero =
            value_rig_keys(&VALUE_RIG_TIERS[from < 3 ? (size_t)from % 2 : tiers - 1], keys);
        test_world(world_size, first_run, &first);
        for (size_t t = 0; t < tiers; t += value_rig_is_slow() ? 5 : 1) {
            others_run(&first, world_size, 3 - from, &VALUE_RIG_TIERS[t]);
        }
    }
    free(all);
}

static void adamw_bf16_goes_on_in_another_layout(void)
{
    for (int world_size = 1; world_size <= 4; world_size++) {
        layouts_run(SHERD_BF16, "AdamW", world_size);
    }
    layouts_run(SHERD_BF16, "AdamW", 7);
}

static void lamb_fp32_goes_on_in_another_layout(void)
{
    for (int world_size = 1; world_size <= 3; world_size++) {
        layouts_run(SHERD_F32, "LAMB", world_size);
    }
}

static const test_case CASES[] = {
    CASE(adamw_bf16_goes_on_in_another_layout),
    CASE(lamb_fp32_goes_on_in_another_layout),
};

RUN_MAIN(CASES)
