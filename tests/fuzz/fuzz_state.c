/* A libFuzzer target for the pages of a state file: to read any bytes must give an answer. Random
 * bytes would be refused because of the first checksum, so the target makes the checksums match and
 * tests the code that trusts them. */
#include "offload/checksum.h"
#include "offload/state_file.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define NUM_EXTENTS 3

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes);

static void name_read(const uint8_t *data, size_t len_bytes)
{
    char            name[100] = {0}, again[SHERDI_STATE_NAME_BYTES];
    sherdi_state_id id;

    memcpy(name, data, len_bytes < sizeof(name) - 1 ? len_bytes : sizeof(name) - 1);
    if (sherdi_state_name_parse(name, &id)) {
        sherdi_state_name(&id, again);
        if (strcmp(name, again) != 0) {
            abort();
        }
    }
}

static void header_read(sherdi_state_header *header)
{
    static const char *const   FOLDERS[]            = {"/"};
    static const sherdi_extent EXTENTS[NUM_EXTENTS] = {{0, 4096}, {4096, 8192}, {16384, 0}};
    const sherdi_state_params  params               = {.folders     = FOLDERS,
                                                       .num_folders = 1,
                                                       .id          = sherdi_state_header_id(header),
                                                       .extents     = EXTENTS,
                                                       .num_extents = NUM_EXTENTS};

    sherdi_extent    in_file[NUM_EXTENTS];
    sherdi_state_map map;

    (void)sherdi_state_header_is_whole(header);
    header->checksum = sherdi_checksum(header, offsetof(sherdi_state_header, checksum));
    for (uint32_t i = 0; i < 8; i++) {
        const char *folder = sherdi_state_header_folder(header, i);

        if (folder != NULL && strlen(folder) >= sizeof(header->folders)) {
            abort();
        }
    }
    (void)sherdi_state_header_folder(header, header->num_folders);
    if (sherdi_state_map_extents(EXTENTS, NUM_EXTENTS, header->note_bytes, in_file, &map) ==
        SHERD_OK) {
        (void)!sherdi_state_header_compare(header, &params, &map, "a file");
    }
}

/* Reads the note as a tier would that has enough room for it, and as one that has room for a single
 * byte. */
static void note_read(const sherdi_state_head *head, const unsigned char *tail)
{
    unsigned char note[SHERDI_STATE_NOTE_FRONT + SHERDI_STATE_PAGE_BYTES + 1];

    if (head->note_bytes <= SHERDI_STATE_NOTE_FRONT + SHERDI_STATE_PAGE_BYTES) {
        (void)sherdi_state_tail_is_whole(head, tail);
        sherdi_state_note_take(head, tail, note, sizeof(note));
        sherdi_state_note_take(head, tail, note, 1);
    }
}

static void records_read(sherdi_state_front *front, const sherdi_state_entry *table)
{
    sherdi_state_id    id = sherdi_state_header_id(&front->header);
    sherdi_state_heads heads;
    int                usable[2];

    for (int i = 0; i < 2; i++) {
        sherdi_state_head *head = &front->heads[i];

        head->magic          = head->magic % 2 == 0 ? head->magic : 0x3164616548646873u;
        head->run            = id.run;
        head->rank           = id.rank;
        head->world_size     = id.world_size;
        head->table_checksum = sherdi_checksum(table, SHERDI_STATE_PAGE_BYTES);
        head->checksum       = sherdi_checksum(head, offsetof(sherdi_state_head, checksum));
        usable[i] = sherdi_state_table_is_whole(head, table, NUM_EXTENTS, SHERDI_STATE_PAGE_BYTES);
        note_read(head, (const unsigned char *)table);
    }
    heads = sherdi_state_heads_read(front->heads, usable, &id);
    if ((heads.live < 0) != (heads.generation == 0) ||
        (heads.previous > 0 && heads.previous + 1 != heads.generation) ||
        (heads.live >= 0 && front->heads[heads.live].generation != heads.generation)) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes)
{
    sherdi_state_front front                                                       = {0};
    sherdi_state_entry table[SHERDI_STATE_PAGE_BYTES / sizeof(sherdi_state_entry)] = {0};

    name_read(data, len_bytes);
    memcpy(&front, data, len_bytes < sizeof(front) ? len_bytes : sizeof(front));
    if (len_bytes > sizeof(front)) {
        len_bytes -= sizeof(front);
        memcpy(table, data + sizeof(front), len_bytes < sizeof(table) ? len_bytes : sizeof(table));
    }
    header_read(&front.header);
    records_read(&front, table);
    return 0;
}
