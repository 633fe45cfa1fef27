/* Whether a plan fits the machine, and if not, the nearest other one that would. */
#include "engine/proof/check.h"

#include "base/checked.h"
#include "engine/limits.h"
#include "engine/engine.h"
#include "engine/modules.h"
#include "engine/run/differences.h"
#include "engine/run/engine_impl.h"
#include "engine/run/needs.h"
#include "sherd_tools.h"
#include "offload/tiers.h"

#include <stdio.h>
#include <string.h>

/* Another setting that may fit. */
typedef struct other_plan {
    int          stage;
    int          has_prefetch;
    int          is_beside; /* bf16_beside: a master is the half that its parameter lacks */
    sherdi_space state, params;
    int          world_size;
} other_plan;

#define NEED_CHARS 96

static void space_set(sherdi_offload_settings *offload, sherdi_space space)
{
    if (offload->space < space) {
        offload->space = space;
        offload->tier  = sherdi_tier_of(space);
    }
}

/* Writes "12.5 MiB a rank", or the same for device and host if they have separate memory. */
static void need_text(const sherdi_plan *plan, char text[NEED_CHARS])
{
    if (plan->machine.has_device) {
        (void)snprintf(text, NEED_CHARS, "%.1f MiB of the device and %.1f MiB of the host a rank",
                       (double)sherdi_plan_device_need(plan) / 0x1p20,
                       (double)sherdi_plan_host_need(plan) / 0x1p20);
    } else {
        (void)snprintf(text, NEED_CHARS, "%.1f MiB a rank",
                       (double)sherdi_plan_host_need(plan) / 0x1p20);
    }
}

/* Returns 1 if the plan fits with another setting; writes its needs. */
static int other_fits(const sherdi_plan *plan, const sherdi_model *model, const other_plan *how,
                      char need[NEED_CHARS])
{
    sherdi_settings settings = plan->settings;
    sherdi_plan    *other;
    int             fits;

    settings.sharding.stage = how->stage;
    if (!how->has_prefetch) {
        settings.sharding.prefetch_bucket_size = 0;
        settings.sharding.max_reuse_distance   = 0;
    }
    if (how->is_beside) {
        settings.master_encoding = SHERDI_MASTER_BESIDE;
    }
    space_set(&settings.offload.state, how->state);
    space_set(&settings.offload.params, how->params);
    if (how->params == SHERDI_SPACE_STORAGE) {
        settings.offload.params_in_cpu = 0;
    }
    if (sherdi_plan_create(model, &settings, 0, how->world_size, &plan->machine, plan->mem,
                           &other) != SHERD_OK) {
        return 0;
    }
    fits = sherdi_plan_fits(other);
    need_text(other, need);
    sherdi_plan_destroy(other);
    return fits;
}

/* Whether the plan fits with the state in the space that `how` names; sets how->stage to the lowest
 * stage at which it does. */
static int state_space_fits(const sherdi_plan *plan, const sherdi_model *model, other_plan *how,
                            char need[NEED_CHARS])
{
    how->stage = plan->settings.sharding.stage > 1 ? plan->settings.sharding.stage : 1;
    for (; how->stage <= 3; how->stage++) {
        if (other_fits(plan, model, how, need)) {
            return 1;
        }
    }
    how->stage = 3;
    return 0;
}

/* Tries offload of the state, then of the parameters too. */
static int offload_fits(const sherdi_plan *plan, const sherdi_model *model, sherdi_space space,
                        char *text, size_t len_bytes)
{
    const char *name  = sherdi_tier_name(sherdi_tier_of(space));
    const char *extra = space == SHERDI_SPACE_HOST ? "" : " (max_in_cpu 0)";
    other_plan how = {.has_prefetch = 1, .world_size = sherdi_plan_all_ranks(plan), .state = space};
    char       need[NEED_CHARS];

    if (state_space_fits(plan, model, &how, need)) {
        (void)snprintf(text, len_bytes,
                       "zero_optimization.stage %d with offload_optimizer on %s would fit (%s)",
                       how.stage, name, need);
        return 1;
    }
    how.params = space;
    if (other_fits(plan, model, &how, need)) {
        (void)snprintf(text, len_bytes,
                       "zero_optimization.stage 3 with offload_optimizer and offload_param%s on "
                       "%s would fit (%s)",
                       extra, name, need);
        return 1;
    }
    return 0;
}

/* Tries bf16_beside, which takes two bytes less for each bf16 parameter and loses no bit: at the
 * lowest stage at which it suffices, then with nothing gathered ahead. */
static int beside_fits(const sherdi_plan *plan, const sherdi_model *model, char *text,
                       size_t len_bytes)
{
    other_plan how = {.is_beside = 1, .world_size = sherdi_plan_all_ranks(plan)};
    char       need[NEED_CHARS];

    if (plan->settings.master_encoding != SHERDI_MASTER_F32) {
        return 0;
    }
    for (how.has_prefetch = 1; how.has_prefetch >= 0; how.has_prefetch--) {
        for (how.stage = how.has_prefetch ? plan->settings.sharding.stage : 3; how.stage <= 3;
             how.stage++) {
            if (other_fits(plan, model, &how, need)) {
                (void)snprintf(text, len_bytes,
                               "zero_optimization.stage %d%s and sherd.master_encoding "
                               "\"bf16_beside\", which loses no bit, would fit (%s)",
                               how.stage,
                               how.has_prefetch ? "" : " with stage3_prefetch_bucket_size 0", need);
                return 1;
            }
        }
    }
    return 0;
}

