/* Tests of reading and writing ranges of values: master weights, compute copies, parts of the
 * state, gradients. */
#include "engine/run/engine_impl.h"

#include "engine/run/fill.h"
#include "engine/run/update.h"
#include "engine/run/values.h"
#include "tests/engine/toy.h"
#include "tests/engine/value_rig.h"
#include "tests/engine/ways.h"
#include "tests/lib/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SPAN VALUE_RIG_ELEMS

/* Parameters that are declared as fp32; there are some of each kind, with others of the kind. */
#define SOME_WIDE 0x9au

static const char *const STATE[] = {SHERD_MASTER, "exp_avg", "exp_avg_sq"};

/* What a case does on each rank with an engine that is filled. */
typedef struct job {
    rig_options options;
    int         is_bound;
    int64_t     steps;   /* steps before it, and again after it */
    uint64_t    trained; /* result: rank 0's fingerprint at the end */
    void (*run)(rig *r);
} job;

static void job_run(sherd_world *world, void *raw)
{
    job       *j = raw;
    ways_bound memory;
    rig        r;

    value_rig_declare(&r, world, &j->options);
    if (j->is_bound) {
        ways_bind(&r, &memory);
    }
    rig_seal(&r);
    (void)rig_train(&r, (int)j->steps);
    if (j->run != NULL) {
        j->run(&r);
    }
    (void)rig_train(&r, (int)j->steps);
    if (sherd_world_rank(world) == 0) {
        j->trained = rig_fingerprint(&r);
    } else {
        (void)rig_fingerprint(&r);
    }
    rig_close(&r);
    if (j->is_bound) {
        ways_unbind(&memory);
    }
}

/* Runs each stage with each tier that it has, and also with bound memory where that is possible.
 * With many ranks or on a device only the first and the last tier are run. */
static void layouts_each(job *j, int world_size, void (*each)(job *j, int world_size))
{
    if (!toy_takes_ranks(world_size)) {
        return;
    }
    for (int stage = 0; stage <= 3; stage++) {
        for (size_t t = 0; t < value_rig_tiers(); t++) {
            const value_rig_tier *tier = &VALUE_RIG_TIERS[t];
            char                  keys[1024];

            if ((tier->params != NULL && stage < 3) || (tier->optimizer != NULL && stage == 0) ||
                ((world_size > 3 || value_rig_is_slow()) && t % 5 != 0)) {
                continue;
            }
            j->options.stage = stage;
            j->options.zero  = value_rig_keys(tier, keys);
            j->is_bound      = 0;
            each(j, world_size);
            if (stage < 3 && t == 0 && !value_rig_is_slow()) {
                /* bound memory is host memory here */
                j->is_bound = 1;
                each(j, world_size);
            }
        }
    }
}

static float *floats_new(size_t count)
{
    float *values = calloc(count + 1, sizeof(*values));

    CHECK(values != NULL);
    return values;
}

/* ------------------------------------------------------- write, then read -- */

/* Draws any bits: NaN with payloads, both zeros, denormals, Inf. */
static void bits_draw(float *values, size_t count, uint64_t seed)
{
    static const uint32_t SPECIAL[] = {0x80000000u, 0x7fc12345u, 0xff800001u, 0x00000001u,
                                       0x7f800000u, 0xff800000u, 0x80000001u};

    for (size_t i = 0; i < count; i++) {
        uint32_t bits = (uint32_t)test_random(&seed);

        bits = i % 5 == 0 ? SPECIAL[i / 5 % 7] : bits;
        memcpy(&values[i], &bits, sizeof(bits));
    }
}

/* Gives lengths at whose borders mistakes are likely: nothing, one, about a chunk, about a slice,
 * everything. */
static size_t range_lengths(const rig *r, int p, size_t out[8])
{
    const sherdi_plan *plan  = r->engine->plan;
    size_t             slice = plan->layout.segments[plan->layout.params[p].segment].slice_elems;
    size_t             lengths[8] = {0, 1, 63, 65, slice - 1, slice, slice + 1, r->params[p].elems};
    size_t             count      = 0;

    for (int i = 0; i < 8; i++) {
        if (lengths[i] <= r->params[p].elems) {
            out[count++] = lengths[i];
        }
    }
    return count;
}

