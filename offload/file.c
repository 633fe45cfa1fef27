/* Files of the queue: opened for direct I/O where possible, locked, with their space reserved and
 * their bytes striped over folders. See io.h. */
#include "offload/io_impl.h"

#include "base/checked.h"
#include "base/fork.h"
#include "base/log.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

/* A process that checks whether a file is in use holds its lock for a moment, so a lock is tried
 * several times. */
#define LOCK_TRIES    10
#define LOCK_PAUSE_NS 5000000
/* A new file that is not locked yet may be mistaken for a file of a killed run, and be removed.
 * Then it is made again. */
#define MAKE_TRIES 20

#define MODE_OWNER  0600
#define MODE_SHARED 0644 /* without the bits of the umask */

/* ---------------------------------------------------------------- stripes -- */

size_t sherdi_file_locate(const sherdi_file *file, size_t offset_bytes, int *stripe_out,
                          size_t *offset_out)
{
    size_t number, in_stripe;
    size_t count = (size_t)file->num_stripes;

    if (count == 1) {
        *stripe_out = 0;
        *offset_out = offset_bytes;
        return SIZE_MAX;
    }
    number      = offset_bytes / file->stripe_bytes;
    in_stripe   = offset_bytes % file->stripe_bytes;
    *stripe_out = (int)(number % count);
    *offset_out = number / count * file->stripe_bytes + in_stripe;
    return file->stripe_bytes - in_stripe;
}

/* Returns how many of the bytes [0, capacity_bytes) lie in stripe `index`. */
static size_t stripe_size(const sherdi_file *file, int index, size_t capacity_bytes)
{
    size_t count = (size_t)file->num_stripes;
    size_t whole, size_bytes;

    if (count == 1) {
        return capacity_bytes;
    }
    whole      = capacity_bytes / file->stripe_bytes;
    size_bytes = (whole / count + ((size_t)index < whole % count)) * file->stripe_bytes;
    if ((size_t)index == whole % count) {
        size_bytes += capacity_bytes % file->stripe_bytes;
    }
    return size_bytes;
}

/* --------------------------------------------------------------- opening -- */

static int folder_is_there(const char *folder)
{
    struct stat info;

    return stat(folder, &info) == 0 && S_ISDIR(info.st_mode);
}

/* For an existing folder: /proc says that a new file does not exist, and /sys that it is forbidden,
 * even to users who may write. */
static int folder_holds_no_files(const char *folder, int error)
{
    return error == ENOENT || ((error == EACCES || error == EPERM) &&
                               faccessat(AT_FDCWD, folder, W_OK | X_OK, AT_EACCESS) == 0);
}

static sherd_status open_fail(const sherdi_stripe *stripe, const char *folder, int is_new,
                              int error)
{
    char buffer[128];

    if (error == EEXIST) {
        return sherdi_fail(SHERD_E_IO, "%s already exists", stripe->path);
    }
    if ((error == ENOENT || error == ENOTDIR) && !folder_is_there(folder)) {
        return sherdi_fail(
            SHERD_E_IO, "folder %s does not exist; create it (mkdir -p) or name another", folder);
    }
    if (error == ELOOP) {
        return sherdi_fail(SHERD_E_IO,
                           "%s is a symbolic link, which sherd does not follow; remove it, or name "
                           "the file that it leads to",
                           stripe->path);
    }
    if (is_new && folder_holds_no_files(folder, error)) {
        return sherdi_fail(SHERD_E_IO,
                           "no file can be made in folder %s (%s): its file system does not hold "
                           "files, as /proc does not; name a folder on a drive",
                           folder, strerror_r(error, buffer, sizeof(buffer)));
    }
    return sherdi_fail(SHERD_E_IO, "cannot open %s: %s", stripe->path,
                       strerror_r(error, buffer, sizeof(buffer)));
}

