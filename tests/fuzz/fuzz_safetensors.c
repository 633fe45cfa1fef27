/* A libFuzzer target for headers of safetensors files: any bytes must give tensors that cover the
 * data without a hole, or an error that begins with the name of the file. What was read is written
 * again and must give the same tensors. The target is built by -Dfuzz=true with clang; run it with
 * a folder of files without their first 8 bytes as its corpus. */
#include "engine/checkpoint/safetensors.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

static void check_again(sherdi_mem *mem, const sherdi_safetensors *file)
{
    sherdi_safetensors_builder *builder;
    sherdi_safetensors         *again;
    const char                 *bytes;
    size_t                      len_bytes;

    hold(sherdi_safetensors_begin(mem, 8, &builder) == SHERD_OK);
    for (size_t i = 0; i < file->num_tensors; i++) {
        const sherdi_tensor *t = &file->tensors[i];

        hold(sherdi_safetensors_add(builder, t->name, t->dtype, t->ndim, t->shape, NULL) ==
             SHERD_OK);
    }
    for (size_t i = 0; i < file->num_metadata; i++) {
        hold(sherdi_safetensors_metadata(builder, file->metadata[i].key, file->metadata[i].value) ==
             SHERD_OK);
    }
    hold(sherdi_safetensors_finish(builder, &bytes, &len_bytes) == SHERD_OK);
    hold(sherdi_safetensors_parse(mem, "again", bytes + 8, len_bytes - 8,
                                  len_bytes + file->data_bytes, &again) == SHERD_OK);
    hold(again->num_tensors == file->num_tensors && again->num_metadata == file->num_metadata);
    for (size_t i = 0; i < file->num_tensors; i++) {
        hold(sherdi_safetensors_find(again, file->tensors[i].name) != NULL);
    }
    sherdi_safetensors_destroy(again);
    sherdi_safetensors_builder_destroy(builder);
}

static void check_tensors(const sherdi_safetensors *file)
{
    size_t at = 0;

    for (size_t i = 0; i < file->num_tensors; i++) {
        const sherdi_tensor *t = &file->tensors[i];

        hold(t->begin == at && t->end >= at && t->ndim >= 0 && t->ndim <= SHERD_MAX_NDIM);
        hold(t->end - t->begin == t->elems * sherdi_tensor_dtype_bytes(t->dtype));
        hold(sherdi_safetensors_find(file, t->name) == t);
        at = t->end;
    }
    hold(at == file->data_bytes);
}

/* Returns the last number in the text as the number of bytes of data: in a correct header this is
 * the end of some tensor's data. */
static size_t data_bytes_of(const uint8_t *text, size_t len_bytes)
{
    size_t end = len_bytes, begin, value = 0;

    while (end > 0 && (text[end - 1] < '0' || text[end - 1] > '9')) {
        end--;
    }
    for (begin = end; begin > 0 && text[begin - 1] >= '0' && text[begin - 1] <= '9';) {
        begin--;
    }
    for (size_t i = begin; i < end && value < 1u << 30; i++) {
        value = 10 * value + (size_t)(text[i] - '0');
    }
    return value;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes)
{
    sherdi_mem          mem;
    sherdi_safetensors *file;

    sherdi_mem_init(&mem);
    if (sherdi_safetensors_parse(&mem, "fuzzed", (const char *)data, len_bytes,
                                 8 + len_bytes + data_bytes_of(data, len_bytes),
                                 &file) == SHERD_OK) {
        check_tensors(file);
        check_again(&mem, file);
        sherdi_safetensors_destroy(file);
    } else {
        hold(strncmp(sherd_last_error(), "fuzzed", 6) == 0);
    }
    hold(sherdi_mem_held_all(&mem) == 0);
    return 0;
}
