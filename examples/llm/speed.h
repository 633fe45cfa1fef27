/* What a training step costs and what a GPU could do: for the share of the peak (MFU) that a run reaches. */
#ifndef LLM_SPEED_H
#define LLM_SPEED_H

#include "arch.h"

/** Floating-point operations of forward and backward for one token, as Chowdhery et al. 2022 (PaLM, appendix B)
 *  count them: 6 for each weight of a matrix that is multiplied by (the head among them, tables that are looked up
 *  not), 12 * layers * hidden * length for attention. What is recomputed does not count. */
double speed_flops_per_token(const arch *model, size_t length);

/** Dense peak of a GPU by its name, in operations per second, for products of this type with sums in fp32. 0: not
 *  known. */
double speed_peak_flops(const char *device, sherd_dtype dtype);

#endif
