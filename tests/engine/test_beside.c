/* Queued updates: the same bits as updates that are waited for, on every tier, with every optimizer
 * and whatever calls come between. */
#include "engine/run/engine_impl.h"
#include "tests/engine/rig.h"
#include "tests/engine/tier_rows.h"
#include "tests/engine/toy.h"
#include "tests/lib/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEPS 4

/* How the steps of a run end. */
typedef enum way {
    WAY_WAITED,
    WAY_QUEUED,
    WAY_QUEUED_AND_WAITED,
    WAY_QUEUED_IN_HALVES,
    WAYS,
} way;

typedef struct run_case {
    rig_options options;
    way         way;
    uint64_t    fingerprint; /* result */
    double      sum;         /* of all parameters, as read in the last forward pass */
    int         was_beside;
} run_case;

static void halves_end(rig *r)
{
    sherd_step_params params;
    sherd_step_report report;

    sherd_step_report_init(&report);
    sherd_step_params_init(&params);
    params.is_queued = 1;
    CHECK_OK(sherd_step_prepare(r->engine, &report));
    if (report.is_boundary) {
        CHECK_OK(sherd_step_apply(r->engine, &params));
        CHECK(!r->engine->updater.is_there || r->engine->fingerprints.is_unreported);
    }
}

static void step_end(rig *r, way way)
{
    if (way == WAY_WAITED) {
        CHECK_OK(sherd_step(r->engine, NULL));
    } else if (way == WAY_QUEUED_IN_HALVES) {
        halves_end(r);
    } else {
        CHECK_OK(sherd_step_queue(r->engine));
    }
    if (way == WAY_QUEUED_AND_WAITED) {
        CHECK_OK(sherd_step_wait(r->engine, NULL));
    }
    r->micro++;
}

static void run_steps(sherd_world *world, void *raw)
{
    run_case *run = raw;
    rig       r;
    uint64_t  fingerprint;
    double    sum = 0;

    rig_open(&r, world, &run->options);
    rig_three(&r, 3000);
    rig_seal(&r);
    for (int step = 0;
         step < STEPS * (run->options.accumulation == 0 ? 1 : run->options.accumulation); step++) {
        rig_micro_batch(&r);
        step_end(&r, run->way);
    }
    for (int u = 0; u < r.num_units; u++) {
        rig_acquire(&r, u, SHERD_EVAL);
        for (int p = 0; p < r.num_params; p++) {
            sum += r.params[p].unit == u ? rig_read(&r, p) : 0;
        }
        rig_release(&r, u, SHERD_EVAL);
    }
    fingerprint = rig_fingerprint(&r);
    if (sherd_world_rank(world) == 0) {
        run->fingerprint = fingerprint;
        run->sum         = sum;
        run->was_beside  = r.engine->updater.is_there;
    }
    rig_close(&r);
}

/* On devices of several ranks a publish meets: so no acquire can publish a unit that some ranks may
 * never acquire. */
static int is_beside(const rig_options *options, int world_size)
{
    return getenv("SHERD_BACKEND") == NULL || world_size == 1 || options->stage == 3 ||
           options->backward_uses != SHERD_USES_ANY;
}

static void ways_compare(run_case run, int world_size, const char *name)
{
    uint64_t wanted = 0;
    double   sum    = 0;

    for (int way = 0; way < WAYS; way++) {
        run.way = (enum way)way;
        test_world(world_size, run_steps, &run);
        if (way == 0) {
            wanted = run.fingerprint;
            sum    = run.sum;
        }
        CHECK_INT(is_beside(&run.options, world_size), run.was_beside);
        if (run.fingerprint != wanted || run.sum != sum) {
            test_fail(__FILE__, __LINE__,
                      "%s, stage %d, %d ranks, way %d: fingerprint %016llx and not %016llx, sum %g "
                      "and not %g",
                      name, run.options.stage, world_size, way, (unsigned long long)run.fingerprint,
                      (unsigned long long)wanted, run.sum, sum);
        }
    }
}

static void rows_compare(const rig_options *options)
{
    char zero[512];

    for (size_t i = FIRST_OFFLOADED; i < NUM_TIER_ROWS; i++) {
        run_case run = {.options = *options};

        (void)snprintf(zero, sizeof(zero), TIER_ROWS[i].zero, test_scratch(), test_scratch());
        run.options.zero = zero;
        for (int stage = TIER_ROWS[i].least_stage; stage <= 3; stage++) {
            for (int ranks = 1; ranks <= 3; ranks++) {
                if (ranks == 1 || toy_takes_ranks(ranks)) {
                    run.options.stage = stage;
                    ways_compare(run, ranks, TIER_ROWS[i].name);
                }
            }
        }
    }
}

