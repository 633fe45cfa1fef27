/* What a rank leaves behind for the case that it is lost (sherd.redundancy). With "host" its values,
 * its gradients and this ledger lie in memory that the other ranks of the host have, too. A process
 * may end in the middle of an update, so an update is made in pieces: the old values of a piece are
 * saved in a ring before it is made, and the ledger says how far the rank has come. Whoever has the
 * memory can make the rest (lost.h), or, where the ranks make an update together, undo it (image.h).
 * Every engine counts its updates here; without "host" the ledger
 * is the rank's own, and has a piece for each block. */
#ifndef SHERDI_ENGINE_ELASTIC_LEDGER_H
#define SHERDI_ENGINE_ELASTIC_LEDGER_H

#include "engine/run/blobs.h"
#include "engine/run/engine_impl.h"

#include <stdatomic.h>

/* The choices of sherd.redundancy, in their order. */
typedef enum sherdi_redundancy {
    SHERDI_REDUNDANCY_NONE = 0,
    SHERDI_REDUNDANCY_HOST,
    SHERDI_REDUNDANCY_PEER,
} sherdi_redundancy;

/* Most elements of a piece: its values stay in the second-level cache while they are saved. */
#define SHERDI_PIECE_ELEMS ((size_t)32 << 10)

typedef struct sherdi_pieces {
    _Atomic uint64_t total;
    _Atomic uint64_t saved; /* whose old values were saved: at most one more than .. */
    _Atomic uint64_t done;  /* .. those that were made */
} sherdi_pieces;

typedef struct sherdi_ledger {
    _Atomic uint64_t version;   /* updates that this engine has begun */
    sherdi_pieces    pieces[2]; /* of the last update and of the one before, by parity */
    _Atomic uint32_t blobs;     /* which of the two copies of the small blobs is the valid one */
    uint64_t         blob_bytes[2][SHERDI_BLOB_KINDS];
    _Atomic uint64_t blob_changes; /* so often they were copied here */
} sherdi_ledger;

/* The progress of this engine in an update. */
typedef struct sherdi_noted {
    sherdi_ledger  own;          /* where no other rank sees it */
    size_t         walked;       /* pieces of the update that the walk has passed */
    unsigned char *skipped;      /* by unit: the last update has passed it by */
    uint64_t       blob_changes; /* of the blobs, when they were copied last */
} sherdi_noted;

static inline sherdi_pieces *sherdi_ledger_pieces(sherdi_ledger *ledger, uint64_t version)
{
    return &ledger->pieces[version % 2];
}

/** Returns whether the update that this ledger has begun last is complete. */
static inline int sherdi_ledger_is_complete(sherdi_ledger *ledger)
{
    sherdi_pieces *pieces = sherdi_ledger_pieces(ledger, ledger->version);

    return pieces->done == pieces->total;
}

/** Returns whether nothing is kept of a rank that is lost. */
static inline int sherdi_keeps_nothing(const sherdi_settings *settings)
{
    return settings->redundancy == SHERDI_REDUNDANCY_NONE;
}

/** Hook lay_out: marks what other ranks have to see, and sizes what is added. */
sherd_status sherdi_ledger_lay_out(sherdi_plan *plan, const sherdi_model *model);
/** Hook check: refuses what cannot be kept. */
sherd_status sherdi_ledger_check(sherd_engine *engine);
/** Makes and frees what the engine notes. E_NOMEM. */
sherd_status sherdi_ledger_open(sherd_engine *engine);
void         sherdi_ledger_close(sherd_engine *engine);

/** Returns the ledger of the engine. */
sherdi_ledger *sherdi_ledger_of(sherd_engine *engine);
/** Notes which units the update that comes passes by. */
void sherdi_ledger_skips(sherd_engine *engine);
/** Begins an update: all ranks make it. Hook measuring, after all others. */
sherd_status sherdi_ledger_begin(sherd_engine *engine);
/** Says that the engine is at an update that is complete. */
void sherdi_ledger_set(sherd_engine *engine, uint64_t version);
/** Undoes the update that the engine has begun last: its own, or with a ghost that of a lost rank.
 *  `has_own`: as sherdi_image_restore has it. E_DEVICE. */
sherd_status sherdi_ledger_undo(sherd_engine *engine, int has_own);
/** Returns the update of which all is there: the last, or if that is torn, the one before. */
uint64_t sherdi_ledger_whole(sherdi_ledger *ledger);
/** Copies small blobs to where others find them. */
void sherdi_ledger_blobs_put(sherd_engine *engine, const sherdi_blobs *blobs);
/** Gives those that a rank has left in its memory, the buffer of the redundancy. E_NOMEM. */
sherd_status sherdi_ledger_blobs_get(const unsigned char *memory, sherdi_blobs *out);
/** Copies the ledger's blobs from the memory of a rank to another place of the same form. */
void sherdi_ledger_blobs_copy(const unsigned char *memory, unsigned char *copy);
/** Returns whether what acts for a lost rank needs memory besides that rank's own: a ghost then has a
 *  plan of its own, and gradient slices go through the room. */
static inline int sherdi_keeps_apart(const sherdi_plan *plan)
{
    return plan->settings.redundancy == SHERDI_REDUNDANCY_PEER ||
           (plan->settings.redundancy == SHERDI_REDUNDANCY_HOST && plan->machine.has_device);
}

/** Returns sherdi_plan_buffer.is_shared of host memory that the other ranks of the host have. */
static inline int sherdi_ledger_sharing(const sherdi_plan *plan)
{
    return plan->machine.has_device ? 2 : 1;
}

/** Returns the bytes of ledger, blobs, and ring or before-image in the buffer of the redundancy;
 *  behind them lies the room of gradients (room.h). */
size_t sherdi_ledger_bytes(const sherdi_plan *plan);
/** Returns the memory of the redundancy of a rank, and the bytes of its head: ledger and blobs. */
const unsigned char *sherdi_ledger_memory_of(const sherd_engine *engine, int rank);
size_t               sherdi_ledger_head_bytes(void);

#endif
