/* A small model whose state and parameters rest on a drive, for tests in which the drive fails,
 * fills up or returns wrong bytes. */
#ifndef TESTS_ENGINE_DRIVE_RIG_H
#define TESTS_ENGINE_DRIVE_RIG_H

#include "tests/engine/rig.h"

#define DRIVE_STEPS 7    /* entries of the reference: the first state and the steps */
#define DRIVE_ELEMS 3000 /* the elements given to rig_three */

/** Writes keys that put everything on the drive, in the test's scratch folder and in small blocks;
 * `more` are further keys of offload_optimizer. With encoded state (SHERD_TEST_STATE) the
 * parameters are in host memory instead; an update then does not read what it writes of them.
 * Returns `out`. */
const char *drive_keys(const char *more, char out[1024]);

/** Returns the options of a rig with such keys; they borrow the keys. */
rig_options drive_options(const char *keys);

/** Opens a rig of three units with such keys; the caller seals it. */
void drive_open(rig *r, sherd_world *world, const char *more);

/** Does one micro-batch and its step; returns the first failure. */
sherd_status drive_step_try(rig *r, sherd_step_report *report);

/** Fingerprints of one rank in memory, at the start and after each step. drive_reference_train, the
 * body of a test_world, writes them. `ctx`: further keys at the top of its configuration; NULL:
 * none. */
extern uint64_t drive_reference[DRIVE_STEPS];
void            drive_reference_train(sherd_world *world, void *ctx);

/** Flips one bit in each page of every slot file in the scratch folder. */
void drive_bits_flip(void);

#endif
