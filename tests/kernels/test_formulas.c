/* The arithmetic of formulas.h by itself: casts over every 16-bit value and every tie, the
 * exact sum of squares against plain big integers, no contraction, choice of instruction set. */
#include "kernels/backend.h"
#include "kernels/updates/updates.h"
#include "tests/lib/check.h"
#include "tests/kernels/cpu.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------- casts -- */

typedef struct half_type {
    const char *name;
    float (*widen)(uint16_t x);
    uint16_t (*narrow)(float x);
    uint16_t inf;
    uint16_t quiet_nan;
} half_type;

static float widen_bf16(uint16_t x)
{
    return sherdi_cast_bf16_f32(x);
}

static uint16_t narrow_bf16(float x)
{
    return sherdi_cast_f32_bf16(x);
}

static float widen_f16(uint16_t x)
{
    return sherdi_cast_f16_f32(x);
}

static uint16_t narrow_f16(float x)
{
    return sherdi_cast_f32_f16(x);
}

static const half_type BF16 = {"bf16", widen_bf16, narrow_bf16, 0x7f80, 0x7fc0};
static const half_type F16  = {"fp16", widen_f16, narrow_f16, 0x7c00, 0x7e00};

/* Every value comes back; NaN comes back quiet with its sign. */
static void round_trip_check(const half_type *type)
{
    for (uint32_t i = 0; i < 65536; i++) {
        uint16_t want = (uint16_t)i;

        if ((i & 0x7fff) > type->inf) {
            want = (uint16_t)((i & 0x8000) | type->quiet_nan);
            CHECK(isnan(type->widen((uint16_t)i)));
        }
        CHECK_INT(want, type->narrow(type->widen((uint16_t)i)));
    }
}

/* Between each value and the next: half way goes to the even one, a step of fp32 to
 * either side to the nearer. Half way between the largest and "the next" is where Inf starts. */
static void ties_check(const half_type *type)
{
    for (uint32_t i = 0; i < type->inf; i++) {
        double   low   = type->widen((uint16_t)i);
        double   below = i == 0 ? 0 : type->widen((uint16_t)(i - 1));
        double   high  = i + 1 == type->inf ? low + (low - below) : type->widen((uint16_t)(i + 1));
        float    half  = (float)((low + high) / 2);
        uint16_t even  = (uint16_t)(i + (i & 1));

        if ((double)half != (low + high) / 2) {
            continue; /* below the smallest fp32 */
        }
        CHECK_INT(even, type->narrow(half));
        CHECK_INT(even | 0x8000, type->narrow(-half));
        CHECK_INT(i, type->narrow(nextafterf(half, 0.0f)));
        CHECK_INT(i + 1, type->narrow(nextafterf(half, INFINITY)));
        CHECK_INT((i + 1) | 0x8000, type->narrow(nextafterf(-half, -INFINITY)));
    }
}

static void bf16_every_value_comes_back(void)
{
    round_trip_check(&BF16);
}

static void f16_every_value_comes_back(void)
{
    round_trip_check(&F16);
}

static void bf16_ties_go_to_even(void)
{
    ties_check(&BF16);
}

static void f16_ties_go_to_even(void)
{
    ties_check(&F16);
}

/* By the definition of the format. */
static void f16_values_are_those_of_the_format(void)
{
    for (uint32_t i = 0; i < 0x7c00; i++) {
        int    exponent = (int)(i >> 10);
        double fraction = (double)(i & 0x3ff);
        double want =
            exponent == 0 ? ldexp(fraction, -24) : ldexp(1024.0 + fraction, exponent - 25);

        CHECK((double)sherdi_cast_f16_f32((uint16_t)i) == want);
        CHECK((double)sherdi_cast_f16_f32((uint16_t)(i | 0x8000)) == -want);
    }
    CHECK(isinf(sherdi_cast_f16_f32(0x7c00)));
    CHECK_INT(0x7fc00000, sherdi_bits_f32(sherdi_cast_f16_f32(0x7c01)));
    CHECK_INT(0xffc00000, sherdi_bits_f32(sherdi_cast_f16_f32(0xffff)));
}

