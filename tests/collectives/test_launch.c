/* How ranks find each other: what launchers set, and what can go wrong while meeting. */
#include "base/clock.h"
#include "collectives/rendezvous.h"
#include "collectives/transport.h"
#include "kernels/devices.h"
#include "tests/collectives/ranks.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Of who waits for something that comes: a busy machine may take long. */
#define PATIENCE_NS INT64_C(30000000000)

/* ----------------------------------------------------------- environment -- */

static void environment_set(const char *const *pairs)
{
    ranks_clear_environment();
    for (; pairs[0] != NULL; pairs += 2) {
        CHECK_INT(0, setenv(pairs[0], pairs[1], 1));
    }
}

/* The environment is refused before anybody is waited for, and both words are in the sentence. */
static void environment_is_refused(const char *const *pairs, const char *word, const char *other)
{
    sherd_world *world = NULL;

    environment_set(pairs);
    CHECK_STATUS(SHERD_E_INVAL, sherd_world_from_env(NULL, &world));
    CHECK(world == NULL);
    CHECK_ERROR_SAYS(word);
    CHECK_ERROR_SAYS(other);
    ranks_clear_environment();
}

/* Of a variable that the whole run has, which goes on after. */
static void environment_of_the_run_is_refused(const char *name, const char *value)
{
    const char *before = getenv(name);
    char        kept[64];

    (void)snprintf(kept, sizeof(kept), "%s", before == NULL ? "" : before);
    environment_is_refused((const char *const[]){name, value, NULL}, name, value);
    CHECK_INT(0, kept[0] == '\0' ? unsetenv(name) : setenv(name, kept, 1));
}

static void environment_gives_one_rank(const char *const *pairs)
{
    sherd_world *world = NULL;

    environment_set(pairs);
    CHECK_OK(sherd_world_from_env(NULL, &world));
    CHECK_INT(1, sherd_world_size(world));
    CHECK(strcmp(sherd_world_transport(world), "self") == 0);
    sherd_world_destroy(world);
    ranks_clear_environment();
}

#define LIST(...)                                                                                  \
    (const char *const[])                                                                          \
    {                                                                                              \
        __VA_ARGS__, NULL                                                                          \
    }

static void environment_without_launcher_is_one_rank(void)
{
    environment_gives_one_rank((const char *const[]){NULL});
}

static void environment_of_slurm_shell_is_not_believed(void)
{
    environment_gives_one_rank(LIST("SLURM_PROCID", "0", "SLURM_NTASKS", "4"));
    environment_gives_one_rank(
        LIST("SLURM_PROCID", "0", "SLURM_NTASKS", "1", "SLURM_STEP_ID", "0"));
}

static void launcher_is_told_by_name(void)
{
    static const struct {
        const char *name, *pairs[7];
    } ROWS[] = {
        {"SHERD_*", {"SHERD_RANK", "0", "RANK", "0", "WORLD_SIZE", "2"}},
        {"torchrun", {"RANK", "0", "WORLD_SIZE", "2", "PMI_RANK", "1"}},
        {"mpirun", {"OMPI_COMM_WORLD_SIZE", "2"}},
        {"mpiexec", {"PMI_RANK", "1", "PMI_SIZE", "2"}},
    };

    ranks_clear_environment();
    CHECK(sherd_launcher() == NULL);
    for (size_t i = 0; i < sizeof(ROWS) / sizeof(ROWS[0]); i++) {
        environment_set(ROWS[i].pairs);
        CHECK(sherd_launcher() != NULL && strcmp(sherd_launcher(), ROWS[i].name) == 0);
    }
    ranks_clear_environment();
}

