/* Choices and UTF-8 as text. */
#ifndef SHERDI_BASE_TEXT_H
#define SHERDI_BASE_TEXT_H

#include <stddef.h>

/** Returns whether `text` is one of the choices "a|b|c"; *out is then its number, from 0. */
int sherdi_text_choice(const char *choices, const char *text, int is_any_case, size_t *out);

/** Returns the bytes of the well-formed UTF-8 sequence at `text` (Unicode 15, table 3-7); 0: it is
 *  malformed. */
size_t sherdi_utf8_bytes(const unsigned char *text, size_t left);
/** Returns 1 when the bytes are well-formed UTF-8. */
int sherdi_text_is_utf8(const char *text, size_t len_bytes);

#endif
