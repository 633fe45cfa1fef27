/* The limits of memory that a control group or the process itself has. */
#include "engine/machine.h"

#include "base/checked.h"
#include "engine/modules.h"

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

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
    return sherdi_machine_number(path, label);
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
    size_t        used = sherdi_machine_number("/proc/self/status", "VmData:");
    size_t        most;

    if (getrlimit(RLIMIT_DATA, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
        used == SIZE_MAX) {
        return SIZE_MAX;
    }
    most = (size_t)limit.rlim_cur;
    return used * 1024 < most ? most - used * 1024 : 1;
}

static void bounds_set(size_t *bounds)
{
    bounds[SHERDI_BOUND_GROUP]   = own_group_left();
    bounds[SHERDI_BOUND_PROCESS] = own_limit_left();
}

const sherdi_module sherdi_module_limits = {.memory_bounds = bounds_set};
