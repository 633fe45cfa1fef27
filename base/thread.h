/* Starts the library's own threads. Nothing else in the library calls pthread_create; a test in
 * tests/house checks that. */
#ifndef SHERDI_BASE_THREAD_H
#define SHERDI_BASE_THREAD_H

#include <pthread.h>
#include <stddef.h>

/** Starts a thread with all signals blocked: signals are for the program's own threads.
 *  `stack_bytes` is the size of its stack; 0 means the system's default, which is also used where
 *  `stack_bytes` are too few for the program's thread-local variables. Returns an errno; 0: the
 *  thread runs, and the caller joins or detaches it. */
int sherdi_thread_start(pthread_t *thread, size_t stack_bytes, void *(*body)(void *), void *ctx);

#endif
