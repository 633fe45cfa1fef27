/* Where the ranges of a move lie in the memory of a rank: the bytes of a parameter, or of a part of
 * its state, in portions without a gap. */
#ifndef SHERDI_ENGINE_ELASTIC_HOLDING_H
#define SHERDI_ENGINE_ELASTIC_HOLDING_H

#include "engine/run/engine_impl.h"

/* A part of the values: the parameter itself, or a part of the state. */
#define SHERDI_HOLDING_PARAM (-1)
/* The values of a parameter that are stored with its state (sherdi_block_keeps_values). */
#define SHERDI_HOLDING_VALUES (-2)

/* The memory of a rank in one layout. */
typedef struct sherdi_holding {
    const sherdi_plan    *plan;
    const sherdi_model   *model;
    unsigned char *const *buffers; /* by sherdi_buffer_id */
    struct sherdi_stored *stored;  /* what of it rests on a drive (stored.h); NULL: nothing */
    /* copies what rests on a device; NULL: all of it is host memory, which is copied at once */
    const sherdi_backend *lane;
} sherdi_holding;

/** Returns the bytes of `elems` elements, in whole chunks. */
size_t sherdi_holding_bytes(const sherdi_plan *plan, size_t param, int part, size_t elems);
/** Returns the memory of elements [first, first + *count) of a parameter, which this rank holds;
 *  *count becomes how many of them follow each other there, in whole chunks. What rests on a drive
 *  must be in memory. NULL: no values are stored with this state. */
unsigned char *sherdi_holding_of(const sherdi_holding *held, size_t param, int part, size_t first,
                                 size_t *count);
/** Returns whether any of the elements rest on a device. */
int sherdi_holding_is_apart(const sherdi_holding *held, size_t param, int part, size_t first,
                            size_t count);
/** Copies elements of a part: from one layout to the other, to host memory, and from it. What rests
 *  on a device is there, and its memory free again, when the lane has passed the call. */
void sherdi_holding_keep(const sherdi_holding *from, const sherdi_holding *to, size_t param,
                         int part, size_t first, size_t count);
void sherdi_holding_give(const sherdi_holding *from, size_t param, int part, size_t first,
                         size_t count, unsigned char *memory);
void sherdi_holding_take(const sherdi_holding *to, size_t param, int part, size_t first,
                         size_t count, const unsigned char *memory);

#endif
