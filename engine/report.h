/* Reports of bytes, and the plan for reports. */
#ifndef SHERDI_ENGINE_REPORT_H
#define SHERDI_ENGINE_REPORT_H

#include "engine/plan/plan.h"

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
