/* How far ahead of their loads loops that update in place, reductions and copies fill the caches. Machines differ by a
 * tenth and more in either direction, so the first large updates of a backend try both ways in turn, and the faster one
 * stays; those of an encoded state by themselves, for their loads stand further apart. No result depends on it. */
#ifndef SHERDI_KERNELS_CPU_AHEAD_H
#define SHERDI_KERNELS_CPU_AHEAD_H

#include "kernels/backend.h"

#include <stdatomic.h>

typedef enum sherdi_ahead_kind {
    SHERDI_AHEAD_PLAIN,
    SHERDI_AHEAD_ENCODED,
    SHERDI_AHEAD_KINDS,
} sherdi_ahead_kind;

typedef struct sherdi_ahead_choice {
    _Atomic unsigned trials;      /* begun */
    _Atomic int64_t  best_fs[2];  /* of a byte, in femtoseconds: without and with; 0: not tried */
    _Atomic unsigned trials_done; /* when all are, the choice is made */
    _Atomic int      is_without;
} sherdi_ahead_choice;

typedef struct sherdi_ahead {
    sherdi_ahead_choice choices[SHERDI_AHEAD_KINDS];
} sherdi_ahead;

/* What sherdi_backend_cpu_create_with makes. */
typedef struct sherdi_cpu_backend {
    sherdi_backend common;
    sherdi_ahead   ahead;
} sherdi_cpu_backend;

/** Of plain loops; 0: not at all. */
size_t sherdi_ahead_bytes(const sherdi_backend *backend);

typedef struct sherdi_ahead_trial {
    size_t            ahead_bytes; /* for this call */
    size_t            bytes;       /* that it moves; 0: this is no trial */
    sherdi_ahead_kind kind;
    int               way;
    int64_t           start_ns;
} sherdi_ahead_trial;

/** Around an update that moves so many bytes; any thread. */
sherdi_ahead_trial sherdi_ahead_begin(const sherdi_backend *backend, sherdi_ahead_kind kind,
                                      size_t bytes);
void               sherdi_ahead_end(const sherdi_backend *backend, const sherdi_ahead_trial *trial);

#endif
