/* sherd launch: starts a program as the ranks of one world on this host, without mpirun, srun or
 * torchrun. It waits for signals instead of handling them, so the loop that waits for the ranks is
 * plain code.
 *
 * A rank may be a script that starts the trainer. When the script ends first, the trainer becomes a
 * child of this process (a "subreaper"), and is signalled and ended as a rank is. A rank that lives
 * passes signals on itself, or does not. */
#include "cli/cli.h"
#include "models/clock.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MOST_RANKS   1024
#define MOST_GRACE_S 86400
/* Seconds from SIGTERM to SIGKILL. */
#define KILL_AFTER_S 10
/* Bytes of a socket's path (sun_path), with the final zero. */
#define SOCKET_PATH_BYTES 108
/* The exit status that a shell returns for a program that cannot be run. */
#define STATUS_NO_PROGRAM 127

static const char HELP[] =
    "usage: sherd launch -n N [OPTIONS] [--] PROGRAM [ARGUMENTS]\n\n"
    "Starts N processes of a program on this host and waits for them. In the program,\n"
    "sherd_world_from_env makes them the ranks of one world. If a process fails, the others\n"
    "have some seconds to report it; then they are ended, and so is what they started. SIGINT,\n"
    "SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 are passed on to the processes; where one of them is a\n"
    "script that ends by the signal, also to what it started. Only rank 0 reads the standard\n"
    "input.\n\n"
    "  -n, --ranks N   number of processes, 1 to 1024 (required)\n"
    "  --grace S       seconds from the first failure until the other processes get SIGTERM\n"
    "                  (default 5); those that do not end get SIGKILL 10 seconds later\n\n"
    "Exit status: 0 if all processes end with 0. Otherwise the status of the first process that\n"
    "failed, which is 128 plus the number of the signal if a signal ended it. 127 if the program\n"
    "cannot be run.\n\n"
    "  sherd launch -n 4 ./trainer --steps 100\n"
    "  sherd launch -n 2 python train.py\n\n"
    "On several hosts use mpirun -n N PROGRAM, srun -n N PROGRAM, or torchrun.\n";

typedef struct launch {
    int     ranks, grace_s;
    char  **program;
    char    folder[SOCKET_PATH_BYTES]; /* of the socket where the ranks meet */
    pid_t   pids[MOST_RANKS];          /* 0: this rank has ended */
    int     running;
    int     status;     /* exit status of the first rank that failed; 0: none has */
    int     sent;       /* the last signal that the ranks got; 0: none */
    int     is_passed;  /* from here; else the terminal sent it to all of its processes */
    int     has_orphan; /* a rank ended by a signal that its children did not get */
    int     last_sent;  /* SIGTERM or SIGKILL; 0: neither was sent */
    int64_t deadline_s; /* when the next of them is sent; 0: never */
} launch;

/* ---- the ranks ---- */

static const int PASSED_ON[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};
#define NUM_PASSED_ON (sizeof(PASSED_ON) / sizeof(PASSED_ON[0]))

static void number_set(const char *name, int value)
{
    char text[16];

    (void)snprintf(text, sizeof(text), "%d", value);
    (void)setenv(name, text, 1);
}

/* Runs the program in the child process, and does not return. If it cannot be run, errno is sent
 * through the pipe; otherwise exec closes the pipe. */
static void rank_become(const launch *job, int rank, int pipe_end, pid_t parent,
                        const sigset_t *before)
{
    char address[SOCKET_PATH_BYTES + 16];
    int  error;

    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) { /* the parent has ended in between */
        _exit(1);
    }
    (void)snprintf(address, sizeof(address), "unix://%s/meeting", job->folder);
    number_set("SHERD_RANK", rank);
    number_set("SHERD_WORLD_SIZE", job->ranks);
    (void)setenv("SHERD_RENDEZVOUS", address, 1);
    if (rank > 0) {
        int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);

        (void)dup2(nothing, STDIN_FILENO);
    }
    (void)sigprocmask(SIG_SETMASK, before, NULL);
    (void)execvp(job->program[0], job->program);
    error = errno;
    (void)!write(pipe_end, &error, sizeof(error));
    _exit(STATUS_NO_PROGRAM);
}

