/* LAMB's two sweeps and its ratios: every instruction set and thread count against plain loops over
 * formulas.h, bit for bit, guard bytes included; norms that no split changes. */
#include "kernels/updates/updates.h"
#include "tests/kernels/bits.h"

#include <math.h>
#include <string.h>

static const sherd_dtype DTYPES[] = {SHERD_F32, SHERD_BF16, SHERD_F16};

#define NUM_DTYPES 3
#define NUM_PARAMS 3
/* Long enough for several parts, not a multiple of anything. */
#define LONG_ELEMS (3 * 8192 + 77)

/* DeepSpeed's form, and the paper's with eps under the root. */
static const sherdi_lamb_coeffs COEFFS[2] = {
    {.grad_scale      = 0.37f,
     .beta1           = 0.9f,
     .one_minus_beta1 = 0.1f,
     .beta2           = 0.999f,
     .one_minus_beta2 = 0.001f,
     .inv_bias1       = 1.0f,
     .inv_bias2       = 1.0f,
     .eps             = 1e-8f,
     .decay           = 0.01f,
     .neg_step_size   = -0.003f,
     .min_ratio       = 0.01f,
     .max_ratio       = 10.0f},
    {.grad_scale      = 1.0f / 65536.0f,
     .beta1           = 0.8f,
     .one_minus_beta1 = 0.2f,
     .beta2           = 0.95f,
     .one_minus_beta2 = 0.05f,
     .inv_bias1       = 1.7f,
     .inv_bias2       = 5.3f,
     .eps_inside      = 1e-6f,
     .decay           = 0.0f,
     .neg_step_size   = -0.3f,
     .min_ratio       = 0.5f,
     .max_ratio       = 2.0f},
};

static void every_backend(void (*body)(const sherdi_backend *tested))
{
    static const char *const ISAS[]    = {"scalar", "avx2", "avx512"};
    static const int         THREADS[] = {1, 2, 5};

    for (size_t i = 0; i < sizeof(ISAS) / sizeof(ISAS[0]); i++) {
        for (size_t t = 0; t < sizeof(THREADS) / sizeof(THREADS[0]); t++) {
            sherdi_backend tested = backend_make(ISAS[i], THREADS[t]);

            if (tested.kernels != NULL) {
                body(&tested);
            }
            backend_destroy(&tested);
        }
    }
}

/* --------------------------------------------------------------- blocks -- */

typedef struct lamb_shape {
    const sherdi_span *spans;
    size_t             num_spans;
    size_t             block_elems;
    size_t             shift;
    sherd_dtype        grad_dtype;
    sherd_dtype        param_dtype;
    int                has_param;
} lamb_shape;

typedef struct lamb_arrays {
    guarded grad, master, m, v, param;
} lamb_arrays;

static lamb_arrays lamb_make(const lamb_shape *shape)
{
    return (lamb_arrays){
        .grad   = guarded_make(shape->grad_dtype, shape->block_elems, shape->shift),
        .master = guarded_make(SHERD_F32, shape->block_elems, shape->shift),
        .m      = guarded_make(SHERD_F32, shape->block_elems, shape->shift),
        .v      = guarded_make(SHERD_F32, shape->block_elems, shape->shift),
        .param  = guarded_make(shape->param_dtype, shape->block_elems, shape->shift),
    };
}

static void lamb_fill(lamb_arrays *arrays, input_kind kind)
{
    uint64_t seed = arrays->grad.count_elems * 977 + 3;
    float   *v    = (float *)(void *)arrays->v.first;

    guarded_fill(&arrays->grad, kind, &seed);
    guarded_fill(&arrays->master, kind, &seed);
    guarded_fill(&arrays->m, kind, &seed);
    guarded_fill(&arrays->v, kind, &seed);
    for (size_t i = 0; kind == INPUT_TAME && i < arrays->v.count_elems; i++) {
        v[i] = v[i] * v[i];
    }
}

static lamb_arrays lamb_clone(const lamb_shape *shape, const lamb_arrays *from)
{
    lamb_arrays to = lamb_make(shape);

    guarded_copy(&to.grad, &from->grad);
    guarded_copy(&to.master, &from->master);
    guarded_copy(&to.m, &from->m);
    guarded_copy(&to.v, &from->v);
    guarded_copy(&to.param, &from->param);
    return to;
}

static void lamb_free(lamb_arrays *arrays)
{
    guarded_free(&arrays->grad);
    guarded_free(&arrays->master);
    guarded_free(&arrays->m);
    guarded_free(&arrays->v);
    guarded_free(&arrays->param);
}

