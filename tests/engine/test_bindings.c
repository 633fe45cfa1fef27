/* Tests what docs/bindings.md says of threads and of fork. Any thread may drive an engine, one at a
 * time. A child that the program forks can use nothing and changes nothing, however it ends. */
#include "sherd_build.h"
#include "tests/collectives/ranks.h"
#include "tests/engine/rig.h"

#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define ELEMS 3000

/* ---------------------------------------------------------------- threads -- */

/* A part of a micro-batch, which may have a thread of its own. */
typedef struct part {
    rig         *r;
    sherd_status status;
    char         text[512]; /* sherd_last_error() of that thread */
} part;

static void part_note(part *p, sherd_status status)
{
    if (p->status == SHERD_OK && status != SHERD_OK) {
        p->status = status;
        (void)snprintf(p->text, sizeof(p->text), "%s", sherd_last_error());
    }
}

static void unit_make(part *p, int unit, sherd_pass pass)
{
    rig  *r = p->r;
    float one;

    part_note(p, sherd_unit_acquire(r->engine, r->units[unit], pass));
    if (p->status == SHERD_OK && pass == SHERD_BACKWARD) {
        one = (float)(r->micro + 1);
        part_note(p, sherd_copy(r->engine, sherd_param_grad(r->engine, r->params[unit].handle),
                                &one, sizeof(one)));
    }
    part_note(p, sherd_unit_release(r->engine, r->units[unit], pass));
}

static void *forward_part(void *raw)
{
    for (int u = 0; u < 3; u++) {
        unit_make(raw, u, SHERD_FORWARD);
    }
    return NULL;
}

static void *backward_part(void *raw)
{
    for (int u = 2; u >= 0; u--) {
        unit_make(raw, u, SHERD_BACKWARD);
    }
    return NULL;
}

static void *step_part(void *raw)
{
    part *p = raw;

    part_note(p, sherd_step(p->r->engine, NULL));
    p->r->micro++;
    return NULL;
}

/* Runs a part on this thread, or on one that ends after it. */
static void part_run(void *(*body)(void *), rig *r, int has_thread)
{
    part      p = {.r = r};
    pthread_t thread;

    if (has_thread) {
        CHECK_INT(0, pthread_create(&thread, NULL, body, &p));
        CHECK_INT(0, pthread_join(thread, NULL));
    } else {
        (void)body(&p);
    }
    if (p.status != SHERD_OK) {
        test_fail(__FILE__, __LINE__, "%s: %s", sherd_status_name(p.status), p.text);
    }
}

typedef struct thread_job {
    rig_options options;
    /* bit 0: forward has a thread of its own, bit 1: backward, bit 2: the step */
    int      kinds;
    uint64_t fingerprint;
} thread_job;

static void train_on_threads(sherd_world *world, void *raw)
{
    thread_job *job = raw;
    uint64_t    fingerprint;
    rig         r;

    rig_open(&r, world, &job->options);
    rig_three(&r, ELEMS);
    rig_seal(&r);
    for (int i = 0; i < 3; i++) {
        part_run(forward_part, &r, job->kinds & 1);
        part_run(backward_part, &r, job->kinds & 2);
        part_run(step_part, &r, job->kinds & 4);
    }
    fingerprint = rig_fingerprint(&r);
    if (sherd_world_rank(world) == 0) {
        job->fingerprint = fingerprint;
    }
    rig_close(&r);
}

static void any_thread_drives_one_at_a_time(void)
{
    char               drive[1024];
    const char        *zeros[] = {", \"overlap_comm\": true", ", \"overlap_comm\": false", drive};
    static const char *TOPS[]  = {"", ", \"deterministic\": true", ""};

    (void)snprintf(drive, sizeof(drive),
                   ", \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\","
                   " \"durable\": false}",
                   test_scratch());
    for (int stage = 0; stage <= 3; stage++) {
        for (int z = 0; z < 3; z++) {
            thread_job job = {.options = {.stage = stage, .zero = zeros[z], .top = TOPS[z]}};
            uint64_t   want;

#ifndef SHERDI_HAVE_XXHASH
            if (z == 2) {
                continue;
            }
#endif
            if (stage == 0 && z == 2) {
                continue;
            }
            test_world(1 + (stage + z) % 3, train_on_threads, &job);
            want = job.fingerprint;
            for (job.kinds = 2; job.kinds <= 7; job.kinds += 5) {
                test_world(1 + (stage + z) % 3, train_on_threads, &job);
                CHECK_INT(want, job.fingerprint);
            }
        }
    }
}

