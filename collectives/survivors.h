/* The survivors of a world that has failed. They agree on who is there, and make a world of those. */
#ifndef SHERDI_COLLECTIVES_SURVIVORS_H
#define SHERDI_COLLECTIVES_SURVIVORS_H

#include "collectives/world_impl.h"

/** Returns whether the ranks of a world that has failed can go on together: processes of one host
 *  over shm. */
int sherdi_survivors_can_meet(const sherd_world *world);
/** Makes the world of the ranks that stay: those that come here with `stays`, in the order of their
 *  ranks. Every rank of the failed world that is alive calls it. A rank without `stays` gets no
 *  world, and waits for nobody.
 *
 *  Blocking: until each rank has come, has died, or has left the world; a rank that does none of
 *  these is waited for as long as a call of the world waits, and then the others go on without it.
 *  Errors    E_PEER_LOST: the others went on without this rank; or survivors died again and again
 */
sherd_status sherdi_survivors_meet(sherd_world *world, int stays, sherd_world **out);

#endif
