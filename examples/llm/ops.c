/* Operations cut into tasks. See ops.h for the rule that the cuts follow. */
#include "ops.h"

#include "gemm.h"
#include "room.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* As the cuts of room.h, and part of the numbers as they are. */
#define TILE_LEAST    64
#define ELEMENT_CHUNK 8192 /* elements per task of an element-wise operation */

struct ops {
    pool           *threads;
    const rows_ops *rows;
    float          *memory;
    ops_room        room;

    float    *lanes;    /* scratch of each thread */
    float    *partials; /* shares of norms: [chunks, 2, width] */
    double   *losses;   /* [rows] */
    uint64_t *order;    /* [2, rows]: positions by token, for embeddings */
};

static size_t size_max(size_t a, size_t b)
{
    return a > b ? a : b;
}

static size_t size_min(size_t a, size_t b)
{
    return a < b ? a : b;
}

static size_t count_of(size_t elems, size_t each)
{
    return (elems + each - 1) / each;
}

size_t ops_tile_elems(size_t n)
{
    size_t eighth = count_of(count_of(n, 8), 16) * 16;

    return size_max(TILE_LEAST, size_min(OPS_TILE_MOST, eighth));
}

ops *ops_create(pool *threads, const ops_limits *limits, const rows_ops *rows)
{
    ops *o = calloc(1, sizeof(*o));

    if (o == NULL) {
        return NULL;
    }
    o->threads = threads;
    o->rows    = rows != NULL ? rows : rows_best();
    o->room    = ops_room_of(limits, pool_threads(threads));
    o->memory  = aligned_alloc(64, o->room.memory_elems * sizeof(float));
    o->losses  = calloc(o->room.loss_elems, sizeof(*o->losses));
    o->order   = calloc(o->room.order_elems, sizeof(*o->order));
    if (o->memory == NULL || o->losses == NULL || o->order == NULL) {
        ops_destroy(o);
        return NULL;
    }
    o->lanes    = o->memory;
    o->partials = o->memory + o->room.lane_elems * (size_t)pool_threads(threads);
    return o;
}

void ops_destroy(ops *o)
{
    if (o == NULL) {
        return;
    }
    free(o->memory);
    free(o->losses);
    free(o->order);
    free(o);
}

size_t ops_scratch_bytes(const ops *o)
{
    return o->room.bytes;
}

static float *lane_of(ops *o, int thread)
{
    return o->lanes + (size_t)thread * o->room.lane_elems;
}

/* ------------------------------------------------------------- linear -- */

typedef struct linear_job {
    ops         *o;
    linear_shape shape;
    tensor       weight;
    const float *x, *dy, *bias, *residual;
    float       *y, *dx, *dbias;
    size_t       tile;
    int          is_added;
} linear_job;

/* The part [row0, row0 + rows) x [column0, column0 + columns) of a [*, stride] matrix as fp32:
 * itself, or widened into `scratch`. */
static gemm_matrix matrix_part(const ops *o, tensor matrix, size_t stride, size_t row0,
                               size_t column0, size_t rows, size_t columns, float *scratch)
{
    size_t      first = row0 * stride + column0;
    const char *data  = matrix.data;

    if (matrix.dtype == SHERD_F32) {
        return (gemm_matrix){.data = (const float *)matrix.data + first, .stride = stride};
    }
    data += first * sherd_dtype_bytes(matrix.dtype);
    if (columns == stride) {
        o->rows->widen(matrix.dtype, data, scratch, rows * columns);
    } else {
        for (size_t r = 0; r < rows; r++) {
            o->rows->widen(matrix.dtype, data + r * stride * sherd_dtype_bytes(matrix.dtype),
                           scratch + r * columns, columns);
        }
    }
    return (gemm_matrix){.data = scratch, .stride = columns};
}

