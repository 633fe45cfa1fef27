/* A libFuzzer target for descriptions of linked state, which are in the header of a checkpoint's
 * data file. Any text must give tensors that lie inside their extents, or an error that begins with
 * the name of the file. The memory used is bounded by the length of the text. The seeds are in
 * corpus_linked. */
#include "engine/checkpoint/linked.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

/* The most memory that is allowed: so much for each byte of text, and so much for any text. */
#define BYTES_PER_BYTE 200
#define BYTES_ALWAYS   65536

/* Checks what a reader relies on. */
static void check(const sherdi_linked *linked)
{
    size_t most = (size_t)1 << 60;

    for (size_t e = 0; e < sherdi_linked_extents(linked); e++) {
        hold(sherdi_linked_extent_bytes(linked, e) <= most &&
             sherdi_linked_extent_bytes(linked, e) % SHERD_ALIGN_BYTES == 0);
    }
    for (size_t t = 0; t < sherdi_linked_count(linked); t++) {
        const sherdi_linked_tensor *tensor = sherdi_linked_tensor_at(linked, t);
        size_t                      room;

        hold(tensor->extent < sherdi_linked_extents(linked) && strlen(tensor->name) < most);
        room = sherdi_linked_extent_bytes(linked, tensor->extent);
        hold(tensor->at % sizeof(uint16_t) == 0 && tensor->at <= room &&
             tensor->count <= (room - tensor->at) / sherdi_encoding_elem_bytes(tensor->encoding));
        if (sherdi_encoding_is_beside(tensor->encoding)) {
            hold(tensor->values_extent < sherdi_linked_extents(linked));
            room = sherdi_linked_extent_bytes(linked, tensor->values_extent);
            hold(tensor->values_at <= room &&
                 tensor->count <= (room - tensor->values_at) / sizeof(uint16_t));
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes)
{
    sherdi_mem     mem;
    sherdi_linked *linked;
    char          *text = malloc(len_bytes + 1);

    hold(text != NULL);
    memcpy(text, data, len_bytes);
    text[len_bytes] = '\0';
    sherdi_mem_init(&mem);
    if (sherdi_linked_parse(&mem, "fuzzed", text, &linked) == SHERD_OK) {
        check(linked);
        sherdi_linked_destroy(linked);
    } else {
        hold(strncmp(sherd_last_error(), "fuzzed", 6) == 0);
    }
    hold(peak_bytes(&mem) <= BYTES_ALWAYS + BYTES_PER_BYTE * len_bytes);
    hold(sherdi_mem_held_all(&mem) == 0);
    free(text);
    return 0;
}
