/* State on a drive: its transfers and its generations. state.h has the guarantees, state_file.h the
 * layout, and state_sets.h describes the files of the sets. state_keep.c links a generation for a
 * checkpoint.
 *
 * Three tables say where an extent is: those of the two records, as they are in the index, and
 * `now`, which is the live record's table with the writes since the commit. A write goes to a set
 * that does not hold the live record's copy. A commit copies `now` over the record that is not
 * live, writes its table after the data, and writes its head last. */
#include "offload/state_impl.h"

#include "base/checked.h"
#include "base/log.h"
#include "offload/checksum.h"

#include <assert.h>
#include <string.h>

/* ---------------------------------------------------------- transfers -- */

void sherdi_state_slot_start(sherdi_state *state, sherdi_io *io, int is_write, void *memory,
                             size_t extent, uint32_t set, size_t from_bytes, size_t len_bytes)
{
    *io = (sherdi_io){.file         = len_bytes == 0 ? state->index : state->sets.sets[set].file,
                      .is_write     = is_write,
                      .memory       = memory,
                      .offset_bytes = state->in_file[extent].offset_bytes + from_bytes,
                      .len_bytes    = len_bytes,
                      .what         = "state",
                      .number       = extent};
    sherdi_io_start(state->queue, io);
}

/* Transfers a part of the index and waits for it. */
static sherd_status region_move(sherdi_state *state, int is_write, void *memory,
                                size_t offset_bytes, size_t len_bytes, const char *what,
                                size_t number)
{
    sherdi_io io = {.file         = state->index,
                    .is_write     = is_write,
                    .memory       = memory,
                    .offset_bytes = offset_bytes,
                    .len_bytes    = len_bytes,
                    .what         = what,
                    .number       = number};

    sherdi_io_start(state->queue, &io);
    return sherdi_io_wait(state->queue, &io);
}

static sherd_status front_move(sherdi_state *state, int is_write)
{
    return region_move(state, is_write, state->front, 0, sizeof(*state->front), "header", 0);
}

static sherd_status head_write(sherdi_state *state, int index)
{
    return region_move(state, 1, &state->front->heads[index],
                       offsetof(sherdi_state_front, heads) +
                           (size_t)index * sizeof(sherdi_state_head),
                       sizeof(sherdi_state_head), "index", (size_t)index);
}

static sherd_status table_move(sherdi_state *state, int index, int is_write)
{
    return region_move(state, is_write, state->tables[index], state->map.tables_at[index],
                       state->map.table_bytes, "index", (size_t)index);
}

/* Transfers the pages of the note after the tables. */
static sherd_status tail_move(sherdi_state *state, int index, int is_write)
{
    return region_move(state, is_write, state->tails[index], state->map.notes_at[index],
                       sherdi_state_tail_bytes(state->front->heads[index].note_bytes), "note",
                       (size_t)index);
}

static sherd_status sync_if_durable(sherdi_state *state)
{
    return state->is_durable ? sherdi_file_sync(state->index) : SHERD_OK;
}

/* ------------------------------------------------------------ reading -- */

static sherdi_state *state_of(sherdi_tier *extents)
{
    return (sherdi_state *)extents;
}

static void extents_read_start(sherdi_tier *tier, size_t extent, void *memory, sherdi_io *io)
{
    sherdi_state             *state     = state_of(tier);
    const sherdi_state_entry *entry     = &state->now[extent];
    size_t                    len_bytes = state->in_file[extent].len_bytes;

    assert(!io->is_started && extent < state->num_extents);
    state->in_flight++;
    if (!entry->is_written) {
        memset(memory, 0, len_bytes);
        len_bytes = 0;
    }
    sherdi_state_slot_start(state, io, 0, memory, extent, entry->slot, 0, len_bytes);
}

/* Returns the set that a transfer of an extent used. */
static uint32_t io_slot(const sherdi_state *state, const sherdi_io *io)
{
    return (uint32_t)sherdi_state_sets_find(&state->sets, io->file);
}

