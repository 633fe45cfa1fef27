/* A tier: where extents rest between uses. An extent is a numbered range of bytes, and the unit of
 * transfer; the tier does not know its contents. The tier on a drive is nvme, over io.h, in a file
 * without a name (nvme_scratch.c). State on a drive that outlives the process is a type of its own,
 * whose extents are transferred like those of a tier (state.h). Data in memory is used where it is,
 * and no tier is opened for it. tier_kind.h has the properties of a tier for the rest of the
 * library.
 *
 * One thread at a time uses a tier. After a tier was made it allocates nothing. */
#ifndef SHERDI_OFFLOAD_TIER_H
#define SHERDI_OFFLOAD_TIER_H

#include "offload/io.h"
#include "offload/tier_kind.h"

/* Bytes of a stripe before the next folder's turn. */
#define SHERDI_STRIPE_BYTES ((size_t)1 << 20)

/* All are required. */
typedef struct sherdi_tier_ops {
    /* Closes the tier; transfers must be over. */
    void (*close)(sherdi_tier *tier);
    /* Start a transfer of a whole extent; never block. The memory is borrowed until wait. A read
     * sees the last write; an extent that was never written reads as zero. */
    void (*read_start)(sherdi_tier *tier, size_t extent, void *memory, sherdi_io *io);
    void (*write_start)(sherdi_tier *tier, size_t extent, void *memory, sherdi_io *io);
    /* Blocks until a transfer is over; `memory` as at its start. E_IO; also when the tier verifies,
     * and the read bytes do not have the checksum of the written ones. */
    sherd_status (*wait)(sherdi_tier *tier, sherdi_io *io);
    /* Returns whether wait would return at once (except for comparing the checksum). Never
     * blocks. */
    int (*is_done)(sherdi_tier *tier, const sherdi_io *io);
} sherdi_tier_ops;

struct sherdi_tier {
    const sherdi_tier_ops *ops;
};

/* The parameters with which a tier is opened. */
struct sherdi_tier_params {
    sherdi_ioq        *queue; /* for a tier that has files; folders: where they are */
    const char *const *folders;
    int                num_folders;
    const char *what; /* what rests there: "state", for the message of a failure; static storage */
    const sherdi_extent *extents; /* copied */
    size_t               num_extents;
};

#endif
