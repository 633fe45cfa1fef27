/* See rendezvous.h. Rank 0 listens, and greets each caller with a nonce. A rank answers with its
 * card, a nonce of its own, and a proof that it has the job's key, over the card and both nonces.
 * Rank 0 replies that it has taken the card, or why it refuses it for good. Later it sends the
 * cards of all ranks, or why there are none; its replies carry its own proof. A caller that speaks
 * another protocol (a port scanner) or has another key is dropped, and nobody waits for it. */
#include "collectives/rendezvous.h"

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/random.h"
#include "collectives/desk.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

/* Changes with the protocol: ranks of different versions do not understand each other. */
#define CARD_MAGIC UINT64_C(0x0004647265687301)
/* A rank waits so much longer than rank 0's remaining time for the result of the meeting. */
#define GRACE_NS INT64_C(3000000000)
/* A listener that sends no greeting within this time is not rank 0. */
#define GREETING_NS    INT64_C(5000000000)
#define RETRY_FIRST_MS 5
#define RETRY_MOST_MS  200
/* The log reports this number of strangers; further ones are only counted. */
#define STRANGERS_TOLD 8

typedef struct rendezvous_reply {
    uint64_t magic;
    uint64_t session;
    int32_t  status;  /* E_AGAIN: the card was taken, wait; SHERD_OK: all cards follow */
    int32_t  wait_ms; /* with E_AGAIN: remaining time of rank 0 for the meeting */
    uint64_t proof;   /* over this struct with proof 0, and the cards that follow */
    char     text[SHERDI_ERROR_BYTES];
} rendezvous_reply;

_Static_assert(sizeof(rendezvous_card) == 472 &&
                   sizeof(rendezvous_reply) == 32 + SHERDI_ERROR_BYTES,
               "no padding: their bytes are signed");

/* Says whose proof it is, so that a proof of one side cannot be used as the other's. */
enum { PROOF_OF_RANK = 1, PROOF_OF_RANK_0 = 2 };

/* ------------------------------------------------------------- own card -- */

static uint64_t file_hash(uint64_t hash, const char *path)
{
    char    text[128];
    int     fd  = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? 0 : read(fd, text, sizeof(text));

    sherdi_net_close(&fd);
    return sherdi_hash_bytes(hash, text, got > 0 ? (size_t)got : 0);
}

/* Processes with the same kernel, network namespace and host name can pass descriptors to each
 * other. */
uint64_t sherdi_rendezvous_host(void)
{
    uint64_t    hash          = file_hash(0, "/proc/sys/kernel/random/boot_id");
    char        host_name[64] = "";
    struct stat net;

    (void)gethostname(host_name, sizeof(host_name) - 1);
    if (stat("/proc/self/ns/net", &net) == 0) {
        hash = sherdi_hash_u64(hash, (uint64_t)net.st_ino);
    }
    return sherdi_hash_bytes(hash, host_name, strlen(host_name));
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
    card->host = sherdi_rendezvous_host();
    if (sched_getaffinity(0, sizeof(cores), &cores) == 0) {
        card->cores = sherdi_hash_bytes(0, &cores, sizeof(cores));
    }
    (void)snprintf(card->transport, sizeof(card->transport), "%s", transport);
    (void)snprintf(card->backend, sizeof(card->backend), "cpu");
    (void)snprintf(card->channel, sizeof(card->channel), "abstract:sherd-%d-%016llx",
                   (int)card->process, (unsigned long long)sherdi_random_u64());
}

int sherdi_rendezvous_is_first(const rendezvous *meeting, int rank)
{
    for (int before = 0; before < rank; before++) {
        if (meeting->cards[before].host == meeting->cards[rank].host) {
            return 0;
        }
    }
    return 1;
}

/* The world that is being made may have failed already. */
static sherd_status world_check(const rendezvous_params *params)
{
    return params->world == NULL ? SHERD_OK : sherdi_world_status(params->world);
}

/* --------------------------------------------------------------- proofs -- */

void sherdi_rendezvous_sign(rendezvous_call *call, const rendezvous_greeting *greeting,
                            const job_key *key)
{
    const uint64_t words[] = {PROOF_OF_RANK, greeting->nonce, call->nonce,
                              sherdi_job_digest(key, &call->card, sizeof(call->card))};

    call->proof = sherdi_job_proof(key, words, sizeof(words) / sizeof(words[0]));
}

