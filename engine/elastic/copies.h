/* Second copies of the state on another rank (sherd.redundancy "peer"). Rank r + 1 has a ghost of
 * rank r. At each update it gets that rank's reduced gradient slice, and it makes the same update of
 * its copy on a thread of its own, overlapping with the next forward pass: after all ranks have made
 * theirs, so that a rank that is lost in its update has left a copy from before, and all that the update
 * needs. */
#ifndef SHERDI_ENGINE_ELASTIC_COPIES_H
#define SHERDI_ENGINE_ELASTIC_COPIES_H

#include "engine/elastic/ghost.h"

typedef struct sherdi_copies sherdi_copies;

/** Hook lay_out: sizes the copy, and the room through which gradients go (room.h). */
sherd_status sherdi_copies_lay_out(sherdi_plan *plan, const sherdi_model *model);
/** Takes the values of the rank before this one anew. Collective. E_PEER_LOST, E_NOMEM. */
sherd_status sherdi_copies_take(sherd_engine *engine);
/** Hook measuring: takes the gradient of the rank before this one. Collective. */
sherd_status sherdi_copies_gradient(sherd_engine *engine);
/** All ranks have made the update whose gradient was taken: begins it here. */
void sherdi_copies_begin(sherd_engine *engine);
/** Waits for the update of the copy; closes it. */
void sherdi_copies_join(sherd_engine *engine);
void sherdi_copies_close(sherd_engine *engine);
/** Returns the ghost of a rank of the engine's world, where this rank has it; else NULL. */
sherdi_ghost *sherdi_copies_ghost(const sherd_engine *engine, int rank);
/** Gives the blobs of that rank. E_NOMEM. */
sherd_status sherdi_copies_blobs(const sherd_engine *engine, sherdi_blobs *out);
/** Adds the bytes that were moved when the copies were taken. */
void sherdi_copies_report(const sherd_engine *engine, sherd_move_report *report);
/** Gives the engine other copies (NULL: none), and returns those that it had: in a move those of the
 *  old world stay until the new ones are complete. */
sherdi_copies *sherdi_copies_set(sherd_engine *engine, sherdi_copies *copies);

#endif
