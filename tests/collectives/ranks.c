#include "tests/collectives/ranks.h"

#include "collectives/net.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define RANKS_MAX     16
#define GUARD_SECONDS 60
/* Where the processes of all ranks take turns on a device: each collective waits for turns of some
 * milliseconds. */
#define GUARD_SECONDS_ON_DEVICES 240

/* The folder of the notes of the ranks that were started last. */
#define NOTES_VARIABLE "SHERD_TEST_NOTES"

extern char **environ;

static const char *const LAUNCHER_PREFIXES[] = {"SHERD_",        "OMPI_", "PMIX_",       "SLURM_",
                                                "TORCHELASTIC_", "RANK=", "WORLD_SIZE=", "LOCAL_",
                                                "MASTER_",       "PMI_",  "MPI_LOCAL"};

/* No launcher's mark: what lets root run mpirun, and what a whole run is started with. */
static int is_kept(const char *entry)
{
    static const char *const KEPT[] = {"OMPI_ALLOW",      "SHERD_LOG",      "SHERD_BACKEND",
                                       "SHERD_EMULATOR_", "SHERD_NCCL_",    "SHERD_FAKE_",
                                       "SHERD_TEST_LONG", "SHERD_CPU_BIND", NOTES_VARIABLE};

    for (size_t i = 0; i < sizeof(KEPT) / sizeof(KEPT[0]); i++) {
        if (strncmp(entry, KEPT[i], strlen(KEPT[i])) == 0) {
            return 1;
        }
    }
    return 0;
}

void ranks_clear_environment(void)
{
    char name[128];

    for (char **entry = environ; *entry != NULL;) {
        int is_cleared = 0;

        for (size_t i = 0; i < sizeof(LAUNCHER_PREFIXES) / sizeof(LAUNCHER_PREFIXES[0]); i++) {
            const char *prefix = LAUNCHER_PREFIXES[i];

            if (strncmp(*entry, prefix, strlen(prefix)) == 0 && !is_kept(*entry)) {
                (void)snprintf(name, sizeof(name), "%.*s", (int)strcspn(*entry, "="), *entry);
                is_cleared = unsetenv(name) == 0;
                break;
            }
        }
        entry = is_cleared ? environ : entry + 1;
    }
}

pid_t ranks_start(const rank_start *start)
{
    pid_t child;

    (void)fflush(NULL);
    child = fork();
    if (child != 0) {
        return child;
    }
    ranks_clear_environment();
    for (int i = 0; start->environment[i] != NULL; i++) {
        (void)putenv((char *)(uintptr_t)start->environment[i]);
    }
    (void)execl("/proc/self/exe", "rank", "--part", start->part, (char *)NULL);
    _exit(127);
}

/* ---------------------------------------------------------------- notes -- */

static void notes_begin(void)
{
    static int number;
    char       folder[256];

    (void)snprintf(folder, sizeof(folder), "%s/notes-%d", test_scratch(), number++);
    CHECK_INT(0, mkdir(folder, 0700));
    CHECK_INT(0, setenv(NOTES_VARIABLE, folder, 1));
}

static void note_path(const char *name, char *path, size_t len_bytes)
{
    const char *folder = getenv(NOTES_VARIABLE);

    CHECK(folder != NULL);
    (void)snprintf(path, len_bytes, "%s/%s", folder, name);
}

void ranks_note_leave(const char *name)
{
    char  path[512];
    FILE *file;

    note_path(name, path, sizeof(path));
    file = fopen(path, "w");
    CHECK(file != NULL);
    (void)fclose(file);
}

int ranks_note_is_there(const char *name)
{
    char path[512];

    note_path(name, path, sizeof(path));
    return access(path, F_OK) == 0;
}

void ranks_note_wait(const char *name)
{
    while (!ranks_note_is_there(name)) {
        (void)poll(NULL, 0, 1);
    }
}

/* ----------------------------------------------------------------- ends -- */

static int end_of(int raw)
{
    return WIFSIGNALED(raw) ? -WTERMSIG(raw) : WEXITSTATUS(raw);
}

static void on_alarm(int signal_number)
{
    (void)signal_number; /* interrupts waitpid */
}

void ranks_run(const rank_start *starts, int count)
{
    pid_t                  children[RANKS_MAX];
    int                    ends[RANKS_MAX];
    int                    is_late = 0;
    const struct sigaction guard   = {.sa_handler = on_alarm};

    CHECK(count <= RANKS_MAX);
    notes_begin();
    for (int i = 0; i < count; i++) {
        children[i] = ranks_start(&starts[i]);
        CHECK(children[i] > 0);
    }
    (void)sigaction(SIGALRM, &guard, NULL);
    (void)alarm(getenv("SHERD_BACKEND") == NULL ? GUARD_SECONDS : GUARD_SECONDS_ON_DEVICES);
    for (int i = 0; i < count; i++) {
        int raw = 0;

        while (waitpid(children[i], &raw, 0) < 0) {
            is_late = 1;
            for (int late = i; late < count; late++) {
                (void)kill(children[late], SIGKILL);
            }
        }
        ends[i] = end_of(raw);
    }
    (void)alarm(0);
    CHECK(!is_late);
    for (int i = 0; i < count; i++) {
        if (ends[i] != starts[i].ends) {
            test_fail(__FILE__, __LINE__, "rank %d of %d in %s ended with %d, not %d", i, count,
                      starts[i].part, ends[i], starts[i].ends);
        }
    }
}

