/* Forward and backward of GPT-2 and of the families in the style of Llama, from the operations of
 * compute.h. See model.h. */
#include "model.h"

#include "models/room.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Most tokens of a micro-batch: keeps products of sizes far from overflow. */
#define MAX_ROWS ((size_t)1 << 26)

struct model {
    model_params p;
    compute     *c;
    size_t       rows;        /* batch * length */
    size_t       head, q, kv; /* width of a head, of all query heads, of all key heads */
    char        *memory;      /* of the compute's device */
    size_t       memory_bytes;
    model_shape  shape; /* from which the layout of the memory was computed */
    model_memory at;
    float        grad_scale; /* of the last forward */
};

/* ------------------------------------------------------------- memory -- */

/* Returns the address of element `elems` of an activation. */
static void *act_at(const model *m, void *base, size_t elems)
{
    return base == NULL ? NULL : (char *)base + elems * m->c->elem_bytes;
}

static int tables_make(model *m)
{
    size_t elems = m->p.length * (m->head / 2);
    float *room  = calloc(2 * elems + 1, sizeof(*room));

    if (room == NULL) {
        return -1;
    }
    if (m->p.sizes.kind != ARCH_GPT2) {
        compute_rotate_tables(m->p.length, m->head, &m->p.sizes.rope, room, room + elems);
    }
    m->c->ops->upload(m->c, m->at.cosines, room, elems * sizeof(*room));
    m->c->ops->upload(m->c, m->at.sines, room + elems, elems * sizeof(*room));
    free(room);
    return 0;
}

static int memory_make(model *m, char *why, size_t why_bytes)
{
    room r = {0};

    model_memory_lay_out(&m->p.sizes, &m->shape, &r, &m->at);
    m->memory_bytes = r.used_bytes;
    m->memory       = m->c->ops->alloc(m->c, m->memory_bytes);
    if (m->memory != NULL) {
        r = (room){.memory = m->memory};
        model_memory_lay_out(&m->p.sizes, &m->shape, &r, &m->at);
    }
    if (m->memory == NULL || tables_make(m) != 0) {
        (void)snprintf(why, why_bytes,
                       "no memory for %.1f MiB of activations of %zu sequences of %zu tokens; a "
                       "smaller --batch, or --activations cheap, cpu or recompute, needs less",
                       (double)m->memory_bytes / 0x1p20, m->p.batch, m->p.length);
        return -1;
    }
    return 0;
}

static compute *compute_of(const model_params *params, size_t layers, char *why, size_t why_bytes)
{
    compute_params made = {
        .limits  = model_limits(&params->sizes, params->batch, params->length, params->dtype),
        .backend = params->backend,
        .threads = params->threads,
        .stream  = params->stream,
        .choices = params->choices};

    made.limits.layers       = layers;
    made.limits.keeps_logits = params->keeps_logits;
    made.limits.logits_rows  = params->keeps_logits ? 0 : (size_t)params->choices.logits_rows;
    return compute_create(&made, why, why_bytes);
}

model *model_create(const model_params *params, char *why, size_t why_bytes)
{
    model *m = calloc(1, sizeof(*m));
    size_t layers;

    if (m == NULL || params->length > MAX_ROWS / params->batch) {
        (void)snprintf(why, why_bytes,
                       m == NULL ? "out of memory" : "the micro-batch is too large");
        free(m);
        return NULL;
    }
    if (params->sizes.window > 0 && params->length > params->sizes.window) {
        (void)snprintf(
            why, why_bytes,
            "attention with a window of %zu tokens is not computed, and sequences of %zu "
            "tokens are longer than it",
            params->sizes.window, params->length);
        free(m);
        return NULL;
    }
    m->p    = *params;
    m->rows = params->batch * params->length;
    m->head = arch_head(&params->sizes);
    m->q    = arch_q(&params->sizes);
    m->kv   = arch_kv(&params->sizes);
    m->shape =
        (model_shape){.batch = params->batch, .length = params->length, .places = params->places};
    layers       = params->sizes.layers;
    m->at.layers = calloc(layers, sizeof(*m->at.layers));
    m->at.before = calloc(layers + 1, sizeof(*m->at.before));
    if (m->at.layers == NULL || m->at.before == NULL) {
        (void)snprintf(why, why_bytes, "out of memory");
    } else {
        m->c = compute_of(params, model_memory_layers(&params->sizes, &m->shape), why, why_bytes);
    }
    if (m->c != NULL) {
        m->shape.elem_bytes  = m->c->elem_bytes;
        m->shape.keeps_stats = m->c->keeps_stats;
        m->shape.keeps_gelu  = m->c->keeps_gelu;
    }
    if (m->c == NULL || memory_make(m, why, why_bytes) != 0) {
        model_destroy(m);
        return NULL;
    }
    return m;
}

