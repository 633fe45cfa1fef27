/* The operations of a model as a table of functions. There are two tables: the CPU's
 * (compute_cpu.c, with activations in fp32) and a GPU's (cuda/, with activations in the engine's
 * compute type). model.c has one code for both.
 *
 * Every operation is queued. On the CPU it is complete when the call returns; on a GPU it runs on
 * the engine's stream and the call returns at once. A failure of queued work is stored, and
 * losses_take returns it after it has waited for the work.
 *
 * All matrices are row-major and contiguous; "rows" is batch * length. An operation adds to the
 * gradients of parameters and rounds them to their type once per call. Sums inside an operation are
 * fp32, and only the shapes decide their order, so a result has the same bits every time. */
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

/* Whose kernels compute attention on a GPU. */
typedef enum compute_attention {
    /* warpgroups' where they can be, else cuDNN's where it has some that give the same bits every
     * time, else own */
    ATTENTION_AUTO,
    ATTENTION_OWN,
    ATTENTION_CUDNN,     /* cuDNN's where it has some */
    ATTENTION_WARPGROUP, /* own, by warpgroups' products where the GPU has them */
    ATTENTION_CHOICES,
} compute_attention;

/* Choices between implementations on a GPU, of which only a measurement shows the fastest. All
 * zero: the default ways. Each choice is an option of the trainer and of its benchmark. */
typedef struct compute_choices {
    compute_attention attention; /* option "attention" */
    int logits_rows; /* rows of logits that are made at a time; 0: a good number is chosen */
    /* Kernels of the library that are timed for each shape of product. 0 or 1: none is timed, the
     * first that the library names is taken. */
    int tune;
    int is_graphed; /* passes of units are captured as graphs and replayed: fewer calls */
    /* File of the measured choices (tuned.h); NULL: the file in the user's cache. Not used unless
     * tune is above 1. */
    const char *tuned;
} compute_choices;

/** Finds it by its word, "auto", "own", "cudnn" or "warpgroup". Returns 0, or -1. */
int compute_attention_find(const char *word, compute_attention *out);

typedef struct compute_params {
    compute_limits  limits;
    compute_choices choices;
    const char     *backend; /* as sherd_engine_info names it: "cpu" or "cuda"; NULL: "cpu" */
    pool           *threads; /* execute the CPU's operations; belongs to the caller */
    void           *stream;  /* of the GPU's operations: sherd_engine_stream */
} compute_params;

typedef struct compute_ops compute_ops;

typedef struct compute {
    const compute_ops *ops;
    size_t             elem_bytes;  /* of an activation */
    int                keeps_stats; /* norms take stats */
    int  keeps_gelu;             /* the gelu of a product may be of sums that are not rounded yet */
    char why[256];               /* the sentence of a failure */
    char device[256];            /* the GPU's name; "" on the CPU */
    char note[256];              /* see model_note */
    compute_attention attention; /* whose kernels were last used; auto: none, or the CPU's */
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
    void        *y;            /* may be the memory of residual, but not of x */
    void        *gelu;         /* receives gelu(y) in addition to y; NULL: not wanted */
} linear_args;

/* x and dx are not both NULL. */
typedef struct linear_back_args {
    linear_shape shape;
    const void  *x; /* NULL: the gradients of weight and bias come with another call */
    const void  *dy;
    tensor       weight, bias; /* their gradients are added to */
    void        *dx;           /* NULL: comes with another call */
    int          is_added;     /* dx += instead of dx =; not with gelu_x */
    const void  *gelu_x; /* x = gelu(gelu_x): dx becomes the gradient of gelu_x; NULL: no gelu */
} linear_back_args;

/* Norms of rows of `width`; bias.data NULL: RMSNorm, else LayerNorm. */
typedef struct norm_rows {
    size_t      rows, width;
    float       eps; /* added to the variance, or to the mean square */
    const void *x;
    tensor      weight, bias;
    /* [rows, 2]: forward fills it for backward. NULL: not stored. Only if compute.keeps_stats. */
    float *stats;
} norm_rows;

/* The heads of q or of k, [rows, heads * width]. Without a norm y may be x, and dx may be dy. */
typedef struct rope_part {
    size_t      heads;
    tensor      weight; /* [width], of the RMSNorm of each head; data NULL: there is none */
    const void *x;      /* backward: not read without a norm */
    void       *y;      /* forward */
    void       *dy;     /* backward; with a norm its numbers are not stored */
    void       *dx;
} rope_part;

/* Operations on q and k after their products: a norm, if they have one, and the rotation by their
 * positions. */
typedef struct rope_args {
    size_t       width;
    float        eps;             /* of the norms */
    const float *cosines, *sines; /* [length, width / 2] */
    rope_part    parts[2];
} rope_args;