static int rank_of(const launch *job, pid_t pid)
{
    for (int r = 0; r < job->ranks; r++) {
        if (job->pids[r] == pid) {
            return r;
        }
    }
    return -1;
}

/* Returns the parent of a process, or -1. */
static pid_t parent_of(const char *process)
{
    char  path[64];
    char  text[512] = "";
    char *behind_name;
    FILE *file;
    int   parent = -1;

    (void)snprintf(path, sizeof(path), "/proc/%.20s/stat", process);
    file = fopen(path, "re");
    if (file == NULL) {
        return -1;
    }
    behind_name = fgets(text, sizeof(text), file) == NULL ? NULL : strrchr(text, ')');
    (void)fclose(file);
    return behind_name != NULL && sscanf(behind_name, ") %*c %d", &parent) == 1 ? (pid_t)parent
                                                                                : -1;
}

/* Sends a signal to the children of ended ranks. */
static void orphans_signal(const launch *job, int number)
{
    DIR           *processes = opendir("/proc");
    struct dirent *entry;

    while (processes != NULL && (entry = readdir(processes)) != NULL) {
        pid_t pid = (pid_t)atoi(entry->d_name);

        if (pid > 0 && rank_of(job, pid) < 0 && parent_of(entry->d_name) == getpid()) {
            (void)kill(pid, number);
        }
    }
    if (processes != NULL) {
        (void)closedir(processes);
    }
}

static void ranks_signal(const launch *job, int number)
{
    for (int r = 0; r < job->ranks; r++) {
        if (job->pids[r] > 0) {
            (void)kill(job->pids[r], number);
        }
    }
    orphans_signal(job, number);
}

/* Starts the ranks. Returns 0, or -1 after it has printed why; the caller then ends those that have
 * started. */
static int ranks_start(launch *job, const sigset_t *before)
{
    pid_t parent = getpid();
    int   ends[2];
    int   error = 0;

    if (pipe2(ends, O_CLOEXEC) != 0) {
        (void)fprintf(stderr, "sherd: no pipe to the ranks: %s\n", strerror(errno));
        return -1;
    }
    for (int r = 0; r < job->ranks && error == 0; r++) {
        job->pids[r] = fork();
        if (job->pids[r] == 0) {
            rank_become(job, r, ends[1], parent, before);
        }
        if (job->pids[r] < 0) {
            error = errno;
            (void)fprintf(stderr, "sherd: rank %d cannot be started: %s\n", r, strerror(error));
        } else {
            job->running++;
        }
    }
    (void)close(ends[1]);
    if (error == 0 && read(ends[0], &error, sizeof(error)) > 0) {
        (void)fprintf(stderr, "sherd: %s cannot be run: %s\n", job->program[0], strerror(error));
    }
    (void)close(ends[0]);
    return error == 0 ? 0 : -1;
}

/* ---- waiting for them ---- */

static void rank_ended(launch *job, int rank, int ended)
{
    int status      = WIFSIGNALED(ended) ? 128 + WTERMSIG(ended) : WEXITSTATUS(ended);
    int is_expected = WIFSIGNALED(ended) && WTERMSIG(ended) == job->sent;

    job->pids[rank] = 0;
    job->running--;
    job->has_orphan |= is_expected && job->is_passed;
    if (status == 0 ||
        job->status != 0) { /* ranks that fail after the first one fail because of it */
        return;
    }
    job->status = status;
    if (!is_expected) { /* else all have been asked to end, without a limit of time */
        job->deadline_s = (int64_t)clock_now_s() + job->grace_s;
    }
    if (WIFSIGNALED(ended)) {
        (void)fprintf(stderr, "sherd: rank %d was ended by signal %d (%s)\n", rank, WTERMSIG(ended),
                      strsignal(WTERMSIG(ended)));
    } else {
        (void)fprintf(stderr, "sherd: rank %d ended with status %d\n", rank, status);
    }
}

/* Returns whether a child remains: a rank, or a child of an ended rank. */
static int ranks_collect(launch *job)
{
    pid_t pid;
    int   ended;

    while ((pid = waitpid(-1, &ended, WNOHANG)) > 0) {
        int rank = rank_of(job, pid);

        if (rank >= 0) {
            rank_ended(job, rank, ended);
        }
    }
    if (job->has_orphan) {
        orphans_signal(job, job->sent);
        job->has_orphan = 0;
    }
    return pid == 0;
}

