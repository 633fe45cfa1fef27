/* Hybrid sharding: several groups of ranks with a copy each (sherd.shard_size). The campaign of
 * random layouts compares every bit with its twin; here are the promises that need a scene. */
#include "engine/run/engine_impl.h"
#include "sherd_tools.h"
#include "tests/engine/rig.h"
#include "tests/engine/toy.h"
#include "tests/lib/check.h"

#include <stdio.h>
#include <string.h>

#define GLOBAL_BATCH 24

/* ------------------------------------------------------------- one result -- */

/* Ranks, and how many of them share a copy. */
static const int SHAPES[][2] = {{2, 1}, {4, 2}, {6, 2}, {6, 3}, {8, 2}, {8, 4}};

static void expect_the_plain_result(const int shape[2], int stage, sherd_dtype dtype,
                                    const char *zero, const toy_result *want)
{
    char        top[96];
    toy_options options = {.stage        = stage,
                           .accumulation = GLOBAL_BATCH / shape[0],
                           .dtype        = dtype,
                           .clip         = 1,
                           .zero_extra   = zero,
                           .top_extra    = top};
    toy_result  got     = {0};

    (void)snprintf(top, sizeof(top), ", \"deterministic\": true, \"sherd\": {\"shard_size\": %d}",
                   shape[1]);
    toy_train_threads(shape[0], &options, &got);
    CHECK_INT(got.memory.total_planned, got.memory.total_held);
    if (got.fingerprint != want->fingerprint ||
        memcmp(got.grad_norm, want->grad_norm, sizeof(want->grad_norm)) != 0) {
        test_fail(__FILE__, __LINE__,
                  "%d ranks, %d share a copy, stage %d%s: fingerprint %016llx, not %016llx",
                  shape[0], shape[1], stage, zero == NULL ? "" : zero,
                  (unsigned long long)got.fingerprint, (unsigned long long)want->fingerprint);
    }
}

static void deterministic_replicas_agree_with_one_copy(void)
{
    static const char *const ZERO[] = {NULL, ", \"offload_optimizer\": {\"device\": \"cpu\"}",
                                       ", \"overlap_comm\": true, \"sub_group_size\": 64"};
    toy_options              one    = {
                        .accumulation = GLOBAL_BATCH, .clip = 1, .top_extra = ", \"deterministic\": true"};

    for (sherd_dtype dtype = SHERD_F32; dtype <= SHERD_BF16; dtype++) {
        toy_result want = {0};

        one.dtype = dtype;
        toy_reference(1, &one, &want);
        for (size_t i = 0; i < sizeof(SHAPES) / sizeof(SHAPES[0]); i++) {
            for (int stage = 1; stage <= 3; stage++) {
                expect_the_plain_result(SHAPES[i], stage, dtype, ZERO[(i + (size_t)stage) % 3],
                                        &want);
            }
        }
    }
}

/* ---------------------------------------------------------------- refused -- */

static void refused_body(sherd_world *world, void *raw)
{
    const char *const *texts = raw;
    sherd_engine      *engine;

    CHECK_STATUS(SHERD_E_INVAL, rig_create(world, texts[0], &engine));
    CHECK_ERROR_SAYS(texts[1]);
}

static void what_cannot_be_shared_is_refused(void)
{
    static const char *const CASES[][2] = {
        {"{\"train_batch_size\": 4, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1}}, "
         "\"zero_optimization\": {\"stage\": 2}, \"sherd\": "
         "{\"shard_size\": 3}}",
         "sherd.shard_size is 3, and rank"},
        {"{\"train_batch_size\": 4, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1}}, "
         "\"zero_optimization\": {\"stage\": 0}, \"sherd\": "
         "{\"shard_size\": 2}}",
         "sherd.shard_size is 2 at stage 0, which shards nothing"},
        {"{\"train_batch_size\": 4, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1}}, "
         "\"zero_optimization\": {\"stage\": 1}, \"sherd\": "
         "{\"shard_size\": 8}}",
         "sherd.shard_size is 8, and rank"},
        {"{\"train_batch_size\": 4, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1}}, "
         "\"zero_optimization\": {\"stage\": 3, \"zero_hpz_partition_size\": 3}}",
         "zero_optimization.zero_hpz_partition_size is 3, and rank"},
        {"{\"train_batch_size\": 4, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1}}, "
         "\"zero_optimization\": {\"stage\": 3, \"zero_hpz_partition_size\": 2}, \"sherd\": "
         "{\"shard_size\": 2}}",
         "remove one of the two keys"},
    };

    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        test_world(4, refused_body, (void *)(uintptr_t)CASES[i]);
    }
}

/* ------------------------------------------------------------------ scenes -- */

static void replicas_open(rig *r, sherd_world *world, int stage, int size)
{
    char top[64];

    (void)snprintf(top, sizeof(top), ", \"sherd\": {\"shard_size\": %d}", size);
    rig_open(r, world, &(rig_options){.stage = stage, .dtype = SHERD_BF16, .top = top});
    rig_three(r, 1000);
    rig_seal(r);
}

