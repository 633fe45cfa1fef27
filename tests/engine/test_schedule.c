/* Learning-rate schedules. In the tables index i counts updates from 0: the value that update
 * i + 2 uses. Update 1 uses what the constructor leaves. */
#include "engine/optimizers/schedule.h"
#include "tests/lib/check.h"

#include <math.h>

/* The tables are written with six digits. */
#define TABLE_RTOL 5e-6
/* Formulas written out again here differ in rounding only. */
#define FORMULA_RTOL 1e-14

static const double OWN_RATE = 0.5;

static double lr_of(const sherdi_schedule_params *params, double group_lr, int64_t step)
{
    return sherdi_schedule_lr(params, &(sherdi_schedule_point){.group_lr = group_lr, .step = step});
}

static double table_value(const sherdi_schedule_params *params, int64_t i)
{
    return lr_of(params, OWN_RATE, i + 2);
}

static sherdi_schedule_params warmup_of(sherdi_schedule_kind kind, int64_t warmup_steps,
                                        int is_linear)
{
    return (sherdi_schedule_params){
        .kind         = kind,
        .warmup_ramp  = is_linear ? SHERDI_RAMP_LINEAR : SHERDI_RAMP_LOG,
        .min_lr       = {.at = {0.1}},
        .max_lr       = {.at = {0.2}},
        .warmup_steps = warmup_steps,
        .total_steps  = 2 * warmup_steps,
    };
}

static const struct {
    int64_t warmup_steps;
    double  log[5], linear[5];
} TABLE[] = {
    {10, {.1, .130103, .147712, .160206, .169897}, {.1, .11, .12, .13, .14}},
    {15, {.1, .125596, .140568, .151192, .159432}, {.1, .106667, .113333, .12, .126667}},
    {19, {.1, .123541, .137311, .147082, .154660}, {.1, .105263, .110526, .115789, .121053}},
    {33, {.1, .119824, .131420, .139648, .146030}, {.1, .103030, .106061, .109091, .112121}},
};

static void schedule_warmup_follows_the_tables(void)
{
    for (size_t row = 0; row < sizeof(TABLE) / sizeof(TABLE[0]); row++) {
        int64_t                n   = TABLE[row].warmup_steps;
        sherdi_schedule_params log = warmup_of(SHERDI_SCHEDULE_WARMUP, n, 0);
        sherdi_schedule_params lin = warmup_of(SHERDI_SCHEDULE_WARMUP, n, 1);

        for (int64_t i = 0; i < 5; i++) {
            CHECK_CLOSE(TABLE[row].log[i], table_value(&log, i), TABLE_RTOL);
            CHECK_CLOSE(TABLE[row].linear[i], table_value(&lin, i), TABLE_RTOL);
        }
        CHECK_CLOSE(.2, table_value(&log, n - 1), FORMULA_RTOL);
        for (int64_t i = n; i < 3 * n; i++) {
            CHECK_CLOSE(.2, table_value(&log, i), 0);
            CHECK_CLOSE(.2, table_value(&lin, i), 0);
        }
    }
}

static void schedule_linear_warmup_of_ten_ends_at_ten(void)
{
    sherdi_schedule_params params = warmup_of(SHERDI_SCHEDULE_WARMUP, 10, 1);

    CHECK_CLOSE(.19, table_value(&params, 9), FORMULA_RTOL);
    CHECK_CLOSE(.2, table_value(&params, 10), 0);
}

static void schedule_first_two_updates_use_the_minimum(void)
{
    sherdi_schedule_params warm  = warmup_of(SHERDI_SCHEDULE_WARMUP, 10, 0);
    sherdi_schedule_params decay = warmup_of(SHERDI_SCHEDULE_WARMUP_DECAY, 10, 1);

    CHECK_CLOSE(.1, lr_of(&warm, OWN_RATE, 1), 0);
    CHECK_CLOSE(.1, lr_of(&warm, OWN_RATE, 2), 0);
    CHECK_CLOSE(.1, lr_of(&decay, OWN_RATE, 1), 0);
    CHECK_CLOSE(.1, lr_of(&decay, OWN_RATE, 2), 0);
}

