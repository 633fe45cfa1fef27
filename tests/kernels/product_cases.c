#include "tests/kernels/product_cases.h"

#include <math.h>
#include <string.h>

product_shape product_shape_of(size_t rows, size_t cols, size_t inner, size_t number)
{
    return (product_shape){.rows                = rows,
                           .cols                = cols,
                           .inner               = inner,
                           .gap                 = number / 3 % 2 * 5,
                           .is_left_transposed  = (int)(number % 2),
                           .is_right_transposed = (int)(number / 2 % 2),
                           .has_addend          = number / 4 % 3 != 0,
                           .is_symmetric        = rows == cols && number / 5 % 3 != 0,
                           .kind                = (product_kind)(number / 7 % PRODUCT_KINDS)};
}

static void numbers_fill(guarded *array, product_kind kind, uint64_t *seed)
{
    static const uint32_t ODD_BITS[] = {0x7fc12345u, 0xff800001u, 0x7f800000u, 0xff800000u,
                                        0x7f7fffffu, 0x80000001u, 0x80000000u, 0x00000000u};

    guarded_fill(array, kind == PRODUCT_WILD ? INPUT_WILD : INPUT_TAME, seed);
    for (size_t i = 0; kind == PRODUCT_SPRINKLED && array->count_elems > 0 && i < 6; i++) {
        float *x = (float *)(void *)array->first;

        x[test_random(seed) % array->count_elems] =
            sherdi_f32_from_bits(ODD_BITS[test_random(seed) % 8]);
    }
}

/* A matrix of which element (i, j) is at [i * *row_stride + j * *col_stride]. */
static guarded matrix_make(size_t rows, size_t cols, int is_transposed, const product_shape *shape,
                           uint64_t *seed, size_t *row_stride, size_t *col_stride)
{
    size_t  lines  = is_transposed ? cols : rows;
    size_t  stride = (is_transposed ? rows : cols) + shape->gap;
    guarded matrix = guarded_make(SHERD_F32, lines * stride, shape->gap);

    numbers_fill(&matrix, shape->kind, seed);
    *row_stride = is_transposed ? 1 : stride;
    *col_stride = is_transposed ? stride : 1;
    return matrix;
}

/* The definition. */
static void plain_product(const sherdi_product_args *a, float *dst)
{
    for (size_t i = 0; i < a->rows; i++) {
        for (size_t j = a->is_symmetric ? i : 0; j < a->cols; j++) {
            float sum = sherdi_product_sum(a->left + i * a->left_row_stride, a->left_inner_stride,
                                           a->right + j * a->right_col_stride,
                                           a->right_inner_stride, a->inner);

            dst[i * a->cols + j] = sherdi_product_element(
                sum, a->scale, a->addend == NULL ? NULL : &a->addend[i * a->cols + j],
                a->addend_scale);
            if (a->is_symmetric) {
                dst[j * a->cols + i] = dst[i * a->cols + j];
            }
        }
    }
}

product_arrays product_arrays_make(const product_shape *shape)
{
    size_t              elems  = shape->rows * shape->cols;
    uint64_t            seed   = elems * 31 + shape->inner;
    product_arrays      arrays = {.addend = guarded_make(SHERD_F32, elems, shape->gap),
                                  .want   = guarded_make(SHERD_F32, elems, shape->gap),
                                  .got    = guarded_make(SHERD_F32, elems, shape->gap)};
    sherdi_product_args args   = {.rows         = shape->rows,
                                  .cols         = shape->cols,
                                  .inner        = shape->inner,
                                  .scale        = 2.0315f,
                                  .addend_scale = -4.775f,
                                  .is_symmetric = shape->is_symmetric};

    arrays.left  = matrix_make(shape->rows, shape->inner, shape->is_left_transposed, shape, &seed,
                               &args.left_row_stride, &args.left_inner_stride);
    arrays.right = matrix_make(shape->inner, shape->cols, shape->is_right_transposed, shape, &seed,
                               &args.right_inner_stride, &args.right_col_stride);
    numbers_fill(&arrays.addend, shape->kind, &seed);
    args.left  = (const float *)(const void *)arrays.left.first;
    args.right = (const float *)(const void *)arrays.right.first;
    if (shape->is_symmetric) {
        args.right              = args.left;
        args.right_inner_stride = args.left_inner_stride;
        args.right_col_stride   = args.left_row_stride;
    }
    args.addend = shape->has_addend ? (const float *)(const void *)arrays.addend.first : NULL;
    args.dst    = (float *)(void *)arrays.got.first;
    plain_product(&args, (float *)(void *)arrays.want.first);
    arrays.args = args;
    return arrays;
}

void product_arrays_free(product_arrays *arrays)
{
    guarded_free(&arrays->left);
    guarded_free(&arrays->right);
    guarded_free(&arrays->addend);
    guarded_free(&arrays->want);
    guarded_free(&arrays->got);
}

void product_forget(product_arrays *arrays)
{
    memset(arrays->got.first, GUARD_BYTE, arrays->got.count_elems * sizeof(float));
}
