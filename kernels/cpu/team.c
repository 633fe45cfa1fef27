/* See team.h, and binding.h for where the threads run. A team has one worker for each task of a call except the first task, which the caller
 * runs. The caller offers a task to its worker by one store. The task is run by the thread that
 * takes the offer first: the worker, or the caller when its own task is done. So a call never waits
 * for a thread that has not begun its task. A worker that sleeps deeply, shares a core with another
 * thread, or does not exist (in a child after fork) only fails to help. */
#include "kernels/cpu/team.h"

#include "base/checked.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/pages.h"
#include "base/thread.h"
#include "kernels/cpu/binding.h"
#include "kernels/cpu/roles.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* How long an idle thread spins before it sleeps: about the time that it takes to wake it. */
#define SPIN_NS 25000
/* Calls in a row (each within SPIN_NS of the one before) wake sleeping workers once they have
 * touched this many bytes together: on one thread that takes longer than waking a worker. Workers
 * that are awake help from SHERDI_TASK_BYTES on. */
#define WAKE_BYTES ((size_t)4 << 20)

/* The states of a worker. */
enum {
    WORKER_IS_AWAKE = 0, /* spinning, or running a task */
    WORKER_HAS_OFFER,
    WORKER_IS_ASLEEP,
    WORKER_SHALL_END,
};

/* Each worker has a cache line and an allocation of its own. So a team stays half-built in the same
 * way whether a thread or memory was missing. */
typedef struct team_worker {
    _Alignas(64) atomic_uint state; /* futex */
    int              task;          /* 1, 2, .. */
    int              cpu;           /* where it is bound */
    int              must_be_woken; /* in this call, by its parent in the tree of next_wake */
    int              is_left_out;   /* in this call: it sleeps on and gets no offer */
    struct cpu_team *team;
    pthread_t        thread;
} team_worker;

/* A bit of `left`: the caller sleeps on this word. The other bits are the count. */
#define CALLER_IS_ASLEEP 0x80000000u

typedef struct cpu_team {
    sherdi_team common;
    cpu_set_t   cpus[SHERDI_CPU_ROLES]; /* where such threads stay; empty: anywhere */

    atomic_int is_busy; /* a call is running */
    int        num_workers;
    int        is_bound; /* each worker to a CPU */
    int        free_cpu; /* of a bound team: the CPU that no worker uses, for the caller */
    int64_t    spin_ns;
    pid_t      process;

    /* Calls in a row. Only the thread that has set is_busy uses these. */
    int64_t last_ns; /* when the last call ended */
    size_t  row_bytes;

    /* The call. It is written while there is no offer, and read by threads that have taken one. */
    sherdi_task_fn fn;
    void          *ctx;
    int            tasks;
    int            offers; /* to workers[0 .. offers) */

    _Alignas(64) atomic_uint left; /* futex: offered tasks that have not ended */
    team_worker *workers[];        /* [num_workers] */
} cpu_team;

/* ----------------------------------------------------------------- waiting -- */

static inline void cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

static void futex_wait(atomic_uint *word, unsigned while_is)
{
    (void)syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, while_is, NULL, NULL, 0);
}

