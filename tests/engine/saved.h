/* What the tests of checkpoints share: a rig whose model has every kind of parameter, and questions
 * about a folder of checkpoints. */
#ifndef TESTS_ENGINE_SAVED_H
#define TESTS_ENGINE_SAVED_H

#include "tests/engine/rig.h"

#define SAVED_PARAMS 10

/* Ways in which a model differs from the one that was saved. */
typedef enum saved_change {
    SAVED_SAME = 0,
    SAVED_MISSING, /* without unit1.4 */
    SAVED_EXTRA,   /* with another parameter "head" of 300 elements, whose number is SAVED_PARAMS */
    SAVED_SHAPE,   /* unit0.2 has one more element */
    SAVED_THAWED,  /* no parameter is frozen */
} saved_change;

/** Skips the case in a build without checksums, which has no checkpoints. */
void saved_need_checksums(void);

/** Opens a rig of two units, sealed and not filled. Each unit has a parameter that is sliced, one
 * smaller than a slice, one of a single element, one that every rank keeps whole (the persistence
 * threshold is 150), and a frozen one. */
void saved_open(rig *r, sherd_world *world, const rig_options *options);
void saved_open_changed(rig *r, sherd_world *world, const rig_options *options,
                        saved_change change);
/** Fills all parameters with their first values; values that were loaded stay. */
void saved_fill(rig *r);
/** Trains for `count` steps from where the engine is. */
void saved_train(rig *r, int count);

/** Opens DIR/TAG (NULL: the latest checkpoint), which must verify, and returns its step. */
int64_t saved_verify(const char *dir, const char *tag);
/** Writes the path of the folder NAME in this run's scratch folder, which is not made here. */
const char *saved_dir(const char *name, char out[256]);
/** Counts the entries of a folder whose names begin with a dot. */
int saved_left_behind(const char *dir);
/** Returns a hash of the names and bytes of all files in a folder, also in its subfolders unless
 * their names begin with a dot. */
uint64_t saved_bytes(const char *folder);

#endif
