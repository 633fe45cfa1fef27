/* The folder of `sherd test`. See scratch.h. A thread waits for signals, so the code that removes
 * the folder is plain code and not a signal handler. */
#include "cli/scratch.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define NAME "sherd-test-XXXXXX"

/* Another thread may create files while the folder is emptied. */
#define REMOVE_TRIES 100

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char            guarded[SCRATCH_PATH_BYTES]; /* protected by the lock; "" if there is none */
static pthread_t       guard;
static sigset_t        before;

/* -------------------------------------------------------------- removing -- */

static void files_remove(const char *folder)
{
    DIR           *dir = opendir(folder);
    struct dirent *entry;

    if (dir == NULL) {
        return;
    }
    while ((entry = readdir(dir)) != NULL) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
            (void)unlinkat(dirfd(dir), entry->d_name, 0);
        }
    }
    (void)closedir(dir);
}

/* Returns 0 if the folder does not exist any more, even if another process removed it. */
static int folder_remove(const char *folder)
{
    for (int tries = 0; tries < REMOVE_TRIES; tries++) {
        if (rmdir(folder) == 0 || errno == ENOENT) {
            return 0;
        }
        if (errno != ENOTEMPTY && errno != EEXIST) {
            return -1;
        }
        files_remove(folder);
    }
    return -1;
}

/* The caller has the lock. */
static void locked_remove(void)
{
    if (guarded[0] != '\0' && folder_remove(guarded) != 0) {
        (void)fprintf(stderr, "sherd: %s stays: %s\n", guarded, strerror(errno));
    }
    guarded[0] = '\0';
}

static void guarded_remove(void)
{
    (void)pthread_mutex_lock(&lock);
    locked_remove();
    (void)pthread_mutex_unlock(&lock);
}

/* --------------------------------------------------------------- signals -- */

/* Asks the guard thread to end. */
#define SIGNAL_OVER SIGUSR2

/* Fills in the signals that would end the program, and SIGNAL_OVER. Signals that are ignored, as
 * nohup and shells arrange, are not handled. */
static void signals_fill(sigset_t *out)
{
    static const int NUMBERS[] = {SIGINT, SIGTERM, SIGHUP};

    (void)sigemptyset(out);
    for (size_t i = 0; i < sizeof(NUMBERS) / sizeof(NUMBERS[0]); i++) {
        struct sigaction action;

        if (sigaction(NUMBERS[i], NULL, &action) == 0 && action.sa_handler != SIG_IGN) {
            (void)sigaddset(out, NUMBERS[i]);
        }
    }
    (void)sigaddset(out, SIGNAL_OVER);
}

/* Holds the lock until the process ends, because the other threads run until then and would make
 * the next folder. */
static void *guard_main(void *ctx)
{
    sigset_t signals;
    int      number = 0;

    (void)ctx;
    signals_fill(&signals);
    if (sigwait(&signals, &number) == 0 && number != SIGNAL_OVER) {
        (void)pthread_mutex_lock(&lock);
        locked_remove();
        (void)signal(number, SIG_DFL);
        (void)pthread_sigmask(SIG_UNBLOCK, &signals, NULL);
        (void)raise(number);
    }
    return NULL;
}

