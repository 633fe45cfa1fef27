/* How the library starts a thread of its own; nothing else in it calls pthread_create, as a test of the house checks. */
#ifndef SHERDI_BASE_THREAD_H
#define SHERDI_BASE_THREAD_H

#include <pthread.h>
#include <stddef.h>

/** The thread has all signals blocked: they are for the program's own threads. `stack_bytes` is the size of its stack, 0 the
 *  system's default, which it also gets where that many are too few for the program's thread-local variables. Returns an
 *  errno, 0 when the thread runs; the caller joins or detaches it. */
int sherdi_thread_start(pthread_t *thread, size_t stack_bytes, void *(*body)(void *), void *ctx);

#endif
