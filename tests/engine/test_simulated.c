/* A simulated machine plans what a real one holds: engines of real ranks are sealed, in memory and
 * on a drive, on the backend that SHERD_BACKEND names, and every number of their reports is held
 * against the plan of a simulated rank. Then they train, and what moved is held against the planned
 * traffic. */
#include "tests/engine/rig.h"
#include "tests/lib/check.h"
#include "sherd_tools.h"

#include <stdio.h>
#include <string.h>

typedef struct layout {
    const char *zero; /* "%s": the folder */
    const char *top, *optimizer;
    int         least_stage;
} layout;

static const layout LAYOUTS[] = {
    {"", NULL, NULL, 0},
    {"", ", \"deterministic\": true", NULL, 0},
    {"", NULL, "Lamb", 0},
    {", \"overlap_comm\": true", NULL, NULL, 0},
    {", \"offload_optimizer\": {\"device\": \"cpu\", \"pin_memory\": true}", NULL, NULL, 1},
    {", \"offload_optimizer\": {\"device\": \"cpu\", \"ratio\": 0.4}", NULL, NULL, 1},
    {", \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}", NULL, NULL, 1},
    {", \"offload_optimizer\": {\"device\": \"cpu\"}, \"offload_param\": {\"device\": \"cpu\"}",
     NULL, NULL, 3},
    {", \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\", \"gradients\": "
     "\"nvme\"},"
     " \"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"%s\", \"max_in_cpu\": 0}",
     NULL, NULL, 3},
};

typedef struct job {
    rig_options options;
    const char *what;
} job;

static void declare(rig *r)
{
    (void)rig_unit(r, "first");
    (void)rig_unit(r, "second");
    (void)rig_unit(r, "third");
    (void)rig_param(r, 0, "table", 70001);
    (void)rig_param(r, 1, "w", 50000);
    (void)rig_param(r, 1, "b", 1);
    (void)rig_param(r, 2, "v", 65);
}

#define SAME(a, b, field)                                                                          \
    do {                                                                                           \
        if ((a).field != (b).field) {                                                              \
            test_fail(__FILE__, __LINE__, "%s: %s is %llu on the machine and %llu simulated",      \
                      job->what, #field, (unsigned long long)(a).field,                            \
                      (unsigned long long)(b).field);                                              \
        }                                                                                          \
    } while (0)

static void expect_same_memory(const job *job, const sherd_memory_report *real,
                               const sherd_memory_report *planned)
{
    SAME(*real, *planned, params_planned);
    SAME(*real, *planned, grads_planned);
    SAME(*real, *planned, state_planned);
    SAME(*real, *planned, gather_planned);
    SAME(*real, *planned, transient_planned);
    SAME(*real, *planned, staging_planned);
    SAME(*real, *planned, host_params_planned);
    SAME(*real, *planned, host_grads_planned);
    SAME(*real, *planned, host_state_planned);
    SAME(*real, *planned, host_staging_planned);
    SAME(*real, *planned, total_planned);
    SAME(*real, *planned, pinned_planned);
    SAME(*real, *planned, nvme_planned);
    SAME(*real, *planned, nvme_state_planned);
    SAME(*real, *planned, nvme_index_planned);
    SAME(*real, *planned, padding_elems);
    CHECK_INT(planned->params_planned, real->params_held);
    CHECK_INT(planned->grads_planned, real->grads_held);
    CHECK_INT(planned->state_planned, real->state_held);
    CHECK_INT(planned->gather_planned, real->gather_held);
    CHECK_INT(planned->transient_planned, real->transient_held);
    CHECK_INT(planned->staging_planned, real->staging_held);
    CHECK_INT(planned->host_params_planned, real->host_params_held);
    CHECK_INT(planned->host_grads_planned, real->host_grads_held);
    CHECK_INT(planned->host_state_planned, real->host_state_held);
    CHECK_INT(planned->host_staging_planned, real->host_staging_held);
    CHECK_INT(planned->total_planned, real->total_held);
}

/* The transport of the ranks here may do without what NCCL needs. */
static void expect_room_for_reductions(const sherd_memory_report *real,
                                       const sherd_memory_report *planned)
{
    if (real->receive_planned > 0) {
        CHECK_INT(planned->receive_planned, real->receive_planned);
        CHECK_INT(planned->receive_planned, real->receive_held);
    }
}

