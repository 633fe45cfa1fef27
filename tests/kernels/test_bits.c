/* Every instruction set gives the bits of scalar: all kernels, types, lengths around the
 * vector sizes, starts that no vector is aligned to, inputs of every kind, one to eight threads.
 * Arrays are compared with the guard bytes around them. */
#include "kernels/updates/updates.h"
#include "tests/kernels/bits.h"
#include "tests/kernels/rules.h"

#include <string.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

static const sherd_dtype DTYPES[] = {SHERD_F32, SHERD_BF16, SHERD_F16};

#define NUM_DTYPES 3
#define NUM_ISAS   3
/* Long enough for several parts of every kernel, not a multiple of anything. */
#define LONG_ELEMS (3 * 8192 + 77)

static const char *const ISAS[NUM_ISAS] = {"scalar", "avx2", "avx512"};

typedef void (*way_fn)(const sherdi_backend *yardstick, const sherdi_backend *tested);

/* 0: this machine does not have the instruction set. */
static int way_run(const sherdi_backend *yardstick, const char *isa, int threads, way_fn body)
{
    sherdi_backend tested = backend_make(isa, threads);
    int            has    = tested.kernels != NULL;

    if (has) {
        body(yardstick, &tested);
    }
    backend_destroy(&tested);
    return has;
}

/* Calls body for every way that this machine has: an instruction set and a number of threads.
 * Scalar is slow, so it is the yardstick for one thread of each other set; the last of those that
 * equals it then is for several threads of all, which get no input that it did not get. A sample
 * has three numbers of threads. */
static void every_way(way_fn body)
{
    static const int THREADS[] = {1, 8, 3, 2, 5};
    const size_t     count     = test_is_long() ? sizeof(THREADS) / sizeof(THREADS[0]) : 2;
    const char      *fast      = ISAS[0];
    sherdi_backend   yardstick = backend_make(ISAS[0], 1);

    for (int i = 1; i < NUM_ISAS; i++) {
        fast = way_run(&yardstick, ISAS[i], 1, body) ? ISAS[i] : fast;
    }
    backend_destroy(&yardstick);
    yardstick = backend_make(fast, 1);
    for (int i = 0; i < NUM_ISAS; i++) {
        for (size_t t = 1; t < count; t++) {
            (void)way_run(&yardstick, ISAS[i], THREADS[t], body);
        }
    }
    backend_destroy(&yardstick);
}

/* Short lengths where one thread does all, a long one where several share. */
static size_t next_length(const sherdi_backend *tested, size_t length)
{
    if (tested->threads == 1 && length < 130) {
        return length + 1;
    }
    return length < LONG_ELEMS ? LONG_ELEMS : SIZE_MAX;
}

/* ----------------------------------------------------------------- adam -- */

typedef struct adam_arrays {
    guarded grad, param;
    guarded parts[SHERDI_UPDATE_MOST_PARTS]; /* as many as the update has: master, m, v, ... */
} adam_arrays;

typedef struct adam_shape {
    const sherdi_span *spans;
    size_t             num_spans;
    size_t             block_elems;
    size_t             shift;
    sherd_dtype        grad_dtype;
    sherd_dtype        param_dtype;
    int                has_param;
    input_kind         kind;
    const update_rule *rule; /* NULL: Adam with COEFFS */
} adam_shape;

static const sherdi_adam_coeffs COEFFS[2] = {
    {.grad_scale      = 0.37f,
     .beta1           = 0.9f,
     .one_minus_beta1 = 0.1f,
     .beta2           = 0.999f,
     .one_minus_beta2 = 0.001f,
     .eps             = 1e-8f,
     .neg_lr_decay    = -1e-3f,
     .l2_decay        = 0.0f,
     .neg_step_size   = -0.01f,
     .inv_sqrt_bias   = 3.7f},
    {.grad_scale      = 1.0f / 65536.0f,
     .beta1           = 0.8f,
     .one_minus_beta1 = 0.2f,
     .beta2           = 0.95f,
     .one_minus_beta2 = 0.05f,
     .eps             = 1e-6f,
     .neg_lr_decay    = 0.0f,
     .l2_decay        = 0.1f,
     .neg_step_size   = -0.3f,
     .inv_sqrt_bias   = 1.0f},
};