static void linear_task(void *ctx, size_t task, int thread)
{
    linear_job *job   = ctx;
    size_t      first = task * job->tile, out = job->shape.out;
    size_t      count = size_min(job->tile, out - first);
    gemm_matrix x     = {.data = job->x, .stride = job->shape.in};
    gemm_matrix w = matrix_part(job->o, job->weight, job->shape.in, first, 0, count, job->shape.in,
                                lane_of(job->o, thread));
    int         is_in_place = job->residual == job->y;

    w.is_transposed = 1;
    gemm(job->shape.rows, count, job->shape.in, 1.0f, x, w, is_in_place ? 1.0f : 0.0f,
         job->y + first, out);
    for (size_t r = 0; r < job->shape.rows; r++) {
        float *y = job->y + r * out + first;

        if (job->bias != NULL) {
            job->o->rows->add(job->bias + first, y, count);
        }
        if (job->residual != NULL && !is_in_place) {
            job->o->rows->add(job->residual + r * out + first, y, count);
        }
    }
}

void ops_linear(ops *o, linear_shape shape, const float *x, tensor weight, const float *bias,
                const float *residual, float *y)
{
    linear_job job = {.o        = o,
                      .shape    = shape,
                      .weight   = weight,
                      .x        = x,
                      .bias     = bias,
                      .residual = residual,
                      .y        = y,
                      .tile     = ops_tile_elems(shape.out)};

    pool_run(o->threads, count_of(shape.out, job.tile), linear_task, &job);
}

/* Columns of dx. A matrix that has to be widened comes in pieces of OPS_TILE_DEPTH rows. */
static void linear_back_input_task(void *ctx, size_t task, int thread)
{
    linear_job *job   = ctx;
    size_t      first = task * job->tile, in = job->shape.in, out = job->shape.out;
    size_t      count = size_min(job->tile, in - first);
    size_t      depth = job->weight.dtype == SHERD_F32 ? out : OPS_TILE_DEPTH;

    for (size_t row = 0; row < out; row += depth) {
        size_t      part = size_min(depth, out - row);
        gemm_matrix dy   = {.data = job->dy + row, .stride = out};
        gemm_matrix w =
            matrix_part(job->o, job->weight, in, row, first, part, count, lane_of(job->o, thread));

        gemm(job->shape.rows, count, part, 1.0f, dy, w, job->is_added || row > 0 ? 1.0f : 0.0f,
             job->dx + first, in);
    }
}

void ops_linear_back_input(ops *o, linear_shape shape, const float *dy, tensor weight, float *dx,
                           int is_added)
{
    linear_job job = {.o        = o,
                      .shape    = shape,
                      .weight   = weight,
                      .dy       = dy,
                      .dx       = dx,
                      .is_added = is_added,
                      .tile     = ops_tile_elems(shape.in)};

    pool_run(o->threads, count_of(shape.in, job.tile), linear_back_input_task, &job);
}

/* Rows of the gradient: columns of dy. */
static void linear_back_weight_task(void *ctx, size_t task, int thread)
{
    linear_job *job   = ctx;
    size_t      first = task * job->tile, in = job->shape.in, out = job->shape.out;
    size_t      count = size_min(job->tile, out - first);
    gemm_matrix dy    = {.data = job->dy + first, .stride = out, .is_transposed = 1};
    gemm_matrix x     = {.data = job->x, .stride = in};

    if (job->weight.dtype == SHERD_F32) {
        gemm(count, in, job->shape.rows, 1.0f, dy, x, 1.0f, (float *)job->weight.grad + first * in,
             in);
    } else {
        float *sum = lane_of(job->o, thread);

        gemm(count, in, job->shape.rows, 1.0f, dy, x, 0.0f, sum, in);
        job->o->rows->accumulate(job->weight.dtype, sum, (uint16_t *)job->weight.grad + first * in,
                                 count * in);
    }
    for (size_t r = 0; job->dbias != NULL && r < job->shape.rows; r++) {
        job->o->rows->add(job->dy + r * out + first, job->dbias + first, count);
    }
}

