/* The tier on a drive that keeps generations of state beyond the death of the process. tier.h says what it promises,
 * state_file.h what lies where, and state_sets.h describes the files of the slots. state_keep.c keeps a generation for a
 * checkpoint.
 *
 * Three tables say where an extent is: those of the two records, as they are in the index, and `now`, which is the live
 * record's table with the writes since the commit. A write goes to a set that does not hold the live record's copy. A commit
 * copies `now` over the record that is not live, writes its table after the data, and writes its head last. */
#include "offload/nvme_state_impl.h"

#include "base/checked.h"
#include "base/log.h"
#include "offload/checksum.h"

#include <assert.h>
#include <string.h>

/* ---------------------------------------------------------- transfers -- */

void sherdi_state_slot_start(sherdi_state_tier *self, sherdi_io *io, int is_write, void *memory,
                             size_t extent, uint32_t set, size_t from_bytes, size_t len_bytes)
{
    *io = (sherdi_io){.file         = len_bytes == 0 ? self->index : self->sets.sets[set].file,
                      .is_write     = is_write,
                      .memory       = memory,
                      .offset_bytes = self->in_file[extent].offset_bytes + from_bytes,
                      .len_bytes    = len_bytes,
                      .what         = "state",
                      .number       = extent};
    sherdi_io_start(self->queue, io);
}

/* Transfers a part of the index and waits for it. */
static sherd_status region_move(sherdi_state_tier *self, int is_write, void *memory,
                                size_t offset_bytes, size_t len_bytes, const char *what,
                                size_t number)
{
    sherdi_io io = {.file         = self->index,
                    .is_write     = is_write,
                    .memory       = memory,
                    .offset_bytes = offset_bytes,
                    .len_bytes    = len_bytes,
                    .what         = what,
                    .number       = number};

    sherdi_io_start(self->queue, &io);
    return sherdi_io_wait(self->queue, &io);
}

static sherd_status front_move(sherdi_state_tier *self, int is_write)
{
    return region_move(self, is_write, self->front, 0, sizeof(*self->front), "header", 0);
}

static sherd_status head_write(sherdi_state_tier *self, int index)
{
    return region_move(self, 1, &self->front->heads[index],
                       offsetof(sherdi_state_front, heads) +
                           (size_t)index * sizeof(sherdi_state_head),
                       sizeof(sherdi_state_head), "index", (size_t)index);
}

static sherd_status table_move(sherdi_state_tier *self, int index, int is_write)
{
    return region_move(self, is_write, self->tables[index], self->map.tables_at[index],
                       self->map.table_bytes, "index", (size_t)index);
}

/* Transfers the pages that the note takes behind the tables. */
static sherd_status tail_move(sherdi_state_tier *self, int index, int is_write)
{
    return region_move(self, is_write, self->tails[index], self->map.notes_at[index],
                       sherdi_state_tail_bytes(self->front->heads[index].note_bytes), "note",
                       (size_t)index);
}

static sherd_status sync_if_durable(sherdi_state_tier *self)
{
    return self->is_durable ? sherdi_file_sync(self->index) : SHERD_OK;
}

/* ------------------------------------------------------------ reading -- */

static void state_read_start(sherdi_tier *tier, size_t extent, void *memory, sherdi_io *io)
{
    sherdi_state_tier        *self      = (sherdi_state_tier *)tier;
    const sherdi_state_entry *entry     = &self->now[extent];
    size_t                    len_bytes = self->in_file[extent].len_bytes;

    assert(!io->is_started && extent < self->num_extents);
    self->in_flight++;
    if (!entry->is_written) {
        memset(memory, 0, len_bytes);
        len_bytes = 0;
    }
    sherdi_state_slot_start(self, io, 0, memory, extent, entry->slot, 0, len_bytes);
}

/* Returns the set that a transfer of an extent used. */
static uint32_t io_slot(const sherdi_state_tier *self, const sherdi_io *io)
{
    return (uint32_t)sherdi_state_sets_find(&self->sets, io->file);
}

