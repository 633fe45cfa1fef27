/* See lost.h. */
#include "engine/elastic/lost.h"

#include "base/clock.h"
#include "base/log.h"
#include "engine/checkpoint/save.h"
#include "engine/elastic/copies.h"
#include "engine/elastic/generation.h"
#include "engine/elastic/image.h"
#include "engine/modules.h"
#include "engine/run/unit_sums.h"

#include <stdio.h>
#include <string.h>

/* -------------------------------------------------------------- the state's update -- */

sherd_status sherdi_step_note(sherd_engine *engine)
{
    if (engine->elastic == NULL) { /* a dry engine */
        return SHERD_OK;
    }
    engine->elastic->step = (sherdi_step_begun){.is_open     = 1,
                                                .counters    = engine->counters,
                                                .first_micro = engine->window.first_micro,
                                                .scaler      = engine->scaler,
                                                .version     = sherdi_ledger_of(engine)->version};
    if (engine->blobs->changes != engine->elastic->noted.blob_changes) {
        sherdi_ledger_blobs_put(engine, engine->blobs);
    }
    return SHERD_OK;
}

void sherdi_step_forget(sherd_engine *engine)
{
    if (engine->elastic != NULL) {
        engine->elastic->step.is_open = 0;
    }
}

/* Whether the step that was begun is over: its window was dropped or used up, and nothing failed. */
static int is_over(const sherd_engine *engine)
{
    return engine->failure.why.status == SHERD_OK &&
           engine->window.first_micro != engine->elastic->step.first_micro;
}

/* Where training stands after the step that was begun (is_made), or before it. */
static sherdi_standing standing_of(const sherd_engine *engine, uint64_t version, int is_made)
{
    const sherdi_step_begun *step = &engine->elastic->step;
    sherdi_standing          at   = {.version = version,
                                     .step    = engine->counters.step,
                                     .skipped = engine->counters.skipped_steps,
                                     .micro   = engine->window.first_micro,
                                     .scaler  = engine->scaler};

    if (step->is_open) {
        at.step    = step->counters.step + is_made;
        at.skipped = step->counters.skipped_steps;
        at.micro   = is_made ? step->counters.micro_step : step->first_micro;
        at.scaler  = step->scaler;
    }
    return at;
}

/* Every meeting of the ranks is complete for all survivors or for none of them, and an update begins
 * after a meeting. So all survivors have made the same updates, but for replicas
 * (sherdi_lost_choose), and for one that they make together. */
static sherd_status state_find(sherd_engine *engine, sherdi_standing *out)
{
    const sherdi_step_begun *step   = &engine->elastic->step;
    sherdi_ledger           *ledger = sherdi_ledger_of(engine);
    uint64_t                 whole  = sherdi_ledger_whole(ledger);
    int                      is_made;

    if (is_over(engine)) {
        sherdi_step_forget(engine);
    }
    is_made = step->is_open && whole == step->version + 1;
    *out    = standing_of(engine, whole, is_made);
    if (is_made) {
        SHERDI_TRY(sherdi_modules_scaler_update(&out->scaler, 0));
    }
    if (whole < ledger->version && sherdi_image_bytes(engine->plan) == 0) {
        return sherdi_lost_gone(engine, "a rank is lost in the middle of an update in which the "
                                        "ranks exchange gradients or parameters");
    }
    if (engine->failure.why.status != SHERD_OK && !step->is_open) {
        return sherdi_fail(SHERD_E_STATE,
                           SHERDI_MOVE_CALL ": the state of rank %d is not whole: %s; load a "
                                            "checkpoint",
                           engine->rank, engine->failure.why.text);
    }
    return SHERD_OK;
}

sherd_status sherdi_lost_rest(sherdi_move *m)
{
    sherd_engine *engine = m->engine;

    sherdi_unit_log_lock(engine, 0);            /* rank 0 of the new world writes it */
    if (engine->phase == SHERDI_PHASE_SEALED) { /* not E_PEER_LOST, which asks for another try */
        char why[SHERDI_ERROR_BYTES];

        (void)sherdi_world_status(engine->world);
        (void)snprintf(
            why, sizeof(why),
            "a rank is lost before the first step, and its first values with it (%.200s)",
            sherd_last_error());
        return sherdi_lost_gone(engine, why);
    }
    if (engine->plan->has_generations) {
        return sherdi_generation_rest(m);
    }
    m->report.dropped_micro_batches = engine->window.micro_seen + engine->window.has_begun;
    (void)SHERDI_ASK(updater, join, engine); /* what fails in it, fails by the lost rank */
    sherdi_modules_abandon(engine);
    SHERDI_TELL(lanes, drain, engine);
    return state_find(engine, &m->hello.at);
}

/* ----------------------------------------------------------------- the lost ranks -- */

static int is_peer(const sherdi_move *m)
{
    return m->engine->settings.redundancy == SHERDI_REDUNDANCY_PEER;
}