static void lamb_check_equal(const lamb_arrays *want, const lamb_arrays *got)
{
    CHECK_GUARDED(&want->grad, &got->grad);
    CHECK_GUARDED(&want->m, &got->m);
    CHECK_GUARDED(&want->v, &got->v);
    CHECK_GUARDED(&want->master, &got->master);
    CHECK_GUARDED(&want->param, &got->param);
}

/* What both sweeps are given; the other sweep's fields are left out. */
static sherdi_update_args lamb_args(const lamb_shape *shape, lamb_arrays *arrays)
{
    return (sherdi_update_args){
        .spans       = shape->spans,
        .num_spans   = shape->num_spans,
        .coeffs      = COEFFS,
        .grad        = arrays->grad.first,
        .grad_dtype  = shape->grad_dtype,
        .master      = (float *)(void *)arrays->master.first,
        .m           = (float *)(void *)arrays->m.first,
        .v           = (float *)(void *)arrays->v.first,
        .param_dtype = shape->param_dtype,
    };
}

/* ---------------------------------------------------------- plain loops -- */

static void plain_norms(const lamb_shape *shape, const lamb_arrays *arrays,
                        sherdi_lamb_norms *norms)
{
    for (size_t s = 0; s < shape->num_spans; s++) {
        const sherdi_span *span = &shape->spans[s];

        for (size_t first = 0; first < span->count_elems; first += SHERD_CHUNK_ELEMS) {
            float p[SHERD_CHUNK_ELEMS] = {0};
            float u[SHERD_CHUNK_ELEMS] = {0};

            for (size_t i = 0; i < SHERD_CHUNK_ELEMS && first + i < span->count_elems; i++) {
                size_t at = span->offset_elems + first + i;
                float  m  = guarded_get(&arrays->m, at);
                float  v  = guarded_get(&arrays->v, at);

                p[i] = guarded_get(&arrays->master, at);
                u[i] = sherdi_lamb_direction(&COEFFS[span->group], guarded_get(&arrays->grad, at),
                                             p[i], &m, &v);
            }
            sherdi_norm_add(&norms[span->param].param, sherdi_norm_chunk(p));
            sherdi_norm_add(&norms[span->param].update, sherdi_norm_chunk(u));
        }
    }
}

static void plain_param_set(guarded *param, size_t at, float x)
{
    uint16_t *halves = (uint16_t *)(void *)param->first;

    switch (param->dtype) {
    case SHERD_BF16:
        halves[at] = sherdi_cast_f32_bf16(x);
        break;
    case SHERD_F16:
        halves[at] = sherdi_cast_f32_f16(x);
        break;
    case SHERD_F32:
        ((float *)(void *)param->first)[at] = x;
        break;
    }
}

/* Returns the fingerprint. */
static uint64_t plain_lamb(const lamb_shape *shape, lamb_arrays *arrays, const float *ratios)
{
    float   *master      = (float *)(void *)arrays->master.first;
    float   *m           = (float *)(void *)arrays->m.first;
    float   *v           = (float *)(void *)arrays->v.first;
    uint64_t fingerprint = 0;

    for (size_t s = 0; s < shape->num_spans; s++) {
        const sherdi_span *span = &shape->spans[s];
        sherdi_lamb_coeffs c    = COEFFS[span->group];

        for (size_t i = 0; i < span->count_elems; i++) {
            size_t at   = span->offset_elems + i;
            float  x[3] = {master[at], m[at], v[at]};

            c.neg_step_size = COEFFS[span->group].neg_step_size * ratios[span->param];
            sherdi_lamb_element(&c, guarded_get(&arrays->grad, at), x);
            master[at] = x[0];
            m[at]      = x[1];
            v[at]      = x[2];
            fingerprint += sherdi_mix_element(span->first_index + i, master[at]);
            if (shape->has_param) {
                plain_param_set(&arrays->param, at, master[at]);
            }
        }
    }
    return fingerprint;
}

/* --------------------------------------------------------------- sweeps -- */

/* One form of a value, whatever was carried on the way. */
static void norms_check_equal(sherdi_lamb_norms *want, sherdi_lamb_norms *got)
{
    for (size_t i = 0; i < NUM_PARAMS; i++) {
        sherdi_norm_normalise(&want[i].param);
        sherdi_norm_normalise(&want[i].update);
        sherdi_norm_normalise(&got[i].param);
        sherdi_norm_normalise(&got[i].update);
    }
    CHECK_BYTES_EQUAL(want, got, NUM_PARAMS * sizeof(*want));
}