sherd_status sherdi_state_contents_fail(const sherdi_state_tier *self, size_t extent, uint32_t slot)
{
    return sherdi_fail(SHERD_E_IO,
                       "%s does not hold what was written: state %zu at byte %zu (%zu bytes) has "
                       "another checksum",
                       sherdi_file_path(self->sets.sets[slot].file), extent,
                       self->in_file[extent].offset_bytes, self->in_file[extent].len_bytes);
}

static sherd_status read_check(const sherdi_state_tier *self, const sherdi_io *io)
{
    const sherdi_state_entry *entry = &self->now[io->number];
    uint32_t                  slot;

    if (io->len_bytes == 0) {
        return SHERD_OK;
    }
    slot = io_slot(self, io);
    if (!self->is_verified && (self->is_ours[io->number] >> slot & 1)) {
        return SHERD_OK;
    }
    if (entry->slot != slot) {
        /* it was written again since the read began */
        entry = &self->tables[self->live][io->number];
    }
    return sherdi_checksum(io->memory, io->len_bytes) == entry->checksum
               ? SHERD_OK
               : sherdi_state_contents_fail(self, io->number, slot);
}

/* ------------------------------------------------------------ writing -- */

static void state_write_start(sherdi_tier *tier, size_t extent, void *memory, sherdi_io *io)
{
    sherdi_state_tier *self      = (sherdi_state_tier *)tier;
    size_t             len_bytes = self->in_file[extent].len_bytes;
    uint32_t           slot      = self->sets.spare[self->tables[self->live][extent].slot];

    assert(!io->is_started && extent < self->num_extents);
    self->in_flight++;
    if (self->is_broken) {
        sherdi_state_slot_start(self, io, 1, memory, extent, slot, 0, 0);
        return; /* wait reports the failure */
    }
    self->sets.sets[slot].is_dirty = 1;
    self->has_previous             = 0;
    self->is_ours[extent] |= (unsigned char)(1u << slot);
    self->now[extent] = (sherdi_state_entry){
        .checksum = sherdi_checksum(memory, len_bytes), .slot = slot, .is_written = 1};
    sherdi_state_slot_start(self, io, 1, memory, extent, slot, 0, len_bytes);
}

sherd_status sherdi_state_broken_fail(const sherdi_state_tier *self, sherd_status code)
{
    return sherdi_fail(code, "%s: an earlier commit failed, and nothing more is written to it",
                       sherdi_file_path(self->index));
}

static sherd_status write_end(sherdi_state_tier *self, const sherdi_io *io, sherd_status status)
{
    if (status != SHERD_OK) {
        self->is_write_failed = 1;
        self->is_ours[io->number] &= (unsigned char)~(1u << io_slot(self, io));
        return status;
    }
    return self->is_broken ? sherdi_state_broken_fail(self, SHERD_E_IO) : SHERD_OK;
}

static sherd_status state_wait(sherdi_tier *tier, sherdi_io *io)
{
    sherdi_state_tier *self = (sherdi_state_tier *)tier;
    sherd_status       status;

    if (!io->is_started) {
        return SHERD_OK;
    }
    status = sherdi_io_wait(self->queue, io);
    self->in_flight--;
    if (io->is_write) {
        return write_end(self, io, status);
    }
    return status == SHERD_OK ? read_check(self, io) : status;
}

static int state_is_done(sherdi_tier *tier, const sherdi_io *io)
{
    return sherdi_io_is_done(((sherdi_state_tier *)tier)->queue, io);
}

/* -------------------------------------------------------- generations -- */

static void now_reset(sherdi_state_tier *self)
{
    if (self->num_extents > 0) {
        memcpy(self->now, self->tables[self->live], self->num_extents * sizeof(*self->now));
    }
    self->is_write_failed = 0;
}

/* Writes the data first, then table and note, of which the head has checksums, then the head. */
static sherd_status record_write(sherdi_state_tier *self, int index)
{
    if (self->is_durable) {
        SHERDI_TRY(sherdi_state_sets_sync(&self->sets));
    }
    SHERDI_TRY(tail_move(self, index, 1));
    SHERDI_TRY(table_move(self, index, 1));
    SHERDI_TRY(head_write(self, index));
    return sync_if_durable(self);
}

