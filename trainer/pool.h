/* The threads of one rank. They carry out numbered tasks; a free thread takes the next one. A task
 * must compute the same whichever thread runs it, so no result depends on the number of threads.
 * Each rank has its own pool. */
#ifndef LLM_POOL_H
#define LLM_POOL_H

#include <stddef.h>

#define POOL_MAX_THREADS 256

typedef struct pool pool;

/** `thread` is the number of the running thread, from 0 to pool_threads - 1: an index for scratch
 *  memory. */
typedef void (*pool_task_fn)(void *ctx, size_t task, int thread);

/** Makes a pool of `threads` threads, the caller's included (1 .. POOL_MAX_THREADS). Returns NULL
 *  if memory or threads cannot be had. */
pool *pool_create(int threads);
int   pool_threads(const pool *p);
/** Runs tasks 0 .. num_tasks - 1 and returns when all are done. Only one thread may call it at a
 *  time, and a task must not call it. */
void pool_run(pool *p, size_t num_tasks, pool_task_fn run, void *ctx);
void pool_destroy(pool *p); /* accepts NULL */

#endif
