/* The CPU's operations of compute.h. Activations are in fp32 and matrices in the engine's compute
 * type; vectors are widened to fp32 around each operation; all logits are made at once. If the CPU
 * multiplies bf16 (onednn.h), a product with a bf16 matrix rounds both operands to bf16. Only the
 * shape of an operation decides how it is cut into tasks, never the number of threads, and no two
 * tasks add to the same place. So results have the same bits for any number of threads and
 * ranks. */
#include "compute_cpu.h"

#include "gemm.h"
#include "models/onednn.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Like the cuts of room.h, these values decide the bits of results. */
#define TILE_LEAST    64
#define ELEMENT_CHUNK 8192 /* elements per task of an element-wise operation */

/* ------------------------------------------------------------- vectors -- */

/* Returns the values of a one-dimensional parameter in fp32: its own memory, or `room` with the
 * widened values. NULL: no parameter. */
static const float *vector_get(tensor t, float *room, size_t elems)
{
    if (t.data == NULL || t.dtype == SHERD_F32) {
        return t.data;
    }
    rows_best()->widen(t.dtype, t.data, room, elems);
    return room;
}

/* Returns where its gradient is summed: in place if it is fp32, else in `room`, which vector_add
 * adds to it once. */
static float *vector_grad(tensor t, float *room, size_t elems)
{
    if (t.data == NULL || t.dtype == SHERD_F32) {
        return t.data == NULL ? NULL : t.grad;
    }
    memset(room, 0, elems * sizeof(*room));
    return room;
}

static void vector_add(tensor t, const float *room, size_t elems)
{
    if (t.data != NULL && t.dtype != SHERD_F32) {
        rows_best()->accumulate(t.dtype, room, t.grad, elems);
    }
}

/* -------------------------------------------------------------- memory -- */

static void cpu_destroy(compute *c)
{
    cpu *m = cpu_of(c);

    free(m->memory);
    free(m->row_losses);
    free(m->order);
    free(m);
}

static size_t cpu_scratch_bytes(const compute *c)
{
    return ((const cpu *)c)->room.bytes;
}

static void *cpu_alloc(compute *c, size_t len_bytes)
{
    (void)c;
    return aligned_alloc(256, (len_bytes + 255) / 256 * 256);
}

static void cpu_free(compute *c, void *memory)
{
    (void)c;
    free(memory);
}

static void cpu_upload(compute *c, void *dst, const void *src, size_t len_bytes)
{
    (void)c;
    memcpy(dst, src, len_bytes);
}

static void cpu_copy(compute *c, void *dst, const void *src, size_t len_bytes)
{
    (void)c;
    memcpy(dst, src, len_bytes);
}

static void cpu_batch_set(compute *c, const int32_t *inputs, const int32_t *targets)
{
    cpu_of(c)->inputs  = inputs;
    cpu_of(c)->targets = targets;
}

static void cpu_losses_close(compute *c)
{
    cpu *m = cpu_of(c);

    m->closed     = m->losses;
    m->losses     = 0.0;
    m->has_closed = 1;
}

static sherd_status cpu_losses_take(compute *c, double *sum_out)
{
    if (!cpu_of(c)->has_closed) {
        cpu_losses_close(c);
    }
    if (atomic_load(&cpu_of(c)->has_failed)) {
        (void)snprintf(c->why, sizeof(c->why), "oneDNN has no memory for a product");
        return SHERD_E_DEVICE;
    }
    *sum_out              = cpu_of(c)->closed;
    cpu_of(c)->has_closed = 0;
    return SHERD_OK;
}

static void cpu_logits_get(compute *c, size_t row, float *out)
{
    const cpu *m = cpu_of(c);

    memcpy(out, m->logits + row * m->limits.vocab, m->limits.vocab * sizeof(*out));
}

/* ------------------------------------------------- element by element -- */

typedef enum element_op {
    ELEMENT_GELU,
    ELEMENT_SWIGLU,
    ELEMENT_SWIGLU_BACK,
    ELEMENT_NARROW,
} element_op;

typedef struct element_job {
    const rows_ops *table;
    element_op      op;
    size_t          elems;
    const float    *a, *b;
    float          *y, *z;
    uint16_t       *half;
} element_job;

