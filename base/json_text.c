/* See json_text.h. */
#include "base/json_text.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

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

int sherdi_text_order(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

void sherdi_text_init(sherdi_text *text, sherdi_mem *mem)
{
    *text = (sherdi_text){.mem = mem, .status = SHERD_OK};
}

void sherdi_text_fini(sherdi_text *text)
{
    sherdi_free(text->bytes);
    sherdi_text_init(text, text->mem);
}

void sherdi_text_put(sherdi_text *text, const char *bytes, size_t len_bytes)
{
    if (text->status == SHERD_OK) {
        text->status = sherdi_grow(text->mem, SHERDI_MEM_CONTROL, (void **)&text->bytes,
                                   &text->capacity_bytes, text->len_bytes + len_bytes + 1, 1);
    }
    if (text->status == SHERD_OK) {
        memcpy(text->bytes + text->len_bytes, bytes, len_bytes);
        text->len_bytes += len_bytes;
        text->bytes[text->len_bytes] = '\0';
    }
}

void sherdi_text_print(sherdi_text *text, const char *fmt, ...)
{
    char    portion[SHERDI_ERROR_BYTES];
    va_list args;
    int     len_bytes;

    va_start(args, fmt);
    len_bytes = vsnprintf(portion, sizeof(portion), fmt, args);
    va_end(args);
    assert(len_bytes >= 0 && (size_t)len_bytes < sizeof(portion));
    sherdi_text_put(text, portion, (size_t)len_bytes);
}

void sherdi_text_quote(sherdi_text *text, const char *value)
{
    size_t len_bytes = strlen(value);

    if (text->status == SHERD_OK && !sherdi_text_is_utf8(value, len_bytes)) {
        text->status = sherdi_fail(SHERD_E_INVAL, "\"%.100s\" is not UTF-8 text", value);
    }
    sherdi_text_put(text, "\"", 1);
    for (size_t i = 0; i < len_bytes && text->status == SHERD_OK; i++) {
        if (value[i] == '"' || value[i] == '\\') {
            sherdi_text_print(text, "\\%c", value[i]);
        } else if ((unsigned char)value[i] < ' ') {
            sherdi_text_print(text, "\\u%04x", (unsigned)value[i]);
        } else {
            sherdi_text_put(text, &value[i], 1);
        }
    }
    sherdi_text_put(text, "\"", 1);
}