static void queued_steps_give_the_same_bits(void)
{
    rows_compare(&(rig_options){.dtype = SHERD_BF16, .clip = 1});
}

static void queued_steps_of_several_micro_batches(void)
{
    rows_compare(&(rig_options){.dtype = SHERD_F32, .accumulation = 2});
}

static void norms_of_whole_tensors(void)
{
    rows_compare(&(rig_options){.dtype = SHERD_BF16, .clip = 1, .optimizer = "Lamb"});
}

static void in_one_order_of_sums(void)
{
    rows_compare(
        &(rig_options){.dtype = SHERD_BF16, .accumulation = 2, .top = ", \"deterministic\": true"});
}

static void units_of_any_uses(void)
{
    rows_compare(&(rig_options){.dtype = SHERD_BF16, .backward_uses = SHERD_USES_ANY});
}

/* ------------------------------------------------- calls after a queued step -- */

typedef struct calls_run {
    rig_options options;
    way         way;
    int         call;
    uint64_t    fingerprint; /* results */
    double      seen;
} calls_run;

static void call_save(rig *r, calls_run *run)
{
    (void)run;
    CHECK_OK(sherd_checkpoint_save(r->engine, test_scratch(), "beside", NULL));
}

static void call_load(rig *r, calls_run *run)
{
    call_save(r, run);
    rig_micro_batch(r);
    step_end(r, run->way);
    r->micro--; /* the load goes back */
    CHECK_OK(sherd_checkpoint_load(r->engine, test_scratch(), "beside", NULL));
}

static void call_read(rig *r, calls_run *run)
{
    float values[3000];

    CHECK_OK(sherd_param_read(r->engine, r->params[1].handle, "master", 100, 2900, values));
    for (int i = 0; i < 2900; i++) {
        run->seen += values[i];
    }
    CHECK_OK(sherd_param_read(r->engine, r->params[2].handle, SHERD_COMPUTE, 0, 3000, values));
    for (int i = 0; i < 3000; i++) {
        run->seen += values[i];
    }
}

static void call_write(rig *r, calls_run *run)
{
    float values[500];

    (void)run;
    for (int i = 0; i < 500; i++) {
        values[i] = 0.25f * (float)i;
    }
    CHECK_OK(sherd_param_write(r->engine, r->params[2].handle, "master", 70, 500, values));
}

static void call_fingerprint(rig *r, calls_run *run)
{
    uint64_t fingerprint;

    CHECK_OK(sherd_param_fingerprint(r->engine, r->params[0].handle, &fingerprint));
    run->seen = (double)(fingerprint >> 12);
}

static void call_eval(rig *r, calls_run *run)
{
    CHECK_OK(sherd_eval_begin(r->engine, NULL));
    for (int u = r->num_units; u-- > 0;) { /* the last unit first */
        rig_acquire(r, u, SHERD_EVAL);
        for (int p = 0; p < r->num_params; p++) {
            run->seen += r->params[p].unit == u ? rig_read(r, p) : 0;
        }
        rig_release(r, u, SHERD_EVAL);
    }
    CHECK_OK(sherd_eval_end(r->engine));
}

static void call_discard(rig *r, calls_run *run)
{
    (void)run;
    rig_forward(r, 0, SHERD_FORWARD);
    CHECK_OK(sherd_step_discard(r->engine));
}

static void call_set_step(rig *r, calls_run *run)
{
    (void)run;
    CHECK_OK(sherd_engine_set_step(r->engine, 7, 9));
}

static void call_undo(rig *r, calls_run *run)
{
    (void)run;
    if (r->engine->plan->has_generations) {
        CHECK_OK(sherd_step_undo(r->engine));
        r->micro--;
    }
}

static void call_backward_of_the_last(rig *r, calls_run *run)
{
    (void)run;
    rig_acquire(r, r->num_units - 1, SHERD_BACKWARD); /* without a forward before it */
    rig_release(r, r->num_units - 1, SHERD_BACKWARD);
    CHECK_OK(sherd_step_discard(r->engine));
}

