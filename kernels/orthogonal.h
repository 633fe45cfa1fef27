/* Makes a matrix orthogonal, for the Muon optimizer (Jordan et al. 2024): Newton-Schulz iterations
 * bring all its singular values near 1. They consist of matrix products, which are queued on a lane
 * of any backend. All backends give the same bits, since their kernels do. engine/optimizers/muon.c
 * calls it; docs/numerics.md has the formulas. */
#ifndef SHERDI_KERNELS_ORTHOGONAL_H
#define SHERDI_KERNELS_ORTHOGONAL_H

#include "kernels/backend.h"

/* The coefficients of Jordan et al. 2024, which are the defaults of torch.optim.Muon. */
#define SHERDI_ORTHOGONAL_A   3.4445f
#define SHERDI_ORTHOGONAL_B   (-4.7750f)
#define SHERDI_ORTHOGONAL_C   2.0315f
#define SHERDI_ORTHOGONAL_EPS 1e-7f /* a smaller norm counts as this */

typedef struct sherdi_orthogonal_args {
    float       *dst; /* [rows, cols], dense: the result */
    const float *src; /* [rows, cols], dense; may be dst, overlaps it in no other way */
    size_t       rows, cols;
    int          steps;     /* at least 0; 0: the matrix is only normalised */
    float        scale;     /* the last step multiplies its result by this */
    void        *workspace; /* its bytes: see below; a multiple of SHERD_ALIGN_BYTES */
} sherdi_orthogonal_args;

/** Returns the bytes of device memory that the workspace takes; 0: the matrix has no elements. The
 *  workspace may hold anything. */
size_t sherdi_orthogonal_workspace_bytes(size_t rows, size_t cols);
/** Returns the floating-point operations of the products; a multiply-add counts as two. Of a
 *  symmetric product only the elements on and above the diagonal count, since only these are
 *  computed. */
double sherdi_orthogonal_flops(size_t rows, size_t cols, int steps);

/**
 *  Normalises the matrix, X = src / max(|src|, eps), then does `steps` times
 *
 *   rows <= cols   A = X X^T    B = b A + c A A    X = a X + B X
 *   rows > cols    A = X^T X    B = b A + c A A    X = a X + X B
 *
 *  In the last step, both terms of X are multiplied by `scale`.
 *
 *  Memory     dst, src and workspace are device memory, borrowed until the lane has passed the
 *             call. src does not change unless it is dst.
 *  Blocking   never: the host reads nothing and allocates nothing.
 *  Result     in dst. A matrix of zeros stays zero. If src has a NaN or an Inf, all of dst is NaN.
 */
void sherdi_orthogonal(const sherdi_backend *backend, const sherdi_orthogonal_args *args);

#endif
