/* range_decode, range_encode and the updates of encoded state over vectors, a chunk of 64 elements
 * at a time. Parts of chunks, and chunks with ties, go through encoded.h. For this file, avx2.c and
 * avx512.c define in addition:
 *   vec_flags16, vec_equal16, vec_no_flags16, vec_flags16_any  flags of 16-bit elements
 *   vec_pack_lower              the lower halves of a's 32-bit elements, then those of b's
 *   vec_swap_halves             exchanges the halves of each 32-bit element
 *   vec_largest                 the largest of the 32-bit elements, without sign
 *   vec_load_bytes, vec_load_signed_bytes  LANES bytes as 32-bit elements
 *   vec_pack_bytes              four registers of elements from 0 to 255 as one register of bytes
 */
#include "kernels/cpu/encoded.h"

INLINE vec_bits vec_set_bits(uint32_t x)
{
    return VEC(set1_epi32)((int)x);
}

/* --------------------------------------------------------------- random -- */

/* The keys of the next LANES elements (sherdi_random_bits). Indices do not cross a multiple of
 * 2^32. */
typedef struct vec_randoms {
    vec_bits keys, step, seed, multipliers[2];
    int      is_turned;
} vec_randoms;

/* sherdi_mix_key(0), sherdi_mix_key(1), ... */
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

/* Returns sherdi_random_mix of the next keys without its last step, which does not change the upper
 * half. */
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
    return randoms->is_turned ? vec_swap_halves(bits) : bits;
}

/* ----------------------------------------------------------------- bf16 -- */

/* `mask` removes the signs of a part that has ties. */
INLINE void chunk_decode_bf16(float *out, const uint16_t *at, vec_bits mask)
{
    for (size_t i = 0; i < TILE_ELEMS; i += LANES) {
        vec_store(out + i, (vec_f32)((vec_bits)vec_load_bf16(at + i) & mask));
    }
}

/* Returns sums whose upper halves are the rounded values. */
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

/* -------------------------------------------------------- split masters -- */

/* Loads masters as if there were no ties. */
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

/* Returns whether the chunk has no tie. */
INLINE int chunk_decode_beside(float *out, const uint16_t *param, const int16_t *rest)
{
    for (size_t i = 0; i < TILE_ELEMS; i += LANES) {
        vec_store(out + i, vec_load_beside(param + i, rest + i));
    }
    return !chunk_has_ties(rest);
}

/* Encodes two registers, with NaN as vec_canonical leaves it; returns where the ties are. The
 * parameter's lower half is zero, so the lower half of the difference is the master's. As in
 * bf16_sums, an upper half goes up by 1 where the lower half is above half a unit. */
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

/* Vectors write only chunks whose largest bits without sign are not above this. For larger
 * magnitudes, NaN and Inf, sherdi_fp8_scale gives another kind of scale. */
#define FP8_MOST_BITS (253u << 23)

/* Returns the magnitudes of codes that are shifted to a float's fraction. Each code is read both as
 * a normal number and as a denormal. The smaller of the two is the right one. */
INLINE vec_f32 vec_fp8_magnitude(vec_bits fraction, uint32_t bias)
{
    vec_f32 normal = (vec_f32)(fraction | vec_set_bits(bias << 23));
    vec_f32 small  = vec_fma(normal, vec_set(2), -(vec_f32)vec_set_bits((bias + 1) << 23));

    return VEC(min_ps)(small, normal);
}

INLINE vec_f32 vec_load_fp8(const uint8_t *codes, float scale)
{
    vec_bits code = vec_load_signed_bytes(codes);
    vec_bits fraction =
        VEC(slli_epi32)(code, SHERDI_FP8_DROPPED) & vec_set_bits(0x7fu << SHERDI_FP8_DROPPED);
    vec_f32 x = vec_fp8_magnitude(fraction, SHERDI_FP8_BIAS) * vec_set(scale);

    return (vec_f32)((vec_bits)x | (code & vec_set_bits(0x80000000u)));
}

INLINE vec_f32 vec_load_ufp8(const uint8_t *codes, float scale)
{
    vec_bits fraction = VEC(slli_epi32)(vec_load_bytes(codes), SHERDI_FP8_DROPPED);

    return vec_fp8_magnitude(fraction, SHERDI_UFP8_BIAS) * vec_set(scale);
}

