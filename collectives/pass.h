/* Memory of each rank of a world that the others read: for data that goes from one rank to another
 * one. What goes where is the caller's. */
#ifndef SHERDI_COLLECTIVES_PASS_H
#define SHERDI_COLLECTIVES_PASS_H

#include "collectives/world.h"

typedef struct sherdi_pass {
    sherd_world    *world;
    unsigned char  *own; /* this rank's room; NULL: it is not open */
    size_t          room_bytes;
    sherdi_backend *pins; /* the lane of a device for which the own room is locked; NULL: none */
} sherdi_pass;

/** Returns E_NOTSUP unless the ranks of a world can read each other's rooms: threads, and processes
 *  of one host. */
sherd_status sherdi_pass_check(const sherd_world *world, const char *call);
/** Makes a room of `room_bytes` bytes on every rank. Collective. E_NOMEM. */
sherd_status sherdi_pass_open(sherdi_pass *pass, sherd_world *world, size_t room_bytes);
void         sherdi_pass_close(sherdi_pass *pass);
/** Locks the own room for copies of a lane's device, until the pass is closed; does nothing on the
 *  CPU. The lane must live until then. A lane of another rank has no business in the room: it may
 *  not be locked for it. E_NOMEM, E_DEVICE. */
sherd_status sherdi_pass_pin(sherdi_pass *pass, sherdi_backend *lane);
/** Returns the room of a rank. */
const unsigned char *sherdi_pass_room(const sherdi_pass *pass, int rank);
/** Counts bytes that the caller has moved otherwise as traffic of the world. */
void sherdi_pass_count(sherd_world *world, uint64_t sent_bytes, uint64_t got_bytes);
/** Waits for the work of a lane (NULL: nothing); a device that has failed fails the world. */
sherd_status sherdi_pass_settle(const sherdi_pass *pass, const sherdi_backend *lane);
/** Meets: what all ranks have written to their rooms before can be read after it. The arguments are
 *  counted as traffic. Collective. E_PEER_LOST. */
sherd_status sherdi_pass_meet(const sherdi_pass *pass, uint64_t sent_bytes, uint64_t got_bytes);

#endif
