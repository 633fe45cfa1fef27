/* Real ranks of bench-memory as the parent sees them: processes that wait at marks while /proc and
 * their control group are read, and are sampled on the way from one to the next. See memory.h.
 *
 * The memory of a row is the sum of the proportional set sizes: a page that several ranks map (the
 * transport's shared memory) is counted once. One thread does it all, so that the parent can fork
 * at any time. */
#include "bench/memory.h"

#include "models/clock.h"
#include "models/process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SAMPLE_MS 20
/* Samples take at most this share of the time; walking page tables is work. */
#define SAMPLE_SHARE 5
/* From one mark to the next. */
#define MARK_S 900.0

static const char *const MARK_NAMES[MEMORY_MARKS] = {"start", "seal", "fill", "steps"};

typedef struct rank_child {
    pid_t          pid;    /* 0: none, or gone and waited for */
    int            socket; /* -1: closed */
    memory_message message;
    int            is_there; /* at the mark that is waited for */
} rank_child;

typedef struct ranks_run {
    const memory_ranks_params *params;
    memory_ranks              *out;
    rank_child                 children[MEMORY_MOST_RANKS];
    char                       group[256]; /* folder of the control group; "": none */
    int                        group_version;
    double                     next_sample_s;
    char                      *why;
    size_t                     why_bytes;
} ranks_run;

static volatile sig_atomic_t caught_signal;

static void signal_note(int number)
{
    caught_signal = number;
}

void memory_signals_catch(void)
{
    struct sigaction action = {.sa_handler = signal_note}; /* no SA_RESTART: poll shall return */

    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGTERM, &action, NULL);
    (void)sigaction(SIGHUP, &action, NULL);
}

int memory_signal(void)
{
    return caught_signal;
}

/* --------------------------------------------------------- the control group -- */

static int group_write(const ranks_run *run, const char *file, const char *text)
{
    char path[320];
    int  fd;
    int  is_written;

    (void)snprintf(path, sizeof(path), "%s/%s", run->group, file);
    fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) {
        return -1;
    }
    is_written = write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    (void)close(fd);
    return is_written ? 0 : -1;
}

/* The number after `key` in a file of the group, or its only one when key is "". */
static size_t group_read(const ranks_run *run, const char *file, const char *key)
{
    char               path[320];
    char               line[256];
    unsigned long long value = 0;
    FILE              *from;

    (void)snprintf(path, sizeof(path), "%s/%s", run->group, file);
    from = fopen(path, "re");
    while (from != NULL && fgets(line, sizeof(line), from) != NULL) {
        size_t len = strlen(key);

        if (strncmp(line, key, len) == 0 && (len == 0 || line[len] == ' ')) {
            value = strtoull(line + len, NULL, 10);
            break;
        }
    }
    if (from != NULL) {
        (void)fclose(from);
    }
    return (size_t)value;
}

/* One of our own, in the folder of either version; none is fine. */
static void group_make(ranks_run *run)
{
    static const char *const GROUPS[] = {"/sys/fs/cgroup/memory", "/sys/fs/cgroup"};
    static const char *const USAGES[] = {"memory.usage_in_bytes", "memory.current"};

    for (int i = 0; i < 2; i++) {
        char path[320];

        (void)snprintf(run->group, sizeof(run->group), "%s/sherd-memory-%d", GROUPS[i],
                       (int)getpid());
        if (mkdir(run->group, 0700) != 0) {
            continue;
        }
        (void)snprintf(path, sizeof(path), "%s/%s", run->group, USAGES[i]);
        if (access(path, R_OK) == 0) {
            run->group_version  = i + 1;
            run->out->has_group = 1;
            return;
        }
        (void)rmdir(run->group);
    }
    run->group[0] = '\0';
}

static void group_remove(ranks_run *run)
{
    for (int i = 0; run->group[0] != '\0' && rmdir(run->group) != 0 && errno == EBUSY && i < 200;
         i++) {
        struct timespec nap = {.tv_nsec = 10000000}; /* the dead are leaving it */

        (void)nanosleep(&nap, NULL);
    }
    run->group[0] = '\0';
}

/* Pages of processes and shared memory. */
static size_t group_resting(const ranks_run *run)
{
    if (run->group_version == 1) {
        return group_read(run, "memory.stat", "total_rss") +
               group_read(run, "memory.stat", "total_shmem");
    }
    return group_read(run, "memory.stat", "anon") + group_read(run, "memory.stat", "shmem");
}

static void group_look(ranks_run *run, memory_mark mark)
{
    if (run->group[0] == '\0') {
        return;
    }
    if (mark == MEMORY_PLATFORM) {
        run->out->group.platform = group_resting(run);
        /* The peak shall be that of what comes; version 2 before Linux 6.12 cannot. */
        (void)group_write(
            run, run->group_version == 1 ? "memory.max_usage_in_bytes" : "memory.peak", "0");
    }
    if (mark == MEMORY_STEPPED) {
        run->out->group.resting = group_resting(run);
        run->out->group.peak    = group_read(
               run, run->group_version == 1 ? "memory.max_usage_in_bytes" : "memory.peak", "");
    }
}