static void call_prepare(rig *r, calls_run *run)
{
    sherd_step_report report;

    sherd_step_report_init(&report);
    rig_micro_batch(r);
    CHECK_OK(sherd_step_prepare(r->engine, &report));
    CHECK_INT(0, report.fingerprint);
    run->seen = report.grad_norm;
    CHECK_OK(sherd_step_apply(r->engine, NULL));
    r->micro++;
}

static void call_skip(rig *r, calls_run *run)
{
    sherd_step_params params;

    (void)run;
    sherd_step_params_init(&params);
    params.overflow = 1;
    rig_micro_batch(r);
    CHECK_OK(sherd_step_prepare(r->engine, NULL));
    CHECK_OK(sherd_step_apply(r->engine, &params));
    r->micro++;
}

static void call_destroy(rig *r, calls_run *run)
{
    sherd_world *world = r->world;

    rig_micro_batch(r);
    CHECK_OK(sherd_step_queue(r->engine));
    rig_close(r);
    *r = (rig){0};
    rig_open(r, world, &run->options);
    rig_three(r, 3000);
    rig_seal(r);
}

static const struct {
    const char *name;
    void (*make)(rig *r, calls_run *run);
} CALLS[] = {
    {"save", call_save},
    {"load", call_load},
    {"read", call_read},
    {"write", call_write},
    {"fingerprint", call_fingerprint},
    {"eval", call_eval},
    {"discard", call_discard},
    {"set step", call_set_step},
    {"undo", call_undo},
    {"prepare", call_prepare},
    {"skip", call_skip},
    {"destroy", call_destroy},
    {"backward", call_backward_of_the_last},
};

#define NUM_CALLS (int)(sizeof(CALLS) / sizeof(CALLS[0]))

static void call_train(sherd_world *world, void *raw)
{
    calls_run *all = raw;
    calls_run  run = *all;
    rig        r;
    uint64_t   fingerprint;

    rig_open(&r, world, &run.options);
    rig_three(&r, 3000);
    rig_seal(&r);
    for (int step = 0; step < 2; step++) {
        rig_micro_batch(&r);
        step_end(&r, run.way);
        CALLS[run.call].make(&r, &run);
    }
    rig_micro_batch(&r);
    step_end(&r, run.way);
    fingerprint = rig_fingerprint(&r);
    if (sherd_world_rank(world) == 0) {
        all->fingerprint = fingerprint;
        all->seen        = run.seen;
    }
    rig_close(&r);
}

/* Behind a queued step a call finds what it finds after one that was waited for, and changes what
 * it changes there. */
static void calls_behind_a_queued_step(void)
{
    for (size_t i = FIRST_OFFLOADED * (size_t)NUM_CALLS; i < NUM_TIER_ROWS * (size_t)NUM_CALLS;
         i++) {
        const tier_row *row   = &TIER_ROWS[i / (size_t)NUM_CALLS];
        int             stage = row->least_stage == 3 ? 3 : 1 + (int)(i % 3);
        int             ranks = getenv("SHERD_BACKEND") != NULL ? 1 : 1 + (int)(i % 3);
        char            zero[512];
        calls_run       runs[2] = {{.way = WAY_WAITED}, {.way = WAY_QUEUED}};

        (void)snprintf(zero, sizeof(zero), row->zero, test_scratch(), test_scratch());
        for (int w = 0; w < 2; w++) {
            runs[w].call = (int)(i % (size_t)NUM_CALLS);
            runs[w].options =
                (rig_options){.dtype = SHERD_BF16, .clip = 1, .stage = stage, .zero = zero};
            test_world(ranks, call_train, &runs[w]);
        }
        if (runs[0].fingerprint != runs[1].fingerprint || runs[0].seen != runs[1].seen) {
            test_fail(__FILE__, __LINE__, "%s, %s, stage %d, %d ranks: %016llx %g and %016llx %g",
                      CALLS[runs[0].call].name, row->name, stage, ranks,
                      (unsigned long long)runs[0].fingerprint, runs[0].seen,
                      (unsigned long long)runs[1].fingerprint, runs[1].seen);
        }
    }
}

/* ------------------------------------------------------------------ reports -- */

/* Ends a window with a gradient that the deterministic mode cannot add. */
static void window_fail(rig *r)
{
    const float large = 1e6f;

    for (int u = r->num_units - 1; u >= 0; u--) {
        rig_acquire(r, u, SHERD_BACKWARD);
        if (u == 0) {
            CHECK_OK(sherd_copy(r->engine, sherd_param_grad(r->engine, r->params[0].handle), &large,
                                sizeof(large)));
        }
        rig_release(r, u, SHERD_BACKWARD);
    }
    CHECK_STATUS(SHERD_E_NUMERIC, sherd_step_queue(r->engine));
}

