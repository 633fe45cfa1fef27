/* Finds the properties of the machine for the plan: the memory that is free on this host and its
 * devices, and how many ranks share it. The ranks take the least favourable answer of all, so that
 * all make the same plan. */
#include "engine/machine.h"

#include "base/checked.h"
#include "engine/modules.h"
#include "engine/run/agree.h"
#include "engine/run/engine_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

size_t sherdi_machine_number(const char *path, const char *label)
{
    char   line[256];
    size_t value = SIZE_MAX;
    FILE  *file  = fopen(path, "r");

    if (file == NULL) {
        return SIZE_MAX;
    }
    while (fgets(line, sizeof(line), file) != NULL) {
        if (strncmp(line, label, strlen(label)) == 0 &&
            sscanf(line + strlen(label), "%zu", &value) == 1) {
            break;
        }
    }
    (void)fclose(file);
    return value;
}

/* Gives the limit that the environment sets; SIZE_MAX: it sets none. */
static sherd_status limit_given(size_t *out)
{
    const char        *text = getenv("SHERD_MEMORY_LIMIT");
    unsigned long long bytes;
    char              *end;

    *out = SIZE_MAX;
    if (text == NULL || text[0] == '\0') {
        return SHERD_OK;
    }
    bytes = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || bytes == 0) {
        return sherdi_fail(SHERD_E_INVAL,
                           "SHERD_MEMORY_LIMIT is \"%s\", not a number of bytes from 1 on", text);
    }
    *out = bytes > SIZE_MAX ? SIZE_MAX : (size_t)bytes;
    return SHERD_OK;
}

sherd_status sherdi_machine_free_memory(size_t *out, sherdi_memory_bound *bound_out)
{
    size_t kib   = sherdi_machine_number("/proc/meminfo", "MemAvailable:");
    size_t all[] = {[SHERDI_BOUND_HOST]     = kib > SIZE_MAX / 1024 ? SIZE_MAX : kib * 1024,
                    [SHERDI_BOUND_GROUP]    = SIZE_MAX,
                    [SHERDI_BOUND_PROCESS]  = SIZE_MAX,
                    [SHERDI_BOUND_VARIABLE] = SIZE_MAX};
    int    least = SHERDI_BOUND_HOST;

    sherdi_modules_memory_bounds(all);
    SHERDI_TRY(limit_given(&all[SHERDI_BOUND_VARIABLE]));
    for (int bound = 0; bound <= SHERDI_BOUND_VARIABLE; bound++) {
        least = all[bound] < all[least] ? bound : least;
    }
    *out       = all[least] == SIZE_MAX ? 0 : sherdi_max_size(all[least], 1);
    *bound_out = (sherdi_memory_bound)least;
    return SHERD_OK;
}

sherd_status sherdi_machine_detect(sherd_world *world, sherdi_machine *out)
{
    const sherdi_simulated *simulated = sherdi_world_simulated(world);
    const sherdi_backend   *backend   = sherdi_world_backend(world);
    sherdi_machine          mine      = {
                      .ranks_per_host  = sherdi_world_local_size(world),
                      .transport_bytes = sherdi_world_overhead_bytes(world),
                      .has_device      = backend->device->is_async,
                      .device_bytes    = backend->device->free_bytes(backend, NULL),
                      .is_on_lane      = (sherdi_world_caps(world) & SHERDI_WORLD_ON_LANE) != 0,
    };
    sherdi_told told;

    if (simulated != NULL) {
        *out = (sherdi_machine){.memory_bytes   = simulated->host_bytes,
                                .ranks_per_host = simulated->ranks_per_host,
                                .has_device     = simulated->has_device,
                                .device_bytes   = simulated->device_bytes,
                                .has_receive    = simulated->has_receive,
                                .is_on_lane     = simulated->is_on_lane};
        return SHERD_OK;
    }
    SHERDI_TRY(sherdi_agree_world(
        world, sherdi_machine_free_memory(&mine.memory_bytes, &mine.memory_bound)));
    SHERDI_TRY(sherdi_modules_machine(world, &mine));
    SHERDI_TRY(sherdi_world_tell(world, &mine, sizeof(mine), "machines of ranks", &told));
    *out = mine;
    for (int r = 0; r < sherd_world_size(world); r++) {
        const sherdi_machine *its = sherdi_told_by(&told, r);

        if (r == 0 || its->memory_bytes < out->memory_bytes) {
            out->memory_bytes = its->memory_bytes;
            out->memory_bound = its->memory_bound;
        }
        out->device_bytes = sherdi_min_size(out->device_bytes, its->device_bytes);
        out->ranks_per_host =
            its->ranks_per_host > out->ranks_per_host ? its->ranks_per_host : out->ranks_per_host;
        out->transport_bytes = sherdi_max_size(out->transport_bytes, its->transport_bytes);
    }
    return SHERD_OK;
}