static void casts_of_extremes(void)
{
    CHECK_INT(0x7f80, sherdi_cast_f32_bf16(FLT_MAX));
    CHECK_INT(0x7c00, sherdi_cast_f32_f16(65520.0f));
    CHECK_INT(0x7bff, sherdi_cast_f32_f16(65519.99f));
    CHECK_INT(0x7c00, sherdi_cast_f32_f16(FLT_MAX));
    CHECK_INT(0xfc00, sherdi_cast_f32_f16(-INFINITY));
    CHECK_INT(0x0000, sherdi_cast_f32_f16(0x1p-25f));
    CHECK_INT(0x0001, sherdi_cast_f32_f16(0x1.000002p-25f));
    CHECK_INT(0x8000, sherdi_cast_f32_f16(-0.0f));
    CHECK_INT(0x8000, sherdi_cast_f32_f16(-0x1p-149f));
    CHECK_INT(0x7e00, sherdi_cast_f32_f16(sherdi_f32_from_bits(0x7f800001u)));
    CHECK_INT(0xffc0, sherdi_cast_f32_bf16(sherdi_f32_from_bits(0xff800001u)));
}

/* ----------------------------------------------------------------- norm -- */

/* A big integer in units of 2^-400, one bit a byte: slow and plain. */
#define BIG_BITS         800
#define BIG_LOW_EXPONENT (-400)

typedef struct big_sum {
    unsigned char bits[BIG_BITS];
} big_sum;

static void big_add_bits(big_sum *sum, uint64_t value, int exponent)
{
    unsigned carry = 0;

    for (int i = 0; exponent - BIG_LOW_EXPONENT + i < BIG_BITS; i++) {
        unsigned char *bit   = &sum->bits[exponent - BIG_LOW_EXPONENT + i];
        unsigned       total = *bit + (i < 64 ? (unsigned)(value >> i & 1) : 0) + carry;

        *bit  = total & 1;
        carry = total >> 1;
        if (i >= 64 && carry == 0) {
            break;
        }
    }
}

static void big_add(big_sum *sum, double value)
{
    int    exponent;
    double fraction = frexp(value, &exponent);

    big_add_bits(sum, (uint64_t)ldexp(fraction, 53), exponent - 53);
}

/* Rounds to nearest even by hand. */
static double big_value(const big_sum *sum)
{
    int      top  = BIG_BITS - 1;
    uint64_t lead = 0;
    int      rest = 0;
    int      half;

    while (top > 60 && sum->bits[top] == 0) {
        top--;
    }
    for (int i = 0; i < 53; i++) {
        lead = lead << 1 | sum->bits[top - i];
    }
    half = sum->bits[top - 53];
    for (int i = top - 54; i >= 0; i--) {
        rest |= sum->bits[i];
    }
    lead += half != 0 && (rest != 0 || (lead & 1) != 0);
    return ldexp((double)lead, top - 52 + BIG_LOW_EXPONENT);
}

static double bits_to_double(uint64_t bits)
{
    double x;

    memcpy(&x, &bits, sizeof(x));
    return x;
}

/* Chunk sums with exponents from `low` to `high`, all 53 bits random. */
static double random_sum(uint64_t *seed, int low, int high)
{
    uint64_t random   = test_random(seed);
    int      exponent = low + (int)(test_random(seed) % (uint64_t)(high - low + 1));

    return bits_to_double((uint64_t)(exponent + 1023) << 52 | random >> 12);
}

static void norm_ranges_check(int low, int high)
{
    uint64_t seed = (uint64_t)(low + 1000);

    for (int length = 0; length < 400; length = length * 3 / 2 + 1) {
        sherdi_norm_acc acc = {0};
        big_sum         sum = {0};

        for (int i = 0; i < length; i++) {
            double x = random_sum(&seed, low, high);

            sherdi_norm_add(&acc, x);
            big_add(&sum, x);
        }
        CHECK(sherdi_norm_value(&acc) == big_value(&sum));
    }
}

