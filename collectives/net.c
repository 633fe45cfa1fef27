/* See net.h. Every wait polls in short portions, so that it can look at the world's failure in
 * between. */
#include "collectives/net.h"

#include "base/clock.h"
#include "base/fork.h"
#include "base/log.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define TCP_PREFIX      "tcp://"
#define UNIX_PREFIX     "unix://"
#define ABSTRACT_PREFIX "abstract:"
#define BACKLOG         1024
/* A wait looks at the world's failure at this interval. */
#define LOOK_MS 50

static int has_prefix(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

/* Splits "tcp://host:port" into host and port. Returns 0 when the address has another form. */
static int tcp_split(const char *address, char *host, size_t host_bytes, char *port,
                     size_t port_bytes)
{
    const char *begin;
    const char *colon;
    size_t      len;
    char       *end;
    long        number;

    if (!has_prefix(address, TCP_PREFIX)) {
        return 0;
    }
    begin = address + strlen(TCP_PREFIX);
    colon = strrchr(begin, ':');
    if (colon == NULL || colon == begin) {
        return 0;
    }
    number = strtol(colon + 1, &end, 10);
    if (colon[1] == '\0' || *end != '\0' || number < 0 || number > 65535) {
        return 0;
    }
    len = (size_t)(colon - begin);
    if (begin[0] == '[' && begin[len - 1] == ']') {
        begin++;
        len -= 2;
    }
    if (len == 0 || len >= host_bytes) {
        return 0;
    }
    memcpy(host, begin, len);
    host[len] = '\0';
    (void)snprintf(port, port_bytes, "%ld", number);
    return 1;
}

/* Fills in a unix address. Returns its length, or 0 when the address has another form or is too
 * long. */
static socklen_t unix_address(const char *address, struct sockaddr_un *out)
{
    const char *name;
    size_t      len;

    memset(out, 0, sizeof(*out));
    out->sun_family = AF_UNIX;
    if (has_prefix(address, UNIX_PREFIX)) {
        name = address + strlen(UNIX_PREFIX);
        len  = strlen(name);
        if (name[0] != '/' || len >= sizeof(out->sun_path)) {
            return 0;
        }
        memcpy(out->sun_path, name, len);
        return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len + 1);
    }
    if (!has_prefix(address, ABSTRACT_PREFIX)) {
        return 0;
    }
    name = address + strlen(ABSTRACT_PREFIX);
    len  = strlen(name);
    if (len == 0 || len >= sizeof(out->sun_path) - 1) {
        return 0;
    }
    memcpy(out->sun_path + 1, name, len);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + len);
}

sherd_status sherdi_net_address_check(const char *address)
{
    char               host[256];
    char               port[8];
    struct sockaddr_un name;

    if (address == NULL || (!tcp_split(address, host, sizeof(host), port, sizeof(port)) &&
                            unix_address(address, &name) == 0)) {
        return sherdi_fail(SHERD_E_INVAL,
                           "\"%s\" is not a rendezvous: use tcp://host:port or unix:///path "
                           "(a path of at most %zu bytes)",
                           address == NULL ? "(null)" : address, sizeof(name.sun_path) - 1);
    }
    return SHERD_OK;
}

void sherdi_net_close(int *fd)
{
    if (*fd >= 0) {
        sherdi_fork_close(*fd);
    }
    *fd = -1;
}

int *sherdi_net_table(sherdi_mem *mem, int count)
{
    int *fds = sherdi_alloc_array(mem, SHERDI_MEM_CONTROL, (size_t)count, sizeof(*fds));

    for (int i = 0; fds != NULL && i < count; i++) {
        fds[i] = -1;
    }
    return fds;
}

void sherdi_net_table_free(int *fds, int count)
{
    for (int i = 0; fds != NULL && i < count; i++) {
        sherdi_net_close(&fds[i]);
    }
    sherdi_free(fds);
}

int sherdi_net_poll(int fd, short events, int most_ms)
{
    struct pollfd item = {.fd = fd, .events = events};

    return poll(&item, 1, most_ms) > 0;
}

/* ---------------------------------------------------- listening, connecting -- */