/* Norms are added to, whatever form they have; nothing else is written. */
static void norms_compare(const sherdi_backend *tested, const lamb_shape *shape,
                          const lamb_arrays *start)
{
    const sherdi_lamb_norms some             = {.param  = {.bins = {1, 2, 3, (uint64_t)1 << 60}},
                                                .update = {.bins = {[9] = (uint64_t)7 << 40}, .nonfinite = 1}};
    sherdi_lamb_norms       want[NUM_PARAMS] = {some, some, some};
    sherdi_lamb_norms       got[NUM_PARAMS]  = {some, some, some};
    lamb_arrays             read             = lamb_clone(shape, start);
    sherdi_update_args      args             = lamb_args(shape, &read);

    args.norms = got;
    tested->kernels->lamb_norms(tested, &args);
    plain_norms(shape, start, want);
    norms_check_equal(want, got);
    lamb_check_equal(start, &read);
    lamb_free(&read);
}

static void lamb_compare(const sherdi_backend *tested, const lamb_shape *shape,
                         const lamb_arrays *start)
{
    static const float RATIOS[NUM_PARAMS] = {0.731f, 10.0f, 1.0f};
    lamb_arrays        want               = lamb_clone(shape, start);
    lamb_arrays        got                = lamb_clone(shape, start);
    sherdi_update_args args               = lamb_args(shape, &got);
    uint64_t           fingerprint        = 17; /* the share is added */

    args.param       = shape->has_param ? got.param.first : NULL;
    args.ratios      = RATIOS;
    args.fingerprint = &fingerprint;
    tested->kernels->update(tested, SHERDI_UPDATE_lamb, &args);
    CHECK_INT(17 + plain_lamb(shape, &want, RATIOS), fingerprint);
    lamb_check_equal(&want, &got);
    lamb_free(&want);
    lamb_free(&got);
}

static void lamb_all_types(const sherdi_backend *tested, lamb_shape shape)
{
    for (int kind = 0; kind < INPUT_KINDS; kind++) {
        for (int grad = 0; grad < NUM_DTYPES; grad++) {
            for (int param = -1; param < NUM_DTYPES; param++) {
                lamb_arrays start;

                shape.grad_dtype  = DTYPES[grad];
                shape.param_dtype = DTYPES[param < 0 ? 0 : param];
                shape.has_param   = param >= 0;
                start             = lamb_make(&shape);
                lamb_fill(&start, (input_kind)kind);
                if (param < 0) {
                    norms_compare(tested, &shape, &start);
                }
                lamb_compare(tested, &shape, &start);
                lamb_free(&start);
            }
        }
    }
}

/* Short lengths where one thread does all, a long one where several share. */
static size_t next_length(const sherdi_backend *tested, size_t length)
{
    if (tested->threads == 1 && length < 130) {
        return length + 1;
    }
    return length < LONG_ELEMS ? LONG_ELEMS : SIZE_MAX;
}

static void lengths_body(const sherdi_backend *tested)
{
    for (size_t length = 0; length != SIZE_MAX; length = next_length(tested, length)) {
        sherdi_span span  = {.count_elems = length, .first_index = 1000003 * length, .group = 0};
        lamb_shape  shape = {
             .spans = &span, .num_spans = 1, .block_elems = length, .shift = length % 5};

        lamb_all_types(tested, shape);
    }
}

static void lamb_every_variant_equals_the_plain_loops(void)
{
    every_backend(lengths_body);
}

/* Whole chunks of every number up to where the sums of four have gone round several times. */
static void chunks_body(const sherdi_backend *tested)
{
    for (size_t chunks = 1; chunks < 20; chunks++) {
        sherdi_span span  = {.count_elems = chunks * SHERD_CHUNK_ELEMS, .group = 1};
        lamb_shape  shape = {.spans       = &span,
                             .num_spans   = 1,
                             .block_elems = span.count_elems,
                             .grad_dtype  = DTYPES[chunks % NUM_DTYPES]};

        for (int kind = 0; kind < INPUT_KINDS; kind++) {
            lamb_arrays start = lamb_make(&shape);

            lamb_fill(&start, (input_kind)kind);
            norms_compare(tested, &shape, &start);
            lamb_free(&start);
        }
    }
}

static void norms_of_any_number_of_chunks_equal_the_plain_loop(void)
{
    every_backend(chunks_body);
}

