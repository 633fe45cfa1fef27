/* See llmc.h. */
#include "models/llmc.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define MAGIC        20240326
#define VERSION_F32  3
#define VERSION_BF16 5
#define VOCAB_UNIT   128

enum {
    AT_MAGIC,
    AT_VERSION,
    AT_LENGTH,
    AT_VOCAB,
    AT_LAYERS,
    AT_HEADS,
    AT_HIDDEN,
    AT_PADDED,
    AT_END
};

/* The order of the tensors after the two tables; each role for all layers. */
static const arch_role ORDER[] = {
    ARCH_NORM1, ARCH_NORM1_BIAS, ARCH_QKV, ARCH_QKV_BIAS, ARCH_O,    ARCH_O_BIAS,
    ARCH_NORM2, ARCH_NORM2_BIAS, ARCH_UP,  ARCH_UP_BIAS,  ARCH_DOWN, ARCH_DOWN_BIAS,
};

size_t llmc_padded_vocab(const arch *model)
{
    return (model->vocab + VOCAB_UNIT - 1) / VOCAB_UNIT * VOCAB_UNIT;
}

static void number_put(unsigned char *bytes, size_t at, size_t value)
{
    for (size_t i = 0; i < 4; i++) {
        bytes[4 * at + i] = (unsigned char)(value >> (8 * i));
    }
}

static size_t number_get(const unsigned char *bytes, size_t at)
{
    size_t value = 0;

    for (size_t i = 4; i-- > 0;) {
        value = value << 8 | bytes[4 * at + i];
    }
    return value;
}

const char *llmc_header_make(const arch *model, sherd_dtype dtype,
                             unsigned char out[LLMC_HEADER_BYTES], char *why, size_t why_bytes)
{
    if (model->kind != ARCH_GPT2 || model->inner != 4 * model->hidden || model->is_untied ||
        model->is_transposed || dtype == SHERD_F16) {
        (void)snprintf(why, why_bytes,
                       "files of llm.c are of GPT-2 with a tied head and an inner width of 4 times "
                       "the hidden one, in fp32 or bf16");
        return why;
    }
    memset(out, 0, LLMC_HEADER_BYTES);
    number_put(out, AT_MAGIC, MAGIC);
    number_put(out, AT_VERSION, dtype == SHERD_F32 ? VERSION_F32 : VERSION_BF16);
    number_put(out, AT_LENGTH, model->max_length);
    number_put(out, AT_VOCAB, model->vocab);
    number_put(out, AT_LAYERS, model->layers);
    number_put(out, AT_HEADS, model->heads);
    number_put(out, AT_HIDDEN, model->hidden);
    number_put(out, AT_PADDED, llmc_padded_vocab(model));
    return NULL;
}

const char *llmc_header_read(const unsigned char bytes[LLMC_HEADER_BYTES], arch *model_out,
                             size_t *padded_vocab_out, sherd_dtype *dtype_out, char *why,
                             size_t why_bytes)
{
    size_t version = number_get(bytes, AT_VERSION);
    size_t hidden  = number_get(bytes, AT_HIDDEN);
    size_t heads   = number_get(bytes, AT_HEADS);
    size_t padded  = number_get(bytes, AT_PADDED);
    arch   model   = ARCH_SIZES(ARCH_GPT2, hidden, number_get(bytes, AT_LAYERS), heads, heads,
                                4 * hidden, number_get(bytes, AT_VOCAB), number_get(bytes, AT_LENGTH));

    if (number_get(bytes, AT_MAGIC) != MAGIC) {
        (void)snprintf(why, why_bytes, "it does not begin with %d: this is no model of llm.c",
                       MAGIC);
        return why;
    }
    if (version != VERSION_F32 && version != VERSION_BF16) {
        (void)snprintf(why, why_bytes, "it is of version %zu; %d (fp32) and %d (bf16) are read",
                       version, VERSION_F32, VERSION_BF16);
        return why;
    }
    if (arch_check(&model, why, why_bytes) != NULL) {
        return why;
    }
    if (padded < model.vocab || padded > (size_t)INT32_MAX) {
        (void)snprintf(why, why_bytes, "it has %zu rows for a vocabulary of %zu", padded,
                       model.vocab);
        return why;
    }
    *model_out        = model;
    *padded_vocab_out = padded;
    *dtype_out        = version == VERSION_F32 ? SHERD_F32 : SHERD_BF16;
    return NULL;
}

/* ---- tensors ---- */

static void role_add(const arch *model, size_t unit, arch_role role, maps *out)
{
    for (size_t k = arch_unit_first_param(model, unit); k < arch_unit_first_param(model, unit + 1);
         k++) {
        arch_param param;

        arch_param_get(model, k, &param);
        if (param.role == role) {
            (void)maps_add(out, &param);
        }
    }
}

/* Adds rows that belong to no token. */
static void padding_add(const arch *model, size_t rows, maps *out)
{
    arch_param rest = {
        .name = "(padding of the vocabulary)", .ndim = 2, .shape = {rows, model->hidden}};
    sherd_tensor_map *map = maps_add(out, &rest);

    map->param = NULL;
}

int llmc_maps_open(const arch *model, size_t padded_vocab, maps *out)
{
    if (maps_open(out, arch_param_count(model) + 1) != 0) {
        return -1;
    }
    role_add(model, 0, ARCH_TOKENS, out);
    if (padded_vocab > model->vocab) {
        padding_add(model, padded_vocab - model->vocab, out);
    }
    role_add(model, 0, ARCH_POSITIONS, out);
    for (size_t i = 0; i < sizeof(ORDER) / sizeof(ORDER[0]); i++) {
        for (size_t layer = 0; layer < model->layers; layer++) {
            role_add(model, 1 + layer, ORDER[i], out);
        }
    }
    role_add(model, model->layers + 1, ARCH_NORM_LAST, out);
    role_add(model, model->layers + 1, ARCH_NORM_LAST_BIAS, out);
    return 0;
}
