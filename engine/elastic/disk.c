/* See disk.h. Files are striped over the folders of their key (offload/file.c). */
#include "engine/elastic/disk.h"

#include "offload/tier.h"

#include <sys/stat.h>
#include <sys/statvfs.h>

/* Adds bytes to the file system of a folder. */
static void system_add(sherdi_disk *disk, const char *folder, int64_t bytes)
{
    struct stat info;
    int         i = 0;

    if (bytes == 0 || stat(folder, &info) != 0) {
        return;
    }
    while (i < disk->count && disk->systems[i].device != info.st_dev) {
        i++;
    }
    if (i == SHERDI_DISK_SYSTEMS) {
        return;
    }
    if (i == disk->count) {
        disk->count++;
        disk->systems[i].device = info.st_dev;
        disk->systems[i].folder = folder;
        disk->systems[i].bytes  = 0;
    }
    disk->systems[i].bytes += bytes;
}

/* Adds `count` files of `len_bytes` bytes. */
static void files_add(sherdi_disk *disk, const sherdi_offload_settings *at, uint64_t len_bytes,
                      int64_t count)
{
    uint64_t stripes = len_bytes / SHERDI_STRIPE_BYTES;
    int      folders = at->num_folders;

    for (int f = 0; f < folders; f++) {
        uint64_t own = stripes / (uint64_t)folders * SHERDI_STRIPE_BYTES;

        if ((uint64_t)f < stripes % (uint64_t)folders) {
            own += SHERDI_STRIPE_BYTES;
        } else if ((uint64_t)f == stripes % (uint64_t)folders) {
            own += len_bytes % SHERDI_STRIPE_BYTES;
        }
        system_add(disk, at->folders[f], (int64_t)own * count);
    }
}

void sherdi_disk_add(sherdi_disk *disk, const sherdi_plan *plan, int sign)
{
    const sherdi_offloads_settings *offload = &plan->settings.offload;
    int64_t                         ranks   = (int64_t)sherdi_plan_all_ranks(plan) * sign;
    uint64_t                        sets    = plan->has_generations ? 2 : 1;

    files_add(disk, &offload->state, plan->nvme_bytes[SHERDI_RING_STATE] / sets,
              (int64_t)sets * ranks);
    files_add(disk, &offload->state, plan->nvme_bytes[SHERDI_RING_GRADS], ranks);
    files_add(disk, &offload->params, plan->nvme_bytes[SHERDI_RING_PARAMS], ranks);
    files_add(disk, &offload->activations, plan->nvme_bytes[SHERDI_RING_ACTIVATIONS], ranks);
    if (plan->index_bytes > 0) {
        system_add(disk, offload->state.folders[0], (int64_t)plan->index_bytes * ranks);
    }
}

uint64_t sherdi_disk_bytes(const sherdi_plan *plan)
{
    uint64_t bytes = plan->index_bytes;

    for (int ring = 0; ring < SHERDI_RINGS; ring++) {
        bytes += plan->nvme_bytes[ring];
    }
    return bytes;
}

uint64_t sherdi_disk_missing(const sherdi_disk *disk, const char **folder_out)
{
    uint64_t most = 0;

    for (int i = 0; i < disk->count; i++) {
        struct statvfs at;
        uint64_t       free_bytes;

        /* A file system of no blocks at all does not know its size. */
        if (disk->systems[i].bytes <= 0 || statvfs(disk->systems[i].folder, &at) != 0 ||
            at.f_blocks == 0) {
            continue;
        }
        free_bytes = (uint64_t)at.f_bavail * at.f_frsize;
        if ((uint64_t)disk->systems[i].bytes > free_bytes &&
            (uint64_t)disk->systems[i].bytes - free_bytes > most) {
            most        = (uint64_t)disk->systems[i].bytes - free_bytes;
            *folder_out = disk->systems[i].folder;
        }
    }
    return most;
}
