/* Makes the kernel table of one instruction set from its range loops (ranges.h): walks the spans,
 * splits the work over threads at multiples of 64 elements, and adds up the shares of the tasks.
 * scalar.c, avx2.c and avx512.c include it at their end, with TABLE_NAME, TABLE_ISA,
 * TABLE_TAKES_ENCODED and TABLE_HAS_VECTORS defined, so each table calls its own loops directly.
 * Shares of sums are integers, so no split changes a result. */
#include "base/checked.h"
#include "kernels/cpu/ahead.h"
#include "kernels/cpu/encoded.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/ranges.h"

#include <stdatomic.h>

/* Returns the first chunk of a task; task number `tasks` begins at the end. */
static size_t task_first(size_t chunks, int task, int tasks)
{
    size_t each = chunks / (size_t)tasks;
    size_t rest = chunks % (size_t)tasks;

    return each * (size_t)task + sherdi_min_size((size_t)task, rest);
}

static size_t chunks_of(size_t count_elems)
{
    return sherdi_div_up(count_elems, SHERD_CHUNK_ELEMS);
}

/* Gives a task's share of `count` elements or bytes: the returned count, from *first on. Each
 * `unit` of them stays together. */
static size_t task_range(size_t count, size_t unit, int task, int tasks, size_t *first)
{
    size_t units = sherdi_div_up(count, unit);
    size_t end   = task_first(units, task + 1, tasks) * unit;

    *first = task_first(units, task, tasks) * unit;
    return sherdi_min_size(end, count) - *first;
}

static sherdi_split split_of(const sherdi_backend *backend, size_t count_elems, size_t per_elem)
{
    return sherdi_split_of(backend, chunks_of(count_elems), SHERD_CHUNK_ELEMS * per_elem);
}

/* ---------------------------------------------------------------- spans -- */

/* A walk over the ranges of one task. The chunks of all spans count as one row, of which a task has
 * a part. */
typedef struct span_walk {
    const sherdi_span *spans;
    size_t             num_spans;
    size_t             span;        /* the span that the walk has come to */
    size_t             span_chunk;  /* the chunk inside it */
    size_t             chunks_left; /* of the task */
} span_walk;

typedef struct span_range {
    const sherdi_span *span;
    size_t             first; /* from the start of the span */
    size_t             count_elems;
} span_range;

static size_t spans_chunks(const sherdi_span *spans, size_t num_spans)
{
    size_t chunks = 0;

    for (size_t i = 0; i < num_spans; i++) {
        chunks += chunks_of(spans[i].count_elems);
    }
    return chunks;
}

static span_walk walk_task(const sherdi_span *spans, size_t num_spans, size_t chunks, int task,
                           int tasks)
{
    span_walk walk  = {.spans = spans, .num_spans = num_spans};
    size_t    first = task_first(chunks, task, tasks);

    walk.chunks_left = task_first(chunks, task + 1, tasks) - first;
    while (walk.span < num_spans && first >= chunks_of(spans[walk.span].count_elems)) {
        first -= chunks_of(spans[walk.span].count_elems);
        walk.span++;
    }
    walk.span_chunk = first;
    return walk;
}

static int walk_next(span_walk *walk, span_range *range)
{
    const sherdi_span *span;
    size_t             chunks;

    while (walk->chunks_left > 0 &&
           walk->span_chunk == chunks_of(walk->spans[walk->span].count_elems)) {
        walk->span++;
        walk->span_chunk = 0;
    }
    if (walk->chunks_left == 0) {
        return 0;
    }
    span   = &walk->spans[walk->span];
    chunks = sherdi_min_size(walk->chunks_left, chunks_of(span->count_elems) - walk->span_chunk);

    range->span  = span;
    range->first = walk->span_chunk * SHERD_CHUNK_ELEMS;
    range->count_elems =
        sherdi_min_size(chunks * SHERD_CHUNK_ELEMS, span->count_elems - range->first);
    walk->span_chunk += chunks;
    walk->chunks_left -= chunks;
    return 1;
}

