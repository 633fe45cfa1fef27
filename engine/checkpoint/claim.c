#include "engine/checkpoint/claim.h"

#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#define PATH_BYTES 4096 /* as in folder.h */
#define WAIT_NS    ((int64_t)20 * 1000000000)
#define PAUSE_NS   10000000

/* Returns whether another descriptor holds the lock. If none does, this one holds it now, if the
 * file system has locks. */
static int is_taken(int fd)
{
    return flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
}

sherd_status sherdi_claim_dir(const char *dir, sherdi_claim *out)
{
    const struct timespec pause    = {.tv_nsec = PAUSE_NS};
    int64_t               until_ns = sherdi_now_ns() + WAIT_NS;
    int                   fd       = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0) {
        return sherdi_fail(SHERD_E_IO, "cannot open the folder %s: %s", dir, strerror(errno));
    }
    while (is_taken(fd)) {
        if (sherdi_now_ns() >= until_ns) {
            (void)close(fd);
            return sherdi_fail(SHERD_E_IO,
                               "another process has held the lock of the folder %s for 20 s; see "
                               "whether it hangs, or give another folder",
                               dir);
        }
        (void)nanosleep(&pause, NULL);
    }
    *out = (sherdi_claim){.is_held = 1, .fd = fd};
    return SHERD_OK;
}

sherd_status sherdi_claim_partial(const char *folder, sherdi_claim *out)
{
    char path[PATH_BYTES + 8];
    char host[64] = "";
    char who[128];
    int  fd;
    int  len;

    (void)snprintf(path, sizeof(path), "%s/lock", folder);
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (fd < 0) {
        return sherdi_fail(SHERD_E_IO, "cannot make the file %s: %s", path, strerror(errno));
    }
    (void)is_taken(fd); /* it is not: the folder is new */
    (void)gethostname(host, sizeof(host) - 1);
    len = snprintf(who, sizeof(who), "process %ld on host %s", (long)getpid(), host);
    (void)!write(fd, who, (size_t)len); /* for messages alone */
    *out = (sherdi_claim){.is_held = 1, .fd = fd};
    return SHERD_OK;
}

int sherdi_claim_is_held(const char *folder, char *who_out, size_t len_bytes)
{
    char    path[PATH_BYTES + 8];
    int     held;
    int     fd;
    ssize_t len;

    (void)snprintf(path, sizeof(path), "%s/lock", folder);
    fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) {
        return 0;
    }
    held                       = is_taken(fd);
    len                        = held ? read(fd, who_out, len_bytes - 1) : 0;
    who_out[len > 0 ? len : 0] = '\0';
    (void)close(fd);
    return held;
}

void sherdi_claim_unlink(const char *folder)
{
    char path[PATH_BYTES + 8];

    (void)snprintf(path, sizeof(path), "%s/lock", folder);
    (void)unlink(path); /* if it stays, it does no harm in a complete checkpoint */
}

void sherdi_claim_drop(sherdi_claim *claim)
{
    if (claim->is_held) {
        (void)flock(claim->fd, LOCK_UN); /* also for copies of the descriptor in forked children */
        (void)close(claim->fd);
        claim->is_held = 0;
    }
}
