/* sherd launch: its options, and the life of a job. See launch.h. */
#include "cli/launch.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#define MOST_GRACE_S 86400
#define DEATHS       5

static const char HELP[] =
    "usage: sherd launch -n N [OPTIONS] [--] PROGRAM [ARGUMENTS]\n"
    "       sherd launch --hosts a:8,b:8 [OPTIONS] [--] PROGRAM [ARGUMENTS]\n\n"
    "Starts a program as the ranks of one world, on this host or on several, and waits for\n"
    "them. In the program, sherd_world_from_env makes them one world. If a rank fails, the\n"
    "others have some seconds to report it; then they are ended, and so is what they started.\n"
    "SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 are passed on to the ranks; where one of them\n"
    "is a script that ends by the signal, also to what it started.\n\n"
    "  -n, --ranks N   number of ranks, 1 to 1024 on a host (default on several hosts: all that\n"
    "                  they have room for)\n"
    "  --grace S       seconds from the first failure until the other ranks get SIGTERM\n"
    "                  (default 5); those that do not end get SIGKILL 10 seconds later\n"
    "  --prefix        print the rank before each line, and at the end the last lines of the\n"
    "                  rank that failed first (default on several hosts)\n"
    "  --no-prefix     print the lines alone, for scripts that read them\n\n"
    "Processes that come and go while the others train, where the program can "
    "(docs/elastic.md):\n\n"
    "  --elastic MIN:MAX  SIGTTIN asks for one rank more, SIGTTOU for one less. A process that "
    "dies\n"
    "                  does not end the job while MIN ranks are left, and is started again\n"
    "  --no-restart    go on without a process that has died\n"
    "  --deaths N      end the job when N processes in a row that were started later have died\n"
    "                  within a minute of training (default 5)\n\n"
    "On several hosts, where the program and sherd have the same paths:\n\n"
    "  --hosts LIST    the hosts, and how many ranks each has: a:8,b:8\n"
    "  --hostfile F    the same from a file: a line 'a slots=8' or 'a:8' for each host\n"
    "  --starter NAME  what starts the ranks: srun, mpirun or ssh (default: srun in an\n"
    "                  allocation of Slurm, else mpirun where there is one, else ssh; without\n"
    "                  MPI, data moves between hosts by NCCL alone). SHERD_SSH names a program\n"
    "                  in place of ssh\n"
    "  --starter-args TEXT  more arguments for it, with spaces between them\n"
    "  --port P        with ssh: where the ranks meet, on the first host\n"
    "  --dry-run       print the command lines instead of running them\n\n"
    "Variables whose names begin with SHERD_, OMP_, OPENBLAS_ or NCCL_, CUDA_VISIBLE_DEVICES,\n"
    "PYTHONPATH and LD_LIBRARY_PATH go to all hosts. With ssh the ranks have a secret\n"
    "(SHERD_JOB_SECRET), which is drawn where none is set, and is on no command line; no rank\n"
    "reads the standard input. Else rank 0 reads it.\n\n"
    "Exit status: 0 if all ranks end with 0, those apart that an elastic job goes on without. "
    "Otherwise the status of the first rank that failed,\n"
    "which is 128 plus the number of the signal if a signal ended it. 127 if the program cannot\n"
    "be run.\n\n"
    "  sherd launch -n 4 ./trainer --steps 100\n"
    "  sherd launch -n 2 python train.py\n"
    "  sherd launch --hosts node1:8,node2:8 python train.py\n";

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

    if (job->folder[0] == '\0') {
        return;
    }
    (void)snprintf(path, sizeof(path), "%s/meeting", job->folder);
    (void)unlink(path);
    (void)rmdir(job->folder);
}

/* Starts the children. Returns as launch_ranks_start. */
static int children_start(launch *job, const sigset_t *before)
{
    if (job->hosts != NULL) {
        return launch_hosts_start(job, before);
    }
    if (job->part == NULL && folder_make(job) != 0) {
        return -1;
    }
    if (job->elastic.span != NULL && launch_elastic_open(job) != 0) {
        return -1;
    }
    return launch_ranks_start(job, before);
}

