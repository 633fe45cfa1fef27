/* Who touched bytes, for hazard.c. Bytes are kept as cells: a buffer of a rank is cut where accesses begin and end, and a
 * cell knows its last write and the reads since then that no later read has followed. Whoever is ordered behind these is
 * ordered behind all before.
 *
 * A clock says of each thread of order up to which number its operations are over. */
#ifndef SHERDI_ENGINE_PLAN_HAZARD_BYTES_H
#define SHERDI_ENGINE_PLAN_HAZARD_BYTES_H

#include "base/mem.h"

/* Number 0: nobody. */
typedef struct sherdi_toucher {
    uint32_t number, thread;
    int      unit;
    uint8_t  kind, lane;
} sherdi_toucher;

static inline int sherdi_toucher_is_before(const sherdi_toucher *who, const uint32_t *clock)
{
    return clock[who->thread] >= who->number;
}

/* Of all buffers. */
typedef struct sherdi_readers {
    sherdi_mem           *mem;
    struct sherdi_reader *at; /* [0] is none */
    size_t                count, capacity;
    uint32_t              free; /* first of those that are not used */
} sherdi_readers;

typedef struct sherdi_cells {
    struct sherdi_cell *at;
    size_t              count, capacity;
    size_t              limit; /* of the count, until some are put together */
} sherdi_cells;

typedef struct sherdi_touch {
    size_t          begin, end; /* at least a byte */
    int             is_write;
    sherdi_toucher  who;
    const uint32_t *clock;    /* what it is behind, itself included */
    const uint32_t *known[2]; /* what all to come are behind, on either rank */
} sherdi_touch;

/* The first bytes with somebody whom a touch is not behind. */
typedef struct sherdi_conflict {
    sherdi_toucher earlier; /* number 0: none */
    int            was_write;
    size_t         begin, end;
} sherdi_conflict;

/** Of a buffer that nobody has touched. E_NOMEM. */
sherd_status sherdi_cells_open(sherdi_cells *cells, sherdi_readers *readers);
void         sherdi_cells_close(sherdi_cells *cells);
/** A touch, which is remembered unless it is in conflict. E_NOMEM. */
sherd_status sherdi_cells_touch(sherdi_cells *cells, sherdi_readers *readers,
                                const sherdi_touch *touch, sherdi_conflict *out);

#endif
