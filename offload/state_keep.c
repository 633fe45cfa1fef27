/* Keeps the live generation for a checkpoint, by links. See state.h and state_sets.h. */
#include "offload/state_impl.h"

#include "base/checked.h"
#include "offload/checksum.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

/* ---------------------------------------------------- where it lies now -- */

static const sherdi_state_entry *live_table(const sherdi_state *state)
{
    return state->tables[state->live];
}

/* Returns the bytes of the live generation that lie in a set. */
static size_t live_bytes(const sherdi_state *state, int set)
{
    const sherdi_state_entry *live      = live_table(state);
    size_t                    len_bytes = 0;

    for (size_t i = 0; i < state->num_extents; i++) {
        len_bytes +=
            live[i].is_written && (int)live[i].slot == set ? state->in_file[i].len_bytes : 0;
    }
    return len_bytes;
}

/* Chooses the set that will have all of the live generation: the set that has all of it already;
 * else, of the sets that are written, the one that has most of it. */
static int target_choose(const sherdi_state *state)
{
    uint32_t sets   = sherdi_state_sets_of(state, state->live);
    int      target = -1;
    size_t   most   = 0;

    for (int s = 0; s < SHERDI_STATE_SETS; s++) {
        size_t here = live_bytes(state, s);

        if (sets == 1u << s) {
            return s;
        }
        if (state->sets.sets[s].role == SHERDI_SET_WRITABLE && (target < 0 || here > most)) {
            target = s;
            most   = here;
        }
    }
    return target;
}

static int needs_a_set(const sherdi_state *state, int target)
{
    return state->sets.sets[target].role == SHERDI_SET_WRITABLE &&
           sherdi_state_sets_count(&state->sets, SHERDI_SET_RESERVED) == 0;
}

/* --------------------------------------------------------------- space -- */

static int reserved_find(const sherdi_state *state)
{
    int set = SHERDI_STATE_SETS - 1;

    while (set >= 0 && state->sets.sets[set].role != SHERDI_SET_RESERVED) {
        set--;
    }
    return set;
}

sherd_status sherdi_state_reserve(sherdi_state *state)
{
    int set;

    if (!needs_a_set(state, target_choose(state))) {
        return SHERD_OK;
    }
    SHERDI_TRY(sherdi_state_set_create(&state->sets, SHERDI_SET_RESERVED, &set));
    for (size_t i = 0; i < state->num_extents; i++) {
        state->is_ours[i] &= (unsigned char)~(1u << set);
    }
    return SHERD_OK;
}

void sherdi_state_unreserve(sherdi_state *state)
{
    int set = reserved_find(state);

    if (set >= 0) {
        sherdi_state_set_drop(&state->sets, set);
    }
}

/* ------------------------------------------------------------ one set -- */

static sherd_status portion_move(sherdi_state *state, int is_write, unsigned char *memory,
                                 size_t extent, uint32_t set, size_t from_bytes, size_t len_bytes)
{
    sherdi_io io = {0};

    sherdi_state_slot_start(state, &io, is_write, memory, extent, set, from_bytes, len_bytes);
    return sherdi_io_wait(state->queue, &io);
}

/* Copies an extent's live contents to the target set, where no live extent is overwritten. */
static sherd_status extent_copy(sherdi_state *state, size_t extent, uint32_t target,
                                unsigned char *memory)
{
    const sherdi_state_entry *live      = &live_table(state)[extent];
    size_t                    len_bytes = state->in_file[extent].len_bytes;
    sherdi_checksum_stream    stream;

    sherdi_checksum_begin(&stream);
    for (size_t done = 0; done < len_bytes;) {
        size_t portion = sherdi_min_size(SHERDI_STATE_PORTION_BYTES, len_bytes - done);

        SHERDI_TRY(portion_move(state, 0, memory, extent, live->slot, done, portion));
        sherdi_checksum_add(&stream, memory, portion);
        SHERDI_TRY(portion_move(state, 1, memory, extent, target, done, portion));
        done += portion;
    }
    if (sherdi_checksum_end(&stream) != live->checksum) {
        return sherdi_state_contents_fail(state, extent, live->slot);
    }
    return SHERD_OK;
}

static sherd_status extents_copy(sherdi_state *state, uint32_t target, unsigned char *memory)
{
    const sherdi_state_entry *live = live_table(state);

    state->has_previous               = 0; /* the copies overwrite its extents */
    state->sets.sets[target].is_dirty = 1;
    for (size_t i = 0; i < state->num_extents; i++) {
        if (live[i].is_written && live[i].slot != target) {
            SHERDI_TRY(extent_copy(state, i, target, memory));
        }
    }
    for (size_t i = 0; i < state->num_extents; i++) {
        if (live[i].is_written && live[i].slot != target) {
            state->is_ours[i] |= (unsigned char)(1u << target);
            state->now[i].slot = target;
        }
    }
    return SHERD_OK;
}

