/* A small training run that `sherd test` repeats in many layouts: what comes out is one number,
 * the fingerprint of the weights, and it must be the same. */
#ifndef SHERD_CLI_PROOF_H
#define SHERD_CLI_PROOF_H

#include "sherd.h"

/* As a configuration has it. */
typedef struct proof_optimizer {
    const char *name;
    const char *params;     /* more keys of its params, each with a leading comma */
    const char *of_vectors; /* what updates parameters that are no matrices; NULL: it does */
    int         has_calls;  /* the ranks tell each other something for it in an update */
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
    char         error[512]; /* when status is not SHERD_OK */
    uint64_t     fingerprint;
    double       grad_norm;            /* of the last step */
    uint64_t     step_fingerprints[4]; /* one per step: where two runs part */
} proof_result;

#define PROOF_STEPS 4

/** Trains on this rank of `world`. Collective. */
void proof_run(sherd_world *world, const proof_layout *layout, proof_result *out);

/** The same with `ranks` threads of this process, whose waits end as `params` says; the worst status, else rank 0's result. */
void proof_run_threads(int ranks, const sherd_world_params *params, const proof_layout *layout,
                       proof_result *out);

/** 1 when both are complete and equal in every step; else *step_out is the first that differs. */
int proof_is_equal(const proof_result *a, const proof_result *b, int *step_out);

#endif
