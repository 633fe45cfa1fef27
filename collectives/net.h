/* Stream sockets for meeting and watching: addresses, listening, connecting, whole messages with a
 * time limit, and the passing of file descriptors. rendezvous.c, monitor.c, desk.c and procs.c use
 * them.
 *
 * Addresses are "tcp://host:port" ("tcp://[v6]:port"), "unix:///path/of/socket", and inside one
 * host also "abstract:name", which is a unix socket without a file. All descriptors are
 * non-blocking, and no child process gets one, neither by exec nor by fork. */
#ifndef SHERDI_COLLECTIVES_NET_H
#define SHERDI_COLLECTIVES_NET_H

#include "collectives/world_impl.h"

/* How long to wait, and whose failure ends the wait earlier. */
typedef struct net_wait {
    int64_t      deadline_ns; /* on the clock of sherdi_now_ns() */
    sherd_world *world;       /* its failure ends the wait; may be NULL */
} net_wait;

/** Returns E_INVAL when the address has none of these forms. */
sherd_status sherdi_net_address_check(const char *address);

/** Listens at an address. Replaces the file of a unix socket on which nobody listens any more;
 *  leaves one on which somebody listens. *is_elsewhere_out (may be NULL): the address is none of
 *  this host's, and it listens on all of them. */
sherd_status sherdi_net_listen(const char *address, int *out, int *is_elsewhere_out);
/** Removes the file of a unix address at which sherdi_net_listen listened. */
void sherdi_net_unlink(const char *address);
/** Returns the port of a listening TCP socket. */
int sherdi_net_port(int fd);
/** Returns the next connection, or -1 when none is waiting. Never blocks. */
int sherdi_net_accept(int listener);
/** Tries each of the host's addresses once. Errors: E_IO with the system's message, when a later
 *  attempt may succeed; E_INVAL when nobody can ever listen there (the path is a plain file or a
 *  folder, its folder does not exist, or access is denied). */
sherd_status sherdi_net_connect(const char *address, const net_wait *wait, int *out);

/** Calls poll() for at most `most_ms`. Returns 1 when the socket is ready, else 0. */
int sherdi_net_poll(int fd, short events, int most_ms);

/** Send or receive a whole message. Errors: E_PEER_LOST when the other end closed; E_IO when the
 *  time is up or on a system error; the failure of wait->world when it has one. */
sherd_status sherdi_net_send(int fd, const void *data, size_t len_bytes, const net_wait *wait);
sherd_status sherdi_net_recv(int fd, void *data, size_t len_bytes, const net_wait *wait);
/** Send or receive a descriptor over a unix socket. The receiver owns its copy. */
sherd_status sherdi_net_send_fd(int fd, int passed, const net_wait *wait);
sherd_status sherdi_net_recv_fd(int fd, int *passed_out, const net_wait *wait);

/** Returns whether the other end of a unix socket runs as this process's user; 1 for other
 *  sockets. */
int sherdi_net_is_same_user(int fd);
/** Lets the kernel end a connection whose other end has been silent for so long, where it can (TCP
 *  only). It asks every second. */
void sherdi_net_keepalive(int fd, int64_t silence_ns);
/** Makes small messages leave at once (TCP only). */
void sherdi_net_no_delay(int fd);
/** Closes *fd and sets it to -1. Accepts -1. */
void sherdi_net_close(int *fd);
/** Allocates an array of `count` descriptors, all -1. Returns NULL (E_NOMEM) on failure. */
int *sherdi_net_table(sherdi_mem *mem, int count);
/** Closes the descriptors and frees the array. Accepts NULL. */
void sherdi_net_table_free(int *fds, int count);

#endif
