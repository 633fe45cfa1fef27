/* What ranks say of their state is what rests: after steps that nobody waits for, calls that
 * change values, and memory that has changed by itself. */
#include "engine/run/engine_impl.h"
#include "sherd_tools.h"
#include "tests/engine/rig.h"
#include "tests/engine/saved.h"
#include "tests/engine/ways.h"
#include "tests/lib/check.h"

#include <stdio.h>
#include <string.h>

static const rig_options OPTIONS = {.stage = 2, .accumulation = 1, .dtype = SHERD_BF16, .clip = 1};

/* One step, which nobody waits for. */
static void queued_open(rig *r, sherd_world *world, const rig_options *options)
{
    ways_declare_layers(r, world, options);
    rig_seal(r);
    rig_micro_batch(r);
    CHECK_OK(sherd_step_queue(r->engine));
}

static uint64_t told_fingerprint(rig *r)
{
    sherd_step_report report;

    sherd_step_report_init(&report);
    CHECK_OK(sherd_step_wait(r->engine, &report));
    return report.fingerprint;
}

static uint64_t stepped_fingerprint(sherd_world *world, const rig_options *options)
{
    rig      r;
    uint64_t fingerprint;

    ways_declare_layers(&r, world, options);
    rig_seal(&r);
    rig_micro_batch(&r);
    CHECK_OK(sherd_step(r.engine, NULL));
    fingerprint = rig_fingerprint(&r);
    rig_close(&r);
    return fingerprint;
}

/* ---------------------------------------------------------------- writes -- */

static void write_behind_queue(sherd_world *world, void *raw)
{
    const rig_options *options = raw;
    uint64_t           stepped = stepped_fingerprint(world, options);

    for (int is_frozen = 0; is_frozen <= 1; is_frozen++) {
        float    values[7] = {1, 2, 3};
        rig      r;
        int      param;
        uint64_t sum = 0;

        queued_open(&r, world, options);
        param = is_frozen ? r.num_params - 1 : 0;
        CHECK_OK(sherd_param_write(r.engine, r.params[param].handle,
                                   is_frozen ? SHERD_COMPUTE : SHERD_MASTER, 0, 7, values));
        CHECK_INT(stepped, told_fingerprint(&r));
        for (int p = 0; p < r.num_params; p++) {
            uint64_t share;

            CHECK_OK(sherd_param_fingerprint(r.engine, r.params[p].handle, &share));
            sum += share;
        }
        CHECK_INT(sum, rig_fingerprint(&r));
        CHECK(sum != stepped);
        rig_close(&r);
    }
}

static void a_write_behind_a_queued_step_leaves_its_report(void)
{
    for (int stage = 0; stage <= 3; stage++) {
        rig_options options = OPTIONS;

        options.stage = stage;
        test_world(2, write_behind_queue, &options);
    }
}

/* ---------------------------------------------------------------- discard -- */

/* Rank 0 discards, and rank 1 hears of it in its step. */
static void one_discards(sherd_world *world, void *raw)
{
    uint64_t stepped = stepped_fingerprint(world, &OPTIONS);
    rig      r;

    (void)raw;
    queued_open(&r, world, &OPTIONS);
    rig_micro_batch(&r);
    if (sherd_world_rank(world) == 1) {
        CHECK_STATUS(SHERD_E_STATE, sherd_step_queue(r.engine));
    }
    CHECK_OK(sherd_step_discard(r.engine));
    CHECK_INT(stepped, told_fingerprint(&r));
    rig_micro_batch(&r);
    CHECK_OK(sherd_step(r.engine, NULL));
    rig_close(&r);
}

static void a_discard_of_one_rank_leaves_the_report_to_all(void)
{
    test_world(2, one_discards, NULL);
}

/* ----------------------------------------------------------------- memory -- */

/* A bit of the masters flips. That somebody asks for the fingerprint, which reads them, does not
 * make it right. */
static void bit_flips(sherd_world *world, void *raw)
{
    const int *asks = raw;
    rig        r;
    char       dir[256];

    ways_declare_layers(&r, world, &OPTIONS);
    rig_seal(&r);
    rig_micro_batch(&r);
    CHECK_OK(sherd_step(r.engine, NULL));
    if (sherd_world_rank(world) == 0) {
        uint32_t *masters = (uint32_t *)(void *)r.engine->memory.buffers[SHERDI_BUFFER_STATE];

        masters[3] ^= UINT32_C(1) << 20;
    }
    if (*asks) {
        (void)rig_fingerprint(&r);
    }
    CHECK_STATUS(
        SHERD_E_NUMERIC,
        sherd_checkpoint_save(r.engine, saved_dir(*asks ? "asked" : "flipped", dir), NULL, NULL));
    rig_close(&r);
}

