/* State files in folders, seen from outside: listing and removing the files of any run, without a
 * queue. A file that a run has open is only read. */
#include "offload/checksum.h"
#include "offload/io_impl.h"
#include "offload/state_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* Stripes that are tried when the header does not give their number. */
#define STRIPES_TRIED 64

/* Up to this format the extents were in the index file, which was itself striped. */
#define FORMAT_WITHOUT_SETS 2

#define PATH_BYTES (SHERDI_STATE_FOLDER_BYTES + SHERDI_STATE_NAME_BYTES + 16)

static sherd_status file_fail(const char *what, const char *path, int error)
{
    char buffer[128];

    return sherdi_fail(SHERD_E_IO, "cannot %s %s: %s%s", what, path,
                       strerror_r(error, buffer, sizeof(buffer)),
                       error == ENOENT && strcmp(what, "list folder") == 0
                           ? "; create it (mkdir -p) or name another"
                           : "");
}

/* Returns how many bytes could be read. */
static size_t front_read(int fd, sherdi_state_front *front)
{
    size_t done = 0;

    while (done < sizeof(*front)) {
        ssize_t got = pread(fd, (char *)front + done, sizeof(*front) - done, (off_t)done);

        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            break;
        }
        done += (size_t)got;
    }
    return done;
}

static int id_is_same(const sherdi_state_id *a, const sherdi_state_id *b)
{
    return a->run == b->run && a->rank == b->rank && a->world_size == b->world_size;
}

/* Returns whether the header is intact and belongs to a file with this name. */
static int front_is_of(const sherdi_state_front *front, const sherdi_state_id *id)
{
    const sherdi_state_id has = sherdi_state_header_id(&front->header);

    return sherdi_state_header_is_whole(&front->header) && id_is_same(&has, id);
}

/* Writes the path of stripe `index` of a file. `at` is the folder of the first stripe and has
 * `at_len` bytes; the header says where the other stripes are. Returns 0 when it does not. */
static int stripe_path(const sherdi_state_header *header, const char *at, int at_len,
                       const char *name, uint32_t index, char *path)
{
    const char *folder = index == 0 ? at : sherdi_state_header_folder(header, index);

    if (folder == NULL) {
        return 0;
    }
    if (index == 0) {
        (void)snprintf(path, PATH_BYTES, "%.*s/%s", at_len, at, name);
    } else {
        (void)snprintf(path, PATH_BYTES, "%s/%s.%d", folder, name, (int)index);
    }
    return 1;
}

typedef struct folder_text {
    const char *text;
    int         len;
} folder_text;

static folder_text folder_of(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash == NULL ? (folder_text){".", 1} : (folder_text){path, (int)(slash - path)};
}

/* --------------------------------------------------------------- listing -- */

/* Returns whether the file was reserved at most: its process was killed before the first byte.
 * Returns 0 if the file system does not know it. Ask before anything is read, because pages in
 * memory count as data. */
static int is_never_written(int fd)
{
    return lseek(fd, 0, SEEK_DATA) < 0 && errno == ENXIO;
}

/* Returns whether the header is intact; then `front` is filled. */
static int found_read(int fd, sherdi_state_found *found, sherdi_state_front *front)
{
    /* the tables need not be read: heads are written after them */
    static const int   BOTH[2] = {1, 1};
    sherdi_state_heads heads;

    if (is_never_written(fd)) {
        found->is_valid = 1;
        return 0;
    }
    if (front_read(fd, front) != sizeof(*front) || !front_is_of(front, &found->id)) {
        return 0;
    }
    found->id         = sherdi_state_header_id(&front->header);
    found->format     = front->header.version;
    heads             = sherdi_state_heads_read(front->heads, BOTH, &found->id);
    found->is_valid   = heads.live >= 0 || !heads.is_damaged;
    found->generation = heads.generation;
    found->previous   = heads.previous;
    if (heads.live >= 0) {
        memcpy(found->note, front->heads[heads.live].note, sizeof(found->note));
    }
    return 1;
}

/* Returns whether somebody else holds the lock. A free lock is held for a moment. */
static int lock_is_held(int fd)
{
    if (flock(fd, LOCK_SH | LOCK_NB) == 0) {
        (void)flock(fd, LOCK_UN);
        return 0;
    }
    return errno == EWOULDBLOCK;
}

/* The sets are looked at too: a killed process keeps longest the files to which it was writing. */
static int path_is_locked(const char *path)
{
    int fd        = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    int is_locked = fd >= 0 && lock_is_held(fd);

    if (fd >= 0) {
        (void)close(fd);
    }
    return is_locked;
}

/* Adds the space of the sets that only this state keeps, and finds out whether one of them is
 * locked. */