/* A bit of the state flips on one rank. */
static void parted_body(sherd_world *world, void *raw)
{
    rig r;

    (void)raw;
    replicas_open(&r, world, 3, 2);
    (void)rig_train(&r, 2);
    if (sherd_world_rank(world) == 3) {
        ((uint32_t *)r.engine->memory.buffers[SHERDI_BUFFER_STATE])[0] ^= 1u << 20;
    }
    rig_micro_batch(&r);
    CHECK_STATUS(SHERD_E_STATE, sherd_step(r.engine, NULL));
    CHECK_ERROR_SAYS("the replicas have parted");
    rig_close(&r);
}

static void replicas_that_part_are_named(void)
{
    test_world(4, parted_body, NULL);
}

/* A value is whole on every rank, whichever replica gives it; and a write reaches all replicas. */
static void values_body(sherd_world *world, void *raw)
{
    float    values[1641], sum = 0;
    uint64_t before;
    rig      r;

    (void)raw;
    replicas_open(&r, world, 3, 2);
    (void)rig_train(&r, 1);
    before = rig_fingerprint(&r);
    CHECK_OK(sherd_param_read(r.engine, r.params[1].handle, SHERD_MASTER, 0, 1641, values));
    CHECK_OK(sherd_param_write(r.engine, r.params[1].handle, SHERD_MASTER, 0, 1641, values));
    CHECK(before == rig_fingerprint(&r));
    (void)rig_train(&r, 1);
    CHECK_OK(sherd_param_read(r.engine, r.params[1].handle, SHERD_MASTER, 0, 1641, values));
    for (int i = 0; i < 1641; i++) {
        sum += values[i];
    }
    ((float *)raw)[sherd_world_rank(world)] = sum;
    rig_close(&r);
}

static void values_are_those_of_every_replica(void)
{
    float sums[6];

    test_world(6, values_body, sums);
    for (int i = 1; i < 6; i++) {
        CHECK(memcmp(&sums[0], &sums[i], sizeof(float)) == 0);
    }
}

/* ---------------------------------------------------------------- planned -- */

/* Of a simulated rank, what goes to other hosts: with replicas a slice and its share of the sums. */
static sherd_traffic_report planned(int ranks, int per_host, int size, int copies)
{
    sherd_simulate_params params;
    sherd_traffic_report  traffic;
    sherd_world          *world;
    char                  top[64];
    char                  zero[64];
    rig                   r;

    sherd_simulate_params_init(&params);
    params.ranks_per_host = per_host;
    CHECK_OK(sherd_world_simulate_with(1, ranks, &params, &world));
    (void)snprintf(top, sizeof(top), ", \"sherd\": {\"shard_size\": %d}", size);
    (void)snprintf(zero, sizeof(zero), ", \"zero_hpz_partition_size\": %d", copies);
    rig_open(&r, world, &(rig_options){.stage = 3, .dtype = SHERD_BF16, .top = top, .zero = zero});
    (void)rig_param(&r, rig_unit(&r, "a"), "w", 1 << 20);
    (void)rig_param(&r, rig_unit(&r, "b"), "v", 64);
    sherd_traffic_report_init(&traffic);
    CHECK_OK(sherd_engine_traffic(r.engine, &traffic));
    rig_close(&r);
    sherd_world_destroy(world);
    return traffic;
}

static void bytes_between_hosts_are_planned(void)
{
    const uint64_t       bytes  = 2 << 20;
    const uint64_t       small  = 64 * 2; /* of a slice of the second unit, which is padded */
    sherd_traffic_report flat   = planned(8, 4, 0, 1);
    sherd_traffic_report hybrid = planned(8, 4, 4, 1);
    sherd_traffic_report copied = planned(8, 4, 0, 4);
    uint64_t             talk   = flat.between_step_planned; /* control data */

    CHECK(talk > 0 && talk < 1024);
    /* two gathers of the large unit and one of the other, each slice to the other host; and data
     * for the slices of four ranks */
    CHECK_INT(2 * bytes / 8 + small + 4 * (bytes / 8 + small), flat.between_micro_planned);
    CHECK_INT(0, hybrid.between_micro_planned);
    CHECK_INT(talk + bytes / 4 + 2 * small, hybrid.between_step_planned);
    CHECK_INT(flat.between_micro_planned - bytes / 8, copied.between_micro_planned);
    CHECK_INT(talk, copied.between_step_planned);
    CHECK_INT(flat.wire_micro_planned - 7 * bytes / 8 + 3 * bytes / 4, copied.wire_micro_planned);
    CHECK_INT(0, planned(8, 8, 4, 1).between_step_planned); /* one host */
}

static const test_case CASES[] = {
    CASE(deterministic_replicas_agree_with_one_copy),
    CASE(what_cannot_be_shared_is_refused),
    CASE(replicas_that_part_are_named),
    CASE(values_are_those_of_every_replica),
    CASE(bytes_between_hosts_are_planned),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, CASES, sizeof(CASES) / sizeof(CASES[0]));
}
