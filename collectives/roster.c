/* See roster.h. */
#include "collectives/roster.h"

#include "base/random.h"

#include <errno.h>

static size_t proposal_words(int count)
{
    return ((size_t)count + 63) / 64;
}

size_t sherdi_roster_bytes(int count)
{
    return sizeof(sherdi_roster) + (size_t)count * sizeof(roster_place) +
           ROSTER_MOST_TRIES * (size_t)count * proposal_words(count) * sizeof(uint64_t);
}

void sherdi_roster_init(sherdi_roster *roster)
{
    roster->key[0] = sherdi_random_u64();
    roster->key[1] = sherdi_random_u64();
}

void sherdi_roster_enter(sherdi_roster *roster, int me)
{
    roster_place       *place = &roster->places[me];
    pthread_mutexattr_t kind;

    (void)pthread_mutexattr_init(&kind);
    (void)pthread_mutexattr_setpshared(&kind, PTHREAD_PROCESS_SHARED);
    (void)pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST);
    (void)pthread_mutex_init(&place->alive, &kind);
    (void)pthread_mutexattr_destroy(&kind);
    (void)pthread_mutex_lock(&place->alive);
    atomic_store(&place->is_held, 1);
}

void sherdi_roster_leave(sherdi_roster *roster, int me)
{
    roster_place *place = &roster->places[me];

    if (atomic_exchange(&place->is_held, 0)) {
        (void)pthread_mutex_unlock(&place->alive);
    }
}

int sherdi_roster_is_dead(sherdi_roster *roster, int index)
{
    roster_place *place = &roster->places[index];
    int           error;

    if (atomic_load(&place->is_dead) || !atomic_load(&place->is_held)) {
        return atomic_load(&place->is_dead);
    }
    error = pthread_mutex_trylock(&place->alive);
    if (error == EOWNERDEAD || error == ENOTRECOVERABLE) {
        atomic_store(&place->is_dead, 1);
    }
    if (error == EOWNERDEAD || error == 0) { /* 0: it ends properly at this moment */
        (void)pthread_mutex_unlock(&place->alive);
    }
    return error == EOWNERDEAD || error == ENOTRECOVERABLE;
}

uint64_t *sherdi_roster_proposal(sherdi_roster *roster, int count, int try_number, int index)
{
    uint64_t *all = (uint64_t *)(void *)&roster->places[count];

    return all + ((size_t)try_number * (size_t)count + (size_t)index) * proposal_words(count);
}
