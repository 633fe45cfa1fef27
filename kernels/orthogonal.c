/* See orthogonal.h. The steps alternate between dst and a matrix of the workspace. Which of the two
 * comes first is chosen so that the last result lies in dst. */
#include "kernels/orthogonal.h"

#include "base/checked.h"
#include "kernels/product.h"

/* The parts of a workspace, each at a multiple of SHERD_ALIGN_BYTES. */
typedef struct orthogonal_space {
    sherdi_norm_acc *norm;
    float           *tail;   /* a chunk: the elements after the last whole chunk, then zeros */
    float           *square; /* A, [side, side] */
    float           *mixed;  /* B, [side, side] */
    float           *other;  /* X, [rows, cols] */
} orthogonal_space;

static size_t aligned_bytes(size_t len_bytes)
{
    return sherdi_div_up(len_bytes, SHERD_ALIGN_BYTES) * SHERD_ALIGN_BYTES;
}

static size_t side_of(size_t rows, size_t cols)
{
    return sherdi_min_size(rows, cols);
}

static size_t square_bytes(size_t rows, size_t cols)
{
    return aligned_bytes(side_of(rows, cols) * side_of(rows, cols) * sizeof(float));
}

#define TAIL_BYTES (SHERD_CHUNK_ELEMS * sizeof(float))

size_t sherdi_orthogonal_workspace_bytes(size_t rows, size_t cols)
{
    if (rows == 0 || cols == 0) {
        return 0;
    }
    return aligned_bytes(sizeof(sherdi_norm_acc)) + aligned_bytes(TAIL_BYTES) +
           2 * square_bytes(rows, cols) + aligned_bytes(rows * cols * sizeof(float));
}

static orthogonal_space space_of(const sherdi_orthogonal_args *args)
{
    unsigned char   *at = args->workspace;
    orthogonal_space space;

    space.norm = (sherdi_norm_acc *)(void *)at;
    at += aligned_bytes(sizeof(sherdi_norm_acc));
    space.tail = (float *)(void *)at;
    at += aligned_bytes(TAIL_BYTES);
    space.square = (float *)(void *)at;
    at += square_bytes(args->rows, args->cols);
    space.mixed = (float *)(void *)at;
    at += square_bytes(args->rows, args->cols);
    space.other = (float *)(void *)at;
    return space;
}

double sherdi_orthogonal_flops(size_t rows, size_t cols, int steps)
{
    double side = (double)side_of(rows, cols);
    double half = side * (side + 1) / 2; /* elements of a symmetric result that are computed */
    double all  = (double)rows * (double)cols;

    if (rows == 0 || cols == 0) {
        return 0;
    }
    return 2 * steps * (half * (all / side) + half * side + all * side);
}

/* `sumsq` takes whole chunks, so the elements after the last whole chunk are copied to `tail` and
 * filled up with zeros. */
static void matrix_normalize(const sherdi_backend *backend, const sherdi_orthogonal_args *args,
                             const orthogonal_space *space, float *x)
{
    const sherdi_kernel_ops *kernels = backend->kernels;
    size_t                   elems   = args->rows * args->cols;
    size_t                   rest    = elems % SHERD_CHUNK_ELEMS;

    kernels->zero(backend, space->norm, sizeof(*space->norm));
    kernels->sumsq(backend, args->src, SHERD_F32, elems - rest, space->norm);
    if (rest > 0) {
        kernels->zero(backend, space->tail, TAIL_BYTES);
        kernels->copy(backend, space->tail, args->src + (elems - rest), rest * sizeof(float));
        kernels->sumsq(backend, space->tail, SHERD_F32, SHERD_CHUNK_ELEMS, space->norm);
    }
    kernels->normalize(backend, x, args->src, elems, space->norm, SHERDI_ORTHOGONAL_EPS);
}

/* A = X X^T or X^T X. */
static sherdi_product_args square_of(const sherdi_orthogonal_args *args, float *square,
                                     const float *x)
{
    int                 is_tall = args->rows > args->cols;
    size_t              across  = is_tall ? 1 : args->cols; /* from one row of A to the next */
    size_t              along   = is_tall ? args->cols : 1;
    sherdi_product_args product = {.dst                = square,
                                   .left               = x,
                                   .left_row_stride    = across,
                                   .left_inner_stride  = along,
                                   .right              = x,
                                   .right_inner_stride = along,
                                   .right_col_stride   = across,
                                   .rows               = side_of(args->rows, args->cols),
                                   .cols               = side_of(args->rows, args->cols),
                                   .inner              = is_tall ? args->rows : args->cols,
                                   .scale              = 1,
                                   .is_symmetric       = 1};

    return product;
}

/* B = c A A + b A. A is symmetric, so the left A can be read transposed, which is packed
 * fastest. */
static sherdi_product_args mixed_of(const sherdi_orthogonal_args *args, float *mixed,
                                    const float *square)
{
    size_t              side    = side_of(args->rows, args->cols);
    sherdi_product_args product = {.dst                = mixed,
                                   .left               = square,
                                   .left_row_stride    = 1,
                                   .left_inner_stride  = side,
                                   .right              = square,
                                   .right_inner_stride = side,
                                   .right_col_stride   = 1,
                                   .rows               = side,
                                   .cols               = side,
                                   .inner              = side,
                                   .scale              = SHERDI_ORTHOGONAL_C,
                                   .addend             = square,
                                   .addend_scale       = SHERDI_ORTHOGONAL_B,
                                   .is_symmetric       = 1};

    return product;
}

/* B X + a X or X B + a X, times `scale`. */
static sherdi_product_args applied_of(const sherdi_orthogonal_args *args, float *next,
                                      const float *mixed, const float *x, float scale)
{
    size_t              side    = side_of(args->rows, args->cols);
    sherdi_product_args product = {.dst                = next,
                                   .left               = mixed,
                                   .left_row_stride    = 1,
                                   .left_inner_stride  = side,
                                   .right              = x,
                                   .right_inner_stride = args->cols,
                                   .right_col_stride   = 1,
                                   .rows               = args->rows,
                                   .cols               = args->cols,
                                   .inner              = side,
                                   .scale              = scale,
                                   .addend             = x,
                                   .addend_scale       = scale * SHERDI_ORTHOGONAL_A};

    if (args->rows > args->cols) {
        product.left              = x;
        product.left_row_stride   = args->cols;
        product.left_inner_stride = 1;
        product.right             = mixed;
    }
    return product;
}

void sherdi_orthogonal(const sherdi_backend *backend, const sherdi_orthogonal_args *args)
{
    orthogonal_space space;
    float           *x;
    float           *next;

    if (args->rows == 0 || args->cols == 0) {
        return;
    }
    space = space_of(args);
    x     = args->steps % 2 == 0 ? args->dst : space.other;
    next  = args->steps % 2 == 0 ? space.other : args->dst;
    matrix_normalize(backend, args, &space, x);
    for (int step = 0; step < args->steps; step++) {
        float                     scale      = step + 1 == args->steps ? args->scale : 1;
        const sherdi_product_args products[] = {square_of(args, space.square, x),
                                                mixed_of(args, space.mixed, space.square),
                                                applied_of(args, next, space.mixed, x, scale)};
        float                    *last       = x;

        for (int i = 0; i < 3; i++) {
            backend->kernels->product(backend, &products[i]);
        }
        x    = next;
        next = last;
    }
}
