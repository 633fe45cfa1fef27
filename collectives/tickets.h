/* The tickets of a world whose calls overlap with their caller: ticket t is the t-th call that took
 * one. Calls run on a thread of the world, or are only queued, on the lane of its device
 * (device.c). The core sees the functions of world_order_ops alone. */
#ifndef SHERDI_COLLECTIVES_TICKETS_H
#define SHERDI_COLLECTIVES_TICKETS_H

#include "collectives/follow.h"
#include "collectives/world_impl.h"

/* Most calls that wait in the queue. */
#define WORLD_QUEUE_CALLS 64

/* Tickets as events of the lane of a world's device. */
typedef struct world_lane_ops {
    /* A call was made on the caller's thread. Gives its ticket if it is on the lane, else 0, and
     * waits for it, if it is to be waited for. */
    sherd_status (*made)(sherd_world *world, int is_waited, sherdi_ticket *out);
    /* Records the event of a ticket whose call has just been queued on the lane. */
    void (*record)(sherd_world *world, sherdi_ticket ticket);
    /* Blocks until the lane has passed the ticket's event, or the world has failed. */
    sherd_status (*wait)(sherd_world *world, sherdi_ticket ticket);
    void (*follow)(sherd_world *world, const sherdi_backend *lane, sherdi_ticket ticket);
    int (*is_done)(sherd_world *world, sherdi_ticket ticket);
    /* Prepares a thread of the world's own; call it before the thread's first call of the
     * device. */
    void (*thread_begin)(const sherd_world *world);
} world_lane_ops;

/* Ticket t is in ring[(t - 1) % WORLD_QUEUE_CALLS], if its call runs on the thread. */
typedef struct world_tickets {
    world_order           common;     /* first */
    const world_lane_ops *lane;       /* NULL: the world has no device */
    int                   has_thread; /* 0: calls run on the caller's thread */
    pthread_t             thread;
    pthread_cond_t        has_work;
    pthread_cond_t        has_progress;
    pthread_mutex_t       lock; /* guards all members below */
    int                   is_stopping;
    sherdi_ticket         issued; /* the last ticket */
    _Atomic uint64_t      done;   /* ticket of the last call that ended; read without the lock */
    _Atomic uint64_t      failed_ticket; /* ticket of the first call that failed; 0: none */
    sherdi_outcome        failed;
    world_call            ring[WORLD_QUEUE_CALLS];
} world_tickets;

/** Gives the world tickets, if it has none. E_NOMEM. */
sherd_status sherdi_tickets_open(sherd_world *world);

/** Returns the tickets of a world that has them. */
static inline world_tickets *sherdi_tickets_of(const sherd_world *world)
{
    return (world_tickets *)world->order;
}

#endif
