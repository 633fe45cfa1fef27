/* A matrix made orthogonal: the same bits on every instruction set and thread count, close to the
 * same iterations in double, singular values near 1, and what happens to zeros and NaN. */
#include "kernels/orthogonal.h"
#include "tests/kernels/bits.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const ISAS[]      = {"scalar", "avx2", "avx512"};
static const size_t      SHAPES[][2] = {{1, 1},   {1, 50},  {50, 1},   {8, 8},   {24, 96},
                                        {96, 24}, {33, 70}, {70, 33},  {64, 64}, {40, 300},
                                        {3, 7},   {7, 3},   {260, 250}};

#define STEPS 5

#define NUM_ISAS   (sizeof(ISAS) / sizeof(ISAS[0]))
#define NUM_SHAPES (sizeof(SHAPES) / sizeof(SHAPES[0]))

static sherdi_orthogonal_args args_of(size_t rows, size_t cols, int steps)
{
    return (sherdi_orthogonal_args){.rows = rows, .cols = cols, .steps = steps, .scale = 1};
}

/* Random, with a shifted diagonal, so that no singular value is near zero. */
static void matrix_fill(float *x, size_t rows, size_t cols, uint64_t *seed)
{
    size_t side = rows < cols ? rows : cols;

    for (size_t i = 0; i < rows * cols; i++) {
        x[i] = 0.01f * test_random_float(seed);
    }
    for (size_t i = 0; i < side; i++) {
        x[i * cols + i] += 0.02f * sqrtf((float)side);
    }
}

/* Runs it with the workspace full of NaN between guard bytes. */
static void orthogonal_run(const sherdi_backend *backend, sherdi_orthogonal_args args)
{
    size_t         bytes = sherdi_orthogonal_workspace_bytes(args.rows, args.cols);
    unsigned char *space = aligned_alloc(SHERD_ALIGN_BYTES, bytes + SHERD_ALIGN_BYTES);

    CHECK(space != NULL);
    CHECK_INT(0, bytes % SHERD_ALIGN_BYTES);
    memset(space, 0xff, bytes);
    memset(space + bytes, GUARD_BYTE, SHERD_ALIGN_BYTES);
    args.workspace = space;
    sherdi_orthogonal(backend, &args);
    for (size_t i = 0; i < SHERD_ALIGN_BYTES; i++) {
        CHECK_INT(GUARD_BYTE, space[bytes + i]);
    }
    free(space);
}

/* ---------------------------------------------------------- in double -- */

/* out = left right, or left right^T, of [rows, inner] and [inner, cols] or [cols, inner]. */
static void plain_multiply(double *out, const double *left, const double *right, size_t rows,
                           size_t cols, size_t inner, int is_right_transposed)
{
    for (size_t i = 0; i < rows; i++) {
        for (size_t j = 0; j < cols; j++) {
            double sum = 0;

            for (size_t k = 0; k < inner; k++) {
                sum += left[i * inner + k] *
                       (is_right_transposed ? right[j * inner + k] : right[k * cols + j]);
            }
            out[i * cols + j] = sum;
        }
    }
}

static void plain_step(double *x, size_t rows, size_t cols)
{
    double *square = calloc(rows * rows, sizeof(*square));
    double *mixed  = calloc(rows * rows, sizeof(*mixed));
    double *next   = calloc(rows * cols, sizeof(*next));

    plain_multiply(square, x, x, rows, rows, cols, 1);
    plain_multiply(mixed, square, square, rows, rows, rows, 0);
    for (size_t i = 0; i < rows * rows; i++) {
        mixed[i] = (double)SHERDI_ORTHOGONAL_B * square[i] + (double)SHERDI_ORTHOGONAL_C * mixed[i];
    }
    plain_multiply(next, mixed, x, rows, cols, rows, 0);
    for (size_t i = 0; i < rows * cols; i++) {
        x[i] = (double)SHERDI_ORTHOGONAL_A * x[i] + next[i];
    }
    free(square);
    free(mixed);
    free(next);
}

/* The iterations of a wide matrix; a tall one is transposed before and after. */
static void plain_orthogonal(double *out, const float *x, size_t rows, size_t cols, int steps)
{
    size_t  low   = rows < cols ? rows : cols;
    size_t  high  = rows < cols ? cols : rows;
    double *wide  = calloc(rows * cols, sizeof(*wide));
    double  sumsq = 0;

    for (size_t i = 0; i < rows * cols; i++) {
        sumsq += (double)x[i] * (double)x[i];
    }
    for (size_t i = 0; i < rows; i++) {
        for (size_t j = 0; j < cols; j++) {
            wide[rows <= cols ? i * cols + j : j * rows + i] =
                (double)x[i * cols + j] / fmax(sqrt(sumsq), (double)SHERDI_ORTHOGONAL_EPS);
        }
    }
    for (int step = 0; step < steps; step++) {
        plain_step(wide, low, high);
    }
    for (size_t i = 0; i < rows; i++) {
        for (size_t j = 0; j < cols; j++) {
            out[i * cols + j] = wide[rows <= cols ? i * cols + j : j * rows + i];
        }
    }
    free(wide);
}

