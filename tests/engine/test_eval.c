/* Evaluation in many passes (sherd_eval_begin, sherd_eval_end): the values are those of single
 * passes; what is gathered and how often; the bytes that the plan has for it; and the calls that
 * are refused meanwhile. */
#include "sherd_build.h"
#include "tests/engine/rig.h"
#include "tests/lib/check.h"

#include <stdio.h>
#include <string.h>

#define UNITS 6
#define ELEMS 1000 /* elements of a unit, for which 4096 bytes are gathered on 1 and on 2 ranks */

/* Nothing is gathered ahead or kept for the next use, so one unit is gathered at a time. */
#define ONE_AT_A_TIME ", \"stage3_prefetch_bucket_size\": 0, \"stage3_max_reuse_distance\": 0"

static void eval_open(rig *r, sherd_world *world, const rig_options *options)
{
    static const char *const NAMES[UNITS] = {"a", "b", "c", "d", "e", "f"};

    rig_open(r, world, options);
    for (int u = 0; u < UNITS; u++) {
        (void)rig_unit(r, NAMES[u]);
        (void)rig_param(r, u, NAMES[u], ELEMS);
    }
    rig_seal(r);
}

static sherd_status begin(rig *r, size_t keep_units)
{
    sherd_eval_params params;

    sherd_eval_params_init(&params);
    params.keep_units = keep_units;
    return sherd_eval_begin(r->engine, &params);
}

/* Makes an EVAL pass, and returns the sum of all that it reads. */
static double pass(rig *r)
{
    double sum = 0;

    for (int u = 0; u < UNITS; u++) {
        rig_acquire(r, u, SHERD_EVAL);
        sum += rig_read(r, u);
        rig_release(r, u, SHERD_EVAL);
    }
    return sum;
}

static uint64_t sent(const rig *r)
{
    sherd_traffic_report traffic;

    sherd_traffic_report_init(&traffic);
    CHECK_OK(sherd_engine_traffic(r->engine, &traffic));
    return traffic.wire_counted;
}

/* ------------------------------------------------------------ numbers -- */

/* Makes single passes, passes with kept units, a training pass between them, and passes in another
 * order. After that training goes on as if they had not been. */
static void evaluate_and_train(sherd_world *world, void *raw)
{
    const rig_options *options = raw;
    double             want;
    uint64_t           plain;
    rig                r;

    eval_open(&r, world, options);
    (void)rig_train(&r, 1);
    plain = rig_train(&r, 1).fingerprint;
    rig_close(&r);

    eval_open(&r, world, options);
    (void)rig_train(&r, 1);
    want = pass(&r);
    for (int round = 0; round < 2; round++) {
        CHECK_OK(sherd_eval_begin(r.engine, NULL));
        for (int i = 0; i < 3; i++) {
            CHECK_CLOSE(want, pass(&r), 0);
        }
        for (int u = UNITS - 1; u >= 0; u -= 2) { /* not in the order of the plan */
            rig_forward(&r, u, SHERD_EVAL);
        }
        rig_micro_batch(&r);
        CHECK_CLOSE(want, pass(&r), 0);
        CHECK_OK(sherd_eval_end(r.engine));
        if (round == 0) {
            CHECK_OK(sherd_step_discard(r.engine));
        }
    }
    CHECK_INT(plain, rig_step(&r).fingerprint);
    CHECK(pass(&r) != want);
    rig_close(&r);
}

static void kept_units_read_as_gathered_ones(void)
{
    char        tops[3][96], zeros[3][1024];
    rig_options options = {0};

    for (int keep = 0; keep < 3; keep++) {
        (void)snprintf(tops[keep], sizeof(tops[keep]), ", \"sherd\": {\"eval_keep_units\": %d}",
                       keep * UNITS / 2);
    }
    (void)snprintf(zeros[0], sizeof(zeros[0]), ", \"overlap_comm\": true");
    (void)snprintf(zeros[1], sizeof(zeros[1]), "%s, \"offload_param\": {\"device\": \"cpu\"}",
                   ONE_AT_A_TIME);
    (void)snprintf(zeros[2], sizeof(zeros[2]),
                   ", \"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}",
                   test_scratch());
    for (int stage = 0; stage <= 3; stage++) {
        for (int keep = 0; keep < 3; keep++) {
            for (int z = 0; z < (stage == 3 ? 3 : 1); z++) {
                options = (rig_options){.stage = stage,
                                        .top   = tops[keep],
                                        .zero  = zeros[z],
                                        .dtype = keep == 1 ? SHERD_BF16 : SHERD_F32};
                test_world(1 + (stage + keep + z) % 3, evaluate_and_train, &options);
            }
        }
    }
}

/* -------------------------------------------------------------- bytes -- */

typedef struct bytes_job {
    size_t planned, kept;
} bytes_job;

/* Checks that passes after the first gather what is not kept, and that the plan has a place for
 * each unit that is. */
