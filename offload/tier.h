/* A tier: where extents rest between uses. An extent is a numbered range of bytes, the grain of
 * transfer; what is in it the tier does not know. The tier on a drive is nvme, over io.h (nvme_scratch.c: a file
 * without a name; with generations nvme_state.c). What rests in memory is used where it is, and nothing is opened for
 * it. What the rest of the library asks of a tier are its capabilities: sherdi_tier_kind.
 *
 * Generations. A tier on a drive may keep two slots per extent: a write goes to the spare one, and
 * commit makes all that was written the live generation by one record, written last. A process
 * that dies at any moment leaves the last committed generation readable, and the one before it until
 * the first write after the commit: that is what rollback returns to.
 *
 * One thread at a time uses a tier. Nothing is allocated after it was made, but by rollback. */
#ifndef SHERDI_OFFLOAD_TIER_H
#define SHERDI_OFFLOAD_TIER_H

#include "offload/io.h"

typedef struct sherdi_tier sherdi_tier;

/* Where something rests, by what can address it there. */
typedef enum sherdi_space {
    SHERDI_SPACE_DEVICE = 0, /* the device's kernels */
    SHERDI_SPACE_HOST,       /* the host's */
    SHERDI_SPACE_STORAGE,    /* none: it is transferred, through buffers in host memory */
} sherdi_space;

/* In the tier's own space; both multiples of SHERD_ALIGN_BYTES; extents do not overlap and ascend. */
typedef struct sherdi_extent {
    size_t offset_bytes;
    size_t len_bytes;
} sherdi_extent;

typedef struct sherdi_tier_ops {
    size_t      struct_size;
    const char *name; /* "nvme" */

    /* Required. Transfers must be over. `is_kept` 0: what it kept on a drive is removed. */
    void (*close)(sherdi_tier *tier, int is_kept);
    /* Start a transfer of a whole extent; never block. The memory is borrowed until wait. A read sees
     * what was written last, committed or not; an extent that was never written reads as zero. */
    void (*read_start)(sherdi_tier *tier, size_t extent, void *memory, sherdi_io *io);
    void (*write_start)(sherdi_tier *tier, size_t extent, void *memory, sherdi_io *io);
    /* Blocks until a transfer is over. E_IO; also E_IO when a read does not have the checksum of
     * what was written and the tier verifies. `memory` as given at start. */
    sherd_status (*wait)(sherdi_tier *tier, sherdi_io *io);
    /* Never blocks: whether wait would return at once (but for the checksum). */
    int (*is_done)(sherdi_tier *tier, const sherdi_io *io);

    /* With generations only, else NULL. All block, with no transfer in flight. */
    /* What was written since the last commit becomes the live generation: its data is durable before
     * the record is written, and the record when this returns. note [note_bytes] is what the owner keeps with it: plain
     * data, the same bytes come back. E_INVAL when it is longer than was said when the tier was made. E_STATE after
     * a write that failed: abandon it first. E_IO: which generation counts on the drive is not known;
     * from then on, until abandon, writes fail and nothing is committed. */
    sherd_status (*commit)(sherdi_tier *tier, const void *note, size_t note_bytes);
    /* Forgets what was written since the last commit, and takes back the record of a commit that failed: then the
     * live generation counts again. E_IO: it is not known still. */
    sherd_status (*abandon)(sherdi_tier *tier);
    /* The generation before becomes the live one, durably. E_STATE
     * when there is none (nothing before, or written over since). What another process wrote is read and
     * compared first, so this takes as long as reading it. */
    sherd_status (*rollback)(sherdi_tier *tier);
    /* Number of the live generation, from 1 on; 0: nothing was committed. */
    uint64_t (*generation)(const sherdi_tier *tier);
} sherdi_tier_ops;

struct sherdi_tier {
    const sherdi_tier_ops *ops;
};

/* What one is opened with. */
typedef struct sherdi_tier_params {
    sherdi_ioq        *queue; /* of one that has files, and where they are */
    const char *const *folders;
    int                num_folders;
    const char *what; /* rests there: "state", for the sentence of a failure; static storage */
    const sherdi_extent *extents; /* copied */
    size_t               num_extents;
} sherdi_tier_params;

