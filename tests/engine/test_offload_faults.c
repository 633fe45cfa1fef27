/* Drives that break while an engine trains: a request that fails or falls short, at every request of a
 * step; a full file system; a file that somebody deletes; a process killed at any moment. The outcome is an
 * error or a complete state, never another number and never a hang. */
#include "sherd_build.h"
#include "tests/engine/rig.h"
#include "tests/lib/check.h"
#include "tests/offload/fault_uring.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define STEPS 3 /* the second one meets the fault */
#define ELEMS 3000

static const char *const ENGINES[] = {"io_uring", "threads"};

/* Everything on the drive, in small blocks; `more` are keys of offload_optimizer. With encoded state parameters are in host
 * memory: then an update does not read what it writes of them (SHERD_TEST_STATE). */
static const char *nvme_keys(const char *more, char out[1024])
{
    (void)snprintf(out, 1024,
                   ", \"sub_group_size\": 2048, \"offload_optimizer\": {\"device\": \"nvme\","
                   " \"nvme_path\": \"%s\"%s}, \"offload_param\": {\"device\": \"nvme\","
                   " \"nvme_path\": \"%s\", \"max_in_cpu\": %s}",
                   test_scratch(), more, test_scratch(),
                   getenv("SHERD_TEST_STATE") == NULL ? "0" : "1e9");
    return out;
}

static const char *groups = ""; /* ", \"sherd\": ..." */

static rig_options options_of(const char *keys)
{
    return (rig_options){
        .stage = 3, .accumulation = 1, .dtype = SHERD_BF16, .clip = 1, .zero = keys, .top = groups};
}

/* A micro-batch and its step whose failures are told. */
static sherd_status step_try(rig *r, sherd_step_report *report)
{
    for (int u = 0; u < 2 * r->num_units; u++) {
        int          is_forward = u < r->num_units;
        int          unit       = is_forward ? u : 2 * r->num_units - 1 - u;
        sherd_pass   pass       = is_forward ? SHERD_FORWARD : SHERD_BACKWARD;
        sherd_status status     = sherd_unit_acquire(r->engine, r->units[unit], pass);

        if (status == SHERD_OK && !is_forward) {
            rig_touch(r, unit, 1);
        }
        if (status == SHERD_OK) {
            status = sherd_unit_release(r->engine, r->units[unit], pass);
        }
        if (status != SHERD_OK) {
            return status;
        }
    }
    sherd_step_report_init(report);
    return sherd_step(r->engine, report);
}

static uint64_t reference[STEPS + 4]; /* fingerprints after each step, in memory */

static void reference_train(sherd_world *world, void *ctx)
{
    rig         r;
    rig_options options = options_of("");

    (void)ctx;
    rig_open(&r, world, &options);
    rig_three(&r, ELEMS);
    rig_seal(&r);
    reference[0] = rig_fingerprint(&r);
    for (size_t step = 1; step < sizeof(reference) / sizeof(reference[0]); step++) {
        reference[step] = rig_train(&r, 1).fingerprint;
    }
    rig_close(&r);
}

/* ------------------------------------------------------- the n-th request -- */

typedef struct fault_run {
    fault_kind   kind;
    int          nth;
    int          count;  /* requests that were seen in the step */
    sherd_status status; /* of the step */
    const char  *more;
    int          is_undone; /* else the run is gone on from */
} fault_run;

/* After an error the state is that of a whole step, and training goes on from it to the same numbers: by
 * itself where nothing was written, by the undo where the update had begun. */
static sherd_status recover(rig *r, int64_t step)
{
    sherd_step_report report;
    sherd_engine_info info;
    uint64_t          fingerprint;
    sherd_status      status = sherd_engine_fingerprint(r->engine, &fingerprint);

    if (status != SHERD_OK) { /* the update had begun */
        CHECK_INT(SHERD_E_STATE, status);
        CHECK_OK(sherd_step_undo(r->engine));
        CHECK_OK(sherd_engine_fingerprint(r->engine, &fingerprint));
    }
    sherd_engine_info_init(&info);
    CHECK_OK(sherd_engine_query(r->engine, &info));
    CHECK_INT(step, info.step);
    CHECK_INT(reference[step], fingerprint);
    CHECK_OK(sherd_step_discard(r->engine));
    return step_try(r, &report);
}

/* What is on the drive after an update that failed, and its commit perhaps, is one of the two steps, whole. */
static void reopen(rig *r, sherd_world *world, const char *more)
{
    char              keys[1024];
    char              all[512];
    rig_options       options;
    sherd_engine_info info;

    (void)snprintf(all, sizeof(all), ", \"resume\": true%s", more);
    options = options_of(nvme_keys(all, keys));
    rig_close(r);
    *r = (rig){0};
    rig_open(r, world, &options);
    rig_three(r, ELEMS);
    rig_seal(r);
    sherd_engine_info_init(&info);
    CHECK_OK(sherd_engine_query(r->engine, &info));
    CHECK(info.is_resumed && (info.step == 1 || info.step == 2));
    CHECK_INT(reference[info.step], rig_fingerprint(r));
    r->micro = 1;
    if (info.step == 1) {
        CHECK_INT(reference[2], rig_train(r, 1).fingerprint);
        r->micro = 1; /* the loop counts it */
    }
}

