/* What the plan of an engine has of data that does not rest on the device. plan_offload.c makes
 * it; plan->rings has the extents on storage. */
#ifndef SHERDI_ENGINE_PLAN_OFFLOAD_H
#define SHERDI_ENGINE_PLAN_OFFLOAD_H

#include "engine/plan/plan.h"
#include "offload/tier_kind.h"

/* Most blocks whose gradients and new values are on the link at the same time. */
#define SHERDI_MOST_BOUNCES 3

/* A part of a slice on NVMe that is read and written as one: extent `i` of the parameters' tier is
 * piece i. The pieces of a trainable segment are its blocks. */
typedef struct sherdi_piece {
    int    segment;
    size_t offset_elems; /* from the start of the slice */
    size_t elems;
    int    is_never_written; /* frozen segment's padding: its tier makes zeros, and reads nothing */
} sherdi_piece;

typedef struct sherdi_plan_offload {
    /* By extent of the state, and of the gradients, on NVMe: whether the first of two sweeps needs
     * it. NULL: all are needed. */
    unsigned char *measured_state, *measured_grads;
    /* Extents of state on storage may have tails: bf16 values that exist elsewhere too, which a
     * step writes and does not read. A tail is a separate extent: in the tier it comes after all
     * other extents, and in a slot after the rest of its own extent (sherdi_ring_tail). All extents
     * have one, which may be empty, or none has. */
    size_t        num_tails;
    sherdi_piece *pieces;
    size_t        num_pieces, cap_pieces;
    uint32_t *fetches; /* pieces in the order of the gathers: train_fetches, then eval_fetches */
    size_t    num_train_fetches, num_eval_fetches;
    size_t    grad_staging_bytes; /* of one slot; the buffer has num_grad_stagings slots */
    int       num_grad_stagings;
    size_t    bounce_param_offset; /* in a bounce buffer: new values, after the gradient */
    /* in a bounce buffer: directions of a block, after the new values */
    size_t bounce_direction_offset;
    size_t bounce_bytes; /* of one buffer; there are num_bounces */
    int    num_bounces;
} sherdi_plan_offload;

/** Returns whether the values of a block's parameter are stored with its state: the bf16 parameter
 *  is a half of the master, so a commit needs both. */
int sherdi_plan_keeps_values(const sherdi_plan *plan, const sherdi_block *block);
/** Returns whether these values are read with the state, because the parameter rests on storage. */
int sherdi_plan_reads_values(const sherdi_plan *plan, const sherdi_block *block);
/** Return the bytes of these values, and the begin of those that are read with the state, after
 *  it. */
size_t sherdi_plan_values_bytes(const sherdi_plan *plan, const sherdi_block *block);
size_t sherdi_plan_values_begin(const sherdi_plan *plan, const sherdi_block *block);
/** Returns the bytes of the state and of values that are read with it. */
size_t sherdi_plan_stored_bytes(const sherdi_plan *plan, const sherdi_block *block);
/** Returns the number of extents of the state's tier on storage, tails included. */
static inline size_t sherdi_plan_stored(const sherdi_plan *plan)
{
    return plan->rings[SHERDI_RING_STATE].num_extents + plan->offload->num_tails;
}
/** Returns whether the bf16 values of a block's parameter are stored with its state on storage. */
static inline int sherdi_block_keeps_values(const sherdi_block *block)
{
    return block->value_offset != SHERDI_NO_OFFSET;
}

/** Returns whether the sum of a window's gradients stays on the device and goes down once. */
static inline int sherdi_plan_accumulates_on_device(const sherdi_plan *plan)
{
    const sherdi_settings *settings = &plan->settings;

    return sherdi_settings_add_up(settings) &&
           (settings->offload.accumulate == SHERDI_ACCUMULATE_DEVICE ||
            (settings->offload.accumulate == SHERDI_ACCUMULATE_AUTO && plan->machine.has_device));
}

#endif
