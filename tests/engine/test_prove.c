/* The proof of plans. Plans of drawn layouts have no hazard; if an order is taken out, the check
 * names the hazard that this makes. */
#include "engine/proof/prove.h"
#include "engine/declarations.h"
#include "engine/plan/activations.h"
#include "engine/run/memory.h"
#include "engine/proof/emit.h"

#include "base/checked.h"
#include "tests/campaign/layout.h"
#include "tests/lib/check.h"
#include "offload/tiers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------ drawn plans -- */

typedef struct bench {
    layout          what;
    sherdi_mem      mem;
    sherdi_model    model;
    sherdi_settings settings;
    sherdi_machine  machine;
    sherdi_plan    *plans[LAYOUT_RANKS];
} bench;

/* Declares the drawn units. Every third model has units that are used any number of times, every
 * fifth has some that retain their gradients. */
static void declare_units(bench *b, uint64_t seed)
{
    for (int u = 0; u < b->what.num_units; u++) {
        sherd_unit_params params;
        char              name[16];
        int               unit;

        sherd_unit_params_init(&params);
        (void)snprintf(name, sizeof(name), "u%d", u);
        params.name = name;
        if (seed % 3 == 0 && (seed / 3 + (uint64_t)u) % 3 != 0) {
            params.backward_uses = SHERD_USES_ANY;
        }
        params.retain_grads = seed % 5 == 0 && (seed / 5 + (uint64_t)u) % 2 == 0;
        CHECK_OK(sherdi_model_add_unit(&b->model, &params, &unit));
    }
    for (int p = 0; p < b->what.num_params; p++) {
        const layout_param *from = &b->what.params[p];
        sherd_param_params  params;
        char                name[16];
        int                 param;

        sherd_param_params_init(&params);
        (void)snprintf(name, sizeof(name), "p%d", p);
        params.name       = name;
        params.ndim       = from->ndim;
        params.shape[0]   = from->shape[0];
        params.shape[1]   = from->shape[1];
        params.frozen     = from->is_frozen;
        params.atom_elems = from->atom_elems;
        params.dtype      = from->dtype == b->what.dtype ? -1 : (int)from->dtype;
        CHECK_OK(sherdi_model_add_param(&b->model, from->unit, &params, &param));
        if (b->what.is_bound) { /* a plan never reads this memory */
            CHECK_OK(sherdi_model_bind(&b->model, param, b, from->is_frozen ? NULL : b));
        }
    }
}

/* Adds to the drawn layout: units that are held, passes with an order of their own. */
static void declare_uses(bench *b, uint64_t *state)
{
    uint64_t units = (uint64_t)b->what.num_units;

    for (int u = 0; u < b->what.num_units; u++) {
        if (b->what.reads[u] >= 0) {
            CHECK_OK(sherdi_model_add_read(&b->model, u, b->what.reads[u]));
        }
    }
    for (int pass = 0; pass < 3; pass++) {
        /* one draw in each line: the compiler chooses the order of operands */
        uint64_t has_own = test_random(state) % 3 / 2;
        uint64_t count   = 1 + test_random(state) % 8;

        for (uint64_t i = has_own * count; i > 0; i--) {
            size_t held = test_random(state) % 3 == 0 ? (size_t)(test_random(state) % 12) : 0;
            int    unit = (int)(test_random(state) % units);

            CHECK_OK(sherdi_model_add_pass(&b->model, (sherd_pass)pass, unit, held));
        }
    }
}

static size_t times_in(const sherdi_model *model, sherd_pass pass, int unit)
{
    size_t times = 0;

    for (size_t i = 0; i < sherdi_model_order_len(model, pass); i++) {
        times += sherdi_model_order(model, pass, i).unit == unit;
    }
    return times;
}

