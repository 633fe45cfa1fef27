/* What a model computes with, as a table: the CPU's operations (compute_cpu.c, with
 * activations in fp32) and a GPU's (cuda/, with activations in the engine's compute type). model.c is
 * one text over both.
 *
 * Every operation is queued: on the CPU it has ended when the call returns, on a GPU it runs on the
 * engine's stream and the host goes on. What can fail there is kept and told by losses_take, the one
 * call that waits. All matrices are row-major and contiguous; "rows" is batch * length. Gradients of
 * parameters are added to, rounded to their type once per call; sums inside an operation are fp32 and
 * run in an order that the shapes alone decide, so a result is the same bits every time. */
#ifndef LLM_COMPUTE_H
#define LLM_COMPUTE_H

#include "models/room.h"
#include "pool.h"
#include "sherd.h"

#include <stddef.h>
#include <stdint.h>

/* One parameter while its unit is acquired. grad is NULL outside of backward. */
typedef struct tensor {
    void       *data;
    void       *grad;
    sherd_dtype dtype;
} tensor;

/* By what a GPU computes where only a measurement can choose; all zero: what was there first. Each is an option of the
 * trainer and of its benchmark (compute_choice_set). */
typedef struct compute_choices {
    int is_fused;  /* kernels: "plain" or "fused": gradients of biases in the products' epilogues, a
                      vocabulary that is filled up to whole tiles, norms that keep their means */
    int has_cudnn; /* attention: "own" or "cudnn", where that has kernels */
    int logits_rows; /* at a time; 0: as many as are good for it */
    int tune; /* kernels of the library that are timed for each shape of product; 0 or 1: the first it
                          names */
    int is_graphed; /* passes of units are captured as graphs and replayed: the same kernels in fewer calls */
    const char *
        tuned; /* file of what was measured (tuned.h); NULL: in the user's cache. Without effect where
                          tune is not above 1 */
} compute_choices;

/** Sets the choice of this name to a word of it. 0; -1 with what it takes in `wanted`. */
int compute_choice_set(compute_choices *choices, const char *name, const char *word,
                       const char **wanted);

typedef struct compute_params {
    compute_limits  limits;
    compute_choices choices;
    const char     *backend; /* as sherd_engine_info names it: "cpu" or "cuda"; NULL: "cpu" */
    pool           *threads; /* of the CPU's operations; stays the caller's */
    void           *stream;  /* of the GPU's: sherd_engine_stream */
} compute_params;

typedef struct compute_ops compute_ops;

typedef struct compute {
    const compute_ops *ops;
    size_t             elem_bytes;  /* of an activation */
    int                keeps_stats; /* norms take stats */
    int                sums_x_bias; /* linear_back takes an x_bias */
    char               why[256];    /* the sentence of a failure */
    char               device[256]; /* the GPU's name; "" on the CPU */
    char note[256]; /* what a choice has come to, once it is known; "": nothing to say */
} compute;

typedef struct linear_shape {
    size_t rows, in, out;
} linear_shape;

/* y[rows, out] = x[rows, in] . weight[out, in]^T + bias + residual. */
typedef struct linear_args {
    linear_shape shape;
    const void  *x;
    tensor       weight, bias; /* bias.data NULL: none */
    const void  *residual;     /* added; NULL: none; not with gelu */
    void        *y;            /* not x; may be residual */
    void        *gelu;         /* receives gelu(y) beside y; NULL: not wanted */
} linear_args;

typedef struct linear_back_args {
    linear_shape shape;
    const void  *x, *dy;
    tensor       weight, bias; /* their gradients are added to */
    void        *dx;
    int          is_added; /* dx += instead of dx =; not with gelu_x */
    const void  *gelu_x;   /* x was gelu of this: dx becomes its gradient; NULL: x was no gelu */
    tensor
        x_bias; /* of the product that made gelu_x: the sums of dx are added to its gradient; data NULL:
                              not wanted. Where compute.sums_x_bias alone, and with gelu_x */
} linear_back_args;

/* Norms of rows of `width`; bias.data NULL: RMSNorm, else LayerNorm. */
typedef struct norm_rows {
    size_t      rows, width;
    const void *x;
    tensor      weight, bias;
    float *
        stats; /* [rows, 2], which forward fills for backward; NULL: not kept. Where compute.keeps_stats alone */
} norm_rows;

typedef struct rotate_args {
    size_t       heads, width;
    void        *x;               /* [rows, heads * width] */
    const float *cosines, *sines; /* [length, width / 2] */
    float        direction;       /* 1, or -1 for the way back */
} rotate_args;

