/* The one place that counts bytes of activations and scratch. See room.h and activations.h. It
 * needs neither the library nor the code that computes, so planning links it without the
 * trainer. */
#include "models/activations.h"

#include "models/room.h"
#include "models/room_cuda.h"

#include <stdint.h>
#include <string.h>

/* Most logits of a GPU at a time, or as many elements as the layers keep of their two inner arrays,
 * if these are more. With fewer rows, products of the head do not fill the device, and every part
 * adds to the gradient of the head's weight. That gradient then has a copy in fp32: where it takes
 * more than the logits that are left out, all come at once. */
#define LOGITS_ELEMS ((size_t)400 << 20)
#define LOGITS_MOST  (((size_t)1 << 31) - 1) /* offsets in a matrix fit 32 bits */
#define LOGITS_ROWS  128                     /* rows of a part are a multiple of this */
/* Elements of which the start of a row of logits is a multiple; otherwise 16-byte accesses are not
 * aligned. */
#define LOGITS_ALIGN 64

static size_t padded(size_t elems, size_t each)
{
    return count_of(elems, each) * each;
}

static size_t dtype_bytes(sherd_dtype dtype)
{
    return dtype == SHERD_F32 ? 4 : 2;
}

static void *room_take(room *r, size_t len_bytes)
{
    char *taken = r->memory == NULL ? NULL : r->memory + r->used_bytes;

    r->used_bytes += padded(len_bytes, ROOM_ALIGN_BYTES);
    return taken;
}

/* --------------------------------------------------------- activations -- */

/* Sizes of the activations, in elements. */
typedef struct row_sizes {
    int    keeps_stats, keeps_gelu;
    size_t rows, elem_bytes;
    size_t hidden, inner, q, kv; /* of all rows */
} row_sizes;

static row_sizes row_sizes_of(const arch *sizes, const model_shape *shape)
{
    size_t rows = shape->batch * shape->length;

    return (row_sizes){.rows        = rows,
                       .keeps_stats = shape->keeps_stats,
                       .keeps_gelu  = shape->keeps_gelu,
                       .elem_bytes  = shape->elem_bytes,
                       .hidden      = rows * sizes->hidden,
                       .inner       = rows * sizes->inner,
                       .q           = rows * arch_q(sizes),
                       .kv          = rows * arch_kv(sizes)};
}

static void *take(room *r, const row_sizes *p, size_t elems)
{
    return room_take(r, elems * p->elem_bytes);
}

static void *columns_from(void *base, const row_sizes *p, size_t elems)
{
    return base == NULL ? NULL : (char *)base + elems * p->elem_bytes;
}

/* Mean and 1 / std of each row; NULL where they are not used. */
static float *stats_take(room *r, const row_sizes *p)
{
    return p->keeps_stats ? room_take(r, 2 * p->rows * sizeof(float)) : NULL;
}

/* Lays out what backward makes again of a layer that does not keep it. */
static void cheap_lay_out(const arch *sizes, const row_sizes *p, room *r, layer_memory *out)
{
    out->norm1  = take(r, p, p->hidden);
    out->norm2  = take(r, p, p->hidden);
    out->stats1 = stats_take(r, p);
    out->stats2 = stats_take(r, p);
    if (arch_has(sizes, ARCH_HAS_QK_NORM)) {
        out->q = take(r, p, p->q);
        out->k = take(r, p, p->kv);
    }
    if (sizes->kind == ARCH_GPT2 && !p->keeps_gelu) {
        out->act = take(r, p, p->inner);
    }
}

static int is_kept(layer_place place)
{
    return place == LAYER_KEPT;
}

/* Whether a layer has memory of its own in that of the model. */
static int is_model_own(layer_place place)
{
    return !layer_place_is_moved(place) && !layer_place_is_recomputed(place);
}

/* Lays out what all layers share. */
static void shared_lay_out(const arch *sizes, const model_shape *shape, const row_sizes *p, room *r,
                           layer_memory *out)
{
    *out = (layer_memory){0};
    if (layer_places_count(&shape->places, sizes->layers, is_kept) < sizes->layers) {
        cheap_lay_out(sizes, p, r, out);
    } else {
        out->norm2 = take(r, p, p->hidden); /* of the norm after the layers */
    }
    if (sizes->kind != ARCH_GPT2) {
        out->act = take(r, p, p->inner);
    }
}

