/* Writes the reference page of the configuration: docs/configuration.md is its output. */
#include "sherd.h"

#include <stdio.h>

static sherd_status print_text(void *ctx, const char *text, size_t len_bytes)
{
    (void)ctx;
    return fwrite(text, 1, len_bytes, stdout) == len_bytes ? SHERD_OK : SHERD_E_IO;
}

int main(void)
{
    return sherd_config_reference(print_text, NULL) == SHERD_OK && fflush(stdout) == 0 ? 0 : 1;
}