sherd_status sherdi_state_contents_fail(const sherdi_state *state, size_t extent, uint32_t slot)
{
    return sherdi_fail(SHERD_E_IO,
                       "%s does not hold what was written: state %zu at byte %zu (%zu bytes) has "
                       "another checksum",
                       sherdi_file_path(state->sets.sets[slot].file), extent,
                       state->in_file[extent].offset_bytes, state->in_file[extent].len_bytes);
}

static sherd_status read_check(const sherdi_state *state, const sherdi_io *io)
{
    const sherdi_state_entry *entry = &state->now[io->number];
    uint32_t                  slot;

    if (io->len_bytes == 0) {
        return SHERD_OK;
    }
    slot = io_slot(state, io);
    if (!state->is_verified && (state->is_ours[io->number] >> slot & 1)) {
        return SHERD_OK;
    }
    if (entry->slot != slot) {
        /* it was written again since the read began */
        entry = &state->tables[state->live][io->number];
    }
    return sherdi_checksum(io->memory, io->len_bytes) == entry->checksum
               ? SHERD_OK
               : sherdi_state_contents_fail(state, io->number, slot);
}

/* ------------------------------------------------------------ writing -- */

static void extents_write_start(sherdi_tier *tier, size_t extent, void *memory, sherdi_io *io)
{
    sherdi_state *state     = state_of(tier);
    size_t        len_bytes = state->in_file[extent].len_bytes;
    uint32_t      slot      = state->sets.spare[state->tables[state->live][extent].slot];

    assert(!io->is_started && extent < state->num_extents && !state->is_aimed);
    state->in_flight++;
    if (state->is_broken) {
        sherdi_state_slot_start(state, io, 1, memory, extent, slot, 0, 0);
        return; /* wait reports the failure */
    }
    state->sets.sets[slot].is_dirty = 1;
    state->has_previous             = 0;
    state->is_ours[extent] |= (unsigned char)(1u << slot);
    state->now[extent] = (sherdi_state_entry){
        .checksum = sherdi_checksum(memory, len_bytes), .slot = slot, .is_written = 1};
    sherdi_state_slot_start(state, io, 1, memory, extent, slot, 0, len_bytes);
}

sherd_status sherdi_state_broken_fail(const sherdi_state *state, sherd_status code)
{
    return sherdi_fail(code, "%s: an earlier commit failed, and nothing more is written to it",
                       sherdi_file_path(state->index));
}

static sherd_status write_end(sherdi_state *state, const sherdi_io *io, sherd_status status)
{
    if (status != SHERD_OK) {
        state->is_write_failed = 1;
        state->is_ours[io->number] &= (unsigned char)~(1u << io_slot(state, io));
        return status;
    }
    return state->is_broken ? sherdi_state_broken_fail(state, SHERD_E_IO) : SHERD_OK;
}

static sherd_status extents_wait(sherdi_tier *tier, sherdi_io *io)
{
    sherdi_state *state = state_of(tier);
    sherd_status  status;

    if (!io->is_started) {
        return SHERD_OK;
    }
    status = sherdi_io_wait(state->queue, io);
    state->in_flight--;
    if (io->is_write) {
        return write_end(state, io, status);
    }
    return status == SHERD_OK ? read_check(state, io) : status;
}

static int extents_is_done(sherdi_tier *tier, const sherdi_io *io)
{
    return sherdi_io_is_done(state_of(tier)->queue, io);
}

static void extents_close(sherdi_tier *tier)
{
    sherdi_state_close(state_of(tier), 1);
}

static const sherdi_tier_ops EXTENTS_OPS = {
    .close       = extents_close,
    .read_start  = extents_read_start,
    .write_start = extents_write_start,
    .wait        = extents_wait,
    .is_done     = extents_is_done,
};

sherdi_tier *sherdi_state_extents(sherdi_state *state)
{
    return &state->extents;
}

/* -------------------------------------------------------- generations -- */

static void now_reset(sherdi_state *state)
{
    if (state->num_extents > 0) {
        memcpy(state->now, state->tables[state->live], state->num_extents * sizeof(*state->now));
    }
    state->is_write_failed = 0;
    state->is_aimed        = 0;
}

