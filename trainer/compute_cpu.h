/* The state of the CPU's operations, which compute_cpu.c and compute_cpu_embed.c share. compute.h
 * says what the operations do. */
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
    double          losses;     /* sum since the last losses_close */
    double          closed;     /* sum that the next losses_take gives */
    int             has_closed; /* losses_take has not returned it yet */
    atomic_int      has_failed; /* a product had no memory; tasks set it */

    float    *memory;
    float    *logits;                          /* [rows, vocab] */
    float    *weight, *bias, *dweight, *dbias; /* vectors of one operation in fp32 */
    uint16_t *half_x, *half_dy;                /* operands of one product in bf16 */
    float    *lanes;                           /* scratch of each thread */
    float    *partials;                        /* partial sums of norms: [chunks, 2, width] */
    double   *row_losses;                      /* [rows] */
    uint64_t *order; /* [2, rows]: rows sorted by token, and room for the sort; for embeddings */
} cpu;

static inline cpu *cpu_of(compute *c)
{
    return (cpu *)c;
}

static inline float *lane_of(const cpu *m, int thread)
{
    return m->lanes + (size_t)thread * m->room.lane_elems;
}

/* See embed and embed_back in compute.h. */
void cpu_embed(compute *c, tensor tokens, tensor positions, void *y);
void cpu_embed_back(compute *c, const void *dy, tensor tokens, tensor positions);

#endif
