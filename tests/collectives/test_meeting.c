/* Who may take part in a meeting: ranks of one job, and nobody else, whatever is said at its
 * address. The ranks are threads that meet by rendezvous.c itself; strangers are played by the
 * case. */
#include "base/clock.h"
#include "collectives/nccl.h"
#include "collectives/rendezvous.h"
#include "tests/collectives/ranks.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define SECOND_NS INT64_C(1000000000)
/* A meeting that should succeed; it takes milliseconds. */
#define PATIENCE_NS (30 * SECOND_NS)
#define RANKS       3

/* ------------------------------------------------------- ranks as threads -- */

typedef struct member {
    pthread_t         thread;
    sherdi_mem        mem;
    rendezvous_card   card;
    rendezvous_params params;
    rendezvous        meeting;
    sherd_status      status;
    char              text[SHERDI_ERROR_BYTES];
} member;

static const job_key OURS   = {.words = {1, 2}, .source = "here"};
static const job_key THEIRS = {.words = {1, 3}, .source = "there"};

static void *member_run(void *raw)
{
    member *one = raw;

    one->status = sherdi_rendezvous_meet(&one->meeting, &one->mem, &one->params);
    (void)snprintf(one->text, sizeof(one->text), "%s", sherd_last_error());
    return NULL;
}

static void card_make(rendezvous_card *card, int rank, int world_size)
{
    sherd_world_params params;

    sherd_world_params_init(&params);
    sherdi_rendezvous_card_fill(card, rank, world_size, &params, "shm");
}

/* `address` outlives the member. */
static void member_start(member *one, int rank, int world_size, const char *address,
                         const job_key *key, int64_t limit_ns)
{
    memset(one, 0, sizeof(*one));
    sherdi_mem_init(&one->mem);
    card_make(&one->card, rank, world_size);
    one->params = (rendezvous_params){
        .card = &one->card, .address = address, .listener = -1, .key = key, .limit_ns = limit_ns};
    CHECK(pthread_create(&one->thread, NULL, member_run, one) == 0);
}

static sherd_status member_wait(member *one)
{
    CHECK(pthread_join(one->thread, NULL) == 0);
    return one->status;
}

static void member_end(member *one)
{
    sherdi_rendezvous_fini(&one->meeting);
    CHECK_INT(0, sherdi_mem_held_all(&one->mem));
}

static const net_wait *patience(void)
{
    static net_wait wait;

    wait = (net_wait){.deadline_ns = sherdi_now_ns() + PATIENCE_NS};
    return &wait;
}

static int knock(const char *address)
{
    int fd = -1;

    while (sherdi_net_connect(address, patience(), &fd) != SHERD_OK) {
        (void)poll(NULL, 0, 1); /* rank 0 may not listen yet */
    }
    return fd;
}

/* ---------------------------------------------------------- what is said -- */

/* Says something that must not matter; the connection, which may stay open. `last`: a call of an
 * earlier meeting; `made`: one of this. */
static int stranger_speaks(const char *address, uint64_t *seed, const rendezvous_call *last,
                           rendezvous_call *made)
{
    unsigned char       bytes[2 * sizeof(rendezvous_call)];
    int                 fd   = knock(address);
    size_t              len  = test_random(seed) % sizeof(bytes);
    rendezvous_call     call = {.nonce = test_random(seed)};
    rendezvous_greeting greeting;

    CHECK_OK(sherdi_net_recv(fd, &greeting, sizeof(greeting), patience()));
    card_make(&call.card, 1 + (int)(test_random(seed) % 5), RANKS);
    sherdi_rendezvous_sign(&call, &greeting, &OURS);
    for (size_t i = 0; i < sizeof(bytes); i++) {
        bytes[i] = (unsigned char)test_random(seed);
    }
    switch (test_random(seed) % 6) {
    case 0: /* noise of any length */
        break;
    case 1: /* a rank of another job: any rank of any size */
        call.card.rank       = (int32_t)(test_random(seed) % 8);
        call.card.world_size = (int32_t)(test_random(seed) % 8);
        sherdi_rendezvous_sign(&call, &greeting, &THEIRS);
        memcpy(bytes, &call, len = sizeof(call));
        break;
    case 2: /* a rank of ours that ends in the middle of its words */
        memcpy(bytes, &call, len = test_random(seed) % sizeof(call));
        break;
    case 3: /* one bit of what a rank said */
        memcpy(bytes, &call, len = sizeof(call));
        bytes[test_random(seed) % len] ^= (unsigned char)(1u << test_random(seed) % 8);
        break;
    case 4: /* what a rank has said in another meeting */
        memcpy(bytes, last, len = sizeof(*last));
        break;
    default: /* nothing */
        len = 0;
        break;
    }
    *made = call;
    (void)!send(fd, bytes, len, MSG_NOSIGNAL);
    if (test_random(seed) % 2 == 0) {
        sherdi_net_close(&fd);
    }
    return fd;
}

