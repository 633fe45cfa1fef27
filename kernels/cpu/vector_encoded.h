/* range_decode and range_encode over vectors, a chunk of 64 elements in registers at a time. What is no whole chunk, and
 * chunks with ties, go through encoded.h. avx2.c and avx512.c define beside what vector.h asks for:
 *   vec_less, vec_equal         flags of 32-bit elements, signed
 *   vec_choose                  by flags one of two registers
 *   vec_pack_lower              the lower halves of a's 32-bit elements, then those of b's
 *   vec_load_bytes, vec_store_bytes  LANES bytes as 32-bit elements, and the lowest bytes of such */
#include "kernels/cpu/encoded.h"

INLINE vec_bits vec_set_bits(uint32_t x)
{
    return VEC(set1_epi32)((int)x);
}

/* --------------------------------------------------------------- random -- */

/* Keys of the next LANES elements; indices do not cross a multiple of 2^32 (sherdi_random_bits). */
typedef struct vec_randoms {
    vec_bits keys, step, seed;
} vec_randoms;

/* Of sherdi_mix_key(0), ... */
static const uint32_t LANE_KEYS[LANES] __attribute__((aligned(CACHE_LINE_BYTES))) = {
#define LANE_KEY(i) (uint32_t)((i)*0x9e3779b1u)
    LANE_KEY(0),  LANE_KEY(1),  LANE_KEY(2),  LANE_KEY(3),
    LANE_KEY(4),  LANE_KEY(5),  LANE_KEY(6),  LANE_KEY(7),
#if LANES == 16
    LANE_KEY(8),  LANE_KEY(9),  LANE_KEY(10), LANE_KEY(11),
    LANE_KEY(12), LANE_KEY(13), LANE_KEY(14), LANE_KEY(15),
#endif
};

INLINE vec_randoms vec_randoms_start(const sherdi_rounding *how)
{
    vec_bits first = vec_set_bits(sherdi_mix_key(how->first_index));

    return (vec_randoms){.keys = VEC(add_epi32)(first, vec_load_bits(LANE_KEYS)),
                         .step = vec_set_bits(LANES * sherdi_mix_key(1)),
                         .seed = vec_set_bits(how->seed)};
}

/* sherdi_random_mix */
INLINE vec_bits vec_random_mix(vec_bits x)
{
    x = x ^ VEC(srli_epi32)(x, 16);
    x = VEC(mullo_epi32)(x, vec_set_bits(0x7feb352du));
    x = x ^ VEC(srli_epi32)(x, 15);
    x = VEC(mullo_epi32)(x, vec_set_bits(0x846ca68bu));
    return x ^ VEC(srli_epi32)(x, 16);
}

INLINE vec_bits vec_randoms_next(vec_randoms *randoms)
{
    vec_bits bits = vec_random_mix(randoms->keys ^ randoms->seed);

    randoms->keys = VEC(add_epi32)(randoms->keys, randoms->step);
    return bits;
}

/* ----------------------------------------------------------------- bf16 -- */

/* Parts with ties read as if they had none. */
INLINE void chunk_decode_bf16(float *out, const uint16_t *at, vec_bits mask)
{
    for (size_t i = 0; i < TILE_ELEMS; i += LANES) {
        vec_store(out + i, (vec_f32)((vec_bits)vec_load_bf16(at + i) & mask));
    }
}

/* The sums whose upper halves are the rounded values. */
INLINE vec_bits bf16_sums_of(vec_f32 x, vec_randoms *randoms, int is_random)
{
    vec_f32 canonical = vec_canonical(x);

    if (!is_random) {
        return bf16_sums(canonical);
    }
    return VEC(add_epi32)((vec_bits)canonical, VEC(srli_epi32)(vec_randoms_next(randoms), 16));
}

INLINE void chunk_encode_bf16(uint16_t *at, const float *x, vec_randoms *randoms, int is_random)
{
    for (size_t i = 0; i < TILE_ELEMS; i += 2 * LANES) {
        vec_bits a = bf16_sums_of(vec_load(x + i), randoms, is_random);
        vec_bits b = bf16_sums_of(vec_load(x + i + LANES), randoms, is_random);

        vec_store_bits(at + i, vec_pack_upper(a, b));
    }
}

/* ------------------------------------------------------------------ f32 -- */

INLINE void chunk_decode_f32(float *out, const float *at, vec_bits mask)
{
    for (size_t i = 0; i < TILE_ELEMS; i += LANES) {
        vec_store_bits(out + i, vec_load_bits(at + i) & mask);
    }
}

