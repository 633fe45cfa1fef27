/* Trainings whose ranks are processes that are killed, at moments that are drawn. The survivors go on,
 * and at the end they must have the bits of a training that nobody has disturbed; or, where the state
 * is gone, all get the refusal, and go on from the checkpoint. */
#ifndef TESTS_ENGINE_LOSER_H
#define TESTS_ENGINE_LOSER_H

#include "tests/collectives/ranks.h"
#include "tests/engine/rig.h"

#define LOSER_MOST_RANKS 7
#define LOSER_STEPS      6

/* When a rank is killed: so long after a step has begun, or a move. */
typedef struct loser_kill {
    int rank; /* of the first world */
    int step; /* below 0: after a move has begun */
    int delay_us;
} loser_kill;

/* Which losses the state survives, as the test has it. */
typedef enum loser_model {
    LOSER_ALWAYS = 0,
    LOSER_NEVER,
    LOSER_PEERS,    /* unless the rank behind a lost one is lost with it */
    LOSER_REPLICAS, /* where each slice is in a replica whose rank is not lost */
} loser_model;

typedef struct loser {
    rig_options options; /* with accumulation; deterministic */
    int         ranks;
    size_t      elems[3];
    loser_kill  kills[LOSER_MOST_RANKS];
    int         num_kills;
    int         is_sparse;      /* few elements have a gradient: most of a step is the update */
    int         is_queued;      /* updates are queued */
    int         is_all_trained; /* no parameter is frozen */
    const char *folder;         /* of checkpoints, and files of the state */
    loser_model model;
    int         shards; /* with replicas: the ranks that share a copy */
} loser;

/* What has happened. */
typedef struct loser_result {
    int    killed;   /* ranks */
    int    survived; /* of them those whose state was kept */
    int    moves;    /* that have kept the state */
    int    refused;  /* moves that said that the state is gone */
    int    again;    /* most steps that a move made again */
    double seconds;  /* of the longest move */
} loser_result;

/** Runs a training with its kills; fails the test unless all went as it should. */
void loser_run(const loser *l, loser_result *out);
/** A part of every program that calls loser_run: what a process runs. */
void loser_live(void);
#define LOSER_PART PART(loser_live)

#endif
