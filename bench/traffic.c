#include "bench/traffic.h"

#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* ---------------------------------------------------------------- plain -- */

static void plain_adam_f32(float *p, float *m, float *v, const float *g, size_t count_elems,
                           size_t ahead_bytes)
{
    (void)ahead_bytes;
    for (size_t i = 0; i < count_elems; i++) {
        p[i] += g[i];
        m[i] += g[i];
        v[i] += g[i];
    }
}

static void plain_adam_mixed(float *p, float *m, float *v, const uint16_t *g, uint16_t *copy,
                             size_t count_elems, size_t ahead_bytes)
{
    (void)ahead_bytes;
    for (size_t i = 0; i < count_elems; i++) {
        float addend = (float)g[i];

        p[i] += addend;
        m[i] += addend;
        v[i] += addend;
        copy[i] = g[i];
    }
}

static void plain_adam_beside(uint16_t *rest, float *m, float *v, const uint16_t *g,
                              uint16_t *param, size_t count_elems, size_t ahead_bytes)
{
    (void)ahead_bytes;
    for (size_t i = 0; i < count_elems; i++) {
        float addend = (float)g[i];

        rest[i]  = (uint16_t)(rest[i] + g[i]);
        param[i] = (uint16_t)(param[i] + g[i]);
        m[i] += addend;
        v[i] += addend;
    }
}

static uint64_t plain_read_f32(const float *p, const float *m, const float *v, const float *g,
                               size_t count_elems, size_t ahead_bytes)
{
    uint64_t sum = 0;

    (void)ahead_bytes;
    for (size_t i = 0; i < count_elems; i++) {
        sum += (uint64_t)(p[i] + m[i] + v[i] + g[i]);
    }
    return sum;
}

static uint64_t plain_read_mixed(const float *p, const float *m, const float *v, const uint16_t *g,
                                 size_t count_elems, size_t ahead_bytes)
{
    uint64_t sum = 0;

    (void)ahead_bytes;
    for (size_t i = 0; i < count_elems; i++) {
        sum += (uint64_t)(p[i] + m[i] + v[i]) + g[i];
    }
    return sum;
}

static void plain_copy(void *dst, const void *src, size_t len_bytes)
{
    memcpy(dst, src, len_bytes);
}

static const traffic_loops PLAIN = {
    .adam_f32    = plain_adam_f32,
    .adam_mixed  = plain_adam_mixed,
    .adam_beside = plain_adam_beside,
    .read_f32    = plain_read_f32,
    .read_mixed  = plain_read_mixed,
    .copy        = plain_copy,
};

#if defined(__x86_64__)

#define AHEAD(array, i) __builtin_prefetch((const char *)((array) + (i)) + ahead_bytes, 0, 3)

/* ----------------------------------------------------------------- AVX2 -- */

#define FOR_AVX2 __attribute__((target("avx2")))

FOR_AVX2 static void avx2_add(float *at, __m256 addend)
{
    _mm256_storeu_ps(at, _mm256_add_ps(_mm256_loadu_ps(at), addend));
}

FOR_AVX2 static void avx2_adam_f32(float *p, float *m, float *v, const float *g, size_t count_elems,
                                   size_t ahead_bytes)
{
    for (size_t i = 0; i < count_elems; i += 16) {
        AHEAD(p, i);
        AHEAD(m, i);
        AHEAD(v, i);
        AHEAD(g, i);
        for (size_t k = i; k < i + 16; k += 8) {
            __m256 addend = _mm256_loadu_ps(g + k);

            avx2_add(p + k, addend);
            avx2_add(m + k, addend);
            avx2_add(v + k, addend);
        }
    }
}

