/* The failure of a world, and texts about calls and ranks that all transports use. */
#include "collectives/world_impl.h"

#include "base/log.h"

#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const char *const CALL_NAMES[] = {
    [CALL_BARRIER]        = "barrier",
    [CALL_ALL_GATHER]     = "all-gather",
    [CALL_REDUCE_SCATTER] = "reduce-scatter",
    [CALL_ALL_REDUCE]     = "all-reduce",
    [CALL_BROADCAST]      = "broadcast",
    [CALL_ALLOC]          = "allocation of world memory",
    [CALL_REGROUP]        = "gathering of the ranks",
};

const char *sherdi_world_call_name(world_call_kind kind)
{
    return CALL_NAMES[kind];
}

const char *sherdi_world_call_describe(uint32_t kind, uint64_t len_bytes, const char *name,
                                       const char *caller, char text[WORLD_CALL_TEXT_BYTES])
{
    const char *behind = caller[0] == '\0' ? "" : ")";

    (void)snprintf(text, WORLD_CALL_TEXT_BYTES, "%s%s%s of %llu bytes%s%s%s", caller,
                   behind[0] == '\0' ? "" : " (",
                   kind <= CALL_REGROUP ? CALL_NAMES[kind] : "no call",
                   (unsigned long long)len_bytes, name[0] == '\0' ? "" : " of ", name, behind);
    return text;
}

void sherdi_ranks_add(char *text, size_t text_bytes, int rank)
{
    size_t at = strlen(text);

    if (snprintf(text + at, text_bytes - at, "%s%d", at > 0 ? ", " : "", rank) >=
        (int)(text_bytes - at)) {
        (void)snprintf(text + text_bytes - 5, 5, " ...");
    }
}

void sherdi_world_set_failed(sherd_world *world, sherd_status status, const char *text)
{
    int whole = WORLD_IS_WHOLE;

    if (!atomic_compare_exchange_strong(&world->failure_state, &whole, WORLD_IS_FAILING)) {
        return;
    }
    world->failure_status = status;
    (void)snprintf(world->failure_text, sizeof(world->failure_text), "%s", text);
    /* Fails the worlds that were split from this one first, so that a thread that sees this one's
     * failure also sees theirs. */
    if (world->company != NULL) {
        world->company->failed(world);
    }
    atomic_store_explicit(&world->failure_state, WORLD_HAS_FAILED, memory_order_release);
    sherdi_log(SHERD_LOG_ERROR, world->rank, "%s", text);
}

sherd_status sherdi_world_fail(sherd_world *world, sherd_status status, const char *fmt, ...)
{
    char    text[SHERDI_ERROR_BYTES];
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    sherdi_world_set_failed(world, status, text);
    status = sherdi_world_status(world); /* perhaps of an earlier failure */
    if (world->ops->abort != NULL) {
        world->ops->abort(world, world->failure_text);
    }
    return status;
}

sherd_status sherdi_world_status(sherd_world *world)
{
    if (!sherdi_world_has_failed(world)) {
        return SHERD_OK;
    }
    /* Another thread is between its two stores. It fails the worlds that were split from this one,
     * and waits for nobody. */
    while (atomic_load_explicit(&world->failure_state, memory_order_acquire) != WORLD_HAS_FAILED) {
        (void)sched_yield();
    }
    return sherdi_fail_relay(world->failure_status, world->failure_text);
}

sherd_status sherdi_world_fail_differ(sherd_world *world, int rank, const char *text, int other,
                                      const char *other_text, const char *more)
{
    return sherdi_world_fail(world, SHERD_E_INVAL,
                             "ranks disagree: rank %d calls %s, rank %d %s%s; all ranks must make "
                             "the same calls in the same order, and " SHERDI_USUAL_CAUSE
                             "; this world is lost",
                             sherdi_world_number(world, rank), text,
                             sherdi_world_number(world, other), other_text, more);
}

sherd_status sherdi_world_fail_left(sherd_world *world, int rank)
{
    int other = sherdi_world_number(world, rank);

    return sherdi_world_fail(world, SHERD_E_PEER_LOST,
                             "rank %d ended its part (sherd_world_destroy) while rank %d still "
                             "waited for it%s%s; the output of rank %d says why; where it says "
                             "nothing, " SHERDI_USUAL_CAUSE,
                             other, sherdi_world_number(world, world->rank),
                             world->running == NULL ? "" : " in ",
                             world->running == NULL ? "" : world->running, other);
}

sherd_status sherdi_world_fail_late(sherd_world *world, const char *fmt, ...)
{
    char    what[SHERDI_ERROR_BYTES / 2];
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(what, sizeof(what), fmt, args);
    va_end(args);
    return sherdi_world_fail(
        world, SHERD_E_PEER_LOST, "rank %d waited %.1f s (the time limit) for %s%s%s",
        sherdi_world_number(world, world->rank), (double)world->timeout_ns * 1e-9, what,
        world->running == NULL ? "" : " in ", world->running == NULL ? "" : world->running);
}

sherd_status sherdi_world_drop(sherd_world *world, sherd_status status)
{
    const sherdi_outcome failed = sherdi_outcome_of(status);

    world->ops->close(world);
    return sherdi_outcome_end(&failed);
}
