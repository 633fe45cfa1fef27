/* Captures passes of units as CUDA graphs. When a pass is made for the second time with the same
 * memory, its work is captured as a graph; from then on the graph is launched. It has the same
 * kernels with the same arguments, so the bits are the same, but it takes one call of the host
 * instead of about twenty. The first time is not captured, because it may allocate and measure,
 * which a capture must not. device.cu calls this for pass_begin and pass_end of compute.h. */
#ifndef LLM_CUDA_GRAPHS_H
#define LLM_CUDA_GRAPHS_H

#include <cuda_runtime.h>

#include <stddef.h>

typedef struct graphs graphs;

/** Makes it for one stream, which must not be the default stream. Returns NULL if out of memory. */
graphs *graphs_create(cudaStream_t stream);
void    graphs_destroy(graphs *g); /* accepts NULL; its work has ended */

/** Begins a pass. Its number and `key` together decide all its launches. Returns 1 if its graph was
 *  launched: the caller does nothing more. Returns 0 if the caller has to queue the pass, without
 *  waits and allocations, and then call graphs_end. */
int  graphs_begin(graphs *g, size_t pass, const void *key, size_t key_bytes);
void graphs_end(graphs *g);

/** Returns the first failure; after it no pass is captured. */
cudaError_t graphs_error(const graphs *g);
/** Returns the number of graphs that exist. */
size_t graphs_count(const graphs *g);

#endif
