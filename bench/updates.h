/* The optimizers' updates that bench-adam times: a row each, with the shape of its traffic. */
#ifndef BENCH_UPDATES_H
#define BENCH_UPDATES_H

#include "bench/arrays.h"
#include "kernels/cpu/ahead.h"

typedef struct bench_update {
    const char      *name;
    traffic_shape_id shape;
    sherdi_update_id update;
    int              is_norms;                      /* LAMB's first sweep */
    sherdi_encoding  encodings[TRAFFIC_MOST_PARTS]; /* the master first */
} bench_update;

/* Those of one shape follow each other. */
extern const bench_update BENCH_UPDATES[];
extern const size_t       BENCH_NUM_UPDATES;

/** Fills the arrays with a state of its encodings. */
void bench_update_prepare(const bench_run *run, const bench_update *update);
/** Whether every number of the state is still zero or normal: others take more time than a
 *  trainer's. */
int  bench_update_is_sound(const bench_run *run, const bench_update *update);
void bench_update_run(bench_run *run, const bench_update *update);
/** Sets how far ahead the loops fill the caches; kernels without vectors do not. */
void bench_ahead_set(const bench_run *run, sherdi_ahead ahead);
/** How far ahead an engine with this optimizer fills the caches, once its first updates have tried.
 *  The backend needs this value before a timed measurement. */
sherdi_ahead bench_update_settle(bench_run *run, const bench_update *update);
/** Bytes of an element, as the engine counts them: those of its shape. */
double bench_update_bytes(const bench_arrays *arrays, const bench_update *update);

#endif
