/* The matrix products of the Muon optimizer, as data: what bench-product multiplies on the CPU and
 * bench-gpu-product on a GPU. X is a matrix [rows, cols] with rows <= cols, "a tall X" is one of
 * [cols, rows] with the same bytes, A and B are [rows, rows]. */
#ifndef BENCH_PRODUCTS_H
#define BENCH_PRODUCTS_H

#include "kernels/product.h"

typedef enum bench_matrix { BENCH_WIDE, BENCH_TALL, BENCH_SMALL } bench_matrix;

typedef struct bench_factor {
    bench_matrix matrix;
    int          is_transposed;
} bench_factor;

typedef struct bench_product {
    const char  *name;
    bench_factor left, right;
    int          is_symmetric;
    float        addend_scale; /* of X in a product with X, else of A; 0: nothing is added */
} bench_product;

#define BENCH_PRODUCTS 5

extern const bench_product BENCH_PRODUCT_TABLE[BENCH_PRODUCTS];

/** All but the destination, which has as many elements as the larger of x [rows * cols] and small
 *  [rows * rows]. */
sherdi_product_args bench_product_args(const bench_product *product, const float *x,
                                       const float *small, size_t rows, size_t cols);
/** Floating-point operations; of a symmetric result the half is counted that must be computed. */
double bench_product_operations(const sherdi_product_args *args);

#endif
