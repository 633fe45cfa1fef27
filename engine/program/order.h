/* Works out what an operation has to wait for: every earlier operation on another lane (for one of
 * the drive, on the drive's lane too) that touched the bytes that it touches, where one of the two
 * writes. The accesses of operations that may not be over are remembered, each until a later one
 * covers it that followed it. The order does not depend on the kinds of the operations. */
#ifndef SHERDI_ENGINE_PROGRAM_ORDER_H
#define SHERDI_ENGINE_PROGRAM_ORDER_H

#include "engine/program/program.h"

/* Accesses that are remembered for one buffer or file. Of older ones, only the latest position on
 * each of their lanes is stored. */
#define SHERDI_ORDER_ACCESSES 64

/* An access that is remembered. Operations of a lane are numbered from 1 on; 0: none. */
typedef struct sherdi_remembered {
    size_t         begin, end;
    uint64_t       number;
    sherdi_lane_id lane;
    int            is_write;
} sherdi_remembered;

typedef struct sherdi_order_buffer {
    sherdi_remembered accesses[SHERDI_ORDER_ACCESSES];
    size_t            count;
    /* By lane: the last forgotten operation that read, or wrote; it counts as an access to all of
     * the buffer */
    uint64_t read_floor[SHERDI_LANES];
    uint64_t write_floor[SHERDI_LANES];
} sherdi_order_buffer;

typedef struct sherdi_order {
    sherdi_order_buffer buffers[SHERDI_BUFFERS_AND_FILES];
} sherdi_order;

/* The operations to wait for: by lane, the last one. Operations of the drive do not end in the
 * order in which they were submitted, so each is listed separately. */
#define SHERDI_ORDER_DRIVES 16
typedef struct sherdi_follows {
    uint64_t last[SHERDI_LANES];
    uint64_t drives[SHERDI_ORDER_DRIVES];
    size_t   num_drives;
    int      is_all_drives; /* 1: there are more than `drives` has room for; wait for all */
} sherdi_follows;

/** Returns SHERDI_LANE_DOWN or _UP of a copy that passes over the link between host and device. */
static inline sherdi_lane_id sherdi_copy_way(const sherdi_op *op)
{
    if (op->uses[SHERDI_USE_DST].where == SHERDI_BUFFER_HOST_SCALARS) {
        return SHERDI_LANE_DOWN;
    }
    return op->uses[SHERDI_USE_SRC].where == SHERDI_BUFFER_HOST_SCALARS ? SHERDI_LANE_UP : op->lane;
}
static inline int sherdi_lane_is_wire(sherdi_lane_id lane)
{
    return lane == SHERDI_LANE_WIRE || lane == SHERDI_LANE_GROUP;
}
/** Gives what `op` has to follow. Operations of the same lane are in order by themselves, except
 *  those of the drive. */
void sherdi_order_follows(const sherdi_order *order, const sherdi_op *op, sherdi_follows *out);
/** Records that `op` was enqueued on its lane as its `number`-th operation, after the operations
 *  that it follows. */
void sherdi_order_enter(sherdi_order *order, const sherdi_op *op, uint64_t number);
/** Records that operations are over, so nobody has to wait for them: on a lane that is not the
 *  drive, number `number` and those before it; on the drive, that one alone; with 0, all operations
 *  of the lane. */
void sherdi_order_forget(sherdi_order *order, sherdi_lane_id lane, uint64_t number);

#endif
