/* How the CPUs of a machine are divided between the updates of ranks on devices and their other
 * threads, and that threads stay where the division has them. */
#include "kernels/cpu/binding.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/roles.h"
#include "tests/lib/check.h"
#include "tests/lib/tasks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------- described machines -- */

typedef struct machine {
    int cores, nodes, cpus_per_core;
} machine;

/* Numbered as Linux does: every core's first CPU, then the second ones. */
static sherdi_cpu_list list_of(machine m)
{
    sherdi_cpu_list list = {0};

    for (int core = 0; core < m.cores; core++) {
        for (int i = 0; i < m.cpus_per_core; i++) {
            list.cpus[list.count]  = core + i * m.cores;
            list.cores[list.count] = core;
            list.nodes[list.count] = core * m.nodes / m.cores;
            list.count++;
        }
    }
    return list;
}

static sherdi_cpu_binding divide(const sherdi_cpu_list *list, int threads, int share, int shares)
{
    const sherdi_cpu_params params = {
        .threads = threads, .share = share, .shares = shares, .has_device = 1};
    sherdi_cpu_binding binding;

    memset(&binding, 0xff, sizeof(binding)); /* what is not written would show */
    sherdi_cpu_binding_choose(list, &params, &binding);
    return binding;
}

/* "14 on 2-15, wire 0-1": what rank `share` gets; "2" where the system places the threads. */
static const char *binding_text(machine m, int threads, int share, int shares)
{
    static char              text[256];
    const sherdi_cpu_list    list    = list_of(m);
    const sherdi_cpu_binding binding = divide(&list, threads, share, shares);
    char                     updates[96], wire[96];

    CHECK_INT(0, binding.is_bound);
    sherdi_cpu_set_print(&binding.updates, updates, sizeof(updates));
    sherdi_cpu_set_print(&binding.wire, wire, sizeof(wire));
    if (updates[0] == '\0') {
        (void)snprintf(text, sizeof(text), "%d%s", binding.threads, wire);
    } else {
        (void)snprintf(text, sizeof(text), "%d on %s, wire %s", binding.threads, updates, wire);
    }
    return text;
}

#define CHECK_BINDING(want, ...) check_binding(__LINE__, want, binding_text(__VA_ARGS__))

static void check_binding(int line, const char *want, const char *got)
{
    if (strcmp(want, got) != 0) {
        test_fail(__FILE__, line, "\"%s\", not \"%s\"", got, want);
    }
}

#define PLAIN(cores) ((machine){(cores), 1, 1})

static void one_rank_leaves_two_cores(void)
{
    CHECK_BINDING("14 on 2-15, wire 0-1", PLAIN(16), 0, 0, 1);
    CHECK_BINDING("6 on 2-7, wire 0-1", PLAIN(8), 0, 0, 1);
    CHECK_BINDING("2 on 2-3, wire 0-1", PLAIN(4), 0, 0, 1);
    CHECK_BINDING("94 on 2-95, wire 0-1", PLAIN(96), 0, 0, 1);
}

static void few_cores_are_left_to_the_system(void)
{
    CHECK_BINDING("1", PLAIN(1), 0, 0, 1);
    CHECK_BINDING("2", PLAIN(2), 0, 0, 1);
    CHECK_BINDING("2 on 1-2, wire 0", PLAIN(3), 0, 0, 1);
    CHECK_BINDING("1", PLAIN(2), 0, 1, 2);
    CHECK_BINDING("1", PLAIN(1), 0, 6, 7);
    CHECK_BINDING("1", PLAIN(8), 0, 7, 8);
    CHECK_BINDING("2", PLAIN(16), 0, 7, 8);
}

static void ranks_get_shares_of_their_own(void)
{
    CHECK_BINDING("6 on 2-7, wire 0-1", PLAIN(16), 0, 0, 2);
    CHECK_BINDING("6 on 10-15, wire 8-9", PLAIN(16), 0, 1, 2);
    CHECK_BINDING("10 on 2-11, wire 0-1", PLAIN(96), 0, 0, 8);
    CHECK_BINDING("10 on 86-95, wire 84-85", PLAIN(96), 0, 7, 8);
    CHECK_BINDING("2", PLAIN(16), 0, 0, 7);
    CHECK_BINDING("2 on 14-15, wire 13", PLAIN(16), 0, 6, 7);
}

/* A second CPU of a core goes with the core, and has no thread of its own. */
static void cores_are_not_cut(void)
{
    CHECK_BINDING("6 on 2-7,10-15, wire 0-1,8-9", ((machine){8, 1, 2}), 0, 0, 1);
    CHECK_BINDING("2 on 2-3,10-11, wire 0-1,8-9", ((machine){8, 1, 2}), 0, 0, 2);
    CHECK_BINDING("2", ((machine){2, 1, 2}), 0, 0, 1);
    CHECK_BINDING("1", ((machine){4, 1, 2}), 0, 5, 8);
    CHECK_BINDING("10 on 38-47,134-143, wire 36-37,132-133", ((machine){96, 2, 2}), 0, 3, 8);
}

