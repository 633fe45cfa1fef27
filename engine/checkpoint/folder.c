/* See folder.h. */
#include "engine/checkpoint/folder.h"

#include "base/folder.h"
#include "offload/checksum.h"
#include "offload/io.h"
#include "sherd_tools.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define PARTIAL  ".partial"
#define REMOVED  ".removed"
#define PREPARED ".prepared"
#define LATEST   "latest"

static sherd_status io_fail(const char *what, const char *path)
{
    return sherdi_fail(SHERD_E_IO, "cannot %s %s: %s", what, path, strerror(errno));
}

/* --------------------------------------------------------------------- paths -- */

static sherd_status path_make(const char *dir, const char *before, const char *tag,
                              const char *behind, const char *name,
                              char out[SHERDI_CHECKPOINT_PATH_BYTES])
{
    int len = snprintf(out, SHERDI_CHECKPOINT_PATH_BYTES, "%s/%s%s%s%s%s", dir, before, tag, behind,
                       name == NULL ? "" : "/", name == NULL ? "" : name);

    return len < SHERDI_CHECKPOINT_PATH_BYTES
               ? SHERD_OK
               : sherdi_fail(SHERD_E_INVAL, "the folder of a checkpoint has too long a path: %s",
                             dir);
}

sherd_status sherdi_checkpoint_path(const char *dir, const char *tag, const char *name,
                                    char out[SHERDI_CHECKPOINT_PATH_BYTES])
{
    return path_make(dir, "", tag, "", name, out);
}

sherd_status sherdi_checkpoint_partial_path(const char *dir, const char *tag, const char *name,
                                            char out[SHERDI_CHECKPOINT_PATH_BYTES])
{
    return path_make(dir, ".", tag, PARTIAL, name, out);
}

static sherd_status removed_path(const char *dir, const char *tag,
                                 char out[SHERDI_CHECKPOINT_PATH_BYTES])
{
    return path_make(dir, ".", tag, REMOVED, NULL, out);
}

sherd_status sherdi_checkpoint_check_folder(const char *dir, const char *tag)
{
    char        path[SHERDI_CHECKPOINT_PATH_BYTES];
    struct stat at;

    SHERDI_TRY(path_make(dir, "", tag, "", NULL, path));
    if (lstat(path, &at) != 0) {
        return io_fail("open the checkpoint", path);
    }
    return S_ISDIR(at.st_mode) ? SHERD_OK
                               : sherdi_fail(SHERD_E_IO,
                                             "%s is not a folder; a symbolic link is not followed, "
                                             "so name the folder that it leads to",
                                             path);
}

/* ------------------------------------------------------------------- contents -- */

/* The entries of a folder. */
typedef struct folder_holds {
    sherdi_checkpoint_found found;         /* all but the tag */
    int                     is_checkpoint; /* perhaps a damaged one */
    int                     num_entries, num_folders;
} folder_holds;

/* Opens a folder of ours. A symbolic link in its place is not followed. */
static DIR *folder_open(const char *path)
{
    int  fd     = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *folder = fd < 0 ? NULL : fdopendir(fd);

    if (fd >= 0 && folder == NULL) {
        (void)close(fd);
    }
    return folder;
}

/* Returns whether the file begins as a manifest of ours does. */
static int has_manifest_key(int folder, const char *name)
{
    char    head[64] = "";
    int     fd       = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    ssize_t len      = fd < 0 ? 0 : read(fd, head, sizeof(head) - 1);

    if (fd >= 0) {
        (void)close(fd);
    }
    return len > 0 && strstr(head, "\"" SHERDI_MANIFEST_KEY "\"") != NULL;
}

