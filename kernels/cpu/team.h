/* Threads of one backend, for the kernels of the CPU: made with it, ended with it, shared with nobody.
 * parallel.h is how kernels use them. */
#ifndef SHERDI_KERNELS_CPU_TEAM_H
#define SHERDI_KERNELS_CPU_TEAM_H

#include "base/mem.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/binding.h"

typedef struct sherdi_team sherdi_team;

/** Starts threads - 1 workers; the caller of a kernel is the other thread. Worker i runs on
 *  binding->cpus[i] where they are bound; where that fails the team goes on unbound and says so in the
 *  log. Where it is crowded nobody spins: other threads want the CPUs.
 *  E_NOMEM: no memory, or no more threads. */
sherd_status sherdi_team_create(int threads, const sherdi_cpu_binding *binding, int rank,
                                sherdi_mem *mem, sherdi_team **out);
/** No task runs any more. Accepts NULL. In a child after fork, which has no workers, it only frees. */
void sherdi_team_destroy(sherdi_team *team);

/** No kernel is running: "workers bound to cpus 1-3", "workers not bound". */
void sherdi_team_describe(const sherdi_team *team, char *text, size_t text_bytes);

/** Runs all tasks and returns 1; 0, with nothing run, when another thread is using the team. */
int sherdi_team_run(sherdi_team *team, sherdi_split split, sherdi_task_fn fn, void *ctx);

/** One task on this thread, in the default floating-point environment. */
void sherdi_task_run(sherdi_task_fn fn, void *ctx, int task, int tasks);

#endif
