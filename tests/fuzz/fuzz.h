/* Shared by the fuzz targets. */
#ifndef SHERD_TESTS_FUZZ_FUZZ_H
#define SHERD_TESTS_FUZZ_FUZZ_H

#include "base/mem.h"

#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes);

/** Ends the target if a promise is broken. */
static inline void hold(int is_so)
{
    if (!is_so) {
        abort();
    }
}

/** Returns the most bytes that were held, of all purposes. */
static inline size_t peak_bytes(const sherdi_mem *mem)
{
    size_t sum = 0;

    for (int p = 0; p < SHERDI_MEM_PURPOSES; p++) {
        sum += mem->peak_bytes[p];
    }
    return sum;
}

#endif
