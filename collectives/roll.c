/* See roll.h. Each word is a file of the folder; what one side has to know at once about a file is
 * in its name. */
#include "collectives/roll.h"

#include "base/clock.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#define PATH_BYTES 256
#define TEXT_BYTES 32

/* ---- files ---- */

/* Writes the path of a file of the folder; printf-like. */
static const char *path_of(const roll *roll, char out[PATH_BYTES], const char *fmt, ...)
    SHERDI_PRINTF(3, 4);

static const char *path_of(const roll *roll, char out[PATH_BYTES], const char *fmt, ...)
{
    int     len = snprintf(out, PATH_BYTES, "%.*s/", PATH_BYTES / 2, roll->folder);
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(out + len, PATH_BYTES - (size_t)len, fmt, args);
    va_end(args);
    return out;
}

static sherd_status io_fail(const char *path, const char *what)
{
    return sherdi_fail(SHERD_E_IO, "the folder of the elastic job: %s cannot be %s: %s", path, what,
                       strerror(errno));
}

/* Writes a file of this process, which then gets its name in one piece. */
static sherd_status fresh_write(const roll *roll, const char *text, char fresh[PATH_BYTES])
{
    int fd, is_written;

    (void)path_of(roll, fresh, "new-%d", roll->process);
    fd = open(fresh, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0) {
        return io_fail(fresh, "made");
    }
    is_written = write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    (void)close(fd);
    return is_written ? SHERD_OK : io_fail(fresh, "written");
}

/* Makes a file with a text in it. */
static sherd_status text_write(const roll *roll, const char *path, const char *text)
{
    char fresh[PATH_BYTES];

    SHERDI_TRY(fresh_write(roll, text, fresh));
    return rename(fresh, path) == 0 ? SHERD_OK : io_fail(path, "written");
}

/* Returns 0, or -1 where the file is not there. */
static int text_read(const char *path, char text[TEXT_BYTES])
{
    int     fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t len;

    if (fd < 0) {
        return -1;
    }
    len = read(fd, text, TEXT_BYTES - 1);
    (void)close(fd);
    text[len > 0 ? len : 0] = '\0';
    return len > 0 ? 0 : -1;
}

/* Calls `take` with each name of the folder until it returns 1. */
typedef int (*name_fn)(const roll *roll, const char *name, void *ctx);

static sherd_status names_walk(const roll *roll, name_fn take, void *ctx)
{
    DIR           *folder = opendir(roll->folder);
    struct dirent *entry;

    if (folder == NULL) {
        return io_fail(roll->folder, "read");
    }
    while ((entry = readdir(folder)) != NULL && take(roll, entry->d_name, ctx) == 0) {
    }
    (void)closedir(folder);
    return SHERD_OK;
}

int sherdi_roll_open(roll *out)
{
    const char *folder  = getenv("SHERD_ELASTIC");
    const char *process = getenv("SHERD_PROCESS");

    if (folder == NULL || folder[0] == '\0' || process == NULL) {
        return 0;
    }
    *out = (roll){.folder = folder, .process = (int)strtol(process, NULL, 10)};
    return 1;
}

void sherdi_roll_address(const roll *roll, int turn, char out[ROLL_ADDRESS_BYTES])
{
    (void)snprintf(out, ROLL_ADDRESS_BYTES, "unix://%.150s/meeting-%d", roll->folder, turn);
}

/* ---- ranks ---- */

sherd_status sherdi_roll_train(const roll *roll)
{
    char path[PATH_BYTES], text[TEXT_BYTES];

    (void)snprintf(text, sizeof(text), "%d\n", (int)getpid());
    SHERDI_TRY(text_write(roll, path_of(roll, path, "trains-%d", roll->process), text));
    (void)unlink(
        path_of(roll, path, "leaves-%d", roll->process)); /* it wanted to, and has to stay */
    return SHERD_OK;
}

sherd_status sherdi_roll_leave(const roll *roll)
{
    char from[PATH_BYTES], to[PATH_BYTES];

    (void)path_of(roll, from, "trains-%d", roll->process);
    (void)path_of(roll, to, "leaves-%d", roll->process);
    return rename(from, to) == 0 ? SHERD_OK : io_fail(from, "renamed");
}

sherd_status sherdi_roll_wanted(const roll *roll, int *out)
{
    char path[PATH_BYTES], text[TEXT_BYTES];

    return text_read(path_of(roll, path, "wanted"), text) == 0 && sscanf(text, "%d", out) == 1
               ? SHERD_OK
               : io_fail(path, "read");
}

typedef struct waiting {
    int num, most;
    int processes[64];
    int last_turn;
} waiting;

static int is_locked(const char *path)
{
    int fd        = open(path, O_RDONLY | O_CLOEXEC);
    int is_locked = fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) != 0;

    if (fd >= 0) {
        (void)close(fd);
    }
    return is_locked;
}

/* Notes a newcomer that waits and lives, and the highest number of a turn. */
static int waiting_note(const roll *roll, const char *name, void *ctx)
{
    waiting *found = ctx;
    char     path[PATH_BYTES];
    int      process, turn = 0;

    if (sscanf(name, "waits-%d", &process) == 1) {
        if (found->num < found->most && is_locked(path_of(roll, path, "waits-%d", process))) {
            found->processes[found->num++] = process;
        }
    } else if (sscanf(name, "turn-%d", &turn) == 1 ||
               sscanf(name, "called-%*d-%*d-%d", &turn) == 1) {
        found->last_turn = turn > found->last_turn ? turn : found->last_turn;
    }
    return 0;
}

