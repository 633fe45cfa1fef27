/* Parts of a kernel: on the team (team.c) or one after the other. */
#include "kernels/cpu/parallel.h"

#include "kernels/cpu/team.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#else
#include <fenv.h>
#endif

/* A trainer built with -ffast-math starts with denormals flushed to zero, and its threads
 * inherit that: it would change our bits. */
#if defined(__x86_64__)
#define MXCSR_DEFAULT 0x1f80u

void sherdi_part_run(sherdi_part_fn fn, void *ctx, int part, int parts)
{
    unsigned callers = _mm_getcsr();

    _mm_setcsr(MXCSR_DEFAULT);
    fn(ctx, part, parts);
    _mm_setcsr(callers);
}
#else
void sherdi_part_run(sherdi_part_fn fn, void *ctx, int part, int parts)
{
    fenv_t callers;

    (void)fegetenv(&callers);
    (void)fesetenv(FE_DFL_ENV);
    fn(ctx, part, parts);
    (void)fesetenv(&callers);
}
#endif

void sherdi_parallel_run(const sherdi_backend *backend, sherdi_split split, sherdi_part_fn fn,
                         void *ctx)
{
    if (split.parts <= 1) {
        sherdi_part_run(fn, ctx, 0, 1);
        return;
    }
    if (backend->team != NULL && sherdi_team_run(backend->team, split, fn, ctx)) {
        return;
    }
    for (int part = 0; part < split.parts; part++) {
        sherdi_part_run(fn, ctx, part, split.parts);
    }
}
