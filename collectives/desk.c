/* See desk.h. The callers are in a list, the oldest first; one poll() looks at all of them and at
 * the listener. */
#include "collectives/desk.h"

#include "base/clock.h"
#include "base/log.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* A rank sends its whole message at once; a caller that takes longer is not a rank. */
#define CALLER_NS INT64_C(5000000000)
/* Room for callers beyond the expected ones. */
#define ROOM_MORE 64

typedef struct net_caller {
    int            fd;
    int64_t        until_ns;
    size_t         got_bytes;
    unsigned char *message;
} net_caller;

struct net_desk {
    net_desk_params params;
    int             room;
    int             count; /* number of callers, the oldest first */
    net_caller     *callers;
    unsigned char  *messages; /* their buffers, in any order */
    unsigned char  *greeting;
    struct pollfd  *polls; /* [room + 1] */
};

/* The memory of the caller's message moves to the end of the list, after the remaining callers. */
static void caller_forget(net_desk *desk, int index)
{
    unsigned char *message = desk->callers[index].message;

    memmove(&desk->callers[index], &desk->callers[index + 1],
            (size_t)(desk->count - index - 1) * sizeof(*desk->callers));
    desk->callers[--desk->count] = (net_caller){.fd = -1, .message = message};
}

static void caller_drop(net_desk *desk, int index)
{
    sherdi_net_close(&desk->callers[index].fd);
    caller_forget(desk, index);
}

/* Returns 0 when nothing more will come from the caller. */
static int caller_read(const net_desk *desk, net_caller *caller)
{
    ssize_t got = recv(caller->fd, caller->message + caller->got_bytes,
                       desk->params.message_bytes - caller->got_bytes, 0);

    if (got < 0) {
        return errno == EAGAIN || errno == EINTR;
    }
    caller->got_bytes += (size_t)got;
    return got > 0;
}

/* Whether the time of a caller is over, and its message is not complete, however lately a part of
 * it has come. */
static int caller_is_late(const net_desk *desk, const net_caller *caller)
{
    return caller->got_bytes < desk->params.message_bytes && sherdi_now_ns() > caller->until_ns;
}

/* Returns whether there is room for one more caller. In a full list the oldest that has not sent
 * its message gives way; messages that are complete are taken soon, and who calls meanwhile waits
 * in the listener's queue. */
static int room_make(net_desk *desk)
{
    for (int i = 0; desk->count == desk->room && i < desk->count; i++) {
        if (desk->callers[i].got_bytes < desk->params.message_bytes) {
            caller_drop(desk, i);
        }
    }
    return desk->count < desk->room;
}

static void callers_accept(net_desk *desk)
{
    int fd;

    /* At most this number at a time, so that an endless stream of callers does not block this
     * thread. */
    for (int i = 0;
         i < desk->room && room_make(desk) && (fd = sherdi_net_accept(desk->params.listener)) >= 0;
         i++) {
        size_t said = desk->params.greeting_bytes;

        if (said > 0 &&
            send(fd, desk->greeting, said, MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)said) {
            sherdi_net_close(&fd);
            continue;
        }
        desk->callers[desk->count].fd        = fd;
        desk->callers[desk->count].got_bytes = 0;
        desk->callers[desk->count].until_ns  = sherdi_now_ns() + CALLER_NS;
        desk->count++;
    }
}

static int whole_take(net_desk *desk, void *message)
{
    for (int i = 0; i < desk->count; i++) {
        if (desk->callers[i].got_bytes == desk->params.message_bytes) {
            int fd = desk->callers[i].fd;

            memcpy(message, desk->callers[i].message, desk->params.message_bytes);
            caller_forget(desk, i);
            return fd;
        }
    }
    return -1;
}

int sherdi_desk_next(net_desk *desk, int most_ms, void *message)
{
    int count = desk->count; /* those that are polled; accepting adds others */
    int fd    = whole_take(desk, message);

    if (fd >= 0) {
        return fd;
    }
    desk->polls[count] = (struct pollfd){.fd = desk->params.listener, .events = POLLIN};
    for (int i = 0; i < count; i++) {
        desk->polls[i] = (struct pollfd){.fd = desk->callers[i].fd, .events = POLLIN};
    }
    (void)poll(desk->polls, (nfds_t)count + 1, most_ms);
    for (int i = count - 1; i >= 0; i--) {
        net_caller *caller = &desk->callers[i];

        if ((desk->polls[i].revents != 0 && !caller_read(desk, caller)) ||
            caller_is_late(desk, caller)) {
            caller_drop(desk, i);
        }
    }
    callers_accept(desk);
    return whole_take(desk, message);
}