/* After one step from t = 0, with rates 0 and 0.1: 0.1 ln 2 / ln 10. */
static void schedule_single_step_contract_holds(void)
{
    static const sherdi_schedule_kind KINDS[] = {
        SHERDI_SCHEDULE_WARMUP, SHERDI_SCHEDULE_WARMUP_DECAY, SHERDI_SCHEDULE_WARMUP_COSINE};
    sherdi_schedule_params params = {
        .max_lr = {.at = {0.1}}, .warmup_steps = 10, .total_steps = 20};

    for (size_t i = 0; i < 3; i++) {
        params.kind = KINDS[i];
        CHECK_CLOSE(0.1 * log(2) / log(10), lr_of(&params, 0.1, 3), FORMULA_RTOL);
    }
}

static void schedule_maximum_is_each_groups_own_without_one(void)
{
    sherdi_schedule_params params = warmup_of(SHERDI_SCHEDULE_WARMUP, 4, 0);

    params.max_lr.at[0] = NAN;
    CHECK_CLOSE(0.5, lr_of(&params, 0.5, 100), 0);
    CHECK_CLOSE(0.3, lr_of(&params, 0.3, 100), FORMULA_RTOL);
}

static void schedule_warmup_is_two_steps_at_least(void)
{
    for (int64_t n = 0; n <= 2; n++) {
        sherdi_schedule_params params = warmup_of(SHERDI_SCHEDULE_WARMUP, n, 0);

        CHECK_CLOSE(.1, table_value(&params, 0), 0);
        CHECK_CLOSE(.2, table_value(&params, 1), FORMULA_RTOL); /* ln 2 / ln 2 */
        CHECK_CLOSE(.2, table_value(&params, 2), 0);
    }
}

static void schedule_decay_falls_strictly_to_the_minimum(void)
{
    sherdi_schedule_params params   = warmup_of(SHERDI_SCHEDULE_WARMUP_DECAY, 10, 1);
    double                 previous = INFINITY;

    params.total_steps = 30;
    for (int64_t t = 10; t <= 30; t++) {
        double lr = table_value(&params, t);

        CHECK_CLOSE(.1 + .1 * (double)(30 - t) / 20, lr, FORMULA_RTOL);
        CHECK(lr < previous);
        previous = lr;
    }
    CHECK_CLOSE(.2, table_value(&params, 10), 0);
    CHECK_CLOSE(.1, table_value(&params, 31), 0);
    CHECK_CLOSE(.1, table_value(&params, 1000), 0);
}

static void schedule_decay_shorter_than_its_warmup_ends_at_once(void)
{
    sherdi_schedule_params params = warmup_of(SHERDI_SCHEDULE_WARMUP_DECAY, 10, 1);

    params.total_steps = 5;
    CHECK_CLOSE(.19, table_value(&params, 9), FORMULA_RTOL);
    CHECK_CLOSE(.1, table_value(&params, 10), 0);
}

static sherdi_schedule_params cosine(void)
{
    return (sherdi_schedule_params){
        .kind          = SHERDI_SCHEDULE_WARMUP_COSINE,
        .warmup_ramp   = SHERDI_RAMP_LINEAR,
        .warmup_steps  = 10,
        .total_steps   = 110,
        .min_ratio     = 0.2,
        .cos_min_ratio = 0.1,
    };
}

static void schedule_cosine_starts_with_zero_then_its_ratio(void)
{
    sherdi_schedule_params params = cosine();

    CHECK_CLOSE(0, lr_of(&params, 1.0, 1), 0);
    CHECK_CLOSE(0.2, lr_of(&params, 1.0, 2), FORMULA_RTOL);
    CHECK_CLOSE(0.2 + 0.8 * 0.5, lr_of(&params, 1.0, 7), FORMULA_RTOL);
}

