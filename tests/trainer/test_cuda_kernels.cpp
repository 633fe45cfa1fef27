/* Kernels of the trainer by themselves, on the emulated device: one against another that has to
 * give the same bits. */
#include "trainer/cuda/kernels.h"
#include "trainer/cuda/launch.h"
#include "trainer/cuda/warpgroup_block.cuh"

#include <emulator.h>
#include <stdlib.h>
#include <string.h>

#define _Noreturn __attribute__((noreturn))
extern "C" {
#include "tests/lib/check.h"
}

/* Device memory of so many bytes of noise, and as many guard bytes after them. */
static unsigned char *noise_alloc(size_t len_bytes, uint64_t seed, const unsigned char *first,
                                  size_t first_bytes)
{
    unsigned char *host = (unsigned char *)malloc(len_bytes + 16);
    unsigned char *made = nullptr;

    for (size_t i = 0; i < len_bytes + 16; i++) {
        host[i] = (unsigned char)test_random(&seed);
    }
    memcpy(host, first, first_bytes < len_bytes ? first_bytes : len_bytes);
    CHECK(cudaMalloc(&made, len_bytes + 16) == cudaSuccess);
    CHECK(cudaMemcpy(made, host, len_bytes + 16, cudaMemcpyHostToDevice) == cudaSuccess);
    free(host);
    return made;
}

/* Any bits: infinities, subnormal numbers, and both zeros on both sides, as a sum that begins with
 * 0 never is -0. */
static void sum_in_fp32_is_added_as_one_partial_is(void)
{
    static const size_t   counts[]  = {1, 3, 4, 7, 8, 9, 63, 2048, 2049, 5003};
    static const float    zeros[]   = {-0.0f, -0.0f, 0.0f, 0.0f};
    static const uint16_t halves[]  = {0x8000, 0, 0x8000, 0};
    static const uint32_t singles[] = {0x80000000u, 0, 0x80000000u, 0};

    for (int dtype = SHERD_F32; dtype <= SHERD_F16; dtype++) {
        size_t      each = sherd_dtype_bytes((sherd_dtype)dtype);
        const void *old  = each == 4 ? (const void *)singles : (const void *)halves;

        for (size_t count : counts) {
            size_t         bytes = count * each;
            unsigned char *x     = noise_alloc(count * sizeof(float), count,
                                               (const unsigned char *)zeros, sizeof(zeros));
            unsigned char *want  = noise_alloc(bytes, 7, (const unsigned char *)old, 4 * each);
            unsigned char *got   = noise_alloc(bytes, 7, (const unsigned char *)old, 4 * each);
            unsigned char *host  = (unsigned char *)malloc(2 * (bytes + 16));

            columns_finish_launch((sherd_dtype)dtype, (const float *)x, 0, 1, count, want, nullptr);
            add_wide_launch((sherd_dtype)dtype, count, (const float *)x, got, nullptr);
            CHECK(cudaMemcpy(host, want, bytes + 16, cudaMemcpyDeviceToHost) == cudaSuccess);
            CHECK(cudaMemcpy(host + bytes + 16, got, bytes + 16, cudaMemcpyDeviceToHost) ==
                  cudaSuccess);
            CHECK_BYTES_EQUAL(host, host + bytes + 16, bytes + 16);
            free(host);
            cudaFree(x);
            cudaFree(want);
            cudaFree(got);
        }
    }
}

/* Numbers of 1/8 to 32 with both signs. */
static void *numbers_alloc(sherd_dtype dtype, size_t count, uint64_t seed, size_t *bytes_out)
{
    size_t         each = sherd_dtype_bytes(dtype);
    unsigned char *host = (unsigned char *)malloc(count * each + 16), *made = nullptr;

    memset(host, 0x5a, count * each + 16);
    for (size_t i = 0; i < count; i++) {
        uint32_t random = (uint32_t)test_random(&seed);
        uint32_t high   = (random & 0x80000000u) | (0x3e000000u + random % 0x04000000u);
        uint16_t half   = (uint16_t)(dtype == SHERD_BF16
                                         ? high >> 16
                                         : (random >> 16 & 0x8000u) | (0x3000u + random % 0x2000u));

        memcpy(host + i * each, each == 4 ? (const void *)&high : (const void *)&half, each);
    }
    *bytes_out = count * each + 16;
    CHECK(cudaMalloc(&made, *bytes_out) == cudaSuccess);
    CHECK(cudaMemcpy(made, host, *bytes_out, cudaMemcpyHostToDevice) == cudaSuccess);
    free(host);
    return made;
}

#define ENTROPY_ROWS 3

