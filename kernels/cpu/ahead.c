/* See ahead.h. The first TRIALS large updates of a kind try the two ways: 0, without prefetching,
 * and 1, with. The best time of each way counts. */
#include "kernels/cpu/ahead.h"

#include "base/clock.h"

/* Where prefetching helps at all, any distance from half to four times this one does as well. */
#define AHEAD_BYTES ((size_t)1024)

/* The least that a trial moves: fewer bytes would come from caches, or be moved before the clock
 * has advanced. */
#define TRIAL_BYTES ((size_t)32 << 20)
#define TRIALS      12u

/* A way replaces the usual way of its kind only if it is faster by this margin, since a measurement
 * holds only for a while. In the next minute another guest of the host may stop using the memory;
 * then plain loops lose a tenth with prefetching, encoded ones without. */
#define GAIN_PERCENT 3
static const int USUAL_WAY[SHERDI_AHEAD_KINDS] = {
    [SHERDI_AHEAD_PLAIN] = 0, [SHERDI_AHEAD_ENCODED] = 1};

static size_t bytes_of(const sherdi_ahead *ahead, sherdi_ahead_kind kind)
{
    if (ahead != NULL &&
        atomic_load_explicit(&ahead->choices[kind].is_without, memory_order_relaxed)) {
        return 0;
    }
    return AHEAD_BYTES;
}

size_t sherdi_ahead_bytes(const sherdi_backend *backend)
{
    return bytes_of(backend->ahead, SHERDI_AHEAD_PLAIN);
}

/* 0 1 1 0 1 0 0 1 ..: a sequence that does not coincide with a pattern of blocks. */
static int way_of(unsigned trial)
{
    return __builtin_parity(trial);
}

sherdi_ahead_trial sherdi_ahead_begin(const sherdi_backend *backend, int is_encoded, size_t bytes)
{
    sherdi_ahead_kind    kind   = is_encoded ? SHERDI_AHEAD_ENCODED : SHERDI_AHEAD_PLAIN;
    sherdi_ahead_choice *choice = backend->ahead == NULL ? NULL : &backend->ahead->choices[kind];
    sherdi_ahead_trial   none   = {.ahead_bytes = bytes_of(backend->ahead, kind)};
    unsigned             trial;

    if (choice == NULL || bytes < TRIAL_BYTES ||
        atomic_load_explicit(&choice->trials, memory_order_relaxed) >= TRIALS) {
        return none;
    }
    trial = atomic_fetch_add_explicit(&choice->trials, 1, memory_order_relaxed);
    if (trial >= TRIALS) {
        return none;
    }
    return (sherdi_ahead_trial){.ahead_bytes = way_of(trial) ? AHEAD_BYTES : 0,
                                .bytes       = bytes,
                                .kind        = kind,
                                .way         = way_of(trial),
                                .start_ns    = sherdi_now_ns()};
}

static int best_way(sherdi_ahead_choice *choice, sherdi_ahead_kind kind)
{
    int     usual    = USUAL_WAY[kind];
    int64_t usual_fs = choice->best_fs[usual];

    return choice->best_fs[!usual] < usual_fs - usual_fs / 100 * GAIN_PERCENT ? !usual : usual;
}

void sherdi_ahead_end(const sherdi_backend *backend, const sherdi_ahead_trial *trial)
{
    sherdi_ahead_choice *choice;
    int64_t              fs;
    int64_t              best;

    if (trial->bytes == 0) {
        return;
    }
    choice = &backend->ahead->choices[trial->kind];
    fs     = (sherdi_now_ns() - trial->start_ns) * 1000 * 1000 / (int64_t)trial->bytes;
    best   = atomic_load_explicit(&choice->best_fs[trial->way], memory_order_relaxed);
    if (best == 0 || fs < best) { /* of two calls at once one time may be lost, no more */
        atomic_store_explicit(&choice->best_fs[trial->way], fs, memory_order_relaxed);
    }
    if (atomic_fetch_add_explicit(&choice->trials_done, 1, memory_order_acq_rel) + 1 == TRIALS) {
        atomic_store_explicit(&choice->is_without, best_way(choice, trial->kind) == 0,
                              memory_order_relaxed);
    }
}
