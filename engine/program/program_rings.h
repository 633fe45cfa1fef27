/* What the parts of offload share (offload.h):
 *
 *   program_offload.c  the blocks of a walk
 *   program_staged.c   slices of gradients
 *   program_rings.c    the slots through which extents of files pass
 *   program_slots.c    values in these slots
 *   program_saved.c    walks of checkpoints
 *   program_queued.c   a queued update, which overlaps with the trainer's calls */
#ifndef SHERDI_ENGINE_PROGRAM_RINGS_H
#define SHERDI_ENGINE_PROGRAM_RINGS_H

#include "engine/plan/offload.h"
#include "engine/program/program.h"

struct sherdi_value_range;

/* ---- rings */

#define SHERDI_NO_EXTENT SIZE_MAX

/* The state of an extent while its values are written. */
typedef struct sherdi_fill_extent {
    uint32_t left;     /* parameters whose values have not come yet */
    uint16_t is_begun; /* some of its values have come */
    uint16_t is_spare; /* its writes are not committed */
} sherdi_fill_extent;

/* A slot of a ring. An extent may have a tail, which comes after it in the slot and is a separate
 * extent. */
typedef struct sherdi_slot {
    size_t head, tail; /* the extents that are in it; SHERDI_NO_EXTENT: none */
    int    is_changed; /* since it was last written */
} sherdi_slot;

/* A ring: its slots, and the extents that are transferred through them. */
typedef struct sherdi_ring_progress {
    sherdi_slot        *slots;
    size_t              num_slots;
    size_t              next; /* the slot that is freed next */
    sherdi_fill_extent *extents;
    size_t              num_extents;
} sherdi_ring_progress;

/* A slice of a gradient that was reduced to a staging buffer and is not yet where it rests. */
typedef struct sherdi_staged_grad {
    int segment;           /* -1: none */
    int is_first, is_last; /* of the window's micro-batches */
} sherdi_staged_grad;

#define SHERDI_MOST_STAGED 2

typedef struct sherdi_staged_grads {
    sherdi_staged_grad slots[SHERDI_MOST_STAGED];
    int                next; /* the slot that is used next */
} sherdi_staged_grads;

/** Return the first `bytes` bytes of the slot of the extent of that number; the number of slots. */
sherdi_range sherdi_ring_slot(const sherdi_plan *plan, sherdi_ring ring, size_t number,
                              size_t bytes);
size_t       sherdi_ring_slots(const sherdi_plan *plan, sherdi_ring ring);
/** Returns the most transfers that are in flight at once: out of each slot and into it, tails
 *  separately, and one more. */
size_t sherdi_program_transfers(const sherdi_plan *plan);
/** Returns the number of an extent's tail; SHERDI_NO_EXTENT: it has none. */
size_t sherdi_ring_tail(const sherdi_plan *plan, sherdi_ring ring, size_t extent);
/** Returns the bytes of an extent with its tail, in the slot of that number. */
sherdi_range sherdi_ring_whole(const sherdi_plan *plan, sherdi_ring ring, size_t number,
                               size_t extent);
/** Read an extent, or a tail, into the slot of that number, unless it is already in it; read an
 *  extent with its tail; write it back with its tail, which frees the slot. A read returns the last
 *  write, committed or not. */
sherd_status sherdi_program_read(const sherdi_program *program, sherdi_ring ring, size_t number,
                                 size_t extent, int unit);
sherd_status sherdi_program_read_whole(const sherdi_program *program, sherdi_ring ring,
                                       size_t number, size_t extent, int unit);
sherd_status sherdi_program_write(const sherdi_program *program, sherdi_ring ring, size_t number,
                                  size_t extent, int unit);
/** Returns the slot of the extent of that number. */
static inline sherdi_slot *sherdi_progress_slot(sherdi_progress *progress, sherdi_ring ring,
                                                size_t number)
{
    return &progress->rings[ring].slots[number % progress->rings[ring].num_slots];
}
/** Emits a copy of a segment's bytes on a lane of the link. */
sherd_status sherdi_program_copy(const sherdi_program *program, sherdi_lane_id lane,
                                 const sherdi_segment *segment, sherdi_range dst, sherdi_range src);
/** Forgets the contents of the slot of the extent of that number. */
void sherdi_progress_release(sherdi_progress *progress, sherdi_ring ring, size_t number);
/** Returns the values that are stored with that state on storage (sherdi_block_keeps_values), in
 *  that slot. */
sherdi_range sherdi_state_values_at(const sherdi_plan *plan, const sherdi_block *block);
/** Reads an extent for a walk; also its tail, except in walks with a gradient, which have those
 *  values from elsewhere. */