/* Gathers all of the live generation in one set. */
static sherd_status live_gather(sherdi_state *state, int target)
{
    unsigned char *memory;
    sherd_status   status;

    if ((sherdi_state_sets_of(state, state->live) & ~(1u << target)) == 0) {
        return SHERD_OK;
    }
    memory = sherdi_alloc(state->mem, SHERDI_MEM_CONTROL, SHERDI_STATE_PORTION_BYTES);
    if (memory == NULL) {
        return SHERD_E_NOMEM;
    }
    status = extents_copy(state, (uint32_t)target, memory);
    sherdi_free(memory);
    if (status == SHERD_OK) {
        status = sherdi_state_move_live(state);
    }
    if (status != SHERD_OK && !state->is_broken) { /* the live generation is where it was */
        (void)sherdi_state_abandon(state);
    }
    return status;
}

/* ------------------------------------------------------------- keeping -- */

static sherd_status keep_check(const sherdi_state *state)
{
    assert(state->in_flight == 0);
    if (state->is_broken) {
        return sherdi_state_broken_fail(state, SHERD_E_STATE);
    }
    if (state->generation == 0) {
        return sherdi_fail(SHERD_E_STATE, "%s holds no generation: nothing was committed to it",
                           sherdi_file_path(state->index));
    }
    if (state->num_extents > 0 &&
        memcmp(state->now, live_table(state), state->num_extents * sizeof(*state->now)) != 0) {
        return sherdi_fail(SHERD_E_STATE,
                           "%s was written to since the last commit: commit or abandon it first",
                           sherdi_file_path(state->index));
    }
    return SHERD_OK;
}

/* Makes sure that all of the live generation is in the set, and on the medium. */
static sherd_status set_fill(sherdi_state *state, int target)
{
    SHERDI_TRY(sherdi_state_reserve(state));
    SHERDI_TRY(live_gather(state, target));
    return state->sets.sets[target].role == SHERDI_SET_WRITABLE
               ? sherdi_file_sync(state->sets.sets[target].file)
               : SHERD_OK;
}

/* Ends writing to a set; the reserved set takes its place. */
static void set_freeze(sherdi_state *state, int set)
{
    if (state->sets.sets[set].role == SHERDI_SET_WRITABLE) {
        sherdi_state_set_assign(&state->sets, set, SHERDI_SET_KEPT);
        sherdi_state_set_assign(&state->sets, reserved_find(state), SHERDI_SET_WRITABLE);
    }
}

/* The stripes of a linked set are in one folder, even if the state has several. */
typedef struct one_folder {
    const char *paths[SHERDI_STATE_FOLDER_BYTES / 2]; /* a name takes at least two bytes */
} one_folder;

static one_folder folders_of(const sherdi_state *state, const char *folder)
{
    one_folder all;

    for (int i = 0; i < state->sets.num_folders; i++) {
        all.paths[i] = folder;
    }
    return all;
}

/* Checks whether links to the file can be made there. */
static sherd_status links_try(const sherdi_file *file, const char *const *folders, const char *name)
{
    char         other[SHERDI_STATE_FOLDER_BYTES];
    sherd_status status;

    (void)snprintf(other, sizeof(other), ".%s", name);
    status = sherdi_file_link(file, folders, other);
    if (status == SHERD_OK) {
        sherdi_file_unlink(file, folders, other);
    }
    return status;
}

sherd_status sherdi_state_keep_check(sherdi_state *state, const char *folder, const char *name)
{
    const one_folder folders = folders_of(state, folder);

    SHERDI_TRY(keep_check(state));
    return links_try(state->sets.sets[target_choose(state)].file, folders.paths, name);
}

/* Tries links first: where they cannot be made, nothing needs to be reserved or gathered. Makes the
 * final links last, so that a file with that name is complete. */
sherd_status sherdi_state_keep(sherdi_state *state, const char *folder, const char *name)
{
    const one_folder folders = folders_of(state, folder);
    int              target;
    sherd_status     status;

    status = sherdi_state_keep_check(state, folder, name);
    target = target_choose(state);
    if (status == SHERD_OK) {
        status = set_fill(state, target);
    }
    if (status == SHERD_OK) {
        status = sherdi_file_link(state->sets.sets[target].file, folders.paths, name);
    }
    if (status == SHERD_OK) {
        set_freeze(state, target);
    }
    sherdi_state_unreserve(state);
    return status;
}

void sherdi_state_describe(const sherdi_state *state, size_t extent, sherdi_state_slot *out)
{
    const sherdi_state_entry *live = &live_table(state)[extent];

    assert(extent < state->num_extents);
    *out = (sherdi_state_slot){.offset_bytes = state->in_file[extent].offset_bytes,
                               .len_bytes    = state->in_file[extent].len_bytes,
                               .checksum     = live->is_written ? live->checksum : 0,
                               .is_written   = live->is_written != 0};
}

void sherdi_state_describe_file(const sherdi_state *state, sherdi_state_slots_file *out)
{
    *out = (sherdi_state_slots_file){.len_bytes    = state->map.set_bytes,
                                     .stripe_bytes = SHERDI_STRIPE_BYTES,
                                     .num_stripes  = state->sets.num_folders};
}
