/* The CPU's operations behind compute.h: activations in fp32, vectors widened to fp32 around each
 * operation, all logits at once. What is computed stands in ops.c. */
#include "compute.h"

#include "room.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct cpu {
    compute        base;
    compute_limits limits;
    size_t         rows;
    ops           *o;
    float         *memory;
    cpu_room       room;
    float         *logits;                          /* [rows, vocab] */
    float         *weight, *bias, *dweight, *dbias; /* vectors of one operation in fp32 */
    const int32_t *inputs, *targets;
    double         losses;
} cpu;

static cpu *cpu_of(compute *c)
{
    return (cpu *)c;
}

/* ------------------------------------------------------------- vectors -- */

/* Values of a one-dimensional parameter: its own fp32, or widened into `room`. NULL: there is none. */
static const float *vector_get(tensor t, float *room, size_t elems)
{
    if (t.data == NULL || t.dtype == SHERD_F32) {
        return t.data;
    }
    rows_best()->widen(t.dtype, t.data, room, elems);
    return room;
}

/* Where its gradient is summed: in place in fp32, else in `room`, which vector_add adds once. */
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

    ops_destroy(m->o);
    free(m->memory);
    free(m);
}

static size_t cpu_scratch_bytes(const compute *c)
{
    const cpu *m = (const cpu *)c;

    return m->room.memory_elems * sizeof(float) + ops_scratch_bytes(m->o);
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

static void cpu_batch_set(compute *c, const int32_t *inputs, const int32_t *targets)
{
    cpu_of(c)->inputs  = inputs;
    cpu_of(c)->targets = targets;
}

static sherd_status cpu_losses_take(compute *c, double *sum_out)
{
    *sum_out          = cpu_of(c)->losses;
    cpu_of(c)->losses = 0.0;
    return SHERD_OK;
}

static void cpu_logits_get(compute *c, size_t row, float *out)
{
    const cpu *m = cpu_of(c);

    memcpy(out, m->logits + row * m->limits.vocab, m->limits.vocab * sizeof(*out));
}

/* ---------------------------------------------------------- operations -- */

static void cpu_embed(compute *c, tensor tokens, tensor positions, void *y)
{
    cpu *m = cpu_of(c);

    ops_embed(m->o, m->rows, m->limits.length, m->limits.hidden, m->inputs, tokens, positions, y);
}

static void cpu_embed_back(compute *c, const void *dy, tensor tokens, tensor positions)
{
    cpu *m = cpu_of(c);

    ops_embed_back(m->o, m->rows, m->limits.length, m->limits.hidden, m->inputs, dy, tokens,
                   positions);
}

static void cpu_linear(compute *c, const linear_args *args)
{
    cpu         *m    = cpu_of(c);
    const float *bias = vector_get(args->bias, m->bias, args->shape.out);

    ops_linear(m->o, args->shape, args->x, args->weight, bias, args->residual, args->y);
    if (args->gelu != NULL) {
        ops_gelu(m->o, args->shape.rows * args->shape.out, args->y, args->gelu);
    }
}

static void cpu_linear_back(compute *c, const linear_back_args *args)
{
    cpu   *m     = cpu_of(c);
    float *dbias = vector_grad(args->bias, m->dbias, args->shape.out);

    ops_linear_back_weight(m->o, args->shape, args->x, args->dy, args->weight, dbias);
    vector_add(args->bias, dbias, args->shape.out);
    ops_linear_back_input(m->o, args->shape, args->dy, args->weight, args->dx, args->is_added);
    if (args->gelu_x != NULL) {
        ops_gelu_back(m->o, args->shape.rows * args->shape.in, args->gelu_x, args->dx);
    }
}

static norm_args norm_of(cpu *m, const norm_rows *args)
{
    return (norm_args){.rows   = args->rows,
                       .width  = args->width,
                       .x      = args->x,
                       .weight = vector_get(args->weight, m->weight, args->width),
                       .bias   = vector_get(args->bias, m->bias, args->width)};
}

static void cpu_norm(compute *c, const norm_rows *args, void *y)
{
    cpu *m = cpu_of(c);

    ops_norm(m->o, norm_of(m, args), y);
}

static void cpu_norm_back(compute *c, const norm_rows *args, const void *dy, void *dx, int is_added)
{
    cpu   *m       = cpu_of(c);
    float *dweight = vector_grad(args->weight, m->dweight, args->width);
    float *dbias   = vector_grad(args->bias, m->dbias, args->width);

    if (!is_added) {
        memset(dx, 0, args->rows * args->width * sizeof(float));
    }
    ops_norm_back(m->o, norm_of(m, args), dy, dx, dweight, dbias);
    vector_add(args->weight, dweight, args->width);
    vector_add(args->bias, dbias, args->width);
}

static void cpu_rotate(compute *c, const rotate_args *args)
{
    cpu *m = cpu_of(c);

    ops_rotate(m->o, m->rows, m->limits.length, args->heads, args->width, args->x, args->cosines,
               args->sines, args->direction);
}

static attention_args attention_of(const heads_args *args)
{
    return (attention_args){.batch     = args->batch,
                            .length    = args->length,
                            .heads     = args->heads,
                            .kv_heads  = args->kv_heads,
                            .width     = args->width,
                            .q_stride  = args->q_stride,
                            .kv_stride = args->kv_stride,
                            .q         = args->q,
                            .k         = args->k,
                            .v         = args->v};
}

static void cpu_attention(compute *c, const heads_args *args, void *out, float *log_sums)
{
    ops_attention(cpu_of(c)->o, attention_of(args), out, log_sums);
}

static void cpu_attention_back(compute *c, const heads_args *args, const void *out,
                               const void *dout, const float *log_sums, void *dq, void *dk,
                               void *dv)
{
    (void)out; /* the probabilities are all there at once: their sums need no detour over it */
    ops_attention_back(cpu_of(c)->o, attention_of(args), dout, log_sums, dq, dk, dv);
}

static void cpu_swiglu(compute *c, size_t elems, const void *gate, const void *up, void *y)
{
    ops_swiglu(cpu_of(c)->o, elems, gate, up, y);
}

static void cpu_swiglu_back(compute *c, size_t elems, const void *gate, const void *up, void *d,
                            void *dgate)
{
    ops_swiglu_back(cpu_of(c)->o, elems, gate, up, d, dgate);
}

static linear_shape head_shape(const cpu *m)
{
    return (linear_shape){.rows = m->rows, .in = m->limits.hidden, .out = m->limits.vocab};
}

static void cpu_head(compute *c, const void *x, tensor weight, float grad_scale)
{
    cpu   *m = cpu_of(c);
    double loss;

    ops_linear(m->o, head_shape(m), x, weight, NULL, NULL, m->logits);
    loss = ops_cross_entropy(m->o, m->rows, m->limits.vocab, m->logits, m->targets, grad_scale);
    m->losses += (double)(float)loss;
}

static void cpu_head_back(compute *c, const void *x, tensor weight, void *dx)
{
    cpu *m = cpu_of(c);

    ops_linear_back_weight(m->o, head_shape(m), x, m->logits, weight, NULL);
    ops_linear_back_input(m->o, head_shape(m), m->logits, weight, dx, 0);
}

static const compute_ops cpu_ops = {
    .struct_size    = sizeof(compute_ops),
    .name           = "cpu",
    .destroy        = cpu_destroy,
    .scratch_bytes  = cpu_scratch_bytes,
    .alloc          = cpu_alloc,
    .free           = cpu_free,
    .upload         = cpu_upload,
    .batch_set      = cpu_batch_set,
    .losses_take    = cpu_losses_take,
    .logits_get     = cpu_logits_get,
    .embed          = cpu_embed,
    .embed_back     = cpu_embed_back,
    .linear         = cpu_linear,
    .linear_back    = cpu_linear_back,
    .norm           = cpu_norm,
    .norm_back      = cpu_norm_back,
    .rotate         = cpu_rotate,
    .attention      = cpu_attention,
    .attention_back = cpu_attention_back,
    .swiglu         = cpu_swiglu,
    .swiglu_back    = cpu_swiglu_back,
    .head           = cpu_head,
    .head_back      = cpu_head_back,
};

/* -------------------------------------------------------------- create -- */

static int memory_make(cpu *m)
{
    size_t each = m->room.vector_elems;

    m->memory = aligned_alloc(64, m->room.memory_elems * sizeof(float));
    if (m->memory == NULL) {
        return -1;
    }
    m->logits  = m->memory;
    m->weight  = m->logits + m->room.logits_elems;
    m->bias    = m->weight + each;
    m->dweight = m->bias + each;
    m->dbias   = m->dweight + each;
    return 0;
}

compute *compute_cpu_create(const compute_params *params, char *why, size_t why_bytes)
{
    cpu *m = calloc(1, sizeof(*m));

    if (m != NULL) {
        m->base   = (compute){.ops = &cpu_ops, .elem_bytes = sizeof(float)};
        m->limits = params->limits;
        m->rows   = params->limits.batch * params->limits.length;
        m->room   = cpu_room_of(&params->limits);
        m->o      = ops_create(params->threads, &m->room.ops, NULL);
    }
    if (m == NULL || m->o == NULL || memory_make(m) != 0) {
        (void)snprintf(why, why_bytes, "out of memory");
        compute_destroy(m == NULL ? NULL : &m->base);
        return NULL;
    }
    return &m->base;
}
