/* See star.h. A call is a frame from every rank to rank 0, with what the rank gives behind it, and an answer
 * from rank 0. Rank 0 takes the ranks in order; what the others send meanwhile waits in their sockets, so nobody
 * waits in a circle: a rank sends all that it gives before it waits for the answer, and an all-to-all goes round
 * by round, where in round d all give their slice for rank d and rank d alone takes. */
#include "collectives/star.h"

#include "base/checked.h"
#include "base/clock.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>

/* What goes through scratch at once, of one rank. */
#define PIECE_BYTES ((size_t)16 << 10)
/* Others give rank 0 so much longer than their own limit: its sentence names the missing. */
#define GRACE_NS INT64_C(3000000000)
/* A line that ended says nothing of why; the monitor does, soon. */
#define NEWS_NS    INT64_C(3000000000)
#define NAME_BYTES 64

/* What a rank says about its call. */
typedef struct star_frame {
    uint32_t kind; /* world_call_kind */
    int32_t  root;
    uint64_t len_bytes;
    char     name[NAME_BYTES];
} star_frame;

sherd_status sherdi_star_open(sherdi_star *star, sherdi_procs *procs)
{
    sherd_world *world  = &procs->world;
    size_t       pieces = world->rank == 0 ? (size_t)world->world_size : 1;

    star->procs   = procs;
    star->scratch = sherdi_alloc_array(&world->mem, SHERDI_MEM_TRANSPORT, pieces, PIECE_BYTES);
    if (star->scratch == NULL) {
        return SHERD_E_NOMEM;
    }
    world->overhead_bytes += pieces * PIECE_BYTES;
    return sherdi_rendezvous_lines(&procs->meeting, world, &star->lines);
}

void sherdi_star_close(sherdi_star *star)
{
    int num_lines = star->procs == NULL || star->lines == NULL ? 0
                    : star->procs->world.rank == 0             ? star->procs->world.world_size
                                                               : 1;

    for (int i = 0; i < num_lines; i++) {
        sherdi_net_close(&star->lines[i]);
    }
    sherdi_free(star->lines);
    sherdi_free(star->scratch);
    memset(star, 0, sizeof(*star));
}

/* ---------------------------------------------------------------- waiting -- */

static net_wait star_wait(sherdi_star *star)
{
    sherd_world *world = &star->procs->world;

    return (net_wait){.deadline_ns =
                          sherdi_now_ns() + world->timeout_ns + (world->rank == 0 ? 0 : GRACE_NS),
                      .world = world};
}

/* The line to `rank` has ended: it left or died, and the monitor knows. */
static sherd_status line_ended(sherdi_star *star, int rank)
{
    sherd_world *world    = &star->procs->world;
    int64_t      until_ns = sherdi_now_ns() + NEWS_NS;

    while (!sherdi_world_has_failed(world) && atomic_load(&star->procs->first_left_ns) == 0 &&
           sherdi_now_ns() < until_ns) {
        (void)poll(NULL, 0, 5);
    }
    SHERDI_TRY(sherdi_world_status(world));
    if (atomic_load(&star->procs->first_left_ns) != 0) {
        return sherdi_world_fail(world, SHERD_E_PEER_LOST,
                                 "rank %d left the world (sherd_world_destroy) while rank %d still "
                                 "waited for it",
                                 atomic_load(&star->procs->first_left), world->rank);
    }
    return sherdi_world_fail(world, SHERD_E_PEER_LOST, "rank %d: the connection to rank %d ended",
                             world->rank, rank);
}

/* "1, 3": ranks from `first` on that have sent nothing. */
static void missing_list(sherdi_star *star, int first, char *text, size_t len_bytes)
{
    size_t at = 0;

    text[0] = '\0';
    for (int r = first; r < star->procs->world.world_size; r++) {
        int wrote;

        if (r != first && sherdi_net_poll(star->lines[r], POLLIN, 0)) {
            continue;
        }
        wrote = snprintf(text + at, len_bytes - at, "%s%d", at > 0 ? ", " : "", r);
        if (wrote < 0 || (size_t)wrote >= len_bytes - at) {
            return;
        }
        at += (size_t)wrote;
    }
}

/* A failed send or receive with `rank` in the words of the world. */
static sherd_status line_failed(sherdi_star *star, int rank, sherd_status status)
{
    sherd_world *world = &star->procs->world;
    char         missing[256];

    SHERDI_TRY(sherdi_world_status(world));
    if (status == SHERD_E_PEER_LOST) {
        return line_ended(star, rank);
    }
    if (world->rank == 0) {
        missing_list(star, rank, missing, sizeof(missing));
    } else {
        (void)snprintf(missing, sizeof(missing), "0");
    }
    return sherdi_world_fail(world, SHERD_E_PEER_LOST,
                             "rank %d waited %.1f s (the time limit) for rank %s", world->rank,
                             (double)world->timeout_ns * 1e-9, missing);
}

