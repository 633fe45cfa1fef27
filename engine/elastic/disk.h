/* The room that the files of layouts take on their file systems. */
#ifndef SHERDI_ENGINE_ELASTIC_DISK_H
#define SHERDI_ENGINE_ELASTIC_DISK_H

#include "engine/plan/plan.h"

#include <sys/types.h>

#define SHERDI_DISK_SYSTEMS (3 * SHERDI_MAX_FOLDERS) /* state, parameters, activations */

/* By file system: the bytes that files take there, of all ranks, and one of their folders. */
typedef struct sherdi_disk {
    struct {
        dev_t       device;
        const char *folder; /* of the settings */
        int64_t     bytes;
    } systems[SHERDI_DISK_SYSTEMS];
    int count;
} sherdi_disk;

/** Returns the bytes of all files of one rank. */
uint64_t sherdi_disk_bytes(const sherdi_plan *plan);
/** Adds the files of all ranks of a layout, or with `sign` -1 takes them away. A folder that is not
 *  there is left out: who opens files in it says so. */
void sherdi_disk_add(sherdi_disk *disk, const sherdi_plan *plan, int sign);
/** Returns how many bytes the file systems have too few, and the folder of the worst of them; 0: all
 *  have room. */
uint64_t sherdi_disk_missing(const sherdi_disk *disk, const char **folder_out);

#endif
