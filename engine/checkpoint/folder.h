/* The folders of checkpoints: DIR/TAG, complete or not there. What is written lies in DIR/.TAG.partial until it is whole
 * and on the medium; then one rename makes it DIR/TAG, and another one DIR/latest say so. What is removed is renamed to
 * DIR/.TAG.removed first. So a process that dies at any moment leaves complete checkpoints and, beside them, folders
 * that begin with a dot, which the next save clears away. */
#ifndef SHERDI_ENGINE_CHECKPOINT_FOLDER_H
#define SHERDI_ENGINE_CHECKPOINT_FOLDER_H

#include "engine/checkpoint/manifest.h"

#define SHERDI_CHECKPOINT_PATH_BYTES 4096
#define SHERDI_MANIFEST_NAME         "manifest.json"

/** DIR/TAG, DIR/.TAG.partial, with NAME behind it where it is not NULL. E_INVAL: it is too long. */
sherd_status sherdi_checkpoint_path(const char *dir, const char *tag, const char *name,
                                    char out[SHERDI_CHECKPOINT_PATH_BYTES]);
sherd_status sherdi_checkpoint_partial_path(const char *dir, const char *tag, const char *name,
                                            char out[SHERDI_CHECKPOINT_PATH_BYTES]);

/** E_IO where DIR/TAG is not there, or no folder: a symbolic link may lead anywhere. */
sherd_status sherdi_checkpoint_check_folder(const char *dir, const char *tag);

/** Makes DIR where it is missing, clears away what saves and removals that were ended left of this tag and of others,
 *  and makes an empty partial folder. E_IO. */
sherd_status sherdi_checkpoint_begin(const char *dir, const char *tag);
/** E_IO with the bytes that are missing where the file system of DIR has less than `need_bytes` free. */
sherd_status sherdi_checkpoint_check_space(const char *dir, uint64_t need_bytes);
/** A small file of that folder, written, synced: the manifest, or DIR/latest. By rename, so it is whole or as before; the folder
 *  is not synced. E_IO. */
sherd_status sherdi_checkpoint_put(const char *folder, const char *name, const void *data,
                                   size_t len_bytes);
/** An empty file that others can see, and that nothing has to outlive. E_IO. */
sherd_status sherdi_checkpoint_mark(const char *path);
/** Its bytes, one zero behind them, in memory of the account. E_IO: it is not there, or longer than `most_bytes`. */
sherd_status sherdi_checkpoint_get(sherdi_mem *mem, const char *path, size_t most_bytes,
                                   char **data_out, size_t *len_bytes_out);
/** The partial folder, all of whose files are synced, becomes DIR/TAG, in place of one of that name, and the newest. E_IO. */
sherd_status sherdi_checkpoint_finish(const char *dir, const char *tag);
/** What a save that failed has written. */
void sherdi_checkpoint_abandon(const char *dir, const char *tag);

/** Whether there is such a file; removes one. */
int  sherdi_checkpoint_has(const char *path);
void sherdi_checkpoint_unlink(const char *path);
/** A second name for a file of `bytes` bytes; 0: it is gone, another, or the file system has no links. */
int sherdi_checkpoint_link(const char *from, const char *to, uint64_t bytes);

/** The newest tag, from DIR/latest. E_IO (there is none), E_INVAL (damaged). */
sherd_status sherdi_checkpoint_latest(const char *dir, char tag_out[SHERDI_CHECKPOINT_NAME_BYTES]);
/** Removes DIR/TAG. Where it was the newest, DIR/latest names the one before, or goes. E_IO. */
sherd_status sherdi_checkpoint_remove(const char *dir, const char *tag);

/* One that is there. */
typedef struct sherdi_checkpoint_found {
    char     tag[SHERDI_CHECKPOINT_NAME_BYTES];
    int64_t  changed_ns;   /* of its manifest, since 1970 */
    uint64_t held_bytes;   /* of its files */
    uint64_t shared_bytes; /* of those that have another name too: another checkpoint's */
} sherdi_checkpoint_found;
/** The folder DIR/TAG; 0: it is no checkpoint. */
int sherdi_checkpoint_look(const char *dir, const char *tag, sherdi_checkpoint_found *out);
/** All folders of DIR that have a manifest, oldest first, in memory of the account. E_IO. */
sherd_status sherdi_checkpoint_list(sherdi_mem *mem, const char *dir, sherdi_checkpoint_found **out,
                                    size_t *count_out);

#endif
