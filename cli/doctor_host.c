/* sherd doctor: the checks of one host. Each function looks at one thing, and adds one finding. */
#include "cli/doctor.h"

#include "models/blas.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
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

/* ---- processors ---- */

/* Returns the cores that a control group's quota allows, from the file of its second version; 0:
 * there is no quota. */
static double quota_read(const char *folder)
{
    char   path[PATH_MAX], line[64];
    double quota, period;

    (void)snprintf(path, sizeof(path), "%.4000s/cpu.max", folder);
    return line_read(path, line, sizeof(line)) && sscanf(line, "%lf %lf", &quota, &period) == 2 &&
                   period > 0
               ? quota / period
               : 0;
}

/* The same of the first version. */
static double old_quota_read(const char *folder)
{
    char   path[PATH_MAX], quota[32], period[32];
    double cores;

    (void)snprintf(path, sizeof(path), "%.4000s/cpu.cfs_quota_us", folder);
    if (!line_read(path, quota, sizeof(quota))) {
        return 0;
    }
    (void)snprintf(path, sizeof(path), "%.4000s/cpu.cfs_period_us", folder);
    if (!line_read(path, period, sizeof(period)) || strtod(period, NULL) <= 0) {
        return 0;
    }
    cores = strtod(quota, NULL) / strtod(period, NULL);
    return cores > 0 ? cores : 0;
}

static void least_take(double *least, double cores)
{
    *least = cores > 0 && (*least == 0 || cores < *least) ? cores : *least;
}

/* Takes the quota of a group and of all groups above it. */
static void quotas_take(double *least, const char *root, const char *group,
                        double (*read)(const char *folder))
{
    char  folder[PATH_MAX];
    char *slash;

    (void)snprintf(folder, sizeof(folder), "%s%s", root, group);
    while (strlen(folder) >= strlen(root)) {
        least_take(least, read(folder));
        slash = strrchr(folder, '/');
        if (slash == NULL) {
            return;
        }
        *slash = '\0';
    }
}

/* Returns the cores that the control groups of this process allow; 0: no limit. */
static double group_cores(void)
{
    FILE  *file  = fopen("/proc/self/cgroup", "re");
    double least = 0;
    char   line[PATH_MAX];

    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        char *group = strchr(line, ':') == NULL ? NULL : strchr(strchr(line, ':') + 1, ':');

        if (group == NULL) {
            continue;
        }
        line[strcspn(line, "\n")] = '\0';
        if (strncmp(line, "0::", 3) == 0) {
            quotas_take(&least, "/sys/fs/cgroup", group + 1, quota_read);
        } else if (strstr(line, "cpu,") != NULL || strstr(line, ":cpu:") != NULL) {
            quotas_take(&least, "/sys/fs/cgroup/cpu", group + 1, old_quota_read);
        }
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    return least;
}

static void processors_look(const doctor_look *l)
{
    double limit = group_cores();

    if (limit > 0 && limit < (double)l->cores) {
        doctor_add(l->host, "processors", DOCTOR_ADVICE,
                   "raise the limit (docker --cpus, resources of a Kubernetes container), or set "
                   "SHERD_THREADS and OMP_NUM_THREADS to a rank's share of it",
                   "a control group gives the ranks the time of %.1f cores, and %ld can be seen: "
                   "as many threads wait for each other while the group is stopped",
                   limit, l->cores);
    } else if (l->ranks > l->cores) {
        doctor_add(l->host, "processors", DOCTOR_ADVICE, "start fewer ranks on this host",
                   "%d ranks share %ld cores", l->ranks, l->cores);
    } else {
        doctor_add(l->host, "processors", DOCTOR_OK, NULL, "%d rank%s, %ld cores", l->ranks,
                   l->ranks == 1 ? "" : "s", l->cores);
    }
}

static void threads_look(const doctor_look *l)
{
    const char *text   = getenv("OMP_NUM_THREADS");
    long        share  = l->cores / l->ranks > 0 ? l->cores / l->ranks : 1;
    long        number = text == NULL ? 0 : strtol(text, NULL, 10);
    char        fix[128];

    (void)snprintf(fix, sizeof(fix), "set OMP_NUM_THREADS=%ld for the ranks of this host", share);
    if (text == NULL && l->ranks > 1) {
        doctor_add(l->host, "OMP_NUM_THREADS", DOCTOR_ADVICE, fix,
                   "it is not set: torch and BLAS compute with %ld threads in each of %d ranks, "
                   "unless the launcher (torchrun) sets it",
                   l->cores, l->ranks);
    } else if (text != NULL && number < 1) {
        doctor_add(l->host, "OMP_NUM_THREADS", DOCTOR_ADVICE, fix,
                   "it is \"%.32s\", which is no number of threads", text);
    } else if (number * l->ranks > l->cores) {
        doctor_add(l->host, "OMP_NUM_THREADS", DOCTOR_ADVICE, fix,
                   "it is %ld: %d ranks have %ld threads on %ld cores", number, l->ranks,
                   number * l->ranks, l->cores);
    } else {
        doctor_add(l->host, "OMP_NUM_THREADS", DOCTOR_OK, NULL, "%s",
                   text == NULL ? "not set, and one rank has all cores" : "the ranks fit");
    }
}

