/* A ghost is an engine for another rank of the world: its own rank's, but with the plan and the
 * memory of the other one. It makes that rank's updates with the functions that every update has,
 * and with this rank's coefficients, which are the same on all ranks. */
#ifndef SHERDI_ENGINE_ELASTIC_GHOST_H
#define SHERDI_ENGINE_ELASTIC_GHOST_H

#include "engine/elastic/move.h"

struct sherdi_ghost {
    sherd_engine         *engine; /* NULL: none */
    struct sherdi_elastic elastic;
    sherdi_holding        holding;
    sherdi_blobs          blobs;
    unsigned char        *own[SHERDI_BUFFERS]; /* memory that is neither rank's */
};

/** Makes the plan of a ghost with memory of its own, for a plan of the same world: of stage 3,
 *  without a device, which is the least that a rank's state takes. Slices, types and encodings are the
 *  same, so an update has the same bits, wherever the rank itself makes it. E_NOMEM. */
sherd_status sherdi_ghost_plan(const sherdi_plan *like, const sherdi_model *model, int rank,
                               sherdi_mem *mem, sherdi_plan **out);
/** Hook check: refuses an engine for which that would not be so. E_NOTSUP. */
sherd_status sherdi_ghost_check(sherd_engine *engine);
/** Opens a ghost of `rank` for the engine `of`, of the layout of its world; in the memory of that
 *  rank, which all ranks of the host have. E_NOMEM. */
sherd_status sherdi_ghost_open_shared(sherdi_ghost *ghost, sherd_engine *of, int rank);
/** Opens a ghost with a plan of its own, which is taken, and its buffers one after the other at
 *  `memory`. */
sherd_status sherdi_ghost_open_own(sherdi_ghost *ghost, sherd_engine *of, int rank,
                                   sherdi_plan *plan, unsigned char *memory);
void         sherdi_ghost_close(sherdi_ghost *ghost);
/** Gives the ghost the coefficients of the engine's last update, and which units it has used. */
void sherdi_ghost_coeffs(sherdi_ghost *ghost, const sherd_engine *of);
/** Brings the ghost to an update: it is there, in the middle of it, or at the one before. *was: how
 *  it was found. E_STATE. */
sherd_status sherdi_ghost_roll(sherdi_ghost *ghost, uint64_t version, const char **was);

/* The buffers of a ghost that sherdi_ghost_open_own lays out. */
static inline int sherdi_ghost_has(int buffer)
{
    switch (buffer) {
    case SHERDI_BUFFER_PARAMS:
    case SHERDI_BUFFER_GRADS:
    case SHERDI_BUFFER_STATE:
    case SHERDI_BUFFER_STAGING:
    case SHERDI_BUFFER_SCALARS:
    case SHERDI_BUFFER_HOST_PARAMS:
    case SHERDI_BUFFER_HOST_GRADS:
    case SHERDI_BUFFER_HOST_STATE:
    case SHERDI_BUFFER_BOUNCE:
        return 1;
    default:
        return 0;
    }
}

#endif