static void element_task(void *ctx, size_t task, int thread)
{
    element_job *job = ctx;
    size_t       i   = task * ELEMENT_CHUNK;
    size_t       n   = size_min(ELEMENT_CHUNK, job->elems - i);

    (void)thread;
    switch (job->op) {
    case ELEMENT_GELU:
        job->table->gelu(job->a + i, job->y + i, n);
        return;
    case ELEMENT_SWIGLU:
        job->table->swiglu(job->a + i, job->b + i, job->y + i, n);
        return;
    case ELEMENT_SWIGLU_BACK:
        job->table->swiglu_back(job->a + i, job->b + i, job->y + i, job->z + i, n);
        return;
    case ELEMENT_NARROW:
        job->table->narrow(job->a + i, job->half + i, n);
        return;
    }
}

static void element_run(const cpu *m, element_op op, size_t elems, element_job job)
{
    job.table = m->table;
    job.op    = op;
    job.elems = elems;
    pool_run(m->threads, count_of(elems, ELEMENT_CHUNK), element_task, &job);
}

static void cpu_gelu(compute *c, size_t elems, const void *x, void *y)
{
    element_run(cpu_of(c), ELEMENT_GELU, elems, (element_job){.a = x, .y = y});
}

static void cpu_swiglu(compute *c, size_t elems, const void *gate, const void *up, void *y)
{
    element_run(cpu_of(c), ELEMENT_SWIGLU, elems, (element_job){.a = gate, .b = up, .y = y});
}

static void cpu_swiglu_back(compute *c, size_t elems, const void *gate, const void *up, void *y,
                            void *d, void *dgate)
{
    cpu_swiglu(c, elems, gate, up, y);
    element_run(cpu_of(c), ELEMENT_SWIGLU_BACK, elems,
                (element_job){.a = gate, .b = up, .y = d, .z = dgate});
}

/* ------------------------------------------------------------- linear -- */

typedef struct linear_job {
    cpu            *m;
    linear_shape    shape;
    tensor          weight;
    const float    *x, *dy, *bias, *residual, *gelu_x;
    const uint16_t *half_x, *half_dy; /* x and dy in bf16, for products of bf16; NULL: fp32 */
    size_t          half_dy_stride;
    float          *y, *gelu, *dx, *dbias;
    size_t          tile;
    int             is_added;
} linear_job;

/* Returns the columns of one task: an eighth of n, or a quarter in bf16, because products of bf16
 * are short. */
static size_t tile_elems(size_t n, int is_half)
{
    size_t part = count_of(count_of(n, is_half ? 4 : 8), 16) * 16;

    return size_max(TILE_LEAST, size_min(is_half ? CPU_TILE_HALF : CPU_TILE_MOST, part));
}

/* Cuts the `columns` of the product into tasks and executes them. */
static void linear_run(cpu *m, linear_job job, size_t columns, pool_task_fn task)
{
    job.m    = m;
    job.tile = tile_elems(columns, job.half_x != NULL);
    pool_run(m->threads, count_of(columns, job.tile), task, &job);
}

/* Returns whether products with this matrix are computed in bf16. */
static int is_half(tensor weight)
{
    return weight.dtype == SHERD_BF16 && onednn_open()->level != ONEDNN_NONE;
}

static const uint16_t *narrow(const cpu *m, const float *x, size_t elems, uint16_t *half)
{
    element_run(m, ELEMENT_NARROW, elems, (element_job){.a = x, .half = half});
    return half;
}

static void half_multiply(cpu *m, onednn_product product)
{
    if (onednn_multiply(&product) != 0) {
        atomic_store(&m->has_failed, 1);
    }
}

/* Returns the part [row0, row0 + rows) x [column0, column0 + columns) of a [*, stride] matrix as
 * fp32: in place, or widened into `scratch`. */
static gemm_matrix matrix_part(const cpu *m, tensor matrix, size_t stride, size_t row0,
                               size_t column0, size_t rows, size_t columns, float *scratch)
{
    size_t      first = row0 * stride + column0;
    const char *data  = matrix.data;

    if (matrix.dtype == SHERD_F32) {
        return (gemm_matrix){.data = (const float *)matrix.data + first, .stride = stride};
    }
    data += first * sherd_dtype_bytes(matrix.dtype);
    if (columns == stride) {
        m->table->widen(matrix.dtype, data, scratch, rows * columns);
    } else {
        for (size_t r = 0; r < rows; r++) {
            m->table->widen(matrix.dtype, data + r * stride * sherd_dtype_bytes(matrix.dtype),
                            scratch + r * columns, columns);
        }
    }
    return (gemm_matrix){.data = scratch, .stride = columns};
}

/* y's columns [first, first + count) = (is_added: +=) x . weight^T. A product of bf16 writes to
 * `scratch` [rows, count] first: oneDNN's kernels are twice as fast if their result is
 * contiguous. */
