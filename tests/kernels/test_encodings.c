/* Encodings of a state: all 2^32 split masters, what the others round to, and parts back and forth:
 * every instruction set and thread count against plain loops, bit for bit, guard bytes included. */
#include "tests/kernels/plain_parts.h"

#include <math.h>
#include <string.h>

/* Long enough for several parts, not a multiple of anything. */
#define LONG_ELEMS (3 * 8192 + 77)

static const char *best_isa(void)
{
    if (sherdi_kernels_cpu_find("avx512") != NULL) {
        return "avx512";
    }
    return sherdi_kernels_cpu_find("avx2") != NULL ? "avx2" : "scalar";
}

/* ---------------------------------------------------------- all masters -- */

#define WALK_ELEMS   ((size_t)1 << 14)
#define WALK_THREADS 2

typedef struct walk_arrays {
    float         master[WALK_ELEMS], back[WALK_ELEMS], v[WALK_ELEMS];
    uint16_t      param[WALK_ELEMS], rounded[WALK_ELEMS];
    unsigned char rest[WALK_ELEMS / SHERD_CHUNK_ELEMS * SHERDI_CHUNK_PLANE_BYTES]
        __attribute__((aligned(8)));
} walk_arrays;

/* Masters [first, first + WALK_ELEMS) by their bits; a NaN is to come back as the one NaN. */
static void masters_fill(walk_arrays *a, uint32_t first)
{
    for (uint32_t i = 0; i < WALK_ELEMS; i++) {
        a->master[i] = sherdi_f32_from_bits(first + i);
    }
}

static void masters_walk(const sherdi_backend *tested, sherdi_encoding encoding, uint32_t first,
                         walk_arrays *a)
{
    sherdi_encoded part = {.encoding      = encoding,
                           .data          = a->rest,
                           .param         = a->param,
                           .ties          = a->v,
                           .ties_encoding = SHERDI_ENCODING_F32};

    masters_fill(a, first);
    tested->kernels->encode(tested, &part, 0, a->master, WALK_ELEMS);
    tested->kernels->decode(tested, a->back, &part, 0, WALK_ELEMS);
    for (size_t i = 0; i < WALK_ELEMS; i++) {
        a->master[i] = sherdi_canonical_f32(a->master[i]);
    }
    if (memcmp(a->master, a->back, sizeof(a->master)) != 0) { /* quicker than the check by far */
        CHECK_BYTES_EQUAL(a->master, a->back, sizeof(a->master));
    }
    tested->kernels->cast(tested, a->rounded, SHERD_BF16, a->master, SHERD_F32, WALK_ELEMS);
    if (memcmp(a->rounded, a->param, sizeof(a->param)) != 0) {
        CHECK_BYTES_EQUAL(a->rounded, a->param, sizeof(a->param));
    }
}

typedef struct walk_share {
    const sherdi_backend *tested;
    sherdi_encoding       encoding;
    uint32_t              stride; /* of blocks of WALK_ELEMS; 1: all of them */
} walk_share;

static void walk_run(int rank, void *ctx)
{
    const walk_share  *share  = ctx;
    uint32_t           blocks = (uint32_t)(((uint64_t)1 << 32) / WALK_ELEMS);
    static walk_arrays arrays[WALK_THREADS];

    for (uint32_t block = (uint32_t)rank * share->stride; block < blocks;
         block += WALK_THREADS * share->stride) {
        masters_walk(share->tested, share->encoding, block * (uint32_t)WALK_ELEMS, &arrays[rank]);
    }
}

static void walk_all(const char *isa, sherdi_encoding encoding, uint32_t stride)
{
    sherdi_backend tested = backend_make(isa, 1);
    walk_share     share  = {.tested = &tested, .encoding = encoding, .stride = stride};

    if (tested.kernels != NULL) {
        test_threads(WALK_THREADS, walk_run, &share);
    }
    backend_destroy(&tested);
}

