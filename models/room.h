/* How many bytes a model takes and where each buffer lies: arithmetic alone, no allocation. Whoever allocates
 * (model.c, compute_cpu.c, and cuda/ through room_cuda.h) asks here, and so does
 * activations_bytes, which only counts: what is planned is what is allocated. All of it is in activations.c. */
#ifndef SHERD_MODELS_ROOM_H
#define SHERD_MODELS_ROOM_H

#include "models/arch.h"
#include "sherd.h"

#include <stddef.h>

/* Hands out parts of one allocation, each at a multiple of ROOM_ALIGN_BYTES; without memory it only counts. */
typedef struct room {
    char  *memory;
    size_t used_bytes;
} room;

#define ROOM_ALIGN_BYTES 256

/* ---- activations (model.c) */

/* What a layer's forward keeps for its backward; with recomputation all layers share one. */
typedef struct layer_memory {
    void  *norm1;             /* [rows, hidden] */
    void  *q_raw, *k_raw;     /* before their norms and the rotation (MiniMind) */
    void  *q, *k, *v;         /* GPT-2: the three parts of one [rows, 3 * hidden] */
    float *log_sums;          /* [batch, heads, length] */
    void  *attention, *norm2; /* [rows, hidden] */
    void  *middle;            /* residual stream between attention and feed-forward */
    void  *up, *gate, *act;   /* [rows, inner]; gate: MiniMind */
    float *stats1, *stats2;   /* [rows, 2] of the norms; NULL: not kept */
} layer_memory;

typedef struct model_memory {
    void         *stream; /* [layers + 1, rows, hidden]: the residual stream before each layer */
    layer_memory *layers; /* [layers], or one */
    void         *norm_last;
    float        *stats_last; /* as a layer's */
    float        *cosines, *sines;

    void *dstream; /* gradient of the residual stream */
    void *dhidden, *dqkv, *dinner, *dgate;
} model_memory;

typedef struct model_shape {
    size_t batch, length; /* of a micro-batch */
    size_t elem_bytes;    /* of an activation */
    int    is_recomputed;
    int    keeps_stats; /* of norms */
} model_shape;

/** Layers whose activations exist at once. */
size_t model_memory_layers(const arch *sizes, const model_shape *shape);
/** `out->layers` is the caller's, with room for as many; NULL when `r` only counts. */
void model_memory_lay_out(const arch *sizes, const model_shape *shape, room *r, model_memory *out);

/* The shapes that will come; scratch memory is allocated for them once. */
typedef struct compute_limits {
    size_t      batch, length; /* of a micro-batch, in sequences and tokens */
    size_t      hidden, inner, heads, vocab;
    sherd_dtype dtype;        /* of the parameters */
    int         keeps_logits; /* logits_get will be called: room for all rows of them */
    size_t      logits_rows;  /* a GPU's at a time; 0: as many as are good for it */
    int         is_fused;     /* a GPU's fused kernels will run, and have scratch of their own */
} compute_limits;

/** Limits of a model that trains: logits are not kept. */
compute_limits model_limits(const arch *sizes, size_t batch, size_t length, sherd_dtype dtype);

/* ---- scratch of the CPU (compute_cpu.c) */

/* Cuts of compute_cpu.c that its scratch follows, in rows or columns; part of what is computed: other values give
 * other bits. */
#define CPU_TILE_MOST      128  /* columns of a product per task */
#define CPU_TILE_HALF      256  /* the same of bf16, where the CPU multiplies it */
#define CPU_TILE_DEPTH     4096 /* rows of a matrix that are widened at once in back_input */
#define CPU_NORM_CHUNK     32   /* rows whose shares of a norm's gradient are summed by one task */
#define CPU_ATTENTION_ROWS 128  /* queries at once */

typedef struct cpu_room {
    size_t logits_elems, vector_elems;
    size_t half_elems; /* an operand of a product in bf16, in elements of 2 bytes; 0: not of bf16 */
    size_t lane_elems; /* of one thread */
    size_t
        memory_elems; /* logits, four vectors, two operands, lanes of all threads, partial sums */
    size_t bytes;     /* of that, of the losses of all rows and of their order */
} cpu_room;

cpu_room cpu_room_of(const compute_limits *limits, int threads);

static inline size_t size_max(size_t a, size_t b)
{
    return a > b ? a : b;
}

static inline size_t size_min(size_t a, size_t b)
{
    return a < b ? a : b;
}

static inline size_t count_of(size_t elems, size_t each)
{
    return (elems + each - 1) / each;
}

#endif
