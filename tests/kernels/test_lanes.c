/* Lanes, events, memory and errors of a device. What is out of order reads other numbers, above all
 * on the emulated device with a seed. */
#include "tests/kernels/device_rig.h"

#include "base/clock.h"
#include "kernels/devices.h"
#include "kernels/lanes.h"
#include "tests/kernels/cpu.h"
#ifdef TEST_EMULATED
#include "emulator.h"

#include <cuda_runtime_api.h>
#endif

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define ELEMS 10000

/* ---------------------------------------------------------------- lanes -- */

static sherdi_backend *lane_make(sherdi_backend *lane, const char *name)
{
    sherdi_backend *made = NULL;

    CHECK_OK(lane->device->lane_create(lane, name, NULL, &made));
    return made;
}

/* acc = acc + x, in fp32: not the same in another order with what follows it. */
static void add(const sherdi_backend *lane, float *acc, const float *x)
{
    lane->kernels->accumulate(lane, acc, SHERD_F32, x, SHERD_F32, ELEMS);
}

/* acc = acc * 3 */
static void triple(const sherdi_backend *lane, float *acc)
{
    const void *srcs[] = {acc};

    lane->kernels->reduce(
        lane, &(sherdi_reduce_args){
                  .srcs = srcs, .num_srcs = 1, .dst = acc, .count_elems = ELEMS, .scale = 3});
}

static float *ones_put(sherdi_backend *lane)
{
    float *ones = malloc(ELEMS * sizeof(*ones));
    float *there;

    for (size_t i = 0; i < ELEMS; i++) {
        ones[i] = 1;
    }
    there = device_put(lane, ones, ELEMS * sizeof(*ones));
    free(ones);
    return there;
}

static void check_all(sherdi_backend *lane, const float *there, float want)
{
    float *got = malloc(ELEMS * sizeof(*got));

    device_get(lane, there, got, ELEMS * sizeof(*got));
    for (size_t i = 0; i < ELEMS; i++) {
        CHECK(got[i] == want);
    }
    free(got);
}

/* Two lanes take turns on one array, each after the other; a follow counts for the work that was
 * enqueued so far. */
static void lanes_that_follow_are_ordered(void)
{
    sherdi_backend *first  = device_open(0);
    sherdi_backend *second = lane_make(first, "second");
    float          *ones   = ones_put(first);
    float          *acc    = device_put(first, NULL, ELEMS * sizeof(*acc));
    float           want   = 0;

    for (int i = 0; i < 12; i++) {
        add(first, acc, ones);
        sherdi_lane_follow(second, first);
        triple(second, acc);
        sherdi_lane_follow(first, second);
        want = (want + 1) * 3;
    }
    check_all(first, acc, want);
    sherdi_backend_destroy(second);
    device_close(first);
}

static void events_order_lanes_by_their_last_record(void)
{
    sherdi_backend *first  = device_open(0);
    sherdi_backend *second = lane_make(first, "second");
    float          *ones   = ones_put(first);
    float          *acc    = device_put(first, NULL, ELEMS * sizeof(*acc));
    sherdi_event   *event  = NULL;
    float           want   = 0;

    CHECK_OK(sherdi_lanes_of(first)->event_create(first, 0, &event));
    CHECK(sherdi_lanes_of(first)->event_is_done(event)); /* never recorded */
    CHECK_OK(sherdi_lanes_of(first)->event_wait(event));
    sherdi_lanes_of(first)->lane_follow_event(second, event);
    for (int i = 0; i < 12; i++) {
        add(first, acc, ones);
        sherdi_lanes_of(first)->event_record(event, first);
        sherdi_lanes_of(first)->lane_follow_event(second, event);
        triple(second, acc);
        sherdi_lanes_of(first)->event_record(event, second); /* the same event: a new point */
        sherdi_lanes_of(first)->lane_follow_event(first, event);
        want = (want + 1) * 3;
    }
    sherdi_lanes_of(first)->event_record(event, first);
    CHECK_OK(sherdi_lanes_of(first)->event_wait(event));
    CHECK(sherdi_lanes_of(first)->event_is_done(event));
    check_all(second, acc, want);
    sherdi_lanes_of(first)->event_destroy(event);
    sherdi_lanes_of(first)->event_destroy(NULL);
    sherdi_backend_destroy(second);
    device_close(first);
}

