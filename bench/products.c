#include "bench/products.h"

const bench_product BENCH_PRODUCT_TABLE[BENCH_PRODUCTS] = {
    {"X X^T, symmetric", {BENCH_WIDE, 0}, {BENCH_WIDE, 1}, 1, 0},
    {"A A + b A, symmetric", {BENCH_SMALL, 0}, {BENCH_SMALL, 0}, 1, -4},
    {"B X + a X", {BENCH_SMALL, 0}, {BENCH_WIDE, 0}, 0, 3},
    {"X^T X of a tall X, symmetric", {BENCH_TALL, 1}, {BENCH_TALL, 0}, 1, 0},
    {"X B + a X of a tall X", {BENCH_TALL, 0}, {BENCH_SMALL, 0}, 0, 3},
};

/* Element (i, j) of a factor is at [i * down + j * across]. */
typedef struct factor_layout {
    const float *first;
    size_t       height, width;
    size_t       down, across;
} factor_layout;

static factor_layout layout_of(bench_factor factor, const float *x, const float *small, size_t rows,
                               size_t cols)
{
    size_t        height = factor.matrix == BENCH_TALL ? cols : rows;
    size_t        width  = factor.matrix == BENCH_WIDE ? cols : rows;
    factor_layout layout = {factor.matrix == BENCH_SMALL ? small : x, height, width, width, 1};

    if (factor.is_transposed) {
        layout = (factor_layout){layout.first, width, height, 1, width};
    }
    return layout;
}

sherdi_product_args bench_product_args(const bench_product *product, const float *x,
                                       const float *small, size_t rows, size_t cols)
{
    factor_layout left  = layout_of(product->left, x, small, rows, cols);
    factor_layout right = layout_of(product->right, x, small, rows, cols);
    int has_x = product->left.matrix != BENCH_SMALL || product->right.matrix != BENCH_SMALL;

    return (sherdi_product_args){
        .left               = left.first,
        .left_row_stride    = left.down,
        .left_inner_stride  = left.across,
        .right              = right.first,
        .right_inner_stride = right.down,
        .right_col_stride   = right.across,
        .rows               = left.height,
        .cols               = right.width,
        .inner              = left.width,
        .scale              = 1,
        .addend             = product->addend_scale == 0 ? NULL
                              : has_x                    ? x
                                                         : small,
        .addend_scale       = product->addend_scale,
        .is_symmetric       = product->is_symmetric,
    };
}

double bench_product_operations(const sherdi_product_args *args)
{
    double elems = (double)args->rows * (double)args->cols;

    return 2.0 * (double)args->inner *
           (args->is_symmetric ? (elems + (double)args->rows) / 2 : elems);
}
