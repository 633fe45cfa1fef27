/* Makes and checks the pages of a state file. See state_file.h. */
#include "offload/state_file.h"

#include "base/checked.h"
#include "base/hash.h"
#include "offload/checksum.h"

#include <errno.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEADER_MAGIC 0x317461745364686cu /* "lhdStat1" in the file */
#define HEAD_MAGIC   0x3164616548646873u /* "shdHead1" in the file */

/* Most bytes of a note, which is small compared with the state. */
#define MOST_NOTE_BYTES ((size_t)1 << 30)

/* ------------------------------------------------------------------- map -- */

size_t sherdi_state_table_bytes(size_t num_extents)
{
    size_t len_bytes;

    if (!sherdi_mul_fits(num_extents, sizeof(sherdi_state_entry), &len_bytes) ||
        len_bytes > INT64_MAX / 8) {
        return SIZE_MAX;
    }
    return sherdi_round_up(sherdi_max_size(len_bytes, 1), SHERDI_STATE_PAGE_BYTES);
}

size_t sherdi_state_tail_bytes(size_t note_bytes)
{
    return note_bytes <= SHERDI_STATE_NOTE_FRONT
               ? 0
               : sherdi_round_up(note_bytes - SHERDI_STATE_NOTE_FRONT, SHERDI_STATE_PAGE_BYTES);
}

size_t sherdi_state_commit_bytes(size_t num_extents, size_t note_bytes)
{
    size_t len_bytes;

    (void)sherdi_add_fits(sherdi_state_table_bytes(num_extents),
                          SHERDI_STATE_PAGE_BYTES + sherdi_state_tail_bytes(note_bytes),
                          &len_bytes); /* SIZE_MAX when the sum is too large */
    return len_bytes;
}

size_t sherdi_state_index_bytes(size_t num_extents, size_t note_bytes)
{
    size_t record_bytes, len_bytes;

    if (!sherdi_add_fits(sherdi_state_table_bytes(num_extents), sherdi_state_tail_bytes(note_bytes),
                         &record_bytes) ||
        !sherdi_mul_fits(record_bytes, 2, &len_bytes)) {
        return SIZE_MAX;
    }
    (void)sherdi_add_fits(len_bytes, sizeof(sherdi_state_front), &len_bytes);
    return len_bytes;
}

sherd_status sherdi_state_map_extents(const sherdi_extent *extents, size_t num_extents,
                                      size_t note_bytes, sherdi_extent *in_file,
                                      sherdi_state_map *out)
{
    sherdi_state_map map = {.table_bytes = sherdi_state_table_bytes(num_extents),
                            .note_bytes  = note_bytes};

    if (map.table_bytes == SIZE_MAX) {
        return sherdi_fail(SHERD_E_INVAL, "%zu extents are too many for one file", num_extents);
    }
    if (note_bytes > MOST_NOTE_BYTES) {
        return sherdi_fail(SHERD_E_INVAL, "the note has %zu bytes; at most %zu fit", note_bytes,
                           MOST_NOTE_BYTES);
    }
    map.tail_bytes   = sherdi_state_tail_bytes(note_bytes);
    map.tables_at[0] = sizeof(sherdi_state_front);
    map.tables_at[1] = map.tables_at[0] + map.table_bytes;
    map.notes_at[0]  = map.tables_at[1] + map.table_bytes;
    map.notes_at[1]  = map.notes_at[0] + map.tail_bytes;
    map.index_bytes  = map.notes_at[1] + map.tail_bytes;
    SHERDI_TRY(sherdi_extents_lay_out(extents, num_extents, in_file, &map.set_bytes));
    *out = map;
    return SHERD_OK;
}

static uint64_t lengths_hash(const sherdi_extent *extents, size_t num_extents)
{
    uint64_t hash = num_extents;

    for (size_t i = 0; i < num_extents; i++) {
        hash = sherdi_hash_u64(hash, extents[i].len_bytes);
    }
    return hash;
}

/* ------------------------------------------------------------------ name -- */

void sherdi_state_name(const sherdi_state_id *id, char *name)
{
    (void)snprintf(name, SHERDI_STATE_NAME_BYTES, "sherd-%016llx-%dof%d.state",
                   (unsigned long long)id->run, id->rank, id->world_size);
}

void sherdi_state_set_name(const sherdi_state_id *id, int set, char *name)
{
    (void)snprintf(name, SHERDI_STATE_NAME_BYTES, "sherd-%016llx-%dof%d.slots-%c",
                   (unsigned long long)id->run, id->rank, id->world_size, 'a' + set);
}