/* Several spans of one parameter and of others, odd lengths with padding between, two groups, an
 * index range over a multiple of 2^32, an empty span. The comparison covers the padding. */
static const sherdi_span SPANS[] = {
    {.offset_elems = 64, .count_elems = 130, .first_index = 5, .group = 1, .param = 2},
    {.offset_elems = 320, .count_elems = 0, .first_index = 135, .group = 0, .param = 0},
    {.offset_elems = 384,
     .count_elems  = 20000,
     .first_index  = 0xffffffffu - 9000,
     .group        = 0,
     .param        = 1},
    {.offset_elems = 20416, .count_elems = 1, .first_index = 0x1ffffffffu, .group = 1, .param = 2},
    {.offset_elems = 20489, .count_elems = 9001, .first_index = 0x300000007u, .group = 1},
};

static void spans_body(const sherdi_backend *tested)
{
    lamb_shape shape = {.spans = SPANS, .num_spans = 5, .block_elems = 29568};

    lamb_all_types(tested, shape);
}

static void lamb_spans_leave_the_padding_alone(void)
{
    every_backend(spans_body);
}

static void no_spans_body(const sherdi_backend *tested)
{
    lamb_shape shape = {.spans = NULL, .num_spans = 0, .block_elems = 64};

    lamb_all_types(tested, shape);
}

static void lamb_no_spans_does_nothing(void)
{
    every_backend(no_spans_body);
}

/* Enough bytes that the written parameters go around the caches, with starts that lines are aligned
 * to and not. */
static void large_body(const sherdi_backend *tested)
{
    for (size_t shift = 0; shift < 2; shift++) {
        sherdi_span span  = {.count_elems = 310001};
        lamb_shape  shape = {.spans       = &span,
                             .num_spans   = 1,
                             .block_elems = 310001,
                             .shift       = shift,
                             .grad_dtype  = SHERD_BF16,
                             .has_param   = 1};

        for (int param = (int)shift; param < NUM_DTYPES; param += 2) {
            lamb_arrays start;

            shape.param_dtype = DTYPES[param];
            start             = lamb_make(&shape);
            lamb_fill(&start, INPUT_WILD);
            lamb_compare(tested, &shape, &start);
            lamb_free(&start);
        }
    }
}

static void lamb_large_blocks_equal_the_plain_loop(void)
{
    every_backend(large_body);
}

/* Without gradient and second moment the paper's form here gives directions of the first moment's
 * magnitudes: both sums meet chunks far above and below the ones before. */
static void scaled_body(const sherdi_backend *tested)
{
    for (uint64_t seed = 1; seed <= 10; seed++) {
        uint64_t    state = seed;
        sherdi_span span  = {.count_elems = 1003 * SHERD_CHUNK_ELEMS - (seed & 1), .group = 1};
        lamb_shape  shape = {.spans = &span, .num_spans = 1, .block_elems = span.count_elems};
        lamb_arrays start = lamb_make(&shape);

        memset(start.grad.first, 0, span.count_elems * sizeof(float));
        memset(start.v.first, 0, span.count_elems * sizeof(float));
        guarded_fill_scaled(&start.master, &state);
        guarded_fill_scaled(&start.m, &state);
        norms_compare(tested, &shape, &start);
        lamb_free(&start);
    }
}

static void norms_of_all_magnitudes_equal_the_plain_loop(void)
{
    every_backend(scaled_body);
}

/* ---------------------------------------------------------------- split -- */

#define SPLIT_ELEMS (1000 * SHERD_CHUNK_ELEMS + 17)

/* One parameter in portions of some chunks: as spans of one call, in any order, or as blocks of
 * their own. */
static void norms_split(const sherdi_backend *tested, const lamb_shape *whole, lamb_arrays *arrays,
                        size_t portion_chunks, int is_blocks, sherdi_lamb_norms *norms)
{
    sherdi_span        spans[64];
    size_t             count      = 0;
    size_t             each_elems = portion_chunks * SHERD_CHUNK_ELEMS;
    sherdi_update_args args       = lamb_args(whole, arrays);

    args.norms = norms;
    args.spans = spans;
    for (size_t first = 0; first < SPLIT_ELEMS; first += each_elems) {
        size_t left = SPLIT_ELEMS - first;

        CHECK(count < 64);
        spans[count++] = (sherdi_span){.offset_elems = first,
                                       .count_elems  = left < each_elems ? left : each_elems,
                                       .first_index  = first};
    }
    if (!is_blocks) {
        for (size_t i = 0; i < count / 2; i++) {
            sherdi_span last = spans[count - 1 - i];

            spans[count - 1 - i] = spans[i];
            spans[i]             = last;
        }
        args.num_spans = count;
        tested->kernels->lamb_norms(tested, &args);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        sherdi_span        span  = {.count_elems = spans[i].count_elems};
        sherdi_update_args block = args;

        block.spans     = &span;
        block.num_spans = 1;
        block.grad      = (const float *)args.grad + spans[i].offset_elems;
        block.master += spans[i].offset_elems;
        block.m += spans[i].offset_elems;
        block.v += spans[i].offset_elems;
        tested->kernels->lamb_norms(tested, &block);
    }
}

