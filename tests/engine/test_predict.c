/* The program played against rates: between the longest of what is busy and the sum of it, and work
 * that overlaps with the trainer's, such as a queued update, is not exposed. */
#include "tests/engine/rig.h"
#include "tests/lib/check.h"
#include "sherd_tools.h"

#include <math.h>
#include <stdio.h>

#define UNITS 6

typedef struct ask {
    rig_options      options;
    sherd_rates      rates;
    sherd_prediction got;
    double           busy[5]; /* compute, wire, link, drive, update: of a step */
} ask;

static void predict(sherd_world *world, void *raw)
{
    ask                 *a = raw;
    sherd_traffic_report t;
    sherd_prediction     got;
    rig                  r;
    double               micros;

    rig_open(&r, world, &a->options);
    for (int u = 0; u < UNITS; u++) {
        char name[16];

        (void)snprintf(name, sizeof(name), "u%d", u);
        (void)rig_unit(&r, name);
        (void)snprintf(name, sizeof(name), "u%d.w", u);
        (void)rig_param(&r, u, name, 100000);
    }
    rig_seal(&r);
    sherd_prediction_init(&got);
    sherd_traffic_report_init(&t);
    CHECK_OK(sherd_engine_predict(r.engine, &a->rates, &got));
    CHECK_OK(sherd_engine_traffic(r.engine, &t));
    micros = t.accumulation;
    if (sherd_world_rank(world) == 0) {
        a->got     = got;
        a->busy[0] = micros * a->rates.compute_s;
        a->busy[1] = (micros * (double)t.wire_micro_planned + (double)t.wire_step_planned) / 1e9;
        a->busy[2] = (micros * (double)(t.down_micro_planned + t.up_micro_planned) +
                      (double)(t.down_step_planned + t.up_step_planned)) /
                     1e9;
        a->busy[3] = (micros * (double)(t.read_micro_planned + t.written_micro_planned) +
                      (double)(t.read_step_planned + t.written_step_planned)) /
                     1e9;
        a->busy[4] = (double)(t.update_device_planned + t.update_host_planned) / 1e9;
    }
    rig_close(&r);
}

static ask ask_of(int stage, const char *zero, int accumulation, double compute_s)
{
    ask a = {.options = {
                 .stage = stage, .dtype = SHERD_BF16, .zero = zero, .accumulation = accumulation}};

    sherd_rates_init(&a.rates);
    a.rates.wire = a.rates.down = a.rates.up = a.rates.nvme_read = a.rates.nvme_write = 1e9;
    a.rates.device = a.rates.host = 1e9;
    a.rates.compute_s             = compute_s;
    return a;
}

static void expect_between(const ask *a)
{
    double longest = 0;
    double sum     = 0;

    for (int i = 0; i < 5; i++) {
        longest = a->busy[i] > longest ? a->busy[i] : longest;
        sum += a->busy[i];
    }
    CHECK(a->got.step_s >= longest * (1 - 1e-9));
    CHECK(a->got.step_s <= sum * (1 + 1e-9));
    CHECK(fabs(a->got.exposed_s - (a->got.step_s - a->busy[0])) <= 1e-9 * sum);
}

static void prediction_is_between_the_longest_and_the_sum(void)
{
    char        nvme[512];
    const char *layouts[] = {"", ", \"overlap_comm\": false",
                             ", \"offload_optimizer\": {\"device\": \"cpu\"}", nvme};

    (void)snprintf(nvme, sizeof(nvme),
                   ", \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}",
                   test_scratch());
    for (int stage = 0; stage <= 3; stage++) {
        for (size_t i = 0; i < sizeof(layouts) / sizeof(layouts[0]); i++) {
            for (int accumulation = 1; accumulation <= 3; accumulation++) {
                ask a = ask_of(stage, layouts[i], accumulation, 1e-3);

                if (i >= 2 && stage == 0) {
                    continue; /* nothing is offloaded */
                }
                test_world(2, predict, &a);
                expect_between(&a);
                CHECK(fabs(a.got.step_s - accumulation * a.got.micro_s - a.got.boundary_s) <=
                      1e-12);
            }
        }
    }
}

/* Gathers ahead cost nothing during long work, and their time where nothing overlaps. */
static void what_overlaps_is_not_exposed(void)
{
    ask beside = ask_of(3, "", 1, 10);
    ask after  = ask_of(3, ", \"overlap_comm\": false", 1, 10);

    test_world(2, predict, &beside);
    test_world(2, predict, &after);
    CHECK(beside.got.exposed_s < after.got.exposed_s);
    CHECK(after.got.micro_s >= 10 + beside.busy[1] * 0.99);
}

/* Work of the trainer that is longer than the update hides it, but for the first unit; without work
 * a queued step is not longer than a waited one, and not shorter than what is busy. */
