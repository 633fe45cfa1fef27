/* Threads of the library that call kernels: what binds them. */
#ifndef SHERDI_KERNELS_CPU_ROLES_H
#define SHERDI_KERNELS_CPU_ROLES_H

#include "kernels/cpu/team.h"

/* What a thread does that calls kernels and is not the trainer's. */
typedef enum sherdi_cpu_role {
    SHERDI_CPU_ROLE_UPDATES = 0,
    SHERDI_CPU_ROLE_WIRE,
    SHERDI_CPU_ROLES,
} sherdi_cpu_role;

/** Binds the calling thread, one of the library's own, to the CPUs that the rank has for such
 *  threads. Does nothing where the system places them: on a rank without a device, on few cores,
 *  with SHERD_CPU_BIND=none. If it fails, the log of `rank` says so. */
static inline void sherdi_backend_cpu_keep(const sherdi_backend *backend, sherdi_cpu_role role,
                                           int rank)
{
    if (backend->team != NULL) {
        backend->team->ops->keep(backend->team, (int)role, rank);
    }
}

#endif