static void meeting_is_not_moved_by_what_strangers_say(void)
{
    enum { ROUNDS = 150, STRANGERS = 6 };
    uint64_t        seed = 20;
    rendezvous_call last = {.nonce = 1};
    rendezvous_call made = {.nonce = 1};

    for (int round = 0; round < ROUNDS; round++) {
        static member members[RANKS]; /* outlive a check that fails */
        int           fds[STRANGERS];
        static char   address[160];

        (void)snprintf(address, sizeof(address), "%s", ranks_address());
        member_start(&members[0], 0, RANKS, address, &OURS, PATIENCE_NS);
        for (int i = 0; i < STRANGERS; i++) {
            fds[i] = stranger_speaks(address, &seed, &last, &made);
        }
        for (int r = 1; r < RANKS; r++) {
            member_start(&members[r], r, RANKS, address, &OURS, PATIENCE_NS);
        }
        for (int r = 0; r < RANKS; r++) {
            if (member_wait(&members[r]) != SHERD_OK) {
                test_fail(__FILE__, __LINE__, "round %d, rank %d: %s", round, r, members[r].text);
            }
        }
        for (int r = 0; r < RANKS; r++) {
            for (int other = 0; other < RANKS; other++) {
                CHECK_BYTES_EQUAL(&members[other].card, &members[r].meeting.cards[other],
                                  sizeof(rendezvous_card));
            }
            member_end(&members[r]);
        }
        for (int i = 0; i < STRANGERS; i++) {
            sherdi_net_close(&fds[i]);
        }
        last = made;
    }
}

/* A rank of ours with nonsense in its card; below 0 where rank 0 has gone before it had heard
 * it. */
static int mad_speaks(const char *address, int round, uint64_t *seed, int64_t until_ns)
{
    rendezvous_greeting greeting;
    rendezvous_call     call = {.nonce = 5};
    unsigned char      *card = (unsigned char *)&call.card;
    int                 fd   = -1;

    while (sherdi_net_connect(address, patience(), &fd) != SHERD_OK) {
        if (sherdi_now_ns() > until_ns) {
            return -1;
        }
        (void)poll(NULL, 0, 1);
    }
    card_make(&call.card, 1, 2);
    call.card.nccl_version = 22809;
    for (uint64_t i = test_random(seed) % 4; i > 0; i--) {
        size_t at = 8 + test_random(seed) % (sizeof(call.card) - 8);

        card[at] = (unsigned char)(test_random(seed) % 2 == 0 ? 0xff : test_random(seed));
    }
    if (round % 3 == 0) {
        memset(call.card.host_name, 'x', sizeof(call.card) - offsetof(rendezvous_card, host_name));
        call.card.device = call.card.device_count = (int32_t)test_random(seed);
    }
    if (sherdi_net_recv(fd, &greeting, sizeof(greeting), patience()) != SHERD_OK) {
        sherdi_net_close(&fd);
        return -1;
    }
    sherdi_rendezvous_sign(&call, &greeting, &OURS);
    if (sherdi_net_send(fd, &call, sizeof(call), patience()) != SHERD_OK) {
        sherdi_net_close(&fd);
        return -1;
    }
    return fd;
}

/* Whoever has the key is believed, and still can say nothing that breaks rank 0. It waits on for
 * some of them: not for long, and for longer where the machine is too busy for that. */