/* Writes the data first, then table and note, of which the head has checksums, then the head. */
static sherd_status record_write(sherdi_state *state, int index)
{
    if (state->is_durable) {
        SHERDI_TRY(sherdi_state_sets_sync(&state->sets));
    }
    SHERDI_TRY(tail_move(state, index, 1));
    SHERDI_TRY(table_move(state, index, 1));
    SHERDI_TRY(head_write(state, index));
    return sync_if_durable(state);
}

static void unlinked_tell(sherdi_state *state)
{
    if (!state->is_unlinked_told &&
        (!sherdi_file_is_linked(state->index) || !sherdi_state_sets_are_linked(&state->sets))) {
        state->is_unlinked_told = 1;
        sherdi_log(SHERD_LOG_WARN, state->id.rank,
                   "%s, or a file of its slots, was removed while in use: its state will be lost "
                   "when this process ends",
                   sherdi_file_path(state->index));
    }
}

uint32_t sherdi_state_sets_of(const sherdi_state *state, int index)
{
    const sherdi_state_entry *table = state->tables[index];
    uint32_t                  sets  = 0;

    for (size_t i = 0; i < state->num_extents; i++) {
        sets |= table[i].is_written ? 1u << table[i].slot : 0;
    }
    return sets;
}

/* Drops linked sets in which no generation lies any more: only the checkpoint has them from now
 * on. */
static void kept_let_go(sherdi_state *state)
{
    uint32_t needed;

    if (sherdi_state_sets_count(&state->sets, SHERDI_SET_KEPT) == 0) {
        return;
    }
    needed = sherdi_state_sets_of(state, state->live) |
             (state->has_previous ? sherdi_state_sets_of(state, 1 - state->live) : 0);
    for (int s = 0; s < SHERDI_STATE_SETS; s++) {
        if (state->sets.sets[s].role == SHERDI_SET_KEPT && (needed >> s & 1) == 0) {
            sherdi_state_set_drop(&state->sets, s);
        }
    }
}

static void table_take_now(sherdi_state *state, int index)
{
    if (state->num_extents > 0) {
        memcpy(state->tables[index], state->now, state->num_extents * sizeof(*state->now));
    }
}

/* Writes the record that is not live, which then becomes live. */
static sherd_status spare_commit(sherdi_state *state)
{
    int          spare  = 1 - state->live;
    sherd_status status = record_write(state, spare);

    if (status != SHERD_OK) {
        state->is_broken    = 1;
        state->is_torn      = 1;
        state->has_previous = 0;
        return status;
    }
    state->live = spare;
    return SHERD_OK;
}

sherd_status sherdi_state_commit(sherdi_state *state, const void *note, size_t note_bytes)
{
    int spare = 1 - state->live;

    assert(state->in_flight == 0 && !state->is_aimed);
    if (state->is_broken) {
        return sherdi_state_broken_fail(state, SHERD_E_STATE);
    }
    if (state->is_write_failed) {
        return sherdi_fail(SHERD_E_STATE, "%s: a write failed since the last commit",
                           sherdi_file_path(state->index));
    }
    if (note_bytes > state->map.note_bytes) {
        return sherdi_fail(SHERD_E_INVAL, "%s has room for a note of %zu bytes, not %zu",
                           sherdi_file_path(state->index), state->map.note_bytes, note_bytes);
    }
    table_take_now(state, spare);
    sherdi_state_head_fill(&state->id, state->generation + 1, note, note_bytes, state->tails[spare],
                           state->tables[spare], state->map.table_bytes,
                           &state->front->heads[spare]);
    SHERDI_TRY(spare_commit(state));
    state->has_previous = state->generation > 0;
    state->generation++;
    kept_let_go(state);
    unlinked_tell(state);
    return SHERD_OK;
}

uint64_t sherdi_state_generation(const sherdi_state *state)
{
    return state->generation;
}

/* ----------------------------------------------------------- rollback -- */

