#include "bench/traffic.h"

#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

const traffic_shape TRAFFIC_TABLE[TRAFFIC_NUM_SHAPES] = {
#define TRAFFIC_SHAPE(name, grad, part0, part1, part2, param, kind)                                \
    [TRAFFIC_##name] = {grad, {part0, part1, part2}, param, kind},
    TRAFFIC_SHAPES
#undef TRAFFIC_SHAPE
};

size_t traffic_shape_bytes(const traffic_shape *shape)
{
    size_t bytes = shape->grad_bytes;

    for (int part = 0; part < TRAFFIC_MOST_PARTS; part++) {
        bytes += shape->part_bytes[part] * (shape->kind == TRAFFIC_READS ? 1 : 2);
    }
    return bytes + shape->param_bytes * (shape->kind == TRAFFIC_UPDATES_PARAM ? 2 : 1);
}

/* Bits of which no compiler knows that they are zero: an or with them reads, writes and does not
 * change the operand. */
static uint64_t no_bits(void)
{
    uint64_t none = 0;

    __asm__("" : "+r"(none));
    return none;
}

/* ---------------------------------------------------------------- plain -- */

static uint64_t plain_touch(unsigned char *at, size_t bytes, int is_written, uint64_t none)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < bytes; i += 4) {
        uint32_t word;

        memcpy(&word, at + i, sizeof(word));
        sum += word;
        if (is_written) {
            word |= (uint32_t)none;
            memcpy(at + i, &word, sizeof(word));
        }
    }
    return sum;
}

static uint64_t plain_walk(const traffic_shape *shape, const traffic_arrays *arrays, size_t first,
                           size_t end)
{
    uint64_t none = no_bits();
    uint64_t sum  = 0;

    for (size_t chunk = first; chunk < end; chunk++) {
        unsigned char *grad = arrays->grad + chunk * shape->grad_bytes;

        sum += plain_touch(grad, shape->grad_bytes, 0, 0);
        for (int part = 0; part < TRAFFIC_MOST_PARTS; part++) {
            sum += plain_touch(arrays->parts[part] + chunk * shape->part_bytes[part],
                               shape->part_bytes[part], shape->kind != TRAFFIC_READS, none);
        }
        if (shape->kind == TRAFFIC_WRITES_PARAM) {
            memcpy(arrays->param + chunk * shape->param_bytes, grad, shape->param_bytes);
        } else if (shape->kind == TRAFFIC_UPDATES_PARAM) {
            sum += plain_touch(arrays->param + chunk * shape->param_bytes, shape->param_bytes, 1,
                               none);
        }
    }
    return sum;
}