static void fault_train(sherd_world *world, void *ctx)
{
    fault_run        *run = ctx;
    rig               r;
    char              keys[1024];
    rig_options       options = options_of(nvme_keys(run->more, keys));
    sherd_step_report report  = {0};

    rig_open(&r, world, &options);
    rig_three(&r, ELEMS);
    rig_seal(&r);
    for (int64_t step = 1; step <= STEPS; step++, r.micro++) {
        if (step != 2) {
            sherd_status status = step_try(&r, &report);

            if (step == 3 &&
                status == SHERD_E_IO) { /* the fault met what was read ahead for this step */
                status = recover(&r, step - 1);
                CHECK_OK(status);
                CHECK_OK(sherd_step_wait(r.engine, &report));
            }
            CHECK_OK(status);
        } else {
            fault_arm(run->kind, FAULT_ANY, run->nth, 1);
            run->status = step_try(&r, &report);
            run->count  = fault_seen();
            fault_arm(FAULT_NONE, FAULT_ANY, 0, 0);
            if (run->status != SHERD_OK) {
                CHECK_INT(SHERD_E_IO, run->status);
                CHECK(strlen(sherd_last_error()) > 20);
                CHECK_OK(recover(&r, step - 1));
                CHECK_OK(sherd_step_wait(r.engine, &report));
            }
        }
        CHECK_INT(reference[step], report.fingerprint);
    }
    rig_close(&r);
}

/* Every one in the long list. Else io_uring has the odd requests and the threads the even ones; of those with encoded state,
 * every fourth. */
static int stride(void)
{
    return test_is_long() ? 1 : getenv("SHERD_TEST_STATE") != NULL ? 4 : 2;
}

static void every_request_fails_once(fault_kind kind, int may_fail, const char *more)
{
    test_world(1, reference_train, NULL);
    for (size_t e = 0; e < 2; e++) {
        fault_run run    = {.more = more};
        int       failed = 0;

        if (setenv("SHERD_IO", ENGINES[e], 1) != 0) {
            test_fail(__FILE__, __LINE__, "setenv");
        }
        if (e == 0 && !fault_can_inject()) {
            continue;
        }
        test_world(1, fault_train, &run); /* nothing armed: counts */
        CHECK_INT(SHERD_OK, run.status);
        CHECK(run.count > 10);
        for (int nth = 1 + (int)e % stride(), count = run.count; nth <= count; nth += stride()) {
            run.kind = kind;
            run.nth  = nth;
            test_world(1, fault_train, &run);
            failed += run.status != SHERD_OK;
        }
        CHECK(may_fail ? failed > 0 : failed == 0);
        (void)printf("  faults: %d\n", run.count);
    }
    (void)unsetenv("SHERD_IO");
}

static void eio_at_every_request_is_an_error_and_no_number(void)
{
    every_request_fails_once(FAULT_EIO, 1, "");
}

static void eio_with_gradients_on_nvme(void)
{
    every_request_fails_once(FAULT_EIO, 1, ", \"gradients\": \"nvme\", \"buffer_count\": 2");
}

/* Two sweeps beside one: what fails in the first of them leaves the old state whole. */
static void eio_where_lamb_stands_beside_adamw(void)
{
    groups = ", \"sherd\": {\"groups\": [{\"name\": \"tensors\", \"type\": \"Lamb\", "
             "\"matching\": [\"b.w\"]}]}";
    every_request_fails_once(FAULT_EIO, 1, ", \"buffer_count\": 2");
    groups = "";
}

static void enospc_at_every_request_is_an_error_and_no_number(void)
{
    every_request_fails_once(FAULT_ENOSPC, 1,
                             ", \"pipeline_read\": false, \"pipeline_write\": false");
}

static void short_transfers_at_every_request_change_nothing(void)
{
    every_request_fails_once(FAULT_SHORT, 0, ", \"verify_reads\": true");
}

/* The kinds of failure under the settings of the others, and in blocks that are read one at a time. */
static void requests_fail_in_other_layouts(void)
{
    static const char *const MORE[] = {", \"buffer_count\": 1", ", \"gradients\": \"nvme\"",
                                       ", \"verify_reads\": true", ", \"fast_init\": true"};

    test_need_long();
    for (size_t i = 0; i < sizeof(MORE) / sizeof(MORE[0]); i++) {
        every_request_fails_once(FAULT_EIO, 1, MORE[i]);
        every_request_fails_once(FAULT_ENOSPC, 1, MORE[i]);
        every_request_fails_once(FAULT_SHORT, 0, MORE[i]);
    }
}

