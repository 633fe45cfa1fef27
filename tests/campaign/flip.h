/* A training in which one bit is changed (flips.c): what is drawn of it, and its run. */
#ifndef TESTS_CAMPAIGN_FLIP_H
#define TESTS_CAMPAIGN_FLIP_H

#include "sherd.h"

#define FLIP_UNITS  4
#define FLIP_PARAMS (2 * FLIP_UNITS)
#define FLIP_STEPS  6

typedef enum place {
    IN_GRADIENT,
    IN_WEIGHTS,         /* the master weights in memory */
    IN_MOMENTS,         /* the other parts of the state in memory */
    IN_SAVED,           /* the same behind the last step before a checkpoint is saved */
    IN_SAVED_UNCOUNTED, /* ... of a unit whose state the log does not have of this step */
    IN_FILE,            /* of a checkpoint */
    NOWHERE,
    PLACES,
} place;

/* What is drawn, and what it comes to. */
typedef struct flip {
    /* drawn */
    place       where;
    int         ranks, stage, other_stage, accumulation, interval, is_queued;
    sherd_dtype dtype;
    char        zero[512], top[1024];
    const char *optimizer;
    double      clip;
    size_t      elems;
    int         step; /* in which a gradient is changed, or behind which the state is */
    int         param, micro, rank;
    size_t      index;
    unsigned    bit;
    const char *part;
    int         part_number;
    char        path[2][256], dir[256];
    int         run; /* 0: undisturbed; 1: with the bit */
    /* found */
    uint64_t    fingerprints[2][FLIP_STEPS + 1];
    int         owner;      /* the rank on which the bit lies; -1: on all */
    int         unit;       /* of the bit; -1: of none */
    _Atomic int is_refused; /* the engine has refused what came of the bit */
} flip;

/** Trains on one rank of `world`, and sets what is found; ctx is the flip, whose field `run` says
 *  whether the bit is changed. */
void flip_train(sherd_world *world, void *ctx);
/** Changes a bit of the values in a rank's data file of the checkpoint that was saved. */
void flip_file(flip *f, uint64_t *random);

#endif
