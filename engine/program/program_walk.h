/* Shared by the parts of the walks (program_walk.c, program_norm.c, program_matrices.c,
 * program_offload.c). */
#ifndef SHERDI_ENGINE_PROGRAM_WALK_H
#define SHERDI_ENGINE_PROGRAM_WALK_H

#include "engine/program/program.h"

#include <stddef.h>

static inline int sherdi_walk_has_gradient(sherdi_walk walk)
{
    return walk <= SHERDI_WALK_DIRECT;
}

static inline int sherdi_walk_loads(sherdi_walk walk)
{
    return walk == SHERDI_WALK_LOAD || walk == SHERDI_WALK_LOAD_SOME;
}

static inline int sherdi_walk_publishes(sherdi_walk walk)
{
    return walk == SHERDI_WALK_UPDATE || walk == SHERDI_WALK_REPUBLISH || sherdi_walk_loads(walk);
}

static inline sherdi_range sherdi_staging_at(size_t offset, size_t bytes)
{
    return sherdi_range_of(SHERDI_BUFFER_STAGING, offset, bytes);
}

/** Returns how the kernel of an update accesses a parameter: it also reads one that is the master,
 *  or a half of it. */
static inline sherdi_access sherdi_program_param_access(const sherdi_segment *segment)
{
    return segment->has_master && !sherdi_segment_is_beside(segment) ? SHERDI_WRITES : SHERDI_ADDS;
}

/** Returns bytes of the kernels' scalars on the side of a space. */
sherdi_range sherdi_program_scalars_at(const sherdi_plan *plan, sherdi_space space, size_t offset,
                                       size_t bytes);
struct sherdi_value_range;

/* Scalars of a device that has its own memory. The functions emit what copies them up, what clears
 * results on the host, and what copies results down, to a place of their own; and what moves values
 * (sherdi_values_cast). */
typedef struct sherdi_apart_ops {
    sherd_status (*copy_up)(const sherdi_program *program, size_t offset, size_t bytes);
    sherd_status (*clear)(const sherdi_program *program, size_t offset, size_t bytes);
    sherd_status (*copy_down)(const sherdi_program *program, size_t offset, size_t bytes);
    sherdi_range (*arrived_at)(const sherdi_plan *plan, size_t offset, size_t bytes);
    sherd_status (*values_cast)(const struct sherdi_value_range *f, sherd_dtype dtype,
                                sherdi_range at);
} sherdi_apart_ops;
/** Return those to which kernels of that side add: the squares of the gradient, fingerprints, and
 *  the norms of tensors. */
static inline sherdi_range sherdi_program_norm_at(const sherdi_plan *plan, sherdi_space space)
{
    return sherdi_program_scalars_at(plan, space, offsetof(sherdi_scalars_head, norm),
                                     sizeof(sherdi_norm_acc));
}
static inline sherdi_range sherdi_fingerprint_at(const sherdi_plan *plan, sherdi_space space)
{
    return sherdi_program_scalars_at(plan, space, offsetof(sherdi_scalars_head, fingerprint),
                                     sizeof(uint64_t));
}
static inline sherdi_range sherdi_program_norms_at(const sherdi_plan *plan, sherdi_space space)
{
    return sherdi_program_scalars_at(plan, space, sizeof(sherdi_scalars_head),
                                     plan->scalars.results_bytes - sizeof(sherdi_scalars_head));
}

/** Return elements of the directions of a segment of matrices, on the device, and those of a
 *  block. */
static inline sherdi_range sherdi_program_directions_at(size_t first_elem, size_t elems)
{
    return sherdi_range_of(SHERDI_BUFFER_DIRECTIONS, first_elem * sizeof(float),
                           elems * sizeof(float));
}
static inline sherdi_range sherdi_direction_at(const sherdi_plan *plan, const sherdi_block *block)
{
    return sherdi_program_directions_at(
        sherdi_block_segment(plan, block)->own_first + block->offset_elems, block->elems);
}

/** Returns the operation that adds the squares of a gradient to the norm. */
sherdi_op sherdi_program_norm_op(const sherdi_plan *plan, const sherdi_segment *segment,
                                 sherdi_space space, sherdi_range gradient, sherd_dtype dtype);
/** Returns whether a unit is not updated: no rank reached it in the window, and the settings skip
 *  it. The ranks have agreed on `runs`. */
int sherdi_program_is_skipped(const sherdi_program *program, sherdi_walk walk, int unit);
/** Publishes a segment that is whole on every rank, if it is time to (`is_early`): gathers the
 *  ranks' slices in place. */
sherd_status sherdi_segment_publish(const sherdi_program *program, const sherdi_segment *segment,
                                    int is_early);
/** Makes the walk on a block. */
sherd_status sherdi_program_block_walk(const sherdi_program *program, sherdi_walk walk,
                                       const sherdi_segment *segment, const sherdi_block *block);
/** Does the work of the walk on a block that is where the kernel can reach it. `param`: its
 *  parameter, with how it is accessed; for SHERDI_WALK_DIRECT its directions. */
sherd_status sherdi_program_block_work(const sherdi_program *program, sherdi_walk walk,
                                       const sherdi_segment *segment, const sherdi_block *block,
                                       sherdi_range gradient, sherdi_range param);
/** Adds the fingerprint of a block's master weights, or of the parameter where the two are one. */
sherd_status sherdi_program_master_count(const sherdi_program *program,
                                         const sherdi_segment *segment, const sherdi_block *block,
                                         sherdi_range param);

#endif
