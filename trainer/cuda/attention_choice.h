/* Whose kernels compute attention: those of warpgroups (attention_warpgroup.cu), cuDNN's (sdpa.h),
 * or those of attention.cu. The first shape decides, and a shape that the chosen ones do not take
 * goes to those of attention.cu. So forward and backward of a shape have the same kernels, since
 * each has its own form of what forward keeps for backward. device.cu calls this. */
#ifndef LLM_CUDA_ATTENTION_CHOICE_H
#define LLM_CUDA_ATTENTION_CHOICE_H

#include "kernels.h"

typedef struct attention_kernels attention_kernels;

typedef struct attention_params {
    compute_attention choice;
    shared_memory     memory;         /* of the current device */
    size_t            processors;     /* of the current device */
    int               has_warpgroups; /* compute capability 9.0 */
} attention_params;

/* Makes it for the current device. Returns NULL with a sentence in `why` if the device has too
 * little shared memory. */
attention_kernels *attention_kernels_create(const attention_params *params, char *why,
                                            size_t why_bytes);
void attention_kernels_destroy(attention_kernels *k); /* accepts NULL; its work has ended */
/* Queues forward or backward (kernels.h); fills in `memory` and `processors` itself. Returns 0, or
 * -1 with a sentence in `why`. */
int attention_kernels_queue(attention_kernels *k, attention_launch args, cudaStream_t stream,
                            char *why, size_t why_bytes);
/* Whether backward with these arguments, but without `columns`, would sum columns if it had
 * them. */
bool attention_kernels_sum_columns(const attention_kernels *k, const attention_launch *args);
/* Device memory of the library that was chosen. */
size_t attention_kernels_bytes(const attention_kernels *k);
/* A sentence about the choice, "" before the first shape or where nothing was asked. */
const char *attention_kernels_note(const attention_kernels *k);
/* Whose kernels were used last; auto: none. */
compute_attention attention_kernels_used(const attention_kernels *k);

#endif
