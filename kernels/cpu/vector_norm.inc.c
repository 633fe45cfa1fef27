/* The sum of squares over 256-bit vectors, for both AVX2 and AVX-512: most of its time goes to
 * conversions to double, which are no faster at 512 bits. It sums four chunks at once by the tree
 * of sherdi_norm_chunk, and adds their sums as sherdi_norm_add does, but to digits in registers. */
#include "kernels/cpu/elements.h"
#include "kernels/cpu/vector_defs.h"

/* ------------------------------------------------------------ chunk sums -- */

/* The lanes 0 .. 3 and 4 .. 7 of sherdi_norm_chunk. */
typedef struct lane_sums {
    __m256d low, high;
} lane_sums;

INLINE lane_sums lane_sums_empty(void)
{
    return (lane_sums){_mm256_setzero_pd(), _mm256_setzero_pd()};
}

INLINE void lanes_add(lane_sums *sums, __m128 low, __m128 high)
{
    __m256d x = _mm256_cvtps_pd(low);
    __m256d y = _mm256_cvtps_pd(high);

    sums->low  = _mm256_fmadd_pd(x, x, sums->low);
    sums->high = _mm256_fmadd_pd(y, y, sums->high);
}

INLINE void lanes_add_row(lane_sums *sums, const char *chunk, sherd_dtype dtype, size_t row)
{
    if (dtype == SHERD_F32) {
        const float *at = (const float *)(const void *)chunk + 8 * row;

        lanes_add(sums, _mm_loadu_ps(at), _mm_loadu_ps(at + 4));
    } else {
        __m128i eight = _mm_loadu_si128((const __m128i *)(const void *)chunk + row);

        if (dtype == SHERD_F16) {
            __m256 x = _mm256_cvtph_ps(eight);

            lanes_add(sums, _mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
        } else { /* even lanes, odd lanes */
            lanes_add(sums, _mm_castsi128_ps(_mm_slli_epi32(eight, 16)),
                      _mm_castsi128_ps(_mm_and_si128(eight, _mm_set1_epi32((int)0xffff0000u))));
        }
    }
}

/* Returns the four lanes of one chunk after the step 4 + 4. */
INLINE __m256d chunk_lanes(const char *chunk, sherd_dtype dtype)
{
    lane_sums sums = lane_sums_empty();
    __m256d   upper;
    __m256d   lower;

    for (size_t row = 0; row < 8; row++) {
        lanes_add_row(&sums, chunk, dtype, row);
    }
    if (dtype != SHERD_BF16) {
        return _mm256_add_pd(sums.low, sums.high);
    }
    lower = _mm256_permute2f128_pd(sums.low, sums.high, 0x20); /* 0 2 1 3 */
    upper = _mm256_permute2f128_pd(sums.low, sums.high, 0x31); /* 4 6 5 7 */
    return _mm256_permute4x64_pd(_mm256_add_pd(lower, upper), 0xd8);
}

/* Does the step 2 + 2 for two chunks. */
INLINE __m256d halves_add(__m256d a, __m256d b)
{
    return _mm256_add_pd(_mm256_permute2f128_pd(a, b, 0x20), _mm256_permute2f128_pd(a, b, 0x31));
}

/* Returns the sums of four chunks, in some order, from their lanes. */
INLINE __m256d chunk_sums(const __m256d *lanes)
{
    __m256d ab = halves_add(lanes[0], lanes[1]);
    __m256d cd = halves_add(lanes[2], lanes[3]);

    return _mm256_add_pd(_mm256_unpacklo_pd(ab, cd), _mm256_unpackhi_pd(ab, cd));
}

/* --------------------------------------------------------------- cache -- */

/* A cache of four neighbouring bins, with one copy in each lane. Sums of one tensor seldom differ
 * by more than the factor 2^64 that fits into the cache. A sum that does not fit moves the
 * cache. */
#define CACHE_BINS 4

typedef struct norm_cache {
    __m256i bins[CACHE_BINS];
    int     first_bin;
} norm_cache;

INLINE norm_cache cache_empty(void)
{
    norm_cache cache;

    for (int i = 0; i < CACHE_BINS; i++) {
        cache.bins[i] = _mm256_setzero_si256();
    }
    cache.first_bin = 0;
    return cache;
}

INLINE void cache_flush(norm_cache *cache, sherdi_norm_acc *acc)
{
    for (int i = 0; i < CACHE_BINS; i++) {
        uint64_t lanes[4];

        _mm256_storeu_si256((__m256i *)(void *)lanes, cache->bins[i]);
        acc->bins[cache->first_bin + i] += lanes[0] + lanes[1] + lanes[2] + lanes[3];
        cache->bins[i] = _mm256_setzero_si256();
    }
}

/* The exponent bits of a double whose lowest fraction bit stands for 2^SHERDI_NORM_LOW_EXPONENT. */
#define EXPONENT_OF_BIN_0 (1075 + SHERDI_NORM_LOW_EXPONENT)

/* Moves the cache so that `sum` lies in its middle half. */
static void cache_move(norm_cache *cache, double sum)
{
    uint64_t bits;
    int      low_bit;

    memcpy(&bits, &sum, sizeof(bits));
    low_bit          = (int)(bits >> 52 & 0x7ff) - EXPONENT_OF_BIN_0 - 16;
    cache->first_bin = low_bit < 0 ? 0 : low_bit / 32;
    if (cache->first_bin > SHERDI_NORM_BINS - CACHE_BINS) {
        cache->first_bin = SHERDI_NORM_BINS - CACHE_BINS;
    }
}

static void cache_miss(norm_cache *cache, sherdi_norm_acc *acc, const double *sums)
{
    cache_flush(cache, acc);
    for (int i = 0; i < 4; i++) {
        sherdi_norm_add(acc, sums[i]);
    }
    for (int i = 0; i < 4; i++) {
        if (isfinite(sums[i]) && sums[i] != 0) {
            cache_move(cache, sums[i]);
            break;
        }
    }
}

INLINE void cache_add(norm_cache *cache, sherdi_norm_acc *acc, __m256d sums)
{
    const __m256i digit   = _mm256_set1_epi64x(0xffffffff);
    __m256i       bits    = _mm256_castpd_si256(sums);
    __m256i       is_zero = _mm256_cmpeq_epi64(bits, _mm256_setzero_si256());
    __m256i       lowest  = _mm256_set1_epi64x(EXPONENT_OF_BIN_0 + 32 * cache->first_bin);
    __m256i       low_bit = _mm256_sub_epi64(_mm256_srli_epi64(bits, 52), lowest);
    __m256i fraction = _mm256_or_si256(_mm256_and_si256(bits, _mm256_set1_epi64x(0xfffffffffffff)),
                                       _mm256_set1_epi64x(1LL << 52));
    __m256i low;
    __m256i high;

    low_bit  = _mm256_andnot_si256(is_zero, low_bit);
    fraction = _mm256_andnot_si256(is_zero, fraction);
    if (!_mm256_testz_si256(low_bit, _mm256_set1_epi64x(~63LL))) { /* below, above, Inf or NaN */
        double apart[4];

        _mm256_storeu_pd(apart, sums);
        cache_miss(cache, acc, apart);
        return;
    }
    low  = _mm256_sllv_epi64(fraction, low_bit);
    high = _mm256_srlv_epi64(fraction, _mm256_sub_epi64(_mm256_set1_epi64x(64), low_bit));

    cache->bins[0] = _mm256_add_epi64(cache->bins[0], _mm256_and_si256(low, digit));
    cache->bins[1] = _mm256_add_epi64(cache->bins[1], _mm256_srli_epi64(low, 32));
    cache->bins[2] = _mm256_add_epi64(cache->bins[2], _mm256_and_si256(high, digit));
    cache->bins[3] = _mm256_add_epi64(cache->bins[3], _mm256_srli_epi64(high, 32));
}

/* -------------------------------------------------------------- streams -- */

/* A core requests few lines at once of one sequential stream, and more of several streams that are
 * far apart. So a range is read as this many streams, two chunks of each in turn. Without
 * prefetches, which would only cost time here. */
#define NORM_STREAMS     2
#define NORM_TURN_CHUNKS 2

/* Streams at a distance that is a multiple of this would evict each other from the first-level
 * cache. They are then made shorter, and a second round reads the rest. */
#define STREAM_CLASH_BYTES ((size_t)1 << 20)
#define STREAM_SHIFT_BYTES ((size_t)37 << 12)

/* Returns the chunks of each stream when `chunks` remain. */
static size_t stream_chunks(size_t chunks, size_t chunk_bytes)
{
    size_t each = chunks / (NORM_STREAMS * NORM_TURN_CHUNKS) * NORM_TURN_CHUNKS;

    if (each * chunk_bytes % STREAM_CLASH_BYTES == 0 && each * chunk_bytes > STREAM_SHIFT_BYTES) {
        each -= STREAM_SHIFT_BYTES / chunk_bytes;
    }
    return each;
}

INLINE void sumsq_streams(const char *x, sherd_dtype dtype, size_t each, sherdi_norm_acc *acc)
{
    size_t     chunk_bytes = SHERD_CHUNK_ELEMS * (dtype == SHERD_F32 ? 4 : 2);
    norm_cache cache       = cache_empty();

    for (size_t i = 0; i < each; i += NORM_TURN_CHUNKS) {
        const char *first   = x + i * chunk_bytes;
        const char *second  = first + each * chunk_bytes;
        __m256d     lanes[] = {chunk_lanes(first, dtype), chunk_lanes(second, dtype),
                               chunk_lanes(first + chunk_bytes, dtype),
                               chunk_lanes(second + chunk_bytes, dtype)};

        cache_add(&cache, acc, chunk_sums(lanes));
    }
    cache_flush(&cache, acc);
}

static void sumsq_tail(const char *x, sherd_dtype dtype, size_t chunks, sherdi_norm_acc *acc)
{
    float chunk[SHERD_CHUNK_ELEMS];

    for (size_t first = 0; first < chunks * SHERD_CHUNK_ELEMS; first += SHERD_CHUNK_ELEMS) {
        for (size_t i = 0; i < SHERD_CHUNK_ELEMS; i++) {
            chunk[i] = sherdi_load_elem(x, dtype, first + i);
        }
        sherdi_norm_add(acc, sherdi_norm_chunk(chunk));
    }
}

static void range_sumsq(const void *x, sherd_dtype dtype, size_t count_elems, sherdi_norm_acc *acc)
{
    size_t      chunks      = count_elems / SHERD_CHUNK_ELEMS;
    size_t      chunk_bytes = SHERD_CHUNK_ELEMS * (dtype == SHERD_F32 ? 4 : 2);
    const char *at          = x;

    while (chunks >= NORM_STREAMS * NORM_TURN_CHUNKS) {
        size_t each = stream_chunks(chunks, chunk_bytes);

        if (dtype == SHERD_F32) {
            sumsq_streams(at, SHERD_F32, each, acc);
        } else if (dtype == SHERD_BF16) {
            sumsq_streams(at, SHERD_BF16, each, acc);
        } else {
            sumsq_streams(at, SHERD_F16, each, acc);
        }
        at += NORM_STREAMS * each * chunk_bytes;
        chunks -= NORM_STREAMS * each;
    }
    sumsq_tail(at, dtype, chunks, acc);
}
