/* Ranks as processes: a test program starts itself once per rank. A part is a function that
 * such a process runs instead of the cases; it fails by its checks and otherwise returns. */
#ifndef TESTS_COLLECTIVES_RANKS_H
#define TESTS_COLLECTIVES_RANKS_H

#include "tests/lib/check.h"

#include <sys/types.h>

typedef struct rank_part {
    const char *name;
    void (*run)(void);
} rank_part;

#define PART(function)                                                                             \
    {                                                                                              \
#function, function                                                                        \
    }

/** main() of such a program: runs a part when started as a rank, else the cases. */
int ranks_main(int argc, char **argv, const test_case *cases, size_t num_cases,
               const rank_part *parts, size_t num_parts);

#define RANKS_MAIN(cases, parts)                                                                   \
    int main(int argc, char **argv)                                                                \
    {                                                                                              \
        return ranks_main(argc, argv, cases, sizeof(cases) / sizeof((cases)[0]), parts,            \
                          sizeof(parts) / sizeof((parts)[0]));                                     \
    }

/* How a rank may end. */
enum {
    RANK_PASSES    = 0,
    RANK_IS_KILLED = -9, /* by SIGKILL */
};

/* One rank to start: its environment on top of a clean one, and how it must end. */
typedef struct rank_start {
    const char *part;
    const char *environment[8]; /* "NAME=value", NULL at the end */
    int         ends;           /* exit code, or minus a signal */
} rank_start;

/** Starts one and returns at once: its process, which the caller waits for; below 0 where there is
 *  none. */
pid_t ranks_start(const rank_start *start);

/** Starts all, waits for all (a minute at most, then kills them and fails), and checks how each
 *  ended. */
void ranks_run(const rank_start *starts, int count);

/** world_size ranks that meet at a fresh unix socket by SHERD_*; all run `part` and pass, but
 *  for rank `killed` (-1: none), which must die of SIGKILL. */
void ranks_run_part(int world_size, const char *part, int killed);

/** Whether there is an mpirun; skips the case when there is none. */
void ranks_need_mpirun(void);

/** `part` on world_size ranks under mpirun; all must pass but for `killed` (-1: none), which must
 *  not have. mpirun's own exit code is not looked at: it counts every death as its failure. */
void ranks_run_mpi(int world_size, const char *part, int killed);

/** Messages between ranks of ranks_run outside their world, to force an order of events: a note, by
 *  a name; ranks_note_wait returns when it is there. Every ranks_run begins without notes. */
void ranks_note_leave(const char *name);
int  ranks_note_is_there(const char *name);
void ranks_note_wait(const char *name);

/** A rendezvous on a path that nobody uses; static storage until the next call. */
const char *ranks_address(void);

/** A TCP port of this host that nobody uses at this moment. */
int ranks_port(void);

/** The variable of this rank as a number; fails when it is not set. */
int ranks_variable(const char *name);

/** Removes every variable that a launcher sets. */
void ranks_clear_environment(void);

#endif