static void meeting_survives_a_rank_of_ours_gone_mad(void)
{
    enum { ROUNDS = 300 };
    int64_t limit_ns = SECOND_NS / 5;

    for (int round = 0; round < ROUNDS;) {
        static member first;
        static char   address[160];
        uint64_t      seed = 21 + (uint64_t)round * 100;
        char          why[256];
        int           fd;

        CHECK(limit_ns < PATIENCE_NS);
        (void)snprintf(address, sizeof(address), "%s", ranks_address());
        member_start(&first, 0, 2, address, &OURS, limit_ns);
        fd = mad_speaks(address, round, &seed, sherdi_now_ns() + limit_ns);
        if (member_wait(&first) == SHERD_OK) {
            first.meeting.cards[0].nccl_version = first.meeting.cards[0].device_count = 1;
            (void)sherdi_nccl_mover.is_possible(&first.meeting, why, sizeof(why));
        } else {
            CHECK(first.status == SHERD_E_INVAL || first.status == SHERD_E_PEER_LOST);
        }
        limit_ns = fd < 0 ? 2 * limit_ns : limit_ns;
        round += fd >= 0;
        sherdi_net_close(&fd);
        member_end(&first);
    }
}

/* Somebody else listens where rank 0 should: a rank ends with an error, for good. */
static void rank_is_not_moved_by_a_stranger_that_answers(void)
{
    enum { ROUNDS = 60 };
    uint64_t seed = 22;

    for (int round = 0; round < ROUNDS; round++) {
        rendezvous_greeting greeting = {.magic = 0x0003647265687301, .nonce = 3};
        unsigned char       bytes[4096];
        size_t              len = test_random(&seed) % sizeof(bytes);
        int                 listener;
        int                 fd = -1;
        static member       second;
        static char         address[160];

        for (size_t i = 0; i < sizeof(bytes); i++) {
            bytes[i] = (unsigned char)test_random(&seed);
        }
        if (round % 2 == 0) {
            memcpy(bytes, &greeting, sizeof(greeting));
        }
        (void)snprintf(address, sizeof(address), "%s", ranks_address());
        CHECK_OK(sherdi_net_listen(address, &listener, NULL));
        member_start(&second, 1, 2, address, &OURS, SECOND_NS / 20);
        CHECK(sherdi_net_poll(listener, POLLIN, 10000));
        fd = sherdi_net_accept(listener);
        (void)!send(fd, bytes, len, MSG_NOSIGNAL);
        if (round % 3 == 0) {
            sherdi_net_close(&fd);
        }
        (void)member_wait(&second);
        CHECK(second.status == SHERD_E_INVAL || second.status == SHERD_E_PEER_LOST);
        sherdi_net_close(&fd);
        sherdi_net_close(&listener);
        sherdi_net_unlink(address);
        member_end(&second);
    }
}

/* ---------------------------------------------------- silent and slow ones -- */

static void meeting_does_not_wait_for_the_silent(void)
{
    enum { SILENT = 300 };
    static member members[RANKS];
    int           fds[SILENT];
    static char   address[160];

    (void)snprintf(address, sizeof(address), "%s", ranks_address());
    member_start(&members[0], 0, RANKS, address, &OURS, PATIENCE_NS);
    for (int i = 0; i < SILENT; i++) {
        fds[i] = knock(address);
    }
    for (int r = 1; r < RANKS; r++) {
        member_start(&members[r], r, RANKS, address, &OURS, PATIENCE_NS);
    }
    for (int r = 0; r < RANKS; r++) {
        CHECK_STATUS(SHERD_OK, member_wait(&members[r]));
        member_end(&members[r]);
    }
    for (int i = 0; i < SILENT; i++) {
        sherdi_net_close(&fds[i]);
    }
}

/* The rank comes when the stranger is gone, which has said a part of a message by then, a byte at a
 * time. */