/* --------------------------------------------------------------- beside -- */

/* Whether there was no tie. */
INLINE int chunk_decode_beside(float *out, const uint16_t *param, const int16_t *rest)
{
    const vec_bits tie  = VEC(set1_epi32)(SHERDI_BESIDE_TIE);
    vec_flags      ties = vec_equal(tie, VEC(set1_epi32)(0));

    for (size_t i = 0; i < TILE_ELEMS; i += LANES) {
        vec_bits less = VEC(cvtepi16_epi32)(vec_load_half((const uint16_t *)rest + i));

        vec_store_bits(out + i, VEC(add_epi32)((vec_bits)vec_load_bf16(param + i), less));
        ties |= vec_equal(less, tie);
    }
    return !vec_flags_any(ties);
}

INLINE int chunk_encode_beside(uint16_t *param, int16_t *rest, const float *x)
{
    const vec_bits upper = vec_set_bits(0xffff0000u);
    const vec_bits tie   = vec_set_bits(0x80000000u);
    vec_flags      ties  = vec_equal(tie, VEC(set1_epi32)(0));

    for (size_t i = 0; i < TILE_ELEMS; i += 2 * LANES) {
        vec_bits a      = (vec_bits)vec_canonical(vec_load(x + i));
        vec_bits b      = (vec_bits)vec_canonical(vec_load(x + i + LANES));
        vec_bits a_sums = bf16_sums((vec_f32)a);
        vec_bits b_sums = bf16_sums((vec_f32)b);

        a = VEC(sub_epi32)(a, a_sums & upper);
        b = VEC(sub_epi32)(b, b_sums & upper);
        vec_store_bits(param + i, vec_pack_upper(a_sums, b_sums));
        vec_store_bits(rest + i, vec_pack_lower(a, b));
        ties |= vec_equal(VEC(slli_epi32)(a, 16), tie) | vec_equal(VEC(slli_epi32)(b, 16), tie);
    }
    return !vec_flags_any(ties);
}

/* ------------------------------------------------------------------ fp8 -- */

INLINE vec_f32 vec_fp8_magnitude(vec_bits codes, uint32_t bias)
{
    vec_bits fraction = VEC(slli_epi32)(codes, SHERDI_FP8_DROPPED);
    vec_bits offset   = vec_set_bits((bias + 1) << 23);
    vec_f32  small    = (vec_f32)VEC(add_epi32)(fraction, offset) - (vec_f32)offset;
    vec_bits normal   = VEC(add_epi32)(fraction, vec_set_bits(bias << 23));

    return vec_choose(vec_less(codes, vec_set_bits(8)), small, (vec_f32)normal);
}

INLINE void chunk_decode_fp8(float *out, const uint8_t *codes, float scale, int is_signed)
{
    for (size_t i = 0; i < TILE_ELEMS; i += LANES) {
        vec_bits code = vec_load_bytes(codes + i);
        vec_f32  x;

        if (is_signed) {
            x = vec_fp8_magnitude(code & vec_set_bits(0x7f), SHERDI_FP8_BIAS) * vec_set(scale);
            x = (vec_f32)((vec_bits)x | VEC(slli_epi32)(code & vec_set_bits(0x80), 24));
        } else {
            x = vec_fp8_magnitude(code, SHERDI_UFP8_BIAS) * vec_set(scale);
        }
        vec_store(out + i, vec_canonical(x));
    }
}

INLINE uint32_t chunk_magnitude(const float *x)
{
    vec_bits most = VEC(set1_epi32)(0);
    uint32_t lanes[LANES];
    uint32_t result = 0;

    for (size_t i = 0; i < TILE_ELEMS; i += LANES) {
        most = VEC(max_epu32)(most, vec_load_bits(x + i) & vec_set_bits(0x7fffffffu));
    }
    vec_store_bits(lanes, most);
    for (size_t i = 0; i < LANES; i++) {
        result = lanes[i] > result ? lanes[i] : result;
    }
    return result;
}