static int launch_run(launch *job)
{
    sigset_t signals, blocked, before;

    (void)sigemptyset(&signals);
    (void)sigaddset(&signals, SIGCHLD);
    for (size_t i = 0; i < LAUNCH_NUM_SIGNALS; i++) {
        (void)sigaddset(&signals, LAUNCH_SIGNALS[i]);
    }
    if (job->elastic.span != NULL) {
        (void)sigaddset(&signals, SIGTTIN);
        (void)sigaddset(&signals, SIGTTOU);
    }
    blocked = signals;
    (void)sigaddset(&blocked, SIGPIPE); /* of a part that has ended */
    (void)sigprocmask(SIG_BLOCK, &blocked, &before);
    job->elastic.before = before;
    (void)prctl(PR_SET_CHILD_SUBREAPER, 1);
    if (children_start(job, &before) != 0) {
        launch_signal(job, SIGKILL);
        job->status = STATUS_NO_PROGRAM;
    }
    launch_wait(job, &signals);
    if (!job->output.is_part) {
        launch_output_last(job);
    }
    launch_output_free(&job->output);
    if (job->elastic.span != NULL) {
        launch_elastic_close(job);
    }
    folder_remove(job);
    return job->status;
}

/* Checks the arguments, and reads what they name. Returns 0, or the exit status. */
static int job_read(launch *job)
{
    if (job->part != NULL) {
        return launch_part_read(job);
    }
    if (job->elastic.span == NULL &&
        (job->elastic.is_not_restarted || job->elastic.most_deaths != DEATHS)) {
        return cli_bad("launch", "--no-restart and --deaths are for --elastic MIN:MAX");
    }
    if (job->elastic.span != NULL && (job->hosts_text != NULL || job->hostfile != NULL)) {
        return cli_bad("launch", "--elastic is for the processes of one host: -n N");
    }
    if (job->hosts_text != NULL || job->hostfile != NULL) {
        job->is_prefixed = 1;
        return launch_hosts_read(job);
    }
    if (job->ranks == 0) {
        return cli_bad("launch", "launch wants -n N, the number of ranks, or --hosts");
    }
    if (job->is_dry) {
        return cli_bad("launch", "--dry-run wants --hosts or --hostfile: ranks of this host have "
                                 "no command line of their own");
    }
    job->all_ranks = job->ranks;
    return job->elastic.span != NULL ? launch_elastic_read(job) : 0;
}

int cli_launch(int argc, char **argv)
{
    static const cli_option LIST[] = {
        CLI_NUMBER("ranks", 'n', launch, ranks, 1, LAUNCH_MOST_RANKS, "wants 1 to 1024"),
        CLI_NUMBER("grace", 'g', launch, grace_s, 0, MOST_GRACE_S, "wants 0 to 86400 seconds"),
        CLI_FLAG("prefix", 0, launch, is_prefixed),
        CLI_FLAG("no-prefix", 0, launch, is_bare),
        CLI_TEXT("hosts", 0, launch, hosts_text),
        CLI_TEXT("hostfile", 0, launch, hostfile),
        CLI_TEXT("starter", 0, launch, starter),
        CLI_TEXT("starter-args", 0, launch, starter_args),
        CLI_NUMBER("port", 0, launch, port, 1, 65535, "wants 1 to 65535"),
        CLI_FLAG("dry-run", 0, launch, is_dry),
        CLI_TEXT("elastic", 0, launch, elastic.span),
        CLI_FLAG("no-restart", 0, launch, elastic.is_not_restarted),
        CLI_NUMBER("deaths", 0, launch, elastic.most_deaths, 1, 1000000, "wants 1 to 1000000"),
        CLI_TEXT("part", 0, launch, part),
        CLI_TEXT("meeting", 0, launch, meeting),
        {0}};
    /* The arguments after the program belong to the program. */
    static const cli_options OPTIONS = {"launch", HELP, LIST, .ends_at_first = 1};
    launch                  *job     = calloc(1, sizeof(*job));
    int                      status;

    if (job == NULL) {
        (void)fprintf(stderr, "sherd: no memory\n");
        return 1;
    }
    *job   = (launch){.grace_s     = 5,
                      .orders      = -1,
                      .failed_rank = -1,
                      .elastic     = {.most_deaths = DEATHS, .lock = -1}};
    status = cli_options_read(&OPTIONS, argc, argv, job);
    if (status < 0 && optind == argc) {
        status = cli_bad("launch", "launch wants a program");
    }
    if (status < 0) {
        job->program = argv + optind;
        status       = job_read(job);
        status       = status == 0 ? launch_run(job) : status;
    }
    free(job->hosts);
    free(job);
    return status;
}