FOR_AVX2 static void avx2_adam_mixed(float *p, float *m, float *v, const uint16_t *g,
                                     uint16_t *copy, size_t count_elems, size_t ahead_bytes)
{
    for (size_t i = 0; i < count_elems; i += 16) {
        __m256i bits   = _mm256_loadu_si256((const __m256i *)(const void *)(g + i));
        __m256  addend = _mm256_castsi256_ps(bits);

        AHEAD(g, i);
        AHEAD(p, i);
        AHEAD(m, i);
        AHEAD(v, i);
        for (size_t k = i; k < i + 16; k += 8) {
            avx2_add(p + k, addend);
            avx2_add(m + k, addend);
            avx2_add(v + k, addend);
        }
        _mm256_stream_si256((__m256i *)(void *)(copy + i), bits);
    }
    _mm_sfence();
}

FOR_AVX2 static void avx2_add_halves(uint16_t *at, __m256i addend)
{
    __m256i *halves = (__m256i *)(void *)at;

    _mm256_storeu_si256(halves, _mm256_add_epi16(_mm256_loadu_si256(halves), addend));
}

FOR_AVX2 static void avx2_adam_beside(uint16_t *rest, float *m, float *v, const uint16_t *g,
                                      uint16_t *param, size_t count_elems, size_t ahead_bytes)
{
    for (size_t i = 0; i < count_elems; i += 16) {
        __m256i bits   = _mm256_loadu_si256((const __m256i *)(const void *)(g + i));
        __m256  addend = _mm256_castsi256_ps(bits);

        AHEAD(g, i);
        AHEAD(rest, i);
        AHEAD(param, i);
        AHEAD(m, i);
        AHEAD(v, i);
        avx2_add_halves(rest + i, bits);
        avx2_add_halves(param + i, bits);
        for (size_t k = i; k < i + 16; k += 8) {
            avx2_add(m + k, addend);
            avx2_add(v + k, addend);
        }
    }
}

FOR_AVX2 static __m256i avx2_sum(__m256i sum, const void *at)
{
    return _mm256_add_epi64(sum, _mm256_loadu_si256((const __m256i *)at));
}

FOR_AVX2 static uint64_t avx2_total(const __m256i *sums)
{
    uint64_t lanes[4];

    _mm256_storeu_si256(
        (__m256i *)(void *)lanes,
        _mm256_add_epi64(_mm256_add_epi64(sums[0], sums[1]), _mm256_add_epi64(sums[2], sums[3])));
    return lanes[0] + lanes[1] + lanes[2] + lanes[3];
}

FOR_AVX2 static uint64_t avx2_read_f32(const float *p, const float *m, const float *v,
                                       const float *g, size_t count_elems, size_t ahead_bytes)
{
    __m256i sums[4] = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(),
                       _mm256_setzero_si256()};

    for (size_t i = 0; i < count_elems; i += 16) {
        if (ahead_bytes > 0) {
            AHEAD(p, i);
            AHEAD(m, i);
            AHEAD(v, i);
            AHEAD(g, i);
        }
        for (size_t k = i; k < i + 16; k += 8) {
            sums[0] = avx2_sum(sums[0], p + k);
            sums[1] = avx2_sum(sums[1], m + k);
            sums[2] = avx2_sum(sums[2], v + k);
            sums[3] = avx2_sum(sums[3], g + k);
        }
    }
    return avx2_total(sums);
}

FOR_AVX2 static uint64_t avx2_read_mixed(const float *p, const float *m, const float *v,
                                         const uint16_t *g, size_t count_elems, size_t ahead_bytes)
{
    __m256i sums[4] = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(),
                       _mm256_setzero_si256()};

    for (size_t i = 0; i < count_elems; i += 16) {
        if (ahead_bytes > 0) {
            AHEAD(g, i);
            AHEAD(p, i);
            AHEAD(m, i);
            AHEAD(v, i);
        }
        for (size_t k = i; k < i + 16; k += 8) {
            sums[0] = avx2_sum(sums[0], p + k);
            sums[1] = avx2_sum(sums[1], m + k);
            sums[2] = avx2_sum(sums[2], v + k);
        }
        sums[3] = avx2_sum(sums[3], g + i);
    }
    return avx2_total(sums);
}

