#include "tests/collectives/failures.h"

#include "base/clock.h"
#include "collectives/follow.h"
#include "collectives/peers.h"
#include "collectives/procs.h"
#include "collectives/room.h"
#include "tests/collectives/ranks.h"
#include "tests/collectives/world_suite.h"

#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Lost ranks are noticed within this: in milliseconds, but on a machine that is busy with other
 * things ranks wait to run. A rank's own time limit is far above it, and a minute ends the test. */
#define NOTICED_WITHIN_NS INT64_C(40000000000)

static sherd_world *world_open(int64_t timeout_ns)
{
    sherd_world_params params;
    sherd_world       *world = NULL;

    sherd_world_params_init(&params);
    params.timeout_ns = timeout_ns;
    CHECK_OK(sherd_world_from_env(&params, &world));
    return world;
}

/* Adds a word to those that the fake NCCL reads. */
static void nccl_word_add(const char *word)
{
    const char *before = getenv("SHERD_FAKE_NCCL");
    char        words[256];

    (void)snprintf(words, sizeof(words), "%s%s%s", before == NULL ? "" : before,
                   before == NULL ? "" : ",", word);
    CHECK_INT(0, setenv("SHERD_FAKE_NCCL", words, 1));
}

static int last_of(const sherd_world *world)
{
    return sherd_world_size(world) - 1;
}

/* Calls barriers until one fails; it must fail soon, and so must every later call. */
static void barriers_fail_saying(sherd_world *world, const char *words)
{
    int64_t      start_ns = sherdi_now_ns();
    sherd_status status   = SHERD_OK;

    while (status == SHERD_OK && sherdi_now_ns() - start_ns < NOTICED_WITHIN_NS) {
        status = sherd_world_barrier(world);
    }
    CHECK_STATUS(SHERD_E_PEER_LOST, status);
    CHECK(sherdi_now_ns() - start_ns < NOTICED_WITHIN_NS);
    CHECK_ERROR_SAYS(words);
    CHECK_STATUS(SHERD_E_PEER_LOST, sherd_world_barrier(world));
    CHECK_STATUS(SHERD_E_PEER_LOST, sherdi_world_status(world));
    CHECK_ERROR_SAYS(words);
}

/* All have come this far. Between hosts the news of a failure right after may overtake the last
 * words of the barrier. */
static void barrier_before_failure(sherd_world *world)
{
    sherd_status status = sherd_world_barrier(world);

    CHECK(status == SHERD_OK || status == SHERD_E_PEER_LOST);
}

static const char *says_rank(int rank)
{
    static char text[32];

    (void)snprintf(text, sizeof(text), "rank %d ", rank);
    return text;
}

void part_suite(void)
{
    sherd_world *world = world_open(0);

    for (size_t i = 0; i < WORLD_SUITE_COUNT; i++) {
        WORLD_SUITE[i].run(world, NULL);
    }
    sherd_world_destroy(world);
}

static void kill_in_barrier(int victim_is_first)
{
    sherd_world *world  = world_open(0);
    int          victim = victim_is_first ? 0 : last_of(world);

    barrier_before_failure(world);
    if (sherd_world_rank(world) == victim) {
        (void)raise(SIGKILL);
    }
    barriers_fail_saying(world, says_rank(victim));
    CHECK_ERROR_SAYS("lost");
    sherd_world_destroy(world);
}

void part_killed_in_barrier(void)
{
    kill_in_barrier(0);
}

void part_killed_first(void)
{
    kill_in_barrier(1);
}

/* A child that holds what it has inherited, for longer than the test waits. */
static void child_start(void)
{
    pid_t child;

    (void)fflush(NULL);
    child = fork();
    if (child == 0) {
        (void)alarm(20 + (unsigned)(NOTICED_WITHIN_NS / 1000000000));
        for (int fd = 0; fd <= 2; fd++) {
            (void)close(fd); /* who reads what the rank wrote does not wait for the child */
        }
        (void)pause();
        _exit(0);
    }
    CHECK(child > 0);
}

static void kill_with_a_child(int victim_is_first)
{
    sherd_world *world  = world_open(0);
    int          victim = victim_is_first ? 0 : last_of(world);

    barrier_before_failure(world);
    if (sherd_world_rank(world) == victim) {
        child_start();
        (void)raise(SIGKILL);
    }
    barriers_fail_saying(world, says_rank(victim));
    CHECK_ERROR_SAYS("lost");
    sherd_world_destroy(world);
}

void part_killed_with_a_child(void)
{
    kill_with_a_child(0);
}

void part_first_killed_with_a_child(void)
{
    kill_with_a_child(1);
}