static void unlinked_tell(sherdi_state_tier *self)
{
    if (!self->is_unlinked_told &&
        (!sherdi_file_is_linked(self->index) || !sherdi_state_sets_are_linked(&self->sets))) {
        self->is_unlinked_told = 1;
        sherdi_log(SHERD_LOG_WARN, self->id.rank,
                   "%s, or a file of its slots, was removed while in use: its state will be lost "
                   "when this process ends",
                   sherdi_file_path(self->index));
    }
}

uint32_t sherdi_state_sets_of(const sherdi_state_tier *self, int index)
{
    const sherdi_state_entry *table = self->tables[index];
    uint32_t                  sets  = 0;

    for (size_t i = 0; i < self->num_extents; i++) {
        sets |= table[i].is_written ? 1u << table[i].slot : 0;
    }
    return sets;
}

/* Drops kept sets in which no generation lies any more: only the checkpoint has them from now on. */
static void kept_let_go(sherdi_state_tier *self)
{
    uint32_t needed;

    if (sherdi_state_sets_count(&self->sets, SHERDI_SET_KEPT) == 0) {
        return;
    }
    needed = sherdi_state_sets_of(self, self->live) |
             (self->has_previous ? sherdi_state_sets_of(self, 1 - self->live) : 0);
    for (int s = 0; s < SHERDI_STATE_SETS; s++) {
        if (self->sets.sets[s].role == SHERDI_SET_KEPT && (needed >> s & 1) == 0) {
            sherdi_state_set_drop(&self->sets, s);
        }
    }
}

static void table_take_now(sherdi_state_tier *self, int index)
{
    if (self->num_extents > 0) {
        memcpy(self->tables[index], self->now, self->num_extents * sizeof(*self->now));
    }
}

/* Writes the record that is not live, which then becomes live. */
static sherd_status spare_commit(sherdi_state_tier *self)
{
    int          spare  = 1 - self->live;
    sherd_status status = record_write(self, spare);

    if (status != SHERD_OK) {
        self->is_broken    = 1;
        self->is_torn      = 1;
        self->has_previous = 0;
        return status;
    }
    self->live = spare;
    return SHERD_OK;
}

static sherd_status state_commit(sherdi_tier *tier, const void *note, size_t note_bytes)
{
    sherdi_state_tier *self  = (sherdi_state_tier *)tier;
    int                spare = 1 - self->live;

    assert(self->in_flight == 0);
    if (self->is_broken) {
        return sherdi_state_broken_fail(self, SHERD_E_STATE);
    }
    if (self->is_write_failed) {
        return sherdi_fail(SHERD_E_STATE, "%s: a write failed since the last commit",
                           sherdi_file_path(self->index));
    }
    if (note_bytes > self->map.note_bytes) {
        return sherdi_fail(SHERD_E_INVAL, "%s has room for a note of %zu bytes, not %zu",
                           sherdi_file_path(self->index), self->map.note_bytes, note_bytes);
    }
    table_take_now(self, spare);
    sherdi_state_head_fill(&self->id, self->generation + 1, note, note_bytes, self->tails[spare],
                           self->tables[spare], self->map.table_bytes, &self->front->heads[spare]);
    SHERDI_TRY(spare_commit(self));
    self->has_previous = self->generation > 0;
    self->generation++;
    kept_let_go(self);
    unlinked_tell(self);
    return SHERD_OK;
}

static uint64_t state_generation(const sherdi_tier *tier)
{
    return ((const sherdi_state_tier *)tier)->generation;
}

/* ----------------------------------------------------------- rollback -- */

static sherd_status slot_checksum(sherdi_state_tier *self, size_t extent, uint32_t slot,
                                  unsigned char *memory, uint64_t *out)
{
    size_t                 len_bytes = self->in_file[extent].len_bytes;
    sherdi_checksum_stream stream;
    sherdi_io              io = {0};

    sherdi_checksum_begin(&stream);
    for (size_t done = 0; done < len_bytes; done += io.len_bytes) {
        sherdi_state_slot_start(self, &io, 0, memory, extent, slot, done,
                                sherdi_min_size(SHERDI_STATE_PORTION_BYTES, len_bytes - done));
        SHERDI_TRY(sherdi_io_wait(self->queue, &io));
        sherdi_checksum_add(&stream, memory, io.len_bytes);
    }
    *out = sherdi_checksum_end(&stream);
    return SHERD_OK;
}