/* srun started the daemons, one on each of two hosts, and these the ranks. */
static void environment_of_mpiexec_is_believed_before_the_srun_of_its_daemons(void)
{
    environment_is_refused(LIST("PMI_RANK", "3", "PMI_SIZE", "4", "SLURM_PROCID", "1",
                                "SLURM_NTASKS", "2", "SLURM_STEP_ID", "0"),
                           "mpiexec started rank 3 of 4", "set MASTER_ADDR");
    environment_is_refused(LIST("PMI_RANK", "1", "PMI_SIZE", "2", "SLURM_PROCID", "1",
                                "SLURM_NTASKS", "2", "SLURM_STEP_ID", "0"),
                           "SLURM_PROCID is set", "SLURM_JOB_NODELIST"); /* srun --mpi=pmi2 */
    environment_is_refused(LIST("PMI_RANK", "0", "PMI_SIZE", "2", "MASTER_ADDR", "h"),
                           "mpiexec has set only some", "MASTER_PORT");
    environment_gives_one_rank(LIST("PMI_RANK", "0", "PMI_SIZE", "1"));
}

static void environment_that_is_explicit_wins(void)
{
    environment_gives_one_rank(LIST("SHERD_RANK", "0", "SHERD_WORLD_SIZE", "1", "RANK", "3",
                                    "WORLD_SIZE", "4", "OMPI_COMM_WORLD_SIZE", "2"));
}

static void environment_with_a_rank_outside_its_world_is_refused(void)
{
    environment_is_refused(LIST("RANK", "2", "WORLD_SIZE", "2", "MASTER_ADDR", "h"), "RANK",
                           "WORLD_SIZE is 2");
    environment_is_refused(LIST("SHERD_RANK", "5", "SHERD_WORLD_SIZE", "2"), "SHERD_RANK is 5",
                           "SHERD_WORLD_SIZE is 2");
    environment_is_refused(LIST("OMPI_COMM_WORLD_RANK", "9", "OMPI_COMM_WORLD_SIZE", "2"),
                           "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE");
    environment_is_refused(LIST("SLURM_PROCID", "7", "SLURM_NTASKS", "2", "SLURM_STEP_ID", "0"),
                           "SLURM_PROCID", "SLURM_NTASKS");
    environment_is_refused(LIST("RANK", "1", "WORLD_SIZE", "4", "LOCAL_RANK", "2",
                                "LOCAL_WORLD_SIZE", "2", "MASTER_ADDR", "h"),
                           "LOCAL_RANK is 2", "LOCAL_WORLD_SIZE is 2");
}

static void environment_that_is_incomplete_is_refused(void)
{
    environment_is_refused(LIST("SHERD_RANK", "0"), "SHERD_WORLD_SIZE", "missing");
    environment_is_refused(LIST("SHERD_RANK", "0", "SHERD_WORLD_SIZE", "2"), "SHERD_RENDEZVOUS",
                           "not set");
    environment_is_refused(LIST("TORCHELASTIC_RUN_ID", "x", "RANK", "0"), "WORLD_SIZE", "missing");
    environment_is_refused(LIST("RANK", "0", "WORLD_SIZE", "2"), "MASTER_ADDR", "RANK");
    environment_is_refused(LIST("RANK", "0", "WORLD_SIZE", "2", "MASTER_ADDR", "h"), "MASTER_PORT",
                           "missing");
    environment_is_refused(LIST("SLURM_PROCID", "0", "SLURM_NTASKS", "2", "SLURM_STEP_ID", "0"),
                           "SLURM_JOB_NODELIST", "SLURM_PROCID");
}

static void environment_that_is_no_number_is_refused(void)
{
    environment_is_refused(LIST("RANK", "one", "WORLD_SIZE", "2", "MASTER_ADDR", "h"), "RANK",
                           "\"one\"");
    environment_is_refused(LIST("RANK", "0", "WORLD_SIZE", "-2", "MASTER_ADDR", "h"), "WORLD_SIZE",
                           "\"-2\"");
    environment_is_refused(
        LIST("RANK", "0", "WORLD_SIZE", "2", "MASTER_ADDR", "h", "SHERD_PORT", "70000"),
        "SHERD_PORT", "70000");
    environment_is_refused(LIST("SHERD_THREADS", "many"), "SHERD_THREADS", "many");
    environment_of_the_run_is_refused("SHERD_CPU_BIND", "0-x");
}

