/* Ranks that are threads of one process. The control block and the memory of the group are ordinary
 * pages of the process, counted by reference, so a rank's memory stays readable until its peers
 * have dropped it too. The algorithms are in peers.c. */
#include "collectives/threads.h"

#include "base/checked.h"
#include "base/log.h"

#include <stdlib.h>
#include <sys/mman.h>

/* Pages that all ranks share; each rank is an owner. */
struct thread_pages {
    atomic_int     owners;
    size_t         len_bytes;
    unsigned char *base;
};

static sherd_status pages_create(size_t len_bytes, int owners, thread_pages **out)
{
    thread_pages *pages = calloc(1, sizeof(*pages));

    if (pages == NULL) {
        return sherdi_fail(SHERD_E_NOMEM, "no memory for a segment's handle");
    }
    pages->base = sherdi_pages_map(len_bytes, 0);
    if (pages->base == NULL) {
        free(pages);
        return SHERD_E_NOMEM;
    }
    pages->len_bytes = len_bytes;
    atomic_init(&pages->owners, owners);
    *out = pages;
    return SHERD_OK;
}

static void pages_drop(thread_pages *pages, int owners)
{
    if (pages != NULL && atomic_fetch_sub(&pages->owners, owners) == owners) {
        (void)munmap(pages->base, pages->len_bytes);
        free(pages);
    }
}

void sherdi_threads_group_drop(thread_group *group, int owners)
{
    if (group != NULL && atomic_fetch_sub(&group->owners, owners) == owners) {
        if (group->shared != NULL) {
            (void)munmap(group->shared, sherdi_peers_shared_bytes(group->world_size));
        }
        (void)pthread_mutex_destroy(&group->lock);
        free(group->worlds);
        free(group);
    }
}

static void group_set_world(thread_group *group, int rank, sherd_world *world)
{
    (void)pthread_mutex_lock(&group->lock);
    group->worlds[rank] = world;
    (void)pthread_mutex_unlock(&group->lock);
}

/* --------------------------------------------------------------- hooks -- */

static thread_group *group_of(const sherd_world *world)
{
    return ((const thread_world *)world)->group;
}

static sherd_status threads_make(sherdi_peers *peers, size_t len_bytes)
{
    return pages_create(len_bytes, peers->count, &group_of(peers->world)->pending);
}

static void threads_unmake(sherdi_peers *peers)
{
    pages_drop(group_of(peers->world)->pending, peers->count);
}

static sherd_status threads_take(sherdi_peers *peers, size_t len_bytes, unsigned char **base_out,
                                 void **handle_out)
{
    thread_pages *pages = group_of(peers->world)->pending;

    (void)len_bytes;
    *base_out   = pages->base;
    *handle_out = pages;
    return SHERD_OK;
}

static void threads_drop(sherdi_peers *peers, unsigned char *base, size_t len_bytes, void *handle)
{
    (void)peers;
    (void)base;
    (void)len_bytes;
    pages_drop(handle, 1);
}

static const peers_hooks THREADS_HOOKS = {
    .make   = threads_make,
    .unmake = threads_unmake,
    .take   = threads_take,
    .drop   = threads_drop,
};

/* ------------------------------------------------ functions of the table -- */

static void threads_close(sherd_world *world)
{
    thread_world *self = (thread_world *)world;

    group_set_world(self->group, world->rank, NULL);
    sherdi_peers_leave(&self->peers);
    if (world->device != NULL) {
        world->device->ops->peers->close(&self->peers);
    }
    sherdi_peers_fini(&self->peers);
    sherdi_world_fini(world);
    sherdi_threads_group_drop(self->group, 1);
    free(self);
}

static void threads_abort(sherd_world *world, const char *why)
{
    thread_group *group = group_of(world);

    (void)pthread_mutex_lock(&group->lock);
    for (int r = 0; r < group->world_size; r++) {
        if (group->worlds[r] != NULL) { /* this one has failed already */
            sherdi_world_set_failed(group->worlds[r], world->failure_status, why);
        }
    }
    (void)pthread_mutex_unlock(&group->lock);
    sherdi_peers_wake(&((thread_world *)world)->peers);
}

