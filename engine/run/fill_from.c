/* First values that only one rank has (sherd_param_fill_from): it sends them to the others. */
#include "engine/run/values.h"

#include "base/checked.h"
#include "collectives/broadcast.h"
#include "engine/run/differences.h"
#include "engine/run/engine_impl.h"
#include "engine/run/needs.h"

#include <string.h>

/* How many elements a rank gives the others at a time. */
#define PORTION_ELEMS ((size_t)64 << 10)

typedef struct portion {
    uint64_t status; /* status of the fill function */
    float    values[PORTION_ELEMS];
} portion;

typedef struct root_fill {
    sherd_engine      *engine;
    sherdi_fill_source given;
    int                root;
    size_t             first; /* first element of the portion */
    portion           *portion;
} root_fill;

static sherd_status portion_give(void *raw, int part, size_t first, size_t count, float *values)
{
    const root_fill *fill = raw;

    (void)part;
    memcpy(values, fill->portion->values + (first - fill->first), count * sizeof(*values));
    return SHERD_OK;
}

/* Fills with one portion from the root. `own` is the outcome on this rank so far: after a failure
 * the rank still takes part in the broadcasts, until the root has no values, but fills nothing. */
static sherd_status portion_fill(root_fill *fill, size_t count, sherd_status own)
{
    sherd_engine *engine = fill->engine;
    sherdi_values values = {.param = fill->given.param, .first = fill->first, .count = count};
    sherd_status  given  = SHERD_OK;

    if (engine->rank == fill->root) {
        given = sherdi_fill_ask(&fill->given, 0, fill->first, count, fill->portion->values);
        fill->portion->status = (uint64_t)given;
    }
    SHERDI_TRY(sherdi_world_broadcast(engine->world, fill->portion,
                                      offsetof(portion, values) + count * sizeof(float),
                                      fill->root));
    if (fill->portion->status != SHERD_OK) {
        return given; /* the other ranks hear of it where all agree */
    }
    values.parts = engine->model.params[fill->given.param].is_frozen ? SHERDI_VALUES_COMPUTE
                                                                     : SHERDI_VALUES_MASTER;
    return own == SHERD_OK ? sherdi_values_put(engine, &values, portion_give, fill) : own;
}

/* Fills with all portions. Ends early only where it ends for all ranks: the root has no values, or
 * a rank is lost. */
static sherd_status portions_fill(root_fill *fill)
{
    sherd_engine  *engine = fill->engine;
    size_t         elems  = engine->model.params[fill->given.param].elems;
    sherdi_outcome all    = {.status = SHERD_OK};

    for (fill->first = 0; fill->first < elems; fill->first += PORTION_ELEMS) {
        sherd_status own =
            portion_fill(fill, sherdi_min_size(PORTION_ELEMS, elems - fill->first), all.status);

        if (all.status == SHERD_OK && own != SHERD_OK) {
            sherdi_outcome_add(&all, own);
            (void)SHERDI_ASK(storage, settle_filled, engine);
        }
        if (own == SHERD_E_PEER_LOST || fill->portion->status != SHERD_OK) {
            break;
        }
    }
    return sherdi_outcome_end(&all);
}

static sherd_status root_run(root_fill *fill)
{
    sherd_engine *engine = fill->engine;
    size_t        param  = fill->given.param;
    uint64_t     *share  = sherdi_values_share(engine);
    sherd_status  status;

    engine->fill.is_changed      = 1;
    engine->fingerprints.has_own = engine->fingerprints.is_sent = 0;
    engine->fill.is_filled[param]                               = 0;
    *share                                                      = 0;
    status                                                      = portions_fill(fill);
    SHERDI_TRY(sherdi_agree_status(engine, status));
    engine->fill.samples[param]   = param; /* all ranks got the root's values */
    engine->fill.shares[param]    = *share;
    engine->fill.is_filled[param] = 1;
    return SHERD_OK;
}

static sherd_status root_check(const sherd_engine *engine, sherd_param param, int root,
                               sherd_fill_fn fill)
{
    SHERDI_TRY(sherdi_fill_check(engine, "sherd_param_fill_from", param));
    if (root < 0 || root >= engine->world_size) {
        return sherdi_fail(SHERD_E_INVAL,
                           "sherd_param_fill_from: root is %d, but ranks are 0 to %d", root,
                           engine->world_size - 1);
    }
    return engine->rank == root ? sherdi_fill_check_function(engine, param, fill) : SHERD_OK;
}

sherd_status sherd_param_fill_from(sherd_engine *engine, sherd_param param, int root,
                                   sherd_fill_fn fill, void *ctx)
{
    const sherdi_argument arguments[] = {{"param", (uint64_t)param}, {"root", (uint64_t)root}};
    root_fill             run         = {.engine = engine, .root = root};
    sherd_status          status;

    SHERDI_TRY(sherdi_engine_need(engine, "sherd_param_fill_from", SHERDI_NEED_SEALED));
    status = root_check(engine, param, root, fill);
    if (status == SHERD_OK) {
        run.portion = sherdi_alloc(&engine->mem, SHERDI_MEM_CONTROL, sizeof(*run.portion));
        status      = run.portion == NULL ? SHERD_E_NOMEM : SHERD_OK;
    }
    status = sherdi_agree_call(engine, "sherd_param_fill_from", arguments, 2, status);
    if (status == SHERD_OK && !sherdi_fill_is_kept(engine, param)) {
        run.given = (sherdi_fill_source){.engine = engine,
                                         .call   = "sherd_param_fill_from",
                                         .param  = (size_t)param,
                                         .fn     = fill,
                                         .ctx    = ctx};
        status    = root_run(&run);
    }
    sherdi_free(run.portion);
    return status;
}