void model_destroy(model *m)
{
    if (m == NULL) {
        return;
    }
    if (m->c != NULL) {
        m->c->ops->free(m->c, m->memory);
    }
    compute_destroy(m->c);
    free(m->at.layers);
    free(m->at.before);
    free(m);
}

size_t model_bytes(const model *m)
{
    return m->memory_bytes + m->c->ops->scratch_bytes(m->c);
}

void model_batch_set(model *m, const int32_t *inputs, const int32_t *targets)
{
    m->c->ops->batch_set(m->c, inputs, targets);
}

void model_losses_close(model *m)
{
    m->c->ops->losses_close(m->c);
}

sherd_status model_losses_take(model *m, double *sum_out)
{
    return m->c->ops->losses_take(m->c, sum_out);
}

const char *model_device(const model *m)
{
    return m->c->device;
}

const char *model_note(const model *m)
{
    return m->c->note;
}

const char *model_why(const model *m)
{
    return m->c->why;
}

void model_logits_get(model *m, size_t row, float *out)
{
    m->c->ops->logits_get(m->c, row, out);
}

/* -------------------------------------------------------------- layers -- */

static linear_shape shape_of(const model *m, size_t in, size_t out)
{
    return (linear_shape){.rows = m->rows, .in = in, .out = out};
}

/* y = x . weight^T + bias (+ residual). `weight` and `bias` are the roles of a matrix and of its
 * bias. */
static void linear(model *m, const model_unit *unit, arch_role weight, arch_role bias,
                   linear_shape shape, const void *x, const void *residual, void *y)
{
    m->c->ops->linear(m->c, &(linear_args){.shape    = shape,
                                           .x        = x,
                                           .weight   = unit->by_role[weight],
                                           .bias     = unit->by_role[bias],
                                           .residual = residual,
                                           .y        = y});
}

/* dx = (is_added: +=) dy . weight; adds to the gradients of weight and bias. */
static void linear_back(model *m, const model_unit *unit, arch_role weight, arch_role bias,
                        linear_shape shape, const void *x, const void *dy, void *dx, int is_added)
{
    m->c->ops->linear_back(m->c, &(linear_back_args){.shape    = shape,
                                                     .x        = x,
                                                     .dy       = dy,
                                                     .weight   = unit->by_role[weight],
                                                     .bias     = unit->by_role[bias],
                                                     .dx       = dx,
                                                     .is_added = is_added});
}

static norm_rows norm_of(const model *m, const model_unit *unit, arch_role weight, arch_role bias,
                         const void *x, float *stats)
{
    return (norm_rows){.rows   = m->rows,
                       .width  = m->p.sizes.hidden,
                       .eps    = (float)m->p.sizes.norm_eps,
                       .x      = x,
                       .weight = unit->by_role[weight],
                       .bias   = unit->by_role[bias],
                       .stats  = stats};
}

static void norm(model *m, norm_rows args, void *y)
{
    m->c->ops->norm(m->c, &args, y);
}

static void norm_back(model *m, norm_rows args, const void *dy, void *dx, int is_added)
{
    m->c->ops->norm_back(m->c, &args, dy, dx, is_added);
}

/* The norms of the heads of q and k, if the model has them, and their rotation; backward adds the
 * gradients. */
static rope_args rope_of(const model *m, const model_unit *unit, layer_memory *layer)
{
    return (rope_args){.width   = m->head,
                       .eps     = (float)m->p.sizes.norm_eps,
                       .cosines = m->at.cosines,
                       .sines   = m->at.sines,
                       .parts   = {{.heads  = m->p.sizes.heads,
                                    .weight = unit->by_role[ARCH_Q_NORM],
                                    .x      = layer->q_raw != NULL ? layer->q_raw : layer->q,
                                    .y      = layer->q},
                                   {.heads  = m->p.sizes.kv_heads,
                                    .weight = unit->by_role[ARCH_K_NORM],
                                    .x      = layer->k_raw != NULL ? layer->k_raw : layer->k,
                                    .y      = layer->k}}};
}

static heads_args attention_of(const model *m, const layer_memory *layer)
{
    const arch *sizes   = &m->p.sizes;
    int         is_gpt2 = sizes->kind == ARCH_GPT2;

    return (heads_args){.batch     = m->p.batch,
                        .length    = m->p.length,
                        .heads     = sizes->heads,
                        .kv_heads  = sizes->kv_heads,
                        .width     = m->head,
                        .q_stride  = is_gpt2 ? 3 * sizes->hidden : m->q,
                        .kv_stride = is_gpt2 ? 3 * sizes->hidden : m->kv,
                        .q         = layer->q,
                        .k         = layer->k,
                        .v         = layer->v};
}