/* Looks into a folder; others have a manifest.json, too. Returns 0 if it cannot be opened. */
static int folder_look(const char *path, folder_holds *out)
{
    DIR           *folder       = folder_open(path);
    int            has_manifest = 0;
    int            has_data     = 0;
    struct dirent *entry;
    struct stat    at;

    *out = (folder_holds){.num_entries = 0};
    if (folder == NULL) {
        return 0;
    }
    while ((entry = readdir(folder)) != NULL) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0 ||
            fstatat(dirfd(folder), entry->d_name, &at, AT_SYMLINK_NOFOLLOW) != 0) {
            continue;
        }
        out->num_entries++;
        out->num_folders += S_ISDIR(at.st_mode);
        if (S_ISREG(at.st_mode)) {
            out->found.held_bytes += (uint64_t)at.st_size;
            out->found.shared_bytes += at.st_nlink > 1 ? (uint64_t)at.st_size : 0;
            has_data |= sherdi_is_data_file_name(entry->d_name);
            if (strcmp(entry->d_name, SHERDI_MANIFEST_NAME) == 0) {
                has_manifest = 1;
                out->found.changed_ns =
                    (int64_t)at.st_mtim.tv_sec * 1000000000 + at.st_mtim.tv_nsec;
            }
        }
    }
    out->is_checkpoint =
        has_manifest && (has_data || has_manifest_key(dirfd(folder), SHERDI_MANIFEST_NAME));
    (void)closedir(folder);
    return 1;
}

/* Fails if there is something else than a checkpoint, or an empty folder, where the checkpoint is
 * to be, or something else than a file where DIR/latest is. */
static sherd_status place_check(const char *dir, const char *tag)
{
    char         path[SHERDI_CHECKPOINT_PATH_BYTES];
    struct stat  at;
    folder_holds holds;

    SHERDI_TRY(path_make(dir, "", LATEST, "", NULL, path));
    SHERDI_TRY(sherd_output_check(path));
    SHERDI_TRY(sherdi_checkpoint_path(dir, tag, NULL, path));
    if (lstat(path, &at) != 0 ||
        (folder_look(path, &holds) && (holds.is_checkpoint || holds.num_entries == 0))) {
        return SHERD_OK;
    }
    return sherdi_fail(SHERD_E_IO,
                       "%s exists and is no checkpoint, so no checkpoint replaces it; give another "
                       "tag or folder, or move it away",
                       path);
}

/* ------------------------------------------------------------------- clearing -- */

/* Removes an entry with a folder's name that is not a folder: a file that was to be renamed, or a
 * link. */
static sherd_status other_clear(const char *path)
{
    return unlink(path) == 0 || errno == ENOENT ? SHERD_OK : io_fail("remove", path);
}

/* Removes a folder of ours with the files in it. It follows no links; folders inside it are not
 * ours, so they make it fail. */
static sherd_status folder_clear(const char *path)
{
    DIR           *folder = folder_open(path);
    struct dirent *entry;
    sherd_status   status = SHERD_OK;

    if (folder == NULL) {
        return errno == ENOENT                      ? SHERD_OK
               : errno == ENOTDIR || errno == ELOOP ? other_clear(path)
                                                    : io_fail("open the folder", path);
    }
    while ((entry = readdir(folder)) != NULL) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 &&
            unlinkat(dirfd(folder), entry->d_name, 0) != 0 && errno != ENOENT) {
            status = errno == EISDIR ? sherdi_fail(SHERD_E_IO,
                                                   "cannot remove %s: it holds a folder, %s, which "
                                                   "no checkpoint has; move that away",
                                                   path, entry->d_name)
                                     : io_fail("remove a file of", path);
        }
    }
    (void)closedir(folder);
    if (rmdir(path) != 0 && errno != ENOENT && status == SHERD_OK) {
        status = io_fail("remove the folder", path);
    }
    return status;
}

/* Returns whether a name is like ".TAG.partial" or ".TAG.removed". */
static int is_left_behind(const char *name)
{
    size_t len = strlen(name);

    return name[0] == '.' && len > sizeof(PARTIAL) &&
           (strcmp(name + len - (sizeof(PARTIAL) - 1), PARTIAL) == 0 ||
            strcmp(name + len - (sizeof(REMOVED) - 1), REMOVED) == 0);
}

/* Removes the remains of interrupted saves and removals; folders that another save writes are not
 * touched. */
static sherd_status left_behind_clear(const char *dir)
{
    DIR           *folder = opendir(dir);
    struct dirent *entry;
    sherd_status   status = SHERD_OK;
    char           path[SHERDI_CHECKPOINT_PATH_BYTES];
    char           who[128];

    if (folder == NULL) {
        return io_fail("open the folder", dir);
    }
    while (status == SHERD_OK && (entry = readdir(folder)) != NULL) {
        if (is_left_behind(entry->d_name)) {
            status = path_make(dir, "", entry->d_name, "", NULL, path);
            if (status == SHERD_OK && !sherdi_claim_is_held(path, who, sizeof(who))) {
                status = folder_clear(path);
            }
        }
    }
    (void)closedir(folder);
    return status;
}