/* Two thirds of the units that can have an activation have one, on any tier. */
static void declare_activations(bench *b, uint64_t seed)
{
    uint64_t own = ~seed, *state = &own; /* the other draws stay as they are */

    b->settings.offload.activations.buffer_count = 1 + (int)(test_random(state) % 3);
    for (int u = 0; u < b->what.num_units; u++) {
        size_t len_bytes = 1 + (size_t)(test_random(state) % 20000);
        size_t tier      = (size_t)(test_random(state) % 3);

        if (test_random(state) % 3 > 0 && !b->model.units[u].has_any_uses &&
            times_in(&b->model, SHERD_FORWARD, u) == 1 &&
            times_in(&b->model, SHERD_BACKWARD, u) == 1) {
            CHECK_OK(sherdi_model_add_activation(&b->model, u, len_bytes, sherdi_tier_at(tier)));
        }
    }
}

/* Returns the machine of a kind: 0: the host, 1: a device with separate memory, 2: a device that
 * orders the wire. */
static sherdi_machine machine_of(uint64_t kind)
{
    return (sherdi_machine){.ranks_per_host = 1,
                            .has_device     = kind > 0,
                            .is_on_lane     = kind == 2,
                            .has_receive    = kind == 2};
}

/* If all state rests on storage, any machine can have its encodings. */
static int is_all_on_storage(const sherdi_settings *settings)
{
    return settings->sharding.stage > 0 && settings->offload.state.space == SHERDI_SPACE_STORAGE &&
           settings->offload.ratio == 1;
}

static int can_be_encoded(const bench *b)
{
    return b->settings.numerics.compute_dtype == SHERD_BF16 && is_all_on_storage(&b->settings) &&
           !b->what.is_bound;
}

/* Whether only the host can have this layout: because of the trainer's own memory, or because of
 * encodings that were drawn for state in the memory of a CPU. */
static int is_on_host_alone(const bench *b)
{
    return b->what.is_bound ||
           (b->settings.master_encoding != SHERDI_MASTER_F32 && !is_all_on_storage(&b->settings));
}

static void bench_open(bench *b, uint64_t seed)
{
    uint64_t      state = seed;
    sherd_config *config;

    memset(b, 0, sizeof(*b));
    layout_draw(seed, 0, "/nowhere", 0, &b->what);
    sherdi_mem_init(&b->mem);
    CHECK_OK(sherdi_model_init(&b->model, &b->mem));
    declare_units(b, seed);
    declare_uses(b, &state);
    CHECK_OK(sherd_config_parse(b->what.json, strlen(b->what.json), &config));
    CHECK_OK(sherdi_config_resolve(config, b->what.world_size, &b->settings));
    sherd_config_destroy(config);
    b->settings.batch.skips_unused = seed % 4 == 1;
    declare_activations(b, seed);
    b->settings.is_debug = test_random(&state) % 16 == 0;
    b->machine           = machine_of(is_on_host_alone(b) ? 0 : test_random(&state) % 3);
    if (can_be_encoded(b)) {
        b->settings.master_encoding = (int)(test_random(&state) % 3);
        b->settings.moment_encoding = (int)(test_random(&state) % 3);
    }
}

/* Makes the plans of all ranks. Returns 0 if there are none, because atoms would be divided. */
static int plans_make(bench *b)
{
    for (int rank = 0; rank < b->what.world_size; rank++) {
        sherd_status status = sherdi_dry_plan(&b->model, &b->settings, rank, b->what.world_size,
                                              &b->machine, &b->mem, &b->plans[rank]);

        if (status == SHERD_E_INVAL && strstr(sherd_last_error(), "atom_elems") != NULL) {
            return 0;
        }
        CHECK_OK(status);
    }
    return 1;
}

static void bench_close(bench *b)
{
    for (int rank = 0; rank < b->what.world_size; rank++) {
        sherdi_plan_destroy(b->plans[rank]);
    }
    sherdi_model_fini(&b->model);
    CHECK_INT(0, sherdi_mem_held_all(&b->mem));
}

