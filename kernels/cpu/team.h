/* The team: the threads of one CPU backend besides the caller of a kernel. A module has the table
 * (team.c), which module_list.h names; a build without it computes on the calling thread alone. The
 * backend creates and destroys its team and shares it with nobody. Kernels use it through
 * parallel.h. */
#ifndef SHERDI_KERNELS_CPU_TEAM_H
#define SHERDI_KERNELS_CPU_TEAM_H

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/module_list.h"

/* The beginning of a table's object. */
typedef struct sherdi_team {
    const struct sherdi_team_ops *ops;
} sherdi_team;

typedef struct sherdi_team_ops {
    /* Decides how many threads a rank has, the caller included, and where they run, and starts the
     * others. *out stays NULL where there are none and no thread has CPUs of its own. Errors: those
     * of sherdi_backend_cpu_create_with. */
    sherd_status (*create)(const sherdi_cpu_params *params, sherdi_mem *mem, int *threads_out,
                           sherdi_team **out);
    /* Ends the threads and waits for them. No task may be running. In a child after fork, which
     * does not have them, it only frees. */
    void (*destroy)(sherdi_team *team);
    /* Executes all tasks and returns 1; 0, without executing any, when another thread is using the
     * team. */
    int (*run)(sherdi_team *team, sherdi_split split, sherdi_task_fn fn, void *ctx);
    /* Takes the pages of fresh memory as sherdi_pages_take, each thread those of its part. */
    int (*touch)(const sherdi_backend *host, void *memory, size_t len_bytes);
    /* sherdi_backend_cpu_keep (roles.h); the end of sherdi_backend_cpu_describe's text, where no
     * kernel may be running. */
    void (*keep)(const sherdi_team *team, int role, int rank);
    void (*describe)(const sherdi_team *team, int threads, char *text, size_t text_bytes);
    /* Returns whether it is known (by hwloc, in the build and on the machine) which CPUs share a
     * core, and which cores are neighbours. */
    int (*knows_cores)(void);
} sherdi_team_ops;

/** Executes one task on this thread, in the default floating-point environment. */
void sherdi_task_run(sherdi_task_fn fn, void *ctx, int task, int tasks);

#endif