static sherd_status partial_make(const char *dir, const char *tag, sherdi_claim *out)
{
    char           path[SHERDI_CHECKPOINT_PATH_BYTES];
    char           who[128];
    sherdi_outcome made;

    SHERDI_TRY(place_check(dir, tag));
    SHERDI_TRY(left_behind_clear(dir));
    SHERDI_TRY(sherdi_checkpoint_partial_path(dir, tag, NULL, path));
    if (sherdi_claim_is_held(path, who, sizeof(who))) {
        return sherdi_fail(SHERD_E_STATE,
                           "%s/%s is being saved by another engine (%s); give another tag or "
                           "folder, or wait until that save is complete",
                           dir, tag, who);
    }
    if (mkdir(path, 0777) != 0) {
        return io_fail("make the folder", path);
    }
    made = sherdi_outcome_of(sherdi_claim_partial(path, out));
    if (made.status != SHERD_OK) {
        (void)folder_clear(path);
    }
    return sherdi_outcome_end(&made);
}

sherd_status sherdi_checkpoint_begin(const char *dir, const char *tag, sherdi_claim *out)
{
    sherdi_claim names = {0};
    sherd_status status;

    SHERDI_TRY(sherdi_folders_make(dir, "the folder of checkpoints"));
    SHERDI_TRY(sherdi_claim_dir(dir, &names));
    status = partial_make(dir, tag, out);
    sherdi_claim_drop(&names);
    return status;
}

void sherdi_checkpoint_abandon(const char *dir, const char *tag, sherdi_claim *claim)
{
    char path[SHERDI_CHECKPOINT_PATH_BYTES];

    if (claim->is_held && sherdi_checkpoint_partial_path(dir, tag, NULL, path) == SHERD_OK) {
        (void)folder_clear(path);
    }
    sherdi_claim_drop(claim);
}

sherd_status sherdi_checkpoint_check_space(const char *dir, uint64_t need_bytes)
{
    struct statvfs at;
    uint64_t       free_bytes;

    if (statvfs(dir, &at) != 0) {
        return io_fail("look at", dir);
    }
    free_bytes = (uint64_t)at.f_bavail * at.f_frsize;
    if (free_bytes >= need_bytes) {
        return SHERD_OK;
    }
    return sherdi_fail(SHERD_E_IO,
                       "%s has room for %" PRIu64 " bytes, and the checkpoint needs %" PRIu64
                       ": %" PRIu64 " are missing; remove older ones or give another folder",
                       dir, free_bytes, need_bytes, need_bytes - free_bytes);
}

/* ---------------------------------------------------------------- small files -- */

sherd_status sherdi_checkpoint_put(const char *folder, const char *name, const void *data,
                                   size_t len_bytes)
{
    char path[SHERDI_CHECKPOINT_PATH_BYTES];

    SHERDI_TRY(path_make(folder, "", name, "", NULL, path));
    return sherd_output_write(path, data, len_bytes);
}

sherd_status sherdi_checkpoint_mark(const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);

    return fd >= 0 && close(fd) == 0 ? SHERD_OK : io_fail("make", path);
}

/* Making a folder or a file asks the server of a network folder, where looking asks the cache of
 * names. */
static int mark_is_met(const char *folder, const char *path)
{
    int fd;

    if (mkdir(folder, 0777) == 0) {
        (void)rmdir(folder);
        return 0;
    }
    fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (fd < 0) {
        return errno == EEXIST;
    }
    (void)close(fd);
    (void)unlink(path);
    return 0;
}

sherd_status sherdi_checkpoint_sees(const char *dir, const char *tag, const char *name,
                                    int *is_seen_out)
{
    char         folder[SHERDI_CHECKPOINT_PATH_BYTES];
    char         path[SHERDI_CHECKPOINT_PATH_BYTES];
    sherdi_claim names = {0};

    SHERDI_TRY(sherdi_checkpoint_partial_path(dir, tag, NULL, folder));
    SHERDI_TRY(sherdi_checkpoint_partial_path(dir, tag, name, path));
    *is_seen_out = sherdi_checkpoint_has(path);
    if (*is_seen_out) {
        return SHERD_OK;
    }
    SHERDI_TRY(sherdi_folders_make(dir, "the folder of checkpoints"));
    SHERDI_TRY(sherdi_claim_dir(dir, &names));
    *is_seen_out = mark_is_met(folder, path);
    sherdi_claim_drop(&names);
    return SHERD_OK;
}