void ops_linear_back_weight(ops *o, linear_shape shape, const float *x, const float *dy,
                            tensor weight, float *dbias)
{
    linear_job job = {.o      = o,
                      .shape  = shape,
                      .weight = weight,
                      .x      = x,
                      .dy     = dy,
                      .dbias  = dbias,
                      .tile   = ops_tile_elems(shape.out)};

    pool_run(o->threads, count_of(shape.out, job.tile), linear_back_weight_task, &job);
}

/* ---------------------------------------------------------- embedding -- */

typedef struct embed_job {
    ops            *o;
    size_t          rows, length, hidden;
    const int32_t  *ids;
    tensor          tokens, positions;
    const float    *dy;
    float          *y;
    const uint64_t *order; /* sorted: token in the upper, row in the lower 32 bits */
} embed_job;

static char *tensor_row(tensor table, void *base, size_t row, size_t width)
{
    return (char *)base + row * width * sherd_dtype_bytes(table.dtype);
}

static void embed_task(void *ctx, size_t task, int thread)
{
    embed_job *job = ctx;
    ops       *o   = job->o;
    size_t     end = size_min(job->rows, (task + 1) * OPS_NORM_CHUNK);

    for (size_t r = task * OPS_NORM_CHUNK; r < end; r++) {
        float *y = job->y + r * job->hidden;

        o->rows->widen(job->tokens.dtype,
                       tensor_row(job->tokens, job->tokens.data, (size_t)job->ids[r], job->hidden),
                       y, job->hidden);
        if (job->positions.data != NULL) {
            float *position = lane_of(o, thread);

            o->rows->widen(
                job->positions.dtype,
                tensor_row(job->positions, job->positions.data, r % job->length, job->hidden),
                position, job->hidden);
            o->rows->add(position, y, job->hidden);
        }
    }
}

void ops_embed(ops *o, size_t rows, size_t length, size_t hidden, const int32_t *ids,
               tensor token_table, tensor position_table, float *y)
{
    embed_job job = {.o         = o,
                     .rows      = rows,
                     .length    = length,
                     .hidden    = hidden,
                     .ids       = ids,
                     .tokens    = token_table,
                     .positions = position_table,
                     .y         = y};

    pool_run(o->threads, count_of(rows, OPS_NORM_CHUNK), embed_task, &job);
}

/* Row `task` of the sorted order: the first of its token sums all of its token. */
static void embed_back_token_task(void *ctx, size_t task, int thread)
{
    embed_job *job   = ctx;
    ops       *o     = job->o;
    float     *sum   = lane_of(o, thread);
    uint64_t   token = job->order[task] >> 32;

    if (task > 0 && job->order[task - 1] >> 32 == token) {
        return;
    }
    memset(sum, 0, job->hidden * sizeof(*sum));
    for (size_t i = task; i < job->rows && job->order[i] >> 32 == token; i++) {
        o->rows->add(job->dy + (size_t)(uint32_t)job->order[i] * job->hidden, sum, job->hidden);
    }
    o->rows->accumulate(job->tokens.dtype, sum,
                        tensor_row(job->tokens, job->tokens.grad, (size_t)token, job->hidden),
                        job->hidden);
}

static void embed_back_position_task(void *ctx, size_t task, int thread)
{
    embed_job *job = ctx;
    ops       *o   = job->o;
    float     *sum = lane_of(o, thread);

    memset(sum, 0, job->hidden * sizeof(*sum));
    for (size_t r = task; r < job->rows; r += job->length) {
        o->rows->add(job->dy + r * job->hidden, sum, job->hidden);
    }
    o->rows->accumulate(job->positions.dtype, sum,
                        tensor_row(job->positions, job->positions.grad, task, job->hidden),
                        job->hidden);
}

/* Sorts keys by merging runs of growing length; `other` has the same room. Returns where
 * the result stands. */
