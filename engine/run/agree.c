/* Compares what must be the same on all ranks, by hash. If it differs, the ranks search together for the first difference and
 * name it. All calls are collective. */
#include "engine/run/agree.h"

#include "base/checked.h"
#include "base/hash.h"
#include "engine/run/engine_impl.h"
#include "engine/run/loop.h"

#include <stdio.h>
#include <string.h>

/* Returns the first rank whose value differs from rank 0's; 0: all agree. */
static int odd_rank(const uint64_t *values, int world_size)
{
    for (int r = 1; r < world_size; r++) {
        if (values[r] != values[0]) {
            return r;
        }
    }
    return 0;
}

/* -------------------------------------------------------------- status ---- */

#define NUM_STATUSES (SHERDI_AGREE_STATUS_WORDS - 1)

sherd_status sherdi_agree_status(sherd_world *world, sherd_status own)
{
    return sherdi_agree_status_of(world, own, "the ranks' statuses");
}

sherd_status sherdi_agree_status_of(sherd_world *world, sherd_status own, const char *call)
{
    double               counts[NUM_STATUSES + 1] = {0}; /* ranks by status; sum of failed ranks */
    const sherdi_outcome here                     = sherdi_outcome_of(own);
    sherd_status         status;
    double               failed;

    counts[own]          = 1;
    counts[NUM_STATUSES] = own == SHERD_OK ? 0 : sherd_world_rank(world);
    status               = sherdi_world_sum_f64(world, counts, NUM_STATUSES + 1, call);
    SHERDI_TRY(sherdi_outcome_end(&here));
    SHERDI_TRY(status);
    failed = sherd_world_size(world) - counts[SHERD_OK];
    for (int code = SHERD_OK + 1; code < NUM_STATUSES && failed > 0; code++) {
        if (counts[code] == 0) {
            continue;
        }
        if (failed > 1) {
            return sherdi_fail((sherd_status)code,
                               "%d other ranks could not take part: %s; their own "
                               "sherd_last_error() says more",
                               (int)failed, sherd_status_text((sherd_status)code));
        }
        return sherdi_fail((sherd_status)code,
                           "rank %d could not take part: %s; its own sherd_last_error() says more",
                           (int)counts[NUM_STATUSES], sherd_status_text((sherd_status)code));
    }
    return SHERD_OK;
}

/* ---------------------------------------------------------------- calls ---- */

sherd_status sherdi_agree_word(sherd_engine *engine, uint64_t word, const char *what, int *odd_out)
{
    sherdi_publish_message mine = {.fingerprint = word};

    SHERDI_TRY(sherdi_run_exchange(engine, &mine, engine->exchange.publish, sizeof(mine), what));
    *odd_out = 0;
    for (int r = engine->world_size - 1; r > 0; r--) {
        *odd_out =
            engine->exchange.publish[r].fingerprint != engine->exchange.publish[0].fingerprint
                ? r
                : *odd_out;
    }
    return SHERD_OK;
}

static sherd_status arguments_differ(sherd_engine *engine, const char *call, uint64_t hash,
                                     const sherdi_argument *arguments, size_t count)
{
    int rank;

    SHERDI_TRY(sherdi_agree_word(engine, hash, "arguments of a call", &rank));
    if (rank != 0) {
        return sherdi_fail(SHERD_E_INVAL,
                           "the ranks disagree: rank %d makes another call than rank 0 (this rank "
                           "calls %s); all ranks must make the same calls in the same order, "
                           "and " SHERDI_USUAL_CAUSE,
                           rank, call);
    }
    for (size_t i = 0; i < count && rank == 0; i++) {
        SHERDI_TRY(sherdi_agree_word(engine, arguments[i].value, "arguments of a call", &rank));
        if (rank != 0) {
            return sherdi_fail(SHERD_E_INVAL,
                               "the ranks disagree: rank %d calls %s with another %s than rank 0; "
                               "all ranks must pass the same",
                               rank, call, arguments[i].name);
        }
    }
    return SHERD_OK;
}

