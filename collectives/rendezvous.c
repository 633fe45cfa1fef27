/* See rendezvous.h. Rank 0 listens; each other rank connects, sends its card, is told that
 * the card was taken, and later either the list of all cards or why there is none. What
 * connects and does not speak our language (a port scanner) is dropped and not waited for. */
#include "collectives/rendezvous.h"

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define CARD_MAGIC UINT64_C(0x0002647265687301)
/* Others give rank 0 so much longer than their own limit: its sentence names the missing. */
#define GRACE_NS       INT64_C(3000000000)
#define RETRY_FIRST_MS 5
#define RETRY_MOST_MS  200
/* Connections that have not yet said who they are. */
#define STRANGERS_MAX 64

typedef struct rendezvous_reply {
    uint64_t magic;
    uint64_t session;
    int32_t  status; /* E_AGAIN: your card was taken, wait; SHERD_OK: the cards of all follow */
    int32_t  unused;
    char     text[SHERDI_ERROR_BYTES];
} rendezvous_reply;

/* ------------------------------------------------------------- own card -- */

static uint64_t file_hash(uint64_t hash, const char *path)
{
    char    text[128];
    int     fd  = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? 0 : read(fd, text, sizeof(text));

    sherdi_net_close(&fd);
    return sherdi_hash_bytes(hash, text, got > 0 ? (size_t)got : 0);
}

/* One kernel, one network namespace, one name: who shares all three can pass descriptors. */
static uint64_t host_identity(const char *host_name)
{
    uint64_t    hash = file_hash(0, "/proc/sys/kernel/random/boot_id");
    struct stat net;

    if (stat("/proc/self/ns/net", &net) == 0) {
        hash = sherdi_hash_u64(hash, (uint64_t)net.st_ino);
    }
    return sherdi_hash_bytes(hash, host_name, strlen(host_name));
}

static uint64_t random_number(void)
{
    uint64_t number;

    if (getrandom(&number, sizeof(number), 0) != (ssize_t)sizeof(number)) {
        number = sherdi_mix64((uint64_t)sherdi_now_ns() ^ (uint64_t)getpid() << 40);
    }
    return number;
}

void sherdi_rendezvous_card_fill(rendezvous_card *card, int rank, int world_size,
                                 const sherd_world_params *params, const char *transport)
{
    cpu_set_t cores;

    memset(card, 0, sizeof(*card));
    card->magic      = CARD_MAGIC;
    card->rank       = rank;
    card->world_size = world_size;
    card->local_rank = params->local_rank;
    card->device     = params->device;
    card->process    = (int32_t)getpid();
    (void)gethostname(card->host_name, sizeof(card->host_name) - 1);
    card->host = host_identity(card->host_name);
    if (sched_getaffinity(0, sizeof(cores), &cores) == 0) {
        card->cores = sherdi_hash_bytes(0, &cores, sizeof(cores));
    }
    (void)snprintf(card->transport, sizeof(card->transport), "%s", transport);
    (void)snprintf(card->backend, sizeof(card->backend), "cpu");
    (void)snprintf(card->channel, sizeof(card->channel), "abstract:sherd-%d-%016llx",
                   (int)card->process, (unsigned long long)random_number());
}

/* --------------------------------------------------------------- rank 0 -- */

typedef struct stranger {
    int             fd;
    size_t          got_bytes;
    rendezvous_card card;
} stranger;

typedef struct reception {
    rendezvous   *meeting;
    const char   *address;
    int           listener;
    int           missing;
    int           num_strangers;
    stranger      strangers[STRANGERS_MAX];
    struct pollfd polls[STRANGERS_MAX + 1];
    net_wait      wait;
} reception;

static void reply_send(int fd, sherd_status status, uint64_t session, const char *text)
{
    rendezvous_reply reply = {.magic = CARD_MAGIC, .session = session, .status = (int32_t)status};
    const net_wait   soon  = {.deadline_ns = sherdi_now_ns() + INT64_C(1000000000)};

    (void)snprintf(reply.text, sizeof(reply.text), "%s", text);
    (void)sherdi_net_send(fd, &reply, sizeof(reply), &soon); /* who is gone is noticed elsewhere */
}

