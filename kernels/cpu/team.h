/* The team: the threads of one CPU backend, for its kernels. The backend creates and destroys its
 * team and shares it with nobody. Kernels use it through parallel.h. */
#ifndef SHERDI_KERNELS_CPU_TEAM_H
#define SHERDI_KERNELS_CPU_TEAM_H

#include "base/mem.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/places.h"

typedef struct sherdi_team sherdi_team;

/** Starts binding->threads - 1 workers; the caller of a kernel is the other thread. In a bound
 *  team, worker i runs on binding->cpus[i]; with a device, all run on binding->updates. If binding
 *  fails, the team stays unbound, with a warning in the log, and *binding says so. In a crowded
 *  team no thread spins, since other threads want the CPUs. E_NOMEM: no memory, or no more
 *  threads. */
sherd_status sherdi_team_create(sherdi_cpu_binding *binding, int rank, sherdi_mem *mem,
                                sherdi_team **out);
/** Ends the workers and waits for them. No task may be running. Accepts NULL. In a child after
 *  fork, which has no workers, it only frees. */
void sherdi_team_destroy(sherdi_team *team);

/** Writes "workers bound to cpus 1-3" or "workers not bound". No kernel may be running. */
void sherdi_team_describe(const sherdi_team *team, char *text, size_t text_bytes);

/** Executes all tasks and returns 1; 0, without executing any, when another thread is using the
 *  team. */
int sherdi_team_run(sherdi_team *team, sherdi_split split, sherdi_task_fn fn, void *ctx);

/** Executes one task on this thread, in the default floating-point environment. */
void sherdi_task_run(sherdi_task_fn fn, void *ctx, int task, int tasks);

#endif