/* --------------------------------------------------------------- layers -- */

/* q, k and v of a layer in the style of Llama: projections, norms of the heads if the model has
 * them, rotation. */
static void llama_qkv(model *m, const model_unit *unit, layer_memory *layer)
{
    size_t    h    = m->p.sizes.hidden;
    rope_args rope = rope_of(m, unit, layer);

    linear(m, unit, ARCH_Q, ARCH_Q_BIAS, shape_of(m, h, m->q), layer->norm1, NULL,
           layer->q_raw != NULL ? layer->q_raw : layer->q);
    linear(m, unit, ARCH_K, ARCH_K_BIAS, shape_of(m, h, m->kv), layer->norm1, NULL,
           layer->k_raw != NULL ? layer->k_raw : layer->k);
    linear(m, unit, ARCH_V, ARCH_V_BIAS, shape_of(m, h, m->kv), layer->norm1, NULL, layer->v);
    m->c->ops->rope(m->c, &rope);
}

static void llama_qkv_back(model *m, const model_unit *unit, layer_memory *layer, void *dq,
                           void *dk, void *dv)
{
    size_t    h    = m->p.sizes.hidden;
    void     *draw = m->at.dinner; /* not in use: the feed-forward part is done */
    rope_args rope = rope_of(m, unit, layer);

    rope.parts[0].dy = dq;
    rope.parts[0].dx = layer->q_raw != NULL ? draw : dq;
    rope.parts[1].dy = dk;
    rope.parts[1].dx = layer->k_raw != NULL ? act_at(m, draw, m->rows * m->q) : dk;
    m->c->ops->rope_back(m->c, &rope);
    linear_back(m, unit, ARCH_Q, ARCH_Q_BIAS, shape_of(m, h, m->q), layer->norm1, rope.parts[0].dx,
                m->at.dhidden, 0);
    linear_back(m, unit, ARCH_K, ARCH_K_BIAS, shape_of(m, h, m->kv), layer->norm1, rope.parts[1].dx,
                m->at.dhidden, 1);
    linear_back(m, unit, ARCH_V, ARCH_V_BIAS, shape_of(m, h, m->kv), layer->norm1, dv,
                m->at.dhidden, 1);
}

/* y NULL: computes only what backward needs, not the result. */
static void feed_forward(model *m, const model_unit *unit, layer_memory *layer, void *y)
{
    size_t      h = m->p.sizes.hidden, inner = m->p.sizes.inner;
    linear_args up = {.shape  = shape_of(m, h, inner),
                      .x      = layer->norm2,
                      .weight = unit->by_role[ARCH_UP],
                      .bias   = unit->by_role[ARCH_UP_BIAS],
                      .y      = layer->up};

    if (m->p.sizes.kind == ARCH_GPT2) {
        up.gelu = layer->act;
        m->c->ops->linear(m->c, &up);
    } else {
        m->c->ops->linear(m->c, &up);
        linear(m, unit, ARCH_GATE, ARCH_GATE_BIAS, shape_of(m, h, inner), layer->norm2, NULL,
               layer->gate);
    }
    if (y != NULL) {
        if (m->p.sizes.kind != ARCH_GPT2) {
            m->c->ops->swiglu(m->c, m->rows * inner, layer->gate, layer->up, layer->act);
        }
        linear(m, unit, ARCH_DOWN, ARCH_DOWN_BIAS, shape_of(m, inner, h), layer->act, layer->middle,
               y);
    }
}

