/* The lanes of an engine, and the order of their operations. An operation is enqueued on its lane
 * after the operations that it has to follow (order.h). The host waits for a lane only if it uses a
 * result of the lane. */
#ifndef SHERDI_ENGINE_RUN_LANES_IMPL_H
#define SHERDI_ENGINE_RUN_LANES_IMPL_H

#include "engine/program/order.h"
#include "engine/run/engine_impl.h"
#include "kernels/lanes.h"

#include <pthread.h>

/* How many operations of a device's lane, the latest ones, have an event of their own. The event of
 * an older one belongs to a later operation by now, so who waits for the older one waits for
 * that. */
#define SHERDI_RUN_EVENTS 64

/* Who carries out the operations of the drive's lane. An operation of it has a number from `submit`
 * on. */
typedef struct sherdi_transfers_ops {
    /* Enters the operation into the order, and starts it when the operations that it follows are
     * over. Blocks if there is no room, and for a write if writes are not overlapped. */
    sherd_status (*submit)(sherd_engine *engine, const sherdi_op *op,
                           const sherdi_follows *follows);
    /* Starts what can start of the calling thread's transfers, and notes which ones are over. */
    void (*poll)(sherd_engine *engine);
    /* Blocks until one transfer is over. Returns its failure. */
    sherd_status (*wait)(sherd_engine *engine, uint64_t number);
    /* Blocks until the transfers that an operation follows are over. Returns the failure of a ring
     * whose buffer it uses. */
    sherd_status (*follow)(sherd_engine *engine, const sherdi_op *op,
                           const sherdi_follows *follows);
} sherdi_transfers_ops;

typedef struct sherdi_lanes_impl {
    /* of the order, of run.given and run.users, and around submissions to an asynchronous lane */
    pthread_mutex_t             lock;
    sherdi_order                order;
    const sherdi_transfers_ops *transfers; /* NULL: nothing is transferred */
    /* by number modulo SHERDI_RUN_EVENTS; NULL: the lane is the host's */
    sherdi_event *events[SHERDI_LANES][SHERDI_RUN_EVENTS];
} sherdi_lanes_impl;

/** Blocks until an operation of a lane is over; then nothing has to follow it any more. E_DEVICE,
 *  E_PEER_LOST, E_IO. */
sherd_status sherdi_run_lane_wait(sherd_engine *engine, sherdi_lane_id lane, uint64_t number);
/** Returns whether it is over, without waiting. */
int sherdi_run_lane_is_over(const sherd_engine *engine, sherdi_lane_id lane, uint64_t number);
/** Waits until the wire and the compute lane are idle, so that the updater, which uses neither,
 *  need not follow them. At a boundary, after the norm, little work remains. Returns the first
 *  failure. */
sherd_status sherdi_run_quiet(sherd_engine *engine);

extern const sherdi_lanes_ops sherdi_lanes_table;

#endif
