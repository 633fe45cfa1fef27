/* OpenBLAS, or a product in plain C. See gemm.h. */
#include "gemm.h"

#include "models/blas.h"

#include <string.h>

#define BLOCK_K 128
#define BLOCK_N 64

static float matrix_at(gemm_matrix x, size_t row, size_t column)
{
    return x.is_transposed ? x.data[column * x.stride + row] : x.data[row * x.stride + column];
}

/* pack[p][j] = b[k0 + p][n0 + j], and zero beyond the edge, so that the inner loop always has
 * length BLOCK_N. */
static void block_pack(gemm_matrix b, size_t k0, size_t k_count, size_t n0, size_t n_count,
                       float pack[BLOCK_K][BLOCK_N])
{
    for (size_t p = 0; p < k_count; p++) {
        for (size_t j = 0; j < BLOCK_N; j++) {
            pack[p][j] = j < n_count ? matrix_at(b, k0 + p, n0 + j) : 0.0f;
        }
    }
}

static void row_add(const float *sum, float alpha, float *c, size_t count)
{
    for (size_t j = 0; j < count; j++) {
        c[j] += alpha * sum[j];
    }
}

static void block_multiply(size_t m, gemm_matrix a, size_t k0, size_t k_count,
                           float pack[BLOCK_K][BLOCK_N], size_t n_count, float alpha, float *c,
                           size_t c_stride)
{
    for (size_t i = 0; i < m; i++) {
        float sum[BLOCK_N] = {0};

        for (size_t p = 0; p < k_count; p++) {
            float x = matrix_at(a, i, k0 + p);

            for (size_t j = 0; j < BLOCK_N; j++) {
                sum[j] += x * pack[p][j];
            }
        }
        row_add(sum, alpha, c + i * c_stride, n_count);
    }
}

static void rows_scale(size_t m, size_t n, float beta, float *c, size_t c_stride)
{
    for (size_t i = 0; i < m; i++) {
        if (beta == 0.0f) {
            memset(c + i * c_stride, 0, n * sizeof(*c));
            continue;
        }
        for (size_t j = 0; j < n; j++) {
            c[i * c_stride + j] *= beta;
        }
    }
}

static void gemm_plain(size_t m, size_t n, size_t k, float alpha, gemm_matrix a, gemm_matrix b,
                       float beta, float *c, size_t c_stride)
{
    float pack[BLOCK_K][BLOCK_N];

    if (beta != 1.0f) {
        rows_scale(m, n, beta, c, c_stride);
    }
    for (size_t n0 = 0; n0 < n; n0 += BLOCK_N) {
        size_t n_count = n - n0 < BLOCK_N ? n - n0 : BLOCK_N;

        for (size_t k0 = 0; k0 < k; k0 += BLOCK_K) {
            size_t k_count = k - k0 < BLOCK_K ? k - k0 : BLOCK_K;

            block_pack(b, k0, k_count, n0, n_count, pack);
            block_multiply(m, a, k0, k_count, pack, n_count, alpha, c + n0, c_stride);
        }
    }
}

void gemm(size_t m, size_t n, size_t k, float alpha, gemm_matrix a, gemm_matrix b, float beta,
          float *c, size_t c_stride)
{
    if (blas_open()->is_open) {
        blas_sgemm(a.is_transposed, b.is_transposed, m, n, k, alpha, a.data, a.stride, b.data,
                   b.stride, beta, c, c_stride);
    } else {
        gemm_plain(m, n, k, alpha, a, b, beta, c, c_stride);
    }
}