/* Returns E_INVAL where nobody can ever listen, so that waiting makes no sense. */
static sherd_status unix_path_check(const struct sockaddr_un *name)
{
    struct sockaddr_un folder = *name;
    struct stat        info;
    char              *slash = strrchr(folder.sun_path, '/');

    if (name->sun_path[0] == '\0') {
        return SHERD_OK;
    }
    if (lstat(name->sun_path, &info) == 0) {
        if (S_ISLNK(info.st_mode) && stat(name->sun_path, &info) != 0) {
            return sherdi_fail(SHERD_E_INVAL,
                               "ranks cannot meet at %s: it is a symbolic link to a path that does "
                               "not exist; choose another path",
                               name->sun_path);
        }
        return S_ISSOCK(info.st_mode)
                   ? SHERD_OK
                   : sherdi_fail(SHERD_E_INVAL,
                                 "ranks cannot meet at %s: it is a %s, not a socket; remove it, or "
                                 "choose a path where nothing is",
                                 name->sun_path, S_ISDIR(info.st_mode) ? "folder" : "file");
    }
    if (errno != ENOENT) {
        return sherdi_fail(SHERD_E_INVAL, "ranks cannot meet at %s: %m", name->sun_path);
    }
    slash[slash == folder.sun_path] = '\0';
    if (stat(folder.sun_path, &info) != 0) {
        return sherdi_fail(SHERD_E_INVAL,
                           "ranks cannot meet at %s: folder %s: %m; make it before they start",
                           name->sun_path, folder.sun_path);
    }
    return SHERD_OK;
}

static int socket_open(int family)
{
    sherdi_fork_hold();
    return sherdi_fork_exclude(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

static sherd_status unix_listen(const char *address, int *out)
{
    struct sockaddr_un name;
    socklen_t          len = unix_address(address, &name);
    int                fd  = socket_open(AF_UNIX);
    int                old;

    if (fd < 0) {
        return sherdi_fail(SHERD_E_IO, "no unix socket: %m");
    }
    if (unix_path_check(&name) != SHERD_OK) {
        sherdi_net_close(&fd);
        return SHERD_E_INVAL;
    }
    if (name.sun_path[0] != '\0') {
        /* A socket on which no process listens remains from a job that died. */
        old = socket_open(AF_UNIX);
        if (old >= 0 && connect(old, (struct sockaddr *)&name, len) != 0 && errno == ECONNREFUSED) {
            (void)unlink(name.sun_path);
        }
        sherdi_net_close(&old);
    }
    if (bind(fd, (struct sockaddr *)&name, len) != 0 || listen(fd, BACKLOG) != 0) {
        sherd_status status = sherdi_fail(errno == EADDRINUSE ? SHERD_E_INVAL : SHERD_E_IO,
                                          "cannot listen on %s: %m", address);
        sherdi_net_close(&fd);
        return status;
    }
    *out = fd;
    return SHERD_OK;
}

static int tcp_bind(const struct addrinfo *info)
{
    int fd  = socket_open(info->ai_family);
    int one = 1;

    if (fd < 0) {
        return -1;
    }
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (bind(fd, info->ai_addr, info->ai_addrlen) != 0 || listen(fd, BACKLOG) != 0) {
        int error = errno;

        sherdi_net_close(&fd);
        errno = error;
    }
    return fd;
}

/* Frees the list; where no address can be had, errno says why. */
static int tcp_bind_any(struct addrinfo *list)
{
    int fd = -1;
    int error;

    for (const struct addrinfo *info = list; info != NULL && fd < 0; info = info->ai_next) {
        fd = tcp_bind(info);
    }
    error = errno;
    freeaddrinfo(list);
    errno = error;
    return fd;
}

static sherd_status tcp_resolve(const char *address, int flags, struct addrinfo **out)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = flags};
    char            host[256];
    char            port[8];
    int             error;

    if (!tcp_split(address, host, sizeof(host), port, sizeof(port))) {
        return sherdi_net_address_check(address);
    }
    error = getaddrinfo(flags & AI_PASSIVE ? NULL : host, port, &hints, out);
    if (error != 0) {
        return sherdi_fail(SHERD_E_IO, "cannot find host %s: %s", host, gai_strerror(error));
    }
    return SHERD_OK;
}

static sherd_status tcp_listen(const char *address, int *out, int *is_elsewhere_out)
{
    struct addrinfo *list = NULL;
    int              fd;

    SHERDI_TRY(tcp_resolve(address, 0, &list));
    fd = tcp_bind_any(list);
    if (fd < 0 && errno == EADDRNOTAVAIL) {
        /* The other ranks know this host by a name (a service, a forwarded port) that is not one of
         * its own addresses. */
        sherdi_log(SHERD_LOG_INFO, 0,
                   "%s is not an address of this host: listening on all addresses of this host",
                   address);
        SHERDI_TRY(tcp_resolve(address, AI_PASSIVE, &list));
        fd                = tcp_bind_any(list);
        *is_elsewhere_out = 1;
    }
    if (fd < 0) {
        return sherdi_fail(errno == EADDRINUSE ? SHERD_E_INVAL : SHERD_E_IO,
                           "cannot listen on %s: %m", address);
    }
    *out = fd;
    return SHERD_OK;
}

