/* Orders of passes, as planned and otherwise. The same training, done in two ways, must give the
 * same bits. */
#include "tests/engine/ways.h"
#include "tests/lib/check.h"

#include <stdio.h>

/* ---------------------------------------------- a parameter used twice ---- */

/* Ties them by letting the head read the embedding. */
static uint64_t train_tied_by_reading(sherd_world *world, const rig_options *options)
{
    rig r;

    ways_declare_tied(&r, world, options);
    CHECK_OK(sherd_unit_reads(r.engine, r.units[2], r.params[0].handle));
    /* a second call changes nothing */
    CHECK_OK(sherd_unit_reads(r.engine, r.units[2], r.params[0].handle));
    rig_seal(&r);
    for (int k = 0; k < 4; k++) {
        rig_forward(&r, 0, SHERD_FORWARD);
        rig_forward(&r, 1, SHERD_FORWARD);
        rig_acquire(&r, 2, SHERD_FORWARD);
        (void)rig_read(&r, 0);
        rig_release(&r, 2, SHERD_FORWARD);
        rig_acquire(&r, 2, SHERD_BACKWARD);
        rig_touch(&r, 2, 1);
        rig_touch(&r, 0, 0.5f);
        rig_release(&r, 2, SHERD_BACKWARD);
        rig_backward(&r, 1);
        rig_backward(&r, 0);
        (void)rig_step(&r);
    }
    return ways_close(&r, 4 / options->accumulation);
}

/* Ties them by acquiring the embedding twice in each pass. */
static uint64_t train_tied_by_acquiring_twice(sherd_world *world, const rig_options *options)
{
    static const int FORWARD[]  = {0, 1, 0, 2};
    static const int BACKWARD[] = {2, 0, 1, 0};
    rig              r;

    ways_declare_tied(&r, world, options);
    for (int i = 0; i < 4; i++) {
        CHECK_OK(sherd_pass_add(r.engine, SHERD_FORWARD, r.units[FORWARD[i]]));
        CHECK_OK(sherd_pass_add(r.engine, SHERD_BACKWARD, r.units[BACKWARD[i]]));
    }
    rig_seal(&r);
    for (int k = 0; k < 4; k++) {
        for (int i = 0; i < 4; i++) {
            rig_forward(&r, FORWARD[i], SHERD_FORWARD);
        }
        rig_backward(&r, 2);
        rig_acquire(&r, 0, SHERD_BACKWARD);
        rig_touch(&r, 0, 0.5f);
        rig_release(&r, 0, SHERD_BACKWARD);
        rig_backward(&r, 1);
        rig_backward(&r, 0);
        (void)rig_step(&r);
    }
    return ways_close(&r, 4 / options->accumulation);
}

/* Holds head and embedding at the same time; in backward the head, which reads the embedding, comes
 * first. */
static uint64_t train_tied_nested(sherd_world *world, const rig_options *options)
{
    rig r;

    ways_declare_tied(&r, world, options);
    CHECK_OK(sherd_unit_reads(r.engine, r.units[2], r.params[0].handle));
    rig_seal(&r);
    for (int k = 0; k < 4; k++) {
        rig_acquire(&r, 0, SHERD_FORWARD);
        rig_acquire(&r, 2, SHERD_FORWARD);
        rig_release(&r, 0, SHERD_FORWARD);
        (void)rig_read(&r, 0); /* as the head reads it */
        rig_release(&r, 2, SHERD_FORWARD);
        rig_acquire(&r, 2, SHERD_BACKWARD);
        rig_acquire(&r, 0, SHERD_BACKWARD);
        rig_touch(&r, 2, 1);
        rig_touch(&r, 0, 0.5f);
        rig_release(&r, 2, SHERD_BACKWARD);
        rig_touch(&r, 0, 1);
        rig_release(&r, 0, SHERD_BACKWARD);
        rig_backward(&r, 1);
        (void)rig_step(&r);
    }
    return ways_close(&r, 4 / options->accumulation);
}

static void tied_by_reading_equals_acquired_twice(void)
{
    ways_expect_same(train_tied_by_reading, train_tied_by_acquiring_twice, 3);
}

static void tied_nested_equals_tied_in_turn(void)
{
    ways_expect_same(train_tied_by_reading, train_tied_nested, 3);
}

/* ------------------------------------------------------ orders of passes -- */

