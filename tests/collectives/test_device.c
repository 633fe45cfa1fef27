/* Worlds on the emulated device: what tickets are there, what is counted, what a failed device does
 * to the others. The suite on devices is that of the transports. */
#include "base/clock.h"
#include "collectives/device.h"
#include "collectives/follow.h"
#include "collectives/tickets.h"
#include "tests/collectives/ranks.h"
#include "tests/collectives/world_suite.h"
#include "tests/emulator/emulator.h"
#include "tests/lib/check.h"

#include <poll.h>

/* A lane stands still until it is opened. */
static void gate_wait(void *gate)
{
    while (!atomic_load((atomic_int *)gate)) {
        (void)poll(NULL, 0, 1);
    }
}

static void lane_block(const sherdi_backend *lane, atomic_int *gate)
{
    CHECK_INT(0, cudaSetDevice(0));
    CHECK_INT(
        0, emulator_call((cudaStream_t)sherdi_lanes_of(lane)->lane_stream(lane), gate_wait, gate));
}

static void world_of_one_queues_and_follow_does_not_block(void)
{
    enum { BYTES = 1000 };

    sherd_world           *world = NULL;
    sherdi_backend        *lane  = NULL;
    sherdi_backend        *other = NULL;
    unsigned char          host[BYTES];
    unsigned char         *memory;
    sherdi_ticket          ticket = 0;
    atomic_int             gate   = 0;
    sherdi_all_gather_args args   = {.slice_bytes = BYTES};

    CHECK_OK(sherd_world_self(&world));
    CHECK(sherdi_world_backend(world) != sherdi_world_host(world));
    CHECK(sherdi_world_caps(world) & SHERDI_WORLD_ON_LANE);
    CHECK_OK(sherdi_world_alloc(world, 3 * BYTES, (void **)&memory));
    suite_fill(world, memory, 7, BYTES);
    lane = (sherdi_backend *)(uintptr_t)sherdi_world_backend(world);
    CHECK_OK(lane->device->lane_create(lane, "other", NULL, &other));

    lane_block(lane, &gate);
    args.send = memory;
    args.recv = memory + BYTES;
    CHECK_OK(sherdi_world_all_gather(world, &args, &ticket));
    CHECK_OK(sherdi_world_follow(world, other, ticket));
    CHECK(ticket > 0 && !sherdi_world_is_done(world, ticket));
    other->kernels->copy(other, memory + 2 * BYTES, memory + BYTES, BYTES); /* after the ticket */
    atomic_store(&gate, 1);
    CHECK_OK(sherdi_lane_wait(other));
    CHECK(sherdi_world_is_done(world, ticket));
    CHECK_OK(sherdi_world_wait(world, ticket));
    suite_get(world, host, memory + 2 * BYTES, BYTES);
    for (int i = 0; i < BYTES; i++) {
        CHECK_INT(7, host[i]);
    }
    sherdi_backend_destroy(other);
    sherd_world_destroy(world);
}

static void tickets_outlive_their_events(void)
{
    sherd_world           *world = NULL;
    unsigned char         *memory;
    sherdi_ticket          tickets[3 * WORLD_EVENTS];
    sherdi_all_gather_args args = {.slice_bytes = 64};

    CHECK_OK(sherd_world_self(&world));
    CHECK_OK(sherdi_world_alloc(world, 128, (void **)&memory));
    args.send = memory;
    args.recv = memory + 64;
    for (int i = 0; i < 3 * WORLD_EVENTS; i++) {
        CHECK_OK(sherdi_world_all_gather(world, &args, &tickets[i]));
    }
    CHECK_OK(sherdi_world_wait(world, tickets[0])); /* by the event of a later one */
    CHECK_OK(sherdi_world_wait(world, tickets[3 * WORLD_EVENTS - 1]));
    for (int i = 0; i < 3 * WORLD_EVENTS; i++) {
        CHECK(sherdi_world_is_done(world, tickets[i]));
    }
    CHECK_STATUS(SHERD_E_INVAL, sherdi_world_follow(world, sherdi_world_backend(world),
                                                    tickets[3 * WORLD_EVENTS - 1] + 1));
    sherd_world_destroy(world);
}

