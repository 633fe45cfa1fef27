/* Activations: backward reads what forward wrote, on every tier, in the memory that was planned,
 * with the moves that were planned. */
#include "engine/run/engine_impl.h"
#include "engine/report.h"
#include "kernels/lanes.h"
#include "tests/engine/rig.h"
#include "tests/engine/tier_rows.h"
#include "tests/lib/check.h"

#ifdef TEST_EMULATED
#include "tests/emulator/emulator.h"

#include <pthread.h>
#endif
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define UNITS 7
#define MOST  12000 /* elements of an activation */

#define FAILS(status, part, call)                                                                  \
    do {                                                                                           \
        CHECK_STATUS(status, call);                                                                \
        CHECK_ERROR_SAYS(part);                                                                    \
    } while (0)

/* Odd sizes, the longest in the middle. */
static const size_t ELEMS[UNITS] = {1, 1024, 5000, MOST, 1023, 0, 3000};

typedef struct run_case {
    rig_options options;
    const char *devices[UNITS]; /* of each unit; NULL: as configured */
    int         is_reversed;    /* backward in the order of forward */
    int         is_queued;      /* updates overlap with the passes that follow */
    int         skipped; /* unit whose backward does not get its activation, from 1 on; 0: none */
    uint64_t    fingerprint; /* result */
} run_case;

static float value_of(int64_t micro, int rank, int unit, size_t index)
{
    return (float)(micro * 1000003 + rank * 7919 + unit * 104729 + (int)index);
}

static void put(rig *r, int unit)
{
    float values[MOST];
    void *memory = NULL;

    for (size_t i = 0; i < ELEMS[unit]; i++) {
        values[i] = value_of(r->micro, sherd_world_rank(r->world), unit, i);
    }
    CHECK_OK(sherd_activation_put(r->engine, r->units[unit], &memory));
    CHECK((uintptr_t)memory % 4096 == 0);
    CHECK_OK(sherd_copy(r->engine, memory, values, ELEMS[unit] * sizeof(float)));
}

static void get(rig *r, int unit)
{
    float values[MOST];
    void *memory = NULL;

    CHECK_OK(sherd_activation_get(r->engine, r->units[unit], &memory));
    CHECK_OK(sherd_copy(r->engine, values, memory, ELEMS[unit] * sizeof(float)));
    for (size_t i = 0; i < ELEMS[unit]; i++) {
        if (values[i] != value_of(r->micro, sherd_world_rank(r->world), unit, i)) {
            CHECK_INT(i, ELEMS[unit]); /* the first that differs */
        }
    }
}

static void forward(rig *r, int unit)
{
    rig_acquire(r, unit, SHERD_FORWARD);
    if (ELEMS[unit] > 0) {
        put(r, unit);
    }
    rig_release(r, unit, SHERD_FORWARD);
}

static void backward(rig *r, int unit, int is_skipped)
{
    rig_acquire(r, unit, SHERD_BACKWARD);
    rig_touch(r, unit, 1);
    if (ELEMS[unit] > 0 && !is_skipped) {
        get(r, unit);
    }
    rig_release(r, unit, SHERD_BACKWARD);
}

static void micro_batch(rig *r, const run_case *run)
{
    for (int u = 0; u < UNITS; u++) {
        forward(r, u);
    }
    for (int i = 0; i < UNITS; i++) {
        int u = run != NULL && run->is_reversed ? i : UNITS - 1 - i;

        backward(r, u, run != NULL && run->skipped == u + 1);
    }
}

static void activations_add(rig *r, const run_case *run)
{
    sherd_activation_params params;

    sherd_activation_params_init(&params);
    for (int u = 0; u < UNITS; u++) {
        params.len_bytes = ELEMS[u] * sizeof(float);
        params.device    = run->devices[u];
        if (ELEMS[u] > 0) {
            CHECK_OK(sherd_activation_add(r->engine, r->units[u], &params));
        }
    }
}

static void model_open(rig *r, sherd_world *world, const run_case *run)
{
    char        name[32], zero[1024], top[1024];
    rig_options options = run->options;

    if (options.zero != NULL) {
        (void)snprintf(zero, sizeof(zero), options.zero, test_scratch(), test_scratch());
    }
    if (options.top != NULL) {
        (void)snprintf(top, sizeof(top), options.top, test_scratch());
    }
    options.zero = options.zero == NULL ? NULL : zero;
    options.top  = options.top == NULL ? NULL : top;
    rig_open(r, world, &options);
    for (int u = 0; u < UNITS; u++) {
        (void)snprintf(name, sizeof(name), "u%d", u);
        (void)rig_unit(r, name);
        (void)snprintf(name, sizeof(name), "p%d", u);
        (void)rig_param(r, u, name, 700 + 100 * (size_t)u);
    }
    activations_add(r, run);
    for (int u = 0; run->is_reversed && u < UNITS; u++) {
        CHECK_OK(sherd_pass_add(r->engine, SHERD_BACKWARD, r->units[u]));
    }
    rig_seal(r);
}