static void expect_same_plan(const job *job, const sherd_traffic_report *real,
                             const sherd_traffic_report *planned)
{
    SAME(*real, *planned, wire_micro_planned);
    SAME(*real, *planned, wire_step_planned);
    SAME(*real, *planned, down_micro_planned);
    SAME(*real, *planned, down_step_planned);
    SAME(*real, *planned, up_micro_planned);
    SAME(*real, *planned, up_step_planned);
    SAME(*real, *planned, read_micro_planned);
    SAME(*real, *planned, read_step_planned);
    SAME(*real, *planned, written_micro_planned);
    SAME(*real, *planned, written_step_planned);
    SAME(*real, *planned, update_device_planned);
    SAME(*real, *planned, update_host_planned);
}

static void reports_take(rig *r, sherd_memory_report *memory, sherd_traffic_report *traffic)
{
    sherd_memory_report_init(memory);
    sherd_traffic_report_init(traffic);
    CHECK_OK(sherd_engine_memory(r->engine, memory));
    CHECK_OK(sherd_engine_traffic(r->engine, traffic));
}

/* One whole step; its bytes are accumulation * micro + step. */
static void expect_traffic_of_a_step(rig *r, const job *job)
{
    int                  micros = job->options.accumulation;
    sherd_traffic_report before;
    sherd_traffic_report after;
    sherd_memory_report  memory;

    (void)rig_train(r, micros); /* what the first acquire exchanges is over */
    reports_take(r, &memory, &before);
    CHECK_INT(micros, before.accumulation);
    (void)rig_train(r, micros);
    reports_take(r, &memory, &after);
#define MOVED(name)                                                                                \
    if (after.name##_counted - before.name##_counted !=                                            \
        (uint64_t)micros * after.name##_micro_planned + after.name##_step_planned) {               \
        test_fail(__FILE__, __LINE__, "%s: %s of a step is %llu, planned %llu", job->what, #name,  \
                  (unsigned long long)(after.name##_counted - before.name##_counted),              \
                  (unsigned long long)((uint64_t)micros * after.name##_micro_planned +             \
                                       after.name##_step_planned));                                \
    }
    MOVED(wire)
    MOVED(down)
    MOVED(up)
    MOVED(read)
    MOVED(written)
#undef MOVED
}

static void rank_run(sherd_world *world, void *ctx)
{
    const job            *job = ctx;
    sherd_simulate_params params;
    sherd_engine_info     info;
    sherd_memory_report   real_memory, planned_memory;
    sherd_traffic_report  real_traffic, planned_traffic;
    sherd_world          *simulated;
    rig                   real, planned;

    rig_open(&real, world, &job->options);
    declare(&real);
    rig_seal(&real);
    sherd_engine_info_init(&info);
    CHECK_OK(sherd_engine_query(real.engine, &info));
    sherd_simulate_params_init(&params);
    params.backend = info.backend;
    CHECK_OK(sherd_world_simulate_with(sherd_world_rank(world), sherd_world_size(world), &params,
                                       &simulated));
    rig_open(&planned, simulated, &job->options);
    sherd_world_destroy(simulated);
    declare(&planned);
    reports_take(&real, &real_memory, &real_traffic);
    reports_take(&planned, &planned_memory, &planned_traffic);
    rig_close(&planned);
    expect_same_memory(job, &real_memory, &planned_memory);
    expect_room_for_reductions(&real_memory, &planned_memory);
    expect_same_plan(job, &real_traffic, &planned_traffic);
    expect_traffic_of_a_step(&real, job);
    rig_close(&real);
}

static void simulated_plan_is_what_ranks_hold_and_move(void)
{
    static const int WORLDS[] = {1, 2, 3};

    for (size_t i = 0; i < sizeof(LAYOUTS) / sizeof(LAYOUTS[0]); i++) {
        for (size_t w = 0; w < sizeof(WORLDS) / sizeof(WORLDS[0]); w++) {
            for (int stage = LAYOUTS[i].least_stage; stage <= 3; stage++) {
                char zero[1024];
                char what[1200];
                job  job = {.options = {.stage        = stage,
                                        .dtype        = SHERD_BF16,
                                        .accumulation = 1 + (stage & 1),
                                        .zero         = zero,
                                        .top          = LAYOUTS[i].top,
                                        .optimizer    = LAYOUTS[i].optimizer},
                            .what    = what};

                (void)snprintf(zero, sizeof(zero), LAYOUTS[i].zero, test_scratch(), test_scratch());
                (void)snprintf(what, sizeof(what), "stage %d, %d ranks%s%s", stage, WORLDS[w], zero,
                               LAYOUTS[i].top == NULL ? "" : LAYOUTS[i].top);
                test_world(WORLDS[w], rank_run, &job);
            }
        }
    }
}

static const test_case cases[] = {
    CASE(simulated_plan_is_what_ranks_hold_and_move),
};

RUN_MAIN(cases)