static void interrupted_requests_change_nothing(void)
{
    every_request_fails_once(FAULT_EINTR, 0, "");
    every_request_fails_once(FAULT_EAGAIN, 0, ", \"gradients\": \"nvme\"");
}

/* A fault while first values are written: the same call again makes it good, or the training does not begin. */
static void fault_fill(sherd_world *world, void *ctx)
{
    fault_run  *run = ctx;
    rig         r;
    char        keys[1024];
    rig_options options =
        options_of(nvme_keys(", \"buffer_count\": 1, \"pipeline_read\": false", keys));

    rig_open(&r, world, &options);
    rig_three(&r, ELEMS);
    CHECK_OK(sherd_engine_seal(r.engine));
    fault_arm(run->kind, FAULT_ANY, run->nth, 1);
    for (int p = 0; p < r.num_params; p++) {
        void        *which  = (void *)(uintptr_t)p;
        sherd_status status = sherd_param_fill(r.engine, r.params[p].handle, rig_fill, which);

        if (status != SHERD_OK) {
            CHECK_INT(SHERD_E_IO, status);
            CHECK_OK(sherd_param_fill(r.engine, r.params[p].handle, rig_fill, which));
        }
    }
    run->status = sherd_unit_acquire(r.engine, r.units[0], SHERD_EVAL);
    run->count  = fault_seen();
    fault_arm(FAULT_NONE, FAULT_ANY, 0, 0);
    if (run->status == SHERD_OK) {
        rig_release(&r, 0, SHERD_EVAL);
        CHECK_INT(reference[0], rig_fingerprint(&r));
        CHECK_INT(reference[1], rig_train(&r, 1).fingerprint);
    }
    rig_close(&r);
}

/* Parameters in disorder, one of them twice; what comes back is what was written. */
static void fault_fill_in_disorder(sherd_world *world, void *ctx)
{
    static const struct {
        int param, values;
    } FILLS[] = {{1, 7}, {0, 0}, {2, 2}, {0, 0}, {1, 1}};

    fault_run  *run = ctx;
    rig         r;
    char        keys[1024];
    rig_options options = options_of(nvme_keys(run->more, keys));

    rig_open(&r, world, &options);
    rig_three(&r, ELEMS);
    CHECK_OK(sherd_engine_seal(r.engine));
    fault_arm(run->kind, FAULT_ANY, run->nth, 1);
    for (size_t i = 0; i < sizeof(FILLS) / sizeof(FILLS[0]); i++) {
        void        *which  = (void *)(uintptr_t)FILLS[i].values;
        sherd_param  handle = r.params[FILLS[i].param].handle;
        sherd_status status = sherd_param_fill(r.engine, handle, rig_fill, which);

        if (status != SHERD_OK) {
            CHECK_INT(SHERD_E_IO, status);
            CHECK_OK(sherd_param_fill(r.engine, handle, rig_fill, which));
        }
    }
    run->status = sherd_unit_acquire(r.engine, r.units[0], SHERD_EVAL);
    if (run->status == SHERD_E_IO) { /* what could not be written at the end */
        run->status = sherd_unit_acquire(r.engine, r.units[0], SHERD_EVAL);
    }
    run->count = fault_seen();
    fault_arm(FAULT_NONE, FAULT_ANY, 0, 0);
    if (run->status == SHERD_OK) {
        rig_release(&r, 0, SHERD_EVAL);
        CHECK_INT(reference[0], rig_fingerprint(&r));
        CHECK_INT(reference[1], rig_train(&r, 1).fingerprint);
    }
    rig_close(&r);
}

static void eio_at_every_request_of_a_fill_in_disorder_is_an_error_and_no_number(void)
{
    int step = test_is_long() ? 1 : 2, whole = 0;

    (void)setenv("SHERD_IO", "threads", 1);
    test_world(1, reference_train, NULL);
    for (int slots = 1; slots <= 3; slots++) {
        char      more[64];
        fault_run run = {.kind = FAULT_EIO, .more = more};

        (void)snprintf(more, sizeof(more), ", \"pipeline_read\": %s, \"buffer_count\": %d",
                       slots == 2 ? "false" : "true", slots);
        test_world(1, fault_fill_in_disorder, &run);
        CHECK_INT(SHERD_OK, run.status);
        CHECK(run.count > 10);
        for (int nth = 1 + slots % step, count = run.count; nth <= count; nth += step) {
            run.nth = nth;
            test_world(1, fault_fill_in_disorder, &run);
            whole += run.status == SHERD_OK;
        }
    }
    CHECK(whole > 0); /* reads, and what is written of the parameters alone */
    (void)unsetenv("SHERD_IO");
}

