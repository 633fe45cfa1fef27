/* Whether this machine can run the tables with vector registers. These functions are compiled for
 * any machine. */
#include "kernels/cpu/variants.h"

#include <cpuid.h>

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
int sherdi_machine_has_avx2(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && cpuid_has_f16c();
}

int sherdi_machine_has_avx512(void)
{
    __builtin_cpu_init();
    return sherdi_machine_has_avx2() && __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
}
