/* The orthogonal matrix next to a matrix, as Muon takes it: a Newton-Schulz iteration of the fifth degree whose coefficients
 * bring every singular value near 1 (between 0.7 and 1.2) in few steps, and no nearer (Jordan et al. 2024). In fp32, of the
 * kernels of any backend: the same bits everywhere. */
#ifndef SHERDI_KERNELS_ORTHOGONAL_H
#define SHERDI_KERNELS_ORTHOGONAL_H

#include "kernels/backend.h"

/* The norm by which a matrix is divided is at least that. */
#define SHERDI_ORTHOGONAL_EPS 1e-7f

/* Memory of the backend's device, borrowed until the lane has passed the call. */
typedef struct sherdi_orthogonal_args {
    float *
        matrix; /* [rows, cols], dense, and zeros behind it up to a whole chunk; the result lies here too */
    size_t rows, cols;
    int    steps;     /* at least 1 */
    float  scale;     /* the result is multiplied by it */
    void  *workspace; /* sherdi_orthogonal_workspace_bytes */
} sherdi_orthogonal_args;

/** Queued on the lane; allocates nothing. A matrix of zeros stays one. */
void sherdi_orthogonal(const sherdi_backend *backend, const sherdi_orthogonal_args *args);
/** A multiple of SHERD_ALIGN_BYTES. */
size_t sherdi_orthogonal_workspace_bytes(size_t rows, size_t cols);
/** Operations of floating point in its products, two for each multiplication and addition; of a product that is symmetric
 *  those of one half and the diagonal. */
double sherdi_orthogonal_flops(size_t rows, size_t cols, int steps);

#endif
