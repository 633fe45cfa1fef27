/* Worlds of fewer and of more ranks, made of a world: a split of one that is whole, a meeting of the
 * survivors of one that has failed, and a meeting at an address. The new world shares nothing with
 * the old one. */
#include "collectives/alone.h"
#include "collectives/procs.h"
#include "collectives/resize.h"
#include "collectives/split.h"
#include "collectives/survivors.h"
#include "collectives/threads.h"
#include "collectives/transport.h"

#include <string.h>

/* Those that are there make the world. If one more is lost before they may go on, they do so again. */
static sherd_status survivors_make(sherd_world *world, sherd_world **out)
{
    sherd_status status = SHERD_E_PEER_LOST;

    for (int n = 0; n < world->world_size && status == SHERD_E_PEER_LOST; n++) {
        sherd_world *next = NULL;

        SHERDI_TRY(sherdi_survivors_meet(world, 1, &next));
        status = sherdi_turn_claim(world, next);
        if (status == SHERD_OK) {
            *out = next;
        } else {
            const sherdi_outcome failed = sherdi_outcome_of(status);

            sherd_world_destroy(next);
            status = sherdi_outcome_end(&failed);
        }
    }
    return status;
}

/* Where a rank is lost, before the split or in it, the survivors make the world. */
static sherd_status world_end(sherd_world *world, sherd_status status, int stays, sherd_world **out)
{
    if (status != SHERD_E_PEER_LOST || !sherdi_world_has_failed(world) ||
        !sherdi_survivors_can_meet(world)) {
        return status;
    }
    return stays ? survivors_make(world, out) : sherdi_survivors_meet(world, 0, out);
}

sherd_status sherd_world_shrink(sherd_world *world, sherd_world **out)
{
    SHERDI_TRY(sherdi_api_check_out(out, "sherd_world_shrink"));
    SHERDI_TRY(sherdi_world_check_caller(world, "sherd_world_shrink"));
    return world_end(world, sherd_world_split(world, 0, world->rank, out), 1, out);
}

sherd_status sherd_world_leave(sherd_world *world)
{
    sherd_world *none = NULL;

    SHERDI_TRY(sherdi_world_check_caller(world, "sherd_world_leave"));
    return world_end(world, sherd_world_split(world, -1, world->rank, &none), 0, &none);
}

static sherd_status grow_check(const sherd_world *world, int world_size, const char *rendezvous)
{
    if (world_size <= world->world_size) {
        return sherdi_fail(SHERD_E_INVAL,
                           "sherd_world_grow: the world has %d ranks, and a world of %d is not "
                           "larger; sherd_world_shrink makes a smaller one",
                           world->world_size, world_size);
    }
    if (world->ops == &sherdi_threads_ops) {
        return sherdi_fail(SHERD_E_NOTSUP,
                           "sherd_world_grow: ranks that are threads have no address to meet at; "
                           "make the larger world with sherd_world_threads");
    }
    if (strcmp(world->ops->name, "shm") != 0 && world->ops != &sherdi_self_ops) {
        return sherdi_fail(SHERD_E_NOTSUP,
                           "sherd_world_grow: not over transport %s yet; only shm, and one rank "
                           "alone, can grow",
                           world->ops->name);
    }
    SHERDI_TRY(sherdi_api_need(rendezvous != NULL, "sherd_world_grow", "rendezvous"));
    return sherdi_net_address_check(rendezvous);
}

sherd_status sherdi_world_grow_within(sherd_world *world, int world_size, const char *rendezvous,
                                      int64_t limit_ns, sherd_world **out)
{
    sherd_world_params params;
    job_key            key;

    sherdi_split_params(world, &params);
    params.transport   = "shm";
    params.timeout_ns  = limit_ns > 0 ? limit_ns : world->timeout_ns;
    params.cpu_threads = world->ops == &sherdi_self_ops ? 0 : world->cpu_threads;
    sherdi_job_key_read(NULL, NULL, &key);
    SHERDI_TRY(sherdi_world_at(world->rank, world_size, rendezvous, &key, &params, out));
    (*out)->timeout_ns = world->timeout_ns;
    return SHERD_OK;
}

sherd_status sherd_world_grow(sherd_world *world, int world_size, const char *rendezvous,
                              sherd_world **out)
{
    SHERDI_TRY(sherdi_api_check_out(out, "sherd_world_grow"));
    SHERDI_TRY(sherdi_world_check_caller(world, "sherd_world_grow"));
    SHERDI_TRY(sherdi_world_check_process(world));
    SHERDI_TRY(grow_check(world, world_size, rendezvous));
    SHERDI_TRY(sherdi_world_status(world));
    return sherdi_world_grow_within(world, world_size, rendezvous, 0, out);
}