static void who_drips_is_dropped(void)
{
    static member members[2];
    static char   address[160];
    size_t        said = 0;
    char          byte;
    int           fd;

    (void)snprintf(address, sizeof(address), "%s", ranks_address());
    member_start(&members[0], 0, 2, address, &OURS, PATIENCE_NS);
    fd = knock(address);
    CHECK_OK(
        sherdi_net_recv(fd, &(rendezvous_greeting){0}, sizeof(rendezvous_greeting), patience()));
    while (said < sizeof(rendezvous_call) && send(fd, "x", 1, MSG_NOSIGNAL) == 1 &&
           recv(fd, &byte, 1, MSG_DONTWAIT) != 0) {
        said++;
        (void)sherdi_net_poll(fd, POLLIN, 20);
    }
    CHECK(said < sizeof(rendezvous_call));
    sherdi_net_close(&fd);
    member_start(&members[1], 1, 2, address, &OURS, PATIENCE_NS);
    for (int r = 0; r < 2; r++) {
        CHECK_STATUS(SHERD_OK, member_wait(&members[r]));
        member_end(&members[r]);
    }
}

typedef struct liner {
    member      *one;
    sherd_world *world;
    int         *lines;
    sherd_status status;
} liner;

static void *liner_run(void *raw)
{
    liner *l = raw;

    l->status = sherdi_rendezvous_lines(&l->one->meeting, l->world, &l->lines);
    return NULL;
}

/* The second connection of each rank, for control data: strangers that say nothing are at the desk
 * before. */
static void lines_do_not_wait_for_the_silent(void)
{
    enum { SILENT = 300 };
    sherd_world_params params;
    static member      members[2];
    static liner       liners[2];
    pthread_t          threads[2];
    int                fds[SILENT];
    static char        address[160];

    sherd_world_params_init(&params);
    params.timeout_ns = PATIENCE_NS;
    (void)snprintf(address, sizeof(address), "%s", ranks_address());
    for (int r = 0; r < 2; r++) {
        member_start(&members[r], r, 2, address, &OURS, PATIENCE_NS);
    }
    for (int r = 0; r < 2; r++) {
        CHECK_STATUS(SHERD_OK, member_wait(&members[r]));
    }
    for (int i = 0; i < SILENT; i++) {
        fds[i] = knock(address);
    }
    for (int r = 0; r < 2; r++) {
        liners[r] = (liner){.one = &members[r]};
        CHECK_OK(sherd_world_create(0, 1, NULL, &params, &liners[r].world));
        CHECK(pthread_create(&threads[r], NULL, liner_run, &liners[r]) == 0);
    }
    for (int r = 0; r < 2; r++) {
        CHECK(pthread_join(threads[r], NULL) == 0);
        CHECK_STATUS(SHERD_OK, liners[r].status);
        sherdi_net_close(&liners[r].lines[r == 0]); /* rank 0's by rank, rank 1's only one */
        sherdi_free(liners[r].lines);
        sherd_world_destroy(liners[r].world);
        member_end(&members[r]);
    }
    for (int i = 0; i < SILENT; i++) {
        sherdi_net_close(&fds[i]);
    }
}

/* ------------------------------------------------------------ other secrets -- */

static sherd_status world_try(void)
{
    sherd_world *world  = NULL;
    double       one    = 1;
    sherd_status status = sherd_world_from_env(NULL, &world);

    CHECK((status == SHERD_OK) == (world != NULL));
    if (status == SHERD_OK) {
        CHECK_OK(sherd_world_sum_f64(world, &one, 1));
        CHECK_INT(sherd_world_size(world), one);
    }
    sherd_world_destroy(world);
    return status;
}

static void part_meets(void)
{
    CHECK_OK(world_try());
}

