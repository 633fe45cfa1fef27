/* Hybrid sharding: several groups of ranks with a copy each (sherd.shard_size). The campaign of
 * random layouts compares every bit with its twin; here are the promises that need a scene. */
#include "engine/run/engine_impl.h"
#include "sherd_tools.h"
#include "tests/engine/rig.h"
#include "tests/engine/saved.h"
#include "tests/engine/toy.h"
#include "tests/lib/check.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

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
    sherd_memory_report memory;
    float               values[1641], sum = 0;
    uint64_t            before;
    rig                 r;

    (void)raw;
    replicas_open(&r, world, 3, 2);
    sherd_memory_report_init(&memory);
    CHECK_OK(sherd_engine_memory(r.engine, &memory));
    CHECK_INT(r.engine->plan->machine.transport_bytes, memory.transport_held); /* of all worlds */
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

/* ------------------------------------------------------------ checkpoints -- */

/* Ranks, how many of them share a copy (0: all), and the stage; and where the state is. */
typedef struct saved_layout {
    int         ranks, size, stage;
    const char *zero;
} saved_layout;

typedef struct saved_scene {
    const saved_layout *layout;
    const char         *dir;
    uint64_t            fingerprint; /* two steps after the save; 0: not known yet */
    int                 is_first;    /* it saves; the others load */
} saved_scene;

static void saved_body(sherd_world *world, void *raw)
{
    saved_scene        *scene = raw;
    const saved_layout *how   = scene->layout;
    char                top[96];
    uint64_t            fingerprint;
    rig                 r;

    (void)snprintf(top, sizeof(top), ", \"deterministic\": true, \"sherd\": {\"shard_size\": %d}",
                   how->size);
    saved_open(&r, world,
               &(rig_options){.stage        = how->stage,
                              .accumulation = 12 / how->ranks,
                              .dtype        = SHERD_BF16,
                              .zero         = how->zero,
                              .top          = top});
    saved_fill(&r);
    if (scene->is_first) {
        saved_train(&r, 2);
        CHECK_OK(sherd_checkpoint_save(r.engine, scene->dir, "two", NULL));
    } else {
        CHECK_OK(sherd_checkpoint_load(r.engine, scene->dir, "two", NULL));
    }
    saved_train(&r, 2);
    fingerprint = rig_fingerprint(&r);
    CHECK(scene->fingerprint == 0 || scene->fingerprint == fingerprint);
    if (sherd_world_rank(world) == 0) {
        scene->fingerprint = fingerprint;
    }
    rig_close(&r);
}

/* Saves on the first layout, and goes on from there on all. Returns the bytes of the folder. */
static uint64_t layouts_go_on(const saved_layout *layouts, size_t count, const char *dir)
{
    saved_scene       scene = {.layout = layouts, .dir = dir, .is_first = 1};
    sherd_checkpoint *opened;
    uint64_t          bytes;

    test_world(layouts[0].ranks, saved_body, &scene);
    scene.is_first = 0;
    CHECK_INT(2, saved_verify(dir, "two"));
    for (size_t i = 0; i < count; i++) {
        scene.layout = &layouts[i];
        test_world(layouts[i].ranks, saved_body, &scene);
    }
    CHECK_OK(sherd_checkpoint_open(dir, "two", &opened));
    bytes = sherd_checkpoint_describe(opened)->data_bytes;
    sherd_checkpoint_close(opened);
    return bytes;
}

static void checkpoints_have_one_copy_and_fit_every_layout(void)
{
    static const char *const CPU = ", \"offload_optimizer\": {\"device\": \"cpu\"}";
    char                     drive[256];
    char                     nvme[400];
    const saved_layout       FROM[] = {
              {4, 0, 3, NULL}, {4, 2, 3, NULL}, {6, 3, 1, NULL}, {2, 1, 2, NULL}, {4, 2, 3, nvme}};
    const saved_layout TO[] = {{4, 2, 3, NULL}, {1, 0, 3, NULL}, {6, 2, 2, CPU}, {3, 0, 1, nvme},
                               {6, 3, 3, NULL}, {4, 2, 3, nvme}, {2, 1, 3, NULL}};
    saved_layout       all[8];
    uint64_t           bytes[5];
    char               dir[256];
    char               name[16];

    saved_need_checksums();
    (void)snprintf(nvme, sizeof(nvme),
                   ", \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}",
                   saved_dir("drive", drive));
    CHECK(mkdir(drive, 0700) == 0);
    for (size_t i = 0; i < 5; i++) {
        (void)snprintf(name, sizeof(name), "from%zu", i);
        all[0] = FROM[i];
        memcpy(all + 1, TO, sizeof(TO));
        bytes[i] = layouts_go_on(all, 8, saved_dir(name, dir));
    }
    for (size_t i = 1; i < 4; i++) { /* files differ in their headers */
        CHECK(bytes[i] < bytes[0] + bytes[0] / 8);
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
    CASE(checkpoints_have_one_copy_and_fit_every_layout),
    CASE(bytes_between_hosts_are_planned),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, CASES, sizeof(CASES) / sizeof(CASES[0]));
}
