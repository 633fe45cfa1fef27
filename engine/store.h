/* Where the engine's data rests between uses: the tiers of state, parameters and gradients, and the
 * pipelines through which they pass. The step, the gathers and the reductions see blocks here and not
 * files; on a device alone all of it is plain memory.
 *
 *   store.c   opens and closes; state: windows for filling, the pass of an update, commits
 *   fetch.c   parameters: up for a gather, back after an update
 *   spill.c   gradients: from the landing to where they rest, and back for the update */
#ifndef SHERDI_ENGINE_STORE_H
#define SHERDI_ENGINE_STORE_H

#include "engine/plan.h"
#include "engine/state_note.h"
#include "offload/pipeline.h"
#include "offload/window.h"
#include "offload/writer.h"

#include "collectives/world.h"

/* A slice of a gradient that was reduced and has not come to rest. */
typedef struct sherdi_landing {
    int           segment; /* -1: none */
    int           is_first;
    sherdi_ticket ticket;
} sherdi_landing;

/* What a step stood still for, and computed. */
typedef struct sherdi_store_times {
    int64_t read_ns, write_ns, param_ns;
} sherdi_store_times;

typedef struct sherdi_link {
    uint64_t down_bytes, up_bytes; /* device to host, host to device */
} sherdi_link;

typedef struct sherdi_store {
    sherdi_ioq        *queue; /* NULL: nothing rests on NVMe */
    sherdi_tier       *state[SHERDI_PLACES];
    sherdi_window      state_windows[SHERDI_PLACES];
    sherdi_tier       *params, *grads; /* on NVMe */
    sherdi_pipeline   *param_pipe;
    sherdi_window      param_window;
    sherdi_writer      grad_writer;
    uint32_t          *identity; /* 0, 1, 2, ...: as many as there are pieces */
    const uint32_t    *reading;  /* what the pipeline of parameters is given */
    size_t             reading_len;
    size_t             train_next, eval_next; /* where the search for a fetch begins in its pass */
    sherdi_landing     landings[2];
    int                landing_next;
    sherdi_link        link;
    sherdi_io_traffic  reported; /* of the queue, when the last boundary was reported */
    sherdi_link        reported_link;
    sherdi_store_times times; /* since the last boundary */
    size_t             pinned_bytes;
    uint64_t           run;
    int                is_resumed;
    int                is_worth_keeping; /* the state file holds a generation */
    int                is_changed;       /* ... that this engine committed */
    sherdi_ending      ending;           /* of the run: its files go when all ranks agree */
} sherdi_store;

/* ---- store.c */

/** After the engine's memory. Collective: what one rank cannot open, none has. */
sherd_status sherdi_store_open(sherd_engine *engine);
/** Before the engine's memory goes. */
void sherdi_store_close(sherd_engine *engine);

/** The state of a block, in a window that stays open until the next call for the same place. E_IO. */
sherd_status sherdi_store_look(sherd_engine *engine, const sherdi_block *block, int is_write,
                               float **state_out);
/** The extent of a block is complete: it is written while others are filled. */
void sherdi_store_put(sherd_engine *engine, const sherdi_block *block);
/** Every window is written back and closed. */
sherd_status sherdi_store_settle(sherd_engine *engine);

/** What was written is the state of `step` from now on; `scaler` is the one that follows it. */
sherd_status sherdi_store_commit(sherd_engine *engine, int64_t step, uint64_t fingerprint,
                                 const sherdi_scaler *scaler);

/** Whether reads of state on NVMe are held against their checksums from now on. */
void sherdi_store_verify(sherd_engine *engine, int is_on);

/* ---- fetch.c */

/** Brings this rank's slice of an offloaded segment to `dst` on the device. */
sherd_status sherdi_fetch_slice(sherd_engine *engine, const sherdi_segment *segment,
                                sherd_pass pass, unsigned char *dst);
/** Reads ahead from the beginning of the next training pass. */
void sherdi_fetch_rewind(sherd_engine *engine);
/** Ends reading ahead: the parameters are about to change. */
sherd_status sherdi_fetch_stop(sherd_engine *engine);
/* ---- spill.c */

/** A free slot for the reduction of a segment's slice, on the device. */
sherd_status sherdi_landing_open(sherd_engine *engine, const sherdi_segment *segment, int is_first,
                                 unsigned char **memory_out, sherdi_landing **landing_out);
/** Its reduction is on the way, with a ticket: starts the way from there where that needs no host. */
sherd_status sherdi_landing_leave(sherd_engine *engine, sherdi_landing *landing);
/** All slices come to rest. */
sherd_status sherdi_landings_drain(sherd_engine *engine);
/** The gradient of a segment with a landing is zero. */
sherd_status sherdi_spill_zero(sherd_engine *engine, const sherdi_segment *segment);
/** What was spilled is on the drive. E_IO. */
sherd_status sherdi_spill_settle(sherd_engine *engine);

#endif