/* With the wrong one first: it takes nobody's place. */
static void part_meets_with_its_second_secret(void)
{
    CHECK_INT(0, setenv("SHERD_JOB_SECRET", "wrong", 1));
    CHECK_STATUS(SHERD_E_INVAL, world_try());
    CHECK_ERROR_SAYS("(secret of rank 1: SHERD_JOB_SECRET)");
    CHECK_ERROR_SAYS("rank 1");
    CHECK_INT(0, setenv("SHERD_RANK", "7", 1)); /* would be out of the world */
    CHECK_INT(0, setenv("SHERD_WORLD_SIZE", "9", 1));
    CHECK_STATUS(SHERD_E_INVAL, world_try());
    CHECK_INT(0, unsetenv("SHERD_JOB_SECRET"));
    CHECK_STATUS(SHERD_E_INVAL, world_try());
    CHECK_ERROR_SAYS("SHERD_JOB_SECRET is not set");
    CHECK_INT(0, setenv("SHERD_JOB_SECRET", "right", 1));
    CHECK_INT(0, setenv("SHERD_RANK", "1", 1));
    CHECK_INT(0, setenv("SHERD_WORLD_SIZE", "2", 1));
    CHECK_OK(world_try());
}

/* Rank 0's time begins when the stranger is there. */
static void part_waits_in_vain(void)
{
    ranks_note_wait("a stranger looks");
    CHECK_STATUS(SHERD_E_PEER_LOST, world_try());
    CHECK_ERROR_SAYS("rank 1 of 2 did not come");
    CHECK_ERROR_SAYS("1 callers of another job");
    CHECK_ERROR_SAYS("SHERD_TIMEOUT");
}

static void part_is_of_another_run(void)
{
    ranks_note_leave("a stranger looks");
    CHECK_STATUS(SHERD_E_INVAL, world_try());
    CHECK_ERROR_SAYS("TORCHELASTIC_RUN_ID");
}

static void part_is_of_another_slurm_job(void)
{
    ranks_note_leave("a stranger looks");
    CHECK_STATUS(SHERD_E_INVAL, world_try());
    CHECK_ERROR_SAYS("SLURM_JOB_ID");
}

/* Rank 2 never comes. Rank 0's time begins when rank 1 is there, rank 1's when rank 0 listens. */
static void part_hears_who_is_missing(void)
{
    if (ranks_variable("SHERD_RANK") == 0) {
        ranks_note_wait("rank 1 is there");
    } else {
        ranks_note_leave("rank 1 is there");
        while (access(getenv("SHERD_RENDEZVOUS") + strlen("unix://"), F_OK) != 0) {
            (void)poll(NULL, 0, 1);
        }
    }
    CHECK_STATUS(SHERD_E_PEER_LOST, world_try());
    CHECK_ERROR_SAYS("rank 2 of 3 did not come");
}

static void meeting_needs_one_secret(void)
{
    char address[200];

    (void)snprintf(address, sizeof(address), "SHERD_RENDEZVOUS=%s", ranks_address());
    ranks_run((rank_start[]){{.part        = "part_meets",
                              .environment = {"SHERD_RANK=0", "SHERD_WORLD_SIZE=2", address,
                                              "SHERD_JOB_SECRET=right"}},
                             {.part        = "part_meets_with_its_second_secret",
                              .environment = {"SHERD_RANK=1", "SHERD_WORLD_SIZE=2", address}}},
              2);
}

static void meeting_takes_the_name_that_the_launcher_gives(void)
{
    char port[32];
    char own[32];

    (void)snprintf(port, sizeof(port), "MASTER_PORT=%d", ranks_port() - 1);
    ranks_run((rank_start[]){{.part        = "part_waits_in_vain",
                              .environment = {"RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=localhost",
                                              port, "TORCHELASTIC_RUN_ID=1", "SHERD_TIMEOUT=1"}},
                             {.part        = "part_is_of_another_run",
                              .environment = {"RANK=1", "WORLD_SIZE=2", "MASTER_ADDR=localhost",
                                              port, "TORCHELASTIC_RUN_ID=2"}}},
              2);
    (void)snprintf(own, sizeof(own), "SHERD_PORT=%d", ranks_port());
    ranks_run(
        (rank_start[]){{.part        = "part_waits_in_vain",
                        .environment = {"SLURM_PROCID=0", "SLURM_NTASKS=2", "SLURM_STEP_ID=0",
                                        "SLURM_JOB_NODELIST=localhost", "SLURM_JOB_ID=1", own,
                                        "SHERD_TIMEOUT=1"}},
                       {.part        = "part_is_of_another_slurm_job",
                        .environment = {"SLURM_PROCID=1", "SLURM_NTASKS=2", "SLURM_STEP_ID=0",
                                        "SLURM_JOB_NODELIST=localhost", "SLURM_JOB_ID=2", own}}},
        2);
}