static void blas_look(const doctor_look *l)
{
    const blas_state *blas = blas_open();
    char              warning[512];

    if (!blas->is_open) {
        doctor_add(l->host, "BLAS", DOCTOR_ADVICE, "install OpenBLAS (libopenblas0)",
                   "the trainer of sherd multiplies matrices without a library: %s", blas->why);
    } else if (blas_warning(warning) != NULL || blas->level < blas->cpu_level) {
        doctor_add(l->host, "BLAS", DOCTOR_ADVICE,
                   "unset OPENBLAS_CORETYPE, or install a newer OpenBLAS",
                   "%s computes with its kernels for %s, which are narrower than this processor",
                   blas->library, blas->core);
    } else if (strcmp(blas->core, blas->own_core) != 0 && !blas->is_users_core) {
        doctor_add(l->host, "BLAS", DOCTOR_ADVICE,
                   "install a newer OpenBLAS; for programs of your own (torch, numpy) until then, "
                   "set OPENBLAS_CORETYPE to these kernels",
                   "%s would choose its kernels for %s; the trainer of sherd makes it take %s",
                   blas->library, blas->own_core, blas->core);
    } else {
        doctor_add(l->host, "BLAS", DOCTOR_OK, NULL, "%s, %s kernels", blas->library, blas->core);
    }
}

/* ---- libraries ---- */

/* Reads the first line that a command prints. */
static int command_line(const char *command, char *line, int line_bytes)
{
    FILE *pipe = popen(command, "re");
    int   is_there;

    if (pipe == NULL) {
        return 0;
    }
    is_there                                 = fgets(line, line_bytes, pipe) != NULL;
    line[is_there ? strcspn(line, "\n") : 0] = '\0';
    while (fgetc(pipe) != EOF) {
    }
    return pclose(pipe) == 0 && is_there;
}

static void mpi_look(const doctor_look *l)
{
    static const char FIX[]   = "install Open MPI 3 to 5 (openmpi-bin, libopenmpi3), or let "
                                "SHERD_MPI_LIBRARY and PATH name the library and the mpirun of one";
    const char       *library = env_of(l, "mpi");
    int               has_mpi = strncmp(library, "Open MPI", 8) == 0;
    char              starter[160];
    int has_starter = command_line("mpirun --version 2>/dev/null", starter, sizeof(starter));

    if (has_starter && strstr(starter, "Open MPI") == NULL && strstr(starter, "OpenRTE") == NULL) {
        doctor_add(l->host, "MPI", has_mpi ? DOCTOR_ADVICE : DOCTOR_FAULT, FIX,
                   "mpirun is that of another MPI (%.80s), and sherd has %.120s", starter, library);
    } else if (!has_mpi && (has_starter || getenv("SHERD_MPI_LIBRARY") != NULL)) {
        doctor_add(l->host, "MPI", DOCTOR_FAULT, FIX, "%.300s", library);
    } else if (!has_mpi) {
        doctor_add(l->host, "MPI", DOCTOR_SKIPPED, NULL,
                   "there is no MPI; several hosts without NCCL need it");
    } else {
        doctor_add(l->host, "MPI", DOCTOR_OK, NULL, "%s", library);
    }
}

static void device_look(const doctor_look *l)
{
    const char *reason  = env_of(l, "cuda devices"); /* only where there are none */
    int         has_gpu = access("/dev/nvidia0", F_OK) == 0 || access("/dev/nvidiactl", F_OK) == 0;
    const char *nccl    = env_of(l, "nccl");

    if (reason[0] != '\0' && has_gpu) {
        doctor_add(l->host, "GPU", DOCTOR_FAULT,
                   "install a driver for the CUDA of this build ('sherd env' names it), and let "
                   "the container have the devices (docker --gpus all)",
                   "there is a GPU, and CUDA finds no device: %.240s", reason);
    } else if (reason[0] != '\0') {
        doctor_add(l->host, "GPU", DOCTOR_SKIPPED, NULL, "this host has no GPU");
    } else if (nccl[0] < '0' || nccl[0] > '9') {
        doctor_add(l->host, "GPU", DOCTOR_FAULT,
                   "install NCCL (libnccl2, or the package nvidia-nccl), or let "
                   "SHERD_NCCL_LIBRARY name it",
                   "there are GPUs, and NCCL is not usable: %.240s", nccl);
    } else {
        doctor_add(l->host, "GPU", DOCTOR_OK, NULL, "%.120s; NCCL %.40s",
                   env_of(l, "cuda device 0"), nccl);
    }
}

static void uring_look(const doctor_look *l)
{
    const char *uring = env_of(l, "io_uring");

    if (strcmp(uring, "yes") == 0) {
        doctor_add(l->host, "io_uring", DOCTOR_OK, NULL, "the kernel permits it");
        return;
    }
    doctor_add(l->host, "io_uring", DOCTOR_ADVICE,
               "permit it: 'sysctl kernel.io_uring_disabled=0', and a seccomp profile of the "
               "container that has it",
               "io_uring is not usable: offload to NVMe reads and writes by threads, which is "
               "slower");
}

void doctor_host_look(const doctor_request *request, const json_t *env, doctor_host *host)
{
    static void (*const CHECKS[])(const doctor_look *l) = {
        processors_look, threads_look,     memory_look,      huge_pages_look,   shm_look,
        memlock_look,    files_look,       blas_look,        device_look,       mpi_look,
        uring_look,      doctor_port_look, doctor_nvme_look, doctor_folder_look};
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
