/* Matrix products, normalising and what is made of them on a device give the bits of a plain loop
 * of the definition: small tiles and large ones, all strides, lengths around tiles and steps,
 * symmetric results, Inf, NaN and zeros of both signs. */
#include "kernels/orthogonal.h"
#include "tests/kernels/device_rig.h"
#include "tests/kernels/product_cases.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void product_compare(sherdi_backend *lane, const product_shape *shape)
{
    product_arrays      arrays = product_arrays_make(shape);
    sherdi_product_args args   = arrays.args;

    product_forget(&arrays);
    args.dst   = device_array(lane, &arrays.got);
    args.left  = device_array(lane, &arrays.left);
    args.right = shape->is_symmetric ? args.left : device_array(lane, &arrays.right);
    if (args.addend != NULL) {
        args.addend = device_array(lane, &arrays.addend);
    }
    lane->kernels->product(lane, &args);
    device_array_get(lane, args.dst, &arrays.got);
    CHECK_GUARDED(&arrays.want, &arrays.got);
    product_arrays_free(&arrays);
    device_drop(lane);
}

static void product_equals_the_plain_loop(void)
{
    static const size_t SIZES[]  = {0, 1, 3, 63, 64, 65, 130};
    static const size_t INNERS[] = {0, 1, 7, 8, 9, 50};
    sherdi_backend     *lane     = device_open(0);
    size_t              number   = 0;

    for (size_t r = 0; r < sizeof(SIZES) / sizeof(SIZES[0]); r++) {
        for (size_t c = 0; c < sizeof(SIZES) / sizeof(SIZES[0]); c++) {
            for (size_t k = 0; k < sizeof(INNERS) / sizeof(INNERS[0]); k++) {
                product_shape shape = product_shape_of(SIZES[r], SIZES[c], INNERS[k], number++);

                product_compare(lane, &shape);
            }
        }
    }
    device_close(lane);
}

static void product_of_every_form_equals_the_plain_loop(void)
{
    sherdi_backend *lane = device_open(0);

    for (int form = 0; form < 16 * PRODUCT_KINDS; form++) {
        product_shape shape = {.rows                = 70,
                               .cols                = 70,
                               .inner               = form % 5 == 0 ? 3 : 21,
                               .is_left_transposed  = form & 1,
                               .is_right_transposed = form >> 1 & 1,
                               .has_addend          = form >> 2 & 1,
                               .is_symmetric        = form >> 3 & 1,
                               .gap                 = (size_t)form % 3,
                               .kind                = (product_kind)(form / 16)};

        product_compare(lane, &shape);
    }
    device_close(lane);
}

/* So many large tiles that they are taken: more than any machine has processors, of which the
 * emulated one has few. */
static void product_of_large_tiles_equals_the_plain_loop(void)
{
#ifdef TEST_EMULATED
    const size_t side = 520;
#else
    const size_t side = 128 * 24 - 9;
#endif
    sherdi_backend *lane = device_open(0);

    for (int form = 0; form < 8; form++) {
        product_shape shape = {.rows                = side,
                               .cols                = side,
                               .inner               = 19,
                               .is_left_transposed  = form & 1,
                               .is_right_transposed = form >> 1 & 1,
                               .has_addend          = form & 1,
                               .is_symmetric        = form >> 2 & 1,
                               .kind                = PRODUCT_SPRINKLED};

        product_compare(lane, &shape);
    }
    device_close(lane);
}

static void normalize_equals_scalar(void)
{
    static const size_t COUNTS[] = {0, 1, 65, 70001};
    sherdi_backend     *lane     = device_open(0);
    sherdi_backend      scalar   = backend_make("scalar", 1);

    for (int form = 0; form < 4 * INPUT_KINDS; form++) {
        uint64_t        seed  = (uint64_t)form;
        size_t          count = COUNTS[form % 4];
        guarded         x     = guarded_make(SHERD_F32, count, 0);
        guarded         want  = guarded_make(SHERD_F32, count, 0);
        guarded         got   = guarded_make(SHERD_F32, count, 0);
        sherdi_norm_acc sum   = {.bins = {[11] = (uint64_t)-1, [12] = 7 + (uint64_t)form}};
        void           *src;
        void           *dst;
        void           *there = device_put(lane, &sum, sizeof(sum)); /* not normalised */

        guarded_fill(&x, (input_kind)(form / 4), &seed);
        src = device_array(lane, &x);
        dst = device_array(lane, &got);
        scalar.kernels->normalize(&scalar, (float *)(void *)want.first, (float *)(void *)x.first,
                                  count, &sum, 1e-7f);
        lane->kernels->normalize(lane, dst, src, count, there, 1e-7f);
        device_array_get(lane, dst, &got);
        CHECK_GUARDED(&want, &got);
        lane->kernels->normalize(lane, src, src, count, there, 1e-7f);
        device_array_get(lane, src, &x);
        CHECK_BYTES_EQUAL(want.first, x.first, count * sizeof(float));
        guarded_free(&x);
        guarded_free(&want);
        guarded_free(&got);
        device_drop(lane);
    }
    backend_destroy(&scalar);
    device_close(lane);
}

static void orthogonal_equals_scalar(void)
{
    static const size_t SHAPES[][2] = {{1, 1}, {1, 50}, {50, 1}, {24, 70}, {70, 24}, {32, 32}};
    sherdi_backend     *lane        = device_open(0);
    sherdi_backend      scalar      = backend_make("scalar", 1);

    for (int form = 0; form < 12; form++) {
        uint64_t               seed  = (uint64_t)form;
        size_t                 rows  = SHAPES[form / 2][0];
        size_t                 cols  = SHAPES[form / 2][1];
        size_t                 bytes = sherdi_orthogonal_workspace_bytes(rows, cols);
        void                  *host  = aligned_alloc(SHERD_ALIGN_BYTES, bytes);
        guarded                want  = guarded_make(SHERD_F32, rows * cols, 0);
        guarded                got   = guarded_make(SHERD_F32, rows * cols, 0);
        sherdi_orthogonal_args args  = {
             .rows = rows, .cols = cols, .steps = 5 - form % 2, .scale = 1.25f, .workspace = host};

        CHECK(host != NULL);
        guarded_fill(&want, INPUT_TAME, &seed);
        guarded_copy(&got, &want);
        args.dst = (float *)(void *)want.first;
        args.src = args.dst;
        sherdi_orthogonal(&scalar, &args);
        args.dst       = device_array(lane, &got);
        args.src       = args.dst;
        args.workspace = device_put(lane, NULL, bytes);
        sherdi_orthogonal(lane, &args);
        device_array_get(lane, args.dst, &got);
        CHECK_GUARDED(&want, &got);
        guarded_free(&want);
        guarded_free(&got);
        free(host);
        device_drop(lane);
    }
    backend_destroy(&scalar);
    device_close(lane);
}

static const test_case CASES[] = {
    CASE(product_equals_the_plain_loop),
    CASE(product_of_every_form_equals_the_plain_loop),
    CASE(product_of_large_tiles_equals_the_plain_loop),
    CASE(normalize_equals_scalar),
    CASE(orthogonal_equals_scalar),
};

RUN_MAIN(CASES)
