/* How many threads the kernels of a rank have, and where they run. place_list.h has tables that
 * decide it; team.c asks the first of them once, when it creates the team. */
#ifndef SHERDI_KERNELS_CPU_PLACES_H
#define SHERDI_KERNELS_CPU_PLACES_H

#include "kernels/backend.h"

#include <sched.h>
#include <stddef.h>

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

typedef struct sherdi_places {
    /* Required. Decides for one rank. It reads SHERD_THREADS where the parameters give no number,
     * and SHERD_CPU_BIND. E_INVAL, E_NOTSUP: these cannot be met. */
    sherd_status (*find)(const sherdi_cpu_params *params, sherdi_cpu_binding *out);

    /* Optional (NULL: `find` binds nothing). They write, for people, on which CPUs the workers of a
     * bound team run, and on which sets threads run while a device computes. */
    void (*workers_describe)(const int *cpus, int count, char *text, size_t text_bytes);
    void (*sets_describe)(int threads, const cpu_set_t *updates, const cpu_set_t *wire, char *text,
                          size_t text_bytes);
    /* Optional (NULL: no). As sherdi_backend_cpu_knows_cores. */
    int (*knows_cores)(void);
} sherdi_places;

#define SHERDI_PLACES(table) extern const sherdi_places table;
#include "kernels/cpu/place_list.h"
#undef SHERDI_PLACES

/** Returns the table that decides: the first of place_list.h. */
const sherdi_places *sherdi_places_first(void);

/** Leaves all threads to the system. */
static inline void sherdi_cpu_binding_drop(sherdi_cpu_binding *binding)
{
    binding->is_bound = 0;
    CPU_ZERO(&binding->updates);
    CPU_ZERO(&binding->wire);
}

static inline int sherdi_at_least_one(int count)
{
    return count < 1 ? 1 : count;
}

/** Reads SHERD_THREADS into *threads if it is 0, and leaves 0 where that is not set. E_INVAL. */
sherd_status sherdi_threads_read(int *threads);

/** Returns how many threads the kernels of a rank without a device have on `cpus` CPUs. */
static inline int sherdi_threads_of(int cpus, const sherdi_cpu_params *params)
{
    return params->threads > 0 ? params->threads : sherdi_at_least_one(cpus / params->shares);
}

/** Returns whether all ranks together have more threads than CPUs. */
static inline int sherdi_is_crowded(int cpus, int threads, int shares)
{
    return (long long)threads * shares > cpus;
}

#endif
