/* The format of state files, without input and output: these functions lay out and check pages.
 * state.c, state_keep.c, state_sets.c and find.c use them.
 *
 * The index, in the first folder:
 *
 *   page 0          header: the run and the rank, written once
 *   page 1, 2 heads of the two index records, written alternately: generation, the beginning
 *                   of the note, checksums of the record's table and of the rest of its note
 *   tables 0, 1 per extent: the set with the live copy, its checksum, whether it was ever written
 *   notes 0, 1 the rest of the note, after the part in the head
 *
 * The sets are in the same folder: files with a copy of each extent, one after the other from byte
 * 0 on, and nothing else. With several folders they are striped. Two sets are enough. A set that is
 * linked into a checkpoint is never written again, and a third set takes its place (state_sets.h).
 *
 * A record counts when its head is intact and table and note have the head's checksums. Of two
 * records that count, the one with the larger generation is live. A head is written after its
 * table, so a listing needs only the heads. (After a power cut the drive may have a head without
 * its table; this head counts only for a listing.) A head of zeros is no record. Numbers are in the
 * machine's byte order (little-endian on all machines that sherd runs on); the magic number shows
 * another order. */
#ifndef SHERDI_OFFLOAD_STATE_FILE_H
#define SHERDI_OFFLOAD_STATE_FILE_H

#include "offload/state.h"
#include "offload/tier_impl.h"

#define SHERDI_STATE_PAGE_BYTES   4096
#define SHERDI_STATE_FOLDER_BYTES 3072
#define SHERDI_STATE_NAME_BYTES   64

typedef struct sherdi_state_header {
    uint64_t magic;
    uint32_t version;
    uint32_t num_folders;
    uint64_t run;
    int32_t  rank, world_size;
    uint64_t layout;
    uint64_t lengths; /* hash of the extents' lengths */
    uint64_t num_extents;
    uint64_t stripe_bytes;
    uint64_t index_bytes; /* of the index file */
    /* absolute paths, each with a zero byte after it */
    char     folders[SHERDI_STATE_FOLDER_BYTES];
    uint64_t set_bytes;  /* bytes of a set, all stripes together */
    uint64_t note_bytes; /* most bytes of a note */
    char     unused[SHERDI_STATE_PAGE_BYTES - SHERDI_STATE_FOLDER_BYTES - 96];
    uint64_t checksum; /* of everything before it */
} sherdi_state_header;

typedef struct sherdi_state_head {
    uint64_t      magic;
    uint64_t      run;
    int32_t       rank, world_size;
    uint64_t      generation; /* from 1 on */
    uint64_t      table_checksum;
    unsigned char note[SHERDI_STATE_NOTE_FRONT];
    uint64_t      note_bytes;    /* length of the whole note */
    uint64_t      note_checksum; /* of the pages of the note after the tables */
    char          unused[SHERDI_STATE_PAGE_BYTES - SHERDI_STATE_NOTE_FRONT - 64];
    uint64_t      checksum; /* of everything before it */
} sherdi_state_head;

typedef struct sherdi_state_entry {
    uint64_t checksum; /* of the live copy */
    uint32_t slot;     /* the set with the live copy */
    uint32_t is_written;
} sherdi_state_entry;

/* The first three pages, as in the file. */
typedef struct sherdi_state_front {
    sherdi_state_header header;
    sherdi_state_head   heads[2];
} sherdi_state_front;

_Static_assert(sizeof(sherdi_state_header) == SHERDI_STATE_PAGE_BYTES, "the header is a page");
_Static_assert(sizeof(sherdi_state_head) == SHERDI_STATE_PAGE_BYTES, "a head is a page");
_Static_assert(sizeof(sherdi_state_front) == 3 * SHERDI_STATE_PAGE_BYTES, "pages without gaps");
_Static_assert(sizeof(sherdi_state_entry) == 16, "an entry has no gaps");
_Static_assert(SHERDI_STRIPE_BYTES >= sizeof(sherdi_state_front), "the front is in one file");

/* Where things are in the index. */
typedef struct sherdi_state_map {
    size_t table_bytes; /* of one table: whole pages, at least one */
    size_t tables_at[2];
    size_t note_bytes; /* most bytes of a note */
    size_t tail_bytes; /* of a note, after the part in the head; whole pages */
    size_t notes_at[2];
    size_t index_bytes;
    size_t set_bytes;
} sherdi_state_map;

