/* What orders the lanes of a device: events, lanes that follow each other, and what a transport or a
 * profiler has to know of a lane. backend.h has the lanes themselves. */
#ifndef SHERDI_KERNELS_LANES_H
#define SHERDI_KERNELS_LANES_H

#include "kernels/backend.h"

/* An event: a point in the work of a lane. */
typedef struct sherdi_event sherdi_event;

/* Calls that can fail and return no status keep the device's error for the next wait. */
typedef struct sherdi_lane_ops {
    /* The handle that lane_create takes for the vendor's default stream, whose own handle may be 0;
     * NULL: there are no streams. */
    void *default_stream;

    /* Required. Makes later work on `lane` run after all that `other` was given up to now. Never
     * blocks. */
    void (*lane_follow)(const sherdi_backend *lane, const sherdi_backend *other);

    /* Required. `is_timed`: event_ns works too; other events are for order alone, which costs a
     * device less. */
    sherd_status (*event_create)(sherdi_backend *lane, int is_timed, sherdi_event **out);
    void (*event_destroy)(sherdi_event *event); /* accepts NULL */
    /* Required. They never block. An event that was never recorded is done. */
    void (*event_record)(sherdi_event *event, const sherdi_backend *lane);
    void (*lane_follow_event)(const sherdi_backend *lane, const sherdi_event *event);
    int (*event_is_done)(const sherdi_event *event);
    /* Required. Blocks until the work before the event is done. E_DEVICE. */
    sherd_status (*event_wait)(const sherdi_event *event);
    /* Required. Returns when a timed event that is done was passed, in nanoseconds on the clock of
     * sherdi_now_ns(), as precisely as the device can tell; 0 where it cannot. For traces. */
    int64_t (*event_ns)(const sherdi_event *event);

    /* Required. Returns the lane's stream, as void *; NULL where there is none. */
    void *(*lane_stream)(const sherdi_backend *lane);
    /* Optional (NULL: the CPU). Returns the stream that lane_create was given; NULL: the lane has
     * one of its own. */
    void *(*lane_given)(const sherdi_backend *lane);
    /* Optional (NULL: the CPU). Returns a number that tells the lane's device from the others of
     * this host, whatever number a process sees it under. */
    uint64_t (*lane_identity)(const sherdi_backend *lane);

    /* Optional, both or none (NULL: the CPU). Lock whole pages of host memory, so that lanes copy to
     * and from them without waiting; and undo it when no lane uses them any more. May block.
     * E_NOMEM, E_DEVICE. */
    sherd_status (*pin)(sherdi_backend *lane, void *memory, size_t len_bytes);
    void (*unpin)(sherdi_backend *lane, void *memory);

    /* Optional. Lets copies on lanes of this device reach memory of the other's device directly
     * from now on. Returns 1: they do, or it is the same device; 0: they cannot, and go through the
     * host as before. */
    int (*device_reach)(const sherdi_backend *lane, const sherdi_backend *other);

    /* Optional. A thread that the library made calls it once, before it asks anything of this
     * lane's device. Afterwards nothing that the thread asks spoils what the program's threads do
     * meanwhile (a graph that one of them captures). */
    void (*thread_begin)(const sherdi_backend *lane);

    /* Optional, both or none. Begin and end a named range of the host's time, for the vendor's
     * profiler. Ranges may overlap. */
    uint64_t (*range_begin)(const char *name);
    void (*range_end)(uint64_t range);
} sherdi_lane_ops;

/* Of a device with nothing to order. */
extern const sherdi_lane_ops sherdi_lanes_none;

/** Returns the functions of a lane's device. */
static inline const sherdi_lane_ops *sherdi_lanes_of(const sherdi_backend *lane)
{
    return lane->device->lanes != NULL ? lane->device->lanes : &sherdi_lanes_none;
}

static inline void sherdi_lane_follow(const sherdi_backend *lane, const sherdi_backend *other)
{
    if (lane != other) {
        sherdi_lanes_of(lane)->lane_follow(lane, other);
    }
}

#endif
