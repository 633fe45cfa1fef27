/* The optional parts of an engine whose data rests off the device: storage (extents in files, and
 * generations of state in them), and an updater (a thread that updates while the trainer
 * continues). Both are a module, which gives its tables of functions to an engine that needs them at
 * seal (offload_ops.h). */
#ifndef SHERDI_ENGINE_RUN_OFFLOAD_H
#define SHERDI_ENGINE_RUN_OFFLOAD_H

#include "engine/optimizers/scaler.h"
#include "engine/program/offload.h"

/* Most bytes of the text of sherd_engine_describe_run, with its final zero. */
#define SHERDI_RUN_TEXT_BYTES 256

/* The threads that execute operations. Each ring has one user at a time. */
typedef enum sherdi_user {
    SHERDI_USER_TRAINER = 0,
    SHERDI_USER_UPDATER,
    SHERDI_USERS,
} sherdi_user;

/* Bytes that copies have moved. */
typedef struct sherdi_link {
    uint64_t down_bytes, up_bytes; /* device to host, host to device */
} sherdi_link;

/* Bytes that transfers of files have moved. */
typedef struct sherdi_file_traffic {
    uint64_t read_bytes, written_bytes;
} sherdi_file_traffic;

/* Storage of an engine. */
typedef struct sherdi_storage {
    const struct sherdi_storage_ops *ops; /* NULL: there is none */
    uint64_t                         run; /* names the files of the state; 0: there are none */
    int                              is_resumed;   /* they belong to an earlier run */
    size_t                           pinned_bytes; /* of the rings, locked for transfers */
    struct sherdi_store             *store;        /* of the module; NULL: it is not open */
} sherdi_storage;

/* The updater of an engine. */
typedef struct sherdi_updater {
    const struct sherdi_updater_ops *ops;       /* NULL: there is none */
    int                              is_there;  /* updates can be queued */
    int                              is_queued; /* one was queued, and its outcome was not taken */
    uint64_t                         published_bytes; /* of the queued update, sent so far */
    sherdi_link joined_link; /* what all updates had moved when the last of them was joined */
    struct sherdi_updater_own *own; /* of the module; NULL: there is none */
} sherdi_updater;

#endif
