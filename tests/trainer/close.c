#include "tests/trainer/close.h"

#include "tests/lib/check.h"

#include "kernels/formulas.h"

#include <math.h>
#include <string.h>

void narrow(sherd_dtype dtype, const float *from, void *to, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        switch (dtype) {
        case SHERD_F32:
            ((float *)to)[i] = from[i];
            break;
        case SHERD_BF16:
            ((uint16_t *)to)[i] = sherdi_cast_f32_bf16(from[i]);
            break;
        case SHERD_F16:
            ((uint16_t *)to)[i] = sherdi_cast_f32_f16(from[i]);
            break;
        }
    }
}

void widen(sherd_dtype dtype, const void *from, float *to, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        switch (dtype) {
        case SHERD_F32:
            to[i] = ((const float *)from)[i];
            break;
        case SHERD_BF16:
            to[i] = sherdi_cast_bf16_f32(((const uint16_t *)from)[i]);
            break;
        case SHERD_F16:
            to[i] = sherdi_cast_f16_f32(((const uint16_t *)from)[i]);
            break;
        }
    }
}

void close_check(const char *what, const float *want, const float *got, size_t count, tolerance t)
{
    double most = t.least;

    for (size_t i = 0; i < count; i++) {
        most = fmax(most, fabs((double)want[i]));
    }
    for (size_t i = 0; i < count; i++) {
        double gap = fabs((double)got[i] - (double)want[i]);

        if (!(gap <= t.of_most * most + t.of_each * fabs((double)want[i]) + 1e-30)) {
            test_fail(__FILE__, __LINE__, "%s [%zu of %zu]: %.9g, not %.9g (largest %.9g)", what, i,
                      count, (double)got[i], (double)want[i], most);
        }
    }
}
