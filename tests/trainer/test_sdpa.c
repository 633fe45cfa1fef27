/* What the trainer describes to cuDNN as attention, held against the library itself for an H100
 * that is described to it: whether it knows kernels for the two graphs, without a device. Only a
 * GPU shows whether they compute the right thing. */
#include "tests/lib/check.h"

#include "trainer/cuda/sdpa.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* As cuDNN writes the properties of a device. */
static const char H100[] =
    "{\"regsPerBlock\":65536,\"multiProcessorCount\":132,\"warpSize\":32"
    ",\"maxSharedMemoryPerBlock\":49152,\"maxSharedMemoryPerBlockOptin\":232448"
    ",\"reservedSharedMemoryPerBlock\":1024,\"maxRegistersPerSM\":65536"
    ",\"maxCtasPerSM\":32,\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":2048"
    ",\"pciDeviceId\":9008,\"isTccDriver\":0,\"supportCoopLaunch\":1"
    ",\"totalGlobalMem\":85000000000,\"smClockRateKHz\":1980000"
    ",\"memClockRateKHz\":2619000,\"l2CacheSize\":52428800,\"cudaDeviceId\":0"
    ",\"deviceVer\":900,\"driverVer\":13000,\"deviceName\":\"NVIDIA H100 80GB HBM3\""
    ",\"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64]}";

static int check(const sdpa_shape *shape, sdpa_info *info, char *why, size_t why_bytes)
{
    int result = sdpa_check(shape, H100, info, why, why_bytes);

    if (result != 0 &&
        (strstr(why, "cannot be opened") != NULL || strstr(why, "without the header") != NULL)) {
        test_skip("%s", why);
    }
    return result;
}

static sdpa_shape joined(size_t heads, size_t width, sherd_dtype dtype)
{
    return (sdpa_shape){.dtype     = dtype,
                        .batch     = 32,
                        .length    = 1024,
                        .heads     = heads,
                        .kv_heads  = heads,
                        .width     = width,
                        .q_stride  = 3 * heads * width,
                        .kv_stride = 3 * heads * width};
}

static void cudnn_has_kernels_for_what_is_described(void)
{
    const sdpa_shape shapes[] = {joined(12, 64, SHERD_BF16),
                                 joined(12, 64, SHERD_F16),
                                 joined(16, 128, SHERD_BF16),
                                 {.dtype    = SHERD_BF16, /* heads that share keys, of a minimind */
                                  .batch    = 4,
                                  .length   = 512,
                                  .heads    = 8,
                                  .kv_heads = 4,
                                  .width    = 64,
                                  .q_stride = 512,
                                  .kv_stride = 256}};

    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        char      why[512] = "";
        sdpa_info info     = {0};

        if (check(&shapes[i], &info, why, sizeof(why)) != 0) {
            test_fail(__FILE__, __LINE__, "shape %zu: %s", i, why);
        }
        CHECK(info.version >= 90800);
        CHECK_INT(1, info.is_deterministic);
    }
}

static void what_cudnn_has_no_kernels_for_is_told(void)
{
    sdpa_shape shape    = joined(12, 60, SHERD_BF16); /* heads are multiples of eight */
    char       why[512] = "";
    sdpa_info  info;

    CHECK(check(&shape, &info, why, sizeof(why)) != 0);
    CHECK(strstr(why, "no forward of attention for heads of 60 in bf16") != NULL);
    shape = joined(12, 64, SHERD_F32);
    CHECK(sdpa_check(&shape, H100, &info, why, sizeof(why)) != 0);
    CHECK(strstr(why, "fp32") != NULL);
}

static void versions_with_known_faults_are_not_asked(void)
{
    static const struct {
        size_t version, length;
        int    is_asked;
    } ASKED[] = {{90700, 1024, 0}, {90800, 1024, 1}, {91000, 1024, 0}, {91001, 1024, 0},
                 {91002, 1024, 1}, {91002, 1000, 0}, {91500, 64, 0},   {91501, 64, 1},
                 {91900, 1000, 1}, {91900, 1, 0}};

    char       why[512] = "";
    sdpa_info  info;
    sdpa_shape shape = joined(12, 64, SHERD_BF16);

    (void)check(&shape, &info, why, sizeof(why)); /* skips a build without the header */
    for (size_t i = 0; i < sizeof(ASKED) / sizeof(ASKED[0]); i++) {
        shape.length = ASKED[i].length;
        CHECK_INT(ASKED[i].is_asked, sdpa_fault_of(ASKED[i].version, &shape) == NULL);
    }
    shape.length = 1;
    CHECK(sdpa_check(&shape, H100, &info, why, sizeof(why)) != 0);
    CHECK(strstr(why, "one token") != NULL);
}

static const test_case cases[] = {
    CASE(cudnn_has_kernels_for_what_is_described),
    CASE(what_cudnn_has_no_kernels_for_is_told),
    CASE(versions_with_known_faults_are_not_asked),
};

RUN_MAIN(cases)