static sherd_status slot_checksum(sherdi_state *state, size_t extent, uint32_t slot,
                                  unsigned char *memory, uint64_t *out)
{
    size_t                 len_bytes = state->in_file[extent].len_bytes;
    sherdi_checksum_stream stream;
    sherdi_io              io = {0};

    sherdi_checksum_begin(&stream);
    for (size_t done = 0; done < len_bytes; done += io.len_bytes) {
        sherdi_state_slot_start(state, &io, 0, memory, extent, slot, done,
                                sherdi_min_size(SHERDI_STATE_PORTION_BYTES, len_bytes - done));
        SHERDI_TRY(sherdi_io_wait(state->queue, &io));
        sherdi_checksum_add(&stream, memory, io.len_bytes);
    }
    *out = sherdi_checksum_end(&stream);
    return SHERD_OK;
}

/* An earlier process may have overwritten the other generation. Only reading the extents shows
 * this. Extents that the live generation uses too cannot have been overwritten. */
static sherd_status previous_compare(sherdi_state *state, unsigned char *memory)
{
    const sherdi_state_entry *before = state->tables[1 - state->live];
    const sherdi_state_entry *live   = state->tables[state->live];

    for (size_t i = 0; i < state->num_extents; i++) {
        uint64_t checksum;

        if (!before[i].is_written || before[i].slot == live[i].slot ||
            (state->is_ours[i] >> before[i].slot & 1)) {
            continue;
        }
        SHERDI_TRY(slot_checksum(state, i, before[i].slot, memory, &checksum));
        if (checksum != before[i].checksum) {
            state->has_previous = 0;
            return sherdi_fail(
                SHERD_E_STATE,
                "%s: cannot go back to generation %llu, a part of it was overwritten (state %zu)",
                sherdi_file_path(state->index), (unsigned long long)(state->generation - 1), i);
        }
    }
    return SHERD_OK;
}

static sherd_status previous_check(sherdi_state *state)
{
    unsigned char *memory;
    sherd_status   status;

    memory = sherdi_alloc(state->mem, SHERDI_MEM_CONTROL, SHERDI_STATE_PORTION_BYTES);
    if (memory == NULL) {
        return SHERD_E_NOMEM;
    }
    status = previous_compare(state, memory);
    sherdi_free(memory);
    return status;
}

/* Durable independently of the params, because ranks that must agree roll back for each other's
 * sake. */
static sherd_status head_erase(sherdi_state *state, int index)
{
    memset(&state->front->heads[index], 0, sizeof(state->front->heads[index]));
    SHERDI_TRY(head_write(state, index));
    return sherdi_file_sync(state->index);
}

/* Between the two writes both records have this generation, and what each says of it is true. */
sherd_status sherdi_state_move_live(sherdi_state *state)
{
    int spare = 1 - state->live;

    table_take_now(state, spare);
    if (state->map.tail_bytes > 0) {
        memcpy(state->tails[spare], state->tails[state->live], state->map.tail_bytes);
    }
    state->front->heads[spare] = state->front->heads[state->live];
    sherdi_state_head_retable(&state->front->heads[spare], state->tables[spare],
                              state->map.table_bytes);
    SHERDI_TRY(spare_commit(state));
    /* Until the other record is erased, because the extents that it names will be overwritten. */
    state->is_broken = 1;
    state->is_torn   = 1;
    SHERDI_TRY(head_erase(state, 1 - state->live));
    state->is_broken = 0;
    state->is_torn   = 0;
    kept_let_go(state);
    return SHERD_OK;
}

sherd_status sherdi_state_abandon(sherdi_state *state)
{
    assert(state->in_flight == 0);
    now_reset(state);
    if (state->is_torn) {
        SHERDI_TRY(head_erase(state, 1 - state->live));
        state->is_torn   = 0;
        state->is_broken = 0;
    }
    return SHERD_OK;
}

sherd_status sherdi_state_aim(sherdi_state *state, uint64_t generation)
{
    int is_before = generation + 1 == state->generation && state->has_previous;

    assert(state->in_flight == 0);
    if (state->is_broken) {
        return sherdi_state_broken_fail(state, SHERD_E_STATE);
    }
    if (generation == 0 || (generation != state->generation && !is_before)) {
        return sherdi_fail(SHERD_E_STATE, "%s does not hold generation %llu: its newest is %llu%s",
                           sherdi_file_path(state->index), (unsigned long long)generation,
                           (unsigned long long)state->generation,
                           state->has_previous ? ", and it holds the one before" : "");
    }
    now_reset(state);
    if (is_before && state->num_extents > 0) {
        memcpy(state->now, state->tables[1 - state->live],
               state->num_extents * sizeof(*state->now));
    }
    state->is_aimed = is_before;
    return SHERD_OK;
}

