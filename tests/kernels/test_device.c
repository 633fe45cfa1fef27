/* Every kernel of a device gives the bits of scalar: types, lengths around vectors, tiles and
 * chunks, starts that no vector is aligned to, inputs of every kind, several spans, sources and
 * parameters. Arrays are compared with the guard bytes around them. */
#include "kernels/updates/updates.h"
#include "tests/kernels/device_rig.h"
#include "tests/kernels/rules.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const sherd_dtype DTYPES[] = {SHERD_F32, SHERD_BF16, SHERD_F16};

#define NUM_DTYPES 3
/* Long enough for several tiles of several blocks, not a multiple of anything. */
#define LONG_ELEMS (3 * 8192 + 77)

static const size_t LENGTHS[] = {0,    1,    2,    3,    4,    5,    31,   63,        64,
                                 65,   127,  128,  130,  255,  256,  1023, 2047,      2048,
                                 2049, 4095, 4096, 4097, 8191, 8192, 8197, LONG_ELEMS};

#define NUM_LENGTHS (sizeof(LENGTHS) / sizeof(LENGTHS[0]))

/* What every comparison has: scalar on the host and the device's lane. */
typedef struct pair {
    sherdi_backend  scalar;
    sherdi_backend *lane;
} pair;

static pair pair_open(void)
{
    return (pair){.lane = device_open(0), .scalar = backend_make("scalar", 1)};
}

static void pair_close(pair *p)
{
    backend_destroy(&p->scalar);
    device_close(p->lane);
}

/* -------------------------------------------------------------- updates -- */

typedef struct update_shape {
    const sherdi_span *spans;
    size_t             num_spans;
    size_t             block_elems;
    size_t             shift;
    sherd_dtype        grad_dtype;
    sherd_dtype        param_dtype;
    int                has_param;
    int                is_lamb;
    const update_rule *rule; /* NULL: LAMB or Adam */
    input_kind         kind;
} update_shape;

/* The parts of the state come last: the master, m, v, and the further parts of a longer update. */
enum { GRAD, PARAM, MASTER, M, V, NUM_ARRAYS = MASTER + SHERDI_UPDATE_MOST_PARTS };

#define NUM_GROUPS 2
#define NUM_PARAMS 5

static const sherdi_adam_coeffs ADAM[NUM_GROUPS] = {
    {.grad_scale      = 0.37f,
     .beta1           = 0.9f,
     .one_minus_beta1 = 0.1f,
     .beta2           = 0.999f,
     .one_minus_beta2 = 0.001f,
     .eps             = 1e-8f,
     .neg_lr_decay    = -1e-3f,
     .neg_step_size   = -0.01f,
     .inv_sqrt_bias   = 3.7f},
    {.grad_scale      = 1.0f / 65536.0f,
     .beta1           = 0.8f,
     .one_minus_beta1 = 0.2f,
     .beta2           = 0.95f,
     .one_minus_beta2 = 0.05f,
     .eps             = 1e-6f,
     .l2_decay        = 0.1f,
     .neg_step_size   = -0.3f,
     .inv_sqrt_bias   = 1.0f},
};

/* DeepSpeed's form and the paper's. */
static const sherdi_lamb_coeffs LAMB[NUM_GROUPS] = {
    {.grad_scale      = 0.37f,
     .beta1           = 0.9f,
     .one_minus_beta1 = 0.1f,
     .beta2           = 0.999f,
     .one_minus_beta2 = 0.001f,
     .inv_bias1       = 1,
     .inv_bias2       = 1,
     .eps             = 1e-8f,
     .decay           = 0.01f,
     .neg_step_size   = -0.01f,
     .min_ratio       = 0.01f,
     .max_ratio       = 10.0f},
    {.grad_scale      = 1.0f / 65536.0f,
     .beta1           = 0.8f,
     .one_minus_beta1 = 0.2f,
     .beta2           = 0.95f,
     .one_minus_beta2 = 0.05f,
     .inv_bias1       = 1.7f,
     .inv_bias2       = 3.1f,
     .eps_inside      = 1e-6f,
     .neg_step_size   = -0.3f,
     .min_ratio       = 0.0f,
     .max_ratio       = 1e9f},
};

/* The results of an update other than its arrays. */
typedef struct update_sums {
    uint64_t          fingerprint, again;
    sherdi_lamb_norms norms[NUM_PARAMS];
    float             ratios[NUM_PARAMS];
} update_sums;

