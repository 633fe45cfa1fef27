/* The operations for data that does not rest on the device: state, gradients and parameters in host
 * memory or on storage, which pass through buffers and rings. They are a module. In a build without
 * it every plan has everything on the device.
 *
 * The functions emit operations, and do nothing else, like all of the program. */
#ifndef SHERDI_ENGINE_PROGRAM_OFFLOAD_H
#define SHERDI_ENGINE_PROGRAM_OFFLOAD_H

#include "engine/program/program.h"

struct sherdi_value_range;

typedef struct sherdi_program_offload_ops {
    /* Forgets the contents of the slots of a ring: they are read again, or the slots are used
     * otherwise. */
    void (*forget)(sherdi_progress *progress, sherdi_ring ring);

    /* Return where `bytes` bytes of a block's state, or of its gradient, rest that are not on the
     * device, or where they pass. */
    sherdi_range (*state_at)(const sherdi_plan *plan, const sherdi_block *block, size_t bytes);
    sherdi_range (*gradient_at)(const sherdi_plan *plan, const sherdi_block *block, size_t bytes);

    /* ---- acquires */

    /* Waits for a queued update that has the ring of parameters. */
    sherd_status (*acquire_begin)(const sherdi_program *program);
    /* Brings this rank's slice of a segment up to `own`. NULL: the gather is not planned. */
    sherd_status (*slice_fetch)(const sherdi_program *program, const sherdi_segment *segment,
                                const sherdi_live_range *live_range, sherdi_range own);
    /* Reads parameters for the next micro-batch, into all slots. */
    sherd_status (*fetch_ahead)(const sherdi_program *program);

    /* ---- gradients of a window */

    /* Reduces the gradient of a segment (is_staged), or zeroes it, and brings it to where its
     * blocks rest; at the latest at the window's end. */
    sherd_status (*slice_reduce)(const sherdi_program *program, const sherdi_segment *segment,
                                 int is_first);
    sherd_status (*slice_zero)(const sherdi_program *program, const sherdi_segment *segment);
    /* Drops the slices that are on their way: the new window overwrites the sums. */
    void (*window_begin)(sherdi_progress *progress);
    sherd_status (*window_end)(const sherdi_program *program);
    /* Adds the squares of a segment's gradient to the norm. */
    sherd_status (*segment_norm)(const sherdi_program *program, const sherdi_segment *segment);
    /* Reads a block's gradient, if it rests on storage. */
    sherd_status (*gradient_read)(const sherdi_program *program, const sherdi_block *block);

    /* ---- walks */

    /* Begins the reads of a walk, into all slots of the ring. */
    sherd_status (*slots_begin)(const sherdi_program *program, sherdi_walk walk, sherdi_ring ring);
    /* Makes the walk on a block that does not rest on the device with all its data. */
    sherd_status (*block_walk)(const sherdi_program *program, sherdi_walk walk,
                               const sherdi_segment *segment, const sherdi_block *block);
    /* Passes by a segment that the walk leaves alone. */
    sherd_status (*segment_pass_by)(const sherdi_program *program, sherdi_walk walk,
                                    const sherdi_segment *segment);
    /* Gives the values of a block to a checkpoint, or takes them from one, or from its master
     * weights (walks without a gradient, but for SHERDI_WALK_FINGERPRINT). */
    sherd_status (*values_walk)(const sherdi_program *program, sherdi_walk walk,
                                const sherdi_segment *segment, const sherdi_block *block,
                                sherdi_range param);
    /* Ends a walk that has failed on this rank. The other ranks do not know of it yet, and still
     * make the gathers of the walk; so this rank makes them too, and emits nothing else. Their data
     * does not matter: the exchange after the walk reports the failure to all ranks. The rings must
     * be settled. */
    sherd_status (*walk_leave)(const sherdi_program *program, sherdi_walk walk);
    /* Emits SHERDI_OP_COMMIT, SHERDI_OP_ABANDON or SHERDI_OP_ROLLBACK; nothing where no state is on
     * a drive. */
    sherd_status (*generation)(const sherdi_program *program, sherdi_op_kind kind);

    /* ---- values */

    /* Move a range between the fill buffer and a block's state on storage, or a parameter that does
     * not rest on the device. */
    sherd_status (*block_move)(const struct sherdi_value_range *f, const sherdi_block *block);
    sherd_status (*param_move)(const struct sherdi_value_range *f);
    /* Writes the extents that are still in slots to the drive. */
    sherd_status (*fill_end)(const sherdi_program *program);

    /* ---- queued updates */

    /* Waits for the updater to be that far, if it is not known to be. */
    sherd_status (*await)(const sherdi_program *program, sherdi_post post, int unit);
    /* Says how far the updater is. */
    sherd_status (*post)(const sherdi_program *updater, sherdi_post post, int unit);
    /* Returns whether a gather ahead of the unit would wait for its update, and so hold up an
     * acquire of another unit. */
    int (*holds_up)(const sherdi_program *program, int unit);
} sherdi_program_offload_ops;

#define SHERDI_OFFLOAD(table) extern const sherdi_program_offload_ops table;
#include "engine/program/offload_list.h"
#undef SHERDI_OFFLOAD

/** Returns the table of this build; NULL: it has none. */
const sherdi_program_offload_ops *sherdi_program_offload(void);

/* Call a function of the table, if this build has it: one that returns a status, and one that
 * returns nothing. */
#define SHERDI_IF_OFFLOAD(call)                                                                    \
    (sherdi_program_offload() == NULL ? SHERD_OK : sherdi_program_offload()->call)
#define SHERDI_TELL_OFFLOAD(call)                                                                  \
    (sherdi_program_offload() == NULL ? (void)0 : sherdi_program_offload()->call)

#endif
