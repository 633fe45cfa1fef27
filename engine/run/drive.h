/* The drive's lane: transfers of extents between files and memory. Each starts as soon as what it follows is over, whatever was given
 * before it; whoever needs a transfer waits for it. So the depth of the pipeline is the number of slots that the program has, and
 * nothing else limits it. */
#ifndef SHERDI_ENGINE_RUN_DRIVE_H
#define SHERDI_ENGINE_RUN_DRIVE_H

#include "engine/plan/order.h"

/* A transfer, from when it is given until somebody has taken note of its end. */
typedef struct sherdi_transfer {
    sherdi_io      io;
    sherdi_tier   *tier;
    unsigned char *memory;
    size_t         extent;
    sherdi_ring    ring;
    int            is_write;
    uint64_t       number;                /* 0: the entry is free */
    uint64_t       ended;                 /* number of the transfer that the entry had last */
    int            is_started, is_failed; /* failed: by itself, or refused after a failure */
    sherdi_follows follows;               /* valid while it is not started */
} sherdi_transfer;

/* Time for which transfers of a ring were waited for, since it was last asked. */
typedef struct sherdi_drive_waits {
    int64_t read_ns, write_ns;
} sherdi_drive_waits;

/* How the drive asks for operations of other lanes: whether one is over, without waiting; and to wait for it. */
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
    sherd_status failures[SHERDI_RINGS];
    char         texts[SHERDI_RINGS][SHERDI_ERROR_BYTES];
} sherdi_drive;

/** Makes room for `count` transfers that are not over. E_NOMEM. */
sherd_status sherdi_drive_open(sherdi_drive *drive, size_t count, sherdi_order *order,
                               const sherdi_drive_others *others, sherdi_mem *mem);
/** Waits for the transfers under way. Accepts a drive that was never opened. */
void sherdi_drive_close(sherdi_drive *drive);
/** Gives a transfer, which the next poll starts if it can. The order must know of it before (sherdi_order_enter). Waits only when
 *  there is no room. Returns the transfer's number. */
uint64_t sherdi_drive_give(sherdi_drive *drive, const sherdi_transfer *transfer);
/** Starts what can start, and takes note of what is over. Never blocks. */
void sherdi_drive_poll(sherdi_drive *drive);
/** Waits until the transfer is over. Returns its failure, or that of an earlier one of its ring, as long as no other transfer has
 *  taken its entry. */
sherd_status sherdi_drive_wait(sherdi_drive *drive, uint64_t number);
/** Waits until all that were given are over. Returns the first failure. */
sherd_status sherdi_drive_wait_all(sherdi_drive *drive);
/** Waits until all transfers of a ring are over; reads that have not begun are dropped. Returns, and forgets, the first failure
 *  since the last settle. */
sherd_status sherdi_drive_settle(sherdi_drive *drive, sherdi_ring ring);
/** Returns the first failure of a ring so far; SHERD_OK if there is none. */
sherd_status sherdi_drive_status(const sherdi_drive *drive, sherdi_ring ring);

#endif