/* Makes a call that fails. The sentence is on the thread that made the call; the next thread can do
 * what that one should have done. */
static void *fail_part(void *raw)
{
    part *p = raw;

    part_note(p, sherd_unit_release(p->r->engine, p->r->units[0], SHERD_FORWARD));
    return NULL;
}

static void last_error_is_of_the_thread_that_called(void)
{
    rig_options  options = {.stage = 3};
    sherd_world *world;
    pthread_t    thread;
    part         p = {0};
    rig          r;

    CHECK_OK(sherd_world_self(&world));
    rig_open(&r, world, &options);
    rig_three(&r, ELEMS);
    rig_seal(&r);
    CHECK_STATUS(SHERD_E_INVAL, sherd_unit_acquire(r.engine, 99, SHERD_FORWARD));
    p.r = &r;
    CHECK_INT(0, pthread_create(&thread, NULL, fail_part, &p));
    CHECK_INT(0, pthread_join(thread, NULL));
    CHECK_STATUS(SHERD_E_STATE, p.status);
    CHECK(strstr(p.text, "is not acquired for forward") != NULL);
    CHECK_ERROR_SAYS("unit 99 does not exist");
    CHECK_INT(1, rig_train(&r, 1).was_updated);
    rig_close(&r);
    sherd_world_destroy(world);
}

/* -------------------------------------------------------------- callbacks -- */

/* What the functions of the program need that the engine calls. */
typedef struct caller {
    rig        *r;
    const char *outer; /* the call that calls the function */
    int         calls; /* how often it was called */
} caller;

/* Checks that a call from inside `outer` was refused by name. */
static void refused_inside(const caller *c, const char *inner, sherd_status status)
{
    CHECK_STATUS(SHERD_E_STATE, status);
    CHECK_ERROR_SAYS(inner);
    CHECK_ERROR_SAYS(c->outer);
}

static void calls_are_refused(caller *c)
{
    rig  *r = c->r;
    float one;

    c->calls++;
#define REFUSED(call, ...) refused_inside(c, #call ":", call(__VA_ARGS__))
    REFUSED(sherd_param_fill, r->engine, 0, rig_fill, NULL);
    REFUSED(sherd_unit_acquire, r->engine, r->units[0], SHERD_FORWARD);
    REFUSED(sherd_step, r->engine, NULL);
    REFUSED(sherd_step_undo, r->engine);
    REFUSED(sherd_param_read, r->engine, 0, SHERD_MASTER, 0, 1, &one);
    REFUSED(sherd_copy, r->engine, &one, &one, sizeof(one));
    REFUSED(sherd_checkpoint_save, r->engine, test_scratch(), "inner", NULL);
    REFUSED(sherd_checkpoint_wait, r->engine, NULL);
    REFUSED(sherd_checkpoint_load, r->engine, test_scratch(), "inner", NULL);
    REFUSED(sherd_world_barrier, r->world);
#undef REFUSED
    CHECK(sherd_param_address(r->engine, 0) == NULL);
    CHECK_ERROR_SAYS("sherd_param_address:");
    sherd_engine_destroy(r->engine); /* does nothing */
}

static sherd_status fill_that_calls(void *ctx, size_t first, size_t count, float *out)
{
    calls_are_refused(ctx);
    return rig_fill(NULL, first, count, out);
}

static void progress_that_calls(void *ctx, uint64_t done_bytes, uint64_t all_bytes)
{
    CHECK(done_bytes <= all_bytes);
    calls_are_refused(ctx);
}

static sherd_status write_that_calls(void *ctx, const char *text, size_t len_bytes)
{
    CHECK(text[len_bytes - 1] != '\0');
    calls_are_refused(ctx);
    return SHERD_OK;
}

