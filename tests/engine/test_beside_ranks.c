/* A rank that dies while its update overlaps with the next forward: in processes, over shared
 * memory and under mpirun. Each other rank gets an error that names it, from an acquire or from the
 * next call in which the ranks meet, and from every call after that. The state that is left is that
 * of one step on all ranks, and training goes on from it with the same bits. */
#include "tests/collectives/ranks.h"
#include "tests/engine/rig.h"

#include "sherd_build.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#define RANKS  3
#define ELEMS  30000
#define WHOLE  2 /* steps that are done before the one in which a rank dies */
#define STEPS  5
#define VICTIM 1

/* The folder of the state, and what the part does. The ranks have them in their environment, in
 * which only SHERD_* is set anew. */
#define FOLDER_VARIABLE "BESIDE_FOLDER"
#define STAGE_VARIABLE  "BESIDE_STAGE"
#define CALL_VARIABLE   "BESIDE_CALL"

static int number_of(const char *name)
{
    const char *text = getenv(name);

    CHECK(text != NULL);
    return atoi(text);
}

static void engine_open(rig *r, sherd_world *world, int is_on_drive)
{
    char        zero[1024] = "";
    rig_options options    = {
           .stage = number_of(STAGE_VARIABLE), .dtype = SHERD_BF16, .clip = 1, .zero = zero};

    if (is_on_drive) {
        (void)snprintf(zero, sizeof(zero),
                       ", \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\","
                       " \"durable\": false, \"resume\": true, \"buffer_size\": 4096}",
                       getenv(FOLDER_VARIABLE));
    }
    rig_open(r, world, &options);
    rig_three(r, ELEMS);
    rig_seal(r);
}

/* ------------------------------------------------------------------ the calls -- */

static sherd_status call_wait(rig *r)
{
    return sherd_step_wait(r->engine, NULL);
}

static sherd_status call_fingerprint(rig *r)
{
    uint64_t fingerprint;

    return sherd_engine_fingerprint(r->engine, &fingerprint);
}

static sherd_status call_save(rig *r)
{
    return sherd_checkpoint_save(r->engine, getenv(FOLDER_VARIABLE), "never", NULL);
}

static sherd_status call_undo(rig *r)
{
    return sherd_step_undo(r->engine);
}

static sherd_status call_discard(rig *r)
{
    return sherd_step_discard(r->engine);
}

static sherd_status call_write(rig *r)
{
    float values[10] = {0};

    return sherd_param_write(r->engine, r->params[0].handle, SHERD_MASTER, 3, 10, values);
}

static sherd_status call_read(rig *r)
{
    float values[10];

    return sherd_param_read(r->engine, r->params[0].handle, SHERD_MASTER, 3, 10, values);
}

/* A forward pass up to the unit that fails, and what meets after it. */
static sherd_status call_forward(rig *r)
{
    for (int u = 0; u < r->num_units; u++) {
        sherd_status status = sherd_unit_acquire(r->engine, r->units[u], SHERD_FORWARD);

        if (status != SHERD_OK) {
            return status;
        }
        CHECK_OK(sherd_unit_release(r->engine, r->units[u], SHERD_FORWARD));
    }
    return call_wait(r);
}

static sherd_status (*const CALLS[])(rig *) = {
    call_forward, call_wait, call_fingerprint, call_save,
    call_undo,    call_read, call_write,       call_discard,
};

#define NUM_CALLS (int)(sizeof(CALLS) / sizeof(CALLS[0]))

/* ------------------------------------------------------------------ the parts -- */

static void one_dies_in_its_update(void)
{
    sherd_world *world;
    rig          r;

    CHECK_OK(sherd_world_from_env(NULL, &world));
    engine_open(&r, world, 1);
    (void)rig_train(&r, WHOLE);
    rig_micro_batch(&r);
    CHECK_OK(sherd_step_queue(r.engine));
    if (sherd_world_rank(world) == VICTIM) {
        (void)raise(SIGKILL);
    }
    CHECK_STATUS(SHERD_E_PEER_LOST, CALLS[number_of(CALL_VARIABLE)](&r));
    CHECK_ERROR_SAYS("rank 1");
    CHECK_STATUS(SHERD_E_PEER_LOST, call_wait(&r)); /* and again */
    CHECK_STATUS(SHERD_E_PEER_LOST, call_fingerprint(&r));
    CHECK_STATUS(SHERD_E_PEER_LOST, call_discard(&r));
    CHECK_ERROR_SAYS("rank 1");
    rig_close(&r);
    sherd_world_destroy(world);
}

/* Goes on from the step that is whole on all ranks, and makes the numbers of a run that nothing
 * disturbed. */
static void all_go_on(void)
{
    sherd_engine_info info;
    sherd_world      *world;
    rig               plain, again;

    sherd_engine_info_init(&info);
    CHECK_OK(sherd_world_from_env(NULL, &world));
    engine_open(&again, world, 1);
    CHECK_OK(sherd_engine_query(again.engine, &info));
    CHECK_INT(1, info.is_resumed);
    CHECK(info.step == WHOLE || info.step == WHOLE + 1);
    again.micro = info.step;
    engine_open(&plain, world, 0);
    (void)rig_train(&plain, (int)info.step);
    CHECK_INT(rig_fingerprint(&plain), rig_fingerprint(&again));
    CHECK_INT(rig_train(&plain, STEPS - (int)info.step).fingerprint,
              rig_train(&again, STEPS - (int)info.step).fingerprint);
    rig_close(&again);
    rig_close(&plain);
    sherd_world_destroy(world);
}

static const rank_part PARTS[] = {
    PART(one_dies_in_its_update),
    PART(all_go_on),
};

/* ------------------------------------------------------------------ the cases -- */

static void variable_set(const char *name, int number)
{
    char text[16];

    (void)snprintf(text, sizeof(text), "%d", number);
    (void)setenv(name, text, 1);
}

static void a_rank_dies(void (*run)(int world_size, const char *part, int killed), int stage,
                        int call)
{
    (void)setenv(FOLDER_VARIABLE, test_scratch(), 1);
    variable_set(STAGE_VARIABLE, stage);
    variable_set(CALL_VARIABLE, call);
    run(RANKS, "one_dies_in_its_update", VICTIM);
    run(RANKS, "all_go_on", -1);
    CHECK_INT(0, test_files(test_scratch(), ".state"));
}

static void shared_memory_ranks_hear_of_a_death_in_the_update(void)
{
    for (int call = 0; call < NUM_CALLS; call++) {
        a_rank_dies(ranks_run_part, call % 3 + 1, call);
        if (call == 0 || test_is_long()) {
            a_rank_dies(ranks_run_part, (call + 2) % 3 + 1, call);
        }
    }
}

static void mpi_ranks_hear_of_a_death_in_the_update(void)
{
#ifndef SHERDI_HAVE_MPI
    test_skip("this build has no MPI");
#endif
    ranks_need_mpirun();
    a_rank_dies(ranks_run_mpi, 3, 0);
    a_rank_dies(ranks_run_mpi, 1, 0);
}

static const test_case CASES[] = {
    CASE(shared_memory_ranks_hear_of_a_death_in_the_update),
    CASE(mpi_ranks_hear_of_a_death_in_the_update),
};

RANKS_MAIN(CASES, PARTS)
