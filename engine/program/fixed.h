/* Gradients of the deterministic mode, which are integers. */
#ifndef SHERDI_ENGINE_PROGRAM_FIXED_H
#define SHERDI_ENGINE_PROGRAM_FIXED_H

#include "engine/program/program.h"

/** Widens integers of the deterministic mode to fp32, in device memory. */
sherd_status sherdi_program_widen(const sherdi_program *program, const sherdi_segment *segment,
                                  sherdi_range src, sherdi_range dst);
/** Adds the squares of integers [first, end) of the slice (the deterministic mode). */
sherd_status sherdi_program_fixed_norm(const sherdi_program *program, const sherdi_segment *segment,
                                       size_t first, size_t end);

#endif