#define CALLS_INSIDE(c, call, ...)                                                                 \
    do {                                                                                           \
        *(c) = (caller){.r = (c)->r, .outer = #call};                                              \
        CHECK_OK(call(__VA_ARGS__));                                                               \
        CHECK((c)->calls > 0);                                                                     \
    } while (0)

static void weights_inside(caller *c)
{
    sherd_engine       *engine = c->r->engine;
    sherd_export_params out;
    sherd_import_params in;
    char                path[1024];

    (void)snprintf(path, sizeof(path), "%s/callbacks.safetensors", test_scratch());
    sherd_export_params_init(&out);
    out.progress     = progress_that_calls;
    out.progress_ctx = c;
    CALLS_INSIDE(c, sherd_export_safetensors, engine, path, &out);
    sherd_import_params_init(&in);
    in.progress     = progress_that_calls;
    in.progress_ctx = c;
    CALLS_INSIDE(c, sherd_import_safetensors, engine, path, &in);
}

static void checkpoints_inside(caller *c)
{
#ifdef SHERDI_HAVE_XXHASH
    sherd_engine     *engine = c->r->engine;
    sherd_save_params save;
    sherd_load_params load;

    sherd_save_params_init(&save);
    save.progress     = progress_that_calls;
    save.progress_ctx = c;
    CALLS_INSIDE(c, sherd_checkpoint_save, engine, test_scratch(), "outer", &save);
    sherd_load_params_init(&load);
    load.progress     = progress_that_calls;
    load.progress_ctx = c;
    CALLS_INSIDE(c, sherd_checkpoint_load, engine, test_scratch(), "outer", &load);
#else
    (void)c;
#endif
}

static void callbacks_that_call_the_engine_are_refused(void)
{
    rig_options  options = {.stage = 3};
    sherd_world *world;
    rig          r;
    caller       c = {.r = &r};

    CHECK_OK(sherd_world_self(&world));
    rig_open(&r, world, &options);
    rig_three(&r, ELEMS);
    CALLS_INSIDE(&c, sherd_engine_plan, r.engine, SHERD_PLAN_TABLE, write_that_calls, &c);
    rig_seal(&r);
    CALLS_INSIDE(&c, sherd_param_fill, r.engine, 0, fill_that_calls, &c);
    CALLS_INSIDE(&c, sherd_param_fill_from, r.engine, 0, 0, fill_that_calls, &c);
    CHECK_INT(1, rig_train(&r, 1).was_updated);
    weights_inside(&c);
    checkpoints_inside(&c);
    CHECK_INT(1, rig_train(&r, 1).was_updated);
    CHECK_OK(sherd_world_barrier(world));
    rig_close(&r);
    sherd_world_destroy(world);
}

static sherd_status text_drop(void *ctx, const char *text, size_t len_bytes)
{
    (void)ctx;
    (void)text;
    (void)len_bytes;
    return SHERD_OK;
}

/* Fills from the values of another engine of the same world; ctx is that engine's rig. */
static sherd_status fill_from_another(void *ctx, size_t first, size_t count, float *out)
{
    const rig *other = ctx;

    CHECK_OK(sherd_engine_plan(other->engine, SHERD_PLAN_TABLE, text_drop, NULL));
    CHECK_STATUS(SHERD_E_STATE, sherd_world_barrier(other->world));
    CHECK_ERROR_SAYS("sherd_param_fill");
    return sherd_param_read_local(other->engine, 0, SHERD_MASTER, first, count, out);
}

static void callbacks_may_use_another_engine(void)
{
    rig_options  options = {.stage = 3};
    sherd_world *world;
    rig          teacher;
    rig          student;

    CHECK_OK(sherd_world_self(&world));
    rig_open(&teacher, world, &options);
    rig_three(&teacher, ELEMS);
    rig_seal(&teacher);
    CHECK_INT(1, rig_train(&teacher, 1).was_updated);
    rig_open(&student, world, &options);
    rig_three(&student, ELEMS);
    rig_seal(&student);
    CHECK_OK(sherd_param_fill(student.engine, 0, fill_from_another, &teacher));
    CHECK_OK(sherd_world_barrier(world));
    rig_close(&student);
    rig_close(&teacher);
    sherd_world_destroy(world);
}

/* The log's function. */
static void log_that_calls(void *ctx, sherd_log_level level, const char *line)
{
    CHECK(level <= SHERD_LOG_TRACE && line[0] != '\0');
    calls_are_refused(ctx);
    sherd_log_set(NULL, NULL, SHERD_LOG_ERROR);
}

static void the_log_may_not_call_the_engine(void)
{
    rig_options  options = {.stage = 3};
    sherd_world *world;
    rig          r;
    caller       c = {.r = &r, .outer = "the log"};

    CHECK_OK(sherd_world_self(&world));
    rig_open(&r, world, &options);
    rig_three(&r, ELEMS);
    sherd_log_set(log_that_calls, &c, SHERD_LOG_TRACE);
    rig_seal(&r);
    CHECK_INT(1, c.calls);
    CHECK_INT(1, rig_train(&r, 1).was_updated);
    rig_close(&r);
    sherd_world_destroy(world);
}

/* Returns a number that is no status; ctx points to it. */
static sherd_status fill_without_status(void *ctx, size_t first, size_t count, float *out)
{
    (void)first;
    (void)count;
    (void)out;
    return (sherd_status) * (const int *)ctx;
}

static void fill_with_no_status(sherd_world *world, void *raw)
{
    static const int NUMBERS[] = {SHERD_E_DEVICE + 1, 77, -1};
    rig_options      options   = {.stage = 3};
    rig              r;

    (void)raw;
    rig_open(&r, world, &options);
    rig_three(&r, ELEMS);
    rig_seal(&r);
    for (int i = 0; i < 3; i++) {
        int number = NUMBERS[i];

        CHECK_STATUS(SHERD_E_INVAL, sherd_param_fill(r.engine, 0, fill_without_status, &number));
        CHECK_ERROR_SAYS("which is no sherd_status");
        CHECK_STATUS(SHERD_E_INVAL,
                     sherd_param_fill_from(r.engine, 0, 1, fill_without_status, &number));
    }
    CHECK_OK(sherd_param_fill(r.engine, 0, rig_fill, NULL));
    CHECK_INT(1, rig_train(&r, 1).was_updated);
    rig_close(&r);
}

static void a_callback_that_returns_no_status_is_refused(void)
{
    test_world(2, fill_with_no_status, NULL);
}

/* ------------------------------------------------------------------- fork -- */

static int is_child;

/* A sanitizer that looks for leaks at exit asks this. A child does not free its copies of what the
 * parent has. */
int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void)
{
    return is_child;
}

