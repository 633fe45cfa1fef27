/* What a plan has for checkpoints. */
#ifndef SHERDI_ENGINE_PLAN_CHECKPOINT_H
#define SHERDI_ENGINE_PLAN_CHECKPOINT_H

#include "engine/plan/plan.h"

/* A checkpoint's data has one checksum for each EXTENT_BYTES. It is transferred through at most
 * SLOTS slots, each of at least EXTENT_BYTES and at most SLOT_BYTES. */
#define SHERDI_CHECKPOINT_EXTENT_BYTES ((size_t)64 << 10)
#define SHERDI_CHECKPOINT_SLOT_BYTES   ((size_t)1 << 20)
#define SHERDI_CHECKPOINT_SLOTS        16

/** Returns the bytes that a checkpoint has of an element: its fp32 values, one per part; for a
 *  frozen one, its value in its own type. */
static inline size_t sherdi_saved_bytes(const sherdi_segment *segment)
{
    return segment->optimizer == NULL ? sherdi_compute_bytes(segment)
                                      : (size_t)sherdi_segment_parts(segment) * sizeof(float);
}

/** Sizes the slots of checkpoints, and the snapshot; a small model needs few slots. */
sherd_status sherdi_plan_checkpoint_lay_out(sherdi_plan *plan, const sherdi_model *model);

#endif
