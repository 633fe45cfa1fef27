/* Updates of an encoded state: every instruction set and thread count against plain loops over
 * encoding.h and formulas.h, bit for bit, guard bytes included; a split master against one in
 * fp32. */
#include "tests/kernels/encoded_blocks.h"

#include "kernels/updates/updates.h"

#include <math.h>
#include <string.h>

static const sherdi_adam_coeffs ADAM[2] = {
    {.grad_scale      = 0.37f,
     .beta1           = 0.9f,
     .one_minus_beta1 = 0.1f,
     .beta2           = 0.999f,
     .one_minus_beta2 = 0.001f,
     .eps             = 1e-8f,
     .neg_lr_decay    = -1e-4f,
     .neg_step_size   = -0.01f,
     .inv_sqrt_bias   = 1.5f},
    {.grad_scale      = 1.0f,
     .beta1           = 0.8f,
     .one_minus_beta1 = 0.2f,
     .beta2           = 0.95f,
     .one_minus_beta2 = 0.05f,
     .eps             = 1e-6f,
     .l2_decay        = 0.01f,
     .neg_step_size   = -0.3f,
     .inv_sqrt_bias   = 2.0f},
};

/* Decoded, updated by the plain element, encoded at random by hand. Returns the fingerprint. */
static uint64_t plain_adam_span(const scheme *s, block *b, const sherdi_span *span, uint64_t step)
{
    static float  p[BLOCK_ELEMS], m[BLOCK_ELEMS], v[BLOCK_ELEMS];
    sherdi_random randoms[3]  = {sherdi_random_of(step, 0), sherdi_random_of(step, 1),
                                 sherdi_random_of(step, 2)};
    size_t        first       = span->offset_elems;
    uint64_t      fingerprint = 0;
    float         x[3];

    for (size_t i = 0; i < span->count_elems; i++) {
        p[i] = plain_get(&b->master.part, first + i);
        m[i] = plain_get(&b->m.part, first + i);
        v[i] = plain_get(&b->v.part, first + i);
        x[0] = p[i], x[1] = m[i], x[2] = v[i];
        sherdi_adam_element(&ADAM[span->group], guarded_get(&b->grad, first + i), x);
        p[i] = x[0], m[i] = x[1], v[i] = x[2];
    }
    plain_encode(&b->m.part, first, m, span->count_elems, &randoms[1], span->first_index);
    plain_encode(&b->v.part, first, v, span->count_elems, &randoms[2], span->first_index);
    plain_encode(&b->master.part, first, p, span->count_elems, &randoms[0], span->first_index);
    for (size_t i = 0; i < span->count_elems; i++) {
        float now = plain_get(&b->master.part, first + i);

        fingerprint += sherdi_mix_element(span->first_index + i, now);
        if (s->has_param && s->param_dtype == SHERD_BF16) {
            ((uint16_t *)(void *)b->param.first)[first + i] = sherdi_cast_f32_bf16(now);
        } else if (s->has_param && s->param_dtype == SHERD_F16) {
            ((uint16_t *)(void *)b->param.first)[first + i] = sherdi_cast_f32_f16(now);
        } else if (s->has_param) {
            ((float *)(void *)b->param.first)[first + i] = now;
        }
    }
    return fingerprint;
}

static sherdi_update_args adam_args(const scheme *s, block *b, uint64_t step, uint64_t *fingerprint)
{
    sherdi_update_args args = block_args(s, b, step, fingerprint);

    args.spans  = SPANS;
    args.coeffs = ADAM;
    return args;
}

static void updates_body(const sherdi_backend *tested)
{
    for (size_t i = 0; i < NUM_SCHEMES * INPUT_KINDS; i++) {
        const scheme *s     = &SCHEMES[i / INPUT_KINDS];
        block         start = block_make(s);
        block         want;
        block         got;

        block_fill(&start, (input_kind)(i % INPUT_KINDS));
        want = block_clone(s, &start);
        got  = block_clone(s, &start);
        for (uint64_t step = 7; step < 9; step++) {
            uint64_t           plain       = 0;
            uint64_t           fingerprint = 17; /* the share is added */
            uint64_t           counted     = 1;
            sherdi_update_args args        = adam_args(s, &got, step, &fingerprint);

            tested->kernels->update(tested, SHERDI_UPDATE_adam, &args);
            for (size_t k = 0; k < NUM_SPANS; k++) {
                plain += plain_adam_span(s, &want, &SPANS[k], step);
            }
            CHECK_INT(17 + plain, fingerprint);
            block_check_equal(&want, &got);
            tested->kernels->fingerprint_encoded(tested, SPANS, NUM_SPANS, &got.master.part,
                                                 &counted);
            CHECK_INT(1 + plain, counted);
        }
        block_free(&start);
        block_free(&want);
        block_free(&got);
    }
}

static void updates_of_every_variant_equal_the_plain_loops(void)
{
    every_backend(updates_body);
}

/* ----------------------------------------------------- split as whole -- */