static void schedule_cosine_follows_the_formula_and_stops_at_the_end(void)
{
    sherdi_schedule_params params = cosine();

    for (int64_t t = 10; t < 110; t++) {
        double want = 0.1 + 0.9 * (1 + cos(acos(-1) * (double)(t - 9) / 100)) / 2;

        CHECK_CLOSE(3 * want, lr_of(&params, 3.0, t + 2), 1e-13);
    }
    CHECK_CLOSE(0.1, table_value(&params, 109) / OWN_RATE, FORMULA_RTOL);
    CHECK_CLOSE(0.1, table_value(&params, 5000) / OWN_RATE, FORMULA_RTOL);
}

static void schedule_constant_is_the_groups_rate(void)
{
    sherdi_schedule_params params = {.kind = SHERDI_SCHEDULE_CONSTANT};

    CHECK_CLOSE(0.5, lr_of(&params, 0.5, 1), 0);
    CHECK_CLOSE(0.5, lr_of(&params, 0.5, 100000), 0);
}

static sherdi_schedule_params one_cycle(void)
{
    return (sherdi_schedule_params){
        .kind            = SHERDI_SCHEDULE_ONE_CYCLE,
        .cycle_min_lr    = {.count = 2, .at = {0.1, 0.2}},
        .cycle_max_lr    = {.at = {0.5}},
        .cycle_min_mom   = {.at = {0.8}},
        .cycle_max_mom   = {.at = {0.9}},
        .first_steps     = 4,
        .second_steps    = 8,
        .cycles_momentum = 1,
    };
}

static double momentum_of(const sherdi_schedule_params *params, int64_t step)
{
    sherdi_schedule_point point    = {.step = step};
    double                betas[2] = {0.5, 0.5};

    sherdi_schedule_betas(params, &point, betas);
    CHECK_CLOSE(params->cycles_momentum ? 0.99 : 0.5, betas[1], 0);
    return betas[0];
}

static void schedule_cycle_goes_up_and_down_and_the_momentum_against_it(void)
{
    sherdi_schedule_params params = one_cycle();
    sherdi_schedule_point  second = {.group = 1, .step = 3};

    CHECK_CLOSE(0.1, lr_of(&params, OWN_RATE, 1), 0);
    CHECK_CLOSE(0.2, lr_of(&params, OWN_RATE, 2), FORMULA_RTOL);
    CHECK_CLOSE(0.3, lr_of(&params, OWN_RATE, 3), FORMULA_RTOL);
    CHECK_CLOSE(0.35, sherdi_schedule_lr(&params, &second), FORMULA_RTOL);
    CHECK_CLOSE(0.5, lr_of(&params, OWN_RATE, 5), FORMULA_RTOL);
    CHECK_CLOSE(0.3, lr_of(&params, OWN_RATE, 9), FORMULA_RTOL);
    CHECK_CLOSE(0.1, lr_of(&params, OWN_RATE, 13), FORMULA_RTOL);
    CHECK_CLOSE(0.1, lr_of(&params, OWN_RATE, 100), 0);
    CHECK_CLOSE(0.8, momentum_of(&params, 1), 0); /* the constructor's, as there */
    CHECK_CLOSE(0.875, momentum_of(&params, 2), FORMULA_RTOL);
    CHECK_CLOSE(0.8, momentum_of(&params, 5), FORMULA_RTOL);
    CHECK_CLOSE(0.9, momentum_of(&params, 14), FORMULA_RTOL);
    params.cycles_momentum = 0;
    CHECK_CLOSE(0.5, momentum_of(&params, 5), 0);
}

static void schedule_cycle_decays_behind_its_end(void)
{
    sherdi_schedule_params params = one_cycle();

    params.decay_interval = 2;
    params.decay_lr_rate  = 3;
    CHECK_CLOSE(0.1, lr_of(&params, OWN_RATE, 13), FORMULA_RTOL);
    CHECK_CLOSE(0.1 / 2.5, lr_of(&params, OWN_RATE, 14), FORMULA_RTOL);
    CHECK_CLOSE(0.1 / 4, lr_of(&params, OWN_RATE, 15), FORMULA_RTOL);
    CHECK_CLOSE(0.9, momentum_of(&params, 15), 0);
}