/* Ends the ranks that are still running when their time is over. */
static void ranks_press(launch *job)
{
    if (job->deadline_s == 0 || (int64_t)clock_now_s() < job->deadline_s) {
        return;
    }
    job->last_sent  = job->last_sent == 0 ? SIGTERM : SIGKILL;
    job->deadline_s = job->last_sent == SIGTERM ? (int64_t)clock_now_s() + KILL_AFTER_S : 0;
    ranks_signal(job, job->last_sent);
}

static void ranks_wait(launch *job, const sigset_t *signals)
{
    int has_child = job->running > 0;

    /* The children of a rank continue after a good end of the rank, and are ended after a bad
     * one. */
    while (job->running > 0 || (has_child && job->status != 0)) {
        struct timespec second = {.tv_sec = 1};
        siginfo_t       got;
        int             number = job->deadline_s == 0 ? sigwaitinfo(signals, &got)
                                                      : sigtimedwait(signals, &got, &second);

        if (number > 0 && number != SIGCHLD) {
            job->sent      = number;
            job->is_passed = got.si_code != SI_KERNEL;
            if (job->is_passed) {
                ranks_signal(job, number);
            }
        }
        has_child = ranks_collect(job);
        ranks_press(job);
    }
}

/* ---- the job ---- */

static int folder_make(launch *job)
{
    const char *parent = getenv("TMPDIR");
    int         len;

    if (parent == NULL || parent[0] == '\0') {
        parent = "/tmp";
    }
    len = snprintf(job->folder, sizeof(job->folder), "%s/sherd-launch-XXXXXX", parent);
    if (len < 0 || (size_t)len + sizeof("/meeting") > sizeof(job->folder)) {
        (void)fprintf(stderr, "sherd: %s is too long a name for a socket; TMPDIR names another\n",
                      parent);
        return -1;
    }
    if (mkdtemp(job->folder) == NULL) {
        (void)fprintf(stderr, "sherd: no folder can be made in %s: %s; TMPDIR names another\n",
                      parent, strerror(errno));
        return -1;
    }
    return 0;
}

/* The ranks remove the socket when they have met. If they have not met, it is still there. */
static void folder_remove(const launch *job)
{
    char path[SOCKET_PATH_BYTES + 16];

    (void)snprintf(path, sizeof(path), "%s/meeting", job->folder);
    (void)unlink(path);
    (void)rmdir(job->folder);
}

static int launch_run(launch *job)
{
    sigset_t signals, before;

    if (folder_make(job) != 0) {
        return 1;
    }
    (void)sigemptyset(&signals);
    (void)sigaddset(&signals, SIGCHLD);
    for (size_t i = 0; i < NUM_PASSED_ON; i++) {
        (void)sigaddset(&signals, PASSED_ON[i]);
    }
    (void)sigprocmask(SIG_BLOCK, &signals, &before);
    (void)prctl(PR_SET_CHILD_SUBREAPER, 1);
    if (ranks_start(job, &before) != 0) {
        ranks_signal(job, SIGKILL);
        job->status = STATUS_NO_PROGRAM;
    }
    ranks_wait(job, &signals);
    folder_remove(job);
    return job->status;
}

int cli_launch(int argc, char **argv)
{
    static const cli_option LIST[] = {
        CLI_NUMBER("ranks", 'n', launch, ranks, 1, MOST_RANKS, "wants 1 to 1024"),
        CLI_NUMBER("grace", 'g', launch, grace_s, 0, MOST_GRACE_S, "wants 0 to 86400 seconds"),
        {0}};
    /* The arguments after the program belong to the program. */
    static const cli_options OPTIONS = {"launch", HELP, LIST, .ends_at_first = 1};
    launch                   job     = {.grace_s = 5};
    int                      status  = cli_options_read(&OPTIONS, argc, argv, &job);

    if (status >= 0) {
        return status;
    }
    if (job.ranks == 0 || optind == argc) {
        return cli_bad("launch", "launch wants %s",
                       job.ranks == 0 ? "-n N, the number of ranks" : "a program");
    }
    job.program = argv + optind;
    return launch_run(&job);
}