int sherdi_lost_giver(const sherdi_move *m, int old_rank)
{
    int next = old_rank;

    do {
        next = (next + 1) % m->old_size;
    } while (m->goes[next] < 0 && next != old_rank);
    return m->goes[next];
}

const sherdi_holding *sherdi_lost_holding(const sherdi_move *m, int old_rank)
{
    return m->ghosts == NULL || m->ghosts[old_rank] == NULL ? NULL : &m->ghosts[old_rank]->holding;
}

const sherdi_blobs *sherdi_lost_blobs(const sherdi_move *m, int old_rank)
{
    return m->ghosts == NULL || m->ghosts[old_rank] == NULL ? NULL : &m->ghosts[old_rank]->blobs;
}

sherd_status sherdi_lost_gone(const sherd_engine *engine, const char *why)
{
    const struct sherdi_checkpoints *of = engine->checkpoints;

    if (of->newest[0] == '\0') {
        return sherdi_fail(SHERD_E_STATE,
                           SHERDI_MOVE_CALL ": %s, so the state is gone; this engine has neither "
                                            "saved nor loaded a checkpoint: begin again",
                           why);
    }
    return sherdi_fail(SHERD_E_STATE,
                       SHERDI_MOVE_CALL ": %s, so the state is gone; load a checkpoint into a new "
                                        "engine: the newest is %s, of step %lld, %.0f s old",
                       why, of->newest, (long long)of->newest_step,
                       (double)(sherdi_now_ns() - of->newest_ns) * 1e-9);
}

/* Opens what a lost rank has left: in the host's memory, or a second copy on this rank. */
static sherd_status ghost_find(sherdi_move *m, int old_rank, sherdi_ghost **out)
{
    sherdi_ghost *ghost;

    if (is_peer(m)) {
        *out = sherdi_copies_ghost(m->engine, old_rank);
        if (*out == NULL) {
            char why[96];

            (void)snprintf(why, sizeof(why),
                           "rank %d is lost, and its second copy was not complete", old_rank);
            return sherdi_lost_gone(m->engine, why);
        }
        sherdi_copies_join(m->engine);
        sherdi_ghost_coeffs(*out, m->engine);
        sherdi_blobs_clear(&(*out)->blobs, 1);
        return sherdi_copies_blobs(m->engine, &(*out)->blobs);
    }
    ghost = sherdi_alloc(&m->engine->mem, SHERDI_MEM_CONTROL, sizeof(*ghost));
    if (ghost == NULL) {
        return SHERD_E_NOMEM;
    }
    m->own_ghosts[old_rank] = ghost;
    SHERDI_TRY(sherdi_ghost_open_shared(ghost, m->engine, old_rank));
    *out = ghost;
    return sherdi_ledger_blobs_get(sherdi_ledger_memory_of(m->engine, old_rank), &ghost->blobs);
}

static sherd_status lost_take(sherdi_move *m, int old_rank)
{
    sherdi_ghost *ghost = NULL;
    const char   *was;

    SHERDI_TRY(ghost_find(m, old_rank, &ghost));
    SHERDI_TRY(sherdi_ghost_roll(ghost, m->hello.at.version, &was));
    m->ghosts[old_rank] = ghost;
    sherdi_log(SHERD_LOG_INFO, m->engine->rank,
               "rank %d acts for rank %d, which is lost; its state was found %s", m->engine->rank,
               old_rank, was);
    return SHERD_OK;
}

static sherd_status gone_fail(const sherdi_move *m)
{
    char why[256]  = "";
    char lost[128] = "";

    for (int r = 0; r < m->old_size; r++) {
        size_t len = strlen(lost);

        if (m->goes[r] < 0) {
            (void)snprintf(lost + len, sizeof(lost) - len, "%s%d", len > 0 ? ", " : "", r);
        }
    }
    (void)snprintf(why, sizeof(why), "rank %s is lost, and %s", lost,
                   is_peer(m) ? "the rank behind it, which had its second copy, is lost, too"
                              : "nothing else has what it had (sherd.redundancy)");
    return sherdi_lost_gone(m->engine, why);
}

/* Whether the rank behind a lost one, which has its copy, is lost, too. */
static int has_lost_pair(const sherdi_move *m)
{
    int has = 0;

    for (int r = 0; r < m->old_size; r++) {
        has |= m->goes[r] < 0 && m->goes[(r + 1) % m->old_size] < 0;
    }
    return has;
}

int sherdi_lost_replicas_keep(const sherdi_move *m)
{
    const sherdi_plan *plan = m->engine->plan;
    int                kept = 1;

    for (int r = 0; r < plan->world_size; r++) {
        int givers = 0;

        for (int k = 0; k < plan->num_replicas; k++) {
            givers += m->gives[k * plan->world_size + r] >= 0;
        }
        kept = kept && givers > 0;
    }
    return kept;
}

