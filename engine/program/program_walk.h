/* Shared by the parts of the walks (program_walk.c, program_norm.c, program_matrices.c,
 * program_params.c). */
#ifndef SHERDI_ENGINE_PROGRAM_WALK_H
#define SHERDI_ENGINE_PROGRAM_WALK_H

#include "engine/program/program.h"

static inline int sherdi_walk_has_gradient(sherdi_walk walk)
{
    return walk == SHERDI_WALK_MEASURE || walk == SHERDI_WALK_UPDATE;
}

static inline int sherdi_walk_loads(sherdi_walk walk)
{
    return walk == SHERDI_WALK_LOAD || walk == SHERDI_WALK_LOAD_SOME;
}

static inline int sherdi_walk_publishes(sherdi_walk walk)
{
    return walk == SHERDI_WALK_UPDATE || walk == SHERDI_WALK_REPUBLISH || sherdi_walk_loads(walk);
}

static inline int sherdi_walk_writes_state(sherdi_walk walk)
{
    return walk == SHERDI_WALK_UPDATE || sherdi_walk_loads(walk);
}

static inline int sherdi_is_on_device(sherdi_space space)
{
    return space == SHERDI_SPACE_DEVICE;
}

static inline sherdi_range sherdi_staging_at(size_t offset, size_t bytes)
{
    return sherdi_range_of(SHERDI_BUFFER_STAGING, offset, bytes);
}

static inline size_t sherdi_block_number(const sherdi_plan *plan, const sherdi_block *block)
{
    return (size_t)(block - plan->layout.blocks);
}

static inline sherdi_range sherdi_bounce_at(const sherdi_plan *plan, const sherdi_block *block,
                                            size_t offset, size_t bytes)
{
    size_t slot = sherdi_block_number(plan, block) % (size_t)plan->packing.num_bounces;

    return sherdi_range_of(SHERDI_BUFFER_BOUNCE, slot * plan->packing.bounce_bytes + offset, bytes);
}

/** Begins the reads of a walk, into all slots of the ring. */
sherd_status sherdi_program_slots_begin(const sherdi_program *program, sherdi_walk walk,
                                        sherdi_ring ring);
/** Call it when a block's gradient is not needed any more: if it came from a drive, its slot is
 *  used for the next extent. */
sherd_status sherdi_program_gradient_give(const sherdi_program *program, sherdi_walk walk,
                                          const sherdi_block *block);
/** Returns where kernels of that side add squares of the gradient. */
sherdi_range sherdi_program_norm_at(const sherdi_plan *plan, sherdi_space space);
/** Adds the squares of a gradient in device memory to the norm. */
sherd_status sherdi_program_measure(const sherdi_program *program, const sherdi_segment *segment,
                                    sherdi_range gradient);
/** Returns bytes of the kernels' scalars on the side of a space. */
sherdi_range sherdi_program_scalars_at(const sherdi_plan *plan, sherdi_space space, size_t offset,
                                       size_t bytes);

/** Returns where a block's kernels have its directions: in the directions of its segment, or in the
 *  bounce buffer. */
sherdi_range sherdi_direction_at(const sherdi_plan *plan, const sherdi_block *block);
/** Call it after the first sweep made them there: brings them to the segment's directions. */
sherd_status sherdi_program_direction_give(const sherdi_program *program,
                                           const sherdi_block   *block);
/** Brings them back there, after the orthogonal matrices were made of them. */
sherd_status sherdi_program_direction_take(const sherdi_program *program,
                                           const sherdi_block   *block);
/** Gathers the directions of all ranks on every rank. */
sherd_status sherdi_program_directions_gather(const sherdi_program *program,
                                              const sherdi_segment *segment);
/** Makes the orthogonal matrix of each matrix of directions of which this rank updates a part. */
sherd_status sherdi_program_matrices_make(const sherdi_program *program,
                                          const sherdi_segment *segment);

/** Makes a block's parameter available to the kernel of a walk: *out is where it is, and how it is
 *  accessed. The block's state must have been read. */
sherd_status sherdi_program_param_open(const sherdi_program *program, sherdi_walk walk,
                                       const sherdi_segment *segment, const sherdi_block *block,
                                       sherdi_range *out);
/** Copies the kernel's new values of the parameter to the space where it rests, if the walk makes
 *  new values. */
sherd_status sherdi_program_param_close(const sherdi_program *program, sherdi_walk walk,
                                        const sherdi_segment *segment, const sherdi_block *block);
/** Does what _param_open does for a block that an update leaves as it is, to count its
 *  fingerprint. */
sherd_status sherdi_program_param_look(const sherdi_program *program, sherdi_walk walk,
                                       const sherdi_segment *segment, const sherdi_block *block,
                                       sherdi_range *out);

#endif
