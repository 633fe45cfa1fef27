/* The plans of all ranks held against each other: they pass for every layout, and each rule that is
 * broken is noticed. Simulated machines, and what they say of memory. */
#include "tests/engine/rig.h"

#include "base/checked.h"
#include "engine/engine.h"
#include "engine/proof/check.h"
#include "engine/run/engine_impl.h"
#include "sherd_tools.h"
#include "tests/lib/check.h"
#include "engine/plan/offload.h"

#include <stdio.h>
#include <string.h>

/* ------------------------------------------------------------ simulated -- */

static void declare(rig *r)
{
    static const char *const NAMES[] = {"first", "second", "third"};

    for (int u = 0; u < 3; u++) {
        (void)rig_unit(r, NAMES[u]);
    }
    (void)rig_param(r, 0, "table", 70001);
    (void)rig_param(r, 1, "w", 50000);
    (void)rig_param(r, 1, "b", 1);
    (void)rig_param(r, 1, "empty", 0);
    (void)rig_param(r, 2, "v", 65);
}

static void open_simulated(rig *r, const rig_options *options, int rank, int world_size,
                           const sherd_simulate_params *params)
{
    sherd_world *world;

    CHECK_OK(sherd_world_simulate_with(rank, world_size, params, &world));
    rig_open(r, world, options);
    sherd_world_destroy(world);
    declare(r);
}

#define OFFLOAD(state, params)                                                                     \
    ", \"sub_group_size\": 4096, \"offload_optimizer\": {" state "}, \"offload_param\": {" params  \
    "}"
#define NVME "\"device\": \"nvme\", \"nvme_path\": \"/nowhere\""
#define HOST "\"device\": \"cpu\""

static void plans_of_all_ranks_pass_for_every_layout(void)
{
    static const char *const OFFLOADS[] = {
        NULL, OFFLOAD(HOST, "\"device\": \"none\""), OFFLOAD(HOST, HOST),
        OFFLOAD(NVME ", \"gradients\": \"nvme\"", NVME ", \"max_in_cpu\": 0")};
    static const char *const BACKENDS[] = {"cpu", "cuda"};
    static const int         WORLDS[]   = {1, 2, 3, 4, 7, 8, 129};

    for (size_t b = 0; b < 2; b++) {
        for (size_t w = 0; w < sizeof(WORLDS) / sizeof(WORLDS[0]); w++) {
            for (int stage = 0; stage <= 3; stage++) {
                for (size_t i = 0; i < (stage == 0 ? 1 : sizeof(OFFLOADS) / sizeof(OFFLOADS[0]));
                     i++) {
                    sherd_simulate_params params;
                    rig_options           options = {.stage        = stage,
                                                     .dtype        = SHERD_BF16,
                                                     .accumulation = 1 + (int)(w & 1),
                                                     .zero = stage == 3 || i < 2 ? OFFLOADS[i] : NULL};
                    rig                   r;

                    sherd_simulate_params_init(&params);
                    params.backend = BACKENDS[b];
                    open_simulated(&r, &options, WORLDS[w] / 2, WORLDS[w], &params);
                    CHECK_OK(sherd_engine_check_plans(r.engine));
                    rig_close(&r);
                }
            }
        }
    }
}

/* ----------------------------------------------------------- broken rules -- */

/* Breaks one thing of a plan that is whole, for one check of it. */
static void expect_noticed(sherdi_plan *plan, const sherdi_model *model, size_t *what, size_t to,
                           const char *says)
{
    size_t was = *what;

    CHECK_OK(sherdi_plan_check(plan, model));
    *what = to;
    CHECK_STATUS(SHERD_E_STATE, sherdi_plan_check(plan, model));
    CHECK_ERROR_SAYS(says);
    *what = was;
    CHECK_OK(sherdi_plan_check(plan, model));
}