static void eio_at_every_request_of_the_fill_is_an_error_and_no_number(void)
{
    fault_run run = {.kind = FAULT_EIO};

    (void)setenv("SHERD_IO", "threads", 1);
    test_world(1, reference_train, NULL);
    test_world(1, fault_fill, &run);
    CHECK_INT(SHERD_OK, run.status);
    CHECK(run.count > 10);
    for (int nth = 1, count = run.count; nth <= count; nth++) {
        run.nth = nth;
        test_world(1, fault_fill, &run);
        fault_late(2000); /* when the write beside it is over, and the slot is wanted */
        test_world(1, fault_fill, &run);
        fault_late(0);
    }
    (void)unsetenv("SHERD_IO");
}

/* Several ranks: whoever meets the fault, all of them end with an error or with the right number. */
typedef struct ranks_run {
    int          nth;
    int          count;
    sherd_status status[2];
} ranks_run;

static void ranks_train(sherd_world *world, void *ctx)
{
    ranks_run        *run  = ctx;
    int               rank = sherd_world_rank(world);
    rig               r;
    char              keys[1024];
    rig_options       options = options_of(nvme_keys("", keys));
    sherd_step_report report  = {0};
    sherd_status      status;

    rig_open(&r, world, &options);
    rig_three(&r, ELEMS);
    rig_seal(&r);
    CHECK_OK(step_try(&r, &report));
    r.micro++;
    CHECK_OK(sherd_world_barrier(world));
    if (rank == 0) {
        fault_arm(run->nth > 0 ? FAULT_EIO : FAULT_NONE, FAULT_ANY, run->nth, 1);
    }
    CHECK_OK(sherd_world_barrier(world));
    status            = step_try(&r, &report);
    run->status[rank] = status;
    if (status == SHERD_OK) {
        status = sherd_world_barrier(world);
        if (rank == 0 && status == SHERD_OK) {
            run->count = fault_seen();
            fault_arm(FAULT_NONE, FAULT_ANY, 0, 0);
        }
        status = sherd_world_barrier(world);
    }
    rig_close(&r);
}

static void a_rank_that_fails_fails_all(void)
{
    ranks_run run = {0};

    (void)setenv("SHERD_IO", "threads", 1);
    test_world(2, ranks_train, &run);
    CHECK_INT(SHERD_OK, run.status[0]);
    CHECK(run.count > 20);
    for (int nth = 1, count = run.count; nth <= count; nth += test_is_long() ? 1 : 3) {
        run.nth = nth;
        test_world(2, ranks_train, &run);
        fault_arm(FAULT_NONE, FAULT_ANY, 0, 0);
        CHECK((run.status[0] == SHERD_OK) == (run.status[1] == SHERD_OK));
    }
    (void)unsetenv("SHERD_IO");
}

/* ------------------------------------------------------------- full, deleted -- */

/* Real limit, in a child: no file may grow past 64 KiB. */
static void no_room_is_an_error_at_seal(void)
{
    pid_t child;
    int   status;

    test_files_remove(test_scratch(), ""); /* of the cases before */
    child = fork();
    if (child == 0) {
        struct rlimit      limit = {65536, 65536};
        char               keys[1024];
        rig_options        options = options_of(nvme_keys("", keys));
        sherd_world       *world;
        sherd_engine      *engine;
        sherd_unit_params  unit;
        sherd_param_params param;
        sherd_unit         u;
        sherd_param        p;

        (void)signal(SIGXFSZ, SIG_IGN);
        if (setrlimit(RLIMIT_FSIZE, &limit) != 0 || sherd_world_self(&world) != SHERD_OK ||
            rig_create(world, rig_json(&options), &engine) != SHERD_OK) {
            _exit(2);
        }
        sherd_unit_params_init(&unit);
        unit.name = "u";
        sherd_param_params_init(&param);
        param.name     = "w";
        param.ndim     = 1;
        param.shape[0] = 100000;
        if (sherd_unit_add(engine, &unit, &u) != SHERD_OK ||
            sherd_param_add(engine, u, &param, &p) != SHERD_OK) {
            _exit(3);
        }
        if (sherd_engine_seal(engine) != SHERD_E_IO ||
            strstr(sherd_last_error(), test_scratch()) == NULL) {
            (void)fprintf(stderr, "%s\n", sherd_last_error());
            _exit(4);
        }
        sherd_engine_destroy(engine);
        sherd_world_destroy(world);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status));
    CHECK_INT(0, WEXITSTATUS(status));
    CHECK_INT(0, test_files(test_scratch(), ""));
}

