/* bench-offload --trainer: the trainer's steps with offloaded state and queued updates, compared
 * with the limit of their parts. offload_trainer.c describes the parts and the limit. */
#ifndef BENCH_OFFLOAD_TRAINER_H
#define BENCH_OFFLOAD_TRAINER_H

#include "bench/offload_rank.h"

#include <stddef.h>

#define OFFLOAD_MOST_SHAPES 16

typedef struct offload_shape {
    size_t batch, length;
} offload_shape;

typedef struct offload_shapes {
    offload_shape values[OFFLOAD_MOST_SHAPES];
    size_t        count;
} offload_shapes;

typedef struct offload_trainer_params {
    offload_setup  setup;      /* its precision is one of `precisions` after the other */
    const char    *precisions; /* "fp32", "bf16" or "fp32,bf16" */
    offload_shapes shapes;
    size_t         rounds, steps; /* steps of a turn */
    const char    *peers; /* interpreter with torch and deepspeed; NULL: DeepSpeed is not timed */
    double         peers_limit_s; /* for its start and for each answer */
    const char    *json;          /* NULL: none */
} offload_trainer_params;

/** Reads "2x64,4x128": sequences and tokens of a micro-batch. Returns 0, or -1. */
int offload_shapes_read(const char *text, void *out);

/** Measures and prints. Returns the status of the program: 77, with the reason, where there is no
 *  GPU. */
int offload_trainer_run(const offload_trainer_params *params, int argc, char **argv);

#endif
