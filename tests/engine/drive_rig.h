/* A small model whose state and parameters rest on a drive, for tests in which the drive fails, fills up or lies. */
#ifndef TESTS_ENGINE_DRIVE_RIG_H
#define TESTS_ENGINE_DRIVE_RIG_H

#include "tests/engine/rig.h"

#define DRIVE_STEPS 7    /* of the reference */
#define DRIVE_ELEMS 3000 /* for rig_three */

/** Keys that put everything on the drive, in the test's scratch folder and in small blocks; `more` are keys of
 *  offload_optimizer. With encoded state parameters are in host memory: then an update does not read what it writes of
 *  them (SHERD_TEST_STATE). Returns `out`. */
const char *drive_keys(const char *more, char out[1024]);

/** Of a rig with such keys, which it borrows. */
rig_options drive_options(const char *keys);

/** A rig of three units with such keys, to be sealed. */
void drive_open(rig *r, sherd_world *world, const char *more);

/** A micro-batch and its step; the first failure comes back. */
sherd_status drive_step_try(rig *r, sherd_step_report *report);

/** Fingerprints after each step of one rank in memory: what drive_reference_train, the body of a test_world, leaves.
 *  `ctx`: further keys at the top of its configuration; NULL: none. */
extern uint64_t drive_reference[DRIVE_STEPS];
void            drive_reference_train(sherd_world *world, void *ctx);

/** Flips one bit in each page of every slot file in the scratch folder. */
void drive_bits_flip(void);

#endif
