/* The tests' library has the slow asserts, and one whose invariant is broken ends the process. */
#include "base/mem.h"
#include "engine/run/drive.h"
#include "tests/lib/check.h"

#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static int aborts(void (*body)(void))
{
    int   ended;
    pid_t child;

#ifdef NDEBUG
    test_skip("a release build has no asserts");
#endif
    (void)fflush(stdout);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        (void)prctl(PR_SET_DUMPABLE, 0);
        (void)close(STDERR_FILENO);
        body();
        _exit(0);
    }
    CHECK(waitpid(child, &ended, 0) == child);
    return WIFSIGNALED(ended) && WTERMSIG(ended) == SIGABRT;
}

/* One more than are remembered, each after the one before; `step` back or forth. */
static void order_fill(uint64_t first, int step)
{
    static sherdi_order order;
    sherdi_op           op = sherdi_op_of(SHERDI_OP_COPY, SHERDI_LANE_UPDATE);

    for (uint64_t i = 0; i <= SHERDI_ORDER_ACCESSES; i++) {
        sherdi_op_use(&op, SHERDI_USE_SRC, SHERDI_READS,
                      sherdi_range_of(SHERDI_BUFFER_PARAMS, i * 64, 64));
        sherdi_order_enter(&order, &op, first);
        first += (uint64_t)(int64_t)step;
    }
}

static void order_ascends(void)
{
    order_fill(1, 1);
}

static void order_falls(void)
{
    order_fill(1000, -1);
}

static void order_of_numbers_that_fall_is_noticed(void)
{
    CHECK(!aborts(order_ascends));
    CHECK(aborts(order_falls));
}

/* A transfer that follows number `followed`, the third of a drive. */
static void drive_give_third(uint64_t followed)
{
    sherdi_transfer transfer   = {.follows = {.drives = {followed}, .num_drives = 1}};
    sherdi_transfer entries[4] = {0};
    size_t          sorted[4];
    sherdi_user     users[SHERDI_RINGS] = {SHERDI_USER_TRAINER};
    pthread_mutex_t lock                = PTHREAD_MUTEX_INITIALIZER;
    sherdi_drive    drive               = {.transfers = entries,
                                           .sorted    = sorted,
                                           .lock      = &lock,
                                           .count     = 4,
                                           .given     = 2,
                                           .others    = {.users = users}};

    (void)sherdi_drive_give(&drive, &transfer);
}

static void drive_gives_in_order(void)
{
    drive_give_third(2);
}

static void drive_follows_itself(void)
{
    drive_give_third(3);
}

static void transfer_that_follows_a_later_one_is_noticed(void)
{
    CHECK(!aborts(drive_gives_in_order));
    CHECK(aborts(drive_follows_itself));
}

static const test_case CASES[] = {
    CASE(order_of_numbers_that_fall_is_noticed),
    CASE(transfer_that_follows_a_later_one_is_noticed),
};

RUN_MAIN(CASES)
