/* Moves of engines whose memory is a device's: its streams, what is held and locked, and devices
 * that lack memory or fail. test_move.c and test_move_processes.c compare the bits. */
#include "engine/run/engine_impl.h"
#include "sherd_cuda.h"
#include "tests/engine/rig.h"
#include "tests/lib/check.h"

#include "emulator.h"

#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define DETERMINISTIC ", \"deterministic\": true"

/* Of a rank: of the device itself, the world's, and four of the engine. */
#define RANK_STREAMS 6

/* Three ranks that train, of which the last one leaves. */
typedef struct crew {
    rig_options       options;
    size_t            elems;
    sherd_world      *worlds[3];
    long              fail_alloc; /* the allocation in the move that fails; 0: none */
    size_t            held[2];    /* of all devices, after the move and of an engine made there */
    size_t            registered[2];   /* the same of host memory */
    uint64_t          fingerprints[2]; /* the same after one step more */
    int               has_failed;
    pthread_barrier_t left; /* the rank that leaves has closed all */
    void (*watch)(rig *r, int is_before);
} crew;

/* A stream that is destroyed ends a little later. */
static void streams_check(int count)
{
    for (int turn = 0; emulator_streams() != count && turn < 5000; turn++) {
        (void)poll(NULL, 0, 1);
    }
    CHECK_INT(count, emulator_streams());
}

/* Worlds of threads on one device, or on as many as there are. */
static void worlds_make(int count, int device, sherd_world **out)
{
    sherd_world_params params;

    sherd_world_params_init(&params);
    params.timeout_ns  = INT64_C(60000000000);
    params.cpu_threads = 1;
    params.device      = device;
    CHECK_OK(sherd_world_threads_with(count, &params, out));
}

static uint64_t crew_step(rig *r, int step)
{
    int size = sherd_world_size(r->world);

    r->micro = (int64_t)step * 6 / size;
    return rig_train(r, 6 / size).fingerprint;
}

static void crew_open(const crew *c, rig *r, sherd_world *world)
{
    rig_options options = c->options;

    options.accumulation = 6 / sherd_world_size(world);
    rig_open(r, world, &options);
    rig_three(r, c->elems);
    if (c->watch != NULL) {
        c->watch(r, 1);
    }
    rig_seal(r);
}

static void held_note(crew *c, sherd_world *world, int at)
{
    CHECK_OK(sherd_world_barrier(world));
    if (sherd_world_rank(world) == 0) {
        c->held[at]       = emulator_held_bytes();
        c->registered[at] = emulator_registered();
        streams_check(2 * RANK_STREAMS);
    }
    CHECK_OK(sherd_world_barrier(world));
}

static void crew_part(int slot, void *ctx)
{
    crew        *c     = ctx;
    sherd_world *old   = c->worlds[slot];
    sherd_world *world = NULL;
    sherd_status status;
    rig          r;

    crew_open(c, &r, old);
    (void)crew_step(&r, 0);
    if (slot == 2) {
        CHECK_OK(sherd_world_leave(old));
    } else {
        CHECK_OK(sherd_world_shrink(old, &world));
    }
    if (slot == 0) {
        emulator_fail_alloc(c->fail_alloc);
    }
    status = sherd_engine_move(r.engine, world);
    emulator_fail_alloc(0);
    if (status != SHERD_OK) { /* it trains on where it was */
        CHECK_INT(SHERD_E_NOMEM, status);
        c->has_failed = 1;
        (void)crew_step(&r, 1);
        status = sherd_engine_move(r.engine, world);
        CHECK_OK(status);
    }
    if (world == NULL) {
        rig_close(&r);
    }
    sherd_world_destroy(old);
    (void)pthread_barrier_wait(&c->left);
    if (world == NULL) {
        return;
    }
    r.world = world;
    if (c->watch != NULL) {
        c->watch(&r, 0);
    }
    held_note(c, world, 0);
    c->fingerprints[0] = crew_step(&r, c->has_failed ? 2 : 1);
    rig_close(&r);
    sherd_world_destroy(world);
}