static void event_tells_when_it_was_passed(void)
{
    const int64_t   slack_ns = 2000000; /* two clocks */
    sherdi_backend *lane     = device_open(0);
    sherdi_event   *event    = NULL;
    sherdi_event   *plain    = NULL;
    float          *ones     = ones_put(lane);
    int64_t         last_ns  = 0;

    CHECK_OK(sherdi_lanes_of(lane)->event_create(lane, 1, &event));
    CHECK_OK(sherdi_lanes_of(lane)->event_create(lane, 0, &plain));
    CHECK_OK(sherdi_lane_wait(lane));
    for (int i = 0; i < 5; i++) {
        int64_t before_ns = sherdi_now_ns();
        int64_t passed_ns;

        triple(lane, ones);
        sherdi_lanes_of(lane)->event_record(event, lane);
        CHECK_OK(sherdi_lanes_of(lane)->event_wait(event));
        passed_ns = sherdi_lanes_of(lane)->event_ns(event);
        CHECK(passed_ns >= before_ns - slack_ns && passed_ns <= sherdi_now_ns() + slack_ns);
        CHECK(passed_ns >= last_ns - slack_ns);
        last_ns = passed_ns;
    }
    sherdi_lanes_of(lane)->event_record(plain, lane);
    CHECK_OK(sherdi_lanes_of(lane)->event_wait(plain));
    CHECK_INT(0, sherdi_lanes_of(lane)->event_ns(plain)); /* it is for order alone */
    sherdi_lanes_of(lane)->event_destroy(plain);
    sherdi_lanes_of(lane)->event_destroy(event);
    device_close(lane);
}

/* Here the caller's stream is another lane's. */
static void lane_on_the_callers_stream_leaves_it_alone(void)
{
    sherdi_backend *owner  = device_open(0);
    sherdi_backend *guest  = NULL;
    void           *stream = sherdi_lanes_of(owner)->lane_stream(owner);
    float          *ones   = ones_put(owner);
    float          *acc    = device_put(owner, NULL, ELEMS * sizeof(*acc));

    CHECK(stream != NULL);
    CHECK_OK(owner->device->lane_create(owner, "guest", stream, &guest));
    CHECK(sherdi_lanes_of(guest)->lane_stream(guest) == stream);
    add(owner, acc, ones);
    triple(guest, acc); /* one stream: in the order of the calls */
    add(owner, acc, ones);
    sherdi_backend_destroy(guest);
    triple(owner, acc);
    check_all(owner, acc, 12);
    device_close(owner);
}

static void lane_outlives_the_one_it_was_made_from(void)
{
    sherdi_backend *first  = device_open(0);
    sherdi_backend *second = lane_make(first, "second");
    float          *ones   = ones_put(second);

    CHECK_OK(sherdi_lane_wait(second));
    device_drop(second);
    sherdi_backend_destroy(first);
    ones = ones_put(second);
    triple(second, ones);
    check_all(second, ones, 3);
    device_close(second);
}

/* Each thread a device, or all one: the calls make it the thread's. */
static void thread_body(int rank, void *ctx)
{
    int             devices = *(int *)ctx;
    sherdi_mem      mem;
    sherdi_backend *lane = NULL;
    void           *x    = NULL;
    void           *acc  = NULL;
    float           got  = 0;

    sherdi_mem_init(&mem);
    CHECK_OK(sherdi_backend_device_create("cuda", rank % devices, &mem, &lane));
    CHECK_OK(lane->device->alloc(lane, &mem, SHERDI_MEM_GRADS, ELEMS * sizeof(float), &x));
    CHECK_OK(lane->device->alloc(lane, &mem, SHERDI_MEM_GRADS, ELEMS * sizeof(float), &acc));
    lane->device->fill(lane, x, 0x3f, ELEMS * sizeof(float));
    for (int i = 0; i < 4; i++) {
        add(lane, acc, x);
    }
    lane->kernels->copy(lane, &got, acc, sizeof(got));
    CHECK_OK(sherdi_lane_wait(lane));
    CHECK(got == 4 * sherdi_f32_from_bits(0x3f3f3f3f));
    lane->device->free(lane, x);
    lane->device->free(lane, acc);
    sherdi_backend_destroy(lane);
    CHECK_INT(0, sherdi_mem_held_all(&mem));
}

