/* The drive's lane: transfers of extents between files and memory. A transfer starts as soon as the operations that it follows
 * are over, even if earlier transfers have not started. Whoever needs a transfer waits for it. So only the number of slots that
 * the program has limits the depth of the pipeline. */
#ifndef SHERDI_ENGINE_RUN_DRIVE_H
#define SHERDI_ENGINE_RUN_DRIVE_H

#include "engine/plan/order.h"

/* A transfer, from when it is given until its end has been noted. */
typedef struct sherdi_transfer {
    sherdi_io      io;
    sherdi_tier   *tier;
    unsigned char *memory;
    size_t         extent;
    sherdi_ring    ring;
    int            is_write;
    uint64_t       number;                /* 0: the entry is free */
    uint64_t       ended;                 /* number of the entry's last transfer */
    int            is_started, is_failed; /* failed: itself, or because an earlier one failed */
    sherdi_follows follows;               /* valid while it is not started */
} sherdi_transfer;

/* Time spent waiting for transfers of a ring, since the reader last reset it. */
typedef struct sherdi_drive_waits {
    int64_t read_ns, write_ns;
} sherdi_drive_waits;

/* How the drive asks about operations of other lanes: is_over returns whether one is over, without waiting; wait waits for it. */
typedef struct sherdi_drive_others {
    int (*is_over)(void *ctx, sherdi_lane_id lane, uint64_t number);
    sherd_status (*wait)(void *ctx, sherdi_lane_id lane, uint64_t number);
    void *ctx;
} sherdi_drive_others;

typedef struct sherdi_drive {
    sherdi_transfer    *transfers; /* [count]; a transfer is at its number % count */
    size_t              count;
    uint64_t            given;
    sherdi_order       *order;
    sherdi_drive_others others;
    sherdi_drive_waits  waits[SHERDI_RINGS];
    /* The first failure since the last settle; later transfers of the ring are not started */
    sherdi_outcome outcomes[SHERDI_RINGS];
} sherdi_drive;

/** Allocates room for `count` transfers that are not over. E_NOMEM. */
sherd_status sherdi_drive_open(sherdi_drive *drive, size_t count, sherdi_order *order,
                               const sherdi_drive_others *others, sherdi_mem *mem);
/** Waits for the transfers under way. Accepts a drive that was never opened. */
void sherdi_drive_close(sherdi_drive *drive);
/** Gives a transfer to the drive; the next poll starts it if it can. Before that poll, the caller enters the operation into the
 *  order (sherdi_order_enter) under the number that this returns. Waits only if there is no room. */
uint64_t sherdi_drive_give(sherdi_drive *drive, const sherdi_transfer *transfer);
/** Starts the transfers that can start, and notes which ones are over. Never blocks. */
void sherdi_drive_poll(sherdi_drive *drive);
/** Waits until the transfer is over. Returns its failure, or that of an earlier transfer of its ring; SHERD_OK if another
 *  transfer has taken its entry since. */
sherd_status sherdi_drive_wait(sherdi_drive *drive, uint64_t number);
/** Waits until all given transfers are over. Returns the first failure. */
sherd_status sherdi_drive_wait_all(sherdi_drive *drive);
/** Waits until all transfers of a ring are over; drops reads that have not started. Returns, and forgets, the first failure since
 *  the last settle. */
sherd_status sherdi_drive_settle(sherdi_drive *drive, sherdi_ring ring);
/** Returns the first failure of a ring so far; SHERD_OK if there is none. */
sherd_status sherdi_drive_status(const sherdi_drive *drive, sherdi_ring ring);

#endif
