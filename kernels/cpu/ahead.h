/* Prefetching: how far ahead of their loads the loops of updates, reductions and copies fill the
 * caches. On some machines prefetching gains a tenth and more, on others it costs as much. So the
 * first large updates of a backend try both ways, and the backend keeps the faster one. Updates of
 * an encoded state are tried by themselves, since their loads lie further apart. No result depends
 * on this. Vectors alone prefetch (range_ahead_begin and the like). */
#ifndef SHERDI_KERNELS_CPU_AHEAD_H
#define SHERDI_KERNELS_CPU_AHEAD_H

#include "kernels/cpu/ranges.h"

#include <stdatomic.h>

/* The kinds of updates: `is_encoded` of range_ahead_begin. */
typedef enum sherdi_ahead_kind {
    SHERDI_AHEAD_PLAIN,
    SHERDI_AHEAD_ENCODED,
    SHERDI_AHEAD_KINDS,
} sherdi_ahead_kind;

typedef struct sherdi_ahead_choice {
    _Atomic unsigned trials;      /* begun */
    _Atomic int64_t  best_fs[2];  /* femtoseconds per byte, without and with; 0: not tried */
    _Atomic unsigned trials_done; /* the last one makes the choice */
    _Atomic int      is_without;  /* the choice: 1: no prefetching */
} sherdi_ahead_choice;

/* Lies behind the handle of a lane (own_bytes). */
typedef struct sherdi_ahead {
    sherdi_ahead_choice choices[SHERDI_AHEAD_KINDS];
} sherdi_ahead;

typedef struct sherdi_ahead_trial {
    size_t            ahead_bytes; /* the distance that this call uses */
    size_t            bytes;       /* what this call moves; 0: it is no trial */
    sherdi_ahead_kind kind;
    int               way;
    int64_t           start_ns;
} sherdi_ahead_trial;

/** Returns the distance for plain loops; 0: no prefetching. */
size_t sherdi_ahead_bytes(const sherdi_backend *backend);

/** Begin and end an update that moves `bytes` bytes, on any thread. The update uses ahead_bytes of
 *  what begin returns. */
sherdi_ahead_trial sherdi_ahead_begin(const sherdi_backend *backend, int is_encoded, size_t bytes);
void               sherdi_ahead_end(const sherdi_backend *backend, const sherdi_ahead_trial *trial);

#endif
