/* The memory that is free on this host, and the limits that a control group, the process or the
 * environment sets; whether a plan fits, and the most blocks that it has. */
#include "engine/limits.h"

#include "base/checked.h"
#include "engine/modules.h"
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

sherd_status sherdi_machine_free_memory(size_t *out, int *bound_out)
{
    size_t kib   = file_number("/proc/meminfo", "MemAvailable:");
    size_t all[] = {[SHERDI_BOUND_HOST]     = kib > SIZE_MAX / 1024 ? SIZE_MAX : kib * 1024,
                    [SHERDI_BOUND_GROUP]    = own_group_left(),
                    [SHERDI_BOUND_PROCESS]  = own_limit_left(),
                    [SHERDI_BOUND_VARIABLE] = SIZE_MAX};
    int    least = SHERDI_BOUND_HOST;

    SHERDI_TRY(limit_given(&all[SHERDI_BOUND_VARIABLE]));
    for (int bound = 0; bound <= SHERDI_BOUND_VARIABLE; bound++) {
        least = all[bound] < all[least] ? bound : least;
    }
    *out       = all[least] == SIZE_MAX ? 0 : sherdi_max_size(all[least], 1);
    *bound_out = least;
    return SHERD_OK;
}

/* ----------------------------------------------------------------- blocks -- */

/* Returns the elements that this rank updates of a segment, and of a frozen slice on NVMe those
 * that its pieces have. */
static size_t elems_cut(const sherdi_plan *plan, const sherdi_segment *segment)
{
    if (segment->kind == SHERDI_SEGMENT_FROZEN) {
        return segment->param_space == SHERDI_SPACE_STORAGE ? segment->slice_elems : 0;
    }
    return plan->layout.is_sliced ? segment->slice_elems : segment->padded_elems;
}

/* Limits the number of blocks, before tables for them take all memory there is. */
static sherd_status blocks_check(sherdi_plan *plan, const sherdi_model *model)
{
    size_t most  = plan->layout.block_elems;
    size_t elems = 0;
    size_t count = 0;

    (void)model;
    for (size_t s = 0; s < plan->layout.num_segments; s++) {
        size_t own = elems_cut(plan, &plan->layout.segments[s]);

        elems += own;
        count += sherdi_div_up(own, most);
    }
    if (count <= SHERDI_MOST_BLOCKS) {
        return SHERD_OK;
    }
    return sherdi_fail(
        SHERD_E_NOMEM,
        "rank %d would update %zu elements in %zu blocks of %zu, and a plan has at "
        "most %zu; raise %s to %zu or more, or share the model among more ranks",
        plan->rank, elems, count, most, SHERDI_MOST_BLOCKS, plan->layout.block_key,
        sherdi_round_up(sherdi_div_up(elems, SHERDI_MOST_BLOCKS - plan->layout.num_segments),
                        SHERD_ALIGN_BYTES));
}

/* ------------------------------------------------------------------ memory -- */

size_t sherdi_plan_host_need(const sherdi_plan *plan)
{
    return plan->machine.transport_bytes +
           (plan->machine.has_device ? plan->packing.host_bytes : plan->packing.total_bytes);
}

size_t sherdi_plan_device_need(const sherdi_plan *plan)
{
    return plan->packing.total_bytes - plan->packing.host_bytes + plan->packing.receive_bytes;
}

int sherdi_plan_device_fits(const sherdi_plan *plan)
{
    return !plan->machine.has_device || plan->machine.device_bytes == 0 ||
           sherdi_plan_device_need(plan) <= plan->machine.device_bytes;
}

int sherdi_plan_fits(const sherdi_plan *plan)
{
    size_t each = sherdi_plan_host_need(plan);
    size_t all;

    if (!sherdi_plan_device_fits(plan)) {
        return 0;
    }
    return plan->machine.memory_bytes == 0 ||
           (sherdi_mul_fits(each, (size_t)plan->machine.ranks_per_host, &all) &&
            all <= plan->machine.memory_bytes);
}

/* For a build without the module of the proof, which says what else would fit. */
static sherd_status fit_check(sherd_engine *engine)
{
    const sherdi_plan *plan = engine->plan;

    return sherdi_plan_fits(plan)
               ? SHERD_OK
               : sherdi_fail(SHERD_E_NOMEM,
                             "the plan needs %zu bytes of host memory on each of the %d ranks of "
                             "this host, which may take %zu together, and %zu bytes of device "
                             "memory, of %zu that a rank may take",
                             sherdi_plan_host_need(plan), plan->machine.ranks_per_host,
                             plan->machine.memory_bytes, sherdi_plan_device_need(plan),
                             plan->machine.device_bytes);
}

/* A simulated world has memory of its own. */
static sherd_status memory_measure(sherd_world *world, sherdi_machine *machine)
{
    return sherdi_world_caps(world) & SHERDI_WORLD_SIMULATES
               ? SHERD_OK
               : sherdi_agree_world(world, sherdi_machine_free_memory(&machine->memory_bytes,
                                                                      &machine->memory_bound));
}

const sherdi_module sherdi_module_limits = {
    .machine = memory_measure, .segments_made = blocks_check, .check = fit_check};
