/* Reads the header of a model file of llm.c: a GPT-2 with padded vocabulary. */
#include "planning/model_impl.h"

#define BIN_HEADER_BYTES 1024

int planning_read_bin(planning_maker *maker, const planning_file *file, const char *name)
{
    static const char *const FIELDS[] = {"max_seq_len", "vocab_size", "num_layers",
                                         "num_heads",   "channels",   "padded_vocab_size"};
    unsigned char            header[BIN_HEADER_BYTES];
    size_t                   fields[6], version, elem_bytes, wanted;
    arch                     sizes = {.kind = ARCH_GPT2};

    if (file->len_bytes < sizeof(header)) {
        return planning_maker_fail(maker, "its header has %zu bytes of %d; the file is cut short",
                                   file->len_bytes, BIN_HEADER_BYTES);
    }
    if (planning_file_read(maker, file, 0, header, sizeof(header)) != 0) {
        return -1;
    }
    version = planning_bytes_size(header + 4, 4);
    if (version != 3 && version != 5) {
        return planning_maker_fail(
            maker, "is a model of llm.c in version %zu; 3 (fp32) and 5 (bf16) are read", version);
    }
    for (size_t i = 0; i < 6; i++) {
        fields[i] = planning_bytes_size(header + 8 + 4 * i, 4);
        if (fields[i] == 0 || fields[i] > (size_t)1 << 28) {
            return planning_maker_fail(maker, "its header says %s %zu; it has to be from 1 to %zu",
                                       FIELDS[i], fields[i], (size_t)1 << 28);
        }
    }
    if (fields[5] < fields[1]) {
        return planning_maker_fail(
            maker, "its header says padded_vocab_size %zu, which is less than vocab_size %zu",
            fields[5], fields[1]);
    }
    sizes.max_length = fields[0];
    sizes.layers     = fields[2];
    sizes.heads      = fields[3];
    sizes.hidden     = fields[4];
    sizes.vocab      = fields[5]; /* the padding is stored and updated too */
    arch_complete(&sizes);
    if (planning_maker_add_arch(maker, &sizes) != 0) {
        return -1;
    }
    elem_bytes = version == 3 ? 4 : 2;
    wanted     = BIN_HEADER_BYTES + elem_bytes * maker->model->elems;
    if (file->len_bytes < wanted) {
        return planning_maker_fail(maker,
                                   "has %zu bytes, but its header announces %zu; the file is "
                                   "cut short",
                                   file->len_bytes, wanted);
    }
    return planning_maker_set_label(maker, "%s (gpt2)", name);
}
