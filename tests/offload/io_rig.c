#include "tests/offload/io_rig.h"

#include "tests/offload/fault_uring.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>

static sherdi_mem      mem;
static sherdi_ioq_kind kind_now;
static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER; /* guards log_text */
static char            log_text[4096];
static int             cases_begun;

static void log_hear(void *ctx, sherd_log_level level, const char *line)
{
    size_t used;

    (void)ctx;
    (void)level;
    (void)pthread_mutex_lock(&log_lock);
    used = strlen(log_text);
    (void)snprintf(log_text + used, sizeof(log_text) - used, "%s\n", line);
    (void)pthread_mutex_unlock(&log_lock);
}

void rig_begin(sherdi_ioq_kind kind)
{
    const sherdi_ioq_params params = {.kind = kind, .request_bytes = PAGE, .depth = 1};
    sherdi_ioq             *queue;
    sherd_status            status;

    fault_arm(FAULT_NONE, FAULT_ANY, 0, 0);
    (void)sherdi_mem_fail_nth(0);
    sherdi_mem_init(&mem);
    cases_begun++;
    kind_now = kind;
    status   = sherdi_ioq_create(&params, &mem, &queue);
    if (status == SHERD_E_NOTSUP) {
        test_skip("%s", sherd_last_error());
    }
    CHECK_OK(status);
    sherdi_ioq_destroy(queue);
    log_text[0] = '\0';
    sherd_log_set(log_hear, NULL, SHERD_LOG_TRACE);
}

void rig_end(void)
{
    sherd_log_set(NULL, NULL, SHERD_LOG_ERROR);
    fault_arm(FAULT_NONE, FAULT_ANY, 0, 0);
    CHECK_INT(0, sherdi_mem_held_all(&mem));
}

sherdi_mem *rig_mem(void)
{
    return &mem;
}

sherdi_ioq_kind rig_kind(void)
{
    return kind_now;
}

sherdi_ioq *rig_queue(size_t request_bytes, int depth)
{
    const sherdi_ioq_params params = {
        .kind          = kind_now,
        .request_bytes = request_bytes,
        .depth         = depth,
    };
    sherdi_ioq  *queue  = NULL;
    sherd_status status = sherdi_ioq_create(&params, &mem, &queue);

    /* Rings made in quick succession: the kernel gives back late what it counts as locked. */
    if (status == SHERD_E_NOTSUP) {
        test_skip("%s", sherd_last_error());
    }
    CHECK_OK(status);
    return queue;
}

const char *rig_folder(const char *name)
{
    static char paths[8][128];
    static int  turn;
    char       *path = paths[turn++ % 8];

    (void)snprintf(path, sizeof(paths[0]), "%s/%d", test_scratch(), cases_begun);
    CHECK(mkdir(path, 0700) == 0 || errno == EEXIST);
    (void)snprintf(path, sizeof(paths[0]), "%s/%d/%s", test_scratch(), cases_begun, name);
    CHECK(mkdir(path, 0700) == 0 || errno == EEXIST);
    return path;
}

void rig_mount_over(const char *type, const char *options)
{
    const char *folder = rig_folder("f0");

    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount(type, folder, type, 0, options) != 0) {
        test_skip("%s cannot be mounted here: %s", type, strerror(errno));
    }
}

sherd_status rig_file_open(sherdi_ioq *queue, const char *name, int num_folders,
                           size_t capacity_bytes, size_t stripe_bytes, uint32_t flags,
                           sherdi_file **out)
{
    const char              *folders[] = {rig_folder("f0"), rig_folder("f1"), rig_folder("f2")};
    const sherdi_file_params params    = {
           .folders        = folders,
           .num_folders    = num_folders,
           .name           = name,
           .capacity_bytes = capacity_bytes,
           .stripe_bytes   = stripe_bytes,
           .flags          = flags,
    };

    return sherdi_file_open(queue, &params, out);
}

sherdi_file *rig_file(sherdi_ioq *queue, const char *name, int num_folders, size_t capacity_bytes,
                      size_t stripe_bytes)
{
    sherdi_file *file = NULL;

    CHECK_OK(rig_file_open(queue, name, num_folders, capacity_bytes, stripe_bytes,
                           SHERDI_FILE_CREATE, &file));
    return file;
}

int rig_folder_count(const char *folder)
{
    DIR *open_folder = opendir(folder);
    int  count       = -2; /* itself and its parent */

    CHECK(open_folder != NULL);
    while (readdir(open_folder) != NULL) {
        count++;
    }
    (void)closedir(open_folder);
    return count;
}

int rig_descriptors(void)
{
    return rig_folder_count("/proc/self/fd");
}

unsigned char *rig_memory(size_t len_bytes)
{
    /* At least a page, so that it is aligned to one. */
    unsigned char *memory =
        sherdi_alloc(&mem, SHERDI_MEM_STAGING, len_bytes > PAGE ? len_bytes : PAGE);

    CHECK(memory != NULL);
    return memory;
}

void rig_fill(unsigned char *memory, size_t len_bytes, uint64_t seed)
{
    for (size_t i = 0; i + sizeof(seed) <= len_bytes; i += sizeof(seed)) {
        uint64_t word = test_random(&seed);

        memcpy(memory + i, &word, sizeof(word));
    }
}

static sherd_status transfer(sherdi_ioq *queue, sherdi_file *file, unsigned char *memory,
                             size_t offset_bytes, size_t len_bytes, int is_write)
{
    sherdi_io io = {
        .file         = file,
        .is_write     = is_write,
        .memory       = memory,
        .offset_bytes = offset_bytes,
        .len_bytes    = len_bytes,
        .what         = "state",
        .number       = 17,
    };

    sherdi_io_start(queue, &io);
    return sherdi_io_wait(queue, &io);
}

sherd_status rig_write(sherdi_ioq *queue, sherdi_file *file, unsigned char *memory,
                       size_t offset_bytes, size_t len_bytes)
{
    return transfer(queue, file, memory, offset_bytes, len_bytes, 1);
}

sherd_status rig_read(sherdi_ioq *queue, sherdi_file *file, unsigned char *memory,
                      size_t offset_bytes, size_t len_bytes)
{
    return transfer(queue, file, memory, offset_bytes, len_bytes, 0);
}

const char *rig_log(void)
{
    return log_text;
}
