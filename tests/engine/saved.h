/* What the tests of checkpoints save: a rig with a model that has every kind of parameter, and what they ask of the folder. */
#ifndef TESTS_ENGINE_SAVED_H
#define TESTS_ENGINE_SAVED_H

#include "tests/engine/rig.h"

#define SAVED_PARAMS 10

/* Ways in which a model is not the one that was saved. */
typedef enum saved_change {
    SAVED_SAME = 0,
    SAVED_MISSING, /* without unit1.4 */
    SAVED_EXTRA,   /* with "head", of 300 elements, number SAVED_PARAMS */
    SAVED_SHAPE,   /* unit0.2 has one element more */
    SAVED_THAWED,  /* nothing is frozen */
} saved_change;

/** Skips the case in a build without checksums, which has no checkpoints. */
void saved_need_checksums(void);

/** Two units, sealed and not filled: what is sliced, a part of it smaller than a slice, one element, what every rank
 *  keeps whole (with a persistence threshold of 150), what is frozen. */
void saved_open(rig *r, sherd_world *world, const rig_options *options);
void saved_open_changed(rig *r, sherd_world *world, const rig_options *options,
                        saved_change change);
/** All first values; what was loaded stays. */
void saved_fill(rig *r);
/** So many steps, from where the engine is. */
void saved_train(rig *r, int count);

/** Opens DIR/TAG (NULL: the latest), which must verify; returns its step. */
int64_t saved_verify(const char *dir, const char *tag);
/** The folder NAME of this run's scratch, not made. */
const char *saved_dir(const char *name, char out[256]);
/** How many entries of a folder begin with a dot. */
int saved_left_behind(const char *dir);
/** A hash of the names and bytes of all files in a folder, one level deep. */
uint64_t saved_bytes(const char *folder);

#endif