static int line_of(const sherdi_star *star, int rank)
{
    return star->lines[star->procs->world.rank == 0 ? rank : 0];
}

static sherd_status give(sherdi_star *star, int rank, const void *data, size_t len_bytes)
{
    const net_wait wait   = star_wait(star);
    sherd_status   status = sherdi_net_send(line_of(star, rank), data, len_bytes, &wait);

    return status == SHERD_OK ? SHERD_OK : line_failed(star, rank, status);
}

static sherd_status take(sherdi_star *star, int rank, void *data, size_t len_bytes)
{
    const net_wait wait   = star_wait(star);
    sherd_status   status = sherdi_net_recv(line_of(star, rank), data, len_bytes, &wait);

    return status == SHERD_OK ? SHERD_OK : line_failed(star, rank, status);
}

/* ------------------------------------------------------------------ frames -- */

static const char *frame_describe(const star_frame *frame, char *text, size_t len_bytes)
{
    (void)snprintf(text, len_bytes, "%s of %llu bytes%s%s",
                   sherdi_world_call_name((world_call_kind)frame->kind),
                   (unsigned long long)frame->len_bytes, frame->name[0] == '\0' ? "" : " of ",
                   frame->name);
    return text;
}

static sherd_status frame_compare(sherdi_star *star, const star_frame *mine,
                                  const star_frame *frame, int rank)
{
    char text[2][192];

    if (frame->kind > CALL_ALLOC) {
        return sherdi_world_fail(&star->procs->world, SHERD_E_INVAL,
                                 "rank %d sent something that is no call", rank);
    }
    if (memcmp(mine, frame, sizeof(*mine)) != 0) {
        return sherdi_world_fail(
            &star->procs->world, SHERD_E_INVAL,
            "ranks disagree: rank 0 calls %s, rank %d %s%s; all ranks make the same calls in the "
            "same order",
            frame_describe(mine, text[0], sizeof(text[0])), rank,
            frame_describe(frame, text[1], sizeof(text[1])),
            mine->root != frame->root ? ", from another root" : "");
    }
    return SHERD_OK;
}

/* Rank 0: takes the frame of `rank`, and then what it gives. Others: sends both. */
static sherd_status frame_take(sherdi_star *star, const star_frame *mine, int rank, void *data,
                               size_t len_bytes)
{
    star_frame frame;

    SHERDI_TRY(take(star, rank, &frame, sizeof(frame)));
    frame.name[NAME_BYTES - 1] = '\0';
    SHERDI_TRY(frame_compare(star, mine, &frame, rank));
    return take(star, rank, data, len_bytes);
}

static sherd_status frame_give(sherdi_star *star, const star_frame *mine, const void *data,
                               size_t len_bytes)
{
    SHERDI_TRY(sherdi_world_status(&star->procs->world));
    SHERDI_TRY(give(star, 0, mine, sizeof(*mine)));
    return give(star, 0, data, len_bytes);
}

static star_frame frame_make(world_call_kind kind, size_t len_bytes, const char *what)
{
    star_frame frame;

    memset(&frame, 0, sizeof(frame)); /* compared and sent as a whole */
    frame.kind      = (uint32_t)kind;
    frame.len_bytes = len_bytes;
    (void)snprintf(frame.name, sizeof(frame.name), "%s", what == NULL ? "" : what);
    return frame;
}

/* ------------------------------------------------------------------- calls -- */

sherd_status sherdi_star_all_gather(sherdi_star *star, const sherdi_all_gather_args *args)
{
    sherd_world     *world = &star->procs->world;
    size_t           slice = args->slice_bytes;
    unsigned char   *recv  = args->recv;
    unsigned char   *own   = recv + (size_t)world->rank * slice;
    const star_frame mine  = frame_make(CALL_ALL_GATHER, slice, args->what);

    if (world->rank != 0) {
        SHERDI_TRY(frame_give(star, &mine, args->send, slice));
        return take(star, 0, recv, slice * (size_t)world->world_size);
    }
    if (own != args->send && slice > 0) {
        memmove(own, args->send, slice);
    }
    for (int r = 1; r < world->world_size; r++) {
        SHERDI_TRY(frame_take(star, &mine, r, recv + (size_t)r * slice, slice));
    }
    for (int r = 1; r < world->world_size; r++) {
        SHERDI_TRY(give(star, r, recv, slice * (size_t)world->world_size));
    }
    return SHERD_OK;
}

