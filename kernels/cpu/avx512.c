/* AVX-512 (F, BW, DQ, VL): the primitives that vector.inc.c needs of an instruction set, then the
 * loops made of them. The machine's own bf16 conversion is not used, because it flushes denormals.
 * */
#include "kernels/cpu/elements.h"
#include "kernels/cpu/vector_defs.h"

#define LANES       16
#define UPDATE_VECS 2
#define VEC(name)   _mm512_##name

typedef __m512    vec_f32;
typedef __m512i   vec_bits;
typedef __m256i   vec_half;
typedef __mmask16 vec_flags;
typedef __mmask32 vec_flags16;

INLINE vec_f32 vec_nan_to(vec_f32 x, vec_f32 other)
{
    return _mm512_mask_mov_ps(x, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), other);
}

INLINE vec_f32 vec_unless_zero(vec_f32 x, vec_f32 other)
{
    return _mm512_mask_mov_ps(other, _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_EQ_UQ), x);
}

INLINE vec_flags vec_unordered(vec_f32 a, vec_f32 b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q);
}

INLINE int vec_flags_any(vec_flags flags)
{
    return flags != 0;
}

INLINE vec_bits vec_blend_odd(vec_bits even, vec_bits odd)
{
    return _mm512_mask_blend_epi16(0xaaaaaaaau, even, odd);
}

INLINE vec_bits vec_pack_upper(vec_bits a, vec_bits b)
{
    const vec_bits upper_halves =
        _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29, 27,
                         25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);

    return _mm512_permutex2var_epi16(a, upper_halves, b);
}

INLINE vec_bits vec_join_halves(vec_half low, vec_half high)
{
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

INLINE vec_bits vec_pack_lower(vec_bits a, vec_bits b)
{
    const vec_bits lower_halves =
        _mm512_set_epi16(62, 60, 58, 56, 54, 52, 50, 48, 46, 44, 42, 40, 38, 36, 34, 32, 30, 28, 26,
                         24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);

    return _mm512_permutex2var_epi16(a, lower_halves, b);
}

INLINE vec_flags16 vec_equal16(vec_bits a, vec_bits b)
{
    return _mm512_cmpeq_epi16_mask(a, b);
}

INLINE vec_flags16 vec_no_flags16(void)
{
    return 0;
}

INLINE int vec_flags16_any(vec_flags16 flags)
{
    return flags != 0;
}

INLINE void vecs_store_upper(uint16_t *at, const vec_bits *x)
{
    _mm512_storeu_si512(at, vec_pack_upper(x[0], x[1]));
}

INLINE void vecs_load_bf16(vec_f32 *x, const uint16_t *at)
{
    vec_half low;
    vec_half high;

    memcpy(&low, at, sizeof(low));
    memcpy(&high, at + LANES, sizeof(high));
    x[0] = (vec_f32)_mm512_slli_epi32(_mm512_cvtepu16_epi32(low), 16);
    x[1] = (vec_f32)_mm512_slli_epi32(_mm512_cvtepu16_epi32(high), 16);
}

INLINE vec_bits vec_load_bytes(const uint8_t *at)
{
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)at));
}

INLINE vec_bits vec_load_signed_bytes(const uint8_t *at)
{
    return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)at));
}

/* As in AVX2, the packs work inside 128-bit parts; the permutation puts the results in order. */
INLINE vec_bits vec_pack_bytes(const vec_bits *x)
{
    const vec_bits order = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
    vec_bits       bytes =
        _mm512_packus_epi16(_mm512_packus_epi32(x[0], x[1]), _mm512_packus_epi32(x[2], x[3]));

    return _mm512_permutexvar_epi32(order, bytes);
}

INLINE vec_bits vec_swap_halves(vec_bits x)
{
    return _mm512_rol_epi32(x, 16);
}

INLINE uint32_t vec_largest(vec_bits x)
{
    return _mm512_reduce_max_epu32(x);
}

/* Of a tile of a product. So 28 of 32 registers are sums. */
#define PRODUCT_TILE_ROWS 14

#include "kernels/cpu/vector.inc.c"

#define TABLE_NAME        sherdi_kernels_avx512
#define TABLE_ISA         "avx512"
#define TABLE_OWN_BYTES   sizeof(sherdi_ahead)
#define TABLE_HAS_VECTORS 1
#include "kernels/cpu/table.inc.c"
