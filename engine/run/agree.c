/* Exchanges statuses and words between ranks, and compares which units they used. differences.c
 * compares the rest, and names what differs. All calls are collective. */
#include "engine/run/agree.h"

#include "base/checked.h"
#include "base/hash.h"
#include "engine/modules.h"
#include "engine/run/engine_impl.h"
#include "engine/run/loop.h"

#include <string.h>

/* -------------------------------------------------------------- status ---- */

/* Every message with a status begins with it. */
static sherd_status peers_check(const sherd_world *world, const sherdi_messages *messages,
                                const char *when)
{
    for (int r = 0; r < sherd_world_size(world); r++) {
        sherd_status status = (sherd_status) * (const uint64_t *)sherdi_message_of(messages, r);

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
    sherdi_messages      messages;
    sherd_status         status = sherdi_world_tell(world, &mine, sizeof(mine), name, &messages);

    SHERDI_TRY(sherdi_outcome_end(&here));
    SHERDI_TRY(status);
    return peers_check(world, &messages, NULL);
}

/* ----------------------------------------------------------- exchanges ---- */

sherd_status sherdi_agree_end(const sherd_engine *engine, const sherdi_outcome *own,
                              sherd_status status, const char *when)
{
    SHERDI_TRY(sherdi_outcome_end(own));
    SHERDI_TRY(status);
    return peers_check(engine->world, &engine->run.messages, when);
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

const void *sherdi_agree_message(const sherd_engine *engine, int rank)
{
    return sherdi_message_of(&engine->run.messages, rank);
}

uint64_t sherdi_agree_word_of(const sherd_engine *engine, int rank)
{
    const sherdi_word_message *message = sherdi_agree_message(engine, rank);

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
        differs |= memcmp(sherdi_agree_message(engine, r), sherdi_agree_message(engine, 0),
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
