/* The loss scaler against the cases that its state machine is known by. */
#include "engine/optimizers/scaling.h"
#include "tests/lib/check.h"

#include <float.h>
#include <string.h>

static sherdi_scaler make_scaler(double scale, int64_t scale_window, int hysteresis,
                                 double min_scale)
{
    sherdi_scaler_params params = {
        .is_dynamic    = 1,
        .initial_scale = scale,
        .scale_window  = scale_window,
        .hysteresis    = hysteresis,
        .min_scale     = min_scale,
    };
    sherdi_scaler scaler;

    sherdi_scaler_init(&scaler, &params);
    return scaler;
}

/* Feeds "." for a clean boundary and "x" for an overflow. */
static void feed(sherdi_scaler *scaler, const char *boundaries)
{
    for (; *boundaries != '\0'; boundaries++) {
        CHECK_OK(sherdi_scaler_update(scaler, *boundaries == 'x'));
    }
}

static void scaler_clean_run_doubles_each_window(void)
{
    sherdi_scaler scaler = make_scaler(256, 2, 1, 1);
    double        want   = 256;

    for (int i = 1; i <= 20; i++) {
        feed(&scaler, ".");
        want *= i % 2 == 0 ? 2 : 1;
        CHECK_CLOSE(want, scaler.scale, 0);
    }
    CHECK_INT(20, scaler.iteration);
    CHECK_INT(-1, scaler.last_overflow);
}

static void scaler_overflows_halve_down_to_the_floor_and_fail_there(void)
{
    sherdi_scaler scaler = make_scaler(16, 2, 1, 1);
    sherdi_scaler before;

    for (double want = 8; want >= 1; want /= 2) {
        feed(&scaler, "x");
        CHECK_CLOSE(want, scaler.scale, 0);
    }
    before = scaler;
    CHECK_STATUS(SHERD_E_NUMERIC, sherdi_scaler_update(&scaler, 1));
    CHECK_ERROR_SAYS("smallest loss scale 1");
    CHECK_BYTES_EQUAL(&before, &scaler, sizeof(before));
    feed(&scaler, "."); /* the window after the last overflow is 2: 1 of it is done */
    CHECK_CLOSE(1, scaler.scale, 0);
    feed(&scaler, ".");
    CHECK_CLOSE(2, scaler.scale, 0);
}

static void scaler_mixed_run_follows_the_table(void)
{
    sherdi_scaler scaler = make_scaler(256, 2, 1, 1);

    feed(&scaler, "xx");
    CHECK_CLOSE(64, scaler.scale, 0);
    feed(&scaler, "...");
    CHECK_CLOSE(128, scaler.scale, 0);
    feed(&scaler, "x");
    CHECK_CLOSE(64, scaler.scale, 0);
}

static void scaler_hysteresis_spares_the_first_overflows(void)
{
    sherdi_scaler scaler = make_scaler(1024, 1000, 3, 1);

    feed(&scaler, "xx");
    CHECK_CLOSE(1024, scaler.scale, 0);
    feed(&scaler, "x");
    CHECK_CLOSE(512, scaler.scale, 0);
    /* Used up, and clean boundaries short of a window do not refill it. */
    feed(&scaler, "...x");
    CHECK_CLOSE(256, scaler.scale, 0);
}

static void scaler_full_window_refills_the_hysteresis(void)
{
    sherdi_scaler scaler = make_scaler(1024, 2, 2, 1);

    feed(&scaler, "x..");
    CHECK_CLOSE(2048, scaler.scale, 0);
    CHECK_INT(2, scaler.hysteresis_left);
    feed(&scaler, "x");
    CHECK_CLOSE(2048, scaler.scale, 0);
}

static void scaler_consecutive_hysteresis_refills_on_each_clean_boundary(void)
{
    sherdi_scaler scaler = make_scaler(1024, 1000, 2, 1);

    scaler.params.is_consecutive_hysteresis = 1;
    feed(&scaler, "x.x.x.x");
    CHECK_CLOSE(1024, scaler.scale, 0);
    feed(&scaler, "x");
    CHECK_CLOSE(512, scaler.scale, 0);
}