/* Returns 1 if a call was not refused as it should be. A child's exit code is the sum. */
static int refusal(sherd_status status)
{
    return status == SHERD_E_STATE && strstr(sherd_last_error(), "forked") != NULL &&
                   strstr(sherd_last_error(), "of its own") != NULL
               ? 0
               : 1;
}

/* A child makes a world and an engine of its own, on the CPU. */
__attribute__((unused)) static void child_trains(void)
{
    rig_options        options = {.stage = 3};
    sherd_world_params params;
    sherd_world       *world;
    rig                r;

    sherd_world_params_init(&params);
    params.backend = "cpu";
    CHECK_OK(sherd_world_threads_with(1, &params, &world));
    rig_open(&r, world, &options);
    rig_three(&r, ELEMS);
    rig_seal(&r);
    CHECK_INT(1, rig_train(&r, 1).was_updated);
    rig_close(&r);
    sherd_world_destroy(world);
}

static int child_calls(rig *r)
{
    double value = 1;
    float  one   = 1;
    int    wrong = 0;

    wrong += refusal(sherd_unit_acquire(r->engine, r->units[0], SHERD_FORWARD));
    wrong += refusal(sherd_unit_release(r->engine, r->units[1], SHERD_BACKWARD));
    wrong += refusal(sherd_step(r->engine, NULL));
    wrong += refusal(sherd_step_discard(r->engine));
    wrong += refusal(sherd_step_undo(r->engine));
    wrong += refusal(sherd_eval_begin(r->engine, NULL));
    wrong += refusal(sherd_param_write(r->engine, 0, SHERD_MASTER, 0, 1, &one));
    wrong += refusal(sherd_param_read_local(r->engine, 0, SHERD_MASTER, 0, 1, &one));
    wrong += refusal(sherd_checkpoint_load(r->engine, test_scratch(), "none", NULL));
    wrong += refusal(sherd_checkpoint_save(r->engine, test_scratch(), "none", NULL));
    wrong += refusal(sherd_checkpoint_wait(r->engine, NULL));
    wrong += refusal(sherd_world_sum_f64(r->world, &value, 1));
    wrong += refusal(sherd_world_broadcast(r->world, &value, sizeof(value), 0));
    wrong += refusal(sherd_world_barrier(r->world));
    sherd_world_abort(r->world, "a child gives up");
    sherd_engine_destroy(r->engine);
    sherd_world_destroy(r->world);
#ifndef __SANITIZE_THREAD__ /* it allows a child of several threads no thread of its own */
    child_trains();
#endif
    return wrong;
}