/* What the plan says that a step moves, by medium. */
static uint64_t planned(const rig *r, sherdi_medium medium)
{
    return sherdi_plan_moved(r->engine->plan, medium);
}

static void memory_check(rig *r)
{
    sherd_memory_report memory;

    sherd_memory_report_init(&memory);
    CHECK_OK(sherd_engine_memory(r->engine, &memory));
    CHECK_INT(memory.activations_planned, memory.activations_held);
    CHECK_INT(memory.host_activations_planned, memory.host_activations_held);
    CHECK_INT(memory.total_planned, memory.total_held);
}

/* A pass of EVAL has the same memory to write to, and leaves nothing. */
static void evaluate(rig *r)
{
    for (int u = 0; u < UNITS; u++) {
        rig_acquire(r, u, SHERD_EVAL);
        if (ELEMS[u] > 0) {
            put(r, u);
        }
        rig_release(r, u, SHERD_EVAL);
    }
}

static sherd_step_report step_end(rig *r, const run_case *run)
{
    sherd_step_report report;

    if (!run->is_queued) {
        return rig_step(r);
    }
    sherd_step_report_init(&report);
    CHECK_OK(sherd_step_queue(r->engine));
    r->micro++;
    return report;
}

static void run_steps(sherd_world *world, void *raw)
{
    run_case         *run    = raw;
    int               micros = run->options.accumulation == 0 ? 1 : run->options.accumulation;
    sherd_step_report report;
    rig               r;

    model_open(&r, world, run);
    memory_check(&r);
    for (int step = 0; step < 4; step++) {
        for (int m = 0; m < micros; m++) {
            micro_batch(&r, run);
            report = step_end(&r, run);
        }
        if (step == 0) {
            evaluate(&r);
        }
        if (step > 1 && run->skipped == 0 && !run->is_queued) {
            CHECK_INT(planned(&r, SHERDI_MOVES_DOWN), report.link_down_bytes);
            CHECK_INT(planned(&r, SHERDI_MOVES_UP), report.link_up_bytes);
        }
    }
    if (run->is_queued) {
        CHECK_OK(sherd_step_wait(r.engine, &report));
    }
    if (sherd_world_rank(world) == 0) {
        run->fingerprint = report.fingerprint;
    }
    rig_close(&r);
}

/* ------------------------------------------------------------------- rows -- */

#define ACTIVATIONS(device, more)                                                                  \
    ", \"sherd\": {\"activations\": {\"device\": \"" device "\", \"nvme_path\": \"%s\"" more "}}"

static const char *const TOPS[] = {
    "",
    ACTIVATIONS("cpu", ""),
    ACTIVATIONS("cpu", ", \"buffer_count\": 1"),
    ACTIVATIONS("cpu", ", \"buffer_count\": 3, \"pin_memory\": false"),
    ACTIVATIONS("cpu", ", \"buffer_count\": 100"),
    ACTIVATIONS("nvme", ""),
    ACTIVATIONS("nvme", ", \"buffer_count\": 1"),
    ACTIVATIONS("nvme", ", \"buffer_count\": 3"),
};

static uint64_t fingerprint_of(int world_size, const rig_options *options, const run_case *more)
{
    run_case run = more == NULL ? (run_case){0} : *more;

    run.options = *options;
    test_world(world_size, run_steps, &run);
    return run.fingerprint;
}

static void backward_reads_what_forward_wrote(void)
{
    for (int world = 1; world <= 2; world++) {
        for (int stage = 0; stage <= 3; stage += 3) {
            rig_options options = {.stage = stage, .accumulation = 1 + world % 2};
            uint64_t    plain   = fingerprint_of(world, &options, NULL);

            for (size_t t = 0; t < sizeof(TOPS) / sizeof(TOPS[0]); t++) {
                options.top = TOPS[t];
                CHECK_INT(plain, fingerprint_of(world, &options, NULL));
            }
        }
    }
}