static sherd_status card_check(const rendezvous *meeting, const rendezvous_card *card)
{
    const rendezvous_card *mine = &meeting->cards[0];

    if (card->world_size != meeting->world_size) {
        return sherdi_fail(
            SHERD_E_INVAL, "rank %d (process %d on %s) has a world size of %d, rank 0 of %d",
            card->rank, card->process, card->host_name, card->world_size, meeting->world_size);
    }
    if (card->rank <= 0 || card->rank >= meeting->world_size) {
        return sherdi_fail(SHERD_E_INVAL,
                           "process %d on %s says it is rank %d: ranks are 0 to %d%s",
                           card->process, card->host_name, card->rank, meeting->world_size - 1,
                           card->rank == 0 ? ", and rank 0 is here already" : "");
    }
    if (meeting->fds[card->rank] >= 0) {
        return sherdi_fail(SHERD_E_INVAL,
                           "two processes say they are rank %d: process %d on %s and %d on %s",
                           card->rank, meeting->cards[card->rank].process,
                           meeting->cards[card->rank].host_name, card->process, card->host_name);
    }
    if (strcmp(card->backend, mine->backend) != 0) {
        return sherdi_fail(SHERD_E_INVAL,
                           "rank %d asks for backend %s, rank 0 for %s: all ranks need the same "
                           "(SHERD_BACKEND, or sherd_world_params.backend)",
                           card->rank, card->backend, mine->backend);
    }
    if (strcmp(card->transport, mine->transport) != 0) {
        return sherdi_fail(SHERD_E_INVAL, "rank %d asks for transport %s, rank 0 for %s",
                           card->rank, card->transport, mine->transport);
    }
    return SHERD_OK;
}

/* Reads what there is; a whole card is checked and its rank is here. */
static sherd_status stranger_read(reception *desk, stranger *who)
{
    rendezvous *meeting = desk->meeting;
    ssize_t     got =
        recv(who->fd, (char *)&who->card + who->got_bytes, sizeof(who->card) - who->got_bytes, 0);
    sherd_status status;

    if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
        return SHERD_OK;
    }
    if (got <= 0) {
        sherdi_net_close(&who->fd);
        return SHERD_OK;
    }
    who->got_bytes += (size_t)got;
    if (who->got_bytes < sizeof(who->card)) {
        return SHERD_OK;
    }
    who->card.host_name[sizeof(who->card.host_name) - 1] = '\0';
    who->card.transport[sizeof(who->card.transport) - 1] = '\0';
    who->card.backend[sizeof(who->card.backend) - 1]     = '\0';
    who->card.channel[sizeof(who->card.channel) - 1]     = '\0';
    who->card.nccl_why[sizeof(who->card.nccl_why) - 1]   = '\0';
    if (who->card.magic != CARD_MAGIC) {
        sherdi_log(SHERD_LOG_WARN, 0, "something that is no rank of ours connected to %s: dropped",
                   desk->address);
        sherdi_net_close(&who->fd);
        return SHERD_OK;
    }
    status = card_check(meeting, &who->card);
    if (status != SHERD_OK) {
        reply_send(who->fd, status, 0, sherd_last_error());
        sherdi_net_close(&who->fd);
        return status;
    }
    meeting->cards[who->card.rank] = who->card;
    meeting->fds[who->card.rank]   = who->fd;
    who->fd                        = -1;
    desk->missing--;
    reply_send(meeting->fds[who->card.rank], SHERD_E_AGAIN, 0, "");
    return SHERD_OK;
}

static void strangers_accept(reception *desk)
{
    while (desk->num_strangers < STRANGERS_MAX) {
        int fd = sherdi_net_accept(desk->listener);

        if (fd < 0) {
            return;
        }
        desk->strangers[desk->num_strangers++] = (stranger){.fd = fd};
    }
    /* Full of callers that say nothing: the oldest goes. */
    sherdi_net_close(&desk->strangers[0].fd);
}

static void strangers_forget_closed(reception *desk)
{
    int kept = 0;

    for (int i = 0; i < desk->num_strangers; i++) {
        if (desk->strangers[i].fd >= 0) {
            desk->strangers[kept++] = desk->strangers[i];
        }
    }
    desk->num_strangers = kept;
}

