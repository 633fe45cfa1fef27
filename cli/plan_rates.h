/* Rates that sherd plan measures on this machine before it plans. plan_rates.c measures the engine,
 * plan_arithmetic.c the trainer. */
#ifndef SHERD_CLI_PLAN_RATES_H
#define SHERD_CLI_PLAN_RATES_H

#include "models/arch.h"
#include "sherd.h"

#define PLAN_WHY_CHARS 320

/* A model of one layer, and the micro-batches with which the trainer is timed. */
typedef struct plan_arithmetic {
    arch        sizes;
    size_t      batch, length;
    int         ranks, steps;
    sherd_dtype dtype;
    const char *backend;
} plan_arithmetic;

/** Makes it from the planned model, whose width it has where this machine can take that. `planned`
 *  NULL: of another trainer. */
plan_arithmetic plan_arithmetic_of(const arch *planned, const char *backend, size_t batch,
                                   size_t length);
/** Makes steps of the trainer, whose files are in `folder`, and returns the operations per second
 *  of a rank. Returns 0, or -1 with a sentence in `why`. It must be called before this process
 *  starts a second thread. */
int plan_arithmetic_run(const plan_arithmetic *of, const char *folder, double *flops_out, char *why,
                        size_t why_bytes);

#endif