/* Proves the plans of a seed, adds to the counts, and returns how many were proved. */
static size_t seed_prove(uint64_t seed, sherdi_prove_counts *all)
{
    sherdi_prove_counts counts = {0};
    bench               b;
    size_t              proved = 0;

    bench_open(&b, seed);
    if (plans_make(&b)) {
        int last = b.what.world_size - 1;

        for (int rank = last > 1 ? 1 : last; rank <= last; rank += last > 1 ? last - 1 : 1) {
            if (sherdi_prove(b.plans[0], b.plans[rank], &b.model,
                             &(sherdi_prove_params){.counts = &counts}) != SHERD_OK) {
                char text[4096];

                layout_describe(&b.what, text, sizeof(text));
                test_fail(__FILE__, __LINE__, "seed %llu, machine %d%d: %s\n%s",
                          (unsigned long long)seed, b.machine.has_device, b.machine.is_on_lane,
                          sherd_last_error(), text);
            }
            for (int is_taken = 0; is_taken < 2; is_taken++) {
                all->planned[is_taken] += counts.planned[is_taken];
                all->off_plan[is_taken] += counts.off_plan[is_taken];
            }
            all->updates_queued += counts.updates_queued;
            all->applied_queued += counts.applied_queued;
            all->activations[0] += counts.activations[0];
            all->activations[1] += counts.activations[1];
            proved++;
        }
    }
    bench_close(&b);
    return proved;
}

/* An acquire that the engine refuses proves nothing. Of the planned ones it refuses those of a unit
 * that is held already, or whose gradient is complete; of those off the plan also many for which
 * there is no memory. */
static void drawn_plans_have_no_hazard(void)
{
    size_t              wanted = test_is_long() ? 10000 : 300;
    size_t              proved = 0;
    sherdi_prove_counts counts = {0};

    for (uint64_t seed = 1; proved < wanted; seed++) {
        proved += seed_prove(seed, &counts);
    }
    CHECK(counts.planned[1] > 10 * counts.planned[0]);
    CHECK(counts.off_plan[1] > 5 * counts.off_plan[0]);
    CHECK(counts.updates_queued > proved); /* on average one of each plan */
    CHECK(counts.applied_queued > proved);
    CHECK(counts.activations[1] > 10 * proved && counts.activations[1] > counts.activations[0]);
}

/* This seed is from the long list. One rank alone acquires a unit whose gradient's place in the
 * pool is taken by the retained gradient of a unit outside the passes. */
static void acquire_of_one_rank_may_be_refused(void)
{
    sherdi_prove_counts unused = {0};

    CHECK(seed_prove(4515, &unused) > 0);
    CHECK(seed_prove(4454, &unused) > 0); /* while an update has the ring of parameters */
}

/* ---------------------------------------------------- order that is taken out -- */

#define SEEDS_TRIED 600

static sherd_status seed_prove_without(bench *b, const sherdi_prove_params *params)
{
    return sherdi_prove(b->plans[0], b->plans[b->what.world_size > 1], &b->model, params);
}

/* Whether the seed's plans, which have no hazard, have this one with `params`. */
static int is_found(uint64_t seed, const sherdi_prove_params *params, const char *later,
                    const char *earlier)
{
    bench b;
    int   found = 0;

    bench_open(&b, seed);
    if (plans_make(&b)) {
        CHECK_OK(seed_prove_without(&b, NULL));
        found = seed_prove_without(&b, params) == SHERD_E_STATE &&
                strstr(sherd_last_error(), later) != NULL &&
                strstr(sherd_last_error(), earlier) != NULL;
    }
    bench_close(&b);
    return found;
}

/* Looks for the hazard in the seed's plans. Another compiler may draw other plans, so then it looks
 * in the plans of some hundred seeds. */
static void expect_found(uint64_t seed, const sherdi_prove_params *params, const char *later,
                         const char *earlier)
{
    if (is_found(seed, params, later, earlier)) {
        return;
    }
    for (uint64_t other = 1; other <= SEEDS_TRIED; other++) {
        if (is_found(other, params, later, earlier)) {
            return;
        }
    }
    test_fail(__FILE__, __LINE__, "no hazard says \"%s\" and \"%s\" (last error: %s)", later,
              earlier, sherd_last_error());
}

typedef struct mistake {
    sherdi_lane_id by, followed;
    uint64_t       seed;
    const char    *later, *earlier;
} mistake;