int sherdi_file_lock(int fd)
{
    static const struct timespec PAUSE = {.tv_nsec = LOCK_PAUSE_NS};
    int                          error = EWOULDBLOCK;

    for (int tries = 0; tries < LOCK_TRIES && (error == EWOULDBLOCK || error == EINTR); tries++) {
        if (tries > 0) {
            (void)nanosleep(&PAUSE, NULL);
        }
        error = flock(fd, LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
    }
    return error == EINTR ? EWOULDBLOCK : error;
}

static sherd_status stripe_lock(const sherdi_stripe *stripe)
{
    char buffer[128];
    int  error = sherdi_file_lock(stripe->fd);

    if (error == EWOULDBLOCK) {
        return sherdi_fail(SHERD_E_STATE, "%s is in use by another run", stripe->path);
    }
    if (error != 0) {
        return sherdi_fail(SHERD_E_IO, "cannot lock %s: %s", stripe->path,
                           strerror_r(error, buffer, sizeof(buffer)));
    }
    return SHERD_OK;
}

/* Notes which file was opened, and returns whether it was removed between open and lock. */
static sherd_status stripe_identify(sherdi_stripe *stripe, int *is_removed_out)
{
    struct stat info;
    char        buffer[128];

    if (fstat(stripe->fd, &info) != 0) {
        return sherdi_fail(SHERD_E_IO, "cannot look at %s: %s", stripe->path,
                           strerror_r(errno, buffer, sizeof(buffer)));
    }
    if (!S_ISREG(info.st_mode)) {
        return sherdi_fail(SHERD_E_IO, "%s is not a regular file", stripe->path);
    }
    stripe->device    = info.st_dev;
    stripe->inode     = info.st_ino;
    stripe->len_bytes = (size_t)info.st_size;
    *is_removed_out   = info.st_nlink == 0;
    return SHERD_OK;
}

/* Returns the alignment that direct I/O needs for offsets and addresses; 0 where it does not work
 * on this file. */
static size_t stripe_alignment(const sherdi_stripe *stripe)
{
#ifdef STATX_DIOALIGN
    struct statx info = {0};

    if (statx(stripe->fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &info) == 0 &&
        (info.stx_mask & STATX_DIOALIGN) != 0) {
        return info.stx_dio_offset_align == 0
                   ? 0
                   : sherdi_max_size(info.stx_dio_mem_align, info.stx_dio_offset_align);
    }
#else
    (void)stripe;
#endif
    return SHERD_ALIGN_BYTES;
}

/* The file is opened without O_DIRECT and then switched, because a file system that refuses
 * O_DIRECT at open has created the file by then. */
static size_t stripe_make_direct(sherdi_file *file, sherdi_stripe *stripe)
{
    int    flags       = fcntl(stripe->fd, F_GETFL) & ~O_NONBLOCK;
    size_t align_bytes = stripe_alignment(stripe);

    if (align_bytes > 0 && SHERD_ALIGN_BYTES % align_bytes == 0 &&
        fcntl(stripe->fd, F_SETFL, flags | O_DIRECT) == 0) {
        stripe->is_direct = 1;
        return align_bytes;
    }
    (void)fcntl(stripe->fd, F_SETFL, flags);
    if (!file->queue->is_buffered_told) {
        file->queue->is_buffered_told = 1;
        sherdi_log(SHERD_LOG_INFO, file->queue->rank,
                   "%s takes no direct I/O; its transfers pass through the page cache",
                   stripe->path);
    }
    return SHERD_ALIGN_BYTES;
}

/* ----------------------------------------------------------------- space -- */

/* Blocks SIGXFSZ, which the kernel sends beyond the limit on the size of files, and which would end
 * the program. */
static int file_grow(int fd, size_t size_bytes)
{
    static const struct timespec AT_ONCE = {0};
    sigset_t                     limit, before, pending;
    int                          error;

    (void)sigemptyset(&limit);
    (void)sigaddset(&limit, SIGXFSZ);
    (void)sigpending(&pending);
    (void)pthread_sigmask(SIG_BLOCK, &limit, &before);
    do {
        error = fallocate(fd, 0, 0, (off_t)size_bytes) == 0 ? 0 : errno;
    } while (error == EINTR);
    if (error == EOPNOTSUPP || error == ENOSYS) {
        error = ftruncate(fd, (off_t)size_bytes) == 0 ? 0 : errno;
    }
    if (error == EFBIG && !sigismember(&pending, SIGXFSZ)) {
        (void)sigtimedwait(&limit, NULL, &AT_ONCE);
    }
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

static sherd_status space_fail(const sherdi_stripe *stripe, size_t size_bytes, uint64_t free_bytes)
{
    return sherdi_fail(SHERD_E_IO,
                       "%s needs %zu bytes and its file system has %llu free: make room for "
                       "%llu more or choose another folder",
                       stripe->path, size_bytes, (unsigned long long)free_bytes,
                       (unsigned long long)(free_bytes < size_bytes ? size_bytes - free_bytes : 0));
}

static sherd_status stripe_reserve(const sherdi_stripe *stripe, size_t size_bytes)
{
    struct statvfs info;
    char           buffer[128];
    uint64_t       free_bytes = UINT64_MAX;
    int            error;

    if (size_bytes == 0) {
        return SHERD_OK;
    }
    /* A file system of no blocks at all does not know its size. */
    if (fstatvfs(stripe->fd, &info) == 0 && info.f_blocks > 0) {
        free_bytes = (uint64_t)info.f_bavail * info.f_frsize;
    }
    if (free_bytes < size_bytes) {
        return space_fail(stripe, size_bytes, free_bytes);
    }
    error = file_grow(stripe->fd, size_bytes);
    if (error == ENOSPC) {
        return space_fail(stripe, size_bytes, free_bytes);
    }
    if (error != 0) {
        return sherdi_fail(SHERD_E_IO, "cannot reserve %zu bytes for %s: %s%s", size_bytes,
                           stripe->path, strerror_r(error, buffer, sizeof(buffer)),
                           error == EFBIG ? "; raise the limit on the size of files (ulimit -f)"
                                          : "");
    }
    return SHERD_OK;
}

/* ---------------------------------------------------------------- stripes -- */

/* Returns 0 when the path is longer than `most_bytes`. */
static int path_write(char *path, size_t most_bytes, const char *folder, const char *name,
                      int index)
{
    int len = index == 0 ? snprintf(path, most_bytes, "%s/%s", folder, name)
                         : snprintf(path, most_bytes, "%s/%s.%d", folder, name, index);

    return len >= 0 && (size_t)len < most_bytes;
}

static char *path_make(sherdi_mem *mem, const char *folder, const char *name, int index)
{
    size_t len_bytes = strlen(folder) + strlen(name) + 16;
    char  *path      = sherdi_alloc(mem, SHERDI_MEM_CONTROL, len_bytes);

    if (path != NULL) {
        (void)path_write(path, len_bytes, folder, name, index);
    }
    return path;
}

/* Returns an errno. Child processes do not get the descriptor: a child would keep the lock, and the
 * space of a scratch file. */
static int stripe_open_fd(const sherdi_file *file, sherdi_stripe *stripe, int is_new)
{
    int    flags = O_CLOEXEC | O_NOFOLLOW | (is_new ? O_CREAT | O_EXCL : 0);
    mode_t mode  = file->is_plain ? MODE_SHARED : MODE_OWNER;

    /* O_NONBLOCK: if a pipe is in the file's place, the open must not wait for a writer. */
    flags |= file->is_read_only ? O_RDONLY | O_NONBLOCK : O_RDWR;
    sherdi_fork_hold();
    stripe->fd = sherdi_fork_exclude(open(stripe->path, flags, mode));
    return stripe->fd < 0 ? errno : 0;
}

static void stripe_let_go(sherdi_stripe *stripe)
{
    /* Unlocks before closing, because a request of the ring may hold the same open file a little
     * longer. */
    (void)flock(stripe->fd, LOCK_UN);
    sherdi_fork_close(stripe->fd);
    stripe->fd = -1;
}

/* Opens a stripe, locks it, and makes sure that it is still at its path. */
static sherd_status stripe_take(const sherdi_file *file, sherdi_stripe *stripe, const char *folder,
                                int is_new)
{
    int is_removed = 1;

    for (int tries = 0; tries < (is_new ? MAKE_TRIES : 1); tries++) {
        int error = stripe_open_fd(file, stripe, is_new);

        if (error != 0) {
            return open_fail(stripe, folder, is_new, error);
        }
        stripe->is_made = is_new;
        if (is_new && file->is_scratch) {
            (void)unlink(stripe->path);
        }
        if (!file->is_plain && !file->is_read_only) {
            SHERDI_TRY(stripe_lock(stripe));
        }
        SHERDI_TRY(stripe_identify(stripe, &is_removed));
        if (!is_removed || file->is_scratch) {
            return SHERD_OK;
        }
        stripe_let_go(stripe);
    }
    return sherdi_fail(SHERD_E_IO, "%s was removed while it was opened", stripe->path);
}

static sherd_status stripe_compare_len(const sherdi_stripe *stripe, size_t wanted_bytes)
{
    if (wanted_bytes != 0 && stripe->len_bytes != wanted_bytes) {
        return sherdi_fail(SHERD_E_IO, "%s has %zu bytes where %zu are expected", stripe->path,
                           stripe->len_bytes, wanted_bytes);
    }
    return SHERD_OK;
}

static sherd_status stripe_open(sherdi_file *file, const sherdi_file_params *params, int index)
{
    sherdi_stripe *stripe = &file->stripes[index];
    sherdi_ioq    *queue  = file->queue;
    int            is_new = (params->flags & SHERDI_FILE_CREATE) != 0;

    stripe->path = path_make(queue->mem, params->folders[index], params->name, index);
    if (stripe->path == NULL) {
        return SHERD_E_NOMEM;
    }
    SHERDI_TRY(stripe_take(file, stripe, params->folders[index], is_new));
    if (file->is_read_only) {
        SHERDI_TRY(stripe_compare_len(stripe, stripe_size(file, index, params->capacity_bytes)));
    }
    file->granularity_bytes =
        sherdi_max_size(file->granularity_bytes, stripe_make_direct(file, stripe));
    if (is_new) {
        SHERDI_TRY(stripe_reserve(
            stripe,
            stripe_size(file, index, sherdi_round_up(params->capacity_bytes, SHERD_ALIGN_BYTES))));
    }
    return SHERD_OK;
}

/* Returns whether the path still leads to the file that was opened. */
static int stripe_is_at_path(const sherdi_stripe *stripe)
{
    struct stat info;

    return lstat(stripe->path, &info) == 0 && info.st_dev == stripe->device &&
           info.st_ino == stripe->inode;
}

static void stripe_close(sherdi_file *file, sherdi_stripe *stripe, int is_removed)
{
    char buffer[128];

    if (stripe->fd < 0) {
        return;
    }
    if (is_removed && !file->is_scratch && unlink(stripe->path) != 0 && errno != ENOENT) {
        sherdi_log(SHERD_LOG_WARN, file->queue->rank, "cannot remove %s: %s", stripe->path,
                   strerror_r(errno, buffer, sizeof(buffer)));
    }
    stripe_let_go(stripe);
}

/* ------------------------------------------------------------------ files -- */

static void file_free(sherdi_file *file)
{
    for (int i = 0; i < file->num_stripes; i++) {
        sherdi_free(file->stripes[i].path);
    }
    sherdi_free(file->stripes);
    sherdi_free(file);
}

static sherdi_file *file_alloc(sherdi_ioq *queue, const sherdi_file_params *params)
{
    sherdi_file *file = sherdi_alloc(queue->mem, SHERDI_MEM_CONTROL, sizeof(*file));

    if (file == NULL) {
        return NULL;
    }
    file->queue        = queue;
    file->stripe_bytes = params->stripe_bytes;
    file->is_scratch   = (params->flags & SHERDI_FILE_SCRATCH) != 0;
    file->is_plain     = (params->flags & SHERDI_FILE_PLAIN) != 0;
    file->is_read_only = (params->flags & SHERDI_FILE_READ) != 0;
    file->stripes = sherdi_alloc_array(queue->mem, SHERDI_MEM_CONTROL, (size_t)params->num_folders,
                                       sizeof(*file->stripes));
    if (file->stripes == NULL) {
        sherdi_free(file);
        return NULL;
    }
    file->num_stripes = params->num_folders;
    for (int i = 0; i < file->num_stripes; i++) {
        file->stripes[i].fd = -1;
    }
    return file;
}

static int flags_fit(const sherdi_file_params *params)
{
    uint32_t is_new = params->flags & SHERDI_FILE_CREATE;
    uint32_t of_new = params->flags & (SHERDI_FILE_SCRATCH | SHERDI_FILE_PLAIN);

    return (of_new == 0 || is_new != 0) &&
           ((params->flags & SHERDI_FILE_READ) == 0 || params->flags == SHERDI_FILE_READ) &&
           ((params->flags & SHERDI_FILE_PLAIN) == 0 || params->num_folders == 1);
}

sherd_status sherdi_file_open(sherdi_ioq *queue, const sherdi_file_params *params,
                              sherdi_file **out)
{
    sherdi_file *file;
    sherd_status status = SHERD_OK;

    if (!flags_fit(params)) {
        return sherdi_fail(SHERD_E_INVAL, "flags %#x with %d folders do not go together",
                           (unsigned)params->flags, params->num_folders);
    }
    if (params->num_folders > 1 &&
        (params->stripe_bytes == 0 || params->stripe_bytes % SHERD_ALIGN_BYTES != 0)) {
        return sherdi_fail(SHERD_E_INVAL, "stripes of %zu bytes: a multiple of %d is needed",
                           params->stripe_bytes, SHERD_ALIGN_BYTES);
    }
    file = file_alloc(queue, params);
    if (file == NULL) {
        return SHERD_E_NOMEM;
    }
    for (int i = 0; i < file->num_stripes && status == SHERD_OK; i++) {
        status = stripe_open(file, params, i);
    }
    if (status != SHERD_OK) {
        for (int i = file->num_stripes - 1; i >= 0; i--) {
            stripe_close(file, &file->stripes[i], file->stripes[i].is_made);
        }
        file_free(file);
        return status;
    }
    *out = file;
    return SHERD_OK;
}

void sherdi_file_close(sherdi_file *file, int is_removed)
{
    if (file == NULL) {
        return;
    }
    /* the first goes last: it leads to the others */
    for (int i = file->num_stripes - 1; i >= 0; i--) {
        stripe_close(file, &file->stripes[i], is_removed && stripe_is_at_path(&file->stripes[i]));
    }
    file_free(file);
}

/* Returns an errno. */
static int folder_sync(const char *folder)
{
    int fd, error;

    fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        return errno;
    }
    error = fsync(fd) == 0 || errno == EINVAL ? 0 : errno; /* a folder here cannot be synced */
    (void)close(fd);
    return error;
}

/* A new file survives a crash only if its directory entry does. */
static int entry_sync(const char *path)
{
    char        folder[PATH_MAX];
    const char *slash = strrchr(path, '/');

    (void)snprintf(folder, sizeof(folder), "%.*s/", (int)(slash - path), path);
    return folder_sync(folder);
}

sherd_status sherdi_folder_sync(const char *folder)
{
    char buffer[128];
    int  error = folder_sync(folder);

    if (error != 0) {
        return sherdi_fail(SHERD_E_IO, "cannot sync folder %s to its drive: %s", folder,
                           strerror_r(error, buffer, sizeof(buffer)));
    }
    return SHERD_OK;
}

sherd_status sherdi_file_sync(sherdi_file *file)
{
    char buffer[128];

    for (int i = 0; i < file->num_stripes; i++) {
        sherdi_stripe *stripe = &file->stripes[i];
        int            error  = fdatasync(stripe->fd) == 0 ? 0 : errno;

        if (error == 0 && stripe->is_made && !stripe->is_entered && !file->is_scratch) {
            error              = entry_sync(stripe->path);
            stripe->is_entered = error == 0;
        }
        if (error != 0) {
            return sherdi_fail(SHERD_E_IO, "cannot sync %s to its drive: %s", stripe->path,
                               strerror_r(error, buffer, sizeof(buffer)));
        }
    }
    return SHERD_OK;
}

size_t sherdi_file_len(const sherdi_file *file)
{
    size_t len_bytes = 0;

    assert(file->is_read_only);
    for (int i = 0; i < file->num_stripes; i++) {
        len_bytes += file->stripes[i].len_bytes;
    }
    return len_bytes;
}

sherd_status sherdi_file_trim(sherdi_file *file, size_t len_bytes)
{
    char buffer[128];
    int  error;

    assert(file->is_plain);
    do {
        error = ftruncate(file->stripes[0].fd, (off_t)len_bytes) == 0 ? 0 : errno;
    } while (error == EINTR);
    if (error != 0) {
        return sherdi_fail(SHERD_E_IO, "cannot truncate %s to %zu bytes: %s",
                           sherdi_file_path(file), len_bytes,
                           strerror_r(error, buffer, sizeof(buffer)));
    }
    return SHERD_OK;
}

size_t sherdi_file_granularity(const sherdi_file *file)
{
    return file->granularity_bytes;
}

const char *sherdi_file_path(const sherdi_file *file)
{
    return file->stripes[0].path;
}

int sherdi_file_is_linked(const sherdi_file *file)
{
    struct stat info;

    for (int i = 0; i < file->num_stripes && !file->is_scratch; i++) {
        if (fstat(file->stripes[i].fd, &info) != 0 || info.st_nlink == 0) {
            return 0;
        }
    }
    return 1;
}

int sherdi_file_is_shared(const sherdi_file *file)
{
    struct stat info;

    for (int i = 0; i < file->num_stripes; i++) {
        if (fstat(file->stripes[i].fd, &info) == 0 && info.st_nlink > 1) {
            return 1;
        }
    }
    return 0;
}

/* ------------------------------------------------------------------ links -- */

/* A file whose own name is gone, because somebody removed its folder, can still be copied. */
static sherd_status link_fail(const sherdi_stripe *stripe, const char *path, int error)
{
    char buffer[128];
    int  is_never = error == EXDEV || error == EPERM || error == EOPNOTSUPP || error == EMLINK ||
                   (error == ENOENT && access(stripe->path, F_OK) != 0);

    return sherdi_fail(is_never ? SHERD_E_NOTSUP : SHERD_E_IO, "cannot link %s as %s: %s",
                       stripe->path, path, strerror_r(error, buffer, sizeof(buffer)));
}

static sherd_status stripe_link(const sherdi_stripe *stripe, const char *folder, const char *name,
                                int index)
{
    char        path[PATH_MAX];
    struct stat info;

    if (!path_write(path, sizeof(path), folder, name, index)) {
        return link_fail(stripe, folder, ENAMETOOLONG);
    }
    if (link(stripe->path, path) != 0) {
        return link_fail(stripe, path, errno);
    }
    /* Checks which file the path led to by then. */
    if (lstat(path, &info) != 0 || info.st_dev != stripe->device || info.st_ino != stripe->inode) {
        (void)unlink(path);
        return sherdi_fail(SHERD_E_IO, "%s is another file than the one that was opened",
                           stripe->path);
    }
    return SHERD_OK;
}

/* Removes the first `count` links. */
static void stripes_unlink(const char *const *folders, const char *name, int count)
{
    char path[PATH_MAX];

    for (int i = count - 1; i >= 0; i--) {
        if (path_write(path, sizeof(path), folders[i], name, i)) {
            (void)unlink(path);
        }
    }
}

sherd_status sherdi_file_link(const sherdi_file *file, const char *const *folders, const char *name)
{
    sherd_status status = SHERD_OK;
    int          made   = 0;

    while (made < file->num_stripes && status == SHERD_OK) {
        status = stripe_link(&file->stripes[made], folders[made], name, made);
        made += status == SHERD_OK;
    }
    for (int i = 0; i < made && status == SHERD_OK; i++) {
        status = sherdi_folder_sync(folders[i]);
    }
    if (status != SHERD_OK) {
        stripes_unlink(folders, name, made);
    }
    return status;
}

void sherdi_file_unlink(const sherdi_file *file, const char *const *folders, const char *name)
{
    stripes_unlink(folders, name, file->num_stripes);
}