static void range_check(rig *r, int p, sherd_value value, size_t first, size_t count, float *all)
{
    sherd_param handle = r->params[p].handle;
    float      *got    = floats_new(r->params[p].elems);

    bits_draw(all + first, count, first * 31 + count);
    CHECK_OK(sherd_param_write(r->engine, handle, value, first, count, all + first));
    CHECK_OK(sherd_param_read(r->engine, handle, value, first, count, got));
    CHECK_BYTES_EQUAL(all + first, got, count * sizeof(*got));
    CHECK_OK(sherd_param_read(r->engine, handle, value, 0, r->params[p].elems,
                              r->engine->rank == 0 ? NULL : got));
    if (r->engine->rank != 0) {
        CHECK_BYTES_EQUAL(all, got, r->params[p].elems * sizeof(*got));
    }
    free(got);
}

/* Checks that passes compute with the values that are read, and that in fp32 these are the
 * master's. */
static void copies_check(rig *r, int p, const float *master)
{
    size_t elems  = r->params[p].elems;
    float *passed = floats_new(elems);
    float *got    = floats_new(elems);

    rig_values(r, p, passed);
    CHECK_OK(sherd_param_read(r->engine, r->params[p].handle, SHERD_COMPUTE, 0, elems, got));
    CHECK_BYTES_EQUAL(passed, got, elems * sizeof(*got));
    for (size_t i = 0; i < elems && r->params[p].dtype == SHERD_F32; i++) {
        CHECK_BYTES_EQUAL(&master[i], &got[i], sizeof(*got));
    }
    free(got);
    free(passed);
}

static void values_of_param_check(rig *r, int p, sherd_value value)
{
    size_t elems = r->params[p].elems;
    size_t lengths[8];
    size_t count = range_lengths(r, p, lengths);
    float *all   = floats_new(elems);

    CHECK_OK(sherd_param_read(r->engine, r->params[p].handle, value, 0, elems, all));
    for (size_t i = 0; i < count; i += value == STATE[0] && p % 5 == 0 ? 1 : 3) {
        size_t room = elems - lengths[i];

        range_check(r, p, value, i % 2 ? room / 2 : room, lengths[i], all);
    }
    if (value == STATE[0]) {
        copies_check(r, p, all);
    }
    free(all);
}

/* Checks that the fingerprint that the engine keeps is that of its values. */
static void fingerprints_check(rig *r)
{
    uint64_t sum = 0;

    for (int p = 0; p < r->num_params; p++) {
        uint64_t share;

        CHECK_OK(sherd_param_fingerprint(r->engine, r->params[p].handle, &share));
        sum += share;
    }
    CHECK_INT(sum, rig_fingerprint(r));
    if (r->engine->fingerprints.has_own) {
        uint64_t own = r->engine->fingerprints.own;

        r->engine->fingerprints.has_own = 0;
        CHECK_OK(sherdi_update_fingerprint(r->engine));
        CHECK_INT(own, r->engine->fingerprints.own);
    }
}

static void frozen_check(rig *r, int p)
{
    size_t elems = r->params[p].elems;
    float *given = floats_new(elems);
    float *got   = floats_new(elems);

    for (size_t i = 0; i < elems; i++) {
        given[i] = (float)i / 8; /* values with few bits, which no type rounds */
    }
    CHECK_OK(sherd_param_write(r->engine, r->params[p].handle, SHERD_COMPUTE, 7, 100, given));
    CHECK_OK(sherd_param_read(r->engine, r->params[p].handle, SHERD_COMPUTE, 7, 100, got));
    CHECK_BYTES_EQUAL(given, got, 100 * sizeof(*got));
    CHECK_OK(sherd_param_write(r->engine, r->params[p].handle, SHERD_COMPUTE, 0, elems, given));
    copies_check(r, p, given);
    free(got);
    free(given);
}