static void report_train(sherd_world *world, void *raw)
{
    sherd_step_report waited, queued;
    rig               r;

    sherd_step_report_init(&waited);
    sherd_step_report_init(&queued);
    rig_open(&r, world, raw);
    rig_three(&r, 3000);
    rig_seal(&r);
    rig_micro_batch(&r);
    CHECK_OK(sherd_step(r.engine, &waited));
    CHECK_OK(sherd_engine_set_step(r.engine, 0, 0));
    rig_micro_batch(&r);
    CHECK_OK(sherd_step_queue(r.engine));
    window_fail(&r); /* the report is still of the step before */
    CHECK_OK(sherd_step_wait(r.engine, &queued));
    CHECK(queued.fingerprint != waited.fingerprint);
    CHECK_INT(rig_fingerprint(&r), queued.fingerprint);
    CHECK(queued.exposed_s >= queued.wait_update_s + queued.step_s);
    rig_close(&r);
}

typedef struct bytes_run {
    int      is_queued;
    uint64_t bytes[4][4]; /* by step: read, written, down, up */
} bytes_run;

static void bytes_train(sherd_world *world, void *raw)
{
    bytes_run        *run = raw;
    char              zero[512];
    rig_options       options = {.stage = 1, .dtype = SHERD_BF16, .zero = zero};
    sherd_step_report report;
    rig               r;

    (void)snprintf(zero, sizeof(zero),
                   ", \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\", "
                   "\"buffer_size\": 4096, \"buffer_count\": 4, \"durable\": false}",
                   test_scratch());
    sherd_step_report_init(&report);
    rig_open(&r, world, &options);
    rig_three(&r, 3000);
    rig_seal(&r);
    for (int step = 0; step < 4; step++) {
        rig_micro_batch(&r);
        CHECK_OK(run->is_queued ? sherd_step_queue(r.engine) : sherd_step(r.engine, NULL));
        r.micro++;
        CHECK_OK(sherd_step_wait(r.engine, &report));
        run->bytes[step][0] = report.nvme_read_bytes;
        run->bytes[step][1] = report.nvme_written_bytes;
        run->bytes[step][2] = report.link_down_bytes;
        run->bytes[step][3] = report.link_up_bytes;
        CHECK(r.engine->backend->device->is_async || (report.update_s > 0 && report.copy_s > 0));
        CHECK(!run->is_queued || report.update_s + report.copy_s <= report.beside_s);
    }
    rig_close(&r);
}

/* What is read ahead counts for the update that uses it, however fast the drive is. */
static void a_queued_step_reports_what_its_own_update_moved(void)
{
    bytes_run runs[2] = {{.is_queued = 0}, {.is_queued = 1}};

    test_world(1, bytes_train, &runs[0]);
    test_world(1, bytes_train, &runs[1]);
    for (int i = 0; i < 16; i++) {
        CHECK_INT(runs[0].bytes[i / 4][i % 4], runs[1].bytes[i / 4][i % 4]);
        CHECK(runs[0].bytes[i / 4][i % 4] > 0);
    }
}

static void the_report_of_a_queued_step_outlives_a_dropped_window(void)
{
    static const char *const ZEROS[] = {
        "", ", \"offload_optimizer\": {\"device\": \"cpu\"}",
        ", \"offload_optimizer\": {\"device\": \"cpu\", \"ratio\": 0}"};

    for (int i = 0; i < 3; i++) {
        rig_options options = {.stage = 2, .zero = ZEROS[i], .top = ", \"deterministic\": true"};

        test_world(getenv("SHERD_BACKEND") != NULL ? 1 : 2, report_train, &options);
    }
}

static const test_case CASES[] = {
    CASE(a_queued_step_reports_what_its_own_update_moved),
    CASE(the_report_of_a_queued_step_outlives_a_dropped_window),
    CASE(queued_steps_give_the_same_bits),
    CASE(queued_steps_of_several_micro_batches),
    CASE(norms_of_whole_tensors),
    CASE(in_one_order_of_sums),
    CASE(units_of_any_uses),
    CASE(calls_behind_a_queued_step),
};

RUN_MAIN(CASES)
