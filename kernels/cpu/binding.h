/* Which CPUs a team's threads run on: the machine's CPUs in the order in which threads should take
 * them, this rank's share of those, and what SHERD_CPU_BIND says. Decided once, at creation. */
#ifndef SHERDI_KERNELS_CPU_BINDING_H
#define SHERDI_KERNELS_CPU_BINDING_H

#include "base/status.h"

#include <sched.h>
#include <stddef.h>

/* CPUs with neighbours next to each other: those of a core, of a cache, of a NUMA node. */
typedef struct sherdi_cpu_list {
    int count;
    int cpus[CPU_SETSIZE];  /* as the system numbers them */
    int cores[CPU_SETSIZE]; /* equal for CPUs of one physical core; ascending */
} sherdi_cpu_list;

/* Where the threads of one team run. Thread 0 is the caller's and never bound: its CPU is left free. */
typedef struct sherdi_cpu_binding {
    int       is_bound;
    int       is_crowded; /* more threads than CPUs */
    int       count;      /* threads, when bound */
    int       cpus[CPU_SETSIZE];
    cpu_set_t allowed; /* what the creating thread may run on */
} sherdi_cpu_binding;

/** Reads the machine and SHERD_CPU_BIND (none, auto, or a list such as "0-3,8") for the team of rank
 *  `share` of `shares` that have the same CPUs.
 *
 *  auto  binds where the team fills its share of the CPUs that this thread may use, a thread for each
 *        core or each CPU, and leaves other teams to the system: who else runs here is not known.
 *  LIST  stands for those CPUs, in its order; each share of it must have a CPU for each thread.
 *  Errors E_INVAL  neither of the three, or CPUs that this thread may not use, or too few. */
sherd_status sherdi_cpu_binding_find(int threads, int share, int shares, sherdi_cpu_binding *out);

/** auto on a given list; pure. */
void sherdi_cpu_binding_choose(const sherdi_cpu_list *list, int threads, int share, int shares,
                               sherdi_cpu_binding *out);

/** "0-3,8" of `count` CPUs in their order; ends in ".." where it does not fit. */
void sherdi_cpus_print(const int *cpus, int count, char *text, size_t text_bytes);

#endif