/* Together with offloaded state and parameters, and during their updates. */
static void every_tier_of_the_rest(void)
{
    for (size_t row = FIRST_OFFLOADED; row < NUM_TIER_ROWS; row++) {
        rig_options options = {.stage = 3, .zero = TIER_ROWS[row].zero};
        uint64_t    plain   = fingerprint_of(1, &options, NULL);

        options.top = TOPS[1 + row % 2 * 4];
        CHECK_INT(plain, fingerprint_of(1, &options, NULL));
        CHECK_INT(plain, fingerprint_of(1, &options, &(run_case){.is_queued = 1}));
    }
}

static void units_on_tiers_of_their_own(void)
{
    rig_options options = {.stage = 2, .top = ACTIVATIONS("none", ", \"buffer_count\": 1")};
    run_case    mixed   = {.devices = {"cpu", "nvme", "cpu", NULL, "nvme", NULL, "nvme"}};

    CHECK_INT(fingerprint_of(1, &options, NULL), fingerprint_of(1, &options, &mixed));
}

/* Backward declared in another order, and without the activation of a unit: slower, and right. */
static void in_other_orders(void)
{
    for (size_t t = 1; t < sizeof(TOPS) / sizeof(TOPS[0]); t++) {
        rig_options options  = {.stage = 1, .top = TOPS[t]};
        run_case    reversed = {.is_reversed = 1};
        uint64_t    plain    = fingerprint_of(1, &options, NULL);

        CHECK_INT(plain, fingerprint_of(1, &options, &reversed));
        for (int u = 1; u <= UNITS; u++) {
            run_case skipped = {.skipped = u};

            CHECK_INT(plain, fingerprint_of(1, &options, &skipped));
        }
    }
}

/* ---------------------------------------------------------------- refused -- */

static void window_drop(sherd_world *world, void *raw)
{
    run_case *run = raw;
    rig       r;
    void     *memory;

    model_open(&r, world, run);
    for (int units = 0; units <= UNITS; units++) { /* dropped in forward, at every unit */
        for (int u = 0; u < units; u++) {
            forward(&r, u);
        }
        CHECK_OK(sherd_step_discard(r.engine));
    }
    for (int units = 0; units <= UNITS; units++) { /* ... and in backward */
        for (int u = 0; u < UNITS; u++) {
            forward(&r, u);
        }
        for (int u = 0; u < units; u++) {
            backward(&r, UNITS - 1 - u, 0);
        }
        CHECK_OK(sherd_step_discard(r.engine));
    }
    rig_acquire(&r, 3, SHERD_BACKWARD); /* what the dropped window put is gone */
    CHECK_STATUS(SHERD_E_STATE, sherd_activation_get(r.engine, r.units[3], &memory));
    rig_release(&r, 3, SHERD_BACKWARD);
    CHECK_OK(sherd_step_discard(r.engine));
    micro_batch(&r, NULL);
    run->fingerprint = rig_step(&r).fingerprint;
    rig_close(&r);
}

static void a_dropped_window_leaves_nothing(void)
{
    for (size_t t = 0; t < sizeof(TOPS) / sizeof(TOPS[0]); t++) {
        run_case run = {.options = {.stage = 2, .top = TOPS[t]}};

        test_world(1, window_drop, &run);
    }
}

static void calls_refuse(sherd_world *world, void *raw)
{
    run_case run = {.options = {.stage = 1, .top = ACTIVATIONS("cpu", ", \"buffer_count\": 1")}};
    rig      r;
    void    *memory;

    (void)raw;
    model_open(&r, world, &run);
    FAILS(SHERD_E_INVAL, "unit 99 does not exist", sherd_activation_put(r.engine, 99, &memory));
    FAILS(SHERD_E_STATE, "no activation", sherd_activation_put(r.engine, r.units[5], &memory));
    FAILS(SHERD_E_STATE, "not acquired for forward",
          sherd_activation_put(r.engine, r.units[0], &memory));
    rig_acquire(&r, 0, SHERD_FORWARD);
    FAILS(SHERD_E_INVAL, "out is NULL", sherd_activation_put(r.engine, r.units[0], NULL));
    FAILS(SHERD_E_STATE, "not acquired for backward",
          sherd_activation_get(r.engine, r.units[0], &memory));
    CHECK_OK(sherd_activation_put(r.engine, r.units[0], &memory));
    FAILS(SHERD_E_STATE, "already", sherd_activation_put(r.engine, r.units[0], &memory));
    rig_acquire(&r, 1, SHERD_FORWARD); /* one place, and its activation has not left */
    FAILS(SHERD_E_STATE, "that of unit u0", sherd_activation_put(r.engine, r.units[1], &memory));
    rig_release(&r, 0, SHERD_FORWARD);
    CHECK_OK(sherd_activation_put(r.engine, r.units[1], &memory));
    rig_release(&r, 1, SHERD_FORWARD);
    rig_acquire(&r, 6, SHERD_FORWARD);
    CHECK_OK(sherd_activation_put(r.engine, r.units[6], &memory)); /* the last one stays there */
    rig_release(&r, 6, SHERD_FORWARD);
    rig_acquire(&r, 2, SHERD_FORWARD);
    FAILS(SHERD_E_STATE, "that of unit u6", sherd_activation_put(r.engine, r.units[2], &memory));
    rig_release(&r, 2, SHERD_FORWARD);
    rig_acquire(&r, 2, SHERD_BACKWARD);
    FAILS(SHERD_E_STATE, "no activation was put",
          sherd_activation_get(r.engine, r.units[2], &memory));
    rig_release(&r, 2, SHERD_BACKWARD);
    CHECK_OK(sherd_step_discard(r.engine));
    rig_close(&r);
}