/* `cards`: the digest of the cards that follow the reply; 0: none. */
static uint64_t reply_proof(const rendezvous_reply *reply, uint64_t cards, uint64_t nonce,
                            uint64_t greeting_nonce, const job_key *key)
{
    rendezvous_reply unsigned_reply = *reply;
    uint64_t         words[]        = {PROOF_OF_RANK_0, greeting_nonce, nonce, cards, 0};

    unsigned_reply.proof = 0;
    words[4]             = sherdi_job_digest(key, &unsigned_reply, sizeof(unsigned_reply));
    return sherdi_job_proof(key, words, sizeof(words) / sizeof(words[0]));
}

/* --------------------------------------------------------------- rank 0 -- */

typedef struct reception {
    rendezvous              *meeting;
    const rendezvous_params *params;
    int                      listener;
    int                      is_elsewhere; /* the address is none of this host's */
    rendezvous_greeting      greeting;
    net_desk                *desk;
    uint64_t                *nonces; /* [world_size] nonces of the ranks that have come */
    int                      missing;
    int                      num_strangers; /* callers with another protocol or another key */
    net_wait                 wait;
} reception;

static void reply_send(const reception *hall, int fd, uint64_t nonce, sherd_status status,
                       uint64_t cards, const char *text)
{
    rendezvous_reply reply   = {.magic   = CARD_MAGIC,
                                .status  = (int32_t)status,
                                .session = status == SHERD_OK ? hall->meeting->session : 0};
    const net_wait   soon    = {.deadline_ns = sherdi_now_ns() + INT64_C(1000000000)};
    int64_t          left_ms = (hall->wait.deadline_ns - sherdi_now_ns()) / 1000000;

    reply.wait_ms = (int32_t)(left_ms < 0 ? 0 : left_ms > INT32_MAX ? INT32_MAX : left_ms);
    (void)snprintf(reply.text, sizeof(reply.text), "%s", text);
    reply.proof = reply_proof(&reply, cards, nonce, hall->greeting.nonce, hall->params->key);
    (void)sherdi_net_send(fd, &reply, sizeof(reply), &soon); /* other code notices a lost rank */
}

static sherd_status card_check(const rendezvous *meeting, const rendezvous_card *card)
{
    const rendezvous_card *mine = &meeting->cards[0];

    if (card->world_size != meeting->world_size) {
        return sherdi_fail(SHERD_E_INVAL,
                           "rank %d (process %d on %s) has a world size of %d, rank 0 of %d: start "
                           "all ranks with the same",
                           card->rank, card->process, card->host_name, card->world_size,
                           meeting->world_size);
    }
    if (card->rank <= 0 || card->rank >= meeting->world_size) {
        return sherdi_fail(SHERD_E_INVAL,
                           "process %d on %s says it is rank %d: ranks are 0 to %d%s",
                           card->process, card->host_name, card->rank, meeting->world_size - 1,
                           card->rank == 0 ? ", and rank 0 is here already" : "");
    }
    if (card->local_rank < -1 || card->device < -1 || card->device_count < 0 ||
        (card->nccl_version != 0 && card->device_count == 0)) {
        return sherdi_fail(SHERD_E_INVAL,
                           "rank %d describes itself by values that cannot be; start all ranks "
                           "with the same version of sherd",
                           card->rank);
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
        return sherdi_fail(SHERD_E_INVAL,
                           "rank %d asks for transport %s, rank 0 for %s: all ranks need the same",
                           card->rank, card->transport, mine->transport);
    }
    return SHERD_OK;
}

static void stranger_turn_away(reception *hall, int fd, const char *what)
{
    hall->num_strangers++;
    if (hall->num_strangers <= STRANGERS_TOLD) {
        sherdi_log(SHERD_LOG_WARN, 0, "a caller at %s was turned away: %s%s", hall->params->address,
                   what,
                   hall->num_strangers == STRANGERS_TOLD ? "; further ones are not reported" : "");
    }
    sherdi_net_close(&fd);
}

static int caller_is_ours(const reception *hall, const rendezvous_call *call)
{
    rendezvous_call right = *call;

    sherdi_rendezvous_sign(&right, &hall->greeting, hall->params->key);
    return right.proof == call->proof;
}

