/* Matrix products for tests: matrices of every kind of strides, and what a plain loop of the
 * definition gives. */
#ifndef TESTS_KERNELS_PRODUCT_CASES_H
#define TESTS_KERNELS_PRODUCT_CASES_H

#include "kernels/product.h"
#include "tests/kernels/bits.h"

/* What the numbers of a product are like. */
typedef enum product_kind {
    PRODUCT_TAME,
    PRODUCT_SPRINKLED, /* tame, with a few that are NaN, Inf, huge, denormal or a zero */
    PRODUCT_WILD,      /* any bits */
    PRODUCT_KINDS,
} product_kind;

typedef struct product_shape {
    size_t rows, cols, inner;
    size_t gap; /* unused elements after each row of the factors, and before the first one */
    int    is_left_transposed, is_right_transposed;
    int    has_addend;
    int is_symmetric; /* rows == cols, and right is left transposed; the addend is not symmetric */
    product_kind kind;
} product_shape;

/* Number `number` of a sequence that goes through all forms of a size. */
product_shape product_shape_of(size_t rows, size_t cols, size_t inner, size_t number);

typedef struct product_arrays {
    guarded             left, right, addend;
    guarded             want, got; /* the result by the plain loop, and room for another */
    sherdi_product_args args;      /* dst is that of `got` */
} product_arrays;

product_arrays product_arrays_make(const product_shape *shape);
void           product_arrays_free(product_arrays *arrays);
/** Fills `got` with what no product gives. */
void product_forget(product_arrays *arrays);

#endif