static uint64_t *keys_sort(uint64_t *keys, uint64_t *other, size_t count)
{
    for (size_t run = 1; run < count; run *= 2) {
        uint64_t *merged = other;

        for (size_t start = 0; start < count; start += 2 * run) {
            size_t middle = size_min(start + run, count), end = size_min(start + 2 * run, count);
            size_t a = start, b = middle;

            for (size_t i = start; i < end; i++) {
                merged[i] = b >= end || (a < middle && keys[a] <= keys[b]) ? keys[a++] : keys[b++];
            }
        }
        other = keys;
        keys  = merged;
    }
    return keys;
}

void ops_embed_back(ops *o, size_t rows, size_t length, size_t hidden, const int32_t *ids,
                    const float *dy, tensor token_table, tensor position_table)
{
    embed_job job = {.o         = o,
                     .rows      = rows,
                     .length    = length,
                     .hidden    = hidden,
                     .ids       = ids,
                     .tokens    = token_table,
                     .positions = position_table,
                     .dy        = dy};

    for (size_t r = 0; r < rows; r++) {
        o->order[r] = (uint64_t)ids[r] << 32 | (uint64_t)r;
    }
    job.order = keys_sort(o->order, o->order + rows, rows);
    pool_run(o->threads, rows, embed_back_token_task, &job);
    if (position_table.data != NULL) {
        pool_run(o->threads, size_min(length, rows), embed_back_position_task, &job);
    }
}

/* --------------------------------------------------------------- norms -- */

typedef struct norm_job {
    ops         *o;
    norm_args    args;
    const float *dy;
    float       *y, *dx, *dweight, *dbias;
} norm_job;

static void norm_task(void *ctx, size_t task, int thread)
{
    norm_job *job   = ctx;
    size_t    width = job->args.width, end = size_min(job->args.rows, (task + 1) * OPS_NORM_CHUNK);

    (void)thread;
    for (size_t r = task * OPS_NORM_CHUNK; r < end; r++) {
        const float *x = job->args.x + r * width;

        if (job->args.bias != NULL) {
            job->o->rows->layer_norm(x, job->args.weight, job->args.bias, job->y + r * width,
                                     width);
        } else {
            job->o->rows->rms_norm(x, job->args.weight, job->y + r * width, width);
        }
    }
}

void ops_norm(ops *o, norm_args args, float *y)
{
    norm_job job = {.o = o, .args = args, .y = y};

    pool_run(o->threads, count_of(args.rows, OPS_NORM_CHUNK), norm_task, &job);
}

static void norm_back_task(void *ctx, size_t task, int thread)
{
    norm_job *job   = ctx;
    size_t    width = job->args.width, end = size_min(job->args.rows, (task + 1) * OPS_NORM_CHUNK);
    float    *dweight = job->o->partials + task * 2 * width;
    float    *dbias   = dweight + width;

    (void)thread;
    memset(dweight, 0, 2 * width * sizeof(*dweight));
    for (size_t r = task * OPS_NORM_CHUNK; r < end; r++) {
        const float *x = job->args.x + r * width, *dy = job->dy + r * width;
        float       *dx = job->dx + r * width;

        if (job->args.bias != NULL) {
            job->o->rows->layer_norm_back(x, job->args.weight, dy, dx, dweight, dbias, width);
        } else {
            job->o->rows->rms_norm_back(x, job->args.weight, dy, dx, dweight, width);
        }
    }
}

void ops_norm_back(ops *o, norm_args args, const float *dy, float *dx, float *dweight, float *dbias)
{
    norm_job job    = {.o = o, .args = args, .dy = dy, .dx = dx};
    size_t   chunks = count_of(args.rows, OPS_NORM_CHUNK);

    pool_run(o->threads, chunks, norm_back_task, &job);
    for (size_t i = 0; i < chunks; i++) {
        const float *share = o->partials + i * 2 * args.width;

        o->rows->add(share, dweight, args.width);
        if (dbias != NULL) {
            o->rows->add(share + args.width, dbias, args.width);
        }
    }
}