/* Causal attention with softmax(q k^T / sqrt(width)). Element (sequence b, time t, head h) of q
 * stands at ((b * length + t) * q_stride) + h * width; k and v likewise with kv_stride and kv_heads;
 * out has rows of heads * width. Query head h reads key head h / (heads / kv_heads). */
typedef struct heads_args {
    size_t      batch, length, heads, kv_heads, width;
    size_t      q_stride, kv_stride;
    const void *q, *k, *v;
} heads_args;

struct compute_ops {
    size_t      struct_size;
    const char *name; /* "cpu", "cuda" */

    /* Required. Waits for work in flight. */
    void (*destroy)(compute *c);
    /* Required. Bytes of scratch beside what alloc gave. */
    size_t (*scratch_bytes)(const compute *c);

    /* Required. Memory for activations, aligned to 256 bytes; NULL: there is not so much. Blocks. */
    void *(*alloc)(compute *c, size_t len_bytes);
    void (*free)(compute *c, void *memory); /* accepts NULL */
    /* Required. From host memory, at set-up; blocks. */
    void (*upload)(compute *c, void *dst, const void *src, size_t len_bytes);

    /* Required. Tokens and targets [rows] of the next micro-batch; they stay the caller's and must
     * last until its backward is queued. */
    void (*batch_set)(compute *c, const int32_t *inputs, const int32_t *targets);
    /* Required. The sum of the mean losses of the micro-batches since the last call, each rounded to
     * fp32 first, so that the sum is exact. Waits for them. E_DEVICE with c->why. */
    sherd_status (*losses_take)(compute *c, double *sum_out);
    /* Required. Logits [vocab] of one row of the last `head` with grad_scale 0. Waits. */
    void (*logits_get)(compute *c, size_t row, float *out);

    /* Optional, together. Begin and end the pass of a unit of which nothing but the key and its number decides what is queued. 1: it
     * was queued, as it was the last time, and nothing is to be done; 0: queue it, then end it. */
    int (*pass_begin)(compute *c, size_t pass, const void *key, size_t key_bytes);
    void (*pass_end)(compute *c);

    /* Required. y[r] = tokens[inputs[r]] (+ positions[r % length], when its data is not NULL). */
    void (*embed)(compute *c, tensor tokens, tensor positions, void *y);
    void (*embed_back)(compute *c, const void *dy, tensor tokens, tensor positions);

    void (*linear)(compute *c, const linear_args *args);
    void (*linear_back)(compute *c, const linear_back_args *args);

    void (*norm)(compute *c, const norm_rows *args, void *y);
    /* dx = (is_added: +=) its gradient; those of weight and bias are added to. */
    void (*norm_back)(compute *c, const norm_rows *args, const void *dy, void *dx, int is_added);
    void (*rotate)(compute *c, const rotate_args *args);

    /* log_sums [batch, heads, length] in fp32 is kept for backward. */
    void (*attention)(compute *c, const heads_args *args, void *out, float *log_sums);
    /* dq, dk, dv have the strides of q, k, v and are overwritten. `out` is what forward gave. */
    void (*attention_back)(compute *c, const heads_args *args, const void *out, const void *dout,
                           const float *log_sums, void *dq, void *dk, void *dv);

    void (*swiglu)(compute *c, size_t elems, const void *gate, const void *up, void *y);
    /* d: the gradient of y on entry, of up on return. */
    void (*swiglu_back)(compute *c, size_t elems, const void *gate, const void *up, void *d,
                        void *dgate);

    /* The mean cross-entropy of x . weight^T [rows, vocab] against the targets. grad_scale: what its
     * gradient is multiplied by; 0: no backward comes. The loss is there after head_back where one
     * comes: a GPU makes the logits then, a part of the rows at a time. */
    void (*head)(compute *c, const void *x, tensor weight, float grad_scale);
    void (*head_back)(compute *c, const void *x, tensor weight, void *dx);
};

/** NULL with a sentence in `why`: no memory, no such device, not in this build. */
compute *compute_create(const compute_params *params, char *why, size_t why_bytes);
void     compute_destroy(compute *c); /* accepts NULL */

/** Fills tables [length, width / 2] of rotate_args for the base `theta`. */
void compute_rotate_tables(size_t length, size_t width, double theta, float *cosines, float *sines);

/** The two kinds; compute_create chooses. */
compute *compute_cpu_create(const compute_params *params, char *why, size_t why_bytes);
compute *compute_cuda_create(const compute_params *params, char *why, size_t why_bytes);

#endif
