/* How many bytes a model takes and where each buffer lies: arithmetic without allocation. The code
 * that allocates (model.c, compute_cpu.c, and cuda/ through room_cuda.h) uses these functions, and
 * so does activations_bytes, which only counts. So the planned bytes equal the allocated bytes.
 * activations.c implements them all. */
#ifndef SHERD_MODELS_ROOM_H
#define SHERD_MODELS_ROOM_H

#include "models/arch.h"
#include "models/places.h"
#include "sherd.h"

#include <stddef.h>

/* Hands out parts of one allocation, each at a multiple of ROOM_ALIGN_BYTES; with memory NULL it
 * only counts. */
typedef struct room {
    char  *memory;
    size_t used_bytes;
} room;

#define ROOM_ALIGN_BYTES 256

/* ---- activations (model.c) */

/* The arrays of a layer's forward that its backward reads. Of a layer that is LAYER_KEPT all is its
 * own. Others share `norm1`, `norm2`, their stats and, with norms of heads, q and k: backward makes
 * them again. So it does with act, which is a layer's own in GPT-2 alone, and there in all layers
 * if the shape keeps_gelu. */
typedef struct layer_memory {
    void  *norm1;         /* [rows, hidden] */
    void  *q_raw, *k_raw; /* before their norms; NULL: they have none */
    void  *q, *k, *v; /* rotated, except in GPT-2: there they are parts of one [rows, 3 * hidden] */
    float *log_sums;  /* [batch, heads, length] */
    void  *attention; /* [rows, heads * head] */
    void  *norm2;     /* [rows, hidden] */
    void  *middle;    /* residual stream between attention and feed-forward */
    void  *up, *gate, *act; /* [rows, inner]; GPT-2 has no gate */
    float *stats1, *stats2; /* of the norms: [rows, 2]; NULL: not used */
} layer_memory;

typedef struct model_memory {
    /* [layers + 1]: the residual stream [rows, hidden] before each layer, and after the last. That
     * before a layer whose activations are moved is overwritten by the layer */
    void        **before;
    layer_memory  shared; /* of layers; the rest is NULL */
    layer_memory *layers; /* [layers]; all that are recomputed have the same, moved ones `shared` */
    void         *norm_last;  /* shared.norm2 */
    float        *stats_last; /* like those of a layer */
    float        *cosines, *sines;

    void *dstream; /* gradient of the residual stream */
    void *dhidden; /* of one [rows, hidden], or of attention's [rows, heads * head] */
    void *dqkv;
    void *dinner; /* of one [rows, inner], or of q and k before their norms, one after the other */
    void *dgate;
} model_memory;

typedef struct model_shape {
    size_t       batch, length; /* of a micro-batch */
    size_t       elem_bytes;    /* bytes of an element of an activation */
    int          keeps_stats;   /* of norms */
    int          keeps_gelu;    /* GPT-2 keeps act, wherever a layer waits */
    layer_places places;
} model_shape;

/** Returns the number of layers whose activations are in the model's memory at the same time. */
size_t model_memory_layers(const arch *sizes, const model_shape *shape);
/** Lays out the arrays of a layer with this place in the engine's memory: first its input, then, if
 *  it is not recomputed, its own arrays. `out` has the arrays in the model's memory
 *  (model_memory.layers). */
void model_moved_lay_out(const arch *sizes, const model_shape *shape, layer_place place, room *r,
                         void **input, layer_memory *out);
/** The caller owns the arrays `out->before` and `out->layers`; NULL, both, when `r` only counts. */
void model_memory_lay_out(const arch *sizes, const model_shape *shape, room *r, model_memory *out);

/* The largest shapes that will come; scratch is allocated for them once. */
typedef struct compute_limits {
    size_t      batch, length; /* of a micro-batch, in sequences and tokens */
    size_t      hidden, inner, heads, vocab;
    size_t      head;         /* width of a head; 0: hidden / heads */
    sherd_dtype dtype;        /* of the parameters */
    int         keeps_logits; /* logits_get will be called: room for all rows of logits */
    size_t      layers;       /* whose activations exist at the same time */
    size_t      logits_rows;  /* rows of logits that a GPU holds at a time; 0: a good number */
} compute_limits;

/** Returns the width of a head. */
static inline size_t limits_head(const compute_limits *l)
{
    return l->head != 0 ? l->head : l->hidden / l->heads;
}

/** Returns the limits of a model that trains: logits are not stored. */
compute_limits model_limits(const arch *sizes, size_t batch, size_t length, sherd_dtype dtype);

/* ---- scratch of the CPU (compute_cpu.c) */

/* Cuts of compute_cpu.c, in rows or columns, on which its scratch depends. Other values give other
 * bits. */
#define CPU_TILE_MOST      128  /* columns of a product per task */
#define CPU_TILE_HALF      256  /* the same for bf16, where the CPU multiplies bf16 */
#define CPU_TILE_DEPTH     4096 /* rows of a matrix that back_input widens at a time */
#define CPU_NORM_CHUNK     32   /* rows whose parts of a norm's gradient one task sums */
#define CPU_ATTENTION_ROWS 128  /* queries at a time */

typedef struct cpu_room {
    size_t logits_elems, vector_elems;
    /* a product's operand in bf16, in elements of 2 bytes; 0: dtype is not bf16 */
    size_t half_elems;
    size_t lane_elems; /* of one thread */
    /* logits, four vectors, two operands, lanes of all threads, partial sums */
    size_t memory_elems;
    size_t bytes; /* of these, and the losses and the order of all rows */
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
