/* The drive's lane: transfers of extents between files and memory. A transfer starts as soon as the
 * operations that it follows are over, even if earlier transfers have not started. An operation
 * that needs a transfer waits for it. So only the number of slots that the program has limits the
 * depth of the pipeline.
 *
 * Two threads use the drive: the trainer's and the updater (updater.h). A ring has one user at a
 * time, who alone starts, ends and waits for its transfers. The lock is held for the tables only,
 * and not while a tier works. */
#ifndef SHERDI_ENGINE_RUN_DRIVE_H
#define SHERDI_ENGINE_RUN_DRIVE_H

#include "engine/program/order.h"
#include "engine/run/offload.h"
#include "offload/tier.h"

#include <pthread.h>

/* Time that a thread has waited for transfers. */
typedef struct sherdi_storage_waits {
    int64_t read_ns, write_ns;
} sherdi_storage_waits;

/* A transfer, from its submission until its end has been noted. */
typedef struct sherdi_transfer {
    sherdi_io      io;
    sherdi_tier   *tier;
    unsigned char *memory;
    size_t         extent;
    sherdi_ring    ring;
    int            is_write;
    int            account;               /* sherdi_io_account */
    uint64_t       number;                /* 0: the entry is free */
    uint64_t       ended;                 /* number of the entry's last transfer */
    int            is_started, is_failed; /* failed: itself, or because an earlier one failed */
    sherdi_follows follows;               /* valid while it is not started */
} sherdi_transfer;

/* How the drive asks about operations of other lanes: is_over returns whether one is over, without
 * waiting; wait waits for it. */
typedef struct sherdi_drive_others {
    int (*is_over)(void *ctx, sherdi_lane_id lane, uint64_t number);
    sherd_status (*wait)(void *ctx, sherdi_lane_id lane, uint64_t number);
    void              *ctx;
    const sherdi_user *users; /* [SHERDI_RINGS]: changed under the lock, when none is under way */
} sherdi_drive_others;

typedef struct sherdi_drive {
    sherdi_transfer *transfers; /* [count] */
    /* [count]: the entries of transfers that are not over, in the order in which they were
     * submitted */
    size_t              *sorted;
    size_t               count, num_sorted;
    uint64_t             given;
    sherdi_order        *order;
    pthread_mutex_t     *lock; /* of these tables and of the order */
    sherdi_drive_others  others;
    sherdi_storage_waits waits[SHERDI_USERS][SHERDI_RINGS];
    /* The first failure since the last settle; later transfers of the ring are not started */
    sherdi_outcome outcomes[SHERDI_RINGS];
} sherdi_drive;

/** Allocates room for `count` transfers that are not over: as many as a program has under way at
 *  once. E_NOMEM. */
sherd_status sherdi_drive_open(sherdi_drive *drive, size_t count, sherdi_order *order,
                               pthread_mutex_t *lock, const sherdi_drive_others *others,
                               sherdi_mem *mem);
/** Waits for the transfers under way. Accepts a drive that was never opened. */
void sherdi_drive_close(sherdi_drive *drive);
/** Gives a transfer to the drive; the next poll starts it if it can. Before that poll, the caller
 *  enters the operation into the order (sherdi_order_enter) under the number that this returns.
 *  Waits only if there is no room. */
uint64_t sherdi_drive_give(sherdi_drive *drive, const sherdi_transfer *transfer);
/** Starts the transfers of the user's rings that can start, and notes which ones are over. Never
 *  blocks. */
void sherdi_drive_poll(sherdi_drive *drive, sherdi_user user);
/** Waits until the transfer, of a ring of the caller's, is over. Returns its failure, or that of an
 *  earlier transfer of its ring; SHERD_OK if another transfer has taken its entry since. */
sherd_status sherdi_drive_wait(sherdi_drive *drive, uint64_t number);
/** Waits until all submitted transfers of the user's rings are over. Returns the first failure. */
sherd_status sherdi_drive_wait_all(sherdi_drive *drive, sherdi_user user);
/** Waits until all transfers of a ring are over; drops reads that have not started. Returns, and
 *  forgets, the first failure since the last settle. */
sherd_status sherdi_drive_settle(sherdi_drive *drive, sherdi_ring ring);
/** Waits until all transfers of a ring are over, which are reads whose results nobody needs any
 *  more: how they end does not matter. */
void sherdi_drive_drop(sherdi_drive *drive, sherdi_ring ring);
/** Returns the first failure of a ring so far; SHERD_OK if there is none. */
sherd_status sherdi_drive_status(const sherdi_drive *drive, sherdi_ring ring);

#endif
