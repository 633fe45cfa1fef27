/* What an operation has to wait for: all that touched the bytes that it touches, where one of the two writes, and
 * is on another lane. The accesses that may not be over are remembered, each until a later one covers it, which
 * followed it. Nothing of that depends on what the operations are. */
#ifndef SHERDI_ENGINE_PLAN_ORDER_H
#define SHERDI_ENGINE_PLAN_ORDER_H

#include "engine/plan/program.h"

/* Accesses of one buffer or file that are remembered; of those before, only how far their lanes had come. */
#define SHERDI_ORDER_ACCESSES 64

/* Operations of a lane are numbered from 1 on; 0: none. */
typedef struct sherdi_remembered {
    size_t         begin, end;
    uint64_t       number;
    sherdi_lane_id lane;
    int            is_write;
} sherdi_remembered;

typedef struct sherdi_order_buffer {
    sherdi_remembered accesses[SHERDI_ORDER_ACCESSES];
    size_t            count;
    uint64_t read_floor[SHERDI_LANES]; /* read, wrote all of the buffer, as far as is known */
    uint64_t write_floor[SHERDI_LANES];
} sherdi_order_buffer;

typedef struct sherdi_order {
    sherdi_order_buffer buffers[SHERDI_BUFFERS_AND_FILES];
} sherdi_order;

/* By lane: the last operation to be waited for. The drive's do not end in their order: each by itself. */
#define SHERDI_ORDER_DRIVES 16
typedef struct sherdi_follows {
    uint64_t last[SHERDI_LANES];
    uint64_t drives[SHERDI_ORDER_DRIVES];
    size_t   num_drives;
    int      is_all_drives; /* more than there is room for */
} sherdi_follows;

/** What `op` has to follow. Operations of the same lane are in order by themselves, but for the drive's. */
void sherdi_order_follows(const sherdi_order *order, const sherdi_op *op, sherdi_follows *out);
/** `op` has been given to its lane, as its `number`-th, behind what it follows. */
void sherdi_order_enter(sherdi_order *order, const sherdi_op *op, uint64_t number);
/** The operation of that number, and those before it on a lane that is not the drive, or with 0 all of the lane, are
 *  over: nobody has to wait for them. */
void sherdi_order_forget(sherdi_order *order, sherdi_lane_id lane, uint64_t number);

#endif