static sherdi_update_id update_of(const adam_shape *shape)
{
    return shape->rule == NULL ? SHERDI_UPDATE_adam : shape->rule->update;
}

static adam_arrays adam_make(const adam_shape *shape)
{
    adam_arrays arrays = {
        .grad  = guarded_make(shape->grad_dtype, shape->block_elems, shape->shift),
        .param = guarded_make(shape->param_dtype, shape->block_elems, shape->shift),
    };

    for (int part = 0; part < sherdi_update_parts(update_of(shape)); part++) {
        arrays.parts[part] = guarded_make(SHERD_F32, shape->block_elems, shape->shift);
    }
    return arrays;
}

static void adam_free(const adam_shape *shape, adam_arrays *arrays)
{
    guarded_free(&arrays->grad);
    guarded_free(&arrays->param);
    for (int part = 0; part < sherdi_update_parts(update_of(shape)); part++) {
        guarded_free(&arrays->parts[part]);
    }
}

static void adam_copy(const adam_shape *shape, adam_arrays *to, const adam_arrays *from)
{
    guarded_copy(&to->grad, &from->grad);
    guarded_copy(&to->param, &from->param);
    for (int part = 0; part < sherdi_update_parts(update_of(shape)); part++) {
        guarded_copy(&to->parts[part], &from->parts[part]);
    }
}

static void adam_check_equal(const adam_shape *shape, const adam_arrays *want,
                             const adam_arrays *got)
{
    CHECK_GUARDED(&want->grad, &got->grad);
    CHECK_GUARDED(&want->param, &got->param);
    for (int part = 0; part < sherdi_update_parts(update_of(shape)); part++) {
        CHECK_GUARDED(&want->parts[part], &got->parts[part]);
    }
}

static uint64_t adam_run(const sherdi_backend *backend, const adam_shape *shape,
                         adam_arrays *arrays)
{
    uint64_t           fingerprint = 17; /* the share is added */
    uint64_t           again       = 17;
    sherdi_update_args args        = {
               .spans       = shape->spans,
               .num_spans   = shape->num_spans,
               .coeffs      = shape->rule == NULL ? (const void *)COEFFS : shape->rule->coeffs,
               .grad        = arrays->grad.first,
               .grad_dtype  = shape->grad_dtype,
               .param       = shape->has_param ? arrays->param.first : NULL,
               .param_dtype = shape->param_dtype,
               .fingerprint = &fingerprint,
    };

    for (int part = 0; part < sherdi_update_parts(update_of(shape)); part++) {
        args.parts[part] = (float *)(void *)arrays->parts[part].first;
    }
    backend->kernels->update(backend, update_of(shape), &args);
    backend->kernels->fingerprint(backend, shape->spans, shape->num_spans, args.master, &again);
    CHECK_INT(fingerprint, again);
    return fingerprint;
}

static void adam_compare(const sherdi_backend *yardstick, const sherdi_backend *tested,
                         const adam_shape *shape)
{
    uint64_t    seed  = shape->block_elems * 977 + shape->shift;
    adam_arrays start = adam_make(shape);
    adam_arrays want  = adam_make(shape);
    adam_arrays got   = adam_make(shape);

    guarded_fill(&start.grad, shape->kind, &seed);
    for (int part = 0; part < sherdi_update_parts(update_of(shape)); part++) {
        float *values = (float *)(void *)start.parts[part].first;

        guarded_fill(&start.parts[part], shape->kind, &seed);
        /* an update may take the root of a part after m */
        for (size_t i = 0; part > 1 && shape->kind == INPUT_TAME && i < shape->block_elems; i++) {
            values[i] = values[i] * values[i];
        }
    }
    adam_copy(shape, &want, &start);
    adam_copy(shape, &got, &start);
    CHECK_INT(adam_run(yardstick, shape, &want), adam_run(tested, shape, &got));
    adam_check_equal(shape, &want, &got);
    adam_free(shape, &start);
    adam_free(shape, &want);
    adam_free(shape, &got);
}

