/* The room of gradients: where a rank leaves its reduced gradient slices before an update, in memory
 * that the other ranks of the host have. With sherd.redundancy "peer" the rank behind takes them out
 * for its second copy; with "host" on a device they stay for whoever ends the update of a lost rank.
 * It lies behind the ledger in the buffer of the redundancy. */
#ifndef SHERDI_ENGINE_ELASTIC_ROOM_H
#define SHERDI_ENGINE_ELASTIC_ROOM_H

#include "engine/elastic/move.h"

/** Returns the bytes of the room, a multiple of SHERD_ALIGN_BYTES; 0: gradients need none. */
size_t sherdi_room_bytes(const sherdi_plan *plan);
/** Hook window_reduced: emits the copies of the gradient slices to the room. */
sherd_status sherdi_room_emit(const sherdi_program *program);
/** Waits until all ranks have their gradient slices where others find them. Collective; nothing
 *  where they need no room. E_PEER_LOST. */
sherd_status sherdi_room_fill(sherd_engine *engine);
/** Copies the gradient slices that rank `rank` has left to where a holding of another plan has
 *  them. Returns their bytes. */
uint64_t sherdi_room_take(const sherd_engine *engine, int rank, const sherdi_holding *to);

#endif
