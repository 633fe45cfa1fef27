/* Embeddings on the CPU. Backward sorts the rows by token, so that one task adds all rows of a
 * token. */
#include "compute_cpu.h"

#include <string.h>

typedef struct embed_job {
    const cpu      *m;
    tensor          tokens, positions;
    const float    *dy;
    float          *y;
    const uint64_t *order; /* sorted; the token in the upper 32 bits, the row in the lower */
} embed_job;

static char *tensor_row(tensor table, void *base, size_t row, size_t width)
{
    return (char *)base + row * width * sherd_dtype_bytes(table.dtype);
}

static void embed_task(void *ctx, size_t task, int thread)
{
    embed_job *job = ctx;
    const cpu *m   = job->m;
    size_t     end = size_min(m->rows, (task + 1) * CPU_NORM_CHUNK);

    for (size_t r = task * CPU_NORM_CHUNK; r < end; r++) {
        float *y = job->y + r * m->limits.hidden;

        m->table->widen(
            job->tokens.dtype,
            tensor_row(job->tokens, job->tokens.data, (size_t)m->inputs[r], m->limits.hidden), y,
            m->limits.hidden);
        if (job->positions.data != NULL) {
            float *position = lane_of(m, thread);

            m->table->widen(job->positions.dtype,
                            tensor_row(job->positions, job->positions.data, r % m->limits.length,
                                       m->limits.hidden),
                            position, m->limits.hidden);
            m->table->add(position, y, m->limits.hidden);
        }
    }
}

void cpu_embed(compute *c, tensor tokens, tensor positions, void *y)
{
    cpu      *m   = cpu_of(c);
    embed_job job = {.m = m, .tokens = tokens, .positions = positions, .y = y};

    pool_run(m->threads, count_of(m->rows, CPU_NORM_CHUNK), embed_task, &job);
}

/* One task for each entry of the sorted order: the first entry of a token sums all rows of the
 * token, the others do nothing. */
static void embed_back_token_task(void *ctx, size_t task, int thread)
{
    embed_job *job   = ctx;
    const cpu *m     = job->m;
    float     *sum   = lane_of(m, thread);
    uint64_t   token = job->order[task] >> 32;

    if (task > 0 && job->order[task - 1] >> 32 == token) {
        return;
    }
    memset(sum, 0, m->limits.hidden * sizeof(*sum));
    for (size_t i = task; i < m->rows && job->order[i] >> 32 == token; i++) {
        m->table->add(job->dy + (size_t)(uint32_t)job->order[i] * m->limits.hidden, sum,
                      m->limits.hidden);
    }
    m->table->accumulate(job->tokens.dtype, sum,
                         tensor_row(job->tokens, job->tokens.grad, (size_t)token, m->limits.hidden),
                         m->limits.hidden);
}

static void embed_back_position_task(void *ctx, size_t task, int thread)
{
    embed_job *job = ctx;
    const cpu *m   = job->m;
    float     *sum = lane_of(m, thread);

    memset(sum, 0, m->limits.hidden * sizeof(*sum));
    for (size_t r = task; r < m->rows; r += m->limits.length) {
        m->table->add(job->dy + r * m->limits.hidden, sum, m->limits.hidden);
    }
    m->table->accumulate(job->positions.dtype, sum,
                         tensor_row(job->positions, job->positions.grad, task, m->limits.hidden),
                         m->limits.hidden);
}

/* Sorts keys by merging sorted sequences of growing length. `other` has as much room as `keys`.
 * Returns the one that has the result. */
static uint64_t *keys_sort(uint64_t *keys, uint64_t *other, size_t count)
{
    for (size_t run = 1; run < count; run *= 2) {
        uint64_t *merged = other;

        for (size_t start = 0; start < count; start += 2 * run) {
            size_t middle = size_min(start + run, count), end = size_min(start + 2 * run, count);
            size_t a = start, b = middle;

            for (size_t i = start; i < end; i++) {
                merged[i] = b >= end || (a < middle && keys[a] <= keys[b]) ? keys[a++] : keys[b++];
            }
        }
        other = keys;
        keys  = merged;
    }
    return keys;
}

void cpu_embed_back(compute *c, const void *dy, tensor tokens, tensor positions)
{
    cpu      *m   = cpu_of(c);
    embed_job job = {.m = m, .tokens = tokens, .positions = positions, .dy = dy};

    for (size_t r = 0; r < m->rows; r++) {
        m->order[r] = (uint64_t)m->inputs[r] << 32 | (uint64_t)r;
    }
    job.order = keys_sort(m->order, m->order + m->rows, m->rows);
    pool_run(m->threads, m->rows, embed_back_token_task, &job);
    if (positions.data != NULL) {
        pool_run(m->threads, size_min(m->limits.length, m->rows), embed_back_position_task, &job);
    }
}