static void twin_part(int slot, void *ctx)
{
    crew *c = ctx;
    rig   r;

    crew_open(c, &r, c->worlds[slot]);
    held_note(c, c->worlds[slot], 1);
    for (int step = 0; step <= 1 + c->has_failed; step++) {
        c->fingerprints[slot == 0] = crew_step(&r, step);
    }
    CHECK_OK(sherd_world_barrier(c->worlds[slot]));
    rig_close(&r);
    sherd_world_destroy(c->worlds[slot]);
}

/* Nothing is left on any device. */
static void crew_run(crew *c, int device)
{
    uint64_t moved;

    c->has_failed = 0;
    worlds_make(3, device, c->worlds);
    CHECK_INT(0, pthread_barrier_init(&c->left, NULL, 3));
    test_threads(3, crew_part, c);
    CHECK_INT(0, pthread_barrier_destroy(&c->left));
    CHECK_INT(0, emulator_held_bytes());
    CHECK_INT(0, emulator_registered());
    streams_check(0);
    moved = c->fingerprints[0];
    worlds_make(2, device, c->worlds);
    test_threads(2, twin_part, c);
    CHECK_INT(c->fingerprints[1], moved);
}

/* An engine that has moved holds what one holds that was made in its world. */
static void move_leaves_nothing_on_the_device(void)
{
    static const char *const ZERO[] = {NULL, ", \"offload_optimizer\": {\"device\": \"cpu\", "
                                             "\"pin_memory\": true}"};

    for (int z = 0; z < 2; z++) {
        crew c = {
            .options = {.stage = 3, .dtype = SHERD_BF16, .zero = ZERO[z], .top = DETERMINISTIC},
            .elems   = 3000};

        crew_run(&c, z == 0 ? 0 : -1);
        CHECK_INT(c.held[1], c.held[0]);
        CHECK_INT(c.registered[1], c.registered[0]);
    }
}

static void every_allocation_of_a_move_may_fail(void)
{
    crew c = {.options = {.stage = 3,
                          .dtype = SHERD_BF16,
                          .zero = ", \"offload_optimizer\": {\"device\": \"cpu\", \"ratio\": 0.5}, "
                                  "\"sub_group_size\": 2048",
                          .top  = DETERMINISTIC},
              .elems   = 3000};

    for (c.fail_alloc = 1;; c.fail_alloc++) {
        crew_run(&c, 0);
        if (!c.has_failed) {
            break;
        }
    }
    CHECK(c.fail_alloc > 6);
}

/* ------------------------------------------------------------------- streams -- */

static _Thread_local cudaStream_t stream;

static void stream_watch(rig *r, int is_before)
{
    if (is_before) {
        CHECK_INT(cudaSuccess, cudaSetDevice(0));
        if (stream == NULL) {
            CHECK_INT(cudaSuccess, cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        }
        CHECK_OK(sherd_engine_set_stream(r->engine, stream));
    }
    CHECK(sherd_engine_stream(r->engine) == stream);
}

static void streams_part(int slot, void *ctx)
{
    stream = NULL;
    crew_part(slot, ctx);
    CHECK_INT(cudaSuccess, cudaStreamDestroy(stream));
}

static void the_trainers_stream_goes_along(void)
{
    crew c = {.options = {.stage = 2, .dtype = SHERD_BF16, .top = DETERMINISTIC},
              .elems   = 1000,
              .watch   = stream_watch};

    worlds_make(3, 0, c.worlds);
    CHECK_INT(0, pthread_barrier_init(&c.left, NULL, 3));
    test_threads(3, streams_part, &c);
    CHECK_INT(0, pthread_barrier_destroy(&c.left));
    streams_check(0);
}

/* Two ranks on devices 0 and 1 come to a world in which each has the other's. */
typedef struct cross {
    sherd_world *worlds[2][2];
} cross;

static void cross_part(int slot, void *ctx)
{
    cross       *c       = ctx;
    rig_options  options = {.stage = 2, .dtype = SHERD_BF16};
    cudaStream_t own;
    uint64_t     before;
    rig          r;

    CHECK_INT(cudaSuccess, cudaSetDevice(slot));
    CHECK_INT(cudaSuccess, cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking));
    rig_open(&r, c->worlds[0][slot], &options);
    rig_three(&r, 1000);
    CHECK_OK(sherd_engine_set_stream(r.engine, own));
    rig_seal(&r);
    before = rig_train(&r, 1).fingerprint;
    CHECK_STATUS(SHERD_E_NOTSUP, sherd_engine_move(r.engine, c->worlds[1][1 - slot]));
    CHECK_ERROR_SAYS("computes on another device in the new world");
    CHECK_INT(before, rig_fingerprint(&r));
    CHECK_INT(1, rig_train(&r, 1).was_updated);
    rig_close(&r);
    CHECK_INT(cudaSuccess, cudaSetDevice(slot));
    CHECK_INT(cudaSuccess, cudaStreamDestroy(own));
    sherd_world_destroy(c->worlds[0][slot]);
    sherd_world_destroy(c->worlds[1][1 - slot]);
}