static void sets_look_at(const sherdi_state_header *header, sherdi_state_found *found)
{
    const folder_text at = folder_of(found->path);
    char              name[SHERDI_STATE_NAME_BYTES];
    char              path[PATH_BYTES];
    struct stat       info;

    for (int s = 0; s < SHERDI_STATE_SETS; s++) {
        sherdi_state_set_name(&found->id, s, name);
        for (uint32_t i = 0; i < header->num_folders; i++) {
            if (!stripe_path(header, at.text, at.len, name, i, path)) {
                break;
            }
            if (lstat(path, &info) == 0 && S_ISREG(info.st_mode)) {
                if (info.st_nlink > 1) { /* a checkpoint has it too, and nobody writes to it */
                    continue;
                }
                found->held_bytes += (uint64_t)info.st_blocks * 512;
                found->is_locked = found->is_locked || path_is_locked(path);
            }
        }
    }
}

/* Returns 0 when there is no regular file (any more). A file that cannot be opened is reported as
 * not valid. The lock is checked before and after reading, and the link count after it, because a
 * run may have begun in between, so that the file was half written, or may have ended and removed
 * its file. */
static int found_fill(sherdi_state_found *found)
{
    sherdi_state_front front;
    struct stat        info;
    int                fd;

    if (lstat(found->path, &info) != 0 || !S_ISREG(info.st_mode)) {
        return 0;
    }
    found->held_bytes = (uint64_t)info.st_blocks * 512;
    found->changed_s  = info.st_mtime;
    fd                = open(found->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) {
        return errno != ENOENT;
    }
    found->is_locked = lock_is_held(fd);
    if (found_read(fd, found, &front)) {
        sets_look_at(&front.header, found);
    }
    found->is_locked = lock_is_held(fd) || found->is_locked;
    if (fstat(fd, &info) != 0) {
        info.st_nlink = 0;
    }
    (void)close(fd);
    return info.st_nlink > 0;
}

static sherd_status entry_hand_over(const char *folder, const char *name, sherdi_state_found_fn fn,
                                    void *ctx)
{
    sherdi_state_found found = {0};
    int                len;

    if (!sherdi_state_name_parse(name, &found.id)) {
        return SHERD_OK;
    }
    len = snprintf(found.path, sizeof(found.path), "%s/%s", folder, name);
    if (len < 0 || (size_t)len >= sizeof(found.path)) {
        return sherdi_fail(SHERD_E_INVAL, "the folder's name has more than %zu bytes: %s",
                           sizeof(found.path), folder);
    }
    return found_fill(&found) ? fn(ctx, &found) : SHERD_OK;
}

static int entry_is_ours(const struct dirent *entry)
{
    sherdi_state_id id;

    return sherdi_state_name_parse(entry->d_name, &id);
}

sherd_status sherdi_state_find(const char *folder, sherdi_state_found_fn fn, void *ctx)
{
    struct dirent **entries;
    sherd_status    status = SHERD_OK;
    int             count;

    SHERDI_TRY(sherdi_checksum_check_built());
    count = scandir(folder, &entries, entry_is_ours, alphasort);
    if (count < 0) {
        return file_fail("list folder", folder, errno);
    }
    for (int i = 0; i < count; i++) {
        if (status == SHERD_OK) {
            status = entry_hand_over(folder, entries[i]->d_name, fn, ctx);
        }
        free(entries[i]); /* scandir allocated it */
    }
    free(entries);
    return status;
}

/* -------------------------------------------------------------- removing -- */

/* A state file that is being removed. */
typedef struct removal {
    int                fd; /* of the index, which is locked */
    const char        *path, *name;
    sherdi_state_id    id;
    const char *const *folders; /* where its stripes may be when the header does not say */
    int                num_folders;
    uint64_t           freed_bytes;
} removal;

static sherd_status path_remove(removal *r, const char *path)
{
    struct stat info;

    if (lstat(path, &info) == 0 && unlink(path) == 0) {
        r->freed_bytes += (uint64_t)info.st_blocks * 512;
        return SHERD_OK;
    }
    return errno == ENOENT || errno == ENOTDIR ? SHERD_OK : file_fail("remove", path, errno);
}

/* Removes stripes [first, count) of a file, as the header names them, the last one first. */
static sherd_status stripes_remove(removal *r, const sherdi_state_header *header, const char *name,
                                   uint32_t first)
{
    const folder_text at   = folder_of(r->path);
    const uint32_t    most = SHERDI_STATE_FOLDER_BYTES / 2; /* a name takes at least two bytes */
    char              path[PATH_BYTES];

    for (uint32_t i = header->num_folders < most ? header->num_folders : most; i-- > first;) {
        if (stripe_path(header, at.text, at.len, name, i, path)) {
            SHERDI_TRY(path_remove(r, path));
        }
    }
    return SHERD_OK;
}

