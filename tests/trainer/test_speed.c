/* What a run's steps take: the median that its share of the peak is taken from. */
#include "tests/lib/check.h"

#include "trainer/speed.h"

static void median_is_none_without_a_step(void)
{
    speed_times times = {.count = 0};

    CHECK_CLOSE(0.0, speed_median(&times), 0);
    speed_add(&times, 0.25);
    CHECK_CLOSE(0.25, speed_median(&times), 0);
}

/* The first ones are slow, one stood still. */
static void median_leaves_out_the_warm_up_and_what_is_odd(void)
{
    static const double SECONDS[] = {30.0, 9.0, 8.0, 7.0, 6.0, 0.5, 0.25, 40.0, 0.5, 0.75};
    speed_times         times     = {.count = 0};

    for (size_t i = 0; i < sizeof(SECONDS) / sizeof(SECONDS[0]); i++) {
        speed_add(&times, SECONDS[i]);
    }
    CHECK_CLOSE(0.5, speed_median(&times), 0);
}

static void median_of_few_steps_is_of_the_later_half(void)
{
    speed_times times = {.count = 0};

    for (int i = 0; i < 4; i++) {
        speed_add(&times, i < 2 ? 100.0 : i);
    }
    CHECK_CLOSE(2.5, speed_median(&times), 0);
}

static void median_of_a_long_run_is_of_its_end(void)
{
    speed_times times = {.count = 0};

    for (int i = 0; i < 3 * SPEED_KEPT_STEPS; i++) {
        speed_add(&times, i < 2 * SPEED_KEPT_STEPS ? 3.0 : 2.0);
    }
    CHECK_CLOSE(2.0, speed_median(&times), 0);
}

static const test_case cases[] = {
    CASE(median_is_none_without_a_step),
    CASE(median_leaves_out_the_warm_up_and_what_is_odd),
    CASE(median_of_few_steps_is_of_the_later_half),
    CASE(median_of_a_long_run_is_of_its_end),
};

RUN_MAIN(cases)
