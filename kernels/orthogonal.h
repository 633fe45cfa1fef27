/* A matrix made orthogonal, for the Muon optimizer (Jordan et al. 2024): all its singular values brought near 1 by
 * Newton-Schulz iterations, which are matrix products alone. Queued on a lane of any backend; the bits are the same
 * on all of them, since those of the kernels are. docs/numerics.md has the formulas. */
#ifndef SHERDI_KERNELS_ORTHOGONAL_H
#define SHERDI_KERNELS_ORTHOGONAL_H

#include "kernels/backend.h"

/* Jordan et al. 2024, and the defaults of torch.optim.Muon. */
#define SHERDI_ORTHOGONAL_A   3.4445f
#define SHERDI_ORTHOGONAL_B   (-4.7750f)
#define SHERDI_ORTHOGONAL_C   2.0315f
#define SHERDI_ORTHOGONAL_EPS 1e-7f /* what a smaller norm counts as */

typedef struct sherdi_orthogonal_args {
    float       *dst; /* [rows, cols], dense: the result */
    const float *src; /* [rows, cols], dense; may be dst, overlaps it in no other way */
    size_t       rows, cols;
    int          steps;     /* 0 and more; with 0 it is only normalised */
    float        scale;     /* the result of the last step is multiplied by it */
    void        *workspace; /* sherdi_orthogonal_workspace_bytes; a multiple of SHERD_ALIGN_BYTES */
} sherdi_orthogonal_args;

/** Of device memory, whatever it holds; 0 where the matrix has no elements. */
size_t sherdi_orthogonal_workspace_bytes(size_t rows, size_t cols);
/** Floating-point operations, a multiply-add being two: those of the products as they are computed, where of a symmetric
 *  one the half on and above the diagonal counts. */
double sherdi_orthogonal_flops(size_t rows, size_t cols, int steps);

/**
 * Normalises the matrix, X = src / max(|src|, eps), and does `steps` times
 *
 *   rows <= cols   A = X X^T    B = b A + c A A    X = a X + B X
 *   rows > cols    A = X^T X    B = b A + c A A    X = a X + X B
 *
 * the last of them with both terms times `scale`.
 *
 * Memory     dst, src and workspace are the device's, borrowed until the lane has passed the call. src keeps its contents
 *            unless it is dst.
 * Blocking   never; nothing is read by the host, nothing allocated.
 * Result     in dst. A matrix of zeros stays one; where src has a NaN or an Inf all of dst is NaN.
 */
void sherdi_orthogonal(const sherdi_backend *backend, const sherdi_orthogonal_args *args);

#endif
