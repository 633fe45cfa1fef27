/* Stands for bare.c in a build without liburing. */
#include "bench/bare.h"

#include <stdio.h>

bench_bare *bench_bare_open(const bench_bare_params *params, char *why, size_t why_bytes)
{
    (void)params;
    (void)snprintf(why, why_bytes, "this build has no liburing");
    return NULL;
}

double bench_bare_run(bench_bare *bare, bench_bare_kind kind, char *why, size_t why_bytes)
{
    (void)bare;
    (void)kind;
    (void)snprintf(why, why_bytes, "this build has no liburing");
    return 0;
}

void bench_bare_close(bench_bare *bare)
{
    (void)bare;
}
