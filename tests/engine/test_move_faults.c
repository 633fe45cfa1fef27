/* Moves that fail: where memory is missing on one rank all ranks have their engines as before, and
 * what cannot move is refused by name. */
#include "base/mem.h"
#include "engine/run/engine_impl.h"
#include "tests/engine/rig.h"
#include "tests/lib/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEPS 400

/* Ranks that train, move, and train on. */
typedef struct crew {
    rig_options  options;
    int          old_size, new_size;
    int          global;
    int          faulty; /* the slot whose allocations fail; -1: none */
    sherd_world *worlds[2][4];
    uint64_t     fingerprints[STEPS];
    int          num_steps;
    int          num_faults;
} crew;

static sherd_world_params world_params(void)
{
    sherd_world_params params;

    sherd_world_params_init(&params);
    params.timeout_ns  = INT64_C(30000000000);
    params.cpu_threads = 1;
    return params;
}

static void crew_declare(const crew *c, rig *r, sherd_world *world)
{
    rig_options options = c->options;

    options.accumulation = c->global / sherd_world_size(world);
    rig_open(r, world, &options);
    rig_three(r, 2000);
}

static void crew_step(const crew *c, rig *r, int step, uint64_t *out)
{
    int size = sherd_world_size(r->world);

    r->micro = (int64_t)step * c->global / size;
    *out     = rig_train(r, c->global / size).fingerprint;
}

/* Tries the move until it succeeds: one allocation more is made in each try. */
static void crew_part(int slot, void *ctx)
{
    crew        *c     = ctx;
    sherd_world *old   = slot < c->old_size ? c->worlds[0][slot] : NULL;
    sherd_world *world = slot < c->new_size ? c->worlds[1][slot] : NULL;
    sherd_status status;
    uint64_t     own;
    int          step = 0;
    rig          r;

    if (old == NULL) {
        CHECK_OK(sherd_world_self(&old));
        crew_declare(c, &r, old);
    } else {
        crew_declare(c, &r, old);
        rig_seal(&r);
        crew_step(c, &r, step, &own);
    }
    for (size_t n = 1; n < STEPS; n++) {
        (void)sherdi_mem_fail_nth(slot == c->faulty ? n : 0);
        status = sherd_engine_move(r.engine, world);
        (void)sherdi_mem_fail_nth(0);
        if (status == SHERD_OK) {
            break;
        }
        CHECK_INT(SHERD_E_NOMEM, status);
        if (slot == c->faulty) {
            c->num_faults++;
        }
        step++;
        if (slot < c->old_size) { /* the engine is where it was */
            crew_step(c, &r, step, slot == 0 ? &c->fingerprints[step] : &own);
        }
    }
    CHECK_OK(status);
    sherd_world_destroy(old);
    if (world != NULL) {
        r.world = world;
        step++;
        crew_step(c, &r, step, slot == 0 ? &c->fingerprints[step] : &own);
        if (slot == 0) {
            c->num_steps = step;
        }
    }
    rig_close(&r);
    sherd_world_destroy(world);
}

static void crew_run(crew *c)
{
    sherd_world_params params = world_params();

    CHECK_OK(sherd_world_threads_with(c->old_size, &params, c->worlds[0]));
    CHECK_OK(sherd_world_threads_with(c->new_size, &params, c->worlds[1]));
    test_threads(c->old_size > c->new_size ? c->old_size : c->new_size, crew_part, c);
}

static void twin_train(sherd_world *world, void *ctx)
{
    crew    *c = ctx;
    uint64_t own;
    rig      r;

    crew_declare(c, &r, world);
    rig_seal(&r);
    for (int step = 0; step <= c->num_steps; step++) {
        crew_step(c, &r, step, &own);
        if (step > 0 && sherd_world_rank(world) == 0 && own != c->fingerprints[step]) {
            test_fail(__FILE__, __LINE__, "step %d of %d has another fingerprint", step,
                      c->num_steps);
        }
    }
    rig_close(&r);
}

static void expect_whole(const rig_options *options, int old_size, int new_size, int faulty)
{
    crew c = {.options  = *options,
              .old_size = old_size,
              .new_size = new_size,
              .global   = 6,
              .faulty   = faulty};

    crew_run(&c);
    CHECK(c.num_faults > (faulty >= new_size ? 5 : 30));
    test_world(1, twin_train, &c);
}