/* ------------------------------------------------------------------ looking -- */

static void proc_add(pid_t pid, const char *file, const char *const *keys, size_t *const *sums,
                     size_t count)
{
    char path[64];

    (void)snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, file);
    process_lines_add(path, keys, sums, count);
}

static size_t sum_pss(const ranks_run *run)
{
    size_t sum = 0;

    for (int r = 0; r < run->params->world_size; r++) {
        proc_add(run->children[r].pid, "smaps_rollup", (const char *const[]){"Pss"},
                 (size_t *const[]){&sum}, 1);
    }
    return sum;
}

static void seen_take(const ranks_run *run, memory_seen *out)
{
    int num_devices = run->params->num_devices;

    *out = (memory_seen){0};
    for (int r = 0; r < run->params->world_size; r++) {
        static const char *const KEYS[] = {"Pss", "Pss_Anon", "Pss_Shmem", "Rss", "Locked"};

        proc_add(run->children[r].pid, "smaps_rollup", KEYS,
                 (size_t *const[]){&out->pss, &out->anonymous, &out->shared, &out->resident,
                                   &out->locked},
                 5);
        proc_add(run->children[r].pid, "status", (const char *const[]){"VmPTE"},
                 (size_t *const[]){&out->page_tables}, 1);
        if (r < num_devices) { /* ranks after these share a device with one of them */
            out->device_free += run->children[r].message.device_free_bytes;
        }
    }
}

static void peak_sample(ranks_run *run)
{
    double start = clock_now_s();
    double taken;
    size_t sum = sum_pss(run);

    taken = clock_now_s() - start;
    if (sum > run->out->peak_pss) {
        run->out->peak_pss = sum;
    }
    run->out->samples++;
    run->next_sample_s =
        start + taken +
        (taken * SAMPLE_SHARE > SAMPLE_MS * 1e-3 ? taken * SAMPLE_SHARE : SAMPLE_MS * 1e-3);
}

/* ----------------------------------------------------------------- children -- */

_Noreturn static void child_exec(const ranks_run *run, int rank)
{
    const memory_ranks_params *p = run->params;
    char                       numbers[3][16];
    char                       rendezvous[512];
    const char *args[] = {"bench-memory", "--part",       numbers[0], numbers[1], numbers[2],
                          rendezvous,     p->config_path, p->model,   p->backend, NULL};

    (void)snprintf(numbers[0], sizeof(numbers[0]), "%d", rank);
    (void)snprintf(numbers[1], sizeof(numbers[1]), "%d", p->world_size);
    (void)snprintf(numbers[2], sizeof(numbers[2]), "%d",
                   p->num_devices > 0 ? rank % p->num_devices : -1);
    (void)snprintf(rendezvous, sizeof(rendezvous), "unix://%s/meeting", p->folder);
    (void)execv("/proc/self/exe", (char *const *)(uintptr_t)args);
    perror("bench-memory: starting a rank");
    _exit(1);
}

static int child_start(ranks_run *run, int rank)
{
    rank_child *child = &run->children[rank];
    int         pair[2];

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
        (void)snprintf(run->why, run->why_bytes, "no socket for rank %d: %s", rank,
                       strerror(errno));
        return -1;
    }
    child->pid = fork();
    if (child->pid == 0) {
        char pid[32];

        (void)snprintf(pid, sizeof(pid), "%d", (int)getpid());
        (void)dup2(pair[1], STDOUT_FILENO);
        if (run->group[0] != '\0' && group_write(run, "cgroup.procs", pid) != 0) {
            perror("bench-memory: joining the control group");
            _exit(1);
        }
        child_exec(run, rank);
    }
    (void)close(pair[1]);
    child->socket = pair[0];
    if (child->pid < 0) {
        child->pid = 0;
        (void)snprintf(run->why, run->why_bytes, "rank %d does not start: %s", rank,
                       strerror(errno));
        return -1;
    }
    return 0;
}

/* Waits for a child; says how it ended unless that was well. */
static int child_end(rank_child *child, int rank, char *why, size_t why_bytes)
{
    int status = 0;

    if (child->pid == 0) {
        return 0;
    }
    while (waitpid(child->pid, &status, 0) < 0 && errno == EINTR) {
    }
    child->pid = 0;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
        return 0;
    }
    (void)snprintf(why, why_bytes, "rank %d ended with %s %d", rank,
                   WIFSIGNALED(status) ? "signal" : "status",
                   WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    return -1;
}

