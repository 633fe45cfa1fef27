/* sherd launch: waits for the children, passes signals on to them, and ends them after one has
 * failed. Signals are read from a file descriptor, so all of this is plain code.
 *
 * A rank may be a script that starts the trainer. When the script ends first, the trainer becomes a
 * child of this process (a "subreaper"), and is signalled and ended as a rank is. A rank that lives
 * passes signals on itself, or does not. */
#include "cli/launch.h"
#include "models/clock.h"

#include <dirent.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

/* Seconds from SIGTERM to SIGKILL. */
#define KILL_AFTER_S 10
/* The exit status with which ssh says that the connection failed. */
#define STATUS_NO_CONNECTION 255

const int    LAUNCH_SIGNALS[]   = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};
const size_t LAUNCH_NUM_SIGNALS = sizeof(LAUNCH_SIGNALS) / sizeof(LAUNCH_SIGNALS[0]);

static launch_child *child_find(launch *job, pid_t pid)
{
    for (int i = 0; i < job->num_children; i++) {
        if (job->children[i].pid == pid) {
            return &job->children[i];
        }
    }
    return NULL;
}

/* ---- signals ---- */

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
static void orphans_signal(launch *job, int number)
{
    DIR           *processes = opendir("/proc");
    struct dirent *entry;

    while (processes != NULL && (entry = readdir(processes)) != NULL) {
        pid_t pid = (pid_t)atoi(entry->d_name);

        if (pid > 0 && child_find(job, pid) == NULL && parent_of(entry->d_name) == getpid()) {
            (void)kill(pid, number);
        }
    }
    if (processes != NULL) {
        (void)closedir(processes);
    }
}

/* A signal to ssh would end ssh alone: its part gets the number. */
static void child_signal(const launch_child *child, int number)
{
    if (child->control >= 0) {
        (void)dprintf(child->control, "%d\n", number);
    } else {
        (void)kill(child->pid, number);
    }
}

void launch_signal(launch *job, int number)
{
    for (int i = 0; i < job->num_children; i++) {
        if (job->children[i].pid > 0) {
            child_signal(&job->children[i], number);
        }
    }
    orphans_signal(job, number);
}

/* Takes the signals that have come. */
static void signals_take(launch *job, int fd)
{
    struct signalfd_siginfo got;

    while (read(fd, &got, sizeof(got)) == (ssize_t)sizeof(got)) {
        if (got.ssi_signo == SIGCHLD) {
            continue;
        }
        if (job->elastic.span != NULL && (got.ssi_code != SI_KERNEL || got.ssi_signo == SIGINT)) {
            launch_elastic_ask(job, (int)got.ssi_signo);
        }
        if (got.ssi_signo == SIGTTIN || got.ssi_signo == SIGTTOU) {
            continue;
        }
        job->sent      = (int)got.ssi_signo;
        job->is_passed = got.ssi_code != SI_KERNEL;
        if (job->is_passed || job->children[0].control >= 0) { /* a part is not at this terminal */
            launch_signal(job, job->sent);
        }
    }
}

/* Takes the orders of the launcher: numbers of signals. When they end, so does the job: the
 * connection is lost, or the launcher. */
static void orders_take(launch *job)
{
    char    text[64];
    ssize_t len = read(job->orders, text, sizeof(text) - 1);

    if (len <= 0) {
        job->orders     = -1;
        job->deadline_s = (int64_t)clock_now_s(); /* SIGTERM now, SIGKILL later */
        return;
    }
    text[len] = '\0';
    for (char *at = text, *end; *at != '\0'; at = end) {
        int number = (int)strtol(at, &end, 10);

        if (end == at) {
            return;
        }
        job->sent      = number;
        job->is_passed = 1;
        launch_signal(job, number);
        end += strspn(end, "\n");
    }
}

/* ---- ends ---- */

