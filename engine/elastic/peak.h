/* The memory that a move takes. New memory is taken from the system as it is written, and old
 * memory is given back segment by segment, so a rank holds about the larger layout and a segment.
 * With data on a drive both layouts are whole until the end, and a segment of each is in memory. */
#ifndef SHERDI_ENGINE_ELASTIC_PEAK_H
#define SHERDI_ENGINE_ELASTIC_PEAK_H

#include "engine/plan/plan.h"

/* Whether nothing in a buffer outlives a window. */
int sherdi_move_is_passing(sherdi_buffer_id id);
/** Returns the most bytes that a rank holds of its plans in two layouts while it moves, in addition
 *  to the rooms of the wire; NULL: it is not in that layout. */
size_t sherdi_move_peak(const sherdi_plan *old_plan, const sherdi_plan *new_plan);
/** Give back the passing buffers of a layout, and what it has of a segment. */
void sherdi_move_drop_passing(const sherdi_plan *plan, unsigned char *const *buffers);
void sherdi_move_drop_segment(const sherdi_plan *plan, unsigned char *const *buffers, int segment);

#endif
