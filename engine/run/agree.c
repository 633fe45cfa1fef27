/* Exchanges statuses and words between ranks. differences.c compares what they do, and names what
 * differs. All calls are collective. */
#include "engine/run/agree.h"

#include "base/checked.h"
#include "engine/run/engine_impl.h"

#include <string.h>

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
    const char          *name = sherdi_exchange_name(SHERDI_EXCHANGE_STATUS);
    sherdi_messages      messages;
    sherd_status         status = sherdi_world_tell(world, &mine, sizeof(mine), name, &messages);

    SHERDI_TRY(sherdi_outcome_end(&here));
    SHERDI_TRY(status);
    return peers_check(world, &messages, NULL);
}

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

uint64_t sherdi_agree_sum(const sherd_engine *engine, int replica)
{
    uint64_t sum = 0;

    for (int r = 0; r < engine->plan->world_size; r++) {
        sum += sherdi_agree_word_of(engine, replica * engine->plan->world_size + r);
    }
    return sum;
}
