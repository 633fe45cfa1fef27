/* The monitor notices that a rank has died, given up or disconnected, independently of the
 * transport. The connections of the rendezvous stay open, as a star around rank 0, and one thread
 * per process watches them. A connection that ends without a goodbye means that the process has
 * died, and a host that is silent for longer than the world's host_timeout_ns that the host is
 * lost. A rank that disconnects from a failed world reports the failure before its goodbye.
 * Children that the program forks do not hold the connections (base/fork.h), so a death is noticed
 * whether they live or not. */
#ifndef SHERDI_COLLECTIVES_MONITOR_H
#define SHERDI_COLLECTIVES_MONITOR_H

#include "collectives/rendezvous.h"

typedef struct sherdi_monitor sherdi_monitor;

typedef struct monitor_params {
    sherd_world *world;
    rendezvous  *meeting; /* the monitor takes its connections; messages use its cards */
    /* Called on the monitor's thread when the world has failed: `text` names the rank, and
     * `has_died` says that its process has ended. */
    void (*failed)(sherd_world *world, sherd_status status, const char *text, int has_died);
    /* Called on the monitor's thread when a rank has disconnected properly, which is an error only
     * for a rank that still needs it. */
    void (*left)(sherd_world *world, int rank);
    /* Optional. Called on the monitor's thread: each time it wakes, and when it is about to end. */
    void (*woke)(sherd_world *world);
    void (*ending)(sherd_world *world);
} monitor_params;

sherd_status sherdi_monitor_start(const monitor_params *params, sherdi_monitor **out);
/** Notifies all ranks. Any thread may call it; it never blocks. */
void sherdi_monitor_tell(sherdi_monitor *monitor, sherd_status status, const char *text);
/** Wakes the monitor's thread. Any thread may call it. */
void sherdi_monitor_wake(sherdi_monitor *monitor);
void sherdi_monitor_tell_ending(sherdi_monitor *monitor, uint64_t key, int is_agreed);
/** Says goodbye and ends the thread. Accepts NULL. */
void sherdi_monitor_stop(sherdi_monitor *monitor);

#endif