static void every_thread_has_its_own_device(void)
{
    int devices = device_count();

    test_threads(6, thread_body, &devices);
}

typedef struct shared_lane {
    sherdi_backend *lane;
    float          *ones, *acc;
} shared_lane;

static void shared_body(int rank, void *ctx)
{
    const shared_lane *shared = ctx;
    sherdi_backend    *own    = NULL;

    (void)rank;
    for (int i = 0; i < 20; i++) {
        add(shared->lane, shared->acc, shared->ones);
    }
    CHECK_OK(shared->lane->device->lane_create(shared->lane, "own", NULL, &own));
    sherdi_lane_follow(own, shared->lane);
    CHECK_OK(sherdi_lane_wait(own));
    sherdi_backend_destroy(own);
}

static void lane_takes_calls_from_several_threads(void)
{
    shared_lane shared = {.lane = device_open(device_count() - 1)};

    shared.ones = ones_put(shared.lane);
    shared.acc  = device_put(shared.lane, NULL, ELEMS * sizeof(float));
    test_threads(4, shared_body, &shared);
    check_all(shared.lane, shared.acc, 80);
    device_close(shared.lane);
}

/* --------------------------------------------------------------- memory -- */

static void memory_is_zero(sherdi_backend *lane, const void *memory, size_t len_bytes)
{
    unsigned char *zeros = calloc(len_bytes + 1, 1);
    unsigned char *got   = malloc(len_bytes + 1);

    CHECK(memory != NULL);
    CHECK_INT(0, (uintptr_t)memory % SHERD_ALIGN_BYTES);
    device_get(lane, memory, got, len_bytes);
    CHECK_BYTES_EQUAL(zeros, got, len_bytes);
    free(zeros);
    free(got);
}

static void memory_is_aligned_zeroed_and_counted(void)
{
    static const size_t LENS[] = {0, 1, 4095, 4096, 100000, 3 << 20};
    sherdi_backend     *lane   = device_open(0);
    sherdi_backend     *host;
    sherdi_mem          mem;

    sherdi_mem_init(&mem);
    CHECK_OK(cpu_create(2, lane->mem, &host));
    for (size_t i = 0; i < sizeof(LENS) / sizeof(LENS[0]); i++) {
        void *memory = NULL;

        CHECK_OK(lane->device->alloc(lane, &mem, SHERDI_MEM_STATE, LENS[i], &memory));
        CHECK_INT(LENS[i], sherdi_mem_held(&mem, SHERDI_MEM_STATE));
        memory_is_zero(lane, memory, LENS[i]);
        lane->device->free(lane, memory);
        CHECK_INT(0, sherdi_mem_held_all(&mem));
        if (LENS[i] == 0) {
            continue;
        }
        CHECK_OK(sherdi_pinned_alloc(host, lane, &mem, SHERDI_MEM_HOST_STATE, LENS[i], &memory));
        CHECK_INT(LENS[i], sherdi_mem_held(&mem, SHERDI_MEM_HOST_STATE));
        memory_is_zero(lane, memory, LENS[i]);
        sherdi_pinned_free(lane, memory);
        CHECK_INT(0, sherdi_mem_held_all(&mem));
    }
    lane->device->free(lane, NULL);
    sherdi_pinned_free(lane, NULL);
    sherdi_backend_destroy(host);
    device_close(lane);
}

/* Kernels and copies take pinned memory as they take the device's; a copy from plain memory may be
 * followed by its change. */
