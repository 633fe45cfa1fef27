/* See orthogonal.h. With n rows and m columns, n <= m: A = X X', B = b A + c A A, X := a X + B X; where there are more rows
 * than columns the same of the transposed, without a transposed copy: A = X' X, X := a X + X B. */
#include "kernels/orthogonal.h"

#include "base/checked.h"

static const float A = 3.4445f, B = -4.7750f, C = 2.0315f;

typedef struct workspace {
    sherdi_norm_acc *sumsq;
    float           *next, *gram, *blend;
    size_t           bytes;
} workspace;

static void *take(unsigned char *memory, size_t *bytes, size_t more)
{
    void *at = memory == NULL ? NULL : memory + *bytes;

    *bytes = sherdi_round_up(*bytes + more, SHERD_ALIGN_BYTES);
    return at;
}

/* `memory` NULL: only its size. */
static workspace workspace_of(void *memory, size_t rows, size_t cols)
{
    size_t    n   = sherdi_min_size(rows, cols);
    workspace out = {0};

    out.sumsq = take(memory, &out.bytes, sizeof(*out.sumsq));
    out.next  = take(memory, &out.bytes,
                     sherdi_round_up(rows * cols, SHERD_CHUNK_ELEMS) * sizeof(*out.next));
    out.gram  = take(memory, &out.bytes, n * n * sizeof(*out.gram));
    out.blend = take(memory, &out.bytes, n * n * sizeof(*out.blend));
    return out;
}

size_t sherdi_orthogonal_workspace_bytes(size_t rows, size_t cols)
{
    return workspace_of(NULL, rows, cols).bytes;
}

double sherdi_orthogonal_flops(size_t rows, size_t cols, int steps)
{
    double n    = (double)sherdi_min_size(rows, cols);
    double m    = (double)sherdi_max_size(rows, cols);
    double half = n * (n + 1) / 2;

    return 2.0 * steps * (half * m + half * n + n * n * m);
}

/* One step, from `x` to `out`. */
static void iterate(const sherdi_backend *backend, const sherdi_orthogonal_args *args,
                    const workspace *w, const float *x, float *out, float scale)
{
    size_t              rows = args->rows, cols = args->cols;
    int                 is_wide = rows <= cols;
    size_t              n       = is_wide ? rows : cols;
    sherdi_product_args gram    = {
           .dst                = w->gram,
           .left               = x,
           .left_row_stride    = is_wide ? cols : 1,
           .left_inner_stride  = is_wide ? 1 : cols,
           .right              = x,
           .right_inner_stride = is_wide ? 1 : cols,
           .right_col_stride   = is_wide ? cols : 1,
           .rows               = n,
           .cols               = n,
           .inner              = is_wide ? cols : rows,
           .scale              = 1,
           .is_symmetric       = 1,
    };
    sherdi_product_args blend = {
        .dst                = w->blend,
        .left               = w->gram,
        .left_row_stride    = n,
        .left_inner_stride  = 1,
        .right              = w->gram,
        .right_inner_stride = n,
        .right_col_stride   = 1,
        .rows               = n,
        .cols               = n,
        .inner              = n,
        .scale              = C,
        .addend             = w->gram,
        .addend_scale       = B,
        .is_symmetric       = 1,
    };
    sherdi_product_args apply = {
        .dst                = out,
        .left               = is_wide ? w->blend : x,
        .left_row_stride    = n,
        .left_inner_stride  = 1,
        .right              = is_wide ? x : w->blend,
        .right_inner_stride = cols,
        .right_col_stride   = 1,
        .rows               = rows,
        .cols               = cols,
        .inner              = n,
        .scale              = scale,
        .addend             = x,
        .addend_scale       = scale * A,
    };

    backend->kernels->product(backend, &gram);
    backend->kernels->product(backend, &blend);
    backend->kernels->product(backend, &apply);
}

void sherdi_orthogonal(const sherdi_backend *backend, const sherdi_orthogonal_args *args)
{
    size_t    elems = args->rows * args->cols;
    workspace w     = workspace_of(args->workspace, args->rows, args->cols);
    float    *from =
        args->steps % 2 == 0 ? args->matrix : w.next; /* so that the last step ends there */
    float *to = args->steps % 2 == 0 ? w.next : args->matrix;

    backend->kernels->zero(backend, w.sumsq, sizeof(*w.sumsq));
    backend->kernels->sumsq(backend, args->matrix, SHERD_F32,
                            sherdi_round_up(elems, SHERD_CHUNK_ELEMS), w.sumsq);
    backend->kernels->normalize(backend, from, args->matrix, elems, w.sumsq, SHERDI_ORTHOGONAL_EPS);
    for (int step = 0; step < args->steps; step++) {
        float *ended = from;

        iterate(backend, args, &w, from, to, step + 1 == args->steps ? args->scale : 1);
        from = to;
        to   = ended;
    }
}