static const mistake LANES[] = {
    {SHERDI_LANE_COMPUTE, SHERDI_LANE_UP, 104, "use of u0 on lane compute reads",
     "copy of u0 on lane up still writes"},
    {SHERDI_LANE_COMPUTE, SHERDI_LANE_WIRE, 1, "use of u0 on lane compute reads",
     "gather of u0 on lane wire still writes"},
    {SHERDI_LANE_UPDATE, SHERDI_LANE_COMPUTE, 1, "widen of u0 on lane update reads",
     "zero of u0 on lane compute still writes"},
    {SHERDI_LANE_UPDATE, SHERDI_LANE_DOWN, 9, "zero of u1 on lane update writes",
     "copy of u0 on lane down still reads"},
    {SHERDI_LANE_UPDATE, SHERDI_LANE_WIRE, 1, "widen of u0 on lane update reads",
     "reduce of u0 on lane wire still writes"},
    {SHERDI_LANE_UP, SHERDI_LANE_COMPUTE, 1, "copy of u0 on lane up writes",
     "use of u0 on lane compute still reads"},
    {SHERDI_LANE_UP, SHERDI_LANE_DOWN, 9, "copy of u3 on lane up reads",
     "copy of u3 on lane down still writes"},
    {SHERDI_LANE_UP, SHERDI_LANE_WIRE, 1, "copy of u0 on lane up writes",
     "gather of u0 on lane wire still reads"},
    {SHERDI_LANE_UP, SHERDI_LANE_DRIVE, 12, "copy of u1 on lane up reads",
     "read of u1 on lane drive still writes"},
    {SHERDI_LANE_DOWN, SHERDI_LANE_UPDATE, 1, "copy of u0 on lane down reads",
     "widen of u0 on lane update still writes"},
    {SHERDI_LANE_DOWN, SHERDI_LANE_WIRE, 29, "copy of u0 on lane down reads",
     "reduce of u0 on lane wire still writes"},
    {SHERDI_LANE_DOWN, SHERDI_LANE_DRIVE, 14, "copy of u1 on lane down writes",
     "write of u0 on lane drive still reads"},
    {SHERDI_LANE_WIRE, SHERDI_LANE_COMPUTE, 1, "reduce of u0 on lane wire reads",
     "use of u0 on lane compute still writes"},
    {SHERDI_LANE_WIRE, SHERDI_LANE_UPDATE, 10, "gather of u0 on lane wire reads",
     "update of u0 on lane update still writes"},
    {SHERDI_LANE_WIRE, SHERDI_LANE_UP, 1, "gather of u0 on lane wire reads",
     "copy of u0 on lane up still writes"},
    {SHERDI_LANE_WIRE, SHERDI_LANE_DOWN, 55, "reduce of u2 on lane wire writes",
     "copy of u3 on lane down still reads"},
    {SHERDI_LANE_GROUP, SHERDI_LANE_WIRE, 3, "across of u2 on lane group writes",
     "reduce of u2 on lane wire still writes"},
    {SHERDI_LANE_WIRE, SHERDI_LANE_GROUP, 19, "reduce of u1 on lane wire writes",
     "across of u1 on lane group still writes"},
    {SHERDI_LANE_UPDATE, SHERDI_LANE_GROUP, 3, "norm on lane update reads",
     "across of u0 on lane group still writes"},
    {SHERDI_LANE_COMPUTE, SHERDI_LANE_GROUP, 6, "zero of u1 on lane compute writes",
     "across of u1 on lane group still writes"},
    {SHERDI_LANE_DRIVE, SHERDI_LANE_UP, 12, "read of u1 on lane drive writes",
     "copy of u1 on lane up still reads"},
    {SHERDI_LANE_DRIVE, SHERDI_LANE_DOWN, 29, "write of u0 on lane drive reads",
     "copy of u0 on lane down still writes"},
    {SHERDI_LANE_DRIVE, SHERDI_LANE_DRIVE, 1, "read on lane drive writes",
     "read on lane drive still writes"},
    {SHERDI_LANE_HOST, SHERDI_LANE_UPDATE, 1, "collect on lane host reads",
     "copy on lane update still writes"},
    {SHERDI_LANE_HOST, SHERDI_LANE_UP, 1, "zero of u0 on lane host writes",
     "copy of u0 on lane up still reads"},
    {SHERDI_LANE_HOST, SHERDI_LANE_DOWN, 1, "update of u0 on lane host reads",
     "copy of u0 on lane down still writes"},
    {SHERDI_LANE_HOST, SHERDI_LANE_COMPUTE, 5, "fill of u0 on lane host writes",
     "copy of u0 on lane compute still reads"},
    {SHERDI_LANE_HOST, SHERDI_LANE_DRIVE, 5, "zero of u0 on lane host writes",
     "write on lane drive still reads"},
    {SHERDI_LANE_HOST, SHERDI_LANE_DRIVE, 1, "copy of u0 on lane host writes",
     "write on lane drive still reads"},
};