/* An earlier process may have written over what it wrote before. Only reading the slots shows that. Slots that the live
 * generation uses too cannot have been written over. */
static sherd_status previous_compare(sherdi_state_tier *self, unsigned char *memory)
{
    const sherdi_state_entry *before = self->tables[1 - self->live];
    const sherdi_state_entry *live   = self->tables[self->live];

    for (size_t i = 0; i < self->num_extents; i++) {
        uint64_t checksum;

        if (!before[i].is_written || before[i].slot == live[i].slot ||
            (self->is_ours[i] >> before[i].slot & 1)) {
            continue;
        }
        SHERDI_TRY(slot_checksum(self, i, before[i].slot, memory, &checksum));
        if (checksum != before[i].checksum) {
            self->has_previous = 0;
            return sherdi_fail(
                SHERD_E_STATE,
                "%s: cannot go back to generation %llu, a part of it was overwritten (state %zu)",
                sherdi_file_path(self->index), (unsigned long long)(self->generation - 1), i);
        }
    }
    return SHERD_OK;
}

static sherd_status previous_check(sherdi_state_tier *self)
{
    unsigned char *memory;
    sherd_status   status;

    memory = sherdi_alloc(self->mem, SHERDI_MEM_CONTROL, SHERDI_STATE_PORTION_BYTES);
    if (memory == NULL) {
        return SHERD_E_NOMEM;
    }
    status = previous_compare(self, memory);
    sherdi_free(memory);
    return status;
}

/* Durable whatever the params say, because ranks that must agree roll back for each other's sake. */
static sherd_status head_erase(sherdi_state_tier *self, int index)
{
    memset(&self->front->heads[index], 0, sizeof(self->front->heads[index]));
    SHERDI_TRY(head_write(self, index));
    return sherdi_file_sync(self->index);
}

/* Between the two writes both records have this generation, and what each says of it is true. */
sherd_status sherdi_state_move_live(sherdi_state_tier *self)
{
    int spare = 1 - self->live;

    table_take_now(self, spare);
    if (self->map.tail_bytes > 0) {
        memcpy(self->tails[spare], self->tails[self->live], self->map.tail_bytes);
    }
    self->front->heads[spare] = self->front->heads[self->live];
    sherdi_state_head_retable(&self->front->heads[spare], self->tables[spare],
                              self->map.table_bytes);
    SHERDI_TRY(spare_commit(self));
    /* Until the other record is erased, because the slots that it names will not stay as they are. */
    self->is_broken = 1;
    self->is_torn   = 1;
    SHERDI_TRY(head_erase(self, 1 - self->live));
    self->is_broken = 0;
    self->is_torn   = 0;
    kept_let_go(self);
    return SHERD_OK;
}

static sherd_status state_abandon(sherdi_tier *tier)
{
    sherdi_state_tier *self = (sherdi_state_tier *)tier;

    assert(self->in_flight == 0);
    now_reset(self);
    if (self->is_torn) {
        SHERDI_TRY(head_erase(self, 1 - self->live));
        self->is_torn   = 0;
        self->is_broken = 0;
    }
    return SHERD_OK;
}

/* Also while a rollback to it has failed, which another one goes on with. */
static int previous_is_there(const sherdi_state_tier *self)
{
    return self->has_previous && (!self->is_broken || self->is_erasing);
}

/* Erases the live head. Before that the live generation counts, afterwards the generation before it; a head that was torn in
 * between counts as erased. */