#define TRAFFIC_SHAPE(name, grad, part0, part1, part2, param, kind)                                \
    static uint64_t plain_##name(const traffic_arrays *arrays, size_t first, size_t end,           \
                                 size_t ahead_bytes)                                               \
    {                                                                                              \
        (void)ahead_bytes;                                                                         \
        return plain_walk(&TRAFFIC_TABLE[TRAFFIC_##name], arrays, first, end);                     \
    }
TRAFFIC_SHAPES
#undef TRAFFIC_SHAPE

static void plain_copy(void *dst, const void *src, size_t len_bytes)
{
    memcpy(dst, src, len_bytes);
}

static const traffic_loops PLAIN = {
    .updates =
        {
#define TRAFFIC_SHAPE(name, grad, part0, part1, part2, param, kind) plain_##name,
            TRAFFIC_SHAPES
#undef TRAFFIC_SHAPE
        },
    .copy = plain_copy,
};

#if defined(__x86_64__)

#define LINE_BYTES 64

/* ----------------------------------------------------------------- AVX2 -- */

#define FOR_AVX2    __attribute__((target("avx2")))
#define AVX2_INLINE FOR_AVX2 static inline __attribute__((always_inline))

AVX2_INLINE __m256i avx2_load(const void *at)
{
    return _mm256_loadu_si256(at);
}

AVX2_INLINE void avx2_store(void *at, __m256i x)
{
    _mm256_storeu_si256(at, x);
}

AVX2_INLINE void avx2_stream(void *at, __m256i x)
{
    _mm256_stream_si256(at, x);
}

AVX2_INLINE __m256i avx2_set(long long x)
{
    return _mm256_set1_epi64x(x);
}

AVX2_INLINE __m256i avx2_or(__m256i a, __m256i b)
{
    return _mm256_or_si256(a, b);
}

AVX2_INLINE __m256i avx2_add(__m256i a, __m256i b)
{
    return _mm256_add_epi64(a, b);
}

AVX2_INLINE uint64_t avx2_first(__m256i x)
{
    return (uint64_t)_mm_cvtsi128_si64(_mm256_castsi256_si128(x));
}

#define TARGET   FOR_AVX2
#define IN(name) avx2_##name
#define VECTOR   __m256i
#include "bench/traffic_walk.h"

FOR_AVX2 static void avx2_copy(void *dst, const void *src, size_t len_bytes)
{
    for (size_t i = 0; i < len_bytes; i += 32) {
        avx2_stream((char *)dst + i, avx2_load((const char *)src + i));
    }
    _mm_sfence();
}

static const traffic_loops AVX2 = {
    .updates =
        {
#define TRAFFIC_SHAPE(name, grad, part0, part1, part2, param, kind) avx2_##name,
            TRAFFIC_SHAPES
#undef TRAFFIC_SHAPE
        },
    .copy = avx2_copy,
};

/* -------------------------------------------------------------- AVX-512 -- */

#define FOR_AVX512    __attribute__((target("avx512f")))
#define AVX512_INLINE FOR_AVX512 static inline __attribute__((always_inline))

AVX512_INLINE __m512i avx512_load(const void *at)
{
    return _mm512_loadu_si512(at);
}

AVX512_INLINE void avx512_store(void *at, __m512i x)
{
    _mm512_storeu_si512(at, x);
}

AVX512_INLINE void avx512_stream(void *at, __m512i x)
{
    _mm512_stream_si512(at, x);
}

AVX512_INLINE __m512i avx512_set(long long x)
{
    return _mm512_set1_epi64(x);
}

AVX512_INLINE __m512i avx512_or(__m512i a, __m512i b)
{
    return _mm512_or_si512(a, b);
}

AVX512_INLINE __m512i avx512_add(__m512i a, __m512i b)
{
    return _mm512_add_epi64(a, b);
}

AVX512_INLINE uint64_t avx512_first(__m512i x)
{
    return (uint64_t)_mm_cvtsi128_si64(_mm512_castsi512_si128(x));
}

#define TARGET   FOR_AVX512
#define IN(name) avx512_##name
#define VECTOR   __m512i
#include "bench/traffic_walk.h"

FOR_AVX512 static void avx512_copy(void *dst, const void *src, size_t len_bytes)
{
    for (size_t i = 0; i < len_bytes; i += 64) {
        avx512_stream((char *)dst + i, avx512_load((const char *)src + i));
    }
    _mm_sfence();
}

/* Reads are of two loads to a line: a fifth faster than one on AMD's cores. */
static const traffic_loops AVX512 = {
    .updates =
        {
#define TRAFFIC_SHAPE(name, grad, part0, part1, part2, param, kind)                                \
    (kind) == TRAFFIC_READS ? avx2_##name : avx512_##name,
            TRAFFIC_SHAPES
#undef TRAFFIC_SHAPE
        },
    .copy = avx512_copy,
};

#endif

const traffic_loops *traffic_loops_find(const char *isa)
{
#if defined(__x86_64__)
    if (strcmp(isa, "avx512") == 0) {
        return &AVX512;
    }
    if (strcmp(isa, "avx2") == 0) {
        return &AVX2;
    }
#endif
    (void)isa;
    return &PLAIN;
}