static void split_body(const sherdi_backend *tested)
{
    static const size_t PORTION_CHUNKS[] = {1001, 500, 333, 64, 17};
    const sherdi_span   span             = {.count_elems = SPLIT_ELEMS};
    lamb_shape          whole = {.spans = &span, .num_spans = 1, .block_elems = SPLIT_ELEMS};
    lamb_arrays         start = lamb_make(&whole);

    lamb_fill(&start, INPUT_TAME);
    for (size_t i = 0; i < sizeof(PORTION_CHUNKS) / sizeof(PORTION_CHUNKS[0]); i++) {
        for (int is_blocks = 0; is_blocks <= 1; is_blocks++) {
            sherdi_lamb_norms want[NUM_PARAMS] = {{.param = {.nonfinite = 0}}};
            sherdi_lamb_norms got[NUM_PARAMS]  = {{.param = {.nonfinite = 0}}};

            plain_norms(&whole, &start, want);
            norms_split(tested, &whole, &start, PORTION_CHUNKS[i], is_blocks, got);
            norms_check_equal(want, got);
        }
    }
    lamb_free(&start);
}

static void norms_do_not_depend_on_the_split(void)
{
    every_backend(split_body);
}

/* --------------------------------------------------------------- ratios -- */

typedef struct ratio_case {
    double   param, update; /* sums of squares */
    uint64_t param_nonfinite, update_nonfinite;
    int32_t  group;
    float    want;
} ratio_case;

/* Clamps are 0.01 and 10 in group 0, 0.5 and 2 in group 1. */
static const ratio_case RATIO_CASES[] = {
    {.param = 9, .update = 4, .want = 1.5f},
    {.param = 9, .update = 4, .group = 1, .want = 1.5f},
    {.param = 1, .update = 9, .want = (float)(1.0 / 3.0)},
    {.param = 1, .update = 9, .group = 1, .want = 0.5f},
    {.param = 10000, .update = 1, .want = 10.0f},
    {.param = 10000, .update = 1, .group = 1, .want = 2.0f},
    {.param = 1, .update = 0x1p40, .want = 0.01f},
    {.param = 0, .update = 4, .want = 1.0f},
    {.param = 4, .update = 0, .want = 1.0f},
    {.param = 0, .update = 0, .group = 1, .want = 1.0f},
    {.param = 0x1p-298, .update = 0x1p-298, .want = 1.0f},
    {.param = 0x1p260, .update = 0x1p258, .want = 2.0f},
    {.param = 9, .update = 4, .param_nonfinite = 1, .want = NAN},
    {.param = 9, .update = 4, .update_nonfinite = 3, .want = NAN},
    {.param = 9, .update = 4, .update_nonfinite = 1, .group = -1, .want = 1.0f},
    {.param = 10000, .update = 1, .group = -1, .want = 1.0f},
};

#define NUM_RATIO_CASES (sizeof(RATIO_CASES) / sizeof(RATIO_CASES[0]))

static void ratios_body(const sherdi_backend *tested)
{
    sherdi_lamb_norms      norms[NUM_RATIO_CASES];
    int32_t                groups[NUM_RATIO_CASES];
    float                  ratios[NUM_RATIO_CASES + 1];
    sherdi_lamb_ratio_args args = {.norms      = norms,
                                   .groups     = groups,
                                   .coeffs     = COEFFS,
                                   .ratios     = ratios,
                                   .num_params = NUM_RATIO_CASES};

    memset(norms, 0, sizeof(norms));
    ratios[NUM_RATIO_CASES] = -7.0f;
    for (size_t i = 0; i < NUM_RATIO_CASES; i++) {
        sherdi_norm_add(&norms[i].param, RATIO_CASES[i].param);
        sherdi_norm_add(&norms[i].update, RATIO_CASES[i].update);
        norms[i].param.nonfinite += RATIO_CASES[i].param_nonfinite;
        norms[i].update.nonfinite += RATIO_CASES[i].update_nonfinite;
        groups[i] = RATIO_CASES[i].group;
    }
    tested->kernels->lamb_ratios(tested, &args);
    for (size_t i = 0; i < NUM_RATIO_CASES; i++) {
        uint32_t want =
            isnan(RATIO_CASES[i].want) ? 0x7fc00000u : sherdi_bits_f32(RATIO_CASES[i].want);

        CHECK_INT(want, sherdi_bits_f32(ratios[i]));
    }
    CHECK(ratios[NUM_RATIO_CASES] == -7.0f);
}

