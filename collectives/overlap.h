/* The thread on which a world's calls overlap with their caller: what tests know of it. */
#ifndef SHERDI_COLLECTIVES_OVERLAP_H
#define SHERDI_COLLECTIVES_OVERLAP_H

#include "collectives/world_impl.h"

/* Most calls that wait in the queue. */
#define WORLD_QUEUE_CALLS 64

#endif