static void environment_that_contradicts_mpirun_is_refused(void)
{
    environment_is_refused(LIST("RANK", "0", "WORLD_SIZE", "2", "MASTER_ADDR", "h",
                                "OMPI_COMM_WORLD_RANK", "1", "OMPI_COMM_WORLD_SIZE", "2"),
                           "RANK is 0", "OMPI_COMM_WORLD_RANK is 1");
}

/* ------------------------------------------------------------ launchers -- */

/* Two ranks meet and add their ranks up. */
static void part_meets(void)
{
    sherd_world *world = NULL;
    double       one   = 1;

    CHECK_OK(sherd_world_from_env(NULL, &world));
    CHECK_INT(2, sherd_world_size(world));
    CHECK(strcmp(sherd_world_transport(world), "shm") == 0);
    CHECK_OK(sherd_world_sum_f64(world, &one, 1));
    CHECK(one == 2);
    sherd_world_destroy(world);
}

static void launcher_torchrun_wins_over_srun(void)
{
    char port[32];

    (void)snprintf(port, sizeof(port), "MASTER_PORT=%d", ranks_port() - 1);
    ranks_run(
        (rank_start[]){
            {.part        = "part_meets",
             .environment = {"RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=0", "MASTER_ADDR=localhost",
                             port, "SLURM_PROCID=1", "SLURM_NTASKS=8"}},
            {.part        = "part_meets",
             .environment = {"RANK=1", "WORLD_SIZE=2", "LOCAL_RANK=1", "MASTER_ADDR=localhost",
                             port, "SLURM_PROCID=1", "SLURM_NTASKS=8"}}},
        2);
}

static void launcher_mpiexec_is_understood(void)
{
    char port[32];

    (void)snprintf(port, sizeof(port), "SHERD_PORT=%d", ranks_port());
    ranks_run((rank_start[]){{.part        = "part_meets",
                              .environment = {"PMI_RANK=0", "PMI_SIZE=2", "MPI_LOCALRANKID=0",
                                              "MASTER_ADDR=localhost", port}},
                             {.part        = "part_meets",
                              .environment = {"PMI_RANK=1", "PMI_SIZE=2", "MPI_LOCALRANKID=1",
                                              "MASTER_ADDR=localhost", port}}},
              2);
}

static void launcher_srun_is_understood(void)
{
    char port[32];

    (void)snprintf(port, sizeof(port), "SHERD_PORT=%d", ranks_port());
    ranks_run((rank_start[]){{.part        = "part_meets",
                              .environment = {"SLURM_PROCID=0", "SLURM_NTASKS=2", "SLURM_STEP_ID=0",
                                              "SLURM_JOB_NODELIST=127.0.0.[1-2,7],x", port}},
                             {.part        = "part_meets",
                              .environment = {"SLURM_PROCID=1", "SLURM_NTASKS=2", "SLURM_STEP_ID=0",
                                              "SLURM_JOB_NODELIST=127.0.0.[1-2,7],x", port}}},
              2);
}

/* -------------------------------------------------- what goes wrong meeting -- */

static sherd_status world_try(int64_t timeout_ns)
{
    sherd_world_params params;
    sherd_world       *world = NULL;
    sherd_status       status;

    sherd_world_params_init(&params);
    params.timeout_ns = timeout_ns;
    status            = sherd_world_from_env(&params, &world);
    CHECK((status == SHERD_OK) == (world != NULL));
    sherd_world_destroy(world);
    return status;
}

static void part_finds_other_world_size(void)
{
    CHECK_STATUS(SHERD_E_INVAL, world_try(0));
    CHECK_ERROR_SAYS("rank 1");
    CHECK_ERROR_SAYS("a world size of 3, rank 0 of 2");
}