void part_child_destroys(void)
{
    sherd_world *world = world_open(0);
    pid_t        child;
    int          raw = 0;

    (void)fflush(NULL);
    child = fork();
    if (child == 0) {
        (void)alarm(20);
        sherd_world_destroy(world);
        _exit(0);
    }
    CHECK(child > 0);
    CHECK(waitpid(child, &raw, 0) == child);
    CHECK_INT(0, raw);
    for (int i = 0; i < 3; i++) {
        CHECK_OK(sherd_world_barrier(world));
    }
    sherd_world_destroy(world);
}

void part_killed_in_queue(void)
{
    enum { CALLS = 100, SLICE = 2000 };

    sherd_world   *world  = world_open(0);
    unsigned char *send   = suite_alloc(world, SLICE);
    unsigned char *recv   = suite_alloc(world, (size_t)sherd_world_size(world) * SLICE);
    sherdi_ticket  last   = 0;
    sherd_status   status = SHERD_OK;
    int64_t        start_ns;

    suite_fill(world, send, 0, SLICE);
    CHECK_OK(sherdi_world_overlap(world));
    barrier_before_failure(world);
    if (sherd_world_rank(world) == last_of(world)) {
        (void)raise(SIGKILL);
    }
    start_ns = sherdi_now_ns();
    for (int i = 0; i < CALLS && status == SHERD_OK; i++) { /* more than the queue holds */
        sherdi_all_gather_args args = {.send = send, .recv = recv, .slice_bytes = SLICE};

        status = sherdi_world_all_gather(world, &args, &last);
    }
    if (status == SHERD_OK) {
        status = sherdi_world_wait(world, last);
    }
    CHECK_STATUS(SHERD_E_PEER_LOST, status);
    CHECK(sherdi_now_ns() - start_ns < NOTICED_WITHIN_NS);
    CHECK_ERROR_SAYS(says_rank(last_of(world)));
    suite_free(world, recv);
    suite_free(world, send);
    sherd_world_destroy(world);
}

void part_killed_in_all_reduce(void)
{
    sherd_world          *world = world_open(0);
    size_t                slice = 300000;
    size_t                bytes = slice * (size_t)sherd_world_size(world) * sizeof(float);
    float                *data  = suite_alloc(world, bytes);
    sherdi_reduction_args args  = {
         .send        = data,
         .recv        = data,
         .slice_elems = slice,
         .scale       = 1,
    };
    sherd_status status = SHERD_OK;

    suite_fill(world, data, 0, bytes);
    CHECK_OK(sherdi_world_reserve(world, bytes));
    for (int i = 0; i < 1000 && status == SHERD_OK; i++) {
        if (i == 3 && sherd_world_rank(world) == last_of(world)) {
            (void)raise(SIGKILL);
        }
        status = sherdi_world_all_reduce(world, &args, NULL);
        CHECK(status == SHERD_OK || i >= 2);
    }
    CHECK_STATUS(SHERD_E_PEER_LOST, status);
    CHECK_ERROR_SAYS(says_rank(last_of(world)));
    suite_free(world, data);
    sherd_world_destroy(world);
}

void part_exits_without_destroy(void)
{
    sherd_world *world = world_open(0);

    barrier_before_failure(world);
    if (sherd_world_rank(world) == last_of(world)) {
        exit(0);
    }
    barriers_fail_saying(world, says_rank(last_of(world)));
    CHECK_ERROR_SAYS("without sherd_world_destroy");
    sherd_world_destroy(world);
}

void part_aborts(void)
{
    sherd_world *world = world_open(0);

    barrier_before_failure(world);
    if (sherd_world_rank(world) == last_of(world)) {
        sherd_world_abort(world, "the data ran out");
        CHECK_STATUS(SHERD_E_PEER_LOST, sherd_world_barrier(world));
    }
    barriers_fail_saying(world, "gave up: the data ran out");
    CHECK_ERROR_SAYS(says_rank(last_of(world)));
    sherd_world_destroy(world);
}

/* Notifies the script that the ranks have met. Returns the path of the file that said so. */
static const char *ready_tell(sherd_world *world)
{
    const char *ready = getenv("SHERD_TEST_READY");

    CHECK(ready != NULL);
    barrier_before_failure(world);
    if (sherd_world_rank(world) == 0) {
        FILE *file = fopen(ready, "w");

        CHECK(file != NULL && fclose(file) == 0);
    }
    return ready;
}

