/* See observed.h. */
#include "collectives/observed.h"

#include "base/clock.h"
#include "collectives/world_impl.h"

sherd_status sherdi_world_observe(sherd_world *world, const world_call *call,
                                  sherd_status (*make)(sherd_world *world, const world_call *call))
{
    const sherdi_world_timer *timer = (const sherdi_world_timer *)call->observer;
    int          is_reduction = call->kind == CALL_REDUCE_SCATTER || call->kind == CALL_ALL_REDUCE;
    int64_t      start_ns     = sherdi_now_ns();
    sherd_status status       = make(world, call);

    if (!sherdi_world_call_is_on_device(world, call) || !sherdi_world_is_on_lane(world)) {
        timer->tell(timer->ctx, is_reduction, call->what,
                    sherdi_wire_all_gather(world->world_size, call->slice_bytes), start_ns,
                    sherdi_now_ns());
    }
    return status;
}
