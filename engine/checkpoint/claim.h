/* Who works on a folder of checkpoints now, among all processes that see it. Two locks (flock),
 * which end with their process:
 *
 * DIR itself              held for moments, by a process that makes, renames or removes entries of
 *                         DIR
 * DIR/.TAG.partial/lock   held by the save that writes this folder, from its beginning to its end:
 *                         a folder without it remains from an interrupted save
 *
 * If the file system has no locks, everything counts as free. NFS has no locks of folders, only
 * those of files. */
#ifndef SHERDI_ENGINE_CHECKPOINT_CLAIM_H
#define SHERDI_ENGINE_CHECKPOINT_CLAIM_H

#include "base/status.h"

/* A lock that is held. All zero: none is. */
typedef struct sherdi_claim {
    int is_held;
    int fd; /* if it is held */
} sherdi_claim;

/** Waits until nobody else changes the entries of DIR. E_IO: the folder does not exist, or it took
 *  longer than 20 s. */
sherd_status sherdi_claim_dir(const char *dir, sherdi_claim *out);
/** Claims a partial folder, of which no other claim is held. E_IO. */
sherd_status sherdi_claim_partial(const char *folder, sherdi_claim *out);
/** Returns whether a partial folder is claimed, by this process or another, and by whom: "process
 *  12 on host a". */
int sherdi_claim_is_held(const char *folder, char *who_out, size_t len_bytes);
/** Removes the lock's file from a folder that was claimed here, and has another name now. The lock
 *  itself is held on. */
void sherdi_claim_unlink(const char *folder);
/** Gives the lock back; accepts one that is not held. */
void sherdi_claim_drop(sherdi_claim *claim);

#endif
