/* The memory of rank 0, as planned, as held, and as the system reports it. trainer.c prints it at
 * the start and at the end. */
#ifndef LLM_MEMORY_H
#define LLM_MEMORY_H

#include "report.h"
#include "sherd.h"

/* The memory of a rank outside its engine, and its place. */
typedef struct memory_place {
    size_t activation_bytes; /* of the trainer, on the device */
    int    is_gpu;
    int    ranks; /* in this process */
} memory_place;

/** Returns the engine's report; after a failure one of zeros. */
sherd_memory_report memory_of(sherd_engine *engine);
/** Prints a line each for the device, the host and pinned memory, all of which begin with
 *  `when`. */
void memory_say(report *r, const char *when, sherd_engine *engine, const memory_place *place);

#endif
