/* oneDNN, opened by name where the CPU multiplies bf16 itself: products of bf16 with sums in fp32, which OpenBLAS
 * does not have. Where it is not, bf16 is widened and OpenBLAS multiplies (blas.h). A user's own ONEDNN_MAX_CPU_ISA
 * holds: AVX512_CORE leaves no bf16. One per process; sherd-llm and `sherd env` see it. */
#ifndef LLM_ONEDNN_H
#define LLM_ONEDNN_H

#include <stddef.h>
#include <stdint.h>

/* Instructions that multiply bf16. Each kind sums in an order of its own. */
typedef enum onednn_level {
    ONEDNN_NONE = 0,
    ONEDNN_AVX512, /* AVX512_BF16 */
    ONEDNN_AMX,
    ONEDNN_LEVELS
} onednn_level;

typedef struct onednn_state {
    char         library[32]; /* "oneDNN 2.6.3"; "": not open */
    onednn_level level;       /* what multiplies; NONE: bf16 is widened */
    onednn_level own_level;   /* the most that library and CPU have */
    char         why[256];    /* of NONE */
} onednn_state;

/** Opens it at the first call. */
const onednn_state *onednn_open(void);

/** Ranks on different CPUs: each adds 1 at its own level, all add up, all settle on what every rank has. Before the
 *  first product; to NONE, and back from there, at any time when none is running. */
void onednn_settle(const double counts[ONEDNN_LEVELS]);

typedef struct onednn_matrix {
    const uint16_t *data;
    size_t          stride;        /* elements from one row in memory to the next */
    int             is_transposed; /* the product sees the columns of memory as rows */
} onednn_matrix;

/* c[m, n] = a[m, k] . b[k, n]; m, n and k are those that the product sees. */
typedef struct onednn_product {
    size_t        m, n, k;
    onednn_matrix a, b;
    int           is_added; /* c += instead of c =, rounded once */
    int           is_half;  /* c is bf16, not fp32 */
    void         *c;
    size_t        c_stride;
} onednn_product;

/** On this thread alone, so that its number decides nothing; any thread. Only with a level. Returns 0, or -1: no
 *  memory. */
int onednn_multiply(const onednn_product *product);

/** A few words about what multiplies bf16. */
const char *onednn_describe(char out[320]);

#endif