/* Handles a complete message of a caller. Its card counts only if it proves that it has the key. */
static sherd_status caller_take(reception *hall, int fd, rendezvous_call *call)
{
    rendezvous      *meeting = hall->meeting;
    rendezvous_card *card    = &call->card;
    char             text[SHERDI_ERROR_BYTES];
    sherd_status     status;

    if (!sherdi_net_is_same_user(fd)) {
        stranger_turn_away(hall, fd, "it runs as another user");
        return SHERD_OK;
    }
    if (card->magic != CARD_MAGIC) {
        stranger_turn_away(hall, fd, "it is not a rank of a sherd world of this version");
        return SHERD_OK;
    }
    if (!caller_is_ours(hall, call)) {
        (void)snprintf(text, sizeof(text),
                       "it says it is rank %d (process %d), but its job secret is not that of rank "
                       "0 (secret of rank 0: %s)",
                       card->rank, card->process, hall->params->key->source);
        /* the caller sees the difference by the proof */
        reply_send(hall, fd, call->nonce, SHERD_E_INVAL, 0, "");
        stranger_turn_away(hall, fd, text);
        return SHERD_OK;
    }
    card->host_name[sizeof(card->host_name) - 1] = '\0';
    card->transport[sizeof(card->transport) - 1] = '\0';
    card->backend[sizeof(card->backend) - 1]     = '\0';
    card->channel[sizeof(card->channel) - 1]     = '\0';
    card->nccl_why[sizeof(card->nccl_why) - 1]   = '\0';
    status                                       = card_check(meeting, card);
    if (status != SHERD_OK) {
        const sherdi_outcome refusal = sherdi_outcome_of(status);

        reply_send(hall, fd, call->nonce, status, 0, refusal.text);
        sherdi_net_close(&fd);
        return sherdi_outcome_end(&refusal); /* whether or not the reply arrived */
    }
    meeting->cards[card->rank] = *card;
    meeting->fds[card->rank]   = fd;
    hall->nonces[card->rank]   = call->nonce;
    hall->missing--;
    reply_send(hall, fd, call->nonce, SHERD_E_AGAIN, 0, "");
    return SHERD_OK;
}

/* Fails if a rank has come and is gone again. */
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

static sherd_status missing_error(const reception *hall)
{
    char list[256]  = "";
    char others[96] = "";
    char where[256] = "";

    for (int r = 1; r < hall->meeting->world_size; r++) {
        if (hall->meeting->fds[r] < 0) {
            sherdi_ranks_add(list, sizeof(list), r);
        }
    }
    if (hall->num_strangers > 0) {
        (void)snprintf(others, sizeof(others),
                       "; %d callers of another job, user or version were turned away",
                       hall->num_strangers);
    }
    if (hall->is_elsewhere) {
        (void)snprintf(
            where, sizeof(where),
            "; that is no address of this host (%s), where rank 0 runs and listens on all "
            "addresses: give all ranks an address of rank 0's host",
            hall->meeting->cards[0].host_name);
    }
    return sherdi_fail(SHERD_E_PEER_LOST,
                       "rank %s of %d did not come to %s within %.1f s%s%s; see its own output, or "
                       "set SHERD_TIMEOUT to more seconds",
                       list, hall->meeting->world_size, hall->params->address,
                       (double)hall->params->limit_ns * 1e-9, where, others);
}

static sherd_status reception_hold(reception *hall)
{
    while (hall->missing > 0) {
        rendezvous_call call;
        int             fd;

        SHERDI_TRY(arrived_check(hall->meeting));
        SHERDI_TRY(world_check(hall->params));
        if (sherdi_now_ns() >= hall->wait.deadline_ns) {
            return missing_error(hall);
        }
        fd = sherdi_desk_next(hall->desk, 100, &call);
        if (fd >= 0) {
            SHERDI_TRY(caller_take(hall, fd, &call));
        }
    }
    return SHERD_OK;
}

static sherd_status cards_send(const reception *hall)
{
    const rendezvous *meeting   = hall->meeting;
    size_t            len_bytes = (size_t)meeting->world_size * sizeof(*meeting->cards);
    uint64_t          digest    = sherdi_job_digest(hall->params->key, meeting->cards, len_bytes);

    for (int r = 1; r < meeting->world_size; r++) {
        reply_send(hall, meeting->fds[r], hall->nonces[r], SHERD_OK, digest, "");
        if (sherdi_net_send(meeting->fds[r], meeting->cards, len_bytes, &hall->wait) != SHERD_OK) {
            /* ranks that have the cards now listen to the monitor */
            for (int told = 1; told <= r; told++) {
                sherdi_net_close(&meeting->fds[told]);
            }
            return sherdi_fail(SHERD_E_PEER_LOST, "rank %d ended before all ranks had met", r);
        }
    }
    return SHERD_OK;
}

