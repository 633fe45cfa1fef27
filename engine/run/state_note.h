/* What the engine keeps with each generation of state on a drive (the note of
 * offload/tier.h). Written by the engine, read by it on resume and by state_files.c, which shows the
 * step of files whose layout it does not know: new fields go to the end. */
#ifndef SHERDI_ENGINE_RUN_STATE_NOTE_H
#define SHERDI_ENGINE_RUN_STATE_NOTE_H

#include "engine/optimizers/scaler.h"
#include "offload/tier.h"

/* Of what sherd_engine_describe_run was given, its end included. */
#define SHERDI_RUN_TEXT_BYTES 256

typedef struct sherdi_state_note {
    int64_t       step; /* updates done; the first eight bytes, always */
    int64_t       micro_step;
    int64_t       skipped_steps;
    uint64_t      fingerprint; /* of this rank's master weights */
    sherdi_scaler scaler;
    int32_t       accumulation, micro_batch_size;
    char          run_text[SHERDI_RUN_TEXT_BYTES];
    int32_t       is_written; /* no update made this generation: values or counters were written */
} sherdi_state_note;

/* A note as a tier has it, and a listing sees it. */
typedef union sherdi_state_record {
    sherdi_state_note note;
    unsigned char     bytes[SHERDI_STATE_NOTE_FRONT];
} sherdi_state_record;

_Static_assert(sizeof(sherdi_state_record) == SHERDI_STATE_NOTE_FRONT, "a note has room for it");

#endif
