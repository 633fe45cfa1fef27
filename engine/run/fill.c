/* First values: copies the values of a trainer's fill function to every place where this rank holds
 * a part of the parameter. Also computes fingerprints anew from the state. sherdi_fill_finish, at
 * the start, checks that everything is filled, and equally on all ranks. */
#include "engine/run/fill.h"

#include "base/checked.h"
#include "base/hash.h"
#include "engine/run/agree.h"
#include "engine/run/engine_impl.h"
#include "engine/run/failure.h"
#include "engine/run/loop.h"
#include "engine/run/needs.h"
#include "engine/run/update.h"

#include <stdio.h>
#include <string.h>

/* For a sliced parameter, every rank asks for the same few values, spread evenly: SAMPLES times
 * SAMPLE_ELEMS. */
#define SAMPLES      4
#define SAMPLE_ELEMS 16

sherd_status sherdi_fill_open(sherd_engine *engine)
{
    sherdi_fill *fill   = &engine->fill;
    sherdi_mem  *mem    = &engine->mem;
    size_t       params = engine->plan->layout.num_params;

    fill->is_filled = sherdi_alloc_array(mem, SHERDI_MEM_CONTROL, params, sizeof(*fill->is_filled));
    fill->shares    = sherdi_alloc_array(mem, SHERDI_MEM_CONTROL, params, sizeof(*fill->shares));
    fill->samples   = sherdi_alloc_array(mem, SHERDI_MEM_CONTROL, params, sizeof(*fill->samples));
    return fill->is_filled == NULL || fill->shares == NULL || fill->samples == NULL ? SHERD_E_NOMEM
                                                                                    : SHERD_OK;
}

void sherdi_fill_close(sherd_engine *engine)
{
    sherdi_free(engine->fill.is_filled);
    sherdi_free(engine->fill.shares);
    sherdi_free(engine->fill.samples);
    engine->fill = (sherdi_fill){0};
}

/* Where the values of a parameter come from. */
typedef struct given_fill {
    sherd_engine *engine;
    const char   *call;
    size_t        param;
    sherd_fill_fn fn; /* NULL: from the trainer's own memory, which is bound */
    void         *ctx;
} given_fill;

static sherd_status given_ask(void *raw, int part, size_t at, size_t count, float *values)
{
    const given_fill *given = raw;
    sherd_status      status;

    (void)part;
    sherdi_engine_callback_begin(given->engine, given->call);
    status = given->fn(given->ctx, at, count, values);
    sherdi_engine_callback_end(given->engine);
    if ((unsigned)status > SHERD_E_DEVICE) {
        return sherdi_fail(SHERD_E_INVAL,
                           "the fill function of parameter %s returned %d at element %zu, which is "
                           "no sherd_status; return SHERD_OK or one of its errors",
                           given->engine->model.params[given->param].name, (int)status, at);
    }
    if (status != SHERD_OK) {
        return sherdi_fail(status, "the fill function of parameter %s returned %s at element %zu",
                           given->engine->model.params[given->param].name,
                           sherd_status_name(status), at);
    }
    return SHERD_OK;
}

/* Hashes a few values, at the same elements on every rank. Of a sliced parameter no two ranks hold
 * the same elements, so this is the only way to see that they would fill it differently. */
static sherd_status sample_take(given_fill *given, uint64_t *out)
{
    size_t elems = given->engine->model.params[given->param].elems;
    size_t count = sherdi_min_size(elems, SAMPLE_ELEMS);
    size_t last  = SIZE_MAX;
    float  values[SAMPLE_ELEMS];

    *out = given->param;
    for (size_t i = 0; i < SAMPLES; i++) {
        size_t at = (elems - count) * i / (SAMPLES - 1);

        if (at != last && count > 0) {
            SHERDI_TRY(given_ask(given, 0, at, count, values));
            *out = sherdi_hash_bytes(*out, values, count * sizeof(*values));
        }
        last = at;
    }
    return SHERD_OK;
}

/* Settles the rings that are filled. Extents that could not be written stay in the ring's slots, to
 * be written again. */
static sherd_status rings_settle(sherd_engine *engine)
{
    sherd_status status = SHERD_OK;

    for (int ring = SHERDI_RING_STATE; ring <= SHERDI_RING_PARAMS; ring++) {
        sherd_status own = engine->storage.ops->settle(engine, (sherdi_ring)ring);

        if (own != SHERD_OK) {
            sherdi_progress_keep(&engine->run.progress, (sherdi_ring)ring);
            status = own;
        }
    }
    return status;
}

