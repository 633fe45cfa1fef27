/* Moves from a world that has lost ranks: which update the state is at, and what the lost ranks have
 * left. A survivor that has the memory of a lost rank acts for it: it makes the rest of its update,
 * and gives its values in the move. */
#ifndef SHERDI_ENGINE_ELASTIC_LOST_H
#define SHERDI_ENGINE_ELASTIC_LOST_H

#include "engine/elastic/ledger.h"
#include "engine/elastic/move.h"

/** Hook window_ending: notes where a step begins. Hooks stepped and unit_acquiring: nothing of it is
 *  under way any more. */
sherd_status sherdi_step_note(sherd_engine *engine);
void         sherdi_step_forget(sherd_engine *engine);

/** Ends everything that is under way on this rank, in a world that has failed, and finds the state
 *  that is left: m->hello.at. Local. E_STATE: there is none. */
sherd_status sherdi_lost_rest(sherdi_move *m);
/** Chooses the update at which training goes on, from the messages of the survivors: sets m->hello
 *  and m->gives. Every rank of the new world calls it. E_STATE: they have no update in common, and no
 *  replicas. */
sherd_status sherdi_lost_choose(sherdi_move *m, const sherdi_messages *messages);
/** Returns the new rank of the one that acts for a lost rank of the old world. */
int sherdi_lost_giver(const sherdi_move *m, int old_rank);
/** Returns whether other replicas have all that the ranks had that give nothing. */
int sherdi_lost_replicas_keep(const sherdi_move *m);
/** Returns E_STATE: the state is gone, for a reason that names the ranks; says what is left. */
sherd_status sherdi_lost_gone(const sherd_engine *engine, const char *why);
/** Opens what the lost ranks have left, where this rank acts for them, and brings it to the update
 *  of the others. Local; every rank of the new world calls it. E_STATE: it is gone. E_NOMEM. */
sherd_status sherdi_lost_open(sherdi_move *m);
void         sherdi_lost_close(sherdi_move *m);
/** Gives the holdings and blobs of the lost ranks for which this rank acts; NULL: none. */
const sherdi_holding *sherdi_lost_holding(const sherdi_move *m, int old_rank);
const sherdi_blobs   *sherdi_lost_blobs(const sherdi_move *m, int old_rank);

#endif