/* An odd stride meets every exponent and both signs. */
static void beside_every_master_comes_back(void)
{
    walk_all(best_isa(), SHERDI_ENCODING_BESIDE, test_is_long() ? 1 : 9);
}

static void beside_of_all_variants_comes_back(void)
{
    uint32_t stride = test_is_long() ? 1 : 37;

    walk_all("scalar", SHERDI_ENCODING_BESIDE, stride);
    walk_all("avx2", SHERDI_ENCODING_BESIDE, stride);
    walk_all(best_isa(), SHERDI_ENCODING_BESIDE_PLANE, stride);
    walk_all("scalar", SHERDI_ENCODING_BESIDE_PLANE, stride);
}

/* ------------------------------------------------- parts back and forth -- */

/* Numbers of all kinds, in turn by chunks; of a part that is never negative. */
static void values_fill(float *x, size_t count, int is_unsigned)
{
    guarded  array = guarded_make(SHERD_F32, count, 0);
    uint64_t seed  = count;

    guarded_fill_scaled(&array, &seed);
    for (size_t i = 0; i < count; i++) {
        x[i] = guarded_get(&array, i);
        if (i / SHERD_CHUNK_ELEMS % 5 == 4) {
            x[i] = sherdi_f32_from_bits((uint32_t)test_random(&seed)); /* any bits */
        }
        if (i / SHERD_CHUNK_ELEMS % 5 == 3) {
            x[i] = sherdi_f32_from_bits(sherdi_bits_f32(x[i]) | 0x7e800000u); /* huge */
        }
        if (i / SHERD_CHUNK_ELEMS % 10 == 3 && !(fabsf(x[i]) <= 3.4e38f)) {
            x[i] = 3e38f; /* ... and finite */
        }
        x[i] = is_unsigned ? fabsf(x[i]) : x[i];
    }
    guarded_free(&array);
}

static void part_compare(const sherdi_backend *tested, sherdi_encoding encoding, size_t count,
                         size_t first)
{
    size_t       elems      = first + count;
    part_array   want       = part_make(encoding, elems);
    part_array   got        = part_make(encoding, elems);
    guarded      param_want = guarded_make(SHERD_BF16, elems, 0);
    guarded      param_got  = guarded_make(SHERD_BF16, elems, 0);
    guarded      ties_want  = guarded_make(SHERD_F32, elems, 0);
    guarded      ties_got   = guarded_make(SHERD_F32, elems, 0);
    guarded      out        = guarded_make(SHERD_F32, count, 0);
    static float x[LONG_ELEMS + 64];

    want.part.param = (uint16_t *)(void *)param_want.first;
    got.part.param  = (uint16_t *)(void *)param_got.first;
    want.part.ties  = ties_want.first;
    got.part.ties   = ties_got.first;
    values_fill(x, count, encoding == SHERDI_ENCODING_UFP8);
    plain_encode(&want.part, first, x, count, NULL, 0);
    tested->kernels->encode(tested, &got.part, first, x, count);
    CHECK_GUARDED(&want.bytes, &got.bytes);
    CHECK_GUARDED(&param_want, &param_got);
    CHECK_GUARDED(&ties_want, &ties_got);
    tested->kernels->decode(tested, (float *)(void *)out.first, &got.part, first, count);
    for (size_t i = 0; i < count; i++) {
        CHECK_INT(sherdi_bits_f32(plain_get(&want.part, first + i)),
                  sherdi_bits_f32(guarded_get(&out, i)));
    }
    guarded_free(&want.bytes);
    guarded_free(&got.bytes);
    guarded_free(&param_want);
    guarded_free(&param_got);
    guarded_free(&ties_want);
    guarded_free(&ties_got);
    guarded_free(&out);
}

