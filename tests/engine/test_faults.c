/* Memory that runs out at every single allocation, and ranks that give up in the middle. All ranks
 * get the same answer, nothing is left behind, and a run that can go on has the same bits. */
#include "sherd_build.h"
#include "tests/engine/rig.h"
#include "tests/lib/check.h"

#include "base/mem.h"
#include "base/status.h"

#include <stdio.h>
#include <string.h>

typedef struct fault_job {
    rig_options options;
    int         rank; /* the rank whose allocation fails */
    size_t      nth;  /* the number of the allocation that fails; 0: none */
    size_t      made; /* allocations of that rank if none fails */
    int         failed;
    uint64_t    fingerprint; /* at the end; of a resume: the updates */
} fault_job;

/* Makes a call that concerns this rank alone. It may find no memory once; it must succeed when it
 * is made again. */
#define LOCAL(job, call)                                                                           \
    do {                                                                                           \
        sherd_status local_status_ = (call);                                                       \
        if (local_status_ != SHERD_OK) {                                                           \
            CHECK_STATUS(SHERD_E_NOMEM, local_status_);                                            \
            (job)->failed++;                                                                       \
            CHECK_OK(call);                                                                        \
        }                                                                                          \
    } while (0)

/* Makes a collective call. If one rank has no memory, all get an error; it must succeed when it is
 * made again. */
#define COLLECTIVE(job, world, call)                                                               \
    do {                                                                                           \
        sherd_status all_status_ = (call);                                                         \
        double       failures_   = all_status_ != SHERD_OK;                                        \
        if (all_status_ != SHERD_OK) {                                                             \
            CHECK_STATUS(SHERD_E_NOMEM, all_status_);                                              \
            CHECK(strlen(sherd_last_error()) > 0);                                                 \
        }                                                                                          \
        CHECK_OK(sherd_world_sum_f64(world, &failures_, 1));                                       \
        CHECK(failures_ == 0 || failures_ == sherd_world_size(world));                             \
        if (failures_ > 0) {                                                                       \
            (job)->failed += sherd_world_rank(world) == (job)->rank;                               \
            CHECK_OK(call);                                                                        \
        }                                                                                          \
    } while (0)

typedef struct declared {
    sherd_group group;
    sherd_unit  units[3];
    sherd_param params[5];
} declared;

static void declare(fault_job *job, sherd_engine *engine, declared *d)
{
    static const char *const UNITS[]  = {"embedding", "layer", "head"};
    static const char *const PARAMS[] = {"embedding.w", "layer.w", "layer.b", "layer.f", "head.w"};
    static const int         OWNER[]  = {0, 1, 1, 1, 2};
    static const size_t      ELEMS[]  = {5000, 300, 4, 70, 129};
    sherd_group_params       group;

    sherd_group_params_init(&group);
    group.name = "second";
    LOCAL(job, sherd_group_add(engine, &group, &d->group));
    for (int u = 0; u < 3; u++) {
        sherd_unit_params unit;

        sherd_unit_params_init(&unit);
        unit.name = UNITS[u];
        LOCAL(job, sherd_unit_add(engine, &unit, &d->units[u]));
    }
    for (int p = 0; p < 5; p++) {
        sherd_param_params param;

        sherd_param_params_init(&param);
        param.name     = PARAMS[p];
        param.ndim     = 1;
        param.shape[0] = ELEMS[p];
        param.frozen   = p == 3;
        param.group    = p == 2 ? d->group : SHERD_GROUP_DEFAULT;
        LOCAL(job, sherd_param_add(engine, d->units[OWNER[p]], &param, &d->params[p]));
    }
    LOCAL(job, sherd_unit_reads(engine, d->units[2], d->params[0]));
    for (int u = 0; u < 3; u++) {
        LOCAL(job, sherd_pass_add(engine, SHERD_FORWARD, d->units[u]));
    }
}

static void train_once(sherd_engine *engine, const declared *d)
{
    for (int u = 0; u < 3; u++) {
        CHECK_OK(sherd_unit_acquire(engine, d->units[u], SHERD_FORWARD));
        CHECK_OK(sherd_unit_release(engine, d->units[u], SHERD_FORWARD));
    }
    for (int u = 2; u >= 0; u--) {
        CHECK_OK(sherd_unit_acquire(engine, d->units[u], SHERD_BACKWARD));
        if (u == 1) {
            ((float *)sherd_param_grad(engine, d->params[1]))[17] = 0.5f;
        }
        CHECK_OK(sherd_unit_release(engine, d->units[u], SHERD_BACKWARD));
    }
    CHECK_OK(sherd_step(engine, NULL));
}

static sherd_status ignore_text(void *ctx, const char *text, size_t len_bytes)
{
    (void)ctx;
    (void)text;
    (void)len_bytes;
    return SHERD_OK;
}

