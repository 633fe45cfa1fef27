/* range_decode and range_encode over vectors, a chunk of 64 elements in registers at a time. What is no whole chunk, and
 * chunks with ties, go through encoded.h. avx2.c and avx512.c define beside what vector.h asks for:
 *   vec_less                    flags of 32-bit elements, signed
 *   vec_flags16, vec_equal16, vec_no_flags16, vec_flags16_any  of 16-bit elements
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
    vec_bits keys, step, seed, multipliers[2];
    int      is_turned;
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

    return (vec_randoms){.keys        = VEC(add_epi32)(first, vec_load_bits(LANE_KEYS)),
                         .step        = vec_opaque(vec_set_bits(LANES * sherdi_mix_key(1))),
                         .seed        = vec_set_bits(how->random.seed),
                         .multipliers = {vec_opaque(vec_set_bits(0x7feb352du)),
                                         vec_opaque(vec_set_bits(0x846ca68bu))},
                         .is_turned   = how->random.is_turned};
}

/* sherdi_random_mix of the next keys but its last step, which does not touch the upper half. */
INLINE vec_bits vec_randoms_upper(vec_randoms *randoms)
{
    vec_bits x = randoms->keys ^ randoms->seed;

    randoms->keys = VEC(add_epi32)(randoms->keys, randoms->step);
    x             = x ^ VEC(srli_epi32)(x, 16);
    x             = VEC(mullo_epi32)(x, randoms->multipliers[0]);
    x             = x ^ VEC(srli_epi32)(x, 15);
    return VEC(mullo_epi32)(x, randoms->multipliers[1]);
}