sherd_status sherdi_extent_read(const sherdi_program *program, sherdi_walk walk, sherdi_ring ring,
                                size_t extent, int unit);
/** Ends an extent's turn in its slot, and reads the extent that takes the slot next. */
sherd_status sherdi_slot_go_on(const sherdi_program *program, sherdi_walk walk, sherdi_ring ring,
                               size_t extent, int unit);
/** Returns whether a walk needs an extent: SHERDI_WALK_MEASURE does not need one without a segment
 *  of two sweeps. */
int sherdi_walk_visits(const sherdi_plan *plan, sherdi_walk walk, sherdi_ring ring, size_t extent);

/** Records that not all writes of a ring were made: the contents of its slots are written again. */
void sherdi_rings_write_again(sherdi_progress *progress, sherdi_ring ring);
/** Records that all first values of a ring are complete: an extent with later writes is read
 *  first. */
void sherdi_rings_complete(sherdi_progress *progress, sherdi_ring ring);

/* ---- functions of the table, which offload.h explains */

void         sherdi_rings_forget(sherdi_progress *progress, sherdi_ring ring);
sherd_status sherdi_rings_acquire_begin(const sherdi_program *program);
sherd_status sherdi_slice_fetch(const sherdi_program *program, const sherdi_segment *segment,
                                const sherdi_live_range *live_range, sherdi_range own);
sherd_status sherdi_rings_fetch_ahead(const sherdi_program *program);
sherd_status sherdi_values_walk(const sherdi_program *program, sherdi_walk walk,
                                const sherdi_segment *segment, const sherdi_block *block,
                                sherdi_range param);
sherd_status sherdi_walk_leave(const sherdi_program *program, sherdi_walk walk);
sherd_status sherdi_rings_read_ahead(const sherdi_program *program);
sherd_status sherdi_rings_generation(const sherdi_program *program, sherdi_op_kind kind);
sherd_status sherdi_rings_gradient_read(const sherdi_program *program, const sherdi_block *block);
sherd_status sherdi_slots_begin(const sherdi_program *program, sherdi_walk walk, sherdi_ring ring);
sherd_status sherdi_staged_reduce(const sherdi_program *program, const sherdi_segment *segment,
                                  int is_first);
sherd_status sherdi_staged_zero(const sherdi_program *program, const sherdi_segment *segment);
void         sherdi_staged_forget(sherdi_progress *progress);
sherd_status sherdi_staged_drain_all(const sherdi_program *program);
sherd_status sherdi_slots_block_move(const struct sherdi_value_range *f, const sherdi_block *block);
sherd_status sherdi_slots_param_move(const struct sherdi_value_range *f);
sherd_status sherdi_slots_fill_end(const sherdi_program *program);
sherd_status sherdi_queued_await(const sherdi_program *program, sherdi_post post, int unit);
sherd_status sherdi_queued_post(const sherdi_program *updater, sherdi_post post, int unit);
int          sherdi_queued_holds_up(const sherdi_program *program, int unit);

/** Counts, for each extent, the parameters whose values have to come. */
void sherdi_slots_count(sherdi_progress *progress, const sherdi_plan *plan,
                        const sherdi_model *model);

/* ---- a queued update */

/** Makes a progress for the updater, which uses the rings of `of`. E_NOMEM. Close it before that
 *  one. */
sherd_status sherdi_progress_open_queued(sherdi_progress *progress, const sherdi_progress *of,
                                         const sherdi_plan *plan, sherdi_mem *mem);
void         sherdi_progress_close_queued(sherdi_progress *progress);
/** Begins a queued update: SHERDI_WALK_UPDATE by `updater`, a program with its own progress
 *  (sherdi_progress_open_queued). From now on acquires wait for their units. */
void sherdi_program_queued_begin(const sherdi_program *program, const sherdi_program *updater);
/** Ends it: waits for it (SHERDI_POST_END), and publishes the units that no acquire has published.
 *  A failure of the update is not returned. */
sherd_status sherdi_program_queued_end(const sherdi_program *program);
/** Forgets an update that has failed and ended. */
void sherdi_program_queued_forget(const sherdi_program *program);
/** Returns whether a rank may never acquire a unit (SHERD_USES_ANY) that is whole on every rank.
 *  Where its gather meets the others', no acquire can publish it. */
int sherdi_program_has_loose_publish(const sherdi_plan *plan);
/** Returns whether updates can be queued: the host updates blocks, no operation of the walk
 *  synchronizes the ranks, and on devices every publish has its acquire. */
int sherdi_program_can_be_queued(const sherdi_plan *plan);

#endif
