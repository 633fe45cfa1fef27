/* sherd launch on several hosts: reads their list, and starts the ranks there through ssh, mpirun
 * or srun. See launch.h. */
#include "cli/launch.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- the list ---- */

/* Adds a host. Returns 0, or -1 after it has printed what is wrong. */
static int host_add(launch *job, const char *name, size_t len, long ranks)
{
    launch_host *more;

    if (len == 0 || len >= sizeof(more->name) || name[0] == '-' || ranks < 1 ||
        ranks > LAUNCH_MOST_RANKS || job->num_hosts == LAUNCH_MOST_RANKS) {
        (void)cli_bad("launch", "'%.*s' is not a host and its number of ranks, such as node1:8",
                      (int)len, name);
        return -1;
    }
    more = realloc(job->hosts, (size_t)(job->num_hosts + 1) * sizeof(*more));
    if (more == NULL) {
        (void)fprintf(stderr, "sherd: no memory for the hosts\n");
        return -1;
    }
    job->hosts = more;
    (void)snprintf(more[job->num_hosts].name, sizeof(more->name), "%.*s", (int)len, name);
    more[job->num_hosts++].ranks = (int)ranks;
    return 0;
}

/* Reads a number that ends the text. Returns 0: there is none. */
static long number_of(const char *text)
{
    char *end;
    long  value = strtol(text, &end, 10);

    return end == text || *end != '\0' ? 0 : value;
}

/* Reads "a:8,b:8"; a host without a number has one rank. */
static int hosts_split(launch *job)
{
    for (const char *at = job->hosts_text;; at++) {
        size_t      len   = strcspn(at, ",");
        const char *colon = memchr(at, ':', len);
        char        number[16];

        (void)snprintf(number, sizeof(number), "%.*s",
                       colon == NULL ? 0 : (int)(at + len - colon - 1),
                       colon == NULL ? "" : colon + 1);
        if (host_add(job, at, colon == NULL ? len : (size_t)(colon - at),
                     colon == NULL ? 1 : number_of(number)) != 0) {
            return -1;
        }
        at += len;
        if (*at == '\0') {
            return 0;
        }
    }
}

/* Reads a line of a hostfile: "node1 slots=8", or "node1:8", or "node1"; # begins a comment. */
static int line_take(launch *job, char *line)
{
    char *slots;
    char *name = line + strspn(line, " \t");

    line[strcspn(line, "#\n")] = '\0';
    if (name[strspn(name, " \t")] == '\0') {
        return 0;
    }
    slots = strstr(name, "slots=");
    if (slots != NULL) {
        slots[strcspn(slots, " \t")] = '\0';
    } else {
        slots = strchr(name, ':');
    }
    return host_add(job, name, strcspn(name, " \t:"),
                    slots == NULL ? 1 : number_of(slots + (*slots == ':' ? 1 : 6)));
}

static int hostfile_read(launch *job)
{
    FILE *file   = fopen(job->hostfile, "re");
    int   status = 0;
    char  line[512];

    if (file == NULL) {
        (void)fprintf(stderr, "sherd: %s cannot be read\n", job->hostfile);
        return -1;
    }
    while (status == 0 && fgets(line, sizeof(line), file) != NULL) {
        status = line_take(job, line);
    }
    (void)fclose(file);
    if (status == 0 && job->num_hosts == 0) {
        (void)fprintf(stderr, "sherd: %s names no host\n", job->hostfile);
        return -1;
    }
    return status;
}

/* With -n the job has fewer ranks than the hosts have room for: the first hosts are filled. */
static int ranks_count(launch *job)
{
    int room = 0;

    for (int h = 0; h < job->num_hosts; h++) {
        int left = job->ranks == 0 ? job->hosts[h].ranks : job->ranks - room;

        job->hosts[h].ranks = job->hosts[h].ranks < left ? job->hosts[h].ranks : left;
        room += job->hosts[h].ranks;
        if (room == job->ranks) {
            job->num_hosts = h + 1;
        }
    }
    if (job->ranks > room) {
        return cli_bad("launch", "the hosts have room for %d ranks, not for %d", room, job->ranks);
    }
    job->all_ranks = room;
    return 0;
}

static int are_equal(const launch *job)
{
    for (int h = 1; h < job->num_hosts; h++) {
        if (job->hosts[h].ranks != job->hosts[0].ranks) {
            return 0;
        }
    }
    return 1;
}

/* Whether a program is in a folder of PATH. */
static int has_program(const char *name)
{
    const char *path = getenv("PATH");

    for (const char *at = path == NULL ? "" : path; *at != '\0';) {
        size_t len = strcspn(at, ":");
        char   file[4096];

        (void)snprintf(file, sizeof(file), "%.*s/%s", (int)len, at, name);
        if (access(file, X_OK) == 0) {
            return 1;
        }
        at += len + (at[len] == ':');
    }
    return 0;
}

/* srun inside an allocation of Slurm; else mpirun, because MPI also moves data between hosts without
 * a GPU; else ssh. */
static const char *starter_choose(const launch *job)
{
    if (job->starter != NULL) {
        return job->starter;
    }
    if (getenv("SLURM_JOB_ID") != NULL && has_program("srun")) {
        return "srun";
    }
    return has_program("mpirun") ? "mpirun" : "ssh";
}

int launch_hosts_read(launch *job)
{
    if (job->hosts_text != NULL && job->hostfile != NULL) {
        return cli_bad("launch", "--hosts and --hostfile exclude each other");
    }
    if ((job->hosts_text != NULL ? hosts_split(job) : hostfile_read(job)) != 0) {
        return 2;
    }
    job->starter = starter_choose(job);
    if (strcmp(job->starter, "srun") == 0 && !are_equal(job)) {
        return cli_bad("launch", "srun starts as many ranks on each host; give the hosts equal "
                                 "numbers, or use --starter mpirun");
    }
    if (strcmp(job->starter, "ssh") != 0 && strcmp(job->starter, "mpirun") != 0 &&
        strcmp(job->starter, "srun") != 0) {
        return cli_bad("launch", "--starter is ssh, mpirun or srun, not '%s'", job->starter);
    }
    return ranks_count(job);
}