static void a_team_stays_on_one_node(void)
{
    CHECK_BINDING("46 on 2-47, wire 0-1", ((machine){96, 2, 1}), 0, 0, 1);
    CHECK_BINDING("46 on 50-95, wire 48-49", ((machine){96, 2, 1}), 0, 1, 2);
    CHECK_BINDING("10 on 50-59, wire 48-49", ((machine){96, 2, 1}), 0, 4, 8);
    /* the shares of seven ranks: the fourth has seven cores on either node */
    CHECK_BINDING("5 on 43-47, wire 41-42", ((machine){96, 2, 1}), 0, 3, 7);
    CHECK_BINDING("12 on 56-67, wire 54-55", ((machine){96, 2, 1}), 0, 4, 7);
    CHECK_BINDING("2", ((machine){4, 2, 1}), 0, 0, 1);
}

static void numbers_that_are_given_are_kept(void)
{
    CHECK_BINDING("4 on 2-15, wire 0-1", PLAIN(16), 4, 0, 1);
    CHECK_BINDING("1 on 2-15, wire 0-1", PLAIN(16), 1, 0, 1);
    CHECK_BINDING("14 on 2-15, wire 0-1", PLAIN(16), 14, 0, 1);
    CHECK_BINDING("15", PLAIN(16), 15, 0, 1); /* it would take what is left to the others */
    CHECK_BINDING("96", ((machine){96, 2, 1}), 96, 0, 1);
    CHECK_BINDING("12 on 2-7,10-15, wire 0-1,8-9", ((machine){8, 1, 2}), 12, 0, 1);
    CHECK_BINDING("3", PLAIN(2), 3, 0, 1);
}

/* All CPUs of the set are new, none is in *taken, and all are on one node. */
static void set_take(const sherdi_cpu_list *list, const cpu_set_t *set, cpu_set_t *taken, int *node)
{
    for (int i = 0; i < list->count; i++) {
        if (CPU_ISSET((size_t)list->cpus[i], set)) {
            CHECK(!CPU_ISSET((size_t)list->cpus[i], taken));
            CPU_SET((size_t)list->cpus[i], taken);
            CHECK(*node < 0 || *node == list->nodes[i]);
            *node = list->nodes[i];
        }
    }
}

static void ranks_check(machine m, int threads, int shares)
{
    const sherdi_cpu_list list = list_of(m);
    cpu_set_t             taken;

    CPU_ZERO(&taken);
    for (int share = 0; share < shares; share++) {
        const sherdi_cpu_binding binding = divide(&list, threads, share, shares);
        int                      node    = -1;

        CHECK(threads > 0 ? binding.threads == threads : binding.threads >= 1);
        CHECK_INT(binding.threads * shares > list.count, binding.is_crowded);
        CHECK_INT(CPU_COUNT(&binding.updates) > 0, CPU_COUNT(&binding.wire) > 0);
        CHECK(CPU_COUNT(&binding.updates) == 0 || CPU_COUNT(&binding.updates) >= binding.threads);
        set_take(&list, &binding.updates, &taken, &node);
        set_take(&list, &binding.wire, &taken, &node);
    }
}

static void no_cpu_is_given_twice(void)
{
    static const int CORES[]   = {1, 2, 3, 4, 8, 16, 96};
    static const int RANKS[]   = {1, 2, 7, 8};
    static const int THREADS[] = {0, 1, 2, 5, 64};

    for (size_t c = 0; c < sizeof(CORES) / sizeof(CORES[0]); c++) {
        for (int kind = 0; kind < 4; kind++) {
            for (int i = 0; i < 4 * 5; i++) {
                ranks_check((machine){CORES[c], 1 + kind / 2, 1 + kind % 2}, THREADS[i % 5],
                            RANKS[i / 5]);
            }
        }
    }
}

/* -------------------------------------------------------------- real threads -- */

static sherdi_backend *create(const char *bind, int threads, sherdi_mem *mem)
{
    const sherdi_cpu_params params = {.threads = threads, .shares = 1, .rank = -1, .has_device = 1};
    sherdi_backend         *backend = NULL;

    sherdi_mem_init(mem);
    CHECK_INT(0, setenv("SHERD_CPU_BIND", bind, 1));
    CHECK_OK(sherdi_backend_cpu_create_with(&params, mem, &backend));
    CHECK_INT(0, unsetenv("SHERD_CPU_BIND"));
    return backend;
}

typedef struct keeper {
    const sherdi_backend *backend;
    cpu_set_t             cpus[SHERDI_CPU_ROLES]; /* result: where each role's thread may run */
} keeper;