static void pinned_and_plain_memory_take_part(void)
{
    sherdi_backend *lane = device_open(0);
    sherdi_mem      mem;
    sherdi_backend *team;
    void           *pinned = NULL;
    float          *host;
    float          *there = device_put(lane, NULL, ELEMS * sizeof(float));
    float          *plain = malloc(ELEMS * sizeof(float));

    sherdi_mem_init(&mem);
    CHECK_OK(cpu_create(1, lane->mem, &team));
    CHECK_OK(sherdi_pinned_alloc(team, lane, &mem, SHERDI_MEM_HOST_STATE, ELEMS * sizeof(float),
                                 &pinned));
    host = pinned;
    for (size_t i = 0; i < ELEMS; i++) {
        host[i]  = 2;
        plain[i] = 5;
    }
    triple(lane, host);
    lane->kernels->copy(lane, there, plain, ELEMS * sizeof(float));
    memset(plain, 0, ELEMS * sizeof(float));
    add(lane, there, host);
    lane->kernels->copy(lane, host, there, ELEMS * sizeof(float));
    CHECK_OK(sherdi_lane_wait(lane));
    for (size_t i = 0; i < ELEMS; i++) {
        CHECK(host[i] == 11);
    }
    free(plain);
    sherdi_pinned_free(lane, pinned);
    CHECK_INT(0, sherdi_mem_held_all(&mem));
    sherdi_backend_destroy(team);
    device_close(lane);
}

static void too_much_memory_is_refused_and_nothing_is_lost(void)
{
    sherdi_backend *lane = device_open(0);
    sherdi_mem      mem;
    void           *memory = &mem;

    sherdi_mem_init(&mem);
    CHECK_STATUS(SHERD_E_NOMEM,
                 lane->device->alloc(lane, &mem, SHERDI_MEM_STATE, (size_t)1 << 50, &memory));
    CHECK_ERROR_SAYS("state");
    CHECK_STATUS(SHERD_E_NOMEM,
                 lane->device->alloc(lane, &mem, SHERDI_MEM_STATE, SIZE_MAX, &memory));
    (void)sherdi_mem_fail_nth(1); /* the record of it */
    CHECK_STATUS(SHERD_E_NOMEM, lane->device->alloc(lane, &mem, SHERDI_MEM_STATE, 100, &memory));
    CHECK(memory == &mem);
    CHECK_INT(0, sherdi_mem_held_all(&mem));
    CHECK_OK(sherdi_lane_wait(lane)); /* the device is whole */
    device_close(lane);
}

/* --------------------------------------------------------------- errors -- */

/* A launch that cannot be made: more sources than one takes, here and there. */
static void reduce_wrongly(sherdi_backend *lane, float *x)
{
    const void *srcs[100];

    for (size_t k = 0; k < 100; k++) {
        srcs[k] = x + k * k;
    }
    lane->kernels->reduce(
        lane, &(sherdi_reduce_args){
                  .srcs = srcs, .num_srcs = 100, .dst = x, .count_elems = 1, .scale = 1});
}

static void error_is_kept_for_every_wait(void)
{
    sherdi_backend *lane   = device_open(0);
    sherdi_backend *second = lane_make(lane, "second");
    sherdi_backend *third  = NULL;
    sherdi_event   *event  = NULL;
    float          *x      = ones_put(lane);

    CHECK_OK(sherdi_lanes_of(lane)->event_create(lane, 0, &event));
    CHECK_OK(sherdi_lane_wait(lane));
    reduce_wrongly(lane, x);
    triple(lane, x); /* what came after is no cure */
    CHECK_STATUS(SHERD_E_DEVICE, sherdi_lane_wait(lane));
    CHECK_ERROR_SAYS("cuda device 0");
    CHECK_ERROR_SAYS("lane main");
    CHECK_ERROR_SAYS("cudaErrorInvalidValue");
    CHECK_STATUS(SHERD_E_DEVICE, sherdi_lane_wait(second));
    sherdi_lanes_of(lane)->event_record(event, lane);
    CHECK_STATUS(SHERD_E_DEVICE, sherdi_lanes_of(lane)->event_wait(event));
    CHECK(sherdi_lanes_of(lane)->event_is_done(event));
    CHECK_STATUS(SHERD_E_DEVICE, lane->device->lane_create(lane, "third", NULL, &third));
    CHECK(third == NULL);
    sherdi_lanes_of(lane)->event_destroy(event);
    device_drop(lane);
    sherdi_backend_destroy(second);
    sherdi_backend_destroy(lane);
    lane = device_open(0); /* it was this handle's */
    CHECK_OK(sherdi_lane_wait(lane));
    device_close(lane);
}

