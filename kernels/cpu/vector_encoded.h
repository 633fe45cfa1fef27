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

/* sherdi_random_mix but its last step, which does not touch the upper half. */
INLINE vec_bits vec_random_upper(vec_bits x)
{
    x = x ^ VEC(srli_epi32)(x, 16);
    x = VEC(mullo_epi32)(x, vec_set_bits(0x7feb352du));
    x = x ^ VEC(srli_epi32)(x, 15);
    return VEC(mullo_epi32)(x, vec_set_bits(0x846ca68bu));
}

INLINE vec_bits vec_randoms_next(vec_randoms *randoms)
{
    vec_bits bits = vec_random_upper(randoms->keys ^ randoms->seed);

    randoms->keys = VEC(add_epi32)(randoms->keys, randoms->step);
    return bits ^ VEC(srli_epi32)(bits, 16);
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
                                                  const float *x, uint64_t index, uint32_t seed)
{
    const sherdi_rounding how     = {.is_random = 1, .seed = seed, .first_index = index};
    vec_randoms           randoms = vec_randoms_start(&how);

    if (__builtin_expect(!chunk_encode(part, first, x, &randoms, 1), 0)) {
        sherdi_part_encode(part, first, TILE_ELEMS, x, &how);
    }
}

/* Where a part of a tile is read and written while the formula runs. What has something for a chunk as a whole passes
 * through memory, and so does a new master: its tile is closed later. */
typedef enum tile_form {
    TILE_F32,
    TILE_BF16,
    TILE_BESIDE, /* read alone */
} tile_form;

typedef struct encoded_part {
    tile_form       form;  /* of this tile */
    void           *at;    /* fp32, bf16 or what is beside `param`, */
    const uint16_t *param; /* ... of TILE_BESIDE */
    /* Of the whole range: */
    tile_form      usual;
    int            is_scaled; /* passes through memory */
    size_t         chunk_bytes;
    unsigned char *start;
} encoded_part;

/* A tile of an encoded state between its loads and its stores. */
typedef struct encoded_work {
    float               values[SHERDI_UPDATE_MOST_PARTS][TILE_ELEMS];
    encoded_part        parts[SHERDI_UPDATE_MOST_PARTS];
    sherdi_update_range tile; /* its gradient, and the new master */
} encoded_work;

INLINE int encoding_is_beside(sherdi_encoding encoding)
{
    return encoding == SHERDI_ENCODING_BESIDE || encoding == SHERDI_ENCODING_BESIDE_PLANE;
}

INLINE void encoded_part_init(encoded_part *part, const sherdi_update_range *range, int index)
{
    const sherdi_encoded *from = &range->encoded[index];

    part->usual       = from->encoding == SHERDI_ENCODING_BF16 ? TILE_BF16
                        : encoding_is_beside(from->encoding)   ? TILE_BESIDE
                                                               : TILE_F32;
    part->is_scaled   = from->encoding >= SHERDI_ENCODING_FP8;
    part->chunk_bytes = sherdi_encoding_chunk_bytes(from->encoding);
    part->start       = sherdi_encoded_at(from->data, from->encoding, range->offset_elems);
}

/* A tile is few stores and little arithmetic of addresses; a struct that is copied as a whole just after its fields were
 * written would wait for them. */
INLINE void encoded_part_open(encoded_work *work, const sherdi_update_range *range, int index,
                              size_t first)
{
    encoded_part *part = &work->parts[index];

    part->form = part->usual;
    part->at   = part->start + first / TILE_ELEMS * part->chunk_bytes;
    if (part->usual == TILE_BESIDE) {
        part->param = (const uint16_t *)range->param + first;
    }
    if (part->is_scaled || (part->usual == TILE_BESIDE && chunk_has_ties(part->at))) {
        tile_decode(work->values[index], &range->encoded[index], range->offset_elems + first);
        part->form = TILE_F32;
        part->at   = work->values[index];
    }
}

/* The master first: it takes its ties out of another part. */
INLINE void encoded_open(encoded_work *work, const sherdi_update_range *range, int num_parts,
                         size_t first)
{
    work->tile.grad = sherdi_elem_at(range->grad, range->grad_dtype, first);
    for (int part = 0; part < num_parts; part++) {
        encoded_part_open(work, range, part, first);
    }
    work->tile.master = work->parts[0].usual == TILE_F32 ? work->parts[0].at : work->values[0];
}

