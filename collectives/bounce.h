/* Bounce buffers: through them the ranks of one host move what is not world memory, portion by
 * portion. Each rank has one, with two halves, which it fills in turn (peers.h). */
#ifndef SHERDI_COLLECTIVES_BOUNCE_H
#define SHERDI_COLLECTIVES_BOUNCE_H

#include "collectives/peers.h"

#define PEERS_HALF_BYTES ((size_t)1 << 20)

/** Return the half that this rank publishes at the next meeting, and the half that a rank published
 *  at the last one. */
unsigned char       *sherdi_peers_half_to_fill(const sherdi_peers *peers);
const unsigned char *sherdi_peers_half_of(const sherdi_peers *peers, int index);

/** Returns the index of a rank among the ranks of this host; -1: it is on another host. */
int sherdi_peers_index(const sherdi_peers *peers, int rank);

/** A function of sherdi_world_ops. `root` is a rank of this host. */
sherd_status sherdi_peers_broadcast(sherd_world *world, void *data, size_t len_bytes, int root);

#endif