static void deleted_train(sherd_world *world, void *ctx)
{
    rig         r;
    char        keys[1024];
    rig_options options = options_of(nvme_keys("", keys));

    (void)ctx;
    rig_open(&r, world, &options);
    rig_three(&r, ELEMS);
    rig_seal(&r);
    CHECK_INT(reference[1], rig_train(&r, 1).fingerprint);
    test_files_remove(test_scratch(), "");
    for (int step = 2; step <= STEPS; step++) {
        CHECK_INT(reference[step], rig_train(&r, 1).fingerprint);
    }
    rig_close(&r);
}

/* The open file lives on: training goes on with the right numbers, and the log has said what is lost. */
static void a_deleted_file_trains_on(void)
{
    test_world(1, reference_train, NULL);
    test_world(1, deleted_train, NULL);
    CHECK_INT(0, test_files(test_scratch(), ""));
}

/* ------------------------------------------------------------ flipped bits -- */

/* One bit in each page of all slots. */
static void bits_flip(void)
{
    DIR           *dir = opendir(test_scratch());
    struct dirent *entry;

    CHECK(dir != NULL);
    while ((entry = readdir(dir)) != NULL) {
        char          path[1024];
        unsigned char byte;
        off_t         at;
        int           fd;

        (void)snprintf(path, sizeof(path), "%s/%s", test_scratch(), entry->d_name);
        if (strstr(entry->d_name, ".slots-") == NULL) {
            continue;
        }
        fd = open(path, O_RDWR | O_CLOEXEC);
        CHECK(fd >= 0);
        for (at = 100; pread(fd, &byte, 1, at) == 1; at += 4096) {
            byte ^= 4;
            CHECK(pwrite(fd, &byte, 1, at) == 1);
        }
        CHECK(fsync(fd) == 0); /* before somebody reads around the cache */
        (void)close(fd);
    }
    (void)closedir(dir);
}

static void flipped_train(sherd_world *world, void *ctx)
{
    rig               r;
    char              keys[1024];
    rig_options       options = options_of(nvme_keys(ctx, keys));
    sherd_step_report report;

    rig_open(&r, world, &options);
    rig_three(&r, ELEMS);
    rig_seal(&r);
    CHECK_INT(reference[1], rig_train(&r, 1).fingerprint);
    bits_flip();
    CHECK_STATUS(SHERD_E_IO, step_try(&r, &report));
    CHECK(strstr(sherd_last_error(), ".slots-") != NULL);
    CHECK(sherd_step_undo(r.engine) != SHERD_OK); /* both slots are damaged */
    rig_close(&r);
}

static void resume_refused(sherd_world *world, void *ctx)
{
    rig         r;
    char        keys[1024];
    rig_options options = options_of(nvme_keys(", \"resume\": true", keys));

    (void)ctx;
    rig_open(&r, world, &options);
    rig_three(&r, ELEMS);
    CHECK_STATUS(SHERD_E_IO, sherd_engine_seal(r.engine));
    CHECK(strstr(sherd_last_error(), ".slots-") != NULL);
    rig_close(&r);
}

/* What was filled is compared when the first update reads it, and after that only where it is asked for. */
static void flipped_after_the_fill(sherd_world *world, void *ctx)
{
    rig               r;
    char              keys[1024];
    rig_options       options = options_of(nvme_keys("", keys));
    sherd_step_report report;

    (void)ctx;
    rig_open(&r, world, &options);
    rig_three(&r, ELEMS);
    rig_seal(&r);
    rig_acquire(&r, 0, SHERD_EVAL); /* what was filled is committed */
    rig_release(&r, 0, SHERD_EVAL);
    bits_flip();
    CHECK_STATUS(SHERD_E_IO, step_try(&r, &report));
    CHECK_ERROR_SAYS("does not hold what was written");
    rig_close(&r);
}

/* Caught on the next read where that is asked for, and always when a run goes on from it. */
static void a_flipped_bit_is_found(void)
{
    test_world(1, flipped_after_the_fill, NULL);
    test_files_remove(test_scratch(), "");
    test_world(1, reference_train, NULL);
    test_world(1, flipped_train, ", \"verify_reads\": true");
    CHECK_INT(1, test_files(test_scratch(), ".state")); /* a run that failed leaves its state */
    test_world(1, resume_refused, NULL);
    test_files_remove(test_scratch(), "");
}

/* ------------------------------------------------------------ broken for good -- */