/* Returns how many elements from `index` on have the same upper 32 bits of their index, at most
 * `count`. */
static size_t same_high_half(uint64_t index, size_t count)
{
    uint64_t left = ((uint64_t)1 << 32) - (index & 0xffffffffu);

    return left < count ? (size_t)left : count;
}

/* -------------------------------------------------------------- updates -- */

/* Returns the elements from `done` on of a range whose state is fp32. */
static sherdi_update_range update_range_from(const sherdi_update_range *from, size_t done)
{
    sherdi_update_range range = *from;

    range.grad = sherdi_elem_at(from->grad, from->grad_dtype, done);
    for (int part = 0; part < SHERDI_UPDATE_MOST_PARTS && from->parts[part] != NULL; part++) {
        range.parts[part] = from->parts[part] + done;
    }
    if (from->param != NULL) {
        range.param = sherdi_elem_at(from->param, from->param_dtype, done);
    }
    range.first_index += done;
    range.count_elems -= done;
    return range;
}

/* Returns a task's range of a block whose state is fp32. */
static sherdi_update_range update_range_at(const sherdi_update_range *block,
                                           const span_range          *where)
{
    sherdi_update_range range = update_range_from(block, where->span->offset_elems + where->first);

    range.first_index = where->span->first_index + where->first;
    range.count_elems = where->count_elems;
    return range;
}

/* Updates a range with the coefficients of a span, and returns the fingerprint. */
typedef uint64_t (*update_range_fn)(const sherdi_update_range *range,
                                    const sherdi_update_args *args, const sherdi_span *span);

typedef struct update_call {
    const sherdi_update_args *args;
    update_range_fn           update; /* lamb_norms does not use it */
    sherdi_update_range       block;
    size_t                    chunks;
    _Atomic uint64_t          fingerprint;
} update_call;

static void update_call_run(const sherdi_backend *backend, update_call *call, int num_parts,
                            size_t bytes, size_t ahead_bytes, sherdi_task_fn task)
{
    const sherdi_update_args *args = call->args;

    call->chunks = spans_chunks(args->spans, args->num_spans);
    call->block  = (sherdi_update_range){.grad         = args->grad,
                                         .grad_dtype   = args->grad_dtype,
                                         .param        = args->param,
                                         .param_dtype  = args->param_dtype,
                                         .is_streaming = bytes >= SHERDI_STREAM_BYTES,
                                         .ahead_bytes  = ahead_bytes};
    for (int part = 0; part < num_parts; part++) {
        call->block.parts[part] = args->parts[part];
    }
    sherdi_parallel_run(
        backend,
        sherdi_split_of(backend, call->chunks, call->chunks > 0 ? bytes / call->chunks : 0), task,
        call);
}

/* Calls the update so that the indices of a call do not cross a multiple of 2^32. */
static uint64_t update_range_run(const update_call *call, const sherdi_update_range *whole,
                                 const sherdi_span *span)
{
    uint64_t fingerprint = 0;

    for (size_t done = 0; done < whole->count_elems;) {
        sherdi_update_range range = update_range_from(whole, done);

        range.count_elems = same_high_half(range.first_index, range.count_elems);
        fingerprint += call->update(&range, call->args, span);
        done += range.count_elems;
    }
    return fingerprint;
}

/* ------------------------------------------------------- encoded updates -- */

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

/* Returns the whole chunks from `done` on, which an optimizer's loop that takes encoded state
 * updates in place; perhaps none. */
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

static uint64_t update_encoded_run(const update_call *call, encoded_tile *tile,
                                   const span_range *where)
{
    uint64_t fingerprint = 0;

    for (size_t done = 0; done < where->count_elems;) {
        sherdi_update_range whole = encoded_range_at(call, tile, where, done);
        size_t              count = sherdi_min_size(where->count_elems - done, ENCODED_TILE_ELEMS);

        if (TABLE_TAKES_ENCODED && whole.count_elems > 0) {
            fingerprint += call->update(&whole, call->args, where->span);
            count = whole.count_elems;
        } else {
            fingerprint += update_encoded_tile(call, tile, where, done, count);
        }
        done += count;
    }
    return fingerprint;
}