static sherd_status all_read(int fd, const char *path, char *data, size_t len_bytes)
{
    size_t at = 0;

    while (at < len_bytes) {
        ssize_t some = read(fd, data + at, len_bytes - at);

        if (some < 0 && errno != EINTR) {
            return io_fail("read", path);
        }
        if (some == 0) {
            return sherdi_fail(SHERD_E_IO, "%s became shorter while it was read", path);
        }
        at += some > 0 ? (size_t)some : 0;
    }
    return SHERD_OK;
}

/* O_NONBLOCK: if a pipe is in the place of the file, open must not wait for a writer. */
static int file_open(const char *path)
{
    return open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
}

sherd_status sherdi_checkpoint_get(sherdi_mem *mem, const char *path, size_t most_bytes,
                                   char **data_out, size_t *len_bytes_out)
{
    int          fd = file_open(path);
    struct stat  at;
    sherd_status status = SHERD_OK;
    char        *data   = NULL;

    if (fd < 0) {
        return io_fail("open", path);
    }
    if (fstat(fd, &at) != 0) {
        status = io_fail("look at", path);
    } else if (!S_ISREG(at.st_mode) || (uint64_t)at.st_size > most_bytes) {
        status = sherdi_fail(
            SHERD_E_IO,
            "%s is not a file of at most %zu bytes, so it is not from sherd or it is damaged", path,
            most_bytes);
    } else {
        data   = sherdi_alloc(mem, SHERDI_MEM_CONTROL, (size_t)at.st_size + 1);
        status = data == NULL ? SHERD_E_NOMEM : all_read(fd, path, data, (size_t)at.st_size);
    }
    (void)close(fd);
    if (status != SHERD_OK) {
        sherdi_free(data);
        return status;
    }
    *data_out      = data;
    *len_bytes_out = (size_t)at.st_size;
    return SHERD_OK;
}

int sherdi_checkpoint_has(const char *path)
{
    return access(path, F_OK) == 0;
}

void sherdi_checkpoint_unlink(const char *path)
{
    (void)unlink(path);
}

int sherdi_checkpoint_link(const char *from, const char *to, uint64_t bytes)
{
    struct stat at;

    return lstat(from, &at) == 0 && S_ISREG(at.st_mode) && (uint64_t)at.st_size == bytes &&
           link(from, to) == 0;
}

/* --------------------------------------------------------------------- latest -- */

static sherd_status latest_put(const char *dir, const char *tag)
{
    char text[SHERDI_CHECKPOINT_NAME_BYTES + 32];
    int  len =
        snprintf(text, sizeof(text), "%s %016" PRIx64 "\n", tag, sherdi_checksum(tag, strlen(tag)));

    SHERDI_TRY(sherdi_checkpoint_put(dir, LATEST, text, (size_t)len));
    return sherdi_folder_sync(dir);
}

sherd_status sherdi_checkpoint_latest(const char *dir, char tag_out[SHERDI_CHECKPOINT_NAME_BYTES])
{
    char    path[SHERDI_CHECKPOINT_PATH_BYTES];
    char    text[SHERDI_CHECKPOINT_NAME_BYTES + 32];
    char    again[sizeof(text) + 32];
    ssize_t len;
    char   *space;
    int     fd;

    SHERDI_TRY(path_make(dir, "", LATEST, "", NULL, path));
    SHERDI_TRY(sherdi_checksum_check_built());
    fd = file_open(path);
    if (fd < 0 && errno != ENOENT) {
        return io_fail("open", path);
    }
    if (fd < 0 && access(dir, F_OK) != 0) {
        return sherdi_fail(SHERD_E_IO, "there is no folder %s", dir);
    }
    if (fd < 0) {
        return sherdi_fail(SHERD_E_IO, "%s has no complete checkpoint: there is no %s", dir, path);
    }
    len = read(fd, text, sizeof(text) - 1);
    if (len < 0) {
        sherd_status status = io_fail("read", path);

        (void)close(fd);
        return status;
    }
    (void)close(fd);
    text[len] = '\0';
    space     = strrchr(text, ' ');
    if (space != NULL && (size_t)(space - text) < SHERDI_CHECKPOINT_NAME_BYTES) {
        *space = '\0';
        (void)snprintf(again, sizeof(again), "%016" PRIx64 "\n",
                       sherdi_checksum(text, strlen(text)));
        if (strcmp(again, space + 1) == 0 && strlen(text) + 1 + strlen(again) == (size_t)len &&
            sherdi_tag_check(text) == SHERD_OK) {
            memcpy(tag_out, text, strlen(text) + 1);
            return SHERD_OK;
        }
    }
    return sherdi_fail(
        SHERD_E_INVAL,
        "%s is damaged: its checksum is wrong; name the checkpoint that is to be loaded", path);
}