/* No lane follows in the other pairs of lanes, or what it follows elsewhere orders them too. */
static void lane_that_does_not_follow_another_is_named(void)
{
    for (size_t i = 0; i < sizeof(LANES) / sizeof(LANES[0]); i++) {
        expect_found(LANES[i].seed,
                     &(sherdi_prove_params){.drop     = SHERDI_HAZARD_DROP_LANE,
                                            .by       = LANES[i].by,
                                            .followed = LANES[i].followed},
                     LANES[i].later, LANES[i].earlier);
    }
}

static void calls_that_do_not_meet_are_named(void)
{
    static const struct {
        sherdi_op_kind kind;
        uint64_t       seed;
        const char    *later, *earlier;
    } CALLS[] = {
        {SHERDI_OP_GATHER, 1, "another rank's gather of u0 on lane wire reads",
         "copy of u0 on lane up still writes"},
        {SHERDI_OP_REDUCE, 1, "another rank's reduce of u0 on lane wire reads",
         "use of u0 on lane compute still writes"},
        {SHERDI_OP_EXCHANGE, 6, "another rank's gather of u0 on lane wire reads",
         "copy of u0 on lane up still writes"},
        {SHERDI_OP_EXCHANGE, 11, "another rank's gather of u0 on lane wire reads",
         "update of u0 on lane update still writes"}, /* an acquire at stage 3 */
        {SHERDI_OP_EXCHANGE, 16, "another rank's gather of u0 on lane wire reads",
         "update of u0 on lane update still writes"}, /* the publication at stage 1 */
    };

    for (size_t i = 0; i < sizeof(CALLS) / sizeof(CALLS[0]); i++) {
        expect_found(
            CALLS[i].seed,
            &(sherdi_prove_params){.drop = SHERDI_HAZARD_DROP_MEETS, .kind = CALLS[i].kind},
            CALLS[i].later, CALLS[i].earlier);
        CHECK_ERROR_SAYS("no call between them makes one rank wait");
    }
}

/* An acquire that does not wait for its unit's update, a gradient that does not wait for the walk,
 * and a call that does not wait for the end. */
static void awaits_that_wait_for_nothing_are_named(void)
{
    static const struct {
        sherdi_post post;
        uint64_t    seed;
        const char *later, *earlier;
    } AWAITS[] = {
        {SHERDI_POST_UNIT, 6, "gather of u0 on lane wire reads", "on lane up still writes"},
        {SHERDI_POST_WALK, 413, "on lane host writes",
         "on lane up still reads (ring of parameters"},
        {SHERDI_POST_END, 6, "on lane", "still"},
    };

    for (size_t i = 0; i < sizeof(AWAITS) / sizeof(AWAITS[0]); i++) {
        expect_found(AWAITS[i].seed,
                     &(sherdi_prove_params){.drop   = SHERDI_HAZARD_DROP_AWAIT,
                                            .number = (uint64_t)AWAITS[i].post},
                     AWAITS[i].later, AWAITS[i].earlier);
    }
}

/* When the ranks agree on whether and how an undo begins, they also meet, twice; and once in what
 * comes before it. After that a peer has read what is written anew. */
static void undo_that_does_not_meet_first_is_named(void)
{
    sherdi_prove_params without = {.drop = SHERDI_HAZARD_DROP_MEETS, .kind = SHERDI_OP_EXCHANGE};
    size_t              named   = 0;
    size_t              found   = 0;
    bench               b;

    bench_open(&b, 6);
    CHECK(plans_make(&b));
    for (without.number = 1; without.number < 400; without.number++) {
        /* more than there are exchanges */
        without.last_number = without.number + 2;
        if (seed_prove_without(&b, &without) != SHERD_OK) {
            CHECK_ERROR_SAYS("no call between them makes one rank wait");
            found++;
            named +=
                strstr(sherd_last_error(), "copy of u0 on lane up writes bytes that another "
                                           "rank's gather of u0 on lane wire still reads") != NULL;
        }
    }
    CHECK(named > 0 && found > named); /* the other hazards are those of updates */
    bench_close(&b);
}