static void futex_wake(atomic_uint *word)
{
    (void)syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

/* Spins while *word is 0 (with is_zero 1) or is not 0 (with is_zero 0), for at most about
 * spin_ns. */
static void spin_while(atomic_uint *word, int is_zero, int64_t spin_ns)
{
    int64_t end_ns = spin_ns > 0 ? sherdi_now_ns() + spin_ns : 0;

    while (spin_ns > 0 && sherdi_now_ns() < end_ns) {
        for (int i = 0; i < 32; i++) {
            if ((atomic_load_explicit(word, memory_order_relaxed) == 0) != is_zero) {
                return;
            }
            cpu_relax();
        }
    }
}

/* ------------------------------------------------------------------ workers -- */

/* Returns 1 if the caller has the task: the one thread that changes the state from "offer" to
 * "awake". */
static int offer_take(team_worker *worker)
{
    unsigned offered = WORKER_HAS_OFFER;

    return atomic_compare_exchange_strong_explicit(&worker->state, &offered, WORKER_IS_AWAKE,
                                                   memory_order_acq_rel, memory_order_relaxed);
}

static void task_end(cpu_team *team)
{
    /* Pairs with the load in tasks_wait, which then sees the writes of the task. */
    if (atomic_fetch_sub_explicit(&team->left, 1, memory_order_acq_rel) == (CALLER_IS_ASLEEP | 1)) {
        futex_wake(&team->left);
    }
}

/* Threads that have a task wake sleeping workers: task t wakes those of tasks 2t + 1 and 2t + 2, in
 * a tree with the caller at its root. */
static void next_wake(cpu_team *team, int task)
{
    for (int i = 2 * task; i < 2 * task + 2 && i < team->offers; i++) {
        if (team->workers[i]->must_be_woken) {
            futex_wake(&team->workers[i]->state);
        }
    }
}

/* Executes the worker's task, on the worker or, in its place, on the caller. */
static void task_run_taken(team_worker *worker)
{
    cpu_team *team = worker->team;

    next_wake(team, worker->task);
    sherdi_task_run(team->fn, team->ctx, worker->task, team->tasks);
    task_end(team);
}

/* Waits until there is an offer (which the caller may take first), or until the worker shall
 * end. */
static void worker_wait(team_worker *worker, int64_t spin_ns)
{
    unsigned awake = WORKER_IS_AWAKE;

    spin_while(&worker->state, 1, spin_ns);
    if (!atomic_compare_exchange_strong(&worker->state, &awake, WORKER_IS_ASLEEP)) {
        return;
    }
    while (atomic_load_explicit(&worker->state, memory_order_relaxed) == WORKER_IS_ASLEEP) {
        futex_wait(&worker->state, WORKER_IS_ASLEEP);
    }
}

/* A worker that came too late for its offer does not spin: it may run on the CPU that the caller
 * wants. */
static void *worker_main(void *raw)
{
    team_worker *worker  = raw;
    int64_t      spin_ns = 0;

    while (atomic_load_explicit(&worker->state, memory_order_relaxed) != WORKER_SHALL_END) {
        worker_wait(worker, spin_ns);
        if (offer_take(worker)) {
            task_run_taken(worker);
            spin_ns = worker->team->spin_ns;
        } else {
            spin_ns = 0;
        }
    }
    return NULL;
}

/* ------------------------------------------------------------------- a call -- */

static void tasks_wait(cpu_team *team)
{
    unsigned left;

    spin_while(&team->left, 0, team->spin_ns);
    if (atomic_load_explicit(&team->left, memory_order_acquire) == 0) {
        return;
    }
    left = atomic_fetch_or_explicit(&team->left, CALLER_IS_ASLEEP, memory_order_acq_rel) |
           CALLER_IS_ASLEEP;
    while (left != CALLER_IS_ASLEEP) {
        futex_wait(&team->left, left);
        left = atomic_load_explicit(&team->left, memory_order_acquire);
    }
}

static int worker_bind(const team_worker *worker, const cpu_set_t *set)
{
    return pthread_setaffinity_np(worker->thread, sizeof(*set), set);
}

static int worker_bind_to_one(team_worker *worker, int cpu)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    CPU_SET((size_t)cpu, &set);
    worker->cpu = cpu;
    return worker_bind(worker, &set);
}

/* The system decides where the caller runs. If that is a worker's CPU, the worker moves to the free
 * one. */
static void caller_make_room(cpu_team *team)
{
    int cpu = sched_getcpu();

    for (int i = 0; i < team->num_workers && cpu != team->free_cpu; i++) {
        if (team->workers[i]->cpu == cpu) {
            (void)worker_bind_to_one(team->workers[i], team->free_cpu);
            team->free_cpu = cpu;
        }
    }
}

static int row_is_long(cpu_team *team, size_t bytes)
{
    if (sherdi_now_ns() - team->last_ns > SPIN_NS) {
        team->row_bytes = 0;
    }
    team->row_bytes += sherdi_min_size(bytes, WAKE_BYTES);
    return team->row_bytes >= WAKE_BYTES;
}

/* A worker that sleeps and is not worth waking gets no offer; the caller runs its task. Offers are
 * made from the last worker to the first, so that a thread that takes an offer sees which workers
 * it has to wake. */
static void offers_make(cpu_team *team, int may_wake)
{
    for (int i = team->offers - 1; i >= 0; i--) {
        team_worker *worker = team->workers[i];
        unsigned     awake  = WORKER_IS_AWAKE;

        worker->is_left_out   = 0;
        worker->must_be_woken = 0;
        if (atomic_compare_exchange_strong_explicit(&worker->state, &awake, WORKER_HAS_OFFER,
                                                    memory_order_acq_rel, memory_order_relaxed)) {
            continue;
        }
        worker->is_left_out   = !may_wake;
        worker->must_be_woken = may_wake;
        if (may_wake) { /* the worker sleeps until it is woken, so a plain store is enough */
            atomic_store_explicit(&worker->state, WORKER_HAS_OFFER, memory_order_release);
        }
    }
    next_wake(team, 0);
}

