/* Binds threads: decides how many threads a rank's kernels have and on which CPUs they run, from
 * the machine's CPUs, in the order in which threads should take them, from this rank's share of
 * these, and from SHERD_THREADS and SHERD_CPU_BIND. It is a table of place_list.h; tests call it
 * too. */
#ifndef SHERDI_KERNELS_CPU_BINDING_H
#define SHERDI_KERNELS_CPU_BINDING_H

#include "kernels/cpu/places.h"

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

/** Writes `count` CPUs in their order, like "0-3,8". The text ends in ".." if it does not fit. */
void sherdi_cpus_print(const int *cpus, int count, char *text, size_t text_bytes);
/** Does the same for a set. */
void sherdi_cpu_set_print(const cpu_set_t *set, char *text, size_t text_bytes);

#endif
