/* AVX-512 (F, BW, DQ, VL): the primitives under the loops of vector.h. The machine's own
 * bf16 conversion is not used: it flushes denormals. */
#include "kernels/cpu/elements.h"
#include "kernels/cpu/variants.h"
#include "kernels/cpu/vector_defs.h"

#define LANES       16
#define UPDATE_VECS 2

typedef __m512    vec_f32;
typedef __m512i   vec_bits;
typedef __mmask16 vec_flags;

/* ---------------------------------------------------- load, store, casts -- */

INLINE vec_f32 vec_set(float x)
{
    return _mm512_set1_ps(x);
}

/* NaN of either sign becomes `quiet`. */
INLINE vec_f32 vec_canonical(vec_f32 x)
{
    __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);

    return _mm512_mask_mov_ps(x, is_nan, _mm512_castsi512_ps(_mm512_set1_epi32(0x7fc00000)));
}

INLINE vec_flags vec_unordered(vec_f32 a, vec_f32 b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q);
}

INLINE int vec_flags_any(vec_flags flags)
{
    return flags != 0;
}

INLINE vec_f32 vec_quiet(vec_f32 x)
{
    __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    vec_bits  sign = _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32((int)0x80000000u));

    return _mm512_castsi512_ps(
        _mm512_mask_or_epi32(_mm512_castps_si512(x), is_nan, sign, _mm512_set1_epi32(0x7fc00000)));
}

INLINE vec_f32 vec_load(const float *at)
{
    return _mm512_loadu_ps(at);
}

INLINE vec_f32 vec_load_bf16(const uint16_t *at)
{
    vec_bits wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)at));

    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

INLINE vec_f32 vec_load_f16(const uint16_t *at)
{
    return vec_quiet(_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)at)));
}

INLINE vec_bits vec_load_bits(const void *at)
{
    return _mm512_loadu_si512(at);
}

INLINE vec_bits vec_zero_bits(void)
{
    return _mm512_setzero_si512();
}

INLINE void vec_store(float *at, vec_f32 x)
{
    _mm512_storeu_ps(at, x);
}

INLINE void vec_stream(float *at, vec_f32 x)
{
    _mm512_stream_ps(at, x);
}

INLINE void vec_store_bits(void *at, vec_bits x)
{
    _mm512_storeu_si512(at, x);
}

INLINE void vec_stream_bits(void *at, vec_bits x)
{
    _mm512_stream_si512(at, x);
}

/* The upper halves of the sums are the rounded values. */
INLINE vec_bits bf16_sums(vec_f32 x)
{
    vec_bits bits = _mm512_castps_si512(x);
    vec_bits odd  = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));

    return _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
}

INLINE vec_f32 vec_round_bf16(vec_f32 x)
{
    return _mm512_castsi512_ps(_mm512_and_si512(bf16_sums(x), _mm512_set1_epi32((int)0xffff0000u)));
}

INLINE vec_bits vec_pack_bf16(vec_f32 a, vec_f32 b)
{
    const vec_bits upper_halves =
        _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29, 27,
                         25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);

    return _mm512_permutex2var_epi16(bf16_sums(a), upper_halves, bf16_sums(b));
}

INLINE vec_f32 vec_even_bf16(vec_bits bits)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
}

INLINE vec_f32 vec_odd_bf16(vec_bits bits)
{
    return _mm512_castsi512_ps(_mm512_and_si512(bits, _mm512_set1_epi32((int)0xffff0000u)));
}

INLINE vec_bits vec_join_bf16(vec_f32 even, vec_f32 odd)
{
    return _mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_srli_epi32(bf16_sums(even), 16),
                                   bf16_sums(odd));
}

INLINE vec_f32 vec_round_f16(vec_f32 x)
{
    return _mm512_cvtph_ps(_mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

INLINE vec_bits vec_pack_f16(vec_f32 a, vec_f32 b)
{
    __m256i low  = _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256i high = _mm512_cvtps_ph(b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);

    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

/* ----------------------------------------------------------- arithmetic -- */

INLINE vec_f32 vec_add(vec_f32 a, vec_f32 b)
{
    return _mm512_add_ps(a, b);
}

INLINE vec_f32 vec_mul(vec_f32 a, vec_f32 b)
{
    return _mm512_mul_ps(a, b);
}

INLINE vec_f32 vec_div(vec_f32 a, vec_f32 b)
{
    return _mm512_div_ps(a, b);
}

INLINE vec_f32 vec_sqrt(vec_f32 x)
{
    return _mm512_sqrt_ps(x);
}

INLINE vec_f32 vec_fma(vec_f32 a, vec_f32 b, vec_f32 c)
{
    return _mm512_fmadd_ps(a, b, c);
}

/* ---------------------------------------------------------- fingerprint -- */

/* Keys and multipliers of the next LANES elements. The multipliers stand in the even
 * 32-bit halves, for elements 0, 2, .. and 1, 3, ..; a step adds an even number, so
 * their lowest bit stays set. */
typedef struct vec_mixer {
    vec_bits keys, even, odd, sum;
    vec_bits key_step, step;
} vec_mixer;

/* Compilers that know the steps make a constant of each multiple, and then have no registers left. */
INLINE vec_bits vec_opaque(vec_bits x)
{
    __asm__("" : "+v"(x));
    return x;
}

INLINE vec_mixer vec_mixer_start(uint64_t first_index)
{
    uint32_t  keys[LANES];
    uint32_t  multipliers[LANES];
    vec_mixer mixer;

    for (uint32_t i = 0; i < LANES; i++) {
        keys[i]        = sherdi_mix_key(first_index + i);
        multipliers[i] = sherdi_mix_multiplier(first_index + i);
    }
    mixer.keys     = _mm512_loadu_si512(keys);
    mixer.even     = _mm512_loadu_si512(multipliers);
    mixer.odd      = _mm512_srli_epi64(mixer.even, 32);
    mixer.sum      = _mm512_setzero_si512();
    mixer.key_step = vec_opaque(_mm512_set1_epi32((int)(LANES * 0x9e3779b1u)));
    mixer.step     = vec_opaque(_mm512_set1_epi32((int)(LANES * 0xc2b2ae3du)));
    return mixer;
}

INLINE void vec_mixer_add(vec_mixer *mixer, vec_f32 x)
{
    vec_bits keyed = _mm512_xor_si512(_mm512_castps_si512(x), mixer->keys);
    vec_bits even  = _mm512_mul_epu32(keyed, mixer->even);
    vec_bits odd   = _mm512_mul_epu32(_mm512_srli_epi64(keyed, 32), mixer->odd);

    mixer->sum  = _mm512_add_epi64(mixer->sum, _mm512_add_epi64(even, odd));
    mixer->keys = _mm512_add_epi32(mixer->keys, mixer->key_step);
    mixer->even = _mm512_add_epi32(mixer->even, mixer->step);
    mixer->odd  = _mm512_add_epi32(mixer->odd, mixer->step);
}

INLINE uint64_t vec_mixer_sum(const vec_mixer *mixer)
{
    uint64_t lanes[8]; /* added as unsigned: sums wrap */
    uint64_t sum = 0;

    vec_store_bits(lanes, mixer->sum);
    for (int i = 0; i < 8; i++) {
        sum += lanes[i];
    }
    return sum;
}

#include "kernels/cpu/vector.h"

#define TABLE_NAME sherdi_kernels_avx512
#define TABLE_ISA  "avx512"
#include "kernels/cpu/table.h"
