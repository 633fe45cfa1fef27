/* The engine on the streams of a device: how often the host waits for the device, and streams of
 * the trainer's own. */
#include "engine/run/marks.h"
#include "sherd_cuda.h"
#include "tests/engine/rig.h"
#include "tests/lib/check.h"

#include "emulator.h"

#include <semaphore.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static void declare(rig *r, sherd_world *world, const rig_options *options)
{
    rig_open(r, world, options);
    for (int u = 0; u < 3; u++) {
        char name[32];

        (void)snprintf(name, sizeof(name), "u%d", u);
        (void)rig_unit(r, name);
        (void)snprintf(name, sizeof(name), "p%d", u);
        (void)rig_param(r, u, name, 5000);
    }
}

/* Acquires and releases as a trainer does that only queues work, so that all waits are the engine's
 * own. */
static void passes(rig *r)
{
    for (int u = 0; u < r->num_units; u++) {
        rig_acquire(r, u, SHERD_FORWARD);
        rig_release(r, u, SHERD_FORWARD);
    }
    for (int u = r->num_units - 1; u >= 0; u--) {
        rig_acquire(r, u, SHERD_BACKWARD);
        rig_release(r, u, SHERD_BACKWARD);
    }
}

static void micro_batch(rig *r, int is_queued)
{
    passes(r);
    if (is_queued) {
        CHECK_OK(sherd_step_queue(r->engine));
        r->micro++;
    } else {
        (void)rig_step(r);
    }
}

typedef struct waiting {
    rig_options   options;
    unsigned long per_step;
    unsigned long launches; /* launches of kernels */
    unsigned long up, down; /* bytes copied over the link */
    int           is_queued;
} waiting;

/* Bytes of coefficients that go to the device, and of norms and the fingerprint that come back;
 * LAMB has norms for each tensor, and brings them twice. */
enum { ADAMW_UP = 64, ADAMW_DOWN = 192 + 8, LAMB_UP = 160, LAMB_DOWN = 2 * 1200 + 8 };

static void count_waits(sherd_world *world, void *raw)
{
    const waiting *what = raw;
    unsigned long  before;
    unsigned long  launches;
    uint64_t       up;
    uint64_t       down;
    rig            r;

    declare(&r, world, &what->options);
    rig_seal(&r);
    micro_batch(&r, what->is_queued);
    CHECK_OK(sherd_step_wait(r.engine, NULL));
    before   = emulator_waits();
    launches = emulator_launches();
    up       = emulator_copied(EMULATOR_UP);
    down     = emulator_copied(EMULATOR_DOWN);
    for (int i = 0; i < 3 * (what->options.accumulation == 0 ? 1 : what->options.accumulation);
         i++) {
        micro_batch(&r, what->is_queued);
    }
    CHECK_OK(sherd_step_wait(r.engine, NULL));
    CHECK_INT(3 * what->per_step, emulator_waits() - before);
    CHECK_INT(3 * what->launches, emulator_launches() - launches);
    CHECK_INT(3 * what->up, emulator_copied(EMULATOR_UP) - up);
    CHECK_INT(3 * what->down, emulator_copied(EMULATOR_DOWN) - down);
    rig_close(&r);
}

static waiting waiting_of(int stage, const char *optimizer, const char *top)
{
    int is_lamb = optimizer != NULL;

    return (waiting){
        .options  = {.stage = stage, .dtype = SHERD_BF16, .optimizer = optimizer, .top = top},
        .per_step = is_lamb ? 3 : 2,
        .launches = (stage >= 2 ? 3 : 0) + (is_lamb ? 7 : 4),
        .up       = is_lamb ? LAMB_UP : ADAMW_UP,
        .down     = is_lamb ? LAMB_DOWN : ADAMW_DOWN,
    };
}

/* The host waits for the norm and for the fingerprint, with LAMB also for the norms of the tensors.
 * One launch takes the norm of all three units. Each unit has a launch for the update, and from
 * stage 2 on one to bring its gradient to the slice; LAMB has one more. The encoding of the state
 * does not matter. */
