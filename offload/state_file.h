/* The format of state files, without input and output: pages are laid out and checked here.
 *
 * The index, in the first folder:
 *
 *   page 0         header: whose it is, written once
 *   page 1, 2      heads of the two index records, written in turn: generation, the note's beginning, checksums of
 *                  its table and of the rest of its note
 *   tables 0, 1    per extent: the set whose slot is live, its checksum, whether it was ever written
 *   notes 0, 1     what does not lie in the head
 *
 * Beside it the sets: files with a slot for each extent, one behind the other from byte 0 on, and nothing else; with
 * several folders they are striped. Two are enough; one that a checkpoint keeps is written never again, and a third
 * comes in its place (state_sets.h).
 *
 * A record counts when its head is whole and table and note have the head's checksums; of two that count the larger
 * generation is live. Because a head is written after its table, the head alone tells a listing what the file holds (a
 * power cut may leave one of which the drive had no table yet: then it counts for a listing alone). A head of zeros is
 * no record. Numbers are those of the machine (little-endian on all that sherd runs on); the magic number says when they
 * are not. */
#ifndef SHERDI_OFFLOAD_STATE_FILE_H
#define SHERDI_OFFLOAD_STATE_FILE_H

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
    uint64_t index_bytes;                        /* of this file */
    char     folders[SHERDI_STATE_FOLDER_BYTES]; /* absolute, a zero byte behind each */
    uint64_t set_bytes;                          /* of a set, all its stripes */
    uint64_t note_bytes;                         /* of a note at most */
    char     unused[SHERDI_STATE_PAGE_BYTES - SHERDI_STATE_FOLDER_BYTES - 96];
    uint64_t checksum; /* of all before */
} sherdi_state_header;

typedef struct sherdi_state_head {
    uint64_t      magic;
    uint64_t      run;
    int32_t       rank, world_size;
    uint64_t      generation; /* from 1 on */
    uint64_t      table_checksum;
    unsigned char note[SHERDI_STATE_NOTE_FRONT];
    uint64_t      note_bytes;    /* of all of it */
    uint64_t      note_checksum; /* of the pages behind the tables that it takes */
    char          unused[SHERDI_STATE_PAGE_BYTES - SHERDI_STATE_NOTE_FRONT - 64];
    uint64_t      checksum; /* of all before */
} sherdi_state_head;

typedef struct sherdi_state_entry {
    uint64_t checksum; /* of the live slot's contents */
    uint32_t slot;     /* in this set */
    uint32_t is_written;
} sherdi_state_entry;

/* The first three pages, as they lie. */
typedef struct sherdi_state_front {
    sherdi_state_header header;
    sherdi_state_head   heads[2];
} sherdi_state_front;

_Static_assert(sizeof(sherdi_state_header) == SHERDI_STATE_PAGE_BYTES, "the header is a page");
_Static_assert(sizeof(sherdi_state_head) == SHERDI_STATE_PAGE_BYTES, "a head is a page");
_Static_assert(sizeof(sherdi_state_front) == 3 * SHERDI_STATE_PAGE_BYTES, "pages without gaps");
_Static_assert(sizeof(sherdi_state_entry) == 16, "an entry has no gaps");
_Static_assert(SHERDI_STRIPE_BYTES >= sizeof(sherdi_state_front), "the front is in one file");

/* Where things are. */
typedef struct sherdi_state_map {
    size_t table_bytes; /* of one, whole pages, at least one */
    size_t tables_at[2];
    size_t note_bytes; /* at most */
    size_t tail_bytes; /* of those, what does not lie in the head, whole pages */
    size_t notes_at[2];
    size_t index_bytes;
    size_t set_bytes;
} sherdi_state_map;

/** Fills in_file [num_extents], in a set, and the map. E_INVAL when the extents are not as tier.h says or are too many,
 *  or the note is too long. */