/* Lets the ranks give that are at an update. */
static void givers_set(sherdi_move *m, const sherdi_messages *messages, uint64_t version)
{
    for (int r = 0; r < m->old_size; r++) {
        m->gives[r] = -1;
    }
    for (int r = m->new_size - 1; r >= 0; r--) {
        const sherdi_move_hello *its = sherdi_message_of(messages, r);

        if (its->at.version == version) {
            m->gives[its->old_rank] = r;
            m->hello                = *its;
        }
    }
}

/* An update that the ranks make together counts if all have made it, also the lost ones; else all undo
 * it. The survivors tell each other what they see: a rank that is late, and not dead, may still write
 * its ledger. */
static sherd_status together_choose(sherdi_move *m)
{
    uint64_t        said  = m->hello.at.version; /* by the first survivor */
    uint64_t        least = sherdi_ledger_whole(sherdi_ledger_of(m->engine));
    sherdi_messages messages;

    for (int r = 0; r < m->old_size; r++) {
        m->gives[r] = m->goes[r];
        if (m->goes[r] < 0) {
            const void *memory = sherdi_ledger_memory_of(m->engine, r);
            uint64_t    whole  = sherdi_ledger_whole((sherdi_ledger *)(uintptr_t)memory);

            least = whole < least ? whole : least;
        }
    }
    SHERDI_TRY(sherdi_world_tell(m->new_world, &least, sizeof(least), SHERDI_MOVE_CALL, &messages));
    for (int r = 0; r < m->new_size; r++) {
        uint64_t its;

        memcpy(&its, sherdi_message_of(&messages, r), sizeof(its));
        least = its < least ? its : least;
    }
    if (least < said) {
        m->hello.at      = standing_of(m->engine, least, 0);
        m->hello.samples = sherdi_samples_at(m->engine, m->hello.at.micro);
    }
    return SHERD_OK;
}

/* All ranks agree on an update before any of them makes it. But where an optimizer then measures
 * first, the ranks of a replica add that up among themselves: a replica that has lost a rank there
 * does not make the update, and another one does. Training goes on with the update if those that have
 * made it have everything, else without it. */
sherd_status sherdi_lost_choose(sherdi_move *m, const sherdi_messages *messages)
{
    uint64_t least = UINT64_MAX;
    uint64_t most  = 0;

    if (sherdi_image_bytes(m->engine->plan) > 0) {
        return together_choose(m);
    }
    for (int r = 0; r < m->new_size; r++) {
        const sherdi_move_hello *its = sherdi_message_of(messages, r);

        least = its->at.version < least ? its->at.version : least;
        most  = its->at.version > most ? its->at.version : most;
    }
    givers_set(m, messages, most);
    if (least < most && !sherdi_lost_replicas_keep(m)) {
        givers_set(m, messages, least);
    }
    return least == most || m->engine->plan->num_replicas > 1
               ? SHERD_OK
               : sherdi_fail(SHERD_E_STATE,
                             SHERDI_MOVE_CALL
                             ": the survivors are at updates %llu and %llu; load a "
                             "checkpoint into a new engine",
                             (unsigned long long)least, (unsigned long long)most);
}

sherd_status sherdi_lost_open(sherdi_move *m)
{
    sherd_engine *engine = m->engine;

    if (sherdi_image_bytes(engine->plan) > 0 &&
        sherdi_ledger_of(engine)->version > m->hello.at.version) {
        if (!engine->elastic->step.is_open) { /* what the step began with is forgotten */
            return sherdi_lost_gone(engine, "a rank is lost in an update that was over elsewhere");
        }
        SHERDI_TRY(sherdi_ledger_undo(engine, 1));
    }
    if (!engine->plan->layout.is_sliced || sherdi_lost_replicas_keep(m)) {
        return SHERD_OK;
    }
    if (sherdi_keeps_nothing(&engine->settings) || (is_peer(m) && has_lost_pair(m))) {
        return gone_fail(m);
    }
    m->ghosts     = sherdi_alloc_array(&engine->mem, SHERDI_MEM_CONTROL, (size_t)m->old_size,
                                       sizeof(*m->ghosts));
    m->own_ghosts = sherdi_alloc_array(&engine->mem, SHERDI_MEM_CONTROL, (size_t)m->old_size,
                                       sizeof(*m->own_ghosts));
    if (m->ghosts == NULL || m->own_ghosts == NULL) {
        return SHERD_E_NOMEM;
    }
    for (int r = 0; r < m->old_size; r++) {
        if (m->goes[r] < 0 && sherdi_lost_giver(m, r) == sherd_world_rank(m->new_world)) {
            SHERDI_TRY(lost_take(m, r));
        }
    }
    return SHERD_OK;
}

void sherdi_lost_close(sherdi_move *m)
{
    for (int r = 0; m->own_ghosts != NULL && r < m->old_size; r++) {
        if (m->own_ghosts[r] != NULL) {
            sherdi_ghost_close(m->own_ghosts[r]);
            sherdi_free(m->own_ghosts[r]);
        }
    }
    sherdi_free(m->ghosts);
    sherdi_free(m->own_ghosts);
    m->ghosts     = NULL;
    m->own_ghosts = NULL;
}