sherd_status sherdi_agree_call(sherd_engine *engine, const char *call,
                               const sherdi_argument *arguments, size_t count, sherd_status own)
{
    uint64_t name = sherdi_hash_bytes(count, call, strlen(call));
    uint64_t hash = name;
    int      odd;

    SHERDI_TRY(sherdi_agree_status(engine->world, own));
    for (size_t i = 0; i < count; i++) {
        hash = sherdi_hash_u64(hash, arguments[i].value);
    }
    SHERDI_TRY(sherdi_agree_word(engine, hash, "arguments of a call", &odd));
    return odd == 0 ? SHERD_OK : arguments_differ(engine, call, name, arguments, count);
}

/* ------------------------------------------------------------ settings ---- */

sherd_status sherdi_agree_settings(sherd_world *world, const sherdi_settings *settings,
                                   sherdi_mem *mem)
{
    sherdi_named_bits list[SHERDI_SETTINGS_MOST];
    uint64_t          mine[SHERDI_SETTINGS_MOST];
    size_t            count      = sherdi_settings_list(settings, list);
    int               world_size = sherd_world_size(world);
    uint64_t         *all =
        sherdi_alloc_array(mem, SHERDI_MEM_CONTROL, (size_t)world_size, count * sizeof(*mine));
    sherd_status status = sherdi_agree_status(world, all == NULL ? SHERD_E_NOMEM : SHERD_OK);

    for (size_t i = 0; i < count; i++) {
        mine[i] = list[i].bits;
    }
    if (status == SHERD_OK) {
        status = sherdi_world_exchange(world, mine, all, count * sizeof(*mine), "settings");
    }
    for (int r = 1; r < world_size && status == SHERD_OK; r++) {
        for (size_t i = 0; i < count && status == SHERD_OK; i++) {
            if (all[(size_t)r * count + i] != all[i]) {
                status =
                    sherdi_fail(SHERD_E_INVAL,
                                "rank %d has another value of %s than rank 0; all ranks must be "
                                "given the same configuration",
                                r, list[i].key);
            }
        }
    }
    sherdi_free(all);
    return status;
}

/* --------------------------------------------------------------- model ---- */

static uint64_t items_hash(const sherdi_model *model, size_t count)
{
    uint64_t hash = 0;

    for (size_t i = 0; i < count && i < sherdi_model_num_items(model); i++) {
        hash = sherdi_hash_u64(hash, sherdi_model_item_hash(model, i));
    }
    return hash;
}

/* Finds the first item that differs: all ranks halve the list together until one item is left. */
static sherd_status first_difference(sherd_engine *engine, uint64_t *all, size_t *out)
{
    size_t low  = 0; /* the first `low` items agree */
    size_t high = sherdi_model_num_items(&engine->model);

    while (high - low > 1) {
        size_t   middle = low + (high - low) / 2;
        uint64_t mine   = items_hash(&engine->model, middle);

        SHERDI_TRY(sherdi_world_exchange(engine->world, &mine, all, sizeof(mine), "the model"));
        if (odd_rank(all, engine->world_size) == 0) {
            low = middle;
        } else {
            high = middle;
        }
    }
    *out = low;
    return SHERD_OK;
}

#define ITEM_TEXT_BYTES 192

static sherd_status model_difference_name(sherd_engine *engine, uint64_t *all, char *texts)
{
    char     mine[ITEM_TEXT_BYTES] = "";
    uint64_t hash;
    size_t   item;
    int      rank;

    SHERDI_TRY(first_difference(engine, all, &item));
    hash = sherdi_model_item_hash(&engine->model, item);
    sherdi_model_item_text(&engine->model, item, mine, sizeof(mine));
    SHERDI_TRY(sherdi_world_exchange(engine->world, &hash, all, sizeof(hash), "the model"));
    SHERDI_TRY(sherdi_world_exchange(engine->world, mine, texts, sizeof(mine), "the model"));
    rank = odd_rank(all, engine->world_size);
    return sherdi_fail(SHERD_E_INVAL,
                       "the ranks declare different models: rank 0 has %s where rank %d has %s; "
                       "declare the same on every rank",
                       texts, rank, texts + (size_t)rank * ITEM_TEXT_BYTES);
}

