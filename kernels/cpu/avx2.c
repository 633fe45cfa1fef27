/* AVX2 with FMA and F16C: the primitives under the loops of vector.h. */
#include "kernels/cpu/elements.h"
#include "kernels/cpu/variants.h"
#include "kernels/cpu/vector_defs.h"

#define LANES       8
#define UPDATE_VECS 1

typedef __m256  vec_f32;
typedef __m256i vec_bits;
typedef __m256i vec_flags;

/* ---------------------------------------------------- load, store, casts -- */

INLINE vec_f32 vec_set(float x)
{
    return _mm256_set1_ps(x);
}

INLINE vec_f32 vec_canonical(vec_f32 x)
{
    vec_f32 is_nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);

    return _mm256_blendv_ps(x, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000)), is_nan);
}

INLINE vec_flags vec_unordered(vec_f32 a, vec_f32 b)
{
    return _mm256_castps_si256(_mm256_cmp_ps(a, b, _CMP_UNORD_Q));
}

INLINE int vec_flags_any(vec_flags flags)
{
    return !_mm256_testz_si256(flags, flags);
}

INLINE vec_f32 vec_quiet(vec_f32 x)
{
    vec_f32 is_nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
    vec_f32 sign   = _mm256_and_ps(x, _mm256_set1_ps(-0.0f));
    vec_f32 quiet  = _mm256_or_ps(sign, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000)));

    return _mm256_blendv_ps(x, quiet, is_nan);
}

INLINE vec_f32 vec_load(const float *at)
{
    return _mm256_loadu_ps(at);
}

INLINE vec_f32 vec_load_bf16(const uint16_t *at)
{
    vec_bits wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)at));

    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}

INLINE vec_f32 vec_load_f16(const uint16_t *at)
{
    return vec_quiet(_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)at)));
}

INLINE vec_bits vec_load_bits(const void *at)
{
    return _mm256_loadu_si256((const __m256i *)at);
}

INLINE vec_bits vec_zero_bits(void)
{
    return _mm256_setzero_si256();
}

INLINE void vec_store(float *at, vec_f32 x)
{
    _mm256_storeu_ps(at, x);
}

INLINE void vec_stream(float *at, vec_f32 x)
{
    _mm256_stream_ps(at, x);
}

INLINE void vec_store_bits(void *at, vec_bits x)
{
    _mm256_storeu_si256((__m256i *)at, x);
}

INLINE void vec_stream_bits(void *at, vec_bits x)
{
    _mm256_stream_si256((__m256i *)at, x);
}

/* The upper halves of the sums are the rounded values. */
INLINE vec_bits bf16_sums(vec_f32 x)
{
    vec_bits bits = _mm256_castps_si256(x);
    vec_bits odd  = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));

    return _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
}

INLINE vec_f32 vec_round_bf16(vec_f32 x)
{
    return _mm256_castsi256_ps(_mm256_and_si256(bf16_sums(x), _mm256_set1_epi32((int)0xffff0000u)));
}

/* The pack works inside 128-bit halves; the permutation puts them in order. */
INLINE vec_bits vec_pack_bf16(vec_f32 a, vec_f32 b)
{
    vec_bits packed = _mm256_packus_epi32(_mm256_srli_epi32(bf16_sums(a), 16),
                                          _mm256_srli_epi32(bf16_sums(b), 16));

    return _mm256_permute4x64_epi64(packed, 0xd8);
}

INLINE vec_f32 vec_even_bf16(vec_bits bits)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16));
}

INLINE vec_f32 vec_odd_bf16(vec_bits bits)
{
    return _mm256_castsi256_ps(_mm256_and_si256(bits, _mm256_set1_epi32((int)0xffff0000u)));
}

INLINE vec_bits vec_join_bf16(vec_f32 even, vec_f32 odd)
{
    return _mm256_blend_epi16(_mm256_srli_epi32(bf16_sums(even), 16), bf16_sums(odd), 0xaa);
}

INLINE vec_f32 vec_round_f16(vec_f32 x)
{
    return _mm256_cvtph_ps(_mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

INLINE vec_bits vec_pack_f16(vec_f32 a, vec_f32 b)
{
    __m128i low  = _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m128i high = _mm256_cvtps_ph(b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);

    return _mm256_set_m128i(high, low);
}

/* ----------------------------------------------------------- arithmetic -- */

INLINE vec_f32 vec_add(vec_f32 a, vec_f32 b)
{
    return _mm256_add_ps(a, b);
}

INLINE vec_f32 vec_mul(vec_f32 a, vec_f32 b)
{
    return _mm256_mul_ps(a, b);
}

INLINE vec_f32 vec_div(vec_f32 a, vec_f32 b)
{
    return _mm256_div_ps(a, b);
}

INLINE vec_f32 vec_sqrt(vec_f32 x)
{
    return _mm256_sqrt_ps(x);
}

INLINE vec_f32 vec_fma(vec_f32 a, vec_f32 b, vec_f32 c)
{
    return _mm256_fmadd_ps(a, b, c);
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
    __asm__("" : "+x"(x));
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
    mixer.keys     = vec_load_bits(keys);
    mixer.even     = vec_load_bits(multipliers);
    mixer.odd      = _mm256_srli_epi64(mixer.even, 32);
    mixer.sum      = vec_zero_bits();
    mixer.key_step = vec_opaque(_mm256_set1_epi32((int)(LANES * 0x9e3779b1u)));
    mixer.step     = vec_opaque(_mm256_set1_epi32((int)(LANES * 0xc2b2ae3du)));
    return mixer;
}

INLINE void vec_mixer_add(vec_mixer *mixer, vec_f32 x)
{
    vec_bits keyed = _mm256_xor_si256(_mm256_castps_si256(x), mixer->keys);
    vec_bits even  = _mm256_mul_epu32(keyed, mixer->even);
    vec_bits odd   = _mm256_mul_epu32(_mm256_srli_epi64(keyed, 32), mixer->odd);

    mixer->sum  = _mm256_add_epi64(mixer->sum, _mm256_add_epi64(even, odd));
    mixer->keys = _mm256_add_epi32(mixer->keys, mixer->key_step);
    mixer->even = _mm256_add_epi32(mixer->even, mixer->step);
    mixer->odd  = _mm256_add_epi32(mixer->odd, mixer->step);
}

INLINE uint64_t vec_mixer_sum(const vec_mixer *mixer)
{
    uint64_t lanes[4];

    vec_store_bits(lanes, mixer->sum);
    return lanes[0] + lanes[1] + lanes[2] + lanes[3];
}

#include "kernels/cpu/vector.h"

#define TABLE_NAME sherdi_kernels_avx2
#define TABLE_ISA  "avx2"
#include "kernels/cpu/table.h"