static void written_is_read(rig *r)
{
    for (int p = 0; p < 6; p++) {
        /* also a parameter of the second unit, which passes of the first gather ahead */
        for (int v = 0; v < 3 && p != VALUE_RIG_FROZEN; v++) {
            values_of_param_check(r, p, STATE[v]);
        }
    }
    frozen_check(r, VALUE_RIG_FROZEN);
    fingerprints_check(r);
}

static void layout_run(job *j, int world_size)
{
    test_world(world_size, job_run, j);
}

static const int WORLDS[] = {1, 2, 3, 4, 7};

static void written_values_are_read_by_bits(void)
{
    for (size_t w = 0; w < sizeof(WORLDS) / sizeof(WORLDS[0]); w++) {
        job j = {
            .options = {.dtype = w % 2 ? SHERD_BF16 : SHERD_F32, .wide = w == 1 ? SOME_WIDE : 0},
            .run     = written_is_read};

        layouts_each(&j, WORLDS[w], layout_run);
    }
}

/* ------------------------------------------------------------- training on -- */

/* Reads all values and writes the same ones back. */
static void everything_rewrite(rig *r)
{
    for (int p = 0; p < r->num_params; p++) {
        size_t elems = r->params[p].elems;
        float *all   = floats_new(elems);
        int    parts = r->params[p].is_frozen ? 1 : 3;

        for (int v = 0; v < parts; v++) {
            sherd_value value = r->params[p].is_frozen ? SHERD_COMPUTE : STATE[v];

            CHECK_OK(sherd_param_read(r->engine, r->params[p].handle, value, 0, elems, all));
            CHECK_OK(sherd_param_write(r->engine, r->params[p].handle, value, 0, elems / 2, all));
            CHECK_OK(sherd_param_write(r->engine, r->params[p].handle, value, elems / 2,
                                       elems - elems / 2, all + elems / 2));
        }
        free(all);
    }
    fingerprints_check(r);
}

static void layout_rewrite(job *j, int world_size)
{
    job plain = *j;

    plain.run = NULL;
    test_world(world_size, job_run, &plain);
    j->run = everything_rewrite;
    test_world(world_size, job_run, j);
    CHECK_INT(plain.trained, j->trained);
}

static void what_is_written_as_it_was_changes_nothing(void)
{
    static const char *const OPTIMIZERS[] = {"AdamW", "LAMB"};

    for (int world_size = 1; world_size <= 4; world_size++) {
        job j = {.options = {.dtype     = world_size % 2 ? SHERD_BF16 : SHERD_F32,
                             .optimizer = OPTIMIZERS[world_size % 2],
                             .clip      = 1},
                 .steps   = 2};

        layouts_each(&j, world_size, layout_rewrite);
    }
}

/* Sets values, state and counters back to the beginning by hand. */
static void start_over(rig *r)
{
    for (int p = 0; p < r->num_params; p++) {
        size_t elems = r->params[p].elems;
        float *first = floats_new(elems);
        float *zero  = floats_new(elems);

        if (!r->params[p].is_frozen) {
            CHECK_OK(rig_fill((void *)(uintptr_t)p, 0, elems, first));
            CHECK_OK(sherd_param_write(r->engine, r->params[p].handle, STATE[0], 0, elems, first));
            CHECK_OK(sherd_param_write(r->engine, r->params[p].handle, STATE[1], 0, elems, zero));
            CHECK_OK(sherd_param_write(r->engine, r->params[p].handle, STATE[2], 0, elems, zero));
        }
        free(first);
        free(zero);
    }
    CHECK_OK(sherd_engine_set_step(r->engine, 0, 0));
    r->micro = 0;
}

static void layout_start_over(job *j, int world_size)
{
    job plain = *j;

    plain.run   = NULL;
    plain.steps = 1;
    test_world(world_size, job_run, &plain); /* two steps in all */
    j->run   = start_over;
    j->steps = 2;
    test_world(world_size, job_run, j);
    CHECK_INT(plain.trained, j->trained);
}