/* A stream ends by itself, soon after it was destroyed; those of the test before may end yet. */
static void no_stream_is_left(void)
{
    for (int turn = 0; emulator_streams() != 0 && turn < 5000; turn++) {
        (void)poll(NULL, 0, 1);
    }
    CHECK_INT(0, emulator_streams());
}

static void memory_of_the_world_is_freed_with_it(void)
{
    size_t before = emulator_held_bytes();

    no_stream_is_left();
    for (int i = 0; i < 2; i++) {
        sherd_world *world = NULL;
        void        *memory;

        CHECK_OK(sherd_world_self(&world));
        CHECK_OK(sherdi_world_alloc(world, 1000, &memory));
        CHECK_OK(sherdi_world_alloc(world, 5000, &memory));
        CHECK(emulator_held_bytes() >= before + 6000);
        if (i == 0) {
            sherdi_world_free(world, memory);
        }
        sherd_world_destroy(world);
        CHECK_INT(before, emulator_held_bytes());
        no_stream_is_left();
    }
}

static void world_of_one_over_shm_is_on_the_lane_too(void)
{
    sherd_world_params params;
    sherd_world       *world = NULL;

    sherd_world_params_init(&params);
    params.transport = "shm";
    CHECK_OK(sherd_world_create(0, 1, NULL, &params, &world));
    CHECK(sherdi_world_caps(world) & SHERDI_WORLD_ON_LANE);
    CHECK(sherdi_device_of(world)->staged == NULL);
    sherd_world_destroy(world);
}

static void device_that_is_not_there_is_refused(void)
{
    sherd_world_params params;
    sherd_world       *worlds[3];

    sherd_world_params_init(&params);
    params.device = 17;
    CHECK_STATUS(SHERD_E_INVAL, sherd_world_threads_with(3, &params, worlds));
    CHECK_ERROR_SAYS("there is no device 17");
}

static void threads_have_the_devices_in_turn_or_the_one_that_is_given(void)
{
    sherd_world_params params;
    sherd_world       *worlds[3];

    sherd_world_params_init(&params);
    CHECK_OK(sherd_world_threads_with(3, &params, worlds));
    for (int r = 0; r < 3; r++) {
        CHECK_INT(r % 2, worlds[r]->device->index); /* there are two */
    }
    for (int r = 0; r < 3; r++) {
        sherd_world_destroy(worlds[r]);
    }
    params.device = 1;
    CHECK_OK(sherd_world_threads_with(3, &params, worlds));
    for (int r = 0; r < 3; r++) {
        CHECK_INT(1, worlds[r]->device->index);
        sherd_world_destroy(worlds[r]);
    }
}

/* One rank's kernel faults: it learns of it at its wait, and the others by name. */
static void fault_body(sherd_world *world, void *ctx)
{
    enum { SLICE = 1000 };

    size_t                size   = (size_t)sherd_world_size(world);
    sherd_status          status = SHERD_OK;
    float                *memory;
    sherdi_reduction_args args = {.slice_elems = SLICE, .scale = 1};

    (void)ctx;
    CHECK_OK(sherdi_world_alloc(world, size * SLICE * sizeof(*memory), (void **)&memory));
    args.send = memory;
    args.recv = memory + (size_t)sherd_world_rank(world) * SLICE;
    CHECK_OK(sherd_world_barrier(world));
    if (sherd_world_rank(world) == 0) {
        emulator_fail_kernel(1);
    }
    for (int i = 0; i < 1000 && status == SHERD_OK; i++) {
        status = sherdi_world_reduce_scatter(world, &args, NULL);
    }
    CHECK_STATUS(SHERD_E_DEVICE, status);
    CHECK_ERROR_SAYS("rank");
    CHECK_ERROR_SAYS("cuda device");
    CHECK_STATUS(SHERD_E_DEVICE, sherd_world_barrier(world));
}