static void adam_all_types(const sherdi_backend *yardstick, const sherdi_backend *tested,
                           adam_shape shape)
{
    for (int kind = 0; kind < INPUT_KINDS; kind++) {
        for (int grad = 0; grad < NUM_DTYPES; grad++) {
            for (int param = -1; param < NUM_DTYPES; param++) {
                shape.kind        = (input_kind)kind;
                shape.grad_dtype  = DTYPES[grad];
                shape.param_dtype = DTYPES[param < 0 ? 0 : param];
                shape.has_param   = param >= 0;
                adam_compare(yardstick, tested, &shape);
            }
        }
    }
}

static void adam_body(const sherdi_backend *yardstick, const sherdi_backend *tested)
{
    for (size_t length = 0; length != SIZE_MAX; length = next_length(tested, length)) {
        sherdi_span span  = {.count_elems = length, .first_index = 1000003 * length, .group = 0};
        adam_shape  shape = {
             .spans = &span, .num_spans = 1, .block_elems = length, .shift = length % 5};

        adam_all_types(yardstick, tested, shape);
    }
}

static void adam_every_variant_equals_scalar(void)
{
    every_way(adam_body);
}

/* Spans of odd lengths with padding between, two groups, an index range over a multiple of
 * 2^32, an empty span. The comparison covers the padding. */
static void adam_spans_body(const sherdi_backend *yardstick, const sherdi_backend *tested)
{
    const sherdi_span spans[] = {
        {.offset_elems = 64, .count_elems = 130, .first_index = 5, .group = 1},
        {.offset_elems = 320, .count_elems = 0, .first_index = 135, .group = 0},
        {.offset_elems = 384, .count_elems = 20000, .first_index = 0xffffffffu - 9000, .group = 0},
        {.offset_elems = 20416, .count_elems = 1, .first_index = 0x1ffffffffu, .group = 1},
        {.offset_elems = 20489, .count_elems = 9001, .first_index = 0x300000007u, .group = 1},
    };
    adam_shape shape = {.spans = spans, .num_spans = 5, .block_elems = 29568};

    adam_all_types(yardstick, tested, shape);
}

static void adam_spans_leave_the_padding_alone(void)
{
    every_way(adam_spans_body);
}

/* Every other update of the list, over lengths around a tile. */
static void updates_body(const sherdi_backend *yardstick, const sherdi_backend *tested)
{
    static const size_t LENGTHS[] = {1, 63, 130, LONG_ELEMS};

    for (size_t rule = 0; rule < UPDATE_RULES; rule++) {
        for (size_t i = 0; i < 4; i++) {
            size_t      half    = LENGTHS[i] / 128 * 64;
            sherdi_span spans[] = {
                {.count_elems = half, .first_index = 7, .group = 0},
                {.offset_elems = half, .count_elems = LENGTHS[i] - half, .group = 1}};
            adam_shape shape = {.spans       = spans,
                                .num_spans   = 2,
                                .block_elems = LENGTHS[i],
                                .shift       = i % 3,
                                .rule        = &update_rules()[rule],
                                .grad_dtype  = DTYPES[rule % 2],
                                .param_dtype = DTYPES[rule % 2],
                                .has_param   = (int)(rule % 2),
                                .kind        = INPUT_WILD};

            if (tested->threads == 1 && i < 3) {
                adam_all_types(yardstick, tested, shape);
            } else if (i == 3) {
                adam_compare(yardstick, tested, &shape);
            }
        }
    }
}

static void updates_every_variant_equals_scalar(void)
{
    every_way(updates_body);
}

