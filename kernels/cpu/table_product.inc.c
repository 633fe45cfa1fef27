/* The part of a kernel table for matrix products and normalisation, divided over the threads.
 * table_list.h explains the two faces of this file.
 *
 * range_product computes a rectangle of dst, from (first_row, first_col) on, of at most
 * PRODUCT_ROWS rows. In a symmetric result, elements below the diagonal may be left out. first_row
 * and first_col are multiples of PRODUCT_ROWS and PRODUCT_COLS. Vectors have a range_product of
 * their own, with other such numbers (vector_product.inc.c). */
#if defined(TABLE_SLOTS)

.product = table_product, .normalize = table_normalize,

#else

#include "kernels/product.h"

#if !TABLE_HAS_VECTORS

#define PRODUCT_ROWS 16
#define PRODUCT_COLS 16

static void range_product(const sherdi_product_args *args, size_t first_row, size_t rows,
                          size_t first_col, size_t cols)
{
    for (size_t i = first_row; i < first_row + rows; i++) {
        for (size_t j = first_col; j < first_col + cols; j++) {
            size_t at  = i * args->cols + j;
            float  sum = sherdi_product_sum(
                 args->left + i * args->left_row_stride, args->left_inner_stride,
                 args->right + j * args->right_col_stride, args->right_inner_stride, args->inner);

            args->dst[at] = sherdi_product_element(sum, args->scale,
                                                   args->addend == NULL ? NULL : args->addend + at,
                                                   args->addend_scale);
        }
    }
}

#endif

/* A result is cut into strips of PRODUCT_ROWS rows, and a strip into units of PRODUCT_COLS columns.
 * A task takes consecutive units, so its part of a strip is one rectangle. */
typedef struct product_call {
    const sherdi_product_args *args;
    size_t                     units;
} product_call;

/* This number of multiply-adds takes as long as other kernels take for a byte. */
#define PRODUCT_FMAS_PER_BYTE 4

/* Returns the first unit of the strip that begins at `row`: in a symmetric result, the one with the
 * diagonal. */
static size_t strip_start(const sherdi_product_args *args, size_t row)
{
    return args->is_symmetric ? row / PRODUCT_COLS : 0;
}

static size_t strip_units(const sherdi_product_args *args, size_t row)
{
    return sherdi_div_up(args->cols, PRODUCT_COLS) - strip_start(args, row);
}

static void product_task(void *ctx, int task, int tasks)
{
    const product_call        *call  = ctx;
    const sherdi_product_args *args  = call->args;
    size_t                     first = task_first(call->units, task, tasks);
    size_t                     end   = task_first(call->units, task + 1, tasks);

    /* In the loop, first and end count from the start of the strip. */
    for (size_t row = 0; row < args->rows && end > 0; row += PRODUCT_ROWS) {
        size_t start = strip_start(args, row);
        size_t units = strip_units(args, row);

        if (first < units) {
            size_t col  = (start + first) * PRODUCT_COLS;
            size_t last = (start + sherdi_min_size(end, units)) * PRODUCT_COLS;

            range_product(args, row, sherdi_min_size(PRODUCT_ROWS, args->rows - row), col,
                          sherdi_min_size(last, args->cols) - col);
        }
        first -= sherdi_min_size(first, units);
        end -= sherdi_min_size(end, units);
    }
}

/* The side of a square. The first-level cache holds two squares, one from each side of the
 * diagonal. */
#define MIRROR_ROWS           32

/* Copies the elements above the diagonal to below it. Tasks take strips in turn, because later
 * strips are longer. */
static void mirror_task(void *ctx, int task, int tasks)
{
    const product_call *call = ctx;
    float              *dst  = call->args->dst;
    size_t              rows = call->args->rows;

    for (size_t row = (size_t)task * MIRROR_ROWS; row < rows; row += (size_t)tasks * MIRROR_ROWS) {
        size_t end = sherdi_min_size(row + MIRROR_ROWS, rows);

        for (size_t col = 0; col < end; col += MIRROR_ROWS) {
            for (size_t i = row; i < end; i++) {
                for (size_t j = col; j < sherdi_min_size(col + MIRROR_ROWS, i); j++) {
                    dst[i * rows + j] = dst[j * rows + i];
                }
            }
        }
    }
}

static void table_product(const sherdi_backend *backend, const sherdi_product_args *args)
{
    product_call call = {.args = args};

    for (size_t row = 0; row < args->rows; row += PRODUCT_ROWS) {
        call.units += strip_units(args, row);
    }
    sherdi_parallel_run(
        backend,
        sherdi_split_of(backend, call.units,
                        PRODUCT_ROWS * PRODUCT_COLS * (args->inner / PRODUCT_FMAS_PER_BYTE + 4)),
        product_task, &call);
    if (args->is_symmetric) {
        sherdi_parallel_run(backend,
                            sherdi_split_of(backend, sherdi_div_up(args->rows, MIRROR_ROWS),
                                            MIRROR_ROWS * args->rows * sizeof(float)),
                            mirror_task, &call);
    }
}

typedef struct normalize_call {
    float       *dst;
    const float *src;
    double       factor;
} normalize_call;

static void normalize_elems(void *ctx, size_t first, size_t count)
{
    const normalize_call *call = ctx;

    for (size_t i = first; i < first + count; i++) {
        call->dst[i] = sherdi_normalize_element(call->src[i], call->factor);
    }
}

static void table_normalize(const sherdi_backend *backend, float *dst, const float *src,
                            size_t count_elems, const sherdi_norm_acc *sumsq, float eps)
{
    normalize_call call = {dst, src, sherdi_normalize_factor(sumsq, eps)};

    elems_run(backend, count_elems, 2 * sizeof(float), normalize_elems, &call);
}

#endif