/* Lays out what every layer has for itself. */
static void own_lay_out(const arch *sizes, const row_sizes *p, room *r, layer_memory *out)
{
    if (sizes->kind == ARCH_GPT2) {
        out->q = take(r, p, 3 * p->hidden);
        out->k = columns_from(out->q, p, sizes->hidden);
        out->v = columns_from(out->q, p, 2 * sizes->hidden);
    } else {
        int    has_norms = arch_has(sizes, ARCH_HAS_QK_NORM);
        void **q         = has_norms ? &out->q_raw : &out->q;
        void **k         = has_norms ? &out->k_raw : &out->k;

        *q        = take(r, p, p->q);
        *k        = take(r, p, p->kv);
        out->v    = take(r, p, p->kv);
        out->gate = take(r, p, p->inner);
    }
    out->log_sums  = room_take(r, p->rows * sizes->heads * sizeof(float));
    out->attention = take(r, p, p->q);
    out->middle    = take(r, p, p->hidden);
    out->up        = take(r, p, p->inner);
    if (sizes->kind == ARCH_GPT2 && p->keeps_gelu) {
        out->act = take(r, p, p->inner);
    }
}

size_t model_memory_layers(const arch *sizes, const model_shape *shape)
{
    size_t own   = layer_places_count(&shape->places, sizes->layers, is_model_own);
    size_t again = layer_places_count(&shape->places, sizes->layers, layer_place_is_recomputed);

    return own + (again > 0);
}

void model_moved_lay_out(const arch *sizes, const model_shape *shape, layer_place place, room *r,
                         void **input, layer_memory *out)
{
    row_sizes p = row_sizes_of(sizes, shape);

    *input = take(r, &p, p.hidden);
    if (!layer_place_is_recomputed(place)) {
        own_lay_out(sizes, &p, r, out);
    }
}

/* Each layer that is not moved keeps its input; all that are moved share one. */
static void streams_lay_out(const arch *sizes, const model_shape *shape, const row_sizes *p,
                            room *r, model_memory *out)
{
    size_t moved  = layer_places_count(&shape->places, sizes->layers, layer_place_is_moved);
    size_t total  = sizes->layers - moved + 1; /* that stay, with the one after the last layer */
    size_t kept   = 0;
    void  *stream = take(r, p, (total + (moved > 0)) * p->hidden);

    for (size_t l = 0; out->before != NULL && l <= sizes->layers; l++) {
        int is_moved = l < sizes->layers && layer_place_is_moved(layer_place_of(&shape->places, l));

        out->before[l] = columns_from(stream, p, (is_moved ? total : kept++) * p->hidden);
    }
}

static void layers_lay_out(const arch *sizes, const model_shape *shape, const row_sizes *p, room *r,
                           model_memory *out)
{
    layer_memory again     = out->shared; /* of those that are recomputed */
    int          has_again = 0;

    for (size_t l = 0; l < sizes->layers; l++) {
        layer_place  place = layer_place_of(&shape->places, l);
        layer_memory layer = out->shared;

        if (layer_place_is_recomputed(place)) {
            if (!has_again) {
                own_lay_out(sizes, p, r, &again);
                has_again = 1;
            }
            layer = again;
        } else if (!layer_place_is_moved(place)) {
            own_lay_out(sizes, p, r, &layer);
            if (place == LAYER_KEPT) {
                cheap_lay_out(sizes, p, r, &layer);
            }
        }
        if (out->layers != NULL) {
            out->layers[l] = layer;
        }
    }
}

void model_memory_lay_out(const arch *sizes, const model_shape *shape, room *r, model_memory *out)
{
    row_sizes p      = row_sizes_of(sizes, shape);
    size_t    angles = shape->length * (arch_head(sizes) / 2) * sizeof(float);

    streams_lay_out(sizes, shape, &p, r, out);
    shared_lay_out(sizes, shape, &p, r, &out->shared);
    layers_lay_out(sizes, shape, &p, r, out);
    out->norm_last  = out->shared.norm2;
    out->stats_last = stats_take(r, &p);
    out->cosines    = room_take(r, angles);
    out->sines      = room_take(r, angles);
    out->dstream    = take(r, &p, p.hidden);
    out->dhidden    = take(r, &p, size_max(p.hidden, p.q));
    out->dqkv       = take(r, &p, p.q + 2 * p.kv);
    out->dinner =
        take(r, &p, size_max(p.inner, arch_has(sizes, ARCH_HAS_QK_NORM) ? p.q + p.kv : 0));
    out->dgate = take(r, &p, sizes->kind == ARCH_GPT2 ? 0 : p.inner);
}