static void keeper_body(int number, void *ctx)
{
    keeper *k = ctx;

    sherdi_backend_cpu_keep(k->backend, (sherdi_cpu_role)number, -1);
    CHECK_INT(0, sched_getaffinity(0, sizeof(k->cpus[0]), &k->cpus[number]));
}

static void task_nothing(void *ctx, int task, int tasks)
{
    (void)ctx;
    (void)task;
    (void)tasks;
}

/* The threads of this backend stay on these sets, and the caller anywhere. */
static void backend_check(sherdi_backend *backend, const cpu_set_t *updates, const cpu_set_t *wire)
{
    keeper    k = {.backend = backend};
    cpu_set_t before, after, workers;

    CHECK_INT(0, sched_getaffinity(0, sizeof(before), &before));
    test_threads(SHERDI_CPU_ROLES, keeper_body, &k);
    CHECK(CPU_EQUAL(updates, &k.cpus[SHERDI_CPU_ROLE_UPDATES]));
    CHECK(CPU_EQUAL(wire, &k.cpus[SHERDI_CPU_ROLE_WIRE]));
    sherdi_parallel_run(backend, (sherdi_split){backend->threads, SIZE_MAX}, task_nothing, NULL);
    CHECK_INT(backend->threads - 1, test_tasks_cpus("sherd-cpu-", &workers));
    CHECK(backend->threads == 1 || CPU_EQUAL(updates, &workers));
    CHECK_INT(0, sched_getaffinity(0, sizeof(after), &after));
    CHECK(CPU_EQUAL(&before, &after));
    sherdi_backend_destroy(backend);
}

static void threads_stay_apart(void)
{
    const sherdi_cpu_params params = {.shares = 1, .rank = -1, .has_device = 1};
    sherdi_cpu_binding      binding;
    sherdi_mem              mem;

    CHECK_OK(sherdi_cpu_binding_find(&params, &binding));
    if (CPU_COUNT(&binding.updates) == 0) {
        test_skip("fewer than three cores of a NUMA node here");
    }
    backend_check(create("auto", 0, &mem), &binding.updates, &binding.wire);
    backend_check(create("auto", 1, &mem), &binding.updates, &binding.wire);
}

static void threads_run_anywhere_without_binding(void)
{
    cpu_set_t  all;
    sherdi_mem mem;

    CHECK_INT(0, sched_getaffinity(0, sizeof(all), &all));
    backend_check(create("none", 3, &mem), &all, &all);
}

/* The list is for updates; the wire's thread has no place on it. */
static void threads_stay_on_a_list(void)
{
    cpu_set_t  all, one;
    sherdi_mem mem;
    char       text[32];
    int        cpu = CPU_SETSIZE - 1;

    CHECK_INT(0, sched_getaffinity(0, sizeof(all), &all));
    while (!CPU_ISSET((size_t)cpu, &all)) {
        cpu--;
    }
    CPU_ZERO(&one);
    CPU_SET((size_t)cpu, &one);
    (void)snprintf(text, sizeof(text), "%d", cpu);
    backend_check(create(text, 1, &mem), &one, &all);
    backend_check(create(text, 0, &mem), &one, &all);
    sherdi_cpu_set_print(&all, text, sizeof(text));
    if (strstr(text, "..") == NULL) {
        backend_check(create(text, 0, &mem), &all, &all);
    }
}

static void list_that_is_too_short_is_refused(void)
{
    const sherdi_cpu_params params  = {.threads = 2, .shares = 1, .rank = -1, .has_device = 1};
    sherdi_backend         *backend = NULL;
    sherdi_mem              mem;
    cpu_set_t               all;
    char                    text[32];

    sherdi_mem_init(&mem);
    CHECK_INT(0, sched_getaffinity(0, sizeof(all), &all));
    (void)snprintf(text, sizeof(text), "%d", sched_getcpu());
    CHECK_INT(0, setenv("SHERD_CPU_BIND", text, 1));
    CHECK_STATUS(SHERD_E_INVAL, sherdi_backend_cpu_create_with(&params, &mem, &backend));
    CHECK_INT(0, unsetenv("SHERD_CPU_BIND"));
    CHECK_ERROR_SAYS("1 CPUs are too few for 1 ranks of 2 threads");
}

static const test_case CASES[] = {
    CASE(one_rank_leaves_two_cores),
    CASE(few_cores_are_left_to_the_system),
    CASE(ranks_get_shares_of_their_own),
    CASE(cores_are_not_cut),
    CASE(a_team_stays_on_one_node),
    CASE(numbers_that_are_given_are_kept),
    CASE(no_cpu_is_given_twice),
    CASE(threads_run_anywhere_without_binding),
    CASE(threads_stay_on_a_list),
    CASE(list_that_is_too_short_is_refused),
    CASE(threads_stay_apart),
};

RUN_MAIN(CASES)