static void forward_multiply(const linear_job *job, size_t first, size_t count, int is_added,
                             float *scratch)
{
    linear_shape s = job->shape;
    gemm_matrix  x = {.data = job->x, .stride = s.in}, w;

    if (job->half_x == NULL) {
        w               = matrix_part(job->m, job->weight, s.in, first, 0, count, s.in, scratch);
        w.is_transposed = 1;
        gemm(s.rows, count, s.in, 1.0f, x, w, is_added ? 1.0f : 0.0f, job->y + first, s.out);
        return;
    }
    half_multiply(
        job->m, (onednn_product){.m = s.rows,
                                 .n = count,
                                 .k = s.in,
                                 .a = {job->half_x, s.in, 0},
                                 .b = {(const uint16_t *)job->weight.data + first * s.in, s.in, 1},
                                 .c = scratch,
                                 .c_stride = count});
    for (size_t r = 0; r < s.rows; r++) {
        float *y = job->y + r * s.out + first;

        if (is_added) {
            job->m->table->add(scratch + r * count, y, count);
        } else {
            memcpy(y, scratch + r * count, count * sizeof(*y));
        }
    }
}

static void linear_task(void *ctx, size_t task, int thread)
{
    linear_job *job   = ctx;
    size_t      first = task * job->tile, out = job->shape.out;
    size_t      count       = size_min(job->tile, out - first);
    int         is_in_place = job->residual == job->y;

    forward_multiply(job, first, count, is_in_place, lane_of(job->m, thread));
    for (size_t r = 0; r < job->shape.rows; r++) {
        float *y = job->y + r * out + first;

        if (job->bias != NULL) {
            job->m->table->add(job->bias + first, y, count);
        }
        if (job->residual != NULL && !is_in_place) {
            job->m->table->add(job->residual + r * out + first, y, count);
        }
        if (job->gelu != NULL) {
            job->m->table->gelu(y, job->gelu + r * out + first, count);
        }
    }
}

/* dx's columns [first, first + count) = (is_added: +=) dy . weight. A matrix that has to be widened
 * is widened in portions of CPU_TILE_DEPTH rows. */
static void input_multiply(const linear_job *job, size_t first, size_t count, float *scratch)
{
    linear_shape s     = job->shape;
    size_t       depth = job->weight.dtype == SHERD_F32 ? s.out : CPU_TILE_DEPTH;

    for (size_t row = 0; row < s.out; row += depth) {
        size_t      portion = size_min(depth, s.out - row);
        gemm_matrix dy      = {.data = job->dy + row, .stride = s.out};
        gemm_matrix w = matrix_part(job->m, job->weight, s.in, row, first, portion, count, scratch);

        gemm(s.rows, count, portion, 1.0f, dy, w, job->is_added || row > 0 ? 1.0f : 0.0f,
             job->dx + first, s.in);
    }
}

static void gelu_back_rows(const linear_job *job, size_t row, size_t rows, size_t first,
                           size_t count)
{
    for (size_t r = row; job->gelu_x != NULL && r < row + rows; r++) {
        size_t at = r * job->shape.in + first;

        job->m->table->gelu_back(job->gelu_x + at, job->dx + at, count);
    }
}

static void linear_back_input_task(void *ctx, size_t task, int thread)
{
    linear_job *job   = ctx;
    size_t      first = task * job->tile;
    size_t      count = size_min(job->tile, job->shape.in - first);

    input_multiply(job, first, count, lane_of(job->m, thread));
    gelu_back_rows(job, 0, job->shape.rows, first, count);
}

/* The same in bf16. dx is cut along its rows, so that each part is contiguous; forward_multiply
 * says why. */
static void half_back_input_task(void *ctx, size_t task, int thread)
{
    linear_job  *job  = ctx;
    linear_shape s    = job->shape;
    size_t       row  = task * job->tile;
    size_t       rows = size_min(job->tile, s.rows - row);

    (void)thread;
    half_multiply(job->m, (onednn_product){.m        = rows,
                                           .n        = s.in,
                                           .k        = s.out,
                                           .a        = {job->half_dy + row * job->half_dy_stride,
                                                        job->half_dy_stride, 0},
                                           .b        = {job->weight.data, s.in, 0},
                                           .is_added = job->is_added,
                                           .c        = job->dx + row * s.in,
                                           .c_stride = s.in});
    gelu_back_rows(job, row, rows, 0, s.in);
}

