#include "tests/kernels/encoded_blocks.h"

#include <math.h>
#include <string.h>

const sherdi_span SPANS[NUM_SPANS] = {
    {.offset_elems = 64, .count_elems = 130, .first_index = 5, .group = 1},
    {.offset_elems = 320, .count_elems = 0, .first_index = 135},
    {.offset_elems = 384, .count_elems = 5000, .first_index = 0xffffffffu - 3000},
    {.offset_elems = 5440, .count_elems = 1, .first_index = 0x1ffffffffu, .group = 1},
    {.offset_elems = 5504, .count_elems = 4096, .first_index = 0x300000007u, .group = 1},
};

const scheme SCHEMES[NUM_SCHEMES] = {
    {SHERDI_ENCODING_BESIDE, SHERDI_ENCODING_F32, SHERDI_ENCODING_F32, SHERD_BF16, 1},
    {SHERDI_ENCODING_BESIDE, SHERDI_ENCODING_BF16, SHERDI_ENCODING_BF16, SHERD_BF16, 1},
    {SHERDI_ENCODING_BESIDE_PLANE, SHERDI_ENCODING_FP8, SHERDI_ENCODING_UFP8, SHERD_BF16, 1},
    {SHERDI_ENCODING_F32, SHERDI_ENCODING_FP8, SHERDI_ENCODING_UFP8, SHERD_BF16, 1},
    {SHERDI_ENCODING_F32, SHERDI_ENCODING_BF16, SHERDI_ENCODING_BF16, SHERD_F32, 0},
    {SHERDI_ENCODING_BF16, SHERDI_ENCODING_BF16, SHERDI_ENCODING_BF16, SHERD_BF16, 1},
    {SHERDI_ENCODING_BF16, SHERDI_ENCODING_FP8, SHERDI_ENCODING_UFP8, SHERD_F16, 1},
    {SHERDI_ENCODING_BF16, SHERDI_ENCODING_F32, SHERDI_ENCODING_F32, SHERD_F32, 1},
};

block block_make(const scheme *s)
{
    block b = {.master = part_make(s->master, BLOCK_ELEMS),
               .m      = part_make(s->m, BLOCK_ELEMS),
               .v      = part_make(s->v, BLOCK_ELEMS),
               .grad   = guarded_make(SHERD_BF16, BLOCK_ELEMS, 0),
               .param  = guarded_make(s->param_dtype, BLOCK_ELEMS, 0)};

    for (int i = 0; i < NUM_MORE; i++) {
        b.more[i] = part_make(s->m, BLOCK_ELEMS);
    }
    memset(b.param.first, 0, BLOCK_ELEMS * sherd_dtype_bytes(s->param_dtype));
    b.master.part.param         = (uint16_t *)(void *)b.param.first;
    b.master.part.ties          = b.v.bytes.first;
    b.master.part.ties_encoding = s->v;
    b.v.part.has_ties           = s->master == SHERDI_ENCODING_BESIDE;
    return b;
}

void block_free(block *b)
{
    guarded_free(&b->master.bytes);
    guarded_free(&b->m.bytes);
    guarded_free(&b->v.bytes);
    for (int i = 0; i < NUM_MORE; i++) {
        guarded_free(&b->more[i].bytes);
    }
    guarded_free(&b->grad);
    guarded_free(&b->param);
}

block block_clone(const scheme *s, const block *from)
{
    block b = block_make(s);

    guarded_copy(&b.master.bytes, &from->master.bytes);
    guarded_copy(&b.m.bytes, &from->m.bytes);
    guarded_copy(&b.v.bytes, &from->v.bytes);
    for (int i = 0; i < NUM_MORE; i++) {
        guarded_copy(&b.more[i].bytes, &from->more[i].bytes);
    }
    guarded_copy(&b.grad, &from->grad);
    guarded_copy(&b.param, &from->param);
    return b;
}

void block_check_equal(const block *want, const block *got)
{
    CHECK_GUARDED(&want->m.bytes, &got->m.bytes);
    CHECK_GUARDED(&want->v.bytes, &got->v.bytes);
    for (int i = 0; i < NUM_MORE; i++) {
        CHECK_GUARDED(&want->more[i].bytes, &got->more[i].bytes);
    }
    CHECK_GUARDED(&want->master.bytes, &got->master.bytes);
    CHECK_GUARDED(&want->param, &got->param);
}

/* Moments of all bits have a NaN in nearly every chunk: every third one has none, but the largest
 * numbers. */
static float finite_of(float x, size_t i)
{
    uint32_t bits = sherdi_bits_f32(x);

    return sherdi_f32_from_bits(i / SHERD_CHUNK_ELEMS % 3 == 1 ? bits & ~0x00800000u : bits);
}

void block_fill(block *b, input_kind kind)
{
    static float x[BLOCK_ELEMS];
    uint64_t     seed = 11 + (uint64_t)kind;

    guarded_fill(&b->grad, kind, &seed);
    for (size_t s = 0; s < NUM_SPANS; s++) {
        const sherdi_span *span  = &SPANS[s];
        guarded            array = guarded_make(SHERD_F32, span->count_elems, 0);

        guarded_fill(&array, kind, &seed);
        for (size_t i = 0; i < span->count_elems; i++) {
            x[i] = kind == INPUT_WILD ? fabsf(finite_of(guarded_get(&array, i), i))
                                      : fabsf(guarded_get(&array, i)) * 0.01f;
        }
        plain_encode(&b->v.part, span->offset_elems, x, span->count_elems, NULL, 0);
        for (int more = 0; more < NUM_MORE; more++) { /* squares too: an update may take the root */
            plain_encode(&b->more[more].part, span->offset_elems, x, span->count_elems, NULL, 0);
        }
        guarded_fill(&array, kind, &seed);
        for (size_t i = 0; i < span->count_elems; i++) {
            x[i] =
                kind == INPUT_WILD ? finite_of(guarded_get(&array, i), i) : guarded_get(&array, i);
        }
        plain_encode(&b->m.part, span->offset_elems, x, span->count_elems, NULL, 0);
        guarded_fill(&array, kind, &seed);
        for (size_t i = 0; i < span->count_elems; i++) {
            uint32_t bits = sherdi_bits_f32(guarded_get(&array, i));

            x[i] = sherdi_f32_from_bits(i % 3 == 0 ? (bits & 0xffff0000u) | 0x8000u : bits);
        }
        plain_encode(&b->master.part, span->offset_elems, x, span->count_elems, NULL, 0);
        guarded_free(&array);
    }
}

sherdi_update_args block_args(const scheme *s, block *b, uint64_t step, uint64_t *fingerprint)
{
    sherdi_update_args args = {
        .num_spans   = NUM_SPANS,
        .grad        = b->grad.first,
        .grad_dtype  = SHERD_BF16,
        .master      = b->master.part.data,
        .m           = b->m.part.data,
        .v           = b->v.part.data,
        .param       = s->has_param ? b->param.first : NULL,
        .param_dtype = s->param_dtype,
        .encodings   = {s->master, s->m, s->v},
        .ties_part   = 2,
        .step        = step,
        .fingerprint = fingerprint,
    };

    for (int i = 0; i < NUM_MORE; i++) {
        args.parts[3 + i]     = b->more[i].part.data;
        args.encodings[3 + i] = s->m;
    }
    return args;
}
