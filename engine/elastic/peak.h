/* The memory that a move takes. New memory of the host is taken from the system as it is written,
 * and old memory is given back segment by segment, so a rank holds about the larger layout and a
 * segment. Memory of a device, and what is locked for it, is there as a whole from the beginning to
 * the end of the move, in both layouts. With data on a drive all of both layouts is, and a segment of
 * each is in memory. */
#ifndef SHERDI_ENGINE_ELASTIC_PEAK_H
#define SHERDI_ENGINE_ELASTIC_PEAK_H

#include "engine/plan/plan.h"

/* Whether nothing in a buffer outlives a window. */
int sherdi_move_is_passing(sherdi_buffer_id id);
/* The most bytes that a rank holds of its plans in two layouts while it moves, in addition to the
 * rooms of the wire. */
typedef struct sherdi_move_peak {
    size_t host, device;
    size_t host_held; /* of these, of the old layout: held to the end of the move */
} sherdi_move_peak;

/** Returns it; NULL: the rank is not in that layout. */
sherdi_move_peak sherdi_move_peak_of(const sherdi_plan *old_plan, const sherdi_plan *new_plan);
/** Returns the bytes of a layout that a move gives back as it goes. */
size_t sherdi_move_given_back(const sherdi_plan *plan);
/** Takes what a layout has of a segment from the system at once, which is faster than page by page as
 *  it is written. What cannot be had is found missing then. */
void sherdi_move_take_segment(const sherdi_plan *plan, unsigned char *const *buffers, int segment);
/** Give back the passing buffers of a layout, and what it has of a segment. */
void sherdi_move_drop_passing(const sherdi_plan *plan, unsigned char *const *buffers);
void sherdi_move_drop_segment(const sherdi_plan *plan, unsigned char *const *buffers, int segment);

#endif