static void count_bytes(sherd_world *world, void *raw)
{
    const bytes_job    *job    = raw;
    uint64_t            slice  = 4096 / 2; /* bytes sent to the other rank */
    sherd_memory_report memory = {0};
    char                top[96];
    rig_options         options = {.stage = 3, .zero = ONE_AT_A_TIME, .top = top};
    uint64_t            before;
    rig                 r;

    (void)snprintf(top, sizeof(top), ", \"sherd\": {\"eval_keep_units\": %zu}", job->planned);
    eval_open(&r, world, &options);
    sherd_memory_report_init(&memory);
    CHECK_OK(sherd_engine_memory(r.engine, &memory));
    CHECK_INT((job->planned + (job->planned < UNITS)) * 4096, memory.gather_planned);
    CHECK_INT(memory.gather_planned, memory.gather_held);
    CHECK_OK(begin(&r, job->kept));
    (void)pass(&r);
    for (int i = 0; i < 2; i++) {
        before = sent(&r);
        (void)pass(&r);
        CHECK_INT((UNITS - job->kept) * slice, sent(&r) - before);
    }
    CHECK_OK(sherd_eval_end(r.engine));
    before = sent(&r);
    (void)pass(&r);
    CHECK_INT(UNITS * slice, sent(&r) - before);
    CHECK_INT(1, rig_train(&r, 1).was_updated);
    rig_close(&r);
}

static void kept_units_are_gathered_once_and_planned_to_the_byte(void)
{
    for (size_t planned = 0; planned <= UNITS; planned++) {
        for (size_t kept = 0; kept <= planned; kept++) {
            test_world(2, count_bytes, &(bytes_job){planned, kept});
        }
    }
}

/* A pass of training between two passes may use the memory of a kept unit, which is then gathered
 * again. */
static void train_between(sherd_world *world, void *raw)
{
    rig_options options = {
        .stage = 3, .zero = ONE_AT_A_TIME, .top = ", \"sherd\": {\"eval_keep_units\": 2}"};
    void *address[UNITS];
    rig   r;

    (void)raw;
    eval_open(&r, world, &options);
    for (int u = 0; u < UNITS; u++) {
        address[u] = sherd_param_address(r.engine, r.params[u].handle);
    }
    CHECK(address[0] != address[1] && address[0] != address[2] && address[1] != address[2]);
    CHECK(address[2] == address[3] && address[3] == address[5]);
    CHECK_OK(begin(&r, 2));
    for (int round = 0; round < 2; round++) {
        double want = pass(&r);

        for (int u = 0; u < UNITS; u++) {
            rig_forward(&r, u, SHERD_FORWARD);
        }
        CHECK_CLOSE(want, pass(&r), 0);
    }
    rig_acquire(&r, 0, SHERD_EVAL);
    CHECK(sherd_param_data(r.engine, r.params[0].handle) == address[0]);
    rig_release(&r, 0, SHERD_EVAL);
    /* a kept unit is not a held one */
    CHECK(sherd_param_data(r.engine, r.params[0].handle) == NULL);
    CHECK_OK(sherd_eval_end(r.engine));
    rig_close(&r);
}

static void training_passes_may_take_what_is_kept(void)
{
    test_world(2, train_between, NULL);
}

/* ------------------------------------------------------------ refused -- */

static void refuse(sherd_world *world, void *raw)
{
    rig_options options = {.stage = *(int *)raw, .top = ", \"sherd\": {\"eval_keep_units\": 2}"};
    float       value   = 1;
    rig         r;

    eval_open(&r, world, &options);
    CHECK_STATUS(SHERD_E_STATE, sherd_eval_end(r.engine));
    CHECK_ERROR_SAYS("sherd_eval_begin");
    CHECK_STATUS(SHERD_E_INVAL, begin(&r, 3));
    CHECK_ERROR_SAYS("sherd.eval_keep_units");
    CHECK_OK(begin(&r, 2)); /* this is the first call after seal */
    CHECK_STATUS(SHERD_E_STATE, begin(&r, 2));
    CHECK_STATUS(SHERD_E_STATE, sherd_param_write(r.engine, 0, SHERD_MASTER, 0, 1, &value));
    CHECK_ERROR_SAYS("sherd_param_write");
    CHECK_ERROR_SAYS("sherd_eval_end");
    CHECK_STATUS(SHERD_E_STATE, sherd_engine_set_step(r.engine, 1, 1));
    CHECK_ERROR_SAYS("sherd_eval_end");
    CHECK_STATUS(SHERD_E_STATE, sherd_checkpoint_load(r.engine, test_scratch(), "none", NULL));
    CHECK_ERROR_SAYS("sherd_eval_end");
    CHECK_OK(sherd_param_read(r.engine, 0, SHERD_MASTER, 0, 1, &value));
    rig_micro_batch(&r);
    CHECK_STATUS(SHERD_E_STATE, sherd_step(r.engine, NULL));
    CHECK_ERROR_SAYS("sherd_step: it is not allowed between sherd_eval_begin");
    CHECK_STATUS(SHERD_E_STATE, sherd_step_prepare(r.engine, NULL));
    CHECK_ERROR_SAYS("sherd_step_prepare");
    rig_acquire(&r, 1, SHERD_EVAL);
    CHECK_STATUS(SHERD_E_STATE, sherd_eval_end(r.engine));
    CHECK_ERROR_SAYS("unit b is still acquired");
    rig_release(&r, 1, SHERD_EVAL);
    CHECK_OK(sherd_eval_end(r.engine));
    CHECK_INT(1, rig_step(&r).was_updated);
    rig_micro_batch(&r);
    CHECK_OK(sherd_step_prepare(r.engine, NULL));
    CHECK_STATUS(SHERD_E_STATE, begin(&r, 0));
    CHECK_ERROR_SAYS("a step is prepared");
    CHECK_OK(sherd_step_apply(r.engine, NULL));
    rig_close(&r);
}