/* From one request on nothing works. */
static void broken_train(sherd_world *world, void *ctx)
{
    fault_run        *run = ctx;
    rig               r;
    char              keys[1024];
    rig_options       options = options_of(nvme_keys(run->more, keys));
    sherd_step_report report  = {0};
    uint64_t          fingerprint;

    rig_open(&r, world, &options);
    rig_three(&r, ELEMS);
    rig_seal(&r);
    CHECK_OK(step_try(&r, &report));
    r.micro++;
    fault_arm(run->kind, FAULT_ANY, run->nth, 0);
    run->status = step_try(&r, &report);
    run->count  = fault_seen();
    if (run->status != SHERD_OK &&
        sherd_engine_fingerprint(r.engine, &fingerprint) == SHERD_E_STATE) {
        CHECK_STATUS(SHERD_E_STATE, sherd_step_discard(r.engine)); /* of no use, and it says so */
        CHECK_ERROR_SAYS("sherd_step_undo goes back to the step before");
        CHECK_STATUS(SHERD_E_IO, sherd_step_undo(r.engine));
        CHECK_STATUS(SHERD_E_STATE, sherd_step_discard(r.engine));
        fault_arm(FAULT_NONE, FAULT_ANY, 0, 0);
        if (run->is_undone) { /* the drive works again */
            CHECK_OK(recover(&r, 1));
            CHECK_OK(sherd_step_wait(r.engine, &report));
            CHECK_INT(reference[2], report.fingerprint);
        } else {
            reopen(&r, world, run->more);
        }
        r.micro++;
        CHECK_INT(reference[3], rig_train(&r, 1).fingerprint);
    }
    fault_arm(FAULT_NONE, FAULT_ANY, 0, 0);
    rig_close(&r);
}

static void a_drive_that_breaks_in_the_update_is_undone_when_it_works_again(void)
{
    fault_run run = {.kind = FAULT_EIO, .more = ""};

    test_files_remove(test_scratch(), "");
    test_world(1, reference_train, NULL);
    (void)setenv("SHERD_IO", "threads", 1);
    test_world(1, broken_train, &run);
    CHECK_INT(SHERD_OK, run.status);
    for (int nth = 2, count = run.count; nth <= 2 * count + 1; nth++) {
        run.nth       = nth / 2;
        run.is_undone = nth % 2;
        test_world(1, broken_train, &run);
        test_files_remove(test_scratch(), "");
    }
    (void)unsetenv("SHERD_IO");
}

/* ------------------------------------------------------- what the others hear -- */

typedef struct told_run {
    sherd_status status[2];
    char         text[2][512];
} told_run;

static void told_note(told_run *run, int rank, sherd_status status)
{
    run->status[rank] = status;
    (void)snprintf(run->text[rank], sizeof(run->text[0]), "%s", sherd_last_error());
}

/* The drive fails when the filled state is committed. */
static void first_commit_fails(sherd_world *world, void *ctx)
{
    int         rank = sherd_world_rank(world);
    rig         r;
    char        keys[1024];
    rig_options options = options_of(nvme_keys("", keys));

    rig_open(&r, world, &options);
    rig_three(&r, ELEMS);
    rig_seal(&r);
    CHECK_OK(sherd_world_barrier(world));
    if (rank == 0) {
        fault_arm(FAULT_EIO, FAULT_WRITES, 1, 1); /* whoever comes first */
    }
    CHECK_OK(sherd_world_barrier(world));
    told_note(ctx, rank, sherd_unit_acquire(r.engine, r.units[0], SHERD_FORWARD));
    CHECK_OK(sherd_world_barrier(world));
    fault_arm(FAULT_NONE, FAULT_ANY, 0, 0);
    rig_close(&r);
}

static void resume_told(sherd_world *world, void *ctx)
{
    rig         r;
    char        keys[1024];
    rig_options options = options_of(nvme_keys(", \"resume\": true", keys));

    rig_open(&r, world, &options);
    rig_three(&r, ELEMS);
    told_note(ctx, sherd_world_rank(world), sherd_engine_seal(r.engine));
    rig_close(&r);
}

static void keep_train(sherd_world *world, void *ctx)
{
    rig         r;
    char        keys[1024];
    rig_options options = options_of(nvme_keys(", \"keep\": true", keys));

    (void)ctx;
    rig_open(&r, world, &options);
    rig_three(&r, ELEMS);
    rig_seal(&r);
    (void)rig_train(&r, 1);
    rig_close(&r);
}

static void expect_told(const told_run *run, const char *words)
{
    for (int rank = 0; rank < 2; rank++) {
        CHECK(run->status[rank] == SHERD_E_IO);
        CHECK(strstr(run->text[rank], "not filled") == NULL);
        CHECK(strstr(run->text[rank], "middle of the update") == NULL);
    }
    CHECK(strstr(run->text[0], words) != NULL || strstr(run->text[1], words) != NULL);
}