static void back_input_run(cpu *m, linear_job job)
{
    if (job.half_dy == NULL) {
        linear_run(m, job, job.shape.in, linear_back_input_task);
        return;
    }
    job.m    = m;
    job.tile = size_max(CPU_TILE_MOST, size_min(4 * CPU_TILE_MOST, count_of(job.shape.rows, 4)));
    pool_run(m->threads, count_of(job.shape.rows, job.tile), half_back_input_task, &job);
}

/* In bf16: the columns of dy are first copied to `scratch` [rows, count], where they are
 * contiguous. */
static void half_weight_multiply(const linear_job *job, size_t first, size_t count,
                                 uint16_t *scratch)
{
    linear_shape s = job->shape;

    for (size_t r = 0; r < s.rows; r++) {
        memcpy(scratch + r * count, job->half_dy + r * job->half_dy_stride + first,
               count * sizeof(*scratch));
    }
    half_multiply(job->m, (onednn_product){.m        = count,
                                           .n        = s.in,
                                           .k        = s.rows,
                                           .a        = {scratch, count, 1},
                                           .b        = {job->half_x, s.in, 0},
                                           .is_added = 1,
                                           .is_half  = 1,
                                           .c        = (uint16_t *)job->weight.grad + first * s.in,
                                           .c_stride = s.in});
}

/* Rows [first, first + count) of the weight's gradient; they come from the same columns of dy. */
static void weight_multiply(const linear_job *job, size_t first, size_t count, float *scratch)
{
    linear_shape s  = job->shape;
    gemm_matrix  dy = {.data = job->dy + first, .stride = s.out, .is_transposed = 1};
    gemm_matrix  x  = {.data = job->x, .stride = s.in};

    if (job->weight.dtype == SHERD_F32) {
        gemm(count, s.in, s.rows, 1.0f, dy, x, 1.0f, (float *)job->weight.grad + first * s.in,
             s.in);
    } else {
        gemm(count, s.in, s.rows, 1.0f, dy, x, 0.0f, scratch, s.in);
        job->m->table->accumulate(job->weight.dtype, scratch,
                                  (uint16_t *)job->weight.grad + first * s.in, count * s.in);
    }
}

static void linear_back_weight_task(void *ctx, size_t task, int thread)
{
    linear_job *job   = ctx;
    size_t      first = task * job->tile, out = job->shape.out;
    size_t      count = size_min(job->tile, out - first);

    if (job->half_dy != NULL) {
        half_weight_multiply(job, first, count, (uint16_t *)lane_of(job->m, thread));
    } else {
        weight_multiply(job, first, count, lane_of(job->m, thread));
    }
    for (size_t r = 0; job->dbias != NULL && r < job->shape.rows; r++) {
        job->m->table->add(job->dy + r * out + first, job->dbias + first, count);
    }
}

static void cpu_linear(compute *c, const linear_args *args)
{
    cpu         *m   = cpu_of(c);
    linear_shape s   = args->shape;
    linear_job   job = {.shape    = s,
                        .weight   = args->weight,
                        .x        = args->x,
                        .bias     = vector_get(args->bias, m->bias, s.out),
                        .residual = args->residual,
                        .y        = args->y,
                        .gelu     = args->gelu};

    if (is_half(args->weight)) {
        job.half_x = narrow(m, args->x, s.rows * s.in, m->half_x);
    }
    linear_run(m, job, s.out, linear_task);
}

static void cpu_linear_back(compute *c, const linear_back_args *args)
{
    cpu         *m     = cpu_of(c);
    linear_shape s     = args->shape;
    float       *dbias = args->x == NULL ? NULL : vector_grad(args->bias, m->dbias, s.out);
    linear_job   job   = {.shape    = s,
                          .weight   = args->weight,
                          .x        = args->x,
                          .dy       = args->dy,
                          .dx       = args->dx,
                          .gelu_x   = args->gelu_x,
                          .dbias    = dbias,
                          .is_added = args->is_added};

    if (is_half(args->weight)) {
        job.half_x         = args->x == NULL ? NULL : narrow(m, args->x, s.rows * s.in, m->half_x);
        job.half_dy        = narrow(m, args->dy, s.rows * s.out, m->half_dy);
        job.half_dy_stride = s.out;
    }
    if (args->x != NULL) {
        linear_run(m, job, s.out, linear_back_weight_task);
        vector_add(args->bias, dbias, s.out);
    }
    if (args->dx != NULL) {
        back_input_run(m, job);
    }
}

/* --------------------------------------------------------------- norms -- */

typedef struct norm_job {
    const cpu   *m;
    size_t       rows, width;
    float        eps;
    const float *x, *weight, *bias, *dy;
    float       *y, *dx;
} norm_job;

