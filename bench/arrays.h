/* The arrays of an optimizer's update, and the loops that update and other kernels are held against. */
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

/* What rows work on. `elems` of the arrays, a multiple of 64. */
typedef struct bench_run {
    const bench_arrays  *arrays;
    size_t               elems;
    sherdi_backend      *backend;
    const traffic_loops *traffic;
    sherdi_mem           mem;
    size_t               ahead_bytes; /* of the limits */
    uint64_t             sink;
} bench_run;

/** Makes the backend of an instruction set and a number of threads; ends the program when it cannot. */
void bench_run_init(bench_run *run, const bench_arrays *arrays, const char *isa, int threads);
void bench_run_fini(bench_run *run);

/** Reads g, writes out around the caches. */
void bench_copy_nt(bench_run *run);
/** Reads g and nothing else: four far-apart streams of whole lines, one word of each. What a machine cannot
 *  read, no norm reads. */
void bench_read(bench_run *run);
/** The loads and stores of AdamW without its arithmetic; see traffic.h. */
void bench_traffic_f32(bench_run *run, size_t ahead_bytes);
void bench_traffic_mixed(bench_run *run, size_t ahead_bytes);
/** ... with the master beside the bf16 parameter, in the first half of p. */
void bench_traffic_beside(bench_run *run, size_t ahead_bytes);
/** The loads of LAMB's first sweep. */
void bench_traffic_read_f32(bench_run *run, size_t ahead_bytes);
void bench_traffic_read_mixed(bench_run *run, size_t ahead_bytes);

#endif
