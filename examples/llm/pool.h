/* Threads of one rank: numbered tasks, taken by whoever is free. A task must compute the
 * same thing whoever runs it, so nothing depends on the number of threads. Each rank has its
 * own pool. */
#ifndef LLM_POOL_H
#define LLM_POOL_H

#include <stddef.h>

#define POOL_MAX_THREADS 256

typedef struct pool pool;

/** `thread` counts from 0 to the pool's threads: the index of scratch memory. */
typedef void (*pool_task_fn)(void *ctx, size_t task, int thread);

/** A pool of `threads` threads, the caller's included (1 .. POOL_MAX_THREADS). NULL: no memory
 *  or no threads to be had. */
pool *pool_create(int threads);
int   pool_threads(const pool *p);
/** Runs task 0 .. num_tasks - 1 and returns when all are done. One caller at a time; a task
 *  does not call it again. */
void pool_run(pool *p, size_t num_tasks, pool_task_fn run, void *ctx);
void pool_destroy(pool *p); /* accepts NULL */

#endif
