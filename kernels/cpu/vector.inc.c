/* The loops of ranges.h over vectors, written once for all instruction sets. avx2.c and avx512.c
 * first define what differs between them, then include this file:
 *   LANES, VEC(name)            the fp32 elements of a register; the intrinsic `name` of its width
 *   vec_f32, vec_bits           one register as floats, as bits
 *   vec_half                    LANES elements of 16 bits
 *   UPDATE_VECS                 the registers of each array that updates work on at once
 *   vec_nan_to                  replaces NaN by `other`
 *   vec_unless_zero             replaces what is neither zero nor NaN by `other`
 *   vec_flags, vec_unordered, vec_flags_any  the positions where one of two registers has a NaN;
 *                               flags are joined by |
 *   vec_pack_upper              the upper halves of a's 32-bit elements, then those of b's
 *   vecs_load_bf16, vecs_store_upper  loads UPDATE_VECS registers from bf16; stores the upper
 *                               halves of as many registers
 *   vec_blend_odd               the 16-bit elements 0, 2, .. of one register and 1, 3, .. of
 *                               another
 *   vec_join_halves             two halves as one register
 * Operators between registers are those of the compilers' vector types. Elements that do not fill a
 * vector go through elements.h. The loops test element types inside: such a test has the same
 * result each time, and the loops wait for memory anyway. */
#include "kernels/cpu/ahead.h"
#include "kernels/cpu/elements.h"
#include "kernels/cpu/vector_defs.h"
#include "kernels/cpu/vector_norm.inc.c"

/* ----------------------------------------------------------- primitives -- */

#define vec_set    VEC(set1_ps)
#define vec_load   VEC(loadu_ps)
#define vec_store  VEC(storeu_ps)
#define vec_stream VEC(stream_ps) /* aligned, past the caches */
#define vec_sqrt   VEC(sqrt_ps)
#define vec_fma    VEC(fmadd_ps)

INLINE vec_f32 vec_canonical(vec_f32 x)
{
    return vec_nan_to(x, (vec_f32)VEC(set1_epi32)(0x7fc00000));
}

/* Replaces NaN by the quiet NaN of its sign. */
INLINE vec_f32 vec_quiet(vec_f32 x)
{
    vec_bits sign = (vec_bits)x & VEC(set1_epi32)((int)0x80000000u);

    return vec_nan_to(x, (vec_f32)(sign | VEC(set1_epi32)(0x7fc00000)));
}

INLINE vec_bits vec_load_bits(const void *at)
{
    vec_bits bits;

    memcpy(&bits, at, sizeof(bits));
    return bits;
}

INLINE void vec_store_bits(void *at, vec_bits bits)
{
    memcpy(at, &bits, sizeof(bits));
}

INLINE void vec_stream_bits(void *at, vec_bits bits)
{
    vec_stream(at, (vec_f32)bits);
}

INLINE vec_half vec_load_half(const uint16_t *at)
{
    vec_half half;

    memcpy(&half, at, sizeof(half));
    return half;
}

INLINE vec_f32 vec_load_bf16(const uint16_t *at)
{
    return (vec_f32)VEC(slli_epi32)(VEC(cvtepu16_epi32)(vec_load_half(at)), 16);
}

INLINE vec_f32 vec_load_f16(const uint16_t *at)
{
    return vec_quiet(VEC(cvtph_ps)(vec_load_half(at)));
}

/* The upper halves of the sums are the values rounded to bf16. A tie is rounded up where the last
 * bit that stays is set: `odd` makes it more than a tie. Functions that round or pack expect NaN as
 * vec_canonical or vec_quiet leaves it. */
INLINE vec_bits bf16_sums(vec_f32 x)
{
    vec_bits bits = (vec_bits)x;
    vec_bits odd  = VEC(srli_epi32)(bits, 16) & VEC(set1_epi32)(1);

    return VEC(add_epi32)(bits | odd, VEC(set1_epi32)(0x7fff));
}

INLINE vec_f32 vec_round_bf16(vec_f32 x)
{
    return (vec_f32)(bf16_sums(x) & VEC(set1_epi32)((int)0xffff0000u));
}

INLINE vec_bits vec_pack_bf16(vec_f32 a, vec_f32 b)
{
    return vec_pack_upper(bf16_sums(a), bf16_sums(b));
}

