/* sherd doctor: compares the hosts of a job. Only rank 0 adds findings. */
#include "cli/doctor.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Clocks that are further apart make ages of files and logs misleading. */
#define MOST_SECONDS_APART 0.5
/* The best of so many looks counts: a rank may be late once. */
#define CLOCK_LOOKS 5
/* A network folder shows a new file after its cache of names has expired. */
#define FOLDER_LOOKS   40
#define FOLDER_WAIT_NS 100000000

int doctor_same_host(const doctor_host *a, const doctor_host *b)
{
    return strcmp(a->name, b->name) == 0 && strcmp(a->boot, b->boot) == 0;
}

/* Adds a name to a list with commas; a list that is full ends. */
static void name_add(char *list, size_t list_bytes, const char *name)
{
    size_t len = strlen(list);

    (void)snprintf(list + len, list_bytes - len, "%s%s", len == 0 ? "" : ", ", name);
}

static int failed(const char *what)
{
    (void)fprintf(stderr, "sherd: %s: %s\n", what, sherd_last_error());
    return 1;
}

/* ---- versions ---- */

/* Compares a text of all hosts with that of the first. */
static void texts_compare(const doctor_host *all, int size, size_t offset, const char *what,
                          const char *fix, doctor_host *host)
{
    const char *first = (const char *)&all[0] + offset;

    for (int rank = 1; rank < size; rank++) {
        const char *other = (const char *)&all[rank] + offset;

        if (strcmp(first, other) != 0) {
            doctor_add(host, what, DOCTOR_FAULT, fix, "%s has %.80s, and %s has %.80s", all[0].name,
                       first, all[rank].name, other);
            return;
        }
    }
    doctor_add(host, what, DOCTOR_OK, NULL, "the same on all hosts");
}

/* ---- clocks ---- */

static double clock_now(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Measures how far the clock of each rank is from that of rank 0, in seconds. Both ranks look when
 * a barrier ends, so the error is how unequally they leave it. */
static int clocks_measure(sherd_world *world, doctor_host *all)
{
    int rank = sherd_world_rank(world);
    int size = sherd_world_size(world);

    for (int look = 0; look < CLOCK_LOOKS; look++) {
        double mine, first = 0;

        if (sherd_world_barrier(world) != SHERD_OK) {
            return failed("the ranks did not meet to compare their clocks");
        }
        mine = clock_now();
        for (int r = 0; r < size; r++) {
            double at = mine;

            if (sherd_world_broadcast(world, &at, sizeof(at), r) != SHERD_OK) {
                return failed("the ranks could not compare their clocks");
            }
            first = r == 0 ? at : first;
            if (rank == 0 && (look == 0 || fabs(at - first) < fabs(all[r].clock_s))) {
                all[r].clock_s = at - first;
            }
        }
    }
    return 0;
}

static void clocks_judge(const doctor_host *all, int size, doctor_host *host)
{
    int far = 0;

    for (int r = 1; r < size; r++) {
        far = fabs(all[r].clock_s) > fabs(all[far].clock_s) ? r : far;
    }
    if (fabs(all[far].clock_s) < MOST_SECONDS_APART) {
        doctor_add(host, "clocks", DOCTOR_OK, NULL, "at most %.0f ms apart",
                   fabs(all[far].clock_s) * 1000);
        return;
    }
    doctor_add(host, "clocks", DOCTOR_FAULT,
               "let chrony or systemd-timesyncd set the clocks of all hosts",
               "the clock of %s is %.1f s %s that of %s: ages of checkpoints and times in logs "
               "mislead",
               all[far].name, fabs(all[far].clock_s), all[far].clock_s > 0 ? "ahead of" : "behind",
               all[0].name);
}

/* ---- the folder ---- */

/* Whether the file is there with the right text; waits for a network folder to show it. */
static int file_is_seen(const char *path, const char *text)
{
    const struct timespec wait = {.tv_nsec = FOLDER_WAIT_NS};

    for (int look = 0; look < FOLDER_LOOKS; look++) {
        char    has[64] = "";
        int     fd      = open(path, O_RDONLY | O_CLOEXEC);
        ssize_t len     = fd < 0 ? 0 : read(fd, has, sizeof(has) - 1);

        if (fd >= 0) {
            (void)close(fd);
        }
        if (len > 0 && strcmp(has, text) == 0) {
            return 1;
        }
        (void)nanosleep(&wait, NULL);
    }
    return 0;
}

/* Rank 0 writes a file to the folder, and the others look for it. */
static int folder_compare(sherd_world *world, const char *folder, const doctor_host *all,
                          doctor_host *host)
{
    int    rank       = sherd_world_rank(world);
    int    size       = sherd_world_size(world);
    char   names[200] = "", text[64] = "", path[PATH_MAX];
    double unseen[1] = {0};
    int    fd;

    if (rank == 0) {
        (void)snprintf(text, sizeof(text), "%s %ld", all[0].boot, (long)getpid());
    }
    if (sherd_world_broadcast(world, text, sizeof(text), 0) != SHERD_OK) {
        return failed("the ranks could not look at the folder");
    }
    (void)snprintf(path, sizeof(path), "%s/.sherd-doctor-%s", folder, strrchr(text, ' ') + 1);
    if (rank == 0) {
        fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        if (fd >= 0) {
            (void)!write(fd, text, strlen(text));
            (void)close(fd);
        }
    }
    if (sherd_world_barrier(world) != SHERD_OK) {
        return failed("the ranks could not look at the folder");
    }
    unseen[0] = file_is_seen(path, text) ? 0 : 1;
    for (int r = 0; r < size; r++) {
        double is_unseen = unseen[0];

        if (sherd_world_broadcast(world, &is_unseen, sizeof(is_unseen), r) != SHERD_OK) {
            return failed("the ranks could not look at the folder");
        }
        if (is_unseen > 0 && strstr(names, all[r].name) == NULL) {
            name_add(names, sizeof(names), all[r].name);
        }
    }
    if (rank != 0) {
        return 0;
    }
    (void)unlink(path);
    if (names[0] == '\0') {
        doctor_add(host, "shared folder", DOCTOR_OK, NULL, "all ranks see the same %.160s", folder);
    } else {
        doctor_add(host, "shared folder", DOCTOR_FAULT,
                   "name a folder that all hosts mount (NFS, Lustre, ...), or let each host keep "
                   "its part of the checkpoints (docs/checkpoints.md)",
                   "%.140s of %s is not the folder of that name on %.120s", folder, all[0].name,
                   names);
    }
    return 0;
}

/* ---- all ---- */

int doctor_hosts_compare(sherd_world *world, const doctor_request *request, doctor_host *all,
                         doctor_host *host)
{
    static const char SAME[] = "install the same release on all hosts";
    int               size   = sherd_world_size(world);

    texts_compare(all, size, offsetof(doctor_host, sherd), "versions", SAME, host);
    texts_compare(all, size, offsetof(doctor_host, mpi), "versions of MPI", SAME, host);
    texts_compare(all, size, offsetof(doctor_host, nccl), "versions of NCCL", SAME, host);
    if (clocks_measure(world, all) != 0) {
        return 1;
    }
    clocks_judge(all, size, host);
    return request->folder == NULL ? 0 : folder_compare(world, request->folder, all, host);
}
