/* Threads of a backend: every task runs once, whoever calls at the same time; bits do not depend on
 * how many there are; they come, are bound and go cleanly. */
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/team.h"
#include "kernels/cpu/binding.h"
#include "kernels/updates/updates.h"
#include "tests/kernels/bits.h"
#include "tests/lib/tasks.h"
#include "tests/kernels/cpu.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

static sherdi_backend *create(int threads, sherdi_mem *mem)
{
    sherdi_backend *backend = NULL;

    sherdi_mem_init(mem);
    CHECK_OK(cpu_create(threads, mem, &backend));
    return backend;
}

static void destroy(sherdi_backend *backend)
{
    sherdi_mem *mem = backend->mem;

    sherdi_backend_destroy(backend);
    CHECK_INT(0, sherdi_mem_held_all(mem));
}

/* A sanitizer has threads too. */
static int workers_alive(void)
{
    return test_tasks_cpus("sherd-cpu-", NULL);
}

/* -------------------------------------------------------------------- tasks -- */

#define MOST_PARTS 40

typedef struct tally {
    atomic_int runs[MOST_PARTS];
    atomic_int wrong_tasks;
    int        tasks;
} tally;

static void tally_task(void *ctx, int task, int tasks)
{
    tally *t = ctx;

    if (tasks != t->tasks || task < 0 || task >= tasks) {
        (void)atomic_fetch_add(&t->wrong_tasks, 1);
    } else {
        (void)atomic_fetch_add(&t->runs[task], 1);
    }
}

static void tally_check(const sherdi_backend *backend, int tasks, size_t bytes)
{
    tally t = {.tasks = tasks};

    sherdi_parallel_run(backend, (sherdi_split){tasks, bytes}, tally_task, &t);
    CHECK_INT(0, t.wrong_tasks);
    for (int task = 0; task < tasks; task++) {
        CHECK_INT(1, t.runs[task]);
    }
}

static void team_runs_every_task_once(void)
{
    for (int threads = 1; threads <= 9; threads++) {
        sherdi_mem      mem;
        sherdi_backend *backend = create(threads, &mem);

        CHECK_INT(threads - 1, workers_alive());
        for (int i = 0; i < 300; i++) {
            tally_check(backend, 1 + i % MOST_PARTS, i % 3 == 0 ? SIZE_MAX : 1000);
        }
        destroy(backend);
        CHECK_INT(0, workers_alive());
    }
}

typedef struct callers {
    sherdi_backend *backend;
    int             calls;
} callers;

static void caller_body(int rank, void *ctx)
{
    const callers *all = ctx;

    for (int i = 0; i < all->calls; i++) {
        tally_check(all->backend, 2 + (i + rank) % 5, i % 2 == 0 ? SIZE_MAX : 1000);
    }
}

static void team_serves_callers_at_once(void)
{
    sherdi_mem mem;
    callers    all = {.backend = create(4, &mem), .calls = 2000};

    test_threads(3, caller_body, &all);
    destroy(all.backend);
}

static void split_gives_small_work_one_task(void)
{
    const sherdi_backend backend = {.threads = 8};

    CHECK_INT(0, sherdi_split_of(&backend, 0, 256).tasks);
    CHECK(sherdi_split_of(&backend, 1, 1000).tasks <= 1);
    CHECK(sherdi_split_of(&backend, 500, 256).tasks <= 1);
    CHECK_INT(3, sherdi_split_of(&backend, 3 * 256, 256).tasks);
    CHECK_INT(8, sherdi_split_of(&backend, 100000, 256).tasks);
    CHECK_INT(5, sherdi_split_of(&backend, 5, (size_t)1 << 30).tasks); /* a unit is not cut */
}

/* --------------------------------------------------------------------- bits -- */

#define ELEMS ((size_t)150001)

typedef struct results {
    float                *p, *m, *v, *sum, *wide;
    uint16_t             *p16;
    uint64_t              fingerprint;
    sherdi_norm_acc       norm;
    const float          *grad;
    const sherdi_backend *backend;
} results;