FOR_AVX2 static void avx2_copy(void *dst, const void *src, size_t len_bytes)
{
    for (size_t i = 0; i < len_bytes; i += 32) {
        __m256i bits = _mm256_loadu_si256((const __m256i *)(const void *)((const char *)src + i));

        _mm256_stream_si256((__m256i *)(void *)((char *)dst + i), bits);
    }
    _mm_sfence();
}

static const traffic_loops AVX2 = {
    .adam_f32    = avx2_adam_f32,
    .adam_mixed  = avx2_adam_mixed,
    .adam_beside = avx2_adam_beside,
    .read_f32    = avx2_read_f32,
    .read_mixed  = avx2_read_mixed,
    .copy        = avx2_copy,
};

/* -------------------------------------------------------------- AVX-512 -- */

#define FOR_AVX512 __attribute__((target("avx512f")))

FOR_AVX512 static void avx512_add(float *at, __m512 addend)
{
    _mm512_storeu_ps(at, _mm512_add_ps(_mm512_loadu_ps(at), addend));
}

FOR_AVX512 static void avx512_adam_f32(float *p, float *m, float *v, const float *g,
                                       size_t count_elems, size_t ahead_bytes)
{
    for (size_t i = 0; i < count_elems; i += 16) {
        __m512 addend = _mm512_loadu_ps(g + i);

        AHEAD(p, i);
        AHEAD(m, i);
        AHEAD(v, i);
        AHEAD(g, i);
        avx512_add(p + i, addend);
        avx512_add(m + i, addend);
        avx512_add(v + i, addend);
    }
}

FOR_AVX512 static void avx512_adam_mixed(float *p, float *m, float *v, const uint16_t *g,
                                         uint16_t *copy, size_t count_elems, size_t ahead_bytes)
{
    for (size_t i = 0; i < count_elems; i += 32) {
        __m512i bits   = _mm512_loadu_si512(g + i);
        __m512  addend = _mm512_castsi512_ps(bits);

        AHEAD(g, i);
        for (size_t k = i; k < i + 32; k += 16) {
            AHEAD(p, k);
            AHEAD(m, k);
            AHEAD(v, k);
            avx512_add(p + k, addend);
            avx512_add(m + k, addend);
            avx512_add(v + k, addend);
        }
        _mm512_stream_si512((void *)(copy + i), bits);
    }
    _mm_sfence();
}

FOR_AVX512 static void avx512_add_halves(uint16_t *at, __m512i addend)
{
    _mm512_storeu_si512(at, _mm512_add_epi32(_mm512_loadu_si512(at), addend));
}

FOR_AVX512 static void avx512_adam_beside(uint16_t *rest, float *m, float *v, const uint16_t *g,
                                          uint16_t *param, size_t count_elems, size_t ahead_bytes)
{
    for (size_t i = 0; i < count_elems; i += 32) {
        __m512i bits   = _mm512_loadu_si512(g + i);
        __m512  addend = _mm512_castsi512_ps(bits);

        AHEAD(g, i);
        AHEAD(rest, i);
        AHEAD(param, i);
        avx512_add_halves(rest + i, bits);
        avx512_add_halves(param + i, bits);
        for (size_t k = i; k < i + 32; k += 16) {
            AHEAD(m, k);
            AHEAD(v, k);
            avx512_add(m + k, addend);
            avx512_add(v + k, addend);
        }
    }
}

FOR_AVX512 static void avx512_copy(void *dst, const void *src, size_t len_bytes)
{
    for (size_t i = 0; i < len_bytes; i += 64) {
        _mm512_stream_si512((void *)((char *)dst + i), _mm512_loadu_si512((const char *)src + i));
    }
    _mm_sfence();
}

static const traffic_loops AVX512 = {
    .adam_f32    = avx512_adam_f32,
    .adam_mixed  = avx512_adam_mixed,
    .adam_beside = avx512_adam_beside,
    .read_f32    = avx2_read_f32, /* two loads to a line: a fifth faster than one on AMD's cores */
    .read_mixed  = avx2_read_mixed,
    .copy        = avx512_copy,
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
