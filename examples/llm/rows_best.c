/* Chooses the table of rows.h for this machine. LLM_HAVE_AVX2: rows.c was compiled for it too. */
#include "rows.h"

const rows_ops *rows_best(void)
{
#ifdef LLM_HAVE_AVX2
    if (__builtin_cpu_supports("avx2")) {
        return &rows_ops_avx2;
    }
#endif
    return &rows_ops_plain;
}
