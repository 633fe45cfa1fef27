/* The record that the engine keeps with each generation of state on a drive (the front of the note
 * of offload/state.h). The engine writes it, and reads it on resume. state_files.c reads it too, to
 * show the step of files whose layout it does not know. So a new field goes to the end. */
#ifndef SHERDI_ENGINE_RUN_STATE_NOTE_H
#define SHERDI_ENGINE_RUN_STATE_NOTE_H

#include "engine/run/offload.h"
#include "offload/state.h"

typedef struct sherdi_state_note {
    int64_t       step; /* updates done; always the first eight bytes */
    int64_t       micro_step;
    int64_t       skipped_steps;
    uint64_t      fingerprint; /* of this rank's master weights */
    sherdi_scaler scaler;
    int32_t       accumulation, micro_batch_size;
    char          run_text[SHERDI_RUN_TEXT_BYTES];
    int32_t is_written; /* 1: written values or counters made this generation, not an update */
    int64_t samples;    /* that all ranks have seen; 0 in notes of earlier versions too */
} sherdi_state_note;

/* The record in the room that a tier and a listing of state files have for it. */
typedef union sherdi_state_record {
    sherdi_state_note note;
    unsigned char     bytes[SHERDI_STATE_NOTE_FRONT];
} sherdi_state_record;

_Static_assert(sizeof(sherdi_state_record) == SHERDI_STATE_NOTE_FRONT, "a note has room for it");

#endif
