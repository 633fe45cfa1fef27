/* Preloaded: the wall clock of a process is SHERD_TEST_CLOCK_AHEAD seconds ahead. */
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>

int clock_gettime(clockid_t clock, struct timespec *now)
{
    static int (*real)(clockid_t, struct timespec *);
    const char *ahead = getenv("SHERD_TEST_CLOCK_AHEAD");
    int         result;

    if (real == NULL) {
        *(void **)&real = dlsym(RTLD_NEXT, "clock_gettime");
    }
    result = real(clock, now);
    if (clock == CLOCK_REALTIME && ahead != NULL) {
        now->tv_sec += atoi(ahead);
    }
    return result;
}