/* Singular values of a matrix: columns of its wide form's transpose are turned against each other
 * until they are orthogonal (one-sided Jacobi; Hestenes 1958); their lengths are left. */
static void singular_bounds(const float *x, size_t rows, size_t cols, double *low, double *high)
{
    size_t  side   = rows < cols ? rows : cols;
    size_t  length = rows < cols ? cols : rows;
    double *lines  = calloc(rows * cols, sizeof(*lines));

    for (size_t i = 0; i < rows; i++) {
        for (size_t j = 0; j < cols; j++) {
            lines[rows <= cols ? i * cols + j : j * rows + i] = (double)x[i * cols + j];
        }
    }
    for (int sweep = 0; sweep < 12; sweep++) {
        for (size_t p = 0; p < side; p++) {
            for (size_t q = p + 1; q < side; q++) {
                double *u     = lines + p * length;
                double *v     = lines + q * length;
                double  alpha = 0;
                double  beta  = 0;
                double  gamma = 0;
                double  zeta;
                double  t;

                for (size_t k = 0; k < length; k++) {
                    alpha += u[k] * u[k];
                    beta += v[k] * v[k];
                    gamma += u[k] * v[k];
                }
                if (fabs(gamma) < 1e-14) {
                    continue;
                }
                zeta = (beta - alpha) / (2 * gamma);
                t    = (zeta < 0 ? -1 : 1) / (fabs(zeta) + sqrt(1 + zeta * zeta));
                for (size_t k = 0; k < length; k++) {
                    double old = u[k];

                    u[k] = (old - t * v[k]) / sqrt(1 + t * t);
                    v[k] = (t * old + v[k]) / sqrt(1 + t * t);
                }
            }
        }
    }
    *low  = INFINITY;
    *high = 0;
    for (size_t i = 0; i < side; i++) {
        double sumsq = 0;

        for (size_t k = 0; k < length; k++) {
            sumsq += lines[i * length + k] * lines[i * length + k];
        }
        *low  = fmin(*low, sqrt(sumsq));
        *high = fmax(*high, sqrt(sumsq));
    }
    free(lines);
}

/* --------------------------------------------------------------- cases -- */

/* Elements are below 1.2. Each step may make an error 3.4445 times as large, which is 485 times in
 * five, and the sums of a step bring some units of 2^-24 each. */
#define TOLERANCE 1e-4

static void orthogonal_is_close_to_the_iterations_in_double(void)
{
    sherdi_backend scalar = backend_make("scalar", 1);
    uint64_t       seed   = 3;

    for (size_t s = 0; s < NUM_SHAPES; s++) {
        for (int steps = 0; steps <= 6; steps++) {
            size_t                 elems = SHAPES[s][0] * SHAPES[s][1];
            sherdi_orthogonal_args args  = args_of(SHAPES[s][0], SHAPES[s][1], steps);
            float                 *x     = calloc(elems, sizeof(*x));
            double                *want  = calloc(elems, sizeof(*want));

            if (elems > 4000 && steps != 5) {
                free(x);
                free(want);
                continue;
            }
            matrix_fill(x, args.rows, args.cols, &seed);
            plain_orthogonal(want, x, args.rows, args.cols, steps);
            args.dst   = x;
            args.src   = x;
            args.scale = steps % 2 == 0 ? 1.0f : 0.75f;
            orthogonal_run(&scalar, args);
            for (size_t i = 0; i < elems; i++) {
                CHECK(fabs((double)x[i] - (double)args.scale * want[i]) < TOLERANCE);
            }
            free(x);
            free(want);
        }
    }
    backend_destroy(&scalar);
}

static void orthogonal_has_singular_values_near_one(void)
{
    sherdi_backend scalar = backend_make("scalar", 1);
    uint64_t       seed   = 4;

    for (size_t s = 0; s + 1 < NUM_SHAPES; s++) {
        size_t                 elems = SHAPES[s][0] * SHAPES[s][1];
        sherdi_orthogonal_args args  = args_of(SHAPES[s][0], SHAPES[s][1], STEPS);
        float                 *x     = calloc(elems, sizeof(*x));
        double                 low;
        double                 high;

        matrix_fill(x, args.rows, args.cols, &seed);
        args.dst = x;
        args.src = x;
        orthogonal_run(&scalar, args);
        singular_bounds(x, args.rows, args.cols, &low, &high);
        CHECK(low > 0.6 && high < 1.3); /* what the polynomial of these coefficients makes */
        free(x);
    }
    backend_destroy(&scalar);
}