static void a_stream_of_another_device_is_refused(void)
{
    cross c;

    worlds_make(2, -1, c.worlds[0]);
    worlds_make(2, -1, c.worlds[1]);
    test_threads(2, cross_part, &c);
}

/* ---------------------------------------------------------------- devices that lack -- */

/* The ranks share a device, which is small in a run of its own. */
static size_t memory_bytes(void)
{
    const char *given = getenv("SHERD_EMULATOR_MEMORY");

    if (given == NULL) {
        test_skip("the device has memory for all");
    }
    return strtoul(given, NULL, 10);
}

static void too_large_part(int slot, void *ctx)
{
    crew        *c   = ctx;
    sherd_world *old = c->worlds[slot];
    sherd_world *world;
    uint64_t     before;
    rig          r;

    crew_open(c, &r, old);
    before = crew_step(&r, 0);
    if (slot == 2) {
        CHECK_OK(sherd_world_leave(old));
        CHECK_STATUS(SHERD_E_NOMEM, sherd_engine_move(r.engine, NULL));
    } else {
        CHECK_OK(sherd_world_shrink(old, &world));
        CHECK_STATUS(SHERD_E_NOMEM, sherd_engine_move(r.engine, world));
        CHECK_ERROR_SAYS("device");
        sherd_world_destroy(world);
    }
    CHECK_INT(before, rig_fingerprint(&r));
    (void)crew_step(&r, 1);
    rig_close(&r);
    sherd_world_destroy(old);
}

static void a_move_without_room_on_the_device_is_refused_and_trains_on(void)
{
    crew c = {.options = {.stage = 3, .dtype = SHERD_BF16, .top = DETERMINISTIC},
              .elems   = memory_bytes() / 110}; /* three times 14 bytes, and gathers */

    worlds_make(3, 0, c.worlds);
    test_threads(3, too_large_part, &c);
}

static void too_many_part(int slot, void *ctx)
{
    crew *c = ctx;
    rig   r;

    rig_open(&r, c->worlds[slot], &c->options);
    rig_three(&r, c->elems);
    CHECK_STATUS(SHERD_E_NOMEM, sherd_engine_seal(r.engine));
    CHECK_ERROR_SAYS("sherd.elastic: 3 ranks need");
    CHECK_ERROR_SAYS("bytes of a device each");
    rig_close(&r);
    sherd_world_destroy(c->worlds[slot]);
}

/* Two ranks of about 50 bytes an element fit, and three do not. */
static void a_number_without_room_on_the_device_is_refused_at_seal(void)
{
    crew c = {
        .options = {.stage = 0, .dtype = SHERD_BF16, .top = ", \"sherd\": {\"elastic\": [2, 3]}"},
        .elems   = memory_bytes() / 150};

    worlds_make(2, 0, c.worlds);
    test_threads(2, too_many_part, &c);
}

static const test_case CASES[] = {
    CASE(move_leaves_nothing_on_the_device),
    CASE(every_allocation_of_a_move_may_fail),
    CASE(the_trainers_stream_goes_along),
    CASE(a_stream_of_another_device_is_refused),
    CASE(a_move_without_room_on_the_device_is_refused_and_trains_on),
    CASE(a_number_without_room_on_the_device_is_refused_at_seal),
};

RUN_MAIN(CASES)