/* The same without a header's number: tries the folder of the index, and the caller's folders. */
static sherd_status stripes_try(removal *r, const char *name, int first)
{
    const folder_text at = folder_of(r->path);
    char              path[PATH_BYTES];

    for (int i = STRIPES_TRIED - 1; i >= first; i--) {
        const char *folder = i < r->num_folders ? r->folders[i] : NULL;

        if (i == 0) {
            (void)snprintf(path, sizeof(path), "%.*s/%s", at.len, at.text, name);
        } else {
            (void)snprintf(path, sizeof(path), "%.*s/%s.%d", at.len, at.text, name, i);
        }
        SHERDI_TRY(path_remove(r, path));
        if (i > 0 && folder != NULL) {
            (void)snprintf(path, sizeof(path), "%s/%s.%d", folder, name, i);
            SHERDI_TRY(path_remove(r, path));
        }
    }
    return SHERD_OK;
}

/* Removes everything but the index. */
static sherd_status slots_remove(removal *r)
{
    char               name[SHERDI_STATE_NAME_BYTES];
    sherdi_state_front front;
    int is_known = front_read(r->fd, &front) == sizeof(front) && front_is_of(&front, &r->id);

    for (int s = 0; s < SHERDI_STATE_SETS; s++) {
        sherdi_state_set_name(&r->id, s, name);
        SHERDI_TRY(is_known ? stripes_remove(r, &front.header, name, 0) : stripes_try(r, name, 0));
    }
    if (!is_known) {
        return stripes_try(r, r->name, 1);
    }
    return front.header.version > FORMAT_WITHOUT_SETS
               ? SHERD_OK
               : stripes_remove(r, &front.header, r->name, 1);
}

/* Removes the index last: while it exists, the other files can be found. */
static sherd_status files_remove(removal *r)
{
    SHERDI_TRY(slots_remove(r));
    return path_remove(r, r->path);
}

static sherd_status lock_take(const removal *r)
{
    int error = sherdi_file_lock(r->fd);

    if (error == EWOULDBLOCK) {
        return sherdi_fail(SHERD_E_STATE, "%s is in use by a run", r->path);
    }
    return error == 0 ? SHERD_OK : file_fail("lock", r->path, error);
}

static sherd_status removal_open(removal *r)
{
    const char *slash = strrchr(r->path, '/');

    r->name = slash == NULL ? r->path : slash + 1;
    SHERDI_TRY(sherdi_checksum_check_built());
    if (!sherdi_state_name_parse(r->name, &r->id)) {
        return sherdi_fail(SHERD_E_INVAL, "%s is not named like a state file", r->path);
    }
    r->fd = open(r->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    return r->fd < 0 ? file_fail("open", r->path, errno) : SHERD_OK;
}

/* Returns whether the file still exists and is still empty. Call it under the lock. */
static int is_still_empty(const removal *r)
{
    sherdi_state_found found = {.id = r->id};
    sherdi_state_front front;
    struct stat        info;

    (void)found_read(r->fd, &found, &front);
    return fstat(r->fd, &info) == 0 && info.st_nlink > 0 && sherdi_state_found_is_empty(&found);
}

/* Locks and removes what removal_open has opened. */
static sherd_status removal_run(removal *r, int is_for_empty)
{
    sherd_status status = lock_take(r);

    if (status == SHERD_OK && is_for_empty && !is_still_empty(r)) {
        status = sherdi_fail(SHERD_E_STATE, "%s is not empty, or gone", r->path);
    }
    if (status == SHERD_OK) {
        status = files_remove(r);
    }
    (void)close(r->fd);
    return status;
}

sherd_status sherdi_state_remove(const char *path)
{
    removal r = {.path = path};

    SHERDI_TRY(removal_open(&r));
    return removal_run(&r, 0);
}

sherd_status sherdi_state_reclaim(const char *path, const char *const *folders, int num_folders,
                                  uint64_t *freed_bytes_out)
{
    removal      r = {.path = path, .folders = folders, .num_folders = num_folders};
    sherd_status status;

    *freed_bytes_out = 0;
    status           = removal_open(&r);
    if (status == SHERD_E_IO && access(path, F_OK) != 0 && errno == ENOENT) {
        return sherdi_fail(SHERD_E_STATE, "%s is gone", path);
    }
    SHERDI_TRY(status);
    status           = removal_run(&r, 1);
    *freed_bytes_out = r.freed_bytes;
    return status;
}
