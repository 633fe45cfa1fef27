/* What the files of the CPU's operations share (compute_cpu.c, compute_cpu_embed.c). */
#ifndef LLM_COMPUTE_CPU_H
#define LLM_COMPUTE_CPU_H

#include "compute.h"

#include "models/room.h"
#include "rows.h"

#include <stdatomic.h>

typedef struct cpu {
    compute         base;
    compute_limits  limits;
    size_t          rows;
    pool           *threads;
    const rows_ops *table;
    cpu_room        room;
    const int32_t  *inputs, *targets;
    double          losses;     /* since they were taken */
    atomic_int      has_failed; /* a product had no memory */

    float    *memory;
    float    *logits;                          /* [rows, vocab] */
    float    *weight, *bias, *dweight, *dbias; /* vectors of one operation in fp32 */
    uint16_t *half_x, *half_dy;                /* operands of one product in bf16 */
    float    *lanes;                           /* scratch of each thread */
    float    *partials;                        /* shares of norms: [chunks, 2, width] */
    double   *row_losses;                      /* [rows] */
    uint64_t *order;                           /* [2, rows]: positions by token, for embeddings */
} cpu;

static inline cpu *cpu_of(compute *c)
{
    return (cpu *)c;
}

static inline float *lane_of(const cpu *m, int thread)
{
    return m->lanes + (size_t)thread * m->room.lane_elems;
}

/* As compute.h says of embed and embed_back. */
void cpu_embed(compute *c, tensor tokens, tensor positions, void *y);
void cpu_embed_back(compute *c, const void *dy, tensor tokens, tensor positions);

#endif
