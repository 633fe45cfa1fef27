/* See follow.h. Without an order of its own a world's calls are done when they return (tickets.c). */
#include "collectives/follow.h"

#include "collectives/world_impl.h"

sherd_status sherdi_ticket_check(sherdi_ticket ticket, sherdi_ticket issued)
{
    return ticket <= issued
               ? SHERD_OK
               : sherdi_fail(SHERD_E_INVAL, "ticket %llu was never given out; the last one is %llu",
                             (unsigned long long)ticket, (unsigned long long)issued);
}

sherd_status sherdi_world_wait(sherd_world *world, sherdi_ticket ticket)
{
    return world->order == NULL ? sherdi_ticket_check(ticket, 0)
                                : world->order->ops->wait(world, ticket);
}

sherd_status sherdi_world_follow(sherd_world *world, const sherdi_backend *lane,
                                 sherdi_ticket ticket)
{
    return world->order == NULL ? sherdi_ticket_check(ticket, 0)
                                : world->order->ops->follow(world, lane, ticket);
}

int sherdi_world_is_done(sherd_world *world, sherdi_ticket ticket)
{
    return world->order == NULL ? ticket == 0 : world->order->ops->is_done(world, ticket);
}
