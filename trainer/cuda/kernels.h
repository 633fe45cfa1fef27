/* The kernels of the trainer, as functions that queue them on a stream; device.cu calls these
 * functions. All pointers are to device memory. No function blocks or allocates; cudaGetLastError
 * shows a launch that was refused. `dtype` is the type of every `void *`. Sums are fp32, and only
 * the shapes decide their order: no sum uses floating-point atomics or depends on the number of
 * multiprocessors. */
#ifndef LLM_CUDA_KERNELS_H
#define LLM_CUDA_KERNELS_H

#include "trainer/compute.h"
#include "models/room_cuda.h"
#include "sherd.h"

#include <cuda_runtime.h>

#include <stddef.h>
#include <stdint.h>

/* Shared memory of a device: the most that a block may have, and what all blocks on one
 * multiprocessor have together. */
typedef struct shared_memory {
    size_t block_bytes, processor_bytes;
} shared_memory;

/* ---- norm.cu */

typedef struct norm_launch {
    sherd_dtype dtype;
    size_t      rows, width;
    float       eps;
    const void *x, *weight, *bias; /* bias NULL: RMSNorm, else LayerNorm */
    void       *y;                 /* forward */
    const void *dy;                /* NULL: forward; backward, with all that follows */
    void       *dx;
    int         is_added;
    void       *dweight, *dbias; /* added to */
    float      *partials;        /* [chunks of NORM_CHUNK rows, 2, width] */
    /* [rows, 2]: mean and 1 / std, which forward keeps for backward. NULL: backward computes them
     * again. */
    float *stats;
    /* [chunks of NORM_CHUNK rows, width]: the columns of dx are summed, too, for
     * columns_finish_launch. NULL: they are not. Only where norm_sums_dx. */
    float *dx_partials;
} norm_launch;

/* Whether backward can sum the columns of dx, for a norm with these shapes. */
bool norm_sums_dx(const norm_launch *args);
void norm_queue(const norm_launch *args, cudaStream_t stream);
/* norm_wide.cu: queues it and returns true if it has kernels for these rows; norm_queue asks it. */
bool norm_wide_try(const norm_launch *args, cudaStream_t stream);

/* grad[c] += the sum of partials[i * stride + c] over i < count, for c < columns. */
void columns_finish_launch(sherd_dtype dtype, const float *partials, size_t stride, size_t count,
                           size_t columns, void *grad, cudaStream_t stream);

/* ---- rows.cu: element by element, and sums of columns */

/* dbias[c] += the sum of dy[r, c] over the rows. */
void column_sums_launch(sherd_dtype dtype, const void *dy, size_t rows, size_t columns,
                        float *partials, void *dbias, cudaStream_t stream);

void gelu_launch(sherd_dtype dtype, size_t elems, const void *x, void *y, cudaStream_t stream);
/* y += x, which is fp32. It gives the same bits as columns_finish_launch with one partial. Both
 * addresses are multiples of 16. */
void add_wide_launch(sherd_dtype dtype, size_t elems, const float *x, void *y, cudaStream_t stream);
/* d *= gelu'(x). */
void gelu_back_launch(sherd_dtype dtype, size_t elems, const void *x, void *d, cudaStream_t stream);
void swiglu_launch(sherd_dtype dtype, size_t elems, const void *gate, const void *up, void *y,
                   cudaStream_t stream);
/* y is what swiglu_launch gives, with the same bits. */
void swiglu_back_launch(sherd_dtype dtype, size_t elems, const void *gate, const void *up, void *y,
                        void *d, void *dgate, cudaStream_t stream);
/* y[r, c] += bias[c]. */
void bias_add_launch(sherd_dtype dtype, size_t rows, size_t columns, const void *bias, void *y,
                     cudaStream_t stream);

/* ---- rope.cu */

/* Queries or keys. */
typedef struct rope_launch_part {
    size_t      heads;
    const void *x, *weight;   /* weight NULL: no norm */
    void       *y;            /* forward; may be x */
    const void *dy;           /* backward */
    void       *dx, *dweight; /* dx may be dy; dweight is added to */
} rope_launch_part;