sherd_status sherdi_net_listen(const char *address, int *out, int *is_elsewhere_out)
{
    int is_elsewhere = 0;

    SHERDI_TRY(sherdi_net_address_check(address));
    SHERDI_TRY(has_prefix(address, TCP_PREFIX) ? tcp_listen(address, out, &is_elsewhere)
                                               : unix_listen(address, out));
    if (is_elsewhere_out != NULL) {
        *is_elsewhere_out = is_elsewhere;
    }
    return SHERD_OK;
}

void sherdi_net_unlink(const char *address)
{
    if (has_prefix(address, UNIX_PREFIX)) {
        (void)unlink(address + strlen(UNIX_PREFIX));
    }
}

int sherdi_net_port(int fd)
{
    struct sockaddr_storage name;
    socklen_t               len = sizeof(name);

    if (getsockname(fd, (struct sockaddr *)&name, &len) != 0) {
        return -1;
    }
    return ntohs(name.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&name)->sin6_port
                                            : ((struct sockaddr_in *)&name)->sin_port);
}

int sherdi_net_accept(int listener)
{
    sherdi_fork_hold();
    return sherdi_fork_exclude(accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK));
}

/* Returns how long to wait before the next look for failures, at most until the deadline. */
static sherd_status wait_look(const net_wait *wait, int *most_ms_out)
{
    int64_t left_ns = wait->deadline_ns - sherdi_now_ns();

    if (wait->world != NULL) {
        SHERDI_TRY(sherdi_world_status(wait->world));
    }
    if (left_ns <= 0) {
        return sherdi_fail(SHERD_E_IO, "the time limit passed");
    }
    *most_ms_out = left_ns / 1000000 < LOOK_MS ? (int)(left_ns / 1000000) + 1 : LOOK_MS;
    return SHERD_OK;
}

static sherd_status wait_for(int fd, short events, const net_wait *wait)
{
    int most_ms = 0;

    do {
        SHERDI_TRY(wait_look(wait, &most_ms));
    } while (!sherdi_net_poll(fd, events, most_ms));
    return SHERD_OK;
}

/* Returns the attempt's errno, 0 when it is connected. Waits at most five seconds for one
 * address. */
static int connect_one(int fd, const struct sockaddr *name, socklen_t len, const net_wait *wait)
{
    net_wait  bound = *wait;
    int64_t   soon  = sherdi_now_ns() + INT64_C(5000000000);
    int       error = 0;
    socklen_t size  = sizeof(error);

    if (connect(fd, name, len) == 0) {
        return 0;
    }
    if (errno != EINPROGRESS) {
        return errno;
    }
    bound.deadline_ns = bound.deadline_ns < soon ? bound.deadline_ns : soon;
    if (wait_for(fd, POLLOUT, &bound) != SHERD_OK) {
        return ETIMEDOUT;
    }
    return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 ? error : errno;
}

/* Somebody may listen soon; but nobody will where access is denied or the socket is of another
 * type. */
static int unix_error_may_pass(int error)
{
    return error != EACCES && error != EPERM && error != EPROTOTYPE;
}

sherd_status sherdi_net_connect(const char *address, const net_wait *wait, int *out)
{
    struct sockaddr_un name;
    socklen_t          len   = unix_address(address, &name);
    struct addrinfo    alone = {
           .ai_family = AF_UNIX, .ai_addr = (struct sockaddr *)&name, .ai_addrlen = len};
    struct addrinfo *list  = &alone;
    int              error = 0;
    int              fd    = -1;

    if (len == 0) {
        SHERDI_TRY(tcp_resolve(address, 0, &list));
    }
    for (const struct addrinfo *info = list; info != NULL && fd < 0; info = info->ai_next) {
        fd    = socket_open(info->ai_family);
        error = fd < 0 ? errno : connect_one(fd, info->ai_addr, info->ai_addrlen, wait);
        if (error != 0) {
            sherdi_net_close(&fd);
        }
    }
    if (list != &alone) {
        freeaddrinfo(list);
    }
    if (fd < 0 && len != 0) {
        SHERDI_TRY(unix_path_check(&name));
    }
    if (fd < 0) {
        return sherdi_fail(len != 0 && !unix_error_may_pass(error) ? SHERD_E_INVAL : SHERD_E_IO,
                           "cannot connect to %s: %s", address, strerror(error));
    }
    *out = fd;
    return SHERD_OK;
}

/* ------------------------------------------------------------- messages -- */

static sherd_status closed(void)
{
    return sherdi_fail(SHERD_E_PEER_LOST, "the other end closed the connection");
}