/* ---------------------------------------------------------------------- finish -- */

/* Renames `partial` to `path`. If a checkpoint of that name exists already, one atomic call
 * exchanges the two, and the old one has the partial name then. */
static int folders_exchange(const char *partial, const char *path)
{
    if (rename(partial, path) == 0) {
        return 0;
    }
    return errno == ENOTEMPTY || errno == EEXIST
               ? renameat2(AT_FDCWD, partial, AT_FDCWD, path, RENAME_EXCHANGE)
               : -1;
}

/* Completes a checkpoint whose folder has its name, while the folder's lock is held. */
static sherd_status name_finish(const char *dir, const char *tag, const char *path)
{
    sherdi_claim_unlink(path);
    SHERDI_TRY(sherdi_folder_sync(dir));
    return latest_put(dir, tag);
}

/* The part of a save for which the folder's lock has to be held. */
static sherd_status partial_finish(const char *dir, const char *tag)
{
    char partial[SHERDI_CHECKPOINT_PATH_BYTES];
    char path[SHERDI_CHECKPOINT_PATH_BYTES];

    SHERDI_TRY(sherdi_checkpoint_partial_path(dir, tag, NULL, partial));
    SHERDI_TRY(sherdi_checkpoint_path(dir, tag, NULL, path));
    SHERDI_TRY(sherdi_folder_sync(partial));
    if (folders_exchange(partial, path) != 0) {
        return io_fail("give its name to the checkpoint", path);
    }
    SHERDI_TRY(name_finish(dir, tag, path));
    (void)folder_clear(partial); /* the replaced checkpoint, if there was one */
    return SHERD_OK;
}

sherd_status sherdi_checkpoint_finish(const char *dir, const char *tag, sherdi_claim *claim)
{
    sherdi_claim   names = {0};
    sherdi_outcome outcome;

    SHERDI_TRY(sherdi_claim_dir(dir, &names));
    outcome = sherdi_outcome_of(partial_finish(dir, tag));
    if (outcome.status != SHERD_OK) { /* now, while nobody else can begin this tag */
        sherdi_checkpoint_abandon(dir, tag, claim);
    }
    sherdi_claim_drop(claim);
    sherdi_claim_drop(&names);
    return sherdi_outcome_end(&outcome);
}

/* ---------------------------------------------------------------------- parts -- */

static sherd_status prepared_path(const char *dir, const char *tag,
                                  char out[SHERDI_CHECKPOINT_PATH_BYTES])
{
    return path_make(dir, ".", tag, PREPARED, NULL, out);
}

sherd_status sherdi_checkpoint_prepare(const char *dir, const char *tag)
{
    char         partial[SHERDI_CHECKPOINT_PATH_BYTES];
    char         prepared[SHERDI_CHECKPOINT_PATH_BYTES];
    sherdi_claim names = {0};
    sherd_status status;

    SHERDI_TRY(sherdi_checkpoint_partial_path(dir, tag, NULL, partial));
    SHERDI_TRY(prepared_path(dir, tag, prepared));
    SHERDI_TRY(sherdi_folder_sync(partial));
    SHERDI_TRY(sherdi_claim_dir(dir, &names));
    status = rename(partial, prepared) == 0 ? sherdi_folder_sync(dir)
                                            : io_fail("give its name to the folder", prepared);
    sherdi_claim_drop(&names);
    return status;
}

void sherdi_checkpoint_withdraw(const char *dir, const char *tag)
{
    char partial[SHERDI_CHECKPOINT_PATH_BYTES];
    char prepared[SHERDI_CHECKPOINT_PATH_BYTES];

    if (sherdi_checkpoint_partial_path(dir, tag, NULL, partial) == SHERD_OK &&
        prepared_path(dir, tag, prepared) == SHERD_OK) {
        (void)rename(prepared, partial);
    }
}