static void part_finds_other_of_its_rank(void)
{
    CHECK_STATUS(SHERD_E_INVAL, world_try(0));
    CHECK_ERROR_SAYS("two processes say they are rank 1");
}

/* Rank 0's time begins when rank 1 looks for it. */
static void part_misses_rank_2(void)
{
    int is_first = ranks_variable("SHERD_RANK") == 0;

    if (is_first) {
        ranks_note_wait("rank 1 looks");
    } else {
        ranks_note_leave("rank 1 looks");
    }
    CHECK_STATUS(SHERD_E_PEER_LOST, world_try(is_first ? INT64_C(700000000) : PATIENCE_NS));
    CHECK_ERROR_SAYS("rank 2 of 3 did not come");
}

static void part_misses_rank_0(void)
{
    CHECK_STATUS(SHERD_E_PEER_LOST, world_try(INT64_C(300000000)));
    CHECK_ERROR_SAYS("rank 1 did not find rank 0");
}

/* Rank 1 shows its card, is welcomed, and ends. */
static void part_shows_card_and_ends(void)
{
    rendezvous_call     call = {.nonce = 7};
    rendezvous_greeting greeting;
    job_key             key;
    const net_wait      wait = {.deadline_ns = sherdi_now_ns() + PATIENCE_NS};
    int                 fd   = -1;
    char                byte;
    sherd_world_params  params;
    const char         *backend;

    sherd_world_params_init(&params);
    CHECK_OK(sherdi_world_backend_kind(&params, &backend));
    sherdi_rendezvous_card_fill(&call.card, 1, 3, &params,
                                strcmp(backend, "cpu") == 0 ? "shm" : "auto");
    (void)snprintf(call.card.backend, sizeof(call.card.backend), "%s", backend);
    sherdi_job_key_read(NULL, NULL, &key);
    while (sherdi_net_connect(getenv("SHERD_RENDEZVOUS"), &wait, &fd) != SHERD_OK) {
        (void)sched_yield();
    }
    CHECK_OK(sherdi_net_recv(fd, &greeting, sizeof(greeting), &wait));
    sherdi_rendezvous_sign(&call, &greeting, &key);
    CHECK_OK(sherdi_net_send(fd, &call, sizeof(call), &wait));
    CHECK_OK(sherdi_net_recv(fd, &byte, 1, &wait));
}

/* Rank 0 hears of it at once. Rank 2 looks for a rank 0 that has gone, as long as it wants to. */
static void part_loses_rank_1(void)
{
    int is_first = ranks_variable("SHERD_RANK") == 0;

    CHECK_STATUS(SHERD_E_PEER_LOST, world_try(is_first ? PATIENCE_NS : INT64_C(1000000000)));
    if (is_first) {
        CHECK_ERROR_SAYS("rank 1");
    }
}

/* Something that speaks another language knocks first, twice. */
static void part_meets_after_strangers(void)
{
    const net_wait wait    = {.deadline_ns = sherdi_now_ns() + PATIENCE_NS};
    const char     noise[] = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
    char           much[sizeof(rendezvous_call)];
    int            fd[2] = {-1, -1};

    memset(much, 'x', sizeof(much));
    while (sherdi_net_connect(getenv("SHERD_RENDEZVOUS"), &wait, &fd[0]) != SHERD_OK) {
        (void)sched_yield();
    }
    CHECK_OK(sherdi_net_connect(getenv("SHERD_RENDEZVOUS"), &wait, &fd[1]));
    CHECK_OK(sherdi_net_send(fd[0], noise, sizeof(noise), &wait));
    CHECK_OK(sherdi_net_send(fd[1], much, sizeof(much), &wait));
    part_meets();
}

