/* What the tests of transfers share: a queue of each kind, files in scratch folders, what the log
 * said. */
#ifndef TESTS_OFFLOAD_IO_RIG_H
#define TESTS_OFFLOAD_IO_RIG_H

#include "offload/io.h"
#include "tests/lib/check.h"

#define PAGE ((size_t)4096)

/* A case for both engines: BOTH(x) after the function x, then CASES(x) in the list. */
#define BOTH(function)                                                                             \
    static void uring_##function(void)                                                             \
    {                                                                                              \
        rig_begin(SHERDI_IOQ_URING);                                                               \
        function();                                                                                \
        rig_end();                                                                                 \
    }                                                                                              \
    static void threads_##function(void)                                                           \
    {                                                                                              \
        rig_begin(SHERDI_IOQ_THREADS);                                                             \
        function();                                                                                \
        rig_end();                                                                                 \
    }
#define CASES(function) CASE(uring_##function), CASE(threads_##function)

/** Chooses the engine, empties account and log; skips the case where there is no such engine. */
void rig_begin(sherdi_ioq_kind kind);
/** Nothing may be held, no fault armed. */
void rig_end(void);

sherdi_mem     *rig_mem(void);
sherdi_ioq_kind rig_kind(void);
sherdi_ioq     *rig_queue(size_t request_bytes, int depth);

/** A folder of that name for this case, made when it is not there. The path is overwritten after
 *  some calls. */
const char *rig_folder(const char *name);
/** A file system over the folder "f0", for this thread and those that it starts, until it ends.
 *  Skips where that is not allowed. */
void rig_mount_over(const char *type, const char *options);
/** A new file over `num_folders` folders "f0", "f1", ... of this case. */
sherdi_file *rig_file(sherdi_ioq *queue, const char *name, int num_folders, size_t capacity_bytes,
                      size_t stripe_bytes);
/** The same with flags, and as a status. */
sherd_status rig_file_open(sherdi_ioq *queue, const char *name, int num_folders,
                           size_t capacity_bytes, size_t stripe_bytes, uint32_t flags,
                           sherdi_file **out);
/** How many entries the folder has. */
int rig_folder_count(const char *folder);
/** Open descriptors of this process. */
int rig_descriptors(void);

unsigned char *rig_memory(size_t len_bytes);
void           rig_fill(unsigned char *memory, size_t len_bytes, uint64_t seed);

/** One transfer, from start to end. */
sherd_status rig_write(sherdi_ioq *queue, sherdi_file *file, unsigned char *memory,
                       size_t offset_bytes, size_t len_bytes);
sherd_status rig_read(sherdi_ioq *queue, sherdi_file *file, unsigned char *memory,
                      size_t offset_bytes, size_t len_bytes);

/** What the log said since rig_begin, all levels. */
const char *rig_log(void);

#endif