/* Also while a rollback to it has failed, which another one goes on with. */
int sherdi_state_has_previous(const sherdi_state *state)
{
    return state->has_previous && (!state->is_broken || state->is_erasing);
}

/* Erases the live head. Before that the live generation counts, afterwards the generation before
 * it; a head that was torn in between counts as erased. */
sherd_status sherdi_state_rollback(sherdi_state *state)
{
    assert(state->in_flight == 0);
    if (!sherdi_state_has_previous(state)) {
        return sherdi_fail(
            SHERD_E_STATE,
            "%s: there is no generation before %llu to go back to, or it was overwritten",
            sherdi_file_path(state->index), (unsigned long long)state->generation);
    }
    SHERDI_TRY(previous_check(state));
    state->is_broken  = 1; /* until the head is erased, which the next rollback tries again */
    state->is_erasing = 1;
    SHERDI_TRY(head_erase(state, state->live));
    state->is_broken    = 0;
    state->is_erasing   = 0;
    state->live         = 1 - state->live;
    state->generation   = state->generation - 1;
    state->has_previous = 0;
    now_reset(state);
    kept_let_go(state);
    return SHERD_OK;
}

/* From now on no run continues from this state, even if the process is killed in the middle of the
 * removal: the remaining files are like those of a run that never committed, and the next run
 * reclaims them. If the heads cannot be written, the files are removed all the same. */
static void generations_erase(sherdi_state *state)
{
    memset(state->front->heads, 0, sizeof(state->front->heads));
    if (head_write(state, 0) == SHERD_OK && head_write(state, 1) == SHERD_OK) {
        (void)sync_if_durable(state);
    }
}

void sherdi_state_close(sherdi_state *state, int is_kept)
{
    assert(state->in_flight == 0);
    if (!is_kept && state->generation > 0) {
        generations_erase(state);
    }
    sherdi_state_sets_fini(&state->sets, is_kept); /* the index goes last: it leads to them */
    sherdi_file_close(state->index, !is_kept);
    sherdi_free(state->is_ours);
    sherdi_free(state->now);
    sherdi_free(state->tails[1]);
    sherdi_free(state->tails[0]);
    sherdi_free(state->tables[1]);
    sherdi_free(state->tables[0]);
    sherdi_free(state->front);
    sherdi_free(state->in_file);
    sherdi_free(state);
}

/* --------------------------------------------------- creating, opening -- */

/* Computes the layout for notes of this length, and allocates room for the notes. */
static sherd_status state_lay_out(sherdi_state *state, const sherdi_state_params *params,
                                  size_t note_bytes)
{
    SHERDI_TRY(sherdi_state_map_extents(params->extents, state->num_extents, note_bytes,
                                        state->in_file, &state->map));
    state->sets.set_bytes = state->map.set_bytes;
    for (int i = 0; i < 2 && state->map.tail_bytes > 0; i++) {
        state->tails[i] = sherdi_alloc(state->mem, SHERDI_MEM_CONTROL, state->map.tail_bytes);
        if (state->tails[i] == NULL) {
            return SHERD_E_NOMEM;
        }
    }
    return SHERD_OK;
}

