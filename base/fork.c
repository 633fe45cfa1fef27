/* See fork.h. One bit per descriptor, under a lock that a fork takes too. */
#include "base/fork.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pthread_mutex_t fork_lock = PTHREAD_MUTEX_INITIALIZER; /* guards the two below */
static unsigned char  *fork_bits;
static int             fork_bytes;
static pthread_once_t  fork_once = PTHREAD_ONCE_INIT;

static void fork_begins(void)
{
    (void)pthread_mutex_lock(&fork_lock);
}

static void fork_ends(void)
{
    (void)pthread_mutex_unlock(&fork_lock);
}

/* Calls only functions that a signal handler may call, because other threads of the parent may have
 * held any lock. */
static void child_begins(void)
{
    int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);

    for (int fd = 0; fd < fork_bytes * 8; fd++) {
        if ((fork_bits[fd / 8] >> fd % 8 & 1) == 0) {
            continue;
        }
        if (nothing < 0 || dup3(nothing, fd, O_CLOEXEC) < 0) {
            (void)close(fd);
        }
    }
    if (nothing >= 0) {
        (void)close(nothing);
    }
    fork_ends();
}

static void handlers_set(void)
{
    (void)pthread_atfork(fork_begins, fork_ends, child_begins);
}

/* Call it under the lock. */
static int bit_set(int fd)
{
    int needed = fd / 8 + 1;

    if (needed > fork_bytes) {
        unsigned char *larger = realloc(fork_bits, (size_t)needed);

        if (larger == NULL) {
            return 0;
        }
        memset(larger + fork_bytes, 0, (size_t)(needed - fork_bytes));
        fork_bits  = larger;
        fork_bytes = needed;
    }
    fork_bits[fd / 8] |= (unsigned char)(1u << fd % 8);
    return 1;
}

void sherdi_fork_hold(void)
{
    (void)pthread_once(&fork_once, handlers_set);
    fork_begins();
}

int sherdi_fork_exclude(int fd)
{
    int error = errno;

    if (fd >= 0 && !bit_set(fd)) {
        (void)close(fd);
        fd    = -1;
        error = ENOMEM;
    }
    fork_ends();
    errno = error;
    return fd;
}

void sherdi_fork_forget(int fd)
{
    if (fd >= 0 && fd / 8 < fork_bytes) {
        fork_bits[fd / 8] &= (unsigned char)~(1u << fd % 8);
    }
    fork_ends();
}

void sherdi_fork_close(int fd)
{
    fork_begins();
    (void)close(fd);
    sherdi_fork_forget(fd);
}
