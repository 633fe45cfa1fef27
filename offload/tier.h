/* A tier: where extents rest between uses. An extent is a numbered range of bytes, and the unit of transfer; the tier does not know
 * what is in it. The tier on a drive is nvme, over io.h: nvme_scratch.c is a file without a name, nvme_state.c has generations. What
 * rests in memory is used where it is, and no tier is opened for it. The rest of the library asks a tier only for its capabilities:
 * sherdi_tier_kind.
 *
 * Generations. A tier on a drive may keep two slots per extent. A write goes to the spare slot; commit makes all that was written
 * the live generation, by one record that is written last. A process that dies at any moment leaves the last committed generation
 * readable. The generation before it stays until the first write after the commit: rollback returns to it.
 *
 * One thread at a time uses a tier. After a tier was made it allocates nothing, except in rollback. */
#ifndef SHERDI_OFFLOAD_TIER_H
#define SHERDI_OFFLOAD_TIER_H

#include "offload/io.h"

typedef struct sherdi_tier sherdi_tier;

/* A space: where something rests, by what can address it there. */
typedef enum sherdi_space {
    SHERDI_SPACE_DEVICE = 0, /* the device's kernels */
    SHERDI_SPACE_HOST,       /* the host's kernels */
    SHERDI_SPACE_STORAGE,    /* no kernels: it is transferred, through buffers in host memory */
} sherdi_space;

/* An extent in the tier's own space. Both numbers are multiples of SHERD_ALIGN_BYTES; extents ascend and do not overlap. */
typedef struct sherdi_extent {
    size_t offset_bytes;
    size_t len_bytes;
} sherdi_extent;

typedef struct sherdi_tier_ops {
    size_t      struct_size;
    const char *name; /* "nvme" */

    /* Required. Closes the tier; transfers must be over. `is_kept` 0: what it kept on a drive is removed. */
    void (*close)(sherdi_tier *tier, int is_kept);
    /* Start a transfer of a whole extent; never block. The memory is borrowed until wait. A read sees what was written last, committed
     * or not; an extent that was never written reads as zero. */
    void (*read_start)(sherdi_tier *tier, size_t extent, void *memory, sherdi_io *io);
    void (*write_start)(sherdi_tier *tier, size_t extent, void *memory, sherdi_io *io);
    /* Blocks until a transfer is over; `memory` as given at start. E_IO; also when the tier verifies, and what was read does not have
     * the checksum of what was written. */
    sherd_status (*wait)(sherdi_tier *tier, sherdi_io *io);
    /* Returns whether wait would return at once (except for comparing the checksum). Never blocks. */
    int (*is_done)(sherdi_tier *tier, const sherdi_io *io);

    /* The slots from here on: with generations only, else NULL. All block, and are called with no transfer in flight. */
    /* Makes what was written since the last commit the live generation: its data is durable before the record is written, and the
     * record when this returns. note [note_bytes] is what the owner keeps with the generation: plain data, of which the same bytes
     * come back. Errors: E_INVAL when it is longer than was said when the tier was made. E_STATE after a write that failed: abandon
     * it first. E_IO: which generation counts on the drive is unknown; from then on, until abandon, writes fail and nothing is
     * committed. */
    sherd_status (*commit)(sherdi_tier *tier, const void *note, size_t note_bytes);
    /* Forgets what was written since the last commit, and takes back the record of a commit that failed: then the live generation
     * counts again. E_IO: which one counts is still unknown. */
    sherd_status (*abandon)(sherdi_tier *tier);
    /* Makes the generation before the live one, durably. It first reads and compares what another process wrote, so it takes as long
     * as reading that. E_STATE when there is no generation before (none was committed, or it was written over since). E_IO: which
     * generation counts on the drive is unknown; from then on writes fail, until another rollback succeeds. */
    sherd_status (*rollback)(sherdi_tier *tier);
    /* Returns the number of the live generation, from 1 on; 0: nothing was committed. */
    uint64_t (*generation)(const sherdi_tier *tier);
} sherdi_tier_ops;

struct sherdi_tier {
    const sherdi_tier_ops *ops;
};

/* What a tier is opened with. */
typedef struct sherdi_tier_params {
    sherdi_ioq        *queue; /* for a tier that has files; folders: where they are */
    const char *const *folders;
    int                num_folders;
    const char *what; /* what rests there: "state", for the message of a failure; static storage */
    const sherdi_extent *extents; /* copied */
    size_t               num_extents;
} sherdi_tier_params;