static void run_that_is_set_back_by_hand_goes_the_same_way(void)
{
    for (int world_size = 1; world_size <= 3; world_size++) {
        job j = {.options = {.dtype = world_size % 2 ? SHERD_F32 : SHERD_BF16,
                             .top   = ", \"scheduler\": {\"type\": \"WarmupLR\", \"params\": "
                                      "{\"warmup_num_steps\": 3, \"warmup_max_lr\": 0.01}}"}};

        layouts_each(&j, world_size, layout_start_over);
    }
}

/* --------------------------------------------------------------- gradients -- */

static float gradients[8][SPAN]; /* of parameter 0, by stage and mode */

static void gradient_take(rig *r)
{
    sherd_step_report report = {.struct_size = sizeof(report)};
    double            sumsq  = 0;
    int row = r->engine->settings.sharding.stage + 4 * r->engine->settings.numerics.deterministic;

    rig_micro_batch(r);
    CHECK_OK(sherd_step_prepare(r->engine, NULL));
    r->micro++;
    rig_micro_batch(r);
    CHECK_OK(sherd_step_prepare(r->engine, &report));
    r->micro++;
    CHECK_INT(1, report.is_boundary);
    for (int p = 0; p < r->num_params; p++) {
        float *all = floats_new(r->params[p].elems);

        if (r->params[p].is_frozen) {
            CHECK_STATUS(SHERD_E_STATE,
                         sherd_param_read(r->engine, r->params[p].handle, SHERD_GRAD, 0, 1, all));
        } else {
            CHECK_OK(sherd_param_read(r->engine, r->params[p].handle, SHERD_GRAD, 0,
                                      r->params[p].elems, all));
        }
        for (size_t i = 0; i < r->params[p].elems; i++) {
            sumsq += (double)all[i] * all[i];
        }
        if (p == 0 && r->engine->rank == r->engine->world_size - 1) {
            memcpy(gradients[row], all, sizeof(gradients[row]));
        }
        free(all);
    }
    /* the engine's sum is exact, this one is not */
    CHECK_CLOSE(report.grad_norm, sqrt(sumsq), 1e-6);
    CHECK_OK(sherd_step_apply(r->engine, NULL));
}

static void layout_gradient(job *j, int world_size)
{
    job plain = *j;

    plain.run   = NULL;
    plain.steps = 2;
    test_world(world_size, job_run, &plain);
    j->run   = gradient_take;
    j->steps = 2;
    test_world(world_size, job_run, j);
}

static void gradient_is_the_mean_that_the_norm_is_of(void)
{
    static const char *const TOPS[] = {"", ", \"deterministic\": true"};

    for (int world_size = 1; world_size <= 3; world_size++) {
        for (int mode = 0; mode < 2; mode++) {
            job j = {.options = {.dtype        = world_size == 2 ? SHERD_F16 : SHERD_F32,
                                 .accumulation = 2,
                                 .clip         = 0.5,
                                 .top          = TOPS[mode]}};

            layouts_each(&j, world_size, layout_gradient);
        }
        CHECK_BYTES_EQUAL(gradients[0], gradients[1], sizeof(gradients[0]));
        CHECK_BYTES_EQUAL(gradients[2], gradients[3], sizeof(gradients[0]));
        for (int stage = 1; stage < 4; stage++) {
            CHECK_BYTES_EQUAL(gradients[4], gradients[4 + stage], sizeof(gradients[0]));
        }
    }
}

/* ------------------------------------------------------------------ errors -- */