static void update_task(void *ctx, int task, int tasks)
{
    update_call              *call      = ctx;
    const sherdi_update_args *args      = call->args;
    int                       has_tiles = sherdi_update_is_encoded(args);
    span_walk    walk        = walk_task(args->spans, args->num_spans, call->chunks, task, tasks);
    span_range   where       = {0};
    uint64_t     fingerprint = 0;
    encoded_tile tile;

    if (has_tiles) {
        encoded_tile_init(&tile, call, 0);
    }
    while (walk_next(&walk, &where)) {
        sherdi_update_range range;

        if (has_tiles) {
            fingerprint += update_encoded_run(call, &tile, &where);
            continue;
        }
        range = update_range_at(&call->block, &where);
        fingerprint += update_range_run(call, &range, where.span);
    }
    range_stream_end();
    (void)atomic_fetch_add_explicit(&call->fingerprint, fingerprint, memory_order_relaxed);
}

/* The coefficients of a span are those of its group, with the step multiplied by the ratio of its
 * parameter. They are copied, so that the compiler knows that no store to the arrays changes
 * them. */
#define SHERDI_UPDATE(name, num_parts)                                                             \
    static uint64_t name##_span(const sherdi_update_range *range, const sherdi_update_args *args,  \
                                const sherdi_span *span)                                           \
    {                                                                                              \
        sherdi_##name##_coeffs own = ((const sherdi_##name##_coeffs *)args->coeffs)[span->group];  \
                                                                                                   \
        if (args->ratios != NULL) {                                                                \
            own.neg_step_size = own.neg_step_size * args->ratios[span->param];                     \
        }                                                                                          \
        return range_##name(range, &own);                                                          \
    }
#include "kernels/updates/rows.h"

static void table_update(const sherdi_backend *backend, sherdi_update_id update,
                         const sherdi_update_args *args)
{
    static const update_range_fn UPDATES[] = {
#define SHERDI_UPDATE(name, num_parts) name##_span,
#include "kernels/updates/rows.h"
    };
    update_call       call  = {.args = args, .update = UPDATES[update]};
    size_t            bytes = sherdi_update_traffic_bytes(update, args);
    sherdi_ahead_kind kind =
        sherdi_update_is_encoded(args) ? SHERDI_AHEAD_ENCODED : SHERDI_AHEAD_PLAIN;
    sherdi_ahead_trial trial = sherdi_ahead_begin(backend, kind, bytes);

    update_call_run(backend, &call, sherdi_update_parts(update), bytes, trial.ahead_bytes,
                    update_task);
    sherdi_ahead_end(backend, &trial);
    if (args->fingerprint != NULL) {
        *args->fingerprint += call.fingerprint;
    }
}

/* ---------------------------------------------------------- fingerprint -- */

/* Elements that are decoded for a fingerprint at a time. */
#define FINGERPRINT_TILE_ELEMS 256

/* Returns elements of the master from `first` on, and may make *count less. It may use the tile,
 * which has room for FINGERPRINT_TILE_ELEMS. */
typedef const float *(*master_fn)(const void *master, size_t first, size_t *count, float *tile);

typedef struct fingerprint_call {
    const sherdi_span *spans;
    size_t             num_spans;
    size_t             chunks;
    master_fn          values;
    const void        *master;
    _Atomic uint64_t   fingerprint;
} fingerprint_call;

static void fingerprint_task(void *ctx, int task, int tasks)
{
    fingerprint_call *call  = ctx;
    span_walk         walk  = walk_task(call->spans, call->num_spans, call->chunks, task, tasks);
    span_range        where = {0};
    uint64_t          fingerprint = 0;
    float             tile[FINGERPRINT_TILE_ELEMS];

    while (walk_next(&walk, &where)) {
        size_t count;

        for (size_t done = 0; done < where.count_elems; done += count) {
            size_t       first = where.span->offset_elems + where.first + done;
            uint64_t     index = where.span->first_index + where.first + done;
            const float *values;

            count  = same_high_half(index, where.count_elems - done);
            values = call->values(call->master, first, &count, tile);
            fingerprint += range_fingerprint(values, index, count);
        }
    }
    (void)atomic_fetch_add_explicit(&call->fingerprint, fingerprint, memory_order_relaxed);
}

