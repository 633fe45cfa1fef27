/* Forward and backward of what the two architectures are made of, on the CPU: activations in
 * fp32, matrices in the engine's compute type. Every operation is cut into tasks by its shape
 * alone, never by the number of threads, and no task adds to what another one adds to: so
 * results are the same bits for any number of threads and ranks. model.c puts them together.
 *
 * All matrices are row-major and contiguous; "rows" is batch * length. Gradients of
 * parameters are added to, with rounding to their type. */
#ifndef LLM_OPS_H
#define LLM_OPS_H

#include "pool.h"
#include "rows.h"
#include "sherd.h"

#include <stddef.h>
#include <stdint.h>

/* One parameter while its unit is acquired. grad is NULL outside of backward. */
typedef struct tensor {
    void       *data;
    void       *grad;
    sherd_dtype dtype;
} tensor;

/* The largest shapes that will come: scratch memory is allocated for them once. */
typedef struct ops_limits {
    size_t rows;
    size_t width;  /* most columns of an activation (vocab apart) */
    size_t length; /* longest sequence */
    size_t heads;  /* heads and their width, for norms of heads */
    size_t head_width;
    int    is_fp32; /* parameters are fp32: no room for conversions */
} ops_limits;

typedef struct ops ops;

/** NULL: out of memory. The pool stays the caller's. `rows` NULL: the best of this machine. */
ops   *ops_create(pool *threads, const ops_limits *limits, const rows_ops *rows);
void   ops_destroy(ops *o); /* accepts NULL */
size_t ops_scratch_bytes(const ops *o);

typedef struct linear_shape {
    size_t rows, in, out;
} linear_shape;

/** y[rows, out] = x[rows, in] . weight[out, in]^T + bias + residual; bias [out] and residual
 *  [rows, out] may be NULL. y must not be x; it may be residual. */
void ops_linear(ops *o, linear_shape shape, const float *x, tensor weight, const float *bias,
                const float *residual, float *y);
/** dx[rows, in] = dy . weight (+ dx with `is_added`). */
void ops_linear_back_input(ops *o, linear_shape shape, const float *dy, tensor weight, float *dx,
                           int is_added);
/** weight.grad += dy^T . x; dbias[out] += the columns' sums (NULL: no bias). */
void ops_linear_back_weight(ops *o, linear_shape shape, const float *x, const float *dy,
                            tensor weight, float *dbias);

/** y[r] = tokens[id[r]] (+ positions[r % length], when its data is not NULL). */
void ops_embed(ops *o, size_t rows, size_t length, size_t hidden, const int32_t *ids,
               tensor token_table, tensor position_table, float *y);
void ops_embed_back(ops *o, size_t rows, size_t length, size_t hidden, const int32_t *ids,
                    const float *dy, tensor token_table, tensor position_table);

/* Norms of rows of `width`; bias NULL: RMSNorm, else LayerNorm. */
typedef struct norm_args {
    size_t       rows, width;
    const float *x;
    const float *weight, *bias; /* [width] */
} norm_args;
void ops_norm(ops *o, norm_args args, float *y);
/** dx += ...; dweight, dbias [width] += ... (dbias NULL with bias NULL). */
void ops_norm_back(ops *o, norm_args args, const float *dy, float *dx, float *dweight,
                   float *dbias);

/** Rotates each head of x[rows, heads * width]; tables [length, width / 2]. */
void ops_rotate(ops *o, size_t rows, size_t length, size_t heads, size_t width, float *x,
                const float *cosines, const float *sines, float direction);
/** Fills tables [length, width / 2] for the base `theta`. */
void ops_rotate_tables(size_t length, size_t width, double theta, float *cosines, float *sines);

/* Causal attention with softmax(q k^T / sqrt(width)). Element (sequence b, time t, head h) of q
 * stands at ((b * length + t) * q_stride) + h * width; k and v likewise with kv_stride and kv_heads;
 * out has rows of heads * width. Query head h reads key head h / (heads / kv_heads). */
typedef struct attention_args {
    size_t       batch, length, heads, kv_heads, width;
    size_t       q_stride, kv_stride;
    const float *q, *k, *v;
} attention_args;
/** log_sums [batch, heads, length] is kept for backward. */
void ops_attention(ops *o, attention_args args, float *out, float *log_sums);
/** dq, dk, dv have the strides of q, k, v and are overwritten. */
void ops_attention_back(ops *o, attention_args args, const float *dout, const float *log_sums,
                        float *dq, float *dk, float *dv);

void ops_gelu(ops *o, size_t elems, const float *x, float *y);
void ops_gelu_back(ops *o, size_t elems, const float *x, float *d);
void ops_swiglu(ops *o, size_t elems, const float *gate, const float *up, float *y);
void ops_swiglu_back(ops *o, size_t elems, const float *gate, const float *up, float *d,
                     float *dgate);

/** Mean cross-entropy over the rows of logits[rows, vocab]. grad_scale 0: logits stay; else they
 *  become the gradient of the mean times grad_scale. */
double ops_cross_entropy(ops *o, size_t rows, size_t vocab, float *logits, const int32_t *targets,
                         float grad_scale);

/** The shape of products and its tiles, for programs that measure: columns of a tile of n. */
size_t ops_tile_elems(size_t n);

#endif