static norm_job norm_of(const cpu *m, const norm_rows *args)
{
    return (norm_job){.m      = m,
                      .rows   = args->rows,
                      .width  = args->width,
                      .eps    = args->eps,
                      .x      = args->x,
                      .weight = vector_get(args->weight, m->weight, args->width),
                      .bias   = vector_get(args->bias, m->bias, args->width)};
}

static void norm_task(void *ctx, size_t task, int thread)
{
    norm_job *job   = ctx;
    size_t    width = job->width, end = size_min(job->rows, (task + 1) * CPU_NORM_CHUNK);

    (void)thread;
    for (size_t r = task * CPU_NORM_CHUNK; r < end; r++) {
        const float *x = job->x + r * width;
        float       *y = job->y + r * width;

        if (job->bias != NULL) {
            job->m->table->layer_norm(x, job->weight, job->bias, y, width, job->eps);
        } else {
            job->m->table->rms_norm(x, job->weight, y, width, job->eps);
        }
    }
}

static void cpu_norm(compute *c, const norm_rows *args, void *y)
{
    cpu     *m   = cpu_of(c);
    norm_job job = norm_of(m, args);

    job.y = y;
    pool_run(m->threads, count_of(args->rows, CPU_NORM_CHUNK), norm_task, &job);
}

static void norm_back_task(void *ctx, size_t task, int thread)
{
    norm_job *job   = ctx;
    size_t    width = job->width, end = size_min(job->rows, (task + 1) * CPU_NORM_CHUNK);
    float    *dweight = job->m->partials + task * 2 * width;
    float    *dbias   = dweight + width;

    (void)thread;
    memset(dweight, 0, 2 * width * sizeof(*dweight));
    for (size_t r = task * CPU_NORM_CHUNK; r < end; r++) {
        const float *x = job->x + r * width, *dy = job->dy + r * width;
        float       *dx = job->dx + r * width;

        if (job->bias != NULL) {
            job->m->table->layer_norm_back(x, job->weight, dy, dx, dweight, dbias, width, job->eps);
        } else {
            job->m->table->rms_norm_back(x, job->weight, dy, dx, dweight, width, job->eps);
        }
    }
}

static void cpu_norm_back(compute *c, const norm_rows *args, const void *dy, void *dx, int is_added)
{
    cpu     *m       = cpu_of(c);
    float   *dweight = vector_grad(args->weight, m->dweight, args->width);
    float   *dbias   = vector_grad(args->bias, m->dbias, args->width);
    norm_job job     = norm_of(m, args);
    size_t   chunks  = count_of(args->rows, CPU_NORM_CHUNK);

    job.dy = dy;
    job.dx = dx;
    if (!is_added) {
        memset(dx, 0, args->rows * args->width * sizeof(float));
    }
    pool_run(m->threads, chunks, norm_back_task, &job);
    for (size_t i = 0; i < chunks; i++) {
        const float *share = m->partials + i * 2 * args->width;

        m->table->add(share, dweight, args->width);
        if (dbias != NULL) {
            m->table->add(share + args->width, dbias, args->width);
        }
    }
    vector_add(args->weight, dweight, args->width);
    vector_add(args->bias, dbias, args->width);
}

/* -------------------------------------------------------------- rotary -- */

/* Rotates heads where they are. */
typedef struct rotate_job {
    const cpu       *m;
    const rope_args *args;
    size_t           heads;
    float           *x;
    float            direction; /* 1; -1 in backward */
} rotate_job;

static void rotate_task(void *ctx, size_t task, int thread)
{
    const rotate_job *job = ctx;
    const rope_args  *a   = job->args;
    size_t            end = size_min(job->m->rows, (task + 1) * CPU_NORM_CHUNK);

    (void)thread;
    for (size_t r = task * CPU_NORM_CHUNK; r < end; r++) {
        size_t angle = r % job->m->limits.length * (a->width / 2);

        for (size_t h = 0; h < job->heads; h++) {
            job->m->table->rotate(job->x + (r * job->heads + h) * a->width, a->cosines + angle,
                                  a->sines + angle, job->direction, a->width);
        }
    }
}

static void rotate(cpu *m, const rope_args *args, size_t heads, float *x, float direction)
{
    rotate_job job = {.m = m, .args = args, .heads = heads, .x = x, .direction = direction};

    pool_run(m->threads, count_of(m->rows, CPU_NORM_CHUNK), rotate_task, &job);
}