/* Rank 1 has less patience than rank 0, which it has found: it hears the verdict all the same. */
static void meeting_names_the_missing_to_all_that_wait(void)
{
    char address[200];

    (void)snprintf(address, sizeof(address), "SHERD_RENDEZVOUS=%s", ranks_address());
    ranks_run(
        (rank_start[]){
            {.part        = "part_hears_who_is_missing",
             .environment = {"SHERD_RANK=0", "SHERD_WORLD_SIZE=3", address, "SHERD_TIMEOUT=2"}},
            {.part        = "part_hears_who_is_missing",
             .environment = {"SHERD_RANK=1", "SHERD_WORLD_SIZE=3", address, "SHERD_TIMEOUT=0.5"}}},
        2);
}

/* ------------------------------------------------------------------ limits -- */

static void timeout_that_is_none_is_refused(void)
{
    const char *const bad[] = {"soon", "0", "-3", "nan", "1e99", "10 minutes"};
    sherd_world      *world = NULL;

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        CHECK_INT(0, setenv("SHERD_TIMEOUT", bad[i], 1));
        CHECK_STATUS(SHERD_E_INVAL, sherd_world_from_env(NULL, &world));
        CHECK_ERROR_SAYS("SHERD_TIMEOUT");
        CHECK_ERROR_SAYS(bad[i]);
    }
    CHECK_INT(0, unsetenv("SHERD_TIMEOUT"));
    CHECK(world == NULL);
}

static void host_timeout_that_is_none_is_refused(void)
{
    const char *const  bad[]    = {"soon", "0", "1.5", "-3", "nan", "1e99", "10 minutes"};
    const int64_t      bad_ns[] = {-1, 1, 2 * SECOND_NS - 1, 8 * 86400 * SECOND_NS};
    sherd_world       *world    = NULL;
    sherd_world_params params;

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        CHECK_INT(0, setenv("SHERD_HOST_TIMEOUT", bad[i], 1));
        CHECK_STATUS(SHERD_E_INVAL, sherd_world_from_env(NULL, &world));
        CHECK_ERROR_SAYS("SHERD_HOST_TIMEOUT");
        CHECK_ERROR_SAYS(bad[i]);
    }
    CHECK_INT(0, unsetenv("SHERD_HOST_TIMEOUT"));
    sherd_world_params_init(&params);
    for (size_t i = 0; i < sizeof(bad_ns) / sizeof(bad_ns[0]); i++) {
        params.host_timeout_ns = bad_ns[i];
        CHECK_STATUS(SHERD_E_INVAL, sherd_world_from_env(&params, &world));
        CHECK_ERROR_SAYS("sherd_world_params.host_timeout_ns");
    }
    CHECK(world == NULL);
}

/* Also of a world that is split from another. */
static void host_timeout_is(int64_t expected_ns, const sherd_world_params *params)
{
    sherd_world *world, *child;

    CHECK_OK(sherd_world_from_env(params, &world));
    CHECK(world->host_timeout_ns >= expected_ns && world->host_timeout_ns <= expected_ns + 1);
    CHECK_OK(sherd_world_split(world, 0, 0, &child));
    CHECK(child->host_timeout_ns == world->host_timeout_ns);
    sherd_world_destroy(child);
    sherd_world_destroy(world);
}

static void host_timeout_comes_from_the_environment_else_the_program(void)
{
    sherd_world_params params;

    sherd_world_params_init(&params);
    host_timeout_is(30 * SECOND_NS, NULL);
    host_timeout_is(30 * SECOND_NS, &params);
    params.host_timeout_ns = 5 * SECOND_NS;
    host_timeout_is(5 * SECOND_NS, &params);
    CHECK_INT(0, setenv("SHERD_HOST_TIMEOUT", "120.5", 1));
    host_timeout_is(120 * SECOND_NS + SECOND_NS / 2, &params);
    CHECK_INT(0, unsetenv("SHERD_HOST_TIMEOUT"));
}

