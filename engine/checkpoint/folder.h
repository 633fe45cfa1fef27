/* The folders of checkpoints: DIR/TAG, complete or not there.
 *
 * A save writes into DIR/.TAG.partial until everything is complete and on the medium. Then one
 * rename makes the folder DIR/TAG, and a second one makes DIR/latest name it. A removal first
 * renames the folder to DIR/.TAG.removed. So a process that dies at any moment leaves complete
 * checkpoints and folders that begin with a dot. The next save clears these away. Several engines
 * may save different tags at the same time: claim.h says which folders are being written.
 *
 * If hosts do not share DIR, each has a part of the checkpoint in its own DIR/TAG. The rename at rank
 * 0 is what makes the checkpoint complete. Until then the parts of the other hosts are
 * DIR/.TAG.prepared: only the folders of other hosts say whether such a part belongs to a
 * checkpoint.
 *
 * save.c, load.c, reader.c and the tools use this; symbolic links in these folders are not
 * followed. */
#ifndef SHERDI_ENGINE_CHECKPOINT_FOLDER_H
#define SHERDI_ENGINE_CHECKPOINT_FOLDER_H

#include "engine/checkpoint/claim.h"
#include "engine/checkpoint/manifest.h"

#define SHERDI_CHECKPOINT_PATH_BYTES 4096
#define SHERDI_MANIFEST_NAME         "manifest.json"
/* A limit for the length of manifests, which grows with the parameters of the model. */
#define SHERDI_MANIFEST_MOST_BYTES ((size_t)1 << 30)

/** Write the paths DIR/TAG and DIR/.TAG.partial, with /NAME appended if `name` is not NULL.
 *  E_INVAL: the path is too long. */
sherd_status sherdi_checkpoint_path(const char *dir, const char *tag, const char *name,
                                    char out[SHERDI_CHECKPOINT_PATH_BYTES]);
sherd_status sherdi_checkpoint_partial_path(const char *dir, const char *tag, const char *name,
                                            char out[SHERDI_CHECKPOINT_PATH_BYTES]);

/** Returns E_IO if DIR/TAG does not exist or is not a folder. A symbolic link is not one, since it
 *  may lead anywhere. */
sherd_status sherdi_checkpoint_check_folder(const char *dir, const char *tag);

/** Makes DIR if it is missing, removes the remains of interrupted saves and removals, of this tag
 *  and of others, and makes an empty partial folder, which is claimed from now on. E_STATE (another
 *  engine is saving this tag), E_IO (also: something else than a checkpoint is in its place). */
sherd_status sherdi_checkpoint_begin(const char *dir, const char *tag, sherdi_claim *out);
/** Returns E_IO if the file system of DIR has less than `need_bytes` free; the message says how
 *  many bytes are missing. */
sherd_status sherdi_checkpoint_check_space(const char *dir, uint64_t need_bytes);
/** Writes and syncs a small file of a folder, such as the manifest or DIR/latest. A rename puts it
 *  in place, so the file is either new and whole, or as it was before. The folder itself is not
 *  synced. E_IO. */
sherd_status sherdi_checkpoint_put(const char *folder, const char *name, const void *data,
                                   size_t len_bytes);
/** Makes an empty file that other hosts can see. Nothing is synced. E_IO. */
sherd_status sherdi_checkpoint_mark(const char *path);
/** Says whether a mark that another rank has made in its partial folder is in the folder of that
 *  path here. Makes DIR if it is missing. E_IO. */
sherd_status sherdi_checkpoint_sees(const char *dir, const char *tag, const char *name,
                                    int *is_seen_out);
/** Reads a small file into memory of the account, with a zero byte after it; the caller frees it.
 *  E_IO: the file does not exist, or is longer than `most_bytes`. E_NOMEM. */
sherd_status sherdi_checkpoint_get(sherdi_mem *mem, const char *path, size_t most_bytes,
                                   char **data_out, size_t *len_bytes_out);
