/* The CPU backend of a rank that is alone on the machine, for tests. */
#ifndef TESTS_KERNELS_CPU_H
#define TESTS_KERNELS_CPU_H

#include "kernels/backend.h"

static inline sherd_status cpu_create(int threads, sherdi_mem *mem, sherdi_backend **out)
{
    const sherdi_cpu_params params = {.threads = threads, .shares = 1, .rank = -1};

    return sherdi_backend_cpu_create_with(&params, mem, out);
}

#endif
