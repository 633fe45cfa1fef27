/* Ranges of values on their way between the fill buffer and the space where they rest: what
 * program_fill.c has for program_values.c and program_slots.c. */
#ifndef SHERDI_ENGINE_PROGRAM_VALUES_H
#define SHERDI_ENGINE_PROGRAM_VALUES_H

#include "engine/program/program.h"

/* Elements of one part of a parameter that are moved together. */
typedef struct sherdi_value_range {
    const sherdi_program *program;
    const sherdi_segment *segment;
    size_t                param;
    int                   part;
    int                   is_last;    /* of the parts that are put */
    int                   is_put;     /* 1: values are written; 0: read */
    int                   is_kept;    /* weights: nobody gives them, see sherdi_weights_put */
    size_t                begin, end; /* in the whole segment */
    size_t                buffered;   /* the element at the start of the fill buffer */
    size_t                param_end;  /* end of this rank's part of the parameter */
} sherdi_value_range;

/** Returns this rank's part of elements [first, first + count) of a parameter. It passes through the
 *  fill buffer in portions. */
sherdi_value_range sherdi_values_range(const sherdi_program *program, size_t param, size_t first,
                                       size_t count);
/** Returns the part of the range in [first, first + count). */
sherdi_value_range sherdi_values_within(const sherdi_value_range *f, size_t first, size_t count);
/** Returns the block of the next elements of the range, which *part becomes; its `end` is where the
 *  last part ended, at first f->begin. NULL: there are no more. */
const sherdi_block *sherdi_values_next_block(const sherdi_value_range *f, sherdi_value_range *part);
/** Returns where a range begins in its block. */
static inline size_t sherdi_values_in_block(const sherdi_value_range *f, const sherdi_block *block)
{
    return f->begin - f->segment->own_first - block->offset_elems;
}
/** Returns where the values are in the fill buffer. */
sherdi_range sherdi_values_at(const sherdi_value_range *f);
/** Lets the trainer, or another caller, give the values (SHERDI_OP_FILL) or receive them (_TAKE). */
sherd_status sherdi_values_call(const sherdi_value_range *f, sherdi_op_kind kind);
/** Puts weights that a caller gives, or that are in the trainer's own memory (is_kept), to where
 *  they rest. */
sherd_status sherdi_weights_put(sherdi_value_range *f);
/** Move a part of the state; of master weights those that are separate from the parameter. And move
 *  the parameter where it rests. */
sherd_status sherdi_values_state_move(const sherdi_value_range *f);
sherd_status sherdi_values_param_move(const sherdi_value_range *f);
/** Adds the values to this rank's share of the fingerprint: of a frozen parameter those in its
 *  slice, else those that it updates. */
sherd_status sherdi_values_count(const sherdi_value_range *f);
/** Returns whether this rank's share of the fingerprint is computed while weights are put. */
int sherdi_values_are_counted(const sherdi_value_range *f);
/** Returns the lane whose copies and kernels reach both the space and the fill buffer. */
sherdi_lane_id sherdi_values_lane(const sherdi_value_range *f, sherdi_space space);
/** Copies between memory of a space and the fill buffer. */
sherd_status sherdi_values_copy(const sherdi_value_range *f, sherdi_space space, sherdi_range at,
                                sherdi_range buffer);

/** Returns an operation on the values of a range, for the host's kernels. */
sherdi_op sherdi_value_op(const sherdi_value_range *f, sherdi_op_kind kind, sherdi_lane_id lane);
/** Moves the values between the fill buffer and `at`, where they have another type. The host's
 *  kernels reach everything except a device's memory. */
sherd_status sherdi_values_cast(const sherdi_value_range *f, sherdi_space space, sherd_dtype dtype,
                                sherdi_range at);
/** Moves a part of a block's state, which is at `state` now; `half` is the parameter's half of a
 *  split master. */
sherd_status sherdi_values_block_move(const sherdi_value_range *f, const sherdi_block *block,
                                      sherdi_range state, sherdi_range half);

#endif