/* Each exponent window, all bins, and the whole range: 2^-298 (the square of the smallest
 * fp32) to 64 * FLT_MAX^2. */
static void norm_value_is_the_exact_sum_rounded_once(void)
{
    for (int low = -298; low + 7 <= 261; low += 13) {
        norm_ranges_check(low, low + 7);
    }
    norm_ranges_check(-298, 261);
    norm_ranges_check(-60, 60);
}

static void norm_of_extremes(void)
{
    float           chunk[SHERD_CHUNK_ELEMS] = {0};
    sherdi_norm_acc acc                      = {0};

    CHECK(sherdi_norm_value(&acc) == 0.0);
    sherdi_norm_add(&acc, sherdi_norm_chunk(chunk));
    CHECK(sherdi_norm_value(&acc) == 0.0);
    chunk[63] = 0x1p-149f;
    sherdi_norm_add(&acc, sherdi_norm_chunk(chunk));
    CHECK(sherdi_norm_value(&acc) == 0x1p-298);
    for (int i = 0; i < SHERD_CHUNK_ELEMS; i++) {
        chunk[i] = i % 2 == 0 ? FLT_MAX : -FLT_MAX;
    }
    sherdi_norm_add(&acc, sherdi_norm_chunk(chunk));
    CHECK(sherdi_norm_value(&acc) == 64.0 * ((double)FLT_MAX * (double)FLT_MAX));
    CHECK_INT(0, acc.nonfinite);
    chunk[5] = INFINITY;
    sherdi_norm_add(&acc, sherdi_norm_chunk(chunk));
    chunk[5] = NAN;
    sherdi_norm_add(&acc, sherdi_norm_chunk(chunk));
    CHECK_INT(2, acc.nonfinite);
    CHECK(isnan(sherdi_norm_value(&acc)));
}

/* 2^32 chunks of the largest sum fill no bin to overflow: made from full bins. */
static void norm_full_bins_carry(void)
{
    sherdi_norm_acc acc = {0};
    big_sum         sum = {0};

    for (int i = 0; i < SHERDI_NORM_BINS - 1; i++) {
        acc.bins[i] = UINT64_MAX;
        big_add_bits(&sum, UINT64_MAX, SHERDI_NORM_LOW_EXPONENT + 32 * i);
    }
    CHECK(sherdi_norm_value(&acc) == big_value(&sum));
    sherdi_norm_normalise(&acc);
    for (int i = 0; i < SHERDI_NORM_BINS - 1; i++) {
        CHECK(acc.bins[i] <= UINT32_MAX);
    }
    CHECK(sherdi_norm_value(&acc) == big_value(&sum));
    sherdi_norm_merge(&acc, &acc);
    CHECK(sherdi_norm_value(&acc) == 2 * big_value(&sum));
}

/* Any order, any grouping: the same bins. */
static void norm_order_and_grouping_change_nothing(void)
{
    double          sums[300];
    uint64_t        seed = 5;
    sherdi_norm_acc want = {0};

    for (int i = 0; i < 300; i++) {
        sums[i] = random_sum(&seed, -100, 40);
        sherdi_norm_add(&want, sums[i]);
    }
    sherdi_norm_normalise(&want);
    for (int turn = 0; turn < 50; turn++) {
        sherdi_norm_acc got      = {0};
        sherdi_norm_acc parts[7] = {0};

        for (int i = 299; i > 0; i--) {
            int    k    = (int)(test_random(&seed) % (uint64_t)(i + 1));
            double swap = sums[i];

            sums[i] = sums[k];
            sums[k] = swap;
        }
        for (int i = 0; i < 300; i++) {
            sherdi_norm_add(&parts[test_random(&seed) % 7], sums[i]);
        }
        for (int i = 0; i < 7; i++) {
            sherdi_norm_merge(&got, &parts[i]);
        }
        CHECK_BYTES_EQUAL(&want, &got, sizeof(want));
    }
}

