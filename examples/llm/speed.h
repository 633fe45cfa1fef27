/* What a training step costs and what a GPU could do: for the share of the peak (MFU) that a run reaches. */
#ifndef LLM_SPEED_H
#define LLM_SPEED_H

#include "models/arch.h"
#include "sherd.h"

/** Floating-point operations of forward and backward for one token: arch_flops_per_token(). */
double speed_flops_per_token(const arch *model, size_t length);

/** Dense peak of a GPU by its name, in operations per second, for products of this type with sums in fp32. 0: not
 *  known. */
double speed_peak_flops(const char *device, sherd_dtype dtype);

#endif
