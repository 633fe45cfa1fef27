/* The data of a move on their way: ranges of a list (ranges.h) go from memory to memory, through
 * rooms that the ranks read (collectives/pass.h). All ranks walk the same list, so none has to tell
 * another one what it sends. */
#ifndef SHERDI_ENGINE_ELASTIC_WIRE_H
#define SHERDI_ENGINE_ELASTIC_WIRE_H

#include "collectives/pass.h"
#include "engine/elastic/holding.h"
#include "engine/elastic/ranges.h"

/* A portion that lies in a sender's room. */
typedef struct sherdi_move_portion {
    size_t param, first, count, offset_bytes;
    int    part, from; /* `from`: rank of the wire's world */
} sherdi_move_portion;

/* Most portions of all ranks between two meetings. */
#define SHERDI_MOVE_PORTIONS 1024

typedef struct sherdi_move_wire {
    const sherdi_move_plans *plans;
    sherd_world             *world; /* all ranks of both layouts that are there */
    /* by rank of the old layout: what this rank gives of it; plan NULL: nothing */
    const sherdi_holding *from;
    sherdi_holding        to; /* of this rank; plan NULL: it is not in the new layout */
    /* by rank of a layout: which rank of `world` gives what it held, and which it is */
    const int *old_at, *new_at;
    /* what is trained is made anew from the state, and the state has the values that are stored with
     * it (SHERDI_HOLDING_VALUES) */
    int is_from_state;
    /* of this rank: copies what rests on its device; NULL: it has none */
    sherdi_backend      *lane;
    unsigned char       *stage; /* locked memory that the lane reads; NULL: there is no lane */
    size_t               staged_bytes;
    sherdi_pass          pass;
    size_t               slot_bytes; /* a room has two slots, which take turns */
    int                  slot;
    size_t              *filled;   /* by rank of `world`: bytes in its slot */
    sherdi_move_portion *all;      /* those in the slots of all ranks */
    sherdi_move_portion *portions; /* those that this rank takes at the next meeting */
    size_t               num_taken, num_all;
    uint64_t             sent_bytes, got_bytes; /* of this rank since the last meeting */
    /* results: of all ranks, and of this one */
    uint64_t moved_bytes, kept_bytes, own_sent_bytes, own_got_bytes;
} sherdi_move_wire;

/** Opens a wire whose members up to `lane` are set. Collective over `world`; every rank comes with
 *  its status so far, and all get the same one. E_NOMEM, E_DEVICE. */
sherd_status sherdi_move_wire_open(sherdi_move_wire *wire, sherdi_mem *mem, sherd_status here);
void         sherdi_move_wire_close(sherdi_move_wire *wire);
/** Moves a range of `wire`, a sherdi_move_wire: as a part of _segment. */
sherd_status sherdi_move_wire_range(void *wire, const sherdi_move_range *range);
/** Moves a segment. Collective. Afterwards this rank's memory of it in the old layout is not read
 *  any more, but for what a device's lane has still to copy; what it receives may come with a later
 *  call. Allocates nothing. E_PEER_LOST, E_DEVICE. */
sherd_status sherdi_move_wire_segment(sherdi_move_wire *wire, int segment);
/** Brings what is still under way, and waits for the lane. Collective. E_PEER_LOST, E_DEVICE. */
sherd_status sherdi_move_wire_finish(sherdi_move_wire *wire);

#endif
