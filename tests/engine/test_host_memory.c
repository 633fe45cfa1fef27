/* Host memory of an engine: what is locked is what the plan says, large buffers are on huge pages,
 * and queued steps add little and nothing to the plan. */
#include "engine/run/engine_impl.h"
#include "tests/engine/rig.h"
#include "tests/lib/check.h"
#ifdef TEST_EMULATED
#include "tests/emulator/emulator.h"
#endif

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_ADDED ((size_t)2 << 20) /* control data of queued steps */

static const char *zero_keys(const char *device)
{
    static char text[512];

    (void)snprintf(text, sizeof(text),
                   ", \"offload_optimizer\": {\"device\": \"%s\", \"nvme_path\": \"%s\", "
                   "\"durable\": false, \"pin_memory\": true}",
                   device, test_scratch());
    return text;
}

static const char *drive(void)
{
#ifdef SHERDI_HAVE_XXHASH
    return "nvme";
#else
    return "cpu";
#endif
}

static sherd_memory_report memory_of(const rig *r)
{
    sherd_memory_report report;

    sherd_memory_report_init(&report);
    CHECK_OK(sherd_engine_memory(r->engine, &report));
    return report;
}

/* Returns a line of a file of /proc/self, in bytes; -1: there is none. `after`: counts from this
 * text on. */
static long long proc_bytes(const char *path, const char *after, const char *key)
{
    FILE     *file = fopen(path, "re");
    char      line[512];
    int       is_after = after == NULL;
    long long kb       = -1;

    CHECK(file != NULL);
    while (kb < 0 && fgets(line, sizeof(line), file) != NULL) {
        is_after = is_after || strncmp(line, after, strlen(after)) == 0;
        if (is_after && strncmp(line, key, strlen(key)) == 0) {
            kb = strtoll(line + strlen(key), NULL, 10);
        }
    }
    (void)fclose(file);
    return kb < 0 ? -1 : kb * 1024;
}

/* ---------------------------------------------------------------- control -- */

typedef struct model_case {
    int    units;
    size_t elems; /* of each */
    int    is_queued;
    size_t added, bytes[SHERDI_BUFFERS]; /* results */
} model_case;

static void model_seal(sherd_world *world, model_case *run)
{
    rig_options         options = {.stage = 3, .dtype = SHERD_BF16, .zero = zero_keys(drive())};
    sherd_memory_report report;
    rig                 r;

    rig_open(&r, world, &options);
    for (int u = 0; u < run->units; u++) {
        sherd_unit_params  unit;
        sherd_param_params param;
        sherd_unit         handle;
        sherd_param        own;
        char               name[32];

        (void)snprintf(name, sizeof(name), "u%d", u);
        sherd_unit_params_init(&unit);
        sherd_param_params_init(&param);
        unit.name      = name;
        param.name     = name;
        param.ndim     = 1;
        param.shape[0] = run->elems;
        CHECK_OK(sherd_unit_add(r.engine, &unit, &handle));
        CHECK_OK(sherd_param_add(r.engine, handle, &param, &own));
    }
    CHECK_OK(sherd_engine_seal(r.engine));
    report     = memory_of(&r);
    run->added = report.control_updater;
    CHECK(r.engine->updater.is_there);
    CHECK_INT(report.control_held, report.control_model + report.control_plan + report.control_run +
                                       report.control_store + report.control_updater);
    CHECK_INT(report.total_planned, report.total_held);
    rig_close(&r);
}

/* Of GPT-2 124M's size, in its number of units, and of many small units; a rank of a simulated
 * world, which takes little memory. */
static void queued_steps_add_little_control_data(void)
{
    static const model_case MODELS[] = {{.units = 14, .elems = 8888320},
                                        {.units = 1000, .elems = 1000}};

    for (size_t i = 0; i < sizeof(MODELS) / sizeof(MODELS[0]); i++) {
        model_case   run = MODELS[i];
        sherd_world *world;

        CHECK_OK(sherd_world_simulate(0, 64, &world));
        model_seal(world, &run);
        sherd_world_destroy(world);
        CHECK(run.added > 0 && run.added <= MOST_ADDED);
    }
}