static sherd_status reception_open(reception *hall)
{
    rendezvous     *meeting = hall->meeting;
    net_desk_params desk    = {.message_bytes  = sizeof(rendezvous_call),
                               .greeting       = &hall->greeting,
                               .greeting_bytes = sizeof(hall->greeting),
                               .expected       = meeting->world_size};

    if (hall->listener < 0) {
        SHERDI_TRY(sherdi_net_listen(hall->params->address, &hall->listener, &hall->is_elsewhere));
    }
    meeting->desk = desk.listener = hall->listener;
    (void)snprintf(meeting->address, sizeof(meeting->address), "%s", hall->params->address);
    hall->nonces = calloc((size_t)meeting->world_size, sizeof(*hall->nonces));
    if (hall->nonces == NULL) {
        return sherdi_fail(SHERD_E_NOMEM, "no memory for a meeting of %d ranks",
                           meeting->world_size);
    }
    return sherdi_desk_open(&desk, &hall->desk);
}

static sherd_status meet_as_first(rendezvous *meeting, const rendezvous_params *params)
{
    reception hall = {
        .meeting  = meeting,
        .params   = params,
        .listener = params->listener,
        .greeting = {.magic = CARD_MAGIC, .nonce = sherdi_random_u64()},
        .missing  = meeting->world_size - 1,
        .wait     = {.deadline_ns = sherdi_now_ns() + params->limit_ns, .world = params->world}};
    sherd_status status;

    meeting->session = sherdi_random_u64();
    status           = reception_open(&hall);
    if (status == SHERD_OK) {
        status = reception_hold(&hall);
    }
    if (status == SHERD_OK) {
        status = cards_send(&hall);
    }
    if (status != SHERD_OK) {
        const sherdi_outcome failed = sherdi_outcome_of(status);

        sherdi_rendezvous_close_desk(meeting);
        for (int r = 1; r < meeting->world_size; r++) {
            if (meeting->fds[r] >= 0) {
                reply_send(&hall, meeting->fds[r], hall.nonces[r], status, 0, failed.text);
            }
        }
        status = sherdi_outcome_end(&failed);
    }
    sherdi_desk_close(hall.desk);
    free(hall.nonces);
    return status;
}

/* ---------------------------------------------------------- other ranks -- */

/* The messages between this rank and rank 0 so far. */
typedef struct acquaintance {
    const rendezvous_params *params;
    rendezvous_greeting      greeting;
    rendezvous_call          call;
    int64_t                  deadline_ns; /* by then rank 0 has announced the meeting's result */
} acquaintance;

/* Checks the proof of a reply that was received from rank 0. Where cards follow the reply, their
 * digest is part of the proof. */
static sherd_status reply_check(const acquaintance *known, rendezvous_reply *reply, uint64_t cards,
                                const char *address)
{
    uint64_t right =
        reply_proof(reply, cards, known->call.nonce, known->greeting.nonce, known->params->key);

    if (right != reply->proof) {
        return sherdi_fail(
            SHERD_E_INVAL,
            "rank %d and rank 0 at %s have different job secrets (secret of rank %d: %s); give all "
            "ranks the same SHERD_JOB_SECRET, or choose another place if another job meets there",
            known->params->card->rank, address, known->params->card->rank,
            known->params->key->source);
    }
    reply->text[sizeof(reply->text) - 1] = '\0';
    return SHERD_OK;
}

/* Receives rank 0's greeting. E_IO: the caller tries again. */
static sherd_status greeting_receive(acquaintance *known, int fd, const char *address,
                                     int64_t until_ns)
{
    const int64_t  soon_ns = sherdi_now_ns() + GREETING_NS;
    const net_wait wait    = {.deadline_ns = soon_ns < until_ns ? soon_ns : until_ns,
                              .world       = known->params->world};

    if (sherdi_net_recv(fd, &known->greeting, sizeof(known->greeting), &wait) != SHERD_OK) {
        return sherdi_fail(
            SHERD_E_IO, "%s accepted the connection, but did not answer as rank 0 does", address);
    }
    if (known->greeting.magic != CARD_MAGIC) {
        return sherdi_fail(SHERD_E_INVAL,
                           "what answers at %s is not rank 0 of a sherd world of this version",
                           address);
    }
    return SHERD_OK;
}