/* -------------------------------------------------------------- rotary -- */

typedef struct rotate_job {
    ops         *o;
    size_t       rows, length, heads, width;
    float       *x;
    const float *cosines, *sines;
    float        direction;
} rotate_job;

static void rotate_task(void *ctx, size_t task, int thread)
{
    rotate_job *job = ctx;
    size_t      end = size_min(job->rows, (task + 1) * OPS_NORM_CHUNK);

    (void)thread;
    for (size_t r = task * OPS_NORM_CHUNK; r < end; r++) {
        size_t angle = r % job->length * (job->width / 2);

        for (size_t h = 0; h < job->heads; h++) {
            job->o->rows->rotate(job->x + (r * job->heads + h) * job->width, job->cosines + angle,
                                 job->sines + angle, job->direction, job->width);
        }
    }
}

void ops_rotate(ops *o, size_t rows, size_t length, size_t heads, size_t width, float *x,
                const float *cosines, const float *sines, float direction)
{
    rotate_job job = {.o         = o,
                      .rows      = rows,
                      .length    = length,
                      .heads     = heads,
                      .width     = width,
                      .x         = x,
                      .cosines   = cosines,
                      .sines     = sines,
                      .direction = direction};

    pool_run(o->threads, count_of(rows, OPS_NORM_CHUNK), rotate_task, &job);
}

void ops_rotate_tables(size_t length, size_t width, double theta, float *cosines, float *sines)
{
    for (size_t t = 0; t < length; t++) {
        for (size_t i = 0; i < width / 2; i++) {
            double angle = (double)t * pow(theta, -2.0 * (double)i / (double)width);

            cosines[t * (width / 2) + i] = (float)cos(angle);
            sines[t * (width / 2) + i]   = (float)sin(angle);
        }
    }
}

/* ----------------------------------------------------------- attention -- */

typedef struct attention_job {
    ops           *o;
    attention_args args;
    const float   *dout;
    float         *out, *log_sums, *dq, *dk, *dv;
    float          scale;
} attention_job;

/* Where one head of one sequence starts. */
typedef struct attention_place {
    size_t q, kv, out, log_sums;
} attention_place;

static attention_place attention_locate(const attention_args *a, size_t sequence, size_t head)
{
    size_t          group = a->heads / a->kv_heads;
    attention_place place = {
        .q        = sequence * a->length * a->q_stride + head * a->width,
        .kv       = sequence * a->length * a->kv_stride + head / group * a->width,
        .out      = (sequence * a->length * a->heads + head) * a->width,
        .log_sums = (sequence * a->heads + head) * a->length,
    };
    return place;
}

static gemm_matrix matrix_plain(const float *data, size_t stride)
{
    return (gemm_matrix){.data = data, .stride = stride};
}

static gemm_matrix matrix_flipped(const float *data, size_t stride)
{
    return (gemm_matrix){.data = data, .stride = stride, .is_transposed = 1};
}

/* One task is one query head of one sequence, OPS_ATTENTION_ROWS queries at a time: they see the
 * keys up to the last of them, the softmax hides the rest. */
static void attention_task(void *ctx, size_t task, int thread)
{
    attention_job        *job   = ctx;
    const attention_args *a     = &job->args;
    attention_place       place = attention_locate(a, task / a->heads, task % a->heads);
    size_t                wide  = a->heads * a->width;
    float                *s     = lane_of(job->o, thread);

    for (size_t row = 0; row < a->length; row += OPS_ATTENTION_ROWS) {
        size_t rows = size_min(OPS_ATTENTION_ROWS, a->length - row), seen = row + rows;

        gemm(rows, seen, a->width, 1.0f,
             matrix_plain(a->q + place.q + row * a->q_stride, a->q_stride),
             matrix_flipped(a->k + place.kv, a->kv_stride), 0.0f, s, seen);
        for (size_t r = 0; r < rows; r++) {
            job->log_sums[place.log_sums + row + r] =
                job->o->rows->softmax(s + r * seen, row + r + 1, seen, job->scale);
        }
        gemm(rows, a->width, seen, 1.0f, matrix_plain(s, seen),
             matrix_plain(a->v + place.kv, a->kv_stride), 0.0f, job->out + place.out + row * wide,
             wide);
    }
}

