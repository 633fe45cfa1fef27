/* Callers at a listening socket that have yet to say who they are. Each says one message of a fixed size; all are
 * read at once, so who is slow or silent holds up nobody, and is dropped in the end. Ranks come to meet
 * (rendezvous.c), and again when they have met: to rank 0 for control data, to the first of their host to share
 * memory (procs.c). One thread. */
#ifndef SHERDI_COLLECTIVES_DESK_H
#define SHERDI_COLLECTIVES_DESK_H

#include "collectives/net.h"

typedef struct net_desk net_desk;

typedef struct net_desk_params {
    int         listener;       /* stays the caller's */
    size_t      message_bytes;  /* what every caller says */
    const void *greeting;       /* what every caller is told first; copied; may be NULL */
    size_t      greeting_bytes; /* fits a socket's buffer */
    int         expected;       /* callers that are welcome: room for more at once than these */
} net_desk_params;

/** E_NOMEM. */
sherd_status sherdi_desk_open(const net_desk_params *params, net_desk **out);
/** Waits `most_ms` at most for a caller who has said all: its connection, now the caller's, and the message;
 *  -1: none yet. */
int sherdi_desk_next(net_desk *desk, int most_ms, void *message);
/** Drops who has not said all. Accepts NULL. */
void sherdi_desk_close(net_desk *desk);

/** Takes a further connection of each of `count` that have met, at `listener`: fds [count] are -1, and those from 1
 *  on become theirs. Who does not know the session or is another user is dropped. E_PEER_LOST at the deadline:
 *  "2 ranks" and `late`; or the failure of wait's world. */
sherd_status sherdi_desk_gather(int listener, uint64_t session, int *fds, int count,
                                const net_wait *wait, const char *late);
/** The other side: number `index` of them comes. As sherdi_net_connect; E_PEER_LOST when nobody listens any more,
 *  E_INVAL when another user does. */
sherd_status sherdi_desk_come(const char *address, uint64_t session, int index,
                              const net_wait *wait, int *out);

#endif