static const int32_t GROUPS_OF_PARAMS[NUM_PARAMS] = {0, 1, 0, -1, 1};

static void arrays_make(guarded *arrays, const update_shape *shape)
{
    for (int i = 0; i < NUM_ARRAYS; i++) {
        arrays[i] = guarded_make(i == GRAD    ? shape->grad_dtype
                                 : i == PARAM ? shape->param_dtype
                                              : SHERD_F32,
                                 shape->block_elems, shape->shift);
    }
}

static sherdi_update_args args_of(const update_shape *shape, void *const *arrays)
{
    sherdi_update_args args = {
        .num_spans   = shape->num_spans,
        .grad        = arrays[GRAD],
        .grad_dtype  = shape->grad_dtype,
        .param       = shape->has_param ? arrays[PARAM] : NULL,
        .param_dtype = shape->param_dtype,
    };

    for (int part = 0; part < SHERDI_UPDATE_MOST_PARTS; part++) {
        args.parts[part] = arrays[MASTER + part];
    }
    return args;
}

/* `spans`, `coeffs`, `sums` and `groups` are memory of the backend's device. */
static void update_run(const sherdi_backend *backend, const update_shape *shape,
                       void *const *arrays, const sherdi_span *spans, const void *coeffs,
                       const int32_t *groups, update_sums *sums)
{
    sherdi_update_args args = args_of(shape, arrays);

    args.spans       = spans;
    args.coeffs      = coeffs;
    args.fingerprint = &sums->fingerprint;
    if (shape->is_lamb) {
        sherdi_lamb_ratio_args ratios = {.norms      = sums->norms,
                                         .groups     = groups,
                                         .coeffs     = coeffs,
                                         .ratios     = sums->ratios,
                                         .num_params = NUM_PARAMS};

        args.norms  = sums->norms;
        args.ratios = sums->ratios;
        backend->kernels->lamb_norms(backend, &args);
        backend->kernels->lamb_ratios(backend, &ratios);
        backend->kernels->update(backend, SHERDI_UPDATE_lamb, &args);
    } else {
        backend->kernels->update(
            backend, shape->rule == NULL ? SHERDI_UPDATE_adam : shape->rule->update, &args);
    }
    backend->kernels->fingerprint(backend, spans, shape->num_spans, args.master, &sums->again);
}

static void sums_check_equal(const update_sums *want, update_sums *got)
{
    CHECK_INT(want->fingerprint, got->fingerprint);
    CHECK_INT(got->fingerprint, got->again);
    for (int i = 0; i < NUM_PARAMS; i++) {
        sherdi_lamb_norms wanted = want->norms[i];

        sherdi_norm_normalise(&wanted.param);
        sherdi_norm_normalise(&wanted.update);
        sherdi_norm_normalise(&got->norms[i].param);
        sherdi_norm_normalise(&got->norms[i].update);
        CHECK_BYTES_EQUAL(&wanted, &got->norms[i], sizeof(wanted));
    }
    CHECK_BYTES_EQUAL(want->ratios, got->ratios, sizeof(want->ratios));
}

