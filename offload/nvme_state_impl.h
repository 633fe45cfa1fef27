/* What nvme_state.c and state_keep.c share: the tier's own struct. */
#ifndef SHERDI_OFFLOAD_NVME_STATE_IMPL_H
#define SHERDI_OFFLOAD_NVME_STATE_IMPL_H

#include "offload/state_sets.h"

/* Read at a time where a whole extent is not wanted in memory. */
#define SHERDI_STATE_PORTION_BYTES ((size_t)4 << 20)

typedef struct sherdi_state_tier {
    sherdi_tier         tier;
    sherdi_ioq         *queue;
    sherdi_file        *index;
    sherdi_state_sets   sets;
    sherdi_mem         *mem;
    sherdi_state_id     id;
    int                 is_verified, is_durable;
    size_t              num_extents;
    sherdi_extent      *in_file; /* [num_extents] in each set */
    sherdi_state_map    map;
    sherdi_state_front *front;     /* as in the file */
    sherdi_state_entry *tables[2]; /* [table_bytes] as in the file, where the head counts */
    unsigned char      *tails[2];  /* [tail_bytes] of the notes, as well */
    sherdi_state_entry *now;       /* [num_extents] */
    unsigned char *is_ours; /* [num_extents] bit s: this process wrote the slot in set s whole */
    int            live;    /* the live record; with generation 0 an empty table */
    uint64_t       generation;
    int            has_previous;    /* the other record counts and its slots were not touched */
    int            is_write_failed; /* since the commit */
    int            is_broken; /* a commit or a rollback failed: which record counts is not known */
    int            is_torn;   /* ... a commit: the record that is not live may have been written */
    int            is_unlinked_told;
    size_t         in_flight; /* transfers, for asserts */
} sherdi_state_tier;

/** Bytes [from, from + len) of an extent's slot in a set; length 0 asks for nothing. */
void sherdi_state_slot_start(sherdi_state_tier *self, sherdi_io *io, int is_write, void *memory,
                             size_t extent, uint32_t set, size_t from_bytes, size_t len_bytes);
/** Sets that extents of a record lie in, a bit each. */
uint32_t sherdi_state_sets_of(const sherdi_state_tier *self, int index);
/** Makes `now`, the live generation in other slots, what the live record says: under the same number and with the same
 *  note, because ranks compare numbers. There is no generation before it then. E_IO as a commit's. */
sherd_status sherdi_state_move_live(sherdi_state_tier *self);
/** Says what failed, and returns the status. */
sherd_status sherdi_state_contents_fail(const sherdi_state_tier *self, size_t extent,
                                        uint32_t slot);
sherd_status sherdi_state_broken_fail(const sherdi_state_tier *self, sherd_status code);

#endif