static void refusals(rig *r)
{
    sherd_param p = r->params[0].handle;
    float       v = 1;

    CHECK_STATUS(SHERD_E_INVAL, sherd_param_read(r->engine, p, "momentum", 0, 1, &v));
    CHECK_ERROR_SAYS("there are \"master\", \"exp_avg\", \"exp_avg_sq\", \"compute\" and \"grad\"");
    CHECK_STATUS(SHERD_E_INVAL, sherd_param_read(r->engine, p, NULL, 0, 1, &v));
    CHECK_STATUS(SHERD_E_INVAL, sherd_param_read(r->engine, 99, SHERD_MASTER, 0, 1, &v));
    CHECK_STATUS(SHERD_E_INVAL, sherd_param_read(r->engine, p, SHERD_MASTER, SPAN, 1, &v));
    CHECK_ERROR_SAYS("unit0.0 has 9000 elements");
    CHECK_STATUS(SHERD_E_INVAL, sherd_param_read(r->engine, p, SHERD_MASTER, 1, SIZE_MAX, &v));
    CHECK_OK(sherd_param_read(r->engine, p, SHERD_MASTER, SPAN, 0, &v));
    CHECK_STATUS(SHERD_E_STATE, sherd_param_read(r->engine, p, SHERD_GRAD, 0, 1, &v));
    CHECK_STATUS(SHERD_E_STATE, sherd_param_read(r->engine, r->params[VALUE_RIG_FROZEN].handle,
                                                 SHERD_MASTER, 0, 1, &v));
    CHECK_ERROR_SAYS("frozen");
    CHECK_STATUS(SHERD_E_INVAL, sherd_param_write(r->engine, p, SHERD_GRAD, 0, 1, &v));
    CHECK_STATUS(SHERD_E_INVAL, sherd_param_write(r->engine, p, SHERD_MASTER, 0, 1, NULL));
    CHECK_STATUS(SHERD_E_INVAL, sherd_engine_set_step(r->engine, -1, 0));
    CHECK_STATUS(SHERD_E_INVAL, sherd_engine_set_step(r->engine, INT64_MAX, 0));
    CHECK_STATUS(SHERD_E_INVAL, sherd_engine_set_step(r->engine, 0, ((int64_t)1 << 53) + 1));
    rig_acquire(r, 0, SHERD_FORWARD);
    CHECK_STATUS(SHERD_E_STATE, sherd_param_read(r->engine, p, SHERD_MASTER, 0, 1, &v));
    CHECK_ERROR_SAYS("unit unit0 is still acquired");
    CHECK_STATUS(SHERD_E_STATE, sherd_param_write(r->engine, p, SHERD_MASTER, 0, 1, &v));
    rig_release(r, 0, SHERD_FORWARD);
    CHECK_OK(sherd_param_read(r->engine, p, SHERD_MASTER, 0, 1, &v));
    CHECK_STATUS(SHERD_E_STATE, sherd_param_write(r->engine, p, SHERD_MASTER, 0, 1, &v));
    CHECK_ERROR_SAYS("the next window has begun");
    CHECK_STATUS(SHERD_E_STATE, sherd_engine_set_step(r->engine, 1, 1));
    CHECK_OK(sherd_step_discard(r->engine));
    CHECK_OK(sherd_param_write(r->engine, p, SHERD_MASTER, 0, 1, &v));
}

static void calls_at_the_wrong_time_or_place_are_refused(void)
{
    for (int stage = 0; stage <= 3; stage++) {
        job j = {.options = {.stage = stage}, .steps = 1, .run = refusals};

        test_world(2, job_run, &j);
    }
}