static void update_compare(pair *p, const update_shape *shape)
{
    uint64_t     seed = shape->block_elems * 977 + shape->shift;
    guarded      want[NUM_ARRAYS];
    guarded      got[NUM_ARRAYS];
    void        *host[NUM_ARRAYS];
    void        *there[NUM_ARRAYS];
    update_sums  sums = {.fingerprint = 17, .again = 17}; /* shares are added */
    update_sums *device_sums;
    update_sums  got_sums;
    const void  *coeffs       = shape->is_lamb ? (const void *)LAMB : ADAM;
    size_t       coeffs_bytes = shape->is_lamb ? sizeof(LAMB) : sizeof(ADAM);

    if (shape->rule != NULL) {
        coeffs       = shape->rule->coeffs;
        coeffs_bytes = sizeof(shape->rule->coeffs);
    }

    sums.norms[0].param.bins[3] = 5;
    arrays_make(want, shape);
    arrays_make(got, shape);
    for (int i = 0; i < NUM_ARRAYS; i++) {
        if (i != PARAM) {
            guarded_fill(&want[i], shape->kind, &seed);
        }
        if (i >= V && shape->kind == INPUT_TAME) { /* an update may take the root of it */
            float *v = (float *)(void *)want[i].first;

            for (size_t k = 0; k < shape->block_elems; k++) {
                v[k] = v[k] * v[k];
            }
        }
        guarded_copy(&got[i], &want[i]);
        host[i]  = want[i].first;
        there[i] = device_array(p->lane, &got[i]);
    }
    device_sums = device_put(p->lane, &sums, sizeof(sums));
    update_run(p->lane, shape, there,
               device_put(p->lane, shape->spans, shape->num_spans * sizeof(*shape->spans)),
               device_put(p->lane, coeffs, coeffs_bytes),
               device_put(p->lane, GROUPS_OF_PARAMS, sizeof(GROUPS_OF_PARAMS)), device_sums);
    update_run(&p->scalar, shape, host, shape->spans, coeffs, GROUPS_OF_PARAMS, &sums);
    device_get(p->lane, device_sums, &got_sums, sizeof(got_sums));
    sums_check_equal(&sums, &got_sums);
    for (int i = 0; i < NUM_ARRAYS; i++) {
        device_array_get(p->lane, there[i], &got[i]);
        CHECK_GUARDED(&want[i], &got[i]);
        guarded_free(&want[i]);
        guarded_free(&got[i]);
    }
    device_drop(p->lane);
}

/* Every combination of types and inputs; `thin` > 1: every thin-th of them. */
static void update_all_types(pair *p, update_shape shape, size_t thin, size_t phase)
{
    size_t number = phase;

    for (int kind = 0; kind < INPUT_KINDS; kind++) {
        for (int grad = 0; grad < NUM_DTYPES; grad++) {
            for (int param = -1; param < NUM_DTYPES; param++) {
                shape.kind        = (input_kind)kind;
                shape.grad_dtype  = DTYPES[grad];
                shape.param_dtype = DTYPES[param < 0 ? 0 : param];
                shape.has_param   = param >= 0;
                if (number++ % thin == 0) {
                    update_compare(p, &shape);
                }
            }
        }
    }
}

static void update_lengths(int is_lamb)
{
    pair p = pair_open();

    for (size_t i = 0; i < NUM_LENGTHS; i++) {
        sherdi_span  span  = {.count_elems = LENGTHS[i], .first_index = 1000003 * LENGTHS[i]};
        update_shape shape = {.spans       = &span,
                              .num_spans   = 1,
                              .block_elems = LENGTHS[i],
                              .shift       = i % 3 == 0 ? LENGTHS[i] % 5 : 0,
                              .is_lamb     = is_lamb};

        update_all_types(&p, shape, 3, i);
    }
    pair_close(&p);
}

static void adam_equals_scalar(void)
{
    update_lengths(0);
}

static void lamb_equals_scalar(void)
{
    update_lengths(1);
}

/* Every update of the list. */
static void updates_equal_scalar(void)
{
    static const sherdi_span SPANS[] = {
        {.count_elems = 130, .first_index = 5, .group = 1},
        {.offset_elems = 192, .count_elems = 2500, .first_index = 135, .group = 0}};
    pair p = pair_open();

    for (size_t rule = 0; rule < UPDATE_RULES; rule++) {
        update_shape shape = {.spans       = SPANS,
                              .num_spans   = 2,
                              .block_elems = 2752,
                              .shift       = rule % 2,
                              .rule        = &update_rules()[rule]};

        update_all_types(&p, shape, 3, rule);
    }
    pair_close(&p);
}

/* Spans of odd lengths with padding between, two groups, an index range over a multiple of 2^32, an
 * empty span, one that starts inside a chunk, one parameter twice. The comparison covers the
 * padding. */
static void update_spans(int is_lamb)
{
    static const sherdi_span SPANS[] = {
        {.offset_elems = 64, .count_elems = 130, .first_index = 5, .group = 1, .param = 1},
        {.offset_elems = 320, .count_elems = 0, .first_index = 135, .param = 3},
        {.offset_elems = 384, .count_elems = 20000, .first_index = 0xffffffffu - 9000, .param = 2},
        {.offset_elems = 20416,
         .count_elems  = 1,
         .first_index  = 0x1ffffffffu,
         .group        = 1,
         .param        = 4},
        {.offset_elems = 20489,
         .count_elems  = 9001,
         .first_index  = 0x300000007u,
         .group        = 1,
         .param        = 4},
    };
    pair p = pair_open();

    for (size_t shift = 0; shift < 5; shift += 2) {
        update_shape shape = {.spans       = SPANS,
                              .num_spans   = 5,
                              .block_elems = 29568,
                              .shift       = shift,
                              .is_lamb     = is_lamb};

        update_all_types(&p, shape, shift == 0 ? 1 : 5, shift);
    }
    pair_close(&p);
}