/* The tree of one chunk, written out another way. */
static void norm_chunk_is_the_documented_tree(void)
{
    uint64_t seed = 9;
    float    x[SHERD_CHUNK_ELEMS];
    double   lane[8] = {0};

    for (int i = 0; i < SHERD_CHUNK_ELEMS; i++) {
        x[i]        = test_random_float(&seed) * 0x1p13f;
        lane[i % 8] = lane[i % 8] + (double)x[i] * (double)x[i]; /* squares are exact */
    }
    CHECK(sherdi_norm_chunk(x) == ((lane[0] + lane[4]) + (lane[2] + lane[6])) +
                                      ((lane[1] + lane[5]) + (lane[3] + lane[7])));
}

/* ---------------------------------------------------------- contraction -- */

/* (1 + e)^2 - (1 + 2 e): rounding the product first leaves 0, a fused operation e^2. */
#if defined(__x86_64__)
__attribute__((target("fma")))
#endif
__attribute__((noinline)) static float
multiply_add(float a, float b, float c)
{
    return a * b + c;
}

static void compiler_does_not_fuse_what_is_written_apart(void)
{
    volatile float a = 1.0f + 0x1p-12f;
    volatile float c = -(1.0f + 0x1p-11f);

#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("fma")) {
        test_skip("this machine has no fused operations");
    }
#endif
    CHECK(multiply_add(a, a, c) == 0.0f);
    CHECK(fmaf(a, a, c) == 0x1p-24f);
}

/* What formulas.h writes as one operation is one, what it writes as two is two. */
static void adam_fuses_what_is_written_as_fused(void)
{
    sherdi_adam_coeffs coeffs = {
        .grad_scale = 1.0f, .beta1 = 1.0f + 0x1p-12f, .one_minus_beta1 = 1.0f, .eps = 1.0f};
    float x[3] = {1.0f, 1.0f + 0x1p-12f, 0.0f}; /* p, m, v */

    sherdi_adam_element(&coeffs, -(1.0f + 0x1p-11f), x);
    CHECK(x[1] == 0x1p-24f);

    coeffs.beta1           = 1.0f;
    coeffs.one_minus_beta1 = 1.0f + 0x1p-12f;
    x[1]                   = -(1.0f + 0x1p-11f);
    sherdi_adam_element(&coeffs, 1.0f + 0x1p-12f, x);
    CHECK(x[1] == 0.0f);
}

/* dst + sum * scale: two roundings on every instruction set. */
static void reduce_rounds_the_product_before_the_sum(void)
{
    static const char *const ISAS[] = {"scalar", "avx2", "avx512"};

    for (int isa = 0; isa < 3; isa++) {
        sherdi_backend     backend = {.kernels = sherdi_kernels_cpu_find(ISAS[isa]), .threads = 1};
        float              src[130];
        float              dst[130];
        const void        *srcs[] = {src};
        sherdi_reduce_args args   = {.srcs        = srcs,
                                     .num_srcs    = 1,
                                     .dst         = dst,
                                     .count_elems = 130,
                                     .scale       = 1.0f + 0x1p-12f,
                                     .accumulate  = 1};

        for (int i = 0; i < 130; i++) {
            src[i] = 1.0f + 0x1p-12f;
            dst[i] = -(1.0f + 0x1p-11f);
        }
        if (backend.kernels != NULL) {
            backend.kernels->reduce(&backend, &args);
            for (int i = 0; i < 130; i++) {
                CHECK(dst[i] == 0.0f);
            }
        }
    }
}

/* ---------------------------------------------------------- fingerprint -- */

/* One flipped bit, two weights that change places, a weight that moves: all seen. */
static void fingerprint_sees_small_changes(void)
{
    uint64_t index = 0x123456789u;
    float    x     = 0.7f;
    float    y     = -0.01f;

    for (int bit = 0; bit < 32; bit++) {
        float flipped = sherdi_f32_from_bits(sherdi_bits_f32(x) ^ (1u << bit));

        CHECK(sherdi_mix_element(index, x) != sherdi_mix_element(index, flipped));
    }
    CHECK(sherdi_mix_element(index, x) + sherdi_mix_element(index + 1, y) !=
          sherdi_mix_element(index, y) + sherdi_mix_element(index + 1, x));
    CHECK(sherdi_mix_element(index, x) != sherdi_mix_element(index + ((uint64_t)1 << 32), x));
}