/* The same for a part. A checkpoint that it replaces is removed first, since rank 0 has replaced it:
 * what is prepared is always newer than what has the name. */
static sherd_status prepared_finish(const char *dir, const char *tag)
{
    char prepared[SHERDI_CHECKPOINT_PATH_BYTES];
    char removed[SHERDI_CHECKPOINT_PATH_BYTES];
    char path[SHERDI_CHECKPOINT_PATH_BYTES];

    SHERDI_TRY(prepared_path(dir, tag, prepared));
    SHERDI_TRY(removed_path(dir, tag, removed));
    SHERDI_TRY(sherdi_checkpoint_path(dir, tag, NULL, path));
    SHERDI_TRY(folder_clear(removed));
    if (rename(path, removed) != 0 && errno != ENOENT) {
        return io_fail("replace the checkpoint", path);
    }
    if (rename(prepared, path) != 0) {
        return io_fail("give its name to the checkpoint", path);
    }
    SHERDI_TRY(name_finish(dir, tag, path));
    (void)folder_clear(removed);
    return SHERD_OK;
}

sherd_status sherdi_checkpoint_finish_part(const char *dir, const char *tag, sherdi_claim *claim)
{
    sherdi_claim names  = {0};
    sherd_status status = sherdi_claim_dir(dir, &names);

    status = status == SHERD_OK ? prepared_finish(dir, tag) : status;
    sherdi_claim_drop(claim);
    sherdi_claim_drop(&names);
    return status;
}

size_t sherdi_checkpoint_prepared(const char *dir, char (*tags)[SHERDI_CHECKPOINT_NAME_BYTES],
                                  size_t      most)
{
    DIR           *folder = opendir(dir);
    size_t         count  = 0;
    struct dirent *entry;
    char           path[SHERDI_CHECKPOINT_PATH_BYTES];
    char           who[128];

    while (folder != NULL && count < most && (entry = readdir(folder)) != NULL) {
        size_t len = strlen(entry->d_name);

        if (entry->d_name[0] == '.' && len > sizeof(PREPARED) &&
            strcmp(entry->d_name + len - (sizeof(PREPARED) - 1), PREPARED) == 0 &&
            path_make(dir, "", entry->d_name, "", NULL, path) == SHERD_OK &&
            !sherdi_claim_is_held(path, who, sizeof(who))) {
            (void)snprintf(tags[count++], SHERDI_CHECKPOINT_NAME_BYTES, "%.*s",
                           (int)(len - sizeof(PREPARED)), entry->d_name + 1);
        }
    }
    if (folder != NULL) {
        (void)closedir(folder);
    }
    return count;
}

/* Gives the checksum of a folder's manifest; 0: there is none, or it is damaged. */
static sherd_status manifest_checksum(sherdi_mem *mem, const char *folder, uint64_t *out)
{
    char            path[SHERDI_CHECKPOINT_PATH_BYTES];
    sherdi_manifest m;
    char           *text;
    size_t          len;
    sherd_status    status;

    *out = 0;
    SHERDI_TRY(path_make(folder, "", SHERDI_MANIFEST_NAME, "", NULL, path));
    if (access(path, F_OK) != 0 && (errno == ENOENT || errno == ENOTDIR)) {
        return SHERD_OK;
    }
    SHERDI_TRY(sherdi_checkpoint_get(mem, path, SHERDI_MANIFEST_MOST_BYTES, &text, &len));
    status = sherdi_manifest_parse(&m, mem, path, text, len);
    sherdi_free(text);
    if (status == SHERD_OK) {
        *out = m.checksum;
        sherdi_manifest_fini(&m);
    }
    return status == SHERD_E_INVAL ? SHERD_OK : status;
}

sherd_status sherdi_checkpoint_checksum(sherdi_mem *mem, const char *dir, const char *tag,
                                        int is_prepared, uint64_t *out)
{
    char path[SHERDI_CHECKPOINT_PATH_BYTES];

    SHERDI_TRY(is_prepared ? prepared_path(dir, tag, path)
                           : sherdi_checkpoint_path(dir, tag, NULL, path));
    return manifest_checksum(mem, path, out);
}

