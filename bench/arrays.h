/* The arrays of an optimizer's update, and the loops that update and other kernels are held
 * against. */
#ifndef BENCH_ARRAYS_H
#define BENCH_ARRAYS_H

#include "bench/traffic.h"
#include "kernels/backend.h"

/* fp32 master, moments, gradient and an output; bf16 gradient and parameter. */
typedef struct bench_arrays {
    float    *p, *m, *v, *g, *out;
    uint16_t *g16, *p16;
    size_t    elems;
} bench_arrays;

/** Ends the program, with a sentence, when there is no memory. Multiples of 64 elements. */
bench_arrays bench_arrays_make(size_t elems);
/** x[i] = scale * something in (0, 1]. */
void bench_array_fill(float *x, size_t elems, float scale);

/* The arrays of rows. `elems` of the arrays, a multiple of 64. */
typedef struct bench_run {
    const bench_arrays  *arrays;
    size_t               elems;
    sherdi_backend      *backend;
    const traffic_loops *traffic;
    sherdi_mem           mem;
    traffic_shape_id     shape;       /* of the limit, */
    size_t               ahead_bytes; /* ... which fills the caches so far ahead */
    uint64_t             sink;
} bench_run;

/** Makes the backend of an instruction set and a number of threads; ends the program when it
 *  cannot. */
void bench_run_init(bench_run *run, const bench_arrays *arrays, const char *isa, int threads);
void bench_run_fini(bench_run *run);

/** Reads g, writes out around the caches. */
void bench_copy_nt(bench_run *run);
/** Reads g and nothing else: four far-apart streams of whole lines, one word of each. A norm cannot
 *  read faster than the machine reads. */
void bench_read(bench_run *run);
/** The loads and stores of an update without its arithmetic (traffic.h): parts in p, m and v, the
 *  gradient in g or g16 and the parameter in p16. */
void bench_traffic(bench_run *run, traffic_shape_id shape, size_t ahead_bytes);

#endif
