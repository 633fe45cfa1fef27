/* Chooses the table of rows.h for this machine. LLM_HAVE_AVX2 and LLM_HAVE_AVX512 say that rows.c
 * was also compiled for that instruction set. */
#include "models/blas.h"
#include "rows.h"

size_t rows_tables(const rows_ops *out[ROWS_MOST_TABLES])
{
    size_t count = 0;

#ifdef LLM_HAVE_AVX512
    if (blas_cpu_level() == BLAS_AVX512) {
        out[count++] = &rows_ops_avx512;
    }
#endif
#ifdef LLM_HAVE_AVX2
    if (blas_cpu_level() >= BLAS_AVX2) {
        out[count++] = &rows_ops_avx2;
    }
#endif
    out[count++] = &rows_ops_plain;
    return count;
}

const rows_ops *rows_best(void)
{
    const rows_ops *tables[ROWS_MOST_TABLES];

    (void)rows_tables(tables);
    return tables[0];
}