/* The part of settling for which the folder's lock has to be held. */
static sherd_status prepared_settle(sherdi_mem *mem, const char *dir, const char *tag,
                                    const char *prepared, uint64_t checksum, int is_removed)
{
    uint64_t own;

    if (!sherdi_checkpoint_has(prepared)) { /* another rank has settled it */
        return SHERD_OK;
    }
    SHERDI_TRY(manifest_checksum(mem, prepared, &own));
    if (checksum != 0 && own == checksum) {
        return prepared_finish(dir, tag);
    }
    return is_removed ? folder_clear(prepared) : SHERD_OK;
}

sherd_status sherdi_checkpoint_settle(sherdi_mem *mem, const char *dir, const char *tag,
                                      uint64_t checksum, int is_removed)
{
    char         prepared[SHERDI_CHECKPOINT_PATH_BYTES];
    char         who[128];
    sherdi_claim names = {0};
    sherd_status status;

    SHERDI_TRY(sherdi_tag_check(tag));
    SHERDI_TRY(prepared_path(dir, tag, prepared));
    if (!sherdi_checkpoint_has(prepared) || sherdi_claim_is_held(prepared, who, sizeof(who))) {
        return SHERD_OK;
    }
    SHERDI_TRY(sherdi_claim_dir(dir, &names));
    status = prepared_settle(mem, dir, tag, prepared, checksum, is_removed);
    sherdi_claim_drop(&names);
    return status;
}

/* The ranks of a host come here at the same time, so one does it. */
sherd_status sherdi_checkpoint_adopt(const char *dir, const char *tag, const char *manifest,
                                     size_t len_bytes)
{
    char         folder[SHERDI_CHECKPOINT_PATH_BYTES];
    char         path[SHERDI_CHECKPOINT_PATH_BYTES];
    sherdi_claim names  = {0};
    sherd_status status = SHERD_OK;

    SHERDI_TRY(sherdi_checkpoint_path(dir, tag, NULL, folder));
    SHERDI_TRY(sherdi_checkpoint_path(dir, tag, SHERDI_MANIFEST_NAME, path));
    SHERDI_TRY(sherdi_folders_make(folder, "the folder of a checkpoint"));
    SHERDI_TRY(sherdi_claim_dir(dir, &names));
    if (!sherdi_checkpoint_has(path)) {
        status = sherdi_checkpoint_put(folder, SHERDI_MANIFEST_NAME, manifest, len_bytes);
    }
    sherdi_claim_drop(&names);
    return status;
}

/* ----------------------------------------------------------------- find, remove -- */

static int found_order(const void *a, const void *b)
{
    const sherdi_checkpoint_found *one   = a;
    const sherdi_checkpoint_found *other = b;

    return one->changed_ns == other->changed_ns  ? strcmp(one->tag, other->tag)
           : one->changed_ns < other->changed_ns ? -1
                                                 : 1;
}

int sherdi_checkpoint_look(const char *dir, const char *name, sherdi_checkpoint_found *out)
{
    char         path[SHERDI_CHECKPOINT_PATH_BYTES];
    folder_holds holds;

    *out = (sherdi_checkpoint_found){.changed_ns = 0};
    if (sherdi_tag_check(name) != SHERD_OK ||
        sherdi_checkpoint_check_folder(dir, name) != SHERD_OK ||
        sherdi_checkpoint_path(dir, name, NULL, path) != SHERD_OK || !folder_look(path, &holds) ||
        !holds.is_checkpoint) {
        return 0;
    }
    *out = holds.found;
    (void)snprintf(out->tag, sizeof(out->tag), "%s", name);
    return 1;
}

sherd_status sherdi_checkpoint_list(sherdi_mem *mem, const char *dir, sherdi_checkpoint_found **out,
                                    size_t *count_out)
{
    DIR                     *folder = opendir(dir);
    sherdi_checkpoint_found *all    = NULL;
    size_t                   count  = 0;
    size_t                   cap    = 0;
    sherd_status             status = SHERD_OK;
    struct dirent           *entry;

    if (folder == NULL) {
        return io_fail("open the folder", dir);
    }
    while (status == SHERD_OK && (entry = readdir(folder)) != NULL) {
        sherdi_checkpoint_found found;

        if (sherdi_checkpoint_look(dir, entry->d_name, &found)) {
            status =
                sherdi_grow(mem, SHERDI_MEM_CONTROL, (void **)&all, &cap, count + 1, sizeof(*all));
            if (status == SHERD_OK) {
                all[count++] = found;
            }
        }
    }
    (void)closedir(folder);
    if (status != SHERD_OK) {
        sherdi_free(all);
        return status;
    }
    if (count > 0) {
        qsort(all, count, sizeof(*all), found_order);
    }
    *out       = all;
    *count_out = count;
    return SHERD_OK;
}

