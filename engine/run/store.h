/* The store: where the engine's data rests between uses. It has the tiers of state, parameters and
 * gradients. This file opens them and changes generations of the state; which extents are read and
 * written, and when, the program decides (program.h). */
#ifndef SHERDI_ENGINE_RUN_STORE_H
#define SHERDI_ENGINE_RUN_STORE_H

#include "engine/program/program.h"
#include "engine/run/drive.h"
#include "engine/run/state_note.h"

#include "collectives/world.h"

typedef struct sherdi_link {
    uint64_t down_bytes, up_bytes; /* device to host, host to device */
} sherdi_link;

/* What a dry engine has in place of state on a drive. */
typedef struct sherdi_dry_state {
    uint64_t            live;
    int                 has_previous;
    sherdi_state_record record, previous;
} sherdi_dry_state;

typedef struct sherdi_store {
    sherdi_ioq       *queue;               /* NULL: nothing rests on NVMe */
    sherdi_tier      *tiers[SHERDI_RINGS]; /* NULL: no such data rests on storage */
    sherdi_state     *state;               /* whose extents tiers has; NULL: without generations */
    sherdi_link       links[SHERDI_USERS];
    sherdi_io_traffic taken[SHERDI_IO_ACCOUNTS]; /* the queue's traffic that reports have */
    sherdi_link       reported_link;
    /* What updates beside the trainer's calls had moved when the last of them was joined */
    sherdi_link    joined_link;
    size_t         pinned_bytes;
    unsigned char *note; /* [SHERDI_STATE_NOTE_BYTES]: record and blobs of a generation */
    size_t         note_bytes;
    /* of the trainer's thread: the step that the drive had before an update that is under way */
    int64_t        stored_step;
    sherdi_outcome note_failure; /* they have no room there */
    uint64_t       run;
    int            is_resumed;
    int            is_worth_keeping; /* the state's file holds a generation */
    int            is_changed;       /* this engine has committed a generation */
    /* The generation of which every rank knows that all ranks have it; some may have the next one
     * already */
    uint64_t         agreed;
    sherdi_dry_state dry;
    sherdi_ending    ending; /* of the run: its files are removed when all ranks agree */
} sherdi_store;

/* ---- store.c */

/** Opens the tiers; call it after the engine's memory was made. Collective: if one rank cannot open
 *  its tiers, all ranks fail. */
sherd_status sherdi_store_open(sherd_engine *engine);
/** Closes them, before the engine's memory is freed. */
void sherdi_store_close(sherd_engine *engine);

/** Notes the record and the blobs, as they are now, for the next commit, which returns a failure of
 *  this. */
void sherdi_store_note(sherd_engine *engine, const sherdi_state_record *record);
/** Changes the generation of the state. SHERDI_OP_COMMIT makes what was written the live
 *  generation, with `record` and the blobs that were noted. SHERDI_OP_ABANDON forgets what was
 *  written. SHERDI_OP_ROLLBACK makes the generation before the live one again, and gives its record
 *  in `record`. Does nothing on state without generations. */
sherd_status sherdi_store_generation(sherd_engine *engine, sherdi_op_kind kind,
                                     sherdi_state_record *record);

/** Returns the number of the live generation; 0: there is none yet, or the state keeps none. */
uint64_t sherdi_store_live(const sherd_engine *engine);
/** Gives the record of the live generation, and returns whether there is a generation to roll back
 *  to. */
void sherdi_store_record(const sherd_engine *engine, sherdi_state_record *out);
int  sherdi_store_has_previous(const sherd_engine *engine);
/** Records that all ranks now know that every rank has the live generation. Does nothing on state
 *  without generations. */
void sherdi_store_agreed(sherd_engine *engine);

/** Replaces the blobs by those of the live generation of the state. Collective. Errors: E_IO
 *  (damaged), E_NOMEM. */
sherd_status sherdi_store_blobs(sherd_engine *engine);

/** Returns the bytes that each commit writes in addition because of the blobs that are set. */
size_t sherdi_store_blob_bytes(const sherd_engine *engine);

/** Sets whether reads of state on NVMe are compared with their checksums from now on. */
void sherdi_store_verify(sherd_engine *engine, int is_on);

#endif