/** Fills in the extents' positions in a set, in_file [num_extents], and the map. Errors: E_INVAL
 *  when the extents are not as tier.h requires or are too many, or the note is too long. */
sherd_status sherdi_state_map_extents(const sherdi_extent *extents, size_t num_extents,
                                      size_t note_bytes, sherdi_extent *in_file,
                                      sherdi_state_map *out);
/** Returns the bytes of a table; SIZE_MAX when a file cannot hold it. */
size_t sherdi_state_table_bytes(size_t num_extents);
/** Returns the bytes of the pages that a note of this length takes after the tables. */
size_t sherdi_state_tail_bytes(size_t note_bytes);

/* Most sets that a run may have at a time: two that are written, and others in which one of the two
 * generations still lies. */
#define SHERDI_STATE_SETS 8

/** Writes "sherd-<run>-<rank>of<world_size>.state" into name [SHERDI_STATE_NAME_BYTES]. */
void sherdi_state_name(const sherdi_state_id *id, char *name);
/** Writes the name of a set: "sherd-<run>-<rank>of<world_size>.slots-a", where the letter is the
 *  set's number. */
void sherdi_state_set_name(const sherdi_state_id *id, int set, char *name);
/** Reads an index's name back; layout becomes 0. Returns 0 when it is not the name of a state
 *  file. */
int sherdi_state_name_parse(const char *name, sherdi_state_id *out);

/** Makes the header page for these params. Errors: E_INVAL when the folders' names are too long for
 *  it, E_IO when a folder does not exist. */
sherd_status sherdi_state_header_fill(const sherdi_state_params *params,
                                      const sherdi_state_map *map, sherdi_state_header *out);
/** Returns whether it is a header, unchanged since it was written. */
int sherdi_state_header_is_whole(const sherdi_state_header *header);
/** Returns E_STATE, with what differs, when the header is not the one that these params would have.
 *  `path` is for the message. */
sherd_status    sherdi_state_header_compare(const sherdi_state_header *header,
                                            const sherdi_state_params *params,
                                            const sherdi_state_map *map, const char *path);
sherdi_state_id sherdi_state_header_id(const sherdi_state_header *header);
/** Returns the folder of a stripe, from an intact header; NULL when the header does not have this
 *  stripe. */
const char *sherdi_state_header_folder(const sherdi_state_header *header, uint32_t stripe);

/** Makes a head page with its checksums. Copies the part of note [note_bytes] that goes after the
 *  tables to tail [sherdi_state_tail_bytes], with zeros after it. */
void sherdi_state_head_fill(const sherdi_state_id *id, uint64_t generation, const void *note,
                            size_t note_bytes, unsigned char *tail, const sherdi_state_entry *table,
                            size_t table_bytes, sherdi_state_head *out);
/** Changes a head to the checksum of another table. */
void sherdi_state_head_retable(sherdi_state_head *head, const sherdi_state_entry *table,
                               size_t table_bytes);
/** Copies as much of the note as fits to out [out_bytes], with zeros after it. */
void sherdi_state_note_take(const sherdi_state_head *head, const unsigned char *tail, void *out,
                            size_t out_bytes);
/** Returns whether the rest of the note has the head's checksum. The pages of the note after the
 *  tables must have been read. */
int sherdi_state_tail_is_whole(const sherdi_state_head *head, const unsigned char *tail);
/** Returns whether it is a head of this file, unchanged since it was written. Does not look at its
 *  table. */
int sherdi_state_head_is_whole(const sherdi_state_head *head, const sherdi_state_id *id);
/** Returns whether nothing was written there, or a rollback erased it. */
int sherdi_state_head_is_empty(const sherdi_state_head *head);
/** Returns whether the table, of `table_bytes`, has the head's checksum and valid entries. */
int sherdi_state_table_is_whole(const sherdi_state_head *head, const sherdi_state_entry *table,
                                size_t num_extents, size_t table_bytes);

/* The contents of the heads, without their tables. */
typedef struct sherdi_state_heads {
    int      live;                 /* index of the live head; -1: none */
    uint64_t generation, previous; /* 0: none */
    int      is_damaged;           /* a head is neither intact nor empty */
} sherdi_state_heads;

/** Reads both heads. A head with is_usable [2] 0 does not count, even if it is intact. */
sherdi_state_heads sherdi_state_heads_read(const sherdi_state_head *heads, const int *is_usable,
                                           const sherdi_state_id *id);

#endif
