/* What rests of a layout on a drive, while an engine moves. One segment at a time is in memory: what
 * was read of the old layout, and what is about to be written of the new one. holding.h finds the
 * values there. Transfers go to the tiers of the layout's store. */
#ifndef SHERDI_ENGINE_ELASTIC_STORED_H
#define SHERDI_ENGINE_ELASTIC_STORED_H

#include "engine/elastic/holding.h"

struct sherdi_tier;

typedef struct sherdi_stored sherdi_stored;

/** Returns whether state or parameters of such a run may rest on a drive; the same on all ranks. */
static inline int sherdi_move_is_stored(const sherdi_settings *settings)
{
    return settings->offload.state.space == SHERDI_SPACE_STORAGE ||
           settings->offload.params.space == SHERDI_SPACE_STORAGE;
}
/** Returns the bytes of the rooms that a segment of the plan takes at most. */
size_t sherdi_stored_room_bytes(const sherdi_plan *plan);

/** Makes rooms for the extents of a plan: `tiers` is by ring, and NULL where nothing is
 *  transferred. *out is NULL when nothing of the plan rests on a drive. E_NOMEM. */
sherd_status sherdi_stored_open(const sherdi_plan *plan, struct sherdi_tier *const *tiers,
                                sherdi_mem *mem, sherdi_stored **out);
/** Waits for what is under way, and frees the rooms. Accepts NULL. */
void sherdi_stored_close(sherdi_stored *stored);

/** Starts to read what is next from a segment on, into rooms that nobody reads any more. Accepts
 *  NULL. */
void sherdi_stored_ahead(sherdi_stored *stored, int segment);
/** Waits until a segment of the old layout is in memory. Call it for the segments in their order.
 *  E_IO. */
sherd_status sherdi_stored_read(sherdi_stored *stored, int segment);
/** Makes room for a segment of the new layout, with zeros in it. E_IO: an earlier one could not be
 *  written. */
sherd_status sherdi_stored_begin(sherdi_stored *stored, int segment);
/** Copies the parameters of a segment to where their values are stored with the state; what rests on
 *  a device is there when its lane has passed the call. */
void sherdi_stored_put_values(const sherdi_holding *to, int segment);
/** Starts to write what a segment completes: all its values are in memory. Accepts NULL. */
void sherdi_stored_write(sherdi_stored *stored, int segment);
/** Waits until everything is written. E_IO. */
sherd_status sherdi_stored_finish(sherdi_stored *stored);

/** Returns the memory of an extent of the state, and of a piece of the parameters, of the segment
 *  that is in memory. */
unsigned char *sherdi_stored_extent(const sherdi_stored *stored, size_t extent);
unsigned char *sherdi_stored_piece(const sherdi_stored *stored, size_t piece);
/** Returns the bytes that were read and written so far. */
uint64_t sherdi_stored_bytes(const sherdi_stored *stored);

#endif