static sherd_status values_fill(sherd_engine *engine, given_fill *given)
{
    sherdi_outcome outcome;

    engine->values_call = (sherdi_values_call){.fn = given_ask, .ctx = given};
    outcome             = sherdi_outcome_of(
                    sherdi_program_fill(&engine->run.program, given->param, given->fn != NULL));
    if (outcome.status != SHERD_OK) {
        (void)rings_settle(engine);
    }
    return sherdi_outcome_end(&outcome);
}

/* Fills a parameter on this rank; `fn` NULL: from the trainer's own memory. */
static sherd_status param_fill(sherd_engine *engine, size_t param, sherd_fill_fn fn, void *ctx)
{
    const sherdi_segment *segment =
        &engine->plan->layout.segments[engine->plan->layout.params[param].segment];
    sherdi_fill *fill  = &engine->fill;
    uint64_t    *share = &engine->kernel_data.on_host.head->fingerprint;
    given_fill   given = {
          .engine = engine, .call = "sherd_param_fill", .param = param, .fn = fn, .ctx = ctx};

    fill->is_changed             = 1;
    fill->is_filled[param]       = 0;
    *share                       = 0;
    engine->fingerprints.has_own = engine->fingerprints.is_sent = 0;
    SHERDI_TRY(values_fill(engine, &given));
    if (engine->world_size > 1 && !segment->is_resident && !segment->is_bound) {
        SHERDI_TRY(sample_take(&given, &fill->samples[param]));
    }
    fill->shares[param]    = *share;
    fill->is_filled[param] = 1;
    return SHERD_OK;
}

static sherd_status fill_check(const sherd_engine *engine, const char *call, sherd_param param)
{
    if (engine->phase != SHERDI_PHASE_SEALED) {
        return sherdi_fail(SHERD_E_STATE,
                           "%s: parameters cannot be filled any more: training has begun; fill "
                           "them before the first acquire, or write values with sherd_param_write",
                           call);
    }
    return sherdi_engine_need_param(engine, call, param);
}

/* Whether the parameter already has values from the state of an earlier run, or from a
 * checkpoint. */
static int is_kept(const sherd_engine *engine, sherd_param param)
{
    return (engine->storage.is_resumed && !engine->model.params[param].is_frozen) ||
           (engine->fill.is_loaded && engine->fill.is_filled[param]);
}

static sherd_status function_check(const sherd_engine *engine, sherd_param param,
                                   sherd_fill_fn fill)
{
    if (fill == NULL) {
        return sherdi_fail(SHERD_E_INVAL, "parameter %s: the fill function is NULL",
                           engine->model.params[param].name);
    }
    return SHERD_OK;
}

sherd_status sherd_param_fill(sherd_engine *engine, sherd_param param, sherd_fill_fn fill,
                              void *ctx)
{
    SHERDI_TRY(sherdi_engine_need(engine, "sherd_param_fill", SHERDI_NEED_SEALED));
    SHERDI_TRY(fill_check(engine, "sherd_param_fill", param));
    SHERDI_TRY(function_check(engine, param, fill));
    if (is_kept(engine, param)) {
        return SHERD_OK;
    }
    return param_fill(engine, (size_t)param, fill, ctx);
}

sherd_status sherdi_fill_bound(sherd_engine *engine)
{
    int is_started = engine->phase != SHERDI_PHASE_SEALED;

    for (size_t p = 0; p < engine->model.num_params && !is_started; p++) {
        if (engine->model.params[p].bound_data != NULL && !engine->model.params[p].is_frozen &&
            !engine->fill.is_filled[p]) {
            SHERDI_TRY(param_fill(engine, p, NULL, NULL));
            engine->fill.is_filled[p] = 0; /* the trainer may still fill it, or write its memory */
        }
    }
    return is_started ? SHERD_OK : sherdi_fill_settle(engine);
}

/* ------------------------------------------------------------ from one rank -- */

/* How many elements a rank gives the others at a time. */
#define PORTION_ELEMS ((size_t)64 << 10)

typedef struct portion {
    uint64_t status; /* status of the fill function */
    float    values[PORTION_ELEMS];
} portion;