/* One rank's memory would be on a device, the other's on the host. */
static void part_asks_for_another_backend(void)
{
    CHECK_INT(0, setenv("SHERD_BACKEND", ranks_variable("SHERD_RANK") == 0 ? "cpu" : "cuda", 1));
    CHECK_STATUS(SHERD_E_INVAL, world_try(0));
    CHECK_ERROR_SAYS("rank 1 asks for backend cuda, rank 0 for cpu");
}

/* Another name of the host is another host. */
static void part_is_on_another_host(void)
{
    if (ranks_variable("SHERD_RANK") == 1) {
        CHECK_INT(0, unshare(CLONE_NEWUTS));
        CHECK_INT(0, sethostname("elsewhere", 9));
    }
    CHECK_STATUS(SHERD_E_NOTSUP, world_try(0));
    CHECK_ERROR_SAYS("elsewhere");
    CHECK_ERROR_SAYS("rank 1");
}

static void ranks_run_explicit(const char *const *parts, const int *ranks, const int *sizes,
                               int count)
{
    rank_start starts[4];
    char       text[4][2][64];
    char       meeting[200];

    memset(starts, 0, sizeof(starts));
    (void)snprintf(meeting, sizeof(meeting), "SHERD_RENDEZVOUS=%s", ranks_address());
    for (int i = 0; i < count; i++) {
        (void)snprintf(text[i][0], sizeof(text[i][0]), "SHERD_RANK=%d", ranks[i]);
        (void)snprintf(text[i][1], sizeof(text[i][1]), "SHERD_WORLD_SIZE=%d", sizes[i]);
        starts[i] =
            (rank_start){.part = parts[i], .environment = {text[i][0], text[i][1], meeting}};
    }
    ranks_run(starts, count);
}

static void meeting_with_other_world_size_is_refused(void)
{
    ranks_run_explicit(
        (const char *const[]){"part_finds_other_world_size", "part_finds_other_world_size"},
        (const int[]){0, 1}, (const int[]){2, 3}, 2);
}

static void meeting_with_two_of_one_rank_is_refused(void)
{
    ranks_run_explicit((const char *const[]){"part_finds_other_of_its_rank",
                                             "part_finds_other_of_its_rank",
                                             "part_finds_other_of_its_rank"},
                       (const int[]){0, 1, 1}, (const int[]){3, 3, 3}, 3);
}

static void meeting_names_the_rank_that_never_came(void)
{
    ranks_run_explicit((const char *const[]){"part_misses_rank_2", "part_misses_rank_2"},
                       (const int[]){0, 1}, (const int[]){3, 3}, 2);
    ranks_run_explicit((const char *const[]){"part_misses_rank_0"}, (const int[]){1},
                       (const int[]){2}, 1);
}

static void meeting_names_the_rank_that_died_in_it(void)
{
    ranks_run_explicit(
        (const char *const[]){"part_loses_rank_1", "part_shows_card_and_ends", "part_loses_rank_1"},
        (const int[]){0, 1, 2}, (const int[]){3, 3, 3}, 3);
}

static void meeting_with_another_backend_is_refused(void)
{
    ranks_run_explicit(
        (const char *const[]){"part_asks_for_another_backend", "part_asks_for_another_backend"},
        (const int[]){0, 1}, (const int[]){2, 2}, 2);
}

static void meeting_drops_strangers(void)
{
    ranks_run_explicit((const char *const[]){"part_meets", "part_meets_after_strangers"},
                       (const int[]){0, 1}, (const int[]){2, 2}, 2);
}

static void meeting_over_tcp_works(void)
{
    char address[64];

    (void)snprintf(address, sizeof(address), "SHERD_RENDEZVOUS=tcp://127.0.0.1:%d", ranks_port());
    ranks_run(
        (rank_start[]){
            {.part = "part_meets", .environment = {"SHERD_RANK=0", "SHERD_WORLD_SIZE=2", address}},
            {.part = "part_meets", .environment = {"SHERD_RANK=1", "SHERD_WORLD_SIZE=2", address}}},
        2);
}

