/* A tier: where extents rest between uses. An extent is a numbered range of bytes, and the unit of
 * transfer; the tier does not know what is in it. The tier on a drive is nvme, over io.h, in a file
 * without a name (nvme_scratch.c). State on a drive that outlives the process is a type of its own,
 * whose extents are transferred like those of a tier (state.h). What rests in memory is used where
 * it is, and no tier is opened for it. The rest of the library asks a tier only for its
 * capabilities: sherdi_tier_kind.
 *
 * One thread at a time uses a tier. After a tier was made it allocates nothing. */
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

/* An extent in the tier's own space. Both numbers are multiples of SHERD_ALIGN_BYTES; extents
 * ascend and do not overlap. */
typedef struct sherdi_extent {
    size_t offset_bytes;
    size_t len_bytes;
} sherdi_extent;

/* All are required. */
typedef struct sherdi_tier_ops {
    /* Closes the tier; transfers must be over. */
    void (*close)(sherdi_tier *tier);
    /* Start a transfer of a whole extent; never block. The memory is borrowed until wait. A read
     * sees what was written last; an extent that was never written reads as zero. */
    void (*read_start)(sherdi_tier *tier, size_t extent, void *memory, sherdi_io *io);
    void (*write_start)(sherdi_tier *tier, size_t extent, void *memory, sherdi_io *io);
    /* Blocks until a transfer is over; `memory` as given at start. E_IO; also when the tier
     * verifies, and what was read does not have the checksum of what was written. */
    sherd_status (*wait)(sherdi_tier *tier, sherdi_io *io);
    /* Returns whether wait would return at once (except for comparing the checksum). Never
     * blocks. */
    int (*is_done)(sherdi_tier *tier, const sherdi_io *io);
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

/* A kind of tier: what a tier can do, before it is opened. Each kind has one table; all are named
 * in tier_list.h. */
typedef struct sherdi_tier_kind {
    sherdi_space space;
    int          has_files; /* in folders that the configuration names; transfers take a queue */
    int          has_generations; /* state may rest in a sherdi_state */
    /* Opens a tier whose contents mean nothing after this process; an extent that was never written
     * reads as zero. NULL: a tier of memory. */
    sherd_status (*open)(const sherdi_tier_params *params, sherdi_mem *mem, sherdi_tier **out);
} sherdi_tier_kind;

#define SHERDI_TIER(name, table) extern const sherdi_tier_kind table;
#include "offload/tier_list.h"
#undef SHERDI_TIER

/** "|none|cpu|nvme": the choices of a "device" key; without the first bar, choice i is tier i. */
extern const char sherdi_tier_choices[];

const sherdi_tier_kind *sherdi_tier_at(size_t index);
size_t                  sherdi_tier_index(const sherdi_tier_kind *kind);
/** Returns the kind of that name; NULL: there is none. */
const sherdi_tier_kind *sherdi_tier_find(const char *name);
const char             *sherdi_tier_name(const sherdi_tier_kind *kind);
/** Returns the first kind of that space. */
const sherdi_tier_kind *sherdi_tier_of(sherdi_space space);

#endif