INLINE vec_bits vec_randoms_next(vec_randoms *randoms)
{
    vec_bits bits = vec_randoms_upper(randoms);

    bits = bits ^ VEC(srli_epi32)(bits, 16);
    if (randoms->is_turned) {
        bits = VEC(slli_epi32)(bits, 16) | VEC(srli_epi32)(bits, 16);
    }
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

/* As if there were no ties. */
INLINE vec_f32 vec_load_beside(const uint16_t *param, const int16_t *rest)
{
    vec_bits less = VEC(cvtepi16_epi32)(vec_load_half((const uint16_t *)rest));

    return (vec_f32)VEC(add_epi32)((vec_bits)vec_load_bf16(param), less);
}

INLINE int chunk_has_ties(const int16_t *rest)
{
    const vec_bits tie  = VEC(set1_epi16)(SHERDI_BESIDE_TIE);
    vec_flags16    ties = vec_no_flags16();

    for (size_t i = 0; i < TILE_ELEMS; i += 2 * LANES) {
        ties |= vec_equal16(vec_load_bits(rest + i), tie);
    }
    return vec_flags16_any(ties);
}

/* Whether there was no tie. */
INLINE int chunk_decode_beside(float *out, const uint16_t *param, const int16_t *rest)
{
    for (size_t i = 0; i < TILE_ELEMS; i += LANES) {
        vec_store(out + i, vec_load_beside(param + i, rest + i));
    }
    return !chunk_has_ties(rest);
}

/* Two registers, NaN as vec_canonical leaves it; returns where ties are. The parameter's lower half is zero, so the lower
 * half of the difference is the master's. As bf16_sums the upper halves go up by 1 where the lower ones are above half a unit. */
INLINE vec_flags16 encode_beside(uint16_t *param, int16_t *rest, vec_f32 a, vec_f32 b)
{
    const vec_bits one    = VEC(set1_epi16)(1);
    vec_bits       rests  = vec_pack_lower((vec_bits)a, (vec_bits)b);
    vec_bits       params = vec_pack_upper((vec_bits)a, (vec_bits)b);
    vec_bits above = VEC(subs_epu16)(rests | (params & one), VEC(set1_epi16)(SHERDI_BESIDE_TIE));

    vec_store_bits(param, VEC(add_epi16)(params, VEC(min_epu16)(above, one)));
    vec_store_bits(rest, rests);
    return vec_equal16(rests, VEC(set1_epi16)(SHERDI_BESIDE_TIE));
}

INLINE int chunk_encode_beside(uint16_t *param, int16_t *rest, const float *x)
{
    vec_flags16 ties = vec_no_flags16();

    for (size_t i = 0; i < TILE_ELEMS; i += 2 * LANES) {
        ties |= encode_beside(param + i, rest + i, vec_canonical(vec_load(x + i)),
                              vec_canonical(vec_load(x + i + LANES)));
    }
    return !vec_flags16_any(ties);
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
    case SHERDI_ENCODING_BESIDE: /* what is written over old values has their ties to clear */
        return is_random && chunk_encode_beside(part->param + first, at, x);
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

/* One copy of each for all updates. */
static __attribute__((noinline)) void tile_decode(float *out, const sherdi_encoded *part,
                                                  size_t first)
{
    if (__builtin_expect(!chunk_decode(out, part, first), 0)) {
        sherdi_part_decode(out, part, first, TILE_ELEMS, 1);
    }
}

static __attribute__((noinline)) void tile_encode(const sherdi_encoded *part, size_t first,
                                                  const float *x, uint64_t index,
                                                  sherdi_random random)
{
    const sherdi_rounding how     = {.is_random = 1, .random = random, .first_index = index};
    vec_randoms           randoms = vec_randoms_start(&how);

    if (__builtin_expect(!chunk_encode(part, first, x, &randoms, 1), 0)) {
        sherdi_part_encode(part, first, TILE_ELEMS, x, &how);
    }
}

/* How a formula's loads and stores find a part of a tile. */
typedef enum tile_form {
    TILE_F32,
    TILE_BF16,
    TILE_BESIDE, /* read alone: a new master goes through memory, for its tile is closed later */
} tile_form;

typedef struct encoded_part {
    const sherdi_encoded *from;
    int                   is_buffered; /* passes through memory as fp32 */
    size_t                chunk_bytes;
    unsigned char        *start; /* of the range */
    unsigned char        *at;    /* of the tile that is read */
} encoded_part;

/* A range of an encoded state. What is buffered has two buffers in turn: of the tile that is read, and of the one that is
 * closed while roots and quotients of the other are on their way. */
typedef struct encoded_loop {
    sherdi_update_range range;
    encoded_part        parts[SHERDI_UPDATE_MOST_PARTS];
    sherdi_random       randoms[SHERDI_UPDATE_MOST_PARTS];
    int                 is_beside;
    tile_form           moments; /* of those that are not buffered */
    float               buffers[2][SHERDI_UPDATE_MOST_PARTS][TILE_ELEMS]
        __attribute__((aligned(CACHE_LINE_BYTES)));
} encoded_loop;

/* A tile between its loads and its stores. */
typedef struct encoded_step_tile {
    const void     *grad;
    const uint16_t *param;
    void           *parts[SHERDI_UPDATE_MOST_PARTS]; /* in their forms */
    float          *master;                          /* the new one */
    int             is_beside;                       /* parts[0] is what lies beside param */
} encoded_step_tile;

INLINE int encoding_is_beside(sherdi_encoding encoding)
{
    return encoding == SHERDI_ENCODING_BESIDE || encoding == SHERDI_ENCODING_BESIDE_PLANE;
}

/* Moments are bf16 in registers where all of them are, two at most: one hash has bits for two. */
INLINE tile_form encoded_moments(const sherdi_update_range *range, int num_parts)
{
    for (int part = 1; part < num_parts; part++) {
        if (range->encoded[part].encoding != SHERDI_ENCODING_BF16) {
            return TILE_F32;
        }
    }
    return num_parts <= 3 ? TILE_BF16 : TILE_F32;
}

INLINE void encoded_loop_init(encoded_loop *loop, const sherdi_update_range *range, int num_parts)
{
    loop->range              = *range;
    loop->range.is_streaming = range->is_streaming && is_line_aligned(range->param);
    loop->is_beside          = encoding_is_beside(range->encoded[0].encoding);
    loop->moments            = encoded_moments(range, num_parts);
    for (int index = 0; index < num_parts; index++) {
        const sherdi_encoded *from     = &range->encoded[index];
        encoded_part         *part     = &loop->parts[index];
        tile_form             unpacked = index == 0 ? TILE_F32 : loop->moments;

        part->from        = from;
        part->chunk_bytes = sherdi_encoding_chunk_bytes(from->encoding);
        part->start       = sherdi_encoded_at(from->data, from->encoding, range->offset_elems);
        part->at          = part->start;
        part->is_buffered = from->encoding >= SHERDI_ENCODING_FP8 ||
                            (from->encoding == SHERDI_ENCODING_BF16 && unpacked == TILE_F32);
        loop->randoms[index] = sherdi_random_of(range->step, (unsigned)index);
    }
}

INLINE void encoded_prefetch(const encoded_loop *loop, int num_parts, size_t first)
{
    size_t ahead_bytes = loop->range.ahead_bytes;

    for (int i = 0; i < num_parts; i++) {
        const unsigned char *at = loop->parts[i].at + ahead_bytes;

        __builtin_prefetch(at, 0, 3);
        __builtin_prefetch(at + CACHE_LINE_BYTES, 0, 3);
        if (loop->parts[i].chunk_bytes > SHERDI_CHUNK_PLANE_BYTES) {
            __builtin_prefetch(at + 2 * CACHE_LINE_BYTES, 0, 3);
            __builtin_prefetch(at + 3 * CACHE_LINE_BYTES, 0, 3);
        }
    }
    if (loop->range.grad_dtype == SHERD_F32) {
        tile_prefetch(loop->range.grad, SHERD_F32, first, ahead_bytes);
    } else {
        tile_prefetch(loop->range.grad, SHERD_BF16, first, ahead_bytes);
    }
    if (loop->is_beside) {
        tile_prefetch(loop->range.param, SHERD_BF16, first, ahead_bytes);
    }
}

/* The master first: it takes its ties out of another part. */
INLINE void encoded_open(encoded_step_tile *tile, encoded_loop *loop, int num_parts, size_t first,
                         float (*buffers)[TILE_ELEMS])
{
    const sherdi_update_range *range = &loop->range;

    tile->grad  = sherdi_elem_at(range->grad, range->grad_dtype, first);
    tile->param = (const uint16_t *)range->param + first;
    tile->is_beside =
        loop->is_beside && !chunk_has_ties((const int16_t *)(void *)loop->parts[0].at);
    for (int index = 0; index < num_parts; index++) {
        encoded_part *part = &loop->parts[index];

        tile->parts[index] = part->at;
        if (__builtin_expect(part->is_buffered, 0) ||
            (index == 0 && loop->is_beside && !tile->is_beside)) {
            tile_decode(buffers[index], part->from, range->offset_elems + first);
            tile->parts[index] = buffers[index];
        }
        part->at += part->chunk_bytes;
    }
    tile->master = loop->is_beside ? buffers[0] : (float *)tile->parts[0];
}

INLINE void vecs_load_form(vec_f32 *x, const void *at, tile_form form, size_t i)
{
    if (form == TILE_BF16) {
        vecs_load_bf16(x, (const uint16_t *)at + i);
        return;
    }
    for (size_t k = 0; k < UPDATE_VECS; k++) {
        x[k] = vec_load((const float *)at + i + k * LANES);
    }
}

INLINE void vecs_load_beside(vec_f32 *x, const uint16_t *param, const int16_t *rest)
{
    vecs_load_bf16(x, param);
    for (size_t k = 0; k < UPDATE_VECS; k++) {
        vec_half half = vec_load_half((const uint16_t *)rest + k * LANES);

        x[k] = (vec_f32)VEC(add_epi32)((vec_bits)x[k], VEC(cvtepi16_epi32)(half));
    }
}

/* The sums whose upper halves are moments, rounded at random by the two halves of sherdi_random_bits. */
INLINE vec_bits tile_bf16_sums(vec_f32 x, vec_bits hash, int part)
{
    vec_bits upper = VEC(srli_epi32)(hash, 16);

    if (part == 1) {
        return VEC(add_epi32)((vec_bits)x, upper);
    }
    return VEC(add_epi32)((vec_bits)x, (hash ^ upper) & vec_set_bits(0xffff));
}

INLINE void encoded_store_bf16(const encoded_step_tile *tile, const update_vecs *vecs,
                               int num_parts, vec_randoms *randoms, size_t i)
{
    vec_bits hashes[UPDATE_VECS];

    for (size_t k = 0; k < UPDATE_VECS; k++) {
        hashes[k] = vec_randoms_upper(randoms);
    }
    for (int part = 1; part < num_parts; part++) {
        vec_bits sums[UPDATE_VECS];

        for (size_t k = 0; k < UPDATE_VECS; k++) {
            sums[k] = tile_bf16_sums(vecs->x[part][k], hashes[k], part);
        }
        vecs_store_upper((uint16_t *)tile->parts[part] + i, sums);
    }
}

INLINE void encoded_store_moments(const encoded_step_tile *tile, const update_vecs *vecs,
                                  int num_parts, tile_form moments, vec_randoms *randoms, size_t i)
{
    if (moments == TILE_BF16) {
        encoded_store_bf16(tile, vecs, num_parts, randoms, i);
        return;
    }
    for (int part = 1; part < num_parts; part++) {
        for (size_t k = 0; k < UPDATE_VECS; k++) {
            vec_store((float *)tile->parts[part] + i + k * LANES, vecs->x[part][k]);
        }
    }
}

/* The step of a tile's elements from `i` on. Where the master is NaN, NaN becomes the one that is stored in all parts. */
INLINE void encoded_step(const encoded_step_tile *tile, sherd_dtype grad_dtype,
                         const update_rule *rule, tile_form master, tile_form moments,
                         vec_randoms *randoms, size_t i)
{
    update_vecs vecs;
    vec_flags   is_nan;

    vecs_load_as(vecs.g, tile->grad, grad_dtype, i);
    for (int part = rule->num_parts - 1; part > 0; part--) {
        vecs_load_form(vecs.x[part], tile->parts[part], moments, i);
    }
    if (master == TILE_BESIDE) {
        vecs_load_beside(vecs.x[0], tile->param + i, (const int16_t *)tile->parts[0] + i);
    } else {
        vecs_load_form(vecs.x[0], tile->parts[0], TILE_F32, i);
    }
    update_formula(&vecs, rule);
    is_nan = vec_unordered(vecs.x[0][0], vecs.x[0][UPDATE_VECS - 1]);
    if (__builtin_expect(vec_flags_any(is_nan), 0)) {
        for (int part = 0; part < rule->num_parts; part++) {
            for (size_t k = 0; k < UPDATE_VECS; k++) {
                vecs.x[part][k] = vec_canonical(vecs.x[part][k]);
            }
        }
    }
    encoded_store_moments(tile, &vecs, rule->num_parts, moments, randoms, i);
    for (size_t k = 0; k < UPDATE_VECS; k++) {
        vec_store(tile->master + i + k * LANES, vecs.x[0][k]);
    }
}

/* One of the forms that are known where the loop is compiled. */
INLINE void encoded_steps_as(const encoded_step_tile *tile, const encoded_loop *loop,
                             const update_rule *rule, tile_form master, tile_form moments,
                             vec_randoms *randoms)
{
#pragma GCC unroll 1
    for (size_t i = 0; i < TILE_ELEMS; i += UPDATE_VECS * LANES) {
        encoded_step(tile, loop->range.grad_dtype, rule, master, moments, randoms, i);
    }
}

INLINE void encoded_steps(const encoded_step_tile *tile, const encoded_loop *loop,
                          const update_rule *rule, vec_randoms *randoms)
{
    if (rule->num_parts > 1 && rule->num_parts <= 3 && loop->moments == TILE_BF16) {
        if (tile->is_beside) {
            encoded_steps_as(tile, loop, rule, TILE_BESIDE, TILE_BF16, randoms);
        } else {
            encoded_steps_as(tile, loop, rule, TILE_F32, TILE_BF16, randoms);
        }
    } else if (tile->is_beside) {
        encoded_steps_as(tile, loop, rule, TILE_BESIDE, TILE_F32, randoms);
    } else {
        encoded_steps_as(tile, loop, rule, TILE_F32, TILE_F32, randoms);
    }
}

/* A master beside its parameter; after the part that its ties are put into. */
INLINE void encoded_close_beside(const encoded_loop *loop, size_t first, const float *master,
                                 vec_mixer *mixer)
{
    const encoded_part *part    = &loop->parts[0];
    unsigned char      *rest    = part->start + first / TILE_ELEMS * part->chunk_bytes;
    uint16_t           *param   = (uint16_t *)loop->range.param + first;
    const uint64_t      no_ties = 0;
    vec_flags16         ties    = vec_no_flags16();

    for (size_t i = 0; i < TILE_ELEMS; i += 2 * LANES) {
        vec_f32 a = vec_load(master + i);
        vec_f32 b = vec_load(master + i + LANES);

        vec_mixer_add(mixer, a);
        vec_mixer_add(mixer, b);
        ties |= encode_beside(param + i, (int16_t *)(void *)rest + i, a, b);
    }
    if (part->chunk_bytes == SHERDI_CHUNK_PLANE_BYTES) {
        memcpy(rest + SHERDI_CHUNK_BF16_BYTES, &no_ties, sizeof(no_ties));
    }
    if (__builtin_expect(vec_flags16_any(ties), 0)) {
        tile_encode(part->from, loop->range.offset_elems + first, master, 0, loop->randoms[0]);
    }
}

/* The new masters of two registers as they are stored: what rounds is what it is read as again. */
INLINE void master_round(vec_f32 *a, vec_f32 *b, uint16_t *at, vec_randoms *randoms)
{
    vec_bits upper = vec_set_bits(0xffff0000u);
    vec_bits low   = bf16_sums_of(*a, randoms, 1);
    vec_bits high  = bf16_sums_of(*b, randoms, 1);

    vec_store_bits(at, vec_pack_upper(low, high));
    *a = (vec_f32)(low & upper);
    *b = (vec_f32)(high & upper);
}

INLINE void encoded_close_master(const encoded_loop *loop, size_t first, const float *master,
                                 vec_mixer *mixer)
{
    const sherdi_update_range *range = &loop->range;
    const encoded_part        *part  = &loop->parts[0];
    uint16_t *rounded = (uint16_t *)(void *)(part->start + first / TILE_ELEMS * part->chunk_bytes);
    const sherdi_rounding how     = {.random      = loop->randoms[0],
                                     .first_index = range->first_index + first};
    vec_randoms           randoms = vec_randoms_start(&how);

    for (size_t i = 0; i < TILE_ELEMS; i += 2 * LANES) {
        vec_f32 a = vec_load(master + i);
        vec_f32 b = vec_load(master + i + LANES);

        if (part->is_buffered) {
            master_round(&a, &b, rounded + i, &randoms);
        }
        vec_mixer_add(mixer, a);
        vec_mixer_add(mixer, b);
        if (range->param != NULL) {
            vec_store_pair(range->param, range->param_dtype, first + i, a, b, range->is_streaming);
        }
    }
}

INLINE void encoded_close(const encoded_loop *loop, int num_parts, size_t first,
                          float (*buffers)[TILE_ELEMS], const float *master, vec_mixer *mixer)
{
    for (int index = num_parts - 1; index > 0; index--) {
        const encoded_part *part = &loop->parts[index];

        if (part->is_buffered) {
            tile_encode(part->from, loop->range.offset_elems + first, buffers[index],
                        loop->range.first_index + first, loop->randoms[index]);
        }
    }
    if (loop->is_beside) {
        encoded_close_beside(loop, first, master, mixer);
    } else {
        encoded_close_master(loop, first, master, mixer);
    }
}

/* As update_tiles, of whole chunks. */
INLINE void update_encoded(const sherdi_update_range *range, const update_rule *rule,
                           vec_mixer *mixer)
{
    sherdi_rounding start   = {.random      = sherdi_random_of(range->step, 1),
                               .first_index = range->first_index};
    vec_randoms     randoms = vec_randoms_start(&start);
    float          *closing = NULL; /* the new master of the tile before */
    size_t          count   = range->count_elems;
    encoded_loop    loop;

    encoded_loop_init(&loop, range, rule->num_parts);
    for (size_t first = 0; first < count + TILE_ELEMS; first += TILE_ELEMS) {
        size_t            turn = first / TILE_ELEMS % 2;
        encoded_step_tile tile = {.master = NULL};

        if (first < count) {
            if (loop.range.ahead_bytes > 0) {
                encoded_prefetch(&loop, rule->num_parts, first);
            }
            encoded_open(&tile, &loop, rule->num_parts, first, loop.buffers[turn]);
            encoded_steps(&tile, &loop, rule, &randoms);
        }
        if (closing != NULL) {
            encoded_close(&loop, rule->num_parts, first - TILE_ELEMS, loop.buffers[!turn], closing,
                          mixer);
        }
        closing = tile.master;
    }
}