static void device_that_is_not_there_is_refused(void)
{
    int             count = device_count();
    sherdi_backend *lane  = NULL;
    sherdi_mem      mem;
    char            text[256];

    sherdi_mem_init(&mem);
    CHECK_STATUS(SHERD_E_INVAL, sherdi_backend_device_create("cuda", count, &mem, &lane));
    CHECK_STATUS(SHERD_E_INVAL, sherdi_backend_device_create("cuda", -1, &mem, &lane));
    CHECK_STATUS(SHERD_E_INVAL, sherdi_backend_device_create("abacus", 0, &mem, &lane));
    CHECK(lane == NULL);
    sherdi_backend_device_describe("cuda", 0, text, sizeof(text));
    test_check_contains(__FILE__, __LINE__, text, "compute capability");
}

#ifdef TEST_EMULATED
/* Every allocation and every object of CUDA's in turn. */
static void failed_allocations_leave_nothing(void)
{
    size_t held = emulator_held_bytes();

    for (int n = 1; n <= 4; n++) {
        for (int is_handle = 0; is_handle < 2; is_handle++) {
            sherdi_backend *lane   = NULL;
            void           *memory = NULL;
            sherd_status    status;
            sherdi_mem      mem;

            sherdi_mem_init(&mem);
            if (is_handle) {
                (void)sherdi_mem_fail_nth((size_t)n);
            } else {
                emulator_fail_alloc(n);
            }
            status = sherdi_backend_device_create("cuda", 0, &mem, &lane);
            if (status == SHERD_OK) {
                status = lane->device->alloc(lane, &mem, SHERDI_MEM_STATE, 5000, &memory);
            }
            CHECK(status == SHERD_OK || status == SHERD_E_NOMEM);
            if (memory != NULL) {
                lane->device->free(lane, memory);
            }
            sherdi_backend_destroy(lane);
            CHECK_INT(0, sherdi_mem_held_all(&mem));
            emulator_fail_alloc(0);
            (void)sherdi_mem_fail_nth(0);
        }
    }
    CHECK_INT(held, emulator_held_bytes());
}

static int priority_of(const sherdi_backend *lane)
{
    int priority = 0;

    CHECK_INT(cudaSuccess,
              cudaStreamGetPriority(sherdi_lanes_of(lane)->lane_stream(lane), &priority));
    return priority;
}

/* The first lane is the world's. */
static void first_lane_goes_before_others(void)
{
    sherdi_backend *first  = device_open(0);
    sherdi_backend *second = lane_make(first, "second");

    CHECK(priority_of(first) < priority_of(second));
    sherdi_backend_destroy(second);
    device_close(first);
}

typedef struct asked_event {
    sherdi_backend *lane;
    sherdi_event   *event;
    int             is_done;
} asked_event;

static void *asked_main(void *raw)
{
    asked_event *asked = raw;

    sherdi_lanes_of(asked->lane)->thread_begin(asked->lane);
    asked->is_done = sherdi_lanes_of(asked->lane)->event_is_done(asked->event);
    CHECK_OK(sherdi_lane_wait(asked->lane));
    return NULL;
}

/* A trainer's thread captures a graph for all threads; one of ours asks how far a lane is and waits
 * for it. */