static int option_of(int fd, int level, int option)
{
    int       value = -1;
    socklen_t len   = sizeof(value);

    CHECK_INT(0, getsockopt(fd, level, option, &value, &len));
    return value;
}

static void connections_bear_the_silence_of_the_limit(void)
{
    const net_wait wait     = {.deadline_ns = sherdi_now_ns() + PATIENCE_NS};
    int            listener = -1;
    int            fd       = -1;
    char           address[64];

    CHECK_OK(sherdi_net_listen("tcp://127.0.0.1:0", &listener, NULL));
    (void)snprintf(address, sizeof(address), "tcp://127.0.0.1:%d", sherdi_net_port(listener));
    CHECK_OK(sherdi_net_connect(address, &wait, &fd));
    sherdi_net_keepalive(fd, 30 * SECOND_NS);
    CHECK_INT(1, option_of(fd, SOL_SOCKET, SO_KEEPALIVE));
    CHECK_INT(30001, option_of(fd, IPPROTO_TCP, TCP_USER_TIMEOUT));
    sherdi_net_keepalive(fd, 7 * 86400 * SECOND_NS);
    CHECK_INT(604800001, option_of(fd, IPPROTO_TCP, TCP_USER_TIMEOUT));
    sherdi_net_close(&fd);
    sherdi_net_close(&listener);
}

/* The address is one of documentation, which no host has. */
static void rank_0_at_the_address_of_another_host_says_so(void)
{
    sherd_world *world = NULL;
    char         host[64];

    CHECK(gethostname(host, sizeof(host)) == 0);
    CHECK_INT(0, setenv("SHERD_TIMEOUT", "0.1", 1));
    CHECK_STATUS(SHERD_E_PEER_LOST, sherd_world_create(0, 2, "tcp://192.0.2.1:0", NULL, &world));
    CHECK_ERROR_SAYS("rank 1 of 2 did not come to tcp://192.0.2.1:0");
    CHECK_ERROR_SAYS("that is no address of this host");
    CHECK_ERROR_SAYS(host);
    CHECK_STATUS(SHERD_E_PEER_LOST, sherd_world_create(0, 2, "tcp://127.0.0.1:0", NULL, &world));
    CHECK(strstr(sherd_last_error(), "no address of this host") == NULL);
    CHECK_INT(0, unsetenv("SHERD_TIMEOUT"));
}

static void timeout_ends_the_search_for_rank_0(void)
{
    sherd_world_params params;
    sherd_world       *world = NULL;

    sherd_world_params_init(&params);
    params.timeout_ns = 600 * SECOND_NS; /* for calls */
    CHECK_INT(0, setenv("SHERD_TIMEOUT", "0.2", 1));
    CHECK_STATUS(SHERD_E_PEER_LOST, sherd_world_create(1, 2, ranks_address(), &params, &world));
    CHECK_ERROR_SAYS("rank 1 did not find rank 0 within 0.2 s");
    CHECK_ERROR_SAYS("SHERD_TIMEOUT");
    CHECK_INT(0, unsetenv("SHERD_TIMEOUT"));
}

/* ------------------------------------------------------------------- paths -- */

static void path_is_refused(const char *path, const char *word)
{
    char               address[300];
    sherd_world_params params;
    sherd_world       *world = NULL;

    sherd_world_params_init(&params);
    params.timeout_ns = SECOND_NS; /* it would be E_PEER_LOST after it */
    (void)snprintf(address, sizeof(address), "unix://%s", path);
    for (int rank = 1; rank >= 0; rank--) {
        CHECK_STATUS(SHERD_E_INVAL, sherd_world_create(rank, 2, address, &params, &world));
        CHECK_ERROR_SAYS(path);
        CHECK_ERROR_SAYS(word);
    }
}

static void path_in_scratch(const char *name, char *path, size_t len_bytes)
{
    (void)snprintf(path, len_bytes, "%s/%s", test_scratch(), name);
}

