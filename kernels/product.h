/* Products of matrices, and arrays of norm 1: the arguments of the kernels, and their formulas,
 * written once under the rules of formulas.h. kernels/orthogonal.c calls the kernels. */
#ifndef SHERDI_KERNELS_PRODUCT_H
#define SHERDI_KERNELS_PRODUCT_H

#include "kernels/backend.h"

/* The kernel product makes a product of matrices. normalize makes dst[i] = sherdi_normalize_element(
 * src[i], sherdi_normalize_factor(sumsq, eps)). *sumsq may be normalised or not; eps is above 0. dst
 * may be src. */

/* A product of matrices: dst[i, j] = sherdi_product_element of sherdi_product_sum over left[i, 0 ..
 * inner) and right[0 .. inner, j]. Matrices are row-major. left[i, k] is left[i * left_row_stride +
 * k * left_inner_stride], and right[k, j] is right[k * right_inner_stride + j * right_col_stride],
 * so a transposed matrix needs no copy. One stride of each pair is 1. dst overlaps nothing else;
 * left and right may be one array. */
struct sherdi_product_args {
    float       *dst; /* [rows, cols], dense */
    const float *left;
    size_t       left_row_stride, left_inner_stride;
    const float *right;
    size_t       right_inner_stride, right_col_stride;
    size_t       rows, cols, inner;
    float        scale;
    const float *addend; /* [rows, cols], dense; NULL: none */
    float        addend_scale;
    /* rows == cols, and only dst[i, j] with i <= j is computed; dst[j, i] is a copy */
    int is_symmetric;
};

/* The sum of one element of a matrix product: one chain of fma from zero, over ascending k. Code
 * that interrupts the chain keeps the sum so far in fp32. Strides are in elements. */
SHERDI_FN float sherdi_product_sum(const float *left, size_t left_stride, const float *right,
                                   size_t right_stride, size_t inner)
{
    float sum = 0.0f;

    for (size_t k = 0; k < inner; k++) {
        sum = fmaf(left[k * left_stride], right[k * right_stride], sum);
    }
    return sum;
}

/* The element of the product that is made of its sum; `addend` may be NULL. */
SHERDI_FN float sherdi_product_element(float sum, float scale, const float *addend,
                                       float addend_scale)
{
    return sherdi_canonical_f32(addend == NULL ? scale * sum
                                               : fmaf(scale, sum, addend_scale * *addend));
}

/* Returns the factor that gives an array the norm 1: one over the root of its sum of squares, or
 * over eps where eps is larger. NaN stays NaN. */
SHERDI_FN double sherdi_normalize_factor(const sherdi_norm_acc *sumsq, float eps)
{
    double norm = sqrt(sherdi_norm_value(sumsq));

    return 1.0 / (norm < (double)eps ? (double)eps : norm);
}

/* In double, since the factor may lie outside the range of fp32. */
SHERDI_FN float sherdi_normalize_element(float x, double factor)
{
    return sherdi_canonical_f32((float)((double)x * factor));
}

#endif