static void adam_spans_leave_the_padding_alone(void)
{
    update_spans(0);
}

static void lamb_spans_leave_the_padding_alone(void)
{
    update_spans(1);
}

/* More spans than lanes of a warp, tiny and small ones: many in one tile. */
static void update_with_many_spans_equals_scalar(void)
{
    sherdi_span spans[300];
    size_t      at   = 0;
    uint64_t    seed = 5;
    pair        p    = pair_open();

    for (size_t i = 0; i < 300; i++) {
        spans[i] = (sherdi_span){.offset_elems = at,
                                 .count_elems  = i % 7 == 0 ? 700 + i : test_random(&seed) % 100,
                                 .first_index  = at + 3 * i,
                                 .param        = (int32_t)(i * NUM_PARAMS / 300),
                                 .group        = (int32_t)(i % NUM_GROUPS)};
        at += (spans[i].count_elems + 63) / 64 * 64 + i % 3 * 64;
    }
    for (int is_lamb = 0; is_lamb < 2; is_lamb++) {
        update_shape shape = {
            .spans = spans, .num_spans = 300, .block_elems = at, .is_lamb = is_lamb};

        update_all_types(&p, shape, 5, 0);
    }
    pair_close(&p);
}

static void update_without_spans_does_nothing(void)
{
    pair p = pair_open();

    for (int is_lamb = 0; is_lamb < 2; is_lamb++) {
        sherdi_span  none  = {0};
        update_shape shape = {
            .spans = &none, .num_spans = 0, .block_elems = 64, .is_lamb = is_lamb};

        update_compare(&p, &shape);
    }
    pair_close(&p);
}

/* ----------------------------------------------------------------- norm -- */

static void sumsq_compare(pair *p, const guarded *x)
{
    sherdi_norm_acc  want = {.bins = {1, 2, 3, 7}, .nonfinite = 1};
    sherdi_norm_acc  got;
    sherdi_norm_acc *acc = device_put(p->lane, &want, sizeof(want));

    p->lane->kernels->sumsq(p->lane, device_array(p->lane, x), x->dtype, x->count_elems, acc);
    p->scalar.kernels->sumsq(&p->scalar, x->first, x->dtype, x->count_elems, &want);
    device_get(p->lane, acc, &got, sizeof(got));
    sherdi_norm_normalise(&want);
    sherdi_norm_normalise(&got);
    CHECK_BYTES_EQUAL(&want, &got, sizeof(want));
    device_drop(p->lane);
}

static void sumsq_equals_scalar(void)
{
    pair p = pair_open();

    for (int dtype = 0; dtype < NUM_DTYPES; dtype++) {
        for (size_t chunks = 0; chunks < 1001; chunks = chunks < 35 ? chunks + 1 : chunks * 3) {
            for (int kind = 0; kind < INPUT_KINDS; kind++) {
                uint64_t seed = chunks;
                guarded  x    = guarded_make(DTYPES[dtype], chunks * SHERD_CHUNK_ELEMS,
                                             chunks % 3 * (chunks % 2));

                guarded_fill(&x, (input_kind)kind, &seed);
                sumsq_compare(&p, &x);
                guarded_free(&x);
            }
        }
    }
    pair_close(&p);
}

/* Finite chunks of magnitudes that change now and then, over the whole range of fp32; among them
 * zeros, single denormals, the largest there are, and an Inf. */
