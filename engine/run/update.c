/* The walks over the blocks at a boundary (program_walk.c), and the exchanges of the ranks about
 * them: whether all have done the same, the sum of the fingerprints, and the norms of all tensors
 * for an optimizer that measures first. */
#include "engine/run/update.h"

#include "engine/modules.h"
#include "engine/run/agree.h"
#include "engine/run/engine_impl.h"
#include "engine/run/kernels.h"

/* Copies the sums of a walk to the host. For a fingerprint the host does not wait: see
 * sherdi_update_fingerprint. */
static sherd_status results_bring(sherd_engine *engine, sherdi_walk walk)
{
    if (walk == SHERDI_WALK_SAVE) {
        return SHERD_OK;
    }
    if (walk == SHERDI_WALK_MEASURE) {
        return sherdi_program_collect(sherdi_run_program(engine));
    }
    SHERDI_TRY(sherdi_program_fingerprint_send(sherdi_run_program(engine)));
    engine->fingerprints.has_own &= walk == SHERDI_WALK_FINGERPRINT; /* else the state is another */
    engine->fingerprints.is_sent = 1;
    return SHERD_OK;
}

sherd_status sherdi_update_walk_over(sherd_engine *engine, sherdi_walk walk)
{
    sherd_status status;

    if (sherdi_run_user(engine) == SHERDI_USER_TRAINER) {
        SHERDI_TRY(SHERDI_ASK(updater, join, engine));
    }
    engine->fingerprints.is_sent = 0;
    SHERDI_TELL(sums, walk_begin, engine, walk);
    status = SHERDI_RINGS(sherdi_rings_walk(engine, walk),
                          sherdi_program_walk(&engine->run.program, walk));
    SHERDI_TELL(sums, walk_end, engine);
    SHERDI_TELL(lanes, walk_over, engine);
    return status == SHERD_OK ? results_bring(engine, walk) : status;
}

sherd_status sherdi_update_read_fingerprint(sherd_engine *engine, uint64_t *out)
{
    if (!engine->fingerprints.is_sent) {
        SHERDI_RINGS(sherdi_run_drop_ahead(engine, SHERDI_RING_STATE), (void)0);
        SHERDI_TRY(sherdi_update_walk_over(engine, SHERDI_WALK_FINGERPRINT));
    }
    engine->fingerprints.is_sent = 0;
    SHERDI_TRY(sherdi_program_fingerprint_sent(sherdi_run_program(engine)));
    *out = engine->kernel_data.results.fingerprint;
    return SHERD_OK;
}

sherd_status sherdi_update_fingerprint(sherd_engine *engine)
{
    sherdi_fingerprints *known = &engine->fingerprints;

    if (!known->has_own) {
        SHERDI_TRY(sherdi_update_read_fingerprint(engine, &known->own));
        known->has_own = 1;
    }
    return SHERD_OK;
}

/* Makes a walk that changes state, up to its fingerprint. */
static sherd_status walk_finish(sherd_engine *engine, sherdi_walk walk)
{
    SHERDI_TRY(sherdi_update_walk_over(engine, walk));
    return sherdi_update_fingerprint(engine);
}

sherd_status sherdi_update_publish(sherd_engine *engine)
{
    sherd_status status = sherdi_program_publish(&engine->run.program);

    SHERDI_TELL(lanes, join, engine);
    return status;
}

sherd_status sherdi_update_agree(sherd_engine *engine, sherd_status status, uint64_t own,
                                 const char *when, uint64_t *out)
{
    sherdi_word_message word = {.word = own};
    void               *all  = NULL;
    void               *mine = SHERDI_IF(sums, message, (engine, own, &all), &word);

    SHERDI_TRY(sherdi_agree_on(engine, SHERDI_EXCHANGE_OUTCOME, status, mine, all, when));
    SHERDI_TRY(sherdi_modules_outcome_agreed(engine));
    *out = engine->fingerprints.frozen +
           (engine->plan->layout.is_sliced ? sherdi_agree_sum(engine, engine->plan->replica) : own);
    return SHERD_OK;
}

sherd_status sherdi_update_walk(sherd_engine *engine)
{
    SHERDI_TRY(walk_finish(engine, SHERDI_WALK_UPDATE));
    SHERDI_TRY(SHERDI_ASK(storage, commit, engine, engine->fingerprints.own));
    /* all that was filled was read */
    SHERDI_TELL(storage, verify, engine, engine->settings.offload.verify_reads);
    return SHERD_OK;
}

sherd_status sherdi_update_range(sherd_engine *engine)
{
    sherd_status status = SHERDI_RINGS(sherdi_update_commit_note(engine), SHERD_OK);

    if (status == SHERD_OK) {
        status = sherdi_update_walk(engine);
    }
    SHERDI_TRY(sherdi_update_agree(engine, status, engine->fingerprints.own,
                                   "in the middle of the update", &engine->report.fingerprint));
    SHERDI_TELL(storage, agreed, engine);
    return sherdi_update_publish(engine);
}
