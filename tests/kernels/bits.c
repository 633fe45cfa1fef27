#include "tests/kernels/bits.h"

#include "kernels/cpu/team.h"
#include "tests/kernels/cpu.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

guarded guarded_make(sherd_dtype dtype, size_t count_elems, size_t shift)
{
    size_t  elem_bytes = sherd_dtype_bytes(dtype);
    size_t  lead_bytes = SHERD_ALIGN_BYTES + shift * elem_bytes;
    guarded array      = {.dtype = dtype, .count_elems = count_elems};

    array.total_bytes = lead_bytes + count_elems * elem_bytes + GUARD_BYTES;
    array.start = aligned_alloc(SHERD_ALIGN_BYTES, (array.total_bytes + SHERD_ALIGN_BYTES - 1) /
                                                       SHERD_ALIGN_BYTES * SHERD_ALIGN_BYTES);
    CHECK(array.start != NULL);
    memset(array.start, GUARD_BYTE, array.total_bytes);
    array.first = array.start + lead_bytes;
    return array;
}

static uint32_t wild_bits(uint64_t random)
{
    uint32_t bits = (uint32_t)random;

    switch (random >> 60) {
    case 0:
        return bits & 0x807fffffu; /* denormal */
    case 1:
        return (bits & 0x807fffffu) | 0x7f800000u; /* NaN */
    case 2:
        return (bits & 0x80000000u) | 0x7f800000u; /* Inf */
    case 3:
        return bits & 0x80000000u;
    case 4:
        return (bits & 0xffff0000u) | 0x8000u; /* half way between two of bf16 */
    case 5:                                    /* half way between two of fp16 */
        return (bits & 0x80000000u) | ((bits & 0x0fffe000u) + 0x38000000u) | 0x1000u;
    case 6: /* around the denormals of fp16 */
        return (bits & 0x81ffffffu) | 0x32000000u;
    case 7:
        return (bits & 0x80ffffffu) | 0x7e000000u; /* huge */
    case 8:
    case 9:
    case 10:
        return (bits & 0x807fffffu) | 0x3f000000u; /* near one */
    default:
        return bits;
    }
}

static uint16_t tame_half(uint64_t *seed, sherd_dtype dtype)
{
    float x = test_random_float(seed);

    return dtype == SHERD_BF16 ? sherdi_cast_f32_bf16(x) : sherdi_cast_f32_f16(x);
}

void guarded_fill(guarded *array, input_kind kind, uint64_t *seed)
{
    for (size_t i = 0; i < array->count_elems; i++) {
        if (array->dtype == SHERD_F32) {
            float *x = (float *)(void *)array->first;

            if (kind == INPUT_TAME) {
                x[i] = test_random_float(seed);
            } else {
                uint32_t bits = wild_bits(test_random(seed));
                memcpy(&x[i], &bits, sizeof(bits));
            }
        } else {
            uint16_t *x = (uint16_t *)(void *)array->first;

            x[i] = kind == INPUT_TAME ? tame_half(seed, array->dtype) : (uint16_t)test_random(seed);
        }
    }
}

static void guarded_set(guarded *array, size_t i, float x)
{
    switch (array->dtype) {
    case SHERD_BF16:
        ((uint16_t *)(void *)array->first)[i] = sherdi_cast_f32_bf16(x);
        break;
    case SHERD_F16:
        ((uint16_t *)(void *)array->first)[i] = sherdi_cast_f32_f16(x);
        break;
    case SHERD_F32:
        ((float *)(void *)array->first)[i] = x;
        break;
    }
}

void guarded_fill_scaled(guarded *array, uint64_t *seed)
{
    int exponent = 0;

    for (size_t i = 0; i < array->count_elems; i++) {
        float value = test_random_float(seed);

        if (i % SHERD_CHUNK_ELEMS == 0 && test_random(seed) % 4 == 0) {
            exponent = (int)(test_random(seed) % 330) - 180;
        }
        value = exponent > 140   ? 0.0f
                : exponent > 128 ? (value > 0 ? FLT_MAX : -FLT_MAX)
                                 : ldexpf(value, exponent);
        guarded_set(array, i, i % 9001 == 9000 ? INFINITY : value);
    }
}

float guarded_get(const guarded *array, size_t i)
{
    switch (array->dtype) {
    case SHERD_BF16:
        return sherdi_cast_bf16_f32(((const uint16_t *)(const void *)array->first)[i]);
    case SHERD_F16:
        return sherdi_cast_f16_f32(((const uint16_t *)(const void *)array->first)[i]);
    case SHERD_F32:
        break;
    }
    return ((const float *)(const void *)array->first)[i];
}

void guarded_copy(guarded *to, const guarded *from)
{
    CHECK_INT(from->total_bytes, to->total_bytes);
    memcpy(to->start, from->start, from->total_bytes);
}

void guarded_free(guarded *array)
{
    free(array->start);
    array->start = NULL;
}

/* The team is the created backend's, in a copy that runs another table. */
static sherdi_mem made_mem;

sherdi_backend backend_make(const char *isa, int threads)
{
    sherdi_backend *made = NULL;
    sherdi_backend  copy;

    CHECK_OK(cpu_create(threads, &made_mem, &made));
    copy         = *made;
    copy.kernels = sherdi_kernels_cpu_find(isa);
    copy.ahead   = NULL; /* goes with the backend */
    made->team   = NULL;
    sherdi_backend_destroy(made);
    return copy;
}

void backend_destroy(sherdi_backend *backend)
{
    if (backend->team != NULL) {
        backend->team->ops->destroy(backend->team);
    }
}
