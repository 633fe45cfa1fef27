/* What makes a larger world of a world (resize.c), for sherd_world_grow and the turns of an elastic
 * job. */
#ifndef SHERDI_COLLECTIVES_RESIZE_H
#define SHERDI_COLLECTIVES_RESIZE_H

#include "sherd.h"

/** Does what sherd_world_grow does, without its checks. The meeting takes no longer than `limit_ns`
 *  (0: as long as a meeting may), or SHERD_TIMEOUT. */
sherd_status sherdi_world_grow_within(sherd_world *world, int world_size, const char *rendezvous,
                                      int64_t limit_ns, sherd_world **out);

#endif
