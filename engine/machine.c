/* Finds the properties of the machine for the plan: the memory that is free on this host (of the
 * module limits) and its devices, and how many ranks share it. The ranks take the least favourable answer of all, so that
 * all make the same plan. */
#include "engine/engine.h"

#include "base/absent.h"
#include "base/checked.h"
#include "engine/modules.h"
#include "engine/run/engine_impl.h"

#include <stdlib.h>

sherd_status sherdi_machine_detect(sherd_world *world, sherdi_machine *out)
{
    const sherdi_backend *backend = sherdi_world_backend(world);
    sherdi_machine        mine    = {
                  .ranks_per_host  = sherdi_world_local_size(world),
                  .local_size      = sherdi_world_local_size(world),
                  .local_rank      = sherd_world_local_rank(world),
                  .transport_bytes = sherdi_world_held_of(world)->overhead_bytes,
                  .has_device      = backend->device->is_async,
                  .is_on_lane      = (sherdi_world_caps(world) & SHERDI_WORLD_ON_LANE) != 0,
                  .memory_bound    = -1, /* nobody has looked */
    };
    const char     *limit = getenv("SHERD_MEMORY_LIMIT");
    sherdi_messages messages;

    SHERDI_TRY(sherdi_modules_machine(world, &mine));
    *out = mine;
    if (sherdi_world_caps(world) & SHERDI_WORLD_SIMULATES) { /* it has no machine to ask */
        return SHERD_OK;
    }
    if (mine.memory_bound < 0 && limit != NULL && limit[0] != '\0') {
        return sherdi_absent("limits", "SHERD_MEMORY_LIMIT");
    }
    SHERDI_TRY(sherdi_world_tell(world, &mine, sizeof(mine), "machines of ranks", &messages));
    for (int r = 0; r < sherd_world_size(world); r++) {
        const sherdi_machine *its = sherdi_message_of(&messages, r);

        if (r == 0 || its->memory_bytes < out->memory_bytes) {
            out->memory_bytes = its->memory_bytes;
            out->memory_bound = its->memory_bound;
        }
        out->num_hosts += its->local_rank == 0;
        out->device_bytes = sherdi_min_size(out->device_bytes, its->device_bytes);
        out->device_ranks =
            its->device_ranks > out->device_ranks ? its->device_ranks : out->device_ranks;
        out->ranks_per_host =
            its->ranks_per_host > out->ranks_per_host ? its->ranks_per_host : out->ranks_per_host;
        out->transport_bytes = sherdi_max_size(out->transport_bytes, its->transport_bytes);
    }
    return SHERD_OK;
}