static void parts_body(const sherdi_backend *tested)
{
    for (int encoding = 1; encoding < SHERDI_ENCODINGS; encoding++) {
        for (size_t count = 0; count < 200; count += 7) {
            part_compare(tested, (sherdi_encoding)encoding, count, count % 3 * SHERD_CHUNK_ELEMS);
        }
        part_compare(tested, (sherdi_encoding)encoding, LONG_ELEMS, SHERD_CHUNK_ELEMS);
    }
}

static void parts_of_every_variant_equal_the_plain_loops(void)
{
    every_backend(parts_body);
}

/* A part whose signs are another's ties: they are not seen, and stay. */
static void ties_body(const sherdi_backend *tested)
{
    static const sherdi_encoding ENCODINGS[] = {SHERDI_ENCODING_F32, SHERDI_ENCODING_BF16};

    for (size_t e = 0; e < 2; e++) {
        part_array array = part_make(ENCODINGS[e], 130);
        float      x[130];
        float      back[130];
        unsigned   signs = e == 0 ? 2 : 1; /* words of an element */
        uint16_t  *words = (uint16_t *)array.part.data;

        array.part.has_ties = 1;
        for (size_t i = 0; i < 130; i++) {
            x[i] = (float)i; /* exact in bf16 */
            words[i * signs + signs - 1] |= (uint16_t)(i % 3 == 0 ? 0x8000 : 0);
        }
        tested->kernels->encode(tested, &array.part, 0, x, 130);
        tested->kernels->decode(tested, back, &array.part, 0, 130);
        CHECK_BYTES_EQUAL(x, back, sizeof(x));
        for (size_t i = 0; i < 130; i++) {
            CHECK_INT(i % 3 == 0, words[i * signs + signs - 1] >> 15);
        }
        guarded_free(&array.bytes);
    }
}

static void signs_that_are_ties_are_masked_and_kept(void)
{
    every_backend(ties_body);
}

/* ------------------------------------------------------- what rounding does -- */

/* A value and its neighbours: the mean of many roundings is the value, and both neighbours are
 * met. */
static void random_rounding_is_right_on_average(void)
{
    static const float VALUES[] = {1.00390625f, -3.3f, 1e-3f, 0.4999f, 1.0f, 7.7e-20f};
    const int          draws    = 20000;

    for (size_t v = 0; v < sizeof(VALUES) / sizeof(VALUES[0]); v++) {
        double bf16  = 0;
        double fp8   = 0;
        float  x     = VALUES[v];
        float  scale = sherdi_fp8_scale(sherdi_bits_f32(fabsf(x)));

        for (int i = 0; i < draws; i++) {
            uint32_t random = sherdi_random_bits(sherdi_random_of((uint64_t)i / 100, 1),
                                                 sherdi_mix_key((uint64_t)i));

            bf16 += (double)sherdi_cast_bf16_f32(sherdi_bf16_encode_random(x, random));
            fp8 += (double)sherdi_fp8_decode(
                sherdi_fp8_encode(x, sherdi_fp8_inverse(scale), random, 1), scale);
        }
        CHECK_CLOSE((double)x, bf16 / draws, 1e-4);
        CHECK_CLOSE((double)x, fp8 / draws, 2e-3);
    }
}

#define DRAWS 65536

/* Of the random bits of a part in a step what bf16 takes, of each of DRAWS elements. */
static void draw(uint16_t *out, uint64_t step, unsigned part, uint64_t first)
{
    sherdi_random random = sherdi_random_of(step, part);

    for (uint64_t i = 0; i < DRAWS; i++) {
        out[i] = (uint16_t)(sherdi_random_bits(random, sherdi_mix_key(first + i)) >> 16);
    }
}

/* Pearson's correlation, within five standard deviations of none, and chi-square of the upper 4
 * bits of both, 255 degrees of freedom, within five. */
