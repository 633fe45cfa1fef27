/* State on a drive that outlives the process, in generations. It has two copies of each extent. A
 * write goes to the spare copy; commit makes everything that was written the live generation, by
 * one record that is written last. A process that dies at any moment leaves the last committed
 * generation readable. The generation before it stays until the first write after the commit:
 * rollback returns to it.
 *
 * state.c has transfers and generations, state_keep.c what checkpoints keep, find.c files seen from
 * outside.
 *
 * One thread at a time uses a state. After it was made it allocates nothing, except in rollback and
 * for what checkpoints keep. */
#ifndef SHERDI_OFFLOAD_STATE_H
#define SHERDI_OFFLOAD_STATE_H

#include "offload/tier.h"

typedef struct sherdi_state sherdi_state;

/* The format that this version writes and reads. Format 2: the layout is without rates, the note
 * has the run's own text. Format 3: each set of copies is a file, and notes have any length. */
#define SHERDI_STATE_FORMAT 3u

/* Bytes at the front of a note that a listing shows. */
#define SHERDI_STATE_NOTE_FRONT 512
/* Bytes of an engine's note: the front, and blobs. */
#define SHERDI_STATE_NOTE_BYTES ((size_t)SHERDI_STATE_NOTE_FRONT + SHERD_BLOB_MAX_BYTES + 64)

/* The name and identity of the files. The index is sherd-<run, 16 hex
 * digits>-<rank>of<world_size>.state; in the same folders are .slots-a, .slots-b, ...: see
 * state_file.h. */
typedef struct sherdi_state_id {
    uint64_t run; /* the same on all ranks of a run, never 0 */
    int      rank, world_size;
    uint64_t layout; /* hash of all that must be equal for the extents to mean the same */
} sherdi_state_id;

typedef struct sherdi_state_params {
    const char *const   *folders;
    int                  num_folders;
    sherdi_state_id      id;
    const sherdi_extent *extents; /* copied */
    size_t               num_extents;
    size_t note_bytes;  /* most bytes of a note; a file that is opened has its own limit */
    int    is_verified; /* 1: checksums are compared on every read; 0: on load alone */
    /* 1: commits reach the medium (fdatasync); 0: survive the process's death only */
    int is_durable;
} sherdi_state_params;

/** Creates new files, empty: generation 0. */
sherd_status sherdi_state_create(sherdi_ioq *queue, const sherdi_state_params *params,
                                 sherdi_mem *mem, sherdi_state **out);
/** Opens the files of an earlier process. sherdi_state_generation and rollback say which of the two
 *  generations it has. E_STATE when it is locked, when its layout is another one, or when no
 *  generation is intact. */
sherd_status sherdi_state_open(sherdi_ioq *queue, const sherdi_state_params *params,
                               sherdi_mem *mem, sherdi_state **out);
/** Closes it; transfers must be over. `is_kept` 0: its files are removed. */
void sherdi_state_close(sherdi_state *state, int is_kept);
/** Returns the tier that transfers its extents, which lives as long as the state. A read sees the
 *  last write, committed or not. Closing the tier closes the state, whose files remain. */
sherdi_tier *sherdi_state_extents(sherdi_state *state);
/** Changes what is_verified of the parameters said: whether checksums are compared on every
 *  read. */
void sherdi_state_verify(sherdi_state *state, int is_on);
/** Returns the bytes of the index file; a set takes as many bytes as all extents together. */
size_t sherdi_state_index_bytes(size_t num_extents, size_t note_bytes);
/** Returns the bytes that one commit writes besides the extents, with a note of `note_bytes`. */
size_t sherdi_state_commit_bytes(size_t num_extents, size_t note_bytes);

/* ---- generations: all block, and are called with no transfer in flight ---- */

/** Makes the writes since the last commit the live generation: its data is durable before the
 *  record is written, and the record when this returns. note [note_bytes] is the owner's data of
 *  the generation: plain bytes, which are read back unchanged. Errors: E_INVAL when it is longer
 *  than was said when the state was made. E_STATE after a write that failed: abandon it first.
 *  E_IO: which generation counts on the drive is unknown; from then on, until abandon, writes fail
 *  and nothing is committed. */
sherd_status sherdi_state_commit(sherdi_state *state, const void *note, size_t note_bytes);
/** Discards the writes since the last commit, and erases the record of a commit that failed: then
 *  the live generation counts again. E_IO: which one counts is still unknown. */
sherd_status sherdi_state_abandon(sherdi_state *state);
/** Makes the generation before the live one, durably. It first reads and compares what another
 *  process wrote, so it takes as long as reading that. E_STATE when there is no generation before
 *  (none was committed, or it was written over since). E_IO: which generation counts on the drive
 *  is unknown; from then on writes fail, until another rollback succeeds. */
sherd_status sherdi_state_rollback(sherdi_state *state);
/** Lets reads and get_note return a generation: the live one, or the one before it. Nothing changes on
 *  the drive. Ends with abandon; until then nothing is written or committed. What another process
 *  has written is compared with its checksums as it is read: E_IO, if it wrote over this generation.
 *  E_STATE when the state has no such generation, or a commit failed. */
