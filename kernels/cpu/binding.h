/* Decides on which CPUs a team's threads run: from the machine's CPUs, in the order in which threads should take them, from this
 * rank's share of these, and from SHERD_CPU_BIND. backend.c asks once, when it creates the team. */
#ifndef SHERDI_KERNELS_CPU_BINDING_H
#define SHERDI_KERNELS_CPU_BINDING_H

#include "base/status.h"

#include <sched.h>
#include <stddef.h>

/* CPUs in an order that keeps neighbours together: those of a core, of a cache, of a NUMA node. */
typedef struct sherdi_cpu_list {
    int count;
    int cpus[CPU_SETSIZE];  /* as the system numbers them */
    int cores[CPU_SETSIZE]; /* equal for CPUs of one physical core; ascending */
} sherdi_cpu_list;

/* Where the threads of one team run. Thread 0 is the caller, which is never bound: the team leaves its CPU free. */
typedef struct sherdi_cpu_binding {
    int       is_bound;
    int       is_crowded; /* more threads than CPUs */
    int       count;      /* when bound: threads */
    int       cpus[CPU_SETSIZE];
    cpu_set_t allowed; /* the CPUs that the creating thread may run on */
} sherdi_cpu_binding;

/** Decides for the team of rank `share` of the `shares` ranks that have the same CPUs. It reads the machine and SHERD_CPU_BIND
 *  (none, auto, or a list such as "0-3,8"; without it, auto).
 *
 *  auto    binds a team that fills its share of the CPUs that this thread may use: with at least a thread for each core, and at most
 *          one for each CPU. It leaves other teams to the system, since nobody knows what else runs there.
 *  LIST    binds to these CPUs, in this order. Each share of the list must have a CPU for each thread.
 *  Errors  E_INVAL  none of the three, CPUs that this thread may not use, or too few CPUs. */
sherd_status sherdi_cpu_binding_find(int threads, int share, int shares, sherdi_cpu_binding *out);

/** Does what auto does, on a given list. Pure. */
void sherdi_cpu_binding_choose(const sherdi_cpu_list *list, int threads, int share, int shares,
                               sherdi_cpu_binding *out);

/** Writes `count` CPUs in their order, like "0-3,8". The text ends in ".." if it does not fit. */
void sherdi_cpus_print(const int *cpus, int count, char *text, size_t text_bytes);

#endif