const char *ranks_address(void)
{
    static char address[160];
    static int  number;

    (void)snprintf(address, sizeof(address), "unix://%s/meet-%d", test_scratch(), number++);
    return address;
}

void ranks_run_part(int world_size, const char *part, int killed)
{
    rank_start starts[RANKS_MAX];
    char       text[RANKS_MAX][2][64];
    char       meeting[200];

    memset(starts, 0, sizeof(starts));
    (void)snprintf(meeting, sizeof(meeting), "SHERD_RENDEZVOUS=%s", ranks_address());
    for (int r = 0; r < world_size; r++) {
        (void)snprintf(text[r][0], sizeof(text[r][0]), "SHERD_RANK=%d", r);
        (void)snprintf(text[r][1], sizeof(text[r][1]), "SHERD_WORLD_SIZE=%d", world_size);
        starts[r] = (rank_start){.part        = part,
                                 .environment = {text[r][0], text[r][1], meeting},
                                 .ends        = r == killed ? RANK_IS_KILLED : RANK_PASSES};
    }
    ranks_run(starts, world_size);
}

/* -------------------------------------------------------------- mpirun -- */

/* A rank that passed leaves a file there: see ranks_main. */
#define RESULTS_VARIABLE "SHERD_TEST_RESULTS"

static void result_path(const char *folder, int rank, char *path, size_t len_bytes)
{
    (void)snprintf(path, len_bytes, "%s.rank%d", folder, rank);
}

static void result_leave(void)
{
    const char *folder = getenv(RESULTS_VARIABLE);
    char        path[512];
    FILE       *file;

    if (folder != NULL) {
        result_path(folder, ranks_variable("OMPI_COMM_WORLD_RANK"), path, sizeof(path));
        file = fopen(path, "w");
        if (file != NULL) {
            (void)fclose(file);
        }
    }
}

void ranks_need_mpirun(void)
{
    if (system("command -v mpirun >/dev/null 2>&1") != 0) {
        test_skip("no mpirun on this machine");
    }
}

void ranks_run_mpi(int world_size, const char *part, int killed)
{
    static int number;
    char       results[256];
    char       path[512];
    char       self[512];
    char       count[16];
    ssize_t    len = readlink("/proc/self/exe", self, sizeof(self) - 1);
    pid_t      child;
    int        raw;

    CHECK(len > 0);
    self[len] = '\0';
    (void)snprintf(results, sizeof(results), "%s/mpi-%d", test_scratch(), number++);
    (void)snprintf(count, sizeof(count), "%d", world_size);
    (void)fflush(NULL);
    child = fork();
    if (child == 0) {
        ranks_clear_environment();
        (void)setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
        (void)setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
        (void)setenv(RESULTS_VARIABLE, results, 1);
        (void)execlp("timeout", "timeout", "-k", "2", "60", "mpirun", "--oversubscribe",
                     "--enable-recovery", "-n", count, self, "--part", part, (char *)NULL);
        _exit(127);
    }
    CHECK(child > 0);
    CHECK(waitpid(child, &raw, 0) == child);
    for (int r = 0; r < world_size; r++) {
        result_path(results, r, path, sizeof(path));
        if ((access(path, F_OK) == 0) != (r != killed)) {
            test_fail(__FILE__, __LINE__, "rank %d of %d in %s under mpirun %s", r, world_size,
                      part, r != killed ? "did not pass" : "passed");
        }
    }
}

int ranks_port(void)
{
    int listener = -1;
    int port;

    CHECK_OK(sherdi_net_listen("tcp://127.0.0.1:0", &listener, NULL));
    port = sherdi_net_port(listener);
    sherdi_net_close(&listener);
    return port;
}

int ranks_variable(const char *name)
{
    const char *text = getenv(name);

    if (text == NULL) {
        test_fail(__FILE__, __LINE__, "%s is not set", name);
    }
    return (int)strtol(text, NULL, 10);
}

int ranks_main(int argc, char **argv, const test_case *cases, size_t num_cases,
               const rank_part *parts, size_t num_parts)
{
    if (argc < 3 || strcmp(argv[1], "--part") != 0) {
        ranks_clear_environment();
        return test_main(argc, argv, cases, num_cases);
    }
    for (size_t i = 0; i < num_parts; i++) {
        if (strcmp(parts[i].name, argv[2]) == 0) {
            parts[i].run();
            result_leave();
            return 0;
        }
    }
    (void)fprintf(stderr, "no part %s\n", argv[2]);
    return 2;
}
