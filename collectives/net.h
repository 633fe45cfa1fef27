/* Stream sockets for meeting and watching: addresses, listening, connecting, whole messages
 * with a time limit, passing a file descriptor. Used by rendezvous.c, monitor.c and procs.c.
 *
 * Addresses: "tcp://host:port" ("tcp://[v6]:port"), "unix:///path/of/socket", and for use inside one host
 * "abstract:name", a unix socket without a file. No descriptor blocks, and none goes to a child,
 * by exec or by fork. */
#ifndef SHERDI_COLLECTIVES_NET_H
#define SHERDI_COLLECTIVES_NET_H

#include "collectives/world_impl.h"

/* How long to wait, and for whose failure to look meanwhile. */
typedef struct net_wait {
    int64_t      deadline_ns; /* on sherdi_now_ns()'s clock */
    sherd_world *world;       /* its failure ends the wait; may be NULL */
} net_wait;

/** E_INVAL when it is none of the forms above. */
sherd_status sherdi_net_address_check(const char *address);

/** A stale file of a unix socket is replaced; a socket that somebody listens on is not. */
sherd_status sherdi_net_listen(const char *address, int *out);
/** Removes the file of a unix address that sherdi_net_listen made. */
void sherdi_net_unlink(const char *address);
/** Port of a listening TCP socket. */
int sherdi_net_port(int fd);
/** Next connection; -1 when there is none now. */
int sherdi_net_accept(int listener);
/** One attempt at each of the host's addresses. E_IO with the system's words, which may pass; E_INVAL where nobody
 *  can ever listen (a path that is a plain file or a folder, or lies in none, or is forbidden). */
sherd_status sherdi_net_connect(const char *address, const net_wait *wait, int *out);

/** poll() for at most `most_ms`. 1 ready, 0 not. */
int sherdi_net_poll(int fd, short events, int most_ms);

/** Whole messages. E_PEER_LOST when the other end closed, E_IO when time is up or on error, the
 *  world's failure when it has one. */
sherd_status sherdi_net_send(int fd, const void *data, size_t len_bytes, const net_wait *wait);
sherd_status sherdi_net_recv(int fd, void *data, size_t len_bytes, const net_wait *wait);
/** A descriptor over a unix socket; the receiver owns its copy. */
sherd_status sherdi_net_send_fd(int fd, int passed, const net_wait *wait);
sherd_status sherdi_net_recv_fd(int fd, int *passed_out, const net_wait *wait);

/** The other end of a unix socket belongs to our user; 1 for other sockets. */
int sherdi_net_is_same_user(int fd);
/** Makes a dead machine known in seconds where the kernel can (TCP only). */
void sherdi_net_keepalive(int fd);
/** Small messages leave at once (TCP only). */
void sherdi_net_no_delay(int fd);
/** Closes and sets to -1; accepts -1. */
void sherdi_net_close(int *fd);
/** Room for connections, all -1; NULL (E_NOMEM) when there is none. */
int *sherdi_net_table(sherdi_mem *mem, int count);
/** Closes them and frees the room. Accepts NULL. */
void sherdi_net_table_free(int *fds, int count);

#endif
