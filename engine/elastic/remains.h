/* The files of a rank that was lost: its process has ended, and another rank of its host gives what
 * they hold. Nothing of them changes, whichever generation is read. */
#ifndef SHERDI_ENGINE_ELASTIC_REMAINS_H
#define SHERDI_ENGINE_ELASTIC_REMAINS_H

#include "engine/run/blobs.h"
#include "engine/run/store.h"

typedef struct sherdi_remains {
    sherdi_plan   *plan; /* of that rank, in the layout that it had */
    sherdi_state  *state;
    sherdi_tier   *tiers[SHERDI_RINGS]; /* for sherdi_stored_open */
    unsigned char *note;                /* [SHERDI_STATE_NOTE_BYTES] */
    size_t         note_bytes;
} sherdi_remains;

/** Opens the state of rank `rank` of `world_size` ranks that made run `run`; `batch` and `machine`
 *  are those of the layout, and `queue` must outlive it. Local. E_STATE: the state is gone, as the
 *  message says: it does not rest on a drive alone, its files are not there, or a process has them.
 *  E_IO, E_NOMEM. */
sherd_status sherdi_remains_open(sherd_engine *engine, sherdi_ioq *queue, uint64_t run, int rank,
                                 int world_size, const sherdi_batch_settings *batch,
                                 const sherdi_machine *machine, sherdi_remains *out);
/** Frozen parameters that are in slices are in no file. E_STATE: that rank had some. */
sherd_status sherdi_remains_check_frozen(const sherdi_remains *remains, const sherdi_model *model);
/** Closes it; `is_kept` 0: its files are removed. Accepts zeros. */
void sherdi_remains_close(sherdi_remains *remains, int is_kept);
/** Returns the number of the newest generation. Ranks differ by one at most: all give the smallest of
 *  their numbers. */
static inline uint64_t sherdi_remains_generation(const sherdi_remains *remains)
{
    return sherdi_state_generation(remains->state);
}
/** Lets reads return a generation, the newest or the one before it, and reads its note: *out is its
 *  record. E_STATE. */
sherd_status sherdi_remains_aim(sherdi_remains *remains, uint64_t generation,
                                sherdi_state_record *out);
/** Reads the blobs of the run, and those of the rank, into lists; NULL: not those. E_IO, E_NOMEM. */
sherd_status sherdi_remains_blobs(const sherdi_remains *remains, sherdi_blobs *of_run,
                                  sherdi_blobs *of_rank);

#endif