static void what_changes_parameters_is_refused_by_name(void)
{
    for (int stage = 0; stage <= 3; stage++) {
        test_world(1 + stage % 2, refuse, &stage);
    }
}

/* The ranks call with different numbers, or make different calls, or are in different states. */
static void disagree(sherd_world *world, void *raw)
{
    rig_options options = {.stage = 3, .top = ", \"sherd\": {\"eval_keep_units\": 2}"};
    int         rank    = sherd_world_rank(world);
    rig         r;

    (void)raw;
    eval_open(&r, world, &options);
    CHECK_STATUS(SHERD_E_INVAL, begin(&r, rank == 1 ? 1 : 2));
    CHECK_ERROR_SAYS("rank 1");
    CHECK_ERROR_SAYS("keep_units");
    CHECK_STATUS(SHERD_E_INVAL, begin(&r, rank == 1 ? 3 : 2));
    CHECK_OK(begin(&r, 1));
    if (rank == 1) {
        CHECK_STATUS(SHERD_E_STATE, begin(&r, 1));
    } else {
        CHECK_STATUS(SHERD_E_STATE, sherd_eval_end(r.engine));
        CHECK_ERROR_SAYS("rank 1");
    }
    (void)pass(&r);
    CHECK_OK(sherd_eval_end(r.engine));
    CHECK_INT(1, rig_train(&r, 1).was_updated);
    rig_close(&r);
}

static void ranks_that_differ_are_named(void)
{
    test_world(3, disagree, NULL);
}

/* A window is dropped after an exception in the middle of an evaluation, which some ranks have not
 * begun yet. */
static void stop(sherd_world *world, void *raw)
{
    rig_options options = {.stage = 3, .top = ", \"sherd\": {\"eval_keep_units\": 4}"};
    double      want;
    rig         r;

    (void)raw;
    eval_open(&r, world, &options);
    want = pass(&r);
    CHECK_OK(sherd_eval_begin(r.engine, NULL));
    (void)pass(&r);
    rig_acquire(&r, 1, SHERD_EVAL);
    CHECK_OK(sherd_step_discard(r.engine));
    CHECK_STATUS(SHERD_E_STATE, sherd_eval_end(r.engine));
    if (sherd_world_rank(world) != 0) {
        CHECK_STATUS(SHERD_E_STATE, sherd_eval_begin(r.engine, NULL));
        CHECK_ERROR_SAYS("dropped the window");
    }
    CHECK_OK(sherd_step_discard(r.engine));
    CHECK_OK(sherd_eval_begin(r.engine, NULL));
    CHECK_CLOSE(want, pass(&r), 0);
    CHECK_OK(sherd_eval_end(r.engine));
    CHECK_INT(1, rig_train(&r, 1).was_updated);
    rig_close(&r);
}

static void discard_ends_an_evaluation(void)
{
    test_world(2, stop, NULL);
}

static void kept_units_want_places(void)
{
    rig_options options  = {.top = ", \"sherd\": {\"eval_keep_units\": 2, \"free_packing\": true}"};
    const char *json     = rig_json(&options);
    sherd_config *config = NULL;

    CHECK_STATUS(SHERD_E_INVAL, sherd_config_parse(json, strlen(json), &config));
    CHECK_ERROR_SAYS("sherd.eval_keep_units");
    CHECK_ERROR_SAYS("sherd.free_packing");
}

static const test_case CASES[] = {
    CASE(kept_units_read_as_gathered_ones),
    CASE(kept_units_are_gathered_once_and_planned_to_the_byte),
    CASE(training_passes_may_take_what_is_kept),
    CASE(what_changes_parameters_is_refused_by_name),
    CASE(ranks_that_differ_are_named),
    CASE(discard_ends_an_evaluation),
    CASE(kept_units_want_places),
};

RUN_MAIN(CASES)