static void children_kill(ranks_run *run)
{
    for (int r = 0; r < run->params->world_size; r++) {
        rank_child *child = &run->children[r];
        char        unused[64];

        if (child->pid > 0) {
            (void)kill(child->pid, SIGKILL);
            (void)child_end(child, r, unused, sizeof(unused));
        }
        if (child->socket >= 0) {
            (void)close(child->socket);
            child->socket = -1;
        }
    }
}

/* A child's answer, or its end. */
static int child_hear(ranks_run *run, int rank, memory_mark mark)
{
    rank_child *child = &run->children[rank];
    ssize_t     got   = recv(child->socket, &child->message, sizeof(child->message), 0);

    if (got < 0 && errno == EINTR) {
        return 0;
    }
    if (got != (ssize_t)sizeof(child->message)) {
        if (child_end(child, rank, run->why, run->why_bytes) == 0) {
            (void)snprintf(run->why, run->why_bytes, "rank %d ended too early", rank);
        }
        return -1;
    }
    if (child->message.mark != mark) {
        (void)snprintf(run->why, run->why_bytes, "rank %d: %.580s", rank, child->message.why);
        return -1;
    }
    child->is_there = 1;
    return 0;
}

static int children_missing(const ranks_run *run)
{
    int missing = 0;

    for (int r = 0; r < run->params->world_size; r++) {
        missing += !run->children[r].is_there;
    }
    return missing;
}

/* Looks at the sockets of those who are on their way, for at most one sample's time. */
static int children_poll(ranks_run *run, memory_mark mark)
{
    struct pollfd polls[MEMORY_MOST_RANKS];
    int           world_size = run->params->world_size;

    for (int r = 0; r < world_size; r++) {
        polls[r] = (struct pollfd){.fd = run->children[r].is_there ? -1 : run->children[r].socket,
                                   .events = POLLIN};
    }
    if (poll(polls, (nfds_t)world_size, SAMPLE_MS) <= 0) {
        return 0;
    }
    for (int r = 0; r < world_size; r++) {
        if (polls[r].revents != 0 && child_hear(run, r, mark) != 0) {
            return -1;
        }
    }
    return 0;
}

/* Until all ranks are at the mark. */
static int mark_await(ranks_run *run, memory_mark mark)
{
    double deadline_s = clock_now_s() + MARK_S;

    for (int r = 0; r < run->params->world_size; r++) {
        run->children[r].is_there = 0;
    }
    while (children_missing(run) > 0) {
        if (memory_signal() != 0 || clock_now_s() > deadline_s) {
            (void)snprintf(run->why, run->why_bytes, "%s in %s",
                           memory_signal() != 0 ? "interrupted" : "no end", MARK_NAMES[mark]);
            return -1;
        }
        if (children_poll(run, mark) != 0) {
            return -1;
        }
        if (mark != MEMORY_PLATFORM && clock_now_s() >= run->next_sample_s) {
            peak_sample(run);
        }
    }
    return 0;
}

static int mark_leave(ranks_run *run)
{
    for (int r = 0; r < run->params->world_size; r++) {
        if (send(run->children[r].socket, "", 1, MSG_NOSIGNAL) != 1) {
            (void)snprintf(run->why, run->why_bytes, "rank %d is gone", r);
            return -1;
        }
    }
    return 0;
}

static int marks_pass(ranks_run *run)
{
    memory_ranks *out = run->out;

    for (memory_mark mark = MEMORY_PLATFORM; mark < MEMORY_MARKS; mark++) {
        if (mark_await(run, mark) != 0) {
            return -1;
        }
        seen_take(run, &out->seen[mark]);
        group_look(run, mark);
        if (out->seen[mark].pss > out->peak_pss) {
            out->peak_pss = out->seen[mark].pss;
        }
        if (mark_leave(run) != 0) {
            return -1;
        }
    }
    for (int r = 0; r < run->params->world_size; r++) {
        out->reports[r] = run->children[r].message.memory;
        if (child_end(&run->children[r], r, run->why, run->why_bytes) != 0) {
            return -1;
        }
    }
    return 0;
}

int memory_ranks_run(const memory_ranks_params *params, memory_ranks *out, char *why,
                     size_t why_bytes)
{
    ranks_run run    = {.params = params, .out = out, .why = why, .why_bytes = why_bytes};
    double    start  = clock_now_s();
    int       failed = 0;

    *out = (memory_ranks){0};
    for (int r = 0; r < MEMORY_MOST_RANKS; r++) {
        run.children[r].socket = -1;
    }
    group_make(&run);
    for (int r = 0; r < params->world_size && !failed; r++) {
        failed = child_start(&run, r) != 0;
    }
    failed = failed || marks_pass(&run) != 0;
    children_kill(&run);
    group_remove(&run);
    out->seconds = clock_now_s() - start;
    return failed ? -1 : 0;
}
