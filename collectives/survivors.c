/* See survivors.h. Ranks cannot make calls on the failed world, but the memory that they share is
 * still there. Each says in the roster what it wants. When everybody has said so, or is gone, each
 * of them proposes the ranks that go on, and the first proposal holds: an atomic number says whose
 * it is. So all survivors have the same list, whoever dies meanwhile. Then they meet as ranks of a
 * new world. If one of them dies in there, the new world fails before it is complete, and they try
 * again without it. */
#include "collectives/survivors.h"

#include "base/clock.h"
#include "base/thread.h"
#include "collectives/listeners.h"
#include "collectives/procs.h"
#include "collectives/split.h"
#include "collectives/transport.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const struct timespec REST = {0, 1000000};

int sherdi_survivors_can_meet(const sherd_world *world)
{
    return strcmp(world->ops->name, "shm") == 0 &&
           atomic_load(&((const sherdi_procs *)world)->roster) != NULL;
}

/* ------------------------------------------------------------- the guard -- */

/* Looks after the ranks that meet: they have no world yet that would notice a death. Owned by the
 * rank that meets and by the world that it makes. */
typedef struct guard {
    world_listener  common; /* first */
    atomic_int      owners;
    pthread_mutex_t lock;
    sherd_world    *child; /* NULL: none yet, or it is gone */
    sherdi_roster  *roster;
    int             count, try_number;
    const uint64_t *members;
    atomic_int      is_over;
    pthread_t       thread;
} guard;

static int has_bit(const uint64_t *bits, int index)
{
    return (int)(bits[index / 64] >> (index % 64)) & 1;
}

static void guard_drop(world_listener *common)
{
    guard *g = (guard *)common;

    (void)pthread_mutex_lock(&g->lock);
    g->child = NULL;
    (void)pthread_mutex_unlock(&g->lock);
    if (atomic_fetch_sub(&g->owners, 1) == 1) {
        (void)pthread_mutex_destroy(&g->lock);
        free(g);
    }
}

static void guard_failed(sherd_world *world, world_listener *self)
{
    (void)world, (void)self;
}

static const world_listener_ops GUARD_OPS = {.failed = guard_failed, .drop = guard_drop};

static void guard_begun(void *ctx, sherd_world *child)
{
    guard *g = ctx;

    (void)atomic_fetch_add(&g->owners, 1);
    sherdi_world_listen(child, &g->common);
    (void)pthread_mutex_lock(&g->lock);
    g->child = child;
    (void)pthread_mutex_unlock(&g->lock);
}

static void guard_fail(guard *g, const char *text)
{
    (void)pthread_mutex_lock(&g->lock);
    if (g->child != NULL) {
        sherdi_world_set_failed(g->child, SHERD_E_PEER_LOST, text);
    }
    (void)pthread_mutex_unlock(&g->lock);
}

static void *guard_main(void *raw)
{
    guard *g = raw;

    while (!atomic_load(&g->is_over)) {
        for (int i = 0; i < g->count; i++) {
            if (has_bit(g->members, i) && sherdi_roster_is_dead(g->roster, i)) {
                char text[96];

                (void)snprintf(text, sizeof(text),
                               "rank %d of the world before is lost, too, while the others met", i);
                guard_fail(g, text);
            }
        }
        if (g->try_number + 1 < ROSTER_MOST_TRIES &&
            atomic_load(&g->roster->chosen[g->try_number + 1]) != 0) {
            guard_fail(g, "another rank meets without one that is gone");
        }
        (void)nanosleep(&REST, NULL);
    }
    return NULL;
}

/* Returns NULL when there is no memory, or no thread. */
static guard *guard_open(sherdi_procs *procs, const uint64_t *members, int try_number)
{
    guard *g = calloc(1, sizeof(*g));

    if (g == NULL) {
        return NULL;
    }
    g->common.ops = &GUARD_OPS;
    g->roster     = procs->roster;
    g->count      = procs->world.local_size;
    g->members    = members;
    g->try_number = try_number;
    atomic_init(&g->owners, 1);
    (void)pthread_mutex_init(&g->lock, NULL);
    if (sherdi_thread_start(&g->thread, 0, guard_main, g) != 0) {
        guard_drop(&g->common);
        return NULL;
    }
    return g;
}

static void guard_close(guard *g)
{
    atomic_store(&g->is_over, 1);
    (void)pthread_join(g->thread, NULL);
    if (atomic_fetch_sub(&g->owners, 1) == 1) {
        (void)pthread_mutex_destroy(&g->lock);
        free(g);
    }
}

/* ------------------------------------------------------------- the choice -- */

/* Returns whether a rank has ended its part in the old world, by its end or in order. */
static int is_gone(sherdi_procs *procs, int index)
{
    return atomic_load(&procs->peers.control->slots[index].has_left) ||
           sherdi_roster_is_dead(procs->roster, index);
}