static void meeting_of_two_hosts_is_refused_by_shm(void)
{
    if (geteuid() != 0) {
        test_skip("only root can give a process another host name");
    }
    ranks_run_explicit((const char *const[]){"part_is_on_another_host", "part_is_on_another_host"},
                       (const int[]){0, 1}, (const int[]){2, 2}, 2);
}

/* -------------------------------------------------------- explicit calls -- */

static void create_refuses_bad_arguments(void)
{
    const char *const  bad[] = {"",          "host:80",      "http://h:1", "tcp://h",
                                "tcp://:80", "tcp://h:high", "unix://rel", "tcp://h:99999"};
    char               path[300];
    sherd_world       *world = NULL;
    sherd_world_params params;

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        CHECK_STATUS(SHERD_E_INVAL, sherd_world_create(0, 2, bad[i], NULL, &world));
    }
    memset(path, 'a', sizeof(path) - 1);
    memcpy(path, "unix:///", 8);
    path[sizeof(path) - 1] = '\0';
    CHECK_STATUS(SHERD_E_INVAL, sherd_world_create(0, 2, path, NULL, &world));
    CHECK_STATUS(SHERD_E_INVAL, sherd_world_create(0, 2, NULL, NULL, &world));
    CHECK_STATUS(SHERD_E_INVAL, sherd_world_create(2, 2, "tcp://h:1", NULL, &world));
    CHECK_STATUS(SHERD_E_INVAL, sherd_world_create(-1, 2, "tcp://h:1", NULL, &world));
    CHECK_STATUS(SHERD_E_INVAL, sherd_world_create(0, 0, "tcp://h:1", NULL, &world));
    sherd_world_params_init(&params);
    params.transport = "carrier pigeon";
    CHECK_STATUS(SHERD_E_NOTSUP, sherd_world_create(0, 2, "tcp://h:1", &params, &world));
    CHECK_ERROR_SAYS("carrier pigeon");
    params.transport = "threads";
    CHECK_STATUS(SHERD_E_INVAL, sherd_world_create(0, 2, "tcp://h:1", &params, &world));
    params.transport   = NULL;
    params.struct_size = 3;
    CHECK_STATUS(SHERD_E_INVAL, sherd_world_create(0, 1, NULL, &params, &world));
    CHECK_STATUS(SHERD_E_INVAL, sherd_world_threads(0, &world));
    CHECK_STATUS(SHERD_E_INVAL, sherd_world_simulate(4, 4, &world));
    CHECK(world == NULL);
}

static void create_of_one_rank_needs_no_meeting(void)
{
    sherd_world       *world = NULL;
    sherd_world_params params;

    CHECK_OK(sherd_world_create(0, 1, NULL, NULL, &world));
    CHECK(strcmp(sherd_world_transport(world), "self") == 0);
    sherd_world_destroy(world);
    sherd_world_params_init(&params);
    params.transport   = "shm";
    params.cpu_threads = 3;
    CHECK_OK(sherd_world_create(0, 1, NULL, &params, &world));
    CHECK(strcmp(sherd_world_transport(world), "shm") == 0);
    CHECK_OK(sherd_world_barrier(world));
    sherd_world_destroy(world);
}

static void create_takes_the_struct_of_an_older_program(void)
{
    sherd_world       *world = NULL;
    sherd_world_params params;

    sherd_world_params_init(&params);
    params.struct_size = offsetof(sherd_world_params, backend);
    params.backend     = "behind the end";
    CHECK_OK(sherd_world_create(0, 1, NULL, &params, &world));
    sherd_world_destroy(world);
    params.struct_size = sizeof(params) + 8;
    CHECK_STATUS(SHERD_E_INVAL, sherd_world_create(0, 1, NULL, &params, &world));
    CHECK_ERROR_SAYS("sherd_world_params_init");
}

