/* Reads and writes elements of any type as fp32, for trainers that are part of a test. */
#ifndef TESTS_ENGINE_ELEMENTS_H
#define TESTS_ENGINE_ELEMENTS_H

#include "kernels/formulas.h"
#include "sherd.h"

static inline float load(const void *data, size_t i, sherd_dtype dtype)
{
    switch (dtype) {
    case SHERD_BF16:
        return sherdi_cast_bf16_f32(((const uint16_t *)data)[i]);
    case SHERD_F16:
        return sherdi_cast_f16_f32(((const uint16_t *)data)[i]);
    case SHERD_F32:
        break;
    }
    return ((const float *)data)[i];
}

static inline void store(void *data, size_t i, sherd_dtype dtype, float value)
{
    switch (dtype) {
    case SHERD_BF16:
        ((uint16_t *)data)[i] = sherdi_cast_f32_bf16(value);
        return;
    case SHERD_F16:
        ((uint16_t *)data)[i] = sherdi_cast_f32_f16(value);
        return;
    case SHERD_F32:
        break;
    }
    ((float *)data)[i] = value;
}

#endif