/* Codes, without sign, of magnitudes from 0 to 1. */
INLINE vec_bits vec_fp8_codes(vec_f32 magnitude, uint32_t bias, vec_randoms *randoms, int is_random)
{
    vec_f32   smallest = (vec_f32)vec_set_bits((bias + 1) << 23);
    vec_flags is_small = vec_less((vec_bits)magnitude, (vec_bits)smallest);
    vec_bits  wide     = (vec_bits)vec_choose(is_small, magnitude + smallest, magnitude);
    vec_bits  less     = (vec_bits)vec_choose(is_small, (vec_f32)vec_set_bits((bias + 1) << 3),
                                              (vec_f32)vec_set_bits(bias << 3));
    vec_bits  up;

    if (is_random) {
        up = VEC(srli_epi32)(vec_randoms_next(randoms), 32 - SHERDI_FP8_DROPPED);
    } else {
        up = VEC(add_epi32)(VEC(srli_epi32)(wide, SHERDI_FP8_DROPPED) & vec_set_bits(1),
                            vec_set_bits((1u << (SHERDI_FP8_DROPPED - 1)) - 1));
    }
    return VEC(sub_epi32)(VEC(srli_epi32)(VEC(add_epi32)(wide, up), SHERDI_FP8_DROPPED), less);
}

/* A chunk with a NaN or an Inf has no inverse, and codes of 0. */
INLINE void chunk_encode_fp8(uint8_t *codes, const float *x, float inverse, int is_signed,
                             vec_randoms *randoms, int is_random)
{
    vec_bits kept = vec_set_bits(inverse > 0 ? 0x7fffffffu : 0);

    for (size_t i = 0; i < TILE_ELEMS; i += LANES) {
        vec_bits bits      = vec_load_bits(x + i);
        vec_f32  magnitude = (vec_f32)(bits & kept) * vec_set(inverse);
        vec_bits code;

        if (is_signed) {
            code = vec_fp8_codes(magnitude, SHERDI_FP8_BIAS, randoms, is_random);
            code = VEC(min_epu32)(code, vec_set_bits(127)) |
                   (VEC(srli_epi32)(bits, 24) & vec_set_bits(0x80));
        } else { /* what is not zero does not become zero */
            code = vec_fp8_codes(magnitude, SHERDI_UFP8_BIAS, randoms, is_random);
            code = VEC(max_epu32)(VEC(min_epu32)(code, vec_set_bits(255)),
                                  VEC(min_epu32)(bits & kept, vec_set_bits(1)));
        }
        vec_store_bytes(codes + i, code);
    }
}

/* --------------------------------------------------------------- ranges -- */

/* One whole chunk; 0: there are ties, and it is to be done again. */
INLINE int chunk_decode(float *out, const sherdi_encoded *part, size_t first)
{
    void    *at   = sherdi_encoded_at(part->data, part->encoding, first);
    uint32_t mask = part->has_ties ? 0x7fffffffu : 0xffffffffu;
    float    scale;

    switch (part->encoding) {
    case SHERDI_ENCODING_BF16:
        chunk_decode_bf16(out, at, vec_set_bits(mask));
        return 1;
    case SHERDI_ENCODING_BESIDE:
    case SHERDI_ENCODING_BESIDE_PLANE:
        return chunk_decode_beside(out, part->param + first, at);
    case SHERDI_ENCODING_FP8:
        memcpy(&scale, (char *)at + TILE_ELEMS, sizeof(scale));
        chunk_decode_fp8(out, at, scale, 1);
        return 1;
    case SHERDI_ENCODING_UFP8:
        memcpy(&scale, (char *)at + TILE_ELEMS, sizeof(scale));
        chunk_decode_fp8(out, at, scale, 0);
        return 1;
    default:
        chunk_decode_f32(out, at, vec_set_bits(mask));
        return 1;
    }
}

/* Elements up to where vectors may begin: where a chunk has something as a whole, at the next one. */
INLINE size_t chunk_head(const sherdi_encoded *part, size_t first, size_t count)
{
    int    is_whole = sherdi_encoding_chunk_bytes(part->encoding) % TILE_ELEMS != 0;
    size_t head     = is_whole ? -first % TILE_ELEMS : 0;

    return sherdi_min_size(head, count);
}

static void range_decode(float *out, const sherdi_encoded *part, size_t first, size_t count,
                         int takes)
{
    size_t done = chunk_head(part, first, count);

    sherdi_part_decode(out, part, first, done, takes);
    for (; done + TILE_ELEMS <= count; done += TILE_ELEMS) {
        if (__builtin_expect(!chunk_decode(out + done, part, first + done), 0)) {
            sherdi_part_decode(out + done, part, first + done, TILE_ELEMS, takes);
        }
    }
    sherdi_part_decode(out + done, part, first + done, count - done, takes);
}

