/* The limits that kernels are held against: loops with the same loads and stores and no
 * arithmetic but one addition for each array. */
#ifndef BENCH_TRAFFIC_H
#define BENCH_TRAFFIC_H

#include <stddef.h>
#include <stdint.h>

/** One set for each instruction set; the plain one is for scalar. Those of updates take how far ahead they
 *  fill the caches (0: not); machines differ in which is faster. */
typedef struct traffic_loops {
    /** AdamW in fp32: reads g, reads and writes p, m, v. */
    void (*adam_f32)(float *p, float *m, float *v, const float *g, size_t count_elems,
                     size_t ahead_bytes);
    /** ... with a bf16 gradient and a bf16 copy of p, which is written around the caches. */
    void (*adam_mixed)(float *p, float *m, float *v, const uint16_t *g, uint16_t *copy,
                       size_t count_elems, size_t ahead_bytes);
    /** AdamW with the master beside the bf16 parameter: reads g, reads and writes rest, param, m, v. */
    void (*adam_beside)(uint16_t *rest, float *m, float *v, const uint16_t *g, uint16_t *param,
                        size_t count_elems, size_t ahead_bytes);
    /** Reads p, m, v and g, fp32 or bf16; returns their sum of some kind. What LAMB's first sweep reads. */
    uint64_t (*read_f32)(const float *p, const float *m, const float *v, const float *g,
                         size_t count_elems, size_t ahead_bytes);
    uint64_t (*read_mixed)(const float *p, const float *m, const float *v, const uint16_t *g,
                           size_t count_elems, size_t ahead_bytes);
    /** A copy around the caches, one stream. */
    void (*copy)(void *dst, const void *src, size_t len_bytes);
} traffic_loops;

/** Counts are multiples of 64 elements, arrays aligned to 64 bytes. */
const traffic_loops *traffic_loops_find(const char *isa);

#endif
