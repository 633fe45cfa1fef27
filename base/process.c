#include "base/process.h"

#include <pthread.h>
#include <unistd.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pid_t          process;

static void process_note(void)
{
    process = getpid();
}

static void process_follow(void)
{
    process_note();
    (void)pthread_atfork(NULL, NULL, process_note);
}

pid_t sherdi_process(void)
{
    (void)pthread_once(&once, process_follow);
    return process;
}