/* Returns whether nothing more is to be expected of a rank: it has said what it wants, or is gone. */
static int is_settled(sherdi_procs *procs, int index)
{
    return atomic_load(&procs->roster->places[index].stand) != ROSTER_NONE || is_gone(procs, index);
}

/* Waits until all ranks are settled, somebody's proposal holds, or the time is over. */
static void all_await(sherdi_procs *procs, int try_number, int64_t deadline_ns)
{
    int index = 0;

    while (index < procs->world.local_size && sherdi_now_ns() < deadline_ns &&
           atomic_load(&procs->roster->chosen[try_number]) == 0) {
        if (is_settled(procs, index)) {
            index++;
        } else {
            (void)nanosleep(&REST, NULL);
        }
    }
}

/* Proposes those that stay, and returns the proposal that holds. */
static const uint64_t *members_choose(sherdi_procs *procs, int try_number)
{
    sherdi_roster *roster = procs->roster;
    int            count  = procs->world.local_size;
    uint64_t *mine = sherdi_roster_proposal(roster, count, try_number, procs->world.local_rank);
    int       none = 0;

    for (int i = 0; i < count; i++) {
        if (atomic_load(&roster->places[i].stand) == ROSTER_STAYS && !is_gone(procs, i)) {
            mine[i / 64] |= (uint64_t)1 << (i % 64);
        }
    }
    (void)atomic_compare_exchange_strong(&roster->chosen[try_number], &none,
                                         procs->world.local_rank + 1);
    return sherdi_roster_proposal(roster, count, try_number,
                                  atomic_load(&roster->chosen[try_number]) - 1);
}

/* ------------------------------------------------------------ the meeting -- */

static sherd_status members_meet(sherdi_procs *old, const uint64_t *members, int try_number,
                                 sherd_world **out)
{
    const job_key      key = {.words  = {old->roster->key[0], old->roster->key[1]},
                              .source = "sherd_world_shrink"};
    sherd_world_params params;
    procs_params       procs = {.world = &params, .listener = -1, .key = &key};
    char               address[96];
    guard             *g;
    sherd_status       status;

    sherdi_split_params(&old->world, &params);
    for (int i = 0; i < old->world.local_size; i++) {
        if (has_bit(members, i) && is_gone(old, i)) { /* it was in the try that came about before */
            return sherdi_fail(SHERD_E_PEER_LOST, "sherd_world_shrink: rank %d has gone, too", i);
        }
        procs.rank += i < old->world.local_rank && has_bit(members, i);
        procs.world_size += has_bit(members, i);
    }
    (void)snprintf(address, sizeof(address), "abstract:sherd-live-%016llx-%d",
                   (unsigned long long)old->meeting.session, try_number);
    procs.address = address;
    SHERDI_TRY(sherdi_meeting_limit(&params, &procs.limit_ns));
    g = guard_open(old, members, try_number);
    if (g == NULL) {
        return sherdi_fail(SHERD_E_NOMEM, "sherd_world_shrink: no memory for the survivors");
    }
    procs.begun     = guard_begun;
    procs.begun_ctx = g;
    status          = sherdi_world_shm_create(&procs, out);
    guard_close(g);
    return status;
}

static sherd_status survivors_try(sherdi_procs *procs, int try_number, int64_t deadline_ns,
                                  int *is_over, sherd_world **out)
{
    const uint64_t *members;

    all_await(procs, try_number, deadline_ns);
    members  = members_choose(procs, try_number);
    *is_over = 1;
    if (!has_bit(members, procs->world.local_rank)) {
        atomic_store(&procs->roster->places[procs->world.local_rank].stand, ROSTER_OUT);
        return sherdi_fail(SHERD_E_PEER_LOST,
                           "sherd_world_shrink: the other ranks have gone on without rank %d, "
                           "which came later than the time limit of %.1f s; end this process",
                           procs->world.rank, (double)procs->world.timeout_ns * 1e-9);
    }
    *is_over = 0;
    return members_meet(procs, members, try_number, out);
}

sherd_status sherdi_survivors_meet(sherd_world *world, int stays, sherd_world **out)
{
    sherdi_procs *procs       = (sherdi_procs *)world;
    int64_t       deadline_ns = sherdi_now_ns() + world->timeout_ns;
    sherd_status  status      = SHERD_E_PEER_LOST;
    int           is_over     = 0;

    atomic_store(&procs->roster->places[world->local_rank].stand,
                 stays ? ROSTER_STAYS : ROSTER_LEAVES);
    if (!stays) {
        return SHERD_OK;
    }
    for (int i = 0; i < ROSTER_MOST_TRIES && status != SHERD_OK && !is_over; i++) {
        status = survivors_try(procs, i, deadline_ns, &is_over, out);
    }
    return status;
}
