/* oneDNN, opened by name at run time if the CPU has instructions that multiply bf16. It computes
 * products of bf16 with sums in fp32, which OpenBLAS does not have. Without oneDNN, bf16 is widened
 * to fp32 and OpenBLAS multiplies (blas.h). A user's ONEDNN_MAX_CPU_ISA takes precedence:
 * AVX512_CORE switches the bf16 instructions off. There is one library per process; sherd-llm and
 * `sherd env` use it. */
#ifndef LLM_ONEDNN_H
#define LLM_ONEDNN_H

#include <stddef.h>
#include <stdint.h>

/* Instructions that multiply bf16. Each level sums in another order, so their bits differ. */
typedef enum onednn_level {
    ONEDNN_NONE = 0,
    ONEDNN_AVX512, /* AVX512_BF16 */
    ONEDNN_AMX,
    ONEDNN_LEVELS
} onednn_level;

typedef struct onednn_state {
    char         library[32]; /* "oneDNN 2.6.3"; "": not open */
    onednn_level level;       /* what multiplies; NONE: bf16 is widened */
    onednn_level own_level;   /* the highest that library and CPU have */
    char         why[256];    /* why the level is NONE */
} onednn_state;

/** Opens the library at the first call. */
const onednn_state *onednn_open(void);

/** Settles on a level that every rank has, for ranks on different CPUs: each rank counts 1 at its
 *  own level, the ranks sum the counts, and each calls this with the sums. Call it before the first
 *  product. A change to NONE, and back from NONE, is possible at any time when no product is
 *  running. */
void onednn_settle(const double counts[ONEDNN_LEVELS]);

typedef struct onednn_matrix {
    const uint16_t *data;
    size_t          stride;        /* elements from one row in memory to the next */
    int             is_transposed; /* the product sees the columns of memory as rows */
} onednn_matrix;

/* c[m, n] = a[m, k] . b[k, n]; m, n and k are the sizes after transposition. */
typedef struct onednn_product {
    size_t        m, n, k;
    onednn_matrix a, b;
    int           is_added; /* c += instead of c =, rounded once */
    int           is_half;  /* c is bf16, not fp32 */
    void         *c;
    size_t        c_stride;
} onednn_product;

/** Multiplies on the calling thread alone, so that the number of threads does not change the
 *  result. Any thread may call it. Only if the level is not NONE. Returns 0, or -1 if there is no
 *  memory. */
int onednn_multiply(const onednn_product *product);

/** Describes in a few words what multiplies bf16. */
const char *onednn_describe(char out[320]);

#endif