static void no_memory_in_a_move_leaves_all_engines_as_they_were(void)
{
    static const rig_options OPTIONS[] = {
        {.stage = 2,
         .dtype = SHERD_BF16,
         .zero  = ", \"offload_optimizer\": {\"device\": \"cpu\"}",
         .top   = ", \"deterministic\": true"},
        {.stage = 3, .dtype = SHERD_BF16, .top = ", \"deterministic\": true"},
        {.stage = 2,
         .dtype = SHERD_BF16,
         .top   = ", \"deterministic\": true, \"sherd\": {\"shard_size\": 1, "
                  "\"elastic\": [1, 3]}"},
    };

    for (int o = 0; o < (getenv("SHERD_BACKEND") != NULL ? 2 : 3);
         o++) {                             /* a device has no replicas */
        expect_whole(&OPTIONS[o], 3, 2, 0); /* a rank that stays */
        expect_whole(&OPTIONS[o], 3, 2, 2); /* one that leaves */
        expect_whole(&OPTIONS[o], 2, 3, 1);
        expect_whole(&OPTIONS[o], 2, 3, 2); /* a newcomer */
    }
}

/* ------------------------------------------------------------- what is refused -- */

static void refused_train(sherd_world *world, void *ctx)
{
    const rig_options *options = ctx;
    sherd_world       *other;
    uint64_t           before;
    rig                r;

    CHECK_OK(sherd_world_self(&other));
    rig_open(&r, world, options);
    rig_three(&r, 2000);
    rig_seal(&r);
    before = rig_train(&r, 1).fingerprint;
    rig_micro_batch(&r); /* a refusal drops no window */
    CHECK(setenv("SHERD_TRACE", "/nowhere/trace.json", 1) == 0);
    CHECK_OK(sherd_world_barrier(world));
    CHECK_STATUS(SHERD_E_NOTSUP, sherd_engine_move(r.engine, other));
    CHECK_ERROR_SAYS("sherd_engine_move: not with ");
    CHECK_OK(sherd_world_barrier(world));
    CHECK(unsetenv("SHERD_TRACE") == 0);
    CHECK_INT(before, rig_fingerprint(&r));
    CHECK_INT(1, rig_step(&r).was_updated);
    rig_close(&r);
    sherd_world_destroy(other);
}

static void what_cannot_move_is_refused_and_trains_on(void)
{
    rig_options options = {.stage = 3};

    test_world(1, refused_train, &options);
}

/* Without sherd.elastic no run comes to a number that the ranks of a copy do not divide. */
static void divided_train(sherd_world *world, void *ctx)
{
    const rig_options *options = ctx;
    sherd_world       *small   = NULL;
    uint64_t           before;
    rig                r;

    rig_open(&r, world, options);
    rig_three(&r, 2000);
    rig_seal(&r);
    before = rig_train(&r, 1).fingerprint;
    if (sherd_world_rank(world) == 3) {
        CHECK_OK(sherd_world_leave(world));
    } else {
        CHECK_OK(sherd_world_shrink(world, &small));
    }
    CHECK_STATUS(SHERD_E_INVAL, sherd_engine_move(r.engine, small));
    if (small != NULL) {
        CHECK_ERROR_SAYS("choose a number that divides both, or give sherd.elastic");
    }
    CHECK_INT(before, rig_fingerprint(&r));
    CHECK_INT(1, rig_train(&r, 1).was_updated);
    rig_close(&r);
    sherd_world_destroy(small);
}

static void a_number_that_divides_no_copy_is_refused_without_the_key(void)
{
    rig_options shards = {.stage = 3, .top = ", \"sherd\": {\"shard_size\": 2}"};
    rig_options copies = {.stage = 3, .zero = ", \"zero_hpz_partition_size\": 2"};

    test_world(4, divided_train, &shards);
    test_world(4, divided_train, &copies);
}