static int team_run(sherdi_team *common, sherdi_split split, sherdi_task_fn fn, void *ctx)
{
    cpu_team *team = (cpu_team *)common;

    if (atomic_exchange_explicit(&team->is_busy, 1, memory_order_acquire) != 0) {
        return 0;
    }
    if (team->is_bound) {
        caller_make_room(team);
    }
    team->fn     = fn;
    team->ctx    = ctx;
    team->tasks  = split.tasks;
    team->offers = split.tasks - 1 < team->num_workers ? split.tasks - 1 : team->num_workers;
    atomic_store_explicit(&team->left, (unsigned)team->offers, memory_order_relaxed);
    offers_make(team, row_is_long(team, split.bytes));
    sherdi_task_run(fn, ctx, 0, split.tasks);
    for (int i = 0; i < team->offers; i++) {
        if (team->workers[i]->is_left_out || offer_take(team->workers[i])) {
            task_run_taken(team->workers[i]);
        }
    }
    for (int task = team->offers + 1; task < split.tasks; task++) {
        sherdi_task_run(fn, ctx, task, split.tasks);
    }
    tasks_wait(team);
    team->last_ns = sherdi_now_ns();
    atomic_store_explicit(&team->is_busy, 0, memory_order_release);
    return 1;
}

/* ------------------------------------------------------------------- a life -- */

/* Binds all workers or none: if half the team were bound, the others would crowd on the remaining
 * CPUs. Returns an errno. */
static int workers_bind(cpu_team *team, const sherdi_cpu_binding *binding)
{
    int error = 0;

    for (int i = 0; i < team->num_workers && error == 0; i++) {
        team_worker *worker = team->workers[i];

        error = binding->is_bound ? worker_bind_to_one(worker, binding->cpus[worker->task])
                                  : worker_bind(worker, &binding->updates);
    }
    for (int i = 0; i < team->num_workers && error != 0; i++) {
        (void)worker_bind(team->workers[i], &binding->allowed);
    }
    return error;
}

static void team_bind(cpu_team *team, sherdi_cpu_binding *binding, int rank)
{
    int error = workers_bind(team, binding);

    if (error != 0) {
        sherdi_log(SHERD_LOG_WARN, rank, "kernel threads are not bound: %s", strerror(error));
        sherdi_cpu_binding_drop(binding);
    }
    team->is_bound = binding->is_bound;
    team->free_cpu = binding->cpus[0];
}

static sherd_status worker_create(cpu_team *team, int task, sherdi_mem *mem)
{
    team_worker *worker = sherdi_alloc(mem, SHERDI_MEM_CONTROL, sizeof(*worker));
    char         name[16];
    int          error;

    if (worker == NULL) {
        return SHERD_E_NOMEM;
    }
    worker->task = task;
    worker->team = team;
    error        = sherdi_thread_start(&worker->thread, 0, worker_main, worker);
    if (error != 0) {
        sherdi_free(worker);
        return sherdi_fail(SHERD_E_NOMEM, "no kernel thread %d: %s; SHERD_THREADS asks for fewer",
                           task, strerror(error));
    }
    (void)snprintf(name, sizeof(name), "sherd-cpu-%d", task % 10000);
    (void)pthread_setname_np(worker->thread, name);
    team->workers[team->num_workers++] = worker;
    return SHERD_OK;
}

static void team_destroy(sherdi_team *common)
{
    cpu_team *team        = (cpu_team *)common;
    int       has_threads = team->process == getpid();

    for (int i = 0; i < team->num_workers && has_threads; i++) {
        atomic_store_explicit(&team->workers[i]->state, WORKER_SHALL_END, memory_order_release);
        futex_wake(&team->workers[i]->state);
    }
    for (int i = 0; i < team->num_workers; i++) {
        if (has_threads) {
            (void)pthread_join(team->workers[i]->thread, NULL);
        }
        sherdi_free(team->workers[i]);
    }
    sherdi_free(team);
}

/* In a crowded team no thread spins, since other threads want the CPUs. */
static cpu_team *team_alloc(const sherdi_cpu_binding *binding, int workers, sherdi_mem *mem)
{
    cpu_team *team = sherdi_alloc(mem, SHERDI_MEM_CONTROL,
                                  sizeof(*team) + (size_t)workers * sizeof(team_worker *));

    if (team != NULL) {
        team->common.ops = &sherdi_team_of_threads;
        team->spin_ns    = binding->is_crowded ? 0 : SPIN_NS;
        team->process    = getpid();
    }
    return team;
}

