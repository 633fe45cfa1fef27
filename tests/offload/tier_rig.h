/* What the tests of tiers share: a handful of extents, state files of them, contents by seed. */
#ifndef TESTS_OFFLOAD_TIER_RIG_H
#define TESTS_OFFLOAD_TIER_RIG_H

#include "offload/state.h"
#include "tests/offload/io_rig.h"

/* Of different lengths, one of them longer than a stripe, with gaps between some. */
#define RIG_EXTENTS       7
#define RIG_LONGEST_BYTES (300 * PAGE)

const sherdi_extent *rig_extents(void);
/** Bytes of the extents' own space. */
size_t rig_space_bytes(void);

#define RIG_RUN 0xab54a98ceb1f0ad2u

/** Three of this case, "f0", "f1", "f2". */
const char *const *rig_folders(void);

/** Whether state can survive: it needs libxxhash. */
int rig_has_state(void);
/** Over rig_folders; rank 0 of 1, not verified, not durable. Skips the case when state cannot
 *  survive. */
sherdi_state_params rig_state_params(int num_folders);
sherdi_state       *rig_state_create(sherdi_ioq *queue, int num_folders);
sherdi_state       *rig_state_open(sherdi_ioq *queue, int num_folders);
/** Of its index. The path is overwritten by the next call. */
const char *rig_state_path(void);
/** Of a stripe of a set: in the index's folder, or in one of the other folders. Overwritten by the
 *  next call. */
const char *rig_slots_path(int set, int stripe);
/* Longer than what lies in a head, and not by whole pages. */
#define RIG_NOTE_BYTES 5000

/** A tier over `num_folders` of rig_folders in this way. */
sherd_status rig_tier_open(const sherdi_tier_kind *kind, sherdi_ioq *queue, int num_folders,
                           const sherdi_extent *extents, size_t num_extents, sherdi_tier **out);

/** What an extent holds for a seed; 0: zeros. */
void rig_contents(size_t extent, uint64_t seed, unsigned char *memory);

/** Writes an extent of a tier, from start to end; reads one, which holds what was written with the
 *  seed. E_IO when it cannot be read; anything else but the seed's contents fails the case. */
sherd_status rig_tier_put(sherdi_tier *tier, size_t extent, uint64_t seed);
sherd_status rig_tier_expect(sherdi_tier *tier, size_t extent, uint64_t seed);
/** The same with an extent of a state. */
sherd_status rig_try_put(sherdi_state *state, size_t extent, uint64_t seed);
void         rig_put(sherdi_state *state, size_t extent, uint64_t seed);
void         rig_put_all(sherdi_state *state, uint64_t seed);
sherd_status rig_try_expect(sherdi_state *state, size_t extent, uint64_t seed);
void         rig_expect(sherdi_state *state, size_t extent, uint64_t seed);
void         rig_expect_all(sherdi_state *state, uint64_t seed);

/** With a note made of the seed. */
sherd_status rig_try_commit(sherdi_state *state, uint64_t seed);
void         rig_commit(sherdi_state *state, uint64_t seed);
/** Generation, and the note that rig_commit made of the seed. */
void rig_expect_generation(sherdi_state *state, uint64_t generation, uint64_t seed);
/** Rolls back and checks the note. */
void rig_rollback(sherdi_state *state, uint64_t seed);

#endif
