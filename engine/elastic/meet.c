/* How the ranks of a move come together. Every rank of the old world says there where it goes, and
 * every rank of the new world says there where it comes from. What they learn decides who takes
 * part, and the batch. */
#include "engine/elastic/lost.h"

#include "engine/run/agree.h"

#include <string.h>

typedef struct goes_message {
    uint64_t status;
    int32_t  new_rank, new_size; /* -1 and 0: it leaves */
} goes_message;

/* Every rank of the old world says where it goes. */
static sherd_status goes_tell(sherdi_move *m, sherd_status here)
{
    const sherdi_outcome own  = sherdi_outcome_of(here);
    const goes_message   mine = {.status   = (uint64_t)here,
                                 .new_rank = sherd_world_rank(m->new_world),
                                 .new_size = sherd_world_size(m->new_world)};
    sherdi_messages      messages;
    sherd_status         status;
    int                  stay = 0;

    status = sherdi_world_tell(m->old_world, &mine, sizeof(mine), SHERDI_MOVE_CALL, &messages);
    SHERDI_TRY(sherdi_outcome_end(&own));
    SHERDI_TRY(status);
    for (int r = 0; r < m->old_size; r++) {
        const goes_message *its = sherdi_message_of(&messages, r);

        if (its->status != SHERD_OK) {
            return sherdi_fail((sherd_status)its->status,
                               SHERDI_MOVE_CALL
                               ": rank %d failed: %s; its own sherd_last_error() says more",
                               r, sherd_status_text((sherd_status)its->status));
        }
    }
    for (int r = 0; r < m->old_size; r++) {
        const goes_message *its = sherdi_message_of(&messages, r);

        m->goes[r]  = its->new_size > 0 ? its->new_rank : -1;
        m->new_size = its->new_size > m->new_size ? its->new_size : m->new_size;
        stay += its->new_size > 0;
    }
    for (int r = 0; r < m->old_size; r++) {
        const goes_message *its = sherdi_message_of(&messages, r);

        if (its->new_size != 0 && its->new_size != m->new_size) {
            return sherdi_fail(SHERD_E_INVAL,
                               SHERDI_MOVE_CALL
                               ": rank %d moves to a world of %d ranks, and another to one of "
                               "%d; all that go on move to the same world",
                               r, its->new_size, m->new_size);
        }
    }
    m->hello.num_stay = stay;
    if (stay == 0) {
        return sherdi_fail(SHERD_E_INVAL,
                           SHERDI_MOVE_CALL ": all %d ranks leave; the state would be lost",
                           m->old_size);
    }
    if (stay < m->old_size && stay != m->new_size) {
        return sherdi_fail(SHERD_E_INVAL,
                           SHERDI_MOVE_CALL
                           ": %d of %d ranks go on, and the new world has %d; let ranks leave "
                           "in one move, and newcomers come in another one",
                           stay, m->old_size, m->new_size);
    }
    return SHERD_OK;
}

/* The old world has failed: whoever is not in the new one is lost. */
static sherd_status lost_find(sherdi_move *m, const sherdi_messages *messages)
{
    for (int r = 0; r < m->old_size; r++) {
        m->goes[r] = -1;
    }
    m->report.lost_size = m->old_size - m->new_size;
    for (int r = 0; r < m->new_size; r++) {
        const sherdi_move_hello *its = sherdi_message_of(messages, r);

        if (!its->is_lost || its->old_rank < 0) {
            return sherdi_fail(SHERD_E_INVAL,
                               SHERDI_MOVE_CALL ": rank %d of the new world is no survivor of the "
                                                "world that has failed; let newcomers come in "
                                                "another move",
                               r);
        }
        m->goes[its->old_rank] = r;
    }
    return sherdi_lost_choose(m, messages);
}

