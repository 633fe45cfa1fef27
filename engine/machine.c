/* Finds the properties of the machine for the plan: the memory that is free on this host and its
 * devices, and how many ranks share it. The ranks take the least favourable answer of all, so that
 * all make the same plan. */
#include "engine/machine.h"

#include "base/checked.h"
#include "engine/run/agree.h"
#include "engine/run/engine_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

/* Returns the first number of a file after a label; SIZE_MAX: there is none ("max" in a cgroup). */
static size_t file_number(const char *path, const char *label)
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

/* The files of a control group, by version. */
typedef struct group_files {
    const char *limit, *used, *cache_label;
} group_files;

static const group_files GROUP_FILES[] = {
    {"memory.max", "memory.current", "inactive_file "},
    {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "},
};

static size_t group_number(const char *folder, const char *file, const char *label)
{
    char path[512];

    (void)snprintf(path, sizeof(path), "%s/%s", folder, file);
    return file_number(path, label);
}

size_t sherdi_machine_group_left(const char *folder)
{
    size_t left = SIZE_MAX;

    for (size_t i = 0; i < sizeof(GROUP_FILES) / sizeof(GROUP_FILES[0]); i++) {
        const group_files *files = &GROUP_FILES[i];
        size_t             limit = group_number(folder, files->limit, "");
        size_t             used  = group_number(folder, files->used, "");
        size_t             cache = group_number(folder, "memory.stat", files->cache_label);

        if (limit == SIZE_MAX || used == SIZE_MAX) {
            continue;
        }
        used -= cache < used ? cache : 0; /* SIZE_MAX: not known, and then not subtracted */
        left = sherdi_min_size(left, limit > used ? limit - used : 0);
    }
    return left;
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

/* Returns the remaining bytes in the group of this process, under the folder of its cgroup version,
 * and in that folder itself: in a container the folder shows the container's own group. */
static size_t own_group_left(void)
{
    size_t left = sherdi_min_size(sherdi_machine_group_left("/sys/fs/cgroup"),
                                  sherdi_machine_group_left("/sys/fs/cgroup/memory"));
    FILE  *file = fopen("/proc/self/cgroup", "r");
    char   line[512];

    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        const char *path = strchr(line, ':') == NULL ? NULL : strchr(strchr(line, ':') + 1, ':');
        char        folder[640];

        if (path == NULL) {
            continue;
        }
        line[strcspn(line, "\n")] = '\0';
        if (strncmp(line, "0::", 3) == 0 || strstr(line, ":memory:") != NULL) {
            (void)snprintf(folder, sizeof(folder), "/sys/fs/cgroup%s%s",
                           line[0] == '0' ? "" : "/memory", path + 1);
            left = sherdi_min_size(left, sherdi_machine_group_left(folder));
        }
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    return left;
}

/* Returns the bytes that the process may still allocate by its own limit (RLIMIT_DATA). */
static size_t own_limit_left(void)
{
    struct rlimit limit;
    size_t        used = file_number("/proc/self/status", "VmData:");
    size_t        most;

    if (getrlimit(RLIMIT_DATA, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
        used == SIZE_MAX) {
        return SIZE_MAX;
    }
    most = (size_t)limit.rlim_cur;
    return used * 1024 < most ? most - used * 1024 : 1;
}

sherd_status sherdi_machine_free_memory(size_t *out, sherdi_memory_bound *bound_out)
{
    size_t kib   = file_number("/proc/meminfo", "MemAvailable:");
    size_t all[] = {[SHERDI_BOUND_HOST]     = kib > SIZE_MAX / 1024 ? SIZE_MAX : kib * 1024,
                    [SHERDI_BOUND_GROUP]    = own_group_left(),
                    [SHERDI_BOUND_PROCESS]  = own_limit_left(),
                    [SHERDI_BOUND_VARIABLE] = 0};
    int    least = SHERDI_BOUND_HOST;

    SHERDI_TRY(limit_given(&all[SHERDI_BOUND_VARIABLE]));
    for (int bound = 0; bound <= SHERDI_BOUND_VARIABLE; bound++) {
        least = all[bound] < all[least] ? bound : least;
    }
    *out       = all[least] == SIZE_MAX ? 0 : sherdi_max_size(all[least], 1);
    *bound_out = (sherdi_memory_bound)least;
    return SHERD_OK;
}

/* Counts the ranks whose device is this rank's. Its number does not identify it: a launcher may
 * show each rank another device as number 0. */
static sherd_status device_sharers(sherd_world *world, const sherdi_backend *backend, int *out)
{
    uint64_t    identity;
    sherdi_told told;

    *out = 1;
    if (!backend->device->is_async || backend->device->lane_identity == NULL) {
        return SHERD_OK;
    }
    identity = backend->device->lane_identity(backend);
    SHERDI_TRY(sherdi_world_tell(world, &identity, sizeof(identity), "devices of ranks", &told));
    *out = 0;
    for (int r = 0; r < sherd_world_size(world); r++) {
        *out += memcmp(sherdi_told_by(&told, r), &identity, sizeof(identity)) == 0;
    }
    return SHERD_OK;
}

sherd_status sherdi_machine_detect(sherd_world *world, sherdi_machine *out)
{
    const sherdi_simulated *simulated = sherdi_world_simulated(world);
    const sherdi_backend   *backend   = sherdi_world_backend(world);
    size_t                  whole     = (size_t)sherd_world_size(world) * SHERD_ALIGN_BYTES;
    sherdi_machine          mine      = {
                      .ranks_per_host  = sherdi_world_local_size(world),
                      .transport_bytes = sherdi_world_overhead_bytes(world),
                      .taken_bytes     = sherdi_world_taken_bytes(world),
                      .has_device      = backend->device->is_async,
                      .has_receive     = sherdi_world_reserve_bytes(world, SHERD_ALIGN_BYTES) > 0,
                      .receives_own    = sherdi_world_reserve_bytes(world, whole) == whole,
                      .device_bytes    = backend->device->free_bytes(backend, NULL),
                      .is_on_lane      = (sherdi_world_caps(world) & SHERDI_WORLD_ON_LANE) != 0,
    };
    sherdi_told told;
    int         sharers;

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
    SHERDI_TRY(device_sharers(world, backend, &sharers));
    mine.device_bytes /= (size_t)sharers; /* each gets only its part of the free memory */
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
