/* Warnings of settings that have no effect, or not the one that is meant. */
#include "engine/modules.h"
#include "engine/plan/offload.h"
#include "engine/run/engine_impl.h"

#include "base/log.h"

/* Warns of offload that is ignored because of values that the program set after the file was read:
 * the warnings of the configuration do not cover it. */
static sherd_status ignored_tell(sherd_engine *engine)
{
    static const char *const NAMES[]      = {"offload_optimizer", "offload_param"};
    const int                is_ignored[] = {engine->settings.offload.state.is_ignored,
                                             engine->settings.offload.params.is_ignored};

    if (engine->rank != 0 || (sherdi_world_caps(engine->world) & SHERDI_WORLD_SIMULATES) != 0) {
        return SHERD_OK;
    }
    for (int i = 0; i < 2; i++) {
        if (is_ignored[i]) {
            sherdi_log(SHERD_LOG_WARN, engine->rank,
                       "zero_optimization.%s is ignored: there is nothing to offload at stage %d",
                       NAMES[i], engine->settings.sharding.stage);
        }
    }
    return SHERD_OK;
}

/* Warns of a bound that is below the size of every gathered unit: it ends gathering ahead, for
 * which 0 should be set. */
static void bucket_tell(const sherd_engine *engine)
{
    const sherdi_plan *plan  = engine->plan;
    size_t             most  = plan->settings.sharding.prefetch_bucket_size;
    size_t             least = SIZE_MAX;
    int                named = -1;

    for (size_t u = 0; u < plan->layout.num_units; u++) {
        size_t elems = plan->layout.units[u].gather_elems;

        if (elems > 0 && elems < least) {
            least = elems;
            named = (int)u;
        }
    }
    if (engine->rank == 0 && named >= 0 && most > 0 && most < least) {
        sherdi_log(SHERD_LOG_WARN, engine->rank,
                   "zero_optimization.stage3_prefetch_bucket_size is %zu, less than the smallest "
                   "unit (%s, %zu elements), so nothing is gathered ahead; set it to the elements "
                   "of the largest unit or more, or to 0 if that is what you want",
                   most, engine->model.units[named].name, least);
    }
}

/* Returns why gradients do not rest on the drive although the configuration asks for it; NULL: they
 * do, or it does not. */
static const char *gradients_stay(const sherdi_plan *plan)
{
    if (!plan->settings.offload.gradients_on_nvme ||
        plan->rings[SHERDI_RING_GRADS].num_extents > 0) {
        return NULL;
    }
    return plan->settings.sharding.stage < 2
               ? "below stage 2 the gradients stay whole until the update"
           : plan->layout.is_deterministic
               ? "the deterministic mode keeps its sums where they are made"
           : plan->settings.sharding.shard_size > 0
               ? "with sherd.shard_size the gradients rest on the device until the update"
           : sherdi_plan_accumulates_on_device(plan)
               ? "with several micro-batches in a step the sum stays on the device "
                 "(offload_optimizer.accumulate)"
               : "no optimizer state rests on nvme";
}

static void gradients_tell(const sherd_engine *engine)
{
    const char *why = gradients_stay(engine->plan);

    if (engine->rank == 0 && why != NULL) {
        sherdi_log(SHERD_LOG_WARN, engine->rank,
                   "zero_optimization.offload_optimizer.gradients \"nvme\" has no effect: %s", why);
    }
}

static void sealed_tell(sherd_engine *engine)
{
    bucket_tell(engine);
    gradients_tell(engine);
}

const sherdi_module sherdi_module_hints = {.create = ignored_tell, .sealed = sealed_tell};