/* In a bound team, worker i runs on binding->cpus[i]; with a device, all run on binding->updates. */
static sherd_status team_create(const sherdi_cpu_params *params, sherdi_mem *mem, int *threads_out,
                                sherdi_team **out)
{
    sherdi_cpu_binding binding;
    cpu_team          *team;
    int                has_sets, workers;

    SHERDI_TRY(sherdi_cpu_binding_find(params, &binding));
    has_sets     = CPU_COUNT(&binding.updates) > 0;
    workers      = params->is_idle ? 0 : binding.threads - 1;
    *threads_out = binding.threads;
    if (workers == 0 && !has_sets) {
        return SHERD_OK;
    }
    team = team_alloc(&binding, workers, mem);
    if (team == NULL) {
        return SHERD_E_NOMEM;
    }
    for (int task = 1; task <= workers; task++) {
        sherd_status status = worker_create(team, task, mem);

        if (status != SHERD_OK) {
            team_destroy(&team->common);
            return status;
        }
    }
    if (workers > 0 && (binding.is_bound || has_sets)) {
        team_bind(team, &binding, params->rank);
    }
    team->cpus[SHERDI_CPU_ROLE_UPDATES] = binding.updates;
    team->cpus[SHERDI_CPU_ROLE_WIRE]    = binding.wire;
    *out                                = &team->common;
    return SHERD_OK;
}

static void team_keep(const sherdi_team *team, int role, int rank)
{
    const cpu_set_t *set = &((const cpu_team *)team)->cpus[role];
    int              error;

    if (CPU_COUNT(set) == 0) {
        return;
    }
    error = pthread_setaffinity_np(pthread_self(), sizeof(*set), set);
    if (error != 0) {
        sherdi_log(SHERD_LOG_WARN, rank, "a thread of %s is not bound: %s",
                   role == SHERDI_CPU_ROLE_WIRE ? "the wire" : "updates", strerror(error));
    }
}

static void team_describe(const sherdi_team *common, int threads, char *text, size_t text_bytes)
{
    const cpu_team  *team    = (const cpu_team *)common;
    const cpu_set_t *updates = &team->cpus[SHERDI_CPU_ROLE_UPDATES];
    char             where[64];
    int cpus[CPU_SETSIZE]; /* large enough: a bound team has no more threads than CPUs */

    if (CPU_COUNT(updates) > 0) {
        sherdi_cpu_sets_describe(threads, updates, &team->cpus[SHERDI_CPU_ROLE_WIRE], text,
                                 text_bytes);
        return;
    }
    (void)snprintf(where, sizeof(where), "workers not bound");
    for (int i = 0; i < team->num_workers && team->is_bound; i++) {
        cpus[i] = team->workers[i]->cpu;
    }
    if (team->is_bound) {
        sherdi_cpu_workers_describe(cpus, team->num_workers, where, sizeof(where));
    }
    (void)snprintf(text, text_bytes, "%d thread%s, %s", threads, threads == 1 ? "" : "s", where);
}

typedef struct host_touch {
    unsigned char *memory;
    size_t         len_bytes;
    atomic_int     error;
} host_touch;

static void part_touch(void *ctx, int task, int tasks)
{
    host_touch *t     = ctx;
    size_t      units = sherdi_div_up(t->len_bytes, SHERDI_HUGE_BYTES);
    size_t      first = units * (size_t)task / (size_t)tasks * SHERDI_HUGE_BYTES;
    size_t      end   = units * ((size_t)task + 1) / (size_t)tasks * SHERDI_HUGE_BYTES;
    int error = sherdi_pages_take(t->memory + first, sherdi_min_size(end, t->len_bytes) - first);

    if (error != 0) {
        atomic_store(&t->error, error);
    }
}

/* Fresh memory costs the kernel's clearing of its pages, which runs on the thread that touches them
 * first. */
static int team_touch(const sherdi_backend *host, void *memory, size_t len_bytes)
{
    host_touch t = {.memory = memory, .len_bytes = len_bytes};

    if (sherdi_pages_defers()) {
        return 0;
    }
    atomic_init(&t.error, 0);
    sherdi_parallel_run(
        host, sherdi_split_of(host, sherdi_div_up(len_bytes, SHERDI_HUGE_BYTES), SHERDI_HUGE_BYTES),
        part_touch, &t);
    return atomic_load(&t.error);
}

const sherdi_team_ops sherdi_team_of_threads = {
    .create      = team_create,
    .destroy     = team_destroy,
    .run         = team_run,
    .touch       = team_touch,
    .keep        = team_keep,
    .describe    = team_describe,
    .knows_cores = sherdi_cpu_knows_cores,
};
