/* The limits of memory on this host. */
#ifndef SHERDI_ENGINE_LIMITS_H
#define SHERDI_ENGINE_LIMITS_H

#include "engine/plan/plan.h"

/* Most blocks of a rank; more than the segments that a model can have. */
#define SHERDI_MOST_BLOCKS ((size_t)1 << 19)

/* The limit of the host memory that may still be allocated. */
typedef enum sherdi_memory_bound {
    SHERDI_BOUND_HOST, /* the free memory */
    SHERDI_BOUND_GROUP,
    SHERDI_BOUND_PROCESS,
    SHERDI_BOUND_VARIABLE, /* SHERD_MEMORY_LIMIT */
} sherdi_memory_bound;

/** Returns the bytes that this process can still allocate on this host, at least 1: the free
 *  memory, or less by the limit of a control group, of the process, or of SHERD_MEMORY_LIMIT; and
 *  which of them it is (sherdi_memory_bound). 0: unknown. E_INVAL: that variable is no number. */
sherd_status sherdi_machine_free_memory(size_t *out, int *bound_out);
/** Returns the remaining bytes under a control group's limit, from the files of either version; the
 *  group's page cache that can be reclaimed counts as remaining. SIZE_MAX: no limit. */
size_t sherdi_machine_group_left(const char *folder);

/** Return the bytes of host memory and of device memory that one rank takes. */
size_t sherdi_plan_host_need(const sherdi_plan *plan);
size_t sherdi_plan_device_need(const sherdi_plan *plan);
/** Return whether the device has that much, and whether all ranks of the host fit. A machine whose
 *  memory is unknown fits. */
int sherdi_plan_device_fits(const sherdi_plan *plan);
int sherdi_plan_fits(const sherdi_plan *plan);

#endif