/* Leaves the gradient of norm2's output in dhidden. */
static void feed_forward_back(model *m, const model_unit *unit, layer_memory *layer)
{
    int              is_gpt2 = m->p.sizes.kind == ARCH_GPT2;
    size_t           h = m->p.sizes.hidden, inner = m->p.sizes.inner;
    linear_back_args down = {.shape  = shape_of(m, inner, h),
                             .x      = is_gpt2 ? layer->act : NULL,
                             .dy     = m->at.dstream,
                             .weight = unit->by_role[ARCH_DOWN],
                             .bias   = unit->by_role[ARCH_DOWN_BIAS],
                             .dx     = m->at.dinner,
                             .gelu_x = is_gpt2 ? layer->up : NULL};
    linear_back_args up   = {.shape  = shape_of(m, h, inner),
                             .x      = layer->norm2,
                             .dy     = m->at.dinner,
                             .weight = unit->by_role[ARCH_UP],
                             .bias   = unit->by_role[ARCH_UP_BIAS],
                             .dx     = m->at.dhidden};

    if (is_gpt2) {
        m->c->ops->linear_back(m->c, &down);
    } else { /* act comes from swiglu_back, which needs its gradient */
        m->c->ops->linear_back(m->c, &down);
        m->c->ops->swiglu_back(m->c, m->rows * inner, layer->gate, layer->up, layer->act,
                               m->at.dinner, m->at.dgate);
        down.x  = layer->act;
        down.dx = NULL;
        m->c->ops->linear_back(m->c, &down);
    }
    m->c->ops->linear_back(m->c, &up);
    if (!is_gpt2) {
        linear_back(m, unit, ARCH_GATE, ARCH_GATE_BIAS, shape_of(m, h, inner), layer->norm2,
                    m->at.dgate, m->at.dhidden, 1);
    }
}

/* Computes the residual stream y after a layer from the stream x before it; y NULL as in
 * feed_forward. */
static void layer_forward(model *m, const model_unit *unit, layer_memory *layer, const void *x,
                          void *y)
{
    size_t     h = m->p.sizes.hidden;
    heads_args heads;

    norm(m, norm_of(m, unit, ARCH_NORM1, ARCH_NORM1_BIAS, x, layer->stats1), layer->norm1);
    if (m->p.sizes.kind == ARCH_GPT2) {
        linear(m, unit, ARCH_QKV, ARCH_QKV_BIAS, shape_of(m, h, 3 * h), layer->norm1, NULL,
               layer->q);
    } else {
        llama_qkv(m, unit, layer);
    }
    heads = attention_of(m, layer);
    m->c->ops->attention(m->c, &heads, layer->attention, layer->log_sums);
    linear(m, unit, ARCH_O, ARCH_O_BIAS, shape_of(m, m->q, h), layer->attention, x, layer->middle);
    norm(m, norm_of(m, unit, ARCH_NORM2, ARCH_NORM2_BIAS, layer->middle, layer->stats2),
         layer->norm2);
    feed_forward(m, unit, layer, y);
}

/* Recomputes the arrays that the layer shares with others, from its own arrays. x is its input. */
static void cheap_again(model *m, const model_unit *unit, layer_memory *layer, const void *x)
{
    rope_args rope = rope_of(m, unit, layer);

    norm(m, norm_of(m, unit, ARCH_NORM1, ARCH_NORM1_BIAS, x, layer->stats1), layer->norm1);
    norm(m, norm_of(m, unit, ARCH_NORM2, ARCH_NORM2_BIAS, layer->middle, layer->stats2),
         layer->norm2);
    if (layer->q_raw != NULL) {
        m->c->ops->rope(m->c, &rope);
    }
    if (m->p.sizes.kind == ARCH_GPT2 && !m->c->keeps_gelu) {
        m->c->ops->gelu(m->c, m->rows * m->p.sizes.inner, layer->up, layer->act);
    }
}

/* dstream is the gradient of the layer's output on entry, and of its input on return. */
static void layer_backward(model *m, const model_unit *unit, layer_memory *layer, const void *x)
{
    size_t     h       = m->p.sizes.hidden;
    int        is_gpt2 = m->p.sizes.kind == ARCH_GPT2;
    void      *dq = m->at.dqkv, *dk = act_at(m, dq, is_gpt2 ? h : m->rows * m->q);
    void      *dv    = act_at(m, dk, is_gpt2 ? h : m->rows * m->kv);
    heads_args heads = attention_of(m, layer);

    feed_forward_back(m, unit, layer);
    norm_back(m, norm_of(m, unit, ARCH_NORM2, ARCH_NORM2_BIAS, layer->middle, layer->stats2),
              m->at.dhidden, m->at.dstream, 1);
    linear_back(m, unit, ARCH_O, ARCH_O_BIAS, shape_of(m, m->q, h), layer->attention, m->at.dstream,
                m->at.dhidden, 0);
    m->c->ops->attention_back(m->c, &heads, layer->attention, m->at.dhidden, layer->log_sums, dq,
                              dk, dv);
    if (is_gpt2) {
        linear_back(m, unit, ARCH_QKV, ARCH_QKV_BIAS, shape_of(m, h, 3 * h), layer->norm1,
                    m->at.dqkv, m->at.dhidden, 0);
    } else {
        llama_qkv_back(m, unit, layer, dq, dk, dv);
    }
    norm_back(m, norm_of(m, unit, ARCH_NORM1, ARCH_NORM1_BIAS, x, layer->stats1), m->at.dhidden,
              m->at.dstream, 1);
}

