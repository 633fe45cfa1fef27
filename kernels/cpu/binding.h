/* Binds threads: decides how many threads a rank's kernels have and on which CPUs they run, from
 * the machine's CPUs, in the order in which threads should take them, from this rank's share of
 * these, and from SHERD_THREADS and SHERD_CPU_BIND. team.c asks for it once, and tests do. */
#ifndef SHERDI_KERNELS_CPU_BINDING_H
#define SHERDI_KERNELS_CPU_BINDING_H

#include "kernels/backend.h"

#include <sched.h>

/* Where the threads of one rank run. Thread 0 is the caller, which is never bound: the team leaves
 * its CPU free. */
typedef struct sherdi_cpu_binding {
    int       threads;    /* of each kernel call */
    int       is_bound;   /* each thread has a CPU of its own */
    int       is_crowded; /* more threads than CPUs */
    int       count;      /* when bound: threads */
    int       cpus[CPU_SETSIZE];
    cpu_set_t updates; /* for threads that update while a device computes; empty: anywhere */
    cpu_set_t wire; /* for the thread that sends, and meant for the trainer's; may be empty too */
    cpu_set_t allowed; /* the CPUs that the creating thread may run on */
} sherdi_cpu_binding;

/** Leaves all threads to the system. */
static inline void sherdi_cpu_binding_drop(sherdi_cpu_binding *binding)
{
    binding->is_bound = 0;
    CPU_ZERO(&binding->updates);
    CPU_ZERO(&binding->wire);
}

/* CPUs in an order that keeps neighbours together: those of a core, of a cache, of a NUMA node. */
typedef struct sherdi_cpu_list {
    int count;
    int cpus[CPU_SETSIZE];  /* as the system numbers them */
    int cores[CPU_SETSIZE]; /* equal for CPUs of one physical core; ascending */
    int nodes[CPU_SETSIZE]; /* equal for CPUs of one NUMA node; these are neighbours */
} sherdi_cpu_list;

/** Decides for one rank (sherdi_cpu_params). It reads the machine, SHERD_THREADS where the
 *  parameters give no number, and SHERD_CPU_BIND (none, auto, or a list such as "0-3,8"; without
 *  it, auto).
 *
 *  auto    binds a team that fills its share of the CPUs that this thread may use: with at least a
 *          thread for each core, and at most one for each CPU. It leaves other teams to the system,
 *          since nobody knows what else runs there. With a device, the share is cut to one NUMA
 *          node, and up to two of its cores are left for the trainer's thread and the wire's. The
 *          team keeps to the other cores, unless it has more threads than these have CPUs.
 *  LIST    binds to these CPUs, in this order. Each share of the list must have a CPU for each
 *          thread.
 *  Errors  E_INVAL  neither variable can be met: a wrong word, CPUs that this thread may not use,
 *                   too few CPUs.
 */
sherd_status sherdi_cpu_binding_find(const sherdi_cpu_params *params, sherdi_cpu_binding *out);

/** Does what auto does, on a given list, for params->threads threads (0: the default). Pure. */
void sherdi_cpu_binding_choose(const sherdi_cpu_list *list, const sherdi_cpu_params *params,
                               sherdi_cpu_binding *out);

/** Write, for people, on which CPUs the workers of a bound team run, and on which sets threads run
 *  while a device computes. */
void sherdi_cpu_workers_describe(const int *cpus, int count, char *text, size_t text_bytes);
void sherdi_cpu_sets_describe(int threads, const cpu_set_t *updates, const cpu_set_t *wire,
                              char *text, size_t text_bytes);
/** As knows_cores of a team. */
int sherdi_cpu_knows_cores(void);

/** Writes `count` CPUs in their order, like "0-3,8". The text ends in ".." if it does not fit. */
void sherdi_cpus_print(const int *cpus, int count, char *text, size_t text_bytes);
/** Does the same for a set. */
void sherdi_cpu_set_print(const cpu_set_t *set, char *text, size_t text_bytes);

#endif
