/* The part of a kernel table for state that is stored in encodings (kernels/encoding.h).
 * table_list.h explains the two faces of this file.
 *
 * range_decode and range_encode do the same as sherdi_part_decode and sherdi_part_encode. Vectors
 * have them too, and range_encoded_adam and so on, which update whole chunks of encoded state
 * (vector_encoded.inc.c). */
#if defined(TABLE_SLOTS)

.update_encoded = table_update_encoded, .decode = table_decode, .encode = table_encode,
                                        .fingerprint_encoded = table_fingerprint_encoded,

#else

#include "kernels/cpu/encoded.h"

#if !TABLE_HAS_VECTORS
#define range_decode sherdi_part_decode
#define range_encode sherdi_part_encode
#endif

/* -------------------------------------------------------------- updates -- */

/* Encoded parts are decoded to fp32 in the first-level cache, a tile of whole chunks at a time, and
 * the optimizer's loop runs there. So no optimizer knows of encodings. */
#define ENCODED_TILE_ELEMS 256

typedef struct encoded_tile {
    sherdi_encoded parts[SHERDI_UPDATE_MOST_PARTS];      /* the master first */
    int            is_decoded[SHERDI_UPDATE_MOST_PARTS]; /* 0: the loop uses the part in place */
    int            is_beside;
    float values[SHERDI_UPDATE_MOST_PARTS][ENCODED_TILE_ELEMS] __attribute__((aligned(64)));
} encoded_tile;

/* A sweep that only reads leaves the ties in the signs of the other part, so it has to mask them
 * when it reads that part. */
static void encoded_tile_init(encoded_tile *tile, const update_call *call, int only_reads)
{
    const sherdi_update_args *args = call->args;

    for (int i = 0; i < SHERDI_UPDATE_MOST_PARTS; i++) {
        tile->parts[i] =
            (sherdi_encoded){.encoding = args->encodings[i],
                             .data     = call->block.parts[i],
                             .has_ties = only_reads && sherdi_update_has_ties(args, i)};
        tile->is_decoded[i] =
            tile->parts[i].data != NULL &&
            (args->encodings[i] != SHERDI_ENCODING_F32 || tile->parts[i].has_ties);
    }
    tile->parts[0].param         = args->param;
    tile->parts[0].ties          = args->parts[args->ties_part];
    tile->parts[0].ties_encoding = args->encodings[args->ties_part];
    tile->is_beside              = sherdi_encoding_is_beside(args->encodings[0]);
}

static float *tile_part(encoded_tile *tile, int part, float *direct, size_t first, size_t count,
                        int takes)
{
    if (!tile->is_decoded[part]) {
        return direct == NULL ? NULL : direct + first;
    }
    range_decode(tile->values[part], &tile->parts[part], first, count, takes);
    return tile->values[part];
}

/* Decodes a tile, `count` elements from `done` on, into the form that the optimizer's loop takes.
 * The master is decoded first, since it clears its ties in the other part. */
static sherdi_update_range tile_open(encoded_tile *tile, const update_call *call,
                                     const span_range *where, size_t done, size_t count, int takes)
{
    const sherdi_update_range *block = &call->block;
    size_t                     first = where->span->offset_elems + where->first + done;
    sherdi_update_range        range = *block;

    range.grad        = sherdi_elem_at(block->grad, block->grad_dtype, first);
    range.first_index = where->span->first_index + where->first + done;
    range.count_elems = count;
    range.param       = tile->is_decoded[0] || block->param == NULL
                            ? NULL
                            : sherdi_elem_at(block->param, block->param_dtype, first);
    for (int part = 0; part < SHERDI_UPDATE_MOST_PARTS; part++) {
        range.parts[part] = tile_part(tile, part, block->parts[part], first, count, takes);
    }
    return range;
}

/* For a master whose encoding rounds: reads it back rounded, makes the parameter of it, and returns
 * its fingerprint. */
