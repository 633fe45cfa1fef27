/* Carries, merge and final value of the exact sum of squares; see formulas.h. */
#include "kernels/formulas.h"

#include <assert.h>
#include <math.h>

void sherdi_norm_normalise(sherdi_norm_acc *acc)
{
    uint64_t carry = 0;

    for (int i = 0; i < SHERDI_NORM_BINS - 1; i++) {
        /* A full bin and the carry may pass 2^64: split before adding. */
        uint64_t low = (acc->bins[i] & 0xffffffffu) + (carry & 0xffffffffu);

        carry        = (acc->bins[i] >> 32) + (carry >> 32) + (low >> 32);
        acc->bins[i] = low & 0xffffffffu;
    }
    acc->bins[SHERDI_NORM_BINS - 1] += carry;
}

void sherdi_norm_merge(sherdi_norm_acc *acc, const sherdi_norm_acc *other)
{
    sherdi_norm_acc addend = *other;

    sherdi_norm_normalise(acc);
    sherdi_norm_normalise(&addend);
    for (int i = 0; i < SHERDI_NORM_BINS; i++) {
        acc->bins[i] += addend.bins[i];
    }
    acc->nonfinite += addend.nonfinite;
    sherdi_norm_normalise(acc);
}

/* The upper 64 bits below the leading one, all lower bits gathered in the last: the
 * conversion to double then rounds the exact sum, once. */
double sherdi_norm_value(const sherdi_norm_acc *acc)
{
    sherdi_norm_acc sum = *acc;
    uint64_t        digits[SHERDI_NORM_BINS + 1];
    uint64_t        lead;
    int             top = SHERDI_NORM_BINS;
    int             shift;

    if (acc->nonfinite != 0) {
        return (double)NAN;
    }
    sherdi_norm_normalise(&sum);
    for (int i = 0; i < SHERDI_NORM_BINS; i++) {
        digits[i] = sum.bins[i] & 0xffffffffu;
    }
    digits[SHERDI_NORM_BINS] = sum.bins[SHERDI_NORM_BINS - 1] >> 32;
    while (top > 0 && digits[top] == 0) {
        top--;
    }
    if (top == 0) { /* below the range of squares of fp32 unless zero */
        return ldexp((double)digits[0], SHERDI_NORM_LOW_EXPONENT);
    }
    lead  = digits[top] << 32 | digits[top - 1];
    shift = __builtin_clzll(lead);
    assert(shift < 32);
    if (top >= 2) {
        lead = lead << shift | (digits[top - 2] << shift) >> 32;
        for (int i = top - 2; i >= 0; i--) {
            uint64_t below = i == top - 2 ? digits[i] << shift & 0xffffffffu : digits[i];

            lead |= below != 0;
        }
    } else {
        lead <<= shift;
    }
    return ldexp((double)lead, SHERDI_NORM_LOW_EXPONENT + 32 * (top - 1) - shift);
}
