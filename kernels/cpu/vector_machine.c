/* The tables with vector registers, and whether this machine can run them. This file is compiled
 * for any machine. */
#include "kernels/cpu/team.h"
#include "kernels/cpu/vector_defs.h"

#include <cpuid.h>
#include <string.h>

/* Clang's __builtin_cpu_supports does not know the name f16c. */
static int cpuid_has_f16c(void)
{
    unsigned eax;
    unsigned ebx;
    unsigned ecx;
    unsigned edx;

    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C) != 0;
}

/* The builtins also check that the operating system saves the registers. */
static int has_avx2(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && cpuid_has_f16c();
}

static int has_avx512(void)
{
    __builtin_cpu_init();
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

const sherdi_kernel_ops *sherdi_kernels_of_vectors(const char *isa)
{
    static const struct {
        const sherdi_kernel_ops *kernels;
        int (*can_run)(void);
    } TABLES[] = {{&sherdi_kernels_avx512, has_avx512}, {&sherdi_kernels_avx2, has_avx2}};

    for (size_t i = 0; i < sizeof(TABLES) / sizeof(TABLES[0]); i++) {
        if ((isa == NULL || strcmp(TABLES[i].kernels->isa, isa) == 0) && TABLES[i].can_run()) {
            return TABLES[i].kernels;
        }
    }
    return NULL;
}