/* A tier before it is opened: what it can do. One table each, all named in tier_list.h. */
typedef struct sherdi_tier_kind {
    sherdi_space space;
    int          has_files; /* in folders that the configuration names; transfers take a queue */
    int          has_generations; /* state may rest in files of sherdi_tier_state_create */
    /* Contents mean nothing after this process; an extent that was never written reads as zero. NULL: of memory. */
    sherd_status (*open)(const sherdi_tier_params *params, sherdi_mem *mem, sherdi_tier **out);
} sherdi_tier_kind;

#define SHERDI_TIER(name, table) extern const sherdi_tier_kind table;
#include "offload/tier_list.h"
#undef SHERDI_TIER

/** "|none|cpu|nvme": choice i of a "device" key, without the first bar, is tier i. */
extern const char sherdi_tier_choices[];

const sherdi_tier_kind *sherdi_tier_at(size_t index);
size_t                  sherdi_tier_index(const sherdi_tier_kind *kind);
const char             *sherdi_tier_name(const sherdi_tier_kind *kind);
/** The first of that space. */
const sherdi_tier_kind *sherdi_tier_of(sherdi_space space);

/* ---- state on a drive, with generations ---- */

/* What this version writes and reads. 2: the layout is without rates, the note has the run's own text. 3: each set of
 * slots is a file, notes have any length. */
#define SHERDI_STATE_FORMAT 3u

/* Of a note, what a listing shows. */
#define SHERDI_STATE_NOTE_FRONT 512

/* Names of the files: sherd-<run, 16 hex digits>-<rank>of<world_size>.state, the index, and beside it .slots-a,
 * .slots-b, ...: see state_file.h. */
typedef struct sherdi_state_id {
    uint64_t run; /* the same on all ranks of a run, never 0 */
    int      rank, world_size;
    uint64_t layout; /* hash of all that must agree for the extents to mean the same */
} sherdi_state_id;

typedef struct sherdi_tier_state_params {
    const char *const   *folders;
    int                  num_folders;
    sherdi_state_id      id;
    const sherdi_extent *extents; /* copied */
    size_t               num_extents;
    size_t               note_bytes;  /* of a note at most; a file that is opened has its own */
    int                  is_verified; /* checksums are compared on every read, not on load alone */
    int is_durable; /* commits reach the medium (fdatasync); 0: the process's death alone is survived */
} sherdi_tier_state_params;

/** New files, empty: generation 0. */
sherd_status sherdi_tier_state_create(sherdi_ioq *queue, const sherdi_tier_state_params *params,
                                      sherdi_mem *mem, sherdi_tier **out);
/** The files of an earlier run, as they were left; E_STATE when it is locked, when its layout is another, when
 *  no generation is whole. Both generations it may have are told by `generation` and rollback. */
sherd_status sherdi_tier_state_open(sherdi_ioq *queue, const sherdi_tier_state_params *params,
                                    sherdi_mem *mem, sherdi_tier **out);
/** Bytes of the index file; a set takes as many as all extents together. */
size_t sherdi_tier_state_index_bytes(size_t num_extents, size_t note_bytes);
/** Bytes that one commit writes besides the extents, with a note of so many. */
size_t sherdi_tier_state_commit_bytes(size_t num_extents, size_t note_bytes);
/** Changes what is_verified of the parameters said. */
void sherdi_tier_state_verify(sherdi_tier *tier, int is_on);
/** The note of the live generation, what of it fits into out [out_bytes], zeros behind it. Returns its length. */
size_t sherdi_tier_state_note(const sherdi_tier *tier, void *out, size_t out_bytes);
/** Whether there is a generation to roll back to. Just opened, the index alone says so: rollback finds out
 *  whether the earlier process had begun to write over it. */
int sherdi_tier_state_has_previous(const sherdi_tier *tier);

/* ---- generations that a checkpoint keeps ---- */

/* What keeping the live generation takes. */
typedef struct sherdi_tier_keep_needs {
    size_t reserved_bytes; /* for a set that is written in the place of the kept one */
    size_t
        copied_bytes; /* written: extents that lie in another set than most, as after some alone were written */
} sherdi_tier_keep_needs;

