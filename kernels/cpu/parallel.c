/* The one file that knows OpenMP. Without it the parts run one after the other. */
#include "kernels/cpu/parallel.h"

#include "sherd_build.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#else
#include <fenv.h>
#endif

/* A trainer built with -ffast-math starts with denormals flushed to zero, and its threads
 * inherit that: it would change our bits. */
#if defined(__x86_64__)
#define MXCSR_DEFAULT 0x1f80u

static void part_run(sherdi_part_fn fn, void *ctx, int part, int parts)
{
    unsigned callers = _mm_getcsr();

    _mm_setcsr(MXCSR_DEFAULT);
    fn(ctx, part, parts);
    _mm_setcsr(callers);
}
#else
static void part_run(sherdi_part_fn fn, void *ctx, int part, int parts)
{
    fenv_t callers;

    (void)fegetenv(&callers);
    (void)fesetenv(FE_DFL_ENV);
    fn(ctx, part, parts);
    (void)fesetenv(&callers);
}
#endif

void sherdi_parallel_run(int parts, sherdi_part_fn fn, void *ctx)
{
    if (parts <= 1) {
        part_run(fn, ctx, 0, 1);
        return;
    }
    /* Inside a parallel region of the trainer the team may be smaller than asked for. */
#if defined(SHERDI_HAVE_OPENMP)
#pragma omp parallel for schedule(static, 1) num_threads(parts)
#endif
    for (int part = 0; part < parts; part++) {
        part_run(fn, ctx, part, parts);
    }
}