static void fingerprint_run(const sherdi_backend *backend, const sherdi_span *spans,
                            size_t num_spans, const void *master, master_fn values, uint64_t *sum)
{
    fingerprint_call call = {
        .spans     = spans,
        .num_spans = num_spans,
        .chunks    = spans_chunks(spans, num_spans),
        .values    = values,
        .master    = master,
    };

    sherdi_parallel_run(backend,
                        sherdi_split_of(backend, call.chunks, SHERD_CHUNK_ELEMS * sizeof(float)),
                        fingerprint_task, &call);
    *sum += call.fingerprint;
}

static const float *plain_values(const void *master, size_t first, size_t *count, float *tile)
{
    (void)count, (void)tile;
    return (const float *)master + first;
}

static void table_fingerprint(const sherdi_backend *backend, const sherdi_span *spans,
                              size_t num_spans, const float *master, uint64_t *sum)
{
    fingerprint_run(backend, spans, num_spans, master, plain_values, sum);
}

/* -------------------------------------------------------------- encodings -- */

typedef struct encoding_call {
    const sherdi_encoded *part;
    size_t                first, count_elems;
    float                *dst; /* of decode */
    const float          *src; /* of encode */
} encoding_call;

/* About the bytes of an element in both forms together. */
#define ENCODING_ELEM_BYTES 8

static void decode_task(void *ctx, int task, int tasks)
{
    const encoding_call *call = ctx;
    size_t               first;
    size_t count = task_range(call->count_elems, SHERD_CHUNK_ELEMS, task, tasks, &first);

    range_decode(call->dst + first, call->part, call->first + first, count, 0);
}

static void encode_task(void *ctx, int task, int tasks)
{
    const encoding_call  *call = ctx;
    const sherdi_rounding how  = {0};
    size_t                first;
    size_t count = task_range(call->count_elems, SHERD_CHUNK_ELEMS, task, tasks, &first);

    range_encode(call->part, call->first + first, count, call->src + first, &how);
}

