/* The state of saving and loading in an engine. sherd.h has the calls. */
#ifndef SHERDI_ENGINE_CHECKPOINT_SAVE_H
#define SHERDI_ENGINE_CHECKPOINT_SAVE_H

#include "engine/run/engine_impl.h"
#include "offload/io.h"

typedef struct sherdi_save sherdi_save;

/* The data file of frozen parameters that the last checkpoint wrote; the next checkpoint links
 * it. */
typedef struct sherdi_frozen_file {
    char     path[4096];
    uint64_t bytes; /* 0: no file */
    uint64_t header_checksum;
    uint64_t fingerprint; /* of the parameters in it, over all ranks */
} sherdi_frozen_file;

struct sherdi_checkpoints {
    sherdi_save            *save;    /* in progress; NULL: none */
    sherdi_outcome          failure; /* of an asynchronous save, until the trainer asks for it */
    sherd_checkpoint_report report;  /* of the last save or load */
    sherdi_frozen_file      frozen;
    int                     has_told;           /* that hosts do not share the folder */
    char                    newest[4096 + 256]; /* the last that was saved or loaded; "": none */
    int64_t                 newest_ns;          /* when */
    int64_t                 newest_step;
};
typedef struct sherdi_checkpoints sherdi_checkpoints;

/** Notes a checkpoint that is complete. */
void sherdi_checkpoint_note(sherd_engine *engine, const char *dir, const char *tag);
/** Makes the queue of a rank that saves or loads. */
sherd_status sherdi_checkpoint_queue(sherd_engine *engine, sherdi_ioq **out);

#endif