/* The ranks differ in one thing at each call. */
static void differences(rig *r)
{
    sherd_param p    = r->params[0].handle;
    size_t      rank = (size_t)r->engine->rank;
    float       v[4] = {1, 2, 3, 4};

    CHECK_STATUS(SHERD_E_INVAL, sherd_param_read(r->engine, p, SHERD_MASTER, rank, 1, v));
    CHECK_ERROR_SAYS("rank 1 calls sherd_param_read with another first_elem than rank 0");
    CHECK_STATUS(SHERD_E_INVAL, sherd_param_read(r->engine, p, SHERD_MASTER, 0, rank, v));
    CHECK_ERROR_SAYS("count_elems");
    CHECK_STATUS(SHERD_E_INVAL, sherd_param_read(r->engine, p, STATE[rank], 0, 1, v));
    CHECK_ERROR_SAYS("another value than");
    CHECK_STATUS(SHERD_E_INVAL, sherd_param_write(r->engine, p, SHERD_MASTER, 0, 1, &v[rank]));
    CHECK_ERROR_SAYS("another value of an element");
    CHECK_STATUS(SHERD_E_INVAL, sherd_engine_set_step(r->engine, 5, (int64_t)rank));
    CHECK_ERROR_SAYS("micro_step");
    CHECK_STATUS(SHERD_E_INVAL, rank == 0 ? sherd_engine_set_step(r->engine, 5, 5)
                                          : sherd_param_read(r->engine, p, SHERD_MASTER, 0, 1, v));
    CHECK_ERROR_SAYS("makes another call than rank 0");
    CHECK_STATUS(SHERD_E_STATE, /* only rank 0 calls at the wrong time */
                 sherd_param_read(r->engine, p, rank == 0 ? SHERD_GRAD : SHERD_MASTER, 0, 1, v));
    CHECK_ERROR_SAYS(rank == 0 ? "between sherd_step_prepare"
                               : "sherd_param_read: rank 0 failed: ");
}

static void ranks_that_differ_are_told(void)
{
    for (int stage = 0; stage <= 3; stage += 3) {
        job j = {.options = {.stage = stage}, .steps = 1, .run = differences};

        test_world(2, job_run, &j);
    }
}

/* ----------------------------------------------------- ranges of this rank -- */

static void own_ranges(rig *r)
{
    for (int p = 0; p < r->num_params; p++) {
        size_t elems = r->params[p].elems;
        float *all   = floats_new(elems);
        float *own   = floats_new(elems);
        double seen  = 0;
        size_t first;
        size_t count;

        sherd_value value = r->params[p].is_frozen ? SHERD_COMPUTE : SHERD_MASTER;
        CHECK_OK(sherd_param_read(r->engine, r->params[p].handle, value, 0, elems, all));
        CHECK_OK(sherd_param_local(r->engine, r->params[p].handle, &first, &count));
        CHECK_OK(sherd_param_read_local(r->engine, r->params[p].handle, value, first, count, own));
        CHECK_BYTES_EQUAL(all + first, own, count * sizeof(*own));
        seen = (double)count;
        CHECK_OK(sherd_world_sum_f64(r->world, &seen, 1));
        CHECK_INT(r->engine->settings.sharding.stage == 0 ? elems * (size_t)r->engine->world_size
                                                          : elems,
                  seen);
        if (count < elems && !r->params[p].is_frozen) {
            CHECK_STATUS(SHERD_E_INVAL, sherd_param_read_local(r->engine, r->params[p].handle,
                                                               value, 0, elems, own));
            CHECK_ERROR_SAYS("call sherd_param_local for the range that it holds");
        }
        free(own);
        free(all);
    }
}

static void each_rank_reads_what_it_owns_by_itself(void)
{
    job j = {.options = {.dtype = SHERD_BF16}, .steps = 1, .run = own_ranges};

    layouts_each(&j, 3, layout_run);
}

/* ----------------------------------------------------------- from one rank -- */

typedef struct source {
    int which, calls, fails_at;
} source;

static sherd_status source_fill(void *raw, size_t first, size_t count, float *out)
{
    source *s = raw;

    if (++s->calls == s->fails_at) {
        return SHERD_E_IO;
    }
    return rig_fill((void *)(uintptr_t)s->which, first, count, out);
}

static void from_one_run(sherd_world *world, void *raw)
{
    job     *j    = raw;
    int      rank = sherd_world_rank(world);
    int      root = sherd_world_size(world) - 1;
    uint64_t fingerprint;
    rig      r;

    value_rig_open(&r, world, &j->options);
    for (int p = 0; p < r.num_params; p++) {
        source s = {.which = p, .fails_at = p == 2};

        if (p == 2) {
            CHECK_STATUS(SHERD_E_IO, sherd_param_fill_from(r.engine, p, root, source_fill, &s));
            CHECK_ERROR_SAYS(rank == root ? "the fill function of parameter unit0.2 returned"
                                          : "sherd_param_fill_from: rank ");
        }
        CHECK_OK(sherd_param_fill_from(r.engine, p, root, rank == root ? source_fill : NULL, &s));
        CHECK(rank == root || s.calls == 0);
    }
    (void)rig_train(&r, 2);
    fingerprint = rig_fingerprint(&r);
    if (rank == 0) {
        j->trained = fingerprint;
    }
    rig_close(&r);
}

