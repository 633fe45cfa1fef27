/* What a backend learns from its first large updates (kernels/cpu/ahead.h): both ways are tried, the faster one stays. */
#include "base/clock.h"
#include "kernels/cpu/ahead.h"
#include "tests/lib/check.h"

#define LARGE ((size_t)64 << 20)
#define HOUR  ((int64_t)3600 * 1000 * 1000 * 1000)

static sherdi_backend *create(sherdi_mem *mem)
{
    sherdi_backend *backend = NULL;

    sherdi_mem_init(mem);
    CHECK_OK(sherdi_backend_cpu_create(1, mem, &backend));
    return backend;
}

/* Trials until there are no more, those of the `slow` way an hour longer than they are; returns how many. */
static int trials_run(const sherdi_backend *backend, int slow)
{
    for (int count = 0;; count++) {
        sherdi_ahead_trial trial = sherdi_ahead_begin(backend, LARGE);

        CHECK(count < 100);
        if (trial.bytes == 0) {
            return count;
        }
        CHECK_INT(trial.way, trial.ahead_bytes > 0);
        if (trial.way == slow) {
            trial.start_ns -= HOUR;
        }
        sherdi_ahead_end(backend, &trial);
    }
}

static void faster_way_stays(void)
{
    for (int slow = 0; slow < 2; slow++) {
        sherdi_mem      mem;
        sherdi_backend *backend = create(&mem);

        CHECK(sherdi_ahead_bytes(backend) > 0);
        CHECK(trials_run(backend, slow) > 2);
        CHECK_INT(slow == 0, sherdi_ahead_bytes(backend) > 0);
        CHECK_INT(0, trials_run(backend, !slow));
        CHECK_INT(slow == 0, sherdi_ahead_bytes(backend) > 0);
        sherdi_backend_destroy(backend);
    }
}

static void small_updates_are_no_trials(void)
{
    sherdi_mem         mem;
    sherdi_backend    *backend = create(&mem);
    sherdi_ahead_trial small   = sherdi_ahead_begin(backend, 1000);

    CHECK_INT(0, small.bytes);
    CHECK_INT(sherdi_ahead_bytes(backend), small.ahead_bytes);
    sherdi_ahead_end(backend, &small);
    CHECK(trials_run(backend, 1) > 2);
    sherdi_backend_destroy(backend);
}

static const test_case CASES[] = {
    CASE(faster_way_stays),
    CASE(small_updates_are_no_trials),
};

RUN_MAIN(CASES)
