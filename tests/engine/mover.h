/* Trainings that change their number of ranks in the middle, and the training that does not. A crew
 * is a list of slots, each a thread or a process; in each phase some of them are the ranks of a
 * world. A slot that is a rank again after a pause is a newcomer. */
#ifndef TESTS_ENGINE_MOVER_H
#define TESTS_ENGINE_MOVER_H

#include "tests/engine/rig.h"

#define MOVER_PHASES 8
#define MOVER_SLOTS  8
#define MOVER_STEPS  24

typedef struct mover_phase {
    int size;
    int slots[MOVER_SLOTS]; /* by rank */
    int steps;
    int left_micro; /* micro-batches of a window that the next move drops */
    int is_torn;    /* ... and a forward pass that is not over */
} mover_phase;

typedef struct mover_outcome {
    uint64_t fingerprint;
    double   norm;
    float    loss_scale;
} mover_outcome;

/* What the ranks of the last phase have at the end. */
typedef struct mover_result {
    mover_outcome steps[MOVER_STEPS];
    int           num_steps;
    uint64_t      values; /* hash of every part of every parameter */
} mover_result;

typedef struct mover {
    rig_options options; /* without accumulation */
    int         global;  /* micro-batches of a window, of all ranks */
    int         is_bound, has_atoms, has_blobs;
    size_t      elems[3]; /* of the large parameters; 0: the usual ones */
    int         num_phases;
    mover_phase phases[MOVER_PHASES];
    /* Gives the world of a rank in a phase; `old` is that of the phase before, or NULL. A slot that
     * leaves is asked with rank -1, and gets NULL. */
    sherd_world *(*world)(void *ctx, int phase, int rank, sherd_world *old);
    void *ctx;
} mover;

/** Lives the life of one slot. The result is that of the steps in which it was a rank. */
void mover_live(const mover *m, int slot, mover_result *out);
/** Runs a crew of threads; a world shrinks by sherd_world_shrink. */
void mover_threads(const mover *m, mover_result *out);
/** Runs the same number of steps on `world_size` threads, without a move. */
void mover_twin(const mover *m, int world_size, mover_result *out);
/** Fails unless the results have the same bits. */
void mover_compare(const char *what, const mover_result *want, const mover_result *got);
/** Returns a hash of all values of all parameters. Collective. */
uint64_t mover_values(rig *r);
/** Returns the number of slots; sets 4 ranks that become 3, 5, 2 and 4. */
int  mover_slots(const mover *m);
void mover_usual(mover *m);

#endif