INLINE vec_f32 encoded_part_load(const encoded_part *part, int is_master, size_t i)
{
    if (part->form == TILE_F32) {
        return vec_load((const float *)part->at + i);
    }
    if (is_master && part->form == TILE_BESIDE) {
        return vec_load_beside(part->param + i, (const int16_t *)part->at + i);
    }
    return vec_load_bf16((const uint16_t *)part->at + i);
}

INLINE vec_bits tile_bf16_sums(vec_f32 x, vec_bits keys, uint32_t seed)
{
    return VEC(add_epi32)((vec_bits)x,
                          VEC(srli_epi32)(vec_random_upper(keys ^ vec_set_bits(seed)), 16));
}

INLINE void encoded_part_store(const encoded_part *part, const vec_f32 *x, const vec_bits *keys,
                               uint32_t seed, size_t i)
{
    vec_bits sums[UPDATE_VECS];

    if (part->form == TILE_F32) {
        for (size_t k = 0; k < UPDATE_VECS; k++) {
            vec_store((float *)part->at + i + k * LANES, x[k]);
        }
        return;
    }
    for (size_t k = 0; k < UPDATE_VECS; k++) {
        sums[k] = tile_bf16_sums(x[k], keys[k], seed);
    }
    vecs_store_upper((uint16_t *)part->at + i, sums);
}