sherd_status sherdi_agree_model(sherd_engine *engine)
{
    size_t    world = (size_t)engine->world_size;
    size_t    count = sherdi_model_num_items(&engine->model);
    uint64_t  mine;
    uint64_t *all   = sherdi_alloc_array(&engine->mem, SHERDI_MEM_CONTROL, world, sizeof(*all));
    char     *texts = sherdi_alloc_array(&engine->mem, SHERDI_MEM_CONTROL, world, ITEM_TEXT_BYTES);
    sherd_status status =
        sherdi_agree_status(engine->world, all == NULL || texts == NULL ? SHERD_E_NOMEM : SHERD_OK);

    if (status == SHERD_OK) {
        mine   = count;
        status = sherdi_world_exchange(engine->world, &mine, all, sizeof(mine), "the model");
    }
    if (status == SHERD_OK && odd_rank(all, engine->world_size) != 0) {
        int rank = odd_rank(all, engine->world_size);

        status =
            sherdi_fail(SHERD_E_INVAL,
                        "the ranks declare different models: rank 0 has %llu groups, units and "
                        "parameters, rank %d has %llu; declare the same on every rank",
                        (unsigned long long)all[0], rank, (unsigned long long)all[rank]);
    }
    if (status == SHERD_OK) {
        mine   = items_hash(&engine->model, count);
        status = sherdi_world_exchange(engine->world, &mine, all, sizeof(mine), "the model");
    }
    if (status == SHERD_OK && odd_rank(all, engine->world_size) != 0) {
        status = model_difference_name(engine, all, texts);
    }
    sherdi_free(texts);
    sherdi_free(all);
    return status;
}

/* ---------------------------------------------------------------- uses ---- */

/* Returns one of a unit's counts: the acquires for pass `count`; for NUM_PASSES the micro-batches with a complete backward. */
#define NUM_PASSES (SHERD_EVAL + 1)

static uint64_t uses_count(const sherd_engine *engine, int rank, size_t unit, int count)
{
    const sherdi_unit_uses *uses =
        &engine->exchange.uses[(size_t)rank * engine->plan->num_units + unit];

    return count == NUM_PASSES ? uses->runs : uses->acquired[count];
}

/* Lists the ranks whose count differs from rank 0's, " 1 3", as many as fit. Returns the length. */
static size_t uses_odd_ranks(const sherd_engine *engine, size_t unit, int count, char *text,
                             size_t len_bytes)
{
    size_t used = 0;

    text[0] = '\0';
    for (int r = 1; r < engine->world_size && used < len_bytes; r++) {
        if (uses_count(engine, r, unit, count) != uses_count(engine, 0, unit, count)) {
            used += (size_t)snprintf(text + used, len_bytes - used, " %d", r);
        }
    }
    return used;
}

/* Names a unit that the ranks used differently, and the ranks. Backward counts are compared first: a rank that misses a backward
 * pass also differs in its acquires. */
static sherd_status uses_difference_name(sherd_engine *engine)
{
    char ranks[64];

    for (size_t u = 0; u < engine->plan->num_units; u++) {
        if (uses_odd_ranks(engine, u, NUM_PASSES, ranks, sizeof(ranks)) > 0) {
            return sherdi_fail(
                SHERD_E_STATE,
                "the ranks disagree about unit %s: rank 0 ran its backward %llu time(s) in this "
                "window, but rank(s)%s more or fewer times; the window was dropped, nothing was "
                "updated; all ranks must use the same units, and " SHERDI_USUAL_CAUSE,
                engine->model.units[u].name,
                (unsigned long long)uses_count(engine, 0, u, NUM_PASSES), ranks);
        }
    }
    for (size_t u = 0; u < engine->plan->num_units; u++) {
        for (int pass = 0; pass < NUM_PASSES; pass++) {
            if (uses_odd_ranks(engine, u, pass, ranks, sizeof(ranks)) > 0) {
                return sherdi_fail(
                    SHERD_E_STATE,
                    "the ranks disagree about unit %s: rank 0 acquired it %llu time(s) for %s in "
                    "this window, but rank(s)%s more or fewer times; the window was dropped, "
                    "nothing was updated; all ranks must acquire the same units, for eval too, "
                    "and " SHERDI_USUAL_CAUSE,
                    engine->model.units[u].name, (unsigned long long)uses_count(engine, 0, u, pass),
                    sherdi_pass_name((sherd_pass)pass), ranks);
            }
        }
    }
    return sherdi_fail(SHERD_E_STATE, "the ranks disagree about the number of micro-batches in "
                                      "this window; the window was dropped, nothing was updated; "
                                      "all ranks must call sherd_step equally often, "
                                      "and " SHERDI_USUAL_CAUSE);
}