static void declarations_refuse(sherd_world *world, void *raw)
{
    sherd_activation_params params;
    sherd_unit_params       any     = {.struct_size = sizeof(any), .backward_uses = SHERD_USES_ANY};
    rig_options             options = {.stage = 1};
    rig                     r;
    int                     unit, open_ended;

    (void)raw;
    rig_open(&r, world, &options);
    unit       = rig_unit(&r, "one");
    open_ended = rig_unit_as(&r, "any", &any);
    (void)rig_param(&r, unit, "p", 100);
    (void)rig_param(&r, open_ended, "q", 100);
    sherd_activation_params_init(&params);
    FAILS(SHERD_E_INVAL, "params is NULL", sherd_activation_add(r.engine, r.units[unit], NULL));
    FAILS(SHERD_E_INVAL, "0 bytes", sherd_activation_add(r.engine, r.units[unit], &params));
    params.len_bytes = 100;
    FAILS(SHERD_E_INVAL, "does not exist", sherd_activation_add(r.engine, 7, &params));
    FAILS(SHERD_E_NOTSUP, "SHERD_USES_ANY",
          sherd_activation_add(r.engine, r.units[open_ended], &params));
    params.device = "tape";
    FAILS(SHERD_E_INVAL, "none|cpu|nvme", sherd_activation_add(r.engine, r.units[unit], &params));
    params.device = "nvme";
    FAILS(SHERD_E_INVAL, "sherd.activations.nvme_path",
          sherd_activation_add(r.engine, r.units[unit], &params));
    params.device = "cpu";
    CHECK_OK(sherd_activation_add(r.engine, r.units[unit], &params));
    FAILS(SHERD_E_INVAL, "already", sherd_activation_add(r.engine, r.units[unit], &params));
    CHECK_OK(sherd_pass_add(r.engine, SHERD_FORWARD, r.units[unit]));
    CHECK_OK(sherd_pass_add(r.engine, SHERD_FORWARD, r.units[unit]));
    CHECK_OK(sherd_pass_add(r.engine, SHERD_BACKWARD, r.units[unit]));
    FAILS(SHERD_E_NOTSUP, "2 times for forward", sherd_engine_seal(r.engine));
    rig_close(&r);
}

/* Two units that EVAL holds together have scratch at the same time, though there would be one
 * place. */
static void eval_hold(sherd_world *world, void *raw)
{
    static const size_t     HELD = 1;
    sherd_activation_params params;
    rig_options             options = {.stage = 1, .top = raw};
    rig                     r;
    void                   *memory[2];

    rig_open(&r, world, &options);
    sherd_activation_params_init(&params);
    params.len_bytes = 5000;
    rig_three(&r, 100);
    for (int u = 0; u < 3; u++) {
        CHECK_OK(sherd_activation_add(r.engine, r.units[u], &params));
        CHECK_OK(sherd_pass_add_held(r.engine, SHERD_EVAL, r.units[u], u == 0 ? HELD : 0));
    }
    rig_seal(&r);
    for (int u = 0; u < 2; u++) {
        rig_acquire(&r, u, SHERD_EVAL);
        CHECK_OK(sherd_activation_put(r.engine, r.units[u], &memory[u]));
    }
    CHECK(memory[0] != memory[1]);
    rig_release(&r, 1, SHERD_EVAL);
    rig_release(&r, 0, SHERD_EVAL);
    rig_close(&r);
}