/* The norm of each head of a part, as a norm with one row for each head. */
static norm_rows head_norm_of(const cpu *m, const rope_args *args, const rope_part *part)
{
    return (norm_rows){.rows   = m->rows * part->heads,
                       .width  = args->width,
                       .eps    = args->eps,
                       .x      = part->x,
                       .weight = part->weight};
}

static void part_copy(const cpu *m, const rope_args *args, const rope_part *part, void *to,
                      const void *from)
{
    if (to != from) {
        memcpy(to, from, m->rows * part->heads * args->width * sizeof(float));
    }
}

static void cpu_rope(compute *c, const rope_args *args)
{
    cpu *m = cpu_of(c);

    for (int i = 0; i < 2; i++) {
        const rope_part *part = &args->parts[i];
        norm_rows        norm = head_norm_of(m, args, part);

        if (part->weight.data != NULL) {
            cpu_norm(c, &norm, part->y);
        } else {
            part_copy(m, args, part, part->y, part->x);
        }
        rotate(m, args, part->heads, part->y, 1.0f);
    }
}

static void cpu_rope_back(compute *c, const rope_args *args)
{
    cpu *m = cpu_of(c);

    for (int i = 0; i < 2; i++) {
        const rope_part *part = &args->parts[i];
        norm_rows        norm = head_norm_of(m, args, part);

        if (part->weight.data != NULL) {
            rotate(m, args, part->heads, part->dy, -1.0f);
            cpu_norm_back(c, &norm, part->dy, part->dx, 0);
        } else {
            part_copy(m, args, part, part->dx, part->dy);
            rotate(m, args, part->heads, part->dx, -1.0f);
        }
    }
}

/* ----------------------------------------------------------- attention -- */

typedef struct attention_job {
    const cpu        *m;
    const heads_args *args;
    const float      *q, *k, *v, *dout;
    float            *out, *log_sums, *dq, *dk, *dv;
    float             scale;
} attention_job;

static attention_job attention_of(const cpu *m, const heads_args *args)
{
    return (attention_job){.m     = m,
                           .args  = args,
                           .q     = args->q,
                           .k     = args->k,
                           .v     = args->v,
                           .scale = 1.0f / sqrtf((float)args->width)};
}

/* The elements at which one head of one sequence starts. */
typedef struct attention_offsets {
    size_t q, kv, out, log_sums;
} attention_offsets;

static attention_offsets attention_locate(const heads_args *a, size_t sequence, size_t head)
{
    size_t            group   = a->heads / a->kv_heads;
    attention_offsets offsets = {
        .q        = sequence * a->length * a->q_stride + head * a->width,
        .kv       = sequence * a->length * a->kv_stride + head / group * a->width,
        .out      = (sequence * a->length * a->heads + head) * a->width,
        .log_sums = (sequence * a->heads + head) * a->length,
    };
    return offsets;
}

static gemm_matrix matrix_plain(const float *data, size_t stride)
{
    return (gemm_matrix){.data = data, .stride = stride};
}

static gemm_matrix matrix_flipped(const float *data, size_t stride)
{
    return (gemm_matrix){.data = data, .stride = stride, .is_transposed = 1};
}

/* One task is one query head of one sequence. It takes CPU_ATTENTION_ROWS queries at a time with
 * all keys up to the last query; the softmax hides the keys that a query must not see. */
static void attention_task(void *ctx, size_t task, int thread)
{
    attention_job    *job     = ctx;
    const heads_args *a       = job->args;
    attention_offsets offsets = attention_locate(a, task / a->heads, task % a->heads);
    size_t            wide    = a->heads * a->width;
    float            *s       = lane_of(job->m, thread);

    for (size_t row = 0; row < a->length; row += CPU_ATTENTION_ROWS) {
        size_t rows = size_min(CPU_ATTENTION_ROWS, a->length - row), seen = row + rows;

        gemm(rows, seen, a->width, 1.0f,
             matrix_plain(job->q + offsets.q + row * a->q_stride, a->q_stride),
             matrix_flipped(job->k + offsets.kv, a->kv_stride), 0.0f, s, seen);
        for (size_t r = 0; r < rows; r++) {
            job->log_sums[offsets.log_sums + row + r] =
                job->m->table->softmax(s + r * seen, row + r + 1, seen, job->scale);
        }
        gemm(rows, a->width, seen, 1.0f, matrix_plain(s, seen),
             matrix_plain(job->v + offsets.kv, a->kv_stride), 0.0f,
             job->out + offsets.out + row * wide, wide);
    }
}