static void steps_run(sherd_world *world, void *raw)
{
    model_case *run     = raw;
    rig_options options = {.stage = 3, .dtype = SHERD_BF16, .zero = zero_keys(drive())};
    rig         r;

    rig_open(&r, world, &options);
    rig_three(&r, 3000);
    rig_seal(&r);
    for (int step = 0; step < 3; step++) {
        rig_micro_batch(&r);
        CHECK_OK(run->is_queued ? sherd_step_queue(r.engine) : sherd_step(r.engine, NULL));
        r.micro++;
        CHECK_INT(memory_of(&r).total_planned, memory_of(&r).total_held);
    }
    for (int b = 0; b < SHERDI_BUFFERS; b++) {
        run->bytes[b] = r.engine->plan->packing.buffers[b].bytes;
    }
    rig_close(&r);
}

static void no_buffer_grows_with_queued_steps(void)
{
    model_case waited = {.is_queued = 0}, queued = {.is_queued = 1};

    test_world(1, steps_run, &waited);
    test_world(1, steps_run, &queued);
    CHECK_BYTES_EQUAL(waited.bytes, queued.bytes, sizeof(waited.bytes));
}

/* ----------------------------------------------------------------- locked -- */

#ifdef TEST_EMULATED
static size_t locked_now(void)
{
    return emulator_registered();
}
#else
static size_t locked_now(void)
{
    long long pinned = proc_bytes("/proc/self/status", NULL, "VmPin:");

    if (pinned < 0) {
        test_skip("/proc/self/status has no VmPin");
    }
    return (size_t)pinned;
}
#endif

static void locked_body(sherd_world *world, void *raw)
{
    static const char *const DEVICES[] = {"cpu", "nvme"};

    (void)raw;
    for (size_t i = 0; i < (strcmp(drive(), "nvme") == 0 ? 2 : 1); i++) {
        rig_options options = {.stage = 3, .dtype = SHERD_BF16, .zero = zero_keys(DEVICES[i])};
        size_t      before  = locked_now();
        sherd_memory_report report;
        rig                 r;

        rig_open(&r, world, &options);
        rig_three(&r, 600007); /* no multiple of a page, a ring of more than a huge page */
        rig_seal(&r);
        report = memory_of(&r);
        CHECK(report.pinned_planned > 0 || strcmp(DEVICES[i], "cpu") == 0);
        if (report.pinned_held == 0 && report.pinned_planned > 0) {
            test_skip("no memory can be registered: no io_uring, or the limit on locked memory");
        }
        CHECK_INT(report.pinned_planned, report.pinned_held);
        CHECK_INT(report.pinned_planned, locked_now() - before);
        rig_close(&r);
#ifdef TEST_EMULATED
        CHECK_INT(before, locked_now()); /* the kernel takes its time with a ring's pages */
#endif
    }
}

static void locked_memory_is_what_the_plan_says(void)
{
    test_world(1, locked_body, NULL);
}

/* ------------------------------------------------------------- huge pages -- */

static int has_huge_pages(void)
{
    FILE *file     = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "re");
    char  text[64] = "";

    if (file != NULL) {
        (void)fgets(text, sizeof(text), file);
        (void)fclose(file);
    }
    return strstr(text, "[madvise]") != NULL || strstr(text, "[always]") != NULL;
}

static void huge_body(sherd_world *world, void *raw)
{
    rig_options options = {.stage = 1, .dtype = SHERD_BF16, .zero = zero_keys("cpu")};
    rig         r;
    char        start[32];
    size_t      bytes;

    (void)raw;
    rig_open(&r, world, &options);
    rig_three(&r, 1000000);
    CHECK_OK(sherd_engine_seal(r.engine));
    bytes = r.engine->plan->packing.buffers[SHERDI_BUFFER_HOST_STATE].bytes;
    CHECK(bytes > 16 * SHERDI_HUGE_BYTES);
    (void)snprintf(start, sizeof(start), "%lx-",
                   (unsigned long)(uintptr_t)r.engine->memory.buffers[SHERDI_BUFFER_HOST_STATE]);
    CHECK_INT(bytes, proc_bytes("/proc/self/smaps", start, "Rss:")); /* seal has touched all */
    CHECK(proc_bytes("/proc/self/smaps", start, "AnonHugePages:") >=
          (long long)(bytes / 2)); /* a machine may run out of them */
    rig_close(&r);
}

static void large_buffers_are_on_huge_pages(void)
{
    if (!has_huge_pages()) {
        test_skip("the kernel gives no huge pages (transparent_hugepage/enabled)");
    }
    test_world(1, huge_body, NULL);
}

static const test_case CASES[] = {
    CASE(queued_steps_add_little_control_data),
    CASE(no_buffer_grows_with_queued_steps),
    CASE(locked_memory_is_what_the_plan_says),
    CASE(large_buffers_are_on_huge_pages),
};

RUN_MAIN(CASES)