static float *floats(size_t count, uint64_t seed)
{
    float *x = malloc(count * sizeof(*x));

    CHECK(x != NULL);
    for (size_t i = 0; i < count; i++) {
        x[i] = test_random_float(&seed);
    }
    return x;
}

static results results_make(const sherdi_backend *backend, const float *grad)
{
    results n = {.backend = backend, .grad = grad};

    n.p    = floats(ELEMS, 1);
    n.m    = floats(ELEMS, 2);
    n.v    = floats(ELEMS, 3);
    n.sum  = floats(ELEMS, 4);
    n.wide = floats(ELEMS, 5);
    n.p16  = malloc(ELEMS * sizeof(*n.p16));
    CHECK(n.p16 != NULL);
    for (size_t i = 0; i < ELEMS; i++) {
        n.v[i] = fabsf(n.v[i]);
    }
    return n;
}

static void results_compute(results *n)
{
    const sherdi_kernel_ops *k      = n->backend->kernels;
    const sherdi_span        span   = {.count_elems = ELEMS, .first_index = 77};
    const sherdi_adam_coeffs coeffs = {.grad_scale      = 0.5f,
                                       .beta1           = 0.9f,
                                       .one_minus_beta1 = 0.1f,
                                       .beta2           = 0.999f,
                                       .one_minus_beta2 = 0.001f,
                                       .eps             = 1e-8f,
                                       .neg_lr_decay    = -1e-3f,
                                       .neg_step_size   = -1e-2f,
                                       .inv_sqrt_bias   = 1.1f};
    const sherdi_update_args adam   = {.spans       = &span,
                                       .num_spans   = 1,
                                       .coeffs      = &coeffs,
                                       .grad        = n->grad,
                                       .grad_dtype  = SHERD_F32,
                                       .master      = n->p,
                                       .m           = n->m,
                                       .v           = n->v,
                                       .param       = n->p16,
                                       .param_dtype = SHERD_BF16,
                                       .fingerprint = &n->fingerprint};
    const void *const        srcs[] = {n->p, n->m, n->v};
    const sherdi_reduce_args reduce = {.srcs        = srcs,
                                       .num_srcs    = 3,
                                       .dst         = n->sum,
                                       .count_elems = ELEMS,
                                       .scale       = 1.0f / 3,
                                       .accumulate  = 1};

    k->update(n->backend, SHERDI_UPDATE_adam, &adam);
    k->reduce(n->backend, &reduce);
    k->cast(n->backend, n->wide, SHERD_F32, n->p16, SHERD_BF16, ELEMS);
    k->accumulate(n->backend, n->wide, SHERD_F32, n->sum, SHERD_F32, ELEMS);
    k->sumsq(n->backend, n->wide, SHERD_F32, ELEMS / SHERD_CHUNK_ELEMS * SHERD_CHUNK_ELEMS,
             &n->norm);
}

static void results_check_equal(const results *want, const results *got)
{
    CHECK_BYTES_EQUAL(want->p, got->p, ELEMS * sizeof(float));
    CHECK_BYTES_EQUAL(want->m, got->m, ELEMS * sizeof(float));
    CHECK_BYTES_EQUAL(want->v, got->v, ELEMS * sizeof(float));
    CHECK_BYTES_EQUAL(want->p16, got->p16, ELEMS * sizeof(uint16_t));
    CHECK_BYTES_EQUAL(want->sum, got->sum, ELEMS * sizeof(float));
    CHECK_BYTES_EQUAL(want->wide, got->wide, ELEMS * sizeof(float));
    CHECK_BYTES_EQUAL(&want->norm, &got->norm, sizeof(want->norm));
    CHECK_INT(want->fingerprint, got->fingerprint);
}

static void results_free(results *n)
{
    free(n->p);
    free(n->m);
    free(n->v);
    free(n->sum);
    free(n->wide);
    free(n->p16);
}

typedef struct two_callers {
    const sherdi_backend *backend;
    const float          *grad;
    const results        *want;
} two_callers;

static void bits_body(int rank, void *ctx)
{
    const two_callers *all = ctx;

    (void)rank;
    for (int i = 0; i < 5; i++) {
        results got = results_make(all->backend, all->grad);

        results_compute(&got);
        results_check_equal(all->want, &got);
        results_free(&got);
    }
}