/* Values that are stored with state on storage, in tails. */
static void values_that_lie_elsewhere_are_noticed(void)
{
    rig_options    options = {.stage = 2,
                              .dtype = SHERD_BF16,
                              .zero  = ", \"offload_optimizer\": {\"device\": \"nvme\", "
                                          "\"nvme_path\": \"/nonexistent\"}",
                              .top   = ", \"sherd\": {\"master_encoding\": \"bf16_beside\"}"};
    sherdi_machine machine = {.ranks_per_host = 4};
    sherdi_plan   *plan;
    rig            r;

    open_simulated(&r, &options, 1, 4, NULL);
    CHECK_OK(sherdi_engine_plan_make(r.engine, &machine, &plan));
    CHECK(plan->offload->num_tails > 0);
    expect_noticed(plan, &r.engine->model, &plan->layout.blocks[0].value_offset, 128, "extents");
    expect_noticed(plan, &r.engine->model, &plan->layout.blocks[0].value_offset, SHERDI_NO_OFFSET,
                   "extents");
    expect_noticed(plan, &r.engine->model,
                   &plan->rings[SHERDI_RING_STATE].extents[plan->offload->num_tails].offset_bytes,
                   0, "extents");
    expect_noticed(plan, &r.engine->model, &plan->rings[SHERDI_RING_STATE].slot_bytes,
                   plan->rings[SHERDI_RING_STATE].slot_bytes - SHERD_ALIGN_BYTES, "extents");
    sherdi_plan_destroy(plan);
    rig_close(&r);
}

static void every_rule_that_is_broken_is_noticed(void)
{
    rig_options    options = {.stage = 3, .dtype = SHERD_BF16};
    sherdi_machine machine = {.ranks_per_host = 4};
    sherdi_plan   *plan;
    rig            r;

    open_simulated(&r, &options, 1, 4, NULL);
    CHECK_OK(sherdi_engine_plan_make(r.engine, &machine, &plan));
    CHECK(plan->layout.num_segments == 4 && plan->schedule.train.live_ranges.count > 2 &&
          plan->schedule.transients.count == 3);
    expect_noticed(plan, &r.engine->model, &plan->layout.segments[0].slice_elems,
                   plan->layout.segments[0].slice_elems + 64, "equal slices");
    expect_noticed(plan, &r.engine->model, &plan->layout.params[2].offset_elems, 64,
                   "parameters do not overlap");
    expect_noticed(plan, &r.engine->model, &plan->layout.params[0].offset_elems, 1 << 20,
                   "ends inside its segment");
    expect_noticed(plan, &r.engine->model, &plan->layout.segments[1].param_offset, 0,
                   "do not overlap in their arena");
    expect_noticed(plan, &r.engine->model, &plan->layout.segments[1].grad_offset, 0,
                   "gradients do not overlap");
    expect_noticed(plan, &r.engine->model, &plan->packing.buffers[SHERDI_BUFFER_PARAMS].bytes, 0,
                   "arenas hold what lies in them");
    expect_noticed(plan, &r.engine->model, &plan->layout.units[0].gather_bytes, 64,
                   "segments of a gathered unit");
    expect_noticed(plan, &r.engine->model, &plan->layout.blocks[0].offset_elems, 64, "blocks tile");
    expect_noticed(plan, &r.engine->model, &plan->layout.spans[0].count_elems, 0,
                   "spans of a block");
    expect_noticed(plan, &r.engine->model, &plan->layout.spans[0].count_elems, 1 << 20,
                   "spans end inside");
    expect_noticed(plan, &r.engine->model, &plan->layout.blocks[0].state_offset, 4096, "extents");
    expect_noticed(plan, &r.engine->model, &plan->packing.buffers[SHERDI_BUFFER_GATHER].bytes, 4096,
                   "inside its pool");
    expect_noticed(plan, &r.engine->model, &plan->schedule.train.live_ranges.items[1].offset,
                   plan->schedule.train.live_ranges.items[0].offset,
                   "there together do not overlap");
    expect_noticed(plan, &r.engine->model, &plan->layout.units[1].gather_pool_offset,
                   plan->layout.units[0].gather_pool_offset, "a unit has one place");
    expect_noticed(plan, &r.engine->model, &plan->layout.units[0].transient_pool_offset, 1 << 20,
                   "place lies inside its pool");
    sherdi_plan_destroy(plan);
    rig_close(&r);
}

static void kept_unit_that_shares_its_place_is_noticed(void)
{
    rig_options       options = {.stage = 3,
                                 .zero  = ", \"stage3_prefetch_bucket_size\": 0,"
                                                " \"stage3_max_reuse_distance\": 0"};
    sherdi_machine    machine = {.ranks_per_host = 4};
    sherdi_live_range kept    = {.unit = 0};
    sherdi_plan      *plan;
    rig               r;

    open_simulated(&r, &options, 1, 4, NULL);
    CHECK_OK(sherdi_engine_plan_make(r.engine, &machine, &plan));
    CHECK_INT(plan->layout.units[0].gather_pool_offset, plan->layout.units[1].gather_pool_offset);
    plan->schedule.lasting.items = &kept;
    expect_noticed(plan, &r.engine->model, &plan->schedule.lasting.count, 1,
                   "evaluation keeps has a place of its own");
    plan->schedule.lasting.items = NULL;
    sherdi_plan_destroy(plan);
    rig_close(&r);
}

