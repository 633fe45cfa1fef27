/* The memory of the GPU's operations in addition to a model's activations, as arithmetic that needs
 * no CUDA: device.cu allocates it, and activations.c counts it. The cuts of the kernels on which it
 * depends are here, too. */
#ifndef SHERD_MODELS_ROOM_CUDA_H
#define SHERD_MODELS_ROOM_CUDA_H

#ifdef __cplusplus
extern "C" {
#endif

#include "models/room.h"

#include <stddef.h>
#include <stdint.h>

#define NORM_CHUNK       64  /* rows of a block of norm_backward; another value gives other bits */
#define ROPE_CHUNK       16  /* rows of a block of rope_backward; another value gives other bits */
#define ATTENTION_CHUNK  64  /* positions of a sequence that a warpgroup's backward owns */
#define SUM_ROWS         256 /* rows of a block of column_sums; another value gives other bits */
#define EMBED_RANGE_ROWS 64  /* most rows of a range */

/* Workspace of cuBLASLt. */
#define LT_WORKSPACE_BYTES ((size_t)64 << 20)

/* Rows [first, first + count) of the order by token, all of the same token. slot below 0: the range
 * has all rows of the token, and their sum is added to the gradient. Otherwise their sum goes to
 * partials[slot]. */
typedef struct embed_range {
    int32_t first, count, token, slot;
} embed_range;

/* The layout of a micro-batch that goes to the device in one copy. */
typedef struct batch_layout {
    size_t inputs, targets, order, ranges; /* offsets in bytes; repeated tokens follow the ranges */
    size_t most_bytes;
} batch_layout;

/* The parts of one allocation on the device. */
typedef struct cuda_scratch {
    float *partials; /* partial sums over rows */
    /* The same for the columns of the last output of the backward of a norm or of attention:
     * [chunks of NORM_CHUNK rows, hidden], or [sequences, chunks of ATTENTION_CHUNK positions, 3 *
     * hidden]. */
    float         *columns;
    float         *deltas, *losses, *logits_row;
    double        *loss_sum;
    unsigned char *batch;
    void          *logits; /* [logits_rows, logits_stride] */
    size_t         logits_rows, logits_stride;
    /* Gradient of the head's weight in fp32, [vocab, hidden], where several parts of the logits add
     * to it and the type of parameters would round after each part; otherwise it has no
     * elements. */
    float       *head_grad;
    size_t       head_grad_elems;
    batch_layout layout;
} cuda_scratch;

void cuda_scratch_lay_out(const compute_limits *limits, room *r, cuda_scratch *out);

#ifdef __cplusplus
}
#endif

#endif
