/* The trainer's operations on the CPU in fp32 and on a device in one type, with the same numbers on
 * both sides. */
#ifndef TESTS_EXAMPLES_DEVICE_RIG_H
#define TESTS_EXAMPLES_DEVICE_RIG_H

#include "tests/trainer/close.h"

#include "trainer/compute.h"
#include "trainer/pool.h"

#include <cuda_runtime_api.h>

#include <stddef.h>
#include <stdint.h>

typedef struct rig {
    compute_limits limits;
    sherd_dtype    dtype; /* the device's */
    size_t         rows;  /* batch times length */
    pool          *threads;
    compute       *cpu, *gpu;
    cudaStream_t   stream;
    int32_t       *inputs, *targets; /* a batch, drawn at opening */
    double         slack;            /* tolerances are multiplied by it */
    void         **kept;             /* host memory that lives as long as the rig */
    size_t         num_kept, max_kept;
} rig;

/* The same numbers on both sides: the CPU's are what the device's type holds. */
typedef struct pair {
    float *cpu;
    void  *gpu;
    size_t count;
} pair;

/** Makes the operations of both sides. Any of these functions ends the test where it fails. */
rig  rig_open(compute_limits limits, sherd_dtype dtype, compute_choices choices);
void rig_close(rig *r);

/** Gives both sides the batch of the rig. */
void rig_set(rig *r);

/** Returns `memory`, which rig_close frees. */
void *keep(rig *r, void *memory);

/** The caller frees the memory by the device's operations. */
void *device_alloc(rig *r, size_t len_bytes);

/** Blocks until the work that the rig's stream has is done and the bytes are in host memory. */
void device_get(rig *r, const void *from, void *to, size_t len_bytes);

/** `count` numbers between -scale and scale, drawn from `seed`; pair_free frees the device's. */
pair pair_make(rig *r, size_t count, uint64_t seed, float scale);
pair pair_none(void);
void pair_free(rig *r, pair p);

/** How near a device that computes in this type has to be. */
tolerance tolerance_of(sherd_dtype dtype);

/** Fails, by the name `what`, where the device's numbers are further from the CPU's than the type's
 *  tolerance. */
void pair_check(rig *r, const char *what, pair p);

tensor cpu_tensor(pair data, pair grad);
tensor gpu_tensor(const rig *r, pair data, pair grad);

#endif
