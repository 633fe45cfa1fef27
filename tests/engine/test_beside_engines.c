/* Several engines in one world, each with its own queued update during the calls of all of them, in
 * drawn orders, and the trainer's own collectives between. Each engine ends with the bits that it
 * has alone, where every step is waited for. */
#include "tests/collectives/ranks.h"
#include "tests/engine/rig.h"
#include "tests/engine/tier_rows.h"

#include <stdio.h>
#include <string.h>

#define ENGINES 3
#define STEPS   4
#define ORDERS  4

/* Parts of a step. An engine stays between two of them while others go on. */
typedef enum part {
    PART_FORWARD,
    PART_BACKWARD,
    PART_END,
    STEP_PARTS,
} part;

typedef struct engines_run {
    int      stage;
    uint64_t seed; /* of the order */
    uint64_t want[ENGINES];
    uint64_t got[ENGINES];
} engines_run;

typedef struct trainee {
    rig  r;
    int  step;
    part next;
} trainee;

static int row_of(int engine, int stage)
{
    int row = (int)FIRST_OFFLOADED + (engine * 3 + stage) % (int)(NUM_TIER_ROWS - FIRST_OFFLOADED);

    return TIER_ROWS[row].least_stage <= stage ? row : (int)FIRST_OFFLOADED;
}

static void trainee_open(trainee *t, sherd_world *world, int engine, int stage)
{
    char        zero[512];
    rig_options options = {.stage = stage, .dtype = SHERD_BF16, .clip = 1, .zero = zero};

    (void)snprintf(zero, sizeof(zero), TIER_ROWS[row_of(engine, stage)].zero, test_scratch(),
                   test_scratch());
    *t = (trainee){.step = 0};
    rig_open(&t->r, world, &options);
    rig_three(&t->r, 3000 + 500 * (size_t)engine);
    rig_seal(&t->r);
}

static void step_end(trainee *t, uint64_t draw)
{
    sherd_step_params params;

    sherd_step_params_init(&params);
    params.is_queued = 1;
    if (draw % 4 == 0) {
        CHECK_OK(sherd_step(t->r.engine, NULL));
    } else if (draw % 4 == 1) {
        CHECK_OK(sherd_step_prepare(t->r.engine, NULL));
        CHECK_OK(sherd_step_apply(t->r.engine, &params));
    } else {
        CHECK_OK(sherd_step_queue(t->r.engine));
    }
    t->r.micro++;
    t->step++;
}

static void part_make(trainee *t, uint64_t draw)
{
    for (int u = 0; t->next == PART_FORWARD && u < t->r.num_units; u++) {
        rig_forward(&t->r, u, SHERD_FORWARD);
    }
    for (int u = t->r.num_units; t->next == PART_BACKWARD && u-- > 0;) {
        rig_backward(&t->r, u);
    }
    if (t->next == PART_END) {
        step_end(t, draw);
    }
    t->next = (part)((t->next + 1) % STEP_PARTS);
}

/* A collective of the trainer's own, or a call of another kind between two parts. */
static void between(sherd_world *world, trainee *t, uint64_t draw)
{
    double   sum = sherd_world_rank(world) + 1;
    uint64_t fingerprint;
    int      size = sherd_world_size(world);

    switch (draw % 8) {
    case 0:
        CHECK_OK(sherd_world_barrier(world));
        break;
    case 1:
        CHECK_OK(sherd_world_sum_f64(world, &sum, 1));
        CHECK(sum > size * (size + 1) / 2 - 0.5 && sum < size * (size + 1) / 2 + 0.5);
        break;
    case 2:
        CHECK_OK(sherd_world_broadcast(world, &draw, sizeof(draw), size - 1));
        break;
    case 3:
        CHECK_OK(sherd_step_wait(t->r.engine, NULL));
        break;
    case 4:
        CHECK_OK(sherd_engine_fingerprint(t->r.engine, &fingerprint));
        break;
    default:
        break;
    }
}

/* Each engine alone, one after another. */
static void alone_train(sherd_world *world, void *raw)
{
    engines_run *run = raw;

    for (int e = 0; e < ENGINES; e++) {
        trainee  t;
        uint64_t fingerprint;

        trainee_open(&t, world, e, run->stage);
        fingerprint = rig_train(&t.r, STEPS).fingerprint;
        if (sherd_world_rank(world) == 0) {
            run->want[e] = fingerprint;
        }
        rig_close(&t.r);
    }
}

