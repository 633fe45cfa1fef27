/* The store: where the engine's data rests between uses. It has the tiers of state, parameters and gradients: this file opens them
 * and changes generations. What comes from the tiers and goes back to them is in the program (program.h). */
#ifndef SHERDI_ENGINE_RUN_STORE_H
#define SHERDI_ENGINE_RUN_STORE_H

#include "engine/plan/program.h"
#include "engine/run/state_note.h"

#include "collectives/world.h"

typedef struct sherdi_link {
    uint64_t down_bytes, up_bytes; /* device to host, host to device */
} sherdi_link;

typedef struct sherdi_store {
    sherdi_ioq       *queue;                  /* NULL: nothing rests on NVMe */
    sherdi_tier      *state, *params, *grads; /* on a drive; NULL: nothing of that kind is */
    sherdi_link       link;
    sherdi_io_traffic reported; /* the queue's, when the last boundary was reported */
    sherdi_link       reported_link;
    size_t            pinned_bytes;
    unsigned char    *note; /* [SHERDI_STATE_NOTE_BYTES]: record and blobs of a generation */
    uint64_t          run;
    int               is_resumed;
    int               is_worth_keeping; /* the state file holds a generation */
    int               is_changed;       /* this engine has committed one */
    /* The generation that every rank knows all ranks to have; some ranks may have the next one already */
    uint64_t      agreed;
    sherdi_ending ending; /* of the run: its files are removed when all ranks agree */
} sherdi_store;

/* ---- store.c */

/** Opens the tiers, after the engine's memory was made. Collective: what one rank cannot open, no rank has. */
sherd_status sherdi_store_open(sherd_engine *engine);
/** Closes them, before the engine's memory is freed. */
void sherdi_store_close(sherd_engine *engine);

/** Changes the generation. SHERDI_OP_COMMIT: what was written becomes the live one, with `record`. SHERDI_OP_ABANDON: what was
 *  written is forgotten. SHERDI_OP_ROLLBACK: the generation before becomes the live one again, and its record comes to `record`.
 *  Does nothing on a tier without generations. */
sherd_status sherdi_store_generation(sherd_engine *engine, sherdi_op_kind kind,
                                     sherdi_state_record *record);

/** Records that the ranks have told each other that all have the live generation. Does nothing on a tier without generations. */
void sherdi_store_agreed(sherd_engine *engine);

/** Takes the blobs from the live generation of the state. Collective. Errors: E_IO (damaged), E_NOMEM. */
sherd_status sherdi_store_blobs(sherd_engine *engine);

/** Returns the bytes that a commit writes in addition for the blobs that are set. */
size_t sherdi_store_blob_bytes(const sherd_engine *engine);

/** Decides whether reads of state on NVMe are compared with their checksums from now on. */
void sherdi_store_verify(sherd_engine *engine, int is_on);

#endif