static void adam_no_spans_does_nothing(void)
{
    for (int i = 0; i < NUM_ISAS; i++) {
        sherdi_backend backend = backend_make(ISAS[i], 2);
        adam_shape     shape   = {.spans = NULL, .num_spans = 0, .block_elems = 64};
        adam_arrays    arrays;

        if (backend.kernels != NULL) {
            arrays = adam_make(&shape);
            CHECK_INT(17, adam_run(&backend, &shape, &arrays));
            adam_free(&shape, &arrays);
        }
        backend_destroy(&backend);
    }
}

/* Enough bytes that the written parameters go around the caches. */
static void adam_large_body(const sherdi_backend *yardstick, const sherdi_backend *tested)
{
    for (size_t shift = 0; shift < 2; shift++) {
        sherdi_span span  = {.count_elems = 310001};
        adam_shape  shape = {.spans       = &span,
                             .num_spans   = 1,
                             .block_elems = 310001,
                             .shift       = shift,
                             .grad_dtype  = SHERD_BF16,
                             .kind        = INPUT_WILD,
                             .has_param   = 1};

        for (int param = (int)shift; param < NUM_DTYPES; param += 2) {
            shape.param_dtype = DTYPES[param];
            adam_compare(yardstick, tested, &shape);
        }
    }
}

static void adam_large_blocks_equal_scalar(void)
{
    every_way(adam_large_body);
}

/* ----------------------------------------------------------------- norm -- */

static void sumsq_compare(const sherdi_backend *yardstick, const sherdi_backend *tested,
                          sherd_dtype dtype, size_t chunks, input_kind kind)
{
    uint64_t        seed  = chunks;
    guarded         x     = guarded_make(dtype, chunks * SHERD_CHUNK_ELEMS, chunks % 3);
    sherdi_norm_acc start = {.bins = {1, 2, 3, UINT64_MAX}, .nonfinite = 1};
    sherdi_norm_acc want  = start;
    sherdi_norm_acc got   = start;

    guarded_fill(&x, kind, &seed);
    yardstick->kernels->sumsq(yardstick, x.first, dtype, x.count_elems, &want);
    tested->kernels->sumsq(tested, x.first, dtype, x.count_elems, &got);
    CHECK_BYTES_EQUAL(&want, &got, sizeof(want));
    guarded_free(&x);
}

static void sumsq_body(const sherdi_backend *yardstick, const sherdi_backend *tested)
{
    for (int dtype = 0; dtype < NUM_DTYPES; dtype++) {
        for (int kind = 0; kind < INPUT_KINDS; kind++) {
            for (size_t chunks = 0; chunks < 35; chunks++) {
                sumsq_compare(yardstick, tested, DTYPES[dtype], chunks, (input_kind)kind);
            }
            sumsq_compare(yardstick, tested, DTYPES[dtype], 1001, (input_kind)kind);
        }
    }
}

static void sumsq_every_variant_equals_scalar(void)
{
    every_way(sumsq_body);
}

static void sumsq_scaled_body(const sherdi_backend *yardstick, const sherdi_backend *tested)
{
    for (uint64_t seed = 1; seed <= 30; seed++) {
        uint64_t        state = seed;
        guarded         x     = guarded_make(DTYPES[seed % 3], 1003 * SHERD_CHUNK_ELEMS, 0);
        sherdi_norm_acc want  = {0};
        sherdi_norm_acc got   = {0};

        guarded_fill_scaled(&x, &state);
        yardstick->kernels->sumsq(yardstick, x.first, x.dtype, x.count_elems, &want);
        tested->kernels->sumsq(tested, x.first, x.dtype, x.count_elems, &got);
        CHECK_BYTES_EQUAL(&want, &got, sizeof(want));
        guarded_free(&x);
    }
}

static void sumsq_of_all_magnitudes_equals_scalar(void)
{
    every_way(sumsq_scaled_body);
}

/* --------------------------------------------------------------- reduce -- */

#define MAX_SRCS 5

