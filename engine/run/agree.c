/* Compares what must be the same on all ranks, by hash. If it differs, modules search for the first
 * difference and name it (differences.c). All calls are collective. */
#include "engine/run/agree.h"

#include "base/checked.h"
#include "base/hash.h"
#include "engine/modules.h"
#include "engine/run/engine_impl.h"
#include "engine/run/loop.h"

#include <string.h>

int sherdi_agree_odd(const sherdi_told *told, int world_size, size_t at)
{
    const uint64_t *first = sherdi_told_by(told, 0);

    for (int r = 1; r < world_size; r++) {
        const uint64_t *other = sherdi_told_by(told, r);

        if (other[at] != first[at]) {
            return r;
        }
    }
    return 0;
}

/* -------------------------------------------------------------- status ---- */

/* Every message with a status begins with it. */
static sherd_status peers_check(const sherd_world *world, const sherdi_told *told, const char *when)
{
    for (int r = 0; r < sherd_world_size(world); r++) {
        sherd_status status = (sherd_status) * (const uint64_t *)sherdi_told_by(told, r);

        if (status != SHERD_OK) {
            return sherdi_fail(status,
                               "%s: rank %d failed%s%s: %s; its own sherd_last_error() says more",
                               sherdi_world_caller(world), r, when == NULL ? "" : " ",
                               when == NULL ? "" : when, sherd_status_text(status));
        }
    }
    return SHERD_OK;
}

sherd_status sherdi_agree_world(sherd_world *world, sherd_status own)
{
    const sherdi_outcome here = sherdi_outcome_of(own);
    const uint64_t       mine = (uint64_t)own;
    const char          *name = sherdi_exchange_row_of(SHERDI_EXCHANGE_STATUS)->name;
    sherdi_told          told;
    sherd_status         status = sherdi_world_tell(world, &mine, sizeof(mine), name, &told);

    SHERDI_TRY(sherdi_outcome_end(&here));
    SHERDI_TRY(status);
    return peers_check(world, &told, NULL);
}

/* ----------------------------------------------------------- exchanges ---- */

sherd_status sherdi_agree_end(const sherd_engine *engine, const sherdi_outcome *own,
                              sherd_status status, const char *when)
{
    SHERDI_TRY(sherdi_outcome_end(own));
    SHERDI_TRY(status);
    return peers_check(engine->world, &engine->run.told, when);
}

sherd_status sherdi_agree_on(sherd_engine *engine, sherdi_exchange_kind kind, sherd_status own,
                             void *mine, void *all, const char *when)
{
    const sherdi_outcome here = sherdi_outcome_of(own);

    *(uint64_t *)mine       = (uint64_t)own;
    engine->exchange.status = sherdi_run_exchange(engine, kind, mine, all, NULL);
    return sherdi_agree_end(engine, &here, engine->exchange.status, when);
}

sherd_status sherdi_agree_word(sherd_engine *engine, sherdi_exchange_kind kind, sherd_status own,
                               uint64_t word, const char *when)
{
    sherdi_word_message mine = {.word = word};

    return sherdi_agree_on(engine, kind, own, &mine, NULL, when);
}

sherd_status sherdi_agree_status(sherd_engine *engine, sherd_status own)
{
    uint64_t mine;

    return engine->run.program.fn == NULL
               ? sherdi_agree_world(engine->world, own)
               : sherdi_agree_on(engine, SHERDI_EXCHANGE_STATUS, own, &mine, NULL, NULL);
}

const void *sherdi_agree_told(const sherd_engine *engine, int rank)
{
    return sherdi_told_by(&engine->run.told, rank);
}

uint64_t sherdi_agree_word_of(const sherd_engine *engine, int rank)
{
    const sherdi_word_message *message = sherdi_agree_told(engine, rank);

    return message->word;
}

uint64_t sherdi_agree_sum(const sherd_engine *engine)
{
    uint64_t sum = 0;

    for (int r = 0; r < engine->world_size; r++) {
        sum += sherdi_agree_word_of(engine, r);
    }
    return sum;
}

/* ------------------------------------------------------------ settings ---- */

_Static_assert(SHERDI_SETTINGS_MOST * sizeof(uint64_t) <= SHERDI_TOLD_BYTES,
               "a rank can tell its settings");

