#include "bench/arrays.h"

#include "kernels/cpu/parallel.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* --------------------------------------------------------------- arrays -- */

/* Some pages apart from the next: the first-level cache of AMD's cores takes addresses that
 * differ by a multiple of 256 MiB for one another, and a loop over such arrays is three times
 * slower whatever it does. */
#define GAP_BYTES ((size_t)37 * 4096)

static void *array_map(size_t len_bytes)
{
    void *array = mmap(NULL, len_bytes + GAP_BYTES, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (array == MAP_FAILED) {
        (void)fprintf(stderr, "bench: no memory for %zu bytes\n", len_bytes);
        exit(1);
    }
    (void)madvise(array, len_bytes, MADV_HUGEPAGE); /* as base/mem.c asks for large blocks */
    return array;
}

void bench_array_fill(float *x, size_t elems, float scale)
{
    uint32_t state = 12345;

    for (size_t i = 0; i < elems; i++) {
        state = state * 1664525u + 1013904223u;
        x[i]  = scale * (float)((state >> 8) + 1) * 0x1p-24f;
    }
}

bench_arrays bench_arrays_make(size_t elems)
{
    bench_arrays a = {.elems = elems};

    a.p   = array_map(elems * sizeof(float));
    a.m   = array_map(elems * sizeof(float));
    a.v   = array_map(elems * sizeof(float));
    a.g   = array_map(elems * sizeof(float));
    a.out = array_map(elems * sizeof(float));
    a.g16 = array_map(elems * sizeof(uint16_t));
    a.p16 = array_map(elems * sizeof(uint16_t));
    bench_array_fill(a.p, elems, 1.0f);
    bench_array_fill(a.m, elems, 1e-3f);
    bench_array_fill(a.v, elems, 1e-5f);
    bench_array_fill(a.g, elems, 1e-3f);
    memset(a.out, 0, elems * sizeof(float));
    for (size_t i = 0; i < elems; i++) {
        a.g16[i] = sherdi_cast_f32_bf16(a.g[i]);
    }
    memcpy(a.p16, a.g16, elems * sizeof(uint16_t));
    return a;
}

/* ------------------------------------------------------------------ run -- */

void bench_run_init(bench_run *run, const bench_arrays *arrays, const char *isa, int threads)
{
    *run =
        (bench_run){.arrays = arrays, .elems = arrays->elems, .traffic = traffic_loops_find(isa)};
    sherdi_mem_init(&run->mem);
    (void)setenv("SHERD_ISA", isa, 1);
    if (sherdi_backend_cpu_create_with(
            &(sherdi_cpu_params){.threads = threads, .shares = 1, .rank = -1}, &run->mem,
            &run->backend) != SHERD_OK) {
        (void)fprintf(stderr, "bench: %s\n", sherd_last_error());
        exit(1);
    }
    (void)unsetenv("SHERD_ISA");
}

void bench_run_fini(bench_run *run)
{
    sherdi_backend_destroy(run->backend);
}

static void on_all_threads(bench_run *run, sherdi_task_fn fn)
{
    const sherdi_split split = {run->backend->threads, SIZE_MAX};

    sherdi_parallel_run(run->backend, split, fn, run);
}

/* First element and number of elements of a task, whole pages. */
static size_t task_range(const bench_run *run, int task, int tasks, size_t *first)
{
    size_t each = run->elems / (size_t)tasks / 4096 * 4096;

    *first = each * (size_t)task;
    return task == tasks - 1 ? run->elems - *first : each;
}

/* --------------------------------------------------------------- limits -- */

static void traffic_task(void *ctx, int task, int tasks)
{
    bench_run           *run     = ctx;
    const bench_arrays  *a       = run->arrays;
    const traffic_shape *shape   = &TRAFFIC_TABLE[run->shape];
    int                  is_wide = shape->grad_bytes == SHERD_CHUNK_ELEMS * sizeof(float);
    const traffic_arrays arrays  = {
         .grad  = is_wide ? (unsigned char *)a->g : (unsigned char *)a->g16,
         .parts = {(unsigned char *)a->p, (unsigned char *)a->m, (unsigned char *)a->v},
         .param = (unsigned char *)a->p16,
    };
    size_t   first;
    size_t   count = task_range(run, task, tasks, &first);
    uint64_t sum   = run->traffic->updates[run->shape](
        &arrays, first / SHERD_CHUNK_ELEMS, (first + count) / SHERD_CHUNK_ELEMS, run->ahead_bytes);

    (void)__atomic_fetch_add(&run->sink, sum, __ATOMIC_RELAXED);
}

void bench_traffic(bench_run *run, traffic_shape_id shape, size_t ahead_bytes)
{
    run->shape       = shape;
    run->ahead_bytes = ahead_bytes;
    on_all_threads(run, traffic_task);
}

static void copy_nt_task(void *ctx, int task, int tasks)
{
    const bench_run    *run = ctx;
    const bench_arrays *a   = run->arrays;
    size_t              first;
    size_t              count = task_range(run, task, tasks, &first);

    run->traffic->copy(a->out + first, a->g + first, count * sizeof(float));
}

void bench_copy_nt(bench_run *run)
{
    on_all_threads(run, copy_nt_task);
}

static void read_task(void *ctx, int task, int tasks)
{
    bench_run      *run     = ctx;
    const uint64_t *words   = (const uint64_t *)(const void *)run->arrays->g;
    size_t          lines   = run->elems / 16 / (size_t)tasks;
    size_t          stream  = lines / 4;
    uint64_t        sums[4] = {0, 0, 0, 0};

    words += lines * 8 * (size_t)task;
    for (size_t i = 0; i < stream; i++) {
        for (size_t k = 0; k < 4; k++) {
            sums[k] += words[(k * stream + i) * 8];
        }
    }
    (void)__atomic_fetch_add(&run->sink, sums[0] + sums[1] + sums[2] + sums[3], __ATOMIC_RELAXED);
}

void bench_read(bench_run *run)
{
    on_all_threads(run, read_task);
}
