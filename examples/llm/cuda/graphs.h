/* Passes of units that are launched as one. What a pass queues is captured as a graph when it comes for the second time with the
 * same memory, and launched as that from then on: the same kernels with the same arguments, so the same bits, for one call of the
 * host instead of some twenty. The first time may allocate and measure, which no capture may. */
#ifndef LLM_CUDA_GRAPHS_H
#define LLM_CUDA_GRAPHS_H

#include <cuda_runtime.h>

#include <stddef.h>

typedef struct graphs graphs;

/** For one stream, which is not the default one. NULL: out of memory. */
graphs *graphs_create(cudaStream_t stream);
void    graphs_destroy(graphs *g); /* accepts NULL; its work has ended */

/** Begins a pass: `key` is all that its launches follow from beside its number. 1: it was launched, and there is no more to do; 0: the
 *  caller queues it, without waits and allocations, and ends it. */
int  graphs_begin(graphs *g, size_t pass, const void *key, size_t key_bytes);
void graphs_end(graphs *g);

/** The first failure of any of it, after which no pass is captured. */
cudaError_t graphs_error(const graphs *g);
/** Graphs that are there. */
size_t graphs_count(const graphs *g);

#endif
