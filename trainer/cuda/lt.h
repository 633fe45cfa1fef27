/* Row-major matrix products by cuBLASLt. The library is opened by name when the first model is made
 * for a GPU, so without it the trainer still starts and trains on the CPU. device.cu calls
 * lt_multiply for every product. */
#ifndef LLM_CUDA_LT_H
#define LLM_CUDA_LT_H

#include "trainer/tuned.h"
#include "sherd.h"

#include <cuda_runtime.h>

#include <stddef.h>

typedef struct lt lt;

/* A matrix in memory: element (r, c) at data[r * stride + c]. */
typedef struct lt_matrix {
    const void *data;
    size_t      stride;
    int         is_transposed; /* the product sees the columns of memory as rows */
} lt_matrix;

/* d[m, n] = a[m, k] . b[k, n] (+ c) (+ bias). Sums are in fp32 and rounded once. All matrices have
 * one type, unless is_wide. m, n and k are the sizes after transposition. */
typedef struct lt_product {
    sherd_dtype dtype;
    size_t      m, n, k;
    lt_matrix   a, b;
    const void *c; /* [m, n] with d's stride, may be d; NULL: none */
    void       *d;
    size_t      d_stride;
    int         is_wide;   /* c and d are fp32 whatever `dtype` is; not with bias or gelu */
    const void *bias;      /* [n]; NULL: none */
    void       *gelu_x;    /* not NULL: receives the sum, and d becomes its gelu */
    const void *gelu_back; /* not NULL: d becomes the sum times gelu'(gelu_back) */
} lt_product;

typedef enum lt_result {
    LT_OK = 0,
    LT_UNFUSED, /* nothing was done: no kernel fuses bias or gelu for these shapes */
    LT_FAILED,  /* lt_why says why */
} lt_result;

/* Chooses kernels by measurement: for each shape `candidates` kernels are timed, and the fastest is
 * stored in `file` for later runs. */
typedef struct lt_tuning {
    tuned      *file; /* the caller's; NULL: the first kernel that the library names is taken */
    int         candidates; /* at most LT_MOST_CANDIDATES are timed */
    const char *device;     /* name of the device: a part of the keys in the file */
} lt_tuning;

#define LT_MOST_CANDIDATES 16

/** Makes it for the current device. Returns NULL with a sentence in `why`. */
lt         *lt_create(const lt_tuning *tuning, char *why, size_t why_bytes);
void        lt_destroy(lt *l); /* accepts NULL; its work has ended */
const char *lt_why(const lt *l);
size_t      lt_bytes(const lt *l); /* of its workspace */

/** Queues a product. The first product of a shape chooses the kernel, which takes a while, and
 *  waits for the device if kernels are timed. Later products of the shape use the same kernel
 *  whatever the addresses, so results have the same bits. */
lt_result lt_multiply(lt *l, const lt_product *product, cudaStream_t stream);

#endif