void ops_attention(ops *o, attention_args args, float *out, float *log_sums)
{
    attention_job job = {.o        = o,
                         .args     = args,
                         .out      = out,
                         .log_sums = log_sums,
                         .scale    = 1.0f / sqrtf((float)args.width)};

    pool_run(o->threads, args.batch * args.heads, attention_task, &job);
}

/* Gradient through one block of queries of one head; dk and dv are added to. */
static void attention_back_block(attention_job *job, attention_place place, size_t row, size_t rows,
                                 float *p)
{
    const attention_args *a    = &job->args;
    size_t                seen = row + rows, wide = a->heads * a->width;
    float                *ds   = p + rows * seen;
    gemm_matrix           q    = matrix_plain(a->q + place.q + row * a->q_stride, a->q_stride);
    gemm_matrix           dout = matrix_plain(job->dout + place.out + row * wide, wide);
    float                *dq   = job->dq + place.q + row * a->q_stride;

    gemm(rows, seen, a->width, 1.0f, q, matrix_flipped(a->k + place.kv, a->kv_stride), 0.0f, p,
         seen);
    gemm(rows, seen, a->width, 1.0f, dout, matrix_flipped(a->v + place.kv, a->kv_stride), 0.0f, ds,
         seen);
    for (size_t r = 0; r < rows; r++) {
        job->o->rows->softmax_again(p + r * seen, row + r + 1, seen, job->scale,
                                    job->log_sums[place.log_sums + row + r]);
    }
    gemm(seen, a->width, rows, 1.0f, matrix_flipped(p, seen), dout, 1.0f, job->dv + place.kv,
         a->kv_stride);
    for (size_t r = 0; r < rows; r++) {
        job->o->rows->softmax_back(p + r * seen, ds + r * seen, row + r + 1, seen, job->scale);
    }
    gemm(rows, a->width, seen, 1.0f, matrix_plain(ds, seen),
         matrix_plain(a->k + place.kv, a->kv_stride), 0.0f, dq, a->q_stride);
    gemm(seen, a->width, rows, 1.0f, matrix_flipped(ds, seen), q, 1.0f, job->dk + place.kv,
         a->kv_stride);
}

/* One task is one key head with all query heads that read it, in their order. */
static void attention_back_task(void *ctx, size_t task, int thread)
{
    attention_job        *job      = ctx;
    const attention_args *a        = &job->args;
    size_t                group    = a->heads / a->kv_heads;
    size_t                sequence = task / a->kv_heads, first_head = task % a->kv_heads * group;
    size_t                kv = attention_locate(a, sequence, first_head).kv;

    for (size_t t = 0; t < a->length; t++) {
        memset(job->dk + kv + t * a->kv_stride, 0, a->width * sizeof(float));
        memset(job->dv + kv + t * a->kv_stride, 0, a->width * sizeof(float));
    }
    for (size_t head = first_head; head < first_head + group; head++) {
        attention_place place = attention_locate(a, sequence, head);

        for (size_t row = 0; row < a->length; row += OPS_ATTENTION_ROWS) {
            attention_back_block(job, place, row, size_min(OPS_ATTENTION_ROWS, a->length - row),
                                 lane_of(job->o, thread));
        }
    }
}