static void threads_of_the_library_spoil_no_capture(void)
{
    sherdi_backend *lane   = device_open(0);
    sherdi_backend *second = lane_make(lane, "second");
    asked_event     asked  = {.lane = lane};
    cudaStream_t    stream = sherdi_lanes_of(second)->lane_stream(second);
    cudaGraph_t     graph  = NULL;
    pthread_t       thread;

    CHECK_OK(sherdi_lanes_of(lane)->event_create(lane, 0, &asked.event));
    sherdi_lanes_of(lane)->event_record(asked.event, lane);
    CHECK_OK(sherdi_lanes_of(lane)->event_wait(asked.event));
    CHECK_INT(cudaSuccess, cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    CHECK_INT(0, pthread_create(&thread, NULL, asked_main, &asked));
    CHECK_INT(0, pthread_join(thread, NULL));
    CHECK_INT(cudaSuccess, cudaStreamEndCapture(stream, &graph));
    CHECK(asked.is_done);
    CHECK_INT(cudaSuccess, cudaGraphDestroy(graph));
    CHECK_OK(sherdi_lane_wait(lane));
    sherdi_lanes_of(lane)->event_destroy(asked.event);
    sherdi_backend_destroy(second);
    device_close(lane);
}

static void refused_launch_is_the_next_waits_error(void)
{
    sherdi_backend *lane = device_open(0);
    float          *x    = ones_put(lane);

    emulator_fail_launch(1);
    triple(lane, x);
    CHECK_STATUS(SHERD_E_DEVICE, sherdi_lane_wait(lane));
    CHECK_ERROR_SAYS("cudaErrorLaunchOutOfResources");
    device_drop(lane);
    sherdi_backend_destroy(lane);
}

/* A kernel that faults takes its device with it. */
static void kernel_that_faults_ends_the_device(void)
{
    sherdi_backend *lane  = device_open(1);
    sherdi_backend *other = device_open(2);
    sherdi_backend *again = NULL;
    sherdi_mem      mem;
    void           *memory = NULL;
    float          *x      = ones_put(lane);

    sherdi_mem_init(&mem);
    CHECK_OK(sherdi_lane_wait(lane));
    emulator_fail_kernel(1);
    triple(lane, x);
    CHECK_STATUS(SHERD_E_DEVICE, sherdi_lane_wait(lane));
    CHECK_ERROR_SAYS("cuda device 1");
    CHECK_ERROR_SAYS("cudaErrorIllegalAddress");
    CHECK_STATUS(SHERD_E_DEVICE, lane->device->alloc(lane, &mem, SHERDI_MEM_STATE, 100, &memory));
    CHECK_STATUS(SHERD_E_DEVICE, sherdi_backend_device_create("cuda", 1, &mem, &again));
    CHECK_INT(0, sherdi_mem_held_all(&mem));
    device_drop(lane);
    sherdi_backend_destroy(lane);
    CHECK_OK(sherdi_lane_wait(other)); /* another device goes on */
    sherdi_backend_destroy(other);
    emulator_heal(1);
}
#endif

static const test_case CASES[] = {
    CASE(lanes_that_follow_are_ordered),
    CASE(events_order_lanes_by_their_last_record),
    CASE(event_tells_when_it_was_passed),
    CASE(lane_on_the_callers_stream_leaves_it_alone),
    CASE(lane_outlives_the_one_it_was_made_from),
    CASE(every_thread_has_its_own_device),
    CASE(lane_takes_calls_from_several_threads),
    CASE(memory_is_aligned_zeroed_and_counted),
    CASE(pinned_and_plain_memory_take_part),
    CASE(too_much_memory_is_refused_and_nothing_is_lost),
    CASE(error_is_kept_for_every_wait),
    CASE(device_that_is_not_there_is_refused),
#ifdef TEST_EMULATED
    CASE(failed_allocations_leave_nothing),
    CASE(first_lane_goes_before_others),
    CASE(threads_of_the_library_spoil_no_capture),
    CASE(refused_launch_is_the_next_waits_error),
    CASE(kernel_that_faults_ends_the_device),
#endif
};

RUN_MAIN(CASES)