/* The step of a tile's elements from `i` on. Where the master is NaN, NaN becomes the one that is stored in all parts. */
INLINE void encoded_step(const encoded_work *work, const update_rule *rule, size_t i,
                         const uint32_t *seeds, vec_bits *keys, vec_bits key_step)
{
    update_vecs vecs;
    vec_bits    own_keys[UPDATE_VECS];
    vec_flags   is_nan;

    for (size_t k = 0; k < UPDATE_VECS; k++) {
        vecs.g[k]   = vec_load_as(work->tile.grad, work->tile.grad_dtype, i + k * LANES);
        own_keys[k] = *keys;
        *keys       = VEC(add_epi32)(*keys, key_step);
    }
    for (int part = rule->num_parts - 1; part >= 0; part--) {
        for (size_t k = 0; k < UPDATE_VECS; k++) {
            vecs.x[part][k] = encoded_part_load(&work->parts[part], part == 0, i + k * LANES);
        }
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
    for (int part = 1; part < rule->num_parts; part++) {
        encoded_part_store(&work->parts[part], vecs.x[part], own_keys, seeds[part], i);
    }
    for (size_t k = 0; k < UPDATE_VECS; k++) {
        vec_store(work->tile.master + i + k * LANES, vecs.x[0][k]);
    }
}

/* All but the master. */
INLINE void encoded_store(const encoded_work *work, const sherdi_update_range *range, int num_parts,
                          size_t first, const uint32_t *seeds)
{
    for (int part = num_parts - 1; part > 0; part--) {
        if (work->parts[part].is_scaled) {
            tile_encode(&range->encoded[part], range->offset_elems + first, work->values[part],
                        range->first_index + first, seeds[part]);
        }
    }
}

/* A master beside its parameter; after the part that its ties are put into. */
INLINE void encoded_close_beside(const encoded_work *work, const sherdi_update_range *range,
                                 size_t first, vec_mixer *mixer)
{
    const encoded_part *part    = &work->parts[0];
    unsigned char      *rest    = part->start + first / TILE_ELEMS * part->chunk_bytes;
    uint16_t           *param   = (uint16_t *)range->param + first;
    const uint64_t      no_ties = 0;
    vec_flags16         ties    = vec_no_flags16();

    for (size_t i = 0; i < TILE_ELEMS; i += 2 * LANES) {
        vec_f32 a = vec_load(work->tile.master + i);
        vec_f32 b = vec_load(work->tile.master + i + LANES);

        vec_mixer_add(mixer, a);
        vec_mixer_add(mixer, b);
        ties |= encode_beside(param + i, (int16_t *)(void *)rest + i, a, b);
    }
    if (part->chunk_bytes == SHERDI_CHUNK_PLANE_BYTES) {
        memcpy(rest + SHERDI_CHUNK_BF16_BYTES, &no_ties, sizeof(no_ties));
    }
    if (__builtin_expect(vec_flags16_any(ties), 0)) {
        tile_encode(&range->encoded[0], range->offset_elems + first, work->tile.master, 0, 0);
    }
}

/* A master that rounds is what it is read as again. */
INLINE void encoded_close_master(const encoded_work *work, const sherdi_update_range *range,
                                 size_t first, uint32_t seed, vec_mixer *mixer)
{
    size_t at = range->offset_elems + first;

    if (work->parts[0].usual == TILE_BF16) {
        tile_encode(&range->encoded[0], at, work->tile.master, range->first_index + first, seed);
        tile_decode(work->tile.master, &range->encoded[0], at);
    }
    for (size_t i = 0; i < TILE_ELEMS; i += 2 * LANES) {
        vec_f32 a = vec_load(work->tile.master + i);
        vec_f32 b = vec_load(work->tile.master + i + LANES);

        vec_mixer_add(mixer, a);
        vec_mixer_add(mixer, b);
        if (range->param != NULL) {
            vec_store_pair(range->param, range->param_dtype, first + i, a, b, range->is_streaming);
        }
    }
}

INLINE void encoded_close(const encoded_work *work, const sherdi_update_range *range, int num_parts,
                          size_t first, const uint32_t *seeds, vec_mixer *mixer)
{
    encoded_store(work, range, num_parts, first, seeds);
    if (work->parts[0].usual == TILE_BESIDE) {
        encoded_close_beside(work, range, first, mixer);
    } else {
        encoded_close_master(work, range, first, seeds[0], mixer);
    }
}

INLINE void encoded_prefetch(const encoded_work *work, const sherdi_update_range *range,
                             int num_parts, size_t first, size_t ahead_bytes)
{
    for (int i = 0; i < num_parts; i++) {
        const encoded_part  *part = &work->parts[i];
        const unsigned char *at =
            part->start + first / TILE_ELEMS * part->chunk_bytes + ahead_bytes;

        __builtin_prefetch(at, 0, 3);
        __builtin_prefetch(at + CACHE_LINE_BYTES, 0, 3);
        if (part->chunk_bytes > SHERDI_CHUNK_PLANE_BYTES) {
            __builtin_prefetch(at + 2 * CACHE_LINE_BYTES, 0, 3);
            __builtin_prefetch(at + 3 * CACHE_LINE_BYTES, 0, 3);
        }
    }
    tile_prefetch(range->grad, range->grad_dtype, first, ahead_bytes);
    if (work->parts[0].usual == TILE_BESIDE) {
        tile_prefetch(range->param, SHERD_BF16, first, ahead_bytes);
    }
}

/* As update_tiles, of whole chunks. */
INLINE void update_encoded(const sherdi_update_range *range, const update_rule *rule,
                           vec_mixer *mixer)
{
    sherdi_rounding     start   = {.first_index = range->first_index};
    vec_randoms         randoms = vec_randoms_start(&start);
    encoded_work        work[2];
    uint32_t            seeds[SHERDI_UPDATE_MOST_PARTS];
    sherdi_update_range own = *range;

    own.is_streaming = own.is_streaming && is_line_aligned(own.param);
    for (int part = 0; part < rule->num_parts; part++) {
        seeds[part] = sherdi_random_seed(own.step, (unsigned)part);
        encoded_part_init(&work[0].parts[part], &own, part);
        encoded_part_init(&work[1].parts[part], &own, part);
    }
    work[0].tile.grad_dtype = own.grad_dtype;
    work[1].tile.grad_dtype = own.grad_dtype;
    for (size_t first = 0; first < own.count_elems; first += TILE_ELEMS) {
        size_t turn = first / TILE_ELEMS % 2;

        encoded_prefetch(&work[turn], &own, rule->num_parts, first, own.ahead_bytes);
        encoded_open(&work[turn], &own, rule->num_parts, first);
        for (size_t i = 0; i < TILE_ELEMS; i += UPDATE_VECS * LANES) {
            encoded_step(&work[turn], rule, i, seeds, &randoms.keys, randoms.step);
        }
        if (first > 0) {
            encoded_close(&work[!turn], &own, rule->num_parts, first - TILE_ELEMS, seeds, mixer);
        }
    }
    encoded_close(&work[(own.count_elems / TILE_ELEMS - 1) % 2], &own, rule->num_parts,
                  own.count_elems - TILE_ELEMS, seeds, mixer);
}