void ops_attention_back(ops *o, attention_args args, const float *dout, const float *log_sums,
                        float *dq, float *dk, float *dv)
{
    attention_job job = {.o        = o,
                         .args     = args,
                         .dout     = dout,
                         .log_sums = (float *)log_sums,
                         .dq       = dq,
                         .dk       = dk,
                         .dv       = dv,
                         .scale    = 1.0f / sqrtf((float)args.width)};

    pool_run(o->threads, args.batch * args.kv_heads, attention_back_task, &job);
}

/* ------------------------------------------------- element by element -- */

typedef enum element_op {
    ELEMENT_GELU,
    ELEMENT_GELU_BACK,
    ELEMENT_SWIGLU,
    ELEMENT_SWIGLU_BACK,
} element_op;

typedef struct element_job {
    const rows_ops *rows;
    element_op      op;
    size_t          elems;
    const float    *a, *b;
    float          *y, *z;
} element_job;

static void element_task(void *ctx, size_t task, int thread)
{
    element_job *job = ctx;
    size_t       i   = task * ELEMENT_CHUNK;
    size_t       n   = size_min(ELEMENT_CHUNK, job->elems - i);

    (void)thread;
    switch (job->op) {
    case ELEMENT_GELU:
        job->rows->gelu(job->a + i, job->y + i, n);
        return;
    case ELEMENT_GELU_BACK:
        job->rows->gelu_back(job->a + i, job->y + i, n);
        return;
    case ELEMENT_SWIGLU:
        job->rows->swiglu(job->a + i, job->b + i, job->y + i, n);
        return;
    case ELEMENT_SWIGLU_BACK:
        job->rows->swiglu_back(job->a + i, job->b + i, job->y + i, job->z + i, n);
        return;
    }
}

static void element_run(ops *o, element_job job)
{
    job.rows = o->rows;
    pool_run(o->threads, count_of(job.elems, ELEMENT_CHUNK), element_task, &job);
}

void ops_gelu(ops *o, size_t elems, const float *x, float *y)
{
    element_run(o, (element_job){.op = ELEMENT_GELU, .elems = elems, .a = x, .y = y});
}

void ops_gelu_back(ops *o, size_t elems, const float *x, float *d)
{
    element_run(o, (element_job){.op = ELEMENT_GELU_BACK, .elems = elems, .a = x, .y = d});
}

void ops_swiglu(ops *o, size_t elems, const float *gate, const float *up, float *y)
{
    element_run(o, (element_job){.op = ELEMENT_SWIGLU, .elems = elems, .a = gate, .b = up, .y = y});
}

void ops_swiglu_back(ops *o, size_t elems, const float *gate, const float *up, float *d,
                     float *dgate)
{
    element_run(
        o, (element_job){
               .op = ELEMENT_SWIGLU_BACK, .elems = elems, .a = gate, .b = up, .y = d, .z = dgate});
}

/* -------------------------------------------------------- cross-entropy -- */

typedef struct entropy_job {
    ops           *o;
    size_t         vocab;
    float         *logits;
    const int32_t *targets;
    float          scale;
} entropy_job;

static void entropy_task(void *ctx, size_t task, int thread)
{
    entropy_job *job    = ctx;
    float       *row    = job->logits + task * job->vocab;
    size_t       target = (size_t)job->targets[task];

    (void)thread;
    if (job->scale == 0.0f) {
        job->o->losses[task] = job->o->rows->cross_entropy_value(row, job->vocab, target);
    } else {
        job->o->losses[task] = job->o->rows->cross_entropy(row, job->vocab, target, job->scale);
    }
}

double ops_cross_entropy(ops *o, size_t rows, size_t vocab, float *logits, const int32_t *targets,
                         float grad_scale)
{
    entropy_job job = {.o       = o,
                       .vocab   = vocab,
                       .logits  = logits,
                       .targets = targets,
                       .scale   = grad_scale / (float)rows};
    double      sum = 0.0;

    pool_run(o->threads, rows, entropy_task, &job);
    for (size_t r = 0; r < rows; r++) {
        sum += o->losses[r];
    }
    return sum / (double)rows;
}