typedef struct reduce_shape {
    int         num_srcs;
    sherd_dtype src_dtype, comm_dtype, dst_dtype;
    int         accumulate;
    int         in_place; /* dst is the last source, one of more_dsts the first */
    int         has_weights;
    size_t      count_elems, shift;
    input_kind  kind;
} reduce_shape;

static const double REDUCE_WEIGHTS[MAX_SRCS] = {1, 1.0 / 3, 0, 0.7, 0x1p-20};

typedef struct reduce_arrays {
    guarded srcs[MAX_SRCS];
    guarded dsts[3];
} reduce_arrays;

static reduce_arrays reduce_make(const reduce_shape *shape)
{
    reduce_arrays arrays;
    uint64_t      seed = shape->count_elems + 31 * (uint64_t)shape->num_srcs;

    for (int k = 0; k < MAX_SRCS; k++) {
        arrays.srcs[k] = guarded_make(shape->src_dtype, shape->count_elems, shape->shift);
        guarded_fill(&arrays.srcs[k], shape->kind, &seed);
    }
    for (int k = 0; k < 3; k++) {
        arrays.dsts[k] = guarded_make(shape->dst_dtype, shape->count_elems, shape->shift);
        guarded_fill(&arrays.dsts[k], shape->kind, &seed);
    }
    return arrays;
}

static void reduce_run(const sherdi_backend *backend, const reduce_shape *shape,
                       reduce_arrays *arrays)
{
    const void *srcs[MAX_SRCS];
    int         in_place = shape->in_place && shape->src_dtype == shape->dst_dtype;
    void       *more[2]  = {in_place ? arrays->srcs[0].first : arrays->dsts[1].first,
                     arrays->dsts[2].first};
    sherdi_reduce_args args = {
        .srcs          = srcs,
        .num_srcs      = shape->num_srcs,
        .src_dtype     = shape->src_dtype,
        .comm_dtype    = shape->comm_dtype,
        .dst           = in_place ? arrays->srcs[shape->num_srcs - 1].first : arrays->dsts[0].first,
        .dst_dtype     = shape->dst_dtype,
        .count_elems   = shape->count_elems,
        .scale         = 1.0f / 3.0f,
        .accumulate    = shape->accumulate,
        .weights       = shape->has_weights ? REDUCE_WEIGHTS : NULL,
        .more_dsts     = more,
        .num_more_dsts = shape->num_srcs == 1 ? 0 : 2,
    };

    for (int k = 0; k < shape->num_srcs; k++) {
        srcs[k] = arrays->srcs[k].first;
    }
    backend->kernels->reduce(backend, &args);
}

static void reduce_compare(const sherdi_backend *yardstick, const sherdi_backend *tested,
                           const reduce_shape *shape)
{
    reduce_arrays want = reduce_make(shape);
    reduce_arrays got  = reduce_make(shape);

    reduce_run(yardstick, shape, &want);
    reduce_run(tested, shape, &got);
    for (int k = 0; k < MAX_SRCS; k++) {
        CHECK_GUARDED(&want.srcs[k], &got.srcs[k]);
        guarded_free(&want.srcs[k]);
        guarded_free(&got.srcs[k]);
    }
    for (int k = 0; k < 3; k++) {
        CHECK_GUARDED(&want.dsts[k], &got.dsts[k]);
        guarded_free(&want.dsts[k]);
        guarded_free(&got.dsts[k]);
    }
}

/* Types of source, communication and destination, number i of 27. */
static void reduce_types(reduce_shape *shape, int i)
{
    shape->src_dtype  = DTYPES[i / 9];
    shape->comm_dtype = DTYPES[i / 3 % 3];
    shape->dst_dtype  = DTYPES[i % 3];
}