INLINE void chunk_store_fp8(unsigned char *at, const float *x, int is_signed, vec_randoms *randoms,
                            int is_random)
{
    float scale = sherdi_fp8_scale(chunk_magnitude(x));

    chunk_encode_fp8(at, x, sherdi_fp8_inverse(scale), is_signed, randoms, is_random);
    memcpy(at + TILE_ELEMS, &scale, sizeof(scale));
}

/* As chunk_decode. Where another master has its ties in these bits they stay: that is done element by element. */
INLINE int chunk_encode(const sherdi_encoded *part, size_t first, const float *x,
                        vec_randoms *randoms, int is_random)
{
    void          *at      = sherdi_encoded_at(part->data, part->encoding, first);
    const uint64_t no_ties = 0;

    switch (part->encoding) {
    case SHERDI_ENCODING_BF16:
        chunk_encode_bf16(at, x, randoms, is_random);
        return 1;
    case SHERDI_ENCODING_BESIDE:
        return chunk_encode_beside(part->param + first, at, x);
    case SHERDI_ENCODING_BESIDE_PLANE:
        memcpy((char *)at + SHERDI_CHUNK_BF16_BYTES, &no_ties, sizeof(no_ties));
        return chunk_encode_beside(part->param + first, at, x);
    case SHERDI_ENCODING_FP8:
        chunk_store_fp8(at, x, 1, randoms, is_random);
        return 1;
    case SHERDI_ENCODING_UFP8:
        chunk_store_fp8(at, x, 0, randoms, is_random);
        return 1;
    default:
        chunk_decode_f32(at, x, vec_set_bits(0xffffffffu));
        return 1;
    }
}

INLINE size_t chunks_encode(const sherdi_encoded *part, size_t first, size_t count, const float *x,
                            const sherdi_rounding *how, int is_random)
{
    vec_randoms randoms = vec_randoms_start(how);
    size_t      done    = 0;

    for (; done + TILE_ELEMS <= count; done += TILE_ELEMS) {
        if (__builtin_expect(!chunk_encode(part, first + done, x + done, &randoms, is_random), 0)) {
            sherdi_part_encode(part, first + done, TILE_ELEMS, x + done, how);
        }
    }
    return done;
}

static void range_encode(const sherdi_encoded *part, size_t first, size_t count, const float *x,
                         const sherdi_rounding *how)
{
    sherdi_rounding rest = *how;
    size_t          done = 0;

    if (!part->has_ties && chunk_head(part, first, count) == 0 &&
        !(how->is_random && (uint32_t)how->first_index + count > UINT32_MAX)) {
        done = how->is_random ? chunks_encode(part, first, count, x, how, 1)
                              : chunks_encode(part, first, count, x, how, 0);
    }
    rest.first_index += done;
    sherdi_part_encode(part, first + done, count - done, x + done, &rest);
}

/* --------------------------------------------------------------- updates -- */

/* A tile of an encoded state between its loads and its stores. */
typedef struct encoded_tile_values {
    float parts[SHERDI_UPDATE_MOST_PARTS][TILE_ELEMS] __attribute__((aligned(CACHE_LINE_BYTES)));
} encoded_tile_values;

INLINE int part_is_decoded(const sherdi_update_range *range, int part)
{
    return range->encoded[part].encoding != SHERDI_ENCODING_F32;
}

INLINE int master_is_beside(const sherdi_update_range *range)
{
    return range->encoded[0].encoding == SHERDI_ENCODING_BESIDE ||
           range->encoded[0].encoding == SHERDI_ENCODING_BESIDE_PLANE;
}

/* One copy of each for all updates: a call costs less than what the first-level cache of code would. */
static __attribute__((noinline)) void tile_decode(float *out, const sherdi_encoded *part,
                                                  size_t first)
{
    if (__builtin_expect(!chunk_decode(out, part, first), 0)) {
        sherdi_part_decode(out, part, first, TILE_ELEMS, 1);
    }
}

static __attribute__((noinline)) void tile_encode(const sherdi_encoded *part, size_t first,
                                                  const float *x, uint64_t index, uint32_t seed)
{
    const sherdi_rounding how     = {.is_random = 1, .seed = seed, .first_index = index};
    vec_randoms           randoms = vec_randoms_start(&how);

    if (__builtin_expect(!chunk_encode(part, first, x, &randoms, 1), 0)) {
        sherdi_part_encode(part, first, TILE_ELEMS, x, &how);
    }
}

/* A tile from `first` on as fp32: parts that are encoded are in `values`, the others where they are. Field by field: a
 * struct that is copied as a whole just after its fields were written waits for them. */