compute_limits model_limits(const arch *sizes, size_t batch, size_t length, sherd_dtype dtype)
{
    return (compute_limits){.batch  = batch,
                            .length = length,
                            .hidden = sizes->hidden,
                            .inner  = sizes->inner,
                            .heads  = sizes->heads,
                            .head   = arch_head(sizes),
                            .vocab  = sizes->vocab,
                            .dtype  = dtype};
}

/* --------------------------------------------------- scratch of the CPU -- */

/* Returns the most columns of an activation, except for the logits. GPT-2 has q, k and v in one. */
static size_t widest(const compute_limits *l)
{
    return size_max(size_max(3 * l->hidden, l->inner), l->heads * limits_head(l));
}

/* Returns the most elements that one thread needs, over all operations. */
static size_t lane_elems_needed(const compute_limits *l)
{
    int    is_fp32   = l->dtype == SHERD_F32;
    size_t convert   = is_fp32 ? 0 : CPU_TILE_MOST * size_max(widest(l), CPU_TILE_DEPTH);
    size_t product   = l->dtype == SHERD_BF16 ? l->batch * l->length * CPU_TILE_HALF : 0;
    size_t attention = 2 * size_min(l->length, CPU_ATTENTION_ROWS) * l->length;

    return padded(size_max(size_max(convert, product), size_max(attention, widest(l))), 16);
}

/* Norms of rows and norms of heads share the room for partial sums. */
static size_t partial_elems_needed(const compute_limits *l, size_t rows)
{
    size_t of_rows  = count_of(rows, CPU_NORM_CHUNK) * 2 * widest(l);
    size_t of_heads = count_of(rows * l->heads, CPU_NORM_CHUNK) * 2 * limits_head(l);

    return size_max(of_rows, of_heads);
}

cpu_room cpu_room_of(const compute_limits *limits, int threads)
{
    size_t   rows = limits->batch * limits->length;
    cpu_room r    = {.logits_elems = padded(rows * limits->vocab, 16),
                     .vector_elems = padded(widest(limits), 16),
                     .half_elems = limits->dtype == SHERD_BF16 ? padded(rows * widest(limits), 32) : 0,
                     .lane_elems = lane_elems_needed(limits)};

    r.memory_elems =
        r.logits_elems + 4 * r.vector_elems + r.half_elems + /* two operands of half the bytes */
        padded(r.lane_elems * (size_t)threads + partial_elems_needed(limits, rows), 16);
    r.bytes = r.memory_elems * sizeof(float) + rows * sizeof(double) + 2 * rows * sizeof(uint64_t);
    return r;
}

/* ----------------------------------------------------- scratch of a GPU -- */

static size_t norm_partials(size_t rows, size_t width)
{
    return count_of(rows, NORM_CHUNK) * 2 * width;
}

/* Norms, sums of columns and the gradient of the token table share the room for partial sums. */
static size_t partials_needed(const compute_limits *l, size_t rows)
{
    size_t norms =
        size_max(norm_partials(rows, l->hidden), norm_partials(rows * l->heads, limits_head(l)));
    size_t heads = count_of(rows, ROPE_CHUNK) * 2 * limits_head(l);
    size_t sums  = count_of(rows, SUM_ROWS) * widest(l);
    size_t slots = (2 * rows / EMBED_RANGE_ROWS + 1) * l->hidden;

    return size_max(size_max(norms, heads), size_max(sums, slots));
}

static size_t columns_needed(const compute_limits *l, size_t rows)
{
    size_t attention = l->batch * count_of(l->length, ATTENTION_CHUNK) * 3 * l->hidden;

    return size_max(norm_partials(rows, l->hidden) / 2, attention);
}

static batch_layout batch_layout_of(size_t rows)
{
    batch_layout layout = {.inputs  = 0,
                           .targets = rows * sizeof(int32_t),
                           .order   = 2 * rows * sizeof(int32_t),
                           .ranges  = padded(3 * rows * sizeof(int32_t), ROOM_ALIGN_BYTES)};

    layout.most_bytes = layout.ranges + (rows + rows / EMBED_RANGE_ROWS + 1) * sizeof(embed_range);
    return layout;
}

/* Returns the elements in fp32 that the gradient of the head's weight takes if `part` rows of
 * logits come at a time. */
static size_t head_grad_elems_of(const compute_limits *l, size_t rows, size_t part)
{
    return part < rows && l->dtype != SHERD_F32 ? l->vocab * l->hidden : 0;
}

