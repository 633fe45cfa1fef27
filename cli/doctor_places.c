/* sherd doctor: the places that a job needs: the port where its ranks meet, a folder for offloaded
 * data, and one for checkpoints. */
#include "cli/doctor.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

/* The file systems' numbers (f_type). */
#define TMPFS_NUMBER 0x01021994
#define NFS_NUMBER   0x6969

/* Reads the port of a variable, of which `most` is the greatest. Returns 0: it is not set;
 * -1: it is wrong, and a fault was added. */
static int port_read(const doctor_look *l, const char *name, int most)
{
    const char *text = getenv(name);
    int         port = 0;

    if (text == NULL || text[0] == '\0' || cli_number_read(text, 1, most, &port)) {
        return port;
    }
    doctor_add(l->host, "port", DOCTOR_FAULT, "set it to a free port, or unset it",
               "%s is \"%s\": it may be 1 to %d", name, text, most);
    return -1;
}

/* Whether another program has the port, where the ranks of a job would meet. */
static void port_try(const doctor_look *l, int port)
{
    struct sockaddr_in at  = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int                yes = 1;
    int                fd;

    fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    if (bind(fd, (struct sockaddr *)&at, sizeof(at)) == 0 && listen(fd, 1) == 0) {
        doctor_add(l->host, "port", DOCTOR_OK, NULL, "%d is free", port);
    } else {
        doctor_add(l->host, "port", DOCTOR_FAULT,
                   "end the program that has it ('ss -ltnp' names it), or set SHERD_PORT to a free "
                   "port on all hosts",
                   "port %d, where the ranks of a job whose rank 0 is here would meet, cannot be "
                   "used: %s",
                   port, strerror(errno));
    }
    (void)close(fd);
}

void doctor_port_look(const doctor_look *l)
{
    int port = sherd_launcher() == NULL ? port_read(l, "SHERD_PORT", 65535) : 0;

    if (port == 0 && sherd_launcher() == NULL) {
        port = port_read(l, "MASTER_PORT", 65534);
        port += port > 0; /* torchrun's own store has that one */
    }
    if (port > 0) {
        port_try(l, port);
    } else if (port == 0) {
        doctor_add(l->host, "port", DOCTOR_SKIPPED, NULL, "%s",
                   sherd_launcher() != NULL ? "the ranks have met"
                                            : "neither SHERD_PORT nor MASTER_PORT names one");
    }
}

/* ---- folders ---- */

/* Makes a file in a folder, and writes one block to it past the page cache. Returns 0, or errno of
 * the first step that failed: *step names it. */
static int direct_write(const char *folder, const char **step)
{
    char  path[PATH_MAX];
    void *block = NULL;
    int   error = 0;
    int   fd;

    (void)snprintf(path, sizeof(path), "%s/.sherd-doctor-XXXXXX", folder);
    *step = "a file cannot be made";
    fd    = mkstemp(path);
    if (fd < 0) {
        return errno;
    }
    (void)unlink(path);
    *step = "O_DIRECT is refused";
    if (posix_memalign(&block, SHERD_ALIGN_BYTES, SHERD_ALIGN_BYTES) != 0 ||
        fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_DIRECT) != 0) {
        error = errno;
    } else {
        *step = "a block cannot be written";
        memset(block, 0, SHERD_ALIGN_BYTES);
        error = pwrite(fd, block, SHERD_ALIGN_BYTES, 0) == SHERD_ALIGN_BYTES ? 0 : errno;
    }
    free(block);
    (void)close(fd);
    return error;
}

/* Adds a finding about the free space of a folder, if it is too small. Returns whether it did. */
static int space_is_short(const doctor_look *l, const char *check, const char *folder)
{
    struct statvfs info;
    char           has[CLI_WORD_BYTES], needs[CLI_WORD_BYTES];

    if (statvfs(folder, &info) != 0) {
        doctor_add(l->host, check, DOCTOR_FAULT, "make the folder, or name another", "%.200s: %s",
                   folder, strerror(errno));
        return 1;
    }
    if ((uint64_t)info.f_bavail * info.f_frsize >= l->request->space_bytes) {
        return 0;
    }
    doctor_add(l->host, check, DOCTOR_FAULT,
               "free some space ('sherd state list' and 'sherd checkpoint list' show what runs "
               "left), or name another folder",
               "%.160s has %s free, and %s are asked for (--space)", folder,
               cli_bytes_text((uint64_t)info.f_bavail * info.f_frsize, has),
               cli_bytes_text(l->request->space_bytes, needs));
    return 1;
}

void doctor_nvme_look(const doctor_look *l)
{
    const char   *folder = l->request->nvme;
    struct statfs info;
    const char   *step;
    int           error;

    if (folder == NULL) {
        doctor_add(l->host, "NVMe", DOCTOR_SKIPPED, NULL, "--nvme names no folder");
        return;
    }
    if (space_is_short(l, "NVMe", folder)) {
        return;
    }
    error = direct_write(folder, &step);
    if (error != 0) {
        doctor_add(l->host, "NVMe", DOCTOR_FAULT,
                   "name a folder of ext4 or XFS on a drive of this host that you may write to",
                   "%.200s: %s: %s", folder, step, strerror(error));
    } else if (statfs(folder, &info) == 0 && info.f_type == TMPFS_NUMBER) {
        doctor_add(l->host, "NVMe", DOCTOR_ADVICE, "name a folder on a drive",
                   "%.200s is in memory (tmpfs): what is offloaded to it takes host memory",
                   folder);
    } else if (statfs(folder, &info) == 0 && info.f_type == NFS_NUMBER) {
        doctor_add(l->host, "NVMe", DOCTOR_ADVICE, "name a folder on a drive of this host",
                   "%.200s is a network folder (NFS)", folder);
    } else {
        doctor_add(l->host, "NVMe", DOCTOR_OK, NULL, "%.200s takes direct writes", folder);
    }
}

void doctor_folder_look(const doctor_look *l)
{
    const char *folder = l->request->folder;
    const char *step;
    int         error;

    if (folder == NULL) {
        doctor_add(l->host, "folder", DOCTOR_SKIPPED, NULL, "--folder names none");
        return;
    }
    if (space_is_short(l, "folder", folder)) {
        return;
    }
    error = direct_write(folder, &step);
    if (error == EINVAL) { /* checkpoints do without O_DIRECT */
        error = 0;
    }
    if (error != 0) {
        doctor_add(l->host, "folder", DOCTOR_FAULT, "name a folder that you may write to",
                   "%.200s: %s: %s", folder, step, strerror(error));
    } else {
        doctor_add(l->host, "folder", DOCTOR_OK, NULL, "%.200s can be written to", folder);
    }
}
