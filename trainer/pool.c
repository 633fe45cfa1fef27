/* A pool of threads around one counter of tasks (pool.h). One pool_run is a round. After a round,
 * helpers spin for a while, because the next round usually comes within microseconds, and then
 * sleep. The spin is short: with more ranks than cores it takes time from threads that work. */
#include "pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>

/* About 20 us of spinning on a machine of today. */
#define SPIN_ROUNDS 4000

typedef struct pool_helper {
    pool     *owner;
    pthread_t thread;
    int       index; /* 1 .. threads - 1 */
} pool_helper;

struct pool {
    int          threads;
    int          started; /* helpers whose threads were started */
    pool_helper *helpers; /* [threads - 1] */

    /* The round's work: written before `round` is increased, read after. */
    pool_task_fn      run;
    void             *ctx;
    size_t            num_tasks;
    atomic_size_t     next;         /* first task that no thread has taken; starts past the end */
    _Atomic(uint64_t) round;        /* release store under `lock`, acquire load by helpers */
    atomic_int        num_working;  /* helpers that have not finished this round */
    atomic_int        num_sleeping; /* helpers in pthread_cond_wait; under `lock` */
    atomic_int        is_stopping;

    pthread_mutex_t lock;
    pthread_cond_t  wake;
};

static void pause_cpu(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

static void tasks_take(pool *p, int thread)
{
    for (;;) {
        size_t task = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed);

        if (task >= p->num_tasks) {
            return;
        }
        p->run(p->ctx, task, thread);
    }
}

/* Returns when `round` has moved past `seen`. */
static void round_await(pool *p, uint64_t seen)
{
    for (int i = 0; i < SPIN_ROUNDS; i++) {
        if (atomic_load_explicit(&p->round, memory_order_acquire) != seen) {
            return;
        }
        pause_cpu();
    }
    (void)pthread_mutex_lock(&p->lock);
    while (atomic_load_explicit(&p->round, memory_order_acquire) == seen) {
        atomic_fetch_add(&p->num_sleeping, 1);
        (void)pthread_cond_wait(&p->wake, &p->lock);
        atomic_fetch_sub(&p->num_sleeping, 1);
    }
    (void)pthread_mutex_unlock(&p->lock);
}

static void *helper_main(void *arg)
{
    pool_helper *helper = arg;
    pool        *p      = helper->owner;

    for (uint64_t seen = 0;; seen++) {
        round_await(p, seen);
        if (atomic_load(&p->is_stopping)) {
            return NULL;
        }
        tasks_take(p, helper->index);
        /* Pairs with the acquire load in pool_run: the caller sees this helper's results when it
         * sees that the helper is done. */
        atomic_fetch_sub_explicit(&p->num_working, 1, memory_order_release);
    }
}

/* Opens the next round for all helpers. */
static void round_open(pool *p)
{
    (void)pthread_mutex_lock(&p->lock);
    atomic_fetch_add_explicit(&p->round, 1, memory_order_release);
    if (atomic_load(&p->num_sleeping) > 0) {
        (void)pthread_cond_broadcast(&p->wake);
    }
    (void)pthread_mutex_unlock(&p->lock);
}

pool *pool_create(int threads)
{
    pool *p;

    if (threads < 1 || threads > POOL_MAX_THREADS) {
        return NULL;
    }
    p = calloc(1, sizeof(*p));
    if (p == NULL) {
        return NULL;
    }
    p->threads = threads;
    (void)pthread_mutex_init(&p->lock, NULL);
    (void)pthread_cond_init(&p->wake, NULL);
    p->helpers = calloc((size_t)threads, sizeof(*p->helpers));
    if (p->helpers == NULL) {
        goto err_destroy;
    }
    while (p->started < threads - 1) {
        pool_helper *helper = &p->helpers[p->started];

        *helper = (pool_helper){.owner = p, .index = p->started + 1};
        if (pthread_create(&helper->thread, NULL, helper_main, helper) != 0) {
            goto err_destroy;
        }
        p->started++;
    }
    return p;

err_destroy:
    pool_destroy(p);
    return NULL;
}

int pool_threads(const pool *p)
{
    return p->threads;
}

void pool_run(pool *p, size_t num_tasks, pool_task_fn run, void *ctx)
{
    if (p->threads == 1 || num_tasks < 2) {
        for (size_t task = 0; task < num_tasks; task++) {
            run(ctx, task, 0);
        }
        return;
    }
    p->run       = run;
    p->ctx       = ctx;
    p->num_tasks = num_tasks;
    atomic_store_explicit(&p->next, 0, memory_order_relaxed);
    atomic_store_explicit(&p->num_working, p->started, memory_order_relaxed);
    round_open(p);
    tasks_take(p, 0);
    for (int i = 0; atomic_load_explicit(&p->num_working, memory_order_acquire) > 0; i++) {
        if (i < SPIN_ROUNDS) {
            pause_cpu();
        } else {
            (void)sched_yield(); /* a helper has lost its core: it may take this one */
        }
    }
}

void pool_destroy(pool *p)
{
    if (p == NULL) {
        return;
    }
    atomic_store(&p->is_stopping, 1);
    round_open(p);
    for (int i = 0; i < p->started; i++) {
        (void)pthread_join(p->helpers[i].thread, NULL);
    }
    (void)pthread_cond_destroy(&p->wake);
    (void)pthread_mutex_destroy(&p->lock);
    free(p->helpers);
    free(p);
}