/* The same for registers that hold the even elements and the odd elements. */
INLINE vec_f32 vec_even_bf16(vec_bits bits)
{
    return (vec_f32)VEC(slli_epi32)(bits, 16);
}

INLINE vec_f32 vec_odd_bf16(vec_bits bits)
{
    return (vec_f32)(bits & VEC(set1_epi32)((int)0xffff0000u));
}

INLINE vec_bits vec_join_bf16(vec_f32 even, vec_f32 odd)
{
    return vec_blend_odd(VEC(srli_epi32)(bf16_sums(even), 16), bf16_sums(odd));
}

INLINE vec_half vec_narrow_f16(vec_f32 x)
{
    return VEC(cvtps_ph)(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

INLINE vec_f32 vec_round_f16(vec_f32 x)
{
    return VEC(cvtph_ps)(vec_narrow_f16(x));
}

INLINE vec_bits vec_pack_f16(vec_f32 a, vec_f32 b)
{
    return vec_join_halves(vec_narrow_f16(a), vec_narrow_f16(b));
}

/* `real`, over which the updates' formulas are written (kernels/updates/real.h), is a register
 * here. */
typedef vec_f32 real;

#define REAL_FN        INLINE
#define real_of        vec_set
#define real_fma       vec_fma
#define real_sqrt      vec_sqrt
#define real_canonical vec_canonical

/* Joins the sign bit of x with the bits of 1. */
INLINE vec_f32 real_sign(vec_f32 x)
{
    vec_bits sign = (vec_bits)x & VEC(set1_epi32)((int)0x80000000u);

    return vec_unless_zero(x, (vec_f32)(sign | (vec_bits)vec_set(1)));
}

#include "kernels/updates/list.h"

/* --------------------------------------------------- fingerprint of vectors -- */

/* Keys and multipliers of the next LANES elements. `even` has the multipliers of elements 0, 2, ..,
 * and `odd` those of 1, 3, .., in the lower 32 bits of each 64. A step adds an even number, so the
 * lowest bit of a multiplier stays set. */
typedef struct vec_mixer {
    vec_bits keys, even, odd, sum;
    vec_bits key_step, step;
} vec_mixer;

/* Hides a value from the compiler. A compiler that knows the steps would make a constant of each of
 * their multiples, and would then have no registers left. */
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
    mixer.keys     = vec_load_bits(keys);
    mixer.even     = vec_load_bits(multipliers);
    mixer.odd      = VEC(srli_epi64)(mixer.even, 32);
    mixer.sum      = VEC(set1_epi32)(0);
    mixer.key_step = vec_opaque(VEC(set1_epi32)((int)(LANES * 0x9e3779b1u)));
    mixer.step     = vec_opaque(VEC(set1_epi32)((int)(LANES * 0xc2b2ae3du)));
    return mixer;
}

INLINE void vec_mixer_add(vec_mixer *mixer, vec_f32 x)
{
    vec_bits keyed = (vec_bits)x ^ mixer->keys;
    vec_bits even  = VEC(mul_epu32)(keyed, mixer->even);
    vec_bits odd   = VEC(mul_epu32)(VEC(srli_epi64)(keyed, 32), mixer->odd);

    mixer->sum  = VEC(add_epi64)(mixer->sum, VEC(add_epi64)(even, odd));
    mixer->keys = VEC(add_epi32)(mixer->keys, mixer->key_step);
    mixer->even = VEC(add_epi32)(mixer->even, mixer->step);
    mixer->odd  = VEC(add_epi32)(mixer->odd, mixer->step);
}

INLINE uint64_t vec_mixer_sum(const vec_mixer *mixer)
{
    uint64_t lanes[LANES / 2]; /* added as unsigned: sums wrap */
    uint64_t sum = 0;

    vec_store_bits(lanes, mixer->sum);
    for (int i = 0; i < LANES / 2; i++) {
        sum += lanes[i];
    }
    return sum;
}

/* ---------------------------------------------------------------- tiles -- */

/* A tile is 64 elements in registers. */
#define TILE_ELEMS SHERD_CHUNK_ELEMS
#define TILE_VECS  (TILE_ELEMS / LANES)

/* The prefetching distance of loops whose output goes past the caches. For loops that update in
 * place, see ahead.h. */
#define AHEAD_BYTES 1024

#define range_ahead_bytes sherdi_ahead_bytes
#define range_ahead_begin sherdi_ahead_begin
#define range_ahead_end   sherdi_ahead_end
typedef sherdi_ahead_trial range_trial;

/* bf16 in a tile in another order: of each pair of registers, the first holds the even elements and
 * the second the odd ones. This order is cheaper to unpack and to pack. It serves loops in which
 * all arrays are bf16. */
#define BF16_SPLIT ((sherd_dtype)(SHERD_F16 + 1))

INLINE vec_f32 vec_load_as(const void *array, sherd_dtype dtype, size_t first)
{
    if (dtype == SHERD_F32) {
        return vec_load((const float *)array + first);
    }
    if (dtype == SHERD_BF16) {
        return vec_load_bf16((const uint16_t *)array + first);
    }
    return vec_load_f16((const uint16_t *)array + first);
}

/* Loads UPDATE_VECS registers. */
INLINE void vecs_load_as(vec_f32 *x, const void *array, sherd_dtype dtype, size_t first)
{
    if (dtype == SHERD_BF16) {
        vecs_load_bf16(x, (const uint16_t *)array + first);
        return;
    }
    for (size_t i = 0; i < UPDATE_VECS; i++) {
        x[i] = vec_load_as(array, dtype, first + i * LANES);
    }
}

/* Stores the elements of two registers. */
INLINE void vec_store_pair(void *array, sherd_dtype dtype, size_t first, vec_f32 a, vec_f32 b,
                           int is_streaming)
{
    vec_bits packed;

    if (dtype == SHERD_F32) {
        float *at = (float *)array + first;

        if (is_streaming) {
            vec_stream(at, a);
            vec_stream(at + LANES, b);
        } else {
            vec_store(at, a);
            vec_store(at + LANES, b);
        }
        return;
    }
    packed = dtype == BF16_SPLIT   ? vec_join_bf16(a, b)
             : dtype == SHERD_BF16 ? vec_pack_bf16(a, b)
                                   : vec_pack_f16(a, b);
    if (is_streaming) {
        vec_stream_bits((uint16_t *)array + first, packed);
    } else {
        vec_store_bits((uint16_t *)array + first, packed);
    }
}

INLINE void tile_load(vec_f32 *x, const void *array, sherd_dtype dtype, size_t first)
{
    if (dtype == BF16_SPLIT) {
        for (int i = 0; i < TILE_VECS; i += 2) {
            vec_bits bits = vec_load_bits((const uint16_t *)array + first + (size_t)i * LANES);

            x[i]     = vec_even_bf16(bits);
            x[i + 1] = vec_odd_bf16(bits);
        }
    } else if (dtype == SHERD_F32) {
        for (int i = 0; i < TILE_VECS; i++) {
            x[i] = vec_load((const float *)array + first + (size_t)i * LANES);
        }
    } else if (dtype == SHERD_BF16) {
        for (int i = 0; i < TILE_VECS; i++) {
            x[i] = vec_load_bf16((const uint16_t *)array + first + (size_t)i * LANES);
        }
    } else {
        for (int i = 0; i < TILE_VECS; i++) {
            x[i] = vec_load_f16((const uint16_t *)array + first + (size_t)i * LANES);
        }
    }
}

INLINE void tile_store(void *array, sherd_dtype dtype, size_t first, const vec_f32 *x,
                       int is_streaming)
{
    for (int i = 0; i < TILE_VECS; i += 2) {
        vec_store_pair(array, dtype, first + (size_t)i * LANES, x[i], x[i + 1], is_streaming);
    }
}

INLINE void tile_prefetch(const void *array, sherd_dtype dtype, size_t first, size_t ahead_bytes)
{
    const char *at   = (const char *)sherdi_elem_at(array, dtype, first) + ahead_bytes;
    size_t      span = dtype == SHERD_F32 ? 4 * TILE_ELEMS : 2 * TILE_ELEMS;

    for (size_t i = 0; i < span; i += CACHE_LINE_BYTES) {
        __builtin_prefetch(at + i, 0, 3);
    }
}

/* Each comparison tests two registers. */
INLINE int tile_has_nan(const float *tile)
{
    vec_flags is_nan = vec_unordered(vec_load(tile), vec_load(tile + LANES));

    for (size_t i = 2 * LANES; i < TILE_ELEMS; i += 2 * LANES) {
        is_nan |= vec_unordered(vec_load(tile + i), vec_load(tile + i + LANES));
    }
    return vec_flags_any(is_nan);
}

static int is_line_aligned(const void *at)
{
    return (uintptr_t)at % CACHE_LINE_BYTES == 0;
}

/* Returns the bytes up to the next cache line. */
static size_t bytes_to_line(const void *at)
{
    return -(uintptr_t)at % CACHE_LINE_BYTES;
}

/* --------------------------------------------------------------- update -- */

/* The loop that all updates share. Only the formula differs. It works on one register of the
 * gradient and one of each part, and leaves NaN as it comes. The compiler knows the formula and the
 * number of parts wherever it compiles the loop. */
typedef void (*update_fn)(const void *coeffs, real grad, real *x);

typedef struct update_rule {
    update_fn   formula;
    int         num_parts;
    const void *coeffs;
} update_rule;

/* A few registers of each array. Loads of one array stand together, which is faster. */
typedef struct update_vecs {
    vec_f32 g[UPDATE_VECS];
    vec_f32 x[SHERDI_UPDATE_MOST_PARTS][UPDATE_VECS];
} update_vecs;

/* Loads the master last, since the formula needs it last. */
INLINE void update_load(update_vecs *vecs, const sherdi_update_range *range, int num_parts,
                        size_t first)
{
    vecs_load_as(vecs->g, range->grad, range->grad_dtype, first);
    for (int k = 1; k <= num_parts; k++) {
        const float *part = range->parts[k % num_parts];

        for (size_t i = 0; i < UPDATE_VECS; i++) {
            vecs->x[k % num_parts][i] = vec_load(part + first + i * LANES);
        }
    }
}

INLINE void update_store(const update_vecs *vecs, const sherdi_update_range *range, int num_parts,
                         size_t first)
{
    for (int k = 1; k <= num_parts; k++) {
        float *part = range->parts[k % num_parts];

        for (size_t i = 0; i < UPDATE_VECS; i++) {
            vec_store(part + first + i * LANES, vecs->x[k % num_parts][i]);
        }
    }
}

INLINE void update_formula(update_vecs *vecs, const update_rule *rule)
{
    for (size_t i = 0; i < UPDATE_VECS; i++) {
        real x[SHERDI_UPDATE_MOST_PARTS];

        for (int part = 0; part < rule->num_parts; part++) {
            x[part] = vecs->x[part][i];
        }
        rule->formula(rule->coeffs, vecs->g[i], x);
        for (int part = 0; part < rule->num_parts; part++) {
            vecs->x[part][i] = x[part];
        }
    }
}

INLINE void update_step(const sherdi_update_range *range, const update_rule *rule, size_t first)
{
    update_vecs vecs;

    update_load(&vecs, range, rule->num_parts, first);
    update_formula(&vecs, rule);
    update_store(&vecs, range, rule->num_parts, first);
}

/* Replaces the NaNs of a tile by the one that is stored. */
static __attribute__((noinline, cold)) void update_tile_canonical(const sherdi_update_range *range,
                                                                  int num_parts, size_t first)
{
    for (int part = 0; part < num_parts; part++) {
        for (size_t i = first; i < first + TILE_ELEMS; i += LANES) {
            vec_store(range->parts[part] + i, vec_canonical(vec_load(range->parts[part] + i)));
        }
    }
}

/* Finishes a tile: fixes NaNs, adds to the fingerprint and stores the parameter. It tests only the
 * master for NaN, since a NaN in another part has made one in the master too
 * (kernels/updates/real.h). */
INLINE void update_tile_finish(const sherdi_update_range *range, int num_parts, size_t first,
                               vec_mixer *mixer, int is_streaming)
{
    if (__builtin_expect(tile_has_nan(range->master + first), 0)) {
        update_tile_canonical(range, num_parts, first);
    }
    for (size_t i = first; i < first + TILE_ELEMS; i += 2 * LANES) {
        vec_f32 a = vec_load(range->master + i);
        vec_f32 b = vec_load(range->master + i + LANES);

        vec_mixer_add(mixer, a);
        vec_mixer_add(mixer, b);
        if (range->param != NULL) {
            vec_store_pair(range->param, range->param_dtype, i, a, b, is_streaming);
        }
    }
}

INLINE void update_prefetch(const sherdi_update_range *range, int num_parts, size_t first,
                            size_t ahead_bytes)
{
    for (int part = 0; part < num_parts; part++) {
        tile_prefetch(range->parts[part], SHERD_F32, first, ahead_bytes);
    }
    tile_prefetch(range->grad, range->grad_dtype, first, ahead_bytes);
}

/* Updates whole tiles; returns where they end. A tile is finished after the next one is computed,
 * while the roots and quotients of that one are still in the pipeline. Finishing does not depend on
 * them, so it need not wait. */
INLINE size_t update_tiles(const sherdi_update_range *range, const update_rule *rule,
                           vec_mixer *mixer, int is_streaming, size_t ahead_bytes)
{
    size_t end = range->count_elems / TILE_ELEMS * TILE_ELEMS;

    for (size_t first = 0; first < end; first += TILE_ELEMS) {
        if (ahead_bytes > 0) {
            update_prefetch(range, rule->num_parts, first, ahead_bytes);
        }
        /* Without the pragma one compiler does not unroll the loop for long formulas, which costs a
         * tenth. */
#pragma GCC unroll 8
        for (size_t i = 0; i < TILE_ELEMS; i += UPDATE_VECS * LANES) {
            update_step(range, rule, first + i);
        }
        if (first > 0) {
            update_tile_finish(range, rule->num_parts, first - TILE_ELEMS, mixer, is_streaming);
        }
    }
    if (end > 0) {
        update_tile_finish(range, rule->num_parts, end - TILE_ELEMS, mixer, is_streaming);
    }
    return end;
}

/* Gives the most important combinations of types a loop of their own, in which the compiler knows
 * the types. */
INLINE size_t update_tiles_of(const sherdi_update_range *range, const update_rule *rule,
                              vec_mixer *mixer)
{
    int                 is_streaming = range->is_streaming && is_line_aligned(range->param);
    size_t              ahead_bytes  = range->ahead_bytes;
    sherdi_update_range same         = *range;

    if (range->grad_dtype == SHERD_F32 && range->param == NULL) {
        same.grad_dtype = SHERD_F32;
        same.param      = NULL;
        return update_tiles(&same, rule, mixer, 0, ahead_bytes);
    }
    if (range->grad_dtype == SHERD_BF16 && range->param_dtype == SHERD_BF16 && is_streaming) {
        same.grad_dtype  = SHERD_BF16;
        same.param_dtype = SHERD_BF16;
        return update_tiles(&same, rule, mixer, 1, ahead_bytes);
    }
    return update_tiles(&same, rule, mixer, is_streaming, ahead_bytes);
}

/* Memory for one tile in fp32. */
typedef struct update_tile {
    float grad[TILE_ELEMS];
    float parts[SHERDI_UPDATE_MOST_PARTS][TILE_ELEMS];
} update_tile;

/* Returns the elements from `first` on, fewer than a tile, as a range of their own that is filled
 * up with zeros. */
static sherdi_update_range update_tile_of(const sherdi_update_range *range, int num_parts,
                                          size_t first, update_tile *tile)
{
    size_t              count = range->count_elems - first;
    sherdi_update_range rest  = {.grad = tile->grad, .grad_dtype = SHERD_F32};

    memset(tile, 0, sizeof(*tile));
    sherdi_cast_elems(tile->grad, SHERD_F32, sherdi_elem_at(range->grad, range->grad_dtype, first),
                      range->grad_dtype, 0, count);
    for (int part = 0; part < num_parts; part++) {
        memcpy(tile->parts[part], range->parts[part] + first, count * sizeof(float));
        rest.parts[part] = tile->parts[part];
    }
    return rest;
}

/* Updates the elements behind the whole tiles, fewer than a tile. */
INLINE uint64_t update_rest(const sherdi_update_range *range, const update_rule *rule, size_t first)
{
    size_t              count = range->count_elems - first;
    update_tile         tile;
    sherdi_update_range rest;

    if (count == 0) {
        return 0;
    }
    rest = update_tile_of(range, rule->num_parts, first, &tile);
    for (size_t i = 0; i < TILE_ELEMS; i += UPDATE_VECS * LANES) {
        update_step(&rest, rule, i);
    }
    update_tile_canonical(&rest, rule->num_parts, 0);
    for (int part = 0; part < rule->num_parts; part++) {
        memcpy(range->parts[part] + first, tile.parts[part], count * sizeof(float));
    }
    if (range->param != NULL) {
        sherdi_cast_elems(sherdi_elem_at(range->param, range->param_dtype, first),
                          range->param_dtype, rest.master, SHERD_F32, 0, count);
    }
    return sherdi_fingerprint_elems(rest.master, range->first_index + first, 0, count);
}

INLINE uint64_t update_range(const sherdi_update_range *range, const update_rule *rule)
{
    vec_mixer mixer = vec_mixer_start(range->first_index);
    size_t    first;

    first = update_tiles_of(range, rule, &mixer);
    return vec_mixer_sum(&mixer) + update_rest(range, rule, first);
}

#define SHERDI_UPDATE(name, parts)                                                                 \
    INLINE void name##_formula(const void *coeffs, real grad, real *x)                             \
    {                                                                                              \
        sherdi_##name##_update(coeffs, grad, x);                                                   \
    }                                                                                              \
                                                                                                   \
    static uint64_t range_##name(const sherdi_update_range    *range,                              \
                                 const sherdi_##name##_coeffs *coeffs)                             \
    {                                                                                              \
        const sherdi_##name##_coeffs own  = *coeffs; /* a copy: no store can change it */          \
        const update_rule            rule = {name##_formula, parts, &own};                         \
                                                                                                   \
        return update_range(range, &rule);                                                         \
    }
#include "kernels/updates/rows.h"

/* Orders the streaming stores of the ranges before all later stores. */
static void range_stream_end(void)
{
    stream_fence();
}

/* ---------------------------------------------------------- fingerprint -- */

static uint64_t range_fingerprint(const float *master, uint64_t first_index, size_t count_elems)
{
    vec_mixer mixer = vec_mixer_start(first_index);
    size_t    first = 0;

    for (; first + 2 * LANES <= count_elems; first += 2 * LANES) {
        vec_mixer_add(&mixer, vec_load(master + first));
        vec_mixer_add(&mixer, vec_load(master + first + LANES));
    }
    return vec_mixer_sum(&mixer) +
           sherdi_fingerprint_elems(master, first_index, first, count_elems);
}

/* --------------------------------------------------------------- reduce -- */

/* A call as the loop sees it. `round_dtype` is fp32 where the store rounds anyway. Each bit of
 * more_streams stands for one of more_dsts; destinations past the 64th are written through the
 * caches. */
typedef struct reduce_plan {
    sherd_dtype src_dtype, round_dtype, dst_dtype;
    size_t      ahead_bytes;
    int         is_long; /* walked as two halves: reduce_tiles */
    int         dst_streams;
    uint64_t    more_streams;
} reduce_plan;

/* Returns whether to write this destination past the caches: only if the call does not read it too,
 * since a line that was just read is written faster through the caches. */
static int reduce_streams_to(const sherdi_reduce_args *args, const void *dst, size_t first)
{
    for (int k = 0; k < args->num_srcs; k++) {
        if (args->srcs[k] == dst) {
            return 0;
        }
    }
    return is_line_aligned(sherdi_elem_at(dst, args->dst_dtype, first));
}

INLINE void tile_weigh(vec_f32 *x, const sherdi_reduce_args *args, int k)
{
    if (args->weights != NULL) {
        vec_f32 weight = vec_set((float)args->weights[k]);

        for (int i = 0; i < TILE_VECS; i++) {
            x[i] = x[i] * weight;
        }
    }
}

INLINE void reduce_sum(vec_f32 *sum, const sherdi_reduce_args *args, const reduce_plan *plan,
                       size_t first)
{
    sherd_dtype src_dtype = plan->src_dtype;

    tile_prefetch(args->srcs[0], src_dtype, first, plan->ahead_bytes);
    tile_load(sum, args->srcs[0], src_dtype, first);
    tile_weigh(sum, args, 0);
    for (int k = 1; k < args->num_srcs; k++) {
        vec_f32 x[TILE_VECS];

        tile_prefetch(args->srcs[k], src_dtype, first, plan->ahead_bytes);
        tile_load(x, args->srcs[k], src_dtype, first);
        tile_weigh(x, args, k);
        for (int i = 0; i < TILE_VECS; i++) {
            sum[i] = sum[i] + x[i];
        }
    }
}

INLINE void reduce_round(vec_f32 *sum, float scale, sherd_dtype dtype)
{
    for (int i = 0; i < TILE_VECS; i++) {
        sum[i] = vec_canonical(sum[i] * vec_set(scale));
    }
    if (dtype == SHERD_BF16) {
        for (int i = 0; i < TILE_VECS; i++) {
            sum[i] = vec_round_bf16(sum[i]);
        }
    } else if (dtype == SHERD_F16) {
        for (int i = 0; i < TILE_VECS; i++) {
            sum[i] = vec_round_f16(sum[i]);
        }
    }
}

INLINE void tile_add(vec_f32 *sum, const void *array, sherd_dtype dtype, size_t first,
                     size_t ahead_bytes)
{
    vec_f32 x[TILE_VECS];

    tile_prefetch(array, dtype, first, ahead_bytes);
    tile_load(x, array, dtype, first);
    for (int i = 0; i < TILE_VECS; i++) {
        sum[i] = vec_canonical(x[i] + sum[i]);
    }
}

static reduce_plan reduce_plan_make(const sherdi_reduce_args *args, size_t first, int is_streaming,
                                    size_t ahead_bytes)
{
    reduce_plan plan = {.src_dtype   = args->src_dtype,
                        .round_dtype = args->comm_dtype,
                        .dst_dtype   = args->dst_dtype,
                        .ahead_bytes = ahead_bytes,
                        .is_long     = is_streaming};

    if (args->comm_dtype == args->dst_dtype && !args->accumulate) {
        plan.round_dtype = SHERD_F32;
    }
    if (plan.src_dtype == SHERD_BF16 && plan.dst_dtype == SHERD_BF16) {
        plan.src_dtype = BF16_SPLIT;
        plan.dst_dtype = BF16_SPLIT;
    }
    if (is_streaming) {
        plan.dst_streams = !args->accumulate && reduce_streams_to(args, args->dst, first);
        for (int k = 0; k < args->num_more_dsts && k < 64; k++) {
            plan.more_streams |= (uint64_t)reduce_streams_to(args, args->more_dsts[k], first) << k;
        }
    }
    return plan;
}

INLINE void reduce_tile(const sherdi_reduce_args *args, const reduce_plan *plan, size_t first)
{
    vec_f32 sum[TILE_VECS];

    reduce_sum(sum, args, plan, first);
    reduce_round(sum, args->scale, plan->round_dtype);
    if (args->accumulate) {
        tile_add(sum, args->dst, plan->dst_dtype, first, plan->ahead_bytes);
    }
    tile_store(args->dst, plan->dst_dtype, first, sum, plan->dst_streams);
    for (int k = 0; k < args->num_more_dsts; k++) {
        tile_store(args->more_dsts[k], plan->dst_dtype, first, sum,
                   k < 64 && (plan->more_streams >> k & 1) != 0);
    }
}

/* Reduces whole tiles of [first, end); returns where they end. A core fetches more lines at once
 * from several places than from one, so a long range is walked as two halves, a tile of each in
 * turn. */
INLINE size_t reduce_tiles(const sherdi_reduce_args *args, const reduce_plan *plan, size_t first,
                           size_t end)
{
    size_t half = plan->is_long ? (end - first) / 2 / TILE_ELEMS * TILE_ELEMS : 0;

    for (size_t at = first; at < first + half; at += TILE_ELEMS) {
        reduce_tile(args, plan, at);
        reduce_tile(args, plan, at + half);
    }
    for (first += 2 * half; first + TILE_ELEMS <= end; first += TILE_ELEMS) {
        reduce_tile(args, plan, first);
    }
    return first;
}

static int plan_is(const reduce_plan *plan, sherd_dtype dtype)
{
    return plan->src_dtype == dtype && plan->round_dtype == SHERD_F32 && plan->dst_dtype == dtype;
}

/* The most important case, one type throughout, has a loop of its own, in which the compiler knows
 * the type. */
static void range_reduce(const sherdi_reduce_args *args, size_t first, size_t count_elems,
                         int is_streaming, size_t ahead_bytes)
{
    size_t      end  = first + count_elems;
    reduce_plan plan = reduce_plan_make(args, first, is_streaming, ahead_bytes);
    reduce_plan same = plan;

    if (plan_is(&plan, BF16_SPLIT)) {
        same.src_dtype   = BF16_SPLIT;
        same.round_dtype = SHERD_F32;
        same.dst_dtype   = BF16_SPLIT;
        first            = reduce_tiles(args, &same, first, end);
    } else if (plan_is(&plan, SHERD_F32)) {
        same.src_dtype   = SHERD_F32;
        same.round_dtype = SHERD_F32;
        same.dst_dtype   = SHERD_F32;
        first            = reduce_tiles(args, &same, first, end);
    } else {
        first = reduce_tiles(args, &plan, first, end);
    }
    stream_fence();
    sherdi_reduce_elems(args, first, end);
}

/* --------------------------------------------------- cast and accumulate -- */

static void range_cast(void *dst, sherd_dtype dst_dtype, const void *src, sherd_dtype src_dtype,
                       size_t count_elems, int is_streaming)
{
    size_t first = 0;

    if (is_streaming) {
        first = sherdi_min_size(bytes_to_line(dst) / (dst_dtype == SHERD_F32 ? 4 : 2), count_elems);
        sherdi_cast_elems(dst, dst_dtype, src, src_dtype, 0, first);
    }
    for (; first + TILE_ELEMS <= count_elems; first += TILE_ELEMS) {
        vec_f32 x[TILE_VECS];

        tile_prefetch(src, src_dtype, first, AHEAD_BYTES);
        tile_load(x, src, src_dtype, first);
        if (dst_dtype != SHERD_F32) {
            for (int i = 0; i < TILE_VECS; i++) {
                x[i] = vec_quiet(x[i]);
            }
        }
        tile_store(dst, dst_dtype, first, x, is_streaming);
    }
    sherdi_cast_elems(dst, dst_dtype, src, src_dtype, first, count_elems);
}

static void range_accumulate(void *acc, sherd_dtype acc_dtype, const void *x, sherd_dtype x_dtype,
                             size_t count_elems, size_t ahead_bytes)
{
    size_t first = 0;

    for (; first + TILE_ELEMS <= count_elems; first += TILE_ELEMS) {
        vec_f32 sum[TILE_VECS];

        tile_prefetch(x, x_dtype, first, ahead_bytes);
        tile_load(sum, x, x_dtype, first);
        tile_add(sum, acc, acc_dtype, first, ahead_bytes);
        tile_store(acc, acc_dtype, first, sum, 0);
    }
    sherdi_accumulate_elems(acc, acc_dtype, x, x_dtype, first, count_elems);
}

/* -------------------------------------------------------- copy and zero -- */

/* Copies four lines past the caches. */
INLINE void copy_lines(char *to, const char *from, size_t ahead_bytes)
{
    for (size_t k = 0; k < 4 * CACHE_LINE_BYTES; k += CACHE_LINE_BYTES) {
        __builtin_prefetch(from + k + ahead_bytes, 0, 3);
    }
    for (size_t k = 0; k < 4 * CACHE_LINE_BYTES; k += 4 * LANES) {
        vec_stream_bits(to + k, vec_load_bits(from + k));
    }
}

/* A long copy goes as two halves in turn, as in reduce_tiles. */
static void range_copy(void *dst, const void *src, size_t len_bytes, int is_streaming,
                       size_t ahead_bytes)
{
    size_t      head = sherdi_min_size(bytes_to_line(dst), len_bytes);
    char       *to   = (char *)dst + head;
    const char *from = (const char *)src + head;
    size_t      half = (len_bytes - head) / 2 & ~(size_t)255;

    if (!is_streaming) {
        memcpy(dst, src, len_bytes);
        return;
    }
    memcpy(dst, src, head);
    for (size_t i = 0; i < half; i += 4 * CACHE_LINE_BYTES) {
        copy_lines(to + i, from + i, ahead_bytes);
        copy_lines(to + half + i, from + half + i, ahead_bytes);
    }
    stream_fence();
    memcpy(to + 2 * half, from + 2 * half, len_bytes - head - 2 * half);
}

static void range_zero(void *dst, size_t len_bytes, int is_streaming)
{
    size_t   head = sherdi_min_size(bytes_to_line(dst), len_bytes);
    char    *to   = (char *)dst + head;
    size_t   body = (len_bytes - head) & ~(size_t)(CACHE_LINE_BYTES - 1);
    vec_bits none = VEC(set1_epi32)(0);

    if (!is_streaming) {
        memset(dst, 0, len_bytes);
        return;
    }
    memset(dst, 0, head);
    for (size_t i = 0; i < body; i += 4 * LANES) {
        vec_stream_bits(to + i, none);
    }
    stream_fence();
    memset(to + body, 0, len_bytes - head - body);
}

#include "kernels/cpu/vector_list.h"