static void layout_from_one(job *j, int world_size)
{
    job plain = {.options = j->options, .steps = 1};

    if (j->is_bound) {
        return;
    }
    test_world(world_size, job_run, &plain);
    test_world(world_size, from_one_run, j);
    CHECK_INT(plain.trained, j->trained);
}

static void values_of_one_rank_reach_all(void)
{
    for (int world_size = 1; world_size <= 3; world_size += 2) {
        job j = {.options = {.dtype = SHERD_BF16}};

        layouts_each(&j, world_size, layout_from_one);
    }
}

/* ------------------------------------------------------------- generations -- */

static const value_rig_tier KEPT = {"nvme", NULL, 2,
                                    ", \"keep\": true, \"resume\": true, \"durable\": false"};

typedef struct life {
    int is_first;
    int is_torn; /* the last write was committed on rank 0 alone */
    void (*run)(rig *r);
} life;

static void life_run(sherd_world *world, void *raw)
{
    life       *l = raw;
    char        keys[1024];
    rig_options options = {.stage = 2, .dtype = SHERD_BF16, .zero = value_rig_keys(&KEPT, keys)};
    rig         r;

    value_rig_declare(&r, world, &options);
    rig_seal(&r);
    CHECK_INT(!l->is_first, r.engine->storage.is_resumed);
    l->run(&r);
    rig_close(&r);
}

static void lives_run(void (*first)(rig *r), void (*second)(rig *r))
{
    life one = {.is_first = 1, .run = first};
    life two = {.run = second};

    if (value_rig_tiers() < VALUE_RIG_TIERS_ALL) {
        test_skip("state on a drive needs libxxhash");
    }
    test_files_remove(test_scratch(), "sherd-");
    test_world(2, life_run, &one);
    test_world(2, life_run, &two);
    test_files_remove(test_scratch(), "sherd-");
}

static const float MARKS[] = {1.5f, -2.5f, 3.25f};

static void mark(rig *r, size_t at, float value)
{
    CHECK_OK(sherd_param_write(r->engine, r->params[0].handle, SHERD_MASTER, at, 1, &value));
}

static void expect_mark(rig *r, size_t at, float value)
{
    float got = 0;

    CHECK_OK(sherd_param_read(r->engine, r->params[0].handle, SHERD_MASTER, at, 1, &got));
    CHECK_BYTES_EQUAL(&value, &got, sizeof(got));
    CHECK_OK(sherd_param_read(r->engine, r->params[0].handle, SHERD_COMPUTE, at, 1, &got));
    CHECK_BYTES_EQUAL(&value, &got, sizeof(got));
}

static void marks_write(rig *r)
{
    (void)rig_train(r, 2);
    CHECK_OK(sherd_engine_set_step(r->engine, 40, 80));
    mark(r, 3, MARKS[0]);
    mark(r, SPAN - 1, MARKS[1]);
    CHECK_STATUS(SHERD_E_STATE, sherd_step_undo(r->engine));
    CHECK_ERROR_SAYS("were written after the last update");
    expect_mark(r, 3, MARKS[0]); /* the refused undo changed nothing */
}

static void marks_resume(rig *r)
{
    CHECK_INT(40, r->engine->counters.step);
    CHECK_INT(80, r->engine->counters.micro_step);
    expect_mark(r, 3, MARKS[0]);
    expect_mark(r, SPAN - 1, MARKS[1]);
    CHECK_STATUS(SHERD_E_STATE, sherd_step_undo(r->engine));
    r->micro = 80;
    CHECK_INT(41, rig_train(r, 1).step);
    CHECK_OK(sherd_step_undo(r->engine));
    CHECK_INT(40, r->engine->counters.step);
    expect_mark(r, 3, MARKS[0]);
    expect_mark(r, SPAN - 1, MARKS[1]);
    fingerprints_check(r);
}