/* Finds the nearest setting that fits. It tries, in this order: a higher stage; stage 3 with
 * nothing gathered ahead; split masters; offload to the host, if its memory is not the device's;
 * offload to the drive; more hosts of the same kind. */
static void nearest_fit(const sherdi_plan *plan, const sherdi_model *model, char *text,
                        size_t len_bytes)
{
    other_plan how   = {.has_prefetch = 1, .world_size = sherdi_plan_all_ranks(plan)};
    int        ranks = plan->machine.ranks_per_host;
    char       need[NEED_CHARS];

    for (how.stage = plan->settings.sharding.stage + 1; how.stage <= 3; how.stage++) {
        if (other_fits(plan, model, &how, need)) {
            (void)snprintf(text, len_bytes, "zero_optimization.stage %d would fit (%s)", how.stage,
                           need);
            return;
        }
    }
    how.stage        = 3;
    how.has_prefetch = 0;
    if (other_fits(plan, model, &how, need)) {
        (void)snprintf(text, len_bytes,
                       "zero_optimization.stage 3 with stage3_prefetch_bucket_size 0 and "
                       "stage3_max_reuse_distance 0 would fit (%s)",
                       need);
        return;
    }
    if (beside_fits(plan, model, text, len_bytes)) {
        return;
    }
    if (plan->machine.has_device && offload_fits(plan, model, SHERDI_SPACE_HOST, text, len_bytes)) {
        return;
    }
    if (offload_fits(plan, model, SHERDI_SPACE_STORAGE, text, len_bytes)) {
        return;
    }
    how = (other_plan){.stage = 3, .has_prefetch = 1};
    for (int hosts = 2; hosts <= 1024; hosts *= 2) {
        how.world_size = ranks * hosts;
        if (other_fits(plan, model, &how, need)) {
            (void)snprintf(text, len_bytes, "stage 3 on %d ranks over %d such hosts would fit (%s)",
                           ranks * hosts, hosts, need);
            return;
        }
    }
    (void)snprintf(text, len_bytes, "no stage fits on up to 1024 such hosts");
}

sherd_status sherdi_plan_check_fit(const sherdi_plan *plan, const sherdi_model *model)
{
    static const char *const BOUNDS[] = {
        [SHERDI_BOUND_HOST]     = "are free",
        [SHERDI_BOUND_GROUP]    = "are free in the control group of this process",
        [SHERDI_BOUND_PROCESS]  = "are free under the limit of this process (RLIMIT_DATA)",
        [SHERDI_BOUND_VARIABLE] = "SHERD_MEMORY_LIMIT allows"};
    char   nearest[320];
    double each = (double)sherdi_plan_host_need(plan);
    double all  = each * plan->machine.ranks_per_host;

    if (sherdi_plan_fits(plan)) {
        return SHERD_OK;
    }
    nearest_fit(plan, model, nearest, sizeof(nearest));
    if (!sherdi_plan_device_fits(plan)) {
        double device = (double)sherdi_plan_device_need(plan);

        return sherdi_fail(SHERD_E_NOMEM,
                           "the plan needs %.1f MiB of device memory on each rank, %.1f MiB more "
                           "than the %.1f MiB that a rank may take; %s",
                           device / 0x1p20, (device - (double)plan->machine.device_bytes) / 0x1p20,
                           (double)plan->machine.device_bytes / 0x1p20, nearest);
    }
    return sherdi_fail(
        SHERD_E_NOMEM,
        "the plan needs %.1f MiB on each of %d ranks of this host, %.1f MiB more than "
        "the %.1f MiB that %s; %s",
        each / 0x1p20, plan->machine.ranks_per_host,
        (all - (double)plan->machine.memory_bytes) / 0x1p20,
        (double)plan->machine.memory_bytes / 0x1p20, BOUNDS[plan->machine.memory_bound], nearest);
}

sherd_status sherd_engine_fits(sherd_engine *engine)
{
    sherdi_machine machine;
    sherdi_plan   *plan;
    sherd_status   status;

    SHERDI_TRY(sherdi_engine_need(engine, "sherd_engine_fits", SHERDI_NEED_OPEN));
    SHERDI_TRY(sherdi_agree_status(engine, sherdi_modules_declared(engine)));
    SHERDI_TRY(sherdi_agree_model(engine));
    SHERDI_TRY(sherdi_machine_detect(engine->world, &machine));
    status = sherdi_engine_plan_make(engine, &machine, &plan);
    if (status == SHERD_OK) {
        status = sherdi_plan_check_fit(plan, &engine->model);
        sherdi_plan_destroy(plan);
    }
    return sherdi_agree_status(engine, status);
}