sherd_status sherdi_star_barrier(sherdi_star *star)
{
    sherd_world     *world = &star->procs->world;
    const star_frame mine  = frame_make(CALL_BARRIER, 0, NULL);
    char             byte  = 0;

    if (world->rank != 0) {
        SHERDI_TRY(frame_give(star, &mine, NULL, 0));
        return take(star, 0, &byte, 1);
    }
    for (int r = 1; r < world->world_size; r++) {
        SHERDI_TRY(frame_take(star, &mine, r, NULL, 0));
    }
    for (int r = 1; r < world->world_size; r++) {
        SHERDI_TRY(give(star, r, &byte, 1));
    }
    return SHERD_OK;
}

sherd_status sherdi_star_broadcast(sherdi_star *star, void *data, size_t len_bytes, int root)
{
    sherd_world *world = &star->procs->world;
    star_frame   mine  = frame_make(CALL_BROADCAST, len_bytes, NULL);

    mine.root = root;
    if (world->rank != 0) {
        SHERDI_TRY(frame_give(star, &mine, data, world->rank == root ? len_bytes : 0));
        return take(star, 0, data, len_bytes);
    }
    for (int r = 1; r < world->world_size; r++) {
        SHERDI_TRY(frame_take(star, &mine, r, data, r == root ? len_bytes : 0));
    }
    for (int r = 1; r < world->world_size; r++) {
        SHERDI_TRY(give(star, r, data, len_bytes));
    }
    return SHERD_OK;
}

/* Bytes [at, at + piece) of the slices: round by round, see above. Rank 0 gathers those for rank d in scratch. */
static sherd_status rounds_run(sherdi_star *star, const sherdi_all_to_all_args *args, size_t at,
                               size_t piece)
{
    sherd_world         *world = &star->procs->world;
    const unsigned char *send  = (const unsigned char *)args->send + at;
    unsigned char       *recv  = (unsigned char *)args->recv + at;
    size_t               size  = (size_t)world->world_size;

    for (size_t d = 0; d < size; d++) {
        if (world->rank != 0) {
            SHERDI_TRY(give(star, 0, send + d * args->slice_bytes, piece));
        } else {
            memcpy(star->scratch, send + d * args->slice_bytes, piece);
            for (size_t r = 1; r < size; r++) {
                SHERDI_TRY(take(star, (int)r, star->scratch + r * piece, piece));
            }
        }
        for (size_t r = 0; r < size; r++) {
            if (d == 0 && world->rank == 0) {
                memcpy(recv + r * args->slice_bytes, star->scratch + r * piece, piece);
            } else if (world->rank == 0) {
                SHERDI_TRY(give(star, (int)d, star->scratch + r * piece, piece));
            } else if (d == (size_t)world->rank) {
                SHERDI_TRY(take(star, 0, recv + r * args->slice_bytes, piece));
            }
        }
    }
    return SHERD_OK;
}

sherd_status sherdi_star_all_to_all(sherdi_star *star, const sherdi_all_to_all_args *args)
{
    sherd_world     *world = &star->procs->world;
    const star_frame mine  = frame_make(CALL_ALL_TO_ALL, args->slice_bytes, NULL);

    if (world->rank != 0) {
        SHERDI_TRY(frame_give(star, &mine, NULL, 0));
    }
    for (int r = 1; r < world->world_size && world->rank == 0; r++) {
        SHERDI_TRY(frame_take(star, &mine, r, NULL, 0));
    }
    for (size_t at = 0; at < args->slice_bytes; at += PIECE_BYTES) {
        SHERDI_TRY(
            rounds_run(star, args, at, sherdi_min_size(PIECE_BYTES, args->slice_bytes - at)));
    }
    return args->slice_bytes > 0 ? SHERD_OK : sherdi_star_barrier(star);
}

/* Integers: rank 0 adds them as they come. */
sherd_status sherdi_star_sum_u64(sherdi_star *star, uint64_t *values, size_t count)
{
    enum { PIECE = PIECE_BYTES / sizeof(uint64_t) };

    sherd_world     *world = &star->procs->world;
    const star_frame mine = frame_make(CALL_ALL_REDUCE, count * sizeof(*values), "integers to add");
    uint64_t        *part = (uint64_t *)(void *)star->scratch;

    if (world->rank != 0) {
        SHERDI_TRY(frame_give(star, &mine, values, count * sizeof(*values)));
        return take(star, 0, values, count * sizeof(*values));
    }
    for (int r = 1; r < world->world_size; r++) {
        SHERDI_TRY(frame_take(star, &mine, r, NULL, 0));
        for (size_t at = 0; at < count; at += PIECE) {
            size_t here = sherdi_min_size(PIECE, count - at);

            SHERDI_TRY(take(star, r, part, here * sizeof(*part)));
            for (size_t i = 0; i < here; i++) {
                values[at + i] += part[i];
            }
        }
    }
    for (int r = 1; r < world->world_size; r++) {
        SHERDI_TRY(give(star, r, values, count * sizeof(*values)));
    }
    return SHERD_OK;
}