typedef struct root_fill {
    sherd_engine *engine;
    given_fill    given;
    int           root;
    size_t        first; /* first element of the portion */
    portion      *portion;
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
        given = given_ask(&fill->given, 0, fill->first, count, fill->portion->values);
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
            (void)rings_settle(engine);
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
    SHERDI_TRY(fill_check(engine, "sherd_param_fill_from", param));
    if (root < 0 || root >= engine->world_size) {
        return sherdi_fail(SHERD_E_INVAL,
                           "sherd_param_fill_from: root is %d, but ranks are 0 to %d", root,
                           engine->world_size - 1);
    }
    return engine->rank == root ? function_check(engine, param, fill) : SHERD_OK;
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
    if (status == SHERD_OK && !is_kept(engine, param)) {
        run.given = (given_fill){.engine = engine,
                                 .call   = "sherd_param_fill_from",
                                 .param  = (size_t)param,
                                 .fn     = fill,
                                 .ctx    = ctx};
        status    = root_run(&run);
    }
    sherdi_free(run.portion);
    return status;
}

/* ------------------------------------------------------- the first acquire -- */

static sherd_status unfilled_take(sherd_engine *engine)
{
    for (size_t p = 0; p < engine->model.num_params; p++) {
        if (engine->fill.is_filled[p]) {
            continue;
        }
        if (engine->model.params[p].bound_data == NULL) {
            return sherdi_fail(SHERD_E_STATE,
                               "parameter %s was never filled; call sherd_param_fill for it before "
                               "the first acquire",
                               engine->model.params[p].name);
        }
        SHERDI_TRY(param_fill(engine, p, NULL, NULL));
    }
    return SHERD_OK;
}

/* Returns a rank's message about the first value of a parameter. */
static uint64_t start_told(const sherd_engine *engine, int rank, size_t param)
{
    const uint64_t *words = sherdi_agree_told(engine, rank);

    return words[SHERDI_WORDS_OF_FIRST_HASHES + param];
}

static int starts_differ(const sherd_engine *engine, int rank, size_t param)
{
    return start_told(engine, rank, param) != start_told(engine, 0, param);
}

/* Writes "rank 2" or "ranks 1, 3", as many as there is room for: the ranks whose value for a
 * parameter differs from rank 0's. */
static void others_text(const sherd_engine *engine, size_t param, char *text, size_t len_bytes)
{
    size_t used   = 0;
    int    others = 0;

    for (int r = 1; r < engine->world_size; r++) {
        others += starts_differ(engine, r, param);
    }
    used = (size_t)snprintf(text, len_bytes, "rank%s", others > 1 ? "s" : "");
    for (int r = 1; r < engine->world_size && used + 8 < len_bytes; r++) {
        if (starts_differ(engine, r, param)) {
            used += (size_t)snprintf(text + used, len_bytes - used, "%s %d",
                                     used > sizeof("ranks") ? "," : "", r);
        }
    }
}

static sherd_status start_check(const sherd_engine *engine, size_t param)
{
    const sherdi_model_param *info = &engine->model.params[param];
    char                      others[64];

    for (int r = 1; r < engine->world_size; r++) {
        if (starts_differ(engine, r, param)) {
            others_text(engine, param, others, sizeof(others));
            return sherdi_fail(
                SHERD_E_INVAL,
                "parameter %s starts with other values on %s than on rank 0; %s must have the same "
                "values on every rank (same seed, same file)",
                info->name, others,
                info->bound_data != NULL ? "the memory that is bound, or the fill function,"
                                         : "the fill function");
        }
    }
    return SHERD_OK;
}

/* Computes this rank's value for the comparison of a parameter: a hash of all of it if it is whole,
 * else the sample. */
static sherd_status start_hash(sherd_engine *engine, size_t param, uint64_t *out)
{
    const sherdi_segment *segment =
        &engine->plan->layout.segments[engine->plan->layout.params[param].segment];

    *out = engine->fill.samples[param];
    if (segment->is_bound || segment->is_resident) {
        SHERDI_TRY(sherdi_program_hash(&engine->run.program, param));
        *out = engine->run.hash;
    }
    return SHERD_OK;
}

/* `all` has room for the message of each rank about its parameters; `mine` for that of this
 * rank. */
static sherd_status starts_exchange(sherd_engine *engine, uint64_t *mine, uint64_t *all)
{
    size_t       count = engine->model.num_params;
    sherd_status own   = SHERD_OK;

    for (size_t p = 0; p < count && own == SHERD_OK; p++) {
        own = start_hash(engine, p, &mine[SHERDI_WORDS_OF_FIRST_HASHES + p]);
    }
    SHERDI_TRY(
        sherdi_agree_on(engine, SHERDI_EXCHANGE_FIRST_HASHES, own, mine, all, SHERDI_FILL_BEGINS));
    for (size_t p = 0; p < count; p++) {
        SHERDI_TRY(start_check(engine, p));
    }
    return SHERD_OK;
}