static uint64_t tile_finish_master(encoded_tile *tile, const sherdi_update_args *args, size_t first,
                                   const sherdi_update_range *range)
{
    float   *master      = tile->values[0];
    uint64_t fingerprint = 0;

    range_decode(master, &tile->parts[0], first, range->count_elems, 0);
    if (args->param != NULL && args->param_dtype == SHERD_F32) {
        range_copy((float *)args->param + first, master, range->count_elems * sizeof(float), 0, 0);
    } else if (args->param != NULL) {
        range_cast(sherdi_elem_at(args->param, args->param_dtype, first), args->param_dtype, master,
                   SHERD_F32, range->count_elems, 0);
    }
    for (size_t done = 0; done < range->count_elems;) {
        size_t count = same_high_half(range->first_index + done, range->count_elems - done);

        fingerprint += range_fingerprint(master + done, range->first_index + done, count);
        done += count;
    }
    return fingerprint;
}

/* Encodes a tile and returns its fingerprint; `fingerprint` is that of the values before they are
 * encoded. The master is encoded last, since it puts its ties into the other part. */
static uint64_t tile_close(encoded_tile *tile, const sherdi_update_args *args, size_t first,
                           const sherdi_update_range *range, uint64_t fingerprint)
{
    for (int i = SHERDI_UPDATE_MOST_PARTS - 1; i >= 0; i--) {
        sherdi_rounding how = {.is_random   = 1,
                               .random      = sherdi_random_of(args->step, (unsigned)i),
                               .first_index = range->first_index};

        if (tile->is_decoded[i]) {
            range_encode(&tile->parts[i], first, range->count_elems, tile->values[i], &how);
        }
    }
    return tile->is_decoded[0] && !tile->is_beside ? tile_finish_master(tile, args, first, range)
                                                   : fingerprint;
}

static uint64_t update_encoded_tile(const update_call *call, encoded_tile *tile,
                                    const span_range *where, size_t done, size_t count)
{
    size_t              first = where->span->offset_elems + where->first + done;
    sherdi_update_range range = tile_open(tile, call, where, done, count, 1);
    uint64_t            share = update_range_run(call, &range, where->span);

    return tile_close(tile, call->args, first, &range, share);
}

/* Returns the whole chunks from `done` on, which a loop over encoded state updates in place;
 * perhaps none. */
static sherdi_update_range encoded_range_at(const update_call *call, const encoded_tile *tile,
                                            const span_range *where, size_t done)
{
    const sherdi_update_range *block = &call->block;
    size_t                     first = where->span->offset_elems + where->first + done;
    sherdi_update_range        range = {.grad_dtype   = block->grad_dtype,
                                        .param_dtype  = block->param_dtype,
                                        .is_streaming = block->is_streaming,
                                        .ahead_bytes  = block->ahead_bytes,
                                        .encoded      = tile->parts,
                                        .offset_elems = first,
                                        .step         = call->args->step};

    range.grad = sherdi_elem_at(block->grad, block->grad_dtype, first);
    range.param =
        block->param == NULL ? NULL : sherdi_elem_at(block->param, block->param_dtype, first);
    range.first_index = where->span->first_index + where->first + done;
    range.count_elems = same_high_half(range.first_index, where->count_elems - done);
    range.count_elems -= range.count_elems % SHERD_CHUNK_ELEMS;
    return range;
}

typedef struct encoded_call {
    update_call     common;
    update_range_fn whole; /* updates whole chunks in place; NULL: all goes through tiles */
} encoded_call;

static uint64_t update_encoded_run(const encoded_call *call, encoded_tile *tile,
                                   const span_range *where)
{
    uint64_t fingerprint = 0;

    for (size_t done = 0; done < where->count_elems;) {
        sherdi_update_range whole = encoded_range_at(&call->common, tile, where, done);
        size_t              count = sherdi_min_size(where->count_elems - done, ENCODED_TILE_ELEMS);

        if (call->whole != NULL && whole.count_elems > 0) {
            fingerprint += call->whole(&whole, call->common.args, where->span);
            count = whole.count_elems;
        } else {
            fingerprint += update_encoded_tile(&call->common, tile, where, done, count);
        }
        done += count;
    }
    return fingerprint;
}

static void update_encoded_task(void *ctx, int task, int tasks)
{
    encoded_call             *call = ctx;
    const sherdi_update_args *args = call->common.args;
    span_walk    walk  = walk_task(args->spans, args->num_spans, call->common.chunks, task, tasks);
    span_range   where = {0};
    uint64_t     fingerprint = 0;
    encoded_tile tile;

    encoded_tile_init(&tile, &call->common, 0);
    while (walk_next(&walk, &where)) {
        fingerprint += update_encoded_run(call, &tile, &where);
    }
    range_stream_end();
    (void)atomic_fetch_add_explicit(&call->common.fingerprint, fingerprint, memory_order_relaxed);
}