/* Goes through the whole life of an engine. sherd_engine_destroy itself asserts that nothing of its
 * account is still held. */
static void live_with_a_fault(sherd_world *world, void *raw)
{
    fault_job *job     = raw;
    int        is_mine = sherd_world_rank(world) == job->rank;
    /* only one rank writes to job */
    fault_job     others = {.options = job->options, .rank = job->rank};
    fault_job    *mine   = is_mine ? job : &others;
    const char   *json   = rig_json(&job->options);
    sherd_config *config;
    sherd_engine *engine;
    declared      d;
    uint64_t      fingerprint;

    (void)sherdi_mem_fail_nth(is_mine ? job->nth : 0);
    LOCAL(mine, sherd_config_parse(json, strlen(json), &config));
    COLLECTIVE(mine, world, sherd_engine_create(world, config, &engine));
    sherd_config_destroy(config);
    declare(mine, engine, &d);
    LOCAL(mine, sherd_engine_plan(engine, SHERD_PLAN_JSON, ignore_text, NULL));
    COLLECTIVE(mine, world, sherd_engine_seal(engine));
    for (int p = 0; p < 5; p++) {
        CHECK_OK(sherd_param_fill(engine, d.params[p], rig_fill, (void *)(uintptr_t)p));
    }
    COLLECTIVE(mine, world, sherd_engine_fingerprint(engine, &fingerprint));
    train_once(engine, &d);
    train_once(engine, &d);
    CHECK_OK(sherd_engine_fingerprint(engine, &fingerprint));
    sherd_engine_destroy(engine);
    if (is_mine) {
        job->made        = sherdi_mem_fail_nth(0);
        job->fingerprint = fingerprint;
    }
}

/* Fails every allocation in the long list. Otherwise it fails every other one, the odd and the even
 * ones in turn, so that an allocation which the next layout makes too fails there. The threads for
 * files are asked for by name: otherwise, if an allocation of io_uring failed, they would replace
 * it, which is no error. */
static void fail_every_allocation(int world_size, int rank, int stage, const char *zero)
{
    fault_job     clean = {.options = {.stage        = stage,
                                       .accumulation = 1,
                                       .dtype        = SHERD_F32,
                                       .zero         = zero,
                                       .top          = ", \"aio\": {\"engine\": \"threads\"}"},
                           .rank    = rank};
    static size_t layouts;
    size_t        step = test_is_long() ? 1 : 2;

    test_world(world_size, live_with_a_fault, &clean);
    CHECK(clean.made > 30);
    CHECK_INT(0, clean.failed);
    for (size_t n = 1 + layouts++ % step; n <= clean.made; n += step) {
        fault_job job = {.options = clean.options, .rank = rank, .nth = n};

        test_world(world_size, live_with_a_fault, &job);
        CHECK_INT(1, job.failed);
        CHECK_INT(clean.fingerprint, job.fingerprint);
    }
    (void)printf("  faults: %zu\n", clean.made);
}

static void no_memory_anywhere_on_one_rank_alone(void)
{
    for (int stage = 0; stage <= 3; stage++) {
        fail_every_allocation(1, 0, stage, NULL);
    }
}

/* Three ranks, with small blocks, without gathers ahead, and with state in host memory. */
static void no_memory_anywhere_in_other_layouts(void)
{
    static const char *const ZEROS[] = {
        ", \"sub_group_size\": 64",
        ", \"stage3_prefetch_bucket_size\": 0, \"overlap_comm\": false",
        ", \"offload_optimizer\": {\"device\": \"cpu\", \"ratio\": 0.5}",
        ", \"offload_optimizer\": {\"device\": \"cpu\"}, \"stage3_max_reuse_distance\": 1000000",
    };

    test_need_long();
    for (size_t i = 0; i < sizeof(ZEROS) / sizeof(ZEROS[0]); i++) {
        for (int stage = 1; stage <= 3; stage++) {
            fail_every_allocation(3, (int)i % 3, stage, ZEROS[i]);
        }
    }
}

/* Two ranks: the fault is on one of them. The long list has every stage on either. */
static void no_memory_anywhere_on_the_first_of_two(void)
{
    for (int stage = test_is_long() ? 0 : 1; stage <= 3; stage += test_is_long() ? 1 : 2) {
        fail_every_allocation(2, 0, stage, ", \"stage3_param_persistence_threshold\": 4");
    }
}

static void no_memory_anywhere_on_the_second_of_two(void)
{
    for (int stage = 0; stage <= 3; stage += test_is_long() ? 1 : 2) {
        fail_every_allocation(2, 1, stage, ", \"overlap_comm\": true");
    }
}