static void the_others_hear_what_failed(void)
{
    told_run run = {0};

    test_files_remove(test_scratch(), "");
    (void)setenv("SHERD_IO", "threads", 1);
    test_world(2, first_commit_fails, &run);
    expect_told(&run, "could not begin its state");
    test_world(2, keep_train, NULL);
    CHECK_INT(2, test_files(test_scratch(), ".state"));
    bits_flip();
    memset(&run, 0, sizeof(run));
    test_world(2, resume_told, &run);
    for (int rank = 0; rank < 2; rank++) {
        CHECK_INT(SHERD_E_IO, run.status[rank]);
        CHECK(strstr(run.text[rank], "middle of the update") == NULL);
        CHECK(strstr(run.text[rank], "while it read its state back") != NULL ||
              strstr(run.text[rank], ".slots-") != NULL);
    }
    CHECK_INT(2, test_files(test_scratch(), ".state")); /* what could not be read stays */
    test_files_remove(test_scratch(), "");
    (void)unsetenv("SHERD_IO");
}

/* --------------------------------------------------------------------- undo -- */

static void undo_train(sherd_world *world, void *ctx)
{
    rig               r;
    char              keys[1024];
    rig_options       options = options_of(nvme_keys(ctx, keys));
    sherd_engine_info info;

    rig_open(&r, world, &options);
    rig_three(&r, ELEMS);
    rig_seal(&r);
    CHECK_INT(SHERD_E_STATE, sherd_step_undo(r.engine)); /* nothing to undo */
    (void)rig_train(&r, 3);
    CHECK_OK(sherd_step_undo(r.engine));
    CHECK_INT(reference[2], rig_fingerprint(&r));
    sherd_engine_info_init(&info);
    CHECK_OK(sherd_engine_query(r.engine, &info));
    CHECK_INT(2, info.step);
    CHECK_INT(2, info.micro_step);
    CHECK_INT(SHERD_E_STATE, sherd_step_undo(r.engine)); /* once */
    r.micro = 2;
    CHECK_INT(reference[3], rig_train(&r, 1).fingerprint);
    CHECK_INT(reference[4], rig_train(&r, 1).fingerprint);
    CHECK_OK(sherd_step_undo(r.engine));
    r.micro = 3;
    CHECK_INT(reference[4], rig_train(&r, 1).fingerprint);
    CHECK_INT(reference[5], rig_train(&r, 1).fingerprint);
    rig_close(&r);
}

static void the_last_step_is_undone(void)
{
    test_world(1, reference_train, NULL);
    test_world(1, undo_train, "");
    test_world(1, undo_train, ", \"gradients\": \"nvme\", \"verify_reads\": true");
}

/* Every stage, several ranks, small parameters that stay whole: what is published again is what was. */
static void undo_everywhere_train(sherd_world *world, void *ctx)
{
    const int  *stage = ctx;
    char        keys[1024];
    rig_options options = options_of(keys);
    uint64_t    want[4];
    float       before[ELEMS];
    float       after[ELEMS];
    rig         r;

    (void)snprintf(keys, sizeof(keys),
                   ", \"stage3_param_persistence_threshold\": 3100, \"sub_group_size\": 2048,"
                   " \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\","
                   " \"durable\": false}",
                   test_scratch());
    options.stage = *stage;
    rig_open(&r, world, &options);
    rig_three(&r, ELEMS);
    rig_seal(&r);
    for (int step = 0; step < 3; step++) {
        want[step] = rig_train(&r, 1).fingerprint;
        if (step == 1) {
            rig_values(&r, 0, before);
        }
    }
    CHECK_OK(sherd_step_undo(r.engine));
    CHECK_INT(want[1], rig_fingerprint(&r));
    rig_values(&r, 0, after);
    CHECK(memcmp(before, after, sizeof(before)) == 0);
    r.micro = 2;
    CHECK_INT(want[2], rig_train(&r, 1).fingerprint);
    rig_close(&r);
}

static void the_last_step_is_undone_at_every_stage(void)
{
    for (int stage = 1; stage <= 3; stage++) {
        test_world(1, undo_everywhere_train, &stage);
        test_world(3, undo_everywhere_train, &stage);
    }
}

/* --------------------------------------------------------------------- kill -- */

#define KILLS      (test_is_long() ? 500 : 50)
#define KILL_RANKS 2
#define MOST_STEPS 400

/* Goes on from what is there until it is killed or has done its steps. */
typedef struct killed_run {
    int64_t  more;            /* steps to go; 0: up to MOST_STEPS, and then it waits to be killed */
    int      ready;           /* a pipe, for a byte behind the first step */
    int64_t  first;           /* out: where it began */
    uint64_t fingerprints[2]; /* out: at the beginning, at the end */
} killed_run;

