/* A desk reads from processes that connect to a listening socket and have not yet said who they
 * are. Each caller sends one message of a fixed size. The desk reads from all callers at once, so a
 * slow or silent caller holds up nobody; it is dropped when its message is not complete after a
 * time limit. Ranks come to a desk to meet (rendezvous.c), and again after they have met: to rank 0
 * for control data, and to the first rank of their host to share memory (procs.c). One thread uses
 * a desk. */
#ifndef SHERDI_COLLECTIVES_DESK_H
#define SHERDI_COLLECTIVES_DESK_H

#include "collectives/net.h"

typedef struct net_desk net_desk;

typedef struct net_desk_params {
    int         listener;       /* remains the caller's */
    size_t      message_bytes;  /* size of the message that every caller sends */
    const void *greeting;       /* sent to every caller first; copied; may be NULL */
    size_t      greeting_bytes; /* must fit into a socket's buffer */
    int         expected;       /* callers that should come; there is room for more than these */
} net_desk_params;

/** Opens a desk at params->listener. Errors: E_NOMEM. */
sherd_status sherdi_desk_open(const net_desk_params *params, net_desk **out);
/** Waits at most `most_ms` for a caller whose message is complete. Returns the connection, which
 *  the function's caller then owns, and copies the message; returns -1 when no message is complete
 *  yet. */
int sherdi_desk_next(net_desk *desk, int most_ms, void *message);
/** Drops the callers that remain, and frees the desk. Accepts NULL. */
void sherdi_desk_close(net_desk *desk);

/** Accepts one more connection from each of the `count` ranks that have met, except number 0, at
 *  `listener`. All of fds[count] must be -1 at the call; fds[1] and up become their connections.
 *  Drops callers that do not know the session, or that run as another user. Errors: E_PEER_LOST at
 *  the deadline, with a message of the form "2 ranks" and then `late`; or the failure of
 *  wait->world. */
sherd_status sherdi_desk_gather(int listener, uint64_t session, int *fds, int count,
                                const net_wait *wait, const char *late);
/** The other side of sherdi_desk_gather: connects as number `index`. Errors: those of
 *  sherdi_net_connect, but E_PEER_LOST when nobody listens any more, and E_INVAL when the listener
 *  runs as another user. */
sherd_status sherdi_desk_come(const char *address, uint64_t session, int index,
                              const net_wait *wait, int *out);

#endif