/** Makes the partial folder, all of whose files are synced, DIR/TAG and the newest checkpoint. It
 *  replaces a checkpoint of the same name. The claim ends, also after a failure, which removes the
 *  partial folder. E_IO. */
sherd_status sherdi_checkpoint_finish(const char *dir, const char *tag, sherdi_claim *claim);

/** The same in two steps, for a part of a checkpoint: syncs and renames the partial folder, which
 *  sherdi_checkpoint_withdraw undoes; then makes it DIR/TAG. If that fails, the part stays prepared.
 *  E_IO. */
sherd_status sherdi_checkpoint_prepare(const char *dir, const char *tag);
void         sherdi_checkpoint_withdraw(const char *dir, const char *tag);
sherd_status sherdi_checkpoint_finish_part(const char *dir, const char *tag, sherdi_claim *claim);
/** Lists the tags of prepared parts that no save is working on, at most `most`; returns how many. */
size_t sherdi_checkpoint_prepared(const char *dir, char (*tags)[SHERDI_CHECKPOINT_NAME_BYTES],
                                  size_t      most);
/** Makes a prepared part DIR/TAG if it belongs to the checkpoint whose manifest has this checksum. If
 *  it does not, it is removed or, unless `is_removed`, left alone. Does nothing if there is none, or
 *  a save is working on it. E_IO. */
sherd_status sherdi_checkpoint_settle(sherdi_mem *mem, const char *dir, const char *tag,
                                      uint64_t checksum, int is_removed);
/** Gives the checksum of the manifest of DIR/TAG or, if is_prepared, of a prepared part; 0: there is
 *  none, or it is damaged. E_IO, E_NOMEM. */
sherd_status sherdi_checkpoint_checksum(sherdi_mem *mem, const char *dir, const char *tag,
                                        int is_prepared, uint64_t *out);
/** Makes DIR/TAG, if it does not exist, with this manifest and no other file. E_IO. */
sherd_status sherdi_checkpoint_adopt(const char *dir, const char *tag, const char *manifest,
                                     size_t len_bytes);
/** Removes the files of a failed save, and ends its claim; does nothing without one. */
void sherdi_checkpoint_abandon(const char *dir, const char *tag, sherdi_claim *claim);

/** Return whether a file exists; remove a file. */
int  sherdi_checkpoint_has(const char *path);
void sherdi_checkpoint_unlink(const char *path);
/** Gives a file of `bytes` bytes a second name. Returns 0 if the file is gone or has another
 *  length, or if the file system has no links. */
int sherdi_checkpoint_link(const char *from, const char *to, uint64_t bytes);

/** Reads the newest tag from DIR/latest. E_IO (there is none), E_INVAL (the file is damaged). */
sherd_status sherdi_checkpoint_latest(const char *dir, char tag_out[SHERDI_CHECKPOINT_NAME_BYTES]);
/** Removes DIR/TAG. If it was the newest, DIR/latest then names the one before, or is removed too.
 *  E_STATE: it is no checkpoint, or holds a folder, and nothing is touched. E_IO. */
sherd_status sherdi_checkpoint_remove(const char *dir, const char *tag);

/* A checkpoint in a folder. */
typedef struct sherdi_checkpoint_found {
    char     tag[SHERDI_CHECKPOINT_NAME_BYTES];
    int64_t  changed_ns;   /* when its manifest was changed, since 1970 */
    uint64_t held_bytes;   /* of all its files */
    uint64_t shared_bytes; /* of those files that have another name too, in another checkpoint */
} sherdi_checkpoint_found;
/** Describes DIR/TAG and returns 1; 0: it is no checkpoint. */
int sherdi_checkpoint_look(const char *dir, const char *tag, sherdi_checkpoint_found *out);
/** Lists all checkpoints of DIR, damaged ones included, oldest first, in memory of the account,
 *  which the caller frees. E_IO, E_NOMEM. */
sherd_status sherdi_checkpoint_list(sherdi_mem *mem, const char *dir, sherdi_checkpoint_found **out,
                                    size_t *count_out);

#endif
