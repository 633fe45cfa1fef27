/* A libFuzzer target for what comes with weights: headers of llm.c and config.json. Any bytes must
 * give a model that can be declared, or an error. The target is built by -Dfuzz=true with clang;
 * run it with a folder of config.json files as its corpus. */
#include "models/hf.h"
#include "models/llmc.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

static void check_header(const uint8_t *data, size_t len_bytes)
{
    unsigned char header[LLMC_HEADER_BYTES] = {0};
    char          why[256]                  = {0};
    arch          model;
    size_t        padded;
    sherd_dtype   dtype;
    maps          list;

    /* the magic number: hardly any input would have it by chance */
    memcpy(header, "\xc6\xd7\x34\x01", 4);
    header[4] = len_bytes > 0 && (data[0] & 1) != 0 ? 3 : 5;
    memcpy(header + 8, data, len_bytes < 24 ? len_bytes : 24);
    if (llmc_header_read(header, &model, &padded, &dtype, why, sizeof(why)) != NULL) {
        hold(why[0] != '\0');
        return;
    }
    hold(arch_check(&model, why, sizeof(why)) == NULL && padded >= model.vocab);
    if (model.layers <= 20) {
        hold(llmc_maps_open(&model, padded, &list) == 0);
        hold(list.count == arch_param_count(&model) + (padded > model.vocab));
        maps_close(&list);
    }
}

/* A config.json that is read holds after it was written. */
static void check_config(const uint8_t *data, size_t len_bytes)
{
    char      why[256] = "", text[8192];
    hf_config config;

    if (hf_config_parse((const char *)data, len_bytes, &config, why, sizeof(why)) != 0) {
        hold(why[0] != '\0');
        return;
    }
    if (config.not_computed[0] == '\0' && arch_check(&config.sizes, why, sizeof(why)) == NULL) {
        size_t written = hf_config_write(&config.sizes, SHERD_F32, text, sizeof(text));

        hold(written < sizeof(text));
        hold(hf_config_check(&config.sizes, text, written, why, sizeof(why)) == NULL);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes)
{
    char why[256];

    for (int kind = ARCH_GPT2; kind < ARCH_KINDS; kind++) {
        arch model;

        hold(arch_preset((arch_kind)kind, "tiny", &model) == 0);
        why[0] = '\0';
        if (hf_config_check(&model, (const char *)data, len_bytes, why, sizeof(why)) != NULL) {
            hold(why[0] != '\0');
        }
    }
    check_config(data, len_bytes);
    check_header(data, len_bytes);
    return 0;
}