/* In place and from elsewhere, which stays as it was. */
static void orthogonal_compare(const sherdi_backend *scalar, const sherdi_backend *tested,
                               const size_t *shape, int steps, input_kind kind)
{
    size_t                 elems = shape[0] * shape[1];
    uint64_t               seed  = elems;
    guarded                src   = guarded_make(SHERD_F32, elems, 0);
    guarded                kept  = guarded_make(SHERD_F32, elems, 0);
    guarded                want  = guarded_make(SHERD_F32, elems, 0);
    guarded                got   = guarded_make(SHERD_F32, elems, 0);
    sherdi_orthogonal_args args  = args_of(shape[0], shape[1], steps);

    guarded_fill(&src, kind, &seed);
    guarded_copy(&kept, &src);
    args.src = (float *)(void *)src.first;
    args.dst = (float *)(void *)want.first;
    orthogonal_run(scalar, args);
    args.dst = (float *)(void *)got.first;
    orthogonal_run(tested, args);
    CHECK_GUARDED(&want, &got);
    CHECK_GUARDED(&kept, &src);
    args.dst = (float *)(void *)src.first;
    orthogonal_run(tested, args);
    CHECK_GUARDED(&want, &src);
    guarded_free(&src);
    guarded_free(&kept);
    guarded_free(&want);
    guarded_free(&got);
}

static void orthogonal_every_variant_equals_scalar(void)
{
    sherdi_backend scalar = backend_make("scalar", 1);

    for (size_t i = 0; i < NUM_ISAS; i++) {
        for (int threads = 1; threads <= 4; threads++) {
            sherdi_backend tested = backend_make(ISAS[i], threads);

            for (size_t s = 0; tested.kernels != NULL && s < NUM_SHAPES; s++) {
                if (s + 1 < NUM_SHAPES || (i > 0 && threads % 2 == 0)) {
                    orthogonal_compare(&scalar, &tested, SHAPES[s], 5 + threads % 2, INPUT_TAME);
                }
                orthogonal_compare(&scalar, &tested, SHAPES[s], (int)s % 2, INPUT_WILD);
            }
            backend_destroy(&tested);
        }
    }
    backend_destroy(&scalar);
}

static void orthogonal_of_zeros_is_zero_and_of_nan_is_nan(void)
{
    static const float     ODD[]  = {0, -NAN, INFINITY, -INFINITY};
    sherdi_backend         scalar = backend_make("scalar", 1);
    sherdi_orthogonal_args args   = args_of(5, 13, STEPS);

    for (int i = 0; i < 4; i++) {
        for (size_t at = 0; at < 65; at += 64) { /* in the last whole chunk and after it */
            float x[65] = {0};

            x[at]    = ODD[i];
            args.dst = x;
            args.src = x;
            orthogonal_run(&scalar, args);
            for (int k = 0; k < 65; k++) {
                CHECK_INT(i == 0 ? 0 : 0x7fc00000u, sherdi_bits_f32(x[k]));
            }
        }
    }
    backend_destroy(&scalar);
}

static void orthogonal_of_nothing_needs_nothing(void)
{
    sherdi_backend         scalar = backend_make("scalar", 1);
    sherdi_orthogonal_args args   = args_of(0, 7, STEPS);

    CHECK_INT(0, sherdi_orthogonal_workspace_bytes(0, 7));
    CHECK_INT(0, sherdi_orthogonal_workspace_bytes(7, 0));
    CHECK(sherdi_orthogonal_flops(0, 7, 5) == 0);
    sherdi_orthogonal(&scalar, &args);
    backend_destroy(&scalar);
}

/* Three products of 2 x 3: 3 elements of 3, 3 of 2, 6 of 2 multiply-adds. */
static void orthogonal_flops_count_half_of_what_is_symmetric(void)
{
    CHECK(sherdi_orthogonal_flops(2, 3, 1) == 2 * (3 * 3 + 3 * 2 + 6 * 2));
    CHECK(sherdi_orthogonal_flops(3, 2, 4) == 4 * sherdi_orthogonal_flops(2, 3, 1));
}

static const test_case CASES[] = {
    CASE(orthogonal_is_close_to_the_iterations_in_double),
    CASE(orthogonal_has_singular_values_near_one),
    CASE(orthogonal_every_variant_equals_scalar),
    CASE(orthogonal_of_zeros_is_zero_and_of_nan_is_nan),
    CASE(orthogonal_of_nothing_needs_nothing),
    CASE(orthogonal_flops_count_half_of_what_is_symmetric),
};

RUN_MAIN(CASES)
