/* The drive's lane: transfers of extents between files and memory. Each starts as soon as what it follows is over,
 * whatever was given before it; whoever needs one waits for it. So the depth of the pipeline is the number of slots
 * that the program has, and nothing else. */
#ifndef SHERDI_ENGINE_RUN_DRIVE_H
#define SHERDI_ENGINE_RUN_DRIVE_H

#include "engine/plan/order.h"

/* A transfer, from when it is given until somebody has seen its end. */
typedef struct sherdi_transfer {
    sherdi_io      io;
    sherdi_tier   *tier;
    unsigned char *memory;
    size_t         extent;
    sherdi_ring    ring;
    int            is_write;
    uint64_t       number;                /* 0: the entry is free */
    uint64_t       ended;                 /* the number that it had */
    int            is_started, is_failed; /* failed: itself, or refused after a failure */
    sherdi_follows follows;               /* while it is not started */
} sherdi_transfer;

/* What transfers of a ring were waited for, since it was last asked. */
typedef struct sherdi_drive_waits {
    int64_t read_ns, write_ns;
} sherdi_drive_waits;

/* Whether an operation of another lane is over, without waiting; and waiting for it. */
typedef struct sherdi_drive_others {
    int (*is_over)(void *ctx, sherdi_lane_id lane, uint64_t number);
    sherd_status (*wait)(void *ctx, sherdi_lane_id lane, uint64_t number);
    void *ctx;
} sherdi_drive_others;

typedef struct sherdi_drive {
    sherdi_transfer    *transfers; /* [count], by number % count */
    size_t              count;
    uint64_t            given;
    sherdi_order       *order;
    sherdi_drive_others others;
    sherdi_drive_waits  waits[SHERDI_RINGS];
    sherd_status
         failures[SHERDI_RINGS]; /* the first since the last settle; later ones are not started */
    char texts[SHERDI_RINGS][SHERDI_ERROR_BYTES];
} sherdi_drive;

/** Room for so many transfers that are not over. E_NOMEM. */
sherd_status sherdi_drive_open(sherdi_drive *drive, size_t count, sherdi_order *order,
                               const sherdi_drive_others *others, sherdi_mem *mem);
/** Waits for what is on its way. Accepts one that was never opened. */
void sherdi_drive_close(sherdi_drive *drive);
/** Gives a transfer, which the next poll starts if it can: the order has to know of it before. Waits only when there is
 *  no room. Returns its number. */
uint64_t sherdi_drive_give(sherdi_drive *drive, const sherdi_transfer *transfer);
/** Starts what can start, takes notice of what is over. Never blocks. */
void sherdi_drive_poll(sherdi_drive *drive);
/** Until the transfer is over; its failure, or that of an earlier one of its ring, told as long as no other has taken
 *  its entry. */
sherd_status sherdi_drive_wait(sherdi_drive *drive, uint64_t number);
/** Until all that were given are over; the first failure. */
sherd_status sherdi_drive_wait_all(sherdi_drive *drive);
/** Until all of a ring are over, but for reads that have not begun, which are dropped; the first failure since the
 *  last settle, which is forgotten. */
sherd_status sherdi_drive_settle(sherdi_drive *drive, sherdi_ring ring);
/** The first failure of a ring so far, SHERD_OK without. */
sherd_status sherdi_drive_status(const sherdi_drive *drive, sherdi_ring ring);

#endif
