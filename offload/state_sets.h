/* The sets of slots of one rank's state on a drive, as files: which there are, and which may be written.
 *
 * Two sets are written in turn: an extent whose live copy lies in one goes to the other. A set that a checkpoint keeps
 * has its stripes in the checkpoint's folder too, by links: it is read like the others and never written again. As long
 * as a generation lies in it, it stays here by its own name; then that goes and the checkpoint alone has it. That a set
 * is kept is nowhere written down but in the number of its links, so a process that is killed between any two
 * of these acts leaves nothing that says something else. */
#ifndef SHERDI_OFFLOAD_STATE_SETS_H
#define SHERDI_OFFLOAD_STATE_SETS_H

#include "offload/state_file.h"

typedef enum sherdi_set_role {
    SHERDI_SET_NONE = 0, /* there is no such file */
    SHERDI_SET_WRITABLE,
    SHERDI_SET_KEPT,     /* read alone */
    SHERDI_SET_RESERVED, /* for the next that is kept; holds nothing */
} sherdi_set_role;

typedef struct sherdi_state_set {
    sherdi_file    *file;
    sherdi_set_role role;
    int             is_dirty; /* written since it was synced */
} sherdi_state_set;

typedef struct sherdi_state_sets {
    sherdi_ioq      *queue;
    sherdi_mem      *mem;
    sherdi_state_id  id;
    char           **folders; /* [num_folders] absolute */
    int              num_folders;
    size_t           set_bytes;
    sherdi_state_set sets[SHERDI_STATE_SETS];
    /* Where an extent is written that lies in set s. A set that is not there is nobody's. */
    uint32_t spare[SHERDI_STATE_SETS];
} sherdi_state_sets;

/** Over zeroed memory; opens nothing. `fini` undoes it, after half of it too. */
sherd_status sherdi_state_sets_init(sherdi_state_sets *sets, sherdi_ioq *queue,
                                    const sherdi_tier_state_params *params, sherdi_mem *mem);
/** Closes all of them. `is_kept` 0: removes them. */
void sherdi_state_sets_fini(sherdi_state_sets *sets, int is_kept);

/** A new file, its space reserved, whose number nobody has. `role` WRITABLE or RESERVED. E_IO, E_STATE when there are as
 *  many as there may be. */
sherd_status sherdi_state_set_create(sherdi_state_sets *sets, sherdi_set_role role, int *set_out);
/** A set that a checkpoint keeps, by links to its stripes: KEPT. E_NOTSUP where there can be no links, E_IO. */
sherd_status sherdi_state_set_adopt(sherdi_state_sets *sets, const sherdi_file *kept, int *set_out);
/** As it was left: KEPT when somebody else has links to it, WRITABLE otherwise. E_IO, E_STATE (locked; of a KEPT one
 *  nobody asks that, it may be several runs'). */
sherd_status sherdi_state_set_open(sherdi_state_sets *sets, int set);
/** Closes it and takes its name away, if there is one. */
void sherdi_state_set_drop(sherdi_state_sets *sets, int set);
/** Creates what is missing of the two that are written. */
sherd_status sherdi_state_sets_make_two(sherdi_state_sets *sets);
int          sherdi_state_sets_count(const sherdi_state_sets *sets, sherdi_set_role role);
/** Changes what it is for, and with it who is written in its place. */
void sherdi_state_set_assign(sherdi_state_sets *sets, int set, sherdi_set_role role);
/** What was written since the last time is on the medium. */
sherd_status sherdi_state_sets_sync(sherdi_state_sets *sets);
/** The one that has this file. */
int sherdi_state_sets_find(const sherdi_state_sets *sets, const sherdi_file *file);
/** 0 when somebody unlinked one of them. */
int sherdi_state_sets_are_linked(const sherdi_state_sets *sets);

#endif