static void arguments_train(sherd_world *world, void *ctx)
{
    rig_options  options = {.stage = 2};
    int          rank    = sherd_world_rank(world);
    sherd_world *half;
    rig          r;
    rig          other;

    (void)ctx;
    rig_open(&r, world, &options);
    rig_three(&r, 2000);
    CHECK_STATUS(SHERD_E_INVAL, sherd_engine_move(r.engine, NULL)); /* it has no state to give */
    CHECK_STATUS(SHERD_E_INVAL, sherd_engine_move(NULL, world));
    rig_seal(&r);
    CHECK_STATUS(SHERD_E_INVAL, sherd_engine_move(r.engine, world));
    CHECK_ERROR_SAYS("is in this world already");
    CHECK_STATUS(SHERD_E_INVAL, sherd_engine_move(r.engine, NULL));
    CHECK_ERROR_SAYS("all 4 ranks leave");

    CHECK_OK(sherd_world_split(world, rank / 2, 0, &half));
    CHECK_STATUS(SHERD_E_INVAL, sherd_engine_move(r.engine, half));
    CHECK_ERROR_SAYS("the old world go on");
    CHECK_STATUS(SHERD_E_INVAL, sherd_engine_move(r.engine, rank == 3 ? NULL : half));
    CHECK_ERROR_SAYS("3 of 4 ranks go on, and the new world has 2");
    CHECK_INT(1, rig_train(&r, 1).was_updated);

    /* nobody has the state */
    rig_open(&other, world, &options);
    rig_three(&other, 2000);
    CHECK_STATUS(SHERD_E_INVAL, sherd_engine_move(other.engine, half));
    CHECK_ERROR_SAYS("no rank of the new world has the state");
    rig_close(&other);
    rig_close(&r);
    sherd_world_destroy(half);
}

static void arguments_that_do_not_fit_are_refused(void)
{
    test_world(4, arguments_train, NULL);
}

/* A newcomer with another model, or another configuration. */
static void strange_part(int slot, void *ctx)
{
    crew        *c     = ctx;
    sherd_world *old   = slot < 2 ? c->worlds[0][slot] : NULL;
    sherd_world *world = c->worlds[1][slot];
    rig          r;

    if (old != NULL) {
        crew_declare(c, &r, old);
        rig_seal(&r);
    } else {
        rig_options options = c->options;

        CHECK_OK(sherd_world_self(&old));
        options.micro_batch = c->faulty == 1 ? 2 : 1;
        options.clip        = c->faulty == 2 ? 3 : 0;
        rig_open(&r, old, &options);
        rig_three(&r, c->faulty == 0 ? 2001 : 2000);
    }
    CHECK_STATUS(SHERD_E_INVAL, sherd_engine_move(r.engine, world));
    if (slot < 2) {
        uint64_t own;

        crew_step(c, &r, 0, &own);
    }
    rig_close(&r);
    sherd_world_destroy(old);
    sherd_world_destroy(world);
}

static void newcomers_that_do_not_fit_are_refused(void)
{
    for (int kind = 0; kind < 3; kind++) {
        sherd_world_params params = world_params();
        crew               c      = {.options = {.stage = 2}, .global = 6, .faulty = kind};

        CHECK_OK(sherd_world_threads_with(2, &params, c.worlds[0]));
        CHECK_OK(sherd_world_threads_with(3, &params, c.worlds[1]));
        test_threads(3, strange_part, &c);
    }
}

/* ------------------------------------------------------------------ lost ranks -- */

static void lost_part(int slot, void *ctx)
{
    crew        *c     = ctx;
    sherd_world *old   = c->worlds[0][slot];
    sherd_world *world = slot < 2 ? c->worlds[1][slot] : NULL;
    rig          r;

    crew_declare(c, &r, old);
    rig_seal(&r);
    if (slot == c->faulty) {
        sherd_world_abort(slot < 2 ? world : old, "it has had enough");
    } else {
        CHECK_STATUS(c->faulty == 2 ? SHERD_E_STATE : SHERD_E_PEER_LOST,
                     sherd_engine_move(r.engine, world));
        CHECK_ERROR_SAYS(slot < 2 || c->faulty == 2 ? "it has had enough" : "peer");
    }
    sherd_world_abort(old, "the end");
    rig_close(&r);
    sherd_world_destroy(old);
    sherd_world_destroy(world);
}

static void a_rank_that_gives_up_ends_the_move_of_all(void)
{
    sherd_world_params params = world_params();
    crew               c      = {.options = {.stage = 2}, .global = 6, .old_size = 3, .faulty = 2};

    CHECK_OK(sherd_world_threads_with(3, &params, c.worlds[0]));
    CHECK_OK(sherd_world_threads_with(2, &params, c.worlds[1]));
    test_threads(3, lost_part, &c);
}

static const test_case CASES[] = {
    CASE(no_memory_in_a_move_leaves_all_engines_as_they_were),
    CASE(what_cannot_move_is_refused_and_trains_on),
    CASE(a_number_that_divides_no_copy_is_refused_without_the_key),
    CASE(arguments_that_do_not_fit_are_refused),
    CASE(newcomers_that_do_not_fit_are_refused),
    CASE(a_rank_that_gives_up_ends_the_move_of_all),
};

RUN_MAIN(CASES)