static int lower_first(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

sherd_status sherdi_roll_call(const roll *roll, int from, int to, int losses, int *count_out,
                              int *turn_out)
{
    const int room  = (int)(sizeof(((waiting *)NULL)->processes) / sizeof(int));
    waiting   found = {.most = to - from < room ? to - from : room};
    char      old[PATH_BYTES], new[PATH_BYTES], text[TEXT_BYTES];

    *count_out = 0;
    SHERDI_TRY(names_walk(roll, waiting_note, &found));
    *turn_out = found.last_turn + 1;
    qsort(found.processes, (size_t)found.num, sizeof(int), lower_first);
    for (int i = 0; i < found.num; i++) {
        (void)path_of(roll, old, "waits-%d", found.processes[i]);
        (void)path_of(roll, new, "called-%d-%d-%d", found.processes[i], from + *count_out,
                      *turn_out);
        *count_out += rename(old, new) == 0; /* else it was sent away in this moment */
    }
    if (*count_out == 0) {
        return SHERD_OK;
    }
    (void)snprintf(text, sizeof(text), "%d %d\n", from + *count_out, losses);
    return text_write(roll, path_of(roll, new, "turn-%d", *turn_out), text);
}

sherd_status sherdi_roll_claim(const roll *roll, int number, uint64_t session, int *is_ours_out)
{
    char fresh[PATH_BYTES], path[PATH_BYTES], text[TEXT_BYTES], found[TEXT_BYTES];
    int  is_first;

    (void)snprintf(text, sizeof(text), "%016llx\n", (unsigned long long)session);
    SHERDI_TRY(fresh_write(roll, text, fresh));
    is_first = link(fresh, path_of(roll, path, "loss-%d", number)) == 0;
    (void)unlink(fresh);
    if (!is_first && text_read(path, found) != 0) {
        return io_fail(path, "read");
    }
    *is_ours_out = is_first || strcmp(found, text) == 0;
    return SHERD_OK;
}

/* ---- newcomers ---- */

sherd_status sherdi_roll_wait(const roll *roll, int *lock_out)
{
    char fresh[PATH_BYTES], path[PATH_BYTES];
    int  fd = open(path_of(roll, fresh, "new-%d", roll->process),
                   O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    if (fd < 0) {
        return io_fail(fresh, "made");
    }
    if (flock(fd, LOCK_EX) != 0 ||
        rename(fresh, path_of(roll, path, "waits-%d", roll->process)) != 0) {
        const sherdi_outcome failed = sherdi_outcome_of(io_fail(fresh, "locked and renamed"));

        (void)close(fd);
        return sherdi_outcome_end(&failed);
    }
    *lock_out = fd;
    return SHERD_OK;
}

static int call_note(const roll *roll, const char *name, void *ctx)
{
    roll_call *call = ctx;
    int        process, rank, turn;

    if (sscanf(name, "called-%d-%d-%d", &process, &rank, &turn) != 3 || process != roll->process) {
        return 0;
    }
    call->rank = rank;
    call->turn = turn;
    return 1;
}

sherd_status sherdi_roll_look(const roll *roll, int64_t limit_ns, roll_call *call,
                              roll_word *word_out)
{
    char path[PATH_BYTES], text[TEXT_BYTES];

    *word_out = access(path_of(roll, path, "over"), F_OK) == 0 ? ROLL_OVER : ROLL_WAIT;
    if (access(path_of(roll, path, "waits-%d", roll->process), F_OK) == 0) {
        return SHERD_OK;
    }
    call->turn = 0;
    SHERDI_TRY(names_walk(roll, call_note, call));
    if (call->turn == 0) {
        *word_out = ROLL_OVER; /* the launcher has removed the word */
        return SHERD_OK;
    }
    if (text_read(path_of(roll, path, "turn-%d", call->turn), text) == 0 &&
        sscanf(text, "%d %d", &call->world_size, &call->losses) == 2) {
        *word_out = ROLL_CALLED;
        return SHERD_OK;
    }
    if (call->called_ns == 0) { /* rank 0 is about to write it, or has died */
        call->called_ns = sherdi_now_ns();
    } else if (*word_out == ROLL_WAIT && sherdi_now_ns() - call->called_ns > limit_ns) {
        *word_out = ROLL_LOST;
    }
    return SHERD_OK;
}

static int call_remove(const roll *roll, const char *name, void *ctx)
{
    char path[PATH_BYTES];
    int  process;

    (void)ctx;
    if (sscanf(name, "called-%d-", &process) == 1 && process == roll->process) {
        (void)unlink(path_of(roll, path, "%s", name));
    }
    return 0;
}

void sherdi_roll_forget(const roll *roll)
{
    char path[PATH_BYTES];

    (void)unlink(path_of(roll, path, "waits-%d", roll->process));
    (void)names_walk(roll, call_remove, NULL);
}

int sherdi_roll_has_launcher(const roll *roll)
{
    char path[PATH_BYTES];

    return is_locked(path_of(roll, path, "launcher"));
}