/* Forks a child that ends as a program does, with its exit handlers. */
static void child_lives(rig *r)
{
    int   raw = -1;
    pid_t child;

    (void)fflush(NULL);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        is_child = 1;
        exit(child_calls(r));
    }
    CHECK(waitpid(child, &raw, 0) == child);
    CHECK(WIFEXITED(raw));
    CHECK_INT(0, WEXITSTATUS(raw));
}

/* Trains with children between steps and in the middle of backward, while reductions are under
 * way. */
static void train_with_children(sherd_world *world, const char *zero)
{
    rig_options options = {.stage = 3, .zero = zero, .top = ", \"deterministic\": true"};
    uint64_t    want    = 0;

    for (int has_children = 0; has_children < 2; has_children++) {
        uint64_t got;
        rig      r;

        rig_open(&r, world, &options);
        rig_three(&r, ELEMS);
        rig_seal(&r);
        for (int i = 0; i < 2; i++) {
            rig_forward(&r, 0, SHERD_FORWARD);
            rig_backward(&r, 2);
            if (has_children) {
                child_lives(&r);
            }
            rig_backward(&r, 1);
            rig_backward(&r, 0);
            (void)rig_step(&r);
            if (has_children) {
                child_lives(&r);
            }
        }
        got  = rig_fingerprint(&r);
        want = has_children ? want : got;
        CHECK_INT(want, got);
        rig_close(&r);
    }
}

static const char *drive_keys(void)
{
    static char keys[1024] = ", \"overlap_comm\": true";

#ifdef SHERDI_HAVE_XXHASH
    (void)snprintf(keys, sizeof(keys),
                   ", \"overlap_comm\": true, \"offload_optimizer\": {\"device\": \"nvme\","
                   " \"nvme_path\": \"%s\", \"durable\": false}, \"offload_param\": {\"device\":"
                   " \"nvme\", \"nvme_path\": \"%s\", \"max_in_cpu\": 0}",
                   test_scratch(), test_scratch());
#endif
    return keys;
}

static void train_on_drive(sherd_world *world)
{
    rig_options options = {.stage = 3, .zero = drive_keys()};
    rig         r;

    rig_open(&r, world, &options);
    rig_three(&r, ELEMS);
    rig_seal(&r);
    CHECK_INT(1, rig_train(&r, 5).was_updated);
    rig_close(&r);
}

static void children_leave_a_rank_alone(void)
{
    sherd_world *world;

    CHECK_OK(sherd_world_self(&world));
    train_with_children(world, ", \"overlap_comm\": true");
    train_with_children(world, drive_keys());
    CHECK_INT(0, test_files(test_scratch(), "sherd")); /* the parent's clean end removes them */
    sherd_world_destroy(world);
}