static sherd_status state_rollback(sherdi_tier *tier)
{
    sherdi_state_tier *self = (sherdi_state_tier *)tier;

    assert(self->in_flight == 0);
    if (!previous_is_there(self)) {
        return sherdi_fail(
            SHERD_E_STATE,
            "%s: there is no generation before %llu to go back to, or it was overwritten",
            sherdi_file_path(self->index), (unsigned long long)self->generation);
    }
    SHERDI_TRY(previous_check(self));
    self->is_broken  = 1; /* until the head is erased, which the next rollback tries again */
    self->is_erasing = 1;
    SHERDI_TRY(head_erase(self, self->live));
    self->is_broken    = 0;
    self->is_erasing   = 0;
    self->live         = 1 - self->live;
    self->generation   = self->generation - 1;
    self->has_previous = 0;
    now_reset(self);
    kept_let_go(self);
    return SHERD_OK;
}

/* From now on no run continues from this state, wherever in the removal the process is killed: the remaining files are like
 * those of a run that never committed, and the next run reclaims them. If the heads cannot be written, the files are removed
 * all the same. */
static void generations_erase(sherdi_state_tier *self)
{
    memset(self->front->heads, 0, sizeof(self->front->heads));
    if (head_write(self, 0) == SHERD_OK && head_write(self, 1) == SHERD_OK) {
        (void)sync_if_durable(self);
    }
}

static void state_close(sherdi_tier *tier, int is_kept)
{
    sherdi_state_tier *self = (sherdi_state_tier *)tier;

    assert(self->in_flight == 0);
    if (!is_kept && self->generation > 0) {
        generations_erase(self);
    }
    sherdi_state_sets_fini(&self->sets, is_kept); /* the index goes last: it leads to them */
    sherdi_file_close(self->index, !is_kept);
    sherdi_free(self->is_ours);
    sherdi_free(self->now);
    sherdi_free(self->tails[1]);
    sherdi_free(self->tails[0]);
    sherdi_free(self->tables[1]);
    sherdi_free(self->tables[0]);
    sherdi_free(self->front);
    sherdi_free(self->in_file);
    sherdi_free(self);
}

static const sherdi_tier_ops STATE_OPS = {
    .struct_size = sizeof(sherdi_tier_ops),
    .name        = "nvme",
    .close       = state_close,
    .read_start  = state_read_start,
    .write_start = state_write_start,
    .wait        = state_wait,
    .is_done     = state_is_done,
    .commit      = state_commit,
    .abandon     = state_abandon,
    .rollback    = state_rollback,
    .generation  = state_generation,
};

/* --------------------------------------------------- creating, opening -- */

/* Computes where things are, for notes of so many bytes, and allocates room for the notes. */
static sherd_status state_lay_out(sherdi_state_tier *self, const sherdi_tier_state_params *params,
                                  size_t note_bytes)
{
    SHERDI_TRY(sherdi_state_map_extents(params->extents, self->num_extents, note_bytes,
                                        self->in_file, &self->map));
    self->sets.set_bytes = self->map.set_bytes;
    for (int i = 0; i < 2 && self->map.tail_bytes > 0; i++) {
        self->tails[i] = sherdi_alloc(self->mem, SHERDI_MEM_CONTROL, self->map.tail_bytes);
        if (self->tails[i] == NULL) {
            return SHERD_E_NOMEM;
        }
    }
    return SHERD_OK;
}

static sherd_status state_fill(sherdi_state_tier *self, const sherdi_tier_state_params *params)
{
    sherdi_mem              *mem     = self->mem;
    const sherdi_mem_purpose purpose = SHERDI_MEM_CONTROL;
    size_t                   table_bytes;

    self->in_file = sherdi_alloc_array(mem, purpose, self->num_extents, sizeof(*self->in_file));
    if (self->in_file == NULL) {
        return SHERD_E_NOMEM;
    }
    table_bytes = sherdi_state_table_bytes(self->num_extents);
    SHERDI_TRY(sherdi_state_sets_init(&self->sets, self->queue, params, mem));
    self->front     = sherdi_alloc(mem, purpose, sizeof(*self->front));
    self->tables[0] = sherdi_alloc(mem, purpose, table_bytes);
    self->tables[1] = sherdi_alloc(mem, purpose, table_bytes);
    self->now       = sherdi_alloc(mem, purpose, table_bytes);
    self->is_ours   = sherdi_alloc(mem, purpose, self->num_extents);
    if (self->front == NULL || self->tables[0] == NULL || self->tables[1] == NULL ||
        self->now == NULL || self->is_ours == NULL) {
        return SHERD_E_NOMEM;
    }
    return SHERD_OK;
}