typedef struct rope_launch {
    sherd_dtype      dtype;
    size_t           rows, length, width;
    float            eps; /* of the norms */
    const float     *cosines, *sines;
    int              is_backward;
    rope_launch_part parts[2];
    float           *partials; /* backward with a norm: [chunks of ROPE_CHUNK rows, 2, width] */
} rope_launch;

void rope_queue(const rope_launch *args, cudaStream_t stream);

/* ---- embed.cu */

/* A token whose rows are in several ranges. */
typedef struct embed_token {
    int32_t first_slot, slots, token, reserved;
} embed_token;

typedef struct embed_launch {
    sherd_dtype        dtype;
    size_t             rows, length, hidden;
    const int32_t     *ids;                /* [rows] */
    const void        *tokens, *positions; /* forward; positions NULL: none */
    void              *y;
    const void        *dy; /* NULL: forward; backward, with all that follows */
    void              *dtokens, *dpositions;
    const int32_t     *order; /* rows sorted by token, and ascending within a token */
    const embed_range *ranges;
    const embed_token *repeated;
    size_t             num_ranges, num_repeated;
    float             *partials; /* [slots, hidden] */
} embed_launch;

void embed_queue(const embed_launch *args, cudaStream_t stream);

/* ---- entropy.cu */

typedef struct entropy_launch {
    sherd_dtype    dtype;
    size_t         rows, vocab, stride; /* stride: elements from one row of logits to the next */
    void          *logits;              /* become their gradient, unless grad_scale is 0 */
    const int32_t *targets;             /* [rows] */
    float         *losses;              /* [rows] */
    float          grad_scale;          /* multiplies the gradient of each row's loss */
    shared_memory  memory;              /* of this device */
} entropy_launch;

/* Allows the kernels to use the shared memory that they need on the current device; `memory` is the
 * shared memory of the device. */
cudaError_t entropy_prepare(shared_memory memory);
void        entropy_launch_rows(const entropy_launch *args, cudaStream_t stream);
/* *sum += the mean of losses[rows]; the mean is rounded to fp32. */
void loss_finish_launch(const float *losses, size_t rows, double *sum, cudaStream_t stream);
/* Converts one row to fp32. */
void widen_launch(sherd_dtype dtype, const void *src, float *dst, size_t elems,
                  cudaStream_t stream);

/* ---- attention.cu, attention_plain.cu */

typedef struct attention_launch {
    sherd_dtype dtype;
    heads_args  shape;
    void       *out;
    float      *log_sums; /* [batch, heads, length] */
    const void
          *dout; /* NULL: forward; backward, with all that follows; dq, dk and dv as q, k and v */
    void  *dq, *dk, *dv;
    float *deltas; /* [batch, heads, length]: scratch */
    /* [batch, chunks of ATTENTION_CHUNK positions, heads and twice kv_heads, width]: backward sums
     * the columns of dq, dk and dv, too, for columns_finish_launch. NULL: it does not. Only where
     * attention_warpgroup_sums_columns. */
    float        *columns;
    shared_memory memory;     /* of this device */
    size_t        processors; /* of this device */
} attention_launch;

/* Uses tensor cores if type, width and strides allow it, else the plain kernels. */
void        attention_queue(const attention_launch *args, cudaStream_t stream);
void        attention_plain_queue(const attention_launch *args, cudaStream_t stream);
cudaError_t attention_plain_prepare(void);

/* ---- attention_warpgroup.cu: on compute capability 9.0 alone */

/* Whether it has kernels for this type, width and strides. */
bool attention_warpgroup_takes(const attention_launch *args);
void attention_warpgroup_queue(const attention_launch *args, cudaStream_t stream);
/* Whether backward can sum columns: dq, dk and dv are one matrix. */
bool attention_warpgroup_sums_columns(const attention_launch *args);
/* Whether a device with `memory` bytes of shared memory can run them. */
bool attention_warpgroup_fits(shared_memory memory);
/* Allows the kernels to use the shared memory that they need on the current device. */
cudaError_t attention_warpgroup_prepare(void);

#define ATTENTION_MOST_WIDTH 256 /* of a head */
#define ATTENTION_MOST_BATCH 65535

/* Allows the kernels to use the shared memory that they need on the current device; `memory` is the
 * shared memory of the device. */
cudaError_t attention_prepare(shared_memory memory);

#endif
