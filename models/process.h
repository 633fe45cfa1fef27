/* Memory as the system reports it, for the trainer and for benchmarks that compare it with a
 * plan. */
#ifndef SHERD_MODELS_PROCESS_H
#define SHERD_MODELS_PROCESS_H

#include <stddef.h>

/** Adds the bytes of lines such as "VmRSS: 123 kB" of a file of /proc: the lines that begin with
 *  keys[i] are added to *sums[i]. A line that is not there adds nothing. */
void process_lines_add(const char *path, const char *const *keys, size_t *const *sums,
                       size_t count);

/* Bytes of this process, all its threads together. */
typedef struct process_memory {
    size_t resident, peak; /* pages in memory: now, and at their most so far */
    size_t locked;         /* pages that stay there: locked, or pinned for a device or a drive */
} process_memory;

process_memory process_memory_now(void);

#endif