static sherd_status index_open(sherdi_state_tier *self, const sherdi_tier_state_params *params,
                               uint32_t flags)
{
    char               name[SHERDI_STATE_NAME_BYTES];
    sherdi_file_params file = {.folders        = params->folders,
                               .num_folders    = 1,
                               .name           = name,
                               .capacity_bytes = self->map.index_bytes,
                               .flags          = flags};

    sherdi_state_name(&params->id, name);
    return sherdi_file_open(self->queue, &file, &self->index);
}

/* Makes everything but the file. */
static sherd_status state_make(sherdi_ioq *queue, const sherdi_tier_state_params *params,
                               sherdi_mem *mem, sherdi_state_tier **out)
{
    sherdi_state_tier *self;
    sherd_status       status;

    SHERDI_TRY(sherdi_checksum_check_built());
    self = sherdi_alloc(mem, SHERDI_MEM_CONTROL, sizeof(*self));
    if (self == NULL) {
        return SHERD_E_NOMEM;
    }
    self->tier.ops    = &STATE_OPS;
    self->queue       = queue;
    self->mem         = mem;
    self->id          = params->id;
    self->is_verified = params->is_verified;
    self->is_durable  = params->is_durable;
    self->num_extents = params->num_extents;
    status            = state_fill(self, params);
    if (status != SHERD_OK) {
        state_close(&self->tier, 1);
        return status;
    }
    *out = self;
    return SHERD_OK;
}

/* Writes the header first: from then on the sets can be found by it. */
static sherd_status state_create(sherdi_state_tier *self, const sherdi_tier_state_params *params)
{
    SHERDI_TRY(state_lay_out(self, params, params->note_bytes));
    SHERDI_TRY(sherdi_state_header_fill(params, &self->map, &self->front->header));
    SHERDI_TRY(index_open(self, params, SHERDI_FILE_CREATE));
    SHERDI_TRY(front_move(self, 1));
    SHERDI_TRY(sync_if_durable(self));
    return sherdi_state_sets_make_two(&self->sets);
}

static sherd_status header_load(sherdi_state_tier *self, const sherdi_tier_state_params *params)
{
    const char                *path   = sherdi_file_path(self->index);
    const sherdi_state_header *header = &self->front->header;

    SHERDI_TRY(front_move(self, 0));
    if (!sherdi_state_header_is_whole(header)) {
        return sherdi_fail(SHERD_E_STATE,
                           "%s has no intact header: it is damaged, or not a state file", path);
    }
    SHERDI_TRY(state_lay_out(self, params, header->note_bytes));
    return sherdi_state_header_compare(header, params, &self->map, path);
}

/* A head does not count if its table or note is not intact, or cannot be read. */
static int table_load(sherdi_state_tier *self, int index)
{
    const sherdi_state_head *head = &self->front->heads[index];

    return sherdi_state_head_is_whole(head, &self->id) && table_move(self, index, 0) == SHERD_OK &&
           sherdi_state_table_is_whole(head, self->tables[index], self->num_extents,
                                       self->map.table_bytes) &&
           head->note_bytes <= self->map.note_bytes && tail_move(self, index, 0) == SHERD_OK &&
           sherdi_state_tail_is_whole(head, self->tails[index]);
}

static sherd_status records_load(sherdi_state_tier *self)
{
    const sherdi_state_head *heads     = self->front->heads;
    const int                usable[2] = {table_load(self, 0), table_load(self, 1)};
    const sherdi_state_heads found     = sherdi_state_heads_read(heads, usable, &self->id);

    if (found.live < 0 && found.is_damaged) {
        return sherdi_fail(SHERD_E_STATE, "%s holds no generation that is intact",
                           sherdi_file_path(self->index));
    }
    if (found.live < 0) {
        return sherdi_fail(SHERD_E_STATE, "%s holds no generation: nothing was committed to it",
                           sherdi_file_path(self->index));
    }
    if (found.is_damaged) {
        sherdi_log(SHERD_LOG_INFO, self->id.rank,
                   "%s: one of its two index records is damaged; generation %llu is used",
                   sherdi_file_path(self->index), (unsigned long long)found.generation);
    }
    self->live         = found.live;
    self->generation   = found.generation;
    self->has_previous = found.previous > 0;
    now_reset(self);
    return SHERD_OK;
}

