/* What a backend learns from its first large updates (kernels/cpu/ahead.h): both ways are tried,
 * the faster one stays. */
#include "base/clock.h"
#include "kernels/cpu/ahead.h"
#include "tests/lib/check.h"
#include "tests/kernels/cpu.h"

#define LARGE ((size_t)64 << 20)
#define HOUR  ((int64_t)3600 * 1000 * 1000 * 1000)

static sherdi_backend *create(sherdi_mem *mem)
{
    sherdi_backend *backend = NULL;

    sherdi_mem_init(mem);
    CHECK_OK(cpu_create(1, mem, &backend));
    return backend;
}

static size_t ahead_of(const sherdi_backend *backend, sherdi_ahead_kind kind)
{
    return sherdi_ahead_begin(backend, kind, 1000).ahead_bytes;
}

/* Trials until there are no more, those of the `slow` way longer by so much, with the other an hour
 * long; returns how many. */
static int trials_run(const sherdi_backend *backend, sherdi_ahead_kind kind, int slow,
                      int64_t more_ns)
{
    for (int count = 0;; count++) {
        sherdi_ahead_trial trial = sherdi_ahead_begin(backend, kind, LARGE);

        CHECK(count < 100);
        if (trial.bytes == 0) {
            return count;
        }
        CHECK_INT(trial.way, trial.ahead_bytes > 0);
        trial.start_ns -= trial.way == slow ? HOUR + more_ns : HOUR;
        sherdi_ahead_end(backend, &trial);
    }
}

/* With a way that takes so much longer; returns whether caches are filled ahead then. */
static int choice_after(sherdi_ahead_kind kind, int slow, int64_t more_ns)
{
    sherdi_mem      mem;
    sherdi_backend *backend = create(&mem);
    int             is_ahead;

    CHECK(ahead_of(backend, kind) > 0);
    CHECK(trials_run(backend, kind, slow, more_ns) > 2);
    is_ahead = ahead_of(backend, kind) > 0;
    CHECK_INT(0, trials_run(backend, kind, !slow, more_ns));
    CHECK_INT(is_ahead, ahead_of(backend, kind) > 0);
    CHECK(ahead_of(backend, !kind) > 0); /* not tried */
    sherdi_backend_destroy(backend);
    return is_ahead;
}

static void faster_way_stays(void)
{
    for (int kind = 0; kind < SHERDI_AHEAD_KINDS; kind++) {
        CHECK(choice_after((sherdi_ahead_kind)kind, 0, HOUR));
        CHECK(!choice_after((sherdi_ahead_kind)kind, 1, HOUR));
    }
}

static void little_faster_is_not_enough(void)
{
    for (int slow = 0; slow < 2; slow++) {
        CHECK(!choice_after(SHERDI_AHEAD_PLAIN, slow, HOUR / 50));
        CHECK(choice_after(SHERDI_AHEAD_ENCODED, slow, HOUR / 50));
    }
}

static void small_updates_are_no_trials(void)
{
    sherdi_mem         mem;
    sherdi_backend    *backend = create(&mem);
    sherdi_ahead_trial small   = sherdi_ahead_begin(backend, SHERDI_AHEAD_PLAIN, 1000);

    CHECK_INT(0, small.bytes);
    CHECK_INT(sherdi_ahead_bytes(backend), small.ahead_bytes);
    sherdi_ahead_end(backend, &small);
    CHECK(trials_run(backend, SHERDI_AHEAD_PLAIN, 1, HOUR) > 2);
    CHECK_INT(0, sherdi_ahead_bytes(backend));
    sherdi_backend_destroy(backend);
}

static const test_case CASES[] = {
    CASE(faster_way_stays),
    CASE(little_faster_is_not_enough),
    CASE(small_updates_are_no_trials),
};

RUN_MAIN(CASES)
