/* Moves from a world that has lost ranks, where all state rests on a drive in generations. Survivors
 * and lost ranks differ by one generation at most: the smallest that all have is what goes on, so a
 * step is made again at most once. Parameters are made anew from the state. Survivors give the files
 * of lost ranks (remains.h); nothing of the old files changes. */
#ifndef SHERDI_ENGINE_ELASTIC_GENERATION_H
#define SHERDI_ENGINE_ELASTIC_GENERATION_H

#include "engine/elastic/move.h"

/** Ends everything that is under way on this rank, and drops what is not committed: sets is_aimed.
 *  Local. E_IO. */
sherd_status sherdi_generation_rest(sherdi_move *m);
/** Opens the files of lost ranks for which this rank acts, chooses the generation, aims all files at
 *  it, and takes counters and blobs from its notes. Collective over the new world, and a failure is
 *  one of all ranks. E_STATE: the state is gone. E_IO, E_NOMEM, E_PEER_LOST. */
sherd_status sherdi_generation_find(sherdi_move *m);
/** Gives what this rank has of a lost rank, and the blobs of an old rank; NULL: nothing. */
const sherdi_remains *sherdi_generation_remains(const sherdi_move *m, int old_rank);
const sherdi_blobs   *sherdi_generation_blobs(const sherdi_move *m, int old_rank);
/** Returns the sum of the fingerprints of what this rank gives: the notes have them. */
uint64_t sherdi_generation_fingerprint(const sherdi_move *m);
/** Ends it; `is_kept` 0: the files of lost ranks are removed. */
void sherdi_generation_close(sherdi_move *m, int is_kept);

#endif
