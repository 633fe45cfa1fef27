/* A libFuzzer target for what comes with weights: headers of llm.c and config.json. Any bytes must give a model that can be
 * declared, or an error. The target is built by -Dfuzz=true with clang; run it with a folder of config.json files as its corpus. */
#include "models/hf.h"
#include "models/llmc.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes);

static void hold(int is_so)
{
    if (!is_so) {
        abort();
    }
}

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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes)
{
    char why[256];

    for (int kind = ARCH_GPT2; kind <= ARCH_MINIMIND; kind++) {
        arch         model;
        hf_constants constants;

        hold(arch_preset((arch_kind)kind, "tiny", &model) == 0);
        constants = hf_constants_of(&model);
        why[0]    = '\0';
        if (hf_config_check(&model, &constants, (const char *)data, len_bytes, why, sizeof(why)) !=
            NULL) {
            hold(why[0] != '\0');
        }
    }
    check_header(data, len_bytes);
    return 0;
}