/* Gradients and losses, in host memory. */
static unsigned char *entropy_bits(entropy_launch e, size_t *bytes_out)
{
    const int32_t  ends[ENTROPY_ROWS] = {0, (int32_t)e.vocab / 2, (int32_t)e.vocab - 1};
    const size_t   losses             = ENTROPY_ROWS * sizeof(float);
    size_t         bytes;
    unsigned char *host;
    void          *targets = nullptr;

    e.logits = numbers_alloc(e.dtype, ENTROPY_ROWS * e.stride, e.vocab, &bytes);
    CHECK(cudaMalloc(&targets, sizeof(ends)) == cudaSuccess);
    CHECK(cudaMalloc((void **)&e.losses, losses) == cudaSuccess);
    CHECK(cudaMemcpy(targets, ends, sizeof(ends), cudaMemcpyHostToDevice) == cudaSuccess);
    e.rows    = ENTROPY_ROWS;
    e.targets = (const int32_t *)targets;
    entropy_launch_rows(&e, nullptr);
    CHECK(cudaGetLastError() == cudaSuccess);
    host = (unsigned char *)malloc(bytes + losses);
    CHECK(cudaMemcpy(host, e.logits, bytes, cudaMemcpyDeviceToHost) == cudaSuccess);
    CHECK(cudaMemcpy(host + bytes, e.losses, losses, cudaMemcpyDeviceToHost) == cudaSuccess);
    cudaFree(e.logits);
    cudaFree(e.losses);
    cudaFree(targets);
    *bytes_out = bytes + losses;
    return host;
}

/* A device of 228 KiB, where two rows of 57,792 16-bit logits have room and longer ones have not,
 * against one with room for none. Other tests compare its numbers with the CPU's. */
static void entropy_of_held_rows_gives_the_same_bits(void)
{
    const size_t        most     = ((size_t)114 << 10) - 1024 - 128;
    const shared_memory memory   = {(size_t)227 << 10, (size_t)228 << 10};
    static const size_t vocabs[] = {1, 7, 8, 300, 4096, 4105, 50257, 57792, 57800};

    CHECK(entropy_prepare(memory) == cudaSuccess);
    for (int dtype = SHERD_F32; dtype <= SHERD_F16; dtype++) {
        size_t each = sherd_dtype_bytes((sherd_dtype)dtype), vector = 16 / each;

        for (size_t vocab : vocabs) {
            for (int form = 0; form < 3;
                 form++) { /* whole vectors; losses alone; rows that do not begin at one */
                size_t         bytes, held = vocab / vector * vector * each;
                entropy_launch e = {};
                unsigned char *want, *got;

                e.dtype      = (sherd_dtype)dtype;
                e.vocab      = vocab;
                e.stride     = form == 2 ? vocab | 1 : (vocab + 24) / 8 * 8;
                e.grad_scale = form == 1 ? 0.0f : 0.125f;
                want         = entropy_bits(e, &bytes);
                (void)emulator_most_shared();
                e.memory = memory;
                got      = entropy_bits(e, &bytes);
                CHECK_INT(form == 2 || held > most ? 0 : held, emulator_most_shared());
                CHECK_BYTES_EQUAL(want, got, bytes);
                free(want);
                free(got);
            }
        }
    }
}

/* ---- norms */

#define NORM_ROWS 131 /* two whole chunks and three rows */

/* The arrays of a norm and its gradients, one after the other in host memory. */
static unsigned char *norm_bits(norm_launch n, bool is_layer, size_t *bytes_out)
{
    size_t         wide, narrow, at = 0;
    void          *x       = numbers_alloc(n.dtype, NORM_ROWS * n.width, 1, &wide);
    void          *dy      = numbers_alloc(n.dtype, NORM_ROWS * n.width, 2, &wide);
    void          *y       = numbers_alloc(n.dtype, NORM_ROWS * n.width, 3, &wide);
    void          *dx      = numbers_alloc(n.dtype, NORM_ROWS * n.width, 4, &wide);
    void          *weight  = numbers_alloc(n.dtype, n.width, 5, &narrow);
    void          *bias    = numbers_alloc(n.dtype, n.width, 6, &narrow);
    void          *dweight = numbers_alloc(n.dtype, n.width, 7, &narrow);
    void          *dbias   = numbers_alloc(n.dtype, n.width, 8, &narrow);
    unsigned char *host    = (unsigned char *)malloc(2 * wide + 2 * narrow);
    struct {
        void  *from;
        size_t bytes;
    } parts[] = {{y, wide}, {dx, wide}, {dweight, narrow}, {dbias, narrow}};

    n.rows   = NORM_ROWS;
    n.x      = x;
    n.weight = weight;
    n.bias   = is_layer ? bias : nullptr;
    n.y      = y;
    norm_queue(&n, nullptr);
    n.dy      = dy;
    n.dx      = dx;
    n.dweight = dweight;
    n.dbias   = dbias;
    norm_queue(&n, nullptr);
    CHECK(cudaGetLastError() == cudaSuccess);
    for (auto &part : parts) {
        CHECK(cudaMemcpy(host + at, part.from, part.bytes, cudaMemcpyDeviceToHost) == cudaSuccess);
        at += part.bytes;
    }
    for (void *memory : {x, dy, y, dx, weight, bias, dweight, dbias}) {
        cudaFree(memory);
    }
    *bytes_out = at;
    return host;
}