/* The engines take turns. One that has done all its steps is destroyed at once, during the updates
 * of the others. */
static void together_train(sherd_world *world, void *raw)
{
    const engines_run *run   = raw;
    uint64_t          *got   = ((engines_run *)raw)->got;
    uint64_t           state = run->seed;
    int                left  = ENGINES;
    trainee            all[ENGINES];

    for (int e = 0; e < ENGINES; e++) {
        trainee_open(&all[e], world, e, run->stage);
    }
    while (left > 0) {
        int      e    = (int)(test_random(&state) % ENGINES);
        uint64_t draw = test_random(&state);

        if (all[e].step == STEPS) {
            continue;
        }
        part_make(&all[e], draw >> 8);
        between(world, &all[e], draw >> 16);
        if (all[e].step == STEPS) {
            uint64_t fingerprint = rig_fingerprint(&all[e].r);

            if (sherd_world_rank(world) == 0) {
                got[e] = fingerprint;
            }
            rig_close(&all[e].r);
            left--;
        }
    }
}

static void bits_compare(const engines_run *run, int ranks)
{
    for (int e = 0; e < ENGINES; e++) {
        if (run->got[e] != run->want[e]) {
            test_fail(__FILE__, __LINE__,
                      "stage %d, %d ranks, seed %llu, engine %d (%s): %016llx and not %016llx",
                      run->stage, ranks, (unsigned long long)run->seed, e,
                      TIER_ROWS[row_of(e, run->stage)].name, (unsigned long long)run->got[e],
                      (unsigned long long)run->want[e]);
        }
    }
}

static void engines_that_take_turns_have_the_bits_of_each_alone(void)
{
    int orders = test_is_long() ? 10 * ORDERS : ORDERS;

    for (int stage = 1; stage <= 3; stage += 2) {
        for (int ranks = 1; ranks <= 3; ranks++) {
            engines_run run = {.stage = stage};

            test_world(ranks, alone_train, &run);
            for (int order = 0; order < orders; order++) {
                run.seed = (uint64_t)(order * 10 + stage * 3 + ranks);
                test_world(ranks, together_train, &run);
                bits_compare(&run, ranks);
            }
        }
    }
}

/* What each process runs. */
static void turns_of_a_process(void)
{
    sherd_world *world;

    CHECK_OK(sherd_world_from_env(NULL, &world));
    for (int stage = 1; stage <= 3; stage++) {
        engines_run run = {.stage = stage};

        alone_train(world, &run);
        for (run.seed = 100; run.seed < 100 + ORDERS; run.seed++) {
            together_train(world, &run);
            if (sherd_world_rank(world) == 0) {
                bits_compare(&run, sherd_world_size(world));
            }
        }
    }
    sherd_world_destroy(world);
}

static void engines_of_processes_take_turns(void)
{
    ranks_run_part(2, "turns_of_a_process", -1);
    ranks_run_part(3, "turns_of_a_process", -1);
}

/* An engine is destroyed and another one made while the first one's update is under way; neither
 * waits for the other. */
static void made_and_destroyed(sherd_world *world, void *raw)
{
    const engines_run *run = raw;
    trainee            first, other;

    trainee_open(&first, world, 0, run->stage);
    (void)rig_train(&first.r, STEPS - 1);
    for (int i = 0; i < 2; i++) {
        if (i == 0) {
            rig_micro_batch(&first.r);
            CHECK_OK(sherd_step_queue(first.r.engine));
        }
        trainee_open(&other, world, 1, run->stage);
        (void)rig_train(&other.r, STEPS - 1);
        rig_micro_batch(&other.r);
        CHECK_OK(sherd_step_queue(other.r.engine));
        if (i == 1) {
            CHECK_INT(run->want[1], rig_fingerprint(&other.r));
        }
        rig_close(&other.r);
    }
    CHECK_INT(run->want[0], rig_fingerprint(&first.r));
    rig_close(&first.r);
}

static void engines_come_and_go_beside_an_update(void)
{
    for (int stage = 1; stage <= 3; stage++) {
        engines_run run = {.stage = stage};

        test_world(3, alone_train, &run);
        test_world(3, made_and_destroyed, &run);
    }
}

static const rank_part PARTS[] = {
    PART(turns_of_a_process),
};

static const test_case CASES[] = {
    CASE(engines_that_take_turns_have_the_bits_of_each_alone),
    CASE(engines_of_processes_take_turns),
    CASE(engines_come_and_go_beside_an_update),
};

RANKS_MAIN(CASES, PARTS)