/* The same block in fp32. */
static block block_widen(const scheme *s, const block *from)
{
    static const scheme PLAIN = {SHERDI_ENCODING_F32, SHERDI_ENCODING_F32, SHERDI_ENCODING_F32,
                                 SHERD_BF16, 1};
    block               b     = block_make(&PLAIN);

    (void)s;
    guarded_copy(&b.grad, &from->grad);
    guarded_copy(&b.param, &from->param);
    for (size_t i = 0; i < BLOCK_ELEMS; i++) {
        ((float *)b.master.part.data)[i] = plain_get(&from->master.part, i);
        ((float *)b.m.part.data)[i]      = plain_get(&from->m.part, i);
        ((float *)b.v.part.data)[i]      = plain_get(&from->v.part, i);
    }
    return b;
}

static void block_check_values(const block *wide, const block *got)
{
    for (size_t i = 0; i < BLOCK_ELEMS; i++) {
        CHECK_INT(sherdi_bits_f32(((const float *)wide->master.part.data)[i]),
                  sherdi_bits_f32(plain_get(&got->master.part, i)));
        CHECK_INT(sherdi_bits_f32(((const float *)wide->v.part.data)[i]),
                  sherdi_bits_f32(plain_get(&got->v.part, i)));
    }
    CHECK_GUARDED(&wide->param, &got->param);
}

static void beside_body(const sherdi_backend *tested)
{
    const scheme *s           = &SCHEMES[0];
    block         got         = block_make(s);
    uint64_t      fingerprint = 0;
    uint64_t      expected    = 0;
    block         wide;

    block_fill(&got, INPUT_TAME);
    wide = block_widen(s, &got);
    for (uint64_t step = 1; step < 20; step++) {
        sherdi_update_args args  = adam_args(s, &got, step, &fingerprint);
        sherdi_update_args plain = args;

        plain.master       = wide.master.part.data;
        plain.m            = wide.m.part.data;
        plain.v            = wide.v.part.data;
        plain.param        = wide.param.first;
        plain.encodings[0] = SHERDI_ENCODING_F32;
        plain.fingerprint  = &expected;
        tested->kernels->update(tested, SHERDI_UPDATE_adam, &args);
        tested->kernels->update(tested, SHERDI_UPDATE_adam, &plain);
        CHECK_INT(expected, fingerprint);
    }
    block_check_values(&wide, &got);
    CHECK_GUARDED(&wide.m.bytes, &got.m.bytes);
    block_free(&wide);
    block_free(&got);
}

static void beside_updates_as_fp32_does(void)
{
    every_backend(beside_body);
}

/* LAMB's first sweep only reads, ties among it. */
static void norms_body(const sherdi_backend *tested)
{
    const sherdi_lamb_coeffs coeffs[2] = {{.grad_scale      = 1,
                                           .beta1           = 0.9f,
                                           .one_minus_beta1 = 0.1f,
                                           .beta2           = 0.99f,
                                           .one_minus_beta2 = 0.01f,
                                           .inv_bias1       = 1,
                                           .inv_bias2       = 1,
                                           .eps             = 1e-6f},
                                          {.grad_scale      = 2,
                                           .beta1           = 0.8f,
                                           .one_minus_beta1 = 0.2f,
                                           .beta2           = 0.9f,
                                           .one_minus_beta2 = 0.1f,
                                           .inv_bias1       = 1,
                                           .inv_bias2       = 1,
                                           .eps             = 1e-6f}};

    for (size_t i = 0; i < 3; i++) {
        const scheme      *s           = &SCHEMES[i];
        block              got         = block_make(s);
        sherdi_lamb_norms  norms[2]    = {0};
        sherdi_lamb_norms  plain_norms = {0};
        sherdi_update_args args;
        sherdi_update_args plain;
        block              before;
        block              wide;

        block_fill(&got, INPUT_TAME);
        before       = block_clone(s, &got);
        wide         = block_widen(s, &got);
        args         = adam_args(s, &got, 1, NULL);
        args.coeffs  = coeffs;
        args.norms   = &norms[0];
        plain        = args;
        plain.master = wide.master.part.data;
        plain.m      = wide.m.part.data;
        plain.v      = wide.v.part.data;
        plain.norms  = &plain_norms;
        memset(plain.encodings, 0, sizeof(plain.encodings));
        tested->kernels->lamb_norms(tested, &args);
        tested->kernels->lamb_norms(tested, &plain);
        CHECK(sherdi_norm_value(&plain_norms.update) > 0);
        CHECK(sherdi_norm_value(&plain_norms.param) == sherdi_norm_value(&norms[0].param));
        CHECK(sherdi_norm_value(&plain_norms.update) == sherdi_norm_value(&norms[0].update));
        block_check_equal(&before, &got);
        block_free(&before);
        block_free(&wide);
        block_free(&got);
    }
}

static void lamb_norms_read_what_is_encoded(void)
{
    every_backend(norms_body);
}

static const test_case CASES[] = {
    CASE(updates_of_every_variant_equal_the_plain_loops),
    CASE(beside_updates_as_fp32_does),
    CASE(lamb_norms_read_what_is_encoded),
};

RUN_MAIN(CASES)
