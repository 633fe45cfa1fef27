/* One matrix product on one thread, row-major, in fp32: by OpenBLAS if it can be opened (blas.h),
 * else by blocked C. Callers need not know which. compute_cpu.c splits products over threads. */
#ifndef LLM_GEMM_H
#define LLM_GEMM_H

#include <stddef.h>

typedef struct gemm_matrix {
    const float *data;
    size_t       stride;        /* elements from one row in memory to the next */
    int          is_transposed; /* the product sees the columns of memory as rows */
} gemm_matrix;

/** Computes c[m, n] = alpha * a[m, k] . b[k, n] + beta * c. With beta 0 it does not read c. m, n
 *  and k are the sizes after transposition. Any thread may call it. */
void gemm(size_t m, size_t n, size_t k, float alpha, gemm_matrix a, gemm_matrix b, float beta,
          float *c, size_t c_stride);

#endif