static void scaled_fill(guarded *x, uint64_t *seed, uint64_t rarely)
{
    int exponent = 0;

    for (size_t i = 0; i < x->count_elems; i++) {
        float value = test_random_float(seed);

        if (i % SHERD_CHUNK_ELEMS == 0 && test_random(seed) % rarely == 0) {
            exponent = (int)(test_random(seed) % 330) - 180;
        }
        value = exponent > 140   ? 0.0f
                : exponent > 128 ? (value > 0 ? FLT_MAX : -FLT_MAX)
                                 : ldexpf(value, exponent);
        if (i % 9001 == 9000) {
            value = INFINITY;
        }
        if (x->dtype == SHERD_F32) {
            ((float *)(void *)x->first)[i] = value;
        } else {
            ((uint16_t *)(void *)x->first)[i] =
                x->dtype == SHERD_BF16 ? sherdi_cast_f32_bf16(value) : sherdi_cast_f32_f16(value);
        }
    }
}

static void sumsq_of_all_magnitudes_equals_scalar(void)
{
    pair p = pair_open();

    for (uint64_t seed = 1; seed <= 30; seed++) {
        uint64_t state = seed;
        guarded  x     = guarded_make(DTYPES[seed % 3], 1003 * SHERD_CHUNK_ELEMS, 0);

        scaled_fill(&x, &state, 1 + seed * seed);
        sumsq_compare(&p, &x);
        guarded_free(&x);
    }
    pair_close(&p);
}

/* --------------------------------------------------------------- reduce -- */

#define MAX_SRCS 100
#define NUM_DSTS 3

typedef struct reduce_shape {
    int         num_srcs;
    sherd_dtype src_dtype, comm_dtype, dst_dtype;
    int         accumulate;
    int         in_place; /* dst is the last source, one of more_dsts the first */
    int         has_weights;
    size_t      count_elems, shift;
    input_kind  kind;
} reduce_shape;

/* Weights of the sources: 1, and others that are not exact. */
static const double *weights_make(double weights[MAX_SRCS])
{
    for (int k = 0; k < MAX_SRCS; k++) {
        weights[k] = 1.0 / (1 + k * 7 % 11);
    }
    return weights;
}

static void reduce_run(const sherdi_backend *backend, const reduce_shape *shape, void *const *srcs,
                       void *const *dsts)
{
    int         in_place = shape->in_place && shape->src_dtype == shape->dst_dtype;
    void       *more[2]  = {in_place ? srcs[0] : dsts[1], dsts[2]};
    const void *sources[MAX_SRCS];
    double      weights[MAX_SRCS];

    for (int k = 0; k < shape->num_srcs; k++) {
        sources[k] = srcs[k];
    }
    backend->kernels->reduce(
        backend, &(sherdi_reduce_args){.srcs       = sources,
                                       .num_srcs   = shape->num_srcs,
                                       .src_dtype  = shape->src_dtype,
                                       .comm_dtype = shape->comm_dtype,
                                       .dst        = in_place ? srcs[shape->num_srcs - 1] : dsts[0],
                                       .dst_dtype  = shape->dst_dtype,
                                       .count_elems = shape->count_elems,
                                       .scale       = 1.0f / 3.0f,
                                       .accumulate  = shape->accumulate,
                                       .weights = shape->has_weights ? weights_make(weights) : NULL,
                                       .more_dsts     = more,
                                       .num_more_dsts = shape->num_srcs == 1 ? 0 : 2});
}

static void reduce_compare(pair *p, const reduce_shape *shape)
{
    guarded  arrays[MAX_SRCS + NUM_DSTS];
    void    *host[MAX_SRCS + NUM_DSTS]  = {NULL};
    void    *there[MAX_SRCS + NUM_DSTS] = {NULL};
    int      count                      = shape->num_srcs + NUM_DSTS;
    uint64_t seed                       = shape->count_elems + 31 * (uint64_t)shape->num_srcs;

    for (int k = 0; k < count; k++) {
        arrays[k] = guarded_make(k < shape->num_srcs ? shape->src_dtype : shape->dst_dtype,
                                 shape->count_elems, shape->shift);
        guarded_fill(&arrays[k], shape->kind, &seed);
        host[k]  = arrays[k].first;
        there[k] = device_array(p->lane, &arrays[k]);
    }
    reduce_run(p->lane, shape, there, there + shape->num_srcs);
    reduce_run(&p->scalar, shape, host, host + shape->num_srcs);
    for (int k = 0; k < count; k++) {
        guarded got = guarded_make(arrays[k].dtype, shape->count_elems, shape->shift);

        device_array_get(p->lane, there[k], &got);
        CHECK_GUARDED(&arrays[k], &got);
        guarded_free(&arrays[k]);
        guarded_free(&got);
    }
    device_drop(p->lane);
}