sherd_status sherdi_desk_open(const net_desk_params *params, net_desk **out)
{
    net_desk *desk = calloc(1, sizeof(*desk));
    size_t    room = (size_t)params->expected + ROOM_MORE;

    if (desk == NULL) {
        return sherdi_fail(SHERD_E_NOMEM, "no memory for a meeting of %d ranks", params->expected);
    }
    desk->params   = *params;
    desk->room     = (int)room;
    desk->callers  = calloc(room, sizeof(*desk->callers));
    desk->messages = calloc(room, params->message_bytes);
    desk->polls    = calloc(room + 1, sizeof(*desk->polls));
    desk->greeting = malloc(params->greeting_bytes + 1);
    if (desk->callers == NULL || desk->messages == NULL || desk->polls == NULL ||
        desk->greeting == NULL) {
        sherdi_desk_close(desk);
        return sherdi_fail(SHERD_E_NOMEM, "no memory for a meeting of %d ranks", params->expected);
    }
    for (size_t i = 0; i < room; i++) {
        desk->callers[i] =
            (net_caller){.fd = -1, .message = desk->messages + i * params->message_bytes};
    }
    if (params->greeting_bytes > 0) {
        memcpy(desk->greeting, params->greeting, params->greeting_bytes);
    }
    *out = desk;
    return SHERD_OK;
}

void sherdi_desk_close(net_desk *desk)
{
    if (desk == NULL) {
        return;
    }
    while (desk->count > 0) {
        caller_drop(desk, desk->count - 1);
    }
    free(desk->callers);
    free(desk->messages);
    free(desk->polls);
    free(desk->greeting);
    free(desk);
}

/* The message of a rank that has met and connects again. */
typedef struct desk_hello {
    uint64_t session;
    int32_t  index;
    int32_t  unused;
} desk_hello;

sherd_status sherdi_desk_gather(int listener, uint64_t session, int *fds, int count,
                                const net_wait *wait, const char *late)
{
    const net_desk_params params = {
        .listener = listener, .message_bytes = sizeof(desk_hello), .expected = count};
    net_desk    *desk    = NULL;
    int          missing = count - 1;
    sherd_status status  = sherdi_desk_open(&params, &desk);

    while (status == SHERD_OK && missing > 0) {
        desk_hello hello;
        int        fd = sherdi_desk_next(desk, 50, &hello);

        if (fd >= 0 && sherdi_net_is_same_user(fd) && hello.session == session &&
            hello.index >= 1 && hello.index < count && fds[hello.index] < 0) {
            fds[hello.index] = fd;
            missing--;
            continue;
        }
        if (fd >= 0) {
            sherdi_log(SHERD_LOG_WARN, wait->world->rank,
                       "a process that is no rank of this world was turned away");
            sherdi_net_close(&fd);
        }
        status = sherdi_world_status(wait->world);
        if (status == SHERD_OK && sherdi_now_ns() >= wait->deadline_ns) {
            status = sherdi_fail(SHERD_E_PEER_LOST, "%d ranks %s", missing, late);
        }
    }
    sherdi_desk_close(desk);
    return status;
}

sherd_status sherdi_desk_come(const char *address, uint64_t session, int index,
                              const net_wait *wait, int *out)
{
    const desk_hello hello  = {.session = session, .index = index};
    int              fd     = -1;
    sherd_status     status = sherdi_net_connect(address, wait, &fd);

    if (status == SHERD_E_IO) { /* a desk is open before its address is sent */
        char why[SHERDI_ERROR_BYTES];

        (void)snprintf(why, sizeof(why), "%s", sherd_last_error());
        return sherdi_fail(SHERD_E_PEER_LOST, "the rank that should listen there has ended: %s",
                           why);
    }
    if (status == SHERD_OK && !sherdi_net_is_same_user(fd)) {
        status = sherdi_fail(SHERD_E_INVAL, "the process that listens at %s runs as another user",
                             address);
    }
    if (status == SHERD_OK) {
        status = sherdi_net_send(fd, &hello, sizeof(hello), wait);
    }
    if (status != SHERD_OK) {
        sherdi_net_close(&fd);
        return status;
    }
    *out = fd;
    return SHERD_OK;
}