/* Settings of a trainer's OpenMP runtime do not concern us. */
static void bits_are_equal_for_all_thread_counts_and_callers(void)
{
    static const int THREADS[] = {1, 2, 3, 5, 8};
    float           *grad      = floats(ELEMS, 9);
    sherdi_backend   scalar    = {.kernels = sherdi_kernels_cpu_find("scalar"), .threads = 1};
    results          want      = results_make(&scalar, grad);

    CHECK_INT(0, setenv("OMP_NUM_THREADS", "1", 1));
    results_compute(&want);
    for (size_t i = 0; i < sizeof(THREADS) / sizeof(THREADS[0]); i++) {
        sherdi_mem      mem;
        sherdi_backend *backend = create(THREADS[i], &mem);
        two_callers     all     = {backend, grad, &want};

        CHECK_INT(THREADS[i] - 1, workers_alive());
        test_threads(1, bits_body, &all);
        test_threads(2, bits_body, &all);
        destroy(backend);
    }
    CHECK_INT(0, unsetenv("OMP_NUM_THREADS"));
    results_free(&want);
    free(grad);
}

#if defined(__x86_64__)
static void settings_task(void *ctx, int task, int tasks)
{
    atomic_int *wrong = ctx;

    (void)task;
    (void)tasks;
    if ((_mm_getcsr() & ~0x3fu) != 0x1f80u) {
        (void)atomic_fetch_add(wrong, 1);
    }
}

/* Workers inherit the floating-point settings of the thread that makes them. */
static void tasks_ignore_the_float_settings_of_who_made_the_team(void)
{
    sherdi_mem      mem;
    sherdi_backend *backend;
    atomic_int      wrong = 0;

    _mm_setcsr(0x1f80u | 0x8040u | 0x6000u);
    backend = create(4, &mem);
    for (int i = 0; i < 100; i++) {
        sherdi_parallel_run(backend, (sherdi_split){4, SIZE_MAX}, settings_task, &wrong);
    }
    _mm_setcsr(0x1f80u);
    CHECK_INT(0, wrong);
    destroy(backend);
}
#endif

/* ----------------------------------------------------------- coming and going -- */

static void team_comes_and_goes_a_thousand_times(void)
{
    for (int i = 0; i < 1000; i++) {
        sherdi_mem      mem;
        sherdi_backend *backend = create(3, &mem);

        if (i % 3 != 0) { /* also one that never works */
            tally_check(backend, 3, i % 3 == 1 ? SIZE_MAX : 1000);
        }
        destroy(backend);
    }
    CHECK_INT(0, workers_alive());
}

/* A worker's memory and its thread are one step: what fails with the n-th is undone the same
 * way. */
static void team_that_cannot_be_made_leaves_nothing(void)
{
    sherd_status status = SHERD_E_NOMEM;
    sherdi_mem   mem;

    sherdi_mem_init(&mem);
    for (size_t n = 1; status != SHERD_OK; n++) {
        sherdi_backend *backend = NULL;

        CHECK(n < 10);
        (void)sherdi_mem_fail_nth(n);
        status = cpu_create(5, &mem, &backend);
        if (status != SHERD_OK) {
            CHECK_INT(SHERD_E_NOMEM, status);
            CHECK(backend == NULL);
        } else {
            CHECK_INT(7, n); /* the handle, the team, four workers; then nothing failed */
            (void)sherdi_mem_fail_nth(0);
            sherdi_backend_destroy(backend);
        }
        CHECK_INT(0, workers_alive());
        CHECK_INT(0, sherdi_mem_held_all(&mem));
    }
}