static void reduce_body(const sherdi_backend *yardstick, const sherdi_backend *tested)
{
    for (size_t length = 0; length != SIZE_MAX; length = next_length(tested, length)) {
        for (int i = 0; i < 27 * 2 * INPUT_KINDS; i++) {
            reduce_shape shape = {.num_srcs    = 1 + (int)((length + (size_t)i) % MAX_SRCS),
                                  .count_elems = length,
                                  .shift       = length % 3,
                                  .kind        = (input_kind)(i / 27 % INPUT_KINDS),
                                  .accumulate  = i / (27 * INPUT_KINDS),
                                  .in_place    = (length + (size_t)i) % 2 == 0,
                                  .has_weights = (length / 3 + (size_t)i) % 2 == 0};

            reduce_types(&shape, i % 27);
            if (tested->threads == 1 && ((size_t)i + length) % 3 != 0) {
                continue; /* every combination meets every third length */
            }
            if (shape.accumulate || shape.dst_dtype == shape.comm_dtype ||
                shape.dst_dtype == SHERD_F32) {
                reduce_compare(yardstick, tested, &shape);
            }
        }
    }
}

static void reduce_every_variant_equals_scalar(void)
{
    every_way(reduce_body);
}

static void reduce_large_body(const sherdi_backend *yardstick, const sherdi_backend *tested)
{
    reduce_shape shape = {.num_srcs    = 2,
                          .src_dtype   = SHERD_BF16,
                          .comm_dtype  = SHERD_BF16,
                          .dst_dtype   = SHERD_BF16,
                          .count_elems = 1400001,
                          .kind        = INPUT_WILD};

    reduce_compare(yardstick, tested, &shape);
    shape.in_place = 1;
    reduce_compare(yardstick, tested, &shape);
    shape.in_place = 0;
    shape.shift    = 1;
    reduce_compare(yardstick, tested, &shape);
    shape.has_weights = 1;
    reduce_compare(yardstick, tested, &shape);
}

static void reduce_large_equals_scalar(void)
{
    every_way(reduce_large_body);
}

/* --------------------------------------------------- cast and accumulate -- */

static void cast_compare(const sherdi_backend *yardstick, const sherdi_backend *tested,
                         const guarded *src, sherd_dtype dst_dtype, size_t shift)
{
    guarded want = guarded_make(dst_dtype, src->count_elems, shift);
    guarded got  = guarded_make(dst_dtype, src->count_elems, shift);

    yardstick->kernels->cast(yardstick, want.first, dst_dtype, src->first, src->dtype,
                             src->count_elems);
    tested->kernels->cast(tested, got.first, dst_dtype, src->first, src->dtype, src->count_elems);
    CHECK_GUARDED(&want, &got);
    guarded_free(&want);
    guarded_free(&got);
}

static void accumulate_compare(const sherdi_backend *yardstick, const sherdi_backend *tested,
                               const guarded *x, sherd_dtype acc_dtype, size_t shift,
                               input_kind kind)
{
    uint64_t seed = x->count_elems + 5;
    guarded  want = guarded_make(acc_dtype, x->count_elems, shift);
    guarded  got  = guarded_make(acc_dtype, x->count_elems, shift);

    guarded_fill(&want, kind, &seed);
    guarded_copy(&got, &want);
    yardstick->kernels->accumulate(yardstick, want.first, acc_dtype, x->first, x->dtype,
                                   x->count_elems);
    tested->kernels->accumulate(tested, got.first, acc_dtype, x->first, x->dtype, x->count_elems);
    CHECK_GUARDED(&want, &got);
    guarded_free(&want);
    guarded_free(&got);
}

static void map_compare(const sherdi_backend *yardstick, const sherdi_backend *tested,
                        size_t length, input_kind kind)
{
    for (int from = 0; from < NUM_DTYPES; from++) {
        uint64_t seed = length;
        guarded  x    = guarded_make(DTYPES[from], length, length % 7);

        guarded_fill(&x, kind, &seed);
        for (int to = 0; to < NUM_DTYPES; to++) {
            cast_compare(yardstick, tested, &x, DTYPES[to], length % 5);
            accumulate_compare(yardstick, tested, &x, DTYPES[to], length % 5, kind);
        }
        guarded_free(&x);
    }
}