static void reduce_equals_scalar(void)
{
    pair p = pair_open();

    for (size_t l = 0; l < NUM_LENGTHS; l++) {
        for (int i = 0; i < 27 * 2 * INPUT_KINDS; i++) {
            reduce_shape shape = {.num_srcs    = 1 + (int)((l + (size_t)i) % 9),
                                  .src_dtype   = DTYPES[i % 27 / 9],
                                  .comm_dtype  = DTYPES[i / 3 % 3],
                                  .dst_dtype   = DTYPES[i % 3],
                                  .count_elems = LENGTHS[l],
                                  .shift       = l % 3 == 0 ? LENGTHS[l] % 3 : 0,
                                  .kind        = (input_kind)(i / 27 % INPUT_KINDS),
                                  .accumulate  = i / (27 * INPUT_KINDS),
                                  .in_place    = (l + (size_t)i) % 2 == 0,
                                  .has_weights = (l / 2 + (size_t)i) % 2 == 0};

            if (((size_t)i + l) % 7 != 0) {
                continue; /* every combination meets every seventh length */
            }
            if (shape.accumulate || shape.dst_dtype == shape.comm_dtype ||
                shape.dst_dtype == SHERD_F32) {
                reduce_compare(&p, &shape);
            }
        }
    }
    pair_close(&p);
}

/* As many as one launch takes one by one; more than that, as equal slices of one buffer. */
static void reduce_of_many_sources_equals_scalar(void)
{
    reduce_shape shape = {.num_srcs    = 64,
                          .src_dtype   = SHERD_BF16,
                          .comm_dtype  = SHERD_F32,
                          .count_elems = 333,
                          .kind        = INPUT_TAME};
    pair         p     = pair_open();
    guarded      all   = guarded_make(SHERD_BF16, (size_t)MAX_SRCS * 448, 0);
    guarded      want  = guarded_make(SHERD_F32, 448, 0);
    guarded      got   = guarded_make(SHERD_F32, 448, 0);
    uint64_t     seed  = 3;
    void        *there;
    void        *dst;
    const void  *srcs[2][MAX_SRCS];

    reduce_compare(&p, &shape);
    shape.has_weights = 1;
    reduce_compare(&p, &shape);
    guarded_fill(&all, INPUT_WILD, &seed);
    there = device_array(p.lane, &all);
    dst   = device_array(p.lane, &got);
    for (int k = 0; k < MAX_SRCS; k++) { /* the last first */
        srcs[0][k] = all.first + (MAX_SRCS - 1 - k) * 896;
        srcs[1][k] = (unsigned char *)there + (MAX_SRCS - 1 - k) * 896;
    }
    for (int i = 0; i < 2; i++) {
        sherdi_backend *backend = i == 0 ? &p.scalar : p.lane;

        backend->kernels->reduce(backend, &(sherdi_reduce_args){.srcs      = srcs[i],
                                                                .num_srcs  = MAX_SRCS,
                                                                .src_dtype = SHERD_BF16,
                                                                .dst = i == 0 ? want.first : dst,
                                                                .count_elems = 448,
                                                                .scale       = 0.01f});
    }
    device_array_get(p.lane, dst, &got);
    CHECK_GUARDED(&want, &got);
    guarded_free(&all);
    guarded_free(&want);
    guarded_free(&got);
    pair_close(&p);
}

/* -------------------------------------------------- cast and accumulate -- */

static void cast_compare(pair *p, const guarded *src, sherd_dtype dst_dtype, size_t shift)
{
    guarded want = guarded_make(dst_dtype, src->count_elems, shift);
    guarded got  = guarded_make(dst_dtype, src->count_elems, shift);
    void   *dst  = device_array(p->lane, &got);

    p->lane->kernels->cast(p->lane, dst, dst_dtype, device_array(p->lane, src), src->dtype,
                           src->count_elems);
    p->scalar.kernels->cast(&p->scalar, want.first, dst_dtype, src->first, src->dtype,
                            src->count_elems);
    device_array_get(p->lane, dst, &got);
    CHECK_GUARDED(&want, &got);
    guarded_free(&want);
    guarded_free(&got);
    device_drop(p->lane);
}

