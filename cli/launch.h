/* sherd launch: starts a program as the ranks of one world, on this host or on several.
 *
 * A launcher has children: ranks, or on several hosts what starts ranks there. On another host this
 * is the same command again, with --part, started through ssh; mpirun and srun start it once for
 * each rank. A part puts the rank before each line of its ranks, and sends notes about ranks that
 * failed between these lines. launch.c has the options; launch_ranks.c starts ranks, and
 * launch_hosts.c what starts them elsewhere; launch_wait.c waits for the children, and
 * launch_output.c passes on what they print. Of an elastic job, whose processes come and go,
 * launch_elastic.c decides who is started and when the job ends. */
#ifndef SHERD_CLI_LAUNCH_H
#define SHERD_CLI_LAUNCH_H

#include "cli/cli.h"

#include <signal.h>
#include <sys/types.h>

#define LAUNCH_MOST_RANKS 1024 /* of a host; also the most hosts */
/* The exit status that a shell returns for a program that cannot be run. */
#define STATUS_NO_PROGRAM 127
/* Bytes of a socket's path (sun_path), with the final zero. */
#define SOCKET_PATH_BYTES 108

typedef struct launch_host {
    char name[128];
    int  ranks;
} launch_host;

typedef struct launch_child {
    pid_t pid;     /* 0: it has ended */
    int   rank;    /* -1: it starts ranks of its own, */
    int   host;    /* ... on this host; -1: on all */
    int   control; /* takes orders for it; -1: it takes signals */
    /* of an elastic job, where `rank` is the number of the process */
    int is_late;      /* started while the others trained */
    int is_sent_away; /* it is not needed, and was asked to end */
} launch_child;

/* What a child prints on one of its two streams. */
typedef struct launch_stream {
    int    fd;   /* -1: closed */
    int    rank; /* whose lines these are; -1: they say it themselves */
    int    is_error;
    char  *text; /* of a line that is not complete */
    size_t len;
} launch_stream;

#define LAUNCH_LAST_LINES 12
typedef struct launch_output {
    launch_stream streams[2 * LAUNCH_MOST_RANKS];
    int           num_streams;
    int           is_part; /* its lines go to another launcher, which keeps the last ones */
    /* The last lines on the standard error stream of each rank: a ring. */
    struct {
        char *lines[LAUNCH_LAST_LINES];
        int   next;
    } * last;
    int num_last;
} launch_output;

/* A job whose processes come and go. */
typedef struct launch_elastic {
    const char *span; /* --elastic MIN:MAX; NULL: the ranks stay */
    int         is_not_restarted, most_deaths;

    int      least, most, wanted; /* ranks */
    int      lock;                /* says that the launcher lives */
    int      is_ending;           /* nobody is started any more */
    int      deaths;              /* of newcomers in a row that did not train for long */
    int64_t  last_death_s;
    sigset_t before; /* the signals that a child has blocked */
} launch_elastic;

typedef struct launch {
    /* the options */
    int         ranks, grace_s, is_prefixed, is_bare, is_dry, port;
    const char *hosts_text, *hostfile, *starter, *starter_args, *part, *meeting;
    char      **program;

    launch_host *hosts; /* NULL: this host */
    int          num_hosts;
    int          first, all_ranks; /* of a part: its first rank, and the ranks of the job */
    int          is_wrapped;       /* of a part: the launcher of the part has set the variables */
    char         folder[SOCKET_PATH_BYTES]; /* of the socket where the ranks meet */

    launch_child  children[LAUNCH_MOST_RANKS];
    int           num_children, running;
    launch_output output;
    int           orders; /* of a part: where the launcher's orders come from; -1: nowhere */

    launch_elastic elastic;

    int     failed_rank; /* the first rank that failed; -1: none has, or it is not known */
    int     status;      /* exit status of the first child or rank that failed; 0: none has */
    int     sent;        /* the last signal that the ranks got; 0: none */
    int     is_passed;   /* from here; else the terminal sent it to all of its processes */
    int     has_orphan;  /* a rank ended by a signal that its children did not get */
    int     last_sent;   /* SIGTERM or SIGKILL; 0: neither was sent */
    int64_t deadline_s;  /* when the next of them is sent; 0: never */
} launch;

/* ---- launch_ranks.c ---- */

/** Starts the ranks of this host. Returns 0, or -1 after it has printed why; the caller then ends
 *  those that have started. `before`: the signals that a rank has blocked. */
int launch_ranks_start(launch *job, const sigset_t *before);
/** Starts a process of an elastic job that joins the ranks later. Returns as launch_ranks_start. */
int launch_newcomer_start(launch *job, int number);
/** Starts one child that runs argv, with pipes for its output, and with `orders` one for its
 *  orders. Returns as launch_ranks_start. */
int launch_child_start(launch *job, int host, char **argv, int has_orders, const sigset_t *before);

/* ---- launch_hosts.c ---- */

/** Reads --hosts or --hostfile. Returns 0, or the exit status after it has printed why. */
int launch_hosts_read(launch *job);
/** Starts what starts the ranks on the hosts of the job, or prints its command lines (is_dry).
 *  Returns as launch_ranks_start. */
int launch_hosts_start(launch *job, const sigset_t *before);
/** Reads --part, and the secret of the job from the standard input. Returns 0, or the exit status
 *  after it has printed why. */
int launch_part_read(launch *job);

/* ---- launch_wait.c ---- */

extern const int    LAUNCH_SIGNALS[];
extern const size_t LAUNCH_NUM_SIGNALS;

/** Sends a signal to all children, and to the children of ended ranks. */
void launch_signal(launch *job, int number);
/** Waits until all children have ended; `signals` are blocked, SIGCHLD among them. */
void launch_wait(launch *job, const sigset_t *signals);

/* ---- launch_elastic.c ---- */

/** Reads --elastic. Returns 0, or the exit status after it has printed why. */
int launch_elastic_read(launch *job);
/** Opens the roll in the folder of the job. Returns 0, or -1 after it has printed why. */
int launch_elastic_open(launch *job);
/** Removes the roll. */
void launch_elastic_close(launch *job);
/** SIGTTIN and SIGTTOU: one rank more or less. */
void launch_elastic_ask(launch *job, int number);
/** Looks who has become a rank, sends away who is not needed, and starts who is missing. Call it
 *  after each end, each signal, and now and then. */
void launch_elastic_balance(launch *job);
/** Takes the end of a process. Returns whether the job goes on as if nothing had been; else the end
 *  counts as that of any rank. */
int launch_elastic_ended(launch *job, const launch_child *child, int status);

/* ---- launch_output.c ---- */

/** Passes on what can be read from `fd` from now on. */
void launch_output_add(launch_output *output, int fd, int rank, int is_error);
/** Passes on what a stream has. `job` takes the notes between the lines. Returns 0 if there was
 *  nothing. */
int launch_output_read(launch *job, launch_stream *stream);
/** Passes on what is there on all streams. */
void launch_output_drain(launch *job);
/** The same, and closes them. */
void launch_output_end(launch *job);
/** Prints the last lines of the rank that failed first. */
void launch_output_last(const launch *job);
void launch_output_free(launch_output *output);
/** Records that a rank failed, if it is the first; a part sends a note instead. */
void launch_rank_failed(launch *job, int rank, const char *host, int status);

#endif
