/* Matrix products and normalising: every instruction set and thread count gives the bits of a plain
 * loop of the definition, whatever the strides, and writes nothing but the result. */
#include "tests/kernels/product_cases.h"

#include <math.h>
#include <string.h>

static const char *const ISAS[] = {"scalar", "avx2", "avx512"};

#define NUM_ISAS     (sizeof(ISAS) / sizeof(ISAS[0]))
#define MOST_THREADS 4

typedef struct every_backend {
    sherdi_backend backends[NUM_ISAS * MOST_THREADS];
} every_backend;

static void every_backend_make(every_backend *all)
{
    for (size_t i = 0; i < NUM_ISAS * MOST_THREADS; i++) {
        all->backends[i] = backend_make(ISAS[i / MOST_THREADS], 1 + (int)(i % MOST_THREADS));
    }
}

static void every_backend_destroy(every_backend *all)
{
    for (size_t i = 0; i < NUM_ISAS * MOST_THREADS; i++) {
        backend_destroy(&all->backends[i]);
    }
}

/* On all of them; `step`: on every step-th. */
static void product_compare(every_backend *all, const product_shape *shape, size_t first,
                            size_t step)
{
    product_arrays arrays = product_arrays_make(shape);

    for (size_t i = first % step; i < NUM_ISAS * MOST_THREADS; i += step) {
        const sherdi_backend *backend = &all->backends[i];

        if (backend->kernels == NULL) {
            continue;
        }
        product_forget(&arrays);
        backend->kernels->product(backend, &arrays.args);
        CHECK_GUARDED(&arrays.want, &arrays.got);
    }
    product_arrays_free(&arrays);
}

/* Of the lists but for a long run; 3 divides no length of theirs. */
static int stride(void)
{
    return test_is_long() ? 1 : 3;
}

/* Lengths around registers, tiles, strips and the part of a sum that is packed at once. */
static void product_of_every_size_equals_the_plain_loop(void)
{
    static const size_t ROWS[]   = {0, 1, 2, 5, 6, 7, 13, 14, 15, 113, 221, 222, 224, 225};
    static const size_t COLS[]   = {0, 1, 7, 15, 16, 17, 31, 32, 33, 65, 130};
    static const size_t INNERS[] = {0, 1, 2, 3, 4, 5, 31, 191, 192, 193, 388};
    every_backend       all;
    size_t              number = 0;

    every_backend_make(&all);
    for (size_t r = 0; r < sizeof(ROWS) / sizeof(ROWS[0]); r++) {
        for (size_t c = 0; c < sizeof(COLS) / sizeof(COLS[0]); c++) {
            for (size_t k = 0; k < sizeof(INNERS) / sizeof(INNERS[0]); k++) {
                product_shape shape = product_shape_of(ROWS[r], COLS[c], INNERS[k], number++);

                if (number % (size_t)stride() == 0) {
                    product_compare(&all, &shape, number, 5);
                }
            }
        }
    }
    every_backend_destroy(&all);
}

static void product_of_every_form_equals_the_plain_loop(void)
{
    static const size_t SIZES[][3] = {{29, 70, 9}, {45, 45, 300}, {150, 150, 40}, {1, 1, 2000},
                                      {1, 90, 7},  {90, 1, 7},    {16, 64, 1}};
    every_backend       all;

    every_backend_make(&all);
    for (size_t i = 0; i < sizeof(SIZES) / sizeof(SIZES[0]); i++) {
        for (int form = 0; form < 32 * PRODUCT_KINDS; form += stride()) {
            const size_t *size  = SIZES[i];
            product_shape shape = {.rows                = size[0],
                                   .cols                = size[1],
                                   .inner               = size[2],
                                   .is_left_transposed  = form & 1,
                                   .is_right_transposed = form >> 1 & 1,
                                   .has_addend          = form >> 2 & 1,
                                   .is_symmetric        = size[0] == size[1] && (form >> 3 & 1),
                                   .gap                 = (form >> 4 & 1) != 0 ? 3 : 0,
                                   .kind                = (product_kind)(form / 32)};

            product_compare(&all, &shape, (size_t)form, 3);
        }
    }
    every_backend_destroy(&all);
}

/* So many strips and units that every thread has several. */
static void product_of_many_tiles_equals_the_plain_loop(void)
{
    static const size_t SIZES[][3] = {{700, 300, 65}, {40, 1100, 130}, {450, 450, 70}};
    every_backend       all;

    every_backend_make(&all);
    for (size_t i = 0; i < sizeof(SIZES) / sizeof(SIZES[0]); i++) {
        for (int form = 0; form < 8; form += stride()) {
            const size_t *size  = SIZES[i];
            product_shape shape = {.rows                = size[0],
                                   .cols                = size[1],
                                   .inner               = size[2],
                                   .is_left_transposed  = form & 1,
                                   .is_right_transposed = form >> 1 & 1,
                                   .is_symmetric        = size[0] == size[1],
                                   .has_addend          = form >> 2 & 1};

            product_compare(&all, &shape, 0, 1);
        }
    }
    every_backend_destroy(&all);
}

