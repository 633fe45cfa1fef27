/* See board.h. The rows of ranks that share memory lie in memory of the world. A sleeper sleeps on
 * the row's bell (futex), for a bounded time: it looks for lost ranks even if nobody rings. */
#include "collectives/board.h"

#include "base/checked.h"
#include "base/clock.h"
#include "collectives/peers.h"

#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SLEEP_NS 50000000

typedef struct board_row {
    _Alignas(64) atomic_uint bell; /* futex; changes with every post */
    atomic_uint sleepers;
    atomic_uint beats; /* changes with all that the rank does for its numbers */
    _Alignas(64) _Atomic uint64_t numbers[]; /* [places] */
} board_row;

struct sherdi_board {
    sherd_world *world;
    board_row   *own;
    int          is_worlds; /* the row is memory of the world */
    int          count;     /* of rows */
    board_row   *rows[];    /* of the ranks that are seen, by rank */
};

size_t sherdi_board_bytes(size_t places)
{
    return sizeof(board_row) + places * sizeof(uint64_t);
}

static int can_share(const sherd_world *world)
{
    return world->peers != NULL && world->peers->count == world->world_size &&
           !sherdi_world_backend(world)->device->is_async;
}

static sherd_status rows_find(sherdi_board *board, size_t len_bytes)
{
    sherdi_peers *peers   = board->world->peers;
    peers_address address = sherdi_peers_find_address(peers, board->own, len_bytes);

    for (int r = 0; r < board->count; r++) {
        board->rows[r] = (board_row *)(void *)sherdi_peers_at(peers, r, address);
    }
    return SHERD_OK;
}

static void own_free(sherd_world *world, void *own, int is_worlds)
{
    if (is_worlds) {
        sherdi_world_free(world, own);
    } else {
        sherdi_free(own);
    }
}

sherd_status sherdi_board_open(sherd_world *world, size_t places, sherdi_mem *mem,
                               sherdi_board **out)
{
    int           is_shared = can_share(world);
    int           count     = is_shared ? world->world_size : 1;
    size_t        len_bytes = sherdi_board_bytes(places);
    void         *own       = NULL;
    sherdi_board *board     = sherdi_alloc(mem, SHERDI_MEM_CONTROL,
                                           sizeof(*board) + (size_t)count * sizeof(*board->rows));
    sherd_status  status    = SHERD_OK;

    if (is_shared) {
        status = sherdi_world_alloc(world, len_bytes, &own);
    } else {
        own = sherdi_alloc(mem, SHERDI_MEM_CONTROL, len_bytes);
    }
    if (status == SHERD_OK && (board == NULL || own == NULL)) {
        status = SHERD_E_NOMEM;
    }
    if (status != SHERD_OK) {
        own_free(world, own, is_shared);
        sherdi_free(board);
        return status;
    }
    board->world     = world;
    board->own       = own;
    board->is_worlds = is_shared;
    board->count     = count;
    board->rows[0]   = own;
    *out             = board;
    return is_shared ? rows_find(board, len_bytes) : SHERD_OK;
}

void sherdi_board_close(sherdi_board *board)
{
    if (board == NULL) {
        return;
    }
    own_free(board->world, board->own, board->is_worlds);
    sherdi_free(board);
}

int sherdi_board_is_shared(const sherdi_board *board)
{
    return board->count == board->world->world_size;
}

static void bell_ring(board_row *row)
{
    (void)atomic_fetch_add(&row->bell, 1);
    if (atomic_load(&row->sleepers) > 0) {
        (void)syscall(SYS_futex, &row->bell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    }
}

void sherdi_board_beat(sherdi_board *board)
{
    (void)atomic_fetch_add_explicit(&board->own->beats, 1, memory_order_relaxed);
}

void sherdi_board_post(sherdi_board *board, size_t place, uint64_t number)
{
    sherdi_board_beat(board);
    atomic_store(&board->own->numbers[place], number);
    bell_ring(board->own);
}

/* The first of the rows that count, and the one after the last. */
static int row_first(const sherdi_board *board, int is_all)
{
    return is_all || !board->is_worlds ? 0 : board->world->rank;
}

static int row_end(const sherdi_board *board, int is_all)
{
    return is_all ? board->count : row_first(board, is_all) + 1;
}

int sherdi_board_has(const sherdi_board *board, size_t place, uint64_t number, int is_all)
{
    for (int r = row_first(board, is_all); r < row_end(board, is_all); r++) {
        if (atomic_load(&board->rows[r]->numbers[place]) < number) {
            return 0;
        }
    }
    return 1;
}

/* Looks for what ends every wait. */
static sherd_status world_check(const sherdi_board *board, int row)
{
    sherdi_peers *peers = board->world->peers;

    if (!board->is_worlds) {
        return sherdi_world_status(board->world);
    }
    SHERDI_TRY(sherdi_peers_check(peers));
    return atomic_load(&peers->control->slots[row].has_left)
               ? sherdi_world_fail_left(board->world, peers->ranks[row])
               : SHERD_OK;
}

/* How long a rank has not moved. */
typedef struct row_rest {
    unsigned beats;
    int64_t  since_ns;
} row_rest;

/* The time limit of the world counts from the last progress: a slow drive is no lost rank. A rank
 * waits for itself without limit. */
static sherd_status rest_check(const sherdi_board *board, int rank, row_rest *rest,
                               const char *what)
{
    unsigned beats = atomic_load(&board->rows[rank]->beats);

    if (beats != rest->beats || board->rows[rank] == board->own) {
        *rest = (row_rest){beats, sherdi_now_ns()};
    }
    return sherdi_now_ns() - rest->since_ns < board->world->timeout_ns
               ? SHERD_OK
               : sherdi_world_fail(board->world, SHERD_E_PEER_LOST,
                                   "rank %d waited %.1f s (the time limit) for rank %d, which made "
                                   "no progress with %s, in %s",
                                   board->world->rank, (double)board->world->timeout_ns * 1e-9,
                                   board->world->peers->ranks[rank], what,
                                   sherdi_world_caller(board->world));
}

static sherd_status row_wait(sherdi_board *board, int rank, size_t place, uint64_t number,
                             const char *what)
{
    const struct timespec bound = {.tv_nsec = SLEEP_NS};
    board_row            *row   = board->rows[rank];
    row_rest              rest  = {atomic_load(&row->beats), sherdi_now_ns()};

    for (;;) {
        unsigned     bell   = atomic_load(&row->bell);
        sherd_status status = world_check(board, rank);

        if (atomic_load(&row->numbers[place]) >=
            number) { /* after the check: it may have disconnected since */
            return SHERD_OK;
        }
        SHERDI_TRY(status);
        SHERDI_TRY(rest_check(board, rank, &rest, what));
        (void)atomic_fetch_add(&row->sleepers, 1);
        (void)syscall(SYS_futex, &row->bell, FUTEX_WAIT, bell, &bound, NULL, 0);
        (void)atomic_fetch_sub(&row->sleepers, 1);
    }
}

sherd_status sherdi_board_wait(sherdi_board *board, size_t place, uint64_t number, int is_all,
                               const char *what, int *failed_out)
{
    *failed_out = -1;
    for (int r = row_first(board, is_all); r < row_end(board, is_all); r++) {
        if (atomic_load(&board->rows[r]->numbers[place]) < number) {
            SHERDI_TRY(row_wait(board, r, place, number, what));
        }
        if (atomic_load(&board->rows[r]->numbers[place]) == SHERDI_BOARD_FAILED) {
            *failed_out = board->is_worlds ? r : board->world->rank;
            return SHERD_E_IO;
        }
    }
    return SHERD_OK;
}
