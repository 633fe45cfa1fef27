/* The sets of one rank's state on a drive: which files exist, and which of them may be written.
 * state.c and state_keep.c use it.
 *
 * Two sets are written in turn: an extent whose live copy is in one set is written to the other. A
 * set that a checkpoint keeps also has links to its stripes in the checkpoint's folder. It is read
 * like the others and never written again. It keeps its own name here as long as a generation lies
 * in it; then that name is removed, and only the checkpoint has the set. The number of links is the
 * only record that a set is linked, so the files are consistent if a process is killed between any
 * two of these steps. */
#ifndef SHERDI_OFFLOAD_STATE_SETS_H
#define SHERDI_OFFLOAD_STATE_SETS_H

#include "offload/state_file.h"

typedef enum sherdi_set_role {
    SHERDI_SET_NONE = 0, /* the file does not exist */
    SHERDI_SET_WRITABLE,
    SHERDI_SET_KEPT,     /* is only read */
    SHERDI_SET_RESERVED, /* will be written in place of the next set that is linked; empty */
} sherdi_set_role;

typedef struct sherdi_state_set {
    sherdi_file    *file;
    sherdi_set_role role;
    int             is_dirty; /* written since the last sync */
} sherdi_state_set;

typedef struct sherdi_state_sets {
    sherdi_ioq      *queue;
    sherdi_mem      *mem;
    sherdi_state_id  id;
    char           **folders; /* [num_folders] absolute paths */
    int              num_folders;
    size_t           set_bytes;
    sherdi_state_set sets[SHERDI_STATE_SETS];
    /* For an extent that lies in set s: the writable set to which it is written; SHERDI_STATE_SETS:
     * there is none. */
    uint32_t spare[SHERDI_STATE_SETS];
} sherdi_state_sets;

/** Initialises zeroed memory; opens nothing. `fini` undoes it, also if it failed midway. */
sherd_status sherdi_state_sets_init(sherdi_state_sets *sets, sherdi_ioq *queue,
                                    const sherdi_state_params *params, sherdi_mem *mem);
/** Closes all sets. `is_kept` 0: also removes them; a RESERVED set is removed in any case. */
void sherdi_state_sets_fini(sherdi_state_sets *sets, int is_kept);

/** Creates a file with reserved space under a free number. `role` is WRITABLE or RESERVED. Errors:
 *  E_IO; E_STATE when there are SHERDI_STATE_SETS already. */
sherd_status sherdi_state_set_create(sherdi_state_sets *sets, sherdi_set_role role, int *set_out);
/** Opens a set of an earlier process: KEPT when its files have other links too, else WRITABLE.
 *  Errors: E_IO; E_STATE when it is locked. A KEPT set is not locked, because several runs may have
 *  it. */
sherd_status sherdi_state_set_open(sherdi_state_sets *sets, int set);
/** Closes a set and removes its name, if it has one. */
void sherdi_state_set_drop(sherdi_state_sets *sets, int set);
/** Creates the missing ones of the two sets that are written. */
sherd_status sherdi_state_sets_make_two(sherdi_state_sets *sets);
int          sherdi_state_sets_count(const sherdi_state_sets *sets, sherdi_set_role role);
/** Changes the role of a set, and with it the entries of `spare`. */
void sherdi_state_set_assign(sherdi_state_sets *sets, int set, sherdi_set_role role);
/** Syncs the sets that were written since the last sync. */
sherd_status sherdi_state_sets_sync(sherdi_state_sets *sets);
/** Returns the set with this file, which must be one of them. */
int sherdi_state_sets_find(const sherdi_state_sets *sets, const sherdi_file *file);
/** Returns 0 when somebody unlinked a file of a set. */
int sherdi_state_sets_are_linked(const sherdi_state_sets *sets);

#endif