static void child_after_fork_computes_alone_and_ends(void)
{
    sherdi_mem      mem;
    sherdi_backend *backend = create(4, &mem);
    int             result;
    pid_t           child;

    tally_check(backend, 4, SIZE_MAX);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        tally t = {.tasks = 4};

        sherdi_parallel_run(backend, (sherdi_split){4, SIZE_MAX}, tally_task, &t);
        sherdi_backend_destroy(backend);
        _exit(t.runs[0] + t.runs[1] + t.runs[2] + t.runs[3] == 4 && workers_alive() == 0 ? 0 : 1);
    }
    CHECK_INT(child, waitpid(child, &result, 0));
    CHECK_INT(0, result);
    tally_check(backend, 4, SIZE_MAX);
    destroy(backend);
}

/* ------------------------------------------------------------------ binding -- */

/* "0-3 8": where each of `shares` teams is bound, thread 0 first; "-" where it is not. */
static const char *choice(const sherdi_cpu_list *list, int threads, int shares)
{
    static char text[256];
    size_t      len = 0;

    for (int share = 0; share < shares; share++) {
        const sherdi_cpu_params params = {.threads = threads, .share = share, .shares = shares};
        sherdi_cpu_binding      binding;
        char                    cpus[64] = "-";

        sherdi_cpu_binding_choose(list, &params, &binding);
        CHECK_INT(threads, binding.threads);
        if (binding.is_bound) {
            CHECK_INT(threads, binding.count);
            sherdi_cpus_print(binding.cpus, binding.count, cpus, sizeof(cpus));
        }
        CHECK_INT(threads * shares > list->count, binding.is_crowded);
        len += (size_t)snprintf(text + len, sizeof(text) - len, "%s%s", share > 0 ? " " : "", cpus);
    }
    return text;
}

#define CHECK_TEXT(want, got) test_check_text(__FILE__, __LINE__, want, got)

static void test_check_text(const char *file, int line, const char *want, const char *got)
{
    if (strcmp(want, got) != 0) {
        test_fail(file, line, "\"%s\", not \"%s\"", got, want);
    }
}

/* Four cores of two CPUs, numbered as Linux does: core c has c and c + 4. */
static const sherdi_cpu_list FOUR_CORES = {
    8, {0, 4, 1, 5, 2, 6, 3, 7}, {0, 0, 1, 1, 2, 2, 3, 3}, {0}};
static const sherdi_cpu_list THREE_CORES = {6, {0, 4, 1, 5, 2, 6}, {0, 0, 1, 1, 2, 2}, {0}};
/* Three CPUs of a larger machine, two of them one core. */
static const sherdi_cpu_list ODD = {3, {9, 2, 3}, {4, 4, 7}, {0}};

static void bindings_take_cores_before_their_second_cpus(void)
{
    CHECK_TEXT("0-3", choice(&FOUR_CORES, 4, 1));
    CHECK_TEXT("0-4", choice(&FOUR_CORES, 5, 1));
    CHECK_TEXT("0-7", choice(&FOUR_CORES, 8, 1));
    CHECK_TEXT("9,3", choice(&ODD, 2, 1));
    CHECK_TEXT("9,3,2", choice(&ODD, 3, 1));
}

static void bindings_of_ranks_are_disjoint_and_neighbours(void)
{
    CHECK_TEXT("0-1,4-5 2-3,6-7", choice(&FOUR_CORES, 4, 2));
    CHECK_TEXT("0-1 2-3", choice(&FOUR_CORES, 2, 2));
    CHECK_TEXT("0,4 1,5 2,6 3,7", choice(&FOUR_CORES, 2, 4));
    CHECK_TEXT("0 4 1 5 2 6 3 7", choice(&FOUR_CORES, 1, 8));
    /* cores that do not divide: none is cut while each rank has enough, then all ranks cut alike */
    CHECK_TEXT("0,4 1,5 2-3", choice(&FOUR_CORES, 2, 3));
    CHECK_TEXT("0-1,4 5,2,6", choice(&THREE_CORES, 3, 2));
}

/* With fewer threads than cores nobody knows which cores are free. */
static void threads_are_left_to_the_system_where_a_team_does_not_fill_its_share(void)
{
    CHECK_TEXT("-", choice(&FOUR_CORES, 3, 1));
    CHECK_TEXT("-", choice(&FOUR_CORES, 9, 1));
    CHECK_TEXT("- -", choice(&FOUR_CORES, 5, 2));
    CHECK_TEXT("- - - - - - - - -", choice(&FOUR_CORES, 1, 9));
}