/* Returns the failure status in a reply; E_PEER_LOST for a number that is no failure status. */
static sherd_status status_of(const rendezvous_reply *reply)
{
    return reply->status > SHERD_OK && reply->status <= SHERD_E_DEVICE ? (sherd_status)reply->status
                                                                       : SHERD_E_PEER_LOST;
}

static sherd_status card_show(acquaintance *known, int fd, const char *address, int64_t until_ns)
{
    const net_wait   wait = {.deadline_ns = until_ns, .world = known->params->world};
    rendezvous_reply reply;

    SHERDI_TRY(greeting_receive(known, fd, address, until_ns));
    known->call = (rendezvous_call){.card = *known->params->card, .nonce = sherdi_random_u64()};
    sherdi_rendezvous_sign(&known->call, &known->greeting, known->params->key);
    if (sherdi_net_send(fd, &known->call, sizeof(known->call), &wait) != SHERD_OK ||
        sherdi_net_recv(fd, &reply, sizeof(reply), &wait) != SHERD_OK) {
        return sherdi_fail(SHERD_E_IO, "%s accepted the connection and closed it", address);
    }
    SHERDI_TRY(reply_check(known, &reply, 0, address));
    if (reply.status != SHERD_E_AGAIN) {
        return sherdi_fail_relay(status_of(&reply), reply.text);
    }
    known->deadline_ns = sherdi_now_ns() + INT64_C(1000000) * reply.wait_ms + GRACE_NS;
    return SHERD_OK;
}

/* Connects to an address, sends the card and waits until rank 0 has taken it. E_IO: the caller
 * tries again. */
static sherd_status card_deliver(rendezvous *meeting, acquaintance *known, const char *address,
                                 int64_t until_ns)
{
    const net_wait wait = {.deadline_ns = until_ns, .world = known->params->world};
    int            fd   = -1;
    sherd_status   status;

    SHERDI_TRY(sherdi_net_connect(address, &wait, &fd));
    status = card_show(known, fd, address, until_ns);
    if (status != SHERD_OK) {
        sherdi_net_close(&fd);
        return status;
    }
    meeting->fds[0] = fd;
    (void)snprintf(meeting->address, sizeof(meeting->address), "%s", address);
    return SHERD_OK;
}

/* Copies the next address of a list separated by spaces; returns the rest of the list, or NULL
 * after the last address. */
static const char *address_next(const char *list, char *text, size_t len_bytes)
{
    size_t len = strcspn(list, " ");

    (void)snprintf(text, len_bytes, "%.*s", (int)len, list);
    return list[len] == ' ' ? list + len + 1 : NULL;
}

static sherd_status rank0_find(rendezvous *meeting, acquaintance *known)
{
    int64_t until_ns = sherdi_now_ns() + known->params->limit_ns;
    int     retry_ms = RETRY_FIRST_MS;

    for (;;) {
        const char  *rest   = known->params->address;
        sherd_status status = SHERD_E_IO;
        char         address[256];
        char         why[512];

        SHERDI_TRY(world_check(known->params));
        while (rest != NULL && status == SHERD_E_IO) {
            rest   = address_next(rest, address, sizeof(address));
            status = card_deliver(meeting, known, address, until_ns);
        }
        if (status != SHERD_E_IO) {
            return status;
        }
        if (sherdi_now_ns() >= until_ns) {
            (void)snprintf(why, sizeof(why), "%s", sherd_last_error());
            return sherdi_fail(SHERD_E_PEER_LOST,
                               "rank %d did not find rank 0 within %.1f s: %s; see whether rank 0 "
                               "has failed and whether its host has that address, or set "
                               "SHERD_TIMEOUT to more seconds",
                               known->params->card->rank, (double)known->params->limit_ns * 1e-9,
                               why);
        }
        /* rank 0 may not have started yet, and no event will notify us */
        (void)poll(NULL, 0, retry_ms);
        retry_ms = retry_ms * 2 < RETRY_MOST_MS ? retry_ms * 2 : RETRY_MOST_MS;
    }
}