/* Returns whether the chunk is not NaN. */
INLINE int chunk_decode_fp8(float *out, const unsigned char *at, int is_signed)
{
    float scale;

    memcpy(&scale, at + TILE_ELEMS, sizeof(scale));
    for (size_t i = 0; i < TILE_ELEMS; i += LANES) {
        vec_store(out + i, is_signed ? vec_load_fp8(at + i, scale) : vec_load_ufp8(at + i, scale));
    }
    return scale == scale;
}

INLINE uint32_t chunk_magnitude(const float *x)
{
    vec_bits most = VEC(set1_epi32)(0);

    for (size_t i = 0; i < TILE_ELEMS; i += LANES) {
        most = VEC(max_epu32)(most, vec_load_bits(x + i) & vec_set_bits(0x7fffffffu));
    }
    return vec_largest(most);
}

/* Returns sherdi_fp8_bits of magnitudes from 0 to 1, with `less` already subtracted. Both
 * differences are computed, and the larger one is the right one. */
INLINE vec_bits vec_fp8_bits(vec_f32 magnitude, uint32_t bias)
{
    vec_bits smallest = vec_set_bits((bias + 1) << 23);
    vec_bits normal   = VEC(sub_epi32)((vec_bits)magnitude, vec_set_bits(bias << 23));
    vec_bits small    = VEC(sub_epi32)((vec_bits)(magnitude + (vec_f32)smallest), smallest);

    return VEC(max_epi32)(normal, small);
}

/* Returns the value that is added before the lower bits are dropped. */
INLINE vec_bits vec_fp8_nearest(vec_bits wide)
{
    return VEC(add_epi32)(VEC(srli_epi32)(wide, SHERDI_FP8_DROPPED) & vec_set_bits(1),
                          vec_set_bits((1u << (SHERDI_FP8_DROPPED - 1)) - 1));
}

INLINE vec_bits vec_fp8_random(vec_bits random)
{
    return VEC(srli_epi32)(random, 32 - SHERDI_FP8_DROPPED);
}

/* Returns the codes of a register; `inverse` is that of the chunk's scale. `up` is added before
 * rounding; NULL: round to nearest. In a part that is never negative, an element that is not zero
 * does not become zero. */
INLINE vec_bits vec_fp8_codes(vec_bits bits, float inverse, int is_signed, const vec_bits *up)
{
    vec_bits positive = bits & vec_set_bits(0x7fffffffu);
    vec_bits wide     = vec_fp8_bits((vec_f32)positive * vec_set(inverse),
                                 is_signed ? SHERDI_FP8_BIAS : SHERDI_UFP8_BIAS);
    vec_bits sum      = VEC(add_epi32)(wide, up != NULL ? *up : vec_fp8_nearest(wide));
    vec_bits code     = VEC(srli_epi32)(sum, SHERDI_FP8_DROPPED);

    if (is_signed) {
        return code | (VEC(srli_epi32)(bits, 24) & vec_set_bits(0x80));
    }
    return VEC(max_epi32)(code, VEC(min_epu32)(positive, vec_set_bits(1)));
}

/* Encodes a chunk. Returns 0 if vectors cannot, and it must be done again. `ups` has an entry for
 * each register, or is NULL. */
INLINE int chunk_encode_fp8(unsigned char *at, const float *x, int is_signed, const vec_bits *ups)
{
    uint32_t magnitude = chunk_magnitude(x);
    float    scale     = sherdi_fp8_scale(magnitude);
    float    inverse   = sherdi_fp8_inverse(scale);

    for (size_t i = 0; i < TILE_VECS; i += 4) {
        vec_bits codes[4];

        for (size_t k = 0; k < 4; k++) {
            codes[k] = vec_fp8_codes(vec_load_bits(x + (i + k) * LANES), inverse, is_signed,
                                     ups != NULL ? &ups[i + k] : NULL);
        }
        vec_store_bits(at + i * LANES, vec_pack_bytes(codes));
    }
    memcpy(at + TILE_ELEMS, &scale, sizeof(scale));
    return magnitude <= FP8_MOST_BITS;
}

/* --------------------------------------------------------------- ranges -- */

/* Decodes a whole chunk. Returns 0 if there are ties or NaNs that vectors cannot decode, and it
 * must be done again. */