static void ratios_are_clamped_and_one_without_a_norm(void)
{
    every_backend(ratios_body);
}

/* The ratio divides norms of any form: a bin that was never carried is the same number. */
static void ratios_take_norms_that_were_not_carried(void)
{
    sherdi_lamb_norms norms = {.param = {.nonfinite = 0}};

    for (int i = 0; i < 1 << 20; i++) {
        sherdi_norm_add(&norms.param, 9 * 0x1.fffffffffffffp-1);
        sherdi_norm_add(&norms.update, 4 * 0x1.fffffffffffffp-1);
    }
    CHECK(norms.param.bins[9] >> 32 != 0 || norms.param.bins[10] >> 32 != 0);
    CHECK(sherdi_lamb_ratio(&COEFFS[0], &norms.param, &norms.update) == 1.5f);
}

/* A ratio that is NaN makes the parameter NaN, the one that is stored, and leaves moments alone. */
static void nan_body(const sherdi_backend *tested)
{
    const sherdi_span  span  = {.count_elems = 201};
    const float        ratio = NAN;
    lamb_shape         shape = {.spans = &span, .num_spans = 1, .block_elems = 201, .has_param = 1};
    lamb_arrays        start = lamb_make(&shape);
    lamb_arrays        got;
    sherdi_update_args args;
    uint64_t           fingerprint = 0;

    lamb_fill(&start, INPUT_TAME);
    got              = lamb_clone(&shape, &start);
    args             = lamb_args(&shape, &got);
    args.param       = got.param.first;
    args.ratios      = &ratio;
    args.fingerprint = &fingerprint;
    tested->kernels->update(tested, SHERDI_UPDATE_lamb, &args);
    (void)plain_lamb(&shape, &start, &ratio);
    for (size_t i = 0; i < span.count_elems; i++) {
        CHECK_INT(0x7fc00000u, sherdi_bits_f32(args.master[i]));
        CHECK(isfinite(args.m[i]) && isfinite(args.v[i]));
    }
    lamb_check_equal(&start, &got);
    lamb_free(&start);
    lamb_free(&got);
}

static void lamb_nan_ratio_makes_the_parameter_nan(void)
{
    every_backend(nan_body);
}

static void traffic_counts_what_is_moved(void)
{
    const sherdi_span  spans[] = {{.count_elems = 100}, {.offset_elems = 128, .count_elems = 28}};
    float              param   = 0;
    sherdi_update_args args    = {.spans = spans, .num_spans = 2, .grad_dtype = SHERD_F32};

    CHECK_INT(128 * 16, sherdi_lamb_norms_traffic_bytes(&args));
    CHECK_INT(128 * 28, sherdi_update_bytes(SHERDI_UPDATE_lamb, &args, 1));
    args.grad_dtype  = SHERD_BF16;
    args.param       = &param;
    args.param_dtype = SHERD_BF16;
    CHECK_INT(128 * 14, sherdi_lamb_norms_traffic_bytes(&args));
    CHECK_INT(128 * 28, sherdi_update_bytes(SHERDI_UPDATE_lamb, &args, 1));
}

static const test_case CASES[] = {
    CASE(lamb_every_variant_equals_the_plain_loops),
    CASE(norms_of_any_number_of_chunks_equal_the_plain_loop),
    CASE(lamb_spans_leave_the_padding_alone),
    CASE(lamb_no_spans_does_nothing),
    CASE(lamb_large_blocks_equal_the_plain_loop),
    CASE(norms_of_all_magnitudes_equal_the_plain_loop),
    CASE(norms_do_not_depend_on_the_split),
    CASE(ratios_are_clamped_and_one_without_a_norm),
    CASE(ratios_take_norms_that_were_not_carried),
    CASE(lamb_nan_ratio_makes_the_parameter_nan),
    CASE(traffic_counts_what_is_moved),
};

RUN_MAIN(CASES)