/* What every rank runs. The last child is forked after the world was destroyed. */
static void train_and_fork(void)
{
    sherd_world *world;
    int          raw = -1;
    pid_t        child;

    CHECK_OK(sherd_world_from_env(NULL, &world));
    train_with_children(world, ", \"overlap_comm\": true");
    train_with_children(world,
                        ", \"overlap_comm\": false, \"offload_param\": {\"device\": \"cpu\"}");
    train_with_children(world, drive_keys());
    CHECK_OK(sherd_world_barrier(world));
    sherd_world_destroy(world);
    (void)fflush(NULL);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        is_child = 1;
        exit(0);
    }
    CHECK(waitpid(child, &raw, 0) == child);
    CHECK(WIFEXITED(raw) && WEXITSTATUS(raw) == 0);
}

/* ---------------------------------------------------------------- signals -- */

static void on_signal(int number)
{
    (void)number;
}

/* Signal handlers run while the engine works, from the first meeting on and with a drive; no call
 * may end because of them. */
static void train_under_signals(void)
{
    /* without SA_RESTART: system calls are not restarted */
    const struct sigaction handler = {.sa_handler = on_signal};
    const struct itimerval often   = {{.tv_usec = 500}, {.tv_usec = 500}};
    const struct itimerval never   = {{0}, {0}};
    sherd_world           *world;

    CHECK_INT(0, sigaction(SIGALRM, &handler, NULL));
    CHECK_INT(0, setitimer(ITIMER_REAL, &often, NULL));
    CHECK_OK(sherd_world_from_env(NULL, &world));
    train_on_drive(world);
    for (int i = 0; i < 200; i++) {
        CHECK_OK(sherd_world_barrier(world));
    }
    CHECK_INT(0, setitimer(ITIMER_REAL, &never, NULL));
    sherd_world_destroy(world);
}

static void signals_end_no_call(void)
{
    ranks_run_part(2, "train_under_signals", -1);
}

/* Does what a binding does for Ctrl-C: another thread of the waiting rank gives up for it. */
static void *give_up(void *raw)
{
    sherd_world_abort(raw, "Ctrl-C");
    return NULL;
}

/* Rank 1 comes to the second barrier only after rank 0's wait for it has ended. */
static void wait_and_give_up(sherd_world *world, void *raw)
{
    sem_t    *is_over = raw;
    pthread_t thread;

    CHECK_OK(sherd_world_barrier(world));
    if (sherd_world_rank(world) == 0) {
        CHECK_INT(0, pthread_create(&thread, NULL, give_up, world));
        CHECK_STATUS(SHERD_E_PEER_LOST, sherd_world_barrier(world));
        CHECK_INT(0, pthread_join(thread, NULL));
        CHECK_INT(0, sem_post(is_over));
    } else {
        CHECK_INT(0, sem_wait(is_over));
        CHECK_STATUS(SHERD_E_PEER_LOST, sherd_world_barrier(world));
    }
    CHECK_ERROR_SAYS("rank 0 gave up: Ctrl-C");
}

static void another_thread_ends_a_wait(void)
{
    sem_t is_over;

    CHECK_INT(0, sem_init(&is_over, 0, 0));
    test_world(2, wait_and_give_up, &is_over);
    CHECK_INT(0, sem_destroy(&is_over));
}

static const rank_part PARTS[] = {
    PART(train_and_fork),
    PART(train_under_signals),
};

static void children_leave_processes_alone(void)
{
    ranks_run_part(2, "train_and_fork", -1);
}

static void children_leave_mpi_alone(void)
{
#ifndef SHERDI_HAVE_MPI
    test_skip("this build has no MPI");
#endif
    ranks_need_mpirun();
    ranks_run_mpi(2, "train_and_fork", -1);
}

static const test_case CASES[] = {
    CASE(any_thread_drives_one_at_a_time),
    CASE(last_error_is_of_the_thread_that_called),
    CASE(callbacks_that_call_the_engine_are_refused),
    CASE(callbacks_may_use_another_engine),
    CASE(the_log_may_not_call_the_engine),
    CASE(a_callback_that_returns_no_status_is_refused),
    CASE(children_leave_a_rank_alone),
    CASE(children_leave_processes_alone),
    CASE(children_leave_mpi_alone),
    CASE(signals_end_no_call),
    CASE(another_thread_ends_a_wait),
};

RANKS_MAIN(CASES, PARTS)
