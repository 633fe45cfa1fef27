/* Sums of squares (see formulas.h): how a warp makes the sums of chunks in shared memory, and how
 * it adds them up without an atomic addition per chunk. norm.cu and lamb.cu use this. A lane is a
 * thread of a warp here.
 *
 * Chunks lie in shared memory as rows, ROW_F32_BYTES or ROW_HALF_BYTES apart; the padding lets
 * lanes that read different rows meet different banks. The order of additions inside a chunk is the
 * formula's: eight sums, each over eight rows of eight elements, then a tree. For an fp32 chunk,
 * two lanes have four of the eight sums each.
 *
 * Chunk sums are cut into digits for bins. Each lane keeps the digits of four neighbouring bins
 * (the cache) in registers. A chunk's three digits fit if its lowest bin is the first or second of
 * the cache, so sums up to a factor of 2^64 apart share a cache. Sums that do not fit go to the
 * bins at once; if many of them do not, the cache is flushed and moved. All of these are integers,
 * so the order does not show. */
#ifndef SHERDI_KERNELS_CUDA_NORMS_CUH
#define SHERDI_KERNELS_CUDA_NORMS_CUH

#include "kernels/cuda/elements.cuh"

/* The words of sherdi_norm_acc: the digits, and the count of chunks that were not finite. */
#define NORM_WORDS   (SHERDI_NORM_BINS + 1)
#define CACHE_BINS   4
#define CACHE_NONE   0x40000000u
/* If the sums of more lanes than this do not fit, the cache is moved. */
#define CACHE_STRAYS 4

static_assert(sizeof(sherdi_norm_acc) == NORM_WORDS * sizeof(bin_t), "bins and a count");

/* ----------------------------------------------------------- chunks -- */

#define ROW_F32_BYTES  (SHERD_CHUNK_ELEMS * 4 + 32)
#define ROW_HALF_BYTES (SHERD_CHUNK_ELEMS * 2 + 16)
/* The rows of one warp: 16 of fp32, 32 of the other types. */
#define WARP_ROWS_BYTES (16 * ROW_F32_BYTES)

static_assert(32 * ROW_HALF_BYTES == WARP_ROWS_BYTES, "the same room for both");

/* Returns, in the even lanes, the sum of row lane / 2 of 16 rows of fp32. */
static inline __device__ double rows_sum_f32(const unsigned char *rows)
{
    unsigned     lane    = threadIdx.x % 32;
    const float *from    = (const float *)(rows + lane / 2 * ROW_F32_BYTES) + lane % 2 * 4;
    double       sums[4] = {0, 0, 0, 0};

#pragma unroll
    for (int row = 0; row < 8; row++) {
        float4 x = *(const float4 *)(from + row * 8);

        sums[0] = fma((double)x.x, (double)x.x, sums[0]);
        sums[1] = fma((double)x.y, (double)x.y, sums[1]);
        sums[2] = fma((double)x.z, (double)x.z, sums[2]);
        sums[3] = fma((double)x.w, (double)x.w, sums[3]);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        sums[i] = sums[i] + __shfl_down_sync(ALL_LANES, sums[i], 1);
    }
    return (sums[0] + sums[2]) + (sums[1] + sums[3]);
}

/* Returns the sum of row `lane` of 32 rows of a 16-bit type. */
template <sherd_dtype DTYPE> static inline __device__ double rows_sum_half(const unsigned char *rows)
{
    const unsigned char *from    = rows + threadIdx.x % 32 * ROW_HALF_BYTES;
    double               sums[8] = {0, 0, 0, 0, 0, 0, 0, 0};

#pragma unroll
    for (int row = 0; row < 8; row++) {
        uint4    x        = *(const uint4 *)(from + row * 16);
        uint32_t words[4] = {x.x, x.y, x.z, x.w};

#pragma unroll
        for (int i = 0; i < 4; i++) {
            double low  = half_widen(words[i] & 0xffffu, DTYPE);
            double high = half_widen(words[i] >> 16, DTYPE);

            sums[2 * i]     = fma(low, low, sums[2 * i]);
            sums[2 * i + 1] = fma(high, high, sums[2 * i + 1]);
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        sums[i] = sums[i] + sums[i + 4];
    }
    return (sums[0] + sums[2]) + (sums[1] + sums[3]);
}

/* ----------------------------------------------------------- cache -- */

/* The cache of one lane; `base`, its first bin, is the same in all lanes of a group. */
typedef struct norm_cache {
    unsigned base; /* CACHE_NONE: empty */
    bin_t    digits[CACHE_BINS];
} norm_cache;

static inline __device__ void cache_init(norm_cache *cache)
{
    cache->base = CACHE_NONE;
    for (int i = 0; i < CACHE_BINS; i++) {
        cache->digits[i] = 0;
    }
}

/* Adds the caches of each group of `group` lanes to the group's bins and empties them. All lanes of
 * the warp call it. */
static inline __device__ void cache_flush(norm_cache *cache, int group, bin_t *bins)
{
#pragma unroll
    for (int i = 0; i < CACHE_BINS; i++) {
        bin_t sum = lanes_sum(cache->digits[i], group);

        if (sum != 0 && threadIdx.x % (unsigned)group == 0) {
            atomicAdd(&bins[cache->base + (unsigned)i], sum);
        }
        cache->digits[i] = 0;
    }
    cache->base = CACHE_NONE;
}

/* Adds one chunk's sum per lane; 0: the lane has no chunk. Each group of `group` lanes may have
 * bins of its own. All lanes of the warp call it. */
static inline __device__ void cache_add(norm_cache *cache, int group, double sum, bin_t *bins)
{
    uint64_t digits[3] = {0, 0, 0};
    unsigned bin       = 0;
    int      kind      = sherdi_norm_split(sum, &bin, digits);
    int      is_stray  = kind > 0 && bin - cache->base > 1; /* true while the cache is empty */
    unsigned strays    = __ballot_sync(ALL_LANES, is_stray);

    if (kind < 0) {
        atomicAdd(&bins[SHERDI_NORM_BINS], (bin_t)1);
    }
    if (__popc(strays) > CACHE_STRAYS) {
        unsigned lowest = kind > 0 ? bin : CACHE_NONE;

        cache_flush(cache, group, bins);
        for (int by = group / 2; by > 0; by /= 2) {
            unsigned other = __shfl_xor_sync(ALL_LANES, lowest, by);

            lowest = other < lowest ? other : lowest;
        }
        cache->base  = lowest;
        is_stray     = kind > 0 && bin - lowest > 1;
    }
    if (is_stray) {
        for (unsigned i = 0; i < 3; i++) {
            if (digits[i] != 0) {
                atomicAdd(&bins[bin + i], (bin_t)digits[i]);
            }
        }
    } else if (kind > 0) {
        int is_second = bin != cache->base;

        cache->digits[0] += is_second ? 0 : digits[0];
        cache->digits[1] += is_second ? digits[0] : digits[1];
        cache->digits[2] += is_second ? digits[1] : digits[2];
        cache->digits[3] += is_second ? digits[2] : 0;
    }
}

/* Adds a thread block's bins to an accumulator and clears them. All threads of the thread block
 * call it. */
static inline __device__ void bins_flush(bin_t *bins, int words, bin_t *acc)
{
    __syncthreads();
    for (int i = (int)threadIdx.x; i < words; i += BLOCK_THREADS) {
        if (bins[i] != 0) {
            atomicAdd(&acc[i], bins[i]);
        }
        bins[i] = 0;
    }
    __syncthreads();
}

#endif
