/* The ratios of an optimizer that measures norms of tensors. */
#ifndef SHERDI_ENGINE_PROGRAM_RATIOS_H
#define SHERDI_ENGINE_PROGRAM_RATIOS_H

#include "engine/program/program.h"

/** Emits, once the norms were measured, what follows before the update. */
sherd_status sherdi_program_ratios_make(const sherdi_program *program);

#endif
