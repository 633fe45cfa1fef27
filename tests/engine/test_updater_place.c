/* Where the updater and the kernel threads of an engine on a device run, and that its bits do not
 * depend on it. */
#include "engine/run/engine_impl.h"
#include "kernels/cpu/binding.h"
#include "tests/engine/rig.h"
#include "tests/engine/tier_rows.h"
#include "tests/lib/check.h"
#include "tests/lib/tasks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct run_case {
    cpu_set_t want;        /* where the threads of updates may run */
    uint64_t  fingerprint; /* result */
} run_case;

static void run_steps(sherd_world *world, void *raw)
{
    run_case   *run     = raw;
    rig_options options = {.stage = 3, .dtype = SHERD_BF16, .zero = TIER_STATE("cpu", "")};
    rig         r;
    cpu_set_t   updater, workers;
    char        zero[512];

    (void)snprintf(zero, sizeof(zero), options.zero, test_scratch());
    options.zero = zero;
    rig_open(&r, world, &options);
    rig_three(&r, 100000);
    rig_seal(&r);
    for (int step = 0; step < 3; step++) {
        rig_micro_batch(&r);
        CHECK_OK(sherd_step_queue(r.engine));
        r.micro++;
    }
    CHECK_OK(sherd_step_wait(r.engine, NULL));
    CHECK_INT(1, test_tasks_cpus("sherd-updater", &updater));
    CHECK(CPU_EQUAL(&run->want, &updater));
    CHECK_INT(r.engine->host->threads - 1, test_tasks_cpus("sherd-cpu-", &workers));
    CHECK(r.engine->host->threads == 1 || CPU_EQUAL(&run->want, &workers));
    run->fingerprint = rig_fingerprint(&r);
    rig_close(&r);
}

static uint64_t fingerprint_of(const char *bind, const char *threads, const cpu_set_t *want)
{
    run_case run = {.want = *want};

    CHECK_INT(0, setenv("SHERD_CPU_BIND", bind, 1));
    CHECK_INT(0, setenv("SHERD_THREADS", threads, 1));
    test_world(1, run_steps, &run);
    CHECK_INT(0, unsetenv("SHERD_CPU_BIND"));
    CHECK_INT(0, unsetenv("SHERD_THREADS"));
    return run.fingerprint;
}

static void updater_stays_on_a_list(void)
{
    cpu_set_t all, one;
    char      text[32];
    uint64_t  anywhere;
    int       cpu = CPU_SETSIZE - 1;

    CHECK_INT(0, sched_getaffinity(0, sizeof(all), &all));
    while (!CPU_ISSET((size_t)cpu, &all)) {
        cpu--;
    }
    CPU_ZERO(&one);
    CPU_SET((size_t)cpu, &one);
    (void)snprintf(text, sizeof(text), "%d", cpu);
    anywhere = fingerprint_of("none", "2", &all);
    CHECK(fingerprint_of("none", "5", &all) == anywhere);
    CHECK(fingerprint_of(text, "1", &one) == anywhere);
    CHECK(fingerprint_of(text, "", &one) == anywhere);
}

static void updater_stays_apart(void)
{
    const sherdi_cpu_params params = {.shares = 1, .rank = -1, .has_device = 1};
    sherdi_cpu_binding      binding;
    cpu_set_t               all;

    CHECK_INT(0, sched_getaffinity(0, sizeof(all), &all));
    CHECK_OK(sherdi_cpu_binding_find(&params, &binding));
    if (CPU_COUNT(&binding.updates) == 0) {
        test_skip("fewer than three cores of a NUMA node here");
    }
    CHECK(fingerprint_of("auto", "", &binding.updates) == fingerprint_of("none", "3", &all));
}

static const test_case CASES[] = {
    CASE(updater_stays_on_a_list),
    CASE(updater_stays_apart),
};

RUN_MAIN(CASES)