/* Every rank of the new world says where it comes from; all take what the first that stays says. */
static sherd_status hello_tell(sherdi_move *m, sherd_status here)
{
    sherd_engine        *engine = m->engine;
    const sherdi_outcome own    = sherdi_outcome_of(here);
    sherdi_move_hello    mine   = m->hello;
    sherdi_messages      messages;
    sherd_status         status;
    int                  root = -1;
    int                  stay = 0;

    mine.status    = (uint64_t)here;
    mine.old_rank  = m->old_world == NULL ? -1 : engine->rank;
    mine.old_size  = m->old_size;
    mine.batch     = engine->settings.batch;
    mine.samples   = sherdi_samples_at(engine, mine.at.micro);
    mine.frozen    = engine->fingerprints.frozen;
    mine.old_bytes = m->old_world == NULL ? 0 : sherdi_move_given_back(engine->plan);
    memcpy(mine.run_text, engine->identity.run_text, sizeof(mine.run_text));
    status = sherdi_world_tell(m->new_world, &mine, sizeof(mine), SHERDI_MOVE_CALL, &messages);
    SHERDI_TRY(sherdi_outcome_end(&own));
    SHERDI_TRY(status);
    for (int r = 0; r < m->new_size; r++) {
        const sherdi_move_hello *its = sherdi_message_of(&messages, r);

        if (its->status != SHERD_OK) {
            return sherdi_fail((sherd_status)its->status,
                               SHERDI_MOVE_CALL ": rank %d of the new world failed: %s; its own "
                                                "sherd_last_error() says more",
                               r, sherd_status_text((sherd_status)its->status));
        }
        root         = root < 0 && its->old_rank >= 0 ? r : root;
        m->stayed[r] = its->old_rank;
        m->is_lost |= its->is_lost;
        m->old_bytes += (size_t)its->old_bytes;
        stay += its->old_rank >= 0;
    }
    if (root < 0) {
        return sherdi_fail(SHERD_E_INVAL, SHERDI_MOVE_CALL
                           ": no rank of the new world has the state; at least one has to "
                           "come from a world in which the engine trains");
    }
    m->hello    = *(const sherdi_move_hello *)sherdi_message_of(&messages, root);
    m->old_size = m->hello.old_size;
    if (m->is_lost) {
        return lost_find(m, &messages);
    }
    if (stay != m->hello.num_stay) {
        return sherdi_fail(SHERD_E_INVAL,
                           SHERDI_MOVE_CALL
                           ": %d ranks of the old world go on, and %d of them are in the new "
                           "world; give all of them the same world",
                           m->hello.num_stay, stay);
    }
    for (int r = 0; r < m->new_size; r++) {
        const sherdi_move_hello *its = sherdi_message_of(&messages, r);

        if (its->batch.micro_batch_size != m->hello.batch.micro_batch_size) {
            return sherdi_fail(
                SHERD_E_INVAL,
                SHERDI_MOVE_CALL ": rank %d has a micro-batch of %d, and rank %d of %d; all "
                                 "ranks need the same configuration",
                r, its->batch.micro_batch_size, root, m->hello.batch.micro_batch_size);
        }
    }
    return SHERD_OK;
}

/* Decides who takes part, and the batch of the new layout. */
static void union_choose(sherdi_move *m)
{
    m->all   = m->old_world != NULL && m->new_size < m->old_size && !m->is_lost ? m->old_world
                                                                                : m->new_world;
    m->batch = sherdi_move_batch(&m->hello.batch, m->new_size);
}

static sherd_status lists_make(sherdi_move *m)
{
    sherdi_mem *mem = &m->engine->mem;

    m->new_size = sherd_world_size(m->new_world);
    if (m->old_world != NULL) {
        m->goes  = sherdi_alloc_array(mem, SHERDI_MEM_CONTROL, (size_t)m->old_size, sizeof(int));
        m->gives = sherdi_alloc_array(mem, SHERDI_MEM_CONTROL, (size_t)m->old_size, sizeof(int));
        if (m->goes == NULL || m->gives == NULL) {
            return SHERD_E_NOMEM;
        }
    }
    if (m->new_world != NULL) {
        m->stayed = sherdi_alloc_array(mem, SHERDI_MEM_CONTROL, (size_t)m->new_size, sizeof(int));
        if (m->stayed == NULL) {
            return SHERD_E_NOMEM;
        }
    }
    return SHERD_OK;
}

/* Brings the ranks of the old world together, and ends what is under way there. If a rank is lost in
 * that world, this one goes on with the survivors. */
static sherd_status old_meet(sherdi_move *m)
{
    const sherd_status   made = lists_make(m);
    const sherdi_outcome own  = sherdi_outcome_of(made);
    sherd_status         status;

    if (m->old_world == NULL) {
        return made;
    }
    status = sherdi_move_rest(m);
    status = status == SHERD_OK ? sherdi_outcome_end(&own) : status;
    if (sherdi_world_status(m->old_world) == SHERD_OK) {
        status = goes_tell(m, status);
    }
    m->is_lost = sherdi_world_status(m->old_world) != SHERD_OK;
    if (m->is_lost) {
        m->hello.is_lost = 1;
        status           = sherdi_lost_rest(m);
        status           = status == SHERD_OK ? sherdi_outcome_end(&own) : status;
    }
    return status;
}

/* After a failure in the old world its ranks come to the new one only where others may wait. */
sherd_status sherdi_move_meet(sherdi_move *m)
{
    int          has_newcomers;
    sherd_status here;

    m->hello.num_stay = m->old_size;
    here              = old_meet(m);
    has_newcomers =
        m->is_lost || m->old_world == NULL || sherd_world_size(m->new_world) > m->hello.num_stay;
    if (m->new_world != NULL && (here == SHERD_OK || has_newcomers)) {
        here = hello_tell(m, here);
    }
    if (here == SHERD_OK && (m->new_world != NULL || !m->is_lost)) {
        union_choose(m);
    }
    return here;
}