INLINE void encoded_tile_open(sherdi_update_range *tile, const sherdi_update_range *range,
                              int num_parts, size_t first, encoded_tile_values *values)
{
    size_t at = range->offset_elems + first;

    tile->grad       = sherdi_elem_at(range->grad, range->grad_dtype, first);
    tile->grad_dtype = range->grad_dtype;
    for (int part = 0; part < num_parts; part++) { /* the master first: it takes its ties */
        if (part_is_decoded(range, part)) {
            tile->parts[part] = values->parts[part];
            tile_decode(values->parts[part], &range->encoded[part], at);
        } else {
            tile->parts[part] = (float *)range->encoded[part].data + at;
        }
    }
}

/* A master that rounds is what it is read as again. */
INLINE void encoded_tile_close(const sherdi_update_range *range, const sherdi_update_range *tile,
                               int num_parts, size_t first, const uint32_t *seeds, vec_mixer *mixer)
{
    uint64_t index = range->first_index + first;
    size_t   at    = range->offset_elems + first;

    if (__builtin_expect(tile_has_nan(tile->master), 0)) {
        update_tile_canonical(tile, num_parts, 0);
    }
    for (int part = num_parts - 1; part >= 0; part--) { /* the master last: it puts its ties */
        if (part_is_decoded(range, part)) {
            tile_encode(&range->encoded[part], at, tile->parts[part], index, seeds[part]);
        }
    }
    if (range->encoded[0].encoding == SHERDI_ENCODING_BF16) {
        tile_decode(tile->master, &range->encoded[0], at);
    }
    for (size_t i = 0; i < TILE_ELEMS; i += 2 * LANES) {
        vec_f32 a = vec_load(tile->master + i);
        vec_f32 b = vec_load(tile->master + i + LANES);

        vec_mixer_add(mixer, a);
        vec_mixer_add(mixer, b);
        if (range->param != NULL && !master_is_beside(range)) {
            vec_store_pair(range->param, range->param_dtype, first + i, a, b, range->is_streaming);
        }
    }
}

INLINE void encoded_prefetch(const sherdi_update_range *range, int num_parts, size_t first,
                             size_t ahead_bytes)
{
    for (int part = 0; part < num_parts; part++) {
        const sherdi_encoded *from = &range->encoded[part];
        const char *at = sherdi_encoded_at(from->data, from->encoding, range->offset_elems + first);
        size_t      bytes = sherdi_encoding_chunk_bytes(from->encoding);

        for (size_t i = 0; i < bytes; i += CACHE_LINE_BYTES) {
            __builtin_prefetch(at + ahead_bytes + i, 0, 3);
        }
    }
    tile_prefetch(range->grad, range->grad_dtype, first, ahead_bytes);
    if (master_is_beside(range)) {
        tile_prefetch(range->param, SHERD_BF16, first, ahead_bytes);
    }
}

/* As update_tiles, of whole chunks. A tile is closed while the roots and quotients of the next are on their way. */
INLINE void update_encoded(const sherdi_update_range *range, const update_rule *rule,
                           vec_mixer *mixer)
{
    size_t              ahead_bytes = sherdi_cpu_in_place_ahead_bytes();
    encoded_tile_values values[2];
    sherdi_update_range tiles[2];
    uint32_t            seeds[SHERDI_UPDATE_MOST_PARTS];
    sherdi_update_range own = *range;

    own.is_streaming = own.is_streaming && is_line_aligned(own.param);
    for (int part = 0; part < rule->num_parts; part++) {
        seeds[part] = sherdi_random_seed(own.step, (unsigned)part);
    }
    for (size_t first = 0; first < own.count_elems; first += TILE_ELEMS) {
        size_t turn = first / TILE_ELEMS % 2;

        encoded_prefetch(&own, rule->num_parts, first, ahead_bytes);
        encoded_tile_open(&tiles[turn], &own, rule->num_parts, first, &values[turn]);
#pragma GCC unroll 8
        for (size_t i = 0; i < TILE_ELEMS; i += UPDATE_VECS * LANES) {
            update_step(&tiles[turn], rule, i);
        }
        if (first > 0) {
            encoded_tile_close(&own, &tiles[!turn], rule->num_parts, first - TILE_ELEMS, seeds,
                               mixer);
        }
    }
    encoded_tile_close(&own, &tiles[(own.count_elems / TILE_ELEMS - 1) % 2], rule->num_parts,
                       own.count_elems - TILE_ELEMS, seeds, mixer);
}