/* Causal attention with softmax(q k^T / sqrt(width)). In q, head h of sequence b at time t begins
 * at element (b * length + t) * q_stride + h * width; the same holds for k and v with kv_stride and
 * kv_heads. `out` has rows of heads * width. Query head h reads key head h / (heads / kv_heads). */
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
    /* Required. Returns the bytes of scratch, which alloc does not count. */
    size_t (*scratch_bytes)(const compute *c);

    /* Required. Returns memory for activations, aligned to 256 bytes; NULL: out of memory.
     * Blocks. */
    void *(*alloc)(compute *c, size_t len_bytes);
    void (*free)(compute *c, void *memory); /* accepts NULL */
    /* Required. Copies from host memory, at set-up; blocks. */
    void (*upload)(compute *c, void *dst, const void *src, size_t len_bytes);

    /* Required. Copies on the device. Queued. */
    void (*copy)(compute *c, void *dst, const void *src, size_t len_bytes);

    /* Required. Sets the tokens and targets [rows] of the next micro-batch. They stay the caller's
     * and must last until its backward is queued. */
    void (*batch_set)(compute *c, const int32_t *inputs, const int32_t *targets);
    /* Required. The micro-batches so far are those of the next losses_take, which waits for no
     * later ones. Queued, as operations are. Not a second time before losses_take. */
    void (*losses_close)(compute *c);
    /* Required. Gives the sum of the mean losses of the micro-batches between the last two calls of
     * losses_close; without one since the last losses_take, it closes them itself. Each mean is
     * rounded to fp32 first, so that the sum is exact. Waits for these micro-batches. Returns
     * E_DEVICE with c->why. */
    sherd_status (*losses_take)(compute *c, double *sum_out);
    /* Required. Gives the logits [vocab] of one row of the last `head` with grad_scale 0. Waits. */
    void (*logits_get)(compute *c, size_t row, float *out);

    /* Optional, both or none. They enclose a pass of a unit if its number `pass` and its key alone
     * determine the queued work. pass_begin returns 1 if it has queued the work of the last time
     * again: the caller does nothing more. It returns 0 if the caller has to queue the pass and
     * then call pass_end. */
    int (*pass_begin)(compute *c, size_t pass, const void *key, size_t key_bytes);
    void (*pass_end)(compute *c);

    /* Required. y[r] = tokens[inputs[r]] (+ positions[r % length], when its data is not NULL). */
    void (*embed)(compute *c, tensor tokens, tensor positions, void *y);
    void (*embed_back)(compute *c, const void *dy, tensor tokens, tensor positions);

    void (*linear)(compute *c, const linear_args *args);
    void (*linear_back)(compute *c, const linear_back_args *args);

    void (*norm)(compute *c, const norm_rows *args, void *y);
    /* dx = (is_added: +=) the gradient of x; adds to the gradients of weight and bias. */
    void (*norm_back)(compute *c, const norm_rows *args, const void *dy, void *dx, int is_added);
    void (*rope)(compute *c, const rope_args *args);
    /* dx = the gradient of x; adds to the gradients of the norms' weights. */
    void (*rope_back)(compute *c, const rope_args *args);

    /* Fills log_sums [batch, heads, length] in fp32, which the caller keeps for backward. */
    void (*attention)(compute *c, const heads_args *args, void *out, float *log_sums);
    /* dq, dk, dv have the strides of q, k, v and are overwritten. `out` is what forward gave. */
    void (*attention_back)(compute *c, const heads_args *args, const void *out, const void *dout,
                           const float *log_sums, void *dq, void *dk, void *dv);

    /* y = gelu(x). Where compute.keeps_gelu is 0, what `linear` gives for the same x. */
    void (*gelu)(compute *c, size_t elems, const void *x, void *y);
    void (*swiglu)(compute *c, size_t elems, const void *gate, const void *up, void *y);
    /* d is the gradient of y on entry, and of `up` on return; y is made again, so that nobody has
     * to keep it. */
    void (*swiglu_back)(compute *c, size_t elems, const void *gate, const void *up, void *y,
                        void *d, void *dgate);

    /* The mean cross-entropy of x . weight^T [rows, vocab] against the targets. grad_scale
     * multiplies its gradient; 0 means that no backward follows. If one follows, the loss is known
     * only after head_back: a GPU makes the logits there, some rows at a time. */
    void (*head)(compute *c, const void *x, tensor weight, float grad_scale);
    void (*head_back)(compute *c, const void *x, tensor weight, void *dx);
};

/** Returns NULL with a sentence in `why` if there is no memory, no such device, or no such backend
 *  in this build. */
compute *compute_create(const compute_params *params, char *why, size_t why_bytes);
void     compute_destroy(compute *c); /* accepts NULL */

/** Fills the tables [length, width / 2] of rope_args. */
void compute_rotate_tables(size_t length, size_t width, const arch_rope *rope, float *cosines,
                           float *sines);

/** The two kinds of compute. Callers use compute_create, which chooses between them. */
compute *compute_cpu_create(const compute_params *params, char *why, size_t why_bytes);
compute *compute_cuda_create(const compute_params *params, char *why, size_t why_bytes);

#endif