/* Rows of up to 2, 3, 4 and 8 vectors for each lane of a warp, of whole numbers of them and not. */
static void norms_of_held_rows_give_the_same_bits(void)
{
    static const size_t widths[] = {8, 256, 384, 388, 520, 760, 768, 776, 1024, 1032, 2048};
    const size_t        sums     = 3 * 2 * 2048 * sizeof(float);
    void               *stats = nullptr, *partials = nullptr;

    CHECK(cudaMalloc(&stats, 2 * NORM_ROWS * sizeof(float)) == cudaSuccess);
    CHECK(cudaMalloc(&partials, sums) == cudaSuccess);
    for (int dtype = SHERD_F32; dtype <= SHERD_F16; dtype++) {
        for (size_t width : widths) {
            for (int form = 0; form < 4; form++) {
                size_t         bytes;
                norm_launch    n = {};
                unsigned char *want, *got;

                n.dtype    = (sherd_dtype)dtype;
                n.width    = width;
                n.eps      = 1e-5f;
                n.is_added = form % 2;
                n.partials = (float *)partials;
                want       = norm_bits(n, form / 2 == 0, &bytes);
                n.stats    = (float *)stats;
                got        = norm_bits(n, form / 2 == 0, &bytes);
                CHECK_BYTES_EQUAL(want, got, bytes);
                free(want);
                free(got);
            }
        }
    }
    cudaFree(stats);
    cudaFree(partials);
}

/* ---- works */

struct work_rows {
    static constexpr int OWN = 64;
};

/* Counts each work, and the rows that its block has taken so far. */
static void works_count(int batch, int heads, int length, bool is_sorted, int *counts, int *rows)
{
    const int blocks = (length + work_rows::OWN - 1) / work_rows::OWN;
    int       turns  = 0;

    works_sorted<work_rows>(batch, heads, length, is_sorted, [&](const work &w) {
        counts[(w.sequence * heads + w.head) * blocks + w.first / work_rows::OWN] +=
            w.turn == turns ? 1 : 100;
        rows[blockIdx.x] += w.first + work_rows::OWN;
        turns++;
    });
}

/* Fewer works than blocks and more, odd and even numbers of rows' blocks. Sorted, no block has more
 * than one short work more. */
static void sorted_works_are_each_done_once(void)
{
    static const struct {
        int batch, heads, length, blocks;
    } SHAPES[] = {{1, 1, 1, 1}, {1, 2, 200, 3}, {2, 3, 320, 7}, {1, 5, 1000, 4}, {3, 2, 64, 9}};

    for (auto &shape : SHAPES) {
        for (int is_sorted = 0; is_sorted < 2; is_sorted++) {
            int heads = shape.batch * shape.heads, works = heads * ((shape.length + 63) / 64);
            int most = 0, least = INT32_MAX, *counts = nullptr, host[1024];

            CHECK(cudaMalloc(&counts, sizeof(host)) == cudaSuccess);
            CHECK(cudaMemset(counts, 0, sizeof(host)) == cudaSuccess);
            LLM_LAUNCH(works_count, dim3(shape.blocks), dim3(1), 0, nullptr, shape.batch,
                       shape.heads, shape.length, is_sorted != 0, counts, counts + 512);
            CHECK(cudaMemcpy(host, counts, sizeof(host), cudaMemcpyDeviceToHost) == cudaSuccess);
            for (int i = 0; i < works; i++) {
                CHECK_INT(1, host[i]);
            }
            for (int b = 0; b < shape.blocks; b++) {
                most  = host[512 + b] > most ? host[512 + b] : most;
                least = host[512 + b] < least ? host[512 + b] : least;
            }
            if (is_sorted && works > 4 * shape.blocks) {
                CHECK(most - least <= 2 * work_rows::OWN);
            }
            cudaFree(counts);
        }
    }
}

static const test_case CASES[] = {
    CASE(sum_in_fp32_is_added_as_one_partial_is),
    CASE(entropy_of_held_rows_gives_the_same_bits),
    CASE(norms_of_held_rows_give_the_same_bits),
    CASE(sorted_works_are_each_done_once),
};

RUN_MAIN(CASES)