static void the_host_waits_twice_in_a_step(void)
{
    static const char ENCODED[] =
        ", \"sherd\": {\"master_encoding\": \"bf16_beside\", \"moment_encoding\": \"fp8\"}";

    for (int stage = 0; stage <= 3; stage++) {
        waiting adamw = waiting_of(stage, NULL, NULL);
        waiting lamb  = waiting_of(stage, "Lamb", NULL);
        waiting many  = adamw;

        many.options.accumulation = 1;
        test_world(1, count_waits, &adamw);
        test_world(1, count_waits, &lamb);
        test_world(1, count_waits, &many);
        adamw.options.top = ENCODED;
        lamb.options.top  = ENCODED;
        test_world(1, count_waits, &adamw);
        test_world(1, count_waits, &lamb);
    }
}

/* The host waits for the last gradient that went down, before it computes the norm; then for the
 * norm and the fingerprint, and for the bounce buffer of each block. */
static void an_offloaded_step_waits_for_what_the_host_needs(void)
{
    waiting what = {
        {.stage = 2, .dtype = SHERD_BF16, .zero = ", \"offload_optimizer\": {\"device\": \"cpu\"}"},
        1 + 2 + 3,
        3 + 3,                     /* a unit is reduced, and measured before it goes down */
        3 * 5056 * 2 + ADAMW_UP,   /* parameters: 5000 elements, padded to chunks */
        3 * 5056 * 2 + ADAMW_DOWN, /* gradients */
        0};

    test_world(1, count_waits, &what);
    /* The updater waits for as much. When it begins, all that the trainer has queued is over: the
     * norm is known, so these two waits are short. */
    what.is_queued = 1;
    what.per_step += 2;
    test_world(1, count_waits, &what);
}

/* First values pass through pinned memory of one MiB, which is used again when the portion before
 * is on the device. */
static void count_fill_waits(sherd_world *world, void *raw)
{
    const rig_options *options = raw;
    unsigned long      before;
    uint64_t           up;
    rig                r;

    rig_open(&r, world, options);
    (void)rig_unit(&r, "unit");
    (void)rig_param(&r, 0, "long", 5 * SHERDI_FILL_ELEMS - 100);
    CHECK_OK(sherd_engine_seal(r.engine));
    before = emulator_waits();
    up     = emulator_copied(EMULATOR_UP);
    CHECK_OK(sherd_param_fill(r.engine, r.params[0].handle, rig_fill, NULL));
    CHECK_INT(4, emulator_waits() - before);
    CHECK_INT((5 * SHERDI_FILL_ELEMS - 100) * (4 + 2), emulator_copied(EMULATOR_UP) - up);
    rig_close(&r);
}

static void a_fill_waits_once_for_a_portion(void)
{
    for (int stage = 0; stage <= 3; stage += 3) {
        rig_options options = {.stage = stage, .dtype = SHERD_BF16};

        test_world(1, count_fill_waits, &options);
    }
}