/* With everything on NVMe, the tiers, the queue and the pipelines are made at seal too. */
static void no_memory_anywhere_with_offload(void)
{
    char keys[1024];

#ifndef SHERDI_HAVE_XXHASH
    test_skip("no libxxhash in this build");
#endif
    (void)snprintf(keys, sizeof(keys),
                   ", \"sub_group_size\": 2048, \"offload_optimizer\": {\"device\": \"nvme\","
                   " \"nvme_path\": \"%s\", \"gradients\": \"nvme\", \"durable\": false},"
                   " \"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"%s\","
                   " \"max_in_cpu\": 0}",
                   test_scratch(), test_scratch());
    fail_every_allocation(1, 0, 3, keys);
    fail_every_allocation(2, 1, 3, keys);
    fail_every_allocation(2, 0, 2, keys);
}

/* Blobs of the run and of each rank, as two numbers. */
static void blobs_set(sherd_engine *engine, uint32_t number)
{
    sherd_blob_params params;

    sherd_blob_params_init(&params);
    CHECK_OK(sherd_blob_set(engine, "of the run", &number, sizeof(number), &params));
    params.is_per_rank = 1;
    CHECK_OK(sherd_blob_set(engine, "of a rank", &number, sizeof(number), &params));
}

static void blobs_check(sherd_engine *engine, uint32_t number)
{
    sherd_blob_params params;
    uint32_t          found = 0;
    size_t            len   = sizeof(found);

    sherd_blob_params_init(&params);
    CHECK_OK(sherd_blob_get(engine, "of the run", &found, &len, &params));
    CHECK_INT(number, found);
    params.is_per_rank = 1;
    CHECK_OK(sherd_blob_get(engine, "of a rank", &found, &len, &params));
    CHECK_INT(number, found);
}

/* Continues from the state of the run before, if there is one; its seal meets the fault. Leaves the
 * state of one more update. */
static void resume_with_a_fault(sherd_world *world, void *raw)
{
    fault_job        *job     = raw;
    int               is_mine = sherd_world_rank(world) == job->rank;
    fault_job         others  = {.rank = job->rank};
    fault_job        *mine    = is_mine ? job : &others;
    sherd_engine_info info;
    rig               r;

    rig_open(&r, world, &job->options);
    rig_three(&r, 3000);
    (void)sherdi_mem_fail_nth(is_mine ? job->nth : 0);
    COLLECTIVE(mine, world, sherd_engine_seal(r.engine));
    if (is_mine) {
        job->made = sherdi_mem_fail_nth(0);
    }
    sherd_engine_info_init(&info);
    CHECK_OK(sherd_engine_query(r.engine, &info));
    for (int p = 0; p < r.num_params && !info.is_resumed; p++) {
        CHECK_OK(sherd_param_fill(r.engine, r.params[p].handle, rig_fill, (void *)(uintptr_t)p));
    }
    if (info.is_resumed) {
        blobs_check(r.engine, (uint32_t)info.step);
    }
    blobs_set(r.engine, (uint32_t)info.step + 1);
    (void)rig_train(&r, 1);
    CHECK_OK(sherd_engine_query(r.engine, &info));
    rig_close(&r);
    if (is_mine) {
        job->fingerprint = (uint64_t)info.step;
    }
}

static void no_memory_anywhere_in_a_resume(void)
{
    char      keys[512];
    fault_job job = {
        .options = {.stage = 2, .zero = keys, .top = ", \"aio\": {\"engine\": \"threads\"}"}};
    uint64_t steps = 0;
    size_t   made;

#ifndef SHERDI_HAVE_XXHASH
    test_skip("no libxxhash in this build");
#endif
    (void)snprintf(keys, sizeof(keys),
                   ", \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\", "
                   "\"keep\": true, \"resume\": true, \"durable\": false}",
                   test_scratch());
    for (job.rank = 0; job.rank < 2; job.rank++) {
        job.nth = 0;
        for (int run = 0; run < 2; run++, steps++) { /* the second is a resume without a fault */
            test_world(2, resume_with_a_fault, &job);
        }
        made = job.made;
        CHECK_INT(0, job.failed);
        for (job.nth = 1 + (size_t)job.rank; job.nth <= made;
             job.nth += test_is_long() ? 1 : 3, steps++) {
            job.failed = 0;
            test_world(2, resume_with_a_fault, &job);
            CHECK_INT(1, job.failed);
            CHECK_INT(steps + 1, job.fingerprint); /* every update before it is there */
        }
        (void)printf("  faults: %zu\n", made);
        job.failed = 0;
    }
}

/* --------------------------------------------------- a rank that gives up -- */

typedef enum quit_point {
    QUIT_BEFORE_SEAL,
    QUIT_BEFORE_START,
    QUIT_IN_FORWARD,
    QUIT_IN_BACKWARD,
    QUIT_BEFORE_STEP,
    QUIT_PREPARED,
    QUIT_POINTS,
} quit_point;