/* Makes the plans of one unit with one parameter, on the host. */
static void tiny_open(bench *b, const char *json)
{
    sherd_config *config;

    memset(b, 0, sizeof(*b));
    b->what.world_size = 2;
    b->what.num_units  = 1;
    b->what.num_params = 1;
    b->what.params[0]  = (layout_param){.ndim = 1, .shape = {300}};
    b->machine         = machine_of(0);
    sherdi_mem_init(&b->mem);
    CHECK_OK(sherdi_model_init(&b->model, &b->mem));
    declare_units(b, 1);
    CHECK_OK(sherd_config_parse(json, strlen(json), &config));
    CHECK_OK(sherdi_config_resolve(config, b->what.world_size, &b->settings));
    sherd_config_destroy(config);
    CHECK(plans_make(b));
}

/* Takes out one follow at a time (a sample of some hundred if there are more). Counts the hazards
 * that this makes, and returns how many of them have this text. */
static size_t each_follow_take_out(bench *b, const char *text, size_t *found_out)
{
    sherdi_prove_params without = {.drop = SHERDI_HAZARD_DROP_NUMBER};
    sherdi_prove_counts counts;
    uint64_t            step;
    size_t              named = 0;

    CHECK_OK(seed_prove_without(b, &(sherdi_prove_params){.counts = &counts}));
    step = test_is_long() ? 1 : 1 + counts.follows / 300;
    for (without.number = 1; without.number <= counts.follows; without.number += step) {
        if (seed_prove_without(b, &without) != SHERD_OK) {
            ++*found_out;
            named += strstr(sherd_last_error(), text) != NULL;
        }
    }
    return named;
}

/* A window that is dropped in backward leaves a reduction under way, which counts the values that
 * its integers cannot hold. The next window begins with a count of zero. */
static void counts_that_do_not_wait_for_the_reduction_of_a_dropped_window_are_named(void)
{
    size_t found = 0;
    size_t named;
    bench  b;

    tiny_open(&b, "{\"train_micro_batch_size_per_gpu\": 1, \"deterministic\": true, \"optimizer\": "
                  "{\"type\": \"AdamW\", \"params\": {\"lr\": 0.01}}, \"zero_optimization\": "
                  "{\"stage\": 3, \"overlap_comm\": true, "
                  "\"stage3_param_persistence_threshold\": 0}}");
    named = each_follow_take_out(
        &b, "clear on lane compute writes bytes that reduce of u0 on lane wire still writes",
        &found);
    /* the other hazards are uses that do not wait for their gathers */
    CHECK(named > 0 && found > named);
    bench_close(&b);
}

/* The fill comes before the update. It would hide this hazard if its end did not wait for all
 * transfers. */
static void update_that_does_not_wait_for_its_read_is_named(void)
{
    size_t found = 0;
    size_t named;
    bench  b;

    bench_open(&b, 1);
    CHECK(plans_make(&b));
    named = each_follow_take_out(
        &b, "update of u0 on lane host reads bytes that read on lane drive still writes", &found);
    CHECK(named > 0 && found > named);
    bench_close(&b);
}

static const test_case CASES[] = {
    CASE(drawn_plans_have_no_hazard),
    CASE(acquire_of_one_rank_may_be_refused),
    CASE(lane_that_does_not_follow_another_is_named),
    CASE(calls_that_do_not_meet_are_named),
    CASE(awaits_that_wait_for_nothing_are_named),
    CASE(undo_that_does_not_meet_first_is_named),
    CASE(counts_that_do_not_wait_for_the_reduction_of_a_dropped_window_are_named),
    CASE(update_that_does_not_wait_for_its_read_is_named),
};

RUN_MAIN(CASES)
