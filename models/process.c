/* Reads figures of the system's. See process.h. */
#include "models/process.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void process_lines_add(const char *path, const char *const *keys, size_t *const *sums, size_t count)
{
    char  line[256];
    FILE *from = fopen(path, "re");

    while (from != NULL && fgets(line, sizeof(line), from) != NULL) {
        for (size_t i = 0; i < count; i++) {
            size_t len = strlen(keys[i]);

            if (strncmp(line, keys[i], len) == 0 && line[len] == ':') {
                *sums[i] += (size_t)strtoull(line + len + 1, NULL, 10) * 1024;
            }
        }
    }
    if (from != NULL) {
        (void)fclose(from);
    }
}

process_memory process_memory_now(void)
{
    process_memory now = {0};

    process_lines_add("/proc/self/status",
                      (const char *const[]){"VmRSS", "VmHWM", "VmLck", "VmPin"},
                      (size_t *const[]){&now.resident, &now.peak, &now.locked, &now.locked}, 4);
    return now;
}