static void threads_device_that_fails_takes_the_world_with_it(void)
{
    test_world(3, fault_body, NULL);
    emulator_heal(0);
    emulator_heal(1);
}

enum { ELEMS = 1000, BYTES = ELEMS * 4 };

/* Room for what gather_and_reduce does. */
static unsigned char *room_make(sherd_world *world)
{
    void *memory;

    CHECK_OK(sherdi_world_alloc(world, ((size_t)sherd_world_size(world) + 1) * BYTES, &memory));
    return memory;
}

/* Queues both; the ticket of the later. */
static sherdi_ticket gather_and_reduce(sherd_world *world, unsigned char *memory)
{
    sherdi_ticket          ticket;
    sherdi_all_gather_args gather = {.slice_bytes = BYTES};
    sherdi_reduction_args  reduce = {.slice_elems = ELEMS,
                                     .send_dtype  = SHERD_F32,
                                     .comm_dtype  = SHERD_F32,
                                     .recv_dtype  = SHERD_F32,
                                     .scale       = 1};

    gather.send = memory;
    gather.recv = memory + BYTES;
    CHECK_OK(sherdi_world_all_gather(world, &gather, &ticket));
    reduce.send = memory + BYTES;
    reduce.recv = memory;
    CHECK_OK(sherdi_world_reduce_scatter(world, &reduce, &ticket));
    return ticket;
}

static void calls_body(sherd_world *world, void *ctx)
{
    unsigned char *memory = room_make(world);

    (void)ctx;
    CHECK_OK(sherdi_world_wait(world, gather_and_reduce(world, memory)));
    sherdi_world_free(world, memory);
}

static void threads_on_several_devices_copy_without_the_host(void)
{
    unsigned long before = emulator_staged();

    test_world(2, calls_body, NULL);
    CHECK_INT(0, emulator_staged() - before);
    test_world(4, calls_body, NULL); /* again, and two on each */
    CHECK_INT(0, emulator_staged() - before);
}

/* A rank over shared memory, whose calls wait for the device: its thread captures a graph for all
 * threads while the queue works. */
static void part_captures(void)
{
    sherd_world   *world;
    cudaStream_t   stream;
    cudaGraph_t    graph;
    sherdi_ticket  ticket;
    unsigned char *memory;

    CHECK_OK(sherd_world_from_env(NULL, &world));
    CHECK_OK(sherdi_world_overlap(world));
    memory = room_make(world);
    CHECK_OK(sherdi_world_wait(world, gather_and_reduce(world, memory)));
    CHECK_INT(0, cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK_INT(0, cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    ticket = gather_and_reduce(world, memory);
    while (atomic_load(&sherdi_tickets_of(world)->done) < ticket) {
        (void)poll(NULL, 0, 1);
    }
    CHECK_INT(0, cudaStreamEndCapture(stream, &graph));
    CHECK_OK(sherdi_world_wait(world, ticket));
    CHECK_INT(0, cudaGraphDestroy(graph));
    CHECK_INT(0, cudaStreamDestroy(stream));
    sherd_world_destroy(world);
}

static void queue_spoils_no_capture(void)
{
    ranks_run_part(2, "part_captures", -1);
}

static const test_case CASES[] = {
    CASE(world_of_one_queues_and_follow_does_not_block),
    CASE(tickets_outlive_their_events),
    CASE(memory_of_the_world_is_freed_with_it),
    CASE(world_of_one_over_shm_is_on_the_lane_too),
    CASE(device_that_is_not_there_is_refused),
    CASE(threads_have_the_devices_in_turn_or_the_one_that_is_given),
    CASE(threads_on_several_devices_copy_without_the_host),
    CASE(queue_spoils_no_capture),
    CASE(threads_device_that_fails_takes_the_world_with_it),
};

static const rank_part PARTS[] = {
    PART(part_captures),
};

RANKS_MAIN(CASES, PARTS)