/* Ranks that were here and are gone again. */
static sherd_status arrived_check(const rendezvous *meeting)
{
    for (int r = 1; r < meeting->world_size; r++) {
        char byte;

        if (meeting->fds[r] >= 0 && recv(meeting->fds[r], &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0) {
            return sherdi_fail(SHERD_E_PEER_LOST,
                               "rank %d (process %d on %s) ended before all ranks had met", r,
                               meeting->cards[r].process, meeting->cards[r].host_name);
        }
    }
    return SHERD_OK;
}

static sherd_status missing_error(const reception *desk, int64_t timeout_ns)
{
    char   list[256] = "";
    size_t at        = 0;

    for (int r = 1; r < desk->meeting->world_size; r++) {
        if (desk->meeting->fds[r] < 0) {
            int wrote = snprintf(list + at, sizeof(list) - at, "%s%d", at > 0 ? ", " : "", r);

            if (wrote < 0 || (size_t)wrote >= sizeof(list) - at) {
                break;
            }
            at += (size_t)wrote;
        }
    }
    return sherdi_fail(SHERD_E_PEER_LOST, "rank %s of %d did not come to %s within %.1f s", list,
                       desk->meeting->world_size, desk->address, (double)timeout_ns * 1e-9);
}

static sherd_status reception_hold(reception *desk, int64_t timeout_ns)
{
    while (desk->missing > 0) {
        int ready;

        SHERDI_TRY(arrived_check(desk->meeting));
        if (sherdi_now_ns() >= desk->wait.deadline_ns) {
            return missing_error(desk, timeout_ns);
        }
        desk->polls[0] = (struct pollfd){.fd = desk->listener, .events = POLLIN};
        for (int i = 0; i < desk->num_strangers; i++) {
            desk->polls[i + 1] = (struct pollfd){.fd = desk->strangers[i].fd, .events = POLLIN};
        }
        ready = poll(desk->polls, (nfds_t)desk->num_strangers + 1, 100);
        for (int i = 0; i < desk->num_strangers && ready > 0; i++) {
            if (desk->polls[i + 1].revents != 0) {
                SHERDI_TRY(stranger_read(desk, &desk->strangers[i]));
            }
        }
        strangers_forget_closed(desk);
        strangers_accept(desk);
        strangers_forget_closed(desk);
    }
    return SHERD_OK;
}

static sherd_status cards_send(rendezvous *meeting, const net_wait *wait)
{
    for (int r = 1; r < meeting->world_size; r++) {
        sherd_status status;

        reply_send(meeting->fds[r], SHERD_OK, meeting->session, "");
        status = sherdi_net_send(meeting->fds[r], meeting->cards,
                                 (size_t)meeting->world_size * sizeof(*meeting->cards), wait);
        if (status != SHERD_OK) {
            return sherdi_fail(SHERD_E_PEER_LOST, "rank %d ended before all ranks had met", r);
        }
    }
    return SHERD_OK;
}

static sherd_status meet_as_first(rendezvous *meeting, const char *address, int listener,
                                  int64_t timeout_ns)
{
    reception   *desk = calloc(1, sizeof(*desk));
    sherd_status status;
    char         text[SHERDI_ERROR_BYTES];

    if (desk == NULL) {
        if (listener >= 0) {
            (void)close(listener);
        }
        return sherdi_fail(SHERD_E_NOMEM, "no room to meet %d ranks", meeting->world_size);
    }
    desk->meeting    = meeting;
    desk->address    = address;
    desk->listener   = listener;
    desk->missing    = meeting->world_size - 1;
    desk->wait       = (net_wait){.deadline_ns = sherdi_now_ns() + timeout_ns};
    meeting->session = random_number();
    status           = listener >= 0 ? SHERD_OK : sherdi_net_listen(address, &desk->listener);
    if (status == SHERD_OK) {
        meeting->desk = desk->listener;
        (void)snprintf(meeting->address, sizeof(meeting->address), "%s", address);
        status = reception_hold(desk, timeout_ns);
    }
    if (status == SHERD_OK) {
        status = cards_send(meeting, &desk->wait);
    } else {
        sherdi_rendezvous_close_desk(meeting);
    }
    if (status != SHERD_OK) {
        (void)snprintf(text, sizeof(text), "%s", sherd_last_error());
        for (int r = 1; r < meeting->world_size; r++) {
            if (meeting->fds[r] >= 0) {
                reply_send(meeting->fds[r], status, 0, text);
            }
        }
        status = sherdi_fail_relay(status, text);
    }
    for (int i = 0; i < desk->num_strangers; i++) {
        sherdi_net_close(&desk->strangers[i].fd);
    }
    free(desk);
    return status;
}

/* ---------------------------------------------------------- other ranks -- */

/* Connects to one of the addresses, sends the card and waits until it is taken. E_IO: try again. */
static sherd_status card_deliver(rendezvous *meeting, const rendezvous_card *mine,
                                 const char *address, const net_wait *wait)
{
    rendezvous_reply reply;
    int              fd = -1;
    sherd_status     status;

    SHERDI_TRY(sherdi_net_connect(address, wait, &fd));
    status = sherdi_net_send(fd, mine, sizeof(*mine), wait);
    if (status == SHERD_OK) {
        status = sherdi_net_recv(fd, &reply, sizeof(reply), wait);
    }
    if (status != SHERD_OK) {
        sherdi_net_close(&fd);
        return sherdi_fail(SHERD_E_IO, "%s took the connection and closed it", address);
    }
    reply.text[sizeof(reply.text) - 1] = '\0';
    if (reply.magic != CARD_MAGIC || reply.status != SHERD_E_AGAIN) {
        sherdi_net_close(&fd);
        if (reply.magic != CARD_MAGIC) {
            return sherdi_fail(SHERD_E_INVAL,
                               "what answers at %s is not rank 0 of a sherd world of this version",
                               address);
        }
        return sherdi_fail_relay((sherd_status)reply.status, reply.text);
    }
    meeting->fds[0] = fd;
    (void)snprintf(meeting->address, sizeof(meeting->address), "%s", address);
    return SHERD_OK;
}

/* The next address of a list separated by spaces; NULL after the last. */
static const char *address_next(const char *list, char *text, size_t len_bytes)
{
    size_t len = strcspn(list, " ");

    (void)snprintf(text, len_bytes, "%.*s", (int)len, list);
    return list[len] == ' ' ? list + len + 1 : NULL;
}

static sherd_status rank0_find(rendezvous *meeting, const rendezvous_card *mine,
                               const char *addresses, const net_wait *wait, int64_t timeout_ns)
{
    int retry_ms = RETRY_FIRST_MS;

    for (;;) {
        const char  *rest   = addresses;
        sherd_status status = SHERD_E_IO;
        char         address[256];
        char         why[512];

        while (rest != NULL && status == SHERD_E_IO) {
            rest   = address_next(rest, address, sizeof(address));
            status = card_deliver(meeting, mine, address, wait);
        }
        if (status != SHERD_E_IO) {
            return status;
        }
        if (sherdi_now_ns() >= wait->deadline_ns - GRACE_NS) {
            (void)snprintf(why, sizeof(why), "%s", sherd_last_error());
            return sherdi_fail(SHERD_E_PEER_LOST, "rank %d did not find rank 0 within %.1f s: %s",
                               mine->rank, (double)timeout_ns * 1e-9, why);
        }
        (void)poll(NULL, 0, retry_ms); /* rank 0 may not have started yet; nothing tells us */
        retry_ms = retry_ms * 2 < RETRY_MOST_MS ? retry_ms * 2 : RETRY_MOST_MS;
    }
}

static sherd_status cards_receive(rendezvous *meeting, const net_wait *wait, int64_t timeout_ns)
{
    rendezvous_reply reply;
    sherd_status     status = sherdi_net_recv(meeting->fds[0], &reply, sizeof(reply), wait);

    if (status == SHERD_OK) {
        reply.text[sizeof(reply.text) - 1] = '\0';
        if (reply.status != SHERD_OK) {
            return sherdi_fail_relay((sherd_status)reply.status, reply.text);
        }
        meeting->session = reply.session;
        status           = sherdi_net_recv(meeting->fds[0], meeting->cards,
                                           (size_t)meeting->world_size * sizeof(*meeting->cards), wait);
    }
    if (status == SHERD_E_PEER_LOST) {
        return sherdi_fail(SHERD_E_PEER_LOST, "rank 0 ended before all ranks had met");
    }
    if (status != SHERD_OK) {
        return sherdi_fail(SHERD_E_PEER_LOST, "rank 0 did not say within %.1f s who is there",
                           (double)timeout_ns * 1e-9);
    }
    return SHERD_OK;
}

static sherd_status meet_as_other(rendezvous *meeting, const rendezvous_card *mine,
                                  const char *addresses, int64_t timeout_ns)
{
    const net_wait wait = {.deadline_ns = sherdi_now_ns() + timeout_ns + GRACE_NS};

    SHERDI_TRY(rank0_find(meeting, mine, addresses, &wait, timeout_ns));
    return cards_receive(meeting, &wait, timeout_ns);
}

sherd_status sherdi_rendezvous_meet(rendezvous *meeting, sherdi_mem *mem,
                                    const rendezvous_card *mine, const char *address, int listener,
                                    int64_t timeout_ns)
{
    int num_fds = mine->rank == 0 ? mine->world_size : 1;

    *meeting       = (rendezvous){.rank = mine->rank, .world_size = mine->world_size, .desk = -1};
    meeting->cards = sherdi_alloc_array(mem, SHERDI_MEM_CONTROL, (size_t)mine->world_size,
                                        sizeof(*meeting->cards));
    meeting->fds =
        sherdi_alloc_array(mem, SHERDI_MEM_CONTROL, (size_t)num_fds, sizeof(*meeting->fds));
    for (int i = 0; meeting->fds != NULL && i < num_fds; i++) {
        meeting->fds[i] = -1;
    }
    if (meeting->cards == NULL || meeting->fds == NULL) {
        if (listener >= 0) {
            (void)close(listener);
        }
        return SHERD_E_NOMEM;
    }
    meeting->cards[mine->rank] = *mine;
    if (mine->world_size == 1) {
        return SHERD_OK;
    }
    if (mine->rank == 0) {
        return meet_as_first(meeting, address, listener, timeout_ns);
    }
    return meet_as_other(meeting, mine, address, timeout_ns);
}

/* ---------------------------------------------------- the second connection -- */

typedef struct line_hello {
    uint64_t magic;
    uint64_t session;
    int32_t  rank;
    int32_t  unused;
} line_hello;

void sherdi_rendezvous_close_desk(rendezvous *meeting)
{
    if (meeting->desk > 0) {
        sherdi_net_unlink(meeting->address);
        sherdi_net_close(&meeting->desk);
    }
}

/* The next that belongs to us; strangers are dropped. */
static sherd_status line_take_one(rendezvous *meeting, sherd_world *world, int *lines,
                                  const net_wait *wait)
{
    line_hello hello;
    net_wait   soon = {.deadline_ns = sherdi_now_ns() + INT64_C(1000000000), .world = world};
    int        fd;

    if (!sherdi_net_poll(meeting->desk, POLLIN, 50)) {
        SHERDI_TRY(sherdi_world_status(world));
        return sherdi_now_ns() < wait->deadline_ns
                   ? SHERD_OK
                   : sherdi_fail(SHERD_E_PEER_LOST,
                                 "not all ranks came back to %s for control data within the time "
                                 "limit",
                                 meeting->address);
    }
    fd = sherdi_net_accept(meeting->desk);
    if (fd < 0 || sherdi_net_recv(fd, &hello, sizeof(hello), &soon) != SHERD_OK ||
        hello.magic != CARD_MAGIC || hello.session != meeting->session || hello.rank < 1 ||
        hello.rank >= meeting->world_size || lines[hello.rank] >= 0) {
        sherdi_net_close(&fd);
        return sherdi_world_status(world);
    }
    lines[hello.rank] = fd;
    return SHERD_OK;
}

static sherd_status lines_take(rendezvous *meeting, sherd_world *world, int *lines,
                               const net_wait *wait)
{
    int missing = 1;

    while (missing > 0) {
        missing = 0;
        for (int r = 1; r < meeting->world_size; r++) {
            missing += lines[r] < 0;
        }
        if (missing > 0) {
            SHERDI_TRY(line_take_one(meeting, world, lines, wait));
        }
    }
    return SHERD_OK;
}

sherd_status sherdi_rendezvous_lines(rendezvous *meeting, sherd_world *world, int **lines_out)
{
    const net_wait   wait  = {.deadline_ns = sherdi_now_ns() + world->timeout_ns, .world = world};
    const line_hello hello = {
        .magic = CARD_MAGIC, .session = meeting->session, .rank = meeting->rank};
    int  num_lines = meeting->rank == 0 ? meeting->world_size : 1;
    int *lines =
        sherdi_alloc_array(&world->mem, SHERDI_MEM_CONTROL, (size_t)num_lines, sizeof(*lines));
    sherd_status status;

    if (lines == NULL) {
        return SHERD_E_NOMEM;
    }
    for (int i = 0; i < num_lines; i++) {
        lines[i] = -1;
    }
    if (meeting->rank == 0) {
        status = lines_take(meeting, world, lines, &wait);
        sherdi_rendezvous_close_desk(meeting);
    } else {
        status = sherdi_net_connect(meeting->address, &wait, &lines[0]);
        if (status == SHERD_OK) {
            status = sherdi_net_send(lines[0], &hello, sizeof(hello), &wait);
        }
    }
    for (int i = 0; i < num_lines; i++) {
        if (status == SHERD_OK && lines[i] >= 0) {
            sherdi_net_no_delay(lines[i]);
        } else {
            sherdi_net_close(&lines[i]);
        }
    }
    if (status != SHERD_OK) {
        sherdi_free(lines);
        return status;
    }
    *lines_out = lines;
    return SHERD_OK;
}

void sherdi_rendezvous_fini(rendezvous *meeting)
{
    int num_fds = meeting->rank == 0 ? meeting->world_size : 1;

    sherdi_rendezvous_close_desk(meeting);
    for (int i = 0; meeting->fds != NULL && i < num_fds; i++) {
        sherdi_net_close(&meeting->fds[i]);
    }
    sherdi_free(meeting->fds);
    sherdi_free(meeting->cards);
    meeting->fds   = NULL;
    meeting->cards = NULL;
}
