/* The board (collectives/board.h): a wait for another rank ends at the world's time limit, which
 * counts from that rank's last progress. */
#include "base/clock.h"
#include "collectives/board.h"
#include "tests/lib/check.h"

#include <pthread.h>
#include <time.h>

#define RANKS    2
#define LIMIT_NS ((int64_t)400 * 1000 * 1000)
#define BEATS    8

static void tenth_sleep(void)
{
    const struct timespec time = {.tv_nsec = (long)100 * 1000 * 1000};

    (void)nanosleep(&time, NULL);
}

/* Rank 1 needs twice the limit for its first number, and never posts the second. */
static void slow_rank(sherdi_board *board)
{
    for (int i = 0; i < BEATS; i++) {
        tenth_sleep();
        sherdi_board_beat(board);
    }
    sherdi_board_post(board, 0, 1);
}

static void waiting_rank(sherdi_board *board)
{
    int     failed;
    int64_t start_ns = sherdi_now_ns();

    CHECK_OK(sherdi_board_wait(board, 0, 1, 1, "the update of unit a", &failed));
    CHECK(sherdi_now_ns() - start_ns > LIMIT_NS);
    start_ns = sherdi_now_ns();
    CHECK_STATUS(SHERD_E_PEER_LOST,
                 sherdi_board_wait(board, 1, 1, 1, "the update of unit b", &failed));
    CHECK_ERROR_SAYS("rank 0 waited 0.4 s (the time limit) for rank 1");
    CHECK_ERROR_SAYS("the update of unit b");
    CHECK_INT(-1, failed);
    CHECK(sherdi_now_ns() - start_ns >= LIMIT_NS);
}

static void *rank_run(void *raw)
{
    sherd_world  *world = raw;
    sherdi_mem    mem   = {0};
    sherdi_board *board;

    CHECK_OK(sherdi_board_open(world, 2, &mem, &board));
    CHECK(sherdi_board_is_shared(board));
    if (sherd_world_rank(world) == 1) {
        slow_rank(board);
        while (sherdi_world_status(world) == SHERD_OK) { /* until rank 0 gives up */
            tenth_sleep();
        }
    } else {
        sherdi_board_post(board, 0, 1);
        sherdi_board_post(board, 1, 1);
        waiting_rank(board);
    }
    sherdi_board_close(board);
    sherd_world_destroy(world);
    return NULL;
}

static void a_wait_ends_at_the_limit_after_the_last_progress(void)
{
    sherd_world_params params;
    sherd_world       *worlds[RANKS];
    pthread_t          threads[RANKS];

    sherd_world_params_init(&params);
    params.timeout_ns = LIMIT_NS;
    CHECK_OK(sherd_world_threads_with(RANKS, &params, worlds));
    for (int r = 0; r < RANKS; r++) {
        CHECK_INT(0, pthread_create(&threads[r], NULL, rank_run, worlds[r]));
    }
    for (int r = 0; r < RANKS; r++) {
        CHECK_INT(0, pthread_join(threads[r], NULL));
    }
}

static const test_case CASES[] = {
    CASE(a_wait_ends_at_the_limit_after_the_last_progress),
};

RUN_MAIN(CASES)
