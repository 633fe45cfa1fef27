/* A small training that `sherd test` repeats in many layouts. Its result is one number, the
 * fingerprint of the weights, which must always be the same. */
#ifndef SHERD_CLI_PROOF_H
#define SHERD_CLI_PROOF_H

#include "sherd.h"

/* An optimizer, as in a configuration. */
typedef struct proof_optimizer {
    const char *name;
    const char *params;     /* more keys of its params, each with a leading comma */
    const char *of_vectors; /* the optimizer of parameters that are no matrices; NULL: the same */
    int         has_calls;  /* 1: its update needs communication between ranks */
} proof_optimizer;

typedef struct proof_layout {
    const proof_optimizer *optimizer;
    int                    stage;
    int                    accumulation; /* micro-batches per rank and step */
    sherd_dtype            dtype;
    int                    is_deterministic;
    const char
        *zero_extra; /* more keys of zero_optimization, each with a leading comma; NULL: none */
} proof_layout;

typedef struct proof_result {
    sherd_status status;
    char         error[512]; /* if status is not SHERD_OK */
    uint64_t     fingerprint;
    double       grad_norm;            /* of the last step */
    uint64_t     step_fingerprints[4]; /* one per step, to find where two runs differ */
} proof_result;

#define PROOF_STEPS 4

/** Trains on this rank of `world`. Collective. */
void proof_run(sherd_world *world, const proof_layout *layout, proof_result *out);

/** Does the same with `ranks` threads of this process, with the time limit of `params`. Gives the
 *  worst status, or rank 0's result. */
void proof_run_threads(int ranks, const sherd_world_params *params, const proof_layout *layout,
                       proof_result *out);

/** Returns 1 if both are complete and equal in every step; else *step_out is the first step that
 *  differs. */
int proof_is_equal(const proof_result *a, const proof_result *b, int *step_out);

#endif