/* A kind of tier: what a tier can do, before it is opened. Each kind has one table; all are named in tier_list.h. */
typedef struct sherdi_tier_kind {
    sherdi_space space;
    int          has_files; /* in folders that the configuration names; transfers take a queue */
    int          has_generations; /* state may rest in files of sherdi_tier_state_create */
    /* Opens a tier whose contents mean nothing after this process; an extent that was never written reads as zero. NULL: a tier of
     * memory. */
    sherd_status (*open)(const sherdi_tier_params *params, sherdi_mem *mem, sherdi_tier **out);
} sherdi_tier_kind;

#define SHERDI_TIER(name, table) extern const sherdi_tier_kind table;
#include "offload/tier_list.h"
#undef SHERDI_TIER

/** "|none|cpu|nvme": the choices of a "device" key; without the first bar, choice i is tier i. */
extern const char sherdi_tier_choices[];

const sherdi_tier_kind *sherdi_tier_at(size_t index);
size_t                  sherdi_tier_index(const sherdi_tier_kind *kind);
const char             *sherdi_tier_name(const sherdi_tier_kind *kind);
/** Returns the first kind of that space. */
const sherdi_tier_kind *sherdi_tier_of(sherdi_space space);

/* ---- state on a drive, with generations ---- */

/* The format that this version writes and reads. Format 2: the layout is without rates, the note has the run's own text. Format 3:
 * each set of slots is a file, and notes have any length. */
#define SHERDI_STATE_FORMAT 3u

/* Bytes at the front of a note that a listing shows. */
#define SHERDI_STATE_NOTE_FRONT 512

/* What names and identifies the files. The index is sherd-<run, 16 hex digits>-<rank>of<world_size>.state; beside it are .slots-a,
 * .slots-b, ...: see state_file.h. */
typedef struct sherdi_state_id {
    uint64_t run; /* the same on all ranks of a run, never 0 */
    int      rank, world_size;
    uint64_t layout; /* hash of all that must be equal for the extents to mean the same */
} sherdi_state_id;

typedef struct sherdi_tier_state_params {
    const char *const   *folders;
    int                  num_folders;
    sherdi_state_id      id;
    const sherdi_extent *extents; /* copied */
    size_t               num_extents;
    size_t note_bytes;  /* most bytes of a note; a file that is opened has its own limit */
    int    is_verified; /* 1: checksums are compared on every read; 0: on load alone */
    int is_durable; /* 1: commits reach the medium (fdatasync); 0: survive the process's death only */
} sherdi_tier_state_params;

/** Creates new files, empty: generation 0. */
sherd_status sherdi_tier_state_create(sherdi_ioq *queue, const sherdi_tier_state_params *params,
                                      sherdi_mem *mem, sherdi_tier **out);
/** Opens the files of an earlier run, as they were left. `generation` and rollback say which of the two generations it has. E_STATE
 *  when it is locked, when its layout is another one, or when no generation is intact. */
sherd_status sherdi_tier_state_open(sherdi_ioq *queue, const sherdi_tier_state_params *params,
                                    sherdi_mem *mem, sherdi_tier **out);
/** Returns the bytes of the index file; a set takes as many bytes as all extents together. */
size_t sherdi_tier_state_index_bytes(size_t num_extents, size_t note_bytes);
/** Returns the bytes that one commit writes besides the extents, with a note of `note_bytes`. */
size_t sherdi_tier_state_commit_bytes(size_t num_extents, size_t note_bytes);
/** Changes what is_verified of the parameters said: whether checksums are compared on every read. */
void sherdi_tier_state_verify(sherdi_tier *tier, int is_on);
/** Copies the note of the live generation to out [out_bytes], as much as fits, with zeros behind it. Returns the note's length. */
size_t sherdi_tier_state_note(const sherdi_tier *tier, void *out, size_t out_bytes);
/** Returns whether there is a generation to roll back to. For a tier that was just opened the index alone says so; rollback finds out
 *  whether the earlier process had begun to write over it. */
int sherdi_tier_state_has_previous(const sherdi_tier *tier);

/* ---- generations that a checkpoint keeps ---- */

/* The space that keeping the live generation takes. */
typedef struct sherdi_tier_keep_needs {
    size_t reserved_bytes; /* for a set that is written in place of the kept one */
    /* Written by copying: extents that lie in another set than most, as after only some extents were written */
    size_t copied_bytes;
} sherdi_tier_keep_needs;