static void scaler_hysteresis_of_zero_counts_as_one(void)
{
    sherdi_scaler scaler = make_scaler(1024, 1000, 0, 1);

    feed(&scaler, "x");
    CHECK_CLOSE(512, scaler.scale, 0);
}

static void scaler_fraction_is_a_floor_too(void)
{
    sherdi_scaler scaler = make_scaler(1, 1000, 1, 0.05);

    feed(&scaler, "xxxxx"); /* 1/32 is below: the floor itself */
    CHECK_CLOSE(0.05, scaler.scale, 0);
    CHECK_STATUS(SHERD_E_NUMERIC, sherdi_scaler_update(&scaler, 1));
}

static void scaler_without_a_floor_stays_a_normal_float(void)
{
    sherdi_scaler scaler = make_scaler(1, 1000, 1, 0);

    for (int i = 0; i < 126; i++) {
        feed(&scaler, "x");
    }
    CHECK_CLOSE((double)FLT_MIN, scaler.scale, 0);
    CHECK_STATUS(SHERD_E_NUMERIC, sherdi_scaler_update(&scaler, 1));
}

static void scaler_growth_ends_before_infinity(void)
{
    sherdi_scaler scaler = make_scaler(1, 1, 1, 1);

    for (int i = 0; i < 2000; i++) {
        feed(&scaler, ".");
    }
    CHECK_CLOSE(0x1p126, scaler.scale, 0);
}

static void scaler_never_rises_with_an_overflow(void)
{
    sherdi_scaler scaler = make_scaler(1024, 4, 1, 1e9);

    CHECK_STATUS(SHERD_E_NUMERIC, sherdi_scaler_update(&scaler, 1));
    CHECK_CLOSE(1024, scaler.scale, 0);
}

static void scaler_fixed_scale_never_moves(void)
{
    sherdi_scaler scaler = make_scaler(128, 1, 1, 1);

    scaler.params.is_dynamic = 0;
    feed(&scaler, "xxxxxxxxxx..........x");
    CHECK_CLOSE(128, scaler.scale, 0);
    CHECK_INT(20, scaler.last_overflow);
}

static void scaler_goes_on_where_both_are_dynamic(void)
{
    sherdi_scaler saved = make_scaler(1024, 4, 2, 1);
    sherdi_scaler own   = make_scaler(128, 8, 1, 1);

    saved.scale           = 512;
    saved.iteration       = 7;
    own.params.is_dynamic = 0;
    sherdi_scaler_resume(&own, &saved);
    CHECK_CLOSE(128, own.scale, 0); /* the configuration's */
    CHECK_INT(0, own.iteration);
    own.params.is_dynamic   = 1;
    saved.params.is_dynamic = 0;
    sherdi_scaler_resume(&own, &saved);
    CHECK_CLOSE(128, own.scale, 0);
    saved.params.is_dynamic = 1;
    sherdi_scaler_resume(&own, &saved);
    CHECK_CLOSE(512, own.scale, 0);
    CHECK_INT(7, own.iteration);
    CHECK_INT(8, own.params.scale_window); /* a key that may change from run to run */
}

static const test_case CASES[] = {
    CASE(scaler_clean_run_doubles_each_window),
    CASE(scaler_overflows_halve_down_to_the_floor_and_fail_there),
    CASE(scaler_mixed_run_follows_the_table),
    CASE(scaler_hysteresis_spares_the_first_overflows),
    CASE(scaler_full_window_refills_the_hysteresis),
    CASE(scaler_consecutive_hysteresis_refills_on_each_clean_boundary),
    CASE(scaler_hysteresis_of_zero_counts_as_one),
    CASE(scaler_fraction_is_a_floor_too),
    CASE(scaler_without_a_floor_stays_a_normal_float),
    CASE(scaler_growth_ends_before_infinity),
    CASE(scaler_never_rises_with_an_overflow),
    CASE(scaler_fixed_scale_never_moves),
    CASE(scaler_goes_on_where_both_are_dynamic),
};

RUN_MAIN(CASES)
