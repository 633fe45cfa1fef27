/* GPT-2 and MiniMind-3, forward and backward. See model.h. */
#include "model.h"

#include <stdlib.h>
#include <string.h>

#define ROTARY_THETA 1e6
/* Most tokens of a micro-batch: keeps products of sizes far from overflow. */
#define MAX_ROWS ((size_t)1 << 26)

/* What a layer's forward keeps for its backward; with recomputation all layers share one. */
typedef struct layer_memory {
    float *norm1;             /* [rows, hidden] */
    float *q_raw, *k_raw;     /* before their norms and the rotation (MiniMind) */
    float *q, *k, *v;         /* GPT-2: the three parts of one [rows, 3 * hidden] */
    float *log_sums;          /* [batch, heads, length] */
    float *attention, *norm2; /* [rows, hidden] */
    float *middle;            /* residual stream between attention and feed-forward */
    float *up, *gate, *act;   /* [rows, inner]; gate: MiniMind */
} layer_memory;

struct model {
    model_params p;
    ops         *o;
    size_t       rows, head, kv; /* batch * length; width of a head; kv_heads * head */
    float       *memory;
    size_t       memory_elems;

    float        *stream; /* [layers + 1, rows, hidden]: the residual stream before each layer */
    layer_memory *layers; /* [layers], or one */
    float        *norm_last, *logits;
    float        *cosines, *sines;

    float *dstream; /* gradient of the residual stream */
    float *dhidden, *dqkv, *dinner, *dgate;
    float *vectors, *vector_grads; /* one-dimensional parameters of a unit in fp32 */
    size_t vector_offset[ARCH_ROLES];
    size_t vector_elems[ARCH_ROLES]; /* 0: not a vector, or not in this architecture */
    size_t vector_total;

    const int32_t *inputs, *targets;
    double         loss;
};

/* ------------------------------------------------------------- memory -- */

