/* See thread.h. */
#include "base/thread.h"

#include <errno.h>
#include <signal.h>

static int start(pthread_t *thread, size_t stack_bytes, void *(*body)(void *), void *ctx)
{
    pthread_attr_t attributes;
    int            error;

    if (stack_bytes == 0) {
        return pthread_create(thread, NULL, body, ctx);
    }
    (void)pthread_attr_init(&attributes);
    (void)pthread_attr_setstacksize(&attributes, stack_bytes);
    error = pthread_create(thread, &attributes, body, ctx);
    (void)pthread_attr_destroy(&attributes);
    return error == EINVAL ? start(thread, 0, body, ctx) : error;
}

int sherdi_thread_start(pthread_t *thread, size_t stack_bytes, void *(*body)(void *), void *ctx)
{
    sigset_t all;
    sigset_t before;
    int      error;

    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before); /* a thread inherits its creator's mask */
    error = start(thread, stack_bytes, body, ctx);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}