static void schedule_cycle_in_stairs_keeps_its_top(void)
{
    sherdi_schedule_params params = one_cycle();

    params.first_stairs = params.second_stairs = 2;
    CHECK_CLOSE(0.1, lr_of(&params, OWN_RATE, 2), FORMULA_RTOL);
    CHECK_CLOSE(0.3, lr_of(&params, OWN_RATE, 4), FORMULA_RTOL);
    CHECK_CLOSE(0.5, lr_of(&params, OWN_RATE, 5), FORMULA_RTOL);
    CHECK_CLOSE(0.3, lr_of(&params, OWN_RATE, 6), FORMULA_RTOL);
    CHECK_CLOSE(0.1, lr_of(&params, OWN_RATE, 12), FORMULA_RTOL);
}

static void schedule_range_test_climbs_without_end(void)
{
    sherdi_schedule_params params = {.kind         = SHERDI_SCHEDULE_RANGE_TEST,
                                     .range_min_lr = {.at = {1e-3}},
                                     .range_steps  = 2000,
                                     .range_rate   = 1};

    CHECK_CLOSE(1e-3, lr_of(&params, OWN_RATE, 1), 0);
    CHECK_CLOSE(1e-3 * (1 + 2.0 / 2000), lr_of(&params, OWN_RATE, 3), FORMULA_RTOL);
    CHECK_CLOSE(2e-3, lr_of(&params, OWN_RATE, 2001), FORMULA_RTOL);
    params.is_staircase = 1;
    CHECK_CLOSE(1e-3, lr_of(&params, OWN_RATE, 2000), 0);
    CHECK_CLOSE(2e-3, lr_of(&params, OWN_RATE, 2001), 0);
    CHECK_CLOSE(2e-3, lr_of(&params, OWN_RATE, 4000), 0);
}

static void schedule_of_transformers_starts_with_index_zero(void)
{
    sherdi_schedule_params params = {.kind         = SHERDI_SCHEDULE_LINEAR,
                                     .warmup_steps = 4,
                                     .total_steps  = 12,
                                     .num_cycles   = 0.5,
                                     .timescale    = 4};

    CHECK_CLOSE(0, lr_of(&params, OWN_RATE, 1), 0);
    CHECK_CLOSE(OWN_RATE / 4, lr_of(&params, OWN_RATE, 2), 0);
    CHECK_CLOSE(OWN_RATE, lr_of(&params, OWN_RATE, 5), 0);
    CHECK_CLOSE(OWN_RATE / 2, lr_of(&params, OWN_RATE, 9), 0);
    CHECK_CLOSE(0, lr_of(&params, OWN_RATE, 13), 0);
    CHECK_CLOSE(0, lr_of(&params, OWN_RATE, 1000), 0);
    params.kind = SHERDI_SCHEDULE_COSINE;
    CHECK_CLOSE(OWN_RATE / 2, lr_of(&params, OWN_RATE, 9), FORMULA_RTOL);
    params.kind = SHERDI_SCHEDULE_INVERSE_SQRT;
    CHECK_CLOSE(OWN_RATE / 2, lr_of(&params, OWN_RATE, 17), FORMULA_RTOL);
}

static const test_case CASES[] = {
    CASE(schedule_warmup_follows_the_tables),
    CASE(schedule_linear_warmup_of_ten_ends_at_ten),
    CASE(schedule_first_two_updates_use_the_minimum),
    CASE(schedule_single_step_contract_holds),
    CASE(schedule_maximum_is_each_groups_own_without_one),
    CASE(schedule_warmup_is_two_steps_at_least),
    CASE(schedule_decay_falls_strictly_to_the_minimum),
    CASE(schedule_decay_shorter_than_its_warmup_ends_at_once),
    CASE(schedule_cosine_starts_with_zero_then_its_ratio),
    CASE(schedule_cosine_follows_the_formula_and_stops_at_the_end),
    CASE(schedule_constant_is_the_groups_rate),
    CASE(schedule_cycle_goes_up_and_down_and_the_momentum_against_it),
    CASE(schedule_cycle_decays_behind_its_end),
    CASE(schedule_cycle_in_stairs_keeps_its_top),
    CASE(schedule_range_test_climbs_without_end),
    CASE(schedule_of_transformers_starts_with_index_zero),
};

RUN_MAIN(CASES)