static size_t size_max(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Hands out pieces of one allocation; without memory it only counts. */
typedef struct arena {
    float *memory;
    size_t used_elems;
} arena;

static float *arena_take(arena *a, size_t elems)
{
    float *piece = a->memory == NULL ? NULL : a->memory + a->used_elems;

    a->used_elems += (elems + 15) / 16 * 16;
    return piece;
}

static void layer_place(const model *m, arena *a, layer_memory *layer)
{
    const arch *sizes  = &m->p.sizes;
    size_t      hidden = m->rows * sizes->hidden, inner = m->rows * sizes->inner;

    layer->norm1 = arena_take(a, hidden);
    if (sizes->kind == ARCH_GPT2) {
        layer->q = arena_take(a, 3 * hidden);
        layer->k = a->memory == NULL ? NULL : layer->q + sizes->hidden;
        layer->v = a->memory == NULL ? NULL : layer->q + 2 * sizes->hidden;
    } else {
        layer->q_raw = arena_take(a, hidden);
        layer->k_raw = arena_take(a, m->rows * m->kv);
        layer->q     = arena_take(a, hidden);
        layer->k     = arena_take(a, m->rows * m->kv);
        layer->v     = arena_take(a, m->rows * m->kv);
        layer->gate  = arena_take(a, inner);
    }
    layer->log_sums  = arena_take(a, m->rows * sizes->heads);
    layer->attention = arena_take(a, hidden);
    layer->norm2     = arena_take(a, hidden);
    layer->middle    = arena_take(a, hidden);
    layer->up        = arena_take(a, inner);
    layer->act       = arena_take(a, inner);
}

static size_t layer_memory_count(const model *m)
{
    return m->p.is_recomputed ? 1 : m->p.sizes.layers;
}

static void model_place(model *m, arena *a)
{
    const arch *sizes  = &m->p.sizes;
    size_t      hidden = m->rows * sizes->hidden;

    m->stream = arena_take(a, (sizes->layers + 1) * hidden);
    for (size_t i = 0; i < layer_memory_count(m); i++) {
        layer_place(m, a, &m->layers[i]);
    }
    m->norm_last    = arena_take(a, hidden);
    m->logits       = arena_take(a, m->rows * sizes->vocab);
    m->cosines      = arena_take(a, m->p.length * m->head / 2);
    m->sines        = arena_take(a, m->p.length * m->head / 2);
    m->dstream      = arena_take(a, hidden);
    m->dhidden      = arena_take(a, hidden);
    m->dqkv         = arena_take(a, 3 * hidden);
    m->dinner       = arena_take(a, m->rows * size_max(sizes->inner, sizes->hidden));
    m->dgate        = arena_take(a, sizes->kind == ARCH_MINIMIND ? m->rows * sizes->inner : 0);
    m->vectors      = arena_take(a, m->vector_total);
    m->vector_grads = arena_take(a, m->vector_total);
}

/* Room for the one-dimensional parameters of any unit: a role stands once in a unit. */
static void vectors_plan(model *m)
{
    const arch *sizes  = &m->p.sizes;
    size_t      num    = arch_param_count(sizes);
    size_t      layer1 = arch_unit_first_param(sizes, 2); /* the other layers repeat the first */

    for (size_t k = 0; k < num; k++) {
        arch_param param;

        if (k == layer1 && sizes->layers > 1) {
            k = arch_unit_first_param(sizes, sizes->layers + 1);
        }
        arch_param_get(sizes, k, &param);
        if (param.ndim == 1) {
            m->vector_offset[param.role] = m->vector_total;
            m->vector_elems[param.role]  = param.shape[0];
            m->vector_total += (param.shape[0] + 15) / 16 * 16;
        }
    }
}

model *model_create(const model_params *params)
{
    ops_limits limits = {.rows       = params->batch * params->length,
                         .width      = size_max(3 * params->sizes.hidden, params->sizes.inner),
                         .length     = params->length,
                         .heads      = params->sizes.heads,
                         .head_width = params->sizes.hidden / params->sizes.heads,
                         .is_fp32    = params->dtype == SHERD_F32};
    arena      room   = {0};
    model     *m      = calloc(1, sizeof(*m));

    if (m == NULL || params->length > MAX_ROWS / params->batch) {
        free(m);
        return NULL;
    }
    m->p    = *params;
    m->rows = limits.rows;
    m->head = limits.head_width;
    m->kv   = m->head * params->sizes.kv_heads;
    vectors_plan(m);
    m->layers = calloc(layer_memory_count(m), sizeof(*m->layers));
    m->o      = ops_create(params->threads, &limits, NULL);
    if (m->layers == NULL || m->o == NULL) {
        goto err_destroy;
    }
    model_place(m, &room);
    m->memory_elems = room.used_elems;
    m->memory       = aligned_alloc(64, m->memory_elems * sizeof(float));
    if (m->memory == NULL) {
        goto err_destroy;
    }
    room = (arena){.memory = m->memory};
    model_place(m, &room);
    ops_rotate_tables(params->length, m->head, ROTARY_THETA, m->cosines, m->sines);
    return m;

err_destroy:
    model_destroy(m);
    return NULL;
}

void model_destroy(model *m)
{
    if (m == NULL) {
        return;
    }
    ops_destroy(m->o);
    free(m->layers);
    free(m->memory);
    free(m);
}

size_t model_bytes(const model *m)
{
    return m->memory_elems * sizeof(float) + ops_scratch_bytes(m->o);
}

void model_batch_set(model *m, const int32_t *inputs, const int32_t *targets)
{
    m->inputs  = inputs;
    m->targets = targets;
}

double model_loss(const model *m)
{
    return m->loss;
}

const float *model_logits(const model *m)
{
    return m->logits;
}

/* ------------------------------------------- parameters that are vectors -- */

/* Where a role's values stand in fp32 while its unit computes. NULL: the unit has none. */
static const float *vector_of(const model *m, const model_unit *unit, arch_role role)
{
    if (unit->by_role[role].data == NULL) {
        return NULL;
    }
    return m->p.dtype == SHERD_F32 ? unit->by_role[role].data : m->vectors + m->vector_offset[role];
}

static float *vector_grad_of(const model *m, const model_unit *unit, arch_role role)
{
    if (unit->by_role[role].data == NULL) {
        return NULL;
    }
    return m->p.dtype == SHERD_F32 ? unit->by_role[role].grad
                                   : m->vector_grads + m->vector_offset[role];
}

static int is_converted(const model *m, const model_unit *unit, int role)
{
    return m->p.dtype != SHERD_F32 && m->vector_elems[role] > 0 && unit->by_role[role].data != NULL;
}

static void vectors_load(model *m, const model_unit *unit)
{
    for (int role = 0; role < ARCH_ROLES; role++) {
        if (is_converted(m, unit, role)) {
            rows_best()->widen(m->p.dtype, unit->by_role[role].data,
                               m->vectors + m->vector_offset[role], m->vector_elems[role]);
        }
    }
}

static void vector_grads_clear(model *m)
{
    if (m->p.dtype != SHERD_F32) {
        memset(m->vector_grads, 0, m->vector_total * sizeof(float));
    }
}

static void vector_grads_store(model *m, const model_unit *unit)
{
    for (int role = 0; role < ARCH_ROLES; role++) {
        if (is_converted(m, unit, role)) {
            rows_best()->accumulate(m->p.dtype, m->vector_grads + m->vector_offset[role],
                                    unit->by_role[role].grad, m->vector_elems[role]);
        }
    }
}

/* -------------------------------------------------------------- pieces -- */

static linear_shape shape_of(const model *m, size_t in, size_t out)
{
    return (linear_shape){.rows = m->rows, .in = in, .out = out};
}

/* y = x . weight^T + bias (+ residual) for the role of a matrix and of its bias. */
static void linear(model *m, const model_unit *unit, arch_role weight, arch_role bias,
                   linear_shape shape, const float *x, const float *residual, float *y)
{
    ops_linear(m->o, shape, x, unit->by_role[weight], vector_of(m, unit, bias), residual, y);
}

/* dx (+)= dy . weight, weight and bias gradients. `bias` names a role that MiniMind lacks. */
static void linear_back(model *m, const model_unit *unit, arch_role weight, arch_role bias,
                        linear_shape shape, const float *x, const float *dy, float *dx,
                        int is_added)
{
    ops_linear_back_weight(m->o, shape, x, dy, unit->by_role[weight],
                           vector_grad_of(m, unit, bias));
    ops_linear_back_input(m->o, shape, dy, unit->by_role[weight], dx, is_added);
}

static norm_args norm_of(const model *m, const model_unit *unit, arch_role weight, arch_role bias,
                         const float *x)
{
    return (norm_args){.rows   = m->rows,
                       .width  = m->p.sizes.hidden,
                       .x      = x,
                       .weight = vector_of(m, unit, weight),
                       .bias   = vector_of(m, unit, bias)};
}

static void norm(model *m, const model_unit *unit, arch_role weight, arch_role bias, const float *x,
                 float *y)
{
    ops_norm(m->o, norm_of(m, unit, weight, bias, x), y);
}

static void norm_back(model *m, const model_unit *unit, arch_role weight, arch_role bias,
                      const float *x, const float *dy, float *dx)
{
    ops_norm_back(m->o, norm_of(m, unit, weight, bias, x), dy, dx, vector_grad_of(m, unit, weight),
                  vector_grad_of(m, unit, bias));
}

/* Norms of the heads of q or k; they have no bias, so any role without one serves. */
static norm_args head_norm_of(const model *m, const model_unit *unit, arch_role weight,
                              size_t heads, const float *x)
{
    return (norm_args){
        .rows = m->rows * heads, .width = m->head, .x = x, .weight = vector_of(m, unit, weight)};
}

static attention_args attention_of(const model *m, const layer_memory *layer)
{
    const arch *sizes   = &m->p.sizes;
    int         is_gpt2 = sizes->kind == ARCH_GPT2;

    return (attention_args){.batch     = m->p.batch,
                            .length    = m->p.length,
                            .heads     = sizes->heads,
                            .kv_heads  = sizes->kv_heads,
                            .width     = m->head,
                            .q_stride  = is_gpt2 ? 3 * sizes->hidden : sizes->hidden,
                            .kv_stride = is_gpt2 ? 3 * sizes->hidden : m->kv,
                            .q         = layer->q,
                            .k         = layer->k,
                            .v         = layer->v};
}

/* --------------------------------------------------------------- layers -- */

/* q, k and v of a MiniMind layer: projections, norms of the heads, rotation. */
static void minimind_qkv(model *m, const model_unit *unit, layer_memory *layer)
{
    const arch *sizes = &m->p.sizes;
    size_t      h = sizes->hidden, length = m->p.length;

    linear(m, unit, ARCH_Q, ARCH_QKV_BIAS, shape_of(m, h, h), layer->norm1, NULL, layer->q_raw);
    linear(m, unit, ARCH_K, ARCH_QKV_BIAS, shape_of(m, h, m->kv), layer->norm1, NULL, layer->k_raw);
    linear(m, unit, ARCH_V, ARCH_QKV_BIAS, shape_of(m, h, m->kv), layer->norm1, NULL, layer->v);
    ops_norm(m->o, head_norm_of(m, unit, ARCH_Q_NORM, sizes->heads, layer->q_raw), layer->q);
    ops_norm(m->o, head_norm_of(m, unit, ARCH_K_NORM, sizes->kv_heads, layer->k_raw), layer->k);
    ops_rotate(m->o, m->rows, length, sizes->heads, m->head, layer->q, m->cosines, m->sines, 1.0f);
    ops_rotate(m->o, m->rows, length, sizes->kv_heads, m->head, layer->k, m->cosines, m->sines,
               1.0f);
}

static void minimind_qkv_back(model *m, const model_unit *unit, layer_memory *layer, float *dq,
                              float *dk, float *dv)
{
    const arch *sizes = &m->p.sizes;
    size_t      h = sizes->hidden, length = m->p.length;
    float      *draw = m->dinner; /* free here: the feed-forward part is done */

    ops_rotate(m->o, m->rows, length, sizes->heads, m->head, dq, m->cosines, m->sines, -1.0f);
    ops_rotate(m->o, m->rows, length, sizes->kv_heads, m->head, dk, m->cosines, m->sines, -1.0f);

    memset(draw, 0, m->rows * h * sizeof(*draw));
    ops_norm_back(m->o, head_norm_of(m, unit, ARCH_Q_NORM, sizes->heads, layer->q_raw), dq, draw,
                  vector_grad_of(m, unit, ARCH_Q_NORM), NULL);
    linear_back(m, unit, ARCH_Q, ARCH_QKV_BIAS, shape_of(m, h, h), layer->norm1, draw, m->dhidden,
                0);
    memset(draw, 0, m->rows * m->kv * sizeof(*draw));
    ops_norm_back(m->o, head_norm_of(m, unit, ARCH_K_NORM, sizes->kv_heads, layer->k_raw), dk, draw,
                  vector_grad_of(m, unit, ARCH_K_NORM), NULL);
    linear_back(m, unit, ARCH_K, ARCH_QKV_BIAS, shape_of(m, h, m->kv), layer->norm1, draw,
                m->dhidden, 1);
    linear_back(m, unit, ARCH_V, ARCH_QKV_BIAS, shape_of(m, h, m->kv), layer->norm1, dv, m->dhidden,
                1);
}

/* y NULL: what backward needs is wanted, the result is not. */
static void feed_forward(model *m, const model_unit *unit, layer_memory *layer, float *y)
{
    size_t h = m->p.sizes.hidden, inner = m->p.sizes.inner, elems = m->rows * inner;

    linear(m, unit, ARCH_UP, ARCH_UP_BIAS, shape_of(m, h, inner), layer->norm2, NULL, layer->up);
    if (m->p.sizes.kind == ARCH_GPT2) {
        ops_gelu(m->o, elems, layer->up, layer->act);
    } else {
        linear(m, unit, ARCH_GATE, ARCH_UP_BIAS, shape_of(m, h, inner), layer->norm2, NULL,
               layer->gate);
        ops_swiglu(m->o, elems, layer->gate, layer->up, layer->act);
    }
    if (y != NULL) {
        linear(m, unit, ARCH_DOWN, ARCH_DOWN_BIAS, shape_of(m, inner, h), layer->act, layer->middle,
               y);
    }
}

/* Leaves the gradient of norm2's output in dhidden. */
static void feed_forward_back(model *m, const model_unit *unit, layer_memory *layer)
{
    size_t h = m->p.sizes.hidden, inner = m->p.sizes.inner, elems = m->rows * inner;

    linear_back(m, unit, ARCH_DOWN, ARCH_DOWN_BIAS, shape_of(m, inner, h), layer->act, m->dstream,
                m->dinner, 0);
    if (m->p.sizes.kind == ARCH_GPT2) {
        ops_gelu_back(m->o, elems, layer->up, m->dinner);
    } else {
        ops_swiglu_back(m->o, elems, layer->gate, layer->up, m->dinner, m->dgate);
    }
    linear_back(m, unit, ARCH_UP, ARCH_UP_BIAS, shape_of(m, h, inner), layer->norm2, m->dinner,
                m->dhidden, 0);
    if (m->p.sizes.kind == ARCH_MINIMIND) {
        linear_back(m, unit, ARCH_GATE, ARCH_UP_BIAS, shape_of(m, h, inner), layer->norm2, m->dgate,
                    m->dhidden, 1);
    }
}

/* From the stream x to the stream y; y NULL as in feed_forward. */
static void layer_forward(model *m, const model_unit *unit, layer_memory *layer, const float *x,
                          float *y)
{
    size_t h = m->p.sizes.hidden;

    norm(m, unit, ARCH_NORM1, ARCH_NORM1_BIAS, x, layer->norm1);
    if (m->p.sizes.kind == ARCH_GPT2) {
        linear(m, unit, ARCH_QKV, ARCH_QKV_BIAS, shape_of(m, h, 3 * h), layer->norm1, NULL,
               layer->q);
    } else {
        minimind_qkv(m, unit, layer);
    }
    ops_attention(m->o, attention_of(m, layer), layer->attention, layer->log_sums);
    linear(m, unit, ARCH_O, ARCH_O_BIAS, shape_of(m, h, h), layer->attention, x, layer->middle);
    norm(m, unit, ARCH_NORM2, ARCH_NORM2_BIAS, layer->middle, layer->norm2);
    feed_forward(m, unit, layer, y);
}

/* dstream: the gradient of the layer's output on entry, of its input on return. */
static void layer_backward(model *m, const model_unit *unit, layer_memory *layer, const float *x)
{
    size_t h       = m->p.sizes.hidden;
    int    is_gpt2 = m->p.sizes.kind == ARCH_GPT2;
    float *dq = m->dqkv, *dk = dq + (is_gpt2 ? h : m->rows * h);
    float *dv = dk + (is_gpt2 ? h : m->rows * m->kv);

    feed_forward_back(m, unit, layer);
    norm_back(m, unit, ARCH_NORM2, ARCH_NORM2_BIAS, layer->middle, m->dhidden, m->dstream);
    linear_back(m, unit, ARCH_O, ARCH_O_BIAS, shape_of(m, h, h), layer->attention, m->dstream,
                m->dhidden, 0);
    ops_attention_back(m->o, attention_of(m, layer), m->dhidden, layer->log_sums, dq, dk, dv);
    if (is_gpt2) {
        linear_back(m, unit, ARCH_QKV, ARCH_QKV_BIAS, shape_of(m, h, 3 * h), layer->norm1, m->dqkv,
                    m->dhidden, 0);
    } else {
        minimind_qkv_back(m, unit, layer, dq, dk, dv);
    }
    norm_back(m, unit, ARCH_NORM1, ARCH_NORM1_BIAS, x, m->dhidden, m->dstream);
}

/* ----------------------------------------------------------------- units -- */

static float *stream_before(model *m, size_t layer)
{
    return m->stream + layer * m->rows * m->p.sizes.hidden;
}

static layer_memory *layer_of(model *m, size_t layer)
{
    return &m->layers[m->p.is_recomputed ? 0 : layer];
}

static void last_forward(model *m, const model_unit *unit, float grad_scale)
{
    const arch *sizes = &m->p.sizes;

    norm(m, unit, ARCH_NORM_LAST, ARCH_NORM_LAST_BIAS, stream_before(m, sizes->layers),
         m->norm_last);
    ops_linear(m->o, shape_of(m, sizes->hidden, sizes->vocab), m->norm_last,
               unit->by_role[ARCH_TOKENS], NULL, NULL, m->logits);
    m->loss = ops_cross_entropy(m->o, m->rows, sizes->vocab, m->logits, m->targets, grad_scale);
}

static void last_backward(model *m, const model_unit *unit)
{
    const arch  *sizes = &m->p.sizes;
    linear_shape shape = shape_of(m, sizes->hidden, sizes->vocab);

    ops_linear_back_weight(m->o, shape, m->norm_last, m->logits, unit->by_role[ARCH_TOKENS], NULL);
    ops_linear_back_input(m->o, shape, m->logits, unit->by_role[ARCH_TOKENS], m->dhidden, 0);
    memset(m->dstream, 0, m->rows * sizes->hidden * sizeof(*m->dstream));
    norm_back(m, unit, ARCH_NORM_LAST, ARCH_NORM_LAST_BIAS, stream_before(m, sizes->layers),
              m->dhidden, m->dstream);
}

void model_forward(model *m, size_t unit, const model_unit *params, float grad_scale)
{
    size_t layers = m->p.sizes.layers;

    vectors_load(m, params);
    if (unit == 0) {
        ops_embed(m->o, m->rows, m->p.length, m->p.sizes.hidden, m->inputs,
                  params->by_role[ARCH_TOKENS], params->by_role[ARCH_POSITIONS],
                  stream_before(m, 0));
    } else if (unit <= layers) {
        layer_forward(m, params, layer_of(m, unit - 1), stream_before(m, unit - 1),
                      stream_before(m, unit));
    } else {
        last_forward(m, params, grad_scale);
    }
}

void model_backward(model *m, size_t unit, const model_unit *params)
{
    size_t layers = m->p.sizes.layers;

    vectors_load(m, params);
    vector_grads_clear(m);
    if (unit == 0) {
        ops_embed_back(m->o, m->rows, m->p.length, m->p.sizes.hidden, m->inputs, m->dstream,
                       params->by_role[ARCH_TOKENS], params->by_role[ARCH_POSITIONS]);
    } else if (unit <= layers) {
        if (m->p.is_recomputed) {
            layer_forward(m, params, layer_of(m, unit - 1), stream_before(m, unit - 1), NULL);
        }
        layer_backward(m, params, layer_of(m, unit - 1), stream_before(m, unit - 1));
    } else {
        last_backward(m, params);
    }
    vector_grads_store(m, params);
}