static void paths_that_can_be_no_socket_are_refused(void)
{
    char path[200];
    int  fd;

    path_in_scratch("plain", path, sizeof(path));
    fd = open(path, O_CREAT | O_WRONLY, 0600);
    CHECK(fd >= 0);
    (void)close(fd);
    path_is_refused(path, "it is a file, not a socket");
    path_in_scratch("plain/below", path, sizeof(path));
    path_is_refused(path, "Not a directory");
    path_in_scratch("folder", path, sizeof(path));
    CHECK_INT(0, mkdir(path, 0700));
    path_is_refused(path, "it is a folder, not a socket");
    path_in_scratch("nowhere/meet", path, sizeof(path));
    path_is_refused(path, "No such file or directory");
    path_in_scratch("link", path, sizeof(path));
    CHECK_INT(0, symlink("/nonexistent/meet", path));
    path_is_refused(path, "link to a path that does not exist");
}

/* As somebody who may not. */
static void part_may_not_meet(void)
{
    sherd_world *world = NULL;
    char         address[300];

    CHECK_INT(0, seteuid(65534));
    (void)snprintf(address, sizeof(address), "%s/closed/meet", getenv("SHERD_RENDEZVOUS"));
    CHECK_STATUS(SHERD_E_INVAL, sherd_world_create(1, 2, address, NULL, &world));
    CHECK_ERROR_SAYS("Permission denied");
    (void)snprintf(address, sizeof(address), "%s/meet", getenv("SHERD_RENDEZVOUS"));
    CHECK_STATUS(SHERD_E_INVAL, sherd_world_create(1, 2, address, NULL, &world));
    CHECK_ERROR_SAYS("Permission denied");
    CHECK_INT(0, seteuid(0));
}

static void paths_that_are_forbidden_are_refused(void)
{
    char path[200];
    char address[220];
    int  listener;

    if (geteuid() != 0) {
        test_skip("only root can become somebody who may not");
    }
    path_in_scratch("open", path, sizeof(path));
    CHECK_INT(0, chmod(test_scratch(), 0755));
    CHECK_INT(0, mkdir(path, 0755));
    path_in_scratch("open/closed", path, sizeof(path));
    CHECK_INT(0, mkdir(path, 0700));
    path_in_scratch("open/meet", path, sizeof(path));
    (void)snprintf(address, sizeof(address), "unix://%s", path);
    CHECK_OK(sherdi_net_listen(address, &listener, NULL));
    CHECK_INT(0, chmod(path, 0700));
    (void)snprintf(address, sizeof(address), "SHERD_RENDEZVOUS=unix://%s/open", test_scratch());
    ranks_run((rank_start[]){{.part = "part_may_not_meet", .environment = {address}}}, 1);
    sherdi_net_close(&listener);
}

static const test_case CASES[] = {
    CASE(meeting_is_not_moved_by_what_strangers_say),
    CASE(meeting_survives_a_rank_of_ours_gone_mad),
    CASE(rank_is_not_moved_by_a_stranger_that_answers),
    CASE(meeting_does_not_wait_for_the_silent),
    CASE(who_drips_is_dropped),
    CASE(lines_do_not_wait_for_the_silent),
    CASE(meeting_needs_one_secret),
    CASE(meeting_takes_the_name_that_the_launcher_gives),
    CASE(meeting_names_the_missing_to_all_that_wait),
    CASE(timeout_that_is_none_is_refused),
    CASE(host_timeout_that_is_none_is_refused),
    CASE(host_timeout_comes_from_the_environment_else_the_program),
    CASE(connections_bear_the_silence_of_the_limit),
    CASE(timeout_ends_the_search_for_rank_0),
    CASE(rank_0_at_the_address_of_another_host_says_so),
    CASE(paths_that_can_be_no_socket_are_refused),
    CASE(paths_that_are_forbidden_are_refused),
};

static const rank_part PARTS[] = {
    PART(part_meets),
    PART(part_meets_with_its_second_secret),
    PART(part_waits_in_vain),
    PART(part_is_of_another_run),
    PART(part_is_of_another_slurm_job),
    PART(part_hears_who_is_missing),
    PART(part_may_not_meet),
};

RANKS_MAIN(CASES, PARTS)