static void accumulate_compare(pair *p, const guarded *x, sherd_dtype acc_dtype, size_t shift,
                               input_kind kind)
{
    uint64_t seed = x->count_elems + 5;
    guarded  want = guarded_make(acc_dtype, x->count_elems, shift);
    guarded  got  = guarded_make(acc_dtype, x->count_elems, shift);
    void    *acc;

    guarded_fill(&want, kind, &seed);
    acc = device_array(p->lane, &want);
    p->lane->kernels->accumulate(p->lane, acc, acc_dtype, device_array(p->lane, x), x->dtype,
                                 x->count_elems);
    p->scalar.kernels->accumulate(&p->scalar, want.first, acc_dtype, x->first, x->dtype,
                                  x->count_elems);
    device_array_get(p->lane, acc, &got);
    CHECK_GUARDED(&want, &got);
    guarded_free(&want);
    guarded_free(&got);
    device_drop(p->lane);
}

static void cast_and_accumulate_equal_scalar(void)
{
    pair p = pair_open();

    for (size_t l = 0; l < NUM_LENGTHS; l++) {
        for (int i = 0; i < NUM_DTYPES * INPUT_KINDS; i++) {
            uint64_t   seed  = LENGTHS[l];
            size_t     shift = l % 2 == 0 ? 0 : LENGTHS[l] % 5;
            input_kind kind  = (input_kind)(i / NUM_DTYPES);
            guarded    x     = guarded_make(DTYPES[i % NUM_DTYPES], LENGTHS[l], l % 4 == 3 ? 3 : 0);

            guarded_fill(&x, kind, &seed);
            for (int to = 0; to < NUM_DTYPES; to++) {
                cast_compare(&p, &x, DTYPES[to], shift);
                accumulate_compare(&p, &x, DTYPES[to], shift, kind);
            }
            guarded_free(&x);
        }
    }
    pair_close(&p);
}

/* Every value of the 16-bit types, and fp32 in steps that meet every exponent. */
static void cast_all_values_equal_scalar(void)
{
    pair      p      = pair_open();
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
        cast_compare(&p, &bf16, DTYPES[to], 0);
        cast_compare(&p, &f16, DTYPES[to], 0);
        cast_compare(&p, &f32, DTYPES[to], 0);
    }
    guarded_free(&bf16);
    guarded_free(&f16);
    guarded_free(&f32);
    pair_close(&p);
}

/* ----------------------------------------------------------------- copy -- */

static void copy_fill_and_zero_reach_their_bytes_alone(void)
{
    static const size_t LENS[] = {0, 1, 2, 7, 64, 255, 4096, 4099, 300001};
    pair                p      = pair_open();

    for (size_t i = 0; i < sizeof(LENS) / sizeof(LENS[0]); i++) {
        uint64_t seed  = LENS[i];
        guarded  src   = guarded_make(SHERD_BF16, LENS[i] / 2 + 1, 3);
        guarded  want  = guarded_make(SHERD_BF16, LENS[i] / 2 + 1, i % 7);
        guarded  got   = guarded_make(SHERD_BF16, LENS[i] / 2 + 1, i % 7);
        void    *there = device_array(p.lane, &got);

        guarded_fill(&src, INPUT_WILD, &seed);
        memcpy(want.first, src.first, LENS[i]);
        p.lane->kernels->copy(p.lane, there, device_array(p.lane, &src), LENS[i]);
        device_array_get(p.lane, there, &got);
        CHECK_GUARDED(&want, &got);
        memset(want.first, 0x5a, LENS[i]);
        p.lane->device->fill(p.lane, there, 0x5a, LENS[i]);
        device_array_get(p.lane, there, &got);
        CHECK_GUARDED(&want, &got);
        memset(want.first, 0, LENS[i]);
        p.lane->kernels->zero(p.lane, there, LENS[i]);
        device_array_get(p.lane, there, &got);
        CHECK_GUARDED(&want, &got);
        guarded_free(&src);
        guarded_free(&want);
        guarded_free(&got);
        device_drop(p.lane);
    }
    pair_close(&p);
}

/* ---------------------------------------------------------- fixed point -- */

