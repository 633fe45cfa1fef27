/* What sherd_world_shrink and sherd_world_grow (resize.c) share with the turns of an elastic job
 * (turn.c). */
#ifndef SHERDI_COLLECTIVES_RESIZE_H
#define SHERDI_COLLECTIVES_RESIZE_H

#include "sherd.h"

/** Does what sherd_world_grow does, without its checks. The meeting takes no longer than `limit_ns`
 *  (0: as long as a meeting may), or SHERD_TIMEOUT. */
sherd_status sherdi_world_grow_within(sherd_world *world, int world_size, const char *rendezvous,
                                      int64_t limit_ns, sherd_world **out);

/** Lets the survivors of a world that has failed go on as the ranks of the elastic job, if `world`
 *  is that of its turns; turn.c. Ranks that had taken different worlds when one was lost would else
 *  go on apart from each other. Collective over `next`.
 *  Errors: E_STATE: others have gone on; E_PEER_LOST: a rank of `next` was lost. */
sherd_status sherdi_turn_claim(sherd_world *world, sherd_world *next);

#endif