/* The example of docs/numerics.md. */
static void fingerprint_of_the_documented_example(void)
{
    CHECK_INT(0x3f800000, sherdi_mix_element(0, 1.0f));
    CHECK_INT(0x47a7cceae7004d2d, sherdi_mix_element(1, -2.0f));
    CHECK_INT(0x1d1562d48fb168d9, sherdi_mix_element((uint64_t)1 << 32, 0.5f));
}

/* -------------------------------------------------------------- backend -- */

static void backend_create_honours_the_environment(void)
{
    sherdi_mem      mem;
    sherdi_backend *backend = NULL;

    sherdi_mem_init(&mem);
    CHECK_INT(0, setenv("SHERD_ISA", "scalar", 1));
    CHECK_OK(cpu_create(2, &mem, &backend));
    CHECK(strcmp(backend->kernels->isa, "scalar") == 0);
    CHECK_INT(2, backend->threads);
    sherdi_backend_destroy(backend);
    sherdi_backend_destroy(NULL);

    backend = NULL;
    CHECK_INT(0, setenv("SHERD_ISA", "mmx", 1));
    CHECK_STATUS(SHERD_E_INVAL, cpu_create(1, &mem, &backend));
    CHECK_ERROR_SAYS("mmx");
    CHECK(backend == NULL);

    CHECK_INT(0, unsetenv("SHERD_ISA"));
    CHECK_STATUS(SHERD_E_INVAL, cpu_create(-1, &mem, &backend));
    CHECK_OK(cpu_create(1, &mem, &backend));
    CHECK(sherdi_kernels_cpu_find(backend->kernels->isa) == backend->kernels);
    CHECK(sherdi_kernels_cpu_find("mmx") == NULL);
    sherdi_backend_destroy(backend);

    (void)sherdi_mem_fail_nth(1);
    backend = NULL;
    CHECK_STATUS(SHERD_E_NOMEM, cpu_create(1, &mem, &backend));
    CHECK(backend == NULL);
    CHECK_INT(0, sherdi_mem_held_all(&mem));
}

static void adam_traffic_counts_what_is_moved(void)
{
    sherdi_span        spans[] = {{.count_elems = 100}, {.offset_elems = 128, .count_elems = 28}};
    float              param   = 0;
    sherdi_update_args args    = {.spans = spans, .num_spans = 2, .grad_dtype = SHERD_F32};

    CHECK_INT(128 * 28, sherdi_update_bytes(SHERDI_UPDATE_adam, &args, 1));
    args.grad_dtype  = SHERD_BF16;
    args.param       = &param;
    args.param_dtype = SHERD_BF16;
    CHECK_INT(128 * 28, sherdi_update_bytes(SHERDI_UPDATE_adam, &args, 1));
    args.grad_dtype = SHERD_F32;
    CHECK_INT(128 * 30, sherdi_update_bytes(SHERDI_UPDATE_adam, &args, 1));
}

static const test_case CASES[] = {
    CASE(bf16_every_value_comes_back),
    CASE(f16_every_value_comes_back),
    CASE(bf16_ties_go_to_even),
    CASE(f16_ties_go_to_even),
    CASE(f16_values_are_those_of_the_format),
    CASE(casts_of_extremes),
    CASE(norm_value_is_the_exact_sum_rounded_once),
    CASE(norm_of_extremes),
    CASE(norm_full_bins_carry),
    CASE(norm_order_and_grouping_change_nothing),
    CASE(norm_chunk_is_the_documented_tree),
    CASE(compiler_does_not_fuse_what_is_written_apart),
    CASE(adam_fuses_what_is_written_as_fused),
    CASE(reduce_rounds_the_product_before_the_sum),
    CASE(fingerprint_sees_small_changes),
    CASE(fingerprint_of_the_documented_example),
    CASE(backend_create_honours_the_environment),
    CASE(adam_traffic_counts_what_is_moved),
};

RUN_MAIN(CASES)
