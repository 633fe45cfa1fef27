/* A training step of the example's model on one GPU: tokens per second and their share of the
 * device's peak. */
#ifndef BENCH_TRAINER_GPU_H
#define BENCH_TRAINER_GPU_H

#include "trainer/compute.h"
#include "models/arch.h"

#include <stddef.h>

typedef struct trainer_gpu_params {
    arch            sizes;
    size_t          batch, length, steps;
    int             stage;
    const char     *precision; /* "fp32", "bf16" or "fp16" */
    const char     *offload;   /* of optimizer state: "none" or "cpu" */
    int             is_recomputed;
    compute_choices choices;
    double          peak_tflops; /* 0: by the device's name */
} trainer_gpu_params;

/** Measures and prints. Returns the status of the program: 77, with the reason, where there is no
 *  GPU. */
int trainer_gpu_run(const trainer_gpu_params *params);

#endif