static sherd_status state_fill(sherdi_state *state, const sherdi_state_params *params)
{
    sherdi_mem              *mem     = state->mem;
    const sherdi_mem_purpose purpose = SHERDI_MEM_CONTROL;
    size_t                   table_bytes;

    state->in_file = sherdi_alloc_array(mem, purpose, state->num_extents, sizeof(*state->in_file));
    if (state->in_file == NULL) {
        return SHERD_E_NOMEM;
    }
    table_bytes = sherdi_state_table_bytes(state->num_extents);
    SHERDI_TRY(sherdi_state_sets_init(&state->sets, state->queue, params, mem));
    state->front     = sherdi_alloc(mem, purpose, sizeof(*state->front));
    state->tables[0] = sherdi_alloc(mem, purpose, table_bytes);
    state->tables[1] = sherdi_alloc(mem, purpose, table_bytes);
    state->now       = sherdi_alloc(mem, purpose, table_bytes);
    state->is_ours   = sherdi_alloc(mem, purpose, state->num_extents);
    if (state->front == NULL || state->tables[0] == NULL || state->tables[1] == NULL ||
        state->now == NULL || state->is_ours == NULL) {
        return SHERD_E_NOMEM;
    }
    return SHERD_OK;
}

static sherd_status index_open(sherdi_state *state, const sherdi_state_params *params,
                               uint32_t flags)
{
    char               name[SHERDI_STATE_NAME_BYTES];
    sherdi_file_params file = {.folders        = params->folders,
                               .num_folders    = 1,
                               .name           = name,
                               .capacity_bytes = state->map.index_bytes,
                               .flags          = flags};

    sherdi_state_name(&params->id, name);
    return sherdi_file_open(state->queue, &file, &state->index);
}

/* Makes everything but the file. */
static sherd_status state_make(sherdi_ioq *queue, const sherdi_state_params *params,
                               sherdi_mem *mem, sherdi_state **out)
{
    sherdi_state *state;
    sherd_status  status;

    SHERDI_TRY(sherdi_checksum_check_built());
    state = sherdi_alloc(mem, SHERDI_MEM_CONTROL, sizeof(*state));
    if (state == NULL) {
        return SHERD_E_NOMEM;
    }
    state->extents.ops = &EXTENTS_OPS;
    state->queue       = queue;
    state->mem         = mem;
    state->id          = params->id;
    state->is_verified = params->is_verified;
    state->is_durable  = params->is_durable;
    state->num_extents = params->num_extents;
    status             = state_fill(state, params);
    if (status != SHERD_OK) {
        sherdi_state_close(state, 1);
        return status;
    }
    *out = state;
    return SHERD_OK;
}

/* Writes the header first: from then on the sets can be found by it. */
static sherd_status state_create(sherdi_state *state, const sherdi_state_params *params)
{
    SHERDI_TRY(state_lay_out(state, params, params->note_bytes));
    SHERDI_TRY(sherdi_state_header_fill(params, &state->map, &state->front->header));
    SHERDI_TRY(index_open(state, params, SHERDI_FILE_CREATE));
    SHERDI_TRY(front_move(state, 1));
    SHERDI_TRY(sync_if_durable(state));
    return sherdi_state_sets_make_two(&state->sets);
}

static sherd_status header_load(sherdi_state *state, const sherdi_state_params *params)
{
    const char                *path   = sherdi_file_path(state->index);
    const sherdi_state_header *header = &state->front->header;

    SHERDI_TRY(front_move(state, 0));
    if (!sherdi_state_header_is_whole(header)) {
        return sherdi_fail(SHERD_E_STATE,
                           "%s has no intact header: it is damaged, or not a state file", path);
    }
    SHERDI_TRY(state_lay_out(state, params, header->note_bytes));
    return sherdi_state_header_compare(header, params, &state->map, path);
}

/* A head does not count if its table or note is not intact, or cannot be read. */
static int table_load(sherdi_state *state, int index)
{
    const sherdi_state_head *head = &state->front->heads[index];

    return sherdi_state_head_is_whole(head, &state->id) &&
           table_move(state, index, 0) == SHERD_OK &&
           sherdi_state_table_is_whole(head, state->tables[index], state->num_extents,
                                       state->map.table_bytes) &&
           head->note_bytes <= state->map.note_bytes && tail_move(state, index, 0) == SHERD_OK &&
           sherdi_state_tail_is_whole(head, state->tails[index]);
}