/* Makes DIR/latest name the newest checkpoint that stays, or removes it, before the tag is removed.
 * So DIR/latest never names a checkpoint that is gone. */
static sherd_status latest_move(const char *dir, const char *tag)
{
    char                     path[SHERDI_CHECKPOINT_PATH_BYTES];
    char                     latest[SHERDI_CHECKPOINT_NAME_BYTES];
    sherdi_mem               mem;
    sherdi_checkpoint_found *all;
    size_t                   count;
    sherd_status             status;

    if (sherdi_checkpoint_latest(dir, latest) != SHERD_OK || strcmp(latest, tag) != 0) {
        return SHERD_OK;
    }
    sherdi_mem_init(&mem);
    SHERDI_TRY(sherdi_checkpoint_list(&mem, dir, &all, &count));
    while (count > 0 && strcmp(all[count - 1].tag, tag) == 0) {
        count--;
    }
    status = count > 0 ? latest_put(dir, all[count - 1].tag) : SHERD_OK;
    sherdi_free(all);
    SHERDI_TRY(path_make(dir, "", LATEST, "", NULL, path));
    if (count == 0 && unlink(path) != 0) {
        status = io_fail("remove", path);
    }
    return status;
}

static sherd_status removed_rename(const char *dir, const char *tag, const char *removed)
{
    char path[SHERDI_CHECKPOINT_PATH_BYTES];

    SHERDI_TRY(sherdi_checkpoint_path(dir, tag, NULL, path));
    SHERDI_TRY(latest_move(dir, tag));
    SHERDI_TRY(folder_clear(removed));
    if (rename(path, removed) != 0) {
        return io_fail("remove the checkpoint", path);
    }
    return sherdi_folder_sync(dir);
}

/* Fails for a folder that is no checkpoint; one of checkpoints is named as such. */
static sherd_status removal_check(const char *dir, const char *tag)
{
    char                     path[SHERDI_CHECKPOINT_PATH_BYTES];
    sherdi_mem               mem;
    sherdi_checkpoint_found *all   = NULL;
    size_t                   count = 0;
    folder_holds             holds;
    sherd_status             status;

    SHERDI_TRY(sherdi_checkpoint_check_folder(dir, tag));
    SHERDI_TRY(sherdi_checkpoint_path(dir, tag, NULL, path));
    if (!folder_look(path, &holds)) {
        return io_fail("open the folder", path);
    }
    if (holds.is_checkpoint) {
        return holds.num_folders == 0
                   ? SHERD_OK
                   : sherdi_fail(SHERD_E_STATE,
                                 "%s is not removed: it holds a folder, which no checkpoint has; "
                                 "move that away first",
                                 path);
    }
    sherdi_mem_init(&mem);
    if (sherdi_checkpoint_list(&mem, path, &all, &count) == SHERD_OK && count > 0) {
        status = sherdi_fail(SHERD_E_STATE,
                             "%s is not removed: it is a folder of checkpoints, the last of which "
                             "is %s/%s; name the checkpoints that are to be removed",
                             path, path, all[count - 1].tag);
    } else {
        status = sherdi_fail(SHERD_E_STATE, "%s is not removed: it is no checkpoint", path);
    }
    sherdi_free(all);
    return status;
}

sherd_status sherdi_checkpoint_remove(const char *dir, const char *tag)
{
    char         removed[SHERDI_CHECKPOINT_PATH_BYTES];
    sherdi_claim names = {0};
    sherd_status status;

    SHERDI_TRY(sherdi_tag_check(tag));
    SHERDI_TRY(removal_check(dir, tag));
    SHERDI_TRY(removed_path(dir, tag, removed));
    SHERDI_TRY(sherdi_claim_dir(dir, &names));
    status = removed_rename(dir, tag, removed);
    sherdi_claim_drop(&names);
    return status == SHERD_OK ? folder_clear(removed) : status;
}