static void map_body(const sherdi_backend *yardstick, const sherdi_backend *tested)
{
    for (size_t length = 0; length != SIZE_MAX; length = next_length(tested, length)) {
        map_compare(yardstick, tested, length, INPUT_TAME);
        map_compare(yardstick, tested, length, INPUT_WILD);
    }
}

static void cast_and_accumulate_every_variant_equals_scalar(void)
{
    every_way(map_body);
}

/* Large enough to be written around the caches. */
static void cast_large_body(const sherdi_backend *yardstick, const sherdi_backend *tested)
{
    uint64_t seed = 1;
    guarded  f32  = guarded_make(SHERD_F32, 1500003, 1);
    guarded  bf16 = guarded_make(SHERD_BF16, 1500003, 3);

    guarded_fill(&f32, INPUT_WILD, &seed);
    guarded_fill(&bf16, INPUT_WILD, &seed);
    cast_compare(yardstick, tested, &f32, SHERD_BF16, 5);
    cast_compare(yardstick, tested, &bf16, SHERD_F32, 3);
    guarded_free(&f32);
    guarded_free(&bf16);
}

static void cast_large_equals_scalar(void)
{
    every_way(cast_large_body);
}

/* Every value of the 16-bit types, and fp32 in steps that meet every exponent. */
static void cast_all_values_body(const sherdi_backend *yardstick, const sherdi_backend *tested)
{
    guarded   bf16   = guarded_make(SHERD_BF16, 65536, 0);
    guarded   f16    = guarded_make(SHERD_F16, 65536, 0);
    guarded   f32    = guarded_make(SHERD_F32, 1 << 20, 0);
    uint16_t *bits16 = (uint16_t *)(void *)bf16.first;
    uint32_t *bits32 = (uint32_t *)(void *)f32.first;

    for (uint32_t i = 0; i < 65536; i++) {
        bits16[i] = (uint16_t)i;
    }
    memcpy(f16.first, bf16.first, 65536 * 2);
    for (uint32_t i = 0; i < 1 << 20; i++) {
        bits32[i] = i << 12 | (i * 2654435761u >> 20);
    }
    for (int to = 0; to < NUM_DTYPES; to++) {
        cast_compare(yardstick, tested, &bf16, DTYPES[to], 0);
        cast_compare(yardstick, tested, &f16, DTYPES[to], 0);
        cast_compare(yardstick, tested, &f32, DTYPES[to], 0);
    }
    guarded_free(&bf16);
    guarded_free(&f16);
    guarded_free(&f32);
}

static void cast_all_values_equal_scalar(void)
{
    every_way(cast_all_values_body);
}

/* -------------------------------------------------------- copy and zero -- */

static void copy_compare(const sherdi_backend *tested, size_t len_bytes, size_t shift)
{
    uint64_t seed = len_bytes;
    guarded  src  = guarded_make(SHERD_BF16, len_bytes / 2 + 1, 3);
    guarded  want = guarded_make(SHERD_BF16, len_bytes / 2 + 1, shift);
    guarded  got  = guarded_make(SHERD_BF16, len_bytes / 2 + 1, shift);

    guarded_fill(&src, INPUT_WILD, &seed);
    memcpy(want.first, src.first, len_bytes);
    tested->kernels->copy(tested, got.first, src.first, len_bytes);
    CHECK_GUARDED(&want, &got);
    memset(want.first, 0, len_bytes);
    tested->kernels->zero(tested, got.first, len_bytes);
    CHECK_GUARDED(&want, &got);
    guarded_free(&src);
    guarded_free(&want);
    guarded_free(&got);
}

static void copy_body(const sherdi_backend *yardstick, const sherdi_backend *tested)
{
    (void)yardstick;
    for (size_t len_bytes = 0; len_bytes < 300; len_bytes++) {
        copy_compare(tested, len_bytes, len_bytes % 7);
    }
    copy_compare(tested, 300001, 1);
    copy_compare(tested, (9 << 20) + 1, 1);
    copy_compare(tested, 9 << 20, 0);
    copy_compare(tested, (8 << 20) + 4099, 5);
}

