/* Makes the kernel table of one instruction set from its range loops (ranges.h): walks the spans,
 * splits the work over threads at multiples of 64 elements, and adds up the shares of the tasks.
 * scalar.c, avx2.c and avx512.c include it at their end, with TABLE_NAME, TABLE_ISA,
 * TABLE_OWN_BYTES and TABLE_HAS_VECTORS defined, so each table calls its own loops directly. Shares
 * of sums are integers, so no split changes a result. */
#include "base/checked.h"
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

/* Does `count` elements of a call, or bytes, from `first` on. */
typedef void (*elems_fn)(void *call, size_t first, size_t count);

typedef struct elems_call {
    elems_fn fn;
    void    *call;
    size_t   count;
} elems_call;

static void elems_task(void *ctx, int task, int tasks)
{
    const elems_call *elems  = ctx;
    size_t            chunks = chunks_of(elems->count);
    size_t            first  = task_first(chunks, task, tasks) * SHERD_CHUNK_ELEMS;
    size_t            end    = task_first(chunks, task + 1, tasks) * SHERD_CHUNK_ELEMS;

    elems->fn(elems->call, first, sherdi_min_size(end, elems->count) - first);
}

/* Splits `count` elements, of which each touches per_elem bytes, into tasks of whole chunks. */
static void elems_run(const sherdi_backend *backend, size_t count, size_t per_elem, elems_fn fn,
                      void *call)
{
    elems_call elems = {fn, call, count};

    sherdi_parallel_run(backend,
                        sherdi_split_of(backend, chunks_of(count), SHERD_CHUNK_ELEMS * per_elem),
                        elems_task, &elems);
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

static void update_task(void *ctx, int task, int tasks)
{
    update_call              *call = ctx;
    const sherdi_update_args *args = call->args;
    span_walk  walk        = walk_task(args->spans, args->num_spans, call->chunks, task, tasks);
    span_range where       = {0};
    uint64_t   fingerprint = 0;

    while (walk_next(&walk, &where)) {
        sherdi_update_range range = update_range_at(&call->block, &where);

        fingerprint += update_range_run(call, &range, where.span);
    }
    range_stream_end();
    (void)atomic_fetch_add_explicit(&call->fingerprint, fingerprint, memory_order_relaxed);
}

/* UPDATE_SPAN defines a function `span_fn`, which updates a range by `range_fn`. The coefficients
 * of a span are those of its group, with the step multiplied by the ratio of its parameter. They
 * are copied, so that the compiler knows that no store to the arrays changes them. */
#define UPDATE_SPAN(name, range_fn, span_fn)                                                       \
    static uint64_t span_fn(const sherdi_update_range *range, const sherdi_update_args *args,      \
                            const sherdi_span *span)                                               \
    {                                                                                              \
        sherdi_##name##_coeffs own = ((const sherdi_##name##_coeffs *)args->coeffs)[span->group];  \
                                                                                                   \
        if (args->ratios != NULL) {                                                                \
            own.neg_step_size = own.neg_step_size * args->ratios[span->param];                     \
        }                                                                                          \
        return range_fn(range, &own);                                                              \
    }

#define SHERDI_UPDATE(name, num_parts) UPDATE_SPAN(name, range_##name, name##_span)
#include "kernels/updates/rows.h"

static void update_run(const sherdi_backend *backend, sherdi_update_id update, update_call *call,
                       int is_encoded, sherdi_task_fn task)
{
    static const update_range_fn UPDATES[] = {
#define SHERDI_UPDATE(name, num_parts) name##_span,
#include "kernels/updates/rows.h"
    };
    const sherdi_update_args *args  = call->args;
    size_t                    bytes = sherdi_update_bytes(update, args, 1);
    range_trial               trial = range_ahead_begin(backend, is_encoded, bytes);

    call->update = UPDATES[update];
    update_call_run(backend, call, sherdi_update_parts(update), bytes, trial.ahead_bytes, task);
    range_ahead_end(backend, &trial);
    if (args->fingerprint != NULL) {
        *args->fingerprint += call->fingerprint;
    }
}

static void table_update(const sherdi_backend *backend, sherdi_update_id update,
                         const sherdi_update_args *args)
{
    update_call call = {.args = args};

    if (sherdi_has_encoded(args->encodings, SHERDI_UPDATE_MOST_PARTS)) {
        TABLE_NAME.update_encoded(backend, update, args);
    } else {
        update_run(backend, update, &call, 0, update_task);
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

/* ---------------------------------------------------------------- sumsq -- */

typedef struct sumsq_call {
    const void     *x;
    sherd_dtype     dtype;
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

static void sumsq_elems(void *ctx, size_t first, size_t count)
{
    sumsq_call     *call  = ctx;
    sherdi_norm_acc share = {0};

    range_sumsq(sherdi_elem_at(call->x, call->dtype, first), call->dtype, count, &share);
    norm_share(&call->sum, &share);
}

static void table_sumsq(const sherdi_backend *backend, const void *x, sherd_dtype dtype,
                        size_t count_elems, sherdi_norm_acc *acc)
{
    sumsq_call call = {.x = x, .dtype = dtype};

    elems_run(backend, count_elems, sherd_dtype_bytes(dtype), sumsq_elems, &call);
    sherdi_norm_merge(acc, &call.sum);
}

/* --------------------------------------------------------------- reduce -- */

typedef struct reduce_call {
    const sherdi_reduce_args *args;
    int                       is_streaming;
    size_t                    ahead_bytes;
} reduce_call;

static void reduce_elems(void *ctx, size_t first, size_t count)
{
    const reduce_call *call = ctx;

    range_reduce(call->args, first, count, call->is_streaming, call->ahead_bytes);
}

static void table_reduce(const sherdi_backend *backend, const sherdi_reduce_args *args)
{
    size_t per_elem = sherd_dtype_bytes(args->src_dtype) * (size_t)args->num_srcs +
                      sherd_dtype_bytes(args->dst_dtype) * (1 + (size_t)args->num_more_dsts);
    reduce_call call = {.args         = args,
                        .is_streaming = per_elem * args->count_elems >= SHERDI_STREAM_BYTES,
                        .ahead_bytes  = range_ahead_bytes(backend)};

    elems_run(backend, args->count_elems, per_elem, reduce_elems, &call);
}

/* ------------------------------------------------- element by element -- */

/* The call of cast, accumulate, copy or zero: at most one source, and one destination. */
typedef struct map_call {
    void       *dst;
    sherd_dtype dst_dtype;
    const void *src;
    sherd_dtype src_dtype;
    int         is_streaming;
    size_t      ahead_bytes;
} map_call;

static void cast_elems(void *ctx, size_t first, size_t count)
{
    const map_call *call = ctx;

    range_cast(sherdi_elem_at(call->dst, call->dst_dtype, first), call->dst_dtype,
               sherdi_elem_at(call->src, call->src_dtype, first), call->src_dtype, count,
               call->is_streaming);
    range_stream_end();
}

static void accumulate_elems(void *ctx, size_t first, size_t count)
{
    const map_call *call = ctx;

    range_accumulate(sherdi_elem_at(call->dst, call->dst_dtype, first), call->dst_dtype,
                     sherdi_elem_at(call->src, call->src_dtype, first), call->src_dtype, count,
                     call->ahead_bytes);
}

static void copy_bytes(void *ctx, size_t first, size_t len_bytes)
{
    const map_call *call = ctx;
    unsigned char  *dst  = (unsigned char *)call->dst + first;

    if (call->src == NULL) {
        range_zero(dst, len_bytes, call->is_streaming);
    } else {
        range_copy(dst, (const unsigned char *)call->src + first, len_bytes, call->is_streaming,
                   call->ahead_bytes);
    }
}

/* Copies, or zeroes where `src` is NULL. */
static void bytes_set(const sherdi_backend *backend, void *dst, const void *src, size_t len_bytes)
{
    size_t   per_byte = src == NULL ? 1 : 2;
    map_call call     = {.dst          = dst,
                         .src          = src,
                         .is_streaming = per_byte * len_bytes >= SHERDI_STREAM_BYTES,
                         .ahead_bytes  = range_ahead_bytes(backend)};

    if (dst != src && len_bytes > 0) {
        elems_run(backend, len_bytes, per_byte, copy_bytes, &call);
    }
}

static void table_copy(const sherdi_backend *backend, void *dst, const void *src, size_t len_bytes)
{
    assert(src != NULL || len_bytes == 0);
    bytes_set(backend, dst, src, len_bytes);
}

static void table_zero(const sherdi_backend *backend, void *dst, size_t len_bytes)
{
    bytes_set(backend, dst, NULL, len_bytes);
}

static void table_cast(const sherdi_backend *backend, void *dst, sherd_dtype dst_dtype,
                       const void *src, sherd_dtype src_dtype, size_t count_elems)
{
    size_t   per_elem = sherd_dtype_bytes(dst_dtype) + sherd_dtype_bytes(src_dtype);
    map_call call     = {.dst          = dst,
                         .dst_dtype    = dst_dtype,
                         .src          = src,
                         .src_dtype    = src_dtype,
                         .is_streaming = per_elem * count_elems >= SHERDI_STREAM_BYTES};

    if (dst_dtype == src_dtype) {
        table_copy(backend, dst, src, count_elems * sherd_dtype_bytes(dst_dtype));
        return;
    }
    elems_run(backend, count_elems, per_elem, cast_elems, &call);
}

static void table_accumulate(const sherdi_backend *backend, void *acc, sherd_dtype acc_dtype,
                             const void *x, sherd_dtype x_dtype, size_t count_elems)
{
    size_t   per_elem = sherd_dtype_bytes(x_dtype) + 2 * sherd_dtype_bytes(acc_dtype);
    map_call call     = {.ahead_bytes = range_ahead_bytes(backend),
                         .dst         = acc,
                         .dst_dtype   = acc_dtype,
                         .src         = x,
                         .src_dtype   = x_dtype};

    elems_run(backend, count_elems, per_elem, accumulate_elems, &call);
}

#include "kernels/cpu/table_list.h"

const sherdi_kernel_ops TABLE_NAME = {
    .struct_size = sizeof(sherdi_kernel_ops),
    .isa         = TABLE_ISA,
    .own_bytes   = TABLE_OWN_BYTES,
    .update      = table_update,
    .sumsq       = table_sumsq,
    .reduce      = table_reduce,
    .cast        = table_cast,
    .accumulate  = table_accumulate,
    .copy        = table_copy,
    .zero        = table_zero,
    .fingerprint = table_fingerprint,
#define TABLE_SLOTS
#include "kernels/cpu/table_list.h"
#undef TABLE_SLOTS
};
