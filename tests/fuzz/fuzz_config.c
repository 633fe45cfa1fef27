/* libFuzzer on the configuration parser: any bytes give a configuration or a sentence, never a
 * crash, a leak or memory that is not accounted for (sherd_config_destroy asserts that). Built
 * by -Dfuzz=true with clang; run it with a folder of configuration files as its corpus. */
#include "engine/config/config_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes);

static sherd_status discard(void *ctx, const char *text, size_t len_bytes)
{
    (void)ctx;
    (void)text;
    (void)len_bytes;
    return SHERD_OK;
}

/* The first line, where there is one, as "key value" of the program. */
static void set_from_first_line(sherd_config *config, const char *text)
{
    char  line[256];
    char *space;

    (void)snprintf(line, sizeof(line), "%.*s", (int)strcspn(text, "\n"), text);
    space = strchr(line, ' ');
    if (space != NULL) {
        *space = '\0';
        (void)!sherd_config_set(config, line, space + 1);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes)
{
    sherd_config   *config;
    sherdi_settings settings;
    char           *text;

    if (sherd_config_parse((const char *)data, len_bytes, &config) == SHERD_OK) {
        if (sherdi_config_resolve(config, 3, &settings) == SHERD_OK &&
            settings.train_batch_size != settings.micro_batch_size * settings.accumulation * 3) {
            abort();
        }
        if (sherd_config_dump(config, discard, NULL) != SHERD_OK) {
            abort();
        }
        sherd_config_destroy(config);
    }
    if (sherd_config_parse("{}", 2, &config) == SHERD_OK) {
        text = calloc(1, len_bytes + 1);
        if (text != NULL) {
            memcpy(text, data, len_bytes);
            set_from_first_line(config, text);
        }
        free(text);
        sherd_config_destroy(config);
    }
    return 0;
}