const sherdi_world_ops sherdi_threads_ops = {
    .struct_size    = sizeof(sherdi_threads_ops),
    .name           = "threads",
    .caps           = SHERDI_WORLD_TAKES_BACK | SHERDI_WORLD_SHARES_MEMORY | SHERDI_WORLD_ON_LANE,
    .close          = threads_close,
    .alloc          = sherdi_peers_alloc,
    .free           = sherdi_peers_free,
    .barrier        = sherdi_peers_barrier,
    .all_gather     = sherdi_peers_all_gather,
    .reduce_scatter = sherdi_peers_reduce_scatter,
    .all_reduce     = sherdi_peers_all_reduce,
    .broadcast      = SHERDI_PEERS_BROADCAST,
    .abort          = threads_abort,
    .tell_ending    = SHERDI_THREADS_TELL_ENDING,
};

sherd_status sherdi_threads_rank_create(thread_group *group, const thread_params *params)
{
    thread_world *self = calloc(1, sizeof(*self));
    int           rank = params->rank;
    sherd_status  status;

    if (self == NULL) {
        sherdi_threads_group_drop(group, 1);
        return sherdi_fail(SHERD_E_NOMEM, "no memory for the world of rank %d", rank);
    }
    sherdi_world_init(&self->world, &sherdi_threads_ops, rank, group->world_size, params->world);
    self->group = group;
    if (params->split != NULL) {
        params->adopt(params->split, &self->world);
    }
    status = sherdi_peers_init(&self->peers, &self->world, &THREADS_HOOKS, group->world_size, rank,
                               NULL, group->shared);
    if (status == SHERD_OK) {
        status = sherdi_world_equip(&self->world, params->world, rank, group->world_size);
    }
    if (status == SHERD_OK && self->world.device != NULL) {
        status =
            self->world.device->ops->peers->open(&self->peers, &group->readers, params->is_spread);
    }
    if (status != SHERD_OK) {
        return sherdi_world_drop(&self->world, status);
    }
    group_set_world(group, rank, &self->world);
    return SHERD_OK;
}

sherd_status sherdi_threads_group_create(int world_size, int owners, thread_group **out)
{
    thread_group *group = calloc(1, sizeof(*group));

    if (group == NULL) {
        return sherdi_fail(SHERD_E_NOMEM, "no memory for a group of %d threads", world_size);
    }
    atomic_init(&group->owners, owners);
    (void)pthread_mutex_init(&group->lock, NULL);
    group->world_size = world_size;
    group->worlds     = calloc((size_t)world_size, sizeof(*group->worlds));
    if (group->worlds == NULL) {
        (void)sherdi_fail(SHERD_E_NOMEM, "no memory for a group of %d threads", world_size);
    } else {
        group->shared = sherdi_pages_map(sherdi_peers_shared_bytes(world_size), 0);
    }
    if (group->shared == NULL) {
        sherdi_threads_group_drop(group, owners);
        return SHERD_E_NOMEM;
    }
    *out = group;
    return SHERD_OK;
}

/* Creates the worlds of all ranks, or none. */
static sherd_status ranks_create(thread_group *group, const sherd_world_params *params,
                                 sherd_world **worlds_out)
{
    const world_device_ops *devices = SHERDI_WORLD_DEVICES;
    thread_params           rank    = {.world = params};
    sherd_status            status  = SHERD_OK;

    rank.is_spread = devices != NULL && devices->peers->is_spread(params, group->world_size);
    for (; rank.rank < group->world_size && status == SHERD_OK; rank.rank++) {
        (void)atomic_fetch_add(&group->owners, 1);
        status = sherdi_threads_rank_create(group, &rank);
    }
    for (int r = 0; r < group->world_size; r++) {
        if (status != SHERD_OK) {
            sherd_world_destroy(group->worlds[r]);
            continue;
        }
        if (rank.is_spread) {
            devices->peers->reach(group->worlds, group->world_size, r);
        }
        worlds_out[r] = group->worlds[r];
    }
    return status;
}

sherd_status sherdi_threads_create(int world_size, const sherd_world_params *params,
                                   sherd_world **worlds_out)
{
    thread_group *group = NULL;
    sherd_status  status;

    if (world_size < 1 || world_size > 4096) {
        return sherdi_fail(SHERD_E_INVAL, "a world of %d threads cannot be; it has 1 to 4096",
                           world_size);
    }
    SHERDI_TRY(sherdi_threads_group_create(world_size, 1, &group));
    status = ranks_create(group, params, worlds_out);
    sherdi_threads_group_drop(group, 1);
    return status;
}

/* ------------------------------------------------------- the public call -- */

sherd_status sherd_world_threads(int world_size, sherd_world **worlds_out)
{
    SHERDI_TRY(sherdi_api_check_out(worlds_out, "sherd_world_threads"));
    return SHERDI_WORLD_THREADS(world_size, &sherdi_world_standard, worlds_out);
}