/* ----------------------------------------------------------------- units -- */

/* A layer's memory in a pass. */
typedef struct layer_use {
    layer_memory memory;
    void        *x; /* its input, which its backward reads too */
} layer_use;

/* Forward copies the input of a layer that is moved to what moves. */
static layer_use layer_of(model *m, size_t layer, const model_unit *unit, int is_forward)
{
    layer_place place = layer_place_of(&m->p.places, layer);
    layer_use   use   = {.memory = m->at.layers[layer], .x = m->at.before[layer]};

    if (layer_place_is_moved(place)) {
        room  r = {.memory = unit->activation};
        void *kept;

        model_moved_lay_out(&m->p.sizes, &m->shape, place, &r, &kept, &use.memory);
        if (is_forward) {
            m->c->ops->copy(m->c, kept, use.x, m->rows * m->p.sizes.hidden * m->c->elem_bytes);
        }
        use.x = kept;
    }
    return use;
}

/* Everything except the unit that decides which kernels a pass queues, and with which arguments. */
typedef struct pass_key {
    model_unit params;
    float      grad_scale; /* of the head's backward; 0 elsewhere */
} pass_key;

/* Returns whether the pass has been replayed. It is not asked for the first unit, whose kernels
 * depend on the tokens, nor for the forward of the last unit, which does little if a backward
 * follows. */
static int pass_begin(model *m, size_t unit, int is_backward, const model_unit *params)
{
    pass_key key;

    if (m->c->ops->pass_begin == NULL) {
        return 0;
    }
    memset(&key, 0, sizeof(key));
    memcpy(&key.params, params, sizeof(key.params));
    key.grad_scale = unit > m->p.sizes.layers ? m->grad_scale : 0.0f;
    return m->c->ops->pass_begin(m->c, 2 * unit + (size_t)is_backward, &key, sizeof(key));
}

static void pass_end(model *m)
{
    if (m->c->ops->pass_end != NULL) {
        m->c->ops->pass_end(m->c);
    }
}

/* The parameter by which the head multiplies. */
static arch_role head_role(const model *m)
{
    return m->p.sizes.is_untied ? ARCH_HEAD : ARCH_TOKENS;
}

void model_forward(model *m, size_t unit, const model_unit *params, float grad_scale)
{
    size_t layers = m->p.sizes.layers;

    if (unit == 0) {
        m->c->ops->embed(m->c, params->by_role[ARCH_TOKENS], params->by_role[ARCH_POSITIONS],
                         m->at.before[0]);
    } else if (unit <= layers) {
        if (!pass_begin(m, unit, 0, params)) {
            layer_use use = layer_of(m, unit - 1, params, 1);

            layer_forward(m, params, &use.memory, use.x, m->at.before[unit]);
            pass_end(m);
        }
    } else {
        norm(m,
             norm_of(m, params, ARCH_NORM_LAST, ARCH_NORM_LAST_BIAS, m->at.before[layers],
                     m->at.stats_last),
             m->at.norm_last);
        m->c->ops->head(m->c, m->at.norm_last, params->by_role[head_role(m)], grad_scale);
        m->grad_scale = grad_scale;
    }
}

static void unit_backward(model *m, size_t unit, const model_unit *params)
{
    size_t layers = m->p.sizes.layers;

    if (unit <= layers) {
        layer_place place = layer_place_of(&m->p.places, unit - 1);
        layer_use   use   = layer_of(m, unit - 1, params, 0);

        if (layer_place_is_recomputed(place)) {
            layer_forward(m, params, &use.memory, use.x, NULL);
        } else if (place != LAYER_KEPT) {
            cheap_again(m, params, &use.memory, use.x);
        }
        layer_backward(m, params, &use.memory, use.x);
    } else {
        m->c->ops->head_back(m->c, m->at.norm_last, params->by_role[head_role(m)], m->at.dhidden);
        norm_back(m,
                  norm_of(m, params, ARCH_NORM_LAST, ARCH_NORM_LAST_BIAS, m->at.before[layers],
                          m->at.stats_last),
                  m->at.dhidden, m->at.dstream, 0);
    }
}

void model_backward(model *m, size_t unit, const model_unit *params)
{
    if (unit == 0) {
        m->c->ops->embed_back(m->c, m->at.dstream, params->by_role[ARCH_TOKENS],
                              params->by_role[ARCH_POSITIONS]);
    } else if (!pass_begin(m, unit, 1, params)) {
        unit_backward(m, unit, params);
        pass_end(m);
    }
}
