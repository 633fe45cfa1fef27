/* What the GPU's operations take beside a model's activations, as arithmetic that needs no CUDA: device.cu
 * allocates it, activations.c counts it. Cuts of the kernels that it follows are here, too. */
#ifndef SHERD_MODELS_ROOM_CUDA_H
#define SHERD_MODELS_ROOM_CUDA_H

#ifdef __cplusplus
extern "C" {
#endif

#include "models/room.h"

#include <stddef.h>
#include <stdint.h>

#define NORM_CHUNK       64  /* rows of a block of norm_backward; others give other bits */
#define SUM_ROWS         256 /* rows of a block of column_sums; others give other bits */
#define EMBED_RANGE_ROWS 64  /* the most of a range */

/* Of cuBLASLt. */
#define LT_WORKSPACE_BYTES ((size_t)64 << 20)

/* Rows [first, first + count) of the order by token, all of one token. slot below 0: that is all of them,
 * and their sum is added to the gradient; else it goes to partials[slot]. */
typedef struct embed_range {
    int32_t first, count, token, slot;
} embed_range;

/* A micro-batch as it goes to the device in one copy. */
typedef struct batch_layout {
    size_t inputs, targets, order, ranges; /* offsets in bytes; repeated tokens follow the ranges */
    size_t most_bytes;
} batch_layout;

/* One allocation of the device. */
typedef struct cuda_scratch {
    float         *partials; /* of sums over rows */
    void          *sums; /* of columns, in the type of gradients; fused products leave them there */
    float         *deltas, *losses, *logits_row;
    double        *loss_sum;
    unsigned char *batch;
    void          *logits; /* [logits_rows, logits_stride] */
    size_t         logits_rows, logits_stride;
    void *
        head_weight; /* [logits_stride, hidden]: the head's weight with rows of zeros behind it, where
                           fused kernels multiply the vocabulary filled up; else of no elements */
    size_t head_weight_elems;
    float *
        head_grad; /* [vocab, hidden], or as head_weight: of the head's weight, where its sum is made
                         of several parts of the logits and the type of parameters would round each; else
                         of no elements */
    size_t       head_grad_elems;
    batch_layout layout;
} cuda_scratch;

void cuda_scratch_lay_out(const compute_limits *limits, room *r, cuda_scratch *out);

#ifdef __cplusplus
}
#endif

#endif