static void train_on_own_stream(sherd_world *world, void *ctx)
{
    rig_options  options = {.stage = 3, .dtype = SHERD_BF16, .clip = 1};
    uint64_t    *out     = ctx;
    cudaStream_t stream;
    rig          r;

    for (int own = 0; own < 2; own++) {
        declare(&r, world, &options);
        CHECK_INT(cudaSuccess, cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        CHECK(sherd_cuda_stream(r.engine) != NULL);
        if (own) {
            CHECK_OK(sherd_cuda_set_stream(r.engine, stream));
            CHECK(sherd_cuda_stream(r.engine) == stream);
        }
        rig_seal(&r);
        CHECK_STATUS(SHERD_E_STATE, sherd_cuda_set_stream(r.engine, stream));
        (void)rig_train(&r, 3);
        out[own] = rig_fingerprint(&r);
        rig_close(&r);
        CHECK_INT(cudaSuccess, cudaStreamDestroy(stream));
    }
}

static void the_trainers_own_stream_changes_nothing(void)
{
    uint64_t fingerprints[2];

    test_world(1, train_on_own_stream, fingerprints);
    CHECK_INT(fingerprints[0], fingerprints[1]);
}

/* ------------------------------------------------------ the default streams -- */

#define READ_ELEMS 5000

typedef struct reading {
    const float *from; /* in device memory */
    float        got[READ_ELEMS];
} reading;

static void read_now(void *ctx)
{
    reading *what = ctx;

    memcpy(what->got, what->from, sizeof(what->got));
}

/* Checks that what a trainer queues on `handle` runs after the gather and before the memory is used
 * again. */
static void read_on(rig *r, cudaStream_t handle, int unit)
{
    static reading what[3];
    static float   want[READ_ELEMS];

    for (int u = 0; u < 3; u++) {
        rig_acquire(r, u, SHERD_EVAL);
        what[u].from = sherd_param_data(r->engine, r->params[u].handle);
        CHECK_INT(cudaSuccess, emulator_call(handle, read_now, &what[u]));
        rig_release(r, u, SHERD_EVAL);
    }
    CHECK_INT(cudaSuccess, cudaStreamSynchronize(handle));
    CHECK_OK(rig_fill((void *)(uintptr_t)unit, 0, READ_ELEMS, want));
    CHECK_BYTES_EQUAL(want, what[unit].got, sizeof(want));
}

static void train_on_default_streams(sherd_world *world, void *ctx)
{
    const cudaStream_t given[4]   = {NULL, NULL, cudaStreamLegacy, cudaStreamPerThread};
    const cudaStream_t becomes[4] = {NULL, cudaStreamLegacy, cudaStreamLegacy, cudaStreamPerThread};
    uint64_t          *out        = ctx;
    rig_options        options    = {
                  .stage = 3,
                  .clip  = 1,
                  .zero  = ", \"stage3_prefetch_bucket_size\": 0, \"stage3_max_reuse_distance\": 0"};

    for (int i = 0; i < 4; i++) {
        rig r;

        declare(&r, world, &options);
        if (i > 0) {
            CHECK_OK(sherd_cuda_set_stream(r.engine, given[i]));
            CHECK(sherd_cuda_stream(r.engine) == becomes[i]);
        }
        rig_seal(&r);
        for (int u = 0; u < 3; u++) {
            read_on(&r, i == 0 ? sherd_cuda_stream(r.engine) : given[i], u);
        }
        (void)rig_train(&r, 2);
        out[i] = rig_fingerprint(&r);
        rig_close(&r);
    }
}

static void default_streams_are_streams_of_the_trainers_own(void)
{
    uint64_t fingerprints[4];

    test_world(1, train_on_default_streams, fingerprints);
    for (int i = 1; i < 4; i++) {
        CHECK_INT(fingerprints[0], fingerprints[i]);
    }
}

/* What the compute stream waits for, ten seconds at most. */
typedef struct gate {
    sem_t open;
    int   is_late; /* nobody opened it */
} gate;

static void gate_pass(void *ctx)
{
    gate           *g = ctx;
    struct timespec until;

    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 10;
    g->is_late = sem_timedwait(&g->open, &until) != 0;
}

/* The report of a step that was queued waits for no micro-batch that was queued after it, with
 * times and without. */
static void report_beside(sherd_world *world, void *ctx)
{
    static const char *const TOPS[] = {"", ", \"wall_clock_breakdown\": true"};

    (void)ctx;
    for (int i = 0; i < 2; i++) {
        rig_options       options = {.stage = 3, .dtype = SHERD_BF16, .top = TOPS[i]};
        gate              g       = {.is_late = 0};
        sherd_step_report report;
        rig               r;

        CHECK_INT(0, sem_init(&g.open, 0, 0));
        declare(&r, world, &options);
        rig_seal(&r);
        micro_batch(&r, 0);
        passes(&r);
        CHECK_OK(sherd_step_queue(r.engine));
        CHECK_INT(cudaSuccess, emulator_call(sherd_cuda_stream(r.engine), gate_pass, &g));
        passes(&r);
        sherd_step_report_init(&report);
        CHECK_OK(sherd_step_wait(r.engine, &report));
        CHECK_INT(2, report.step);
        CHECK(i == 0 || report.update_s > 0);
        CHECK_INT(0, sem_post(&g.open));
        (void)rig_step(&r);
        CHECK_INT(0, g.is_late);
        rig_close(&r);
        CHECK_INT(0, sem_destroy(&g.open));
    }
}

static void a_report_waits_for_nothing_that_was_queued_behind_its_step(void)
{
    test_world(1, report_beside, NULL);
}

/* Does a step, and expects that a wait has all of its times, and leaves none for the next step. */
static void step_timed(rig *r)
{
    sherd_step_report report;

    micro_batch(r, 0);
    sherd_step_report_init(&report);
    CHECK_OK(sherd_step_wait(r->engine, &report));
    CHECK(report.update_s > 0 && report.step_s > 0 && report.norm_s > 0);
    CHECK(report.step_s >= report.update_s);
    CHECK_INT(r->engine->times.own->begun, r->engine->times.own->resolved);
}

/* The times of each report are those of its own step, however late the device is. */
static void wait_for_times(sherd_world *world, void *ctx)
{
    const rig_options options = {
        .stage = 3, .dtype = SHERD_BF16, .top = ", \"wall_clock_breakdown\": true"};
    rig r;

    (void)ctx;
    declare(&r, world, &options);
    rig_seal(&r);
    for (int i = 0; i < 20; i++) {
        step_timed(&r);
    }
    rig_close(&r);
}

static void a_report_is_complete_behind_its_wait(void)
{
    test_world(1, wait_for_times, NULL);
}

/* A step that is prepared and discarded does not end the counting of times. */
static void discard_in_between(sherd_world *world, void *ctx)
{
    const rig_options options = {
        .stage = 2, .dtype = SHERD_F32, .top = ", \"wall_clock_breakdown\": true"};
    rig r;

    (void)ctx;
    declare(&r, world, &options);
    rig_seal(&r);
    micro_batch(&r, 0);
    rig_micro_batch(&r);
    CHECK_OK(sherd_step_prepare(r.engine, NULL));
    CHECK_OK(sherd_step_discard(r.engine));
    for (int i = 0; i < 3; i++) {
        step_timed(&r);
    }
    rig_close(&r);
}

static void times_go_on_behind_a_discarded_step(void)
{
    test_world(1, discard_in_between, NULL);
}

static size_t outside_of(const rig *r)
{
    sherd_memory_report memory;

    sherd_memory_report_init(&memory);
    CHECK_OK(sherd_engine_memory(r->engine, &memory));
    return memory.device_outside_held;
}

/* What the engine holds does not count, nor what another engine of this process gives back. */
static void outside(sherd_world *world, void *ctx)
{
    const rig_options options = {.stage = 3, .dtype = SHERD_BF16};
    size_t            before, beside;
    void             *others;
    rig               r, more;

    (void)ctx;
    declare(&r, world, &options);
    rig_seal(&r);
    micro_batch(&r, 0);
    before = outside_of(&r);
    CHECK(before < 1 << 20);
    CHECK(cudaMalloc(&others, 3 << 20) == cudaSuccess);
    CHECK_INT(before + (3 << 20), outside_of(&r));
    CHECK(cudaFree(others) == cudaSuccess);
    declare(&more, world, &options);
    rig_seal(&more);
    beside = outside_of(&r);
    CHECK(beside > before);
    rig_close(&more);
    CHECK_INT(before, outside_of(&r));
    rig_close(&r);
}

static void memory_of_others_is_measured(void)
{
    test_world(1, outside, NULL);
}

static const test_case CASES[] = {
    CASE(the_host_waits_twice_in_a_step),
    CASE(an_offloaded_step_waits_for_what_the_host_needs),
    CASE(a_fill_waits_once_for_a_portion),
    CASE(a_report_waits_for_nothing_that_was_queued_behind_its_step),
    CASE(a_report_is_complete_behind_its_wait),
    CASE(times_go_on_behind_a_discarded_step),
    CASE(memory_of_others_is_measured),
    CASE(the_trainers_own_stream_changes_nothing),
    CASE(default_streams_are_streams_of_the_trainers_own),
};

RUN_MAIN(CASES)