sherd_status sherdi_agree_settings(sherd_world *world, const sherdi_settings *settings)
{
    sherdi_named_bits list[SHERDI_SETTINGS_MOST];
    uint64_t          mine[SHERDI_SETTINGS_MOST];
    size_t            count = sherdi_settings_list(settings, list);
    sherdi_told       told;

    for (size_t i = 0; i < count; i++) {
        mine[i] = list[i].bits;
    }
    SHERDI_TRY(sherdi_world_tell(world, mine, count * sizeof(*mine), "settings", &told));
    for (size_t i = 0; i < count; i++) {
        int rank = sherdi_agree_odd(&told, sherd_world_size(world), i);

        if (rank != 0) {
            return sherdi_fail(SHERD_E_INVAL,
                               "rank %d has another value of %s than rank 0; all ranks must be "
                               "given the same configuration",
                               rank, list[i].key);
        }
    }
    return SHERD_OK;
}

/* --------------------------------------------------------------- model ---- */

uint64_t sherdi_agree_items_hash(const sherdi_model *model, size_t count)
{
    uint64_t hash = 0;

    for (size_t i = 0; i < count && i < sherdi_model_num_items(model); i++) {
        hash = sherdi_hash_u64(hash, sherdi_model_item_hash(model, i));
    }
    return hash;
}

sherd_status sherdi_agree_model_word(const sherd_engine *engine, uint64_t word,
                                     sherdi_told *told_out, int *odd_out)
{
    SHERDI_TRY(sherdi_world_tell(engine->world, &word, sizeof(word), "the model", told_out));
    *odd_out = sherdi_agree_odd(told_out, engine->world_size, 0);
    return SHERD_OK;
}

sherd_status sherdi_agree_model(const sherd_engine *engine)
{
    size_t      count = sherdi_model_num_items(&engine->model);
    sherdi_told told;
    int         rank;

    SHERDI_TRY(sherdi_agree_model_word(engine, count, &told, &rank));
    if (rank != 0) {
        return sherdi_fail(SHERD_E_INVAL,
                           "the ranks declare different models: rank 0 has %llu groups, units and "
                           "parameters, rank %d has %llu; declare the same on every rank",
                           *(const unsigned long long *)sherdi_told_by(&told, 0), rank,
                           *(const unsigned long long *)sherdi_told_by(&told, rank));
    }
    SHERDI_TRY(sherdi_agree_model_word(engine, sherdi_agree_items_hash(&engine->model, count),
                                       &told, &rank));
    if (rank == 0) {
        return SHERD_OK;
    }
    SHERDI_TRY(sherdi_modules_models_differ(engine));
    return sherdi_fail(SHERD_E_INVAL,
                       "ranks 0 and %d declare different models; declare the same on every rank",
                       rank);
}

/* ---------------------------------------------------------------- uses ---- */

sherd_status sherdi_agree_uses(sherd_engine *engine)
{
    size_t              num_units = engine->plan->layout.num_units;
    sherdi_unit_uses   *mine      = engine->exchange.own_uses;
    sherdi_uses_message message   = {.micro_seen     = (uint64_t)engine->window.micro_seen,
                                     .micro_backward = (uint64_t)engine->window.micro_backward,
                                     .call           = (uint64_t)engine->window.call};
    int                 differs   = 0;

    for (size_t u = 0; u < num_units; u++) {
        mine[u] = sherdi_unit_of(engine, (int)u)->uses;
        if (engine->plan->layout.units[u].is_open_ended) { /* ranks may acquire it differently */
            mine[u].acquired[SHERD_FORWARD]  = 0;
            mine[u].acquired[SHERD_BACKWARD] = 0;
        }
        message.uses_hash = sherdi_hash_bytes(message.uses_hash, &mine[u], sizeof(mine[u]));
    }
    SHERDI_TRY(sherdi_agree_on(engine, SHERDI_EXCHANGE_USES, SHERD_OK, &message, NULL, NULL));
    for (int r = 1; r < engine->world_size; r++) {
        differs |= memcmp(sherdi_agree_told(engine, r), sherdi_agree_told(engine, 0),
                          sizeof(message)) != 0;
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
    SHERDI_TRY(sherdi_modules_uses_differ(engine));
    return sherdi_fail(
        SHERD_E_STATE,
        "the ranks disagree about the units or the micro-batches of this window; the "
        "window was dropped, nothing was updated; " SHERDI_USUAL_CAUSE);
}
