/* The schedules of schedule_list.h, by number. engine/run/schedules.c asks them once per step and
 * group. */
#include "engine/optimizers/schedule.h"

#define SHERDI_SCHEDULE(id, type, table) &(table),
static const sherdi_schedule *const TABLE[] = {
#include "engine/optimizers/schedule_list.h"
    NULL};
#undef SHERDI_SCHEDULE

const sherdi_schedule *sherdi_schedule_of(sherdi_schedule_kind kind)
{
    return kind == SHERDI_SCHEDULE_CONSTANT ? NULL : TABLE[kind - 1];
}

double sherdi_schedule_lr(const sherdi_schedule_params *params, const sherdi_schedule_point *point)
{
    const sherdi_schedule *schedule = sherdi_schedule_of(params->kind);

    return schedule == NULL ? point->group_lr : schedule->lr(params, point);
}

void sherdi_schedule_betas(const sherdi_schedule_params *params, const sherdi_schedule_point *point,
                           double betas[2])
{
    const sherdi_schedule *schedule = sherdi_schedule_of(params->kind);

    if (schedule != NULL && schedule->betas != NULL) {
        (void)schedule->betas(params, point, betas);
    }
}