static void fixed_compare(pair *p, sherd_dtype dtype, int num_srcs, size_t count, size_t shift,
                          input_kind kind)
{
    uint64_t             seed = count + 11;
    guarded              srcs[MAX_SRCS];
    const void          *host[MAX_SRCS];
    const void          *there[MAX_SRCS];
    int64_t             *want     = calloc(count + 2, sizeof(*want));
    int64_t             *got      = calloc(count + 2, sizeof(*got));
    float               *want_f32 = calloc(count + 2, sizeof(*want_f32));
    float               *got_f32  = calloc(count + 2, sizeof(*got_f32));
    size_t               before   = shift > 0 ? 1 : 0; /* shift: the integers are not aligned */
    int64_t             *acc      = device_put(p->lane, want, (count + 2) * sizeof(*want));
    float               *f32      = device_put(p->lane, want_f32, (count + 2) * sizeof(*want_f32));
    sherdi_fixed_counts  want_counts = {0, 0};
    sherdi_fixed_counts *counts      = device_put(p->lane, NULL, sizeof(*counts));
    sherdi_fixed_counts  got_counts;
    sherdi_fixed_sink    sink = {.multiplier = 0x1p43, .limit = 0x1p58};
    double               weights[MAX_SRCS];
    sherdi_reduce_args   args = {.num_srcs    = num_srcs,
                                 .src_dtype   = dtype,
                                 .count_elems = count,
                                 .weights     = num_srcs % 2 == 0 ? weights_make(weights) : NULL};

    for (int k = 0; k < num_srcs; k++) {
        srcs[k] = guarded_make(dtype, count, shift);
        guarded_fill(&srcs[k], kind, &seed);
        host[k]  = srcs[k].first;
        there[k] = device_array(p->lane, &srcs[k]);
    }
    for (args.accumulate = 0; args.accumulate <= 1; args.accumulate++) {
        args.srcs   = there;
        args.dst    = acc + before;
        sink.counts = counts;
        p->lane->kernels->reduce_fixed(p->lane, &args, &sink);
        args.srcs   = host;
        args.dst    = want + before;
        sink.counts = &want_counts;
        p->scalar.kernels->reduce_fixed(&p->scalar, &args, &sink);
    }
    p->lane->kernels->fixed_to_f32(p->lane, f32 + before, acc + before, count);
    p->scalar.kernels->fixed_to_f32(&p->scalar, want_f32 + before, want + before, count);
    device_get(p->lane, acc, got, (count + 2) * sizeof(*got));
    device_get(p->lane, f32, got_f32, (count + 2) * sizeof(*got_f32));
    device_get(p->lane, counts, &got_counts, sizeof(got_counts));
    CHECK_BYTES_EQUAL(want, got, (count + 2) * sizeof(*want));
    CHECK_BYTES_EQUAL(want_f32, got_f32, (count + 2) * sizeof(*want_f32));
    CHECK_INT(want_counts.nonfinite, got_counts.nonfinite);
    CHECK_INT(want_counts.out_of_range, got_counts.out_of_range);
    for (int k = 0; k < num_srcs; k++) {
        guarded_free(&srcs[k]);
    }
    free(want);
    free(got);
    free(want_f32);
    free(got_f32);
    device_drop(p->lane);
}

static void fixed_point_equals_scalar(void)
{
    pair p = pair_open();

    for (size_t l = 0; l < NUM_LENGTHS; l++) {
        for (int d = 0; d < NUM_DTYPES; d++) {
            fixed_compare(&p, DTYPES[d], 1 + (int)l % 9, LENGTHS[l], l % 2, INPUT_TAME);
            fixed_compare(&p, DTYPES[d], 1 + (int)l % 4, LENGTHS[l], l % 3, INPUT_WILD);
        }
    }
    pair_close(&p);
}

static const test_case CASES[] = {
    CASE(adam_equals_scalar),
    CASE(adam_spans_leave_the_padding_alone),
    CASE(lamb_equals_scalar),
    CASE(updates_equal_scalar),
    CASE(lamb_spans_leave_the_padding_alone),
    CASE(update_with_many_spans_equals_scalar),
    CASE(update_without_spans_does_nothing),
    CASE(sumsq_equals_scalar),
    CASE(sumsq_of_all_magnitudes_equals_scalar),
    CASE(reduce_equals_scalar),
    CASE(reduce_of_many_sources_equals_scalar),
    CASE(cast_and_accumulate_equal_scalar),
    CASE(cast_all_values_equal_scalar),
    CASE(copy_fill_and_zero_reach_their_bytes_alone),
    CASE(fixed_point_equals_scalar),
};

RUN_MAIN(CASES)
