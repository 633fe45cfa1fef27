/* Matrix products by cuBLASLt, row-major. Its library is opened when the first model is made for a GPU,
 * by name: so the trainer starts, and trains on the CPU, where it is absent. */
#ifndef LLM_CUDA_LT_H
#define LLM_CUDA_LT_H

#include "examples/llm/tuned.h"
#include "sherd.h"

#include <cuda_runtime.h>

#include <stddef.h>

typedef struct lt lt;

/* A matrix in memory: element (r, c) at data[r * stride + c]. */
typedef struct lt_matrix {
    const void *data;
    size_t      stride;
    int         is_transposed; /* the product sees its columns as rows */
} lt_matrix;

/* d[m, n] = a[m, k] . b[k, n] (+ c) (+ bias), sums in fp32, rounded once; all of one type, unless it is wide. m, n and k are those
 * that the product sees. */
typedef struct lt_product {
    sherd_dtype dtype;
    size_t      m, n, k;
    lt_matrix   a, b;
    const void *c; /* [m, n] with d's stride, may be d; NULL: none */
    void       *d;
    size_t      d_stride;
    int         is_wide; /* c and d are fp32 whatever the type; without bias and gelu */
    const void *bias;      /* [n]; NULL: none */
    void       *gelu_x;    /* not NULL: receives the sum, d becomes its gelu */
    const void *gelu_back; /* not NULL: d becomes the sum times gelu' of this */
    void       *sums;      /* not NULL: receives sums, rounded to the type: with gelu_back of d over its rows [n], else of a
                              over its columns [m]; not with bias or gelu_x, nor wide */
} lt_product;

typedef enum lt_result {
    LT_OK = 0,
    LT_UNFUSED, /* nothing was done: no kernel has bias, gelu or sums in it for these shapes */
    LT_FAILED,  /* lt_why */
} lt_result;

/* Kernels by measurement: of each shape `candidates` are timed and the fastest is kept in `file`, where a later run finds it. */
typedef struct lt_tuning {
    tuned      *file;       /* the caller's, NULL: the first that the library names is taken */
    int         candidates; /* at most LT_MOST_CANDIDATES are looked at */
    const char *device;     /* its name: a part of what is kept */
} lt_tuning;

#define LT_MOST_CANDIDATES 16

/** For the current device. NULL with a sentence in `why`. */
lt         *lt_create(const lt_tuning *tuning, char *why, size_t why_bytes);
void        lt_destroy(lt *l); /* accepts NULL; its work has ended */
const char *lt_why(const lt *l);
size_t      lt_bytes(const lt *l); /* of its workspace */

/** Queues a product. The first one of a shape chooses its kernel, which takes a while (and waits for the device, where
 *  kernels are timed); the same shape gets the same kernel ever after, whatever the addresses: results are the same bits. */
lt_result lt_multiply(lt *l, const lt_product *product, cudaStream_t stream);

#endif