static void table_decode(const sherdi_backend *backend, float *dst, const sherdi_encoded *part,
                         size_t first, size_t count_elems)
{
    encoding_call call = {.part = part, .first = first, .count_elems = count_elems, .dst = dst};

    sherdi_parallel_run(backend, split_of(backend, count_elems, ENCODING_ELEM_BYTES), decode_task,
                        &call);
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
    encoding_call call = {.part = part, .first = first, .count_elems = count_elems, .src = src};

    if (sherdi_encoding_has_chunks(part->encoding)) {
        size_t head = (SHERD_CHUNK_ELEMS - first % SHERD_CHUNK_ELEMS) % SHERD_CHUNK_ELEMS;
        size_t tail;

        head = sherdi_min_size(head, count_elems);
        tail = (count_elems - head) % SHERD_CHUNK_ELEMS;
        chunk_merge(part, first, src, head);
        chunk_merge(part, first + count_elems - tail, src + count_elems - tail, tail);
        call.first += head;
        call.src += head;
        call.count_elems -= head + tail;
    }
    sherdi_parallel_run(backend, split_of(backend, call.count_elems, ENCODING_ELEM_BYTES),
                        encode_task, &call);
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

/* ---------------------------------------------------------------- sumsq -- */

typedef struct sumsq_call {
    const void     *x;
    sherd_dtype     dtype;
    size_t          count_elems;
    sherdi_norm_acc sum;
} sumsq_call;

/* Adds a task's share to the sum that all threads of the call share. Atomic additions cost little,
 * since a task has few parameters. */
static void norm_share(sherdi_norm_acc *acc, sherdi_norm_acc *share)
{
    sherdi_norm_normalise(share);
    for (int i = 0; i < SHERDI_NORM_BINS; i++) {
        if (share->bins[i] != 0) {
            (void)__atomic_fetch_add(&acc->bins[i], share->bins[i], __ATOMIC_RELAXED);
        }
    }
    if (share->nonfinite != 0) {
        (void)__atomic_fetch_add(&acc->nonfinite, share->nonfinite, __ATOMIC_RELAXED);
    }
}

static void sumsq_task(void *ctx, int task, int tasks)
{
    sumsq_call     *call = ctx;
    size_t          first;
    size_t          count = task_range(call->count_elems, SHERD_CHUNK_ELEMS, task, tasks, &first);
    sherdi_norm_acc share = {0};

    range_sumsq(sherdi_elem_at(call->x, call->dtype, first), call->dtype, count, &share);
    norm_share(&call->sum, &share);
}

static void table_sumsq(const sherdi_backend *backend, const void *x, sherd_dtype dtype,
                        size_t count_elems, sherdi_norm_acc *acc)
{
    sumsq_call call = {.x = x, .dtype = dtype, .count_elems = count_elems};

    sherdi_parallel_run(backend, split_of(backend, count_elems, sherd_dtype_bytes(dtype)),
                        sumsq_task, &call);
    sherdi_norm_merge(acc, &call.sum);
}

/* --------------------------------------------------------------- reduce -- */

typedef struct reduce_call {
    const sherdi_reduce_args *args;
    int                       is_streaming;
    size_t                    ahead_bytes;
} reduce_call;

static void reduce_task(void *ctx, int task, int tasks)
{
    const reduce_call *call = ctx;
    size_t             first;
    size_t count = task_range(call->args->count_elems, SHERD_CHUNK_ELEMS, task, tasks, &first);

    range_reduce(call->args, first, count, call->is_streaming, call->ahead_bytes);
}

static void table_reduce(const sherdi_backend *backend, const sherdi_reduce_args *args)
{
    size_t per_elem = sherd_dtype_bytes(args->src_dtype) * (size_t)args->num_srcs +
                      sherd_dtype_bytes(args->dst_dtype) * (1 + (size_t)args->num_more_dsts);
    reduce_call call = {.args         = args,
                        .is_streaming = per_elem * args->count_elems >= SHERDI_STREAM_BYTES,
                        .ahead_bytes  = sherdi_ahead_bytes(backend)};

    sherdi_parallel_run(backend, split_of(backend, args->count_elems, per_elem), reduce_task,
                        &call);
}

/* ------------------------------------------------- element by element -- */

/* The call of cast, accumulate, copy or zero: at most one source, and one destination. */
typedef struct map_call {
    void       *dst;
    sherd_dtype dst_dtype;
    const void *src;
    sherd_dtype src_dtype;
    size_t      count_elems; /* copy and zero: bytes */
    int         is_streaming;
    size_t      ahead_bytes;
} map_call;

static void cast_task(void *ctx, int task, int tasks)
{
    const map_call *call = ctx;
    size_t          first;
    size_t          count = task_range(call->count_elems, SHERD_CHUNK_ELEMS, task, tasks, &first);

    range_cast(sherdi_elem_at(call->dst, call->dst_dtype, first), call->dst_dtype,
               sherdi_elem_at(call->src, call->src_dtype, first), call->src_dtype, count,
               call->is_streaming);
    range_stream_end();
}

static void accumulate_task(void *ctx, int task, int tasks)
{
    const map_call *call = ctx;
    size_t          first;
    size_t          count = task_range(call->count_elems, SHERD_CHUNK_ELEMS, task, tasks, &first);

    range_accumulate(sherdi_elem_at(call->dst, call->dst_dtype, first), call->dst_dtype,
                     sherdi_elem_at(call->src, call->src_dtype, first), call->src_dtype, count,
                     call->ahead_bytes);
}

/* Bytes of a chunk of fp32. */
#define COPY_UNIT_BYTES ((size_t)256)

static void copy_task(void *ctx, int task, int tasks)
{
    const map_call *call = ctx;
    size_t          first;
    size_t          len_bytes = task_range(call->count_elems, COPY_UNIT_BYTES, task, tasks, &first);

    range_copy((unsigned char *)call->dst + first, (const unsigned char *)call->src + first,
               len_bytes, call->is_streaming, call->ahead_bytes);
}

static void zero_task(void *ctx, int task, int tasks)
{
    const map_call *call = ctx;
    size_t          first;
    size_t          len_bytes = task_range(call->count_elems, COPY_UNIT_BYTES, task, tasks, &first);

    range_zero((unsigned char *)call->dst + first, len_bytes, call->is_streaming);
}

static void table_copy(const sherdi_backend *backend, void *dst, const void *src, size_t len_bytes)
{
    map_call call = {.dst          = dst,
                     .src          = src,
                     .count_elems  = len_bytes,
                     .is_streaming = 2 * len_bytes >= SHERDI_STREAM_BYTES,
                     .ahead_bytes  = sherdi_ahead_bytes(backend)};

    if (dst != src && len_bytes > 0) {
        sherdi_parallel_run(
            backend, sherdi_split_of(backend, len_bytes / COPY_UNIT_BYTES, 2 * COPY_UNIT_BYTES),
            copy_task, &call);
    }
}

static void table_zero(const sherdi_backend *backend, void *dst, size_t len_bytes)
{
    map_call call = {
        .dst = dst, .count_elems = len_bytes, .is_streaming = len_bytes >= SHERDI_STREAM_BYTES};

    if (len_bytes > 0) {
        sherdi_parallel_run(backend,
                            sherdi_split_of(backend, len_bytes / COPY_UNIT_BYTES, COPY_UNIT_BYTES),
                            zero_task, &call);
    }
}

static void table_cast(const sherdi_backend *backend, void *dst, sherd_dtype dst_dtype,
                       const void *src, sherd_dtype src_dtype, size_t count_elems)
{
    size_t   per_elem = sherd_dtype_bytes(dst_dtype) + sherd_dtype_bytes(src_dtype);
    map_call call     = {.dst          = dst,
                         .dst_dtype    = dst_dtype,
                         .src          = src,
                         .src_dtype    = src_dtype,
                         .count_elems  = count_elems,
                         .is_streaming = per_elem * count_elems >= SHERDI_STREAM_BYTES};

    if (dst_dtype == src_dtype) {
        table_copy(backend, dst, src, count_elems * sherd_dtype_bytes(dst_dtype));
        return;
    }
    sherdi_parallel_run(backend, split_of(backend, count_elems, per_elem), cast_task, &call);
}

static void table_accumulate(const sherdi_backend *backend, void *acc, sherd_dtype acc_dtype,
                             const void *x, sherd_dtype x_dtype, size_t count_elems)
{
    size_t   per_elem = sherd_dtype_bytes(x_dtype) + 2 * sherd_dtype_bytes(acc_dtype);
    map_call call     = {.ahead_bytes = sherdi_ahead_bytes(backend),
                         .dst         = acc,
                         .dst_dtype   = acc_dtype,
                         .src         = x,
                         .src_dtype   = x_dtype,
                         .count_elems = count_elems};

    sherdi_parallel_run(backend, split_of(backend, count_elems, per_elem), accumulate_task, &call);
}

/* ---------------------------------------------------------- fixed point -- */

/* Sources are cast to fp32 in the first-level cache, a tile at a time. */
#define FIXED_TILE_ELEMS 512

typedef struct fixed_call {
    const sherdi_fixed_args *args;
    _Atomic uint64_t         nonfinite;
    _Atomic uint64_t         out_of_range;
} fixed_call;

/* Adds one tile of one source. The counts add 0 or 1 for each element, so that the compiler
 * vectorises them too. */
static void fixed_tile_add(int64_t *acc, const float *grad, size_t count_elems, int overwrites,
                           const sherdi_fixed_args *args, sherdi_fixed_counts *counts)
{
    sherdi_fixed_counts seen = {0, 0};

    if (overwrites) {
        for (size_t i = 0; i < count_elems; i++) {
            acc[i] = sherdi_fixed_element(grad[i], args->multiplier, args->limit, &seen);
        }
    } else {
        for (size_t i = 0; i < count_elems; i++) {
            acc[i] += sherdi_fixed_element(grad[i], args->multiplier, args->limit, &seen);
        }
    }
    counts->nonfinite += seen.nonfinite;
    counts->out_of_range += seen.out_of_range;
}

static void fixed_task(void *ctx, int task, int tasks)
{
    fixed_call              *call = ctx;
    const sherdi_fixed_args *args = call->args;
    size_t                   first;
    size_t end = task_range(args->count_elems, SHERD_CHUNK_ELEMS, task, tasks, &first) + first;
    sherdi_fixed_counts counts = {0, 0};
    float               tile[FIXED_TILE_ELEMS];

    for (; first < end; first += FIXED_TILE_ELEMS) {
        size_t count = sherdi_min_size(FIXED_TILE_ELEMS, end - first);

        for (int k = 0; k < args->num_srcs; k++) {
            const void *src = sherdi_elem_at(args->srcs[k], args->src_dtype, first);

            if (args->src_dtype != SHERD_F32) {
                range_cast(tile, SHERD_F32, src, args->src_dtype, count, 0);
                src = tile;
            }
            fixed_tile_add(args->acc + first, src, count, k == 0 && !args->accumulate, args,
                           &counts);
        }
    }
    (void)atomic_fetch_add_explicit(&call->nonfinite, counts.nonfinite, memory_order_relaxed);
    (void)atomic_fetch_add_explicit(&call->out_of_range, counts.out_of_range, memory_order_relaxed);
}

static void table_reduce_fixed(const sherdi_backend *backend, const sherdi_fixed_args *args)
{
    size_t     per_elem = sherd_dtype_bytes(args->src_dtype) * (size_t)args->num_srcs + 16;
    fixed_call call     = {.args = args};

    sherdi_parallel_run(backend, split_of(backend, args->count_elems, per_elem), fixed_task, &call);
    args->counts->nonfinite += call.nonfinite;
    args->counts->out_of_range += call.out_of_range;
}

typedef struct fixed_to_f32_call {
    float         *dst;
    const int64_t *acc;
    size_t         count_elems;
} fixed_to_f32_call;

static void fixed_to_f32_task(void *ctx, int task, int tasks)
{
    const fixed_to_f32_call *call = ctx;
    size_t                   first;
    size_t count = task_range(call->count_elems, SHERD_CHUNK_ELEMS, task, tasks, &first);

    for (size_t i = first; i < first + count; i++) {
        call->dst[i] = sherdi_fixed_f32(call->acc[i]);
    }
}

static void table_fixed_to_f32(const sherdi_backend *backend, float *dst, const int64_t *acc,
                               size_t count_elems)
{
    fixed_to_f32_call call = {dst, acc, count_elems};

    sherdi_parallel_run(backend, split_of(backend, count_elems, 12), fixed_to_f32_task, &call);
}

#include "kernels/cpu/table_list.h"

const sherdi_kernel_ops TABLE_NAME = {
    .struct_size         = sizeof(sherdi_kernel_ops),
    .isa                 = TABLE_ISA,
    .update              = table_update,
    .sumsq               = table_sumsq,
    .reduce              = table_reduce,
    .cast                = table_cast,
    .accumulate          = table_accumulate,
    .copy                = table_copy,
    .zero                = table_zero,
    .fingerprint         = table_fingerprint,
    .reduce_fixed        = table_reduce_fixed,
    .fixed_to_f32        = table_fixed_to_f32,
    .decode              = table_decode,
    .encode              = table_encode,
    .fingerprint_encoded = table_fingerprint_encoded,
#define TABLE_SLOTS
#include "kernels/cpu/table_list.h"
#undef TABLE_SLOTS
};