/* -------------------------------------------------------------- memory -- */

static void simulated_machines_say_what_fits(void)
{
    rig_options           options = {.stage = 0, .dtype = SHERD_BF16};
    sherd_simulate_params params;
    rig                   r;

    sherd_simulate_params_init(&params);
    params.backend      = "cuda";
    params.device_bytes = 4 << 20;
    params.host_bytes   = (size_t)1 << 30;
    open_simulated(&r, &options, 0, 4, &params);
    CHECK_OK(sherd_engine_fits(r.engine));
    CHECK_STATUS(SHERD_E_NOTSUP, sherd_engine_seal(r.engine));
    CHECK_ERROR_SAYS("cannot be sealed");
    rig_close(&r);
    params.device_bytes = 1 << 20;
    open_simulated(&r, &options, 0, 4, &params);
    CHECK_STATUS(SHERD_E_NOMEM, sherd_engine_fits(r.engine));
    CHECK_ERROR_SAYS("of device memory on each rank");
    CHECK_ERROR_SAYS("would fit");
    rig_close(&r);
}

/* A seal on a simulated host refuses as a real one. */
static void simulated_host_refuses_at_seal(void)
{
    rig_options           options = {.stage = 0, .dtype = SHERD_BF16};
    sherd_simulate_params params;
    rig                   r;

    sherd_simulate_params_init(&params);
    params.ranks_per_host = 2;
    params.host_bytes     = 3 << 20;
    open_simulated(&r, &options, 3, 4, &params);
    CHECK_STATUS(SHERD_E_NOMEM, sherd_engine_seal(r.engine));
    CHECK_ERROR_SAYS("on each of 2 ranks of this host");
    CHECK_ERROR_SAYS("would fit");
    rig_close(&r);
}

static void simulated_nonsense_is_refused(void)
{
    sherd_simulate_params params;
    sherd_world          *world;

    sherd_simulate_params_init(&params);
    params.backend = "tpu";
    CHECK_STATUS(SHERD_E_INVAL, sherd_world_simulate_with(0, 2, &params, &world));
    CHECK_ERROR_SAYS("'tpu'");
    sherd_simulate_params_init(&params);
    params.ranks_per_host = -1;
    CHECK_STATUS(SHERD_E_INVAL, sherd_world_simulate_with(0, 2, &params, &world));
    params.ranks_per_host = 0;
    params.struct_size    = 3;
    CHECK_STATUS(SHERD_E_INVAL, sherd_world_simulate_with(0, 2, &params, &world));
    CHECK_STATUS(SHERD_E_INVAL, sherd_world_simulate_with(2, 2, NULL, &world));
}

static void fits_is_asked_before_seal(void)
{
    rig_options          options = {.stage = 1};
    sherd_traffic_report traffic;
    rig                  r;

    open_simulated(&r, &options, 0, 2, NULL);
    CHECK_STATUS(SHERD_E_INVAL, sherd_engine_traffic(r.engine, NULL));
    sherd_traffic_report_init(&traffic);
    traffic.struct_size += 8;
    CHECK_STATUS(SHERD_E_INVAL, sherd_engine_traffic(r.engine, &traffic));
    CHECK_OK(sherd_engine_fits(r.engine));
    CHECK_OK(sherd_engine_seal(r.engine));
    CHECK_STATUS(SHERD_E_STATE, sherd_engine_fits(r.engine));
    CHECK_OK(sherd_engine_check_plans(r.engine));
    rig_close(&r);
}

static const test_case cases[] = {
    CASE(plans_of_all_ranks_pass_for_every_layout),
    CASE(values_that_lie_elsewhere_are_noticed),
    CASE(every_rule_that_is_broken_is_noticed),
    CASE(kept_unit_that_shares_its_place_is_noticed),
    CASE(simulated_machines_say_what_fits),
    CASE(simulated_host_refuses_at_seal),
    CASE(simulated_nonsense_is_refused),
    CASE(fits_is_asked_before_seal),
};

RUN_MAIN(cases)