static void queued_step_hides_its_update(void)
{
    char nvme[512];

    (void)snprintf(nvme, sizeof(nvme),
                   ", \"sub_group_size\": 50000, \"offload_optimizer\": {\"device\": \"nvme\", "
                   "\"nvme_path\": \"%s\", \"buffer_size\": 50000}",
                   test_scratch());
    for (int accumulation = 1; accumulation <= 3; accumulation++) {
        for (int stage = 1; stage <= 3; stage++) {
            ask host =
                ask_of(stage, ", \"offload_optimizer\": {\"device\": \"cpu\"}", accumulation, 1);
            ask  drive  = ask_of(stage, nvme, accumulation, 1);
            ask  idle   = ask_of(stage, nvme, accumulation, 0);
            ask *asks[] = {&host, &drive, &idle};

            for (size_t i = 0; i < sizeof(asks) / sizeof(asks[0]); i++) {
                ask *a = asks[i];

                test_world(2, predict, a);
                CHECK(a->got.queued_s <= a->got.step_s * 1.001); /* windows are not all alike */
                CHECK(a->got.queued_s >= a->busy[0] * (1 - 1e-9));
                CHECK(a->got.beside_s > 0);
                CHECK(a->got.wait_update_s <= a->got.beside_s);
            }
            CHECK(drive.got.beside_s >= drive.busy[3] / 2);
            CHECK(drive.got.wait_update_s < drive.got.beside_s / 2);
            CHECK(drive.got.queued_s < drive.got.step_s);
            CHECK(idle.got.queued_s >= idle.busy[3] * (1 - 1e-9));
        }
    }
}

/* Without an update to queue, a queued step is the step. */
static void queued_step_without_offload_is_a_step(void)
{
    ask a = ask_of(3, "", 2, 1e-3);

    test_world(2, predict, &a);
    CHECK(a.got.queued_s == a.got.step_s);
    CHECK(a.got.beside_s == 0 && a.got.wait_update_s == 0);
}

/* More buffers read further ahead while backward runs, so less is waited for. */
static void queued_step_waits_less_with_more_buffers(void)
{
    double waits[2];

    for (int i = 0; i < 2; i++) {
        char nvme[512];
        ask  a;

        (void)snprintf(nvme, sizeof(nvme),
                       ", \"sub_group_size\": 10000, \"offload_optimizer\": {\"device\": "
                       "\"nvme\", \"nvme_path\": \"%s\", \"buffer_size\": 10000, "
                       "\"buffer_count\": %d}",
                       test_scratch(), i == 0 ? 2 : 16);
        a            = ask_of(1, nvme, 1, 0.03);
        a.rates.host = 1e12; /* the drive is what takes time */
        test_world(1, predict, &a);
        waits[i] = a.got.wait_update_s;
    }
    CHECK(waits[1] < waits[0]);
}

/* Two hosts with two ranks each, seen from one of the ranks. */
static double hosts_predict(ask *a)
{
    sherd_simulate_params params;
    sherd_world          *world;

    sherd_simulate_params_init(&params);
    params.ranks_per_host = 2;
    CHECK_OK(sherd_world_simulate_with(0, 4, &params, &world));
    predict(world, a);
    sherd_world_destroy(world);
    return a->got.step_s;
}

/* A slower wire to other hosts takes longer, and less so where less goes over it. */
static void what_goes_to_other_hosts_has_a_rate_of_its_own(void)
{
    double flat[3], replicas[3];

    for (int i = 0; i < 3; i++) {
        ask a = ask_of(3, "", 1, 1e-6);
        ask b = ask_of(3, "", 1, 1e-6);

        b.options.top   = ", \"sherd\": {\"shard_size\": 2}";
        a.rates.between = b.rates.between = i == 0 ? 0 : i == 1 ? 1e9 : 1e7;
        flat[i]                           = hosts_predict(&a);
        replicas[i]                       = hosts_predict(&b);
    }
    CHECK(flat[0] == flat[1] && replicas[0] == replicas[1]); /* 0: as inside a host */
    CHECK(flat[2] > flat[1] && replicas[2] > replicas[1]);
    CHECK(flat[2] - flat[1] > 1.5 * (replicas[2] - replicas[1]));
}

static void rates_that_are_none_are_refused(void)
{
    sherd_world     *world;
    sherd_rates      rates;
    sherd_prediction out;
    rig              r;
    rig_options      options = {.stage = 1, .dtype = SHERD_BF16};

    CHECK_OK(sherd_world_self(&world));
    rig_open(&r, world, &options);
    (void)rig_unit(&r, "a");
    (void)rig_param(&r, 0, "a.w", 100);
    sherd_rates_init(&rates);
    sherd_prediction_init(&out);
    CHECK_OK(
        sherd_engine_predict(r.engine, &rates, &out)); /* before seal, and nothing takes time */
    CHECK(out.step_s == 0);
    rates.wire = -1;
    CHECK_STATUS(SHERD_E_INVAL, sherd_engine_predict(r.engine, &rates, &out));
    rates.wire    = 1;
    rates.between = -1;
    CHECK_STATUS(SHERD_E_INVAL, sherd_engine_predict(r.engine, &rates, &out));
    CHECK_ERROR_SAYS("sherd_rates.between");
    rates.between = 0;
    rates.wire    = NAN;
    CHECK_STATUS(SHERD_E_INVAL, sherd_engine_predict(r.engine, &rates, &out));
    rig_close(&r);
    sherd_world_destroy(world);
}

static const test_case CASES[] = {
    CASE(prediction_is_between_the_longest_and_the_sum),
    CASE(what_overlaps_is_not_exposed),
    CASE(queued_step_hides_its_update),
    CASE(queued_step_without_offload_is_a_step),
    CASE(queued_step_waits_less_with_more_buffers),
    CASE(what_goes_to_other_hosts_has_a_rate_of_its_own),
    CASE(rates_that_are_none_are_refused),
};

RUN_MAIN(CASES)