static sherd_status cards_receive(rendezvous *meeting, const acquaintance *known)
{
    const net_wait   wait   = {.deadline_ns = known->deadline_ns, .world = known->params->world};
    const size_t     len    = (size_t)meeting->world_size * sizeof(*meeting->cards);
    uint64_t         digest = 0;
    rendezvous_reply reply;
    sherd_status     status = sherdi_net_recv(meeting->fds[0], &reply, sizeof(reply), &wait);

    if (status == SHERD_OK && reply.status == SHERD_OK) {
        status = sherdi_net_recv(meeting->fds[0], meeting->cards, len, &wait);
        digest = sherdi_job_digest(known->params->key, meeting->cards, len);
    }
    SHERDI_TRY(world_check(known->params));
    if (status == SHERD_E_PEER_LOST) {
        return sherdi_fail(SHERD_E_PEER_LOST, "rank 0 ended before all ranks had met");
    }
    if (status != SHERD_OK) {
        return sherdi_fail(SHERD_E_PEER_LOST,
                           "rank 0 did not say within %.1f s that all ranks have met: it hangs, or "
                           "its host is lost",
                           (double)known->params->limit_ns * 1e-9);
    }
    SHERDI_TRY(reply_check(known, &reply, digest, meeting->address));
    if (reply.status != SHERD_OK) {
        return sherdi_fail_relay(status_of(&reply), reply.text);
    }
    meeting->session = reply.session;
    return SHERD_OK;
}

static sherd_status meet_as_other(rendezvous *meeting, const rendezvous_params *params)
{
    acquaintance known = {.params = params};

    SHERDI_TRY(rank0_find(meeting, &known));
    return cards_receive(meeting, &known);
}

sherd_status sherdi_rendezvous_meet(rendezvous *meeting, sherdi_mem *mem,
                                    const rendezvous_params *params)
{
    const rendezvous_card *mine     = params->card;
    int                    num_fds  = mine->rank == 0 ? mine->world_size : 1;
    int                    listener = params->listener;

    *meeting       = (rendezvous){.rank = mine->rank, .world_size = mine->world_size, .desk = -1};
    meeting->cards = sherdi_alloc_array(mem, SHERDI_MEM_CONTROL, (size_t)mine->world_size,
                                        sizeof(*meeting->cards));
    meeting->fds   = sherdi_net_table(mem, num_fds);
    if (meeting->cards == NULL || meeting->fds == NULL) {
        sherdi_net_close(&listener);
        return SHERD_E_NOMEM;
    }
    meeting->cards[mine->rank] = *mine;
    if (mine->world_size == 1) {
        return SHERD_OK;
    }
    return mine->rank == 0 ? meet_as_first(meeting, params) : meet_as_other(meeting, params);
}

/* ---------------------------------------------------- the second connection -- */

void sherdi_rendezvous_close_desk(rendezvous *meeting)
{
    if (meeting->desk >= 0) {
        sherdi_net_unlink(meeting->address);
        sherdi_net_close(&meeting->desk);
    }
}

sherd_status sherdi_rendezvous_lines(rendezvous *meeting, sherd_world *world, int **lines_out)
{
    const net_wait wait      = {.deadline_ns = sherdi_now_ns() + world->timeout_ns, .world = world};
    int            num_lines = meeting->rank == 0 ? meeting->world_size : 1;
    int           *lines     = sherdi_net_table(&world->mem, num_lines);
    char           late[sizeof(meeting->address) + 80];
    sherd_status   status;

    if (lines == NULL) {
        return SHERD_E_NOMEM;
    }
    if (meeting->rank == 0) {
        (void)snprintf(
            late, sizeof(late),
            "did not connect to %s a second time (for control data) within the time limit",
            meeting->address);
        status = sherdi_desk_gather(meeting->desk, meeting->session, lines, num_lines, &wait, late);
        sherdi_rendezvous_close_desk(meeting);
    } else {
        status = sherdi_desk_come(meeting->address, meeting->session, meeting->rank, &wait, lines);
    }
    if (status != SHERD_OK) {
        sherdi_net_table_free(lines, num_lines);
        return status;
    }
    for (int i = 0; i < num_lines; i++) {
        sherdi_net_no_delay(lines[i]); /* does nothing for -1 */
    }
    *lines_out = lines;
    return SHERD_OK;
}

void sherdi_rendezvous_fini(rendezvous *meeting)
{
    sherdi_rendezvous_close_desk(meeting);
    sherdi_net_table_free(meeting->fds, meeting->rank == 0 ? meeting->world_size : 1);
    sherdi_free(meeting->cards);
    meeting->fds   = NULL;
    meeting->cards = NULL;
}
