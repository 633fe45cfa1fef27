/* Executes the tasks of a kernel: on the team (team.h) or one after the other. */
#include "kernels/cpu/parallel.h"

#include "kernels/cpu/team.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#else
#include <fenv.h>
#endif

/* A trainer built with -ffast-math starts with denormals flushed to zero. Its threads inherit this,
 * and it would change the bits of our results. */
#if defined(__x86_64__)
#define MXCSR_DEFAULT 0x1f80u

void sherdi_task_run(sherdi_task_fn fn, void *ctx, int task, int tasks)
{
    unsigned callers = _mm_getcsr();

    _mm_setcsr(MXCSR_DEFAULT);
    fn(ctx, task, tasks);
    _mm_setcsr(callers);
}
#else
void sherdi_task_run(sherdi_task_fn fn, void *ctx, int task, int tasks)
{
    fenv_t callers;

    (void)fegetenv(&callers);
    (void)fesetenv(FE_DFL_ENV);
    fn(ctx, task, tasks);
    (void)fesetenv(&callers);
}
#endif

void sherdi_parallel_run(const sherdi_backend *backend, sherdi_split split, sherdi_task_fn fn,
                         void *ctx)
{
    if (split.tasks <= 1) {
        sherdi_task_run(fn, ctx, 0, 1);
        return;
    }
    if (backend->team != NULL && backend->team->ops->run(backend->team, split, fn, ctx)) {
        return;
    }
    for (int task = 0; task < split.tasks; task++) {
        sherdi_task_run(fn, ctx, task, split.tasks);
    }
}
