/* sherd doctor: the checks of one host. Each function looks at one thing, and adds one finding. */
#include "cli/doctor.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* Least sizes that are no advice: buffers that io_uring registers, open files with many ranks, and
 * what NCCL and Open MPI put into /dev/shm for a rank. */
#define LEAST_MEMLOCK_BYTES ((uint64_t)64 << 20)
#define LEAST_FILES         ((uint64_t)1024)
#define SHM_BYTES_PER_RANK  ((uint64_t)64 << 20)
/* Of the memory of a host, the part below which a limit is worth a word. */
#define FREE_SHARE 0.5
/* The kernel's number of CAP_IPC_LOCK. */
#define IPC_LOCK_BIT 14

void doctor_text(char *out, size_t out_bytes, const char *text)
{
    (void)snprintf(out, out_bytes, "%s", text);
}

void doctor_add(doctor_host *host, const char *check, doctor_verdict verdict, const char *fix,
                const char *found, ...)
{
    doctor_finding *finding = &host->findings[host->num_findings];
    va_list         args;

    if (host->num_findings == DOCTOR_MOST_FINDINGS) {
        return;
    }
    host->num_findings++;
    doctor_text(finding->check, sizeof(finding->check), check);
    doctor_text(finding->fix, sizeof(finding->fix), fix == NULL ? "" : fix);
    finding->verdict = verdict;
    va_start(args, found);
    (void)vsnprintf(finding->found, sizeof(finding->found), found, args);
    va_end(args);
}

/* Reads the first line of a file. Returns 0 if there is none. */
static int line_read(const char *path, char *line, int line_bytes)
{
    FILE *file = fopen(path, "re");
    int   is_there;

    if (file == NULL) {
        return 0;
    }
    is_there = fgets(line, line_bytes, file) != NULL;
    (void)fclose(file);
    line[is_there ? strcspn(line, "\n") : 0] = '\0';
    return is_there;
}

static const char *env_of(const doctor_look *l, const char *key)
{
    const char *text = json_string_value(json_object_get(l->env, key));

    return text == NULL ? "" : text;
}

/* ---- limits of the process ---- */

/* Whether the limit of locked memory does not count for this process (CAP_IPC_LOCK). */
static int locks_without_limit(void)
{
    FILE              *file         = fopen("/proc/self/status", "re");
    unsigned long long capabilities = 0;
    char               line[256];

    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        if (sscanf(line, "CapEff: %llx", &capabilities) == 1) {
            break;
        }
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    return (capabilities >> IPC_LOCK_BIT & 1) != 0;
}

static void memlock_look(const doctor_look *l)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
        limit.rlim_cur >= LEAST_MEMLOCK_BYTES || locks_without_limit()) {
        doctor_add(l->host, "memlock", DOCTOR_OK, NULL, "memory can be locked");
        return;
    }
    doctor_add(l->host, "memlock", DOCTOR_ADVICE,
               "'ulimit -l unlimited' in the shell that starts the ranks, and the same in "
               "/etc/security/limits.conf, in Slurm's PropagateResourceLimits or with docker "
               "--ulimit memlock=-1",
               "this process may lock %" PRIu64 " KiB: io_uring cannot register its buffers, and "
               "NCCL and MPI over InfiniBand fail to register memory",
               (uint64_t)limit.rlim_cur / 1024);
}

static void files_look(const doctor_look *l)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= LEAST_FILES) {
        doctor_add(l->host, "open files", DOCTOR_OK, NULL, "enough files can be open");
        return;
    }
    doctor_add(l->host, "open files", DOCTOR_ADVICE,
               "'ulimit -n 65536' in the shell that starts the ranks",
               "this process may have %" PRIu64 " files open: ranks with many peers and stripes "
               "need more",
               (uint64_t)limit.rlim_cur);
}

/* ---- memory ---- */