static size_t logits_rows_of(const compute_limits *l, size_t rows, size_t stride)
{
    size_t elems = size_max(LOGITS_ELEMS, 2 * l->layers * rows * l->inner);
    size_t part  = size_min(elems, LOGITS_MOST) / stride / LOGITS_ROWS * LOGITS_ROWS;
    size_t saved;

    if (l->logits_rows > 0) {
        return size_min(rows, l->logits_rows);
    }
    if (l->keeps_logits) {
        return rows;
    }
    part  = size_min(rows, size_max(part, LOGITS_ROWS));
    saved = (rows - part) * stride * dtype_bytes(l->dtype);
    return rows * stride <= LOGITS_MOST &&
                   saved <= head_grad_elems_of(l, rows, part) * sizeof(float)
               ? rows
               : part;
}

void cuda_scratch_lay_out(const compute_limits *l, room *r, cuda_scratch *out)
{
    size_t rows = l->batch * l->length;

    out->layout = batch_layout_of(rows);

    out->logits_stride = padded(l->vocab, LOGITS_ALIGN);
    out->logits_rows   = logits_rows_of(l, rows, out->logits_stride);
    out->partials      = room_take(r, partials_needed(l, rows) * sizeof(float));
    out->columns       = room_take(r, columns_needed(l, rows) * sizeof(float));
    out->deltas        = room_take(r, rows * l->heads * sizeof(float));
    out->losses        = room_take(r, rows * sizeof(float));
    out->logits_row    = room_take(r, l->vocab * sizeof(float));
    out->loss_sum      = room_take(r, sizeof(double));
    out->batch         = room_take(r, out->layout.most_bytes);
    out->logits = room_take(r, out->logits_rows * out->logits_stride * dtype_bytes(l->dtype));
    out->head_grad_elems = head_grad_elems_of(l, rows, out->logits_rows);
    out->head_grad       = room_take(r, out->head_grad_elems * sizeof(float));
}

/* ------------------------------------------------------------- together -- */

static size_t cuda_bytes(const compute_limits *limits)
{
    room         r = {0};
    cuda_scratch s;

    cuda_scratch_lay_out(limits, &r, &s);
    return r.used_bytes + LT_WORKSPACE_BYTES;
}

static int is_cuda(const activations_params *params)
{
    return params->backend != NULL && strcmp(params->backend, "cuda") == 0;
}

static model_shape shape_of(const activations_params *params)
{
    int is_gpu = is_cuda(params);

    return (model_shape){.batch       = params->batch,
                         .length      = params->length,
                         .elem_bytes  = is_gpu ? dtype_bytes(params->dtype) : sizeof(float),
                         .places      = params->places,
                         .keeps_stats = is_gpu,
                         .keeps_gelu  = is_gpu && params->dtype != SHERD_F32};
}

static size_t bytes_count(const arch *sizes, const activations_params *params)
{
    compute_limits limits = model_limits(sizes, params->batch, params->length, params->dtype);
    model_shape    shape  = shape_of(params);
    room           r      = {0};
    model_memory   memory = {0};

    limits.layers = model_memory_layers(sizes, &shape);
    model_memory_lay_out(sizes, &shape, &r, &memory);
    return r.used_bytes +
           (is_cuda(params)
                ? cuda_bytes(&limits)
                : cpu_room_of(&limits, params->threads > 0 ? params->threads : 1).bytes);
}

/* Returns whether the products below fit a size_t, by a bound that is far from tight. */
static int can_be_counted(const arch *sizes, const activations_params *params)
{
    double rows = (double)params->batch * (double)params->length;
    double row  = 16.0 * (double)size_max(sizes->hidden, arch_q(sizes)) +
                 8.0 * (double)sizes->inner + 4.0 * (double)sizes->heads + (double)sizes->vocab;

    return rows * ((double)sizes->layers + 8.0) * row * 8.0 < 0x1p61 &&
           (double)params->length * (double)params->length * (double)sizes->heads < 0x1p58;
}

size_t activations_layer_bytes(const arch *sizes, const activations_params *params,
                               layer_place place)
{
    model_shape  shape = shape_of(params);
    room         r     = {0};
    layer_memory layer = {0};
    void        *input;

    if (!can_be_counted(sizes, params)) {
        return ACTIVATIONS_TOO_MANY;
    }
    model_moved_lay_out(sizes, &shape, place, &r, &input, &layer);
    return r.used_bytes;
}

size_t activations_bytes(const arch *sizes, const activations_params *params)
{
    if (!can_be_counted(sizes, params)) {
        return ACTIVATIONS_TOO_MANY;
    }
    return bytes_count(sizes, params);
}
