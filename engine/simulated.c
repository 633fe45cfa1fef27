/* The engine on a simulated world: it plans for the machine that the world stands for. */
#include "collectives/simulated.h"

#include "engine/modules.h"
#include "engine/run/engine_impl.h"

static sherd_status machine_take(sherd_world *world, sherdi_machine *machine)
{
    const sherdi_simulated *simulated = sherdi_world_simulated(world);

    if (simulated != NULL) {
        int rank     = sherd_world_rank(world);
        int size     = sherd_world_size(world);
        int per_host = simulated->ranks_per_host;
        int hosts    = (size + per_host - 1) / per_host;
        int is_last  = rank / per_host + 1 == hosts; /* of the hosts, which may have fewer ranks */

        *machine =
            (sherdi_machine){.memory_bytes   = simulated->host_bytes,
                             .ranks_per_host = per_host,
                             .num_hosts      = hosts,
                             .local_rank     = rank % per_host,
                             .local_size     = is_last ? size - (hosts - 1) * per_host : per_host,
                             .has_device     = simulated->has_device,
                             .device_bytes   = simulated->device_bytes,
                             .has_receive    = simulated->has_receive,
                             .is_on_lane     = simulated->is_on_lane};
    }
    return SHERD_OK;
}

static sherd_status device_check(sherd_engine *engine)
{
    const sherdi_simulated *simulated = sherdi_world_simulated(engine->world);

    return simulated == NULL || !simulated->has_device
               ? SHERD_OK
               : sherdi_fail(SHERD_E_NOTSUP,
                             "a simulated world of GPUs can make plans, and cannot be sealed; "
                             "simulate the backend \"cpu\" to run");
}

const sherdi_module sherdi_module_simulated = {.machine = machine_take, .check = device_check};
