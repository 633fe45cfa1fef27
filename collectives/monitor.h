/* Notices that a rank has died, given up or left, whatever the transport is doing: the
 * connections of the rendezvous stay open, a star around rank 0, and one thread per process
 * watches them. An end without a goodbye is a death. Children that the program forks do not
 * hold the connections (base/fork.h), so it is noticed whether they live or not. */
#ifndef SHERDI_COLLECTIVES_MONITOR_H
#define SHERDI_COLLECTIVES_MONITOR_H

#include "collectives/rendezvous.h"

typedef struct sherdi_monitor sherdi_monitor;

typedef struct monitor_params {
    sherd_world *world;
    rendezvous  *meeting; /* the monitor takes its connections; the cards are read for sentences */
    /* On the monitor's thread. The world failed: the sentence says by whom; `has_died`: by the
     * end of a process. */
    void (*failed)(sherd_world *world, sherd_status status, const char *text, int has_died);
    /* A rank left properly: an error only for who still needs it. */
    void (*left)(sherd_world *world, int rank);
} monitor_params;

sherd_status sherdi_monitor_start(const monitor_params *params, sherdi_monitor **out);
/** Any thread, never blocks: tells all ranks. */
void sherdi_monitor_tell(sherdi_monitor *monitor, sherd_status status, const char *text);
void sherdi_monitor_tell_ending(sherdi_monitor *monitor, uint64_t key, int is_agreed);
/** Says goodbye and ends the thread. Accepts NULL. */
void sherdi_monitor_stop(sherdi_monitor *monitor);

#endif
