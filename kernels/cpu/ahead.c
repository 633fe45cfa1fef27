#include "kernels/cpu/ahead.h"

#include "base/clock.h"

/* Any distance from half to four times this is as good where one helps at all. */
#define AHEAD_BYTES ((size_t)1024)

/* Less would be read from caches, or over before the clock has moved. */
#define TRIAL_BYTES ((size_t)32 << 20)
#define TRIALS      12u

size_t sherdi_ahead_bytes(const sherdi_backend *backend)
{
    sherdi_ahead *ahead = backend->ahead;

    if (ahead != NULL && atomic_load_explicit(&ahead->is_without, memory_order_relaxed)) {
        return 0;
    }
    return AHEAD_BYTES;
}

/* 0 1 1 0 1 0 0 1 ..: in step with no pattern of blocks. */
static int way_of(unsigned trial)
{
    return __builtin_parity(trial);
}

sherdi_ahead_trial sherdi_ahead_begin(const sherdi_backend *backend, size_t bytes)
{
    sherdi_ahead      *ahead = backend->ahead;
    sherdi_ahead_trial none  = {.ahead_bytes = sherdi_ahead_bytes(backend)};
    unsigned           trial;

    if (ahead == NULL || bytes < TRIAL_BYTES ||
        atomic_load_explicit(&ahead->trials, memory_order_relaxed) >= TRIALS) {
        return none;
    }
    trial = atomic_fetch_add_explicit(&ahead->trials, 1, memory_order_relaxed);
    if (trial >= TRIALS) {
        return none;
    }
    return (sherdi_ahead_trial){.ahead_bytes = way_of(trial) ? AHEAD_BYTES : 0,
                                .bytes       = bytes,
                                .way         = way_of(trial),
                                .start_ns    = sherdi_now_ns()};
}

void sherdi_ahead_end(const sherdi_backend *backend, const sherdi_ahead_trial *trial)
{
    sherdi_ahead *ahead = backend->ahead;
    int64_t       fs;
    int64_t       best;

    if (trial->bytes == 0) {
        return;
    }
    fs   = (sherdi_now_ns() - trial->start_ns) * 1000 * 1000 / (int64_t)trial->bytes;
    best = atomic_load_explicit(&ahead->best_fs[trial->way], memory_order_relaxed);
    if (best == 0 || fs < best) { /* two at once may lose one figure, no more */
        atomic_store_explicit(&ahead->best_fs[trial->way], fs, memory_order_relaxed);
    }
    if (atomic_fetch_add_explicit(&ahead->trials_done, 1, memory_order_acq_rel) + 1 == TRIALS) {
        atomic_store_explicit(&ahead->is_without, ahead->best_fs[0] < ahead->best_fs[1],
                              memory_order_relaxed);
    }
}