static void units_held_in_eval_have_places_of_their_own(void)
{
    char top[1024];

    (void)snprintf(top, sizeof(top), ACTIVATIONS("cpu", ", \"buffer_count\": 1"), test_scratch());
    test_world(1, eval_hold, top);
}

static void wrong_calls_are_refused(void)
{
    test_world(1, calls_refuse, NULL);
    test_world(1, declarations_refuse, NULL);
}

/* ------------------------------------------------------------------ order -- */

#ifdef TEST_EMULATED

/* A gate in a lane of the link: what was given after it waits, however long, until it is
 * opened. */
typedef struct gate {
    pthread_mutex_t lock;
    pthread_cond_t  opened;
    int             open;
} gate;

static void gate_pass(void *ctx)
{
    gate *g = ctx;

    (void)pthread_mutex_lock(&g->lock);
    while (!g->open) {
        (void)pthread_cond_wait(&g->opened, &g->lock);
    }
    (void)pthread_mutex_unlock(&g->lock);
}

static void gate_open(gate *g)
{
    (void)pthread_mutex_lock(&g->lock);
    g->open = 1;
    (void)pthread_cond_broadcast(&g->opened);
    (void)pthread_mutex_unlock(&g->lock);
}

static void gate_close_in(gate *g, const sherdi_backend *lane)
{
    *g = (gate){.open = 0};
    CHECK_INT(0, pthread_mutex_init(&g->lock, NULL));
    CHECK_INT(0, pthread_cond_init(&g->opened, NULL));
    CHECK(emulator_call(sherdi_lanes_of(lane)->lane_stream(lane), gate_pass, g) == cudaSuccess);
}

static void gates_open(gate gates[UNITS], int from, int end)
{
    for (int u = end - 1; u >= from; u--) {
        gate_open(&gates[u]);
    }
}

/* The copy of each activation stands behind a gate, which is opened when somebody needs it: the
 * unit that gets the place, or the one whose activation it is. The trainer's lane is done with each
 * unit before that: sherd_copy, by which the rig reads and writes, waits for it. There are two
 * places, and unit 5 has no activation. */
static void run_gated(sherd_world *world, void *raw)
{
    /* Before the get of a unit, the gates of the releases from this unit on have to be open. */
    static const int NEEDED[UNITS] = {2, 3, 4, 6, UNITS, UNITS, UNITS};
    run_case        *run           = raw;
    rig              r;
    gate             down[UNITS], up[UNITS];

    model_open(&r, world, run);
    for (int u = 0; u < UNITS; u++) {
        gates_open(down, 0, u - 1);
        rig_acquire(&r, u, SHERD_FORWARD);
        if (ELEMS[u] > 0) {
            put(&r, u);
        }
        gate_close_in(&down[u], r.engine->lanes.down);
        rig_release(&r, u, SHERD_FORWARD);
    }
    gates_open(down, 0, UNITS);
    for (int u = UNITS - 1; u >= 0; u--) {
        rig_acquire(&r, u, SHERD_BACKWARD);
        gates_open(up, NEEDED[u], UNITS);
        if (ELEMS[u] > 0) {
            get(&r, u);
        }
        rig_touch(&r, u, 1);
        gate_close_in(&up[u], r.engine->lanes.up);
        rig_release(&r, u, SHERD_BACKWARD);
    }
    gates_open(up, 0, UNITS);
    run->fingerprint = rig_step(&r).fingerprint;
    rig_close(&r);
}

static void passes_wait_for_the_places_they_need_alone(void)
{
    run_case run = {.options = {.stage = 1, .top = ACTIVATIONS("cpu", "")}};

    if (getenv("SHERD_EMULATOR_EAGER") != NULL) {
        test_skip("what can begin at once runs on the calling thread here");
    }
    test_world(1, run_gated, &run);
    CHECK(run.fingerprint != 0);
}

#endif

static const test_case CASES[] = {
#ifdef TEST_EMULATED
    CASE(passes_wait_for_the_places_they_need_alone),
#endif
    CASE(backward_reads_what_forward_wrote),
    CASE(every_tier_of_the_rest),
    CASE(units_on_tiers_of_their_own),
    CASE(in_other_orders),
    CASE(a_dropped_window_leaves_nothing),
    CASE(units_held_in_eval_have_places_of_their_own),
    CASE(wrong_calls_are_refused),
};

RUN_MAIN(CASES)