static sherd_status starts_compare(sherd_engine *engine)
{
    size_t       bytes = sherdi_exchange_bytes(engine->plan, SHERDI_EXCHANGE_FIRST_HASHES);
    size_t       world = (size_t)engine->world_size;
    sherd_status status;
    uint64_t    *mine;
    uint64_t    *all;

    if (world == 1) {
        return SHERD_OK;
    }
    mine   = sherdi_alloc(&engine->mem, SHERDI_MEM_CONTROL, bytes);
    all    = sherdi_alloc_array(&engine->mem, SHERDI_MEM_CONTROL, world, bytes);
    status = sherdi_agree_status(engine, mine == NULL || all == NULL ? SHERD_E_NOMEM : SHERD_OK);
    if (status == SHERD_OK) {
        status = starts_exchange(engine, mine, all);
    }
    sherdi_free(all);
    sherdi_free(mine);
    return status;
}

/* ------------------------------------------------------------ fingerprints -- */

sherd_status sherdi_fill_range_fingerprint(sherd_engine *engine, const sherdi_values *values,
                                           uint64_t *out)
{
    sherd_status status = sherdi_values_begin(engine);
    sherd_status own;

    if (status == SHERD_OK) {
        status = sherdi_update_range_fingerprint(engine, values, out);
    }
    own = sherdi_values_begin(engine);
    return own == SHERD_OK ? status : own;
}

/* ------------------------------------------------------------- the start -- */

/* This rank's share of the fingerprint, of frozen or of trainable parameters. */
static uint64_t filled_fingerprint(const sherd_engine *engine, int is_frozen)
{
    uint64_t sum = 0;

    for (size_t p = 0; p < engine->model.num_params; p++) {
        sum += engine->model.params[p].is_frozen == is_frozen ? engine->fill.shares[p] : 0;
    }
    return sum;
}

sherd_status sherdi_fill_settle(sherd_engine *engine)
{
    sherd_status status = sherdi_program_fill_end(&engine->run.program);
    sherd_status own    = rings_settle(engine);

    SHERDI_TRY(own);
    SHERDI_TRY(status);
    return sherdi_values_begin(engine);
}

int sherdi_fill_commits(const sherd_engine *engine)
{
    return engine->phase == SHERDI_PHASE_SEALED && sherdi_plan_has_generations(engine->plan) &&
           !engine->storage.is_resumed && (!engine->fill.is_loaded || engine->fill.is_changed);
}

/* Writes the filled values to the space where they rest. If a drive does not return the written
 * bytes, the first update, which reads them, detects it, unless fast_init is on. */
static sherd_status state_settle(sherd_engine *engine)
{
    SHERDI_TRY(sherdi_fill_settle(engine));
    if (!sherdi_fill_commits(engine)) {
        return SHERD_OK;
    }
    engine->fingerprints.own = filled_fingerprint(engine, 0);
    engine->fingerprints.has_own =
        !engine->fill.is_loaded; /* else it needs the rest of the state */
    SHERDI_TRY(sherdi_update_fingerprint(engine));
    engine->storage.ops->verify(engine, engine->settings.offload.verify_reads ||
                                            !engine->settings.offload.fast_init);
    return SHERD_OK;
}

static sherd_status filling_end(sherd_engine *engine)
{
    sherd_status status = unfilled_take(engine);

    if (status == SHERD_OK) {
        status = state_settle(engine);
    }
    SHERDI_TRY(sherdi_agree_word(engine, SHERDI_EXCHANGE_FIRST_VALUES, status,
                                 filled_fingerprint(engine, 1), SHERDI_FILL_BEGINS));
    engine->fingerprints.frozen = sherdi_agree_sum(engine);
    SHERDI_TRY(engine->storage.ops->begin(engine));
    engine->storage.ops->agreed(engine);
    SHERDI_TRY(sherdi_run_drain(engine));
    SHERDI_TRY(starts_compare(engine));
    sherdi_progress_complete(&engine->run.progress, SHERDI_RING_STATE);
    sherdi_progress_complete(&engine->run.progress, SHERDI_RING_PARAMS);
    sherdi_loop_fetch_ahead(engine);
    return SHERD_OK;
}

sherd_status sherdi_fill_finish(sherd_engine *engine)
{
    if (engine->phase != SHERDI_PHASE_SEALED) {
        return SHERD_OK;
    }
    SHERDI_TRY(sherdi_engine_outcome(engine, filling_end(engine)));
    engine->phase = SHERDI_PHASE_RUNNING;
    return SHERD_OK;
}