static void masters_that_change_in_memory_are_not_saved(void)
{
    saved_need_checksums();
    for (int asks = 0; asks <= 1; asks++) {
        test_world(2, bit_flips, &asks);
    }
}

/* ------------------------------------------------------------------- bound -- */

static void bound_save(sherd_world *world, void *raw)
{
    rig  r;
    char dir[256];

    (void)raw;
    rig_open(&r, world, &OPTIONS);
    (void)rig_unit(&r, "a");
    (void)rig_param(&r, 0, "a.w", 3000);
    rig_seal(&r);
    CHECK_OK(sherd_checkpoint_save(r.engine, saved_dir("bound", dir), "x", NULL));
    rig_close(&r);
}

/* A bound parameter that the checkpoint lacks starts from the trainer's memory; `writes`: as it is
 * after the load. */
static void bound_load(sherd_world *world, void *raw)
{
    static const char *const MISSING[] = {"b.w"};
    const int               *writes    = raw;
    rig                      r;
    char                     dir[256];
    ways_bound               memory;
    sherd_load_params        params;
    sherd_step_params        skipped;
    uint16_t                *values;

    rig_open(&r, world, &OPTIONS);
    (void)rig_unit(&r, "a");
    (void)rig_param(&r, 0, "a.w", 3000);
    (void)rig_unit(&r, "b");
    (void)rig_param(&r, 1, "b.w", 2000);
    ways_bind(&r, &memory);
    CHECK_OK(sherd_engine_seal(r.engine));
    values = memory.data[1];
    for (int i = 0; i < 2000; i++) {
        values[i] = (uint16_t)(0x3f80 + i % 7);
    }
    sherd_load_params_init(&params);
    params.may_miss     = MISSING;
    params.num_may_miss = 1;
    CHECK_OK(sherd_checkpoint_load(r.engine, saved_dir("bound", dir), "x", &params));
    for (int i = 0; i < 2000; i++) {
        CHECK_INT(0x3f80 + i % 7, values[i]);
        values[i] = (uint16_t)(values[i] + *writes);
    }
    rig_micro_batch(&r);
    CHECK_OK(sherd_step_prepare(r.engine, NULL));
    sherd_step_params_init(&skipped);
    skipped.overflow = 1;
    CHECK_OK(sherd_step_apply(r.engine, &skipped));
    CHECK_INT(rig_fingerprint(&r), told_fingerprint(&r));
    CHECK_OK(sherd_checkpoint_save(r.engine, saved_dir("bound", dir), "y", NULL));
    rig_close(&r);
    ways_unbind(&memory);
}

static void bound_parameters_that_a_checkpoint_lacks_keep_their_values(void)
{
    saved_need_checksums();
    test_world(2, bound_save, NULL);
    for (int writes = 0; writes <= 1; writes++) {
        test_world(2, bound_load, &writes);
    }
}

/* ------------------------------------------------------------- asynchronous -- */

static void written_while_saved(sherd_world *world, void *raw)
{
    rig_options       options   = OPTIONS;
    float             values[7] = {1, 2, 3};
    sherd_save_params params;
    rig               r;
    char              dir[256];

    (void)raw;
    options.top = ", \"checkpoint\": {\"async\": true}";
    ways_declare_layers(&r, world, &options);
    rig_seal(&r);
    rig_micro_batch(&r);
    CHECK_OK(sherd_step(r.engine, NULL));
    sherd_save_params_init(&params);
    params.is_async = 1;
    CHECK_OK(sherd_checkpoint_save(r.engine, saved_dir("async", dir), "x", &params));
    CHECK_OK(sherd_param_write(r.engine, r.params[r.num_params - 1].handle, SHERD_COMPUTE, 0, 7,
                               values));
    CHECK_OK(sherd_checkpoint_wait(r.engine, NULL));
    CHECK_OK(sherd_checkpoint_load(r.engine, dir, "x", NULL));
    rig_close(&r);
}

static void a_save_has_what_was_there_when_it_began(void)
{
    saved_need_checksums();
    test_world(2, written_while_saved, NULL);
}

static const test_case CASES[] = {
    CASE(a_write_behind_a_queued_step_leaves_its_report),
    CASE(a_discard_of_one_rank_leaves_the_report_to_all),
    CASE(masters_that_change_in_memory_are_not_saved),
    CASE(bound_parameters_that_a_checkpoint_lacks_keep_their_values),
    CASE(a_save_has_what_was_there_when_it_began),
};

RUN_MAIN(CASES)
