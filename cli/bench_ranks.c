/* The ranks of `sherd bench`: those of the launcher, or processes of its own that meet at a socket
 * in a scratch folder. The processes are forked before any thread starts and before a device is
 * used. They wait at a pipe for the name of the folder; if the first process ends, the pipe ends,
 * and so do they. */
#include "cli/bench.h"
#include "cli/cli.h"
#include "cli/scratch.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* Of a socket: sun_path, with its end. */
#define SOCKET_PATH_BYTES 108

typedef struct rank_process {
    pid_t pid;
    int   notify; /* write end of this process's pipe */
} rank_process;

typedef struct rank_job {
    int                       count;
    const sherd_world_params *params;
    bench_rank_fn             run;
    void                     *ctx;
    rank_process              others[BENCH_MOST_RANKS]; /* [count - 1]; rank 1 first */
    int                       num_others;
} rank_job;

/* --------------------------------------------------------------- choosing -- */

int bench_devices_count(const char *backend)
{
    pid_t pid = fork();
    int   status;

    if (pid == 0) {
        int count = sherd_device_count(backend);

        _exit(count < BENCH_MOST_RANKS ? count : BENCH_MOST_RANKS);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status)) {
        return 0;
    }
    return WEXITSTATUS(status);
}

int bench_ranks_default(const char *backend)
{
    cpu_set_t cpus;
    int       devices = strcmp(backend, "cpu") == 0 ? 0 : bench_devices_count(backend);

    if (devices > 0) {
        return devices;
    }
    return sched_getaffinity(0, sizeof(cpus), &cpus) == 0 && CPU_COUNT(&cpus) < 2 ? 1 : 2;
}

/* --------------------------------------------------------------- processes -- */

/* Reads the whole name of the folder. Returns 0 if the first process ended before it sent one. */
static int name_read(int from, char name[SCRATCH_PATH_BYTES])
{
    size_t len = 0;

    while (len < SCRATCH_PATH_BYTES) {
        ssize_t got = read(from, name + len, SCRATCH_PATH_BYTES - len);

        if (got <= 0 && !(got < 0 && errno == EINTR)) {
            return 0;
        }
        len += got > 0 ? (size_t)got : 0;
    }
    return 1;
}

static int world_run(const rank_job *job, int rank, const char *folder)
{
    char         address[SCRATCH_PATH_BYTES + 32];
    sherd_world *world;
    int          failed;

    (void)snprintf(address, sizeof(address), "unix://%s/meeting", folder);
    if (sherd_world_create(rank, job->count, address, job->params, &world) != SHERD_OK) {
        return rank == 0 ? cli_fail() : 1;
    }
    if (rank == 0) {
        scratch_remove(NULL); /* they have met, so the socket is not needed any more */
    }
    failed = job->run(world, job->ctx);
    sherd_world_destroy(world);
    return failed;
}

static void other_main(const rank_job *job, int rank, int from, pid_t parent)
{
    char folder[SCRATCH_PATH_BYTES];

    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent || !name_read(from, folder)) {
        _exit(1);
    }
    (void)close(from);
    _exit(world_run(job, rank, folder));
}

static int other_start(rank_job *job)
{
    rank_process *other  = &job->others[job->num_others];
    pid_t         parent = getpid();
    int           ends[2];

    if (pipe(ends) != 0) {
        return -1;
    }
    other->notify = ends[1];
    other->pid    = fork();
    if (other->pid == 0) {
        for (int i = 0; i <= job->num_others; i++) { /* otherwise its own pipe would never end */
            (void)close(job->others[i].notify);
        }
        other_main(job, job->num_others + 1, ends[0], parent);
    }
    (void)close(ends[0]);
    if (other->pid < 0) {
        (void)close(ends[1]);
        return -1;
    }
    job->num_others++;
    return 0;
}

static void others_notify(const rank_job *job, const char name[SCRATCH_PATH_BYTES])
{
    for (int i = 0; i < job->num_others; i++) {
        ssize_t written = write(job->others[i].notify, name, SCRATCH_PATH_BYTES);

        (void)written; /* a process that has ended is noticed at the meeting, or by waitpid */
    }
}

/* Waits for the other processes. Returns 1 if one of them failed. If this process failed, they may
 * wait for it, so they are ended. */
static int others_wait(const rank_job *job, int is_failed)
{
    int failed = 0;

    for (int i = 0; i < job->num_others; i++) {
        int   status = 0;
        pid_t pid;

        (void)close(job->others[i].notify);
        if (is_failed) {
            (void)kill(job->others[i].pid, SIGTERM);
        }
        do {
            pid = waitpid(job->others[i].pid, &status, 0);
        } while (pid < 0 && errno == EINTR);
        if (pid > 0 && WIFSIGNALED(status) && WTERMSIG(status) != SIGTERM) {
            (void)fprintf(stderr, "sherd: rank %d was ended by signal %d (%s)\n", i + 1,
                          WTERMSIG(status), strsignal(WTERMSIG(status)));
        }
        failed |= pid < 0 || status != 0;
    }
    return failed;
}

/* Runs this process as rank 0, after the others have started. */
static int first_run(const rank_job *job)
{
    const char    *temporary = getenv("TMPDIR");
    scratch_folder folder;

    if (temporary == NULL || temporary[0] == '\0') {
        temporary = "/tmp";
    }
    if (scratch_make(NULL, temporary, 0, &folder) != 0) {
        (void)fprintf(stderr, "sherd: %s\n", folder.why);
        return 1;
    }
    if (strlen(folder.path) + sizeof("/meeting") > SOCKET_PATH_BYTES) {
        (void)fprintf(stderr, "sherd: %s is too long a name for a socket; TMPDIR names another\n",
                      folder.path);
        scratch_remove(NULL);
        return 1;
    }
    others_notify(job, folder.path);
    return world_run(job, 0, folder.path);
}

static int own_run(rank_job *job)
{
    int failed = 1;

    (void)fflush(NULL); /* otherwise each process would print the contents of the buffers */
    (void)signal(SIGPIPE, SIG_IGN);
    for (int r = 1; r < job->count; r++) {
        if (other_start(job) != 0) {
            (void)fprintf(stderr, "sherd: rank %d cannot be started: %s\n", r, strerror(errno));
            (void)others_wait(job, 1);
            return 1;
        }
    }
    if (scratch_guard_begin() != 0) {
        (void)fprintf(stderr, "sherd: no thread for the signals: %s\n", strerror(errno));
    } else {
        failed = first_run(job);
        scratch_remove(NULL);
        scratch_guard_end();
    }
    return others_wait(job, failed) != 0 && failed == 0 ? 1 : failed;
}

static int launched_run(const rank_job *job)
{
    sherd_world *world;
    int          failed;

    if (scratch_guard_begin() != 0) {
        (void)fprintf(stderr, "sherd: no thread for the signals: %s\n", strerror(errno));
        return 1;
    }
    if (sherd_world_from_env(job->params, &world) != SHERD_OK) {
        failed = cli_fail();
    } else {
        failed = job->run(world, job->ctx);
        sherd_world_destroy(world);
    }
    scratch_guard_end();
    return failed;
}

int bench_ranks_run(int count, const sherd_world_params *params, bench_rank_fn run, void *ctx)
{
    rank_job job = {.count = count, .params = params, .run = run, .ctx = ctx};

    return sherd_launcher() != NULL ? launched_run(&job) : own_run(&job);
}