typedef struct quit_job {
    rig_options options;
    quit_point  point;
    int         leaves; /* it leaves the world instead of aborting it */
} quit_job;

/* Trains until a call fails, and returns that failure. */
static sherd_status train_until_failure(rig *r, quit_point point, int is_quitter)
{
    int waits_at = 0;

    SHERDI_TRY(point == QUIT_BEFORE_SEAL && is_quitter ? SHERD_E_AGAIN
                                                       : sherd_engine_seal(r->engine));
    for (int p = 0; p < r->num_params; p++) {
        SHERDI_TRY(
            sherd_param_fill(r->engine, r->params[p].handle, rig_fill, (void *)(uintptr_t)p));
    }
    for (;; waits_at++) { /* the others go on until they notice */
        int quits = is_quitter && waits_at == 1;

        if (quits && point == QUIT_BEFORE_START) {
            return SHERD_E_AGAIN;
        }
        for (int u = 0; u < r->num_units; u++) {
            SHERDI_TRY(sherd_unit_acquire(r->engine, r->units[u], SHERD_FORWARD));
            if (quits && point == QUIT_IN_FORWARD && u == 1) {
                return SHERD_E_AGAIN;
            }
            SHERDI_TRY(sherd_unit_release(r->engine, r->units[u], SHERD_FORWARD));
        }
        for (int u = r->num_units - 1; u >= 0; u--) {
            SHERDI_TRY(sherd_unit_acquire(r->engine, r->units[u], SHERD_BACKWARD));
            if (quits && point == QUIT_IN_BACKWARD && u == 1) {
                return SHERD_E_AGAIN;
            }
            SHERDI_TRY(sherd_unit_release(r->engine, r->units[u], SHERD_BACKWARD));
        }
        if (quits && point == QUIT_BEFORE_STEP) {
            return SHERD_E_AGAIN;
        }
        SHERDI_TRY(sherd_step_prepare(r->engine, NULL));
        if (quits && point == QUIT_PREPARED) {
            return SHERD_E_AGAIN;
        }
        SHERDI_TRY(sherd_step_apply(r->engine, NULL));
    }
}

static void lose_rank_1(sherd_world *world, void *raw)
{
    const quit_job *job        = raw;
    int             is_quitter = sherd_world_rank(world) == 1;
    uint64_t        fingerprint;
    sherd_status    status;
    rig             r;

    rig_open(&r, world, &job->options);
    (void)rig_unit(&r, "zero");
    (void)rig_unit(&r, "one");
    (void)rig_unit(&r, "two");
    (void)rig_param(&r, 0, "zero.w", 5000);
    (void)rig_param(&r, 1, "one.w", 300);
    (void)rig_param(&r, 2, "two.w", 300);
    status = train_until_failure(&r, job->point, is_quitter);
    if (is_quitter) {
        CHECK_STATUS(SHERD_E_AGAIN, status);
        if (!job->leaves) {
            sherd_world_abort(world, "enough of it");
        }
        rig_close(&r); /* the last reference, besides that of the caller, is released */
        return;
    }
    CHECK_STATUS(SHERD_E_PEER_LOST, status);
    CHECK_ERROR_SAYS("rank 1");
    CHECK_ERROR_SAYS(job->leaves ? "ended its part" : "enough of it");
    CHECK(sherd_engine_fingerprint(r.engine, &fingerprint) != SHERD_OK);
    CHECK(sherd_step(r.engine, NULL) != SHERD_OK);
    CHECK_STATUS(SHERD_E_PEER_LOST, sherd_world_barrier(world));
    rig_close(&r);
}

static void lost_rank_is_named_on_all_others_everywhere(void)
{
    for (int leaves = 0; leaves <= 1; leaves++) {
        for (int stage = 0; stage <= 3; stage++) {
            for (int point = 0; point < QUIT_POINTS; point++) {
                quit_job job = {{.stage = stage,
                                 .zero  = point % 2 == 0 ? ", \"overlap_comm\": true"
                                                         : ", \"overlap_comm\": false"},
                                (quit_point)point,
                                leaves};

                test_world(3, lose_rank_1, &job);
            }
        }
    }
}

static const test_case CASES[] = {
    CASE(no_memory_anywhere_on_one_rank_alone),
    CASE(no_memory_anywhere_on_the_first_of_two),
    CASE(no_memory_anywhere_on_the_second_of_two),
    CASE(no_memory_anywhere_with_offload),
    CASE(no_memory_anywhere_in_a_resume),
    CASE(no_memory_anywhere_in_other_layouts),
    CASE(lost_rank_is_named_on_all_others_everywhere),
};

RUN_MAIN(CASES)
