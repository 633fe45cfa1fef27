/* The operations for activations. */
#ifndef SHERDI_ENGINE_PROGRAM_ACTIVATIONS_H
#define SHERDI_ENGINE_PROGRAM_ACTIVATIONS_H

#include "engine/plan/activations.h"
#include "engine/program/program.h"

/* Where the bytes of an activation are. */
typedef struct sherdi_activation_state {
    unsigned char is_put; /* in this micro-batch; below: its bytes are, or are on their way ... */
    unsigned char is_scratch;          /* of EVAL: it is never read */
    unsigned char is_written, is_read; /* by the trainer, who has it now */
    unsigned char is_over;             /* backward has read it */
    unsigned char is_here;             /* ... in its place on the device */
    unsigned char is_on_host;          /* ... in its place there, which it takes when it is put */
    unsigned char is_stored;           /* ... in its extent */
} sherdi_activation_state;

/** Return the place of a unit's activation to the trainer: for a write that is read later, for a
 *  write that is not (EVAL), and for a read. E_STATE if that is not possible now. */
sherd_status sherdi_program_activation_put(const sherdi_program *program, int unit);
sherd_status sherdi_program_activation_scratch(const sherdi_program *program, int unit);
sherd_status sherdi_program_activation_get(const sherdi_program *program, int unit);
/** Is part of the release of a unit: the activation leaves after forward, and ends after
 *  backward. */
sherd_status sherdi_program_activation_release(const sherdi_program *program, int unit,
                                               sherd_pass pass);
/** Discards the activations. */
void sherdi_program_activations_forget(const sherdi_program *program);

/** Make and free what a progress knows of the activations. E_NOMEM. */
sherd_status sherdi_activations_open(sherdi_progress *progress, const sherdi_plan *plan,
                                     const sherdi_model *model, sherdi_mem *mem);
void         sherdi_activations_close(sherdi_progress *progress);

#endif
