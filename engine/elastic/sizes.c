/* See sizes.h. At seal every number of ranks is planned, and refused where the host or a drive lacks
 * room. */
#include "engine/elastic/sizes.h"

#include "base/checked.h"
#include "engine/elastic/disk.h"
#include "engine/elastic/move.h"
#include "engine/limits.h"
#include "engine/run/agree.h"

static sherd_status size_plan(const sherdi_plan *plan, const sherdi_model *model, int ranks,
                              sherdi_plan **out)
{
    sherdi_settings settings = plan->settings;
    sherdi_machine  machine  = plan->machine;

    settings.batch         = sherdi_move_batch(&plan->settings.batch, ranks);
    machine.ranks_per_host = ranks;
    return sherdi_plan_create(model, &settings, 0, ranks, &machine, plan->mem, out);
}

static sherdi_move_peak peak_max(sherdi_move_peak a, sherdi_move_peak b)
{
    return (sherdi_move_peak){.host   = sherdi_max_size(a.host, b.host),
                              .device = sherdi_max_size(a.device, b.device)};
}

/* Gives the sizes of `at`; `before` is the plan of one rank less. */
static sherd_status size_give(const sherdi_plan *plan, const sherdi_plan *before,
                              const sherdi_plan *at, sherdi_elastic_fn fn, void *ctx)
{
    sherdi_elastic_size size = {.ranks      = sherdi_plan_all_ranks(at),
                                .rank_bytes = sherdi_plan_host_need(at),
                                .disk_bytes = sherdi_disk_bytes(at),
                                .at         = at,
                                .below      = before};

    if (at->machine.has_device) {
        size.device_bytes = sherdi_plan_device_need(at);
    }
    if (before != NULL) {
        size.grow_peak       = sherdi_move_peak_of(before, at);
        size.shrink_peak     = sherdi_move_peak_of(at, before);
        size.grow_disk_bytes = (uint64_t)sherdi_plan_all_ranks(before) * sherdi_disk_bytes(before) +
                               (uint64_t)sherdi_plan_all_ranks(at) * size.disk_bytes;
    }
    if (sherdi_plan_all_ranks(at) != sherdi_plan_all_ranks(plan)) {
        size.here_peak = peak_max(sherdi_move_peak_of(plan, at), sherdi_move_peak_of(at, plan));
    }
    return fn(ctx, &size);
}

sherd_status sherdi_elastic_sizes(const sherdi_plan *plan, const sherdi_model *model,
                                  sherdi_elastic_fn fn, void *ctx)
{
    sherdi_plan *before = NULL;
    sherd_status status = SHERD_OK;

    for (int ranks = (int)plan->settings.elastic[0];
         ranks <= (int)plan->settings.elastic[1] && status == SHERD_OK; ranks++) {
        sherdi_plan *at = NULL;

        status = size_plan(plan, model, ranks, &at);
        if (status == SHERD_OK) {
            status = size_give(plan, before, at, fn, ctx);
        }
        sherdi_plan_destroy(before);
        before = at;
    }
    sherdi_plan_destroy(before);
    return status;
}

/* ----------------------------------------------------------------------- the hooks -- */

static sherd_status range_check(const sherdi_settings *settings, int ranks)
{
    double least = settings->elastic[0];
    double most  = settings->elastic[1];

    if (least < 1 || least > most || least != (double)(int)least || most != (double)(int)most) {
        return sherdi_fail(
            SHERD_E_INVAL,
            "sherd.elastic is [%g, %g]; give the least and the most ranks, two whole "
            "numbers from 1 on",
            least, most);
    }
    if (ranks < least || ranks > most) {
        return sherdi_fail(SHERD_E_INVAL, "sherd.elastic is [%g, %g], and the world has %d ranks",
                           least, most, ranks);
    }
    return SHERD_OK;
}

sherd_status sherdi_elastic_lay_out(sherdi_plan *plan, const sherdi_model *model)
{
    (void)model;
    if (!sherdi_is_elastic(&plan->settings)) {
        return SHERD_OK;
    }
    return range_check(&plan->settings, sherdi_plan_all_ranks(plan));
}

/* Ranks that have a device to themselves bring others with them, as far as is known here. */
static sherd_status device_check(const sherdi_plan *plan, const sherdi_elastic_size *size,
                                 size_t each)
{
    const sherdi_machine *machine = &plan->machine;
    int                   sharers = machine->device_ranks;
    size_t                all     = machine->device_bytes;
    size_t                own;

    if (!machine->has_device || all == 0) {
        return SHERD_OK;
    }
    if (sharers > 1) {
        all *= (size_t)sharers;
        sharers =
            (sharers * size->ranks + sherdi_plan_all_ranks(plan) - 1) / sherdi_plan_all_ranks(plan);
    }
    own = all / (size_t)(sharers > 1 ? sharers : 1);
    return each <= own
               ? SHERD_OK
               : sherdi_fail(
                     SHERD_E_NOMEM,
                     "sherd.elastic: %d ranks need %zu bytes of a device each, and %zu "
                     "while the engine moves there or away, in both layouts, and a rank may "
                     "take %zu; narrow sherd.elastic, or offload state to the host",
                     size->ranks, size->device_bytes, each, own);
}

