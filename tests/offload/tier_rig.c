#include "tests/offload/tier_rig.h"

#include "offload/checksum.h"
#include "offload/state_file.h"

#include <stdio.h>
#include <string.h>

static const sherdi_extent EXTENTS[RIG_EXTENTS] = {
    {0 * PAGE, 1 * PAGE},     {1 * PAGE, 3 * PAGE},    {6 * PAGE, 2 * PAGE},
    {8 * PAGE, 300 * PAGE},   {400 * PAGE, 17 * PAGE}, {417 * PAGE, 0 * PAGE},
    {417 * PAGE, 130 * PAGE},
};

const sherdi_extent *rig_extents(void)
{
    return EXTENTS;
}

size_t rig_space_bytes(void)
{
    return EXTENTS[RIG_EXTENTS - 1].offset_bytes + EXTENTS[RIG_EXTENTS - 1].len_bytes;
}

const char *const *rig_folders(void)
{
    static const char *folders[3];

    folders[0] = rig_folder("f0");
    folders[1] = rig_folder("f1");
    folders[2] = rig_folder("f2");
    return folders;
}

int rig_has_state(void)
{
    return sherdi_checksum_check_built() == SHERD_OK;
}

sherdi_state_params rig_state_params(int num_folders)
{
    if (!rig_has_state()) {
        test_skip("built without libxxhash");
    }
    return (sherdi_state_params){
        .folders     = rig_folders(),
        .num_folders = num_folders,
        .id          = {.run = RIG_RUN, .rank = 0, .world_size = 1, .layout = 77},
        .extents     = EXTENTS,
        .num_extents = RIG_EXTENTS,
        .note_bytes  = RIG_NOTE_BYTES,
    };
}

sherdi_state *rig_state_create(sherdi_ioq *queue, int num_folders)
{
    const sherdi_state_params params = rig_state_params(num_folders);
    sherdi_state             *state  = NULL;

    CHECK_OK(sherdi_state_create(queue, &params, rig_mem(), &state));
    return state;
}

sherdi_state *rig_state_open(sherdi_ioq *queue, int num_folders)
{
    const sherdi_state_params params = rig_state_params(num_folders);
    sherdi_state             *state  = NULL;

    CHECK_OK(sherdi_state_open(queue, &params, rig_mem(), &state));
    return state;
}

sherd_status rig_tier_open(const sherdi_tier_kind *kind, sherdi_ioq *queue, int num_folders,
                           const sherdi_extent *extents, size_t num_extents, sherdi_tier **out)
{
    const sherdi_tier_params params = {.queue       = queue,
                                       .folders     = rig_folders(),
                                       .num_folders = num_folders,
                                       .what        = "block",
                                       .extents     = extents,
                                       .num_extents = num_extents};

    return kind->open(&params, rig_mem(), out);
}

const char *rig_state_path(void)
{
    static char               path[256];
    const sherdi_state_params params = rig_state_params(1);
    char                      name[SHERDI_STATE_NAME_BYTES];

    sherdi_state_name(&params.id, name);
    (void)snprintf(path, sizeof(path), "%s/%s", params.folders[0], name);
    return path;
}

const char *rig_slots_path(int set, int stripe)
{
    static char               path[256];
    const sherdi_state_params params = rig_state_params(1);
    char                      name[SHERDI_STATE_NAME_BYTES];
    size_t                    len;

    sherdi_state_set_name(&params.id, set, name);
    len = (size_t)snprintf(path, sizeof(path), "%s/%s", params.folders[stripe], name);
    if (stripe > 0) {
        (void)snprintf(path + len, sizeof(path) - len, ".%d", stripe);
    }
    return path;
}

void rig_contents(size_t extent, uint64_t seed, unsigned char *memory)
{
    if (seed == 0) {
        memset(memory, 0, EXTENTS[extent].len_bytes);
    } else {
        rig_fill(memory, EXTENTS[extent].len_bytes, seed * 1000 + extent);
    }
}

sherd_status rig_tier_put(sherdi_tier *tier, size_t extent, uint64_t seed)
{
    unsigned char *memory = rig_memory(EXTENTS[extent].len_bytes);
    sherdi_io      io     = {0};
    sherd_status   status;

    rig_contents(extent, seed, memory);
    tier->ops->write_start(tier, extent, memory, &io);
    status = tier->ops->wait(tier, &io);
    CHECK(tier->ops->is_done(tier, &io));
    sherdi_free(memory);
    return status;
}

sherd_status rig_try_put(sherdi_state *state, size_t extent, uint64_t seed)
{
    return rig_tier_put(sherdi_state_extents(state), extent, seed);
}

void rig_put(sherdi_state *state, size_t extent, uint64_t seed)
{
    CHECK_OK(rig_try_put(state, extent, seed));
}

void rig_put_all(sherdi_state *state, uint64_t seed)
{
    for (size_t i = 0; i < RIG_EXTENTS; i++) {
        rig_put(state, i, seed);
    }
}

sherd_status rig_tier_expect(sherdi_tier *tier, size_t extent, uint64_t seed)
{
    size_t         len_bytes = EXTENTS[extent].len_bytes;
    unsigned char *want      = rig_memory(len_bytes);
    unsigned char *got       = rig_memory(len_bytes);
    sherdi_io      io        = {0};
    sherd_status   status;

    memset(got, 0xee, len_bytes);
    tier->ops->read_start(tier, extent, got, &io);
    status = tier->ops->wait(tier, &io);
    if (status == SHERD_OK) {
        rig_contents(extent, seed, want);
        CHECK_BYTES_EQUAL(want, got, len_bytes);
    }
    sherdi_free(got);
    sherdi_free(want);
    return status;
}

sherd_status rig_try_expect(sherdi_state *state, size_t extent, uint64_t seed)
{
    return rig_tier_expect(sherdi_state_extents(state), extent, seed);
}

void rig_expect(sherdi_state *state, size_t extent, uint64_t seed)
{
    CHECK_OK(rig_try_expect(state, extent, seed));
}

void rig_expect_all(sherdi_state *state, uint64_t seed)
{
    for (size_t i = 0; i < RIG_EXTENTS; i++) {
        rig_expect(state, i, seed);
    }
}

static void note_make(uint64_t seed, unsigned char *note)
{
    rig_fill(note, RIG_NOTE_BYTES, seed);
}

sherd_status rig_try_commit(sherdi_state *state, uint64_t seed)
{
    unsigned char note[RIG_NOTE_BYTES];

    note_make(seed, note);
    return sherdi_state_commit(state, note, sizeof(note));
}

void rig_commit(sherdi_state *state, uint64_t seed)
{
    CHECK_OK(rig_try_commit(state, seed));
}

void rig_expect_generation(sherdi_state *state, uint64_t generation, uint64_t seed)
{
    unsigned char want[RIG_NOTE_BYTES], got[RIG_NOTE_BYTES];

    CHECK_INT(generation, sherdi_state_generation(state));
    note_make(seed, want);
    CHECK_INT(generation == 0 ? 0 : RIG_NOTE_BYTES, sherdi_state_get_note(state, got, sizeof(got)));
    CHECK_BYTES_EQUAL(want, got, sizeof(want));
}

void rig_rollback(sherdi_state *state, uint64_t seed)
{
    CHECK(sherdi_state_has_previous(state));
    CHECK_OK(sherdi_state_rollback(state));
    rig_expect_generation(state, sherdi_state_generation(state), seed);
    CHECK(!sherdi_state_has_previous(state));
}
