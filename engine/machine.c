/* What the plan wants to know of the machine: memory that is free on this host, how many
 * ranks share it. The smallest answer of all ranks counts, so that all plan alike. */
#include "engine/engine_impl.h"

#include "base/checked.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The first number of a file, SIZE_MAX when there is none ("max" in a cgroup). */
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

/* What is left under a control group's limit, in either version's files. */
static size_t group_left(const char *limit_path, const char *used_path)
{
    size_t limit = file_number(limit_path, "");
    size_t used  = file_number(used_path, "");

    if (limit == SIZE_MAX || used == SIZE_MAX) {
        return SIZE_MAX;
    }
    return limit > used ? limit - used : 0;
}

static size_t free_memory(void)
{
    const char *limit = getenv("SHERD_MEMORY_LIMIT");
    size_t      kib   = file_number("/proc/meminfo", "MemAvailable:");
    size_t      bytes = kib > SIZE_MAX / 1024 ? SIZE_MAX : kib * 1024;

    bytes = sherdi_min_size(
        bytes, group_left("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"));
    bytes = sherdi_min_size(bytes, group_left("/sys/fs/cgroup/memory/memory.limit_in_bytes",
                                              "/sys/fs/cgroup/memory/memory.usage_in_bytes"));
    if (limit != NULL) {
        bytes = sherdi_min_size(bytes, strtoull(limit, NULL, 10));
    }
    return bytes == SIZE_MAX ? 0 : bytes;
}

sherd_status sherdi_machine_detect(sherd_world *world, sherdi_machine *out)
{
    sherdi_machine mine = {
        .ranks_per_host  = sherdi_world_local_size(world),
        .transport_bytes = sherdi_world_overhead_bytes(world),
    };
    int    world_size = sherd_world_size(world);
    double all[3]     = {0, 0, 0};

    if (sherdi_world_caps(world) & SHERDI_WORLD_SIMULATES) {
        mine.transport_bytes = 0;
        *out                 = mine;
        return SHERD_OK;
    }
    mine.memory_bytes = free_memory();
    for (int r = 0; r < world_size; r++) {
        /* One rank at a time, through the ordered sum: no memory but the stack's. */
        double one[3] = {0, 0, 0};

        if (r == sherd_world_rank(world)) {
            one[0] = (double)mine.memory_bytes;
            one[1] = (double)mine.ranks_per_host;
            one[2] = (double)mine.transport_bytes;
        }
        SHERDI_TRY(sherd_world_sum_f64(world, one, 3));
        all[0] = r == 0 || one[0] < all[0] ? one[0] : all[0];
        all[1] = one[1] > all[1] ? one[1] : all[1];
        all[2] = one[2] > all[2] ? one[2] : all[2];
    }
    out->memory_bytes    = (size_t)all[0];
    out->ranks_per_host  = (int)all[1];
    out->transport_bytes = (size_t)all[2];
    return SHERD_OK;
}
