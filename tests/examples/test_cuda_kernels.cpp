/* Kernels of the trainer by themselves, on the emulated device: one against another that has to give the same bits. */
#include "examples/llm/cuda/kernels.h"

#include <stdlib.h>
#include <string.h>

#define _Noreturn __attribute__((noreturn))
extern "C" {
#include "tests/lib/check.h"
}

/* Device memory of so many bytes of noise, and as many guard bytes behind them. */
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

/* Any bits: infinities, subnormal numbers, and both zeros on both sides, as a sum that begins with 0 never is -0. */
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

static const test_case CASES[] = {
    CASE(sum_in_fp32_is_added_as_one_partial_is),
};

RUN_MAIN(CASES)