#if TABLE_HAS_VECTORS
#define SHERDI_UPDATE(name, num_parts) UPDATE_SPAN(name, range_encoded_##name, name##_encoded_span)
#include "kernels/updates/rows.h"
#endif

static void table_update_encoded(const sherdi_backend *backend, sherdi_update_id update,
                                 const sherdi_update_args *args)
{
#if TABLE_HAS_VECTORS
#define SHERDI_UPDATE(name, num_parts) name##_encoded_span,
#else
#define SHERDI_UPDATE(name, num_parts) NULL,
#endif
    static const update_range_fn WHOLE[] = {
#include "kernels/updates/rows.h"
    };
    encoded_call call = {.common = {.args = args}, .whole = WHOLE[update]};

    update_run(backend, update, &call.common, 1, update_encoded_task);
}

/* --------------------------------------------------------------- values -- */

typedef struct encoding_call {
    const sherdi_encoded *part;
    size_t                first;
    float                *dst; /* of decode */
    const float          *src; /* of encode */
} encoding_call;

/* About the bytes of an element in both forms together. */
#define ENCODING_ELEM_BYTES 8

static void decode_elems(void *ctx, size_t first, size_t count)
{
    const encoding_call *call = ctx;

    range_decode(call->dst + first, call->part, call->first + first, count, 0);
}

static void encode_elems(void *ctx, size_t first, size_t count)
{
    const encoding_call  *call = ctx;
    const sherdi_rounding how  = {0};

    range_encode(call->part, call->first + first, count, call->src + first, &how);
}

static void table_decode(const sherdi_backend *backend, float *dst, const sherdi_encoded *part,
                         size_t first, size_t count_elems)
{
    encoding_call call = {.part = part, .first = first, .dst = dst};

    elems_run(backend, count_elems, ENCODING_ELEM_BYTES, decode_elems, &call);
}

/* Encodes some elements of a chunk with a plane or a scale. The chunk is decoded and encoded again,
 * and its other elements stay. */
static void chunk_merge(const sherdi_encoded *part, size_t first, const float *src, size_t count)
{
    const sherdi_rounding how   = {0};
    size_t                start = first / SHERD_CHUNK_ELEMS * SHERD_CHUNK_ELEMS;
    float                 chunk[SHERD_CHUNK_ELEMS];

    if (count > 0) {
        range_decode(chunk, part, start, SHERD_CHUNK_ELEMS, 0);
        memcpy(chunk + (first - start), src, count * sizeof(*src));
        range_encode(part, start, SHERD_CHUNK_ELEMS, chunk, &how);
    }
}

static void table_encode(const sherdi_backend *backend, const sherdi_encoded *part, size_t first,
                         const float *src, size_t count_elems)
{
    encoding_call call = {.part = part, .first = first, .src = src};

    if (sherdi_encoding_has_chunks(part->encoding)) {
        size_t head = (SHERD_CHUNK_ELEMS - first % SHERD_CHUNK_ELEMS) % SHERD_CHUNK_ELEMS;
        size_t tail;

        head = sherdi_min_size(head, count_elems);
        tail = (count_elems - head) % SHERD_CHUNK_ELEMS;
        chunk_merge(part, first, src, head);
        chunk_merge(part, first + count_elems - tail, src + count_elems - tail, tail);
        call.first += head;
        call.src += head;
        count_elems -= head + tail;
    }
    elems_run(backend, count_elems, ENCODING_ELEM_BYTES, encode_elems, &call);
}

static const float *decoded_values(const void *master, size_t first, size_t *count, float *tile)
{
    *count = sherdi_min_size(*count, FINGERPRINT_TILE_ELEMS);
    range_decode(tile, master, first, *count, 0);
    return tile;
}

static void table_fingerprint_encoded(const sherdi_backend *backend, const sherdi_span *spans,
                                      size_t num_spans, const sherdi_encoded *master, uint64_t *sum)
{
    fingerprint_run(backend, spans, num_spans, master, decoded_values, sum);
}

#endif