/* To continue is worth more than the generation before: if that cannot be opened, the tier does without it. */
static sherd_status previous_load(sherdi_state_tier *self, uint32_t sets)
{
    sherd_status status = SHERD_OK;

    for (int s = 0; s < SHERDI_STATE_SETS && status == SHERD_OK; s++) {
        if ((sets >> s & 1) && self->sets.sets[s].file == NULL) {
            status = sherdi_state_set_open(&self->sets, s);
        }
    }
    if (status == SHERD_E_IO) {
        sherdi_log(SHERD_LOG_WARN, self->id.rank, "generation %llu is not there any more: %s",
                   (unsigned long long)(self->generation - 1), sherd_last_error());
        self->has_previous = 0;
        return SHERD_OK;
    }
    return status;
}

/* A set without a generation is made anew, because nobody knows how far its writer had come. */
static sherd_status sets_load(sherdi_state_tier *self)
{
    uint32_t live = sherdi_state_sets_of(self, self->live);

    for (int s = 0; s < SHERDI_STATE_SETS; s++) {
        if (live >> s & 1) {
            SHERDI_TRY(sherdi_state_set_open(&self->sets, s));
        }
    }
    if (self->has_previous) {
        SHERDI_TRY(previous_load(self, sherdi_state_sets_of(self, 1 - self->live)));
    }
    for (int s = 0; s < SHERDI_STATE_SETS; s++) {
        if (self->sets.sets[s].file == NULL) {
            sherdi_state_set_drop(&self->sets, s);
        }
    }
    return sherdi_state_sets_make_two(&self->sets);
}

static sherd_status state_open(sherdi_state_tier *self, const sherdi_tier_state_params *params)
{
    SHERDI_TRY(index_open(self, params, 0));
    SHERDI_TRY(header_load(self, params));
    SHERDI_TRY(records_load(self));
    return sets_load(self);
}

/* Begins a tier with new files, or with files that were left. A failure leaves no new files. */
static sherd_status state_begin(sherdi_ioq *queue, const sherdi_tier_state_params *params,
                                sherdi_mem *mem, int is_new, sherdi_tier **out)
{
    sherdi_state_tier *self;
    sherd_status       status;

    SHERDI_TRY(state_make(queue, params, mem, &self));
    status = is_new ? state_create(self, params) : state_open(self, params);
    if (status != SHERD_OK) {
        state_close(&self->tier, !is_new);
        return status;
    }
    *out = &self->tier;
    return SHERD_OK;
}

sherd_status sherdi_tier_state_create(sherdi_ioq *queue, const sherdi_tier_state_params *params,
                                      sherdi_mem *mem, sherdi_tier **out)
{
    return state_begin(queue, params, mem, 1, out);
}

sherd_status sherdi_tier_state_open(sherdi_ioq *queue, const sherdi_tier_state_params *params,
                                    sherdi_mem *mem, sherdi_tier **out)
{
    return state_begin(queue, params, mem, 0, out);
}

void sherdi_tier_state_verify(sherdi_tier *tier, int is_on)
{
    ((sherdi_state_tier *)tier)->is_verified = is_on;
}

size_t sherdi_tier_state_note(const sherdi_tier *tier, void *out, size_t out_bytes)
{
    const sherdi_state_tier *self = (const sherdi_state_tier *)tier;

    sherdi_state_note_take(&self->front->heads[self->live], self->tails[self->live], out,
                           out_bytes);
    return self->front->heads[self->live].note_bytes;
}

int sherdi_tier_state_has_previous(const sherdi_tier *tier)
{
    return previous_is_there((const sherdi_state_tier *)tier);
}