static sherd_status records_load(sherdi_state *state)
{
    const sherdi_state_head *heads     = state->front->heads;
    const int                usable[2] = {table_load(state, 0), table_load(state, 1)};
    const sherdi_state_heads found     = sherdi_state_heads_read(heads, usable, &state->id);

    if (found.live < 0 && found.is_damaged) {
        return sherdi_fail(SHERD_E_STATE, "%s holds no generation that is intact",
                           sherdi_file_path(state->index));
    }
    if (found.live < 0) {
        return sherdi_fail(SHERD_E_STATE, "%s holds no generation: nothing was committed to it",
                           sherdi_file_path(state->index));
    }
    if (found.is_damaged) {
        sherdi_log(SHERD_LOG_INFO, state->id.rank,
                   "%s: one of its two index records is damaged; generation %llu is used",
                   sherdi_file_path(state->index), (unsigned long long)found.generation);
    }
    state->live         = found.live;
    state->generation   = found.generation;
    state->has_previous = found.previous > 0;
    now_reset(state);
    return SHERD_OK;
}

/* To continue is worth more than the generation before: if that cannot be opened, the state does
 * without it. */
static sherd_status previous_load(sherdi_state *state, uint32_t sets)
{
    sherd_status status = SHERD_OK;

    for (int s = 0; s < SHERDI_STATE_SETS && status == SHERD_OK; s++) {
        if ((sets >> s & 1) && state->sets.sets[s].file == NULL) {
            status = sherdi_state_set_open(&state->sets, s);
        }
    }
    if (status == SHERD_E_IO) {
        sherdi_log(SHERD_LOG_WARN, state->id.rank, "generation %llu is not there any more: %s",
                   (unsigned long long)(state->generation - 1), sherd_last_error());
        state->has_previous = 0;
        return SHERD_OK;
    }
    return status;
}

/* A set without a generation is made anew, because nobody knows how far its writer had come. */
static sherd_status sets_load(sherdi_state *state)
{
    uint32_t live = sherdi_state_sets_of(state, state->live);

    for (int s = 0; s < SHERDI_STATE_SETS; s++) {
        if (live >> s & 1) {
            SHERDI_TRY(sherdi_state_set_open(&state->sets, s));
        }
    }
    if (state->has_previous) {
        SHERDI_TRY(previous_load(state, sherdi_state_sets_of(state, 1 - state->live)));
    }
    for (int s = 0; s < SHERDI_STATE_SETS; s++) {
        if (state->sets.sets[s].file == NULL) {
            sherdi_state_set_drop(&state->sets, s);
        }
    }
    return sherdi_state_sets_make_two(&state->sets);
}

static sherd_status state_open(sherdi_state *state, const sherdi_state_params *params)
{
    SHERDI_TRY(index_open(state, params, 0));
    SHERDI_TRY(header_load(state, params));
    SHERDI_TRY(records_load(state));
    return sets_load(state);
}

/* Begins a state with new files, or with files of an earlier process. A failure leaves no new
 * files. */
static sherd_status state_begin(sherdi_ioq *queue, const sherdi_state_params *params,
                                sherdi_mem *mem, int is_new, sherdi_state **out)
{
    sherdi_state *state;
    sherd_status  status;

    SHERDI_TRY(state_make(queue, params, mem, &state));
    status = is_new ? state_create(state, params) : state_open(state, params);
    if (status != SHERD_OK) {
        sherdi_state_close(state, !is_new);
        return status;
    }
    *out = state;
    return SHERD_OK;
}

sherd_status sherdi_state_create(sherdi_ioq *queue, const sherdi_state_params *params,
                                 sherdi_mem *mem, sherdi_state **out)
{
    return state_begin(queue, params, mem, 1, out);
}

sherd_status sherdi_state_open(sherdi_ioq *queue, const sherdi_state_params *params,
                               sherdi_mem *mem, sherdi_state **out)
{
    return state_begin(queue, params, mem, 0, out);
}

void sherdi_state_verify(sherdi_state *state, int is_on)
{
    state->is_verified = is_on;
}

size_t sherdi_state_get_note(const sherdi_state *state, void *out, size_t out_bytes)
{
    int                      index = state->is_aimed ? 1 - state->live : state->live;
    const sherdi_state_head *head  = &state->front->heads[index];

    sherdi_state_note_take(head, state->tails[index], out, out_bytes);
    return head->note_bytes;
}