sherd_status sherdi_state_map_extents(const sherdi_extent *extents, size_t num_extents,
                                      size_t note_bytes, sherdi_extent *in_file,
                                      sherdi_state_map *out);
/** SIZE_MAX when a file cannot hold it. */
size_t sherdi_state_table_bytes(size_t num_extents);
/** Pages that a note of so many bytes takes behind its head. */
size_t sherdi_state_tail_bytes(size_t note_bytes);

/* Sets that a run may have at a time: two that are written, and what of others the two generations still lie in. */
#define SHERDI_STATE_SETS 8

/** "sherd-<run>-<rank>of<world_size>.state" into name [SHERDI_STATE_NAME_BYTES]. */
void sherdi_state_name(const sherdi_state_id *id, char *name);
/** Of a set: "sherd-<run>-<rank>of<world_size>.slots-a", the letter its number. */
void sherdi_state_set_name(const sherdi_state_id *id, int set, char *name);
/** Back again; layout becomes 0. 0 when it is no such name. */
int sherdi_state_name_parse(const char *name, sherdi_state_id *out);

/** A header page for these params. E_INVAL when the folders' names are too long for it, E_IO when one is not
 *  there. */
sherd_status sherdi_state_header_fill(const sherdi_tier_state_params *params,
                                      const sherdi_state_map *map, sherdi_state_header *out);
/** Whether it is one, and nobody changed it. */
int sherdi_state_header_is_whole(const sherdi_state_header *header);
/** E_STATE with what differs, when it is not the one these params would have. `path` is for the sentence. */
sherd_status    sherdi_state_header_compare(const sherdi_state_header      *header,
                                            const sherdi_tier_state_params *params,
                                            const sherdi_state_map *map, const char *path);
sherdi_state_id sherdi_state_header_id(const sherdi_state_header *header);
/** The folder of a stripe, from a whole header; NULL when it does not name so many. */
const char *sherdi_state_header_folder(const sherdi_state_header *header, uint32_t stripe);

/** The whole page, checksums and all, and of the note [note_bytes] what goes behind the tables into tail
 *  [sherdi_state_tail_bytes], zeros behind it. */
void sherdi_state_head_fill(const sherdi_state_id *id, uint64_t generation, const void *note,
                            size_t note_bytes, unsigned char *tail, const sherdi_state_entry *table,
                            size_t table_bytes, sherdi_state_head *out);
/** The same head for another table. */
void sherdi_state_head_retable(sherdi_state_head *head, const sherdi_state_entry *table,
                               size_t table_bytes);
/** Back again: what of the note fits into out [out_bytes], zeros behind it. */
void sherdi_state_note_take(const sherdi_state_head *head, const unsigned char *tail, void *out,
                            size_t out_bytes);
/** Whether the rest of the note is the head's; the head's own tail bytes of it are there. */
int sherdi_state_tail_is_whole(const sherdi_state_head *head, const unsigned char *tail);
/** Whether it is a head of this file, and nobody changed it; its table is another question. */
int sherdi_state_head_is_whole(const sherdi_state_head *head, const sherdi_state_id *id);
/** Whether nothing was written there, or a rollback took it back. */
int sherdi_state_head_is_empty(const sherdi_state_head *head);
/** Whether the table is the head's; `table_bytes` of it are there. */
int sherdi_state_table_is_whole(const sherdi_state_head *head, const sherdi_state_entry *table,
                                size_t num_extents, size_t table_bytes);

/* What the heads say, the tables not looked at. */
typedef struct sherdi_state_heads {
    int      live;                 /* which is; -1: none */
    uint64_t generation, previous; /* 0: none */
    int      is_damaged;           /* one is neither whole nor empty */
} sherdi_state_heads;

/** is_usable [2] 0: that head does not count, however whole. */
sherdi_state_heads sherdi_state_heads_read(const sherdi_state_head *heads, const int *is_usable,
                                           const sherdi_state_id *id);

#endif
