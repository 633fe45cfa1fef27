/* sherd launch: starts children. See launch.h. */
#include "cli/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

static void number_set(const char *name, int value)
{
    char text[16];

    (void)snprintf(text, sizeof(text), "%d", value);
    (void)setenv(name, text, 1);
}

/* Sets the variables of a rank, unless another launcher has. A newcomer has no rank yet. */
static void rank_variables_set(const launch *job, const launch_child *child)
{
    char address[SOCKET_PATH_BYTES + 16];
    int  rank = child->rank;

    if (job->is_wrapped) {
        return;
    }
    (void)unsetenv("SHERD_ELASTIC");
    (void)unsetenv("SHERD_PROCESS");
    if (job->elastic.span != NULL) {
        (void)setenv("SHERD_ELASTIC", job->folder, 1);
        number_set("SHERD_PROCESS", rank);
    }
    (void)snprintf(address, sizeof(address), "unix://%s/meeting", job->folder);
    number_set("SHERD_RANK", rank);
    number_set("SHERD_WORLD_SIZE", job->all_ranks);
    (void)setenv("SHERD_RENDEZVOUS", job->meeting != NULL ? job->meeting : address, 1);
    if (child->is_late) {
        (void)unsetenv("SHERD_RANK");
        (void)unsetenv("SHERD_WORLD_SIZE");
    }
}

/* The pipes of a child: what it prints, what it is ordered, and whether it could be run. The end
 * that the child has comes second in `orders`, else first. */
typedef struct pipes {
    int output[2], errors[2], orders[2], started[2];
} pipes;

static void ends_close(int ends[2])
{
    for (int end = 0; end < 2; end++) {
        if (ends[end] >= 0) {
            (void)close(ends[end]);
            ends[end] = -1;
        }
    }
}

static void pipes_close(pipes *p)
{
    ends_close(p->output);
    ends_close(p->errors);
    ends_close(p->orders);
    ends_close(p->started);
}

/* Opens the pipes that a child has. Returns 0, or -1 after it has printed why. */
static int pipes_open(pipes *p, int has_output, int has_orders)
{
    *p = (pipes){{-1, -1}, {-1, -1}, {-1, -1}, {-1, -1}};
    if (pipe2(p->started, O_CLOEXEC) == 0 &&
        (!has_output || (pipe2(p->output, O_CLOEXEC) == 0 && pipe2(p->errors, O_CLOEXEC) == 0)) &&
        (!has_orders || pipe2(p->orders, O_CLOEXEC) == 0)) {
        return 0;
    }
    (void)fprintf(stderr, "sherd: no pipe to the ranks: %s\n", strerror(errno));
    pipes_close(p);
    return -1;
}

/* Becomes the program in the child process, and does not return. If it cannot be run, errno is sent
 * through the pipe; otherwise exec closes the pipe. */
static void child_become(const pipes *p, char **argv, int has_input, pid_t parent,
                         const sigset_t *before)
{
    int error;

    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) { /* the parent has ended in between */
        _exit(1);
    }
    if (p->orders[0] >= 0) {
        (void)dup2(p->orders[0], STDIN_FILENO);
    } else if (!has_input) {
        (void)dup2(open("/dev/null", O_RDONLY | O_CLOEXEC), STDIN_FILENO);
    }
    if (p->output[1] >= 0) {
        (void)dup2(p->output[1], STDOUT_FILENO);
        (void)dup2(p->errors[1], STDERR_FILENO);
    }
    (void)sigprocmask(SIG_SETMASK, before, NULL);
    (void)execvp(argv[0], argv);
    error = errno;
    (void)!write(p->started[1], &error, sizeof(error));
    _exit(STATUS_NO_PROGRAM);
}

/* Waits until the child has become the program, or could not. */
static int child_check(const pipes *p, char **argv)
{
    int error = 0;

    if (read(p->started[0], &error, sizeof(error)) <= 0) {
        return 0;
    }
    (void)fprintf(stderr, "sherd: %s cannot be run: %s\n", argv[0], strerror(error));
    return -1;
}

/* Returns room for a child: that of one that has ended, in a job that starts others for them. */
static launch_child *child_place(launch *job)
{
    for (int i = 0; job->elastic.span != NULL && i < job->num_children; i++) {
        if (job->children[i].pid == 0) {
            return &job->children[i];
        }
    }
    return &job->children[job->num_children++];
}

/* Starts a child: a rank, or (rank is -1) what starts ranks. */
static int child_start(launch *job, launch_child child, char **argv, int has_orders,
                       const sigset_t *before)
{
    int   has_output = job->is_prefixed;
    int   has_input  = child.rank <= 0 && job->orders < 0;
    pid_t parent     = getpid();
    int   status;
    pipes p;

    if (pipes_open(&p, has_output, has_orders) != 0) {
        return -1;
    }
    child.pid = fork();
    if (child.pid < 0) {
        (void)fprintf(stderr, "sherd: a child cannot be started: %s\n", strerror(errno));
        pipes_close(&p);
        return -1;
    }
    if (child.pid == 0) {
        /* The terminal interrupts this launcher, which passes it on by an order; ssh would end. A
         * part has inherited that, and its ranks have not. */
        if (has_orders || job->orders >= 0) {
            (void)signal(SIGINT, has_orders ? SIG_IGN : SIG_DFL);
        }
        if (child.rank >= 0) {
            rank_variables_set(job, &child);
        }
        child_become(&p, argv, has_input, parent, before);
    }
    (void)close(p.started[1]);
    p.started[1] = -1;
    status       = child_check(&p, argv);
    if (has_output) {
        (void)fcntl(p.output[0], F_SETFL, O_NONBLOCK);
        (void)fcntl(p.errors[0], F_SETFL, O_NONBLOCK);
        launch_output_add(&job->output, p.output[0], child.rank, 0);
        launch_output_add(&job->output, p.errors[0], child.rank, 1);
        p.output[0] = p.errors[0] = -1;
    }
    child.control = p.orders[1];
    p.orders[1]   = -1;
    pipes_close(&p);
    *child_place(job) = child;
    job->running++;
    return status;
}

int launch_ranks_start(launch *job, const sigset_t *before)
{
    for (int r = 0; r < job->ranks; r++) {
        launch_child rank = {.rank = job->first + r};

        if (child_start(job, rank, job->program, 0, before) != 0) {
            return -1;
        }
    }
    return 0;
}

int launch_newcomer_start(launch *job, int number)
{
    launch_child child = {.rank = number, .control = -1, .is_late = 1};

    return child_start(job, child, job->program, 0, &job->elastic.before);
}

int launch_child_start(launch *job, int host, char **argv, int has_orders, const sigset_t *before)
{
    return child_start(job, (launch_child){.rank = -1, .host = host}, argv, has_orders, before);
}
