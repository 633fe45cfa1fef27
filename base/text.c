/* See text.h. */
#include "base/text.h"

#include <string.h>
#include <strings.h>

size_t sherdi_utf8_bytes(const unsigned char *text, size_t left)
{
    unsigned char first = text[0];
    unsigned char low   = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
    unsigned char high  = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
    size_t        bytes = first < 0x80                    ? 1
                          : first >= 0xc2 && first < 0xe0 ? 2
                          : first >= 0xe0 && first < 0xf0 ? 3
                          : first >= 0xf0 && first < 0xf5 ? 4
                                                          : 0;

    if (bytes == 0 || bytes > left) {
        return 0;
    }
    for (size_t i = 1; i < bytes; i++) {
        if (text[i] < (i == 1 ? low : 0x80) || text[i] > (i == 1 ? high : 0xbf)) {
            return 0;
        }
    }
    return bytes;
}

int sherdi_text_is_utf8(const char *text, size_t len_bytes)
{
    size_t bytes;

    for (size_t at = 0; at < len_bytes; at += bytes) {
        bytes = sherdi_utf8_bytes((const unsigned char *)text + at, len_bytes - at);
        if (bytes == 0) {
            return 0;
        }
    }
    return 1;
}

int sherdi_text_choice(const char *choices, const char *text, int is_any_case, size_t *out)
{
    size_t text_bytes = strlen(text);
    size_t bytes;

    for (size_t i = 0;; i++, choices += bytes + 1) {
        bytes = strcspn(choices, "|");
        if (bytes == text_bytes && (is_any_case ? strncasecmp(choices, text, bytes)
                                                : strncmp(choices, text, bytes)) == 0) {
            *out = i;
            return 1;
        }
        if (choices[bytes] == '\0') {
            return 0;
        }
    }
}