INLINE int chunk_decode(float *out, const sherdi_encoded *part, size_t first)
{
    void    *at   = sherdi_encoded_at(part->data, part->encoding, first);
    uint32_t mask = part->has_ties ? 0x7fffffffu : 0xffffffffu;

    switch (part->encoding) {
    case SHERDI_ENCODING_BF16:
        chunk_decode_bf16(out, at, vec_set_bits(mask));
        return 1;
    case SHERDI_ENCODING_BESIDE:
    case SHERDI_ENCODING_BESIDE_PLANE:
        return chunk_decode_beside(out, part->param + first, at);
    case SHERDI_ENCODING_FP8:
        return chunk_decode_fp8(out, at, 1);
    case SHERDI_ENCODING_UFP8:
        return chunk_decode_fp8(out, at, 0);
    default:
        chunk_decode_f32(out, at, vec_set_bits(mask));
        return 1;
    }
}

/* Returns the elements before the first one at which vectors may begin. Where chunks have a plane
 * or a scale, that is the start of the next chunk. */
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

INLINE int chunk_store_fp8(unsigned char *at, const float *x, int is_signed, vec_randoms *randoms,
                           int is_random)
{
    vec_bits ups[TILE_VECS];

    if (!is_random) {
        return chunk_encode_fp8(at, x, is_signed, NULL);
    }
    for (size_t i = 0; i < TILE_VECS; i++) {
        ups[i] = vec_fp8_random(vec_randoms_next(randoms));
    }
    return chunk_encode_fp8(at, x, is_signed, ups);
}

/* Encodes a whole chunk; returns 0 if it must be done again. A part whose signs are the ties of a
 * master does not come here; it is encoded element by element, so that the ties stay. */
