/* Where optimizer state rests, for tests that train one model at every place and stage. Such a test
 * has a table PLACES of these. */
#ifndef TESTS_ENGINE_PLACES_H
#define TESTS_ENGINE_PLACES_H

#include "sherd_build.h"
#include "tests/lib/check.h"

#include <stdio.h>

#define PLACE_KEYS_BYTES 512

typedef struct place {
    const char *keys;        /* further keys of zero_optimization; %s is the folder */
    int         least_stage; /* the place exists from this stage on */
    int         is_on_drive; /* needs checksums, which not every build has */
} place;

/** The keys of a place with offloaded state, in blocks of `block` elements; `more` are further keys
 * of offload_optimizer. */
#define PLACE_OF_STATE(block, more)                                                                \
    ", \"sub_group_size\": " block                                                                 \
    ", \"offload_optimizer\": {\"nvme_path\": \"%s\", \"durable\": "                               \
    "false" more "}"

static inline void place_keys(const place *at, char keys[PLACE_KEYS_BYTES])
{
    (void)snprintf(keys, PLACE_KEYS_BYTES, at->keys, test_scratch());
}

static inline int place_is_built(const place *at)
{
#ifndef SHERDI_HAVE_XXHASH
    return !at->is_on_drive;
#else
    (void)at;
    return 1;
#endif
}

/** Returns the first stage at which to train at this place; above 3 if this build cannot. */
static inline int place_first_stage(const place *at)
{
    return place_is_built(at) ? at->least_stage : 4;
}

/** Returns one stage for place number `index` on `ranks` ranks; all places and numbers of ranks
 * together have all stages. */
static inline int place_some_stage(const place *at, size_t index, int ranks)
{
    int stage = ranks == 1 && at->least_stage == 0 ? 0 : 1 + (ranks + (int)index) % 3;

    return stage < at->least_stage ? at->least_stage : stage;
}

#endif