static void what_was_written_is_resumed_and_updates_are_undone_back_to_it(void)
{
    lives_run(marks_write, marks_resume);
}

static sherd_status mark_give(void *ctx, int part, size_t first, size_t count, float *values)
{
    (void)part, (void)first;
    for (size_t i = 0; i < count; i++) {
        values[i] = *(const float *)ctx;
    }
    return SHERD_OK;
}

/* Ends the run after rank 0 has committed what it wrote, and before rank 1 has. */
static void half_write(rig *r)
{
    sherdi_values all = {.param = 0, .count = SPAN, .parts = SHERDI_VALUES_MASTER};
    float new         = MARKS[2];

    (void)rig_train(r, 2);
    mark(r, 3, MARKS[0]);
    mark(r, SPAN - 1, MARKS[1]);
    CHECK_OK(sherdi_values_begin(r->engine));
    CHECK_OK(sherdi_values_put(r->engine, &all, mark_give, &new));
    CHECK_OK(sherdi_values_end(r->engine));
    if (r->engine->rank == 0) {
        CHECK_OK(r->engine->storage.ops->commit_written(r->engine));
    }
}

static void half_resume(rig *r)
{
    CHECK_INT(2, r->engine->counters.step);
    expect_mark(r, 3, MARKS[0]);
    expect_mark(r, SPAN - 1, MARKS[1]);
    fingerprints_check(r);
}

static void write_that_not_all_ranks_committed_is_none(void)
{
    lives_run(half_write, half_resume);
}

/* A save keeps the generation by a link, or copies it; later writes must not change the save. */
static void save_write_load(rig *r)
{
    char     folder[512];
    uint64_t saved;

    (void)snprintf(folder, sizeof(folder), "%s/saves", test_scratch());
    (void)rig_train(r, 2);
    mark(r, 3, MARKS[0]);
    saved = rig_fingerprint(r);
    CHECK_OK(sherd_checkpoint_save(r->engine, folder, "one", NULL));
    mark(r, 3, MARKS[1]);
    mark(r, SPAN - 1, MARKS[1]);
    frozen_check(r, VALUE_RIG_FROZEN);
    (void)rig_train(r, 1);
    mark(r, 4, MARKS[2]);
    CHECK(saved != rig_fingerprint(r));
    CHECK_OK(sherd_checkpoint_load(r->engine, folder, "one", NULL));
    CHECK_INT(2, r->engine->counters.step);
    CHECK_INT(saved, rig_fingerprint(r));
    expect_mark(r, 3, MARKS[0]);
    fingerprints_check(r);
    mark(r, SPAN - 1, MARKS[1]);
    fingerprints_check(r);
}

static void writes_behind_a_save_are_not_in_it(void)
{
    job j = {.options = {.dtype = SHERD_BF16}, .run = save_write_load};

    if (value_rig_tiers() < VALUE_RIG_TIERS_ALL) {
        test_skip("checkpoints need libxxhash");
    }
    layouts_each(&j, 2, layout_run);
}

static const test_case CASES[] = {
    CASE(written_values_are_read_by_bits),
    CASE(what_is_written_as_it_was_changes_nothing),
    CASE(run_that_is_set_back_by_hand_goes_the_same_way),
    CASE(gradient_is_the_mean_that_the_norm_is_of),
    CASE(calls_at_the_wrong_time_or_place_are_refused),
    CASE(ranks_that_differ_are_told),
    CASE(each_rank_reads_what_it_owns_by_itself),
    CASE(values_of_one_rank_reach_all),
    CASE(what_was_written_is_resumed_and_updates_are_undone_back_to_it),
    CASE(write_that_not_all_ranks_committed_is_none),
    CASE(writes_behind_a_save_are_not_in_it),
};

RUN_MAIN(CASES)