sherd_status sherdi_state_aim(sherdi_state *state, uint64_t generation);
/** Returns the number of the live generation, from 1 on; 0: nothing was committed. */
uint64_t sherdi_state_generation(const sherdi_state *state);
/** Copies the note of the live generation to out [out_bytes], as much as fits, with zeros after it.
 *  Returns the note's length. */
size_t sherdi_state_get_note(const sherdi_state *state, void *out, size_t out_bytes);
/** Returns whether there is a generation to roll back to. For a state that was just opened the
 *  index alone says so; rollback finds out whether the earlier process had begun to write over
 *  it. */
int sherdi_state_has_previous(const sherdi_state *state);

/* ---- generations that a checkpoint keeps ---- */

/** Checks whether a keep in that folder can begin: E_NOTSUP and E_STATE as below, E_IO. Changes
 *  nothing. */
sherd_status sherdi_state_keep_check(sherdi_state *state, const char *folder, const char *name);
/** Reserves the space that a link takes, so that it does not fail for lack of it: a set that is
 *  written in place of the linked one. E_IO names the missing bytes; nothing has changed then. */
sherd_status sherdi_state_reserve(sherdi_state *state);
void         sherdi_state_unreserve(sherdi_state *state);
/** Keeps the live generation: puts hard links of its stripes into `folder` as "name", "name.1",
 *  ..., durably and with their contents. These files are never written again; the state continues
 *  in a new set. The reserved space is used up in any case. No transfer may be in flight.
 *
 *  Where the live generation lies in several sets, it is first gathered in one, under its own
 *  number; the generation before it is written over by that.
 *
 *  Errors: E_NOTSUP, before anything else is done: links cannot be made there (another file
 *  system); copy the generation instead. E_STATE: nothing was committed, or something was written
 *  since. E_IO, E_NOMEM: no link exists, and the state is as it was, unless a commit failed. */
sherd_status sherdi_state_keep(sherdi_state *state, const char *folder, const char *name);

/* The place of an extent in the linked files. */
typedef struct sherdi_state_slot {
    size_t   offset_bytes, len_bytes;
    uint64_t checksum;   /* sherdi_checksum of its bytes */
    int      is_written; /* 0: it counts as zeros, whatever bytes the file has */
} sherdi_state_slot;

/* How to open the linked file (sherdi_file_params): with READ, all stripes in one folder. */
typedef struct sherdi_state_slots_file {
    size_t len_bytes, stripe_bytes;
    int    num_stripes;
} sherdi_state_slots_file;

/** Describe the live generation: all that a reader needs without the state. Call them after keep,
 *  which may gather the generation. */
void sherdi_state_describe(const sherdi_state *state, size_t extent, sherdi_state_slot *out);
void sherdi_state_describe_file(const sherdi_state *state, sherdi_state_slots_file *out);
/* A state file that was found in a folder. */
typedef struct sherdi_state_found {
    sherdi_state_id id;
    char            path[1024];
    uint64_t        generation, previous; /* 0: none; previous may be written over already */
    uint32_t        format;               /* 0: unknown */
    int             is_locked;            /* 1: a run has it open */
    /* 1: header and index are intact; 0: only id.run, rank, world_size (from the name), path,
     * held_bytes and changed_s have a meaning */
    int is_valid;
    /* on the drive, of index and sets, without files that a checkpoint shares */
    uint64_t      held_bytes;
    int64_t       changed_s;                     /* seconds since 1970 */
    unsigned char note[SHERDI_STATE_NOTE_FRONT]; /* the front of its note, zeros after it */
} sherdi_state_found;

typedef sherd_status (*sherdi_state_found_fn)(void *ctx, const sherdi_state_found *found);
/** Calls `fn` for every state file in a folder, in order of name, until it fails. Reads only their
 *  first pages. Errors: E_IO, E_NOTSUP (built without libxxhash). */
sherd_status sherdi_state_find(const char *folder, sherdi_state_found_fn fn, void *ctx);
/** Removes a state file that is not locked, with its sets in the folders that its header names.
 *  Errors: E_STATE when it is in use, E_INVAL when its name is not that of a state file, E_IO. */
sherd_status sherdi_state_remove(const char *path);
/** Returns whether nothing was ever committed to it: it belongs to a run that was killed at its
 *  start, or that has just begun. */
static inline int sherdi_state_found_is_empty(const sherdi_state_found *found)
{
    return found->is_valid && found->generation == 0;
}
/** Removes a state file that is empty and that nobody has open, with its sets. Where the file does
 *  not say where its sets are, they are looked for in `folders` too. Checks again under the file's
 *  lock: E_STATE when it is in use, was removed by somebody else, or is not empty any more. */
sherd_status sherdi_state_reclaim(const char *path, const char *const *folders, int num_folders,
                                  uint64_t *freed_bytes_out);

#endif
