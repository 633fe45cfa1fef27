/* Remembers who touched which bytes, for hazard.c. Bytes are stored as cells: each buffer of a rank
 * is cut where accesses begin and end. A cell knows its last write, and the reads since then that
 * no later read has followed. Who is ordered after these is ordered after all earlier accesses.
 *
 * A clock says, for each thread of order (hazard.c), up to which number its operations are over. */
#ifndef SHERDI_ENGINE_PROOF_HAZARD_BYTES_H
#define SHERDI_ENGINE_PROOF_HAZARD_BYTES_H

#include "base/mem.h"

/* Who touched a cell; number 0: nobody. */
typedef struct sherdi_toucher {
    uint32_t number, thread;
    int      unit;
    uint8_t  kind, lane;
} sherdi_toucher;

static inline int sherdi_toucher_is_before(const sherdi_toucher *who, const uint32_t *clock)
{
    return clock[who->thread] >= who->number;
}

/* The readers of the cells of all buffers, in one pool. */
typedef struct sherdi_readers {
    sherdi_mem           *mem;
    struct sherdi_reader *at; /* [0] is not used */
    size_t                count, capacity;
    uint32_t              free; /* first entry that is free */
} sherdi_readers;

typedef struct sherdi_cells {
    struct sherdi_cell *at;
    size_t              count, capacity;
    size_t              limit; /* at this count, cells are merged */
} sherdi_cells;

typedef struct sherdi_touch {
    size_t          begin, end; /* at least one byte */
    int             is_write;
    sherdi_toucher  who;
    const uint32_t *clock;    /* the accesses before this access, and itself */
    const uint32_t *known[2]; /* by rank: what every later touch comes after */
} sherdi_touch;

/* The first bytes that somebody has touched whom the new touch does not come after. */
typedef struct sherdi_conflict {
    sherdi_toucher earlier; /* number 0: none */
    int            was_write;
    size_t         begin, end;
} sherdi_conflict;

/** Opens the cells of a buffer that nobody has touched. E_NOMEM. */
sherd_status sherdi_cells_open(sherdi_cells *cells, sherdi_readers *readers);
void         sherdi_cells_close(sherdi_cells *cells);
/** Checks a touch, and remembers it unless it is in conflict. E_NOMEM. */
sherd_status sherdi_cells_touch(sherdi_cells *cells, sherdi_readers *readers,
                                const sherdi_touch *touch, sherdi_conflict *out);

#endif
