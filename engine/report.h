/* Reports of bytes, and the plan for reports. */
#ifndef SHERDI_ENGINE_REPORT_H
#define SHERDI_ENGINE_REPORT_H

#include "engine/plan/plan.h"

/* The media that move bytes, and other counts of operations. */
typedef enum sherdi_medium {
    SHERDI_MOVES_WIRE = 0, /* sent by this rank, control data included */
    SHERDI_MOVES_BETWEEN,  /* what of it crosses to other hosts, where the transport knows hosts */
    SHERDI_MOVES_DOWN,     /* device to host */
    SHERDI_MOVES_UP,
    SHERDI_MOVES_READ, /* drive */
    SHERDI_MOVES_WRITTEN,
    SHERDI_MOVES_DEVICE, /* memory that norm and update read and write */
    SHERDI_MOVES_HOST,
    SHERDI_MOVES_FLOPS, /* no bytes: floating-point operations of products of matrices */
    SHERDI_MEDIA,
} sherdi_medium;

/* The bytes that this rank moves when the trainer follows the plan, by medium. */
typedef struct sherdi_plan_moves {
    uint64_t micro[SHERDI_MEDIA]; /* in a micro-batch */
    uint64_t step[SHERDI_MEDIA];  /* at a boundary */
    uint64_t index_bytes;         /* written at a boundary: the part that is a commit's record */
    /* Collectives of the plain sequence of calls. The hash is of their kinds and sizes, which are
     * the same on all ranks. */
    size_t   num_collectives;
    uint64_t collectives_hash;
} sherdi_plan_moves;

/* What an engine notes for its reports when it is sealed. */
typedef struct sherdi_reports {
    sherd_memory_report memory;                    /* control data by purpose */
    uint64_t            wire_bytes, between_bytes; /* that its worlds had sent */
} sherdi_reports;

/** Returns the moves of a plan; zeros: they were not counted. */
const sherdi_plan_moves *sherdi_plan_moves_of(const sherdi_plan *plan);
/** Returns the bytes that this rank moves in a step. */
uint64_t sherdi_plan_moved(const sherdi_plan *plan, sherdi_medium medium);

/** Returns the bytes of host memory that a save or load of a checkpoint temporarily needs in
 *  addition to the buffers. */
static inline size_t sherdi_plan_checkpoint_bytes(const sherdi_plan *plan)
{
    return (plan->packing.checkpoint_slots + 2) * plan->packing.checkpoint_slot_bytes;
}

/** The wear of a drive: the bytes that a step writes, the duration of a step (set or assumed), and
 *  the drive's rating. */
typedef struct sherdi_plan_wear {
    double written_bytes; /* by this rank per step, onto NVMe */
    double step_seconds;
    int    is_assumed; /* step_seconds is what ASSUMED_RATE allows */
    double rated_bytes;
    double bytes_a_day, days; /* of one drive, which the ranks of the host share */
} sherdi_plan_wear;
sherdi_plan_wear sherdi_plan_drive_wear(const sherdi_plan *plan);

/** Returns the sealed plan, or one that is made for this call from the declarations so far. The
 *  second call gives it back. */
sherd_status sherdi_engine_plan_borrow(sherd_engine *engine, const char *call, sherdi_plan **out);
void         sherdi_engine_plan_return(const sherd_engine *engine, sherdi_plan *plan);

#endif
