/* The bytes that operations move, by medium: they follow from the operation and the plan. */
#ifndef SHERDI_ENGINE_PROOF_MOVES_H
#define SHERDI_ENGINE_PROOF_MOVES_H

#include "engine/program/program.h"
#include "engine/report.h"

/** Returns the bytes that this rank sends for an operation. */
uint64_t sherdi_op_wire(const sherdi_plan *plan, const sherdi_op *op);
/** Adds what an operation moves to `sums`, by medium. */
void sherdi_op_moves_add(const sherdi_plan *plan, const sherdi_model *model, const sherdi_op *op,
                         uint64_t sums[SHERDI_MEDIA]);

#endif
