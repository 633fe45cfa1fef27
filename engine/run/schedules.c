/* A schedule in the life of an engine. Its lists have a number for each parameter group, and are
 * checked when a plan is made. */
#include "engine/modules.h"
#include "engine/run/engine_impl.h"

/* Returns the first group that has a position in the schedule's lists. A default group without
 * trainable parameters has none; it takes the first number. */
static int first_listed(const sherdi_model *model)
{
    return model->first_trained != SHERD_GROUP_DEFAULT && model->num_groups > 1;
}

static void scheduled(const sherd_engine *engine, int group, int64_t step, double *lr,
                      double *betas)
{
    const sherdi_schedule_params *schedule = &engine->settings.schedule;
    int                           first    = first_listed(&engine->model);
    sherdi_schedule_point         point    = {.group    = group < first ? 0 : (size_t)(group - first),
                                              .group_lr = lr == NULL ? 0 : *lr,
                                              .step     = step};

    if (lr != NULL) {
        *lr = sherdi_schedule_lr(schedule, &point);
    }
    if (betas != NULL) {
        sherdi_schedule_betas(schedule, &point, betas);
    }
}

static sherd_status lists_check(sherdi_plan *plan, const sherdi_model *model)
{
    const sherdi_schedule_params *schedule = &plan->settings.schedule;
    const struct {
        const char         *key;
        const sherdi_rates *rates;
    } lists[] = {
        {"warmup_min_lr", &schedule->min_lr},
        {"warmup_max_lr", &schedule->max_lr},
        {"cycle_min_lr", &schedule->cycle_min_lr},
        {"cycle_max_lr", &schedule->cycle_max_lr},
        {"cycle_min_mom", &schedule->cycle_min_mom},
        {"cycle_max_mom", &schedule->cycle_max_mom},
        {"lr_range_test_min_lr", &schedule->range_min_lr},
    };
    size_t groups = model->num_groups - (size_t)first_listed(model);

    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
        if (lists[i].rates->count != 0 && lists[i].rates->count != groups) {
            return sherdi_fail(
                SHERD_E_INVAL,
                "scheduler.params.%s is a list of length %zu, but the number of "
                "parameter groups is %zu (the default group counts if it has a trainable "
                "parameter); give one number, or one for each group",
                lists[i].key, lists[i].rates->count, groups);
        }
    }
    return SHERD_OK;
}

const sherdi_module sherdi_module_schedules = {.lay_out = lists_check, .scheduled = scheduled};