static void cpu_attention(compute *c, const heads_args *args, void *out, float *log_sums)
{
    cpu          *m   = cpu_of(c);
    attention_job job = attention_of(m, args);

    job.out      = out;
    job.log_sums = log_sums;
    pool_run(m->threads, args->batch * args->heads, attention_task, &job);
}

/* The gradient through a group of queries of one head; adds to dk and dv. */
static void attention_back_block(attention_job *job, attention_offsets offsets, size_t row,
                                 size_t rows, float *p)
{
    const heads_args *a    = job->args;
    size_t            seen = row + rows, wide = a->heads * a->width;
    float            *ds   = p + rows * seen;
    gemm_matrix       q    = matrix_plain(job->q + offsets.q + row * a->q_stride, a->q_stride);
    gemm_matrix       dout = matrix_plain(job->dout + offsets.out + row * wide, wide);
    float            *dq   = job->dq + offsets.q + row * a->q_stride;

    gemm(rows, seen, a->width, 1.0f, q, matrix_flipped(job->k + offsets.kv, a->kv_stride), 0.0f, p,
         seen);
    gemm(rows, seen, a->width, 1.0f, dout, matrix_flipped(job->v + offsets.kv, a->kv_stride), 0.0f,
         ds, seen);
    for (size_t r = 0; r < rows; r++) {
        job->m->table->softmax_again(p + r * seen, row + r + 1, seen, job->scale,
                                     job->log_sums[offsets.log_sums + row + r]);
    }
    gemm(seen, a->width, rows, 1.0f, matrix_flipped(p, seen), dout, 1.0f, job->dv + offsets.kv,
         a->kv_stride);
    for (size_t r = 0; r < rows; r++) {
        job->m->table->softmax_back(p + r * seen, ds + r * seen, row + r + 1, seen, job->scale);
    }
    gemm(rows, a->width, seen, 1.0f, matrix_plain(ds, seen),
         matrix_plain(job->k + offsets.kv, a->kv_stride), 0.0f, dq, a->q_stride);
    gemm(seen, a->width, rows, 1.0f, matrix_flipped(ds, seen), q, 1.0f, job->dk + offsets.kv,
         a->kv_stride);
}

/* One task is one key head with all query heads that read it, in their order. */
static void attention_back_task(void *ctx, size_t task, int thread)
{
    attention_job    *job      = ctx;
    const heads_args *a        = job->args;
    size_t            group    = a->heads / a->kv_heads;
    size_t            sequence = task / a->kv_heads, first_head = task % a->kv_heads * group;
    size_t            kv = attention_locate(a, sequence, first_head).kv;

    for (size_t t = 0; t < a->length; t++) {
        memset(job->dk + kv + t * a->kv_stride, 0, a->width * sizeof(float));
        memset(job->dv + kv + t * a->kv_stride, 0, a->width * sizeof(float));
    }
    for (size_t head = first_head; head < first_head + group; head++) {
        attention_offsets offsets = attention_locate(a, sequence, head);

        for (size_t row = 0; row < a->length; row += CPU_ATTENTION_ROWS) {
            attention_back_block(job, offsets, row, size_min(CPU_ATTENTION_ROWS, a->length - row),
                                 lane_of(job->m, thread));
        }
    }
}

static void cpu_attention_back(compute *c, const heads_args *args, const void *out,
                               const void *dout, const float *log_sums, void *dq, void *dk,
                               void *dv)
{
    cpu          *m   = cpu_of(c);
    attention_job job = attention_of(m, args);

    (void)out; /* all probabilities of a row are in memory, so their sums do not need it */
    job.dout     = dout;
    job.log_sums = (float *)log_sums;
    job.dq       = dq;
    job.dk       = dk;
    job.dv       = dv;
    pool_run(m->threads, args->batch * args->kv_heads, attention_back_task, &job);
}

/* ----------------------------------------------------------------- head -- */

static linear_job head_of(const cpu *m, const void *x, tensor weight)
{
    linear_job job = {.shape  = {.rows = m->rows, .in = m->limits.hidden, .out = m->limits.vocab},
                      .weight = weight,
                      .x      = x,
                      .y      = m->logits,
                      .dy     = m->logits};

    if (is_half(weight)) {
        job.half_x = narrow(m, x, m->rows * m->limits.hidden, m->half_x);
    }
    return job;
}

typedef struct entropy_job {
    const cpu *m;
    float      scale;
    int        is_half; /* the gradient becomes bf16 and each row overwrites its logits */
} entropy_job;