int sherdi_state_name_parse(const char *name, sherdi_state_id *out)
{
    char               again[SHERDI_STATE_NAME_BYTES];
    sherdi_state_id    id = {0};
    unsigned long long run;

    if (strlen(name) >= sizeof(again) ||
        sscanf(name, "sherd-%16llx-%9dof%9d.state", &run, &id.rank, &id.world_size) != 3) {
        return 0;
    }
    id.run = run;
    sherdi_state_name(&id, again);
    if (strcmp(name, again) != 0 || id.run == 0 || id.rank < 0 || id.rank >= id.world_size) {
        return 0;
    }
    *out = id;
    return 1;
}

/* ---------------------------------------------------------------- header -- */

static uint64_t header_checksum(const sherdi_state_header *header)
{
    return sherdi_checksum(header, offsetof(sherdi_state_header, checksum));
}

static sherd_status folders_fill(const sherdi_state_params *params, sherdi_state_header *out)
{
    char   path[PATH_MAX];
    char   buffer[128];
    size_t used_bytes = 0;

    for (int i = 0; i < params->num_folders; i++) {
        size_t len_bytes;

        if (realpath(params->folders[i], path) == NULL) {
            return sherdi_fail(SHERD_E_IO, "cannot resolve folder %s: %s", params->folders[i],
                               strerror_r(errno, buffer, sizeof(buffer)));
        }
        len_bytes = strlen(path) + 1;
        if (len_bytes > sizeof(out->folders) - used_bytes) {
            return sherdi_fail(
                SHERD_E_INVAL,
                "the paths of the %d folders have more than %d bytes together; use shorter ones",
                params->num_folders, SHERDI_STATE_FOLDER_BYTES);
        }
        memcpy(out->folders + used_bytes, path, len_bytes);
        used_bytes += len_bytes;
    }
    return SHERD_OK;
}

sherd_status sherdi_state_header_fill(const sherdi_state_params *params,
                                      const sherdi_state_map *map, sherdi_state_header *out)
{
    memset(out, 0, sizeof(*out));
    out->magic        = HEADER_MAGIC;
    out->version      = SHERDI_STATE_FORMAT;
    out->num_folders  = (uint32_t)params->num_folders;
    out->run          = params->id.run;
    out->rank         = params->id.rank;
    out->world_size   = params->id.world_size;
    out->layout       = params->id.layout;
    out->lengths      = lengths_hash(params->extents, params->num_extents);
    out->num_extents  = params->num_extents;
    out->stripe_bytes = SHERDI_STRIPE_BYTES;
    out->index_bytes  = map->index_bytes;
    out->set_bytes    = map->set_bytes;
    out->note_bytes   = map->note_bytes;
    SHERDI_TRY(folders_fill(params, out));
    out->checksum = header_checksum(out);
    return SHERD_OK;
}

int sherdi_state_header_is_whole(const sherdi_state_header *header)
{
    return header->magic == HEADER_MAGIC && header->checksum == header_checksum(header);
}

sherdi_state_id sherdi_state_header_id(const sherdi_state_header *header)
{
    return (sherdi_state_id){.run        = header->run,
                             .rank       = header->rank,
                             .world_size = header->world_size,
                             .layout     = header->layout};
}

sherd_status sherdi_state_header_compare(const sherdi_state_header *header,
                                         const sherdi_state_params *params,
                                         const sherdi_state_map *map, const char *path)
{
    const sherdi_state_id *id = &params->id;

    if (header->version != SHERDI_STATE_FORMAT) {
        return sherdi_fail(SHERD_E_STATE, "%s has format %u, and this version of sherd reads %u",
                           path, header->version, SHERDI_STATE_FORMAT);
    }
    if (header->run != id->run || header->rank != id->rank ||
        header->world_size != id->world_size) {
        return sherdi_fail(SHERD_E_STATE, "%s belongs to rank %d of %d of run %016llx", path,
                           header->rank, header->world_size, (unsigned long long)header->run);
    }
    if (header->num_folders != (uint32_t)params->num_folders ||
        header->stripe_bytes != SHERDI_STRIPE_BYTES) {
        return sherdi_fail(SHERD_E_STATE,
                           "%s lies in %u folders, and nvme_path names %d; name the folders that "
                           "it was written to",
                           path, header->num_folders, params->num_folders);
    }
    if (header->layout != id->layout || header->num_extents != params->num_extents ||
        header->index_bytes != map->index_bytes || header->set_bytes != map->set_bytes ||
        header->lengths != lengths_hash(params->extents, params->num_extents)) {
        return sherdi_fail(SHERD_E_STATE,
                           "%s holds state of another model or configuration (%llu extents, layout "
                           "%016llx, not %zu, %016llx)",
                           path, (unsigned long long)header->num_extents,
                           (unsigned long long)header->layout, params->num_extents,
                           (unsigned long long)id->layout);
    }
    return SHERD_OK;
}