static void copy_and_zero_reach_their_bytes_alone(void)
{
    every_way(copy_body);
}

/* ---------------------------------------------------------- fingerprint -- */

static void fingerprint_is_the_plain_sum(void)
{
    uint64_t seed = 3;
    guarded  x    = guarded_make(SHERD_F32, LONG_ELEMS, 1);

    guarded_fill(&x, INPUT_WILD, &seed);
    for (size_t length = 0; length <= LONG_ELEMS; length = length < 130 ? length + 1 : length * 5) {
        sherdi_span span = {.count_elems = length, .first_index = ((uint64_t)7 << 32) - 66};
        uint64_t    want = 0;

        for (size_t i = 0; i < length; i++) {
            want += sherdi_mix_element(span.first_index + i, ((float *)(void *)x.first)[i]);
        }
        for (int i = 0; i < 2 * NUM_ISAS; i++) {
            sherdi_backend backend = backend_make(ISAS[i / 2], 1 + i % 2);

            if (backend.kernels != NULL) {
                uint64_t got = 0;

                backend.kernels->fingerprint(&backend, &span, 1,
                                             (const float *)(const void *)x.first, &got);
                CHECK_INT(want, got);
            }
            backend_destroy(&backend);
        }
    }
    guarded_free(&x);
}

/* --------------------------------------------- the caller's environment -- */

/* A caller that flushes denormals and rounds another way gets the same bits, and keeps its own
 * settings. */
static void kernels_ignore_the_callers_float_settings(void)
{
#if defined(__x86_64__)
    const unsigned flush_and_truncate = 0x1f80u | 0x8040u | 0x6000u;

    for (int i = 0; i < NUM_ISAS; i++) {
        sherdi_backend backend = backend_make(ISAS[i], 1 + i % 2);
        uint64_t       seed    = 11;
        sherdi_span    span    = {.count_elems = LONG_ELEMS};
        adam_shape     shape   = {
                  .spans = &span, .num_spans = 1, .block_elems = LONG_ELEMS, .kind = INPUT_WILD};
        adam_arrays want;
        adam_arrays got;

        if (backend.kernels == NULL) {
            backend_destroy(&backend);
            continue;
        }
        want = adam_make(&shape);
        got  = adam_make(&shape);
        guarded_fill(&want.grad, INPUT_WILD, &seed);
        for (int part = 0; part < sherdi_update_parts(SHERDI_UPDATE_adam); part++) {
            guarded_fill(&want.parts[part], INPUT_WILD, &seed);
        }
        adam_copy(&shape, &got, &want);
        (void)adam_run(&backend, &shape, &want);
        _mm_setcsr(flush_and_truncate);
        (void)adam_run(&backend, &shape, &got);
        CHECK_INT(flush_and_truncate, _mm_getcsr() & ~0x3fu);
        _mm_setcsr(0x1f80u);
        adam_check_equal(&shape, &want, &got);
        adam_free(&shape, &want);
        adam_free(&shape, &got);
        backend_destroy(&backend);
    }
#else
    test_skip("written for x86");
#endif
}

static const test_case CASES[] = {
    CASE(adam_every_variant_equals_scalar),
    CASE(adam_spans_leave_the_padding_alone),
    CASE(updates_every_variant_equals_scalar),
    CASE(adam_no_spans_does_nothing),
    CASE(adam_large_blocks_equal_scalar),
    CASE(sumsq_every_variant_equals_scalar),
    CASE(sumsq_of_all_magnitudes_equals_scalar),
    CASE(reduce_every_variant_equals_scalar),
    CASE(reduce_large_equals_scalar),
    CASE(cast_and_accumulate_every_variant_equals_scalar),
    CASE(cast_large_equals_scalar),
    CASE(cast_all_values_equal_scalar),
    CASE(copy_and_zero_reach_their_bytes_alone),
    CASE(fingerprint_is_the_plain_sum),
    CASE(kernels_ignore_the_callers_float_settings),
};

RUN_MAIN(CASES)