/* Runs forward again before each backward, or inside it. */
static uint64_t train_recomputing(sherd_world *world, const rig_options *options, int is_inside)
{
    rig r;

    ways_declare_layers(&r, world, options);
    rig_seal(&r);
    for (int k = 0; k < 4; k++) {
        for (int u = 0; u < 4; u++) {
            rig_forward(&r, u, SHERD_FORWARD);
        }
        for (int u = 3; u >= 0; u--) {
            if (!is_inside) {
                rig_forward(&r, u, SHERD_FORWARD);
                rig_backward(&r, u);
                continue;
            }
            rig_acquire(&r, u, SHERD_BACKWARD);
            rig_forward(&r, u, SHERD_FORWARD);
            rig_touch(&r, 2 * u, 1);
            rig_touch(&r, 2 * u + 1, 1);
            rig_release(&r, u, SHERD_BACKWARD);
        }
        (void)rig_step(&r);
    }
    return ways_close(&r, 4 / options->accumulation);
}

static uint64_t train_recomputing_before(sherd_world *world, const rig_options *options)
{
    return train_recomputing(world, options, 0);
}

static uint64_t train_recomputing_inside(sherd_world *world, const rig_options *options)
{
    return train_recomputing(world, options, 1);
}

static void recomputation_before_backward_changes_nothing(void)
{
    ways_expect_same(ways_train_as_planned, train_recomputing_before, 3);
}

static void recomputation_inside_backward_changes_nothing(void)
{
    ways_expect_same(ways_train_as_planned, train_recomputing_inside, 3);
}

/* Makes EVAL passes between micro-batches, inside forward and backward, and while other units are
 * held. */
static uint64_t train_with_eval(sherd_world *world, const rig_options *options)
{
    rig r;

    ways_declare_layers(&r, world, options);
    rig_seal(&r);
    for (int k = 0; k < 4; k++) {
        rig_forward(&r, 0, SHERD_FORWARD);
        for (int pass = 0; pass < 2 * k; pass++) {
            for (int u = 0; u < 4; u++) {
                rig_forward(&r, u, SHERD_EVAL);
            }
        }
        for (int u = 1; u < 4; u++) {
            rig_forward(&r, u, SHERD_FORWARD);
        }
        rig_backward(&r, 3);
        rig_forward(&r, 1, SHERD_EVAL);
        rig_acquire(&r, 2, SHERD_BACKWARD);
        rig_forward(&r, 2, SHERD_EVAL);
        rig_touch(&r, 4, 1);
        rig_touch(&r, 5, 1);
        rig_release(&r, 2, SHERD_BACKWARD);
        rig_backward(&r, 1);
        rig_backward(&r, 0);
        (void)rig_step(&r);
        rig_forward(&r, 3, SHERD_EVAL);
    }
    return ways_close(&r, 4 / options->accumulation);
}

static void eval_anywhere_changes_nothing(void)
{
    ways_expect_same(ways_train_as_planned, train_with_eval, 3);
}

/* Uses another order in every micro-batch, the same on all ranks. */
static uint64_t train_off_the_plan(sherd_world *world, const rig_options *options)
{
    uint64_t state = 11;
    rig      r;

    ways_declare_layers(&r, world, options);
    rig_seal(&r);
    for (int k = 0; k < 4; k++) {
        int order[4] = {0, 1, 2, 3};

        for (int i = 3; i > 0; i--) {
            int j    = (int)(test_random(&state) % (uint64_t)(i + 1));
            int swap = order[i];

            order[i] = order[j];
            order[j] = swap;
        }
        for (int i = 0; i < 4; i++) {
            rig_forward(&r, (int)(test_random(&state) % 4), SHERD_FORWARD);
            rig_forward(&r, order[3 - i], SHERD_FORWARD);
        }
        for (int i = 0; i < 4; i++) {
            rig_backward(&r, order[i]);
        }
        (void)rig_step(&r);
    }
    return ways_close(&r, 4 / options->accumulation);
}

static void orders_off_the_plan_change_nothing(void)
{
    ways_expect_same(ways_train_as_planned, train_off_the_plan, 3);
}