/* Refuses a number of ranks for which the host or the device has no room, or whose move has none. */
static sherd_status size_check(void *ctx, const sherdi_elastic_size *size)
{
    const sherdi_plan *plan = ctx;
    sherdi_move_peak peak = peak_max(peak_max(size->grow_peak, size->shrink_peak), size->here_peak);
    size_t           each = sherdi_max_size(peak.host, size->rank_bytes);
    size_t           all;

    SHERDI_TRY(device_check(plan, size, sherdi_max_size(peak.device, size->device_bytes)));

    if (plan->machine.memory_bytes == 0 ||
        (sherdi_mul_fits(each, (size_t)size->ranks, &all) && all <= plan->machine.memory_bytes)) {
        return SHERD_OK;
    }
    return sherdi_fail(
        SHERD_E_NOMEM,
        "sherd.elastic: %d ranks need %zu bytes each, and %zu while the engine moves "
        "there or away, and this host may give %zu to all of them; narrow "
        "sherd.elastic, or let the ranks take less",
        size->ranks, size->rank_bytes, each, plan->machine.memory_bytes);
}

/* Refuses a number of ranks whose files do not fit next to those of the others: this plan's are
 * there. */
static sherd_status size_disk_check(void *ctx, const sherdi_elastic_size *size)
{
    const sherdi_plan *plan    = ctx;
    sherdi_disk        here    = {0};
    sherdi_disk        below   = {0};
    const char        *folder  = NULL;
    uint64_t           missing = 0;

    if (size->ranks != sherdi_plan_all_ranks(plan)) {
        sherdi_disk_add(&here, size->at, 1);
        missing = sherdi_disk_missing(&here, &folder);
    }
    if (size->below != NULL) {
        const char *other = NULL;
        uint64_t    more;

        sherdi_disk_add(&below, size->at, 1);
        sherdi_disk_add(&below, size->below, 1);
        sherdi_disk_add(&below, plan, -1);
        more    = sherdi_disk_missing(&below, &other);
        folder  = more > missing ? other : folder;
        missing = more > missing ? more : missing;
    }
    return missing == 0
               ? SHERD_OK
               : sherdi_fail(
                     SHERD_E_IO,
                     "sherd.elastic: while the engine moves to %d ranks, or away, the files "
                     "of two layouts need %llu bytes more than %s has; free them, or narrow "
                     "sherd.elastic",
                     size->ranks, (unsigned long long)missing, folder);
}

/* The files of this layout are there; a resumed run has them already. */
sherd_status sherdi_elastic_disk_check(sherd_engine *engine)
{
    const sherdi_plan *plan = engine->plan;

    if (!sherdi_is_elastic(&plan->settings) || !sherdi_move_is_stored(&plan->settings) ||
        engine->elastic->is_moving) {
        return SHERD_OK;
    }
    return sherdi_agree_status(
        engine, sherdi_elastic_sizes(plan, &engine->model, size_disk_check, engine->plan));
}

/* Checks that the new layout's files have room next to the old ones, before any of them is made. */
static sherd_status files_check(const sherdi_plan *plan)
{
    sherdi_disk disk = {0};
    const char *folder;
    uint64_t    missing;

    sherdi_disk_add(&disk, plan, 1);
    missing = sherdi_disk_missing(&disk, &folder);
    return missing == 0 ? SHERD_OK
                        : sherdi_fail(SHERD_E_IO,
                                      SHERDI_MOVE_CALL
                                      ": the files on %d ranks take %llu bytes each, and %s has "
                                      "%llu bytes too few for them next to those of before",
                                      plan->world_size, (unsigned long long)sherdi_disk_bytes(plan),
                                      folder, (unsigned long long)missing);
}

/* A move checks its own peak. */
sherd_status sherdi_elastic_check(sherd_engine *engine)
{
    const sherdi_plan *plan = engine->plan;

    if (engine->elastic != NULL && engine->elastic->is_moving) {
        return files_check(plan);
    }
    return sherdi_is_elastic(&plan->settings)
               ? sherdi_elastic_sizes(plan, &engine->model, size_check, engine->plan)
               : SHERD_OK;
}
