/* Where the engine's data rests between uses: the tiers of state, parameters and gradients. What
 * comes from them and goes back is in the program (program.h); here they are opened, and generations change. */
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
    sherdi_tier      *state, *params, *grads; /* on a drive; NULL: nothing of it is */
    sherdi_link       link;
    sherdi_io_traffic reported; /* of the queue, when the last boundary was reported */
    sherdi_link       reported_link;
    size_t            pinned_bytes;
    unsigned char    *note; /* [SHERDI_STATE_NOTE_BYTES]: record and blobs of a generation */
    uint64_t          run;
    int               is_resumed;
    int               is_worth_keeping; /* the state file holds a generation */
    int               is_changed;       /* ... that this engine committed */
    uint64_t
        agreed; /* the generation that all ranks know to have; one rank or another may have the next */
    sherdi_ending ending; /* of the run: its files go when all ranks agree */
} sherdi_store;

/* ---- store.c */

/** After the engine's memory. Collective: what one rank cannot open, none has. */
sherd_status sherdi_store_open(sherd_engine *engine);
/** Before the engine's memory goes. */
void sherdi_store_close(sherd_engine *engine);

/** SHERDI_OP_COMMIT: what was written counts from now on, with `record`. SHERDI_OP_ABANDON: it is forgotten.
 *  SHERDI_OP_ROLLBACK: the generation before counts again; its record comes to `record`. Nothing on a tier without. */
sherd_status sherdi_store_generation(sherd_engine *engine, sherdi_op_kind kind,
                                     sherdi_state_record *record);

/** The ranks have told each other that the live generation is there on all. Nothing on a tier without. */
void sherdi_store_agreed(sherd_engine *engine);

/** The blobs are those of the live generation of the state. Collective. E_IO (damaged), E_NOMEM. */
sherd_status sherdi_store_blobs(sherd_engine *engine);

/** What a commit writes more for the blobs that are set. */
size_t sherdi_store_blob_bytes(const sherd_engine *engine);

/** Whether reads of state on NVMe are held against their checksums from now on. */
void sherdi_store_verify(sherd_engine *engine, int is_on);

#endif
