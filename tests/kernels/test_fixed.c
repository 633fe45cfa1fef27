/* The deterministic mode's integers: every instruction set and thread count against a plain loop
 * with the C library's rounding, and the counts of what integers cannot hold. */
#include "kernels/fixed.h"
#include "tests/kernels/bits.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NUM_SRCS   3
#define LONG_ELEMS (3 * 8192 + 77)
/* 24 micro-batches: 2^(50 - 5), and a loss scale of 4 taken out. */
#define MULTIPLIER 0x1p43
#define LIMIT      0x1p58

static const char *const ISAS[] = {"scalar", "avx2", "avx512"};

static const double WEIGHTS[NUM_SRCS] = {1, 1.0 / 3, 0.7};

static void plain_reduce(const guarded *srcs, int64_t *acc, size_t count, int accumulate,
                         const double *weights, sherdi_fixed_counts *counts)
{
    for (size_t i = 0; i < count; i++) {
        int64_t sum = accumulate ? acc[i] : 0;

        for (int k = 0; k < NUM_SRCS; k++) {
            double x = (double)guarded_get(&srcs[k], i) *
                       (MULTIPLIER * (weights == NULL ? 1 : weights[k]));

            if (!isfinite(x)) {
                counts->nonfinite++;
            } else if (fabs(x) >= LIMIT) {
                counts->out_of_range++;
            } else {
                sum += llrint(x);
            }
        }
        acc[i] = sum;
    }
}

static void compare(const sherdi_backend *tested, sherd_dtype dtype, size_t count, size_t shift,
                    input_kind kind, uint64_t *seed)
{
    guarded             srcs[NUM_SRCS];
    const void         *firsts[NUM_SRCS];
    int64_t            *want      = calloc(count + 2, sizeof(*want));
    int64_t            *got       = calloc(count + 2, sizeof(*got));
    float              *f32       = calloc(count + 2, sizeof(*f32));
    sherdi_fixed_counts counts[2] = {{0, 0}, {0, 0}};

    for (int k = 0; k < NUM_SRCS; k++) {
        srcs[k] = guarded_make(dtype, count, shift);
        guarded_fill(&srcs[k], kind, seed);
        firsts[k] = srcs[k].first;
    }
    for (int accumulate = 0; accumulate <= 1; accumulate++) {
        sherdi_fixed_sink  sink = {.multiplier = MULTIPLIER, .limit = LIMIT, .counts = &counts[1]};
        sherdi_reduce_args args = {.srcs        = firsts,
                                   .num_srcs    = NUM_SRCS,
                                   .src_dtype   = dtype,
                                   .dst         = got + 1,
                                   .count_elems = count,
                                   .accumulate  = accumulate,
                                   .weights     = count % 2 == 0 ? WEIGHTS : NULL};

        plain_reduce(srcs, want + 1, count, accumulate, args.weights, &counts[0]);
        tested->kernels->reduce_fixed(tested, &args, &sink);
    }
    CHECK_BYTES_EQUAL(want, got, (count + 2) * sizeof(*want));
    CHECK_INT(counts[0].nonfinite, counts[1].nonfinite);
    CHECK_INT(counts[0].out_of_range, counts[1].out_of_range);
    tested->kernels->fixed_to_f32(tested, f32 + 1, got + 1, count);
    CHECK(f32[0] == 0 && f32[count + 1] == 0);
    for (size_t i = 0; i < count; i++) {
        CHECK(f32[i + 1] == (float)(double)want[i + 1]);
    }
    for (int k = 0; k < NUM_SRCS; k++) {
        guarded_free(&srcs[k]);
    }
    free(want);
    free(got);
    free(f32);
}

static void fixed_every_variant_equals_the_plain_loop(void)
{
    uint64_t seed = 11;

    for (size_t i = 0; i < sizeof(ISAS) / sizeof(ISAS[0]); i++) {
        for (int threads = 1; threads <= 3; threads++) {
            sherdi_backend tested = backend_make(ISAS[i], threads);

            for (int d = 0; d < 3 && tested.kernels != NULL; d++) {
                for (size_t count = 0; threads == 1 && count <= 130; count++) {
                    compare(&tested, (sherd_dtype)d, count, count % 3, INPUT_TAME, &seed);
                    compare(&tested, (sherd_dtype)d, count, count % 5, INPUT_WILD, &seed);
                }
                compare(&tested, (sherd_dtype)d, LONG_ELEMS, 1, INPUT_TAME, &seed);
                compare(&tested, (sherd_dtype)d, LONG_ELEMS, 0, INPUT_WILD, &seed);
            }
            backend_destroy(&tested);
        }
    }
}

/* Ties go to the even integer, over the whole range. */
static void fixed_round_equals_llrint(void)
{
    uint64_t seed = 12;

    for (int exponent = 0; exponent <= 62; exponent++) {
        for (int i = 0; i < 4096; i++) {
            double whole = floor(ldexp((double)(test_random(&seed) >> 11) * 0x1p-53, exponent));

            for (double part = -1; part <= 1; part += 0.25) {
                double x = whole + part;

                if (fabs(x) < 0x1p63) {
                    CHECK_INT(llrint(x), sherdi_fixed_round(x));
                    CHECK_INT(llrint(-x), sherdi_fixed_round(-x));
                }
            }
        }
    }
}

static const test_case CASES[] = {
    CASE(fixed_every_variant_equals_the_plain_loop),
    CASE(fixed_round_equals_llrint),
};

RUN_MAIN(CASES)