static void cpus_are_printed_as_ranges(void)
{
    static const int CPUS[] = {0, 1, 2, 8, 7, 10, 11};
    char             text[32];

    sherdi_cpus_print(CPUS, 7, text, sizeof(text));
    CHECK_TEXT("0-2,8,7,10-11", text);
    sherdi_cpus_print(CPUS, 7, text, 10);
    CHECK_TEXT("0-2,8,7..", text);
    sherdi_cpus_print(CPUS, 0, text, sizeof(text));
    CHECK_TEXT("", text);
}

/* ---------------------------------------------------------- SHERD_CPU_BIND -- */

/* The first two CPUs that this thread may use. */
static void two_cpus(int *cpus)
{
    cpu_set_t set;
    int       found = 0;

    CHECK_INT(0, sched_getaffinity(0, sizeof(set), &set));
    for (int cpu = 0; cpu < CPU_SETSIZE && found < 2; cpu++) {
        if (CPU_ISSET((size_t)cpu, &set)) {
            cpus[found++] = cpu;
        }
    }
    if (found < 2) {
        test_skip("one CPU here");
    }
}

static void bind_create(const char *value, int threads, const char *want)
{
    sherdi_mem      mem;
    sherdi_backend *backend;
    char            got[128];

    CHECK_INT(0, setenv("SHERD_CPU_BIND", value, 1));
    backend = create(threads, &mem);
    CHECK_INT(0, unsetenv("SHERD_CPU_BIND"));
    sherdi_backend_cpu_describe(backend, got, sizeof(got));
    CHECK_TEXT(want, got);
    tally_check(backend, threads, SIZE_MAX);
    destroy(backend);
}

static void bind_list_is_obeyed_in_its_order(void)
{
    char list[64];
    char want[64];
    int  cpus[2];

    two_cpus(cpus);
    bind_create("none", 2, "2 threads, workers not bound");
    bind_create("none", 1, "1 thread");
    for (int i = 0; i < 2; i++) {
        (void)snprintf(list, sizeof(list), "%d,%d", cpus[i], cpus[1 - i]);
        (void)snprintf(want, sizeof(want), "2 threads, workers bound to cpu %d", cpus[1 - i]);
        bind_create(list, 2, want);
    }
}

static void bind_refused(const char *value, int threads, int shares, const char *says)
{
    const sherdi_cpu_params params  = {.threads = threads, .shares = shares, .rank = -1};
    sherdi_backend         *backend = NULL;
    sherdi_mem              mem;

    sherdi_mem_init(&mem);
    CHECK_INT(0, setenv("SHERD_CPU_BIND", value, 1));
    CHECK_STATUS(SHERD_E_INVAL, sherdi_backend_cpu_create_with(&params, &mem, &backend));
    CHECK_INT(0, unsetenv("SHERD_CPU_BIND"));
    CHECK_ERROR_SAYS("SHERD_CPU_BIND");
    CHECK_ERROR_SAYS(says);
    CHECK_ERROR_SAYS("give none, auto");
    CHECK_INT(0, sherdi_mem_held_all(&mem));
}

static void bind_that_cannot_be_met_is_refused(void)
{
    static const char *const NO_LISTS[] = {"0-",  "-1",  "0,",  ",0",    "1-0",  "0x1",
                                           " 0 ", "all", "0;1", "0-1-2", "0--1", "99999999999-1"};
    char                     list[64];
    int                      cpus[2];

    for (size_t i = 0; i < sizeof(NO_LISTS) / sizeof(NO_LISTS[0]); i++) {
        bind_refused(NO_LISTS[i], 1, 1, "not a list");
    }
    bind_refused("1023", 2, 1, "must not use");
    bind_refused("0-1023", 2, 1, "must not use");
    bind_refused("99999999999", 2, 1, "must not use");
    two_cpus(cpus);
    (void)snprintf(list, sizeof(list), "%d,%d", cpus[0], cpus[0]);
    bind_refused(list, 2, 1, "twice");
    (void)snprintf(list, sizeof(list), "%d,%d", cpus[0], cpus[1]);
    bind_refused(list, 3, 1, "2 CPUs are too few for 1 ranks of 3 threads");
    bind_refused(list, 2, 2, "2 CPUs are too few for 2 ranks of 2 threads");
}

