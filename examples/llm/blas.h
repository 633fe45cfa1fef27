/* OpenBLAS, opened by name so that its kernels can be chosen first. A library that is older than the CPU
 * takes those of the oldest one it knows (0.3.21 on Emerald Rapids: Prescott, a fifth of the speed). Where
 * its own choice uses narrower vectors than the CPU has, it is opened again with OPENBLAS_CORETYPE set; a
 * user's own OPENBLAS_CORETYPE stays. One per process; sherd-llm and `sherd env` see it. */
#ifndef LLM_BLAS_H
#define LLM_BLAS_H

#include <stddef.h>

/* The widest vectors, which decide how fast a product is. */
typedef enum blas_level {
    BLAS_SSE = 0, /* and whatever is not x86-64 */
    BLAS_AVX,
    BLAS_AVX2, /* with FMA */
    BLAS_AVX512,
} blas_level;

typedef struct blas_state {
    int        is_open;
    char       library[64];   /* "OpenBLAS 0.3.21" */
    char       core[32];      /* the kernels that compute, as OpenBLAS names them */
    char       own_core[32];  /* those that it took by itself */
    int        is_users_core; /* OPENBLAS_CORETYPE was set */
    blas_level level, cpu_level;
    char       why[256]; /* not open: why not */
} blas_state;

/** Opens it at the first call, with one thread of its own: its splits would make results depend on their
 *  number. The first call comes before other threads start, because it sets environment variables. */
const blas_state *blas_open(void);
/** Opens it anew. `own_core`, where not NULL, is what it takes by itself this time: for tests. No product
 *  may be running. */
const blas_state *blas_reopen(const char *own_core);

blas_level blas_cpu_level(void);
/** The kernels that a CPU of `cpu_level` should have instead of `core`; NULL: those are as wide. */
const char *blas_better_core(const char *core, blas_level cpu_level);

/* Ranks on different CPUs: each adds 1 at its own number, all add up, all settle on the same kernels. */
#define BLAS_CORES 11
size_t blas_core_number(void);
/** Where `counts` names several cores, opens the library anew with one that every rank can run. */
void blas_settle(const double counts[BLAS_CORES]);

/** Makes sure that `threads` more threads can multiply at once: each needs a buffer, and the library
 *  waits for ever for one that it cannot get. Returns 0, or -1 with a sentence in `why`. */
int blas_reserve(int threads, char *why, size_t why_bytes);

/** One line about what multiplies. */
const char *blas_describe(char out[256]);
/** A sentence about kernels that are slower than this CPU's; NULL: they are not. */
const char *blas_warning(char out[512]);

/** As cblas_sgemm, row-major; only when open. */
void blas_sgemm(int flips_a, int flips_b, size_t m, size_t n, size_t k, float alpha, const float *a,
                size_t a_stride, const float *b, size_t b_stride, float beta, float *c,
                size_t c_stride);
/** Threads of the library's own: for measurements. */
void blas_threads_set(int threads);

#endif