int scratch_guard_begin(void)
{
    sigset_t signals;

    signals_fill(&signals);
    (void)pthread_sigmask(SIG_BLOCK, &signals, &before);
    errno = pthread_create(&guard, NULL, guard_main, NULL);
    if (errno != 0) {
        (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
        return -1;
    }
    return 0;
}

void scratch_guard_end(void)
{
    (void)pthread_kill(guard, SIGNAL_OVER);
    (void)pthread_join(guard, NULL);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* ---------------------------------------------------------------- making -- */

static int fail(scratch_folder *out, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static int fail(scratch_folder *out, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(out->why, sizeof(out->why), fmt, args);
    va_end(args);
    out->path[0] = '\0'; /* only now, because the path may be one of the arguments */
    return -1;
}

static int folder_make_in(const char *parent, scratch_folder *out)
{
    char *absolute = realpath(parent, NULL);
    int   len;

    if (absolute == NULL) {
        return fail(out, "%.200s: %s", parent, strerror(errno));
    }
    len = snprintf(out->path, sizeof(out->path), "%s/" NAME, absolute);
    free(absolute);
    if (len < 0 || (size_t)len >= sizeof(out->path)) {
        return fail(out, "%.200s: the name is too long; --nvme-path names another folder", parent);
    }
    /* Otherwise the folder would remain after a signal between the two calls. */
    (void)pthread_mutex_lock(&lock);
    if (mkdtemp(out->path) == NULL) {
        (void)fail(out, "no folder can be made in %.200s: %s", parent, strerror(errno));
    } else {
        (void)snprintf(guarded, sizeof(guarded), "%s", out->path);
    }
    (void)pthread_mutex_unlock(&lock);
    return out->path[0] == '\0' ? -1 : 0;
}

static int folder_make(const char *parent, scratch_folder *out)
{
    const char    *elsewhere = getenv("TMPDIR");
    scratch_folder second    = {0};

    if (folder_make_in(parent == NULL ? "." : parent, out) == 0) {
        return 0;
    }
    if (parent != NULL || folder_make_in(elsewhere == NULL ? "/tmp" : elsewhere, &second) != 0) {
        return -1; /* the first reason is reported */
    }
    *out = second;
    return 0;
}

/* On another host, the rank with the local number 0 makes a folder of the same name as rank 0's.
 * Only one rank of a host does this: after that rank is interrupted and has removed the folder,
 * another rank would make it again. */
static int folder_join(sherd_world *world, scratch_folder *out)
{
    int error = 0;

    (void)pthread_mutex_lock(&lock); /* as above */
    if (sherd_world_local_rank(world) == 0 && mkdir(out->path, 0700) != 0 && errno != EEXIST) {
        error = errno;
    } else {
        (void)snprintf(guarded, sizeof(guarded), "%s", out->path);
    }
    (void)pthread_mutex_unlock(&lock);
    return error == 0 ? 0
                      : fail(out, "%.200s cannot be made here too: %s", out->path, strerror(error));
}

static int folder_check(uint64_t need_bytes, scratch_folder *out)
{
    struct statvfs info;
    struct rlimit  limit;

    if (access(out->path, W_OK | X_OK) != 0) {
        return fail(out, "%.200s: %s", out->path, strerror(errno));
    }
    if (statvfs(out->path, &info) == 0 && (uint64_t)info.f_bavail * info.f_frsize < need_bytes) {
        return fail(out, "%.200s has %.1f MiB free, %.0f are needed", out->path,
                    (double)info.f_bavail * (double)info.f_frsize / 0x1p20,
                    (double)need_bytes / 0x1p20);
    }
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < need_bytes) {
        return fail(out, "files may have %.1f MiB (ulimit -f), %.0f are needed",
                    (double)limit.rlim_cur / 0x1p20, (double)need_bytes / 0x1p20);
    }
    return 0;
}

/* Returns the first rank that failed, or -1. */
static int first_failed(const double *fails, int ranks)
{
    for (int r = 0; r < ranks; r++) {
        if (fails[r] > 0) {
            return r;
        }
    }
    return -1;
}

/* Makes all ranks agree on the result: if one failed, all report the failure of the first one. */
static int world_agree(sherd_world *world, int result, scratch_folder *out)
{
    int     rank  = sherd_world_rank(world);
    int     ranks = sherd_world_size(world);
    double *fails = calloc((size_t)ranks, sizeof(*fails));
    int     first = -1;

    if (fails == NULL) {
        sherd_world_abort(world, "no memory to agree on a folder");
        return fail(out, "no memory to agree on a folder");
    }
    fails[rank] = result == 0 ? 0 : 1;
    if (sherd_world_sum_f64(world, fails, (size_t)ranks) != SHERD_OK) {
        result = fail(out, "%.300s", sherd_last_error());
    } else {
        first = first_failed(fails, ranks);
    }
    free(fails);
    if (first >= 0) {
        result = -1;
        if (sherd_world_broadcast(world, out, sizeof(*out), first) != SHERD_OK) {
            (void)fail(out, "%.300s", sherd_last_error());
        }
    }
    return result;
}

int scratch_make(sherd_world *world, const char *parent, uint64_t need_bytes, scratch_folder *out)
{
    int result = 0;

    *out = (scratch_folder){0};
    if (world == NULL || sherd_world_rank(world) == 0) {
        result = folder_make(parent, out);
    }
    if (world != NULL) {
        if (sherd_world_broadcast(world, out, sizeof(*out), 0) != SHERD_OK) {
            return fail(out, "%.300s", sherd_last_error());
        }
        result = out->path[0] == '\0' ? -1 : folder_join(world, out);
        result = world_agree(world, result, out); /* from here on the folder exists on every host */
    }
    if (result == 0) {
        result = folder_check(need_bytes, out);
    }
    if (world != NULL) {
        result = world_agree(world, result, out);
    }
    if (result != 0) {
        scratch_remove(world);
    }
    return result;
}

void scratch_remove(sherd_world *world)
{
    /* After the barrier no rank uses the folder any more. If the world is lost, none does
     * either. */
    sherd_status status = world == NULL ? SHERD_OK : sherd_world_barrier(world);

    (void)status;
    guarded_remove();
}
