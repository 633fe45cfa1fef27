/* See star.h. In a call every rank sends a frame to rank 0, followed by its data, and rank 0 sends
 * an answer. Rank 0 reads the ranks in order, while the data of the others waits in their sockets.
 * A rank sends everything before it waits for the answer, so ranks cannot wait for each other in a
 * circle. */
#include "collectives/star.h"

#include "base/checked.h"
#include "base/clock.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>

/* Other ranks wait so much longer than rank 0, so that the error is rank 0's, which names the
 * missing ranks. */
#define GRACE_NS INT64_C(3000000000)
/* A line that ended does not say why; the monitor will, within this time. */
#define NEWS_NS    INT64_C(3000000000)
#define NAME_BYTES 64

/* The description of a rank's call. */
typedef struct star_frame {
    uint32_t kind; /* world_call_kind */
    int32_t  root;
    uint64_t len_bytes;
    char     name[NAME_BYTES];
    char     caller[WORLD_CALLER_BYTES]; /* for messages; it is not compared */
} star_frame;

sherd_status sherdi_star_open(sherdi_star *star, sherdi_procs *procs)
{
    star->procs = procs;
    return sherdi_rendezvous_lines(&procs->meeting, &procs->world, &star->lines);
}

void sherdi_star_close(sherdi_star *star)
{
    if (star->procs != NULL) {
        sherdi_net_table_free(star->lines,
                              star->procs->world.rank == 0 ? star->procs->world.world_size : 1);
    }
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

/* The connection to `rank` has ended because that rank disconnected or died. Waits for the
 * monitor's news, then fails the world. */
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
        return sherdi_world_fail_left(world, atomic_load(&star->procs->first_left));
    }
    return sherdi_world_fail(world, SHERD_E_PEER_LOST, "rank %d: the connection to rank %d ended",
                             world->rank, rank);
}

/* Lists the ranks from `first` on that have sent nothing, "1, 3". */
static void missing_list(sherdi_star *star, int first, char *text, size_t len_bytes)
{
    text[0] = '\0';
    for (int r = first; r < star->procs->world.world_size; r++) {
        if (r == first || !sherdi_net_poll(star->lines[r], POLLIN, 0)) {
            sherdi_ranks_add(text, len_bytes, sherdi_world_number(&star->procs->world, r));
        }
    }
}

/* Turns a failed send or receive into a failure of the world. */
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
    return sherdi_world_fail_late(world, "rank %s", missing);
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

static const char *frame_describe(const star_frame *frame, char text[WORLD_CALL_TEXT_BYTES])
{
    return sherdi_world_call_describe(frame->kind, frame->len_bytes, frame->name, frame->caller,
                                      text);
}

static sherd_status frame_compare(sherdi_star *star, const star_frame *mine,
                                  const star_frame *frame, int rank)
{
    char text[2][WORLD_CALL_TEXT_BYTES];

    if (frame->kind > CALL_ALLOC) {
        return sherdi_world_fail(
            &star->procs->world, SHERD_E_INVAL,
            "rank %d sent data that are not a call; start all ranks with the same version of sherd",
            rank);
    }
    if (memcmp(mine, frame, offsetof(star_frame, caller)) != 0) {
        return sherdi_world_fail_differ(&star->procs->world, 0, frame_describe(mine, text[0]), rank,
                                        frame_describe(frame, text[1]),
                                        mine->root != frame->root ? ", from another root" : "");
    }
    return SHERD_OK;
}

/* Rank 0: receives the frame of `rank`, then its data. */
static sherd_status frame_take(sherdi_star *star, const star_frame *mine, int rank, void *data,
                               size_t len_bytes)
{
    star_frame frame;

    SHERDI_TRY(take(star, rank, &frame, sizeof(frame)));
    frame.name[NAME_BYTES - 1]           = '\0';
    frame.caller[WORLD_CALLER_BYTES - 1] = '\0';
    SHERDI_TRY(frame_compare(star, mine, &frame, rank));
    return take(star, rank, data, len_bytes);
}

/* Other ranks: send a frame and their data, and receive the answer. */
static sherd_status answer_get(sherdi_star *star, const star_frame *mine, const void *data,
                               size_t len_bytes, void *answer, size_t answer_bytes)
{
    SHERDI_TRY(sherdi_world_status(&star->procs->world));
    SHERDI_TRY(give(star, 0, mine, sizeof(*mine)));
    SHERDI_TRY(give(star, 0, data, len_bytes));
    return take(star, 0, answer, answer_bytes);
}

