/* In which order a queued step goes on: a gate holds the updater before each unit, however long it
 * takes, and the trainer's calls go on up to that unit. Nothing is timed: a wait for more than a
 * call needs would never end. */
#include "engine/run/engine_impl.h"
#include "engine/run/updater.h"
#include "tests/engine/rig.h"
#include "tests/engine/tier_rows.h"
#include "tests/engine/toy.h"
#include "tests/lib/check.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

/* Stands before the updater's operations. */
typedef struct gate {
    pthread_mutex_t lock;
    pthread_cond_t  moved;
    int             open;    /* updates of units below it pass */
    int             reached; /* the unit of the last update that came to the gate; -1: none has */
    sherdi_op_fn    fn;      /* after it */
    void           *ctx;
} gate;

static sherd_status gate_pass(void *ctx, const sherdi_op *op)
{
    gate *g = ctx;

    if (op->kind == SHERDI_OP_UPDATE) {
        (void)pthread_mutex_lock(&g->lock);
        g->reached = op->unit;
        (void)pthread_cond_broadcast(&g->moved);
        while (op->unit >= g->open) {
            (void)pthread_cond_wait(&g->moved, &g->lock);
        }
        (void)pthread_mutex_unlock(&g->lock);
    }
    return g->fn(g->ctx, op);
}

static void gate_open(gate *g, int units)
{
    (void)pthread_mutex_lock(&g->lock);
    g->open = units;
    (void)pthread_cond_broadcast(&g->moved);
    (void)pthread_mutex_unlock(&g->lock);
}

/* Waits until the updater stands before a unit. */
static void gate_await(gate *g, int unit)
{
    (void)pthread_mutex_lock(&g->lock);
    while (g->reached < unit) {
        (void)pthread_cond_wait(&g->moved, &g->lock);
    }
    CHECK_INT(unit, g->reached);
    (void)pthread_mutex_unlock(&g->lock);
}

static void gate_set(gate *g, sherd_engine *engine)
{
    *g = (gate){.reached = -1,
                .fn      = engine->updater.own->program.fn,
                .ctx     = engine->updater.own->program.ctx};
    CHECK_INT(0, pthread_mutex_init(&g->lock, NULL));
    CHECK_INT(0, pthread_cond_init(&g->moved, NULL));
    engine->updater.own->program.fn  = gate_pass;
    engine->updater.own->program.ctx = g;
}

static void gate_end(gate *g)
{
    (void)pthread_cond_destroy(&g->moved);
    (void)pthread_mutex_destroy(&g->lock);
}

typedef struct run_case {
    rig_options options;
    uint64_t    fingerprints[2]; /* with the gate; of waited steps */
} run_case;

static int is_behind_walk(const rig *r)
{
    return r->engine->plan->rings[SHERDI_RING_STATE].num_extents > 0 &&
           r->engine->plan->packing.buffers[SHERDI_BUFFER_PARAM_RING].bytes > 0;
}

/* The forward of each unit is over, on the device too, while the updater stands before the next
 * one. */
static void forward_behind_the_gate(rig *r, gate *g)
{
    for (int u = 0; u < r->num_units; u++) {
        gate_await(g, u); /* so nothing of it is updated */
        gate_open(g, is_behind_walk(r) ? r->num_units : u + 1);
        rig_forward(r, u, SHERD_FORWARD);
        if (is_behind_walk(r)) {
            return;
        }
    }
}

static void run_gated(sherd_world *world, void *raw)
{
    run_case *run = raw;
    uint64_t  fingerprint;
    rig       r;
    gate      g;

    rig_open(&r, world, &run->options);
    rig_three(&r, 3000);
    rig_seal(&r);
    gate_set(&g, r.engine);
    for (int step = 0; step < 3; step++) {
        rig_micro_batch(&r);
        if (step > 0) {
            CHECK_OK(sherd_step_wait(r.engine, NULL));
        }
        g.open    = 0;
        g.reached = -1;
        CHECK_OK(sherd_step_queue(r.engine)); /* returns before anything is updated */
        r.micro++;
        forward_behind_the_gate(&r, &g);
        CHECK_OK(sherd_step_discard(r.engine));
    }
    fingerprint = rig_fingerprint(&r);
    if (sherd_world_rank(world) == 0) {
        run->fingerprints[0] = fingerprint;
    }
    rig_close(&r);
    gate_end(&g);
}

static void run_waited(sherd_world *world, void *raw)
{
    run_case *run = raw;
    uint64_t  fingerprint;
    rig       r;

    rig_open(&r, world, &run->options);
    rig_three(&r, 3000);
    rig_seal(&r);
    (void)rig_train(&r, 3);
    fingerprint = rig_fingerprint(&r);
    if (sherd_world_rank(world) == 0) {
        run->fingerprints[1] = fingerprint;
    }
    rig_close(&r);
}

static void acquires_wait_for_their_unit_alone(void)
{
    char zero[512];
    int  most_ranks = getenv("SHERD_BACKEND") == NULL ? 3 : 1;

    for (size_t i = FIRST_OFFLOADED; i < NUM_TIER_ROWS; i++) {
        (void)snprintf(zero, sizeof(zero), TIER_ROWS[i].zero, test_scratch(), test_scratch());
        for (int stage = TIER_ROWS[i].least_stage; stage <= 3; stage++) {
            for (int ranks = 1; ranks <= most_ranks; ranks++) {
                run_case run = {.options = {.stage = stage, .dtype = SHERD_BF16, .zero = zero}};

                test_world(ranks, run_gated, &run);
                test_world(ranks, run_waited, &run);
                CHECK(run.fingerprints[0] == run.fingerprints[1]);
            }
        }
    }
}

static const test_case CASES[] = {
    CASE(acquires_wait_for_their_unit_alone),
};

RUN_MAIN(CASES)
