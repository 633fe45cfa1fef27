/* A libFuzzer target for manifests of checkpoints: any text must give a consistent checkpoint, or
 * an error that begins with the name of the file. Random bytes would be refused because of the
 * checksum, so the target makes the checksum match and tests the code that trusts it. The memory
 * used is bounded by the length of the text. The seeds are in corpus_manifest. */
#include "engine/checkpoint/manifest.h"
#include "offload/checksum.h"
#include "tests/fuzz/fuzz.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The most memory that is allowed: so much for each byte of text, and so much for any text. See
 * manifest.h. */
#define BYTES_PER_BYTE 200
#define BYTES_ALWAYS   65536

/* Returns the text without its last bracket, followed by the end that a manifest has, with a
 * checksum that matches. */
static char *sealed(const uint8_t *data, size_t len_bytes, size_t *len_out)
{
    char  *text = malloc(len_bytes + 64);
    size_t at   = len_bytes;

    hold(text != NULL);
    memcpy(text, data, len_bytes);
    while (at > 0 && text[at - 1] != '}') {
        at--;
    }
    at = at == 0 ? len_bytes : at - 1;
    at += (size_t)sprintf(text + at, ",\n\"checksum\": \"");
    at += (size_t)sprintf(text + at, "%016" PRIx64 "\"}\n", sherdi_checksum(text, at));
    *len_out = at;
    return text;
}

/* Checks what a reader relies on. */
static void check(const sherdi_manifest *m)
{
    hold(m->world_size > 0 && m->num_parts > 0 && m->num_parts <= SHERDI_CHECKPOINT_PARTS);
    hold(strcmp(m->parts[0].name, "master") == 0 && m->step >= 0 && m->micro_step >= 0);
    for (size_t s = 0; s < m->num_segments; s++) {
        const sherdi_manifest_segment *segment = &m->segments[s];

        hold(segment->is_frozen || ((segment->optimizer.parts & 1) != 0 &&
                                    segment->optimizer.parts >> m->num_parts == 0));
    }
    for (size_t p = 0; p < m->num_params; p++) {
        const sherdi_manifest_param *param = &m->params[p];
        size_t                       elems = 1;

        hold(param->name[0] != '\0' && param->ndim >= 0 && param->ndim <= SHERD_MAX_NDIM);
        for (int d = 0; d < param->ndim; d++) {
            elems *= param->shape[d];
        }
        hold(elems == param->elems && param->segment < m->num_segments);
        hold(param->elems == 0 ||
             (param->offset_elems + param->elems - 1) / m->segments[param->segment].slice_elems <
                 (size_t)m->world_size);
    }
}

/* Writes what was read, reads it again, and checks that the result is the same. */
static void check_again(sherdi_mem *mem, const sherdi_manifest *m)
{
    sherdi_manifest again;
    char           *text;
    size_t          len_bytes;

    hold(sherdi_manifest_text(m, &text, &len_bytes) == SHERD_OK);
    hold(sherdi_manifest_parse(&again, mem, "again", text, len_bytes) == SHERD_OK);
    hold(again.num_params == m->num_params && again.world_size == m->world_size &&
         again.fingerprint == m->fingerprint);
    sherdi_manifest_fini(&again);
    sherdi_manifest_text_free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes)
{
    sherdi_mem      mem;
    sherdi_manifest m;
    size_t          sealed_bytes;
    char           *text = sealed(data, len_bytes, &sealed_bytes);

    sherdi_mem_init(&mem);
    if (sherdi_manifest_parse(&m, &mem, "fuzzed", text, sealed_bytes) == SHERD_OK) {
        hold(peak_bytes(&mem) <= BYTES_ALWAYS + BYTES_PER_BYTE * sealed_bytes);
        check(&m);
        check_again(&mem, &m);
        sherdi_manifest_fini(&m);
    } else {
        hold(strncmp(sherd_last_error(), "fuzzed", 6) == 0);
        hold(peak_bytes(&mem) <= BYTES_ALWAYS + BYTES_PER_BYTE * sealed_bytes);
    }
    hold(sherdi_mem_held_all(&mem) == 0);
    free(text);
    return 0;
}