static void huge_pages_look(const doctor_look *l)
{
    char line[128];

    if (!line_read("/sys/kernel/mm/transparent_hugepage/enabled", line, sizeof(line))) {
        doctor_add(l->host, "huge pages", DOCTOR_SKIPPED, NULL, "the kernel does not say");
    } else if (strstr(line, "[never]") != NULL) {
        doctor_add(l->host, "huge pages", DOCTOR_ADVICE,
                   "as root, 'echo madvise >/sys/kernel/mm/transparent_hugepage/enabled'",
                   "transparent huge pages are off: sherd asks for them for its large buffers, and "
                   "updates on the host are slower without");
    } else {
        doctor_add(l->host, "huge pages", DOCTOR_OK, NULL, "the kernel gives huge pages");
    }
}

static void memory_look(const doctor_look *l)
{
    const char *limit = env_of(l, "memory limit");
    double      all   = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    double      left  = strtod(env_of(l, "memory left"), NULL);

    if (limit[0] == '\0') {
        doctor_add(l->host, "memory", DOCTOR_OK, NULL, "%s", env_of(l, "memory"));
    } else if (left < FREE_SHARE * all) {
        doctor_add(l->host, "memory", DOCTOR_ADVICE,
                   "raise the limit (docker --memory, Slurm --mem, resources of a Kubernetes "
                   "container), or see with 'sherd plan' that the model fits",
                   "the ranks can take %.1f GiB of the host's %.1f GiB; the limit is that of %s",
                   left / 0x1p30, all / 0x1p30, limit);
    } else {
        doctor_add(l->host, "memory", DOCTOR_OK, NULL, "%s; the limit is that of %s",
                   env_of(l, "memory"), limit);
    }
}

static void shm_look(const doctor_look *l)
{
    uint64_t       need = (uint64_t)l->ranks * SHM_BYTES_PER_RANK;
    struct statvfs info;
    char           has[CLI_WORD_BYTES], needs[CLI_WORD_BYTES];

    if (statvfs("/dev/shm", &info) != 0) {
        doctor_add(l->host, "/dev/shm", DOCTOR_ADVICE, "mount a tmpfs at /dev/shm",
                   "there is no /dev/shm: %s. NCCL, Open MPI and the loaders of torch need it; "
                   "sherd's own ranks do not",
                   strerror(errno));
        return;
    }
    (void)cli_bytes_text((uint64_t)info.f_bavail * info.f_frsize, has);
    if ((uint64_t)info.f_bavail * info.f_frsize >= need) {
        doctor_add(l->host, "/dev/shm", DOCTOR_OK, NULL, "%s are free", has);
        return;
    }
    doctor_add(l->host, "/dev/shm", DOCTOR_ADVICE,
               "docker --shm-size=1g or --ipc=host, an emptyDir of medium Memory in Kubernetes, or "
               "'mount -o remount,size=1g /dev/shm'",
               "%s are free in /dev/shm: NCCL, Open MPI and the loaders of torch can need %s for "
               "%d ranks; sherd's own ranks do not",
               has, cli_bytes_text(need, needs), l->ranks);
}

void doctor_host_look(const doctor_request *request, const json_t *env, doctor_host *host)
{
    static void (*const CHECKS[])(const doctor_look *l) = {memory_look, huge_pages_look, shm_look, memlock_look, files_look};
    doctor_look l = {.request = request,
                     .env     = env,
                     .host    = host,
                     .ranks   = host->ranks,
                     .cores   = strtol(json_string_value(json_object_get(env, "cores")), NULL, 10)};

    (void)gethostname(host->name, sizeof(host->name) - 1);
    (void)line_read("/proc/sys/kernel/random/boot_id", host->boot, sizeof(host->boot));
    doctor_text(host->sherd, sizeof(host->sherd), env_of(&l, "sherd"));
    doctor_text(host->mpi, sizeof(host->mpi), env_of(&l, "mpi"));
    doctor_text(host->nccl, sizeof(host->nccl), env_of(&l, "nccl"));
    for (size_t i = 0; i < sizeof(CHECKS) / sizeof(CHECKS[0]); i++) {
        CHECKS[i](&l);
    }
}