void sherdi_tier_state_keep_needs(const sherdi_tier *tier, sherdi_tier_keep_needs *out);
/** Whether a keep there can begin: E_NOTSUP and E_STATE as below, E_IO. Changes nothing. */
sherd_status sherdi_tier_state_keep_check(sherdi_tier *tier, const char *folder, const char *name);
/** Reserves that space, so that a keep does not fail for it. E_IO says what is missing, and nothing has changed. */
sherd_status sherdi_tier_state_reserve(sherdi_tier *tier);
void         sherdi_tier_state_unreserve(sherdi_tier *tier);
/** Keeps the live generation: hard links of its stripes lie in `folder` as "name", "name.1", ..., durably and with
 *  what is in them, and they are never written again; the tier goes on in a new set. What was reserved is used up,
 *  whatever the outcome. No transfer may be in flight.
 *
 *  Where the live generation lies in several sets it is gathered in one first, under its own number; the one before it
 *  is then written over.
 *
 *  E_NOTSUP, before anything else is done: links cannot be made there (another file system): copy it. E_STATE: nothing
 *  was committed, or something was written since. E_IO, E_NOMEM: no link is there, and the tier is as it was, but for a commit that failed. */
sherd_status sherdi_tier_state_keep(sherdi_tier *tier, const char *folder, const char *name);

/* Where an extent lies in what was kept. */
typedef struct sherdi_tier_slot {
    size_t   offset_bytes, len_bytes;
    uint64_t checksum;   /* sherdi_checksum of its bytes */
    int      is_written; /* 0: it counts as zeros, whatever lies there */
} sherdi_tier_slot;

/* How the kept file is to be opened (sherdi_file_params): with READ, all stripes in one folder. */
typedef struct sherdi_tier_slots_file {
    size_t len_bytes, stripe_bytes;
    int    num_stripes;
} sherdi_tier_slots_file;

/** Of the live generation, to be called behind keep, which may gather it: all that a reader needs without the tier. */
void sherdi_tier_state_describe(const sherdi_tier *tier, size_t extent, sherdi_tier_slot *out);
void sherdi_tier_state_describe_file(const sherdi_tier *tier, sherdi_tier_slots_file *out);
/** Makes what was kept the first generation of a tier that was just created, by links and without a copy; it is written
 *  no more than by who kept it. slots [num_extents] as they were described. Checksums are compared when extents are
 *  read. E_NOTSUP: other extents, stripes, or file systems: read it and write it. E_STATE: it has a generation. E_IO. */
sherd_status sherdi_tier_state_adopt(sherdi_tier *tier, const char *folder, const char *name,
                                     const sherdi_tier_slot *slots, const void *note,
                                     size_t note_bytes);

/* One file that lies in a folder. */
typedef struct sherdi_state_found {
    sherdi_state_id id;
    char            path[1024];
    uint64_t        generation, previous; /* 0: none; previous may be written over already */
    uint32_t        format;               /* 0: not known */
    int             is_locked;            /* a run has it open */
    int           is_valid; /* header and index are whole; else only id.run, rank, world_size (from
                                 the name), path, held_bytes and changed_s mean something */
    uint64_t      held_bytes; /* on the drive, of index and sets, less what a checkpoint has too */
    int64_t       changed_s;  /* seconds since 1970 */
    unsigned char note[SHERDI_STATE_NOTE_FRONT]; /* its beginning, zeros behind it */
} sherdi_state_found;

typedef sherd_status (*sherdi_state_found_fn)(void *ctx, const sherdi_state_found *found);
/** Calls `fn` for every state file in a folder, in order of name, until it fails. Reads nothing but their
 *  first pages. E_IO, E_NOTSUP (built without libxxhash). */
sherd_status sherdi_state_find(const char *folder, sherdi_state_found_fn fn, void *ctx);
/** Removes one that is not locked, with its sets in the folders that its header names. E_STATE
 *  when it is in use, E_INVAL when it is not named like a state file, E_IO. */
sherd_status sherdi_state_remove(const char *path);
/** Whether nothing was ever committed to it: a run that was killed at its start left it, or has just begun. */
static inline int sherdi_state_found_is_empty(const sherdi_state_found *found)
{
    return found->is_valid && found->generation == 0;
}
/** Removes one that is empty and that nobody has open, with its sets; where it does not say itself where they lie,
 *  they are looked for in `folders` too. Looks again under its lock: E_STATE when it is in use, was removed by
 *  somebody else or is not empty any more. */
sherd_status sherdi_state_reclaim(const char *path, const char *const *folders, int num_folders,
                                  uint64_t *freed_bytes_out);

#endif