static void bind_list_is_divided_among_ranks(void)
{
    char list[64];
    int  cpus[2];

    two_cpus(cpus);
    (void)snprintf(list, sizeof(list), "%d,%d", cpus[0], cpus[1]);
    CHECK_INT(0, setenv("SHERD_CPU_BIND", list, 1));
    for (int share = 0; share < 2; share++) {
        const sherdi_cpu_params params = {.threads = 1, .share = share, .shares = 2};
        sherdi_cpu_binding      binding;

        CHECK_OK(sherdi_cpu_binding_find(&params, &binding)); /* nobody but the callers */
        CHECK_INT(0, binding.is_bound);
    }
    CHECK_INT(0, unsetenv("SHERD_CPU_BIND"));
}

/* The caller is where the system wants it: a worker that is bound there makes room. */
static void worker_makes_room_for_its_caller(void)
{
    sherdi_mem      mem;
    sherdi_backend *backend;
    cpu_set_t       before;
    char            list[64];
    int             cpus[2];

    two_cpus(cpus);
    CHECK_INT(0, sched_getaffinity(0, sizeof(before), &before));
    (void)snprintf(list, sizeof(list), "%d,%d", cpus[0], cpus[1]);
    CHECK_INT(0, setenv("SHERD_CPU_BIND", list, 1));
    backend = create(2, &mem);
    CHECK_INT(0, unsetenv("SHERD_CPU_BIND"));
    for (int i = 0; i < 6; i++) {
        cpu_set_t here;
        char      want[64];
        char      got[128];

        CPU_ZERO(&here);
        CPU_SET((size_t)cpus[i % 2], &here);
        CHECK_INT(0, sched_setaffinity(0, sizeof(here), &here));
        tally_check(backend, 2, SIZE_MAX);
        sherdi_backend_cpu_describe(backend, got, sizeof(got));
        (void)snprintf(want, sizeof(want), "2 threads, workers bound to cpu %d", cpus[1 - i % 2]);
        CHECK_TEXT(want, got);
    }
    CHECK_INT(0, sched_setaffinity(0, sizeof(before), &before));
    destroy(backend);
}

static void idle_backend_makes_no_threads(void)
{
    const sherdi_cpu_params params  = {.threads = 6, .shares = 1, .rank = -1, .is_idle = 1};
    sherdi_backend         *backend = NULL;
    sherdi_mem              mem;

    sherdi_mem_init(&mem);
    CHECK_OK(sherdi_backend_cpu_create_with(&params, &mem, &backend));
    CHECK_INT(6, backend->threads);
    CHECK_INT(0, workers_alive());
    tally_check(backend, 6, SIZE_MAX);
    destroy(backend);
}

static const test_case CASES[] = {
    CASE(team_runs_every_task_once),
    CASE(team_serves_callers_at_once),
    CASE(split_gives_small_work_one_task),
    CASE(bits_are_equal_for_all_thread_counts_and_callers),
#if defined(__x86_64__)
    CASE(tasks_ignore_the_float_settings_of_who_made_the_team),
#endif
    CASE(team_comes_and_goes_a_thousand_times),
    CASE(team_that_cannot_be_made_leaves_nothing),
    CASE(child_after_fork_computes_alone_and_ends),
    CASE(bindings_take_cores_before_their_second_cpus),
    CASE(bindings_of_ranks_are_disjoint_and_neighbours),
    CASE(threads_are_left_to_the_system_where_a_team_does_not_fill_its_share),
    CASE(cpus_are_printed_as_ranges),
    CASE(bind_list_is_obeyed_in_its_order),
    CASE(bind_that_cannot_be_met_is_refused),
    CASE(bind_list_is_divided_among_ranks),
    CASE(worker_makes_room_for_its_caller),
    CASE(idle_backend_makes_no_threads),
};

RUN_MAIN(CASES)
