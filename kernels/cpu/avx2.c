/* AVX2 with FMA and F16C: the primitives that vector.inc.c needs of an instruction set, then the
 * loops made of them. */
#include "kernels/cpu/elements.h"
#include "kernels/cpu/vector_defs.h"

#define LANES       8
#define UPDATE_VECS 1
#define VEC(name)   _mm256_##name

typedef __m256  vec_f32;
typedef __m256i vec_bits;
typedef __m128i vec_half;
typedef __m256i vec_flags;
typedef __m256i vec_flags16;

INLINE vec_f32 vec_nan_to(vec_f32 x, vec_f32 other)
{
    return _mm256_blendv_ps(x, other, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}

INLINE vec_f32 vec_unless_zero(vec_f32 x, vec_f32 other)
{
    return _mm256_blendv_ps(other, x, _mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_EQ_UQ));
}

INLINE vec_flags vec_unordered(vec_f32 a, vec_f32 b)
{
    return (vec_flags)_mm256_cmp_ps(a, b, _CMP_UNORD_Q);
}

INLINE int vec_flags_any(vec_flags flags)
{
    return !_mm256_testz_si256(flags, flags);
}

/* The pack works inside each 128-bit half; the permutation puts the results in order. */
INLINE vec_bits vec_pack_upper(vec_bits a, vec_bits b)
{
    vec_bits packed = _mm256_packus_epi32(_mm256_srli_epi32(a, 16), _mm256_srli_epi32(b, 16));

    return _mm256_permute4x64_epi64(packed, 0xd8);
}

INLINE vec_bits vec_pack_lower(vec_bits a, vec_bits b)
{
    const vec_bits lower  = _mm256_set1_epi32(0xffff);
    vec_bits       packed = _mm256_packus_epi32(a & lower, b & lower);

    return _mm256_permute4x64_epi64(packed, 0xd8);
}

INLINE vec_flags16 vec_equal16(vec_bits a, vec_bits b)
{
    return _mm256_cmpeq_epi16(a, b);
}

INLINE vec_flags16 vec_no_flags16(void)
{
    return _mm256_setzero_si256();
}

INLINE int vec_flags16_any(vec_flags16 flags)
{
    return vec_flags_any(flags);
}

INLINE void vecs_store_upper(uint16_t *at, const vec_bits *x)
{
    __m128i low  = _mm_srli_epi32(_mm256_castsi256_si128(x[0]), 16);
    __m128i high = _mm_srli_epi32(_mm256_extracti128_si256(x[0], 1), 16);

    _mm_storeu_si128((__m128i *)(void *)at, _mm_packus_epi32(low, high));
}

INLINE void vecs_load_bf16(vec_f32 *x, const uint16_t *at)
{
    __m128i words = _mm_loadu_si128((const __m128i *)(const void *)at);

    x[0] = (vec_f32)_mm256_slli_epi32(_mm256_cvtepu16_epi32(words), 16);
}

INLINE vec_bits vec_load_bytes(const uint8_t *at)
{
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)at));
}

INLINE vec_bits vec_load_signed_bytes(const uint8_t *at)
{
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)at));
}

INLINE vec_bits vec_pack_bytes(const vec_bits *x)
{
    const vec_bits order = _mm256_set_epi32(7, 3, 6, 2, 5, 1, 4, 0);
    vec_bits       bytes =
        _mm256_packus_epi16(_mm256_packus_epi32(x[0], x[1]), _mm256_packus_epi32(x[2], x[3]));

    return _mm256_permutevar8x32_epi32(bytes, order);
}

INLINE vec_bits vec_swap_halves(vec_bits x)
{
    return _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(x, 0xb1), 0xb1);
}

INLINE uint32_t vec_largest(vec_bits x)
{
    __m128i most = _mm_max_epu32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));

    most = _mm_max_epu32(most, _mm_shuffle_epi32(most, 0x4e));
    most = _mm_max_epu32(most, _mm_shuffle_epi32(most, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(most);
}

INLINE vec_bits vec_blend_odd(vec_bits even, vec_bits odd)
{
    return _mm256_blend_epi16(even, odd, 0xaa);
}

INLINE vec_bits vec_join_halves(vec_half low, vec_half high)
{
    return _mm256_set_m128i(high, low);
}

/* Of a tile of a product. So 12 of 16 registers are sums. */
#define PRODUCT_TILE_ROWS 6

#include "kernels/cpu/vector.inc.c"

#define TABLE_NAME        sherdi_kernels_avx2
#define TABLE_ISA         "avx2"
#define TABLE_OWN_BYTES   sizeof(sherdi_ahead)
#define TABLE_HAS_VECTORS 1
#include "kernels/cpu/table.inc.c"
