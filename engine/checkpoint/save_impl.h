/* A save in progress, which save.c, save_data.c and save_parts.c share: save.c has the collective
 * steps, save_data.c writes the data of each rank, save_parts.c has what hosts that do not share the
 * folder need. */
#ifndef SHERDI_ENGINE_CHECKPOINT_SAVE_IMPL_H
#define SHERDI_ENGINE_CHECKPOINT_SAVE_IMPL_H

#include "engine/checkpoint/folder.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/checkpoint/save.h"
#include "engine/checkpoint/writer.h"

#include <pthread.h>
#include <stdatomic.h>

/* The message of a rank about its files. */
typedef struct sherdi_save_message {
    uint64_t             status;
    uint64_t             bytes; /* that the rank is going to write */
    sherdi_manifest_file files[SHERDI_DATA_FILES];
    uint64_t             fingerprint, state_fingerprint;
    uint64_t             is_linked; /* its state is linked, and was not read */
} sherdi_save_message;

struct sherdi_save {
    sherd_engine     *engine;
    sherd_save_params params;
    char              dir[SHERDI_CHECKPOINT_PATH_BYTES];
    char              tag[SHERDI_CHECKPOINT_NAME_BYTES];
    char              folder[SHERDI_CHECKPOINT_PATH_BYTES]; /* the partial folder */
    sherdi_claim      claim;                                /* of that folder; on its owner */
    /* By rank: its owner, the first rank that sees the same folder; below 0: not known yet. */
    int *owners;
    int  num_owners;
    int  is_async;

    sherdi_ioq                 *queue;
    unsigned char              *slots; /* NULL: the snapshot is used */
    sherdi_safetensors_builder *headers[SHERDI_DATA_FILES];
    const char                 *header_bytes[SHERDI_DATA_FILES];
    size_t                      header_len[SHERDI_DATA_FILES];
    sherdi_writer               writers[SHERDI_DATA_FILES];
    sherdi_save_message         mine;
    sherdi_save_message        *all;
    sherdi_fingerprints         known;        /* the engine's, when the state was copied */
    size_t                      copied_bytes; /* asynchronous: values in the snapshot */
    unsigned char              *blobs;        /* asynchronous: the rank's blobs, consecutive */
    size_t                      blobs_bytes;
    sherdi_manifest             manifest;
    uint64_t                    done_bytes, all_bytes;
    int64_t                     start_ns;

    pthread_t      thread; /* of an asynchronous save */
    int            has_thread;
    atomic_int     is_over; /* the thread has done its work */
    sherdi_outcome thread_outcome;
};

/** Makes the partial folder, one wherever a rank does not see those before it, and finds the owners.
 *  Collective. E_IO, E_STATE. */
sherd_status sherdi_save_folders_make(sherdi_save *save);
/** Writes the manifest that rank 0 gives into the folders of all owners, and makes the checkpoint
 *  complete on rank 0 and then on the others. Collective. E_IO, E_NOMEM. */
sherd_status sherdi_save_publish_parts(sherdi_save *save, const char *text, size_t len_bytes);
/** Removes what old_remove removes at rank 0 from the folders of the other owners, too: checkpoints
 *  older than the newest keep_last that rank 0 does not have. Collective. */
void sherdi_save_parts_remove(const sherdi_save *save);

/** Makes the header of a file of this rank that has data. Its length is known then; its checksums
 *  are not yet. E_NOMEM. */
sherd_status sherdi_save_header_make(sherdi_save *save, sherdi_data_file which);
/** Makes the file, with room for all its bytes. E_IO, E_NOMEM. */
sherd_status sherdi_save_writer_make(sherdi_save *save, sherdi_data_file which);
/** Does the part of a save for which the trainer has to wait: writes this rank's files or, in an
 *  asynchronous save, copies its state. Local. E_IO, E_NOMEM, E_NUMERIC (a fingerprint differs from
 *  the one after the last step). */
sherd_status sherdi_save_data(sherdi_save *save);
/** Starts a thread that writes the copy and sets save->is_over at its end. is_over is also set if
 *  there is nothing to do, or no thread. */
void sherdi_save_thread_start(sherdi_save *save);
/** Waits for the thread, if there is one, and returns the outcome of its work. */
sherd_status sherdi_save_thread_join(sherdi_save *save);

#endif