/* Called after a call that failed, with its errno: waits until the call can be repeated, or returns
 * why it cannot. */
static sherd_status retry_wait(int fd, short events, const net_wait *wait, const char *what)
{
    if (errno == EPIPE || errno == ECONNRESET) {
        return closed();
    }
    if (errno != EAGAIN && errno != EINTR) {
        return sherdi_fail(SHERD_E_IO, "%s failed: %m", what);
    }
    return errno == EAGAIN ? wait_for(fd, events, wait) : SHERD_OK;
}

sherd_status sherdi_net_send(int fd, const void *data, size_t len_bytes, const net_wait *wait)
{
    const unsigned char *at = data;

    while (len_bytes > 0) {
        ssize_t sent = send(fd, at, len_bytes, MSG_NOSIGNAL);

        if (sent < 0) {
            SHERDI_TRY(retry_wait(fd, POLLOUT, wait, "sending"));
        } else {
            at += sent;
            len_bytes -= (size_t)sent;
        }
    }
    return SHERD_OK;
}

sherd_status sherdi_net_recv(int fd, void *data, size_t len_bytes, const net_wait *wait)
{
    unsigned char *at = data;

    while (len_bytes > 0) {
        ssize_t got = recv(fd, at, len_bytes, 0);

        if (got == 0) {
            return closed();
        }
        if (got < 0) {
            SHERDI_TRY(retry_wait(fd, POLLIN, wait, "receiving"));
        } else {
            at += got;
            len_bytes -= (size_t)got;
        }
    }
    return SHERD_OK;
}

/* A byte, and room for a descriptor. */
typedef struct fd_message {
    struct msghdr header;
    struct iovec  part;
    char          byte;
    union {
        struct cmsghdr header;
        char           bytes[CMSG_SPACE(sizeof(int))];
    } room;
} fd_message;

static struct msghdr *fd_message_init(fd_message *message)
{
    *message        = (fd_message){.byte = 'f'};
    message->part   = (struct iovec){.iov_base = &message->byte, .iov_len = 1};
    message->header = (struct msghdr){.msg_iov        = &message->part,
                                      .msg_iovlen     = 1,
                                      .msg_control    = message->room.bytes,
                                      .msg_controllen = sizeof(message->room.bytes)};
    return &message->header;
}

sherd_status sherdi_net_send_fd(int fd, int passed, const net_wait *wait)
{
    fd_message      message;
    struct msghdr  *whole  = fd_message_init(&message);
    struct cmsghdr *header = CMSG_FIRSTHDR(whole);

    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type  = SCM_RIGHTS;
    header->cmsg_len   = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &passed, sizeof(passed));
    while (sendmsg(fd, whole, MSG_NOSIGNAL) < 0) {
        SHERDI_TRY(retry_wait(fd, POLLOUT, wait, "passing a descriptor"));
    }
    return SHERD_OK;
}

sherd_status sherdi_net_recv_fd(int fd, int *passed_out, const net_wait *wait)
{
    fd_message      message;
    struct msghdr  *whole = fd_message_init(&message);
    struct cmsghdr *header;
    ssize_t         got;

    while ((got = recvmsg(fd, whole, MSG_CMSG_CLOEXEC)) < 0) {
        SHERDI_TRY(retry_wait(fd, POLLIN, wait, "receiving a descriptor"));
    }
    if (got == 0) {
        return closed();
    }
    header = CMSG_FIRSTHDR(whole);
    if (header == NULL || header->cmsg_type != SCM_RIGHTS ||
        header->cmsg_len != CMSG_LEN(sizeof(int))) {
        return sherdi_fail(SHERD_E_IO,
                           "a message came without its descriptor (too many open files?)");
    }
    memcpy(passed_out, CMSG_DATA(header), sizeof(*passed_out));
    return SHERD_OK;
}

int sherdi_net_is_same_user(int fd)
{
    struct ucred user;
    socklen_t    len    = sizeof(user);
    int          family = AF_UNIX;
    socklen_t    size   = sizeof(family);

    (void)getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &size);
    return family != AF_UNIX ||
           (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &user, &len) == 0 && user.uid == geteuid());
}

void sherdi_net_keepalive(int fd, int64_t silence_ns)
{
    const int on = 1, idle_s = 1, interval_s = 1;
    const int silence_ms = (int)(silence_ns / 1000000) + 1;

    /* Fails on unix sockets, whose other end cannot vanish unnoticed. With a user timeout it does
     * not matter how many probes had no answer, only for how long. */
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof(idle_s));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof(interval_s));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &silence_ms, sizeof(silence_ms));
}

void sherdi_net_no_delay(int fd)
{
    const int on = 1;

    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)); /* fails on unix sockets */
}