static void entropy_task(void *ctx, size_t task, int thread)
{
    const entropy_job *job   = ctx;
    const cpu         *m     = job->m;
    size_t             vocab = m->limits.vocab, target = (size_t)m->targets[task];
    float             *row = m->logits + task * vocab;

    (void)thread;
    m->row_losses[task] = job->scale == 0.0f
                              ? m->table->cross_entropy_value(row, vocab, target)
                              : m->table->cross_entropy(row, vocab, target, job->scale);
    if (job->is_half && job->scale != 0.0f) {
        m->table->narrow(row, (uint16_t *)row, vocab);
    }
}

static void cpu_head(compute *c, const void *x, tensor weight, float grad_scale)
{
    cpu        *m   = cpu_of(c);
    entropy_job job = {.m = m, .scale = grad_scale / (float)m->rows, .is_half = is_half(weight)};
    double      sum = 0.0;

    linear_run(m, head_of(m, x, weight), m->limits.vocab, linear_task);
    pool_run(m->threads, m->rows, entropy_task, &job);
    for (size_t r = 0; r < m->rows; r++) {
        sum += m->row_losses[r];
    }
    m->losses += (double)(float)(sum / (double)m->rows);
}

static void cpu_head_back(compute *c, const void *x, tensor weight, void *dx)
{
    cpu       *m   = cpu_of(c);
    linear_job job = head_of(m, x, weight);

    job.dx = dx;
    if (is_half(weight)) {
        job.half_dy        = (const uint16_t *)m->logits;
        job.half_dy_stride = 2 * m->limits.vocab;
    }
    linear_run(m, job, m->limits.vocab, linear_back_weight_task);
    back_input_run(m, job);
}

static const compute_ops cpu_ops = {
    .struct_size    = sizeof(compute_ops),
    .name           = "cpu",
    .destroy        = cpu_destroy,
    .scratch_bytes  = cpu_scratch_bytes,
    .alloc          = cpu_alloc,
    .free           = cpu_free,
    .upload         = cpu_upload,
    .copy           = cpu_copy,
    .batch_set      = cpu_batch_set,
    .losses_close   = cpu_losses_close,
    .losses_take    = cpu_losses_take,
    .logits_get     = cpu_logits_get,
    .embed          = cpu_embed,
    .embed_back     = cpu_embed_back,
    .linear         = cpu_linear,
    .linear_back    = cpu_linear_back,
    .norm           = cpu_norm,
    .norm_back      = cpu_norm_back,
    .rope           = cpu_rope,
    .rope_back      = cpu_rope_back,
    .attention      = cpu_attention,
    .attention_back = cpu_attention_back,
    .gelu           = cpu_gelu,
    .swiglu         = cpu_swiglu,
    .swiglu_back    = cpu_swiglu_back,
    .head           = cpu_head,
    .head_back      = cpu_head_back,
};

/* -------------------------------------------------------------- create -- */

static int memory_make(cpu *m)
{
    size_t each = m->room.vector_elems;

    m->memory     = aligned_alloc(64, m->room.memory_elems * sizeof(float));
    m->row_losses = calloc(m->rows, sizeof(*m->row_losses));
    m->order      = calloc(2 * m->rows, sizeof(*m->order));
    if (m->memory == NULL || m->row_losses == NULL || m->order == NULL) {
        return -1;
    }
    m->logits   = m->memory;
    m->weight   = m->logits + m->room.logits_elems;
    m->bias     = m->weight + each;
    m->dweight  = m->bias + each;
    m->dbias    = m->dweight + each;
    m->half_x   = (uint16_t *)(m->dbias + each);
    m->half_dy  = m->half_x + m->room.half_elems;
    m->lanes    = m->dbias + each + m->room.half_elems;
    m->partials = m->lanes + m->room.lane_elems * (size_t)pool_threads(m->threads);
    return 0;
}

compute *compute_cpu_create(const compute_params *params, char *why, size_t why_bytes)
{
    cpu *m = calloc(1, sizeof(*m));

    if (m != NULL) {
        m->base    = (compute){.ops = &cpu_ops, .elem_bytes = sizeof(float)};
        m->limits  = params->limits;
        m->rows    = params->limits.batch * params->limits.length;
        m->threads = params->threads;
        m->table   = rows_best();
        m->room    = cpu_room_of(&params->limits, pool_threads(params->threads));
    }
    if (m == NULL || memory_make(m) != 0) {
        (void)snprintf(why, why_bytes, "out of memory");
        compute_destroy(m == NULL ? NULL : &m->base);
        return NULL;
    }
    return &m->base;
}
