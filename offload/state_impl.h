/* The struct of a state, for state.c, which has its generations, and state_keep.c, which keeps them
 * for checkpoints. */
#ifndef SHERDI_OFFLOAD_STATE_IMPL_H
#define SHERDI_OFFLOAD_STATE_IMPL_H

#include "offload/state_sets.h"

/* Bytes that are read at a time where a whole extent is not wanted in memory. */
#define SHERDI_STATE_PORTION_BYTES ((size_t)4 << 20)

struct sherdi_state {
    sherdi_tier         extents; /* comes first: its calls find the state by it */
    sherdi_ioq         *queue;
    sherdi_file        *index;
    sherdi_state_sets   sets;
    sherdi_mem         *mem;
    sherdi_state_id     id;
    int                 is_verified, is_durable;
    size_t              num_extents;
    sherdi_extent      *in_file; /* [num_extents] positions in each set */
    sherdi_state_map    map;
    sherdi_state_front *front;     /* as in the file */
    sherdi_state_entry *tables[2]; /* [table_bytes] as in the file; valid where the head counts */
    unsigned char      *tails[2];  /* [tail_bytes] of the notes, likewise */
    sherdi_state_entry *now;       /* [num_extents] the current table; see state.c */
    /* [num_extents] bit s: this process wrote the copy in set s completely */
    unsigned char *is_ours;
    int            live; /* index of the live record; at generation 0 its table is empty */
    uint64_t       generation;
    int            is_aimed;        /* at the generation before the live one */
    int            has_previous;    /* the other record counts, and its extents are unchanged */
    int            is_write_failed; /* since the last commit */
    int            is_broken; /* a commit or a rollback failed: which record counts is unknown */
    int            is_torn;   /* ... a commit: the record that is not live may have been written */
    /* ... a rollback: the live record may have been erased; another rollback goes on */
    int    is_erasing;
    int    is_unlinked_told;
    size_t in_flight; /* number of transfers, for asserts */
};

/** Starts a transfer of bytes [from, from + len) of an extent in a set. Length 0 transfers
 *  nothing. */
void sherdi_state_slot_start(sherdi_state *state, sherdi_io *io, int is_write, void *memory,
                             size_t extent, uint32_t set, size_t from_bytes, size_t len_bytes);
/** Returns the sets in which extents of a record lie, one bit for each. */
uint32_t sherdi_state_sets_of(const sherdi_state *state, int index);
/** Makes `now` the live record's table: the live generation, in other sets. It keeps its number,
 *  because ranks compare numbers, and its note. Afterwards there is no generation before it.
 *  Errors: E_IO, with the consequences of a failed commit. */
sherd_status sherdi_state_move_live(sherdi_state *state);
/** Set the error message and return the status. */
sherd_status sherdi_state_contents_fail(const sherdi_state *state, size_t extent, uint32_t slot);
sherd_status sherdi_state_broken_fail(const sherdi_state *state, sherd_status code);

#endif