void part_link_goes_down(void)
{
    sherd_world *world = world_open(0);

    (void)ready_tell(world);
    barriers_fail_saying(world, "does not answer");
    CHECK_ERROR_SAYS("(the limit is 4.0 s)");
    CHECK_ERROR_SAYS("SHERD_HOST_TIMEOUT");
    CHECK_ERROR_SAYS(says_rank(1 - sherd_world_rank(world)));
    sherd_world_destroy(world);
}

void part_link_comes_back(void)
{
    sherd_world *world   = world_open(0);
    int          is_back = 0;
    char         path[512];

    (void)snprintf(path, sizeof(path), "%s.back", ready_tell(world));
    while (!is_back) {
        is_back = access(path, F_OK) == 0;
        CHECK_OK(sherd_world_broadcast(world, &is_back, sizeof(is_back), 0));
    }
    CHECK_OK(sherd_world_barrier(world));
    sherd_world_destroy(world);
}

void part_aborts_in_memory(void)
{
    const int    rank = ranks_variable("OMPI_COMM_WORLD_RANK");
    sherd_world *world;

    if (rank == 2) {
        CHECK_INT(0, unshare(CLONE_NEWUTS));
        CHECK_INT(0, sethostname("elsewhere", 9));
        CHECK_INT(0, setenv("OMPI_COMM_WORLD_LOCAL_RANK", "0", 1));
    }
    world = world_open(0);
    CHECK_INT(rank == 2 ? 1 : 2, sherdi_world_local_size(world));
    barrier_before_failure(world);
    if (rank == 1) {
        sherdi_procs_host_abort(world->peers, SHERD_E_PEER_LOST, "rank 1 gave up: in memory");
    }
    barriers_fail_saying(world, "gave up: in memory");
    sherd_world_destroy(world);
}

static void leave_early(int is_first)
{
    sherd_world *world = world_open(0);
    int          who   = is_first ? 0 : last_of(world);

    barrier_before_failure(world);
    if (sherd_world_rank(world) == who) {
        sherd_world_destroy(world);
        return;
    }
    barriers_fail_saying(world, says_rank(who));
    CHECK_ERROR_SAYS("ended its part");
    sherd_world_destroy(world);
}

void part_leaves_early(void)
{
    leave_early(0);
}

void part_first_leaves_early(void)
{
    leave_early(1);
}

void part_does_not_come(void)
{
    sherd_world *world;

    /* A device takes longer to begin than a call may, on one rank, and so does NCCL. But that is no
     * call yet, and the limit is one of calls. Where there is no emulated device, nothing is slower
     * than usual. */
    CHECK_INT(0, setenv("SHERD_TIMEOUT", "40", 1));
    CHECK_INT(0, setenv("SHERD_EMULATOR_SLOW", getpid() % 2 == 0 ? "1200" : "0", 1));
    nccl_word_add("slow=1200");
    world = world_open(INT64_C(800000000));
    CHECK_OK(sherd_world_barrier(world));
    if (sherd_world_rank(world) == last_of(world)) {
        /* Alive, elsewhere, until the others have given up: this rank is notified of that too. */
        while (sherdi_world_status(world) == SHERD_OK) {
            (void)poll(NULL, 0, 5);
        }
    } else {
        CHECK_STATUS(SHERD_E_PEER_LOST, sherd_world_barrier(world));
    }
    CHECK_STATUS(SHERD_E_PEER_LOST, sherd_world_barrier(world));
    CHECK_ERROR_SAYS("time limit");
    CHECK_ERROR_SAYS(sherd_world_size(world) == 2 ? "rank 1" : "rank 2");
    sherd_world_destroy(world);
}

void part_disagrees(void)
{
    sherd_world *world   = world_open(0);
    char         data[8] = {0};

    CHECK_OK(sherd_world_barrier(world));
    if (sherd_world_rank(world) == last_of(world)) {
        CHECK_STATUS(SHERD_E_INVAL, sherd_world_broadcast(world, data, sizeof(data), 0));
    } else {
        CHECK_STATUS(SHERD_E_INVAL, sherd_world_barrier(world));
    }
    CHECK_ERROR_SAYS("disagree");
    CHECK_ERROR_SAYS("sherd_world_broadcast (broadcast of 8 bytes)");
    CHECK_ERROR_SAYS("sherd_world_barrier (barrier of 0 bytes)");
    CHECK_ERROR_SAYS("data loader that ends earlier on one rank");
    sherd_world_destroy(world);
}

void part_created_twice(void)
{
    for (int i = 0; i < 3; i++) {
        sherd_world *world = world_open(0);
        void        *memory;

        CHECK_OK(sherdi_world_alloc(world, 100, &memory));
        CHECK_OK(sherd_world_barrier(world));
        sherd_world_destroy(world); /* drops the memory too */
    }
}
