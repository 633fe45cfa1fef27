/* See regroup.h. Ranks of one host come to meetings without a call of their own until all ranks do
 * so in the same meeting (peers.h). Elsewhere calls cannot be taken back, and are only counted. */
#include "collectives/regroup.h"

#include "collectives/peers.h"

#include <stdio.h>
#include <string.h>

/* Returns a rank that has failed, with its message in the mail; else one that regroups. */
static int regrouping_find(const sherdi_peers *peers)
{
    int found = -1;

    for (int i = 0; i < peers->count; i++) {
        const peers_note *note = sherdi_peers_note(peers, i);

        if (note->kind == CALL_REGROUP && (found < 0 || note->status != SHERD_OK)) {
            found = i;
        }
    }
    return found;
}

/* Ends the call in which this rank waits for another one, which makes no call until all regroup. */
static sherd_status call_end(sherdi_peers *peers)
{
    const peers_note *mine  = sherdi_peers_note(peers, peers->me);
    int               index = regrouping_find(peers);
    char              text[WORLD_CALL_TEXT_BYTES];

    (void)sherdi_peers_describe(mine, text);
    if (sherdi_peers_note(peers, index)->status != SHERD_OK) {
        return sherdi_fail(SHERD_E_STATE,
                           "rank %d has failed while rank %d waited for it in %s: %s; all ranks "
                           "must call sherd_step_discard",
                           peers->ranks[index], peers->world->rank, text,
                           (const char *)sherdi_peers_mail(peers, index));
    }
    return sherdi_fail(SHERD_E_STATE,
                       "rank %d has dropped the window (sherd_step_discard) while rank %d "
                       "waited for it in %s; all ranks must call sherd_step_discard",
                       peers->ranks[index], peers->world->rank, text);
}

/* A rank that is in a call leaves it with E_STATE; all ranks do so at this same meeting, because
 * all see the same notes. A rank that regroups gets E_AGAIN while another rank is still in a call,
 * or has only come to say that it has failed. */
sherd_status sherdi_peers_regrouped(sherdi_peers *peers)
{
    if (sherdi_peers_note(peers, peers->me)->kind != CALL_REGROUP) {
        return call_end(peers);
    }
    for (int i = 0; i < peers->count; i++) {
        const peers_note *note = sherdi_peers_note(peers, i);

        if (note->kind != CALL_REGROUP || note->status != SHERD_OK) {
            return SHERD_E_AGAIN;
        }
    }
    return SHERD_OK;
}

static sherd_status peers_regroup(sherdi_peers *peers)
{
    peers_note   note = {.kind = CALL_REGROUP};
    sherd_status status;

    do {
        status = sherdi_peers_meet_with(peers, &note, NULL, 0);
    } while (status == SHERD_E_AGAIN);
    return status;
}

/* Compares how many calls each rank has made. If they differ, the world is lost. */
static sherd_status calls_compare(sherd_world *world)
{
    uint64_t               mine = world->calls;
    uint64_t              *all  = (uint64_t *)(void *)world->sum_scratch;
    sherdi_all_gather_args args = {
        .send = &mine, .recv = all, .slice_bytes = sizeof(mine), .flags = SHERDI_COLL_HOST};

    SHERDI_TRY(world->ops->all_gather(world, &args));
    for (int r = 0; r < world->world_size; r++) {
        if (all[r] != mine) {
            return sherdi_world_fail(world, SHERD_E_STATE,
                                     "rank %d has made %llu calls in its world and rank %d %llu, "
                                     "and transport %s cannot take calls back; drop a window only "
                                     "where all ranks have acquired and released the same units",
                                     world->rank, (unsigned long long)mine, r,
                                     (unsigned long long)all[r], world->ops->name);
        }
    }
    return SHERD_OK;
}

/* Begins a call of this file: the queued calls end first. */
static sherd_status calls_end(sherd_world *world)
{
    SHERDI_TRY(sherdi_world_check_process(world));
    sherdi_world_drain(world);
    return sherdi_world_status(world);
}

/* A call that is under way between hosts cannot be taken back. */
int sherdi_world_takes_back(const sherd_world *world)
{
    return (world->ops->caps & SHERDI_WORLD_TAKES_BACK) != 0 &&
           world->local_size == world->world_size;
}

sherd_status sherdi_world_interrupt(sherd_world *world, sherd_status why, const char *text)
{
    peers_note   note = {.kind = CALL_REGROUP, .status = (int32_t)why};
    char         mail[PEERS_MAIL_BYTES];
    sherd_status status;

    SHERDI_TRY(calls_end(world));
    (void)snprintf(mail, sizeof(mail), "%s", text);
    status = sherdi_peers_meet_with(world->peers, &note, mail, strlen(mail) + 1);
    return status == SHERD_E_AGAIN ? SHERD_OK : status;
}

sherd_status sherdi_world_regroup(sherd_world *world)
{
    SHERDI_TRY(calls_end(world));
    if (world->world_size > 1 && !(world->ops->caps & SHERDI_WORLD_SIMULATES)) {
        SHERDI_TRY(sherdi_world_takes_back(world) ? peers_regroup(world->peers)
                                                  : calls_compare(world));
    }
    if (world->order != NULL) {
        world->order->ops->forget(world);
    }
    return SHERD_OK;
}