static void killed_train(sherd_world *world, void *ctx)
{
    killed_run *run = ctx;
    rig         r;
    char        keys[1024];
    rig_options options = options_of(nvme_keys(", \"resume\": true, \"fast_init\": true", keys));
    sherd_engine_info info;
    uint64_t          fingerprint;

    rig_open(&r, world, &options);
    rig_three(&r, ELEMS);
    rig_seal(&r);
    sherd_engine_info_init(&info);
    CHECK_OK(sherd_engine_query(r.engine, &info));
    CHECK_INT(info.step, info.micro_step);
    r.micro     = info.micro_step;
    fingerprint = rig_fingerprint(&r);
    if (sherd_world_rank(world) == 0) {
        run->first           = info.step;
        run->fingerprints[0] = fingerprint;
    }
    for (int64_t step = 0; step < (run->more > 0 ? run->more : MOST_STEPS - info.step); step++) {
        fingerprint = rig_train(&r, 1).fingerprint;
        if (run->more == 0 && step == 0 && sherd_world_rank(world) == 0) {
            CHECK_INT(1, write(run->ready, "", 1));
        }
    }
    while (run->more == 0) {
        (void)pause();
    }
    if (sherd_world_rank(world) == 0) {
        run->fingerprints[1] = fingerprint;
    }
    rig_close(&r);
}

static void reference_ranks_train(sherd_world *world, void *ctx)
{
    rig         r;
    rig_options options = options_of("");
    uint64_t   *out     = ctx;

    rig_open(&r, world, &options);
    rig_three(&r, ELEMS);
    rig_seal(&r);
    for (int64_t step = 0; step < MOST_STEPS + 4; step++) {
        uint64_t fingerprint = step == 0 ? rig_fingerprint(&r) : rig_train(&r, 1).fingerprint;

        if (sherd_world_rank(world) == 0) {
            out[step] = fingerprint;
        }
    }
    rig_close(&r);
}

static void sleep_us(uint64_t us)
{
    struct timespec rest = {(time_t)(us / 1000000), (long)(us % 1000000) * 1000};

    (void)nanosleep(&rest, NULL);
}

/* Each time a process of two ranks trains and is killed at a random moment; what it leaves is a whole
 * step, and going on from there gives the numbers of a run that was never disturbed. */
static void killed_at_any_moment_the_last_step_is_whole(void)
{
    static uint64_t want[MOST_STEPS + 4];
    uint64_t        seed    = 20261121;
    int             resumed = 0;

    test_files_remove(test_scratch(),
                      ""); /* of the cases before; the folder is there before the first child is */
    test_world(KILL_RANKS, reference_ranks_train, want);
    for (int k = 0; k < KILLS; k++) {
        killed_run run = {.more = 0}, look = {.more = 3};
        int        ready[2], status;
        char       byte;
        pid_t      child;

        CHECK_INT(0, pipe(ready));
        run.ready = ready[1];
        child     = fork();
        if (child == 0) {
            test_world(KILL_RANKS, killed_train, &run);
            _exit(1);
        }
        (void)close(ready[1]);
        CHECK(k % 10 != 0 || read(ready[0], &byte, 1) == 1); /* however busy the machine is */
        sleep_us(test_random(&seed) % 60000);
        CHECK(kill(child, SIGKILL) == 0);
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(WIFSIGNALED(status));
        (void)close(ready[0]);
        if (k % 5 != 4) {
            continue; /* the next one goes on from what is there, and is killed in its turn */
        }
        test_world(KILL_RANKS, killed_train, &look);
        CHECK(look.first <= MOST_STEPS);
        CHECK_INT(want[look.first], look.fingerprints[0]);
        CHECK_INT(want[look.first + 3], look.fingerprints[1]);
        resumed += look.first > 0;
        test_files_remove(test_scratch(), "");
    }
    CHECK(resumed > 0);
    (void)printf("  kills: %d\n", KILLS);
}

static const test_case CASES[] = {
    CASE(eio_at_every_request_is_an_error_and_no_number),
    CASE(eio_with_gradients_on_nvme),
    CASE(eio_where_lamb_stands_beside_adamw),
    CASE(enospc_at_every_request_is_an_error_and_no_number),
    CASE(short_transfers_at_every_request_change_nothing),
    CASE(interrupted_requests_change_nothing),
    CASE(eio_at_every_request_of_the_fill_is_an_error_and_no_number),
    CASE(eio_at_every_request_of_a_fill_in_disorder_is_an_error_and_no_number),
    CASE(requests_fail_in_other_layouts),
    CASE(a_rank_that_fails_fails_all),
    CASE(no_room_is_an_error_at_seal),
    CASE(a_deleted_file_trains_on),
    CASE(a_flipped_bit_is_found),
    CASE(a_drive_that_breaks_in_the_update_is_undone_when_it_works_again),
    CASE(the_others_hear_what_failed),
    CASE(the_last_step_is_undone),
    CASE(the_last_step_is_undone_at_every_stage),
    CASE(killed_at_any_moment_the_last_step_is_whole),
};

#ifdef SHERDI_HAVE_XXHASH
RUN_MAIN(CASES)
#else /* state cannot rest on a drive */
int main(void)
{
    (void)CASES;
    (void)puts("skip: no libxxhash in this build");
    return 77;
}
#endif