/* Rank 0: sends the same answer to all. */
static sherd_status answer_give(sherdi_star *star, const void *answer, size_t answer_bytes)
{
    for (int r = 1; r < star->procs->world.world_size; r++) {
        SHERDI_TRY(give(star, r, answer, answer_bytes));
    }
    return SHERD_OK;
}

static star_frame frame_make(const sherdi_star *star, world_call_kind kind, size_t len_bytes,
                             const char *what)
{
    const char *caller = star->procs->world.running;
    star_frame  frame;

    memset(&frame, 0, sizeof(frame)); /* it is compared and sent as a whole */
    frame.kind      = (uint32_t)kind;
    frame.len_bytes = len_bytes;
    (void)snprintf(frame.name, sizeof(frame.name), "%s", what == NULL ? "" : what);
    (void)snprintf(frame.caller, sizeof(frame.caller), "%s", caller == NULL ? "" : caller);
    return frame;
}

/* ------------------------------------------------------------------- calls -- */

sherd_status sherdi_star_all_gather(sherdi_star *star, const sherdi_all_gather_args *args)
{
    sherd_world     *world = &star->procs->world;
    size_t           slice = args->slice_bytes;
    unsigned char   *recv  = args->recv;
    unsigned char   *own   = recv + (size_t)world->rank * slice;
    const star_frame mine  = frame_make(star, CALL_ALL_GATHER, slice, args->what);

    if (world->rank != 0) {
        return answer_get(star, &mine, args->send, slice, recv, slice * (size_t)world->world_size);
    }
    if (own != args->send && slice > 0) {
        memmove(own, args->send, slice);
    }
    for (int r = 1; r < world->world_size; r++) {
        SHERDI_TRY(frame_take(star, &mine, r, recv + (size_t)r * slice, slice));
    }
    return answer_give(star, recv, slice * (size_t)world->world_size);
}

sherd_status sherdi_star_broadcast(sherdi_star *star, void *data, size_t len_bytes, int root)
{
    sherd_world *world = &star->procs->world;
    star_frame   mine  = frame_make(star, CALL_BROADCAST, len_bytes, NULL);

    mine.root = root;
    if (world->rank != 0) {
        return answer_get(star, &mine, data, world->rank == root ? len_bytes : 0, data, len_bytes);
    }
    for (int r = 1; r < world->world_size; r++) {
        SHERDI_TRY(frame_take(star, &mine, r, data, r == root ? len_bytes : 0));
    }
    return answer_give(star, data, len_bytes);
}

/* The answer is one byte, which says that all ranks have come. */
sherd_status sherdi_star_barrier(sherdi_star *star)
{
    const star_frame mine = frame_make(star, CALL_BARRIER, 0, NULL);
    char             byte = 0;

    if (star->procs->world.rank != 0) {
        return answer_get(star, &mine, NULL, 0, &byte, 1);
    }
    for (int r = 1; r < star->procs->world.world_size; r++) {
        SHERDI_TRY(frame_take(star, &mine, r, NULL, 0));
    }
    return answer_give(star, &byte, 1);
}

/* Rank 0 adds the integers as they arrive. */
sherd_status sherdi_star_sum_u64(sherdi_star *star, uint64_t *values, size_t count)
{
    enum { PORTION = 1024 };

    sherd_world     *world = &star->procs->world;
    const star_frame mine =
        frame_make(star, CALL_ALL_REDUCE, count * sizeof(*values), "integers to add");
    uint64_t part[PORTION];

    if (world->rank != 0) {
        return answer_get(star, &mine, values, count * sizeof(*values), values,
                          count * sizeof(*values));
    }
    for (int r = 1; r < world->world_size; r++) {
        SHERDI_TRY(frame_take(star, &mine, r, NULL, 0));
        for (size_t at = 0; at < count; at += PORTION) {
            size_t here = sherdi_min_size(PORTION, count - at);

            SHERDI_TRY(take(star, r, part, here * sizeof(*part)));
            for (size_t i = 0; i < here; i++) {
                values[at + i] += part[i];
            }
        }
    }
    return answer_give(star, values, count * sizeof(*values));
}