static void environment_with_an_unknown_backend_is_refused(void)
{
    environment_of_the_run_is_refused("SHERD_BACKEND", "abacus");
}

static void create_opens_the_backend_that_is_asked_for(void)
{
    sherd_world       *world = NULL;
    sherd_world_params params;

    sherd_world_params_init(&params);
    params.backend = "abacus";
    CHECK_STATUS(SHERD_E_INVAL, sherd_world_create(0, 1, NULL, &params, &world));
    CHECK_ERROR_SAYS("abacus");
    params.backend = "cpu";
    params.device  = 3; /* unused on the CPU */
    CHECK_OK(sherd_world_create(0, 1, NULL, &params, &world));
    CHECK(sherdi_world_backend(world) == sherdi_world_host(world));
    sherd_world_destroy(world);
    world = NULL;
    if (sherdi_backend_device_count("cuda", NULL, 0) == 0) {
        params.backend = "cuda";
        CHECK_STATUS(SHERD_E_NOTSUP, sherd_world_create(0, 1, NULL, &params, &world));
        params.backend = NULL; /* asked for by the device */
        CHECK_STATUS(SHERD_E_NOTSUP, sherd_world_create(0, 1, NULL, &params, &world));
        CHECK_ERROR_SAYS("cuda");
        CHECK(world == NULL);
    }
}

static void create_at_a_taken_address_is_refused(void)
{
    const char  *address  = ranks_address();
    sherd_world *world    = NULL;
    int          listener = -1;

    CHECK_OK(sherdi_net_listen(address, &listener, NULL));
    CHECK_STATUS(SHERD_E_INVAL, sherd_world_create(0, 2, address, NULL, &world));
    CHECK_ERROR_SAYS("listen");
    sherdi_net_close(&listener); /* the file stays: a leftover, which is replaced */
    CHECK_OK(sherdi_net_listen(address, &listener, NULL));
    sherdi_net_close(&listener);
}

static const test_case CASES[] = {
    CASE(environment_without_launcher_is_one_rank),
    CASE(environment_of_slurm_shell_is_not_believed),
    CASE(environment_that_is_explicit_wins),
    CASE(environment_with_a_rank_outside_its_world_is_refused),
    CASE(environment_that_is_incomplete_is_refused),
    CASE(environment_that_is_no_number_is_refused),
    CASE(environment_that_contradicts_mpirun_is_refused),
    CASE(environment_with_an_unknown_backend_is_refused),
    CASE(launcher_torchrun_wins_over_srun),
    CASE(launcher_mpiexec_is_understood),
    CASE(launcher_srun_is_understood),
    CASE(launcher_is_told_by_name),
    CASE(environment_of_mpiexec_is_believed_before_the_srun_of_its_daemons),
    CASE(meeting_with_other_world_size_is_refused),
    CASE(meeting_with_two_of_one_rank_is_refused),
    CASE(meeting_names_the_rank_that_never_came),
    CASE(meeting_names_the_rank_that_died_in_it),
    CASE(meeting_with_another_backend_is_refused),
    CASE(meeting_drops_strangers),
    CASE(meeting_over_tcp_works),
    CASE(meeting_of_two_hosts_is_refused_by_shm),
    CASE(create_refuses_bad_arguments),
    CASE(create_of_one_rank_needs_no_meeting),
    CASE(create_takes_the_struct_of_an_older_program),
    CASE(create_opens_the_backend_that_is_asked_for),
    CASE(create_at_a_taken_address_is_refused),
};

static const rank_part PARTS[] = {
    PART(part_meets),
    PART(part_finds_other_world_size),
    PART(part_finds_other_of_its_rank),
    PART(part_misses_rank_2),
    PART(part_misses_rank_0),
    PART(part_shows_card_and_ends),
    PART(part_loses_rank_1),
    PART(part_meets_after_strangers),
    PART(part_is_on_another_host),
    PART(part_asks_for_another_backend),
};

RANKS_MAIN(CASES, PARTS)