void sherdi_tier_state_keep_needs(const sherdi_tier *tier, sherdi_tier_keep_needs *out);
/** Checks whether a keep in that folder can begin: E_NOTSUP and E_STATE as below, E_IO. Changes nothing. */
sherd_status sherdi_tier_state_keep_check(sherdi_tier *tier, const char *folder, const char *name);
/** Reserves that space, so that a keep does not fail for lack of it. E_IO says what is missing; nothing has changed then. */
sherd_status sherdi_tier_state_reserve(sherdi_tier *tier);
void         sherdi_tier_state_unreserve(sherdi_tier *tier);
/** Keeps the live generation: puts hard links of its stripes into `folder` as "name", "name.1", ..., durably and with their contents.
 *  These files are never written again; the tier continues in a new set. What was reserved is used up, whatever the outcome. No
 *  transfer may be in flight.
 *
 *  Where the live generation lies in several sets, it is first gathered in one, under its own number; the generation before it is
 *  written over by that.
 *
 *  Errors: E_NOTSUP, before anything else is done: links cannot be made there (another file system); copy the generation instead.
 *  E_STATE: nothing was committed, or something was written since. E_IO, E_NOMEM: no link exists, and the tier is as it was, unless
 *  a commit failed. */
sherd_status sherdi_tier_state_keep(sherdi_tier *tier, const char *folder, const char *name);

/* Where an extent lies in the files that were kept. */
typedef struct sherdi_tier_slot {
    size_t   offset_bytes, len_bytes;
    uint64_t checksum;   /* sherdi_checksum of its bytes */
    int      is_written; /* 0: it counts as zeros, whatever is in the file there */
} sherdi_tier_slot;

/* How to open the kept file (sherdi_file_params): with READ, all stripes in one folder. */
typedef struct sherdi_tier_slots_file {
    size_t len_bytes, stripe_bytes;
    int    num_stripes;
} sherdi_tier_slots_file;

/** Describe the live generation: all that a reader needs without the tier. Call them after keep, which may gather the generation. */
void sherdi_tier_state_describe(const sherdi_tier *tier, size_t extent, sherdi_tier_slot *out);
void sherdi_tier_state_describe_file(const sherdi_tier *tier, sherdi_tier_slots_file *out);
/** Makes what was kept the first generation of a tier that was just created, by links and without a copy. The tier never writes it
 *  either, like the tier that kept it. slots [num_extents] are as they were described. Checksums are compared when extents are read.
 *  Errors: E_NOTSUP: other extents, stripes, or file systems; read it and write it instead. E_STATE: the tier has a generation.
 *  E_IO. */
sherd_status sherdi_tier_state_adopt(sherdi_tier *tier, const char *folder, const char *name,
                                     const sherdi_tier_slot *slots, const void *note,
                                     size_t note_bytes);

/* A state file that was found in a folder. */
typedef struct sherdi_state_found {
    sherdi_state_id id;
    char            path[1024];
    uint64_t        generation, previous; /* 0: none; previous may be written over already */
    uint32_t        format;               /* 0: unknown */
    int             is_locked;            /* 1: a run has it open */
    /* 1: header and index are intact; 0: only id.run, rank, world_size (from the name), path, held_bytes and changed_s have a
     * meaning */
    int           is_valid;
    uint64_t      held_bytes; /* on the drive, of index and sets, less what a checkpoint has too */
    int64_t       changed_s;  /* seconds since 1970 */
    unsigned char note[SHERDI_STATE_NOTE_FRONT]; /* the front of its note, zeros behind it */
} sherdi_state_found;

typedef sherd_status (*sherdi_state_found_fn)(void *ctx, const sherdi_state_found *found);
/** Calls `fn` for every state file in a folder, in order of name, until it fails. Reads only their first pages. Errors: E_IO,
 *  E_NOTSUP (built without libxxhash). */
sherd_status sherdi_state_find(const char *folder, sherdi_state_found_fn fn, void *ctx);
/** Removes a state file that is not locked, with its sets in the folders that its header names. Errors: E_STATE when it is in use,
 *  E_INVAL when its name is not that of a state file, E_IO. */
sherd_status sherdi_state_remove(const char *path);
/** Returns whether nothing was ever committed to it: a run that was killed at its start left it, or a run has just begun. */
static inline int sherdi_state_found_is_empty(const sherdi_state_found *found)
{
    return found->is_valid && found->generation == 0;
}
/** Removes a state file that is empty and that nobody has open, with its sets. Where the file does not say where its sets are, they
 *  are looked for in `folders` too. Checks again under the file's lock: E_STATE when it is in use, was removed by somebody else, or is
 *  not empty any more. */
sherd_status sherdi_state_reclaim(const char *path, const char *const *folders, int num_folders,
                                  uint64_t *freed_bytes_out);

#endif