const char *sherdi_state_header_folder(const sherdi_state_header *header, uint32_t stripe)
{
    const char *folder     = header->folders;
    size_t      left_bytes = sizeof(header->folders);

    for (uint32_t i = 0;; i++) {
        size_t len_bytes = strnlen(folder, left_bytes);

        if (len_bytes == 0 || len_bytes == left_bytes) {
            return NULL;
        }
        if (i == stripe) {
            return folder;
        }
        folder += len_bytes + 1;
        left_bytes -= len_bytes + 1;
    }
}

/* ----------------------------------------------------------------- heads -- */

static uint64_t head_checksum(const sherdi_state_head *head)
{
    return sherdi_checksum(head, offsetof(sherdi_state_head, checksum));
}

void sherdi_state_head_fill(const sherdi_state_id *id, uint64_t generation, const void *note,
                            size_t note_bytes, unsigned char *tail, const sherdi_state_entry *table,
                            size_t table_bytes, sherdi_state_head *out)
{
    size_t front_bytes = sherdi_min_size(note_bytes, sizeof(out->note));
    size_t tail_bytes  = sherdi_state_tail_bytes(note_bytes);

    if (tail_bytes > 0) {
        memset(tail + tail_bytes - SHERDI_STATE_PAGE_BYTES, 0, SHERDI_STATE_PAGE_BYTES);
        memcpy(tail, (const unsigned char *)note + front_bytes, note_bytes - front_bytes);
    }
    memset(out, 0, sizeof(*out));
    out->magic          = HEAD_MAGIC;
    out->run            = id->run;
    out->rank           = id->rank;
    out->world_size     = id->world_size;
    out->generation     = generation;
    out->table_checksum = sherdi_checksum(table, table_bytes);
    memcpy(out->note, note, front_bytes);
    out->note_bytes    = note_bytes;
    out->note_checksum = sherdi_checksum(tail, tail_bytes);
    out->checksum      = head_checksum(out);
}

void sherdi_state_head_retable(sherdi_state_head *head, const sherdi_state_entry *table,
                               size_t table_bytes)
{
    head->table_checksum = sherdi_checksum(table, table_bytes);
    head->checksum       = head_checksum(head);
}

void sherdi_state_note_take(const sherdi_state_head *head, const unsigned char *tail, void *out,
                            size_t out_bytes)
{
    size_t len_bytes   = sherdi_min_size(head->note_bytes, out_bytes);
    size_t front_bytes = sherdi_min_size(len_bytes, sizeof(head->note));

    memset(out, 0, out_bytes);
    memcpy(out, head->note, front_bytes);
    if (len_bytes > front_bytes) {
        memcpy((unsigned char *)out + front_bytes, tail, len_bytes - front_bytes);
    }
}

int sherdi_state_tail_is_whole(const sherdi_state_head *head, const unsigned char *tail)
{
    return head->note_checksum == sherdi_checksum(tail, sherdi_state_tail_bytes(head->note_bytes));
}

int sherdi_state_head_is_whole(const sherdi_state_head *head, const sherdi_state_id *id)
{
    return head->magic == HEAD_MAGIC && head->run == id->run && head->rank == id->rank &&
           head->world_size == id->world_size && head->generation > 0 &&
           head->checksum == head_checksum(head);
}

int sherdi_state_head_is_empty(const sherdi_state_head *head)
{
    const unsigned char *bytes = (const unsigned char *)head;

    return bytes[0] == 0 && memcmp(bytes, bytes + 1, sizeof(*head) - 1) == 0;
}

int sherdi_state_table_is_whole(const sherdi_state_head *head, const sherdi_state_entry *table,
                                size_t num_extents, size_t table_bytes)
{
    if (head->table_checksum != sherdi_checksum(table, table_bytes)) {
        return 0;
    }
    for (size_t i = 0; i < num_extents; i++) {
        if (table[i].slot >= SHERDI_STATE_SETS || table[i].is_written > 1) {
            return 0;
        }
    }
    return 1;
}

sherdi_state_heads sherdi_state_heads_read(const sherdi_state_head *heads, const int *is_usable,
                                           const sherdi_state_id *id)
{
    sherdi_state_heads found = {.live = -1};

    for (int i = 0; i < 2; i++) {
        int is_whole = is_usable[i] && sherdi_state_head_is_whole(&heads[i], id);

        if (!is_whole && !sherdi_state_head_is_empty(&heads[i])) {
            found.is_damaged = 1;
        } else if (is_whole && heads[i].generation > found.generation) {
            found.previous   = found.generation;
            found.generation = heads[i].generation;
            found.live       = i;
        } else if (is_whole) {
            found.previous = heads[i].generation;
        }
    }
    /* Records are written in turn, so a record that does not directly precede the live one is of
     * another time. */
    if (found.previous + 1 != found.generation) {
        found.previous = 0;
    }
    return found;
}