static void used_note(const sherd_engine *engine, uint64_t *words)
{
    size_t bit = 0;

    for (size_t u = 0; u < engine->plan->num_units; u++) {
        if (engine->plan->units[u].is_open_ended) {
            words[bit / 64] |= (uint64_t)sherdi_unit_of(engine, (int)u)->has_gradient << bit % 64;
            bit++;
        }
    }
    words[bit / 64] |= (uint64_t)engine->window.has_backward << bit % 64;
}

/* Begins the gradients that any rank has; on a rank that had none, the gradient is zero. */
static sherd_status used_begin(sherd_engine *engine, const uint64_t *words)
{
    size_t bit = 0;

    for (size_t u = 0; u < engine->plan->num_units; u++) {
        if (engine->plan->units[u].is_open_ended) {
            if (words[bit / 64] >> bit % 64 & 1) {
                SHERDI_TRY(sherdi_program_gradient_begin(&engine->run.program, (int)u));
            }
            bit++;
        }
    }
    engine->window.has_backward = (int)(words[bit / 64] >> bit % 64 & 1);
    return SHERD_OK;
}

sherd_status sherdi_agree_used(sherd_engine *engine)
{
    size_t    count = sherdi_plan_used_words(engine->plan->num_open_ended);
    uint64_t *all   = engine->exchange.used;
    uint64_t *mine  = all + (size_t)engine->rank * count;

    if (count == 0) {
        return SHERD_OK;
    }
    memset(mine, 0, count * sizeof(*mine));
    used_note(engine, mine);
    SHERDI_TRY(sherdi_run_exchange(engine, mine, all, count * sizeof(*mine), "units of any uses"));
    for (size_t i = count; i < count * (size_t)engine->world_size; i++) {
        all[i % count] |= all[i];
    }
    return used_begin(engine, all);
}

sherd_status sherdi_agree_uses(sherd_engine *engine)
{
    size_t               num_units = engine->plan->num_units;
    sherdi_unit_uses    *mine      = &engine->exchange.uses[(size_t)engine->rank * num_units];
    sherdi_agree_message message   = {.micro_seen     = (uint64_t)engine->window.micro_seen,
                                      .micro_backward = (uint64_t)engine->window.micro_backward};
    int                  differs   = 0;

    for (size_t u = 0; u < num_units; u++) {
        mine[u] = sherdi_unit_of(engine, (int)u)->uses;
        if (engine->plan->units[u].is_open_ended) { /* ranks may acquire it differently */
            mine[u].acquired[SHERD_FORWARD]  = 0;
            mine[u].acquired[SHERD_BACKWARD] = 0;
        }
        message.uses_hash = sherdi_hash_bytes(message.uses_hash, &mine[u], sizeof(mine[u]));
    }
    SHERDI_TRY(sherdi_run_exchange(engine, &message, engine->exchange.agree, sizeof(message),
                                   "sherd_step"));
    for (int r = 1; r < engine->world_size; r++) {
        differs |=
            memcmp(&engine->exchange.agree[r], &engine->exchange.agree[0], sizeof(message)) != 0;
    }
    if (!differs && engine->window.micro_backward == engine->window.micro_seen) {
        return SHERD_OK;
    }
    if (!differs) {
        return sherdi_fail(SHERD_E_STATE,
                           "%d of the %d micro-batches of this window had no backward pass; the "
                           "window was dropped, nothing was updated; run the backward pass of each "
                           "micro-batch before its sherd_step",
                           engine->window.micro_seen - engine->window.micro_backward,
                           engine->window.micro_seen);
    }
    SHERDI_TRY(sherdi_world_exchange(engine->world, mine, engine->exchange.uses,
                                     num_units * sizeof(*mine), "sherd_step"));
    return uses_difference_name(engine);
}
