/* An engine that moves between worlds of processes over shared memory: ranks leave alive, and new
 * processes come. */
#include "tests/collectives/ranks.h"
#include "tests/engine/mover.h"
#include "tests/lib/check.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DETERMINISTIC ", \"deterministic\": true"

static const rig_options KINDS[] = {
    {.stage = 0, .dtype = SHERD_F32, .clip = 1, .top = DETERMINISTIC},
    {.stage = 1, .dtype = SHERD_F16, .clip = 1, .top = DETERMINISTIC},
    {.stage = 2,
     .dtype = SHERD_BF16,
     .zero  = ", \"offload_optimizer\": {\"device\": \"cpu\"}",
     .top   = DETERMINISTIC},
    {.stage = 3, .dtype = SHERD_BF16, .clip = 1, .top = DETERMINISTIC},
};
#define NUM_KINDS (int)(sizeof(KINDS) / sizeof(KINDS[0]))

static void mover_of_kind(int kind, mover *m)
{
    memset(m, 0, sizeof(*m));
    for (int u = 0; u < 3 && getenv("SHERD_BACKEND") != NULL; u++) {
        m->elems[u] = 500 + 401 * (size_t)u; /* an emulated device is slow */
    }
    m->options   = KINDS[kind];
    m->has_blobs = 1;
    mover_usual(m);
}

/* Each phase with more ranks than the one before meets at an address of its own. */
static sherd_world *process_world(void *ctx, int phase, int rank, sherd_world *old)
{
    const mover       *m     = ctx;
    int                size  = m->phases[phase].size;
    sherd_world       *world = NULL;
    sherd_world_params params;
    char               address[256];

    if (phase > 0 && size < m->phases[phase - 1].size) {
        if (rank < 0) {
            CHECK_OK(sherd_world_leave(old));
            return NULL;
        }
        CHECK_OK(sherd_world_shrink(old, &world));
        CHECK_INT(rank, sherd_world_rank(world));
        CHECK_INT(size, sherd_world_size(world));
        return world;
    }
    (void)snprintf(address, sizeof(address), "%s-%d", getenv("MOVER_ADDRESS"), phase);
    if (old == NULL) {
        sherd_world_params_init(&params);
        params.transport = "shm"; /* with a device ranks would look for another one */
        CHECK_OK(sherd_world_create(rank, size, address, &params, &world));
        return world;
    }
    CHECK_STATUS(SHERD_E_INVAL, sherd_world_grow(old, sherd_world_size(old), address, &world));
    CHECK_OK(sherd_world_grow(old, size, address, &world));
    CHECK_INT(rank, sherd_world_rank(world));
    return world;
}

/* What the process of a slot runs. */
static void slot_live(void)
{
    int          slot = ranks_variable("MOVER_SLOT");
    mover        m;
    mover_result got  = {0};
    mover_result want = {0};

    for (int kind = 0; kind < NUM_KINDS; kind++) {
        char address[300];

        mover_of_kind(kind, &m);
        m.world = process_world;
        m.ctx   = &m;
        (void)snprintf(address, sizeof(address), "%s%d", getenv("MOVER_BASE"), kind);
        CHECK(setenv("MOVER_ADDRESS", address, 1) == 0);
        mover_live(&m, slot, &got);
        if (m.phases[m.num_phases - 1].slots[0] == slot) {
            int last = m.phases[m.num_phases - 1].steps;

            mover_twin(&m, 4, &want);
            CHECK_INT(want.values, got.values);
            CHECK_BYTES_EQUAL(&want.steps[want.num_steps - last], &got.steps[got.num_steps - last],
                              (size_t)last * sizeof(got.steps[0]));
        }
    }
}

static void *dies_later(void *raw)
{
    (void)usleep((useconds_t)ranks_variable("MOVER_DELAY"));
    (void)kill(getpid(), SIGKILL);
    return raw;
}

/* Moves between worlds of the same ranks until one of them is killed, in whatever it does then. The
 * others get an error that says so: none waits, and all can end. */
static void moves_until_killed(void)
{
    rig_options  options = {.stage = 3, .dtype = SHERD_BF16};
    sherd_world *world;
    sherd_world *next   = NULL;
    sherd_status status = SHERD_OK;
    pthread_t    thread;
    rig          r;

    CHECK_OK(sherd_world_from_env(NULL, &world));
    rig_open(&r, world, &options);
    rig_three(&r, 100000);
    rig_seal(&r);
    CHECK_INT(1, rig_train(&r, 1).was_updated);
    if (sherd_world_rank(world) == 1) {
        CHECK(pthread_create(&thread, NULL, dies_later, NULL) == 0);
    }
    while (status == SHERD_OK) {
        status = sherd_world_shrink(world, &next);
        if (status == SHERD_OK) {
            status = sherd_engine_move(r.engine, next);
            if (status != SHERD_OK) {
                /* a world of the survivors: what the lost rank had is gone */
                CHECK_INT(sherd_world_size(next) < 3 ? SHERD_E_STATE : SHERD_E_PEER_LOST, status);
                sherd_world_destroy(next);
                break;
            }
            sherd_world_destroy(world);
            world = next;
        }
    }
    status = sherd_step_discard(r.engine); /* in a lost world, or with a lost engine */
    CHECK(status == SHERD_E_PEER_LOST || status == SHERD_E_STATE);
    rig_close(&r);
    sherd_world_destroy(world);
}

static const rank_part PARTS[] = {PART(slot_live), PART(moves_until_killed)};

static void a_process_that_dies_in_a_move_ends_it_for_all(void)
{
    uint64_t state = 49;

    for (int n = 0; n < (test_is_long() ? 100 : 12); n++) {
        char delay[16];

        (void)snprintf(delay, sizeof(delay), "%d", (int)(test_random(&state) % 60000));
        CHECK(setenv("MOVER_DELAY", delay, 1) == 0);
        ranks_run_part(3, "moves_until_killed", 1);
    }
}

static void processes_leave_and_come_and_keep_the_bits(void)
{
    rank_start starts[MOVER_SLOTS];
    char       slots[MOVER_SLOTS][32];
    char       base[300];
    mover      m;

    mover_of_kind(0, &m);
    (void)snprintf(base, sizeof(base), "MOVER_BASE=%s", ranks_address());
    for (int s = 0; s < mover_slots(&m); s++) {
        (void)snprintf(slots[s], sizeof(slots[s]), "MOVER_SLOT=%d", s);
        starts[s] = (rank_start){.part = "slot_live", .environment = {slots[s], base, NULL}};
    }
    ranks_run(starts, mover_slots(&m));
}

static const test_case CASES[] = {CASE(processes_leave_and_come_and_keep_the_bits),
                                  CASE(a_process_that_dies_in_a_move_ends_it_for_all)};

RANKS_MAIN(CASES, PARTS)