static void expect_unrelated(const uint16_t *a, const uint16_t *b)
{
    static unsigned cells[256];
    double          product = 0;
    double          chi     = 0;

    memset(cells, 0, sizeof(cells));
    for (size_t i = 0; i < DRAWS; i++) {
        product += ((double)a[i] - 32767.5) * ((double)b[i] - 32767.5);
        cells[(a[i] >> 12) * 16 + (b[i] >> 12)]++;
    }
    for (size_t i = 0; i < 256; i++) {
        double off = (double)cells[i] - DRAWS / 256.0;

        chi += off * off / (DRAWS / 256.0);
    }
    CHECK(fabs(product / DRAWS / (65536.0 * 65536.0 / 12)) < 5.0 / 256);
    CHECK(fabs(chi - 255) < 5 * 22.6);
}

/* The two moments that share a hash, their master, the next element and the next steps draw as if
 * each were alone. */
static void random_bits_are_unrelated(void)
{
    static uint16_t base[DRAWS];
    static uint16_t other[DRAWS];

    for (unsigned part = 0; part < 3; part++) {
        draw(base, 41, part, 1u << 20);
        for (unsigned second = 0; second < 3; second++) {
            for (uint64_t later = 0; later < 4; later++) {
                for (uint64_t step = 41; step < 44; step++) {
                    if (second == part && later == 0 && step == 41) {
                        continue;
                    }
                    draw(other, step, second, (1u << 20) + later);
                    expect_unrelated(base, other);
                }
            }
        }
    }
}

/* Every code of a chunk comes back as the value that it was; what is not zero stays so. */
static void fp8_codes_are_their_own_rounding(void)
{
    for (unsigned code = 0; code < 256; code++) {
        float scale   = 0x1p-9f;
        float inverse = sherdi_fp8_inverse(scale);
        float x       = sherdi_fp8_decode((uint8_t)code, scale);
        float v       = sherdi_ufp8_decode((uint8_t)code, scale);

        CHECK_INT(code, sherdi_fp8_encode(x, inverse, 0, 0));
        CHECK_INT(code, sherdi_fp8_encode(x, inverse, 0xffffffffu, 1));
        CHECK_INT(code, sherdi_ufp8_encode(v, inverse, 0, 0));
        CHECK_INT(code, sherdi_ufp8_encode(v, inverse, 0xffffffffu, 1));
    }
    CHECK_INT(1, sherdi_ufp8_encode(0x1p-60f, 1.0f, 0, 1));
    CHECK_INT(1, sherdi_ufp8_encode(0x1p-149f, 1.0f, 0, 0));
    CHECK_INT(0, sherdi_ufp8_encode(0.0f, 1.0f, 0xffffffffu, 1));
}

/* The largest of a chunk is at most its scale, and more than half of it; there is one for every
 * magnitude. */
static void fp8_scales_hold_the_largest(void)
{
    for (uint32_t bits = 1; bits < 0x7e800000u; bits += 0x3331u) {
        float x     = sherdi_f32_from_bits(bits);
        float scale = sherdi_fp8_scale(bits);

        CHECK(x <= scale && (x * 2 > scale || scale == 0x1p-126f));
        CHECK(scale * sherdi_fp8_inverse(scale) == 1.0f);
    }
    CHECK_INT(0, sherdi_bits_f32(sherdi_fp8_scale(0)));
    CHECK_INT(0x7fc00000, sherdi_bits_f32(sherdi_fp8_scale(0x7f800000u)));
    CHECK(sherdi_fp8_scale(0x7f7fffffu) == 0x1p126f);
    CHECK_INT(0x7f, sherdi_fp8_encode(3e38f, 0x1p-126f, 0, 0)); /* as much as there is */
}

static const test_case CASES[] = {
    CASE(beside_every_master_comes_back),
    CASE(beside_of_all_variants_comes_back),
    CASE(parts_of_every_variant_equal_the_plain_loops),
    CASE(signs_that_are_ties_are_masked_and_kept),
    CASE(random_rounding_is_right_on_average),
    CASE(random_bits_are_unrelated),
    CASE(fp8_codes_are_their_own_rounding),
    CASE(fp8_scales_hold_the_largest),
};

RUN_MAIN(CASES)