/* Inf in a factor meets zeros and an Inf of the other sign; what was NaN is the one NaN. */
static void product_of_inf_and_nan_has_one_nan(void)
{
    const float   left[]  = {INFINITY, 0, INFINITY, 1, 1, NAN};
    const float   right[] = {1, 1, -1};
    every_backend all;

    every_backend_make(&all);
    for (size_t i = 0; i < NUM_ISAS * MOST_THREADS; i++) {
        const sherdi_backend *backend = &all.backends[i];
        float                 dst[2]  = {0, 0};
        sherdi_product_args   args    = {.dst                = dst,
                                         .left               = left,
                                         .left_row_stride    = 3,
                                         .left_inner_stride  = 1,
                                         .right              = right,
                                         .right_inner_stride = 1,
                                         .right_col_stride   = 3,
                                         .rows               = 2,
                                         .cols               = 1,
                                         .inner              = 2,
                                         .scale              = -1};

        if (backend->kernels == NULL) {
            continue;
        }
        backend->kernels->product(backend, &args);
        CHECK(dst[0] == -INFINITY && dst[1] == -2);
        args.inner = 3;
        backend->kernels->product(backend, &args);
        CHECK_INT(0x7fc00000u, sherdi_bits_f32(dst[0]));
        CHECK_INT(0x7fc00000u, sherdi_bits_f32(dst[1]));
    }
    every_backend_destroy(&all);
}

/* ------------------------------------------------------------- normalising -- */

static void normalize_compare(const sherdi_backend *backend, size_t count, input_kind kind,
                              float eps)
{
    uint64_t seed       = count + 1;
    size_t   padded     = (count + SHERD_CHUNK_ELEMS - 1) / SHERD_CHUNK_ELEMS * SHERD_CHUNK_ELEMS;
    guarded  x          = guarded_make(SHERD_F32, padded, 0);
    guarded  want       = guarded_make(SHERD_F32, padded, 0);
    guarded  got        = guarded_make(SHERD_F32, padded, 0);
    float   *src        = (float *)(void *)x.first;
    sherdi_norm_acc sum = {0};
    double          norm;

    guarded_fill(&x, kind, &seed);
    memset(src + count, 0, (padded - count) * sizeof(*src));
    backend->kernels->sumsq(backend, src, SHERD_F32, padded, &sum);
    norm = sqrt(sherdi_norm_value(&sum));
    for (size_t i = 0; i < count; i++) {
        double scaled = (double)src[i] * (1.0 / (norm < (double)eps ? (double)eps : norm));

        ((float *)(void *)want.first)[i] = sherdi_canonical_f32((float)scaled);
    }
    backend->kernels->normalize(backend, (float *)(void *)got.first, src, count, &sum, eps);
    CHECK_GUARDED(&want, &got);
    memcpy(got.first, src, count * sizeof(*src));
    backend->kernels->normalize(backend, (float *)(void *)got.first, (float *)(void *)got.first,
                                count, &sum, eps);
    CHECK_GUARDED(&want, &got);
    guarded_free(&x);
    guarded_free(&want);
    guarded_free(&got);
}

static void normalize_equals_the_plain_loop(void)
{
    static const size_t COUNTS[] = {0, 1, 3, 15, 17, 63, 64, 65, 1000, 70001};
    every_backend       all;

    every_backend_make(&all);
    for (size_t i = 0; i < NUM_ISAS * MOST_THREADS; i++) {
        for (size_t c = 0; all.backends[i].kernels != NULL && c < 10; c++) {
            normalize_compare(&all.backends[i], COUNTS[c], INPUT_TAME, 1e-7f);
            normalize_compare(&all.backends[i], COUNTS[c], INPUT_TAME, 1e3f);
            normalize_compare(&all.backends[i], COUNTS[c], INPUT_WILD, 1e-7f);
        }
    }
    every_backend_destroy(&all);
}

/* The largest and the smallest numbers have norm 1 after, zeros stay, one NaN or Inf makes all
 * NaN. */
static void normalize_takes_every_magnitude(void)
{
    static const float SIZES[] = {0x1.fffffep127f, 1, 0x1p-149f};
    sherdi_backend     scalar  = backend_make("scalar", 1);

    for (int i = 0; i < 3; i++) {
        float           x[SHERD_CHUNK_ELEMS] = {0};
        sherdi_norm_acc sum                  = {0};

        x[3] = x[9] = x[10] = x[63] = -SIZES[i];
        scalar.kernels->sumsq(&scalar, x, SHERD_F32, SHERD_CHUNK_ELEMS, &sum);
        scalar.kernels->normalize(&scalar, x, x, SHERD_CHUNK_ELEMS, &sum, 0x1p-149f);
        CHECK(x[0] == 0 && x[3] == -0.5f && x[63] == -0.5f);
        x[1] = i == 0 ? NAN : INFINITY;
        scalar.kernels->sumsq(&scalar, x, SHERD_F32, SHERD_CHUNK_ELEMS, &sum);
        scalar.kernels->normalize(&scalar, x, x, SHERD_CHUNK_ELEMS, &sum, 1e-7f);
        for (int k = 0; k < SHERD_CHUNK_ELEMS; k++) {
            CHECK_INT(0x7fc00000u, sherdi_bits_f32(x[k]));
        }
    }
    backend_destroy(&scalar);
}

static const test_case CASES[] = {
    CASE(product_of_every_size_equals_the_plain_loop),
    CASE(product_of_every_form_equals_the_plain_loop),
    CASE(product_of_many_tiles_equals_the_plain_loop),
    CASE(product_of_inf_and_nan_has_one_nan),
    CASE(normalize_equals_the_plain_loop),
    CASE(normalize_takes_every_magnitude),
};

RUN_MAIN(CASES)
