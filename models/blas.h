/* OpenBLAS, opened by name at run time so that its kernels can be chosen first. A library that is
 * older than the CPU takes the kernels of the oldest CPU that it knows (0.3.21 on Emerald Rapids:
 * Prescott, a fifth of the speed). If its own choice uses narrower vectors than the CPU has, it is
 * reopened with OPENBLAS_CORETYPE set. A user's OPENBLAS_CORETYPE takes precedence. There is one
 * library per process; sherd-llm and `sherd env` use it. gemm.h calls it for products. */
#ifndef LLM_BLAS_H
#define LLM_BLAS_H

#include <stddef.h>

/* The widest vectors of a CPU or a kernel; they decide how fast a product is. */
typedef enum blas_level {
    BLAS_SSE = 0, /* also every CPU that is not x86-64 */
    BLAS_AVX,
    BLAS_AVX2, /* with FMA */
    BLAS_AVX512,
} blas_level;

typedef struct blas_state {
    int        is_open;
    char       library[64];   /* "OpenBLAS 0.3.21" */
    char       core[32];      /* the kernels that compute, as OpenBLAS names them */
    char       own_core[32];  /* the kernels that OpenBLAS chose by itself */
    int        is_users_core; /* OPENBLAS_CORETYPE was set */
    blas_level level, cpu_level;
    char       why[256]; /* why it is not open */
} blas_state;

/** Opens the library at the first call. The library gets one thread: if it split a product itself,
 *  results would depend on its number of threads. Make the first call before other threads start,
 *  because it sets environment variables. */
const blas_state *blas_open(void);
/** Reopens the library. For tests: `own_core`, if not NULL, stands for the library's own choice
 *  this time. No product may be running. */
const blas_state *blas_reopen(const char *own_core);

blas_level blas_cpu_level(void);
/** Returns the kernels that a CPU of `cpu_level` should use instead of `core`; NULL: `core` is as
 *  wide. */
const char *blas_better_core(const char *core, blas_level cpu_level);

/* Ranks on different CPUs settle on the same kernels: each rank counts 1 at its blas_core_number,
 * the ranks sum the counts, and each gives the sums to blas_settle. */
#define BLAS_CORES 11
size_t blas_core_number(void);
/** If `counts` names several cores, reopens the library with one that every rank can run. */
void blas_settle(const double counts[BLAS_CORES]);

/** Makes sure that `threads` more threads can multiply at once. Each needs a buffer, and the
 *  library waits for ever for a buffer that it cannot get. Returns 0, or -1 with a sentence in
 *  `why`. */
int blas_reserve(int threads, char *why, size_t why_bytes);

/** Describes in one line what computes products. */
const char *blas_describe(char out[256]);
/** Returns a sentence if products are slower than this CPU allows; NULL: they are not. */
const char *blas_warning(char out[512]);

/** As cblas_sgemm, row-major; only when the library is open. */
void blas_sgemm(int flips_a, int flips_b, size_t m, size_t n, size_t k, float alpha, const float *a,
                size_t a_stride, const float *b, size_t b_stride, float beta, float *c,
                size_t c_stride);
/** Sets the number of the library's own threads: for measurements. */
void blas_threads_set(int threads);

#endif