/* If passes are listed only in part, the other units work too, off the plan. */
static uint64_t train_with_passes_in_part(sherd_world *world, const rig_options *options)
{
    rig r;

    ways_declare_layers(&r, world, options);
    CHECK_OK(sherd_pass_add(r.engine, SHERD_FORWARD, r.units[1]));
    CHECK_OK(sherd_pass_add(r.engine, SHERD_BACKWARD, r.units[3]));
    CHECK_OK(sherd_pass_add(r.engine, SHERD_BACKWARD, r.units[1]));
    rig_seal(&r);
    (void)rig_train(&r, 4);
    return ways_close(&r, 4 / options->accumulation);
}

static void passes_listed_in_part_change_nothing(void)
{
    ways_expect_same(ways_train_as_planned, train_with_passes_in_part, 3);
}

/* Off the plan, units that were gathered ahead may split the memory that a reader needs together
 * with the unit that it reads. Every single acquire must find room all the same. */
static void acquire_anything(sherd_world *world, void *raw)
{
    static const char *const UNITS[]  = {"a", "b", "c", "d", "e", "f"};
    static const char *const PARAMS[] = {"a.w", "b.w", "c.w", "d.w", "e.w", "f.w"};
    uint64_t                 state    = *(const uint64_t *)raw;
    char                     zero[160];
    rig_options              options = {.stage = 3, .zero = zero};
    rig                      r;

    (void)snprintf(zero, sizeof(zero),
                   ", \"stage3_prefetch_bucket_size\": %d, \"stage3_max_reuse_distance\": %d,"
                   "\"overlap_comm\": false",
                   (int)(test_random(&state) % 12000), (int)(test_random(&state) % 8000));
    rig_open(&r, world, &options);
    for (int u = 0; u < 6; u++) {
        (void)rig_unit(&r, UNITS[u]);
        (void)rig_param(&r, u, PARAMS[u], 1 + 1024 * (test_random(&state) % 6));
    }
    for (int i = 0; i < 5; i++) {
        CHECK_OK(sherd_unit_reads(r.engine, r.units[test_random(&state) % 6],
                                  r.params[test_random(&state) % 6].handle));
    }
    rig_seal(&r);
    for (int i = 0; i < 40; i++) {
        sherd_pass pass = test_random(&state) % 3 > 0 ? SHERD_FORWARD : SHERD_EVAL;

        /* in order for a while, then in any order */
        rig_forward(&r, i / 10 % 2 == 0 ? i % 6 : (int)(test_random(&state) % 6), pass);
    }
    rig_close(&r);
}

static void single_acquires_always_find_room(void)
{
    for (uint64_t seed = 1; seed <= 400; seed++) {
        test_world(2, acquire_anything, &seed);
    }
}

/* A reader that no pass lists needs, with the unit that it reads, more memory than any planned
 * acquire. */
static void acquire_an_unlisted_reader(sherd_world *world, void *raw)
{
    rig r;

    rig_open(&r, world, raw);
    (void)rig_unit(&r, "small");
    (void)rig_unit(&r, "table");
    (void)rig_unit(&r, "reader");
    (void)rig_param(&r, 0, "small.w", 10);
    (void)rig_param(&r, 1, "table.w", 5000);
    (void)rig_param(&r, 2, "reader.w", 5000);
    CHECK_OK(sherd_unit_reads(r.engine, r.units[2], r.params[1].handle));
    CHECK_OK(sherd_pass_add(r.engine, SHERD_FORWARD, r.units[0]));
    rig_seal(&r);
    rig_forward(&r, 2, SHERD_FORWARD);
    rig_acquire(&r, 2, SHERD_BACKWARD);
    rig_touch(&r, 1, 1);
    rig_touch(&r, 2, 1);
    rig_release(&r, 2, SHERD_BACKWARD);
    CHECK_INT(1, rig_step(&r).was_updated);
    rig_close(&r);
}

static void reader_that_no_pass_lists_finds_room(void)
{
    ways_on_every_stage(2, acquire_an_unlisted_reader);
}

static const test_case CASES[] = {
    CASE(tied_by_reading_equals_acquired_twice),
    CASE(tied_nested_equals_tied_in_turn),
    CASE(recomputation_before_backward_changes_nothing),
    CASE(recomputation_inside_backward_changes_nothing),
    CASE(eval_anywhere_changes_nothing),
    CASE(orders_off_the_plan_change_nothing),
    CASE(passes_listed_in_part_change_nothing),
    CASE(single_acquires_always_find_room),
    CASE(reader_that_no_pass_lists_finds_room),
};

RUN_MAIN(CASES)