INLINE int chunk_encode(const sherdi_encoded *part, size_t first, const float *x,
                        vec_randoms *randoms, int is_random)
{
    void          *at      = sherdi_encoded_at(part->data, part->encoding, first);
    const uint64_t no_ties = 0;

    switch (part->encoding) {
    case SHERDI_ENCODING_BF16:
        chunk_encode_bf16(at, x, randoms, is_random);
        return 1;
    case SHERDI_ENCODING_BESIDE: /* only an update has cleared the ties of the old values */
        return is_random && chunk_encode_beside(part->param + first, at, x);
    case SHERDI_ENCODING_BESIDE_PLANE:
        memcpy((char *)at + SHERDI_CHUNK_BF16_BYTES, &no_ties, sizeof(no_ties));
        return chunk_encode_beside(part->param + first, at, x);
    case SHERDI_ENCODING_FP8:
        return chunk_store_fp8(at, x, 1, randoms, is_random);
    case SHERDI_ENCODING_UFP8:
        return chunk_store_fp8(at, x, 0, randoms, is_random);
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
            sherdi_rounding chunk = *how;

            chunk.first_index += done;
            sherdi_part_encode(part, first + done, TILE_ELEMS, x + done, &chunk);
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

/* These functions are not inlined: all updates share one copy of each. */
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

/* Encodes a moment of a tile in fp8. `ups` come from `random`. */
INLINE void tile_encode_fp8(const sherdi_encoded *part, size_t first, const float *x,
                            uint64_t index, sherdi_random random, int is_signed,
                            const vec_bits *ups)
{
    const sherdi_rounding how = {.is_random = 1, .random = random, .first_index = index};
    unsigned char        *at  = sherdi_encoded_at(part->data, part->encoding, first);

    if (__builtin_expect(!chunk_encode_fp8(at, x, is_signed, ups), 0)) {
        sherdi_part_encode(part, first, TILE_ELEMS, x, &how);
    }
}

/* Encodes two moments, of which the second is never negative, with one hash for both
 * (sherdi_random_of). */
static __attribute__((noinline)) void tile_encode_fp8s(const sherdi_encoded *parts, size_t first,
                                                       float (*x)[TILE_ELEMS], uint64_t    index,
                                                       const sherdi_random *random)
{
    const sherdi_rounding how     = {.random = random[0], .first_index = index};
    vec_randoms           randoms = vec_randoms_start(&how);
    vec_bits              ups[2][TILE_VECS];

    randoms.is_turned = 0;
    for (size_t i = 0; i < TILE_VECS; i++) {
        vec_bits bits = vec_randoms_next(&randoms);

        ups[0][i] = vec_fp8_random(bits);
        ups[1][i] = vec_fp8_random(vec_swap_halves(bits));
    }
    tile_encode_fp8(&parts[0], first, x[0], index, random[0], 1, ups[0]);
    tile_encode_fp8(&parts[1], first, x[1], index, random[1], 0, ups[1]);
}

/* The form in which a formula loads and stores a part of a tile. */
typedef enum tile_form {
    TILE_F32,
    TILE_BF16,
    TILE_FP8,    /* only loaded (part 2 as UFP8): the scale of the new values is known later */
    TILE_BESIDE, /* only loaded: a new master goes through memory until its tile is closed */
} tile_form;

typedef struct encoded_part {
    const sherdi_encoded *from;
    int                   is_buffered; /* passes through memory as fp32 */
    size_t                chunk_bytes;
    unsigned char        *start; /* of the range */
    unsigned char        *at;    /* of the tile that is opened next */
} encoded_part;

/* The loop over a range of an encoded state. Buffered parts use two buffers in turn: one for the
 * tile that is computed, and one for the tile before, which is closed while roots and quotients of
 * the first are still in the pipeline. */
typedef struct encoded_loop {
    sherdi_update_range range;
    encoded_part        parts[SHERDI_UPDATE_MOST_PARTS];
    sherdi_random       randoms[SHERDI_UPDATE_MOST_PARTS];
    int                 is_beside;
    tile_form           moments; /* the form of moments that are not buffered */
    float               buffers[2][SHERDI_UPDATE_MOST_PARTS][TILE_ELEMS]
        __attribute__((aligned(CACHE_LINE_BYTES)));
} encoded_loop;

/* A tile between its loads and its stores. */
typedef struct encoded_step_tile {
    const void     *grad;
    const uint16_t *param;
    void           *parts[SHERDI_UPDATE_MOST_PARTS]; /* in their forms */
    float (*buffers)[TILE_ELEMS]; /* by part, for values that are encoded later */
    float *master;                /* receives the new master */
    int    is_beside;             /* parts[0] is in the form TILE_BESIDE */
} encoded_step_tile;

/* Returns the form of the moments: at most two of bf16, or the two of fp8, are converted in
 * registers, since one hash has bits for two. */
INLINE tile_form encoded_moments(const sherdi_update_range *range, int num_parts)
{
    if (num_parts == 3 && range->encoded[1].encoding == SHERDI_ENCODING_FP8 &&
        range->encoded[2].encoding == SHERDI_ENCODING_UFP8) {
        return TILE_FP8;
    }
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
    loop->is_beside          = sherdi_encoding_is_beside(range->encoded[0].encoding);
    loop->moments            = encoded_moments(range, num_parts);
    for (int index = 0; index < num_parts; index++) {
        const sherdi_encoded *from     = &range->encoded[index];
        encoded_part         *part     = &loop->parts[index];
        tile_form             unpacked = index == 0 ? TILE_F32 : loop->moments;

        part->from        = from;
        part->chunk_bytes = sherdi_encoding_chunk_bytes(from->encoding);
        part->start       = sherdi_encoded_at(from->data, from->encoding, range->offset_elems);
        part->at          = part->start;
        part->is_buffered = (from->encoding >= SHERDI_ENCODING_FP8 && unpacked != TILE_FP8) ||
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

/* Opens a tile. The master comes first, since decoding it clears its ties in another part. */
INLINE void encoded_open(encoded_step_tile *tile, encoded_loop *loop, int num_parts, size_t first,
                         float (*buffers)[TILE_ELEMS])
{
    const sherdi_update_range *range = &loop->range;

    tile->grad    = sherdi_elem_at(range->grad, range->grad_dtype, first);
    tile->param   = (const uint16_t *)range->param + first;
    tile->buffers = buffers;
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

INLINE void vecs_load_fp8(vec_f32 *x, const unsigned char *at, int is_signed, size_t i)
{
    float scale;

    memcpy(&scale, at + TILE_ELEMS, sizeof(scale));
    for (size_t k = 0; k < UPDATE_VECS; k++) {
        const unsigned char *codes = at + i + k * LANES;

        x[k] = is_signed ? vec_load_fp8(codes, scale) : vec_load_ufp8(codes, scale);
    }
}

INLINE void vecs_load_form(vec_f32 *x, const void *at, tile_form form, int part, size_t i)
{
    if (form == TILE_BF16) {
        vecs_load_bf16(x, (const uint16_t *)at + i);
        return;
    }
    if (form == TILE_FP8) {
        vecs_load_fp8(x, at, part == 1, i);
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

/* Returns sums whose upper halves are moments, rounded at random: part 1 by the upper half of
 * sherdi_random_bits, part 2 by the lower. */
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
        float *at = moments == TILE_FP8 ? tile->buffers[part] : tile->parts[part];

        for (size_t k = 0; k < UPDATE_VECS; k++) {
            vec_store(at + i + k * LANES, vecs->x[part][k]);
        }
    }
}

/* Updates a tile's elements from `i` on. If a master is NaN, the NaNs of all parts are replaced by
 * the one that is stored. */
INLINE void encoded_step(const encoded_step_tile *tile, sherd_dtype grad_dtype,
                         const update_rule *rule, tile_form master, tile_form moments,
                         vec_randoms *randoms, size_t i)
{
    update_vecs vecs;
    vec_flags   is_nan;

    vecs_load_as(vecs.g, tile->grad, grad_dtype, i);
    for (int part = rule->num_parts - 1; part > 0; part--) {
        vecs_load_form(vecs.x[part], tile->parts[part], moments, part, i);
    }
    if (master == TILE_BESIDE) {
        vecs_load_beside(vecs.x[0], tile->param + i, (const int16_t *)tile->parts[0] + i);
    } else {
        vecs_load_form(vecs.x[0], tile->parts[0], TILE_F32, 0, i);
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

/* The loop for one pair of forms, which the compiler knows. */
INLINE void encoded_steps_as(const encoded_step_tile *tile, const encoded_loop *loop,
                             const update_rule *rule, tile_form master, tile_form moments,
                             vec_randoms *randoms)
{
#pragma GCC unroll 1
    for (size_t i = 0; i < TILE_ELEMS; i += UPDATE_VECS * LANES) {
        encoded_step(tile, loop->range.grad_dtype, rule, master, moments, randoms, i);
    }
}

INLINE void encoded_steps_of(const encoded_step_tile *tile, const encoded_loop *loop,
                             const update_rule *rule, tile_form moments, vec_randoms *randoms)
{
    if (tile->is_beside) {
        encoded_steps_as(tile, loop, rule, TILE_BESIDE, moments, randoms);
    } else {
        encoded_steps_as(tile, loop, rule, TILE_F32, moments, randoms);
    }
}

/* Compiles only the forms that are possible with this number of parts. */
INLINE void encoded_steps(const encoded_step_tile *tile, const encoded_loop *loop,
                          const update_rule *rule, vec_randoms *randoms)
{
    if (rule->num_parts == 3 && loop->moments == TILE_FP8) {
        encoded_steps_of(tile, loop, rule, TILE_FP8, randoms);
    } else if (rule->num_parts > 1 && rule->num_parts <= 3 && loop->moments == TILE_BF16) {
        encoded_steps_of(tile, loop, rule, TILE_BF16, randoms);
    } else {
        encoded_steps_of(tile, loop, rule, TILE_F32, randoms);
    }
}

/* Encodes a split master. It comes after the part whose signs receive its ties. */
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

/* Stores the masters of two registers rounded, and replaces them by the values that are read back
 * later. */
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
    int moments = num_parts - 1;

    if (num_parts == 3 && loop->moments == TILE_FP8) {
        tile_encode_fp8s(&loop->range.encoded[1], loop->range.offset_elems + first, &buffers[1],
                         loop->range.first_index + first, &loop->randoms[1]);
        moments = 0;
    }
    for (int index = moments; index > 0; index--) {
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

/* Does what update_tiles does, for whole chunks of encoded state. */
INLINE void update_encoded(const sherdi_update_range *range, const update_rule *rule,
                           vec_mixer *mixer)
{
    sherdi_rounding start   = {.random      = sherdi_random_of(range->step, 1),
                               .first_index = range->first_index};
    vec_randoms     randoms = vec_randoms_start(&start);
    float          *closing = NULL; /* the new master of the tile that is closed next */
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

#define SHERDI_UPDATE(name, parts)                                                                 \
    static uint64_t range_encoded_##name(const sherdi_update_range    *range,                      \
                                         const sherdi_##name##_coeffs *coeffs)                     \
    {                                                                                              \
        const sherdi_##name##_coeffs own   = *coeffs;                                              \
        const update_rule            rule  = {name##_formula, parts, &own};                        \
        vec_mixer                    mixer = vec_mixer_start(range->first_index);                  \
                                                                                                   \
        update_encoded(range, &rule, &mixer);                                                      \
        return vec_mixer_sum(&mixer);                                                              \
    }
#include "kernels/updates/rows.h"