static void child_ended(launch *job, launch_child *child, int ended)
{
    int status      = WIFSIGNALED(ended) ? 128 + WTERMSIG(ended) : WEXITSTATUS(ended);
    int is_expected = WIFSIGNALED(ended) && WTERMSIG(ended) == job->sent;
    int was_good    = job->status == 0;

    child->pid = 0;
    job->running--;
    job->has_orphan |= is_expected && job->is_passed;
    if (child->control >= 0) {
        (void)close(child->control);
    }
    if (job->elastic.span != NULL && launch_elastic_ended(job, child, status)) {
        return;
    }
    if (status == 0) {
        return;
    }
    launch_output_drain(job); /* notes of its ranks */
    if (child->rank >= 0) {
        char host[128] = "";

        if (job->output.is_part) {
            (void)gethostname(host, sizeof(host) - 1);
        }
        launch_rank_failed(job, child->rank, host, status);
    } else if (job->status == 0) { /* its ranks said nothing of themselves */
        job->status = status;
        (void)fprintf(stderr, "sherd: %s%s ended with status %d%s\n",
                      child->host < 0 ? "the program that started the ranks" : "the part on ",
                      child->host < 0 ? "" : job->hosts[child->host].name, status,
                      status == STATUS_NO_CONNECTION ? ": there is no connection to the host" : "");
    }
    if (was_good && !is_expected) { /* else all have been asked to end, without a limit of time */
        job->deadline_s = (int64_t)clock_now_s() + job->grace_s;
    }
}

/* Returns whether a child remains: a rank, or a child of an ended rank. */
static int children_collect(launch *job)
{
    pid_t pid;
    int   ended;

    while ((pid = waitpid(-1, &ended, WNOHANG)) > 0) {
        launch_child *child = child_find(job, pid);

        if (child != NULL) {
            child_ended(job, child, ended);
        }
    }
    if (job->has_orphan) {
        orphans_signal(job, job->sent);
        job->has_orphan = 0;
    }
    if (job->elastic.span != NULL) {
        launch_elastic_balance(job);
    }
    return pid == 0 || job->running > 0;
}

/* Ends the children that are still running when their time is over. */
static void children_press(launch *job)
{
    if (job->deadline_s == 0 || (int64_t)clock_now_s() < job->deadline_s) {
        return;
    }
    job->last_sent  = job->last_sent == 0 ? SIGTERM : SIGKILL;
    job->deadline_s = job->last_sent == SIGTERM ? (int64_t)clock_now_s() + KILL_AFTER_S : 0;
    launch_signal(job, job->last_sent);
}

/* ---- waiting ---- */

/* The note of a part starts the clock, as the end of a rank here does. */
static void notes_watch(launch *job, int was_good)
{
    if (was_good && job->status != 0 && job->deadline_s == 0) {
        job->deadline_s = (int64_t)clock_now_s() + job->grace_s;
    }
}

/* Waits for something to do, and passes on output. */
static void launch_poll(launch *job, int signal_fd)
{
    struct pollfd fds[2 * LAUNCH_MOST_RANKS + 2];
    nfds_t        count    = 2;
    int           was_good = job->status == 0;

    fds[0] = (struct pollfd){.fd = signal_fd, .events = POLLIN};
    fds[1] = (struct pollfd){.fd = job->orders, .events = POLLIN};
    for (int i = 0; i < job->output.num_streams; i++) {
        fds[count++] = (struct pollfd){.fd = job->output.streams[i].fd, .events = POLLIN};
    }
    if (poll(fds, count, job->deadline_s == 0 ? -1 : 1000) <= 0) {
        return;
    }
    for (int i = 0; i < job->output.num_streams; i++) {
        if (fds[2 + i].revents != 0) {
            (void)launch_output_read(job, &job->output.streams[i]);
        }
    }
    notes_watch(job, was_good);
    if (fds[1].revents != 0) {
        orders_take(job);
    }
    signals_take(job, signal_fd);
}

void launch_wait(launch *job, const sigset_t *signals)
{
    int signal_fd = signalfd(-1, signals, SFD_NONBLOCK | SFD_CLOEXEC);
    int has_child = job->running > 0;

    /* The children of a rank continue after a good end of the rank, and are ended after a bad
     * one. */
    while (job->running > 0 || (has_child && job->status != 0)) {
        launch_poll(job, signal_fd);
        has_child = children_collect(job);
        children_press(job);
    }
    (void)close(signal_fd);
    launch_output_end(job);
}
